// SPDX-License-Identifier: Apache-2.0
//! Whose a public endpoint is, to the port; which chunk is given next; what is kept of a VM when the configuration changes.

use super::*;
use crate::nat::pool::{owner_of, TenantUse};
use crate::nat::reuse::{Reused, Side};
use crate::Owner;

const OWN: u32 = 0xcb00_7101;
const SHARED: u32 = 0xcb00_7100;

/// VPC 7 has Snat over two addresses, one of them elastic for VM 5 and the other with forwards to VM 6; VPC 9 has a forward alone.
fn elastic() -> NatSpec {
    let forward = |protocol, first, last, vm_port| Forward { protocol, first, last, vm_addr: vm(6).into(), vm_port };
    let list = vec![forward(Protocol::Tcp, 8000, 8009, 80), forward(Protocol::Udp, 500, 500, 1500)];
    let mut s = spec(vec![pool(0, 4), PoolSpec { name: "other".into(), ..pool(16, 1) }], vec![snat(Vni(7))]);
    s.elastics = vec![
        ElasticSpec { addr: OWN, vni: Vni(7), usage: ElasticUse::Vm(vm(5).into()) },
        ElasticSpec { addr: SHARED, vni: Vni(7), usage: ElasticUse::Forwards(list) },
        ElasticSpec {
            addr: SHARED + 2,
            vni: Vni(9),
            usage: ElasticUse::Forwards(vec![forward(Protocol::Tcp, 1, 1, 1)]),
        },
    ];
    s
}

fn end(addr: u32, port: u16) -> PublicEndpoint {
    PublicEndpoint { addr: Ipv4Addr::from(addr).into(), port }
}

#[test]
fn who_translates_an_endpoint_is_known_to_the_port() {
    let t = Translator::new(1);
    let owner = |t: &Translator, addr, port, proto| t.config().owner(end(addr, port), proto);
    t.configure(&spec(vec![pool(0, 4)], vec![snat(Vni(7))]));
    assert_eq!(owner(&t, OWN, 8000, 6), Owner::Snat, "nothing is elastic");
    t.configure(&elastic());
    for (addr, port, proto, want) in [
        (OWN, 0, 6, Owner::Elastic),
        (OWN, 65535, 47, Owner::Elastic),
        (SHARED, 7999, 6, Owner::Snat),
        (SHARED, 8000, 6, Owner::Forward),
        (SHARED, 8009, 6, Owner::Forward),
        (SHARED, 8010, 6, Owner::Snat),
        (SHARED, 8000, 17, Owner::Snat),
        (SHARED, 500, 17, Owner::Forward),
        (SHARED, 500, 6, Owner::Snat),
        (SHARED, 8000, 47, Owner::Snat),
        (SHARED + 2, 1, 6, Owner::Forward),
        (SHARED + 3, 8000, 6, Owner::Snat),
        (0x0808_0808, 8000, 6, Owner::Snat),
    ] {
        assert_eq!(owner(&t, addr, port, proto), want, "{addr:x} {port} {proto}");
    }
    let six = PublicEndpoint { addr: Ipv6Addr::LOCALHOST.into(), port: 8000 };
    assert_eq!(t.config().owner(six, 6), Owner::None);
    assert_eq!([6, 7, 8, 9].map(|vni| t.config().serves(Vni(vni))), [false, true, false, true]);
    // Addresses and pools, one below and one above each range.
    let kinds: Vec<Option<usize>> = [SHARED - 1, SHARED, SHARED + 3, SHARED + 4, SHARED + 15, SHARED + 16, SHARED + 17]
        .iter()
        .map(|a| t.config().pool_of(*a))
        .collect();
    assert_eq!(kinds, [None, Some(0), Some(0), None, None, Some(1), None]);
    assert_eq!(t.config().pools().len(), 2);
    // Its own address is for no Snat, and another pool is for no VPC that does not name it.
    let may = |vni, addr| t.config().snat_may_use(vni, addr);
    assert_eq!(
        [
            may(Vni(7), SHARED),
            may(Vni(7), OWN),
            may(Vni(7), SHARED + 3),
            may(Vni(7), SHARED + 16),
            may(Vni(9), SHARED),
            may(Vni(8), SHARED)
        ],
        [true, false, true, false, false, false]
    );
    let own = |vni, n| t.config().has_own_address(&flow(vni, n, 1));
    assert_eq!([own(Vni(7), 5), own(Vni(7), 6), own(Vni(8), 5)], [true, false, false]);
    assert!(!t.config().has_own_address(&Flow { vm_addr: Ipv6Addr::LOCALHOST.into(), ..flow(Vni(7), 5, 1) }));
}

