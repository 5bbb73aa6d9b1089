// SPDX-License-Identifier: Apache-2.0
//! From the kernel's state to next hops and groups. Pure: events and time come in, table changes and requests for
//! resolution go out. No I/O, no clock.
//!
//! **What it keeps.** After [`Core::flush`], the changes handed out so far describe exactly: for every NC the group that the
//! FIB gives it, for every group its usable members, for every next hop its MAC addresses, MTU and port. Only differences
//! come out, so a resync that finds nothing new writes nothing.
//!
//! **Sharing.** NCs behind the same route share one group, so a MAC that changes costs one store and a dead link one per
//! group, however many NCs there are. A group is named by the route's usable next hops with their weights; a next hop by
//! (port, neighbour, route MTU).
//!
//! **Order.** A new next hop is written before the group that names it, a group before the NC that is bound to it; what is
//! dropped, in the reverse order. The receiver keeps dropped entries until no packet can be using them.
//!
//! **Unresolved neighbours.** A member whose MAC is unknown is left out while another member is ready. If none is ready the
//! members stay, so that packets end as `nexthop_unresolved`, and ask for resolution, not as `underlay_no_route`.

use crate::ecmp;
use crate::fib::{range, Fib};
use crate::model::*;
use abi::IfIndex;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

/// Milliseconds between two requests to resolve the same neighbour.
const RESOLVE_INTERVAL_MS: u64 = 1000;
/// Milliseconds after which a neighbour that the kernel does not manage is asked for again, so that it does not age out.
const REFRESH_INTERVAL_MS: u64 = 15_000;
/// When a link is back its neighbours are asked for so often,
pub const EAGER_INTERVAL_MS: u64 = 100;
/// for so long: what is sent first is often lost, in a queue that is not open yet or by a switch that does not forward yet.
const EAGER_MS: u64 = 3000;

/// What a next hop is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NexthopKey {
    /// Egress interface.
    pub ifindex: IfIndex,
    /// Neighbour: gateway, or the NC itself.
    pub addr: IpAddr,
    /// MTU of the route, 0 if it sets none.
    pub route_mtu: u32,
}

/// What the tables are to hold about a next hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NexthopSpec {
    /// Egress interface.
    pub ifindex: IfIndex,
    /// Address of the neighbour.
    pub addr: IpAddr,
    /// Its MAC address; none while unresolved, or while the port is down.
    pub dmac: Option<u64>,
    /// MAC address of the port.
    pub smac: u64,
    /// Largest IP packet: the smaller one of the port's and the route's MTU.
    pub mtu: u16,
}

/// One change to the tables. Ids are chosen here and may be used again after a drop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A next hop is new or has changed.
    Nexthop {
        /// Its id.
        id: u32,
        /// What it is now.
        spec: NexthopSpec,
    },
    /// A group is new or has changed; no member means that there is no way.
    Group {
        /// Its id.
        id: u32,
        /// Ids of next hops, repeated by weight.
        members: Vec<u32>,
    },
    /// An NC is reached by this group, or by none.
    Bind {
        /// The NC.
        nc: IpAddr,
        /// Id of its group.
        group: Option<u32>,
    },
    /// A group is no longer used.
    DropGroup {
        /// Its id.
        id: u32,
    },
    /// A next hop is no longer used.
    DropNexthop {
        /// Its id.
        id: u32,
    },
}

/// What the kernel is to do about a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolve {
    /// Its interface.
    pub ifindex: IfIndex,
    /// Its address.
    pub addr: IpAddr,
    /// True: resolve it and keep it resolved. False: nobody needs it any longer.
    pub keep: bool,
    /// What the kernel may have of it is to be forgotten first: it waits a second between two requests, and does not tell of those that it
    /// waits for.
    pub anew: bool,
}

#[derive(Debug)]
struct Nexthop {
    id: u32,
    groups: BTreeSet<u32>,
    published: Option<NexthopSpec>,
}

#[derive(Debug)]
struct Group {
    key: Vec<(NexthopKey, u32)>,
    ncs: usize,
    published: Option<Vec<u32>>,
}

#[derive(Debug, Default)]
struct Nc {
    group: Option<u32>,
    published: Option<Option<u32>>,
}

