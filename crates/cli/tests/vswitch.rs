// SPDX-License-Identifier: Apache-2.0
//! Hosts of VMs that run a node as their switch, and one that is a plain Linux VTEP, in network namespaces: two VMs on the first host, one on
//! the second, one behind Linux. The VMs of the first two know nothing: udhcpc asks for what they are. Without root it says so and passes.

mod region;

use lab::shell::Namespace;
use lab::traffic;
use node::client::Client;
use region::wait;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command};

const UNDERLAY: &str = "198.19.88";
const MTU: u32 = 1600;
const VNI: u32 = 100;
const BUSYBOX: &str = "/usr/bin/busybox";

/// What udhcpc does with what it was told.
const SCRIPT: &str = "#!/bin/sh
[ \"$1\" = bound ] || exit 0
ip addr replace $ip/$mask dev $interface
ip link set dev $interface mtu $mtu
ip route replace default via $router
";

/// VPC, hosts and VMs, as all nodes have them.
const DOCUMENTS: &str = "
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: blue}, spec: {vni: 100, gateway: {mac: '02:00:00:00:64:01', addresses: [10.0.0.1]}}}
---
{apiVersion: tunny/v1, kind: Route, spec: {vpc: blue, prefix: 10.0.0.0/24, scope: local}}
---
{apiVersion: tunny/v1, kind: Nc, metadata: {name: one}, spec: {address: 198.19.88.11}}
---
{apiVersion: tunny/v1, kind: Nc, metadata: {name: two}, spec: {address: 198.19.88.12}}
---
{apiVersion: tunny/v1, kind: Nc, metadata: {name: linux}, spec: {address: 198.19.88.13}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: vm1}, spec: {vpc: blue, addresses: [10.0.0.21], mac: '02:00:00:00:00:21', nc: one}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: vm2}, spec: {vpc: blue, addresses: [10.0.0.22], mac: '02:00:00:00:00:22', nc: one}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: vm3}, spec: {vpc: blue, addresses: [10.0.0.23], mac: '02:00:00:00:00:23', nc: two}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: vm4}, spec: {vpc: blue, addresses: [10.0.0.24], mac: '02:00:00:00:00:24', nc: linux}}
";

/// A namespace that goes with the test.
struct Space(Namespace);

impl Space {
    fn new(name: &str) -> Space {
        let space = Space(Namespace(format!("tvs-{name}-{}", std::process::id())));
        lab::shell::run(&format!("ip netns add {}", space.0 .0)).unwrap();
        space.run("ip link set lo up");
        space
            .0
            .sysctl(&[("net.ipv6.conf.all.disable_ipv6", "1"), ("net.ipv6.conf.default.disable_ipv6", "1")])
            .unwrap();
        space
    }

    fn run(&self, line: &str) -> String {
        self.0.run(line).unwrap_or_else(|e| panic!("{line}: {e}"))
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = lab::shell::run(&format!("ip netns del {}", self.0 .0));
    }
}

/// A host on the underlay, by a cable to its bridge.
fn host(net: &Space, number: u8) -> Space {
    let host = Space::new(&format!("h{number}"));
    host.run(&format!("ip link add up0 mtu {MTU} type veth peer name to{number} netns {}", net.0 .0));
    net.run(&format!("ip link set dev to{number} mtu {MTU} master br0 up"));
    // On veth GRO starts the receiving NAPI context, without which the kernel drops what an XDP program sends.
    net.run(&format!("ethtool -K to{number} tx off gro on"));
    host.run(&format!("ip addr add {UNDERLAY}.{number}/24 dev up0"));
    host.run("ip link set up0 up");
    host
}

/// A VM behind a host's interface `vpN`; what it is it has to find out.
fn vm(host: &Space, number: u8) -> Space {
    let vm = Space::new(&format!("vm{number}"));
    host.run(&format!("ip link add vp{number} type veth peer name eth0 netns {}", vm.0 .0));
    host.run(&format!("ip link set vp{number} up"));
    vm.run(&format!("ip link set dev eth0 address 02:00:00:00:00:2{number} up"));
    vm.run("ethtool -K eth0 tx off gro on");
    vm
}

/// A node that runs on a host.
struct Switch {
    node: Child,
    socket: PathBuf,
    instance: String,
    dir: tempfile::TempDir,
}

impl Switch {
    fn start(host: &Space, number: u8, engine: &str, documents: &str) -> Switch {
        let dir = tempfile::tempdir().unwrap();
        let at = |file: &str| dir.path().join(file).display().to_string();
        let (state, config, socket, instance) = (at("state"), at("node.yaml"), at("node.sock"), host.0 .0.clone());
        let gateway = format!(
            "{{apiVersion: tunny/v1, kind: Gateway, metadata: {{name: h{number}}}, spec: {{vtep: {{ipv4: {UNDERLAY}.{number}}}, uplinks: [up0], vms: here, engine: {engine}}}}}"
        );
        std::fs::write(&config, format!("{DOCUMENTS}---\n{gateway}\n---\n{documents}")).unwrap();
        let tunny = env!("CARGO_BIN_EXE_tunny");
        let argv = ["node", "--instance", &instance, "--socket", &socket, "--state", &state, "--config", &config];
        let argv: Vec<&str> = [&[tunny][..], &argv, &["--flow-cache", "4"]].concat();
        let node = host.0.spawn(&argv, &dir.path().join("node.log")).unwrap();
        let switch = Switch { node, socket: socket.into(), instance, dir };
        wait("the node", || switch.try_tunny(&["get", "status"]));
        switch
    }

