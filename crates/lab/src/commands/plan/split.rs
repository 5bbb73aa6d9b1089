// SPDX-License-Identifier: Apache-2.0
//! `tunny-lab plan split`: which stage of a path belongs on which target, and why.

use anyhow::{anyhow, bail};
use commandline::output::{show, Format, Patience};
use split::answer::answer;
use split::file::{self, BUILT_IN};
use split::solve::Effort;
use split::why::Depth;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Which stage of a packet's path belongs on which target, with what copied where, what that carries and costs, and why.
///
/// The file describes traffic, stages, targets and the links between them: docs/design/split-file.md has its fields, examples/split/ has
/// four papers' systems. Nothing is measured or sent. Exit status 1 if no split is possible, or none carries the demand.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file, or - for standard input.
    #[arg(required_unless_present = "targets")]
    file: Option<PathBuf>,
    /// List the targets that a file may begin from (like: NAME), with their figures.
    #[arg(long, conflicts_with = "file")]
    targets: bool,
    /// List every figure with its source, and not the assumed ones alone.
    #[arg(long)]
    figures: bool,
    /// What is said beside the split: its second bests and what would move a stage (all), second bests alone (some), neither (none)
    /// [default: all for small files, some for larger ones].
    #[arg(long, value_enum)]
    why: Option<Why>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Why {
    All,
    Some,
    None,
}

/// Bytes of a file at most.
const FILE_MAX: u64 = 4 << 20;
/// Stages times targets up to which all reasons are looked for, and up to which some are, unless they are asked for.
const SMALL: usize = 40;
const MEDIUM: usize = 150;

/// Runs the command.
pub fn run(args: Args, format: Format) -> anyhow::Result<ExitCode> {
    let Some(path) = &args.file else { return targets() };
    let text = model::read_text(path, FILE_MAX).map_err(|why| anyhow!("{} cannot be read: {why}", path.display()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let load = |named: &str| {
        let named = folder.join(named);
        model::read_text(&named, FILE_MAX).map_err(|why| format!("{} cannot be read: {why}", named.display()))
    };
    let read = match file::read(&path.display().to_string(), &text, &load) {
        Ok(read) => read,
        Err(errors) => bail!("{}", errors.join("\n")),
    };
    let d = &read.description;
    let size = d.stages.len() * d.targets.len();
    let why = args.why.unwrap_or(match size {
        n if n <= SMALL => Why::All,
        n if n <= MEDIUM => Why::Some,
        _ => Why::None,
    });
    let depth = Depth { effort: Effort::USUAL, others: why != Why::None, flips: why == Why::All };
    let waiting = Patience::new("solving");
    let answer = answer(d, read.figures, &depth);
    drop(waiting);
    let carried = answer.result.as_ref().is_some_and(|r| r.demand_pps.is_none_or(|d| r.pps >= d * 0.999_999));
    show(format, &answer, |a| split::text::text(a, args.figures))?;
    Ok(if carried { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The targets that come with the program, as they are written.
fn targets() -> anyhow::Result<ExitCode> {
    for (name, text) in BUILT_IN {
        commandline::output::print(&format!("--- # like: {name}\n{text}"))?;
    }
    Ok(ExitCode::SUCCESS)
}
