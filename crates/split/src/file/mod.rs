// SPDX-License-Identifier: Apache-2.0
//! Reading descriptions: YAML whose every mistake is named at its line and column, with what to do.

mod chips;
pub mod figure;
mod target;

use crate::description::{Class, Description, Goal, Link, Stage, Table, Target};
use crate::hot::Hot;
use figure::{Figure, Results, Unit};
use model::reading::{name, Fields, Reading};
use model::yaml::{self, Node, Pos, Value};
use std::collections::BTreeMap;

pub use target::BUILT_IN;

/// Stages, targets, classes, links at most: what a path has, and more than a region has kinds of machines.
const MOST: usize = 200;

/// A file.
#[derive(Clone, Debug)]
pub struct File {
    /// What it describes.
    pub description: Description,
    /// Every figure that it gives, with its source.
    pub figures: Vec<Figure>,
}

/// Brings the text of another file that the description names, by its path from the description.
pub type Load<'l> = &'l dyn Fn(&str) -> Result<String, String>;

/// Reads a description; every mistake at its place.
pub fn read(file: &str, text: &str, load: Load) -> Result<File, Vec<String>> {
    let mut r = Reading::new(file);
    let (documents, fault) = yaml::parse(text);
    if let Some(fault) = fault {
        r.wrong(fault.at, "the file", format!("is not YAML: {}", fault.why));
        return Err(r.errors);
    }
    let [root] = &documents[..] else {
        let at = documents.get(1).map_or(Pos { line: 1, column: 1 }, |n| n.at);
        r.wrong(at, "the file", format!("has {} documents; one is expected", documents.len()));
        return Err(r.errors);
    };
    let mut reader = Reader { r, results: Results::current(), figures: Vec::new(), said: BTreeMap::new() };
    let description = reader.description(root, load);
    match description {
        Some(description) if reader.r.errors.is_empty() => {
            let figures =
                reader.figures.into_iter().map(|f| Figure { field: named_field(&description, &f.field), ..f });
            Ok(File { figures: figures.collect(), description })
        }
        _ => Err(reader.r.errors),
    }
}

/// A field with the name of what it belongs to: `targets[0].dollars` is `target switch: dollars`.
fn named_field(d: &Description, field: &str) -> String {
    let Some((list, rest)) = field.split_once('[') else { return field.to_string() };
    let Some((number, rest)) = rest.split_once("].") else { return field.to_string() };
    let Ok(n) = number.parse::<usize>() else { return field.to_string() };
    let name = match list {
        "targets" => d.targets.get(n).map(|t| format!("target {}", t.name)),
        "stages" => d.stages.get(n).map(|s| format!("stage {}", s.name)),
        "traffic" => d.classes.get(n).map(|c| format!("traffic {}", c.name)),
        "links" => d.links.get(n).map(|l| format!("link {}", l.name(d))),
        _ => None,
    };
    name.map_or_else(|| field.to_string(), |name| format!("{name}: {rest}"))
}

/// A file being read.
pub(crate) struct Reader<'a> {
    pub r: Reading<'a>,
    pub results: Results,
    pub figures: Vec<Figure>,
    /// Where what is named stands: `stage overlay`.
    said: BTreeMap<String, Pos>,
}

const FIELDS: [&str; 7] = ["name", "results", "goal", "traffic", "stages", "targets", "links"];

impl<'a> Reader<'a> {
    fn description(&mut self, root: &'a Node<'a>, load: Load) -> Option<Description> {
        let f = self.r.fields(root, "", &FIELDS)?;
        let named = self.r.value(&f, "name", |t| Ok(t.to_string())).unwrap_or_else(|| "split".into());
        self.results(&f, load);
        let targets = self.named(&f, "targets", "target", |s, n, path| s.target(n, path));
        let stages = self.named(&f, "stages", "stage", |s, n, path| s.stage(n, path));
        let mut links = Vec::new();
        for (node, path) in self.r.list(&f, "links") {
            links.extend(self.link(node, &path, &targets));
        }
        let classes = self.classes(&f, &stages, &targets);
        let goal = self.goal(&f, &classes);
        let d = Description { name: named, goal, classes, stages, targets, links };
        self.check(&f, &d);
        Some(d)
    }

