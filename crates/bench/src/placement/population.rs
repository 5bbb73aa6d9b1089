// SPDX-License-Identifier: Apache-2.0
//! Tenants with heavy-tailed sizes. What is drawn: VMs by Pareto's law, most tenants have one or two and few have thousands; routes and rules with them;
//! sessions and traffic a VM by a lognormal law. Traffic is as uneven as the Sailfish paper found it: a twentieth of the entries carries 95% of it
//! (§4.2; sigma 3.29).

use controller_core::placement::{Amounts, Resource};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;

/// How tenants are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Population {
    /// How many.
    pub tenants: u32,
    /// Seed.
    pub seed: u64,
    /// Exponent of the law of VMs: the smaller, the heavier the tail.
    pub tail: f64,
    /// Traffic of all, bits a second.
    pub traffic: u64,
    /// The largest tenant of any resource, as a share of what all have together.
    pub largest: f64,
}

/// Sigma of the traffic of a VM.
const TRAFFIC_SIGMA: f64 = 3.29;
/// Sigma of the sessions of a VM.
const SESSIONS_SIGMA: f64 = 1.5;
/// VMs of a tenant at most, before `largest`.
const VMS_MAX: f64 = 4_000_000.0;

impl Population {
    /// The tenants of the bench: a million, the largest 5% of a twentieth.
    pub fn million(seed: u64) -> Population {
        Population { tenants: 1_000_000, seed, tail: 1.2, traffic: 15_000_000_000_000, largest: 0.05 / 20.0 }
    }

    /// What each needs.
    pub fn draw(&self) -> Vec<Amounts> {
        let mut rng = SplitMix64::seed_from_u64(self.seed);
        let mut list: Vec<[f64; 6]> = (0..self.tenants).map(|_| self.one(&mut rng)).collect();
        for r in 0..6 {
            // A few rounds: what is cut off makes the whole smaller.
            for _ in 0..8 {
                let most = (list.iter().map(|d| d[r]).sum::<f64>() * self.largest).max(1.0);
                list.iter_mut().for_each(|d| d[r] = d[r].min(most));
            }
        }
        let traffic = Resource::Traffic as usize;
        let scale = self.traffic as f64 / list.iter().map(|d| d[traffic]).sum::<f64>().max(1.0);
        list.iter_mut().for_each(|d| d[traffic] *= scale);
        list.into_iter().map(|d| Amounts(d.map(|n| n as u64))).collect()
    }

    fn one(&self, rng: &mut SplitMix64) -> [f64; 6] {
        let vms = unit(rng).powf(-1.0 / self.tail).min(VMS_MAX).floor();
        let routes = 2.0 + (vms * 0.5 * unit(rng)).floor();
        let rules = 4.0 + (20.0 * unit(rng) * vms.sqrt()).floor();
        let sessions = vms * 20.0 * (SESSIONS_SIGMA * normal(rng)).exp();
        let traffic = vms * 1000.0 * (TRAFFIC_SIGMA * normal(rng)).exp();
        [1.0, routes, vms, rules, sessions, traffic]
    }
}

/// A number above 0, 1 at most.
fn unit(rng: &mut SplitMix64) -> f64 {
    (rng.random_range(0..1u64 << 53) + 1) as f64 / (1u64 << 53) as f64
}

/// A normal number (Box and Muller).
fn normal(rng: &mut SplitMix64) -> f64 {
    let (u, v) = (unit(rng), unit(rng));
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_population_is_heavy_tailed_and_its_largest_is_bounded() {
        let p = Population { tenants: 50_000, ..Population::million(3) };
        let list = p.draw();
        assert_eq!(list, p.draw());
        for r in Resource::ALL {
            let mut of: Vec<u64> = list.iter().map(|d| d[r]).collect();
            of.sort_unstable_by(|a, b| b.cmp(a));
            let all: u64 = of.iter().sum();
            assert!(of[0] as f64 <= 0.0026 * all as f64 + 1.0, "{r}: {} of {all}", of[0]);
            if r == Resource::Traffic {
                let top: u64 = of[..2500].iter().sum();
                assert!(top as f64 > 0.8 * all as f64, "{top} of {all}");
            }
        }
    }
}
