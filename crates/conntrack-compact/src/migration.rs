// SPDX-License-Identifier: Apache-2.0
//! Tenant-aware flow migration (§5.2) as a node runs it: who keeps how many connections in the fast path ([`crate::migrate`]), which prefixes
//! go ([`crate::prefixes`]), and in which order that becomes visible.
//!
//! *There.* A prefix that is to go is published in `Migrate_Tbl`; when nobody reads the table of before any more, connections that begin in it
//! stay out of the state table, and a sweep over the records takes out those that are in it. *Back*: connections that begin in it go into the
//! state table again and a sweep enters the others; then the prefix leaves `Migrate_Tbl`. So at any time whoever does not find a
//! prefix in `Migrate_Tbl` finds its connections in the state table, and the records know all of them. A record says whether its connection is out
//! of the state table, so that a successor derives the prefixes from the records.
//!
//! *A full table* does not refuse. Between the moment when it is full and the next publication a connection begins outside of it, and until its prefix is
//! published everything but data of established connections goes to the agent, who finds it in the records (`Shared` sees to that).

use crate::migrate::{allot, Share, Thresholds};
use crate::migrate_tbl::{Entry, MigrateTbl, Place, WIDTH4, WIDTH6};
use crate::prefixes::{Block, Prefixes};
use abi::{Vni, MIGRATE_ENTRIES_MAX};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Units of a tenant and a family at most; more, and the unit becomes shorter.
const UNITS_MAX: usize = 4096;
/// Bits by which it does.
const COARSER: u8 = 4;
/// Entries that prefixes of all tenants together may take before the unit of the one with most becomes shorter.
const AWAY_MAX: usize = MIGRATE_ENTRIES_MAX as usize / 2;
/// Units that full tables let go between two publications: there is room for them besides.
const OVERFLOW_MAX: u32 = MIGRATE_ENTRIES_MAX / 8;
/// How long bytes are counted before counters are cleared: ns.
const PERIOD: u64 = 10_000_000_000;
/// Connections come back at most so often: ns.
const RETURN: u64 = 1_000_000_000;
const SECOND: u64 = 1_000_000_000;

/// When connections migrate, and by which prefixes (`spec.filter.migration`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationOptions {
    /// Connections that the software path judges at most, beside those of the state table.
    pub connections: u32,
    /// θ1: percent of the state table's connections from which on some migrate.
    pub begin: u8,
    /// θ2: percent that then remain at most.
    pub end: u8,
    /// Longest prefix of IPv4 connections: of both addresses and both ports, the lower end's first, 1–96.
    pub unit4: u8,
    /// Longest prefix of IPv6 connections: of the lower end's address, 1–128.
    pub unit6: u8,
}

impl Default for MigrationOptions {
    fn default() -> MigrationOptions {
        MigrationOptions { connections: 1 << 20, begin: 90, end: 80, unit4: 64, unit6: 128 }
    }
}

/// Connections of a family of a tenant.
#[derive(Debug)]
struct Family {
    prefixes: Prefixes,
    /// Units that are in `prefixes` and not yet seen by all readers.
    arriving: BTreeSet<u128>,
    /// Units that are not in `prefixes` any more and still in `Migrate_Tbl`.
    leaving: BTreeSet<Block>,
    fast: u64,
    away: u64,
}

impl Family {
    fn new(width: u8, unit: u8) -> Family {
        Family {
            prefixes: Prefixes::new(width, unit),
            arriving: BTreeSet::new(),
            leaving: BTreeSet::new(),
            fast: 0,
            away: 0,
        }
    }

    /// Nothing is known of it that would be missed.
    fn is_idle(&self) -> bool {
        self.prefixes.is_empty() && self.leaving.is_empty() && self.fast + self.away == 0
    }
}

type Tenant = [Family; 2];

/// What a tenant has where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantMigration {
    /// VNI (of the lower end of a connection).
    pub vni: Vni,
    /// Its weight.
    pub weight: u32,
    /// Connections in the state table.
    pub fast: u64,
    /// Connections that the software path judges.
    pub away: u64,
}

