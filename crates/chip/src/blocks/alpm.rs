// SPDX-License-Identifier: Apache-2.0
//! Algorithmic LPM: a small TCAM names a partition, the partition's prefixes lie in SRAM rows of their own.
//!
//! A prefix in SRAM is compared as a ternary value: every bit of the LPM field is stored twice (as 0 allowed, 1 allowed).
//! All prefixes of a partition are read at once, so `n` of them need `⌈n / pack⌉` words side by side in one stage row
//! group; the position in the row is the priority. Each partition keeps one spare place so that a change is atomic.

use super::format::{fits, Request};
use super::sram::{layouts, Layout, Match};
use super::state::Attached;
use super::{tcam, Geometry, Grid, Key, Packing, Part, Stages, Table, Unplaced};

/// How many partitions there can be.
pub const PARTITIONS: &[u32] = &[1024, 2048, 4096, 8192];
/// Subtrees that can share a partition.
pub const SUBTREES_MAX: u32 = 10;

/// What of the key is compared in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Bucket {
    /// All of it.
    #[default]
    Whole,
    /// The leading fields are left to the TCAM (`exvni`), and so many leading bits of the LPM field too.
    Exclude {
        /// Leading bits of the LPM field that only the TCAM compares.
        lpm_bits: u32,
    },
    /// The TCAM says which 32 bits of the LPM field to compare, and the subtree; nothing else is compared.
    Subset32,
}

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alpm {
    /// Partitions: 1024, 2048, 4096 or 8192.
    pub partitions: u32,
    /// Subtrees that share a partition, 1 to 10.
    pub subtrees: u32,
    /// What a partition compares.
    pub bucket: Bucket,
}

impl Alpm {
    /// Entries of the TCAM.
    pub fn pivots(&self) -> u32 {
        self.partitions * self.subtrees
    }

    /// Prefixes that a partition has room for, the spare one included.
    pub fn bucket_entries(&self, entries: u64) -> u64 {
        (entries + u64::from(self.partitions)).div_ceil(u64::from(self.partitions))
    }

    /// What is stored of an entry.
    pub fn stored(&self, key: &Key, g: &Geometry) -> Match {
        let twice = |bits: u32| -> Vec<u32> {
            let bytes = Key::of(&[bits]).byte_bits();
            bytes.iter().chain(&bytes).copied().collect()
        };
        let exact = &key.fields[..key.fields.len() - 1];
        let bytes = match self.bucket {
            Bucket::Subset32 if key.lpm_bits > 32 => {
                let mut b = twice(32);
                b.extend(Key::of(&[self.subtrees.next_power_of_two().ilog2()]).byte_bits());
                b
            }
            Bucket::Whole | Bucket::Subset32 => {
                let mut b = twice(key.lpm_bits);
                b.extend(Key::of(exact).byte_bits());
                b
            }
            Bucket::Exclude { lpm_bits } => twice(key.lpm_bits.saturating_sub(lpm_bits).max(1)),
        };
        let groups = (0..bytes.len()).map(|i| (i as u32 / g.crossbar_group) as u8).collect();
        Match { bytes, groups, ghosts: false, ranked: true, packing: Packing::Straddling }
    }
}

/// A layout with a depth: so many of them behind one another.
#[derive(Clone, Copy)]
struct Sized {
    layout: Layout,
    depth: u32,
    ways: u32,
    action: u32,
    /// Blocks of counters, meters and registers.
    state: u32,
}

impl Sized {
    fn new(layout: Layout, depth: u32, a: &Alpm, g: &Geometry) -> Sized {
        let ways = a.partitions.div_ceil(g.sram_depth);
        let depth = depth.min(1 << 16);
        let rows = u64::from(g.sram_depth.min(a.partitions));
        let entries = u64::from(depth) * u64::from(ways) * u64::from(layout.pack) * rows;
        let mut s = Sized { layout, depth, ways, action: layout.action.blocks(entries, g), state: 0 };
        if !layout.attached.is_empty() {
            s.state = s.attached_state(a, g).map_or(1 << 24, |p| p.sram_indirect);
        }
        s
    }

    /// What is attached: each logical table has its own.
    fn attached_state(&self, a: &Alpm, g: &Geometry) -> Option<Part> {
        let of = |depth: &u32| u64::from(depth * self.layout.pack) * u64::from(a.partitions);
        self.logical(a, g).iter().try_fold(Part::default(), |sum, depth| {
            Some(sum.with_state(&self.layout.attached.attached_state(of(depth), g)?))
        })
    }

