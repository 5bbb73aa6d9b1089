// SPDX-License-Identifier: Apache-2.0
//! Two nodes with one tunnel address, FRR beside each by `examples/frr.conf`, and a router with FRR and ECMP (`docs/design/announce.md`).
//! Datagrams between two VMs are numbered and counted while a node is drained, killed, loses its program or vanishes.

mod bgp;
mod region;

use bgp::{Frr, Room};
use lab::plan::{Segment, VTEP4, VTEP6};
use lab::shell::Namespace;
use lab::traffic;
use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};
use region::{inside, region, wait_long, Region};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Segment of the second node.
const SECOND: Segment = Segment(62);
/// What the second node has for itself.
const SECOND_POOL: &str = "203.0.113.64/29";
const RATE: u64 = 2000;
/// Flows, so that both nodes serve some.
const FLOWS: usize = 16;

fn uplink() -> Segment {
    Segment::uplink(0)
}

fn run(ns: &Namespace, line: &str) {
    ns.run(line).unwrap_or_else(|e| panic!("{line}: {e}"));
}

/// The example, with the addresses of a segment.
fn speaker(at: Segment) -> String {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/frr.conf")).unwrap();
    let text = text.replace("10.99.1.1", &at.router4().to_string()).replace("10.99.1.2", &at.node4().to_string());
    text.replace("fd99:1::1", &at.router6().to_string())
}

/// The router's speaker: neighbours of one AS, so that their routes are used together. `bfd`: by which it also asks every so many milliseconds
/// whether they live; a busy machine is no place for that where nothing is to be lost.
fn upstream(bfd: Option<u32>) -> String {
    // With next hop objects zebra 8.4 does not notice that the kernel drops members of a group when a link goes down.
    let mut text =
        "no zebra nexthop kernel enable\nrouter bgp 65000\n bgp router-id 172.31.0.1\n no bgp ebgp-requires-policy\n"
            .to_string();
    for at in [uplink(), SECOND] {
        for peer in [at.node4().to_string(), at.node6().to_string()] {
            text += &format!(" neighbor {peer} remote-as 65001\n neighbor {peer} timers connect 1\n");
            if bfd.is_some() {
                text += &format!(" neighbor {peer} bfd profile own\n");
            }
        }
    }
    text += " address-family ipv6 unicast\n";
    for at in [uplink(), SECOND] {
        text += &format!("  neighbor {} activate\n", at.node6());
    }
    text += " exit-address-family\n!\n";
    bfd.map_or(text.clone(), |ms| {
        text + &format!("bfd\n profile own\n  detect-multiplier 3\n  receive-interval {ms}\n  transmit-interval {ms}\n")
    })
}

/// Processes that end with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The second node.
struct Second {
    node: Child,
    socket: PathBuf,
    dir: tempfile::TempDir,
    room: Room,
}

impl Drop for Second {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the second node's last words:\n{}", lab::node::tail(&self.dir.path().join("log")));
        }
        let _ = self.node.kill();
        let _ = self.node.wait();
        let _ = std::fs::remove_dir_all(format!("/sys/fs/bpf/tunny/{}", self.room.0 .0));
    }
}

/// The gateway's place beside the first one: a namespace and a cable to the router.
fn second_room(region: &Region) -> Room {
    let (net, room) = (region.ns("net"), Room(region.ns("gwb")));
    lab::shell::run(&format!("ip netns add {}", room.0 .0)).unwrap();
    let ns = &room.0;
    run(ns, "ip link set lo up");
    ns.sysctl(&[("net.ipv4.conf.all.rp_filter", "0"), ("net.ipv4.conf.default.rp_filter", "0")]).unwrap();
    run(ns, &format!("ip link add up0 type veth peer name to-gwb netns {}", net.0));
    let ends = [(ns, "up0", SECOND.node4(), SECOND.node6()), (&net, "to-gwb", SECOND.router4(), SECOND.router6())];
    for (ns, dev, v4, v6) in ends {
        run(ns, &format!("ip addr add {v4}/24 dev {dev}"));
        run(ns, &format!("ip addr add {v6}/64 dev {dev} nodad"));
        run(ns, &format!("ip link set dev {dev} up"));
    }
    run(&net, "ethtool -K to-gwb tx off gro on");
    run(ns, &format!("ip route add default via {}", SECOND.router4()));
    run(ns, &format!("ip -6 route add default via {}", SECOND.router6()));
    room
}