    fn results(&mut self, f: &Fields<'a>, load: Load) {
        let Some(path) = self.r.value(f, "results", |t| Ok(t.to_string())) else { return };
        match load(&path).and_then(|text| Results::read(&path, &text)) {
            Ok(results) => self.results = results,
            Err(why) => self.r.wrong(f.place("results"), "results", why),
        }
    }

    /// A list of what has names.
    fn named<T>(
        &mut self,
        f: &Fields<'a>,
        field: &str,
        what: &str,
        read: impl Fn(&mut Self, &'a Node<'a>, &str) -> Option<(String, T)>,
    ) -> Vec<T> {
        let mut found = Vec::new();
        let listed = self.r.list(f, field);
        if listed.is_empty() {
            self.r.wrong(f.place(field), field, format!("has no {what}: one at least is needed"));
        }
        if listed.len() > MOST {
            self.r.wrong(f.place(field), field, format!("has {} of them; {MOST} are the most", listed.len()));
            return found;
        }
        for (node, path) in listed {
            let Some((named, value)) = read(self, node, &path) else { continue };
            if let Some(first) = self.said.insert(format!("{what} {named}"), node.at) {
                self.r.wrong(node.at, &path, format!("`{named}` is described twice, first in line {}", first.line));
            }
            found.push(value);
        }
        found
    }

    /// A figure that may be there.
    pub fn figure(&mut self, f: &Fields<'a>, key: &str, unit: Unit) -> Option<f64> {
        self.scalar(f.get(key)?, &f.name(key), unit)
    }

    /// A figure that must be there.
    pub fn need(&mut self, f: &Fields<'a>, key: &str, unit: Unit) -> Option<f64> {
        if f.get(key).is_none() {
            self.r.wrong(f.at, &f.name(key), "is missing");
        }
        self.figure(f, key, unit)
    }

    /// A single figure.
    pub fn scalar(&mut self, node: &'a Node<'a>, path: &str, unit: Unit) -> Option<f64> {
        let results = self.results.clone();
        let read = |text: &str| figure::read(text, unit, &results);
        let (value, written, source) = self.r.scalar(node, path, read)?;
        self.figures.push(Figure { field: path.to_string(), written, value, source });
        Some(value)
    }

    fn goal(&mut self, f: &Fields<'a>, classes: &[Class]) -> Goal {
        let usual = Goal { demand: None, water: 1.0, worth: 0.05 };
        let Some(node) = f.get("goal") else { return usual };
        let Some(f) = self.r.fields(node, "goal", &["demand", "water", "worth"]) else { return usual };
        let in_bits = f.get("demand").and_then(Node::text).is_some_and(|t| t.contains("bit"));
        let unit = if in_bits { Unit::Bits } else { Unit::Packets };
        let bits: f64 = classes.iter().map(|c| c.share * c.bytes * 8.0).sum();
        let demand = self.figure(&f, "demand", unit).map(|v| if in_bits { v / bits } else { v });
        if demand.is_some_and(|d| d <= 0.0) {
            self.r.wrong(f.place("demand"), "goal.demand", "must be above nothing: leave it out if the most is wanted");
        }
        let water = self.figure(&f, "water", Unit::Share).unwrap_or(usual.water);
        if water <= 0.0 {
            self.r.wrong(f.place("water"), "goal.water", "must be above 0%: it is the share of a rate that is used");
        }
        Goal { demand, water, worth: self.figure(&f, "worth", Unit::Share).unwrap_or(usual.worth) }
    }

