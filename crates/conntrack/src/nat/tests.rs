// SPDX-License-Identifier: Apache-2.0
//! Stories of translation. The comparison with a naive twin under random operations is in `model`.

mod ahead;
mod exact;
mod figures;
mod model;

use super::*;
use std::net::{Ipv4Addr, Ipv6Addr};

pub(super) const POOL: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 0);
pub(super) const REMOTE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);

pub(super) fn pool(first: u32, count: u32) -> PoolSpec {
    let first = u32::from(POOL) + first;
    let ranges = vec![(first, first + count - 1)];
    PoolSpec { name: "p".into(), ranges, ports: (1024, 65535), block: 64, reuse: false, shares: None }
}

pub(super) fn snat(vni: Vni) -> SnatSpec {
    let filtering = Filtering::AddressAndPortDependent;
    let (ipv6, ports_max) = (Vec::new(), 1 << 20);
    SnatSpec { vni, pools: vec![0], filtering, ipv6, ipv6_inbound: false, ports_max, vm_ports_max: 4096 }
}

pub(super) fn spec(pools: Vec<PoolSpec>, snats: Vec<SnatSpec>) -> NatSpec {
    NatSpec { pools, snats, elastics: Vec::new() }
}

pub(super) fn vm(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n)
}

pub(super) fn flow(vni: Vni, n: u8, port: u16) -> Flow {
    Flow { vni, proto: 17, vm_addr: vm(n).into(), vm_port: port, remote: REMOTE.into(), remote_port: 53 }
}

fn v4(e: PublicEndpoint) -> (Ipv4Addr, u16) {
    match e.addr {
        IpAddr::V4(a) => (a, e.port),
        IpAddr::V6(_) => panic!("{e:?}"),
    }
}

#[test]
fn one_port_looks_the_same_to_every_destination_and_a_vm_keeps_its_address() {
    let t = Translator::new(1);
    t.configure(&spec(vec![pool(0, 8)], vec![snat(Vni(7))]));
    let a = v4(t.outbound(&flow(Vni(7), 5, 4000), 0).unwrap());
    let other = Flow { remote: Ipv4Addr::new(9, 9, 9, 9).into(), remote_port: 1, ..flow(Vni(7), 5, 4000) };
    assert_eq!(v4(t.outbound(&other, 0).unwrap()), a);
    for port in 5000..5200 {
        let (addr, p) = v4(t.outbound(&flow(Vni(7), 5, port), 0).unwrap());
        assert!(addr == a.0 && p >= 1024);
    }
    // The same private address of another VPC is another VM.
    t.configure(&spec(vec![pool(0, 8)], vec![snat(Vni(7)), snat(Vni(8))]));
    assert_ne!(v4(t.outbound(&flow(Vni(8), 5, 4000), 0).unwrap()), a);
    assert_eq!(t.pool_use()[0].held, 5 * 64);
}

#[test]
fn udp_keeps_parity_while_there_are_such_ports_and_nobody_gets_a_well_known_one() {
    let t = Translator::new(11);
    t.configure(&spec(vec![pool(0, 1)], vec![snat(Vni(7))]));
    let port = |f: Flow| t.outbound(&f, 0).unwrap().port;
    for (i, vm_port) in (53..117).step_by(2).chain((500..564).step_by(2)).enumerate() {
        let public = port(flow(Vni(7), 1, vm_port));
        assert!(public >= 1024 && public % 2 == vm_port % 2, "{i}: {public} for {vm_port}");
    }
    assert_eq!(t.pool_use()[0].held, 64, "odd ones and even ones share a block");
    // Without one of its parity in the block at hand it takes the other rather than a new block.
    let odd: Vec<u16> = (0..64).map(|i| port(flow(Vni(7), 2, 3001 + 2 * i))).collect();
    assert_eq!(odd.iter().filter(|p| **p % 2 == 1).count(), 32);
    assert_eq!(t.pool_use()[0].held, 128);
    // TCP has no use for parity: its ports are as hard to guess as a block lets them be.
    let even = (0..32).filter(|i| port(Flow { proto: 6, ..flow(Vni(7), 3, 4000 + 2 * i) }) % 2 == 0).count();
    assert!((1..32).contains(&even), "{even}");
}

