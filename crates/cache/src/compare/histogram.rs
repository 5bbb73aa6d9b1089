// SPDX-License-Identifier: Apache-2.0
//! A histogram of times with 16 buckets to each power of two: quantiles are right within 6%.
use super::Latency;

/// Counts of times in ns.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    sum: u128,
}

fn bucket(ns: u64) -> usize {
    if ns < 16 {
        return ns as usize;
    }
    let power = 63 - ns.leading_zeros();
    (power as usize - 3) * 16 + (ns >> (power - 4) & 15) as usize
}

fn low_end(bucket: usize) -> u64 {
    match bucket {
        0..=15 => bucket as u64,
        _ => (16 + bucket as u64 % 16) << (bucket / 16 - 1),
    }
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

impl Histogram {
    /// An empty one.
    pub fn new() -> Histogram {
        Histogram { counts: vec![0; 61 * 16], total: 0, sum: 0 }
    }

    /// Counts a time.
    #[inline]
    pub fn add(&mut self, ns: u64) {
        self.counts[bucket(ns).min(61 * 16 - 1)] += 1;
        self.total += 1;
        self.sum += u128::from(ns);
    }

    /// The time that this share of all does not exceed.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (share * self.total as f64).ceil() as u64;
        let mut seen = 0;
        for (n, count) in self.counts.iter().enumerate() {
            seen += count;
            if *count > 0 && seen >= wanted {
                return low_end(n);
            }
        }
        0
    }

    /// Mean and quantiles.
    pub fn summary(&self) -> Latency {
        Latency {
            mean: self.sum as f64 / self.total.max(1) as f64,
            p50: self.quantile(0.5),
            p90: self.quantile(0.9),
            p99: self.quantile(0.99),
            p999: self.quantile(0.999),
        }
    }

    /// The distribution: for each bucket in use its end and the share of times up to it.
    pub fn cdf(&self) -> Vec<(u64, f64)> {
        let mut seen = 0;
        let used = self.counts.iter().enumerate().filter(|(_, c)| **c > 0);
        used.map(|(n, count)| {
            seen += count;
            (low_end(n + 1), seen as f64 / self.total as f64)
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_near_the_true_ones() {
        let mut histogram = Histogram::new();
        (1..=10_000u64).for_each(|n| histogram.add(n));
        for share in [0.01, 0.5, 0.9, 0.99, 0.999] {
            let (got, want) = (histogram.quantile(share) as f64, share * 10_000.0);
            assert!((got - want).abs() <= want * 0.07 + 1.0, "{share}: {got} for {want}");
        }
        assert!((histogram.summary().mean - 5000.5).abs() < 0.1);
        assert_eq!(histogram.cdf().last().map(|p| p.1), Some(1.0));
        (0..61 * 16 - 1).for_each(|n| assert_eq!(bucket(low_end(n)), n));
    }
}
