// SPDX-License-Identifier: Apache-2.0
//! What would make a load fit that does not, the smallest change first. Each is tried by placing everything.

use crate::blocks::{Alpm, Packing, Table};
use crate::load::{thousands, Load};
use crate::pipes::arrange;
use crate::region::{clusters_needed, loads_a_chip};
use crate::technique::{fits, tables, Routes, Split, Techniques, Vms};
use crate::Profile;

/// How changes are measured, and so ordered.
pub const MEASURE: &str =
    "percent of all entries that are given up, stored in another form or moved to another cluster, half or \
                           chip, or of the throughput given up, whichever is more";

/// A change after which the load fits.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Remedy {
    /// What to do.
    pub change: String,
    /// The options that say so.
    pub options: String,
    /// How much it changes, see [`MEASURE`].
    pub percent: f64,
    /// The load that fits.
    pub load: Load,
    /// Techniques with which it fits, clusters among them.
    #[serde(skip)]
    pub techniques: Techniques,
    /// Stages that a pipe must have.
    pub stages: u32,
}

/// All changes found, the smallest first.
pub fn remedies(p: &Profile, load: &Load, t: &Techniques) -> Vec<Remedy> {
    let mut out = Vec::new();
    out.extend(less(p, load, t));
    out.extend(evenly(p, load, t));
    out.extend(switched(p, load, t));
    out.extend(shaped(p, load, t));
    out.extend(divided(p, load, t));
    out.extend(longer(p, load, t));
    out.sort_by(|a, b| a.percent.total_cmp(&b.percent));
    out
}

fn share(n: u64, of: u64) -> f64 {
    100.0 * n as f64 / of.max(1) as f64
}

/// The large counts of a load.
fn counts(load: &mut Load) -> [&mut u64; 4] {
    [&mut load.routes4, &mut load.routes6, &mut load.vms4, &mut load.vms6]
}

const NAMES: [(&str, &str); 4] = [
    ("IPv4 routes", "routes4"),
    ("IPv6 routes", "routes6"),
    ("IPv4 VM addresses", "vms4"),
    ("IPv6 VM addresses", "vms6"),
];

/// Orders in which counts are emptied: those of one table next to each other.
const ORDERS: [[usize; 4]; 8] =
    [[1, 0, 3, 2], [1, 0, 2, 3], [0, 1, 3, 2], [0, 1, 2, 3], [3, 2, 1, 0], [3, 2, 0, 1], [2, 3, 1, 0], [2, 3, 0, 1]];

/// Fewest entries to take away: counts are emptied until all fits, and then given back as far as there is room, what was
/// taken last first.
fn less(p: &Profile, load: &Load, t: &Techniques) -> Option<Remedy> {
    let attempt = |order: &[usize; 4]| {
        let (mut now, mut emptied) = (*load, Vec::new());
        for count in order.iter().copied().filter(|c| *counts(&mut load.clone())[*c] > 0) {
            *counts(&mut now)[count] = 0;
            emptied.push(count);
            if fits(p, &now, t) {
                break;
            }
        }
        for count in emptied.into_iter().rev() {
            let (mut low, mut high) = (0, *counts(&mut load.clone())[count]);
            while low < high {
                let middle = high - (high - low) / 2;
                *counts(&mut now)[count] = middle;
                (low, high) = if fits(p, &now, t) { (middle, high) } else { (low, middle - 1) };
            }
            *counts(&mut now)[count] = low;
        }
        (now.entries() > 0 && fits(p, &now, t)).then_some(now)
    };
    let mut now = ORDERS.iter().filter_map(attempt).max_by_key(Load::entries)?;
    let (mut parts, mut options) = (Vec::new(), Vec::new());
    for ((name, option), (n, was)) in NAMES.iter().zip(counts(&mut now).into_iter().zip(counts(&mut load.clone()))) {
        if n < was {
            parts.push(format!("{} of {} {name}", thousands(*was - *n), thousands(*was)));
            options.push(format!("--{option} {n}"));
        }
    }
    Some(Remedy {
        change: format!("take away {}", parts.join(" and ")),
        options: options.join(" "),
        percent: share(load.entries() - now.entries(), load.entries()),
        load: now,
        techniques: *t,
        stages: p.geometry.stages,
    })
}

