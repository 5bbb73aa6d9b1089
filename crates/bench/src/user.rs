// SPDX-License-Identifier: Apache-2.0
//! Runs the Rust path on packets in memory: each is copied once into a buffer, as a port would, processed in batches, and
//! counted by a sink.
use crate::memory::MissCost;
use crate::setup::{self, BpfNode};
use crate::workload::{Workload, FRAME, PACKET_SLOT, TAGGED};
use crate::{cpu, report, Context, Error, Goal, Report};
use abi::IfIndex;
use gateway::{Batch, FlowCache, Frame, Gateway, Verdict, HEADROOM};
use std::time::{Duration, Instant};
use tables::Tables;

/// Packets in a batch.
pub const BATCH: usize = 64;
/// Bytes of a buffer: headroom and frame, whole cache lines. Not a power of two, so that buffers do not share cache sets.
pub const BUFFER: usize = HEADROOM + FRAME.next_multiple_of(64) + 64;

/// What one run did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Run {
    /// Packets taken in.
    pub packets: u64,
    /// Packets that reached the sink.
    pub forwarded: u64,
    /// Their bytes.
    pub bytes: u64,
    /// CPU time, ns.
    pub cpu_ns: u64,
}

impl Run {
    /// Millions of packets a second of CPU time.
    pub fn mpps(&self) -> f64 {
        self.packets as f64 * 1e3 / self.cpu_ns.max(1) as f64
    }

    /// Every packet must be forwarded: a fast drop is no forwarding.
    pub fn all_forwarded(&self) -> Result<(), Error> {
        match self.forwarded == self.packets {
            true => Ok(()),
            false => Err(Error::Failed {
                what: "the Rust path".into(),
                why: format!("{} of {} packets were not forwarded", self.packets - self.forwarded, self.packets),
            }),
        }
    }
}

/// Runs two workers at the same time, each on a CPU and with packets of its own.
pub fn pair(one: &mut UserRunner, other: &mut UserRunner, duration: Duration) -> Result<(Run, Run), Error> {
    std::thread::scope(|scope| {
        let second = scope.spawn(|| other.run(0, duration));
        let first = one.run(1, duration)?;
        let second =
            second.join().map_err(|_| Error::Failed { what: "a worker".into(), why: "it panicked".into() })??;
        Ok((first, second))
    })
}

