// SPDX-License-Identifier: Apache-2.0

use super::Name;
use crate::declare::fields;
use crate::doc::{check_name, Doc};
use crate::error::Problem;
use crate::forms::*;
use abi::Ipv4Net;
use std::net::Ipv4Addr;

const NAMESPACE: &str = "a name as those of objects; Overlays of one Vpc may share a namespace, those of two may not";
const ADDRESS: &str =
    "an IPv4 address of the link to the CE with the length of its network, 8 to 31, as 169.254.7.1/30";

fields! {
    /// A routing daemon that speaks with the customer's router (CE) by this circuit: in a network namespace, at a TAP of the circuit.
    pub struct Routing {
        /// The network namespace in which the routing daemon runs. The node makes it if it is not there, and removes what it has made. Without one the circuit has no TAP, and nothing is learned.
        namespace: Option<Name> = "namespace", any_name(NAMESPACE, check_name).optional();
        /// The gateway's address on the circuit, which the TAP gets. BGP (TCP 179), BFD (UDP 3784, 3785, 4784) and ARP of the CE to it, and nothing else, go to the daemon.
        address: Option<Ipv4Net> = "address", text("IPv4 address", ADDRESS, link_address).optional().meaning("required with a namespace");
        /// Routes that may be learned by this circuit at most. Further ones are refused and counted.
        routes: u32 = "routes", int(1, 1_000_000).or(1000);
        /// Whether the CE may announce a default route.
        default: bool = "defaultRoute", switch().or(false);
    }
}

fn link_address(s: &str) -> Result<Ipv4Net, String> {
    let net: Ipv4Net = s.parse().map_err(|_| format!("`{}` is no IPv4 address with a length", crate::plain(s)))?;
    let (address, len) = (net.addr(), net.prefix_len());
    let why = match () {
        () if !(8..=31).contains(&len) => "its length is not 8 to 31",
        () if address.is_loopback()
            || address.is_multicast()
            || address.octets()[0] == 0
            || address.octets()[0] >= 240 =>
        {
            "no interface can have it"
        }
        () if len < 31 && address == net.network() => "it is the address of the network itself",
        () if len < 31 && address == net.broadcast() => "it is the broadcast address of its network",
        () => return Ok(net),
    };
    Err(format!("`{s}` cannot be used: {why}"))
}

impl Routing {
    /// Namespace and address, if there is to be a daemon.
    pub fn wanted(&self) -> Option<(&Name, Ipv4Net)> {
        Some((self.namespace.as_ref()?, self.address?))
    }

    /// The gateway's address on the circuit.
    pub fn gateway(&self) -> Option<Ipv4Addr> {
        self.wanted().map(|(_, net)| net.addr())
    }

    /// Refuses parts without the whole.
    pub(super) fn check(&self, doc: &mut Doc<'_>, base: &str) {
        let given = |field: &str| format!("{base}.{field}");
        let missing = |what: &str| Problem::Value(format!("is given, but there is no {}", given(what)));
        if self.namespace.is_some() && self.address.is_none() && !doc.is_wrong(&given("address")) {
            doc.wrong(&given("namespace"), missing("address"));
        }
        if self.namespace.is_none() && !doc.is_wrong(&given("namespace")) {
            // An export writes what goes without saying, too.
            let other = Routing { namespace: None, ..self.clone() } != Routing::default();
            for field in ["address", "routes", "defaultRoute"] {
                if other && doc.node(&given(field)).is_some() && !doc.is_wrong(&given(field)) {
                    doc.wrong(&given(field), missing("namespace"));
                }
            }
        }
    }
}
