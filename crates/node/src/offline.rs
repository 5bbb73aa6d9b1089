// SPDX-License-Identifier: Apache-2.0
//! A gateway without ports: configuration files into tables in plain memory, for `tunny replay` and for traces of
//! files. No privileges are needed. The underlay is made up: each NC is a direct neighbour with a MAC address of its own.

use crate::error::NodeError;
use crate::pcap::Packet;
use abi::IfIndex;
use compile::Compile;
use gateway::{Batch, Connections, Frame, Gateway, Verdict, HEADROOM};
use model::{Kind, Model, Object};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tables::{GroupId, HeapMemory, NexthopSpec, Writer, WriterOptions};

/// Port number that everything comes from and leaves by.
pub const PORT: IfIndex = IfIndex(1);
/// Packets read at once.
pub const AHEAD: usize = 256;
/// Time between two looks at what has expired, ns: that of a node.
const LOOK: u64 = 100_000_000;
/// Looks in a silence of the capture, at most about so many.
const LOOKS_MAX: u64 = 1024;
/// Sessions looked at in one go.
const LOOKED_AT: u32 = 4096;

/// A gateway in plain memory.
pub struct Offline {
    /// Its configuration.
    pub model: Model,
    /// Its tables.
    pub writer: Writer,
    /// Doubts about the configuration.
    pub warnings: Vec<String>,
}

impl Offline {
    /// Reads configuration files and fills tables with them. `mtu` is that of the made-up underlay.
    pub fn new(files: &[PathBuf], mtu: u16) -> Result<Self, NodeError> {
        let sentences =
            |errors: Vec<model::ConfigError>| NodeError::Config(errors.iter().map(|e| e.to_string()).collect());
        let files = crate::daemon::expand(files)?;
        let mut model = Model::new();
        let (docs, warnings) = model::validate_files(&files, &mut model).map_err(sentences)?;
        model.apply(&docs).map_err(sentences)?;
        let warnings = warnings.iter().map(|w| w.to_string()).collect();
        Ok(Self { warnings, ..Self::of(model, mtu)? })
    }

    /// Fills tables with a configuration.
    pub fn of(model: Model, mtu: u16) -> Result<Self, NodeError> {
        let memory = Arc::new(HeapMemory::new().map_err(NodeError::system("reserving table memory"))?);
        let options = WriterOptions { xdp_slots: 0, worker_slots: 1, ..Default::default() };
        let mut writer = Writer::create(memory, options).map_err(NodeError::system("building the tables"))?;
        writer.commit(&model.full_commit())?;
        crate::conntrack::enter(&mut writer, &model)?;
        crate::paths::enter(&mut writer, &model, &Default::default(), &Default::default(), None);
        writer.settle();
        let mut offline = Self { model, writer, warnings: Vec::new() };
        offline.make_up_underlay(mtu)?;
        Ok(offline)
    }

    fn make_up_underlay(&mut self, mtu: u16) -> Result<(), NodeError> {
        let mut ncs: Vec<IpAddr> = self
            .model
            .objects(Kind::Nc)
            .filter_map(|o| if let Object::Nc(nc) = o { Some(nc.address) } else { None })
            .collect();
        // Nodes at which edge ports are, and clusters that sessions are handed over to.
        let ends = self.model.tunnel_ends();
        let others: std::collections::BTreeSet<IpAddr> = ends.iter().filter(|a| !ncs.contains(a)).copied().collect();
        ncs.extend(others);
        let routers = self.model.gateway().map_or([None; 2], |g| g.via.each());
        let count = ncs.len() as u64;
        let own = self.model.gateway().map_or([None; 2], |g| g.vteps());
        for (number, nc) in ncs.into_iter().enumerate().filter(|(_, nc)| !own.contains(&Some(*nc))) {
            let group = self.neighbour(nc, number as u64, mtu)?;
            self.writer.bind_nc_group(nc, Some(group));
        }
        for (family, router) in routers.into_iter().enumerate() {
            if let Some(router) = router {
                let group = self.neighbour(router, count + family as u64, mtu)?;
                crate::conntrack::lead(&mut self.writer, family == 1, Some(group));
            }
        }
        Ok(())
    }

    /// A neighbour with a MAC address of its own, and the group that leads to it alone.
    fn neighbour(&mut self, addr: IpAddr, number: u64, mtu: u16) -> Result<GroupId, NodeError> {
        let full = || NodeError::system("table memory cannot grow");
        let (dmac, smac) = (Some(0x0200_0a00_0000 + number + 1), 0x0200_0b00_0001);
        let spec = NexthopSpec { addr, ifindex: PORT, dmac, smac, mtu };
        let hop = self.writer.set_nexthop(&spec).map_err(full())?;
        self.writer.set_group(None, &[hop]).map_err(full())
    }
}

/// What became of the packets of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Summary {
    /// Packets read.
    pub packets: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Packets written: forwarded, answered, generated.
    pub written: u64,
    /// Outcomes: `forwarded`, `answered`, `passed`, `dropped`, and `generated` besides. What was generated was forwarded, too.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Drops by reason.
    pub drops: BTreeMap<&'static str, u64>,
    /// Whether in + generated = forwarded + answered + passed + dropped, by these numbers and by the gateway's own counters.
    pub balanced: bool,
}

