// SPDX-License-Identifier: Apache-2.0
//! Runs mutants: each against the units that reach it, cheapest first, until one fails.

use crate::process::{self, End};
use crate::units::{Bench, Unit};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::Duration;

/// What became of a mutant.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A test failed: which.
    Caught(String),
    /// A test was ended by a signal or left with a status: which, how.
    Crashed(String, String),
    /// A test used more CPU time than three times what it uses without a mutant and two seconds: which.
    TooLong(String),
    /// A test stood still, twice: which.
    Stuck(String),
    /// Every test that reaches it passed.
    Missed,
    /// No test reaches it.
    Unreached,
}

impl Outcome {
    /// Whether the tests noticed it.
    pub fn caught(&self) -> bool {
        !matches!(self, Outcome::Missed | Outcome::Unreached)
    }
}

/// Units that are run in one process: up to this cost each, this many.
const TOGETHER: (Duration, usize) = (Duration::from_millis(300), 24);

/// CPU time that a run may use: `cost` is what it uses without a mutant.
fn cpu_limit(cost: Duration) -> Duration {
    cost * 3 + Duration::from_secs(2)
}

/// Runs these mutants, `jobs` at a time, as long as `go_on` says so (it is told how many have begun). `seen` is told of each as it ends.
pub fn judge(
    bench: &Bench,
    ids: &[u32],
    budget: Duration,
    jobs: usize,
    go_on: &(dyn Fn(usize) -> bool + Sync),
    seen: &(dyn Fn(u32, &Outcome) + Sync),
) -> BTreeMap<u32, Outcome> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|s| {
        for worker in 0..jobs {
            let (next, done) = (&next, &done);
            s.spawn(move || loop {
                let begun = next.fetch_add(1, Ordering::Relaxed);
                let Some(&id) = ids.get(begun).filter(|_| go_on(begun)) else { break };
                let reaching: Vec<&Unit> = bench.units.iter().filter(|u| u.reached[id as usize] != 0).collect();
                let outcome =
                    if reaching.is_empty() { Outcome::Unreached } else { one(bench, id, &reaching, budget, worker) };
                seen(id, &outcome);
                done.lock().expect("no thread panics").insert(id, outcome);
            });
        }
    });
    done.into_inner().expect("no thread panics")
}

/// Runs every unit with a number that no mutant has: what fails now fails by itself. Returns the names of those units.
pub fn control(bench: &Bench, rounds: usize, budget: Duration, jobs: usize) -> Vec<String> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let all: Vec<&Unit> = bench.units.iter().collect();
    std::thread::scope(|s| {
        for worker in 0..jobs {
            let (next, failed, all) = (&next, &failed, &all);
            s.spawn(move || {
                while next.fetch_add(1, Ordering::Relaxed) < rounds {
                    let outcome = one(bench, u32::MAX - 2, all, budget, worker);
                    if outcome.caught() {
                        failed.lock().expect("no thread panics").push(format!("{outcome:?}"));
                    }
                }
            });
        }
    });
    failed.into_inner().expect("no thread panics")
}

fn one(bench: &Bench, id: u32, reaching: &[&Unit], budget: Duration, worker: usize) -> Outcome {
    let mut spent = Duration::ZERO;
    for mut group in groups(reaching) {
        // The cheapest are always run, and of a group what still fits: a test of a millisecond is not left out for its neighbours.
        let left = budget.saturating_sub(spent);
        if spent > Duration::ZERO {
            fitting(&mut group, left);
        }
        if group.is_empty() {
            continue;
        }
        let cost: Duration = group.iter().map(|u| u.cost).sum();
        spent += cost;
        match run(bench, id, &group, cost, worker) {
            Outcome::Missed => {}
            Outcome::Stuck(_) if run(bench, id, &group, cost, worker) == Outcome::Missed => {}
            outcome => return outcome,
        }
    }
    Outcome::Missed
}

/// Keeps the first of these, as many as cost no more than this in all.
fn fitting(group: &mut Vec<&Unit>, left: Duration) {
    let mut sum = Duration::ZERO;
    group.retain(|u| {
        sum += u.cost;
        sum <= left
    });
}

/// Units of one program that are cheap are run together, in the order of their cost.
fn groups<'a>(units: &[&'a Unit]) -> Vec<Vec<&'a Unit>> {
    let mut groups: Vec<Vec<&Unit>> = Vec::new();
    for &unit in units {
        let open = groups.iter_mut().find(|g| {
            let first = g[0];
            unit.cost <= TOGETHER.0
                && g.len() < TOGETHER.1
                && first.program == unit.program
                && first.cases.is_none()
                && unit.cases.is_none()
        });
        match open {
            Some(group) => group.push(unit),
            None => groups.push(vec![unit]),
        }
    }
    groups.sort_by_key(|g| g.iter().map(|u| u.cost).sum::<Duration>());
    groups
}

fn run(bench: &Bench, id: u32, group: &[&Unit], cost: Duration, worker: usize) -> Outcome {
    let first = group[0];
    let tests: Vec<&str> = group.iter().map(|u| u.test.as_str()).collect();
    let mut command = bench.command(first.program, &tests, first.cases.as_deref(), worker);
    command.env("TUNNY_MUTANT", id.to_string());
    let limit = cpu_limit(cost);
    let program = || bench.programs[first.program].name.clone();
    let name = || if group.len() == 1 { bench.name(first) } else { format!("{} ({} tests)", program(), group.len()) };
    let run = match process::run(&mut command, limit, limit * 10 + Duration::from_secs(30)) {
        Ok(run) => run,
        Err(e) => panic!("cannot run {}: {e}", name()),
    };
    match run.end {
        End::Passed => Outcome::Missed,
        End::Failed(test) => {
            let cases = first.cases.as_ref().map_or(String::new(), |c| format!(" [{c}]"));
            Outcome::Caught(format!("{}::{test}{cases}", program()))
        }
        End::Died(how) => Outcome::Crashed(name(), how),
        End::Cpu => Outcome::TooLong(name()),
        End::Wall => Outcome::Stuck(name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_group_runs_what_still_fits() {
        let unit = |ms: u64| Unit {
            program: 0,
            test: ms.to_string(),
            cases: None,
            cost: Duration::from_millis(ms),
            reached: Vec::new(),
        };
        let units = [unit(2), unit(3), unit(90), unit(250)];
        for (left, want) in [(0, 0), (2, 1), (4, 1), (5, 2), (95, 3), (344, 3), (345, 4)] {
            let mut group: Vec<&Unit> = units.iter().collect();
            fitting(&mut group, Duration::from_millis(left));
            assert_eq!(group.len(), want, "{left} ms");
        }
    }
}
