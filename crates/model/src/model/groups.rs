// SPDX-License-Identifier: Apache-2.0
//! Security groups in the model: the rules that join them with each other and with VMs, and what the filter is told.

use super::apply::Tx;
use super::bound::OfVpc;
use super::named::Fault;
use super::Model;
use crate::documents::Origin;
use crate::error::Problem;
use crate::kinds::*;
use abi::Vni;
use filter::{GroupSpec, Member, Ruleset, RULES_MAX};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// What the filter is told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FilterPlan {
    /// Groups, by name.
    pub groups: Vec<Arc<Ruleset>>,
    /// Members of each VPC, by VNI.
    pub members: Vec<(Vni, Arc<Vec<Member>>)>,
    /// A number for each VPC with members, which differs when its sessions must be judged again.
    pub versions: BTreeMap<Vni, u64>,
}

impl FilterPlan {
    /// Whether it is the same as another, by its numbers.
    pub fn same(&self, other: &FilterPlan) -> bool {
        self.versions == other.versions
            && self.groups.len() == other.groups.len()
            && self.groups.iter().zip(&other.groups).all(|(a, b)| Arc::ptr_eq(a, b))
    }

    /// Takes the lists of members that are the same from the plan before, so that they need not be prepared again.
    pub fn keep(&mut self, before: &FilterPlan) {
        let old: BTreeMap<Vni, &Arc<Vec<Member>>> = before.members.iter().map(|(vni, m)| (*vni, m)).collect();
        for (vni, members) in &mut self.members {
            if let Some(same) = old.get(vni).filter(|o| !Arc::ptr_eq(o, members) && ***o == *members) {
                *members = (*same).clone();
            }
        }
    }
}

impl Model {
    /// Every rule that joins groups and bindings with the rest.
    pub(super) fn group_faults(&self, out: &mut Vec<Fault>) {
        let named = &self.named;
        let rules: usize = named.groups.values().map(|g| g.spec.rules.len()).sum();
        if let (true, Some(name)) = (rules > RULES_MAX, named.groups.keys().last()) {
            let problem = Problem::TooManyRules { rules: rules as u64, limit: RULES_MAX as u64 };
            out.push((Kind::SecurityGroup, name.clone(), "spec.rules".into(), problem));
        }
        for (name, g) in &named.groups {
            for (i, other) in g.references.iter().filter(|(_, n)| !named.groups.contains_key(n)) {
                let problem = Problem::UnknownReference { kind: Kind::SecurityGroup, name: other.to_string() };
                out.push((Kind::SecurityGroup, name.clone(), format!("spec.rules[{i}]"), problem));
            }
        }
        // Of a VPC of which nothing has changed everything is there; but for groups, which belong to none.
        for b in named.bindings.values() {
            if !self.bound.is_known(&b.vpc) {
                self.binding_faults(b, out);
            } else if self.bound.lost_groups() {
                self.group_names(b, out);
            }
        }
    }

    fn group_names(&self, b: &SecurityBinding, out: &mut Vec<Fault>) {
        for (i, g) in b.groups.iter().enumerate().filter(|(_, g)| !self.named.groups.contains_key(*g)) {
            let problem = Problem::UnknownReference { kind: Kind::SecurityGroup, name: g.to_string() };
            out.push((Kind::SecurityBinding, b.name.clone(), format!("spec.groups[{i}]"), problem));
        }
    }

    fn binding_faults(&self, b: &SecurityBinding, out: &mut Vec<Fault>) {
        self.group_names(b, out);
        let mut fault = |field: String, problem| out.push((Kind::SecurityBinding, b.name.clone(), field, problem));
        let unknown = |kind: Kind, name: &Name| Problem::UnknownReference { kind, name: name.to_string() };
        let vpc = self.vpc_names.get(&b.vpc).copied();
        for (i, vm) in b.vms.iter().enumerate() {
            match self.find_vm(vm) {
                None => fault(format!("spec.vms[{i}]"), unknown(Kind::Vm, vm)),
                Some((v, _)) if vpc.is_some_and(|vpc| v != vpc) => {
                    let problem = Problem::VmElsewhere { vm: vm.to_string(), vpc: b.vpc.to_string() };
                    fault(format!("spec.vms[{i}]"), problem);
                }
                Some(_) => {}
            }
        }
        for (i, name) in b.servers.iter().enumerate() {
            match self.named.servers.get(name) {
                None => fault(format!("spec.servers[{i}]"), unknown(Kind::Server, name)),
                Some(s) if s.vpc != b.vpc && vpc.is_some() => {
                    let problem = Problem::ServerElsewhere { server: name.to_string(), vpc: b.vpc.to_string() };
                    fault(format!("spec.servers[{i}]"), problem);
                }
                Some(_) => {}
            }
        }
    }

    /// The plan for the configuration as it is.
    pub fn filter(&self) -> FilterPlan {
        let groups = self.named.groups.values().map(|g| g.ruleset()).collect();
        let of_vpcs = self.members();
        let versions = self.versions(&of_vpcs);
        let members = of_vpcs.into_iter().map(|(vni, m)| (vni, m.members)).collect();
        FilterPlan { groups, members, versions }
    }

    /// What a VPC's connections are judged by: the groups of its members, these members, and if a rule names a group, all of them.
    fn versions(&self, members: &[(Vni, OfVpc)]) -> BTreeMap<Vni, u64> {
        let of_vpc: Vec<(Vni, u64, bool)> = members
            .iter()
            .map(|(vni, of)| {
                let (mut hash, mut refers) = (DefaultHasher::new(), false);
                of.digest.hash(&mut hash);
                for g in of.groups.iter().filter_map(|n| self.named.groups.get(n)) {
                    g.ruleset().digest().hash(&mut hash);
                    refers |= !g.references.is_empty();
                }
                (*vni, hash.finish(), refers)
            })
            .collect();
        let all = of_vpc.iter().fold(0u64, |sum, (_, hash, _)| sum.wrapping_add(*hash));
        of_vpc.iter().map(|(vni, hash, refers)| (*vni, hash ^ if *refers { all } else { 0 })).collect()
    }
}

impl Tx<'_> {
    /// Tells what is wrong with the rules of a group.
    pub(super) fn rule_faults(&mut self, origin: &Origin, spec: &GroupSpec, faults: Vec<filter::Fault>) {
        let entry = |tx: &Self, i| tx.entry(Kind::SecurityGroup, &spec.name, "spec.rules", i);
        for fault in faults {
            let (i, problem) = match fault {
                filter::Fault::UpsideDown(i) => {
                    (i, Problem::Value(format!("`{}` ends before it begins", spec.rules[i])))
                }
                filter::Fault::Unreachable(i, by) => {
                    let by = by.map(|by| format!("{}, `{}`", entry(self, by), spec.rules[by]));
                    let by = by.unwrap_or_else(|| "several rules that are asked before it".into());
                    (i, Problem::NeverMatches { rule: spec.rules[i].to_string(), by })
                }
                filter::Fault::TooMany(n) => (0, Problem::Value(format!("has {n} entries"))),
                filter::Fault::UnknownGroup(..) => continue,
            };
            self.fail(origin, Kind::SecurityGroup, spec.name.clone(), &format!("spec.rules[{i}]"), problem);
        }
    }
}
