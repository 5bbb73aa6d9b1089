// SPDX-License-Identifier: Apache-2.0
//! Does a single table fit into the empty stages of a pipe? If not: what binds, at which stage, and what would fit.
//!
//! Nothing here is a formula: what binds is what, if a stage had plenty of it, would leave fewest entries over; a change is
//! proposed only if the table with it was placed and fits.

use super::{
    alpm, state, Alpm, Attached, Bucket, Endless, Geometry, Grid, Kind, Part, Resource, Stages, State, Table, Unplaced,
    STAGES_MAX,
};

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A table with state beside its entries.
    Table {
        /// The table.
        table: Table,
        /// State.
        attached: Attached,
        /// A ternary table that holds prefixes only.
        prefixes: bool,
    },
    /// State by itself, addressed by an index.
    State {
        /// Kind.
        state: State,
        /// Cells.
        cells: u64,
    },
}

/// One number or word of what was asked for, and what it would have to be.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Change {
    /// As the option of `tunny-lab plan table` is called; `stages` is the chip's.
    pub field: &'static str,
    /// What was asked for.
    pub from: String,
    /// What would fit.
    pub to: String,
    /// Share of the number that changes; 1 if it is a word.
    pub share: f64,
    /// What the change costs besides.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub cost: &'static str,
}

/// Why it does not fit.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Misfit {
    /// In words.
    pub reason: String,
    /// What binds.
    pub binds: Resource,
    /// What ends in the same stage, so that plenty of one alone would not help.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub binds_too: Vec<Resource>,
    /// The stage where it ends, from 0.
    pub stage: u32,
    /// Taken of it in that stage.
    pub taken: u32,
    /// The stage has.
    pub of: u32,
    /// Why it ends although something is left; empty if nothing is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub left_over: String,
    /// Stages that it would need; none if no number of them helps.
    pub needs_stages: Option<u32>,
    /// Stages of a pipe.
    pub has_stages: u32,
    /// Changes that were tried and fit, the smallest first.
    pub changes: Vec<Change>,
}

/// The empty stages of a pipe, and what was put into each.
struct Pipe<'a> {
    g: &'a Geometry,
    parts: Vec<(usize, Part)>,
}

impl Pipe<'_> {
    fn empty(g: &Geometry) -> Pipe<'_> {
        Pipe { g, parts: Vec::new() }
    }
}

impl Stages for Pipe<'_> {
    fn free(&mut self, stage: usize) -> Option<Grid> {
        (stage < self.g.stages as usize).then(|| Grid::empty(self.g))
    }

    fn take(&mut self, stage: usize, part: &Part) {
        self.parts.push((stage, part.clone()));
    }
}

impl Request {
    /// Entries or cells.
    pub fn entries(&self) -> u64 {
        match self {
            Request::Table { table, .. } => table.entries,
            Request::State { cells, .. } => *cells,
        }
    }

    fn with_entries(&self, n: u64) -> Request {
        match self.clone() {
            Request::Table { table, attached, prefixes } => {
                Request::Table { table: Table { entries: n, ..table }, attached, prefixes }
            }
            Request::State { state, .. } => Request::State { state, cells: n },
        }
    }

    fn place(&self, stages: &mut dyn Stages, g: &Geometry) -> Result<Vec<(usize, Part)>, Unplaced> {
        match self {
            Request::Table { table, attached, .. } => table.place_with(*attached, stages, g),
            Request::State { state, cells } => {
                let part = state::part(*state, *cells, g)?;
                match lack(&part, g) {
                    Some(lack) => Err(lack),
                    None => Ok(vec![(0, part)]),
                }
            }
        }
    }

    /// The table in as many stages as it needs, whether the chip has them or not.
    pub fn alone(&self, g: &Geometry) -> Result<Vec<(usize, Part)>, Unplaced> {
        self.place(&mut Endless(g), g)
    }

    fn fits(&self, g: &Geometry) -> bool {
        let sound = match self {
            Request::Table { table, prefixes, .. } => table.check(*prefixes, g).is_ok(),
            Request::State { state, .. } => state.check().is_ok(),
        };
        sound && self.place(&mut Pipe::empty(g), g).is_ok()
    }

