// SPDX-License-Identifier: Apache-2.0
//! The Rust path as an [`Engine`], on tables in plain memory.

use crate::case::Counter;
use crate::elsewhere::Elsewhere;
use crate::load::Loader;
use crate::region::Region;
use crate::runner::START;
use crate::runner::{End, Engine, Seen};
use crate::sessions::{self, Memories};
use abi::{IfIndex, PuntMeta, Stats, Vni};
use conntrack_compact::{Backing, HeapSlots, Shared};
use gateway::{Batch, Connections, FlowCache, Frame, Gateway, Generated, Verdict, HEADROOM};
use std::fmt::Write;
use std::sync::Arc;
use tables::{HeapMemory, Tables, WriterOptions};

/// Sends one frame through the Rust path; `meta` is what the fast path put in front of it, if it comes from there.
pub fn process(gateway: &mut Gateway, frame: &[u8], port: u32, meta: Option<&PuntMeta>, now_ns: u64) -> Seen {
    let mut buffer = vec![0xa5; HEADROOM + frame.len()];
    buffer[HEADROOM..].copy_from_slice(frame);
    let mut batch = Batch::new();
    let input = match meta {
        Some(meta) => Frame::punted(&mut buffer, HEADROOM, frame.len(), meta),
        None => Frame::new(&mut buffer, HEADROOM, frame.len(), IfIndex(port)),
    };
    // An empty batch takes a frame.
    let _ = batch.push(input);
    gateway.process(&mut batch, now_ns);
    if batch.frames()[0].verdict == Verdict::Wait {
        return wait(gateway, now_ns);
    }
    seen(&batch)
}

/// The packet that waits goes on when the agent on another host has answered.
fn wait(gateway: &mut Gateway, now_ns: u64) -> Seen {
    let begun = std::time::Instant::now();
    loop {
        assert!(begun.elapsed().as_secs() < 20, "the agent on another host did not answer");
        let mut waited = gateway.answered();
        let Some(waiting) = waited.first_mut() else {
            std::thread::yield_now();
            continue;
        };
        let (answer, mut batch) = (waiting.answer(), Batch::new());
        let _ = batch.push(waiting.frame());
        gateway.resume(&mut batch, &answer.into_iter().collect::<Vec<_>>(), now_ns);
        return seen(&batch);
    }
}

/// What became of the one frame of a batch.
fn seen(batch: &Batch<'_>) -> Seen {
    let done = &batch.frames()[0];
    let end = match done.verdict {
        Verdict::Forward { ifindex } => End::Forward(Some(ifindex.0), done.data().to_vec()),
        Verdict::Answer { ifindex } => End::Answer(Some(ifindex.0), done.data().to_vec()),
        Verdict::Pass | Verdict::Control { .. } | Verdict::Metadata => End::Pass(done.data().to_vec()),
        Verdict::Drop(reason) => End::Drop(reason),
        Verdict::Wait => panic!("a packet waits twice"),
    };
    let generated = batch.output.generated.iter().map(|g| (g.ifindex.0, g.data.clone())).collect();
    let sent = matches!(done.verdict, Verdict::Forward { .. } | Verdict::Answer { .. }).then_some(done.classes);
    let (copies, others): (Vec<&Generated>, Vec<&Generated>) = batch.output.generated.iter().partition(|g| g.copy);
    assert!(copies.iter().all(|g| !g.classes.wait()), "a copy waits");
    let first = sent.or(others.first().map(|g| g.classes)).unwrap_or_default();
    assert!(others.iter().all(|g| g.classes == first), "what is sent waits in different classes");
    Seen { end, generated, punt: None, classes: first }
}

/// The Rust path alone.
pub struct UserEngine {
    state: Option<(Loader, Gateway)>,
    nat: Option<Arc<Connections>>,
    states: Arc<dyn Backing>,
    /// The agent of the state table is to be on another host; and there it is.
    elsewhere: (bool, Option<Elsewhere>),
    /// Lines of its flow cache; 0: it has none.
    flow_lines: u32,
}

impl UserEngine {
    /// One whose state table has its agent on another host.
    pub fn with_agent_elsewhere() -> UserEngine {
        UserEngine { elsewhere: (true, None), ..UserEngine::default() }
    }

    /// One with a flow cache of so many lines.
    pub fn with_flow_cache(flow_lines: u32) -> UserEngine {
        UserEngine { flow_lines, ..UserEngine::default() }
    }

    /// Finishes what changes of the tables left for later, as a node does when it is idle: only what is there to stay is noted in a flow cache.
    pub fn settle(&mut self) {
        if let Some((loader, _)) = &mut self.state {
            loader.writer().settle();
        }
    }

