// SPDX-License-Identifier: Apache-2.0
//! Readers on memory that is written by hand: each question reads the words that the layout names and no others, chains are followed as
//! far as they may be, and what is counted stands in one word and in no other.

use crate::route::Walk;
use crate::*;
use abi::*;
use memory::{root, Lines, RootRef};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

struct Made {
    lines: Lines,
    root: RootRef,
    t: Tables,
}

impl Made {
    fn new(segments: u32) -> Made {
        let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
        memory.grow(segments).unwrap();
        Made { lines: Lines::new(&*memory), root: RootRef::new(&*memory), t: Tables::new(memory) }
    }

    /// Stores word `i` of the words from a line on.
    fn set(&self, line: u32, i: usize, word: u64) {
        self.lines.at(LineNo(line + i as u32 / 8)).set(i % 8, word);
    }

    fn set_half(&self, line: u32, i: usize, half: u32) {
        self.lines.at(LineNo(line + i as u32 / 16)).set_half(i % 16, half);
    }

    /// All words that are not 0, by line and word.
    fn words(&self) -> BTreeMap<(u32, usize), u64> {
        self.words_of(0..self.lines.limit())
    }

    fn words_of(&self, lines: std::ops::Range<u32>) -> BTreeMap<(u32, usize), u64> {
        let used =
            lines.map(|line| (line, self.lines.at(LineNo(line)).snapshot())).filter(|(_, words)| *words != [0; 8]);
        let all = used.flat_map(|(line, words)| (0..8).map(move |i| ((line, i), words[i])));
        all.filter(|(_, word)| *word != 0).collect()
    }
}

fn id_of(id: u32) -> Tenant {
    Tenant { key: u64::from(id) << TENANT_ID_SHIFT, ..Tenant::NONE }
}

/// Chunks of VPCs lie at 20,000 and 40,000: records, states, then 512 lines of counting words for each of so many slots.
#[test]
fn what_is_counted_for_a_vpc_stands_in_its_own_word() {
    for (told, slots, words) in [(0, 1, 1), (1, 1, 1), (3, 3, 3), (8, 30, 8), (200, 200, 8)] {
        let m = Made::new(1);
        m.root.tenant_chunk(0).store(20_000, std::sync::atomic::Ordering::Relaxed);
        m.root.tenant_chunk(3).store(40_000, std::sync::atomic::Ordering::Relaxed);
        m.root.set(root!(tenant_words), told);
        m.root.set(root!(slots), slots);
        let mut want: BTreeMap<(u32, usize), u64> = BTreeMap::new();
        let mut sums: BTreeMap<u32, Count> = BTreeMap::new();
        let ids: Vec<u32> = (0..20)
            .chain([4094, 4095, 4096, 8191, 3 << 12, (3 << 12) + 1, (3 << 12) + 4095, 4 << 12, TENANTS_MAX - 1])
            .collect();
        for (n, id) in ids.iter().copied().enumerate() {
            let chunk = match id >> 12 {
                0 => 20_000,
                3 => 40_000,
                _ => 0,
            };
            assert_eq!(m.t.tenant_record(VpcId(id)), LineNo(if chunk == 0 { 0 } else { chunk + id % 4096 }));
            for slot in 0..slots as u32 {
                let line = if chunk == 0 { 0 } else { chunk + 8192 + (slot % words) * 512 + id % 4096 / 8 };
                assert_eq!(m.t.tenant_cell_line(VpcId(id), slot), LineNo(line), "{id} {slot}");
                let bytes = 64 + n as u64 * 1000 + u64::from(slot);
                m.t.count_vpc(VpcId(id), slot, bytes);
                m.t.count_tenant(&id_of(id), slot, 7);
                if chunk > 0 {
                    *want.entry((line, id as usize % 8)).or_default() += (2 << CELL_PACKETS_SHIFT) + bytes + 7;
                    let sum = sums.entry(id).or_default();
                    (sum.packets, sum.bytes) = (sum.packets + 2, sum.bytes + bytes + 7);
                }
            }
        }
        assert_eq!(m.words(), want, "{told} words");
        ids.iter().for_each(|id| {
            assert_eq!(m.t.tenant_count(&id_of(*id)), sums.get(id).copied().unwrap_or_default(), "{id}")
        });
        // A word that was full is carried to the third word of the state.
        for (id, chunk) in [(5u32, 20_000), ((3 << 12) + 4095, 40_000)] {
            let (line, i) = (m.t.tenant_cell_line(VpcId(id), 0), id as usize % 8);
            let (old, sum) = (m.lines.at(line).word(i), m.t.tenant_count(&id_of(id)));
            m.set(line.0, i, old | CELL_SPILL_MASK);
            m.t.count_vpc(VpcId(id), 0, 1);
            let totals = (chunk + 4096 + id % 4096, 2);
            want.insert((line.0, i), old + (1 << 40) + 1);
            want.insert(totals, 1 << 32 | 1);
            assert_eq!(m.words(), want, "{id}");
            let now = Count { packets: sum.packets + 1 + (1 << 23), bytes: sum.bytes + 1 + (1 << 39) };
            assert_eq!(m.t.tenant_count(&id_of(id)), now);
            m.set(line.0, i, m.lines.at(line).word(i) | 1 << 39);
            m.t.count_vpc(VpcId(id), 0, 1);
            want.insert((line.0, i), old + (2 << 40) + 2);
            want.insert(totals, 1 << 32 | 2);
            assert_eq!(m.words(), want, "{id}");
        }
    }
}

