// SPDX-License-Identifier: Apache-2.0
//! `edge-sizes`: packets a second from customers' sites into the cloud by the size of the overlay tables and of the packets, as Fig. 5 of
//! "A Scalable VPN Gateway", with its own curves beside.
//!
//! Tables of one entry, 2^20 and 2^24 (less 16), all of them used alike. A card puts packets into memory by itself, so what stands behind the
//! headers is left as it is; that a port copies each byte is a curve of its own.
use crate::edge::{make_edge, to_cloud, EDGE};
use crate::user::{pair, UserRunner};
use crate::workload::{Workload, TAGGED};
use crate::{cpu, report, setup, stats, Context, Error, Goal, Report};
use figures::{Line, Plot, Scale};
use std::time::Duration;
use tables::{Tables, Writer};

/// Bytes of a frame with its tags, without the frame check sequence; those of the paper's figure.
const SIZES: [usize; 9] = [64, 128, 160, 256, 384, 512, 1024, 1280, 1518];
/// Bytes that a frame takes on a wire besides: preamble, frame check sequence, gap.
const WIRE: f64 = 24.0;
/// What the paper's link carries, bits a second.
const LINK: f64 = 40e9;
/// Packets that the paper's card takes a second (§4: 20% less than the link has at 64 bytes).
const CARD: f64 = 47.6;
const PACKETS: usize = 1 << 20;
const CACHE_ROUNDS: usize = 12;
const WARM: Duration = Duration::from_millis(200);
const SAMPLE: Duration = Duration::from_millis(300);

/// Tables of so many entries.
struct Size {
    name: &'static str,
    vpcs: u32,
    vms: u32,
}

const TABLES: [Size; 3] = [
    Size { name: "1", vpcs: 1, vms: 1 },
    Size { name: "1m", vpcs: 1024, vms: 1024 },
    // 2^24 less 16: the number 0 is no VM's.
    Size { name: "16m", vpcs: 1025, vms: 16_368 },
];

/// Most that 2^24 entries may take.
const BYTES_16M: u64 = 1 << 30;

/// The tables of one size, with sites and without.
struct Loaded {
    workload: Workload,
    edge: Writer,
    plain: Writer,
}

impl Loaded {
    fn new(context: &Context, size: &Size) -> Result<Loaded, Error> {
        context.say(&format!("edge-sizes: {} entries", u64::from(size.vpcs) * u64::from(size.vms)));
        let workload = Workload::flat(size.vpcs, size.vms, 4096, context.seed);
        let (mut edge, _) = setup::heap(&workload)?;
        make_edge(&mut edge, &workload, EDGE)?;
        let (plain, _) = setup::heap(&workload)?;
        Ok(Loaded { workload, edge, plain })
    }

    fn runner(&self, context: &Context, bytes: usize, worker: u32) -> UserRunner {
        let packets = to_cloud(&self.workload, PACKETS, context.seed + u64::from(worker), bytes);
        UserRunner::new(self.edge.tables(), packets, worker).tagged(EDGE).sized(bytes)
    }

    fn between(&self, context: &Context, tables: Tables) -> UserRunner {
        UserRunner::new(tables, self.workload.packets(PACKETS, 0, context.seed), 0)
    }
}

/// Millions of packets a second on one core, in samples.
fn rate(context: &Context, runner: &mut UserRunner) -> Result<Vec<f64>, Error> {
    let on = cpu::count() - 1;
    runner.run(on, WARM)?;
    (0..context.samples)
        .map(|_| {
            let run = runner.run(on, SAMPLE)?;
            run.all_forwarded()?;
            Ok(run.mpps())
        })
        .collect()
}

/// By turns: rates of the edge and of packets between VMs, and the factor of two cores.
#[derive(Default)]
struct AtLeast {
    edge: Vec<f64>,
    between: Vec<f64>,
    share: Vec<f64>,
    two: Vec<f64>,
}

fn smallest(context: &Context, loaded: &Loaded, cache: bool) -> Result<AtLeast, Error> {
    let lines = 4 * PACKETS as u32;
    let with = |runner: UserRunner| -> Result<UserRunner, Error> {
        let mut runner = if cache { runner.with_flow_cache(lines)? } else { runner };
        runner.rounds(CACHE_ROUNDS);
        Ok(runner)
    };
    let mut one = with(loaded.runner(context, TAGGED, 0))?;
    let mut other = with(loaded.runner(context, TAGGED, 1))?;
    let mut between = with(loaded.between(context, loaded.plain.tables()))?;
    let on = cpu::count() - 1;
    let mut out = AtLeast::default();
    for _ in 0..context.samples {
        let run = one.run(on, SAMPLE)?;
        run.all_forwarded()?;
        let reference = between.run(on, SAMPLE)?;
        reference.all_forwarded()?;
        out.edge.push(run.mpps());
        out.between.push(reference.mpps());
        out.share.push(run.mpps() / reference.mpps());
        if cpu::count() > 1 {
            let (a, b) = pair(&mut one, &mut other, SAMPLE)?;
            out.two.push((a.mpps() + b.mpps()) / run.mpps());
        }
    }
    Ok(out)
}

