// SPDX-License-Identifier: Apache-2.0
//! The explanations of crate `pipeline` beside those of Debian's Open vSwitch: the same flows, random packets, every difference
//! listed.
//!
//! `ovs-vswitchd` runs with the dummy datapath in directories of its own: it needs no kernel module and touches no interface.
use crate::netns::{run, Netns};
use crate::ovs_accept::{self, Acceptance};
use crate::{cpu, ovs_programs, Context, Error, Goal, Report};
use pipeline::explain::Explanation;
use pipeline::text::{self, ImportOptions};
use pipeline::{Bridge, Conntrack, Field, Key, Mask, Pipeline};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::fmt::Write as _;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Ports of the bridge: 1 to this.
pub(crate) const PORTS: u16 = 12;

/// A switch of our own; ends when dropped.
pub struct DummySwitch {
    dir: tempfile::TempDir,
    children: Vec<Child>,
}

impl DummySwitch {
    /// Starts one with a bridge and ports.
    pub fn start() -> Result<DummySwitch, Error> {
        DummySwitch::start_with(false)
    }

    /// The same, and what is sent by port N is written to `txN.pcap`.
    pub(crate) fn start_capturing() -> Result<DummySwitch, Error> {
        DummySwitch::start_with(true)
    }

    fn start_with(capture: bool) -> Result<DummySwitch, Error> {
        let switch = DummySwitch::begin(None)?;
        let mut arguments = String::from("set Open_vSwitch . other_config:vlan-limit=2 -- add-br br0 -- set bridge br0 datapath_type=dummy fail-mode=secure");
        for port in 1..=PORTS {
            let _ =
                write!(arguments, " -- add-port br0 p{port} -- set interface p{port} type=dummy ofport_request={port}");
            if capture {
                let _ = write!(arguments, " options:tx_pcap={}", switch.path(&format!("tx{port}.pcap")));
            }
        }
        switch.vsctl(&arguments.split(' ').collect::<Vec<_>>())?;
        // As those do who use tunnel options.
        let option = "{class=0x102,type=0x80,len=4}->tun_metadata0";
        run("ovs-ofctl", &["-O", "OpenFlow15", "add-tlv-map", &switch.bridge(), option])?;
        Ok(switch)
    }

    /// The user-space datapath on AF_PACKET, with the interfaces p1 to pN of a network namespace as ports of these numbers.
    pub fn start_on(netns: &Netns, ports: u16) -> Result<DummySwitch, Error> {
        let switch = DummySwitch::begin(Some(netns))?;
        let mut arguments = String::from("set Open_vSwitch . other_config:vlan-limit=2 -- add-br br0 -- set bridge br0 datapath_type=netdev fail-mode=secure");
        for port in 1..=ports {
            let _ = write!(arguments, " -- add-port br0 p{port} -- set interface p{port} ofport_request={port}");
        }
        switch.vsctl(&arguments.split(' ').collect::<Vec<_>>())?;
        Ok(switch)
    }

