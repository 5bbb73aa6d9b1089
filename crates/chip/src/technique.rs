// SPDX-License-Identifier: Apache-2.0
//! Sailfish's techniques of compression, each on or off by itself, and what they make of a load.

use crate::alloc::{Chip, NoRoom};
use crate::binding::{explain, Wanted};
use crate::blocks::{Alpm, Blocks, Key, Kind, Packing, Table, Unplaced};
pub use crate::load::Load;
use crate::model::routes::SLOTS;
use crate::pipes::arrange;
use crate::Profile;

/// How entries are divided between the two halves of a folded chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// By the parity of the VNI: a VPC is in one half.
    Vni,
    /// By the parity of the inner destination: a large VPC's addresses are in both, and so are all routes, since a prefix
    /// covers even and odd addresses.
    Address,
}

impl Split {
    /// What the parity is of.
    pub fn name(&self) -> &'static str {
        match self {
            Split::Vni => "VNI",
            Split::Address => "address",
        }
    }
}

/// How routes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routes {
    /// Plain TCAM.
    Ternary,
    /// Algorithmic LPM.
    Alpm(Alpm),
    /// Eight exact tables of whole keys, each for one of a VPC's prefix lengths; a VPC's record says which.
    Lengths {
        /// Room of the TCAM for what does not fit this.
        spill: u64,
    },
}

/// How VM addresses are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vms {
    /// Whole keys, a table a family.
    Whole,
    /// The paper's pooling: IPv6 hashed to 32 bits, a label bit for the family, and a table that holds keys that share a
    /// hash exactly.
    Label {
        /// Room of that table.
        conflicts: u64,
    },
    /// A digest of VNI, label and address, and the NC's index; keys that share a digest are held exactly.
    Digest {
        /// Digest bits.
        bits: u32,
        /// Room of the table of exceptions.
        conflicts: u64,
    },
}

/// Techniques, each on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Techniques {
    /// Two pipes behind each other.
    pub fold: bool,
    /// Entries divided between the halves of the chip.
    pub split: Option<Split>,
    /// A table may lie in more than one pipe.
    pub across: bool,
    /// IPv4 and IPv6 routes in one table of 128-bit prefixes.
    pub pool_routes: bool,
    /// Routes.
    pub routes: Routes,
    /// VM addresses.
    pub vms: Vms,
    /// Whether entries may lie across words.
    pub packing: Packing,
    /// Metadata bytes that each crossing of pipes carries.
    pub bridge_bytes: u32,
    /// Clusters that share the tenants.
    pub clusters: u64,
    /// Bits of a VM's result: 32 for an NC's address, 16 for its index.
    pub nc_bits: u32,
}

impl Techniques {
    /// Nothing: what Table 2 counts.
    pub const NONE: Techniques = Techniques {
        fold: false,
        split: None,
        across: true,
        pool_routes: false,
        routes: Routes::Ternary,
        vms: Vms::Whole,
        packing: Packing::Aligned,
        bridge_bytes: 0,
        clusters: 1,
        nc_bits: 32,
    };
}

impl Techniques {
    /// The words that `--techniques` has for them.
    pub fn words(&self) -> Vec<&'static str> {
        let all = [
            (self.fold, "fold"),
            (self.split == Some(Split::Vni), "split-vni"),
            (self.split == Some(Split::Address), "split-address"),
            (self.fold && self.across, "across"),
            (self.pool_routes && !matches!(self.routes, Routes::Lengths { .. }), "pool-routes"),
            (matches!(self.routes, Routes::Alpm(_)), "alpm"),
            (matches!(self.routes, Routes::Lengths { .. }), "lengths"),
            (matches!(self.vms, Vms::Label { .. }), "pool-vms"),
            (matches!(self.vms, Vms::Digest { .. }), "digest"),
            (self.packing == Packing::Straddling, "straddle"),
        ];
        let words: Vec<&str> = all.into_iter().filter(|(on, _)| *on).map(|(_, word)| word).collect();
        if words.is_empty() {
            vec!["none"]
        } else {
            words
        }
    }
}

/// A table with its name and whose columns of Table 3 it counts in.
#[derive(Clone, Debug)]
pub struct Named {
    /// Name.
    pub name: &'static str,
    /// It belongs to the VXLAN routing table, else to the VM-NC table.
    pub routing: bool,
    /// The table.
    pub table: Table,
}

/// Name, routing table or not, kind, key, entries, action bits.
type Row = (&'static str, bool, Kind, &'static str, u64, u32);

/// Share of a hash table's places that four ways with several entries a row can really take.
pub const LOAD_PERCENT: u64 = 95;
/// Plans of lengths that VPCs share: a VPC's record is the number of one.
pub const LENGTH_PLANS: u64 = 4096;

