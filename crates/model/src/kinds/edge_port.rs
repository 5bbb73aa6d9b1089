// SPDX-License-Identifier: Apache-2.0

use super::gateway::{Limit, PacketLimit};
use super::routing::Routing;
use super::{texts, CustomerRate, Described, Kind, Name, Shape, ShapeSlot};
use crate::broken::stand_ins;
use crate::declare::fields;
use crate::doc::Doc;
use crate::error::Problem;
use crate::forms::*;
use std::net::IpAddr;

const RATES: &str = "up to 4094, each as 100=50Mbit, of each customer one";
const INTERFACE: &str = "an interface name of 1 to 15 characters, of no other EdgePort, no uplink and no wire";

/// EtherTypes of tags by the names of their standards.
pub const TPIDS: [(&str, u16); 3] = [("802.1Q", 0x8100), ("802.1ad", 0x88a8), ("pre-standard", 0x9100)];

fields! {
    /// A port of the node towards sites of customers, who reach their VPCs over it by Overlays (provider edge).
    pub kind EdgePort {
        /// Name, unique among the documents of its kind.
        name: Name = "metadata.name", OwnName;
        /// In a region the node that has the interface; the controller takes no EdgePort without it. Other nodes send there (spec.addresses of the Node), and the controller fills in spec.at for them. In a node's own files it has no place.
        node: Option<Name> = "spec.node", own_name().optional().meaning("no controller sends it");
        /// The interface. It needs no address; what comes by it is a customer's, but for the link's own control (LACP, LLDP), which is left to the kernel. Either this is given or spec.at.
        interface: Option<String> = "spec.interface", interface_name(INTERFACE).optional().meaning("the port is at another node, spec.at");
        /// Tunnel addresses of the node at which the port is, if that is another one than this. A packet to a line of this port goes there as it came from its VM's host, once; the Overlays are the same documents at both nodes, and that node needs the VPCs and VMs, too. It goes by the address of its own outer family.
        at: Vec<IpAddr> = "spec.at", underlay("").list(2, "1 or 2 unicast addresses, of each family one at most, none the gateway's own").meaning("the port is here");
        /// What lies in it: Ethernet frames, or IP packets without a frame, as in a TUN interface at which a customer's tunnel over the Internet ends (WireGuard's, for example). All that comes by one is one customer's, and the software path serves it.
        tun: bool = "spec.link", choice(&[("ethernet", false), ("tun", true)]).or(false);
        /// By what the tables know it: each EdgePort of the node has another one.
        number: u8 = "spec.number", int(0, abi::EDGE_PORTS_MAX as u64 - 1).or(0);
        /// Tags of each frame: 2, customer and overlay (Q-in-Q); 1, the customer alone; 0, none: all that comes by the port is one customer's.
        tags: u8 = "spec.tags", int(0, abi::EDGE_TAGS_MAX as u64).or(2);
        /// EtherType of the outer tag, or of the only one: 0x8100, 0x88a8 or 0x9100. Frames with another one are dropped (`edge_tpid`).
        outer_tpid: Option<u16> = "spec.tpids.outer", choice(&TPIDS).optional().meaning("802.1ad with 2 tags, 802.1Q with 1");
        /// EtherType of the inner tag.
        inner_tpid: u16 = "spec.tpids.inner", choice(&TPIDS).or(0x8100);
        /// Rates that customers' Overlays at this port share, by the customer's tag (0 at a port without tags): what goes to all sites of a customer together is no more, whatever each Overlay's spec.shape says. The lines take turns.
        rates: Vec<CustomerRate> = "spec.customerRates", parsed("customer's rate", "").list(4094, RATES);
        /// Control packets (ARP, BGP, BFD) of the routers of each customer at this port that go to routing daemons, on circuits with spec.routing.
        control: PacketLimit = "spec.control", Limit(PacketLimit { rate: 1_000, burst: 1_000 }, ["Control packets (ARP, BGP, BFD) of each customer at this port, by which its routers speak with a routing daemon (`spec.routing` of an Overlay). Further ones are dropped (`edge_control_limited`).", "The same at once."]);
    }
}

impl EdgePort {
    /// The interface, if the port is at the node that its region calls `own`.
    pub fn here(&self, own: Option<&str>) -> Option<&String> {
        self.interface.as_ref().filter(|_| self.node.is_none() || self.node.as_deref() == own)
    }

    /// Tunnel addresses of the node at which it is, if that is another one than `own`.
    pub fn elsewhere(&self, own: Option<&str>) -> &[IpAddr] {
        match self.here(own) {
            Some(_) => &[],
            None => &self.at,
        }
    }

    /// EtherTypes of the outer and the inner tag.
    pub fn tpids(&self) -> [u16; 2] {
        let outer = if self.tags > 1 { 0x88a8 } else { 0x8100 };
        [self.outer_tpid.unwrap_or(outer), self.inner_tpid]
    }
}

/// Whether of several addresses none could be chosen by its family.
pub(crate) fn two_of_a_family(addresses: &[IpAddr]) -> bool {
    matches!(addresses, [a, b] if a.is_ipv4() == b.is_ipv4())
}

