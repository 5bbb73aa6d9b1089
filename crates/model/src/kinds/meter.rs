// SPDX-License-Identifier: Apache-2.0
//! Meters, which VPCs and VMs have.

use crate::declare::{below, fields, Field, Fields, Form, Slot};
use crate::doc::Doc;
use crate::error::Problem;
use crate::forms::*;
use crate::written::Written;

/// A two-rate limit (RFC 2698). Units: bits per second and bytes for bandwidth, packets per second and packets else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RatePair {
    /// Committed rate.
    pub committed: u64,
    /// Burst at the committed rate.
    pub committed_burst: u64,
    /// Peak rate: what exceeds it is dropped.
    pub peak: u64,
    /// Burst at the peak rate.
    pub peak_burst: u64,
}

fields! {
    /// A meter of a VPC or a VM.
    #[derive(Copy)]
    pub struct Meter {
        /// Limit of bits per second.
        bandwidth: Option<RatePair> = "bandwidth", BANDWIDTH;
        /// Limit of packets per second.
        packets: Option<RatePair> = "packets", PACKETS;
    }
}

/// How a pair of rates is written.
struct Rates<B> {
    rate: Text<u64>,
    burst: B,
    /// Where no burst is given it is the rate divided by this, but not less than `least`.
    divide: u64,
    least: u64,
    required: &'static str,
    burst_words: &'static str,
    /// Of the committed rate, its burst, the peak rate, its burst.
    meanings: [&'static str; 4],
}

const BANDWIDTH: Rates<Text<u64>> = Rates {
    rate: bandwidth(),
    burst: bytes(),
    divide: 8 * 20,
    least: 64 << 10,
    required: "required with `bandwidth`",
    burst_words: "50 ms of the rate, at least 64KiB",
    meanings: [
        "Committed rate of inner frame bits. Within it a packet is green.",
        "Bytes at once within the committed rate.",
        "Peak rate, not below the committed: what exceeds it is dropped.",
        "Bytes at once within the peak rate.",
    ],
};

const PACKETS: Rates<Int<u64>> = Rates {
    rate: packet_rate(),
    burst: burst(),
    divide: 20,
    least: 64,
    required: "required with `packets`",
    burst_words: "50 ms of the rate, at least 64",
    meanings: [
        "Committed packets per second.",
        "Packets at once within the committed rate.",
        "Peak packets per second, not below the committed: what exceeds it is dropped.",
        "Packets at once within the peak rate.",
    ],
};

impl<B: Form<Value = u64>> Slot for Rates<B> {
    type Value = Option<RatePair>;

    fn rows(&self, path: &str, _: &str, out: &mut Vec<Field>) {
        let defaults = [self.required, self.burst_words, "the committed rate", self.burst_words];
        let names = ["committed", "committedBurst", "peak", "peakBurst"];
        for (i, (name, default)) in names.into_iter().zip(defaults).enumerate() {
            let (path, default) = (below(path, name), default.to_string());
            out.push(match i % 2 {
                0 => self.rate.row(&path, default, self.meanings[i]),
                _ => self.burst.row(&path, default, self.meanings[i]),
            });
        }
    }

    fn usual(&self) -> Option<RatePair> {
        None
    }

    fn read(&self, doc: &mut Doc<'_>, path: &str) -> Option<RatePair> {
        doc.node(path)?;
        let at = |name| below(path, name);
        let committed = doc.need(&at("committed"), &self.rate);
        let committed_burst = doc.get(&at("committedBurst"), &self.burst);
        let peak = doc.get(&at("peak"), &self.rate);
        let peak_burst = doc.get(&at("peakBurst"), &self.burst);
        let committed = committed?;
        if peak.is_some_and(|p| p < committed) {
            doc.wrong(&at("peak"), Problem::Value("is below the committed rate".into()));
        }
        let peak = peak.unwrap_or(committed);
        let usual = |rate: u64| (rate / self.divide).clamp(self.least, u64::from(u32::MAX));
        let committed_burst = committed_burst.unwrap_or_else(|| usual(committed));
        Some(RatePair { committed, committed_burst, peak, peak_burst: peak_burst.unwrap_or_else(|| usual(peak)) })
    }

    fn write(&self, value: &Option<RatePair>, out: &mut Written, path: &str) {
        let Some(p) = value else { return };
        let at = |name| below(path, name);
        out.value(&at("committed"), &self.rate, &p.committed);
        out.value(&at("committedBurst"), &self.burst, &p.committed_burst);
        out.value(&at("peak"), &self.rate, &p.peak);
        out.value(&at("peakBurst"), &self.burst, &p.peak_burst);
    }
}

/// A meter that may be absent.
pub(crate) struct MeterSlot;

impl Slot for MeterSlot {
    type Value = Option<Box<Meter>>;

    fn rows(&self, path: &str, _: &str, out: &mut Vec<Field>) {
        Meter::rows(path, out);
    }

    fn usual(&self) -> Option<Box<Meter>> {
        None
    }

    fn read(&self, doc: &mut Doc<'_>, path: &str) -> Option<Box<Meter>> {
        doc.node(path)?;
        Some(Box::new(Meter::read(doc, path))).filter(|m| m.bandwidth.is_some() || m.packets.is_some())
    }

    fn write(&self, value: &Option<Box<Meter>>, out: &mut Written, path: &str) {
        if let Some(meter) = value {
            meter.write(out, path);
        }
    }
}