#[test]
fn a_forward_leads_both_ways_to_the_port() {
    let t = Translator::new(1);
    t.configure(&elastic());
    let fixed = |proto, n: u8, port| t.config().fixed(Vni(7), proto, vm(n).into(), port);
    let target =
        |addr, proto, port| t.config().fixed_target(addr, proto, port).map(|to| (to.vni.0, to.vm_addr, to.vm_port));
    let to = |n: u8, port| Some((7, IpAddr::V4(vm(n)), port));
    assert_eq!(
        [79, 80, 84, 89, 90].map(|port| fixed(6, 6, port)),
        [None, Some((SHARED, 8000)), Some((SHARED, 8004)), Some((SHARED, 8009)), None]
    );
    assert_eq!(
        [7999, 8000, 8004, 8009, 8010].map(|port| target(SHARED, 6, port)),
        [None, to(6, 80), to(6, 84), to(6, 89), None]
    );
    assert_eq!(
        (fixed(17, 6, 1500), fixed(17, 6, 80), fixed(6, 6, 1500), fixed(47, 6, 80)),
        (Some((SHARED, 500)), None, None, None)
    );
    assert_eq!(
        (target(SHARED, 17, 500), target(SHARED, 17, 8000), target(SHARED, 47, 8000)),
        (to(6, 1500), None, None)
    );
    assert_eq!(
        (fixed(47, 5, 0), fixed(6, 5, 77), target(OWN, 47, 0), target(OWN, 6, 77)),
        (Some((OWN, 0)), Some((OWN, 77)), to(5, 0), to(5, 77))
    );
    assert_eq!(
        (fixed(6, 7, 80), target(SHARED + 3, 6, 8000), t.config().fixed(Vni(8), 6, vm(6).into(), 80)),
        (None, None, None)
    );
    assert_eq!(t.config().fixed(Vni(9), 6, vm(6).into(), 1), Some((SHARED + 2, 1)));
}

/// A session goes on if its endpoint is the one that the configuration fixes, or Snat may use its address; of IPv6 if its source is the VPC's and
/// stays what it is.
#[test]
fn a_session_is_judged_by_vm_and_public_endpoint() {
    let prefix = 0x2001_0db8_u128 << 96;
    let mut s = elastic();
    s.snats[0].ipv6 = vec![(prefix + 16, prefix + 31)];
    s.snats.push(SnatSpec { pools: vec![1], ipv6: vec![(prefix + 64, prefix + 64)], ..snat(Vni(8)) });
    let t = Translator::new(1);
    t.configure(&s);
    let four = |vni, n, port, public, public_port| Binding {
        flow: Flow { proto: 6, ..flow(vni, n, port) },
        public: end(public, public_port),
    };
    let six = |vni, n: u128, public: u128| {
        let [a, b] = [n, public].map(|n| IpAddr::V6((prefix + n).into()));
        Binding {
            flow: Flow { vm_addr: a, remote: Ipv6Addr::LOCALHOST.into(), ..flow(vni, 1, 5) },
            public: PublicEndpoint { addr: b, port: 5 },
        }
    };
    let mixed = Binding {
        public: PublicEndpoint { addr: (Ipv6Addr::from(prefix + 16)).into(), port: 5 },
        ..four(Vni(7), 1, 5, SHARED, 5)
    };
    for (n, (b, want)) in [
        (four(Vni(7), 5, 77, OWN, 77), true),
        (four(Vni(7), 5, 77, OWN, 78), false),
        (four(Vni(7), 4, 77, OWN, 77), false),
        (four(Vni(7), 4, 77, SHARED, 5000), true),
        (four(Vni(7), 4, 77, SHARED + 16, 5000), false),
        (four(Vni(8), 4, 77, SHARED + 16, 5000), true),
        (four(Vni(8), 4, 77, SHARED, 5000), false),
        (four(Vni(9), 6, 1, SHARED + 2, 1), true),
        (four(Vni(9), 6, 1, SHARED + 2, 2), false),
        (six(Vni(7), 16, 16), true),
        (six(Vni(7), 31, 31), true),
        (six(Vni(7), 15, 15), false),
        (six(Vni(7), 32, 32), false),
        (six(Vni(7), 16, 17), false),
        (six(Vni(8), 16, 16), false),
        (six(Vni(8), 64, 64), true),
        (six(Vni(8), 65, 65), false),
        (mixed, false),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!((t.judge(&b), Translator::would_judge(&s)(&b)), (want, want), "{n}: {b:?}");
        // Nothing holds a port that was never drawn; what is fixed, or not translated, needs none.
        let fixed = want && !matches!(n, 3 | 5);
        assert_eq!(t.holds(&b), fixed, "{n}: {b:?}");
    }
}

