// SPDX-License-Identifier: Apache-2.0
//! From names to what the model holds, and back to objects as they were described.

use super::state::{PeeringState, RouteState, Target, VmState};
use super::Model;
use crate::kinds::*;
use crate::prefix::{inner_address_fault, prefix_fault, Mac, Prefix};
use std::net::IpAddr;
use std::ops::Bound;

impl Model {
    /// The VM of a name, its own or the canonical one.
    pub(crate) fn find_vm(&self, name: &str) -> Option<(u32, Mac)> {
        let Some((vpc, address)) = name.split_once('/') else { return self.vm_names.get(name).copied() };
        self.find_unnamed_vm(*self.vpc_names.get(vpc)?, address.parse().ok()?)
    }

    /// The VM without a name of its own whose first address is this.
    pub(crate) fn find_unnamed_vm(&self, vpc: u32, first: IpAddr) -> Option<(u32, Mac)> {
        let state = self.vpc(vpc);
        let mac = state.owner(first)?;
        let vm = state.vms.get(&mac)?;
        (vm.name.is_none() && vm.addresses[0] == first).then_some((vpc, mac))
    }

    /// The route of a name, its own or the canonical one.
    pub(crate) fn find_route(&self, name: &str) -> Option<(u32, Prefix)> {
        let Some((vpc, prefix)) = name.split_once('/') else { return self.route_names.get(name).copied() };
        self.find_unnamed_route(*self.vpc_names.get(vpc)?, prefix.parse().ok()?)
    }

    /// The route without a name of its own for this prefix.
    pub(crate) fn find_unnamed_route(&self, vpc: u32, prefix: Prefix) -> Option<(u32, Prefix)> {
        self.vpc(vpc).route(prefix).filter(|r| r.name.is_none()).map(|_| (vpc, prefix))
    }

    /// Who has a MAC address in a VPC, in words.
    pub(crate) fn mac_owner(&self, vpc: u32, mac: Mac) -> Option<String> {
        let state = self.vpc(vpc);
        if state.spec.gateway_mac == mac {
            return Some(format!("the gateway of Vpc `{}`", state.spec.name));
        }
        state.vms.get(&mac).map(|vm| self.vm_words(vpc, vm))
    }

    /// Who has an address in a VPC, in words.
    pub(crate) fn address_owner(&self, vpc: u32, address: IpAddr) -> Option<String> {
        let state = self.vpc(vpc);
        if state.spec.gateways.contains(&address) {
            return Some(format!("the gateway of Vpc `{}`", state.spec.name));
        }
        state.vms.get(&state.owner(address)?).map(|vm| self.vm_words(vpc, vm))
    }

    fn vm_words(&self, vpc: u32, vm: &VmState) -> String {
        let name = vm.name.clone().unwrap_or_else(|| vm_name(&self.vpc(vpc).spec.name, vm.addresses[0]));
        format!("Vm `{name}`")
    }

    pub(crate) fn vm_object(&self, vpc: u32, mac: Mac, vm: &VmState) -> Vm {
        Vm {
            name: vm.name.clone(),
            vpc: self.vpc(vpc).spec.name.clone(),
            addresses: vm.addresses.clone(),
            mac,
            nc: self.nc(vm.nc).name.clone(),
            meter: vm.meter.clone(),
            shape: vm.shape.clone(),
            labels: vm.labels.clone(),
        }
    }

    pub(crate) fn scope(&self, target: Target) -> Scope {
        target.map(|to| self.vpc(*to).spec.name.clone())
    }

    pub(crate) fn route_object(&self, vpc: u32, prefix: Prefix, route: &RouteState) -> Route {
        let (name, vpc) = (route.name.clone(), self.vpc(vpc).spec.name.clone());
        Route { name, vpc, prefix, scope: self.scope(route.target), labels: route.labels.clone() }
    }

    pub(crate) fn nc_object(&self, id: u32) -> Nc {
        let nc = self.nc(id);
        let vpcs = nc.vpcs.iter().map(|v| self.vpc(*v).spec.name.clone()).collect();
        Nc { name: nc.name.clone(), address: nc.address, vpcs, labels: nc.labels.clone() }
    }

    pub(crate) fn peering_object(&self, name: &Name, peering: &PeeringState) -> Peering {
        let vpcs = peering.pair.map(|v| self.vpc(v).spec.name.clone());
        Peering { name: name.clone(), vpcs, labels: peering.labels.clone() }
    }

    /// Whether a VM or a server has an address, in this VPC or in any.
    pub fn has_inner_address(&self, vpc: Option<&str>, address: IpAddr) -> bool {
        let named = |name: &str| vpc.is_none_or(|vpc| vpc == name);
        let vms = match vpc {
            Some(vpc) => self.vpc_names.get(vpc).is_some_and(|id| self.vpc(*id).owner(address).is_some()),
            None => self.vpc_names.values().any(|id| self.vpc(*id).owner(address).is_some()),
        };
        let covers = |p: &Prefix| p.contains(&address);
        vms || self.named.servers.values().any(|s| named(&s.vpc) && s.addresses.iter().any(covers))
    }

