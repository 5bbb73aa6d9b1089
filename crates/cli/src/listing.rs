// SPDX-License-Identifier: Apache-2.0
//! Listings as they come: nothing is held but what aligns columns, so that millions of objects can be written.

use crate::output::{kind_and_name, note, Columns, Format, Out};
use anyhow::Context;
use commandline::jsonpath::JsonPath;
use node::client::Client;
use serde_json::Value;
use std::io::{BufWriter, Write};
use std::process::ExitCode;

/// Exit status of a listing that is not all there is.
pub const CUT: u8 = 3;

/// Rows that are aligned together.
const ROWS: usize = 1000;

/// Turns rows into a page of a table, whose columns the page before may have fixed.
pub type Layout = fn(&[Value], &mut Columns) -> String;

/// Writes a list, an item at a time.
pub struct Printer {
    out: BufWriter<Out>,
    format: Format,
    layout: Layout,
    rows: Vec<Value>,
    columns: Columns,
    count: u64,
    /// It is an export, which says where it begins and ends.
    export: bool,
    /// What all items are sorted by.
    sort: Option<JsonPath>,
    /// Items that are kept until all are there.
    kept: Vec<Value>,
}

impl Printer {
    /// For items that `layout` makes a table of.
    pub fn new(format: Format, layout: Layout) -> Printer {
        Printer {
            out: BufWriter::with_capacity(1 << 16, Out),
            format,
            layout,
            rows: Vec::new(),
            columns: Columns::default(),
            count: 0,
            export: false,
            sort: None,
            kept: Vec::new(),
        }
    }

    /// Items come sorted: then all are held until the last is there.
    pub fn sorted_by(self, sort: Option<JsonPath>) -> Printer {
        Printer { sort, ..self }
    }

    /// Takes an item as a line of JSON.
    pub fn take(&mut self, line: &[u8]) -> anyhow::Result<()> {
        let value: Value =
            serde_json::from_slice(line).context("the node answers what this `tunny` does not understand")?;
        self.count += 1;
        if self.sort.is_some() || matches!(self.format, Format::Jsonpath(_)) {
            self.kept.push(value);
            return Ok(());
        }
        self.write(value, self.count == 1)
    }

    fn write(&mut self, value: Value, first: bool) -> anyhow::Result<()> {
        let result = match self.format {
            Format::Table | Format::Wide => {
                let other = self.rows.first().is_some_and(|first| first["kind"] != value["kind"]);
                if other || self.rows.len() >= ROWS {
                    self.table()?;
                    if other {
                        // Another kind has a table of its own, even if it has the same columns.
                        self.columns = Columns::others();
                    }
                }
                self.rows.push(value);
                Ok(())
            }
            Format::Json => {
                let before = if first { "[\n" } else { ",\n" };
                let text = serde_json::to_string_pretty(&value)?.replace('\n', "\n  ");
                write!(self.out, "{before}  {}", model::plain_json(&text))
            }
            Format::Yaml if value.get("apiVersion").is_some() => {
                if self.export && first {
                    self.out.write_all(model::EXPORT_BEGINS.as_bytes())?;
                }
                self.out.write_all(model::yaml_document(&value).as_bytes())
            }
            Format::Yaml => {
                let text = crate::output::yaml(&value);
                let mut lines = text.lines().map(|l| format!("  {l}\n")).collect::<String>();
                lines.replace_range(..1, "-");
                self.out.write_all(lines.as_bytes())
            }
            Format::Name => {
                let name = kind_and_name(&value).context("what is listed has no names: -o name is for objects")?;
                writeln!(self.out, "{}", model::plain(&name))
            }
            Format::Jsonpath(path) => self.out.write_all(path.render(&value).as_bytes()),
        };
        result.context("cannot write to standard output")
    }

    fn table(&mut self) -> anyhow::Result<()> {
        let names = self.columns.names.clone();
        let text = (self.layout)(&self.rows, &mut self.columns);
        let before = if names.is_empty() || names == self.columns.names { "" } else { "\n" };
        self.rows.clear();
        write!(self.out, "{before}{text}").context("cannot write to standard output")
    }

    /// Writes what is left, of a list that is `whole` or cut; how many items there were.
    pub fn end(mut self, whole: bool) -> anyhow::Result<u64> {
        let mut kept = std::mem::take(&mut self.kept);
        if let Some(sort) = &self.sort {
            sort.sort(&mut kept);
        }
        if let Format::Jsonpath(path) = self.format {
            let text = path.render(&Value::Array(kept));
            self.out.write_all(model::plain_lines(&text).as_bytes()).and_then(|()| self.out.flush())?;
            return Ok(self.count);
        }
        for (n, value) in kept.into_iter().enumerate() {
            self.write(value, n == 0)?;
        }
        match (self.format, self.count) {
            (Format::Table | Format::Wide, 0) => writeln!(self.out, "nothing to show"),
            (Format::Table | Format::Wide, _) => {
                self.table()?;
                Ok(())
            }
            (Format::Json, 0) => writeln!(self.out, "[]"),
            (Format::Json, _) => write!(self.out, "\n]\n"),
            (Format::Yaml, 0) => writeln!(self.out, "# nothing to show"),
            (Format::Yaml, n) if self.export && whole => writeln!(self.out, "{}{n}", model::EXPORT_ENDS),
            (Format::Yaml | Format::Name | Format::Jsonpath(_), _) => Ok(()),
        }
        .and_then(|()| self.out.flush())
        .context("cannot write to standard output")?;
        Ok(self.count)
    }
}

/// Says that a listing is cut, which its exit status says too.
pub fn cut(count: u64, rest: &str) -> ExitCode {
    let on = if rest.is_empty() || rest == "-" { String::new() } else { format!(", or --continue {rest} to go on") };
    note(format_args!("the list is cut: these are the first {count}, and there are more; give --limit 0 for all{on}"));
    ExitCode::from(CUT)
}

/// Leaves the latest of a list whose oldest come first; whether that is not all.
pub fn latest<T>(list: &mut Vec<T>, limit: u64) -> ExitCode {
    let left = if limit == 0 { 0 } else { (list.len() as u64).saturating_sub(limit) };
    list.drain(..left as usize);
    if left == 0 {
        return ExitCode::SUCCESS;
    }
    note(format_args!(
        "the list is cut: these are the latest {limit}, and there are {left} older ones; give --limit 0 for all"
    ));
    ExitCode::from(CUT)
}

/// Fetches a listing and writes it.
pub fn show(
    client: &Client,
    path: &str,
    (format, layout): (Format, Layout),
    sort: Option<JsonPath>,
) -> anyhow::Result<ExitCode> {
    counted(client, path, (format, layout), sort).map(|(done, _)| done)
}

/// The same, and how many there were.
pub fn counted(
    client: &Client,
    path: &str,
    (format, layout): (Format, Layout),
    sort: Option<JsonPath>,
) -> anyhow::Result<(ExitCode, u64)> {
    let mut printer = Printer::new(format, layout).sorted_by(sort);
    printer.export = path.starts_with("/v1/objects/all");
    let end = client.lines(path, |line| printer.take(line))??;
    let count = printer.end(end.rest.is_empty() && end.error.is_empty())?;
    anyhow::ensure!(end.error.is_empty(), "{}", end.error);
    anyhow::ensure!(end.count == count, "the node listed {} objects, and {count} arrived; list again", end.count);
    Ok((if end.rest.is_empty() { ExitCode::SUCCESS } else { cut(count, &end.rest) }, count))
}
