// SPDX-License-Identifier: Apache-2.0
//! The shaper beside a naive model in simulated time: each class alone, packet by packet, with a token bucket in floating point. Seeds are
//! printed; `TUNNY_SEED` repeats one.

use rand::{RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;
use shaper::{wheel::SLOT, Bounds, ClassId, Limits, Refused, Shaper, LATE};
use std::collections::{HashMap, VecDeque};

const SECOND: u64 = 1_000_000_000;

/// What waits or waited: class, its number in the class, bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Packet {
    class: u32,
    number: u64,
    bytes: u32,
}

fn seeds(n: u64) -> Vec<u64> {
    match std::env::var("TUNNY_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => vec![seed],
        None => {
            let start = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
            (0..n).map(|i| start.wrapping_add(i)).collect()
        }
    }
}

fn limits(rng: &mut SplitMix64) -> Limits {
    let rate = 10f64.powf(rng.random_range(5.0..9.0)) as u64;
    Limits {
        rate,
        burst: rng.random_range(2_000..200_000),
        bytes: rng.random_range(3_000..400_000),
        packets: rng.random_range(2..400),
        horizon: rng.random_range(SECOND / 100..2 * SECOND),
    }
}

/// A class of the model, in ns and bytes of floating point.
struct Naive {
    limits: Limits,
    tokens: f64,
    at: f64,
    waiting: VecDeque<(Packet, u64)>,
}

impl Naive {
    /// Lets all leave that may until `now`: their times.
    fn run(&mut self, now: f64) -> Vec<(Packet, f64)> {
        let (mut out, per_ns, burst) = (Vec::new(), self.limits.rate as f64 / 8e9, f64::from(self.limits.burst));
        while let Some((packet, since)) = self.waiting.front().copied() {
            let start = self.at.max(since as f64);
            let tokens = (self.tokens + (start - self.at) * per_ns).min(burst);
            let needed = f64::from(packet.bytes).min(burst);
            let leaves = start + ((needed - tokens) / per_ns).max(0.0);
            if leaves > now {
                break;
            }
            self.tokens = (tokens + (leaves - start) * per_ns).min(burst) - f64::from(packet.bytes);
            self.at = leaves;
            self.waiting.pop_front();
            out.push((packet, leaves));
        }
        out
    }
}

/// Longest time between two looks at the shaper while packets come.
const STEP: u64 = 200_000;
/// By what a packet may leave before the model says: who came late is given what the class missed.
const EARLY: u64 = SLOT + STEP;

/// Random classes and packets; nothing changes: each packet leaves in the slot behind its exact time.
fn exact(seed: u64) {
    println!("TUNNY_SEED={seed}");
    let mut rng = SplitMix64::seed_from_u64(seed);
    let n = rng.random_range(1..60);
    let mut now = rng.random_range(0..1u64 << 60);
    let mut s: Shaper<Packet> = Shaper::new(Bounds { bytes: 1 << 30, packets: 1 << 20 }, now);
    let mut naive: HashMap<ClassId, Naive> = HashMap::new();
    for _ in 0..n {
        let limits = limits(&mut rng);
        let tokens = f64::from(limits.burst);
        naive.insert(s.add(&limits), Naive { limits, tokens, at: now as f64, waiting: VecDeque::new() });
    }
    let (mut number, mut times) = (0, HashMap::<(u32, u64), f64>::new());
    // Floating point holds what is near zero exactly.
    let base = now;
    naive.values_mut().for_each(|c| c.at = 0.0);
    let (mut step, mut left) = (0u64, 0);
    while now < base + 2 * SECOND || left > 0 {
        let last = now;
        now += step;
        while let Some((class, packet)) = s.pop(now) {
            let model = naive.get_mut(&class).unwrap();
            for (p, at) in model.run((now - base + EARLY) as f64) {
                times.insert((p.class, p.number), at);
            }
            let due =
                times.remove(&(packet.class, packet.number)).unwrap_or_else(|| panic!("{packet:?} leaves too soon"));
            let (from, to) = (due - EARLY as f64, due + 2.0 + (SLOT + now - last) as f64);
            let at = (now - base) as f64;
            assert!(from <= at && at <= to, "{packet:?} left at {at}, due at {due}, step {step}");
            left -= 1;
        }
        if now < base + 2 * SECOND {
            let class = ClassId(rng.random_range(0..n));
            let model = naive.get_mut(&class).unwrap();
            for _ in 0..rng.random_range(1..40) {
                number += 1;
                let packet = Packet { class: class.0, number, bytes: rng.random_range(60..1600) };
                if s.push(class, packet, packet.bytes, now).is_ok() {
                    model.waiting.push_back((packet, now - base));
                    left += 1;
                }
            }
            step = rng.random_range(0..STEP);
        } else {
            // As the caller does that has nothing else to do.
            step = s.next().map_or(0, |at| at.saturating_sub(now)).min(SECOND);
        }
    }
    assert_eq!((s.waiting(), s.next()), ((0, 0), None));
    let counts: Vec<_> = (0..n).map(|i| s.counts(ClassId(i)).unwrap()).collect();
    assert_eq!(counts.iter().map(|c| c.sent + c.dropped).sum::<u64>(), number, "in = out + dropped");
}