/// Whole chunks inside the range are used, and only these.
#[test]
fn a_pool_has_the_whole_chunks_of_its_range() {
    for ((first, last), chunks) in [
        ((0, 65535), 0..1024),
        ((1024, 65535), 16..1024),
        ((1025, 65535), 17..1024),
        ((1023, 65534), 16..1023),
        ((1088, 1151), 17..18),
        ((1088, 1150), 17..17),
        ((1089, 1151), 18..18),
        ((1024, 1278), 16..19),
    ] {
        let t = Translator::new(1);
        t.configure(&spec(
            vec![PoolSpec { ports: (first, last), ..pool(0, 3) }],
            vec![SnatSpec { ports_max: 1 << 40, ..snat(Vni(7)) }],
        ));
        let usage = &t.pool_use()[0];
        assert_eq!((usage.addresses, usage.ports), (3, 3 * 64 * chunks.len() as u64), "{first} to {last}");
        if chunks.len() < 8 {
            let mut seen: Vec<u16> =
                (0..100).map_while(|n| t.outbound(&flow(Vni(7), n, 1), 0).ok()).map(|e| e.port / 64).collect();
            seen.sort_unstable();
            let want: Vec<u16> = chunks.flat_map(|c| [c, c, c]).collect();
            assert_eq!(seen, want, "{first} to {last}");
        }
    }
}

/// What was given back is given again when all others have been.
#[test]
fn chunks_are_given_in_turn() {
    let t = Translator::new(1);
    t.configure(&spec(vec![PoolSpec { ports: (1024, 1024 + 511), ..pool(0, 1) }], vec![snat(Vni(7))]));
    let draw = |n| Binding { flow: flow(Vni(7), n, 1), public: t.outbound(&flow(Vni(7), n, 1), 0).unwrap() };
    let chunk = |b: &Binding| b.public.port / 64;
    let first: Vec<Binding> = (1..4).map(draw).collect();
    assert_eq!(first.iter().map(chunk).collect::<Vec<_>>(), [16, 17, 18]);
    first[..2].iter().for_each(|b| t.undo(b, 0));
    let next: Vec<u16> = (4..11).map(|n| chunk(&draw(n))).collect();
    assert_eq!(next, [19, 20, 21, 22, 23, 16, 17]);
    assert_eq!(t.outbound(&flow(Vni(7), 12, 1), 0), Err(Refusal::PoolDry));
}

#[test]
fn a_vm_uses_what_a_forward_has_left_and_forgets_what_it_may_not_use() {
    let forward = Forward { protocol: Protocol::Udp, first: 1024, last: 1055, vm_addr: vm(9).into(), vm_port: 1 };
    let mut s = spec(vec![PoolSpec { ports: (1024, 1279), ..pool(0, 1) }, pool(8, 1)], vec![snat(Vni(7))]);
    s.elastics = vec![ElasticSpec { addr: SHARED, vni: Vni(7), usage: ElasticUse::Forwards(vec![forward]) }];
    let t = Translator::new(1);
    t.configure(&s);
    let ports = |from: u16, n: u16| {
        (from..from + n)
            .map(|p| t.outbound(&flow(Vni(7), 1, p), 0).unwrap().port)
            .collect::<std::collections::BTreeSet<u16>>()
    };
    assert_eq!(ports(100, 32), (1056..1088).collect());
    assert_eq!((ports(200, 8).first().map(|p| p / 64), t.pool_use()[0].held), (Some(17), 128));
    s.elastics.clear();
    t.configure(&s);
    assert_eq!(ports(300, 32), (1024..1056).collect(), "the ports that the forward has left, before others");
    assert_eq!((t.mappings(), t.pool_use()[0].held), ((72, 72), 128));
    // With another pool all of it goes, mappings in use too.
    s.snats[0].pools = vec![1];
    t.configure(&s);
    let mut calls = vec![0];
    while let Some(next) = t.retract(calls[calls.len() - 1]) {
        calls.push(next);
    }
    assert_eq!(calls, [0, 32, 64, 96, 128, 160, 192, 224]);
    assert_eq!((t.mappings(), t.pool_use()[0].held, t.tenant_use()[0].ports), ((0, 0), 0, 0));
    assert_eq!(t.retract(256), None);
}