/// Chunks of VMs: 8,192 lines of cells, as many of carries.
#[test]
fn what_is_counted_for_a_vm_stands_in_its_own_word() {
    let m = Made::new(1);
    m.root.vm_chunk(0).store(10_000, std::sync::atomic::Ordering::Relaxed);
    m.root.vm_chunk(200).store(30_000, std::sync::atomic::Ordering::Relaxed);
    m.root.vm_chunk(255).store(SEGMENT_LINES - 1, std::sync::atomic::Ordering::Relaxed);
    let mut want: BTreeMap<(u32, usize), u64> = BTreeMap::new();
    for id in (0..20).chain([65_534, 65_535, 65_536, 200 << 16, (200 << 16) + 65_535, 201 << 16]) {
        let chunk = match id >> 16 {
            0 => 10_000,
            200 => 30_000,
            _ => 0,
        };
        let line = if chunk == 0 { 0 } else { chunk + id % 65_536 / 8 };
        assert_eq!(m.t.vm_cell_line(VmId(id)), LineNo(line));
        let bytes = 1000 + u64::from(id);
        (0..3).for_each(|_| m.t.count_vm(VmId(id), bytes));
        m.t.count_vm_at(LineNo(line), VmId(id), 5);
        if chunk == 0 {
            assert_eq!(m.t.vm_count(VmId(id)), Count::default());
            continue;
        }
        assert_eq!(m.t.vm_count(VmId(id)), Count { packets: 4, bytes: 3 * bytes + 5 });
        want.insert((line, id as usize % 8), (4 << 40) + 3 * bytes + 5);
        for (bit, carry, packets, more) in [(1 << 63, 1 << 32, 1u64 << 23, 0), (1 << 39, 1, 0, 1u64 << 39)] {
            let before = m.t.vm_count(VmId(id));
            m.set(line, id as usize % 8, m.lines.at(LineNo(line)).word(id as usize % 8) | bit);
            m.t.count_vm(VmId(id), 9);
            *want.get_mut(&(line, id as usize % 8)).unwrap() += (1 << 40) + 9;
            *want.entry((line + 8192, id as usize % 8)).or_default() += carry;
            assert_eq!(
                m.t.vm_count(VmId(id)),
                Count { packets: before.packets + 1 + packets, bytes: before.bytes + 9 + more }
            );
        }
    }
    assert_eq!(m.words(), want);
    // The last line has cells, but its carries lie outside: what would go there is lost.
    let id = 255 << 16 | 3;
    m.set(SEGMENT_LINES - 1, 3, 1 << 39);
    m.t.count_vm(VmId(id), 3);
    assert_eq!(m.t.vm_count(VmId(id)), Count { packets: 1, bytes: 3 });
    m.t.count_vm(VmId(255 << 16 | 11), 1);
    assert_eq!(m.t.vm_count(VmId(255 << 16 | 11)), Count::default());
}

/// A counter of drops stands in the first free pair of words from its bucket on, four lines at most and round the end.
#[test]
fn a_drop_counter_stands_in_the_first_free_place() {
    let m = Made::new(1);
    m.root.set(root!(drops), 6 << 32 | 100);
    m.root.set(root!(salt), 77);
    let (mut pairs, mut want): ([[u64; 4]; 6], BTreeMap<(u32, usize), u64>) = ([[0; 4]; 6], BTreeMap::new());
    let mut refused = 0;
    for n in 0..60u32 {
        let (vni, reason) = (n * 4099 % 50, DropReason::ALL[n as usize % 2]);
        let key = u64::from(vni) << 16 | u64::from(reason as u8) << 8 | 1;
        let bucket = bucket_of(hash1(key, 77), 6) as usize;
        let place = (0..4)
            .flat_map(|i| (0..4).map(move |p| ((bucket + i) % 6, p)))
            .find(|(i, p)| [0, key].contains(&pairs[*i][*p]));
        let before = place.filter(|(i, p)| pairs[*i][*p] == key).map_or(0, |(i, p)| want[&(100 + i as u32, 2 * p + 1)]);
        assert_eq!(m.t.drop_count(Vni(vni), reason), before);
        assert_eq!(m.t.add_drops(Vni(vni), reason, 5), place.is_some());
        assert_eq!(m.t.count_drop(Vni(vni), reason), place.is_some());
        match place {
            Some((i, p)) => {
                pairs[i][p] = key;
                want.insert((100 + i as u32, 2 * p), key);
                want.insert((100 + i as u32, 2 * p + 1), before + 6);
            }
            None => refused += 1,
        }
        assert_eq!(m.words_of(0..300), want, "{n}");
    }
    assert!(refused > 5 && pairs.iter().flatten().all(|k| *k != 0));
    let (mut told, mut all) = (m.t.drop_counts(), Vec::new());
    for (i, p) in (0..6).flat_map(|i| (0..4).map(move |p| (i, p))) {
        let key = pairs[i][p];
        all.push((
            Vni((key >> 16) as u32),
            DropReason::from_number((key >> 8) as u8).unwrap(),
            want[&(100 + i as u32, 2 * p + 1)],
        ));
    }
    assert_eq!(told, all, "line by line");
    // What is no key of a reason is not told.
    m.set(103, 2, 9 << 16 | 0xff << 8 | 1);
    m.set(103, 4, m.lines.at(LineNo(103)).word(4) & !1);
    all.drain(13..15);
    told = m.t.drop_counts();
    assert_eq!(told, all);
    // A table outside the memory, and none at all.
    m.root.set(root!(drops), 6 << 32 | u64::from(SEGMENT_LINES));
    assert!(!m.t.add_drops(Vni(1), DropReason::RouteNone, 5) && m.t.drop_counts().is_empty());
    m.root.set(root!(drops), 0);
    assert!(
        !m.t.add_drops(Vni(1), DropReason::RouteNone, 5)
            && m.t.drop_counts().is_empty()
            && m.t.drop_count(Vni(1), DropReason::RouteNone) == 0
    );
}

