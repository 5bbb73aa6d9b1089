// SPDX-License-Identifier: Apache-2.0
//! What happens to a simulated region from outside: what tenants and operators ask for, and what breaks. A plan is drawn from a seed before anything
//! runs; any part of it can be left out.

use crate::chance;
use rand::RngExt;
use rand_xoshiro::SplitMix64;
use std::fmt;

/// A region, and what happens to it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Size {
    /// Clusters.
    pub clusters: usize,
    /// Nodes of each.
    pub nodes: usize,
    /// Controllers.
    pub controllers: usize,
    /// Hosts.
    pub hosts: usize,
    /// Tenants that come in all.
    pub tenants: u32,
    /// Requests.
    pub requests: usize,
    /// Faults.
    pub faults: usize,
    /// Seconds in which these begin.
    pub seconds: u64,
}

impl Size {
    /// A small region, of a seed.
    pub fn small(seed: u64) -> Size {
        let mut rng = chance::of(seed, &[1]);
        Size {
            clusters: rng.random_range(1..4),
            nodes: rng.random_range(1..4),
            controllers: rng.random_range(1..4),
            hosts: rng.random_range(1..3),
            tenants: rng.random_range(3..9),
            requests: rng.random_range(15..40),
            faults: rng.random_range(2..10),
            seconds: rng.random_range(120..420),
        }
    }

    /// Nodes at the beginning.
    pub fn all_nodes(&self) -> usize {
        self.clusters * self.nodes
    }
}

/// Something that happens. `ms` is for how long; nodes, tenants and all else go by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Act {
    /// A tenant comes with VPCs of so many VMs each; its first VPC goes to the Internet, or not.
    Come { tenant: u32, vpcs: u32, vms: u32, snat: bool },
    /// It gets VMs in one of its VPCs.
    Grow { tenant: u32, vpc: u32, vms: u32 },
    /// Some of its VMs go.
    Shrink { tenant: u32, vpc: u32, vms: u32 },
    /// One of its VMs moves to another NC.
    Shift { tenant: u32, vpc: u32, nc: u32 },
    /// It goes.
    Leave { tenant: u32 },
    /// Its document names a cluster, or none any more.
    Pin { tenant: u32, cluster: Option<usize> },
    /// Its first VPC is peered with that of another, or no longer.
    Peer { one: u32, other: u32 },
    /// An operator moves it.
    Move { tenant: u32, cluster: usize },
    /// An operator turns that round.
    Abort { tenant: u32 },
    /// A node comes to a cluster.
    Join { cluster: usize },
    /// A node dies, and starts again after a while, with its disk or without.
    Crash { node: usize, ms: u64, forgets: bool },
    /// A node dies for good, and its document goes after a while.
    Lose { node: usize, ms: u64 },
    /// All nodes of a cluster die.
    CrashCluster { cluster: usize, ms: u64 },
    /// All nodes and controllers die.
    Blackout { ms: u64 },
    /// Nodes of a cluster, or one of them, do not reach any controller.
    Cut { cluster: usize, node: Option<usize>, ms: u64 },
    /// A host does not reach any controller.
    CutHost { host: usize, ms: u64 },
    /// A controller does not reach the store.
    CutController { controller: usize, ms: u64 },
    /// The store does not answer.
    Away { ms: u64 },
    /// A controller dies, and starts again.
    Kill { controller: usize, ms: u64 },
    /// A controller stands still.
    Stall { controller: usize, ms: u64 },
    /// Of the next transaction of a controller no answer comes; it is written or not.
    Unheard { controller: usize, written: bool },
    /// A controller's clock jumps.
    Jump { controller: usize, ms: i64 },
    /// A node is so many times slower.
    Slow { node: usize, times: u64, ms: u64 },
    /// A node says that a probe fails, or that none does, whatever is so.
    Lie { node: usize, fails: bool, ms: u64 },
    /// Entries of a node's tables are not as configured.
    Corrupt { node: usize, entries: u64 },
    /// Nodes carry so many times the usual traffic.
    Traffic { times: u64 },
    /// All nodes get a new version, one after the other, so many milliseconds each.
    Upgrade { ms: u64 },
}

