// SPDX-License-Identifier: Apache-2.0
//! Planning the routes of a VPC: prefixes are checked, targets become ROUTE_VALUE words, peers are counted.

use super::plan::{limit, Names, Plan, RoutesPlan, TenantPlan};
use super::state::TenantState;
use super::Writer;
use crate::fxmap::FxMap;
use crate::routes::{dense4, dense6, note_length, Routes4, Routes6, SMALL};
use crate::smallmap::SmallMap;
use crate::{CommitError, Prefix, Route, RoutesChange, Target, TenantChange};
use abi::*;
use memory::prefetch_slice;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Who is there before a commit, and who comes and goes with it: what the targets of routes are checked against.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub tenants: &'a FxMap<Vni, Box<TenantState>>,
    pub names: &'a Names,
}

/// All routes of a VPC, checked and sorted.
pub(super) struct WholeSet {
    routes4: Routes4,
    routes6: Routes6,
    /// How many of them lead to each peer.
    peers: SmallMap<Vni, u32>,
}

impl Writer {
    pub(super) fn plan_routes(
        &self,
        state: &TenantState,
        t: &mut TenantPlan<'_>,
        (known, whole): (Known<'_>, Option<WholeSet>),
        plan: &mut Plan<'_>,
    ) -> Result<(), CommitError> {
        let vni = t.change.vni;
        let before = state.routes_len();
        let (after, mut peers) = match (&t.change.routes, whole) {
            (RoutesChange::Delta { remove, add }, _) => {
                if !state.routes_known {
                    return Err(CommitError::RoutesUnknown { vni });
                }
                delta(known, state, t, remove, add)?
            }
            (_, None) => return Ok(()),
            (_, Some(WholeSet { routes4, routes6, peers })) => {
                if state.routes_known && !t.is_new && routes4 == state.routes4 && routes6 == state.routes6 {
                    return Ok(());
                }
                let after = routes4.len() + routes6.len();
                t.routes = RoutesPlan::Whole(routes4, routes6);
                (after, peers)
            }
        };
        limit("the number of routes of one VPC", after as u64, u64::from(self.options.limits.routes_per_tenant))?;
        plan.routes += after as i64 - before as i64;
        plan.tree_lines += match &t.routes {
            RoutesPlan::Whole(r4, r6) => {
                let lines = |n: usize, dense: usize| if n == 0 { 0 } else { dense };
                lines(r4.len(), dense4(r4.len())) + lines(r6.len(), dense6(r6.len()))
            }
            RoutesPlan::Delta(d4, d6) => {
                let (n4, n6) = (state.routes4.len() + d4.len(), state.routes6.len() + d6.len());
                // A copied path may bring trees over lower halves of what lies inside the changed prefixes.
                let lower = if paths_copied(n6, d6.len()) { n6 / 4 } else { 0 };
                delta_lines(state, 0, n4, d4.len(), dense4) + delta_lines(state, 1, n6, d6.len(), dense6) + lower
            }
            RoutesPlan::Keep => 0,
        } as u64;
        peers.retain(|_, n| *n > 0);
        for peer in state.peers.keys().filter(|p| !peers.contains_key(p)) {
            *plan.peer_refs.entry(*peer).or_default() -= 1;
        }
        for peer in peers.keys().filter(|p| !state.peers.contains_key(p)) {
            *plan.peer_refs.entry(*peer).or_default() += 1;
        }
        t.peers = Some(peers);
        Ok(())
    }
}

impl Known<'_> {
    /// The set that a change replaces a VPC's routes by, None if it does no such thing.
    pub(super) fn whole_set(&self, change: &TenantChange) -> Option<Result<WholeSet, CommitError>> {
        match &change.routes {
            RoutesChange::Replace(routes) if !change.delete => Some(self.check_set(change.vni, routes)),
            _ => None,
        }
    }

