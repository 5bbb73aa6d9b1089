// SPDX-License-Identifier: Apache-2.0
//! The Sailfish paper's figures beside ours: Tables 2 to 4 and the steps of Fig. 17.

use crate::alloc::{Chip, NoRoom};
use crate::blocks::state::{part, State};
use crate::blocks::{Alpm, Bucket, Key, Kind, Packing, Table, Unplaced};
use crate::explain::{thrice, Explained, Share, Thrice};
use crate::model::key::Address;
use crate::model::vms::{Form, Vms as Built};
use crate::model::workload::address;
use crate::pipes::{allowed, arrange};
use crate::technique::{usage, Load, Routes, Split, Techniques, Usage, Vms};
use crate::Profile;
use rand::SeedableRng;
use rand_xoshiro::SplitMix64;

/// The partitions of the paper's ALPM: 8192 subtrees, four blocks wide, are 64 TCAM blocks (11%); 28 routes and a spare a
/// partition in three words each are 348 SRAM blocks (18%).
pub const PAPER_ALPM: Alpm = Alpm { partitions: 4096, subtrees: 2, bucket: Bucket::Whole };
/// Room for IPv6 addresses that share a hash. The paper does not say; 32,768 keys of two words are the 3.3 points between
/// 14.6% (two pooled entries a word) and its 18%.
pub const PAPER_CONFLICTS: u64 = 32_768;

/// A step of Fig. 17.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Step {
    /// What was added.
    pub step: &'static str,
    /// The figures.
    #[serde(flatten)]
    pub usage: Usage,
    /// The paper's share of SRAM.
    pub paper_sram_percent: f64,
    /// The paper's share of TCAM.
    pub paper_tcam_percent: f64,
    /// Ours less the paper's.
    pub sram_difference: f64,
    /// Ours less the paper's.
    pub tcam_difference: f64,
    /// Where the paper's values come from.
    pub paper_from: &'static str,
    /// Why ours differs.
    pub sram_explained: Explained,
    /// Why ours differs.
    pub tcam_explained: Explained,
}

/// The techniques after each step.
pub fn techniques() -> Vec<(&'static str, Techniques)> {
    let none = Techniques::NONE;
    let fold = Techniques { fold: true, bridge_bytes: 28, ..none };
    let split = Techniques { split: Some(Split::Vni), ..fold };
    let pool = Techniques { pool_routes: true, vms: Vms::Label { conflicts: PAPER_CONFLICTS }, ..split };
    let alpm = Techniques { routes: Routes::Alpm(PAPER_ALPM), ..pool };
    vec![("none", none), ("folding", fold), ("splitting", split), ("pooling", pool), ("alpm", alpm)]
}

/// What the paper says of a step.
struct Said {
    sram: f64,
    tcam: f64,
    from: &'static str,
    sram_why: &'static str,
    tcam_why: &'static str,
}

const STEPS: [Said; 5] = [
    Said {
        sram: 102.0,
        tcam: 388.75,
        from: "Table 2, sum",
        sram_why: "the paper prints whole percents",
        tcam_why: "the paper adds up its rounded cells, 0.75 x 311 + 0.25 x 622",
    },
    Said {
        sram: 51.0,
        tcam: 194.4,
        from: "section 5.1: reduced by half",
        sram_why: "twice the blocks for the same entries; half of the paper's rounded 102",
        tcam_why: "twice the blocks for the same entries; half of the paper's rounded sum",
    },
    Said {
        sram: 25.5,
        tcam: 97.2,
        from: "section 5.1: further reduced by half",
        sram_why: "half of the entries in each half; a quarter of the paper's rounded 102",
        tcam_why: "half of the entries in each half; a quarter of the paper's rounded sum",
    },
    Said {
        sram: 18.0,
        tcam: 155.6,
        from: "SRAM: half of the last step, which section 5.1 says doubles it, and Table 3's VM-NC row; TCAM: not printed, section \
               5.1 says only that it grows: derived, every route four blocks wide",
        sram_why: "64 of them are the table of conflicts, for which 32,768 keys are assumed; without it 14.6%",
        tcam_why: "the paper's value is derived in the same way, so this says nothing",
    },
    Said {
        sram: 36.0,
        tcam: 11.0,
        from: "Table 3",
        sram_why: "the sum of Table 3's rows; the paper prints whole percents",
        tcam_why: "8,192 subtrees four blocks wide; the paper prints whole percents",
    },
];