#[test]
fn limits_refuse_and_give_back() {
    let t = Translator::new(2);
    let limited = SnatSpec { ports_max: 128, vm_ports_max: 64, ..snat(Vni(7)) };
    t.configure(&spec(vec![pool(0, 1)], vec![limited]));
    let fill = |n| assert!((0..64).all(|p| t.outbound(&flow(Vni(7), n, 2000 + p), 0).is_ok()));
    fill(1);
    assert_eq!(t.outbound(&flow(Vni(7), 1, 9), 0), Err(Refusal::VmPorts));
    fill(2);
    assert_eq!(t.outbound(&flow(Vni(7), 3, 9), 0), Err(Refusal::TenantPorts));
    let one = Binding { flow: flow(Vni(7), 1, 2000), public: t.outbound(&flow(Vni(7), 1, 2000), 0).unwrap() };
    t.release(&one, 5);
    assert_eq!(t.outbound(&flow(Vni(7), 1, 9), 5), Err(Refusal::VmPorts), "another session still uses it");
    t.release(&one, 5);
    assert_eq!(t.outbound(&flow(Vni(7), 1, 9), 6).unwrap(), one.public, "it lingers only until its port is wanted");
    let u = t.tenant_use()[0];
    assert_eq!((u.ports, u.refused_vm, u.refused_tenant, u.refused_dry), (128, 2, 1, 0));
}

#[test]
fn what_the_configuration_no_longer_gives_is_taken_back_and_the_rest_stays() {
    let t = Translator::new(5);
    let pools = |first, second| {
        let snats =
            vec![SnatSpec { pools: vec![first], ..snat(Vni(7)) }, SnatSpec { pools: vec![second], ..snat(Vni(8)) }];
        spec(vec![pool(0, 1), pool(1, 1)], snats)
    };
    t.configure(&pools(0, 1));
    let of = |vni, n, p| Binding { flow: flow(vni, n, p), public: t.outbound(&flow(vni, n, p), 0).unwrap() };
    let held = || (t.pool_use()[0].held, t.pool_use()[1].held);
    let mine: Vec<Binding> =
        (1..40).flat_map(|n| (0..70).map(move |p| (n, p))).map(|(n, p)| of(Vni(7), n, p)).collect();
    let other = of(Vni(8), 1, 1);
    assert_eq!(held(), (39 * 128, 64));
    assert!(mine.iter().chain([&other]).all(|b| t.holds(b)));
    // Half of them linger.
    mine.iter().step_by(2).for_each(|b| t.release(b, 0));
    t.configure(&pools(1, 1));
    let mut at = Some(0);
    while let Some(from) = at {
        at = t.retract(from);
    }
    assert_eq!(held(), (0, 64));
    assert!(t.holds(&other) && !mine.iter().any(|b| t.holds(b) || t.judge(b)));
    // They end late: nobody else's port comes back with them.
    mine.iter().skip(1).step_by(2).for_each(|b| t.release(b, 1));
    assert_eq!((held(), t.tenant_use()[0].ports), ((0, 64), 0));
    t.release(&other, 1);
    t.expire(LINGER_NS + 1_000_000_000);
    assert_eq!(held(), (0, 0));
}

/// Addresses of the pool, from the first on, and their ports.
fn share(first: u32, last: u32, ports: (u16, u16), leaving: bool) -> Share {
    Share { addresses: (u32::from(POOL) + first, u32::from(POOL) + last), ports, leaving }
}

