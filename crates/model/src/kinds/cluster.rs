// SPDX-License-Identifier: Apache-2.0

use super::{texts, Described, Name};
use crate::declare::fields;
use crate::forms::*;
use std::net::IpAddr;

fields! {
    /// Nodes that all hold the same tables: those of the Tenants that are placed in it. A kind of the controller: a node takes none.
    pub struct Cluster {
        /// Name, unique among the documents of its kind.
        name: Name = "metadata.name", OwnName;
        /// Tunnel addresses under which hosts reach its nodes.
        addresses: Vec<IpAddr> = "spec.addresses", underlay("").list(16, "up to 16 unicast addresses of no Nc and no other Cluster");
        /// VPCs up to which Tenants are placed in it. Raise it step by step while a new cluster shows that it serves. What is there, or is moved there by hand, stays.
        vpcs: Option<u32> = "spec.vpcs", int(0, 1 << 24).optional().meaning("none: as many as its nodes hold");
    }
}

impl Described for Cluster {
    fn name(&self) -> Name {
        self.name.clone()
    }

    fn summary(&self) -> String {
        texts(self.addresses.iter())
    }
}
