// SPDX-License-Identifier: Apache-2.0
//! Exact-match tables in SRAM: entries packed over words, ways of a cuckoo hash, action data beside or inside.
//!
//! A stage's SRAM is a grid of rows and columns of blocks. A format `w` words wide takes `w` blocks in adjacent rows of
//! one column, so a width that does not divide the rows leaves rows that only action data can use.

use super::format::{fits, ghost, Request, VERSION_BITS};
use super::state::Attached;
use super::{Geometry, Key, Packing, Part, Stages, Unplaced};

/// More blocks than any chip has: counts stop here instead of overflowing.
const LARGE: u64 = 1 << 24;

/// How action data is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActionFormat {
    /// Bytes an entry in an action RAM; 0 = none.
    pub ram_bytes: u32,
    /// Bits beside the entry.
    pub immediate: u32,
}

/// The ways to store `bits` of action data. It lies in slots of 32, 16 and 8 bits, as the packet header vector takes it. All
/// of it may stand in an action RAM, whose entries are powers of two of bytes; moving whole slots beside the entry halves
/// that (from more than 16 bytes it takes 16 away), until no more than `immediate_max` bits can be moved.
pub fn action_formats(bits: u32, immediate_max: u32) -> Vec<ActionFormat> {
    let bytes = |bits: u32| match bits.div_ceil(8) {
        n if n > 16 => n.next_multiple_of(16),
        0 => 0,
        n => n.next_power_of_two(),
    };
    let slots = slots(bits);
    let whole: u32 = slots.iter().sum();
    let mut out = vec![ActionFormat { ram_bytes: bytes(whole), immediate: 0 }];
    let mut now = bytes(whole);
    while now > 0 {
        let next = if now > 16 { now - 16 } else { now / 2 };
        let need = whole.saturating_sub(next * 8);
        let Some(moved) = fewest(&slots, need).filter(|m| *m <= immediate_max) else { break };
        now = bytes(whole - moved);
        let format = ActionFormat { ram_bytes: now, immediate: moved - padding(&slots, moved, whole - bits) };
        if out.contains(&format) {
            break;
        }
        out.push(format);
    }
    out
}

/// Slots for so many bits, the last one perhaps not full: as many of 32 as are full, then one of 32, of 16 and 8, of 16 or
/// of 8 for the rest, whichever is the least that holds it.
fn slots(bits: u32) -> Vec<u32> {
    let mut slots = vec![32; (bits / 32) as usize];
    let rest: &[u32] = match (bits % 32).div_ceil(8) {
        0 => &[],
        1 => &[8],
        2 => &[16],
        3 => &[16, 8],
        _ => &[32],
    };
    slots.extend(rest);
    slots
}

/// Bits that hold nothing among `moved` bits of slots: those of the last slot, which need no place beside the entry, if it is
/// one of them.
fn padding(slots: &[u32], moved: u32, empty: u32) -> u32 {
    let Some((last, others)) = slots.split_last() else { return 0 };
    let with_last = moved.checked_sub(*last).is_some_and(|rest| fewest(others, rest) == Some(rest));
    if with_last {
        empty
    } else {
        0
    }
}

/// The least sum of some of the slots that is at least `need`.
fn fewest(slots: &[u32], need: u32) -> Option<u32> {
    let mut sums = std::collections::BTreeSet::from([0]);
    for slot in slots {
        sums.extend(sums.clone().iter().map(|s| s + slot));
    }
    sums.range(need..).next().copied()
}

impl ActionFormat {
    /// Blocks of action RAM for this many entries.
    pub fn blocks(&self, entries: u64, g: &Geometry) -> u32 {
        match self.ram_bytes {
            0 => 0,
            n if n * 8 <= g.sram_width => {
                entries.div_ceil(u64::from(g.sram_depth) * u64::from(g.sram_width / 8 / n)).min(LARGE) as u32
            }
            n => (entries.div_ceil(u64::from(g.sram_depth)) * u64::from(n * 8 / g.sram_width)).min(LARGE) as u32,
        }
    }
}

/// What is compared.
#[derive(Clone, Debug)]
pub struct Match {
    /// Bits of each byte of the key that is stored, before the row address is left out.
    pub bytes: Vec<u32>,
    /// Crossbar group of each byte.
    pub groups: Vec<u8>,
    /// The row address says some bits of the key: no digest, no algorithmic TCAM.
    pub ghosts: bool,
    /// Entries have priorities.
    pub ranked: bool,
    /// Whether entries may lie across words.
    pub packing: Packing,
}

