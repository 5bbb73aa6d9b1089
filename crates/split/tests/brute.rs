// SPDX-License-Identifier: Apache-2.0
//! The solver against all splits of small random descriptions, and the model against its naive twin.

mod common;

use common::{naive, random, splits, Size};
use split::load::Prepared;
use split::solve::{all, solve, Effort};

/// Descriptions that are tried; `TUNNY_SPLITS` asks for more.
fn seeds() -> std::ops::Range<u64> {
    let n = std::env::var("TUNNY_SPLITS").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    0..n
}

fn size(seed: u64) -> Size {
    Size {
        stages: 1 + (seed % 5) as usize,
        targets: 2 + (seed / 5 % 2) as usize,
        classes: 1 + (seed / 2 % 3) as usize,
        copies: seed % 4 == 3,
        demand: seed % 3 == 1,
        hands: true,
        room: 1.0,
    }
}

#[test]
fn no_split_is_better_than_the_one_found() {
    let (mut feasible, mut none, mut copied) = (0, 0, 0);
    for seed in seeds() {
        let d = random(seed, &size(seed));
        let p = Prepared::new(&d);
        let every = splits(&p);
        if every.len() > 20_000 {
            continue;
        }
        let mut best: Option<split::load::Outcome> = None;
        for s in &every {
            if let Some(o) = p.outcome(s) {
                if best.as_ref().is_none_or(|b| o.better(b)) {
                    best = Some(o);
                }
            }
        }
        let found = solve(&p, &all(&p), Effort::USUAL);
        match (&best, &found) {
            (None, None) => none += 1,
            (Some(best), Some(found)) => {
                assert!(found.proved, "seed {seed}");
                assert!(!best.better(&found.outcome), "seed {seed}: {best:?} is better than {found:?}");
                assert!(!found.outcome.better(best), "seed {seed}: {found:?} is none of the splits");
                feasible += 1;
                copied += usize::from(found.outcome.copies > 0);
            }
            _ => panic!("seed {seed}: brute force {best:?}, solver {found:?}"),
        }
    }
    println!("{feasible} solved, {copied} of them with copies; {none} without a split");
    assert!(feasible * 2 > none && feasible > 100 && copied > 5, "{feasible} {none} {copied}");
}

#[test]
fn the_model_says_what_its_twin_says() {
    let mut compared = 0;
    for seed in seeds() {
        let d = random(seed, &size(seed));
        let p = Prepared::new(&d);
        for s in splits(&p).iter().take(300) {
            let choices: Vec<_> = s.iter().enumerate().map(|(i, c)| &p.choices[i][*c]).collect();
            match (p.outcome(s), naive(&d, &choices)) {
                (None, None) => {}
                (Some(o), Some((most, latency))) => {
                    let near = |a: f64, b: f64| a == b || (a - b).abs() <= 1e-9 * a.abs().max(b.abs());
                    assert!(
                        near(o.most, most) && near(o.latency, latency),
                        "seed {seed}, {s:?}: {o:?}, twin {most} {latency}"
                    );
                    compared += 1;
                }
                (a, b) => panic!("seed {seed}, {s:?}: model {a:?}, twin {b:?}"),
            }
        }
    }
    assert!(compared > 2000, "{compared}");
}

/// Sixty stages and twelve targets, in seconds: a bound above what is found, and not far above.
#[test]
fn large_descriptions_are_solved_too() {
    for seed in [7, 8] {
        let size =
            Size { stages: 60, targets: 12, classes: 3, copies: false, demand: seed == 8, hands: false, room: 8.0 };
        let d = random(seed, &size);
        let p = Prepared::new(&d);
        let begun = std::time::Instant::now();
        let found = solve(&p, &all(&p), Effort::SHORT).expect("a split");
        let o = &found.outcome;
        println!(
            "seed {seed}: {:.3e} of at most {:.3e} pps, {} dollars, proved {}, {:?}",
            o.carried,
            found.bound,
            o.dollars,
            found.proved,
            begun.elapsed()
        );
        assert!(found.bound >= o.carried * 0.999_999 && o.carried > 0.0, "{found:?}");
    }
}
