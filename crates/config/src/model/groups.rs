// SPDX-License-Identifier: Apache-2.0
//! Security groups in the model: the rules that join them with each other and with VMs, and what the filter is told.

use super::internet::Fault;
use super::Model;
use crate::error::Problem;
use crate::object::*;
use filter::{GroupSpec, Member, RULES_MAX};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use tables::Vni;

/// What the filter is told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FilterPlan {
    /// Groups, by name.
    pub groups: Vec<Arc<GroupSpec>>,
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
            if let Some(same) = old.get(vni).filter(|o| ***o == *members) {
                *members = (*same).clone();
            }
        }
    }
}

fn host(addr: IpAddr) -> filter::Prefix {
    filter::Prefix { addr, len: if addr.is_ipv4() { 32 } else { 128 } }
}

impl Model {
    /// Every rule that joins groups and bindings with the rest.
    pub(super) fn group_faults(&self, out: &mut Vec<Fault>) {
        let internet = &self.internet;
        let rules: usize = internet.groups.values().map(|g| g.spec.rules.len()).sum();
        if let (true, Some(name)) = (rules > RULES_MAX, internet.groups.keys().last()) {
            let problem = Problem::TooManyRules { rules: rules as u64, limit: RULES_MAX as u64 };
            out.push((Kind::SecurityGroup, name.clone(), "spec.rules".into(), problem));
        }
        for (name, g) in &internet.groups {
            for (i, other) in g.references.iter().filter(|(_, n)| !internet.groups.contains_key(n)) {
                let problem = Problem::UnknownReference { kind: Kind::SecurityGroup, name: other.to_string() };
                out.push((Kind::SecurityGroup, name.clone(), format!("spec.rules[{i}]"), problem));
            }
        }
        for b in internet.bindings.values() {
            self.binding_faults(b, out);
        }
    }

    fn binding_faults(&self, b: &SecurityBinding, out: &mut Vec<Fault>) {
        let mut fault = |field: String, problem| out.push((Kind::SecurityBinding, b.name.clone(), field, problem));
        let unknown = |kind: Kind, name: &Name| Problem::UnknownReference { kind, name: name.to_string() };
        for (i, g) in b.groups.iter().enumerate().filter(|(_, g)| !self.internet.groups.contains_key(*g)) {
            fault(format!("spec.groups[{i}]"), unknown(Kind::SecurityGroup, g));
        }
        let Some(&vpc) = self.vpc_names.get(&b.vpc) else {
            return fault("spec.vpc".into(), unknown(Kind::Vpc, &b.vpc));
        };
        for (i, vm) in b.vms.iter().enumerate() {
            match self.find_vm(vm) {
                None => fault(format!("spec.vms[{i}]"), unknown(Kind::Vm, vm)),
                Some((v, _)) if v != vpc => {
                    let problem = Problem::VmElsewhere { vm: vm.to_string(), vpc: b.vpc.to_string() };
                    fault(format!("spec.vms[{i}]"), problem);
                }
                Some(_) => {}
            }
        }
        for (i, name) in b.servers.iter().enumerate() {
            match self.internet.servers.get(name) {
                None => fault(format!("spec.servers[{i}]"), unknown(Kind::Server, name)),
                Some(s) if s.vpc != b.vpc => {
                    let problem = Problem::ServerElsewhere { server: name.to_string(), vpc: b.vpc.to_string() };
                    fault(format!("spec.servers[{i}]"), problem);
                }
                Some(_) => {}
            }
        }
    }

    /// The plan for the configuration as it is.
    pub fn filter(&self) -> FilterPlan {
        let mut members: BTreeMap<Vni, BTreeMap<(u8, IpAddr), Vec<Name>>> = BTreeMap::new();
        for b in self.internet.bindings.values() {
            let Some(&vpc) = self.vpc_names.get(&b.vpc) else { continue };
            let of_vpc = members.entry(self.vpc(vpc).spec.vni).or_default();
            let vms = b.vms.iter().filter_map(|vm| self.find_vm(vm));
            let addresses = vms.filter_map(|(v, mac)| self.vpc(v).vms.get(&mac)).flat_map(|vm| vm.addresses.iter());
            let servers = b.servers.iter().filter_map(|name| self.internet.servers.get(name));
            let servers = servers.flat_map(|s| s.addresses.iter().copied());
            for p in addresses.map(|a| host(*a)).chain(servers).chain(b.prefixes.iter().copied()) {
                let groups = of_vpc.entry((p.len, p.addr)).or_default();
                groups.extend(b.groups.iter().filter(|g| !groups.contains(g)).cloned().collect::<Vec<_>>());
            }
        }
        let mut plan = FilterPlan::default();
        plan.groups = self.internet.groups.values().map(|g| g.spec.clone()).collect();
        for (vni, of_vpc) in members {
            let list = of_vpc.into_iter().map(|((len, addr), groups)| Member { prefix: filter::Prefix { addr, len }, groups });
            plan.members.push((vni, Arc::new(list.collect())));
        }
        self.versions(&mut plan);
        plan
    }

    /// What a VPC's connections are judged by: the groups of its members, these members, and if a rule names a group, all of them.
    fn versions(&self, plan: &mut FilterPlan) {
        let mut of_vpc: Vec<(Vni, u64, bool)> = Vec::new();
        for (vni, members) in &plan.members {
            let mut hash = DefaultHasher::new();
            members.hash(&mut hash);
            let mut names: Vec<&Name> = members.iter().flat_map(|m| &m.groups).collect();
            names.sort_unstable();
            names.dedup();
            let mut refers = false;
            for g in names.iter().filter_map(|n| self.internet.groups.get(*n)) {
                g.digest.hash(&mut hash);
                refers |= !g.references.is_empty();
            }
            of_vpc.push((*vni, hash.finish(), refers));
        }
        let all = of_vpc.iter().fold(0u64, |sum, (_, hash, _)| sum.wrapping_add(*hash));
        plan.versions = of_vpc.iter().map(|(vni, hash, refers)| (*vni, hash ^ if *refers { all } else { 0 })).collect();
    }
}
