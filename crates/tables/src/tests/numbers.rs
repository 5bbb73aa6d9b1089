// SPDX-License-Identifier: Apache-2.0
//! Counters, limits by default and words of the root, each to the last bit.

use super::world::*;
use crate::*;
use abi::*;
use memory::{root, Lines, RootRef};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

fn writer(options: WriterOptions) -> (Writer, Tables) {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut w = Writer::create(memory, options).unwrap();
    w.commit(&first()).unwrap();
    w.settle();
    let t = w.tables();
    (w, t)
}

/// Words of statistics that are not 0, by their place in the layout.
fn words(stats: &Stats) -> BTreeMap<usize, u64> {
    let Stats {
        rx,
        rx_bytes,
        generated,
        forwarded,
        forwarded_bytes,
        answered,
        passed,
        dropped,
        punted,
        drop_overflow,
        nat,
        flow_hits,
        flow_fills,
        flow_evictions,
        ..
    } = *stats;
    let named =
        [rx, rx_bytes, generated, forwarded, forwarded_bytes, answered, passed, dropped, punted, drop_overflow, nat];
    let cached = [flow_hits, flow_fills, flow_evictions];
    let all = named.into_iter().chain(cached).chain(stats.reserved).chain(stats.drops).chain(stats.punts);
    all.enumerate().filter(|(_, n)| *n != 0).collect()
}

#[test]
fn each_event_is_counted_in_its_words_and_in_no_other() {
    const RX: usize = 0;
    const RX_BYTES: usize = 1;
    const GENERATED: usize = 2;
    const FORWARDED: usize = 3;
    const FORWARDED_BYTES: usize = 4;
    const ANSWERED: usize = 5;
    const PASSED: usize = 6;
    const DROPPED: usize = 7;
    const PUNTED: usize = 8;
    const OVERFLOW: usize = 9;
    const NAT: usize = 10;
    let drop = |reason: DropReason| 32 + reason as usize;
    let punt = |reason: PuntReason| 32 + 128 + reason as usize;
    const ROUTE: DropReason = DropReason::RouteNone;
    const TTL: DropReason = DropReason::TtlExpired;
    const FAILED: DropReason = DropReason::TxFailed;
    let minus = |n: u64| n.wrapping_neg();
    type Event<'a> = (&'a dyn Fn(&Tables, StatsSlot<'_>), Vec<(usize, u64)>);
    let events: Vec<Event<'_>> = vec![
        (&|_, s| s.rx(70), vec![(RX, 1), (RX_BYTES, 70)]),
        (
            &|_, s| s.batch(Count { packets: 3, bytes: 50 }, Count { packets: 2, bytes: 40 }),
            vec![(RX, 3), (RX_BYTES, 50), (FORWARDED, 2), (FORWARDED_BYTES, 40)],
        ),
        (&|_, s| s.generated(), vec![(GENERATED, 1)]),
        (&|_, s| s.forwarded(60), vec![(FORWARDED, 1), (FORWARDED_BYTES, 60)]),
        (&|_, s| s.nat(), vec![(NAT, 1)]),
        (&|_, s| s.answered(), vec![(ANSWERED, 1)]),
        (&|_, s| s.passed(), vec![(PASSED, 1)]),
        (&|_, s| s.dropped(ROUTE), vec![(DROPPED, 1), (drop(ROUTE), 1)]),
        (&|_, s| s.punted(PuntReason::Arp), vec![(PUNTED, 1), (punt(PuntReason::Arp), 1)]),
        (&|_, s| s.lost(TTL, 7), vec![(RX, 7), (DROPPED, 7), (drop(TTL), 7)]),
        (&|_, s| s.gone(TTL, 9), vec![(DROPPED, 9), (drop(TTL), 9)]),
        (
            &|_, s| s.unsent_forwarded(60),
            vec![(FORWARDED, minus(1)), (FORWARDED_BYTES, minus(60)), (DROPPED, 1), (drop(FAILED), 1)],
        ),
        (&|_, s| s.unsent_answer(), vec![(ANSWERED, minus(1)), (DROPPED, 1), (drop(FAILED), 1)]),
        (&|_, s| s.taken(5), vec![(PUNTED, 5)]),
        (&|t, _| t.count_drop_overflow(3), vec![(OVERFLOW, 1)]),
    ];
    for (n, (event, want)) in events.iter().enumerate() {
        let (_w, t) = writer(WriterOptions { worker_slots: 4, ..Default::default() });
        event(&t, t.stats(3));
        let want: BTreeMap<usize, u64> = want.iter().copied().collect();
        assert_eq!(words(&t.stats(3).read()), want, "event {n}");
        assert_eq!(words(&t.stats_total()), want, "event {n}");
        assert!(words(&t.stats(2).read()).is_empty() && words(&t.stats(4).read()).is_empty(), "event {n}");
        event(&t, t.stats(SLOTS_MAX - 1));
        let twice: BTreeMap<usize, u64> =
            want.iter().map(|(i, n)| (*i, n.wrapping_mul(2))).filter(|(_, n)| *n != 0).collect();
        let total = words(&t.stats_total());
        assert_eq!(total, twice, "event {n}: the sum of all slots");
        // A slot that there is not is the last one.
        t.stats(SLOTS_MAX + 7).rx(1);
        assert_eq!(
            t.stats(SLOTS_MAX - 1).read().rx.wrapping_sub(1),
            if n == 14 { 0 } else { want.get(&RX).copied().unwrap_or(0) },
            "event {n}"
        );
    }
}

