// SPDX-License-Identifier: Apache-2.0
//! Checkers: what must hold of the region, found from what tenants were told and from what the store has, the long way. They share no code with what
//! decides. Each has a file:
//!
//! | checker | what must hold |
//! | --- | --- |
//! | `served` | no tenant is unserved for longer than the bound |
//! | `kept` | no acknowledged change is lost |
//! | `placed` | no entry is on a wrong cluster |
//! | `ports` | no public port is given twice |
//! | `settled` | after the last fault all comes to rest, as was asked for |

mod kept;
mod placed;
mod ports;
mod rest;
mod served;

use crate::store::Store;
use crate::world::{World, SETTLE};
use std::collections::BTreeMap;

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When, in milliseconds from the beginning.
    pub at: u64,
    /// Which checker.
    pub checker: &'static str,
    /// What.
    pub what: String,
}

/// Milliseconds for which a tenant may be unserved that was served, where a node that could serve it is there: routers and hosts take that long to turn.
pub const GRACE: u64 = 2_000;
/// Milliseconds after which what was asked for is so on all nodes, counted from the last trouble.
pub const BOUND: u64 = 30_000;
/// Milliseconds after which a node that has come back serves by what it should.
const CATCH_UP: u64 = 5_000;
/// Milliseconds after which a node whose probes come out is believed again.
const BELIEVED: u64 = 10_000;
/// Looks of which one looks at everything.
const THOROUGH: u64 = 10;

/// Whether a node does what it is there for, by what was done to it.
#[derive(Clone, Copy, Debug, Default)]
struct Trust {
    /// It has come to hold what a controller had for it since it started.
    follows: bool,
    /// Something was wrong with it until then.
    doubted_until: u64,
}

/// What checkers remember.
#[derive(Debug, Default)]
pub struct Checks {
    trust: BTreeMap<usize, Trust>,
    /// Some fault was active until then.
    pub trouble_until: u64,
    looks: u64,
    served: served::Served,
    placed: placed::Placed,
    ports: ports::Ports,
}

impl Checks {
    /// A node starts by what is on its disk.
    pub fn started(&mut self, n: usize) {
        self.trust.entry(n).or_default().follows = false;
    }

    /// A node dies.
    pub fn died(&mut self, n: usize) {
        self.trust.entry(n).or_default().follows = false;
    }

    /// A node has all that a controller has for it.
    pub fn follows(&mut self, n: usize, now: u64) {
        let trust = self.trust.entry(n).or_default();
        if !trust.follows {
            trust.follows = true;
            trust.doubted_until = trust.doubted_until.max(now + CATCH_UP);
        }
    }

    /// Something is wrong with a node until then.
    pub fn doubts(&mut self, n: usize, until: u64) {
        let trust = self.trust.entry(n).or_default();
        trust.doubted_until = trust.doubted_until.max(until + BELIEVED);
        // Whether it is admitted again a controller must say.
        trust.follows = false;
    }

    /// Some fault is active until then.
    pub fn trouble(&mut self, until: u64) {
        self.trouble_until = self.trouble_until.max(until);
    }

    fn trusts(&self, n: usize, now: u64) -> bool {
        self.trust.get(&n).is_some_and(|t| t.follows && now >= t.doubted_until)
    }

    /// The store has taken changes.
    pub fn wrote(&mut self, store: &Store, before: u64) {
        self.placed.wrote(store, before);
    }
}

impl World {
    /// Checkers look, at what is cheap each time and at the rest now and then.
    pub(crate) fn check(&mut self) {
        self.checks.looks += 1;
        self.check_served();
        if self.checks.looks.is_multiple_of(THOROUGH) {
            self.check_kept();
            self.check_told();
            self.check_placed();
        }
    }

    /// Checkers look when all must have come to rest.
    pub(crate) fn check_rest(&mut self) {
        self.check_kept();
        self.check_served();
        self.check_told();
        self.check_placed();
        self.check_settled();
    }

    /// Whether all must have come to rest.
    fn is_over(&self) -> bool {
        self.now >= self.end + SETTLE
    }

    /// Whether there has been no trouble for so long that what was asked for must be so.
    fn is_calm(&self) -> bool {
        self.now >= self.checks.trouble_until + BOUND
    }
}
