// SPDX-License-Identifier: Apache-2.0
//! What the routing daemon says, read without trust: whatever comes is a route, is counted as unreadable, or is none of ours. No I/O.

use super::api::{self, Any, Path};
use abi::{Mac, Prefix};
use model::BgpNumber;
use prost::Message;
use std::net::IpAddr;

/// The most extended communities of a path, and attributes, that are looked at.
const MOST: usize = 256;

/// Why a route is not learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refused {
    /// Its tunnels are no VXLAN.
    Encapsulation,
    /// It has an Ethernet tag: a VLAN-aware bundle.
    Tag,
    /// It has another VNI than the VPC.
    OtherVni,
    /// Its tunnel end is the node itself.
    OwnVtep,
    /// Its tunnel end is no address that a packet can be sent to.
    BadVtep,
    /// The node has no tunnel address of the family of its tunnel end.
    NoVtep,
    /// It claims what is configured: a VM, the gateway, or a place in a local route.
    Own,
    /// It lies in no local route of the VPC.
    NotLocal,
    /// It lies where a peer's VMs are.
    Peer,
    /// Its addresses are never forwarded.
    Martian,
    /// It is the default route, and the VPC may not learn one.
    Default,
    /// Another MAC address has the IP address.
    Taken,
    /// Nothing says to which MAC address its packets go.
    NoRouter,
    /// Its MAC address is somewhere else too.
    Moves,
    /// The VPC has as many as it may.
    Limit,
}

impl Refused {
    /// As it is told.
    pub fn name(self) -> &'static str {
        match self {
            Refused::Encapsulation => "encapsulation",
            Refused::Tag => "ethernet_tag",
            Refused::OtherVni => "other_vni",
            Refused::OwnVtep => "own_vtep",
            Refused::BadVtep => "bad_vtep",
            Refused::NoVtep => "no_vtep",
            Refused::Own => "own_vms",
            Refused::NotLocal => "not_local",
            Refused::Peer => "peer_vpc",
            Refused::Martian => "martian",
            Refused::Default => "default_route",
            Refused::Taken => "address_taken",
            Refused::NoRouter => "no_router",
            Refused::Moves => "moves",
            Refused::Limit => "limit",
        }
    }
}

/// What a route says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    /// The tunnel end takes part in the VPC (route type 3).
    Member,
    /// A MAC address is behind it, with an IP address or without (type 2).
    Host {
        /// The MAC address.
        mac: Mac,
        /// The IP address.
        ip: Option<IpAddr>,
        /// Of several places the one with the highest holds (RFC 7432 §7.7).
        sequence: u32,
    },
    /// A prefix is behind it (type 5).
    Prefix {
        /// The prefix.
        prefix: Prefix,
        /// MAC address to which its packets go.
        router: Option<Mac>,
        /// Or the address of who has that MAC address.
        gateway: Option<IpAddr>,
    },
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// What it says.
    pub what: What,
    /// The tunnel end: its next hop.
    pub vtep: IpAddr,
    /// Its VNI.
    pub vni: u32,
    /// Its Ethernet tag.
    pub tag: u32,
    /// Its tunnels are VXLAN, or it does not say.
    pub vxlan: bool,
    /// Its route targets.
    pub targets: Vec<BgpNumber>,
}

/// Attributes, as far as they concern a route.
#[derive(Debug, Default)]
struct Attributes {
    next_hop: Option<IpAddr>,
    targets: Vec<BgpNumber>,
    tunnels: Vec<u32>,
    router: Option<Mac>,
    sequence: u32,
    label: Option<u32>,
}