/// Ids, lowest free one first.
#[derive(Debug, Default)]
struct Ids {
    free: BTreeSet<u32>,
    next: u32,
}

impl Ids {
    fn take(&mut self) -> u32 {
        self.free.pop_first().unwrap_or_else(|| {
            self.next += 1;
            self.next
        })
    }
    fn give(&mut self, id: u32) {
        self.free.insert(id);
    }
}

/// The state machine.
#[derive(Debug)]
pub struct Core {
    fib: Fib,
    links: HashMap<IfIndex, Link>,
    neighbours: HashMap<(IfIndex, IpAddr), Neighbour>,
    ncs: BTreeMap<IpAddr, Nc>,
    nexthops: BTreeMap<NexthopKey, Nexthop>,
    groups: HashMap<u32, Group>,
    group_ids: HashMap<Vec<(NexthopKey, u32)>, u32>,
    nexthop_of: HashMap<u32, NexthopKey>,
    ids_nexthop: Ids,
    ids_group: Ids,
    dirty_ncs: BTreeSet<IpAddr>,
    dirty_nexthops: BTreeSet<NexthopKey>,
    dirty_groups: BTreeSet<u32>,
    removed_ncs: Vec<IpAddr>,
    unused_groups: BTreeSet<u32>,
    requested: HashMap<(IfIndex, IpAddr), u64>,
    /// Links that have come back since [`Core::resolve`] was called last.
    returned: HashSet<IfIndex>,
    /// Links that have come back not long ago, and when that is long ago.
    eager: HashMap<IfIndex, u64>,
    /// Neighbours on them have not answered.
    waits: bool,
    /// When their neighbours were asked for.
    nudged: HashMap<(IfIndex, IpAddr), u64>,
    request_now: HashSet<(IfIndex, IpAddr)>,
    released: Vec<(IfIndex, IpAddr)>,
    refused: Vec<Change>,
    /// The kernel keeps neighbours by itself (5.16 and newer).
    pub kernel_manages: bool,
}

impl Core {
    /// An empty state that follows routing table `table`.
    pub fn new(table: u32) -> Core {
        Core {
            fib: Fib::new(table),
            links: HashMap::new(),
            neighbours: HashMap::new(),
            ncs: BTreeMap::new(),
            nexthops: BTreeMap::new(),
            groups: HashMap::new(),
            group_ids: HashMap::new(),
            nexthop_of: HashMap::new(),
            ids_nexthop: Ids::default(),
            ids_group: Ids::default(),
            dirty_ncs: BTreeSet::new(),
            dirty_nexthops: BTreeSet::new(),
            dirty_groups: BTreeSet::new(),
            removed_ncs: Vec::new(),
            unused_groups: BTreeSet::new(),
            requested: HashMap::new(),
            returned: HashSet::new(),
            eager: HashMap::new(),
            waits: false,
            nudged: HashMap::new(),
            request_now: HashSet::new(),
            released: Vec::new(),
            refused: Vec::new(),
            kernel_manages: true,
        }
    }

    /// NCs whose way is wanted.
    pub fn add_nc(&mut self, nc: IpAddr) {
        self.ncs.entry(nc).or_default();
        self.dirty_ncs.insert(nc);
    }

    /// An NC that is no longer wanted. Its record is the configuration's to remove; only the group is let go.
    pub fn remove_nc(&mut self, nc: IpAddr) {
        if self.ncs.contains_key(&nc) {
            self.removed_ncs.push(nc);
        }
    }

    /// The software path wants to send to this NC and found its next hop unresolved.
    pub fn want(&mut self, nc: IpAddr) {
        let Some(group) = self.ncs.get(&nc).and_then(|n| n.group) else { return };
        let keys: Vec<_> = self.groups[&group].key.iter().map(|(k, _)| (k.ifindex, k.addr)).collect();
        self.request_now.extend(keys.into_iter().filter(|k| self.neighbours.get(k).is_none_or(|n| n.mac.is_none())));
    }

    /// Whether routes of this table matter here.
    pub fn follows(&self, table: u32) -> bool {
        self.fib.follows(table)
    }

