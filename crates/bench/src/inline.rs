// SPDX-License-Identifier: Apache-2.0
//! The rig of a filter in front of servers: client, gateway and servers in a row, three network namespaces, two cables (veth).
//!
//! What stands between is a node in role filter, whose inline pair passes plain frames, or the kernel as a router with nftables rules on connection
//! states. Either has two ports with one queue each; their receive work is done by threaded NAPI on CPU 1, where a node's own threads are, too. All
//! ends are on CPU 0.
use crate::masquerade::start;
use crate::netns::Netns;
use crate::rig::{napi_thread, GATEWAY_CPU, TRAFFIC_CPU};
use crate::{cpu, snapshot, Error};
use abi::Mac;
use node::daemon::Running;
use std::net::Ipv4Addr;

/// Address of the client; a /16 of its own.
pub const CLIENT: u32 = 0x0aff_0001;
/// MAC addresses of the client's end, the gateway's port towards it, its port towards the servers, and their end.
pub const MACS: [u64; 4] = [0x02DD_0000_0001, 0x02DD_0000_0002, 0x02DD_0000_0003, 0x02DD_0000_0004];
/// Rules of the router: the states of connections, and the two ports that the node's group allows.
pub const RULES: &str = "ct state established,related accept; ct state invalid drop; ct state new tcp dport 80 accept; ct state new udp dport 53 accept";

/// What stands between client and servers.
#[derive(Clone, Copy, Debug)]
pub enum Middle<'a> {
    /// A node with this `spec.filter` (JSON members, may be empty).
    Node(&'a str),
    /// The kernel as a router with [`RULES`].
    Router {
        /// Whether it puts the segments of a connection together before it judges them.
        gro: bool,
    },
}

/// Tenants and their servers.
#[derive(Clone, Copy, Debug)]
pub struct Tenants {
    /// How many.
    pub count: u32,
    /// Addresses of each.
    pub servers: u32,
}

impl Tenants {
    /// Address of a server: each tenant has a /24.
    pub fn server(&self, tenant: u32, server: u32) -> u32 {
        0x0a00_0000 + ((tenant % self.count + 1) << 8) + 1 + server % self.servers
    }

    fn all(self) -> impl Iterator<Item = u32> {
        (0..self.count).flat_map(move |t| (0..self.servers).map(move |s| self.server(t, s)))
    }
}

/// The rig.
pub struct InlineRig {
    /// Where flows begin.
    pub client: Netns,
    /// Where the filter is.
    pub gateway: Netns,
    /// Where they end.
    pub servers: Netns,
    /// The node, if it is one.
    pub node: Option<Running>,
    /// Devices as in [`MACS`].
    pub devices: [String; 4],
    /// Threads whose time is the filter's.
    threads: Vec<i32>,
}

/// Makes the calling thread part of an end: on its CPU, before other work on the machine, behind the ends' receive work.
pub fn become_an_end() -> Result<(), Error> {
    cpu::pin(0, TRAFFIC_CPU).map_err(Error::io("pinning a thread of an end"))?;
    cpu::prefer(0, 1).map_err(Error::io("setting the priority of a thread of an end"))
}

