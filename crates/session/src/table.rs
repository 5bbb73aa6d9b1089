// SPDX-License-Identifier: Apache-2.0
//! [`Sessions`]: finding sessions without locks, as the fast path does.
//!
//! A worker enters once per batch ([`Sessions::enter`]); what it finds stays whole until it leaves. For a batch: `homes` and
//! `prefetch` for all packets, then `prefetch_records` for all, then `find` for all.
//! A miss is the truth of a moment: `Tracker::create` looks again under its locks.

use crate::record::{Line, Lines, Record, INNER0, INNER1, STATE};
use crate::{InnerKey, OuterKey, SessionMemory};
use std::sync::Arc;

/// A session: the number of its record's line. Means something while the guard lives under which it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionRef(pub u32);

/// Where a key may be found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Homes {
    /// Candidate buckets: of `index`, then of `index_old` (0: none).
    pub(crate) lines: [u32; 4],
    /// The tag.
    pub(crate) tag: u32,
}

/// A reader of session memory. Each worker clones its own (`Send`, not `Sync`).
pub struct Sessions {
    memory: Arc<dyn SessionMemory>,
    pub(crate) lines: Lines,
}

/// While it lives, no session that the reader can find is reused.
pub struct Guard<'a> {
    sessions: &'a Sessions,
}

impl Clone for Sessions {
    fn clone(&self) -> Sessions {
        todo!()
    }
}

impl Sessions {
    /// Enters: what is found stays whole until the guard is dropped.
    #[inline(always)]
    pub fn enter(&self) -> Guard<'_> {
        todo!()
    }
}

impl<'a> Guard<'a> {
    /// Where this key may be found.
    #[inline(always)]
    pub fn homes_inner(&self, key: &InnerKey) -> Homes {
        todo!()
    }

    /// Where this key may be found.
    #[inline(always)]
    pub fn homes_outer(&self, key: &OuterKey) -> Homes {
        todo!()
    }

    /// Asks for the buckets.
    #[inline(always)]
    pub fn prefetch(&self, homes: &Homes) {
        todo!()
    }

    /// Asks for the records that have the key's tag; the buckets should have come.
    #[inline(always)]
    pub fn prefetch_records(&self, homes: &Homes) {
        todo!()
    }

    /// The session with this inner key.
    #[inline(always)]
    pub fn find_inner_at(&self, homes: &Homes, key: &InnerKey) -> Option<SessionRef> {
        todo!()
    }

    /// The session with this outer key.
    #[inline(always)]
    pub fn find_outer_at(&self, homes: &Homes, key: &OuterKey) -> Option<SessionRef> {
        todo!()
    }

    /// The session with this inner key.
    pub fn find_inner(&self, key: &InnerKey) -> Option<SessionRef> {
        self.find_inner_at(&self.homes_inner(key), key)
    }

    /// The session with this outer key.
    pub fn find_outer(&self, key: &OuterKey) -> Option<SessionRef> {
        self.find_outer_at(&self.homes_outer(key), key)
    }

    /// Its record.
    #[inline(always)]
    pub fn record(&self, session: SessionRef) -> Record<'a> {
        todo!()
    }
}
