// SPDX-License-Identifier: Apache-2.0
//! The heaviest flows, estimated from sampled packets.

use crate::types::Flow;
use abi::{Event, Vni};
use std::collections::HashMap;
use std::net::IpAddr;
use wire::{be, ethernet, ipv4, ipv6, protocol, udp, vxlan};

/// Flows that are told apart in one window.
const FLOWS_MAX: usize = 16_384;

/// What tells inner flows apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// VNI.
    pub vni: Vni,
    /// Inner source.
    pub source: IpAddr,
    /// Inner destination.
    pub destination: IpAddr,
    /// Protocol number.
    pub protocol: u8,
    /// Ports, 0 where there are none.
    pub ports: (u16, u16),
}

/// The inner flow of a frame as it came in, if it is VXLAN with IP inside.
pub fn key(frame: &[u8]) -> Option<Key> {
    let outer = ethernet::Frame::new_checked(frame).ok()?;
    let (next, payload) = ip(outer.ethertype(), frame.get(ethernet::HEADER_LEN..)?)?;
    if next.protocol != protocol::UDP {
        return None;
    }
    let tunnel = vxlan::Packet::new_checked(payload.get(udp::HEADER_LEN..)?).ok()?;
    let inner = ethernet::Frame::new_checked(tunnel.payload()).ok()?;
    let (head, segment) = ip(inner.ethertype(), inner.payload())?;
    Some(key_of(tunnel.vni(), head, segment))
}

/// The flow of a frame that is in no tunnel, or of the tunnel that it is, behind up to two tags; without a VNI.
pub fn plain_key(frame: &[u8]) -> Option<Key> {
    const TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];
    let mut at = ethernet::HEADER_LEN;
    while at <= ethernet::HEADER_LEN + 8 && frame.len() >= at && TAGS.contains(&be::u16(frame, at - 2)) {
        at += 4;
    }
    let rest = frame.get(at..)?;
    let (head, segment) = ip(be::u16(frame, at - 2), rest)?;
    Some(key_of(Vni(0), head, segment))
}

fn key_of(vni: Vni, head: Head, segment: &[u8]) -> Key {
    let has_ports = [protocol::TCP, protocol::UDP, protocol::SCTP].contains(&head.protocol) && segment.len() >= 4;
    let ports = if has_ports { (be::u16(segment, 0), be::u16(segment, 2)) } else { (0, 0) };
    Key { vni, source: head.source, destination: head.destination, protocol: head.protocol, ports }
}

/// The VNI of a frame as it came in, if it is VXLAN, whatever is inside.
pub fn vni(frame: &[u8]) -> Option<Vni> {
    let outer = ethernet::Frame::new_checked(frame).ok()?;
    let (next, payload) = ip(outer.ethertype(), frame.get(ethernet::HEADER_LEN..)?)?;
    let tunnel = vxlan::Packet::new_checked(payload.get(udp::HEADER_LEN..)?).ok()?;
    (next.protocol == protocol::UDP && tunnel.has_vni()).then(|| tunnel.vni())
}

struct Head {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
}

/// Addresses, protocol and what follows; the captured bytes may end early, so lengths are not checked.
fn ip(ethertype: u16, bytes: &[u8]) -> Option<(Head, &[u8])> {
    match ethertype {
        ethernet::ethertype::IPV4 if bytes.len() >= ipv4::HEADER_LEN => {
            let packet = ipv4::Packet::new_unchecked(bytes);
            let head = Head {
                source: IpAddr::V4(packet.src().into()),
                destination: IpAddr::V4(packet.dst().into()),
                protocol: packet.protocol(),
            };
            Some((head, bytes.get(packet.header_len().max(ipv4::HEADER_LEN)..)?))
        }
        ethernet::ethertype::IPV6 if bytes.len() >= ipv6::HEADER_LEN => {
            let packet = ipv6::Packet::new_unchecked(bytes);
            let payload = bytes.get(ipv6::HEADER_LEN..)?;
            // Behind extension headers, as far as they were captured.
            let upper = ipv6::walk(packet.next_header(), payload).ok().filter(|c| !c.later()).map(|c| c.upper);
            let (protocol, at) = upper.map_or((packet.next_header(), 0), |u| (u.protocol, u.offset));
            let head = Head {
                source: IpAddr::V6(packet.src().into()),
                destination: IpAddr::V6(packet.dst().into()),
                protocol,
            };
            Some((head, payload.get(at..)?))
        }
        _ => None,
    }
}

/// Name of a protocol.
pub fn protocol_name(number: u8) -> String {
    match number {
        protocol::TCP => "tcp".into(),
        protocol::UDP => "udp".into(),
        protocol::ICMP => "icmp".into(),
        protocol::ICMPV6 => "icmpv6".into(),
        protocol::SCTP => "sctp".into(),
        n => n.to_string(),
    }
}

