// SPDX-License-Identifier: Apache-2.0
//! The veth rig: one generator sends through a gateway's port and a sink at the other end of the same cable counts what comes
//! back, the same for every side.
//!
//! The gateway has a network namespace and one port, a veth with one queue. The port's receive work, which here is all of
//! the gateway's work, is done by its threaded-NAPI kernel thread, pinned to CPU 1. Generator and sink (the other veth
//! end, with its own NAPI thread) are pinned to CPU 0. CPU per packet = run time of the gateway's thread (schedstat, plus that of
//! ksoftirqd of its CPU, to which softirq work may overflow) ÷ packets that arrived at the sink.
use crate::netns::Netns;
use crate::traffic::{
    Traffic, ARRIVAL_OFFSET, BUDGET, GAP, LATENCIES, NEXT, PROBE_OFFSET, RECEIVED, ROUNDS, SAMPLES, SENT, STRANGE,
    WINDOW_WORD,
};
use crate::workload::{FRAME, INNER_FRAME, PACKET_SLOT, ROUTER_MAC, TAGGED, UPLINK_MAC};
use crate::{cpu, Error};
use abi::IfIndex;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use xdp::object::{attach_program, run_program, RunOptions, TEST_LIVE_FRAMES, XDP_NATIVE};

/// CPU of generator and sink.
pub const TRAFFIC_CPU: usize = 0;
/// CPU of the gateway.
pub const GATEWAY_CPU: usize = 1;
/// Who sends one by one and is later than this begins anew from there: what it missed would be a burst that nobody asked for, and the
/// answers of which would wait for it.
const LATE: Duration = Duration::from_millis(1);
/// Frames under way at most: less than a veth ring (256), so that none overflows.
const WINDOW: u64 = 192;

/// What the frames of a side look like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Frames {
    /// VXLAN, 114 bytes.
    Vxlan,
    /// Plain, 64 bytes.
    Plain,
    /// Two tags, 72 bytes; they arrive as VXLAN.
    ToCloud,
}

impl Frames {
    fn bytes(self) -> usize {
        match self {
            Frames::Vxlan => FRAME,
            Frames::Plain => INNER_FRAME,
            Frames::ToCloud => TAGGED,
        }
    }

    /// How long they are when they arrive.
    fn arriving(self) -> usize {
        match self {
            Frames::Vxlan | Frames::ToCloud => FRAME,
            Frames::Plain => INNER_FRAME,
        }
    }

    /// Where the payload of the inner UDP packet stands in a frame of so many bytes.
    fn payload(bytes: usize) -> u64 {
        (bytes - INNER_FRAME + 42) as u64
    }

    fn generator(self, ports: Ports) -> &'static str {
        match (self, ports) {
            (Frames::Vxlan, Ports::Kept) => "generate_vxlan",
            (Frames::ToCloud, Ports::Kept) => "generate_tagged",
            (Frames::Plain, Ports::Kept) => "generate_plain",
            (Frames::Vxlan, Ports::NewSource) => "generate_new_vxlan",
            (Frames::Plain, Ports::NewSource) => "generate_new_plain",
            (Frames::Vxlan, Ports::Both) => "generate_pairs_vxlan",
            (Frames::Plain, Ports::Both) => "generate_pairs_plain",
            (Frames::ToCloud, _) => unreachable!("no bench opens connections from a site"),
        }
    }

    /// Where the inner (or only) IP header stands in what arrives.
    fn ip_offset(self) -> usize {
        self.arriving() - INNER_FRAME + 14
    }
}

/// Which ports of the packets a round changes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ports {
    /// None.
    Kept,
    /// The source port.
    NewSource,
    /// Both by the same, so that answers stay answers.
    Both,
}

/// What one interval of traffic did.
#[derive(Clone, Copy, Debug)]
pub struct Interval {
    /// Packets that came back.
    pub packets: u64,
    /// Packets sent that did not.
    pub lost: u64,
    /// CPU time of the gateway, ns.
    pub cpu_ns: u64,
    /// The part of it that its own threads took, beside those of its port.
    pub threads_ns: u64,
    /// Wall time, ns.
    pub wall_ns: u64,
}

impl Interval {
    /// CPU time of the gateway for one packet, ns.
    pub fn ns_per_packet(&self) -> f64 {
        self.cpu_ns as f64 / self.packets.max(1) as f64
    }
}

/// The kernel thread that does the receive work of a device with threaded NAPI.
pub(crate) fn napi_thread(device: &str) -> Result<i32, Error> {
    let mut found = None;
    cpu::wait_for(Duration::from_secs(2), || {
        found = cpu::processes_named(&format!("napi/{device}-")).first().copied();
        found.is_some()
    });
    found.ok_or_else(|| Error::Failed {
        what: format!("threaded NAPI of {device}"),
        why: "the kernel started no thread".into(),
    })
}