    fn stage(&mut self, node: &'a Node<'a>, path: &str) -> Option<(String, Stage)> {
        let f = self.r.fields(node, path, &["name", "needs", "tables", "adds", "removes", "hands", "revisions"])?;
        let named = self.r.need(&f, "name", name)?;
        let needs = match f.get("needs").map(|n| (&n.value, n)) {
            None => Vec::new(),
            Some((Value::Map(entries), _)) => {
                let counted = |s: &mut Self, key: &str, node: &'a Node<'a>| {
                    Some((key.to_string(), s.scalar(node, &format!("{path}.needs.{key}"), Unit::Number)?))
                };
                entries.iter().filter_map(|(key, _, node)| counted(self, key, node)).collect()
            }
            Some(_) => self.names(&f, "needs").into_iter().map(|n| (n, 1.0)).collect(),
        };
        let mut tables = Vec::new();
        for (node, path) in self.r.list(&f, "tables") {
            tables.extend(self.table(node, &path));
        }
        if tables.iter().filter(|t| t.hot.is_some()).count() > 1 {
            let why = "says of two tables which entries are hot: a copy is of one table, so divide the stage";
            self.r.wrong(f.place("tables"), &f.name("tables"), why);
        }
        let adds = self.figure(&f, "adds", Unit::Bytes).unwrap_or(0.0)
            - self.figure(&f, "removes", Unit::Bytes).unwrap_or(0.0);
        let hands = self.figure(&f, "hands", Unit::Bytes).unwrap_or(0.0);
        let revisions = self.figure(&f, "revisions", Unit::Number).unwrap_or(0.0);
        Some((named.clone(), Stage { name: named, needs, tables, adds, hands, revisions }))
    }

    fn table(&mut self, node: &'a Node<'a>, path: &str) -> Option<Table> {
        let f = self.r.fields(
            node,
            path,
            &["name", "kind", "key", "value", "entries", "changes", "writes", "reads", "hot"],
        )?;
        let named = self.r.need(&f, "name", name);
        let kind = self.r.need(&f, "kind", name);
        let mut key = Vec::new();
        for (node, path) in self.r.list(&f, "key") {
            key.extend(self.scalar(node, &path, Unit::Number).map(|bits| bits.clamp(0.0, 1024.0) as u32));
        }
        let value = self.figure(&f, "value", Unit::Number).unwrap_or(0.0).min(8192.0) as u32;
        let entries = self.need(&f, "entries", Unit::Number);
        if entries.is_some_and(|n| !(1.0..=1e12).contains(&n)) {
            self.r.wrong(f.place("entries"), &f.name("entries"), "must be from 1 to 1e12");
        }
        let reads = self.figure(&f, "reads", Unit::Number).unwrap_or(1.0);
        let changes = self.figure(&f, "changes", Unit::Number).unwrap_or(0.0);
        let writes = self.figure(&f, "writes", Unit::Number).unwrap_or(0.0);
        let hot = f.get("hot").and_then(|n| self.hot(n, &f.name("hot")));
        let (name, kind, entries) = (named?, kind?, entries?);
        Some(Table { name, kind, key, value, entries, changes, writes, reads, hot })
    }

    fn hot(&mut self, node: &'a Node<'a>, path: &str) -> Option<Hot> {
        if node.text() == Some("even") {
            return Some(Hot::Even);
        }
        if node.text().is_some() {
            self.r.wrong(node.at, path, "is none of even, {entries: 5%, packets: 95%}, {zipf: 1.1}");
            return None;
        }
        let f = self.r.fields(node, path, &["entries", "packets", "zipf"])?;
        if let Some(s) = self.figure(&f, "zipf", Unit::Number) {
            return Some(Hot::Zipf(s.min(10.0)));
        }
        let (entries, packets) = (self.need(&f, "entries", Unit::Share)?, self.need(&f, "packets", Unit::Share)?);
        if !(entries > 0.0 && entries < 1.0) {
            self.r.wrong(f.place("entries"), &f.name("entries"), "must be between 0% and 100%");
        }
        Some(Hot::Set { entries, packets })
    }

    /// A list of names.
    pub fn names(&mut self, f: &Fields<'a>, key: &str) -> Vec<String> {
        let listed = self.r.list(f, key);
        listed.into_iter().filter_map(|(node, path)| self.r.scalar(node, &path, name)).collect()
    }

    /// The number of what has this name.
    fn index(&mut self, f: &Fields<'a>, key: &str, what: &str, of: &[String]) -> Option<usize> {
        let named = self.r.need(f, key, name)?;
        self.position(f.place(key), &f.name(key), &named, what, of)
    }

    fn position(&mut self, at: Pos, path: &str, named: &str, what: &str, of: &[String]) -> Option<usize> {
        let found = of.iter().position(|n| n == named);
        if found.is_none() {
            let known = of.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            self.r.wrong(at, path, format!("names {what} `{named}`, which does not exist; there are {known}"));
        }
        found
    }

