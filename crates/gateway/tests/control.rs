// SPDX-License-Identifier: Apache-2.0
//! What of a circuit is for a routing daemon, and how much of it.

use gateway::{is_control, Controls, Towards};
use tables::{Circuit, RateLimit};

const GATEWAY: u32 = 0xa9fe_0101;
const CE: u32 = 0xa9fe_0102;

fn frame(kind: u16, ip: &[u8]) -> Vec<u8> {
    [&[0; 12][..], &kind.to_be_bytes(), ip].concat()
}

fn ipv4(head: u8, fragment: u16, proto: u8, (src, dst): (u32, u32), ports: (u16, u16)) -> Vec<u8> {
    let mut ip = vec![0; 28];
    (ip[0], ip[9]) = (head, proto);
    ip[6..8].copy_from_slice(&fragment.to_be_bytes());
    ip[12..16].copy_from_slice(&src.to_be_bytes());
    ip[16..20].copy_from_slice(&dst.to_be_bytes());
    ip[20..22].copy_from_slice(&ports.0.to_be_bytes());
    ip[22..24].copy_from_slice(&ports.1.to_be_bytes());
    frame(0x800, &ip)
}

#[test]
fn a_daemon_hears_and_says_arp_bgp_and_bfd_and_nothing_else() {
    let both = |f: &[u8]| (is_control(f, GATEWAY, Towards::Daemon), is_control(f, GATEWAY, Towards::Ce));
    let (to, from) = ((CE, GATEWAY), (GATEWAY, CE));
    for ports in [(179, 4000), (4000, 179)] {
        assert_eq!(both(&ipv4(0x45, 0, 6, to, ports)), (true, false), "{ports:?}");
        assert_eq!(both(&ipv4(0x45, 0, 6, from, ports)), (false, true), "{ports:?}");
    }
    for port in [3784, 3785, 4784] {
        assert_eq!(both(&ipv4(0x45, 0x4000, 17, to, (50_000, port))), (true, false));
        assert_eq!(both(&ipv4(0x45, 0, 17, to, (port, 50_000))), (false, false), "only where it goes to");
    }
    // Another port, protocol, address; options; the first and a later fragment.
    for other in [
        ipv4(0x45, 0, 6, to, (22, 4000)),
        ipv4(0x45, 0, 17, to, (179, 179)),
        ipv4(0x45, 0, 1, to, (179, 179)),
        ipv4(0x45, 0, 6, (CE, GATEWAY + 1), (179, 179)),
        ipv4(0x46, 0, 6, to, (179, 179)),
        ipv4(0x45, 0x2000, 6, to, (179, 179)),
        ipv4(0x45, 1, 6, to, (179, 179)),
        frame(0x86dd, &[0; 60]),
    ] {
        assert_eq!(both(&other), (false, false), "{other:02x?}");
    }
    let arp = |sender: u32, target: u32| {
        let body = [&[0; 14][..], &sender.to_be_bytes(), &[0; 6], &target.to_be_bytes()].concat();
        both(&frame(0x806, &body))
    };
    assert_eq!([arp(CE, GATEWAY), arp(GATEWAY, CE), arp(CE, CE)], [(true, false), (false, true), (false, false)]);
    let whole = ipv4(0x45, 0, 6, to, (179, 179));
    assert!((0..whole.len()).all(|n| !is_control(&whole[..n], GATEWAY, Towards::Daemon)), "cut off");
}

/// A customer is a port and its tag; what one sends takes nothing from another with the same tag.
#[test]
fn each_customer_has_a_limit_of_its_own() {
    let circuit = |port, tag, overlay| Circuit {
        port: tables::EdgePort { number: port, ..Default::default() },
        tags: [tag, overlay],
        class: 0,
    };
    let (all, limit) = (Controls::default(), RateLimit { per_second: 10, burst: 3 });
    let second = 1_000_000_000;
    all.set([((0, 100), limit), ((1, 100), limit)]);
    let taken = |c: &Circuit, now| (0..9).filter(|_| all.take(c, now).is_ok()).count();
    assert_eq!(taken(&circuit(0, 100, 7), second), 3);
    assert_eq!(taken(&circuit(0, 100, 8), second), 0, "its circuits share");
    assert_eq!(taken(&circuit(1, 100, 7), second), 3, "the same tag at another port is somebody else");
    assert_eq!(taken(&circuit(0, 101, 7), second), 9, "a customer that is not told has no limit");
    // What was used stays so over a change; and comes back with time.
    all.set([((0, 100), limit)]);
    assert_eq!((taken(&circuit(0, 100, 7), second), taken(&circuit(0, 100, 7), second + second / 10)), (0, 1));
}
