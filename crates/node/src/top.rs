// SPDX-License-Identifier: Apache-2.0
//! `tunny top`: the difference between two readings.

use crate::types::{CoreLoad, Counters, EngineCounters, FlowCacheUse, TenantRate, Top};
use std::collections::BTreeMap;

/// VPCs that are listed.
const TENANTS: usize = 20;

/// Times of one CPU since boot, in ticks: all, idle, softirq.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    all: u64,
    idle: u64,
    softirq: u64,
}

/// Reads the times of each CPU from the text of /proc/stat.
pub fn cpu_times(stat: &str) -> BTreeMap<u32, CpuTime> {
    let mut cpus = BTreeMap::new();
    for line in stat.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(cpu) = words.next().and_then(|w| w.strip_prefix("cpu")).and_then(|n| n.parse().ok()) else { continue };
        // user nice system idle iowait irq softirq steal (guest times are in user already).
        let ticks: Vec<u64> = words.take(8).filter_map(|w| w.parse().ok()).collect();
        if let [_, _, _, idle, iowait, _, softirq, ..] = ticks[..] {
            cpus.insert(cpu, CpuTime { all: ticks.iter().sum(), idle: idle + iowait, softirq });
        }
    }
    cpus
}

/// One reading.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Counters.
    pub counters: Counters,
    /// CPU times.
    pub cpus: BTreeMap<u32, CpuTime>,
}

fn rates(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>, seconds: f64) -> BTreeMap<String, f64> {
    after
        .iter()
        .map(|(reason, n)| {
            (reason.clone(), n.saturating_sub(before.get(reason).copied().unwrap_or(0)) as f64 / seconds)
        })
        .filter(|(_, rate)| *rate > 0.0)
        .collect()
}

/// A part in percent of all, 0 of nothing.
pub fn share_of(part: f64, all: f64) -> f64 {
    if all > 0.0 {
        part / all * 100.0
    } else {
        0.0
    }
}

/// What happened between two readings. Flows, levels and the engine's name are left for the caller.
pub fn between(before: &Reading, after: &Reading) -> Top {
    let (b, a) = (&before.counters, &after.counters);
    let seconds = (a.time_ns.saturating_sub(b.time_ns) as f64 / 1e9).max(1e-3);
    let rate = |value: fn(&EngineCounters) -> u64| value(&a.total).saturating_sub(value(&b.total)) as f64 / seconds;
    let (rx, punted) = (rate(|c| c.rx), rate(|c| c.punted));
    let fast = a.fast.rx.saturating_sub(b.fast.rx) as f64 / seconds;
    Top {
        seconds,
        rx_pps: rx,
        rx_bps: rate(|c| c.rx_bytes) * 8.0,
        forwarded_pps: rate(|c| c.forwarded),
        dropped_pps: rate(|c| c.dropped),
        punted_pps: punted,
        fast_share: share_of((fast - punted).max(0.0), rx),
        flow_cache: FlowCacheUse {
            hit_percent: share_of(rate(|c| c.flow_hits), rx),
            fills: rate(|c| c.flow_fills),
            evictions: rate(|c| c.flow_evictions),
        },
        drops: rates(&b.total.drops, &a.total.drops, seconds),
        punts: rates(&b.fast.punts, &a.fast.punts, seconds),
        tenants: tenants(b, a, seconds),
        cores: cores(before, after, seconds),
        balanced: a.balance.balanced,
        ..Default::default()
    }
}

fn tenants(before: &Counters, after: &Counters, seconds: f64) -> Vec<TenantRate> {
    let earlier: BTreeMap<u32, _> = before.tenants.iter().map(|t| (t.vni, t)).collect();
    let mut list: Vec<TenantRate> = after
        .tenants
        .iter()
        .map(|t| {
            let (packets, bytes, drops) =
                earlier.get(&t.vni).map_or((0, 0, 0), |e| (e.packets, e.bytes, e.drops.values().sum::<u64>()));
            TenantRate {
                vni: t.vni,
                vpc: t.vpc.clone(),
                pps: t.packets.saturating_sub(packets) as f64 / seconds,
                bps: t.bytes.saturating_sub(bytes) as f64 * 8.0 / seconds,
                drops: t.drops.values().sum::<u64>().saturating_sub(drops) as f64 / seconds,
            }
        })
        .filter(|t| t.pps > 0.0 || t.drops > 0.0)
        .collect();
    list.sort_by(|x, y| (y.pps + y.drops).total_cmp(&(x.pps + x.drops)));
    list.truncate(TENANTS);
    list
}

fn cores(before: &Reading, after: &Reading, seconds: f64) -> Vec<CoreLoad> {
    let received = |counters: &Counters, cpu: u32| {
        counters.slots.iter().find(|s| s.name == format!("cpu{cpu}")).map_or(0, |s| s.rx)
    };
    let share = |part: u64, all: u64| share_of(part as f64, all as f64);
    after
        .cpus
        .iter()
        .map(|(cpu, now)| {
            let then = before.cpus.get(cpu).copied().unwrap_or_default();
            let all = now.all.saturating_sub(then.all);
            let idle = now.idle.saturating_sub(then.idle);
            CoreLoad {
                cpu: *cpu,
                busy: share(all.saturating_sub(idle), all),
                softirq: share(now.softirq.saturating_sub(then.softirq), all),
                pps: received(&after.counters, *cpu).saturating_sub(received(&before.counters, *cpu)) as f64 / seconds,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{SlotCounters, TenantCounters};

    #[test]
    fn rates_are_differences_over_time() {
        let before =
            Reading { cpus: cpu_times("cpu  9 9\ncpu0 10 0 10 70 0 0 10 0 0 0\nintr 5\n"), ..Default::default() };
        let mut after = Reading { cpus: cpu_times("cpu0 20 0 20 120 0 0 40 0 0 0\n"), ..Default::default() };
        let c = &mut after.counters;
        c.time_ns = 2_000_000_000;
        c.total.rx = 1000;
        c.fast.rx = 1000;
        c.total.punted = 10;
        c.total.flow_hits = 900;
        c.total.flow_evictions = 6;
        c.total.drops.insert("vm_unknown".into(), 4);
        c.tenants.push(TenantCounters { vni: 7, packets: 600, ..Default::default() });
        c.slots.push(SlotCounters { name: "cpu0".into(), rx: 1000, ..Default::default() });
        let top = between(&before, &after);
        assert_eq!((top.rx_pps, top.drops["vm_unknown"], top.tenants[0].pps), (500.0, 2.0, 300.0));
        assert_eq!(top.fast_share, 99.0);
        assert_eq!(top.flow_cache, FlowCacheUse { hit_percent: 90.0, fills: 0.0, evictions: 3.0 });
        assert_eq!((top.cores[0].busy, top.cores[0].softirq, top.cores[0].pps), (50.0, 30.0, 500.0));
    }
}
