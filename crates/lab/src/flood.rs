// SPDX-License-Identifier: Apache-2.0
//! A flood of TCP SYNs from a namespace: whole frames over AF_PACKET, each from another port to another address, so many a second and
//! for so long.

use crate::plan::{Segment, INTERNET};
use crate::shell::Namespace;
use crate::LabError;
use nix::ifaddrs::getifaddrs;
use nix::sched::{setns, CloneFlags};
use nix::sys::socket::{sendto, socket, AddressFamily, MsgFlags, SockFlag, SockType};
use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How much.
#[derive(Clone, Copy, Debug)]
pub struct Flood {
    /// SYNs a second.
    pub per_second: u32,
    /// For how long.
    pub length: Duration,
}

/// Pace of the bursts.
const TICK: Duration = Duration::from_millis(2);
/// Frames of a burst at most.
const BURST: u32 = 500;

/// Floods from `ns`, whose `eth0` is in a segment, in a thread of its own; it returns how many SYNs were sent.
pub fn start(ns: &Namespace, segment: Segment, flood: Flood) -> Result<JoinHandle<Result<u64, LabError>>, LabError> {
    let neighbour = ns.run(&format!("ip neigh show {} dev eth0", segment.router4()))?;
    let router = neighbour.split_whitespace().find_map(parse_mac);
    let router =
        router.ok_or_else(|| LabError::Node(format!("the router's MAC address is not in: {}", neighbour.trim())))?;
    let path = ns.path();
    Ok(std::thread::spawn(move || {
        let fail = |source| LabError::File { path: path.clone(), source };
        let namespace = File::open(&path).map_err(fail)?;
        // This thread alone.
        setns(namespace, CloneFlags::CLONE_NEWNET).map_err(|e| fail(e.into()))?;
        run(router, segment.node4(), flood).map_err(fail)
    }))
}

fn parse_mac(word: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let parts: Vec<&str> = word.split(':').collect();
    if parts.len() != 6 || parts.iter().any(|p| p.len() != 2) {
        return None;
    }
    for (byte, part) in mac.iter_mut().zip(parts) {
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    (mac != [0; 6] && mac != [0xff; 6]).then_some(mac)
}

fn run(router: [u8; 6], from: Ipv4Addr, flood: Flood) -> std::io::Result<u64> {
    let none = || std::io::Error::other("there is no eth0");
    let links = getifaddrs()?.filter(|i| i.interface_name == "eth0");
    let link = links.filter_map(|i| i.address.and_then(|a| a.as_link_addr().copied())).next().ok_or_else(none)?;
    let own = link.addr().ok_or_else(none)?;
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)?;
    let begun = Instant::now();
    let (mut sent, mut n) = (0u64, 0u32);
    while begun.elapsed() < flood.length {
        let due = (begun.elapsed().as_secs_f64() * f64::from(flood.per_second)) as u32;
        // What a slow machine has missed is not made up for: the rate is an upper bound.
        for n in n.max(due.saturating_sub(BURST))..due {
            let frame = syn(own, router, from, n);
            sent += u64::from(sendto(socket.as_raw_fd(), &frame, &link, MsgFlags::MSG_DONTWAIT).is_ok());
        }
        n = due;
        std::thread::sleep(TICK);
    }
    Ok(sent)
}

/// A SYN to some address of the Internet.
fn syn(own: [u8; 6], router: [u8; 6], from: Ipv4Addr, n: u32) -> [u8; 54] {
    let mut f = [0u8; 54];
    f[..6].copy_from_slice(&router);
    f[6..12].copy_from_slice(&own);
    f[12..14].copy_from_slice(&[8, 0]);
    f[14..20].copy_from_slice(&[0x45, 0, 0, 40, (n >> 8) as u8, n as u8]);
    f[20..24].copy_from_slice(&[0x40, 0, 64, 6]);
    f[26..30].copy_from_slice(&from.octets());
    // The last octet alone differs; nobody is there.
    let network =
        INTERNET[0].split('/').next().and_then(|a| a.parse::<Ipv4Addr>().ok()).unwrap_or(Ipv4Addr::UNSPECIFIED);
    let to = network.octets();
    f[30..34].copy_from_slice(&[to[0], to[1], to[2], 128 + (n % 64) as u8]);
    f[34..36].copy_from_slice(&(1024 + (n / 64 % 60_000) as u16).to_be_bytes());
    f[36..38].copy_from_slice(&443u16.to_be_bytes());
    f[38..42].copy_from_slice(&n.to_be_bytes());
    f[46..50].copy_from_slice(&[0x50, 2, 0xff, 0xff]);
    let ip = sum(&f[14..34], 0);
    f[24..26].copy_from_slice(&ip.to_be_bytes());
    let mut pseudo = [0u8; 12];
    pseudo[..8].copy_from_slice(&f[26..34]);
    pseudo[9..].copy_from_slice(&[6, 0, 20]);
    let before = pseudo.chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(c[1])).sum();
    let tcp = sum(&f[34..54], before);
    f[50..52].copy_from_slice(&tcp.to_be_bytes());
    f
}

/// The Internet checksum (RFC 1071) of an even number of bytes.
fn sum(bytes: &[u8], before: u32) -> u16 {
    let mut s: u32 = before + bytes.chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(c[1])).sum::<u32>();
    while s > 0xffff {
        s = (s & 0xffff) + (s >> 16);
    }
    !(s as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_syn_is_another_connection_with_right_checksums() {
        let mut seen = std::collections::HashSet::new();
        for n in 0..10_000 {
            let f = syn([2; 6], [4; 6], Ipv4Addr::new(172, 31, 48, 2), n);
            assert_eq!(sum(&f[14..34], 0), 0);
            let pseudo = f[26..34].chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(c[1])).sum::<u32>() + 6 + 20;
            assert_eq!(sum(&f[34..54], pseudo), 0);
            assert!(seen.insert(f[26..38].to_vec()), "connection {n} is not new");
        }
    }

    #[test]
    fn a_mac_address_is_found() {
        assert_eq!(parse_mac("02:00:00:00:00:0a"), Some([2, 0, 0, 0, 0, 10]));
        assert_eq!((parse_mac("fe80::1"), parse_mac("00:00:00:00:00:00")), (None, None));
    }
}
