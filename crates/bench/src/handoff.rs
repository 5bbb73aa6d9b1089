// SPDX-License-Identifier: Apache-2.0
//! `run-to-completion`: one core that receives and processes its packets beside two of which one receives and the other processes, with a
//! ring between them, as the provider edge's prototype has it ("A Scalable VPN Gateway", §3).
//!
//! Frames from customers with two tags, 2^20 VMs. The ring carries the buffers themselves, 64 at once, and a second one brings them back.
//! All rates are of wall time, for a core that waits for the other is busy too.
use crate::edge::{make_edge, to_cloud, EDGE};
use crate::user::{BATCH, BUFFER};
use crate::workload::{Workload, PACKET_SLOT, TAGGED};
use crate::{cpu, setup, stats, Context, Error, Report};
use gateway::{Batch, FlowCache, Frame, Gateway, Verdict, HEADROOM};
use rtrb::{Consumer, Producer, RingBuffer};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use tables::Writer;

const PACKETS: usize = 1 << 20;
/// Buffers under way, as many as a card's ring has.
const BUFFERS: usize = 1024;
const SAMPLE: Duration = Duration::from_millis(500);
const CACHE_ROUNDS: u64 = 12;

type Buffer = Box<[u8; BUFFER]>;

/// The receiving half: packets from memory into buffers.
struct Receiver<'a> {
    packets: &'a [u8],
    next: usize,
}

impl Receiver<'_> {
    #[inline(always)]
    fn fill(&mut self, buffer: &mut [u8; BUFFER]) {
        let slot = &self.packets[self.next..self.next + PACKET_SLOT];
        cpu::prefetch(slot.as_ptr().wrapping_add(BATCH * PACKET_SLOT));
        cpu::prefetch(slot.as_ptr().wrapping_add(BATCH * PACKET_SLOT + 64));
        buffer[HEADROOM..HEADROOM + TAGGED].copy_from_slice(&slot[..TAGGED]);
        self.next = (self.next + PACKET_SLOT) % self.packets.len();
    }
}

/// The processing half.
struct Worker {
    gateway: Gateway,
    packets: u64,
    forwarded: u64,
}

impl Worker {
    fn process<'b>(&mut self, batch: Batch<'_>, buffers: &'b mut [Buffer]) -> Batch<'b> {
        let mut batch = batch.recycle();
        for buffer in buffers.iter_mut() {
            let _ = batch.push(Frame::new(&mut buffer[..], HEADROOM, TAGGED, EDGE));
        }
        self.gateway.process(&mut batch, node::counters::monotonic_ns());
        let sent = batch.frames().iter().filter(|f| matches!(f.verdict, Verdict::Forward { .. })).count();
        self.forwarded += sent as u64;
        self.packets += batch.frames().len() as u64;
        batch
    }

    fn rate(&self, took: Duration) -> Result<f64, Error> {
        match self.forwarded == self.packets && self.packets > 0 {
            true => Ok(self.packets as f64 / took.as_secs_f64() / 1e6),
            false => Err(Error::Failed {
                what: "the Rust path".into(),
                why: format!("{} of {} packets were forwarded", self.forwarded, self.packets),
            }),
        }
    }
}

/// Tables, and what is done on them.
struct Rig<'a> {
    writer: Writer,
    packets: [&'a [u8]; 2],
    cache: bool,
}

impl Rig<'_> {
    fn worker(&self, number: usize) -> Result<Worker, Error> {
        let tables = self.writer.tables();
        let slot = tables.slots().1 + number as u32;
        let gateway = Gateway::new(tables, slot);
        let gateway = match self.cache {
            true => gateway.with_flow_cache(
                FlowCache::new(4 * PACKETS as u32, rand::random()).map_err(Error::io("reserving a flow cache"))?,
            ),
            false => gateway,
        };
        Ok(Worker { gateway, packets: 0, forwarded: 0 })
    }

    /// Receives and processes on one core until told so. Millions of packets a second.
    fn complete(&self, number: usize, together: &Barrier) -> Result<f64, Error> {
        let ready = cpu::pin(0, number).map_err(Error::io("pinning a worker")).and_then(|()| self.worker(number));
        // Who cannot work still lets the other one begin.
        let mut worker = ready.inspect_err(|_| {
            together.wait();
        })?;
        let mut receiver = Receiver { packets: self.packets[number], next: 0 };
        let mut buffers: Vec<Buffer> = (0..BATCH).map(|_| Box::new([0; BUFFER])).collect();
        let mut batch = Batch::new();
        let mut step = |worker: &mut Worker, batch: Batch<'_>| {
            buffers.iter_mut().for_each(|b| receiver.fill(b));
            worker.process(batch, &mut buffers).recycle()
        };
        while self.cache && worker.packets < CACHE_ROUNDS * PACKETS as u64 {
            batch = step(&mut worker, batch);
        }
        together.wait();
        (worker.packets, worker.forwarded) = (0, 0);
        let start = Instant::now();
        while start.elapsed() < SAMPLE {
            for _ in 0..16 {
                batch = step(&mut worker, batch);
            }
        }
        worker.rate(start.elapsed())
    }

    /// The same on a second core, which is given its packets by the first. Both spin.
    fn handed(&self) -> Result<f64, Error> {
        let (mut full, mut to_work) = RingBuffer::<Buffer>::new(BUFFERS);
        let (mut spare, mut to_fill) = RingBuffer::<Buffer>::new(BUFFERS);
        for _ in 0..BUFFERS {
            let _ = spare.push(Box::new([0; BUFFER]));
        }
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let receiving = scope.spawn(|| -> Result<(), Error> {
                cpu::pin(0, 0).map_err(Error::io("pinning the receiver"))?;
                let mut receiver = Receiver { packets: self.packets[0], next: 0 };
                while !ended.load(Ordering::Relaxed) {
                    receive(&mut receiver, &mut to_fill, &mut full);
                }
                Ok(())
            });
            let rate = self.work(&mut to_work, &mut spare);
            ended.store(true, Ordering::Relaxed);
            let panicked = |_| Error::Failed { what: "the receiver".into(), why: "it panicked".into() };
            receiving.join().map_err(panicked)??;
            rate
        })
    }

    fn work(&self, to_work: &mut Consumer<Buffer>, spare: &mut Producer<Buffer>) -> Result<f64, Error> {
        cpu::pin(0, 1).map_err(Error::io("pinning the worker"))?;
        let mut worker = self.worker(0)?;
        let mut batch = Batch::new();
        let mut buffers: Vec<Buffer> = Vec::with_capacity(BATCH);
        let mut start = Instant::now();
        let mut warm = !self.cache;
        loop {
            if !warm && worker.packets >= CACHE_ROUNDS * PACKETS as u64 {
                warm = true;
                (worker.packets, worker.forwarded, start) = (0, 0, Instant::now());
            }
            if warm && start.elapsed() >= SAMPLE {
                return worker.rate(start.elapsed());
            }
            let Ok(chunk) = to_work.read_chunk(BATCH.min(to_work.slots())) else { continue };
            buffers.extend(chunk);
            // The headers come from the other core's cache.
            for buffer in &buffers {
                cpu::prefetch(buffer[HEADROOM..].as_ptr());
                cpu::prefetch(buffer[HEADROOM + 64..].as_ptr());
            }
            if !buffers.is_empty() {
                batch = worker.process(batch, &mut buffers).recycle();
                if let Ok(chunk) = spare.write_chunk_uninit(buffers.len()) {
                    chunk.fill_from_iter(buffers.drain(..));
                }
            }
        }
    }
}

