// SPDX-License-Identifier: Apache-2.0
//! The examples: each paper's split comes out of the model.

use split::file::{self, File};
use split::load::Prepared;
use split::place::Place;
use split::solve::{all, solve, Effort};

fn example(name: &str) -> File {
    let path = format!("{}/../../examples/split/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap();
    file::read(name, &text, &|_| Err("none".into())).unwrap_or_else(|e| panic!("{}", e.join("\n")))
}

/// Each stage with the target that has all of it, and a target with a copy.
fn derived(name: &str) -> Vec<String> {
    let f = example(name);
    let d = &f.description;
    let p = Prepared::new(d);
    let found = solve(&p, &all(&p), Effort::USUAL).expect("a split");
    println!("{name}: {:?} steps {} proved {}", found.outcome, found.steps, found.proved);
    let said = |(s, c): (usize, &usize)| {
        let of = |t: usize| &d.targets[t].name;
        match p.choices[s][*c].place {
            Place::Whole(t) => format!("{} {}", d.stages[s].name, of(t)),
            Place::Copied { front, back, entries } => format!("{} {} + {entries} on {}", d.stages[s].name, of(back), of(front)),
        }
    };
    found.split.iter().enumerate().map(said).collect()
}

#[test]
fn see() {
    for name in ["provider-edge", "provider-edge-functions", "sailfish", "cofilter", "triton"] {
        let f = example(name);
        let depth = split::why::Depth { effort: Effort::USUAL, others: true, flips: true };
        let begun = std::time::Instant::now();
        let answer = split::answer::answer(&f.description, f.figures, &depth);
        println!("{}\n===== {:?}", split::text::text(&answer, false), begun.elapsed());
    }
}
