// SPDX-License-Identifier: Apache-2.0
//! Which entries of a table packets use: what share of packets a copy of the most used ones serves.

/// How use is spread over entries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Hot {
    /// All alike.
    Even,
    /// So large a share of the entries serves so large a share of the packets, and inside and outside of it all are alike.
    Set {
        /// Share of the entries.
        entries: f64,
        /// Share of the packets.
        packets: f64,
    },
    /// Zipf's law with this exponent.
    Zipf(f64),
}

impl Hot {
    /// The share of packets that find their entry among the `k` most used of `n`.
    pub fn hit(&self, k: f64, n: f64) -> f64 {
        if n <= 0.0 || k >= n {
            return 1.0;
        }
        if k <= 0.0 {
            return 0.0;
        }
        match *self {
            Hot::Even => k / n,
            Hot::Set { entries, packets } => {
                let set = entries * n;
                match k <= set {
                    true => packets * k / set,
                    false => packets + (1.0 - packets) * (k - set) / (n - set),
                }
            }
            Hot::Zipf(s) => (harmonic(k, s) / harmonic(n, s)).min(1.0),
        }
    }
}

/// The sum of 1/i^s to `n`: term by term to a thousand, from there by the integral with Euler's and Maclaurin's first correction.
fn harmonic(n: f64, s: f64) -> f64 {
    const EXACT: f64 = 1000.0;
    let term = |i: f64| i.powf(-s);
    let head = |n: f64| (1..=n as u64).map(|i| term(i as f64)).sum::<f64>();
    if n <= EXACT {
        return head(n) + (n - n.floor()) * term(n.floor() + 1.0);
    }
    let integral = match (s - 1.0).abs() < 1e-9 {
        true => (n / EXACT).ln(),
        false => (n.powf(1.0 - s) - EXACT.powf(1.0 - s)) / (1.0 - s),
    };
    head(EXACT) + integral + (term(n) - term(EXACT)) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hot_set_of_sailfish_serves_what_the_paper_says() {
        let hot = Hot::Set { entries: 0.05, packets: 0.95 };
        let hit = |k| hot.hit(k, 1000.0);
        assert_eq!((hit(0.0), hit(50.0), hit(1000.0)), (0.0, 0.95, 1.0));
        assert!((hit(25.0) - 0.475).abs() < 1e-12 && (hit(525.0) - 0.975).abs() < 1e-12);
        assert_eq!(Hot::Even.hit(25.0, 100.0), 0.25);
    }

    #[test]
    fn the_law_of_zipf_is_summed_well_enough() {
        for s in [0.6, 1.0, 1.3] {
            let exact = |n: u32| (1..=n).map(|i| f64::from(i).powf(-s)).sum::<f64>();
            for (k, n) in [(10, 500), (10, 100_000), (5_000, 100_000), (99_999, 100_000)] {
                let (found, wanted) = (Hot::Zipf(s).hit(f64::from(k), f64::from(n)), exact(k) / exact(n));
                assert!((found - wanted).abs() < 1e-6, "{s}: {k} of {n}: {found}, not {wanted}");
            }
        }
    }
}