    /// Takes one event in. Returns true if a fresh dump should follow, because the kernel may have left something unsaid.
    pub fn event(&mut self, event: Event) -> bool {
        match event {
            Event::Link(link) => self.link(link),
            Event::LinkGone(index) => {
                let known = self.links.remove(&index).is_some();
                if known {
                    self.neighbours.retain(|(ifindex, _), _| *ifindex != index);
                    self.links_changed(index);
                }
                known
            }
            Event::Neighbour(n) => {
                let key = (n.ifindex, n.addr);
                self.neighbours.insert(key, n);
                self.neighbour_changed(key);
                false
            }
            Event::NeighbourGone { ifindex, addr } => {
                if self.neighbours.remove(&(ifindex, addr)).is_some() {
                    // Flushed by somebody: what was asked before is void.
                    self.requested.remove(&(ifindex, addr));
                    self.neighbour_changed((ifindex, addr));
                }
                false
            }
            Event::Route(route, op) => {
                let hit = self.fib.follows(route.table) && self.route_changed(&route);
                self.fib.add(route, op);
                hit
            }
            Event::RouteGone(route) => {
                let hit = self.fib.follows(route.table) && self.route_changed(&route);
                self.fib.remove(&route);
                hit
            }
            Event::Unclear => true,
        }
    }

    /// Takes the result of a dump in place of everything known about the kernel.
    pub fn resync(&mut self, snapshot: Snapshot) {
        self.links = snapshot.links.into_iter().map(|l| (l.index, l)).collect();
        self.neighbours = snapshot.neighbours.into_iter().map(|n| ((n.ifindex, n.addr), n)).collect();
        self.fib.replace_all(snapshot.routes);
        self.dirty_ncs.extend(self.ncs.keys());
        self.dirty_nexthops.extend(self.nexthops.keys());
    }

    fn link(&mut self, link: Link) -> bool {
        let index = link.index;
        let old = self.links.insert(index, link);
        let new = &self.links[&index];
        let Some(old) = old else {
            self.links_changed(index);
            return true;
        };
        if old.up != new.up {
            self.links_changed(index);
            return true;
        }
        if new.up && new.running && !old.running {
            self.returned.insert(index);
        }
        if old.mac != new.mac || old.mtu != new.mtu {
            self.dirty_nexthops.extend(self.nexthops.keys().filter(|k| k.ifindex == index));
        }
        false
    }

    /// A link came, went, or changed its state: other routes may win now.
    fn links_changed(&mut self, index: IfIndex) {
        self.dirty_ncs.extend(self.ncs.keys());
        let on_it: Vec<_> = self.nexthops.keys().filter(|k| k.ifindex == index).copied().collect();
        // Whatever was asked before the change does not count as asked.
        on_it.iter().for_each(|k| {
            self.requested.remove(&(k.ifindex, k.addr));
        });
        self.dirty_nexthops.extend(on_it);
        if self.links.get(&index).is_some_and(|l| l.up) {
            self.returned.insert(index);
        }
    }

    fn neighbour_changed(&mut self, (ifindex, addr): (IfIndex, IpAddr)) {
        let from = NexthopKey { ifindex, addr, route_mtu: 0 };
        let to = NexthopKey { ifindex, addr, route_mtu: u32::MAX };
        self.dirty_nexthops.extend(self.nexthops.range(from..=to).map(|(k, _)| *k));
    }

    /// Marks the NCs that a route covers; true if there are any.
    fn route_changed(&mut self, route: &Route) -> bool {
        let (low, high) = range(route.dst, route.len);
        let mut hit = false;
        for (nc, _) in self.ncs.range(low..=high) {
            hit = true;
            self.dirty_ncs.insert(*nc);
        }
        hit
    }