/// What is known of migration as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MigrationStatus {
    /// θ1 and θ2 as connections.
    pub thresholds: (u64, u64),
    /// Connections in the state table, and those that the software path judges.
    pub connections: (u64, u64),
    /// Connections that migrated so far, and that came back.
    pub moved: (u64, u64),
    /// Every tenant that has connections.
    pub tenants: Vec<TenantMigration>,
    /// `Migrate_Tbl`, with the connections and the bytes in this period of what it covers.
    pub entries: Vec<(Entry, u64, u64)>,
}

/// Where a migration stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// Records from this place on are to be looked at.
    Sweep(u64),
}

/// What is to be done next, see [`Migration::plan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing.
    Rest,
    /// Other entries are to be published.
    Publish,
    /// Records from this place on are to be swept.
    Sweep(u64),
}

/// The migration of a node's connections.
pub(crate) struct Migration {
    options: MigrationOptions,
    thresholds: Thresholds,
    weights: HashMap<Vni, u32>,
    tenants: BTreeMap<Vni, Tenant>,
    table: MigrateTbl,
    phase: Phase,
    /// Entries differ from what is published.
    dirty: bool,
    /// Connections that have begun outside of a full table since the last publication.
    overflowed: u32,
    all: u64,
    fast: u64,
    away: u64,
    moved: (u64, u64),
    /// When counters were cleared, entries were last published for counting, connections came back last.
    times: [u64; 3],
}

impl Migration {
    /// Of a state table for so many connections; nothing has migrated.
    pub(crate) fn new(options: MigrationOptions, all: u64, table: MigrateTbl) -> Migration {
        let of = |percent: u8| u64::try_from(u128::from(all) * u128::from(percent) / 100).unwrap_or(u64::MAX);
        let thresholds = Thresholds { begin: of(options.begin).max(1), end: of(options.end.min(options.begin)) };
        Migration {
            options,
            thresholds,
            weights: HashMap::new(),
            tenants: BTreeMap::new(),
            table,
            phase: Phase::Idle,
            dirty: false,
            overflowed: 0,
            all,
            fast: 0,
            away: 0,
            moved: (0, 0),
            times: [0; 3],
        }
    }

    /// Weights by VNI; 1 where nothing is said.
    pub(crate) fn set_weights(&mut self, weights: HashMap<Vni, u32>) {
        self.weights = weights;
    }

    pub(crate) fn table(&self) -> &MigrateTbl {
        &self.table
    }

    fn weight(&self, vni: Vni) -> u32 {
        self.weights.get(&vni).copied().unwrap_or(1).max(1)
    }

    fn family(&mut self, place: &Place) -> &mut Family {
        let MigrationOptions { unit4, unit6, .. } = self.options;
        let tenant =
            self.tenants.entry(place.vni).or_insert_with(|| [Family::new(WIDTH4, unit4), Family::new(WIDTH6, unit6)]);
        &mut tenant[usize::from(place.v6)]
    }

    /// Whether a connection that begins stays out of the state table.
    pub(crate) fn is_away(&self, place: &Place) -> bool {
        let Some(family) = self.tenants.get(&place.vni).map(|t| &t[usize::from(place.v6)]) else { return false };
        family.prefixes.entry(place.addr).is_some() && !family.arriving.contains(&family.prefixes.unit(place.addr).addr)
    }

    /// A connection has begun, or is found after a restart.
    pub(crate) fn begin(&mut self, place: &Place, away: bool) {
        let family = self.family(place);
        family.prefixes.begin(place.addr);
        *if away { &mut family.away } else { &mut family.fast } += 1;
        *if away { &mut self.away } else { &mut self.fast } += 1;
    }

    /// A connection of a predecessor was out of the state table: its unit has migrated.
    pub(crate) fn found_away(&mut self, place: &Place) {
        let family = self.family(place);
        let unit = family.prefixes.unit(place.addr);
        family.prefixes.migrate_unit(unit);
        self.dirty = true;
    }

    /// There is no room in the state table for a connection that begins: its unit goes, and it stays outside. False: too many did since
    /// the last publication.
    pub(crate) fn overflow(&mut self, place: &Place) -> bool {
        if self.overflowed >= OVERFLOW_MAX {
            return false;
        }
        self.overflowed += 1;
        self.dirty = true;
        let family = self.family(place);
        let unit = family.prefixes.unit(place.addr);
        family.leaving.remove(&unit);
        family.prefixes.migrate_unit(unit);
        family.arriving.insert(unit.addr);
        true
    }

