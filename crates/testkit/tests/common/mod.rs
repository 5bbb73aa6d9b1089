// SPDX-License-Identifier: Apache-2.0
//! The XDP program as an engine: BPF_PROG_TEST_RUN, the software path behind it on the same tables.
//!
//! The thread moves into a network namespace of its own, in which `lo` is port 1 and veth devices are the others, and
//! stays on one CPU, so that one statistics slot tells what a run counted.
#![allow(dead_code)]

pub mod again;
pub mod talk;

use abi::{DropReason, IfIndex, PuntMeta, PuntReason, Stats, PUNT_MAGIC};
use conntrack_compact::Shared;
use gateway::{Connections, Gateway};
use nix::sched::{sched_getcpu, sched_setaffinity, unshare, CloneFlags, CpuSet};
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;
use tables::{Tables, WriterOptions};
use testkit::case::Counter;
use testkit::load::Loader;
use testkit::print;
use testkit::region::{Port, Region};
use testkit::runner::{describe, End, Engine, Seen, START};
use testkit::sessions::{self, Memories};
use testkit::user::{self, conserved, process, stats_between};
use xdp::object::{run_program, run_tc_program, RunOptions};
use xdp::XdpEngine;

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;
const XDP_REDIRECT: u32 = 4;
/// The tc program's words for these.
const TC_PASS: u32 = u32::MAX;
const TC_DROP: u32 = 2;
const TC_REDIRECT: u32 = 7;
const META: usize = size_of::<PuntMeta>();

/// What the program alone did with a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fast {
    /// Finished.
    End(End),
    /// Handed over.
    Punt(PuntReason, Vec<u8>),
}

/// The XDP program with the software path behind it.
pub struct XdpRunner {
    engine: XdpEngine,
    /// It is the tc program.
    tc: bool,
    cpu: u32,
    ports: HashSet<u32>,
    sockets: Vec<OwnedFd>,
    state: Option<State>,
    out: Vec<u8>,
    /// Bytes of a frame in its first buffer; 0: all that fit.
    pub linear: u32,
    memories: Memories,
    /// By so much the case's clock is ahead of the kernel's, ns.
    ahead: u64,
    /// The kernel's time at which the program handed the last packet over.
    pub handed: Option<u64>,
}

struct State {
    loader: Loader,
    gateway: Gateway,
    region: Region,
    nat: Arc<Connections>,
    fast_before: Stats,
    slow_before: Stats,
    reader: Tables,
}

impl XdpRunner {
    /// Loads the program in a namespace of this thread's own. None without root; the test is skipped.
    #[track_caller]
    pub fn new() -> Option<XdpRunner> {
        XdpRunner::with_flow_cache(0)
    }

    /// The same with a flow cache of so many lines.
    #[track_caller]
    pub fn with_flow_cache(flow_lines: u32) -> Option<XdpRunner> {
        // Without root there is nothing to test; as root every failure is one.
        if !skip::have_root("to load BPF") {
            return None;
        }
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace of one's own");
        ip(&["link", "set", "lo", "up"]);
        let cpu = sched_getcpu().unwrap_or(0);
        let mut set = CpuSet::new();
        set.set(cpu).unwrap();
        sched_setaffinity(nix::unistd::Pid::from_raw(0), &set).unwrap();
        // TUNNY_OBJECT: another compiled `gateway.bpf.c` than the one built in.
        let object = std::env::var("TUNNY_OBJECT")
            .ok()
            .map(|path| std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}")));
        let options = xdp::Options { flow_lines, flow_always: true, object, ..xdp::Options::default() };
        let engine = XdpEngine::open_or_create(&options).unwrap_or_else(|e| panic!("{e}"));
        let (ports, sockets, out) = (HashSet::new(), Vec::new(), vec![0; 65_536]);
        let sessions = engine.session_memory().unwrap_or_else(|e| panic!("{e}"));
        let states = engine.states().unwrap_or_else(|e| panic!("{e}"));
        let memories = Memories { sessions, states };
        Some(XdpRunner {
            engine,
            tc: false,
            cpu: cpu as u32,
            ports,
            sockets,
            state: None,
            out,
            linear: 0,
            memories,
            ahead: 0,
            handed: None,
        })
    }

