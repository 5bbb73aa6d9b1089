// SPDX-License-Identifier: Apache-2.0
//! Classes that share the rate of a group, beside naive models in simulated time: a bucket of floating point that no group may overdraw, and the
//! shares that filling glasses gives (max-min). Seeds are printed; `TUNNY_SEED` repeats one.

use rand::{RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;
use shaper::{wheel::SLOT, Bounds, ClassId, GroupId, GroupLimits, Limits, Shaper};
use std::collections::{HashMap, VecDeque};

const SECOND: u64 = 1_000_000_000;
const PACKET: u32 = 1_000;

fn seeds(n: u64) -> Vec<u64> {
    match std::env::var("TUNNY_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => vec![seed],
        None => {
            let start = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
            (0..n).map(|i| start.wrapping_add(i)).collect()
        }
    }
}

/// A burst that a rate does not fill while a slot is waited for, or two.
fn burst(rate: u64) -> u32 {
    3 * PACKET + (rate / 8 * 4 * SLOT / SECOND) as u32
}

fn limits(rate: u64) -> Limits {
    Limits { rate, burst: burst(rate), bytes: 1 << 20, packets: 1 << 10, horizon: 3_600 * SECOND }
}

/// A bucket from which as much was taken as left: how far it was overdrawn at most, bytes.
struct Taken {
    rate: f64,
    burst: f64,
    level: f64,
    at: u64,
    worst: f64,
}

impl Taken {
    fn new(rate: u64, burst: u32, at: u64) -> Taken {
        Taken { rate: rate as f64 / 8e9, burst: burst.into(), level: burst.into(), at, worst: 0.0 }
    }

    fn take(&mut self, bytes: u32, now: u64) {
        self.level = (self.level + (now - self.at) as f64 * self.rate).min(self.burst) - f64::from(bytes);
        (self.at, self.worst) = (now, self.worst.min(self.level));
    }
}

/// What each class of a group gets that has always something to send: its own rate, or an equal part of what the others leave.
fn shares(group: f64, own: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..own.len()).collect();
    order.sort_by(|a, b| own[*a].total_cmp(&own[*b]));
    let (mut left, mut out) = (group, vec![0.0; own.len()]);
    for (n, i) in order.iter().enumerate() {
        out[*i] = own[*i].min(left / (own.len() - n) as f64);
        left -= out[*i];
    }
    out
}

