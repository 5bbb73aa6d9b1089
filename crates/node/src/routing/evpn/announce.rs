// SPDX-License-Identifier: Apache-2.0
//! What the node has the daemon announce, as the daemon is told it. No I/O.

use super::api::{self, Any, Path};
use abi::Mac;
use compile::{EvpnVpc, Own};
use model::BgpNumber;
use prost::Message;
use std::net::IpAddr;

/// Ingress replication (RFC 6514): type 6 of the tunnels for broadcasts.
const REPLICATION: u32 = 6;

/// What tells an announcement from others: route distinguisher and route.
pub type Key = (BgpNumber, Own);

/// The path of one announcement; `vtep` is the node's tunnel address.
pub fn path(vpc: &EvpnVpc, rd: BgpNumber, own: Own, vtep: IpAddr) -> Path {
    let nlri = nlri(vpc, rd, own, vtep);
    let mut communities: Vec<Any> = vpc.export.iter().map(|target| route_target(*target)).collect();
    communities.push(Any::of(api::ENCAPSULATION, &api::Encapsulation { tunnel_type: api::VXLAN }));
    match own {
        Own::Member => {}
        // Nobody else may have what is configured.
        Own::Vm(..) => {
            communities.push(Any::of(api::MOBILITY, &api::Mobility { is_sticky: true, sequence_num: 0 }));
        }
        Own::Prefix(_) => communities.push(Any::of(api::ROUTER_MAC, &api::RouterMac { mac: vpc.mac.to_string() })),
    }
    let reach = api::MpReach { family: Some(api::EVPN), next_hops: vec![vtep.to_string()], nlris: vec![nlri.clone()] };
    let mut pattrs = vec![
        Any::of(api::ORIGIN, &api::Origin { origin: 0 }),
        Any::of(api::MP_REACH, &reach),
        Any::of(api::COMMUNITIES, &api::Communities { communities }),
    ];
    if own == Own::Member {
        let id = match vtep {
            IpAddr::V4(a) => a.octets().to_vec(),
            IpAddr::V6(a) => a.octets().to_vec(),
        };
        pattrs.push(Any::of(api::TUNNEL, &api::PmsiTunnel { flags: 0, kind: REPLICATION, label: vpc.vni.0, id }));
    }
    Path { nlri: Some(nlri), pattrs, family: Some(api::EVPN), ..Path::default() }
}

/// The same without a sequence number.
pub fn unnumbered(mut path: Path) -> Path {
    for any in path.pattrs.iter_mut().filter(|a| a.name() == api::COMMUNITIES) {
        let Ok(mut list) = api::Communities::decode(&any.value[..]) else { continue };
        list.communities.retain(|c| c.name() != api::MOBILITY);
        *any = Any::of(api::COMMUNITIES, &list);
    }
    path
}

fn nlri(vpc: &EvpnVpc, rd: BgpNumber, own: Own, vtep: IpAddr) -> Any {
    let rd = Some(distinguisher(rd));
    // One site, one link: no Ethernet segment.
    let esi = Some(api::Segment { kind: 0, value: vec![0; 9] });
    let (label, ethernet_tag) = (vpc.vni.0, 0);
    match own {
        Own::Member => Any::of(api::MULTICAST, &api::Multicast { rd, ethernet_tag, ip_address: vtep.to_string() }),
        Own::Vm(mac, ip) => {
            let (mac_address, ip_address) = (mac.to_string(), ip.to_string());
            Any::of(api::MAC_IP, &api::MacIp { rd, esi, ethernet_tag, mac_address, ip_address, labels: vec![label] })
        }
        Own::Prefix(prefix) => {
            let none = if prefix.addr().is_ipv4() { "0.0.0.0" } else { "::" };
            let (ip_prefix, ip_prefix_len) = (prefix.network().to_string(), prefix.prefix_len().into());
            let gw_address = none.to_string();
            Any::of(api::PREFIX, &api::IpPrefix { rd, esi, ethernet_tag, ip_prefix, ip_prefix_len, gw_address, label })
        }
    }
}

fn distinguisher(rd: BgpNumber) -> Any {
    match rd {
        BgpNumber::As2(admin, assigned) => Any::of(api::RD2, &api::RdOfAs { admin: admin.into(), assigned }),
        BgpNumber::Ip(admin, assigned) => {
            Any::of(api::RD_IP, &api::RdOfAddress { admin: admin.to_string(), assigned: assigned.into() })
        }
        BgpNumber::As4(admin, assigned) => Any::of(api::RD4, &api::RdOfAs { admin, assigned: assigned.into() }),
    }
}

/// A route target as an extended community.
pub fn route_target(target: BgpNumber) -> Any {
    let (is_transitive, sub_type) = (true, api::ROUTE_TARGET);
    match target {
        BgpNumber::As2(asn, local_admin) => {
            Any::of(api::TARGET2, &api::OfAs { is_transitive, sub_type, asn: asn.into(), local_admin })
        }
        BgpNumber::As4(asn, n) => {
            Any::of(api::TARGET4, &api::OfAs { is_transitive, sub_type, asn, local_admin: n.into() })
        }
        BgpNumber::Ip(address, n) => {
            let address = address.to_string();
            Any::of(api::TARGET_IP, &api::OfAddress { is_transitive, sub_type, address, local_admin: n.into() })
        }
    }
}

/// By what a path that the daemon lists is known, if it is of a kind that nodes announce.
pub fn key(path: &Path) -> Option<Key> {
    let nlri = path.nlri.as_ref()?;
    match nlri.name() {
        api::MULTICAST => {
            let r = api::Multicast::decode(&nlri.value[..]).ok()?;
            Some((number(&r.rd?)?, Own::Member))
        }
        api::MAC_IP => {
            let r = api::MacIp::decode(&nlri.value[..]).ok()?;
            let mac: Mac = r.mac_address.parse().ok()?;
            Some((number(&r.rd?)?, Own::Vm(mac, r.ip_address.parse().ok()?)))
        }
        api::PREFIX => {
            let r = api::IpPrefix::decode(&nlri.value[..]).ok()?;
            let length = u8::try_from(r.ip_prefix_len).ok()?;
            let prefix = abi::Prefix::new(r.ip_prefix.parse().ok()?, length).ok()?;
            Some((number(&r.rd?)?, Own::Prefix(prefix.trunc())))
        }
        _ => None,
    }
}

fn number(rd: &Any) -> Option<BgpNumber> {
    match rd.name() {
        api::RD2 => {
            let r = api::RdOfAs::decode(&rd.value[..]).ok()?;
            Some(BgpNumber::As2(u16::try_from(r.admin).ok()?, r.assigned))
        }
        api::RD4 => {
            let r = api::RdOfAs::decode(&rd.value[..]).ok()?;
            Some(BgpNumber::As4(r.admin, u16::try_from(r.assigned).ok()?))
        }
        api::RD_IP => {
            let r = api::RdOfAddress::decode(&rd.value[..]).ok()?;
            Some(BgpNumber::Ip(r.admin.parse().ok()?, u16::try_from(r.assigned).ok()?))
        }
        _ => None,
    }
}
