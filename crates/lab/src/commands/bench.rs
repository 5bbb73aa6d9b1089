// SPDX-License-Identifier: Apache-2.0
//! `tunny-lab bench`: measurements.

use anyhow::Context as _;
use bench::{Bench, Context, Group, Report, BENCHES, HEADLINES};
use commandline::output::{self, Format};
use std::cell::RefCell;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Measure this machine: one bench by name, the headlines (`headlines`, a quarter of an hour), all of Tunny's own (`all`, hours),
/// those beside other gateways (`peers`), or `list`.
///
/// Needs root. Numbers mean something on a quiet machine only; the load is part of each result.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// `list`, `headlines`, `all`, `peers`, or the name of a bench.
    name: String,
    /// Seed of the workloads.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Samples of each side.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    samples: u32,
    /// Keep the results in this folder too, as a table, as JSON, and their plots as SVG.
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: Args, format: Format) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    // None: a single bench.
    let group: Option<fn(&Bench) -> bool> = match args.name.as_str() {
        "list" => {
            let rows = |benches: &&[Bench]| {
                output::table(
                    &["name", "unit", "what"],
                    benches.iter().map(|b| vec![b.name.into(), b.unit.into(), b.what.into()]),
                )
            };
            output::show(format, &BENCHES, rows)?;
            return Ok(ExitCode::SUCCESS);
        }
        "headlines" => Some(|b| HEADLINES.contains(&b.name)),
        "all" => Some(|b| b.group == Group::Own),
        "peers" => Some(|b| b.group == Group::Peer),
        _ => None,
    };
    let chosen: Vec<&Bench> = match group {
        Some(belongs) => BENCHES.iter().filter(|b| belongs(b)).collect(),
        None => vec![bench::find(&args.name)?],
    };
    let mut reports = Vec::new();
    let mut failed = Vec::new();
    for (n, b) in chosen.iter().enumerate() {
        match measure(b, &args, (n + 1, chosen.len())) {
            Ok(report) => reports.push(report),
            Err(error) if group.is_some() => {
                output::note(format_args!("bench {}: {error:#}", b.name));
                failed.push(b.name);
            }
            Err(error) => return Err(error),
        }
    }
    if group.is_some() {
        output::say(format_args!("{} benches took {:.0} s.", chosen.len(), start.elapsed().as_secs_f64()));
    }
    if let Some(dir) = &args.save {
        save(dir, &args.name, &reports)?;
    }
    match group {
        None => output::show(format, &reports[0], |r| table_and_details(std::slice::from_ref(r)))?,
        Some(_) if format.is_table() => {
            output::print(&format!("{}\n{}\n", table(&reports), serde_json::to_string(&reports)?))?;
        }
        Some(_) => output::show(format, &reports, |r| table(r))?,
    }
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    output::note(format_args!("could not run: {}", failed.join(", ")));
    Ok(ExitCode::FAILURE)
}

/// Runs one bench, its progress on standard error: one line that changes on a terminal, a line a step elsewhere.
fn measure(b: &Bench, args: &Args, (n, of): (usize, usize)) -> anyhow::Result<Report> {
    let start = Instant::now();
    let terminal = std::io::stderr().is_terminal();
    let last = RefCell::new(String::new());
    let progress = |what: &str| {
        if last.replace(what.into()) != what {
            let line = format!("[{n}/{of}] {:>4.0} s  {what}", start.elapsed().as_secs_f64());
            let _ = match terminal {
                true => write!(std::io::stderr(), "\r\x1b[K{line}"),
                false => writeln!(std::io::stderr(), "{line}"),
            };
        }
    };
    progress(b.name);
    let context = Context { seed: args.seed, samples: args.samples as usize, progress: &progress };
    let result = b.run(&context);
    if terminal {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    Ok(result?)
}

/// Results as a table for reading; below it what belongs beside the values.
fn table(reports: &[Report]) -> String {
    let rows = reports.iter().map(|r| {
        let met = r.met.map_or("–", |m| if m { "yes" } else { "NO" });
        let mut row = vec![r.name.to_string(), bench::report::round(r.value).to_string(), r.unit.to_string()];
        row.extend([r.goal_text(), met.to_string(), format!("{:.1}%", r.spread * 100.0), r.compared_with.clone()]);
        row
    });
    let mut out = output::table(&["bench", "value", "unit", "goal", "met", "spread", "compared with"], rows);
    for r in reports {
        for sentence in &r.caveats {
            out.push_str(&format!("{}: {sentence}\n", r.name));
        }
    }
    out
}

/// The table, and below it everything else that the run found.
fn table_and_details(reports: &[Report]) -> String {
    let mut text = table(reports);
    for report in reports {
        text.push('\n');
        for (key, value) in &report.details {
            let value = value.as_str().map_or_else(|| value.to_string(), String::from);
            text.push_str(&format!("  {key:<34} {value}\n"));
        }
    }
    text
}

/// Writes `<date>-<name>.json` and `.md`, and a `.svg` for each plot.
fn save(dir: &Path, name: &str, reports: &[Report]) -> anyhow::Result<()> {
    let Some(first) = reports.first() else { return Ok(()) };
    let m = &first.machine;
    let stem = format!("{}-{name}", m.date.get(..10).unwrap_or("undated"));
    std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    for plot in reports.iter().flat_map(|r| &r.plots) {
        let file = dir.join(format!("{stem}-{}.svg", plot.name));
        std::fs::write(&file, plot.svg()).with_context(|| format!("writing {}", file.display()))?;
    }
    let json = dir.join(format!("{stem}.json"));
    std::fs::write(&json, serde_json::to_string_pretty(reports)? + "\n")
        .with_context(|| format!("writing {}", json.display()))?;
    let text = format!(
        "<!-- SPDX-License-Identifier: Apache-2.0 -->\n# Results of `tunny-lab bench {name}`\n\n{}; {} GiB; Linux {}; seed {}; load average at the start {}; {}; Tunny {}.\n\n```\n{}```\n",
        m.cpu, m.memory_gib, m.kernel, first.seed, m.load, m.date, m.version, table_and_details(reports)
    );
    let page = dir.join(format!("{stem}.md"));
    std::fs::write(&page, text).with_context(|| format!("writing {}", page.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench::Goal;

    #[test]
    fn the_table_says_what_is_not_met_and_why() {
        let mut r = Report::new("x", "ns", vec![100.0], Some(Goal::AtMost(120.0)), "y");
        r.only_if(true, "As defined.");
        r.only_if(false, "A fresh engine stands for a node.");
        let text = table(&[r]);
        assert!(
            text.contains("NO") && text.ends_with("x: As defined.\nx: A fresh engine stands for a node.\n"),
            "{text}"
        );
    }
}
