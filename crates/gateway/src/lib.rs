// SPDX-License-Identifier: Apache-2.0
//! The packet path in Rust, in nine stages; their order is in `docs/design/packet-path.md`.
//!
//! This is the reference: it handles every packet, and the XDP program must give the same bytes and the same reason for
//! those that it handles (`docs/design/packet-path.md` is the specification of both).
//!
//! # In passes over a batch
//! A packet needs five to seven cache lines of table memory that it shares with nobody nearby: tenant bucket, tenant
//! record, sender, VM-NC bucket, NC, counters. One packet at a time would wait for each in turn. So the whole batch passes
//! through a few stages before any of it enters the next ones; each pass asks for the lines that the next will read, and
//! when that comes to the first packet its lines are there. What is known of a packet in between is in a `Packet`.
//!
//! # What it keeps
//! Every packet gets exactly one [`Verdict`], and each is counted: in + generated = forwarded + answered + passed +
//! dropped. Untrusted bytes and garbage in table memory never panic. No I/O, no clock, no allocation for packets that
//! are forwarded unfragmented. Time comes in as an argument; the tables are entered once a batch.
#![forbid(unsafe_code)]

mod answer;
mod arp;
mod connection;
mod connections;
mod control;
mod dhcp;
mod dhcp6;
mod echo;
mod fast;
mod flow_cache;
mod fragment;
mod frame;
mod framing;
mod handover;
mod icmp;
mod l4;
mod leases;
mod mirror;
mod nat;
mod nd;
mod packet;
mod pair;
mod record;
mod router;
mod settings;
mod stages;
#[cfg(test)]
mod testing;
mod turns;
mod work;

/// The tests' region names this crate as its users do.
#[cfg(test)]
extern crate self as gateway;

pub use connections::{BeginLog, Connections, EndLog, RefusalLog, Refused};
pub use control::{is_control, Controls, Towards};
pub use dhcp::Message as DhcpMessage;
pub use dhcp6::Message as Dhcp6Message;
pub use flow_cache::FlowCache;
pub use frame::{Batch, Frame, Generated, Output, Unresolved, Verdict, Waiting, BATCH_MAX, HEADROOM};
pub use handover::{Handover, Handovers, Role};
pub use leases::{Lease, Leases, Told};
pub use mirror::{Collector, MirrorCounts, MirrorSpec, Mirrors};
pub use nat::Nat;
pub use record::{Event, NoRecorder, ProbeTrace, Recorder, Scope, Trace};
pub use router::advertisement;
pub use turns::Classes;

use connections::SessionView;
use conntrack::Sessions;
use conntrack_compact::{Answer, Completions, Key};
use fast::FastPacket;
use flow_cache::Flows;
use framing::inline;
use packet::{Packet, Resumed};
use settings::Settings;
use stages::{emit, filter, locate, meter, parse, rewrite, route, tenant};
use std::collections::HashMap;
use std::sync::Arc;
use tables::{Count, Tables};
use work::Work;

/// One worker of the software path. Each has a counter slot of its own; workers share nothing but the tables.
pub struct Gateway {
    tables: Tables,
    slot: u32,
    fast_packets: Box<[FastPacket; BATCH_MAX]>,
    packets: Box<[Packet; BATCH_MAX]>,
    sessions: Option<(Arc<Connections>, Sessions)>,
    completions: Arc<Completions>,
    waiting: HashMap<u64, Waiting>,
    idents: u32,
    flow_cache: Option<FlowCache>,
    controls: Arc<Controls>,
}

impl Gateway {
    /// A worker that reads `tables` and counts in `slot`, which must be no other worker's or CPU's.
    pub fn new(tables: Tables, slot: u32) -> Gateway {
        let packets = Box::new(std::array::from_fn(|i| Packet { index: i as u8, ..Packet::EMPTY }));
        Gateway {
            tables,
            slot,
            fast_packets: Box::new([FastPacket::EMPTY; BATCH_MAX]),
            packets,
            sessions: None,
            completions: Arc::default(),
            waiting: HashMap::new(),
            idents: 0,
            flow_cache: None,
            controls: Arc::default(),
        }
    }

