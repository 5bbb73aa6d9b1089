// SPDX-License-Identifier: Apache-2.0
//! What a managed node tells its controller of how full it is and what it does, beside its report: placement counts with it, and operators see it.

use crate::service::Node;
use crate::types::{Counters, Level, TenantCounters};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Time between two readings.
pub const PERIOD: Duration = Duration::from_secs(5);
/// VPCs whose traffic is told: those with the most.
const VPCS: usize = 1000;

/// How full a node is, and what it does a second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// The engine, `xdp` or `user`; nothing of a node that has told nothing.
    pub engine: String,
    /// Water levels, as `tunny get levels` has them on the node.
    pub levels: Vec<Filled>,
    /// Packets taken in, a second.
    pub packets: u64,
    /// Bits taken in, a second.
    pub bits: u64,
    /// What its links carry, in bits a second; 0: they do not say.
    pub link_bits: u64,
    /// Drops a second, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Packets that the software path served, a second.
    pub punted: u64,
    /// Bits a second of the VPCs with the most.
    pub vpcs: BTreeMap<String, u64>,
    /// Packets a second of the VPCs with the most: all, and of these such as the fast path handed over since they are served in software.
    pub paths: BTreeMap<String, [u64; 2]>,
    /// Drops a second of the VPCs with the most, by reason.
    pub vpc_drops: BTreeMap<String, BTreeMap<String, u64>>,
}

/// How full something with a limit is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Filled {
    /// What.
    pub name: String,
    /// In use.
    pub used: u64,
    /// Limit.
    pub limit: u64,
}

impl Usage {
    /// The limit of what has a name here.
    pub fn limit(&self, name: &str) -> Option<u64> {
        self.levels.iter().find(|l| l.name == name).map(|l| l.limit)
    }

    /// The same without what it says of VPCs.
    pub fn of_node(&self) -> Usage {
        let Usage { engine, levels, drops, .. } = self;
        let (engine, levels, drops) = (engine.clone(), levels.clone(), drops.clone());
        let Usage { packets, bits, link_bits, punted, .. } = *self;
        Usage { engine, levels, packets, bits, link_bits, drops, punted, ..Usage::default() }
    }

    /// What has a limit, and the share of it that is in use.
    pub fn shares(&self) -> impl Iterator<Item = (&str, f64)> {
        // A flow cache is meant to be full.
        let levels = self.levels.iter().filter(|l| l.limit > 0 && l.name != "flow-cache");
        levels.map(|l| (l.name.as_str(), l.used as f64 / l.limit as f64))
    }

    /// What is the fullest, and its share.
    pub fn fullest(&self) -> Option<(&str, f64)> {
        self.shares().max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Of what happened between two readings.
    fn between(before: &Counters, after: &Counters) -> Usage {
        let seconds = (after.time_ns.saturating_sub(before.time_ns) as f64 / 1e9).max(1e-3);
        let rate = |before: u64, after: u64| (after.saturating_sub(before) as f64 / seconds).round() as u64;
        let (b, a) = (&before.total, &after.total);
        let drops =
            a.drops.iter().map(|(reason, n)| (reason.clone(), rate(b.drops.get(reason).copied().unwrap_or(0), *n)));
        let known: BTreeMap<u32, &TenantCounters> = before.tenants.iter().map(|t| (t.vni, t)).collect();
        let named = || after.tenants.iter().filter(|t| !t.vpc.is_empty());
        let lost = named().map(|t| {
            let was = |reason: &String| known.get(&t.vni).and_then(|t| t.drops.get(reason)).copied().unwrap_or(0);
            let rates = t.drops.iter().map(|(reason, n)| (reason.clone(), rate(was(reason), *n)));
            (t.vpc.clone(), rates.filter(|(_, n)| *n > 0).collect::<BTreeMap<_, _>>())
        });
        let mut lost: Vec<_> = lost.filter(|(_, drops)| !drops.is_empty()).collect();
        lost.sort_by_cached_key(|(_, drops)| Reverse(drops.values().sum::<u64>()));
        lost.truncate(VPCS);
        let rate_of = |t: &TenantCounters, of: fn(&TenantCounters) -> u64| {
            rate(known.get(&t.vni).map_or(0, |before| of(before)), of(t))
        };
        let paths = named().map(|t| ([rate_of(t, |t| t.packets), rate_of(t, |t| t.software)], t.vpc.clone()));
        let vpcs = named().map(|t| (rate_of(t, |t| t.bytes) * 8, t.vpc.clone()));
        Usage {
            packets: rate(b.rx, a.rx),
            bits: rate(b.rx_bytes, a.rx_bytes) * 8,
            drops: drops.filter(|(_, n)| *n > 0).collect(),
            punted: rate(b.punted, a.punted),
            vpcs: most(vpcs.filter(|(bits, _)| *bits > 0)),
            vpc_drops: lost.into_iter().collect(),
            paths: most(paths.filter(|([all, _], _)| *all > 0)),
            ..Usage::default()
        }
    }
}

/// The VPCs with the most of something, and how much it is.
fn most<T: Ord>(all: impl Iterator<Item = (T, String)>) -> BTreeMap<String, T> {
    let mut all: Vec<(T, String)> = all.collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all.truncate(VPCS);
    all.into_iter().map(|(n, vpc)| (vpc, n)).collect()
}

/// Reads a node's usage, seldom: what is asked for in between is as it was.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    last: Option<(Instant, Counters)>,
    usage: Usage,
    /// Tunnel addresses.
    addresses: Vec<IpAddr>,
}

