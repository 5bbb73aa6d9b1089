// SPDX-License-Identifier: Apache-2.0
//! A site that reaches its VPC by a tunnel over the Internet: WireGuard ends at a TUN interface of the node, which is an edge port. Both ends
//! are wireguard-go in network namespaces (see crate `lab`). Without root it says so and passes.

mod region;

use lab::shell::Namespace;
use lab::traffic;
use region::{region, wait, Region};
use serde_json::json;
use std::path::Path;
use std::process::Child;

/// The site's namespace, and what runs in it and at the node's end; they end with this.
struct Site {
    ns: Namespace,
    /// The interface at the node.
    port: String,
    running: Vec<Child>,
    dir: tempfile::TempDir,
}

/// A private key and its public one.
fn keys() -> (String, String) {
    let sh = |line: String| {
        let out = std::process::Command::new("sh").args(["-ec", &line]).output().unwrap();
        String::from_utf8(out.stdout).unwrap().trim().to_string()
    };
    let private = sh("wg genkey".into());
    let public = sh(format!("echo {private} | wg pubkey"));
    (private, public)
}

impl Site {
    /// A link between node and site that stands for the Internet, and a tunnel over it.
    fn new(region: &Region) -> Site {
        let (ns, gw) = (region.names.namespace("site"), region.ns("gw"));
        lab::shell::run(&format!("ip netns add {}", ns.0)).unwrap();
        // wireguard-go is asked by a socket that bears the interface's name, whatever the namespace.
        let end = |what: &str| format!("wg{what}{}", std::process::id());
        let mut site = Site { ns, port: end("n"), running: Vec::new(), dir: tempfile::tempdir().unwrap() };
        gw.run(&format!("ip link add inet0 type veth peer name inet0 netns {}", site.ns.0)).unwrap();
        let here = site.ns.clone();
        for (ns, address) in [(&gw, "192.0.2.201/30"), (&here, "192.0.2.202/30")] {
            ns.run(&format!("ip addr add {address} dev inet0")).unwrap();
            ns.run("ip link set inet0 up").unwrap();
        }
        let (of_node, of_site) = (keys(), keys());
        let node = format!("peer {} allowed-ips 0.0.0.0/0", of_site.1);
        let peer = format!("peer {} endpoint 192.0.2.201:51820 allowed-ips 10.0.0.0/24,172.31.0.9/32", of_node.1);
        site.tunnel(&gw, &end("n"), &of_node.0, &format!("listen-port 51820 {node}"));
        site.tunnel(&here, &end("s"), &of_site.0, &peer);
        let dev = end("s");
        for line in [
            "addr add 10.9.0.5/24 dev DEV",
            "addr add 10.0.0.12/32 dev DEV",
            "route add 10.0.0.0/24 dev DEV src 10.9.0.5",
            "route add 172.31.0.9 dev DEV src 10.9.0.5",
        ] {
            here.run(&format!("ip {}", line.replace("DEV", &dev))).unwrap();
        }
        site
    }

    /// One end.
    fn tunnel(&mut self, ns: &Namespace, dev: &str, key: &str, more: &str) {
        let child = ns.spawn(&["wireguard-go", "-f", dev], &self.dir.path().join(dev)).unwrap();
        self.running.push(child);
        wait("wireguard-go", || Path::new(&format!("/var/run/wireguard/{dev}.sock")).exists().then_some(()));
        let file = self.dir.path().join("key");
        std::fs::write(&file, key).unwrap();
        ns.sysctl(&[(&format!("net.ipv6.conf.{dev}.disable_ipv6"), "1")]).unwrap();
        ns.run(&format!("wg set {dev} private-key {} {more}", file.display())).unwrap();
        ns.run(&format!("ip link set {dev} up")).unwrap();
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for child in &mut self.running {
            // A plain kill would leave its socket behind.
            let _ = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(child.id() as i32),
                nix::sys::signal::Signal::SIGTERM,
            );
            let _ = child.wait();
        }
        let _ = lab::shell::run(&format!("ip netns del {}", self.ns.0));
    }
}

fn reaches(from: &Namespace, to: &str) {
    let ping = traffic::ping(from, to, 3, &["-i", "0.05"]).unwrap();
    assert_eq!((ping.sent, ping.received), (3, 3), "{to}: {}", ping.output);
}

