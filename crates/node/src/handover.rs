// SPDX-License-Identifier: Apache-2.0
//! VPCs of which another cluster may have sessions (`docs/design/handover.md`): what workers are told of them, and what the controller, which
//! waits for the old cluster's sessions to end, is told of them.

use crate::service::Node;
use compile::ConntrackPlan;
use conntrack::nat;
use gateway::{Handover, Handovers, Role};
use model::{AddressRange, HandoverRole, PublicPool, Share};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How a handover goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HandoverView {
    /// `new` or `old`: whether new connections begin here.
    pub role: String,
    /// Sessions of the VPC that are here.
    pub sessions: u64,
    /// Packets that were handed over to the other cluster.
    pub handed: u64,
    /// Packets that it handed over to here, whose session was not known here either.
    pub returned: u64,
}

/// What workers are told.
pub(crate) fn of(plan: &ConntrackPlan) -> Handovers {
    let role = |role| match role {
        HandoverRole::New => Role::New,
        HandoverRole::Old => Role::Old,
    };
    plan.handovers.iter().map(|(vni, (of, to))| (*vni, Handover::new(role(*of), to))).collect()
}

impl Node {
    /// By VPC.
    pub fn handovers(&self) -> BTreeMap<String, HandoverView> {
        let connections = self.conntrack.connections();
        let handovers = connections.handovers().clone();
        if handovers.is_empty() {
            return BTreeMap::new();
        }
        // What a state table knows beside them.
        let others: BTreeMap<abi::Vni, u64> = connections.states().as_ref().map_or_else(BTreeMap::new, |table| {
            table.tenants().into_iter().map(|(vni, n)| (vni, n.connections)).collect()
        });
        let core = self.core();
        let view = |(vni, handover): (abi::Vni, &Handover)| {
            let (handed, returned) = handover.counts();
            let role = match handover.role() {
                Role::New => "new",
                Role::Old => "old",
            };
            let sessions: u64 = connections.tracker().tenant(vni).map_or(0, |t| t.sessions.into());
            let sessions = sessions + others.get(&vni).copied().unwrap_or(0);
            let vpc = core.model.vpc_of_vni(vni)?.spec().name.to_string();
            Some((vpc, HandoverView { role: role.into(), sessions, handed, returned }))
        };
        handovers.iter().filter_map(view).collect()
    }

    /// Parts of public pools of which nothing is in use here, by pool: of those that this node leaves, and of those that it has.
    pub(crate) fn unused_shares(&self) -> [BTreeMap<String, Vec<String>>; 2] {
        let connections = self.conntrack.connections();
        let translator = connections.nat().translator();
        let core = self.core();
        let of = |pool: &PublicPool, leaving: bool| {
            let parts = compile::shares(pool, core.model.own_name()).filter(|(share, _)| share.leaving == leaving);
            let unused = parts.flat_map(|(share, part)| unused(share, part, |part| !translator.is_in_use(part)));
            unused.take(UNUSED_TOLD).map(|share| share.to_string()).collect::<Vec<_>>()
        };
        [true, false].map(|leaving| {
            let pools = core.model.by_name().pools.values();
            let all = pools.map(|pool| (pool.name.to_string(), of(pool, leaving)));
            all.filter(|(_, shares)| !shares.is_empty()).collect()
        })
    }
}

/// Unused parts of a pool that are told.
const UNUSED_TOLD: usize = 1024;

/// The addresses of a share of which nothing is in use, in runs.
fn unused(share: &Share, part: nat::Share, is: impl Fn(&nat::Share) -> bool) -> Vec<Share> {
    let mut runs: Vec<Share> = Vec::new();
    let addresses = u32::from(share.range.first)..=u32::from(share.range.last);
    for at in addresses.filter(|at| is(&nat::Share { addresses: (*at, *at), ..part })) {
        match runs.last_mut().filter(|run| u32::from(run.range.last) + 1 == at) {
            Some(run) => run.range.last = at.into(),
            None => runs.push(Share { range: AddressRange { first: at.into(), last: at.into() }, ..share.clone() }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_in_use_is_told_in_runs() {
        let share: Share = "203.0.113.0/29:0-32767 a1 leaving".parse().unwrap();
        let part = nat::Share { addresses: (0xcb00_7100, 0xcb00_7107), ports: (0, 32_767), leaving: true };
        let used = [0xcb00_7102, 0xcb00_7103, 0xcb00_7107];
        let told: Vec<String> =
            unused(&share, part, |p| !used.contains(&p.addresses.0)).iter().map(Share::to_string).collect();
        assert_eq!(told, ["203.0.113.0/31:0-32767 a1 leaving", "203.0.113.4-203.0.113.6:0-32767 a1 leaving"]);
    }
}
