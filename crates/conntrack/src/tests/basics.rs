// SPDX-License-Identifier: Apache-2.0
//! One thing at a time.

use super::*;
use wire::tcp::{ACK, SYN};

#[test]
fn a_session_is_found_by_both_keys_until_its_time_is_up() {
    let t = tracker(Options::default());
    let new = udp(Vni(7), 0x0a00_0001, 4000);
    let at = t.create(&new, 10 * S, &mut never).unwrap();
    let sessions = t.sessions();
    {
        let guard = sessions.enter();
        assert_eq!(guard.find_inner(&new.inner), Some(at));
        assert_eq!(guard.find_outer(&new.outer), Some(at));
        assert_eq!(guard.find_inner(&udp(Vni(8), 0x0a00_0001, 4000).inner), None);
        assert_eq!(guard.find_inner(&udp(Vni(7), 0x0a00_0001, 4001).inner), None);
        let record = guard.record(at);
        assert_eq!((record.inner(), record.outer(), record.epoch()), (new.inner, new.outer, 1));
        assert_eq!(record.state(), State::OneSided);
        assert!(!record.fast(Direction::In, &L4View::Other, 100, 11 * S));
        let judged = t.judge(at, Direction::In, &L4View::Other, 60, 11 * S, &mut never);
        assert_eq!((judged.verdict, judged.after), (Verdict::Forward, State::Paired));
        assert!(record.fast(Direction::In, &L4View::Other, 40, 12 * S));
        assert_eq!(record.counts(), Counts { packets: 3, bytes: 200 });
    }
    assert_eq!(t.create(&new, 12 * S, &mut never), Err(Refusal::Exists(at)));
    let other = NewSession { inner: udp(Vni(7), 0x0a00_0001, 4001).inner, ..new };
    assert_eq!(t.create(&other, 12 * S, &mut never), Err(Refusal::OuterTaken));
    let stats = t.tenant(Vni(7)).unwrap();
    assert_eq!((stats.sessions, stats.half_open, stats.created), (1, 0, 1));
    let mut ended = Vec::new();
    for now in 13..312 {
        t.expire(now * S, 1000, &mut never);
    }
    for now in 312..316 {
        t.expire(now * S, 1000, &mut |e| ended.push(*e));
    }
    assert_eq!(ended.len(), 1);
    let e = ended[0];
    assert_eq!((e.reason, e.session.inner, e.session.counts.bytes), (EndReason::Timeout, new.inner, 200));
    assert!(e.session.start.abs_diff(10 * S) < S / 10 && e.session.last.abs_diff(12 * S) < S / 10);
    assert_eq!(sessions.enter().find_inner(&new.inner), None);
    assert_eq!(
        (t.find_outer(&new.outer), t.tenant(Vni(7)).unwrap().sessions, t.sessions_of_vm(Vni(7), [10, 0, 0, 1].into())),
        (None, 0, 0)
    );
}

#[test]
fn a_record_is_reused_only_when_its_readers_have_left() {
    let t = tracker(Options::default());
    let at = t.create(&udp(Vni(7), 1, 1), S, &mut never).unwrap();
    let sessions = t.sessions();
    let guard = sessions.enter();
    assert!(t.remove(at, S, &mut |e| assert_eq!(e.reason, EndReason::Removed)));
    assert!(!t.remove(at, S, &mut never));
    for now in 2..5 {
        t.expire(now * S, 100, &mut never);
        assert_ne!(t.create(&udp(Vni(7), 1, now as u16), now * S, &mut never), Ok(at));
    }
    drop(guard);
    t.expire(5 * S, 100, &mut never);
    assert_eq!(t.create(&udp(Vni(7), 1, 9), 5 * S, &mut never), Ok(at));
}

#[test]
fn a_stray_is_refused_or_picked_up() {
    let t = tracker(Options::default());
    let segment = |flags| L4View::Tcp(Segment { flags, seq: 100, ack: 200, window: 1000, ..Segment::default() });
    let mut new = udp(Vni(7), 1, 1);
    new.inner = InnerKey::v4(Vni(7), 6, 1, 1, 2, 2);
    new.outer = OuterKey::v4(6, 9, 1, 2, 2);
    new.view = segment(ACK);
    assert_eq!(t.create(&new, S, &mut never), Err(Refusal::Drop(DropReason::SessionStray)));
    new.pick_up = true;
    let at = t.create(&new, S, &mut never).unwrap();
    let reply = L4View::Tcp(Segment { flags: ACK, seq: 200, ack: 100, window: 10, ..Segment::default() });
    assert_eq!(t.judge(at, Direction::In, &reply, 40, S, &mut never).after, State::Established);
    assert_eq!(t.judge(at, Direction::In, &segment(SYN), 40, S, &mut never).after, State::Established);
}

/// A pair's packets find it under one key from both sides; nobody else's do: not the same addresses in another VPC, not translated
/// sessions of the same words.
#[test]
fn a_pair_is_found_by_both_directions_and_by_nobody_else() {
    let t = tracker(Options::default());
    let v4 = |n: u8| std::net::IpAddr::from([10, 0, 0, n]);
    let v6 = |n: u16| std::net::IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, n]);
    for (a, b) in [(v4(5), v4(6)), (v6(5), v6(6))] {
        let there = PairKey::new(17, (Vni(7), a, 1000), (Vni(9), b, 53), false).unwrap();
        let back = PairKey::new(17, (Vni(9), b, 53), (Vni(7), a, 1000), false).unwrap();
        assert_eq!((there.0, there.1, back.1), (back.0, Direction::Out, Direction::In));
        let new = NewSession {
            inner: there.0.inner(),
            outer: there.0.outer(),
            owner: Owner::Filter,
            direction: there.1,
            view: L4View::Other,
            bytes: 100,
            epoch: 3,
            pick_up: false,
        };
        let made = t.create(&new, S, &mut never).unwrap();
        assert_eq!(t.create(&new, S, &mut never), Err(Refusal::Exists(made)));
        assert_eq!(t.find_pair(&back.0), Some(made));
        assert_eq!((t.find_inner(&new.inner), t.find_outer(&new.outer)), (None, None));
        let other = PairKey::new(17, (Vni(7), a, 1000), (Vni(8), b, 53), false).unwrap();
        assert_eq!(t.find_pair(&other.0), None, "another peer with the same address");
        let translated = NewSession { outer: new.inner.untranslated(), owner: Owner::None, ..new };
        let second = t.create(&translated, S, &mut never).unwrap();
        assert_eq!((t.find_inner(&new.inner), t.find_pair(&there.0)), (Some(second), Some(made)));
        check(&t, S);
        let sessions = t.sessions();
        let guard = sessions.enter();
        assert_eq!((guard.find_pair(&there.0), guard.record(made).epoch()), (Some(made), 3));
        drop(guard);
        assert!(t.remove(made, S, &mut |_| {}) && t.find_pair(&there.0).is_none());
        check(&t, S);
    }
}
