// SPDX-License-Identifier: Apache-2.0
//! A customer's site at an edge port: its router, which is this test with a packet socket at the far end of the port's link, and rooms for nodes.
#![allow(dead_code)] // Each test file is a crate of its own and uses what it needs.

use super::bgp::Room;
use super::region::{inside, wait, Region};
use abi::IfIndex;
use lab::shell::Namespace;
use lab::traffic;
use node::afpacket::PacketSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// A host of either site: both customers use the same addresses.
pub const SITE: [u8; 4] = [10, 9, 0, 5];
/// blue-1, and green-1.
pub const VM: [u8; 4] = [10, 0, 0, 11];
pub const GATEWAY: [u8; 4] = [10, 0, 0, 1];
pub const BLUE_MAC: [u8; 6] = [2, 0, 0, 0x64, 0, 1];
pub const GREEN_MAC: [u8; 6] = [2, 0, 1, 0x2c, 0, 1];
pub const ECHO: u8 = 8;
const ECHO_REPLY: u8 = 0;

/// A customer's router: it answers pings of its site, and keeps the other frames that come.
pub struct Ce {
    pub mac: [u8; 6],
    pub tags: Vec<u8>,
    link: String,
    stop: Arc<AtomicBool>,
    /// Pings that it has answered.
    pub answered: Arc<AtomicU64>,
    /// Frames that are no pings, and those that have other tags than its own.
    came: Arc<Mutex<Vec<Vec<u8>>>>,
    to_send: Arc<Mutex<Vec<Vec<u8>>>>,
    thread: Option<JoinHandle<()>>,
}

fn sum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | w.get(1).map_or(0, |b| u32::from(*b)));
    let mut sum: u32 = words.sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// An IPv4 packet with an ICMP message; `rest`: identifier, sequence number, data.
pub fn icmp(src: [u8; 4], dst: [u8; 4], kind: u8, rest: &[u8]) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0], rest].concat();
    let check = sum(&message);
    message[2..4].copy_from_slice(&check);
    let total = (20 + message.len() as u16).to_be_bytes();
    let mut ip = vec![0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 1, 0, 0];
    ip.extend([src, dst].concat());
    let check = sum(&ip);
    ip[10..12].copy_from_slice(&check);
    [ip, message].concat()
}

impl Ce {
    /// Makes the link, of which `edgeN` is the node's port, and stands at its far end.
    pub fn new(region: &Region, n: u8) -> Ce {
        Ce::at(&region.ns("gw"), n)
    }

    /// The same at a node in another namespace.
    pub fn at(gw: &Namespace, n: u8) -> Ce {
        let (port, link) = (format!("edge{n}"), format!("ce{n}"));
        gw.run(&format!("ip link add {port} type veth peer name {link}")).unwrap();
        for dev in [&port, &link] {
            gw.run(&format!("sysctl -q -w net.ipv6.conf.{dev}.disable_ipv6=1")).unwrap();
            gw.run(&format!("ip link set {dev} up")).unwrap();
        }
        // On veth that starts the receiving NAPI context, without which the kernel drops what an XDP program sends.
        gw.run(&format!("ethtool -K {link} gro on")).unwrap();
        let (stop, answered, came, to_send) = (Arc::default(), Arc::default(), Arc::default(), Arc::default());
        let mut ce = Ce {
            mac: [2, 0, 0, 0, 0xce, n],
            // Customer 100, overlay 7: both customers' tags are the same.
            tags: vec![0x88, 0xa8, 0, 100, 0x81, 0, 0, 7],
            link,
            stop,
            answered,
            came,
            to_send,
            thread: None,
        };
        ce.thread = Some(ce.serve(gw));
        ce
    }

