// SPDX-License-Identifier: Apache-2.0
//! Water levels over time, for who looks at them later: an hour in steps of ten seconds, a day in steps of five minutes, and no more.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Milliseconds between two samples.
pub const STEP_MS: u64 = 10_000;
/// Samples that are kept.
const FINE: usize = 360;
/// Samples of which one is kept for the day: the highest.
const COARSE_STEP: u64 = 30;
/// Those that are kept.
const COARSE: usize = 288;

/// The highest level of each table among a cluster's nodes, as shares of their limits.
pub type Levels = BTreeMap<String, f64>;

/// What was measured at an instant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sample {
    /// When, in milliseconds since 1970.
    pub time_ms: u64,
    /// By cluster.
    pub clusters: BTreeMap<String, Levels>,
}

impl Sample {
    /// Takes in another one: the higher level counts.
    pub fn merge(&mut self, other: &Sample) {
        for (cluster, levels) in &other.clusters {
            let mine = self.clusters.entry(cluster.clone()).or_default();
            for (table, level) in levels {
                let at = mine.entry(table.clone()).or_insert(*level);
                *at = at.max(*level);
            }
        }
    }
}

/// The samples that are kept.
#[derive(Debug, Default)]
pub struct Samples {
    fine: VecDeque<Sample>,
    coarse: VecDeque<Sample>,
    taken: u64,
}

impl Samples {
    /// Takes a sample.
    pub fn take(&mut self, sample: Sample) {
        match self.coarse.back_mut().filter(|_| !self.taken.is_multiple_of(COARSE_STEP)) {
            Some(last) => last.merge(&sample),
            None => self.coarse.push_back(sample.clone()),
        }
        self.taken += 1;
        self.fine.push_back(sample);
        for (list, most) in [(&mut self.fine, FINE), (&mut self.coarse, COARSE)] {
            if list.len() > most {
                list.pop_front();
            }
        }
    }

    /// The last one.
    pub fn last(&self) -> Option<&Sample> {
        self.fine.back()
    }

    /// Those of the last hour.
    pub fn hour(&self) -> impl Iterator<Item = &Sample> {
        self.fine.iter()
    }

    /// Those of the last day, the highest levels of five minutes each.
    pub fn day(&self) -> impl Iterator<Item = &Sample> {
        self.coarse.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_kept_in_a_bounded_place_and_its_peaks_stay() {
        let mut samples = Samples::default();
        for n in 0..20_000u64 {
            let level = if n == 19_000 { 0.9 } else { 0.1 };
            let levels = Levels::from([("vms".to_string(), level)]);
            samples.take(Sample { time_ms: n * STEP_MS, clusters: [("a".into(), levels)].into() });
        }
        assert_eq!((samples.hour().count(), samples.day().count()), (FINE, COARSE));
        let peak = |list: &mut dyn Iterator<Item = &Sample>| list.map(|s| s.clusters["a"]["vms"]).fold(0.0, f64::max);
        assert_eq!((peak(&mut samples.hour()), peak(&mut samples.day())), (0.1, 0.9));
        let span = |first: &Sample| 20_000 * STEP_MS - first.time_ms;
        assert_eq!(span(samples.hour().next().unwrap()), 3_600_000);
        assert!(span(samples.day().next().unwrap()) > 86_000_000);
        assert_eq!(samples.last().unwrap().time_ms, 19_999 * STEP_MS);
    }
}