/// Many VPCs and VMs, many slots: each count is its own, whatever lies beside it.
#[test]
fn counts_of_neighbours_do_not_mix() {
    for worker_slots in [0, 2, 7, 8, 30] {
        let (mut w, t) = writer(WriterOptions { worker_slots, ..Default::default() });
        let (words, slots) = (1 + worker_slots.min(7), 1 + worker_slots);
        let blocks = w.bytes_by_table().into_iter().find(|b| b.0 == "tenant_blocks").unwrap().1;
        assert_eq!(blocks, 4096 * (128 + 8 * u64::from(words)));
        let mut lines = std::collections::BTreeSet::new();
        for (n, vni) in w.vnis().into_iter().enumerate() {
            let tenant = t.tenant(vni).unwrap();
            for slot in 0..slots {
                lines.insert((t.tenant_cell_line(tenant.id(), slot), tenant.id().0 % 8));
                for _ in 0..=n {
                    t.count_tenant(&tenant, slot, u64::from(slot) + 1);
                }
            }
        }
        assert_eq!(lines.len(), VPCS as usize * words as usize, "words of VPCs");
        for (n, vni) in w.vnis().into_iter().enumerate() {
            let (each, slots) = (n as u64 + 1, u64::from(slots));
            let want = Count { packets: each * slots, bytes: each * slots * (slots + 1) / 2 };
            assert_eq!(t.tenant_count(&t.tenant(vni).unwrap()), want);
        }
        let vms: Vec<u32> = w.vnis().iter().flat_map(|v| w.dump(*v).unwrap().vms).map(|vm| vm.id.0).collect();
        vms.iter().for_each(|vm| (0..vm % 5).for_each(|_| t.count_vm(VmId(*vm), u64::from(*vm))));
        for vm in vms {
            assert_eq!(t.vm_count(VmId(vm)), Count { packets: u64::from(vm % 5), bytes: u64::from(vm % 5 * vm) });
        }
        assert_eq!(t.vm_count(VmId(VMS_MAX - 1)), Count::default(), "no chunk");
        // A VPC that goes takes its counts along.
        let vni = w.vnis()[3];
        let (id, tenant) = (t.tenant(vni).unwrap().id(), t.tenant(vni).unwrap());
        let gone = TenantChange { vni, delete: true, ..Default::default() };
        w.commit(&Commit { tenants: vec![gone], ..Default::default() }).unwrap();
        w.settle();
        assert_eq!(t.tenant_count(&tenant), Count::default(), "id {id}");
    }
}

