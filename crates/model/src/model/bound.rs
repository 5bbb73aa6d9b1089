// SPDX-License-Identifier: Apache-2.0
//! Who is bound to which groups, VPC by VPC, with every name looked up. What a change does not touch is kept from one change to the
//! next: the VMs of a VPC are looked up again only when its bindings, VMs or servers, or the VPC itself, have changed.

use super::Model;
use crate::kinds::*;
use crate::prefix::Prefix;
use abi::Vni;
use filter::Member;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

/// The members of a VPC.
#[derive(Clone, Debug, Default)]
pub(crate) struct OfVpc {
    /// Each address and prefix with its groups.
    pub members: Arc<Vec<Member>>,
    /// A number that differs if they do.
    pub digest: u64,
    /// The groups that they have, each once, in order.
    pub groups: Arc<[Name]>,
}

/// What is known of the VPCs that bindings name, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bound {
    /// None: something has changed since it was known.
    of: HashMap<Name, Option<OfVpc>>,
    lost_groups: bool,
}

impl Bound {
    /// A VPC, or one of its VMs, changes.
    pub fn touch(&mut self, vpc: &Name) {
        if let Some(known) = self.of.get_mut(vpc) {
            *known = None;
        }
    }

    /// An object comes, is replaced or goes.
    pub fn changes(&mut self, object: &Object) {
        match object {
            Object::SecurityBinding(b) => drop(self.of.insert(b.vpc.clone(), None)),
            Object::Server(s) => self.touch(&s.vpc),
            _ => {}
        }
    }

    /// An object goes.
    pub fn goes(&mut self, object: &Object) {
        self.changes(object);
        self.lost_groups |= object.kind() == Kind::SecurityGroup;
    }

    /// Whether nothing has changed about a VPC since all that its bindings name was found.
    pub fn is_known(&self, vpc: &Name) -> bool {
        matches!(self.of.get(vpc), Some(Some(_)))
    }

    /// Whether a group has gone since then.
    pub fn lost_groups(&self) -> bool {
        self.lost_groups
    }
}

impl Model {
    /// At the end of a change in which nothing was wrong: what it touched is known again.
    pub(crate) fn settle_bound(&mut self) {
        self.bound.lost_groups = false;
        if self.bound.of.values().all(Option::is_some) {
            return;
        }
        let found = self.look_up(|vpc| !self.bound.is_known(vpc));
        self.bound.of.retain(|_, known| known.is_some());
        self.bound.of.extend(found.into_iter().map(|(vpc, of)| (vpc, Some(of))));
    }

    /// The members of every VPC that has some, by VNI.
    pub(super) fn members(&self) -> Vec<(Vni, OfVpc)> {
        let mut all = self.look_up(|vpc| !self.bound.is_known(vpc));
        let known_vpcs = self.bound.of.iter().filter_map(|(vpc, known)| Some((vpc.clone(), known.clone()?)));
        all.extend(known_vpcs);
        let vni = |vpc: &Name| self.vpc_names.get(vpc).map(|id| self.vpc(*id).spec.vni);
        let mut list: Vec<_> = all.into_iter().filter_map(|(vpc, of)| Some((vni(&vpc)?, of))).collect();
        list.sort_unstable_by_key(|(vni, _)| *vni);
        list
    }

    /// Looks up what the bindings of some VPCs name.
    fn look_up(&self, of: impl Fn(&Name) -> bool) -> BTreeMap<Name, OfVpc> {
        let mut members: BTreeMap<&Name, BTreeMap<(u8, IpAddr), Vec<Name>>> = BTreeMap::new();
        for b in self.named.bindings.values().filter(|b| of(&b.vpc)) {
            let of_vpc = members.entry(&b.vpc).or_default();
            let vms = b.vms.iter().filter_map(|vm| self.find_vm(vm));
            let addresses = vms.filter_map(|(v, mac)| self.vpc(v).vms.get(&mac)).flat_map(|vm| vm.addresses.iter());
            let servers = b.servers.iter().filter_map(|name| self.named.servers.get(name));
            let servers = servers.flat_map(|s| s.addresses.iter().copied());
            for p in addresses.map(|a| Prefix::from(*a)).chain(servers).chain(b.prefixes.iter().copied()) {
                let groups = of_vpc.entry((p.prefix_len(), p.addr())).or_default();
                groups.extend(b.groups.iter().filter(|g| !groups.contains(g)).cloned().collect::<Vec<_>>());
            }
        }
        members.into_iter().map(|(vpc, of)| (vpc.clone(), OfVpc::new(of))).collect()
    }
}

impl OfVpc {
    fn new(members: BTreeMap<(u8, IpAddr), Vec<Name>>) -> OfVpc {
        let list =
            members.into_iter().map(|((len, addr), groups)| Member { prefix: Prefix::new_assert(addr, len), groups });
        let members: Vec<Member> = list.collect();
        let mut hash = DefaultHasher::new();
        members.hash(&mut hash);
        let mut groups: Vec<Name> = members.iter().flat_map(|m| m.groups.iter().cloned()).collect();
        groups.sort_unstable();
        groups.dedup();
        OfVpc { members: Arc::new(members), digest: hash.finish(), groups: groups.into() }
    }
}
