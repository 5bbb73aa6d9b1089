// SPDX-License-Identifier: Apache-2.0
//! The whole of table memory, read word by word as its layout says, held against the model: every entry is there and nothing else, each
//! in a bucket where its hash looks; and every number that the writer remembers or tells is the number that is there.
//!
//! Nothing may wait for a grace period meanwhile.

use super::Writer;
use crate::tests::model::{halves, Model};
use crate::tree::{walk_all, Top};
use abi::*;
use memory::root;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;

/// What the model does not know.
#[derive(Clone, Default)]
pub(crate) struct Expected {
    /// POLICY words of VPCs that have one.
    pub policies: BTreeMap<Vni, u64>,
    /// Accepted commits that changed each VPC.
    pub commits: BTreeMap<Vni, u64>,
    /// Accepted commits.
    pub all: u64,
    /// Words that engines count in: (line, word) and what stands there.
    pub counted: BTreeMap<(u32, usize), u64>,
}

/// Buckets of a table: lines each, slots, and the half word that leads on.
struct Shape {
    name: &'static str,
    root: usize,
    lines: u32,
    slots: usize,
    next: usize,
}

const fn words(name: &'static str, root: usize) -> Shape {
    Shape { name, root, lines: 1, slots: 7, next: 14 }
}

const TENANTS: Shape = Shape { name: "tenants", root: root!(tenants), lines: 2, slots: 3, next: 15 };
const MEMBERS: Shape = words("members", root!(members));
const VM4: Shape = Shape { name: "vm4", root: root!(vm4), lines: 1, slots: 3, next: 15 };
const VM6: Shape = Shape { name: "vm6", root: root!(vm6), lines: 2, slots: 3, next: 6 };
const NC4: Shape = words("nc4", root!(nc4));
const NC6: Shape = Shape { name: "nc6", root: root!(nc6), lines: 2, slots: 3, next: 6 };
const METERS: Shape = words("vm_meters", root!(vm_meters));

/// An entry: its line, its slot, its word.
type Entry = (u32, usize, u64);

struct Audit<'a> {
    w: &'a Writer,
    model: &'a Model,
    expected: &'a Expected,
    /// Lines by what they are used for.
    lines: BTreeMap<&'static str, u64>,
    /// NC id by address.
    ncs: BTreeMap<IpAddr, u32>,
    vm_ids: BTreeSet<u32>,
    vpc_ids: BTreeSet<u32>,
}

/// Panics at the first thing that is wrong.
pub(crate) fn audit(w: &Writer, model: &Model, expected: &Expected) {
    assert!(!w.needs_settling());
    let mut a = Audit {
        w,
        model,
        expected,
        lines: BTreeMap::new(),
        ncs: BTreeMap::new(),
        vm_ids: BTreeSet::new(),
        vpc_ids: BTreeSet::new(),
    };
    a.ncs();
    a.tenants();
    a.vms();
    a.members();
    a.chunks();
    a.ids();
    a.numbers();
}