/// A word that is full goes over into the totals, packets and bytes each by itself, also where several slots share it.
#[test]
fn full_words_are_carried_and_nothing_is_lost() {
    for worker_slots in [2, 20] {
        let (w, t) = writer(WriterOptions { worker_slots, ..Default::default() });
        let tenant = t.tenant(vni(5)).unwrap();
        let vm = w.dump(vni(5)).unwrap().vms[0].id;
        let (cell, slot) = (t.vm_cell_line(vm), vm.0 as usize % 8);
        let lines = Lines::new(&**w.memory());
        // Close to each edge: the packets' bit, the bytes' bit, both.
        for (n, near) in [(1u64 << 23) - 1, 0, (1 << 23) - 1].into_iter().enumerate() {
            let bytes = if n == 0 { 0 } else { (1u64 << 39) - 1 };
            let word = near << 40 | bytes;
            let places = [(cell, slot), (t.tenant_cell_line(tenant.id(), 1), tenant.id().0 as usize % 8)];
            let counts = || [t.vm_count(vm), t.tenant_count(&tenant)];
            let before = counts();
            for (line, i) in places {
                let old = lines.at(line).word(i);
                assert_eq!(old & CELL_SPILL_MASK, 0);
                lines.at(line).set(i, word);
            }
            let base = counts();
            for more in 1..=4u64 {
                t.count_vm(vm, 3);
                t.count_tenant(&tenant, 1, 3);
                for (now, base) in counts().into_iter().zip(base) {
                    assert_eq!(
                        now,
                        Count { packets: base.packets + more, bytes: base.bytes + 3 * more },
                        "{worker_slots} {n}"
                    );
                }
            }
            assert!(places.iter().all(|(line, i)| lines.at(*line).word(*i) & CELL_SPILL_MASK == 0));
            assert!(counts().iter().zip(before).all(|(now, before)| now.packets > before.packets));
        }
    }
}

/// A table of drop counters of five lines, whose buckets wrap round: twenty counters, each found again, and no more.
#[test]
fn drop_counters_fill_their_table_and_no_more() {
    let (w, t) = writer(WriterOptions { drop_lines: 5, ..Default::default() });
    let mut counted: BTreeMap<(Vni, u8), u64> = BTreeMap::new();
    let mut refused = 0;
    for n in 0..400u32 {
        let (vni, reason) = (n % 23, DropReason::ALL[n as usize % 3]);
        let fits = t.add_drops(Vni(vni), reason, u64::from(n) + 1);
        let known = counted.contains_key(&(Vni(vni), reason as u8));
        assert!(fits || !known, "a counter that is there always fits");
        if fits {
            *counted.entry((Vni(vni), reason as u8)).or_default() += u64::from(n) + 1;
        }
        refused += u32::from(!fits);
        assert_eq!(t.drop_count(Vni(vni), reason), counted.get(&(Vni(vni), reason as u8)).copied().unwrap_or(0));
        let level = w.usage().into_iter().find(|l| l.name == "drop_counters").unwrap();
        assert_eq!((level.used, level.limit), (counted.len() as u64, 20));
    }
    assert!(refused > 0 && counted.len() > 12, "{}", counted.len());
    let all: BTreeMap<(Vni, u8), u64> = t.drop_counts().into_iter().map(|(v, r, n)| ((v, r as u8), n)).collect();
    assert_eq!(all, counted);
    assert_eq!(t.drop_counts().len(), counted.len());
    // Of another VNI or reason there is none.
    assert_eq!((t.drop_count(Vni(23), DropReason::ALL[0]), t.drop_count(Vni(0), DropReason::ALL[5])), (0, 0));
}

#[test]
fn what_nobody_has_set_is_what_the_handbook_says() {
    let l = Limits::default();
    assert_eq!((l.tenants, l.routes, l.routes_per_tenant, l.vms), (1 << 20, 1 << 24, 1 << 20, 1 << 24));
    assert_eq!((l.vms_per_tenant, l.addresses, l.ncs, l.segments), (1 << 24, 1 << 25, (1 << 20) - 1, 1024));
    let o = WriterOptions::default();
    assert_eq!((o.xdp_slots, o.worker_slots, o.drop_lines, o.limits), (1, 2, 4096, l));
    let g = GatewaySettings::default();
    assert_eq!((g.vtep4, g.vtep6, g.options), (None, None, OPT_SOURCE_STRICT | OPT_ICMP | 4789 << 16));
    let of = |r: PuntRates| [r.committed.per_second, r.committed.burst, r.peak.per_second, r.peak.burst];
    assert_eq!(of(g.punts_tenant), [1_000, 256, 5_000, 1_280]);
    assert_eq!(of(g.punts_total), [100_000, 4_096, 200_000, 8_192]);
    assert_eq!((g.icmp_limit_tenant.per_second, g.icmp_limit_tenant.burst), (100, 32));
}

#[test]
fn rates_are_nanoseconds_a_packet_rounded_down_and_never_none() {
    let word = |per_second, burst| RateLimit { per_second, burst }.word();
    for (rate, ns) in
        [(1, 1_000_000_000), (3, 333_333_333), (7, 142_857_142), (999_999_999, 1), (1_000_000_000, 1), (u32::MAX, 1)]
    {
        assert_eq!((word(rate, 9), word(rate, 0), word(rate, 1)), (9 << 32 | ns, 1 << 32 | ns, 1 << 32 | ns), "{rate}");
    }
    assert_eq!(word(0, 9), 0);
    assert_eq!(options_word(OPT_ICMP, 0xffff, 0xff, 0xff), OPT_ICMP | 0x3f << 8 | 0xffff << 16 | 0xff << 32);
}

