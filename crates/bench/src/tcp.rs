// SPDX-License-Identifier: Apache-2.0
//! `tcp-throughput`: TCP between VMs on one host and on two, through Tunny's engine tc beside bridges and VXLAN devices of the kernel.
//!
//! Two hosts and three VMs, each a namespace. Each VM has two interfaces, one for either side; each host has two cables to the same bridge. All
//! devices are veth with their offloads as the kernel makes them.
use crate::netns::Netns;
use crate::region::{tunny, Daemon};
use crate::{report, stats, Context, Error, Goal, Report};
use serde_json::{json, Value};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SECONDS: u32 = 2;
const STREAMS: [u32; 2] = [1, 8];
const UNDERLAY_MTU: u32 = 1600;
const SIDES: [&str; 2] = ["tunny", "kernel"];

/// The documents of a host's node: {host} and {ports} are put in.
const DOCUMENTS: &str = "
{apiVersion: tunny/v1, kind: Gateway, metadata: {name: host}, spec: {vtep: {ipv4: 198.19.77.{host}}, uplinks: [up0], vms: here, engine: tc}}
---
{apiVersion: tunny/v1, kind: Nc, metadata: {name: one}, spec: {address: 198.19.77.1}}
---
{apiVersion: tunny/v1, kind: Nc, metadata: {name: two}, spec: {address: 198.19.77.2}}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: blue}, spec: {vni: 100, gateway: {mac: '02:00:00:00:64:01', addresses: [10.0.0.254]}}}
---
{apiVersion: tunny/v1, kind: Route, spec: {vpc: blue, prefix: 10.0.0.0/24, scope: local}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: vm1}, spec: {vpc: blue, addresses: [10.0.0.1], mac: '02:00:00:00:00:01', nc: one}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: vm2}, spec: {vpc: blue, addresses: [10.0.0.2], mac: '02:00:00:00:00:02', nc: one}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: vm3}, spec: {vpc: blue, addresses: [10.0.0.3], mac: '02:00:00:00:00:03', nc: two}}
";

const GROUPS: &str = "
{apiVersion: tunny/v1, kind: SecurityGroup, metadata: {name: some}, spec: {rules: [ingress allow tcp/5201 10.0.0.0/24, egress allow any any]}}
---
{apiVersion: tunny/v1, kind: SecurityBinding, metadata: {name: all}, spec: {vpc: blue, vms: [vm1, vm2, vm3], groups: [some]}}
";

/// A host, its node, and where that one listens.
struct Host {
    ns: Netns,
    _node: Option<Daemon>,
    socket: PathBuf,
}

/// iperf3 as a server.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Rig {
    dir: tempfile::TempDir,
    tunny: PathBuf,
    hosts: Vec<Host>,
    vms: Vec<Netns>,
    _servers: Vec<Server>,
    _underlay: Netns,
}

fn host(underlay: &Netns, dir: &Path, number: u32) -> Result<Host, Error> {
    let ns = Netns::create(&format!("host{number}"))?;
    for (cable, net) in [("up0", 77), ("up1", 78)] {
        let far = format!("h{number}{cable}");
        ns.ip(&format!("link add {cable} mtu {UNDERLAY_MTU} type veth peer name {far} netns {}", underlay.name()))?;
        underlay.ip(&format!("link set {far} mtu {UNDERLAY_MTU} master br0 up"))?;
        ns.ip(&format!("addr add 198.19.{net}.{number}/24 dev {cable}"))?;
        ns.ip(&format!("link set {cable} up"))?;
    }
    ns.ip("link add kbr type bridge stp_state 0")?;
    ns.ip("link set kbr mtu 1500 up")?;
    let other = 3 - number;
    ns.ip(&format!(
        "link add kvx mtu 1500 type vxlan id 200 local 198.19.78.{number} remote 198.19.78.{other} dstport 4789 dev up1"
    ))?;
    ns.ip("link set kvx master kbr up")?;
    Ok(Host { ns, _node: None, socket: dir.join(format!("node{number}.sock")) })
}