    /// Its processes, in a network namespace or with a datapath that touches nothing.
    fn begin(netns: Option<&Netns>) -> Result<DummySwitch, Error> {
        const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
        for file in [SCHEMA, "/usr/sbin/ovs-vswitchd", "/usr/sbin/ovsdb-server"] {
            if !Path::new(file).exists() {
                return Err(Error::Missing { what: format!("Open vSwitch ({file})") });
            }
        }
        let dir =
            tempfile::Builder::new().prefix("tunny-trace").tempdir().map_err(Error::io("creating a directory"))?;
        let mut switch = DummySwitch { dir, children: Vec::new() };
        let (database, socket) = (switch.path("conf.db"), switch.path("db.sock"));
        run("ovsdb-tool", &["create", &database, SCHEMA])?;
        switch.spawn(
            "ovsdb-server",
            &[database.clone(), format!("--remote=punix:{socket}"), format!("--unixctl={}", switch.path("dbctl"))],
            None,
        )?;
        let ready = || Path::new(&socket).exists();
        if !cpu::wait_for(Duration::from_secs(5), ready) {
            return Err(Error::Failed { what: "ovsdb-server".into(), why: "no socket after 5 s".into() });
        }
        switch.vsctl(&["--no-wait", "init"])?;
        let control = format!("--unixctl={}", switch.path("ctl"));
        let mut arguments = vec![format!("unix:{socket}"), "--disable-system".into(), control];
        arguments.extend(netns.is_none().then(|| "--enable-dummy=override".into()));
        switch.spawn("ovs-vswitchd", &arguments, netns)?;
        Ok(switch)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn spawn(&mut self, program: &str, arguments: &[String], netns: Option<&Netns>) -> Result<(), Error> {
        let log = std::fs::File::create(self.path(&format!("{program}.out"))).map_err(Error::io("creating a log"))?;
        let mut command = netns.map_or_else(|| Command::new(program), |netns| netns.command(program));
        for variable in ["OVS_RUNDIR", "OVS_DBDIR", "OVS_LOGDIR", "OVS_SYSCONFDIR"] {
            command.env(variable, self.dir.path());
        }
        // SAFETY: between fork and exec only one system call is made, which is safe there.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()), // it dies with the bench, however that ends
                _ => Err(std::io::Error::last_os_error()),
            })
        };
        command.args(arguments).args(["--no-chdir", "-vconsole:off"]).stdin(Stdio::null());
        command.stdout(log.try_clone().map_err(Error::io("creating a log"))?).stderr(log);
        self.children
            .push(command.spawn().map_err(|source| Error::Io { what: format!("starting {program}"), source })?);
        Ok(())
    }

    fn vsctl(&self, arguments: &[&str]) -> Result<String, Error> {
        let database = format!("--db=unix:{}", self.path("db.sock"));
        let mut all = vec![database.as_str(), "--timeout=20"];
        all.extend(arguments);
        run("ovs-vsctl", &all)
    }

    /// Where the bridge is managed.
    pub(crate) fn bridge(&self) -> String {
        format!("unix:{}", self.path("br0.mgmt"))
    }

    /// Replaces all flows and groups, and forgets addresses. Flows that it refuses (documentation is not always complete) are taken out of the list.
    pub fn load(&self, flows: &mut Vec<&str>, groups: &str) -> Result<(), Error> {
        let bridge = self.bridge();
        run("ovs-appctl", &["-t", &self.path("ctl"), "-T", "20", "fdb/flush", "br0"])?;
        let (flow_file, group_file) = (self.path("flows.txt"), self.path("groups.txt"));
        std::fs::write(&group_file, groups).map_err(Error::io("writing groups"))?;
        run("ovs-ofctl", &["-O", "OpenFlow15", "del-flows", &bridge])?;
        run("ovs-ofctl", &["-O", "OpenFlow15", "del-groups", &bridge])?;
        run("ovs-ofctl", &["-O", "OpenFlow15", "add-groups", &bridge, &group_file])?;
        std::fs::write(&flow_file, flows.join("\n")).map_err(Error::io("writing flows"))?;
        if run("ovs-ofctl", &["-O", "OpenFlow15", "add-flows", &bridge, &flow_file]).is_ok() {
            return Ok(());
        }
        flows.retain(|flow| self.takes(flow));
        Ok(())
    }

    /// A request to its control socket.
    pub fn appctl(&self, words: &[&str]) -> Result<String, Error> {
        run("ovs-appctl", &[&["-t", &self.path("ctl"), "-T", "20"], words].concat())
    }

    /// Its flows with what they counted.
    pub fn dump_flows(&self) -> Result<String, Error> {
        run("ovs-ofctl", &["-O", "OpenFlow15", "dump-flows", &self.bridge()])
    }

    /// What it says of a packet that comes back from the connection tracker with these states; with `learns` the packet has its effects on flows and addresses.
    pub fn trace(&self, packet: &str, ct_next: &[String], learns: bool) -> Result<String, Error> {
        let target = self.path("ctl");
        let mut arguments = vec!["-t", &target, "-T", "20", "ofproto/trace", "br0", packet];
        ct_next.iter().for_each(|states| arguments.extend(["--ct-next", states]));
        if learns {
            arguments.push("-generate");
        }
        run("ovs-appctl", &arguments)
    }
}

impl Drop for DummySwitch {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// One pass of one side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracedPass {
    /// Table, priority and match of each step; no priority for a miss.
    pub steps: Vec<(u8, Option<u16>, String)>,
    /// Megaflow as printed.
    pub megaflow: String,
    /// Datapath actions as printed.
    pub actions: String,
}

