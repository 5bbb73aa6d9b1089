// SPDX-License-Identifier: Apache-2.0
//! Where the XDP program's time goes: rounds of overlapping reads, and the program on tables that fit the cache and on those of
//! the benches. `cargo run --release -p bench --example xdp_probe -- [rounds] [cache] [gateway] [filter] [filter10m]
//! [BENCH...]`, as root; a bench by its name is run as by `tunny-lab bench`, without the other crates that the binary needs.
//!
//! TUNNY_OBJECT: another compiled `gateway.bpf.c` than the one built in, to compare two of them without building anything else.
//! TUNNY_COMPARE: several objects in turns in one run, `OBJECT[:LINES][,...]`, on 128, 2,048 and a million flows, or those of
//! TUNNY_FLOWS (`128,2048`).
//! TUNNY_SAMPLES: samples of each figure (5); the median is printed.

use bench::drive::{Driver, PACKETS};
use bench::setup::BpfNode;
use bench::workload::Workload;
use bench::{cpu, filter, memory, stats, Context, Error, Report, BENCHES};
use std::time::Instant;

const SEED: u64 = 1;

fn rounds() {
    for mib in [1, 8, 32, 128] {
        let cost: Vec<String> = (1..=7).map(|n| format!("{:.0}", memory::round_ns(mib << 20, n))).collect();
        println!("{mib:4} MiB: a round of 1 to 7 reads: {} ns", cost.join(" "));
    }
}

/// Medians: driver, bare, own VPC, 20% to peers, peers alone.
fn gateway(vpcs: u32, samples: usize) -> Result<(), Error> {
    let workload = Workload::region(vpcs, 10, 4096.min(vpcs), SEED);
    let node = BpfNode::new(&workload)?;
    let packets = [0, 20, 100].map(|share| workload.packets(PACKETS, share, SEED));
    let driver = Driver::new(&packets[1], node.table_bytes())?;
    let names = ["nothing", "bare", "own VPC", "20% to peers", "peers alone"];
    let mut times: [Vec<f64>; 5] = Default::default();
    for n in 0..=samples {
        for (i, time) in times.iter_mut().enumerate() {
            driver.load(&packets[[1, 1, 0, 1, 2][i]]);
            let program = match i {
                0 => driver.program("nothing")?,
                1 => driver.program("bare")?,
                _ => node.engine.program(),
            };
            let ns = driver.time(program, PACKETS as u32)?;
            if n > 0 {
                time.push(ns);
            }
        }
    }
    let line: Vec<String> =
        names.iter().zip(&times).map(|(name, t)| format!("{name} {:.0}", stats::median(t))).collect();
    println!("gateway, {vpcs} VPCs, {} MB: {} ns", node.table_bytes() >> 20, line.join(", "));
    Ok(())
}

/// Established connections under groups: exact, compact and digest, and the same packets without groups.
fn filtered(vpcs: u32, count: u32, samples: usize) -> Result<(), Error> {
    let workload = Workload::region(vpcs, 10, 4096.min(vpcs), SEED);
    let mut node = BpfNode::new(&workload)?;
    let size = filter::measure(&Context { seed: SEED, samples, progress: &|_| () }, &mut node, &workload, count)?;
    let [driver, bare, on, off] = [&size.nothing, &size.bare, &size.on, &size.off].map(|s| stats::median(s));
    let tables: String =
        size.tables.iter().map(|t| format!(", {} {:.0}", t.kind.name(), stats::median(&t.ns))).collect();
    println!("filter, {count} connections: driver {driver:.0}, bare {bare:.0}, without groups {off:.0}, exact {on:.0}{tables} ns");
    Ok(())
}

