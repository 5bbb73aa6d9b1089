// SPDX-License-Identifier: Apache-2.0
//! Documents about security groups. Ranges upside down and rules that never match are found where the rules are compiled, when the
//! document is applied.

use super::Doc;
use crate::broken::stand_ins;
use crate::error::Problem;
use crate::object::*;
use crate::schema;
use filter::{GroupSpec, Rule, GROUPS_OF_MEMBER, GROUP_RULES_MAX};
use std::str::FromStr;

impl Doc<'_> {
    pub(super) fn security_group(&mut self) -> Option<SecurityGroup> {
        self.check_mapping("metadata");
        self.check_mapping("spec");
        let name = self.own_name();
        let mut rules = self.list("spec.rules", GROUP_RULES_MAX, Rule::from_str);
        if !self.choice("spec.stateful", &[("true", true), ("false", false)], true) {
            rules.iter_mut().for_each(|r| r.stateful = !r.allow);
        }
        Some(SecurityGroup::new(GroupSpec { name, rules }))
    }

    pub(super) fn security_binding(&mut self) -> Option<SecurityBinding> {
        self.check_mapping("metadata");
        self.check_mapping("spec");
        let name = self.own_name();
        let vpc = self.name_at("spec.vpc").unwrap_or_else(stand_ins::name);
        let vms = self.list("spec.vms", 65_536, |s| check_vm_name(s).map(|()| s.to_string()));
        let vms: Vec<Name> = vms.iter().map(|s| self.names.get(s)).collect();
        let servers = self.name_list("spec.servers", 65_536);
        let prefixes = self.list("spec.prefixes", 65_536, filter::Prefix::from_str);
        let groups = self.name_list("spec.groups", GROUPS_OF_MEMBER);
        for path in ["spec.vms", "spec.groups"] {
            let others: &[&str] = if path == "spec.vms" { &["spec.servers", "spec.prefixes"] } else { &[] };
            if self.node(path).is_none() && others.iter().all(|p| self.node(p).is_none()) {
                let at = self.place_of(path);
                self.error(at, path, Problem::Missing, schema::allowed(self.kind, path));
            }
        }
        Some(SecurityBinding { name, vpc, vms, servers, prefixes, groups })
    }
}
