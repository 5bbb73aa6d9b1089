// SPDX-License-Identifier: Apache-2.0
//! What every stage needs for one batch, and how a packet's way ends.

use abi::{DropReason, IfIndex, LineNo, NcId, Stage, Vni};
use conntrack_compact::{Completions, Key};
use std::net::IpAddr;
use std::sync::Arc;
use tables::{Count, NexthopView, SlotCells, StatsSlot, Tables, Tenant, VmEntry};

use crate::connections::{Known, SessionView};
use crate::control::Controls;
use crate::flow_cache::Flows;
use crate::frame::{Frame, Generated, Output, Unresolved, Verdict, Waiting};
use crate::framing::qinq::Tags;
use crate::framing::vmport;
use crate::handover;
use crate::icmp;
use crate::packet::{Addr, Packet};
use crate::record::{Event, Recorder};
use crate::settings::Settings;

/// Everything the stages share for one batch.
pub(crate) struct Work<'w, R> {
    pub tables: &'w Tables,
    pub settings: Settings,
    pub output: &'w mut Output,
    pub recorder: &'w mut R,
    pub stats: StatsSlot<'w>,
    /// Counter slot of this worker.
    pub slot: u32,
    /// Where that counts for VPCs.
    pub cells: SlotCells,
    /// Time of the batch, ns.
    pub now: u64,
    /// Packets taken in and sent on in this batch.
    pub rx: Count,
    pub sent: Count,
    /// Packets whose route tree is being walked.
    pub walking: usize,
    /// Packets whose sessions the filter has asked for.
    pub prefetched: usize,
    /// Sessions, if the gateway serves any.
    pub sessions: Option<SessionView<'w>>,
    /// Fragments that waited for one of this batch, with the ports that it told.
    pub queued: Vec<QueuedFragment>,
    /// Where answers of an agent on another host come.
    pub completions: Option<&'w Arc<Completions>>,
    /// How many control packets customers may send.
    pub controls: &'w Controls,
    /// Identification of the last tunnel packet that was cut; 0: none was.
    pub idents: &'w mut u32,
    /// The worker's flow cache, if it has one.
    pub flows: Option<Flows<'w>>,
}

/// A fragment that waited for the first one of its packet.
pub(crate) struct QueuedFragment {
    /// The frame as it came.
    pub frame: Vec<u8>,
    /// Ports and protocol that the first one told.
    pub known: Known,
    /// The port that the first one came in by, and this one before it.
    pub ifindex: IfIndex,
    /// Place of the first one in the batch.
    pub cause: u8,
}

impl From<DropReason> for Verdict {
    #[inline(always)]
    fn from(reason: DropReason) -> Verdict {
        Verdict::Drop(reason)
    }
}

/// Where a packet to an NC or a CE leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    /// The NC's address.
    pub nc: Addr,
    /// It is an IPv6 address.
    pub nc_v6: bool,
    /// The packet exceeds the MTU and is to be cut.
    pub cut: bool,
    /// The same, but its tunnel packet is cut.
    pub split: bool,
    /// Line of the next hop.
    pub line: LineNo,
    /// The next hop.
    pub nexthop: NexthopView,
    /// It leads to a CE: with these tags, and to no NC.
    pub tags: Option<Tags>,
}

impl Path {
    /// The way over a next hop.
    #[inline(always)]
    pub fn over(nexthop: NexthopView) -> Path {
        Path { nc: Addr::default(), nc_v6: false, cut: false, split: false, line: LineNo(0), nexthop, tags: None }
    }
}

