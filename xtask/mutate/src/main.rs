// SPDX-License-Identifier: Apache-2.0
//! Mutation testing: small defects are put into the library code, one at a time, and the tests must notice.
//!
//! A build for each of 15,000 mutants would take days. So all of them are compiled into one copy of the workspace
//! (`target/mutate/tree`), each behind a test of a number that an environment variable sets: `a < b` becomes
//! `if on(17) { a <= b } else { a < b }`. What the compiler refuses is dropped, counted and reported. Every test is run once
//! while it notes the mutants that it asks for; a mutant is then run only against the tests that reach it, the cheapest first,
//! until one fails, in processes of its own at the lowest priority.
//!
//! A mutant is caught if a test fails, crashes, or uses more than three times its CPU time and two seconds. One that no test
//! reaches is not caught. One whose program does the same as the original (an equivalent mutant) cannot be caught; those that were
//! judged so by hand, each with its reason, stand in `xtask/mutate/equivalent.json`, and the share of the caught is given with and
//! without them. An entry that no mutant matches, or whose mutant a test does catch, is an error.
mod compile;
mod equivalent;
mod judge;
mod process;
mod report;
mod scan;
mod site;
#[cfg(test)]
mod tests;
mod tree;
mod units;

use judge::Outcome;
use rand::seq::SliceRandom;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use report::{Judged, Report};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const USAGE: &str = "usage: cargo xtask mutate [options]
  --crates A,B     crates to mutate (default filter,tables,conntrack,gateway)
  --sample N       random mutants of each crate, 0: all (default 400)
  --seed N         of the sample and of the random tests (default: the clock's)
  --jobs N         mutants at a time (default 2)
  --budget S       CPU seconds of tests for a mutant, as they cost without it (default 4)
  --control N      rounds of all tests without a mutant: what fails there fails by itself (default 1)
  --minutes M      stop so long after the start: what was run by then is the sample, drawn in turn from the crates (default: no limit)
  --again FILE     only the mutants that FILE, a saved result, says were not caught
  --at FILE:LINE   only the mutants of this line; more than once for more lines
  --list           write what would be mutated, and stop
  --at-least P     fail unless P % of each crate's mutants that are not judged equivalent are caught
  --save PREFIX    write PREFIX-mutation.md and PREFIX-mutation.json
";

struct Options {
    crates: Vec<String>,
    sample: usize,
    seed: u64,
    jobs: usize,
    budget: f64,
    control: usize,
    minutes: f64,
    again: Option<PathBuf>,
    at: Vec<String>,
    list: bool,
    at_least: f64,
    save: Option<String>,
}

fn options() -> Result<Options, String> {
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let crates = ["filter", "tables", "conntrack", "gateway"].map(String::from).to_vec();
    let mut o = Options {
        crates,
        sample: 400,
        seed: clock,
        jobs: 2,
        budget: 4.0,
        control: 1,
        minutes: f64::INFINITY,
        again: None,
        at: Vec::new(),
        list: false,
        at_least: 0.0,
        save: None,
    };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        if name == "--list" {
            o.list = true;
            continue;
        }
        let value = args.next().ok_or_else(|| format!("{name}: a value is missing"))?;
        let wrong = || format!("{name} {value}: not a number");
        match name.as_str() {
            "--crates" => o.crates = value.split(',').map(String::from).collect(),
            "--sample" => o.sample = value.parse().map_err(|_| wrong())?,
            "--seed" => o.seed = value.parse().map_err(|_| wrong())?,
            "--jobs" => o.jobs = value.parse::<usize>().map_err(|_| wrong())?.max(1),
            "--budget" => o.budget = value.parse().map_err(|_| wrong())?,
            "--control" => o.control = value.parse().map_err(|_| wrong())?,
            "--minutes" => o.minutes = value.parse().map_err(|_| wrong())?,
            "--at-least" => o.at_least = value.parse().map_err(|_| wrong())?,
            "--again" => o.again = Some(value.into()),
            "--at" => o.at.push(value),
            "--save" => o.save = Some(value),
            _ => return Err(format!("{name}: no such option\n{USAGE}")),
        }
    }
    Ok(o)
}

