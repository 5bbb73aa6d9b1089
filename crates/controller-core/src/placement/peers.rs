// SPDX-License-Identifier: Apache-2.0
//! Units: VPCs that have to lie together because peerings join them.

use std::collections::BTreeMap;

/// For each VPC the smallest VPC that peerings join it with: its unit. VPCs are numbers of any kind; of peerings with others nothing is said.
pub fn units(vpcs: impl IntoIterator<Item = u32>, peerings: &[(u32, u32)]) -> BTreeMap<u32, u32> {
    let mut parent: BTreeMap<u32, u32> = vpcs.into_iter().map(|v| (v, v)).collect();
    for (a, b) in peerings {
        if let (Some(a), Some(b)) = (root(&mut parent, *a), root(&mut parent, *b)) {
            parent.insert(a.max(b), a.min(b));
        }
    }
    let vpcs: Vec<u32> = parent.keys().copied().collect();
    vpcs.into_iter().filter_map(|v| Some((v, root(&mut parent, v)?))).collect()
}

/// The smallest member of a VPC's unit. Paths are halved as they are walked.
fn root(parent: &mut BTreeMap<u32, u32>, mut vpc: u32) -> Option<u32> {
    loop {
        let up = *parent.get(&vpc)?;
        if up == vpc {
            return Some(vpc);
        }
        let above = *parent.get(&up)?;
        parent.insert(vpc, above);
        vpc = above;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peerings_join_over_others_and_the_order_does_not_matter() {
        let of = |peerings: &[(u32, u32)]| units([5, 1, 9, 4, 7], peerings).into_iter().collect::<Vec<_>>();
        assert_eq!(of(&[]), [(1, 1), (4, 4), (5, 5), (7, 7), (9, 9)]);
        let joined = [(1, 1), (4, 4), (5, 1), (7, 1), (9, 1)];
        assert_eq!(of(&[(9, 5), (7, 9), (1, 7), (4, 77)]), joined);
        assert_eq!(of(&[(1, 7), (7, 9), (5, 9)]), joined);
    }

    #[test]
    fn a_long_chain_is_one_unit() {
        let chain: Vec<(u32, u32)> = (1..100_000).rev().map(|v| (v, v - 1)).collect();
        assert!(units(0..100_000, &chain).values().all(|u| *u == 0));
    }
}