    fn serve(&self, gw: &Namespace) -> JoinHandle<()> {
        let (mac, tags) = (self.mac, self.tags.clone());
        let said = gw.run(&format!("ip -o link show dev {}", self.link)).unwrap();
        let index: u32 = said.split(':').next().unwrap().parse().unwrap();
        let (stop, answered) = (self.stop.clone(), self.answered.clone());
        let (came, to_send) = (self.came.clone(), self.to_send.clone());
        inside(gw, move || {
            let mut socket = PacketSocket::open(IfIndex(index), None).unwrap();
            socket.keep_tags(true);
            while !stop.load(Ordering::Relaxed) {
                to_send.lock().unwrap().drain(..).for_each(|frame| assert!(socket.send(&frame)));
                let n = socket.receive().unwrap();
                let frames: Vec<Vec<u8>> =
                    socket.regions(n).map(|(region, (start, len))| region[start..start + len].to_vec()).collect();
                for frame in &frames {
                    let ping = frame.get(12..20) == Some(&tags) && frame.get(20..22) == Some(&[8, 0]);
                    let ping = ping && frame.get(38..42) == Some(&SITE) && frame.get(42) == Some(&ECHO);
                    if !ping || frame[..6] != mac {
                        came.lock().unwrap().push(frame.clone());
                        continue;
                    }
                    let asker = frame[34..38].try_into().unwrap();
                    let reply = icmp(
                        SITE,
                        asker,
                        ECHO_REPLY,
                        &frame[46..22 + usize::from(frame[25]) + (usize::from(frame[24]) << 8)],
                    );
                    let back: [u8; 6] = frame[6..12].try_into().unwrap();
                    // Before it is sent: who has the answer looks at once.
                    answered.fetch_add(1, Ordering::Relaxed);
                    assert!(socket.send(&[&back[..], &mac, &tags, &[8, 0], &reply].concat()));
                }
                if n == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        })
    }

    /// Sends a frame with these tags.
    pub fn send(&self, to: [u8; 6], tags: &[u8], behind: &[u8]) {
        self.to_send.lock().unwrap().push([&to[..], &self.mac, tags, behind].concat());
    }

    /// Pings an address of its VPC from the site.
    pub fn ping(&self, gateway: [u8; 6], to: [u8; 4], sequence: u8) {
        let packet = icmp(SITE, to, ECHO, &[0x12, 0x34, 0, sequence, 1, 2, 3, 4]);
        self.send(gateway, &self.tags, &[&[8, 0], &packet[..]].concat());
    }

    /// The first frame that came and is like this one; the others are forgotten.
    pub fn take(&self, what: &str, like: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        wait(what, || {
            let mut came = self.came.lock().unwrap();
            let found = came.iter().position(|f| like(f))?;
            let frame = came.swap_remove(found);
            came.clear();
            Some(frame)
        })
    }

    /// Waits for the reply to a ping, in its own tags and from the VPC's gateway address.
    pub fn replied(&self, gateway: [u8; 6], from: [u8; 4], sequence: u8) {
        let head = [&self.mac[..], &gateway, &self.tags, &[8, 0]].concat();
        let reply = self.take("an echo reply", |f| {
            f.get(34..38) == Some(&from) && f.get(42) == Some(&ECHO_REPLY) && f.get(49) == Some(&sequence)
        });
        assert_eq!(reply[..22], head, "addresses and tags");
        assert_eq!(&reply[38..42], &SITE);
    }
}

impl Drop for Ce {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Echo requests that a VM's kernel has got.
pub fn heard(region: &Region, vm: &str) -> u64 {
    traffic::snmp(&region.ns(vm), "Icmp", "InEchos").unwrap()
}

/// A namespace for a node with these tunnel addresses, and a cable of number `n` to the region's router.
pub fn room(region: &Region, name: &str, n: u8, addresses: [&str; 2]) -> Room {
    let (net, room) = (region.ns("net"), Room(region.ns(name)));
    let (own, to) = (&room.0, format!("to-{name}"));
    let run = |ns: &Namespace, line: &str| drop(ns.run(line).unwrap_or_else(|e| panic!("{line}: {e}")));
    lab::shell::run(&format!("ip netns add {}", own.0)).unwrap();
    run(own, "ip link set lo up");
    own.sysctl(&[("net.ipv4.conf.all.rp_filter", "0"), ("net.ipv4.conf.default.rp_filter", "0")]).unwrap();
    run(own, &format!("ip link add up0 mtu 1600 type veth peer name {to} netns {}", net.0));
    for (ns, dev, end) in [(own, "up0", 2), (&net, to.as_str(), 1)] {
        run(ns, &format!("ip link set dev {dev} mtu 1600"));
        run(ns, &format!("ip addr add 198.19.{n}.{end}/24 dev {dev}"));
        run(ns, &format!("ip addr add fd98:{n}::{end}/64 dev {dev} nodad"));
        run(ns, &format!("ip link set dev {dev} up"));
    }
    run(&net, &format!("ethtool -K {to} tx off gro on"));
    for (addr, length) in addresses.iter().zip([32, 128]) {
        run(own, &format!("ip addr add {addr}/{length} dev lo nodad"));
    }
    run(own, &format!("ip route add default via 198.19.{n}.1"));
    run(own, &format!("ip -6 route add default via fd98:{n}::1"));
    run(&net, &format!("ip route replace {}/32 via 198.19.{n}.2", addresses[0]));
    run(&net, &format!("ip -6 route replace {}/128 via fd98:{n}::2", addresses[1]));
    room
}
