// SPDX-License-Identifier: Apache-2.0
//! Words that engines change: meters, limits, counters; and the underlay's next hops and groups.

use super::world::*;
use crate::testing::seeded;
use crate::*;
use abi::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

fn build(options: WriterOptions) -> (Writer, Tables) {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut w = Writer::create(memory, options).unwrap();
    w.commit(&first()).unwrap();
    let t = w.tables();
    (w, t)
}

/// RFC 2698 with real buckets, in exact fractions of a token: tokens · 10⁹.
struct Bucket {
    rate: u64,
    burst: u128,
    tokens: u128,
    last: u64,
}

impl Bucket {
    fn new(rate: u64, burst: u64) -> Bucket {
        let burst = u128::from(burst) * 1_000_000_000;
        Bucket { rate, burst, tokens: burst, last: 0 }
    }
    fn fill(&mut self, now: u64) {
        self.tokens = self.burst.min(self.tokens + u128::from(now - self.last) * u128::from(self.rate));
        self.last = now;
    }
    fn has(&self, amount: u64) -> bool {
        self.rate == 0 || self.tokens >= u128::from(amount) * 1_000_000_000
    }
    fn take(&mut self, amount: u64) {
        self.tokens -= if self.rate == 0 { 0 } else { u128::from(amount) * 1_000_000_000 };
    }
    /// So close to the edge that rounding to whole nanoseconds may decide otherwise.
    fn close(&self, amount: u64, packets: u64) -> bool {
        let edge = u128::from(amount) * 1_000_000_000;
        self.rate != 0 && self.tokens.abs_diff(edge) <= u128::from(self.rate) * (4 + 2 * u128::from(packets))
    }
}

#[test]
fn meters_equal_token_buckets() {
    let (_seed, mut rng) = seeded("meter");
    let mut colors = [0; 3];
    for _ in 0..60 {
        // Rates that divide 10⁹ · 2¹⁶, so that only whole-nanosecond rounding is left.
        let rate = |rng: &mut rand_chacha::ChaCha8Rng| 1000 << rng.random_range(0..8u64);
        let spec = RateSpec {
            committed_rate: if rng.random_bool(0.2) { 0 } else { rate(&mut rng) },
            committed_burst: rng.random_range(2_000..9_000),
            peak_rate: if rng.random_bool(0.2) { 0 } else { rate(&mut rng) * 2 },
            peak_burst: rng.random_range(2_000..20_000),
        };
        let (mut w, tables) = build(WriterOptions::default());
        let mut c = change(0, 0, 0, true);
        c.settings.as_mut().unwrap().meter = Some(Box::new(MeterSpec { bytes: spec, packets: RateSpec::default() }));
        w.commit(&Commit { tenants: vec![c], ..Default::default() }).unwrap();
        let line = tables.tenant_meter(&tables.tenant(vni(0)).unwrap());
        let mut committed = Bucket::new(spec.committed_rate, spec.committed_burst);
        let mut peak = Bucket::new(spec.peak_rate, spec.peak_burst);
        let mut now = 0;
        let mut counted = [0u64; 3];
        for n in 0..400 {
            now += rng.random_range(0..2_000_000u64) * rng.random_range(0..200u64);
            let bytes = rng.random_range(64..1500u32);
            committed.fill(now);
            peak.fill(now);
            if committed.close(u64::from(bytes), n) || peak.close(u64::from(bytes), n) {
                continue;
            }
            let want = if !peak.has(u64::from(bytes)) {
                Color::Red
            } else if !committed.has(u64::from(bytes)) {
                peak.take(u64::from(bytes));
                Color::Yellow
            } else {
                peak.take(u64::from(bytes));
                committed.take(u64::from(bytes));
                Color::Green
            };
            assert_eq!(tables.meter(line, bytes, now), want, "packet {n} of {spec:?}");
            colors[want as usize] += 1;
            counted[want as usize] += 1;
        }
        let state = tables.lines.at(line + 1);
        assert_eq!([state.word(4), state.word(5), state.word(6)], counted);
    }
    assert!(colors.iter().all(|c| *c > 100), "{colors:?}");
}

