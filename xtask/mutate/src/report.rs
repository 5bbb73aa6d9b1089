// SPDX-License-Identifier: Apache-2.0
//! The result, as JSON and as a page.

use crate::judge::Outcome;
use crate::site::Mutant;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;

/// A crate's numbers.
#[derive(Serialize, Deserialize, Debug)]
pub struct Sum {
    /// Its name.
    pub krate: String,
    /// Mutants found in it.
    pub found: usize,
    /// Those that do not compile.
    pub not_compiling: usize,
    /// Those run.
    pub sampled: usize,
    /// Those that a failing test noticed.
    pub caught: usize,
    /// Noticed by a crash.
    pub crashed: usize,
    /// Noticed by time.
    pub too_long: usize,
    /// Reached, and not noticed.
    pub missed: usize,
    /// Not reached by any test.
    pub unreached: usize,
    /// Not noticed, and judged to be equivalent.
    #[serde(default)]
    pub equivalent: usize,
    /// All noticed of those run, %.
    pub percent: f64,
    /// All noticed of those run that are not judged to be equivalent, %.
    #[serde(default)]
    pub of_different: f64,
}

/// A mutant with what became of it.
#[derive(Serialize, Deserialize, Debug)]
pub struct Judged {
    /// The mutant.
    pub mutant: Mutant,
    /// What became of it.
    pub outcome: Outcome,
    /// Why its program does the same as the original, if it was judged to.
    #[serde(default)]
    pub equivalent: Option<String>,
}

/// A whole run.
#[derive(Serialize, Deserialize, Debug)]
pub struct Report {
    /// `git describe` of the sources.
    pub commit: String,
    /// Seed of the samples and the random tests.
    pub seed: u64,
    /// CPU seconds of tests a mutant.
    pub budget: f64,
    /// Units that took part.
    pub units: usize,
    /// Units that did not, and why.
    pub left_out: Vec<(String, String)>,
    /// Rounds of all units without a mutant, and what failed in them.
    pub control: (usize, Vec<String>),
    /// Wall time, s.
    pub seconds: u64,
    /// By crate.
    pub sums: Vec<Sum>,
    /// Every mutant run.
    pub mutants: Vec<Judged>,
}

/// The sum of a crate.
pub fn sum(krate: &str, found: usize, not_compiling: usize, mutants: &[&Judged]) -> Sum {
    let outcomes: Vec<&Outcome> = mutants.iter().map(|m| &m.outcome).collect();
    let count = |f: fn(&Outcome) -> bool| outcomes.iter().filter(|o| f(o)).count();
    let all = count(Outcome::caught);
    let equivalent = mutants.iter().filter(|m| !m.outcome.caught() && m.equivalent.is_some()).count();
    let percent = |of: usize| if of == 0 { 0.0 } else { (all as f64 * 1000.0 / of as f64).round() / 10.0 };
    Sum {
        krate: krate.into(),
        found,
        not_compiling,
        sampled: outcomes.len(),
        caught: count(|o| matches!(o, Outcome::Caught(_))),
        crashed: count(|o| matches!(o, Outcome::Crashed(..))),
        too_long: count(|o| matches!(o, Outcome::TooLong(_) | Outcome::Stuck(_))),
        missed: count(|o| *o == Outcome::Missed),
        unreached: count(|o| *o == Outcome::Unreached),
        equivalent,
        percent: percent(outcomes.len()),
        of_different: percent(outcomes.len() - equivalent),
    }
}

/// The table.
pub fn table(sums: &[Sum]) -> String {
    let mut s = String::from(
        "| crate | mutants | do not compile | run | a test failed | crashed | too long | missed | not reached | caught | judged equivalent | caught of the others |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for c in sums {
        let numbers = [c.found, c.not_compiling, c.sampled, c.caught, c.crashed, c.too_long, c.missed, c.unreached];
        let cells: Vec<String> = numbers.iter().map(usize::to_string).collect();
        let _ = writeln!(
            s,
            "| `{}` | {} | {:.1}% | {} | **{:.1}%** |",
            c.krate,
            cells.join(" | "),
            c.percent,
            c.equivalent,
            c.of_different
        );
    }
    s
}

/// What was not caught, by crate and file.
pub fn uncaught(mutants: &[Judged]) -> String {
    let mut by_file = BTreeMap::<&str, Vec<&Judged>>::new();
    for m in mutants.iter().filter(|m| !m.outcome.caught()) {
        by_file.entry(&m.mutant.file).or_default().push(m);
    }
    let mut s = String::new();
    for (file, mut list) in by_file {
        list.sort_by_key(|m| (m.mutant.line, m.mutant.column, m.mutant.id));
        let _ = writeln!(s, "\n`{file}`\n");
        for m in list {
            let unreached = if m.outcome == Outcome::Unreached { " (not reached)" } else { "" };
            let _ = writeln!(
                s,
                "- {}:{} `{}`: {}{unreached}: `{}`",
                m.mutant.line, m.mutant.column, m.mutant.function, m.mutant.change, m.mutant.text
            );
            if let Some(why) = &m.equivalent {
                let _ = writeln!(s, "  *equivalent*: {why}");
            }
        }
    }
    s
}

/// The page.
pub fn page(r: &Report) -> String {
    let mut s = String::from("<!-- SPDX-License-Identifier: Apache-2.0 -->\n# Mutation testing\n\n");
    let _ = writeln!(
        s,
        "Sources {}, seed {}, {} units of testing, {} CPU seconds of tests a mutant, {} s in all.\nHow: `cargo xtask mutate`, `xtask/mutate/src/main.rs`.\n",
        r.commit, r.seed, r.units, r.budget, r.seconds
    );
    s += &table(&r.sums);
    let failed =
        if r.control.1.is_empty() { "none failed".into() } else { format!("failed: {}", r.control.1.join("; ")) };
    let _ = writeln!(
        s,
        "\nEvery unit passed without a mutant first. Control: all of them {} times more; {failed}.",
        r.control.0
    );
    if !r.left_out.is_empty() {
        let _ = writeln!(s, "\nTests that took no part:\n");
        r.left_out.iter().for_each(|(name, why)| {
            let _ = writeln!(s, "- `{name}`: {why}");
        });
    }
    let _ = writeln!(
        s,
        "\n## Not caught\n\nEquivalent: the program does the same as the original, or differs only in speed and memory. Each was judged by hand \
         (`xtask/mutate/equivalent.json`); the others count as defects of the tests."
    );
    s + &uncaught(&r.mutants)
}