/// One gateway with its port, its generator and its sink.
pub struct Side {
    /// Where the gateway lives.
    pub gateway: Arc<Netns>,
    /// Where generator and sink live.
    outside: Netns,
    /// The gateway's port.
    pub port: String,
    far: String,
    far_index: IfIndex,
    frames: Frames,
    traffic: Traffic,
    sink: Option<OwnedFd>,
    gateway_thread: i32,
    /// Threads of the gateway beside those of its port.
    threads: Vec<i32>,
}

impl Side {
    /// Builds the cable, the sink and the generator's packets (a power of two of them).
    pub fn create(role: &str, frames: Frames, packets: &[u8]) -> Result<Side, Error> {
        Side::create_on(Arc::new(Netns::create(&format!("{role}-gw"))?), role, frames, packets)
    }

    /// The same for one more port of a gateway that is there; roles of one gateway begin with different letters.
    pub fn create_on(gateway: Arc<Netns>, role: &str, frames: Frames, packets: &[u8]) -> Result<Side, Error> {
        let outside = Netns::create(&format!("{role}-out"))?;
        let tag = format!("{:x}{}", std::process::id(), role.as_bytes().first().map_or('x', |b| *b as char));
        let (port, far) = (format!("tu{tag}"), format!("tf{tag}"));
        gateway.ip(&format!(
            "link add {port} numrxqueues 1 numtxqueues 1 type veth peer name {far} numrxqueues 1 numtxqueues 1 netns {}",
            outside.name()
        ))?;
        for (ns, device, mac) in [(&*gateway, &port, UPLINK_MAC), (&outside, &far, ROUTER_MAC)] {
            ns.shell("echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6")?;
            ns.ip(&format!("link set {device} address {} up", abi::Mac(mac)))?;
        }
        let mut traffic = Traffic::load()?;
        traffic.fill(packets, None);
        let far_index = outside.ifindex(&far)?;
        let side = Side {
            gateway,
            outside,
            port,
            far,
            far_index,
            frames,
            traffic,
            sink: None,
            gateway_thread: 0,
            threads: vec![],
        };
        side.word(PROBE_OFFSET).store(Frames::payload(frames.bytes()), Ordering::Relaxed);
        side.word(ARRIVAL_OFFSET).store(Frames::payload(frames.arriving()), Ordering::Relaxed);
        Ok(side)
    }

    fn word(&self, index: usize) -> &std::sync::atomic::AtomicU64 {
        self.traffic.word(index)
    }

    /// A port without XDP takes live frames only with GRO on.
    pub fn receive_without_xdp(&self) -> Result<(), Error> {
        self.gateway.shell(&format!("ethtool -K {} gro on", self.port)).map(drop)
    }

    /// Moves the receive work of both ends into kernel threads and pins them. Call it when the gateway is ready.
    pub fn pin_threads(&mut self) -> Result<(), Error> {
        self.attach_sink("count")?;
        for (ns, device) in [(&*self.gateway, &self.port), (&self.outside, &self.far)] {
            ns.shell(&format!("echo 1 > /sys/class/net/{device}/threaded"))?;
        }
        self.gateway_thread = napi_thread(&self.port)?;
        cpu::pin(self.gateway_thread, GATEWAY_CPU).map_err(Error::io("pinning the gateway's NAPI thread"))?;
        cpu::nice(self.gateway_thread, -20).map_err(Error::io("setting the priority of the gateway's NAPI thread"))?;
        self.pin_sink()
    }

    /// Pins the sink's thread. A program that is attached brings a new thread, which knows nothing of the former one's CPU and priority.
    pub fn pin_sink(&self) -> Result<(), Error> {
        let sink = napi_thread(&self.far)?;
        cpu::pin(sink, TRAFFIC_CPU).map_err(Error::io("pinning the sink's NAPI thread"))?;
        cpu::prefer(sink, 2).map_err(Error::io("setting the priority of the sink's NAPI thread"))
    }

    /// Gives the port's receive work a real-time priority: a nice value counts within a session's group of processes only, and other work on the
    /// machine has groups of its own.
    pub fn prefer_port(&self, priority: i32) -> Result<(), Error> {
        cpu::prefer(self.gateway_thread, priority)
            .map_err(Error::io("setting the priority of the gateway's NAPI thread"))
    }

    /// Gives the receive work back to softirqs, as it is by default.
    pub fn release_threads(&self) -> Result<(), Error> {
        for (ns, device) in [(&*self.gateway, &self.port), (&self.outside, &self.far)] {
            ns.shell(&format!("echo 0 > /sys/class/net/{device}/threaded"))?;
        }
        Ok(())
    }