    /// The same with a flow cache.
    pub fn with_flow_cache(self, cache: FlowCache) -> Gateway {
        Gateway { flow_cache: Some(cache), ..self }
    }

    /// The same with limits of control packets.
    pub fn with_controls(self, controls: Arc<Controls>) -> Gateway {
        Gateway { controls, ..self }
    }

    /// A worker that knows connections: it serves the ways to the Internet and security groups as well.
    pub fn with_connections(tables: Tables, slot: u32, connections: Arc<Connections>) -> Gateway {
        let sessions = connections.tracker().sessions();
        Gateway { sessions: Some((connections, sessions)), ..Gateway::new(tables, slot) }
    }

    /// The tables it reads.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Its counter slot.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Processes a batch at time `now_ns` (CLOCK_MONOTONIC). Each frame gets its verdict and lies ready to be sent; what
    /// was made besides is in `batch.output`.
    pub fn process(&mut self, batch: &mut Batch<'_>, now_ns: u64) {
        self.process_recorded(batch, now_ns, &mut NoRecorder);
    }

    /// Where answers come of an agent on another host, whose packets wait here meanwhile.
    pub fn completions(&self) -> &Arc<Completions> {
        &self.completions
    }

    /// Packets whose answers have come, at most a batch of them: [`Gateway::resume`] takes them on.
    pub fn answered(&mut self) -> Vec<Waiting> {
        let mut found = Vec::new();
        for (ticket, answer) in self.completions.take(BATCH_MAX) {
            if let Some(mut waiting) = self.waiting.remove(&ticket) {
                waiting.answer = Some(answer);
                found.push(waiting);
            }
        }
        found
    }

    /// Forgets what waits: the worker ends. How many packets, and how many of these the fast path had punted.
    pub fn give_up(&mut self) -> (u64, u64) {
        let waiting = std::mem::take(&mut self.waiting);
        (waiting.len() as u64, waiting.values().filter(|w| w.punted).count() as u64)
    }

    /// As [`Gateway::process`], for the frames of packets that have waited, in their order.
    pub fn resume(&mut self, batch: &mut Batch<'_>, answers: &[(Key, Answer)], now_ns: u64) {
        self.run(batch, now_ns, &mut NoRecorder, answers);
    }

    /// As [`Gateway::process`], telling `recorder` what each packet met.
    pub fn process_recorded<R: Recorder>(&mut self, batch: &mut Batch<'_>, now_ns: u64, recorder: &mut R) {
        self.run(batch, now_ns, recorder, &[]);
    }

    fn run<R: Recorder>(&mut self, batch: &mut Batch<'_>, now_ns: u64, recorder: &mut R, answers: &[(Key, Answer)]) {
        let Batch { frames, output } = batch;
        output.clear();
        let tables = &self.tables;
        let _inside = tables.enter();
        // A recorder wants to hear every stage, which neither the flow cache nor the short cut for common packets tells.
        let short = !R::ON && answers.is_empty();
        let flows = self.flow_cache.as_mut().filter(|_| short).map(|cache| Flows::begin(cache, tables));
        let (settings, stats, slot) = (Settings::read(tables), tables.stats(self.slot), self.slot);
        let bytes = frames.iter().map(|f| f.len as u64).sum();
        let (rx, sent) = (Count { packets: frames.len() as u64, bytes }, Count::default());
        let guard = self.sessions.as_ref().map(|(all, sessions)| (all, sessions.enter()));
        let rules = self.sessions.as_ref().map(|(all, _)| (all.rules(), all.states(), all.handovers(), all.mirrors()));
        let sessions = guard.as_ref().zip(rules.as_ref()).map(|((all, guard), (rules, states, handovers, mirrors))| {
            SessionView { connections: all, guard, filter: rules, states: states.as_deref(), handovers, mirrors }
        });
        let idents = &mut self.idents;
        let (walking, prefetched, now, queued) = (0, 0, now_ns, Vec::new());
        let completions = Some(&self.completions);
        let mut w = Work {
            tables,
            settings,
            output,
            recorder,
            stats,
            slot,
            cells: tables.slot_cells(slot),
            now,
            rx,
            sent,
            walking,
            prefetched,
            sessions,
            queued,
            completions,
            controls: &self.controls,
            idents,
            flows,
        };
        let (packets, spare) = self.packets.split_at_mut(frames.len().min(BATCH_MAX));
        let short = short && fast::serves(&w.settings);
        if !short {
            packets.iter_mut().for_each(|p| p.done = false);
        }
        if !answers.is_empty() {
            for ((packet, frame), (key, answer)) in packets.iter_mut().zip(frames.iter_mut()).zip(answers) {
                packet.resumed = Resumed::Answered(*key, *answer);
                process_all(&mut w, std::slice::from_mut(packet), std::slice::from_mut(frame));
                packet.resumed = Resumed::No;
            }
        } else if !short || !fast::process(&mut w, &mut self.fast_packets, packets, frames) {
            process_all(&mut w, packets, frames);
        }
        if !w.queued.is_empty() {
            let mut more = Packet::EMPTY;
            process_queued(&mut w, spare.first_mut().unwrap_or(&mut more));
        }
        w.end();
        self.waiting.extend(batch.output.waiting.drain(..).map(|waiting| (waiting.ticket, waiting)));
    }
}

