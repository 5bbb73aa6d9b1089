// SPDX-License-Identifier: Apache-2.0
//! The steps that change a model, each with its inverse.
//!
//! Every step keeps all indices and counts in agreement, so that any sequence of steps taken back in reverse order
//! restores the model exactly.

use super::state::{Link, NcState, PeeringState, RouteState, VmState, VpcState};
use super::Model;
use crate::kinds::*;
use crate::prefix::{Mac, Prefix};

/// One step taken, with what is needed to take it back.
#[derive(Clone, Debug)]
pub(crate) enum Undo {
    Gateway(Option<Box<Gateway>>),
    NcAdded(u32),
    NcRemoved(u32, NcState),
    NcChanged(u32, NcState),
    VpcAdded(u32),
    VpcRemoved(u32, Box<VpcState>),
    VpcChanged(u32, Box<Vpc>),
    PeeringAdded(Name),
    PeeringRemoved(Name, PeeringState),
    VmAdded(u32, Mac),
    VmRemoved(u32, Mac, VmState),
    RouteAdded(u32, Prefix),
    RouteRemoved(u32, Prefix, RouteState),
    /// An object that is held by name came, changed or went; what there was before.
    Named(Kind, Name, Option<Box<Object>>),
}

impl Model {
    pub(super) fn add_nc(&mut self, nc: NcState, log: &mut Vec<Undo>) {
        let id = self.ncs.insert(nc);
        self.index_nc(id);
        log.push(Undo::NcAdded(id));
    }

    /// Enters an NC into the indices and into the VPCs that it lists.
    fn index_nc(&mut self, id: u32) {
        let nc = self.ncs.at(id);
        self.nc_names.insert(nc.name.clone(), id);
        self.nc_addrs.insert(nc.address, id);
        self.tunnel_ends.take();
        for vpc in &nc.vpcs {
            self.vpcs.at_mut(*vpc).extra_ncs.insert(id);
        }
    }

    fn unindex_nc(&mut self, id: u32) {
        let nc = self.ncs.at(id);
        self.nc_names.remove(&nc.name);
        if self.nc_addrs.get(&nc.address) == Some(&id) {
            self.nc_addrs.remove(&nc.address);
        }
        self.tunnel_ends.take();
        for vpc in &nc.vpcs {
            self.vpcs.at_mut(*vpc).extra_ncs.remove(&id);
        }
    }

    pub(super) fn remove_nc(&mut self, id: u32, log: &mut Vec<Undo>) {
        self.unindex_nc(id);
        if let Some(nc) = self.ncs.remove(id) {
            log.push(Undo::NcRemoved(id, nc));
        }
    }

    /// Gives an NC another address and list of VPCs.
    pub(super) fn change_nc(&mut self, id: u32, nc: NcState, log: &mut Vec<Undo>) {
        self.unindex_nc(id);
        let old = std::mem::replace(self.ncs.at_mut(id), nc);
        self.index_nc(id);
        log.push(Undo::NcChanged(id, old));
    }

    pub(super) fn add_vpc(&mut self, spec: Vpc, log: &mut Vec<Undo>) {
        let (name, vni) = (spec.name.clone(), spec.vni);
        let id = self.vpcs.insert(Box::new(VpcState::new(spec)));
        self.bound.touch(&name);
        self.vpc_names.insert(name, id);
        self.vnis.insert(vni, id);
        log.push(Undo::VpcAdded(id));
    }

    /// Removes a VPC that has nothing left in it.
    pub(super) fn remove_vpc(&mut self, id: u32, log: &mut Vec<Undo>) {
        if let Some(vpc) = self.vpcs.remove(id) {
            self.bound.touch(&vpc.spec.name);
            self.vpc_names.remove(&vpc.spec.name);
            self.vnis.remove(&vpc.spec.vni);
            log.push(Undo::VpcRemoved(id, vpc));
        }
    }

    pub(super) fn change_vpc(&mut self, id: u32, spec: Vpc, log: &mut Vec<Undo>) {
        let old = std::mem::replace(&mut self.vpcs.at_mut(id).spec, spec);
        log.push(Undo::VpcChanged(id, Box::new(old)));
    }

    pub(super) fn add_peering(&mut self, name: Name, peering: PeeringState, log: &mut Vec<Undo>) {
        let pair = peering.pair;
        for (a, b) in [(pair[0], pair[1]), (pair[1], pair[0])] {
            let vpc = self.vpcs.at_mut(a);
            let routes = vpc.routes_to(b);
            vpc.links.insert(b, Link { peering: name.clone(), routes });
        }
        self.peerings.insert(name.clone(), peering);
        log.push(Undo::PeeringAdded(name));
    }

    /// Removes a peering. Peer routes that are left must be gone, or joined by another peering, when the change is done.
    pub(super) fn remove_peering(&mut self, name: &Name, log: &mut Vec<Undo>) {
        if let Some(peering) = self.peerings.remove(name) {
            let pair = peering.pair;
            for (a, b) in [(pair[0], pair[1]), (pair[1], pair[0])] {
                self.vpcs.at_mut(a).links.remove(&b);
            }
            log.push(Undo::PeeringRemoved(name.clone(), peering));
        }
    }