/// Lines of a chain as long as readers follow, and one line more. Line 1 is a line as any other.
const CHAIN: [u32; CHAIN_MAX as usize + 1] = [50, 60, 1, 70, 80, 90, 100, 110, 120];

/// For each place of a chain: whether it is within reach, and where it is.
fn places(slots: usize) -> impl Iterator<Item = (bool, u32, usize)> {
    (0..CHAIN.len()).flat_map(move |k| (0..slots).map(move |slot| (k < CHAIN_MAX as usize, CHAIN[k], slot)))
}

#[test]
fn words_are_found_in_every_place_of_a_chain() {
    let m = Made::new(1);
    let tables = [root!(members), root!(nc4), root!(vm_meters)];
    tables.iter().for_each(|t| m.root.set(*t, 1 << 32 | 50));
    CHAIN.windows(2).for_each(|w| m.set_half(w[0], 14, w[1]));
    let at = m.t.tables4();
    for (reach, line, slot) in places(7) {
        let put = |word: u64| m.set(line, slot, word);
        put(7 << 40 | 0x0a01_0203 << 8 | MEMBER_V4);
        assert_eq!(
            (m.t.may_send4(Vni(7), 0x0a01_0203), m.t.may_send4_from(LineNo(50), Vni(7), 0x0a01_0203)),
            (reach, reach)
        );
        assert!(
            !m.t.may_send4(Vni(6), 0x0a01_0203)
                && !m.t.may_send4(Vni(7), 0x0a01_0202)
                && !m.t.may_send6(Vni(7), NcId(0x0a01_0203))
        );
        put(7 << 40 | 99 << 8 | MEMBER_V6);
        assert_eq!(
            (m.t.may_send6(Vni(7), NcId(99)), m.t.may_send6(Vni(7), NcId(98)), m.t.may_send4(Vni(7), 99)),
            (reach, false, false)
        );
        put(0x0a01_0203 << 32 | 0x12_3456);
        assert_eq!(
            (m.t.nc_by_addr4(0x0a01_0203), m.t.nc_by_addr4(0x0a01_0204)),
            (reach.then_some(NcId(0x12_3456)), None)
        );
        put(9 << 32 | 0x345_6789);
        assert_eq!(
            (m.t.vm_meter(VmId(9)), m.t.vm_meter(VmId(8))),
            (LineNo(if reach { 0x345_6789 } else { 0 }), LineNo(0))
        );
        put(0);
        assert_eq!((m.t.nc_by_addr4(0), m.t.vm_meter(VmId(0))), (None, LineNo(0)), "empty slots are nobody's");
    }
    assert_eq!((m.t.member4_bucket(Vni(7), 5), m.t.member4_line(&at, Vni(7), 5)), (LineNo(50), LineNo(50)));
    tables.iter().for_each(|t| m.root.set(*t, 0));
    assert_eq!(
        (m.t.member4_bucket(Vni(7), 5), m.t.member4_line(&m.t.tables4(), Vni(7), 5), m.t.nc_by_addr4(5)),
        (LineNo(0), LineNo(0), None)
    );
}

