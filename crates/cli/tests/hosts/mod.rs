// SPDX-License-Identifier: Apache-2.0
//! Hosts of VMs in network namespaces, whose nodes are their switches, and one that is a plain Linux VTEP.
#![allow(dead_code)] // Each test file is a crate of its own and uses what it needs.

use crate::region::wait;
use lab::shell::Namespace;
use lab::traffic;
use node::client::Client;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Child, Command};

pub const UNDERLAY: &str = "198.19.88";
pub const MTU: u32 = 1600;
pub const VNI: u32 = 100;
pub const BUSYBOX: &str = "/usr/bin/busybox";

/// What udhcpc does with what it was told.
pub const SCRIPT: &str = "#!/bin/sh
[ \"$1\" = bound ] || exit 0
ip addr replace $ip/$mask dev $interface
ip link set dev $interface mtu $mtu
ip route replace default via $router
";

/// VPC, hosts and VMs, as all nodes have them.
pub const DOCUMENTS: &str = "
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: blue}, spec: {vni: 100, gateway: {mac: '02:00:00:00:64:01', addresses: [10.0.0.1, 'fd00:64::1']}}}
---
{apiVersion: tunny/v1, kind: Route, spec: {vpc: blue, prefix: 10.0.0.0/24, scope: local}}
---
{apiVersion: tunny/v1, kind: Route, spec: {vpc: blue, prefix: 'fd00:64::/64', scope: local}}
---
{apiVersion: tunny/v1, kind: Nc, metadata: {name: one}, spec: {address: 198.19.88.11}}
---
{apiVersion: tunny/v1, kind: Nc, metadata: {name: two}, spec: {address: 198.19.88.12}}
---
{apiVersion: tunny/v1, kind: Nc, metadata: {name: linux}, spec: {address: 198.19.88.13}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: vm1}, spec: {vpc: blue, addresses: [10.0.0.21, 'fd00:64::21'], mac: '02:00:00:00:00:21', nc: one}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: vm2}, spec: {vpc: blue, addresses: [10.0.0.22], mac: '02:00:00:00:00:22', nc: one}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: vm3}, spec: {vpc: blue, addresses: [10.0.0.23, 'fd00:64::23'], mac: '02:00:00:00:00:23', nc: two}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: vm4}, spec: {vpc: blue, addresses: [10.0.0.24], mac: '02:00:00:00:00:24', nc: linux}}
";

/// A namespace that goes with the test.
pub struct Space(pub Namespace);

impl Space {
    pub fn new(name: &str) -> Space {
        let space = Space(Namespace(format!("tvs-{name}-{}", std::process::id())));
        lab::shell::run(&format!("ip netns add {}", space.0 .0)).unwrap();
        space.run("ip link set lo up");
        space
            .0
            .sysctl(&[("net.ipv6.conf.all.disable_ipv6", "1"), ("net.ipv6.conf.default.disable_ipv6", "1")])
            .unwrap();
        space
    }

    pub fn run(&self, line: &str) -> String {
        self.0.run(line).unwrap_or_else(|e| panic!("{line}: {e}"))
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = lab::shell::run(&format!("ip netns del {}", self.0 .0));
    }
}

/// A host on the underlay, by a cable to its bridge.
pub fn host(net: &Space, number: u8, engine: &str) -> Space {
    let host = Space::new(&format!("h{number}"));
    host.run(&format!("ip link add up0 mtu {MTU} type veth peer name to{number} netns {}", net.0 .0));
    net.run(&format!("ip link set dev to{number} mtu {MTU} master br0 up"));
    offloads(net, &format!("to{number}"), engine);
    host.run(&format!("ip addr add {UNDERLAY}.{number}/24 dev up0"));
    host.run("ip link set up0 up");
    host
}

/// XDP sees what a sender leaves to its driver as it is, so it must leave nothing. And on veth GRO starts the receiving NAPI context, without which
/// the kernel drops what an XDP program sends. Engine tc takes a sender as it is.
pub fn offloads(space: &Space, device: &str, engine: &str) {
    if engine != "tc" {
        space.run(&format!("ethtool -K {device} tx off gro on"));
    }
}

/// A VM behind a host's interface `vpN`; what it is it has to find out.
pub fn vm(host: &Space, number: u8, engine: &str) -> Space {
    let vm = Space::new(&format!("vm{number}"));
    host.run(&format!("ip link add vp{number} type veth peer name eth0 netns {}", vm.0 .0));
    host.run(&format!("ip link set vp{number} up"));
    vm.run(&format!("ip link set dev eth0 address 02:00:00:00:00:2{number} up"));
    offloads(&vm, "eth0", engine);
    vm
}