impl<R: Recorder> Work<'_, R> {
    /// Runs a step for every packet that is alive; an `Err` is its end.
    #[inline(always)]
    pub fn each(
        &mut self,
        packets: &mut [Packet],
        frames: &mut [Frame<'_>],
        mut step: impl FnMut(&mut Self, &mut Packet, &mut Frame<'_>) -> Result<(), Verdict>,
    ) {
        for (p, f) in packets.iter_mut().zip(frames) {
            if p.done {
                continue;
            }
            if let Err(verdict) = step(self, p, f) {
                self.finish(p, f, verdict);
            }
        }
    }

    /// Ends the way of a packet that is not sent on: its one outcome is counted here, and an ICMP error is sent if one is
    /// owed.
    #[cold]
    #[inline(never)]
    pub fn finish(&mut self, p: &mut Packet, f: &mut Frame<'_>, verdict: Verdict) {
        let verdict = match verdict {
            Verdict::Drop(DropReason::HandoverFailed) => handover::send(self, p, f).unwrap_or_else(Verdict::Drop),
            verdict => verdict,
        };
        match verdict {
            // What waited was counted as dropped when it came.
            Verdict::Drop(_) | Verdict::Pass if p.known().is_some() => (),
            Verdict::Drop(reason) => {
                icmp::on_drop(self, p, f, reason);
                self.stats.dropped(reason);
                if R::COUNTS && p.attributed && !self.tables.count_drop(p.vni, reason) {
                    self.tables.count_drop_overflow(self.slot);
                }
            }
            Verdict::Pass | Verdict::Control { .. } | Verdict::Metadata => self.stats.passed(),
            Verdict::Answer { .. } => self.stats.answered(),
            Verdict::Forward { .. } => self.count_forwarded(f),
            Verdict::Wait => (),
        }
        p.done = true;
        f.verdict = verdict;
        if R::ON {
            self.note_outcome(p, verdict);
        }
    }

    /// Keeps a packet whose verdict is to wait until the agent has answered. It is counted when it goes on, as if it came then.
    pub fn keep(&mut self, number: (u64, Key), f: &Frame<'_>) {
        self.rx.packets -= 1;
        self.rx.bytes -= f.len as u64;
        self.output.punts_waiting += u64::from(f.punted);
        self.output.waiting.push(Waiting::new(number, f));
    }

    /// Ends the way of a packet that is sent on.
    #[inline(always)]
    pub fn forward(&mut self, p: &mut Packet, f: &mut Frame<'_>, ifindex: IfIndex) {
        f.verdict = Verdict::Forward { ifindex };
        self.count_forwarded(f);
        if R::ON {
            self.note_outcome(p, f.verdict);
        }
    }

    #[inline(always)]
    fn count_forwarded(&mut self, f: &Frame<'_>) {
        self.sent.packets += 1;
        self.sent.bytes += f.len as u64;
    }

    fn note_outcome(&mut self, p: &Packet, verdict: Verdict) {
        let stage = match verdict {
            Verdict::Drop(reason) => reason.stage(),
            Verdict::Pass => Stage::Parse,
            Verdict::Wait => Stage::Filter,
            Verdict::Control { .. } | Verdict::Metadata => Stage::Tenant,
            Verdict::Answer { .. } | Verdict::Forward { .. } => Stage::Emit,
        };
        self.note(p, stage, Event::Outcome { verdict });
    }

    /// Adds the batch to the statistics.
    pub fn end(self) {
        self.stats.batch(self.rx, self.sent);
        if let Some(flows) = self.flows {
            flows.end(self.stats);
        }
    }

    /// A packet of the gateway's own is sent besides.
    pub fn generate(&mut self, p: &Packet, stage: Stage, packet: Generated) {
        self.stats.generated();
        self.stats.forwarded(packet.data.len() as u64);
        if R::ON {
            self.note(p, stage, Event::Generated { bytes: packet.data.clone(), ifindex: packet.ifindex });
        }
        self.output.generated.push(packet);
    }

    /// Whether an ICMP error may be sent for a VPC. Of a probe none is.
    pub fn icmp_allowed(&self, tenant: &Tenant) -> bool {
        R::COUNTS && self.tables.icmp_allowed(tenant, self.now)
    }

    /// Starts to load the headers of a frame.
    #[inline(always)]
    pub fn prefetch_frame(&self, f: &Frame<'_>) {
        self.tables.prefetch_bytes(f.buffer, f.offset as usize);
        self.tables.prefetch_bytes(f.buffer, f.offset as usize + 64);
    }

    /// Tells the recorder.
    #[inline(always)]
    pub fn note(&mut self, p: &Packet, stage: Stage, event: Event) {
        if R::ON {
            self.recorder.record(p.index as usize, stage, event);
        }
    }

    /// The way to an NC for a flow. A neighbour that is not resolved is noted as needed.
    #[inline(always)]
    pub fn path_to(&mut self, nc: NcId, flow: u64) -> Result<Path, DropReason> {
        let nc = self.tables.nc(nc).ok_or(DropReason::UnderlayNoRoute)?;
        let (addr, nc_v6) = match nc.addr {
            IpAddr::V4(a) => (Addr::v4(a.to_bits()), false),
            IpAddr::V6(a) => (Addr::v6(a.to_bits()), true),
        };
        if !self.settings.has_vtep(nc_v6) {
            return Err(DropReason::UnderlayNoRoute);
        }
        Ok(Path { nc: addr, nc_v6, ..self.path_over(nc.group, flow)? })
    }

    /// The way to a VM of a VPC for a flow: to its NC, or out by its port if that NC is this node.
    #[inline(always)]
    pub fn path_to_vm(&mut self, vni: Vni, vm: &VmEntry, flow: u64) -> Result<Path, DropReason> {
        match self.path_to(vm.nc, flow) {
            Err(DropReason::UnderlayNoRoute) => vmport::path(self, vni, vm),
            path => path,
        }
    }

    /// The way over a group (0: none) for a flow.
    #[inline(always)]
    pub fn path_over(&mut self, group: LineNo, flow: u64) -> Result<Path, DropReason> {
        if group == LineNo(0) {
            return Err(DropReason::UnderlayNoRoute);
        }
        let line = self.tables.group_member(group, flow);
        if line == LineNo(0) {
            return Err(DropReason::UnderlayNoRoute);
        }
        let nexthop = self.tables.nexthop(line);
        if !nexthop.ready {
            self.need(line, nexthop.ifindex);
            return Err(DropReason::NexthopUnresolved);
        }
        Ok(Path { line, ..Path::over(nexthop) })
    }

    /// An identification for the fragments of a tunnel packet, other than the last ones of this worker (by the time, also of one that
    /// ran before) and, in IPv4 as well, than those of other workers.
    #[cold]
    pub fn next_ident(&mut self) -> u32 {
        let workers = self.tables.slots().0.max(1);
        if *self.idents == 0 {
            *self.idents = (self.now >> 20) as u32 * workers + self.slot;
        }
        *self.idents = self.idents.wrapping_add(workers);
        *self.idents
    }

    #[cold]
    fn need(&mut self, line: LineNo, ifindex: IfIndex) {
        let neighbour = self.tables.nexthop_addr(line);
        self.output.need(Unresolved { nexthop: line, ifindex, neighbour });
    }

    /// Id of the NC that sent a packet.
    pub fn sending_nc(&self, p: &Packet) -> Option<NcId> {
        match p.source_v6 {
            true => self.tables.nc_by_addr6(p.source.halves()),
            false => self.tables.nc_by_addr4(p.source.as_v4()),
        }
    }
}

#[cfg(test)]
#[path = "work_tests.rs"]
mod tests;
