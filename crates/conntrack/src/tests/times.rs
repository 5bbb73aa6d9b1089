// SPDX-License-Identifier: Apache-2.0
//! When sessions are looked at and end, what a session that comes from elsewhere is taken for, and when a node is short of sessions.

use super::*;
use crate::upgrade::Image;
use wire::tcp::{ACK, FIN, RST, SYN};

fn small() -> Options {
    Options { sessions: 4096, initial: 64, salt: 5, ..Options::default() }
}

fn tcp(flags: u8, seq: u32, ack: u32) -> L4View {
    L4View::Tcp(Segment { flags, seq, ack, window: 1000, ..Segment::default() })
}

fn syn(vni: Vni, port: u16) -> NewSession {
    NewSession {
        inner: InnerKey::v4(vni, 6, 5, port, 9, 80),
        outer: OuterKey::v4(6, 6 + vni.0, port, 9, 80),
        view: tcp(SYN, 100, 0),
        ..udp(vni, 5, port)
    }
}

fn open(t: &Tracker, vni: Vni, port: u16, now: u64) -> SessionRef {
    let at = t.create(&syn(vni, port), now, &mut never).unwrap();
    t.judge(at, Direction::In, &tcp(SYN | ACK, 300, 101), 40, now, &mut never);
    assert_eq!(t.judge(at, Direction::Out, &tcp(ACK, 101, 301), 40, now, &mut never).after, State::Established);
    at
}

/// When what there is ends, in seconds from `begin` on, looked at each second.
fn ends(t: &Tracker, begin: u64, seconds: u64) -> Vec<(u64, Vni, u16, State)> {
    let mut out = Vec::new();
    for s in 0..=seconds {
        t.expire(begin + s * S, 10_000, &mut |e| {
            out.push((s, e.session.inner.vni(), e.session.inner.vm_port(), e.session.state))
        });
    }
    out
}

/// A connection that is open has a timer in the far distance; each step after which it lives shorter gives it a nearer one.
#[test]
fn a_connection_that_begins_to_end_is_looked_at_in_time() {
    use Direction::{In, Out};
    type Steps = [(Direction, L4View)];
    let stories: [(&Steps, State, u64); 6] = [
        (&[(Out, tcp(FIN | ACK, 101, 301))], State::FinOut, 240),
        (&[(In, tcp(FIN | ACK, 301, 101))], State::FinIn, 240),
        (&[(Out, tcp(FIN | ACK, 101, 301)), (In, tcp(FIN | ACK, 301, 101))], State::FinBoth, 240),
        (&[(Out, tcp(RST, 150, 0))], State::Established, 240),
        (&[(Out, tcp(RST, 101, 0))], State::Reset, 10),
        (&[(In, tcp(RST | ACK, 301, 101))], State::Reset, 10),
    ];
    for (n, (steps, state, life)) in stories.iter().enumerate() {
        let t = tracker(small());
        let at = open(&t, Vni(7), 1, 70 * S);
        assert_eq!(ends(&t, 70 * S, 30), [], "the timer of its beginning is gone");
        for (direction, view) in *steps {
            t.judge(at, *direction, view, 40, 100 * S, &mut never);
        }
        assert_eq!(t.info(at, 100 * S).unwrap().state, *state, "{n}");
        let ends = ends(&t, 100 * S, life + 5);
        assert!(
            matches!(ends[..], [(s, Vni(7), 1, last)] if last == *state && s >= *life && s <= life + 3),
            "{n}: {ends:?}"
        );
    }
    // One that is open again lives on, although a nearer timer is there.
    let t = tracker(small());
    let at = open(&t, Vni(7), 1, 100 * S);
    t.judge(at, Out, &tcp(RST, 150, 0), 40, 100 * S, &mut never);
    t.judge(at, In, &tcp(ACK, 301, 101), 40, 100 * S, &mut never);
    assert_eq!(ends(&t, 100 * S, 2000), []);
    let late: Vec<_> = (0..30).flat_map(|n| ends(&t, (7400 + 10 * n) * S, 9)).collect();
    assert_eq!(late.len(), 1);
}

