// SPDX-License-Identifier: Apache-2.0
//! How many nodes a region needs: by traffic, and by table entries.

use crate::technique::{place, Load, Techniques};
use crate::Profile;

/// What is asked of a region.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Demand {
    /// Traffic, terabits a second.
    pub tbps: f64,
    /// Entries.
    pub load: Load,
    /// Share of its rate that a node is used to in normal operation.
    pub water_level: f64,
    /// Share of traffic that goes to the software gateways.
    pub software_share: f64,
    /// Price of a node of either kind, dollars (Sailfish: roughly the same).
    pub node_price: f64,
    /// Rate of a software gateway, gigabits a second.
    pub software_gbps: f64,
}

impl Demand {
    /// Section 2.3 of the Sailfish paper.
    pub fn sailfish() -> Demand {
        Demand {
            tbps: 15.0,
            load: Load::sailfish(25),
            water_level: 0.5,
            software_share: 0.002,
            node_price: 10_000.0,
            software_gbps: 100.0,
        }
    }
}

/// The answer.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Region {
    /// Nodes of an all-software region, 1:1 backup included.
    pub software_only_nodes: u64,
    /// Its price.
    pub software_only_dollars: f64,
    /// Clusters that the entries need.
    pub clusters: u64,
    /// The load, in times of itself, that one chip holds.
    pub loads_a_chip: f64,
    /// Hardware nodes, backup included.
    pub hardware_nodes: u64,
    /// Software nodes beside them.
    pub software_nodes: u64,
    /// Price of both.
    pub dollars: f64,
    /// Saved, percent.
    pub saved_percent: f64,
    /// What the paper says.
    pub paper: &'static str,
    /// How the nodes are counted.
    pub counted: &'static str,
}

/// How often the load fits into one chip (a hundredth to 64 times).
pub fn loads_a_chip(p: &Profile, load: &Load, t: &Techniques) -> f64 {
    let scaled = |hundredths: u64| {
        let s = |n: u64| (n * hundredths).div_ceil(100);
        Load {
            routes4: s(load.routes4),
            routes6: s(load.routes6),
            vms4: s(load.vms4),
            vms6: s(load.vms6),
            vnis: s(load.vnis),
            ncs: load.ncs,
        }
    };
    let (mut low, mut high) = (0, 6400);
    while low < high {
        let middle = (low + high + 1) / 2;
        (low, high) = if place(p, &scaled(middle), t).is_ok() { (middle, high) } else { (low, middle - 1) };
    }
    low as f64 / 100.0
}

/// Sizes the region.
pub fn size(p: &Profile, demand: &Demand, t: &Techniques, node_tbps: f64) -> Region {
    let up = |v: f64| v.ceil().max(1.0) as u64;
    let software_only_nodes = 2 * up(demand.tbps * 1000.0 / (demand.software_gbps * demand.water_level));
    let loads = loads_a_chip(p, &demand.load, t);
    let clusters = if loads > 0.0 { up(1.0 / loads) } else { 0 };
    // Both halves of a 1:1 pair carry traffic, so that each stands at the water level, and one takes all if the other dies.
    let half = up(demand.tbps / (node_tbps * 2.0 * demand.water_level)).max(clusters);
    let hardware_nodes = 2 * half;
    // One more than the traffic needs, and again 1:1.
    let software = up(demand.tbps * demand.software_share * 1000.0 / (demand.software_gbps * demand.water_level)) + 1;
    let software_nodes = 2 * software;
    let dollars = (hardware_nodes + software_nodes) as f64 * demand.node_price;
    let software_only_dollars = software_only_nodes as f64 * demand.node_price;
    Region {
        software_only_nodes,
        software_only_dollars,
        clusters,
        loads_a_chip: loads,
        hardware_nodes,
        software_nodes,
        dollars,
        saved_percent: 100.0 * (1.0 - dollars / software_only_dollars),
        paper: "600 software gateways against ten XGW-H and four XGW-x86; more than 90% saved",
        counted:
            "software: traffic over rate at the water level, twice for 1:1 backup. Hardware: pairs whose halves both \
                  carry traffic, so that all stand at the water level. Software beside: one to spare, twice",
    }
}