/// Every setting of the gateway is a word of the root, and each is its own.
#[test]
fn settings_of_the_gateway_are_words_of_the_root() {
    let (mut w, t) = writer(WriterOptions::default());
    let root = RootRef::new(&**w.memory());
    let limit = |n| RateLimit { per_second: 1_000_000 * n, burst: n };
    let word = |n: u64| n << 32 | 1000 / n;
    let rates = |a, b| PuntRates { committed: limit(a), peak: limit(b) };
    let settings = GatewaySettings {
        vtep4: Some(Ipv4Addr::new(192, 0, 2, 9)),
        vtep6: Some(Ipv6Addr::from_bits(0xfd00 << 112 | 0xabcd)),
        options: 0x1234_5678,
        punts_tenant: rates(1, 2),
        punts_total: rates(4, 5),
        icmp_limit_tenant: limit(8),
        software: limit(9),
    };
    w.set_gateway(&settings);
    let have = [
        root!(vtep4),
        root!(vtep6_hi),
        root!(vtep6_lo),
        root!(options),
        root!(punt_limit_tenant),
        root!(punt_peak_tenant),
        root!(punt_limit_total),
        root!(punt_peak_total),
        root!(icmp_limit_tenant),
        root!(software_limit),
    ]
    .map(|at| root.get(at));
    assert_eq!(
        have,
        [0xc000_0209, 0xfd00 << 48, 0xabcd, 0x1234_5678, word(1), word(2), word(4), word(5), word(8), word(9)]
    );
    assert_eq!((t.vtep4(), t.vtep6(), t.options()), (0xc000_0209, (0xfd00 << 48, 0xabcd), 0x1234_5678));
    w.set_gateway(&GatewaySettings { vtep4: None, vtep6: None, ..settings });
    assert_eq!((t.vtep4(), t.vtep6()), (0, (0, 0)));
}

#[test]
fn slots_are_what_was_asked_for_within_what_there_may_be() {
    for (xdp_slots, worker_slots, want) in [
        (0, 0, (1, 0)),
        (1, 0, (1, 1)),
        (3, 4, (7, 3)),
        (200, 56, (256, 200)),
        (200, 57, (256, 200)),
        (300, 1, (256, 256)),
    ] {
        let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
        let w = Writer::create(memory, WriterOptions { xdp_slots, worker_slots, drop_lines: 1, ..Default::default() })
            .unwrap();
        assert_eq!(w.tables().slots(), want);
        let root = RootRef::new(&**w.memory());
        assert_eq!(root.get(root!(tenant_words)), u64::from(want.0.min(8)));
        assert_eq!(root.get(root!(drops)) >> 32, 4, "four lines at least");
    }
}

/// Rings to the software path: what was punted and what was taken, each by its own epoch.
#[test]
fn punts_are_taken_and_returned_by_ring_and_by_share() {
    let (w, t) = writer(WriterOptions::default());
    let (root, lines) = (RootRef::new(&**w.memory()), Lines::new(&**w.memory()));
    let ring = |n: usize| root.get(root!(punt_rings) + 8 * n);
    t.open_punt_ring(70, 512);
    assert_eq!((ring(69), ring(70), ring(71), root.get(root!(punt_epoch))), (0, 512 << 32, 0, 1));
    root.set(root!(punt_rings) + 8 * 70, 512 << 32 | 9);
    t.punts_taken(70, 4);
    assert_eq!(ring(70), 512 << 32 | 5);
    t.punts_taken(70, 6);
    assert_eq!(ring(70), 512 << 32, "never below none");
    root.set(root!(punt_rings) + 8 * 1023, 8 << 32 | 8);
    t.punts_lost(1023, 3);
    assert_eq!((ring(1023), root.get(root!(punt_epoch))), (8 << 32 | 5, 2));
    // The sockets of VM ports have higher numbers, and no word.
    t.open_punt_ring(1024 + 1023, 64);
    t.punts_taken(1024 + 1023, 1);
    assert_eq!((ring(1023), root.get(root!(punt_epoch))), (8 << 32 | 5, 2));
    // Shares: nobody's, one of the eight of others, a VPC's.
    let tenant = t.tenant(vni(3)).unwrap();
    let state = t.tenant_record(tenant.id()) + (1 << TENANT_CHUNK_SHIFT);
    let held = std::mem::offset_of!(TenantState, punts_held) / 8;
    for n in 0..8 {
        root.set(root!(punt_others) + 8 * n, 2 << 32 | 20);
    }
    lines.at(state).set(held, 2 << 32 | 30);
    assert_eq!(t.punts_held(&tenant), 30);
    t.punts_returned(0, 5);
    t.punts_returned(1, 1);
    t.punts_returned(8, 8);
    t.punts_returned(state.0, 7);
    let others: Vec<u64> = (0..8).map(|n| root.get(root!(punt_others) + 8 * n) & 0xffff_ffff).collect();
    assert_eq!((others, t.punts_held(&tenant)), (vec![19, 20, 20, 20, 20, 20, 20, 12], 23));
    assert_eq!(root.get(root!(punt_others)) >> 32, 2);
    // What belongs to another epoch has begun anew.
    lines.at(state).set(held, 1 << 32 | 30);
    t.punts_returned(state.0, 7);
    assert_eq!((t.punts_held(&tenant), lines.at(state).word(held)), (0, 1 << 32 | 30));
    t.punts_returned(lines.limit(), 7);
    t.punts_returned(9, 1);
    assert_eq!(t.punts_held(&t.tenant(vni(4)).unwrap()), 0);
}

