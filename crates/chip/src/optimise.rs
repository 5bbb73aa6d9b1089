// SPDX-License-Identifier: Apache-2.0
//! The search for the layout that takes least, and the proof that it works.
//!
//! Candidates are all combinations of how routes and VM addresses can be stored, with their parameters. Each is counted
//! in blocks and placed into real stages; what is no better than another in SRAM, TCAM and false matches is left out. A
//! candidate is shown only after its tables were really built with the full number of entries and looked up.

use crate::alloc::{audit, Chip};
use crate::blocks::{Alpm, Bucket, Packing};
use crate::model::alpm::Shape;
use crate::model::key::{Address, BITS};
use crate::model::rng::Rng;
use crate::model::routes::{Routes as Built, SLOTS};
use crate::model::vms::{Form, Vms as BuiltVms};
use crate::model::workload::{address, Size, Workload};
use crate::technique::{place, usage, Load, Routes, Split, Techniques, Usage, Vms, LENGTH_PLANS};
use crate::Profile;

/// Room for exceptions in the digest forms; what is needed is measured.
pub const EXCEPTIONS: u64 = 4096;
/// Room for routes that the tables by length do not take.
pub const SPILL: u64 = 1024;

/// A layout with what it takes.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Candidate {
    /// How routes are stored.
    pub routes: String,
    /// How VM addresses are stored.
    pub vms: String,
    /// Blocks.
    #[serde(flatten)]
    pub usage: Usage,
    /// Tables that a packet looks up, the arrays that an index addresses included.
    pub lookups: u32,
    /// The probability that an address never installed is taken for an installed one.
    pub false_match_probability: f64,
    /// What was checked by building it; None: not built.
    pub verified: Option<Verified>,
    /// Why it is chosen.
    pub why: String,
    /// The techniques.
    #[serde(skip)]
    pub techniques: Techniques,
}

/// What building the tables of one half showed.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Verified {
    /// Routes installed.
    pub routes: u64,
    /// VM addresses installed.
    pub vms: u64,
    /// Lookups compared.
    pub lookups: u64,
    /// VM addresses held whole.
    pub exceptions: u64,
    /// Share of the VM-NC table's places taken.
    pub vm_fill: f64,
    /// Random addresses that were never installed and were taken for one that is.
    pub false_matches: u64,
    /// Of so many.
    pub uninstalled: u64,
}

/// Entries of the VM-NC table that are really installed: the slots that Table 2 counts hold 2^20 keys at 91.4% load.
fn keys(slots: u64) -> u64 {
    slots * (1 << 20) / 1_146_880
}

/// The share of an ALPM's places that real prefixes fill with subtrees shared eight to a partition; the search asks for
/// this much more room, and building it shows whether that is enough.
const ALPM_ROOM_PERCENT: u64 = 108;

fn base() -> Techniques {
    Techniques {
        fold: true,
        split: Some(Split::Vni),
        pool_routes: true,
        packing: Packing::Straddling,
        nc_bits: 16,
        bridge_bytes: 28,
        ..Techniques::NONE
    }
}

fn route_forms() -> Vec<(String, Routes)> {
    let mut out = vec![("ternary".to_string(), Routes::Ternary)];
    for partitions in [1024, 2048, 4096, 8192] {
        for subtrees in [1, 2, 4, 8] {
            if partitions * subtrees == 8192 || partitions * subtrees == 4096 {
                let a = Alpm { partitions, subtrees, bucket: Bucket::Whole };
                out.push((format!("alpm {partitions} x {subtrees}"), Routes::Alpm(a)));
            }
        }
    }
    out.push((format!("{SLOTS} tables by length, whole keys"), Routes::Lengths { spill: SPILL }));
    out
}

fn vm_forms(load: &Load) -> Vec<(String, Vms, u32)> {
    let index = if load.ncs <= 1 << 15 { 15 } else { 16 };
    let mut out = vec![
        ("whole keys".to_string(), Vms::Whole, index),
        (
            "32-bit hash and label (the paper's)".to_string(),
            Vms::Label { conflicts: crate::sailfish::PAPER_CONFLICTS },
            32,
        ),
    ];
    for bits in [12, 13, 16, 20, 24, 28, 32] {
        for nc in [index, 32] {
            out.push((
                format!("digest of {bits} bits, {nc} bits of result"),
                Vms::Digest { bits, conflicts: EXCEPTIONS },
                nc,
            ));
        }
    }
    out
}

/// The form and packing of the VM-NC table as it is really built.
fn form(t: &Techniques, profile: &Profile) -> Form {
    let bits = match t.vms {
        Vms::Digest { bits, .. } => bits,
        Vms::Label { .. } => return Form::Label,
        Vms::Whole => return Form::Whole { pack: 3 },
    };
    let tables = crate::technique::tables(&Load::sailfish(25), t);
    let pack = tables.iter().find(|n| n.name == "vm-nc").and_then(|n| n.table.alone(&profile.geometry).ok());
    let pack = pack.and_then(|p| p.first().map(|(_, p)| p.pack / p.width.max(1)));
    Form::Digest { bits, pack: pack.unwrap_or(1).max(1) }
}