    /// The changes that bring the tables up to date. They count as done; tell [`Core::failed`] about those that were not.
    pub fn flush(&mut self) -> Vec<Change> {
        let (mut made, mut groups, mut binds, mut drops) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for nc in std::mem::take(&mut self.removed_ncs) {
            self.dirty_ncs.remove(&nc);
            if let Some(old) = self.ncs.remove(&nc) {
                self.leave(old.group);
            }
        }
        for nc in std::mem::take(&mut self.dirty_ncs) {
            self.rebind(nc, &mut binds);
        }
        for key in std::mem::take(&mut self.dirty_nexthops) {
            self.rewrite_nexthop(key, &mut made);
        }
        for id in std::mem::take(&mut self.dirty_groups) {
            self.rewrite_group(id, &mut groups);
        }
        for id in std::mem::take(&mut self.unused_groups) {
            self.drop_group(id, &mut drops);
        }
        // A next hop that lost its MAC must leave the groups before it is unmade, one that gained it must be made first.
        let (first, last): (Vec<_>, Vec<_>) = made
            .into_iter()
            .partition(|c| matches!(c, Change::Nexthop { spec, .. } if spec.dmac.is_some()) || !self.was_known(c));
        self.remember(&first);
        self.remember(&last);
        [first, groups, last, binds, drops].concat()
    }

    fn was_known(&self, change: &Change) -> bool {
        matches!(change, Change::Nexthop { id, .. }
            if self.nexthop_of.get(id).is_some_and(|k| self.nexthops[k].published.is_some()))
    }

    fn remember(&mut self, changes: &[Change]) {
        for change in changes {
            if let Change::Nexthop { id, spec } = change {
                if let Some(nexthop) = self.nexthop_of.get(id).and_then(|k| self.nexthops.get_mut(k)) {
                    nexthop.published = Some(spec.clone());
                }
            }
        }
    }

    /// A change that the tables refused: it is tried again after [`Core::retry`].
    pub fn failed(&mut self, change: &Change) {
        self.refused.push(change.clone());
    }

    /// Puts what the tables refused before into the next flush.
    pub fn retry(&mut self) {
        for change in std::mem::take(&mut self.refused) {
            self.unpublish(&change);
        }
    }

    fn unpublish(&mut self, change: &Change) {
        match change {
            Change::Nexthop { id, .. } => {
                if let Some(key) = self.nexthop_of.get(id) {
                    if let Some(nexthop) = self.nexthops.get_mut(key) {
                        nexthop.published = None;
                        self.dirty_nexthops.insert(*key);
                    }
                }
            }
            Change::Group { id, .. } => {
                if let Some(group) = self.groups.get_mut(id) {
                    group.published = None;
                    self.dirty_groups.insert(*id);
                }
            }
            Change::Bind { nc, .. } => {
                if let Some(n) = self.ncs.get_mut(nc) {
                    n.published = None;
                    self.dirty_ncs.insert(*nc);
                }
            }
            Change::DropGroup { .. } | Change::DropNexthop { .. } => {}
        }
    }

    fn rebind(&mut self, nc: IpAddr, binds: &mut Vec<Change>) {
        let links = &self.links;
        let path = self
            .fib
            .lookup(nc, |hop| !hop.unusable && links.get(&hop.ifindex).is_some_and(|l| l.up && l.mac.is_some()));
        let Some(known) = self.ncs.get(&nc) else { return };
        let old = known.group;
        let group = path.map(|path| {
            let key = path
                .hops
                .iter()
                .map(|h| {
                    let addr = h.via.unwrap_or(nc);
                    (NexthopKey { ifindex: h.ifindex, addr, route_mtu: path.mtu }, h.weight)
                })
                .collect();
            self.group_for(key)
        });
        if group != old {
            if let Some(id) = group {
                self.groups.get_mut(&id).expect("just found").ncs += 1;
                self.unused_groups.remove(&id);
            }
            self.leave(old);
        } else if let Some(id) = group {
            self.unused_groups.remove(&id);
        }
        let entry = self.ncs.get_mut(&nc).expect("looked up above");
        entry.group = group;
        if entry.published != Some(group) {
            entry.published = Some(group);
            binds.push(Change::Bind { nc, group });
        }
    }

    fn leave(&mut self, group: Option<u32>) {
        if let Some(id) = group {
            let g = self.groups.get_mut(&id).expect("an NC's group exists");
            g.ncs -= 1;
            if g.ncs == 0 {
                self.unused_groups.insert(id);
            }
        }
    }

