// SPDX-License-Identifier: Apache-2.0
//! `tunny watch`: changes of a region as they come.

use crate::output::{print, Format};
use crate::Global;
use controller::types::WatchLine;
use node::client::escape;
use std::process::ExitCode;
use std::time::Duration;

/// Show changes of a region as they come, an object a line, until interrupted.
///
/// Exit status 1: the controller ended it, or no longer keeps what is asked for; list anew, and watch from there.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only objects of this kind.
    kind: Option<String>,
    /// Changes behind this revision, and not only from now on.
    #[arg(long, value_name = "REVISION")]
    after: Option<u64>,
    /// End after so many lines.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

/// Runs the command.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let client = global.region_client()?;
    let after = args.after.map_or(String::new(), |n| format!("&after={n}"));
    let path = format!("/v1/watch?kind={}{after}", escape(args.kind.as_deref().unwrap_or("")));
    let (mut failed, mut left) = (None, args.count.unwrap_or(u64::MAX));
    client.follow(&path, Duration::from_secs(60), |line| {
        if line.is_empty() {
            failed = Some(anyhow::anyhow!("the controller has said nothing for a minute"));
            return false;
        }
        if let Err(e) = tell(line, global.output) {
            failed = Some(e);
            return false;
        }
        left -= 1;
        left > 0
    })?;
    match failed {
        Some(e) => Err(e),
        None if left == 0 => Ok(ExitCode::SUCCESS),
        None => anyhow::bail!("the controller ended the watch"),
    }
}

fn tell(line: &[u8], format: Format) -> anyhow::Result<()> {
    if let Ok(value) = serde_json::from_slice::<serde_json::Value>(line) {
        if let Some(error) = value["error"].as_str() {
            anyhow::bail!("{error}");
        }
    }
    let change: WatchLine = serde_json::from_slice(line)?;
    match format {
        Format::Table => {
            print(&format!("{:<9} {:<6} {} {}\n", change.revision, change.action, change.kind, change.name))
        }
        Format::Json => print(&(model::plain_json(std::str::from_utf8(line)?).into_owned() + "\n")),
        Format::Yaml => print(&format!("---\n{}", crate::output::yaml(&serde_json::to_value(&change)?))),
    }
}