/// Groups whose classes always have packets: each group keeps its rate and uses it, and each class gets its share.
fn shared(seed: u64) {
    println!("TUNNY_SEED={seed}");
    let mut rng = SplitMix64::seed_from_u64(seed);
    let mut now = rng.random_range(0..1u64 << 60);
    let mut s: Shaper<u32> = Shaper::new(Bounds { bytes: 1 << 32, packets: 1 << 22 }, now);
    let mut all = Vec::new();
    for _ in 0..rng.random_range(1..8) {
        let rate = 10f64.powf(rng.random_range(6.5..8.5)) as u64;
        let group = s.add_group(&GroupLimits { rate, burst: burst(rate) });
        let own: Vec<u64> = (0..rng.random_range(1..12))
            .map(|_| {
                let own = (rate as f64 * 10f64.powf(rng.random_range(-1.7..0.5))) as u64;
                // One in four has no rate of its own.
                if rng.random_range(0..4) == 0 {
                    0
                } else {
                    own.max(100_000)
                }
            })
            .collect();
        let ids: Vec<ClassId> = own.iter().map(|own| s.add(&limits(*own))).collect();
        ids.iter().for_each(|id| assert!(s.set_group(*id, Some(group))));
        all.push((rate, group, own, ids));
    }
    // And one that is in no group beside them.
    let alone = s.add(&limits(10_000_000));
    let of: HashMap<ClassId, usize> =
        all.iter().enumerate().flat_map(|(g, (.., ids))| ids.iter().map(move |id| (*id, g))).collect();
    let mut taken: Vec<Taken> = all.iter().map(|(rate, ..)| Taken::new(*rate, burst(*rate), now)).collect();
    let mut taken_of: HashMap<ClassId, Taken> = HashMap::new();
    for (_, _, own, ids) in &all {
        for (own, id) in own.iter().zip(ids).filter(|(own, _)| **own > 0) {
            taken_of.insert(*id, Taken::new(*own, burst(*own), now));
        }
    }
    for id in of.keys().chain([&alone]) {
        (0..5).for_each(|_| s.push(*id, 0, PACKET, now).unwrap());
    }
    let (from, mut sent, mut started) = (now + SECOND / 2, HashMap::<ClassId, u64>::new(), false);
    while now < from + 2 * SECOND {
        now = s.next().unwrap().max(now);
        if !started && now >= from {
            started = true;
            sent.clear();
        }
        while let Some((id, _)) = s.pop(now) {
            *sent.entry(id).or_default() += u64::from(PACKET);
            if let Some(g) = of.get(&id) {
                taken[*g].take(PACKET, now);
            }
            if let Some(bucket) = taken_of.get_mut(&id) {
                bucket.take(PACKET, now);
            }
            s.push(id, 0, PACKET, now).unwrap();
        }
    }
    let seconds = (now - from) as f64 / 1e9;
    let got = |id: &ClassId| sent.get(id).copied().unwrap_or(0) as f64 * 8.0 / seconds;
    for (g, (rate, group, own, ids)) in all.iter().enumerate() {
        // What is due is found a slot late, and the time is made good: so much more may leave at once.
        let slack = 2.0 * SLOT as f64 * *rate as f64 / 8e9 + 1.0;
        assert!(taken[g].worst >= -slack, "group of {rate} bit/s is overdrawn by {} bytes", -taken[g].worst);
        let own: Vec<f64> = own.iter().map(|r| if *r == 0 { f64::MAX } else { *r as f64 }).collect();
        let grain = 4.0 * f64::from(PACKET) * 8.0 / seconds;
        for (want, id) in shares(*rate as f64, &own).iter().zip(ids) {
            let (got, least) = (got(id), 0.03 * want + grain);
            assert!((got - want).abs() <= least, "group of {rate}, own {own:?}: {got} bit/s, not {want}");
        }
        let (whole, used) = (own.iter().sum::<f64>().min(*rate as f64), ids.iter().map(got).sum::<f64>());
        assert!(used >= 0.98 * whole - grain, "group of {rate} sends {used}, may send {whole}");
        assert!(s.group_sent(*group).unwrap().0 > 0);
    }
    for (id, bucket) in &taken_of {
        let slack = 2.0 * SLOT as f64 * bucket.rate + 1.0;
        assert!(bucket.worst >= -slack, "{id:?} is overdrawn by {} bytes", -bucket.worst);
    }
    assert!((got(&alone) / 1e7 - 1.0).abs() < 0.02, "the one beside them: {}", got(&alone));
}

#[test]
fn a_group_keeps_its_rate_uses_it_and_shares_it() {
    seeds(12).into_iter().for_each(shared);
}

#[test]
#[ignore = "long"]
fn long_a_group_keeps_its_rate_uses_it_and_shares_it() {
    seeds(300).into_iter().for_each(shared);
}

