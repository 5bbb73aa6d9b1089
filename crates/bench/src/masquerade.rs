// SPDX-License-Identifier: Apache-2.0
//! `peer-masquerade`: new connections end to end, Linux nftables masquerade beside a whole Tunny node, on the veth rig.
//!
//! Every packet is the first of a new UDP 5-tuple. Linux gets the inner packets and needs no tunnel; Tunny gets them in VXLAN from
//! 64 VPCs, hands each from XDP over AF_XDP to the Rust path, which makes port and session and sends the packet on. CPU time is that of the port's
//! receive thread and, for Tunny, of every thread of the node (worker, expiry, underlay). Both sides make the same connections in turn
//! and keep all of them.
use crate::netns::Netns;
use crate::rig::{Frames, Interval, Side};
use crate::workload::{plain, Workload, FIRST_VNI, PACKET_SLOT, VTEP};
use crate::{cpu, linux, report, snapshot, stats, Context, Error, Goal, Report};
use node::daemon::{self, Running};
use node::dataplane::Choice;
use node::sessions::SessionQuery;
use std::time::Duration;

/// Connections of a sample: one from each VM.
const EACH: u64 = 1 << 16;
/// A sample that takes longer has failed: a second or so on a quiet machine, much more beside builds.
const LIMIT: Duration = Duration::from_secs(60);
const VPCS: u32 = 64;
/// Seconds that both sides keep a connection: longer than the bench takes.
const KEPT_S: u32 = 900;
/// The public addresses: 203.0.113.0/24.
const POOL: u32 = 0xcb00_7100;

/// What an operator would write: the VPCs, a way to the Internet for each, and limits that a bench does not meet.
fn documents(workload: &Workload, uplink: &str, connections: u64, offload: bool) -> String {
    let mut text = snapshot::ndjson(workload);
    let mut document =
        |kind: &str, name: Option<&str>, spec: std::fmt::Arguments| snapshot::document(&mut text, kind, name, spec);
    let offload = if offload { "on" } else { "off" };
    document("PublicPool", Some("public"), format_args!("\"ranges\":[\"203.0.113.0/24\"]"));
    for vpc in 0..VPCS {
        document("Route", None, format_args!("\"vpc\":\"v{vpc}\",\"prefix\":\"0.0.0.0/0\",\"scope\":\"internet\""));
        let limits = format!("\"ports\":{connections},\"sessions\":{connections},\"vmSessions\":{connections},\"halfOpen\":{connections}");
        let spec =
            format_args!("\"vpc\":\"v{vpc}\",\"pools\":[\"public\"],\"offload\":\"{offload}\",\"limits\":{{{limits}}}");
        document("Snat", Some(&format!("s{vpc}")), spec);
    }
    let gateway = format!(
        "\"uplinks\":[\"{uplink}\"],\"internet\":{{\"via\":[\"192.0.2.254\"]}},\"limits\":{{\"sessions\":{connections}}},\
         \"sessions\":{{\"timeouts\":{{\"udpOneSided\":{KEPT_S}}}}},\
         \"punt\":{{\"vpc\":{{\"rate\":\"1Gpps\",\"burst\":4294967295}},\"total\":{{\"rate\":\"1Gpps\",\"burst\":4294967295}}}}"
    );
    let vtep = "\"vtep\":{\"ipv4\":\"192.0.2.1\"}";
    text.replacen(vtep, &format!("{vtep},{gateway}"), 1)
}

/// A node on the rig's port, with all its threads on the gateway's CPU.
pub(crate) fn tunny(
    role: &str,
    workload: &Workload,
    packets: &[u8],
    connections: u64,
    offload: bool,
) -> Result<(Side, Running), Error> {
    let mut side = Side::create(role, Frames::Vxlan, packets)?;
    linux::addresses(&side)?;
    side.gateway.ip(&format!("route add default via 192.0.2.254 dev {}", side.port))?;
    let (running, threads) = start(&side.gateway, &documents(workload, &side.port, connections, offload))?;
    side.count_threads(threads);
    side.pin_threads()?;
    Ok((side, running))
}

/// A node with these documents in a rig's gateway, on the gateway's CPU. Returns its threads too.
pub(crate) fn start(gateway: &Netns, documents: &str) -> Result<(Running, Vec<i32>), Error> {
    let dir = tempfile::tempdir().map_err(Error::io("creating a folder"))?;
    let config = dir.path().join("bench.ndjson");
    std::fs::write(&config, documents).map_err(Error::io("writing the configuration"))?;
    let options = daemon::Options {
        instance: "bench".into(),
        config: vec![config],
        state: None,
        socket: dir.path().join("bench.sock"),
        choice: Choice::Xdp,
        pins: None,
        workers: 1,
        flow_cache: node::daemon::FlowCacheSize::Mib(0),
        metrics: None,
        detach: true,
        adopt: false,
        controller: None,
    };
    let before = cpu::threads_named(std::process::id() as i32, "");
    let running = gateway.inside(|| {
        cpu::pin(0, crate::rig::GATEWAY_CPU).map_err(Error::io("pinning the node"))?;
        daemon::start(&options).map_err(Error::failed("starting the node"))
    })?;
    let threads: Vec<i32> =
        cpu::threads_named(std::process::id() as i32, "").into_iter().filter(|t| !before.contains(t)).collect();
    for thread in &threads {
        // As the port's thread has it: other work on the machine must not make packets wait.
        cpu::nice(*thread, -20).map_err(Error::io("setting the priority of the node's threads"))?;
    }
    Ok((running, threads))
}