/// Reads what `ofproto/trace` printed.
pub fn parse_trace(text: &str) -> Vec<TracedPass> {
    let mut passes = vec![TracedPass::default()];
    for line in text.lines() {
        let pass = passes.last_mut().expect("there is one");
        if let Some(rest) = line.strip_prefix("Megaflow: ") {
            pass.megaflow = rest.to_string();
        } else if let Some(rest) = line.strip_prefix("Datapath actions: ") {
            pass.actions = rest.to_string();
        } else if line.starts_with("recirc(") {
            passes.push(TracedPass::default());
        } else if let Some((table, rest)) = line.trim_start().split_once(". ") {
            let Ok(table) = table.parse::<u8>() else { continue };
            if rest.starts_with("No match") {
                pass.steps.push((table, None, String::new()));
            } else if let Some((matching, priority)) = rest.rsplit_once("priority ") {
                let priority = priority.split(',').next().and_then(|p| p.trim().parse().ok());
                pass.steps.push((table, priority, matching.trim_end_matches([' ', ',']).to_string()));
            }
        }
    }
    passes
}

fn ours(explanation: &Explanation) -> Vec<TracedPass> {
    let pass = |(n, p): (usize, &pipeline::explain::ExplainedPass)| TracedPass {
        steps: explanation
            .steps
            .iter()
            .filter(|s| s.pass == n)
            .map(|s| (s.table, s.priority, s.matching.clone()))
            .collect(),
        megaflow: p.megaflow.clone(),
        actions: p.datapath_actions.clone(),
    };
    explanation.passes.iter().enumerate().map(pass).collect()
}

/// What differed.
#[derive(Clone, Debug, Default)]
pub struct Differences {
    /// Packets traced on both sides.
    pub packets: usize,
    /// Flows that Open vSwitch refused; they are left out on both sides.
    pub refused: usize,
    /// Passes compared.
    pub passes: usize,
    /// Another way through the tables.
    pub steps: usize,
    /// Other datapath actions.
    pub actions: usize,
    /// Another number of passes.
    pub recirculations: usize,
    /// Passes that send by `normal`, `all` or `flood`: the ports of one such action are compared, not their order.
    pub flooded: usize,
    /// The same megaflow mask.
    pub mask_equal: usize,
    /// Ours has fewer bits and none that theirs lacks.
    pub mask_wider: usize,
    /// Ours has a bit that theirs lacks.
    pub mask_other: usize,
    /// The first differences, in words.
    pub listed: Vec<String>,
}

impl Differences {
    /// Ways and actions that differ: what must be none.
    pub fn total(&self) -> usize {
        self.steps + self.actions + self.recirculations
    }

    fn add(&mut self, other: Differences) {
        self.packets += other.packets;
        self.passes += other.passes;
        self.refused += other.refused;
        self.steps += other.steps;
        self.actions += other.actions;
        self.recirculations += other.recirculations;
        self.flooded += other.flooded;
        self.mask_equal += other.mask_equal;
        self.mask_wider += other.mask_wider;
        self.mask_other += other.mask_other;
        other.listed.into_iter().for_each(|l| self.list(l));
    }

    fn list(&mut self, what: String) {
        if self.listed.len() < 40 {
            self.listed.push(what);
        }
    }
}

/// Numbers of recirculations are not compared, and of controllers only who is told, how much, and why.
fn normal(actions: &str) -> String {
    let mut out = String::new();
    let mut rest = actions;
    while let Some(at) = rest.find("recirc(").or_else(|| rest.find("userspace(")) {
        let at = rest.find("userspace(").map_or(at, |u| u.min(at));
        let name = if rest[at..].starts_with("recirc(") { "recirc" } else { "userspace" };
        out.push_str(&rest[..at]);
        out.push_str(name);
        let inner = rest[at..].split_once("controller(").map_or("", |(_, i)| i.split(')').next().unwrap_or(""));
        if name == "userspace" {
            for key in ["reason=", "controller_id=", "max_len="] {
                let value = inner.split(',').find_map(|p| p.strip_prefix(key)).unwrap_or("?");
                let _ = write!(out, " {key}{value}");
            }
        }
        let mut depth = 0;
        let end = rest[at..].char_indices().find(|(_, c)| {
            depth += i32::from(*c == '(') - i32::from(*c == ')');
            *c == ')' && depth == 0
        });
        rest = end.map_or("", |(n, _)| &rest[at + n + 1..]);
    }
    out.push_str(rest);
    // A mask behind a value says which bits a rewrite touched, not what comes out.
    let mut text = String::new();
    let mut chars = out.chars().peekable();
    let mut in_ct = 0;
    while let Some(c) = chars.next() {
        if text.ends_with("ct(") {
            in_ct = 1;
        }
        if in_ct > 0 {
            in_ct += i32::from(c == '(') - i32::from(c == ')');
        }
        if c == '/' && in_ct == 0 {
            while chars.peek().is_some_and(|c| !matches!(c, ',' | ')')) {
                chars.next();
            }
            continue;
        }
        text.push(c);
    }
    text
}

