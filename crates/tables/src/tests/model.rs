// SPDX-License-Identifier: Apache-2.0
//! The naive oracle: the configuration as plain maps, lookups by trying everything; and random commits over a small
//! world, so that the same tenants, prefixes and addresses meet again and again.

use crate::*;
use abi::*;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A VPC.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ModelTenant {
    pub settings: TenantSettings,
    pub routes: BTreeMap<Prefix, Target>,
    pub vms: BTreeMap<u64, VmSpec>,
}

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Model {
    pub ncs: BTreeSet<IpAddr>,
    pub tenants: BTreeMap<Vni, ModelTenant>,
}

impl Model {
    /// The state after a commit that was accepted.
    pub(crate) fn apply(&mut self, commit: &Commit) {
        self.ncs.extend(&commit.nc_add);
        for c in &commit.tenants {
            if c.delete {
                self.tenants.remove(&c.vni);
                continue;
            }
            let t = self.tenants.entry(c.vni).or_default();
            if let Some(s) = &c.settings {
                t.settings = s.clone();
            }
            match &c.routes {
                RoutesChange::Keep => {}
                RoutesChange::Replace(routes) => t.routes = routes.iter().map(|r| (r.prefix, r.target)).collect(),
                RoutesChange::Delta { remove, add } => {
                    remove.iter().for_each(|p| {
                        t.routes.remove(p);
                    });
                    t.routes.extend(add.iter().map(|r| (r.prefix, r.target)));
                }
            }
            if c.vm_replace {
                t.vms.clear();
            }
            c.vm_remove.iter().for_each(|k| {
                t.vms.remove(&k.0);
            });
            t.vms.extend(c.vm_add.iter().map(|v| (v.mac, v.clone())));
        }
        commit.nc_remove.iter().for_each(|nc| {
            self.ncs.remove(nc);
        });
    }

    /// Longest prefix match by trying every route.
    pub(crate) fn route(&self, vni: Vni, addr: IpAddr) -> Option<Target> {
        let routes = &self.tenants.get(&vni)?.routes;
        routes.iter().filter(|(p, _)| covers(p, addr)).max_by_key(|(p, _)| p.prefix_len()).map(|(_, t)| *t)
    }

    /// The VM with an address, or the gateway.
    pub(crate) fn vm(&self, vni: Vni, addr: IpAddr) -> Option<(u64, Option<IpAddr>)> {
        let t = self.tenants.get(&vni)?;
        if t.settings.gateways.contains(&addr) {
            return Some((t.settings.gateway_mac, None));
        }
        t.vms.values().find(|vm| vm.addresses().any(|a| a == addr)).map(|vm| (vm.mac, Some(vm.nc)))
    }

    /// Whether an NC may send for a VPC.
    pub(crate) fn may_send(&self, vni: Vni, nc: IpAddr) -> bool {
        self.tenants
            .get(&vni)
            .is_some_and(|t| t.vms.values().any(|vm| vm.nc == nc) || t.settings.extra_ncs.contains(&nc))
    }
}

pub(crate) fn covers(p: &Prefix, addr: IpAddr) -> bool {
    let len = p.prefix_len();
    match (p.addr(), addr) {
        (IpAddr::V4(p4), IpAddr::V4(a)) => len == 0 || (p4.to_bits() ^ a.to_bits()) >> (32 - len) == 0,
        (IpAddr::V6(p6), IpAddr::V6(a)) => len == 0 || (p6.to_bits() ^ a.to_bits()) >> (128 - len) == 0,
        _ => false,
    }
}

/// What the tables say, in the model's words.
pub(crate) struct View<'a>(pub &'a Tables, pub &'a Writer);

impl View<'_> {
    pub(crate) fn route(&self, vni: Vni, addr: IpAddr) -> Option<Target> {
        let t = self.0.tenant(vni)?;
        self.1.target(match addr {
            IpAddr::V4(a) => self.0.route4(t.root4(), a.to_bits()),
            IpAddr::V6(a) => self.0.route6(t.root6(), halves(a.to_bits())),
        })
    }

    pub(crate) fn vm(&self, vni: Vni, addr: IpAddr) -> Option<(u64, Option<IpAddr>)> {
        let t = self.0.tenant(vni)?;
        let e = match addr {
            IpAddr::V4(a) => self.0.vm4(vni, a.to_bits(), t.generation()),
            IpAddr::V6(a) => self.0.vm6(vni, halves(a.to_bits()), t.generation()),
        }?;
        if e.flags & VM_FLAG_GATEWAY != 0 {
            return Some((e.mac, None));
        }
        Some((e.mac, Some(self.0.nc(e.nc).expect("a VM's NC exists").addr)))
    }

    pub(crate) fn may_send(&self, vni: Vni, nc: IpAddr) -> bool {
        match nc {
            IpAddr::V4(a) => self.0.may_send4(vni, a.to_bits()),
            IpAddr::V6(a) => self.0.nc_by_addr6(halves(a.to_bits())).is_some_and(|id| self.0.may_send6(vni, id)),
        }
    }
}

pub(crate) fn halves(a: u128) -> (u64, u64) {
    ((a >> 64) as u64, a as u64)
}

/// A small world.
pub(crate) fn some_vni(rng: &mut ChaCha8Rng) -> Vni {
    Vni(rng.random_range(0..12u32) * 0x10_0001 % (1 << 24))
}

pub(crate) fn some_nc(rng: &mut ChaCha8Rng) -> IpAddr {
    let n = rng.random_range(1..10u32);
    if n % 3 == 0 {
        IpAddr::V6(Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(n)))
    } else {
        IpAddr::V4(Ipv4Addr::from_bits(0xc0a8_0000 | n))
    }
}

