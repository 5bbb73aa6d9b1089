// SPDX-License-Identifier: Apache-2.0
//! Shaping, which Overlays have.

use crate::declare::{below, fields, Field, Fields, Slot};
use crate::doc::Doc;
use crate::forms::*;
use crate::written::Written;

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

/// A shape that may be absent.
pub(crate) struct ShapeSlot;

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
        let usual = |part: u64, least: u64, most: u64| (f.rate / part).clamp(least, most) as u32;
        Some(Shape {
            rate: f.rate,
            burst: f.burst.map_or_else(|| usual(BURST_PART, BURST_LEAST, SHAPE_BYTES_MAX), |n| n as u32),
            bytes: f.bytes.map_or_else(|| usual(WAITING_PART, WAITING_LEAST, WAITING_MOST), |n| n as u32),
            packets: f.packets,
            wait: f.wait,
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
