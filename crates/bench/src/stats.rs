// SPDX-License-Identifier: Apache-2.0
//! Order statistics of samples.

/// The median of the samples; 0 if there are none.
pub fn median(samples: &[f64]) -> f64 {
    quantile(samples, 0.5)
}

/// The q-quantile of the samples (0 ≤ q ≤ 1), linear between neighbours; 0 if there are none.
pub fn quantile(samples: &[f64], q: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = q.clamp(0.0, 1.0) * last as f64;
    let below = at.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (at - below as f64)
}

/// Largest minus smallest sample, as a share of the median.
pub fn spread(samples: &[f64]) -> f64 {
    let middle = median(samples);
    if middle == 0.0 {
        return 0.0;
    }
    (quantile(samples, 1.0) - quantile(samples, 0.0)) / middle.abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_the_samples() {
        let s = [5.0, 1.0, 3.0, 2.0, 4.0];
        assert_eq!(median(&s), 3.0);
        assert_eq!(quantile(&s, 0.0), 1.0);
        assert_eq!(quantile(&s, 1.0), 5.0);
        assert_eq!(quantile(&s, 0.125), 1.5);
        assert_eq!(spread(&s), 4.0 / 3.0);
        assert_eq!(median(&[]), 0.0);
    }
}
