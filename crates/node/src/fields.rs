// SPDX-License-Identifier: Apache-2.0
//! A frame as named header fields, for showing what changed.

use abi::Mac;
use wire::{be, ethernet, ipv4, ipv6, protocol, udp, vxlan};

/// Named fields in the order of the headers; stops where the frame does.
pub fn fields(frame: &[u8]) -> Vec<(String, String)> {
    let mut list = Vec::new();
    layer(frame, "outer", &mut list);
    list
}

fn layer(frame: &[u8], which: &str, list: &mut Vec<(String, String)>) {
    let mut put = |name: &str, value: String| list.push((format!("{which} {name}"), value));
    let Ok(eth) = ethernet::Frame::new_checked(frame) else { return };
    put("Ethernet destination", Mac(eth.dst()).to_string());
    put("Ethernet source", Mac(eth.src()).to_string());
    put("EtherType", format!("{:#06x}", eth.ethertype()));
    let bytes = eth.payload();
    let (number, payload) = match eth.ethertype() {
        ethernet::ethertype::IPV4 => {
            let Ok(ip) = ipv4::Packet::new_checked(bytes) else { return };
            put("source", std::net::Ipv4Addr::from(ip.src()).to_string());
            put("destination", std::net::Ipv4Addr::from(ip.dst()).to_string());
            put("TTL", ip.ttl().to_string());
            put("TOS", format!("{:#04x}", ip.tos()));
            put("identification", ip.ident().to_string());
            put("fragment word", format!("{:#06x}", ip.flags_offset()));
            put("total length", ip.total_len().to_string());
            put("header checksum", format!("{:#06x}", ip.checksum()));
            (ip.protocol(), bytes.get(ip.header_len().max(ipv4::HEADER_LEN)..).unwrap_or_default())
        }
        ethernet::ethertype::IPV6 => {
            let Ok(ip) = ipv6::Packet::new_checked(bytes) else { return };
            put("source", std::net::Ipv6Addr::from(ip.src()).to_string());
            put("destination", std::net::Ipv6Addr::from(ip.dst()).to_string());
            put("hop limit", ip.hop_limit().to_string());
            put("traffic class", format!("{:#04x}", ip.traffic_class()));
            put("flow label", format!("{:#07x}", ip.flow_label()));
            put("payload length", ip.payload_len().to_string());
            put("next header", ip.next_header().to_string());
            if ipv6::is_extension(ip.next_header()) {
                put(
                    "upper layer",
                    match ipv6::walk(ip.next_header(), ip.payload()) {
                        Ok(c) if c.later() => "in the first fragment".into(),
                        Ok(c) => format!("{} behind {} extension headers", c.upper.protocol, c.headers),
                        Err(ipv6::ChainFault::Cut) => "not in the packet".into(),
                        Err(ipv6::ChainFault::Long) => {
                            format!("behind more than {} extension headers", ipv6::CHAIN_MAX)
                        }
                        Err(ipv6::ChainFault::Refused) => "behind an extension header that is refused".into(),
                    },
                );
            }
            (ip.next_header(), bytes.get(ipv6::HEADER_LEN..).unwrap_or_default())
        }
        _ => return,
    };
    if which == "outer" && number == protocol::UDP && payload.len() >= udp::HEADER_LEN + vxlan::HEADER_LEN {
        put("UDP source port", be::u16(payload, 0).to_string());
        put("UDP destination port", be::u16(payload, 2).to_string());
        put("UDP length", be::u16(payload, 4).to_string());
        put("UDP checksum", format!("{:#06x}", be::u16(payload, 6)));
        if let Ok(tunnel) = vxlan::Packet::new_checked(&payload[udp::HEADER_LEN..]) {
            put("VNI", tunnel.vni().to_string());
            layer(tunnel.payload(), "inner", list);
        }
        return;
    }
    if !payload.is_empty() {
        put(
            "payload",
            format!("{} bytes {}", payload.len(), crate::describe::to_hex(&payload[..payload.len().min(16)])),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::describe::Description;

    #[test]
    fn fields_are_named_and_any_prefix_is_fine() {
        let text = "vni=7 src=10.0.0.1 dst=2.2.2.2 udp from=192.0.2.1 to=192.0.2.2 ttl=9";
        let frame = text.parse::<Description>().unwrap().frame(0, 0, 4789).unwrap();
        let list = fields(&frame);
        let value = |f: &str| list.iter().find(|(n, _)| n == f).map(|(_, v)| v.as_str());
        assert_eq!(value("outer VNI"), Some("7"));
        assert_eq!(value("inner TTL"), Some("9"));
        assert_eq!(value("inner source"), Some("10.0.0.1"));
        for n in 0..frame.len() {
            fields(&frame[..n]);
        }
    }
}
