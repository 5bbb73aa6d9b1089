// SPDX-License-Identifier: Apache-2.0
//! Fuzzing of every parser of outside bytes: `cargo run -p fuzz --release -- --seconds 60`.
//!
//! A target is a function from bytes to a number, which panics if it finds a fault. The number tells kinds of outcome
//! apart (which error, which drop reason): an input that brings a number that was not seen before is worth mutating
//! further, and joins the pool. That is coarser than coverage, but needs no instrumented build, runs on the stable
//! toolchain, and repeats exactly from the printed seed (with `--rounds`; with `--seconds` up to where time runs out).
//!
//! `corpus/TARGET/` holds kept inputs, every one of which runs first; `--keep` adds what brought something new.
//! An input that panics, or takes longer than a second, is written to `artifacts/` and the run fails; `--replay FILE` runs
//! it alone.
#![forbid(unsafe_code)]

use fuzz::mutate;
use fuzz::pool::{self, Pool};
use fuzz::{targets, Target};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use testkit::rng::Rng;

/// Longer than this for one input counts as a fault.
const TOO_LONG: Duration = Duration::from_secs(1);

const OPTIONS: &str =
    "--seconds N (of all targets together), --rounds N (of each), --seed N, --target NAME (several may be given), --replay FILE, --keep";

struct Options {
    seconds: u64,
    rounds: Option<u64>,
    seed: u64,
    targets: Vec<String>,
    replay: Option<PathBuf>,
    keep: bool,
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut o = Options { seconds: 20, rounds: None, seed: new_seed(), targets: Vec::new(), replay: None, keep: false };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--seconds" => o.seconds = value()?.parse().map_err(|_| "--seconds needs a whole number")?,
            "--rounds" => o.rounds = Some(value()?.parse().map_err(|_| "--rounds needs a whole number")?),
            "--seed" => o.seed = value()?.parse().map_err(|_| "--seed needs a whole number")?,
            "--target" => o.targets.push(value()?),
            "--replay" => o.replay = Some(value()?.into()),
            "--keep" => o.keep = true,
            "--help" | "-h" => {
                let names: Vec<_> = targets().iter().map(|t| t.name()).collect();
                println!("fuzz {OPTIONS}\ntargets: {}", names.join(", "));
                std::process::exit(0)
            }
            _ => return Err(format!("unknown option {arg}; there are {OPTIONS}")),
        }
    }
    Ok(o)
}

/// Another one every run, which is printed.
fn new_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    pool::hash(&[now.as_nanos().to_le_bytes(), u128::from(std::process::id()).to_le_bytes()].concat())
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs one input. A panic or a long run is a fault: the input is kept and named.
fn run(target: &mut dyn Target, input: &[u8]) -> Result<u64, String> {
    let start = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| target.run(input)));
    let took = start.elapsed();
    let fault = match outcome {
        Ok(signature) if took < TOO_LONG => return Ok(signature),
        Ok(_) => format!("took {} ms", took.as_millis()),
        Err(_) => "panicked".into(),
    };
    let name = target.name();
    let file = root().join("artifacts").join(format!("{name}-{:016x}", pool::hash(input)));
    let _ = std::fs::create_dir_all(root().join("artifacts"));
    let kept = match std::fs::write(&file, input) {
        Ok(()) => format!("repeat: cargo run -p fuzz -- --target {name} --replay {}", file.display()),
        Err(e) => format!("the input of {} bytes could not be kept: {e}", input.len()),
    };
    Err(format!("{name} {fault}; {kept}"))
}

/// Fuzzes one target for a while.
fn fuzz(target: &mut dyn Target, o: &Options, time: Duration) -> Result<(), String> {
    let corpus = root().join("corpus").join(target.name());
    let mut pool = Pool::new(&corpus, target.seeds());
    let kept = pool.len();
    for input in pool.all() {
        let signature = run(target, &input)?;
        pool.saw(signature);
    }
    let mut r = Rng::new(o.seed ^ pool::hash(target.name().as_bytes()));
    let start = Instant::now();
    let mut rounds = 0;
    while o.rounds.map_or(rounds % 16 != 0 || start.elapsed() < time, |n| rounds < n) {
        let (one, other) = (r.word(), r.word());
        let input = mutate::next(&mut r, pool.pick(one), pool.pick(other), target.words());
        let signature = run(target, &input)?;
        if pool.add(signature, &input) && o.keep {
            pool::keep(&corpus, &input).map_err(|e| format!("{}: {e}", corpus.display()))?;
        }
        rounds += 1;
    }
    let name = target.name();
    println!("{name:<10} {rounds:>9} inputs, {kept} kept before, {} new kinds of outcome", pool.len() - kept);
    Ok(())
}

/// The targets of these names; all if none is named.
fn wanted(names: &[String]) -> Result<Vec<Box<dyn Target>>, String> {
    let mut all = targets();
    if let Some(unknown) = names.iter().find(|name| all.iter().all(|t| t.name() != name.as_str())) {
        let known: Vec<_> = all.iter().map(|t| t.name()).collect();
        return Err(format!("there is no target {unknown}; there are {}", known.join(", ")));
    }
    all.retain(|t| names.is_empty() || names.iter().any(|name| name == t.name()));
    Ok(all)
}

fn main() -> ExitCode {
    let o = match options(std::env::args().skip(1)) {
        Ok(o) => o,
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::from(2);
        }
    };
    let mut all = match wanted(&o.targets) {
        Ok(all) => all,
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::from(2);
        }
    };
    let result = match &o.replay {
        Some(file) => match std::fs::read(file) {
            Ok(input) => all.iter_mut().try_for_each(|t| run(t.as_mut(), &input).map(|_| ())),
            Err(e) => Err(format!("{}: {e}", file.display())),
        },
        None => {
            println!("seed {}", o.seed);
            let share = Duration::from_millis(o.seconds * 1000 / all.len().max(1) as u64);
            all.iter_mut().try_for_each(|t| fuzz(t.as_mut(), &o, share))
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(line: &str) -> Result<Vec<&'static str>, String> {
        let o = options(line.split_whitespace().map(String::from))?;
        wanted(&o.targets).map(|all| all.iter().map(|t| t.name()).collect())
    }

    #[test]
    fn every_target_that_is_named_runs() {
        assert_eq!(names("--target views --seed 7 --target yaml"), Ok(vec!["views", "yaml"]));
        assert_eq!(names("").map(|all| all.len()), Ok(targets().len()));
        assert!(names("--target views --target nosuch")
            .is_err_and(|e| e.starts_with("there is no target nosuch; there are views")));
    }

    #[test]
    fn every_target_stands_on_the_page() {
        let page = include_str!("../README.md");
        for t in targets() {
            assert!(
                page.lines().any(|row| row.starts_with("| `") && row.contains(&format!("`{}`", t.name()))),
                "{}",
                t.name()
            );
        }
    }
}