    /// The tc program instead.
    #[track_caller]
    pub fn on_tc() -> Option<XdpRunner> {
        let mut runner = XdpRunner::new()?;
        runner.tc = true;
        // Where it is does not matter: nothing is really sent.
        runner.engine.set_punt_port(IfIndex(1)).unwrap_or_else(|e| panic!("{e}"));
        runner.engine.switch_program().unwrap_or_else(|e| panic!("{e}"));
        Some(runner)
    }

    /// Whether it is the tc program.
    pub fn is_tc(&self) -> bool {
        self.tc
    }

    /// Whether the kernel can split the frame of a test run (Linux 6.18); if not, that part of the test is skipped.
    #[track_caller]
    pub fn can_split(&self) -> bool {
        let options = RunOptions { repeat: 1, ifindex: IfIndex(1), linear: 14, ..RunOptions::default() };
        let can = run_program(self.engine.program(), &[0; 60], &mut [0; 256], options).is_ok();
        if !can {
            skip::test(
                "the part with frames in two buffers: the kernel cannot split the frame of a test run",
                "use Linux 6.18 or newer",
            );
        }
        can
    }

    fn prepare_port(&mut self, port: &Port) -> Result<(), String> {
        let (ifindex, listener) = (port.ifindex, port.listener);
        if port.absent || !self.ports.insert(ifindex) {
            return Ok(());
        }
        // A new namespace may hold fallback tunnels; any device will do, for nothing is really sent.
        if ifindex > 1 {
            let (name, peer, far) = (format!("tnyc{ifindex}"), format!("tnyd{ifindex}"), (1000 + ifindex).to_string());
            let ends = ["type", "veth", "peer", "name", &peer, "index", &far];
            ip(&[&["link", "add", &name, "index", &ifindex.to_string()], &ends[..]].concat());
        }
        if listener {
            let socket = self.engine.prepare_test(IfIndex(ifindex)).map_err(|e| e.to_string())?;
            self.sockets.push(socket);
        } else {
            self.engine.add_port(IfIndex(ifindex)).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// Packets that the flow cache sent on so far, and packets of which it has noted something.
    pub fn flow_counts(&self) -> (u64, u64) {
        let stats = self.tables().stats(self.cpu).read();
        (stats.flow_hits, stats.flow_fills)
    }

    /// Its sessions and state table, once started.
    pub fn nat(&self) -> Option<&Arc<Connections>> {
        self.state.as_ref().map(|s| &s.nat)
    }

    fn state(&mut self) -> &mut State {
        self.state.as_mut().expect("the engine was started")
    }

    fn tables(&self) -> &Tables {
        &self.state.as_ref().expect("the engine was started").reader
    }

    /// Runs the program alone. An error is a broken promise: two outcomes, a changed punted frame, wrong metadata.
    pub fn fast(&mut self, frame: &[u8], port: u32) -> Result<(Fast, Option<PuntMeta>), String> {
        let cpu = self.cpu;
        let before = self.tables().stats(cpu).read();
        let options = RunOptions { repeat: 1, ifindex: IfIndex(port), linear: self.linear, ..RunOptions::default() };
        let run = match self.tc {
            false => run_program(self.engine.program(), frame, &mut self.out, options),
            true => {
                let program = self.engine.switch_program().map_err(|e| e.to_string())?;
                let run = run_tc_program(program, frame, &mut self.out, IfIndex(port), 1);
                run.map(|(code, ns, len)| (in_xdp(code), ns, len))
            }
        };
        let (code, _, len) = run.map_err(|e| format!("{e} (frame of {} bytes)", frame.len()))?;
        let after = self.tables().stats(cpu).read();
        let d = stats_between(&before, &after);
        conserved(&d, true)?;
        // A first buffer of a few bytes is beyond what drivers do: its length may then stand for the frame's.
        let cut = self.linear != 0 && (self.linear as usize) < frame.len() && d.rx_bytes == u64::from(self.linear);
        if d.rx != 1 || d.rx_bytes != frame.len() as u64 && !cut {
            return Err(format!("one frame of {} bytes was counted as {} of {}", frame.len(), d.rx, d.rx_bytes));
        }
        let bytes = self.out[..len].to_vec();
        let ports = &self.state.as_ref().expect("started").region.ports;
        let region = &self.state.as_ref().expect("started").region;
        // A frame for a CE, or for a VM of this node, has the VPC's address as its source.
        let line = |b: &[u8]| region.circuit_of(b).map(|c| c.port).or_else(|| region.vm_port_of(b));
        let by =
            |b: &[u8]| ports.iter().find(|p| b.get(6..12) == Some(&p.mac.0[..])).map(|p| p.ifindex).or_else(|| line(b));
        let ended = |n: u64| n == 1;
        let fast = match code {
            XDP_DROP if ended(d.dropped) => {
                let number = d.drops.iter().position(|&n| n != 0).unwrap_or(0);
                let reason = DropReason::from_number(number as u8).ok_or(format!("reason number {number}"))?;
                Fast::End(End::Drop(reason))
            }
            XDP_PASS if ended(d.passed) => Fast::End(End::Pass(bytes)),
            XDP_TX | XDP_REDIRECT if ended(d.forwarded) => {
                let to = by(&bytes);
                if d.forwarded_bytes != bytes.len() as u64 {
                    return Err(format!("{} bytes were sent, {} counted", bytes.len(), d.forwarded_bytes));
                }
                if !self.tc && to.is_some() && (to == Some(port)) != (code == XDP_TX) {
                    return Err(format!("came by port {port}, is for port {to:?}, but the verdict is {code}"));
                }
                Fast::End(End::Forward(to, bytes))
            }
            XDP_REDIRECT if ended(d.punted) => {
                let number = d.punts.iter().position(|&n| n != 0).unwrap_or(0);
                let reason = PuntReason::from_number(number as u8).ok_or(format!("punt number {number}"))?;
                if self.tc {
                    return match bytes == *frame {
                        true => Ok((Fast::Punt(reason, bytes), None)),
                        false => Err("a punted frame was changed".into()),
                    };
                }
                let meta = read_meta(&bytes).ok_or("a punted frame without metadata")?;
                if bytes[META..] != *frame || meta.reason != number as u8 || meta.ifindex != port {
                    return Err(format!("a punted frame was changed, or its metadata is wrong: {meta:?}"));
                }
                return Ok((Fast::Punt(reason, bytes[META..].to_vec()), Some(meta)));
            }
            _ => {
                return Err(format!(
                    "verdict {code}, but counted forwarded {}, passed {}, dropped {}, punted {}",
                    d.forwarded, d.passed, d.dropped, d.punted
                ))
            }
        };
        Ok((fast, None))
    }
}

/// What the tc program answers, in XDP's words.
fn in_xdp(code: u32) -> u32 {
    match code {
        TC_PASS => XDP_PASS,
        TC_DROP => XDP_DROP,
        TC_REDIRECT => XDP_REDIRECT,
        other => 100 + other,
    }
}

/// The kernel's monotonic clock to a hundredth of a second (as long as the machine has not slept), which is enough for timeouts.
fn monotonic_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/uptime").expect("the clock");
    let seconds: f64 = text.split(' ').next().and_then(|s| s.parse().ok()).expect("seconds");
    (seconds * 1e9) as u64
}

fn ip(args: &[&str]) {
    let _ = Command::new("ip").args(args).stderr(std::process::Stdio::null()).status();
}

fn read_meta(b: &[u8]) -> Option<PuntMeta> {
    let word = |at: usize| b.get(at..at + 4).map(|w| u32::from_ne_bytes([w[0], w[1], w[2], w[3]]));
    let half = |at: usize| b.get(at..at + 2).map(|w| u16::from_ne_bytes([w[0], w[1]]));
    let meta = PuntMeta {
        magic: word(0)?,
        reason: *b.get(4)?,
        flags: *b.get(5)?,
        inner_offset: half(6)?,
        vni: word(8)?,
        ifindex: word(12)?,
        time: u64::from(word(16)?) | u64::from(word(20)?) << 32,
        tenant: word(24)?,
        share: word(28)?,
    };
    (meta.magic == PUNT_MAGIC).then_some(meta)
}

impl Engine for XdpRunner {
    fn name(&self) -> &'static str {
        if self.tc {
            "tc"
        } else {
            "xdp"
        }
    }