    fn try_tunny(&self, args: &[&str]) -> Option<String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tunny"));
        let out = command.arg("--socket").arg(&self.socket).args(args).output().unwrap();
        out.status.success().then(|| String::from_utf8(out.stdout).unwrap())
    }

    fn apply(&self, documents: &str) {
        let file = self.dir.path().join("change.yaml");
        std::fs::write(&file, documents).unwrap();
        let said = Command::new(env!("CARGO_BIN_EXE_tunny"))
            .arg("--socket")
            .arg(&self.socket)
            .args(["apply", "--yes"])
            .arg(file)
            .output()
            .unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    }

    fn counters(&self) -> Value {
        Client::new(&self.socket).unwrap().get("/v1/counters").unwrap()
    }

    fn forwarded(&self) -> u64 {
        self.counters()["total"]["forwarded"].as_u64().unwrap()
    }

    fn drops(&self, reason: &str) -> u64 {
        self.counters()["total"]["drops"][reason].as_u64().unwrap_or(0)
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.node.kill();
        let _ = self.node.wait();
        if std::thread::panicking() {
            eprintln!("{}: {}", self.instance, lab::node::tail(&self.dir.path().join("node.log")));
        }
        let _ = std::fs::remove_dir_all(format!("/sys/fs/bpf/tunny/{}", self.instance));
    }
}

fn port(number: u8) -> String {
    format!("{{apiVersion: tunny/v1, kind: VmPort, metadata: {{name: port{number}}}, spec: {{interface: vp{number}, vm: vm{number}}}}}\n")
}

/// A VM behind a bridge and a VXLAN device of the kernel, whose gateway is the first host.
fn linux(net: &Space) -> (Space, Space) {
    let (host, vm) = (host(net, 13), Space::new("vm4"));
    host.run(&format!("ip link add vp4 type veth peer name eth0 netns {}", vm.0 .0));
    vm.run("ip link set dev eth0 address 02:00:00:00:00:24 mtu 1550 up");
    vm.run("ip addr add 10.0.0.24/24 dev eth0");
    let ends = [format!("{UNDERLAY}.13"), format!("{UNDERLAY}.11")].map(|a| a.parse().unwrap());
    let tunnel = vtep::Vtep { vni: VNI, local: ends[0], gateway: ends[1], underlay_mtu: MTU, zero_checksum: false };
    let port = vtep::Port { device: "vp4".into(), vni: VNI, mac: "02:00:00:00:00:24".into() };
    for step in vtep::host_steps(&[tunnel], &[port]) {
        host.0.run_argv(&step.argv).unwrap_or_else(|e| panic!("{e}"));
    }
    (host, vm)
}

/// Asks for an address, and returns the interface as it is then.
fn obtain(vm: &Space, script: &str) -> String {
    vm.run(&format!("{BUSYBOX} udhcpc -f -q -n -t 5 -T 1 -i eth0 -s {script}"));
    vm.run("ip addr show dev eth0") + &vm.run("ip route")
}

/// Three pings are answered; where a busy machine loses one, that is said, and three others must be.
fn reaches(from: &Space, to: &str, what: &str) {
    wait(what, || {
        let ping = traffic::ping(&from.0, to, 3, &["-i", "0.05"]).unwrap();
        let all = (ping.sent, ping.received) == (3, 3);
        assert!(ping.received == 0 || ping.output.contains("ttl=6"), "{what}: {}", ping.output);
        if !all {
            eprintln!("{what}: {}", ping.output);
        }
        all.then_some(())
    });
}

fn transfers(from: &Space, to: &Space, address: &str, what: &str) {
    let mut server = to.0.spawn(&["iperf3", "-s", "-1"], std::path::Path::new("/dev/null")).unwrap();
    let sent = wait(what, || traffic::tcp(&from.0, address, 1).ok().filter(|t| t.error.is_none()));
    let _ = server.kill();
    let _ = server.wait();
    println!("{what}: {:.2} Gbit/s", sent.bps / 1e9);
    assert!(sent.bytes > 1 << 20, "{what}: {sent:?}");
}