impl Audit<'_> {
    fn word(&self, line: u32, i: usize) -> u64 {
        self.w.store.lines.at(LineNo(line)).0[i].load(Relaxed)
    }

    fn half(&self, line: u32, i: usize) -> u32 {
        (self.word(line, i / 2) >> (32 * (i % 2))) as u32
    }

    /// Word `i` of two adjacent lines.
    fn word_of_two(&self, line: u32, i: usize) -> u64 {
        self.word(line + i as u32 / 8, i % 8)
    }

    fn root(&self, at: usize) -> u64 {
        self.w.store.root.word(at).load(Relaxed)
    }

    /// The entries of a table, each in the chain of the bucket that `hash` of it names; counts the lines.
    fn entries(&mut self, shape: &Shape, hash: impl Fn(&Self, Entry) -> u64) -> Vec<Entry> {
        let word = self.root(shape.root);
        let (first, buckets) = (word as u32, (word >> 32) as u32);
        assert!(word == 0 || first % 2 == 0, "{}: an array begins at an even line", shape.name);
        let (mut out, mut lines) = (Vec::new(), 0);
        for bucket in 0..buckets {
            let (mut line, mut length) = (first + bucket * shape.lines, 0);
            while line != 0 {
                (lines, length) = (lines + u64::from(shape.lines), length + 1);
                assert!(length <= CHAIN_MAX, "{}: no reader comes to the end of bucket {bucket}", shape.name);
                for slot in (0..shape.slots).filter(|s| self.word(line, *s) != 0) {
                    let entry = (line, slot, self.word(line, slot));
                    assert_eq!(bucket_of(hash(self, entry), buckets), bucket, "{}: {entry:x?}", shape.name);
                    out.push(entry);
                }
                line = self.half(line, shape.next);
            }
        }
        self.lines.insert(shape.name, lines);
        out
    }

    fn ncs(&mut self) {
        let salt = self.root(root!(salt));
        let found4 = self.entries(&NC4, |_, (_, _, word)| hash1(word >> 32 << 32, salt));
        let of_nc6 = |a: &Self, line, slot| {
            let word = |i| a.word_of_two(line, i);
            ((word(4 + 2 * slot), word(5 + 2 * slot)), (word(10 + 2 * slot), word(11 + 2 * slot)))
        };
        let found6 = self.entries(&NC6, |a, (line, slot, _)| {
            let (addr, _) = of_nc6(a, line, slot);
            hash3(0, addr.0, addr.1, salt)
        });
        let mut ncs: Vec<(IpAddr, u32)> =
            found4.iter().map(|(_, _, word)| (IpAddr::V4(((word >> 32) as u32).into()), *word as u32)).collect();
        for (line, slot, key) in found6 {
            let (addr, value) = of_nc6(self, line, slot);
            assert_eq!(key, (hash3(0, addr.0, addr.1, salt) & 0xffff_ffff) << VM6_TAG_SHIFT | KEY_VALID);
            assert_eq!(value.0, 0);
            ncs.push((IpAddr::V6((u128::from(addr.0) << 64 | u128::from(addr.1)).into()), value.1 as u32));
        }
        assert_eq!(ncs.iter().map(|n| n.0).collect::<BTreeSet<_>>(), self.model.ncs);
        assert_eq!(ncs.len(), self.model.ncs.len(), "an NC twice");
        let mut users: BTreeMap<IpAddr, u32> = BTreeMap::new();
        for t in self.model.tenants.values() {
            senders(t).into_keys().for_each(|nc| *users.entry(nc).or_default() += 1);
        }
        for (addr, id) in &ncs {
            let chunk = self.w.store.root.nc_chunk(id >> NC_CHUNK_SHIFT).load(Relaxed);
            let at = id % (1 << NC_CHUNK_SHIFT);
            assert!(*id != 0 && chunk != 0, "NC {addr} has id {id}");
            let record = chunk + (1 << NC_CHUNK_SHIFT) / 8 + at;
            let (want, number) = match addr {
                IpAddr::V4(a) => (NC_VALID | u64::from(a.to_bits()) << 32, u128::from(a.to_bits())),
                IpAddr::V6(a) => (NC_VALID | NC_V6, a.to_bits()),
            };
            assert_eq!(self.word(chunk + at / 8, at as usize % 8), want, "NC {addr}");
            let (hi, lo) = halves(number);
            assert_eq!((0..8).map(|i| self.word(record, i)).collect::<Vec<_>>(), [0, hi, lo, 0, 0, 0, 0, 0]);
            let state = self.w.ncs[&super::nc_key(*addr)];
            assert_eq!((state.id, state.tenants), (NcId(*id), users.get(addr).copied().unwrap_or(0)), "NC {addr}");
        }
        self.ncs = ncs.into_iter().collect();
        assert_eq!(self.ncs.values().collect::<BTreeSet<_>>().len(), self.ncs.len(), "two NCs of one id");
        assert_eq!(self.w.ncs.len(), self.ncs.len());
    }

    fn tenants(&mut self) {
        let (salt, model) = (self.root(root!(salt)), self.model);
        let found = self.entries(&TENANTS, |_, (_, _, key)| hash1(key >> TENANT_VNI_SHIFT << TENANT_VNI_SHIFT, salt));
        assert_eq!(found.len(), self.model.tenants.len());
        let mut peer_refs: BTreeMap<Vni, u32> = BTreeMap::new();
        let (mut trees, mut meters) = (0, 0);
        for (line, slot, key) in &found {
            let vni = Vni((key >> TENANT_VNI_SHIFT) as u32);
            let tenant = self.model.tenants.get(&vni).unwrap_or_else(|| panic!("{vni} is in no configuration"));
            let (s, state) = (&tenant.settings, &self.w.tenants[&vni]);
            let policy = self.expected.policies.get(&vni).copied().unwrap_or(0);
            let flag = |on: bool, flag: u64| if on { flag } else { 0 };
            let want = u64::from(vni) << TENANT_VNI_SHIFT
                | TENANT_VALID
                | flag(s.meter.is_some(), TENANT_METERED)
                | flag(policy & POLICY_NAT != 0, TENANT_NAT)
                | flag(policy & POLICY_FILTER != 0, TENANT_FILTERED)
                | u64::from(state.id) << TENANT_ID_SHIFT
                | s.gateway_mac >> 32;
            assert_eq!(*key, want, "key of {vni}");
            assert!(state.id != VpcId(0) && self.vpc_ids.insert(state.id.0), "id of {vni}");
            assert_eq!(self.half(*line, 12 + slot), s.gateway_mac as u32);
            assert_eq!(self.half(line + 1, 12 + slot), policy as u32);
            assert_eq!(self.word(*line, 3 + slot), state.roots);
            // Its record.
            let chunk = self.w.store.root.tenant_chunk(state.id.0 >> TENANT_CHUNK_SHIFT).load(Relaxed);
            let record = chunk + state.id.0 % (1 << TENANT_CHUNK_SHIFT);
            let first = |v6: bool| s.gateways.iter().find(|a| a.is_ipv6() == v6);
            let v4 = first(false).map_or(0, |a| if let IpAddr::V4(a) = a { a.to_bits() } else { 0 });
            let v6 = first(true).map_or((0, 0), |a| if let IpAddr::V6(a) = a { halves(a.to_bits()) } else { (0, 0) });
            let commits = self.expected.commits[&vni];
            let ident = u64::from(vni) | flag(!s.icmp, TENANT_ICMP_OFF);
            let want = [ident, 0, 0, u64::from(state.meter) << 32 | u64::from(v4), v6.0, v6.1, commits, policy];
            assert_eq!((0..8).map(|i| self.word(record, i)).collect::<Vec<_>>(), want, "record of {vni}");
            assert_eq!((state.gateway_mac, state.commits), (s.gateway_mac, commits));
            assert_eq!(state.meter != LineNo(0), s.meter.is_some());
            if let Some(spec) = &s.meter {
                meters += 2;
                assert_eq!(self.w.store.lines.at(state.meter).snapshot(), crate::meter::config_words(spec));
            }
            trees += self.trees(vni, state.roots);
            self.peer_words(*line, *slot, vni);
            let peers = match state.routes_known {
                true => tenant.routes.values().filter_map(peer).collect(),
                // Of a route that others cover wholly nothing is left in the trees.
                false => visible_peers(model, vni),
            };
            assert_eq!(state.peers.keys().copied().collect::<BTreeSet<_>>(), peers, "peers of {vni}");
            peers.iter().for_each(|p| *peer_refs.entry(*p).or_default() += 1);
        }
        assert_eq!(self.w.peer_refs.iter().map(|(v, n)| (*v, *n)).collect::<BTreeMap<_, _>>(), peer_refs);
        let filtered = self.expected.policies.values().filter(|p| **p & POLICY_FILTER != 0).count() as u64;
        assert_eq!((self.root(root!(filtered)), self.w.filtered.len() as u64), (filtered, filtered));
        self.lines.insert("trees", trees);
        self.lines.insert("meters", meters);
    }

    /// Looks at both sides of every edge of a route, and counts the lines of both trees.
    fn trees(&self, vni: Vni, roots: u64) -> u64 {
        let (lines, state) = (&self.w.store.lines, &self.w.tenants[&vni]);
        for addr in edges(self.model, vni) {
            let value = match addr {
                IpAddr::V4(a) => crate::route::lookup32(lines, roots as u32, a.to_bits()),
                IpAddr::V6(a) => crate::route::lookup128(lines, (roots >> 32) as u32, halves(a.to_bits())),
            };
            assert_eq!(self.w.target(value), self.model.route(vni, addr), "{addr} in {vni}");
        }
        let mut count = [0; 2];
        let tops = [roots as u32, (roots >> 32) as u32].map(Top::of_root);
        assert!(walk_all::<u32>(lines, tops[0], &mut |b| {
            count[0] += b.lines;
            true
        }));
        assert!(walk_all::<u64>(lines, tops[1], &mut |b| {
            count[1] += b.lines;
            true
        }));
        assert_eq!(state.tree_lines, count, "lines of the trees of {vni}");
        if state.routes_known {
            let known = state.routes4.len() + state.routes6.len();
            assert_eq!(known, self.model.tenants[&vni].routes.len(), "routes of {vni}");
        }
        u64::from(count[0] + count[1])
    }

    /// Each PEER word of an entry names a route to a peer inside which there is no other.
    fn peer_words(&self, line: u32, slot: usize, vni: Vni) {
        let words = (0..6).map(|i| self.word(line + 1, i)).filter(|w| w & PEER_ENTRY_MASK == slot as u64 + 1);
        let routes = &self.model.tenants[&vni].routes;
        for word in words {
            let addr = IpAddr::V4(((word >> PEER_NETWORK_SHIFT) as u32).into());
            let prefix = crate::Prefix::new_assert(addr, (word >> PEER_LENGTH_SHIFT & 63) as u8);
            let peer = Vni((word >> PEER_VNI_SHIFT) as u32 & 0xff_ffff);
            assert_eq!(routes.get(&prefix), Some(&crate::Target::Peer(peer)), "{prefix} of {vni}");
            let inside = routes
                .keys()
                .filter(|p| p.prefix_len() > prefix.prefix_len() && crate::tests::model::covers(&prefix, p.addr()));
            assert_eq!(inside.count(), 0, "{prefix} of {vni}");
        }
    }

    fn vms(&mut self) {
        let salt = self.root(root!(salt));
        let found4 = self.entries(&VM4, |_, (_, _, key)| hash1(key & !KEY_STATE_MASK, salt));
        let two = |a: &Self, line: u32, at: usize| (a.word_of_two(line, at), a.word_of_two(line, at + 1));
        let found6 = self.entries(&VM6, |a, (line, slot, key)| {
            let addr = two(a, line, 4 + 2 * slot);
            hash3(key >> VM6_VNI_SHIFT, addr.0, addr.1, salt)
        });
        // (VNI, address) to MAC address, VM id, NC id, flags.
        let mut have: BTreeMap<(Vni, IpAddr), (u64, u32, u32, u32)> = BTreeMap::new();
        for (line, slot, key) in &found4 {
            let [a, b, c] = [0, 1, 2].map(|i| self.half(*line, 6 + 3 * slot + i));
            let value =
                (u64::from(a) << 16 | u64::from(b) >> 16, (b & 0xffff) << 8 | c >> 24, c >> 4 & 0xf_ffff, c & 15);
            assert_eq!(key & KEY_STATE_MASK, KEY_VALID, "a mark is left");
            let addr = IpAddr::V4(((key >> VM4_ADDR_SHIFT) as u32).into());
            assert!(have.insert((Vni((key >> VM4_VNI_SHIFT) as u32), addr), value).is_none(), "{addr} twice");
        }
        for (line, slot, key) in &found6 {
            let (addr, value) = (two(self, *line, 4 + 2 * slot), two(self, *line, 10 + 2 * slot));
            let vni = key >> VM6_VNI_SHIFT;
            let tag = hash3(vni, addr.0, addr.1, salt) & 0xffff_ffff;
            assert_eq!(*key, vni << VM6_VNI_SHIFT | tag << VM6_TAG_SHIFT | KEY_VALID);
            let value = (value.0 >> 16, (value.1 >> 32) as u32, value.1 as u32, value.0 as u32 & 0xffff);
            let addr = IpAddr::V6((u128::from(addr.0) << 64 | u128::from(addr.1)).into());
            assert!(have.insert((Vni(vni as u32), addr), value).is_none(), "{addr} twice");
        }
        let mut want = BTreeMap::new();
        let mut meters = BTreeMap::new();
        for (vni, tenant) in &self.model.tenants {
            let s = &tenant.settings;
            want.extend(s.gateways.iter().map(|a| ((*vni, *a), (s.gateway_mac, 0, 0, VM_FLAG_GATEWAY))));
            let state = &self.w.tenants[vni];
            assert_eq!(state.vms.len(), tenant.vms.len(), "VMs of {vni}");
            for (mac, spec) in &tenant.vms {
                let vm = &state.vms[mac];
                assert!(vm.id != VmId(0) && self.vm_ids.insert(vm.id.0), "id of {mac:x} in {vni}");
                assert_eq!(vm.nc, NcId(self.ncs[&spec.nc]));
                assert_eq!(vm.meter != LineNo(0), spec.meter.is_some());
                let addresses = |all: &mut dyn Iterator<Item = IpAddr>| all.collect::<BTreeSet<_>>();
                assert_eq!(addresses(&mut vm.addresses()), addresses(&mut spec.addresses()));
                let metered = if vm.meter != LineNo(0) { VM_FLAG_METERED } else { 0 };
                let flags = metered | if spec.shaped { VM_FLAG_SHAPED } else { 0 };
                let value = (*mac, vm.id.0, vm.nc.0, flags);
                want.extend(spec.addresses().map(|a| ((*vni, a), value)));
                if let Some(spec) = &spec.meter {
                    assert_eq!(self.w.store.lines.at(vm.meter).snapshot(), crate::meter::config_words(spec));
                    meters.insert(vm.id.0, vm.meter);
                }
            }
        }
        assert_eq!(have, want);
        let found = self.entries(&METERS, |_, (_, _, word)| hash1(word >> WORD_METER_SHIFT << WORD_METER_SHIFT, salt));
        assert_eq!(found.len(), meters.len());
        let found: BTreeMap<u32, LineNo> =
            found.iter().map(|(_, _, w)| ((w >> WORD_METER_SHIFT) as u32, LineNo(*w as u32))).collect();
        assert_eq!(found, meters);
        *self.lines.entry("meters").or_default() += 2 * meters.len() as u64;
    }

    fn members(&mut self) {
        let salt = self.root(root!(salt));
        let found = self.entries(&MEMBERS, |_, (_, _, word)| hash1(word, salt));
        let mut want = BTreeSet::new();
        for (vni, t) in &self.model.tenants {
            let state = &self.w.tenants[vni];
            let mut hosts: Vec<(NcId, u32)> = Vec::new();
            for (nc, vms) in senders(t) {
                let id = self.ncs[&nc];
                hosts.extend((vms > 0).then_some((NcId(id), vms)));
                want.insert(match nc {
                    IpAddr::V4(a) => u64::from(*vni) << 40 | u64::from(a.to_bits()) << 8 | MEMBER_V4,
                    IpAddr::V6(_) => u64::from(*vni) << 40 | u64::from(id) << 8 | MEMBER_V6,
                });
            }
            hosts.sort_unstable();
            assert_eq!(state.members, hosts, "VMs of {vni} by NC");
        }
        assert_eq!(found.len(), want.len());
        assert_eq!(found.into_iter().map(|e| e.2).collect::<BTreeSet<_>>(), want);
    }

    /// What belongs to no id in use is zero, but what engines have counted where an id is in use.
    fn chunks(&mut self) {
        let root = &self.w.store.root;
        let tenant_words = self.root(root!(tenant_words)) as u32;
        let ids: BTreeSet<u32> = self.ncs.values().copied().collect();
        self.expected.counted.iter().for_each(|((line, i), n)| assert_eq!(self.word(*line, *i), *n, "a count is lost"));
        let mut chunks = [0u64; 3];
        for n in 0..256 {
            let [vms, ncs, tenants] =
                [root.vm_chunk(n), root.nc_chunk(n), root.tenant_chunk(n)].map(|c| c.load(Relaxed));
            [vms, ncs, tenants].iter().zip(&mut chunks).for_each(|(c, n)| *n += u64::from(*c != 0));
            let used = |ids: &BTreeSet<u32>, shift: u32| ids.iter().any(|id| id >> shift == n);
            assert!(vms != 0 || !used(&self.vm_ids, VM_CHUNK_SHIFT), "chunk {n} of VMs");
            assert!(tenants != 0 || !used(&self.vpc_ids, TENANT_CHUNK_SHIFT), "chunk {n} of VPCs");
            let zero = |line: u32, i: usize, what: &str, id: u32| {
                let have = self.word(line, i);
                assert!(
                    have == 0 || self.expected.counted.get(&(line, i)) == Some(&have),
                    "{what} of id {id}: {have:x}"
                );
            };
            // Of a few thousand lines nearly all are zero, and need no look at each word.
            let empty = |line: u32| self.w.store.lines.at(LineNo(line)).snapshot() == [0; 8];
            let cells = (0..2 << VM_CHUNK_SHIFT >> 3).filter(|at| vms != 0 && !empty(vms + at));
            for (at, i) in cells.flat_map(|at| (0..8).map(move |i| (at, i))) {
                zero(vms + at, i, "cell or carries", n << VM_CHUNK_SHIFT | (8 * at + i as u32) % (1 << VM_CHUNK_SHIFT));
            }
            for at in (0..1 << NC_CHUNK_SHIFT).filter(|_| ncs != 0) {
                let id = n << NC_CHUNK_SHIFT | at;
                if !ids.contains(&id) {
                    zero(ncs + at / 8, at as usize % 8, "NC word", id);
                    let record = ncs + (1 << NC_CHUNK_SHIFT) / 8 + at;
                    assert!(empty(record), "NC record of id {id}");
                }
            }
            for at in (0..1 << TENANT_CHUNK_SHIFT).filter(|_| tenants != 0) {
                let id = n << TENANT_CHUNK_SHIFT | at;
                assert!(self.vpc_ids.contains(&id) || empty(tenants + at), "record of id {id}");
                assert!(empty(tenants + (1 << TENANT_CHUNK_SHIFT) + at), "state of id {id}");
            }
            let first = tenants + (2 << TENANT_CHUNK_SHIFT);
            for line in (first..first + tenant_words * (1 << TENANT_CHUNK_SHIFT) / 8).filter(|_| tenants != 0) {
                assert!(empty(line), "counting words in line {}", line - first);
            }
        }
        self.lines.insert("vm_cells", chunks[0] * (2 << VM_CHUNK_SHIFT) / 8);
        self.lines.insert("nc_records", chunks[1] * ((1 << NC_CHUNK_SHIFT) + (1 << NC_CHUNK_SHIFT) / 8));
        let each = (2 << TENANT_CHUNK_SHIFT) + u64::from(tenant_words) * (1 << TENANT_CHUNK_SHIFT) / 8;
        self.lines.insert("tenant_blocks", chunks[2] * each);
    }

    /// Every id is in use or free, once.
    fn ids(&self) {
        let ncs: BTreeSet<u32> = self.ncs.values().copied().collect();
        all_once(1, self.w.nc_ids.content(), &ncs);
        for (ids, used, shift, word) in [
            (&self.w.vm_ids, &self.vm_ids, VM_CHUNK_SHIFT, root!(vm_groups)),
            (&self.w.vpc_ids, &self.vpc_ids, TENANT_CHUNK_SHIFT, root!(tenant_groups)),
        ] {
            let (groups, rest, by_chunk) = ids.content();
            assert_eq!(self.root(word), groups.len() as u64);
            let mut free = vec![0xff; groups.len()];
            // Id 0 is never free.
            for id in used.iter().chain([&0]) {
                if let Some(group) = free.get_mut(*id as usize / 8) {
                    *group &= !(1u8 << (id % 8));
                }
            }
            assert!(groups == free, "ids that are free and in use, by group");
            let first = (groups.len() as u32 * 8).max(1);
            all_once(first, rest, &used.iter().copied().filter(|id| *id >= first).collect());
            for (chunk, n) in by_chunk.iter().enumerate() {
                assert_eq!(used.iter().filter(|id| **id >> shift == chunk as u32).count() as u32, *n, "chunk {chunk}");
            }
        }
    }

    /// Every number that is told.
    fn numbers(&mut self) {
        let (w, model) = (self.w, self.model);
        let drops = self.root(root!(drops)) >> 32;
        let lines = |name: &str| self.lines[name];
        let mut want: Vec<(&str, u64)> = [
            "tenants",
            "members",
            "vm4",
            "vm6",
            "nc4",
            "nc6",
            "vm_meters",
            "tenant_blocks",
            "trees",
            "vm_cells",
            "nc_records",
        ]
        .map(|name| (name, 64 * lines(name)))
        .to_vec();
        let other = 64 * (drops + lines("meters")) + size_of::<Root>() as u64;
        want.push(("other", other));
        assert_eq!(w.bytes_by_table(), want);
        let used: u64 = self.lines.values().sum::<u64>() + drops;
        assert_eq!(w.bytes_used(), 64 * used + size_of::<Root>() as u64);
        assert_eq!(w.store.arena.in_use().iter().map(|b| u64::from(b.lines)).sum::<u64>(), used);
        let l = &w.options.limits;
        let sum = |each: &dyn Fn(&crate::tests::model::ModelTenant) -> usize| {
            model.tenants.values().map(each).sum::<usize>() as u64
        };
        let addresses =
            sum(&|t| t.settings.gateways.len() + t.vms.values().map(|vm| vm.addresses().count()).sum::<usize>());
        let known = |t: &crate::tests::model::ModelTenant| t.routes.len();
        let levels: Vec<(&str, u64, u64)> = w.usage().iter().map(|l| (l.name, l.used, l.limit)).collect();
        let mut want = vec![
            ("tenants", model.tenants.len() as u64, u64::from(l.tenants)),
            ("routes", sum(&known), l.routes),
            ("vms", sum(&|t| t.vms.len()), u64::from(l.vms)),
            ("addresses", addresses, l.addresses),
            ("ncs", model.ncs.len() as u64, u64::from(l.ncs)),
            ("memory_lines", used, u64::from(l.segments) << SEGMENT_SHIFT),
            ("drop_counters", 0, 4 * drops),
        ];
        if w.tenants.values().any(|t| !t.routes_known) {
            // Those of an earlier writer are intervals.
            want[1].1 = w
                .tenants
                .iter()
                .filter(|(_, t)| t.routes_known)
                .map(|(v, _)| model.tenants[v].routes.len() as u64)
                .sum();
        }
        assert_eq!(levels, want);
        assert_eq!((w.commits, self.root(root!(generation))), (self.expected.all, self.expected.all));
    }
}