#[test]
fn the_worse_color_of_bytes_and_packets_wins() {
    let (mut w, tables) = build(WriterOptions::default());
    let packets = RateSpec { committed_rate: 1, committed_burst: 1, peak_rate: 1, peak_burst: 3 };
    let mut c = change(0, 0, 0, true);
    c.vm_add[0].meter = Some(Box::new(MeterSpec { bytes: RateSpec::default(), packets }));
    let mac = c.vm_add[0].mac;
    w.commit(&Commit { tenants: vec![c.clone()], ..Default::default() }).unwrap();
    let t = tables.tenant(vni(0)).unwrap();
    let vm = tables.vm4(t.vni, c.vm_add[0].ipv4.unwrap(), t.generation()).unwrap();
    assert_eq!((vm.mac, vm.flags), (mac, VM_FLAG_METERED));
    let line = tables.vm_meter(vm.vm);
    assert_ne!(line, LineNo(0));
    let got: Vec<Color> = (0..4).map(|_| tables.meter(line, 9000, 5)).collect();
    assert_eq!(got, [Color::Green, Color::Yellow, Color::Yellow, Color::Red]);
    // The same meter stays where it is, with its state; another one is new; none is green.
    w.commit(&Commit { tenants: vec![c.clone()], ..Default::default() }).unwrap();
    assert_eq!(tables.vm_meter(vm.vm), line);
    assert_eq!(tables.meter(line, 9000, 5), Color::Red);
    let bytes = RateSpec { committed_rate: 10, committed_burst: 100, peak_rate: 10, peak_burst: 100 };
    c.vm_add[0].meter = Some(Box::new(MeterSpec { bytes, packets: RateSpec::default() }));
    w.commit(&Commit { tenants: vec![c.clone()], ..Default::default() }).unwrap();
    let line2 = tables.vm_meter(vm.vm);
    assert!(line2 != LineNo(0) && line2 != line);
    assert_eq!([tables.meter(line2, 100, 5), tables.meter(line2, 1, 5)], [Color::Green, Color::Red]);
    c.vm_add[0].meter = None;
    w.commit(&Commit { tenants: vec![c.clone()], ..Default::default() }).unwrap();
    assert_eq!((tables.vm_meter(vm.vm), tables.meter(LineNo(0), 100, 5)), (LineNo(0), Color::Green));
    let t = tables.tenant(vni(0)).unwrap();
    let e = tables.vm4(t.vni, c.vm_add[0].ipv4.unwrap(), t.generation()).unwrap();
    assert_eq!((e.vm, e.flags), (vm.vm, 0), "the VM keeps its id");
}

#[test]
fn limits_of_punts_and_icmp_are_per_tenant_and_total() {
    let (mut w, tables) = build(WriterOptions::default());
    let limit = |per_second, burst| RateLimit { per_second, burst };
    let rates = |committed, peak| PuntRates { committed: limit(10, committed), peak: limit(10, peak) };
    let unlimited = PuntRates { committed: limit(0, 0), peak: limit(0, 0) };
    w.set_gateway(&GatewaySettings {
        punts_tenant: rates(3, 5),
        punts_total: rates(4, 7),
        icmp_limit_tenant: limit(1, 2),
        ..Default::default()
    });
    let (a, b) = (tables.tenant(vni(0)).unwrap(), tables.tenant(vni(1)).unwrap());
    let count = |f: &dyn Fn() -> bool| (0..20).filter(|_| f()).count();
    // Four while the total is green, a fifth within the tenant's peak rate while it is yellow, none while it is red.
    assert_eq!(count(&|| tables.punt(Some(&a), 1_000)), 5);
    assert_eq!(count(&|| tables.punt(Some(&b), 1_000)), 3, "one tenant does not starve another");
    assert_eq!(count(&|| tables.punt(None, 1_000)), 0, "who is unknown waits");
    assert_eq!((tables.tenant_punts(&a), tables.tenant_punts(&b)), ((5, 15), (3, 17)));
    assert_eq!(count(&|| tables.icmp_allowed(&a, 1_000)), 2);
    assert_eq!(count(&|| tables.punt(Some(&a), 200_001_000)), 2, "0.2 s later");
    w.set_gateway(&GatewaySettings { punts_tenant: rates(3, 5), punts_total: unlimited, ..Default::default() });
    assert_eq!(count(&|| tables.punt(Some(&a), 1_000)), 20, "no total, nobody is limited");
    w.set_gateway(&GatewaySettings { punts_tenant: unlimited, punts_total: rates(1, 1), ..Default::default() });
    assert_eq!(count(&|| tables.punt(Some(&a), 1_000)), 20, "0 = no limit");
    assert!(!tables.icmp_allowed(&Tenant { key: TENANT_VALID, ..a }, 1));
    assert_eq!(limit(2_000_000_000, 0).word(), 1 << 32 | 1);
    let tat = AtomicU64::new(0);
    assert!(gcra(&tat, 10, 5, 5) && !gcra(&tat, 10, 1, 5) && gcra(&tat, 11, 1, 5) && tat.load(Ordering::Relaxed) == 16);
}

