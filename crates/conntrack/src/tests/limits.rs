// SPDX-License-Identifier: Apache-2.0
//! Quotas, eviction, pressure.

use super::*;
use std::time::Duration;

fn limited(sessions: u32, vm_sessions: u32, half_open: u32) -> Tracker {
    let tenant = TenantLimits { sessions, vm_sessions, half_open };
    tracker(Options { sessions: 1000, tenant, ..Options::default() })
}

fn establish(t: &Tracker, new: &NewSession, now: u64) -> SessionRef {
    let at = t.create(new, now, &mut never).unwrap();
    assert_eq!(t.judge(at, Direction::In, &L4View::Other, 1, now, &mut never).after, State::Paired);
    at
}

fn port(e: &Ended) -> (EndReason, u16) {
    (e.reason, e.session.inner.vm_port())
}

#[test]
fn the_oldest_half_open_session_of_the_tenant_gives_way_and_an_established_one_never_does() {
    let t = limited(4, 100, 100);
    establish(&t, &udp(Vni(1), 1, 1), S);
    for i in 2..5 {
        t.create(&udp(Vni(1), 1, i), u64::from(i) * S, &mut never).unwrap();
    }
    // Another tenant has room of its own.
    t.create(&udp(Vni(2), 1, 1 + 256), 9 * S, &mut never).unwrap_or_else(|e| panic!("{e:?}"));
    let mut ended = Vec::new();
    t.create(&udp(Vni(1), 1, 5), 10 * S, &mut |e| ended.push(port(e))).unwrap();
    assert_eq!(ended, [(EndReason::Evicted, 2)]);
    // The one that would be next is answered: it is safe now.
    let three = t.find_inner(&udp(Vni(1), 1, 3).inner).unwrap();
    t.judge(three, Direction::In, &L4View::Other, 1, 10 * S, &mut never);
    t.create(&udp(Vni(1), 1, 6), 10 * S, &mut |e| ended.push(port(e))).unwrap();
    assert_eq!(ended[1..], [(EndReason::Evicted, 4)]);
    for i in [5, 6] {
        let at = t.find_inner(&udp(Vni(1), 1, i).inner).unwrap();
        t.judge(at, Direction::In, &L4View::Other, 1, 10 * S, &mut never);
    }
    let full = Err(Refusal::Drop(DropReason::SessionQuotaTenant));
    assert_eq!(t.create(&udp(Vni(1), 1, 7), 10 * S, &mut never), full);
    let stats = t.tenant(Vni(1)).unwrap();
    assert_eq!((stats.sessions, stats.half_open, stats.evicted, stats.refused_tenant), (4, 0, 2, 1));
    assert_eq!(t.tenant(Vni(2)).unwrap().sessions, 1);
    t.set_limits(Vni(1), Some(TenantLimits { sessions: 5, vm_sessions: 5, half_open: 5 }));
    t.create(&udp(Vni(1), 1, 7), 10 * S, &mut never).unwrap();
    t.set_limits(Vni(1), None);
    assert_eq!(
        t.create(&udp(Vni(1), 2, 8), 10 * S, &mut |e| ended.push(port(e))).map(|_| ()),
        full.map(|_: SessionRef| ())
    );
    check(&t, 10 * S);
}

#[test]
fn a_tenant_without_limits_of_its_own_has_a_share_of_the_node_and_follows_it() {
    let share = TenantLimits::share_of(200);
    assert_eq!(share, TenantLimits { sessions: 50, vm_sessions: 25, half_open: 25 });
    let most = TenantLimits { sessions: 1_000_000, vm_sessions: 100_000, half_open: 50_000 };
    assert_eq!(TenantLimits::share_of(120_000_000), most);
    assert_eq!(TenantLimits::share_of(1), TenantLimits { sessions: 1, vm_sessions: 1, half_open: 1 });
    let t = tracker(Options { sessions: 200, tenant: share, ..Options::default() });
    t.set_limits(Vni(3), Some(TenantLimits { sessions: 2, vm_sessions: 2, half_open: 2 }));
    // One tenant asks for more than the node has: it gets its share, the rest is there for others.
    let made = |vni, vm, from: u16| {
        let made = |i: &u16| {
            let new = udp(vni, vm, *i + (vni.0 as u16) * 1000);
            let at = t.create(&new, S, &mut never).ok();
            at.map(|at| t.judge(at, Direction::In, &L4View::Other, 1, S, &mut never)).is_some()
        };
        (from..from + 300).filter(made).count()
    };
    assert_eq!((made(Vni(1), 1, 0), made(Vni(1), 2, 300), made(Vni(1), 3, 600)), (25, 25, 0));
    assert_eq!((made(Vni(2), 1, 0), made(Vni(3), 1, 0)), (25, 2));
    assert_eq!(t.tenant(Vni(1)).unwrap().limits, share);
    let limits = TenantLimits::share_of(400);
    t.set_default_limits(limits);
    assert_eq!(t.tenant(Vni(1)).unwrap().limits, limits);
    assert_eq!(made(Vni(1), 1, 0), 25);
    assert_eq!(t.tenant(Vni(3)).unwrap().limits.sessions, 2);
    t.set_limits(Vni(3), None);
    assert_eq!(t.tenant(Vni(3)).unwrap().limits, limits);
    check(&t, S);
}

