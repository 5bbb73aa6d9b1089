// SPDX-License-Identifier: Apache-2.0
//! The model as those need it who make something else of it: VPCs with everything resolved, and what a plan changed, VPC by VPC.

use super::state::{NcState, RouteState, VmState, VpcState};
use super::{Model, Undo};
use crate::kinds::*;
use crate::plan::{Plan, Work};
use crate::prefix::{Mac, Prefix};
use abi::Vni;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// A VPC of a model.
#[derive(Clone, Copy)]
pub struct VpcView<'a> {
    model: &'a Model,
    state: &'a VpcState,
}

/// A VM of a VPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmView<'a> {
    /// Its addresses, as written.
    pub addresses: &'a Addresses,
    /// The tunnel address of its NC.
    pub nc: IpAddr,
    /// Limit of what is sent to it.
    pub meter: Option<&'a Meter>,
    /// How what it sends and gets is shaped.
    pub shape: Option<&'a Shape>,
}

impl<'a> VpcView<'a> {
    /// Its document.
    pub fn spec(&self) -> &'a Vpc {
        &self.state.spec
    }

    /// The tunnel addresses of NCs that may send for it besides those of its VMs.
    pub fn senders(&self) -> impl Iterator<Item = IpAddr> + 'a {
        let model = self.model;
        self.state.extra_ncs.iter().map(move |id| model.nc(*id).address)
    }

    /// Its Peerings, each with the VPC at the other end.
    pub fn peerings(&self) -> impl Iterator<Item = (&'a Name, &'a Name)> + 'a {
        let model = self.model;
        self.state.links.iter().map(move |(to, link)| (&link.peering, &model.vpc(*to).spec.name))
    }

    /// Its routes in order, each with where it leads: to another VPC by its VNI.
    pub fn routes(&self) -> impl Iterator<Item = (Prefix, Scope<Vni>)> + 'a {
        let view = *self;
        self.state.routes().map(move |(prefix, route)| (prefix, view.target(route)))
    }

    /// The route of a prefix.
    pub fn route(&self, prefix: Prefix) -> Option<Scope<Vni>> {
        self.state.route(prefix).map(|route| self.target(route))
    }

    /// Its VMs in order.
    pub fn vms(&self) -> impl Iterator<Item = (Mac, VmView<'a>)> + 'a {
        let view = *self;
        self.state.vms.iter().map(move |(mac, vm)| (*mac, view.seen(vm)))
    }

    /// The VM with a MAC address.
    pub fn vm(&self, mac: Mac) -> Option<VmView<'a>> {
        self.state.vms.get(&mac).map(|vm| self.seen(vm))
    }

    /// Whether a VM of it is shaped.
    pub fn has_shaped(&self) -> bool {
        let id = self.model.vnis.get(&self.spec().vni);
        id.is_some_and(|id| self.model.shaped.range((*id, Mac(0))..).next().is_some_and(|(vpc, _)| vpc == id))
    }

    /// How many VMs it has.
    pub fn vms_len(&self) -> usize {
        self.state.vms.len()
    }

    /// One of its VMs by its place in their order; behind the last comes the first again.
    pub fn vm_at(&self, place: u64) -> Option<(Mac, VmView<'a>)> {
        let vms = &self.state.vms;
        let found = vms.iter().nth((place % vms.len().max(1) as u64) as usize);
        found.map(|(mac, vm)| (*mac, self.seen(vm)))
    }

    /// The VM that has an address.
    pub fn owner(&self, address: IpAddr) -> Option<(Mac, VmView<'a>)> {
        let mac = self.state.owner(address)?;
        Some((mac, self.vm(mac)?))
    }

    /// The first address of a VM in a prefix.
    pub fn address_in(&self, prefix: Prefix) -> Option<IpAddr> {
        match (prefix.network(), prefix.broadcast()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let found = self.state.addrs4.range(a.to_bits()..=b.to_bits()).next();
                found.map(|(address, _)| Ipv4Addr::from_bits(*address).into())
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let found = self.state.addrs6.range(a.to_bits()..=b.to_bits()).next();
                found.map(|(address, _)| Ipv6Addr::from_bits(*address).into())
            }
            _ => None,
        }
    }

    /// Its routes of a family to other VPCs, each with the VNI.
    pub fn peer_routes(&self, v6: bool) -> impl Iterator<Item = (Prefix, Vni)> + 'a {
        let (state, model) = (self.state, self.model);
        let v4 = state.peers4.iter().filter(move |_| !v6).map(|(net, to)| (Prefix::V4(*net), *to));
        let v6 = state.peers6.iter().filter(move |_| v6).map(|(net, to)| (Prefix::V6(*net), *to));
        v4.chain(v6).map(move |(prefix, to)| (prefix, model.vpc(to).spec.vni))
    }

    /// Whether an address is one of its VMs' or of its gateway.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.state.owner(address).is_some() || self.state.spec.gateways.contains(&address)
    }

    fn target(&self, route: &RouteState) -> Scope<Vni> {
        route.target.map(|to| self.model.vpc(*to).spec.vni)
    }

    fn seen(&self, vm: &'a VmState) -> VmView<'a> {
        let (meter, shape) = (vm.meter.as_deref(), vm.shape.as_deref());
        VmView { addresses: &vm.addresses, nc: self.model.nc(vm.nc).address, meter, shape }
    }
}