/// `user-gateway`.
pub fn user_gateway(context: &Context) -> Result<Report, Error> {
    context.say("user-gateway: 1M routes and 1M VMs in 100k VPCs");
    let workload = Workload::region(100_000, 10, 4096, context.seed);
    let node = BpfNode::new(&workload)?;
    let runner = |share: u32, n: u64| {
        UserRunner::new(node.tables(), workload.packets(1 << 20, share, context.seed + n), n as u32 % 2)
    };
    let (mut one, mut other) = (runner(20, 0), runner(20, 1));
    let (mut local, mut peers) = (runner(0, 2), runner(100, 4));
    let (heap, _) = setup::heap(&workload)?;
    let mut huge = UserRunner::new(heap.tables(), workload.packets(1 << 20, 20, context.seed), 0);
    let with_cache = |flows: usize| -> Result<UserRunner, Error> {
        let packets = workload.packets(flows, 20, context.seed);
        let mut runner = UserRunner::new(node.tables(), packets, 0).with_flow_cache(4 * flows as u32)?;
        // What finds its places taken gets in sooner or later.
        runner.rounds(CACHE_ROUNDS);
        Ok(runner)
    };
    let (mut cached, mut cached_64k) = (with_cache(1 << 20)?, with_cache(1 << 16)?);
    let cpu = cpu::count() - 1;
    one.run(cpu, WARM)?;
    let (mut mixed, mut only_local, mut only_peers) = (vec![], vec![], vec![]);
    let (mut on_huge, mut scale) = (vec![], vec![]);
    let (mut with_1m, mut with_64k, mut hits) = (vec![], vec![], vec![]);
    for n in 0..context.samples {
        context.say(&format!("user-gateway: sample {} of {}", n + 1, context.samples));
        let sides = [
            (&mut one, &mut mixed),
            (&mut local, &mut only_local),
            (&mut peers, &mut only_peers),
            (&mut huge, &mut on_huge),
            (&mut cached_64k, &mut with_64k),
        ];
        for (runner, rates) in sides {
            let run = runner.run(cpu, SAMPLE)?;
            run.all_forwarded()?;
            rates.push(run.mpps());
        }
        let before = cached.flow_hits();
        let run = cached.run(cpu, SAMPLE)?;
        run.all_forwarded()?;
        with_1m.push(run.mpps());
        hits.push((cached.flow_hits() - before) as f64 * 100.0 / run.packets as f64);
        if cpu::count() > 1 {
            let (a, b) = pair(&mut one, &mut other, SAMPLE)?;
            let alone = mixed.last().copied().unwrap_or(1.0);
            scale.push((a.mpps() + b.mpps()) / alone);
        }
    }
    let against =
        "goal 30 Mpps on one core, tables in mapped BPF arrays, 1M packets in memory, tenants and destinations uniform";
    let mut report = Report::new("user-gateway", "Mpps", mixed, Some(Goal::AtLeast(30.0)), against);
    report
        .detail_median("local_only_mpps", &only_local)
        .detail_median("peers_only_mpps", &only_peers)
        .detail_median("heap_on_huge_pages_mpps", &on_huge)
        .detail_median("flow_cache_mpps", &with_1m)
        .detail_median("flow_cache_hit_percent", &hits)
        .detail_median("flow_cache_64k_flows_mpps", &with_64k)
        .detail("flow_cache", "4 lines a flow, warm; every packet has the one shape")
        .detail_median("two_cores_factor", &scale)
        .detail("two_cores_goal", 1.8)
        .detail("batch", BATCH)
        .detail("table_bytes", node.table_bytes())
        .detail("memory_prefetched_line_ns", report::round(MissCost::measure(node.table_bytes()).prefetched_ns))
        .detail("workload", "100k VPCs × (8 local + 2 peer routes, 10 VMs), 1M packets of 114 bytes, 20% to peers");
    Ok(report)
}

/// `user-gateway-16m`.
pub fn user_gateway_16m(context: &Context) -> Result<Report, Error> {
    context.say("user-gateway-16m: making 16M VMs");
    let workload = Workload::flat(1000, 16_000, 4096, context.seed);
    context.say("user-gateway-16m: loading 16M VMs");
    let node = BpfNode::new(&workload)?;
    let mut runner = UserRunner::new(node.tables(), workload.packets(1 << 20, 0, context.seed), 0);
    let cpu = cpu::count() - 1;
    runner.run(cpu, WARM)?;
    let mut rates = Vec::new();
    for n in 0..context.samples {
        context.say(&format!("user-gateway-16m: sample {} of {}", n + 1, context.samples));
        let run = runner.run(cpu, SAMPLE)?;
        run.all_forwarded()?;
        rates.push(run.mpps());
    }
    let against = "goal 15 Mpps on one core with 16M VM entries, half of user-gateway's goal";
    let mut report = Report::new("user-gateway-16m", "Mpps", rates, Some(Goal::AtLeast(15.0)), against);
    report
        .detail("table_bytes", node.table_bytes())
        .detail("bytes_per_vm", report::round(node.table_bytes() as f64 / workload.vms.len() as f64))
        .detail("load_seconds", report::round(node.load_seconds))
        .detail("workload", "1,000 VPCs × 16,000 VMs, one local route each, 1M packets of 114 bytes, uniform");
    Ok(report)
}

/// Rounds through the packets after which a flow cache has most flows.
const CACHE_ROUNDS: usize = 20;
const WARM: Duration = Duration::from_millis(300);
const SAMPLE: Duration = Duration::from_millis(500);

