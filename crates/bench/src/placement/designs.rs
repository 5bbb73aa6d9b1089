// SPDX-License-Identifier: Apache-2.0
//! Other designs of placement, to be set beside the one that the controller has. Each is a function of tenants and clusters that knows no past.

use controller_core::placement::Amounts;

/// Where each tenant goes: rendezvous hashing with weights by capacity. A tenant goes to the cluster of the highest score −weight ÷ ln(hash).
pub fn hashed(tenants: &[Amounts], clusters: &[Amounts]) -> Vec<usize> {
    let rank = |t: usize| (0..clusters.len()).max_by(|a, b| score(t, *a, clusters).total_cmp(&score(t, *b, clusters)));
    (0..tenants.len()).map(|t| rank(t).unwrap_or(0)).collect()
}

/// The same with bounded loads: a cluster that would stand higher than `bound` times the mean in anything is passed over, large tenants first.
pub fn hashed_bounded(tenants: &[Amounts], clusters: &[Amounts], bound: f64) -> Vec<usize> {
    let limits = even(tenants, clusters, bound);
    let mut loads = vec![Amounts::ZERO; clusters.len()];
    let mut places = vec![0; tenants.len()];
    for t in largest_first(tenants) {
        let mut ranked: Vec<(f64, usize)> = (0..clusters.len()).map(|c| (score(t, c, clusters), c)).collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
        let fits = |c: &(f64, usize)| (loads[c.1] + tenants[t]).within(&limits[c.1]);
        let to = ranked.iter().find(|c| fits(c)).unwrap_or(&ranked[0]).1;
        loads[to] += tenants[t];
        places[t] = to;
    }
    places
}

/// The largest first, by entries alone, to the cluster that has fewest for its size.
pub fn by_entries(tenants: &[Amounts], clusters: &[Amounts]) -> Vec<usize> {
    let mut loads = vec![Amounts::ZERO; clusters.len()];
    let mut places = vec![0; tenants.len()];
    for t in largest_first(tenants) {
        let level = |c: usize| (loads[c] + tenants[t]).entries() as f64 / clusters[c].entries().max(1) as f64;
        let to = (0..clusters.len()).min_by(|a, b| level(*a).total_cmp(&level(*b))).unwrap_or(0);
        loads[to] += tenants[t];
        places[t] = to;
    }
    places
}

fn largest_first(tenants: &[Amounts]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..tenants.len()).collect();
    order.sort_by_key(|t| (std::cmp::Reverse(tenants[*t].entries()), *t));
    order
}

/// What each cluster holds when all stand `bound` times as high as the mean.
fn even(tenants: &[Amounts], clusters: &[Amounts], bound: f64) -> Vec<Amounts> {
    let (all, whole): (Amounts, Amounts) = (tenants.iter().copied().sum(), clusters.iter().copied().sum());
    let of = |c: &Amounts| {
        let part = |r: usize| all.0[r] as f64 * (c.0[r] as f64 / whole.0[r].max(1) as f64) * bound;
        Amounts(std::array::from_fn(|r| part(r).ceil() as u64))
    };
    clusters.iter().map(of).collect()
}

fn score(tenant: usize, cluster: usize, clusters: &[Amounts]) -> f64 {
    let mut x = (tenant as u64) << 32 | cluster as u64;
    // The finish of SplitMix64.
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^= x >> 31;
    let hash = ((x >> 11) + 1) as f64 / (1u64 << 53) as f64;
    -(clusters[cluster].entries() as f64) / hash.min(1.0 - 1e-16).ln()
}
