// SPDX-License-Identifier: Apache-2.0
//! A synthetic region: VPCs of very different sizes with routes and VMs, from a seed.

use super::key::Address;
use super::routes::Route;
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::collections::HashSet;

/// How large.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// VPCs.
    pub vnis: u64,
    /// Routes.
    pub routes: u64,
    /// VM addresses.
    pub vms: u64,
    /// Share of IPv6, percent.
    pub ipv6_percent: u64,
}

/// A region's entries.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    /// Routes, values count up.
    pub routes: Vec<Route>,
    /// VM addresses, values count up.
    pub vms: Vec<(Address, u32)>,
}

/// The VPC of the `i`-th entry: the first ones get one each, the rest by a power law (a few VPCs own most).
fn owner(i: u64, vnis: u64, rng: &mut SplitMix64) -> u32 {
    if i < vnis {
        return vni(i);
    }
    let u = rng.random::<f64>();
    vni(((vnis as f64).powf(u) - 1.0) as u64)
}

/// VNIs are scattered over the number space.
fn vni(i: u64) -> u32 {
    (i.wrapping_mul(0x9e_3779) & 0xff_ffff) as u32
}

/// Lengths that cloud routes have, with weights.
const LENGTHS4: &[(u8, u64)] = &[(16, 8), (20, 10), (22, 12), (24, 40), (26, 8), (28, 6), (32, 14), (0, 2)];
const LENGTHS6: &[(u8, u64)] = &[(48, 12), (52, 6), (56, 22), (60, 10), (64, 46), (128, 2), (0, 2)];

fn length(of: &[(u8, u64)], rng: &mut SplitMix64) -> u8 {
    let mut n = rng.random_range(0..of.iter().map(|l| l.1).sum());
    for (len, weight) in of {
        if n < *weight {
            return *len;
        }
        n -= weight;
    }
    of[0].0
}

impl Workload {
    /// Makes it. The counts are exact.
    pub fn new(size: Size, seed: u64) -> Workload {
        let mut rng = SplitMix64::seed_from_u64(seed);
        let mut w = Workload::default();
        let mut seen = HashSet::with_capacity(size.routes as usize);
        while (w.routes.len() as u64) < size.routes {
            let i = w.routes.len() as u64;
            let v6 = rng.random_range(0..100u64) < size.ipv6_percent;
            let vni = owner(i, size.vnis.max(1), &mut rng);
            let len = length(if v6 { LENGTHS6 } else { LENGTHS4 }, &mut rng);
            let addr = address(vni, v6, &mut rng);
            let low = if v6 { 128 } else { 32 } - u32::from(len);
            let addr = addr.checked_shr(low).and_then(|a| a.checked_shl(low)).unwrap_or(0);
            if seen.insert((vni, v6, addr, len)) {
                w.routes.push(Route { vni, v6, addr, len, value: i as u32 });
            }
        }
        let mut seen = HashSet::with_capacity(size.vms as usize);
        while (w.vms.len() as u64) < size.vms {
            let i = w.vms.len() as u64;
            let v6 = rng.random_range(0..100u64) < size.ipv6_percent;
            let vni = owner(i, size.vnis.max(1), &mut rng);
            let a = Address { vni, v6, addr: address(vni, v6, &mut rng) };
            if seen.insert(a) {
                w.vms.push((a, i as u32));
            }
        }
        w
    }
}

/// An address in 10.0.0.0/8 or below 2001:db8::/32, in networks that several VPCs use alike.
pub fn address(vni: u32, v6: bool, rng: &mut SplitMix64) -> u128 {
    if !v6 {
        return u128::from(10 << 24 | rng.random_range(0..1u64 << 24) as u32);
    }
    let network =
        0x2001_0db8u128 << 96 | u128::from(vni & 0xffff) << 80 | u128::from(rng.random_range(0..1u64 << 16)) << 64;
    network | u128::from(rng.next_u64())
}