    /// Stages that it needs if nothing else were in the chip.
    fn stages(&self, g: &Geometry) -> Option<u32> {
        self.alone(g).ok().and_then(|p| p.last().map(|(stage, _)| *stage as u32 + 1))
    }
}

/// What an empty stage has too few of for a part.
fn lack(p: &Part, g: &Geometry) -> Option<Unplaced> {
    [
        (Resource::Sram, p.sram(), g.sram_per_stage()),
        (Resource::MapRam, p.map_ram, g.map_ram_per_stage),
        (Resource::StatisticsAlus, p.stats_alus, g.stats_alus),
        (Resource::StatefulAlus, p.alus, g.meter_alus),
    ]
    .into_iter()
    .find(|(_, need, have)| need > have)
    .map(|(what, need, have)| Unplaced::Lacks { what, need, have })
}

/// Places it into the empty stages of one pipe, or says what is in the way.
pub fn fit(request: &Request, g: &Geometry) -> Result<Vec<(usize, Part)>, Misfit> {
    let mut pipe = Pipe::empty(g);
    request.place(&mut pipe, g).map_err(|why| misfit(request, &why, &pipe.parts, g))
}

/// What a chip has, with plenty of one thing.
fn plenty(g: &Geometry, of: Resource) -> Geometry {
    const MUCH: u32 = 16;
    let mut g = g.clone();
    match of {
        Resource::Sram => g.sram_columns *= MUCH,
        Resource::Tcam => g.tcam_per_stage = (g.tcam_per_stage * MUCH).max(1024),
        Resource::MapRam => g.map_ram_per_stage *= MUCH,
        Resource::AluReach => g.register_blocks_max *= MUCH,
        Resource::LogicalTables => g.tables_per_stage *= MUCH,
        _ => {}
    }
    g
}

fn misfit(request: &Request, why: &Unplaced, placed: &[(usize, Part)], g: &Geometry) -> Misfit {
    let stage = match why {
        Unplaced::Stages { .. } => g.stages - 1,
        _ => placed.last().map_or(0, |(stage, _)| *stage as u32 + 1).min(g.stages - 1),
    };
    let here = placed.iter().find(|(s, _)| *s as u32 == stage).map(|(_, p)| p);
    let (mut binds, (taken, of)) = match why {
        Unplaced::Lacks { what, need, have } => (vec![*what], (*need, *have)),
        Unplaced::Register { blocks, most } => (vec![Resource::AluReach], (*blocks, *most)),
        _ => {
            let binds = binding(request, here, g);
            let of = use_of(binds[0], here, g);
            (binds, of)
        }
    };
    let binds_too = binds.split_off(1);
    let binds = binds[0];
    let left_over = match here {
        Some(p) if binds == Resource::Sram && p.width > 1 && taken < of => {
            format!("entries {} words wide need as many adjacent rows of blocks, which are not left", p.width)
        }
        _ if taken < of => "the next step of the table is larger than what is left".into(),
        _ => String::new(),
    };
    let needs_stages = request.stages(g).filter(|n| *n > g.stages);
    let reason = match why {
        Unplaced::Stages { left } => format!(
            "it needs {} stages and a pipe has {}: {left} entries are left when the last stage is full",
            needs_stages.map_or(format!("more than {STAGES_MAX}"), |n| n.to_string()),
            g.stages
        ),
        other => other.to_string(),
    };
    let changes = changes(request, needs_stages, g);
    Misfit { reason, binds, binds_too, stage, taken, of, left_over, needs_stages, has_stages: g.stages, changes }
}

/// Taken of a resource by a part, and what a stage has.
fn use_of(r: Resource, part: Option<&Part>, g: &Geometry) -> (u32, u32) {
    let of = |f: &dyn Fn(&Part) -> u32| part.map_or(0, f);
    match r {
        Resource::Tcam => (of(&|p| p.tcam), g.tcam_per_stage),
        Resource::MapRam => (of(&|p| p.map_ram), g.map_ram_per_stage),
        Resource::LogicalTables => (of(&|p| p.logical_tables.max(1)), g.tables_per_stage),
        Resource::AluReach => (g.register_blocks_max, g.register_blocks_max),
        Resource::Stages => (g.stages, g.stages),
        _ => (of(&Part::sram), g.sram_per_stage()),
    }
}

