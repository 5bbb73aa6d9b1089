// SPDX-License-Identifier: Apache-2.0
//! The region that the lab builds: who is where, with which addresses. Fixed, so that what is printed can be looked up here.
//!
//! A drawing and the reasons for its settings: `lab/README.md`.
//!
//! blue and red are peered; green is peered with nobody and uses the same addresses as blue. blue and red run over the
//! IPv4 underlay, green over the IPv6 underlay.

use crate::shell::Namespace;
use crate::LabError;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use vtep::{Port, Vtep};

/// Bytes of the VMs' IP packets on an underlay of 1500, over IPv4 and IPv6: the smaller one fits both.
pub const INNER_OVERHEAD: u32 = 70;

/// A VPC of the region.
#[derive(Clone, Copy, Debug)]
pub struct Vpc {
    /// Its name.
    pub name: &'static str,
    /// Its VNI.
    pub vni: u32,
    /// The gateway's MAC in it.
    pub gateway_mac: &'static str,
    /// The gateway's addresses in it.
    pub gateways: &'static [&'static str],
    /// Its own prefixes.
    pub prefixes: &'static [&'static str],
    /// The VPC it is peered with, and the peer's prefixes.
    pub peer: Option<(&'static str, &'static [&'static str])>,
    /// Its tunnels run over IPv6.
    pub underlay6: bool,
}

/// A VM of the region.
#[derive(Clone, Copy, Debug)]
pub struct Vm {
    /// Its name, also that of its namespace behind the prefix.
    pub name: &'static str,
    /// Its VPC.
    pub vpc: &'static str,
    /// 0 = nc-a, 1 = nc-b.
    pub host: usize,
    /// IPv4 address and gateway (the prefix is a /24).
    pub v4: (&'static str, &'static str),
    /// IPv6 address and gateway (the prefix is a /64).
    pub v6: (&'static str, &'static str),
    /// MAC address.
    pub mac: &'static str,
}

const BLUE: &[&str] = &["10.0.0.0/24", "fd10:0:0:1::/64"];
const RED: &[&str] = &["10.1.0.0/24", "fd10:0:0:2::/64"];
const GREEN: &[&str] = &["10.0.0.0/24", "10.2.0.0/24", "fd10:0:0:1::/64", "fd10:0:0:3::/64"];

/// The VPCs.
pub const VPCS: [Vpc; 3] = [
    Vpc {
        name: "blue",
        vni: 100,
        gateway_mac: "02:00:00:64:00:01",
        gateways: &["10.0.0.1", "fd10:0:0:1::1"],
        prefixes: BLUE,
        peer: Some(("red", RED)),
        underlay6: false,
    },
    Vpc {
        name: "red",
        vni: 200,
        gateway_mac: "02:00:00:c8:00:01",
        gateways: &["10.1.0.1", "fd10:0:0:2::1"],
        prefixes: RED,
        peer: Some(("blue", BLUE)),
        underlay6: false,
    },
    Vpc {
        name: "green",
        vni: 300,
        gateway_mac: "02:00:01:2c:00:01",
        gateways: &["10.0.0.1", "10.2.0.1", "fd10:0:0:1::1", "fd10:0:0:3::1"],
        prefixes: GREEN,
        peer: None,
        underlay6: true,
    },
];

/// The VMs. green-1 has the addresses of blue-1.
pub const VMS: [Vm; 6] = [
    vm_on(0, "blue-1", "blue", ("10.0.0.11", "10.0.0.1"), ("fd10:0:0:1::11", "fd10:0:0:1::1"), "02:00:00:64:00:11"),
    vm_on(1, "blue-2", "blue", ("10.0.0.12", "10.0.0.1"), ("fd10:0:0:1::12", "fd10:0:0:1::1"), "02:00:00:64:00:12"),
    vm_on(1, "red-1", "red", ("10.1.0.11", "10.1.0.1"), ("fd10:0:0:2::11", "fd10:0:0:2::1"), "02:00:00:c8:00:11"),
    vm_on(0, "red-2", "red", ("10.1.0.12", "10.1.0.1"), ("fd10:0:0:2::12", "fd10:0:0:2::1"), "02:00:00:c8:00:12"),
    vm_on(0, "green-1", "green", ("10.0.0.11", "10.0.0.1"), ("fd10:0:0:1::11", "fd10:0:0:1::1"), "02:00:01:2c:00:11"),
    vm_on(1, "green-2", "green", ("10.2.0.12", "10.2.0.1"), ("fd10:0:0:3::12", "fd10:0:0:3::1"), "02:00:01:2c:00:12"),
];

const fn vm_on(
    host: usize,
    name: &'static str,
    vpc: &'static str,
    v4: (&'static str, &'static str),
    v6: (&'static str, &'static str),
    mac: &'static str,
) -> Vm {
    Vm { name, vpc, host, v4, v6, mac }
}

/// Names of the hosts.
pub const HOSTS: [&str; 2] = ["nc-a", "nc-b"];
/// The gateway's IPv4 tunnel address, on its loopback.
pub const VTEP4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The gateway's IPv6 tunnel address, on its loopback.
pub const VTEP6: Ipv6Addr = Ipv6Addr::new(0xfd98, 0, 0, 0, 0, 0, 0, 1);

/// A server on the Internet: nginx and iperf3.
pub const WEB4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 10);
/// The same over IPv6.
pub const WEB6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x64, 0, 0, 0, 0, 0x10);
/// What the Internet is to the VPCs; they route nothing else there, so that other unknown addresses stay unknown.
pub const INTERNET: [&str; 2] = ["198.51.100.0/24", "2001:db8:64::/48"];
/// Largest packet of the way between router and server: less than the VMs', so that they must find out.
pub const INTERNET_MTU: u32 = 1400;
/// The gateway's public addresses.
pub const PUBLIC: &str = "203.0.113.0/28";
/// Where a region of several nodes serves blue and green, each has its own part of them: the router's prefixes, and the pools.
pub const PUBLIC_OF: [(&str, &str, &str); 2] =
    [("blue", "203.0.113.0/28", "203.0.113.0-203.0.113.11"), ("green", "203.0.113.12/30", "203.0.113.12/30")];