    fn group_for(&mut self, key: Vec<(NexthopKey, u32)>) -> u32 {
        if let Some(id) = self.group_ids.get(&key) {
            return *id;
        }
        let id = self.ids_group.take();
        for (k, _) in &key {
            let ids = &mut self.ids_nexthop;
            let nexthop = self.nexthops.entry(*k).or_insert_with(|| Nexthop {
                id: ids.take(),
                groups: BTreeSet::new(),
                published: None,
            });
            nexthop.groups.insert(id);
            self.nexthop_of.insert(nexthop.id, *k);
            self.dirty_nexthops.insert(*k);
        }
        self.group_ids.insert(key.clone(), id);
        self.groups.insert(id, Group { key, ncs: 0, published: None });
        self.dirty_groups.insert(id);
        id
    }

    fn spec(&self, key: NexthopKey) -> NexthopSpec {
        let link = self.links.get(&key.ifindex);
        let link_mtu = link.map_or(0, |l| l.mtu);
        let mtu = if key.route_mtu == 0 { link_mtu } else { link_mtu.min(key.route_mtu) };
        NexthopSpec {
            ifindex: key.ifindex,
            addr: key.addr,
            dmac: self
                .neighbours
                .get(&(key.ifindex, key.addr))
                .and_then(|n| n.mac)
                .filter(|_| link.is_some_and(|l| l.up)),
            smac: link.and_then(|l| l.mac).unwrap_or(0),
            mtu: mtu.min(u16::MAX as u32) as u16,
        }
    }

    fn rewrite_nexthop(&mut self, key: NexthopKey, made: &mut Vec<Change>) {
        let spec = self.spec(key);
        let Some(nexthop) = self.nexthops.get(&key) else { return };
        if nexthop.published.as_ref() == Some(&spec) {
            return;
        }
        let was_ready = nexthop.published.as_ref().is_some_and(|p| p.dmac.is_some());
        if was_ready != spec.dmac.is_some() || nexthop.published.is_none() {
            self.dirty_groups.extend(&nexthop.groups);
        }
        made.push(Change::Nexthop { id: nexthop.id, spec });
    }

    fn rewrite_group(&mut self, id: u32, out: &mut Vec<Change>) {
        let Some(group) = self.groups.get(&id) else { return };
        let ready: Vec<_> = group.key.iter().filter(|(k, _)| self.spec(*k).dmac.is_some()).collect();
        let chosen = if ready.is_empty() { group.key.iter().collect() } else { ready };
        let weights: Vec<u32> = chosen.iter().map(|(_, w)| *w).collect();
        let members: Vec<u32> = ecmp::slots(&weights).into_iter().map(|i| self.nexthops[&chosen[i].0].id).collect();
        if group.published.as_ref() != Some(&members) {
            self.groups.get_mut(&id).expect("found above").published = Some(members.clone());
            out.push(Change::Group { id, members });
        }
    }

    fn drop_group(&mut self, id: u32, drops: &mut Vec<Change>) {
        let Some(group) = self.groups.remove(&id) else { return };
        self.group_ids.remove(&group.key);
        self.ids_group.give(id);
        drops.push(Change::DropGroup { id });
        for (key, _) in &group.key {
            let Some(nexthop) = self.nexthops.get_mut(key) else { continue };
            nexthop.groups.remove(&id);
            if nexthop.groups.is_empty() {
                let id = nexthop.id;
                self.nexthops.remove(key);
                self.nexthop_of.remove(&id);
                self.ids_nexthop.give(id);
                drops.push(Change::DropNexthop { id });
                self.release(*key);
            }
        }
    }

    fn release(&mut self, key: NexthopKey) {
        let neighbour = (key.ifindex, key.addr);
        let from = NexthopKey { route_mtu: 0, ..key };
        if self.nexthops.range(from..=NexthopKey { route_mtu: u32::MAX, ..key }).next().is_none() {
            self.requested.remove(&neighbour);
            self.released.push(neighbour);
        }
    }