fn mask_of(megaflow: &str, pipeline: &Pipeline) -> Result<(Key, Mask), String> {
    let parts: Vec<&str> = megaflow.split(',').filter(|p| !p.starts_with("recirc_id=") && *p != "eth").collect();
    let m = text::subset(&parts.join(","), pipeline.names()).map_err(|e| format!("{e} in {megaflow}"))?;
    Ok((m.key, m.mask))
}

fn compare(
    packet: &str,
    theirs: &[TracedPass],
    own: &[TracedPass],
    pipeline: &Pipeline,
    differences: &mut Differences,
) {
    differences.packets += 1;
    if theirs.len() != own.len() {
        differences.recirculations += 1;
        differences.list(format!("{packet}: {} passes, theirs {}", own.len(), theirs.len()));
        return;
    }
    for (mine, other) in own.iter().zip(theirs) {
        differences.passes += 1;
        let canonical = |steps: &[(u8, Option<u16>, String)]| -> Vec<(u8, Option<u16>, Option<pipeline::Match>)> {
            steps.iter().map(|(t, p, m)| (*t, *p, text::matching(m, pipeline.names()).ok())).collect()
        };
        if canonical(&mine.steps) != canonical(&other.steps) {
            differences.steps += 1;
            differences.list(format!("{packet}: steps {:?}, theirs {:?}", mine.steps, other.steps));
        }
        let (a, b) = (floods(&normal(&mine.actions)), floods(&normal(&other.actions)));
        differences.flooded += usize::from(a.split(',').filter(|part| is_port(part)).count() >= usize::from(PORTS) - 1);
        if a != b {
            differences.actions += 1;
            differences.list(format!("{packet}: actions {}, theirs {}", mine.actions, other.actions));
        }
        match (mask_of(&mine.megaflow, pipeline), mask_of(&other.megaflow, pipeline)) {
            (Ok((_, a)), Ok((_, b))) if a == b => differences.mask_equal += 1,
            (Ok((_, a)), Ok((_, b))) if a.is_subset(&b) => differences.mask_wider += 1,
            (Ok(_), Ok(_)) => {
                differences.mask_other += 1;
                differences.list(format!("{packet}: megaflow {}, theirs {}", mine.megaflow, other.megaflow));
            }
            (a, b) => {
                differences.mask_other += 1;
                differences.list(format!("{packet}: {:?} {:?}", a.err(), b.err()));
            }
        }
    }
}

fn is_port(part: &str) -> bool {
    part == "LOCAL" || !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit())
}

/// Ports next to each other in order: a switch floods in an order of its own. Its own port has another number in the datapath.
/// Those inside parentheses, as of `check_pkt_len`, are a list of their own.
fn floods(actions: &str) -> String {
    let list = |piece: &str| {
        let end = piece.len() - usize::from(piece.ends_with(['(', ')']));
        let mut parts: Vec<&str> =
            piece[..end].split(',').map(|p| if p == LOCAL_IN_DATAPATH { "LOCAL" } else { p }).collect();
        parts.chunk_by_mut(|a, b| is_port(a) && is_port(b)).for_each(<[&str]>::sort_unstable);
        parts.join(",") + &piece[end..]
    };
    actions.split_inclusive(['(', ')']).map(list).collect()
}

/// The port of the bridge itself in the dummy datapath.
const LOCAL_IN_DATAPATH: &str = "100";

