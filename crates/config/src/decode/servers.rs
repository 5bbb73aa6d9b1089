// SPDX-License-Identifier: Apache-2.0
//! Documents about a node in role filter.

use super::{interface, Doc};
use crate::broken::stand_ins;
use crate::error::Problem;
use crate::object::*;
use crate::schema;
use crate::yaml::Value;
use std::collections::HashSet;
use std::str::FromStr;

/// Addresses of a server at most.
const ADDRESSES_MAX: usize = 4096;

impl Doc<'_> {
    /// The Gateway's part: its role, and what that one needs or cannot have.
    pub(super) fn gateway_role(&mut self, g: &mut Gateway) {
        g.role = self.choice("spec.role", &Role::ALL, Role::Gateway);
        g.wires = self.list("spec.wires", abi::WIRES_MAX as usize, Wire::from_str);
        let (needed, foreign): (&[&str], &[&str]) = match g.role {
            // Whatever it is meant to be.
            _ if self.is_wrong("spec.role") => (&["spec"], &[]),
            Role::Gateway => (&["spec.vtep.ipv4", "spec.vtep.ipv6"], &["spec.wires"]),
            Role::Filter => (&["spec.wires"], &["spec.vtep", "spec.uplinks", "spec.internet"]),
        };
        if needed.iter().all(|path| self.node(path).is_none()) {
            let (path, allowed) = match g.role {
                Role::Gateway => ("spec.vtep", "ipv4, ipv6 or both".to_string()),
                Role::Filter => ("spec.wires", schema::allowed(self.kind, "spec.wires")),
            };
            self.error(self.place_of(needed[0]), path, Problem::Missing, allowed);
        }
        for path in foreign {
            if let Some(at) = self.node(path).map(|n| n.at) {
                let role = Role::ALL.iter().find(|r| r.1 == g.role).map_or("", |r| r.0);
                let why = Problem::Value(format!("means nothing in role {role}"));
                self.error(at, path, why, "nothing: leave it out, or change spec.role".into());
            }
        }
        let mut seen = HashSet::new();
        for (i, wire) in g.wires.iter().enumerate() {
            for name in [&wire.server, &wire.network] {
                if !seen.insert(name.clone()) {
                    let i = self.entry("spec.wires", i);
                    let field = format!("spec.wires[{i}]");
                    let at = match self.node("spec.wires").map(|n| &n.value) {
                        Some(Value::List(items)) => items.get(i).map_or(self.root.at, |item| item.at),
                        _ => self.root.at,
                    };
                    let why = Problem::Value(format!("names `{name}`, which another wire has"));
                    self.error(at, &field, why, schema::allowed(self.kind, "spec.wires"));
                }
            }
        }
    }

    pub(super) fn server(&mut self) -> Option<Server> {
        self.check_mapping("metadata");
        self.check_mapping("spec");
        let name = self.own_name();
        let vpc = self.name_at("spec.vpc").unwrap_or_else(stand_ins::name);
        let port = self.need("spec.port", interface).unwrap_or_else(|| stand_ins::name().to_string());
        self.must_exist("spec.addresses");
        let addresses = self.list("spec.addresses", ADDRESSES_MAX, forwardable);
        if let Some(at) = self.node("spec.addresses").filter(|n| n.is_empty_list()).map(|n| n.at) {
            let allowed = schema::allowed(self.kind, "spec.addresses");
            self.error(at, "spec.addresses", Problem::Value("has no entry".into()), allowed);
        }
        Some(Server { name, vpc, port, addresses })
    }
}

/// A prefix that has addresses which are forwarded.
fn forwardable(s: &str) -> Result<filter::Prefix, String> {
    let prefix = filter::Prefix::from_str(s)?;
    match crate::prefix::prefix_fault(prefix.addr, prefix.len) {
        Some(why) => Err(format!("`{s}` cannot be used: {why}")),
        None => Ok(prefix),
    }
}
