// SPDX-License-Identifier: Apache-2.0
//! What a bench says: one object with its value, the samples behind it, their spread, and what it is compared with.
use crate::{cpu, stats};
use serde::Serialize;
use std::collections::BTreeMap;

/// What a bench should reach.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// The value should be this or more.
    AtLeast(f64),
    /// The value should be this or less.
    AtMost(f64),
}

/// The machine that a result comes from.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// CPU model and number of CPUs.
    pub cpu: String,
    /// Kernel release.
    pub kernel: String,
    /// Memory, GiB.
    pub memory_gib: u64,
    /// Load average over one minute before the bench began: other work on the machine.
    pub load: f64,
    /// Date of the run, UTC.
    pub date: String,
    /// Version of Tunny.
    pub version: &'static str,
}

impl Machine {
    /// Describes this machine, now.
    pub fn describe() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let value = |text: &str, key: &str| {
            text.lines().find(|l| l.starts_with(key)).and_then(|l| l.split(':').nth(1)).unwrap_or("").trim().to_string()
        };
        let kib: u64 =
            value(&read("/proc/meminfo"), "MemTotal").split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        Machine {
            cpu: format!(
                "{} family {} model {}, {} CPUs",
                value(&cpuinfo, "model name"),
                value(&cpuinfo, "cpu family"),
                value(&cpuinfo, "model\t"),
                cpu::count()
            ),
            kernel: read("/proc/sys/kernel/osrelease").trim().into(),
            memory_gib: kib.div_ceil(1 << 20),
            load: read("/proc/loadavg").split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0),
            date: cpu::utc_now(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// The result of one bench.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Name of the bench.
    pub name: &'static str,
    /// The result: the median of the samples.
    pub value: f64,
    /// Unit of value and samples.
    pub unit: &'static str,
    /// Every sample, in the order taken.
    pub samples: Vec<f64>,
    /// (Largest − smallest sample) ÷ median.
    pub spread: f64,
    /// What the value is compared with.
    pub compared_with: String,
    /// What it should reach.
    pub goal: Option<Goal>,
    /// Whether it does, by the goal's own definition.
    pub met: Option<bool>,
    /// Sentences that belong beside the value: what makes it look better than it is, and what is not as the goal defines it.
    #[serde(rename = "beside")]
    pub caveats: Vec<String>,
    /// Seed of the workload.
    pub seed: u64,
    /// Further figures of the same run: absolute rates, settings, variants.
    pub details: BTreeMap<String, serde_json::Value>,
    /// Where and when.
    pub machine: Machine,
    /// Plots, kept beside the table when results are saved.
    #[serde(skip)]
    pub plots: Vec<figures::Plot>,
}

impl Report {
    /// A report of these samples; the value is their median.
    pub fn new(
        name: &'static str,
        unit: &'static str,
        samples: Vec<f64>,
        goal: Option<Goal>,
        compared_with: &str,
    ) -> Report {
        let value = stats::median(&samples);
        let met = goal.map(|g| match g {
            Goal::AtLeast(least) => value >= least,
            Goal::AtMost(most) => value <= most,
        });
        Report {
            name,
            value,
            unit,
            spread: stats::spread(&samples),
            samples,
            compared_with: compared_with.into(),
            goal,
            met,
            caveats: Vec::new(),
            seed: 0,
            details: BTreeMap::new(),
            machine: Machine::describe(),
            plots: Vec::new(),
        }
    }

    /// Adds a figure or a setting.
    pub fn detail(&mut self, key: &str, value: impl Into<serde_json::Value>) -> &mut Report {
        self.details.insert(key.into(), value.into());
        self
    }

    /// Adds the median of some samples, rounded for reading, and the samples' spread.
    pub fn detail_median(&mut self, key: &str, samples: &[f64]) -> &mut Report {
        self.detail(key, round(stats::median(samples)));
        self.detail(&format!("{key}_spread"), round(stats::spread(samples)))
    }

    /// Adds a sentence that belongs beside the value.
    pub fn compared(&mut self, sentence: impl Into<String>) -> &mut Report {
        self.caveats.push(sentence.into());
        self
    }

    /// Judges by more than the value: the goal is met only if this holds, too. The sentence says what it is.
    pub fn only_if(&mut self, holds: bool, sentence: impl Into<String>) -> &mut Report {
        self.met = self.met.map(|met| met && holds);
        self.compared(sentence)
    }

    /// The goal in words.
    pub fn goal_text(&self) -> String {
        match self.goal {
            Some(Goal::AtLeast(v)) => format!("≥ {v}"),
            Some(Goal::AtMost(v)) => format!("≤ {v}"),
            None => "–".into(),
        }
    }
}

/// Four significant digits: more would claim more than a bench knows.
pub fn round(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10f64.powi(3 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_knows_whether_its_goal_is_met() {
        let r = Report::new("x", "ns", vec![100.0, 130.0, 110.0], Some(Goal::AtMost(120.0)), "y");
        assert_eq!((r.value, r.met), (110.0, Some(true)));
        let r = Report::new("x", "ns", vec![100.0, 130.0, 110.0], Some(Goal::AtLeast(120.0)), "y");
        assert_eq!(r.met, Some(false));
    }

    #[test]
    fn a_goal_of_another_definition_is_not_met_and_the_report_says_why() {
        let mut r = Report::new("x", "ns", vec![100.0], Some(Goal::AtMost(120.0)), "y");
        r.only_if(true, "As defined.");
        assert_eq!(r.met, Some(true));
        r.only_if(false, "A fresh engine stands for a node.");
        assert_eq!(r.met, Some(false));
        assert_eq!(serde_json::to_value(&r).unwrap()["beside"][1], "A fresh engine stands for a node.");
        // Without a goal there is nothing to meet.
        let mut r = Report::new("x", "ns", vec![100.0], None, "y");
        assert_eq!(r.only_if(false, "z").met, None);
    }

    #[test]
    fn rounding_keeps_four_digits() {
        assert_eq!(round(1234567.0), 1235000.0);
        assert_eq!(round(0.00123456), 0.001235);
        assert_eq!(round(0.0), 0.0);
    }
}