impl Summary {
    fn count(&mut self, outcome: &'static str) {
        *self.outcomes.entry(outcome).or_default() += 1;
    }

    fn outcome(&self, name: &str) -> u64 {
        self.outcomes.get(name).copied().unwrap_or(0)
    }

    /// Adds up, and agrees with what the gateway counted.
    fn agrees(&self, stats: &abi::Stats) -> bool {
        let ends = ["forwarded", "answered", "passed", "dropped"];
        let counted = [stats.forwarded, stats.answered, stats.passed, stats.dropped];
        let (read, generated) = (self.packets, self.outcome("generated"));
        stats.rx == read
            && stats.generated == generated
            && ends.map(|name| self.outcome(name)) == counted
            && read + generated == counted.iter().sum::<u64>()
            && self.drops.values().sum::<u64>() == stats.dropped
    }
}

/// The gateway and the clock of a capture.
struct Clock {
    gateway: Gateway,
    connections: Arc<Connections>,
    /// Time of the last packet. It never goes back: a capture may be out of order.
    now: u64,
    /// When a node would look next at what has expired.
    look: u64,
}

impl Clock {
    fn new(offline: &Offline, now: u64) -> Result<Self, NodeError> {
        let nat = crate::conntrack::offline(&offline.model, now)?;
        let gateway = Gateway::with_connections(offline.writer.tables(), 0, nat.clone());
        Ok(Self { gateway, connections: nat, now, look: now + LOOK })
    }

    /// Time goes on, and what is due meanwhile ends as it would have on a node.
    fn advance(&mut self, time: u64) {
        self.now = self.now.max(time);
        // After a long silence longer steps will do.
        let step = LOOK.max(self.now.saturating_sub(self.look) / LOOKS_MAX);
        while self.look <= self.now {
            while self.connections.expire(self.look, LOOKED_AT).more {}
            self.look += step;
        }
    }
}

/// Runs packets through the software path, each by itself at its own time: meters, limits and timeouts act as they would have, and an
/// answer finds what its question left. `ahead` packets are read at once, which makes no difference to what becomes of them. `write` gets
/// each packet that leaves.
pub fn replay(
    offline: &Offline,
    ahead: usize,
    mut next: impl FnMut() -> Result<Option<Packet>, NodeError>,
    mut write: impl FnMut(u64, &[u8]) -> Result<(), NodeError>,
    mut progress: impl FnMut(u64),
) -> Result<Summary, NodeError> {
    let mut clock: Option<Clock> = None;
    let mut summary = Summary::default();
    let mut read = Vec::with_capacity(ahead);
    let mut region = Vec::new();
    let mut batch: Batch<'static> = Batch::new();
    loop {
        while read.len() < ahead.max(1) {
            let Some(packet) = next()? else { break };
            read.push(packet);
        }
        if read.is_empty() {
            break;
        }
        for packet in read.drain(..) {
            summary.packets += 1;
            summary.bytes += packet.data.len() as u64;
            if clock.is_none() {
                clock = Some(Clock::new(offline, packet.time_ns)?);
            }
            let Some(clock) = &mut clock else { break };
            clock.advance(packet.time_ns);
            region.clear();
            region.resize(HEADROOM, 0);
            region.extend_from_slice(&packet.data);
            let mut one: Batch<'_> = batch.recycle();
            // An empty batch has room.
            let _ = one.push(Frame::new(&mut region, HEADROOM, packet.data.len(), PORT));
            clock.gateway.process(&mut one, clock.now);
            take(&one, packet.time_ns, &mut summary, &mut write)?;
            batch = one.recycle();
        }
        progress(summary.packets);
    }
    summary.balanced = summary.agrees(&offline.writer.tables().stats_total());
    Ok(summary)
}

/// Counts what became of a packet and writes what leaves.
fn take(
    batch: &Batch<'_>,
    time: u64,
    summary: &mut Summary,
    write: &mut impl FnMut(u64, &[u8]) -> Result<(), NodeError>,
) -> Result<(), NodeError> {
    for frame in batch.frames() {
        match frame.verdict {
            Verdict::Forward { .. } => summary.count("forwarded"),
            Verdict::Answer { .. } => summary.count("answered"),
            Verdict::Pass | Verdict::Control { .. } | Verdict::Metadata => summary.count("passed"),
            // No agent is on another host here.
            Verdict::Wait => summary.count("waiting"),
            Verdict::Drop(reason) => {
                *summary.drops.entry(reason.name()).or_default() += 1;
                summary.count("dropped");
            }
        }
        if matches!(frame.verdict, Verdict::Forward { .. } | Verdict::Answer { .. }) {
            write(time, frame.data())?;
            summary.written += 1;
        }
    }
    for made in &batch.output.generated {
        summary.count("generated");
        summary.count("forwarded");
        write(time, &made.data)?;
        summary.written += 1;
    }
    Ok(())
}