    /// Whether there are connections outside of the table in prefixes that are not published.
    pub(crate) fn overflows(&self) -> bool {
        self.overflowed > 0
    }

    /// Whether connections are on their way out of a table that holds more than it shall: the next step should not wait.
    pub(crate) fn presses(&self) -> bool {
        self.sweeps_from().is_some() && self.fast > self.thresholds.end
    }

    /// A connection has ended.
    pub(crate) fn end(&mut self, place: &Place, away: bool) {
        let family = self.family(place);
        let edits = family.prefixes.end(place.addr);
        let left = if away { &mut family.away } else { &mut family.fast };
        *left = left.saturating_sub(1);
        let (idle, changed) = (family.is_idle(), !edits.is_empty());
        let left = if away { &mut self.away } else { &mut self.fast };
        *left = left.saturating_sub(1);
        self.dirty |= changed;
        if idle && self.tenants.get(&place.vni).is_some_and(|t| t.iter().all(Family::is_idle)) {
            self.tenants.remove(&place.vni);
        }
    }

    /// A connection was taken out of the state table, or entered.
    pub(crate) fn moved(&mut self, place: &Place, away: bool) {
        let family = self.family(place);
        if away {
            (family.fast, family.away) = (family.fast.saturating_sub(1), family.away + 1);
            (self.fast, self.away) = (self.fast.saturating_sub(1), self.away + 1);
            self.moved.0 += 1;
        } else {
            (family.fast, family.away) = (family.fast + 1, family.away.saturating_sub(1));
            (self.fast, self.away) = (self.fast + 1, self.away.saturating_sub(1));
            self.moved.1 += 1;
        }
    }

    /// Connections in the state table.
    pub(crate) fn fast(&self) -> u64 {
        self.fast
    }

    /// The same at most.
    pub(crate) fn all(&self) -> u64 {
        self.all
    }

    /// What a sweep does with a connection: true, it is taken out of the state table; false, it is entered.
    pub(crate) fn sweeps(&self, place: &Place, away: bool) -> Option<bool> {
        let family = &self.tenants.get(&place.vni)?[usize::from(place.v6)];
        if !away {
            return family.prefixes.entry(place.addr).is_some().then_some(true);
        }
        family.leaving.contains(&family.prefixes.unit(place.addr)).then_some(false)
    }

    /// There was no room in the state table for a connection that was to come back: its unit stays away.
    pub(crate) fn stays(&mut self, place: &Place) {
        let family = self.family(place);
        let unit = family.prefixes.unit(place.addr);
        if family.leaving.remove(&unit) {
            family.prefixes.migrate_unit(unit);
        }
    }

    /// What is to be done.
    pub(crate) fn plan(&mut self, now: u64) -> Next {
        if let Phase::Sweep(at) = self.phase {
            return Next::Sweep(at);
        }
        let mut some = self.fast >= self.thresholds.begin || self.overflows();
        if some || now.saturating_sub(self.times[1]) >= SECOND {
            self.count(now);
        }
        let coarser = self.coarsen();
        if some {
            self.choose();
        } else if self.fast < self.thresholds.end && now.saturating_sub(self.times[2]) >= RETURN {
            some = self.give_back();
            self.times[2] = now;
        }
        if some || coarser {
            self.phase = Phase::Sweep(0);
        }
        // What is only counted follows what exists once a second.
        let counting = self.counts() && now.saturating_sub(self.times[1]) >= SECOND;
        let stale = !self.counts() && self.table.entries().any(|e| !e.away);
        if !(some || coarser || self.dirty || counting || stale) {
            return Next::Rest;
        }
        self.times[1] = now;
        Next::Publish
    }

    /// Whether the bytes of prefixes are counted: when some may soon have to go, or have gone.
    fn counts(&self) -> bool {
        self.away > 0 || self.fast >= u64::midpoint(self.thresholds.begin, self.thresholds.end)
    }

