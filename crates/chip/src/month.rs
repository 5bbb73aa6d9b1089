// SPDX-License-Identifier: Apache-2.0
//! A month of route updates (Fig. 23: slow growth, sudden jumps) into the tables as they stand: nothing that is installed
//! is mapped anew, only what an insert needs is moved.

use crate::load::{thousands, Load};
use crate::model::alpm::{Alpm, Shape};
use crate::model::key::{KeyPrefix, BITS};
use crate::model::vms::{Form, Vms};
use crate::model::workload::{Size, Workload};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::collections::BTreeMap;

/// One day.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Day {
    /// From 1.
    pub day: u32,
    /// Routes at its end.
    pub routes: usize,
    /// Routes inserted and removed.
    pub updates: u64,
    /// Routes that a jump brought.
    pub jump: u64,
    /// Prefixes moved to another partition.
    pub moved: u64,
    /// VM entries moved to another place.
    pub vm_moved: u64,
    /// Inserts refused for want of room.
    pub refused: u64,
    /// Pivots.
    pub pivots: usize,
    /// Share of places taken.
    pub fill: f64,
    /// Share of free places that lie in partitions which can take no further subtree.
    pub fragmentation: f64,
}

/// How the month goes.
#[derive(Clone, Copy, Debug)]
pub struct Month {
    /// Routes at the beginning.
    pub routes: u64,
    /// VPCs at the beginning.
    pub vnis: u64,
    /// VM addresses.
    pub vms: u64,
    /// Partitions.
    pub partitions: u32,
    /// Pivots a partition.
    pub subtrees: u32,
    /// Places of a partition.
    pub bucket: u32,
    /// Percent of routes and addresses over IPv6.
    pub ipv6_percent: u64,
}

impl Month {
    /// What the month is run on, and what that is of the load.
    pub fn says(&self, load: &Load) -> String {
        let n = [self.routes, self.vnis, self.vms].map(thousands);
        let whole = match self.routes == load.part(2).routes() {
            true => "half of the load",
            false => "a sample of the load, which has from 1,000 to 200,000 routes",
        };
        format!(
            "{} random routes of {} VPCs and {} VM addresses, {}% IPv6, at its beginning, {whole}; ALPM of {} partitions x {} with \
             {} places each",
            n[0], n[1], n[2], self.ipv6_percent, self.partitions, self.subtrees, self.bucket
        )
    }
}

/// Days on which a large customer comes, and its share of the routes at the beginning, in thousandths.
const JUMPS: [(u32, u64); 3] = [(6, 60), (15, 25), (23, 90)];

/// Runs the month; every lookup structure is checked against an oracle at its end.
pub fn run(m: &Month, seed: u64) -> Result<Vec<Day>, String> {
    let size = Size { vnis: m.vnis, routes: m.routes * 3 / 2, vms: m.vms * 11 / 10, ipv6_percent: m.ipv6_percent };
    let pool = Workload::new(size, seed);
    let prefix = |i: usize| {
        let r = &pool.routes[i];
        KeyPrefix::route(r.vni, r.v6, r.addr, r.len.into())
    };
    let shape = Shape { partitions: m.partitions, subtrees: m.subtrees, bucket: m.bucket, pivot_min: 0, window: BITS };
    let mut installed: Vec<usize> = (0..m.routes as usize).collect();
    let start: Vec<(KeyPrefix, u32)> = installed.iter().map(|i| (prefix(*i), *i as u32)).collect();
    let mut oracle: BTreeMap<KeyPrefix, u32> = start.iter().copied().collect();
    let mut table = Alpm::build(shape, &start).map_err(|e| e.to_string())?;
    let mut vms = Vms::new(Form::Digest { bits: 20, pack: 5 }, m.vms * 1_146_880 / (1 << 20), seed);
    for (key, value) in &pool.vms[..m.vms as usize] {
        vms.insert(*key, *value).map_err(|e| e.to_string())?;
    }
    let mut rng = SplitMix64::seed_from_u64(seed ^ 23);
    let mut fresh = m.routes as usize;
    let mut days = Vec::new();
    for day in 1..=30 {
        let before = (table.moved(), vms.moves());
        let jump = JUMPS.iter().find(|j| j.0 == day).map_or(0, |j| m.routes * j.1 / 1000);
        // A few thousandths come and go each day, a little more comes than goes.
        let (come, go) = (m.routes * 4 / 1000 + jump, m.routes * 3 / 1000);
        let mut refused = 0;
        for _ in 0..go {
            let at = rng.random_range(0..installed.len() as u64) as usize;
            let p = prefix(installed.swap_remove(at));
            if table.remove(&p) != oracle.remove(&p) {
                return Err(format!("day {day}: {p:?} was not there as it should"));
            }
        }
        for _ in 0..come.min((pool.routes.len() - fresh) as u64) {
            let (p, value) = (prefix(fresh), fresh as u32);
            match table.insert(p, value) {
                Ok(()) => {
                    oracle.insert(p, value);
                    installed.push(fresh);
                }
                Err(_) => refused += 1,
            }
            fresh += 1;
        }
        for i in 0..m.vms / 500 {
            let (old, new) = (
                rng.random_range(0..m.vms) as usize,
                (m.vms + (u64::from(day) * m.vms / 500 + i) % (m.vms / 10).max(1)) as usize,
            );
            vms.remove(&pool.vms[old].0);
            vms.insert(pool.vms[new].0, pool.vms[new].1).map_err(|e| e.to_string())?;
        }
        days.push(Day {
            day,
            routes: table.len(),
            updates: come + go,
            jump,
            moved: table.moved() - before.0,
            vm_moved: vms.moves() - before.1,
            refused,
            pivots: table.pivots(),
            fill: table.fill(),
            fragmentation: table.fragmentation(),
        });
    }
    table.audit()?;
    for _ in 0..20_000 {
        let p = prefix(rng.random_range(0..pool.routes.len() as u64) as usize);
        let want = (0..=BITS).rev().find_map(|len| {
            let q = KeyPrefix { bits: p.bits.first(len), len };
            oracle.get(&q).map(|v| (len, *v))
        });
        if table.lookup(&p.bits) != want {
            return Err(format!("after the month {p:?} gives {:?} instead of {want:?}", table.lookup(&p.bits)));
        }
    }
    Ok(days)
}
