// SPDX-License-Identifier: Apache-2.0
//! What the programs `tunny` and `tunny-lab` share: how a command line is read and refused, how results are printed ([`output`], [`jsonpath`]),
//! how files are read ([`input`]) and written ([`sink`]), the pages that are written from the definitions of the commands
//! ([`reference`]) and the scripts that complete them ([`completion`]).
#![forbid(unsafe_code)]

pub mod completion;
pub mod input;
pub mod jsonpath;
pub mod output;
pub mod reference;
pub mod sink;

use clap::error::{ContextKind, ContextValue};
use output::Format;
use std::process::ExitCode;

/// A program with commands.
pub trait Program: clap::Parser {
    /// Its name: what its messages begin with.
    const NAME: &'static str;

    /// How it is to print its result.
    fn format(&self) -> Format;

    /// Runs the command.
    fn run(self) -> anyhow::Result<ExitCode>;

    /// What to say instead of a refusal.
    fn instead(_refusal: &clap::Error) -> Option<String> {
        None
    }
}

/// Reads the command line and runs the command; what fails is said on standard error.
pub fn main<P: Program>() -> ExitCode {
    output::begin(P::NAME);
    let program = match P::try_parse() {
        Ok(program) => program,
        Err(mut refusal) => {
            without_global(&mut refusal, &P::command());
            return help_or_refusal(&refusal, P::instead(&refusal));
        }
    };
    let format = program.format();
    program.run().unwrap_or_else(|error| {
        output::fail(format, &sentence(&error));
        ExitCode::FAILURE
    })
}

/// Takes the options that every command has out of a usage line: clap names those that are given, and be it by the environment, as it names
/// what must be given.
fn without_global(refusal: &mut clap::Error, program: &clap::Command) {
    let Some(ContextValue::StyledStr(usage)) = refusal.get(ContextKind::Usage) else { return };
    let (text, mut kept) = (usage.ansi().to_string(), Vec::new());
    let longs = program.get_arguments().filter(|a| a.is_global_set()).filter_map(clap::Arg::get_long);
    let global: Vec<String> = longs.map(|long| format!("--{long}")).collect();
    let mut words = text.split(' ');
    while let Some(word) = words.next() {
        match global.iter().any(|name| word.trim_end_matches("\u{1b}[0m").ends_with(name.as_str())) {
            // With its value.
            true => drop(words.next()),
            false => kept.push(word),
        }
    }
    let usage = kept.join(" ");
    refusal.insert(ContextKind::Usage, ContextValue::StyledStr(usage.into()));
}

/// Prints what clap has to say: help and version to standard output, a wrong command line to standard error.
fn help_or_refusal(answer: &clap::Error, instead: Option<String>) -> ExitCode {
    if let Some(text) = instead {
        output::fail(if wants_json(std::env::args()) { Format::Json } else { Format::Table }, &text);
        return ExitCode::from(2);
    }
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
            output::note(format_args!("cannot write the help: {e}"));
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
pub fn sentence(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(|c| c.to_string()) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}
