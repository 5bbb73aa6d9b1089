// SPDX-License-Identifier: Apache-2.0
//! A tracker that takes memory over remembers what the one before did; and of damage it finds exactly what there is, mends it or lets the
//! session go, and nothing else suffers.

use super::*;
use crate::tcp::Conn;
use rand::RngExt;
use wire::tcp::{ACK, SYN};

const INDEX: usize = std::mem::offset_of!(SessionRoot, index);
const INDEX_OLD: usize = std::mem::offset_of!(SessionRoot, index_old);

fn options() -> Options {
    Options { sessions: 4096, initial: 64, salt: 5, ..Options::default() }
}

/// A memory with the same content.
fn copy(from: &Tracker) -> Arc<HeapMemory> {
    let (shared, _) = from.shared_for_tests();
    let twin = HeapMemory::new().unwrap();
    twin.grow(shared.memory.segments()).unwrap();
    let to = crate::record::Lines::new(&twin);
    for at in (0..size_of::<SessionRoot>()).step_by(8) {
        to.root(at).store(shared.lines.root(at).load(Relaxed), Relaxed);
    }
    for n in 0..shared.lines.limit() {
        for i in 0..8 {
            let word = shared.lines.at(LineNo(n)).cell(i).load(Relaxed);
            if word != 0 {
                to.at(LineNo(n)).cell(i).store(word, Relaxed);
            }
        }
    }
    Arc::new(twin)
}

/// What can be known of each session, in the order of lines.
fn told(t: &Tracker, now: u64) -> Vec<String> {
    let sessions = t.sessions();
    let guard = sessions.enter();
    let mut list = all(t, now);
    list.sort_by_key(|(at, _)| at.0);
    let conn = |at: &SessionRef| Conn::of(&guard.record(*at));
    list.iter().map(|(at, info)| format!("{at:?} {info:?} {:?}", conn(at))).collect()
}

/// Free records of both families: all lines of their segments but those in use, and line 0.
fn room(t: &Tracker, now: u64) -> u64 {
    let (shared, _) = t.shared_for_tests();
    let count =
        |kind: u8| (0..shared.memory.segments()).filter(|n| shared.lines.kind(*n).load(Relaxed) == kind).count() as u64;
    let used = |v6: bool| all(t, now).iter().filter(|(_, i)| i.inner.is_v6() == v6).count() as u64;
    let segment = u64::from(SEGMENT_LINES);
    let first = shared.lines.kind(0).load(Relaxed);
    let none = u64::from(first == SESSION_SEGMENT_V4 || first == SESSION_SEGMENT_V6);
    count(SESSION_SEGMENT_V4) * segment + count(SESSION_SEGMENT_V6) * segment / 2 - used(false) - used(true) - none
}

fn tcp(vni: Vni, vm: u32, port: u16, seq: u32) -> NewSession {
    let segment = Segment { flags: SYN, seq, window: 900, scale: Some(3), ..Segment::default() };
    NewSession {
        inner: InnerKey::v4(vni, 6, vm, port, 0x0808_0404, 443),
        outer: OuterKey::v4(6, 0xc633_6500 | vm & 0xff, port, 0x0808_0404, 443),
        view: L4View::Tcp(segment),
        ..udp(vni, vm, port)
    }
}

fn six(vni: Vni, vm: u128, port: u16) -> NewSession {
    let inner = InnerKey::v6(vni, 17, vm, port, 0x2001_0db8 << 96 | 9, 53);
    NewSession { inner, outer: inner.untranslated(), owner: Owner::None, ..udp(vni, 1, port) }
}

fn pair(n: u16) -> NewSession {
    let end = |vni, last: u8, port| (Vni(vni), std::net::IpAddr::from([10, 0, 1, last]), port);
    let (key, direction) = PairKey::new(17, end(7, 5, n), end(9, 6, 53), false).unwrap();
    NewSession { inner: key.inner(), outer: key.outer(), owner: Owner::Filter, direction, ..udp(Vni(7), 5, n) }
}

