// SPDX-License-Identifier: Apache-2.0
//! A region simulated (`docs/design/sim.md`): what the controller decides, crate `controller-core`, runs against a store, a network, clocks, nodes and
//! hosts that are simulated, one event after the other. All of it comes of a seed: the same seed gives the same run, byte for byte.
//!
//! *Who decides.* `controller.rs` does what crate `controller` does around the core: it asks, writes to the store, and only then has the region follow. No
//! decision is made a second time here. *Who judges.* `check/` shares no code with what decides: it compares what tenants were told, what the store has
//! and what nodes hold. *What is wrong on purpose* is in a plan (`plan.rs`), drawn before anything runs. All other draws come of the seed and of what
//! they are for (`chance.rs`), so a plan of which parts are left out runs alike in the rest, and one that fails can be shortened (`shrink.rs`).
#![forbid(unsafe_code)]

mod chance;
mod check;
mod controller;
mod faults;
mod full;
mod host;
mod node;
mod plan;
mod queue;
mod requests;
mod shrink;
mod store;
mod streams;
mod things;
mod world;

pub use check::{Violation, BOUND, GRACE};
pub use full::Full;
pub use plan::{of as plan_of, Act, Item, Size};
pub use shrink::shrink;
pub use world::{Counts, Plant};

use world::World;

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// What is not as it must be.
    pub violation: Option<Violation>,
    /// What happened, in numbers.
    pub counts: Counts,
    /// All that happened, if it was asked for.
    pub log: Option<String>,
}

/// Runs a plan.
pub fn run(seed: u64, size: &Size, plan: &[Item], plant: Option<Plant>, logs: bool) -> Outcome {
    let mut world = World::new(seed, size, plan, plant, logs);
    world.run();
    Outcome { seed, violation: world.violation, counts: world.counts, log: world.log }
}

/// Runs the small region of a seed.
pub fn run_small(seed: u64) -> Outcome {
    let size = Size::small(seed);
    run(seed, &size, &plan_of(seed, &size), None, false)
}

/// Runs a region of full size.
pub fn run_full(seed: u64, full: &Full, plan: &[Item], logs: bool) -> Outcome {
    let mut world = World::full(seed, full, plan, logs);
    world.run();
    Outcome { seed, violation: world.violation, counts: world.counts, log: world.log }
}
