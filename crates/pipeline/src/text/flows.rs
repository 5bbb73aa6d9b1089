// SPDX-License-Identifier: Apache-2.0
//! Lines of flows, and whole files.
use super::actions::Actions;
use super::kind::Kind;
use super::matches::Reader;
use super::names::{number_tables, Context};
use super::split::{item, list, trim};
use super::value::{number, small};
use super::{
    bad, groups, unsupported, Bad, Import, ImportError, ImportErrors, ImportOptions, Read, Source, ERRORS_MAX, TEXT_MAX,
};
use crate::action::Action;
use crate::field::Field;
use crate::pipeline::{FlowMod, Names, Pipeline, FLOWS_MAX};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Imports files.
pub(super) fn import(files: &[(&str, &str)], options: &ImportOptions) -> Result<Import, ImportErrors> {
    let texts: Vec<&str> = files.iter().map(|f| f.1).collect();
    let one = |file: usize, bad: &Bad<'_>| Source::new(files[file].1, files[file].0).error(bad);
    if let Some(at) = texts.iter().position(|t| t.len() > TEXT_MAX) {
        let error =
            one(at, &Bad { at: texts[at], message: "the text is longer than 1 GiB".into(), unsupported: false });
        return Err(ImportErrors { errors: vec![error], more: 0, unsupported: 0 });
    }
    let tables = number_tables(&texts, &options.tables, &options.ports).map_err(|b| {
        let inside =
            |t: &&str| (t.as_ptr() as usize..=t.as_ptr() as usize + t.len()).contains(&(b.at.as_ptr() as usize));
        ImportErrors { errors: vec![one(texts.iter().position(inside).unwrap_or(0), &b)], more: 0, unsupported: 0 }
    })?;
    let names = Names { ports: options.ports.iter().cloned().collect(), tables };
    let mut reader = FileReader {
        context: Context::open(names),
        lenient: options.lenient,
        again: false,
        pipeline: Pipeline::default(),
        flows: Vec::new(),
        groups: 0,
        lists: HashMap::new(),
        unsupported: Vec::new(),
        errors: Vec::new(),
        more: 0,
        unsupported_errors: 0,
    };
    for (name, text) in files {
        reader.file(&Source::new(text, name));
    }
    reader.finish()
}

struct FileReader<'n> {
    context: Context<'n>,
    lenient: bool,
    /// A line is read again, and nothing is noted of it.
    again: bool,
    pipeline: Pipeline,
    flows: Vec<FlowMod>,
    groups: usize,
    /// Lists of actions that were read, by their text and what their meaning depends on.
    lists: HashMap<(u8, u8), HashMap<Arc<str>, List>>,
    unsupported: Vec<ImportError>,
    errors: Vec<ImportError>,
    more: usize,
    unsupported_errors: usize,
}

/// A list of actions that was read before.
struct List {
    actions: Arc<[Action]>,
    text: Arc<str>,
    /// Kinds of packets that have what it needs.
    checked: HashSet<Kind>,
}

/// Logical lines with the number of their first physical one: a backslash at the end joins the next line, unless that is a flow of
/// its own.
fn lines(text: &str) -> impl Iterator<Item = (u32, &str)> {
    let mut rest = Some(text);
    let mut number = 1u32;
    std::iter::from_fn(move || {
        let all = rest?;
        let first = number;
        let mut end = 0;
        loop {
            number += 1;
            match all[end..].find('\n') {
                Some(at)
                    if all[..end + at].trim_end_matches('\r').ends_with('\\') && !is_flow(&all[end + at + 1..]) =>
                {
                    end += at + 1
                }
                Some(at) => {
                    rest = Some(&all[end + at + 1..]);
                    return Some((first, &all[..end + at]));
                }
                None => {
                    rest = None;
                    return Some((first, all));
                }
            }
        }
    })
}

/// Refuses what is not meant to be lines of flows, which otherwise each line would be refused for.
fn is_text_of_flows(text: &str) -> Read<'_, ()> {
    if let Some(at) = text.find('\0') {
        return bad(&text[at..], "there is a NUL byte here: this is no text");
    }
    match text.trim_start().starts_with(['{', '[']) {
        true => bad(text.trim_start(), "this looks like JSON; flows are lines as `ovs-ofctl dump-flows` prints them"),
        false => Ok(()),
    }
}

/// Whether the first line of a text is a whole flow.
fn is_flow(text: &str) -> bool {
    split_actions(text.split('\n').next().unwrap_or("")).is_some()
}

