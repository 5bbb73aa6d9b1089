// SPDX-License-Identifier: Apache-2.0
//! What the hosts have said: by which revision they send. A host is a Role with access `host`; one that has not been heard of since the
//! controller started may send by anything that it ever knew.

use model::Name;
use std::collections::{BTreeMap, BTreeSet};

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

    /// Of these hosts, those that have not said that they send as this revision has it, or a later one.
    pub fn behind(&self, hosts: &BTreeSet<Name>, revision: u64) -> Vec<String> {
        let behind = hosts.iter().filter(|host| self.heard.get(*host).is_none_or(|at| *at < revision));
        behind.map(|host| host.to_string()).collect()
    }
}
