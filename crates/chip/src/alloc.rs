// SPDX-License-Identifier: Apache-2.0
//! Tables into stages, block by block.
//!
//! A packet meets the chip as a row of slots: the stages of the first pipe's ingress, then those of the next segment's, and
//! so on. Folded, the row is ingress 0, egress 1, ingress 1, egress 0: four times twelve slots, but each pipe's ingress and
//! egress share the blocks of the same stages. A table stands behind those that it depends on, in the first slots with
//! room, over as many as it needs, and over the border between pipes if that is allowed.

pub use crate::binding::NoRoom;
use crate::binding::{explain, Wanted};
use crate::blocks::{Geometry, Grid, Part, Placement, Stages, Table, Unplaced};
use crate::Profile;

/// A stretch of stages that a packet passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Pipe.
    pub pipe: u32,
    /// Egress instead of ingress.
    pub egress: bool,
}

impl std::fmt::Display for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", if self.egress { "egress" } else { "ingress" }, self.pipe)
    }
}

/// A part of a table in a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Name of the table.
    pub table: String,
    /// Where in the packet's way.
    pub slot: usize,
    /// Segment.
    pub segment: Segment,
    /// Stage of its pipe.
    pub stage: u32,
    /// What it takes.
    pub part: Part,
    /// Which blocks.
    pub placement: Placement,
}

/// A chip while it is filled.
#[derive(Clone, Debug)]
pub struct Chip {
    /// The chip.
    pub profile: Profile,
    /// The packet's way.
    pub path: Vec<Segment>,
    /// A table may lie in more than one pipe.
    pub across: bool,
    grids: Vec<Vec<Grid>>,
    /// What was placed.
    pub placed: Vec<Placed>,
}

impl Chip {
    /// A chip whose pipes all hold the same tables: a packet passes ingress and egress of one.
    pub fn flat(profile: &Profile) -> Chip {
        let path = vec![Segment { pipe: 0, egress: false }, Segment { pipe: 0, egress: true }];
        Chip::new(profile, path, 1)
    }

    /// Two pipes behind each other, the second with looped-back ports.
    pub fn folded(profile: &Profile) -> Chip {
        let s = |pipe, egress| Segment { pipe, egress };
        Chip::new(profile, vec![s(0, false), s(1, true), s(1, false), s(0, true)], 2)
    }

    fn new(profile: &Profile, path: Vec<Segment>, pipes: usize) -> Chip {
        let pipe = vec![Grid::empty(&profile.geometry); profile.geometry.stages as usize];
        Chip { profile: profile.clone(), path, across: true, grids: vec![pipe; pipes], placed: Vec::new() }
    }

    /// Pipes that a packet passes.
    pub fn pipes(&self) -> usize {
        self.grids.len()
    }

    /// Slots in all.
    pub fn slots(&self) -> usize {
        self.path.len() * self.profile.geometry.stages as usize
    }

    /// The segment and stage of a slot.
    pub(crate) fn at(&self, slot: usize) -> Option<(Segment, usize)> {
        let stages = self.profile.geometry.stages as usize;
        self.path.get(slot / stages).map(|s| (*s, slot % stages))
    }

    /// What is free in a slot.
    pub fn free(&self, slot: usize) -> Option<&Grid> {
        let (segment, stage) = self.at(slot)?;
        self.grids.get(segment.pipe as usize)?.get(stage)
    }

    /// Places a table behind slot `from`; returns the slot behind its last.
    pub fn place(&mut self, name: &str, table: &Table, from: usize) -> Result<usize, NoRoom> {
        self.put(name, table, from).map_err(|reason| explain(self, name, &Wanted::Table(table), from, reason))
    }

    /// The same, without a look at what binds if it has no room.
    pub fn put(&mut self, name: &str, table: &Table, from: usize) -> Result<usize, Unplaced> {
        let parts = self.try_place(table, from)?;
        let end = parts.last().map_or(from, |(slot, _)| slot + 1);
        for (slot, part) in parts {
            self.commit(name, slot, part);
        }
        Ok(end)
    }

    /// Places a part that must be in one stage (a register) in the first slot from `from` with room.
    pub fn place_part(&mut self, name: &str, part: &Part, from: usize) -> Result<usize, NoRoom> {
        let reason = Unplaced::Stages { left: part.entries };
        self.put_part(name, part, from).ok_or_else(|| explain(self, name, &Wanted::Part(part), from, reason))
    }

    /// The same, without a look at what binds if it has no room.
    pub fn put_part(&mut self, name: &str, part: &Part, from: usize) -> Option<usize> {
        let g = self.profile.geometry.clone();
        let slot = (from..self.slots()).find(|s| self.free(*s).is_some_and(|f| f.takes(part, &g)))?;
        self.commit(name, slot, part.clone());
        Some(slot + 1)
    }

    /// The same chip with other numbers, and what was placed where it was.
    pub fn with(&self, profile: &Profile) -> Chip {
        let mut chip = Chip { across: self.across, ..Chip::new(profile, self.path.clone(), self.pipes()) };
        for p in &self.placed {
            chip.commit(&p.table, p.slot, p.part.clone());
        }
        chip
    }

