// SPDX-License-Identifier: Apache-2.0
//! A gateway without ports: configuration files into tables in plain memory, for `tunny replay` and for traces of
//! files. No privileges are needed. The underlay is made up: each NC is a direct neighbour with a MAC address of its own.

use crate::error::NodeError;
use crate::pcap::Packet;
use config::{Kind, Model, Object};
use gateway::{Batch, Frame, Gateway, Nat, Verdict, HEADROOM};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tables::{GroupId, HeapMemory, NexthopSpec, Writer, WriterOptions};

/// Port number that everything comes from and leaves by.
pub const PORT: u32 = 1;
/// Packets processed together.
const BURST: usize = 256;

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
        let sentences = |errors: Vec<config::ConfigError>| NodeError::Config(errors.iter().map(|e| e.to_string()).collect());
        let files = crate::daemon::expand(files)?;
        let mut model = Model::new();
        let (docs, warnings) = config::validate_files(&files, &mut model).map_err(sentences)?;
        model.apply(&docs).map_err(sentences)?;
        let memory = Arc::new(HeapMemory::new().map_err(NodeError::system("reserving table memory"))?);
        let options = WriterOptions { xdp_slots: 0, worker_slots: 1, ..Default::default() };
        let mut writer = Writer::create(memory, options).map_err(NodeError::system("building the tables"))?;
        writer.commit(&model.full_commit())?;
        crate::internet::enter(&mut writer, &model)?;
        writer.settle();
        let warnings = warnings.iter().map(|w| w.to_string()).collect();
        let mut offline = Self { model, writer, warnings };
        offline.make_up_underlay(mtu)?;
        Ok(offline)
    }

    fn make_up_underlay(&mut self, mtu: u16) -> Result<(), NodeError> {
        let ncs: Vec<IpAddr> = self
            .model
            .objects(Kind::Nc)
            .filter_map(|o| if let Object::Nc(nc) = o { Some(nc.address) } else { None })
            .collect();
        let routers = self.model.gateway().map_or([None; 2], |g| [g.via4.map(IpAddr::V4), g.via6.map(IpAddr::V6)]);
        let count = ncs.len() as u64;
        for (number, nc) in ncs.into_iter().enumerate() {
            let group = self.neighbour(nc, number as u64, mtu)?;
            self.writer.bind_nc_group(nc, Some(group));
        }
        for (family, router) in routers.into_iter().enumerate() {
            if let Some(router) = router {
                let group = self.neighbour(router, count + family as u64, mtu)?;
                crate::internet::lead(&mut self.writer, family == 1, Some(group));
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
    /// Outcomes: `forwarded`, `answered`, `passed`, `dropped`, and `generated` besides.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Drops by reason.
    pub drops: BTreeMap<&'static str, u64>,
    /// Whether in + generated = forwarded + answered + passed + dropped by the gateway's own counters.
    pub balanced: bool,
}

/// Runs packets through the software path. Time is that of the capture, so meters and limits act as they would have. `write`
/// gets each packet that leaves.
pub fn replay(
    offline: &Offline,
    mut next: impl FnMut() -> Result<Option<Packet>, NodeError>,
    mut write: impl FnMut(u64, &[u8]) -> Result<(), NodeError>,
    mut progress: impl FnMut(u64),
) -> Result<Summary, NodeError> {
    let mut serving: Option<(Gateway, Arc<Nat>)> = None;
    let mut summary = Summary::default();
    let mut regions: Vec<Vec<u8>> = vec![Vec::new(); BURST];
    let mut batch: Batch<'static> = Batch::new();
    loop {
        let mut times = Vec::with_capacity(BURST);
        while times.len() < BURST {
            let Some(packet) = next()? else { break };
            let region = &mut regions[times.len()];
            region.clear();
            region.resize(HEADROOM, 0);
            region.extend_from_slice(&packet.data);
            summary.packets += 1;
            summary.bytes += packet.data.len() as u64;
            times.push((packet.time_ns, packet.data.len()));
        }
        let Some((now, _)) = times.last().copied() else { break };
        if serving.is_none() {
            let nat = crate::internet::offline(&offline.model, times.first().map_or(now, |t| t.0))?;
            serving = Some((Gateway::with_nat(offline.writer.tables(), 0, nat.clone()), nat));
        }
        let Some((gateway, nat)) = &mut serving else { break };
        let mut full: Batch<'_> = batch.recycle();
        for (region, (_, length)) in regions.iter_mut().zip(&times) {
            // The batch holds as many.
            let _ = full.push(Frame::new(region, HEADROOM, *length, PORT));
        }
        gateway.process(&mut full, now);
        for (frame, (time, _)) in full.frames().iter().zip(&times) {
            let outcome = match frame.verdict {
                Verdict::Forward { .. } => "forwarded",
                Verdict::Answer { .. } => "answered",
                Verdict::Pass => "passed",
                Verdict::Wait => "waiting",
                Verdict::Drop(reason) => {
                    *summary.drops.entry(reason.name()).or_default() += 1;
                    "dropped"
                }
            };
            *summary.outcomes.entry(outcome).or_default() += 1;
            if matches!(frame.verdict, Verdict::Forward { .. } | Verdict::Answer { .. }) {
                write(*time, frame.data())?;
                summary.written += 1;
            }
        }
        for made in &full.output.generated {
            let time = times.get(made.cause).map_or(now, |t| t.0);
            *summary.outcomes.entry("generated").or_default() += 1;
            write(time, &made.data)?;
            summary.written += 1;
        }
        batch = full.recycle();
        // As far as time goes on in the capture.
        while nat.expire(now, BURST as u32 * 16).more {}
        progress(summary.packets);
    }
    let stats = offline.writer.tables().stats_total();
    summary.balanced = stats.rx == summary.packets
        && stats.rx + stats.generated == stats.forwarded + stats.answered + stats.passed + stats.dropped;
    Ok(summary)
}
