// SPDX-License-Identifier: Apache-2.0
//! `filter-delay`: how long packets are under way through a stateful filter under load, and what CPU that takes (CoFilter Fig. 14 to 17).
//!
//! A node in role filter and the kernel with connection tracking in the same place. Established UDP connections are the background; probes among
//! them carry the time of sending. Full load is what the kernel's filter does in a second of its CPU with frames of that size, so both sides get the
//! same packets at the same pace, which a faster side has more idle time with.
use crate::inline::{Middle, RULES};
use crate::streams::{Pace, Seen, Streams, CONNECTIONS};
use crate::{linux, report, stats, Context, Error, Report};
use figures::{Line, Plot};
use serde_json::{json, Value};
use std::time::Duration;

/// Bytes of a frame: Fig. 15's, whose loads are all measured, and those of Fig. 14.
const SIZE: usize = 1024;
const SIZES: [usize; 3] = [64, 512, 1500];
const LOADS: [u32; 8] = [0, 10, 20, 30, 40, 50, 60, 70];
const SOME: [u32; 3] = [0, 30, 70];
const EACH: Duration = Duration::from_millis(300);
/// Probes a second: data, SYNs.
const PROBES: u64 = 10_000;
const SYNS: u64 = 2_000;
/// New connections a second of Fig. 17b.
const ARRIVALS: [u64; 6] = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000];
const NAMES: [&str; 2] = ["tunny", "nftables"];

/// Delay and cost of one situation, of every sample.
#[derive(Default)]
struct Series {
    p50: Vec<f64>,
    p99: Vec<f64>,
    mean: Vec<f64>,
    deviation: Vec<f64>,
    /// Mean difference between the delays of successive probes (IPDV).
    variation: Vec<f64>,
    cpu_percent: Vec<f64>,
    rate: Vec<f64>,
    lost_percent: Vec<f64>,
}

impl Series {
    fn add(&mut self, side: &Streams, pace: Pace) -> Result<(), Error> {
        let seen = side.send(pace, EACH)?;
        if seen.us.len() < 10 {
            let why = format!(
                "{} of {} probes came through; drops of the node: {:?}",
                seen.us.len(),
                seen.probes,
                side.drops()
            );
            return Err(Error::Failed { what: "filter-delay".into(), why });
        }
        self.record(&seen);
        Ok(())
    }

    fn record(&mut self, seen: &Seen) {
        let n = seen.us.len() as f64;
        let mean = seen.us.iter().sum::<f64>() / n;
        self.p50.push(stats::median(&seen.us));
        self.p99.push(stats::quantile(&seen.us, 0.99));
        self.mean.push(mean);
        self.deviation.push((seen.us.iter().map(|u| (u - mean).powi(2)).sum::<f64>() / n).sqrt());
        self.variation.push(seen.us.windows(2).map(|w| (w[1] - w[0]).abs()).sum::<f64>() / (n - 1.0));
        self.cpu_percent.push(100.0 * seen.cpu / seen.seconds);
        self.rate.push(seen.sent as f64 / seen.seconds);
        self.lost_percent.push(100.0 * seen.lost as f64 / seen.sent.max(1) as f64);
    }

    fn json(&self, row: &mut Value, side: &str) {
        for (what, samples) in [
            ("p50_us", &self.p50),
            ("p99_us", &self.p99),
            ("mean_us", &self.mean),
            ("stddev_us", &self.deviation),
            ("ipdv_us", &self.variation),
            ("cpu_percent", &self.cpu_percent),
            ("packets_per_second", &self.rate),
            ("lost_percent", &self.lost_percent),
        ] {
            row[format!("{side}_{what}")] = json!(report::round(stats::median(samples)));
        }
    }
}

/// A situation on both sides: frames of a size at a load (percent), or SYNs.
struct Row {
    bytes: usize,
    load: u32,
    sides: [Series; 2],
}

impl Row {
    fn json(&self) -> Value {
        let mut row = json!({ "bytes": self.bytes, "load_percent": self.load });
        for (side, name) in self.sides.iter().zip(NAMES) {
            side.json(&mut row, name);
        }
        row
    }
}

/// Frames a second that the kernel's filter does in a second of its CPU.
fn capacity(streams: &Streams) -> Result<f64, Error> {
    let mut rates = Vec::new();
    for _ in 0..3 {
        let seen = streams.most(EACH)?;
        rates.push((seen.sent - seen.lost) as f64 / seen.cpu.max(1e-9));
    }
    Ok(stats::median(&rates))
}

