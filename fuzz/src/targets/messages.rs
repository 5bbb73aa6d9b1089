// SPDX-License-Identifier: Apache-2.0
//! Messages from the kernel, from the daemon and from VMs: netlink, capture events and what is shown of their frames, DHCP.

use super::Target;
use gateway::{Dhcp6Message, DhcpMessage, Lease};
use underlay::netlink::{self, Parsed};

/// Netlink datagrams.
pub struct Netlink;

impl Target for Netlink {
    fn name(&self) -> &'static str {
        "netlink"
    }

    fn run(&mut self, input: &[u8]) -> u64 {
        let mut seen = 0u64;
        for (n, (kind, flags, _, payload)) in netlink::messages(input).enumerate() {
            assert!(n <= input.len() / 16, "every message takes at least its header");
            seen |= match netlink::parse(kind, flags, payload) {
                Parsed::Event(e) => {
                    1 << (8 + crate::pool::hash(format!("{e:?}").split(['{', '(']).next().unwrap_or("").as_bytes())
                        % 48)
                }
                Parsed::Done(_) => 1,
                Parsed::Error(_) => 2,
                Parsed::Overrun => 4,
                Parsed::Skip => 8,
            };
        }
        seen
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let message = |kind: u16, payload: &[u8]| {
            let mut m = (16 + payload.len() as u32).to_ne_bytes().to_vec();
            m.extend(kind.to_ne_bytes());
            m.extend([0; 10]);
            m.extend(payload);
            m.resize(m.len().next_multiple_of(4), 0);
            m
        };
        let attribute = |kind: u16, value: &[u8]| {
            let mut a = (4 + value.len() as u16).to_ne_bytes().to_vec();
            a.extend(kind.to_ne_bytes());
            a.extend(value);
            a.resize(a.len().next_multiple_of(4), 0);
            a
        };
        // Link, neighbour, route (RTM_NEWLINK 16, RTM_NEWNEIGH 28, RTM_NEWROUTE 24).
        let link = [
            &[0, 0, 1, 0, 3, 0, 0, 0, 0x43, 0, 1, 0, 0, 0, 0, 0][..],
            &attribute(1, &[2, 0, 0, 0, 0, 1]),
            &attribute(4, &1500u32.to_ne_bytes()),
            &attribute(3, b"eth0\0"),
        ]
        .concat();
        let neighbour = [
            &[2, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 1][..],
            &attribute(1, &[192, 0, 2, 1]),
            &attribute(2, &[2, 0, 0, 0, 0, 9]),
        ]
        .concat();
        let route = [
            &[2, 24, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0][..],
            &attribute(1, &[192, 0, 2, 0]),
            &attribute(5, &[192, 0, 2, 1]),
            &attribute(4, &3u32.to_ne_bytes()),
        ]
        .concat();
        let all = [message(16, &link), message(28, &neighbour), message(24, &route), message(3, &[0; 4])];
        let mut seeds = vec![all.concat()];
        seeds.extend(all);
        seeds
    }
}

/// Capture events, and the views of a frame that are shown to people.
pub struct Event;

impl Target for Event {
    fn name(&self) -> &'static str {
        "event"
    }

    fn run(&mut self, input: &[u8]) -> u64 {
        let decoded = node::events::decode(input);
        if let Some((event, used)) = &decoded {
            assert!(*used <= input.len() && usize::from(event.captured) <= event.data.len());
        }
        let fields = node::fields::fields(input);
        let key = node::flows::key(input).is_some();
        let vni = node::flows::vni(input).is_some();
        let layers = testkit::dissect::dissect(input).layers.len();
        let bits = [decoded.is_some(), key, vni].iter().fold(0, |n, b| n * 2 + u64::from(*b));
        bits | (fields.len() as u64) << 8 | (layers as u64) << 24
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let mut r = testkit::rng::Rng::new(3);
        let region = testkit::random::region(
            &mut r,
            testkit::random::Size { vpcs: 3, vms: 4, routes: 4, deep_routes: 0, ncs: 4 },
        );
        (0..60).map(|_| testkit::random::packet(&mut r, &region).encode()).collect()
    }
}

/// What VMs ask DHCPv6 servers, and what they are answered.
pub struct Dhcp6;

impl Target for Dhcp6 {
    fn name(&self) -> &'static str {
        "dhcp6"
    }

    fn run(&mut self, input: &[u8]) -> u64 {
        let lease = Lease { address: 5, bits: 64, gateway: 1, mtu: 1450 };
        let Some(message) = Dhcp6Message::read(input) else { return 0 };
        let Some(said) = message.answered(&lease, abi::Mac(0x0200_0000_6401)) else { return 1 };
        // Identifiers of both, an IA with an address and eight others, the rest.
        assert!((18..600).contains(&said.len()), "{} bytes", said.len());
        assert_eq!(said[1..4], input[1..4], "its own transaction");
        assert!([2, 7].contains(&said[0]));
        2 + u64::from(said[0]) + said.len() as u64
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let client = [0, 1, 0, 10, 0, 3, 0, 1, 2, 0, 0, 0, 0, 5];
        let server = [0, 2, 0, 10, 0, 3, 0, 1, 2, 0, 0, 0, 0x64, 1];
        let ia = [0, 3, 0, 12, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0];
        let held = [&[0, 3, 0, 40, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 24][..], &[7; 24]].concat();
        vec![
            [&[1, 1, 2, 3][..], &client, &ia].concat(),
            [&[1, 1, 2, 3][..], &client, &[0, 14, 0, 0], &ia].concat(),
            [&[3, 1, 2, 3][..], &client, &server, &held].concat(),
            [&[4, 1, 2, 3][..], &client, &held].concat(),
            [&[8, 1, 2, 3][..], &client, &server, &held].concat(),
            vec![11, 1, 2, 3],
        ]
    }
}

/// What VMs ask a DHCP server, and what they are answered.
pub struct Dhcp;

impl Target for Dhcp {
    fn name(&self) -> &'static str {
        "dhcp"
    }

    fn run(&mut self, input: &[u8]) -> u64 {
        let lease = Lease { address: 0x0a00_0005, bits: 24, gateway: 0x0a00_0001, mtu: 1450 };
        let Some(message) = DhcpMessage::read(input) else { return 0 };
        let Some((to, mac, said)) = message.answered(&lease) else { return 1 };
        assert!((300..600).contains(&said.len()), "{} bytes", said.len());
        assert_eq!((said[0], &said[4..8], &said[28..34]), (2, &input[4..8], &input[28..34]), "its own answer");
        assert!(to == u32::MAX || mac.0 >> 40 == u64::from(input[28]), "to whom it is");
        2 + u64::from(said[242])
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let message = |options: &[u8]| {
            let mut b = vec![0; 236];
            b[..4].copy_from_slice(&[1, 1, 6, 0]);
            b[28..34].copy_from_slice(&[2, 0, 0, 0, 0, 5]);
            [&b, &[0x63, 0x82, 0x53, 0x63][..], options].concat()
        };
        vec![
            message(&[53, 1, 1, 61, 3, 1, 2, 3, 255]),
            message(&[53, 1, 3, 50, 4, 10, 0, 0, 5, 54, 4, 10, 0, 0, 1, 255]),
        ]
    }
}