#[test]
fn a_tracker_that_takes_over_remembers_what_the_first_one_does() {
    let (_, mut rng) = seeded("takeover");
    let t = tracker(options());
    let mut now = 10 * S;
    for step in 0..600u32 {
        let (vni, vm, port) = (rng.random_range(1..5), rng.random_range(1..9), rng.random_range(1..200));
        let new = match rng.random_range(0..4) {
            0 => udp(Vni(vni), vm, port),
            1 => tcp(Vni(vni), vm, port, rng.random()),
            2 => six(Vni(vni), vm.into(), port),
            _ => pair(port),
        };
        match t.create(&new, now, &mut |_| {}) {
            Err(Refusal::Exists(at)) if step % 3 == 0 => drop(t.remove(at, now, &mut |_| {})),
            Err(Refusal::Exists(at)) => {
                let conn = Conn::of(&t.sessions().enter().record(at));
                let answer = Segment {
                    flags: SYN | ACK,
                    seq: 77,
                    ack: conn.end[0],
                    window: 500,
                    scale: Some(2),
                    ..Segment::default()
                };
                let finish =
                    Segment { flags: ACK, seq: conn.end[0], ack: 78, window: 60, len: 20, ..Segment::default() };
                let (direction, segment) =
                    if step % 2 == 0 { (Direction::In, answer) } else { (Direction::Out, finish) };
                let view = if new.inner.proto() == 6 { L4View::Tcp(segment) } else { L4View::Other };
                t.judge(at, direction, &view, step, now, &mut |_| {});
            }
            Ok(at) if step % 7 == 0 => drop(t.stamp(at, step as u16)),
            other => drop(other.ok()),
        }
        now += rng.random_range(0..S / 5);
        if step % 100 == 99 {
            while t.expire(now, 100_000, &mut |_| {}).more {}
            let (other, found) = Tracker::attach(copy(&t), Options { salt: 99, ..options() }, now).unwrap();
            let n = all(&t, now).len() as u64;
            assert_eq!((found.sessions, found.completed, found.dangling, found.refused), (n, 0, 0, 0));
            assert_eq!(told(&other, now), told(&t, now));
            check(&other, now);
            for (mine, theirs) in t.tenants().iter().zip(other.tenants()) {
                let of = |s: &TenantStats| (s.vni, s.sessions, s.half_open, s.fast);
                assert_eq!((of(mine), theirs.created, theirs.evicted), (of(&theirs), 0, 0));
            }
            assert_eq!(other.stats().room, room(&other, now));
            // The oldest half-open session of a tenant is known to both.
            for vni in 1..5 {
                let of = |t: &Tracker| {
                    let limits = t.tenant(Vni(vni)).unwrap();
                    t.set_limits(
                        Vni(vni),
                        Some(TenantLimits { sessions: limits.sessions, vm_sessions: 1000, half_open: 1000 }),
                    );
                    let mut gone = Vec::new();
                    let made = t.create(&udp(Vni(vni), 99, 900 + vni as u16), now, &mut |e| gone.push(e.session.inner));
                    made.map(|_| gone)
                };
                let theirs = of(&other);
                let mine: Vec<InnerKey> = {
                    let mut half: Vec<_> = all(&t, now)
                        .into_iter()
                        .filter(|(_, i)| i.inner.vni() == Vni(vni) && i.state.half_open())
                        .collect();
                    half.sort_by_key(|(_, i)| i.start);
                    half.into_iter().map(|(_, i)| i.inner).collect()
                };
                let first = mine.first();
                let oldest = |key: &InnerKey| {
                    let start =
                        |k: &InnerKey| all(&t, now).into_iter().find(|(_, i)| i.inner == *k).map(|(_, i)| i.start);
                    first.is_some_and(|f| start(f) == start(key))
                };
                match theirs {
                    Ok(gone) => assert!(gone.len() == 1 && oldest(&gone[0]), "{gone:?} of {mine:?}"),
                    Err(_) => assert!(mine.is_empty()),
                }
            }
        }
    }
}

struct World {
    t: Tracker,
    memory: Arc<HeapMemory>,
    made: Vec<(NewSession, SessionRef)>,
}

