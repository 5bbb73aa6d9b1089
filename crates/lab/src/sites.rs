// SPDX-License-Identifier: Apache-2.0
//! Customers' sites of the demonstration: a node that is a provider edge, sites behind routers that speak Q-in-Q, and a host with a VM of each
//! customer. The edge is a node by itself, beside the clusters of the region.
//!
//! A customer's router (CE) is a namespace with two ports, between which a program of tc puts tags on and takes them off (`bpf/ce.bpf.c`):
//! the kernel need not know VLAN devices. Both customers use the same tags and the same addresses. What a routing daemon would put into the customer's
//! namespace at the edge, this puts there by `ip route`. Beside them a host that joins the first customer's VPC by EVPN alone: it has FRR, and the
//! edge a gobgpd.

use crate::demo::Row;
use crate::fabric::{self, GOBGP_API};
use crate::internet::{Place, Trial};
use crate::node::{self, Node};
use crate::plan::{Names, Segment, Vm};
use crate::progress::Progress;
use crate::region::{self, Shape};
use crate::shell::{self, Namespace};
use crate::{traffic, Lab, LabError};
use std::fmt::Write;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};
use vtep::{port_steps, vtep_steps, Port, Vtep};

/// Where the edge is, and the host with the customers' VMs.
const EDGE: Segment = Segment(70);
const HOST: Segment = Segment(71);
/// The host that joins by EVPN, and its address in the first customer's VPC.
const EVPN_HOST: Segment = Segment(72);
const EVPN_ADDRESS: &str = "10.0.0.50";
/// The edge's tunnel address.
const VTEP: &str = "198.18.3.1";
/// A host of either site.
const SITE: &str = "10.9.0.5";
/// What is behind the lines, as the routers announce it.
const SITES: &str = "10.9.0.0/24";
/// Address of both VMs.
const VM: &str = "10.0.0.11";
const GATEWAY: &str = "10.0.0.1";
/// Numbers of a router's ports, which its program has, too.
const PORTS: [(&str, u32); 2] = [("lan", 100), ("line", 101)];
/// Tags of all lines.
const TAGS: &str = "customer: 100, overlay: 7";
/// What the second customer's site gets, Mbit/s, in the row about it.
const SHAPED: u32 = 20;
/// How long what must come may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A customer: the name of the VPC, of its site and of its VM.
struct Customer {
    vpc: &'static str,
    vni: u32,
    site: &'static str,
    vm: Vm,
}

const CUSTOMERS: [Customer; 2] = [
    Customer { vpc: "shop", vni: 400, site: "site-shop", vm: vm("shop-1", "shop", "02:00:00:01:90:11") },
    Customer { vpc: "mill", vni: 500, site: "site-mill", vm: vm("mill-1", "mill", "02:00:00:01:f4:11") },
];

const fn vm(name: &'static str, vpc: &'static str, mac: &'static str) -> Vm {
    Vm { name, vpc, host: 0, v4: (VM, GATEWAY), v6: ("fd10:0:0:9::11", "fd10:0:0:9::1"), mac }
}

/// A line: the port at the edge, the customer, and which of his lines it is.
struct Line {
    port: u8,
    customer: usize,
    line: u8,
}

/// The first customer has two.
const LINES: [Line; 3] = [
    Line { port: 0, customer: 0, line: 0 },
    Line { port: 1, customer: 1, line: 0 },
    Line { port: 2, customer: 0, line: 1 },
];

impl Line {
    fn of(&self) -> &'static Customer {
        &CUSTOMERS[self.customer]
    }
    /// The router's namespace.
    fn ce(&self) -> String {
        format!("ce{}", self.port)
    }
    /// MAC address of the site's host towards the router.
    fn mac(&self) -> String {
        format!("02:00:00:00:ce:{:02x}", self.port)
    }
    /// The router's address on the circuit, and the gateway's is one below.
    fn router(&self) -> String {
        format!("169.254.{}.2", self.port)
    }
    /// The namespace of the customer at the edge.
    fn space(&self, names: &Names) -> Namespace {
        names.namespace(&format!("pe-{}", self.of().vpc))
    }
    /// Tells the edge what is behind the line, as a routing daemon would.
    fn announce(&self, names: &Names) -> Result<(), LabError> {
        let (router, line, metric) = (self.router(), self.line, 10 + u32::from(self.line));
        let command = format!("ip route replace {SITES} via {router} dev line{line} metric {metric}");
        self.space(names).run(&command).map(drop)
    }
}