/// The public address of red-1.
pub const ELASTIC: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 8);
/// The public address of which port 8080 leads to iperf3 in blue-2.
pub const FORWARD: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);
/// Announced by blue: its IPv6 addresses go out as they are.
pub const BLUE6: &str = "fd10:0:0:1::/64";

/// A bare-metal server behind the filter node: a wire of its own.
#[derive(Clone, Copy, Debug)]
pub struct Bare {
    /// Its name, also that of its namespace behind the prefix, and of its VPC.
    pub name: &'static str,
    /// VNI of its VPC.
    pub vni: u32,
}

/// The servers behind the filter node; number n is in segment 48 + n.
pub const BARES: [Bare; 2] = [Bare { name: "bare-1", vni: 1001 }, Bare { name: "bare-2", vni: 1002 }];

/// The VPC of this name.
pub fn vpc(name: &str) -> &'static Vpc {
    VPCS.iter().find(|v| v.name == name).expect("a VM names a VPC of the plan")
}

/// The VM of this name, if there is one.
pub fn vm(name: &str) -> Option<&'static Vm> {
    VMS.iter().find(|v| v.name == name)
}

/// A subnet of the underlay between the router (.1) and something else (.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment(pub u8);

impl Segment {
    /// The segment of a host.
    pub fn host(index: usize) -> Segment {
        Segment(1 + index as u8)
    }
    /// The segment of an uplink of the gateway.
    pub fn uplink(index: usize) -> Segment {
        Segment(16 + index as u8)
    }
    /// The segment of the server on the Internet.
    pub fn internet() -> Segment {
        Segment(32)
    }
    /// The segment of a bare-metal server: the filter node in between has no address.
    pub fn bare(index: usize) -> Segment {
        Segment(48 + index as u8)
    }
    /// The router's IPv4 address in it.
    pub fn router4(self) -> Ipv4Addr {
        Ipv4Addr::new(172, 31, self.0, 1)
    }
    /// The other one's IPv4 address.
    pub fn node4(self) -> Ipv4Addr {
        Ipv4Addr::new(172, 31, self.0, 2)
    }
    /// The router's IPv6 address in it.
    pub fn router6(self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd31, 0, 0, self.0 as u16, 0, 0, 0, 1)
    }
    /// The other one's IPv6 address.
    pub fn node6(self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd31, 0, 0, self.0 as u16, 0, 0, 0, 2)
    }
}