/// N + 1 meters as RFC 2698 has them, with buckets of tokens.
struct TwoRates {
    committed: Bucket,
    peak: Bucket,
}

impl TwoRates {
    fn new(r: &PuntRates) -> TwoRates {
        let bucket = |l: RateLimit| Bucket::new(l.per_second.into(), l.burst.into());
        TwoRates { committed: bucket(r.committed), peak: bucket(r.peak) }
    }

    fn color(&mut self, now: u64) -> Color {
        self.committed.fill(now);
        self.peak.fill(now);
        if !self.peak.has(1) {
            return Color::Red;
        }
        self.peak.take(1);
        if !self.committed.has(1) {
            return Color::Yellow;
        }
        self.committed.take(1);
        Color::Green
    }
}

#[test]
fn meters_of_punts_equal_token_buckets() {
    let (_seed, mut rng) = seeded("punts");
    let mut outcomes = [0; 2];
    for _ in 0..30 {
        let (mut w, tables) = build(WriterOptions::default());
        // Rates whose packets take whole nanoseconds, so that nothing is rounded.
        let limit = |rng: &mut rand_chacha::ChaCha8Rng| RateLimit {
            per_second: [0, 100, 200, 500, 1000, 2000, 5000][rng.random_range(0..7)],
            burst: rng.random_range(1..30),
        };
        let rates = |rng: &mut rand_chacha::ChaCha8Rng| PuntRates { committed: limit(rng), peak: limit(rng) };
        let (punts_tenant, punts_total) = (rates(&mut rng), rates(&mut rng));
        w.set_gateway(&GatewaySettings { punts_tenant, punts_total, ..Default::default() });
        let tenants: Vec<Tenant> = (0..3).map(|n| tables.tenant(vni(n)).unwrap()).collect();
        let (mut total, mut each) = (TwoRates::new(&punts_total), [(); 3].map(|()| TwoRates::new(&punts_tenant)));
        let (mut now, mut counts) = (1u64 << 40, [(0, 0); 3]);
        for _ in 0..1000 {
            now += rng.random_range(0..1_500_000);
            let n = rng.random_range(0..8usize).min(3);
            let mine = each.get_mut(n).map_or(Color::Yellow, |t| t.color(now));
            let want = match total.color(now) {
                Color::Green => true,
                Color::Yellow => mine != Color::Red,
                Color::Red => mine == Color::Green,
            };
            assert_eq!(tables.punt(tenants.get(n), now), want, "{punts_tenant:?} {punts_total:?} {mine:?}");
            outcomes[usize::from(want)] += 1;
            if let Some((passed, limited)) = counts.get_mut(n) {
                *if want { passed } else { limited } += 1;
            }
        }
        assert_eq!(tenants.iter().map(|t| tables.tenant_punts(t)).collect::<Vec<_>>(), counts);
    }
    assert!(outcomes.iter().all(|n| *n > 1000), "{outcomes:?}");
}