impl Match {
    /// The whole key, or a digest of it.
    pub fn exact(key: &Key, digest: Option<u32>, g: &Geometry) -> Match {
        let bytes = match digest {
            None => key.byte_bits(),
            // The digest comes out of the hash matrix in bytes. Where the key takes two crossbar groups, the second half of
            // the hash bus is what is left for it, which starts in the middle of a byte.
            Some(bits) if key.bytes() > g.crossbar_group && bits > 20 => {
                let mut b = vec![4];
                b.extend(Key::of(&[bits - 4]).byte_bits());
                b
            }
            Some(bits) => Key::of(&[bits]).byte_bits(),
        };
        let groups = (0..bytes.len()).map(|i| (i as u32 / g.crossbar_group) as u8).collect();
        Match { bytes, groups, ghosts: digest.is_none(), ranked: false, packing: Packing::Straddling }
    }

    /// Bits and bytes that are surely stored: those of the row address are not, nor are bytes that it says whole.
    fn size(&self, g: &Geometry) -> (u32, u32) {
        let (mut bits, mut bytes) = (self.bytes.iter().sum::<u32>(), self.bytes.len() as u32);
        if self.ghosts {
            let mut left = g.row_bits();
            bits -= left.min(bits);
            let mut sizes = self.bytes.clone();
            sizes.sort_unstable();
            for size in sizes {
                if left >= size {
                    left -= size;
                    bytes -= 1;
                }
            }
        }
        (bits, bytes)
    }

    /// Bits stored if `ways` hash bits beyond the row are known.
    fn stored(&self, g: &Geometry, extra: u32) -> Vec<u32> {
        match self.ghosts {
            true => ghost(&self.bytes, &self.groups, g.row_bits() + extra),
            false => self.bytes.clone(),
        }
    }
}

/// A packing: so many entries in so many words, and where the action data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Entries in one row.
    pub pack: u32,
    /// Words, that is blocks side by side.
    pub width: u32,
    /// Action data.
    pub action: ActionFormat,
    /// State beside the entries.
    pub attached: Attached,
}

impl Layout {
    /// Blocks with room for what so many entries say and count.
    fn attached_state(&self, entries: u64, g: &Geometry) -> u32 {
        self.action.blocks(entries, g) + self.attached.blocks(entries, g)
    }
}

/// All packings that could fit if only bits were counted.
pub fn layouts(m: &Match, action_bits: u32, attached: Attached, g: &Geometry) -> Vec<Layout> {
    let (bits, bytes) = m.size(g);
    let mut out = Vec::new();
    for action in action_formats(action_bits, g.immediate_bits) {
        for pack in 1..=g.pack_max {
            let overhead = pack * action.immediate;
            let one = action.immediate + VERSION_BITS + bits;
            let overhead_width = overhead.div_ceil(64);
            if m.ranked && (overhead_width > 1 || pack > g.row_entries_max) {
                break;
            }
            let width = (pack * one)
                .div_ceil(g.sram_width)
                .max((pack * bytes).div_ceil(g.sram_width / 8))
                .max(overhead_width)
                .max(pack.div_ceil(g.row_entries_max));
            let (left, least) = if width > pack { (width % pack, pack) } else { (pack % width, width) };
            let straddles = width != 1 && pack != 1;
            if left == 0 && least != 1 || straddles && m.packing == Packing::Aligned {
                continue;
            }
            if width > g.sram_rows {
                break;
            }
            out.push(Layout { pack, width, action, attached });
        }
    }
    out
}

/// Sizes of the ways for so many blocks of depth: at least four independent hash functions.
pub fn ways(depth: u32, g: &Geometry) -> Vec<u32> {
    // What is more than a stage is divided as the stage is.
    let depth = depth.clamp(4, g.sram_per_stage().max(4));
    if depth < 8 {
        return (0..4).map(|i| if i < depth - 4 { 2 } else { 1 }).collect();
    }
    let mut size = (1u32 << depth.min(64).ilog2()) / 4;
    let (mut left, mut out, mut bits, mut round) = (depth, Vec::new(), 0, 0);
    let select = g.select_bits();
    while left > 0 {
        let need = 32 - (size - 1).leading_zeros();
        if size <= left && need <= select - bits % select {
            out.push(size);
            left -= size;
            bits += need;
            round += 1;
        } else {
            size /= 2;
        }
        if left > 0 && round >= 4 {
            round = 0;
            size = if left >= out[0] { out[0] } else { 1 << left.ilog2() };
        }
    }
    out
}