#[test]
fn what_is_leaving_is_given_to_nobody_and_what_is_not_here_is_nobodys() {
    let all = (0, u16::MAX);
    let t = Translator::new(21);
    let shared = |shares: Vec<Share>| spec(vec![PoolSpec { shares: Some(shares), ..pool(0, 4) }], vec![snat(Vni(7))]);
    t.configure(&shared(vec![share(1, 1, all, false), share(3, 3, (32_768, 65_535), false)]));
    let of = |n, p| t.outbound(&flow(Vni(7), n, p), 0).map(|public| Binding { flow: flow(Vni(7), n, p), public });
    let fill =
        |from: u8| (from..from + 40).flat_map(|n| (0..40).map(move |p| (n, 2000 + p))).map(|(n, p)| of(n, p).unwrap());
    let mine: Vec<Binding> = fill(1).collect();
    let here = |b: &Binding| match v4(b.public) {
        (a, _) if a.octets()[3] == 1 => true,
        (a, port) => a.octets()[3] == 3 && port >= 32_768,
    };
    assert!(mine.iter().all(|b| here(b) && t.holds(b)));
    let on = |list: &[Binding], last| list.iter().filter(|b| v4(b.public).0.octets()[3] == last).count();
    assert!(on(&mine, 1) > 0 && on(&mine, 3) > 0, "both parts are used");
    // One part is left: what is in use of it goes on, new ports come from the other one.
    let (leaving, kept) = (share(1, 1, all, true), share(3, 3, (32_768, 65_535), false));
    t.configure(&shared(vec![leaving, kept]));
    assert!(mine.iter().all(|b| t.holds(b) && t.judge(b)));
    assert!(t.is_in_use(&leaving) && t.is_in_use(&kept) && !t.is_in_use(&share(0, 0, all, true)));
    let more: Vec<Binding> = fill(100).collect();
    // A VM that had ports there goes on with those: they look the same to every destination.
    assert_eq!((on(&more, 1), on(&more, 3)), (0, more.len()));
    let again = of(1, 9_999).unwrap();
    assert_eq!(v4(again.public).0.octets()[3], 3, "a new port of a VM that is on what is left");
    // Its sessions end, and then nothing of it is in use.
    mine.iter().for_each(|b| t.release(b, 0));
    t.expire(2 * LINGER_NS);
    assert!(!t.is_in_use(&leaving) && t.is_in_use(&kept));
    // A session over what is another node's is none of this one.
    for (last, port, right) in [(1, 5000, true), (2, 5000, false), (3, 5000, false), (3, 40_000, true)] {
        let addr = IpAddr::V4((u32::from(POOL) + last).into());
        let other = Binding { flow: flow(Vni(7), 200, port + last as u16), public: PublicEndpoint { addr, port } };
        assert_eq!((t.judge(&other), t.restore(&other)), (right, right), "{last}:{port}");
    }
    // Nothing is given of a pool that is nobody's.
    t.configure(&shared(Vec::new()));
    assert_eq!(t.outbound(&flow(Vni(7), 77, 1), 0), Err(Refusal::PoolDry));
}

#[test]
fn a_dry_pool_refuses_and_is_filled_again() {
    let t = Translator::new(3);
    let narrow = PoolSpec { ports: (1024, 1024 + 127), ..pool(0, 1) };
    t.configure(&spec(vec![narrow.clone()], vec![snat(Vni(7))]));
    let of = |n, p| Binding { flow: flow(Vni(7), n, p), public: t.outbound(&flow(Vni(7), n, p), 0).unwrap() };
    let held: Vec<Binding> = (0..128).map(|p| of(1, 3000 + p)).collect();
    assert_eq!(t.outbound(&flow(Vni(7), 2, 1), 0), Err(Refusal::PoolDry));
    held.iter().for_each(|b| t.release(b, 1));
    let later = LINGER_NS;
    assert!(t.outbound(&flow(Vni(7), 2, 1), later).is_ok());
    t.release(&Binding { flow: flow(Vni(7), 2, 1), public: t.outbound(&flow(Vni(7), 2, 1), later).unwrap() }, later);
    // Another address is added while the pool is in use.
    t.configure(&spec(
        vec![PoolSpec { ranges: vec![(u32::from(POOL), u32::from(POOL) + 1)], ..narrow }],
        vec![snat(Vni(7))],
    ));
    assert_eq!(t.pool_use()[0].held, 64);
    assert!((0..192).all(|p| t.outbound(&flow(Vni(7), 3, p), later).is_ok()));
}

