// SPDX-License-Identifier: Apache-2.0
//! The commands that make a Linux host a VTEP for Tunny.
//!
//! One source of truth: the lab executes these steps in its host namespaces, and `tunny host-commands` prints them for a
//! real host. Everything a host needs is in the kernel: one `vxlan` device and one bridge a VPC, and a bridge port a VM.
//!
//! Why it is set up this way:
//! - The gateway answers ARP and ND for every VM of the VPC, so a host needs no table of remote VMs: its VXLAN device has one
//!   default forwarding entry, to the gateway, and learns nothing.
//! - A VM's port has a static forwarding entry and no flooding of unknown unicast, so a frame for a remote VM goes to the
//!   gateway alone and never into another local VM, and a VM cannot take over a MAC address by sending from it.

pub mod devices;

use std::net::IpAddr;

/// UDP port of VXLAN (RFC 7348).
pub const VXLAN_PORT: u16 = 4789;

/// One command with the reason for it. An empty reason belongs to the step before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Why, in a sentence; printed as a comment.
    pub why: String,
    /// The command and its arguments.
    pub argv: Vec<String>,
}

impl Step {
    /// From a command line without quoting; words are cut at blanks.
    pub fn new(why: &str, command: &str) -> Step {
        Step { why: why.to_string(), argv: command.split_whitespace().map(str::to_string).collect() }
    }
}

/// A host as an endpoint of one VPC's tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vtep {
    /// The VPC's VNI.
    pub vni: u32,
    /// The host's own tunnel address: the address of its Nc.
    pub local: IpAddr,
    /// The gateway's tunnel address.
    pub gateway: IpAddr,
    /// MTU of the underlay interface.
    pub underlay_mtu: u32,
    /// IPv6: send a zero outer UDP checksum. The gateway accepts it unless it is configured to refuse it.
    pub zero_checksum: bool,
}

/// The port of one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Interface of the host: a tap, or the host's end of a veth pair.
    pub device: String,
    /// VNI of the VM's VPC.
    pub vni: u32,
    /// The VM's MAC address.
    pub mac: String,
}

/// Bytes that the tunnel adds to the VM's IP packet: outer IP, UDP, VXLAN, inner Ethernet.
pub fn overhead(gateway: IpAddr) -> u32 {
    match gateway {
        IpAddr::V4(_) => 20 + 8 + 8 + 14,
        IpAddr::V6(_) => 40 + 8 + 8 + 14,
    }
}

/// Name of a VPC's VXLAN device.
pub fn vxlan_device(vni: u32) -> String {
    format!("vx{vni}")
}

/// Name of a VPC's bridge.
pub fn bridge_device(vni: u32) -> String {
    format!("br{vni}")
}

/// The steps that connect a host to a VPC.
pub fn vtep_steps(v: &Vtep) -> Vec<Step> {
    let (vx, br) = (vxlan_device(v.vni), bridge_device(v.vni));
    let mtu = v.underlay_mtu - overhead(v.gateway);
    let family = match v.gateway {
        // A VXLAN packet must not be fragmented (RFC 7348 4.3); the kernel then tells the VM its path MTU.
        IpAddr::V4(_) => "df set".to_string(),
        IpAddr::V6(_) => {
            format!("udp6zerocsumrx {}", if v.zero_checksum { "udp6zerocsumtx" } else { "noudp6zerocsumtx" })
        }
    };
    let why_family = match v.gateway {
        IpAddr::V4(_) => "never fragments the outer packet (df)",
        IpAddr::V6(_) => "accepts a gateway that sends no outer UDP checksum (udp6zerocsumrx, RFC 6935)",
    };
    vec![
        Step::new(
            &format!("The tunnel of VNI {}: learns nothing from packets, {why_family}.", v.vni),
            &format!(
                "ip link add {vx} type vxlan id {} local {} dstport {VXLAN_PORT} nolearning ttl 64 {family}",
                v.vni, v.local
            ),
        ),
        Step::new(
            &format!(
                "Room for the outer headers ({} bytes) within the underlay's MTU of {}.",
                overhead(v.gateway),
                v.underlay_mtu
            ),
            &format!("ip link set dev {vx} mtu {mtu} addrgenmode none"),
        ),
        Step::new(
            "Whatever is not a local VM goes to the gateway, broadcast included: it answers ARP and ND for all VMs.",
            &format!("bridge fdb append 00:00:00:00:00:00 dev {vx} dst {}", v.gateway),
        ),
        Step::new(
            "The VPC's bridge. No multicast snooping: neighbour discovery must reach the gateway without a querier.",
            &format!("ip link add {br} type bridge stp_state 0 mcast_snooping 0"),
        ),
        Step::new("", &format!("ip link set dev {br} addrgenmode none")),
        Step::new("", &format!("ip link set dev {vx} master {br}")),
        Step::new(
            "Frames come back with the gateway's MAC; nothing is to be learned from them.",
            &format!("bridge link set dev {vx} learning off"),
        ),
        Step::new("", &format!("ip link set dev {vx} up")),
        Step::new("", &format!("ip link set dev {br} up")),
    ]
}

