// SPDX-License-Identifier: Apache-2.0
//! What is told of what a node announces.

use super::keeper::State;
use super::Inner;
use crate::service::Node;
use abi::{ANNOUNCE_METRIC, ANNOUNCE_METRIC_LEAVING};
use model::Announcing;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A prefix that a node announces, or would.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnnouncedRoute {
    /// Destinations.
    pub prefix: String,
    /// Whose they are: the node's tunnel address, a PublicPool, an ElasticIp, a Snat.
    pub why: Vec<String>,
    /// `announced`, `leaving` (marked, it goes soon), `withdrawn`, `refused` (by the kernel) or `withheld` (it is not this node's alone).
    pub state: String,
    /// Why it is not announced, or what is doubtful about it.
    pub reason: String,
    /// Since when, UTC.
    pub since: String,
    /// The kernel's table; 254 is the main one.
    pub table: u32,
    /// Protocol of the kernel's route.
    pub protocol: u8,
    /// Its metric; 0: there is no route.
    pub metric: u32,
}

/// What metrics say of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announcements {
    /// Prefixes by their states.
    pub by_state: BTreeMap<String, u64>,
    /// Whether a watchdog runs; none: there is nothing to watch over.
    pub watched: Option<bool>,
}

impl Node {
    /// `GET /v1/announced`.
    pub fn announced(&self) -> Vec<AnnouncedRoute> {
        self.announcer.state.lock().routes()
    }

    pub(crate) fn announcements(&self) -> Announcements {
        let inner = self.announcer.state.lock();
        let mut by_state: BTreeMap<String, u64> = BTreeMap::new();
        if inner.announces() {
            let states = ["announced", "leaving", "withdrawn", "refused", "withheld"];
            by_state.extend(states.map(|state| (state.to_string(), 0)));
        }
        inner.routes().into_iter().for_each(|r| *by_state.entry(r.state).or_default() += 1);
        Announcements { by_state, watched: inner.announces().then_some(inner.watched) }
    }

    /// What an operator must know.
    pub(crate) fn warnings_of_announcements(&self) -> Vec<String> {
        let inner = self.announcer.state.lock();
        if !inner.announces() {
            return Vec::new();
        }
        let unwatched = (!inner.watched).then(|| {
            "no `tunny watchdog` runs: if this daemon dies, nothing withdraws what it announces, whatever becomes of the ports".to_string()
        });
        let failed = (!inner.trouble.is_empty())
            .then(|| format!("what is announced cannot be looked after, and it is tried again: {}", inner.trouble));
        let shadowed = inner.shadowed.iter().map(|(prefix, interface)| shadowed(&prefix.to_string(), interface));
        unwatched.into_iter().chain(failed).chain(shadowed).collect()
    }
}

fn shadowed(prefix: &str, interface: &str) -> String {
    let address = prefix.split('/').next().unwrap_or(prefix);
    format!(
        "{interface} has the address {address}, so FRR prefers its connected route and redistributes none of the kernel's: take it off \
         (`ip address del {prefix} dev {interface}`), and if the host is to answer to it, `ip route add local {address} dev lo`"
    )
}

impl Inner {
    pub(super) fn announces(&self) -> bool {
        self.plan.settings.state != Announcing::Off
    }

    fn routes(&self) -> Vec<AnnouncedRoute> {
        let (table, protocol) = (self.plan.settings.table, self.plan.settings.protocol);
        let one = |prefix: &abi::Prefix, state: &str, reason: String| AnnouncedRoute {
            prefix: prefix.to_string(),
            why: self.plan.prefixes.get(prefix).cloned().unwrap_or_default(),
            state: state.into(),
            reason,
            since: self.since.get(prefix).map_or(String::new(), |ms| crate::audit::utc(ms / 1000)),
            table,
            protocol,
            metric: 0,
        };
        let known = self.keeper.known.iter().map(|(prefix, known)| {
            let (metric, reason) = match (known.state, self.shadowed.get(prefix)) {
                (State::Announced, Some(interface)) => (ANNOUNCE_METRIC, shadowed(&prefix.to_string(), interface)),
                // Whose it is says why it is announced.
                (State::Announced, None)
                    if self.plan.prefixes.get(prefix).is_some_and(|why| why.join(", ") == known.reason) =>
                {
                    (ANNOUNCE_METRIC, String::new())
                }
                (State::Announced, None) => (ANNOUNCE_METRIC, known.reason.clone()),
                (State::Leaving, _) => (ANNOUNCE_METRIC_LEAVING, known.reason.clone()),
                _ => (0, known.reason.clone()),
            };
            AnnouncedRoute { metric, ..one(prefix, known.state.name(), reason) }
        });
        let withheld = self.plan.withheld.iter().filter(|_| self.announces());
        known.chain(withheld.map(|(prefix, why)| one(prefix, "withheld", why.clone()))).collect()
    }
}
