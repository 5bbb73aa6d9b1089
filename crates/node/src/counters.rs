// SPDX-License-Identifier: Apache-2.0
//! Reading the counters of both engines, and the conservation law over them.
//!
//! In a slot of the fast path: rx = forwarded + answered + passed + dropped + punted. In a slot of a software worker:
//! rx + generated = forwarded + answered + passed + dropped, and `punted` is the number of packets taken in from the fast path.
//! What was punted and not yet taken in is in flight. The sum of it all is the law of the packet path.

use crate::types::{Balance, Counters, CustomerDrops, EngineCounters, SlotCounters, TenantCounters};
use abi::{DropReason, PuntReason, Stats, Vni};
use std::collections::BTreeMap;
use tables::Tables;

/// Readings that are taken before a difference is believed.
const TRIES: u32 = 20;
/// Packets that one engine may have between its first and its last counter.
const BETWEEN: i64 = 256;

/// CLOCK_MONOTONIC, ns.
pub fn monotonic_ns() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
}

fn add(sum: &mut EngineCounters, s: &Stats) {
    sum.rx += s.rx;
    sum.rx_bytes += s.rx_bytes;
    sum.generated += s.generated;
    sum.forwarded += s.forwarded;
    sum.forwarded_bytes += s.forwarded_bytes;
    sum.answered += s.answered;
    sum.passed += s.passed;
    sum.dropped += s.dropped;
    sum.punted += s.punted;
    sum.nat += s.nat;
    sum.flow_hits += s.flow_hits;
    sum.flow_fills += s.flow_fills;
    sum.flow_evictions += s.flow_evictions;
    for (number, n) in s.drops.iter().enumerate().filter(|(_, n)| **n > 0) {
        let name = DropReason::from_number(number as u8).map_or("unknown", |r| r.name());
        *sum.drops.entry(name.to_string()).or_default() += n;
    }
    for (number, n) in s.punts.iter().enumerate().filter(|(_, n)| **n > 0) {
        let name = PuntReason::from_number(number as u8).map_or("unknown", |r| r.name());
        *sum.punts.entry(name.to_string()).or_default() += n;
    }
}

fn outcomes(c: &EngineCounters) -> i64 {
    (c.forwarded + c.answered + c.passed + c.dropped) as i64
}

/// Both engines' sums at one moment.
struct Reading {
    fast: EngineCounters,
    software: EngineCounters,
    slots: Vec<SlotCounters>,
    overflow: u64,
}

impl Reading {
    fn take(tables: &Tables) -> Self {
        let (slots, xdp_slots) = tables.slots();
        let mut reading =
            Self { fast: Default::default(), software: Default::default(), slots: Vec::new(), overflow: 0 };
        for slot in 0..slots {
            let s = tables.stats(slot).read();
            reading.overflow += s.drop_overflow;
            let name = if slot < xdp_slots { format!("cpu{slot}") } else { format!("worker{}", slot - xdp_slots) };
            add(if slot < xdp_slots { &mut reading.fast } else { &mut reading.software }, &s);
            if s.rx != 0 || s.dropped != 0 {
                reading.slots.push(SlotCounters { name, rx: s.rx, forwarded: s.forwarded, dropped: s.dropped });
            }
        }
        reading
    }

    fn difference(&self) -> i64 {
        let fast = self.fast.rx as i64 - outcomes(&self.fast) - self.fast.punted as i64;
        let software = (self.software.rx + self.software.generated) as i64 - outcomes(&self.software);
        fast + software
    }

    fn in_flight(&self) -> i64 {
        self.fast.punted as i64 - self.software.punted as i64
    }

    fn received(&self) -> u64 {
        self.fast.rx + self.software.rx
    }
}

/// Reads until the law holds, or has been found broken on a node where nothing moves.
fn stable(tables: &Tables) -> (Reading, Balance) {
    let first = Reading::take(tables);
    let (start, mut reading) = (first.received(), first);
    for _ in 0..TRIES {
        if reading.difference() == 0 && reading.in_flight() >= 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
        reading = Reading::take(tables);
    }
    let (difference, in_flight) = (reading.difference(), reading.in_flight());
    // While packets run, some are always between their first and their last counter.
    let moving = reading.received() != start;
    let allowed = if moving { BETWEEN * reading.slots.len() as i64 } else { 0 };
    let balanced = difference.abs() <= allowed && in_flight >= -allowed;
    (reading, Balance { balanced, difference, in_flight })
}

