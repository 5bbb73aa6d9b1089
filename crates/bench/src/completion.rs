// SPDX-License-Identifier: Apache-2.0
//! `completion-time`: flow completion times behind a stateful filter (CoFilter Fig. 12 and 18b).
//!
//! Flows of the four size distributions of Fig. 11 through a node in role filter and through the kernel's connection tracking in the same
//! place, at three loads. Then thirty tenants fill the node's state table with long connections: short flows with and without migration, and
//! beside the kernel. The table is a tenth of the paper's (θ1 1,000 and θ2 500 connections instead of 10K and 5K), and so are the long connections:
//! both ends of all of them are in this process.
use crate::flows::{at_once, flow, run, schedule, Flows, Server, PATIENCE};
use crate::inline::{become_an_end, InlineRig, Middle, Tenants, RULES};
use crate::sizes::{Sizes, DISTRIBUTIONS};
use crate::{cpu, linux, report, stats, Context, Error, Report};
use figures::{Line, Plot};
use node::states::MigrationView;
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;
use serde_json::json;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const TENANTS: Tenants = Tenants { count: 30, servers: 16 };
/// Flows larger than this are cut: 2,000 packets.
const CAP: f64 = 3e6;
/// Of the bytes a second that the kernel carries, packet by packet, when flows follow each other at once.
const LOADS: [f64; 3] = [0.1, 0.4, 0.7];
const EACH: Duration = Duration::from_millis(400);

/// Long connections of a tenant, by its number modulo three: a tenth of the paper's.
const LONG: [u32; 3] = [10, 40, 160];
/// Places of the state table, and the thresholds of which the paper says how many connections they are, a tenth of each: 1,000 and 500.
const PLACES: u32 = 2_000;
const MIGRATION: &str = ",\"migration\":{\"begin\":50,\"end\":25,\"unit4\":96,\"connections\":30000}";
/// Pause of a tenant before the next of its flows, short or long.
const PAUSE: Duration = Duration::from_millis(40);
const PAUSE_LONG: Duration = Duration::from_millis(10);
const LONG_LIMIT: Duration = Duration::from_secs(8);
const PHASE: Duration = Duration::from_millis(1500);
const CLASSES: [&str; 3] = ["few", "some", "many"];

/// `spec.filter` of a node with a table that is too small. Connections of servers behind inline pairs are wide.
fn small_table(migration: &str) -> String {
    format!(
        "\"states\":\"digest\",\"connections\":{},\"wideConnections\":{}{migration}",
        PLACES / 10,
        PLACES - PLACES / 10
    )
}

/// A rig with its servers.
struct Side {
    rig: InlineRig,
    server: Server,
}

impl Side {
    fn create(role: &str, middle: Middle) -> Result<Side, Error> {
        let rig = InlineRig::create(role, TENANTS, middle)?;
        let server = Server::start(&rig)?;
        Ok(Side { rig, server })
    }

    fn stop(self) -> Result<(), Error> {
        self.server.stop(&self.rig)?;
        self.rig.stop();
        Ok(())
    }
}

/// Sides of the size distributions.
const SIDES: [&str; 3] = ["tunny", "nftables", "nftables_gro"];

/// Completion times of one distribution at one load: by side, by sample.
struct Row {
    sizes: &'static Sizes,
    load: f64,
    mean: [Vec<f64>; 3],
    all: [Vec<f64>; 3],
    bytes_per_second: [Vec<f64>; 3],
}

impl Row {
    /// The kernel's mean ÷ Tunny's, by sample.
    fn ratios(&self, other: usize) -> Vec<f64> {
        self.mean[other].iter().zip(&self.mean[0]).map(|(theirs, ours)| theirs / ours).collect()
    }