#[test]
fn vpcs_are_found_in_every_place_of_a_chain() {
    let m = Made::new(1);
    m.root.set(root!(tenants), 1 << 32 | 50);
    CHAIN.windows(2).for_each(|w| m.set_half(w[0], 15, w[1]));
    let key = 0xab_cdef << 40 | TENANT_VALID | TENANT_METERED | 0x5_4321 << 16 | 0x02fd;
    for (reach, line, slot) in places(3) {
        // Decoys beside it: another VPC, and the same one dead.
        (0..3).for_each(|i| m.set(line, i, if i % 2 == 0 { key ^ 1 << 40 } else { key & !TENANT_VALID }));
        m.set(line, slot, key);
        (0..3).for_each(|i| m.set(line, 3 + i, 0x77_0000 + i as u64));
        (0..3).for_each(|i| m.set_half(line, 12 + i, 0x8800_0000 + i as u32));
        let there = Tenant { key, roots: 0x77_0000 + slot as u64, mac: 0x8800_0000 + slot as u32, vni: Vni(0xab_cdef) };
        let want = reach.then_some(there);
        assert_eq!([m.t.tenant(Vni(0xab_cdef)), m.t.tenant_from(LineNo(50), Vni(0xab_cdef))], [want; 2]);
        assert_eq!(m.t.tenant_from(LineNo(line), Vni(0xab_cdef)), Some(there));
        assert_eq!((m.t.tenant(Vni(0xab_cde0)), m.t.tenant(Vni(0))), (None, None));
        // PEER words of this entry alone count, each by its own length.
        if let Some(t) = want.map(|t| Tenant { roots: t.roots | 1 << ROOT_LEVELS_SHIFT, ..t }) {
            m.set(line, 3 + slot, t.roots);
            for i in 0..6 {
                (0..6).for_each(|i| {
                    m.set(line + 1, i, 0x0a00_0000 << 32 | 0x99 << 8 | 8 << 2 | (slot as u64 + 1) % 3 + 1)
                });
                m.set(line + 1, i, 0x0a01_0200 << 32 | 0x12_3456 << 8 | 24 << 2 | (slot as u64 + 1));
                let told = [0x0a01_0200, 0x0a01_02ff, 0x0a01_0300, 0x0a01_01ff, 0].map(|a| m.t.peer4(&t, a));
                assert_eq!(told, [Some(Vni(0x12_3456)), Some(Vni(0x12_3456)), None, None, None], "{line} {slot} {i}");
            }
            m.set(line + 1, 0, 0x0b01_0201 << 32 | 5 << 8 | 32 << 2 | (slot as u64 + 1));
            assert_eq!([0x0b01_0201, 0x0b01_0200].map(|a| m.t.peer4(&t, a)), [Some(Vni(5)), None]);
            // Not those of other roots, nor of a VPC without IPv4 routes.
            assert_eq!(m.t.peer4(&Tenant { roots: t.roots ^ 1 << 40, ..t }, 0x0b01_0201), None);
            assert_eq!(m.t.peer4(&Tenant { key: key ^ 1, ..t }, 0x0b01_0201), None);
            let none = Tenant { roots: 1 << 40 | 5, ..t };
            m.set(line, 3 + slot, none.roots);
            assert_eq!(m.t.peer4(&none, 0x0b01_0201), None);
            (0..6).for_each(|i| m.set(line + 1, i, 0));
        }
        (0..6).for_each(|i| m.set(line, i, 0));
    }
    let t = Tenant { key: u64::MAX, roots: 0x8765_4321_1234_5678, mac: 0xffff_fffe, vni: Vni(5) };
    assert_eq!(
        (t.id(), t.gateway_mac(), t.root4(), t.root6()),
        (VpcId(TENANTS_MAX - 1), 0xffff_ffff_fffe, 0x1234_5678, 0x8765_4321)
    );
    assert_eq!(m.t.gateway_mac(&t), 0xffff_ffff_fffe);
    let generations = [0, 1 << 31, 1 << 63, 1 << 63 | 1 << 31].map(|roots| Tenant { roots, ..t }.generation());
    assert_eq!(generations, [0, 1, 2, 3]);
}

/// Each accessor of a record reads its own word.
#[test]
fn a_record_is_read_word_by_word() {
    let m = Made::new(1);
    m.root.tenant_chunk(0).store(1000, std::sync::atomic::Ordering::Relaxed);
    for id in [0u32, 1, 7, 4095] {
        (0..8).for_each(|i| m.set(1000 + id, i, u64::from(id) << 48 | 0x11 << 32 | 0x22 | (i as u64) << 8));
        let (t, up) = (id_of(id), |i: u64| u64::from(id) << 48 | 0x11 << 32 | 0x22 | i << 8);
        assert_eq!((m.t.tenant_ident(&t), m.t.gateway4(&t), m.t.gateway6(&t)), (up(0), up(3) as u32, (up(4), up(5))));
        assert_eq!((m.t.policy(&t), m.t.tenant_meter(&t)), (up(7), LineNo(0)));
        assert_eq!(m.t.tenant_meter(&Tenant { key: t.key | TENANT_METERED, ..t }), LineNo((up(3) >> 32) as u32));
    }
    let none = id_of(4096);
    assert_eq!(
        (m.t.tenant_ident(&none), m.t.gateway4(&none), m.t.gateway6(&none), m.t.policy(&none)),
        (0, 0, (0, 0), 0)
    );
}