/// Every way to ask for a VPC, a sender, a VM or an NC gives one answer: by bucket, by lines of a batch, by everything at once.
#[test]
fn every_way_to_ask_has_one_answer() {
    let (mut w, t) = writer(WriterOptions::default());
    let six: Vec<IpAddr> = (1..30u128).map(|n| IpAddr::V6(Ipv6Addr::from_bits(0xfd00 << 112 | n))).collect();
    let settings = |i: u32| TenantSettings {
        gateway_mac: 0x0212_3456_0000 + u64::from(i),
        gateways: vec![IpAddr::V4(Ipv4Addr::from_bits(0x0a01_ff00 + i))],
        extra_ncs: six[..i as usize % 9].to_vec(),
        icmp: i.is_multiple_of(2),
        ..Default::default()
    };
    let tenants = (0..VPCS).map(|i| TenantChange { vni: vni(i), settings: Some(settings(i)), ..Default::default() });
    w.commit(&Commit { nc_add: six.clone(), tenants: tenants.collect(), ..Default::default() }).unwrap();
    w.settle();
    let at = t.tables4();
    for i in 0..VPCS {
        let vni = vni(i);
        let tenant = t.tenant(vni).unwrap();
        assert_eq!(
            (t.tenant_from(t.tenant_bucket(vni), vni), t.tenant_from(t.tenant_line(&at, vni), vni)),
            (Some(tenant), Some(tenant))
        );
        assert_eq!((tenant.gateway_mac(), t.gateway4(&tenant)), (0x0212_3456_0000 + u64::from(i), 0x0a01_ff00 + i));
        assert_eq!(t.tenant_ident(&tenant), u64::from(vni) | if i % 2 == 0 { 0 } else { TENANT_ICMP_OFF });
        for n in 0..20u32 {
            let src = 0xc0a8_0000 + n;
            let may = (1..=16).contains(&n) && w.dump(vni).unwrap().members.contains(&IpAddr::V4(src.into()));
            let wanted = [
                t.may_send4(vni, src),
                t.may_send4_from(t.member4_bucket(vni, src), vni, src),
                t.may_send4_from(t.member4_line(&at, vni, src), vni, src),
            ];
            assert_eq!(wanted, [may; 3], "{n} for {vni}");
        }
        for (n, addr) in six.iter().enumerate() {
            let IpAddr::V6(a) = addr else { unreachable!() };
            let id = t.nc_by_addr6(super::model::halves(a.to_bits())).unwrap();
            assert_eq!(t.may_send6(vni, id), n < i as usize % 9);
            assert_eq!((t.nc(id).unwrap().addr, t.nc4(id)), (*addr, None));
        }
        for n in 0..40u32 {
            let addr = 0x0a01_0000 + n;
            let one = t.vm4(vni, addr, tenant.generation());
            assert_eq!(one.is_some(), n % 3 == 1 && n < 21, "{n}");
            assert_eq!(t.vm4_from(t.vm4_bucket(vni, addr), &tenant, addr), one);
            assert_eq!(t.vm4_from(BucketRef::NONE, &tenant, addr), one);
            // Line by line, as a batch does.
            let mut line = t.vm4_line(&at, vni, addr);
            let mut found = Err(line);
            for _ in 0..CHAIN_MAX {
                found = t.vm4_lasting(&at, line, vni, addr);
                match found {
                    Err(next) if next != LineNo(0) => line = next,
                    _ => break,
                }
            }
            assert_eq!(found.ok(), one);
            let Some(e) = one else { continue };
            let addr = t.nc(e.nc).unwrap().addr;
            assert_eq!(t.nc4(e.nc), Some((LineNo(0), if let IpAddr::V4(a) = addr { a.to_bits() } else { 0 })));
            assert_eq!(t.nc_by_addr4(t.nc4(e.nc).unwrap().1), Some(e.nc));
        }
    }
    for vni in [0, 999, 0xff_ffff] {
        assert_eq!((t.tenant(Vni(vni)), t.tenant_from(t.tenant_line(&at, Vni(vni)), Vni(vni))), (None, None));
    }
    assert_eq!((t.nc_by_addr4(0), t.nc_by_addr6((0, 0)), t.nc_by_addr6((0xfd00 << 48, 30))), (None, None, None));
    assert_eq!(
        (t.tenant_record(VpcId(TENANTS_MAX - 1)), t.vm_cell_line(VmId(VMS_MAX - 1)), t.nc_line(NcId(NCS_MAX - 1))),
        (LineNo(0), LineNo(0), LineNo(0))
    );
    // A reader holds what it found: the tables may be others afterwards.
    let more = (0..500).map(|n| TenantChange {
        vni: Vni(100_000 + n),
        settings: Some(TenantSettings::default()),
        ..Default::default()
    });
    let vm = |n: u32| VmSpec {
        mac: 0x0a00_0000_0000 | u64::from(n),
        ipv4: Some(0x0b00_0000 + n),
        ipv6: None,
        more: Vec::new(),
        nc: ncs()[0],
        meter: None,
        shaped: false,
    };
    let mut grown: Vec<TenantChange> = more.collect();
    grown.push(TenantChange { vni: vni(0), vm_add: (0..2000).map(vm).collect(), ..Default::default() });
    w.commit(&Commit { tenants: grown, ..Default::default() }).unwrap();
    let (addr, tenant) = (0x0a01_0001, t.tenant(vni(0)).unwrap());
    assert_eq!(t.vm4_lasting(&at, t.vm4_line(&at, vni(0), addr), vni(0), addr), Err(LineNo(0)), "another table by now");
    assert!(t.vm4_from(t.vm4_bucket(vni(0), addr), &tenant, addr).is_some());
}