/// A reader may miss a session of the moment, and ask for it again: at a limit nobody is refused or loses a session for that.
#[test]
fn at_a_limit_a_session_that_was_only_missed_is_found_before_anybody_gives_way() {
    let node = Options { sessions: 2, ..Options::default() };
    for t in [limited(2, 100, 100), limited(100, 2, 100), limited(100, 100, 2), tracker(node)] {
        let half_open = t.create(&udp(Vni(1), 1, 1), S, &mut never).unwrap();
        let at = t.create(&udp(Vni(1), 1, 2), 2 * S, &mut never).unwrap();
        assert_eq!(t.create(&udp(Vni(1), 1, 2), 3 * S, &mut never), Err(Refusal::Exists(at)));
        assert_eq!(t.find_inner(&udp(Vni(1), 1, 1).inner), Some(half_open), "nobody gave way");
        let stats = t.tenant(Vni(1)).unwrap();
        let refused = stats.refused_tenant + stats.refused_vm + stats.refused_half_open + stats.refused_full;
        assert_eq!((stats.sessions, stats.evicted, refused), (2, 0, 0));
        check(&t, 3 * S);
    }
}

#[test]
fn a_vm_at_its_limit_gives_up_its_own_half_open_sessions_only() {
    let t = limited(100, 2, 100);
    t.create(&udp(Vni(1), 2, 9), S, &mut never).unwrap();
    t.create(&udp(Vni(1), 1, 1), 2 * S, &mut never).unwrap();
    establish(&t, &udp(Vni(1), 1, 2), 2 * S);
    let mut ended = Vec::new();
    let at = t.create(&udp(Vni(1), 1, 3), 3 * S, &mut |e| ended.push(port(e))).unwrap();
    assert_eq!(ended, [(EndReason::Evicted, 1)]);
    t.judge(at, Direction::In, &L4View::Other, 1, 3 * S, &mut never);
    let full = Err(Refusal::Drop(DropReason::SessionQuotaVm));
    assert_eq!(t.create(&udp(Vni(1), 1, 4), 3 * S, &mut never), full);
    assert_eq!(t.tenant(Vni(1)).unwrap().refused_vm, 1);
    check(&t, 3 * S);
}

#[test]
fn half_open_sessions_have_a_limit_of_their_own() {
    let t = limited(100, 100, 2);
    for i in 1..5 {
        let mut ended = Vec::new();
        t.create(&udp(Vni(1), 1, i), u64::from(i) * S, &mut |e| ended.push(port(e))).unwrap();
        assert_eq!(ended.len(), usize::from(i > 2));
    }
    assert_eq!((t.tenant(Vni(1)).unwrap().half_open, t.tenant(Vni(1)).unwrap().evicted), (2, 2));
    t.set_limits(Vni(1), Some(TenantLimits { sessions: 100, vm_sessions: 100, half_open: 0 }));
    t.create(&udp(Vni(1), 1, 5), 6 * S, &mut |_| {}).unwrap_err();
    check(&t, 6 * S);
}

#[test]
fn a_full_node_evicts_inside_the_tenant_that_asks_and_refuses_others() {
    let t = tracker(Options { sessions: 10, ..Options::default() });
    for i in 0..9 {
        t.create(&udp(Vni(1), 1, i), S, &mut never).unwrap();
    }
    let mut v6 = udp(Vni(2), 1, 1);
    v6.inner = InnerKey::v6(Vni(2), 17, 1, 1, 2, 53);
    v6.outer = v6.inner.untranslated();
    let full = Err(Refusal::Drop(DropReason::SessionTableFull));
    assert_eq!(t.create(&v6, S, &mut never), full, "an IPv6 session takes two lines");
    t.create(&udp(Vni(2), 9, 1), S, &mut never).unwrap();
    assert_eq!(t.create(&udp(Vni(3), 8, 1), S, &mut never), full);
    let mut ended = Vec::new();
    t.create(&udp(Vni(1), 1, 100), S, &mut |e| ended.push(port(e))).unwrap();
    assert_eq!(ended, [(EndReason::Evicted, 0)]);
    assert_eq!((t.tenant(Vni(2)).unwrap().refused_full, t.tenant(Vni(3)).unwrap().refused_full), (1, 1));
    check(&t, S);
}