    fn json(&self) -> serde_json::Value {
        let mut row = json!({
            "distribution": self.sizes.name, "load": self.load, "flows": self.all[0].len(),
            "cut_flows_percent": report::round(100.0 * self.sizes.beyond(CAP)),
        });
        for (i, side) in SIDES.into_iter().enumerate() {
            row[format!("{side}_mean_us")] = json!(report::round(stats::median(&self.mean[i])));
            row[format!("{side}_p99_us")] = json!(report::round(stats::quantile(&self.all[i], 0.99)));
            row[format!("{side}_mbit_per_second")] =
                json!(report::round(stats::median(&self.bytes_per_second[i]) * 8e-6));
            if i > 0 {
                let ratios = self.ratios(i);
                row[format!("{side}_ratio")] = json!(report::round(stats::median(&ratios)));
                row[format!("{side}_ratio_spread")] = json!(report::round(stats::spread(&ratios)));
            }
        }
        row
    }
}

/// Bytes a second of a distribution's flows that follow each other at once.
fn carries(side: &Side, sizes: &Sizes, seed: u64) -> Result<f64, Error> {
    let due = at_once(&schedule(sizes, CAP, 1e8, TENANTS, Duration::from_millis(500), seed));
    let seen = run(&side.rig, &due)?;
    Ok(seen.bytes as f64 / seen.seconds)
}

/// Every distribution at every load; the bytes a second that the loads are shares of.
fn distributions(context: &Context) -> Result<(Vec<Row>, Vec<f64>), Error> {
    let sides = [
        Side::create("tunny", Middle::Node(""))?,
        Side::create("nft", Middle::Router { gro: false })?,
        Side::create("gro", Middle::Router { gro: true })?,
    ];
    let mut most = Vec::new();
    for sizes in &DISTRIBUTIONS {
        context.say(&format!("completion-time: what the kernel carries of {}", sizes.name));
        // The first flows resolve neighbours and fill caches, on every side.
        for side in &sides {
            carries(side, sizes, context.seed)?;
        }
        most.push(carries(&sides[1], sizes, context.seed)?);
    }
    let mut rows: Vec<Row> = Vec::new();
    for sizes in &DISTRIBUTIONS {
        rows.extend(LOADS.map(|load| Row {
            sizes,
            load,
            mean: Default::default(),
            all: Default::default(),
            bytes_per_second: Default::default(),
        }));
    }
    for n in 0..context.samples {
        for (i, row) in rows.iter_mut().enumerate() {
            context.say(&format!(
                "completion-time: {} at {:.0}%, sample {} of {}",
                row.sizes.name,
                100.0 * row.load,
                n + 1,
                context.samples
            ));
            let due =
                schedule(row.sizes, CAP, row.load * most[i / LOADS.len()], TENANTS, EACH, context.seed + n as u64);
            for (s, side) in sides.iter().enumerate() {
                let Flows { us, bytes, seconds } = run(&side.rig, &due)?;
                row.mean[s].push(us.iter().sum::<f64>() / us.len().max(1) as f64);
                row.all[s].extend(us);
                row.bytes_per_second[s].push(bytes as f64 / seconds);
            }
        }
    }
    for side in sides {
        side.stop()?;
    }
    Ok((rows, most))
}

/// Completion times of short flows, µs, by class of tenants; what did not come through counts as the patience that was had with it.
#[derive(Default)]
struct Times {
    us: [Vec<f64>; 3],
    failed: [u64; 3],
}

impl Times {
    fn mean(&self, class: usize) -> f64 {
        self.us[class].iter().sum::<f64>() / self.us[class].len().max(1) as f64
    }

    fn add(&mut self, other: Times) {
        for (class, us) in other.us.into_iter().enumerate() {
            self.us[class].extend(us);
            self.failed[class] += other.failed[class];
        }
    }
}

/// Runs a thread for each tenant in the client.
fn tenants(side: &Side, work: impl Fn(u32) + Sync) -> Result<(), Error> {
    side.rig.client.inside(|| {
        become_an_end()?;
        std::thread::scope(|scope| {
            for tenant in 0..TENANTS.count {
                let work = &work;
                scope.spawn(move || work(tenant));
            }
        });
        Ok(())
    })
}

