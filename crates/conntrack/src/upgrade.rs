// SPDX-License-Identifier: Apache-2.0
//! Going over to another layout: sessions are read out of the old memory by the names of their fields, and made again in the new.
//!
//! The old fast path goes on meanwhile. So sessions are carried over twice: all of them before the switch, and after it what
//! changed since; the second time a session that is there already is brought up to date. What a field means does not
//! change with its place; a field that the old layout lacks is taken as 0.

use crate::{Direction, InnerKey, OuterKey, Owner, PairKey};
use abi::*;

/// A session by its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// Inner key.
    pub inner: InnerKey,
    /// Outer key.
    pub outer: OuterKey,
    /// The SESSION_STATE word.
    pub state: u64,
    /// Policy epoch.
    pub epoch: u16,
    /// When a packet was last taken, coarse.
    pub last_seen: u32,
    /// Sequence ends, by side.
    pub end: [u32; 2],
    /// Acknowledgements, by side.
    pub ack: [u32; 2],
    /// Windows, by side.
    pub window: [u16; 2],
    /// The `count` word.
    pub count: u64,
}

/// Session memory of another layout.
pub struct OldMemory<'a> {
    /// Byte offset of a field of a structure, if that layout has it.
    pub field: &'a dyn Fn(&str, &str) -> Option<usize>,
    /// An aligned 8-byte word of the root, by its byte offset.
    pub root: &'a dyn Fn(usize) -> Option<u64>,
    /// An aligned 8-byte word of the segments, which lie side by side, by its byte offset.
    pub word: &'a dyn Fn(usize) -> Option<u64>,
    /// Segments.
    pub segments: u32,
    /// Bytes of a segment.
    pub segment_bytes: usize,
}

impl OldMemory<'_> {
    /// A field of `bytes` bytes of the structure at `base`; 0 if the layout lacks it.
    fn get(&self, base: usize, structure: &str, name: &str, bytes: usize) -> Option<u64> {
        let Some(offset) = (self.field)(structure, name) else { return Some(0) };
        let at = base + offset;
        let word = (self.word)(at & !7)?;
        let shifted = word >> (8 * (at & 7));
        Some(if bytes == 8 { shifted } else { shifted & ((1 << (8 * bytes)) - 1) })
    }

    fn image(&self, base: usize, line: usize) -> Option<Image> {
        let record = |name: &str, bytes: usize| self.get(base, "SessionRecord", name, bytes);
        let state = record("state", 8)?;
        if state & SESSION_STATE_MASK == 0 {
            return None;
        }
        let (first, outer) = (record("inner0", 8)?, record("outer", 8)?);
        let inner = if state & SESSION_V6 == 0 {
            InnerKey::V4([first, record("inner1", 8)?])
        } else {
            let addr = |name: &str| self.get(base + line, "SessionAddresses", name, 8);
            InnerKey::V6([first, addr("vm_hi")?, addr("vm_lo")?, addr("remote_hi")?, addr("remote_lo")?])
        };
        let pair = PairKey { inner, other: Vni((outer >> 40) as u32) };
        let outer_key = match inner {
            _ if Owner::of(state) == Owner::Filter => pair.outer(),
            InnerKey::V4(w) => {
                OuterKey::V4([w[0] & (0xff << 32) | outer >> 32, w[1] & !0xffff_0000 | outer & 0xffff_0000])
            }
            InnerKey::V6(_) => inner.untranslated(),
        };
        Some(Image {
            inner,
            outer: outer_key,
            state: state & !SESSION_LOCK,
            epoch: outer as u16,
            last_seen: record("last_seen", 4)? as u32,
            end: [record("end_out", 4)? as u32, record("end_in", 4)? as u32],
            ack: [record("ack_out", 4)? as u32, record("ack_in", 4)? as u32],
            window: [record("window_out", 2)? as u16, record("window_in", 2)? as u16],
            count: record("count", 8)?,
        })
    }

    /// Tells every session. The old tracker has ended; its fast path may go on.
    pub fn export(&self, each: &mut dyn FnMut(&Image)) {
        let line = LINE_BYTES as usize;
        let Some(kinds) = (self.field)("SessionRoot", "kinds") else { return };
        for n in 0..self.segments as usize {
            let Some(word) = (self.root)((kinds + n) & !7) else { return };
            let step = match (word >> (8 * ((kinds + n) & 7))) as u8 {
                SESSION_SEGMENT_V4 => line,
                SESSION_SEGMENT_V6 => 2 * line,
                _ => continue,
            };
            let first = n * self.segment_bytes;
            for base in (first..first + self.segment_bytes).step_by(step) {
                if let Some(image) = self.image(base, line) {
                    each(&image);
                }
            }
        }
    }
}

impl Image {
    /// Sequence space of a side.
    pub(crate) fn sequence(&self, side: Direction) -> (u32, u32, u16) {
        let s = side as usize;
        (self.end[s], self.ack[s], self.window[s])
    }
}
