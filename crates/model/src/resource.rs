// SPDX-License-Identifier: Apache-2.0
//! What clusters have and tenants need.

use std::fmt;

/// What can run out. Address families share: the tables of XDP and user nodes count them together, and a chip pools them (Sailfish §4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// Entries of VPCs.
    Vpcs,
    /// Entries of routes.
    Routes,
    /// VM-NC entries.
    Vms,
    /// Rules of security groups.
    Rules,
    /// Sessions.
    Sessions,
    /// Traffic, bits a second.
    Traffic,
}

/// How many resources there are.
pub const RESOURCES: usize = 6;

impl Resource {
    /// All of them.
    pub const ALL: [Resource; RESOURCES] =
        [Resource::Vpcs, Resource::Routes, Resource::Vms, Resource::Rules, Resource::Sessions, Resource::Traffic];
    /// The kinds of tables: what a move copies.
    pub const TABLES: [Resource; 4] = [Resource::Vpcs, Resource::Routes, Resource::Vms, Resource::Rules];

    /// Its name, as in files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Resource::Vpcs => "vpcs",
            Resource::Routes => "routes",
            Resource::Vms => "vms",
            Resource::Rules => "rules",
            Resource::Sessions => "sessions",
            Resource::Traffic => "traffic",
        }
    }

    /// By its name.
    pub fn named(name: &str) -> Option<Resource> {
        Resource::ALL.into_iter().find(|r| r.name() == name)
    }

    /// Whether it is a table's entries.
    pub fn is_table(self) -> bool {
        Resource::TABLES.contains(&self)
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