/// Headings of dumps, empty lines.
fn is_skipped(line: &str) -> bool {
    let heading = |prefix: &str| line.starts_with(prefix) && line.contains("reply");
    line.is_empty() || heading("NXST_") || heading("OFPST_") || line.starts_with("OFPT_")
}

impl FileReader<'_> {
    fn file(&mut self, source: &Source<'_>) {
        // Some editors begin a text with this mark.
        let text = source.text.strip_prefix('\u{feff}').unwrap_or(source.text);
        if let Err(bad) = is_text_of_flows(text) {
            return self.errors.push(source.error(&bad));
        }
        for (number, line) in lines(text) {
            let cut_off = line.trim_end_matches('\r').ends_with('\\');
            // As in Open vSwitch a comment goes to the end of the line, wherever it begins.
            let line = trim(line.split_once('#').filter(|_| !line.contains('\n')).map_or(line, |(flow, _)| flow));
            if is_skipped(line) {
                continue;
            }
            if let Err(bad) = self.line(number, line, cut_off, source) {
                let bad = self.hardest(bad, number, line, cut_off, source);
                self.unsupported_errors += usize::from(bad.unsupported);
                match self.errors.len() < ERRORS_MAX {
                    true => self.errors.push(source.error(&bad)),
                    false => self.more += 1,
                }
            }
        }
    }

    /// Of a line that has what is not supported and what a lenient import refuses, too, the latter is the error: `unsupported` says
    /// that the line would be taken. Nothing is imported any more, so that reading it again leaves something behind does no harm.
    fn hardest<'a>(
        &mut self,
        first: Bad<'a>,
        number: u32,
        line: &'a str,
        cut_off: bool,
        source: &Source<'_>,
    ) -> Bad<'a> {
        if !first.unsupported || self.lenient {
            return first;
        }
        (self.lenient, self.again) = (true, true);
        let again = self.line(number, line, cut_off, source);
        (self.lenient, self.again) = (false, false);
        again.err().unwrap_or(first)
    }

    /// Notes what a lenient import leaves out.
    fn left_out(&mut self, source: &Source<'_>, why: &Bad<'_>) {
        if !self.again {
            self.unsupported.push(source.error(why));
        }
    }

    fn finish(mut self) -> Result<Import, ImportErrors> {
        if !self.errors.is_empty() {
            let unsupported = self.unsupported_errors;
            return Err(ImportErrors { errors: self.errors, more: self.more, unsupported });
        }
        let (flows, groups, unsupported) = (self.flows.len(), self.groups, self.unsupported);
        self.pipeline.add_all(self.flows, 0);
        let named_ports = self.context.named;
        self.pipeline.names = self.context.names;
        Ok(Import { pipeline: self.pipeline, flows, groups, unsupported, named_ports })
    }

    fn line<'a>(&mut self, number: u32, line: &'a str, cut_off: bool, source: &Source<'_>) -> Read<'a, ()> {
        let line = match line.split_once([' ', '\t']) {
            Some(("add", rest)) => trim(rest),
            Some((
                command @ ("modify" | "modify_strict" | "delete" | "delete_strict" | "insert_bucket" | "remove_bucket"),
                _,
            )) => {
                return bad(line, format!("\"{command}\" changes flows that a file would have to have before: only flows to add can be imported"));
            }
            _ => line,
        };
        if line.starts_with("group_id") {
            let mut actions = Actions {
                context: &mut self.context,
                table: 0,
                proto: 0,
                kind: None,
                lenient: self.lenient,
                left_out: None,
            };
            let (id, group) = groups::read(line, &mut actions)?;
            if let Some(why) = actions.left_out {
                self.left_out(source, &why);
            }
            if self.pipeline.group(id).is_some() {
                return bad(line, format!("group {id} is there already: a group is written once"));
            }
            self.pipeline.set_group(id, group);
            self.groups += 1;
            return Ok(());
        }
        if self.flows.len() >= FLOWS_MAX {
            return bad(line, format!("there are more than {FLOWS_MAX} flows"));
        }
        let (flow, left_out) = match self.flow(number, line, cut_off) {
            Err(why) if self.lenient && why.unsupported => {
                // Not a flow at all: there is nothing that traffic could reach.
                self.left_out(source, &why);
                return Ok(());
            }
            other => other?,
        };
        if let Some(why) = left_out {
            self.left_out(source, &why);
        }
        self.flows.push(flow);
        Ok(())
    }

    fn flow<'a>(&mut self, line_number: u32, line: &'a str, cut_off: bool) -> Read<'a, (FlowMod, Option<Bad<'a>>)> {
        let Some((head, actions_text)) = split_actions(line) else {
            return unsupported(line, "a flow needs actions: \"… actions=output:1\", or \"actions=drop\"");
        };
        let mut flow = FlowMod {
            table: 0,
            priority: 32768,
            matching: Default::default(),
            actions: Arc::new([]),
            text: Arc::from(""),
            cookie: 0,
            idle_timeout: 0,
            hard_timeout: 0,
            line: line_number,
        };
        let mut left_out = None;
        let mut reader = Reader::default();
        for part in list(head, true)? {
            let item = item(part)?;
            match item.name {
                "table" => {
                    flow.table = self.context.table(item.needed()?)?;
                    if flow.table == 254 && item.value.is_some_and(|t| t.starts_with(|c: char| c.is_ascii_digit())) {
                        return bad(item.whole, "table 254 is the switch's own: flows go to tables 0 to 253");
                    }
                }
                "priority" => flow.priority = small(item.needed()?, 16)? as u16,
                "cookie" => match item.needed()? {
                    masked if masked.contains('/') => {
                        return bad(masked, "a flow that is added has a cookie without a mask");
                    }
                    cookie => flow.cookie = number(cookie, 64)? as u64,
                },
                "idle_timeout" => flow.idle_timeout = small(item.needed()?, 16)? as u16,
                "hard_timeout" => flow.hard_timeout = small(item.needed()?, 16)? as u16,
                "duration" | "n_packets" | "n_bytes" | "idle_age" | "hard_age" | "importance" => {
                    item.needed()?;
                }
                "send_flow_rem" | "check_overlap" | "reset_counts" | "no_packet_counts" | "no_byte_counts" => {
                    item.alone()?
                }
                _ => match reader.item(item, &mut self.context) {
                    Err(bad) if bad.unsupported && self.lenient => left_out = Some(bad),
                    other => other?,
                },
            }
        }
        flow.matching = reader.finish()?;
        if let Some(why) = left_out {
            flow.actions = Arc::new([Action::Unsupported(Arc::from(why.at))]);
            flow.text = Arc::from(actions_text);
            return Ok((flow, Some(why)));
        }
        if cut_off {
            let why = Bad {
                at: actions_text,
                message: "the line ends with a backslash, but the next one is a flow of its own".into(),
                unsupported: true,
            };
            if !self.lenient {
                return Err(why);
            }
            flow.actions = Arc::new([Action::Unsupported(Arc::from(actions_text))]);
            flow.text = Arc::from(actions_text);
            return Ok((flow, Some(why)));
        }
        let left_out = self.actions(&mut flow, actions_text)?;
        Ok((flow, left_out))
    }

    /// Equal texts in one table share one list, which is checked for every kind of packet that its flows match.
    fn actions<'a>(&mut self, flow: &mut FlowMod, text: &'a str) -> Read<'a, Option<Bad<'a>>> {
        let proto = flow.matching.exactly(Field::NwProto).unwrap_or(0) as u8;
        let kind = Kind::of(&flow.matching);
        let lists = self.lists.entry((flow.table, proto)).or_default();
        let known = lists.get_mut(text);
        if let Some(list) = known.as_ref().filter(|list| list.checked.contains(&kind)) {
            (flow.actions, flow.text) = (list.actions.clone(), list.text.clone());
            return Ok(None);
        }
        let mut reader = Actions {
            context: &mut self.context,
            table: flow.table,
            proto,
            kind: Some(kind),
            lenient: self.lenient,
            left_out: None,
        };
        let actions = reader.list(text)?;
        let left_out = reader.left_out;
        match known {
            Some(list) => {
                list.checked.insert(kind);
                (flow.actions, flow.text) = (list.actions.clone(), list.text.clone());
            }
            None => {
                flow.actions = actions.into();
                flow.text = Arc::from(if text.is_empty() { "drop" } else { text });
                if left_out.is_none() {
                    let (actions, text_of) = (flow.actions.clone(), flow.text.clone());
                    lists.insert(Arc::from(text), List { actions, text: text_of, checked: HashSet::from([kind]) });
                }
            }
        }
        Ok(left_out)
    }
}

/// The match and the actions of a line.
fn split_actions(line: &str) -> Option<(&str, &str)> {
    let mut from = 0;
    while let Some(at) = line[from..].find("action") {
        let at = from + at;
        let rest = &line[at + 6..];
        let rest = rest.strip_prefix('s').unwrap_or(rest);
        let separated = at == 0 || line.as_bytes()[at - 1] == b',' || line.as_bytes()[at - 1].is_ascii_whitespace();
        if let (true, Some(actions)) = (separated, rest.trim_start().strip_prefix('=')) {
            return Some((&line[..at], trim(actions)));
        }
        from = at + 6;
    }
    None
}
