// SPDX-License-Identifier: Apache-2.0
//! The part of a change set that touches few objects: the gateway, NCs, VPCs and peerings.

use super::apply::Tx;
use super::state::{NcState, PeeringState};
use super::Undo;
use crate::documents::Origin;
use crate::error::Problem;
use crate::kinds::*;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

/// What came of a deletion.
enum Deletion {
    Done,
    Absent,
    StillUsed(String),
}

impl<'a> Tx<'a> {
    /// Deletes what the set names of these kinds: peerings first (also those that change), then NCs, then VPCs.
    pub(super) fn delete_structure(&mut self) {
        let docs = self.docs;
        for item in &docs.puts {
            if let Object::Peering(p) = &item.object {
                self.take_out_peering(p, &item.origin);
            }
        }
        for phase in [Kind::Peering, Kind::Gateway, Kind::Nc, Kind::Vpc] {
            for (kind, name, origin) in docs.deletes.iter().filter(|d| d.0 == phase) {
                let done = match kind {
                    Kind::Peering => self.delete_peering(name, origin),
                    Kind::Gateway => self.delete_gateway(name),
                    Kind::Nc => self.delete_nc(name),
                    _ => self.delete_vpc(name),
                };
                match done {
                    Deletion::Done => self.tally(*kind).removed += 1,
                    Deletion::Absent => self.fail(origin, *kind, name.clone(), "", Problem::NothingToDelete),
                    Deletion::StillUsed(by) => self.fail(origin, *kind, name.clone(), "", Problem::StillUsed { by }),
                }
            }
        }
    }

    fn delete_gateway(&mut self, name: &Name) -> Deletion {
        if self.model.gateway.as_ref().is_none_or(|g| g.name != *name) {
            return Deletion::Absent;
        }
        self.log.push(Undo::Gateway(self.model.gateway.take()));
        Deletion::Done
    }

    /// Peer routes that lose their peering are counted at the end: another may have joined the two VPCs by then.
    fn delete_peering(&mut self, name: &Name, origin: &'a Origin) -> Deletion {
        let Some(pair) = self.model.peerings.get(name).map(|p| p.pair) else { return Deletion::Absent };
        self.model.remove_peering(name, &mut self.log);
        self.parted.push((pair, name.clone(), origin));
        Deletion::Done
    }

    /// The peer routes between two VPCs, in words.
    fn peering_users(&self, pair: [u32; 2]) -> Option<String> {
        let mut users = Vec::new();
        for (a, b) in [(pair[0], pair[1]), (pair[1], pair[0])] {
            if !self.model.vpcs.is_live(a) {
                continue;
            }
            let vpc = self.model.vpc(a);
            let routes = vpc.routes_to(b);
            if routes > 0 {
                users.push(format!("{routes} peer route{} of Vpc `{}`", plural(routes.into()), vpc.spec.name));
            }
        }
        (!users.is_empty()).then(|| users.join(" and "))
    }

    /// No peer route may be left between VPCs that the set has parted.
    pub(super) fn check_parted(&mut self) {
        for (pair, name, origin) in std::mem::take(&mut self.parted) {
            let joined = self.model.vpcs.is_live(pair[0]) && self.model.vpc(pair[0]).links.contains_key(&pair[1]);
            if let (false, Some(by)) = (joined, self.peering_users(pair)) {
                self.fail(origin, Kind::Peering, name, "", Problem::StillUsed { by });
            }
        }
    }

    fn delete_nc(&mut self, name: &Name) -> Deletion {
        let Some(id) = self.model.nc_names.get(name).copied() else { return Deletion::Absent };
        let vms = self.model.nc(id).vms;
        if vms > 0 {
            return Deletion::StillUsed(format!("{vms} Vm{}", plural(vms.into())));
        }
        self.model.remove_nc(id, &mut self.log);
        Deletion::Done
    }

