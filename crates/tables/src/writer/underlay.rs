// SPDX-License-Identifier: Apache-2.0
//! Underlay next hops and ECMP groups, as the watcher of the kernel's routes reports them. Not part of commits: each
//! change is a word or a line of its own, visible at once.

use super::Writer;
use crate::arena::Block;
use crate::fxmap::FxMap;
use abi::*;
use std::io;
use std::net::IpAddr;

/// A next hop, by its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NexthopId(pub LineNo);

/// An ECMP group, by its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub LineNo);

/// An underlay neighbour on a port. The pair (interface, address) names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NexthopSpec {
    /// Address of the neighbour.
    pub addr: IpAddr,
    /// Egress interface.
    pub ifindex: IfIndex,
    /// MAC address of the neighbour; None while it is unresolved or the link is down.
    pub dmac: Option<u64>,
    /// MAC address of the port.
    pub smac: u64,
    /// MTU of the port.
    pub mtu: u16,
}

#[derive(Default)]
pub(super) struct UnderlayState {
    /// The neighbour of each next hop. Several may name the same one, with different MTUs.
    nexthops: FxMap<NexthopId, (IfIndex, IpAddr)>,
    /// The first next hop of each neighbour.
    by_neighbour: FxMap<(IfIndex, IpAddr), NexthopId>,
    /// Members of each group.
    groups: FxMap<GroupId, Vec<NexthopId>>,
}

impl UnderlayState {
    pub(super) fn insert_nexthop(&mut self, ifindex: IfIndex, addr: IpAddr, id: NexthopId) {
        self.nexthops.insert(id, (ifindex, addr));
        self.by_neighbour.entry((ifindex, addr)).or_insert(id);
    }
    pub(super) fn insert_group(&mut self, id: GroupId, members: Vec<NexthopId>) {
        self.groups.insert(id, members);
    }
}

const MAC_MASK: u64 = (1 << 48) - 1;

impl Writer {
    /// Creates the next hop (interface, address), or brings it up to date: each word by one store.
    pub fn set_nexthop(&mut self, spec: &NexthopSpec) -> io::Result<NexthopId> {
        let known = self.underlay.by_neighbour.get(&(spec.ifindex, spec.addr)).copied();
        self.put_nexthop(known, spec)
    }

    /// Creates a next hop of its own (`None`), beside others of the same neighbour that have another MTU, or brings one
    /// up to date. The neighbour of a next hop cannot change: another one is another next hop.
    pub fn put_nexthop(&mut self, id: Option<NexthopId>, spec: &NexthopSpec) -> io::Result<NexthopId> {
        let dmac = spec.dmac.map_or(0, |mac| mac & MAC_MASK | NEXTHOP_READY);
        let smac_mtu = spec.smac & MAC_MASK | u64::from(spec.mtu) << 48;
        let neighbour = (spec.ifindex, spec.addr);
        if let Some(id) = id.filter(|id| self.underlay.nexthops.get(id) == Some(&neighbour)) {
            let line = self.store.lines.at(id.0);
            // Not ready first, ready last: a reader must not send with half of a change.
            if dmac & NEXTHOP_READY == 0 {
                line.set(0, dmac);
            }
            line.set(1, smac_mtu);
            line.set(0, dmac);
            return Ok(id);
        }
        let line = self.store.arena.alloc(1)?;
        let (hi, lo) = match spec.addr {
            IpAddr::V4(a) => (0, u64::from(a.to_bits())),
            IpAddr::V6(a) => super::halves(a.to_bits()),
        };
        self.store.lines.fill(line, &[dmac, smac_mtu, u64::from(spec.ifindex), hi, lo, 0, 0, 0]);
        self.underlay.insert_nexthop(spec.ifindex, spec.addr, NexthopId(line));
        Ok(NexthopId(line))
    }

    /// Removes a next hop that no group contains any more; its line is free after a grace period. False if some group
    /// still contains it or it does not exist.
    pub fn remove_nexthop(&mut self, id: NexthopId) -> bool {
        if self.underlay.groups.values().any(|m| m.contains(&id)) {
            return false;
        }
        let Some(neighbour) = self.underlay.nexthops.remove(&id) else {
            return false;
        };
        if self.underlay.by_neighbour.get(&neighbour) == Some(&id) {
            self.underlay.by_neighbour.remove(&neighbour);
            if let Some((other, _)) = self.underlay.nexthops.iter().find(|(_, n)| **n == neighbour) {
                self.underlay.by_neighbour.insert(neighbour, *other);
            }
        }
        self.store.lines.at(id.0).set(0, 0);
        self.pending.blocks.push(Block { line: id.0, lines: 1 });
        true
    }

