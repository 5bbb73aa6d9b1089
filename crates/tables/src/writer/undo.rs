// SPDX-License-Identifier: Apache-2.0
//! What a commit that cannot be filled is taken back by: afterwards tables, sets, ids and memory in use are as they were before it.
//!
//! Nothing that fill does is seen by a reader, so there is no hurry and no order that readers depend on. Only lines that were linked to
//! a chain, and chunks, could be passed by one: they wait for a grace period before they are free. Memory that has grown stays, free.

use super::plan::{Plan, TenantPlan};
use super::state::TenantState;
use super::trees::{NewTree, Scratch};
use super::{halves, TableSet, Writer};
use crate::routes::{Routes4, Routes6};
use crate::smallmap::SmallMap;
use abi::*;
use memory::{root, RootRef};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};

/// A commit that is being filled.
pub(super) struct Fill {
    pub scratch: Scratch,
    /// VPCs in the order of the plan, as far as they are filled. They are not in the writer's list meanwhile.
    pub filled: Vec<Filled>,
    /// Words of `vm_meters` to put (true) or remove when the commit is published.
    pub meters: Vec<(u64, bool)>,
    pub chunks: Vec<Chunk>,
    tables: TableSet,
    routes: u64,
    groups: [u64; 2],
}

/// A VPC whose trees and meters are built.
pub(super) struct Filled {
    pub state: Box<TenantState>,
    pub before: Before,
    pub trees: [NewTree; 2],
    /// Meter block by its new settings, 0 = none; None if it gets no settings.
    pub meter: Option<LineNo>,
}

/// What fill changes of a VPC's state, as it was.
pub(super) struct Before {
    pub routes: RoutesBefore,
    pub peers: Option<SmallMap<Vni, u32>>,
    lengths: [[u64; 3]; 2],
    tree_lines: [u32; 2],
    roots: u64,
    routes_known: bool,
}

pub(super) enum RoutesBefore {
    /// Prefixes that were changed and their old values, None = there was none.
    Delta(Vec<((u32, u8), Option<u32>)>, Vec<((u128, u8), Option<u32>)>),
    Whole(Routes4, Routes6),
}

impl Before {
    pub(super) fn of(state: &TenantState) -> Before {
        Before {
            routes: RoutesBefore::Delta(Vec::new(), Vec::new()),
            peers: None,
            lengths: state.lengths,
            tree_lines: state.tree_lines,
            roots: state.roots,
            routes_known: state.routes_known,
        }
    }

    fn restore(self, state: &mut TenantState) {
        match self.routes {
            RoutesBefore::Whole(r4, r6) => (state.routes4, state.routes6) = (r4, r6),
            RoutesBefore::Delta(d4, d6) => {
                d4.into_iter().for_each(|(key, old)| super::trees::apply_route(&mut state.routes4, key, old));
                d6.into_iter().for_each(|(key, old)| super::trees::apply_route(&mut state.routes6, key, old));
            }
        }
        if let Some(peers) = self.peers {
            state.peers = peers;
        }
        (state.lengths, state.tree_lines) = (self.lengths, self.tree_lines);
        (state.roots, state.routes_known) = (self.roots, self.routes_known);
    }
}

/// A chunk of cells or records.
#[derive(Clone, Copy)]
pub(super) enum Chunk {
    Vms(u32),
    Ncs(u32),
    Tenants(u32),
}

impl Chunk {
    /// Where the root says where it is.
    pub(super) fn at(self, root: &RootRef) -> &AtomicU32 {
        match self {
            Chunk::Vms(n) => root.vm_chunk(n),
            Chunk::Ncs(n) => root.nc_chunk(n),
            Chunk::Tenants(n) => root.tenant_chunk(n),
        }
    }
}

impl Writer {
    /// Ids that are taken from now on can be taken back.
    pub(super) fn begin_ids(&mut self) {
        self.vpc_ids.begin();
        self.vm_ids.begin();
        self.nc_ids.begin();
    }

    /// Takes back the ids of a commit that was refused.
    pub(super) fn take_back_ids(&mut self) {
        self.vpc_ids.take_back();
        self.vm_ids.take_back();
        self.nc_ids.take_back();
    }

    /// Begins to fill a commit that changes so many VPCs.
    pub(super) fn begin(&mut self, vpcs: usize) -> Fill {
        self.store.arena.begin();
        let root = &self.store.root;
        Fill {
            scratch: Scratch::default(),
            filled: Vec::with_capacity(vpcs),
            meters: Vec::new(),
            chunks: Vec::new(),
            tables: self.tables,
            routes: self.routes,
            groups: [root.get(root!(vm_groups)), root.get(root!(tenant_groups))],
        }
    }