/// The tables that a load becomes in one half (or in all, if it is not split).
pub fn tables(load: &Load, t: &Techniques) -> Vec<Named> {
    let parts = t.clusters.max(1);
    let halves = |split: bool| if split { 2 * parts } else { parts };
    // A half's share of what belongs to VPCs, and of what belongs to addresses.
    let l = Load { vms4: 0, vms6: 0, ..load.part(halves(t.split == Some(Split::Vni))) };
    let addresses = load.part(halves(t.split.is_some()));
    let l = Load { vms4: addresses.vms4, vms6: addresses.vms6, ..l };
    let mut rows: Vec<Row> = Vec::new();
    let exact = Kind::Exact { digest: None };
    let route_kind = match t.routes {
        Routes::Alpm(a) => Kind::Alpm(a),
        _ => Kind::Ternary,
    };
    match t.routes {
        _ if l.routes() == 0 => {}
        Routes::Lengths { spill } => {
            rows.push(("vni-lengths", true, exact.clone(), "vni_lbl1", 2 * l.vnis, 16));
            rows.push(("length-plans", true, exact.clone(), "", LENGTH_PLANS, 64));
            let each = (l.routes() * 100).div_ceil(SLOTS as u64 * LOAD_PERCENT);
            let names =
                ["routes-1", "routes-2", "routes-3", "routes-4", "routes-5", "routes-6", "routes-7", "routes-8"];
            rows.extend(names.map(|n| (n, true, exact.clone(), "vni_lbl1_hi64", each, 16)));
            rows.push(("routes-spill", true, Kind::Ternary, "vni_ip6", spill, 16));
        }
        _ if t.pool_routes => rows.push(("routes", true, route_kind, "vni_ip6", l.routes(), 16)),
        _ => {
            rows.push(("routes4", true, route_kind.clone(), "vni_ip4", l.routes4, 16));
            rows.push(("routes6", true, route_kind, "vni_ip6", l.routes6, 16));
        }
    }
    match t.vms {
        _ if l.vms() == 0 => {}
        Vms::Whole => {
            rows.push(("vm-nc4", false, exact.clone(), "vni_ip4", l.vms4, t.nc_bits));
            rows.push(("vm-nc6", false, exact, "vni_ip6", l.vms6, t.nc_bits));
        }
        Vms::Label { conflicts } => {
            rows.push(("vm-conflicts", false, exact.clone(), "vni_ip6", conflicts, t.nc_bits));
            rows.push(("vm-nc", false, exact, "vni_lbl1_ip4", l.vms(), t.nc_bits));
        }
        Vms::Digest { bits, conflicts } => {
            rows.push(("vm-conflicts", false, exact.clone(), "vni_ip6", conflicts, t.nc_bits));
            rows.push(("vm-nc", false, Kind::Exact { digest: Some(bits) }, "vni_lbl1_ip6", l.vms(), t.nc_bits));
        }
    }
    if t.nc_bits < 32 && l.vms() > 0 {
        rows.push(("nc", false, Kind::Exact { digest: None }, "", l.ncs, 32));
    }
    let named = rows.into_iter().filter(|r| r.4 > 0).map(|(name, routing, kind, key, entries, action_bits)| {
        let key = Key::named(key).unwrap_or_else(|| Key::of(&[16]));
        Named { name, routing, table: Table { kind, key, entries, action_bits, packing: t.packing } }
    });
    named.collect()
}

/// Bits of the headers that a gateway parses and writes: Ethernet, IPv6, UDP, VXLAN, Ethernet, IPv6 and ports.
const HEADER_BITS: u32 = 112 + 320 + 64 + 64 + 112 + 320 + 32;

/// Bits of the packet header vector: the headers as they came and the outer ones anew, what is carried over a crossing,
/// and what the tables say.
pub fn header_vector_bits(load: &Load, t: &Techniques) -> u32 {
    let results: u32 = tables(load, t).iter().map(|n| n.table.action_bits).sum();
    2 * HEADER_BITS + 8 * t.bridge_bytes + results
}

/// Blocks of a load under some techniques.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Usage {
    /// Share of the SRAM that a packet can reach, match memory alone (what the paper counts).
    pub sram_percent: f64,
    /// The same with action data.
    pub sram_with_action_percent: f64,
    /// Share of the TCAM.
    pub tcam_percent: f64,
    /// Match memory of the routing table and of the VM-NC table.
    pub routing_sram_percent: f64,
    /// The VM-NC table's.
    pub vm_sram_percent: f64,
    /// Blocks: match.
    pub sram_match: u32,
    /// Of them the routing table's.
    pub routing_sram_match: u32,
    /// Blocks: action data.
    pub sram_action: u32,
    /// Blocks: TCAM.
    pub tcam: u32,
    /// Blocks of SRAM that a packet can reach.
    pub sram_pool: u32,
    /// Blocks of TCAM.
    pub tcam_pool: u32,
}