#[test]
fn counters_count_and_cells_spill() {
    let (w, tables) = build(WriterOptions { xdp_slots: 3, worker_slots: 4, drop_lines: 4, ..Default::default() });
    assert_eq!(tables.slots(), (7, 3));
    let t = tables.tenant(vni(2)).unwrap();
    for slot in 0..7 {
        tables.count_tenant(&t, slot, 100 + u64::from(slot));
        tables.count_tenant(&t, slot, 1);
    }
    assert_eq!(tables.tenant_count(&t), Count { packets: 14, bytes: 700 + 21 + 7 });
    assert_eq!(tables.tenant_count(&tables.tenant(vni(3)).unwrap()), Count::default());
    let vm = |n: usize| w.dump(vni(2)).unwrap().vms[n].id;
    let mut want = Count::default();
    for i in 0..3_000u64 {
        let bytes = if i % 7 == 0 { 1 << 38 } else { i };
        tables.count_vm(vm(1), bytes);
        want.packets += 1;
        want.bytes += bytes;
    }
    assert_eq!(tables.vm_count(vm(1)), want);
    assert_eq!((tables.vm_count(vm(0)), tables.vm_count(vm(2))), (Count::default(), Count::default()));
    // Sixteen drop counters fit into four lines; what does not is reported to the caller.
    let mut fits = 0;
    for vni in 0..40 {
        let good = tables.count_drop(Vni(vni), DropReason::TtlExpired);
        assert_eq!(good, tables.count_drop(Vni(vni), DropReason::TtlExpired));
        assert_eq!(tables.drop_count(Vni(vni), DropReason::TtlExpired), if good { 2 } else { 0 });
        assert_eq!(tables.drop_count(Vni(vni), DropReason::RouteNone), 0);
        fits += u64::from(good);
    }
    assert_eq!(fits, 16);
    let mut all = tables.drop_counts();
    all.sort_unstable_by_key(|d| d.0);
    assert_eq!(all.len(), 16);
    assert!(all.iter().all(|d| d.1 == DropReason::TtlExpired && d.2 == 2));
    let level = w.usage().into_iter().find(|l| l.name == "drop_counters").unwrap();
    assert_eq!((level.used, level.limit), (16, 16));
    let s = tables.stats(5);
    s.rx(60);
    s.forwarded(50);
    s.dropped(DropReason::VniUnknown);
    s.punted(PuntReason::Arp);
    s.generated();
    s.answered();
    s.passed();
    tables.count_drop_overflow(5);
    tables.stats(6).rx(1);
    let (one, all) = (s.read(), tables.stats_total());
    assert_eq!((one.rx, one.rx_bytes, one.forwarded, one.forwarded_bytes, one.dropped), (1, 60, 1, 50, 1));
    assert_eq!((one.punted, one.generated, one.answered, one.passed, one.drop_overflow), (1, 1, 1, 1, 1));
    assert_eq!((one.drops[DropReason::VniUnknown as usize], one.punts[PuntReason::Arp as usize]), (1, 1));
    assert_eq!((all.rx, all.rx_bytes, all.dropped), (2, 61, 1));
}

#[test]
fn the_counter_of_a_new_vm_begins_at_zero() {
    let (mut w, tables) = build(WriterOptions::default());
    let id = w.dump(vni(2)).unwrap().vms[3].id;
    (0..9).for_each(|_| tables.count_vm(id, 1 << 39));
    let mut c = change(2, 0, 0, false);
    c.vm_add.remove(3);
    w.commit(&Commit { tenants: vec![c.clone()], ..Default::default() }).unwrap();
    w.settle();
    assert_eq!(tables.vm_count(id), Count::default());
    let again = change(2, 0, 0, false);
    w.commit(&Commit { tenants: vec![again], ..Default::default() }).unwrap();
    assert_eq!(w.dump(vni(2)).unwrap().vms[3].id, id, "the id is used again");
}

fn hop(n: u8, mtu: u16) -> NexthopSpec {
    let addr = if n.is_multiple_of(2) {
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, n))
    } else {
        IpAddr::V6(Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(n)))
    };
    NexthopSpec { addr, ifindex: IfIndex(3), dmac: Some(0x0200_0000_0000 | u64::from(n)), smac: 0x0400_0000_0001, mtu }
}