#[test]
fn elastic_addresses_lead_both_ways_and_forwards_keep_their_ports_from_snat() {
    let (own, shared) = (u32::from(POOL) + 1, u32::from(POOL));
    let forward = Forward { protocol: Protocol::Tcp, first: 8000, last: 8009, vm_addr: vm(6).into(), vm_port: 80 };
    let low = Forward { protocol: Protocol::Udp, first: 1024, last: 1086, vm_addr: vm(6).into(), vm_port: 2000 };
    let mut s = spec(vec![PoolSpec { ports: (1024, 1087), ..pool(0, 2) }], vec![snat(Vni(7))]);
    s.elastics = vec![
        ElasticSpec { addr: own, vni: Vni(7), usage: ElasticUse::Vm(vm(5).into()) },
        ElasticSpec { addr: shared, vni: Vni(7), usage: ElasticUse::Forwards(vec![forward, low]) },
    ];
    let t = Translator::new(4);
    t.configure(&s);
    let gre = Flow { proto: 47, ..flow(Vni(7), 5, 0) };
    assert_eq!(v4(t.outbound(&gre, 0).unwrap()).0, Ipv4Addr::from(own));
    assert_eq!(t.outbound(&Flow { proto: 47, ..flow(Vni(7), 6, 0) }, 0), Err(Refusal::ProtocolUnserved));
    let public = |addr: u32, port| PublicEndpoint { addr: Ipv4Addr::from(addr).into(), port };
    let target = |n, vm_port| Some(Target { vni: Vni(7), vm_addr: vm(n).into(), vm_port });
    assert_eq!(t.inbound(public(own, 22), 6), target(5, 22));
    assert_eq!(t.inbound(public(shared, 8003), 6), target(6, 83));
    assert_eq!(t.inbound(public(shared, 8003), 17), None);
    assert_eq!(t.inbound(public(shared, 8010), 6), None);
    assert_eq!(t.outbound(&Flow { proto: 6, ..flow(Vni(7), 6, 83) }, 0), Ok(public(shared, 8003)));
    // All UDP ports of the pool but one are forwarded; Snat has that one alone.
    assert_eq!(t.outbound(&flow(Vni(7), 9, 1), 0), Ok(public(shared, 1087)));
    assert_eq!(t.outbound(&flow(Vni(7), 9, 2), 0), Err(Refusal::PoolDry));
    assert_eq!(t.config().public(IpAddr::V4(shared.into())), Some(PublicKind::Pool));
    let elastic = PublicKind::Elastic { vni: Vni(7), vm_addr: vm(5).into() };
    assert_eq!(t.config().public(IpAddr::V4(own.into())), Some(elastic));
    assert_eq!(t.config().public(Ipv4Addr::new(203, 0, 113, 2).into()), None);
}

#[test]
fn an_open_mapping_lets_anyone_in_a_closed_one_nobody() {
    let t = Translator::new(5);
    let open = SnatSpec { filtering: Filtering::EndpointIndependent, ..snat(Vni(7)) };
    t.configure(&spec(vec![pool(0, 1)], vec![open, snat(Vni(8))]));
    let a = t.outbound(&flow(Vni(7), 1, 4000), 0).unwrap();
    let b = t.outbound(&flow(Vni(8), 1, 4000), 0).unwrap();
    assert_eq!(t.inbound(a, 17), Some(Target { vni: Vni(7), vm_addr: vm(1).into(), vm_port: 4000 }));
    assert_eq!((t.inbound(a, 6), t.inbound(b, 17)), (None, None));
    assert_eq!(t.mappings(), (2, 3), "a packet let in holds the mapping too");
}

#[test]
fn reused_ports_serve_each_destination_once() {
    let t = Translator::new(6);
    let tight = PoolSpec { ports: (1024, 1033), reuse: true, ..pool(0, 1) };
    t.configure(&spec(vec![tight], vec![snat(Vni(7))]));
    let to = |n: u8, p: u16, r: u16| Flow { remote_port: r, ..flow(Vni(7), n, p) };
    let mut seen = std::collections::HashSet::new();
    for r in 1..=20 {
        for i in 0..10 {
            let public = t.outbound(&to(i, 7, r), 0).unwrap();
            assert!(seen.insert((public.port, r)) && (1024..1034).contains(&public.port));
        }
        assert_eq!(t.outbound(&to(11, 7, r), 0), Err(Refusal::PoolDry));
    }
    assert_eq!(t.pool_use()[0].reused, 200);
    let b = Binding { flow: to(3, 7, 4), public: PublicEndpoint { addr: POOL.into(), port: 0 } };
    let port = (1024..1034).find(|p| {
        t.release(&Binding { public: PublicEndpoint { port: *p, ..b.public }, ..b }, 0);
        t.pool_use()[0].reused == 199
    });
    assert_eq!(t.outbound(&to(11, 7, 4), 0).unwrap().port, port.unwrap());
}

