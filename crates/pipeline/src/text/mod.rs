// SPDX-License-Identifier: Apache-2.0
//! Import of the text that `ovs-ofctl dump-flows` prints and `add-flows` reads, and of groups in the same style.
//!
//! A line is a flow (`table=0, priority=10,ip,nw_dst=10.0.0.0/8 actions=output:2`), a group (`group_id=1,type=select,bucket=…`), a comment, or
//! a heading of a dump. What is not understood is an error with line and column. A lenient import takes a flow with an unknown field or
//! action all the same, and traffic that reaches it reports that ([`crate::Failure::Unsupported`]); malformed values are
//! errors in both. Either everything is loaded or nothing.
mod actions;
mod arguments;
mod flows;
mod format;
mod groups;
mod kind;
mod matches;
mod names;
mod packet;
mod split;
mod value;

pub use format::{format_key, format_match, format_subset};

use crate::field::Field;
use crate::key::Key;
use crate::matching::Match;
use crate::pipeline::{Names, Pipeline};
use std::cell::OnceCell;

/// Text at most, in bytes.
pub const TEXT_MAX: usize = 1 << 30;
/// Errors that are listed; the rest is counted.
const ERRORS_MAX: usize = 20;

/// How to import.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// The file's name, for errors.
    pub source: String,
    /// Take flows with fields and actions that are not understood, and let the traffic that reaches them report it.
    pub lenient: bool,
    /// Numbers of named ports; names without one get numbers from 57344 upwards.
    pub ports: Vec<(String, u16)>,
    /// Numbers of named tables; names without one are numbered so that every `goto_table` leads forward.
    pub tables: Vec<(String, u8)>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportError {
    /// The file.
    pub source: String,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// What is wrong and what would be right.
    pub message: String,
    /// A lenient import goes on.
    pub unsupported: bool,
}

impl std::fmt::Display for ImportError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.source.is_empty() {
            write!(f, "{}:", self.source)?;
        }
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

/// Why nothing was imported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ImportErrors {
    /// The first ones.
    pub errors: Vec<ImportError>,
    /// How many more there are.
    pub more: usize,
    /// With how many of all of them a lenient import goes on.
    pub unsupported: usize,
}

impl std::fmt::Display for ImportErrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (n, error) in self.errors.iter().enumerate() {
            if n > 0 {
                writeln!(f)?;
            }
            write!(f, "{error}")?;
        }
        match self.more {
            0 => Ok(()),
            n => write!(f, "\nand {n} more errors"),
        }
    }
}

/// What an import gave.
#[derive(Clone, Debug)]
pub struct Import {
    /// The program.
    pub pipeline: Pipeline,
    /// Flows read (a later one replaces an equal one, so the pipeline may have fewer).
    pub flows: usize,
    /// Groups read.
    pub groups: usize,
    /// Flows that were taken although something of them is not understood: one each.
    pub unsupported: Vec<ImportError>,
    /// Ports that have a name only, with the numbers that they were given.
    pub named_ports: Vec<(String, u16)>,
}

/// A complaint about a part of the text. The part is a slice of it, so its place is known.
#[derive(Clone, Debug)]
pub(crate) struct Bad<'a> {
    at: &'a str,
    message: String,
    /// A lenient import may go on.
    unsupported: bool,
}

pub(crate) type Read<'a, T> = Result<T, Bad<'a>>;

pub(crate) fn bad<T>(at: &str, message: impl Into<String>) -> Read<'_, T> {
    Err(Bad { at, message: message.into(), unsupported: false })
}

pub(crate) fn unsupported<T>(at: &str, message: impl Into<String>) -> Read<'_, T> {
    Err(Bad { at, message: message.into(), unsupported: true })
}

/// The text, to say where a part of it is.
pub(crate) struct Source<'a> {
    text: &'a str,
    name: &'a str,
    /// Where its lines begin, once that was asked.
    starts: OnceCell<Vec<usize>>,
}

impl<'a> Source<'a> {
    fn new(text: &'a str, name: &'a str) -> Source<'a> {
        Source { text, name, starts: OnceCell::new() }
    }

    fn error(&self, bad: &Bad<'_>) -> ImportError {
        let offset = (bad.at.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize).min(self.text.len());
        let starts = self.starts.get_or_init(|| {
            let ends = self.text.bytes().enumerate().filter(|(_, b)| *b == b'\n');
            std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect()
        });
        let line = starts.partition_point(|start| *start <= offset);
        let before = self.text.get(starts[line - 1]..offset).unwrap_or("");
        let (line, column) = (line as u32, before.chars().count() as u32 + 1);
        ImportError {
            source: self.name.to_string(),
            line,
            column,
            message: bad.message.clone(),
            unsupported: bad.unsupported,
        }
    }
}

/// Imports flows and groups.
pub fn import(text: &str, options: &ImportOptions) -> Result<Import, ImportErrors> {
    import_all(&[(options.source.as_str(), text)], options)
}

/// Imports several files as one program (flows in one, groups in another).
pub fn import_all(files: &[(&str, &str)], options: &ImportOptions) -> Result<Import, ImportErrors> {
    flows::import(files, options)
}

/// Reads a packet in the syntax of `ovs-appctl ofproto/trace`: `in_port=1,tcp,nw_src=10.0.0.1,…`. What is not named is zero, but
/// fields that a kind of packet must have follow from the others.
pub fn packet(text: &str, names: &Names) -> Result<Key, ImportError> {
    let source = Source::new(text, "");
    packet::read(text, names).map_err(|b| source.error(&b))
}

/// Reads a match in the syntax of a flow.
pub fn matching(text: &str, names: &Names) -> Result<Match, ImportError> {
    let source = Source::new(text, "");
    let mut context = names::Context::fixed(names);
    matches::read(text, &mut context).map_err(|b| source.error(&b))
}

/// Reads bits of a packet as [`format_subset`] and megaflows print them: like a match, but without the fields that it would need.
pub fn subset(text: &str, names: &Names) -> Result<Match, ImportError> {
    let source = Source::new(text, "");
    let mut context = names::Context::fixed(names);
    matches::read_any(text, &mut context).map_err(|b| source.error(&b))
}

/// Reads connection states as `--ct-next` takes them: `trk,new` or `trk|est|rpl`.
pub fn ct_state(text: &str) -> Result<u16, ImportError> {
    let source = Source::new(text, "");
    value::state_list(text).map_err(|b| source.error(&b))
}

impl Pipeline {
    /// Imports a program; see [`import`].
    pub fn from_text(text: &str, options: &ImportOptions) -> Result<Pipeline, ImportErrors> {
        import(text, options).map(|i| i.pipeline)
    }
}

/// The field of this name; `tp_src` and `icmp_type` stand for those of all protocols.
pub(crate) fn field_named(name: &str) -> Option<Field> {
    match name {
        "tp_src" => Some(Field::TcpSrc),
        "tp_dst" => Some(Field::TcpDst),
        _ => Field::named(name),
    }
}

/// The same where the names of OpenFlow's extensible matches are not taken: as the key of a match, after `set_field`, in `delete_field`.
pub(crate) fn field_of_key(name: &str) -> Option<Field> {
    field_named(name).filter(|_| !name.contains(|c: char| c.is_ascii_uppercase()))
}
