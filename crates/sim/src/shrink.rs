// SPDX-License-Identifier: Apache-2.0
//! Shortens a plan that fails to one of which nothing can be left out: delta debugging (Zeller and Hildebrandt 2002). A shorter plan counts if the
//! same checker fails, whenever.

use crate::plan::{Item, Size};
use crate::world::Plant;
use crate::{run, Outcome};

/// Runs at most.
const RUNS: usize = 400;

/// The shortest plan that was found, and what comes of it. The plan must fail.
pub fn shrink(seed: u64, size: &Size, plan: &[Item], plant: Option<Plant>) -> (Vec<Item>, Outcome) {
    let mut best = run(seed, size, plan, plant, false);
    let Some(checker) = best.violation.as_ref().map(|v| v.checker) else { return (plan.to_vec(), best) };
    let (mut plan, mut parts, mut runs) = (plan.to_vec(), 2_usize, 0);
    // What comes after it has nothing to do with it.
    let at = best.violation.as_ref().map_or(0, |v| v.at);
    let mut tries: Vec<Vec<Item>> = vec![plan.iter().filter(|item| item.at <= at).cloned().collect()];
    loop {
        let mut found = None;
        for shorter in tries.drain(..).filter(|shorter| shorter.len() < plan.len()) {
            runs += 1;
            let outcome = run(seed, size, &shorter, plant, false);
            if outcome.violation.as_ref().is_some_and(|v| v.checker == checker) {
                found = Some((shorter, outcome));
                break;
            }
        }
        match found {
            Some((shorter, outcome)) => {
                (plan, best) = (shorter, outcome);
                parts = parts.saturating_sub(1).max(2);
            }
            None if parts >= plan.len() => return (plan, best),
            None => parts = (2 * parts).min(plan.len()),
        }
        if runs >= RUNS || plan.is_empty() {
            return (plan, best);
        }
        // The plan without each of its parts.
        let length = plan.len().div_ceil(parts).max(1);
        tries = (0..plan.len())
            .step_by(length)
            .map(|from| [&plan[..from], &plan[(from + length).min(plan.len())..]].concat())
            .collect();
    }
}