#[test]
fn ipv6_goes_out_as_it_is_from_its_own_prefixes() {
    let prefix = |n: u128| (0x2001_0db8_u128 << 96 | n << 64, 0x2001_0db8_u128 << 96 | n << 64 | u128::from(u64::MAX));
    let t = Translator::new(7);
    let with = |vni, n| SnatSpec { ipv6: vec![prefix(n)], ..snat(vni) };
    t.configure(&spec(vec![pool(0, 1)], vec![with(Vni(7), 1), with(Vni(8), 2)]));
    let own = Ipv6Addr::from(prefix(1).0 + 5);
    let out = Flow { vm_addr: own.into(), remote: Ipv6Addr::LOCALHOST.into(), ..flow(Vni(7), 0, 99) };
    let same = PublicEndpoint { addr: own.into(), port: 99 };
    assert_eq!(t.outbound(&out, 0), Ok(same));
    assert_eq!(t.outbound(&Flow { vni: Vni(8), ..out }, 0), Err(Refusal::SourceOutside));
    assert_eq!(t.inbound(same, 6), None);
    let open = SnatSpec { ipv6_inbound: true, ..with(Vni(7), 1) };
    t.configure(&spec(vec![pool(0, 1)], vec![open, with(Vni(8), 2)]));
    assert_eq!(t.inbound(same, 6), Some(Target { vni: Vni(7), vm_addr: own.into(), vm_port: 99 }));
    assert_eq!(t.config().public(Ipv6Addr::from(prefix(2).1).into()), Some(PublicKind::Ipv6 { vni: Vni(8) }));
    assert_eq!(t.config().public(Ipv6Addr::from(prefix(3).0).into()), None);
}

#[test]
fn everything_comes_back_from_the_sessions() {
    let s = spec(vec![pool(0, 4)], vec![snat(Vni(7)), snat(Vni(8))]);
    let (before, after) = (Translator::new(8), Translator::new(9));
    before.configure(&s);
    let make = |vni, n, p| Binding { flow: flow(vni, n, p), public: before.outbound(&flow(vni, n, p), 0).unwrap() };
    let mut sessions: Vec<Binding> = (0..3000).map(|i| make(Vni(7 + i % 2), (i % 11) as u8, 1000 + i as u16)).collect();
    sessions.reverse();
    after.configure(&s);
    assert!(sessions.iter().all(|b| after.restore(b)));
    assert_eq!((after.pool_use(), after.tenant_use()), (before.pool_use(), before.tenant_use()));
    let again = sessions.iter().all(|b| after.outbound(&b.flow, 0) == Ok(b.public));
    assert!(again, "a mapping is the same after the restart");
    // A second claim to a port is refused, and so is an address that is no longer in a pool.
    let thief = Binding { flow: flow(Vni(7), 99, 1), public: sessions[0].public };
    assert!(!after.restore(&thief));
    let outside = PublicEndpoint { addr: Ipv4Addr::new(1, 2, 3, 4).into(), port: 5000 };
    assert!(!after.restore(&Binding { public: outside, ..sessions[0] }));
    assert_eq!(after.pool_use(), before.pool_use());
}

#[test]
fn an_address_that_leaves_the_pool_is_left_by_new_connections() {
    let t = Translator::new(10);
    t.configure(&spec(vec![pool(0, 1)], vec![snat(Vni(7))]));
    let old = Binding { flow: flow(Vni(7), 1, 4000), public: t.outbound(&flow(Vni(7), 1, 4000), 0).unwrap() };
    t.configure(&spec(vec![pool(1, 1)], vec![snat(Vni(7))]));
    assert!(!t.judge(&old));
    let new = Binding { public: t.outbound(&old.flow, 0).unwrap(), ..old };
    assert_ne!(new.public, old.public);
    assert!(t.judge(&new));
    t.release(&old, 0);
    assert_eq!(t.mappings(), (1, 1));
    t.release(&new, 0);
    t.expire(LINGER_NS);
    assert_eq!((t.mappings(), t.pool_use()[0].held, t.tenant_use()[0].ports), ((0, 0), 0, 0));
}