/// The level of water: up to it nobody lives short, from one line more on every half-open connection does.
#[test]
fn a_node_is_short_of_sessions_above_its_level_and_not_at_it() {
    for (more, short) in [(49, false), (50, true)] {
        for six in [false, true] {
            let t = tracker(Options { sessions: 100, water_level: 50, ..small() });
            t.create(&syn(Vni(1), 999), 100 * S, &mut never).unwrap();
            for n in 0..more {
                let new = match n {
                    0 if six => continue,
                    1 if six => {
                        // Two lines.
                        let inner = InnerKey::v6(Vni(2), 17, 5, 1, 9, 53);
                        NewSession { inner, outer: inner.untranslated(), owner: Owner::None, ..udp(Vni(2), 5, 1) }
                    }
                    _ => udp(Vni(2), 5, n),
                };
                let at = t.create(&new, 100 * S, &mut never).unwrap();
                t.judge(at, Direction::In, &L4View::Other, 1, 100 * S, &mut never);
            }
            let ends = ends(&t, 100 * S, 100);
            match short {
                true => assert!(matches!(ends[..], [(20..=23, Vni(1), 999, State::SynSent)]), "{more} {six}: {ends:?}"),
                false => assert_eq!(ends, [], "{more} {six}"),
            }
        }
    }
    // Another limit has another level; it is a share of that.
    let t = tracker(Options { sessions: 100, water_level: 90, ..small() });
    (0..12).for_each(|port| _ = t.create(&syn(Vni(1), port), 100 * S, &mut never).unwrap());
    assert_eq!(ends(&t, 100 * S, 60), []);
    t.set_sessions(13).unwrap();
    assert_eq!(ends(&t, 160 * S, 25).len(), 1, "12 of 13 are more than 90%, 11 are not");
}

/// Sessions of a memory of another layout: their time, their place in the queue of those that give way, who counts them.
#[test]
fn a_session_from_elsewhere_goes_on_as_if_it_had_begun_here() {
    let old = tracker(small());
    let now = 1000 * S;
    for (port, age) in [(1, 5), (2, 9), (3, 7)] {
        old.create(&syn(Vni(7), port), now - age * S, &mut never).unwrap();
    }
    open(&old, Vni(7), 4, now);
    let inner = InnerKey::v6(Vni(7), 17, 5, 5, 9, 53);
    let six = NewSession { inner, outer: inner.untranslated(), owner: Owner::None, ..udp(Vni(7), 5, 5) };
    old.create(&six, now - 20 * S, &mut never).unwrap();
    let t = tracker(Options { salt: 99, ..small() });
    let images: Vec<Image> = {
        let sessions = old.sessions();
        let guard = sessions.enter();
        let image = |at: &SessionRef| {
            let record = guard.record(*at);
            let sides = [Direction::Out, Direction::In];
            Image {
                inner: record.inner(),
                outer: record.outer(),
                state: record.state_word(),
                epoch: record.epoch(),
                last_seen: record.last_seen(),
                end: sides.map(|d| record.end(d)),
                ack: sides.map(|d| record.ack(d)),
                window: sides.map(|d| record.window(d)),
                count: 3 | 500 << SESSION_COUNT_BYTES_SHIFT,
            }
        };
        all(&old, now).iter().map(|(at, _)| image(at)).collect()
    };
    // In the order in which they began; the queue has them in the order of their coming.
    let mut images = images;
    images.sort_by_key(|i| i.last_seen);
    for image in &images {
        let at = t.import(image, now).unwrap();
        let info = t.info(at, now).unwrap();
        assert_eq!(info.counts, Counts { packets: 3, bytes: 500 });
    }
    check(&t, now);
    let stats = t.tenant(Vni(7)).unwrap();
    assert_eq!((stats.sessions, stats.half_open, stats.fast, stats.created, t.stats().sessions), (5, 4, 1, 0, 5));
    assert_eq!(t.sessions_of_vm(Vni(7), std::net::Ipv4Addr::from(5).into()), 4);
    // The oldest gives way, and the next one.
    t.set_limits(Vni(7), Some(TenantLimits { sessions: 5, vm_sessions: 100, half_open: 100 }));
    let mut gone = Vec::new();
    for port in 10..12 {
        t.create(&syn(Vni(7), port), now, &mut |e| gone.push((e.reason, e.session.inner.vm_port()))).unwrap();
    }
    assert_eq!(gone, [(EndReason::Evicted, 5), (EndReason::Evicted, 2)]);
    // Each ends when its own time is up: under pressure 20 seconds after its beginning.
    t.set_limits(Vni(7), Some(TenantLimits { sessions: 1, vm_sessions: 100, half_open: 100 }));
    let ends = ends(&t, now, 30);
    let seconds: Vec<(u16, u64)> = ends.iter().map(|e| (e.2, e.0)).collect();
    assert_eq!(seconds.iter().map(|e| e.0).collect::<Vec<_>>(), [3, 1, 10, 11]);
    for ((_, s), due) in seconds.iter().zip([13, 15, 20, 20]) {
        assert!((due..=due + 3).contains(s), "{seconds:?}");
    }
    check(&t, now + 30 * S);
}