    pub(super) fn add_vm(&mut self, vpc: u32, mac: Mac, vm: VmState, log: &mut Vec<Undo>) {
        self.ncs.at_mut(vm.nc).vms += 1;
        if let Some(name) = &vm.name {
            self.vm_names.insert(name.clone(), (vpc, mac));
        }
        if vm.shape.is_some() {
            self.shaped.insert((vpc, mac));
        }
        let state = self.vpcs.at_mut(vpc);
        self.bound.touch(&state.spec.name);
        state.insert_vm(mac, vm);
        self.vms += 1;
        log.push(Undo::VmAdded(vpc, mac));
    }

    pub(super) fn remove_vm(&mut self, vpc: u32, mac: Mac, log: &mut Vec<Undo>) {
        let state = self.vpcs.at_mut(vpc);
        self.bound.touch(&state.spec.name);
        if let Some(vm) = state.remove_vm(mac) {
            self.ncs.at_mut(vm.nc).vms -= 1;
            if let Some(name) = &vm.name {
                self.vm_names.remove(name);
            }
            self.shaped.remove(&(vpc, mac));
            self.vms -= 1;
            log.push(Undo::VmRemoved(vpc, mac, vm));
        }
    }

    pub(super) fn add_route(&mut self, vpc: u32, prefix: Prefix, route: RouteState, log: &mut Vec<Undo>) {
        if let Some(name) = &route.name {
            self.route_names.insert(name.clone(), (vpc, prefix));
        }
        self.vpcs.at_mut(vpc).insert_route(prefix, route);
        self.routes += 1;
        log.push(Undo::RouteAdded(vpc, prefix));
    }

    pub(super) fn remove_route(&mut self, vpc: u32, prefix: Prefix, log: &mut Vec<Undo>) {
        if let Some(route) = self.vpcs.at_mut(vpc).remove_route(prefix) {
            if let Some(name) = &route.name {
                self.route_names.remove(name);
            }
            self.routes -= 1;
            log.push(Undo::RouteRemoved(vpc, prefix, route));
        }
    }

    /// Takes steps back, the last first.
    pub(super) fn undo(&mut self, log: Vec<Undo>) {
        let (mut redo, mut lent) = (Vec::new(), Vec::new());
        for step in log.into_iter().rev() {
            redo.clear();
            if let Undo::NcAdded(id) | Undo::NcChanged(id, _) = &step {
                lent.push(self.ncs.at(*id).address);
            }
            self.undo_step(step, &mut redo);
        }
        // An NC may have taken the address of one that was about to get another and then could not.
        lent.retain(|a| !self.nc_addrs.contains_key(a));
        if !lent.is_empty() {
            let owners = self.ncs.iter().filter(|(_, nc)| lent.contains(&nc.address));
            self.nc_addrs.extend(owners.map(|(id, nc)| (nc.address, id)));
            self.tunnel_ends.take();
        }
    }

    fn undo_step(&mut self, step: Undo, redo: &mut Vec<Undo>) {
        match step {
            Undo::Gateway(old) => self.gateway = old,
            Undo::NcAdded(id) => {
                self.unindex_nc(id);
                self.ncs.retract(id);
            }
            Undo::NcRemoved(id, nc) => {
                self.ncs.restore(id, nc);
                self.index_nc(id);
            }
            Undo::NcChanged(id, old) => self.change_nc(id, old, redo),
            Undo::VpcAdded(id) => {
                if let Some(vpc) = self.vpcs.retract(id) {
                    self.bound.touch(&vpc.spec.name);
                    self.vpc_names.remove(&vpc.spec.name);
                    self.vnis.remove(&vpc.spec.vni);
                }
            }
            Undo::VpcRemoved(id, vpc) => {
                self.bound.touch(&vpc.spec.name);
                self.vpc_names.insert(vpc.spec.name.clone(), id);
                self.vnis.insert(vpc.spec.vni, id);
                self.vpcs.restore(id, vpc);
            }
            Undo::VpcChanged(id, old) => self.change_vpc(id, *old, redo),
            Undo::PeeringAdded(name) => self.remove_peering(&name, redo),
            Undo::PeeringRemoved(name, pair) => self.add_peering(name, pair, redo),
            Undo::VmAdded(vpc, mac) => self.remove_vm(vpc, mac, redo),
            Undo::VmRemoved(vpc, mac, vm) => self.add_vm(vpc, mac, vm, redo),
            Undo::RouteAdded(vpc, prefix) => self.remove_route(vpc, prefix, redo),
            Undo::RouteRemoved(vpc, prefix, route) => self.add_route(vpc, prefix, route, redo),
            Undo::Named(kind, name, None) => drop(self.take_named(kind, &name)),
            Undo::Named(_, _, Some(old)) => drop(self.set_named(*old)),
        }
    }
}