#[test]
fn each_packet_leaves_when_the_model_says() {
    seeds(20).into_iter().for_each(exact);
}

#[test]
#[ignore = "long"]
fn long_each_packet_leaves_when_the_model_says() {
    seeds(2_000).into_iter().for_each(exact);
}

/// Classes come, go and change while packets come; whatever happens, order is kept and nothing is lost unsaid.
fn changes(seed: u64) {
    println!("TUNNY_SEED={seed}");
    let mut rng = SplitMix64::seed_from_u64(seed);
    let mut now = rng.random_range(0..1u64 << 60);
    let bounds = Bounds { bytes: rng.random_range(20_000..2_000_000), packets: rng.random_range(20..2_000) };
    let mut s = Shaper::new(bounds, now);
    let mut waiting: HashMap<ClassId, VecDeque<Packet>> = HashMap::new();
    let mut open: Vec<ClassId> = Vec::new();
    let (mut number, mut dropped, mut sent, mut unknown) = (0u64, 0u64, 0u64, 0u64);
    let mut taken = |s: &mut Shaper<Packet>, waiting: &mut HashMap<ClassId, VecDeque<Packet>>, now| {
        while let Some((class, packet)) = s.pop(now) {
            assert_eq!(waiting.get_mut(&class).unwrap().pop_front(), Some(packet), "order");
            sent += 1;
        }
    };
    for _ in 0..20_000 {
        match rng.random_range(0..100) {
            0..2 if open.len() < 50 => {
                let limits = limits(&mut rng);
                let id = s.add(&limits);
                assert!(!open.contains(&id));
                assert_eq!(waiting.get(&id).map_or(0, VecDeque::len), 0, "a place that is given away is empty");
                open.push(id);
            }
            2..4 if !open.is_empty() => {
                let i = rng.random_range(0..open.len());
                assert!(s.change(open[i], &limits(&mut rng)));
            }
            4 if !open.is_empty() => {
                let id = open.swap_remove(rng.random_range(0..open.len()));
                assert!(s.remove(id) && !s.remove(id) && s.counts(id).is_none());
                let left = waiting.get(&id).map_or(0, VecDeque::len);
                taken(&mut s, &mut waiting, now);
                assert_eq!(waiting.get(&id).map_or(0, VecDeque::len), 0, "{left} went at once");
            }
            // The clock jumps: forwards by much, or backwards.
            5 => now += rng.random_range(0..10 * SECOND),
            6 => taken(&mut s, &mut waiting, now.saturating_sub(rng.random_range(0..SECOND))),
            7..60 => {
                let id = match open.is_empty() {
                    true => ClassId(rng.random_range(0..100)),
                    false => open[rng.random_range(0..open.len())],
                };
                for _ in 0..rng.random_range(1..30) {
                    number += 1;
                    let packet = Packet { class: id.0, number, bytes: rng.random_range(60..9_000) };
                    match s.push(id, packet, packet.bytes, now) {
                        Ok(()) => waiting.entry(id).or_default().push_back(packet),
                        Err((_, Refused::Unknown)) => unknown += 1,
                        Err(_) => dropped += 1,
                    }
                    let (packets, bytes) = s.waiting();
                    assert!(packets <= bounds.packets && bytes <= bounds.bytes, "the whole is bounded");
                }
            }
            _ => now += rng.random_range(0..3_000_000),
        }
        taken(&mut s, &mut waiting, now);
        let n: usize = waiting.values().map(VecDeque::len).sum();
        assert_eq!(s.waiting().0 as usize, n, "waiting");
    }
    let n = s.waiting().0 as usize;
    let mut rest = s.clear();
    assert_eq!((rest.len(), s.next(), s.waiting()), (n, None, (0, 0)));
    rest.sort_by_key(|p| p.number);
    let mut model: Vec<Packet> = waiting.into_values().flatten().collect();
    model.sort_by_key(|p| p.number);
    assert_eq!(rest, model);
    assert_eq!(number, sent + dropped + unknown + n as u64, "in = out + dropped + waiting");
}

