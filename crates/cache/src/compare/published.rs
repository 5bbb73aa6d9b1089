// SPDX-License-Identifier: Apache-2.0
//! Figures of the Gigaflow paper (ASPLOS 2025, CC BY 4.0, doi 10.1145/3676641.3716000), read off the bars of its figures 8, 9, 10, 14 and
//! 15 with an error of about 0.3%; rule-space coverage is the paper's own estimate.
use crate::workload::Locality;

/// One pipeline at one locality: 32K entries of Megaflow against 4 × 8K of Gigaflow.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Published {
    /// Pipeline.
    pub pipeline: &'static str,
    /// Locality.
    pub locality: Locality,
    /// Hit rates, percent: Megaflow, Gigaflow.
    pub hit_percent: (f64, f64),
    /// Misses, thousands.
    pub misses: (f64, f64),
    /// Entries, thousands.
    pub entries: (f64, f64),
    /// How many times the coverage of Megaflow, if given.
    pub coverage: Option<f64>,
}

const fn row(
    pipeline: &'static str,
    locality: Locality,
    hit_percent: (f64, f64),
    misses: (f64, f64),
    entries: (f64, f64),
    coverage: Option<f64>,
) -> Published {
    Published { pipeline, locality, hit_percent, misses, entries, coverage }
}

/// Figures 8, 9 and 10.
pub const FIGURES: [Published; 10] = [
    row("ofd", Locality::High, (64.0, 96.6), (99.7, 28.3), (32.0, 32.0), Some(459.0)),
    row("psc", Locality::High, (65.4, 94.4), (97.2, 37.2), (32.0, 32.0), Some(156.0)),
    row("ols", Locality::High, (65.9, 95.4), (96.0, 10.2), (32.0, 10.0), Some(337.0)),
    row("ant", Locality::High, (73.1, 76.4), (82.5, 60.7), (32.0, 32.0), Some(40.0)),
    row("otl", Locality::High, (99.3, 99.8), (20.8, 4.7), (20.8, 4.7), Some(1.5)),
    row("ofd", Locality::Low, (65.7, 71.0), (96.3, 75.3), (32.0, 32.0), None),
    row("psc", Locality::Low, (65.6, 75.9), (96.3, 70.1), (32.0, 32.0), None),
    row("ols", Locality::Low, (67.5, 40.0), (92.5, 82.7), (32.0, 32.0), None),
    row("ant", Locality::Low, (67.3, 55.8), (90.0, 89.3), (32.0, 32.0), None),
    row("otl", Locality::Low, (99.4, 99.8), (17.7, 4.7), (17.7, 4.7), None),
];

/// One pipeline at one locality with 1 to 5 tables of 100K entries, thousands.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Sweep {
    /// Pipeline.
    pub pipeline: &'static str,
    /// Locality.
    pub locality: Locality,
    /// Misses with 1 to 5 tables.
    pub misses: [f64; 5],
    /// Entries with 1 to 5 tables.
    pub entries: [f64; 5],
}

const fn swept(pipeline: &'static str, locality: Locality, misses: [f64; 5], entries: [f64; 5]) -> Sweep {
    Sweep { pipeline, locality, misses, entries }
}

/// Figures 14 and 15.
pub const SWEEPS: [Sweep; 10] = [
    swept("ofd", Locality::High, [99.8, 18.8, 18.8, 18.8, 18.8], [99.7, 23.4, 23.4, 23.4, 23.4]),
    swept("psc", Locality::High, [97.2, 97.2, 32.4, 32.4, 32.4], [97.2, 97.2, 37.1, 37.1, 37.1]),
    swept("ols", Locality::High, [96.0, 85.6, 53.2, 10.2, 10.2], [96.0, 90.3, 51.2, 10.0, 10.0]),
    swept("ant", Locality::High, [82.5, 80.5, 50.2, 50.2, 50.2], [82.5, 106.0, 73.4, 73.4, 73.4]),
    swept("otl", Locality::High, [20.8, 4.7, 4.7, 4.7, 4.7], [20.8, 4.7, 4.7, 4.7, 4.7]),
    swept("ofd", Locality::Low, [96.3, 62.4, 62.4, 62.4, 62.4], [95.8, 66.6, 66.6, 66.6, 66.6]),
    swept("psc", Locality::Low, [96.3, 96.3, 61.0, 61.0, 61.0], [95.9, 95.8, 72.9, 72.9, 72.9]),
    swept("ols", Locality::Low, [92.5, 79.8, 63.2, 29.9, 29.9], [92.5, 101.1, 72.7, 31.4, 31.4]),
    swept("ant", Locality::Low, [90.0, 90.0, 85.5, 85.5, 85.5], [89.9, 142.9, 124.9, 124.9, 124.9]),
    swept("otl", Locality::Low, [17.7, 4.7, 4.7, 4.7, 4.7], [17.7, 4.7, 4.7, 4.7, 4.7]),
];

/// The figures of a pipeline.
pub fn figures(pipeline: &str, locality: Locality) -> Option<&'static Published> {
    FIGURES.iter().find(|p| p.pipeline == pipeline && p.locality == locality)
}

/// The sweep of a pipeline.
pub fn sweep(pipeline: &str, locality: Locality) -> Option<&'static Sweep> {
    SWEEPS.iter().find(|p| p.pipeline == pipeline && p.locality == locality)
}

/// What a change of rules did to a data plane with 2M flows: the Triton poster, figure 4.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct RuleChange {
    /// The data plane.
    pub name: &'static str,
    /// The rate right after the change, percent of that before.
    pub worst_percent: f64,
    /// How long until it was back, seconds.
    pub recovered_seconds: f64,
}

/// Both curves of that figure.
pub const RULE_CHANGES: [RuleChange; 2] = [
    RuleChange { name: "published Triton", worst_percent: 75.0, recovered_seconds: 5.0 },
    RuleChange { name: "published off-path offload", worst_percent: 25.0, recovered_seconds: 50.0 },
];
