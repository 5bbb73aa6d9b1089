// SPDX-License-Identifier: Apache-2.0
//! What the model holds of each object, with references as numbers.

use crate::kinds::*;
use crate::labels::Labels;
use crate::prefix::{Mac, Prefix};
use abi::{Ipv4Net, Ipv6Net};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Bound;

/// Objects by number. Numbers freed by one change are not given out again before the next one, so that within a plan a number
/// means one object.
#[derive(Clone, Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
    limbo: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { slots: Vec::new(), free: Vec::new(), limbo: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub fn insert(&mut self, value: T) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[id as usize] = Some(value);
        id
    }

    /// Takes an object out; its number rests until [`Slab::settle`].
    pub fn remove(&mut self, id: u32) -> Option<T> {
        let value = self.slots.get_mut(id as usize)?.take()?;
        self.limbo.push(id);
        Some(value)
    }

    /// Puts a removed object back under its number (undo).
    pub fn restore(&mut self, id: u32, value: T) {
        self.limbo.retain(|l| *l != id);
        self.slots[id as usize] = Some(value);
    }

    /// Takes an added object back (undo).
    pub fn retract(&mut self, id: u32) -> Option<T> {
        let value = self.slots.get_mut(id as usize)?.take()?;
        self.free.push(id);
        Some(value)
    }

    /// Before a new change: numbers freed by the last one may be used again.
    pub fn settle(&mut self) {
        self.free.append(&mut self.limbo);
    }

    /// The object with a number that the model itself handed out.
    pub fn at(&self, id: u32) -> &T {
        self.slots[id as usize].as_ref().expect("a number held by the model names a live object")
    }

    pub fn at_mut(&mut self, id: u32) -> &mut T {
        self.slots[id as usize].as_mut().expect("a number held by the model names a live object")
    }

    /// Whether there is an object with this number.
    pub fn is_live(&self, id: u32) -> bool {
        self.slots.get(id as usize).is_some_and(Option::is_some)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(i, s)| Some((i as u32, s.as_ref()?)))
    }
}

/// An NC.
#[derive(Clone, Debug)]
pub(crate) struct NcState {
    pub name: Name,
    pub address: IpAddr,
    /// VPCs listed in its spec.
    pub vpcs: Vec<u32>,
    /// VMs on it.
    pub vms: u32,
    pub labels: Labels,
}

/// A peering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeeringState {
    pub pair: [u32; 2],
    pub labels: Labels,
}

/// Where a route leads; another VPC by its number.
pub(crate) type Target = Scope<u32>;

/// A route, without its VPC and prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RouteState {
    pub name: Option<Name>,
    pub target: Target,
    pub labels: Labels,
}

/// A VM, without its VPC and MAC address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VmState {
    pub name: Option<Name>,
    pub nc: u32,
    pub addresses: Addresses,
    pub meter: Option<Box<Meter>>,
    pub shape: Option<Box<Shape>>,
    pub labels: Labels,
}

/// The agreement with one other VPC.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub peering: Name,
    /// Peer routes of this VPC that lead there.
    pub routes: u32,
}

/// A VPC with all that belongs to it.
#[derive(Clone, Debug)]
pub(crate) struct VpcState {
    pub spec: Vpc,
    pub links: BTreeMap<u32, Link>,
    /// NCs that list this VPC.
    pub extra_ncs: BTreeSet<u32>,
    pub routes4: BTreeMap<Ipv4Net, RouteState>,
    pub routes6: BTreeMap<Ipv6Net, RouteState>,
    /// The peer routes among them, and where they lead.
    pub peers4: BTreeMap<Ipv4Net, u32>,
    pub peers6: BTreeMap<Ipv6Net, u32>,
    pub vms: BTreeMap<Mac, VmState>,
    pub addrs4: BTreeMap<u32, Mac>,
    pub addrs6: BTreeMap<u128, Mac>,
}

impl VpcState {
    pub fn new(spec: Vpc) -> VpcState {
        VpcState {
            spec,
            links: BTreeMap::new(),
            extra_ncs: BTreeSet::new(),
            routes4: BTreeMap::new(),
            routes6: BTreeMap::new(),
            peers4: BTreeMap::new(),
            peers6: BTreeMap::new(),
            vms: BTreeMap::new(),
            addrs4: BTreeMap::new(),
            addrs6: BTreeMap::new(),
        }
    }

