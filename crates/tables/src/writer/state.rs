// SPDX-License-Identifier: Apache-2.0
//! What the writer remembers outside table memory: prefixes, VMs by MAC, reference counts, free ids. All of it but the
//! prefixes can be told from table memory again (`recover`).

use crate::fxmap::FxSet;
use crate::routes::{Routes4, Routes6};
use crate::smallmap::SmallMap;
use crate::tree::Top;
use abi::*;
use std::net::{IpAddr, Ipv4Addr};

/// Numbers that are given out and taken back.
#[derive(Clone, Debug)]
pub(crate) struct Ids {
    next: u32,
    free: Vec<u32>,
    /// As it was at `begin`, and what was taken since of what was free.
    next_before: u32,
    taken: Vec<u32>,
}

impl Ids {
    pub(crate) fn new(first: u32) -> Ids {
        Ids::of(first, Vec::new())
    }

    fn of(next: u32, free: Vec<u32>) -> Ids {
        Ids { next, free, next_before: next, taken: Vec::new() }
    }

    /// What is taken from now on may be taken back at once, as long as nothing is given back meanwhile.
    pub(crate) fn begin(&mut self) {
        self.next_before = self.next;
        self.taken.clear();
    }

    /// All is as it was at `begin`.
    pub(crate) fn take_back(&mut self) {
        self.next = self.next_before;
        self.free.extend(self.taken.drain(..).rev());
    }

    /// Everything that decides which numbers are given out.
    #[cfg(test)]
    pub(crate) fn content(&self) -> (u32, Vec<u32>) {
        (self.next, self.free.clone())
    }

    /// Everything below `next` that `used` does not say is free.
    pub(crate) fn attach(first: u32, next: u32, used: impl Fn(u32) -> bool) -> Ids {
        Ids::of(next.max(first), (first..next).rev().filter(|id| !used(*id)).collect())
    }

    pub(crate) fn take(&mut self) -> u32 {
        let Some(id) = self.free.pop() else {
            self.next += 1;
            return self.next - 1;
        };
        self.taken.push(id);
        id
    }

    pub(crate) fn free(&mut self, id: u32) {
        self.free.push(id);
    }

    /// The numbers that the next `n` calls of `take` give are below this.
    pub(crate) fn bound(&self, n: u32) -> u32 {
        self.next + n.saturating_sub(self.free.len() as u32)
    }
}

/// Ids of VMs or VPCs. An id is the place of a counting cell, eight cells a line. So that an engine can ask for a packet's
/// cell before it has found its VM or VPC, the hash that finds the entry chooses among the eight ids of a group
/// (`Root::vm_groups`, `tenant_groups`); only if none of them is free, the id comes from behind the groups. Nothing
/// depends on which id it is.
#[derive(Debug)]
pub(crate) struct CellIds {
    kind: CellKind,
    /// Free ids of each group, a bit each.
    groups: Vec<u8>,
    /// Groups below this are full.
    open: usize,
    rest: Ids,
    /// Ids in use, by chunk.
    used: Vec<u32>,
    /// Ids taken since `begin`.
    taken: Vec<u32>,
    /// Groups and the ids behind them as they were at `begin`, if their number has changed since.
    before: Option<(Vec<u8>, Ids)>,
}

/// What has ids in groups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellKind {
    /// log2 of the ids in a chunk.
    shift: u32,
    /// Ids at most.
    max: u32,
    /// Ids in use in a group of eight on average, times ten, when there are as many as expected.
    tenths: u64,
}

impl CellKind {
    pub(crate) const VMS: CellKind = CellKind { shift: VM_CHUNK_SHIFT, max: VMS_MAX, tenths: 63 };
    pub(crate) const TENANTS: CellKind = CellKind { shift: TENANT_CHUNK_SHIFT, max: TENANTS_MAX, tenths: 70 };
}

impl CellIds {
    pub(crate) fn new(kind: CellKind) -> CellIds {
        let used = vec![0; (kind.max >> kind.shift) as usize];
        CellIds { kind, groups: Vec::new(), open: 0, rest: Ids::new(1), used, taken: Vec::new(), before: None }
    }

