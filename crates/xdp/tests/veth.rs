// SPDX-License-Identifier: Apache-2.0
//! The program attached to real devices: takeover without a gap, punts over AF_XDP, failed transmissions.
mod common;

use abi::{DropReason, IfIndex, PuntReason, OPT_SOURCE_STRICT};
use common::rig::*;
use common::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use tables::LineMemory;
use xdp::{AfXdpOptions, AfXdpSocket, Attach, Mode, Options, Origin, XdpEngine};

fn pinned(bpffs: &Bpffs) -> Options {
    Options { pins: Some(bpffs.0.join("instance")), ..Options::default() }
}

#[test]
fn a_restarted_process_takes_over_without_losing_a_packet() {
    in_namespace(|| {
        if engine().is_none() {
            return;
        }
        let bpffs = Bpffs::mount("takeover");
        let (port, far) = veth("tnyup", "tnyfar", 1500);
        let mut first = XdpEngine::open_or_create(&pinned(&bpffs)).unwrap();
        assert_eq!(first.origin(), Origin::Fresh);
        build(&first.memory(), OPT_SOURCE_STRICT);
        egress(&first.memory(), port);
        let attached = first.attach(port, Attach::NativeElseGeneric).unwrap();
        assert_eq!((attached.mode, attached.adopted, attached.note), (Mode::Native, false, None));

        let stop = Arc::new(AtomicBool::new(false));
        let wire = Arc::new(Wire::open(far));
        let sender = std::thread::spawn({
            let (wire, stop) = (wire.clone(), stop.clone());
            move || {
                let mut sent = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    wire.send(&packet(NC_A, VNI, VM_B, 64));
                    sent += 1;
                    assert!(wire.receive(2000).is_some(), "packet {sent} is lost");
                }
                sent
            }
        });
        let pause = || std::thread::sleep(std::time::Duration::from_millis(100));
        pause();
        drop(first);
        pause();
        for _ in 0..3 {
            let mut next = XdpEngine::open_or_create(&pinned(&bpffs)).unwrap();
            assert_eq!(next.origin(), Origin::Adopted);
            assert_eq!(next.memory().segments(), 1);
            assert!(next.attach(port, Attach::Native).unwrap().adopted);
            pause();
        }
        stop.store(true, Ordering::Relaxed);
        let sent = sender.join().unwrap();
        let last = XdpEngine::open_or_create(&pinned(&bpffs)).unwrap();
        let total = last.stats_total();
        assert_eq!((total.rx, total.forwarded, total.dropped), (sent, sent, 0));
        assert!(sent > 100, "{sent}");
        last.unpin_all().unwrap();
    });
}

#[test]
fn punts_arrive_over_af_xdp_with_metadata_and_in_pieces() {
    in_namespace(|| {
        let Some(mut engine) = engine() else { return };
        // Older kernels take frames of one buffer alone.
        let (mtu, sizes): (u32, &[usize]) =
            if xdp::redirects_buffers() { (9000, &[1450, 8000]) } else { (3000, &[1450]) };
        let (port, far) = veth("tnyup", "tnyfar", mtu);
        build(&engine.memory(), OPT_SOURCE_STRICT);
        egress(&engine.memory(), port);
        engine.attach(port, Attach::Native).unwrap();
        let mut socket = AfXdpSocket::open(AfXdpOptions::new(port, 0)).unwrap();
        println!("{}", socket.describe());
        engine.set_listener(port, 0, socket.raw_fd()).unwrap();
        let wire = Wire::open(far);
        // Packets that do not fit the next hop's MTU of 1500: punted, one in one piece, one in several.
        for bytes in sizes {
            let sent = packet(NC_A, VNI, VM_B, *bytes);
            wire.send(&sent);
            let got = until(|| (socket.receive() > 0).then_some(())).and_then(|()| {
                socket.packets().next().map(|p| (p.region[p.offset..p.offset + p.length].to_vec(), p.meta))
            });
            let (frame, meta) = got.expect("the punt arrives");
            assert!(frame == sent, "{bytes}: {} and {} bytes", frame.len(), sent.len());
            let meta = meta.expect("with metadata");
            assert_eq!((meta.reason, meta.vni, meta.ifindex), (PuntReason::IcmpDue as u8, VNI.0, port.0));
            socket.release();
            // And back out of the same port.
            assert!(socket.send(&sent));
            socket.flush();
            assert_eq!(wire.receive(2000).as_deref(), Some(&sent[..]));
        }
        assert_eq!(engine.stats_total().punted, sizes.len() as u64);
        assert_eq!(socket.take_lost(), 0);
        // Many of them: every buffer comes back, on both ways.
        for _ in 0..6000 {
            assert!(socket.send(&packet(NC_A, VNI, VM_B, 64)));
            socket.flush();
            assert!(wire.receive(2000).is_some());
        }
    });
}

