// SPDX-License-Identifier: Apache-2.0
//! `snat-100m`: a hundred million sessions in the memory that the XDP stage reads: bytes, inserts, lookups, expiry.
//!
//! The lines are the same wherever they lie; here they lie in plain memory with huge pages, as for a node without XDP. A smaller
//! number is taken where memory is short, and said (`sessions`); TUNNY_BENCH_SESSIONS sets it.
use crate::{cpu, Context, Error, Goal, Report};
use abi::Vni;
use conntrack::{
    Direction, HeapMemory, InnerKey, L4View, NewSession, Options, OuterKey, Owner, SessionMemory, Tracker,
};
use std::sync::Arc;

/// Sessions of a full run.
const FULL: u32 = 100_000_000;
/// Packets in a batch.
const BATCH: usize = 64;
/// ns of a second.
const S: u64 = 1_000_000_000;
/// Sessions begun in a second of the bench's time, so that as many end in a second.
const A_SECOND: u32 = 1_000_000;

/// Session i: one of 1,000,000 VMs in 10,000 VPCs, its own public endpoint and remote endpoint.
fn nth(i: u32) -> NewSession {
    let mixed = abi::hash1(u64::from(i), 7);
    let (vni, vm) = (1 + i % 10_000, 0x0a00_0000 | i % 1_000_000 / 10_000);
    let (remote, port) = ((mixed >> 32) as u32, 1024 + (i / 1_000_000) as u16);
    let public = 0xc612_0000 + i / 60_000;
    NewSession {
        inner: InnerKey::v4(Vni(vni), 17, vm, port, remote, mixed as u16),
        outer: OuterKey::v4(17, public, 1024 + (i % 60_000) as u16, remote, mixed as u16),
        owner: Owner::Snat,
        direction: Direction::Out,
        view: L4View::Other,
        bytes: 100,
        epoch: 1,
        pick_up: false,
    }
}

/// As many sessions as fit into three quarters of the memory that is available, at most a full run's.
fn how_many() -> u32 {
    if let Some(n) = std::env::var("TUNNY_BENCH_SESSIONS").ok().and_then(|s| s.parse().ok()) {
        return n;
    }
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = meminfo.lines().find(|l| l.starts_with("MemAvailable:")).unwrap_or("");
    let kib: u64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    (kib * 1024 * 3 / 4 / 85).min(u64::from(FULL)) as u32
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap_or("");
    line.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Inserts all; CPU ns. As a worker does: it asks for the buckets of a batch, then makes its sessions.
fn insert(tracker: &Tracker, n: u32) -> Result<u64, Error> {
    let sessions = tracker.sessions();
    let begin = cpu::thread_time();
    for first in (0..n).step_by(BATCH) {
        let guard = sessions.enter();
        let batch = first..(first + BATCH as u32).min(n);
        for i in batch.clone() {
            let new = nth(i);
            guard.prefetch(&guard.candidates_inner(&new.inner));
            guard.prefetch(&guard.candidates_outer(&new.outer));
        }
        let now = S + u64::from(first / A_SECOND) * S;
        for i in batch {
            tracker
                .create(&nth(i), now, &mut |_| {})
                .map_err(|e| Error::Failed { what: format!("session {i}"), why: format!("{e:?}") })?;
        }
    }
    Ok(cpu::thread_time() - begin)
}

/// Looks random sessions up, by both keys in turn; millions a second of CPU time.
fn look_up(tracker: &Tracker, n: u32, lookups: u32, seed: u64) -> Result<f64, Error> {
    let sessions = tracker.sessions();
    let mut found = 0u32;
    let begin = cpu::thread_time();
    for first in (0..lookups).step_by(BATCH) {
        let guard = sessions.enter();
        let batch: [_; BATCH] = std::array::from_fn(|k| {
            let i = ((abi::hash1(u64::from(first) + k as u64, seed) >> 32) * u64::from(n)) >> 32;
            let new = nth(i as u32);
            let candidates =
                if k % 2 == 0 { guard.candidates_inner(&new.inner) } else { guard.candidates_outer(&new.outer) };
            guard.prefetch_first(&candidates);
            (new.inner, new.outer, candidates)
        });
        for (_, _, candidates) in batch.iter() {
            guard.prefetch_records(candidates);
        }
        for (k, (inner, outer, candidates)) in batch.iter().enumerate() {
            let session = if k % 2 == 0 {
                guard.find_inner_at(candidates, inner)
            } else {
                guard.find_outer_at(candidates, outer)
            };
            found += u32::from(session.is_some());
        }
    }
    let ns = cpu::thread_time() - begin;
    let all = lookups.next_multiple_of(BATCH as u32);
    if found != all {
        return Err(Error::Failed { what: "looking sessions up".into(), why: format!("{found} of {all} were found") });
    }
    Ok(f64::from(all) * 1e3 / ns as f64)
}

/// Lets time pass until all have ended; CPU ns a session.
fn expire(tracker: &Tracker, n: u32) -> Result<f64, Error> {
    let mut ended = 0u32;
    let mut bytes = 0u64;
    let begin = cpu::thread_time();
    for second in 0..u64::from(n / A_SECOND) + 40 {
        for tenth in 0..10 {
            let now = S + second * S + tenth * S / 10;
            while tracker
                .expire(now, 100_000, &mut |e| {
                    ended += 1;
                    bytes += e.session.counts.bytes;
                })
                .more
            {}
        }
    }
    let ns = cpu::thread_time() - begin;
    if (ended, bytes) != (n, u64::from(n) * 100) {
        return Err(Error::Failed { what: "expiry".into(), why: format!("{ended} of {n} ended, {bytes} bytes") });
    }
    Ok(ns as f64 / f64::from(n))
}

/// `snat-100m`.
pub fn snat_100m(context: &Context) -> Result<Report, Error> {
    let n = how_many();
    context.say(&format!("snat-100m: {n} sessions"));
    let before = resident();
    let memory: Arc<dyn SessionMemory> = Arc::new(HeapMemory::new().map_err(Error::io("reserving session memory"))?);
    let options = Options { sessions: n, initial: n, salt: context.seed, ..Options::default() };
    let tracker = Tracker::new(memory, options, S).map_err(Error::failed("making the tracker"))?;
    let inserted = insert(&tracker, n)?;
    let stats = tracker.stats();
    let (bytes, resident) = (stats.memory_bytes + stats.heap_bytes, resident().saturating_sub(before));
    context.say("snat-100m: lookups");
    let lookups = 4_000_000;
    let mut rates = Vec::new();
    for sample in 0..context.samples {
        rates.push(look_up(&tracker, n, lookups, context.seed + sample as u64)?);
    }
    context.say("snat-100m: expiry");
    let expiry = expire(&tracker, n)?;
    let each = |bytes: u64| bytes as f64 / f64::from(n);
    let mut report = Report::new("snat-100m", "bytes", vec![each(bytes)], Some(Goal::AtMost(80.0)), "");
    let resident = each(resident);
    report
        .only_if(resident <= 80.0, "The value counts the memory that is accounted for; what the process has resident in all is more (resident_bytes).")
        .detail("sessions", n)
        .detail("session_memory_bytes", each(stats.memory_bytes))
        .detail("heap_bytes", each(stats.heap_bytes))
        .detail("resident_bytes", resident)
        .detail("inserts_per_s", (f64::from(n) * 1e9 / inserted as f64).round())
        .detail_median("lookups_m_per_s", &rates)
        .detail("expiry_ns", crate::report::round(expiry))
        .detail("expiry_percent_of_a_core_at_1m_per_s", crate::report::round(expiry / 10.0));
    Ok(report)
}