/// One worker with its packets.
pub struct UserRunner {
    gateway: Gateway,
    packets: Vec<u8>,
    next: usize,
    buffers: Vec<u8>,
    /// How long each packet is, and the port by which it comes.
    bytes: usize,
    port: IfIndex,
    /// What the packets have behind their headers, if it is copied too; where the next one's begins.
    payload: Option<(Vec<u8>, usize)>,
}

/// Bytes of a packet that lie in packet memory; of longer ones they are the headers.
const HEAD: usize = 128;
/// Payload to copy from: more than any cache has.
const PAYLOAD: usize = 64 << 20;

/// Bytes of a buffer for frames of `bytes` bytes.
fn stride(bytes: usize) -> usize {
    match bytes <= FRAME {
        true => BUFFER,
        // An odd number of cache lines, for the same reason.
        false => ((HEADROOM + bytes).div_ceil(64) | 1) * 64,
    }
}

/// Puts packet memory on huge pages, as packet memory of a port is. It is a wish: without them it runs all the same.
pub fn huge_pages<T>(memory: &[T]) {
    const HUGE: usize = 2 << 20;
    const MADV_COLLAPSE: libc::c_int = 25;
    let start = (memory.as_ptr() as usize).next_multiple_of(HUGE);
    let end = (memory.as_ptr() as usize + size_of_val(memory)) / HUGE * HUGE;
    if start < end {
        // SAFETY: the range lies inside `memory`; the call changes how it is mapped, not what it holds.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, MADV_COLLAPSE) };
    }
}

impl UserRunner {
    /// A worker on these tables; `worker` numbers those that run at the same time.
    pub fn new(tables: Tables, packets: Vec<u8>, worker: u32) -> UserRunner {
        huge_pages(&packets);
        let slot = tables.slots().1 + worker;
        UserRunner {
            gateway: Gateway::new(tables, slot),
            packets,
            next: 0,
            buffers: vec![0; BATCH * BUFFER],
            bytes: FRAME,
            port: IfIndex(1),
            payload: None,
        }
    }

    /// The same with frames of two tags, which come by another port.
    pub fn tagged(self, port: IfIndex) -> UserRunner {
        UserRunner { port, ..self }.sized(TAGGED)
    }

    /// The same with frames of `bytes` bytes. What stands behind their headers is not written, as a card that has put it there would
    /// leave it to no core.
    pub fn sized(self, bytes: usize) -> UserRunner {
        UserRunner { bytes, buffers: vec![0; BATCH * stride(bytes)], ..self }
    }

    /// The same, and all bytes of each frame are copied, as a port without zero copy does.
    pub fn copying(self) -> UserRunner {
        UserRunner { payload: Some((vec![7; PAYLOAD], 0)), ..self }
    }

    /// The same with a flow cache of so many lines.
    pub fn with_flow_cache(self, lines: u32) -> Result<UserRunner, Error> {
        let cache = FlowCache::new(lines, rand::random()).map_err(Error::io("reserving a flow cache"))?;
        Ok(UserRunner { gateway: self.gateway.with_flow_cache(cache), ..self })
    }

    /// Goes round through its packets so often.
    pub fn rounds(&mut self, rounds: usize) -> Run {
        let (mut run, mut batch) = (Run::default(), Batch::new());
        let time = cpu::thread_time();
        for _ in 0..rounds * (self.packets.len() / (BATCH * PACKET_SLOT)) {
            batch = self.step(batch, &mut run);
        }
        run.cpu_ns = cpu::thread_time() - time;
        run
    }

    /// Packets of this worker's slot that a flow cache sent on so far.
    pub fn flow_hits(&self) -> u64 {
        self.gateway.tables().stats(self.gateway.slot()).read().flow_hits
    }

