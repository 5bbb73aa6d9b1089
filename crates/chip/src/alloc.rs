// SPDX-License-Identifier: Apache-2.0
//! Tables into stages, block by block.
//!
//! A packet meets the chip as a row of slots: the stages of the first pipe's ingress, then those of the next segment's, and
//! so on. Folded, the row is ingress 0, egress 1, ingress 1, egress 0: four times twelve slots, but each pipe's ingress and
//! egress share the blocks of the same stages. A table stands behind those that it depends on, in the first slots with
//! room, over as many as it needs, and over the border between pipes if that is allowed.

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
    pub way: Vec<Segment>,
    /// A table may lie in more than one pipe.
    pub across: bool,
    grids: Vec<Vec<Grid>>,
    /// What was placed.
    pub placed: Vec<Placed>,
}

/// A load that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("table {table} does not fit: {reason}. {binds} binds first, at {place}. {change}")]
pub struct NoRoom {
    /// Table.
    pub table: String,
    /// What the placement says.
    pub reason: Unplaced,
    /// Resource that ends first.
    pub binds: &'static str,
    /// Segment and stage where it ends.
    pub place: String,
    /// What of this table fits.
    pub change: String,
    /// Entries that it must have room for.
    pub entries: u64,
    /// Entries of it that fit here.
    pub fit: u64,
}

impl Chip {
    /// A chip whose pipes all hold the same tables: a packet passes ingress and egress of one.
    pub fn flat(profile: &Profile) -> Chip {
        let way = vec![Segment { pipe: 0, egress: false }, Segment { pipe: 0, egress: true }];
        Chip::new(profile, way, 1)
    }

    /// Two pipes behind each other, the second with looped-back ports.
    pub fn folded(profile: &Profile) -> Chip {
        let s = |pipe, egress| Segment { pipe, egress };
        Chip::new(profile, vec![s(0, false), s(1, true), s(1, false), s(0, true)], 2)
    }

    fn new(profile: &Profile, way: Vec<Segment>, pipes: usize) -> Chip {
        let pipe = vec![Grid::empty(&profile.geometry); profile.geometry.stages as usize];
        Chip { profile: profile.clone(), way, across: true, grids: vec![pipe; pipes], placed: Vec::new() }
    }

    /// Pipes that a packet passes.
    pub fn pipes(&self) -> usize {
        self.grids.len()
    }

    /// Slots in all.
    pub fn slots(&self) -> usize {
        self.way.len() * self.profile.geometry.stages as usize
    }

    fn at(&self, slot: usize) -> Option<(Segment, usize)> {
        let stages = self.profile.geometry.stages as usize;
        self.way.get(slot / stages).map(|s| (*s, slot % stages))
    }

    /// What is free in a slot.
    pub fn free(&self, slot: usize) -> Option<&Grid> {
        let (segment, stage) = self.at(slot)?;
        self.grids.get(segment.pipe as usize)?.get(stage)
    }

    /// Places a table behind slot `from`; returns the slot behind its last.
    pub fn place(&mut self, name: &str, table: &Table, from: usize) -> Result<usize, NoRoom> {
        let parts = self.try_place(table, from).map_err(|reason| self.no_room(name, table, from, reason))?;
        let end = parts.last().map_or(from, |(slot, _)| slot + 1);
        for (slot, part) in parts {
            self.commit(name, slot, part);
        }
        Ok(end)
    }

    /// Places a part that must be in one stage (a register) in the first slot from `from` with room.
    pub fn place_part(&mut self, name: &str, part: &Part, from: usize) -> Result<usize, NoRoom> {
        let g = self.profile.geometry.clone();
        let slot = (from..self.slots()).find(|s| self.free(*s).is_some_and(|f| f.takes(part, &g)));
        let Some(slot) = slot else {
            let (binds, place) = self.binding(part, from);
            let change = format!("Free a stage with {} SRAM blocks and {} map RAMs.", part.sram(), part.map_ram);
            let reason = Unplaced::Stages { left: part.entries };
            return Err(NoRoom { table: name.into(), reason, binds, place, change, entries: part.entries, fit: 0 });
        };
        self.commit(name, slot, part.clone());
        Ok(slot + 1)
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
        for segment in first..self.way.len() {
            last = attempt(from.max(segment * stages), (segment + 1) * stages);
            if last.is_ok() {
                break;
            }
        }
        last
    }

    /// Which resource ends first behind `from`, and where.
    fn binding(&self, part: &Part, from: usize) -> (&'static str, String) {
        let total = |f: &dyn Fn(&Grid) -> u32| (from..self.slots()).filter_map(|s| self.free(s)).map(f).sum::<u32>();
        let share = |need: u32, free: u32| f64::from(need) / f64::from(free.max(1));
        let resources = [
            ("TCAM", share(part.tcam, total(&|g| g.tcam))),
            ("SRAM", share(part.sram(), total(&|g| g.sram()))),
            ("map RAM", share(part.map_ram, total(&|g| g.map_ram))),
            ("stateful ALUs", share(part.alus, total(&|g| g.alus))),
        ];
        let binds = resources.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or("SRAM", |r| r.0);
        let full = (from..self.slots()).rfind(|s| {
            self.free(*s).is_some_and(|g| if binds == "TCAM" { g.tcam < part.tcam_width.max(1) } else { g.sram() < 4 })
        });
        let place = match self.at(full.unwrap_or(self.slots().saturating_sub(1))) {
            Some((segment, stage)) => format!("{segment}, stage {stage}"),
            None => "the first stage".into(),
        };
        (binds, place)
    }

    fn no_room(&self, name: &str, table: &Table, from: usize, reason: Unplaced) -> NoRoom {
        let whole = table.alone(&self.profile.geometry).unwrap_or_default();
        let mut sum = Part::default();
        for (_, p) in &whole {
            sum.sram_match += p.sram_match;
            sum.sram_action += p.sram_action;
            sum.tcam += p.tcam;
            sum.tcam_width = sum.tcam_width.max(p.tcam_width);
        }
        let (binds, place) = self.binding(&sum, from);
        let (mut low, mut high) = (0, table.entries);
        while low < high {
            let middle = high - (high - low) / 2;
            let fits = self.try_place(&Table { entries: middle, ..table.clone() }, from).is_ok();
            (low, high) = if fits { (middle, high) } else { (low, middle - 1) };
        }
        let change = match low {
            0 => "Not one of its entries fits behind the tables before it.".into(),
            n => format!("{n} of its {} entries fit.", table.entries),
        };
        NoRoom { table: name.into(), reason, binds, place, change, entries: table.entries, fit: low }
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