impl Model {
    /// The objects that the model holds by name.
    pub fn by_name(&self) -> &ByName {
        &self.named
    }

    /// Every VPC by its VNI.
    pub fn vpcs_by_vni(&self) -> BTreeMap<Vni, VpcView<'_>> {
        self.vnis.iter().map(|(vni, id)| (*vni, self.view(*id))).collect()
    }

    /// The VPC of a VNI.
    pub fn vpc_of_vni(&self, vni: Vni) -> Option<VpcView<'_>> {
        self.vnis.get(&vni).map(|id| self.view(*id))
    }

    /// The VPC of a name.
    pub fn vpc_of_name(&self, name: &str) -> Option<VpcView<'_>> {
        self.vpc_names.get(name).map(|id| self.view(*id))
    }

    /// The two VPCs that a peering joins.
    pub fn peers(&self, peering: &str) -> Option<[VpcView<'_>; 2]> {
        self.peerings.get(peering).map(|p| p.pair.map(|id| self.view(id)))
    }

    /// The tunnel addresses of all NCs, of clusters that sessions are handed over to, of nodes at which edge ports are, and of collectors of mirrors, which
    /// are NCs to the tables.
    pub fn nc_addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let handed = self.named.handovers.values().flat_map(|h| h.to.iter().copied());
        let own = self.own_name();
        let edges = self.named.edge_ports.values().flat_map(move |p| p.elsewhere(own).iter().copied());
        let collectors = self.named.mirrors.values().filter_map(|m| m.to_address);
        self.nc_addrs.keys().copied().chain(handed).chain(edges).chain(collectors)
    }

    /// The same as a set, which is made once for all who ask.
    pub fn tunnel_ends(&self) -> Arc<HashSet<IpAddr>> {
        self.tunnel_ends.get_or_init(|| Arc::new(self.nc_addresses().collect())).clone()
    }

    /// A VM by its name: its VPC, its MAC address, what it is.
    pub fn vm_of_name(&self, name: &str) -> Option<(VpcView<'_>, Mac, VmView<'_>)> {
        let (vpc, mac) = self.find_vm(name)?;
        let view = self.view(vpc);
        Some((view, mac, view.vm(mac)?))
    }

    /// The VMs that are shaped: VPC, MAC address, name.
    pub fn shaped_vms(&self) -> impl Iterator<Item = (VpcView<'_>, Mac, Name, Shape)> {
        self.shaped.iter().filter_map(|(id, mac)| {
            let vm = self.vpc(*id).vms.get(mac)?;
            let name = self.vm_object(*id, *mac, vm).name();
            Some((self.view(*id), *mac, name, *vm.shape.as_deref()?))
        })
    }

    /// The VPC and the first IPv4 address of a VM by its name.
    pub fn vm_ipv4(&self, name: &str) -> Option<(VpcView<'_>, Ipv4Addr)> {
        let (vpc, mac) = self.find_vm(name)?;
        let first = self.vpc(vpc).vms.get(&mac)?.addresses.iter().find_map(|a| match a {
            IpAddr::V4(a) => Some(*a),
            IpAddr::V6(_) => None,
        })?;
        Some((self.view(vpc), first))
    }

    fn view(&self, id: u32) -> VpcView<'_> {
        VpcView { model: self, state: self.vpc(id) }
    }
}

/// What a plan changed.
pub enum Changes<'a> {
    /// Everything may have: the configuration replaced this one.
    Replaced(&'a Model),
    /// These and nothing else.
    Touched(Box<Touched<'a>>),
}

/// What a plan made in place touched.
pub struct Touched<'a> {
    /// Whether the Gateway changed.
    pub gateway: bool,
    /// VPCs that are there.
    pub vpcs: Vec<(VpcView<'a>, Delta)>,
    /// VNIs of VPCs that went; one of them may have come again with another VPC.
    pub deleted: BTreeSet<Vni>,
    /// Tunnel addresses of touched NCs, before.
    pub ncs_before: BTreeSet<IpAddr>,
    /// And after.
    pub ncs_after: BTreeSet<IpAddr>,
}

/// What a plan made in place did to one VPC.
#[derive(Debug, Default)]
pub struct Delta {
    /// It came.
    pub created: bool,
    /// Its document changed, or who may send for it.
    pub settings: bool,
    /// Touched routes, and whether they were there before.
    pub routes: BTreeMap<Prefix, bool>,
    /// Touched VMs, and whether they were there before.
    pub vms: BTreeMap<Mac, bool>,
}

impl Plan {
    /// What it changed; `model` is the model after the change.
    pub fn changes<'a>(&'a self, model: &'a Model) -> Changes<'a> {
        match &self.work {
            Work::Steps(log) => Changes::Touched(Box::new(Steps::new(log, model).touched())),
            Work::Swap(old) => Changes::Replaced(old),
        }
    }
}

struct Steps<'a> {
    model: &'a Model,
    gateway: bool,
    deltas: BTreeMap<u32, Delta>,
    deleted: BTreeSet<Vni>,
    ncs_before: BTreeSet<IpAddr>,
    ncs_after: BTreeSet<IpAddr>,
}