fn hosts_switch(engine: &str) {
    let net = Space::new("net");
    net.run("ip link add br0 type bridge stp_state 0");
    net.run(&format!("ip link set dev br0 mtu {MTU} up"));
    let (one, two) = (host(&net, 11), host(&net, 12));
    let vms = [vm(&one, 1), vm(&one, 2), vm(&two, 3)];
    let (_linux, vm4) = linux(&net);
    let first = Switch::start(&one, 11, engine, &format!("{}---\n{}", port(1), port(2)));
    let second = Switch::start(&two, 12, engine, &port(3));

    let script = first.dir.path().join("bound");
    std::fs::write(&script, SCRIPT).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    for (vm, number) in vms.iter().zip(1..) {
        let is = obtain(vm, &script.display().to_string());
        for part in [format!("10.0.0.2{number}/24"), "mtu 1500".into(), "default via 10.0.0.1".into()] {
            assert!(is.contains(&part), "{part}: {is}");
        }
    }

    // On one host nothing leaves it; to another one it goes there, and so does Linux's.
    let before = second.forwarded();
    reaches(&vms[0], "10.0.0.22", "on one host");
    reaches(&vms[0], "10.0.0.1", "the gateway");
    transfers(&vms[0], &vms[1], "10.0.0.22", "TCP on one host");
    assert_eq!(second.forwarded(), before);
    reaches(&vms[0], "10.0.0.23", "on two hosts");
    transfers(&vms[0], &vms[2], "10.0.0.23", "TCP on two hosts");
    assert!(second.forwarded() > before);
    reaches(&vm4, "10.0.0.21", "from Linux");
    reaches(&vms[1], "10.0.0.24", "to Linux");
    reaches(&vms[2], "10.0.0.24", "to Linux from the second host");
    transfers(&vm4, &vms[0], "10.0.0.21", "TCP from Linux");

    spoofed(&vms, &first, &second);
    refused(&vms, &first, &second);

    // A port that is taken away is nobody's; what its VM sends is left to the host, which has nothing to do with it.
    assert!(first.try_tunny(&["delete", "--yes", "vmport/port2"]).is_some());
    let ping = traffic::ping(&vms[0].0, "10.0.0.22", 2, &["-i", "0.05"]).unwrap();
    assert_eq!(ping.received, 0, "{}", ping.output);
    assert!(first.drops("vm_port_none") >= 2);
    first.apply(&port(2));
    reaches(&vms[0], "10.0.0.22", "attached again");
    for switch in [&first, &second] {
        assert_eq!(switch.counters()["balance"]["balanced"], Value::Bool(true), "{}", switch.counters());
    }
}

/// Another's address, and another's MAC address.
fn spoofed(vms: &[Space; 3], first: &Switch, second: &Switch) {
    let before = second.forwarded();
    vms[0].run("ip addr add 10.0.0.22/32 dev eth0");
    vms[0].run("ip neigh replace 10.0.0.23 lladdr 02:00:00:00:00:23 dev eth0");
    let ping = traffic::ping(&vms[0].0, "10.0.0.23", 3, &["-i", "0.05", "-I", "10.0.0.22"]).unwrap();
    assert_eq!(ping.received, 0, "{}", ping.output);
    assert!(first.drops("vm_port_source") >= 3, "{}", first.counters());
    vms[0].run("ip addr del 10.0.0.22/32 dev eth0");
    vms[0].run("ip link set dev eth0 address 02:00:00:00:00:99");
    vms[0].run("ip neigh replace 10.0.0.23 lladdr 02:00:00:00:00:23 dev eth0");
    let ping = traffic::ping(&vms[0].0, "10.0.0.23", 3, &["-i", "0.05"]).unwrap();
    assert_eq!(ping.received, 0, "{}", ping.output);
    assert!(first.drops("vm_port_mac") >= 3, "{}", first.counters());
    assert_eq!(second.forwarded(), before, "nothing of it has left the host");
    vms[0].run("ip link set dev eth0 address 02:00:00:00:00:21");
    vms[0].run("ip neigh flush dev eth0");
    vms[0].run("ip route replace default via 10.0.0.1");
    reaches(&vms[0], "10.0.0.23", "with its own again");
}

/// A group that lets the first VM reach the second one and nobody else: what it refuses ends at the source.
fn refused(vms: &[Space; 3], first: &Switch, second: &Switch) {
    let group = "
{apiVersion: tunny/v1, kind: SecurityGroup, metadata: {name: quiet}, spec: {rules: [egress allow any 10.0.0.22/32, ingress allow any any]}}
---
{apiVersion: tunny/v1, kind: SecurityBinding, metadata: {name: quiet}, spec: {vpc: blue, vms: [vm1], groups: [quiet]}}
";
    first.apply(group);
    let (before, denied) = (second.forwarded(), first.drops("filter_egress"));
    let ping = traffic::ping(&vms[0].0, "10.0.0.23", 3, &["-i", "0.05"]).unwrap();
    assert_eq!(ping.received, 0, "{}", ping.output);
    assert!(first.drops("filter_egress") >= denied + 3, "{}", first.counters());
    assert_eq!(second.forwarded(), before, "it ends at the source's host");
    reaches(&vms[0], "10.0.0.22", "what the group allows");
    transfers(&vms[0], &vms[1], "10.0.0.22", "TCP that a group allows");
    assert!(first.try_tunny(&["delete", "--yes", "securitybinding/quiet"]).is_some());
    reaches(&vms[0], "10.0.0.23", "without the group");
}

#[test]
fn hosts_switch_their_vms_packets_in_each_engine() {
    if !skip::have_root("to make network namespaces") {
        return;
    }
    for engine in ["auto", "af_packet"] {
        println!("engine {engine}");
        hosts_switch(engine);
    }
}
