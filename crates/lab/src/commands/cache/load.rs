// SPDX-License-Identifier: Apache-2.0
//! Pipelines from the user's files: where packets begin in them, and what is said about what they lack.

use anyhow::{anyhow, bail};
use commandline::output;
use pipeline::text::{import_all, ImportOptions};
use pipeline::{Action, FlowMod, Import, ImportErrors, Pipeline};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What table 0 is called where it only leads to the one in which packets are to begin.
const ENTRY: &str = "(entry)";

/// What to read, and how.
pub struct Files<'a> {
    /// Files with flows, and groups perhaps.
    pub flows: &'a [PathBuf],
    /// Files with groups.
    pub groups: &'a [PathBuf],
    /// Numbers of named ports.
    pub ports: &'a [(String, u16)],
    /// Go on where something is not understood.
    pub lenient: bool,
    /// The table in which packets begin, by name or number.
    pub table: Option<&'a str>,
    /// The traffic is made for these flows, so where it begins is free.
    pub made: bool,
}

/// A pipeline, and in which table packets begin.
#[derive(Debug)]
pub struct Program {
    /// The pipeline.
    pub pipeline: Pipeline,
    /// The table in which packets begin, by its name if it has one.
    pub entry: String,
    /// Table 0 only leads there.
    pub lead: bool,
}

/// Bytes of a file of flows, packets or rules at most.
const TEXT_MAX: u64 = 1 << 30;

/// The text of a file, bounded.
pub fn text(path: &Path) -> anyhow::Result<String> {
    model::read_text(path, TEXT_MAX).map_err(|why| anyhow::anyhow!("{} cannot be read: {why}", path.display()))
}

/// A port's number, as an option gives it.
pub fn port(text: &str) -> Result<(String, u16), String> {
    let (name, number) = text.rsplit_once('=').ok_or("a port is given as NAME=NUMBER")?;
    let number = match number {
        "LOCAL" | "local" => 0xfffe,
        _ => number.parse().map_err(|_| format!("\"{number}\" is not a port's number"))?,
    };
    Ok((name.trim_matches('"').to_string(), number))
}

/// Reads the files and says on standard error what they lack.
pub fn program(files: &Files<'_>) -> anyhow::Result<Program> {
    let mut texts = Vec::new();
    for path in files.flows.iter().chain(files.groups) {
        texts.push((path.display().to_string(), text(path)?));
    }
    let texts: Vec<(&str, &str)> = texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let options = ImportOptions { lenient: files.lenient, ports: files.ports.to_vec(), ..ImportOptions::default() };
    for (n, (name, number)) in files.ports.iter().enumerate() {
        if let Some((_, other)) = files.ports[..n].iter().find(|(other, of)| other == name && of != number) {
            bail!("--port {name}={number}: it has number {other} already");
        }
    }
    let first = import_all(&texts, &options).map_err(refused)?;
    if first.flows == 0 {
        bail!("there are no flows in {}", texts.iter().map(|t| t.0).collect::<Vec<_>>().join(", "));
    }
    say_unsupported(&first);
    say_missing(&first.pipeline);
    say_dead_ends(&first.pipeline);
    say_named_ports(&first.named_ports);
    let Some(table) = files.table else { return Ok(usual(first.pipeline, files.made)) };
    let mut pipeline = first.pipeline;
    let mut number = numbered(&pipeline, table)?;
    if number != 0 && pipeline.table_size(0).0 > 0 {
        if pipeline.names().table(0).is_none() {
            bail!("--table {table}: there are flows in table 0, and that is where packets begin then; leave them out to begin in another one");
        }
        // A named table has number 0 by chance only: it gets another one.
        let options = ImportOptions { tables: vec![(ENTRY.into(), 0)], ..options };
        pipeline = import_all(&texts, &options).map_err(refused)?.pipeline;
        number = numbered(&pipeline, table)?;
    }
    if number != 0 {
        lead_to(&mut pipeline, number);
    }
    let entry = label(&pipeline, number);
    Ok(Program { pipeline, entry, lead: number != 0 })
}