/// A VM with an interface for either side.
fn vm(host: &Netns, number: u32) -> Result<Netns, Error> {
    let ns = Netns::create(&format!("vm{number}"))?;
    for (device, peer, kind) in [("eth0", "vp", 0), ("eth1", "kp", 1)] {
        host.ip(&format!("link add {peer}{number} type veth peer name {device} netns {}", ns.name()))?;
        host.ip(&format!("link set {peer}{number} up"))?;
        ns.ip(&format!("link set {device} address 02:00:00:00:0{kind}:0{number} up"))?;
        ns.ip(&format!("addr add 10.{kind}.0.{number}/24 dev {device}"))?;
    }
    host.ip(&format!("link set kp{number} master kbr"))?;
    Ok(ns)
}

impl Rig {
    fn create() -> Result<Rig, Error> {
        let dir = tempfile::tempdir().map_err(Error::io("making a folder"))?;
        let tunny = tunny()?;
        let underlay = Netns::create("underlay")?;
        underlay.ip("link add br0 type bridge stp_state 0")?;
        underlay.ip(&format!("link set br0 mtu {UNDERLAY_MTU} up"))?;
        let mut hosts = vec![host(&underlay, dir.path(), 1)?, host(&underlay, dir.path(), 2)?];
        let vms = vec![vm(&hosts[0].ns, 1)?, vm(&hosts[0].ns, 2)?, vm(&hosts[1].ns, 3)?];
        for (at, ports) in [(0, &[1, 2][..]), (1, &[3])] {
            let number = at + 1;
            let mut text = DOCUMENTS.replace("{host}", &number.to_string());
            for n in ports {
                text += &format!("---\n{{apiVersion: tunny/v1, kind: VmPort, metadata: {{name: port{n}}}, spec: {{interface: vp{n}, vm: vm{n}}}}}\n");
            }
            let file = dir.path().join(format!("node{number}.yaml"));
            std::fs::write(&file, text).map_err(Error::io("writing a configuration"))?;
            let (state, socket) = (dir.path().join(format!("state{number}")), hosts[at].socket.clone());
            let path = |p: &Path| p.display().to_string();
            let words =
                ["node", "--socket", &path(&socket), "--state", &path(&state), "--config", &path(&file), "--no-pins"];
            hosts[at]._node = Some(Daemon::start_in(Some(&hosts[at].ns), &tunny, dir.path(), &words)?);
        }
        let servers = vms[1..].iter().map(|ns| {
            let mut command = ns.command("iperf3");
            command.arg("-s").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().map(Server).map_err(Error::io("starting iperf3"))
        });
        let servers = servers.collect::<Result<_, _>>()?;
        let rig = Rig { dir, tunny, hosts, vms, _servers: servers, _underlay: underlay };
        for to in [2, 3] {
            for side in 0..SIDES.len() {
                rig.answers(to, side)?;
            }
        }
        Ok(rig)
    }

    /// The first VM gets an answer by this side.
    fn answers(&self, to: u32, side: usize) -> Result<(), Error> {
        let began = Instant::now();
        loop {
            let ping = self.vms[0].command("ping").args(["-c", "1", "-W", "1", &address(to, side)]).output();
            if ping.map_err(Error::io("starting ping"))?.status.success() {
                return Ok(());
            }
            if began.elapsed() > Duration::from_secs(20) {
                let why = format!("VM {to} does not answer by {}", SIDES[side]);
                return Err(Error::Failed { what: "tcp-throughput".into(), why });
            }
        }
    }

    /// Gbit/s of TCP payload from the first VM.
    fn transfer(&self, to: u32, side: usize, streams: u32) -> Result<f64, Error> {
        let (seconds, streams) = (SECONDS.to_string(), streams.to_string());
        let to = address(to, side);
        let argv = ["-J", "--connect-timeout", "2000", "-t", &seconds, "-P", &streams, "-c", &to];
        let out = self.vms[0].command("iperf3").args(argv).output().map_err(Error::io("starting iperf3"))?;
        let said: Value = serde_json::from_slice(&out.stdout).map_err(Error::failed("reading what iperf3 says"))?;
        match said["end"]["sum_received"]["bits_per_second"].as_f64() {
            Some(bps) if said["error"].is_null() && bps > 0.0 => Ok(bps / 1e9),
            _ => Err(Error::Failed { what: "iperf3".into(), why: said["error"].to_string() }),
        }
    }

