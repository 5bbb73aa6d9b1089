// SPDX-License-Identifier: Apache-2.0
//! What a gateway's tables hold, taken over into compressed ones.

use super::alpm;
use super::gateway::{half_of, ChipGateway, Half};
use super::key::{Address, BITS};
use super::routes::{Route, Routes};
use super::vms::{Form, Vms};
use crate::technique::Split;
use std::collections::HashMap;
use std::net::IpAddr;
use tables::{Tables, Target, VmEntry, Writer};

/// Routes and VM addresses with what they say.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Routes; values index `targets`.
    pub routes: Vec<Route>,
    /// What routes say, each once.
    pub targets: Vec<Target>,
    /// VM and gateway addresses; values index `entries`.
    pub vms: Vec<(Address, u32)>,
    /// What addresses say, each once.
    pub entries: Vec<VmEntry>,
}

fn split(addr: IpAddr) -> (bool, u128) {
    match addr {
        IpAddr::V4(a) => (false, a.to_bits().into()),
        IpAddr::V6(a) => (true, a.to_bits()),
    }
}

impl Snapshot {
    /// Everything that a writer wrote.
    pub fn of(writer: &Writer) -> Snapshot {
        let tables = writer.tables();
        let _inside = tables.enter();
        let mut s = Snapshot::default();
        let (mut targets, mut entries) = (HashMap::new(), HashMap::new());
        for vni in writer.vnis() {
            for r in writer.routes(vni).unwrap_or_default() {
                let (v6, addr) = split(r.prefix.addr());
                let next = s.targets.len() as u32;
                let value = *targets.entry(r.target).or_insert(next);
                if value == next {
                    s.targets.push(r.target);
                }
                s.routes.push(Route { vni: vni.0, v6, addr, len: r.prefix.prefix_len(), value });
            }
            let Some((tenant, dump)) = tables.tenant(vni).zip(writer.dump(vni)) else { continue };
            let vms = dump.vms.iter().flat_map(|v| v.addresses.iter());
            for addr in vms.chain(dump.gateways.iter()) {
                let (v6, bits) = split(*addr);
                let entry = match v6 {
                    false => tables.vm4(vni, bits as u32, tenant.generation()),
                    true => tables.vm6(vni, ((bits >> 64) as u64, bits as u64), tenant.generation()),
                };
                let Some(entry) = entry else { continue };
                let next = s.entries.len() as u32;
                let value = *entries.entry((entry.mac, entry.vm, entry.nc, entry.flags)).or_insert(next);
                if value == next {
                    s.entries.push(entry);
                }
                s.vms.push((Address { vni: vni.0, v6, addr: bits }, value));
            }
        }
        s
    }

    /// A chip with these tables: routes in ALPM or by length, addresses in the given form. `fill` is the share of places
    /// that shall be taken.
    pub fn chip(
        &self,
        tables: Tables,
        by_length: bool,
        form: Form,
        split: Option<Split>,
        fill: f64,
        seed: u64,
    ) -> Result<ChipGateway, String> {
        let count = if split.is_some() { 2 } else { 1 };
        let halves = (0..count).map(|half| self.half(half, by_length, form, split, fill, seed));
        let halves = halves.collect::<Result<Vec<Half>, String>>()?;
        Ok(ChipGateway::new(tables, halves, split, self.targets.clone(), self.entries.clone()))
    }

    fn half(
        &self,
        half: usize,
        by_length: bool,
        form: Form,
        split: Option<Split>,
        fill: f64,
        seed: u64,
    ) -> Result<Half, String> {
        let places = |n: usize, fill: f64| ((n as f64 / fill) as u64).max(16);
        // A prefix covers even and odd addresses: divided by address, routes are in both halves.
        let own = |r: &&Route| split != Some(Split::Vni) || half_of(split, &r.address()) == half;
        let list: Vec<Route> = self.routes.iter().filter(own).copied().collect();
        let routes = if by_length {
            Routes::lengths(places(list.len(), 0.4), 3, list.len(), &list, seed)
        } else {
            let partitions = (list.len() as u32 / 40).clamp(4, 8192);
            let bucket = (list.len() as u32 * 5 / 4 / partitions + 16).max(16);
            let shape = alpm::Shape { partitions, subtrees: 4, bucket, pivot_min: 0, window: BITS };
            Routes::alpm(shape, &list)
        };
        let routes = routes.map_err(|e| e.to_string())?;
        let mut vms = Vms::new(form, places(self.vms.len(), fill), seed);
        for (key, value) in self.vms.iter().filter(|(a, _)| half_of(split, a) == half) {
            vms.insert(*key, *value).map_err(|e| e.to_string())?;
        }
        Ok(Half { routes, vms })
    }
}