/// The states in which something is removed are all of them.
#[test]
fn whatever_its_state_a_session_is_removed() {
    let t = tracker(small());
    let steps: [&[(Direction, L4View)]; 4] = [
        &[],
        &[(Direction::In, tcp(SYN, 300, 0))],
        &[(Direction::In, tcp(SYN | ACK, 300, 101))],
        &[
            (Direction::In, tcp(SYN | ACK, 300, 101)),
            (Direction::Out, tcp(ACK, 101, 301)),
            (Direction::Out, tcp(RST, 101, 0)),
        ],
    ];
    for (n, steps) in steps.iter().enumerate() {
        let at = t.create(&syn(Vni(7), n as u16), S, &mut never).unwrap();
        steps.iter().for_each(|(d, view)| _ = t.judge(at, *d, view, 40, S, &mut never));
    }
    for (n, count) in [0u16, 1, 2].into_iter().enumerate() {
        let at = t.create(&udp(Vni(8), 5, n as u16), S, &mut never).unwrap();
        (0..count).for_each(|_| _ = t.judge(at, Direction::In, &L4View::Other, 1, S, &mut never));
    }
    let mut states = Vec::new();
    let mut from = Some(Cursor::default());
    while let Some(at) = from {
        from = t.remove_where(at, 10_000, S, &mut |_| Some(EndReason::Removed), &mut |e| states.push(e.session.state));
    }
    use State::*;
    assert_eq!(states, [SynSent, SynBoth, SynReceived, Reset, OneSided, Paired, Paired]);
    assert_eq!(t.stats().sessions, 0);
    check(&t, S);
}

/// What a memory held before is of no interest: the tracker has all of its segments, the first one too.
#[test]
fn a_tracker_begins_anew_on_memory_that_was_used() {
    let memory = Arc::new(HeapMemory::new().unwrap());
    let fresh = Tracker::new(memory.clone(), small(), S).unwrap();
    let inner = InnerKey::v6(Vni(7), 17, 5, 5, 9, 53);
    fresh
        .create(
            &NewSession { inner, outer: inner.untranslated(), owner: Owner::None, ..udp(Vni(7), 5, 5) },
            S,
            &mut never,
        )
        .unwrap();
    for port in 0..100 {
        fresh.create(&udp(Vni(7), 5, port), S, &mut never).unwrap();
    }
    let segments = memory.segments();
    drop(fresh);
    let again = Tracker::new(memory.clone(), Options { salt: 6, ..small() }, S).unwrap();
    assert_eq!((all(&again, S).len(), again.stats().sessions), (0, 0));
    assert_eq!(again.stats().room, u64::from(SEGMENT_LINES) - 1, "the first segment has records, and no line 0");
    assert!(memory.segments() <= segments + 1, "one for the index");
    for port in 0..100 {
        let at = again.create(&udp(Vni(7), 5, port), S, &mut never).unwrap();
        assert_eq!(at.0, LineNo(u32::from(port) + 1));
    }
    // All that is left is used before there is more.
    let before = memory.segments();
    again
        .create(
            &NewSession { inner, outer: inner.untranslated(), owner: Owner::None, ..udp(Vni(7), 5, 5) },
            S,
            &mut never,
        )
        .unwrap();
    assert_eq!(memory.segments(), before);
    check(&again, S);
}