/// Namespaces beside those of the lab.
pub(crate) fn namespaces(names: &Names) -> Vec<Namespace> {
    let own = ["pe", "nc-c", "nc-evpn"].map(String::from).into_iter().chain(LINES.iter().map(Line::ce));
    let customers = CUSTOMERS.iter().flat_map(|c| [c.site.into(), c.vm.name.into(), format!("pe-{}", c.vpc)]);
    own.chain(customers).map(|n| names.namespace(&n)).collect()
}

/// The edge's documents; `shape` is what the second customer's site gets.
fn documents(names: &Names, engine: &str, shape: Option<u32>) -> String {
    let mut y = format!(
        "# SPDX-License-Identifier: Apache-2.0\n# Written by `tunny-lab lab demo`; see crates/lab/src/sites.rs.\n\
         {{apiVersion: tunny/v1, kind: Gateway, metadata: {{name: pe}}, spec: {{vtep: {{ipv4: {VTEP}}}, uplinks: [up0], engine: {engine}, evpn: {{daemon: '{GOBGP_API}'}}}}}}\n"
    );
    let mut add = |kind: &str, name: &str, spec: String| {
        let name = if name.is_empty() { String::new() } else { format!("metadata: {{name: {name}}}, ") };
        let _ = writeln!(y, "---\n{{apiVersion: tunny/v1, kind: {kind}, {name}spec: {{{spec}}}}}");
    };
    add("Nc", "nc-c", format!("address: {}", HOST.node4()));
    for c in &CUSTOMERS {
        let mac = format!("02:00:00:00:{:02x}:01", c.vni / 100);
        add("Vpc", c.vpc, format!("vni: {}, gateway: {{mac: '{mac}', addresses: [{GATEWAY}]}}", c.vni));
        add("Route", "", format!("vpc: {}, prefix: 10.0.0.0/24, scope: local", c.vpc));
        add("Vm", c.vm.name, format!("vpc: {}, addresses: [{VM}], mac: '{}', nc: nc-c", c.vpc, c.vm.mac));
    }
    // The targets that FRR takes by itself: its AS, and the VNI.
    let (vpc, target) = (CUSTOMERS[0].vpc, format!("'{}:{}'", fabric::AS, CUSTOMERS[0].vni));
    add("EvpnInstance", vpc, format!("vpc: {vpc}, import: [{target}], export: [{target}]"));
    for l in &LINES {
        let (n, vpc, line, mac) = (l.port, l.of().vpc, l.line, l.mac());
        add("EdgePort", &format!("port{n}"), format!("interface: edge{n}, number: {n}"));
        let shape = match shape {
            Some(rate) if l.customer == 1 => format!(", shape: {{rate: {rate}Mbit, waiting: {{time: 2000}}}}"),
            _ => String::new(),
        };
        let routing = format!("routing: {{namespace: {}, address: 169.254.{n}.1/30}}", l.space(names).0);
        let spec = format!("vpc: {vpc}, port: port{n}, {TAGS}, line: {line}, mac: '{mac}', {routing}{shape}");
        add("Overlay", &format!("{vpc}-{line}"), spec);
    }
    y
}

/// A veth pair between two namespaces, both ends up. Ends that tunny's packets come to take what XDP sends (`gro on`), and what they send is as on a wire.
fn veth((a, dev_a, index_a): (&Namespace, &str, u32), (b, dev_b): (&Namespace, &str)) -> Result<(), LabError> {
    let index = if index_a > 0 { format!("index {index_a}") } else { String::new() };
    shell::run(&format!("ip link add {dev_a} netns {} {index} type veth peer name {dev_b} netns {}", a.0, b.0))?;
    for (ns, dev) in [(a, dev_a), (b, dev_b)] {
        ns.sysctl(&[(&format!("net.ipv6.conf.{dev}.disable_ipv6"), "1")])?;
        ns.run(&format!("ip link set {dev} up"))?;
    }
    a.run(&format!("ethtool -K {dev_a} tx off gro on")).map(drop)
}