/// A group of n next hops: each flow has one, all have flows, and where it stands follows from the upper half of the hash alone.
#[test]
fn flows_spread_over_a_group_by_their_hash() {
    let (mut w, t) = writer(WriterOptions::default());
    let hop = |n: u8| NexthopSpec {
        addr: IpAddr::V4(Ipv4Addr::new(10, 9, 9, n)),
        ifindex: IfIndex(n.into()),
        dmac: Some(0x0200_0000_0000 | u64::from(n)),
        smac: 0x0400_0000_0001,
        mtu: 1500,
    };
    let hops: Vec<NexthopId> = (0..20).map(|n| w.set_nexthop(&hop(n)).unwrap()).collect();
    for n in [1usize, 2, 7, 15, 20] {
        let group = w.set_group(None, &hops[..n]).unwrap();
        let count = n.min(15);
        for i in 0..count {
            let first = ((i as u64) << 32).div_ceil(count as u64) << 32;
            assert_eq!(t.group_member(group.0, first), hops[i].0, "{n}: {i}");
            assert_eq!(
                t.group_member(group.0, (((i as u64 + 1) << 32).div_ceil(count as u64) << 32).wrapping_sub(1)),
                hops[i].0
            );
            let view = t.nexthop(hops[i].0);
            assert_eq!(
                (view.ifindex, view.dmac, view.smac, view.mtu, view.ready),
                (IfIndex(i as u32), 0x0200_0000_0000 | i as u64, 0x0400_0000_0001, 1500, true)
            );
        }
        assert_eq!(w.groups().into_iter().find(|g| g.0 == group).unwrap().1, hops[..count]);
    }
    let none = w.set_group(None, &[]).unwrap();
    assert_eq!(t.group_member(none.0, 77), LineNo(0));
}