    fn check_set(&self, vni: Vni, routes: &[Route]) -> Result<WholeSet, CommitError> {
        prefetch_slice(routes);
        let mut r4: Vec<((u32, u8), u32)> = Vec::with_capacity(routes.len());
        let mut r6: Vec<((u128, u8), u32)> = Vec::new();
        let mut peers = SmallMap::default();
        for route in routes {
            check_prefix(vni, route.prefix)?;
            let value = self.route_value(vni, route.target)?;
            count_peer(&mut peers, value, 1);
            match route.prefix.addr() {
                IpAddr::V4(a) => r4.push(((a.to_bits(), route.prefix.prefix_len()), value)),
                IpAddr::V6(a) => r6.push(((a.to_bits(), route.prefix.prefix_len()), value)),
            }
        }
        r4.sort_unstable();
        r6.sort_unstable();
        let twice4 = r4.windows(2).find(|w| w[0].0 == w[1].0).map(|w| prefix4(w[0].0));
        let twice6 = r6.windows(2).find(|w| w[0].0 == w[1].0).map(|w| prefix6(w[0].0));
        if let Some(prefix) = twice4.or(twice6) {
            return Err(CommitError::RouteTwice { vni, prefix });
        }
        Ok(WholeSet { routes4: SmallMap::from_sorted(r4), routes6: SmallMap::from_sorted(r6), peers })
    }
    fn route_value(&self, vni: Vni, target: Target) -> Result<u32, CommitError> {
        Ok(match target {
            Target::Local => SCOPE_LOCAL << VALUE_SCOPE_SHIFT,
            Target::Blackhole => SCOPE_BLACKHOLE << VALUE_SCOPE_SHIFT,
            Target::Internet => SCOPE_INTERNET << VALUE_SCOPE_SHIFT,
            Target::Line(line) => SCOPE_LINE << VALUE_SCOPE_SHIFT | u32::from(line),
            Target::Via(hop) => SCOPE_LOCAL << VALUE_SCOPE_SHIFT | hop & 0xff_ffff,
            Target::Region => SCOPE_REGION << VALUE_SCOPE_SHIFT,
            Target::Peer(peer) => {
                let stays = self.tenants.contains_key(&peer) && !self.names.deletes.contains(&peer);
                if !stays && !self.names.new_ids.contains_key(&peer) && peer != vni {
                    return Err(CommitError::UnknownPeer { vni, peer });
                }
                SCOPE_PEER << VALUE_SCOPE_SHIFT | peer.0
            }
        })
    }
}

/// Whether a change of so many of `routes` may be made by copying paths; see `change4`.
fn paths_copied(routes: usize, changed: usize) -> bool {
    changed > 0 && routes > SMALL && changed <= routes / 8
}

/// Lines that a family's tree may need at most for a change after which there are so many routes. It may be built anew in any case.
fn delta_lines(state: &TenantState, f: usize, routes: usize, changed: usize, dense: fn(usize) -> usize) -> usize {
    if changed == 0 {
        return 0;
    }
    let copied = match paths_copied(routes, changed) {
        // A path is a block of sixteen lines a level, written twice when nodes split. Together they are no more than all nodes,
        // each split once, and those of the new intervals.
        true => {
            let top = state.top(f);
            (32 * (top.levels as usize + 1) * changed).min(2 * state.tree_lines[f] as usize + 3 * changed + 64)
        }
        false => 0,
    };
    copied + dense(routes)
}

