// SPDX-License-Identifier: Apache-2.0
//! `tunny edit`: an object in an editor, and what was made of it applied.

use crate::apply::{change, Agreed};
use crate::output::say;
use crate::Global;
use anyhow::Context;
use model::Kind;
use node::body::write_document;
use node::client::escape;
use node::types::ApplyReport;
use serde_json::Value;
use std::io::Write;
use std::process::{Command, ExitCode};

/// Edit an object of a node, or with --server of a region: opens it in $VISUAL, else $EDITOR, else vi, then shows the plan and applies it.
///
/// If somebody else has changed it meanwhile, nothing is changed. What was written is kept in a file whenever it is not applied.
/// Exit status 0 if the object is now as written.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Kind, as in the documents, in lower case; or KIND/NAME.
    kind: String,
    /// Name.
    name: Option<String>,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
    /// Change a node that takes its configuration from a controller all the same: see `tunny apply --help`.
    #[arg(long)]
    break_glass: bool,
}

/// Runs the command.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let (word, name) = crate::named(&args.kind, args.name.as_deref())?;
    let kind = Kind::from_name(word).ok_or_else(|| anyhow::anyhow!(Kind::unknown(word)))?;
    let glass = crate::apply::break_glass(args.break_glass, global)?;
    let client = global.client()?;
    let mut found = Vec::new();
    let path = format!("/v1/objects/{}?name={}", escape(word), escape(name));
    client.lines(&path, |line| serde_json::from_slice::<Value>(line).map(|object| found.push(object)))??;
    let object = found.pop().with_context(|| format!("there is no {kind} named `{name}`"))?;
    let before = model::yaml_document(&object);
    let body = |text: &str| {
        let mut body = Vec::new();
        write_document(&mut body, "edited.yaml", text.as_bytes());
        body
    };
    // It changes nothing, and says of which configuration the text is.
    let plan: ApplyReport = client.post(&format!("/v1/apply?dry_run=true{glass}"), body(&before))?;
    let mut file = tempfile::Builder::new().prefix("tunny-edit-").suffix(".yaml").tempfile()?;
    file.write_all(before.as_bytes())?;
    file.flush()?;
    let editor = ["VISUAL", "EDITOR"].iter().find_map(|name| std::env::var(name).ok().filter(|e| !e.is_empty()));
    let editor = editor.unwrap_or_else(|| "vi".into());
    // As git and kubectl do: the variable may hold options.
    let ended = Command::new("sh").arg("-c").arg(format!("{editor} \"$1\"")).arg("sh").arg(file.path()).status();
    let ended = ended.with_context(|| format!("`{editor}` cannot be run"))?;
    anyhow::ensure!(ended.success(), "nothing was changed: `{editor}` ended with {ended}");
    let after = std::fs::read_to_string(file.path()).context("what was edited cannot be read")?;
    if after == before {
        say("nothing was edited, so nothing was changed");
        return Ok(ExitCode::SUCCESS);
    }
    // Between a plan that is shown and its commit `change` looks itself whether something changed.
    let mode = if args.yes { format!("base={}{glass}", plan.base) } else { glass.replacen('&', "", 1) };
    let agreed = Agreed { dry_run: false, yes: args.yes, deletes: None };
    let result = client
        .post::<ApplyReport>(&format!("/v1/apply?dry_run=true&base={}{glass}", plan.base), body(&after))
        .map_err(anyhow::Error::from)
        .and_then(|_| change(&body(&after), &mode, &agreed, global));
    if !matches!(&result, Ok(code) if *code == ExitCode::SUCCESS) {
        let (_, path) = file.keep()?;
        say(format_args!("what you wrote is kept: tunny apply {}", path.display()));
    }
    result
}