/// Adds samples up.
#[derive(Debug, Default)]
pub struct Sampler {
    flows: HashMap<Key, (u64, u64)>,
    /// Samples taken.
    pub samples: u64,
}

impl Sampler {
    /// Takes a sampled packet.
    pub fn take(&mut self, event: &Event) {
        self.samples += 1;
        let captured = &event.data[..event.captured.min(abi::EVENT_BYTES as u16) as usize];
        let Some(key) = key(captured) else { return };
        if self.flows.len() < FLOWS_MAX || self.flows.contains_key(&key) {
            let (packets, bytes) = self.flows.entry(key).or_default();
            *packets += 1;
            *bytes += u64::from(event.length);
        }
    }

    /// The heaviest flows by packets, when one packet in 2^`exponent` was taken during `seconds`.
    pub fn heaviest(&self, count: usize, exponent: u8, seconds: f64) -> Vec<Flow> {
        let mut flows: Vec<_> = self.flows.iter().collect();
        flows.sort_by_key(|(key, (packets, _))| (std::cmp::Reverse(*packets), key.vni, key.ports));
        let scale = 2f64.powi(i32::from(exponent)) / seconds.max(1e-3);
        flows.truncate(count);
        let end = |address: IpAddr, port: u16| match (address, port) {
            (a, 0) => a.to_string(),
            (IpAddr::V4(a), p) => format!("{a}:{p}"),
            (IpAddr::V6(a), p) => format!("[{a}]:{p}"),
        };
        flows
            .into_iter()
            .map(|(k, (packets, bytes))| Flow {
                vni: k.vni.0,
                source: end(k.source, k.ports.0),
                destination: end(k.destination, k.ports.1),
                protocol: protocol_name(k.protocol),
                pps: *packets as f64 * scale,
                bps: *bytes as f64 * 8.0 * scale,
                samples: *packets,
            })
            .collect()
    }
}

/// The sampling exponent that gives some 2000 samples in a window at this packet rate.
pub fn exponent_for(pps: f64, seconds: f64) -> u8 {
    let ratio = pps * seconds / 2000.0;
    // Exponent 0 means no sampling at all, so the finest is one packet in two.
    ratio.max(2.0).log2().ceil().clamp(1.0, 24.0) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::describe::Description;

    fn sample(text: &str) -> Event {
        let frame = text.parse::<Description>().unwrap().frame(1, 1, 4789).unwrap();
        let mut event = Event {
            time: 0,
            ifindex: 1,
            vni: 0,
            length: frame.len() as u32,
            captured: frame.len().min(256) as u16,
            kind: abi::EVENT_SAMPLE,
            reason: 0,
            reserved: 0,
            data: [0; 256],
        };
        let n = event.captured as usize;
        event.data[..n].copy_from_slice(&frame[..n]);
        event
    }

    #[test]
    fn the_heaviest_flow_comes_first_and_is_scaled() {
        let mut sampler = Sampler::default();
        for _ in 0..3 {
            sampler.take(&sample("vni=7 src=10.0.0.1 dst=10.0.0.2 tcp sport=1 dport=2 from=192.0.2.1 len=1000"));
        }
        sampler.take(&sample("vni=7 src=2001:db8::1 dst=2001:db8::2 icmp from=2001:db8:1::1"));
        let flows = sampler.heaviest(5, 4, 2.0);
        assert_eq!((flows[0].source.as_str(), flows[0].samples, flows[0].pps), ("10.0.0.1:1", 3, 24.0));
        assert_eq!((flows[1].destination.as_str(), flows[1].protocol.as_str()), ("2001:db8::2", "icmpv6"));
        assert_eq!(sampler.samples, 4);
    }

    #[test]
    fn ports_are_found_behind_extension_headers() {
        let text = "vni=7 src=2001:db8::1 dst=2001:db8::2 udp sport=1 dport=2 from=192.0.2.1";
        let mut frame = text.parse::<Description>().unwrap().frame(1, 1, 4789).unwrap();
        let plain = key(&frame).unwrap();
        assert_eq!((plain.protocol, plain.ports), (17, (1, 2)));
        // Destination Options behind the inner IPv6 header.
        frame[70] = 60;
        frame.splice(104..104, [17, 0, 1, 4, 0, 0, 0, 0]);
        frame[68..70].copy_from_slice(&1000u16.to_be_bytes());
        assert_eq!(key(&frame), Some(plain));
    }

    #[test]
    fn garbage_has_no_flow_and_does_not_panic() {
        let whole = sample("vni=7 src=10.0.0.1 dst=10.0.0.2 udp from=192.0.2.1");
        for n in 0..256 {
            let mut event = whole;
            event.captured = n;
            Sampler::default().take(&event);
            event.data[14] = n as u8;
            Sampler::default().take(&event);
        }
        assert_eq!(exponent_for(0.0, 1.0), 1);
        assert_eq!(exponent_for(20e6, 1.0), 14);
    }
}