impl super::undo::Snapshot {
    /// Of a writer that remembers, what one that takes over its memory can know; in one order where order says nothing. `stable`: nothing
    /// waited for a grace period when it took over (else PEER words may be missing until routes change).
    pub(crate) fn into_taken_over(mut self, model: &Model, stable: bool) -> Self {
        self.peers.clear();
        for (vni, t) in &mut self.tenants {
            let visible = visible_peers(model, *vni);
            t.peers.retain(|peer, _| visible.contains(peer));
            t.peers.keys().for_each(|peer| *self.peers.entry(*peer).or_default() += 1);
            t.routes_known = false;
            (t.routes4, t.routes6, t.lengths) = Default::default();
            t.peers.each_value_mut(|n| *n = 1);
            t.gateways.sort_unstable();
            t.extra.retain(|nc| t.members.iter().all(|m| m.0 != *nc));
            t.vms.each_value_mut(|vm| {
                let mut addresses: Vec<IpAddr> = vm.addresses().collect();
                addresses.sort_unstable();
                (vm.v4, vm.more) = super::state::Vm::split(addresses.into_iter());
            });
        }
        // Routes are not known.
        self.counts[0] = 0;
        // Who takes over raises it.
        self.root[root!(flow_version) / 8] = 0;
        let used = |first: u32, (next, free): &(u32, Vec<u32>)| {
            let free: BTreeSet<u32> = free.iter().copied().collect();
            (0, (first..*next).filter(|id| !free.contains(id)).collect::<Vec<u32>>())
        };
        for (groups, rest, _) in &mut self.ids {
            *rest = used((groups.len() as u32 * 8).max(1), rest);
        }
        self.nc_ids = used(1, &self.nc_ids);
        if !stable {
            let tenants = root!(tenants);
            self.slots.iter_mut().filter(|(root, _, _)| *root == tenants).for_each(|(_, _, words)| words.truncate(4));
        }
        self
    }