    fn apply(&self, documents: &str) -> Result<(), Error> {
        let file = self.dir.path().join("groups.yaml");
        std::fs::write(&file, documents).map_err(Error::io("writing a change"))?;
        for host in &self.hosts {
            let mut command = Command::new(&self.tunny);
            command.arg("--socket").arg(&host.socket).args(["apply", "--yes"]).arg(&file);
            let out = command.output().map_err(Error::io("starting tunny"))?;
            if !out.status.success() {
                let why = String::from_utf8_lossy(&out.stderr).into();
                return Err(Error::Failed { what: "tunny apply".into(), why });
            }
        }
        Ok(())
    }
}

fn address(vm: u32, side: usize) -> String {
    format!("10.{side}.0.{vm}")
}

/// One situation: where the second VM is, how many streams; what was measured of both sides.
struct Row {
    hosts: u32,
    streams: u32,
    groups: bool,
    gbits: [Vec<f64>; 2],
}

impl Row {
    fn ratios(&self) -> Vec<f64> {
        self.gbits[0].iter().zip(&self.gbits[1]).map(|(a, b)| a / b).collect()
    }

    fn json(&self) -> Value {
        let mut row = json!({
            "hosts": self.hosts,
            "streams": self.streams,
            "groups": self.groups,
            "ratio": report::round(stats::median(&self.ratios())),
            "ratio_spread": report::round(stats::spread(&self.ratios())),
        });
        for (name, samples) in SIDES.iter().zip(&self.gbits) {
            row[format!("{name}_gbit_s")] = json!(report::round(stats::median(samples)));
        }
        row
    }
}

/// `tcp-throughput`.
pub fn tcp_throughput(context: &Context) -> Result<Report, Error> {
    context.say("tcp-throughput: two hosts, three VMs");
    let rig = Rig::create()?;
    let mut rows: Vec<Row> = Vec::new();
    for groups in [false, true] {
        if groups {
            rig.apply(GROUPS)?;
        }
        let first = rows.len();
        for hosts in [1, 2] {
            for streams in STREAMS {
                rows.push(Row { hosts, streams, groups, gbits: Default::default() });
            }
        }
        for n in 0..context.samples {
            context.say(&format!("tcp-throughput: round {n}{}", if groups { " with groups" } else { "" }));
            for row in &mut rows[first..] {
                // Whoever goes first differs from round to round.
                for turn in 0..SIDES.len() {
                    let side = (turn + n) % SIDES.len();
                    let gbits = rig.transfer(row.hosts + 1, side, row.streams)?;
                    row.gbits[side].push(gbits);
                }
            }
        }
    }
    let worst = |groups: bool| {
        let of = rows.iter().filter(|r| r.groups == groups);
        of.min_by(|a, b| stats::median(&a.ratios()).total_cmp(&stats::median(&b.ratios())))
    };
    let (Some(plain), Some(filtered)) = (worst(false), worst(true)) else {
        return Err(Error::Failed { what: "tcp-throughput".into(), why: "nothing was measured".into() });
    };
    let compared = "TCP between VMs through engine tc ÷ through bridges and VXLAN devices of the kernel, the worst of one and two hosts, one and eight streams";
    let mut report = Report::new("tcp-throughput", "ratio", plain.ratios(), Some(Goal::AtLeast(0.9)), compared);
    let with = stats::median(&filtered.ratios());
    report.detail("with_groups", report::round(with));
    report.detail("seconds_each", SECONDS);
    report.detail("rows", rows.iter().map(Row::json).collect::<Vec<_>>());
    report.only_if(with >= 0.8, "With groups in force the worst is 0.8 or more.");
    report.compared(
        "Sender, receiver and both hosts share this machine's CPUs: it is what they do together that is compared.",
    );
    report.compared("The kernel's side has no groups in force, in the rows with groups either.");
    Ok(report)
}
