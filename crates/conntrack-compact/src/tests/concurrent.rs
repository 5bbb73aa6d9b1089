// SPDX-License-Identifier: Apache-2.0
//! Readers while the writer writes: connections that stay are found by every lookup, whatever moves around them.
use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[test]
fn connections_that_stay_are_seen_all_the_time() {
    let mut rng = seeded("concurrent");
    const N: u32 = 1500;
    for (name, _memory, mut table) in tables(u64::from(N), &mut rng) {
        let kept = N / 3;
        for i in 0..kept {
            table.insert(&key(i, i % 9 == 0), State::Open).unwrap();
        }
        let (stop, looked) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|s| {
            for _ in 0..2 {
                let reader = table.reader();
                let (stop, looked, name) = (&stop, &looked, &name);
                s.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        for i in 0..kept {
                            let seen = reader.state(&key(i, i % 9 == 0));
                            assert!(seen == 2 || seen == abi::STATES_UNSURE, "{name}: {i} is {seen}");
                        }
                        looked.fetch_add(u64::from(kept), Ordering::Relaxed);
                    }
                });
            }
            let mut inside: Vec<u32> = Vec::new();
            let end = Instant::now() + Duration::from_millis(300);
            while Instant::now() < end {
                if inside.len() < (N - kept) as usize - 1 && rng.random_ratio(2, 3) {
                    let i = kept + rng.random_range(0..20 * N);
                    if !inside.contains(&i) && table.insert(&key(i, i.is_multiple_of(9)), state(rng.random())).is_ok() {
                        inside.push(i);
                    }
                } else if !inside.is_empty() {
                    let i = inside.swap_remove(rng.random_range(0..inside.len()));
                    table.remove(&key(i, i.is_multiple_of(9)));
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(looked.load(Ordering::Relaxed) > 0, "{name}");
    }
}