/// The router of a line, and its site's port.
fn build_line(names: &Names, line: &Line, program: &str) -> Result<(), LabError> {
    let (ce, pe, site) = (names.namespace(&line.ce()), names.namespace("pe"), names.namespace(line.of().site));
    let port = format!("eth{}", line.line);
    veth((&ce, "line", PORTS[1].1), (&pe, &format!("edge{}", line.port)))?;
    veth((&ce, "lan", PORTS[0].1), (&site, &port))?;
    // The tags go into the frame, not beside it, where an XDP program would not see them.
    ce.run("ethtool -K line tx-vlan-hw-insert off tx-vlan-stag-hw-insert off")?;
    for (dev, _) in PORTS {
        ce.run(&format!("tc qdisc add dev {dev} clsact"))?;
        ce.run(&format!("tc filter add dev {dev} ingress bpf direct-action object-file {program} section {dev}"))?;
    }
    site.run(&format!("ethtool -K {port} tx off"))?;
    site.run(&format!("ip link set {port} address {} mtu {}", line.mac(), 1500 - crate::plan::INNER_OVERHEAD))?;
    site.run(&format!("ip route add {VM}/32 dev {port} src {SITE} metric {}", 10 + u32::from(line.line))).map(drop)
}

/// All that is in the namespaces but programs.
fn build(shape: &Shape) -> Result<(), LabError> {
    let names = &shape.names;
    let [net, pe, host, evpn] = ["net", "pe", "nc-c", "nc-evpn"].map(|ns| names.namespace(ns));
    for (ns, segment, router_dev, dev) in
        [(&pe, EDGE, "to-pe", "up0"), (&host, HOST, "to-c", "uplink"), (&evpn, EVPN_HOST, "to-evpn", "uplink")]
    {
        region::cable(shape, segment, router_dev, ns, dev)?;
        // Not a default route: FRR takes none for the way to a next hop.
        for to in ["172.31.0.0/16", "198.18.0.0/16"] {
            ns.run(&format!("ip route add {to} via {}", segment.router4()))?;
        }
    }
    let (vtep, address) = (EVPN_HOST.node4().to_string(), format!("{EVPN_ADDRESS}/24"));
    for line in fabric::evpn_devices(CUSTOMERS[0].vni, &vtep, &[&address]) {
        evpn.run(&line)?;
    }
    net.run("ethtool -K to-pe tx off gro on")?;
    net.run(&format!("ip route add {VTEP}/32 via {}", EDGE.node4()))?;
    pe.sysctl(&[("net.ipv4.conf.all.rp_filter", "0"), ("net.ipv4.conf.default.rp_filter", "0")])?;
    pe.run(&format!("ip addr add {VTEP}/32 dev lo"))?;
    for c in &CUSTOMERS {
        let gateway = VTEP.parse().expect("an address");
        let (vni, local, underlay_mtu) = (c.vni, HOST.node4().into(), shape.mtu);
        region::run_steps(&host, vtep_steps(&Vtep { vni, local, gateway, underlay_mtu, zero_checksum: false }))?;
        let device = region::plug_vm(shape, &c.vm, &host)?;
        region::run_steps(&host, port_steps(&Port { device, vni, mac: c.vm.mac.into() }))?;
        let site = names.namespace(c.site);
        site.run(&format!("ip addr add {SITE}/32 dev lo"))?;
        // A line that is down is no way.
        site.sysctl(&[("net.ipv4.conf.all.ignore_routes_with_linkdown", "1"), ("net.ipv4.conf.all.rp_filter", "0")])?;
    }
    let program = names.write("ce.bpf.o", include_bytes!(concat!(env!("OUT_DIR"), "/ce.bpf.o")))?;
    LINES.iter().try_for_each(|line| build_line(names, line, &program))
}

/// Sites, lines and the edge, of a lab that is up.
pub(crate) struct Sites {
    node: Node,
    engine: String,
}

impl Sites {
    /// Builds all of it and starts the edge.
    pub(crate) fn up(lab: &mut Lab, progress: &Progress) -> Result<Sites, LabError> {
        progress.step("customers' sites behind a provider edge");
        build(&lab.shape)?;
        let names = lab.shape.names.clone();
        for ns in CUSTOMERS.iter().flat_map(|c| [c.site, c.vm.name]).chain(["nc-evpn"]) {
            lab.background(ns, &format!("iperf3 server of {ns}"), &["iperf3", "-s"])?;
        }
        let engine = lab.options.engine.clone();
        names.write("pe.yaml", documents(&names, &engine, None))?;
        start_daemons(lab)?;
        let node = lab.start(&node::Place::provider_edge(&names))?;
        lab.check_engine(&node, 1 + LINES.len())?;
        LINES.iter().try_for_each(|line| line.announce(&names))?;
        let sites = Sites { node, engine };
        for c in &CUSTOMERS {
            let ns = names.namespace(c.vm.name);
            wait(&format!("{} reaches its site", c.vm.name), || Ok(traffic::ping(&ns, SITE, 1, &[])?.received == 1))?;
        }
        Ok(sites)
    }

