// SPDX-License-Identifier: Apache-2.0
//! `xdp-gateway`: the XDP program as attached, driven with packets from memory by BPF_PROG_TEST_RUN.
//!
//! A driver program copies the next of a million packets over the frame and tail-calls the program under test, so that each run
//! has another tenant and destination. A program that does nothing measures the driver, whose time is subtracted from both sides of the ratio
//! to the bare program. Times are CPU time of the calling thread.
use crate::cached::{self, Drive, Nodes, Turns};
use crate::memory::MissCost;
use crate::setup::BpfNode;
use crate::workload::{Workload, FRAME, PACKET_SLOT};
use crate::{cpu, report, stats, Context, Error, Report};
use abi::{bucket_of, hash1, KEY_VALID, VM4_ADDR_SHIFT, VM4_VNI_SHIFT};
use std::os::fd::{AsRawFd, BorrowedFd};
use xdp::object::{map_update, run_program, Mapping, Object, RunOptions};

static DRIVER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/driver.o"));

/// The verdict of a frame that leaves by the port it came from.
pub const XDP_TX: u32 = 3;
/// Packets in the driver's memory.
pub const PACKETS: usize = 1 << 20;
/// Words of `struct drive_state`.
const STATE_WORDS: usize = 9;
const SALT: u64 = 0x7475_6e6e_7921;

/// The driver, with its packets, and the programs to compare with.
pub struct Driver {
    object: Object,
    state: Mapping,
    packets: Mapping,
}

impl Driver {
    /// Loads it with tables of comparison that hold every key of these packets in `bytes` bytes.
    pub fn new(packets: &[u8], bytes: u64) -> Result<Driver, Error> {
        let buckets = (bytes / 64) as u32;
        let keys = keys(packets);
        let driver = Driver::with(packets, &[("bare_table", buckets), ("kernel_table", keys.len() as u32)])?;
        driver.set(3, u64::from(buckets));
        driver.set(4, SALT);
        driver.fill_bare(&keys, buckets)?;
        let kernel = driver.object.map("kernel_table")?;
        for key in &keys {
            map_update(kernel, &key.to_ne_bytes(), &key.to_ne_bytes())?;
        }
        Ok(driver)
    }

    /// Loads it with packets that nothing is compared with.
    pub fn alone(packets: &[u8]) -> Result<Driver, Error> {
        Driver::with(packets, &[])
    }

    /// Loads it for the program `complex`, with tables of `lines` cache lines.
    pub fn complex(packets: &[u8], lines: u32) -> Result<Driver, Error> {
        Driver::with(packets, &[("lookup_table", lines), ("state_table", lines)])
    }

    /// What `complex` does: lookups among `buckets` lines, branches, lines of state changed.
    pub fn make_complex(&self, buckets: u32, parts: [u32; 3]) {
        self.set(3, u64::from(buckets));
        self.set(4, SALT);
        for (word, count) in (6..).zip(parts) {
            self.set(word, u64::from(count));
        }
    }

    fn with(packets: &[u8], sizes: &[(&str, u32)]) -> Result<Driver, Error> {
        let object = Object::load("tunny_driver", DRIVER, &[], sizes)?;
        let state = Mapping::new(object.map("drive_states")?, 4096)?;
        let memory = Mapping::new(object.map("packets")?, PACKETS * PACKET_SLOT)?;
        let driver = Driver { object, state, packets: memory };
        driver.load(packets);
        Ok(driver)
    }

    fn set(&self, word: usize, value: u64) {
        assert!(word < STATE_WORDS);
        // SAFETY: the state is mapped and longer than STATE_WORDS words; no program runs meanwhile.
        unsafe { self.state.as_ptr().cast::<u64>().add(word).write_volatile(value) };
    }

    fn get(&self, word: usize) -> u64 {
        assert!(word < STATE_WORDS);
        // SAFETY: as above.
        unsafe { self.state.as_ptr().cast::<u64>().add(word).read_volatile() }
    }

    /// Replaces the packets (a power of two of them, at most [`PACKETS`]).
    pub fn load(&self, packets: &[u8]) {
        let count = (packets.len() / PACKET_SLOT).min(PACKETS);
        assert!(count.is_power_of_two());
        // SAFETY: the mapping holds PACKETS slots, and no program runs meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(packets.as_ptr(), self.packets.as_ptr(), count * PACKET_SLOT) };
        self.set(0, 0);
        self.set(1, count as u64);
    }

