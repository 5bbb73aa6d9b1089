// SPDX-License-Identifier: Apache-2.0

use super::{Described, Kind, Name};
use crate::broken::stand_ins;
use crate::declare::fields;
use crate::forms::*;

fields! {
    /// A gateway that takes its configuration from the controller, but for its Gateway, which is its own. A kind of the controller: a node takes none.
    pub kind Node {
        /// Name, unique among the documents of its kind. The Role of its credentials names it.
        name: Name = "metadata.name", OwnName;
        /// The cluster that it is part of.
        cluster: Name = "spec.cluster", name_of(Kind::Cluster, "name of a Cluster").required(stand_ins::name);
    }
}

impl Described for Node {
    fn name(&self) -> Name {
        self.name.clone()
    }

    fn summary(&self) -> String {
        format!("in {}", self.cluster)
    }
}