    fn delete_vpc(&mut self, name: &Name) -> Deletion {
        let Some(id) = self.model.vpc_names.get(name).copied() else { return Deletion::Absent };
        self.release_listing(id);
        let vpc = self.model.vpc(id);
        let mut users = Vec::new();
        for (n, what) in [(vpc.vms.len(), "Vm"), (vpc.routes_len(), "Route")] {
            if n > 0 {
                users.push(format!("{n} {what}{}", plural(n as u64)));
            }
        }
        let parted = self.parted.iter().filter(|(pair, ..)| pair.contains(&id));
        users.extend(parted.filter_map(|(pair, ..)| self.peering_users(*pair)));
        users.extend(vpc.links.values().map(|l| format!("Peering `{}`", l.peering)));
        let name = &vpc.spec.name;
        let goes = |s: &Snat| self.docs.deletes.iter().any(|d| d.0 == Kind::Snat && d.1 == s.name);
        let snats = self.model.named.snats.values().filter(|s| s.vpc == *name && !goes(s));
        users.extend(snats.map(|s| format!("Snat `{}`", s.name)));
        users.extend(vpc.extra_ncs.iter().map(|n| format!("Nc `{}` (spec.vpcs)", self.model.nc(*n).name)));
        if !users.is_empty() {
            users.truncate(8);
            return Deletion::StillUsed(users.join(", "));
        }
        self.model.remove_vpc(id, &mut self.log);
        Deletion::Done
    }

    /// NCs that the set changes so that they no longer list a VPC let go of it before it is deleted.
    fn release_listing(&mut self, vpc: u32) {
        let docs = self.docs;
        let name = self.model.vpc(vpc).spec.name.clone();
        for nc in self.model.vpc(vpc).extra_ncs.clone() {
            let state = self.model.nc(nc).clone();
            let drops = docs.puts.iter().any(|i| match &i.object {
                Object::Nc(n) => n.name == state.name && !n.vpcs.contains(&name),
                _ => false,
            });
            if drops {
                let vpcs = state.vpcs.iter().copied().filter(|v| *v != vpc).collect();
                self.model.change_nc(nc, NcState { vpcs, ..state }, &mut self.log);
            }
        }
    }

    /// Takes out a peering that the set changes.
    fn take_out_peering(&mut self, p: &Peering, origin: &'a Origin) {
        let Some(there) = self.model.peerings.get(&p.name) else { return };
        let pair = there.pair;
        if self.model.peering_object(&p.name, there) == *p {
            return;
        }
        self.model.remove_peering(&p.name, &mut self.log);
        self.parted.push((pair, p.name.clone(), origin));
        self.replaced_peerings.insert(p.name.clone());
    }

    /// Creates and changes what the set describes of these kinds.
    pub(super) fn put_structure(&mut self) {
        let docs = self.docs;
        for item in &docs.puts {
            match &item.object {
                Object::Gateway(g) => self.put_gateway(g, &item.origin),
                Object::Vpc(v) => self.put_vpc(v, &item.origin),
                _ => {}
            }
        }
        let described = self.described_addresses();
        for item in &docs.puts {
            if let Object::Nc(nc) = &item.object {
                self.put_nc(nc, &described, &item.origin);
            }
        }
        for item in &docs.puts {
            if let Object::Peering(p) = &item.object {
                self.put_peering(p, &item.origin);
            }
        }
        for item in &docs.puts {
            if let Object::Vpc(v) = &item.object {
                self.check_pending(v, &item.origin);
            }
        }
    }

    fn put_gateway(&mut self, g: &Gateway, origin: &Origin) {
        match self.model.gateway.as_deref() {
            Some(old) if old == g => return self.tally(Kind::Gateway).unchanged += 1,
            Some(old) if old.name != g.name => {
                let first = old.name.to_string();
                return self.fail(
                    origin,
                    Kind::Gateway,
                    g.name.clone(),
                    "metadata.name",
                    Problem::SecondGateway { first },
                );
            }
            Some(_) => self.tally(Kind::Gateway).changed += 1,
            None => self.tally(Kind::Gateway).added += 1,
        }
        let old = self.model.gateway.replace(Box::new(g.clone()));
        self.log.push(Undo::Gateway(old));
    }

