// SPDX-License-Identifier: Apache-2.0
//! Documents about security groups. What is wrong with a group by itself is told here: ranges upside down, rules that never match.

use super::Doc;
use crate::error::Problem;
use crate::object::*;
use crate::schema;
use crate::yaml::Value;
use crate::ERRORS_MAX;
use filter::{Fault, GroupSpec, Rule, GROUPS_OF_MEMBER, GROUP_RULES_MAX};
use std::str::FromStr;

impl Doc<'_> {
    pub(super) fn security_group(&mut self) -> Option<SecurityGroup> {
        self.check_mapping("metadata");
        self.check_mapping("spec");
        let name = self.name_at("metadata.name");
        let before = self.errors.len();
        let mut rules = self.list("spec.rules", GROUP_RULES_MAX, Rule::from_str);
        if !self.choice("spec.stateful", &[("true", true), ("false", false)], true) {
            rules.iter_mut().for_each(|r| r.stateful = !r.allow);
        }
        let spec = GroupSpec { name: name?, rules };
        if self.errors.len() == before {
            self.rule_faults(&spec);
        }
        Some(SecurityGroup::new(spec))
    }

    fn rule_faults(&mut self, spec: &GroupSpec) {
        for fault in spec.faults(ERRORS_MAX) {
            let (i, problem) = match fault {
                Fault::UpsideDown(i) => (i, Problem::Value(format!("`{}` ends before it begins", spec.rules[i]))),
                Fault::Unreachable(i, by) => {
                    let by = by.map(|by| format!("spec.rules[{by}], `{}`", spec.rules[by]));
                    let by = by.unwrap_or_else(|| "several rules that are asked before it".into());
                    (i, Problem::NeverMatches { rule: spec.rules[i].to_string(), by })
                }
                Fault::TooMany(n) => (0, Problem::Value(format!("has {n} entries"))),
                Fault::UnknownGroup(..) => continue,
            };
            let field = format!("spec.rules[{i}]");
            let list = self.node("spec.rules");
            let item = list.and_then(|n| if let Value::List(items) = &n.value { items.get(i) } else { None });
            let at = item.or(list).map_or(self.root.at, |n| n.at);
            self.error(at, &field, problem, schema::allowed(self.kind, "spec.rules"));
        }
    }

    pub(super) fn security_binding(&mut self) -> Option<SecurityBinding> {
        self.check_mapping("metadata");
        self.check_mapping("spec");
        let name = self.name_at("metadata.name");
        let vpc = self.name_at("spec.vpc");
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
        Some(SecurityBinding { name: name?, vpc: vpc?, vms, servers, prefixes, groups })
    }
}