impl Act {
    /// Whether it is a fault and no request.
    pub fn is_fault(&self) -> bool {
        use Act::*;
        !matches!(
            self,
            Come { .. }
                | Grow { .. }
                | Shrink { .. }
                | Shift { .. }
                | Leave { .. }
                | Pin { .. }
                | Peer { .. }
                | Move { .. }
                | Abort { .. }
                | Join { .. }
                | Traffic { .. }
        )
    }
}

/// Something that happens at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its number in the whole plan.
    pub number: usize,
    /// Milliseconds from the beginning.
    pub at: u64,
    /// What.
    pub act: Act,
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:.3} s: {:?}", self.number, self.at as f64 / 1000.0, self.act)
    }
}

/// The plan of a seed.
pub fn of(seed: u64, size: &Size) -> Vec<Item> {
    let mut rng = chance::of(seed, &[2]);
    let end = size.seconds * 1000;
    let mut all: Vec<(u64, Act)> = Vec::new();
    for tenant in 0..size.tenants {
        // Half of them at the beginning.
        let at = if tenant % 2 == 0 { rng.random_range(4_000..20_000) } else { rng.random_range(20_000..end) };
        let (vpcs, vms, snat) = (rng.random_range(1..4), rng.random_range(1..6), rng.random_range(0..2) == 0);
        all.push((at, Act::Come { tenant, vpcs, vms, snat }));
    }
    for _ in 0..size.requests {
        all.push((rng.random_range(15_000..end), request(&mut rng, size)));
    }
    for _ in 0..size.faults {
        all.push((rng.random_range(25_000..end), fault(&mut rng, size)));
    }
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().enumerate().map(|(number, (at, act))| Item { number, at, act }).collect()
}

fn request(rng: &mut SplitMix64, size: &Size) -> Act {
    let tenant = rng.random_range(0..size.tenants);
    let (vpc, vms) = (rng.random_range(0..3), rng.random_range(1..5));
    let cluster = rng.random_range(0..size.clusters);
    match rng.random_range(0..20) {
        // Sudden growth.
        0 => Act::Grow { tenant, vpc, vms: rng.random_range(50..200) },
        1..=5 => Act::Grow { tenant, vpc, vms },
        6..=7 => Act::Shrink { tenant, vpc, vms },
        8..=9 => Act::Shift { tenant, vpc, nc: rng.random_range(0..4) },
        10 => Act::Leave { tenant },
        11..=12 => Act::Pin { tenant, cluster: (rng.random_range(0..3) > 0).then_some(cluster) },
        13 => Act::Peer { one: tenant, other: rng.random_range(0..size.tenants) },
        14..=17 => Act::Move { tenant, cluster },
        18 => Act::Abort { tenant },
        _ => Act::Join { cluster },
    }
}

pub(crate) fn fault(rng: &mut SplitMix64, size: &Size) -> Act {
    let (node, cluster) = (rng.random_range(0..size.all_nodes()), rng.random_range(0..size.clusters));
    let controller = rng.random_range(0..size.controllers);
    // Short ones nobody notices, middle ones a lease notices, long ones everybody.
    let ms = match rng.random_range(0..3) {
        0 => rng.random_range(50..2_000),
        1 => rng.random_range(2_000..12_000),
        _ => rng.random_range(12_000..60_000),
    };
    match rng.random_range(0..24) {
        0..=3 => Act::Crash { node, ms, forgets: rng.random_range(0..2) == 0 },
        4 => Act::Lose { node, ms },
        5 => Act::CrashCluster { cluster, ms },
        6 => Act::Blackout { ms },
        7..=8 => Act::Cut { cluster, node: (rng.random_range(0..3) > 0).then_some(node), ms },
        9 => Act::CutHost { host: rng.random_range(0..size.hosts), ms },
        10 => Act::CutController { controller, ms },
        11 => Act::Away { ms },
        12..=13 => Act::Kill { controller, ms },
        14..=15 => Act::Stall { controller, ms },
        16 => Act::Unheard { controller, written: rng.random_range(0..2) == 0 },
        17 => {
            let jump = rng.random_range(1_000..7_200_000_i64);
            Act::Jump { controller, ms: if rng.random_range(0..2) == 0 { jump } else { -jump } }
        }
        18 => Act::Slow { node, times: rng.random_range(5..200), ms },
        19 => Act::Lie { node, fails: rng.random_range(0..2) == 0, ms },
        20..=21 => Act::Corrupt { node, entries: rng.random_range(1..4) },
        _ => Act::Upgrade { ms: rng.random_range(1_000..8_000) },
    }
}
