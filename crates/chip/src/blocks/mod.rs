// SPDX-License-Identifier: Apache-2.0
//! How many blocks a table takes, from how the chip is built.
//!
//! Nothing here is fitted to measured counts. What decides is: words have 128 bits and 16 bytes of comparators, entries
//! are packed over several words, the row address need not be stored, a hash has four ways of sizes that are powers of
//! two, a stage's blocks stand in rows, TCAM blocks compare 11 bytes a pair. The measured counts of the vendor's compiler
//! are what it is checked against (`docs/design/chip-blocks.md`).

pub mod alpm;
mod check;
mod fit;
pub mod format;
mod key;
pub mod sram;
pub mod state;
pub mod tcam;

pub use alpm::{Alpm, Bucket};
pub use check::{Nonsense, Resource, Unplaced};
pub use fit::{fit, Change, Misfit, Request};
pub use key::{Key, KEYS};
pub use state::{Attached, State};

/// What a stage is made of; from the profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Stages of a pipe.
    pub stages: u32,
    /// Rows of SRAM blocks in a stage.
    pub sram_rows: u32,
    /// Blocks in a row.
    pub sram_columns: u32,
    /// Words of a block.
    pub sram_depth: u32,
    /// Bits of a word.
    pub sram_width: u32,
    /// TCAM blocks of a stage.
    pub tcam_per_stage: u32,
    /// Entries of a TCAM block.
    pub tcam_depth: u32,
    /// Key bytes that two TCAM blocks compare.
    pub tcam_pair_bytes: u32,
    /// Map RAMs of a stage.
    pub map_ram_per_stage: u32,
    /// Entries that a word can hold at most.
    pub row_entries_max: u32,
    /// Entries of a packing at most.
    pub pack_max: u32,
    /// Action data bits that may lie beside an entry.
    pub immediate_bits: u32,
    /// Bytes of a crossbar group.
    pub crossbar_group: u32,
    /// Bytes of the exact-match crossbar.
    pub crossbar_exact: u32,
    /// Bytes of the ternary crossbar.
    pub crossbar_ternary: u32,
    /// Bits of a hash function's bus.
    pub hash_bits: u32,
    /// Ways that have a row address of their own on the bus.
    pub hash_ways: u32,
    /// Hash functions of a stage that can be computed at once.
    pub hash_groups: u32,
    /// Logical tables of a stage.
    pub tables_per_stage: u32,
    /// Ternary tables among them.
    pub ternary_tables_per_stage: u32,
    /// Statistics ALUs of a stage.
    pub stats_alus: u32,
    /// Meter or stateful ALUs of a stage.
    pub meter_alus: u32,
    /// Data blocks of a register at most.
    pub register_blocks_max: u32,
}

impl Geometry {
    /// SRAM blocks of a stage.
    pub fn sram_per_stage(&self) -> u32 {
        self.sram_rows * self.sram_columns
    }

    /// Map RAMs of a row: they are spread evenly.
    pub fn map_rams_of_row(&self, row: u32) -> u32 {
        self.map_ram_per_stage / self.sram_rows + u32::from(row < self.map_ram_per_stage % self.sram_rows)
    }

    /// Address bits of a block's rows.
    pub fn row_bits(&self) -> u32 {
        self.sram_depth.ilog2()
    }

    /// Bits of the hash bus that choose a block.
    pub fn select_bits(&self) -> u32 {
        (self.hash_bits - self.hash_ways * self.row_bits()).max(1)
    }
}

/// What a table takes in one stage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// SRAM blocks that are compared.
    pub sram_match: u32,
    /// SRAM blocks with action data or with what TCAM hits say.
    pub sram_action: u32,
    /// SRAM blocks of registers, counters, meters.
    pub sram_indirect: u32,
    /// TCAM blocks.
    pub tcam: u32,
    /// Map RAMs.
    pub map_ram: u32,
    /// Entries that it has room for.
    pub entries: u64,
    /// Blocks side by side in adjacent rows.
    pub width: u32,
    /// Columns that must stay together, each in one row.
    pub columns: Vec<u32>,
    /// TCAM blocks side by side.
    pub tcam_width: u32,
    /// Logical tables (0 counts as one).
    pub logical_tables: u32,
    /// Entries a row of its packing.
    pub pack: u32,
    /// Bits of action data beside an entry.
    pub immediate: u32,
    /// Stateful or meter ALUs.
    pub alus: u32,
    /// Statistics ALUs.
    pub stats_alus: u32,
    /// Bytes of the exact-match crossbar.
    pub crossbar_exact: u32,
    /// Bytes of the ternary crossbar.
    pub crossbar_ternary: u32,
    /// Hash functions.
    pub hash_groups: u32,
}

