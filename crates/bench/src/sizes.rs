// SPDX-License-Identifier: Apache-2.0
//! Flow sizes of data centers: the four distributions of CoFilter's Fig. 11.
//!
//! The paper draws the curves and gives no points. The points here are those of a traffic generator that has the same four under the same
//! names: github.com/HKUST-SING/TrafficGenerator, `conf/CDF_dctcp.txt`, `CDF_vl2.txt` (commit 635190a), `CDF_cache.txt` and `CDF_hadoop.txt`
//! (c08f400). What they come from: web search in DCTCP (SIGCOMM 2010), data mining in VL2 (SIGCOMM 2009), cache and Hadoop of Facebook (Roy et
//! al., SIGCOMM 2015). Sizes there are packets of 1,500 bytes, as its `DCTCP_CDF.txt` shows, the same curve in bytes (6,667 packets: 10 MB); that
//! one is also `WebSearch_distribution.txt` of github.com/alibaba-edu/High-Precision-Congestion-Control. For Hadoop that repository has another
//! curve (`FbHdp_distribution.txt`, median 700 bytes instead of 75 KB); it is not used, since its cache counterpart does not exist.

/// Bytes of a packet of the distributions.
const PACKET: f64 = 1500.0;

/// A distribution: its name in the paper's Fig. 11, and sizes in packets with the share of flows that are not larger.
#[derive(Debug)]
pub struct Sizes {
    /// Name.
    pub name: &'static str,
    points: &'static [(f64, f64)],
}

/// The four.
pub const DISTRIBUTIONS: [Sizes; 4] = [
    Sizes {
        name: "DCTCP",
        points: &[
            (6.0, 0.0),
            (6.0, 0.15),
            (13.0, 0.2),
            (19.0, 0.3),
            (33.0, 0.4),
            (53.0, 0.53),
            (133.0, 0.6),
            (667.0, 0.7),
            (1333.0, 0.8),
            (3333.0, 0.9),
            (6667.0, 0.97),
            (20_000.0, 1.0),
        ],
    },
    Sizes {
        name: "VL2",
        points: &[
            (1.0, 0.0),
            (1.0, 0.5),
            (2.0, 0.6),
            (3.0, 0.7),
            (7.0, 0.8),
            (267.0, 0.9),
            (2107.0, 0.95),
            (66_667.0, 0.99),
            (666_667.0, 1.0),
        ],
    },
    Sizes {
        name: "CACHE",
        points: &[
            (1.0, 0.0),
            (1.0, 0.36),
            (2.0, 0.4),
            (7.0, 0.46),
            (13.0, 0.5),
            (67.0, 0.6),
            (133.0, 0.7),
            (667.0, 0.78),
            (1333.0, 0.8),
            (2000.0, 0.9),
            (2667.0, 0.99),
            (33_333.0, 1.0),
        ],
    },
    Sizes {
        name: "HADOOP",
        points: &[
            (1.0, 0.0),
            (24.0, 0.1),
            (30.0, 0.2),
            (33.0, 0.3),
            (33.0, 0.4),
            (50.0, 0.5),
            (53.0, 0.6),
            (67.0, 0.7),
            (120.0, 0.8),
            (160.0, 0.9),
            (200.0, 0.95),
            (667.0, 0.96),
            (6667.0, 0.97),
            (66_667.0, 0.99),
            (333_333.0, 1.0),
        ],
    },
];

impl Sizes {
    /// Bytes of the flow at this share (0 to 1) of the distribution, linear between points.
    pub fn at(&self, share: f64) -> f64 {
        let i = self.points.iter().position(|(_, c)| *c >= share).unwrap_or(self.points.len() - 1).max(1);
        let ((a, low), (b, high)) = (self.points[i - 1], self.points[i]);
        (a + (b - a) * ((share - low) / (high - low)).clamp(0.0, 1.0)) * PACKET
    }

    /// Mean bytes of flows of which none is larger than `cap`.
    pub fn mean(&self, cap: f64) -> f64 {
        const STEPS: u32 = 10_000;
        (0..STEPS).map(|n| self.at((f64::from(n) + 0.5) / f64::from(STEPS)).min(cap)).sum::<f64>() / f64::from(STEPS)
    }

    /// Share of flows that are larger.
    pub fn beyond(&self, bytes: f64) -> f64 {
        let size = bytes / PACKET;
        let i = self.points.iter().position(|(s, _)| *s > size).unwrap_or(self.points.len());
        match i {
            0 => 1.0,
            i if i == self.points.len() => 0.0,
            i => {
                let ((a, low), (b, high)) = (self.points[i - 1], self.points[i]);
                1.0 - (low + (high - low) * (size - a) / (b - a))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_their_distribution() {
        for d in &DISTRIBUTIONS {
            let p = d.points;
            assert!(p.is_sorted_by(|a, b| a.0 <= b.0 && a.1 < b.1), "{}", d.name);
            assert!(p[0].1 == 0.0 && p[p.len() - 1].1 == 1.0, "{}", d.name);
            for (packets, share) in &p[1..] {
                assert_eq!(d.at(*share), packets * PACKET, "{} at {share}", d.name);
                assert!(d.beyond(packets * PACKET) <= 1.0 - share + 1e-9, "{} beyond {packets}", d.name);
            }
            assert!(d.at(0.0) >= PACKET && d.at(0.96) > d.at(0.2) && d.mean(1e6) < d.mean(1e9));
        }
        // Of DCTCP's flows, 53% have 80 KB or less, and the mean is known: 1.6 to 1.7 MB.
        let dctcp = &DISTRIBUTIONS[0];
        assert!((dctcp.at(0.53) - 80e3).abs() < 1e3);
        assert!((1.6e6..1.75e6).contains(&dctcp.mean(f64::MAX)), "{}", dctcp.mean(f64::MAX));
        assert!((dctcp.beyond(3e6) - 0.1667).abs() < 0.001, "{}", dctcp.beyond(3e6));
    }
}