/// All candidates that fit, counted and placed.
pub fn candidates(profile: &Profile, load: &Load) -> Vec<Candidate> {
    let mut out = Vec::new();
    for (route_name, routes) in route_forms() {
        for (vm_name, vms, nc_bits) in vm_forms(load) {
            let t = Techniques { routes, vms, nc_bits, ..base() };
            let l = roomy(load, &t);
            let Ok(usage) = usage(profile, &l, &t) else { continue };
            if usage.sram_with_action_percent > 100.0 || usage.tcam_percent > 100.0 {
                continue;
            }
            let lookups = match routes {
                Routes::Lengths { .. } => 3 + SLOTS as u32,
                Routes::Alpm(_) => 2,
                Routes::Ternary => 1,
            } + match vms {
                Vms::Whole => 1,
                _ => 2,
            } + u32::from(nc_bits < 32);
            let fill = keys(1_146_880) as f64 / 1_146_880.0;
            let false_match_probability = match form(&t, profile) {
                Form::Whole { .. } => 0.0,
                Form::Label => keys(load.vms6 / 2) as f64 / 4_294_967_296.0,
                Form::Digest { bits, pack } => 4.0 * f64::from(pack) * fill / (1u64 << bits) as f64,
            };
            out.push(Candidate {
                routes: route_name.clone(),
                vms: vm_name.clone(),
                usage,
                lookups,
                false_match_probability,
                verified: None,
                why: String::new(),
                techniques: t,
            });
        }
    }
    out
}

/// ALPM is given the room that it needs to really hold the routes.
fn roomy(load: &Load, t: &Techniques) -> Load {
    match t.routes {
        Routes::Alpm(_) => {
            let more = |n: u64| n * ALPM_ROOM_PERCENT / 100;
            Load { routes4: more(load.routes4), routes6: more(load.routes6), ..*load }
        }
        _ => *load,
    }
}

/// The candidates that none beats in SRAM with action data, TCAM and false matches at once, least SRAM first.
pub fn front(profile: &Profile, load: &Load) -> Vec<Candidate> {
    let all = candidates(profile, load);
    let cost = |c: &Candidate| (c.usage.sram_with_action_percent, c.usage.tcam_percent, c.false_match_probability);
    let beats = |a: &Candidate, b: &Candidate| {
        let (a, b) = (cost(a), cost(b));
        a.0 <= b.0 && a.1 <= b.1 && a.2 <= b.2 && a != b
    };
    let mut out: Vec<Candidate> = all
        .iter()
        .filter(|c| !all.iter().any(|other| beats(other, c)))
        .filter(|c| {
            place(profile, &roomy(load, &c.techniques), &c.techniques).is_ok_and(|chip: Chip| audit(&chip).is_ok())
        })
        .cloned()
        .collect();
    out.sort_by(|a, b| cost(a).0.total_cmp(&cost(b).0));
    out.dedup_by(|b, a| cost(a) == cost(b));
    out
}

/// The front, and the points that the paper's routing scheme gives; each with a word why.
pub fn best(profile: &Profile, load: &Load, seed: u64, verify_all: bool) -> Vec<Candidate> {
    let mut out = front(profile, load);
    let mut alpm: Vec<Candidate> =
        candidates(profile, load).into_iter().filter(|c| matches!(c.techniques.routes, Routes::Alpm(_))).collect();
    alpm.retain(|c| c.usage.tcam_percent <= 11.2);
    alpm.sort_by(|a, b| a.usage.sram_with_action_percent.total_cmp(&b.usage.sram_with_action_percent));
    for exact in [false, true] {
        let found =
            alpm.iter().find(|c| (c.false_match_probability == 0.0) == exact && c.false_match_probability < 1e-4);
        if let Some(c) = found.filter(|c| !out.iter().any(|o| o.routes == c.routes && o.vms == c.vms)) {
            out.push(c.clone());
        }
    }
    for c in &mut out {
        c.why = why(c);
        if verify_all {
            c.verified = verify(profile, load, &c.techniques, seed).ok();
            if c.verified.is_none() {
                c.why += "; not shown to work: building its tables failed";
            }
        }
    }
    out
}

fn why(c: &Candidate) -> String {
    let routes = match c.techniques.routes {
        Routes::Ternary => "every route in TCAM",
        Routes::Alpm(_) => "the paper's routing scheme; prefixes over word borders",
        Routes::Lengths { .. } => {
            "hashing by length needs no doubled bits and almost no TCAM; keys are whole, so no route is mistaken"
        }
    };
    let vms = match c.techniques.vms {
        Vms::Whole => "VM keys are whole: no address is ever mistaken",
        Vms::Label { .. } => "the paper's 32-bit hash",
        Vms::Digest { .. } => {
            "VM addresses as short digests, several a word; installed ones that share a digest are held whole"
        }
    };
    format!("{routes}; {vms}")
}

