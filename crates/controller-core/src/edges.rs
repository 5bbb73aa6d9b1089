// SPDX-License-Identifier: Apache-2.0
//! The provider edge in a region (`docs/design/edge-region.md`): an EdgePort is one node's. The VPCs that Overlays lead to from there are held by
//! the node's cluster, too, whoever serves them, for the node finds their VMs itself. Every node that holds such a VPC is sent the port as one
//! document, with the node's name, its interface and its tunnel addresses: by its own name it knows whether the port is here.

use super::serving::Shifts;
use model::{EdgePort, Kind, Model, Name, Object, Overlay, Pair};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The clusters at whose nodes lines of VPCs end, by VPC.
pub type Ends<'m> = HashMap<&'m Name, BTreeSet<&'m Name>>;

/// The clusters at whose nodes lines end. Costs what there is of Overlays.
pub fn ends(model: &Model) -> Ends<'_> {
    let mut ends = Ends::new();
    for overlay in model.by_name().overlays.values() {
        if let Some(cluster) = cluster(model, overlay) {
            ends.entry(&overlay.vpc).or_default().insert(cluster);
        }
    }
    ends
}

/// The cluster of the node that has an Overlay's port.
fn cluster<'m>(model: &'m Model, overlay: &Overlay) -> Option<&'m Name> {
    let port = model.by_name().edge_ports.get(&overlay.port)?;
    model.by_name().nodes.get(port.node.as_ref()?).map(|node| &node.cluster)
}

/// The ports that lines of these VPCs end at.
pub fn ports<'m>(model: &'m Model, vpcs: &BTreeSet<Name>) -> BTreeMap<&'m Name, &'m EdgePort> {
    let overlays = model.by_name().overlays.values().filter(|o| vpcs.contains(&o.vpc));
    overlays.filter_map(|o| model.by_name().edge_ports.get(&o.port)).map(|p| (&p.name, &**p)).collect()
}

/// A port as nodes are told of it.
pub fn told(model: &Model, port: &EdgePort) -> EdgePort {
    let node = port.node.as_ref().and_then(|name| model.by_name().nodes.get(name));
    EdgePort { at: node.map(|n| n.addresses.clone()).unwrap_or_default(), ..port.clone() }
}

/// The VPCs of Overlays that a change may move to another cluster.
pub fn named(model: &Model, pairs: &[Pair]) -> BTreeSet<Name> {
    let (mut vpcs, mut ports, mut nodes) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (before, after) in pairs {
        for object in before.iter().chain(after) {
            match object {
                Object::Overlay(overlay) => drop(vpcs.insert(overlay.vpc.clone())),
                Object::EdgePort(port) => drop(ports.insert(port.name.clone())),
                Object::Node(node) => drop(nodes.insert(node.name.clone())),
                _ => {}
            }
        }
    }
    if !ports.is_empty() || !nodes.is_empty() {
        let is_named = |port: &Name| {
            let of = || model.by_name().edge_ports.get(port).and_then(|p| p.node.as_ref());
            ports.contains(port) || of().is_some_and(|node| nodes.contains(node))
        };
        let overlays = model.by_name().overlays.values().filter(|o| is_named(&o.port));
        vpcs.extend(overlays.map(|o| o.vpc.clone()));
    }
    vpcs
}

/// Why an EdgePort is not the region's as it is described.
pub fn unfit(port: &EdgePort) -> Option<&'static str> {
    match port {
        EdgePort { node: None, .. } => {
            Some("spec.node is missing: in a region each port is one node's; write the name of that Node")
        }
        EdgePort { at, .. } if !at.is_empty() => {
            Some("spec.at: the controller takes these addresses from the Node (its spec.addresses); leave it out")
        }
        _ => None,
    }
}

/// Of a change after which VPCs shift so: a cluster whose nodes would know more ports than they can, in a sentence. `now` says what clusters serve
/// as yet.
pub fn crowded<'a>(
    model: &Model,
    pairs: &[Pair],
    shifts: &Shifts,
    now: impl Iterator<Item = (&'a Name, &'a BTreeSet<Name>)>,
) -> Option<String> {
    let of_edges = |(a, b): &Pair| {
        let kind = a.as_ref().or(b.as_ref()).map(Object::kind);
        matches!(kind, Some(Kind::Overlay | Kind::EdgePort | Kind::Node))
    };
    if model.by_name().overlays.is_empty() || shifts.clusters.is_empty() && !pairs.iter().any(of_edges) {
        return None;
    }
    let none = BTreeSet::new();
    let mut held: BTreeMap<&Name, &BTreeSet<Name>> = now.collect();
    shifts.clusters.keys().for_each(|cluster| _ = held.entry(cluster).or_insert(&none));
    for (cluster, vpcs) in held {
        let shift = shifts.clusters.get(cluster);
        let gone = |vpc: &&Name| shift.is_none_or(|s| !s.gone.contains(*vpc));
        let vpcs = vpcs.iter().filter(gone).chain(shift.iter().flat_map(|s| &s.come)).cloned().collect();
        let ports = ports(model, &vpcs);
        for node in model.by_name().nodes.values().filter(|n| n.cluster == *cluster) {
            if let Some((used, most)) = Model::too_many_edges(&node.name, ports.values().copied()) {
                return Some(format!(
                    "Node `{}` of Cluster `{cluster}` would have to know {used} edge ports of its own and other nodes with edge ports, and a node \
                     takes {most}: let lines of the cluster's VPCs end at fewer nodes",
                    node.name
                ));
            }
        }
    }
    None
}
