// SPDX-License-Identifier: Apache-2.0
//! The packet path in Rust: parse, tenant, filter, nat, route, locate, meter, rewrite, emit.
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
mod common;
mod echo;
mod encap;
mod fragment;
mod frame;
mod icmp;
mod nd;
mod packet;
mod record;
mod settings;
mod stages;
mod work;

pub use frame::{Batch, Frame, Generated, Output, Unresolved, Verdict, BATCH_MAX, HEADROOM};
pub use record::{Event, NoRecorder, Recorder, Scope, Trace};

use common::Lean;
use packet::Packet;
use stages::{emit, filter, locate, meter, nat, parse, rewrite, route, tenant};
use settings::Settings;
use tables::{Count, Tables};
use work::Work;

/// One worker of the software path. Each has a counter slot of its own; workers share nothing but the tables.
pub struct Gateway {
    tables: Tables,
    slot: u32,
    lean: Box<[Lean; BATCH_MAX]>,
    packets: Box<[Packet; BATCH_MAX]>,
}

impl Gateway {
    /// A worker that reads `tables` and counts in `slot`, which must be no other worker's or CPU's.
    pub fn new(tables: Tables, slot: u32) -> Gateway {
        let packets = Box::new(std::array::from_fn(|i| Packet { index: i as u8, ..Packet::EMPTY }));
        Gateway { tables, slot, lean: Box::new([Lean::EMPTY; BATCH_MAX]), packets }
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

    /// As [`Gateway::process`], telling `recorder` what each packet met.
    pub fn process_recorded<R: Recorder>(&mut self, batch: &mut Batch<'_>, now_ns: u64, recorder: &mut R) {
        let Batch { frames, output } = batch;
        output.clear();
        let tables = &self.tables;
        let _inside = tables.enter();
        let (settings, stats, slot) = (Settings::read(tables), tables.stats(self.slot), self.slot);
        let bytes = frames.iter().map(|f| f.len as u64).sum();
        let (rx, sent) = (Count { packets: frames.len() as u64, bytes }, Count::default());
        let mut w = Work { tables, settings, output, recorder, stats, slot, now: now_ns, rx, sent, walking: 0 };
        let packets = &mut self.packets[..frames.len().min(BATCH_MAX)];
        packets.iter_mut().for_each(|p| p.done = false);

        // A recorder wants to hear every stage, which the short cut for common packets does not tell.
        if R::ON || !common::process(&mut w, &mut self.lean, packets, frames) {
            process_all(&mut w, packets, frames);
        }
        w.end();
    }
}

/// The packet path, for every packet that has no verdict yet.
fn process_all<R: Recorder>(w: &mut Work<'_, R>, packets: &mut [Packet], frames: &mut [Frame<'_>]) {
    w.each(packets, frames, |w, p, f| parse::run(w, p, f));
    w.each(packets, frames, |w, p, _| tenant::find(w, p));
    w.each(packets, frames, |w, p, f| {
        tenant::run(w, p, f)?;
        filter::run(w, p)?;
        nat::run(w, p)?;
        match route::run(w, p)? {
            route::Found::Vm => locate::find(w, p, f),
            route::Found::Tree => Ok(()),
        }
    });
    if w.walking > 0 {
        route::walk(w, packets, frames);
    }
    w.each(packets, frames, |w, p, f| {
        let path = locate::run(w, p, f)?;
        meter::run(w, p)?;
        rewrite::run(w, p, f, &path)?;
        emit::run(w, p, f, &path)
    });
}