    /// What is taken from now on may be taken back at once, as long as nothing is given back meanwhile.
    pub(crate) fn begin(&mut self) {
        self.taken.clear();
        self.before = None;
        self.rest.begin();
    }

    /// All is as it was at `begin`.
    pub(crate) fn take_back(&mut self) {
        self.rest.take_back();
        for id in std::mem::take(&mut self.taken) {
            *self.used_in(id) -= 1;
            if let Some(group) = self.groups.get_mut(id as usize / 8) {
                *group |= 1 << (id % 8);
                self.open = self.open.min(id as usize / 8);
            }
        }
        if let Some((groups, rest)) = self.before.take() {
            (self.groups, self.rest, self.open) = (groups, rest, 0);
            self.rest.take_back();
        }
    }

    /// Everything that decides which numbers are given out.
    #[cfg(test)]
    pub(crate) fn content(&self) -> (Vec<u8>, (u32, Vec<u32>), Vec<u32>) {
        (self.groups.clone(), self.rest.content(), self.used.clone())
    }

    /// As an earlier writer left them.
    pub(crate) fn attach(kind: CellKind, groups: u32, used: &FxSet<u32>) -> CellIds {
        let groups = (groups as usize).min(kind.max as usize / 8);
        let mut ids = CellIds::new(kind);
        ids.groups = vec![0xff; groups];
        let next = used.iter().max().map_or(1, |m| m + 1).max(groups as u32 * 8).max(1);
        if let Some(first) = ids.groups.first_mut() {
            *first &= !1;
        }
        ids.rest = Ids::attach((groups as u32 * 8).max(1), next, |id| used.contains(&id));
        for id in used {
            *ids.used_in(*id) += 1;
            if let Some(group) = ids.groups.get_mut(*id as usize / 8) {
                *group &= !(1 << (id % 8));
            }
        }
        ids
    }

    fn used_in(&mut self, id: u32) -> &mut u32 {
        let chunk = (id >> self.kind.shift) as usize % self.used.len();
        &mut self.used[chunk]
    }

    /// Prepares for so many in all. The number of groups changes seldom, for what is there keeps ids of the old number.
    pub(crate) fn expect(&mut self, total: u64) {
        let wanted = (total * 10).div_ceil(self.kind.tenths).next_multiple_of(1 << (self.kind.shift - 3));
        let wanted = wanted.min(u64::from(self.kind.max) / 8) as usize;
        let old = self.groups.len();
        if total == 0 || wanted * 2 <= old * 3 {
            return;
        }
        self.before.get_or_insert_with(|| (self.groups.clone(), self.rest.clone()));
        self.groups.resize(wanted, 0xff);
        self.groups[0] &= !1;
        let first = wanted as u32 * 8;
        let (below, above) = self.rest.free.iter().partition(|id| **id < first);
        let below: Vec<u32> = below;
        // What was given out from behind the old groups stays in use.
        for id in (old as u32 * 8).max(1)..self.rest.next.min(first) {
            self.groups[id as usize / 8] &= !(1 << (id % 8));
        }
        below.iter().for_each(|id| self.groups[*id as usize / 8] |= 1 << (id % 8));
        self.rest = Ids::of(self.rest.next.max(first), above);
        self.open = 0;
    }

    /// Number of groups.
    pub(crate) fn groups(&self) -> u32 {
        self.groups.len() as u32
    }

    pub(crate) fn take(&mut self, hash: u64) -> u32 {
        let id = self.choose(hash);
        *self.used_in(id) += 1;
        self.taken.push(id);
        id
    }

    fn choose(&mut self, hash: u64) -> u32 {
        let own = bucket_of(hash, self.groups()) as usize;
        if self.groups.get(own).is_some_and(|g| *g != 0) {
            return self.take_of(own);
        }
        if self.rest.bound(1) <= self.kind.max {
            return self.rest.take();
        }
        while self.groups.get(self.open).is_some_and(|g| *g == 0) {
            self.open += 1;
        }
        match self.groups.get(self.open) {
            Some(_) => self.take_of(self.open),
            // Beyond all limits: whoever asked will be refused.
            None => self.rest.take(),
        }
    }

