// SPDX-License-Identifier: Apache-2.0

use super::{Described, Kind, Name};
use crate::declare::fields;
use crate::doc::Doc;
use crate::error::Problem;
use crate::forms::*;

const TENANT: &str = "name of a Tenant; with access `tenant`, and only with it";
const NODE: &str = "name of a Node; with access `node`, and only with it";

fields! {
    /// Who may do what at the controller. Credentials (tokens, certificates) are made for a Role, and are worth nothing without it. A kind of the controller: a node takes none.
    pub kind Role {
        /// Name, unique among the documents of its kind.
        name: Name = "metadata.name", OwnName;
        /// `operator`: everything. `readOnly`: see everything. `tenant`: see what belongs to VPCs of its Tenant, and change their Vms, Routes, SecurityBindings and Peerings among each other. `node`: receive the configuration of its Node. `host`: learn which cluster serves its VNIs (`tunny host-agent`); the Role is the host.
        access: Access = "spec.access", choice(&Access::ALL).required(|| Access::ReadOnly);
        /// Whose VPCs.
        tenant: Option<Name> = "spec.tenant", name_of(Kind::Tenant, TENANT).optional();
        /// Which node.
        node: Option<Name> = "spec.node", name_of(Kind::Node, NODE).optional();
    }
}

/// What a Role may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Everything.
    Operator,
    /// See everything.
    ReadOnly,
    /// What belongs to one Tenant.
    Tenant,
    /// Receive the configuration of one Node.
    Node,
    /// Learn where a host's packets go.
    Host,
}

impl Access {
    /// As in `spec.access`.
    pub const ALL: [(&'static str, Access); 5] = [
        ("operator", Access::Operator),
        ("readOnly", Access::ReadOnly),
        ("tenant", Access::Tenant),
        ("node", Access::Node),
        ("host", Access::Host),
    ];

    /// As in `spec.access`.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, a)| *a == self).map_or("", |(name, _)| name)
    }
}

impl Described for Role {
    fn name(&self) -> Name {
        self.name.clone()
    }

    fn summary(&self) -> String {
        match self.tenant.as_ref().or(self.node.as_ref()) {
            Some(of) => format!("{} {of}", self.access.name()),
            None => self.access.name().into(),
        }
    }

    fn check(self, doc: &mut Doc<'_>) -> Option<Role> {
        if doc.is_wrong("spec.access") {
            return Some(self);
        }
        for (path, access, allowed) in [("spec.tenant", Access::Tenant, TENANT), ("spec.node", Access::Node, NODE)] {
            let problem = match (doc.node(path).is_some(), self.access == access) {
                (false, true) => Problem::Missing,
                (true, false) => Problem::Value(format!("means nothing with access {}", self.access.name())),
                _ => continue,
            };
            doc.error(doc.place_of(path), path, problem, allowed.into());
        }
        Some(self)
    }
}
