// SPDX-License-Identifier: Apache-2.0

use super::{texts, Described, Kind, Name};
use crate::broken::stand_ins;
use crate::declare::fields;
use crate::doc::Doc;
use crate::error::Problem;
use crate::forms::*;
use std::net::IpAddr;

/// Whether a VPC's new connections are this cluster's, of two that know its older ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HandoverRole {
    /// They are; older ones may be the other cluster's.
    New,
    /// They are the other cluster's; older ones may be this one's.
    Old,
}

fields! {
    /// A VPC of which another cluster may have sessions: a packet of a session that is not known here is handed over to it, once. The controller makes it while a tenant moves, and takes none itself.
    pub kind Handover {
        /// That of the VPC: it has one at most.
        name: Name = "metadata.name", OwnName;
        /// The VPC.
        vpc: Name = "spec.vpc", name_of(Kind::Vpc, "name of a Vpc, the document's own").required(stand_ins::name);
        /// Tunnel addresses of the other cluster, by the first of which, of each family, packets are handed over.
        to: Vec<IpAddr> = "spec.to", underlay("").list(16, "1 to 16 unicast addresses, none the gateway's own").full();
        /// Which of the two this is. `new`: new connections begin here. `old`: they are the other cluster's.
        role: HandoverRole = "spec.role", choice(&[("new", HandoverRole::New), ("old", HandoverRole::Old)]).or(HandoverRole::New);
    }
}

impl Described for Handover {
    const OF_VPCS: bool = true;

    fn name(&self) -> Name {
        self.name.clone()
    }

    fn summary(&self) -> String {
        let role = match self.role {
            HandoverRole::New => "new here, older ones may be at",
            HandoverRole::Old => "old here, new ones go to",
        };
        format!("{role} {}", texts(self.to.iter()))
    }

    fn vpcs(&self) -> &[Name] {
        std::slice::from_ref(&self.vpc)
    }

    fn check(self, doc: &mut Doc<'_>) -> Option<Handover> {
        if self.name != self.vpc {
            doc.wrong("spec.vpc", Problem::Value("is another name than metadata.name".into()));
        }
        Some(self)
    }
}
