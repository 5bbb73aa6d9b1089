// SPDX-License-Identifier: Apache-2.0
//! The packet path in Rust: parse, tenant, filter, nat, route, locate, meter, rewrite, emit.
//!
//! This is the reference: it handles every packet, and the XDP program must give the same bytes and the same reason for
//! those that it handles (`docs/design/packet-path.md` is the specification of both).
//!
//! # Stage by stage over a batch
//! A packet needs five to seven cache lines of table memory that it shares with nobody nearby: tenant bucket, tenant
//! record, sender, VM-NC bucket, NC, counters. One packet at a time would wait for each in turn. So a stage runs over the
//! whole batch before the next one begins; each asks for the lines that the next will read, and when that comes to the
//! first packet its lines are there. What is known of a packet in between is in a `Packet`, two cache lines and a bit.
//!
//! # What it keeps
//! Every packet gets exactly one [`Verdict`], and each is counted: in + generated = forwarded + answered + passed +
//! dropped. Untrusted bytes and garbage in table memory never panic. No I/O, no clock, no allocation for packets that
//! are forwarded unfragmented. Time comes in as an argument; the tables are entered once a batch.
#![forbid(unsafe_code)]

mod answer;
mod arp;
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

use packet::Packet;
use stages::{emit, filter, locate, meter, nat, parse, rewrite, route, tenant};
use tables::Tables;
use work::{Tools, Work};

/// One worker of the software path. Each has a counter slot of its own; workers share nothing but the tables.
pub struct Gateway {
    tables: Tables,
    slot: u32,
    packets: Box<[Packet; BATCH_MAX]>,
}

impl Gateway {
    /// A worker that reads `tables` and counts in `slot`, which must be no other worker's or CPU's.
    pub fn new(tables: Tables, slot: u32) -> Gateway {
        Gateway { tables, slot, packets: Box::new([Packet::EMPTY; BATCH_MAX]) }
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
        batch.output.clear();
        let _inside = self.tables.enter();
        let tools = Tools {
            tables: &self.tables,
            packets: &mut self.packets,
            output: &mut batch.output,
            recorder,
            slot: self.slot,
            now: now_ns,
        };
        let mut w = Work::begin(tools, &mut batch.frames);
        parse::run(&mut w);
        tenant::run(&mut w);
        filter::run(&mut w);
        nat::run(&mut w);
        route::run(&mut w);
        locate::run(&mut w);
        meter::run(&mut w);
        rewrite::run(&mut w);
        emit::run(&mut w);
    }
}