impl<'a> Steps<'a> {
    fn new(log: &[Undo], model: &'a Model) -> Self {
        let mut c = Steps {
            model,
            gateway: false,
            deltas: BTreeMap::new(),
            deleted: BTreeSet::new(),
            ncs_before: BTreeSet::new(),
            ncs_after: BTreeSet::new(),
        };
        let mut moved = BTreeSet::new();
        for step in log {
            match step {
                Undo::Gateway(_) => c.gateway = true,
                Undo::NcAdded(id) => c.nc_now(*id),
                Undo::NcRemoved(_, nc) => c.nc_was(nc),
                Undo::NcChanged(id, old) => {
                    c.nc_was(old);
                    c.nc_now(*id);
                    if model.ncs.is_live(*id) && model.nc(*id).address != old.address {
                        moved.insert(*id);
                    }
                }
                Undo::VpcAdded(id) => c.delta(*id).created = true,
                Undo::VpcRemoved(_, vpc) => drop(c.deleted.insert(vpc.spec.vni)),
                Undo::VpcChanged(id, _) => c.delta(*id).settings = true,
                Undo::Named(Kind::Handover, name, old) => {
                    if let Some(Object::Handover(old)) = old.as_deref() {
                        c.ncs_before.extend(&old.to);
                    }
                    let now = model.named.handovers.get(name);
                    c.ncs_after.extend(now.iter().flat_map(|h| h.to.iter().copied()));
                }
                Undo::Named(Kind::EdgePort, name, old) => {
                    if let Some(Object::EdgePort(old)) = old.as_deref() {
                        c.ncs_before.extend(old.elsewhere(model.own_name()));
                    }
                    let now = model.named.edge_ports.get(name);
                    c.ncs_after.extend(now.iter().flat_map(|p| p.elsewhere(model.own_name()).iter().copied()));
                }
                Undo::Named(Kind::Mirror, name, old) => {
                    if let Some(Object::Mirror(old)) = old.as_deref() {
                        c.ncs_before.extend(old.to_address);
                    }
                    c.ncs_after.extend(model.named.mirrors.get(name).and_then(|m| m.to_address));
                    // Their entries say that they are mirrored, or no more.
                    model.mirror_touches(name, old.as_deref(), &mut |vpc, mac| {
                        c.delta(vpc).vms.entry(mac).or_insert(true);
                    });
                }
                Undo::PeeringAdded(_) | Undo::PeeringRemoved(..) | Undo::Named(..) => {}
                Undo::VmAdded(v, mac) => drop(c.delta(*v).vms.entry(*mac).or_insert(false)),
                Undo::VmRemoved(v, mac, _) => drop(c.delta(*v).vms.entry(*mac).or_insert(true)),
                Undo::RouteAdded(v, p) => drop(c.delta(*v).routes.entry(*p).or_insert(false)),
                Undo::RouteRemoved(v, p, _) => drop(c.delta(*v).routes.entry(*p).or_insert(true)),
            }
        }
        if !moved.is_empty() {
            c.touch_vms_of(&moved);
        }
        c
    }

    fn delta(&mut self, vpc: u32) -> &mut Delta {
        self.deltas.entry(vpc).or_default()
    }

    fn nc_now(&mut self, id: u32) {
        if self.model.ncs.is_live(id) {
            let nc = self.model.nc(id);
            self.ncs_after.insert(nc.address);
            self.touch_listed(nc);
        }
    }

    fn nc_was(&mut self, nc: &NcState) {
        self.ncs_before.insert(nc.address);
        self.touch_listed(nc);
    }

    fn touch_listed(&mut self, nc: &NcState) {
        nc.vpcs.iter().for_each(|vpc| self.delta(*vpc).settings = true);
    }

    /// VMs on an NC with a new address are installed anew. The one place that looks at every VM; a server rarely gets
    /// another address.
    fn touch_vms_of(&mut self, moved: &BTreeSet<u32>) {
        for (id, vpc) in self.model.vpcs.iter() {
            for (mac, _) in vpc.vms.iter().filter(|(_, vm)| moved.contains(&vm.nc)) {
                self.delta(id).vms.entry(*mac).or_insert(true);
            }
        }
    }

    fn touched(self) -> Touched<'a> {
        let model = self.model;
        let live = self.deltas.into_iter().filter(|(id, _)| model.vpcs.is_live(*id));
        Touched {
            gateway: self.gateway,
            vpcs: live.map(|(id, delta)| (model.view(id), delta)).collect(),
            deleted: self.deleted,
            ncs_before: self.ncs_before,
            ncs_after: self.ncs_after,
        }
    }
}