/// All tenants send flows of 1 to 10 kB for a while.
fn short(side: &Side, seed: u64) -> Result<Times, Error> {
    let times = Mutex::new(Times::default());
    tenants(side, |tenant| {
        let mut random = SplitMix64::seed_from_u64(seed ^ u64::from(tenant) << 32);
        let phase = Instant::now();
        while phase.elapsed() < PHASE {
            std::thread::sleep(PAUSE.mul_f64(0.5 + f64::from(random.random_range(0..1000u32)) / 1e3));
            let (server, bytes) =
                (TENANTS.server(tenant, random.random_range(0..TENANTS.servers)), 1000 + random.random_range(0..9001));
            let began = Instant::now();
            let done = flow(server, bytes);
            let took = done.as_ref().map_or(PATIENCE, |_| began.elapsed()).as_secs_f64() * 1e6;
            let mut times = times.lock();
            let class = tenant as usize % 3;
            times.us[class].push(took);
            times.failed[class] += u64::from(done.is_none());
        }
    })?;
    Ok(times.into_inner())
}

/// Opens the long connections. A tenant gives up when two in a row are refused, as there is no room and each try takes all of one's patience, or
/// after [`LONG_LIMIT`].
fn long(side: &Side) -> Result<Vec<TcpStream>, Error> {
    let kept = Mutex::new(Vec::new());
    tenants(side, |tenant| {
        let (mut refused, began) = (0, Instant::now());
        for n in 0..LONG[tenant as usize % 3] {
            match flow(TENANTS.server(tenant, n), 0) {
                Some(stream) => {
                    refused = 0;
                    kept.lock().push(stream);
                }
                None if refused > 0 => return,
                None => refused += 1,
            }
            if began.elapsed() > LONG_LIMIT {
                return;
            }
            std::thread::sleep(PAUSE_LONG);
        }
    })?;
    Ok(kept.into_inner())
}

/// One side of the thirty tenants.
struct Filled {
    name: &'static str,
    side: Side,
    alone: Times,
    kept: Vec<TcpStream>,
    compared: Times,
    few: Vec<f64>,
}

fn fill(context: &Context, name: &'static str, middle: Middle) -> Result<Filled, Error> {
    let side = Side::create(name, middle)?;
    context.say(&format!("completion-time: {name}, short flows alone"));
    let alone = short(&side, context.seed)?;
    context.say(&format!("completion-time: {name}, long connections"));
    let kept = long(&side)?;
    // A step of migration is at most once a second.
    std::thread::sleep(PHASE);
    Ok(Filled { name, side, alone, kept, compared: Times::default(), few: Vec::new() })
}

fn view(filled: &Filled) -> MigrationView {
    filled.side.rig.node.as_ref().map(|n| n.node.migration()).unwrap_or_default()
}

/// `completion-time`.
pub fn completion_time(context: &Context) -> Result<Report, Error> {
    let _room = linux::Conntrack::enlarge(1 << 20)?;
    // Both ends of each connection are in this process.
    cpu::open_files(16_384).map_err(Error::io("asking for 16,384 open files"))?;
    let (rows, most) = distributions(context)?;
    let (with, without) = (small_table(MIGRATION), small_table(""));
    let mut sides = [
        fill(context, "migrating", Middle::Node(&with))?,
        fill(context, "refusing", Middle::Node(&without))?,
        fill(context, "nftables", Middle::Router { gro: false })?,
    ];
    for n in 0..context.samples {
        for filled in &mut sides {
            context.say(&format!(
                "completion-time: {}, beside {} long connections, sample {} of {}",
                filled.name,
                filled.kept.len(),
                n + 1,
                context.samples
            ));
            let seen = short(&filled.side, context.seed + 1 + n as u64)?;
            filled.few.push(seen.mean(0));
            filled.compared.add(seen);
        }
    }
    let moved = view(&sides[0]);
    if moved.moved_to_software == 0 {
        return Err(Error::Failed { what: "migration".into(), why: "no connection migrated".into() });
    }
    let report = answer(&rows, &most, &moved, &sides);
    for filled in sides {
        drop(filled.kept);
        filled.side.stop()?;
    }
    Ok(report)
}