/// An ICMP error is believed of what may be on its way: no older than a window, or 64 KiB, and not beyond what was sent.
#[test]
fn an_error_is_about_what_may_be_on_its_way() {
    let t = tracker(small());
    for (window, scale, most) in [(1000u16, None, 65_536), (60_000, Some(3), 60_000 << 3)] {
        let port = u16::from(scale.is_some()) + 1;
        let of = |flags, seq, ack, len, window| L4View::Tcp(Segment { flags, seq, ack, len, window, scale });
        let new = NewSession { view: of(SYN, 2_000_000, 0, 0, window), ..syn(Vni(7), port) };
        let at = t.create(&new, S, &mut never).unwrap();
        t.judge(at, Direction::In, &of(SYN | ACK, 4_000_000, 2_000_001, 0, window), 40, S, &mut never);
        t.judge(
            at,
            Direction::Out,
            &of(ACK, 2_000_001, 4_000_001, 0, if scale.is_some() { window } else { 0 }),
            40,
            S,
            &mut never,
        );
        t.judge(
            at,
            Direction::In,
            &of(ACK, 4_000_001, 2_000_001, 0, if scale.is_some() { window } else { 0 }),
            40,
            S,
            &mut never,
        );
        t.judge(at, Direction::Out, &of(ACK, 2_000_001, 4_000_001, 500, 10), 540, S, &mut never);
        let outside = |seq: u32| t.related(&Embedded::FromOutside { key: new.outer, seq: Some(seq) }).is_some();
        let inside = |seq: u32| t.related(&Embedded::FromInside { key: new.inner, seq: Some(seq) }).is_some();
        let (sent, answered) = (2_000_501, 4_000_001);
        assert_eq!([sent + 1, sent, sent - most, sent - most - 1].map(outside), [false, true, true, false], "{most}");
        assert_eq!(
            [answered + 1, answered, answered - most, answered - most - 1].map(inside),
            [false, true, true, false],
            "{most}"
        );
    }
    // Of a pair the side that sent it counts.
    let end = |last: u8, port| (Vni(7), std::net::IpAddr::from([10, 0, 1, last]), port);
    let (key, direction) = PairKey::new(6, end(5, 70), end(6, 80), false).unwrap();
    let new = NewSession { inner: key.inner(), outer: key.outer(), owner: Owner::Filter, direction, ..syn(Vni(7), 70) };
    let at = t.create(&new, S, &mut never).unwrap();
    t.judge(at, Direction::In, &tcp(SYN | ACK, 900_000, 101), 40, S, &mut never);
    let pair = |sent, seq| t.related(&Embedded::OfPair { key, sent, seq });
    assert_eq!(
        [
            pair(Direction::Out, Some(101)),
            pair(Direction::Out, Some(900_001)),
            pair(Direction::In, Some(900_001)),
            pair(Direction::In, Some(101))
        ],
        [Some(at), None, Some(at), None]
    );
    assert_eq!(
        (pair(Direction::In, None), t.related(&Embedded::FromInside { key: key.inner(), seq: None })),
        (Some(at), None)
    );
}

/// The index grows with the first session above 85% of its slots at two entries each, once, and never beyond what all sessions need.
#[test]
fn an_index_grows_at_its_load_and_up_to_what_the_limit_needs() {
    let root = |t: &Tracker, at| t.shared_for_tests().0.root(at);
    let (index, old) = (std::mem::offset_of!(SessionRoot, index), std::mem::offset_of!(SessionRoot, index_old));
    let full = u64::from(SEGMENT_LINES) * u64::from(SESSION_SLOTS) * 85 / 200;
    for (sessions, segments) in [(2_000_000, 2), (389_939, 1), (389_940, 2)] {
        let t = tracker(Options { sessions, ..small() });
        let first = root(&t, index);
        let segment = u64::from(SEGMENT_LINES);
        for many in [0, 1, full / 2, full - 1, full] {
            t.keep_index_for_tests(many);
            assert_eq!((root(&t, index), root(&t, old)), (first, 0), "{many} of {sessions}");
        }
        t.keep_index_for_tests(full + 1);
        let now = root(&t, index);
        assert_eq!(
            (now >> TABLE_REF_BUCKETS_SHIFT, root(&t, old)),
            if segments == 1 { (segment, 0) } else { (segments * segment, first) }
        );
        t.keep_index_for_tests(full + 1);
        assert_eq!(root(&t, index), now, "it is growing already");
        assert!(
            t.create(&udp(Vni(7), 5, 1), S, &mut never).is_ok() && t.find_inner(&udp(Vni(7), 5, 1).inner).is_some()
        );
        check(&t, S);
        if segments == 1 {
            continue;
        }
        // It goes on by 4,096 buckets a look; then the old one's memory is free, and that is all.
        let kind = || t.shared_for_tests().0.lines.kind(first as u32 / SEGMENT_LINES).load(Relaxed);
        for looks in 1..=20 {
            t.expire(S, 1, &mut never);
            let done = looks * 4096 + 2 >= SEGMENT_LINES;
            assert_eq!((root(&t, index), root(&t, old)), (now, if done { 0 } else { first }), "{looks}");
        }
        assert_eq!(kind(), SESSION_SEGMENT_FREE);
        assert!(
            t.find_inner(&udp(Vni(7), 5, 1).inner).is_some() && t.create(&udp(Vni(7), 5, 2), S, &mut never).is_ok()
        );
        check(&t, S);
    }
}