    /// What to ask of the kernel now: neighbours that are needed and not known, or not kept; and those let go.
    pub fn resolve(&mut self, now_ms: u64) -> Vec<Resolve> {
        let mut out: Vec<Resolve> = std::mem::take(&mut self.released)
            .into_iter()
            .filter(|k| self.neighbours.get(k).is_some_and(|n| n.managed))
            .map(|(ifindex, addr)| Resolve { ifindex, addr, keep: false, anew: false })
            .collect();
        self.look_at_returned(now_ms);
        let urgent = std::mem::take(&mut self.request_now);
        let mut seen = HashSet::new();
        for key in self.nexthops.keys() {
            let neighbour = (key.ifindex, key.addr);
            if !seen.insert(neighbour) || !self.links.get(&key.ifindex).is_some_and(|l| l.up) {
                continue;
            }
            let known = self.neighbours.get(&neighbour);
            if known.is_some_and(|n| n.permanent) {
                continue;
            }
            if self.eager.contains_key(&key.ifindex) && known.is_none_or(|n| n.mac.is_none()) {
                let due = self.nudged.get(&neighbour).is_none_or(|t| now_ms.saturating_sub(*t) >= EAGER_INTERVAL_MS);
                if due {
                    self.nudged.insert(neighbour, now_ms);
                    self.requested.insert(neighbour, now_ms);
                    out.push(Resolve { ifindex: key.ifindex, addr: key.addr, keep: true, anew: true });
                }
                self.waits = true;
                continue;
            }
            let kept = known.is_some_and(|n| n.mac.is_some() && (n.managed || !self.kernel_manages));
            // A managed neighbour that does not answer is probed by the kernel; it is asked anew only when traffic wants it.
            let left_to_kernel = known.is_some_and(|n| n.managed) && !urgent.contains(&neighbour);
            let interval = if kept { REFRESH_INTERVAL_MS } else { RESOLVE_INTERVAL_MS };
            let due = self.requested.get(&neighbour).is_none_or(|t| now_ms.saturating_sub(*t) >= interval);
            if due && !left_to_kernel {
                self.requested.insert(neighbour, now_ms);
                out.push(Resolve { ifindex: key.ifindex, addr: key.addr, keep: true, anew: false });
            }
        }
        out
    }

    /// Links that are back begin to be eager, others have been long enough.
    fn look_at_returned(&mut self, now_ms: u64) {
        self.waits = false;
        for index in std::mem::take(&mut self.returned) {
            self.eager.insert(index, now_ms + EAGER_MS);
            self.nudged.retain(|(ifindex, _), _| *ifindex != index);
        }
        self.eager.retain(|_, until| now_ms < *until);
        let eager = &self.eager;
        self.nudged.retain(|(ifindex, _), _| eager.contains_key(ifindex));
    }

    /// [`Core::resolve`] is to be called again within [`EAGER_INTERVAL_MS`]: neighbours on a link that is back have not answered.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// NCs, and those of them without a way; groups; next hops, and those of them that are ready.
    pub fn counts(&self) -> Counts {
        Counts {
            ncs: self.ncs.len(),
            ncs_without_route: self.ncs.values().filter(|n| n.group.is_none()).count(),
            groups: self.groups.len(),
            nexthops: self.nexthops.len(),
            nexthops_ready: self.nexthops.keys().filter(|k| self.spec(**k).dmac.is_some()).count(),
            routes: self.fib.len(),
            neighbours: self.neighbours.len(),
        }
    }

    /// Every next hop with its port's name, for display.
    pub fn nexthops(&self) -> Vec<(NexthopSpec, String)> {
        let name = |index| self.links.get(&index).map_or_else(|| format!("if{index}"), |l| l.name.clone());
        self.nexthops.keys().map(|k| (self.spec(*k), name(k.ifindex))).collect()
    }

    /// The next hops of an NC with their weights, for display; empty if there is no way.
    pub fn path_of(&self, nc: IpAddr) -> Vec<(NexthopSpec, u32)> {
        let group = self.ncs.get(&nc).and_then(|n| n.group).and_then(|id| self.groups.get(&id));
        group.map_or_else(Vec::new, |g| g.key.iter().map(|(k, w)| (self.spec(*k), *w)).collect())
    }
}

/// How many of everything there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// NCs followed.
    pub ncs: usize,
    /// NCs to which the kernel has no usable route.
    pub ncs_without_route: usize,
    /// ECMP groups.
    pub groups: usize,
    /// Next hops.
    pub nexthops: usize,
    /// Next hops whose MAC address is known and whose port is up.
    pub nexthops_ready: usize,
    /// Routes in the mirror of the FIB.
    pub routes: usize,
    /// Neighbours in the mirror of the kernel's table.
    pub neighbours: usize,
}
