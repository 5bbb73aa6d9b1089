// SPDX-License-Identifier: Apache-2.0
//! `Migrate_Tbl` (§5.2): which prefixes of connections the software path judges, as both engines read it, with a counter of bytes for
//! each entry. Layout and order of stores are described in `abi::states`; `bpf/states/migrate.h` is the reader in C.

use crate::prefixes::Block;
use crate::root::{load, store, LINE_WORDS};
use crate::{Key, WordMemory};
use abi::*;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use tables::Packed;

/// Bits of what stands for a connection of IPv4: both addresses and both ports, the lower end's first.
pub const WIDTH4: u8 = 96;
/// The same of IPv6: the lower end's address.
pub const WIDTH6: u8 = 128;

const TOP: usize = std::mem::offset_of!(StatesMigrate, top) / 8;
/// Lines of the trees of a half: an entry needs at most a line in each of its trees, and what stands above them.
const TREE_LINES: u32 = MIGRATE_ENTRIES_MAX / 2 * 5 + 64;
const COUNTER_LINES: u32 = MIGRATE_ENTRIES_MAX / LINE_WORDS as u32;
const HALF_LINES: u32 = TREE_LINES + COUNTER_LINES;

/// Where a connection lies: VNI of its lower end, whether it is of IPv6, and the number whose prefixes migrate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// VNI of the lower end.
    pub vni: Vni,
    /// IPv6.
    pub v6: bool,
    /// WIDTH4 or WIDTH6 bits.
    pub addr: u128,
}

impl From<&Key> for Place {
    #[inline(always)]
    fn from(key: &Key) -> Place {
        let four = |low: u64, high: u64, ports: u64| {
            u128::from(low as u32) << 64 | u128::from(high as u32) << 32 | u128::from(ports as u32)
        };
        let (v6, addr) = match key {
            Key::V4(w) => (false, four(w[0], w[1] >> 32, w[1])),
            Key::Wide(w) if w[5] & STATES_PAIR_V4 != 0 => (false, four(w[2], w[4], w[0])),
            Key::Wide(w) => (true, u128::from(w[1]) << 64 | u128::from(w[2])),
        };
        Place { vni: key.vni(), v6, addr }
    }
}

impl Place {
    /// What the three trees are searched by.
    #[inline(always)]
    fn keys(&self) -> [u64; 3] {
        let bits = if self.v6 { self.addr } else { self.addr << (WIDTH6 - WIDTH4) };
        [u64::from(self.vni) << 1 | u64::from(self.v6), (bits >> 64) as u64, bits as u64]
    }
}

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// VNI of the lower end.
    pub vni: Vni,
    /// IPv6.
    pub v6: bool,
    /// The prefix, of WIDTH4 or WIDTH6 bits.
    pub prefix: Block,
    /// The software path judges; else the bytes are counted, no more.
    pub away: bool,
}

impl Entry {
    /// First and last of its numbers, as 128 bits.
    fn range(&self) -> (u128, u128) {
        let width = if self.v6 { WIDTH6 } else { WIDTH4 };
        let first = self.prefix.addr << (WIDTH6 - width);
        (first, first | u128::MAX.checked_shr(self.prefix.len.into()).unwrap_or(0))
    }
}

/// As `10.0.0.0/24` for an address of the lower end, `10.0.0.5 with 10.0.1.0/24` for both, `10.0.0.5 with 10.0.0.6 ports 0x00501f00/24`.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (addr, len) = (self.prefix.addr, self.prefix.len);
        if self.v6 {
            return write!(f, "{}/{len}", Ipv6Addr::from_bits(addr));
        }
        let [low, high] = [addr >> 64, addr >> 32].map(|bits| Ipv4Addr::from_bits(bits as u32));
        match len {
            0..=32 => write!(f, "{low}/{len}"),
            33..=64 => write!(f, "{low} with {high}/{}", len - 32),
            _ => write!(f, "{low} with {high} ports {:#010x}/{}", addr as u32, len - 64),
        }
    }
}

/// Why entries cannot be written: there are more than fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

/// The writer.
pub(crate) struct MigrateTbl {
    memory: Arc<dyn WordMemory>,
    half: u32,
    /// Entries of the half that is read, in the order of their counters, and what those said last.
    entries: Vec<(Entry, u64)>,
}

impl MigrateTbl {
    /// Lines of its memory.
    pub(crate) const LINES: u64 = 1 + 2 * HALF_LINES as u64;

    /// On zeroed memory that nobody reads yet.
    pub(crate) fn new(memory: Arc<dyn WordMemory>) -> MigrateTbl {
        MigrateTbl { memory, half: 1, entries: Vec::new() }
    }

    pub(crate) fn reader(&self) -> MigrateReader {
        MigrateReader(self.memory.clone())
    }

