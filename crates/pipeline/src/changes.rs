// SPDX-License-Identifier: Apache-2.0
//! What changed in a table, for whoever keeps answers of earlier lookups and wants to know which of them still hold.
//!
//! A lookup is told by the flow that it found, that flow's priority, and bits of the key that are known. Other answers can only come of:
//! * the flow that was found is gone. Flows have numbers that are not used again, so nothing has to be written down for that;
//! * a flow came that has at least its priority and agrees with the known bits; it is in the log with its match;
//! * subtables of the classifier changed places, and with them which of two overlapping flows of *equal* priority is found; the priorities
//!   that both have are in the log.
//!
//! A flow that gets other actions keeps match and priority: whoever found another flow would not have found it either, so it is not
//! logged. Clauses of conjunctions are logged whatever their priority.
//!
//! The log has a bounded length. Answers older than what it remembers are not vouched for, so a question costs at most [`Changes::MAX`]
//! comparisons.
use crate::key::{Key, Mask};
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Clone, Debug)]
enum What {
    /// A flow came.
    Came {
        /// None if it counts whatever its priority.
        priority: Option<u16>,
        words: Arc<[(u8, u64)]>,
        values: Box<[u64]>,
    },
    /// Of flows with one of these priorities another one may be found.
    Order(Box<[u16]>),
}

/// The last changes of a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    /// The version that a change made, and the change; the newest last.
    recent: VecDeque<(u64, What)>,
    /// Of changes up to this version not all are known any more.
    forgotten: u64,
}

impl Changes {
    /// Changes that are remembered.
    pub(crate) const MAX: usize = 256;

    fn add(&mut self, version: u64, what: What) {
        if self.recent.len() >= Self::MAX {
            self.forgotten = self.recent.pop_front().map_or(version, |(old, _)| old);
        }
        self.recent.push_back((version, what));
    }

    /// A flow came that matches these words.
    pub(crate) fn came(&mut self, version: u64, priority: Option<u16>, words: Arc<[(u8, u64)]>, values: Box<[u64]>) {
        self.add(version, What::Came { priority, words, values });
    }

    /// Among flows with one of these priorities another one may be found; none given: among any.
    pub(crate) fn order(&mut self, version: u64, priorities: Option<Vec<u16>>) {
        match priorities {
            Some(some) if some.is_empty() => {}
            Some(some) => self.add(version, What::Order(some.into())),
            None => {
                self.recent.clear();
                self.forgotten = version;
            }
        }
    }

    /// Whether nothing was logged since a version.
    pub(crate) fn none(&self, since: u64) -> bool {
        since >= self.forgotten && self.recent.back().is_none_or(|last| last.0 <= since)
    }

    /// Whether all changes since a version leave the answer to a lookup as it was: a flow of this priority (none: no flow), for any key that
    /// agrees with `key` on the bits of `known`.
    pub(crate) fn leave(&self, since: u64, priority: Option<u16>, known: &Mask, key: &Key) -> bool {
        let harmless = |what: &What| match what {
            What::Order(priorities) => priority.is_none_or(|p| !priorities.contains(&p)),
            What::Came { priority: new, words, values } => {
                new.zip(priority).is_some_and(|(new, old)| new < old)
                    || words.iter().zip(values).any(|(&(n, mask), value)| {
                        let n = usize::from(n);
                        (key.0[n] ^ value) & mask & known.0[n] != 0
                    })
            }
        };
        since >= self.forgotten && self.recent.iter().rev().take_while(|c| c.0 > since).all(|c| harmless(&c.1))
    }
}