    /// Takes back what `fill` has done, as far as it came.
    pub(super) fn take_back(&mut self, plan: &Plan<'_>, tenants: &[TenantPlan<'_>], fill: Fill) {
        for (t, Filled { mut state, before, .. }) in tenants.iter().zip(fill.filled).filter(|(t, _)| !t.is_new) {
            before.restore(&mut state);
            self.tenants.insert(t.change.vni, state);
        }
        self.routes = fill.routes;
        self.store.retired.clear();
        self.store.retired_pairs.clear();
        self.tables = fill.tables;
        for t in tenants.iter().filter(|t| t.hides_entries()) {
            self.take_back_entries(plan, t);
        }
        let links = std::mem::take(&mut self.store.links);
        for (root, line) in links.iter().rev() {
            if let Some(table) = self.tables.all().into_iter().find(|t| t.root() == *root) {
                table.shorten(&self.store.lines, *line);
            }
        }
        let root = self.store.root;
        fill.chunks.iter().for_each(|chunk| chunk.at(&root).store(0, Ordering::Release));
        root.set(root!(vm_groups), fill.groups[0]);
        root.set(root!(tenant_groups), fill.groups[1]);
        if !links.is_empty() || !fill.chunks.is_empty() {
            self.grace();
        }
        self.store.arena.take_back();
        self.take_back_ids();
    }

    /// Takes out of the published tables what `fill_entries` has put in, and the marks of what was to go.
    fn take_back_entries(&mut self, plan: &Plan<'_>, t: &TenantPlan<'_>) {
        let (tables, store) = (&self.tables, &self.store);
        let vni = t.change.vni;
        for (key, _) in &plan.adds4[t.adds4.clone()] {
            let same = |state: u64| state == key & KEY_STATE_MASK;
            if let Some((place, _)) = tables.vm4.find4(store, vni, (key >> VM4_ADDR_SHIFT) as u32, same) {
                tables.vm4.erase(&store.lines, place);
            }
        }
        for add in &plan.adds6[t.adds6.clone()] {
            if let Some((place, _)) = tables.vm6.find6(store, vni, halves(add.addr), |state| state == add.state) {
                tables.vm6.erase(&store.lines, place);
            }
        }
        // What goes without marks is not touched before it goes.
        let dying = |state: u64| state & KEY_DYING != 0;
        for (vni, addr) in plan.kills[t.kills.clone()].iter().filter(|_| t.marks) {
            match addr {
                IpAddr::V4(a) => {
                    if let Some((place, _)) = tables.vm4.find4(store, *vni, a.to_bits(), dying) {
                        tables.vm4.set_state(store, place, KEY_VALID);
                    }
                }
                IpAddr::V6(a) => {
                    if let Some((place, _)) = tables.vm6.find6(store, *vni, halves(a.to_bits()), dying) {
                        tables.vm6.set_state(store, place, KEY_VALID);
                    }
                }
            }
        }
    }
}

/// All that a writer remembers, as far as it decides what it does next, and all that its tables hold.
#[cfg(test)]
#[derive(Debug, PartialEq)]
pub(crate) struct Snapshot {
    pub(super) tenants: std::collections::BTreeMap<Vni, TenantState>,
    pub(super) peers: std::collections::BTreeMap<Vni, u32>,
    pub(super) filtered: std::collections::BTreeSet<Vni>,
    pub(super) ncs: std::collections::BTreeMap<u128, super::NcState>,
    pub(super) ids: [(Vec<u8>, (u32, Vec<u32>), Vec<u32>); 2],
    pub(super) nc_ids: (u32, Vec<u32>),
    pub(super) counts: [u64; 4],
    pub(super) pending: super::Pending,
    pub(super) tables: TableSet,
    /// Every slot in use of every table: place, key, value words.
    pub(super) slots: Vec<(usize, crate::hashtable::Place, Vec<u64>)>,
    pub(super) root: Vec<u64>,
    /// Records of VPCs and cells of VMs.
    pub(super) chunks: Vec<[u64; 8]>,
    /// Lines in use that are no hash array: trees, meters, overflow.
    pub(super) used: Vec<crate::arena::Block>,
}

#[cfg(test)]
impl Writer {
    /// So many calls that ask for memory go well, then each fails; None = none fails.
    pub(crate) fn calls_until_full(&mut self, calls: Option<u32>) {
        self.store.arena.good_calls = calls;
    }

    /// Calls that have asked for memory.
    pub(crate) fn calls(&self) -> u32 {
        self.store.arena.calls
    }

    pub(crate) fn snapshot(&mut self) -> Snapshot {
        let lines = self.store.lines;
        let mut slots = Vec::new();
        for table in self.tables.all() {
            table.for_each(&lines, |place, key| {
                let value = match table.kind() {
                    crate::hashtable::Kind::Word(_) => vec![key],
                    crate::hashtable::Kind::Tenant => {
                        let e = table.tenant_at(&lines, place);
                        vec![e.key, e.roots, u64::from(e.mac), u64::from(e.policy), crate::peers::at(&lines, place)[0]]
                    }
                    _ => {
                        let e = table.vm_slot(&lines, place);
                        vec![e.key, e.addr6.0, e.addr6.1, e.value.mac, u64::from(e.value.vm), u64::from(e.value.nc)]
                    }
                };
                slots.push((table.root(), place, value));
            });
        }
        let root = self.store.root;
        let mut chunks = Vec::new();
        for (first, n) in
            [(root.vm_chunk(0), super::apply::VM_CHUNK_LINES), (root.tenant_chunk(0), self.tenant_chunk_lines())]
        {
            let first = first.load(Ordering::Relaxed);
            chunks.extend((first..first + n).filter(|_| first != 0).map(|l| lines.at(LineNo(l)).snapshot()));
        }
        Snapshot {
            tenants: self.tenants.iter().map(|(vni, t)| (*vni, (**t).clone())).collect(),
            peers: self.peer_refs.clone().into_iter().collect(),
            filtered: self.filtered.iter().copied().collect(),
            ncs: self.ncs.clone().into_iter().collect(),
            ids: [self.vpc_ids.content(), self.vm_ids.content()],
            nc_ids: self.nc_ids.content(),
            counts: [self.routes, self.vms, self.commits, u64::from(self.store.arena.used())],
            pending: self.pending.clone(),
            tables: self.tables,
            slots,
            root: (0..size_of::<Root>()).step_by(8).map(|at| root.get(at)).collect(),
            chunks,
            used: self.store.arena.in_use(),
        }
    }
}