/// Builds the tables of one half with all entries and compares lookups with what was installed.
pub fn verify(profile: &Profile, load: &Load, t: &Techniques, seed: u64) -> Result<Verified, String> {
    let half = load.part(2);
    let installed = keys(half.vms());
    let six = if half.vms() == 0 { 0 } else { half.vms6 * 100 / half.vms() };
    let size = Size { vnis: half.vnis, routes: half.routes(), vms: installed, ipv6_percent: six };
    let w = Workload::new(size, seed);
    let routes = match t.routes {
        Routes::Alpm(a) => {
            let bucket = roomy(load, t).part(2).routes().div_ceil(u64::from(a.partitions)) as u32;
            let shape = Shape { partitions: a.partitions, subtrees: a.subtrees, bucket, pivot_min: 0, window: BITS };
            Built::alpm(shape, &w.routes)
        }
        Routes::Lengths { spill } => {
            let each = (half.routes() * 100).div_ceil(SLOTS as u64 * crate::technique::LOAD_PERCENT);
            Built::lengths(each, 3, spill as usize, &w.routes, seed)
        }
        // A TCAM holds what it holds; one partition stands for it.
        Routes::Ternary => {
            let shape = Shape { partitions: 1 << 16, subtrees: 4, bucket: 64, pivot_min: 0, window: BITS };
            Built::alpm(shape, &w.routes)
        }
    };
    let routes = routes.map_err(|e| e.to_string())?;
    if let Built::Lengths(l) = &routes {
        if l.plans() as u64 > LENGTH_PLANS {
            return Err(format!("{} plans of lengths, room for {LENGTH_PLANS}", l.plans()));
        }
    }
    let mut vms = BuiltVms::new(form(t, profile), half.vms(), seed);
    for (key, value) in &w.vms {
        vms.insert(*key, *value).map_err(|e| e.to_string())?;
    }
    check(t, &w, &routes, &vms, seed)
}

fn check(t: &Techniques, w: &Workload, routes: &Built, vms: &BuiltVms, seed: u64) -> Result<Verified, String> {
    let room = match t.vms {
        Vms::Digest { conflicts, .. } | Vms::Label { conflicts } => conflicts,
        Vms::Whole => 0,
    };
    if vms.exceptions() as u64 > room {
        return Err(format!("{} addresses must be held whole, room for {room}", vms.exceptions()));
    }
    if let Some((key, _)) = w.vms.iter().find(|(key, value)| vms.lookup(key) != Some(*value)) {
        return Err(format!("{key:?} is not found as itself"));
    }
    // The oracle of routes: a map by prefix, asked from the longest length down.
    let map: std::collections::HashMap<(u32, bool, u128, u8), u32> =
        w.routes.iter().map(|r| ((r.vni, r.v6, r.addr, r.len), r.value)).collect();
    let mut rng = Rng::new(seed ^ 0xbe57);
    let lookups = 200_000u64;
    for _ in 0..lookups {
        let r = &w.routes[rng.below(w.routes.len() as u64) as usize];
        let random = address(r.vni, r.v6, &mut rng);
        let addr = if rng.below(2) == 0 { random } else { r.addr | random & ((1 << (if r.v6 { 64 } else { 8 })) - 1) };
        let a = Address { vni: r.vni, v6: r.v6, addr };
        let width: u8 = if r.v6 { 128 } else { 32 };
        let want = (0..=width).rev().find_map(|len| {
            let low = u32::from(width - len);
            let first = if low >= 128 { 0 } else { addr >> low << low };
            map.get(&(r.vni, r.v6, first, len)).copied()
        });
        if routes.lookup(&a) != want {
            return Err(format!("{a:?}: the compressed table says {:?}, the routes {want:?}", routes.lookup(&a)));
        }
    }
    let known: std::collections::HashSet<Address> = w.vms.iter().map(|(key, _)| *key).collect();
    let (mut false_matches, mut uninstalled) = (0, 0);
    for _ in 0..1_000_000u32 {
        let (key, _) = w.vms[rng.below(w.vms.len() as u64) as usize];
        let a = Address { addr: address(key.vni, key.v6, &mut rng), ..key };
        if !known.contains(&a) {
            uninstalled += 1;
            false_matches += u64::from(vms.lookup(&a).is_some());
        }
    }
    Ok(Verified {
        routes: w.routes.len() as u64,
        vms: w.vms.len() as u64,
        lookups: lookups + w.vms.len() as u64,
        exceptions: vms.exceptions() as u64,
        vm_fill: vms.fill(),
        false_matches,
        uninstalled,
    })
}
