// SPDX-License-Identifier: Apache-2.0

use super::{two_of_a_family, Described, Kind, Name};
use crate::broken::stand_ins;
use crate::declare::fields;
use crate::doc::Doc;
use crate::error::Problem;
use crate::forms::*;
use std::net::IpAddr;

fields! {
    /// A gateway that takes its configuration from the controller, but for its Gateway, which is its own. A kind of the controller: a node takes none.
    pub kind Node {
        /// Name, unique among the documents of its kind. The Role of its credentials names it.
        name: Name = "metadata.name", OwnName;
        /// The cluster that it is part of.
        cluster: Name = "spec.cluster", name_of(Kind::Cluster, "name of a Cluster").required(stand_ins::name);
        /// Its own tunnel addresses, which its Gateway has (spec.vtep): to them other nodes send on what is for an EdgePort of this one.
        addresses: Vec<IpAddr> = "spec.addresses", underlay("").list(2, "1 or 2 unicast addresses, of each family one at most, of no Nc and no other Node").meaning("none: it has no EdgePort");
    }
}

impl Described for Node {
    fn name(&self) -> Name {
        self.name.clone()
    }

    fn summary(&self) -> String {
        format!("in {}", self.cluster)
    }

    fn check(self, doc: &mut Doc<'_>) -> Option<Node> {
        if two_of_a_family(&self.addresses) {
            let why = "has two addresses of one family: which of them is to be used?";
            doc.wrong("spec.addresses", Problem::Value(why.into()));
        }
        Some(self)
    }
}
