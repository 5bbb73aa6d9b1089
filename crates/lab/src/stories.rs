// SPDX-License-Identifier: Apache-2.0
//! The rows of the demonstration that tell what became of the region: tenants placed and moved, the controller killed, a bit flipped in
//! the memory of a gateway's tables.

use crate::controlled::{Controlled, Over, CLUSTERS};
use crate::demo::{Row, PINGS};
use crate::internet::{curl, seen, url};
use crate::node::Node;
use crate::plan::{vm, WEB4};
use crate::shell::Namespace;
use crate::{traffic, LabError};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Seconds of traffic while a tenant moves.
const MOVING_S: u32 = 12;
/// Within what a flipped bit must be found and mended.
const REPAIR: Duration = Duration::from_secs(10);

/// A row that tells what happened.
fn story(what: &str, found: String, problems: Vec<String>) -> Row {
    Row { route: what.into(), path: found, family: 4, underlay_mtu: 1500, problems, ..Row::default() }
}

/// Where each tenant is.
pub(crate) fn placed(region: &Controlled) -> Result<Row, LabError> {
    let word = |tenant: &Value, key: &str| tenant[key].as_str().unwrap_or("").to_string();
    let tenants = region.list("tenants")?;
    let away = tenants.iter().filter(|t| word(t, "state") != "placed").map(|t| format!("{} is not", word(t, "name")));
    let said: Vec<String> =
        tenants.iter().map(|t| format!("{} in cluster {}", word(t, "name"), word(t, "cluster"))).collect();
    Ok(story("tenants placed", said.join(", "), away.collect()))
}

/// What the probes came to by which nodes are admitted.
pub(crate) fn admitted(region: &Controlled) -> Result<Row, LabError> {
    region.wait_for_probed()?;
    let nodes = region.list("nodes")?;
    let (mut scenarios, mut probes, mut problems) = (BTreeSet::new(), 0, Vec::new());
    for node in &nodes {
        for (scenario, vpcs) in node["probes"]["scenarios"].as_object().into_iter().flatten() {
            scenarios.insert(scenario);
            probes += vpcs.as_u64().unwrap_or(0);
        }
        let failures = node["probes"]["failures"].as_array().into_iter().flatten();
        problems.extend(failures.map(|failure| format!("{}: {failure}", node["name"])));
    }
    if probes == 0 {
        problems.push("no probe was made".into());
    }
    let found = format!("{} nodes, {probes} probes of {} scenarios came out", nodes.len(), scenarios.len());
    Ok(story("nodes admitted after their probes", found, problems))
}

/// What a stream of datagrams, one every some microseconds, met: sent and lost.
fn datagrams(ns: &Namespace, to: &str, seconds: u32) -> Result<(u64, u64), LabError> {
    let seconds = seconds.to_string();
    let argv = ["iperf3", "-J", "-u", "-b", "16M", "-l", "200", "-t", &seconds, "-c", to];
    let output = ns.try_argv(&argv)?;
    let v: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let number = |key: &str| v["end"]["sum"][key].as_u64();
    match (number("packets"), number("lost_packets")) {
        (Some(sent), Some(lost)) => Ok((sent, lost)),
        _ => Err(LabError::Node(format!("iperf3: {}", v["error"].as_str().unwrap_or("no result")))),
    }
}

/// Datagrams that came to a namespace and found no room in a socket.
fn no_room(ns: &Namespace) -> Result<u64, LabError> {
    traffic::snmp(ns, "Udp", "RcvbufErrors")
}

/// Moves blue (with red, its peer) while blue-1 sends to blue-2; `killed`: and the controller dies on the way.
pub(crate) fn moved(region: &mut Controlled, killed: bool) -> Result<Row, LabError> {
    let from = region.tenant("blue")?.0;
    let to = CLUSTERS.into_iter().map(|c| c.0).find(|c| *c != from).expect("there are two");
    let (ns, target) = (region.names().namespace("blue-1"), "10.0.0.12");
    let receiver = region.names().namespace("blue-2");
    let full = no_room(&receiver)?;
    let traffic = std::thread::spawn(move || datagrams(&ns, target, MOVING_S));
    std::thread::sleep(Duration::from_secs(1));
    let begun = Instant::now();
    region.operator(&["move", "blue", to])?;
    if killed {
        region.controller.kill();
        std::thread::sleep(Duration::from_millis(500));
        region.controller = Controlled::start_controller(&mut region.lab)?;
    }
    let at = region.wait_for_rest("blue")?;
    let took = begun.elapsed();
    let (sent, lost) = traffic.join().unwrap_or_else(|_| Err(LabError::Node("the traffic failed".into())))?;
    // What came and found the receiver's socket full, as on a busy machine, was not lost on its way.
    let full = no_room(&receiver)? - full;
    let lost = lost.saturating_sub(full);
    let mut problems = Vec::new();
    if at != to {
        problems.push(format!("it is in {at}"));
    }
    if lost > 0 {
        problems.push(format!("{lost} packets lost"));
    }
    if took > Duration::from_secs(u64::from(MOVING_S) - 1) {
        problems.push("the traffic ended before the move".into());
    }
    let what = if killed { "moved back, the controller killed" } else { "tenant moved under iperf3" };
    let full = if full > 0 { format!(", {full} came to a full socket") } else { String::new() };
    let took = took.as_secs_f64();
    let found = format!("blue, red: {from} → {to} in {took:.1} s; {lost} of {sent} packets lost{full}");
    Ok(story(what, found, problems))
}