    /// Puts one of the sink programs (`count` or `time`) on the far end.
    pub fn attach_sink(&mut self, program: &str) -> Result<(), Error> {
        self.sink = None;
        let program = self.traffic.program(program)?;
        let index = self.far_index;
        let link = self.outside.inside(|| Ok(attach_program(program, index, XDP_NATIVE)?))?;
        self.sink = Some(link);
        Ok(())
    }

    /// Threads whose time counts as the gateway's too.
    pub fn count_threads(&mut self, threads: Vec<i32>) {
        self.threads = threads;
    }

    fn threads_time(&self) -> u64 {
        self.threads.iter().filter_map(|t| cpu::run_time(*t, *t).ok()).sum()
    }

    fn gateway_time(&self) -> u64 {
        let softirq = cpu::processes_named(&format!("ksoftirqd/{GATEWAY_CPU}"));
        let threads = softirq.first().copied().into_iter().chain([self.gateway_thread]);
        threads.filter(|t| *t > 0).filter_map(|t| cpu::run_time(t, t).ok()).sum()
    }

    fn settle(&self) {
        self.traffic.settle();
    }

    /// Sends for a while, as fast as the gateway takes it.
    pub fn run(&self, duration: Duration) -> Result<Interval, Error> {
        self.drive(self.frames.generator(Ports::Kept), u64::MAX >> 1, duration)
    }

    /// Sends `count` packets as fast as the gateway takes them, each the first one of a connection that was never before.
    pub fn run_new(&self, count: u64, limit: Duration) -> Result<Interval, Error> {
        self.drive(self.frames.generator(Ports::NewSource), count, limit)
    }

    /// Sends `count` packets, round after round of the same ones.
    pub fn run_same(&self, count: u64, limit: Duration) -> Result<Interval, Error> {
        self.drive(self.frames.generator(Ports::Kept), count, limit)
    }

    /// Sends `count` packets as fast as the gateway takes them, `rounds` rounds of connections and then the first one's again. The
    /// packets must hold the answers of half of them.
    pub fn run_pairs(&self, rounds: u64, count: u64, limit: Duration) -> Result<Interval, Error> {
        self.word(ROUNDS).store(rounds, Ordering::Relaxed);
        self.drive(self.frames.generator(Ports::Both), count, limit)
    }

    fn drive(&self, generator: &str, budget: u64, limit: Duration) -> Result<Interval, Error> {
        self.settle();
        self.word(WINDOW_WORD).store(WINDOW, Ordering::Relaxed);
        self.word(BUDGET).store(budget, Ordering::Relaxed);
        let program = self.traffic.program(generator)?;
        let received = self.word(RECEIVED).load(Ordering::Relaxed);
        let (threads, time) = (self.threads_time(), self.gateway_time());
        let start = Instant::now();
        self.outside.inside(|| {
            cpu::pin(0, TRAFFIC_CPU).map_err(Error::io("pinning the generator"))?;
            let frame = [0u8; FRAME];
            let options = RunOptions {
                repeat: 1 << 17,
                ifindex: self.far_index,
                flags: TEST_LIVE_FRAMES,
                batch: 64,
                ..RunOptions::default()
            };
            while start.elapsed() < limit && self.word(BUDGET).load(Ordering::Relaxed) > 0 {
                run_program(program, &frame[..self.frames.bytes()], &mut [], options)?;
            }
            Ok(())
        })?;
        let wall_ns = start.elapsed().as_nanos() as u64;
        let sent = self.word(SENT).load(Ordering::Relaxed);
        cpu::wait_for(Duration::from_millis(100), || self.word(RECEIVED).load(Ordering::Relaxed) >= sent);
        let threads_ns = self.threads_time() - threads;
        let cpu_ns = self.gateway_time() - time + threads_ns;
        let packets = self.word(RECEIVED).load(Ordering::Relaxed) - received;
        let lost = (sent - received).saturating_sub(packets);
        Ok(Interval { packets, lost, cpu_ns, threads_ns, wall_ns })
    }

    /// Opens `rate` connections a second, one by one, until told to stop. Returns how many, and in how many seconds.
    pub fn open(&self, rate: u64, stop: &AtomicBool) -> Result<(u64, f64), Error> {
        self.paced("generate_syn", 0, 1, stop, |sent| Duration::from_nanos(sent * 1_000_000_000 / rate))
    }

    /// Sends `rate` frames of a generator a second until told to stop; the generator watches the time itself and keeps its CPU busy.
    /// Returns as `open`. It looks up every few tenths of a second only: between two calls that send more than one frame the kernel (6.18)
    /// waits for some 30 ms.
    pub fn flood(&self, generator: &str, rate: u64, stop: &AtomicBool) -> Result<(u64, f64), Error> {
        self.paced(generator, 1_000_000_000 / rate, 1 << 22, stop, |_| Duration::ZERO)
    }

