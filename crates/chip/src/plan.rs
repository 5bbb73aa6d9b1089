// SPDX-License-Identifier: Apache-2.0
//! A whole plan: what `tunny-lab plan chip` prints and exports.

use crate::alloc::{Chip, NoRoom};
use crate::binding::Binding;
use crate::cofilter;
use crate::culprit::{blame, suits};
use crate::load::{thousands, Origin, Source};
use crate::month::{self, Day, Month};
use crate::optimise::{self, Candidate, Verified};
use crate::performance::{balance, performance, Balance, Performance, TENANTS};
use crate::pipes::{arrange, Arrangement};
use crate::profile::ProfileError;
use crate::region::{self, Demand, Region};
use crate::remedy::{remedies, Remedy, MEASURE};
use crate::sailfish::{self, Cell, Step};
use crate::technique::{header_vector_bits, place, usage, Load, Routes, Split, Techniques, Usage};
use crate::Profile;

/// What is planned.
#[derive(Clone, Debug)]
pub struct Request {
    /// Entries.
    pub load: Load,
    /// Where their counts come from.
    pub origin: Origin,
    /// Traffic of the region, terabits a second; None: the paper's.
    pub tbps: Option<f64>,
    /// With the paper's tables and figures beside.
    pub paper: bool,
    /// With the optimiser's front.
    pub best: bool,
    /// The tables of the plan and of the front are really built.
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

impl Request {
    /// The paper's load with the paper's tables beside, and nothing more.
    pub fn sailfish(techniques: Techniques) -> Request {
        Request {
            load: Load::sailfish(25),
            origin: Origin { counts: [Source::Paper; 6], says: "the Sailfish paper's".into() },
            tbps: None,
            paper: true,
            best: false,
            verify: false,
            month: false,
            cofilter: false,
            techniques,
            seed: 1,
        }
    }
}

/// What a section of the plan is computed from.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Basis {
    /// The section, by its field.
    pub of: &'static str,
    /// Load, techniques, chip.
    pub from: String,
}

/// A section that was left out.
#[derive(Clone, Debug, serde::Serialize)]
pub struct LeftOut {
    /// The section.
    pub section: &'static str,
    /// Why.
    pub reason: String,
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
    /// The file that its profile was read from.
    pub profile: String,
    /// How its pipes are used.
    pub pipes: Arrangement,
    /// Techniques of the placement.
    pub techniques: Vec<&'static str>,
    /// Entries.
    pub load: Load,
    /// Where their counts come from.
    pub load_origin: Origin,
    /// What each section is computed from.
    pub computed_from: Vec<Basis>,
    /// Sections that this chip or load cannot have.
    pub left_out: Vec<LeftOut>,
    /// What the chosen techniques take; None: more than 4096 stages.
    pub usage: Option<Usage>,
    /// Bits of the packet header vector that headers, bridged metadata and results take.
    pub header_vector_bits: u32,
    /// Bits there are.
    pub header_vector_bits_of: u32,
    /// What building the plan's own tables showed.
    pub verified: Option<Verified>,
    /// Why building them did not show that they work.
    pub verify_failed: Option<String>,
    /// Why the load does not fit, if it does not.
    pub does_not_fit: Option<String>,
    /// What binds then, and at which stage.
    pub binds: Option<Binding>,
    /// What would make it fit, the smallest change first.
    pub would_fit: Vec<Remedy>,
    /// How changes are measured.
    pub change_measure: &'static str,
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

impl Plan {
    /// What building the plan's own tables showed.
    pub fn verified_says(&self) -> Option<String> {
        let failed =
            self.verify_failed.as_ref().map(|e| format!("the tables do not hold random entries of that number: {e}"));
        let held = self.verified.map(|v| {
            format!(
                "{} random routes and {} VM addresses, {} lookups as they should be, {} of {} uninstalled addresses taken for others",
                thousands(v.routes),
                thousands(v.vms),
                thousands(v.lookups),
                v.false_matches,
                thousands(v.uninstalled)
            )
        });
        held.or(failed)
    }