#[test]
fn nothing_is_lost_and_order_is_kept_whatever_changes() {
    seeds(20).into_iter().for_each(changes);
}

#[test]
#[ignore = "long"]
fn long_nothing_is_lost_and_order_is_kept_whatever_changes() {
    seeds(1_000).into_iter().for_each(changes);
}

/// Always enough waits: what each class sends in a time is its rate, and all of them send.
fn rates(seed: u64) {
    println!("TUNNY_SEED={seed}");
    let mut rng = SplitMix64::seed_from_u64(seed);
    let mut now = rng.random_range(0..1u64 << 60);
    let mut s = Shaper::new(Bounds { bytes: 1 << 32, packets: 1 << 22 }, now);
    let n = rng.random_range(1..300u32);
    let mut rate: Vec<u64> = (0..n).map(|_| 10f64.powf(rng.random_range(6.0..9.0)) as u64).collect();
    let of = |rate| Limits { rate, burst: 3_000, bytes: 1 << 20, packets: 1 << 10, horizon: SECOND };
    let ids: Vec<ClassId> = rate.iter().map(|r| s.add(&of(*r))).collect();
    let mut push = |s: &mut Shaper<u32>, id: ClassId, now| {
        let bytes = rng.random_range(64..1514);
        s.push(id, bytes, bytes, now).is_ok()
    };
    for round in 0..3u64 {
        for id in &ids {
            for _ in 0..20 {
                push(&mut s, *id, now);
            }
        }
        // The burst is over before it is measured.
        let from = now + SECOND / 4;
        let (mut sent, mut started) = (vec![0u64; n as usize], false);
        while now < from + SECOND {
            // A caller that comes late, by up to 5 ms.
            now = s.next().unwrap().max(now) + round * 2_500_000;
            if !started && now >= from {
                started = true;
                sent.fill(0);
                now = now.max(from);
            }
            while let Some((id, bytes)) = s.pop(now) {
                sent[id.0 as usize] += u64::from(bytes);
                push(&mut s, id, now);
            }
        }
        let seconds = (now - from) as f64 / 1e9;
        for (i, sent) in sent.iter().enumerate() {
            let error = *sent as f64 * 8.0 / seconds / rate[i] as f64 - 1.0;
            // A packet more or less is what a slow class shows.
            let grain = 2.0 * 1514.0 * 8.0 / rate[i] as f64 + if round == 0 { 0.0 } else { 0.01 };
            assert!(error.abs() <= 0.02f64.max(grain), "round {round}: {} bit/s, error {error}", rate[i]);
        }
        // Other rates for what waits already.
        for (r, id) in rate.iter_mut().zip(&ids) {
            *r = (*r / 2).max(1_000_000);
            assert!(s.change(*id, &of(*r)));
        }
    }
}

#[test]
fn each_class_sends_at_its_rate_and_none_starves() {
    seeds(3).into_iter().for_each(rates);
}

/// A class that has no end, or is always due, keeps nobody else from its turn.
#[test]
fn a_class_that_is_always_due_starves_nobody() {
    let mut s = Shaper::new(Bounds { bytes: 1 << 30, packets: 1 << 20 }, 0);
    let of = |rate| Limits { rate, burst: 1_500, bytes: 1 << 28, packets: 1 << 16, horizon: SECOND };
    let (fast, slow) = (s.add(&of(0)), s.add(&of(1_000_000)));
    let mut sent = [0u32; 2];
    for i in 0..1_000_000u64 {
        // 1 us a packet: the caller is slower than what comes.
        let now = i * 1_000;
        for _ in 0..2 {
            let _ = s.push(fast, 0, 1_000, now);
        }
        if i % 1_000 == 0 {
            s.push(slow, 1, 100, now).unwrap();
        }
        let (_, class) = s.pop(now).unwrap();
        sent[class] += 1;
    }
    assert!(sent[1] >= 998, "{sent:?}");
}

