// SPDX-License-Identifier: Apache-2.0
//! Linux itself as the gateway, on the veth rig: as a VXLAN gateway (`vxlan external` and `ip route … encap ip`), and as a plain
//! router. Both get fewer routes than Tunny: one a /24.
use crate::rig::{Frames, Side};
use crate::workload::{nc_address, plain, Workload, FIRST_VNI, GATEWAY_MAC, VTEP};
use crate::{netns, Error};
use abi::Mac;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::Ipv4Addr;

const ROUTER: &str = "192.0.2.254";

/// Connections that a namespace's kernel knows.
pub fn tracked(gateway: &netns::Netns) -> Result<u64, Error> {
    let count = gateway.shell("cat /proc/sys/net/netfilter/nf_conntrack_count")?;
    count.trim().parse().map_err(Error::failed("reading the number of connections"))
}

/// Addresses and forwarding that all kinds need, and the underlay's router as a neighbour that needs no resolution.
pub(crate) fn addresses(side: &Side) -> Result<(), Error> {
    addresses_of(side, VTEP, ROUTER)
}

/// The same for a port with an address of its own, in a /24 with its router.
pub(crate) fn addresses_of(side: &Side, own: u32, router: &str) -> Result<(), Error> {
    let port = &side.port;
    side.gateway.shell("echo 1 > /proc/sys/net/ipv4/ip_forward; for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done; for f in /proc/sys/net/ipv4/conf/*/send_redirects; do echo 0 > $f; done")?;
    side.gateway.ip(&format!("addr add {}/24 dev {port}", Ipv4Addr::from(own)))?;
    side.gateway
        .ip(&format!("neigh add {router} lladdr {} dev {port} nud permanent", Mac(crate::workload::ROUTER_MAC)))
        .map(drop)
}

fn uplink(side: &Side) -> Result<(), Error> {
    addresses(side)?;
    side.receive_without_xdp()
}

fn batch(side: &Side, lines: &str) -> Result<(), Error> {
    let file = tempfile::NamedTempFile::new().map_err(Error::io("creating a file"))?;
    std::fs::write(file.path(), lines).map_err(Error::io("writing a file"))?;
    netns::run("ip", &["-n", side.gateway.name(), "-batch", &file.path().display().to_string()]).map(drop)
}

/// The /24 networks of the VMs with the VNI and the NC of the first VM in each.
fn subnets(workload: &Workload) -> Vec<(u32, u32, u32)> {
    let mut seen = BTreeSet::new();
    workload.vms.iter().filter(|v| seen.insert(v.address >> 8)).map(|v| (v.address & !0xff, v.vni, v.nc)).collect()
}

/// The kernel as a VXLAN gateway.
pub fn vxlan_gateway(workload: &Workload, packets: &[u8]) -> Result<Side, Error> {
    let mut side = Side::create("vxlan", Frames::Vxlan, packets)?;
    side.gateway.ip(&format!("link add vx0 address {} type vxlan external dstport 4789", Mac(GATEWAY_MAC)))?;
    side.gateway.ip("link set vx0 up")?;
    uplink(&side)?;
    side.gateway.ip(&format!(
        "route add {}/16 via {ROUTER} dev {}",
        Ipv4Addr::from(nc_address(0) & !0xffff),
        side.port
    ))?;
    side.gateway.ip(&format!("neigh add 169.254.1.1 lladdr {} dev vx0 nud permanent", Mac(workload.vms[0].mac)))?;
    let mut lines = String::new();
    for (network, vni, nc) in subnets(workload) {
        let (network, nc) = (Ipv4Addr::from(network), Ipv4Addr::from(nc_address(nc)));
        let _ = writeln!(lines, "route add {network}/24 encap ip id {vni} dst {nc} via 169.254.1.1 dev vx0 onlink");
    }
    batch(&side, &lines)?;
    side.pin_threads()?;
    Ok(side)
}