/// A layout with its size in one stage.
#[derive(Clone, Copy, Debug)]
struct Sized {
    layout: Layout,
    depth: u32,
    action: u32,
    /// Blocks of counters, meters and registers.
    state: u32,
    /// One word more than the bits ask for, because the bytes did not fit.
    widened: bool,
}

impl Sized {
    fn new(layout: Layout, depth: u32, widened: bool, g: &Geometry) -> Sized {
        let depth = if depth == 0 { 0 } else { depth.max(4) };
        let entries = u64::from(depth) * u64::from(layout.pack) * u64::from(g.sram_depth);
        let state = layout.attached.blocks(entries, g);
        Sized { layout, depth, action: layout.action.blocks(entries, g), state, widened }
    }

    /// With room for so many entries.
    fn holding(&self, entries: u64, g: &Geometry) -> Sized {
        let depth = entries.div_ceil(u64::from(self.layout.pack) * u64::from(g.sram_depth)).min(1 << 20);
        Sized::new(self.layout, depth as u32, self.widened, g)
    }

    /// As deep as so many blocks allow. Four ways are the least, even if they are more than that.
    fn within(&self, room: u32, g: &Geometry) -> Sized {
        let fits = |depth: u32| {
            let entries = u64::from(depth) * u64::from(self.layout.pack) * u64::from(g.sram_depth);
            u64::from(depth * self.layout.width) + u64::from(self.layout.attached_state(entries, g)) <= u64::from(room)
        };
        let (mut low, mut high) = (0, room);
        while low < high {
            let middle = high - (high - low) / 2;
            (low, high) = if fits(middle) { (middle, high) } else { (low, middle - 1) };
        }
        Sized::new(self.layout, low, self.widened, g)
    }

    fn entries(&self, g: &Geometry) -> u64 {
        u64::from(self.depth) * u64::from(self.layout.pack) * u64::from(g.sram_depth)
    }

    fn blocks(&self) -> u32 {
        self.depth * self.layout.width + self.action + self.state
    }

    fn part(&self, g: &Geometry) -> Part {
        let state = self.layout.attached.attached_state(self.entries(g), g).unwrap_or_default();
        let part = Part {
            sram_match: self.depth * self.layout.width,
            sram_action: self.action,
            entries: self.entries(g),
            width: self.layout.width,
            columns: vec![1; self.depth as usize],
            pack: self.layout.pack,
            immediate: self.layout.action.immediate,
            ..Part::default()
        };
        part.with_state(&state)
    }
}

/// What was found out about packings of one key: which fit byte for byte. Stages of a table ask for the same again and again.
#[derive(Default)]
struct Formats(std::collections::HashMap<(u32, u32, u32, u32), bool>);

impl Formats {
    fn fits(&mut self, m: &Match, s: &Sized, g: &Geometry) -> bool {
        let extra = ways(s.depth, g).iter().min().map_or(0, |w| w.ilog2());
        let Layout { pack, width, action, .. } = s.layout;
        let found = || {
            fits(&Request {
                bytes: m.stored(g, extra),
                groups: m.groups.clone(),
                overhead: action.immediate,
                entries: pack,
                width,
                word_bytes: (g.sram_width / 8) as usize,
                ranked: m.ranked,
            })
        };
        *self.0.entry((pack, width, action.immediate, extra)).or_insert_with(found)
    }
}

/// Places `entries` in as few stages as the compiler's search finds: whole if any packing fits into the stage, else as
/// much as fits; what is left goes into the next stage, with a packing of its own.
pub fn place(
    m: &Match,
    mut entries: u64,
    action_bits: u32,
    attached: Attached,
    stages: &mut dyn Stages,
    g: &Geometry,
) -> Result<Vec<(usize, Part)>, Unplaced> {
    let all = layouts(m, action_bits, attached, g);
    if all.is_empty() {
        return Err(Unplaced::KeyTooWide);
    }
    let (mut out, mut formats) = (Vec::new(), Formats::default());
    let mut stage = 0;
    while entries > 0 {
        let Some(grid) = stages.free(stage) else { return Err(Unplaced::Stages { left: entries }) };
        let mut search = Search { m, g, grid: &grid, options: Vec::new(), formats: &mut formats };
        if let Some(s) = search.whole(&all, entries).or_else(|| search.most()) {
            entries = entries.saturating_sub(s.entries(g));
            stages.take(stage, &s.part(g));
            out.push((stage, s.part(g)));
        } else if grid == super::Grid::empty(g) {
            // What an empty stage does not take, none does.
            return Err(Unplaced::NoPart);
        }
        stage += 1;
    }
    Ok(out)
}