pub(crate) fn some_address(rng: &mut ChaCha8Rng) -> IpAddr {
    if rng.random_bool(0.6) {
        IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | rng.random_range(0..4u32) << 16 | rng.random_range(1..20u32)))
    } else {
        let (hi, lo) = (rng.random_range(0..3u128), rng.random_range(1..12u128));
        IpAddr::V6(Ipv6Addr::from_bits(0x2001_0db8 << 96 | hi << 64 | lo))
    }
}

pub(crate) fn some_prefix(rng: &mut ChaCha8Rng) -> Prefix {
    match some_address(rng) {
        IpAddr::V4(a) => {
            let len = *[0, 8, 14, 15, 16, 24, 28, 31, 32].get(rng.random_range(0..9usize)).unwrap();
            let mask = u32::MAX.checked_shl(32 - len).unwrap_or(0);
            Prefix::new_assert(IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() & mask)), len as u8)
        }
        IpAddr::V6(a) => {
            let len = *[0, 32, 62, 63, 64, 65, 96, 124, 127, 128].get(rng.random_range(0..10usize)).unwrap();
            let mask = u128::MAX.checked_shl(128 - len).unwrap_or(0);
            Prefix::new_assert(IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() & mask)), len as u8)
        }
    }
}

pub(crate) fn some_meter(rng: &mut ChaCha8Rng) -> Option<Box<MeterSpec>> {
    let rate = rng.random_range(1..4u64) * 1000;
    let bytes = RateSpec { committed_rate: rate, committed_burst: 5000, peak_rate: 2 * rate, peak_burst: 9000 };
    rng.random_bool(0.3).then(|| Box::new(MeterSpec { bytes, packets: RateSpec::default() }))
}

fn some_target(rng: &mut ChaCha8Rng, model: &Model) -> Target {
    match rng.random_range(0..12) {
        0..=5 => Target::Local,
        6 => Target::Blackhole,
        7 => Target::Internet,
        8 => Target::Line(0),
        9 => Target::Region,
        _ => {
            let n = rng.random_range(0..model.tenants.len().max(1));
            model.tenants.keys().nth(n).map_or(Target::Local, |vni| Target::Peer(*vni))
        }
    }
}

fn some_vm(rng: &mut ChaCha8Rng) -> VmSpec {
    let mut vm = VmSpec {
        mac: 0x0200_0000_0000 | rng.random_range(0..25u64),
        ipv4: None,
        ipv6: None,
        more: Vec::new(),
        nc: some_nc(rng),
        meter: some_meter(rng),
        shaped: rng.random_bool(0.2),
    };
    for _ in 0..rng.random_range(1..4) {
        match some_address(rng) {
            IpAddr::V4(a) if vm.ipv4.is_none() => vm.ipv4 = Some(a.to_bits()),
            IpAddr::V6(a) if vm.ipv6.is_none() => vm.ipv6 = Some(a.to_bits()),
            a => vm.more.push(a),
        }
    }
    vm
}

/// A random commit; about half of them are acceptable.
pub(crate) fn some_commit(rng: &mut ChaCha8Rng, model: &Model) -> Commit {
    let mut commit = Commit::default();
    if rng.random_bool(0.2) || model.ncs.is_empty() {
        commit.nc_add = (0..rng.random_range(1..6)).map(|_| some_nc(rng)).collect();
    }
    if rng.random_bool(0.05) {
        commit.nc_remove = vec![some_nc(rng)];
    }
    for _ in 0..rng.random_range(0..4) {
        let vni = some_vni(rng);
        let old = model.tenants.get(&vni);
        let mut c = TenantChange { vni, ..Default::default() };
        if old.is_some() && rng.random_bool(0.08) {
            c.delete = true;
            commit.tenants.push(c);
            continue;
        }
        if old.is_none() || rng.random_bool(0.1) {
            c.settings = Some(TenantSettings {
                gateway_mac: 0x0200_0000_ff00 | rng.random_range(0..2u64),
                gateways: (0..rng.random_range(0..3)).map(|_| some_address(rng)).collect(),
                meter: some_meter(rng),
                icmp: rng.random_bool(0.5),
                extra_ncs: (0..rng.random_range(0..2)).map(|_| some_nc(rng)).collect(),
            });
        }
        let routes = |rng: &mut ChaCha8Rng, n| -> Vec<Route> {
            (0..n).map(|_| Route { prefix: some_prefix(rng), target: some_target(rng, model) }).collect()
        };
        c.routes = match rng.random_range(0..4) {
            0 => {
                let n = rng.random_range(0..60);
                let mut routes = routes(rng, n);
                if rng.random_bool(0.95) {
                    routes.sort_by_key(|r| r.prefix);
                    routes.dedup_by_key(|r| r.prefix);
                }
                RoutesChange::Replace(routes)
            }
            1 => {
                let n = rng.random_range(1..3);
                let old: Vec<Prefix> = old.map(|o| o.routes.keys().copied().collect()).unwrap_or_default();
                let remove = (rng.random_bool(0.5) && !old.is_empty())
                    .then(|| old[rng.random_range(0..old.len())])
                    .into_iter()
                    .collect();
                RoutesChange::Delta { remove, add: routes(rng, n) }
            }
            _ => RoutesChange::Keep,
        };
        c.vm_replace = rng.random_bool(0.05);
        if let Some(old) = old.filter(|o| !o.vms.is_empty() && rng.random_bool(0.5)) {
            let n = rng.random_range(0..old.vms.len());
            c.vm_remove = old.vms.keys().nth(n).map(|m| VmKey(*m)).into_iter().collect();
        }
        c.vm_add = (0..rng.random_range(0..4)).map(|_| some_vm(rng)).collect();
        commit.tenants.push(c);
    }
    commit
}
