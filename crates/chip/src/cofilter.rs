// SPDX-License-Identifier: Apache-2.0
//! CoFilter on the chip: registers of 2-bit states, collision tables, meters, migration prefixes; and what its hashing
//! really holds.

use crate::alloc::{audit, Chip, NoRoom};
use crate::blocks::state::{part, State};
use crate::blocks::{Key, Kind, Packing, Table};
use crate::Profile;

/// What one configuration takes.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Placement {
    /// Connections.
    pub connections: u64,
    /// Room for collided connections.
    pub collisions: u64,
    /// Blocks.
    pub sram: u32,
    /// Share of a pipe's SRAM.
    pub sram_percent: f64,
    /// Blocks.
    pub tcam: u32,
    /// Share of a pipe's TCAM.
    pub tcam_percent: f64,
    /// Stateful and meter ALUs, share of a pipe's.
    pub alu_percent: f64,
    /// Map RAMs.
    pub map_ram: u32,
    /// Crossbar bytes, share of a pipe's.
    pub crossbar_percent: f64,
    /// The stage behind the last one that is used.
    pub stages: usize,
    /// The paper's Table 1 beside ours.
    pub table1: Vec<Row>,
    /// What Table 1 stands on.
    pub note: &'static str,
}

/// A row of Table 1. The paper gives shares of what another program, switch.p4, takes, and not what that is. So each row
/// says what switch.p4 would have to take for both to be right; the chip has no more than `of`.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Row {
    /// Resource.
    pub resource: &'static str,
    /// What we count.
    pub ours: u32,
    /// What a pipe has.
    pub of: u32,
    /// Share of a pipe's.
    pub percent_of_pipe: f64,
    /// The paper's share of switch.p4's.
    pub paper_percent_of_switch_p4: f64,
    /// What switch.p4 would take.
    pub implied_switch_p4: f64,
    /// That is no more than a pipe has.
    pub possible: bool,
}

/// Places CoFilter with so many connections, a table of so many collided ones, and meters for so many tenants.
pub fn place(p: &Profile, connections: u64, collisions: u64, tenants: u64) -> Result<Placement, NoRoom> {
    let g = p.geometry.clone();
    let mut chip = Chip::flat(p);
    let table = |kind, key: &str, entries, action_bits| Table {
        kind,
        key: Key::named(key).unwrap_or_else(|| Key::of(&[16])),
        entries,
        action_bits,
        packing: Packing::Straddling,
    };
    let classify =
        chip.place("Classify_Tbl", &Table { key: Key::of(&[16, 8]), ..table(Kind::Ternary, "", 512, 2) }, 0)?;
    let migrate = chip.place("Migrate_Tbl", &table(Kind::Ternary, "vni_ip4", 1024, 1), 0)?;
    let meter = part(State::Meter, tenants, &g).map_err(|reason| impossible("Rate_Limit", reason))?;
    chip.place_part("Rate_Limit", &meter, classify)?;
    // A state of 2 bits is two 1-bit registers side by side: one read gives one bit. Each pair is as large as one ALU
    // reaches, and stands behind its collision table, which may rewrite the index.
    let cells = u64::from(g.register_blocks_max) * u64::from(g.sram_width * g.sram_depth);
    let pairs = connections.div_ceil(cells.max(1)).clamp(1, connections.max(1));
    let mut from = classify.max(migrate);
    for _ in 0..pairs {
        let exact = Kind::Exact { digest: None };
        let behind = chip.place("Col_Tbl", &table(exact, "five_tuple4", collisions.div_ceil(pairs), 32), from)?;
        let bits = part(State::Register { bits: 1 }, connections.div_ceil(pairs), &g);
        let bits = bits.map_err(|reason| impossible("Reg_Tbl", reason))?;
        chip.place_part("Reg_Tbl low", &bits, behind)?;
        from = chip.place_part("Reg_Tbl high", &bits, behind)?;
    }
    let filter = Table { key: Key::of(&[8]), ..table(Kind::Ternary, "", 512, 2) };
    let stages = chip.place("Filter_Tbl", &filter, from)?;
    // The placement and its independent count never disagree; a test holds them to it.
    debug_assert_eq!(audit(&chip), Ok(()));
    let sum = |f: &dyn Fn(&crate::blocks::Part) -> u32| chip.placed.iter().map(|x| f(&x.part)).sum::<u32>();
    let percent = |n: u32, of: u32| 100.0 * f64::from(n) / f64::from(of.max(1));
    let (sram, tcam) = (sum(&|x| x.sram()), sum(&|x| x.tcam));
    let crossbar = sum(&|x| x.crossbar_exact + x.crossbar_ternary);
    let row = |resource, ours: u32, of: u32, paper: f64| {
        let implied_switch_p4 = f64::from(ours) * 100.0 / paper;
        let possible = implied_switch_p4 <= f64::from(of);
        let percent_of_pipe = percent(ours, of);
        Row { resource, ours, of, percent_of_pipe, paper_percent_of_switch_p4: paper, implied_switch_p4, possible }
    };
    Ok(Placement {
        connections,
        collisions,
        sram,
        sram_percent: percent(sram, p.sram_per_pipe()),
        tcam,
        tcam_percent: percent(tcam, p.tcam_per_pipe()),
        alu_percent: percent(sum(&|x| x.alus), g.meter_alus * g.stages),
        map_ram: sum(&|x| x.map_ram),
        crossbar_percent: percent(crossbar, (g.crossbar_exact + g.crossbar_ternary) * g.stages),
        stages,
        table1: vec![
            row("SRAM blocks", sram, p.sram_per_pipe(), 43.7),
            row("TCAM blocks", tcam, p.tcam_per_pipe(), 11.5),
            row("crossbar bytes", crossbar, (g.crossbar_exact + g.crossbar_ternary) * g.stages, 18.2),
            row("hash bits", hash_bits(&chip), g.hash_groups * g.hash_bits * g.stages, 25.8),
            row("stateful ALUs", 2 * pairs as u32, g.meter_alus * g.stages, 9.1),
        ],
        note: "the paper's shares are of what switch.p4 takes, which it does not give (Table 1: 2M connections, 10K collisions); \
               instruction words (19.3%) and header vector (24.5%) are not modelled. 1-bit register pairs are the least that \
               the states can take: cells of 8 bits would take four times their blocks",
    })
}