/// SRAM match and TCAM of a load under some techniques.
fn shares(p: &Profile, load: &Load, t: &Techniques) -> Result<(Usage, [Share; 2]), Unplaced> {
    let u = usage(p, load, t)?;
    let (sram, tcam) = (Share { blocks: u.sram_match, of: u.sram_pool }, Share { blocks: u.tcam, of: u.tcam_pool });
    Ok((u, [sram, tcam]))
}

/// The steps of Fig. 17 for a load that one cluster holds. Steps that the chip's pipes do not allow are left out, and those
/// behind them are without.
pub fn steps(profile: &Profile, load: &Load) -> Result<Vec<Step>, Unplaced> {
    let mut out = Vec::new();
    for ((step, t), said) in techniques().into_iter().zip(&STEPS) {
        if matches!(step, "folding" | "splitting") && arrange(profile, &t).is_err() {
            continue;
        }
        let full = t;
        let t = allowed(profile, &full);
        let usage = usage(profile, load, &t)?;
        let both = thrice(profile, load, |p, l| shares(p, l, &allowed(p, &full)).map(|(_, s)| s.to_vec()))?;
        out.push(Step {
            step,
            paper_sram_percent: said.sram,
            paper_tcam_percent: said.tcam,
            sram_difference: usage.sram_percent - said.sram,
            tcam_difference: usage.tcam_percent - said.tcam,
            usage,
            paper_from: said.from,
            sram_explained: both[0].explain(said.sram, said.sram_why, "SRAM", profile, load),
            tcam_explained: both[1].explain(said.tcam, said.tcam_why, "TCAM", profile, load),
        });
    }
    Ok(out)
}

/// A cell of Table 2, 3 or 4.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Cell {
    /// Row of the paper's table.
    pub row: &'static str,
    /// SRAM or TCAM.
    pub memory: &'static str,
    /// Ours.
    pub percent: f64,
    /// The paper's.
    pub paper_percent: f64,
    /// Ours less the paper's.
    pub difference: f64,
    /// Why they differ.
    pub explained: Explained,
}

/// Row, memory, the paper's value, and where the model's part of the difference comes from.
type Spec = (&'static str, &'static str, f64, String);

fn cells(specs: Vec<Spec>, values: &[Thrice], p: &Profile, load: &Load) -> Vec<Cell> {
    let cell = |((row, memory, paper_percent, why), v): (Spec, &Thrice)| {
        let percent = v.own.percent();
        let explained = v.explain(paper_percent, &why, memory, p, load);
        Cell { row, memory, percent, paper_percent, difference: percent - paper_percent, explained }
    };
    specs.into_iter().zip(values).map(cell).collect()
}

/// Table 2: each table alone, all entries of one family, and the sum as it is (the paper's: 75% and 25%).
pub fn table2(profile: &Profile, load: &Load) -> Result<Vec<Cell>, Unplaced> {
    let values = thrice(profile, load, |p, l| {
        let of = |l: Load| shares(p, &l, &Techniques::NONE).map(|(_, s)| s);
        let ([vms4, routes4], [vms6, routes6], [sram, tcam]) = (of(l.mixed(0))?, of(l.mixed(100))?, of(*l)?);
        Ok(vec![routes4, routes6, vms4, vms6, sram, tcam])
    })?;
    let whole = |how: &str| format!("{how}; the paper prints whole percents");
    let specs = vec![
        ("VXLAN routing table, IPv4", "TCAM", 311.0, whole("448 deep and 2 wide")),
        ("VXLAN routing table, IPv6", "TCAM", 622.0, whole("448 deep and 4 wide")),
        ("VM-NC mapping table, IPv4", "SRAM", 58.0, whole("two entries a word")),
        ("VM-NC mapping table, IPv6", "SRAM", 233.0, whole("an entry in two words")),
        (
            "Sum (paper: 75% IPv4, 25% IPv6)",
            "SRAM",
            102.0,
            whole("three quarters of the IPv4 row and a quarter of IPv6's"),
        ),
        ("Sum (paper: 75% IPv4, 25% IPv6)", "TCAM", 388.75, "the paper adds up its rounded cells".into()),
    ];
    Ok(cells(specs, &values, profile, load))
}