/// A node that runs on a host.
pub struct Switch {
    pub node: Child,
    argv: Vec<String>,
    pub socket: PathBuf,
    pub instance: String,
    pub dir: tempfile::TempDir,
}

impl Switch {
    pub fn start(host: &Space, number: u8, engine: &str, documents: &str) -> Switch {
        Switch::start_with(host, number, &format!("engine: {engine}"), documents)
    }

    /// The same with more fields of the Gateway's spec.
    pub fn start_with(host: &Space, number: u8, spec: &str, documents: &str) -> Switch {
        let dir = tempfile::tempdir().unwrap();
        let at = |file: &str| dir.path().join(file).display().to_string();
        let (state, config, socket, instance) = (at("state"), at("node.yaml"), at("node.sock"), host.0 .0.clone());
        let gateway = format!(
            "{{apiVersion: tunny/v1, kind: Gateway, metadata: {{name: h{number}}}, spec: {{vtep: {{ipv4: {UNDERLAY}.{number}}}, uplinks: [up0], vms: here, {spec}}}}}"
        );
        std::fs::write(&config, format!("{DOCUMENTS}---\n{gateway}\n---\n{documents}")).unwrap();
        let argv = ["node", "--instance", &instance, "--socket", &socket, "--state", &state, "--config", &config];
        let argv = [&argv[..], &["--flow-cache", "4"]].concat().into_iter().map(String::from).collect();
        Switch::run(host, argv, socket.into(), instance, dir)
    }

    fn run(host: &Space, argv: Vec<String>, socket: PathBuf, instance: String, dir: tempfile::TempDir) -> Switch {
        let tunny = [env!("CARGO_BIN_EXE_tunny")];
        let words: Vec<&str> = tunny.into_iter().chain(argv.iter().map(String::as_str)).collect();
        let node = host.0.spawn(&words, &dir.path().join("node.log")).unwrap();
        let switch = Switch { node, argv, socket, instance, dir };
        wait("the node", || switch.try_tunny(&["get", "status"]));
        switch
    }

    /// Kills the node and does something before the next one takes over.
    pub fn killed(&mut self, host: &Space, meanwhile: impl FnOnce()) {
        self.node.kill().unwrap();
        self.node.wait().unwrap();
        meanwhile();
        let words: Vec<&str> =
            [env!("CARGO_BIN_EXE_tunny")].into_iter().chain(self.argv.iter().map(String::as_str)).collect();
        self.node = host.0.spawn(&words, &self.dir.path().join("node.log")).unwrap();
        wait("the node again", || self.try_tunny(&["get", "status"]));
    }

    pub fn try_tunny(&self, args: &[&str]) -> Option<String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tunny"));
        let out = command.arg("--socket").arg(&self.socket).args(args).output().unwrap();
        out.status.success().then(|| String::from_utf8(out.stdout).unwrap())
    }

    pub fn apply(&self, documents: &str) {
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

    pub fn counters(&self) -> Value {
        Client::new(&self.socket).unwrap().get("/v1/counters").unwrap()
    }

    pub fn forwarded(&self) -> u64 {
        self.counters()["total"]["forwarded"].as_u64().unwrap()
    }

    pub fn drops(&self, reason: &str) -> u64 {
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

pub fn port(number: u8) -> String {
    format!("{{apiVersion: tunny/v1, kind: VmPort, metadata: {{name: port{number}}}, spec: {{interface: vp{number}, vm: vm{number}}}}}\n")
}

/// A VM behind a bridge and a VXLAN device of the kernel, whose gateway is the first host.
pub fn linux(net: &Space, engine: &str) -> (Space, Space) {
    let (host, vm) = (host(net, 13, engine), Space::new("vm4"));
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
pub fn obtain(vm: &Space, script: &str) -> String {
    vm.run(&format!("{BUSYBOX} udhcpc -f -q -n -t 5 -T 1 -i eth0 -s {script}"));
    vm.run("ip addr show dev eth0") + &vm.run("ip route")
}

/// Three pings are answered; where a busy machine loses one, that is said, and three others must be.
pub fn reaches(from: &Space, to: &str, what: &str) {
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

pub fn transfers(from: &Space, to: &Space, address: &str, what: &str) -> traffic::Tcp {
    let mut server = to.0.spawn(&["iperf3", "-s", "-1"], std::path::Path::new("/dev/null")).unwrap();
    let sent = wait(what, || traffic::tcp(&from.0, address, 1).ok().filter(|t| t.error.is_none()));
    let _ = server.kill();
    let _ = server.wait();
    println!("{what}: {:.2} Gbit/s", sent.bps / 1e9);
    assert!(sent.bytes > 1 << 20, "{what}: {sent:?}");
    sent
}