/// All loads of one size, both sides in turn.
fn rows(
    context: &Context,
    sides: &mut [Streams; 2],
    bytes: usize,
    loads: &[u32],
    syn: bool,
) -> Result<(Vec<Row>, f64), Error> {
    for side in sides.iter_mut() {
        side.size(bytes, syn)?;
    }
    context.say(&format!("filter-delay: what the kernel does with frames of {bytes} bytes"));
    let full = capacity(&sides[1])?;
    let mut rows: Vec<Row> = loads.iter().map(|load| Row { bytes, load: *load, sides: Default::default() }).collect();
    for n in 0..context.samples {
        for row in &mut rows {
            let what = if syn { "SYNs" } else { "data" };
            context.say(&format!(
                "filter-delay: {what} beside {bytes} bytes at {}%, sample {} of {}",
                row.load,
                n + 1,
                context.samples
            ));
            let frames = (full * f64::from(row.load) / 100.0) as u64;
            for (side, series) in sides.iter().zip(&mut row.sides) {
                series.add(side, Pace { frames, probes: if syn { SYNS } else { PROBES }, syn })?;
            }
        }
    }
    Ok((rows, full))
}

/// CPU percent at rates of new connections.
fn arrivals(context: &Context, sides: &mut [Streams; 2]) -> Result<Vec<[Series; 2]>, Error> {
    for side in sides.iter_mut() {
        side.size(64, true)?;
    }
    let mut all: Vec<[Series; 2]> = ARRIVALS.iter().map(|_| Default::default()).collect();
    for n in 0..context.samples {
        for (rate, both) in ARRIVALS.into_iter().zip(&mut all) {
            context.say(&format!(
                "filter-delay: {rate} new connections a second, sample {} of {}",
                n + 1,
                context.samples
            ));
            for (side, series) in sides.iter().zip(both) {
                series.add(side, Pace { frames: 0, probes: rate, syn: true })?;
            }
        }
    }
    Ok(all)
}

/// Everything that is measured.
struct Found {
    data: Vec<Row>,
    syn: Vec<Row>,
    arrivals: Vec<[Series; 2]>,
    full: Vec<(usize, f64)>,
}

/// `filter-delay`.
pub fn filter_delay(context: &Context) -> Result<Report, Error> {
    let _room = linux::Conntrack::enlarge(1 << 20)?;
    let mut sides = [
        Streams::create("tunny", Middle::Node(""), SIZE)?,
        Streams::create("nft", Middle::Router { gro: true }, SIZE)?,
    ];
    let known = sides[1].rig.tracked()?;
    if known < u64::from(CONNECTIONS) {
        return Err(Error::Failed {
            what: "connection tracking".into(),
            why: format!("it knows {known} of {CONNECTIONS} connections"),
        });
    }
    let punted = |sides: &[Streams; 2]| sides[0].rig.node.as_ref().map_or(0, |n| n.node.counters().fast.punted);
    let before = punted(&sides);
    let (mut data, full) = rows(context, &mut sides, SIZE, &LOADS, false)?;
    let mut full = vec![(SIZE, full)];
    for bytes in SIZES {
        let (more, most) = rows(context, &mut sides, bytes, &SOME, false)?;
        data.extend(more);
        full.push((bytes, most));
    }
    let more = punted(&sides) - before;
    if more > 0 {
        let why = format!("{more} packets of established connections went to the software path");
        return Err(Error::Failed { what: "filter-delay".into(), why });
    }
    let (syn, _) = rows(context, &mut sides, SIZE, &LOADS, true)?;
    let arrivals = arrivals(context, &mut sides)?;
    for side in sides {
        side.rig.stop();
    }
    Ok(answer(&Found { data, syn, arrivals, full }))
}

/// Points of one figure of the rows with frames of a size, for one side.
fn points_of(rows: &[Row], bytes: usize, side: usize, of: impl Fn(&Series) -> &Vec<f64>) -> Vec<(f64, f64)> {
    // A logarithmic axis has no place for 0%: it stands at 1.
    let rows = rows.iter().filter(|r| r.bytes == bytes);
    rows.map(|r| (f64::from(r.load.max(1)), stats::median(of(&r.sides[side])))).collect()
}

/// The same with frames of the size that all loads are measured with.
fn points(rows: &[Row], side: usize, of: impl Fn(&Series) -> &Vec<f64>) -> Vec<(f64, f64)> {
    points_of(rows, SIZE, side, of)
}