/// All counters. `vpcs` gives the name of each VNI.
pub fn read(tables: &Tables, vpcs: &BTreeMap<Vni, String>) -> Counters {
    let (reading, balance) = stable(tables);
    let (fast, software) = (reading.fast, reading.software);
    let mut total = EngineCounters {
        rx: (fast.rx + software.rx).saturating_sub(software.punted),
        rx_bytes: fast.rx_bytes.max(software.rx_bytes),
        generated: fast.generated + software.generated,
        forwarded: fast.forwarded + software.forwarded,
        forwarded_bytes: fast.forwarded_bytes + software.forwarded_bytes,
        answered: fast.answered + software.answered,
        passed: fast.passed + software.passed,
        dropped: fast.dropped + software.dropped,
        punted: fast.punted,
        nat: fast.nat + software.nat,
        flow_hits: fast.flow_hits + software.flow_hits,
        flow_fills: fast.flow_fills + software.flow_fills,
        flow_evictions: fast.flow_evictions + software.flow_evictions,
        drops: fast.drops.clone(),
        punts: fast.punts.clone(),
    };
    for (reason, n) in &software.drops {
        *total.drops.entry(reason.clone()).or_default() += n;
    }
    Counters {
        time_ns: monotonic_ns(),
        total,
        fast,
        software,
        balance,
        tenants: tenants(tables, vpcs),
        customers: customers(tables),
        slots: reading.slots,
        drop_overflow: reading.overflow,
    }
}

fn tenants(tables: &Tables, vpcs: &BTreeMap<Vni, String>) -> Vec<TenantCounters> {
    tables.memory().gather();
    let _guard = tables.enter();
    let mut by_vni: BTreeMap<Vni, TenantCounters> = BTreeMap::new();
    for (vni, name) in vpcs {
        let Some(tenant) = tables.tenant(*vni) else { continue };
        let count = tables.tenant_count(&tenant);
        let (punts, punts_limited) = tables.tenant_punts(&tenant);
        let counters = TenantCounters {
            vni: vni.0,
            vpc: name.clone(),
            packets: count.packets,
            bytes: count.bytes,
            punts,
            punts_limited,
            software: tables.tenant_software(&tenant),
            meter: tables.meter_colors(tables.tenant_meter(&tenant)),
            ..Default::default()
        };
        by_vni.insert(*vni, counters);
    }
    // Drops of customers whose overlay is not known: `customers`.
    for (vni, reason, n) in tables.drop_counts().into_iter().filter(|(vni, ..)| vni.0 & abi::DROP_CUSTOMER == 0) {
        let entry = by_vni.entry(vni).or_insert_with(|| TenantCounters { vni: vni.0, ..Default::default() });
        *entry.drops.entry(reason.name().to_string()).or_default() += n;
    }
    by_vni.into_values().collect()
}

/// Drops of customers at edge ports for which no VPC can be charged.
fn customers(tables: &Tables) -> Vec<CustomerDrops> {
    let _guard = tables.enter();
    let mut found: BTreeMap<(u8, u16), CustomerDrops> = BTreeMap::new();
    for (vni, reason, n) in tables.drop_counts() {
        if vni.0 & abi::DROP_CUSTOMER == 0 {
            continue;
        }
        let (port, customer) = ((vni.0 >> abi::DROP_CUSTOMER_PORT_SHIFT) as u8 & 15, vni.0 as u16 & 0xfff);
        let new = || CustomerDrops { port, customer, drops: BTreeMap::new() };
        *found.entry((port, customer)).or_insert_with(new).drops.entry(reason.name().to_string()).or_default() += n;
    }
    found.into_values().collect()
}

/// Packets that an earlier process had taken in, or that waited in its rings, are gone: counts them in the last of the slots in
/// which it counted, and returns their number. No packet may be punted in these slots meanwhile.
pub fn account_for_the_dead(tables: &Tables, slots: impl IntoIterator<Item = u32>) -> u64 {
    let (_, xdp_slots) = tables.slots();
    let (mut waiting, mut unfinished, mut software) = (0i64, 0i64, None);
    for slot in slots {
        let s = tables.stats(slot).read();
        let done = (s.forwarded + s.answered + s.passed + s.dropped) as i64;
        if slot < xdp_slots {
            waiting += s.punted as i64;
        } else {
            waiting -= s.punted as i64;
            unfinished += (s.rx + s.generated) as i64 - done;
            software = Some(slot);
        }
    }
    let Some(software) = software else { return 0 };
    let stats = tables.stats(software);
    let (waiting, unfinished) = (waiting.max(0) as u64, unfinished.max(0) as u64);
    stats.taken(waiting);
    stats.lost(DropReason::PuntNoListener, waiting);
    stats.gone(DropReason::PuntNoListener, unfinished);
    waiting + unfinished
}
