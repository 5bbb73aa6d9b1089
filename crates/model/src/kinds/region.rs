// SPDX-License-Identifier: Apache-2.0

use super::{Described, Name};
use crate::declare::fields;
use crate::forms::*;

/// Seconds for which a tenant's old cluster serves its sessions where a Region says nothing else.
pub const DRAIN_S: u32 = 3600;

fields! {
    /// The whole that a controller looks after, of which there is one. A kind of the controller: a node takes none.
    pub struct Region {
        /// Name, unique among the documents of its kind.
        name: Name = "metadata.name", OwnName;
        /// Limits of the whole. Those of a node are its Gateway's.
        limits: RegionLimits = "spec.limits", part();
        /// Seconds for which a cluster that a tenant has left goes on serving its sessions, which the new one hands their packets to. Those that have not ended then break.
        drain: u32 = "spec.drain", int(3, 604_800).or(DRAIN_S);
    }
}

fields! {
    /// How many objects of each kind a region takes.
    #[derive(Copy)]
    pub struct RegionLimits {
        /// VPCs at most. A change that would pass a limit is refused.
        vpcs: u32 = "vpcs", int(1, 1 << 24).or(1 << 24);
        /// Routes of all VPCs at most.
        routes: u32 = "routes", int(1, 1 << 30).or(1 << 27);
        /// VMs of all VPCs at most.
        vms: u32 = "vms", int(1, 1 << 30).or(1 << 27);
        /// NCs at most.
        ncs: u32 = "ncs", int(1, 1 << 24).or(1 << 20);
    }
}

impl Described for Region {
    fn name(&self) -> Name {
        self.name.clone()
    }

    fn summary(&self) -> String {
        let RegionLimits { vpcs, routes, vms, ncs } = self.limits;
        format!("at most {vpcs} VPCs, {routes} routes, {vms} VMs, {ncs} NCs")
    }
}
