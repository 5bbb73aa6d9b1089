// SPDX-License-Identifier: Apache-2.0
//! The packet path on any frame: with random tables, and with table memory that somebody has scribbled on.
//!
//! The first eight bytes choose region and options, the rest is the frame. It goes through the path with and without the
//! short cut (a recorder switches that off): same bytes, same verdict. After each, every packet is accounted for.

use super::Target;
use abi::{IfIndex, PuntMeta, Stats, PUNT_MAGIC};
use gateway::{Batch, Frame, Gateway, NoRecorder, Recorder, Trace, Verdict, HEADROOM};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use tables::{HeapMemory, SharedMemory, WriterOptions};
use testkit::load::Loader;
use testkit::random::{self, Size};
use testkit::rng::Rng;

/// Regions that frames are tried on.
const REGIONS: usize = 6;
const SIZE: Size = Size { vpcs: 4, vms: 6, routes: 8, deep_routes: 200, ncs: 4 };

struct Rig {
    _loader: Loader,
    short: Gateway,
    long: Gateway,
}

impl Rig {
    fn new(seed: u64) -> Rig {
        let mut r = Rng::new(seed);
        let region = random::region(&mut r, SIZE);
        let memory = Arc::new(HeapMemory::new().unwrap_or_else(|e| panic!("table memory: {e}")));
        let loader =
            Loader::new(memory, WriterOptions::default(), &region).unwrap_or_else(|e| panic!("region {seed}: {e}"));
        let slot = loader.tables().slots().1;
        let (short, long) = (Gateway::new(loader.tables(), slot), Gateway::new(loader.tables(), slot + 1));
        Rig { _loader: loader, short, long }
    }
}

/// What became of a frame.
#[derive(Debug, PartialEq)]
struct End {
    verdict: Verdict,
    data: Vec<u8>,
    generated: Vec<Vec<u8>>,
}

/// One frame through the path, with the conservation law checked. `meta`: as if punted.
fn process<R: Recorder>(
    gateway: &mut Gateway,
    frame: &[u8],
    meta: Option<&PuntMeta>,
    now: u64,
    recorder: &mut R,
) -> End {
    let mut buffer = vec![0xa5; HEADROOM];
    buffer.extend(frame);
    let mut batch = Batch::new();
    let input = match meta {
        Some(meta) => Frame::punted(&mut buffer, HEADROOM, frame.len(), meta),
        None => Frame::new(&mut buffer, HEADROOM, frame.len(), IfIndex(1)),
    };
    assert!(batch.push(input).is_ok());
    let before = gateway.tables().stats_total();
    gateway.process_recorded(&mut batch, now, recorder);
    let after = gateway.tables().stats_total();
    let done = &batch.frames()[0];
    let generated: Vec<_> = batch.output.generated.iter().map(|g| g.data.clone()).collect();
    check(&before, &after, done.verdict, generated.len() as u64);
    if done.verdict == Verdict::Pass {
        assert_eq!(done.data(), frame, "what passes is unchanged");
    }
    End { verdict: done.verdict, data: done.data().to_vec(), generated }
}

/// Exactly one outcome, and all counters agree with it.
fn check(before: &Stats, after: &Stats, verdict: Verdict, generated: u64) {
    let rise = |f: fn(&Stats) -> u64| f(after).wrapping_sub(f(before));
    let one = |yes| u64::from(yes);
    assert_eq!(rise(|s| s.rx), 1);
    assert_eq!(rise(|s| s.generated), generated);
    assert_eq!(rise(|s| s.forwarded), generated + one(matches!(verdict, Verdict::Forward { .. })));
    assert_eq!(rise(|s| s.answered), one(matches!(verdict, Verdict::Answer { .. })));
    assert_eq!(rise(|s| s.passed), one(matches!(verdict, Verdict::Pass | Verdict::Control { .. } | Verdict::Metadata)));
    assert_eq!(rise(|s| s.dropped), one(matches!(verdict, Verdict::Drop(_))));
    assert_eq!(rise(|s| s.drops.iter().sum()), one(matches!(verdict, Verdict::Drop(_))));
}

fn signature(region: usize, end: &End) -> u64 {
    let (kind, detail) = match end.verdict {
        Verdict::Forward { .. } => (0, end.data.get(13).copied().unwrap_or(0)),
        Verdict::Answer { .. } => (1, end.data.get(13).copied().unwrap_or(0)),
        Verdict::Pass => (2, 0),
        Verdict::Control { .. } => (4, 0),
        Verdict::Metadata => (5, 0),
        Verdict::Wait => panic!("there is no agent on another host to wait for"),
        Verdict::Drop(reason) => (3, reason as u8),
    };
    let generated = end.generated.len().min(3) as u64;
    (region as u64) << 32 | generated << 16 | kind << 8 | u64::from(detail)
}

