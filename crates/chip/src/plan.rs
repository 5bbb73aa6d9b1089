// SPDX-License-Identifier: Apache-2.0
//! A whole plan: what `tunny plan chip` prints and exports.

use crate::alloc::{Chip, NoRoom};
use crate::cofilter;
use crate::month::{self, Day, Month};
use crate::optimise::{self, Candidate};
use crate::performance::{balance, performance, Balance, Performance};
use crate::region::{self, Demand, Region};
use crate::sailfish::{self, Cell, Step};
use crate::technique::{header_vector_bits, place, remedies, usage, Load, Split, Techniques, Usage};
use crate::{Profile, Unplaced};

/// What is planned.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Entries.
    pub load: Load,
    /// With the paper's tables and figures beside.
    pub paper: bool,
    /// With the optimiser's front.
    pub best: bool,
    /// The front's tables are really built.
    pub verify: bool,
    /// With a month of updates.
    pub month: bool,
    /// With CoFilter.
    pub cofilter: bool,
    /// Techniques for the placement that is shown.
    pub techniques: Techniques,
    /// Seed of what is random.
    pub seed: u64,
}

/// A part of a table in a stage, as it is exported.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Block {
    /// Table.
    pub table: String,
    /// Ingress or egress, and pipe.
    pub segment: String,
    /// Pipe.
    pub pipe: u32,
    /// Stage.
    pub stage: u32,
    /// Entries that it has room for.
    pub entries: u64,
    /// SRAM blocks that are compared.
    pub sram_match: u32,
    /// SRAM blocks with action data.
    pub sram_action: u32,
    /// SRAM blocks of registers, counters, meters.
    pub sram_indirect: u32,
    /// TCAM blocks.
    pub tcam: u32,
    /// Match blocks: first row, rows, columns.
    pub match_rows: Vec<(u32, u32, u32)>,
    /// Rows of the other SRAM blocks.
    pub other_rows: Vec<u32>,
}

/// What a stage of a pipe holds.
#[derive(Clone, Debug, serde::Serialize)]
pub struct StageUse {
    /// Pipe.
    pub pipe: u32,
    /// Stage.
    pub stage: u32,
    /// SRAM blocks taken.
    pub sram: u32,
    /// SRAM blocks there are.
    pub sram_of: u32,
    /// TCAM blocks taken.
    pub tcam: u32,
    /// TCAM blocks there are.
    pub tcam_of: u32,
}

/// The plan.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Plan {
    /// Chip.
    pub chip: String,
    /// Entries.
    pub load: Load,
    /// What the chosen techniques take.
    pub usage: Usage,
    /// Bits of the packet header vector that headers, bridged metadata and results take.
    pub header_vector_bits: u32,
    /// Bits there are.
    pub header_vector_bits_of: u32,
    /// Why the load does not fit, if it does not.
    pub does_not_fit: Option<String>,
    /// What would make it fit, the smallest change of each kind.
    pub would_fit: Vec<String>,
    /// Table by table and stage by stage.
    pub blocks: Vec<Block>,
    /// Rows of SRAM blocks in a stage.
    pub sram_rows: u32,
    /// Blocks of a row.
    pub sram_columns: u32,
    /// Stage by stage.
    pub stages: Vec<StageUse>,
    /// Fig. 17.
    pub steps: Vec<Step>,
    /// Table 2.
    pub table2: Vec<Cell>,
    /// Table 3.
    pub table3: Vec<Cell>,
    /// Table 4.
    pub table4: Vec<Cell>,
    /// What Table 4 stands on.
    pub table4_note: String,
    /// What addresses that were never installed are taken for, and what it costs that they are not.
    pub uninstalled: Vec<sailfish::Store>,
    /// Fig. 18, simulated.
    pub performance: Performance,
    /// Fig. 20 and 21, simulated.
    pub balance: Vec<Balance>,
    /// Nodes.
    pub region: Region,
    /// The optimiser's front.
    pub best: Vec<Candidate>,
    /// Fig. 23.
    pub month: Vec<Day>,
    /// CoFilter's Table 1.
    pub cofilter: Option<cofilter::Placement>,
    /// CoFilter's Fig. 17a.
    pub cofilter_capacity: Vec<cofilter::Capacity>,
}

/// A plan cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A table.
    #[error(transparent)]
    Table(#[from] Unplaced),
    /// A table in its stages.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// The header vector.
    #[error("the packet header vector has {have} bits, and headers, bridged metadata and results take {need}: it binds before any stage; bridge fewer bytes or take a chip with more (phv_bits)")]
    HeaderVector {
        /// Bits needed.
        need: u32,
        /// Bits there are.
        have: u32,
    },
    /// The month.
    #[error("the month of updates failed: {0}")]
    Month(String),
}