/// The same share of everything.
fn evenly(p: &Profile, load: &Load, t: &Techniques) -> Option<Remedy> {
    let hundredths = (loads_a_chip(p, load, t) * 100.0).round() as u64;
    let kept = load.hundredths(hundredths);
    let mut counted = kept;
    let options = NAMES.iter().zip(counts(&mut counted)).map(|((_, option), n)| format!("--{option} {n}"));
    (1..100).contains(&hundredths).then(|| Remedy {
        change: format!("keep {hundredths}% of every table"),
        options: options.collect::<Vec<_>>().join(" "),
        percent: 100.0 - hundredths as f64,
        load: kept,
        techniques: *t,
        stages: p.geometry.stages,
    })
}

/// Techniques to switch on, or off where they cost room.
fn switches(p: &Profile, load: &Load, t: &Techniques) -> Vec<(&'static str, Techniques)> {
    let alpm = Routes::Alpm(crate::sailfish::PAPER_ALPM);
    let digest = Vms::Digest { bits: 20, conflicts: crate::optimise::EXCEPTIONS };
    let label = Vms::Label { conflicts: crate::sailfish::PAPER_CONFLICTS };
    let lengths = crate::optimise::with_spill(Routes::Lengths { spill: crate::optimise::SPILL }, load, t);
    let by_length = matches!(t.routes, Routes::Lengths { .. });
    let open = [
        (!t.fold, "add fold", Techniques { fold: true, bridge_bytes: p.bridge_header_bytes, ..*t }),
        (t.split.is_none(), "add split-vni", Techniques { split: Some(Split::Vni), ..*t }),
        (
            t.split == Some(Split::Address),
            "split-vni instead of split-address",
            Techniques { split: Some(Split::Vni), ..*t },
        ),
        (t.fold && !t.across, "add across", Techniques { across: true, ..*t }),
        (!t.pool_routes && !by_length, "add pool-routes", Techniques { pool_routes: true, ..*t }),
        (t.pool_routes && !by_length, "leave pool-routes out", Techniques { pool_routes: false, ..*t }),
        (t.packing == Packing::Aligned, "add straddle", Techniques { packing: Packing::Straddling, ..*t }),
        (t.routes == Routes::Ternary, "add alpm", Techniques { routes: alpm, ..*t }),
        (!by_length, "lengths for the routes", Techniques { routes: lengths, pool_routes: true, ..*t }),
        (t.vms == Vms::Whole, "add pool-vms", Techniques { vms: label, nc_bits: 32, ..*t }),
        (
            !matches!(t.vms, Vms::Digest { .. }),
            "digest for the VM addresses",
            Techniques { vms: digest, nc_bits: load.nc_index_bits(), ..*t },
        ),
    ];
    open.into_iter().filter(|(open, ..)| *open).map(|(_, name, t)| (name, t)).collect()
}

/// One technique more; if none is enough two, or three, up to all.
fn switched(p: &Profile, load: &Load, t: &Techniques) -> Vec<Remedy> {
    let remedy = |names: &[&str], to: &Techniques| {
        let possible = (to.split.is_none() || to.fold) && arrange(p, to).is_ok() && fits(p, load, to);
        let alpm = match to.routes {
            Routes::Alpm(a) if a != crate::sailfish::PAPER_ALPM => format!(" --alpm {}x{}", a.partitions, a.subtrees),
            _ => String::new(),
        };
        possible.then(|| Remedy {
            change: names.join(", "),
            options: format!("--techniques {}{alpm}", to.words().join(",")),
            percent: touched(load, t, to),
            load: *load,
            techniques: *to,
            stages: p.geometry.stages,
        })
    };
    let mut tried: Vec<(Vec<&str>, Techniques)> = vec![(Vec::new(), *t)];
    for _ in 0..6 {
        let mut next: Vec<(Vec<&str>, Techniques)> = Vec::new();
        for (names, from) in &tried {
            for (name, to) in switches(p, load, from) {
                if !next.iter().any(|(_, t)| *t == to) && to != *t {
                    next.push((names.iter().copied().chain([name]).collect(), to));
                }
            }
        }
        let found: Vec<Remedy> = next.iter().filter_map(|(names, to)| remedy(names, to)).collect();
        if !found.is_empty() {
            return found;
        }
        tried = next;
    }
    Vec::new()
}

