// SPDX-License-Identifier: Apache-2.0
//! Which tenants of a cluster the fast path of its nodes serves, and which their software path (`docs/design/fast-and-slow.md`).
//!
//! A cluster may have a budget: so many entries, VMs and routes, are served fast. The tenants with the most packets for each of their entries get
//! it, one after the other, until no more fit. Who is fast counts for more than who is not, comes in above one rate and goes below a smaller one, and
//! stays for a while: so rates that swing move nobody to and fro.
//!
//! *Property.* The entries of tenants that were not pinned never exceed what pinned ones leave of the budget, and while rates stay the same, the
//! second decision is the first: whoever is fast by it comes earlier in the next one, whoever is not comes no earlier, so nobody finds more room.

use model::{Name, ServedBy};
use std::collections::{BTreeMap, BTreeSet};

/// A newcomer must have so many times the packets an entry of one that is fast, to take its place.
const STAY: f64 = 1.5;
/// Who is fast goes below this part of the rate above which tenants come in.
const LEAVE: f64 = 0.25;
/// Who has changed its path keeps the new one for so long.
pub const HOLD_MS: u64 = 30_000;
/// Half of what a rate was counts after so long.
const HALF_MS: f64 = 15_000.0;
/// A rate below this is none.
const NONE: f64 = 0.01;

/// What of a cluster may be served fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// VMs and routes.
    pub entries: u64,
    /// Packets a second from which a tenant may come in.
    pub from: u64,
}

/// What is known of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Its VMs and routes.
    pub entries: u64,
    /// Packets a second, as nodes measured them last.
    pub packets: u64,
    /// Where its document says that it is served.
    pub pin: ServedBy,
}

/// A tenant that changes its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    /// The tenant.
    pub tenant: Name,
    /// It is served fast from now on.
    pub fast: bool,
    /// Why, in words.
    pub why: String,
}

/// What is decided for a cluster.
#[derive(Clone, Debug, Default)]
pub struct ClusterPaths {
    /// Tenants that are served fast, and since when.
    fast: BTreeMap<Name, u64>,
    /// Tenants that were, and until when.
    left: BTreeMap<Name, u64>,
    rates: BTreeMap<Name, f64>,
    /// When rates were taken in last.
    at: Option<u64>,
    budget: Option<Budget>,
    /// Entries of those that are served fast.
    used: u64,
}

fn score(rate: f64, entries: u64) -> f64 {
    rate / entries.max(1) as f64
}

impl ClusterPaths {
    /// As a controller before has left it. It does not know rates yet, so at `now` all begin to stay for a while.
    pub fn of(fast: impl IntoIterator<Item = Name>, now: u64) -> ClusterPaths {
        ClusterPaths { fast: fast.into_iter().map(|tenant| (tenant, now)).collect(), ..ClusterPaths::default() }
    }

    /// Tenants that are served fast, and since when; for the store.
    pub fn fast(&self) -> &BTreeMap<Name, u64> {
        &self.fast
    }

    /// Entries of those that are served fast.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// The budget by which was decided last.
    pub fn budget(&self) -> Option<Budget> {
        self.budget
    }

    /// A tenant's packets a second, smoothed.
    pub fn rate(&self, tenant: &str) -> f64 {
        self.rates.get(tenant).copied().unwrap_or(0.0)
    }

    /// Whether a tenant is served in software since it sends too little.
    pub fn is_cold(&self, tenant: &str) -> bool {
        self.budget.is_some_and(|budget| self.rate(tenant) < budget.from as f64) && !self.fast.contains_key(tenant)
    }

    /// Tenants whose rates or paths are kept: those that a decision must know.
    pub fn known(&self) -> BTreeSet<Name> {
        self.rates.keys().chain(self.fast.keys()).cloned().collect()
    }

    /// Decides at `now`, of the tenants that have traffic, are pinned or known. Without a budget nobody is decided about.
    pub fn decide(&mut self, now: u64, budget: Option<Budget>, demands: &BTreeMap<Name, Demand>) -> Vec<Switch> {
        self.measure(now, demands);
        (self.budget, self.used) = (budget, 0);
        let wanted = match budget {
            Some(budget) => self.chosen(now, budget, demands),
            None => BTreeSet::new(),
        };
        let mut switches = Vec::new();
        for tenant in self.fast.keys().filter(|t| !wanted.contains(*t)) {
            let why = self.why(tenant, demands.get(tenant));
            switches.push(Switch { tenant: tenant.clone(), fast: false, why });
        }
        for tenant in wanted.iter().filter(|t| !self.fast.contains_key(*t)) {
            let why = self.measured(tenant, demands.get(tenant));
            switches.push(Switch { tenant: tenant.clone(), fast: true, why });
        }
        for switch in &switches {
            if switch.fast {
                self.left.remove(&switch.tenant);
                self.fast.insert(switch.tenant.clone(), now);
            } else {
                self.fast.remove(&switch.tenant);
                self.left.insert(switch.tenant.clone(), now);
            }
        }
        self.left.retain(|_, at| now.saturating_sub(*at) < HOLD_MS);
        switches
    }

