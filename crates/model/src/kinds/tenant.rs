// SPDX-License-Identifier: Apache-2.0

use super::{texts, Described, Kind, Name, ServedBy};
use crate::declare::fields;
use crate::forms::*;

fields! {
    /// Who owns VPCs, and where they are served. A kind of the controller: a node takes none.
    pub struct Tenant {
        /// Name, unique among the documents of its kind.
        name: Name = "metadata.name", OwnName;
        /// Its VPCs. One that no Tenant owns is on no node, unless a VPC that is peers with it.
        vpcs: Vec<Name> = "spec.vpcs", name_of(Kind::Vpc, "").list(65_536, "names of Vpcs of no other Tenant");
        /// The cluster that serves it.
        cluster: Option<Name> = "spec.cluster", name_of(Kind::Cluster, "name of a Cluster").optional().meaning("none: on no node");
        /// Where nodes with a fast path serve its VPCs. `auto`: as the controller decides from the traffic, if the Cluster has a budget (`spec.fast`). What the document of a Vpc says of itself (`spec.path`) comes first.
        path: ServedBy = "spec.path", choice(&ServedBy::ALL).or(ServedBy::Auto).shy();
    }
}

impl Described for Tenant {
    fn name(&self) -> Name {
        self.name.clone()
    }

    fn summary(&self) -> String {
        let more = if self.vpcs.len() > 4 { ", …" } else { "" };
        let cluster = self.cluster.as_deref().unwrap_or("no cluster");
        format!("{}{more} in {cluster}", texts(self.vpcs.iter()))
    }
}