/// What a change by prefixes makes of a VPC's routes: how many there are then, and how many lead to each peer.
fn delta(
    known: Known<'_>,
    state: &TenantState,
    t: &mut TenantPlan<'_>,
    remove: &[Prefix],
    add: &[Route],
) -> Result<(usize, SmallMap<Vni, u32>), CommitError> {
    let vni = t.change.vni;
    let mut d4: BTreeMap<(u32, u8), Option<u32>> = BTreeMap::new();
    let mut d6: BTreeMap<(u128, u8), Option<u32>> = BTreeMap::new();
    for prefix in remove {
        check_prefix(vni, *prefix)?;
        let known = match prefix.addr() {
            IpAddr::V4(a) => {
                let key = (a.to_bits(), prefix.prefix_len());
                state.routes4.contains_key(&key) && d4.insert(key, None).is_none()
            }
            IpAddr::V6(a) => {
                let key = (a.to_bits(), prefix.prefix_len());
                state.routes6.contains_key(&key) && d6.insert(key, None).is_none()
            }
        };
        if !known {
            return Err(CommitError::UnknownRoute { vni, prefix: *prefix });
        }
    }
    for route in add {
        check_prefix(vni, route.prefix)?;
        let value = known.route_value(vni, route.target)?;
        let twice = match route.prefix.addr() {
            IpAddr::V4(a) => d4.insert((a.to_bits(), route.prefix.prefix_len()), Some(value)).flatten(),
            IpAddr::V6(a) => d6.insert((a.to_bits(), route.prefix.prefix_len()), Some(value)).flatten(),
        };
        if twice.is_some() {
            return Err(CommitError::RouteTwice { vni, prefix: route.prefix });
        }
    }
    d4.retain(|k, v| state.routes4.get(k) != v.as_ref());
    d6.retain(|k, v| state.routes6.get(k) != v.as_ref());
    let mut peers = state.peers.clone();
    let mut after = state.routes_len();
    let olds = d4.iter().map(|(k, v)| (state.routes4.get(k).copied(), *v));
    for (old, new) in olds.chain(d6.iter().map(|(k, v)| (state.routes6.get(k).copied(), *v))) {
        after = after + usize::from(new.is_some()) - usize::from(old.is_some());
        old.into_iter().for_each(|v| count_peer(&mut peers, v, -1));
        new.into_iter().for_each(|v| count_peer(&mut peers, v, 1));
    }
    if !d4.is_empty() || !d6.is_empty() {
        t.routes = RoutesPlan::Delta(d4.into_iter().collect(), d6.into_iter().collect());
    }
    Ok((after, peers))
}

fn count_peer(peers: &mut SmallMap<Vni, u32>, value: u32, by: i32) {
    if value >> VALUE_SCOPE_SHIFT == SCOPE_PEER {
        let n = peers.or_default(Vni(value & VALUE_ARG_MASK));
        *n = n.saturating_add_signed(by);
    }
}

fn check_prefix(vni: Vni, prefix: Prefix) -> Result<(), CommitError> {
    (prefix.trunc() == prefix).then_some(()).ok_or(CommitError::BadPrefix { vni, prefix })
}

fn prefix4((addr, len): (u32, u8)) -> Prefix {
    Prefix::new_assert(IpAddr::V4(std::net::Ipv4Addr::from_bits(addr)), len)
}

fn prefix6((addr, len): (u128, u8)) -> Prefix {
    Prefix::new_assert(IpAddr::V6(std::net::Ipv6Addr::from_bits(addr)), len)
}