impl Part {
    /// All SRAM blocks.
    pub fn sram(&self) -> u32 {
        self.sram_match + self.sram_action + self.sram_indirect
    }
}

/// What is free in a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Free blocks of each row.
    pub rows: Vec<u32>,
    /// Free TCAM blocks.
    pub tcam: u32,
    /// Free map RAMs.
    pub map_ram: u32,
    /// Free map RAMs of each row: they stand beside the blocks of some columns only.
    pub map_rows: Vec<u32>,
    /// Free logical tables.
    pub tables: u32,
    /// Free stateful and meter ALUs.
    pub alus: u32,
    /// Free statistics ALUs.
    pub stats_alus: u32,
    /// Free bytes of the exact-match crossbar.
    pub crossbar_exact: u32,
    /// Free bytes of the ternary crossbar.
    pub crossbar_ternary: u32,
    /// Free hash functions.
    pub hash_groups: u32,
    /// Free ternary tables.
    pub ternary_tables: u32,
}

impl Grid {
    /// An empty stage.
    pub fn empty(g: &Geometry) -> Grid {
        Grid {
            rows: vec![g.sram_columns; g.sram_rows as usize],
            tcam: g.tcam_per_stage,
            map_ram: g.map_ram_per_stage,
            map_rows: (0..g.sram_rows).map(|row| g.map_rams_of_row(row)).collect(),
            tables: g.tables_per_stage,
            alus: g.meter_alus,
            stats_alus: g.stats_alus,
            crossbar_exact: g.crossbar_exact,
            crossbar_ternary: g.crossbar_ternary,
            hash_groups: g.hash_groups,
            ternary_tables: g.ternary_tables_per_stage,
        }
    }

    /// A stage that takes nothing more.
    fn shut(&self) -> Grid {
        Grid { rows: vec![0; self.rows.len()], tcam: 0, ..self.clone() }
    }

    /// Free SRAM blocks.
    pub fn sram(&self) -> u32 {
        self.rows.iter().sum()
    }

    /// Whether the part fits.
    pub fn takes(&self, p: &Part, g: &Geometry) -> bool {
        // Columns are placed one by one, so refuse first what the sums refuse.
        p.sram() <= self.sram() && self.clone().put(p, g).is_some()
    }

    /// Takes the part; tells of each match column the row of its first block, then the rows of the other blocks.
    pub fn put(&mut self, p: &Part, g: &Geometry) -> Option<Placement> {
        let mut out = Placement::default();
        let enough = p.tcam <= self.tcam
            && p.map_ram <= self.map_ram
            && p.logical_tables.max(1) <= self.tables
            && p.alus <= self.alus
            && p.stats_alus <= self.stats_alus
            && p.crossbar_exact <= self.crossbar_exact
            && p.crossbar_ternary <= self.crossbar_ternary
            && p.hash_groups <= self.hash_groups
            && u32::from(p.tcam > 0) <= self.ternary_tables
            && p.sram() <= self.sram();
        if !enough {
            return None;
        }
        for &columns in &p.columns {
            let first = self.band(p.width, columns, g)?;
            (first..first + p.width).for_each(|r| self.rows[r as usize] -= columns);
            out.columns.push((first, p.width, columns));
        }
        // State stands where map RAMs are; what of them is over (colours of meters) is taken from any row.
        for _ in 0..p.sram_indirect {
            let free = |r: &usize| self.rows[*r] > 0 && self.map_rows[*r] > 0;
            let row = (0..self.rows.len()).rev().find(free)?;
            self.rows[row] -= 1;
            self.map_rows[row] -= 1;
            out.single.push(row as u32);
        }
        for _ in p.sram_indirect..p.map_ram {
            let row = (0..self.map_rows.len()).find(|r| self.map_rows[*r] > 0)?;
            self.map_rows[row] -= 1;
        }
        for _ in 0..p.sram_action {
            let row = (0..self.rows.len()).rev().max_by_key(|r| (self.rows[*r] > 0, *r))?;
            self.rows[row] = self.rows[row].checked_sub(1)?;
            out.single.push(row as u32);
        }
        self.tcam -= p.tcam;
        self.map_ram -= p.map_ram;
        self.tables -= p.logical_tables.max(1);
        self.alus -= p.alus;
        self.stats_alus -= p.stats_alus;
        self.crossbar_exact -= p.crossbar_exact;
        self.crossbar_ternary -= p.crossbar_ternary;
        self.hash_groups -= p.hash_groups;
        self.ternary_tables -= u32::from(p.tcam > 0);
        Some(out)
    }

