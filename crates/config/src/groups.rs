// SPDX-License-Identifier: Apache-2.0
//! Security groups, and who has which.

use crate::object::Name;
use filter::GroupSpec;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Rules about connections.
#[derive(Clone, Debug)]
pub struct SecurityGroup {
    /// `metadata.name` and the rules.
    pub spec: Arc<GroupSpec>,
    /// A number that differs if the rules do.
    pub digest: u64,
    /// The groups that its rules name, each with the position of the first that does.
    pub references: Arc<[(usize, Name)]>,
}

impl SecurityGroup {
    /// With these rules.
    pub fn new(spec: GroupSpec) -> SecurityGroup {
        let mut hash = DefaultHasher::new();
        spec.hash(&mut hash);
        let mut named = HashSet::new();
        let references = spec.references().filter(|(_, name)| named.insert(*name)).map(|(i, name)| (i, name.clone())).collect();
        SecurityGroup { spec: Arc::new(spec), digest: hash.finish(), references }
    }
}

impl PartialEq for SecurityGroup {
    fn eq(&self, other: &SecurityGroup) -> bool {
        Arc::ptr_eq(&self.spec, &other.spec) || self.digest == other.digest && self.spec == other.spec
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