    fn paced(
        &self,
        generator: &str,
        gap: u64,
        runs: u32,
        stop: &AtomicBool,
        due: impl Fn(u64) -> Duration + Sync,
    ) -> Result<(u64, f64), Error> {
        self.settle();
        self.word(WINDOW_WORD).store(u64::MAX >> 1, Ordering::Relaxed);
        self.word(BUDGET).store(u64::MAX >> 1, Ordering::Relaxed);
        self.word(GAP).store(gap, Ordering::Relaxed);
        let program = self.traffic.program(generator)?;
        let before = self.word(NEXT).load(Ordering::Relaxed);
        let sent = || self.word(NEXT).load(Ordering::Relaxed) - before;
        let seconds = self.outside.inside(|| {
            cpu::pin(0, TRAFFIC_CPU).map_err(Error::io("pinning the generator"))?;
            // A pace that other work on the machine sets says nothing. Who spins gives way to sinks, and these to who opens connections.
            cpu::prefer(0, if gap == 0 { 3 } else { 1 }).map_err(Error::io("setting the priority of the generator"))?;
            let frame = [0u8; FRAME];
            let options = RunOptions {
                repeat: runs,
                ifindex: self.far_index,
                flags: TEST_LIVE_FRAMES,
                batch: runs.min(64),
                ..RunOptions::default()
            };
            let (start, mut missed) = (Instant::now(), Duration::ZERO);
            while !stop.load(Ordering::Relaxed) {
                run_program(program, &frame[..self.frames.bytes()], &mut [], options)?;
                let (due, now) = (due(sent()) + missed, start.elapsed());
                match due.checked_sub(now) {
                    Some(wait) => std::thread::sleep(wait),
                    None if now - due > LATE => missed += now - due,
                    None => {}
                }
            }
            Ok(start.elapsed().as_secs_f64())
        })?;
        self.word(GAP).store(0, Ordering::Relaxed);
        Ok((sent(), seconds))
    }

    /// Packets that the sink has seen so far.
    pub fn received(&self) -> u64 {
        self.word(RECEIVED).load(Ordering::Relaxed)
    }

    /// Takes the samples that the sink has written since the last call, ns.
    pub fn take_samples(&self) -> Vec<f64> {
        self.traffic.take_samples()
    }

    /// The packet that came back last of those that the sink keeps (one of 1,024).
    pub fn last(&self) -> [u8; PACKET_SLOT] {
        self.traffic.last()
    }

    /// Whether a packet that came back was really routed: its TTL is one less. Says what is wrong otherwise.
    pub fn check(&self, outer_destination: impl Fn(u32) -> bool) -> Result<(), Error> {
        let last = self.last();
        let ip = self.frames.ip_offset();
        let destination = u32::from_be_bytes([last[30], last[31], last[32], last[33]]);
        let strange = self.word(STRANGE).load(Ordering::Relaxed);
        if last[ip + 8] != 63 || !outer_destination(destination) {
            let hex: String = last[..self.frames.bytes()].iter().map(|b| format!("{b:02x}")).collect();
            let why = format!("a packet came back unrouted ({strange} frames were of no known kind): {hex}");
            return Err(Error::Failed { what: format!("the gateway in {}", self.gateway.name()), why });
        }
        Ok(())
    }

    /// Sends `count` packets one at a time, `gap` apart, and returns how long each was under way, in ns. The sink must be `time`.
    pub fn probe(&self, count: usize, gap: Duration) -> Result<Vec<f64>, Error> {
        self.settle();
        self.word(WINDOW_WORD).store(u64::MAX >> 1, Ordering::Relaxed);
        self.word(SAMPLES).store(0, Ordering::Relaxed);
        self.word(NEXT).store(0, Ordering::Relaxed);
        self.word(BUDGET).store(u64::MAX >> 1, Ordering::Relaxed);
        let name = match self.frames {
            Frames::Vxlan => "probe_vxlan",
            Frames::Plain => "probe_plain",
            Frames::ToCloud => "probe_tagged",
        };
        let program = self.traffic.program(name)?;
        self.outside.inside(|| {
            cpu::pin(0, TRAFFIC_CPU).map_err(Error::io("pinning the generator"))?;
            let frame = [0u8; FRAME];
            let options = RunOptions {
                repeat: 1,
                ifindex: self.far_index,
                flags: TEST_LIVE_FRAMES,
                batch: 1,
                ..RunOptions::default()
            };
            for _ in 0..count.min(LATENCIES) {
                let next = Instant::now() + gap;
                run_program(program, &frame[..self.frames.bytes()], &mut [], options)?;
                while Instant::now() < next {
                    std::hint::spin_loop();
                }
            }
            Ok(())
        })?;
        std::thread::sleep(Duration::from_millis(20));
        Ok(self.take_samples())
    }
}