    /// Adjacent rows with so many free columns: where a wide part stands it stands on a multiple of its width, so that
    /// the rows left over stay together.
    fn band(&self, width: u32, columns: u32, g: &Geometry) -> Option<u32> {
        let free = |first: u32| (first..first + width).all(|r| self.rows[r as usize] >= columns);
        let last = g.sram_rows.checked_sub(width)?;
        (0..=last).filter(|r| r.is_multiple_of(width)).find(|r| free(*r)).or_else(|| (0..=last).find(|r| free(*r)))
    }
}

/// Stages that a table is placed in, one behind the other.
pub trait Stages {
    /// What is free in a stage; None behind the last.
    fn free(&mut self, stage: usize) -> Option<Grid>;
    /// The table takes this part of it.
    fn take(&mut self, stage: usize, part: &Part);
}

/// Stages that are counted at most: no chip has more than a tenth of them.
pub const STAGES_MAX: usize = 1024;

/// As many empty stages as a table needs.
pub(crate) struct Endless<'a>(&'a Geometry);

impl Stages for Endless<'_> {
    fn free(&mut self, stage: usize) -> Option<Grid> {
        (stage < STAGES_MAX).then(|| Grid::empty(self.0))
    }

    fn take(&mut self, _: usize, _: &Part) {}
}

/// A stage whose crossbar has no room for the key takes no part of the table.
struct Crossbar<'a> {
    stages: &'a mut dyn Stages,
    bytes: u32,
    /// The key is compared in SRAM, so it is on the exact-match crossbar.
    exact: bool,
    /// The key is compared in TCAM, so it is on the ternary crossbar.
    ternary: bool,
    /// Hash functions of a part in SRAM: one addresses the ways, another gives the digest.
    hashes: u32,
}

impl Crossbar<'_> {
    fn with_bytes(&self, part: &Part) -> Part {
        let of = |blocks: u32| if blocks > 0 { self.bytes } else { 0 };
        let hash_groups = if part.sram_match > 0 { self.hashes } else { 0 };
        Part { crossbar_exact: of(part.sram_match), crossbar_ternary: of(part.tcam), hash_groups, ..part.clone() }
    }
}

impl Stages for Crossbar<'_> {
    fn free(&mut self, stage: usize) -> Option<Grid> {
        let grid = self.stages.free(stage)?;
        let in_sram = grid.crossbar_exact >= self.bytes && grid.hash_groups >= self.hashes;
        let in_tcam = grid.crossbar_ternary >= self.bytes && grid.ternary_tables > 0;
        Some(match (self.exact, self.ternary) {
            // Pivots stand in TCAM and buckets in SRAM: what a stage cannot feed is as good as taken.
            (true, true) if in_sram != in_tcam => match in_sram {
                true => Grid { tcam: 0, ..grid },
                false => Grid { rows: vec![0; grid.rows.len()], ..grid },
            },
            (exact, ternary) if (!exact || in_sram) && (!ternary || in_tcam) => grid,
            _ => grid.shut(),
        })
    }

    fn take(&mut self, stage: usize, part: &Part) {
        let part = self.with_bytes(part);
        self.stages.take(stage, &part);
    }
}