/// What an entry is to a reader of each generation: of 32 states and four generations, by the words of the layout.
#[test]
fn marks_decide_who_sees_an_entry() {
    for state in 0..32u64 {
        for generation in 0..4u8 {
            let of_mine = state >> 3 == u64::from(generation);
            let want = match (state & 1 != 0, state & 2 != 0, state & 4 != 0) {
                (false, _, _) => false,
                (true, false, false) => true,
                (true, true, false) => of_mine,
                (true, false, true) => !of_mine,
                (true, true, true) => false,
            };
            assert_eq!(crate::reader::visible(0x1234_5600 | state, generation), want, "{state:b} {generation}");
        }
    }
}

#[test]
fn vms_are_found_in_every_place_of_a_chain() {
    let m = Made::new(1);
    m.root.set(root!(vm4), 1 << 32 | 50);
    CHAIN.windows(2).for_each(|w| m.set_half(w[0], 15, w[1]));
    let (vni, addr) = (0xab_cdef, 0x0a01_0203);
    let key = u64::from(vni) << 40 | u64::from(addr) << 8;
    let adding = |generation: u64| key | 3 | generation << 3;
    let dying = |generation: u64| key | 5 | generation << 3;
    let at = m.t.tables4();
    for (n, (reach, line, slot)) in places(3).enumerate() {
        let e = VmEntry {
            mac: 0x0203_0405_0600 + n as u64,
            vm: VmId(0xfe_dc00 + n as u32),
            nc: NcId(0xc_ba00 + n as u32),
            flags: n as u32 % 16,
        };
        for i in 0..3 {
            [1, 2, 3].iter().enumerate().for_each(|(j, v)| m.set_half(line, 6 + 3 * i + j, *v));
            m.set(line, i, key ^ 1 << 8 | 1);
        }
        m.set_half(line, 6 + 3 * slot, (e.mac >> 16) as u32);
        m.set_half(line, 7 + 3 * slot, (e.mac as u32 & 0xffff) << 16 | e.vm.0 >> 8);
        m.set_half(line, 8 + 3 * slot, (e.vm.0 & 0xff) << 24 | e.nc.0 << 4 | e.flags);
        assert_eq!(crate::reader::vm4_words(&e), [6, 7, 8].map(|i| m.lines.at(LineNo(line)).half(i + 3 * slot)));
        let want = reach.then_some(e);
        for (word, seen) in [
            (key | 1, [true; 4]),
            (adding(2), [false, false, true, false]),
            (dying(2), [true, true, false, true]),
            (key, [false; 4]),
        ] {
            m.set(line, slot, word);
            for generation in 0..4u8 {
                let t = Tenant {
                    vni: Vni(vni),
                    roots: u64::from(generation & 1) << 31 | u64::from(generation >> 1) << 63,
                    ..Tenant::NONE
                };
                let want = want.filter(|_| seen[generation as usize]);
                let wanted = [
                    m.t.vm4(Vni(vni), addr, generation),
                    m.t.vm4_from(m.t.vm4_bucket(Vni(vni), addr), &t, addr),
                    m.t.vm4_from(BucketRef::NONE, &t, addr),
                ];
                assert_eq!(wanted, [want; 3], "{line} {slot} {word:x} {generation}");
                assert_eq!(
                    (m.t.vm4(Vni(vni), addr + 2, generation), m.t.vm4(Vni(vni + 1), addr, generation)),
                    (None, None)
                );
            }
            let next = m.lines.at(LineNo(line)).half(15);
            let lasting = if word == key | 1 { Ok(e) } else { Err(LineNo(next)) };
            assert_eq!(m.t.vm4_lasting(&at, LineNo(line), Vni(vni), addr), lasting);
        }
        m.set(line, slot, key | 1);
        let other = m.root.get(root!(vm4));
        m.root.set(root!(vm4), other + 1);
        assert_eq!(m.t.vm4_lasting(&at, LineNo(line), Vni(vni), addr), Err(LineNo(0)));
        m.root.set(root!(vm4), other);
        // An old entry that dies and a new one that comes, in one bucket.
        let neighbour = (slot + 1) % 3;
        m.set(line, slot, adding(1));
        m.set(line, neighbour, dying(1));
        let seen = |g| m.t.vm4(Vni(vni), addr, g).map(|e| e.mac);
        let old = u64::from(1u32) << 16;
        assert_eq!((seen(1), seen(0)), (want.map(|e| e.mac), reach.then_some(old)));
        (0..3).for_each(|i| m.set(line, i, 0));
    }
    assert_eq!(m.t.vm4_line(&at, Vni(vni), addr), LineNo(50));
}

