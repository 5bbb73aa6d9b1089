// SPDX-License-Identifier: Apache-2.0
//! A customer's site at an edge port without tags: a namespace.

use super::Region;
use lab::shell::{self, Namespace};
use std::process::Child;

/// Its address.
pub const SITE: &str = "10.9.0.5";

/// A host behind an edge port, and its iperf3.
pub struct Site {
    pub ns: Namespace,
    server: Child,
}

impl Site {
    /// Port `edgeN` of the node leads to it; its CE has the MAC address 02:00:00:00:ce:0N.
    pub fn new(region: &Region, n: u8) -> Site {
        let (gw, ns) = (region.ns("gw"), region.names.namespace(&format!("site{n}")));
        shell::run(&format!("ip netns add {}", ns.0)).unwrap();
        shell::run(&format!("ip link add edge{n} netns {} type veth peer name eth0 netns {}", gw.0, ns.0)).unwrap();
        gw.run(&format!("sysctl -q -w net.ipv6.conf.edge{n}.disable_ipv6=1")).unwrap();
        gw.run(&format!("ip link set edge{n} up")).unwrap();
        for line in [
            &format!("ip link set eth0 address 02:00:00:00:ce:0{n}"),
            "sysctl -q -w net.ipv6.conf.eth0.disable_ipv6=1",
            &format!("ip addr add {SITE}/24 dev eth0"),
            "ip link set lo up",
            "ip link set eth0 up",
            "ip route add 10.0.0.0/24 dev eth0",
            "ip route add default via 10.0.0.1 dev eth0 onlink",
            "ethtool -K eth0 tx off",
            // On veth that starts the receiving NAPI context, without which the kernel drops what an XDP program sends.
            "ethtool -K eth0 gro on",
        ] {
            ns.run(line).unwrap();
        }
        let server = ns.spawn(&["iperf3", "-s"], &region.names.dir().join(format!("site{n}.log"))).unwrap();
        Site { ns, server }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = shell::run(&format!("ip netns del {}", self.ns.0));
    }
}
