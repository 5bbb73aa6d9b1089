// SPDX-License-Identifier: Apache-2.0
//! `region-repair`: a bit of a VM's entry changes in the table memory of a node that holds 1M routes and 1M VMs; seconds until it is right again.
//!
//! The memory is that of the node's process, written from outside as broken memory or a stray write would change it. When it is right again the node's
//! audit log says, which is read every 20 ms. The instant is random: the node is somewhere on its way through its entries. Beside it: how much of a
//! core the thread that looks has used.
use super::{documents, size, Daemon, Rig, LOOK};
use crate::workload::{Workload, FIRST_VNI};
use crate::{stats, Context, Error, Goal, Report};
use abi::Mac;
use controller::types::NodeView;
use node::audit::Event;
use node::client::Client;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const NCS: u32 = 4096;
/// Bytes that are read of a process's memory at once.
const PIECE: usize = 16 << 20;
const LINE: usize = 64;
/// Mended by then, or never.
const LATEST: Duration = Duration::from_secs(300);

/// Where the three value words of an entry of the IPv4 VM-NC table are in its line (`abi::layout`, Vm4Bucket).
fn places() -> impl Iterator<Item = usize> {
    (0..3).map(|entry| 24 + 12 * entry)
}

/// Where a VM's MAC address stands in the table memory of a process.
fn find(memory: &File, process: &Daemon, mac: Mac) -> Result<u64, Error> {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", process.id())).map_err(Error::io("reading maps"))?;
    let (upper, lower) = ((mac.0 >> 16) as u32, (mac.0 & 0xffff) as u32);
    let word = |line: &[u8], at: usize| u32::from_le_bytes([line[at], line[at + 1], line[at + 2], line[at + 3]]);
    let mut found = Vec::new();
    let mut piece = vec![0; PIECE];
    for line in maps.lines().filter(|l| l.contains(" rw-")) {
        let bounds = line.split(' ').next().and_then(|range| range.split_once('-'));
        let Some((first, last)) = bounds else { continue };
        let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
        let (mut at, last) = (number(first), number(last));
        while at < last {
            // What was never touched cannot be in use, and what cannot be read is none of it.
            let length = memory.read_at(&mut piece[..PIECE.min((last - at) as usize)], at).unwrap_or(0);
            if length == 0 {
                break;
            }
            for (n, bytes) in piece[..length].chunks_exact(LINE).enumerate() {
                let here = places().filter(|p| word(bytes, *p) == upper && word(bytes, p + 4) >> 16 == lower);
                found.extend(here.map(|p| at + (n * LINE + p) as u64));
            }
            at += length as u64;
        }
    }
    match found.as_slice() {
        [one] => Ok(*one),
        other => Err(Error::failed("finding an entry in memory")(format!("{mac} is there {} times", other.len()))),
    }
}

/// Seconds of CPU time of the thread that looks at the tables.
fn looked_s(process: &Daemon) -> f64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.id())).into_iter().flatten().flatten();
    let name = |path: &std::path::Path| std::fs::read_to_string(path.join("comm")).unwrap_or_default();
    let looking = tasks.map(|task| task.path()).find(|path| name(path).trim() == "tunny-verify");
    looking.map_or(0.0, |path| super::cpu_seconds(&path.join("stat")))
}

/// How often a node says that it has mended its tables.
fn repairs(client: &Client) -> Result<usize, Error> {
    let events: Vec<Event> = client.get("/v1/events?limit=0").map_err(Error::failed("a node's events"))?;
    Ok(events.iter().filter(|e| e.what == "verify" && e.outcome == "repaired").count())
}

/// `region-repair`.
pub fn region_repair(context: &Context) -> Result<Report, Error> {
    let clusters = [("a".to_string(), 1)];
    let workload = Workload::region(size(), 10, NCS, context.seed);
    context.say("region-repair: a node is loaded");
    let rig = Rig::start(&clusters)?;
    let at = rig.apply(documents(&workload, &clusters))?.generation;
    let verified = |n: &NodeView| n.verified >= at && n.faults.is_empty();
    rig.wait("the region to be verified", LOOK, |nodes| nodes.iter().all(verified))?;
    let node = &rig.nodes[0];
    let memory = File::options().read(true).write(true).open(format!("/proc/{}/mem", node.id()));
    let memory = memory.map_err(Error::io("opening the memory of a process"))?;
    let client = Client::new(&rig.socket("a1")).map_err(Error::io("calling a node"))?;
    let mut random = SplitMix64::seed_from_u64(context.seed);
    let (mut took, mut told, mut shares) = (vec![], vec![], vec![]);
    for n in 0..context.samples.max(5) {
        context.say(&format!("region-repair: sample {}", n + 1));
        let vm = workload.vms[random.random_range(workload.vms.len() / 2..workload.vms.len())];
        let place = find(&memory, node, Mac(vm.mac))?;
        std::thread::sleep(Duration::from_millis(random.random_range(0..5000)));
        let mut good = [0; 4];
        memory.read_exact_at(&mut good, place).map_err(Error::io("reading a process's memory"))?;
        let bad = [good[0] ^ 1 << random.random_range(0..8), good[1], good[2], good[3]];
        let (before, begun, looked) = (repairs(&client)?, Instant::now(), looked_s(node));
        memory.write_all_at(&bad, place).map_err(Error::io("writing a process's memory"))?;
        while repairs(&client)? == before {
            if begun.elapsed() > LATEST {
                return Err(Error::failed("a changed bit")(format!("v{}: not mended", vm.vni - FIRST_VNI)));
            }
            std::thread::sleep(LOOK);
        }
        took.push(begun.elapsed().as_secs_f64());
        shares.push((looked_s(node) - looked) / begun.elapsed().as_secs_f64());
        rig.wait("the node to be whole", LOOK, |nodes| nodes.iter().all(verified))?;
        told.push(begun.elapsed().as_secs_f64());
    }
    let entries = workload.routes.len() + workload.vms.len();
    let against =
        "goal 10 s from a changed entry in table memory until it is mended, with 2M entries, at 5% of a core at most";
    let (longest, share) = (stats::quantile(&took, 1.0), stats::median(&shares));
    let mut out = Report::new("region-repair", "s", took, Some(Goal::AtMost(10.0)), against);
    out.only_if(longest <= 10.0, format!("The longest of {} took {longest:.1} s.", out.samples.len()))
        .only_if(
            share <= 0.05,
            format!("The thread that looks used {:.1}% of a core, mending included.", share * 100.0),
        )
        .only_if(entries >= 2_000_000, format!("{entries} entries on one node."));
    out.compared(
        "One node without ports or traffic. The changed bit is one of a VM's MAC address; which, and when, is random.",
    );
    out.detail("entries", entries).detail_median("core_share", &shares).detail_median("known_to_be_whole_s", &told);
    Ok(out)
}
