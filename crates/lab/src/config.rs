// SPDX-License-Identifier: Apache-2.0
//! The plan as the documents that `tunny node` reads.

use crate::plan::*;
use std::fmt::Write;

/// The whole region as YAML. `uplinks` are the gateway's interfaces; `engine` as in the Gateway's `spec.engine`.
pub fn yaml(uplinks: usize, engine: &str) -> String {
    let mut y = String::from(
        "# SPDX-License-Identifier: Apache-2.0\n# Written by `tunny-lab lab`; see crates/lab/src/plan.rs.\n",
    );
    let ports: Vec<String> = (0..uplinks).map(|u| format!("up{u}")).collect();
    document(&mut y, "Gateway", Some("gw"));
    let _ = writeln!(
        y,
        "  vtep:\n    ipv4: {VTEP4}\n    ipv6: \"{VTEP6}\"\n  uplinks: [{}]\n  engine: {engine}",
        ports.join(", ")
    );
    let via = Segment::uplink(0);
    let _ = writeln!(y, "  internet:\n    via: [{}, \"{}\"]", via.router4(), via.router6());
    y + &objects(&[("public", PUBLIC)]) + &groups()
}

/// What is neither the gateway's own nor a rule. `pools`: public addresses by name; blue goes out through the first of them, green through the last.
pub fn objects(pools: &[(&str, &str)]) -> String {
    let mut y = region_yaml();
    for (vpc, prefix) in VPCS.iter().flat_map(|v| INTERNET.map(|p| (v.name, p))) {
        document(&mut y, "Route", None);
        let _ = writeln!(y, "  vpc: {vpc}\n  prefix: \"{prefix}\"\n  scope: internet");
    }
    internet(&mut y, pools);
    y
}

/// VPCs, what is in them and their hosts.
fn region_yaml() -> String {
    let mut y = String::new();
    for host in 0..HOSTS.len() {
        for v6 in [false, true] {
            document(&mut y, "Nc", Some(&nc_name(host, v6)));
            let _ = writeln!(y, "  address: \"{}\"", nc_address(host, v6));
        }
    }
    document(&mut y, "Peering", Some("blue-red"));
    y += "  vpcs: [blue, red]\n";
    for vpc in &VPCS {
        document(&mut y, "Vpc", Some(vpc.name));
        let _ = writeln!(
            y,
            "  vni: {}\n  gateway:\n    mac: \"{}\"\n    addresses: {}",
            vpc.vni,
            vpc.gateway_mac,
            list(vpc.gateways)
        );
        if vpc.peer.is_some() {
            y += "  peerings: [blue-red]\n";
        }
        for prefix in vpc.prefixes {
            document(&mut y, "Route", None);
            let _ = writeln!(y, "  vpc: {}\n  prefix: \"{prefix}\"\n  scope: local", vpc.name);
        }
        if let Some((peer, prefixes)) = vpc.peer {
            for prefix in prefixes {
                document(&mut y, "Route", None);
                let _ = writeln!(y, "  vpc: {}\n  prefix: \"{prefix}\"\n  scope: peer\n  peer: {peer}", vpc.name);
            }
        }
    }
    for vm in &VMS {
        document(&mut y, "Vm", Some(vm.name));
        let nc = nc_name(vm.host, vpc(vm.vpc).underlay6);
        let addresses = list(&[vm.v4.0, vm.v6.0]);
        let _ = writeln!(y, "  vpc: {}\n  addresses: {addresses}\n  mac: \"{}\"\n  nc: {nc}", vm.vpc, vm.mac);
    }
    y
}