fn answer(rows: &[Row], most: &[f64], moved: &MigrationView, sides: &[Filled; 3]) -> Report {
    let ratios = sides[1].few.iter().zip(&sides[0].few).map(|(without, with)| without / with).collect();
    let against = "mean completion time of short flows of the ten tenants with the fewest long connections, without migration ÷ with";
    let mut report = Report::new("completion-time", "ratio", ratios, None, against);
    for filled in sides {
        let name = filled.name;
        report.detail(&format!("{name}_long_connections"), filled.kept.len() as u64);
        for (class, tenants) in CLASSES.into_iter().enumerate() {
            report
                .detail(&format!("{name}_{tenants}_alone_us"), report::round(filled.alone.mean(class)))
                .detail(&format!("{name}_{tenants}_us"), report::round(filled.compared.mean(class)))
                .detail(&format!("{name}_{tenants}_p50_us"), report::round(stats::median(&filled.compared.us[class])))
                .detail(&format!("{name}_{tenants}_flows"), filled.compared.us[class].len() as u64)
                .detail(&format!("{name}_{tenants}_failed"), filled.compared.failed[class]);
        }
    }
    report
        .detail("long_connections_wanted", u64::from(LONG.iter().sum::<u32>() * TENANTS.count / 3))
        .detail("migrated_connections", moved.software)
        .detail("migrated_prefixes", moved.prefixes.len() as u64)
        .detail("fast_path_connections", moved.fast)
        .detail("paper_fig18b_us", json!({ "alone": "10 to 100", "without_migration": "> 10^8", "with_migration": "tens of ms, the ten tenants with the fewest" }))
        .detail("paper_fig12", "at 7 of 10 Gbit/s the mean is 10 to 376 us less than NetFilter's; no points are given")
        .detail("fig12", rows.iter().map(Row::json).collect::<Vec<_>>())
        .detail("fig12_full_load_mbit", most.iter().map(|b| report::round(b * 8e-6)).collect::<Vec<_>>())
        .detail("flow_cap_bytes", CAP)
        .detail("nftables_rules", RULES)
        .detail("sizes", "github.com/HKUST-SING/TrafficGenerator conf/CDF_{dctcp,vl2,cache,hadoop}.txt, packets of 1,500 bytes")
        .detail("rig", "veth, client, filter and servers in network namespaces; filter on CPU 1, kernel TCP of both ends on CPU 0; without TSO and checksum offload");
    report.plots.push(fig12(rows));
    report.plots.push(fig18b(sides));
    report
}

fn fig12(rows: &[Row]) -> Plot {
    let mut lines = Vec::new();
    for row in rows.iter().filter(|r| r.load == LOADS[0]) {
        for (i, side) in SIDES.into_iter().enumerate().take(2) {
            let of = rows.iter().filter(|r| r.sizes.name == row.sizes.name);
            let points = of.map(|r| (100.0 * r.load, stats::median(&r.mean[i]))).collect();
            lines.push(Line { name: format!("{}: {side}", row.sizes.name), points, dashed: i > 0 });
        }
    }
    Plot {
        name: "fig12",
        title: "Mean flow completion time (CoFilter Fig. 12: at 70% load 10 to 376 µs less than NetFilter)".into(),
        x: "load, % of what the kernel with connection tracking carries".into(),
        y: "completion time, µs".into(),
        lines,
        ..Plot::default()
    }
}

fn fig18b(sides: &[Filled; 3]) -> Plot {
    let quantiles =
        |us: &[f64]| [0.5, 0.2, 0.1, 0.05, 0.02, 0.01].map(|tail| (tail, stats::quantile(us, 1.0 - tail))).to_vec();
    let mut lines = Vec::new();
    for filled in sides {
        lines.push(Line {
            name: format!("{}, nothing else", filled.name),
            points: quantiles(&filled.alone.us.concat()),
            dashed: true,
        });
        lines.push(Line {
            name: format!("{}, beside long connections", filled.name),
            points: quantiles(&filled.compared.us.concat()),
            dashed: false,
        });
    }
    Plot {
        name: "fig18b",
        title: "Short flows of thirty tenants (CoFilter Fig. 18b: means 10 to 100 µs, > 10⁸ µs, with migration some 10⁴ µs)".into(),
        x: "share of flows that take longer".into(),
        y: "completion time, µs (2 s: did not come through)".into(),
        lines,
        ..Plot::default()
    }
}