    fn take_of(&mut self, group: usize) -> u32 {
        let free = &mut self.groups[group];
        let bit = free.trailing_zeros();
        *free &= *free - 1;
        group as u32 * 8 + bit
    }

    pub(crate) fn free(&mut self, id: u32) {
        *self.used_in(id) -= 1;
        match self.groups.get_mut(id as usize / 8) {
            Some(group) => {
                *group |= 1 << (id % 8);
                self.open = self.open.min(id as usize / 8);
            }
            None => self.rest.free(id),
        }
    }

    /// All ids in use are below this.
    pub(crate) fn bound(&self) -> u32 {
        self.rest.bound(0)
    }

    /// Whether a chunk has ids in use.
    pub(crate) fn uses_chunk(&self, chunk: u32) -> bool {
        self.used[chunk as usize % self.used.len()] > 0
    }
}

/// An NC.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NcState {
    pub id: NcId,
    /// VPCs that list it or have VMs on it.
    pub tenants: u32,
}

/// A VM.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Vm {
    pub id: VmId,
    pub nc: NcId,
    /// First IPv4 address, 0 if none.
    pub v4: u32,
    /// Line of its meter block, 0 if none.
    pub meter: LineNo,
    /// All other addresses.
    pub more: Option<Box<[IpAddr]>>,
}

impl Vm {
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let first = (self.v4 != 0).then(|| IpAddr::V4(Ipv4Addr::from_bits(self.v4)));
        first.into_iter().chain(self.more.iter().flat_map(|m| m.iter().copied()))
    }

    /// Splits addresses into the first IPv4 one and the rest.
    pub(crate) fn split(addresses: impl Iterator<Item = IpAddr>) -> (u32, Option<Box<[IpAddr]>>) {
        let mut v4 = 0;
        let mut more = Vec::new();
        for a in addresses {
            match a {
                IpAddr::V4(a) if v4 == 0 => v4 = a.to_bits(),
                _ => more.push(a),
            }
        }
        (v4, (!more.is_empty()).then(|| more.into_boxed_slice()))
    }
}

/// A VPC.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone, PartialEq))]
pub(crate) struct TenantState {
    /// VPC id: where its record and its counters are.
    pub id: VpcId,
    /// The roots word as published.
    pub roots: u64,
    pub gateway_mac: u64,
    pub gateways: Vec<IpAddr>,
    pub meter: LineNo,
    pub commits: u64,
    /// The prefixes below are what the trees hold; false after an attach, until the whole set is given again.
    pub routes_known: bool,
    pub routes4: Routes4,
    pub routes6: Routes6,
    /// Prefix lengths that may be in use.
    pub lengths: [[u64; 3]; 2],
    /// Lines of the trees: IPv4, IPv6.
    pub tree_lines: [u32; 2],
    /// VNIs of peers that routes lead to, and by how many routes.
    pub peers: SmallMap<Vni, u32>,
    /// VMs by MAC.
    pub vms: SmallMap<u64, Vm>,
    /// VMs on each NC id, sorted by id.
    pub members: Vec<(NcId, u32)>,
    /// NC ids that may send beside those.
    pub extra: Vec<NcId>,
}

impl TenantState {
    pub(crate) fn top(&self, family: usize) -> Top {
        Top::of_root((self.roots >> (32 * family)) as u32)
    }

    pub(crate) fn simple(&self, family: usize) -> bool {
        (self.roots >> (32 * family)) as u32 & abi::ROOT_SIMPLE != 0
    }

    pub(crate) fn routes_len(&self) -> usize {
        self.routes4.len() + self.routes6.len()
    }

    /// NC ids that may send: those of its VMs and the extra ones.
    pub(crate) fn may_send(&self, nc: NcId) -> bool {
        self.members.binary_search_by_key(&nc, |m| m.0).is_ok() || self.extra.contains(&nc)
    }