/// Ports of an address, chunk by chunk: who has them is one word each.
#[test]
fn an_address_gives_a_chunk_to_one_owner() {
    let a = Address::new(OWN, (Vec::new(), None), None);
    let owner = owner_word(Vni(0xff_ffff), 0xffff_ffff);
    assert_eq!(
        (owner_of(owner), owner_of(owner_word(Vni(7), 5)), owner_of(owner_word(Vni(0), 0)), owner_of(0)),
        (Some((Vni(0xff_ffff), u32::MAX)), Some((Vni(7), 5)), Some((Vni(0), 0)), None)
    );
    assert_eq!((a.owner(3), a.held()), (None, 0));
    assert!(a.take(3, owner) && !a.take(3, owner_word(Vni(7), 5)) && a.take(1023, owner_word(Vni(7), 5)));
    assert_eq!(
        (a.owner(3), a.owner(4), a.owner(1023), a.held()),
        (Some((Vni(0xff_ffff), u32::MAX)), None, Some((Vni(7), 5)), 2)
    );
    a.give_back(3);
    a.give_back(3);
    assert_eq!((a.owner(3), a.held()), (None, 1), "once");
    // What is in use outlives the configuration.
    let again = Address::new(OWN, (Vec::new(), None), Some(&a));
    assert_eq!((again.held(), again.owner(1023)), (1, Some((Vni(7), 5))));
    // A group is whole and begins at a multiple of its size; where there is none, one chunk.
    let a = Address::new(OWN, (Vec::new(), None), None);
    let group = |range, count| {
        let mut out = Vec::new();
        (a.take_group(range, count, Protocol::Udp, owner, &mut out), out)
    };
    assert_eq!(group((5, 5), 1), (false, vec![]));
    assert_eq!(group((5, 16), 4), (true, vec![8, 9, 10, 11]));
    assert_eq!(group((5, 16), 4), (true, vec![12, 13, 14, 15]));
    assert_eq!((group((5, 16), 4), a.held()), ((true, vec![7]), 9));
    assert_eq!((group((5, 16), 2), group((5, 16), 2)), ((true, vec![5]), (true, vec![6])));
    assert_eq!((group((5, 16), 2), a.held()), ((false, vec![]), 11));
    // One of a group is another's: nothing of it stays taken.
    let a = Address::new(OWN, (Vec::new(), None), None);
    assert!(a.take(2, owner_word(Vni(7), 5)));
    let mut out = Vec::new();
    assert!(a.take_group((0, 8), 4, Protocol::Udp, owner, &mut out));
    assert_eq!(
        (out, a.held(), a.owner(0), a.owner(1), a.owner(2)),
        (vec![4, 5, 6, 7], 5, None, None, Some((Vni(7), 5)))
    );
    // Ports that forwards need.
    let forward = |protocol, first, last| Forward { protocol, first, last, vm_addr: 1, vm_port: 1 };
    let a = Address::new(OWN, (vec![forward(Protocol::Udp, 64, 66), forward(Protocol::Tcp, 127, 128)], None), None);
    assert_eq!(
        (
            a.usable(1, Protocol::Udp),
            a.usable(1, Protocol::Tcp),
            a.usable(2, Protocol::Tcp),
            a.usable(0, Protocol::Tcp)
        ),
        (!7, !0 >> 1, !1, !0)
    );
    assert_eq!((a.usable(1, Protocol::Icmp), a.usable(2, Protocol::Udp)), (!0, !0));
    let allowed = |port| [Protocol::Udp, Protocol::Tcp].map(|p| a.allows(port, p));
    assert_eq!([63, 64, 66, 67].map(allowed), [[true, true], [false, true], [false, true], [true, true]]);
    assert_eq!([126, 127, 128, 129].map(allowed), [[true, true], [true, false], [true, false], [true, true]]);
}