    /// Takes in what the fast path counted.
    fn count(&mut self, now: u64) {
        let clear = now.saturating_sub(self.times[0]) >= PERIOD;
        if clear {
            self.times[0] = now;
        }
        for tenant in self.tenants.values_mut().filter(|_| clear) {
            tenant.iter_mut().for_each(|f| f.prefixes.clear_bytes());
        }
        for (entry, bytes) in self.table.harvest() {
            if let Some(tenant) = self.tenants.get_mut(&entry.vni).filter(|_| bytes > 0) {
                tenant[usize::from(entry.v6)].prefixes.add_bytes_below(entry.prefix, bytes);
            }
        }
    }

    /// Keeps the number of units and entries within bounds. Whether connections that were in the fast path go by that.
    fn coarsen(&mut self) -> bool {
        let mut some = false;
        let shorter = |family: &mut Family| {
            let len = family.prefixes.unit_len().saturating_sub(COARSER).max(1);
            let grown = family.prefixes.coarsen(len);
            family.arriving.extend(grown.iter().map(|p| p.addr));
            !grown.is_empty()
        };
        for family in self.tenants.values_mut().flatten() {
            while family.prefixes.units() > UNITS_MAX && family.prefixes.unit_len() > 1 {
                some |= shorter(family);
            }
        }
        loop {
            let entries = |f: &&mut Family| f.prefixes.entries().len();
            let all: usize = self.tenants.values().flatten().map(|f| f.prefixes.entries().len()).sum();
            let most = self.tenants.values_mut().flatten().filter(|f| f.prefixes.unit_len() > 1).max_by_key(entries);
            let Some(family) = most.filter(|_| all > AWAY_MAX) else { return some };
            some |= shorter(family);
        }
    }

    /// θ1 is reached: the units that go.
    fn choose(&mut self) {
        let vnis: Vec<Vni> = self.tenants.keys().copied().collect();
        let shares: Vec<Share> = self
            .tenants
            .iter()
            .map(|(vni, t)| Share { flows: t.iter().map(|f| f.fast).sum(), weight: self.weight(*vni) })
            .collect();
        let Some(keep) = allot(&shares, self.thresholds) else { return };
        for ((vni, share), keep) in vnis.iter().zip(&shares).zip(keep) {
            let Some(tenant) = self.tenants.get_mut(vni) else { continue };
            let mut surplus = share.flows.saturating_sub(keep);
            // The family with more of them first.
            let [a, b] = tenant;
            let order = if a.fast >= b.fast { [a, b] } else { [b, a] };
            for family in order {
                let here = surplus.min(family.fast);
                surplus -= here;
                for unit in family.prefixes.smallest(here) {
                    family.prefixes.migrate_unit(unit);
                    family.arriving.insert(unit.addr);
                }
            }
        }
    }

    /// There is room: units come back, of the tenant with the fewest connections ÷ weight first, its busiest first. Whether any do.
    fn give_back(&mut self) -> bool {
        let mut room = self.thresholds.end - self.fast;
        // Not a sweep over all records for a connection or two.
        if self.away == 0 || room < (self.thresholds.begin - self.thresholds.end) / 8 && room < self.away {
            return false;
        }
        let weights: HashMap<Vni, u64> = self.tenants.keys().map(|vni| (*vni, self.weight(*vni).into())).collect();
        let mut some = false;
        // (flows, VNI, family, units with the busiest last)
        let mut waiting: Vec<(u64, Vni, usize, Vec<(Block, u64)>)> = Vec::new();
        for (vni, tenant) in &self.tenants {
            let flows = tenant.iter().map(|f| f.fast).sum();
            for (i, family) in tenant.iter().enumerate() {
                let units: Vec<_> =
                    family.prefixes.by_size(true).into_iter().map(|(unit, count)| (unit, count.flows)).collect();
                waiting.push((flows, *vni, i, units));
            }
        }
        loop {
            waiting.retain(|(.., units)| units.last().is_some_and(|(_, flows)| *flows <= room));
            let least =
                waiting.iter_mut().min_by_key(|(flows, vni, ..)| (u128::from(*flows) << 32) / u128::from(weights[vni]));
            let Some((fast, vni, i, units)) = least else { return some };
            let (Some((unit, flows)), Some(tenant)) = (units.pop(), self.tenants.get_mut(vni)) else { return some };
            let family = &mut tenant[*i];
            family.prefixes.give_back(unit);
            family.leaving.insert(unit);
            *fast += flows;
            room -= flows;
            some = true;
        }
    }

