// SPDX-License-Identifier: Apache-2.0
//! Several workers on one tracker: no key is given twice, no number is lost, readers never see a torn session.

use super::*;
use rand::RngExt;
use std::sync::atomic::AtomicU64;

/// A session whose every field follows from its number, so that a reader can tell whether what it reads is of one piece.
fn nth(i: u32) -> NewSession {
    let mut new = udp(Vni(1 + i % 4), 1, 1);
    new.inner = InnerKey::v4(Vni(1 + i % 4), 17, i, i as u16, !i, 53);
    new.outer = OuterKey::v4(17, i ^ 0x5555_5555, i as u16 ^ 0x3333, !i, 53);
    new.epoch = i as u16;
    if i.is_multiple_of(5) {
        new.inner = InnerKey::v6(Vni(1 + i % 4), 17, u128::from(i) << 64 | u128::from(!i), i as u16, i.into(), 53);
        new.outer = new.inner.untranslated();
    }
    new
}

/// Counts a worker as done, also one that panics.
struct Done<'a>(&'a AtomicU64);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[test]
fn workers_share_a_tracker() {
    let (seed, _) = seeded("workers");
    let each: u32 = std::env::var("TUNNY_EVENTS").ok().and_then(|s| s.parse().ok()).unwrap_or(60_000);
    let t = tracker(Options { sessions: 10_000, initial: 1, ..Options::default() });
    let (made, ended, running) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(4));
    let worker = |w: u64| {
        let _done = Done(&running);
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ w);
        let sessions = t.sessions();
        for n in 0..each {
            // Few numbers: workers meet.
            let new = nth(rng.random_range(0..4000));
            let now = S + u64::from(n) * 1000;
            let guard = sessions.enter();
            let end = &mut |e: &Ended| {
                assert_ne!(e.reason, EndReason::Reopened);
                ended.fetch_add(1, Relaxed);
            };
            match guard.find_inner(&new.inner) {
                None => match t.create(&new, now, end) {
                    Ok(_) => {
                        made.fetch_add(1, Relaxed);
                    }
                    Err(Refusal::Exists(_)) => {}
                    Err(Refusal::Drop(DropReason::SessionTableFull)) => {}
                    other => panic!("{other:?}"),
                },
                Some(at) => {
                    let record = guard.record(at);
                    // Ended meanwhile at worst, but whole: the guard keeps it from being used again.
                    assert_eq!((record.inner(), record.epoch()), (new.inner, new.epoch));
                    match rng.random_range(0..4) {
                        0 => {
                            t.remove(at, now, end);
                        }
                        1 => {
                            let judged = t.judge(at, Direction::In, &L4View::Other, 1, now, end);
                            assert!(matches!(judged.verdict, Verdict::Forward | Verdict::Gone));
                        }
                        2 => {
                            record.fast(Direction::Out, &L4View::Other, 1, now);
                        }
                        // Or another one with the same keys, if it ended and was made again meanwhile.
                        _ => {
                            let same = guard.record(guard.find_outer(&new.outer).unwrap_or(at));
                            assert_eq!((same.inner(), same.outer(), same.epoch()), (new.inner, new.outer, new.epoch));
                        }
                    }
                }
            }
        }
    };
    std::thread::scope(|s| {
        (0..4).for_each(|w| drop(s.spawn(move || worker(w))));
        let mut now = S;
        while running.load(Relaxed) > 0 {
            now += 1000;
            t.expire(now, 1000, &mut |_| {
                ended.fetch_add(1, Relaxed);
            });
            std::thread::yield_now();
        }
    });
    let stats = t.stats();
    assert_eq!(stats.sessions, made.load(Relaxed) - ended.load(Relaxed));
    assert!(made.load(Relaxed) > 1000 && ended.load(Relaxed) > 1000);
    check(&t, 100 * S);
    for now in 100..900 {
        t.expire(now * S, 1 << 20, &mut |_| {
            ended.fetch_add(1, Relaxed);
        });
    }
    assert_eq!(made.load(Relaxed), ended.load(Relaxed));
    check(&t, 900 * S);
}