#[test]
fn ipv6_is_found_in_every_place_of_a_chain() {
    let m = Made::new(1);
    m.root.set(root!(salt), 0x1234);
    let (vni, addr) = (0xab_cdef, (0x2001_0db8_0000_0007, 0x1234_5678_9abc_def0));
    // Even lines: a bucket is two.
    let chain = CHAIN.map(|l| if l == 1 { 2 } else { l });
    chain.windows(2).for_each(|w| m.set(w[0], 3, u64::from(w[1])));
    for (table, vni) in [(root!(vm6), vni), (root!(nc6), 0)] {
        m.root.set(table, 1 << 32 | 50);
        let key = u64::from(vni) << 40 | (hash3(vni.into(), addr.0, addr.1, 0x1234) & 0xffff_ffff) << 8;
        for (reach, line, slot) in places(3).map(|(reach, line, slot)| (reach, if line == 1 { 2 } else { line }, slot))
        {
            m.set(line, slot, key | 1);
            (0..3).for_each(|i| (m.set(line, 4 + 2 * i, addr.0 + 1), m.set(line, 5 + 2 * i, addr.1)).1);
            let permit = || match table == root!(vm6) {
                true => m.t.vm6(Vni(vni), addr, 3),
                false => {
                    m.t.nc_by_addr6(addr).map(|nc| VmEntry { mac: 0x0203_0405_0607, vm: VmId(0x12_3456), nc, flags: 3 })
                }
            };
            assert_eq!(permit(), None, "another address of the same tag");
            m.set(line, 4 + 2 * slot, addr.0);
            m.set(line, 10 + 2 * slot, 0x0203_0405_0607 << 16 | 3);
            m.set(line, 11 + 2 * slot, 0x12_3456 << 32 | 0x6_5432);
            let want = VmEntry { mac: 0x0203_0405_0607, vm: VmId(0x12_3456), nc: NcId(0x6_5432), flags: 3 };
            assert_eq!(permit(), reach.then_some(want), "{line} {slot}");
            m.set(line, 5 + 2 * slot, addr.1 ^ 1);
            assert_eq!(permit(), None);
            m.set(line, 5 + 2 * slot, addr.1);
            m.set(line, slot, key | 3 | 2 << 3);
            assert_eq!(m.t.vm6(Vni(vni), addr, 2), (reach && table == root!(vm6)).then_some(want));
            assert_eq!(permit(), None, "of another generation");
            (0..16).filter(|i| *i != 3).for_each(|i| m.set(line, i, 0));
        }
        // The word that leads on is no entry, whatever it looks like.
        let next = m.lines.at(LineNo(50)).word(3);
        m.set(50, 3, key | 1);
        m.set(50, 10, addr.0);
        m.set(50, 11, addr.1);
        assert_eq!((m.t.vm6(Vni(vni), addr, 0), m.t.nc_by_addr6(addr)), (None, None));
        m.set(50, 3, next);
        m.set(50, 10, 0);
        m.set(50, 11, 0);
        m.root.set(table, 0);
        assert_eq!((m.t.vm6(Vni(vni), addr, 0), m.t.nc_by_addr6(addr)), (None, None), "there is no table");
    }
}

#[test]
fn ncs_groups_and_next_hops_are_read_word_by_word() {
    let m = Made::new(1);
    m.root.nc_chunk(0).store(1000, std::sync::atomic::Ordering::Relaxed);
    m.root.nc_chunk(255).store(9000, std::sync::atomic::Ordering::Relaxed);
    for (id, chunk) in [(1u32, 1000), (2, 1000), (9, 1000), (4095, 1000), (255 << 12, 9000), ((255 << 12) + 4095, 9000)]
    {
        let (line, i) = (chunk + id % 4096 / 8, id as usize % 8);
        assert_eq!(m.t.nc_line(NcId(id)), LineNo(line));
        assert_eq!((m.t.nc(NcId(id)), m.t.nc4(NcId(id))), (None, None));
        m.set(line, i, 0x0a01_0203 << 32 | 0x2aa_aaaa << 4 | NC_VALID);
        assert_eq!(m.t.nc(NcId(id)), Some(Nc { addr: IpAddr::V4(0x0a01_0203.into()), group: LineNo(0x2aa_aaaa) }));
        assert_eq!(m.t.nc4(NcId(id)), Some((LineNo(0x2aa_aaaa), 0x0a01_0203)));
        let record = chunk + 512 + id % 4096;
        m.set(record, 1, 0x2001);
        m.set(record, 2, 0x77);
        m.set(line, i, 0x155_5555 << 4 | NC_VALID | NC_V6);
        let six = IpAddr::V6((0x2001u128 << 64 | 0x77).into());
        assert_eq!((m.t.nc(NcId(id)), m.t.nc4(NcId(id))), (Some(Nc { addr: six, group: LineNo(0x155_5555) }), None));
        m.set(line, i, 0x155_5555 << 4 | NC_V6);
        assert_eq!((m.t.nc(NcId(id)), m.t.nc4(NcId(id))), (None, None));
        m.set(line, i, 0);
    }
    assert_eq!((m.t.nc_line(NcId(4096)), m.t.nc(NcId(4096))), (LineNo(0), None));
    // A group: how many, then the lines of its members; no more than fifteen.
    for count in [0u32, 1, 2, 14, 15, 16, u32::MAX] {
        (0..16).for_each(|i| m.set_half(500, i, 100 + i as u32));
        m.set_half(500, 0, count);
        let n = u64::from(count.min(15));
        for flow in 0..60u64 {
            let hash = flow * 0x0444_4444_0000_0000 | 0xffff_ffff;
            let want = if n == 0 { 0 } else { 101 + ((hash >> 32) * n >> 32) as u32 };
            assert_eq!(m.t.group_member(LineNo(500), hash), LineNo(want), "{count} {flow}");
        }
    }
    (0..5).for_each(|i| m.set(600, i, 0x1111_2222_3333_4444 * (i as u64 + 1)));
    let hop = m.t.nexthop(LineNo(600));
    assert_eq!(
        hop,
        NexthopView {
            dmac: 0x2222_3333_4444,
            smac: 0x4444_6666_8888,
            mtu: 0x2222,
            ifindex: IfIndex(0x9999_cccc),
            ready: true
        }
    );
    m.set(600, 0, 0xfffe_2222_3333_4444);
    assert!(!m.t.nexthop(LineNo(600)).ready);
    for (hi, lo, v4) in [(0, 0, true), (0, 0xffff_ffff, true), (0, 1 << 32, false), (1, 5, false), (0, u64::MAX, false)]
    {
        m.set(600, 3, hi);
        m.set(600, 4, lo);
        let six = IpAddr::V6((u128::from(hi) << 64 | u128::from(lo)).into());
        assert_eq!(m.t.nexthop_addr(LineNo(600)), if v4 { IpAddr::V4((lo as u32).into()) } else { six });
    }
}