/// What ends first: that of which plenty would leave fewest entries over. Where two end together plenty of neither helps: then
/// those of which nothing is left, or the one of which most is taken.
fn binding(request: &Request, here: Option<&Part>, g: &Geometry) -> Vec<Resource> {
    let candidates = [Resource::Tcam, Resource::Sram, Resource::MapRam, Resource::AluReach, Resource::LogicalTables];
    let left = |g: &Geometry| match request.place(&mut Pipe::empty(g), g) {
        Ok(_) => 0,
        Err(Unplaced::Stages { left }) => left,
        Err(_) => u64::MAX,
    };
    let now = left(g);
    let best = candidates.into_iter().map(|r| (left(&plenty(g, r)), r)).min_by_key(|(left, _)| *left);
    if let Some((_, r)) = best.filter(|(left, _)| *left < now) {
        return vec![r];
    }
    let share = |r: &Resource| match use_of(*r, here, g) {
        (_, 0) => 0.0,
        (taken, of) => f64::from(taken) / f64::from(of),
    };
    let mut stood: Vec<Resource> = candidates.into_iter().filter(|r| *r != Resource::AluReach).collect();
    stood.sort_by(|a, b| share(b).total_cmp(&share(a)));
    let ended = stood.iter().filter(|r| share(r) >= 1.0).count();
    stood.truncate(ended.max(1));
    stood
}

/// Changes of one number or word each with which it fits, the smallest first; those of the chip last.
fn changes(request: &Request, needs_stages: Option<u32>, g: &Geometry) -> Vec<Change> {
    // Of changes alike in size those first that keep every entry.
    let mut out = Vec::new();
    match request {
        Request::Table { table, attached, prefixes } => {
            let with = |table: Table| Request::Table { table, attached: *attached, prefixes: *prefixes };
            out.extend(narrower_action(table, &with, g));
            out.extend(digest(table, &with, g));
            out.extend(other_alpm(table, *prefixes, &with, g));
            out.extend(exact(table, *prefixes, &with, g));
            out.extend(less_state(request, *attached, g));
        }
        Request::State { state, cells } => {
            out.extend(pieces(*state, *cells, g));
            let cheaper = narrower(*state).into_iter().find(|s| Request::State { state: *s, cells: *cells }.fits(g));
            out.extend(cheaper.and_then(|s| state_change(*state, s)));
        }
    }
    out.extend(fewer_entries(request, g));
    out.sort_by(|a, b| a.share.total_cmp(&b.share));
    if let Some(n) = needs_stages {
        let share = f64::from(n - g.stages) / f64::from(g.stages);
        out.push(change("stages", g.stages, n, share, "another chip"));
    }
    out
}

fn change(field: &'static str, from: impl ToString, to: impl ToString, share: f64, cost: &'static str) -> Change {
    Change { field, from: from.to_string(), to: to.to_string(), share, cost }
}

/// Entries are tried in steps of a block's depth upwards from what a search by halves finds: the compiler's search for
/// packings is not monotone, so a few more may fit where fewer did not.
const STEPS: u64 = 16;

/// The most entries that fit.
fn fewer_entries(request: &Request, g: &Geometry) -> Option<Change> {
    let n = request.entries();
    // No more than one a bit, that is.
    let bits = u64::from(g.sram_per_stage() * g.sram_depth) * u64::from(g.sram_width);
    let room = u64::from(g.stages) * (bits + u64::from(g.tcam_per_stage * g.tcam_depth));
    let (mut low, mut high) = (0, n.min(room));
    while low < high {
        let middle = high - (high - low) / 2;
        (low, high) = if request.with_entries(middle).fits(g) { (middle, high) } else { (low, middle - 1) };
    }
    let more = (1..=STEPS).rev().map(|i| low + i * u64::from(g.sram_depth)).filter(|more| *more < n);
    let most = more.into_iter().find(|more| request.with_entries(*more).fits(g)).unwrap_or(low);
    (most > 0).then(|| change("entries", n, most, (n - most) as f64 / n as f64, ""))
}