/// Table 3: after all techniques that the chip's pipes allow.
pub fn table3(profile: &Profile, load: &Load) -> Result<Vec<Cell>, Unplaced> {
    let all = techniques();
    let last = &all[all.len() - 1].1;
    let values = thrice(profile, load, |p, l| {
        let (u, [sram, tcam]) = shares(p, l, &allowed(p, last))?;
        let routing = Share { blocks: u.routing_sram_match, of: u.sram_pool };
        let vms = Share { blocks: u.sram_match - u.routing_sram_match, of: u.sram_pool };
        Ok(vec![routing, tcam, vms, sram, tcam])
    })?;
    let whole = |how: &str| format!("{how}; the paper prints whole percents");
    let specs = vec![
        ("VXLAN routing table", "SRAM", 18.0, whole("28 routes and a spare a partition, three words each")),
        ("VXLAN routing table", "TCAM", 11.0, whole("8,192 subtrees four blocks wide")),
        (
            "VM-NC mapping table",
            "SRAM",
            18.0,
            whole("280 of pooled entries, 64 of the table of conflicts, whose size is assumed"),
        ),
        ("Sum", "SRAM", 36.0, whole("both rows")),
        ("Sum", "TCAM", 11.0, whole("the routing table's")),
    ];
    Ok(cells(specs, &values, profile, load))
}

/// A way to store VM addresses, and what an address that was never installed may be taken for.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Store {
    /// The way.
    pub store: &'static str,
    /// Blocks of a half of the folded chip: match.
    pub sram_match: u32,
    /// Action data.
    pub sram_action: u32,
    /// Match blocks more than the paper's.
    pub more_than_paper: i64,
    /// Addresses of a VPC that were tried and had never been installed.
    pub tried: u64,
    /// Of them reached somebody's VM.
    pub false_matches: u64,
    /// As many were to be expected.
    pub expected: f64,
}

/// The hole in the paper's scheme, shown by building it: a VPC with so many IPv6 addresses, and as many tries as given with
/// others. What closes it costs the blocks beside it.
/// The blocks are those of the load's VM addresses.
pub fn uninstalled(
    profile: &Profile,
    load: &Load,
    installed: u64,
    tries: u64,
    seed: u64,
) -> Result<Vec<Store>, Unplaced> {
    let fold = techniques()[2].1;
    let straddling = Techniques { packing: Packing::Straddling, ..fold };
    let label = Vms::Label { conflicts: PAPER_CONFLICTS };
    let digest = Vms::Digest { bits: 20, conflicts: crate::optimise::EXCEPTIONS };
    let ways = [
        ("32-bit hash and label: the paper's", Techniques { vms: label, ..fold }, Form::Label),
        ("whole keys, words as the paper's", fold, Form::Whole { pack: 1 }),
        ("whole keys over word borders", straddling, Form::Whole { pack: 3 }),
        (
            "20-bit digest over word borders",
            Techniques { vms: digest, nc_bits: 15, ..straddling },
            Form::Digest { bits: 20, pack: 5 },
        ),
    ];
    let mut rng = SplitMix64::seed_from_u64(seed ^ 0x0041_e5);
    let mut any = || Address { vni: 7, v6: true, addr: address(7, true, &mut rng) };
    let known: Vec<Address> = (0..installed).map(|_| any()).collect();
    let others: Vec<Address> = (0..tries).map(|_| any()).collect();
    let set: std::collections::HashSet<&Address> = known.iter().collect();
    let others: Vec<&Address> = others.iter().filter(|a| !set.contains(a)).collect();
    let mut out: Vec<Store> = Vec::new();
    for (store, t, form) in ways {
        let only = Techniques { routes: Routes::Ternary, ..t };
        let u = usage(profile, &Load { routes4: 0, routes6: 0, ..*load }, &only)?;
        let mut table = Built::new(form, installed * 1_146_880 / (1 << 20), seed);
        let all = known.iter().zip(0..).try_for_each(|(key, value)| table.insert(*key, value));
        if all.is_err() {
            continue;
        }
        let false_matches = others.iter().filter(|a| table.lookup(a).is_some()).count() as u64;
        let paper = out.first().map_or(u.sram_match, |p| p.sram_match);
        out.push(Store {
            store,
            sram_match: u.sram_match,
            sram_action: u.sram_action,
            more_than_paper: i64::from(u.sram_match) - i64::from(paper),
            tried: others.len() as u64,
            false_matches,
            expected: others.len() as f64 * table.false_match_probability(installed),
        });
    }
    Ok(out)
}

/// A service table: name, exact or ternary, pipe, key fields, entries, action bits.
type Service = (&'static str, bool, usize, &'static [u32], u64, u32);