/// The kernel as a plain router; its packets are the inner ones.
pub fn router(workload: &Workload, packets: &[u8]) -> Result<Side, Error> {
    routing("route", workload, packets, None)
}

/// Rules by the state of a connection, as a guide for a stateful firewall has them.
pub const TRACKING_RULES: &str =
    "ct state established,related accept; ct state invalid drop; ct state new udp dport 1-65535 accept";

/// The kernel as a router that lets packets through by the state of their connection.
pub fn tracking_router(workload: &Workload, packets: &[u8]) -> Result<Side, Error> {
    routing("ctrack", workload, packets, Some(TRACKING_RULES))
}

fn routing(role: &str, workload: &Workload, packets: &[u8], rules: Option<&str>) -> Result<Side, Error> {
    let mut side = Side::create(role, Frames::Plain, &plain(packets))?;
    uplink(&side)?;
    let mut lines = String::new();
    for (network, ..) in subnets(workload) {
        let _ = writeln!(lines, "route add {}/24 via {ROUTER} dev {}", Ipv4Addr::from(network), side.port);
    }
    batch(&side, &lines)?;
    if let Some(rules) = rules {
        let chain = "type filter hook forward priority filter; policy drop;";
        side.gateway.shell(&format!("nft 'table ip filter {{ chain forward {{ {chain} {rules}; }}; }}'"))?;
        // What was answered is kept longer than the bench takes.
        side.gateway.shell("echo 900 > /proc/sys/net/netfilter/nf_conntrack_udp_timeout; echo 900 > /proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream")?;
    }
    side.pin_threads()?;
    Ok(side)
}

/// The kernel as a router that masquerades all that leaves by its port, and keeps what got no answer for `kept` seconds.
/// `packets` are plain, to the Internet.
pub fn masquerade(packets: &[u8], kept: u32) -> Result<Side, Error> {
    let mut side = Side::create("masq", Frames::Plain, packets)?;
    uplink(&side)?;
    let port = &side.port;
    side.gateway.ip(&format!("route add default via {ROUTER} dev {port}"))?;
    let rules = format!(
        "add table ip nat; add chain ip nat post {{ type nat hook postrouting priority srcnat; }}; add rule ip nat post oifname {port} masquerade"
    );
    side.gateway.shell(&format!("nft '{rules}' && echo {kept} > /proc/sys/net/netfilter/nf_conntrack_udp_timeout"))?;
    side.pin_threads()?;
    Ok(side)
}

/// Room for many connections in the kernel's table, which all network namespaces share; as it was when dropped.
pub struct Conntrack([(&'static str, String); 2]);

impl Conntrack {
    /// Makes room for `connections`, a bucket for each two.
    pub fn enlarge(connections: u64) -> Result<Conntrack, Error> {
        let files = ["/sys/module/nf_conntrack/parameters/hashsize", "/proc/sys/net/netfilter/nf_conntrack_max"];
        let io = Error::io;
        let old = files.map(|f| (f, std::fs::read_to_string(f).unwrap_or_default().trim().to_string()));
        let kept = Conntrack(old);
        for (file, wanted) in files.into_iter().zip([connections / 2, connections]) {
            std::fs::write(file, wanted.to_string()).map_err(io("making room in the kernel's connection table"))?;
        }
        Ok(kept)
    }
}

impl Drop for Conntrack {
    fn drop(&mut self) {
        for (file, value) in &self.0 {
            let _ = std::fs::write(file, value);
        }
    }
}

/// The workload of the veth benches: 64 VPCs of 1024 VMs.
pub fn workload(seed: u64) -> (Workload, Vec<u8>) {
    let workload = Workload::disjoint(64, 1024, 64, seed);
    debug_assert_eq!(workload.vms[0].vni, FIRST_VNI);
    let packets = workload.distinct_packets(65_536, seed);
    (workload, packets)
}

/// Whether an outer destination is one of the NCs.
pub fn is_nc(address: u32) -> bool {
    address >> 16 == nc_address(0) >> 16
}
