// SPDX-License-Identifier: Apache-2.0
//! No tenant is unserved for longer than the bound. A VPC is served for a host if routers send what the host sends to some node, and each such node has
//! the VPC. Once it was, it stays so whatever becomes of controllers, their store and the network to them: only nodes can be to blame, and only those
//! that died, forgot, lie or are damaged. A node that has come back counts when it has heard a controller.

use super::GRACE;
use crate::things;
use crate::world::World;
use model::{Kind, Name};
use std::collections::BTreeMap;

/// What is remembered of VPCs, by host and VPC.
#[derive(Debug, Default)]
pub struct Served {
    /// Served once; if it is not now, since when.
    once: BTreeMap<(usize, Name), Option<u64>>,
}

impl World {
    /// Nodes that a host sends a VPC's packets to and routers know of, those that are believed. None: of those that could serve it none is to be
    /// believed.
    pub(super) fn reached(&self, h: usize, vpc: &Name) -> Option<Vec<usize>> {
        let vni = self.clients.vni(vpc)?;
        if self.hosts[h].vnis.as_ref().is_some_and(|vnis| !vnis.contains(&vni)) {
            return None;
        }
        let believes = |n: &usize| self.checks.trusts(*n, self.now) && self.nodes[*n].up;
        let Some(addresses) = self.hosts[h].sends.get(&vni) else {
            // Nobody has told the host.
            return (0..self.nodes.len()).any(|n| believes(&n)).then(Vec::new);
        };
        let nodes = self.nodes.iter().filter(|n| addresses.contains(&things::node_address(n.number)));
        let believed: Vec<usize> = { nodes }.map(|n| n.number).filter(believes).collect();
        (!believed.is_empty()).then(|| believed.into_iter().filter(|n| self.nodes[*n].draws()).collect())
    }

    /// A node is told to draw no more packets: if it does what it is there for, another one of its cluster draws them.
    pub(crate) fn check_withdrawn(&mut self, n: usize) {
        let cluster = self.nodes[n].cluster;
        let draws = self.nodes.iter().any(|node| node.cluster == cluster && node.draws());
        if !draws && self.checks.trusts(n, self.now) {
            self.fails("served", format!("node {n}, the last one of cluster {cluster}, is told to draw no packets, and it has all that it should"));
        }
    }

    pub(super) fn check_served(&mut self) {
        let (now, mut what) = (self.now, None);
        let vpcs = self.clients.vpcs(self.hosts.iter().flat_map(|host| host.vnis.iter().flatten()));
        let mut once = std::mem::take(&mut self.checks.served.once);
        once.retain(|(_, vpc), _| vpcs.binary_search(vpc).is_ok());
        for vpc in &vpcs {
            for h in 0..self.hosts.len() {
                let Some(nodes) = self.reached(h, vpc) else {
                    once.entry((h, vpc.clone())).and_modify(|since| *since = None);
                    continue;
                };
                let lacks = nodes.iter().find(|n| self.nodes[**n].serves(Kind::Vpc, vpc).is_none());
                if !nodes.is_empty() && lacks.is_none() {
                    once.insert((h, vpc.clone()), None);
                    continue;
                }
                let Some(since) = once.get_mut(&(h, vpc.clone())) else { continue };
                let since = *since.get_or_insert(now);
                if now - since > GRACE && what.is_none() {
                    let why = match lacks {
                        Some(n) => format!("node {n} has it not"),
                        None => "no node of those that run draws packets".into(),
                    };
                    let from = since as f64 / 1000.0;
                    what = Some(format!("VPC {vpc} is not served for host {h} since {from:.3} s: {why}"));
                }
            }
        }
        self.checks.served.once = once;
        if let Some(what) = what {
            self.fails("served", what);
        }
    }
}
