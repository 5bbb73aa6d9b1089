// SPDX-License-Identifier: Apache-2.0
//! Numbers, each to the last one: timeouts, what is allowed and by how much, words of keys and records, room.

use super::*;
use crate::frag::FragLimits;
use crate::limits::{Life, Lives};
use crate::quota::{vm_of, Limit, Quotas};
use std::net::IpAddr;
use std::time::Duration;
use wire::tcp::{ACK, PSH, SYN};

#[test]
fn what_nobody_has_set_is_what_the_handbook_says() {
    let mut t = Timeouts::default();
    let seconds = t.each().map(|d| (d.as_secs(), d.subsec_nanos()));
    assert_eq!(seconds, [7440, 240, 20, 240, 30, 10, 300, 30, 120, 60].map(|s| (s, 0)));
    let o = Options::default();
    assert_eq!((o.sessions, o.initial, o.salt, o.water_level), (1 << 20, 1 << 16, 0, 90));
    let all = TenantLimits { sessions: u32::MAX, vm_sessions: u32::MAX, half_open: u32::MAX };
    assert_eq!((o.timeouts, o.tenant), (Timeouts::default(), all));
    let f = FragLimits::default();
    assert_eq!((f.datagrams, f.datagrams_tenant, f.queued_bytes), (16_384, 1024, 16 << 20));
    assert_eq!((f.queued_bytes_datagram, f.lifetime), (65_536, 15 * S));
}

#[test]
fn a_share_of_a_node_is_a_quarter_and_half_of_that_up_to_its_caps() {
    for (node, sessions, vm, half) in [
        (0, 1, 1, 1),
        (3, 1, 1, 1),
        (7, 1, 1, 1),
        (8, 2, 1, 1),
        (12, 3, 1, 1),
        (16, 4, 2, 2),
        (399_999, 99_999, 49_999, 49_999),
        (400_000, 100_000, 50_000, 50_000),
        (400_008, 100_002, 50_001, 50_000),
        (800_000, 200_000, 100_000, 50_000),
        (800_008, 200_002, 100_000, 50_000),
        (4_000_000, 1_000_000, 100_000, 50_000),
        (4_000_004, 1_000_000, 100_000, 50_000),
        (u32::MAX, 1_000_000, 100_000, 50_000),
    ] {
        let want = TenantLimits { sessions, vm_sessions: vm, half_open: half };
        assert_eq!(TenantLimits::share_of(node), want, "{node}");
    }
}

#[test]
fn timeouts_are_kept_to_the_millisecond() {
    let lives = Lives::default();
    let mut t = Timeouts::default();
    for (i, d) in t.each().into_iter().enumerate() {
        *d = Duration::from_micros(1_234_567 * (i as u64 + 1));
    }
    t.reset = Duration::ZERO;
    t.icmp = Duration::from_secs(1 << 40);
    lives.set(&t);
    let all = [
        Life::Established,
        Life::HalfOpen,
        Life::HalfOpenPressure,
        Life::Closing,
        Life::ClosingPressure,
        Life::Reset,
        Life::Udp,
        Life::UdpOneSided,
        Life::UdpOneWay,
        Life::Icmp,
    ];
    let ms: Vec<u64> = (1..=10)
        .map(|i| {
            if i == 6 {
                1
            } else if i == 10 {
                u32::MAX.into()
            } else {
                1_234_567 * i / 1000
            }
        })
        .collect();
    assert_eq!(all.map(|l| lives.ns(l)).to_vec(), ms.iter().map(|ms| ms * 1_000_000).collect::<Vec<_>>());
    assert_eq!(lives.get().each().map(|d| d.as_millis() as u64).to_vec(), ms);
    lives.set_own(&[1, 2, 3, 4, 5, 6, 7, 8, 9, u32::MAX]);
    let want: Vec<u64> = (1..=9).map(|s| s * S).chain([u64::from(u32::MAX) * 1_000_000]).collect();
    assert_eq!(all.map(|l| lives.ns(l)).to_vec(), want);
}