/// Hash bits: of an exact table a row address a way and what chooses a block, of a register its index.
fn hash_bits(chip: &Chip) -> u32 {
    let g = &chip.profile.geometry;
    let of = |x: &crate::alloc::Placed| {
        if x.part.alus > 0 && x.table.starts_with("Reg_Tbl") {
            x.part.entries.next_power_of_two().ilog2()
        } else if x.part.sram_match > 0 {
            let ways = crate::blocks::sram::ways(x.part.sram_match / x.part.width.max(1), g);
            let select: u32 = ways.iter().take(g.hash_ways as usize).map(|w| w.ilog2()).sum();
            g.hash_ways * g.row_bits() + select
        } else {
            0
        }
    };
    chip.placed.iter().map(of).sum()
}

/// A register or meter that one ALU cannot reach: [`crate::culprit`] says what the profile would need.
pub(crate) fn impossible(table: &str, reason: crate::Unplaced) -> NoRoom {
    let (resource, segment) = ("blocks of one register", "any pipe".into());
    let binds = crate::binding::Binding { resource, segment, pipe: 0, stage: 0, free: 0, of: 0 };
    NoRoom { table: table.into(), binds, reason, entries: 0, fit: 0 }
}

/// A row of Fig. 17a.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Capacity {
    /// Megabytes (10^6) of SRAM.
    pub megabytes: f64,
    /// Connections if the share of collided ones were a free choice of 10^-3, as the figure has it (millions).
    pub paper_millions: f64,
    /// Connections if collisions are those that hashing brings: 2 bits a slot and a full IPv4 key each (millions).
    pub hashed_millions: f64,
    /// Share of uninstalled connections that a data packet is accepted for at that load.
    pub hashed_false_accepts: f64,
    /// Connections in a cuckoo table of 10-bit digests with 2-bit states at 95% load (millions).
    pub digest_millions: f64,
    /// Its share of false accepts: eight places of 2^-10 each.
    pub digest_false_accepts: f64,
}

/// Bits of an entry that resolves a collision: the key, and the index with its overhead.
const COLLISION_BITS: f64 = 128.0;

/// Fig. 17a by arithmetic. With n connections in m slots about n²/2m collide, so 2m + E·n²/2m bits are needed, least at
/// m = n·√E/2, where it is 2n·√E.
pub fn capacity(megabytes: f64) -> Capacity {
    let bits = megabytes * 8e6;
    let (n, m) = (bits / (2.0 * COLLISION_BITS.sqrt()), bits / 4.0);
    Capacity {
        megabytes,
        paper_millions: bits / (2.0 + 1e-3 * COLLISION_BITS) / 1e6,
        hashed_millions: n / 1e6,
        hashed_false_accepts: 1.0 - (-n / m).exp(),
        digest_millions: bits * 0.95 / 12.0 / 1e6,
        digest_false_accepts: 1.0 - (1.0f64 - 1.0 / 1024.0).powf(8.0 * 0.95),
    }
}

/// Connections of 2-bit states that the registers of a pipe can hold: one 1-bit register a stateful ALU, as large as it
/// reaches, as many as SRAM and map RAMs of the stage allow.
pub fn register_limit(p: &Profile) -> u64 {
    let g = &p.geometry;
    let each = g.register_blocks_max + 1;
    let whole = (g.map_ram_per_stage / each).min(g.sram_per_stage() / each).min(g.meter_alus);
    let rest = (g.map_ram_per_stage - whole * each).min(g.sram_per_stage() - whole * each).saturating_sub(1);
    let rest = if whole < g.meter_alus { rest.min(g.register_blocks_max) } else { 0 };
    u64::from(whole * g.register_blocks_max + rest) * u64::from(g.sram_depth * g.sram_width) * u64::from(g.stages) / 2
}
