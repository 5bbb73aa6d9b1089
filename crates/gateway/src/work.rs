// SPDX-License-Identifier: Apache-2.0
//! A batch on its way: the packets that are still alive, and what every stage needs.

use abi::{DropReason, Stage};
use tables::{NexthopView, StatsSlot, Tables};

use crate::frame::{Frame, Generated, Output, Unresolved, Verdict, BATCH_MAX};
use crate::icmp;
use crate::packet::{Addr, Packet};
use crate::record::{Event, Recorder};
use crate::settings::Settings;

/// Everything the stages share for one batch. Packets are named by index; indices fit a byte, and so need no bounds check
/// in arrays of [`BATCH_MAX`].
pub(crate) struct Work<'w, 'f, R> {
    pub tables: &'w Tables,
    pub settings: Settings,
    pub frames: &'w mut [Frame<'f>],
    pub packets: &'w mut [Packet; BATCH_MAX],
    pub output: &'w mut Output,
    pub recorder: &'w mut R,
    pub stats: StatsSlot<'w>,
    /// Counter slot of this worker.
    pub slot: u32,
    /// Time of the batch, ns.
    pub now: u64,
    live: [u8; BATCH_MAX],
    alive: usize,
}

impl From<DropReason> for Verdict {
    #[inline(always)]
    fn from(reason: DropReason) -> Verdict {
        Verdict::Drop(reason)
    }
}

/// Where a packet to an NC leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    /// The NC's address.
    pub nc: Addr,
    /// It is an IPv6 address.
    pub nc_v6: bool,
    /// Line of the next hop.
    pub line: u32,
    /// The next hop.
    pub nexthop: NexthopView,
}

/// What a worker brings to a batch, besides the frames.
pub(crate) struct Tools<'w, R> {
    pub tables: &'w Tables,
    pub packets: &'w mut [Packet; BATCH_MAX],
    pub output: &'w mut Output,
    pub recorder: &'w mut R,
    pub slot: u32,
    pub now: u64,
}

impl<'w, 'f, R: Recorder> Work<'w, 'f, R> {
    /// All frames are alive.
    pub fn begin(tools: Tools<'w, R>, frames: &'w mut [Frame<'f>]) -> Work<'w, 'f, R> {
        let Tools { tables, packets, output, recorder, slot, now } = tools;
        let alive = frames.len().min(BATCH_MAX);
        Work {
            tables,
            settings: Settings::read(tables),
            frames,
            packets,
            output,
            recorder,
            stats: tables.stats(slot),
            slot,
            now,
            live: std::array::from_fn(|i| i as u8),
            alive,
        }
    }

    /// Runs a step for every packet that is alive; an `Err` is its end. The order of packets stays.
    #[inline(always)]
    pub fn each(&mut self, mut step: impl FnMut(&mut Self, u8) -> Result<(), Verdict>) {
        let mut kept = 0;
        for k in 0..self.alive.min(BATCH_MAX) {
            let i = self.live[k];
            match step(self, i) {
                Ok(()) => {
                    self.live[kept & (BATCH_MAX - 1)] = i;
                    kept += 1;
                }
                Err(verdict) => self.finish(i, verdict),
            }
        }
        self.alive = kept;
    }

    /// Ends a packet's way: its one outcome is counted here, and an ICMP error is sent if one is owed.
    #[cold]
    #[inline(never)]
    pub fn finish(&mut self, i: u8, verdict: Verdict) {
        if let Verdict::Drop(reason) = verdict {
            icmp::on_drop(self, i, reason);
            self.stats.dropped(reason);
            let p = &self.packets[i as usize];
            if p.attributed && !self.tables.count_drop(p.vni, reason) {
                self.tables.count_drop_overflow(self.slot);
            }
        }
        match verdict {
            Verdict::Drop(_) => (),
            Verdict::Pass => self.stats.passed(),
            Verdict::Answer { .. } => self.stats.answered(),
            Verdict::Forward { .. } => self.stats.forwarded(self.frames[i as usize].len as u64),
        }
        if R::ON {
            let stage = match verdict {
                Verdict::Drop(reason) => reason.stage(),
                Verdict::Pass => Stage::Parse,
                Verdict::Answer { .. } | Verdict::Forward { .. } => Stage::Emit,
            };
            self.note(i, stage, Event::Outcome { verdict });
        }
        self.frames[i as usize].verdict = verdict;
    }

    /// Ends the way of a packet that is sent on.
    #[inline(always)]
    pub fn forward(&mut self, i: u8, verdict: Verdict) {
        let frame = &mut self.frames[i as usize];
        frame.verdict = verdict;
        self.stats.forwarded(frame.len as u64);
    }

    /// A packet of the gateway's own is sent besides.
    pub fn generate(&mut self, i: u8, stage: Stage, packet: Generated) {
        self.stats.generated();
        self.stats.forwarded(packet.data.len() as u64);
        if R::ON {
            self.note(i, stage, Event::Generated { bytes: packet.data.clone(), ifindex: packet.ifindex });
        }
        self.output.generated.push(packet);
    }

    /// Starts to load the headers of a frame, if there is one.
    #[inline(always)]
    pub fn prefetch_frame(&self, i: usize) {
        if let Some(frame) = self.frames.get(i) {
            self.tables.prefetch_bytes(frame.buffer, frame.offset as usize);
            self.tables.prefetch_bytes(frame.buffer, frame.offset as usize + 64);
        }
    }

    /// Tells the recorder.
    #[inline(always)]
    pub fn note(&mut self, i: u8, stage: Stage, event: Event) {
        if R::ON {
            self.recorder.record(i as usize, stage, event);
        }
    }

    /// The inner frame of a packet that was parsed.
    #[inline(always)]
    pub fn inner_frame(&self, i: u8) -> &[u8] {
        let p = &self.packets[i as usize];
        let start = p.inner as usize;
        self.frames[i as usize].data().get(start..start + p.inner_len as usize).unwrap_or(&[])
    }

    /// The way to an NC for a flow. A neighbour that is not resolved is noted as needed.
    #[inline(always)]
    pub fn path_to(&mut self, nc: u32, flow: u64) -> Result<Path, DropReason> {
        let nc = self.tables.nc(nc).ok_or(DropReason::UnderlayNoRoute)?;
        let (addr, nc_v6) = match nc.addr {
            std::net::IpAddr::V4(a) => (Addr::v4(a.to_bits()), false),
            std::net::IpAddr::V6(a) => (Addr::v6(a.to_bits()), true),
        };
        if nc.group == 0 || !self.settings.has_vtep(nc_v6) {
            return Err(DropReason::UnderlayNoRoute);
        }
        let line = self.tables.group_member(nc.group, flow);
        if line == 0 {
            return Err(DropReason::UnderlayNoRoute);
        }
        let nexthop = self.tables.nexthop(line);
        if !nexthop.ready {
            self.need(line, nexthop.ifindex);
            return Err(DropReason::NexthopUnresolved);
        }
        Ok(Path { nc: addr, nc_v6, line, nexthop })
    }

    #[cold]
    fn need(&mut self, line: u32, ifindex: u32) {
        let neighbour = self.tables.nexthop_addr(line);
        self.output.need(Unresolved { nexthop: line, ifindex, neighbour });
    }

    /// Id of the NC that sent a packet.
    pub fn sending_nc(&self, i: u8) -> Option<u32> {
        let p = &self.packets[i as usize];
        match p.source_v6 {
            true => self.tables.nc_by_addr6(p.source.halves()),
            false => self.tables.nc_by_addr4(p.source.as_v4()),
        }
    }
}