    /// The first thing in which two differ.
    pub(crate) fn differs(&self, other: &Self) -> Option<String> {
        if self == other {
            return None;
        }
        let pairs = [
            ("VPCs", format!("{:?}", self.tenants), format!("{:?}", other.tenants)),
            ("peers", format!("{:?}", self.peers), format!("{:?}", other.peers)),
            ("filtered", format!("{:?}", self.filtered), format!("{:?}", other.filtered)),
            ("NCs", format!("{:?}", self.ncs), format!("{:?}", other.ncs)),
            ("ids", format!("{:?} {:?}", self.ids, self.nc_ids), format!("{:?} {:?}", other.ids, other.nc_ids)),
            ("counts", format!("{:?}", self.counts), format!("{:?}", other.counts)),
            ("tables", format!("{:?}", self.tables), format!("{:?}", other.tables)),
            ("slots", format!("{:x?}", self.slots), format!("{:x?}", other.slots)),
            ("pending", format!("{:?}", self.pending), format!("{:?}", other.pending)),
            ("lines in use", format!("{:?}", self.used), format!("{:?}", other.used)),
            ("root", format!("{:x?}", self.root), format!("{:x?}", other.root)),
        ];
        let differs =
            pairs.into_iter().find(|(_, a, b)| a != b).map(|(what, a, b)| format!("{what}\n{a}\nis not\n{b}"));
        differs.or_else(|| Some("chunks".into()))
    }
}

