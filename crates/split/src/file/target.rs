// SPDX-License-Identifier: Apache-2.0
//! Targets of a description, and those that come with the program.

use super::figure::Unit;
use super::{chips, Reader};
use crate::description::{Operation, Pool, Target, Unit as Counted};
use model::reading::{name, Fields};
use model::yaml::{self, Node, Value};

/// Targets that a description may begin from (`like: NAME`).
pub const BUILT_IN: &[(&str, &str)] = &[
    ("xdp-core", include_str!("../../targets/xdp-core.yaml")),
    ("user-core", include_str!("../../targets/user-core.yaml")),
    ("commodity-switch", include_str!("../../targets/commodity-switch.yaml")),
    ("tofino", include_str!("../../targets/tofino.yaml")),
    ("u250", include_str!("../../targets/u250.yaml")),
    ("gpu", include_str!("../../targets/gpu.yaml")),
];

const FIELDS: [&str; 16] = [
    "name",
    "like",
    "chip",
    "pipes",
    "count",
    "dollars",
    "cores",
    "packet",
    "lookup",
    "packets",
    "ports",
    "latency",
    "changes",
    "revisions",
    "operations",
    "memory",
];

impl<'a> Reader<'a> {
    pub(super) fn target(&mut self, node: &'a Node<'a>, path: &str) -> Option<(String, Target)> {
        let f = self.r.fields(node, path, &FIELDS)?;
        let named = self.r.need(&f, "name", name)?;
        let mut target = Target { count: 1.0, name: named.clone(), ..Target::default() };
        if let Some(like) = self.r.value(&f, "like", name) {
            match BUILT_IN.iter().find(|(n, _)| *n == like) {
                Some((_, text)) => self.like(&like, text, &named, &mut target),
                None => {
                    let known: Vec<&str> = BUILT_IN.iter().map(|(n, _)| *n).collect();
                    let why =
                        format!("`{like}` is none of the targets that come with the program: {}", known.join(", "));
                    self.r.wrong(f.place("like"), &f.name("like"), why);
                }
            }
        }
        // What the file says itself replaces what the other one says; operations are added.
        let replaced: Vec<String> =
            FIELDS.iter().filter(|k| **k != "operations" && f.get(k).is_some()).map(|k| format!("): {k}")).collect();
        let own = format!("target {named} (like ");
        self.figures.retain(|figure| {
            let ends = |k: &String| {
                figure
                    .field
                    .split_once(k.as_str())
                    .is_some_and(|(_, rest)| rest.is_empty() || rest.starts_with(['[', '.']))
            };
            !(figure.field.starts_with(&own) && replaced.iter().any(ends))
        });
        self.fill(&f, &mut target);
        self.check_target(&f, &target);
        Some((named, target))
    }

    /// Fills a target from one that comes with the program. Its figures are read by a reader of its own, for they have places in
    /// another file.
    fn like(&mut self, like: &str, text: &'static str, named: &str, target: &mut Target) {
        let (documents, _) = yaml::parse(text);
        let file = format!("{like}.yaml");
        let mut reader = Reader {
            r: model::reading::Reading::new(&file),
            results: super::Results::current(),
            figures: Vec::new(),
            said: Default::default(),
        };
        let Some(f) = documents.first().and_then(|n| reader.r.fields(n, "", &FIELDS)) else { return };
        reader.fill(&f, target);
        self.r.errors.append(&mut reader.r.errors);
        self.figures.extend(reader.figures.into_iter().map(|mut figure| {
            figure.field = format!("target {named} (like {like}): {}", figure.field);
            figure
        }));
    }

    fn fill(&mut self, f: &Fields<'a>, t: &mut Target) {
        if f.get("chip").is_some() {
            self.chip(f, t);
        }
        for (key, unit, to) in [
            ("count", Unit::Number, &mut t.count),
            ("dollars", Unit::Number, &mut t.dollars),
            ("packet", Unit::Time, &mut t.packet),
            ("latency", Unit::Time, &mut t.latency),
        ] {
            if let Some(v) = self.figure(f, key, unit) {
                *to = v;
            }
        }
        for (key, unit, to) in [
            ("cores", Unit::Number, &mut t.cores),
            ("packets", Unit::Packets, &mut t.packets),
            ("ports", Unit::Bits, &mut t.ports),
            ("changes", Unit::Number, &mut t.changes),
            ("revisions", Unit::Number, &mut t.revisions),
        ] {
            if let Some(v) = self.figure(f, key, unit) {
                *to = Some(v);
            }
        }
        self.lookup(f, t);
        self.operations(f, t);
        self.memory(f, t);
    }