fn line(name: &str, points: Vec<(f64, f64)>, dashed: bool) -> Line {
    Line { name: name.into(), points, dashed }
}

/// What the paper's text gives of its figures: at no load and at 70%.
fn of_paper(low: f64, high: f64) -> Vec<(f64, f64)> {
    vec![(1.0, low), (70.0, high)]
}

fn answer(found: &Found) -> Report {
    let heaviest = found.data.iter().find(|r| r.bytes == SIZE && r.load == 70);
    let ratio = |of: fn(&Series) -> &Vec<f64>| -> Vec<f64> {
        heaviest.map_or_else(Vec::new, |r| {
            of(&r.sides[1]).iter().zip(of(&r.sides[0])).map(|(theirs, ours)| theirs / ours).collect()
        })
    };
    let against = "p99 delay of data packets, nf_conntrack ÷ Tunny, 1,024 bytes, at 70% of what nf_conntrack carries";
    let mut report = Report::new("filter-delay", "ratio", ratio(|s| &s.p99), None, against);
    report
        .detail_median("p50_ratio", &ratio(|s| &s.p50))
        .detail_median("mean_ratio", &ratio(|s| &s.mean))
        .detail_median("jitter_ratio", &ratio(|s| &s.deviation))
        .detail_median("ipdv_ratio", &ratio(|s| &s.variation))
        .detail_median("cpu_ratio", &ratio(|s| &s.cpu_percent));
    let arrivals = ARRIVALS.into_iter().zip(&found.arrivals).map(|(rate, both)| {
        let mut row = json!({ "new_connections_per_second": rate });
        both.iter().zip(NAMES).for_each(|(side, name)| side.json(&mut row, name));
        row
    });
    report
        .detail("data", found.data.iter().map(Row::json).collect::<Vec<_>>())
        .detail("syn", found.syn.iter().map(Row::json).collect::<Vec<_>>())
        .detail("arrivals", arrivals.collect::<Vec<_>>())
        .detail("full_load_packets_per_second", json!(found.full.iter().map(|(b, r)| (b.to_string(), report::round(*r))).collect::<std::collections::BTreeMap<_, _>>()))
        .detail("connections", CONNECTIONS)
        .detail("nftables_rules", RULES)
        .detail("paper", json!({
            "fig15_netfilter_mean_us": [27, 87], "fig15_netfilter_p99_us": [55, 194], "fig15_cofilter_us": 1,
            "fig15_netfilter_stddev_us": [10, 100], "fig15_cofilter_stddev_us": 0.01,
            "fig16_netfilter_us": [25, 63], "fig16_cofilter_us": { "switch": 200, "hybrid": 50 },
            "fig17b_netfilter_percent_at_32000": 45.4, "fig17c_percent_at_20_gbit": { "netfilter": 400, "cofilter": 13 },
        }))
        .detail("rig", "veth, one queue, threaded NAPI of both ports and all threads of the node on CPU 1, live-frame generator and XDP sink on CPU 0");
    report.plots = plots(found);
    report
}

/// Fig. 14: the mean delay of data packets of each size; the paper's text gives numbers of one size only.
fn sizes(found: &Found) -> Vec<Line> {
    let mut all = [SIZES[0], SIZES[1], SIZE, SIZES[2]];
    all.sort_unstable();
    let lines = NAMES.into_iter().enumerate().flat_map(|(i, name)| {
        all.map(|bytes| line(&format!("{name}, {bytes} bytes"), points_of(&found.data, bytes, i, |s| &s.mean), i == 1))
    });
    let mut lines: Vec<Line> = lines.collect();
    lines.push(line("paper: NetFilter, 1024 bytes", of_paper(27.0, 87.0), true));
    lines.push(line("paper: CoFilter (switch), every size", of_paper(1.0, 1.0), true));
    lines
}

const LOAD: &str = "load, % of what the kernel with connection tracking carries (1: none)";