    pub fn routes_len(&self) -> usize {
        self.routes4.len() + self.routes6.len()
    }

    /// Peer routes that lead to a VPC, counted one by one.
    pub fn routes_to(&self, vpc: u32) -> u32 {
        self.peers4.values().chain(self.peers6.values()).filter(|to| **to == vpc).count() as u32
    }

    pub fn route(&self, prefix: Prefix) -> Option<&RouteState> {
        match prefix {
            Prefix::V4(net) => self.routes4.get(&net),
            Prefix::V6(net) => self.routes6.get(&net),
        }
    }

    pub fn insert_route(&mut self, prefix: Prefix, route: RouteState) {
        if let Target::Peer(to) = route.target {
            match prefix {
                Prefix::V4(net) => self.peers4.insert(net, to),
                Prefix::V6(net) => self.peers6.insert(net, to),
            };
            if let Some(link) = self.links.get_mut(&to) {
                link.routes += 1;
            }
        }
        match prefix {
            Prefix::V4(net) => self.routes4.insert(net, route),
            Prefix::V6(net) => self.routes6.insert(net, route),
        };
    }

    pub fn remove_route(&mut self, prefix: Prefix) -> Option<RouteState> {
        let route = match prefix {
            Prefix::V4(net) => self.routes4.remove(&net),
            Prefix::V6(net) => self.routes6.remove(&net),
        }?;
        if let Target::Peer(to) = route.target {
            match prefix {
                Prefix::V4(net) => self.peers4.remove(&net),
                Prefix::V6(net) => self.peers6.remove(&net),
            };
            if let Some(link) = self.links.get_mut(&to) {
                link.routes -= 1;
            }
        }
        Some(route)
    }

    /// All routes in order.
    pub fn routes(&self) -> impl Iterator<Item = (Prefix, &RouteState)> {
        let v4 = self.routes4.iter().map(|(net, r)| (Prefix::V4(*net), r));
        v4.chain(self.routes6.iter().map(|(net, r)| (Prefix::V6(*net), r)))
    }

    /// The routes behind one, in order.
    pub fn routes_behind(&self, prefix: Option<Prefix>) -> impl Iterator<Item = (Prefix, &RouteState)> {
        let (first4, first6) = match prefix {
            None => (Some(Bound::Unbounded), Bound::Unbounded),
            Some(Prefix::V4(net)) => (Some(Bound::Excluded(net)), Bound::Unbounded),
            Some(Prefix::V6(net)) => (None, Bound::Excluded(net)),
        };
        let v4 = first4.into_iter().flat_map(|first| self.routes4.range((first, Bound::Unbounded)));
        let v6 = self.routes6.range((first6, Bound::Unbounded));
        v4.map(|(net, r)| (Prefix::V4(*net), r)).chain(v6.map(|(net, r)| (Prefix::V6(*net), r)))
    }