/// Eight UDP, four TCP, four IPv6 sessions and two pairs, and what `damage` does to them.
fn damaged(damage: impl FnOnce(&World, &crate::record::Lines)) -> Result<(Tracker, [u64; 4]), AttachError> {
    let t = tracker(options());
    let new = (0..8)
        .map(|n| udp(Vni(1), 5 + n, 100))
        .chain((0..4).map(|n| tcp(Vni(2), 5, 200 + n, 1)))
        .chain((0..4).map(|n| six(Vni(3), 5, 300 + n)));
    let made = new.chain((0..2).map(|n| pair(400 + n))).map(|new| (new, t.create(&new, 10 * S, &mut never).unwrap()));
    let made = made.collect();
    let memory = copy(&t);
    let world = World { t, memory, made };
    damage(&world, &crate::record::Lines::new(&*world.memory));
    let (other, found) = Tracker::attach(world.memory.clone(), options(), 11 * S)?;
    check(&other, 11 * S);
    assert_eq!(all(&other, 11 * S).len() as u64, found.sessions);
    assert_eq!(other.stats().sessions, found.sessions);
    // It goes on: what was there and is not any more can be made again.
    for (new, _) in &world.made {
        match other.create(new, 11 * S, &mut never) {
            Ok(_) | Err(Refusal::Exists(_) | Refusal::OuterTaken) => {}
            Err(e) => panic!("{e:?}"),
        }
    }
    check(&other, 11 * S);
    other.expire(12 * S, 1000, &mut |_| {});
    other.expire(12 * S, 1000, &mut |_| {});
    assert_eq!(other.stats().room, room(&other, 12 * S));
    Ok((other, [found.sessions, found.completed, found.dangling, found.refused]))
}

impl World {
    /// Bucket and slot of the entry of a session's first or second key.
    fn entry(&self, n: usize, which: usize) -> (LineNo, usize) {
        let (shared, _) = self.t.shared_for_tests();
        let (new, at) = &self.made[n];
        let hash = crate::key::hashes_of(new.owner, &new.inner, &new.outer, shared.salt())[which];
        let buckets = crate::table::buckets_of(shared.root(INDEX), hash);
        let wanted = Some((crate::table::tag_of(hash), at.0));
        let slots = buckets.iter().flat_map(|line| (0..SESSION_SLOTS as usize).map(move |i| (*line, i)));
        slots.into_iter().find(|(line, i)| crate::index::entry(shared.lines.at(*line), *i) == wanted).expect("an entry")
    }

    fn at(&self, n: usize) -> u32 {
        (self.made[n].1 .0).0
    }
}

#[test]
fn what_a_kill_leaves_is_found_and_mended_to_the_last_entry() {
    let drop_entry = |w: &World, lines: &crate::record::Lines, n: usize, which: usize| {
        let (line, i) = w.entry(n, which);
        lines.at(LineNo(line.0)).cell32(i).store(0, Relaxed);
    };
    assert_eq!(found(&|_, _| {}), [18, 0, 0, 0]);
    // Locks.
    let locked = |w: &World, lines: &crate::record::Lines| {
        lines.at(LineNo(w.entry(1, 0).0 .0)).cell(7).fetch_or(SESSION_BUCKET_LOCK, Relaxed);
        lines.at(LineNo(w.at(2))).cell(STATE).fetch_or(SESSION_LOCK, Relaxed);
    };
    assert_eq!(found(&locked), [18, 0, 0, 0]);
    // Entries that are missing: of one key, of the other, of both, of a pair, of IPv6.
    for (missing, completed) in [
        (vec![(0, 0)], 1),
        (vec![(0, 1)], 1),
        (vec![(0, 0), (0, 1)], 1),
        (vec![(9, 0), (3, 1)], 2),
        (vec![(16, 0)], 1),
        (vec![(13, 1)], 1),
    ] {
        let without = |w: &World, lines: &crate::record::Lines| {
            missing.iter().for_each(|(n, which)| drop_entry(w, lines, *n, *which))
        };
        assert_eq!(found(&without), [18, completed, 0, 0], "{missing:?}");
    }
}

/// What is found in the memory of the small world after this damage: sessions, and those completed, dangling entries, refused ones.
fn found(damage: &dyn Fn(&World, &crate::record::Lines)) -> [u64; 4] {
    damaged(damage).unwrap().1
}