/// The other tables of a gateway. The paper counts them in Table 4 and names them nowhere; these are what its sections 2
/// and 3.3 tell of (tenants, ACLs, meters, counters, tunnels, steering to the software gateways). Their sizes are assumed,
/// in round numbers for a region of this size, so the row sums are an example, not a reproduction.
const SERVICES: &[Service] = &[
    ("acl-in", false, 0, &[24, 32, 32, 16, 16, 8], 6_144, 16),
    ("cross-region", false, 0, &[24, 32], 6_144, 16),
    ("tenant", true, 0, &[24], 262_144, 64),
    ("source-check", true, 0, &[24, 32], 524_288, 0),
    ("acl-out", false, 1, &[24, 32, 32, 16, 16, 8], 10_240, 16),
    ("nc-tunnel", true, 1, &[32], 262_144, 64),
    ("service-vip", true, 1, &[24, 32, 16], 262_144, 32),
    ("vni-steering", true, 1, &[24, 8], 131_072, 16),
    ("qos-class", true, 1, &[24, 8], 131_072, 32),
];

/// The two large tables and the services on a chip that can be folded. What it holds besides the two is ours; the paper's list is
/// unknown.
pub fn overall(profile: &Profile, load: &Load) -> Result<Chip, NoRoom> {
    let all = techniques();
    let t = allowed(profile, &all[all.len() - 1].1);
    let stages = profile.geometry.stages as usize;
    let mut chip = Chip::folded(profile);
    // As Fig. 13 has it, in the order of lookups: what a packet meets first in ingress 0, VM-NC from egress 1 on.
    for n in crate::technique::tables(load, &t) {
        chip.place(n.name, &n.table, if n.routing { 0 } else { stages })?;
    }
    for (name, exact, pipe, fields, entries, action_bits) in SERVICES {
        let kind = if *exact { Kind::Exact { digest: None } } else { Kind::Ternary };
        let (key, packing) = (Key::of(fields), Packing::Straddling);
        let table = Table { kind, key, entries: *entries, action_bits: *action_bits, packing };
        chip.place(name, &table, pipe * stages)?;
    }
    for (name, state, cells) in STATES {
        let part =
            part(*state, *cells, &profile.geometry).map_err(|reason| crate::cofilter::impossible(name, reason))?;
        chip.place_part(name, &part, 0)?;
    }
    Ok(chip)
}

/// Meters and counters of Table 4, assumed like the services.
const STATES: &[(&str, State, u64)] =
    &[("tenant-meter", State::Meter, 16_384), ("vm-counter", State::Counter { bits: 64 }, 65_536)];

/// Table 4: what both pipes hold in all.
pub fn table4(profile: &Profile, load: &Load) -> Result<Vec<Cell>, NoRoom> {
    let values = thrice(profile, load, |p, l| {
        let chip = overall(p, l)?;
        let (s, t) = (p.sram_per_pipe(), p.tcam_per_pipe());
        let ((m0, _, t0), (m1, _, t1)) = (chip.used(0), chip.used(1));
        let of = |blocks, of| Share { blocks, of };
        Ok(vec![of(m0, s), of(t0, t), of(m1, s), of(t1, t), of(m0 + m1, 2 * s), of(t0 + t1, 2 * t)])
    })?;
    let chip = overall(profile, load)?;
    let service = |name: &str| SERVICES.iter().any(|s| s.0 == name) || STATES.iter().any(|s| s.0 == name);
    let assumed = |pipe: Option<u32>, tcam: bool| {
        let here = chip.placed.iter().filter(|p| service(&p.table) && pipe.is_none_or(|n| p.segment.pipe == n));
        let blocks = here.map(|p| if tcam { p.part.tcam } else { p.part.sram_match }).sum::<u32>();
        format!("{blocks} of this plan's are services that the paper counts and does not name: assumed, an example")
    };
    let specs = vec![
        ("Pipeline 0/2", "SRAM", 70.0, assumed(Some(0), false)),
        ("Pipeline 0/2", "TCAM", 41.0, assumed(Some(0), true)),
        ("Pipeline 1/3", "SRAM", 68.0, assumed(Some(1), false)),
        ("Pipeline 1/3", "TCAM", 22.0, assumed(Some(1), true)),
        ("Sum", "SRAM", 69.0, assumed(None, false)),
        ("Sum", "TCAM", 32.0, assumed(None, true)),
    ];
    Ok(cells(specs, &values, profile, load))
}