    /// Packets that its flow cache sent on since it was started, and flows that it noted.
    pub fn flow_counts(&self) -> (u64, u64) {
        let stats = self.state.as_ref().map(|(_, gateway)| gateway.tables().stats(gateway.slot()).read());
        stats.map_or((0, 0), |s| (s.flow_hits, s.flow_fills))
    }

    /// Where its state table lies.
    pub fn backing(&self) -> &dyn Backing {
        &*self.states
    }

    /// Its sessions and state table, once started.
    pub fn nat(&self) -> Option<&Arc<Connections>> {
        self.nat.as_ref()
    }
}

impl Default for UserEngine {
    fn default() -> UserEngine {
        UserEngine {
            state: None,
            nat: None,
            states: Arc::new(HeapSlots::default()),
            elsewhere: (false, None),
            flow_lines: 0,
        }
    }
}

const NOT_STARTED: &str = "the engine was not started";

impl Engine for UserEngine {
    fn name(&self) -> &'static str {
        "user"
    }

    fn punts(&self) -> bool {
        false
    }

    fn start(&mut self, region: &Region) -> Result<(), String> {
        let memory = Arc::new(HeapMemory::new().map_err(|e| e.to_string())?);
        let loader = Loader::new(memory, WriterOptions::default(), region)?;
        let slot = loader.tables().slots().1;
        let memory = Arc::new(conntrack::HeapMemory::new().map_err(|e| e.to_string())?);
        let memories = Memories { sessions: memory, states: Arc::new(HeapSlots::default()) };
        let nat = sessions::start(&memories, region, START)?;
        if self.elsewhere.0 {
            self.elsewhere.1 = sessions::put_elsewhere(&nat, &memories.states, region, START)?;
        }
        let mut gateway = Gateway::with_connections(loader.tables(), slot, nat.clone());
        if self.flow_lines > 0 {
            // The same places each time: a seed repeats a run.
            let cache = FlowCache::new(self.flow_lines, 0x666c_6f77).map_err(|e| e.to_string())?;
            gateway = gateway.with_flow_cache(cache);
        }
        (self.state, self.nat, self.states) = (Some((loader, gateway)), Some(nat), memories.states);
        if self.flow_lines > 0 {
            self.settle();
        }
        Ok(())
    }

    fn change(&mut self, region: &Region) -> Result<(), String> {
        let loader = &mut self.state.as_mut().ok_or(NOT_STARTED)?.0;
        let nat = self.nat.as_ref().ok_or(NOT_STARTED)?;
        sessions::change(nat, &*self.states, Some(loader.region()), region)?;
        loader.change(region)?;
        sessions::sweep(nat, &loader.tables());
        Ok(())
    }

    fn tick(&mut self, now_ns: u64) {
        if let Some(elsewhere) = &self.elsewhere.1 {
            elsewhere.set_time(now_ns);
            elsewhere.expire();
        }
        if let Some(nat) = &self.nat {
            sessions::tick(nat, now_ns);
        }
    }

    fn migrate(&mut self, now_ns: u64) {
        if let Some(nat) = &self.nat {
            sessions::migrate(nat, now_ns);
        }
    }

    fn run(&mut self, frame: &[u8], port: u32, now_ns: u64) -> Result<Seen, String> {
        let (_, gateway) = self.state.as_mut().ok_or(NOT_STARTED)?;
        if let Some(elsewhere) = &self.elsewhere.1 {
            elsewhere.set_time(now_ns);
        }
        Ok(process(gateway, frame, port, None, now_ns))
    }

    fn count(&self, counter: &Counter) -> Result<Vec<u64>, String> {
        let (loader, gateway) = self.state.as_ref().ok_or(NOT_STARTED)?;
        count(gateway.tables(), loader.region(), counter)
    }

    fn conserved(&self) -> Result<(), String> {
        let (_, gateway) = self.state.as_ref().ok_or(NOT_STARTED)?;
        conserved(&gateway.tables().stats(gateway.slot()).read(), false)
    }

    fn split(&mut self, _bytes: u32) -> bool {
        // It sees frames as a whole, so where they are split makes no difference.
        true
    }

    fn reader(&self) -> Option<&Tables> {
        self.state.as_ref().map(|(_, gateway)| gateway.tables())
    }

    fn states(&self) -> Option<Arc<Shared>> {
        self.nat.as_ref().and_then(|nat| nat.states().clone())
    }

    fn dump(&self) -> String {
        self.state.as_ref().map_or(String::new(), |(loader, _)| dump(&loader.tables(), loader.region()))
    }
}