/// Whether the last packet that came back is translated to an address that `public` accepts, one hop further.
fn check(side: &Side, public: impl Fn(u32) -> bool) -> Result<(), Error> {
    let last = side.last();
    let source = u32::from_be_bytes([last[26], last[27], last[28], last[29]]);
    if last[22] != 63 || last[30] != 8 || !public(source) {
        let hex: String = last[..PACKET_SLOT / 2].iter().map(|b| format!("{b:02x}")).collect();
        let why = format!("a packet came back untranslated: {hex}");
        return Err(Error::Failed { what: format!("the gateway in {}", side.gateway.name()), why });
    }
    Ok(())
}

fn complete(who: &str, i: &Interval) -> Result<f64, Error> {
    if i.packets + i.lost < EACH || i.lost * 100 > EACH {
        let why = format!("{} of {EACH} first packets came back, {} were lost", i.packets, i.lost);
        return Err(Error::Failed { what: format!("{who} under new connections"), why });
    }
    Ok(i.ns_per_packet())
}

/// `peer-masquerade`.
pub fn peer(context: &Context) -> Result<Report, Error> {
    let connections = EACH * (context.samples as u64 + 2);
    let workload = Workload::disjoint(VPCS, 1024, 64, context.seed);
    debug_assert_eq!(workload.vms[0].vni, FIRST_VNI);
    let packets = workload.packets_to_internet(context.seed);
    let _room = linux::Conntrack::enlarge(connections)?;
    let theirs = linux::masquerade(&plain(&packets), KEPT_S)?;
    context.say("peer-masquerade: starting a node");
    let (ours, running) = tunny("tunny", &workload, &packets, connections, true)?;
    let (mut ratios, mut linux_ns, mut tunny_ns, mut threads_ns) = (vec![], vec![], vec![], vec![]);
    let (mut linux_rate, mut tunny_rate, mut lost, mut arrived) = (vec![], vec![], [0, 0], [0, 0]);
    let wall = |i: &Interval| i.packets as f64 * 1e3 / i.wall_ns as f64;
    for n in 0..=context.samples {
        context.say(&format!("peer-masquerade: sample {n} of {}", context.samples));
        let a = theirs.run_new(EACH, LIMIT)?;
        let b = ours.run_new(EACH, LIMIT)?;
        let (a_ns, b_ns) = (complete("Linux", &a)?, complete("Tunny", &b)?);
        lost = [lost[0] + a.lost, lost[1] + b.lost];
        arrived = [arrived[0] + a.packets, arrived[1] + b.packets];
        if n == 0 {
            continue; // the first one fills caches and makes the VMs' blocks of ports
        }
        linux_ns.push(a_ns);
        tunny_ns.push(b_ns);
        threads_ns.push(b.threads_ns as f64 / b.packets as f64);
        linux_rate.push(wall(&a));
        tunny_rate.push(wall(&b));
        ratios.push(a_ns / b_ns);
    }
    check(&theirs, |source| source == VTEP)?;
    check(&ours, |source| source & !0xff == POOL)?;
    let made = running.node.ports(&SessionQuery::default()).map_err(Error::failed("counting sessions"))?;
    let sessions: u64 = made.vpcs.iter().map(|v| v.sessions).sum();
    let kept =
        theirs.gateway.shell("cat /proc/sys/net/netfilter/nf_conntrack_count")?.trim().parse::<u64>().unwrap_or(0);
    running.stop();
    for (who, arrived, have) in [("Linux", arrived[0], kept), ("Tunny", arrived[1], sessions)] {
        if have < arrived {
            let why = format!("{arrived} first packets came back, but it knows {have} connections");
            return Err(Error::Failed { what: who.into(), why });
        }
    }
    let against = "nftables masquerade of the inner packets, CPU of all threads per new UDP connection";
    let mut report = Report::new("peer-masquerade", "ratio", ratios, Some(Goal::AtLeast(2.0)), against);
    report
        .detail_median("linux_ns_per_connection", &linux_ns)
        .detail_median("tunny_ns_per_connection", &tunny_ns)
        .detail_median("tunny_threads_ns_per_connection", &threads_ns)
        .detail("linux_mcps_per_core", report::round(1e3 / stats::median(&linux_ns)))
        .detail("tunny_mcps_per_core", report::round(1e3 / stats::median(&tunny_ns)))
        .detail_median("linux_mcps_wall", &linux_rate)
        .detail_median("tunny_mcps_wall", &tunny_rate)
        .detail("linux_lost", lost[0])
        .detail("tunny_lost", lost[1])
        .detail("linux_connections_at_the_end", kept)
        .detail("tunny_sessions_at_the_end", sessions)
        .detail("rig", "veth, one queue, threaded NAPI of the gateway's port and all threads of the node on CPU 1, live-frame generator and XDP sink on CPU 0, 192 frames under way")
        .detail("workload", "64 VPCs × 1,024 VMs, 65,536 connections a sample, each packet another source port; Linux: 64-byte plain frames, Tunny: the same in VXLAN");
    Ok(report)
}
