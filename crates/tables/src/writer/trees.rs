// SPDX-License-Identifier: Apache-2.0
//! Filling the route trees of a VPC: which are built, which are changed by copying paths, and what ROOT_SIMPLE may say.

use super::plan::{next_generation, Plan, RoutesPlan, TenantPlan};
use super::plan_routes::lengths_of;
use super::state::TenantState;
use super::undo::{Filled, RoutesBefore};
use super::{halves, Writer};
use crate::intervals::{is_local, span4, span6, Buffer};
use crate::route::{lookup128, lookup32};
use crate::routes::{build4, build6, change4, change6, dense4, dense6, note_length, Built};
use crate::smallmap::SmallMap;
use crate::tree::{walk, Forest, Top, TreeKey};
use crate::CommitReport;
use abi::*;
use std::io;
use std::net::IpAddr;

/// Buffers that are used again for every VPC.
#[derive(Default)]
pub(super) struct Scratch {
    i4: Buffer<u32>,
    i6: Buffer<u64>,
}

/// A family's tree as a commit leaves it.
#[derive(Clone, Copy)]
pub(super) struct NewTree {
    top: Top,
    /// What is known of ROOT_SIMPLE: a whole build says so itself, else the old bit holds if nothing broke it.
    simple: bool,
    /// All addresses must be looked at again, not only those that are added.
    whole: bool,
}

impl NewTree {
    /// The tree that a VPC has.
    pub(super) fn kept(state: &TenantState, f: usize, is_new: bool) -> NewTree {
        NewTree { top: state.top(f), simple: is_new || state.simple(f), whole: is_new }
    }
}

impl Writer {
    pub(super) fn fill_trees(
        &mut self,
        filled: &mut Filled,
        t: &mut TenantPlan<'_>,
        scratch: &mut Scratch,
        report: &mut CommitReport,
    ) -> io::Result<()> {
        let Filled { state, before, trees, .. } = filled;
        if let Some(peers) = t.peers.take() {
            before.peers = Some(std::mem::replace(&mut state.peers, peers));
        }
        match std::mem::replace(&mut t.routes, RoutesPlan::Keep) {
            RoutesPlan::Keep => {}
            RoutesPlan::Whole(r4, r6) => {
                let changed = [!state.routes_known || r4 != state.routes4, !state.routes_known || r6 != state.routes6];
                self.routes = (self.routes + (r4.len() + r6.len()) as u64).saturating_sub(state.routes_len() as u64);
                let (old4, old6) =
                    (std::mem::replace(&mut state.routes4, r4), std::mem::replace(&mut state.routes6, r6));
                before.routes = RoutesBefore::Whole(old4, old6);
                state.lengths = lengths_of(&state.routes4, &state.routes6);
                let compare = !state.routes_known;
                state.routes_known = true;
                for (f, tree) in trees.iter_mut().enumerate().filter(|(f, _)| changed[*f]) {
                    *tree = self.rebuild(state, f, scratch, compare)?;
                    report.trees += 1;
                }
            }
            RoutesPlan::Delta(d4, d6) => {
                let old = state.routes_len() as u64;
                // Noted before the set changes: a tree that cannot be built takes the set back too.
                before.routes = RoutesBefore::Delta(olds(&state.routes4, &d4), olds(&state.routes6, &d6));
                if !d4.is_empty() {
                    trees[0] = self.change_tree4(state, &d4, scratch)?;
                    report.trees += 1;
                }
                if !d6.is_empty() {
                    trees[1] = self.change_tree6(state, &d6, scratch)?;
                    report.trees += 1;
                }
                self.routes = self.routes + state.routes_len() as u64 - old;
            }
        }
        Ok(())
    }

    /// Builds a family's tree anew. `compare`: the old one may hold the same; then it stays.
    fn rebuild(
        &mut self,
        state: &mut TenantState,
        f: usize,
        scratch: &mut Scratch,
        compare: bool,
    ) -> io::Result<NewTree> {
        let old = state.top(f);
        let used = self.store.arena.used();
        let lines = self.store.lines;
        let mut forest = Forest { arena: &mut self.store.arena, lines, retired: &mut self.store.retired };
        let Built { top, simple } = match f {
            0 => build4(&mut forest, &state.routes4, &mut scratch.i4)?,
            _ => build6(&mut forest, &state.routes6, &mut scratch.i6)?,
        };
        let built = self.store.arena.used() - used;
        let same = compare
            && match f {
                0 => flat::<u32>(&lines, old) == flat::<u32>(&lines, top),
                _ => flat::<u64>(&lines, old) == flat::<u64>(&lines, top),
            };
        // Of two equal trees the published one stays; either way the other one goes.
        let (keep, drop) = if same { (old, top) } else { (top, old) };
        let mut forest = Forest { arena: &mut self.store.arena, lines, retired: &mut self.store.retired };
        match f {
            0 => forest.retire_tree::<u32>(drop),
            _ => forest.retire_tree::<u64>(drop),
        }
        if !same {
            state.tree_lines[f] = built;
        }
        Ok(NewTree { top: keep, simple, whole: true })
    }