/// Packets a second that a link of 40 Gbit/s has, millions.
fn wire(bytes: usize) -> f64 {
    LINK / ((bytes as f64 + WIRE) * 8.0) / 1e6
}

fn plot(lines: Vec<Line>) -> Plot {
    let by = |f: &dyn Fn(usize) -> f64| SIZES.iter().map(|s| (*s as f64, f(*s))).collect();
    let link = Line { name: "40 Gbit/s (paper: IXIA)".into(), points: by(&wire), dashed: true };
    let paper = |bytes| wire(bytes).min(CARD);
    let paper = Line { name: "paper, 2 to 10 worker cores".into(), points: by(&paper), dashed: true };
    Plot {
        name: "fig5",
        title: "Customer to cloud on one core, Rust path, by overlay entries (VPN Fig. 5)".into(),
        x: "bytes of a frame with two tags".into(),
        y: "million packets a second".into(),
        scales: [Scale::Linear; 2],
        lines: lines.into_iter().chain([link, paper]).collect(),
        ..Plot::default()
    }
}

/// `edge-sizes`.
pub fn edge_sizes(context: &Context) -> Result<Report, Error> {
    let (mut lines, mut details, mut worst) = (vec![], vec![], None::<Vec<f64>>);
    let (mut two_least, mut bytes_16m) = (f64::MAX, 0);
    for size in &TABLES {
        let (loaded, name) = (Loaded::new(context, size)?, size.name);
        for (cache, label) in [(false, ""), (true, "cached_")] {
            let at = smallest(context, &loaded, cache)?;
            for (what, samples) in [
                ("edge_mpps", &at.edge),
                ("between_vms_mpps", &at.between),
                ("share", &at.share),
                ("two_cores", &at.two),
            ] {
                details.push((format!("{label}{what}_{name}"), samples.clone()));
            }
            if name == "1" {
                continue; // the issue of one entry is its curve
            }
            two_least = two_least.min(stats::median(&at.two));
            if worst.as_ref().is_none_or(|w| stats::median(&at.share) < stats::median(w)) {
                worst = Some(at.share);
            }
        }
        let mut curve = |label: &str, payload: bool| -> Result<(), Error> {
            let mut points = vec![];
            for bytes in SIZES {
                let runner = loaded.runner(context, bytes, 0);
                let mut runner = if payload { runner.copying() } else { runner };
                let samples = rate(context, &mut runner)?;
                points.push((bytes as f64, stats::median(&samples)));
                details.push((format!("mpps_{name}{label}_{bytes}"), samples));
            }
            let what = if payload { ", each byte copied" } else { "" };
            lines.push(Line { name: format!("{name} entries{what}"), points, dashed: false });
            Ok(())
        };
        curve("", false)?;
        if name == "1m" {
            curve("_copied", true)?;
        }
        if name == "16m" {
            bytes_16m = loaded.edge.bytes_used();
        }
    }
    let compared = "customer to cloud ÷ between VMs, Mpps on one core, frames of 64 bytes and two tags; the least of 2^20 and 2^24 entries with the flow cache and without; goal 0.8";
    let mut report = Report::new("edge-sizes", "ratio", worst.unwrap_or_default(), Some(Goal::AtLeast(0.8)), compared);
    for (name, samples) in &details {
        report.detail_median(name, samples);
    }
    report.plots.push(plot(lines));
    report
        .detail("bytes_16m", bytes_16m)
        .detail(
            "workload",
            "1,024 or 1,025 VPCs with a circuit each (1 for one entry); 1M packets, VMs and addresses of sites uniform",
        )
        .compared("curves by frame size are without a flow cache, and of CPU time; no card and no driver is in them")
        .only_if(two_least >= 1.8, format!("two cores do {} × one, at least 1.8", report::round(two_least)))
        .only_if(bytes_16m <= BYTES_16M, format!("2^24 entries take {bytes_16m} bytes, at most 1 GiB"));
    Ok(report)
}