/// Reads a path. `Ok(None)`: a route of a type that is nothing for a gateway (1, 4 and others).
pub fn read(path: &Path) -> Result<Option<Said>, &'static str> {
    let nlri = path.nlri.as_ref().ok_or("no route")?;
    let mut a = Attributes::default();
    for any in path.pattrs.iter().take(MOST) {
        a.take(any)?;
    }
    let (what, tag, label) = match nlri.name() {
        api::MAC_IP => {
            let r = api::MacIp::decode(&nlri.value[..]).map_err(|_| "a route of type 2")?;
            let ip = match r.ip_address.as_str() {
                "" | "0.0.0.0" | "::" | "<nil>" => None,
                text => Some(text.parse().map_err(|_| "an IP address")?),
            };
            let mac = unicast(&r.mac_address)?;
            (What::Host { mac, ip, sequence: a.sequence }, r.ethernet_tag, r.labels.first().copied())
        }
        api::MULTICAST => {
            let r = api::Multicast::decode(&nlri.value[..]).map_err(|_| "a route of type 3")?;
            (What::Member, r.ethernet_tag, a.label)
        }
        api::PREFIX => {
            let r = api::IpPrefix::decode(&nlri.value[..]).map_err(|_| "a route of type 5")?;
            let length = u8::try_from(r.ip_prefix_len).map_err(|_| "a prefix")?;
            let address = r.ip_prefix.parse().map_err(|_| "a prefix")?;
            let prefix = Prefix::new(address, length).map_err(|_| "a prefix")?.trunc();
            let gateway = r.gw_address.parse::<IpAddr>().ok().filter(|a| !a.is_unspecified());
            (What::Prefix { prefix, router: a.router, gateway }, r.ethernet_tag, Some(r.label))
        }
        _ => return Ok(None),
    };
    let vtep = a.next_hop.ok_or("no next hop")?;
    let vni = label.filter(|vni| *vni <= 0xff_ffff).ok_or("no VNI")?;
    let vxlan = a.tunnels.is_empty() || a.tunnels.contains(&api::VXLAN);
    Ok(Some(Said { what, vtep, vni, tag, vxlan, targets: a.targets }))
}

fn unicast(text: &str) -> Result<Mac, &'static str> {
    let mac: Mac = text.parse().map_err(|_| "a MAC address")?;
    match mac.0 == 0 || mac.0 >> 40 & 1 != 0 {
        true => Err("a MAC address of nobody"),
        false => Ok(mac),
    }
}

impl Attributes {
    fn take(&mut self, any: &Any) -> Result<(), &'static str> {
        match any.name() {
            api::MP_REACH => {
                let r = api::MpReach::decode(&any.value[..]).map_err(|_| "MP_REACH_NLRI")?;
                // Of two IPv6 addresses the second is link-local.
                self.next_hop = r.next_hops.first().and_then(|a| a.parse().ok());
            }
            api::NEXT_HOP => {
                let r = api::NextHop::decode(&any.value[..]).map_err(|_| "NEXT_HOP")?;
                self.next_hop = self.next_hop.or(r.next_hop.parse().ok());
            }
            api::TUNNEL => {
                let r = api::PmsiTunnel::decode(&any.value[..]).map_err(|_| "PMSI_TUNNEL")?;
                self.label = Some(r.label);
            }
            api::COMMUNITIES => {
                let r = api::Communities::decode(&any.value[..]).map_err(|_| "extended communities")?;
                for community in r.communities.iter().take(MOST) {
                    self.community(community)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn community(&mut self, any: &Any) -> Result<(), &'static str> {
        let wrong = "an extended community";
        match any.name() {
            api::TARGET2 | api::TARGET4 => {
                let c = api::OfAs::decode(&any.value[..]).map_err(|_| wrong)?;
                let long = any.name() == api::TARGET4;
                let target = match long {
                    true => u16::try_from(c.local_admin).ok().map(|n| BgpNumber::As4(c.asn, n)),
                    false => u16::try_from(c.asn).ok().map(|asn| BgpNumber::As2(asn, c.local_admin)),
                };
                self.targets.extend(target.filter(|_| c.sub_type == api::ROUTE_TARGET));
            }
            api::TARGET_IP => {
                let c = api::OfAddress::decode(&any.value[..]).map_err(|_| wrong)?;
                let parts = c.address.parse().ok().zip(u16::try_from(c.local_admin).ok());
                let target = parts.map(|(address, n)| BgpNumber::Ip(address, n));
                self.targets.extend(target.filter(|_| c.sub_type == api::ROUTE_TARGET));
            }
            api::ENCAPSULATION => {
                self.tunnels.push(api::Encapsulation::decode(&any.value[..]).map_err(|_| wrong)?.tunnel_type);
            }
            api::ROUTER_MAC => {
                let c = api::RouterMac::decode(&any.value[..]).map_err(|_| wrong)?;
                self.router = unicast(&c.mac).ok();
            }
            api::MOBILITY => {
                self.sequence = api::Mobility::decode(&any.value[..]).map_err(|_| wrong)?.sequence_num;
            }
            _ => {}
        }
        Ok(())
    }
}
