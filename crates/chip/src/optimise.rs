// SPDX-License-Identifier: Apache-2.0
//! The search for the layout that takes least, and the proof that it works.
//!
//! Candidates are all combinations of how the pipes are used (folded or not, entries divided between halves or not), how
//! routes and VM addresses can be stored, families pooled or not, and their parameters. Each is counted in blocks and
//! placed into real stages; what is no better than another in SRAM, TCAM, false matches and throughput is left out. The
//! one whose scarcest memory is used least is chosen. [`verify`] builds the tables of a candidate with the full number of
//! entries and looks them up.

use crate::alloc::{audit, Chip};
use crate::blocks::{Alpm, Bucket, Packing};
use crate::model::alpm::Shape;
use crate::model::key::{Address, BITS};
use crate::model::routes::{Route, Routes as Built, SLOTS};
use crate::model::vms::{Form, Vms as BuiltVms};
use crate::model::workload::{address, Size, Workload};
use crate::performance::performance;
use crate::pipes::arrange;
use crate::technique::{place, usage, Load, Routes, Split, Techniques, Usage, Vms, LENGTH_PLANS};
use crate::Profile;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;

/// Room for exceptions in the digest forms; what is needed is measured.
pub const EXCEPTIONS: u64 = 4096;
/// What is chosen mistakes no more addresses than this for others.
pub const CHOSEN_FALSE_MATCHES: f64 = 1e-4;
/// Room for routes that the tables by length do not take, at least.
pub const SPILL: u64 = 1024;

/// A probability in words: none is none.
pub fn probability(p: f64) -> String {
    if p == 0.0 {
        "0".into()
    } else {
        format!("{p:.1e}")
    }
}

/// A layout with what it takes.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Candidate {
    /// How the pipes are used.
    pub pipes: &'static str,
    /// Terabits a second that the entry ports take.
    pub port_tbps: f64,
    /// The memory of which the larger share is taken, action data included.
    pub binds: &'static str,
    /// That share.
    pub binds_percent: f64,
    /// It is the one whose scarcest memory is used least.
    pub chosen: bool,
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
    /// Why building it did not show that it works.
    pub failed: Option<String>,
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
    /// Most tables that one packet was looked up in.
    pub tables_a_packet: u32,
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

/// How the pipes can be used.
fn structures(profile: &Profile) -> Vec<(&'static str, Techniques)> {
    let flat = Techniques { packing: Packing::Straddling, ..Techniques::NONE };
    let mut out = vec![("all pipes alike", flat)];
    let folded = Techniques { fold: true, bridge_bytes: profile.bridge_header_bytes, ..flat };
    out.push(("folded", folded));
    out.push(("folded, halves by VNI", Techniques { split: Some(Split::Vni), ..folded }));
    // A chip without loopback, or with too few pipes, has not all of these.
    out.retain(|(_, t)| arrange(profile, t).is_ok());
    out
}

fn route_forms() -> Vec<(String, Routes)> {
    let mut out = vec![("ternary".to_string(), Routes::Ternary)];
    for partitions in [1024, 2048, 4096, 8192] {
        for subtrees in 1..=10 {
            if (4096..=16_384).contains(&(partitions * subtrees)) {
                let a = Alpm { partitions, subtrees, bucket: Bucket::Whole };
                out.push((format!("alpm {partitions} x {subtrees}"), Routes::Alpm(a)));
            }
        }
    }
    out.push((format!("{SLOTS} tables by length, whole keys"), Routes::Lengths { spill: SPILL }));
    out
}