/// Forwards keep ports of an address that Snat uses as well: nobody gets these, and a block with one of them is not given whole.
#[test]
fn ports_of_forwards_are_never_given_away() {
    let addr = u32::from(POOL);
    let forward = |first, last, protocol| Forward { protocol, first, last, vm_addr: vm(200).into(), vm_port: 80 };
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        let t = Translator::new(3);
        // Blocks of 128 ports: of the second one a port in the middle is kept, of the fourth one its first and last.
        let kept = vec![
            forward(1024 + 200, 1024 + 201, protocol),
            forward(1024 + 384, 1024 + 384, protocol),
            forward(1024 + 511, 1024 + 511, protocol),
        ];
        let elastic = ElasticSpec { addr, vni: Vni(7), usage: ElasticUse::Forwards(kept) };
        let spec = NatSpec {
            pools: vec![PoolSpec { ports: (1024, 1024 + 511), block: 128, ..pool(0, 1) }],
            snats: vec![SnatSpec { ports_max: 100_000, ..snat(Vni(7)) }],
            elastics: vec![elastic],
        };
        t.configure(&spec);
        let mut ports = Vec::new();
        // Each VM one session: it holds a block, or what is left.
        let mut held = Vec::new();
        for n in 1..=20 {
            let Ok(e) = t.outbound(&flow(Vni(7), n, 5000), 0) else { break };
            ports.push(e.port);
            held.push(t.pool_use()[0].held);
        }
        // Two whole blocks, then single chunks: the other four.
        assert_eq!(held, [128, 256, 320, 384, 448, 512]);
        for n in 1..=6 {
            for p in 0..200 {
                if let Ok(e) = t.outbound(&flow(Vni(7), n, 6000 + p), 0) {
                    ports.push(e.port);
                }
            }
        }
        let reserved = [1224, 1225, 1408, 1535];
        assert!(ports.iter().all(|p| (1024..1536).contains(p)));
        let taken: std::collections::HashSet<u16> = ports.iter().copied().collect();
        assert_eq!(taken.len(), ports.len(), "no port twice");
        let kept = reserved.iter().filter(|p| taken.contains(p)).count();
        if protocol == Protocol::Udp {
            assert_eq!((kept, taken.len()), (0, 512 - reserved.len()));
        } else {
            // Forwards of another protocol keep a block from being given whole, and nothing else.
            assert_eq!((kept, taken.len()), (4, 512));
        }
    }
}

#[test]
fn the_pool_and_the_holders_are_told() {
    let t = Translator::new(4);
    let two = PoolSpec { ports: (2048, 2048 + 255), block: 128, ..pool(0, 2) };
    t.configure(&spec(vec![two], vec![snat(Vni(7))]));
    let e = t.outbound(&flow(Vni(7), 5, 4000), 0).unwrap();
    let tcp = Flow { proto: 6, ..flow(Vni(7), 5, 4001) };
    t.outbound(&tcp, 0).unwrap();
    let usage = &t.pool_use()[0];
    assert_eq!((usage.addresses, usage.ports, usage.held, usage.reused, usage.reuse), (2, 512, 128, 0, false));
    assert!((2048..2304).contains(&e.port));
    let tenant = t.tenant_use()[0];
    assert_eq!((tenant.vni, tenant.ports, tenant.reused), (Vni(7), 128, 0));
    assert_eq!(t.tenant_use().len(), 1);
}

/// A VM that may not have another block gets a chunk, if it may have that.
#[test]
fn a_block_that_passes_a_limit_is_tried_as_a_chunk() {
    let ports = |vm_ports_max, ports_max| {
        let t = Translator::new(6);
        t.configure(&spec(
            vec![PoolSpec { block: 256, ..pool(0, 1) }],
            vec![SnatSpec { vm_ports_max, ports_max, ..snat(Vni(7)) }],
        ));
        let taken = (0..600).map_while(|p| t.outbound(&flow(Vni(7), 1, 2000 + p), 0).ok()).count();
        (taken, t.outbound(&flow(Vni(7), 1, 9000), 0).unwrap_err(), t.tenant_use()[0].ports)
    };
    assert_eq!(ports(256, 4096), (256, Refusal::VmPorts, 256));
    assert_eq!(ports(320, 4096), (320, Refusal::VmPorts, 320));
    assert_eq!(ports(319, 4096), (256, Refusal::VmPorts, 256));
    assert_eq!(ports(64, 4096), (64, Refusal::VmPorts, 64));
    assert_eq!(ports(4096, 320), (320, Refusal::TenantPorts, 320));
    assert_eq!(ports(4096, 319), (256, Refusal::TenantPorts, 256));
    assert_eq!(ports(4096, 63), (0, Refusal::TenantPorts, 0));
}