    fn change_tree4(
        &mut self,
        state: &mut TenantState,
        delta: &[((u32, u8), Option<u32>)],
        scratch: &mut Scratch,
    ) -> io::Result<NewTree> {
        let keeps = state.simple(0) && all_keep_simple(&state.routes4, delta, 32, span4);
        let changed = enter(&mut state.routes4, &mut state.lengths[0], delta);
        let (used, retired) = (self.store.arena.used(), self.retired_lines());
        let top = change4(&mut self.forest(), state.top(0), &state.routes4, state.lengths[0], &changed)?;
        self.changed_tree(state, 0, top, (used, retired, dense4(state.routes4.len())), keeps, scratch)
    }

    fn change_tree6(
        &mut self,
        state: &mut TenantState,
        delta: &[((u128, u8), Option<u32>)],
        scratch: &mut Scratch,
    ) -> io::Result<NewTree> {
        let keeps = state.simple(1) && all_keep_simple(&state.routes6, delta, 128, span6);
        let changed = enter(&mut state.routes6, &mut state.lengths[1], delta);
        let (used, retired) = (self.store.arena.used(), self.retired_lines());
        let top = change6(&mut self.forest(), state.top(1), &state.routes6, state.lengths[1], &changed)?;
        self.changed_tree(state, 1, top, (used, retired, dense6(state.routes6.len())), keeps, scratch)
    }

    /// After a change by path copying: accepts it, unless it was refused or left the tree too sparse or too high.
    fn changed_tree(
        &mut self,
        state: &mut TenantState,
        f: usize,
        top: Option<Top>,
        (used, retired, dense): (u32, u64, usize),
        keeps: bool,
        scratch: &mut Scratch,
    ) -> io::Result<NewTree> {
        let Some(top) = top else {
            return self.rebuild(state, f, scratch, false);
        };
        let grown = u64::from(state.tree_lines[f]) + u64::from(self.store.arena.used() - used);
        let lines = grown.saturating_sub(self.retired_lines() - retired);
        if lines > 2 * dense as u64 + 64 || top.levels > TREE_LEVELS_MAX.min(9) {
            match f {
                0 => self.forest().retire_tree::<u32>(top),
                _ => self.forest().retire_tree::<u64>(top),
            }
            // What the published tree shares with the one just retired must not be retired again.
            state.roots &= !(u64::from(ROOT_LINE_MASK | 0xf << ROOT_LEVELS_SHIFT) << (32 * f));
            return self.rebuild(state, f, scratch, false);
        }
        state.tree_lines[f] = lines as u32;
        Ok(NewTree { top, simple: keeps, whole: false })
    }

    pub(super) fn forest(&mut self) -> Forest<'_> {
        Forest { arena: &mut self.store.arena, lines: self.store.lines, retired: &mut self.store.retired }
    }

    pub(super) fn retired_lines(&self) -> u64 {
        self.store.retired.iter().map(|b| u64::from(b.lines)).sum()
    }

    /// The roots word that a VPC gets.
    pub(super) fn new_roots(
        &self,
        state: &TenantState,
        t: &TenantPlan<'_>,
        plan: &Plan<'_>,
        trees: [NewTree; 2],
    ) -> u64 {
        let lines = &self.store.lines;
        let local4 = |top: Top, a: u32| is_local(lookup32(lines, top.root_bits(), a));
        let local6 = |top: Top, a: u128| is_local(lookup128(lines, top.root_bits(), halves(a)));
        let all = || state.vms.values().flat_map(|vm| vm.addresses()).chain(state.gateways.iter().copied());
        let good4 = match trees[0] {
            NewTree { simple: false, .. } => false,
            NewTree { top, whole: true, .. } => {
                all().all(|a| matches!(a, IpAddr::V4(a) if local4(top, a.to_bits())) || a.is_ipv6())
            }
            NewTree { top, .. } => {
                let adds = &plan.adds4[t.adds4.clone()];
                adds.iter().all(|(key, _)| local4(top, (key >> VM4_ADDR_SHIFT) as u32))
            }
        };
        let good6 = match trees[1] {
            NewTree { simple: false, .. } => false,
            NewTree { top, whole: true, .. } => {
                all().all(|a| matches!(a, IpAddr::V6(a) if local6(top, a.to_bits())) || a.is_ipv4())
            }
            NewTree { top, .. } => plan.adds6[t.adds6.clone()].iter().all(|a| local6(top, a.addr)),
        };
        let old = u64::from(crate::reader::generation_of(state.roots));
        let generation = if t.marks { next_generation(state.roots) } else { old };
        let half = |tree: NewTree, good: bool, bit: u64| {
            let mut word = tree.top.root_bits();
            if good {
                word |= ROOT_SIMPLE;
            }
            if generation >> bit & 1 != 0 {
                word |= ROOT_GENERATION;
            }
            u64::from(word)
        };
        half(trees[0], good4, 0) | half(trees[1], good6, 1) << 32
    }
}