/// The largest number of bits with which it fits: byte by byte, then bit by bit.
fn widest(bits: std::ops::Range<u32>, fits: impl Fn(u32) -> bool) -> Option<u32> {
    let coarse = bits.clone().rev().step_by(8).chain(Some(bits.start)).find(|n| bits.contains(n) && fits(*n))?;
    (coarse..bits.end.min(coarse + 8)).rev().find(|n| *n == coarse || fits(*n))
}

/// The widest action data that fits.
fn narrower_action(t: &Table, with: &dyn Fn(Table) -> Request, g: &Geometry) -> Option<Change> {
    let fits = |bits: u32| with(Table { action_bits: bits, ..t.clone() }).fits(g);
    let bits = widest(0..t.action_bits, fits)?;
    let share = f64::from(t.action_bits - bits) / f64::from(t.action_bits);
    Some(change("action-bits", t.action_bits, bits, share, ""))
}

/// The widest digest that fits; no narrower than what a plan may choose.
fn digest(t: &Table, with: &dyn Fn(Table) -> Request, g: &Geometry) -> Option<Change> {
    const LEAST: u32 = 12;
    let Kind::Exact { digest } = t.kind else { return None };
    let now = digest.unwrap_or(t.key.bits());
    // No packing stores more bits than there are.
    let room = u64::from(g.stages) * u64::from(g.sram_per_stage() * g.sram_depth) * u64::from(g.sram_width);
    let most = (now - 1).min(g.hash_bits).min((room / t.entries.max(1)).min(512) as u32);
    let fits = |bits: u32| with(Table { kind: Kind::Exact { digest: Some(bits) }, ..t.clone() }).fits(g);
    let bits = widest(LEAST..most + 1, fits)?;
    let from = digest.map_or("none".into(), |d| d.to_string());
    let share = f64::from(now - bits) / f64::from(now);
    Some(change(
        "digest-bits",
        from,
        bits,
        share,
        "keys that were never installed may be taken for others; keys that collide are held whole elsewhere",
    ))
}

/// Other pivots and buckets; or pivots and buckets at all.
fn other_alpm(t: &Table, prefixes: bool, with: &dyn Fn(Table) -> Request, g: &Geometry) -> Vec<Change> {
    let fits = |a: &Alpm| with(Table { kind: Kind::Alpm(*a), ..t.clone() }).fits(g);
    let all = alpm::PARTITIONS.iter().flat_map(|p| (1..=alpm::SUBTREES_MAX).map(move |s| (*p, s)));
    let Kind::Alpm(now) = t.kind else {
        let a = all.map(|(partitions, subtrees)| Alpm { partitions, subtrees, bucket: Bucket::Whole });
        let first = a.filter(|_| prefixes && t.kind == Kind::Ternary).find(fits);
        let to = |a: Alpm| format!("alpm --partitions {} --subtrees {}", a.partitions, a.subtrees);
        return first.map(|a| change("kind", "lpm", to(a), 1.0, "buckets must be kept balanced")).into_iter().collect();
    };
    let apart = |a: u32, b: u32| (f64::from(a) - f64::from(b)).abs() / f64::from(b);
    let mut shapes: Vec<(f64, Alpm)> = all
        .map(|(partitions, subtrees)| Alpm { partitions, subtrees, ..now })
        .filter(|a| *a != now)
        .map(|a| (apart(a.partitions, now.partitions) + apart(a.subtrees, now.subtrees), a))
        .collect();
    shapes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut out = Vec::new();
    if let Some((share, a)) = shapes.into_iter().find(|(_, a)| fits(a)) {
        let text = |a: Alpm| format!("{} of {} subtrees", a.partitions, a.subtrees);
        out.push(change("partitions", text(now), text(a), share, ""));
    }
    for (bucket, name, cost) in [
        (Bucket::Exclude { lpm_bits: 0 }, "exvni", "every VNI needs pivots of its own"),
        (Bucket::Subset32, "subset32", "deep prefixes need pivots of their own"),
    ] {
        let a = Alpm { bucket, ..now };
        if now.bucket == Bucket::Whole && fits(&a) {
            out.push(change("option", "none", name, 1.0, cost));
        }
    }
    out
}