/// Documents of a filter node with a VPC a tenant, whose group allows what [`RULES`] allow.
fn documents(tenants: Tenants, ports: [&str; 2], filter: &str) -> String {
    let unlimited = "{\"rate\":\"1Gpps\",\"burst\":4294967295}";
    let filter = if filter.is_empty() { String::new() } else { format!(",\"filter\":{{{filter}}}") };
    let mut text = format!(
        "{{\"apiVersion\":\"tunny/v1\",\"kind\":\"Gateway\",\"metadata\":{{\"name\":\"f\"}},\"spec\":{{\"role\":\"filter\",\"wires\":[\"{}={}\"],\
         \"limits\":{{\"sessions\":4194304}},\"sessions\":{{\"timeouts\":{{\"tcpClosing\":1,\"tcpReset\":1}}}},\
         \"punt\":{{\"vpc\":{unlimited},\"total\":{unlimited}}}{filter}}}}}\n",
        ports[1], ports[0]
    );
    snapshot::web_group(&mut text);
    let mut document =
        |kind: &str, name: String, spec: std::fmt::Arguments| snapshot::document(&mut text, kind, Some(&name), spec);
    for t in 0..tenants.count {
        let network = Ipv4Addr::from(tenants.server(t, 0) & !0xff);
        let limits = "\"limits\":{\"sessions\":4194304,\"vmSessions\":4194304,\"halfOpen\":4194304}";
        document("Vpc", format!("v{t}"), format_args!("\"vni\":{},{limits}", 100 + t));
        document(
            "Server",
            format!("s{t}"),
            format_args!("\"vpc\":\"v{t}\",\"port\":\"{}\",\"addresses\":[\"{network}/24\"]", ports[1]),
        );
        document(
            "SecurityBinding",
            format!("b{t}"),
            format_args!("\"vpc\":\"v{t}\",\"servers\":[\"s{t}\"],\"groups\":[\"web\"]"),
        );
    }
    text
}

impl InlineRig {
    /// Builds it; the roles of one process begin with different letters.
    pub fn create(role: &str, tenants: Tenants, middle: Middle) -> Result<InlineRig, Error> {
        let [client, gateway, servers] = ["cl", "gw", "sv"].map(|part| Netns::create(&format!("{role}-{part}")));
        let (client, gateway, servers) = (client?, gateway?, servers?);
        let tag = format!("{:x}{}", std::process::id(), role.as_bytes().first().map_or('x', |b| *b as char));
        let devices = ["c", "n", "s", "v"].map(|end| format!("{end}{tag}"));
        for (end, far, near) in [(&client, &devices[0], &devices[1]), (&servers, &devices[3], &devices[2])] {
            gateway.ip(&format!(
                "link add {near} numrxqueues 1 numtxqueues 1 type veth peer name {far} numrxqueues 1 numtxqueues 1 netns {}",
                end.name()
            ))?;
        }
        let rig = InlineRig { client, gateway, servers, node: None, devices, threads: Vec::new() };
        for (i, (device, mac)) in rig.devices.iter().zip(MACS).enumerate() {
            let ns = rig.netns_of(i);
            ns.shell("echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6")?;
            ns.ip(&format!("link set {device} address {} up", Mac(mac)))?;
        }
        for (i, device) in rig.devices.iter().enumerate() {
            // Frames come through whole and with right checksums, as over a cable. GRO makes NAPI, and what stands at the other end a target
            // of XDP, but only of a device that is up.
            rig.netns_of(i).shell(&format!("ethtool -K {device} tx off tso off gso off gro on >/dev/null"))?;
        }
        let routed = matches!(middle, Middle::Router { .. });
        let width = if routed { 16 } else { 8 };
        rig.client.ip(&format!("addr add {}/{width} dev {}", Ipv4Addr::from(CLIENT), rig.devices[0]))?;
        for server in tenants.all() {
            rig.servers.ip(&format!("addr add {}/{width} dev {}", Ipv4Addr::from(server), rig.devices[3]))?;
        }
        match middle {
            Middle::Node(filter) => rig.with_node(tenants, filter),
            Middle::Router { gro } => rig.with_router(tenants, gro),
        }
    }

    fn netns_of(&self, device: usize) -> &Netns {
        [&self.client, &self.gateway, &self.gateway, &self.servers][device]
    }

    fn with_node(mut self, tenants: Tenants, filter: &str) -> Result<InlineRig, Error> {
        let text = documents(tenants, [&self.devices[1], &self.devices[2]], filter);
        let (node, threads) = start(&self.gateway, &text)?;
        self.threads = threads;
        self.node = Some(node);
        self.pin()?;
        Ok(self)
    }