fn plots(found: &Found) -> Vec<Plot> {
    let mut delay = Vec::new();
    let mut jitter = Vec::new();
    let mut syn = Vec::new();
    let mut cpu = Vec::new();
    for (i, name) in NAMES.into_iter().enumerate() {
        delay.push(line(&format!("{name}, p50"), points(&found.data, i, |s| &s.p50), false));
        delay.push(line(&format!("{name}, p99"), points(&found.data, i, |s| &s.p99), false));
        jitter.push(line(&format!("{name}, standard deviation"), points(&found.data, i, |s| &s.deviation), false));
        jitter.push(line(&format!("{name}, IPDV"), points(&found.data, i, |s| &s.variation), false));
        syn.push(line(&format!("{name}, mean"), points(&found.syn, i, |s| &s.mean), false));
        syn.push(line(&format!("{name}, p99"), points(&found.syn, i, |s| &s.p99), false));
        cpu.push(line(&format!("{name}, established connections"), points(&found.data, i, |s| &s.cpu_percent), false));
    }
    delay.push(line("paper: NetFilter, mean", of_paper(27.0, 87.0), true));
    delay.push(line("paper: NetFilter, p99", of_paper(55.0, 194.0), true));
    delay.push(line("paper: CoFilter (switch)", of_paper(1.0, 1.0), true));
    jitter.push(line("paper: NetFilter", of_paper(10.0, 100.0), true));
    jitter.push(line("paper: CoFilter (switch)", of_paper(0.01, 0.01), true));
    syn.push(line("paper: NetFilter", of_paper(25.0, 63.0), true));
    syn.push(line("paper: CoFilter, agent on a server", of_paper(50.0, 50.0), true));
    syn.push(line("paper: CoFilter, agent on the switch", of_paper(200.0, 200.0), true));
    let rates = |side: usize| {
        let all = ARRIVALS.into_iter().zip(&found.arrivals);
        all.map(|(rate, both)| (rate as f64, stats::median(&both[side].cpu_percent))).collect::<Vec<_>>()
    };
    let mut arrivals: Vec<Line> = NAMES.into_iter().enumerate().map(|(i, name)| line(name, rates(i), false)).collect();
    arrivals.push(line("paper: NetFilter at 32K flows a second", vec![(32e3, 45.4)], true));
    let plot = |name, title: &str, x: &str, y: &str, lines| Plot {
        name,
        title: title.into(),
        x: x.into(),
        y: y.into(),
        lines,
        ..Plot::default()
    };
    vec![
        plot("fig14", "Mean delay of data packets by size (CoFilter Fig. 14)", LOAD, "mean delay, µs", sizes(found)),
        plot("fig15a", "Delay of data packets, 1,024 bytes (CoFilter Fig. 15a)", LOAD, "delay, µs", delay),
        plot("fig15b", "Jitter of data packets, 1,024 bytes (CoFilter Fig. 15b)", LOAD, "µs", jitter),
        plot("fig16", "Delay of SYNs beside data (CoFilter Fig. 16)", LOAD, "delay, µs", syn),
        plot(
            "fig17b",
            "CPU of new connections (CoFilter Fig. 17b)",
            "new connections a second",
            "% of a CPU",
            arrivals,
        ),
        plot("fig17c", "CPU of established connections (CoFilter Fig. 17c)", LOAD, "% of a CPU", cpu),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plot_of_sizes_has_a_line_for_each_size_and_side() {
        let series = |us: f64| Series { mean: vec![us], ..Series::default() };
        let mut data = Vec::new();
        for (n, bytes) in [SIZE, 64, 512, 1500].into_iter().enumerate() {
            for load in SOME {
                let us = f64::from(load) + n as f64 + 1.0;
                data.push(Row { bytes, load, sides: [series(us), series(10.0 * us)] });
            }
        }
        let found = Found { data, syn: vec![], arrivals: vec![], full: vec![] };
        let lines = sizes(&found);
        let named = |name: &str| lines.iter().find(|l| l.name == name).map(|l| l.points.clone());
        assert_eq!(named("tunny, 64 bytes"), Some(vec![(1.0, 2.0), (30.0, 32.0), (70.0, 72.0)]));
        assert_eq!(named("nftables, 1024 bytes"), Some(vec![(1.0, 10.0), (30.0, 310.0), (70.0, 710.0)]));
        assert_eq!(lines.len(), 2 * 4 + 2);
        assert!(lines.iter().all(|l| !l.points.is_empty()));
    }

    #[test]
    fn jitter_is_of_successive_probes() {
        let mut series = Series::default();
        let seen = Seen {
            sent: 20,
            us: (0..20).map(|n| if n % 2 == 0 { 1.0 } else { 3.0 }).collect(),
            probes: 20,
            seconds: 2.0,
            cpu: 0.5,
            ..Seen::default()
        };
        series.record(&seen);
        assert_eq!(
            (series.mean[0], series.deviation[0], series.variation[0], series.cpu_percent[0]),
            (2.0, 1.0, 2.0, 25.0)
        );
    }
}