    fn link(&mut self, node: &'a Node<'a>, path: &str, targets: &[Target]) -> Option<Link> {
        let f = self.r.fields(node, path, &["between", "bits", "packets", "latency", "metadata", "slice", "per"])?;
        let known: Vec<String> = targets.iter().map(|t| t.name.clone()).collect();
        let mut ends = Vec::new();
        for (node, path) in self.r.list(&f, "between") {
            let named = self.r.scalar(node, &path, name)?;
            ends.extend(self.position(node.at, &path, &named, "target", &known));
        }
        let per = f.get("per").and_then(|_| self.index(&f, "per", "target", &known));
        let bits = self.figure(&f, "bits", Unit::Bits);
        let packets = self.figure(&f, "packets", Unit::Packets);
        let latency = self.figure(&f, "latency", Unit::Time).unwrap_or(0.0);
        let metadata = self.figure(&f, "metadata", Unit::Bytes).unwrap_or(0.0);
        let slice = self.figure(&f, "slice", Unit::Bytes);
        let &[from, to] = &ends[..] else {
            if f.get("between").is_none_or(|n| !matches!(&n.value, Value::List(l) if l.len() == 2)) {
                self.r.wrong(f.place("between"), &f.name("between"), "must be two targets: [switch, server]");
            }
            return None;
        };
        if from == to {
            self.r.wrong(f.place("between"), &f.name("between"), "must be two targets, not one and the same");
        }
        Some(Link { from, to, bits, packets, latency, metadata, slice, per })
    }

    fn classes(&mut self, f: &Fields<'a>, stages: &[Stage], targets: &[Target]) -> Vec<Class> {
        let stage_names: Vec<String> = stages.iter().map(|s| s.name.clone()).collect();
        let target_names: Vec<String> = targets.iter().map(|t| t.name.clone()).collect();
        let read = |s: &mut Self, node: &'a Node<'a>, path: &str| {
            let f = s.r.fields(node, path, &["name", "packets", "bytes", "enters", "leaves", "path"])?;
            let named = s.r.need(&f, "name", name);
            let share = s.need(&f, "packets", Unit::Share);
            let bytes = s.need(&f, "bytes", Unit::Bytes);
            let enters = s.index(&f, "enters", "target", &target_names);
            let leaves = s.index(&f, "leaves", "target", &target_names);
            let mut stages = Vec::new();
            for (node, path) in s.r.list(&f, "path") {
                let Some(named) = s.r.scalar(node, &path, name) else { continue };
                let Some(stage) = s.position(node.at, &path, &named, "stage", &stage_names) else { continue };
                if stages.contains(&stage) {
                    s.r.wrong(node.at, &path, format!("passes `{named}` again: describe a stage of its own for it"));
                }
                stages.push(stage);
            }
            if f.get("path").is_none_or(Node::is_empty_list) {
                s.r.wrong(f.place("path"), &f.name("path"), "must name one stage at least");
            }
            let (name, share, bytes, enters, leaves) = (named?, share?, bytes?, enters?, leaves?);
            Some((name.clone(), Class { name, share, bytes, enters, leaves, path: stages }))
        };
        self.named(f, "traffic", "class", read)
    }

    /// What no single field shows.
    fn check(&mut self, f: &Fields<'a>, d: &Description) {
        let sum: f64 = d.classes.iter().map(|c| c.share).sum();
        if self.r.errors.is_empty() && (sum - 1.0).abs() > 1e-6 {
            let why = format!("has shares of packets that sum to {:.4}%; they must sum to 100%", sum * 100.0);
            self.r.wrong(f.place("traffic"), "traffic", why);
        }
        if !self.r.errors.is_empty() {
            return;
        }
        for (s, stage) in d.stages.iter().enumerate() {
            if d.share_of(s) == 0.0 {
                let at = self.said[&format!("stage {}", stage.name)];
                self.r.wrong(
                    at,
                    &format!("stages[{s}]"),
                    format!("`{}` is in no path of traffic: name it in one, or leave it out", stage.name),
                );
            }
        }
    }
}