/// Notes the lengths of a whole set.
pub(super) fn lengths_of(r4: &Routes4, r6: &Routes6) -> [[u64; 3]; 2] {
    let mut lengths = [[0; 3]; 2];
    r4.keys().for_each(|k| note_length(&mut lengths[0], k.1));
    r6.keys().for_each(|k| note_length(&mut lengths[1], k.1));
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::lines_needed;

    fn prefix(addr: &str, len: u8) -> Prefix {
        Prefix::new_assert(addr.parse().unwrap(), len)
    }

    #[test]
    fn a_prefix_has_no_bits_behind_its_length() {
        let good = |addr: &str, len| {
            Prefix::new(addr.parse().unwrap(), len).is_ok_and(|prefix| check_prefix(Vni(7), prefix).is_ok())
        };
        for (addr, len, want) in [
            ("0.0.0.0", 0, true),
            ("0.0.0.1", 0, false),
            ("128.0.0.0", 0, false),
            ("128.0.0.0", 1, true),
            ("10.0.0.0", 8, true),
            ("10.0.0.0", 6, false),
            ("10.0.0.1", 31, false),
            ("10.0.0.2", 31, true),
            ("10.0.0.1", 32, true),
            ("10.0.0.1", 33, false),
            ("0.0.0.0", 33, false),
            ("0.0.0.0", 128, false),
            ("::", 0, true),
            ("::1", 0, false),
            ("8000::", 0, false),
            ("8000::", 1, true),
            ("2001:db8::", 32, true),
            ("2001:db8::", 28, false),
            ("2001:db8::1", 127, false),
            ("2001:db8::2", 127, true),
            ("2001:db8::1", 128, true),
            ("::", 129, false),
            ("::", 255, false),
        ] {
            assert_eq!(good(addr, len), want, "{addr}/{len}");
        }
        let e = check_prefix(Vni(7), prefix("::1", 5)).unwrap_err();
        assert!(matches!(e, CommitError::BadPrefix { vni: Vni(7), prefix: p } if p == prefix("::1", 5)));
        assert_eq!((prefix4((0x0a00_0001, 32)), prefix6((1, 128))), (prefix("10.0.0.1", 32), prefix("::1", 128)));
    }

    #[test]
    fn lengths_of_a_set_are_noted_by_family() {
        let r4: Routes4 = [((0, 0), 1), ((0, 24), 1), ((5, 32), 1)].into_iter().collect();
        let r6: Routes6 = [((0, 0), 1), ((0, 64), 1), ((7, 128), 1)].into_iter().collect();
        assert_eq!(lengths_of(&r4, &r6), [[1 << 32 | 1 << 24 | 1, 0, 0], [1, 1, 1]]);
        assert_eq!(lengths_of(&Routes4::default(), &Routes6::default()), [[0; 3]; 2]);
    }

    /// Paths are copied for one in eight at most, of more than 48.
    #[test]
    fn a_change_needs_paths_or_a_whole_tree() {
        let paths = [(48, 1), (49, 1), (49, 6), (49, 7), (49, 0), (80, 10), (80, 11)]
            .map(|(routes, changed)| paths_copied(routes, changed));
        assert_eq!(paths, [false, true, true, false, false, true, false]);
        let (levels4, levels6) = (3, 4);
        let roots = levels4 << ROOT_LEVELS_SHIFT | 5 | (levels6 << ROOT_LEVELS_SHIFT | 9) << 32;
        let state = TenantState { roots, tree_lines: [400, 70], ..Default::default() };
        let whole = |n: usize| lines_needed::<u32>(2 * n + 1);
        for f in [0, 1] {
            assert_eq!(delta_lines(&state, f, 1000, 0, dense4), 0);
            assert_eq!(delta_lines(&state, f, 40, 1, dense4), whole(40), "few routes are built anew");
            assert_eq!(delta_lines(&state, f, 80, 11, dense4), whole(80), "and so are many changes");
        }
        // Sixteen lines a level and one more, twice; or all nodes twice, if they are fewer.
        assert_eq!(delta_lines(&state, 0, 1000, 2, dense4), 2 * 32 * 4 + whole(1000));
        assert_eq!(delta_lines(&state, 0, 1000, 7, dense4), 800 + 21 + 64 + whole(1000));
        assert_eq!(delta_lines(&state, 1, 1000, 1, dense4), 32 * 5 + whole(1000));
        assert_eq!(delta_lines(&state, 1, 1000, 2, dense4), 140 + 6 + 64 + whole(1000));
    }

    #[test]
    fn routes_to_peers_are_counted() {
        let mut peers = SmallMap::default();
        let count = |peers: &mut SmallMap<Vni, u32>, value, by| {
            count_peer(peers, value, by);
            peers.iter().map(|(k, v)| (k.0, *v)).collect::<Vec<_>>()
        };
        assert_eq!(count(&mut peers, SCOPE_LOCAL << 28 | 5, 1), []);
        assert_eq!(count(&mut peers, SCOPE_PEER << 28 | 5, 1), [(5, 1)]);
        assert_eq!(count(&mut peers, SCOPE_PEER << 28 | 0xff_ffff, 1), [(5, 1), (0xff_ffff, 1)]);
        assert_eq!(count(&mut peers, SCOPE_PEER << 28 | 5, 1), [(5, 2), (0xff_ffff, 1)]);
        assert_eq!(count(&mut peers, SCOPE_PEER << 28 | 5, -1), [(5, 1), (0xff_ffff, 1)]);
        assert_eq!(count(&mut peers, SCOPE_PEER << 28 | 9, -1), [(5, 1), (9, 0), (0xff_ffff, 1)]);
    }
}