    /// Changes the number of VMs on an NC.
    pub(crate) fn count_vm(&mut self, nc: NcId, by: i32) {
        match self.members.binary_search_by_key(&nc, |m| m.0) {
            Ok(at) => {
                self.members[at].1 = self.members[at].1.saturating_add_signed(by);
                if self.members[at].1 == 0 {
                    self.members.remove(at);
                }
            }
            Err(at) => self.members.insert(at, (nc, by.max(0) as u32)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vm_ids_are_where_their_address_looks() {
        let mut ids = CellIds::new(CellKind::VMS);
        let hash = |i: u64| hash1(i, 7);
        ids.expect(50_000);
        let groups = ids.groups();
        assert_eq!(groups, 8192);
        let mut taken: FxSet<u32> = FxSet::default();
        let in_bucket = (0..50_000u64)
            .filter(|i| {
                let id = ids.take(hash(*i));
                assert!(id != 0 && taken.insert(id), "id {id} twice");
                id / 8 == bucket_of(hash(*i), groups)
            })
            .count();
        assert!(in_bucket > 46_000, "{in_bucket}");
        // A small step leaves the groups alone, a large one keeps what is taken.
        ids.expect(51_000);
        assert_eq!(ids.groups(), groups);
        ids.expect(200_000);
        assert!(ids.groups() > groups);
        for i in 50_000..200_000u64 {
            assert!(taken.insert(ids.take(hash(i))));
        }
        let mut back: Vec<u32> = taken.iter().copied().filter(|id| id % 3 == 0).collect();
        back.iter().for_each(|id| ids.free(*id));
        taken.retain(|id| id % 3 != 0);
        // Whoever takes over gives out what is free, and nothing else.
        let mut other = CellIds::attach(CellKind::VMS, ids.groups(), &taken);
        for ids in [&mut ids, &mut other] {
            let again: FxSet<u32> = (0..back.len() as u64).map(|i| ids.take(hash(i))).collect();
            assert_eq!(again.len(), back.len());
            assert!(again.is_disjoint(&taken) && !again.contains(&0));
        }
        back.clear();
    }

    /// Which ids there are, as plain sets.
    #[derive(Clone)]
    struct Plain {
        kind: CellKind,
        groups: u32,
        used: std::collections::BTreeSet<u32>,
        /// Free ones behind the groups, the last of which is given out next; and the first that was never given out.
        rest: (u32, Vec<u32>),
    }

    impl Plain {
        fn new(kind: CellKind) -> Plain {
            Plain { kind, groups: 0, used: Default::default(), rest: (1, Vec::new()) }
        }

        fn lowest_free(&self, groups: std::ops::Range<u32>) -> Option<u32> {
            (groups.start * 8..groups.end * 8).find(|id| *id != 0 && !self.used.contains(id))
        }

        fn take(&mut self, hash: u64) -> u32 {
            let own = bucket_of(hash, self.groups);
            let own = if self.groups > 0 { self.lowest_free(own..own + 1) } else { None };
            let id = own.unwrap_or_else(|| {
                let full = self.rest.1.is_empty() && self.rest.0 >= self.kind.max;
                let elsewhere = if full { self.lowest_free(0..self.groups) } else { None };
                elsewhere.or_else(|| self.rest.1.pop()).unwrap_or_else(|| {
                    self.rest.0 += 1;
                    self.rest.0 - 1
                })
            });
            assert!(self.used.insert(id));
            id
        }

        fn free(&mut self, id: u32) {
            assert!(self.used.remove(&id));
            if id >= self.groups * 8 {
                self.rest.1.push(id);
            }
        }

        fn expect(&mut self, total: u64) {
            let chunk = (1u64 << self.kind.shift) / 8;
            let wanted = (total * 10).div_ceil(self.kind.tenths).div_ceil(chunk) * chunk;
            let wanted = wanted.min(u64::from(self.kind.max) / 8) as u32;
            if total > 0 && f64::from(wanted) > 1.5 * f64::from(self.groups) {
                self.groups = wanted;
                self.rest.0 = self.rest.0.max(wanted * 8);
                self.rest.1.retain(|id| *id >= wanted * 8);
            }
        }

        fn check(&self, ids: &CellIds) {
            let (groups, rest, used) = ids.content();
            let bits = |g: u32| {
                (0..8).filter(|b| g * 8 + b != 0 && !self.used.contains(&(g * 8 + b))).fold(0u8, |n, b| n | 1 << b)
            };
            assert_eq!((groups, rest), ((0..self.groups).map(bits).collect(), self.rest.clone()));
            let chunks = self.kind.max >> self.kind.shift;
            let counts: Vec<u32> = (0..chunks)
                .map(|c| self.used.iter().filter(|id| **id >> self.kind.shift == c).count() as u32)
                .collect();
            assert!((0..chunks).all(|c| ids.uses_chunk(c) == (counts[c as usize] > 0)));
            assert_eq!((used, ids.groups(), ids.bound()), (counts, self.groups, self.rest.0));
        }
    }

    #[test]
    fn random_ids_are_those_of_plain_sets() {
        random_ids("ids", 30);
    }

    #[test]
    fn a_few_random_ids_are_those_of_plain_sets() {
        random_ids("few ids", 2);
    }

    /// So few ids that all are given out now and then.
    fn random_ids(what: &str, rounds: u32) {
        use rand::RngExt;
        let (_seed, mut rng) = crate::testing::seeded(what);
        let kind = CellKind { shift: 4, max: 256, tenths: 63 };
        let mut full = 0;
        for _ in 0..rounds {
            let (mut ids, mut plain) = (CellIds::new(kind), Plain::new(kind));
            let mut begun: Option<Plain> = None;
            for _ in 0..400 {
                match rng.random_range(0..20) {
                    0 => {
                        // What is expected is told before anything is taken.
                        ids.begin();
                        begun = Some(plain.clone());
                        if rng.random() {
                            let total = rng.random_range(0..160);
                            ids.expect(total);
                            plain.expect(total);
                        }
                    }
                    1 => {
                        if let Some(before) = begun.take() {
                            ids.take_back();
                            plain = before;
                            ids.begin();
                        }
                    }
                    2 if begun.is_none() => {
                        let total = rng.random_range(0..160);
                        ids.expect(total);
                        plain.expect(total);
                    }
                    3..=8 if begun.is_none() && !plain.used.is_empty() => {
                        let id = *plain.used.iter().nth(rng.random_range(0..plain.used.len())).unwrap();
                        ids.free(id);
                        plain.free(id);
                    }
                    9 if begun.is_some() => begun = None,
                    _ if plain.used.len() < 255 => {
                        let hash = rng.random();
                        assert_eq!(ids.take(hash), plain.take(hash));
                        full += u32::from(plain.used.len() == 255);
                    }
                    _ => {}
                }
                plain.check(&ids);
            }
            // Whoever takes over knows what is in use, and gives the lowest ones behind the groups out first.
            let used: FxSet<u32> = plain.used.iter().copied().collect();
            let mut ids = CellIds::attach(kind, plain.groups, &used);
            plain.rest.0 = plain.used.last().map_or(1, |m| m + 1).max(plain.groups * 8).max(1);
            plain.rest.1 =
                ((plain.groups * 8).max(1)..plain.rest.0).rev().filter(|id| !plain.used.contains(id)).collect();
            plain.check(&ids);
            while plain.used.len() < 255 {
                let hash = rng.random();
                assert_eq!(ids.take(hash), plain.take(hash));
            }
            plain.check(&ids);
            // Beyond all there are: so many are refused by whoever asked.
            assert_eq!(ids.take(0), 256);
            full += 1;
        }
        assert!(full >= rounds, "{full}");
        let garbage = CellIds::attach(kind, u32::MAX, &FxSet::default());
        assert_eq!(garbage.groups(), 32, "no more groups than ids");
    }

    #[test]
    fn ids_come_back() {
        let mut ids = Ids::new(1);
        assert_eq!((ids.take(), ids.take(), ids.take()), (1, 2, 3));
        ids.free(2);
        assert_eq!(ids.bound(1), 4);
        assert_eq!(ids.bound(2), 5);
        assert_eq!((ids.take(), ids.take()), (2, 4));
        let mut ids = Ids::attach(1, 6, |id| id == 2 || id == 5);
        let mut all: Vec<_> = (0..4).map(|_| ids.take()).collect();
        all.sort_unstable();
        assert_eq!(all, [1, 3, 4, 6]);
    }
    /// Step by step: groups of eight, what lies behind them, and what is given back.
    #[test]
    fn ids_are_given_out_group_by_group() {
        let kind = CellKind { shift: 4, max: 64, tenths: 50 };
        let mut ids = CellIds::new(kind);
        // No groups yet: from 1 on, in order.
        assert_eq!([ids.take(5), ids.take(6), ids.take(7)], [1, 2, 3]);
        assert_eq!((ids.groups(), ids.bound(), ids.uses_chunk(0), ids.uses_chunk(1)), (0, 4, true, false));
        // For ten, two groups: what was given out stays, and 2 is free again.
        ids.free(2);
        ids.begin();
        ids.expect(10);
        assert_eq!((ids.groups(), ids.content()), (2, (vec![0b1111_0100, 0xff], (16, vec![]), vec![2, 0, 0, 0])));
        let bucket = |group: u64| group << 63;
        assert_eq!([ids.take(bucket(0)), ids.take(bucket(0)), ids.take(bucket(1))], [2, 4, 8]);
        ids.take_back();
        assert_eq!((ids.groups(), ids.content()), (0, (vec![], (4, vec![2]), vec![2, 0, 0, 0])));
        ids.begin();
        ids.expect(10);
        let all: Vec<u32> = (0..14).map(|_| ids.take(bucket(1))).collect();
        assert_eq!(all, [8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21], "the group, then behind all groups");
        assert_eq!(ids.content().2, [10, 6, 0, 0], "by chunks of sixteen");
        ids.free(9);
        ids.free(17);
        assert_eq!([ids.take(bucket(1)), ids.take(bucket(1))], [9, 17]);
        // When there are no more behind, the lowest group that has one gives it.
        let rest: Vec<u32> = (0..42).map(|_| ids.take(bucket(1))).collect();
        assert_eq!(rest, (22..64).collect::<Vec<_>>());
        ids.begin();
        assert_eq!([0; 6].map(|_| ids.take(bucket(1))), [2, 4, 5, 6, 7, 64]);
        ids.take_back();
        ids.begin();
        assert_eq!([0; 5].map(|_| ids.take(bucket(1))), [2, 4, 5, 6, 7], "the same again");
        assert_eq!(ids.take(bucket(1)), 64, "beyond all there are");
        ids.free(12);
        assert_eq!((ids.take(bucket(0)), ids.bound()), (12, 65));
        // The first id behind new groups stays behind them; whoever takes over finds the lowest group that has one.
        let mut ids = CellIds::new(kind);
        (0..20).for_each(|_| _ = ids.take(0));
        [3, 15, 16, 17].iter().for_each(|id| ids.free(*id));
        ids.expect(10);
        assert_eq!(ids.content(), (vec![0b1000, 0b1000_0000], (21, vec![16, 17]), vec![13, 3, 0, 0]));
        let all_but = |free: u32| (1..64).filter(|id| *id != free).collect::<FxSet<u32>>();
        assert_eq!([2, 9].map(|free| CellIds::attach(kind, 2, &all_but(free)).take(bucket(1))), [2, 9]);
        assert_eq!(CellIds::attach(kind, 2, &all_but(40)).take(bucket(1)), 40);
        // So many more that the groups are made anew, by half and more; never more than there are ids.
        let mut ids = CellIds::new(kind);
        ids.expect(0);
        let mut groups = [1u64, 10, 11, 15, 16, 20, 21, 1000, 5].map(|n| (ids.expect(n), ids.groups()).1).into_iter();
        assert!([2, 2, 4, 4, 4, 4, 4, 8, 8].into_iter().all(|n| groups.next() == Some(n)));
        // Whoever takes over.
        let used: FxSet<u32> = [1, 3, 17, 19].into_iter().collect();
        let ids = CellIds::attach(kind, 2, &used);
        assert_eq!((ids.content(), ids.bound()), ((vec![0b1111_0100, 0xff], (20, vec![18, 16]), vec![2, 2, 0, 0]), 20));
        let none = CellIds::attach(kind, 0, &FxSet::default());
        assert_eq!((none.content(), none.bound()), ((vec![], (1, vec![]), vec![0; 4]), 1));
    }

    #[test]
    fn plain_ids_are_taken_back() {
        let mut ids = Ids::new(5);
        assert_eq!([ids.take(), ids.take(), ids.take()], [5, 6, 7]);
        ids.free(5);
        ids.free(6);
        let before = ids.content();
        assert_eq!((before.clone(), [0, 1, 2, 3].map(|n| ids.bound(n))), ((8, vec![5, 6]), [8, 8, 8, 9]));
        for _ in 0..2 {
            ids.begin();
            assert_eq!([ids.take(), ids.take(), ids.take()], [6, 5, 8]);
            ids.take_back();
            assert_eq!(ids.content(), before);
        }
        assert_eq!(Ids::attach(3, 3, |_| false).content(), (3, vec![]));
        assert_eq!(Ids::attach(3, 2, |_| false).content(), (3, vec![]));
        assert_eq!(Ids::attach(1, 6, |id| id == 2 || id == 5).content(), (6, vec![4, 3, 1]));
    }

    #[test]
    fn vms_are_counted_by_their_nc() {
        let mut t = TenantState { extra: vec![NcId(9)], ..Default::default() };
        for (nc, by, want) in [
            (5, 1, &[(5, 1)][..]),
            (3, 2, &[(3, 2), (5, 1)]),
            (5, 1, &[(3, 2), (5, 2)]),
            (3, -1, &[(3, 1), (5, 2)]),
            (3, -1, &[(5, 2)]),
            (7, -1, &[(5, 2), (7, 0)]),
        ] {
            t.count_vm(NcId(nc), by);
            assert_eq!(t.members.iter().map(|(nc, vms)| (nc.0, *vms)).collect::<Vec<_>>(), want);
        }
        assert_eq!([3, 5, 7, 9, 4].map(|nc| t.may_send(NcId(nc))), [false, true, true, true, false]);
        t.roots = (5 << 26 | 77) | (3 << 26 | 1 << 30 | 99) << 32;
        assert_eq!((t.top(0), t.top(1)), (Top { line: LineNo(77), levels: 5 }, Top { line: LineNo(99), levels: 3 }));
        assert_eq!((t.simple(0), t.simple(1)), (false, true));
        t.routes4.insert((0, 0), 1);
        t.routes6.insert((0, 0), 1);
        t.routes6.insert((0, 1), 1);
        assert_eq!(t.routes_len(), 3);
    }

    #[test]
    fn the_first_ipv4_address_of_a_vm_is_apart() {
        let (a, b, c): (IpAddr, IpAddr, IpAddr) =
            ([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), "2001::1".parse().unwrap());
        for (all, v4, more) in [
            (vec![], 0, vec![]),
            (vec![a], 0x0a00_0001, vec![]),
            (vec![c, b, a], 0x0a00_0002, vec![c, a]),
            (vec![c], 0, vec![c]),
        ] {
            let split = Vm::split(all.iter().copied());
            assert_eq!((split.0, split.1.as_deref().unwrap_or_default()), (v4, &more[..]));
            assert_eq!(split.1.is_some(), !more.is_empty());
            let vm = Vm { id: VmId(1), nc: NcId(1), v4, meter: LineNo(0), more: split.1 };
            let back: Vec<IpAddr> = vm.addresses().collect();
            assert_eq!(back.len(), all.len());
            assert!(all.iter().all(|a| back.contains(a)) && (v4 == 0 || back[0].is_ipv4()));
        }
    }
}