/// Echo requests that the kernel of a namespace has got.
fn heard(ns: &Namespace) -> u64 {
    let text = ns.run("cat /proc/net/snmp").unwrap();
    let icmp: Vec<&str> = text.lines().filter(|l| l.starts_with("Icmp:")).collect();
    let column = icmp[0].split(' ').position(|w| w == "InEchos").unwrap();
    icmp[1].split(' ').nth(column).unwrap().parse().unwrap()
}

#[test]
fn a_site_behind_wireguard_reaches_its_vm_and_is_reached_and_the_host_hears_nothing() {
    if !Path::new("/usr/bin/wireguard-go").exists() {
        return skip::test("needs wireguard-go", "apt-get install wireguard-go wireguard-tools");
    }
    let Some(region) = region("wg") else { return };
    let site = Site::new(&region);
    let (gw, vm) = (region.ns("gw"), region.ns("blue-1"));
    region.apply(&format!(
        "{{apiVersion: tunny/v1, kind: EdgePort, metadata: {{name: home}}, spec: {{interface: {}, number: 2, link: tun, tags: 0}}}}
---
{{apiVersion: tunny/v1, kind: Overlay, metadata: {{name: blue-home}}, spec: {{vpc: blue, port: home}}}}
---
{{apiVersion: tunny/v1, kind: Route, spec: {{vpc: blue, prefix: 10.9.0.0/24, scope: line}}}}
",
        site.port
    ));
    let status: serde_json::Value = serde_json::from_str(&region.tunny(&["get", "status", "-o", "json"])).unwrap();
    let modes: Vec<_> = status["uplinks"].as_array().unwrap().iter().map(|u| (&u["name"], &u["mode"])).collect();
    assert!(modes.contains(&(&json!(site.port), &json!("user"))), "{modes:?}");
    assert!(modes.iter().any(|(_, mode)| **mode == "native"), "the others have their fast path: {modes:?}");
    let all_ways = || {
        reaches(&site.ns, "10.0.0.11");
        reaches(&site.ns, "10.0.0.1");
        reaches(&vm, "10.9.0.5");
        // By TCP, with a tunnel's smaller MTU in the path.
        let tcp = traffic::tcp(&site.ns, "10.0.0.11", 1).unwrap();
        assert!(tcp.error.is_none() && tcp.bps > 1e6, "{tcp:?}");
        // What the VM's kernel has learned of the path before says nothing of this engine.
        vm.run("ip route flush cache").unwrap();
        let large = traffic::ping(&vm, "10.9.0.5", 2, &["-i", "0.05", "-M", "do", "-s", "1400"]).unwrap();
        assert!(large.received == 0 && large.output.contains("mtu = 1420"), "{}", large.output);
    };
    all_ways();
    // The kernel, for which everything without a MAC address is its own, gets nothing of it.
    gw.run("ip addr add 172.31.0.9/32 dev lo").unwrap();
    let before = heard(&gw);
    let ping = traffic::ping(&site.ns, "172.31.0.9", 2, &["-i", "0.05", "-W", "1"]).unwrap();
    assert_eq!((ping.received, heard(&gw)), (0, before), "{}", ping.output);
    // Nor does a site speak for a VM.
    let before = region.drops("edge_source");
    traffic::ping(&site.ns, "10.0.0.11", 2, &["-i", "0.05", "-W", "1", "-I", "10.0.0.12"]).unwrap();
    wait("edge_source", || (region.drops("edge_source") >= before + 2).then_some(()));
    // The same without a fast path.
    let text = region.tunny(&["get", "gateway", "-o", "json"]);
    let mut gateway: serde_json::Value = serde_json::from_str(&text).unwrap();
    gateway[0]["spec"]["engine"] = "af_packet".into();
    region.apply(&gateway[0].to_string());
    all_ways();
    // Without the edge port the host has its interface back.
    let filters = || gw.run(&format!("tc filter show dev {} ingress", site.port)).unwrap();
    assert!(filters().contains("tunny_drop"), "{}", filters());
    region.tunny(&["delete", "--yes", "overlay/blue-home", "edgeport/home"]);
    wait("the filter to go", || (!filters().contains("tunny_drop")).then_some(()));
    let counters = region.node().unwrap().counters().unwrap();
    assert!(counters.balanced, "{counters:?}");
}