    fn with_router(mut self, tenants: Tenants, gro: bool) -> Result<InlineRig, Error> {
        let [_, net, srv, _] = &self.devices;
        let g = &self.gateway;
        g.shell("echo 1 > /proc/sys/net/ipv4/ip_forward; for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done")?;
        g.ip(&format!("addr add 10.255.0.254/16 dev {net}"))?;
        g.ip(&format!("addr add 10.0.255.254/16 dev {srv}"))?;
        self.client.ip("route add default via 10.255.0.254")?;
        self.servers.ip("route add default via 10.0.255.254")?;
        // Neighbours that need no resolution, as the sinks of generated traffic answer nobody.
        g.ip(&format!("neigh add {} lladdr {} dev {net} nud permanent", Ipv4Addr::from(CLIENT), Mac(MACS[0])))?;
        for server in tenants.all() {
            g.ip(&format!("neigh add {} lladdr {} dev {srv} nud permanent", Ipv4Addr::from(server), Mac(MACS[3])))?;
        }
        let chain = "type filter hook forward priority filter; policy drop;";
        g.shell(&format!("nft 'table ip filter {{ chain forward {{ {chain} {RULES}; }}; }}'"))?;
        g.shell("echo 900 > /proc/sys/net/netfilter/nf_conntrack_udp_timeout; echo 900 > /proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream")?;
        if !gro {
            // GRO stays on, since only then a veth without XDP has NAPI; but it finds no two segments that may become one.
            for port in [net, srv] {
                g.ip(&format!("link set dev {port} gro_max_size 1500"))?;
            }
        }
        self.pin()?;
        Ok(self)
    }

    /// Moves the receive work of all devices into kernel threads, those of the gateway on its CPU.
    fn pin(&mut self) -> Result<(), Error> {
        for (i, device) in self.devices.iter().enumerate() {
            self.netns_of(i).shell(&format!("echo 1 > /sys/class/net/{device}/threaded"))?;
            let thread = napi_thread(device)?;
            if i == 1 || i == 2 {
                cpu::pin(thread, GATEWAY_CPU).map_err(Error::io("pinning the gateway's NAPI thread"))?;
                self.threads.push(thread);
            } else {
                cpu::pin(thread, TRAFFIC_CPU).map_err(Error::io("pinning the NAPI thread of an end"))?;
                cpu::prefer(thread, 2).map_err(Error::io("setting the priority of the NAPI thread of an end"))?;
            }
        }
        // A nice value would not do: it counts within a session's group of processes only, and other work has groups of its own.
        cpu::prefer_all(&self.threads, 1).map_err(Error::io("setting the priority of the filter's threads"))
    }

    /// CPU time of the filter so far, ns: its ports' threads, softirqs of its CPU, and the node's threads.
    pub fn cpu_time(&self) -> u64 {
        let softirq = cpu::processes_named(&format!("ksoftirqd/{GATEWAY_CPU}"));
        let threads = softirq.first().copied().into_iter().chain(self.threads.iter().copied());
        threads.filter_map(|t| cpu::run_time(t, t).ok()).sum()
    }

    /// Connections that the router's kernel knows.
    pub fn tracked(&self) -> Result<u64, Error> {
        crate::linux::tracked(&self.gateway)
    }

    /// Ends the node.
    pub fn stop(mut self) {
        if let Some(node) = self.node.take() {
            node.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_has_an_address_of_its_own_within_its_tenant() {
        let tenants = Tenants { count: 30, servers: 16 };
        let all: std::collections::BTreeSet<u32> = tenants.all().collect();
        assert_eq!(all.len(), 480);
        assert!((0..30).all(|t| (0..16).all(|s| tenants.server(t, s) >> 8 == 0x0a_0000 + t + 1)));
        assert!(!all.iter().any(|a| a >> 16 == CLIENT >> 16));
    }
}
