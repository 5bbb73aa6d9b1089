// SPDX-License-Identifier: Apache-2.0
//! Routes that were learned before this process began, until a daemon says them again. No clock and no I/O of its own.

use super::evpn::heard::KeptFabric;
use super::learn::Learned;
use abi::{Prefix, Vni};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long a route that nobody says again stays: as long as routers keep those of a BGP speaker that restarts, if it does not say another
/// time (the restart time of RFC 4724 in FRR and others). A session has come up again by then, and a CE that has gone is not followed longer.
pub const HOLD: Duration = Duration::from_secs(120);
/// What a kernel says that early it may still take back because of the restart: it, and a daemon, hear late that a TAP had no carrier (the
/// kernel looks once a second).
pub const SETTLE: Duration = Duration::from_secs(3);

/// The routes of a circuit, as they are kept: prefix, metric, and who entered it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptRoutes {
    /// The VPC.
    pub vni: u32,
    /// Number of the circuit.
    pub circuit: u32,
    /// What it led to.
    pub routes: Vec<(String, u32, u8)>,
    /// Or, under the number of no circuit, what was learned by EVPN.
    #[serde(default, skip_serializing_if = "KeptFabric::is_empty")]
    pub fabric: KeptFabric,
}

/// What is remembered of all circuits.
#[derive(Debug, Default)]
pub struct Stale {
    routes: BTreeMap<(Vni, u32), BTreeMap<Prefix, Learned>>,
    begun: Option<Instant>,
    trusted: bool,
}

impl Stale {
    /// Remembers what was kept. What is no prefix is none.
    pub fn new(kept: &[KeptRoutes], now: Instant) -> Stale {
        let mut routes: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for of in kept {
            let found = of.routes.iter().filter_map(|(prefix, metric, protocol)| {
                let prefix: Prefix = prefix.parse().ok()?;
                // The line is that of the circuit now.
                Some((prefix.trunc(), Learned { line: 0, metric: *metric, protocol: *protocol, stale: true }))
            });
            routes.entry((Vni(of.vni), of.circuit)).or_default().extend(found);
        }
        Stale { routes, begun: Some(now), trusted: false }
    }

    /// Those of a circuit.
    pub fn of(&self, vni: Vni, circuit: u32) -> Option<&BTreeMap<Prefix, Learned>> {
        self.routes.get(&(vni, circuit))
    }

    /// Circuits that are not configured any more lose theirs.
    pub fn only(&mut self, configured: &BTreeSet<(Vni, u32)>) {
        self.routes.retain(|circuit, _| configured.contains(circuit));
    }

    /// A daemon says these prefixes, by whichever of its circuits: from now on it has the say.
    pub fn said(&mut self, circuits: impl Iterator<Item = (Vni, u32)>, prefixes: &BTreeSet<Prefix>) {
        if !self.trusted {
            return;
        }
        for circuit in circuits {
            if let Some(routes) = self.routes.get_mut(&circuit) {
                routes.retain(|prefix, _| !prefixes.contains(prefix));
            }
        }
    }

    /// Time goes by. Whether that changes what is to be in force; and how many routes were not said again until now, and go.
    pub fn pass(&mut self, now: Instant) -> (bool, usize) {
        let Some(begun) = self.begun else { return (false, 0) };
        let age = now.saturating_duration_since(begun);
        if age >= HOLD {
            let left = self.routes.values().map(BTreeMap::len).sum();
            *self = Stale { trusted: true, ..Stale::default() };
            return (true, left);
        }
        let trusts = !self.trusted && age >= SETTLE;
        self.trusted |= trusts;
        (trusts, 0)
    }
}