#[test]
fn entries_without_their_session_are_cleared() {
    // Sessions that are gone: two entries each, of a pair one.
    for (n, dangling) in [(0, 2), (9, 2), (13, 2), (16, 1)] {
        let ended = |w: &World, lines: &crate::record::Lines| {
            let state = lines.at(LineNo(w.at(n))).cell(STATE);
            state.store(state.load(Relaxed) & !SESSION_STATE_MASK, Relaxed);
        };
        assert_eq!(found(&ended), [17, 0, dangling, 0], "{n}");
        let nonsense = |w: &World, lines: &crate::record::Lines| {
            let state = lines.at(LineNo(w.at(n))).cell(STATE);
            state.store(state.load(Relaxed) & !SESSION_STATE_MASK | 15, Relaxed);
        };
        assert_eq!(found(&nonsense), [17, 0, dangling, 0], "{n}");
    }
    // Of the other family.
    for n in [1, 12] {
        let other = |w: &World, lines: &crate::record::Lines| {
            lines.at(LineNo(w.at(n))).cell(STATE).fetch_xor(SESSION_V6, Relaxed);
        };
        assert_eq!(found(&other), [17, 0, 2, 0], "{n}");
    }
}

#[test]
fn entries_that_lead_elsewhere_are_cleared_and_made_again() {
    // An entry with another tag, to another record, to no record, twice.
    let entry = |change: &dyn Fn(&World, &crate::record::Lines, u32, usize)| {
        found(&|w, lines| {
            let (line, i) = w.entry(4, 0);
            change(w, lines, line.0, i);
        })
    };
    assert_eq!(
        entry(&|_, lines, line, i| _ = lines.at(LineNo(line)).cell32(i).fetch_xor(1 << SESSION_SLOT_TAG_SHIFT, Relaxed)),
        [18, 1, 1, 0]
    );
    assert_eq!(
        entry(&|_, lines, line, i| _ = lines.at(LineNo(line)).cell(7).fetch_xor(1 << (4 * i), Relaxed)),
        [18, 1, 1, 0]
    );
    let to = |at: u32| {
        move |w: &World, lines: &crate::record::Lines, line: u32, i: usize| {
            let slot = lines.at(LineNo(line)).cell32(i);
            let at = if at == 0 { w.at(5) } else { at };
            slot.store(slot.load(Relaxed) & !SESSION_SLOT_LINE | at, Relaxed);
        }
    };
    for at in [0, 1 << 20, SESSION_SLOT_LINE, 60_000] {
        assert_eq!(entry(&to(at)), [18, 1, 1, 0], "{at}");
    }
    let twice = |w: &World, lines: &crate::record::Lines, line: u32, i: usize| {
        let tag = crate::index::entry(lines.at(LineNo(line)), i).unwrap().0;
        crate::index::put(lines.at(LineNo(line)), 13, tag, LineNo(w.at(4)));
    };
    assert_eq!(entry(&twice), [18, 0, 1, 0]);
}

#[test]
fn entries_of_an_index_that_was_growing_are_as_good() {
    let growing = |w: &World, lines: &crate::record::Lines| {
        let (shared, _) = w.t.shared_for_tests();
        let n = shared.memory.segments();
        w.memory.grow(n + 1).unwrap();
        lines.kind(n).store(SESSION_SEGMENT_INDEX, Relaxed);
        lines.root(INDEX_OLD).store(shared.root(INDEX), Relaxed);
        lines
            .root(INDEX)
            .store(u64::from(SEGMENT_LINES) << TABLE_REF_BUCKETS_SHIFT | u64::from(n * SEGMENT_LINES), Relaxed);
    };
    assert_eq!(found(&growing), [18, 0, 0, 0]);
}

