// SPDX-License-Identifier: Apache-2.0
//! Showing and removing sessions by what they are, and who keeps out of the fast path.

use super::*;
use std::net::IpAddr;

fn v6(n: u16) -> NewSession {
    let inner = InnerKey::v6(Vni(9), 17, 0xfd00 << 112 | 5, n, 0x2001_0db8 << 96 | 9, 53);
    NewSession { inner, outer: inner.untranslated(), owner: Owner::None, ..udp(Vni(9), 5, n) }
}

/// Each field of a filter decides by itself, whatever the others say.
#[test]
fn a_session_is_listed_if_every_field_that_is_asked_for_is_its_own() {
    let t = tracker(Options::default());
    let new = udp(Vni(7), 0x0a00_0001, 4000);
    t.create(&new, S, &mut never).unwrap();
    let is = Filter {
        vni: Some(Vni(7)),
        proto: Some(17),
        vm: Some(IpAddr::from([10, 0, 0, 1])),
        vm_port: Some(4000),
        public: Some(IpAddr::from([198, 51, 100, 1])),
        public_port: Some(4000),
        remote: Some(IpAddr::from([8, 8, 8, 8])),
        remote_port: Some(53),
        state: Some(State::OneSided),
    };
    let found = |filter: &Filter| {
        let mut n = 0;
        assert_eq!(t.list(Cursor::default(), u32::MAX, filter, S, &mut |_, _| n += 1), None);
        n
    };
    assert_eq!((found(&is), found(&Filter::default())), (1, 1));
    let other = IpAddr::from([10, 0, 0, 2]);
    let changes: [fn(&mut Filter, IpAddr); 9] = [
        |f, _| f.vni = Some(Vni(8)),
        |f, _| f.proto = Some(6),
        |f, a| f.vm = Some(a),
        |f, _| f.vm_port = Some(4001),
        |f, a| f.public = Some(a),
        |f, _| f.public_port = Some(4001),
        |f, a| f.remote = Some(a),
        |f, _| f.remote_port = Some(54),
        |f, _| f.state = Some(State::Paired),
    ];
    for (i, change) in changes.iter().enumerate() {
        let (mut one, mut all) = (Filter::default(), is.clone());
        change(&mut one, other);
        change(&mut all, other);
        assert_eq!((found(&one), found(&all)), (0, 0), "field {i}");
    }
}

/// With every budget, sessions of both families, in several segments.
#[test]
fn a_listing_in_pieces_sees_every_session_once() {
    let t = tracker(Options { initial: 1, ..Options::default() });
    let mut made: Vec<SessionRef> =
        (0..300u16).map(|i| t.create(&udp(Vni(7), i.into(), i), S, &mut never).unwrap()).collect();
    made.extend((0..300).map(|i| t.create(&v6(i), S, &mut never).unwrap()));
    let gone = [0, 5, 299, 300, 310, 599].map(|i| made[i]);
    gone.iter().for_each(|at| assert!(t.remove(*at, S, &mut |_| {})));
    made.retain(|at| !gone.contains(at));
    made.sort_by_key(|at| at.0);
    for budget in [1, 2, 3, 7, 100, 1 << 20] {
        let (mut seen, mut from, mut calls) = (Vec::new(), Some(Cursor::default()), 0u64);
        while let Some(at) = from {
            let before = seen.len();
            from = t.list(at, budget, &Filter::default(), S, &mut |at, _| seen.push(at));
            assert!(seen.len() - before <= budget as usize, "no more than the budget");
            calls += 1;
        }
        assert_eq!(seen, made, "budget {budget}");
        assert!(calls * u64::from(budget) >= made.len() as u64);
    }
    check(&t, S);
}

#[test]
fn sessions_are_removed_for_the_reason_that_is_given_and_the_others_stay() {
    let t = tracker(Options::default());
    let all: Vec<NewSession> =
        (0..100).map(|i| udp(Vni(7 + u32::from(i) % 2), i.into(), i)).chain((0..20).map(v6)).collect();
    for new in &all {
        t.create(new, S, &mut never).unwrap();
    }
    let (mut ended, mut from, mut calls) = (Vec::new(), Some(Cursor::default()), 0);
    while let Some(at) = from {
        let which =
            &mut |s: &SessionInfo| (s.inner.vni() == Vni(8) || s.inner.is_v6()).then_some(EndReason::Untranslated);
        from = t.remove_where(at, 16, 2 * S, which, &mut |e| ended.push(*e));
        calls += 1;
    }
    assert!(calls > 4);
    assert_eq!(ended.len(), 70);
    assert!(ended.iter().all(|e| e.reason == EndReason::Untranslated && e.released && e.session.inner.vni() != Vni(7)));
    let stats = t.stats();
    assert_eq!((stats.sessions, stats.created, stats.ended), (50, 120, [0, 0, 0, 0, 0, 70]));
    check(&t, 2 * S);
}

/// A session set aside is not counted among those of the fast path, from then on and whatever becomes of it.
#[test]
fn a_session_set_aside_is_not_one_of_the_fast_path_until_its_place_is_another_s() {
    let t = tracker(Options::default());
    let fast = |t: &Tracker| t.tenant(Vni(7)).unwrap().fast;
    let new = [1u16, 2, 3].map(|port| udp(Vni(7), 5, port));
    let at = new.map(|new| t.create(&new, S, &mut never).unwrap());
    let answer =
        |i: usize| assert_eq!(t.judge(at[i], Direction::In, &L4View::Other, 60, S, &mut never).after, State::Paired);
    answer(0);
    answer(1);
    assert_eq!(fast(&t), 2);
    // One that is settled, twice; one that will settle; one whose line has another session by now.
    t.exclude_from_offload(at[0], &new[0].inner);
    t.exclude_from_offload(at[0], &new[0].inner);
    assert_eq!(fast(&t), 1);
    t.exclude_from_offload(at[2], &new[2].inner);
    answer(2);
    assert_eq!(fast(&t), 1);
    t.exclude_from_offload(at[1], &new[0].inner);
    assert_eq!(fast(&t), 1);
    assert!(t.is_excluded(at[0].0) && !t.is_excluded(at[1].0) && t.is_excluded(at[2].0));
    check(&t, S);
    assert!(t.remove(at[0], S, &mut |_| {}));
    assert!(!t.is_excluded(at[0].0) && t.is_excluded(at[2].0) && fast(&t) == 1);
    assert!(t.remove(at[2], S, &mut |_| {}) && !t.is_excluded(at[2].0));
    check(&t, S);
    // A session that has ended is not set aside.
    t.exclude_from_offload(at[0], &new[0].inner);
    assert!(!t.is_excluded(at[0].0));
}

/// What one call of `expire` says that it did, it did.
#[test]
fn progress_adds_up() {
    let t = tracker(Options::default());
    for i in 0..1000 {
        t.create(&udp(Vni(7), 5, i), S, &mut never).unwrap();
    }
    let (mut told, mut ended, mut most) = (0, 0, 0);
    for now in 2..60 {
        loop {
            let p = t.expire(now * S, 100, &mut |_| ended += 1);
            assert!(p.visited <= 100 && p.ended <= p.visited);
            told += p.ended;
            most = most.max(p.visited);
            if !p.more {
                break;
            }
        }
    }
    assert_eq!((told, ended, most, t.stats().sessions), (1000, 1000, 100, 0));
    assert_eq!(t.stats().ended[EndReason::Timeout as usize], 1000);
}