/// The compiler's search for the packing in one stage.
///
/// It first tries all packings with all entries. A packing whose bytes do not fit with the ways that *all* entries would
/// have is widened by a word, or given up, for this stage: also where fewer entries, with other ways and so with other
/// bits known from the address, would fit. Then it shrinks what is left to the stage.
struct Search<'a> {
    m: &'a Match,
    g: &'a Geometry,
    grid: &'a super::Grid,
    options: Vec<Sized>,
    formats: &'a mut Formats,
}

impl Search<'_> {
    fn takes(&self, s: &Sized) -> bool {
        s.depth > 0 && s.blocks() <= self.grid.sram() && self.grid.takes(&s.part(self.g), self.g)
    }

    /// The cheapest packing that takes all entries in this stage.
    fn whole(&mut self, all: &[Layout], entries: u64) -> Option<Sized> {
        self.options = all.iter().map(|l| Sized::new(*l, 0, false, self.g)).collect();
        self.cheapest(entries);
        let mut at = 0;
        while at < self.options.len() {
            let s = self.options[at];
            if !self.formats.fits(self.m, &s, self.g) {
                self.widen(at);
                self.cheapest(entries);
                at = 0;
            } else if self.takes(&s) {
                return Some(s);
            } else {
                at += 1;
            }
        }
        None
    }

    /// The packing that brings most entries into this stage.
    fn most(&mut self) -> Option<Sized> {
        let (g, room) = (self.g, self.grid.sram());
        self.options.iter_mut().for_each(|s| *s = s.within(room, g));
        self.options.retain(|s| s.depth > 0);
        self.options.sort_by_key(|s| {
            let data = s.action > 0;
            (s.blocks() > room, std::cmp::Reverse(s.entries(g)), s.layout.width, s.layout.pack, data)
        });
        while let Some(&first) = self.options.first() {
            if !self.formats.fits(self.m, &first, g) {
                // Others take its place with as many entries, the cheapest first.
                self.widen(0);
                self.cheapest(first.entries(g));
            } else if self.takes(&first) {
                return Some(first);
            } else {
                self.shrink();
            }
        }
        None
    }

    /// Makes the first packing smaller by a block at least; then most entries come first.
    fn shrink(&mut self) {
        let (g, first) = (self.g, self.options[0]);
        match first.depth {
            0..=4 => drop(self.options.remove(0)),
            depth => self.options[0] = Sized::new(first.layout, depth - 1, first.widened, g),
        }
        self.options.sort_by_key(|s| {
            (std::cmp::Reverse(s.entries(g)), s.blocks(), s.layout.width, s.layout.pack, s.action > 0)
        });
    }

    /// Sizes all packings for so many entries, fewest blocks first.
    fn cheapest(&mut self, entries: u64) {
        let g = self.g;
        self.options.iter_mut().for_each(|s| *s = s.holding(entries, g));
        self.options.sort_by(|a, b| {
            let same = a.entries(g) == b.entries(g);
            let cost = |s: &Sized| (s.blocks(), s.layout.width);
            cost(a)
                .cmp(&cost(b))
                .then(if same { a.layout.pack.cmp(&b.layout.pack) } else { std::cmp::Ordering::Equal })
                .then((a.action > 0).cmp(&(b.action > 0)))
                .then(b.entries(g).cmp(&a.entries(g)))
        });
    }

    /// Gives a packing one word more, where bytes got in the way of what the bits allow; or gives it up.
    fn widen(&mut self, at: usize) {
        let s = &mut self.options[at];
        let width = s.layout.width + 1;
        let dividable = width.is_multiple_of(s.layout.pack) && s.layout.pack != 1;
        if s.widened || dividable || width > self.g.sram_rows {
            self.options.remove(at);
        } else {
            s.layout.width = width;
            s.widened = true;
        }
    }
}