    /// Forwards on this CPU for a while, going round through the packets.
    pub fn run(&mut self, cpu: usize, duration: Duration) -> Result<Run, Error> {
        cpu::pin(0, cpu).map_err(Error::io("pinning the worker"))?;
        let mut run = Run::default();
        let start = Instant::now();
        let time = cpu::thread_time();
        let mut batch = Batch::new();
        while start.elapsed() < duration {
            for _ in 0..64 {
                batch = self.step(batch, &mut run);
            }
        }
        run.cpu_ns = cpu::thread_time() - time;
        Ok(run)
    }

    /// One batch: copy in, process, count out.
    #[inline(always)]
    fn step<'b>(&mut self, batch: Batch<'_>, run: &mut Run) -> Batch<'b> {
        match self.bytes {
            FRAME => self.step_of::<FRAME>(batch, run),
            TAGGED => self.step_of::<TAGGED>(batch, run),
            ..HEAD => self.step_of::<64>(batch, run),
            _ => self.step_of::<HEAD>(batch, run),
        }
    }

    #[inline(always)]
    fn step_of<'b, const COPIED: usize>(&mut self, batch: Batch<'_>, run: &mut Run) -> Batch<'b> {
        let mut batch = batch.recycle();
        if self.next + BATCH * PACKET_SLOT > self.packets.len() {
            self.next = 0;
        }
        let from = &self.packets[self.next..];
        self.next += BATCH * PACKET_SLOT;
        let bytes = self.bytes;
        for (slot, buffer) in from.chunks_exact(PACKET_SLOT).zip(self.buffers.chunks_exact_mut(stride(bytes))) {
            // A network card would have put the next batch into the cache meanwhile.
            cpu::prefetch(slot.as_ptr().wrapping_add(BATCH * PACKET_SLOT));
            cpu::prefetch(slot.as_ptr().wrapping_add(BATCH * PACKET_SLOT + 64));
            buffer[HEADROOM..HEADROOM + COPIED].copy_from_slice(&slot[..COPIED]);
            if let Some((payload, at)) = self.payload.as_mut().filter(|_| bytes > COPIED) {
                let more = bytes - COPIED;
                *at = if *at + more > payload.len() { 0 } else { *at };
                buffer[HEADROOM + COPIED..HEADROOM + bytes].copy_from_slice(&payload[*at..*at + more]);
                *at += more;
            }
            let _ = batch.push(Frame::new(buffer, HEADROOM, bytes, self.port));
        }
        self.gateway.process(&mut batch, node::counters::monotonic_ns());
        for frame in batch.frames() {
            if let Verdict::Forward { .. } = frame.verdict {
                run.forwarded += 1;
                run.bytes += frame.len() as u64;
            }
        }
        run.packets += BATCH as u64;
        batch.recycle()
    }
}

/// Puts frames staged a `PACKET_SLOT` each through the gateway, in batches of `BUFFER`s. CPU nanoseconds, and how many were forwarded.
pub fn forward_staged(gateway: &mut Gateway, staged: &[u8], buffers: &mut [u8]) -> (u64, u32) {
    let (mut forwarded, begin) = (0, cpu::thread_time());
    let mut batch = Batch::new();
    for part in staged.chunks_exact(BATCH * PACKET_SLOT) {
        let mut b = batch.recycle();
        for (slot, buffer) in part.chunks_exact(PACKET_SLOT).zip(buffers.chunks_exact_mut(BUFFER)) {
            buffer[HEADROOM..HEADROOM + FRAME].copy_from_slice(&slot[..FRAME]);
            let _ = b.push(Frame::new(buffer, HEADROOM, FRAME, IfIndex(1)));
        }
        gateway.process(&mut b, 1_000_000_000);
        forwarded += b.frames().iter().filter(|f| matches!(f.verdict, Verdict::Forward { .. })).count() as u32;
        batch = b.recycle();
    }
    (cpu::thread_time() - begin, forwarded)
}