impl Meter {
    /// How it is at present, and the tunnel addresses by which the node is reached.
    pub(crate) fn read(&mut self, node: &Node) -> (Usage, Vec<IpAddr>) {
        let now = Instant::now();
        if self.last.as_ref().is_some_and(|(at, _)| now.duration_since(*at) < PERIOD) {
            return (self.usage.clone(), self.addresses.clone());
        }
        let counters = node.counters();
        let levels = node.levels_beside(&counters.total);
        let rates = self.last.take().map(|(_, before)| Usage::between(&before, &counters)).unwrap_or_default();
        let (engine, ports) = node.engine_and_ports();
        self.usage = Usage {
            engine,
            levels: levels.into_iter().map(|Level { name, used, limit, .. }| Filled { name, used, limit }).collect(),
            link_bits: ports.iter().map(|port| link_bits(port)).sum(),
            ..rates
        };
        self.last = Some((now, counters));
        self.addresses = crate::dataplane::Service::of(&node.core().model).vteps;
        (self.usage.clone(), self.addresses.clone())
    }
}

/// What a link carries. One that is down, or has no speed, says nothing.
fn link_bits(port: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/sys/class/net/{port}/speed")).unwrap_or_default();
    text.trim().parse::<u64>().map_or(0, |megabits| megabits * 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::EngineCounters;

    #[test]
    fn rates_are_of_the_time_between_and_the_fullest_is_no_cache() {
        let tenant = |vpc: &str, vni, bytes| TenantCounters {
            vpc: vpc.into(),
            vni,
            bytes,
            packets: bytes / 10,
            software: bytes / 40,
            ..TenantCounters::default()
        };
        let counters = |seconds: u64, n: u64| Counters {
            time_ns: seconds * 1_000_000_000,
            total: EngineCounters {
                rx: n,
                rx_bytes: n * 100,
                drops: [("route_none".to_string(), n / 2)].into(),
                ..EngineCounters::default()
            },
            tenants: vec![
                TenantCounters { drops: [("vm_unknown".to_string(), n / 4)].into(), ..tenant("a", 1, n * 10) },
                tenant("", 2, n),
                tenant("idle", 3, 7),
            ],
            ..Counters::default()
        };
        let usage = Usage::between(&counters(10, 1000), &counters(12, 3000));
        assert_eq!((usage.packets, usage.bits), (1000, 800_000));
        assert_eq!(usage.drops, [("route_none".to_string(), 500)].into());
        assert_eq!(usage.vpcs, [("a".to_string(), 80_000)].into());
        assert_eq!(usage.paths, [("a".to_string(), [1000, 250])].into());
        assert_eq!(usage.vpc_drops, [("a".to_string(), [("vm_unknown".to_string(), 250)].into())].into());
        // Counters that began anew: nothing is negative.
        assert_eq!(Usage::between(&counters(10, 1000), &counters(12, 0)).packets, 0);
        let filled = |name: &str, used| Filled { name: name.into(), used, limit: 100 };
        let usage = Usage { levels: vec![filled("vms", 30), filled("routes", 40), filled("flow-cache", 99)], ..usage };
        assert_eq!((usage.fullest(), usage.limit("vms")), (Some(("routes", 0.4)), Some(100)));
    }
}
