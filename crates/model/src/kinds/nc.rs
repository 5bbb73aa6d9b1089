// SPDX-License-Identifier: Apache-2.0

use super::{Described, Kind, Name};
use crate::broken::stand_ins;
use crate::declare::fields;
use crate::forms::*;
use std::net::IpAddr;

const ADDRESS: &str = "a unicast address, not link-local, of no other Nc and not the gateway's own";

fields! {
    /// A physical server (NC) that hosts VMs and speaks VXLAN with the gateway.
    pub kind Nc {
        /// Name, unique among the documents of its kind.
        name: Name = "metadata.name", OwnName;
        /// The server's VTEP address in the underlay.
        address: IpAddr = "spec.address", underlay(ADDRESS).required(stand_ins::address);
        /// VPCs for which the server may send besides those of its VMs.
        vpcs: Vec<Name> = "spec.vpcs", name_of(Kind::Vpc, "").list(1 << 20, "names of Vpc documents, each once");
    }
}

impl Described for Nc {
    fn name(&self) -> Name {
        self.name.clone()
    }

    fn summary(&self) -> String {
        self.address.to_string()
    }
}
