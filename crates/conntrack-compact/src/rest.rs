// SPDX-License-Identifier: Apache-2.0
//! [`Resting`]: places that were given up and may still be looked at by readers that began before.

use std::collections::HashSet;
use std::hash::Hash;

/// Places that rest. A writer that waits for its readers says when the wait begins and when it ends: what is given up in between
/// waits for the next time.
#[derive(Debug)]
pub(crate) struct Resting<P> {
    since: HashSet<P>,
    waiting: HashSet<P>,
}

impl<P> Default for Resting<P> {
    fn default() -> Resting<P> {
        Resting { since: HashSet::new(), waiting: HashSet::new() }
    }
}

impl<P: Eq + Hash> Resting<P> {
    pub(crate) fn insert(&mut self, place: P) {
        self.since.insert(place);
    }

    pub(crate) fn contains(&self, place: &P) -> bool {
        self.since.contains(place) || self.waiting.contains(place)
    }

    /// The wait begins. Whether there is anything to wait for.
    pub(crate) fn begin(&mut self) -> bool {
        self.waiting.extend(self.since.drain());
        !self.waiting.is_empty()
    }

    /// Every reader that began before has ended.
    pub(crate) fn end(&mut self) {
        self.waiting.clear();
    }
}
