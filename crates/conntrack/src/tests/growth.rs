// SPDX-License-Identifier: Apache-2.0
//! The index grows while sessions are made, found and ended; full buckets make room.

use super::*;

fn nth(i: u32) -> NewSession {
    let mut new = udp(Vni(1 + i % 7), 0x0a00_0000 + i / 7 % 5000, (i % 50_000) as u16);
    new.inner = InnerKey::v4(Vni(1 + i % 7), 17, 0x0a00_0000 + i / 7 % 5000, (i % 50_000) as u16, 0x0101_0101 + i, 53);
    new.outer = OuterKey::v4(17, 0xc633_6400 + i / 50_000, (i % 50_000) as u16, 0x0101_0101 + i, 53);
    new
}

#[test]
fn the_index_grows_under_readers_and_loses_nobody() {
    let n: u32 = std::env::var("TUNNY_GROWTH").ok().and_then(|s| s.parse().ok()).unwrap_or(420_000);
    let options = Options { sessions: 2 * n, initial: 1, ..Options::default() };
    let t = tracker(options);
    let done = std::sync::atomic::AtomicU32::new(0);
    let reader = |seed: u32| {
        let sessions = t.sessions();
        let (mut i, mut unsure) = (seed, 0);
        loop {
            let made = done.load(Acquire);
            if made == n {
                return unsure;
            }
            if made == 0 {
                continue;
            }
            i = i.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let new = nth(i % made);
            let guard = sessions.enter();
            if guard.find_inner(&new.inner).is_none() {
                unsure += 1;
                assert!(t.find_inner(&new.inner).is_some(), "{:?} is lost", new.inner);
            }
            if guard.find_outer(&new.outer).is_none() {
                unsure += 1;
                assert!(t.find_outer(&new.outer).is_some(), "{:?} is lost", new.outer);
            }
        }
    };
    std::thread::scope(|s| {
        let readers: Vec<_> = (1..3).map(|seed| s.spawn(move || reader(seed))).collect();
        for i in 0..n {
            if let Err(e) = t.create(&nth(i), S + u64::from(i), &mut never) {
                done.store(n, Release);
                panic!("session {i}: {e:?}");
            }
            done.store(i + 1, Release);
        }
        let unsure: u32 = readers.into_iter().map(|r| r.join().expect("the reader")).sum();
        println!("{unsure} misses of the moment");
    });
    let before = t.stats();
    println!("{before:?}");
    t.expire(2 * S, 1000, &mut never);
    t.expire(2 * S, 1000, &mut never);
    check(&t, 2 * S);
    // Half of them go; their records are used again.
    for i in (0..n).step_by(2) {
        assert!(t.remove(t.find_inner(&nth(i).inner).unwrap(), 2 * S, &mut |_| {}));
    }
    for _ in 0..3 {
        t.expire(2 * S, 1000, &mut never);
    }
    for i in (0..n).step_by(2) {
        t.create(&nth(i), 3 * S, &mut never).unwrap();
    }
    check(&t, 3 * S);
    assert_eq!(t.stats().memory_bytes, before.memory_bytes);
    // All of it ends by itself, at whatever rate it is asked for.
    let mut ended = 0;
    for now in 4..60 {
        while t.expire(now * S, 5000, &mut |_| ended += 1).more {}
    }
    assert_eq!((ended, t.stats().sessions), (n, 0));
    check(&t, 60 * S);
}

/// The same session in IPv6.
fn nth6(i: u32) -> NewSession {
    let vm = 0x2001_0db8 << 96 | u128::from(i);
    let mut new = udp(Vni(1), 1, 1);
    new.inner = InnerKey::v6(Vni(1), 17, vm, 7, 0x2001_0db9 << 96, 53);
    new.outer = OuterKey::v6(17, vm, 7, 0x2001_0db9 << 96, 53);
    new
}