/// Seconds of the connections that a move must not break.
const HANDED_S: u32 = 16;

/// A TCP transfer, and the bytes of each of its seconds.
fn seconds_of(ns: &Namespace, to: &str) -> Result<Vec<u64>, LabError> {
    let seconds = HANDED_S.to_string();
    let output = ns.try_argv(&["iperf3", "-J", "--connect-timeout", "2000", "-b", "20M", "-t", &seconds, "-c", to])?;
    let v: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let of = |i: &Value| i["sum"]["bytes"].as_u64().unwrap_or(0);
    match (v["error"].as_str(), v["intervals"].as_array()) {
        (None, Some(intervals)) => Ok(intervals.iter().map(of).collect()),
        (why, _) => Err(LabError::Node(format!("iperf3 to {to}: {}", why.unwrap_or("no result")))),
    }
}

/// Moves green while green-1 has a connection to green-2, which a security group judges, and one to the Internet, through Snat: both go on in the
/// old cluster, a new one begins in the new one.
pub(crate) fn handed_over(region: &mut Controlled) -> Result<Row, LabError> {
    let from = region.tenant("green")?.0;
    let to = CLUSTERS.into_iter().map(|c| c.0).find(|c| *c != from).expect("there are two");
    let (inside, web) = (vm("green-2").expect("in the plan").v4.0, WEB4.to_string());
    let ns = region.names().namespace("green-1");
    let transfers = [inside.to_string(), web].map(|to| {
        let ns = ns.clone();
        std::thread::spawn(move || seconds_of(&ns, &to))
    });
    std::thread::sleep(Duration::from_secs(2));
    let begun = Instant::now();
    region.operator(&["move", "green", to])?;
    let mut problems = Vec::new();
    // The router learns whose addresses are whose, as they pass from node to node.
    region.wait("draining", |r| {
        r.public(Over::One)?;
        Ok(r.tenant("green")?.1.contains("sessions to end"))
    })?;
    let turned = begun.elapsed().as_secs_f64();
    if turned > f64::from(HANDED_S) - 5.0 {
        problems.push("the connections ended before the move".into());
    }
    let status = curl(&ns, &url(WEB4.into(), "/handed-over"))?;
    if status != "200" {
        problems.push(format!("a new connection: curl says {status}"));
    }
    let source = seen(&region.lab, "/handed-over", 1).last().map(|(address, _)| *address);
    let shares = region.shares()?;
    let of = shares.iter().find(|(address, _)| Some(IpAddr::V4(*address)) == source).map(|(_, node)| node.clone());
    if !of.as_ref().is_some_and(|node| node.starts_with(to)) {
        problems.push(format!("a new connection came from {source:?}, which is of {of:?}, not of cluster {to}"));
    }
    let handed: u64 = region.nodes_of(to).iter().map(|(_, node)| handed(node)).sum::<Result<u64, LabError>>()?;
    if handed == 0 {
        problems.push("nothing was handed over".into());
    }
    for transfer in transfers {
        let seconds = transfer.join().unwrap_or_else(|_| Err(LabError::Node("the traffic failed".into())));
        match seconds {
            Ok(seconds) => {
                let dry = seconds.iter().filter(|bytes| **bytes == 0).count();
                if dry > 0 {
                    problems.push(format!("{dry} of {} seconds without a byte", seconds.len()));
                }
            }
            Err(why) => problems.push(why.to_string()),
        }
    }
    let rest = region.wait_for_rest("green");
    region.public(Over::One)?;
    let took = begun.elapsed().as_secs_f64();
    match rest {
        Ok(at) if at == to => {}
        Ok(at) => problems.push(format!("it is in {at}")),
        Err(why) => problems.push(why.to_string()),
    }
    let broken = region.list("events")?.iter().any(|e| e["note"].as_str().is_some_and(|n| n.contains("break")));
    if broken {
        problems.push("sessions broke".into());
    }
    let found = format!(
        "green: {from} → {to}, hosts turned after {turned:.1} s; two connections of {HANDED_S} s went on by {from}, {handed} packets handed over;\n\
         a new one from {} ({}); {from} forgot them after {took:.1} s",
        source.map_or("nowhere".into(), |a| a.to_string()),
        of.unwrap_or_default()
    );
    Ok(story("sessions outlive the move of their tenant", found, problems))
}