/// Each timeout of the node, and each of a tenant's own, ends its sessions and no other: not before, and at the latest a little after.
#[test]
fn each_state_lives_as_long_as_its_timeout_says() {
    let mut timeouts = Timeouts::default();
    for (i, d) in timeouts.each().into_iter().enumerate() {
        *d = Duration::from_secs(20 + 10 * i as u64);
    }
    let own: OwnTimeouts = std::array::from_fn(|i| 25 + 10 * i as u32);
    let segment = |flags, seq, ack| L4View::Tcp(Segment { flags, seq, ack, window: 1000, ..Segment::default() });
    let (udp_answer, icmp) = (L4View::Other, L4View::Echo { request: true });
    let (syn, syn_ack, ack) = (segment(SYN, 100, 0), segment(SYN | ACK, 300, 101), segment(ACK, 101, 301));
    let fin = segment(wire::tcp::FIN | ACK, 101, 301);
    let reset = segment(wire::tcp::RST, 101, 0);
    let doubt = segment(wire::tcp::RST, 150, 0);
    use Direction::{In, Out};
    // Protocol, first packet, further packets, which timeout.
    type Story<'a> = (u8, L4View, Vec<(Direction, L4View)>, State, usize);
    let stories: Vec<Story<'_>> = vec![
        (6, syn, vec![], State::SynSent, 1),
        (6, syn, vec![(In, segment(SYN, 300, 0))], State::SynBoth, 1),
        (6, syn, vec![(In, syn_ack)], State::SynReceived, 1),
        (6, syn, vec![(In, syn_ack), (Out, ack)], State::Established, 0),
        (6, syn, vec![(In, syn_ack), (Out, ack), (Out, doubt)], State::Established, 3),
        (6, syn, vec![(In, syn_ack), (Out, ack), (Out, fin)], State::FinOut, 3),
        (6, syn, vec![(In, syn_ack), (Out, ack), (In, segment(wire::tcp::FIN | ACK, 301, 101))], State::FinIn, 3),
        (
            6,
            syn,
            vec![(In, syn_ack), (Out, ack), (Out, fin), (In, segment(wire::tcp::FIN | ACK, 301, 101))],
            State::FinBoth,
            3,
        ),
        (
            6,
            syn,
            vec![
                (In, syn_ack),
                (Out, ack),
                (Out, fin),
                (In, segment(wire::tcp::FIN | ACK, 301, 102)),
                (Out, segment(ACK, 102, 302)),
            ],
            State::TimeWait,
            3,
        ),
        (6, syn, vec![(In, syn_ack), (Out, ack), (Out, reset)], State::Reset, 5),
        (6, ack, vec![], State::PickedUp, 1),
        (17, udp_answer, vec![], State::OneSided, 7),
        (17, udp_answer, vec![(In, udp_answer)], State::Paired, 6),
        (17, udp_answer, vec![(Out, udp_answer); 7], State::OneWay, 8),
        (17, udp_answer, vec![(Out, udp_answer); 6], State::OneSided, 7),
        (1, icmp, vec![], State::OneSided, 9),
        (1, icmp, vec![(Out, icmp); 20], State::OneSided, 9),
        (1, icmp, vec![(In, L4View::Echo { request: false })], State::Paired, 9),
    ];
    for which in 0..2 {
        let t = tracker(Options { timeouts, ..Options::default() });
        t.set_own_timeouts(Vni(8), &own);
        let (vni, begin) = (7 + which as u32, 100 * S);
        for (n, (proto, first, more, state, _)) in stories.iter().enumerate() {
            let port = n as u16 + 1;
            let new = NewSession {
                inner: InnerKey::v4(Vni(vni), *proto, 5, port, 9, 80),
                outer: OuterKey::v4(*proto, 6, port, 9, 80),
                view: *first,
                pick_up: true,
                ..udp(Vni(vni), 5, port)
            };
            let at = t.create(&new, begin, &mut never).unwrap();
            for (direction, view) in more {
                assert_ne!(t.judge(at, *direction, view, 40, begin, &mut never).verdict, Verdict::Gone, "{n}");
            }
            assert_eq!(t.info(at, begin).unwrap().state, *state, "story {n}");
        }
        let mut ended: HashMap<u16, (u64, EndReason)> = HashMap::new();
        for half in 0..600 {
            let now = begin + half * S / 2;
            t.expire(now, 1000, &mut |e| {
                ended.insert(e.session.inner.vm_port(), (now - begin, e.reason));
            });
        }
        for (n, (_, _, _, state, life)) in stories.iter().enumerate() {
            let want = if which == 1 { u64::from(own[*life]) } else { 20 + 10 * *life as u64 } * S;
            let (after, reason) = ended[&(n as u16 + 1)];
            assert!(after + S / 10 >= want && after <= want + 3 * S, "story {n} of {vni}: {after} for {want}");
            let closed = matches!(state, State::TimeWait | State::Reset);
            assert_eq!(reason, if closed { EndReason::Closed } else { EndReason::Timeout });
        }
        t.set_own_timeouts(Vni(8), &[0; 10]);
        assert_eq!((t.stats().sessions, t.options().timeouts), (0, timeouts));
    }
}