/// Two nodes, their speakers and the router's.
struct Stage {
    _second: Second,
    frr: [Frr; 3],
    watchdog: Option<Ends>,
    region: Region,
}

/// The first node's file, from which a start takes its Gateway.
fn configure(region: &Region, announce: &str) {
    let file = region.names.dir().join("region.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text: String = text.lines().filter(|l| !l.starts_with("  announce:")).map(|l| format!("{l}\n")).collect();
    let at = text.find("\nkind: Gateway\n").unwrap();
    let spec = at + text[at..].find("\nspec:\n").unwrap() + "\nspec:\n".len();
    std::fs::write(&file, format!("{}  announce: {{{announce}}}\n{}", &text[..spec], &text[spec..])).unwrap();
    region.tunny(&["apply", "--yes", file.to_str().unwrap()]);
}

impl Stage {
    fn new(name: &str, bfd: Option<u32>) -> Option<Stage> {
        let region = region(name)?;
        let (net, gw) = (region.ns("net"), region.ns("gw"));
        // What the lab routes by hand, routers learn here. An address of an interface would be zebra's own.
        for route in
            [format!("{VTEP4}"), lab::plan::PUBLIC.into(), format!("-6 {VTEP6}"), format!("-6 {}", lab::plan::BLUE6)]
        {
            let (family, to) = route.split_once(' ').unwrap_or(("-4", &route));
            run(&net, &format!("ip {family} route del {to}"));
        }
        run(&gw, &format!("ip addr del {VTEP4}/32 dev lo"));
        run(&gw, &format!("ip addr del {VTEP6}/128 dev lo"));
        run(&gw, &format!("ip route add local {VTEP4} dev lo"));
        let second = Stage::second(&region, second_room(&region));
        run(&second.room.0, &format!("ip route add local {VTEP4} dev lo"));
        let frr = [
            Frr::start(&net, &["bgpd", "bfdd"], &upstream(bfd)),
            Frr::start(&gw, &["bgpd", "bfdd"], &speaker(uplink())),
            Frr::start(&second.room.0, &["bgpd", "bfdd"], &speaker(SECOND)),
        ];
        let mut stage = Stage { _second: second, frr, watchdog: None, region };
        stage.watch();
        configure(&stage.region, "state: on, grace: 1, hold: 600");
        stage.both();
        stage.warm();
        Some(stage)
    }

    fn second(region: &Region, room: Room) -> Second {
        let dir = tempfile::tempdir().unwrap();
        let at = |file: &str| dir.path().join(file).display().to_string();
        let (state, config, socket) = (at("state"), at("second.yaml"), at("second.sock"));
        let text: String =
            ["vpc", "nc", "vm", "peering"].map(|kind| region.tunny(&["get", kind, "-o", "yaml"])).join("---\n");
        let routes: Vec<Value> = serde_json::from_str(&region.tunny(&["get", "route", "-o", "json"])).unwrap();
        let routes = routes.iter().filter(|r| ["local", "peer"].contains(&r["spec"]["scope"].as_str().unwrap()));
        let routes: String = routes.map(|r| format!("---\n{r}\n")).collect();
        let own = format!(
            "---\n{{apiVersion: tunny/v1, kind: Gateway, metadata: {{name: second}}, spec: {{vtep: {{ipv4: {VTEP4}, ipv6: '{VTEP6}'}}, \
             uplinks: [up0], announce: {{state: on, grace: 1}}}}}}\n---\n{{apiVersion: tunny/v1, kind: PublicPool, metadata: {{name: own}}, \
             spec: {{ranges: [{SECOND_POOL}]}}}}\n"
        );
        std::fs::write(&config, format!("{text}{routes}{own}")).unwrap();
        let mut argv = vec![env!("CARGO_BIN_EXE_tunny"), "node", "--instance", &room.0 .0, "--flow-cache", "4"];
        argv.extend(["--socket", &socket, "--state", &state, "--config", &config]);
        let node = room.0.spawn(&argv, &dir.path().join("log")).unwrap();
        let second = Second { node, socket: socket.into(), dir, room };
        wait_long("the second node", || second.tunny(&["get", "status"]));
        second
    }

    /// Starts the first node's watchdog.
    fn watch(&mut self) {
        let socket = lab::node::socket(&self.region.names).display().to_string();
        let argv = [env!("CARGO_BIN_EXE_tunny"), "--socket", &socket, "watchdog"];
        let log = self.region.names.dir().join("watchdog.log");
        self.watchdog = Some(Ends(self.region.ns("gw").spawn(&argv, &log).unwrap()));
    }

    /// What the router's kernel has for a prefix.
    fn route(&self, prefix: &str) -> String {
        let family = if prefix.contains(':') { "-6" } else { "-4" };
        self.region.ns("net").run(&format!("ip {family} route show {prefix}")).unwrap()
    }

    /// By how many paths the router sends to both tunnel addresses.
    fn paths(&self) -> [usize; 2] {
        [format!("{VTEP4}"), format!("{VTEP6}")].map(|vtep| self.route(&vtep).matches("via ").count())
    }

    fn both(&self) {
        wait_long("both nodes are used", || (self.paths() == [2, 2]).then_some(()));
    }

    /// The router sends to the second node alone, or to both again.
    fn second_alone(&self) {
        wait_long("the second node alone", || {
            let route = self.route(&VTEP4.to_string());
            (self.paths() == [1, 1] && route.contains(&format!("via {}", SECOND.node4()))).then_some(())
        });
    }

    /// Neighbours are known on all paths, by packets of all flows.
    fn warm(&self) {
        wait_long("no datagram of a while is lost", || {
            let (sent, came) = Stream::start(&self.region).rest(Duration::from_millis(500)).numbers();
            (sent == came.len() as u64).then_some(())
        });
    }

    fn kernel(&self) -> String {
        let gw = self.region.ns("gw");
        gw.run("ip route show proto 84").unwrap() + &gw.run("ip -6 route show proto 84").unwrap()
    }

    /// What the first node says of what it announces.
    fn told(&self, more: &[&str]) -> Vec<Value> {
        let args = [&["get", "routes", "--announced", "-o", "json"], more].concat();
        serde_json::from_str(&self.region.tunny(&args)).unwrap()
    }

    fn state(&self, prefix: &str) -> Option<(String, String)> {
        let list = self.told(&[]);
        let found = list.iter().find(|r| r["prefix"] == prefix)?;
        Some((found["state"].as_str()?.into(), found["reason"].as_str()?.into()))
    }

    fn events(&self) -> String {
        self.region.tunny(&["get", "events", "-o", "json"])
    }

    fn kill_first(&self) {
        self.region.node().unwrap().process.kill();
    }

    fn forwarded(&self) -> u64 {
        self.region.node().unwrap().counters().unwrap().forwarded
    }
}

impl Second {
    fn tunny(&self, args: &[&str]) -> Option<String> {
        let out =
            Command::new(env!("CARGO_BIN_EXE_tunny")).arg("--socket").arg(&self.socket).args(args).output().unwrap();
        out.status.success().then(|| String::from_utf8(out.stdout).unwrap())
    }
}

/// Numbered datagrams from blue-1 to blue-2, at a known rate, by several flows.
struct Stream {
    stop: Arc<AtomicBool>,
    said: JoinHandle<u64>,
    heard: JoinHandle<BTreeSet<u64>>,
}

impl Stream {
    fn start(region: &Region) -> Stream {
        const PORT: u16 = 9100;
        let hear = inside(&region.ns("blue-2"), || {
            let socket = UdpSocket::bind(("10.0.0.12", PORT)).unwrap();
            setsockopt(&socket, RcvBufForce, &(16 << 20)).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            socket
        });
        let socket = hear.join().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (end, done) = (stop.clone(), Arc::new(AtomicBool::new(false)));
        let over = done.clone();
        let said = inside(&region.ns("blue-1"), move || {
            let sockets: Vec<UdpSocket> = (0..FLOWS).map(|_| UdpSocket::bind("0.0.0.0:0").unwrap()).collect();
            let (begun, mut n) = (Instant::now(), 0u64);
            while !end.load(Relaxed) {
                sockets[n as usize % FLOWS].send_to(&n.to_be_bytes(), ("10.0.0.12", PORT)).unwrap();
                n += 1;
                let next = begun + Duration::from_micros(n * 1_000_000 / RATE);
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            over.store(true, Relaxed);
            n
        });
        let heard = std::thread::spawn(move || {
            let (mut came, mut buffer) = (BTreeSet::new(), [0; 8]);
            loop {
                match socket.recv(&mut buffer) {
                    Ok(8) => assert!(came.insert(u64::from_be_bytes(buffer)), "a datagram came twice"),
                    Ok(_) => {}
                    Err(_) if done.load(Relaxed) => return came,
                    Err(_) => {}
                }
            }
        });
        Stream { stop, said, heard }
    }

    /// Goes on for a while.
    fn rest(self, time: Duration) -> Stream {
        std::thread::sleep(time);
        self
    }

    /// Ends it: how many were sent, and which came.
    fn numbers(self) -> (u64, BTreeSet<u64>) {
        self.stop.store(true, Relaxed);
        (self.said.join().unwrap(), self.heard.join().unwrap())
    }

    fn lost_nothing(self, what: &str) {
        let (sent, came) = self.numbers();
        let lost: Vec<u64> = (0..sent).filter(|n| !came.contains(n)).collect();
        eprintln!("{what}: {sent} datagrams sent, {} lost", lost.len());
        assert!(lost.is_empty(), "{what}: {} of {sent} lost, from {:?} to {:?}", lost.len(), lost.first(), lost.last());
    }
}

#[test]
fn a_drained_node_loses_no_packet_and_what_is_told_is_what_routers_have() {
    if !skip::have_tool("vtysh", "frr") {
        return;
    }
    let Some(stage) = Stage::new("ann", None) else { return };
    let (vtep4, elastic) = (format!("{VTEP4}/32"), format!("{}/32", lab::plan::ELASTIC));

    // What the node says, what its FRR says, and what the router's kernel has.
    let frr = stage.frr[1].dir.path().display().to_string();
    let router = [uplink().router4().to_string(), uplink().router6().to_string()];
    let all = wait_long("FRR tells the router all", || {
        let list = stage.told(&["--frr", &frr]);
        let known =
            |r: &Value| r["advertised"].as_array().is_some_and(|to| to.iter().any(|p| router.iter().any(|r| p == r)));
        list.iter().all(|r| r["state"] == "announced" && known(r)).then_some(list)
    });
    let prefixes: Vec<&str> = all.iter().map(|r| r["prefix"].as_str().unwrap()).collect();
    let forward = format!("{}/32", lab::plan::FORWARD);
    let mut wanted = vec![vtep4.as_str(), lab::plan::PUBLIC, &elastic, &forward, lab::plan::BLUE6];
    let vtep6 = format!("{VTEP6}/128");
    wanted.push(&vtep6);
    assert_eq!(prefixes.iter().collect::<BTreeSet<_>>(), wanted.iter().collect::<BTreeSet<_>>());
    for prefix in [lab::plan::PUBLIC, &elastic] {
        assert!(
            stage.route(prefix).contains(&format!("via {}", uplink().node4())),
            "{prefix}: {}",
            stage.route(prefix)
        );
    }
    assert!(stage.route(SECOND_POOL).contains(&format!("via {}", SECOND.node4())));
    assert!(stage.region.tunny(&["get", "routes", "--announced", "--frr", &frr]).contains("PublicPool public"));
    // One that is not there is said, and nothing is taken for known.
    let nowhere = stage.told(&["--frr", "/nonexistent"]);
    assert!(nowhere
        .iter()
        .all(|r| r["advertised"].is_null() && r["frrTrouble"].as_str().is_some_and(|why| !why.is_empty())));
    let told = stage.region.tunny(&["get", "routes", "--announced", "--frr", "/nonexistent"]);
    assert!(told.contains("not known") && told.contains("FRR does not answer"), "{told}");
    let metrics = stage.region.node().unwrap().metrics().unwrap();
    assert!(metrics.contains("tunny_announced_prefixes{state=\"announced\"} 6"), "{metrics}");
    assert!(metrics.contains("tunny_announce_watched 1"));
    // Each host answers to an address that no interface has.
    let ping = traffic::ping(&stage.region.ns("net"), &VTEP4.to_string(), 1, &[]).unwrap();
    assert_eq!(ping.received, 1, "{}", ping.output);

    // Away and back, under traffic. In between nothing comes here any more.
    let before = stage.forwarded();
    let stream = Stream::start(&stage.region).rest(Duration::from_secs(1));
    let second_pool = stage.route(SECOND_POOL);
    stage.region.change_gateway(|spec| spec["announce"]["state"] = "drain".into());
    stage.second_alone();
    wait_long("withdrawn", || {
        let (state, reason) = stage.state(&vtep4)?;
        (state == "withdrawn" && reason.ends_with("is drain")).then_some(())
    });
    assert_eq!(stage.kernel(), "");
    wait_long("its pool is withdrawn", || stage.route(lab::plan::PUBLIC).is_empty().then_some(()));
    assert_eq!(stage.route(SECOND_POOL), second_pool);
    let drained = stage.forwarded();
    assert!(drained > before, "both nodes served");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(stage.forwarded(), drained, "a drained node gets nothing");
    stage.region.change_gateway(|spec| spec["announce"]["state"] = "on".into());
    stage.both();
    let stream = stream.rest(Duration::from_secs(1));
    assert!(stage.forwarded() > drained);
    stream.lost_nothing("a node is drained and comes back");

    // What is deleted is withdrawn, and what lies around it is not.
    stage.region.tunny(&["delete", "--yes", "elasticip/red-1"]);
    wait_long("the elastic address is withdrawn", || stage.route(&elastic).is_empty().then_some(()));
    assert_eq!(stage.state(&elastic), Some(("withdrawn".into(), "no longer served here".into())));
    assert!(!stage.route(lab::plan::PUBLIC).is_empty());
    let events = stage.events();
    assert!(
        events.contains(&format!("{elastic}: no longer served here")) && events.contains("\"announce\""),
        "{events}"
    );

    // An address of an interface is zebra's own: said where operators look.
    run(&stage.region.ns("gw"), &format!("ip addr add {VTEP4}/32 dev lo"));
    wait_long("a warning", || stage.region.tunny(&["get", "status"]).contains("lo has the address").then_some(()));
    run(&stage.region.ns("gw"), &format!("ip addr del {VTEP4}/32 dev lo"));

    // SIGTERM: marked, then gone; no packet is lost, whoever stops.
    stage.both();
    stage.warm();
    let stream = Stream::start(&stage.region).rest(Duration::from_millis(500));
    lab::shell::run(&format!("kill -TERM {}", stage.region.node().unwrap().process.pid)).unwrap();
    wait_long("marked", || {
        let marks = stage.kernel();
        (marks.contains("metric 8401") && !marks.contains("metric 8400")).then_some(())
    });
    stage.second_alone();
    wait_long("gone", || stage.kernel().is_empty().then_some(()));
    stream.rest(Duration::from_millis(500)).lost_nothing("a node is stopped");
}

#[test]
fn a_dead_daemon_is_held_and_the_watchdog_withdraws_what_would_be_lost() {
    if !skip::have_tool("vtysh", "frr") {
        return;
    }
    let Some(mut stage) = Stage::new("annkill", None) else { return };
    let news = stage.region.names.dir().join("routes.log");
    let monitor = Ends(stage.region.ns("net").spawn(&["ip", "monitor", "route"], &news).unwrap());

    // Killed, held, started again: nobody hears of it.
    let stream = Stream::start(&stage.region).rest(Duration::from_millis(500));
    stage.kill_first();
    let stream = stream.rest(Duration::from_secs(2));
    assert_eq!(stage.paths(), [2, 2]);
    stage.region.start_node().unwrap();
    wait_long("the new daemon sees to it", || stage.state(&format!("{VTEP4}/32")).filter(|(s, _)| s == "announced"));
    stream.rest(Duration::from_secs(1)).lost_nothing("a daemon is killed and started again");
    let heard = std::fs::read_to_string(&news).unwrap();
    assert!(!heard.contains(&VTEP4.to_string()) && !heard.contains(&VTEP6.to_string()), "it flapped: {heard}");
    drop(monitor);

    // The program is off its port, and the daemon cannot say so.
    stage.kill_first();
    let pins = PathBuf::from("/sys/fs/bpf/tunny").join(stage.region.names.instance());
    for entry in std::fs::read_dir(&pins).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("link-") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    stage.second_alone();
    assert_eq!(stage.kernel(), "");
    stage.region.start_node().unwrap();
    stage.both();
    let events = stage.events();
    assert!(events.contains("has no program") && events.contains("watchdog"), "{events}");

    // The port goes down: FRR's session does too, and the routes are not there when it comes up again.
    stage.kill_first();
    // Else its IPv6 address goes with the link.
    stage.region.ns("net").sysctl(&[("net.ipv6.conf.to-gw0.keep_addr_on_down", "1")]).unwrap();
    run(&stage.region.ns("net"), "ip link set to-gw0 down");
    wait_long("the routes are gone", || stage.kernel().is_empty().then_some(()));
    run(&stage.region.ns("net"), "ip link set to-gw0 up");
    stage.region.start_node().unwrap();
    stage.both();
    assert!(stage.events().contains("no port is up: up0"));

    // Held for two seconds, then marked, then gone.
    configure(&stage.region, "state: on, grace: 1, hold: 2");
    stage.warm();
    let stream = Stream::start(&stage.region).rest(Duration::from_millis(500));
    stage.kill_first();
    let marked = |metric: &str| stage.kernel().contains(metric);
    wait_long("marked", || (marked("metric 8401") && !marked("metric 8400")).then_some(()));
    stage.second_alone();
    wait_long("gone", || stage.kernel().is_empty().then_some(()));
    stream.rest(Duration::from_millis(500)).lost_nothing("a dead daemon is held, and its node given up");
    stage.region.start_node().unwrap();
    stage.both();
    assert!(stage.events().contains("of spec.announce.hold"));

    // Without a watchdog nothing is withdrawn, and status says so while there is a daemon.
    stage.watchdog = None;
    wait_long("a warning", || {
        stage.region.tunny(&["get", "status"]).contains("no `tunny watchdog` runs").then_some(())
    });
    stage.kill_first();
    std::thread::sleep(Duration::from_secs(4));
    assert!(stage.kernel().contains("metric 8400"));
    // Uninstalled, it leaves nothing behind.
    let instance = stage.region.names.instance();
    let socket = lab::node::socket(&stage.region.names).display().to_string();
    run(
        &stage.region.ns("gw"),
        &format!("{} --instance {instance} --socket {socket} node --uninstall", env!("CARGO_BIN_EXE_tunny")),
    );
    assert_eq!(stage.kernel(), "");
}

/// Milliseconds between two of BFD's packets. 50 is what one would configure; a machine that does much else misses three in a row.
fn interval() -> u32 {
    std::env::var("TUNNY_BFD_MS").map_or(300, |ms| ms.parse().unwrap())
}

/// The second node is gone from one instant to the next, with its link up. How long its flows are lost is printed: BFD's three intervals and what
/// follows.
#[test]
fn a_node_that_vanishes_is_left_by_bfd() {
    if !skip::have_tool("vtysh", "frr") {
        return;
    }
    let Some(stage) = Stage::new("anngone", Some(interval())) else { return };
    wait_long("BFD", || (stage.frr[0].show("bfdd", "show bfd peers brief").matches(" up").count() == 4).then_some(()));
    stage.warm();
    let stream = Stream::start(&stage.region).rest(Duration::from_secs(1));
    let gone = inside(&stage.region.ns("net"), || {
        let port = nix::net::if_::if_nametoindex("to-gwb").unwrap();
        let drop = xdp::IngressDrop::new().unwrap();
        drop.attach(abi::IfIndex(port)).unwrap();
        drop
    });
    let _program = gone.join().unwrap();
    wait_long("the first node alone", || {
        (stage.paths() == [1, 1] && stage.route(&VTEP4.to_string()).contains(&uplink().node4().to_string()))
            .then_some(())
    });
    let (sent, came) = stream.rest(Duration::from_secs(1)).numbers();
    let lost: Vec<u64> = (0..sent).filter(|n| !came.contains(n)).collect();
    let (first, last) = (lost.first().expect("it served some flows"), lost.last().unwrap());
    let outage = Duration::from_micros((last - first + 1) * 1_000_000 / RATE);
    eprintln!("a node vanishes: {} of {sent} datagrams lost, for {outage:?}", lost.len());
    assert!(outage < Duration::from_secs(10) && *last < sent - RATE / 2, "{outage:?}");
    // Only flows of the node that went lose packets.
    let flows: BTreeSet<u64> = lost.iter().filter(|n| **n > first + RATE / 100).map(|n| n % FLOWS as u64).collect();
    assert!(flows.len() < FLOWS, "{flows:?}");
}