    /// One cache-line bucket a key, at the place where the hash says; a key that finds its bucket full is left out (and is
    /// counted as a miss when it is looked up: there are next to none).
    fn fill_bare(&self, keys: &[u64], buckets: u32) -> Result<(), Error> {
        let table = Mapping::new(self.object.map("bare_table")?, buckets as usize * 64)?;
        for key in keys {
            let at = bucket_of(hash1(*key, SALT), buckets) as usize * 8;
            // SAFETY: a bucket is 8 words and `at` names one inside the mapping; no program runs meanwhile.
            let bucket = unsafe { std::slice::from_raw_parts_mut(table.as_ptr().cast::<u64>().add(at), 8) };
            if let Some(slot) = bucket[..3].iter_mut().find(|k| **k == 0) {
                *slot = *key;
            }
        }
        Ok(())
    }

    /// One of the programs of comparison.
    pub fn program(&self, name: &str) -> Result<BorrowedFd<'_>, Error> {
        Ok(self.object.program(name)?)
    }

    /// ns a packet of CPU time for `runs` packets through the program; every one must be sent on.
    pub fn time(&self, program: BorrowedFd, runs: u32) -> Result<f64, Error> {
        self.time_of(program, runs, &[XDP_TX])
    }

    /// The same of a program whose last packet ends in one of these verdicts.
    pub fn time_of(&self, program: BorrowedFd, runs: u32, verdicts: &[u32]) -> Result<f64, Error> {
        // What is handed over leaves its metadata in front of the frames behind it.
        let whole = |length| length == FRAME || (verdicts.len() > 1 && length > FRAME);
        self.run("drive", program, FRAME, runs, verdicts, whole)
    }

    /// The same of frames of `bytes` bytes, which leave with `after` bytes.
    pub fn time_sized(
        &self,
        program: BorrowedFd,
        runs: u32,
        (bytes, after): (usize, usize),
        verdicts: &[u32],
    ) -> Result<f64, Error> {
        self.set(5, bytes as u64);
        self.run("drive_sized", program, bytes, runs, verdicts, |length| length == after)
    }

    /// Runs a program behind one of the drivers: ns a packet. `whole`: whether the last frame left with as many bytes as it should.
    fn run(
        &self,
        driver: &str,
        program: BorrowedFd,
        bytes: usize,
        runs: u32,
        verdicts: &[u32],
        whole: impl Fn(usize) -> bool,
    ) -> Result<f64, Error> {
        let fd = program.as_raw_fd() as u32;
        map_update(self.object.map("under_test")?, &0u32.to_ne_bytes(), &fd.to_ne_bytes())?;
        self.set(2, 0);
        let frame = [0u8; FRAME];
        let mut out = [0u8; 512];
        let drive = self.object.program(driver)?;
        let time = cpu::thread_time();
        let (verdict, _, length) =
            run_program(drive, &frame[..bytes], &mut out, RunOptions { repeat: runs, ..RunOptions::default() })?;
        let time = cpu::thread_time() - time;
        let misses = self.get(2);
        // The last packet may be one of those that the bare program misses.
        let sent = verdicts.contains(&verdict) || (verdict == 0 && misses > 0);
        if !sent || !whole(length) || misses > u64::from(runs) / 25 {
            let why =
                format!("verdict {verdict} instead of {verdicts:?}, {length} bytes, {misses} misses in {runs} runs");
            return Err(Error::Failed { what: "a program under test".into(), why });
        }
        Ok(time as f64 / f64::from(runs))
    }
}