/// One session less than a limit, exactly it, one more; and pressure from one above four fifths on.
#[test]
fn limits_and_pressure_begin_where_they_say() {
    let quotas = Quotas::new(3, TenantLimits { sessions: 10, vm_sessions: 4, half_open: 7 });
    let vm = |n: u32| vm_of(Vni(1), IpAddr::V4(n.into()));
    let tenant = quotas.tenant(Vni(1));
    for n in 0..7u32 {
        assert!(!tenant.pressed());
        assert_eq!(quotas.reserve(tenant, &vm(n / 4)), Ok(()));
    }
    assert_eq!(quotas.reserve(tenant, &vm(1)), Err(Limit::HalfOpen));
    // Some are answered.
    tenant.half_open.store(2, Relaxed);
    assert_eq!((quotas.of_vm(&vm(0)), quotas.of_vm(&vm(1)), quotas.of_vm(&vm(2))), (4, 3, 0));
    assert_eq!(quotas.reserve(tenant, &vm(0)), Err(Limit::Vm));
    assert_eq!(
        (tenant.sessions.load(Relaxed), tenant.half_open.load(Relaxed)),
        (7, 2),
        "what was refused took nothing"
    );
    assert_eq!(quotas.reserve(tenant, &vm(1)), Ok(()));
    assert!(!tenant.pressed(), "eight of ten");
    assert_eq!(quotas.reserve(tenant, &vm(2)), Ok(()));
    assert!(tenant.pressed(), "nine of ten");
    assert_eq!((quotas.reserve(tenant, &vm(3)), quotas.reserve(tenant, &vm(3))), (Ok(()), Err(Limit::Tenant)));
    assert!(quotas.is_near(tenant, &vm(0), Limit::Tenant) && quotas.is_near(tenant, &vm(0), Limit::Vm));
    // Near is at most one above; of a limit of none nobody is near.
    for (limits, near) in [
        ((9, 3, 3), [true; 3]),
        ((8, 2, 2), [false, false, false]),
        ((0, 0, 0), [false; 3]),
        ((u32::MAX, 4, 4), [true; 3]),
    ] {
        quotas.set(Vni(1), Some(TenantLimits { sessions: limits.0, vm_sessions: limits.1, half_open: limits.2 }));
        tenant.half_open.store(4, Relaxed);
        let have = [Limit::Tenant, Limit::Vm, Limit::HalfOpen].map(|l| quotas.is_near(tenant, &vm(0), l));
        assert_eq!(have, near, "{limits:?}");
        assert!(quotas.is_near(tenant, &vm(0), Limit::Node));
    }
    quotas.release(tenant, &vm(0), false);
    assert_eq!((tenant.sessions.load(Relaxed), tenant.half_open.load(Relaxed), quotas.of_vm(&vm(0))), (9, 4, 3));
    quotas.release(tenant, &vm(0), true);
    assert_eq!((tenant.sessions.load(Relaxed), tenant.half_open.load(Relaxed), quotas.of_vm(&vm(0))), (8, 3, 2));
    quotas.adopt(tenant, &vm(0), true, false);
    quotas.adopt(tenant, &vm(0), false, true);
    let s = quotas.stats_of(Vni(1)).unwrap();
    assert_eq!((s.sessions, s.half_open, s.fast, quotas.of_vm(&vm(0))), (10, 4, 1, 4));
    for limit in
        [Limit::Tenant, Limit::Vm, Limit::Vm, Limit::HalfOpen, Limit::Node, Limit::Node, Limit::Node, Limit::Node]
    {
        tenant.refuse(limit);
    }
    let s = quotas.stats_of(Vni(1)).unwrap();
    assert_eq!((s.refused_tenant, s.refused_vm, s.refused_half_open, s.refused_full), (1, 2, 1, 4));
    assert_eq!((s.vni, s.pressure, s.limits.sessions), (Vni(1), false, u32::MAX));
    assert!(quotas.stats_of(Vni(2)).is_none() && quotas.known(Vni(2)).is_none());
}

