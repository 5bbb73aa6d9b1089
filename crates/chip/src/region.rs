// SPDX-License-Identifier: Apache-2.0
//! How many nodes a region needs: by traffic, and by table entries.

use crate::technique::{fits, Load, Techniques};
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
    /// What was asked for.
    pub demand: Demand,
    /// Clusters that were asked for.
    pub clusters_asked: u64,
    /// The fewest clusters that hold the entries; None: no number does.
    pub clusters_needed: Option<u64>,
    /// Clusters that are counted.
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

impl Region {
    /// Clusters in words.
    pub fn clusters_say(&self) -> String {
        let needed = match self.clusters_needed {
            Some(n) => format!("The entries need {n} cluster(s)"),
            None => "No number of clusters holds the entries".into(),
        };
        let counted = match self.clusters_needed {
            Some(n) if n > self.clusters_asked => {
                format!("{} asked for are too few, so {n} are counted", self.clusters_asked)
            }
            _ => format!("{} counted", self.clusters),
        };
        format!("{needed}, {counted}; one chip holds the load {:.2} times", self.loads_a_chip)
    }
}

/// How often the load fits into one chip (a hundredth to 64 times), or into one in each of the given clusters.
pub fn loads_a_chip(p: &Profile, load: &Load, t: &Techniques) -> f64 {
    let (mut low, mut high) = (0, 6400u64);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        (low, high) = if fits(p, &load.hundredths(middle), t) { (middle, high) } else { (low, middle - 1) };
    }
    low as f64 / 100.0
}

/// Most clusters that are thought of.
const CLUSTERS_MAX: u64 = 1 << 16;

/// The fewest clusters that hold the load when its tenants are divided between them; None: no number does, because what
/// is in every cluster alike does not fit.
pub fn clusters_needed(p: &Profile, load: &Load, t: &Techniques) -> Option<u64> {
    let enough = |clusters: u64| fits(p, load, &Techniques { clusters, ..*t });
    let mut high = 1;
    while !enough(high) {
        high *= 2;
        if high > CLUSTERS_MAX {
            return None;
        }
    }
    let mut low = high / 2;
    while low + 1 < high {
        let middle = (low + high) / 2;
        (low, high) = if enough(middle) { (low, middle) } else { (middle, high) };
    }
    Some(high)
}

/// Sizes the region: as many clusters as asked for, or as the entries need if those are more.
pub fn size(p: &Profile, demand: &Demand, t: &Techniques, node_tbps: f64) -> Region {
    let up = |v: f64| v.ceil().max(1.0) as u64;
    let software_only_nodes = 2 * up(demand.tbps * 1000.0 / (demand.software_gbps * demand.water_level));
    let clusters_needed = clusters_needed(p, &demand.load, t);
    let clusters = t.clusters.max(clusters_needed.unwrap_or(0));
    // Both halves of a 1:1 pair carry traffic, so that each stands at the water level, and one takes all if the other dies.
    // A node holds the entries of its cluster only, so each cluster has pairs of its own.
    let half = up(demand.tbps / clusters as f64 / (node_tbps * 2.0 * demand.water_level));
    let hardware_nodes = 2 * half * clusters;
    // One more than the traffic needs, and again 1:1.
    let software = up(demand.tbps * demand.software_share * 1000.0 / (demand.software_gbps * demand.water_level)) + 1;
    let software_nodes = 2 * software;
    let dollars = (hardware_nodes + software_nodes) as f64 * demand.node_price;
    let software_only_dollars = software_only_nodes as f64 * demand.node_price;
    Region {
        demand: *demand,
        software_only_nodes,
        software_only_dollars,
        clusters_asked: t.clusters,
        clusters_needed,
        clusters,
        loads_a_chip: loads_a_chip(p, &demand.load, &Techniques { clusters: 1, ..*t }),
        hardware_nodes,
        software_nodes,
        dollars,
        saved_percent: 100.0 * (1.0 - dollars / software_only_dollars),
        paper: "600 software gateways against ten XGW-H and four XGW-x86; more than 90% saved",
        counted:
            "software: traffic over rate at the water level, twice for 1:1 backup. Hardware: in each cluster, which has its \
             share of the traffic, pairs whose halves both carry traffic, so that all stand at the water level. Software \
             beside: one to spare, twice",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_that_are_asked_for_are_counted() {
        let p = crate::profile::parse("tofino1.yaml", crate::profile::built_in("tofino1").unwrap()).unwrap();
        let paper = crate::sailfish::techniques().pop().unwrap().1;
        let sized = |load: Load, clusters| {
            size(&p, &Demand { load, ..Demand::sailfish() }, &Techniques { clusters, ..paper }, 3.2)
        };
        let load = Load::sailfish(25);
        // 15 Tbit/s on one cluster are five pairs; on four, 3.75 each, two pairs each.
        for (clusters, nodes) in [(1, 10), (4, 16), (5, 10), (40, 80)] {
            let r = sized(load, clusters);
            assert_eq!((r.clusters, r.clusters_needed, r.hardware_nodes), (clusters, Some(1), nodes), "{r:?}");
            assert_eq!(r.dollars, (nodes + 4) as f64 * 10_000.0);
        }
        // What does not fit into one cluster is counted in as many as it needs, also where fewer are asked for.
        let r = sized(load.hundredths(700), 2);
        let needed = r.clusters_needed.unwrap();
        assert!(needed > 2 && r.clusters == needed && r.hardware_nodes >= 2 * needed, "{r:?}");
        let with = |clusters| fits(&p, &load.hundredths(700), &Techniques { clusters, ..paper });
        assert!(with(needed) && !with(needed - 1));
    }
}
