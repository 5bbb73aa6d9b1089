// SPDX-License-Identifier: Apache-2.0
//! Which sessions the fast path serves, so that an operator is told the truth about it.
//!
//! The record says most of it: a settled state, and no RST in doubt. That both ends of a connection are inside (a hairpin, each
//! packet of which takes two sessions) it does not say; such sessions are few, and are kept in a set beside.

use super::*;
use parking_lot::RwLockWriteGuard;

impl Tracker {
    /// The fast path leaves this session to the software path in any state, and it is not counted in [`TenantStats::fast`].
    pub fn exclude_from_offload(&self, session: SessionRef, inner: &InnerKey) {
        let at = session.0;
        if self.is_excluded(at) {
            return;
        }
        let record = self.shared.record(at);
        // While its lock is held it cannot end.
        let Some(word) = self.lock(&record) else { return };
        if record.inner() == *inner {
            let fast = self.is_fast(at, word);
            let mut excluded = self.excluded_set();
            if excluded.insert(at) && fast {
                self.quotas.tenant(inner.vni()).fast.fetch_sub(1, Relaxed);
            }
            self.excluded_len.store(excluded.len(), Release);
        }
        record.line.cell(STATE).store(word, Release);
    }

    /// Whether the fast path serves a session whose state word is `word`.
    pub(super) fn is_fast(&self, at: LineNo, word: u64) -> bool {
        is_offloadable(word) && !self.is_excluded(at)
    }

    pub(crate) fn is_excluded(&self, at: LineNo) -> bool {
        let some = self.excluded_len.load(Acquire) != 0;
        some && self.excluded.read().contains(&at)
    }

    /// The session in this line has ended.
    pub(super) fn forget_exclusion(&self, at: LineNo) {
        if self.is_excluded(at) {
            let mut excluded = self.excluded_set();
            excluded.remove(&at);
            self.excluded_len.store(excluded.len(), Release);
        }
    }

    fn excluded_set(&self) -> RwLockWriteGuard<'_, HashSet<LineNo, Mix>> {
        self.excluded.write()
    }
}

/// Whether a state word says that the fast path may serve the session.
pub(super) fn is_offloadable(word: u64) -> bool {
    State::from_number(word as u8).fast() && word & SESSION_DOUBT == 0
}