    fn punts(&self) -> bool {
        true
    }

    fn start(&mut self, region: &Region) -> Result<(), String> {
        for p in &region.ports {
            self.prepare_port(p)?;
        }
        self.state = None;
        let cpus = libbpf_rs::num_possible_cpus().map_err(|e| e.to_string())? as u32;
        let options = WriterOptions { xdp_slots: cpus, worker_slots: 2, ..WriterOptions::default() };
        let loader = Loader::new(self.engine.memory(), options, region)?;
        let (reader, slot) = (loader.tables(), cpus);
        let nat = sessions::start(&self.memories, region, monotonic_ns())?;
        let gateway = Gateway::with_connections(loader.tables(), slot, nat.clone());
        let (fast_before, slow_before) = (reader.stats(self.cpu).read(), reader.stats(slot).read());
        self.ahead = 0;
        self.state = Some(State { loader, gateway, nat, region: region.clone(), fast_before, slow_before, reader });
        Ok(())
    }

    fn change(&mut self, region: &Region) -> Result<(), String> {
        let state = self.state.as_mut().ok_or("not started")?;
        sessions::change(&state.nat, &*self.memories.states, Some(&state.region), region)?;
        state.loader.change(region)?;
        sessions::sweep(&state.nat, &state.reader);
        state.region = region.clone();
        for p in &region.ports {
            self.prepare_port(p)?;
        }
        Ok(())
    }