#[test]
fn next_hops_and_groups_change_in_place() {
    let (mut w, tables) = build(WriterOptions::default());
    let a = w.set_nexthop(&hop(2, 1500)).unwrap();
    let b = w.set_nexthop(&hop(3, 9000)).unwrap();
    assert_eq!(w.set_nexthop(&hop(2, 1400)).unwrap(), a);
    let view = tables.nexthop(a.0);
    assert_eq!(
        (view.dmac, view.smac, view.mtu, view.ifindex, view.ready),
        (0x0200_0000_0002, 0x0400_0000_0001, 1400, IfIndex(3), true)
    );
    assert_eq!((tables.nexthop_addr(a.0), tables.nexthop_addr(b.0)), (hop(2, 0).addr, hop(3, 0).addr));
    w.set_nexthop(&NexthopSpec { dmac: None, ..hop(2, 1400) }).unwrap();
    assert!(!tables.nexthop(a.0).ready);
    assert_eq!(w.nexthops().len(), 2);
    assert_eq!(w.nexthops().iter().find(|(id, _)| *id == b).unwrap().1, hop(3, 9000));
    let g = w.set_group(None, &[a, b, a]).unwrap();
    let nc = ncs()[1];
    let id = match nc {
        IpAddr::V4(nc) => tables.nc_by_addr4(nc.to_bits()).unwrap(),
        IpAddr::V6(_) => unreachable!("the world's NCs are IPv4"),
    };
    assert_eq!(tables.nc(id).unwrap(), Nc { addr: nc, group: LineNo(0) });
    assert!(w.bind_nc_group(nc, Some(g)) && !w.bind_nc_group(IpAddr::V4(Ipv4Addr::new(9, 9, 9, 9)), Some(g)));
    assert_eq!(tables.nc(id).unwrap().group, g.0);
    assert!(!w.remove_group(g) && !w.remove_nexthop(a));
    let members = |w: &Writer| w.groups()[0].1.clone();
    assert_eq!(members(&w).len(), 3, "a member given twice has twice the weight");
    assert_eq!(w.set_group(Some(g), &[b]).unwrap(), g);
    assert_eq!(
        (0..64u64).map(|h| tables.group_member(g.0, h << 58)).collect::<std::collections::BTreeSet<_>>().len(),
        1
    );
    assert!(w.remove_nexthop(a) && !w.remove_nexthop(a));
    // A new writer finds groups and next hops again.
    let memory = w.memory().clone();
    w.settle();
    let used = w.bytes_used();
    let mut w = Writer::attach(memory, WriterOptions::default()).unwrap();
    assert_eq!((w.bytes_used(), members(&w), w.nexthops().len()), (used, vec![b], 1));
    assert_eq!(w.set_nexthop(&hop(3, 1500)).unwrap(), b);
    assert!(w.bind_nc_group(nc, None) && w.remove_group(g) && !w.remove_group(g));
    assert_eq!((tables.nc(id).unwrap().group, tables.group_member(LineNo(0), 5)), (LineNo(0), LineNo(0)));
    assert!(w.remove_nexthop(b));
    w.settle();
    assert!(!w.needs_settling());
}

#[test]
fn a_reader_always_finds_a_member_while_a_group_changes() {
    let (seed, mut rng) = seeded("group");
    let (mut w, _) = build(WriterOptions::default());
    let hops: Vec<NexthopId> = (0..20).map(|n| w.set_nexthop(&hop(n * 2, 1500)).unwrap()).collect();
    let g = w.set_group(None, &hops[..3]).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let (tables, stop, hops2) = (w.tables(), &stop, hops.clone());
        let reader = s.spawn(move || {
            let mut hashes = ChaCha8Rng::seed_from_u64(seed);
            let mut n = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let member = tables.group_member(g.0, hashes.random());
                assert!(hops2.contains(&NexthopId(member)), "{member} is no next hop");
                n += 1;
            }
            n
        });
        let running = super::StopOnDrop(stop);
        for _ in 0..20_000 {
            let n = rng.random_range(1..=17);
            let members: Vec<NexthopId> = (0..n).map(|_| hops[rng.random_range(0..hops.len())]).collect();
            w.set_group(Some(g), &members).unwrap();
            let mut want = members.clone();
            want.truncate(15);
            want.sort_unstable();
            let mut got = w.groups()[0].1.clone();
            got.sort_unstable();
            assert_eq!(got, want);
        }
        drop(running);
        assert!(reader.join().unwrap() > 0);
    });
    let line = w.tables().lines.at(g.0).snapshot();
    let in_memory: Vec<u32> = (1..=line[0] as u32).map(|i| (line[i as usize / 2] >> (32 * (i & 1))) as u32).collect();
    assert_eq!(in_memory, w.groups()[0].1.iter().map(|m| u32::from(m.0)).collect::<Vec<_>>());
}

