// SPDX-License-Identifier: Apache-2.0
//! The `tunny` binary. One file a command: each has an `Args` structure, whose documentation is the command's help and
//! manual page, and a `run` function. What several commands share is in [`output`].
#![forbid(unsafe_code)]

mod agent;
mod apply;
mod bench;
mod cache;
mod capture;
mod completion;
mod delete;
mod get;
mod history;
mod host_commands;
mod input;
mod lab;
mod listing;
mod node;
mod output;
mod plan;
mod reference;
mod replay;
mod schema;
mod sessions;
mod sink;
mod top;
mod trace;
mod validate;
mod version;

use clap::{Parser, Subcommand};
use output::Format;
use std::path::PathBuf;
use std::process::ExitCode;

/// A multi-tenant cloud gateway and virtual switch.
#[derive(Debug, Parser)]
#[command(name = "tunny", version, arg_required_else_help = true, max_term_width = 120)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every command understands.
#[derive(Clone, Debug, clap::Args)]
pub struct Global {
    /// Which node: several may run on one machine.
    #[arg(long, global = true, default_value = "default", env = "TUNNY_INSTANCE", value_parser = instance_name)]
    pub instance: String,
    /// The node's API socket [default: /run/tunny/INSTANCE.sock].
    #[arg(long, global = true, env = "TUNNY_SOCKET")]
    pub socket: Option<PathBuf>,
    /// How to print the result.
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table)]
    pub output: Format,
}

/// An instance's name becomes part of file names, so it may hold nothing that leads elsewhere.
fn instance_name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    match text.len() {
        1..=40 if text.chars().all(fits) => Ok(text.to_string()),
        _ => Err("an instance is named by 1 to 40 letters, digits, '-' and '_'".to_string()),
    }
}

impl Global {
    /// The API socket that these options name.
    pub fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| PathBuf::from(format!("/run/tunny/{}.sock", self.instance)))
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Node(Box<node::Args>),
    Agent(agent::Args),
    Validate(validate::Args),
    Apply(apply::Args),
    Delete(delete::Args),
    Get(get::Args),
    History(history::Args),
    Rollback(history::RollbackArgs),
    Top(top::Args),
    Trace(Box<trace::Args>),
    Capture(capture::Args),
    Replay(replay::Args),
    Schema(schema::Args),
    HostCommands(host_commands::Args),
    Lab(lab::Args),
    Cache(cache::Args),
    Plan(Box<plan::Args>),
    Bench(bench::Args),
    Completion(completion::Args),
    Version(version::Args),
    #[command(hide = true)]
    CliReference(reference::Args),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(answer) => return help_or_refusal(&answer),
    };
    let global = &cli.global;
    let result = match cli.command {
        Command::Node(args) => node::run(*args, global),
        Command::Agent(args) => agent::run(args, global),
        Command::Validate(args) => validate::run(args, global),
        Command::Apply(args) => apply::run(args, global),
        Command::Delete(args) => delete::run(args, global),
        Command::Get(args) => get::run(args, global),
        Command::History(args) => history::run(args, global),
        Command::Rollback(args) => history::rollback(args, global),
        Command::Top(args) => top::run(args, global),
        Command::Trace(args) => trace::run(*args, global),
        Command::Capture(args) => capture::run(args, global),
        Command::Replay(args) => replay::run(args, global),
        Command::Schema(args) => schema::run(args, global),
        Command::HostCommands(args) => host_commands::run(args, global),
        Command::Lab(args) => lab::run(args, global),
        Command::Cache(args) => cache::run(args, global),
        Command::Plan(args) => plan::run(*args, global),
        Command::Bench(args) => bench::run(args, global),
        Command::Completion(args) => completion::run(args, global),
        Command::Version(args) => version::run(args, global),
        Command::CliReference(args) => reference::run(args, global),
    };
    result.unwrap_or_else(|error| {
        output::fail(global.output, &sentence(&error));
        ExitCode::FAILURE
    })
}

/// Prints what clap has to say: help and version to standard output, a wrong command line to standard error.
fn help_or_refusal(answer: &clap::Error) -> ExitCode {
    if answer.use_stderr() && wants_json(std::env::args()) {
        let (text, _) = without_escape(&answer.to_string());
        let sentences: Vec<&str> =
            text.lines().take_while(|l| !l.starts_with("Usage:") && !l.starts_with("For more")).collect();
        let words: Vec<&str> = sentences.iter().flat_map(|line| line.split_whitespace()).collect();
        output::fail(Format::Json, words.join(" ").trim_start_matches("error: "));
        return ExitCode::from(2);
    }
    if answer.use_stderr() {
        let text = answer.to_string();
        let (kept, negative) = without_escape(&text);
        // Words of the command line may hold what a terminal obeys. Then the colours go, too.
        if negative || text.contains(|c: char| c.is_control() && c != '\n') {
            output::say(kept.trim_end());
            return ExitCode::from(u8::try_from(answer.exit_code()).unwrap_or(2));
        }
    }
    match answer.print() {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            output::say(format_args!("tunny: cannot write the help: {e}"));
            ExitCode::FAILURE
        }
        _ => ExitCode::from(u8::try_from(answer.exit_code()).unwrap_or(2)),
    }
}

/// The text of a refusal without the advice to write `-- -1`, which helps where words are free and not where a number is wanted;
/// whether it had that advice.
fn without_escape(text: &str) -> (String, bool) {
    let advice = |line: &str| {
        let value = line.trim_start().strip_prefix("tip: to pass '-")?.split('\'').next()?;
        value.parse::<f64>().ok()
    };
    if !text.lines().any(|line| advice(line).is_some()) {
        return (text.to_string(), false);
    }
    let other = |line: &str| {
        if advice(line).is_some() {
            "  tip: a number here is not negative".to_string()
        } else {
            line.to_string()
        }
    };
    (text.lines().map(other).collect::<Vec<_>>().join("\n"), true)
}

/// Whether JSON was asked for on a command line that could not be read.
fn wants_json(args: impl Iterator<Item = String>) -> bool {
    let words: Vec<String> = args.collect();
    let apart = |pair: &[String]| ["-o", "--output"].contains(&pair[0].as_str()) && pair[1] == "json";
    words.windows(2).any(apart) || words.iter().any(|w| ["-ojson", "-o=json", "--output=json"].contains(&w.as_str()))
}

/// An error with those of its causes that it does not name itself.
fn sentence(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(|c| c.to_string()) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_name_leads_nowhere_else() {
        for name in ["default", "lab-t7", "A_1", &"x".repeat(40)] {
            assert_eq!(instance_name(name).as_deref(), Ok(name));
        }
        for name in ["", ".", "..", "a/b", "../../etc", "a b", "a\n", "ä", "a.b", &"x".repeat(41)] {
            assert!(instance_name(name).is_err(), "{name:?}");
            let refused = Cli::try_parse_from(["tunny", "--instance", name, "get", "status"]);
            assert!(refused.is_err(), "{name:?}");
        }
    }
}