#[test]
fn each_family_finds_room_below_the_limit_whatever_the_other_had() {
    // One segment of records for each family; what has ended waits for the next look.
    let t = tracker(Options { sessions: 4096, initial: 64, ..Options::default() });
    let mut refused = None;
    for i in 0..200_000 {
        match t.create(&nth(i), S, &mut never) {
            Ok(at) => assert!(t.remove(at, S, &mut |_| {})),
            Err(e) => {
                refused = Some((i, e));
                break;
            }
        }
    }
    // All of IPv4's segment waits for a grace period, and the other one is not IPv4's to take.
    assert_eq!(refused, Some((SEGMENT_LINES - 1, Refusal::Drop(DropReason::SessionTableFull))));
    t.create(&nth6(0), S, &mut never).unwrap();
    for _ in 0..3 {
        t.expire(S, 1000, &mut never);
    }
    t.create(&nth(0), S, &mut never).unwrap();
    check(&t, S);
}

#[test]
fn segments_without_records_go_to_the_family_that_needs_them() {
    let n = SEGMENT_LINES * 3;
    let t = tracker(Options { sessions: n, initial: n, ..Options::default() });
    for i in 0..n {
        t.create(&nth(i), S, &mut never).unwrap_or_else(|e| panic!("session {i}: {e:?}"));
    }
    let memory = t.stats().memory_bytes;
    for i in 0..n {
        assert!(t.remove(t.find_inner(&nth(i).inner).unwrap(), S, &mut |_| {}));
    }
    for _ in 0..3 {
        t.expire(S, 1000, &mut never);
    }
    // The other family takes all there is, two lines each; then it is the other way round.
    for i in 0..n / 2 {
        t.create(&nth6(i), S, &mut never).unwrap_or_else(|e| panic!("IPv6 session {i}: {e:?}"));
    }
    check(&t, S);
    for i in 0..n / 2 {
        assert!(t.remove(t.find_inner(&nth6(i).inner).unwrap(), S, &mut |_| {}));
    }
    for _ in 0..3 {
        t.expire(S, 1000, &mut never);
    }
    for i in 0..n {
        t.create(&nth(i), S, &mut never).unwrap_or_else(|e| panic!("session {i} again: {e:?}"));
    }
    check(&t, S);
    // One segment that IPv6 had not had before, and no more.
    assert!(t.stats().memory_bytes <= memory + 2 * u64::from(SEGMENT_BYTES), "{}", t.stats().memory_bytes);
}

#[test]
fn a_session_whose_keys_share_a_bucket_and_a_tag_has_two_entries_and_a_copy_is_cleared() {
    let memory = Arc::new(HeapMemory::new().unwrap());
    let options = || Options { sessions: 4096, initial: 64, ..Options::default() };
    let t = Tracker::new(memory.clone(), options(), S).unwrap();
    let (shared, _) = t.shared_for_tests();
    let (table, salt) = (shared.root(0x18), shared.salt());
    let hashes = |new: &NewSession| crate::key::hashes_of(new.owner, &new.inner, &new.outer, salt);
    let (tag, buckets) = (crate::table::tag_of, |hash| crate::table::buckets_of(table, hash));
    let firsts_meet = |new: &NewSession| {
        let [a, b] = hashes(new);
        tag(a) == tag(b) && buckets(a)[0] == buckets(b)[0]
    };
    let met = (0..).map(nth).find(firsts_meet).unwrap();
    t.create(&met, S, &mut never).unwrap();
    let attach = || Tracker::attach(memory.clone(), options(), S).unwrap();
    let (t, found) = attach();
    assert_eq!((found.sessions, found.completed, found.dangling), (1, 0, 0));
    check(&t, S);
    // Killed where an entry stands in its new bucket and not yet cleared in the old one.
    let other = nth(1);
    let at = t.create(&other, S, &mut never).unwrap();
    let (shared, _) = t.shared_for_tests();
    let hash = hashes(&other)[0];
    crate::index::put(shared.lines.at(buckets(hash)[1]), 9, tag(hash), at.0);
    let (t, found) = attach();
    assert_eq!((found.sessions, found.completed, found.dangling), (2, 0, 1));
    check(&t, S);
    for new in [met, other] {
        assert!(t.remove(t.find_inner(&new.inner).unwrap(), S, &mut |_| {}));
    }
    assert_eq!(attach().1.dangling, 0, "nothing stays behind");
}