/// A random packet that has a chance to match something: a kind of packet, with values taken from random flows.
pub fn random_packet(pipeline_matches: &[pipeline::Match], random: &mut StdRng) -> Key {
    let mut key = Key::default();
    let kinds: [(u128, u128); 9] = [
        (0x0800, 6),
        (0x0800, 17),
        (0x0800, 1),
        (0x86dd, 6),
        (0x86dd, 17),
        (0x86dd, 58),
        (0x0806, 1),
        (0x0800, 6),
        (0x8847, 0),
    ];
    let (eth, proto) = kinds[random.random_range(0..kinds.len())];
    key.set(Field::InPort, u128::from(random.random_range(1..=PORTS)));
    key.set(Field::EthSrc, 0x0a00_0000_0000 | u128::from(random.random::<u8>()));
    key.set(Field::EthDst, 0x0a00_0000_0000 | u128::from(random.random::<u8>()));
    for _ in 0..random.random_range(0..6) {
        if pipeline_matches.is_empty() {
            break;
        }
        let m = &pipeline_matches[random.random_range(0..pipeline_matches.len())];
        for field in FROM_FLOWS {
            let bits = m.mask.get(*field);
            let noise = if random.random_range(0..4) == 0 { u128::from(random.random::<u64>()) } else { 0 };
            let old = key.get(*field);
            if bits != 0 {
                key.set(*field, m.key.get(*field) & bits | (old ^ noise) & !bits);
            }
        }
    }
    key.set(Field::EthType, eth);
    key.set(Field::NwProto, proto);
    let ip = matches!(eth, 0x0800 | 0x86dd);
    if ip && key.get(Field::NwTtl) == 0 {
        key.set(Field::NwTtl, *[64u128, 1, 255, 2].get(random.random_range(0..8)).unwrap_or(&64));
    }
    if eth == 0x8847 {
        key.set(Field::MplsLse1, 0);
        key.set(Field::MplsTtl, u128::from(random.random_range(1..=64u8)));
        key.set(Field::MplsBos, 1);
    }
    match (ip, proto) {
        (true, 6) => key.set(Field::TcpFlags, *[2u128, 0x10, 0x12, 4].get(random.random_range(0..4)).unwrap_or(&2)),
        (true, 58) if random.random_range(0..2) == 0 => {
            key.set(Field::Icmpv6Type, 135 + u128::from(random.random_range(0..2u8)))
        }
        _ => {}
    }
    if proto == 58 && matches!(key.get(Field::Icmpv6Type), 135 | 136) {
        key.set(Field::Icmpv6Code, 0);
    }
    if matches!(proto, 1 | 58) {
        key.set(Field::TcpSrc, key.get(Field::TcpSrc) & 0xff);
        key.set(Field::TcpDst, key.get(Field::TcpDst) & 0xff);
    }
    if random.random_range(0..3) != 0 && key.get(Field::VlanTci) & 0x1000 == 0 {
        key.set(Field::VlanTci, 0);
    } else if key.get(Field::VlanTci) != 0 {
        key.set(Field::VlanTci, key.get(Field::VlanTci) | 0x1000);
    }
    // Only what such a packet has.
    let mut has = Mask::default();
    Field::all().filter(|f| f.info().prereq.holds(&key)).for_each(|f| has.add(f));
    key.masked(&has)
}

/// Fields that random packets take from flows.
const FROM_FLOWS: &[Field] = &[
    Field::InPort,
    Field::EthSrc,
    Field::EthDst,
    Field::VlanTci,
    Field::NwSrc,
    Field::NwDst,
    Field::Ipv6Src,
    Field::Ipv6Dst,
    Field::Ipv6Label,
    Field::NwTos,
    Field::NwTtl,
    Field::TcpSrc,
    Field::TcpDst,
    Field::NdTarget,
    Field::ArpSha,
    Field::ArpTha,
    Field::MplsLabel,
    Field::TunId,
    Field::ArpOp,
];

/// The packet as text for both sides.
pub fn packet_text(key: &Key, pipeline: &Pipeline) -> String {
    let mut text = text::format_key(key, pipeline.names());
    if !text.contains("in_port") {
        let _ = write!(text, ",in_port={}", key.get(Field::InPort));
    }
    // Its parser of packets takes the protocols' own names only.
    let protocol = match (key.get(Field::EthType), key.get(Field::NwProto)) {
        (0x86dd, 58) => return text.replace("icmp_type", "icmpv6_type").replace("icmp_code", "icmpv6_code"),
        (_, 17) => "udp",
        (_, 132) => "sctp",
        _ => "tcp",
    };
    text.replace(",tp_", &format!(",{protocol}_"))
}

