// SPDX-License-Identifier: Apache-2.0
//! What the hosts have said: by which revision they send. A host is a Role with access `host`; one that has not been heard of since the
//! controller started may send by anything that it ever knew.

use model::{Access, Model, Name, Object};
use std::collections::BTreeMap;

/// The hosts.
#[derive(Debug, Default)]
pub struct Hosts {
    heard: BTreeMap<Name, u64>,
}

impl Hosts {
    /// A host sends as a revision has it.
    pub fn switched(&mut self, host: &Name, revision: u64) -> bool {
        self.heard.insert(host.clone(), revision) != Some(revision)
    }

    /// Hosts that have not said that they send as this revision has it, or a later one.
    pub fn behind(&self, model: &Model, revision: u64) -> Vec<String> {
        let hosts = model.objects(model::Kind::Role).filter_map(|o| match o {
            Object::Role(role) if role.access == Access::Host => Some(role.name),
            _ => None,
        });
        hosts.filter(|host| self.heard.get(host).is_none_or(|at| *at < revision)).map(|h| h.to_string()).collect()
    }
}