#[test]
fn one_vpc_with_many_routes_changes_one_by_one() {
    let (_seed, mut rng) = seeded("big");
    let n: u32 = std::env::var("TUNNY_BIG").ok().and_then(|s| s.parse().ok()).unwrap_or(500_000);
    let (mut w, tables) = build(WriterOptions::default());
    let v4 = |addr: u32, len| Prefix::new_assert(IpAddr::V4(Ipv4Addr::from_bits(addr)), len);
    let route = |i: u32| Route {
        prefix: v4(0x0100_0000 + (i << 9), 24),
        target: if i.is_multiple_of(3) { Target::Line(0) } else { Target::Region },
    };
    let mut routes: Vec<Route> = (0..n).map(route).collect();
    routes.push(Route { prefix: v4(0, 0), target: Target::Blackhole });
    let one = |routes| Commit {
        tenants: vec![TenantChange { vni: vni(0), routes, ..Default::default() }],
        ..Default::default()
    };
    w.commit(&one(RoutesChange::Replace(routes))).unwrap();
    let t = || tables.tenant(vni(0)).unwrap();
    let scope = |addr| tables.route4(t().root4(), addr) >> VALUE_SCOPE_SHIFT;
    let lines = |w: &Writer| w.bytes_by_table().iter().find(|b| b.0 == "trees").unwrap().1 / 64;
    let packed = lines(&w);
    let want = |i: u32| if i.is_multiple_of(3) { SCOPE_LINE } else { SCOPE_REGION };
    for step in 0..2_000u32 {
        let i = rng.random_range(0..n);
        let addr = 0x0100_0000 + (i << 9);
        assert_eq!((scope(addr), scope(addr + 255), scope(addr + 256)), (want(i), want(i), SCOPE_BLACKHOLE));
        let inner = v4(addr + 64, 27);
        let add = vec![Route { prefix: inner, target: Target::Internet }];
        w.commit(&one(RoutesChange::Delta { remove: vec![], add })).unwrap();
        assert_eq!(
            (scope(addr + 64), scope(addr + 95), scope(addr + 96), scope(addr)),
            (SCOPE_INTERNET, SCOPE_INTERNET, want(i), want(i))
        );
        w.commit(&one(RoutesChange::Delta { remove: vec![inner, v4(addr, 24)], add: vec![] })).unwrap();
        assert_eq!((scope(addr), scope(addr + 64)), (SCOPE_BLACKHOLE, SCOPE_BLACKHOLE));
        w.commit(&one(RoutesChange::Delta { remove: vec![], add: vec![route(i)] })).unwrap();
        if step % 500 == 0 {
            // The route on top of all others: everything between the specifics changes.
            let top =
                |target| one(RoutesChange::Delta { remove: vec![], add: vec![Route { prefix: v4(0, 0), target }] });
            w.commit(&top(Target::Internet)).unwrap();
            assert_eq!((scope(addr), scope(addr + 256), scope(0xe000_0000)), (want(i), SCOPE_INTERNET, SCOPE_INTERNET));
            w.commit(&top(Target::Blackhole)).unwrap();
        }
    }
    assert!(lines(&w) < packed + packed / 4 + 1_000, "{} lines after changes, {packed} before", lines(&w));
    w.settle();
    let used = w.bytes_used();
    assert_eq!(Writer::attach(w.memory().clone(), WriterOptions::default()).unwrap().bytes_used(), used);
}
