// SPDX-License-Identifier: Apache-2.0

use super::{texts, Described, Name};
use crate::declare::fields;
use crate::forms::*;
use std::net::IpAddr;

fields! {
    /// Nodes that all hold the same tables: those of the Tenants that are placed in it. A kind of the controller: a node takes none.
    pub kind Cluster {
        /// Name, unique among the documents of its kind.
        name: Name = "metadata.name", OwnName;
        /// Tunnel addresses under which hosts reach its nodes.
        addresses: Vec<IpAddr> = "spec.addresses", underlay("").list(16, "up to 16 unicast addresses of no Nc and no other Cluster");
        /// VPCs up to which Tenants are placed in it. Raise it step by step while a new cluster shows that it serves. What is there, or is moved there by hand, stays.
        vpcs: Option<u32> = "spec.vpcs", int(0, 1 << 24).optional().meaning("none: as many as its nodes hold");
        /// What of it the fast path of its nodes serves.
        fast: FastBudget = "spec.fast", part();
    }
}

fields! {
    /// What of a cluster the fast path of its nodes serves. The controller gives it to the Tenants that send the most packets for their entries; the others are served in software.
    #[derive(Copy)]
    pub struct FastBudget {
        /// VMs and routes that are served fast, those of Tenants that are pinned (`spec.path: fast`) counted.
        entries: Option<u32> = "entries", int(0, 1 << 25).optional().meaning("none: everything is served fast");
        /// Packets a second from which a Tenant may be.
        rate: u64 = "rate", packet_rate().or(100).shy();
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