/// The cells in several pieces of equal size, each with an ALU of its own.
fn pieces(state: State, cells: u64, g: &Geometry) -> Option<Change> {
    let most = state.most(g);
    let n = cells.checked_div(most)? + u64::from(!cells.is_multiple_of(most));
    let part = state::part(state, cells.div_ceil(n.max(1)), g).ok()?;
    let mut stages = vec![Grid::empty(g); g.stages as usize];
    let placed = (0..n).all(|_| stages.iter_mut().any(|s| s.takes(&part, g) && s.put(&part, g).is_some()));
    let to = format!("{n} of {} each", cells.div_ceil(n.max(1)));
    (n > 1 && placed).then(|| change("entries", cells, to, 1.0 - 1.0 / n as f64, "the index says which"))
}

/// The same state with fewer bits, the widest first.
fn narrower(s: State) -> Vec<State> {
    match s {
        State::Register { bits } => {
            state::CELL_BITS.iter().rev().filter(|b| **b < bits).map(|b| State::Register { bits: *b }).collect()
        }
        State::Counter { bits } => (bits > 32).then_some(State::Counter { bits: 32 }).into_iter().collect(),
        State::CounterPair { bits } => {
            let least = state::PAIR_BITS;
            (bits > least).then_some(State::CounterPair { bits: least }).into_iter().collect()
        }
        State::Meter => Vec::new(),
    }
}

fn state_change(from: State, to: State) -> Option<Change> {
    let (field, a, b) = match (from, to) {
        (State::Register { bits: a }, State::Register { bits: b }) => ("register-bits", a, b),
        (State::Counter { bits: a }, State::Counter { bits: b }) => ("counter-bits", a, b),
        (State::CounterPair { bits: a }, State::CounterPair { bits: b }) => ("counter-bits", a, b),
        _ => return None,
    };
    Some(change(field, a, b, f64::from(a - b) / f64::from(a), "overflows sooner"))
}

/// Whole keys, where the chip takes no masks at all.
fn exact(t: &Table, prefixes: bool, with: &dyn Fn(Table) -> Request, g: &Geometry) -> Option<Change> {
    let from = match (&t.kind, prefixes) {
        (Kind::Exact { .. }, _) => return None,
        (Kind::Alpm(_), _) => "alpm",
        (Kind::Ternary, true) => "lpm",
        (Kind::Ternary, false) => "ternary",
    };
    let cost = match prefixes {
        true => "finds whole keys: a table for each length of prefix",
        false => "finds whole keys only",
    };
    let fits = g.tcam_per_stage == 0 && with(Table { kind: Kind::Exact { digest: None }, ..t.clone() }).fits(g);
    fits.then(|| change("kind", from, "exact", 1.0, cost))
}

/// Narrower state beside the entries, or none of one kind.
fn less_state(request: &Request, attached: Attached, g: &Geometry) -> Vec<Change> {
    let Request::Table { table, prefixes, .. } = request else { return Vec::new() };
    let fits = |a: Attached| Request::Table { table: table.clone(), attached: a, prefixes: *prefixes }.fits(g);
    let mut out = Vec::new();
    for (i, slot) in attached.0.iter().enumerate() {
        let Some(now) = *slot else { continue };
        let with = |state: Option<State>| {
            let mut a = attached;
            a.0[i] = state;
            a
        };
        let narrow = narrower(now).into_iter().find(|s| fits(with(Some(*s))));
        out.extend(narrow.and_then(|s| state_change(now, s)));
        if fits(with(None)) {
            out.push(change(now.option(), "beside every entry", "left out", 1.0, ""));
        }
    }
    out
}
