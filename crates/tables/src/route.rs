// SPDX-License-Identifier: Apache-2.0
//! Reading a route tree. A lookup is a walk of one line a level; [`Walk`] makes the levels explicit, so that a batch can
//! take one step for every packet, prefetching the next line of each, and so overlap the misses.

use crate::Tables;
use abi::*;
use memory::{Line, Lines};

/// A lookup under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    line: LineNo,
    levels: u32,
}

impl Walk {
    /// Of no tree.
    pub const NONE: Walk = Walk { line: LineNo(0), levels: 0 };

    /// Begins at a ROUTE_ROOT; None if it has no routes.
    #[inline(always)]
    pub fn begin(root: u32) -> Option<Walk> {
        let levels = (root >> ROOT_LEVELS_SHIFT) & 0xf;
        (levels != 0).then_some(Walk { line: LineNo(root & ROOT_LINE_MASK), levels })
    }

    /// The line that the next step reads, to prefetch it.
    #[inline(always)]
    pub fn line(&self) -> LineNo {
        self.line
    }

    /// A second line that the next step reads, or the same again.
    #[inline(always)]
    pub fn second_line(&self) -> LineNo {
        self.line.wrapping_add(u32::from(self.levels == ROOT_FLAT))
    }
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Flat32, picks) == 64 + 16 && offset_of!(Flat32, values) == 64 + 24);
};

/// Number of bounds less than the key: the child or interval that covers it.
#[inline(always)]
fn rank32<const N: usize>(line: &Line, key: u32) -> usize {
    let words = line.snapshot();
    let mut n = 0;
    for i in 0..N {
        n += usize::from(((words[i >> 1] >> ((i & 1) * 32)) as u32) < key);
    }
    n
}

/// As `rank32` over 64-bit bounds.
#[inline(always)]
fn rank64<const N: usize>(line: &Line, key: u64) -> usize {
    let words = line.snapshot();
    words[..N].iter().map(|b| usize::from(*b < key)).sum()
}

/// The value of a key in a Flat32: its first line at `line`.
#[inline(always)]
fn flat32(lines: &Lines, line: LineNo, key: u32) -> u32 {
    let (first, second) = (lines.at(line), lines.at(line.wrapping_add(1)));
    let n = rank32::<16>(first, key) + rank32::<4>(second, key);
    let pick = second.word(2) >> (3 * n) & 7;
    second.half(6 + pick as usize)
}

/// One step over 32-bit keys: a value at the leaf, else the walk goes on.
#[inline(always)]
fn step32(lines: &Lines, walk: &mut Walk, key: u32) -> Option<u32> {
    crate::pause!();
    if walk.levels == ROOT_FLAT {
        return Some(flat32(lines, walk.line, key));
    }
    let node = lines.at(walk.line);
    if walk.levels <= 1 {
        return Some(node.half(8 + rank32::<7>(node, key)));
    }
    walk.levels -= 1;
    walk.line = LineNo(node.half(15)).wrapping_add(rank32::<15>(node, key) as u32);
    lines.prefetch(walk.line);
    None
}

/// One step over 64-bit keys.
#[inline(always)]
fn step64(lines: &Lines, walk: &mut Walk, key: u64) -> Option<u32> {
    crate::pause!();
    let node = lines.at(walk.line);
    if walk.levels <= 1 {
        return Some(node.half(10 + rank64::<5>(node, key)));
    }
    walk.levels -= 1;
    walk.line = LineNo(node.half(14)).wrapping_add(rank64::<7>(node, key) as u32);
    lines.prefetch(walk.line);
    None
}

/// The tree over the lower halves that a SCOPE_DESCEND value names.
#[inline(always)]
fn descend(value: u32) -> Option<Walk> {
    let scope = value >> VALUE_SCOPE_SHIFT;
    (scope >= SCOPE_DESCEND).then(|| Walk { line: LineNo(value & VALUE_ARG_MASK), levels: scope - SCOPE_DESCEND + 1 })
}

pub(crate) fn lookup32(lines: &Lines, root: u32, key: u32) -> u32 {
    let Some(mut walk) = Walk::begin(root) else {
        return 0;
    };
    loop {
        if let Some(value) = step32(lines, &mut walk, key) {
            return value;
        }
    }
}

pub(crate) fn lookup128(lines: &Lines, root: u32, key: (u64, u64)) -> u32 {
    let Some(mut walk) = Walk::begin(root) else {
        return 0;
    };
    let mut half = key.0;
    let mut upper = true;
    loop {
        if let Some(value) = step64(lines, &mut walk, half) {
            match descend(value) {
                Some(lower) if upper => (walk, half, upper) = (lower, key.1, false),
                // A second descent is garbage: no route.
                Some(_) => return 0,
                None => return value,
            }
        }
    }
}

impl Tables {
    /// One step of an IPv4 lookup: the ROUTE_VALUE when it is done (0 = no route).
    #[inline(always)]
    pub fn step4(&self, walk: &mut Walk, addr: u32) -> Option<u32> {
        step32(&self.lines, walk, addr)
    }

    /// The ROUTE_VALUE of an IPv4 address under a ROUTE_ROOT, 0 if no route covers it.
    #[inline]
    pub fn route4(&self, root: u32, addr: u32) -> u32 {
        lookup32(&self.lines, root, addr)
    }

    /// The ROUTE_VALUE of an IPv6 address (upper, lower half) under a ROUTE_ROOT, 0 if no route covers it.
    #[inline]
    pub fn route6(&self, root: u32, addr: (u64, u64)) -> u32 {
        lookup128(&self.lines, root, addr)
    }

    /// One step of an IPv6 lookup. Call with the upper half until it returns a value; if that value is a descent
    /// ([`Tables::descend6`]), go on with the lower half.
    #[inline(always)]
    pub fn step6(&self, walk: &mut Walk, half: u64) -> Option<u32> {
        step64(&self.lines, walk, half)
    }

    /// The walk over the lower half of an IPv6 address, if the value of the upper half says so.
    #[inline(always)]
    pub fn descend6(&self, value: u32) -> Option<Walk> {
        let walk = descend(value)?;
        self.lines.prefetch(walk.line);
        Some(walk)
    }
}