    fn tick(&mut self, now_ns: u64) {
        // The program has the kernel's clock; the software path's runs ahead of it.
        self.ahead = now_ns - START;
        sessions::tick(&self.state().nat, monotonic_ns() + now_ns - START);
    }

    fn migrate(&mut self, now_ns: u64) {
        sessions::migrate(&self.state().nat, now_ns);
    }

    fn run(&mut self, frame: &[u8], port: u32, _now_ns: u64) -> Result<Seen, String> {
        let (fast, meta) = self.fast(frame, port)?;
        self.handed = meta.as_ref().map(|m| m.time);
        match fast {
            Fast::End(end) => Ok(Seen { end, generated: Vec::new(), punt: None, classes: Default::default() }),
            Fast::Punt(reason, frame) => {
                let now = meta.as_ref().map_or_else(monotonic_ns, |meta| meta.time) + self.ahead;
                let seen = process(&mut self.state().gateway, &frame, port, meta.as_ref(), now);
                Ok(Seen { punt: Some(reason), ..seen })
            }
        }
    }

    fn count(&self, counter: &Counter) -> Result<Vec<u64>, String> {
        let state = self.state.as_ref().ok_or("not started")?;
        user::count(&state.reader, &state.region, counter)
    }

    fn conserved(&self) -> Result<(), String> {
        let s = self.state.as_ref().ok_or("not started")?;
        let fast = stats_between(&s.fast_before, &s.reader.stats(self.cpu).read());
        let slow = stats_between(&s.slow_before, &s.reader.stats(s.gateway.slot()).read());
        conserved(&fast, true)?;
        conserved(&slow, false)?;
        if slow.rx != fast.punted {
            return Err(format!("{} packets were handed over, {} were taken", fast.punted, slow.rx));
        }
        Ok(())
    }

    fn split(&mut self, bytes: u32) -> bool {
        if self.tc {
            return bytes == 0;
        }
        self.linear = bytes;
        bytes == 0 || self.can_split()
    }

    fn reader(&self) -> Option<&Tables> {
        self.state.as_ref().map(|s| &s.reader)
    }

    fn states(&self) -> Option<Arc<Shared>> {
        self.nat().and_then(|nat| nat.states().clone())
    }

    fn dump(&self) -> String {
        self.state.as_ref().map_or(String::new(), |s| user::dump(&s.reader, &s.region))
    }
}

/// What differs between the two engines, if anything does.
pub fn difference(fast: &Seen, slow: &Seen) -> Option<String> {
    match (&fast.end, &slow.end) {
        (End::Forward(to, a), End::Forward(at, b)) if a != b || to != at => {
            Some(format!("sent by port {at:?} (- Rust) and {to:?} (+ XDP):\n{}", print::diff(b, a)))
        }
        (a, b) if a != b || fast.generated != slow.generated => {
            Some(format!("XDP:{}\nthe Rust path:{}", describe(fast), describe(slow)))
        }
        _ => None,
    }
}