/// Another number of partitions and subtrees.
fn shaped(p: &Profile, load: &Load, t: &Techniques) -> Option<Remedy> {
    let Routes::Alpm(now) = t.routes else { return None };
    let shapes = [1024, 2048, 4096, 8192].into_iter().flat_map(|p| (1..=10).map(move |s| (p, s)));
    let with = |(partitions, subtrees)| Techniques { routes: Routes::Alpm(Alpm { partitions, subtrees, ..now }), ..*t };
    let fitting = shapes.filter(|shape| with(*shape) != *t && fits(p, load, &with(*shape)));
    // The one that is nearest to what was asked for.
    let far = |(partitions, subtrees): &(u32, u32)| {
        (partitions.ilog2().abs_diff(now.partitions.ilog2()), subtrees.abs_diff(now.subtrees))
    };
    let shape = fitting.min_by_key(far)?;
    Some(Remedy {
        change: format!("ALPM of {} x {} instead of {} x {}", shape.0, shape.1, now.partitions, now.subtrees),
        options: format!("--alpm {}x{}", shape.0, shape.1),
        percent: share(load.routes(), load.entries()),
        load: *load,
        techniques: with(shape),
        stages: p.geometry.stages,
    })
}

/// More clusters.
fn divided(p: &Profile, load: &Load, t: &Techniques) -> Option<Remedy> {
    let clusters = clusters_needed(p, load, t).filter(|c| *c > t.clusters)?;
    Some(Remedy {
        change: format!("divide the tenants between {clusters} clusters instead of {}", t.clusters),
        options: format!("--clusters {clusters}"),
        percent: share(clusters - t.clusters, clusters),
        load: *load,
        techniques: Techniques { clusters, ..*t },
        stages: p.geometry.stages,
    })
}

/// A chip with more stages.
fn longer(p: &Profile, load: &Load, t: &Techniques) -> Option<Remedy> {
    let with = |stages: u32| {
        let mut longer = p.clone();
        longer.geometry.stages = stages;
        longer
    };
    let (mut low, mut high) = (p.geometry.stages, 64);
    if low >= high || !fits(&with(high), load, t) {
        return None;
    }
    while low + 1 < high {
        let middle = (low + high) / 2;
        (low, high) = if fits(&with(middle), load, t) { (low, middle) } else { (middle, high) };
    }
    Some(Remedy {
        change: format!("a chip with {high} stages a pipe instead of {}", p.geometry.stages),
        options: format!("stages: {high} in the profile"),
        percent: 100.0,
        load: *load,
        techniques: *t,
        stages: high,
    })
}

/// Entries that are stored otherwise after a change of techniques, or throughput given up.
fn touched(load: &Load, from: &Techniques, to: &Techniques) -> f64 {
    const TABLES: [&[&str]; 4] = [
        &["routes4", "routes", "routes-1"],
        &["routes6", "routes", "routes-1"],
        &["vm-nc4", "vm-nc"],
        &["vm-nc6", "vm-nc"],
    ];
    let whole = *load;
    let form = |t: &Techniques, names: &[&str]| {
        let found = tables(&whole, t).into_iter().find(|n| names.contains(&n.name));
        found.map(|n| Table { entries: 0, ..n.table })
    };
    let mut load = *load;
    let all = load.entries();
    let changed = TABLES.iter().zip(counts(&mut load)).filter(|(names, _)| form(from, names) != form(to, names));
    let stored = share(changed.map(|(_, n)| *n).sum(), all);
    let half = if from.fold != to.fold || from.split != to.split { 50.0 } else { 0.0 };
    stored.max(half)
}