/// Names that depend on the instance, so that several labs can run at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    suffix: String,
}

impl Names {
    /// The names of the lab with this suffix; empty for the usual one.
    pub fn new(suffix: &str) -> Names {
        Names { suffix: suffix.to_string() }
    }

    /// A namespace of the lab.
    pub fn namespace(&self, what: &str) -> Namespace {
        match self.suffix.as_str() {
            "" => Namespace(format!("tny-{what}")),
            s => Namespace(format!("tny-{s}-{what}")),
        }
    }

    /// Every namespace of the lab.
    pub fn namespaces(&self) -> Vec<Namespace> {
        let vms = VMS.iter().map(|v| v.name);
        let bares = BARES.iter().map(|b| b.name);
        ["net", "gw", "inet", "edge"]
            .into_iter()
            .chain(HOSTS)
            .chain(vms)
            .chain(bares)
            .map(|n| self.namespace(n))
            .collect()
    }

    /// The node's instance name.
    pub fn instance(&self) -> String {
        match self.suffix.as_str() {
            "" => "lab".to_string(),
            s => format!("lab-{s}"),
        }
    }

    /// Where state, configuration and logs lie.
    pub fn dir(&self) -> PathBuf {
        PathBuf::from("/run/tunny").join(self.instance())
    }

    /// Writes one of the lab's files; its path.
    pub(crate) fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> Result<String, LabError> {
        let path = self.dir().join(name);
        std::fs::write(&path, contents).map_err(|source| LabError::File { path: path.clone(), source })?;
        Ok(path.display().to_string())
    }
}

/// The tunnels of a host, one a VPC.
pub fn vteps(host: usize, underlay_mtu: u32) -> Vec<Vtep> {
    VPCS.iter()
        .map(|v| Vtep {
            vni: v.vni,
            local: nc_address(host, v.underlay6),
            gateway: if v.underlay6 { VTEP6.into() } else { VTEP4.into() },
            underlay_mtu,
            zero_checksum: false,
        })
        .collect()
}

/// The address of a host's Nc.
pub fn nc_address(host: usize, v6: bool) -> IpAddr {
    let segment = Segment::host(host);
    if v6 {
        segment.node6().into()
    } else {
        segment.node4().into()
    }
}

/// The name of a host's Nc.
pub fn nc_name(host: usize, v6: bool) -> String {
    format!("{}{}", HOSTS[host], if v6 { "-v6" } else { "" })
}

/// The ports of a host's VMs.
pub fn ports(host: usize) -> Vec<Port> {
    VMS.iter()
        .filter(|v| v.host == host)
        .map(|v| Port { device: port_device(v), vni: vpc(v.vpc).vni, mac: v.mac.to_string() })
        .collect()
}

/// The host's end of a VM's cable.
pub fn port_device(vm: &Vm) -> String {
    format!("p-{}", vm.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_names_fit_the_kernel() {
        for vm in VMS {
            assert!(port_device(&vm).len() <= 15);
        }
    }

    #[test]
    fn addresses_overlap_between_vpcs_and_never_inside_one() {
        let (b, g) = (vm("blue-1").unwrap(), vm("green-1").unwrap());
        assert_eq!((b.v4, b.v6), (g.v4, g.v6));
        for x in VMS {
            for y in VMS {
                assert!(x.name == y.name || x.vpc != y.vpc || (x.v4 != y.v4 && x.v6 != y.v6 && x.mac != y.mac));
            }
        }
    }

    #[test]
    fn a_suffix_keeps_labs_apart() {
        assert_eq!(Names::new("").namespace("gw").0, "tny-gw");
        assert_eq!(Names::new("t7").namespace("gw").0, "tny-t7-gw");
        assert_eq!(Names::new("").namespaces().len(), 4 + 2 + 6 + 2);
    }
}
