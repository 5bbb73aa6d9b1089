// SPDX-License-Identifier: Apache-2.0
//! `tunny apply`: the plan, then all of it or nothing.

use crate::output::{print, print_as_it_is, say, Patience};
use crate::Global;
use anyhow::Context;
use node::body::write_document;
use node::client::ClientError;
use node::types::{ApplyReport, OUTDATED};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Change the configuration of a node, or with --server of a region: shows the plan, then commits it whole or not at all.
///
/// Files are YAML documents, NDJSON (.ndjson, .jsonl), or binary snapshots (.tny). What they do not name stays as it is, unless
/// --replace is given. Exit status 0 if the node is now as described.
///
/// What is committed is the plan that was shown. If the configuration changes between plan and answer, nothing is committed: the new
/// plan is shown, and asked about. With --yes plan and commit are one step, and nothing comes between.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files or folders; `-` is standard input.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Show the plan and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Do not ask. It does not answer for deletions of more than a tenth of all objects: see --deletes.
    #[arg(short, long)]
    yes: bool,
    /// The files are everything: what they do not name is deleted.
    #[arg(long)]
    replace: bool,
    /// With --replace: files without a single document delete everything but the Gateway. Refused otherwise.
    #[arg(long, requires = "replace")]
    allow_empty: bool,
    /// Objects that go: must be the plan's number. Needed besides --yes if they are more than a tenth of all.
    #[arg(long, value_name = "N")]
    deletes: Option<u64>,
    /// Change a node that takes its configuration from a controller all the same. It differs from its region then, and says so, until `tunny
    /// resync`.
    #[arg(long)]
    break_glass: bool,
}

/// What is added to a request that changes a managed node by hand.
pub fn break_glass(meant: bool, global: &Global) -> anyhow::Result<&'static str> {
    anyhow::ensure!(
        !meant || global.server.is_none(),
        "--break-glass is for a node that a controller manages; a controller has no glass to break"
    );
    Ok(if meant { "&break_glass=true" } else { "" })
}

/// Runs the command.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let body = read(&args.files)?;
    let glass = break_glass(args.break_glass, global)?;
    let mode = format!("replace={}&allow_empty={}{glass}", args.replace, args.allow_empty);
    let agreed = Agreed { dry_run: args.dry_run, yes: args.yes, deletes: args.deletes };
    change(&body, &mode, &agreed, global)
}

/// What the command line agrees to beforehand.
pub struct Agreed {
    /// Nothing is changed.
    pub dry_run: bool,
    /// The plan as it comes.
    pub yes: bool,
    /// So many objects go.
    pub deletes: Option<u64>,
}

/// The files as the body of a request.
pub fn read(paths: &[PathBuf]) -> anyhow::Result<Vec<u8>> {
    let files = crate::input::files(paths)?;
    let _patience = crate::input::patience(&files);
    let mut body = Vec::new();
    for path in files {
        let left = (node::api::BODY_MAX as u64).saturating_sub(body.len() as u64 + path.as_os_str().len() as u64 + 12);
        let content = model::read_input(&path, left);
        let content = content.map_err(|why| anyhow::anyhow!("{}: cannot be read: {why}", path.display()))?;
        write_document(&mut body, &path.display().to_string(), &content);
    }
    Ok(body)
}

/// Shows the plan of a change, asks, and carries it out. What is committed is the plan that was shown: if the configuration has
/// changed meanwhile, the new plan is shown and asked about.
pub fn change(body: &[u8], mode: &str, agreed: &Agreed, global: &Global) -> anyhow::Result<ExitCode> {
    change_by(&format!("/v1/apply?{mode}"), body, agreed, global)
}

/// The same by any request that changes the configuration.
pub fn change_by(request: &str, body: &[u8], agreed: &Agreed, global: &Global) -> anyhow::Result<ExitCode> {
    let client = global.client()?;
    let post = |options: String, what: &'static str| -> Result<ApplyReport, ClientError> {
        let _patience = Patience::new(what);
        client.post(&format!("{request}{options}"), body.to_vec())
    };
    let number = agreed.deletes.map_or(String::new(), |n| format!("&deletes={n}"));
    // Nobody to ask, nobody to show a plan to beforehand: one request plans and commits, and nothing comes between.
    if agreed.yes && !agreed.dry_run {
        return finish(&post(number, "applying")?, global, true);
    }
    loop {
        let plan = post(format!("&dry_run=true{number}"), "planning")?;
        if agreed.dry_run || plan.empty {
            return finish(&plan, global, true);
        }
        if global.output.is_table() {
            print_as_it_is(&colored(&plan.text))?;
        }
        if !std::io::stdin().is_terminal() {
            let number = if plan.asks_deletes { format!(" --deletes {}", plan.deletes) } else { String::new() };
            anyhow::bail!(
                "nothing was changed: there is no terminal to ask on; give --yes{number} to apply without asking"
            );
        }
        if !confirmed(&plan, agreed)? {
            say("nothing was changed");
            return Ok(ExitCode::FAILURE);
        }
        match post(format!("&base={}&deletes={}", plan.base, plan.deletes), "applying") {
            Err(ClientError::Refused(why)) if why.code == OUTDATED => {
                say("tunny: the configuration changed meanwhile, so nothing was committed; this is the plan now");
            }
            done => return finish(&done?, global, false),
        }
    }
}

/// Asks whether the plan is meant; for many deletions, by their number.
fn confirmed(plan: &ApplyReport, agreed: &Agreed) -> anyhow::Result<bool> {
    let number = plan.asks_deletes && agreed.deletes.is_none();
    let question = match number {
        true => format!("This deletes {} of {} objects. Type their number to go on: ", plan.deletes, plan.objects),
        false => "Apply? [y/N] ".to_string(),
    };
    let _ = write!(std::io::stderr(), "{question}");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    let answer = answer.trim().to_lowercase();
    Ok(if number { answer == plan.deletes.to_string() } else { ["y", "yes"].contains(&answer.as_str()) })
}

/// Signs at the beginning of lines in color, if a terminal looks at them.
fn colored(text: &str) -> String {
    let text = &*model::plain_lines(text);
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

/// Prints what became of a change. A report that cannot be written is an error, and what it says of the change stands in it.
fn finish(report: &ApplyReport, global: &Global, plan: bool) -> anyhow::Result<ExitCode> {
    let told = tell(report, global, plan);
    match report.committed {
        true => told.with_context(|| {
            format!("the change was committed as generation {}, but its report cannot be written", report.generation)
        })?,
        false => told.context("nothing was changed, and the report cannot be written")?,
    }
    Ok(ExitCode::SUCCESS)
}

fn tell(report: &ApplyReport, global: &Global, plan: bool) -> anyhow::Result<()> {
    if !global.output.is_table() {
        return crate::output::show(global.output, report, |_| String::new());
    }
    if plan {
        print_as_it_is(&colored(&report.text))?;
    }
    if report.committed {
        print(&format!(
            "committed as generation {} (read {:.3} s, plan {:.3} s, journal {:.3} s, tables {:.3} s)\n",
            report.generation, report.parse_s, report.plan_s, report.journal_s, report.commit_s
        ))?;
    }
    Ok(())
}