fn syn(vni: Vni, port: u16) -> NewSession {
    let mut new = udp(vni, 1, port);
    new.inner = InnerKey::v4(vni, 6, 1, port, 7, 80);
    new.outer = OuterKey::v4(6, 9, port, 7, 80);
    new.view = L4View::Tcp(Segment { flags: wire::tcp::SYN, seq: 1, window: 1, ..Segment::default() });
    new
}

#[test]
fn under_pressure_half_open_connections_live_short() {
    let t = limited(10, 100, 100);
    for i in 0..4 {
        t.create(&syn(Vni(1), i), 10 * S, &mut never).unwrap();
    }
    t.create(&syn(Vni(2), 99), 10 * S, &mut never).unwrap();
    for now in 11..60 {
        t.expire(now * S, 1000, &mut never);
    }
    // Nine of ten: more than four fifths.
    for i in 4..9 {
        establish(&t, &udp(Vni(1), 1, i), 59 * S);
    }
    assert!(t.tenant(Vni(1)).unwrap().pressure && !t.tenant(Vni(2)).unwrap().pressure);
    let mut ended = Vec::new();
    for now in 60..84 {
        t.expire(now * S, 1000, &mut |e| ended.push((e.session.inner.vni(), e.reason, e.session.state)));
    }
    assert!(!ended.is_empty() && ended.iter().all(|e| *e == (Vni(1), EndReason::Timeout, State::SynSent)), "{ended:?}");
    // Without pressure: four minutes, RFC 5382 REQ-5.
    for now in 84..248 {
        t.expire(now * S, 1000, &mut |e| assert_eq!(e.session.inner.vni(), Vni(1)));
    }
    assert!(t.find_inner(&syn(Vni(2), 99).inner).is_some());
    for now in 248..256 {
        t.expire(now * S, 1000, &mut |_| {});
    }
    assert!(t.find_inner(&syn(Vni(2), 99).inner).is_none());
    check(&t, 256 * S);
}

#[test]
fn timeouts_and_the_limit_of_sessions_change_while_sessions_live() {
    let t = tracker(Options { sessions: 1000, ..Options::default() });
    t.set_own_timeouts(Vni(2), &[0, 0, 0, 0, 0, 0, 600, 0, 0, 0]);
    for vni in [1, 2] {
        for i in 0..20 {
            establish(&t, &udp(Vni(vni), 1 + (vni - 1) * 256, 100 * vni as u16 + i), S);
        }
    }
    // Half as long for all, but not for tenant 2. It is known at the latest when the wheel has turned once.
    t.set_timeouts(&Timeouts { udp: Duration::from_secs(150), ..Timeouts::default() });
    assert_eq!(t.options().timeouts.udp, Duration::from_secs(150));
    let until = |seconds: u64| {
        let mut ended = Vec::new();
        for now in 0..=seconds * 2 {
            while t.expire(now * S / 2, 1000, &mut |e| ended.push((e.session.inner.vni(), e.reason))).more {}
        }
        ended
    };
    assert_eq!(until(140), []);
    assert_eq!(until(290), [(Vni(1), EndReason::Timeout); 20]);
    let again = 290 * S;
    establish(&t, &udp(Vni(1), 1, 7), again);
    assert_eq!(until(438), [], "the new timeout is exact for who begins under it");
    assert_eq!(until(444), [(Vni(1), EndReason::Timeout)]);
    // Without own timeouts the second tenant's have ended long since.
    t.set_own_timeouts(Vni(2), &[0; 10]);
    assert_eq!(until(730).len(), 20);
    check(&t, 730 * S);
    // A lower limit ends nobody and refuses who is new; a higher one lets in more than there was room for at the start.
    for i in 0..100 {
        establish(&t, &udp(Vni(1), 1, i), 730 * S);
    }
    t.set_sessions(50).unwrap();
    let full = Err(Refusal::Drop(DropReason::SessionTableFull));
    assert_eq!(t.create(&udp(Vni(1), 1, 900), 730 * S, &mut never), full);
    assert_eq!((t.stats().sessions, t.stats().limit), (100, 50));
    t.set_sessions(200_000).unwrap();
    for i in 0..150_000u32 {
        let new = udp(Vni(1 + i / 50_000), 0x0a00_0000 + i / 50_000, 1000 + (i % 50_000) as u16);
        t.create(&new, 730 * S, &mut never).unwrap_or_else(|e| panic!("{i}: {e:?}"));
    }
    assert!(t.set_sessions(0).is_err() && t.set_sessions(u32::MAX).is_err());
    assert_eq!(t.stats().limit, 200_000);
    check(&t, 730 * S);
}