    /// Every next hop.
    pub fn nexthops(&self) -> Vec<(NexthopId, NexthopSpec)> {
        let spec = |id: &NexthopId, (ifindex, addr): &(IfIndex, IpAddr)| {
            let line = self.store.lines.at(id.0);
            let dmac = line.word(0);
            let ready = dmac & NEXTHOP_READY != 0;
            NexthopSpec {
                addr: *addr,
                ifindex: *ifindex,
                dmac: ready.then_some(dmac & MAC_MASK),
                smac: line.word(1) & MAC_MASK,
                mtu: (line.word(1) >> 48) as u16,
            }
        };
        let mut all: Vec<_> = self.underlay.nexthops.iter().map(|(id, k)| (*id, spec(id, k))).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }

    /// Creates a group (`None`) or changes one in place, at most 15 members; a member that is given several times has so
    /// much more weight. Members that stay keep their place, so that as few flows as possible move; a place that becomes
    /// free is filled from the end before the count goes down.
    pub fn set_group(&mut self, group: Option<GroupId>, members: &[NexthopId]) -> io::Result<GroupId> {
        let mut wanted: Vec<NexthopId> = members.to_vec();
        wanted.truncate(GROUP_NEXTHOPS_MAX as usize);
        let id = match group.filter(|g| self.underlay.groups.contains_key(g)) {
            Some(id) => id,
            None => {
                let line = self.store.arena.alloc(1)?;
                self.store.lines.zero(line, 1);
                let id = GroupId(line);
                self.underlay.groups.insert(id, Vec::new());
                id
            }
        };
        self.change_all(|w| w.store_members(id, wanted));
        Ok(id)
    }

    /// Changes the members of a group in place.
    fn store_members(&mut self, id: GroupId, wanted: Vec<NexthopId>) {
        let line = self.store.lines.at(id.0);
        let mut now = self.underlay.groups.remove(&id).unwrap_or_default();
        // What is wanted and not there yet; of what is there, which places stay.
        let mut fresh = wanted;
        fresh.reverse();
        let mut stays: Vec<bool> = now
            .iter()
            .map(|m| match fresh.iter().rposition(|f| f == m) {
                Some(i) => fresh.remove(i) == *m,
                None => false,
            })
            .collect();
        let mut at = 0;
        while at < now.len() {
            if stays[at] {
                at += 1;
                continue;
            }
            match fresh.pop() {
                Some(new) => {
                    now[at] = new;
                    stays[at] = true;
                    line.set_half(1 + at, new.0.into());
                }
                None => {
                    now.swap_remove(at);
                    stays.swap_remove(at);
                    if at < now.len() {
                        line.set_half(1 + at, now[at].0.into());
                    }
                    line.set_half(0, now.len() as u32);
                }
            }
        }
        for new in fresh.into_iter().rev() {
            line.set_half(1 + now.len(), new.0.into());
            now.push(new);
            line.set_half(0, now.len() as u32);
        }
        self.underlay.groups.insert(id, now);
    }

    /// Removes a group that no NC is bound to. False if one is, or it does not exist.
    pub fn remove_group(&mut self, id: GroupId) -> bool {
        let used = self.ncs.values().any(|nc| self.nc_group(nc.id) == Some(id));
        if used || self.internet_uses(id) || self.underlay.groups.remove(&id).is_none() {
            return false;
        }
        self.pending.blocks.push(Block { line: id.0, lines: 1 });
        true
    }

    /// Every group and its members.
    pub fn groups(&self) -> Vec<(GroupId, Vec<NexthopId>)> {
        let mut all: Vec<_> = self.underlay.groups.iter().map(|(g, m)| (*g, m.clone())).collect();
        all.sort_unstable();
        all
    }

    /// Leads an NC over a group, or nowhere (the kernel has no route). One store. False if the NC is not known.
    pub fn bind_nc_group(&mut self, nc: IpAddr, group: Option<GroupId>) -> bool {
        let Some(state) = self.ncs.get(&super::nc_key(nc)) else {
            return false;
        };
        let (line, at) = self.nc_word(state.id);
        let line = self.store.lines.at(line);
        let other = line.word(at) & !(u64::from(ROOT_LINE_MASK) << NC_GROUP_SHIFT);
        let word = other | group.map_or(0, |g| u64::from(g.0)) << NC_GROUP_SHIFT;
        self.change_all(|_| line.set(at, word));
        true
    }

    /// The group that leads to an NC.
    fn nc_group(&self, id: NcId) -> Option<GroupId> {
        let (line, at) = self.nc_word(id);
        let line = (self.store.lines.at(line).word(at) >> NC_GROUP_SHIFT) as u32 & ROOT_LINE_MASK;
        (line != 0).then_some(GroupId(LineNo(line)))
    }

    /// Every NC, its id and the group that leads to it.
    pub fn ncs(&self) -> Vec<(IpAddr, NcId, Option<GroupId>)> {
        let mut all: Vec<_> = self.ncs.values().map(|nc| (self.nc_addr(nc.id), nc.id, self.nc_group(nc.id))).collect();
        all.sort_unstable_by_key(|(a, _, _)| *a);
        all
    }
}