#[test]
fn a_session_that_contradicts_another_goes() {
    // The same keys in another record, which has no entries; and one with the inner key of one and an outer key of its own.
    for part in [false, true] {
        let (t, found) = damaged(|w, lines| {
            let (from, to) = (lines.at(LineNo(w.at(0))), lines.at(LineNo(50_000)));
            assert_eq!(lines.kind(0).load(Relaxed), SESSION_SEGMENT_V4);
            for i in 0..8 {
                to.cell(i).store(from.cell(i).load(Relaxed), Relaxed);
            }
            if part {
                to.cell(crate::record::OUTER).fetch_xor(1 << 40, Relaxed);
            }
        })
        .unwrap();
        assert_eq!(found, [18, 0, 0, 1]);
        assert!(!t.info(SessionRef(LineNo(50_000)), S).is_some_and(|_| true), "it is gone");
    }
}

/// The same of a pair, and of an IPv6 session, which has two lines.
#[test]
fn a_pair_or_an_ipv6_session_that_is_there_twice_goes() {
    for n in [16, 12] {
        let mut twin = 0;
        let (t, found) = damaged(|w, lines| {
            let from = w.at(n);
            twin = from + 10_000;
            for (from, to) in [(from, twin), (from + 1, twin + 1)].into_iter().take(if n == 12 { 2 } else { 1 }) {
                (0..8).for_each(|i| {
                    lines.at(LineNo(to)).cell(i).store(lines.at(LineNo(from)).cell(i).load(Relaxed), Relaxed)
                });
            }
        })
        .unwrap();
        assert_eq!(found, [18, 0, 0, 1], "session {n}");
        assert!(t.info(SessionRef(LineNo(twin)), S).is_none());
    }
}

/// What the root says of the index is believed if there may be such an index.
#[test]
fn an_index_that_cannot_be_is_made_anew() {
    let reference = |first: u64, n: u64| n << TABLE_REF_BUCKETS_SHIFT | first;
    let segment = u64::from(SEGMENT_LINES);
    let bad = [
        0,
        reference(0, segment),
        reference(segment, 0),
        reference(segment + 1, segment),
        reference(segment, segment + 1),
        reference(segment, 1 << 20),
        reference(1 << 27, segment),
        u64::MAX,
    ];
    for word in bad {
        let found = damaged(|_, lines| lines.root(INDEX).store(word, Relaxed)).unwrap().1;
        assert_eq!(found, [18, 18, 0, 0], "index {word:x}");
    }
}

#[test]
fn an_old_index_that_cannot_be_is_forgotten() {
    let reference = |first: u64, n: u64| n << TABLE_REF_BUCKETS_SHIFT | first;
    let segment = u64::from(SEGMENT_LINES);
    for word in [
        reference(0, segment),
        reference(segment, 0),
        reference(segment + 1, segment),
        reference(segment, segment + 1),
        reference(segment, 1 << 20),
        u64::MAX,
    ] {
        let found = damaged(|_, lines| lines.root(INDEX_OLD).store(word, Relaxed)).unwrap().1;
        assert_eq!(found, [18, 0, 0, 0], "old index {word:x}");
    }
}

#[test]
fn segments_and_memory_are_what_the_root_says() {
    // A segment that the index names is one of the index, whatever its kind says; another one that says so is free.
    let found = damaged(|w, lines| {
        let first = w.t.shared_for_tests().0.root(INDEX) as u32 / SEGMENT_LINES;
        lines.kind(first).store(SESSION_SEGMENT_V4, Relaxed);
        lines.kind(w.memory.segments() - 1).store(SESSION_SEGMENT_INDEX, Relaxed);
    });
    assert_eq!(found.unwrap().1[3], 0);
    // Memory of another layout is left alone, memory of none is begun.
    let hash = std::mem::offset_of!(SessionRoot, layout_hash);
    assert!(matches!(damaged(|_, lines| _ = lines.root(hash).fetch_add(1, Relaxed)), Err(AttachError::Layout)));
    let magic = std::mem::offset_of!(SessionRoot, magic);
    assert_eq!(damaged(|_, lines| lines.root(magic).store(0, Relaxed)).unwrap().1, [0; 4]);
}

