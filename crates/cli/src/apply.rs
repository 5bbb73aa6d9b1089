// SPDX-License-Identifier: Apache-2.0
//! `tunny apply`: the plan, then all of it or nothing.

use crate::output::{print, say, Format, Patience};
use crate::Global;
use node::client::Client;
use node::service::write_document;
use node::types::ApplyReport;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Change a node's configuration: shows the plan, then commits it whole or not at all.
///
/// Files are YAML documents, NDJSON (.ndjson, .jsonl), or binary snapshots (.tny). What they do not name stays as it is, unless
/// --replace is given. Exit status 0 if the node is now as described.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files or folders; `-` is standard input.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Show the plan and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
    /// The files are everything: what they do not name is deleted.
    #[arg(long)]
    replace: bool,
}

/// Runs the command.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let body = read(&args.files)?;
    let options = format!("replace={}", args.replace);
    change(&body, &options, args.dry_run, args.yes, global)
}

/// The files as the body of a request.
pub fn read(paths: &[PathBuf]) -> anyhow::Result<Vec<u8>> {
    let files = crate::input::files(paths)?;
    let _patience = crate::input::patience(&files);
    let mut body = Vec::new();
    for path in files {
        let left = (node::api::BODY_MAX as u64).saturating_sub(body.len() as u64 + path.as_os_str().len() as u64 + 12);
        let content = config::read_input(&path, left);
        let content = content.map_err(|why| anyhow::anyhow!("{}: cannot be read: {why}", path.display()))?;
        write_document(&mut body, &path.display().to_string(), &content);
    }
    Ok(body)
}

/// Shows the plan of a change, asks, and carries it out.
pub fn change(body: &[u8], options: &str, dry_run: bool, yes: bool, global: &Global) -> anyhow::Result<ExitCode> {
    let client = Client::new(&global.socket())?;
    let post = |dry: bool, what: &'static str| -> anyhow::Result<ApplyReport> {
        let _patience = Patience::new(what);
        Ok(client.post(&format!("/v1/apply?dry_run={dry}&{options}"), body.to_vec())?)
    };
    let text = global.output == Format::Table;
    // Nobody to ask, nobody to show a plan to beforehand: one request does both.
    if yes && !dry_run {
        let report = post(false, "applying")?;
        return finish(&report, global, true);
    }
    let plan = post(true, "planning")?;
    if dry_run || plan.empty {
        return finish(&plan, global, true);
    }
    if text {
        print(&colored(&plan.text))?;
    }
    if !std::io::stdin().is_terminal() {
        anyhow::bail!("nothing was changed: there is no terminal to ask on; give --yes to apply without asking");
    }
    let _ = write!(std::io::stderr(), "Apply? [y/N] ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    if !["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
        say("nothing was changed");
        return Ok(ExitCode::FAILURE);
    }
    finish(&post(false, "applying")?, global, false)
}

/// Signs at the beginning of lines in color, if a terminal looks at them.
fn colored(text: &str) -> String {
    if !std::io::stdout().is_terminal() || std::env::var_os("NO_COLOR").is_some() {
        return text.to_string();
    }
    let paint = |line: &str| match line.chars().next() {
        Some('+') => format!("\x1b[32m{line}\x1b[0m\n"),
        Some('-') => format!("\x1b[31m{line}\x1b[0m\n"),
        Some('~') => format!("\x1b[33m{line}\x1b[0m\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(paint).collect()
}

fn finish(report: &ApplyReport, global: &Global, plan: bool) -> anyhow::Result<ExitCode> {
    if global.output != Format::Table {
        crate::output::show(global.output, report, |_| String::new())?;
        return Ok(ExitCode::SUCCESS);
    }
    if plan {
        print(&colored(&report.text))?;
    }
    if report.committed {
        print(&format!(
            "committed as {} (read {:.3} s, plan {:.3} s, journal {:.3} s, tables {:.3} s)\n",
            report.generation, report.parse_s, report.plan_s, report.journal_s, report.commit_s
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