/// A connection that begins anew in the place of one that was half-open too is the newest of those that give way, and counts once.
#[test]
fn a_connection_in_the_place_of_another_gives_way_as_what_it_is() {
    let t = tracker(small());
    t.set_limits(Vni(7), Some(TenantLimits { sessions: 3, vm_sessions: 100, half_open: 100 }));
    let picked = NewSession { view: tcp(ACK, 100, 300), pick_up: true, ..syn(Vni(7), 1) };
    let at = t.create(&picked, 100 * S, &mut never).unwrap();
    t.create(&syn(Vni(7), 2), 101 * S, &mut never).unwrap();
    let mut ended = Vec::new();
    let mut hear = |e: &Ended| ended.push((e.reason, e.session.inner.vm_port(), e.released));
    assert_eq!(t.judge(at, Direction::Out, &tcp(SYN, 900, 0), 40, 105 * S, &mut hear).after, State::SynSent);
    t.create(&syn(Vni(7), 3), 106 * S, &mut hear).unwrap();
    let info = t.info(at, 105 * S).unwrap();
    assert_eq!(
        (info.start >> SESSION_TIME_SHIFT, info.counts.packets, info.state),
        (u64::from(coarse(105 * S)), 1, State::SynSent)
    );
    let stats = t.tenant(Vni(7)).unwrap();
    assert_eq!((stats.sessions, stats.half_open, stats.created), (3, 3, 3));
    // The oldest is the second one; then the one that began anew, then the third.
    for port in 10..13 {
        t.create(&syn(Vni(7), port), 110 * S, &mut hear).unwrap();
    }
    let evicted = |port| (EndReason::Evicted, port, true);
    assert_eq!(ended, [(EndReason::Reopened, 1, false), evicted(2), evicted(1), evicted(3)]);
    check(&t, 110 * S);
}

/// A tracker that takes memory over knows who is the oldest, whichever line it lies in, and believes no old index that cannot be.
#[test]
fn who_takes_over_knows_the_oldest_and_no_old_index() {
    let memory = Arc::new(HeapMemory::new().unwrap());
    let first = Tracker::new(memory.clone(), small(), S).unwrap();
    for (port, begun) in [(1, 9), (2, 5), (3, 7)] {
        first.create(&syn(Vni(7), port), begun * S, &mut never).unwrap();
    }
    let old = std::mem::offset_of!(SessionRoot, index_old);
    first.shared_for_tests().0.lines.root(old).store(3 << TABLE_REF_BUCKETS_SHIFT | 77, Release);
    drop(first);
    let (t, found) = Tracker::attach(memory, small(), 10 * S).unwrap();
    assert_eq!((found.sessions, found.completed, found.dangling, found.refused), (3, 0, 0, 0));
    assert_eq!(t.shared_for_tests().0.root(old), 0);
    t.set_limits(Vni(7), Some(TenantLimits { sessions: 3, vm_sessions: 100, half_open: 100 }));
    let mut gone = Vec::new();
    (10..13).for_each(|port| {
        _ = t.create(&syn(Vni(7), port), 10 * S, &mut |e| gone.push(e.session.inner.vm_port())).unwrap()
    });
    assert_eq!(gone, [2, 3, 1]);
    check(&t, 10 * S);
}