impl Described for EdgePort {
    fn name(&self) -> Name {
        self.name.clone()
    }

    fn summary(&self) -> String {
        let place = self.interface.clone().unwrap_or_else(|| format!("at {}", texts(self.at.iter())));
        let place = self.node.as_ref().map_or(place.clone(), |node| format!("{place} of {node}"));
        match self.tags {
            0 if self.tun => format!("{place}, tunnel"),
            0 => format!("{place}, untagged"),
            1 => format!("{place}, 1 tag"),
            n => format!("{place}, {n} tags"),
        }
    }

    fn check(self, doc: &mut Doc<'_>) -> Option<EdgePort> {
        let sound = |field| !doc.is_wrong(field);
        let why = match (&self.interface, self.at.as_slice()) {
            (None, _) if self.node.is_some() && sound("spec.interface") => {
                Some(("spec.interface", "is missing: write the interface that Node spec.node has for the port"))
            }
            (Some(_), [_, ..]) if self.node.is_none() => {
                Some(("spec.at", "is given, and spec.interface, too: the port is either here or at another node"))
            }
            (None, []) if sound("spec.interface") && sound("spec.at") => Some((
                "spec.interface",
                "is missing: write the port's interface, or in `spec.at` the tunnel address of the node at which it is",
            )),
            (_, at) if two_of_a_family(at) => {
                Some(("spec.at", "has two addresses of one family: which of them is to be used?"))
            }
            _ => None,
        };
        if let Some((field, why)) = why {
            doc.wrong(field, Problem::Value(why.into()));
        }
        for (i, r) in self.rates.iter().enumerate() {
            let why = match (r.customer, self.tags) {
                _ if self.rates[..i].iter().any(|o| o.customer == r.customer) => "is the second rate of this customer",
                (0, 1..) => "names no customer: 0 is for a port without tags",
                (1.., 0) => "names a tag, but the port's frames have none: write 0",
                _ => continue,
            };
            doc.wrong_entry("spec.customerRates", i, Problem::Value(format!("`{r}` {why}")), RATES);
        }
        Some(self)
    }
}

const VLAN_ID: &str = "a VLAN id, 1 to 4094";

fields! {
    /// A customer's way from an EdgePort into a VPC: port and tags name the VPC, and routes of scope `line` lead back.
    pub kind Overlay {
        /// Name, unique among the documents of its kind.
        name: Name = "metadata.name", OwnName;
        /// The VPC that the site reaches. Its Routes say what is behind the line (scope `line`): nothing else may be the source of what comes from there (`edge_source`).
        vpc: Name = "spec.vpc", name_of(Kind::Vpc, "name of a Vpc").required(stand_ins::name);
        /// The port.
        port: Name = "spec.port", name_of(Kind::EdgePort, "name of an EdgePort").required(stand_ins::name);
        /// The customer's tag: the outer one, or the only one.
        customer: Option<u16> = "spec.customer", int(1, 4094).allowing(VLAN_ID).optional().meaning("required with 1 or 2 tags");
        /// The overlay's tag, the inner one.
        overlay: Option<u16> = "spec.overlay", int(1, 4094).allowing(VLAN_ID).optional().meaning("required with 2 tags");
        /// By what Routes of scope line of this VPC name it.
        line: u8 = "spec.line", int(0, 255).or(0);
        /// MAC address of the customer's router (CE) on the line. Packets to the site are sent to it.
        ce: Option<crate::Mac> = "spec.mac", mac().optional().meaning("required, unless the port's link is tun");
        /// From which MAC addresses frames of the site come: from spec.mac alone, others are dropped (`edge_mac`), so that no site's router speaks by another site's line; or from any, as those of routers that share spec.mac by VRRP and send from their own.
        any_sender: bool = "spec.senders", choice(&[("ce", false), ("any", true)]).or(false);
        /// Shaping of what goes to the site.
        shape: Option<Shape> = "spec.shape", ShapeSlot;
        /// The routing daemon that speaks with the CE.
        routing: Routing = "spec.routing", part();
    }
}

impl Described for Overlay {
    const OF_VPCS: bool = true;

    fn name(&self) -> Name {
        self.name.clone()
    }

    fn summary(&self) -> String {
        let tag = |word: &str, id: Option<u16>| id.map_or(String::new(), |id| format!(" {word} {id}"));
        let tags = tag("customer", self.customer) + &tag("overlay", self.overlay);
        format!("{}{tags} to {} line {}", self.port, self.vpc, self.line)
    }

    fn vpcs(&self) -> &[Name] {
        std::slice::from_ref(&self.vpc)
    }

    fn check(self, doc: &mut Doc<'_>) -> Option<Overlay> {
        if self.overlay.is_some() && self.customer.is_none() && !doc.is_wrong("spec.customer") {
            doc.wrong("spec.overlay", Problem::Value("is given, but there is no spec.customer outside of it".into()));
        }
        self.routing.check(doc, "spec.routing");
        Some(self)
    }
}
