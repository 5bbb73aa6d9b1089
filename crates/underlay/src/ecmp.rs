// SPDX-License-Identifier: Apache-2.0
//! Weights of a multipath route as repeated members of a small group.
//!
//! A group has at most [`GROUP_NEXTHOPS_MAX`] slots and the packet path chooses a slot with equal chance, so a next hop of
//! weight w gets about w of them. Weights are divided by their common divisor; if the sum still does not fit, slots are given by the
//! largest remainder, at least one each.

use abi::limits::GROUP_NEXTHOPS_MAX;

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 {
        a
    } else {
        gcd(b, a % b)
    }
}

/// Indices of next hops, repeated by weight, at most GROUP_NEXTHOPS_MAX. Next hops beyond that number are left out.
pub fn slots(weights: &[u32]) -> Vec<usize> {
    let max = GROUP_NEXTHOPS_MAX as usize;
    let weights: Vec<u64> = weights.iter().take(max).map(|w| (*w).max(1) as u64).collect();
    let divisor = weights.iter().fold(0, |a, w| gcd(a, *w)).max(1);
    let weights: Vec<u64> = weights.iter().map(|w| w / divisor).collect();
    let sum: u64 = weights.iter().sum();
    let counts: Vec<u64> = if sum <= max as u64 { weights } else { apportion(&weights, sum, max as u64) };
    counts.iter().enumerate().flat_map(|(i, n)| std::iter::repeat_n(i, *n as usize)).collect()
}

/// `seats` seats by largest remainder, at least one for each weight; there are no more weights than seats.
fn apportion(weights: &[u64], sum: u64, seats: u64) -> Vec<u64> {
    let mut counts: Vec<u64> = weights.iter().map(|w| (w * seats / sum).max(1)).collect();
    while counts.iter().sum::<u64>() > seats {
        // Too many got their one seat for free: take from the one that has most above its share.
        let over = (0..counts.len()).filter(|i| counts[*i] > 1).max_by_key(|i| counts[*i] * sum * 1000 / weights[*i]);
        match over {
            Some(i) => counts[i] -= 1,
            None => break,
        }
    }
    while counts.iter().sum::<u64>() < seats {
        let under =
            (0..counts.len()).max_by_key(|i| (weights[*i] * seats * 1000 / sum) as i64 - (counts[*i] * 1000) as i64);
        match under {
            Some(i) => counts[i] += 1,
            None => break,
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(weights: &[u32]) -> Vec<usize> {
        let slots = slots(weights);
        (0..weights.len()).map(|i| slots.iter().filter(|s| **s == i).count()).collect()
    }

    #[test]
    fn equal_weights_take_one_slot_each() {
        assert_eq!(counts(&[1, 1, 1]), [1, 1, 1]);
        assert_eq!(counts(&[7, 7]), [1, 1]);
    }

    #[test]
    fn weights_are_kept_when_they_fit() {
        assert_eq!(counts(&[1, 2]), [1, 2]);
        assert_eq!(counts(&[10, 20, 40]), [1, 2, 4]);
    }

    #[test]
    fn weights_that_do_not_fit_are_rounded_and_nobody_is_left_out() {
        assert_eq!(counts(&[1, 99]), [1, 14]);
        let c = counts(&[100, 101, 99]);
        assert_eq!(c.iter().sum::<usize>(), 15);
        assert!(c.iter().all(|n| *n == 5), "{c:?}");
        let c = counts(&[256, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(c, [1; 15]);
    }

    #[test]
    fn next_hops_beyond_the_limit_are_left_out() {
        assert_eq!(slots(&[1; 40]).len(), 15);
        assert!(slots(&[]).is_empty());
    }
}