fn receive(receiver: &mut Receiver<'_>, to_fill: &mut Consumer<Buffer>, full: &mut Producer<Buffer>) {
    let count = BATCH.min(to_fill.slots()).min(full.slots());
    let (Ok(empty), Ok(room)) = (to_fill.read_chunk(count), full.write_chunk_uninit(count)) else { return };
    room.fill_from_iter(empty.into_iter().map(|mut buffer| {
        receiver.fill(&mut buffer);
        buffer
    }));
}

/// `run-to-completion`.
pub fn run_to_completion(context: &Context) -> Result<Report, Error> {
    if cpu::count() < 2 {
        return Err(Error::Failed { what: "run-to-completion".into(), why: "this machine has one CPU".into() });
    }
    context.say("run-to-completion: 1M VMs in 1,024 VPCs with a site each");
    let workload = Workload::flat(1024, 1024, 4096, context.seed);
    let packets = [0, 1].map(|n| to_cloud(&workload, PACKETS, context.seed + n, TAGGED));
    let mut all = vec![];
    for cache in [false, true] {
        let (mut writer, _) = setup::heap(&workload)?;
        make_edge(&mut writer, &workload, EDGE)?;
        let rig = Rig { writer, packets: packets.each_ref().map(|p| &p[..]), cache };
        let (mut one, mut two, mut handed) = (vec![], vec![], vec![]);
        for n in 0..context.samples {
            context.say(&format!("run-to-completion: cache {cache}, sample {} of {}", n + 1, context.samples));
            one.push(rig.complete(1, &Barrier::new(1))?);
            let together = Barrier::new(2);
            two.push(std::thread::scope(|scope| {
                let other = scope.spawn(|| rig.complete(0, &together));
                let first = rig.complete(1, &together)?;
                let panicked = |_| Error::Failed { what: "a worker".into(), why: "it panicked".into() };
                Ok::<f64, Error>(first + other.join().map_err(panicked)??)
            })?);
            handed.push(rig.handed()?);
        }
        all.push([one, two, handed]);
    }
    let ratio =
        |i: usize, j: usize, k: usize| -> Vec<f64> { all[i][j].iter().zip(&all[i][k]).map(|(a, b)| a / b).collect() };
    let compared = "one core that receives and processes ÷ a receiving core, a ring and a processing core together, without flow cache";
    let mut report = Report::new("run-to-completion", "ratio", ratio(0, 0, 2), None, compared);
    for (i, label) in ["", "cached_"].iter().enumerate() {
        for (j, what) in ["one_core_mpps", "two_cores_mpps", "ring_two_cores_mpps"].iter().enumerate() {
            report.detail_median(&format!("{label}{what}"), &all[i][j]);
        }
        report.detail_median(&format!("{label}one_core_to_ring"), &ratio(i, 0, 2));
        report.detail_median(&format!("{label}two_cores_to_ring"), &ratio(i, 1, 2));
    }
    let core = stats::median(&all[0][2]) / stats::median(&all[0][1]);
    report
        .detail("ring_share_of_two_cores", crate::report::round(core))
        .detail("batch", BATCH)
        .detail("buffers", BUFFERS)
        .detail("workload", "1,024 VPCs × 1,024 VMs, a circuit each; 72-byte frames with two tags from memory, uniform")
        .compared("receiving is a copy of the frame: a driver's descriptors, which make a receiving core worth more, are not there");
    Ok(report)
}
