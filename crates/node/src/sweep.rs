// SPDX-License-Identifier: Apache-2.0
//! After a change of rules or of translation: sessions are judged again, at a bounded rate, and what VMs may no longer hold is given
//! back.

use crate::counters::monotonic_ns;
use conntrack::{Cursor, EndReason};
use gateway::Connections;
use tables::Tables;

/// Sessions that are looked at in one go; in between workers get at the locks.
pub const BUDGET: u32 = 4096;
/// Budgets of records that are judged again in one turn, of which there are ten a second: one million records a second.
pub const SWEEPS: u32 = 25;
/// Of the translator's parts (32 each), in one turn.
const RETRACTS: u32 = 4;

/// Where a sweep is.
#[derive(Debug, Default)]
pub struct Sweep {
    /// In the sessions; none: through.
    at: Option<Cursor>,
    /// In the translator; none: not begun, or through. After the sessions: what it gives back is given to others at once.
    part: Option<usize>,
    /// Sessions that ended for their translation before it began.
    before: u64,
}

impl Sweep {
    /// One turn; `changed`: from the beginning.
    pub fn turn(&mut self, nat: &Connections, tables: &Tables, changed: bool) {
        let ended = || nat.tracker().stats().ended[EndReason::Untranslated as usize];
        if changed {
            if self.at.is_none() && self.part.is_none() {
                self.before = ended();
            }
            (self.at, self.part) = (Some(Cursor::default()), None);
        }
        for _ in 0..SWEEPS {
            let Some(from) = self.at else { break };
            self.at = nat.sweep(tables, from, BUDGET, monotonic_ns());
            if self.at.is_none() {
                self.part = Some(0);
            }
        }
        for _ in 0..RETRACTS {
            let Some(from) = self.part else { break };
            self.part = nat.nat().translator().retract(from);
            if self.part.is_none() && ended() > self.before {
                let n = ended() - self.before;
                tracing::info!("{n} sessions ended: the configuration no longer gives their VPC their public address");
            }
        }
    }
}
