// SPDX-License-Identifier: Apache-2.0
//! How many flows each tenant may keep in a fast path that fills up (§5.2, Fig. 6 and 7).
//!
//! When all tenants' flows together reach θ1, they are lowered to θ2: from the tenant with the largest flows ÷ weight down to the
//! second one's ratio, from both down to the third one's, and so on. What results is a level u, and `min(yᵢ, ⌊u·wᵢ⌋)` for each
//! tenant, where u is as high as θ2 allows. The paper takes Θ(N²): for each number m of tenants it sums all others up again. With
//! running sums over tenants in order of their ratio each m costs O(1), so all is O(N log N), for sorting. Ratios are compared
//! and shares rounded down in whole numbers, so the result is exact.

use std::cmp::Ordering;

/// What a tenant has and weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Flows in the fast path.
    pub flows: u64,
    /// Weight, at least 1 (0 counts as 1): a tenant of twice the weight keeps twice the flows.
    pub weight: u32,
}

/// When to migrate, and how far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// θ1: flows in the fast path from which on some migrate.
    pub begin: u64,
    /// θ2: flows that then remain at most. Not above `begin`.
    pub end: u64,
}

impl Share {
    fn weight(&self) -> u128 {
        u128::from(self.weight.max(1))
    }

    /// Compares flows ÷ weight.
    fn ratio(&self, other: &Share) -> Ordering {
        (u128::from(self.flows) * other.weight()).cmp(&(u128::from(other.flows) * self.weight()))
    }
}

/// The flows that each tenant keeps in the fast path; None while θ1 is not reached.
pub fn allot(tenants: &[Share], thresholds: Thresholds) -> Option<Vec<u64>> {
    let total: u128 = tenants.iter().map(|t| u128::from(t.flows)).sum();
    if total < u128::from(thresholds.begin) || total <= u128::from(thresholds.end) {
        return None;
    }
    let mut order: Vec<usize> = (0..tenants.len()).collect();
    order.sort_by(|a, b| tenants[*b].ratio(&tenants[*a]));
    // The first m tenants give; `rest` is what the others have.
    let (mut rest, mut weights) = (total, 0u128);
    let mut out: Vec<u64> = tenants.iter().map(|t| t.flows).collect();
    for (m, i) in order.iter().enumerate() {
        rest -= u128::from(tenants[*i].flows);
        weights += tenants[*i].weight();
        // u = (θ2 − rest) ÷ weights must not lie below the next tenant's ratio, or that one would have to give, too.
        let Some(room) = u128::from(thresholds.end).checked_sub(rest) else { continue };
        let next = order.get(m + 1).map(|n| &tenants[*n]);
        if next.is_none_or(|n| room * n.weight() >= u128::from(n.flows) * weights) {
            for i in &order[..=m] {
                out[*i] = out[*i].min((room * tenants[*i].weight() / weights) as u64);
            }
            break;
        }
    }
    Some(out)
}