#[test]
fn a_full_af_xdp_ring_is_counted() {
    in_namespace(|| {
        let Some(mut engine) = engine() else { return };
        let (port, far) = veth("tnyup", "tnyfar", 3000);
        build(&engine.memory(), OPT_SOURCE_STRICT);
        engine.attach(port, Attach::Native).unwrap();
        let mut socket = AfXdpSocket::open(AfXdpOptions { entries: 16, ..AfXdpOptions::new(port, 0) }).unwrap();
        engine.set_listener(port, 0, socket.raw_fd()).unwrap();
        let wire = Wire::open(far);
        for _ in 0..100 {
            wire.send(&packet(NC_A, VNI, VM_B, 1450));
        }
        until(|| (engine.stats_total().punted == 100).then_some(())).expect("all are punted");
        let mut received = 0;
        while socket.receive() > 0 {
            received += socket.packets().count() as u64;
        }
        assert_eq!(received + socket.take_lost(), 100);
        assert!(received >= 16, "{received}");
        assert_eq!(socket.take_lost(), 0, "told once");
    });
}

#[test]
fn a_packet_of_the_host_is_given_back_to_its_stack() {
    in_namespace(|| {
        if engine().is_none() {
            return;
        }
        let (port, _) = veth("tnyup", "tnyfar", 1500);
        ip("link set tnyup address 02:aa:00:00:00:01");
        ip("addr add 10.0.0.1/24 dev tnyup");
        let socket = std::net::UdpSocket::bind("10.0.0.1:4789").unwrap();
        socket.set_read_timeout(Some(std::time::Duration::from_secs(2))).unwrap();
        let injector = xdp::Injector::new().unwrap();
        let mut got = [0; 2048];
        for bytes in [0, 64, 1400] {
            let frame = packet(NC_A, VNI, VM_B, bytes);
            injector.inject(&frame, port).unwrap();
            let (length, from) = socket.recv_from(&mut got).expect("the stack has it");
            assert_eq!(from.to_string(), "10.0.0.10:49152");
            assert!(got[..length] == frame[42..], "{bytes}: {length} bytes");
        }
        assert!(injector.inject(&[0; 13], port).is_err(), "less than an Ethernet header");
        assert!(injector.inject(&packet(NC_A, VNI, VM_B, 64), IfIndex(9999)).is_err(), "no such interface");
    });
}

#[test]
fn what_the_driver_does_not_take_is_dropped_as_tx_failed() {
    in_namespace(|| {
        let Some(mut engine) = engine() else { return };
        let (port, far) = veth("tnyup", "tnyfar", 1500);
        let (out, _) = veth("tnyout", "tnyend", 1500);
        build(&engine.memory(), OPT_SOURCE_STRICT);
        egress(&engine.memory(), out);
        engine.attach(port, Attach::Native).unwrap();
        assert!(engine.notes().is_empty(), "{:?}", engine.notes());
        let wire = Wire::open(far);
        let send = |n: u64| {
            let before = engine.stats_total();
            (0..n).for_each(|_| wire.send(&packet(NC_A, VNI, VM_B, 64)));
            until(|| (engine.stats_total().rx == before.rx + n).then_some(())).expect("all come in");
            std::thread::sleep(std::time::Duration::from_millis(50));
            let after = engine.stats_total();
            let failed = after.drops[DropReason::TxFailed as usize] - before.drops[DropReason::TxFailed as usize];
            assert_eq!(after.rx, after.forwarded + after.dropped);
            (after.forwarded - before.forwarded, failed)
        };
        assert_eq!(send(5), (0, 5), "no port with this index");
        engine.add_port(out).unwrap();
        assert_eq!(send(5), (5, 0));
        ip("link set tnyend down");
        assert_eq!(send(5), (0, 5), "the driver refuses");
        ip("link set tnyend up");
        assert_eq!(send(5), (5, 0));
        // Back out of the port it came from, with no NAPI at the other end.
        egress(&engine.memory(), port);
        assert_eq!(send(5), (5, 0));
        let status = std::process::Command::new("ethtool").args(["-K", "tnyfar", "gro", "off"]).status().unwrap();
        assert!(status.success());
        assert_eq!(send(5), (0, 5), "the driver refuses its own port");
    });
}

fn until<T>(mut done: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..2000 {
        if let Some(value) = done() {
            return Some(value);
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    None
}