    fn entries(&self) -> u32 {
        self.depth * self.layout.pack
    }

    fn blocks(&self) -> u32 {
        self.depth * self.ways * self.layout.width + self.action + self.state
    }

    /// Prefixes with priority lie in one row, at most five blocks of them; more are further logical tables.
    fn logical(&self, a: &Alpm, g: &Geometry) -> Vec<u32> {
        let tables = if a.partitions > 4 * g.sram_depth { self.depth } else { self.depth.div_ceil(g.row_entries_max) };
        (0..tables).map(|i| self.depth / tables + u32::from(i < self.depth % tables)).collect()
    }

    fn part(&self, a: &Alpm, g: &Geometry) -> Part {
        let logical = self.logical(a, g);
        let columns = logical.iter().flat_map(|d| std::iter::repeat_n(*d, self.ways as usize)).collect();
        let state = self.attached_state(a, g).unwrap_or_default();
        let part = Part {
            sram_match: self.depth * self.ways * self.layout.width,
            sram_action: self.action,
            entries: u64::from(self.entries()) * u64::from(a.partitions),
            width: self.layout.width,
            columns,
            logical_tables: logical.len() as u32,
            pack: self.layout.pack,
            immediate: self.layout.action.immediate,
            ..Part::default()
        };
        part.with_state(&state)
    }
}

/// Places the TCAM, and behind it the partitions.
pub fn place(
    t: &Table,
    a: &Alpm,
    attached: Attached,
    stages: &mut dyn Stages,
    g: &Geometry,
) -> Result<Vec<(usize, Part)>, Unplaced> {
    let index_bits = a.partitions.ilog2();
    let mut out = tcam::place(&t.key, u64::from(a.pivots()), index_bits, Attached::default(), stages, g)?;
    let first = out.last().map_or(0, |(stage, _)| stage + 1);
    let m = Match { packing: t.packing, ..a.stored(&t.key, g) };
    let all: Vec<Layout> = layouts(&m, t.action_bits, attached, g)
        .into_iter()
        .filter_map(|l| [l, Layout { width: l.width + 1, ..l }].into_iter().find(|l| format_fits(&m, l, g)))
        .collect();
    if all.is_empty() {
        return Err(Unplaced::KeyTooWide);
    }
    let mut left = a.bucket_entries(t.entries).min(1 << 22) as u32;
    let mut stage = first;
    while left > 0 {
        let Some(grid) = stages.free(stage) else {
            return Err(Unplaced::Stages { left: u64::from(left) * u64::from(a.partitions) });
        };
        if let Some(s) = pick(&all, left, a, &grid, g) {
            left = left.saturating_sub(s.entries());
            stages.take(stage, &s.part(a, g));
            out.push((stage, s.part(a, g)));
        } else if grid == Grid::empty(g) {
            return Err(Unplaced::NoPart);
        }
        stage += 1;
    }
    Ok(out)
}

fn format_fits(m: &Match, l: &Layout, g: &Geometry) -> bool {
    fits(&Request {
        bytes: m.bytes.clone(),
        groups: m.groups.clone(),
        overhead: l.action.immediate,
        entries: l.pack,
        width: l.width,
        word_bytes: (g.sram_width / 8) as usize,
        ranked: true,
    })
}

fn pick(all: &[Layout], left: u32, a: &Alpm, grid: &Grid, g: &Geometry) -> Option<Sized> {
    let mut sized: Vec<Sized> = all.iter().map(|l| Sized::new(*l, left.div_ceil(l.pack), a, g)).collect();
    sized.sort_by_key(|s| (s.blocks(), s.layout.width, s.layout.pack, s.action > 0));
    let room = grid.sram();
    if let Some(s) = sized.iter().find(|s| s.blocks() <= room && grid.takes(&s.part(a, g), g)) {
        return Some(*s);
    }
    // A depth takes a block at least.
    let shrink =
        |l: Layout, from: u32| (1..=from.min(room)).rev().map(|d| Sized::new(l, d, a, g)).find(|s| s.blocks() <= room);
    let mut options: Vec<Sized> = all.iter().filter_map(|l| shrink(*l, left.div_ceil(l.pack))).collect();
    while !options.is_empty() {
        options.sort_by_key(|s| (std::cmp::Reverse(s.entries()), s.blocks(), s.layout.width, s.layout.pack));
        let best = options[0];
        if grid.takes(&best.part(a, g), g) {
            return Some(best);
        }
        match best.depth {
            1 => drop(options.remove(0)),
            d => options[0] = Sized::new(best.layout, d - 1, a, g),
        }
    }
    None
}
