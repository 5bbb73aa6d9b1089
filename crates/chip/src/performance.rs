// SPDX-License-Identifier: Apache-2.0
//! Throughput and latency of a folded pipeline, simulated, and the balance between its halves.

use crate::model::key::mix;
use crate::pipes::Arrangement;
use crate::technique::Split;
use crate::Profile;
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;

/// One packet length.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Point {
    /// Bytes of the frame.
    pub bytes: u32,
    /// Terabits a second, frames alone.
    pub tbps: f64,
    /// Gigapackets a second.
    pub gpps: f64,
    /// Microseconds without background traffic.
    pub latency_us: f64,
}

/// Fig. 18, simulated.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Performance {
    /// Always true: nothing here was measured on a chip.
    pub simulated: bool,
    /// Terabits a second that the entry ports take.
    pub port_tbps: f64,
    /// Gigapackets a second that the entry pipes take.
    pub pipe_gpps: f64,
    /// Smallest frame at which the ports, bridged bytes included, and not the pipes limit the rate.
    pub line_rate_from_bytes: u32,
    /// Crossings of pipes on a packet's way, and the bytes that each carries along.
    pub crossings: u32,
    /// Bytes that each crossing carries along.
    pub bridge_bytes: u32,
    /// What bridging leaves of the throughput at 256 bytes: L / (L + b) on the looped-back port.
    pub bridge_factor_256: f64,
    /// By packet length.
    pub points: Vec<Point>,
    /// What the paper measured.
    pub paper: &'static str,
}

/// Preamble, start of frame and gap between frames.
const WIRE_BYTES: f64 = 20.0;

/// Throughput and latency. A crossing that goes over a looped-back port carries the bridged bytes on the wire, so it takes
/// the share L / (L + b); all others are inside the chip.
pub fn performance(p: &Profile, pipes: &Arrangement, bridge_bytes: u32) -> Performance {
    let fold = pipes.looped_back > 0;
    let passes = if fold { 2 } else { 1 };
    let pipes = pipes.entry;
    let gbps = f64::from(pipes * p.ports_per_pipe * p.port_gbps);
    let pipe_gpps = f64::from(pipes * p.clock_mhz) / 1000.0;
    let bridged = if fold { f64::from(bridge_bytes) } else { 0.0 };
    let stages = f64::from(2 * p.geometry.stages);
    let pass_ns = stages * f64::from(p.stage_cycles) * 1000.0 / f64::from(p.clock_mhz) + f64::from(p.fixed_ns);
    let at = |bytes: u32| {
        let l = f64::from(bytes);
        let line = gbps / 8.0 / (l + WIRE_BYTES + bridged);
        let gpps = line.min(pipe_gpps);
        let wire_ns = l * 8.0 / f64::from(p.port_gbps);
        let latency_us = f64::from(passes) * (pass_ns + wire_ns) / 1000.0;
        Point { bytes, tbps: gpps * l * 8.0 / 1000.0, gpps, latency_us }
    };
    let line_rate_from_bytes = (64..=9000).find(|b| at(*b).gpps < pipe_gpps).unwrap_or(64);
    Performance {
        simulated: true,
        port_tbps: gbps / 1000.0,
        pipe_gpps,
        line_rate_from_bytes,
        crossings: 2 * passes - 1,
        bridge_bytes,
        bridge_factor_256: 256.0 / (256.0 + bridged),
        points: [64, 128, 202, 256, 512, 1024, 1500].map(at).to_vec(),
        paper: "3.2 Tbit/s, 1.8 Gpps with packets below 256 B, 2.173 us (128 B) to 2.303 us (1024 B)",
    }
}

/// Shares of traffic of the two halves.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Balance {
    /// Always true.
    pub simulated: bool,
    /// How entries are divided.
    pub split: Split,
    /// Exponent of the tenants' Zipf distribution.
    pub skew: f64,
    /// Fig. 20: share of the first half in each of eight clusters.
    pub clusters: Vec<f64>,
    /// Fig. 21: share of the first half in each hour of a day.
    pub hours: Vec<f64>,
    /// Largest distance from one half, in points.
    pub worst_points: f64,
}

/// VPCs whose traffic is simulated.
pub const TENANTS: u64 = 2000;

/// Traffic of `tenants` VPCs, Zipf with exponent `skew`, divided by parity; simulated.
pub fn balance(split: Split, tenants: u64, skew: f64, seed: u64) -> Balance {
    let mut rng = SplitMix64::seed_from_u64(seed);
    let weight = |rank: u64| 1.0 / ((rank + 1) as f64).powf(skew);
    let mut share = |cluster: u64, hour: u64| {
        let (mut first, mut all) = (0.0, 0.0);
        for rank in 0..tenants {
            let vni = mix(cluster << 32 | rank) & 0xff_ffff;
            // Tenants have their busy hours.
            let phase = (mix(vni) % 24) as f64;
            let daily = 1.0 + 0.8 * ((hour as f64 - phase) * std::f64::consts::TAU / 24.0).cos();
            let traffic = weight(rank) * daily;
            all += traffic;
            first += match split {
                Split::Vni => traffic * f64::from(vni.is_multiple_of(2)),
                // A VPC's traffic goes to as many addresses as it has VMs; the largest of them gets a share of its own.
                Split::Address => {
                    let vms = (64.0 * weight(rank) * 100.0).max(2.0);
                    let heavy = 0.1 * traffic * f64::from(rng.next_u64() as u8 & 1);
                    0.9 * traffic * (0.5 + (rng.random::<f64>() - 0.5) / vms.sqrt()) + heavy
                }
            };
        }
        first / all
    };
    let clusters: Vec<f64> = (0..8).map(|c| share(c, 12)).collect();
    let hours: Vec<f64> = (0..24).map(|h| share(0, h)).collect();
    let worst = clusters.iter().chain(&hours).map(|s| (s - 0.5).abs()).fold(0.0, f64::max);
    Balance { simulated: true, split, skew, clusters, hours, worst_points: 100.0 * worst }
}