/// Classes and groups come, go, change and move while packets come; order is kept, nothing is lost, and what may leave leaves.
fn changes(seed: u64) {
    println!("TUNNY_SEED={seed}");
    let mut rng = SplitMix64::seed_from_u64(seed);
    let mut now = rng.random_range(0..1u64 << 60);
    let mut s: Shaper<u64> = Shaper::new(Bounds { bytes: 1 << 30, packets: 1 << 20 }, now);
    let (mut open, mut groups): (Vec<ClassId>, Vec<GroupId>) = (Vec::new(), Vec::new());
    let mut waiting: HashMap<ClassId, VecDeque<u64>> = HashMap::new();
    let mut number = 0;
    let rate = |rng: &mut SplitMix64| if rng.random_range(0..5) == 0 { 0 } else { rng.random_range(100_000..1 << 28) };
    let of = |rng: &mut SplitMix64| GroupLimits { rate: rate(rng), burst: rng.random_range(1..20_000) };
    for _ in 0..10_000 {
        match rng.random_range(0..100) {
            0..3 if open.len() < 30 => open.push(s.add(&limits(rate(&mut rng)))),
            3..5 if groups.len() < 6 => groups.push(s.add_group(&of(&mut rng))),
            5..15 if !open.is_empty() => {
                let (class, n) = (open[rng.random_range(0..open.len())], rng.random_range(0..=groups.len()));
                assert!(s.set_group(class, groups.get(n).copied()));
            }
            15..17 if !groups.is_empty() => {
                assert!(s.change_group(groups[rng.random_range(0..groups.len())], &of(&mut rng)))
            }
            17 if !groups.is_empty() => {
                let id = groups.swap_remove(rng.random_range(0..groups.len()));
                assert!(s.remove_group(id) && !s.remove_group(id) && s.group_sent(id).is_none());
            }
            18..20 if !open.is_empty() => {
                assert!(s.change(open[rng.random_range(0..open.len())], &limits(rate(&mut rng))));
            }
            20 if !open.is_empty() => assert!(s.remove(open.swap_remove(rng.random_range(0..open.len())))),
            21..60 if !open.is_empty() => {
                let id = open[rng.random_range(0..open.len())];
                for _ in 0..rng.random_range(1..20) {
                    number += 1;
                    if s.push(id, number, rng.random_range(60..2_000), now).is_ok() {
                        waiting.entry(id).or_default().push_back(number);
                    }
                }
            }
            _ => now += rng.random_range(0..3_000_000),
        }
        while let Some((id, found)) = s.pop(now) {
            assert_eq!(waiting.get_mut(&id).unwrap().pop_front(), Some(found), "order");
        }
        let n: usize = waiting.values().map(VecDeque::len).sum();
        assert_eq!((s.waiting().0 as usize, s.next().is_some()), (n, n > 0), "who waits has a time");
    }
    // A group is no class, and a class no group.
    for id in &groups {
        assert!(
            s.push(ClassId(id.0), 0, 1, now).is_err() && s.counts(ClassId(id.0)).is_none() && !s.remove(ClassId(id.0))
        );
    }
    open.iter().for_each(|id| assert!(!s.remove_group(GroupId(id.0)) && !s.change_group(GroupId(id.0), &of(&mut rng))));
    // All of it leaves.
    let begun = now;
    while let Some(at) = s.next() {
        now = now.max(at);
        while let Some((id, found)) = s.pop(now) {
            assert_eq!(waiting.get_mut(&id).unwrap().pop_front(), Some(found), "order");
        }
        assert!(now < begun + 10_000 * SECOND, "nothing leaves any more");
    }
    assert!(waiting.values().all(VecDeque::is_empty));
}

#[test]
fn whatever_changes_nothing_is_lost_and_all_leaves() {
    seeds(15).into_iter().for_each(changes);
}

#[test]
#[ignore = "long"]
fn long_whatever_changes_nothing_is_lost_and_all_leaves() {
    seeds(500).into_iter().for_each(changes);
}

#[test]
fn what_waits_in_a_group_can_be_taken_away() {
    let mut s: Shaper<u32> = Shaper::new(Bounds { bytes: 1 << 20, packets: 100 }, 0);
    let group = s.add_group(&GroupLimits { rate: 1_000_000, burst: 1_000 });
    let ids = [s.add(&limits(0)), s.add(&limits(0))];
    ids.iter().for_each(|id| assert!(s.set_group(*id, Some(group))));
    (0..6).for_each(|n| s.push(ids[n as usize % 2], n, 1_000, 0).unwrap());
    assert_eq!((s.pop(0), s.pop(0)), (Some((ids[0], 0)), None), "the group's burst is one packet");
    // 8 ms a packet, the classes in turn.
    assert_eq!(s.pop(9_000_000), Some((ids[1], 1)));
    assert_eq!(s.clear().len(), 4);
    assert_eq!((s.next(), s.waiting()), (None, (0, 0)));
    s.push(ids[1], 9, 1_000, SECOND).unwrap();
    // In the slot in which the class is looked at, or the one behind it.
    assert_eq!((1..=2).find_map(|n| s.pop(SECOND + n * SLOT)), Some((ids[1], 9)), "and goes on");
}