    fn commit(&mut self, name: &str, slot: usize, part: Part) {
        let g = self.profile.geometry.clone();
        let Some((segment, stage)) = self.at(slot) else { return };
        let grid = &mut self.grids[segment.pipe as usize][stage];
        let placement = grid.put(&part, &g).unwrap_or_default();
        self.placed.push(Placed { table: name.into(), slot, segment, stage: stage as u32, part, placement });
    }

    fn try_place(&self, table: &Table, from: usize) -> Result<Vec<(usize, Part)>, Unplaced> {
        let stages = self.profile.geometry.stages as usize;
        let attempt = |from: usize, end: usize| {
            let mut shadow = Shadow { chip: self, grids: self.grids.clone(), from, end };
            let parts = table.place(&mut shadow, &self.profile.geometry)?;
            Ok(parts.into_iter().map(|(i, p)| (from + i, p)).collect())
        };
        if self.across {
            return attempt(from, self.slots());
        }
        // Without mapping across pipes a table must lie in one segment.
        let first = from / stages;
        let mut last = Err(Unplaced::Stages { left: table.entries });
        for segment in first..self.path.len() {
            last = attempt(from.max(segment * stages), (segment + 1) * stages);
            if last.is_ok() {
                break;
            }
        }
        last
    }

    /// Blocks taken in a pipe: SRAM match, SRAM in all, TCAM.
    pub fn used(&self, pipe: u32) -> (u32, u32, u32) {
        let mine = self.placed.iter().filter(|p| p.segment.pipe == pipe);
        mine.fold((0, 0, 0), |(m, s, t), p| (m + p.part.sram_match, s + p.part.sram(), t + p.part.tcam))
    }
}

/// A copy of the chip's stages for the attempt to place one table: ingress and egress of a pipe share their blocks, so
/// what the table took in one segment is gone in another.
struct Shadow<'a> {
    chip: &'a Chip,
    grids: Vec<Vec<Grid>>,
    from: usize,
    end: usize,
}

impl Stages for Shadow<'_> {
    fn free(&mut self, stage: usize) -> Option<Grid> {
        let slot = self.from + stage;
        let (segment, stage) = self.chip.at(slot).filter(|_| slot < self.end)?;
        self.grids.get(segment.pipe as usize)?.get(stage).cloned()
    }

    fn take(&mut self, stage: usize, part: &Part) {
        let g: &Geometry = &self.chip.profile.geometry;
        if let Some((segment, stage)) = self.chip.at(self.from + stage) {
            // The part was tried on this very grid.
            let _ = self.grids[segment.pipe as usize][stage].put(part, g);
        }
    }
}

/// Counts what was placed apart from the placement: every block at most once, no stage over its limits. Says what is wrong.
pub fn audit(chip: &Chip) -> Result<(), String> {
    let g = &chip.profile.geometry;
    for pipe in 0..chip.pipes() as u32 {
        for stage in 0..g.stages {
            let here: Vec<&Placed> =
                chip.placed.iter().filter(|p| p.segment.pipe == pipe && p.stage == stage).collect();
            let mut rows = vec![0u32; g.sram_rows as usize];
            let mut state_rows = rows.clone();
            let (mut tcam, mut map_ram, mut tables, mut alus, mut stats) = (0, 0, 0, 0, 0);
            let (mut exact, mut ternary, mut hashes, mut ternary_tables) = (0, 0, 0, 0);
            for p in &here {
                let mut counted = 0;
                for &(first, width, columns) in &p.placement.columns {
                    for row in first..first + width {
                        let row =
                            rows.get_mut(row as usize).ok_or(format!("row {row} of pipe {pipe} stage {stage}"))?;
                        *row += columns;
                        counted += columns;
                    }
                }
                for &row in &p.placement.single {
                    *rows.get_mut(row as usize).ok_or(format!("row {row} of pipe {pipe} stage {stage}"))? += 1;
                    counted += 1;
                }
                // State comes first, and stands beside the map RAMs of its row.
                for &row in p.placement.single.iter().take(p.part.sram_indirect as usize) {
                    state_rows[row as usize] += 1;
                }
                if counted != p.part.sram() {
                    return Err(format!(
                        "{} in pipe {pipe} stage {stage}: {counted} blocks stand, {} count",
                        p.table,
                        p.part.sram()
                    ));
                }
                tcam += p.part.tcam;
                map_ram += p.part.map_ram;
                tables += p.part.logical_tables.max(1);
                alus += p.part.alus;
                stats += p.part.stats_alus;
                exact += p.part.crossbar_exact;
                ternary += p.part.crossbar_ternary;
                hashes += p.part.hash_groups;
                ternary_tables += u32::from(p.part.tcam > 0);
            }
            let over = rows.iter().any(|r| *r > g.sram_columns)
                || (0..g.sram_rows).any(|row| state_rows[row as usize] > g.map_rams_of_row(row))
                || tcam > g.tcam_per_stage
                || map_ram > g.map_ram_per_stage
                || tables > g.tables_per_stage
                || alus > g.meter_alus
                || stats > g.stats_alus
                || exact > g.crossbar_exact
                || ternary > g.crossbar_ternary
                || hashes > g.hash_groups
                || ternary_tables > g.ternary_tables_per_stage;
            if over {
                return Err(format!("pipe {pipe} stage {stage} is over its limits: rows {rows:?}, TCAM {tcam}, map RAM {map_ram}, tables {tables}"));
            }
        }
    }
    Ok(())
}