    /// What a section is computed from.
    pub fn basis(&self, of: &str) -> &str {
        self.computed_from.iter().find(|b| b.of == of).map_or("", |b| &b.from)
    }
}

/// A plan cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The chip has not what is asked for.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// CoFilter has no room.
    #[error("CoFilter: {0}")]
    NoRoom(#[from] NoRoom),
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

/// Connections, collided ones and tenants of CoFilter's Table 1.
const COFILTER: (u64, u64, u64) = (2_000_000, 10_000, 1024);

/// Makes the plan.
pub fn plan(profile: &Profile, r: &Request) -> Result<Plan, PlanError> {
    let t = &r.techniques;
    let pipes = arrange(profile, t)?;
    suits(profile, &r.load, t)?;
    let (need, have) = (header_vector_bits(&r.load, t), profile.phv_bits);
    if need > have {
        let reason = format!(
            "{have} bits are too few: headers, bridged metadata and results take {need}, and it binds before any stage; bridge \
             fewer bytes, or take a chip with more"
        );
        return Err(profile.refuse("phv_bits", reason).into());
    }
    let cofilter = r.cofilter.then(|| cofiltered(profile)).transpose()?;
    let placed = place(profile, &r.load, t);
    let (blocks_of, stages_of) = placed.as_ref().map_or(Default::default(), |chip| (blocks(chip), stages(chip)));
    let p = performance(profile, &pipes, t.bridge_bytes);
    let tbps = r.tbps.unwrap_or(Demand::sailfish().tbps);
    let region = region::size(profile, &Demand { tbps, load: r.load, ..Demand::sailfish() }, t, p.port_tbps);
    let month_of = month_of(&r.load);
    let month = match r.month {
        true => month::run(&month_of, r.seed).map_err(PlanError::Month)?,
        false => Vec::new(),
    };
    let mut left_out = Vec::new();
    let paper = if r.paper { compared_with_paper(profile, r, &mut left_out) } else { PaperChip::default() };
    let cluster = r.load.part(t.clusters);
    let one = Techniques { clusters: 1, ..*t };
    // What does not fit need not be built.
    let verify = r.verify && placed.is_ok();
    let built = verify.then(|| optimise::verify(profile, &cluster, &cluster, &one, r.seed));
    let (verified, verify_failed) = built.map_or((None, None), |b| (b.as_ref().ok().copied(), b.err()));
    let best = if r.best { optimise::best(profile, &cluster, r.seed, r.verify) } else { Vec::new() };
    if r.best && best.is_empty() {
        let reason = "no layout that the search knows fits this load into this chip".to_string();
        left_out.push(LeftOut { section: "best", reason });
    }
    Ok(Plan {
        chip: profile.name.clone(),
        profile: profile.file.clone(),
        techniques: t.words(),
        computed_from: computed_from(profile, r, &pipes, &region, &month_of),
        pipes,
        load: r.load,
        load_origin: r.origin.clone(),
        usage: usage(profile, &r.load, t).ok(),
        verified,
        verify_failed,
        header_vector_bits: need,
        header_vector_bits_of: have,
        would_fit: if placed.is_err() { remedies(profile, &r.load, t) } else { Vec::new() },
        change_measure: MEASURE,
        binds: placed.as_ref().err().map(|e| e.binds.clone()),
        does_not_fit: placed.err().map(|e| e.to_string()),
        blocks: blocks_of,
        sram_rows: profile.geometry.sram_rows,
        sram_columns: profile.geometry.sram_columns,
        stages: stages_of,
        steps: paper.steps,
        table2: paper.table2,
        table3: paper.table3,
        table4: paper.table4,
        uninstalled: paper.uninstalled,
        left_out,
        region,
        performance: p,
        balance: [Split::Vni, Split::Address]
            .into_iter()
            .flat_map(|s| [0.6, 0.9, 1.1].map(|skew| balance(s, TENANTS, skew, r.seed)))
            .collect(),
        best,
        month,
        cofilter,
        cofilter_capacity: match r.cofilter {
            true => [4.0, 8.0, 16.0, 32.0, 64.0].map(cofilter::capacity).to_vec(),
            false => Vec::new(),
        },
    })
}

/// CoFilter on this chip; a profile that lacks what it takes is at fault.
fn cofiltered(profile: &Profile) -> Result<cofilter::Placement, PlanError> {
    let (connections, collisions, tenants) = COFILTER;
    let works = |g: &crate::Geometry| {
        let p = Profile { geometry: g.clone(), ..profile.clone() };
        cofilter::place(&p, connections, collisions, tenants).is_ok()
    };
    match cofilter::place(profile, connections, collisions, tenants) {
        Ok(placement) => Ok(placement),
        Err(e) => Err(blame(profile, "CoFilter", &works).map_or(PlanError::NoRoom(e), PlanError::Profile)),
    }
}

/// What stands beside the paper's tables and figures.
#[derive(Default)]
struct PaperChip {
    steps: Vec<Step>,
    table2: Vec<Cell>,
    table3: Vec<Cell>,
    table4: Vec<Cell>,
    uninstalled: Vec<sailfish::Store>,
}

fn compared_with_paper(profile: &Profile, r: &Request, left_out: &mut Vec<LeftOut>) -> PaperChip {
    let load = &r.load;
    let mut no = |section, reason: String| left_out.push(LeftOut { section, reason });
    // A profile may be too small for one entry of a table that the paper's techniques have.
    let suited = sailfish::techniques().iter().try_for_each(|(_, t)| suits(profile, load, t));
    if let Err(e) = suited {
        no("steps, table2, table3, table4, uninstalled", e.to_string());
        return PaperChip::default();
    }
    let many = |e: crate::Unplaced| format!("more than 4096 stages: {e}");
    for (step, t) in &sailfish::techniques()[1..3] {
        if let Err(e) = arrange(profile, t) {
            let reason = format!("'{step}' cannot be here, and what follows is without it: {e}");
            no("steps, table3", reason);
        }
    }
    let steps = sailfish::steps(profile, load).map_err(many).unwrap_or_else(|reason| {
        no("steps", reason);
        Vec::new()
    });
    let mut list = |section, found: Result<Vec<Cell>, String>| {
        found.unwrap_or_else(|reason| {
            no(section, reason);
            Vec::new()
        })
    };
    let table2 = list("table2", sailfish::table2(profile, load).map_err(many));
    let table3 = list("table3", sailfish::table3(profile, load).map_err(many));
    // Table 4 is about the two pipes of a pair.
    let pair = arrange(profile, &sailfish::techniques()[1].1).map_err(|e| e.to_string());
    let overall = pair.and_then(|_| {
        sailfish::table4(profile, load)
            .map_err(|e| format!("with the services that Table 4 counts and does not name, which are assumed, {e}"))
    });
    let table4 = list("table4", overall);
    let uninstalled = match sailfish::uninstalled(profile, load, INSTALLED, 400_000, r.seed) {
        Ok(stores) => stores,
        Err(e) => {
            no("uninstalled", e.to_string());
            Vec::new()
        }
    };
    PaperChip { steps, table2, table3, table4, uninstalled }
}

/// IPv6 addresses of the VPC in which addresses that were never installed are tried.
const INSTALLED: u64 = 100_000;

fn computed_from(p: &Profile, r: &Request, pipes: &Arrangement, region: &Region, month: &Month) -> Vec<Basis> {
    let (load, t) = (&r.load, &r.techniques);
    let whose = if *load == Load::sailfish(25) { "the Sailfish paper's load" } else { "this load" };
    let clusters = match t.clusters {
        1 => "one cluster".to_string(),
        n => format!("one of {n} clusters"),
    };
    let part = match t.split {
        None => format!("{whose} in {clusters}"),
        Some(_) => format!("a half of {whose} in {clusters}"),
    };
    let techniques = t.words().join(", ");
    let last = sailfish::techniques().pop().map_or(Techniques::NONE, |t| t.1);
    let allowed = if arrange(p, &last).is_ok() { "" } else { " that its pipes allow" };
    let paper = format!("{whose} in one cluster on {}, with the paper's techniques{allowed}", p.name);
    let traffic = match r.tbps {
        None => format!("{} Tbit/s, the paper's (section 2.3)", region.demand.tbps),
        Some(tbps) => format!("{tbps} Tbit/s as given"),
    };
    let prices = format!(
        "{:.0}% water level, {:.1}% of the traffic to software, {} Gbit/s a software node, ${} a node: the paper's",
        100.0 * region.demand.water_level,
        100.0 * region.demand.software_share,
        region.demand.software_gbps,
        thousands(region.demand.node_price as u64)
    );
    let declared = match t.routes {
        Routes::Alpm(_) => {
            "; places of ALPM are counted as the paper declares them, which real prefixes cannot fill: --verify builds them"
        }
        _ => "",
    };
    let (connections, collisions, tenants) = COFILTER;
    let sections = [
        ("usage", format!("{part}, with {techniques}; {}{declared}", pipes.says)),
        ("stages", format!("{part}, with {techniques}")),
        ("steps", format!("{paper}, one after the other")),
        (
            "table2",
            format!(
                "{whose} in one cluster on {}, with no technique; one family's rows have all entries in it",
                p.name
            ),
        ),
        ("table3", paper.clone()),
        ("table4", format!("{paper}, and services of assumed size that do not depend on the load")),
        (
            "uninstalled",
            format!("blocks for {whose}; false matches in one VPC with {} IPv6 addresses", thousands(INSTALLED)),
        ),
        ("performance", format!("{}, {}; no load", p.name, pipes.says)),
        ("balance", format!("{} VPCs whose traffic is Zipf; neither the load nor the chip", thousands(TENANTS))),
        ("region", format!("{whose} with {techniques}; {traffic}; {prices}")),
        ("best", format!("{whose} in {clusters}, on {}", p.name)),
        ("month", month.says(load)),
        (
            "cofilter",
            format!(
                "the CoFilter paper's {} connections, {} collided ones and {} tenants on {}; not the load",
                thousands(connections),
                thousands(collisions),
                thousands(tenants),
                p.name
            ),
        ),
    ];
    sections.into_iter().map(|(of, from)| Basis { of, from }).collect()
}

/// A month on one half of the load, in partitions with a fifth of room to grow; large ones by a sample.
fn month_of(load: &Load) -> Month {
    let half = load.part(2);
    let routes = half.routes().clamp(1000, 200_000);
    let partitions = (routes / 112).next_power_of_two().clamp(64, 8192) as u32;
    let bucket = (routes * 15 / 10 / u64::from(partitions) + 8) as u32;
    Month {
        routes,
        vnis: half.vnis.clamp(1, routes / 2),
        vms: half.vms().clamp(1000, 600_000) * (1 << 20) / 1_146_880,
        partitions,
        subtrees: 8,
        bucket,
        ipv6_percent: 100 * (load.routes6 + load.vms6) / load.entries().max(1),
    }
}