/// The filter node in front of the bare-metal servers. Its rates of punts are low, so that a flood of a few seconds exceeds them.
pub fn edge_yaml(engine: &str) -> String {
    let mut y = String::from(
        "# SPDX-License-Identifier: Apache-2.0\n# Written by `tunny-lab lab`; see crates/lab/src/plan.rs.\n",
    );
    document(&mut y, "Gateway", Some("edge"));
    let pairs: Vec<String> = (0..BARES.len()).map(|n| format!("srv{n}=net{n}")).collect();
    let _ = writeln!(y, "  role: filter\n  wires: [{}]\n  engine: {engine}\n  punt:", pairs.join(", "));
    y.push_str("    vpc: {rate: 500pps, burst: 500, peakRate: 1kpps, peakBurst: 1000}\n");
    y.push_str("    total: {rate: 1kpps, burst: 1000, peakRate: 2kpps, peakBurst: 2000}\n");
    document(&mut y, "SecurityGroup", Some("server"));
    y.push_str("  rules:\n");
    let rules = [
        "ingress allow tcp/5201 any",
        "ingress allow icmp/8 any",
        "ingress allow icmpv6/128 any",
        "egress allow any any",
    ];
    for rule in rules {
        let _ = writeln!(y, "    - {rule}");
    }
    for (n, bare) in BARES.iter().enumerate() {
        let segment = Segment::bare(n);
        document(&mut y, "Vpc", Some(bare.name));
        let _ = writeln!(y, "  vni: {}", bare.vni);
        document(&mut y, "Server", Some(bare.name));
        let addresses = format!("[{}, \"{}\"]", segment.node4(), segment.node6());
        let _ = writeln!(y, "  vpc: {}\n  port: srv{n}\n  addresses: {addresses}", bare.name);
        document(&mut y, "SecurityBinding", Some(bare.name));
        let _ = writeln!(y, "  vpc: {}\n  servers: [{}]\n  groups: [server]", bare.name, bare.name);
    }
    y
}

/// Pools, Snats and elastic addresses.
fn internet(y: &mut String, pools: &[(&str, &str)]) {
    for (name, range) in pools {
        document(y, "PublicPool", Some(name));
        let _ = writeln!(y, "  ranges: [{range}]");
    }
    let of = |pool: Option<&(&str, &str)>| pool.map_or("", |pool| pool.0).to_string();
    let (blue, green) = (of(pools.first()), of(pools.last()));
    for (vpc, pool, prefixes) in
        [("blue", blue, format!("  ipv6Prefixes: [\"{BLUE6}\"]\n")), ("green", green, String::new())]
    {
        document(y, "Snat", Some(vpc));
        let _ = write!(y, "  vpc: {vpc}\n  pools: [{pool}]\n{prefixes}  limits: {{vmPorts: 32768}}\n");
    }
    document(y, "ElasticIp", Some("red-1"));
    let _ = writeln!(y, "  address: {ELASTIC}\n  vm: red-1");
    document(y, "ElasticIp", Some("blue-2-iperf"));
    let _ = writeln!(y, "  address: {FORWARD}\n  forwards: [\"tcp/8080=blue-2:5201\"]");
}

/// A group of green-2: everybody may ping it and come to its iperf3, nobody to anything else; it may begin what it wants.
pub fn groups() -> String {
    let mut y = String::new();
    document(&mut y, "SecurityGroup", Some("iperf"));
    y.push_str("  rules:\n");
    let all = [
        "ingress allow tcp/5201 any",
        "ingress allow icmp/8 any",
        "ingress allow icmpv6/128 any",
        "egress allow any any",
    ];
    for rule in all {
        let _ = writeln!(y, "    - {rule}");
    }
    document(&mut y, "SecurityBinding", Some("green-2"));
    y + "  vpc: green\n  vms: [green-2]\n  groups: [iperf]\n"
}

fn document(y: &mut String, kind: &str, name: Option<&str>) {
    let _ = writeln!(y, "---\napiVersion: tunny/v1\nkind: {kind}");
    if let Some(name) = name {
        let _ = writeln!(y, "metadata:\n  name: {name}");
    }
    y.push_str("spec:\n");
}

fn list(items: &[&str]) -> String {
    let quoted: Vec<String> = items.iter().map(|i| format!("\"{i}\"")).collect();
    format!("[{}]", quoted.join(", "))
}