    /// The VM addresses in a prefix, with their owners.
    pub fn addresses_in(&self, prefix: Prefix) -> Box<dyn Iterator<Item = (IpAddr, Mac)> + '_> {
        match prefix {
            Prefix::V4(net) => Box::new(self.addresses4_in(net.addr(), net.broadcast())),
            Prefix::V6(net) => {
                let range = net.addr().to_bits()..=net.broadcast().to_bits();
                Box::new(self.addrs6.range(range).map(|(a, m)| (IpAddr::V6((*a).into()), *m)))
            }
        }
    }

    /// IPv4 addresses from one to another, with the MAC addresses of the VMs that have them.
    pub fn addresses4_in(&self, first: Ipv4Addr, last: Ipv4Addr) -> impl Iterator<Item = (IpAddr, Mac)> + '_ {
        self.addrs4.range(first.to_bits()..=last.to_bits()).map(|(a, m)| (IpAddr::V4((*a).into()), *m))
    }

    /// MAC address of the VM that has an address.
    pub fn owner(&self, address: IpAddr) -> Option<Mac> {
        match address {
            IpAddr::V4(a) => self.addrs4.get(&a.into()).copied(),
            IpAddr::V6(a) => self.addrs6.get(&a.into()).copied(),
        }
    }

    pub fn insert_vm(&mut self, mac: Mac, vm: VmState) {
        for a in vm.addresses.iter() {
            match *a {
                IpAddr::V4(a) => self.addrs4.insert(a.into(), mac),
                IpAddr::V6(a) => self.addrs6.insert(a.into(), mac),
            };
        }
        self.vms.insert(mac, vm);
    }

    pub fn remove_vm(&mut self, mac: Mac) -> Option<VmState> {
        let vm = self.vms.remove(&mac)?;
        for a in vm.addresses.iter() {
            match *a {
                IpAddr::V4(a) => self.addrs4.remove(&a.into()),
                IpAddr::V6(a) => self.addrs6.remove(&a.into()),
            };
        }
        Some(vm)
    }

    /// The longest route that covers the whole of `region`.
    ///
    /// Of the prefixes that stand before a key in order, the last either covers it, or it and every covering prefix agree in
    /// the bits that it shares with the key: so the search goes on there, with strictly fewer bits.
    pub fn covering(&self, region: Prefix) -> Option<(Prefix, &RouteState)> {
        match region {
            Prefix::V4(region) => {
                let mut key = region;
                loop {
                    let (net, route) = self.routes4.range(..=key).next_back()?;
                    let common = (net.addr().to_bits() ^ region.addr().to_bits()).leading_zeros() as u8;
                    if common >= net.prefix_len() {
                        return Some((Prefix::V4(*net), route));
                    }
                    key = Ipv4Net::new_assert(region.addr(), common.min(key.prefix_len())).trunc();
                }
            }
            Prefix::V6(region) => {
                let mut key = region;
                loop {
                    let (net, route) = self.routes6.range(..=key).next_back()?;
                    let common = (net.addr().to_bits() ^ region.addr().to_bits()).leading_zeros() as u8;
                    if common >= net.prefix_len() {
                        return Some((Prefix::V6(*net), route));
                    }
                    key = Ipv6Net::new_assert(region.addr(), common.min(key.prefix_len())).trunc();
                }
            }
        }
    }

    /// The route that a packet to `address` takes.
    pub fn lookup(&self, address: IpAddr) -> Option<(Prefix, &RouteState)> {
        self.covering(address.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::default_gateway_mac;
    use abi::Vni;
    use rand::{RngExt, SeedableRng};

    fn vpc() -> VpcState {
        VpcState::new(Vpc {
            name: "v".into(),
            vni: Vni(1),
            gateway_mac: default_gateway_mac(Vni(1)),
            gateways: vec![],
            icmp: true,
            pick_up: false,
            limits: Default::default(),
            weight: 1,
            path: Default::default(),
            meter: None,
            peerings: vec![],
            labels: Labels::default(),
        })
    }

    #[test]
    fn covering_equals_a_naive_search() {
        let v4 = |bits: u32, len| Prefix::new_assert(IpAddr::V4(bits.into()), len).trunc();
        let v6 = |bits: u32, len| Prefix::new_assert(IpAddr::V6((u128::from(bits) << 96).into()), len).trunc();
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
        for _ in 0..200 {
            let mut v = vpc();
            let mut all = Vec::new();
            for _ in 0..rng.random_range(0..30) {
                let (six, len) = (rng.random::<bool>(), rng.random_range(0..=16u8));
                let bits: u32 = rng.random();
                let p = if six { v6(bits, len) } else { v4(bits & 0xf0f0_0000, len) };
                v.insert_route(p, RouteState { name: None, target: Target::Local, labels: Labels::default() });
                all.push(p);
            }
            for _ in 0..50 {
                let (len, bits) = (rng.random_range(0..=32u8), rng.random::<u32>() & 0xf0f0_0000);
                for region in [v4(bits, len), v6(bits, len)] {
                    let naive = all.iter().filter(|p| p.contains(&region)).max_by_key(|p| p.prefix_len()).copied();
                    assert_eq!(v.covering(region).map(|c| c.0), naive, "{region} in {all:?}");
                }
            }
        }
    }
}