/// The conservation law over the statistics of one engine. What a fast path hands over is its outcome here; the software
/// path takes it in and ends it.
pub fn conserved(s: &Stats, fast_path: bool) -> Result<(), String> {
    let handed_over = if fast_path { s.punted } else { 0 };
    let sum = s.forwarded + s.answered + s.passed + s.dropped + handed_over;
    let (dropped, punted): (u64, u64) = (s.drops.iter().sum(), s.punts.iter().sum());
    if s.rx + s.generated != sum {
        return Err(format!(
            "the conservation law is broken: in {} + generated {} is not forwarded {} + answered {} + passed {} + dropped {} \
             + handed over {handed_over}",
            s.rx, s.generated, s.forwarded, s.answered, s.passed, s.dropped
        ));
    }
    if dropped != s.dropped || fast_path && punted != s.punted {
        return Err(format!(
            "the reasons do not add up: dropped {}, but by reason {dropped}; handed over {handed_over}, but by reason {punted}",
            s.dropped
        ));
    }
    Ok(())
}

/// What was added to statistics.
pub fn stats_between(before: &Stats, after: &Stats) -> Stats {
    let mut d = *after;
    macro_rules! sub {
        ($($f:ident)*) => { $(d.$f = after.$f.wrapping_sub(before.$f);)* };
    }
    sub!(rx rx_bytes generated forwarded forwarded_bytes answered passed dropped punted drop_overflow);
    d.drops = std::array::from_fn(|i| after.drops[i].wrapping_sub(before.drops[i]));
    d.punts = std::array::from_fn(|i| after.punts[i].wrapping_sub(before.punts[i]));
    d
}

/// Reads a counter from table memory.
pub fn count(tables: &Tables, region: &Region, counter: &Counter) -> Result<Vec<u64>, String> {
    tables.memory().gather();
    let _inside = tables.enter();
    let tenant = |vni: u32| tables.tenant(Vni(vni)).ok_or(format!("VPC {vni} is not in the tables"));
    let vm = |vni: u32, mac: u64| -> Result<tables::VmEntry, String> {
        let tenant = tenant(vni)?;
        let spec = region.vpc(vni).and_then(|v| v.vms.iter().find(|m| m.mac.number() == mac));
        let spec = spec.ok_or("the VM is not in the region")?;
        let v4 = spec.v4.and_then(|a| tables.vm4(Vni(vni), a.to_bits(), tenant.generation()));
        let halves = |a: u128| ((a >> 64) as u64, a as u64);
        v4.or_else(|| spec.v6.and_then(|a| tables.vm6(Vni(vni), halves(a.to_bits()), tenant.generation())))
            .ok_or("the VM is not in the tables".to_string())
    };
    Ok(match *counter {
        Counter::Vpc(vni) => {
            let c = tables.tenant_count(&tenant(vni)?);
            vec![c.packets, c.bytes]
        }
        Counter::Vm(vni, mac) => {
            let c = tables.vm_count(vm(vni, mac)?.vm);
            vec![c.packets, c.bytes]
        }
        Counter::Drop(vni, reason) => vec![tables.drop_count(Vni(vni), reason)],
        Counter::VpcMeter(vni) => tables.meter_colors(tables.tenant_meter(&tenant(vni)?)).to_vec(),
        Counter::VmMeter(vni, mac) => tables.meter_colors(tables.vm_meter(vm(vni, mac)?.vm)).to_vec(),
    })
}

/// What a reader finds in memory for everything that the region names.
pub fn dump(tables: &Tables, region: &Region) -> String {
    let _inside = tables.enter();
    let mut s = String::new();
    let halves = |a: u128| ((a >> 64) as u64, a as u64);
    let _ =
        writeln!(s, "    options {:#x}, vtep4 {:#x}, commits {}", tables.options(), tables.vtep4(), tables.commits());
    for v in &region.vpcs {
        let Some(tenant) = tables.tenant(Vni(v.vni)) else {
            let _ = writeln!(s, "    vpc {} ({}): MISSING", v.name, v.vni);
            continue;
        };
        let (r4, r6, g) = (tenant.root4(), tenant.root6(), tenant.generation());
        let _ = writeln!(s, "    vpc {} ({}): routes {r4:#x} {r6:#x}, generation {g}", v.name, v.vni);
        for m in &v.vms {
            let four = m.v4.map(|a| tables.vm4(Vni(v.vni), a.to_bits(), g).is_some());
            let six = m.v6.map(|a| tables.vm6(Vni(v.vni), halves(a.to_bits()), g).is_some());
            let _ = writeln!(s, "      vm {}: IPv4 found {four:?}, IPv6 found {six:?}", m.name);
        }
    }
    for n in &region.ncs {
        let id = match n.addr {
            std::net::IpAddr::V4(a) => tables.nc_by_addr4(a.to_bits()),
            std::net::IpAddr::V6(a) => tables.nc_by_addr6(halves(a.to_bits())),
        };
        let _ = writeln!(s, "    nc {} {}: {:?}", n.name, n.addr, id.and_then(|id| tables.nc(id)));
    }
    s
}
