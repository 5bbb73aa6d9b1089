// SPDX-License-Identifier: Apache-2.0
//! A port with two receive queues: packets of both go through the XDP program, and what it hands over arrives at the AF_XDP socket of
//! the queue that it came by. And memory that cannot grow.
mod common;

use abi::{IfIndex, PuntReason, OPT_SOURCE_STRICT};
use common::rig::*;
use common::*;
use std::collections::BTreeSet;
use tables::LineMemory;
use xdp::{AfXdpOptions, AfXdpSocket, Attach, Options, XdpEngine};

/// A veth pair with two queues each way.
fn veth_of_two(a: &str, b: &str) -> (IfIndex, IfIndex) {
    let queues = "numrxqueues 2 numtxqueues 2";
    ip(&format!("link add {a} mtu 3000 {queues} type veth peer name {b} mtu 3000 {queues}"));
    for name in [a, b] {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
        ip(&format!("link set {name} up"));
    }
    let gro =
        std::process::Command::new("ethtool").args(["-K", b, "gro", "on"]).status().expect("ethtool is installed");
    assert!(gro.success());
    (index(a), index(b))
}

/// Packets that went through XDP on a queue.
fn through(port: &str, queue: u32) -> u64 {
    let output = std::process::Command::new("ethtool").args(["-S", port]).output().expect("ethtool is installed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let name = format!("rx_queue_{queue}_xdp_packets:");
    let number = text.lines().find_map(|line| line.trim().strip_prefix(&name).map(str::trim).map(str::to_string));
    number.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// Packet number `n`: the outer source port chooses the queue, the payload tells packets apart.
fn numbered(n: u32, bytes: usize) -> Vec<u8> {
    let mut frame = packet(NC_A, VNI, VM_B, bytes);
    frame[34..36].copy_from_slice(&(0xc000 + n as u16).to_be_bytes());
    let end = frame.len();
    frame[end - 4..].copy_from_slice(&n.to_be_bytes());
    frame
}

fn number_of(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[frame.len() - 4..].try_into().expect("four bytes"))
}

#[test]
fn both_queues_of_a_port_are_served_by_the_program_and_by_af_xdp() {
    const PACKETS: u32 = 2000;
    in_namespace(|| {
        let Some(mut engine) = engine() else { return };
        let (port, far) = veth_of_two("tnytwo", "tnyfar");
        build(&engine.memory(), OPT_SOURCE_STRICT);
        egress(&engine.memory(), port);
        engine.attach(port, Attach::Native).unwrap();
        let mut sockets = [0, 1].map(|queue| AfXdpSocket::open(AfXdpOptions::new(port, queue)).unwrap());
        for (queue, socket) in sockets.iter().enumerate() {
            assert_eq!(socket.port(), (port, queue as u32));
            engine.set_listener(port, queue as u32, socket.raw_fd()).unwrap();
        }
        let wire = Wire::open(far);
        let (mut fast, mut handed, mut by_queue) = (BTreeSet::new(), BTreeSet::new(), [0u64; 2]);
        for n in 0..PACKETS {
            // Every other one does not fit the next hop's MTU and is handed over.
            let sent = numbered(n, if n % 2 == 0 { 64 } else { 1450 });
            wire.send(&sent);
            if n % 2 == 0 {
                let frame = wire.receive(2000).unwrap_or_else(|| panic!("packet {n} is lost"));
                assert_eq!((frame.len(), number_of(&frame)), (sent.len(), n));
                assert_eq!(frame[30..34], NC_B.to_be_bytes());
                assert!(fast.insert(n));
                continue;
            }
            let begun = std::time::Instant::now();
            let queue = loop {
                assert!(begun.elapsed().as_secs() < 5, "packet {n} did not arrive at either socket");
                if let Some(queue) = (0..2).find(|q| sockets[*q].receive() > 0) {
                    break queue;
                }
            };
            let socket = &mut sockets[queue];
            let got: Vec<_> =
                socket.packets().map(|p| (p.region[p.offset..p.offset + p.length].to_vec(), p.meta)).collect();
            socket.release();
            let [(frame, Some(meta))] = &got[..] else { panic!("{} packets", got.len()) };
            assert!(*frame == sent, "packet {n}");
            assert_eq!((meta.reason, meta.vni, meta.ifindex), (PuntReason::IcmpDue as u8, VNI.0, port.0));
            by_queue[queue] += 1;
            assert!(handed.insert(n));
            // And back out by the same queue.
            assert!(socket.send(&sent));
            socket.flush();
            assert_eq!(wire.receive(2000).as_deref(), Some(&sent[..]), "packet {n} by queue {queue}");
        }
        let total = engine.stats_total();
        assert_eq!(
            (total.rx, total.forwarded, total.punted, total.dropped),
            (PACKETS.into(), (PACKETS / 2).into(), (PACKETS / 2).into(), 0)
        );
        assert_eq!((fast.len(), handed.len()), (PACKETS as usize / 2, PACKETS as usize / 2));
        let program = [0, 1].map(|queue| through("tnytwo", queue));
        println!("XDP packets by queue {program:?}, handed over by queue {by_queue:?}");
        assert!(program.iter().sum::<u64>() >= PACKETS.into());
        let enough = |counts: [u64; 2], of: u64| counts.iter().all(|n| *n * 5 > of);
        assert!(enough(program, PACKETS.into()) && enough(by_queue, (PACKETS / 2).into()), "{program:?} {by_queue:?}");
        assert_eq!(sockets.each_mut().map(|s| s.take_lost()), [0, 0]);
    });
}

/// Segments that were made before one of them could not be pinned neither stay mapped nor pinned.
#[test]
fn growth_that_fails_half_way_leaves_no_segment_behind() {
    in_namespace(|| {
        if engine().is_none() {
            return;
        }
        let bpffs = Bpffs::mount("grow");
        let engine =
            XdpEngine::open_or_create(&Options { pins: Some(bpffs.0.join("instance")), ..Options::default() }).unwrap();
        let (memory, pins) = (engine.memory(), engine.pins().expect("pinned").to_path_buf());
        memory.grow(1).unwrap();
        let mapped = || {
            let from = memory.base() as usize;
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let inside = |line: &&str| {
                let start = line.split('-').next().and_then(|s| usize::from_str_radix(s, 16).ok()).unwrap_or(0);
                line.contains("bpf") && (from..from + tables::ARENA_BYTES).contains(&start)
            };
            maps.lines().filter(inside).count()
        };
        let pinned = || std::fs::read_dir(&pins).unwrap().count();
        let before = (mapped(), pinned(), memory.segments());
        // A folder in the way of the fourth segment's pin.
        std::fs::create_dir(pins.join("segment-3")).unwrap();
        assert!(memory.grow(6).is_err());
        std::fs::remove_dir(pins.join("segment-3")).unwrap();
        assert_eq!((mapped(), pinned(), memory.segments()), before);
        memory.grow(6).unwrap();
        assert_eq!((mapped() - before.0, memory.segments()), (5, 6));
        engine.unpin_all().unwrap();
    });
}
