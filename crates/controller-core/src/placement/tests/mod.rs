// SPDX-License-Identifier: Apache-2.0
//! Placement against a naive oracle, and by example.

mod differential;
mod examples;
mod oracle;

use super::*;

/// A region of clusters with these capacities, numbered from 0.
fn region(levels: Levels, capacities: &[Amounts]) -> Region {
    let mut region = Region::new(levels);
    for (n, c) in capacities.iter().enumerate() {
        region.set_cluster(ClusterId(n as u32), *c);
    }
    region
}