    /// All rows about sites.
    pub(crate) fn run(&self, lab: &Lab, seconds: u32, progress: &Progress) -> Result<Vec<Row>, LabError> {
        let at = Place { lab, nodes: std::slice::from_ref(&self.node), seconds };
        progress.step("traffic: a site behind a router that speaks Q-in-Q");
        let mut rows = Vec::new();
        for (what, from, to) in
            [("site by Q-in-Q, from a VM", "shop-1", SITE), ("site by Q-in-Q, to a VM", "site-shop", VM)]
        {
            let mut t = Trial::new(at, what, format!("{from} → {to}"), false)?;
            let traffic = t.traffic(from, to, 5201)?;
            rows.push(t.row(Some(traffic))?);
        }
        progress.step("traffic: two customers with the same tags and addresses");
        rows.push(apart(at)?);
        progress.step("traffic: a host that joined by EVPN");
        rows.push(joined(at)?);
        progress.step("traffic: a line fails");
        rows.push(failover(at)?);
        progress.step("traffic: a shaped customer");
        rows.push(self.shaped(at)?);
        Ok(rows)
    }

    /// Applies the edge's documents anew.
    fn shape(&self, lab: &Lab, shape: Option<u32>) -> Result<(), LabError> {
        let names = &lab.shape.names;
        let file = names.write("pe.yaml", documents(names, &self.engine, shape))?;
        let instance = node::Place::provider_edge(names).instance;
        let tunny = lab.options.tunny.display().to_string();
        names.namespace("pe").run_argv(&[&tunny, "--instance", &instance, "apply", &file, "--yes"]).map(drop)
    }

    /// What goes to the second customer's site keeps to its rate, and the first one's does not.
    fn shaped(&self, at: Place<'_>) -> Result<Row, LabError> {
        self.shape(at.lab, Some(SHAPED))?;
        let path = format!("mill-1 → its site, shaped to {SHAPED} Mbit/s; shop-1 → its site, beside it");
        let mut t = Trial::new(at, "a customer shaped", path, false)?;
        let [shop, mill] = CUSTOMERS.each_ref().map(|c| t.ns(c.vm.name));
        // Long enough that what waits at the end is little beside what went.
        let slow = std::thread::spawn(move || traffic::tcp(&mill, SITE, 5));
        let free = traffic::tcp(&shop, SITE, at.seconds)?;
        let slow = slow.join().unwrap_or_else(|_| Err(LabError::Node("the traffic failed".into())))?;
        let [free, slow] = [free.bps / 1e6, slow.bps / 1e6];
        t.note(&format!("\n{slow:.1} Mbit/s of TCP payload, {free:.0} beside it"));
        let rate = f64::from(SHAPED);
        t.expect((0.5 * rate..=rate).contains(&slow), || format!("{slow:.1} Mbit/s"));
        t.expect(free > 2.0 * rate, || format!("{free:.1} Mbit/s beside it"));
        let row = t.row(None)?;
        self.shape(at.lab, None)?;
        Ok(row)
    }
}

