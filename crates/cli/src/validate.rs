// SPDX-License-Identifier: Apache-2.0
//! `tunny validate`: every error of configuration files at once.

use crate::output::{print, say};
use crate::sink::Sink;
use crate::Global;
use anyhow::Context;
use model::Model;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Check configuration files and report every error at once.
///
/// The files are checked together, as one configuration; no node is asked. Exit status 0 if they may be applied to an empty node, 1 if not.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files or folders; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Also write the configuration as a binary snapshot, which `tunny apply` reads fastest.
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let files = crate::input::files(&args.files)?;
    let patience = crate::input::patience(&files);
    let mut model = Model::new();
    let (documents, errors, warnings) = match model::validate_files(&files, &mut model) {
        Ok((docs, warnings)) => {
            if let Some(path) = &args.snapshot {
                // The documents were just accepted, so this cannot fail on their account.
                if model.apply(&docs).is_ok() {
                    snapshot(&model, path).with_context(|| format!("cannot write {}", path.display()))?;
                }
            }
            (docs.len(), Vec::new(), warnings)
        }
        Err(errors) => (0, errors, Vec::new()),
    };
    drop(patience);
    if global.output.is_table() {
        for error in &errors {
            say(error);
        }
        for warning in &warnings {
            say(format_args!("warning: {warning}"));
        }
        match model::ConfigError::count(&errors) {
            0 => print(&format!("{documents} documents, no errors\n"))?,
            n => say(format_args!("{n} error{}", if n == 1 { "" } else { "s" })),
        }
    } else {
        let list = |list: &[model::ConfigError]| list.iter().map(|e| e.to_json()).collect::<Vec<_>>();
        let value = serde_json::json!({
            "valid": errors.is_empty(), "documents": documents, "errors": list(&errors), "warnings": list(&warnings)
        });
        crate::output::show(global.output, &value, |_| String::new())?;
    }
    Ok(if errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn snapshot(model: &Model, path: &Path) -> anyhow::Result<()> {
    let sink = Sink::create(path)?;
    let mut file = std::io::BufWriter::with_capacity(1 << 20, &sink.file);
    model.write_snapshot(&mut file, 0)?;
    file.into_inner().map_err(|e| e.into_error())?;
    Ok(sink.keep()?)
}
