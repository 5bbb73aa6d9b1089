// SPDX-License-Identifier: Apache-2.0
//! Shaping, which Overlays and VMs have.

use crate::declare::{below, fields, Field, Fields, Slot};
use crate::doc::Doc;
use crate::forms::*;
use crate::quantity::{parse_bits, show_bits};
use crate::written::Written;
use std::fmt;
use std::str::FromStr;

/// Bursts without a word are what the rate gives in 5 ms, what may wait what it gives in 200 ms.
const BURST_PART: u64 = 8 * 200;
const WAITING_PART: u64 = 8 * 5;
const BURST_LEAST: u64 = 32 << 10;
const WAITING_LEAST: u64 = 128 << 10;
const WAITING_MOST: u64 = 8 << 20;

/// How packets are shaped: they wait for their turn, and are dropped only if too much waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bits a second of whole frames.
    pub rate: u64,
    /// Bytes at once.
    pub burst: u32,
    /// Bytes that may wait.
    pub bytes: u32,
    /// Packets that may wait.
    pub packets: u32,
    /// Milliseconds that one may wait.
    pub wait: u32,
}

impl Shape {
    /// What is usual at a rate.
    pub fn of_rate(rate: u64) -> Shape {
        let usual = |part: u64, least: u64, most: u64| (rate / part).clamp(least, most) as u32;
        Shape {
            rate,
            burst: usual(BURST_PART, BURST_LEAST, SHAPE_BYTES_MAX),
            bytes: usual(WAITING_PART, WAITING_LEAST, WAITING_MOST),
            packets: 8_192,
            wait: 1_000,
        }
    }

    /// Its numbers, as they are kept.
    pub(crate) fn numbers(&self) -> [u64; 5] {
        [self.rate, self.burst.into(), self.bytes.into(), self.packets.into(), self.wait.into()]
    }

    /// The same back, if each is one that a document may have.
    pub(crate) fn of_numbers([rate, burst, bytes, packets, wait]: [u64; 5]) -> Option<Shape> {
        let bytes_range = u64::from(abi::FRAME_BYTES_MAX)..=SHAPE_BYTES_MAX;
        let right = BITS.contains(&rate)
            && [burst, bytes].iter().all(|n| bytes_range.contains(n))
            && (1..=65_536).contains(&packets)
            && (1..=10_000).contains(&wait);
        let [burst, bytes, packets, wait] = [burst, bytes, packets, wait].map(|n| n as u32);
        right.then_some(Shape { rate, burst, bytes, packets, wait })
    }
}

/// What is written of it.
mod written {
    use super::*;

    fields! {
        /// Shaping: packets wait for their turn, and are dropped (`shaped_full`) only if too much waits.
        #[derive(Copy)]
        pub struct ShapeFields {
            /// Bits a second at which packets leave, counted as whole frames with their tags.
            rate: u64 = "rate", bandwidth().required(|| 1_000_000).meaning("required with `shape`");
            /// Bytes that leave at once when nothing has left for a while.
            burst: Option<u64> = "burst", shape_bytes().optional().meaning("5 ms of the rate, at least 32KiB");
            /// Bytes that may wait.
            bytes: Option<u64> = "waiting.bytes", shape_bytes().optional().meaning("200 ms of the rate, at least 128KiB, at most 8MiB");
            /// Packets that may wait.
            packets: u32 = "waiting.packets", int(1, 65_536).or(8_192);
            /// How long a packet may wait, ms: what would wait longer at this rate is dropped at once.
            wait: u32 = "waiting.time", int(1, 10_000).or(1_000);
        }
    }
}
use written::ShapeFields;

/// A rate that all lines of a customer at an edge port share, written as `100=50Mbit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CustomerRate {
    /// The customer's tag, 0 at a port without tags.
    pub customer: u16,
    /// Bits a second.
    pub rate: u64,
}

impl fmt::Display for CustomerRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.customer, show_bits(self.rate))
    }
}

impl FromStr for CustomerRate {
    type Err = String;

    fn from_str(s: &str) -> Result<CustomerRate, String> {
        let (customer, rate) = s.split_once('=').ok_or(format!("`{s}` is no customer's rate"))?;
        let plain = customer.bytes().all(|b| b.is_ascii_digit());
        let tag = customer.parse().ok().filter(|tag| plain && *tag < 4095);
        let rate = parse_bits(rate)?;
        if !BITS.contains(&rate) {
            return Err(format!("`{s}` is out of range"));
        }
        Ok(CustomerRate { customer: tag.ok_or(format!("`{customer}` is no VLAN id"))?, rate })
    }
}

/// A shape that may be absent.
pub(crate) struct ShapeSlot;

/// The same of a kind of which there are millions, most without.
pub(crate) struct ShapeSlotOfMany;

impl Slot for ShapeSlotOfMany {
    type Value = Option<Box<Shape>>;

    fn rows(&self, path: &str, default: &str, out: &mut Vec<Field>) {
        ShapeSlot.rows(path, default, out);
    }

    fn usual(&self) -> Option<Box<Shape>> {
        None
    }

    fn read(&self, doc: &mut Doc<'_>, path: &str) -> Option<Box<Shape>> {
        ShapeSlot.read(doc, path).map(Box::new)
    }

    fn write(&self, value: &Option<Box<Shape>>, out: &mut Written, path: &str) {
        ShapeSlot.write(&value.as_deref().copied(), out, path);
    }
}

impl Slot for ShapeSlot {
    type Value = Option<Shape>;

    fn rows(&self, path: &str, _: &str, out: &mut Vec<Field>) {
        ShapeFields::rows(path, out);
    }

    fn usual(&self) -> Option<Shape> {
        None
    }

    fn read(&self, doc: &mut Doc<'_>, path: &str) -> Option<Shape> {
        doc.node(path)?;
        let f = ShapeFields::read(doc, path);
        if doc.is_wrong(&below(path, "rate")) {
            return None;
        }
        let usual = Shape::of_rate(f.rate);
        Some(Shape {
            burst: f.burst.map_or(usual.burst, |n| n as u32),
            bytes: f.bytes.map_or(usual.bytes, |n| n as u32),
            packets: f.packets,
            wait: f.wait,
            ..usual
        })
    }

    fn write(&self, value: &Option<Shape>, out: &mut Written, path: &str) {
        let Some(s) = value else { return };
        let at = |name| below(path, name);
        out.value(&at("rate"), &bandwidth(), &s.rate);
        out.value(&at("burst"), &shape_bytes(), &s.burst.into());
        out.value(&at("waiting.bytes"), &shape_bytes(), &s.bytes.into());
        out.value(&at("waiting.packets"), &int::<u32>(1, 65_536), &s.packets);
        out.value(&at("waiting.time"), &int::<u32>(1, 10_000), &s.wait);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_customers_parse_and_print() {
        for s in ["100=50Mbit", "0=1Gbit", "4094=1kbit"] {
            assert_eq!(s.parse::<CustomerRate>().unwrap().to_string(), s);
        }
        for s in ["100", "4095=1Mbit", "+1=1Mbit", "=1Mbit", "1=", "1=5", "1=2Tbit", "1=1bit"] {
            assert!(s.parse::<CustomerRate>().is_err(), "{s}");
        }
    }
}