/// Objects side by side, in turns: TUNNY_COMPARE is `OBJECT[:lines of the flow cache][,...]`.
fn compare(list: &str, samples: usize) -> Result<(), Error> {
    let workload = Workload::region(100_000, 10, 4096, SEED);
    let packets = workload.packets(PACKETS, 20, SEED);
    let mut nodes = Vec::new();
    for entry in list.split(',') {
        let (object, lines) = entry.split_once(':').unwrap_or((entry, "0"));
        std::env::set_var("TUNNY_OBJECT", object);
        nodes.push((entry, BpfNode::cached(&workload, lines.parse().unwrap_or(0))?));
    }
    let driver = Driver::new(&packets, 64 << 20)?;
    let wanted = std::env::var("TUNNY_FLOWS").unwrap_or_else(|_| format!("128,2048,{PACKETS}"));
    for flows in wanted.split(',').filter_map(|n| n.parse().ok()).filter(|n| (1..=PACKETS).contains(n)) {
        driver.load(&packets[..flows * bench::workload::PACKET_SLOT]);
        for (_, node) in &nodes {
            for _ in 0..if flows == PACKETS { 4 } else { 2 } {
                driver.time(node.engine.program(), PACKETS as u32)?;
            }
        }
        let before: Vec<_> = nodes.iter().map(|(_, node)| node.stats()).collect();
        let mut times = vec![Vec::new(); nodes.len() + 2];
        for _ in 0..samples {
            times[0].push(driver.time(driver.program("nothing")?, PACKETS as u32)?);
            times[1].push(driver.time(driver.program("bare")?, PACKETS as u32)?);
            for (time, (_, node)) in times[2..].iter_mut().zip(&nodes) {
                time.push(driver.time(node.engine.program(), PACKETS as u32)?);
            }
        }
        let driver_ns = stats::median(&times[0]);
        let bare: Vec<f64> = times[1].iter().map(|t| t - driver_ns).collect();
        println!("{flows} flows: driver {driver_ns:.0}, bare net {:.0}", stats::median(&bare));
        for ((time, (name, node)), before) in times[2..].iter().zip(&nodes).zip(before) {
            let ratios: Vec<f64> = time.iter().zip(&bare).map(|(t, b)| (t - driver_ns) / b).collect();
            let after = node.stats();
            let hits = (after.flow_hits - before.flow_hits) as f64 / (after.forwarded - before.forwarded) as f64;
            let gather = Instant::now();
            node.tables().memory().gather();
            println!(
                "   {name}: net {:.0}, ratio {:.2}, hits {hits:.3}, counts gathered in {:.1} ms",
                stats::median(time) - driver_ns,
                stats::median(&ratios),
                gather.elapsed().as_secs_f64() * 1e3
            );
        }
    }
    Ok(())
}

/// Benches of the registry that are named.
fn benches(wanted: &[String], samples: usize) -> Result<(), Error> {
    let context = Context { seed: SEED, samples, progress: &|_| () };
    let named = BENCHES.iter().filter(|bench| wanted.iter().any(|w| w == bench.name));
    let reports: Result<Vec<Report>, Error> = named.map(|bench| bench.run(&context)).collect();
    let reports = reports?;
    if !reports.is_empty() {
        let json = serde_json::to_string_pretty(&reports).map_err(Error::failed("printing a report"))?;
        println!("{json}");
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let want = |what: &str| wanted.is_empty() || wanted.iter().any(|w| w == what);
    let samples = std::env::var("TUNNY_SAMPLES").ok().and_then(|s| s.parse().ok()).unwrap_or(5);
    cpu::pin(0, cpu::count() - 1).map_err(Error::io("pinning"))?;
    if let Ok(list) = std::env::var("TUNNY_COMPARE") {
        return compare(&list, samples);
    }
    if want("rounds") {
        rounds();
    }
    if want("cache") {
        gateway(40, samples)?;
    }
    if want("filter-cache") {
        filtered(40, 2000, samples)?;
    }
    if want("filter") {
        filtered(100_000, 1_000_000, samples)?;
    }
    if want("filter10m") {
        filtered(100_000, 10_000_000, samples)?;
    }
    if want("gateway") {
        gateway(100_000, samples)?;
    }
    benches(&wanted, samples)?;
    Ok(())
}