/// Growth begins with the first session above 85% of 14 slots a bucket at two entries each, goes on by two buckets a session and 4,096 a
/// look, and whoever is in the old index is found all the time.
fn the_index_grows_when_it_must_and_in_the_steps_that_are_promised(case: (u32, u32)) {
    let segment = u64::from(SEGMENT_LINES);
    let most = segment * u64::from(SESSION_SLOTS) * 85 / 200;
    for (limit, segments) in [case] {
        let t = tracker(Options { sessions: limit, initial: 64, ..Options::default() });
        let new: Vec<NewSession> = (0..300).map(|n| udp(Vni(1), n, n as u16)).collect();
        for new in &new {
            t.create(new, S, &mut never).unwrap();
        }
        let root = |at| t.shared_for_tests().0.root(at);
        let begun = root(INDEX);
        assert_eq!(begun >> TABLE_REF_BUCKETS_SHIFT, segment);
        let memory = t.stats().memory_bytes;
        t.keep_index_for_tests(most);
        assert_eq!((root(INDEX), root(INDEX_OLD)), (begun, 0), "{most} sessions have room");
        t.keep_index_for_tests(most + 1);
        if segments == 1 {
            assert_eq!((root(INDEX), root(INDEX_OLD)), (begun, 0), "{limit} sessions have room in it");
            continue;
        }
        assert_eq!((root(INDEX_OLD), root(INDEX) >> TABLE_REF_BUCKETS_SHIFT), (begun, 2 * segment));
        assert_eq!(t.stats().memory_bytes, memory + 2 * u64::from(SEGMENT_BYTES));
        let found = || {
            let sessions = t.sessions();
            let guard = sessions.enter();
            new.iter().all(|n| {
                guard.find_inner(&n.inner).is_some()
                    && guard.find_outer(&n.outer).is_some()
                    && t.find_inner(&n.inner).is_some()
            })
        };
        // Entries that are in the new index.
        let copied = || {
            let (shared, index) = (t.shared_for_tests().0, root(INDEX));
            (0..(index >> TABLE_REF_BUCKETS_SHIFT) as u32)
                .map(|n| {
                    (0..SESSION_SLOTS as usize)
                        .filter(|i| crate::index::entry(shared.lines.at(LineNo(index as u32 + n)), *i).is_some())
                        .count()
                })
                .sum::<usize>()
        };
        let old = |buckets: u32| {
            let shared = t.shared_for_tests().0;
            (0..buckets)
                .map(|n| {
                    (0..SESSION_SLOTS as usize)
                        .filter(|i| crate::index::entry(shared.lines.at(LineNo(begun as u32 + n)), *i).is_some())
                        .count()
                })
                .sum::<usize>()
        };
        assert!(found() && copied() == 0);
        check(&t, S);
        for calls in 1..=20 {
            t.keep_index_for_tests(0);
            assert_eq!(copied(), old(2 * calls), "two buckets a call");
        }
        for looks in 1..=15 {
            t.expire(S, 1, &mut never);
            assert_eq!(copied(), old(40 + 4096 * looks));
            assert!(root(INDEX_OLD) == begun && found());
        }
        check(&t, S);
        t.expire(S, 1, &mut never);
        assert_eq!((root(INDEX_OLD), copied()), (0, 600), "all is copied");
        assert!(found());
        check(&t, S);
        // The old one's memory serves records once nobody reads it.
        t.expire(S, 1, &mut never);
        t.expire(S, 1, &mut never);
        let kind = t.shared_for_tests().0.lines.kind(begun as u32 / SEGMENT_LINES).load(Relaxed);
        assert_eq!(kind, SESSION_SEGMENT_FREE);
        // It is not begun twice.
        let now = root(INDEX);
        t.keep_index_for_tests(2 * most);
        assert_eq!((root(INDEX), root(INDEX_OLD)), (now, 0));
    }
}

#[test]
fn an_index_with_room_for_all_never_grows() {
    the_index_grows_when_it_must_and_in_the_steps_that_are_promised((389_938, 1));
    the_index_grows_when_it_must_and_in_the_steps_that_are_promised((389_939, 1));
}

#[test]
fn an_index_for_one_session_more_grows_step_by_step() {
    the_index_grows_when_it_must_and_in_the_steps_that_are_promised((389_940, 2));
}

#[test]
fn a_large_index_begins_to_grow_at_the_same_point() {
    the_index_grows_when_it_must_and_in_the_steps_that_are_promised((2_000_000, 2));
}