/// States with which packets come back from the connection tracker.
const STATES: [&str; 6] = ["trk,new", "trk,est", "trk,est,rpl", "trk,rel", "trk,inv", "trk,est,snat"];

/// Traces random packets through the same flows on both sides. With `learns` packets have their effects, and find those of the packets before them.
pub fn run_comparison(
    switch: &DummySwitch,
    flows: &str,
    packets: usize,
    seed: u64,
    learns: bool,
    context: &Context,
) -> Result<Differences, Error> {
    let group = |l: &&str| l.starts_with("group_id");
    let groups: Vec<&str> = flows.lines().filter(group).collect();
    let mut rest: Vec<&str> = flows.lines().filter(|l| !group(l) && l.contains("actions=")).collect();
    let before = rest.len();
    switch.load(&mut rest, &groups.join("\n"))?;
    let refused = before - rest.len();
    let accepted = format!("{}\n{}", groups.join("\n"), rest.join("\n"));
    // What one side takes and the other does not is judged elsewhere; here all that the switch took is run.
    let lenient = ImportOptions { lenient: true, ..ImportOptions::default() };
    let mut pipeline = text::import(&accepted, &lenient).map_err(Error::failed("importing"))?.pipeline;
    let bridge = Bridge::new((1..=PORTS).chain([pipeline::LOCAL]));
    let mut bridge = if learns { bridge } else { bridge.frozen() };
    let mut matches: Vec<_> = pipeline.rules().collect();
    matches.sort_by_key(|(id, _)| *id);
    let matches: Vec<pipeline::Match> = matches.into_iter().map(|(_, r)| r.matching()).collect();
    let mut random = StdRng::seed_from_u64(seed);
    let mut differences = Differences { refused, ..Differences::default() };
    for n in 0..packets {
        if n % 100 == 0 {
            context.say(&format!("tracing packet {n} of {packets}"));
        }
        let packet = packet_text(&random_packet(&matches, &mut random), &pipeline);
        let key = text::packet(&packet, pipeline.names())
            .map_err(|e| Error::Failed { what: packet.clone(), why: e.to_string() })?;
        let ct_next: Vec<String> =
            (0..random.random_range(0..3)).map(|_| STATES[random.random_range(0..STATES.len())].to_string()).collect();
        let states: Vec<u16> = ct_next.iter().filter_map(|s| text::ct_state(s).ok()).collect();
        let mut fresh = bridge.clone();
        let mut ct = Conntrack::scripted(states);
        let explanation = pipeline::explain::explain_on(&pipeline, &key, &mut ct, Some(&mut fresh), n as u64);
        if learns {
            pipeline.add_all(explanation.journey.learned.iter().cloned(), n as u64);
            bridge = fresh;
        }
        let theirs = parse_trace(&switch.trace(&packet, &ct_next, learns)?);
        let packet = ct_next.iter().fold(packet, |p, states| format!("{p} --ct-next {states}"));
        compare(&packet, &theirs, &ours(&explanation), &pipeline, &mut differences);
    }
    Ok(differences)
}

/// The pipeline with every kind of match and action.
const FEATURES: &str = include_str!("../../../tests/pipelines/features.flows");

/// `peer-ovs-trace`.
pub fn peer(context: &Context) -> Result<Report, Error> {
    let switch = DummySwitch::start()?;
    let mut programs = vec![("features".to_string(), FEATURES.to_string())];
    programs.extend((0..3).map(|n| (format!("random {n}"), ovs_programs::random(context.seed + n))));
    programs.extend((3..6).map(|n| (format!("learning {n}"), ovs_programs::random(context.seed + n))));
    programs.extend(shared_dumps());
    let mut by_program = serde_json::Map::new();
    let mut all = Differences::default();
    for (n, (name, flows)) in programs.iter().enumerate() {
        let seed = context.seed.wrapping_mul(1000) + n as u64;
        let learns = name.starts_with("learning");
        let found = run_comparison(&switch, flows, 40 * context.samples.max(5), seed, learns, context)?;
        by_program.insert(name.clone(), found.total().into());
        all.add(found);
    }
    context.say("giving flows and groups to both");
    let mut accepted = Acceptance::default();
    switch.load(&mut Vec::new(), "")?;
    accepted.judge(&switch, &ovs_accept::lines(context.seed, 60 * context.samples.max(5)))?;
    let differences = all.total() + accepted.ours.len() + accepted.theirs.len();
    let mut report = Report::new(
        "peer-ovs-trace",
        "differences",
        vec![differences as f64],
        Some(Goal::AtMost(0.0)),
        "ofproto/trace of Debian's Open vSwitch",
    );
    report
        .detail("by_program", by_program)
        .detail("packets", all.packets)
        .detail("passes", all.passes)
        .detail("flows_refused_by_ovs", all.refused)
        .detail("other_way", all.steps)
        .detail("other_actions", all.actions)
        .detail("other_number_of_passes", all.recirculations)
        .detail("lines_given_to_both", accepted.lines)
        .detail("lines_taken_by_both", accepted.both)
        .detail("lines_refused_by_both", accepted.neither)
        .detail("lines_only_the_import_takes", accepted.ours)
        .detail("lines_only_add_flow_takes", accepted.theirs)
        .detail("lines_add_flow_takes_without_a_part", accepted.theirs_in_part)
        .detail("flooded", all.flooded)
        .detail("megaflow_equal", all.mask_equal)
        .detail("megaflow_wider", all.mask_wider)
        .detail("megaflow_other", all.mask_other)
        .detail("listed", all.listed);
    Ok(report)
}