    fn lookup(&mut self, f: &Fields<'a>, t: &mut Target) {
        let points = self.r.list(f, "lookup");
        if points.is_empty() {
            return;
        }
        t.lookup.clear();
        for (node, path) in points {
            let Some(f) = self.r.fields(node, &path, &["bytes", "time"]) else { continue };
            let (bytes, time) = (self.need(&f, "bytes", Unit::Bytes), self.need(&f, "time", Unit::Time));
            let (Some(bytes), Some(time)) = (bytes, time) else { continue };
            if t.lookup.last().is_some_and(|(b, _)| *b >= bytes) || bytes <= 0.0 {
                self.r.wrong(
                    f.place("bytes"),
                    &f.name("bytes"),
                    "must be above 0B and above those before: list small tables first",
                );
            }
            t.lookup.push((bytes, time));
        }
    }

    fn operations(&mut self, f: &Fields<'a>, t: &mut Target) {
        let Some(node) = f.get("operations") else { return };
        if let Value::List(_) = &node.value {
            for named in self.names(f, "operations") {
                t.operations.insert(named, Operation::default());
            }
            return;
        }
        let Value::Map(entries) = &node.value else {
            let why = format!("is {}; a list of names is expected, or a mapping of names to times", node.type_name());
            self.r.wrong(node.at, &f.name("operations"), why);
            return;
        };
        for (key, _, node) in entries {
            let path = format!("{}.{key}", f.name("operations"));
            let operation = match &node.value {
                Value::Map(_) => {
                    let Some(f) = self.r.fields(node, &path, &["time", "most"]) else { continue };
                    let time = self.figure(&f, "time", Unit::Time).unwrap_or(0.0);
                    Operation { time, most: self.figure(&f, "most", Unit::Number) }
                }
                _ => match self.scalar(node, &path, Unit::Time) {
                    Some(time) => Operation { time, most: None },
                    None => continue,
                },
            };
            t.operations.insert(key.to_string(), operation);
        }
    }

    fn memory(&mut self, f: &Fields<'a>, t: &mut Target) {
        let parts = self.r.list(f, "memory");
        if parts.is_empty() {
            return;
        }
        t.memory.clear();
        for (node, path) in parts {
            let Some(f) = self.r.fields(node, &path, &["name", "holds", "bytes", "line", "entries"]) else { continue };
            let Some(named) = self.r.need(&f, "name", name) else { continue };
            let holds = self.names(&f, "holds");
            if f.get("holds").is_none() {
                self.r.wrong(f.at, &f.name("holds"), "is missing: kinds of tables, as [exact, lpm]");
            }
            let line = self.figure(&f, "line", Unit::Bytes).unwrap_or(1.0).max(1.0);
            let (bytes, entries) = (self.figure(&f, "bytes", Unit::Bytes), self.figure(&f, "entries", Unit::Number));
            let (room, unit) = match (bytes, entries) {
                (Some(bytes), None) => (bytes, Counted::Bytes(line)),
                (None, Some(entries)) => (entries, Counted::Entries),
                _ => {
                    self.r.wrong(f.at, &path, "must have either bytes or entries");
                    continue;
                }
            };
            t.memory.push(Pool { name: named, holds, room, unit });
        }
    }

    fn chip(&mut self, f: &Fields<'a>, t: &mut Target) {
        let Some(named) = self.r.value(f, "chip", name) else { return };
        let pipes = self.r.value(f, "pipes", name).unwrap_or_else(|| "flat".into());
        match chips::fill(&named, &pipes, t) {
            Ok(figures) => self.figures.extend(figures),
            Err((field, why)) => self.r.wrong(f.place(field), &f.name(field), why),
        }
    }

    fn check_target(&mut self, f: &Fields<'a>, t: &Target) {
        if t.cores.is_none() && t.packets.is_none() {
            self.r.wrong(
                f.at,
                &f.path,
                "has neither cores nor packets: say how many cores it has, or how many packets a second pass it",
            );
        }
        let positive = [("count", Some(t.count)), ("cores", t.cores), ("packets", t.packets), ("ports", t.ports)];
        for (key, _) in positive.iter().filter(|(_, v)| v.is_some_and(|v| v <= 0.0)) {
            self.r.wrong(
                f.place(key),
                &f.name(key),
                "must be above nothing: leave the target out if it cannot be used",
            );
        }
        if t.cores.is_none() && t.packet > 0.0 {
            self.r.wrong(
                f.place("packet"),
                &f.name("packet"),
                "is time of a core, but there are no cores: say latency",
            );
        }
    }
}