/// Packets that a node has handed over.
fn handed(node: &Node) -> Result<u64, LabError> {
    let text = node.metrics()?;
    let line = text.lines().filter(|l| l.starts_with("tunny_vpc_handed_total") && l.contains("to=\"over\""));
    Ok(line.filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as u64)
}

/// A bucket of the VM-NC table for IPv4: where in it an entry's MAC address begins, and its length.
const VALUES: [u64; 3] = [24, 36, 48];
const BUCKET: u64 = 64;

/// Where in the memory of a process a VM's MAC address stands as an entry of a table has it.
fn entry(process: i32, mac: [u8; 6]) -> Result<Option<u64>, LabError> {
    let path = format!("/proc/{process}/maps");
    let maps = std::fs::read_to_string(&path).map_err(|source| LabError::File { path: path.into(), source })?;
    let memory = memory(process)?;
    let [a, b, c, d, e, f] = mac;
    for line in maps.lines().filter(|l| l.contains(" rw-s ") && l.contains("bpf-map")) {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let Some((from, to)) =
            range.and_then(|(from, to)| Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?)))
        else {
            continue;
        };
        let mut page = [0; 4096];
        for at in (from..to).step_by(page.len()) {
            // A page that is not there holds no entry.
            if memory.read_exact_at(&mut page, at).is_err() {
                continue;
            }
            let places = (0..page.len() as u64 / BUCKET).flat_map(|n| VALUES.map(|value| n * BUCKET + value));
            // Two words, the lower half of each first: the MAC address's upper 32 bits, its lower 16 over bits of the VM's id.
            let is = |place: &u64| {
                let at = *place as usize;
                page[at..at + 4] == [d, c, b, a] && page[at + 6..at + 8] == [f, e]
            };
            if let Some(place) = { places }.find(is) {
                return Ok(Some(at + place));
            }
        }
    }
    Ok(None)
}

fn memory(process: i32) -> Result<File, LabError> {
    let path = format!("/proc/{process}/mem");
    let file = File::options().read(true).write(true).open(&path);
    file.map_err(|source| LabError::File { path: path.into(), source })
}

/// Flips a bit of blue-2's MAC address in the tables of a gateway that serves it; nobody is told.
pub(crate) fn corrupted(region: &Controlled) -> Result<Row, LabError> {
    let target = vm("blue-2").expect("in the plan");
    let nodes = region.nodes_of(&region.tenant(target.vpc)?.0);
    let (name, node) = nodes.first().ok_or_else(|| LabError::Node("its cluster has no node".into()))?;
    let mac = target.mac.split(':').filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect::<Vec<_>>();
    let mac = mac.try_into().map_err(|_| LabError::Node(format!("{} is no MAC address", target.mac)))?;
    let process = node.process.pid;
    let none = || LabError::Node(format!("{name} has no entry with the MAC address {}", target.mac));
    let at = entry(process, mac)?.ok_or_else(none)?;
    let (memory, mut byte) = (memory(process)?, [0]);
    let fail = |source| LabError::File { path: format!("/proc/{process}/mem").into(), source };
    memory.read_exact_at(&mut byte, at).map_err(fail)?;
    let good = byte;
    memory.write_all_at(&[good[0] ^ 1], at).map_err(fail)?;
    let begun = Instant::now();
    loop {
        // An entry may be mended in another place.
        memory.read_exact_at(&mut byte, at).map_err(fail)?;
        if byte == good || entry(process, mac)?.is_some() || begun.elapsed() > REPAIR {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let took = begun.elapsed();
    let mut problems = Vec::new();
    if took > REPAIR {
        problems.push(format!("it is not mended after {} s", REPAIR.as_secs()));
    }
    let mut told = String::new();
    region.wait("told of the entry", |r| {
        let events = r.list("events")?;
        let of_it = |e: &&Value| e["outcome"] == "damaged" && e["note"].as_str().is_some_and(|n| n.contains("blue-2"));
        told = events.iter().find(of_it).and_then(|e| e["note"].as_str()).unwrap_or("").to_string();
        Ok(!told.is_empty())
    })?;
    region.wait_for_verified()?;
    let ping = traffic::ping(&region.names().namespace("blue-1"), target.v4.0, PINGS, &[])?;
    if ping.received != PINGS {
        problems.push(format!("{} of {PINGS} pings answered", ping.received));
    }
    let took = took.as_secs_f64();
    let found = format!(
        "a bit of {name}'s tables: found and repaired in {took:.1} s, {} pings answered\n{told}",
        ping.received
    );
    Ok(story("corrupted entry repaired", found, problems))
}