    fn put_vpc(&mut self, v: &Vpc, origin: &'a Origin) {
        let fail = |tx: &mut Self, field: &str, problem| tx.fail(origin, Kind::Vpc, v.name.clone(), field, problem);
        let owner = self.model.vnis.get(&v.vni).map(|id| self.model.vpc(*id).spec.name.clone());
        let Some(id) = self.model.vpc_names.get(&v.name).copied() else {
            if let Some(by) = owner {
                return fail(self, "spec.vni", Problem::VniTaken { vni: v.vni, by: by.to_string() });
            }
            self.count_added(Kind::Vpc, || v.name.clone(), origin);
            return self.model.add_vpc(v.clone(), &mut self.log);
        };
        let state = self.model.vpc(id);
        if state.spec == *v {
            return self.tally(Kind::Vpc).unchanged += 1;
        }
        let mut problems = Vec::new();
        if state.spec.vni != v.vni {
            problems.push(("spec.vni".to_string(), Problem::VniChanged { old: state.spec.vni, new: v.vni }));
        }
        let words = |mac| self.model.vm_object(id, mac, &state.vms[&mac]);
        for (i, a) in v.gateways.iter().enumerate() {
            if let Some(mac) = state.owner(*a) {
                let by = format!("Vm `{}`", Object::Vm(words(mac)).name());
                let taken = Problem::AddressTaken { address: a.to_string(), by };
                problems.push((format!("spec.gateway.addresses[{i}]"), taken));
            }
        }
        if state.vms.contains_key(&v.gateway_mac) {
            let by = format!("Vm `{}`", Object::Vm(words(v.gateway_mac)).name());
            problems
                .push(("spec.gateway.mac".into(), Problem::AddressTaken { address: v.gateway_mac.to_string(), by }));
        }
        let agreed: HashSet<&Name> = v.peerings.iter().collect();
        for link in state.links.values().filter(|l| !agreed.contains(&l.peering)) {
            let by = format!("Peering `{}`, to which this Vpc must agree", link.peering);
            problems.push(("spec.peerings".into(), Problem::StillUsed { by }));
        }
        if problems.is_empty() {
            self.tally(Kind::Vpc).changed += 1;
            return self.model.change_vpc(id, v.clone(), &mut self.log);
        }
        problems.into_iter().for_each(|(field, p)| fail(self, &field, p));
    }