/// At its limit a VM finds its own half-open session behind the entries of hundreds that have been answered.
#[test]
fn entries_of_answered_sessions_do_not_hide_a_vm_s_own() {
    let t = tracker(small());
    t.set_limits(Vni(7), Some(TenantLimits { sessions: 4000, vm_sessions: 1, half_open: 4000 }));
    for vm in 0..256 {
        let at = t.create(&udp(Vni(7), 100 + vm, vm as u16), S, &mut never).unwrap();
        t.judge(at, Direction::In, &L4View::Other, 1, S, &mut never);
    }
    t.create(&udp(Vni(7), 5, 1000), 2 * S, &mut never).unwrap();
    let mut gone = Vec::new();
    t.create(&udp(Vni(7), 5, 1001), 3 * S, &mut |e| gone.push((e.reason, e.session.inner.vm_port()))).unwrap();
    assert_eq!(gone, [(EndReason::Evicted, 1000)]);
    let stats = t.tenant(Vni(7)).unwrap();
    assert_eq!((stats.sessions, stats.half_open, stats.evicted, stats.refused_vm), (257, 1, 1, 0));
}

/// What the machine knows of a connection is what its record says of it, bit by bit.
#[test]
fn a_record_keeps_the_whole_connection() {
    use crate::tcp::Conn;
    let t = tracker(small());
    let sessions = t.sessions();
    let guard = sessions.enter();
    for (n, direction) in [Direction::Out, Direction::In].into_iter().enumerate() {
        let port = 10 * n as u16;
        let segment = |flags, seq, ack| Segment { flags, seq, ack, window: 700, len: 3, scale: Some(9) };
        let s = segment(SYN, 0xffff_ffff, 0);
        let new = NewSession { direction, view: L4View::Tcp(Segment { len: 0, ..s }), ..syn(Vni(7), port) };
        let at = t.create(&new, S, &mut never).unwrap();
        let begun = Conn::begin(direction, &Segment { len: 0, ..s });
        assert_eq!((Conn::of(&guard.record(at)), guard.record(at).from_outside()), (begun, direction == Direction::In));
        let answer = Segment { len: 0, scale: Some(14), ..segment(SYN | ACK, 50, 0) };
        t.judge(at, direction.reverse(), &L4View::Tcp(answer), 40, S, &mut never);
        let after = crate::tcp::step(&begun, direction.reverse(), &answer).conn;
        assert!(after.state == State::SynReceived && Conn::of(&guard.record(at)) == after);
        let s = segment(ACK, 1000, 2000);
        let picked = NewSession { direction, view: L4View::Tcp(s), pick_up: true, ..syn(Vni(7), port + 1) };
        let at = t.create(&picked, S, &mut never).unwrap();
        let conn = Conn::pick_up(direction, &s);
        assert!(conn.loose && Conn::of(&guard.record(at)) == conn);
        // In doubt.
        let reset = Segment { len: 0, ..segment(RST, 1001, 0) };
        t.judge(at, direction, &L4View::Tcp(reset), 40, S, &mut never);
        assert_eq!(Conn::of(&guard.record(at)), Conn { doubt: true, ..conn });
    }
}

/// The record of a session that contradicted another is free again, for sessions of its family.
#[test]
fn a_record_that_was_refused_serves_its_own_family() {
    let inner = |port| InnerKey::v6(Vni(7), 17, 5, port, 9, 53);
    let six = |port| NewSession {
        inner: inner(port),
        outer: inner(port).untranslated(),
        owner: Owner::None,
        ..udp(Vni(7), 5, port)
    };
    for (v6, first) in [(false, udp(Vni(7), 5, 1)), (true, six(1))] {
        let memory = Arc::new(HeapMemory::new().unwrap());
        let t = Tracker::new(memory.clone(), small(), S).unwrap();
        let at = t.create(&first, S, &mut never).unwrap().0;
        let lines = t.shared_for_tests().0.lines;
        for line in 0..1 + u32::from(v6) {
            let word = |i| lines.at(at + line).cell(i).load(Relaxed);
            (0..8).for_each(|i| lines.at(at + 10_000 + line).cell(i).store(word(i), Relaxed));
        }
        drop(t);
        let (t, found) = Tracker::attach(memory, small(), S).unwrap();
        assert_eq!((found.sessions, found.refused), (1, 1));
        (0..3).for_each(|_| _ = t.expire(S, 1, &mut never));
        for (new, kind) in [(six(9), SESSION_SEGMENT_V6), (udp(Vni(7), 6, 9), SESSION_SEGMENT_V4)] {
            let at = t.create(&new, S, &mut never).unwrap().0;
            assert_eq!(t.shared_for_tests().0.lines.kind(at.0 / SEGMENT_LINES).load(Relaxed), kind, "{v6}: line {at}");
        }
        check(&t, S);
    }
}