/// Limits by default are followed by those who have none of their own, tenants of all numbers.
#[test]
fn tenants_of_all_numbers_are_kept_apart_and_follow_the_default() {
    let limits = |n| TenantLimits { sessions: n, vm_sessions: n + 1, half_open: n + 2 };
    let quotas = Quotas::new(3, limits(10));
    let vnis = [0, 1, 255, 256, 257, 65_535, 65_536, 0xff_feff, 0xff_ff00, 0xff_ffff];
    for (n, vni) in vnis.into_iter().enumerate() {
        assert!(quotas.known(Vni(vni)).is_none());
        let tenant = quotas.tenant(Vni(vni));
        assert_eq!((tenant.vni.0, tenant.limits()), (vni, limits(10)));
        (0..=n).for_each(|_| quotas.adopt(tenant, &vm_of(Vni(vni), IpAddr::V4(7.into())), true, false));
    }
    quotas.set(Vni(256), Some(limits(20)));
    quotas.set_default(limits(30));
    let stats = quotas.stats();
    assert_eq!(stats.iter().map(|s| s.vni.0).collect::<Vec<_>>(), vnis);
    for (n, s) in stats.iter().enumerate() {
        assert_eq!((s.sessions, s.limits), (n as u32 + 1, limits(if s.vni == Vni(256) { 20 } else { 30 })));
        assert_eq!(quotas.of_vm(&vm_of(s.vni, IpAddr::V4(7.into()))), n as u32 + 1);
    }
    quotas.set(Vni(256), None);
    assert_eq!(quotas.tenant(Vni(256)).limits(), limits(30));
    assert_eq!(quotas.tenant(Vni(2)).limits(), limits(30), "a tenant that comes later");
    // Timeouts of its own: one is enough, none returns to the node's.
    assert_eq!(quotas.tenant(Vni(1)).own(Life::Udp), None);
    quotas.set_own(Vni(1), &[0; 10]);
    assert_eq!(quotas.tenant(Vni(1)).own(Life::Udp), None);
    quotas.set_own(Vni(1), &[0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!((quotas.tenant(Vni(1)).own(Life::Udp), quotas.tenant(Vni(1)).own(Life::Icmp)), (Some(S), None));
    quotas.set_own(Vni(1), &[0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    assert_eq!((quotas.tenant(Vni(1)).own(Life::Udp), quotas.tenant(Vni(1)).own(Life::Icmp)), (None, Some(2 * S)));
}

/// VMs of one number in several VPCs, of both families, in numbers that fill many shards: each is counted by itself and forgotten at none.
#[test]
fn vms_are_counted_by_vpc_family_and_address() {
    let quotas = Quotas::new(9, TenantLimits::default());
    let addresses = |n: u32| {
        [
            IpAddr::V4(n.into()),
            IpAddr::V6(u128::from(n).into()),
            IpAddr::V6((u128::from(n) << 64).into()),
            IpAddr::V6((2u128 << 32 | u128::from(n)).into()),
        ]
    };
    let each = |vni: u32, n: u32, i: usize| 1 + (vni * 7 + n * 3 + i as u32) % 4;
    for vni in [1, 2, 1 << 16] {
        for n in 1..200 {
            for (i, a) in addresses(n).into_iter().enumerate() {
                (0..each(vni, n, i))
                    .for_each(|_| quotas.adopt(quotas.tenant(Vni(vni)), &vm_of(Vni(vni), a), true, false));
            }
        }
    }
    for vni in [1, 2, 1 << 16] {
        for n in 1..200 {
            for (i, a) in addresses(n).into_iter().enumerate() {
                let vm = vm_of(Vni(vni), a);
                assert_eq!(quotas.of_vm(&vm), each(vni, n, i), "{a} of {vni}");
                assert_eq!(quotas.of_vm(&vm_of(Vni(vni + 5), a)), 0);
                for left in (0..each(vni, n, i)).rev() {
                    quotas.release(quotas.tenant(Vni(vni)), &vm, true);
                    assert_eq!(quotas.of_vm(&vm), left);
                }
                quotas.release(quotas.tenant(Vni(vni)), &vm, false);
                assert_eq!(quotas.of_vm(&vm), 0, "never below none");
                quotas.tenant(Vni(vni)).sessions.fetch_add(1, Relaxed);
            }
        }
        assert_eq!(quotas.stats_of(Vni(vni)).unwrap().sessions, 0);
    }
    let (v4, v6) = quotas.kept_for_tests();
    assert_eq!(v6, 0, "nothing is kept of VMs that have none");
    assert!(v4 > 0);
}

/// The queue of half-open sessions: in their order, bounded, swept when most of it is stale.
#[test]
fn the_queue_of_half_open_sessions_is_bounded_and_swept() {
    let quotas = Quotas::new(3, TenantLimits::default());
    let tenant = quotas.tenant(Vni(1));
    tenant.half_open.store(10, Relaxed);
    assert!(tenant.queue_is_low(), "an empty one");
    let requested = std::cell::Cell::new(0);
    let odd = |at: LineNo, start: u32| {
        requested.set(requested.get() + 1);
        assert_eq!(start, at.0 + 1);
        at.0 % 2 == 1
    };
    for at in 0..276 {
        tenant.enqueue(LineNo(at), at + 1, odd);
        let len = tenant.queue().len() as u32;
        assert_eq!((len, requested.get()), (at + 1, 0), "20 and 256 may be stale");
    }
    tenant.enqueue(LineNo(276), 277, odd);
    let queue: Vec<(u32, u32)> = tenant.queue().iter().map(|(at, start)| (at.0, *start)).collect();
    assert_eq!((queue.len(), requested.get()), (139, 276));
    assert_eq!((&queue[..3], queue[138]), (&[(1, 2), (3, 4), (5, 6)][..], (276, 277)));
    // It is low while it is less than half of what is half-open, and less than half full.
    for (len, half_open, low) in
        [(139, 10, false), (139, 278, false), (139, 279, false), (139, 280, true), (139, 100_000, true)]
    {
        tenant.half_open.store(half_open, Relaxed);
        let have = tenant.queue().len();
        assert_eq!((have, tenant.queue_is_low()), (len, low), "{half_open}");
    }
    for at in 1000..3000 {
        tenant.enqueue(LineNo(at), at + 1, |_, _| panic!("many are half-open: nobody is asked"));
        let len = tenant.queue().len();
        assert_eq!(tenant.queue_is_low(), len < 512, "{len}");
    }
    let queue: Vec<(u32, u32)> = tenant.queue().iter().map(|(at, start)| (at.0, *start)).collect();
    assert_eq!((queue.len(), queue[0]), (1024, (1, 2)), "the oldest stay");
}

/// Keys are words of the layout: every part in its place, to the edges of its range.
#[test]
fn keys_are_the_words_of_the_layout() {
    let v4 = InnerKey::v4(Vni(0x12_3456), 0x78, 0x9abc_def0, 0x1122, 0x3344_5566, 0x7788);
    assert_eq!(v4, InnerKey::V4([0x1234_5678_9abc_def0, 0x3344_5566_1122_7788]));
    let (vm, remote) = (0x1111_2222_3333_4444_5555_6666_7777_8888, 0x9999_aaaa_bbbb_cccc_dddd_eeee_ffff_0000);
    let v6 = InnerKey::v6(Vni(0x12_3456), 0x78, vm, 0x1122, remote, 0x7788);
    let words = [
        0x1234_5678_1122_7788,
        0x1111_2222_3333_4444,
        0x5555_6666_7777_8888,
        0x9999_aaaa_bbbb_cccc,
        0xdddd_eeee_ffff_0000,
    ];
    assert_eq!(v6, InnerKey::V6(words));
    for key in [v4, v6] {
        assert_eq!((key.vni(), key.proto(), key.vm_port(), key.remote_port()), (Vni(0x12_3456), 0x78, 0x1122, 0x7788));
        let plain = key.untranslated();
        assert_eq!(
            (plain.proto(), plain.public_port(), plain.remote_port(), plain.vni_bits()),
            (0x78, 0x1122, 0x7788, Vni(0))
        );
        assert_eq!((plain.public(), plain.remote(), plain.is_v6()), (key.vm(), key.remote(), key.is_v6()));
        let pair = PairKey::with(key, Vni(0xab_cdef));
        assert_eq!((pair.inner(), pair.other(), pair.outer().vni_bits()), (key, Vni(0xab_cdef), Vni(0xab_cdef)));
        assert_eq!(PairKey::of_session(key, &pair.outer()), pair);
        assert_eq!((pair.outer().public(), pair.outer().proto(), pair.outer().remote_port()), (key.vm(), 0x78, 0x7788));
    }
    assert_eq!((v4.vm(), v4.remote()), (IpAddr::V4(0x9abc_def0u32.into()), IpAddr::V4(0x3344_5566.into())));
    assert_eq!((v6.vm(), v6.remote()), (IpAddr::V6(vm.into()), IpAddr::V6(remote.into())));
    assert_eq!((v4.is_v6(), v6.is_v6()), (false, true));
    assert_eq!(InnerKey::v4(Vni(0xff12_3456), 0x78, 0x9abc_def0, 0x1122, 0x3344_5566, 0x7788), v4, "24 bits of a VNI");
    assert_eq!(OuterKey::v4(6, 1, 2, 3, 4), OuterKey::V4([6 << 32 | 1, 3 << 32 | 2 << 16 | 4]));
    assert_eq!(OuterKey::v6(6, 1 << 64 | 9, 2, 3 << 64 | 8, 4), OuterKey::V6([6 << 32 | 2 << 16 | 4, 1, 9, 3, 8]));
    assert_eq!(format!("{v4:?}"), "vni 1193046 proto 120 154.188.222.240:4386 > 51.68.85.102:30600");
    assert_eq!(format!("{:?}", OuterKey::v4(6, 0x0102_0304, 2, 0x0506_0708, 4)), "proto 6 1.2.3.4:2 > 5.6.7.8:4");
}

/// Which end is the lower one: by address, then VNI, then port; and of an echo the identifier is the lower end's port both ways.
#[test]
fn a_pair_has_one_key_whichever_end_sends() {
    let v4 = |n: u32| IpAddr::V4(n.into());
    let v6 = |n: u128| IpAddr::V6(n.into());
    let ends = [
        ((Vni(5), v4(9), 80), (Vni(4), v4(10), 70)),
        ((Vni(4), v4(9), 80), (Vni(5), v4(9), 70)),
        ((Vni(4), v4(9), 70), (Vni(4), v4(9), 80)),
        ((Vni(5), v6(9), 80), (Vni(4), v6(1 << 100), 70)),
        ((Vni(4), v6(9), 80), (Vni(5), v6(9), 70)),
    ];
    for (low, high) in ends {
        for echo in [false, true] {
            let (there, back) = (PairKey::new(17, low, high, echo).unwrap(), PairKey::new(17, high, low, echo));
            assert_eq!(there.1, Direction::Out);
            let inner = there.0.inner();
            assert_eq!((inner.vni(), inner.vm(), inner.remote(), there.0.other()), (low.0, low.1, high.1, high.0));
            assert_eq!((inner.vm_port(), inner.remote_port()), if echo { (low.2, 0) } else { (low.2, high.2) });
            let back = back.unwrap();
            if !echo {
                assert_eq!(back, (there.0, Direction::In));
            } else if low.1 != high.1 || low.0 != high.0 {
                assert_eq!(
                    (back.1, back.0.inner().vm_port(), back.0.inner().vm()),
                    (Direction::In, high.2, low.1),
                    "the identifier is the sender's"
                );
            }
        }
    }
    assert!(PairKey::new(17, (Vni(1), v4(1), 1), (Vni(1), v6(1), 1), false).is_none());
    let server = PairKey::of_server(6, Vni(3), v4(200), v4(100), (443, 5000)).unwrap();
    assert_eq!((server.inner(), server.other()), (InnerKey::v4(Vni(3), 6, 200, 443, 100, 5000), Vni(0)));
    let server = PairKey::of_server(6, Vni(3), v6(200), v6(100), (443, 5000)).unwrap();
    assert_eq!(server.inner(), InnerKey::v6(Vni(3), 6, 200, 443, 100, 5000));
    assert!(PairKey::of_server(6, Vni(3), v4(200), v6(100), (1, 2)).is_none());
    // No two of these have one hash, whatever differs.
    let keys: Vec<u64> = ends
        .iter()
        .flat_map(|(a, b)| [(*a, *b), ((Vni(a.0 .0 + 8), a.1, a.2), *b), (*a, (Vni(b.0 .0 + 8), b.1, b.2))])
        .map(|(a, b)| PairKey::new(17, a, b, false).unwrap().0.hash(7))
        .collect();
    assert_eq!(keys.iter().collect::<std::collections::HashSet<_>>().len(), keys.len());
}

/// Records: what the fast path may do with each state, direction and view, and what it changes.
#[test]
fn the_fast_path_takes_what_it_may_and_changes_what_it_must() {
    let t = tracker(Options::default());
    let segment = |flags, seq, ack, len| Segment { flags, seq, ack, len, window: 1000, ..Segment::default() };
    let tcp = |s: Segment| L4View::Tcp(s);
    let syn = NewSession {
        inner: InnerKey::v4(Vni(1), 6, 5, 1, 9, 80),
        outer: OuterKey::v4(6, 6, 1, 9, 80),
        view: tcp(segment(SYN, 100, 0, 0)),
        ..udp(Vni(1), 5, 1)
    };
    let at = t.create(&syn, S, &mut never).unwrap();
    let sessions = t.sessions();
    let guard = sessions.enter();
    let record = guard.record(at);
    let data = tcp(segment(ACK, 101, 301, 10));
    assert!(!record.fast(Direction::Out, &data, 50, 2 * S), "half open");
    t.judge(at, Direction::In, &tcp(segment(SYN | ACK, 300, 101, 0)), 40, 2 * S, &mut never);
    t.judge(at, Direction::Out, &tcp(segment(ACK, 101, 301, 0)), 40, 2 * S, &mut never);
    let before = (record.state_word(), record.counts());
    for (n, flags) in [SYN, wire::tcp::FIN | ACK, wire::tcp::RST, ACK | SYN, 0, PSH, ACK | wire::tcp::RST, ACK | 0x20]
        .into_iter()
        .enumerate()
    {
        assert!(!record.fast(Direction::Out, &tcp(segment(flags, 101, 301, 0)), 40, 3 * S), "{n}");
    }
    assert!(
        !record.fast(Direction::Out, &L4View::Other, 40, 3 * S)
            && !record.fast(Direction::Out, &L4View::Echo { request: true }, 40, 3 * S)
    );
    assert_eq!((record.state_word(), record.counts(), record.last_seen()), (before.0, before.1, coarse(2 * S)));
    for (n, flags) in [ACK, ACK | PSH, ACK | 0x40, ACK | 0x80 | PSH].into_iter().enumerate() {
        let n = n as u32;
        assert!(record.fast(Direction::Out, &tcp(segment(flags, 101 + 10 * n, 301, 10)), 50, (3 + u64::from(n)) * S));
        assert_eq!((record.end(Direction::Out), record.last_seen()), (111 + 10 * n, coarse((3 + u64::from(n)) * S)));
    }
    // Out of the window it goes on and is counted, but proves nothing.
    assert!(record.fast(Direction::Out, &tcp(segment(ACK, 900_000, 301, 10)), 50, 20 * S));
    assert_eq!((record.end(Direction::Out), record.last_seen()), (141, coarse(6 * S)));
    assert_eq!(record.counts(), Counts { packets: before.1.packets + 5, bytes: before.1.bytes + 250 });
    // In doubt it is the software path's.
    t.judge(at, Direction::Out, &tcp(segment(wire::tcp::RST, 150, 0, 0)), 40, 7 * S, &mut never);
    assert!(record.state_word() & SESSION_DOUBT != 0 && !record.fast(Direction::Out, &data, 50, 7 * S));
    // One way: the side that speaks; from outside as well.
    for (direction, port) in [(Direction::Out, 2), (Direction::In, 3)] {
        let new = NewSession { direction, ..udp(Vni(1), 5, port) };
        let at = t.create(&new, 8 * S, &mut never).unwrap();
        let record = guard.record(at);
        assert!(!record.fast(direction, &L4View::Other, 50, 9 * S), "one packet is not one way");
        for _ in 0..7 {
            t.judge(at, direction, &L4View::Other, 50, 9 * S, &mut never);
        }
        assert_eq!((record.state(), record.from_outside()), (State::OneWay, direction == Direction::In));
        assert!(
            record.fast(direction, &L4View::Other, 50, 10 * S)
                && !record.fast(direction.reverse(), &L4View::Other, 50, 11 * S)
        );
        assert_eq!((record.last_seen(), record.counts()), (coarse(10 * S), Counts { packets: 9, bytes: 100 + 8 * 50 }));
        assert_eq!(t.judge(at, direction.reverse(), &L4View::Other, 50, 11 * S, &mut never).after, State::Paired);
        assert!(record.fast(direction.reverse(), &L4View::Other, 50, 10 * S));
        assert_eq!(record.last_seen(), coarse(11 * S), "time does not go back");
    }
    // A record that is nearly full leaves its counts to the software path, which keeps them.
    let at = t.create(&udp(Vni(1), 5, 9), 8 * S, &mut never).unwrap();
    t.judge(at, Direction::In, &L4View::Other, 100, 9 * S, &mut never);
    let record = guard.record(at);
    let mut sent = Counts { packets: 2, bytes: 200 };
    let mut refused = 0;
    while refused < 3 {
        if record.fast(Direction::In, &L4View::Other, u32::MAX >> 1, 9 * S) {
            sent = Counts { packets: sent.packets + 1, bytes: sent.bytes + u64::from(u32::MAX >> 1) };
            continue;
        }
        refused += 1;
        t.judge(at, Direction::In, &L4View::Other, 60, 9 * S, &mut never);
        sent = Counts { packets: sent.packets + 1, bytes: sent.bytes + 60 };
        assert_eq!(t.info(at, 9 * S).unwrap().counts, sent);
        assert!(record.counts().bytes < sent.bytes);
    }
    // Another session in its place begins at its own packet.
    drop(guard);
    assert!(t.remove(at, 9 * S, &mut |e| assert_eq!(e.session.counts, sent)));
    for _ in 0..3 {
        t.expire(9 * S, 10, &mut never);
    }
    let again = t.create(&udp(Vni(1), 5, 9), 9 * S, &mut never).unwrap();
    assert_eq!((again, t.info(again, 9 * S).unwrap().counts), (at, Counts { packets: 1, bytes: 100 }));
}

/// Room and memory, to the record: segments come as they are needed, limits are what was asked for.
#[test]
fn room_is_what_is_there_and_limits_are_what_was_asked_for() {
    for sessions in [0, u32::MAX, 120_000_000] {
        let memory = Arc::new(HeapMemory::new().unwrap());
        let Err(AttachError::TooMany(n, most)) =
            Tracker::new(memory, Options { sessions, ..Options::default() }, S).map(drop)
        else {
            panic!("{sessions}")
        };
        // 64 lines of records for each 63 sessions, and 200 slots of index at a load of 85 for each 100 sessions.
        let lines = f64::from(1 << 27) / (64.0 / 63.0 + 200.0 / (14.0 * 85.0)) - 2.0 * 65_536.0;
        assert!(n == sessions && (f64::from(most) - lines).abs() < 0.002 * lines, "{most} {lines}");
        let memory = Arc::new(HeapMemory::new().unwrap());
        let t = Tracker::new(memory, Options { sessions: 4096, initial: 64, ..Options::default() }, S).unwrap();
        assert!(t.set_sessions(most).is_ok() && t.set_sessions(most + 1).is_err() && t.set_sessions(0).is_err());
        assert_eq!((t.stats().limit, t.options().sessions), (u64::from(most), most));
    }
    let t = tracker(Options { sessions: 4096, initial: 64, ..Options::default() });
    let of = |t: &Tracker| (t.stats().room, t.stats().memory_bytes / u64::from(SEGMENT_BYTES), t.stats().sessions);
    let segment = u64::from(SEGMENT_LINES);
    assert_eq!(
        of(&t),
        (segment - 1, 3, 0),
        "one segment of records without line 0, one of index, one that is prepared"
    );
    let made: Vec<SessionRef> = (0..10).map(|n| t.create(&udp(Vni(1), n, 1), S, &mut never).unwrap()).collect();
    assert_eq!(of(&t), (segment - 11, 3, 10));
    let inner = InnerKey::v6(Vni(3), 17, 5, 1, 9, 53);
    let v6 = NewSession { inner, outer: inner.untranslated(), owner: Owner::None, ..udp(Vni(3), 1, 1) };
    t.create(&v6, S, &mut never).unwrap();
    let (room, segments, _) = of(&t);
    assert_eq!((room, segments), (segment - 11 + segment / 2 - 1, 3));
    assert!(made.iter().all(|at| t.remove(*at, S, &mut |_| {})));
    assert_eq!(of(&t).0, room, "they wait for a grace period");
    t.expire(S, 1, &mut never);
    t.expire(S, 1, &mut never);
    assert_eq!(of(&t), (room + 10, 3, 1));
    // Above the limit none is made, whatever room there is.
    t.set_sessions(5).unwrap();
    for n in 0..3 {
        t.create(&udp(Vni(1), n, 1), S, &mut never).unwrap();
    }
    assert_eq!(t.create(&udp(Vni(2), 9, 1), S, &mut never), Err(Refusal::Drop(DropReason::SessionTableFull)));
    assert_eq!(t.tenant(Vni(2)).unwrap().refused_full, 1);
    let stats = t.stats();
    assert_eq!((stats.sessions, stats.created, stats.ended), (4, 14, [0, 0, 0, 10, 0, 0]));
}