    /// The addresses that this set gives to NCs.
    fn described_addresses(&self) -> HashMap<&'a str, IpAddr> {
        let docs = self.docs;
        let ncs = docs.puts.iter().filter_map(|i| match &i.object {
            Object::Nc(nc) => Some((&*nc.name, nc.address)),
            _ => None,
        });
        ncs.collect()
    }

    fn put_nc(&mut self, nc: &Nc, described: &HashMap<&str, IpAddr>, origin: &'a Origin) {
        let existing = self.model.nc_names.get(&nc.name).copied();
        if existing.is_some_and(|id| self.model.nc_object(id) == *nc) {
            return self.tally(Kind::Nc).unchanged += 1;
        }
        let other = self.model.nc_addrs.get(&nc.address).copied().filter(|id| Some(*id) != existing);
        let mut taken = false;
        if let Some(other) = other {
            let by = self.model.nc(other).name.clone();
            // The owner may itself be about to get another address.
            if described.get(&*by).is_none_or(|a| *a == nc.address) {
                let problem = Problem::AddressTaken { address: nc.address.to_string(), by: format!("Nc `{by}`") };
                self.fail(origin, Kind::Nc, nc.name.clone(), "spec.address", problem);
                taken = true;
            }
        }
        let mut vpcs = Vec::new();
        for (i, name) in nc.vpcs.iter().enumerate() {
            match self.model.vpc_names.get(name) {
                Some(id) => vpcs.push(*id),
                None => self.unknown(origin, (Kind::Nc, nc.name.clone()), &format!("spec.vpcs[{i}]"), Kind::Vpc, name),
            }
        }
        let (name, address, labels) = (nc.name.clone(), nc.address, nc.labels.clone());
        match existing {
            _ if taken => {}
            Some(id) => {
                let vms = self.model.nc(id).vms;
                self.tally(Kind::Nc).changed += 1;
                self.model.change_nc(id, NcState { name, address, vpcs, vms, labels }, &mut self.log);
            }
            None => {
                self.count_added(Kind::Nc, || name.clone(), origin);
                self.model.add_nc(NcState { name, address, vpcs, vms: 0, labels }, &mut self.log);
            }
        }
    }

    fn put_peering(&mut self, p: &Peering, origin: &Origin) {
        let own = (Kind::Peering, p.name.clone());
        if self.model.peerings.contains_key(&p.name) {
            return self.tally(Kind::Peering).unchanged += 1;
        }
        let mut ids = Vec::new();
        for (i, name) in p.vpcs.iter().enumerate() {
            let field = format!("spec.vpcs[{i}]");
            let Some(id) = self.model.vpc_names.get(name).copied() else {
                self.unknown(origin, own.clone(), &field, Kind::Vpc, name);
                continue;
            };
            ids.push(id);
            let agrees = agrees(&mut self.consents, id, &self.model.vpc(id).spec.peerings, &p.name);
            let unsure = self.failed.contains(&(Kind::Vpc, name.clone()))
                || self.is_unsure(Kind::Peering, &p.name, "metadata.name");
            if !agrees && !unsure {
                let problem = Problem::NoConsent { vpc: name.to_string(), peering: p.name.to_string() };
                self.fail(origin, own.0, own.1.clone(), &field, problem);
            }
        }
        let [a, b] = ids[..] else { return };
        let taken = self.model.vpc(a).links.get(&b).map(|l| l.peering.to_string());
        if let Some(by) = taken {
            let [a, b] = p.vpcs.clone().map(|n| n.to_string());
            return self.fail(origin, own.0, own.1, "spec.vpcs", Problem::PairTaken { a, b, by });
        }
        if self.failed.contains(&own) {
            return;
        }
        match self.replaced_peerings.contains(&p.name) {
            true => self.tally(Kind::Peering).changed += 1,
            false => self.tally(Kind::Peering).added += 1,
        }
        let state = PeeringState { pair: [a, b], labels: p.labels.clone() };
        self.model.add_peering(p.name.clone(), state, &mut self.log);
    }

    /// Warns of agreements to peerings that do not exist.
    fn check_pending(&mut self, v: &Vpc, origin: &Origin) {
        for (i, name) in v.peerings.iter().enumerate() {
            if !self.model.peerings.contains_key(name) && !self.failed.contains(&(Kind::Peering, name.clone())) {
                let problem = Problem::PeeringPending { name: name.to_string() };
                self.warn(origin, Kind::Vpc, v.name.clone(), &format!("spec.peerings[{i}]"), problem);
            }
        }
    }
}

/// Whether a VPC's list names a peering. Long lists, of hubs, are made a set once.
pub(crate) fn agrees(sets: &mut HashMap<u32, HashSet<Name>>, vpc: u32, list: &[Name], peering: &Name) -> bool {
    if list.len() <= 32 {
        return list.contains(peering);
    }
    sets.entry(vpc).or_insert_with(|| list.iter().cloned().collect()).contains(peering)
}

fn plural(n: u64) -> &'static str {
    if n == 1 {
        ""
    } else {
        "s"
    }
}
