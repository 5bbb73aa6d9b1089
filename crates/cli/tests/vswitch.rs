// SPDX-License-Identifier: Apache-2.0
//! Hosts of VMs that run a node as their switch, and one that is a plain Linux VTEP, in network namespaces: two VMs on the first host, one on
//! the second, one behind Linux. The VMs of the first two know nothing: udhcpc asks for what they are. Without root it says so and passes.

mod hosts;
mod region;

use hosts::{host, linux, obtain, port, reaches, transfers, vm, Space, Switch, MTU, SCRIPT};
use lab::traffic;
use region::wait;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// What dhclient does with what it was told.
const SCRIPT6: &str = "#!/bin/sh
[ -n \"$new_ip6_address\" ] && ip -6 addr replace $new_ip6_address/128 dev $interface
exit 0
";

fn hosts_switch(engine: &str) {
    let net = Space::new("net");
    net.run("ip link add br0 type bridge stp_state 0");
    net.run(&format!("ip link set dev br0 mtu {MTU} up"));
    let (one, two) = (host(&net, 11, engine), host(&net, 12, engine));
    let vms = [vm(&one, 1, engine), vm(&one, 2, engine), vm(&two, 3, engine)];
    let (_linux, vm4) = linux(&net, engine);
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

    asks_about_itself(&vms, &first);
    by_itself(&vms[0], first.dir.path(), 21);
    by_itself(&vms[2], first.dir.path(), 23);
    reaches(&vms[0], "fd00:64::23", "IPv6 on two hosts");

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
    assert!(first.try_tunny(&["detach", "port2"]).is_some());
    let ping = traffic::ping(&vms[0].0, "10.0.0.22", 2, &["-i", "0.05"]).unwrap();
    assert_eq!(ping.received, 0, "{}", ping.output);
    assert!(first.drops("vm_port_none") >= 2);
    assert!(first.try_tunny(&["attach", "vm2", "nosuch0"]).is_some(), "an interface may come later");
    assert!(first.try_tunny(&["attach", "vm9", "vp2"]).is_none(), "a VM that is not there");
    assert!(first.try_tunny(&["attach", "vm3", "vp2"]).is_none(), "a VM of another host");
    assert!(first.try_tunny(&["attach", "vm2", "vp2"]).is_none(), "a VM that has a port");
    assert!(first.try_tunny(&["attach", "vm2", "vp2", "--name", "nosuch0"]).is_some());
    reaches(&vms[0], "10.0.0.22", "attached again");
    for switch in [&first, &second] {
        assert_eq!(switch.counters()["balance"]["balanced"], Value::Bool(true), "{}", switch.counters());
    }
}

/// VMs ask the metadata address what they are: by curl, with tokens where these are needed, many at once, and more than fits a window.
fn asks_about_itself(vms: &[Space; 3], first: &Switch) {
    let all = "http://169.254.169.254/";
    let fetch = |vm: &Space, more: &str, path: &str| vm.run(&format!("curl -sS --max-time 10 {more} {all}{path}"));
    assert_eq!(fetch(&vms[0], "", "latest/meta-data/local-ipv4"), "10.0.0.21");
    assert_eq!(fetch(&vms[1], "", "latest/meta-data/local-ipv4"), "10.0.0.22");
    assert_eq!(fetch(&vms[2], "", "latest/meta-data/hostname"), "vm3");
    let told: Value = serde_json::from_str(&fetch(&vms[0], "", "openstack/latest/network_data.json")).unwrap();
    assert_eq!(told["networks"][0]["ip_address"], "10.0.0.21");

    // The node next door says nothing of a VM that it does not have, and what is told follows the configuration.
    let data = "x".repeat(16_000);
    let file = first.dir.path().join("user-data");
    std::fs::write(&file, &data).unwrap();
    let file = file.display().to_string();
    let attach = ["attach", "vm1", "vp1", "--name", "port1"];
    let with = |more: &[&str]| first.try_tunny(&[&attach[..], more].concat()).unwrap();
    with(&["--user-data", &file, "--metadata", "token"]);
    let refused = fetch(&vms[0], "-o /dev/null -w %{http_code}", "latest/user-data");
    assert_eq!(refused, "401");
    let ttl = "-X PUT -H X-aws-ec2-metadata-token-ttl-seconds:60";
    let token = fetch(&vms[0], ttl, "latest/api/token");
    let header = format!("-H X-aws-ec2-metadata-token:{token}");
    assert_eq!(fetch(&vms[0], &header, "latest/user-data").len(), data.len());
    assert_eq!(fetch(&vms[1], &format!("{header} -o /dev/null -w %{{http_code}}"), "latest/meta-data/mac"), "401");
    // Forty answers, twenty at a time.
    let urls = format!("{all}latest/user-data -o /dev/null ").repeat(40);
    let codes = fetch(
        &vms[0],
        &format!("{header} --parallel --parallel-max 20 -w %{{http_code}}. {urls}"),
        "latest/meta-data/",
    );
    assert_eq!(codes.matches("200.").count(), 41, "{codes}");

    with(&["--metadata", "off"]);
    let dropped = first.drops("inner_link_local");
    assert!(vms[0].0.run(&format!("curl -sS --max-time 1 {all}latest/meta-data/mac")).is_err());
    assert!(first.drops("inner_link_local") > dropped);
    with(&["--metadata", "on"]);
    assert_eq!(fetch(&vms[0], "", "latest/meta-data/mac"), "02:00:00:00:00:21");
}

/// A VM finds its router by IPv6 from its advertisement, and its address by DHCPv6.
fn by_itself(vm: &Space, dir: &Path, number: u8) {
    vm.0.sysctl(&[("net.ipv6.conf.eth0.accept_ra", "1"), ("net.ipv6.conf.eth0.disable_ipv6", "0")]).unwrap();
    wait("a router", || {
        let routes = vm.run("ip -6 route show default");
        routes.contains("via fe80::ff:fe00:6401").then_some(())
    });
    assert!(vm.run("ip -6 route").contains("fd00:64::/64"), "the prefix is on the link");
    assert!(!vm.run("ip -6 addr show dev eth0").contains("fd00:64:"), "an address has been made of the prefix");
    let script = dir.join("bound6");
    std::fs::write(&script, SCRIPT6).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let file = |end: &str| dir.join(format!("dhclient{number}.{end}")).display().to_string();
    let (lease, id, script) = (file("leases"), file("pid"), script.display().to_string());
    let argv = ["dhclient", "-6", "-1", "-lf", &lease, "-pf", &id, "-sf", &script, "eth0"];
    vm.0.run_argv(&argv).unwrap_or_else(|e| panic!("{e}"));
    // It stays, to renew.
    let process = wait("its process id", || std::fs::read_to_string(&id).ok().filter(|id| id.ends_with('\n')));
    lab::shell::run(&format!("kill {}", process.trim())).unwrap();
    let has = vm.run("ip -6 addr show dev eth0");
    assert!(has.contains(&format!("fd00:64::{number}/128")), "{has}");
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
    let only = std::env::var("TUNNY_ENGINE").ok();
    for engine in ["auto", "af_packet", "tc"].into_iter().filter(|e| only.as_ref().is_none_or(|o| o == e)) {
        println!("engine {engine}");
        hosts_switch(engine);
    }
}
