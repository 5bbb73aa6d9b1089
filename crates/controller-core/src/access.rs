// SPDX-License-Identifier: Apache-2.0
//! Who may see and change what. A tenant sees what belongs to VPCs that its Tenant owns, and changes what is inside them: what takes
//! something that others need too (a VNI, a public address, a port of a machine) is an operator's.

use model::{Access, Kind, Model, Name, Object, Pair};

/// What tenants may change, where every VPC that it belongs to is theirs.
pub const OF_TENANTS: [Kind; 4] = [Kind::Peering, Kind::Vm, Kind::Route, Kind::SecurityBinding];

/// Who asks, by the Role that its credential was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The Role.
    pub role: Name,
    /// What it may do.
    pub access: Access,
    /// Whose VPCs, of a tenant.
    pub tenant: Option<Name>,
    /// Which node, of a node.
    pub node: Option<Name>,
}

impl Principal {
    /// Of a Role, as it stands now.
    pub fn of(model: &Model, role: &str) -> Option<Principal> {
        match model.get(Kind::Role, role)? {
            Object::Role(r) => Some(Principal { role: r.name, access: r.access, tenant: r.tenant, node: r.node }),
            _ => None,
        }
    }

    /// In a few words, for the audit log.
    pub fn who(&self) -> String {
        match self.tenant.as_ref().or(self.node.as_ref()) {
            Some(of) => format!("{} ({} {of})", self.role, self.access.name()),
            None => format!("{} ({})", self.role, self.access.name()),
        }
    }

    /// Whether it may change anything at all.
    pub fn may_apply(&self) -> bool {
        matches!(self.access, Access::Operator | Access::Tenant)
    }

    /// Whether it may see anything of the configuration.
    pub fn may_look(&self) -> bool {
        !matches!(self.access, Access::Node | Access::Host)
    }

    /// Whether it sees all there is: then nothing need be looked at.
    pub fn sees_all(&self) -> bool {
        matches!(self.access, Access::Operator | Access::ReadOnly)
    }

    fn owns(&self, model: &Model, vpc: &Name) -> bool {
        let tenant = self.tenant.as_ref().and_then(|name| model.by_name().tenants.get(name));
        tenant.is_some_and(|t| t.vpcs.contains(vpc))
    }

    /// Whether it may see an object.
    pub fn sees(&self, model: &Model, object: &Object) -> bool {
        match (self.access, object) {
            (Access::Operator | Access::ReadOnly, _) => true,
            (Access::Node | Access::Host, _) => false,
            (Access::Tenant, Object::Tenant(t)) => self.tenant.as_ref() == Some(&t.name),
            (Access::Tenant, Object::Vpc(vpc)) => self.owns(model, &vpc.name),
            (Access::Tenant, other) => other.vpcs().iter().any(|vpc| self.owns(model, vpc)),
        }
    }

    /// Whether it may make one object of another. `model` is that before or after the change: who owns what, no tenant changes.
    pub fn changes(&self, model: &Model, (before, after): &Pair) -> bool {
        let own = |o: &Object| {
            OF_TENANTS.contains(&o.kind()) && !o.vpcs().is_empty() && o.vpcs().iter().all(|v| self.owns(model, v))
        };
        match self.access {
            Access::Operator => true,
            Access::Tenant => before.iter().chain(after).all(own),
            Access::ReadOnly | Access::Node | Access::Host => false,
        }
    }

    /// Why it may not.
    pub fn refusal(&self, kind: Kind, name: &str) -> String {
        let kinds = OF_TENANTS.map(|k| k.name()).join(", ");
        let object = format!("{kind} `{}`", model::plain(name));
        match (self.access, &self.tenant) {
            (Access::Tenant, Some(tenant)) => format!(
                "{object} is not for Role `{}` to change: Tenant `{tenant}` changes {kinds} of its own VPCs, and nothing else",
                self.role
            ),
            _ => format!("{object} is not for Role `{}` to change: its access is {}", self.role, self.access.name()),
        }
    }
}
