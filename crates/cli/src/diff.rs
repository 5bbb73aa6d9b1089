// SPDX-License-Identifier: Apache-2.0
//! `tunny diff`: what files would change.

use crate::apply::read;
use crate::output::{fail, print, show, Patience};
use crate::Global;
use commandline::sentence;
use node::types::ApplyReport;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show what files would change, and change nothing.
///
/// Exit status 0: nothing would change. 1: something would. 2: the files are refused, or nobody answers.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files or folders; `-` is standard input.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The files are everything: what they do not name would be deleted.
    #[arg(long)]
    replace: bool,
}

/// Runs the command.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    differs(args, global).or_else(|error| {
        fail(global.output, &sentence(&error));
        Ok(ExitCode::from(2))
    })
}

fn differs(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let body = read(&args.files)?;
    let request = format!("/v1/apply?dry_run=true&allow_empty=true&replace={}", args.replace);
    let plan: ApplyReport = {
        let _patience = Patience::new("planning");
        global.client()?.post(&request, body)?
    };
    match global.output {
        format if format.is_table() => print(&plan.text)?,
        format => show(format, &plan, |_| String::new())?,
    }
    Ok(if plan.empty { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