    /// Writes what is to be read from now on.
    pub(crate) fn publish(&mut self) {
        let mut entries = Vec::new();
        let mut put =
            |vni: Vni, v6: usize, prefix: Block, away: bool| entries.push(Entry { vni, v6: v6 == 1, prefix, away });
        for (vni, tenant) in &self.tenants {
            for (v6, family) in tenant.iter().enumerate() {
                family.prefixes.entries().for_each(|p| put(*vni, v6, p, true));
                family.leaving.iter().for_each(|p| put(*vni, v6, *p, true));
            }
        }
        let room = (MIGRATE_ENTRIES_MAX as usize).saturating_sub(entries.len());
        if self.counts() {
            entries.extend(self.counted().take(room));
        }
        entries.sort_unstable();
        if self.table.publish(&entries).is_err() {
            // Counters are what can be done without.
            entries.retain(|e| e.away);
            if self.table.publish(&entries).is_err() {
                // AWAY_MAX bounds them, so this does not happen; if it did, what began outside of the table would still have to be asked about.
                debug_assert!(false, "{} prefixes do not fit", entries.len());
                return;
            }
        }
        self.dirty = false;
        self.overflowed = 0;
    }

    /// Units that are only counted: those of tenants with the most connections ÷ weight first.
    fn counted(&self) -> impl Iterator<Item = Entry> + '_ {
        let mut order: Vec<(u128, Vni)> = self
            .tenants
            .iter()
            .map(|(vni, t)| ((u128::from(t[0].fast + t[1].fast) << 32) / u128::from(self.weight(*vni)), *vni))
            .collect();
        order.sort_unstable_by(|a, b| b.cmp(a));
        order.into_iter().flat_map(move |(_, vni)| {
            self.tenants[&vni].iter().enumerate().flat_map(move |(v6, family)| {
                let units = family.prefixes.by_size(false).into_iter().map(|(unit, _)| unit);
                units.filter(|u| !family.leaving.contains(u)).map(move |prefix| Entry {
                    vni,
                    v6: v6 == 1,
                    prefix,
                    away: false,
                })
            })
        })
    }

    /// Whether there is anything to read.
    pub(crate) fn is_read(&self) -> bool {
        self.table.entries().next().is_some()
    }

    /// Nobody reads what was before the last publication: connections that begin from now on go where it says.
    pub(crate) fn seen(&mut self) {
        self.tenants.values_mut().flatten().for_each(|f| f.arriving.clear());
    }

    /// A sweep has come to here; None: it is at its end, and what came back is to leave `Migrate_Tbl`.
    pub(crate) fn swept(&mut self, to: Option<u64>) {
        self.phase = to.map_or(Phase::Idle, Phase::Sweep);
        if to.is_none() {
            self.tenants.values_mut().flatten().for_each(|f| self.dirty |= !std::mem::take(&mut f.leaving).is_empty());
        }
    }

    /// Where a sweep goes on, if there is one.
    pub(crate) fn sweeps_from(&self) -> Option<u64> {
        match self.phase {
            Phase::Sweep(at) => Some(at),
            Phase::Idle => None,
        }
    }

    /// What is known of it.
    pub(crate) fn status(&self) -> MigrationStatus {
        let tenant = |(vni, t): (&Vni, &Tenant)| TenantMigration {
            vni: *vni,
            weight: self.weight(*vni),
            fast: t.iter().map(|f| f.fast).sum(),
            away: t.iter().map(|f| f.away).sum(),
        };
        let entry = |(vni, v6, f, prefix): (Vni, bool, &Family, Block)| {
            let count = f.prefixes.sum(prefix);
            (Entry { vni, v6, prefix, away: true }, count.flows, count.bytes)
        };
        let families = self.tenants.iter().flat_map(|(vni, t)| t.iter().enumerate().map(|(v6, f)| (*vni, v6 == 1, f)));
        MigrationStatus {
            thresholds: (self.thresholds.begin, self.thresholds.end),
            connections: (self.fast, self.away),
            moved: self.moved,
            tenants: self.tenants.iter().map(tenant).collect(),
            entries: families
                .flat_map(|(vni, v6, f)| f.prefixes.entries().map(move |p| entry((vni, v6, f, p))))
                .collect(),
        }
    }
}