/// Packets as the differential test makes them, for the regions of the rigs.
fn packets(each: usize) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for seed in 0..REGIONS as u64 {
        let mut r = Rng::new(seed);
        let region = random::region(&mut r, SIZE);
        for _ in 0..each {
            let mut input = vec![seed as u8, 0, 0, 0, 0, 0, 0, 0];
            input.extend(random::packet(&mut r, &region).encode());
            out.push(input);
        }
    }
    out
}

/// Any frame, random tables.
pub struct Frames {
    rigs: Vec<Rig>,
    now: u64,
}

impl Frames {
    /// Loads the regions.
    pub fn new() -> Frames {
        Frames { rigs: (0..REGIONS as u64).map(Rig::new).collect(), now: 1_000_000_000 }
    }
}

impl Target for Frames {
    fn name(&self) -> &'static str {
        "frames"
    }

    fn run(&mut self, input: &[u8]) -> u64 {
        let Some((head, frame)) = input.split_first_chunk::<8>() else { return 0 };
        let n = head[0] as usize % self.rigs.len();
        let rig = &mut self.rigs[n];
        // Regions have no limits that time would change, so that both see the same.
        self.now += 1_000_000;
        let meta = PuntMeta {
            magic: PUNT_MAGIC,
            reason: head[2],
            flags: head[3],
            inner_offset: u16::from_le_bytes([head[4], head[5]]),
            vni: u32::from(head[6]),
            ifindex: 1,
            time: self.now,
            tenant: u32::from(head[7]),
            share: 0,
        };
        let meta = (head[1] & 1 != 0).then_some(&meta);
        let short = process(&mut rig.short, frame, meta, self.now, &mut NoRecorder);
        let mut trace = Trace::default();
        let long = process(&mut rig.long, frame, meta, self.now, &mut trace);
        assert_eq!(short, long, "the short cut differs from the stages");
        for (_, _, event) in &trace.events {
            assert!(!event.to_string().is_empty());
        }
        signature(n, &short)
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        packets(60)
    }
}

/// Good frames on table memory that has been written to at random.
pub struct Damaged {
    frames: Vec<Vec<u8>>,
}

impl Damaged {
    /// With a few frames that reach far.
    pub fn new() -> Damaged {
        Damaged { frames: packets(20).into_iter().filter(|p| p[0] == 0).map(|p| p[8..].to_vec()).collect() }
    }
}

/// Lines of table memory that a damaged memory may have damage in: those that a small region uses.
const LINES: u64 = 20_000;

impl Target for Damaged {
    fn name(&self) -> &'static str {
        "damaged"
    }

    /// Each 12 bytes: where (a word of table memory) and what to write there.
    fn run(&mut self, input: &[u8]) -> u64 {
        let mut r = Rng::new(0);
        let region = random::region(&mut r, SIZE);
        let memory = Arc::new(SharedMemory::new().unwrap_or_else(|e| panic!("table memory: {e}")));
        let file = File::from(memory.fd().try_clone().unwrap_or_else(|e| panic!("table memory: {e}")));
        let loader = Loader::new(memory.clone(), WriterOptions::default(), &region).unwrap_or_else(|e| panic!("{e}"));
        let arena = file.metadata().map_or(0, |m| m.len()) - tables::ARENA_BYTES as u64;
        for piece in input.chunks_exact(12).take(64) {
            let (at, what) = piece.split_at(4);
            let at = u64::from(u32::from_le_bytes([at[0], at[1], at[2], at[3]])) % (LINES * 8);
            file.write_all_at(what, arena + at * 8).unwrap_or_else(|e| panic!("table memory: {e}"));
        }
        let mut gateway = Gateway::new(loader.tables(), loader.tables().slots().1);
        let mut seen = 0u64;
        for frame in &self.frames {
            let end = process_damaged(&mut gateway, frame);
            seen = u64::wrapping_add(u64::wrapping_mul(seen, 31), signature(0, &end));
        }
        seen
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let mut r = Rng::new(1);
        let mut random = |n: usize| (0..n).map(|_| r.word() as u8).collect::<Vec<u8>>();
        (0..8).map(|_| random(64 * 12)).collect()
    }
}

/// As `process`; statistics are not table memory, so the law holds here too.
fn process_damaged(gateway: &mut Gateway, frame: &[u8]) -> End {
    process(gateway, frame, None, 1, &mut NoRecorder)
}