    /// Whether an address is a public one of this node: of a pool, or of IPv6 sources that go out as they are.
    pub fn has_public_address(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(a) => self.pool_of(a).is_some(),
            IpAddr::V6(_) => {
                let host = Prefix::from(address);
                self.named.snats.values().any(|s| s.ipv6_prefixes.iter().any(|p| p.contains(&host)))
            }
        }
    }

    /// Objects with addresses whose packets are dropped, whatever the configuration says: kind, name, and why. Earlier versions took them.
    pub fn never_forwarded(&self) -> impl Iterator<Item = (Kind, String, String)> + '_ {
        let kinds = [Kind::Vm, Kind::Server, Kind::PublicPool, Kind::ElasticIp, Kind::Snat];
        kinds.into_iter().flat_map(|kind| self.objects(kind)).filter_map(|object| {
            let fault = match &object {
                Object::Vm(vm) => vm.addresses.iter().find_map(|a| inner_address_fault(*a)),
                Object::Server(server) => server.addresses.iter().find_map(|p| prefix_fault(*p)),
                Object::PublicPool(pool) => pool.ranges.iter().find_map(|range| range.fault()),
                Object::ElasticIp(elastic) => inner_address_fault(elastic.address.into()),
                Object::Snat(snat) => snat.ipv6_prefixes.iter().find_map(|p| prefix_fault(*p)),
                _ => None,
            };
            Some((object.kind(), object.name().to_string(), fault?))
        })
    }

    /// Whether there is an object of a kind and name.
    pub(crate) fn exists(&self, kind: Kind, name: &str) -> bool {
        match kind {
            Kind::Gateway => self.gateway.as_ref().is_some_and(|g| *g.name == *name),
            Kind::Nc => self.nc_names.contains_key(name),
            Kind::Vpc => self.vpc_names.contains_key(name),
            Kind::Peering => self.peerings.contains_key(name),
            Kind::Vm => self.find_vm(name).is_some(),
            Kind::Route => self.find_route(name).is_some(),
            kind => self.named.contains(kind, name),
        }
    }

    /// The object of a kind and name.
    pub fn get(&self, kind: Kind, name: &str) -> Option<Object> {
        match kind {
            Kind::Gateway => {
                let g = self.gateway.as_ref().filter(|g| *g.name == *name)?;
                Some(Object::Gateway(g.clone()))
            }
            Kind::Nc => Some(Object::Nc(self.nc_object(*self.nc_names.get(name)?))),
            Kind::Vpc => Some(Object::Vpc(Box::new(self.vpc(*self.vpc_names.get(name)?).spec.clone()))),
            Kind::Peering => {
                let (name, peering) = self.peerings.get_key_value(name)?;
                Some(Object::Peering(self.peering_object(name, peering)))
            }
            Kind::Vm => {
                let (vpc, mac) = self.find_vm(name)?;
                Some(Object::Vm(self.vm_object(vpc, mac, self.vpc(vpc).vms.get(&mac)?)))
            }
            Kind::Route => {
                let (vpc, prefix) = self.find_route(name)?;
                Some(Object::Route(self.route_object(vpc, prefix, self.vpc(vpc).route(prefix)?)))
            }
            _ => self.named.get(kind, name),
        }
    }

    /// All objects of a kind: Gateway, Nc, Vpc and Peering by name; Vm and Route by VPC, then MAC address or prefix.
    pub fn objects(&self, kind: Kind) -> Box<dyn Iterator<Item = Object> + '_> {
        match kind {
            Kind::Gateway => Box::new(self.gateway.iter().map(|g| Object::Gateway(g.clone()))),
            Kind::Nc => Box::new(self.nc_names.values().map(|id| Object::Nc(self.nc_object(*id)))),
            Kind::Vpc => Box::new(self.vpc_names.values().map(|id| Object::Vpc(Box::new(self.vpc(*id).spec.clone())))),
            Kind::Peering => Box::new(self.peerings.iter().map(|(n, p)| Object::Peering(self.peering_object(n, p)))),
            Kind::Vm => Box::new(self.vpc_names.values().flat_map(move |id| {
                let vms = self.vpc(*id).vms.iter();
                vms.map(move |(mac, vm)| Object::Vm(self.vm_object(*id, *mac, vm)))
            })),
            Kind::Route => Box::new(self.vpc_names.values().flat_map(move |id| {
                let routes = self.vpc(*id).routes();
                routes.map(move |(prefix, r)| Object::Route(self.route_object(*id, prefix, r)))
            })),
            _ => self.named.range(kind, (Bound::Unbounded, Bound::Unbounded)),
        }
    }

    /// The VMs and routes of one VPC (`tunny get vms --vpc red`).
    pub fn objects_of_vpc(&self, kind: Kind, vpc: &str) -> Box<dyn Iterator<Item = Object> + '_> {
        let Some(&id) = self.vpc_names.get(vpc) else { return Box::new(std::iter::empty()) };
        let state = self.vpc(id);
        match kind {
            Kind::Vm => Box::new(state.vms.iter().map(move |(m, v)| Object::Vm(self.vm_object(id, *m, v)))),
            Kind::Route => Box::new(state.routes().map(move |(p, r)| Object::Route(self.route_object(id, p, r)))),
            _ => Box::new(std::iter::empty()),
        }
    }
}
