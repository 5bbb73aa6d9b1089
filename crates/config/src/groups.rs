// SPDX-License-Identifier: Apache-2.0
//! Security groups, and who has which.

use crate::object::Name;
use crate::ERRORS_MAX;
use filter::{Fault, GroupSpec, Ruleset};
use std::collections::HashSet;
use std::sync::Arc;

/// Rules about connections.
#[derive(Clone, Debug)]
pub struct SecurityGroup {
    /// `metadata.name` and the rules.
    pub spec: Arc<GroupSpec>,
    /// The groups that its rules name, each with the position of the first that does.
    pub references: Arc<[(usize, Name)]>,
    /// The rules, checked and compiled; none as long as the group is not in a model.
    ruleset: Option<Arc<Ruleset>>,
}

impl SecurityGroup {
    /// With these rules, as they are.
    pub fn new(spec: GroupSpec) -> SecurityGroup {
        let mut named = HashSet::new();
        let references =
            spec.references().filter(|(_, name)| named.insert(*name)).map(|(i, name)| (i, name.clone())).collect();
        SecurityGroup { spec: Arc::new(spec), references, ruleset: None }
    }

    /// Checks and compiles the rules; quickly, if the group had most of them `before`.
    pub(crate) fn compile(&mut self, before: Option<&SecurityGroup>) -> Result<(), Vec<Fault>> {
        if self.ruleset.is_none() {
            let before = before.and_then(|b| b.ruleset.as_deref());
            self.ruleset = Some(Arc::new(Ruleset::checked(self.spec.clone(), before, ERRORS_MAX)?));
        }
        Ok(())
    }

    /// The rules, compiled.
    pub(crate) fn ruleset(&self) -> Arc<Ruleset> {
        // Every group of a model has them.
        self.ruleset.clone().unwrap_or_else(|| Arc::new(Ruleset::new(self.spec.clone())))
    }
}

impl PartialEq for SecurityGroup {
    fn eq(&self, other: &SecurityGroup) -> bool {
        Arc::ptr_eq(&self.spec, &other.spec) || self.spec == other.spec
    }
}

impl Eq for SecurityGroup {}

/// Members of a VPC and their groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecurityBinding {
    /// `metadata.name`.
    pub name: Name,
    /// The VPC.
    pub vpc: Name,
    /// VMs of it, with all their addresses.
    pub vms: Vec<Name>,
    /// Servers of it, with all their addresses.
    pub servers: Vec<Name>,
    /// Addresses of it, whoever has them.
    pub prefixes: Vec<filter::Prefix>,
    /// Their groups.
    pub groups: Vec<Name>,
}