/// What a set holds of the prefixes that change.
fn olds<K: Ord + Copy>(routes: &SmallMap<K, u32>, delta: &[(K, Option<u32>)]) -> Vec<(K, Option<u32>)> {
    delta.iter().map(|(key, _)| (*key, routes.get(key).copied())).collect()
}

/// Enters changed routes into a family's set and notes their lengths; returns their prefixes.
fn enter<A: Copy + Ord>(
    routes: &mut SmallMap<(A, u8), u32>,
    lengths: &mut [u64; 3],
    delta: &[((A, u8), Option<u32>)],
) -> Vec<(A, u8)> {
    let one = |(key, value): &((A, u8), Option<u32>)| {
        apply_route(routes, *key, *value);
        note_length(lengths, key.1);
        *key
    };
    delta.iter().map(one).collect()
}

pub(super) fn apply_route<K: Ord>(routes: &mut SmallMap<K, u32>, key: K, value: Option<u32>) {
    match value {
        Some(value) => routes.insert(key, value),
        None => routes.remove(&key),
    };
}

/// Whether ROOT_SIMPLE surely survives changed routes of a family whose addresses have `width` bits. `span` gives the first and the last
/// address of the prefix of a length that an address lies in.
fn all_keep_simple<A: Copy + Ord>(
    routes: &SmallMap<(A, u8), u32>,
    delta: &[((A, u8), Option<u32>)],
    width: u8,
    span: impl Fn(A, u8) -> (A, A),
) -> bool {
    let inside = |(addr, len): (A, u8)| {
        let range = || routes.range((addr, len)..=(span(addr, len).1, width));
        range().take(64).all(|(_, v)| is_local(*v)) && range().nth(64).is_none()
    };
    let above =
        |(addr, len): (A, u8)| (0..len).any(|l| routes.get(&(span(addr, l).0, l)).is_some_and(|v| is_local(*v)));
    delta.iter().all(|(k, v)| keeps_simple(routes.get(k).copied(), *v, || inside(*k), || above(*k)))
}

/// Whether ROOT_SIMPLE surely survives a changed route. `clear` = no route of another scope lies inside the prefix,
/// `above` = a local route lies above it.
pub(super) fn keeps_simple(
    old: Option<u32>,
    new: Option<u32>,
    clear: impl Fn() -> bool,
    above: impl Fn() -> bool,
) -> bool {
    match (old.map(is_local), new.map(is_local)) {
        // Local stays local, another scope goes.
        (Some(true), Some(true)) | (Some(false), None) | (None, None) => true,
        (_, Some(true)) => clear(),
        (Some(false), Some(false)) => true,
        (None, Some(false)) => !above(),
        // A local route goes: VMs may lose their cover.
        (Some(true), _) => false,
    }
}

/// All intervals of a tree with descents expanded: (upper, lower, value).
fn flat<K: TreeKey + Into<u64>>(lines: &memory::Lines, top: Top) -> Vec<(u64, u64, u32)> {
    let mut out: Vec<(u64, u64, u32)> = Vec::new();
    let mut push = |hi: u64, lo: u64, value: u32| match out.last_mut() {
        Some(last) if last.2 == value => (last.0, last.1) = (hi, lo),
        _ => out.push((hi, lo, value)),
    };
    let mut upper = Vec::new();
    walk::<K>(lines, top, &mut |_| true, &mut |i| upper.push((i.upper.into(), i.value)));
    for (hi, value) in upper {
        match Top::of_value(value) {
            Some(below) => {
                walk::<u64>(lines, below, &mut |_| true, &mut |i| push(hi, i.upper, i.value));
            }
            None => push(hi, u64::MAX, value),
        }
    }
    if out.is_empty() {
        out.push((K::MAX.into(), u64::MAX, 0));
    }
    out
}