/// The packet path, for every packet that has no verdict yet.
fn process_all<R: Recorder>(w: &mut Work<'_, R>, packets: &mut [Packet], frames: &mut [Frame<'_>]) {
    if w.settings.inline {
        return w.each(packets, frames, |w, p, f| process_inline(w, p, f));
    }
    w.each(packets, frames, |w, p, f| parse::run(w, p, f));
    w.each(packets, frames, |w, p, f| tenant::find(w, p, f));
    w.each(packets, frames, |w, p, f| {
        tenant::run(w, p, f)?;
        if p.inward {
            nat::inward::run(w, p, f)?;
            return locate::find(w, p, f);
        }
        if route::proven(w, p) {
            return locate::find(w, p, f);
        }
        if stages::nat::run(w, p, f)? {
            return locate::find(w, p, f);
        }
        route::run(w, p)
    });
    if w.walking > 0 {
        route::walk(w, packets, frames);
    }
    if std::mem::take(&mut w.prefetched) > 0 {
        w.each(packets, frames, |w, p, _| filter::prefetch_more(w, p));
    }
    w.each(packets, frames, |w, p, f| {
        filter::run(w, p, f)?;
        let path = locate::run(w, p, f)?;
        meter::run(w, p)?;
        rewrite::run(w, p, f, &path)?;
        emit::run(w, p, f, &path)
    });
}

/// The path of a frame from one port of an inline pair to the other.
fn process_inline<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, f: &mut Frame<'_>) -> Result<(), Verdict> {
    let to = inline::decapsulate(w, p, f)?;
    if to.judged {
        filter::server(w, p, f)?;
    }
    inline::encapsulate(f, &to)?;
    // A VPC's meter is for what it sends.
    if to.judged && to.outwards() {
        meter::vpc(w, p)?;
    }
    w.forward(p, f, to.egress());
    Ok(())
}

/// Fragments that waited for their first one, which has come with this batch: each goes its way as a packet of the
/// gateway's own, for it was counted as dropped when it came; the first one is its cause.
#[cold]
fn process_queued<R: Recorder>(w: &mut Work<'_, R>, packet: &mut Packet) {
    let place = packet.index;
    for queued in std::mem::take(&mut w.queued) {
        packet.resumed = Resumed::Fragment(queued.known);
        packet.index = queued.cause;
        let bytes = queued.frame;
        let mut buffer = w.output.buffer(HEADROOM + bytes.len());
        buffer[HEADROOM..].copy_from_slice(&bytes);
        let mut frame = Frame::new(&mut buffer, HEADROOM, bytes.len(), queued.ifindex);
        frame.counted = true;
        packet.done = false;
        process_all(w, std::slice::from_mut(packet), std::slice::from_mut(&mut frame));
        if let Verdict::Forward { ifindex } = frame.verdict {
            let data = frame.data().to_vec();
            w.stats.generated();
            w.output.generated.push(Generated {
                data,
                ifindex,
                cause: packet.index as usize,
                classes: frame.classes,
                copy: false,
            });
        }
    }
    packet.resumed = Resumed::No;
    packet.index = place;
}
