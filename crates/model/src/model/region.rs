// SPDX-License-Identifier: Apache-2.0
//! A region: what its Tenants and the rest of the configuration must agree on.

use super::named::{in_turn, Described, Fault};
use super::Model;
use crate::error::Problem;
use crate::kinds::*;
use std::collections::HashMap;
use std::net::IpAddr;

impl Model {
    /// The region, of a controller's model.
    pub fn region(&self) -> Option<&Region> {
        self.named.regions.values().next().map(|r| &**r)
    }

    /// Every rule that joins objects of the region.
    pub(super) fn region_faults(&self, out: &mut Vec<Fault>, described: Described) {
        let mut first: Option<&Name> = None;
        for region in in_turn(&self.named.regions, |name| described(Kind::Region, name)) {
            if let Some(first) = first {
                let problem = Problem::SecondRegion { first: first.to_string() };
                out.push((Kind::Region, region.name.clone(), "metadata.name".into(), problem));
            }
            first.get_or_insert(&region.name);
        }
        let mut addresses: HashMap<IpAddr, String> = HashMap::new();
        for cluster in in_turn(&self.named.clusters, |name| described(Kind::Cluster, name)) {
            for (i, address) in cluster.addresses.iter().enumerate() {
                let nc = self.nc_addrs.get(address).map(|id| format!("Nc `{}`", self.nc(*id).name));
                let other = addresses.insert(*address, format!("Cluster `{}`", cluster.name));
                if let Some(by) = nc.or(other) {
                    let problem = Problem::AddressTaken { address: address.to_string(), by };
                    out.push((Kind::Cluster, cluster.name.clone(), format!("spec.addresses[{i}]"), problem));
                }
            }
        }
        let mut nodes: HashMap<IpAddr, String> = HashMap::new();
        for node in in_turn(&self.named.nodes, |name| described(Kind::Node, name)) {
            for (i, address) in node.addresses.iter().enumerate() {
                let nc = self.nc_addrs.get(address).map(|id| format!("Nc `{}`", self.nc(*id).name));
                let other = nodes.insert(*address, format!("Node `{}`", node.name));
                if let Some(by) = nc.or(other) {
                    let problem = Problem::AddressTaken { address: address.to_string(), by };
                    out.push((Kind::Node, node.name.clone(), format!("spec.addresses[{i}]"), problem));
                }
            }
        }
        let mut owners: HashMap<&Name, &Name> = HashMap::new();
        for tenant in in_turn(&self.named.tenants, |name| described(Kind::Tenant, name)) {
            for (i, vpc) in tenant.vpcs.iter().enumerate() {
                if let Some(owner) = owners.insert(vpc, &tenant.name) {
                    let problem = Problem::VpcOwned { vpc: vpc.to_string(), owner: owner.to_string() };
                    out.push((Kind::Tenant, tenant.name.clone(), format!("spec.vpcs[{i}]"), problem));
                }
            }
        }
    }
}
