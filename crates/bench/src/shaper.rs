// SPDX-License-Identifier: Apache-2.0
//! `shaper`: packets a second through the shaper on one core, and how far the rates of its classes are from what they should be.
//!
//! Speed: each packet is a frame of 128 bytes that is copied in, as a worker does, and given out; classes are chosen at random, so that with
//! many of them each packet meets lines that are in no cache. Simulated time runs as fast as packets go, and rates are such that about
//! two packets of each class wait. Error: every class always has packets waiting, sizes are 64 to 1514 bytes, and after its burst each
//! class is counted for a second of simulated time, in which the caller wakes up to 2 ms late.

use crate::{cpu, report, stats, Context, Error, Goal, Report};
use ::shaper::{Bounds, ClassId, Limits, Shaper, CLASS_BYTES};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;

const SECOND: u64 = 1_000_000_000;
const FRAME: usize = 128;
/// Packets that a worker hands over at once.
const BATCH: usize = 64;
/// Time between two batches in simulated time: 2 million packets a second.
const STEP: u64 = BATCH as u64 * 500;
const MANY: u32 = 1_000_000;
const SOME: u32 = 10_000;

/// Million packets a second of this thread's time that `classes` classes let through.
fn speed(classes: u32, packets: u64, seed: u64) -> Result<f64, Error> {
    let mut rng = SplitMix64::seed_from_u64(seed);
    let mut s: Shaper<Vec<u8>> = Shaper::new(Bounds { bytes: 4 << 30, packets: 8 << 20 }, 0);
    // All of them together a quarter more than what comes: about two packets of each class wait.
    let rate = 2_500_000 * FRAME as u64 * 8 / u64::from(classes);
    let limits = Limits { rate, burst: FRAME as u32, bytes: 1 << 20, packets: 1000, horizon: 3_600 * SECOND };
    let ids: Vec<ClassId> = (0..classes).map(|_| s.add(&limits)).collect();
    let (frame, mut spare, mut now) = ([7u8; FRAME], Vec::new(), 0u64);
    let mut out = 0;
    let mut run = |n: u64, now: &mut u64, spare: &mut Vec<Vec<u8>>| {
        let (mut sent, mut refused) = (0u64, 0u64);
        for _ in 0..n / BATCH as u64 {
            *now += STEP;
            for _ in 0..BATCH {
                let id = ids[rng.random_range(0..ids.len())];
                let mut buffer: Vec<u8> = spare.pop().unwrap_or_default();
                buffer.clear();
                buffer.extend_from_slice(&frame);
                if let Err((buffer, _)) = s.push(id, buffer, FRAME as u32, *now) {
                    refused += 1;
                    spare.push(buffer);
                }
            }
            while let Some((_, buffer)) = s.pop(*now) {
                sent += u64::from(buffer[0] == 7);
                spare.push(buffer);
            }
        }
        (sent, refused)
    };
    // Until as many leave as come.
    run(packets.max(3 * u64::from(classes)), &mut now, &mut spare);
    let start = cpu::thread_time();
    let (sent, refused) = run(packets, &mut now, &mut spare);
    let took = cpu::thread_time() - start;
    out += sent;
    // What is timed must be packets that go in and out.
    if refused > packets / 100 || out < packets * 8 / 10 {
        let why = format!("{refused} of {packets} packets were refused, {out} left");
        return Err(Error::Failed { what: "shaper".into(), why });
    }
    Ok(sent as f64 * 1e3 / took as f64)
}

/// What the classes of one rate error run did.
struct Rates {
    /// The largest error of a class, percent.
    worst: f64,
    /// Classes that sent less than half of their rate.
    starved: u64,
}

fn rates(classes: u32, seed: u64) -> Rates {
    let mut rng = SplitMix64::seed_from_u64(seed);
    let mut s: Shaper<u32> = Shaper::new(Bounds { bytes: 64 << 30, packets: 1 << 30 }, 0);
    // From 10 Mbit/s on a packet more or less in a second is 0.1%.
    let rate: Vec<u64> = (0..classes).map(|_| 10f64.powf(rng.random_range(7.0..8.0)) as u64).collect();
    let of = |rate| Limits { rate, burst: 10_000, bytes: 1 << 20, packets: 64, horizon: 10 * SECOND };
    let ids: Vec<ClassId> = rate.iter().map(|r| s.add(&of(*r))).collect();
    let mut size = || rng.random_range(64..1514u32);
    for id in &ids {
        for _ in 0..32 {
            let bytes = size();
            let _ = s.push(*id, bytes, bytes, 0);
        }
    }
    let mut late = SplitMix64::seed_from_u64(seed ^ 1);
    let (mut now, mut sent, from) = (0, vec![0u64; classes as usize], SECOND / 20);
    let mut started = None;
    while started.is_none_or(|at| now < at + SECOND) {
        now = s.next().unwrap_or(now).max(now) + late.random_range(0..2_000_000);
        while let Some((id, bytes)) = s.pop(now) {
            sent[id.0 as usize] += u64::from(bytes);
            let bytes = size();
            let _ = s.push(id, bytes, bytes, now);
        }
        if started.is_none() && now >= from {
            started = Some(now);
            sent.fill(0);
        }
    }
    let seconds = (now - started.unwrap_or(0)) as f64 / 1e9;
    let part = |i: usize| sent[i] as f64 * 8.0 / seconds / rate[i] as f64;
    let all = (0..classes as usize).map(part);
    Rates {
        worst: all.clone().map(|p| 100.0 * (p - 1.0).abs()).fold(0.0, f64::max),
        starved: all.filter(|p| *p < 0.5).count() as u64,
    }
}

/// `shaper`.
pub fn shaper(context: &Context) -> Result<Report, Error> {
    let (mut errors, mut starved, mut some, mut many) = (Vec::new(), 0, Vec::new(), Vec::new());
    for sample in 0..context.samples as u64 {
        context.say(&format!("shaper: sample {}", sample + 1));
        let seed = context.seed + sample;
        let found = rates(1_000, seed);
        errors.push(found.worst);
        starved += found.starved;
        some.push(speed(SOME, 4_000_000, seed)?);
        many.push(speed(MANY, 4_000_000, seed)?);
    }
    let against = "goal 2%: the worst of 1,000 classes of 10 to 100 Mbit/s in a second of simulated time, the caller up to 2 ms late";
    let mut report = Report::new("shaper", "percent error", errors, Some(Goal::AtMost(2.0)), against);
    report.detail_median("mpps_10k_classes", &some).detail_median("mpps_1m_classes", &many);
    report
        .detail("starved_classes", starved)
        .detail("bytes_a_class", CLASS_BYTES as u64)
        .detail("goal_mpps_10k_classes", 2)
        .detail("goal_mpps_1m_classes", 1)
        .detail("workload", "frames of 128 bytes copied in and out, classes at random, batches of 64, one thread; no socket and no lock");
    let (ten, million) = (report::round(stats::median(&some)), report::round(stats::median(&many)));
    let met = ten >= 2.0 && million >= 1.0 && starved == 0;
    report.only_if(
        met,
        format!("{ten} Mpps with 10,000 classes (goal 2), {million} Mpps with 1M (goal 1), {starved} starved"),
    );
    Ok(report)
}
