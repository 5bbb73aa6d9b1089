// SPDX-License-Identifier: Apache-2.0
//! Which resource binds when a table has no room, and at which stage.

use crate::alloc::{Chip, Segment};
use crate::blocks::{Geometry, Grid, Part, Table, Unplaced};

/// A load that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("table {table} does not fit: {binds}. {}", self.fitting())]
pub struct NoRoom {
    /// Table.
    pub table: String,
    /// What binds, and where.
    pub binds: Binding,
    /// What the placement says.
    pub reason: Unplaced,
    /// Entries that it must have room for.
    pub entries: u64,
    /// Entries of it that fit here.
    pub fit: u64,
}

impl NoRoom {
    fn fitting(&self) -> String {
        match self.fit {
            0 => format!("Not one of its {} entries fits behind the tables before it", self.entries),
            n => format!("{n} of its {} entries fit", self.entries),
        }
    }
}

/// The resource that ends first.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Binding {
    /// The resource.
    pub resource: &'static str,
    /// Ingress or egress, and pipe, of the stage where it ends.
    pub segment: String,
    /// Pipe.
    pub pipe: u32,
    /// Stage.
    pub stage: u32,
    /// What is left of the resource there when as much of the table stands as fits.
    pub free: u32,
    /// What the stage has of it.
    pub of: u32,
}

impl std::fmt::Display for Binding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Binding { resource, segment, stage, free, of, .. } = self;
        write!(f, "{resource} bind first, at {segment}, stage {stage} ({free} of {of} left)")
    }
}

/// A resource of a stage.
struct Resource {
    name: &'static str,
    /// Gives a stage sixteen times as much of it, and some where it has none: more than a table asks for in one.
    more: fn(&mut Geometry),
    /// What is left of it.
    free: fn(&Grid) -> u32,
}

const RESOURCES: &[Resource] = &[
    Resource { name: "TCAM blocks", more: |g| g.tcam_per_stage = 16 * g.tcam_per_stage.max(8), free: |s| s.tcam },
    Resource { name: "SRAM blocks", more: |g| g.sram_columns = 16 * g.sram_columns.max(8), free: Grid::sram },
    Resource { name: "map RAMs", more: |g| g.map_ram_per_stage = 16 * g.map_ram_per_stage.max(8), free: |s| s.map_ram },
    Resource { name: "meter ALUs", more: |g| g.meter_alus = 16 * g.meter_alus.max(8), free: |s| s.alus },
    Resource { name: "statistics ALUs", more: |g| g.stats_alus = 16 * g.stats_alus.max(8), free: |s| s.stats_alus },
    Resource {
        name: "bytes of the exact crossbar",
        more: |g| g.crossbar_exact = 16 * g.crossbar_exact.max(8),
        free: |s| s.crossbar_exact,
    },
    Resource {
        name: "bytes of the ternary crossbar",
        more: |g| g.crossbar_ternary = 16 * g.crossbar_ternary.max(8),
        free: |s| s.crossbar_ternary,
    },
    Resource { name: "hash functions", more: |g| g.hash_groups = 16 * g.hash_groups.max(8), free: |s| s.hash_groups },
    Resource {
        name: "logical tables",
        more: |g| g.tables_per_stage = 16 * g.tables_per_stage.max(8),
        free: |s| s.tables,
    },
    Resource {
        name: "ternary tables",
        more: |g| g.ternary_tables_per_stage = 16 * g.ternary_tables_per_stage.max(8),
        free: |s| s.ternary_tables,
    },
];

/// What is to be placed: a table, or a part that must be in one stage.
pub enum Wanted<'a> {
    /// A table.
    Table(&'a Table),
    /// A part.
    Part(&'a Part),
}

impl Wanted<'_> {
    fn entries(&self) -> u64 {
        match self {
            Wanted::Table(t) => t.entries,
            Wanted::Part(p) => p.entries,
        }
    }

    /// So many of its entries stand on the chip behind slot `from`; a part stands whole or not at all.
    fn put(&self, chip: &mut Chip, name: &str, entries: u64, from: usize) -> bool {
        match self {
            _ if entries == 0 => true,
            Wanted::Table(t) => chip.put(name, &Table { entries, ..(*t).clone() }, from).is_ok(),
            Wanted::Part(p) => entries == p.entries && chip.put_part(name, p, from).is_some(),
        }
    }

    /// Most entries that fit.
    fn most(&self, chip: &Chip, from: usize) -> u64 {
        let fits = |entries| self.put(&mut chip.clone(), "", entries, from);
        let (mut low, mut high) = (0, self.entries());
        while low < high {
            let middle = high - (high - low) / 2;
            (low, high) = if fits(middle) { (middle, high) } else { (low, middle - 1) };
        }
        low
    }
}

/// Why it has no room behind slot `from`. Each resource in turn is given to all stages sixteenfold: what lets most entries
/// in is what binds. If none does alone, the stages end before what must stand behind each other.
pub fn explain(chip: &Chip, name: &str, wanted: &Wanted, from: usize, reason: Unplaced) -> NoRoom {
    let fit = wanted.most(chip, from);
    let mut full = chip.clone();
    wanted.put(&mut full, name, fit, from);
    let gain = |r: &&Resource| {
        let mut roomy = chip.profile.clone();
        (r.more)(&mut roomy.geometry);
        let roomy = chip.with(&roomy);
        // Often one entry more shows that it is not this one.
        match wanted.put(&mut roomy.clone(), name, wanted.entries(), from) {
            true => wanted.entries(),
            false if fit + 1 < wanted.entries() && wanted.put(&mut roomy.clone(), name, fit + 1, from) => {
                wanted.most(&roomy, from)
            }
            false => fit,
        }
    };
    let best =
        RESOURCES.iter().map(|r| (gain(&r), r)).fold(None, |best: Option<(u64, &Resource)>, (n, r)| match best {
            Some((most, _)) if most >= n => best,
            _ => (n > fit).then_some((n, r)).or(best),
        });
    let binds = match best {
        Some((_, r)) => where_it_ends(&full, name, from, r),
        None => stages(&full),
    };
    NoRoom { table: name.into(), binds, reason, entries: wanted.entries(), fit }
}

/// The stage where what fits of the table ends; if nothing does, the last of those with least of the resource.
fn where_it_ends(chip: &Chip, name: &str, from: usize, r: &Resource) -> Binding {
    let free = |slot: &usize| chip.free(*slot).map_or(u32::MAX, r.free);
    let ends = chip.placed.iter().rev().find(|p| p.table == name).map(|p| p.slot);
    let fullest = || (from..chip.slots()).rev().min_by_key(free);
    let slot = ends.or_else(fullest).unwrap_or(chip.slots().saturating_sub(1));
    let (segment, stage) = chip.at(slot).unwrap_or((Segment { pipe: 0, egress: false }, 0));
    let (left, of) = (free(&slot), (r.free)(&Grid::empty(&chip.profile.geometry)));
    Binding { resource: r.name, segment: segment.to_string(), pipe: segment.pipe, stage: stage as u32, free: left, of }
}

fn stages(chip: &Chip) -> Binding {
    let last = chip.slots().saturating_sub(1);
    let (segment, stage) = chip.at(last).unwrap_or((Segment { pipe: 0, egress: false }, 0));
    let of = chip.profile.geometry.stages;
    Binding { resource: "stages", segment: segment.to_string(), pipe: segment.pipe, stage: stage as u32, free: 0, of }
}