/// Where packets begin if nobody says it: in table 0 as in a switch, or for traffic that is made, in the first table with flows.
fn usual(mut pipeline: Pipeline, made: bool) -> Program {
    let tables: Vec<u8> = pipeline.tables().collect();
    if pipeline.table_size(0).0 > 0 {
        if let Some(name) = pipeline.names().table(0).filter(|_| tables.len() > 1) {
            output::note(format_args!(
                "packets begin in table {name}: tables with names do not say which is the first; --table NAME does"
            ));
        }
        let entry = label(&pipeline, 0);
        return Program { pipeline, entry, lead: false };
    }
    let with_flows = labels(&pipeline);
    match (made, tables.first()) {
        (true, Some(&first)) => {
            let entry = label(&pipeline, first);
            output::note(format_args!(
                "table 0 has no flows, so packets begin in table {entry}; there are flows in {with_flows}: --table N lets them begin in another one"
            ));
            lead_to(&mut pipeline, first);
            Program { pipeline, entry, lead: true }
        }
        _ => {
            output::note(format_args!(
                "table 0 has no flows, so every packet is dropped there; there are flows in {with_flows}: --table N lets packets begin there"
            ));
            Program { pipeline, entry: "0".into(), lead: false }
        }
    }
}

/// Packets begin in table 0 everywhere, so that gets a flow that leads to where they are to begin.
fn lead_to(pipeline: &mut Pipeline, number: u8) {
    let text = Arc::from(format!("resubmit(,{})", label(pipeline, number)));
    let actions = Arc::new([Action::Resubmit { in_port: None, table: Some(number), ct: false }]);
    let flow = FlowMod {
        table: 0,
        priority: 0,
        matching: Default::default(),
        actions,
        text,
        cookie: 0,
        idle_timeout: 0,
        hard_timeout: 0,
        line: 0,
    };
    pipeline.add(flow, 0);
}

fn label(pipeline: &Pipeline, number: u8) -> String {
    pipeline.names().table(number).map_or_else(|| number.to_string(), str::to_string)
}

/// All tables with flows.
fn labels(pipeline: &Pipeline) -> String {
    pipeline.tables().map(|n| label(pipeline, n)).collect::<Vec<_>>().join(", ")
}

/// The number of a table that has flows.
pub fn numbered(pipeline: &Pipeline, table: &str) -> anyhow::Result<u8> {
    let by_name = pipeline.names().tables.get(table.trim_matches('"')).copied();
    by_name
        .or_else(|| table.parse().ok())
        .filter(|n| pipeline.table_size(*n).0 > 0)
        .ok_or_else(|| anyhow!("there are no flows in table {table}; there are some in {}", labels(pipeline)))
}

/// What is wrong with files, and what a lenient import would take of it.
fn refused(errors: ImportErrors) -> anyhow::Error {
    let advice = match (errors.unsupported, errors.errors.len() + errors.more) {
        (0, _) => return errors.into(),
        (n, all) if n == all => "--lenient goes on: flows with what is not supported are taken and counted, and packets that reach them say so".to_string(),
        (n, all) => format!(
            "with --lenient {n} of these would be taken, which {} not supported; the other {} must be mended first",
            if n == 1 { "is only" } else { "are only" },
            all - n
        ),
    };
    anyhow!("{errors}\n{advice}")
}

/// The first twenty, and how many more there are; none if there are none.
fn listed(all: &[String]) -> Option<String> {
    let first = all[..all.len().min(20)].join(", ");
    match all.len() {
        0 => None,
        n if n > 20 => Some(format!("{first} and {} more", n - 20)),
        _ => Some(first),
    }
}

/// Names groups that are missing, on standard error.
fn say_missing(pipeline: &Pipeline) {
    let missing: Vec<String> = pipeline.missing_groups().iter().map(u32::to_string).collect();
    if let Some(groups) = listed(&missing) {
        output::note(format_args!(
            "flows name groups that do not exist: {groups}; packets go no further there (--groups FILE reads groups)"
        ));
    }
}

/// Names tables in which packets end because nobody wrote a flow for them, on standard error: perhaps a name is misspelt.
fn say_dead_ends(pipeline: &Pipeline) {
    let tables: Vec<String> = pipeline.dead_ends().iter().map(|n| label(pipeline, *n)).collect();
    if let Some(tables) = listed(&tables) {
        output::note(format_args!("flows lead to tables without flows: {tables}; packets are dropped there"));
    }
}

/// Names ports of which no number is known, on standard error: packets come in by them only if their number is that which was made up.
fn say_named_ports(ports: &[(String, u16)]) {
    let told: Vec<String> = ports.iter().map(|(name, number)| format!("{name}={number}")).collect();
    if let Some(ports) = listed(&told) {
        output::note(format_args!("ports with a name only got numbers: {ports} (--port NAME=NUMBER says another one)"));
    }
}

/// Names the flows that a lenient import did not understand, on standard error: the first twenty, and how many there are.
fn say_unsupported(import: &Import) {
    for error in import.unsupported.iter().take(20) {
        output::note(format_args!("unsupported: {error}"));
    }
    if import.unsupported.len() > 20 {
        output::note(format_args!("{} unsupported flows in all", import.unsupported.len()));
    }
}
