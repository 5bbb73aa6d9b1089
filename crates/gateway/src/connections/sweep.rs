// SPDX-License-Identifier: Apache-2.0
//! The sweep behind a change of rules or of translation: sessions of older ones are judged again, so many at a time. A packet of such a session that
//! comes first is judged on its own account; the sweep is for those that would never be asked again.

use abi::{Vni, POLICY_FILTER};
use conntrack::{Cursor, Direction, EndReason, Owner, SessionInfo};
use conntrack_compact::{Connection, Key};
use tables::Tables;

use super::{epoch, Connections};
use crate::nat::binding;
use crate::{connection, pair};

impl Connections {
    /// Judges the sessions of older rules, of another translation, and those to tunnel addresses, among `budget` records from `from` on.
    /// Those that are refused end, pairs that are allowed take the present epoch; what is translated and may go on keeps its old one, for
    /// its next packet. Returns where to go on.
    pub fn sweep(&self, tables: &Tables, from: Cursor, budget: u32, now: u64) -> Option<Cursor> {
        let rules = self.rules();
        let _inside = tables.enter();
        let policy = |vni: Vni| tables.tenant(vni).map_or(0, |t| pair::policy_of(tables, &t));
        let tunnel_ends = self.nat.tunnel_ends();
        let mut refused = |s: &SessionInfo| {
            let (near, far) = (s.inner.vni(), s.outer.vni_bits());
            let in_force =
                || !tunnel_ends.contains(&s.inner.remote()) && self.nat.translator.judge(&binding(&s.inner, &s.outer));
            if s.owner != Owner::Filter && !in_force() {
                return Some(EndReason::Untranslated);
            }
            let word = match s.owner {
                Owner::Filter => pair::sum((near, policy(near)), (far, policy(far))),
                _ => policy(near),
            };
            if word & POLICY_FILTER == 0 || s.epoch == epoch(word) {
                return None;
            }
            let direction = if s.from_outside { Direction::In } else { Direction::Out };
            let other = (s.owner == Owner::Filter).then_some(far);
            if !pair::stands(&rules, &s.inner, other, direction) {
                return Some(EndReason::Removed);
            }
            if s.owner == Owner::Filter {
                let found = self.tracker().find_pair(&conntrack::PairKey::of_session(s.inner, &s.outer));
                found.map(|session| self.tracker().stamp(session, epoch(word)));
            }
            None
        };
        self.remove_where(from, budget, &mut refused, now)
    }

    /// The same for the connections of a state table, at `places` places of its records. They have no epoch: each is asked about.
    pub fn sweep_states(&self, tables: &Tables, from: u64, places: u64) -> Option<u64> {
        let (rules, states) = (self.rules(), self.states());
        let _inside = tables.enter();
        let filtered = |vni: Vni| tables.tenant(vni).is_some_and(|t| pair::policy_of(tables, &t) & POLICY_FILTER != 0);
        let mut keep = |key: &Key, c: &Connection| {
            !(filtered(key.vni()) || filtered(key.other_vni())) || connection::stands(&rules, key, c.began)
        };
        states.as_ref()?.review(from, places, &mut keep)
    }
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
mod tests;