/// Real dumps from a folder beside the project, if it is there: names of ports become numbers, and groups that a dump of flows lacks
/// become those of a load balancer as OVN writes them: a backend that connections are translated to, and the next table.
pub(crate) fn shared_dumps() -> Vec<(String, String)> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = here.ancestors().map(|a| a.join("shared/data/ovs-pipelines")).find(|p| p.is_dir());
    let Some(folder) = found else { return Vec::new() };
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok().map(|t| (name.to_string(), for_both(&t)));
    ["neutron_firewall.flows", "ovn_kubernetes_node.flows"].iter().filter_map(|n| read(n)).collect()
}

/// A dump as both sides take it: see [`shared_dumps`].
pub fn for_both(text: &str) -> String {
    let mut ports: Vec<&str> = Vec::new();
    let mut out = String::new();
    for (n, part) in text.split('"').enumerate() {
        if n % 2 == 0 {
            out.push_str(part);
            continue;
        }
        let at = ports.iter().position(|p| *p == part).unwrap_or_else(|| {
            ports.push(part);
            ports.len() - 1
        });
        let _ = write!(out, "{}", at % usize::from(PORTS) + 1);
    }
    let number = |t: &'_ str| t.split(|c: char| !c.is_ascii_digit()).next().unwrap_or("").to_string();
    let mut groups: Vec<String> = text.split("group:").skip(1).map(number).collect();
    groups.sort_unstable();
    groups.dedup();
    for group in groups {
        let n = group.parse::<u8>().unwrap_or(1);
        let table = next_table(text, &group);
        let _ = writeln!(
            out,
            "\ngroup_id={group},type=select,selection_method=hash,bucket=bucket_id:0,weight:100,actions=set_field:{n}->reg9,\
             ct(commit,table={table},zone=NXM_NX_REG11[0..15],nat(dst=10.244.0.{n}:8080),exec(load:0x1->NXM_NX_CT_MARK[1]))"
        );
    }
    out
}

/// The table behind the one whose flows name a group: there its connections come back.
fn next_table(text: &str, group: &str) -> u8 {
    let named = text
        .lines()
        .find(|l| l.split("group:").skip(1).any(|g| g.split(|c: char| !c.is_ascii_digit()).next() == Some(group)));
    let table =
        named.and_then(|l| l.split("table=").nth(1)).and_then(|t| t.split(',').next()?.trim().parse::<u8>().ok());
    table.map_or(1, |t| t.saturating_add(1).min(253))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_a_flood_are_compared_without_their_order_wherever_it_stands() {
        let same = |a: &str, b: &str| floods(a) == floods(b);
        assert!(same("1,2,LOCAL,recirc", "100,2,1,recirc"));
        assert!(same(
            "check_pkt_len(size=1400,gt(1,2,LOCAL,userspace,6),le(3,1))",
            "check_pkt_len(size=1400,gt(2,100,1,userspace,6),le(1,3))"
        ));
        assert!(!same("gt(1,2),le(3)", "gt(1,3),le(2)"), "a port of the other branch");
        assert!(!same("gt(1,2,userspace,6)", "gt(1,6,userspace,2)"), "what stands between is no port");
        assert!(!same("1,2,3", "1,2"));
    }
}