/// The distinct (VNI, destination) keys of packets.
fn keys(packets: &[u8]) -> Vec<u64> {
    let word =
        |slot: &[u8], at: usize| u64::from(u32::from_be_bytes([slot[at], slot[at + 1], slot[at + 2], slot[at + 3]]));
    let mut keys: Vec<u64> = packets
        .chunks_exact(PACKET_SLOT)
        .map(|s| (word(s, 46) >> 8) << VM4_VNI_SHIFT | word(s, 80) << VM4_ADDR_SHIFT | KEY_VALID)
        .collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// The kernel's tag of a program: the same code has the same tag, however it is run.
pub fn tag(program: BorrowedFd) -> String {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", program.as_raw_fd())).unwrap_or_default();
    info.lines().find_map(|l| l.strip_prefix("prog_tag:")).unwrap_or("?").trim().to_string()
}

/// Flows of the headline.
const FLOWS: usize = PACKETS;

/// `xdp-gateway`.
pub fn xdp_gateway(context: &Context) -> Result<Report, Error> {
    context.say("xdp-gateway: 1M routes and 1M VMs in 100k VPCs");
    let workload = Workload::region(100_000, 10, 4096, context.seed);
    let lines = cached::lines_for(FLOWS);
    let nodes = [BpfNode::cached(&workload, lines)?, BpfNode::new(&workload)?];
    let nodes = Nodes { on: &nodes[0], off: &nodes[1] };
    let mixed = workload.packets(FLOWS, 20, context.seed);
    context.say("xdp-gateway: tables of comparison");
    let driver = Driver::new(&mixed, FLOWS as u64 * 64)?;
    cpu::pin(0, cpu::count() - 1).map_err(Error::io("pinning the driver"))?;
    let uniform = nodes.turns(context, "xdp-gateway", (&driver, PACKETS), &driver)?;
    let mut report = cached::report(
        "xdp-gateway",
        &uniform,
        1.4,
        "bare parse and one lookup in 64 bytes a flow; 1M packets of as many flows, tenants and destinations uniform, 20% to peers",
        lines,
    );
    let hash: Result<Vec<f64>, Error> = (0..context.samples)
        .map(|_| Ok(Drive::time(&driver, driver.program("kernel_hash")?, PACKETS)? - driver.idle(PACKETS)?))
        .collect();
    report
        .detail("ratio_to_kernel_hash", report::round(stats::median(&uniform.on) / stats::median(&hash?)))
        .detail("memory_dependent_read_ns", report::round(MissCost::measure(FLOWS as u64 * 64).dependent_ns))
        .detail("program_tag", tag(nodes.on.engine.program()))
        .detail("table_bytes", nodes.on.table_bytes());
    let of_flows = |order: &[u32]| {
        cached::packets(order, &mut |flow, slot| {
            slot.copy_from_slice(&mixed[flow as usize * PACKET_SLOT..][..PACKET_SLOT]);
        })
    };
    for (what, mix, flows) in cached::mixes(FLOWS) {
        driver.load(&of_flows(&cached::order(mix, flows, context.seed)));
        let drive = (&driver as &dyn Drive, cached::packets_for(flows));
        cached::add(&mut report, what, &nodes.turns(context, &format!("xdp-gateway, {what}"), drive, &driver)?);
    }
    let news = never_again(context, &workload, &nodes, &driver)?;
    cached::add(&mut report, "new", &news);
    report.detail("ratio_10m", report::round(stats::median(&ten_million(context, &workload, &nodes)?)));
    Ok(report)
}

/// Packets of flows that never come again.
fn never_again(context: &Context, workload: &Workload, nodes: &Nodes<'_>, driver: &Driver) -> Result<Turns, Error> {
    let mut turns = Turns::default();
    let before = nodes.on.stats().flow_hits;
    for n in 0..context.samples as u64 {
        driver.load(&workload.packets(PACKETS, 20, context.seed + 1000 + n));
        let idle = driver.idle(PACKETS)?;
        turns.on.push(Drive::time(driver, nodes.on.engine.program(), PACKETS)? - idle);
        turns.off.push(Drive::time(driver, nodes.off.engine.program(), PACKETS)? - idle);
    }
    let total = context.samples as f64 * PACKETS as f64;
    turns.hit_percent = (nodes.on.stats().flow_hits - before) as f64 * 100.0 / total;
    Ok(turns)
}

/// With the cache ÷ bare, for ten times as many flows: ten sets of packets one after another, round after round.
fn ten_million(context: &Context, workload: &Workload, nodes: &Nodes<'_>) -> Result<Vec<f64>, Error> {
    const SETS: u64 = 10;
    const ROUNDS: usize = 3;
    let sets: Vec<Vec<u8>> = (0..SETS).map(|n| workload.packets(PACKETS, 20, context.seed + 2000 + n)).collect();
    let driver = Driver::new(&sets[0], SETS * PACKETS as u64 * 64)?;
    let (mut on, mut bare) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        for set in &sets {
            context.say(&format!("xdp-gateway: 10M flows, round {round} of {ROUNDS}"));
            driver.load(set);
            on.push(Drive::time(&driver, nodes.on.engine.program(), PACKETS)? - driver.idle(PACKETS)?);
        }
    }
    // Bare knows the keys of the first set.
    driver.load(&sets[0]);
    for _ in 0..context.samples {
        bare.push(Drive::time(&driver, driver.program("bare")?, PACKETS)? - driver.idle(PACKETS)?);
    }
    let bare = stats::median(&bare);
    Ok(on[(ROUNDS - 1) * SETS as usize..].iter().map(|ns| ns / bare).collect())
}