    /// The entries that are read, with the bytes that each counted since it was asked last.
    pub(crate) fn harvest(&mut self) -> impl Iterator<Item = (Entry, u64)> + '_ {
        let (words, first) = (self.memory.words(), self.counters(self.half));
        self.entries.iter_mut().enumerate().map(move |(i, (entry, last))| {
            let now = load(words, first + i);
            (*entry, now.wrapping_sub(std::mem::replace(last, now)))
        })
    }

    /// The entry that leaves a connection to the software path.
    pub(crate) fn away(&self, place: &Place) -> Option<Entry> {
        let bits = if place.v6 { place.addr } else { place.addr << (WIDTH6 - WIDTH4) };
        let mine = |e: &&Entry| (e.vni, e.v6, e.away) == (place.vni, place.v6, true);
        self.entries().filter(mine).find(|e| (e.range().0..=e.range().1).contains(&bits)).copied()
    }

    /// The entries that are read.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().map(|(entry, _)| entry)
    }

    /// First word of a half's counters.
    fn counters(&self, half: u32) -> usize {
        (1 + half * HALF_LINES + TREE_LINES) as usize * LINE_WORDS
    }

    /// Brings other entries into force, sorted and disjoint. All that read the half before the last one have ended.
    pub(crate) fn publish(&mut self, entries: &[Entry]) -> Result<(), TooMany> {
        let half = self.half ^ 1;
        let (first, words) = (1 + half * HALF_LINES, self.memory.words());
        let mut packed = Packed::new(LineNo(first));
        let top = trees(entries, &mut packed).filter(|_| packed.lines().len() <= TREE_LINES as usize).ok_or(TooMany)?;
        for (i, line) in packed.lines().iter().enumerate() {
            let at = (first as usize + i) * LINE_WORDS;
            line.iter().enumerate().for_each(|(j, word)| store(words, at + j, *word));
        }
        let counters = self.counters(half);
        (0..entries.len()).for_each(|i| store(words, counters + i, 0));
        store(words, TOP, u64::from(top) | (counters / LINE_WORDS) as u64 * u64::from(top != 0) << 32);
        self.half = half;
        self.entries = entries.iter().map(|e| (*e, 0)).collect();
        Ok(())
    }
}

/// The trees of entries: the value that leads to them.
fn trees(entries: &[Entry], packed: &mut Packed) -> Option<u32> {
    if entries.len() > MIGRATE_ENTRIES_MAX as usize {
        return None;
    }
    let (mut vnis, mut number) = (Vec::new(), 0u32);
    for mine in entries.chunk_by(|a, b| (a.vni, a.v6) == (b.vni, b.v6)) {
        let mut upper = Vec::new();
        let ranges = mine.iter().map(|e| {
            number += 1;
            let (first, last) = e.range();
            (first, last, number | if e.away { MIGRATE_AWAY } else { 0 })
        });
        let ranges: Vec<(u128, u128, u32)> = ranges.collect();
        let halves = |a: &(u128, u128, u32)| ((a.0 >> 64) as u64, (a.1 >> 64) as u64);
        let inside = |a: &(u128, u128, u32)| (a.1 - a.0) >> 64 == 0 && a.1 - a.0 != u128::from(u64::MAX);
        for part in ranges.chunk_by(|a, b| inside(a) && inside(b) && halves(a) == halves(b)) {
            let (first, last) = halves(&part[0]);
            let value = match inside(&part[0]) {
                false => part[0].2,
                true => {
                    let lower: Vec<(u64, u64, u32)> = part.iter().map(|r| (r.0 as u64, r.1 as u64, r.2)).collect();
                    packed.tree(&lower)?
                }
            };
            upper.push((first, last, value));
        }
        let key = u64::from(mine[0].vni) << 1 | u64::from(mine[0].v6);
        vnis.push((key, key, packed.tree(&upper)?));
    }
    packed.tree(&vnis)
}

/// A reader.
#[derive(Clone)]
pub struct MigrateReader(Arc<dyn WordMemory>);

impl MigrateReader {
    /// The value of the entry that covers a connection and the word of its counter; 0 if there is none.
    #[inline]
    pub fn find(&self, place: &Place) -> (u32, usize) {
        let words = self.0.words();
        let top = load(words, TOP);
        let mut value = top as u32;
        for key in place.keys() {
            let scope = value >> VALUE_SCOPE_SHIFT;
            if scope < SCOPE_DESCEND {
                break;
            }
            value = walk(words, value & VALUE_ARG_MASK, scope - SCOPE_DESCEND + 1, key);
        }
        if value == 0 || value >> VALUE_SCOPE_SHIFT != 0 {
            return (0, 0);
        }
        (value, (top >> 32) as usize * LINE_WORDS + (value & MIGRATE_COUNTER_MASK).wrapping_sub(1) as usize)
    }

    /// Counts bytes for what was found.
    #[inline]
    pub fn count(&self, (value, counter): (u32, usize), bytes: u32) {
        if let Some(word) = self.0.words().get(counter).filter(|_| value > 0) {
            word.fetch_add(bytes.into(), Ordering::Relaxed);
        }
    }
}

/// The value of a key in a tree.
#[inline(always)]
fn walk(words: &[std::sync::atomic::AtomicU64], mut line: u32, levels: u32, key: u64) -> u32 {
    let half = |at: usize, i: usize| (load(words, at + i / 2) >> (i % 2 * 32)) as u32;
    for level in (1..=levels).rev() {
        let at = line as usize * LINE_WORDS;
        let bounds = if level == 1 { 5 } else { 7 };
        let n = (0..bounds).filter(|i| load(words, at + i) < key).count();
        if level == 1 {
            return half(at, 10 + n);
        }
        line = half(at, 14).wrapping_add(n as u32);
    }
    0
}