/// Where the blocks of a part stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// First row, rows and columns of match blocks.
    pub columns: Vec<(u32, u32, u32)>,
    /// Rows of single blocks: registers, counters and meters first, then action data.
    pub single: Vec<u32>,
}

/// A single table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Exact match; with a digest instead of the key if a width is given.
    Exact {
        /// Bits of the digest.
        digest: Option<u32>,
    },
    /// Ternary or plain LPM.
    Ternary,
    /// Algorithmic LPM.
    Alpm(Alpm),
}

/// A table to be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// How it matches.
    pub kind: Kind,
    /// The key.
    pub key: Key,
    /// Entries it must have room for.
    pub entries: u64,
    /// Action data bits of an entry.
    pub action_bits: u32,
    /// Whether entries may lie across words.
    pub packing: Packing,
}

/// How entries may lie in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Packing {
    /// As the chip allows: several entries over several words, parts of two entries in one word.
    #[default]
    Straddling,
    /// Whole entries in whole words, as the Sailfish paper's figures say that its compiler did: no word holds parts of
    /// two entries.
    Aligned,
}

impl Table {
    /// Places the table into these stages.
    pub fn place(&self, stages: &mut dyn Stages, g: &Geometry) -> Result<Vec<(usize, Part)>, Unplaced> {
        self.place_with(Attached::default(), stages, g)
    }

    /// Places the table with state beside its entries.
    pub fn place_with(
        &self,
        attached: Attached,
        stages: &mut dyn Stages,
        g: &Geometry,
    ) -> Result<Vec<(usize, Part)>, Unplaced> {
        check::possible(self, attached, g)?;
        let ternary = !matches!(self.kind, Kind::Exact { .. });
        let exact = self.kind != Kind::Ternary;
        let mut crossbar = Crossbar { stages, bytes: self.key.bytes(), exact, ternary, hashes: self.hashes() };
        let mut parts = match &self.kind {
            Kind::Exact { digest } => {
                let m = sram::Match { packing: self.packing, ..sram::Match::exact(&self.key, *digest, g) };
                sram::place(&m, self.entries, self.action_bits, attached, &mut crossbar, g)
            }
            Kind::Ternary => tcam::place(&self.key, self.entries, self.action_bits, attached, &mut crossbar, g),
            Kind::Alpm(a) => alpm::place(self, a, attached, &mut crossbar, g),
        }?;
        for (_, part) in &mut parts {
            *part = crossbar.with_bytes(part);
        }
        Ok(parts)
    }

    /// Hash functions of a part in SRAM.
    fn hashes(&self) -> u32 {
        match &self.kind {
            Kind::Exact { digest } => 1 + u32::from(digest.is_some()),
            _ => 0,
        }
    }

    /// Places the table in empty stages, as many as it needs.
    pub fn alone(&self, g: &Geometry) -> Result<Vec<(usize, Part)>, Unplaced> {
        self.place(&mut Endless(g), g)
    }
}

/// Blocks of a table in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    /// Stages.
    pub stages: u32,
    /// SRAM blocks that are compared.
    pub sram_match: u32,
    /// SRAM blocks with action data.
    pub sram_action: u32,
    /// SRAM blocks of registers, counters, meters.
    pub sram_indirect: u32,
    /// TCAM blocks.
    pub tcam: u32,
    /// Map RAMs.
    pub map_ram: u32,
}

impl Blocks {
    /// The sum over the parts.
    pub fn of(parts: &[(usize, Part)]) -> Blocks {
        let mut b = Blocks { stages: parts.last().map_or(0, |(s, _)| *s as u32 + 1), ..Blocks::default() };
        for (_, p) in parts {
            b.sram_match += p.sram_match;
            b.sram_action += p.sram_action;
            b.sram_indirect += p.sram_indirect;
            b.tcam += p.tcam;
            b.map_ram += p.map_ram;
        }
        b
    }

    /// All SRAM blocks.
    pub fn sram(&self) -> u32 {
        self.sram_match + self.sram_action + self.sram_indirect
    }
}