fn main() -> ExitCode {
    match options().and_then(|o| mutate(&o)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn mutate(o: &Options) -> Result<bool, String> {
    let begin = Instant::now();
    let root = std::env::current_dir().map_err(|e| e.to_string())?;
    let commit = commit(&root);
    let mut tree = tree::Tree::new(&root, &o.crates)?;
    if o.list {
        for m in &tree.scan.mutants {
            println!("{}:{}:{} {}: {}", m.file, m.line, m.column, m.function, m.change);
        }
        return Ok(true);
    }
    let equivalent = equivalent::read(&root, &tree.scan.mutants, &o.crates)?;
    let mut packages: Vec<&str> = o.crates.iter().map(String::as_str).collect();
    packages.push("testkit");
    let programs = compile::build(&mut tree, &packages)?;
    eprintln!(
        "seed {}: {} mutants, {} do not compile; built after {} s",
        o.seed,
        tree.scan.mutants.len(),
        tree.dropped.len(),
        begin.elapsed().as_secs()
    );
    let bench = units::Bench::new(programs, &tree.copy, o.seed, tree.scan.mutants.len(), o.jobs)?;
    let cost: Duration = bench.units.iter().map(|u| u.cost).sum();
    eprintln!(
        "{} units of testing, {:.1} s of CPU; tried after {} s",
        bench.units.len(),
        cost.as_secs_f64(),
        begin.elapsed().as_secs()
    );
    bench.left_out.iter().for_each(|(name, why)| eprintln!("  left out: {name}: {why}"));
    let ids = choose(o, &tree)?;
    let outcomes = run(o, &tree, &bench, &ids, begin);
    let ids: Vec<u32> = ids.into_iter().filter(|id| outcomes.contains_key(id)).collect();
    // All units, whatever they cost: a test that fails by itself must not count for anything.
    let control = judge::control(&bench, o.control, Duration::from_secs(3600), o.jobs);
    let judged = |id: &u32| {
        let mutant = tree.scan.mutants[*id as usize].clone();
        Judged { equivalent: equivalent.get(id).cloned(), outcome: outcomes[id].clone(), mutant }
    };
    let mutants: Vec<Judged> = ids.iter().map(judged).collect();
    for m in mutants.iter().filter(|m| m.equivalent.is_some() && m.outcome.caught()) {
        eprintln!(
            "{}:{} {}: {}: judged equivalent, but caught: {:?}",
            m.mutant.file, m.mutant.line, m.mutant.function, m.mutant.change, m.outcome
        );
    }
    let sums: Vec<report::Sum> = o.crates.iter().map(|k| sum_of(k, &tree, &mutants)).collect();
    let report = Report {
        commit,
        seed: o.seed,
        budget: o.budget,
        units: bench.units.len(),
        left_out: bench.left_out.clone(),
        control: (o.control, control),
        seconds: begin.elapsed().as_secs(),
        sums,
        mutants,
    };
    print!("{}", report::page(&report));
    if let Some(prefix) = &o.save {
        let json = serde_json::to_string_pretty(&report).map_err(|e| e.to_string())?;
        for (end, text) in [("md", report::page(&report)), ("json", json)] {
            let path = format!("{prefix}-mutation.{end}");
            std::fs::write(&path, text).map_err(|e| format!("cannot write {path}: {e}"))?;
        }
    }
    Ok(report.sums.iter().all(|s| s.of_different >= o.at_least)
        && report.mutants.iter().all(|m| m.equivalent.is_none() || !m.outcome.caught()))
}

fn commit(root: &Path) -> String {
    let out = Command::new("git").args(["describe", "--always", "--dirty"]).current_dir(root).output();
    out.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_string()).unwrap_or_default()
}

fn sum_of(krate: &str, tree: &tree::Tree, mutants: &[Judged]) -> report::Sum {
    let of: Vec<_> = tree.scan.mutants.iter().filter(|m| m.krate == krate).collect();
    let dropped = of.iter().filter(|m| tree.dropped.contains(&m.id)).count();
    let mutants: Vec<&Judged> = mutants.iter().filter(|m| m.mutant.krate == krate).collect();
    report::sum(krate, of.len(), dropped, &mutants)
}

/// What is the same of a mutant in another version of its file, as long as the function has no other like it.
fn key(m: &site::Mutant) -> (String, String, String, String) {
    (m.file.clone(), m.function.clone(), m.change.clone(), m.text.clone())
}

fn choose(o: &Options, tree: &tree::Tree) -> Result<Vec<u32>, String> {
    let live = tree.scan.mutants.iter().filter(|m| !tree.dropped.contains(&m.id));
    if !o.at.is_empty() {
        return Ok(live.filter(|m| o.at.contains(&format!("{}:{}", m.file, m.line))).map(|m| m.id).collect());
    }
    if let Some(file) = &o.again {
        let text = std::fs::read_to_string(file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
        let old: Report = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))?;
        let wanted: HashSet<_> = old.mutants.iter().filter(|m| !m.outcome.caught()).map(|m| key(&m.mutant)).collect();
        return Ok(live.filter(|m| wanted.contains(&key(m))).map(|m| m.id).collect());
    }
    let mut by_crate = BTreeMap::<&str, Vec<u32>>::new();
    live.for_each(|m| by_crate.entry(&m.krate).or_default().push(m.id));
    let mut rng = ChaCha8Rng::seed_from_u64(o.seed);
    let samples: Vec<Vec<u32>> = by_crate.into_values().map(|ids| sample(ids, o.sample, &mut rng)).collect();
    // In turn, so that a run that ends early has as many of each crate.
    let longest = samples.iter().map(Vec::len).max().unwrap_or(0);
    Ok((0..longest).flat_map(|i| samples.iter().filter_map(move |s| s.get(i).copied())).collect())
}

/// So many of these, each as likely as the others; 0: all.
fn sample(mut ids: Vec<u32>, n: usize, rng: &mut ChaCha8Rng) -> Vec<u32> {
    let n = if n == 0 { ids.len() } else { n.min(ids.len()) };
    ids.partial_shuffle(rng, n).0.to_vec()
}

fn run(o: &Options, tree: &tree::Tree, bench: &units::Bench, ids: &[u32], begin: Instant) -> BTreeMap<u32, Outcome> {
    let (done, caught) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let until = |ids: usize| ids == 0 || begin.elapsed().as_secs_f64() < o.minutes * 60.0;
    judge::judge(bench, ids, Duration::from_secs_f64(o.budget), o.jobs, &until, &|id, outcome| {
        let c = caught.fetch_add(usize::from(outcome.caught()), Ordering::Relaxed) + usize::from(outcome.caught());
        let n = done.fetch_add(1, Ordering::Relaxed) + 1;
        if !outcome.caught() {
            let m = &tree.scan.mutants[id as usize];
            eprintln!("{outcome:?} {}:{}:{} {}: {}: {}", m.file, m.line, m.column, m.function, m.change, m.text);
        }
        if n % 50 == 0 || n == ids.len() {
            eprintln!("{n} of {} run, {c} caught, {} s", ids.len(), begin.elapsed().as_secs());
        }
    })
}