#[test]
fn limits_of_a_vpc_are_reached_exactly() {
    let u = TenantUse::default();
    assert!(!u.draw(65, 64) && u.draw(64, 64) && !u.draw(1, 64) && u.draw(0, 64));
    assert!(u.draw(64, u64::MAX) && !u.draw(u64::MAX, u64::MAX), "a sum that does not fit is too much");
    u.give_back(100);
    assert_eq!(u.ports.load(Relaxed), 28);
    assert!(!u.draw_reused(0) && u.draw_reused(1) && !u.draw_reused(1) && u.draw_reused(2));
    u.restore_reused();
    u.give_back_reused();
    u.give_back_reused();
    assert_eq!((u.reused.load(Relaxed), u.ports.load(Relaxed)), (1, 28));
    for (why, want) in [
        (Refusal::PoolDry, [1, 0, 0]),
        (Refusal::TenantPorts, [1, 1, 0]),
        (Refusal::VmPorts, [1, 1, 1]),
        (Refusal::NotServed, [1, 1, 1]),
    ] {
        u.refused(why);
        assert_eq!([&u.refused_dry, &u.refused_tenant, &u.refused_vm].map(|n| n.load(Relaxed)), want);
    }
}

/// A reused port is one connection's towards one destination: whatever of that differs, it is free again.
#[test]
fn a_reused_port_is_taken_for_one_destination() {
    let reused = Reused::new(Mix(7));
    let side = Side { public: OWN, remote: 0x0808_0808, proto: 17, remote_port: 53 };
    let user = (Vni(7), 5, 1000);
    let take = |side: Side, ports, mixed| reused.take(side, ports, mixed, user, |_| true);
    // From the place that is chosen, all around.
    assert_eq!([3u64, 9, 13].map(|n| take(side, (2000, 2009), n << 32)), [Some(2003), Some(2009), Some(2004)]);
    assert_eq!(
        (take(side, (2000, 2009), 9 << 32), take(side, (2003, 2004), 0), take(side, (5, 4), 0)),
        (Some(2000), None, None)
    );
    assert_eq!((take(side, (2009, 2009), 0), take(side, (0, 65535), 65535 << 32)), (None, Some(65535)));
    assert_eq!(take(side, (4000, 4009), u64::MAX), Some(4005), "2^32 - 1 modulo ten");
    let others = [
        Side { public: OWN + 1, ..side },
        Side { remote: 1, ..side },
        Side { proto: 6, ..side },
        Side { remote_port: 54, ..side },
    ];
    for other in others {
        assert_eq!(take(other, (2003, 2003), 0), Some(2003), "{other:?}");
    }
    // Whose it is.
    let strangers = [(Vni(8), 5, 1000), (Vni(7), 6, 1000), (Vni(7), 5, 1001)];
    for stranger in strangers {
        assert!(!reused.uses(side, 2003, stranger) && !reused.release(side, 2003, stranger));
        assert_eq!(reused.restore(side, 2003, stranger), None);
    }
    assert!(reused.uses(side, 2003, user) && !reused.uses(side, 2001, user));
    assert_eq!(
        (reused.restore(side, 2003, user), reused.restore(side, 2001, user), reused.restore(side, 2001, user)),
        (Some(false), Some(true), Some(false))
    );
    assert!(reused.release(side, 2003, user) && !reused.release(side, 2003, user) && !reused.uses(side, 2003, user));
    assert!(others.iter().all(|other| reused.uses(*other, 2003, user)));
    // So many are looked at, and of these such as may be used.
    let requested = std::cell::Cell::new(0);
    let refuse = |_| {
        requested.set(requested.get() + 1);
        false
    };
    assert_eq!(reused.take(side, (0, 65535), 5 << 32, user, refuse), None);
    assert_eq!(requested.replace(0), 1024);
    assert_eq!((reused.take(side, (10, 12), 0, user, refuse), requested.get()), (None, 3));
    assert_eq!(reused.take(side, (3000, 3009), 8 << 32, user, |p| p == 3001), Some(3001));
}