/// NCs that may send for a VPC, and how many of its VMs are on each.
fn senders(t: &crate::tests::model::ModelTenant) -> BTreeMap<IpAddr, u32> {
    let mut all: BTreeMap<IpAddr, u32> = t.settings.extra_ncs.iter().map(|nc| (*nc, 0)).collect();
    t.vms.values().for_each(|vm| *all.entry(vm.nc).or_default() += 1);
    all
}

/// Both sides of both edges of every route.
fn edges(model: &Model, vni: Vni) -> Vec<IpAddr> {
    let mut out: Vec<IpAddr> = Vec::new();
    for prefix in model.tenants[&vni].routes.keys() {
        match prefix.addr() {
            IpAddr::V4(a) => {
                let first = a.to_bits();
                let last = first | u32::MAX.checked_shr(prefix.prefix_len().into()).unwrap_or(0);
                out.extend([first, last, first.wrapping_sub(1), last.wrapping_add(1)].map(|a| IpAddr::V4(a.into())));
            }
            IpAddr::V6(a) => {
                let first = a.to_bits();
                let last = first | u128::MAX.checked_shr(prefix.prefix_len().into()).unwrap_or(0);
                out.extend([first, last, first.wrapping_sub(1), last.wrapping_add(1)].map(|a| IpAddr::V6(a.into())));
            }
        }
    }
    out
}

fn peer(target: &crate::Target) -> Option<Vni> {
    if let crate::Target::Peer(peer) = target {
        Some(*peer)
    } else {
        None
    }
}

/// Peers that some address of a VPC leads to.
fn visible_peers(model: &Model, vni: Vni) -> BTreeSet<Vni> {
    edges(model, vni).into_iter().filter_map(|a| model.route(vni, a)).filter_map(|t| peer(&t)).collect()
}

/// Each number from `first` on below the next new one is in use or free, once.
fn all_once(first: u32, (next, free): (u32, Vec<u32>), used: &BTreeSet<u32>) {
    let free_once: BTreeSet<u32> = free.iter().copied().collect();
    assert_eq!(free_once.len(), free.len(), "a number is free twice");
    assert!(free_once.is_disjoint(used), "a number in use is free");
    let all: BTreeSet<u32> = free_once.union(used).copied().collect();
    assert_eq!(all, (first..next.max(first)).collect(), "a number is lost");
}

impl Writer {
    /// Commits to a VPC so far, as its record says.
    pub(crate) fn tables_commits(&self, vni: Vni) -> u64 {
        self.store.lines.at(self.tenant_line(self.tenants[&vni].id)).word(6)
    }
}
