// SPDX-License-Identifier: Apache-2.0
//! What is told of EVPN.

use super::decide::Host;
use crate::routing::learn::around;
use crate::routing::{LearnedRoute, Routing};
use crate::service::Node;
use abi::Prefix;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Who said what was learned by EVPN, as rt_protos of iproute2 numbers BGP.
const BGP: u8 = 186;

/// What a VPC exchanges by EVPN.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvpnView {
    /// The EvpnInstance.
    pub instance: String,
    /// Its VPC.
    pub vpc: String,
    /// The daemon is heard.
    pub up: bool,
    /// Learned VMs.
    pub vms: u64,
    /// Such VMs at most.
    pub vms_limit: u64,
    /// Learned prefixes.
    pub routes: u64,
    /// Such prefixes at most.
    pub routes_limit: u64,
    /// Learned tunnel ends.
    pub vteps: u64,
    /// Such tunnel ends at most.
    pub vteps_limit: u64,
    /// Of all that, what nobody says now.
    pub stale: u64,
    /// Paths that are announced.
    pub announced: u64,
    /// Routes that are refused, by why.
    pub refused: BTreeMap<String, u64>,
    /// MAC addresses that are not followed, since they move too often.
    pub flapping: Vec<String>,
    /// Of all VPCs: routes whose targets none imports.
    pub foreign: u64,
    /// Of all VPCs: what the daemon says and cannot be read.
    pub unreadable: u64,
}

impl Node {
    /// `GET /v1/evpn`.
    pub fn evpn(&self) -> Vec<EvpnView> {
        self.routing.evpn()
    }
}

impl Routing {
    /// The VPCs by the names of their EvpnInstances.
    pub fn evpn(&self) -> Vec<EvpnView> {
        let state = self.state.lock();
        let (x, learned) = (&state.exchange, self.learned.lock());
        let views = x.plan.vpcs.iter().map(|plan| {
            let mut view = EvpnView {
                instance: plan.name.clone(),
                vpc: plan.vpc.clone(),
                up: x.up,
                vms_limit: plan.limits.vms.into(),
                routes_limit: plan.limits.routes.into(),
                vteps_limit: plan.limits.vteps.into(),
                announced: x.announced.get(&plan.vni).copied().unwrap_or(0),
                foreign: x.foreign(),
                unreadable: x.unreadable,
                ..EvpnView::default()
            };
            if let Some(fabric) = learned.get(&plan.vni).map(|of| &of.fabric) {
                let vms = || fabric.hosts.values().filter(|host| !host.addresses.is_empty());
                view.vms = vms().count() as u64;
                view.routes = fabric.prefixes.len() as u64;
                view.vteps = fabric.vteps().collect::<std::collections::BTreeSet<_>>().len() as u64;
                let stale = vms().filter(|host| host.stale).count();
                view.stale = (stale + fabric.prefixes.values().filter(|far| far.stale).count()) as u64;
            }
            if let Some(decision) = x.decisions.get(&plan.vni) {
                view.refused = decision.refused.iter().map(|(why, n)| (why.name().to_string(), *n)).collect();
                view.flapping = decision.flapping.iter().map(|mac| mac.to_string()).collect();
            }
            view
        });
        views.collect()
    }

    /// What of a packet's way was learned by EVPN: an address of a VPC, in words.
    pub(crate) fn learned_from(&self, vni: abi::Vni, address: IpAddr) -> Option<String> {
        let learned = self.learned.lock();
        let of = learned.get(&vni)?;
        let state = |stale: bool| if stale { ", stale: nobody says it now" } else { "" };
        let fabric = &of.fabric;
        let vm = fabric.hosts.iter().find(|(_, host)| host.addresses.contains(&address));
        if let Some((mac, host)) = vm {
            return Some(format!(
                "{address} is a learned VM: {mac} at VTEP {}, by EVPN{}",
                host.vtep,
                state(host.stale)
            ));
        }
        around(Prefix::from(address)).find_map(|prefix| {
            if let Some(line) = of.routes.get(&prefix) {
                return Some(format!("{prefix} is a learned route: by line {}{}", line.line, state(line.stale)));
            }
            let far = fabric.prefixes.get(&prefix)?;
            let vtep = fabric.hosts.get(&far.router)?.vtep;
            Some(format!(
                "{prefix} is a learned route: by router {} at VTEP {vtep}, by EVPN{}",
                far.router,
                state(far.stale)
            ))
        })
    }
}

/// The rows of a VM, one an address.
pub(in crate::routing) fn rows<'a>(
    vpc: &'a str,
    mac: abi::Mac,
    host: &'a Host,
) -> impl Iterator<Item = (Prefix, LearnedRoute)> + 'a {
    host.addresses.iter().map(move |address| {
        let prefix = Prefix::from(*address);
        let row = LearnedRoute { kind: "Vm".into(), ..row(vpc, prefix, (mac, host), host.stale) };
        (prefix, row)
    })
}

/// The row of a prefix behind a router.
pub(in crate::routing) fn row(vpc: &str, prefix: Prefix, (mac, host): (abi::Mac, &Host), stale: bool) -> LearnedRoute {
    LearnedRoute {
        kind: "Route".into(),
        vpc: vpc.into(),
        prefix: prefix.to_string(),
        vtep: host.vtep.to_string(),
        mac: mac.to_string(),
        metric: host.sequence,
        protocol: BGP,
        stale,
        ..LearnedRoute::default()
    }
}