/// The steps that connect a VM's port to its VPC.
pub fn port_steps(p: &Port) -> Vec<Step> {
    let br = bridge_device(p.vni);
    let mut steps = vec![
        Step::new(
            &format!("The port of VM {}: a tap or veth that exists already.", p.mac),
            &format!("ip link set dev DEVICE master {br} addrgenmode none"),
        ),
        Step::new(
            "It gets frames for its own MAC (static, not learned) and broadcast, but no frames for VMs elsewhere.",
            "bridge link set dev DEVICE learning off flood off",
        ),
        Step::new("", &format!("bridge fdb replace {} dev DEVICE master static", p.mac)),
        Step::new("", "ip link set dev DEVICE up"),
    ];
    // The kernel allows almost any byte in a device's name, blanks in a word included.
    for word in steps.iter_mut().flat_map(|s| &mut s.argv).filter(|word| *word == "DEVICE") {
        p.device.clone_into(word);
    }
    steps
}

/// The steps as a shell script with comments.
pub fn script(title: &str, steps: &[Step]) -> String {
    let mut out = format!("#!/bin/sh\n# {title}\nset -eu\n");
    for step in steps {
        if !step.why.is_empty() {
            out += &format!("\n# {}\n", step.why.replace('\n', " "));
        }
        out += &step.argv.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
        out.push('\n');
    }
    out
}

/// A word as a shell reads it back.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,+@%=".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_string();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The steps that make a host serve `vteps`, with the ports of its VMs.
pub fn host_steps(vteps: &[Vtep], ports: &[Port]) -> Vec<Step> {
    vteps.iter().flat_map(vtep_steps).chain(ports.iter().flat_map(port_steps)).collect()
}

/// What `tunny host-commands` prints: the steps of a host.
pub fn host_commands(nc: &str, steps: &[Step]) -> String {
    let title = format!(
        "Makes this Linux host the NC `{nc}`. Run as root. To undo: delete the vx* and br* devices.\n\
         # The VMs' MTU must be that of the vx device at most. UDP port {VXLAN_PORT} must be open to the gateway."
    );
    script(&title, steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vtep(gateway: &str) -> Vtep {
        Vtep {
            vni: 100,
            local: "192.0.2.1".parse().unwrap(),
            gateway: gateway.parse().unwrap(),
            underlay_mtu: 1500,
            zero_checksum: false,
        }
    }

    #[test]
    fn mtu_leaves_room_for_the_outer_headers() {
        let mtu = |g| vtep_steps(&vtep(g)).iter().find(|s| s.argv.contains(&"mtu".into())).unwrap().argv.join(" ");
        assert!(mtu("192.0.2.9").contains("mtu 1450"));
        assert!(mtu("2001:db8::9").contains("mtu 1430"));
    }

    #[test]
    fn the_script_explains_itself_and_ends_with_the_ports() {
        let port = Port { device: "tap0".into(), vni: 100, mac: "02:00:00:00:00:01".into() };
        let text = host_commands("nc-1", &host_steps(&[vtep("192.0.2.9")], &[port]));
        assert!(text.starts_with("#!/bin/sh\n# Makes this Linux host the NC `nc-1`."));
        assert!(text.contains("bridge fdb append 00:00:00:00:00:00 dev vx100 dst 192.0.2.9"));
        assert!(text.trim_end().ends_with("ip link set dev tap0 up"));
    }

    #[test]
    fn words_are_quoted_for_the_shell() {
        for (word, wanted) in
            [("tap0", "tap0"), ("a b", "'a b'"), ("$(reboot)", "'$(reboot)'"), ("it's", "'it'\\''s'"), ("", "''")]
        {
            assert_eq!(quoted(word), wanted);
        }
        let port = Port { device: "t;reboot".into(), vni: 100, mac: "02:00:00:00:00:01".into() };
        let text = host_commands("nc-1", &host_steps(&[], &[port]));
        assert_eq!(text.matches("'t;reboot'").count(), 4, "{text}");
        assert_eq!(text.matches("t;reboot").count(), 4, "{text}");
    }
}
