// SPDX-License-Identifier: Apache-2.0
//! Routing daemons of a fabric that speaks EVPN: what FRR and gobgpd are started with.

use std::path::Path;

/// AS of all speakers.
pub const AS: u32 = 65000;
/// Where each gobgpd is asked, in its own namespace.
pub const GOBGP_API: &str = "127.0.0.1:50051";
/// Where Debian has FRR's daemons.
pub const FRR: &str = "/usr/lib/frr";

/// The command of one of FRR's daemons, which all have their sockets, logs and `frr.conf` in a folder that user `frr` may write.
pub fn frr_command(dir: &Path, daemon: &str) -> Vec<String> {
    let at = |file: &str| dir.join(file).display().to_string();
    let mut argv = vec![format!("{FRR}/{daemon}"), "-u".into(), "frr".into(), "-g".into(), "frr".into()];
    argv.extend(["-z".into(), at("zserv"), "-i".into(), at(&format!("{daemon}.pid"))]);
    argv.extend(["--vty_socket".into(), at(""), "-f".into(), at("frr.conf")]);
    if daemon == "bfdd" {
        argv.extend(["--bfdctl".into(), at("bfdd.sock")]);
    }
    argv
}

/// What makes a Linux host with this tunnel address a member of all its VNIs: `advertise-all-vni`, and no VNI or VM by name.
pub fn evpn_host(vtep: &str, peer: &str) -> String {
    let peer = format!(" neighbor {peer}");
    format!(
        "router bgp {AS}\n bgp router-id {vtep}\n no bgp default ipv4-unicast\n{peer} remote-as {AS}\n{peer} timers connect 1\n \
         address-family l2vpn evpn\n {peer} activate\n  advertise-all-vni\n  advertise-svi-ip\n exit-address-family\n"
    )
}

/// The devices of such a host for one VNI: a VXLAN device that learns nothing by itself, and a bridge with these addresses.
pub fn evpn_devices(vni: u32, vtep: &str, addresses: &[&str]) -> Vec<String> {
    let mut lines = vec![
        format!("ip link add br{vni} type bridge"),
        format!("ip link add vx{vni} type vxlan id {vni} local {vtep} dstport 4789 nolearning"),
        format!("ip link set vx{vni} mtu 1450 master br{vni}"),
        format!("ip link set vx{vni} up"),
    ];
    for address in addresses {
        let nodad = if address.contains(':') { "nodad" } else { "" };
        lines.push(format!("ip addr add {address} dev br{vni} {nodad}"));
    }
    lines.push(format!("ip link set br{vni} up"));
    lines
}

/// The configuration of a gobgpd with these neighbours.
pub fn gobgpd(own: &str, peers: &[&str]) -> String {
    let mut text = format!("[global.config]\n as = {AS}\n router-id = \"{own}\"\n local-address-list = [\"{own}\"]\n");
    for peer in peers {
        text += &format!(
            "[[neighbors]]\n [neighbors.config]\n  neighbor-address = \"{peer}\"\n  peer-as = {AS}\n [neighbors.transport.config]\n  \
             local-address = \"{own}\"\n [neighbors.timers.config]\n  connect-retry = 1\n [[neighbors.afi-safis]]\n  \
             [neighbors.afi-safis.config]\n   afi-safi-name = \"l2vpn-evpn\"\n"
        );
    }
    text
}

/// The command of a gobgpd with this configuration.
pub fn gobgpd_command(config: &Path) -> Vec<String> {
    let config = config.display().to_string();
    ["gobgpd", "-f", &config, "--api-hosts", GOBGP_API, "--pprof-disable", "-l", "info"].map(String::from).to_vec()
}