/// One class may not have all that may wait.
#[test]
fn one_class_does_not_take_it_all() {
    let bounds = Bounds { bytes: 1_000_000, packets: 1_000 };
    let mut s = Shaper::new(bounds, 0);
    let of = Limits { rate: 1_000_000, burst: 1, bytes: u32::MAX, packets: u32::MAX, horizon: 3_600 * SECOND };
    let (flood, other) = (s.add(&of), s.add(&of));
    let refused = (0..5_000).filter_map(|_| s.push(flood, (), 100, 0).err().map(|e| e.1)).collect::<Vec<_>>();
    assert_eq!((refused.len(), refused[0]), (4_500, Refused::Whole));
    assert_eq!((0..5_000).filter(|_| s.push(other, (), 100, 0).is_ok()).count(), 250);
    assert_eq!((s.counts(flood).unwrap().dropped, s.counts(other).unwrap().waiting), (4_500, 250));
}

#[test]
fn what_may_wait_of_a_class_is_limited_by_bytes_packets_and_time() {
    let mut s = Shaper::new(Bounds { bytes: 1 << 30, packets: 1 << 20 }, 0);
    let base = Limits { rate: 8_000_000, burst: 1_000, bytes: 100_000, packets: 1_000, horizon: SECOND };
    let mut wait = |limits: Limits| {
        let id = s.add(&limits);
        let n = (0..2_000).filter(|_| s.push(id, (), 1_000, 0).is_ok()).count();
        (n, s.push(id, (), 1_000, 0).unwrap_err().1)
    };
    assert_eq!(wait(base), (100, Refused::Class));
    assert_eq!(wait(Limits { packets: 7, ..base }), (7, Refused::Class));
    // A byte a microsecond.
    assert_eq!(wait(Limits { horizon: 50_000_000, ..base }), (50, Refused::Class));
    assert_eq!(wait(Limits { bytes: 0, ..base }), (1, Refused::Class), "one may always wait");
    assert_eq!(s.push(ClassId(99), (), 1, 0).unwrap_err().1, Refused::Unknown);
}

/// The clock goes back, and jumps ahead by an hour: what leaves then is what waits, and a class is not given the hour.
#[test]
fn steps_of_the_clock_do_no_harm() {
    let mut s = Shaper::new(Bounds { bytes: 1 << 30, packets: 1 << 20 }, 5 * SECOND);
    let id = s.add(&Limits { rate: 8_000_000, burst: 1_500, bytes: 1 << 20, packets: 1_000, horizon: SECOND });
    (0..300).for_each(|_| s.push(id, (), 1_000, 0).unwrap());
    let all = |s: &mut Shaper<()>, now| std::iter::from_fn(|| s.pop(now)).count();
    assert_eq!((all(&mut s, 0), all(&mut s, 5 * SECOND + 10 * 1_000_000)), (1, 10), "a burst, then its rate");
    let hour = 3_600 * SECOND;
    // What it missed, up to LATE, and its burst.
    let late = LATE as usize / 1_000_000;
    assert!((late + 1..=late + 2).contains(&all(&mut s, hour)));
    assert_eq!(all(&mut s, 0), 0);
    let more: usize = (1..=20).map(|ms| all(&mut s, hour + ms * 1_000_000)).sum();
    assert!((20..=21).contains(&more), "{more}");
}

#[test]
fn a_class_takes_little_memory() {
    assert_eq!(shaper::CLASS_BYTES, 112);
}

/// A packet that has 8 s to wait at the old rate goes when the new one lets it go, and waits again if that is slower.
#[test]
fn a_new_rate_holds_for_what_waits() {
    let mut s = Shaper::new(Bounds { bytes: 1 << 20, packets: 100 }, 0);
    let of = |rate| Limits { rate, burst: 1_000, bytes: 10_000, packets: 10, horizon: 3_600 * SECOND };
    let id = s.add(&of(1_000));
    (0..3).for_each(|n| s.push(id, n, 1_000, 0).unwrap());
    assert_eq!((s.pop(0), s.pop(SECOND)), (Some((id, 0)), None));
    assert!(s.change(id, &of(1_000_000_000)));
    assert_eq!(s.pop(SECOND + SECOND / 100), Some((id, 1)));
    // One that would be due after 8 ms: what the packet before it took is owed at the new rate.
    let id = s.add(&of(1_000_000));
    (3..5).for_each(|n| s.push(id, n, 1_000, 2 * SECOND).unwrap());
    assert_eq!((s.pop(2 * SECOND).map(|p| p.1), s.pop(2 * SECOND + SLOT).map(|p| p.1)), (Some(2), Some(3)));
    assert!(s.change(id, &of(1_000)));
    assert_eq!((s.pop(9 * SECOND), s.pop(11 * SECOND)), (None, Some((id, 4))));
}
