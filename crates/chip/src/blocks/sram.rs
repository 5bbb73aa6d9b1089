// SPDX-License-Identifier: Apache-2.0
//! Exact-match tables in SRAM: entries packed over words, ways of a cuckoo hash, action data beside or inside.
//!
//! A stage's SRAM is a grid of rows and columns of blocks. A format `w` words wide takes `w` blocks in adjacent rows of
//! one column, so a width that does not divide the rows leaves rows that only action data can use.

use super::format::{fits, ghost, Request, VERSION_BITS};
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

/// The ways to store `bits` of action data: all in an action RAM; up to 32 bits beside the entry and the rest in the RAM.
pub fn action_formats(bits: u32, immediate_max: u32) -> Vec<ActionFormat> {
    let ram = |bits: u32| if bits == 0 { 0 } else { bits.div_ceil(8).next_power_of_two() };
    let mut out = vec![ActionFormat { ram_bytes: ram(bits), immediate: 0 }];
    if bits > 0 && bits <= immediate_max {
        out.push(ActionFormat { ram_bytes: 0, immediate: bits });
    } else if bits > immediate_max && bits <= 2 * immediate_max {
        out.push(ActionFormat { ram_bytes: ram(bits - immediate_max), immediate: immediate_max });
    }
    out
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
}

/// All packings that could fit if only bits were counted.
pub fn layouts(m: &Match, action_bits: u32, g: &Geometry) -> Vec<Layout> {
    let stored = m.stored(g, 0);
    let (bits, bytes) = (stored.iter().sum::<u32>(), stored.iter().filter(|b| **b > 0).count() as u32);
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
            out.push(Layout { pack, width, action });
        }
    }
    out
}

/// Sizes of the ways for so many blocks of depth: at least four independent hash functions.
pub fn ways(depth: u32, g: &Geometry) -> Vec<u32> {
    let depth = depth.max(4);
    if depth < 8 {
        return (0..4).map(|i| if i < depth - 4 { 2 } else { 1 }).collect();
    }
    let mut size = (1 << depth.min(64).ilog2()) / 4;
    let (mut left, mut out, mut bits, mut round) = (depth, Vec::new(), 0, 0);
    let select = g.select_bits();
    while left > 0 {
        let need = 32 - (size as u32 - 1).leading_zeros();
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
}

impl Sized {
    fn new(layout: Layout, depth: u32, g: &Geometry) -> Sized {
        let depth = depth.max(4);
        let entries = u64::from(depth) * u64::from(layout.pack) * u64::from(g.sram_depth);
        Sized { layout, depth, action: layout.action.blocks(entries, g) }
    }

    fn entries(&self, g: &Geometry) -> u64 {
        u64::from(self.depth) * u64::from(self.layout.pack) * u64::from(g.sram_depth)
    }

    fn blocks(&self) -> u32 {
        self.depth * self.layout.width + self.action
    }

    fn part(&self, g: &Geometry) -> Part {
        Part {
            sram_match: self.depth * self.layout.width,
            sram_action: self.action,
            entries: self.entries(g),
            width: self.layout.width,
            columns: vec![1; self.depth as usize],
            pack: self.layout.pack,
            immediate: self.layout.action.immediate,
            ..Part::default()
        }
    }
}

fn format_fits(m: &Match, s: &Sized, g: &Geometry) -> bool {
    let extra = ways(s.depth, g).iter().min().map_or(0, |w| w.ilog2());
    fits(&Request {
        bytes: m.stored(g, extra),
        groups: m.groups.clone(),
        overhead: s.layout.action.immediate,
        entries: s.layout.pack,
        width: s.layout.width,
        word_bytes: (g.sram_width / 8) as usize,
        ranked: m.ranked,
    })
}

/// Places `entries` in as few stages as the compiler's search finds: whole if any packing fits into the stage, else as
/// much as fits; what is left goes into the next stage, with a packing of its own.
pub fn place(
    m: &Match,
    mut entries: u64,
    action_bits: u32,
    stages: &mut dyn Stages,
    g: &Geometry,
) -> Result<Vec<(usize, Part)>, Unplaced> {
    let all = layouts(m, action_bits, g);
    if all.is_empty() {
        return Err(Unplaced::KeyTooWide);
    }
    let mut out = Vec::new();
    let mut stage = 0;
    while entries > 0 {
        let Some(grid) = stages.free(stage) else { return Err(Unplaced::Stages { left: entries }) };
        if let Some(s) = whole(m, &all, entries, &grid, g).or_else(|| most(m, &all, &grid, g)) {
            entries = entries.saturating_sub(s.entries(g));
            stages.take(stage, &s.part(g));
            out.push((stage, s.part(g)));
        } else if grid == super::Grid::empty(g) {
            // What an empty stage does not take, none does.
            return Err(Unplaced::KeyTooWide);
        }
        stage += 1;
    }
    Ok(out)
}

/// The cheapest packing that takes all entries in this stage.
fn whole(m: &Match, all: &[Layout], entries: u64, grid: &super::Grid, g: &Geometry) -> Option<Sized> {
    let size = |l: Layout| {
        let depth = entries.div_ceil(u64::from(l.pack) * u64::from(g.sram_depth)).min(1 << 20);
        Sized::new(l, depth as u32, g)
    };
    let mut options: Vec<(Sized, bool)> = all.iter().map(|l| (size(*l), false)).collect();
    while !options.is_empty() {
        options.sort_by(|(a, _), (b, _)| {
            let same = a.entries(g) == b.entries(g);
            let cost = |s: &Sized| (s.blocks(), s.layout.width);
            cost(a)
                .cmp(&cost(b))
                .then(if same { a.layout.pack.cmp(&b.layout.pack) } else { std::cmp::Ordering::Equal })
                .then((a.action > 0).cmp(&(b.action > 0)))
                .then(b.entries(g).cmp(&a.entries(g)))
        });
        let (best, widened) = options.remove(0);
        if best.blocks() > grid.sram() {
            return None;
        }
        match format_fits(m, &best, g) {
            true if grid.takes(&best.part(g), g) => return Some(best),
            false if !widened => options.extend(wider(best.layout, g).map(|l| (size(l), true))),
            _ => {}
        }
    }
    None
}

/// The packing with one word more, where bytes got in the way of what the bits allow.
fn wider(l: Layout, g: &Geometry) -> Option<Layout> {
    let width = l.width + 1;
    let dividable = width.is_multiple_of(l.pack) && l.pack != 1;
    (!dividable && width <= g.sram_rows).then_some(Layout { width, ..l })
}

/// The packing that brings most entries into this stage.
fn most(m: &Match, all: &[Layout], grid: &super::Grid, g: &Geometry) -> Option<Sized> {
    let shrink = |l: Layout, room: u32| (4..=room).rev().map(|d| Sized::new(l, d, g)).find(|s| s.blocks() <= room);
    let mut options: Vec<(Sized, bool)> = all.iter().filter_map(|l| Some((shrink(*l, grid.sram())?, false))).collect();
    while !options.is_empty() {
        options.sort_by_key(|(s, _)| {
            (std::cmp::Reverse(s.entries(g)), s.blocks(), s.layout.width, s.layout.pack, s.action > 0)
        });
        let (best, widened) = options.remove(0);
        if !format_fits(m, &best, g) {
            if !widened {
                options.extend(wider(best.layout, g).and_then(|l| Some((shrink(l, grid.sram())?, true))));
            }
        } else if grid.takes(&best.part(g), g) {
            return Some(best);
        } else {
            options.extend(shrink(best.layout, best.blocks() - 1).map(|s| (s, widened)));
        }
    }
    None
}
