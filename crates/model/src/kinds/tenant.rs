// SPDX-License-Identifier: Apache-2.0

use super::{texts, Described, Kind, Name, ServedBy};
use crate::declare::fields;
use crate::forms::*;
use crate::resource::Resource;
use crate::time::Timestamp;

fields! {
    /// Who owns VPCs, and where they are served. A kind of the controller: a node takes none.
    pub kind Tenant {
        /// Name, unique among the documents of its kind.
        name: Name = "metadata.name", OwnName;
        /// Its VPCs. One that no Tenant owns is on no node, unless a VPC that is peers with it.
        vpcs: Vec<Name> = "spec.vpcs", name_of(Kind::Vpc, "").list(65_536, "names of Vpcs of no other Tenant");
        /// The cluster that serves it.
        cluster: Option<Name> = "spec.cluster", name_of(Kind::Cluster, "name of a Cluster").optional().meaning("none: on no node");
        /// What it has announced that it will need. Placement leaves room for it, where the Tenant is and where it moves to.
        reserve: Reservation = "spec.reserve", part();
        /// Where nodes with a fast path serve its VPCs. `auto`: as the controller decides from the traffic, if the Cluster has a budget (`spec.fast`). What the document of a Vpc says of itself (`spec.path`) comes first.
        path: ServedBy = "spec.path", choice(&ServedBy::ALL).or(ServedBy::Auto).shy();
    }
}

fields! {
    /// What is held free for a Tenant: of each resource what it has there already is part of it.
    pub struct Reservation {
        /// VPCs.
        vpcs: u32 = "vpcs", int(0, 1 << 24).or(0);
        /// Routes of all its VPCs.
        routes: u32 = "routes", int(0, 1 << 30).or(0);
        /// VMs of all its VPCs.
        vms: u32 = "vms", int(0, 1 << 30).or(0);
        /// Sessions.
        sessions: u32 = "sessions", int(0, 1 << 30).or(0);
        /// Traffic.
        traffic: Option<u64> = "traffic", bandwidth().optional();
        /// When the reservation ends.
        until: Option<Timestamp> = "until", time().optional().meaning("none: when it is taken out");
    }
}

impl Reservation {
    /// Whether it reserves anything at all.
    pub fn is_any(&self) -> bool {
        *self != Reservation { until: self.until, ..Reservation::default() }
    }

    /// Whether it has ended, so many seconds after 1970 in UTC.
    pub fn has_ended(&self, now: u64) -> bool {
        self.until.is_some_and(|until| until.seconds() <= now)
    }

    /// How much of a resource, in entries or bits a second.
    pub fn of(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Vpcs => self.vpcs.into(),
            Resource::Routes => self.routes.into(),
            Resource::Vms => self.vms.into(),
            Resource::Rules => 0,
            Resource::Sessions => self.sessions.into(),
            Resource::Traffic => self.traffic.unwrap_or(0),
        }
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