fn vm_forms(load: &Load) -> Vec<(String, Vms, u32)> {
    let index = load.nc_index_bits();
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

/// All candidates that could fit by their sums.
pub fn candidates(profile: &Profile, load: &Load) -> Vec<Candidate> {
    let mut out = Vec::new();
    for (pipes, structure) in structures(profile) {
        let port_tbps = arrange(profile, &structure).map_or(0.0, |a| performance(profile, &a, 0).port_tbps);
        for (route_name, routes) in route_forms() {
            // Whole keys with a label are one table for both families anyway.
            let pooled: &[bool] = if matches!(routes, Routes::Lengths { .. }) { &[true] } else { &[true, false] };
            for pool_routes in pooled {
                for (vm_name, vms, nc_bits) in vm_forms(load) {
                    let routes = with_spill(routes, load, &structure);
                    let t = Techniques { routes, vms, nc_bits, pool_routes: *pool_routes, ..structure };
                    let routes =
                        if *pool_routes { route_name.clone() } else { format!("{route_name}, a table a family") };
                    out.extend(candidate(profile, load, t).map(|c| Candidate {
                        pipes,
                        port_tbps,
                        routes,
                        vms: vm_name,
                        ..c
                    }));
                }
            }
        }
    }
    out
}

/// The tables by length with room for exceptions: long IPv6 prefixes and what the tables do not take are less than 6 in
/// 1000 routes of a region; building the tables shows whether that is enough.
pub(crate) fn with_spill(routes: Routes, load: &Load, t: &Techniques) -> Routes {
    match routes {
        Routes::Lengths { spill } => {
            let part = load.part(if t.split.is_some() { 2 } else { 1 });
            let need = (part.routes() * 6).div_ceil(1000).next_multiple_of(512);
            Routes::Lengths { spill: spill.max(need) }
        }
        other => other,
    }
}

fn candidate(profile: &Profile, load: &Load, t: Techniques) -> Option<Candidate> {
    let usage = usage(profile, &roomy(load, &t), &t).ok()?;
    let shares = [("SRAM", usage.sram_with_action_percent), ("TCAM", usage.tcam_percent)];
    let (binds, binds_percent) = shares.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    if binds_percent > 100.0 {
        return None;
    }
    let lookups = match t.routes {
        Routes::Lengths { .. } => 3 + SLOTS as u32,
        Routes::Alpm(_) => 2,
        Routes::Ternary => 1,
    } + vm_lookups(&t);
    let fill = keys(1_146_880) as f64 / 1_146_880.0;
    let halves = if t.split.is_some() { 2 } else { 1 };
    let false_match_probability = match form(&t, profile) {
        Form::Whole { .. } => 0.0,
        Form::Label => keys(load.vms6 / halves) as f64 / 4_294_967_296.0,
        Form::Digest { bits, pack } => 4.0 * f64::from(pack) * fill / (1u64 << bits) as f64,
    };
    Some(Candidate {
        pipes: "",
        port_tbps: 0.0,
        binds,
        binds_percent,
        chosen: false,
        routes: String::new(),
        vms: String::new(),
        usage,
        lookups,
        false_match_probability,
        verified: None,
        failed: None,
        why: String::new(),
        techniques: t,
    })
}

/// Tables that a packet meets in the VM-NC part: the main one, the one for exceptions, the array of NCs.
fn vm_lookups(t: &Techniques) -> u32 {
    let tables = if t.vms == Vms::Whole { 1 } else { 2 };
    tables + u32::from(t.nc_bits < 32)
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

/// The candidates that none beats in SRAM with action data, TCAM, false matches and throughput at once, least SRAM first.
pub fn front(profile: &Profile, load: &Load) -> Vec<Candidate> {
    let cost = |c: &Candidate| {
        (c.usage.sram_with_action_percent, c.usage.tcam_percent, c.false_match_probability, -c.port_tbps)
    };
    let mut all = candidates(profile, load);
    all.sort_by(|a, b| {
        let (a, b) = (cost(a), cost(b));
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.total_cmp(&b.2)).then(a.3.total_cmp(&b.3))
    });
    let mut out: Vec<Candidate> = Vec::new();
    for c in all {
        // Whatever could beat it has no more SRAM, so it was seen before.
        let beaten = |o: &Candidate| {
            let (o, c) = (cost(o), cost(&c));
            o.0 <= c.0 && o.1 <= c.1 && o.2 <= c.2 && o.3 <= c.3
        };
        if !out.iter().any(beaten) && stands(profile, load, &c) {
            out.push(c);
        }
    }
    choose(&mut out);
    out
}

/// The layout stands in real stages, by the independent count too.
fn stands(profile: &Profile, load: &Load, c: &Candidate) -> bool {
    place(profile, &roomy(load, &c.techniques), &c.techniques).is_ok_and(|chip: Chip| audit(&chip).is_ok())
}

/// Chooses the one whose scarcest memory is used least, of those that mistake few enough addresses and that building did not
/// show to fail.
fn choose(all: &mut [Candidate]) {
    all.iter_mut().for_each(|c| c.chosen = false);
    let careful = all.iter_mut().filter(|c| c.false_match_probability <= CHOSEN_FALSE_MATCHES && c.failed.is_none());
    if let Some(least) = careful.min_by(|a, b| a.binds_percent.total_cmp(&b.binds_percent)) {
        least.chosen = true;
    }
}

/// The front, and the points that the paper's routing scheme gives; each with a word why.
pub fn best(profile: &Profile, load: &Load, seed: u64, verify_all: bool) -> Vec<Candidate> {
    let mut out = front(profile, load);
    let paper = |c: &Candidate| {
        matches!(c.techniques.routes, Routes::Alpm(_)) && c.techniques.pool_routes && c.usage.tcam_percent <= 11.2
    };
    let mut alpm: Vec<Candidate> = candidates(profile, load).into_iter().filter(paper).collect();
    alpm.sort_by(|a, b| a.usage.sram_with_action_percent.total_cmp(&b.usage.sram_with_action_percent));
    for exact in [false, true] {
        let found = alpm.iter().find(|c| {
            (c.false_match_probability == 0.0) == exact && c.false_match_probability < 1e-4 && stands(profile, load, c)
        });
        let same = |o: &Candidate, c: &Candidate| o.pipes == c.pipes && o.routes == c.routes && o.vms == c.vms;
        if let Some(c) = found.filter(|c| !out.iter().any(|o| same(o, c))) {
            out.push(c.clone());
        }
    }
    for c in &mut out {
        if verify_all {
            match verify(profile, load, &roomy(load, &c.techniques), &c.techniques, seed) {
                Ok(v) => c.verified = Some(v),
                Err(e) => c.failed = Some(format!("not shown to work: {e}")),
            }
        }
    }
    choose(&mut out);
    out.iter_mut().for_each(|c| c.why = why(c));
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
    let choice = match c.chosen {
        true => "; chosen: of all candidates that stand in the stages with at most 1e-4 false matches its scarcest memory is used least",
        false => "",
    };
    format!("{} binds at {:.1}%; {routes}; {vms}{choice}", c.binds, c.binds_percent)
}

/// The routes of a half: one table for both families, or one a family.
struct Tables(Vec<Built>);

impl Tables {
    fn of(&self, v6: bool) -> &Built {
        &self.0[usize::from(v6).min(self.0.len() - 1)]
    }
}

/// Builds the tables of one half (or of the whole, if it is not divided) with all entries and compares lookups with what
/// was installed. `declared` is the load that they have places for.
pub fn verify(profile: &Profile, load: &Load, declared: &Load, t: &Techniques, seed: u64) -> Result<Verified, String> {
    let parts = t.clusters * if t.split.is_some() { 2 } else { 1 };
    let half = load.part(parts);
    let installed = keys(half.vms());
    let six = if half.vms() == 0 { 0 } else { half.vms6 * 100 / half.vms() };
    let size = Size { vnis: half.vnis, routes: half.routes(), vms: installed, ipv6_percent: six };
    // Random addresses are in networks of 2^24; where few are left, finding one that is new takes for ever.
    if half.vms4 / half.vnis.max(1) > 1 << 23 {
        return Err(format!("{} IPv4 addresses are too many for {} VPCs", half.vms4, half.vnis));
    }
    let w = Workload::new(size, seed);
    let room = declared.part(parts);
    let build = |routes: &[Route], room: u64| match t.routes {
        Routes::Alpm(a) => {
            let bucket = room.div_ceil(u64::from(a.partitions)) as u32;
            let shape = Shape { partitions: a.partitions, subtrees: a.subtrees, bucket, pivot_min: 0, window: BITS };
            Built::alpm(shape, routes)
        }
        Routes::Lengths { spill } => {
            let each = (room * 100).div_ceil(SLOTS as u64 * crate::technique::LOAD_PERCENT);
            Built::lengths(each, 3, spill as usize, routes, seed)
        }
        // A TCAM holds what it holds; many small partitions stand for it.
        Routes::Ternary => {
            let shape = Shape { partitions: 1 << 16, subtrees: 4, bucket: 64, pivot_min: 0, window: BITS };
            Built::alpm(shape, routes)
        }
    };
    let built = if t.pool_routes || matches!(t.routes, Routes::Lengths { .. }) {
        vec![build(&w.routes, room.routes())]
    } else {
        let (six, four): (Vec<Route>, Vec<Route>) = w.routes.iter().partition(|r| r.v6);
        // The families' shares of a random workload differ from those of the load by chance.
        let percent = if declared == load { 100 } else { ALPM_ROOM_PERCENT };
        let of = |n: usize, room: u64| room.max(n as u64 * percent / 100);
        vec![build(&four, of(four.len(), room.routes4)), build(&six, of(six.len(), room.routes6))]
    };
    let routes = Tables(built.into_iter().collect::<Result<_, _>>().map_err(|e| e.to_string())?);
    for table in &routes.0 {
        if let Built::Lengths(l) = table {
            if l.plans() as u64 > LENGTH_PLANS {
                return Err(format!("{} plans of lengths, room for {LENGTH_PLANS}", l.plans()));
            }
        }
    }
    let mut vms = BuiltVms::new(form(t, profile), half.vms(), seed);
    for (key, value) in &w.vms {
        vms.insert(*key, *value).map_err(|e| e.to_string())?;
    }
    check(t, &w, &routes, &vms, seed)
}

fn check(t: &Techniques, w: &Workload, routes: &Tables, vms: &BuiltVms, seed: u64) -> Result<Verified, String> {
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
    let mut rng = SplitMix64::seed_from_u64(seed ^ 0xbe57);
    let (lookups, mut tables) = (if w.routes.is_empty() { 0 } else { 200_000u64 }, 0);
    for _ in 0..lookups {
        let r = &w.routes[rng.random_range(0..w.routes.len() as u64) as usize];
        let random = address(r.vni, r.v6, &mut rng);
        let addr = if rng.random_range(0..2u64) == 0 {
            random
        } else {
            r.addr | random & ((1 << (if r.v6 { 64 } else { 8 })) - 1)
        };
        let a = Address { vni: r.vni, v6: r.v6, addr };
        let width: u8 = if r.v6 { 128 } else { 32 };
        let want = (0..=width).rev().find_map(|len| {
            let low = u32::from(width - len);
            let first = if low >= 128 { 0 } else { addr >> low << low };
            map.get(&(r.vni, r.v6, first, len)).copied()
        });
        let found = routes.of(a.v6).lookup(&a);
        if found != want {
            return Err(format!("{a:?}: the compressed table says {found:?}, the routes {want:?}"));
        }
        tables = tables.max(if t.routes == Routes::Ternary { 1 } else { routes.of(a.v6).tables(&a) });
    }
    let known: std::collections::HashSet<Address> = w.vms.iter().map(|(key, _)| *key).collect();
    let (mut false_matches, mut uninstalled) = (0, 0);
    for _ in 0..if w.vms.is_empty() { 0 } else { 1_000_000u32 } {
        let (key, _) = w.vms[rng.random_range(0..w.vms.len() as u64) as usize];
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
        tables_a_packet: tables + vm_lookups(t),
        exceptions: vms.exceptions() as u64,
        vm_fill: vms.fill(),
        false_matches,
        uninstalled,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_building_shows_to_fail_is_not_chosen() {
        let p = crate::explain::reference().unwrap();
        let mut all = front(&p, &Load::sailfish(25).hundredths(3));
        let first = all.iter().position(|c| c.chosen).unwrap();
        all[first].failed = Some("not shown to work".into());
        choose(&mut all);
        let second = all.iter().position(|c| c.chosen).unwrap();
        assert!(first != second && all.iter().filter(|c| c.chosen).count() == 1);
        assert!(all[second].binds_percent >= all[first].binds_percent);
        assert!(all[second].false_match_probability <= CHOSEN_FALSE_MATCHES);
    }
}