/// The first and the last lines there are, and those beyond.
#[test]
fn lines_outside_are_never_touched() {
    let m = Made::new(1);
    let last = SEGMENT_LINES - 1;
    assert!(
        m.t.engine_word(LineNo(0), 3).is_none()
            && m.t.engine_word(LineNo(last + 1), 3).is_none()
            && m.t.engine_word(LineNo(u32::MAX), 3).is_none()
    );
    m.t.engine_word(LineNo(last), 3).unwrap().store(42, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(
        (m.lines.at(LineNo(last)).word(3), m.t.at(LineNo(last)).word(3), m.t.at(LineNo(last + 1)).word(3)),
        (42, 42, 0)
    );
    m.t.engine_word(LineNo(1), 15).unwrap().store(43, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(m.words(), BTreeMap::from([((last, 3), 42), ((1, 7), 43)]));
    // A meter is two lines.
    m.set(1, 7, 0);
    let block = last - 1;
    m.set(last, 3, 0);
    m.set(block, 0, 1000 << 16);
    m.set(block, 1, 5000);
    let colors = |line| (m.t.meter(line, 4, 1), m.t.meter(line, 4, 1), m.t.meter_colors(line));
    assert_eq!(colors(LineNo(block)), (Color::Green, Color::Yellow, [1, 1, 0]));
    assert_eq!([0, last, last + 1].map(|line| colors(LineNo(line))), [(Color::Green, Color::Green, [0; 3]); 3]);
    // Memory that has grown is seen.
    m.t.memory().grow(2).unwrap();
    m.set(last + 5, 2, 44);
    assert_eq!((m.t.at(LineNo(last + 5)).word(2), m.t.engine_word(LineNo(last + 6), 0).is_some()), (44, true));
    // Half words, and what only the writer may fill.
    m.lines.fill(LineNo(7), &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(m.lines.at(LineNo(7)).snapshot(), [1, 2, 3, 4, 5, 6, 7, 8]);
    (6..9).for_each(|l| m.lines.fill(LineNo(l), &[9; 8]));
    m.lines.zero(LineNo(7), 1);
    assert_eq!([6, 7, 8].map(|l| m.lines.at(LineNo(l)).word(5)), [9, 0, 9]);
    m.lines.at(LineNo(2 * SEGMENT_LINES - 1)).set(0, 9);
    m.lines.zero(LineNo(2 * SEGMENT_LINES - 1), 5);
    assert_eq!(
        (m.lines.at(LineNo(2 * SEGMENT_LINES - 1)).word(0), m.lines.at(LineNo(2 * SEGMENT_LINES)).word(0)),
        (0, 0)
    );
    assert_eq!(
        [0u32, 255].map(|n| (m.root.vm_chunk(n).as_ptr() as usize - m.root.vm_chunk(0).as_ptr() as usize) / 4),
        [0, 255]
    );
}

#[test]
fn a_walk_begins_where_its_root_says() {
    let walk = |levels: u32, line: u32| {
        Walk::begin(0xc000_0000 | levels << ROOT_LEVELS_SHIFT | line).map(|w| (w.line().0, w.second_line().0))
    };
    assert_eq!(
        [walk(0, 9), walk(1, 9), walk(14, ROOT_LINE_MASK)],
        [None, Some((9, 9)), Some((ROOT_LINE_MASK, ROOT_LINE_MASK))]
    );
    assert_eq!(walk(ROOT_FLAT, 9), Some((9, 10)), "a node of two lines");
}

/// The tree over lower halves is one step more, and no second one.
#[test]
fn a_descent_is_taken_once() {
    let m = Made::new(1);
    let leaf = |line: u32, bounds: &[u64], values: &[u32]| {
        (0..5).for_each(|i| m.set(line, i, bounds.get(i).copied().unwrap_or(u64::MAX)));
        values.iter().enumerate().for_each(|(i, v)| m.set_half(line, 10 + i, *v));
    };
    let down = |levels: u32, line: u32| (SCOPE_DESCEND + levels - 1) << VALUE_SCOPE_SHIFT | line;
    leaf(100, &[10, 20], &[1 << 28, down(1, 101), 2 << 28]);
    leaf(101, &[5], &[3 << 28, down(1, 101)]);
    let root = 1 << ROOT_LEVELS_SHIFT | 100;
    let at = |hi, lo| m.t.route6(root, (hi, lo));
    assert_eq!(
        [at(10, 9), at(11, 5), at(20, 0), at(21, 0), at(u64::MAX, 7)],
        [1 << 28, 3 << 28, 3 << 28, 2 << 28, 2 << 28]
    );
    assert_eq!(at(15, 6), 0, "a second descent is garbage");
    assert_eq!((m.t.route6(0, (1, 1)), m.t.route4(0, 1)), (0, 0));
    // By steps.
    let mut walk = Walk::begin(root).unwrap();
    let value = m.t.step6(&mut walk, 15).unwrap();
    let mut lower = m.t.descend6(value).unwrap();
    assert_eq!((lower.line(), m.t.step6(&mut lower, 4)), (LineNo(101), Some(3 << 28)));
    assert_eq!((m.t.descend6(6 << 28).is_none(), m.t.descend6(7 << 28 | 5).is_some()), (true, true));
    // An inner node leads to one of eight children, one of IPv4 to one of sixteen.
    (0..7).for_each(|i| m.set(200, i, 100 * (i as u64 + 1)));
    m.set(200, 7, 300);
    (0..8).for_each(|i| leaf(300 + i, &[], &[i << 20 | 1 << 28]));
    for key in [0, 99, 100, 101, 200, 699, 700, 701, u64::MAX] {
        let child = (0..7).filter(|i| 100 * (i + 1) < key).count() as u32;
        let mut walk = Walk::begin(2 << ROOT_LEVELS_SHIFT | 200).unwrap();
        assert_eq!(
            (m.t.step6(&mut walk, key), walk.line(), m.t.step6(&mut walk, key)),
            (None, LineNo(300 + child), Some(child << 20 | 1 << 28))
        );
    }
    (0..15).for_each(|i| m.set_half(400, i, 100 * (i as u32 + 1)));
    m.set_half(400, 15, 500);
    for i in 0..16u32 {
        (0..7).for_each(|j| m.set_half(500 + i, j, if j == 0 { 100 * i + 50 } else { u32::MAX }));
        m.set_half(500 + i, 8, i << 1);
        m.set_half(500 + i, 9, i << 1 | 1);
    }
    for key in [0, 50, 51, 100, 101, 150, 151, 1450, 1451, 1500, 1501, 1550, 1551, u32::MAX] {
        let child = (0..15).filter(|i| 100 * (i + 1) < key).count() as u32;
        let want = child << 1 | u32::from(key > 100 * child + 50);
        let mut walk = Walk::begin(2 << ROOT_LEVELS_SHIFT | 400).unwrap();
        assert_eq!(
            (m.t.step4(&mut walk, key), walk.line(), m.t.step4(&mut walk, key)),
            (None, LineNo(500 + child), Some(want))
        );
        assert_eq!(m.t.route4(2 << ROOT_LEVELS_SHIFT | 400, key), want);
    }
}

/// A memory without a single segment: line 0 does not exist either, and everything is nothing.
#[test]
fn nothing_is_found_where_there_is_no_memory() {
    let m = Made::new(0);
    let t = m.t.clone();
    assert_eq!(
        (t.tenant(Vni(5)), t.may_send4(Vni(5), 1), t.may_send6(Vni(5), NcId(1)), t.nc_by_addr4(1)),
        (None, false, false, None)
    );
    assert_eq!(
        (t.nc_by_addr6((1, 1)), t.vm4(Vni(5), 1, 0), t.vm6(Vni(5), (1, 1), 0), t.nc(NcId(1))),
        (None, None, None, None)
    );
    assert_eq!(
        (t.vm_meter(VmId(1)), t.tenant_ident(&Tenant::NONE), t.group_member(LineNo(0), 5), t.route4(1 << 26, 5)),
        (LineNo(0), 0, LineNo(0), 0)
    );
    assert_eq!(
        (t.tenant_count(&Tenant::NONE), t.vm_count(VmId(1)), t.drop_counts()),
        (Count::default(), Count::default(), vec![])
    );
    assert!(t.engine_line(LineNo(0)).is_none() && m.t.engine_word(LineNo(0), 0).is_none());
}