/// Tables that an index addresses are arrays: they take no match memory, only the words.
pub(crate) fn is_array(n: &Named) -> bool {
    matches!(n.name, "nc" | "length-plans")
}

fn blocks_of(n: &Named, p: &Profile) -> Result<Blocks, Unplaced> {
    if is_array(n) {
        let a = crate::blocks::sram::ActionFormat { ram_bytes: n.table.action_bits.div_ceil(8), immediate: 0 };
        return Ok(Blocks { sram_action: a.blocks(n.table.entries, &p.geometry), ..Blocks::default() });
    }
    Ok(Blocks::of(&n.table.alone(&p.geometry)?))
}

/// Counts the blocks, whether they fit or not.
pub fn usage(profile: &Profile, load: &Load, t: &Techniques) -> Result<Usage, Unplaced> {
    let pipes = if t.fold { 2 } else { 1 };
    let mut u = Usage {
        sram_pool: profile.sram_per_pipe() * pipes,
        tcam_pool: profile.tcam_per_pipe() * pipes,
        ..Usage::default()
    };
    let percent = |n: u32, of: u32| 100.0 * f64::from(n) / f64::from(of.max(1));
    for n in tables(load, t) {
        let b = blocks_of(&n, profile)?;
        u.sram_match += b.sram_match;
        u.sram_action += b.sram_action;
        u.tcam += b.tcam;
        if n.routing {
            u.routing_sram_match += b.sram_match;
        }
    }
    u.routing_sram_percent = percent(u.routing_sram_match, u.sram_pool);
    u.vm_sram_percent = percent(u.sram_match - u.routing_sram_match, u.sram_pool);
    u.sram_percent = percent(u.sram_match, u.sram_pool);
    u.sram_with_action_percent = percent(u.sram_match + u.sram_action, u.sram_pool);
    u.tcam_percent = percent(u.tcam, u.tcam_pool);
    Ok(u)
}

/// Places the load into the stages of one half of the chip. Routes come first: what they say decides what is looked up in
/// the VM-NC table.
pub fn place(profile: &Profile, load: &Load, t: &Techniques) -> Result<Chip, NoRoom> {
    let mut chip = empty(profile, t);
    match fill(&mut chip, load, t) {
        Ok(()) => Ok(chip),
        Err((n, from, reason)) => Err(match array_part(&n, profile) {
            Some(part) => explain(&chip, n.name, &Wanted::Part(&part), from, reason),
            None => explain(&chip, n.name, &Wanted::Table(&n.table), from, reason),
        }),
    }
}

/// Whether the load fits, without a word why not.
pub fn fits(profile: &Profile, load: &Load, t: &Techniques) -> bool {
    arrange(profile, t).is_ok() && fill(&mut empty(profile, t), load, t).is_ok()
}

fn empty(profile: &Profile, t: &Techniques) -> Chip {
    let mut chip = if t.fold { Chip::folded(profile) } else { Chip::flat(profile) };
    chip.across = t.across;
    chip
}

/// Places all tables. The first that has no room ends it: the table, the slot that it may stand behind, and why not.
fn fill(chip: &mut Chip, load: &Load, t: &Techniques) -> Result<(), (Named, usize, Unplaced)> {
    let put = |chip: &mut Chip, n: &Named, from: usize| {
        let end = match array_part(n, &chip.profile) {
            Some(part) => chip.put_part(n.name, &part, from).ok_or(Unplaced::Stages { left: part.entries }),
            None => chip.put(n.name, &n.table, from),
        };
        end.map_err(|reason| (n.clone(), from, reason))
    };
    // Which half of the chip a packet belongs to is chosen where it goes over to the second pipe, so what is divided
    // between the halves stands behind that.
    let first = if t.fold && t.split.is_some() { chip.profile.geometry.stages as usize } else { 0 };
    let (mut routes_end, mut vms_end) = (first, first);
    let all = tables(load, t);
    // What a VPC's lengths are must be known before its routes are looked up; tables of different lengths or families do
    // not wait for each other.
    let mut known = first;
    for n in all.iter().filter(|n| n.routing) {
        let end = put(chip, n, known)?;
        if matches!(n.name, "vni-lengths" | "length-plans") {
            known = end;
        }
        routes_end = routes_end.max(end);
    }
    // Keys that are held whole decide over the main table, which may stand beside them: the action engine takes the one
    // that says more. The NC's array needs the index.
    for n in all.iter().filter(|n| !n.routing) {
        let from = if is_array(n) { vms_end } else { routes_end };
        vms_end = vms_end.max(put(chip, n, from)?);
    }
    Ok(())
}

/// What an array takes in its stage; None: it is none.
fn array_part(n: &Named, p: &Profile) -> Option<crate::blocks::Part> {
    let blocks = is_array(n).then(|| blocks_of(n, p).unwrap_or_default())?;
    Some(crate::blocks::Part { sram_action: blocks.sram_action, entries: n.table.entries, ..Default::default() })
}