    /// Takes rates in.
    fn measure(&mut self, now: u64, demands: &BTreeMap<Name, Demand>) {
        let passed = self.at.map_or(0.0, |at| now.saturating_sub(at) as f64);
        let part = 1.0 - (-passed / HALF_MS * std::f64::consts::LN_2).exp();
        let first = self.at.replace(now).is_none();
        let measured = |tenant: &Name| demands.get(tenant).map_or(0.0, |d| d.packets as f64);
        for (tenant, rate) in &mut self.rates {
            *rate += (measured(tenant) - *rate) * part;
        }
        for (tenant, demand) in demands.iter().filter(|(_, d)| d.packets > 0) {
            // One that is new counts by what it begins with; a burst of one that was silent comes in as any change does.
            let begins = if first { demand.packets as f64 } else { demand.packets as f64 * part };
            self.rates.entry(tenant.clone()).or_insert(begins);
        }
        self.rates.retain(|_, rate| *rate >= NONE);
    }

    /// Who is served fast by this budget.
    fn chosen(&mut self, now: u64, budget: Budget, demands: &BTreeMap<Name, Demand>) -> BTreeSet<Name> {
        let pinned = demands.iter().filter(|(_, d)| d.pin == ServedBy::Fast);
        let mut chosen: BTreeSet<Name> = pinned.clone().map(|(tenant, _)| tenant.clone()).collect();
        self.used = pinned.map(|(_, d)| d.entries).sum();
        let mut order: Vec<(f64, &Name, u64)> = Vec::new();
        for (tenant, demand) in demands.iter().filter(|(_, d)| d.pin == ServedBy::Auto) {
            let rate = self.rate(tenant);
            let key = match self.fast.get(tenant) {
                Some(since) if now.saturating_sub(*since) < HOLD_MS => f64::INFINITY,
                Some(_) if rate >= budget.from as f64 * LEAVE => score(rate, demand.entries) * STAY,
                None if rate >= budget.from as f64 && !self.left.contains_key(tenant) => score(rate, demand.entries),
                _ => continue,
            };
            order.push((key, tenant, demand.entries));
        }
        order.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
        for (_, tenant, entries) in order {
            if self.used + entries <= budget.entries {
                self.used += entries;
                chosen.insert(tenant.clone());
            }
        }
        chosen
    }

    fn measured(&self, tenant: &str, demand: Option<&Demand>) -> String {
        let entries = demand.map_or(0, |d| d.entries);
        format!("{:.0} packets/s for {entries} entries", self.rate(tenant))
    }

    /// Whether a tenant is served fast, and why.
    pub fn view(&self, tenant: &str, demand: &Demand) -> (bool, String) {
        match (demand.pin, self.budget) {
            (ServedBy::Fast, _) => (true, "pinned".into()),
            (ServedBy::Software, _) => (false, "pinned".into()),
            (ServedBy::Auto, None) => (true, "no budget".into()),
            (ServedBy::Auto, Some(_)) => (self.fast.contains_key(tenant), self.why(tenant, Some(demand))),
        }
    }

    fn why(&self, tenant: &str, demand: Option<&Demand>) -> String {
        let Some(demand) = demand else { return "it is gone".into() };
        let Some(budget) = self.budget else { return "the cluster has no budget any more".into() };
        let measured = self.measured(tenant, Some(demand));
        let rate = self.rate(tenant);
        let below = |rate: f64, of: f64| rate < of;
        match () {
            () if demand.pin != ServedBy::Auto => "pinned".into(),
            () if self.fast.contains_key(tenant) && !below(rate, budget.from as f64 * LEAVE) => measured,
            () if below(rate, budget.from as f64) => format!("{measured}: below {} packets/s", budget.from),
            () => format!("{measured}: {} of {} entries are others'", self.used, budget.entries),
        }
    }
}

#[cfg(test)]
#[path = "paths_tests.rs"]
mod tests;