fn wait(what: &str, mut is: impl FnMut() -> Result<bool, LabError>) -> Result<(), LabError> {
    let begun = Instant::now();
    while !is()? {
        crate::interrupt::check()?;
        if begun.elapsed() > PATIENCE {
            return Err(LabError::Node(format!("after {} s still not: {what}", PATIENCE.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Echo requests that a kernel has got.
fn heard(ns: &Namespace) -> Result<u64, LabError> {
    traffic::snmp(ns, "Icmp", "InEchos")
}

/// The edge's gobgpd, and FRR of the host that joins by EVPN.
fn start_daemons(lab: &mut Lab) -> Result<(), LabError> {
    let names = lab.shape.names.clone();
    let (vtep, frr) = (EVPN_HOST.node4().to_string(), names.dir().join("frr"));
    let config = names.write("gobgpd.toml", fabric::gobgpd(VTEP, &[&vtep]))?;
    let everybody = Permissions::from_mode(0o777);
    std::fs::create_dir_all(&frr)
        .and_then(|()| std::fs::set_permissions(&frr, everybody))
        .map_err(|source| LabError::File { path: frr.clone(), source })?;
    names.write("frr/frr.conf", fabric::evpn_host(&vtep, VTEP))?;
    lab.begin("pe", "gobgpd of the edge", &fabric::gobgpd_command(Path::new(&config)))?;
    lab.begin("nc-evpn", "zebra of the EVPN host", &fabric::frr_command(&frr, "zebra"))?;
    wait("zebra", || Ok(frr.join("zserv").exists()))?;
    lab.begin("nc-evpn", "bgpd of the EVPN host", &fabric::frr_command(&frr, "bgpd")).map(drop)
}

/// A VM and a host that has FRR, of which nothing is configured by hand on either side.
fn joined(at: Place<'_>) -> Result<Row, LabError> {
    let path = format!("shop-1 → {EVPN_ADDRESS} on a Linux host with FRR");
    let mut t = Trial::new(at, "a host that joined by EVPN alone", path, false)?;
    let ns = t.ns("shop-1");
    wait("shop-1 reaches the host that joins by EVPN", || Ok(traffic::ping(&ns, EVPN_ADDRESS, 1, &[])?.received == 1))?;
    let traffic = t.traffic("shop-1", EVPN_ADDRESS, 5201)?;
    t.row(Some(traffic))
}

/// Each VM reaches its own site, each site its own VM, and nobody else's.
fn apart(at: Place<'_>) -> Result<Row, LabError> {
    let path = format!("shop-1, mill-1 ({VM}) ↔ their sites ({SITE})");
    let mut t = Trial::new(at, "two customers, same tags and addresses", path, false)?;
    for (own, other) in [(0, 1), (1, 0)] {
        let [own, other] = [&CUSTOMERS[own], &CUSTOMERS[other]];
        for (from, to, mine, others) in
            [(own.vm.name, SITE, own.site, other.site), (own.site, VM, own.vm.name, other.vm.name)]
        {
            let (mine, others) = (t.ns(mine), t.ns(others));
            let before = [heard(&mine)?, heard(&others)?];
            let ping = traffic::ping(&t.ns(from), to, crate::demo::PINGS, &[])?;
            let came = [heard(&mine)? - before[0], heard(&others)? - before[1]];
            t.expect(ping.received == ping.sent, || format!("{from}: {} of {} answered", ping.received, ping.sent));
            t.expect(came == [u64::from(ping.sent), 0], || format!("{from}: {came:?} came to its own and the other's"));
        }
    }
    t.row(None)
}

/// The first line of a customer goes down under pings, and the second takes over.
fn failover(at: Place<'_>) -> Result<Row, LabError> {
    let path = "shop-1 → its site, whose first line goes down".to_string();
    let mut t = Trial::new(at, "a line fails, a second takes over", path, false)?;
    let (vm, ce) = (t.ns("shop-1"), t.ns(&LINES[0].ce()));
    let names = &at.lab.shape.names;
    let stream = std::thread::spawn(move || traffic::ping(&vm, SITE, 400, &["-i", "0.01"]));
    std::thread::sleep(Duration::from_secs(1));
    // Its router loses the line, and takes the site's port down with it.
    for (dev, _) in PORTS {
        ce.run(&format!("ip link set {dev} down"))?;
    }
    let ping = stream.join().unwrap_or_else(|_| Err(LabError::Node("the traffic failed".into())))?;
    let lost = ping.sent.saturating_sub(ping.received);
    t.note(&format!("\n{lost} of {} pings, one each 10 ms, got no reply", ping.sent));
    // Seconds would be a timer; a lost carrier is seen at once.
    t.expect(ping.received > ping.sent / 2, || format!("only {} of {} pings", ping.received, ping.sent));
    let second = traffic::ping(&t.ns("shop-1"), SITE, 1, &[])?;
    t.expect(second.received == 1, || "nothing goes by the second line".into());
    for (dev, _) in PORTS {
        ce.run(&format!("ip link set {dev} up"))?;
    }
    LINES[0].announce(names)?;
    t.row(None)
}