fn blocks(chip: &Chip) -> Vec<Block> {
    let block = |p: &crate::alloc::Placed| Block {
        table: p.table.clone(),
        segment: p.segment.to_string(),
        pipe: p.segment.pipe,
        stage: p.stage,
        entries: p.part.entries,
        sram_match: p.part.sram_match,
        sram_action: p.part.sram_action,
        sram_indirect: p.part.sram_indirect,
        tcam: p.part.tcam,
        match_rows: p.placement.columns.clone(),
        other_rows: p.placement.single.clone(),
    };
    chip.placed.iter().map(block).collect()
}

fn stages(chip: &Chip) -> Vec<StageUse> {
    let g = &chip.profile.geometry;
    let mut out = Vec::new();
    for pipe in 0..chip.pipes() as u32 {
        for stage in 0..g.stages {
            let here = chip.placed.iter().filter(|p| p.segment.pipe == pipe && p.stage == stage);
            let (sram, tcam) = here.fold((0, 0), |(s, t), p| (s + p.part.sram(), t + p.part.tcam));
            out.push(StageUse { pipe, stage, sram, sram_of: g.sram_per_stage(), tcam, tcam_of: g.tcam_per_stage });
        }
    }
    out
}

/// Makes the plan.
pub fn plan(profile: &Profile, r: &Request) -> Result<Plan, PlanError> {
    let t = &r.techniques;
    let (need, have) = (header_vector_bits(&r.load, t), profile.phv_bits);
    if need > have {
        return Err(PlanError::HeaderVector { need, have });
    }
    let placed = place(profile, &r.load, t);
    let paper = r.paper && profile.loopback;
    let (blocks_of, stages_of) = placed.as_ref().map_or(Default::default(), |chip| (blocks(chip), stages(chip)));
    let mut table4_note =
        "the paper names no other table than the two large ones; the services here are assumed".to_string();
    let table4 = match sailfish::overall(profile) {
        _ if !paper => Vec::new(),
        Ok((_, cells)) => cells,
        Err(e) => {
            table4_note += &format!("; with them the paper's load does not fit this chip: {e}");
            Vec::new()
        }
    };
    let p = performance(profile, t.fold, t.bridge_bytes);
    let demand = Demand { load: r.load, ..Demand::sailfish() };
    let region = region::size(profile, &demand, t, p.port_tbps);
    let mut would_fit = if placed.is_err() { remedies(profile, &r.load, t) } else { Vec::new() };
    if placed.is_err() && region.loads_a_chip > 0.0 {
        would_fit.push(format!("or keep {:.0}% of every table", 100.0 * region.loads_a_chip));
    }
    let month = match r.month {
        true => month::run(&month_of(&r.load), r.seed).map_err(PlanError::Month)?,
        false => Vec::new(),
    };
    Ok(Plan {
        chip: profile.name.clone(),
        load: r.load,
        usage: usage(profile, &r.load, t)?,
        header_vector_bits: need,
        header_vector_bits_of: have,
        would_fit,
        does_not_fit: placed.err().map(|e| e.to_string()),
        blocks: blocks_of,
        sram_rows: profile.geometry.sram_rows,
        sram_columns: profile.geometry.sram_columns,
        stages: stages_of,
        steps: if paper { sailfish::steps(profile)? } else { Vec::new() },
        table2: if paper { sailfish::table2(profile)? } else { Vec::new() },
        table3: if paper { sailfish::table3(profile)? } else { Vec::new() },
        table4,
        table4_note,
        uninstalled: if paper { sailfish::uninstalled(profile, 100_000, 400_000, r.seed)? } else { Vec::new() },
        region,
        performance: p,
        balance: [Split::Vni, Split::Address]
            .into_iter()
            .flat_map(|s| [0.6, 0.9, 1.1].map(|skew| balance(s, 2000, skew, r.seed)))
            .collect(),
        best: if r.best { optimise::best(profile, &r.load, r.seed, r.verify) } else { Vec::new() },
        month,
        cofilter: r.cofilter.then(|| cofilter::place(profile, 2_000_000, 10_000, 1024)).transpose()?,
        cofilter_capacity: if r.cofilter {
            [4.0, 8.0, 16.0, 32.0, 64.0].map(cofilter::capacity).to_vec()
        } else {
            Vec::new()
        },
    })
}

/// A month on one half of the load, in partitions with a fifth of room to grow.
fn month_of(load: &Load) -> Month {
    let half = load.part(2);
    let routes = half.routes().clamp(1000, 200_000);
    let partitions = (routes / 112).next_power_of_two().clamp(64, 1024) as u32;
    let bucket = (routes * 15 / 10 / u64::from(partitions) + 8) as u32;
    Month {
        routes,
        vnis: half.vnis.clamp(1, routes / 2),
        vms: half.vms().clamp(1000, 600_000) * (1 << 20) / 1_146_880,
        partitions,
        subtrees: 8,
        bucket,
    }
}
