// SPDX-License-Identifier: Apache-2.0
//! VPCs of which another cluster may have sessions (`docs/design/handover.md`): what workers are told of them, and what the controller, which
//! waits for the old cluster's sessions to end, is told of them.

use crate::service::Node;
use compile::ConntrackPlan;
use gateway::{Handover, Handovers, Role};
use model::HandoverRole;
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
}
