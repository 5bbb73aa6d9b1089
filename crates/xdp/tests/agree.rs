// SPDX-License-Identifier: Apache-2.0
//! Both languages compute the same hashes, and memory of another layout is refused.
mod common;

use abi::*;
use common::rig::*;
use common::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tables::LineMemory;
use xdp::object::{run_program, Object, RunOptions};
use xdp::{Attach, Options, Origin, XdpEngine, XdpError};

static HASHES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hashes.bpf.o"));

#[test]
fn c_and_rust_compute_the_same_hashes() {
    if engine().is_none() {
        return;
    }
    let object = Object::load("hashes", HASHES, &[], &[]).unwrap();
    let program = object.program("hashes").unwrap();
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    println!("seed {seed:#x}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for round in 0..5000 {
        // Edges first, then anything.
        let k: [u64; 6] = std::array::from_fn(|_| match round {
            0 => 0,
            1 => u64::MAX,
            _ => rng.random(),
        });
        let mut packet = [0u8; 128];
        for (to, from) in packet.chunks_exact_mut(8).zip(k) {
            to.copy_from_slice(&from.to_ne_bytes());
        }
        let mut out = [0u8; 256];
        let (verdict, _, _) = run_program(program, &packet, &mut out, RunOptions::default()).unwrap();
        assert_eq!(verdict, 2);
        let got = |i: usize| u64::from_ne_bytes(out[48 + i * 8..56 + i * 8].try_into().unwrap());
        assert_eq!(got(0), hash1(k[0], k[1]), "{k:x?}");
        assert_eq!(got(1), hash3(k[0], k[1], k[2], k[3]), "{k:x?}");
        assert_eq!(got(2), u64::from(bucket_of(k[0], k[1] as u32)), "{k:x?}");
        assert_eq!(got(3), flow_hash_v4(k[0] as u32, k[1] as u32, k[4] as u8, k[5] as u32), "{k:x?}");
        assert_eq!(got(4), flow_hash_v6((k[0], k[1]), (k[2], k[3]), k[4] as u8, k[5] as u32), "{k:x?}");
        assert_eq!(got(5), u64::from(source_port(k[0])), "{k:x?}");
        assert_eq!(got(6), u64::from(flow_label(k[0])), "{k:x?}");
        let (vni, v6) = (k[0] as u32, u128::from(k[2]) << 64 | u128::from(k[3]));
        assert_eq!(got(7), u64::from(version_of_vpc(vni, k[1])), "{k:x?}");
        assert_eq!(got(8), u64::from(version_of_v4(vni, k[2] as u32, k[1])), "{k:x?}");
        assert_eq!(got(9), u64::from(version_of_v6(vni, v6, k[1])), "{k:x?}");
    }
}

#[test]
fn pinned_memory_of_another_layout_is_refused_in_plain_words() {
    in_namespace(|| {
        if engine().is_none() {
            return;
        }
        let bpffs = Bpffs::mount("layout");
        let options = Options { pins: Some(bpffs.0.join("instance")), ..Options::default() };
        let first = XdpEngine::open_or_create(&options).unwrap();
        build(&first.memory(), 0);
        // SAFETY: Memory promises a whole Root, and nobody else writes.
        unsafe { (*first.memory().root()).layout_hash ^= 1 };
        // An engine has no Debug.
        #[allow(clippy::err_expect)]
        let error = XdpEngine::open_or_create(&options).err().expect("refused");
        assert!(matches!(error, XdpError::MemoryLayout { .. }), "{error}");
        assert!(error.to_string().contains("build new tables beside it"), "{error}");
        first.unpin_all().unwrap();
    });
}

#[test]
fn an_upgrade_from_another_layout_switches_the_link_without_losing_a_packet() {
    in_namespace(|| {
        if engine().is_none() {
            return;
        }
        let bpffs = Bpffs::mount("upgrade");
        let options = Options { pins: Some(bpffs.0.join("instance")), ..Options::default() };
        let (port, far) = veth("tnyup", "tnyfar", 1500);
        let mut old = XdpEngine::open_or_create(&options).unwrap();
        build(&old.memory(), OPT_SOURCE_STRICT);
        egress(&old.memory(), port);
        old.attach(port, Attach::Native).unwrap();
        // To its successor this is a layout of its own, as if another version had pinned it.
        let pins = old.pins().unwrap().to_path_buf();
        std::fs::rename(&pins, pins.with_file_name("layout-0000000000000001")).unwrap();
        let wire = Wire::open(far);
        let send = |n| {
            for i in 0..n {
                wire.send(&packet(NC_A, VNI, VM_B, 64));
                assert!(wire.receive(2000).is_some(), "packet {i} is lost");
            }
        };
        send(50);
        let old_memory = old.memory();
        drop(old);
        let mut new = XdpEngine::open_or_create(&options).unwrap();
        assert_eq!(new.origin(), Origin::Fresh);
        send(50);
        build(&new.memory(), OPT_SOURCE_STRICT);
        egress(&new.memory(), port);
        assert_eq!(new.stats_total().rx, 0, "the old program forwards until the switch");
        assert!(new.attach(port, Attach::Native).unwrap().adopted);
        send(50);
        assert_eq!(new.stats_total().forwarded, 50);
        assert_eq!(new.retire_other_layouts().unwrap(), 1);
        drop(old_memory);
        send(50);
        assert_eq!(new.stats_total().forwarded, 100);
        new.unpin_all().unwrap();
    });
}

#[test]
fn generic_mode_is_said_aloud() {
    in_namespace(|| {
        let Some(mut engine) = engine() else { return };
        let refused = engine.attach(index("lo"), Attach::Native).expect_err("loopback has no native XDP");
        assert!(refused.to_string().contains("`user` engine"), "{refused}");
        let attached = engine.attach(index("lo"), Attach::NativeElseGeneric).unwrap();
        assert_eq!(attached.mode, xdp::Mode::Generic);
        assert!(attached.note.unwrap().contains("GENERIC"));
        engine.detach(index("lo")).unwrap();
        assert!(engine.attached().is_empty());
    });
}

#[test]
fn jumbo_frames_take_the_fast_path_with_checksums_over_all_their_buffers() {
    in_namespace(|| {
        let Some(mut engine) = engine() else { return };
        let (port, far) = veth("tnyup", "tnyfar", 9000);
        build(&engine.memory(), OPT_SOURCE_STRICT | OPT_UDP4_CHECKSUM);
        egress(&engine.memory(), port);
        mtu(&engine.memory(), 9000);
        if xdp::redirects_buffers() {
            engine.attach(port, Attach::Native).unwrap();
        } else {
            let refused = engine.attach(port, Attach::Native).expect_err("frames in several buffers would be lost");
            assert!(refused.to_string().contains("MTU that fits one"), "{refused}");
            let attached = engine.attach(port, Attach::NativeElseGeneric).unwrap();
            assert!(attached.note.is_some_and(|n| n.contains("GENERIC") && n.contains("Linux 6.3")));
        }
        let wire = Wire::open(far);
        for bytes in [1, 64, 65, 1400, 3300, 3700, 7001, 8800] {
            let mut sent = packet(NC_A, VNI, VM_B, bytes);
            let sum = udp_checksum(&sent);
            sent[40..42].copy_from_slice(&sum.to_be_bytes());
            wire.send(&sent);
            let got = wire.receive(2000).unwrap_or_else(|| panic!("{bytes} bytes: {:?}", engine.stats_total().drops));
            assert_eq!(got.len(), sent.len());
            let field = u16::from_be_bytes([got[40], got[41]]);
            let mut clear = got.clone();
            clear[40..42].fill(0);
            assert_eq!(field, udp_checksum(&clear), "{bytes} bytes");
            assert!(got[92..] == sent[92..], "{bytes} bytes: the payload is what was sent");
            // One bit wrong anywhere is found.
            *sent.last_mut().unwrap() ^= 0x10;
            wire.send(&sent);
            assert!(wire.receive(50).is_none());
        }
        let total = engine.stats_total();
        assert_eq!((total.forwarded, total.punted), (8, 0));
        assert_eq!(total.drops[DropReason::OuterUdpChecksum as usize], 8);
    });
}

#[test]
fn the_event_ring_tells_of_drops_when_asked() {
    let Some(engine) = engine() else { return };
    let (send, events) = std::sync::mpsc::channel();
    let ring = engine.events(move |e: &Event| send.send(*e).unwrap()).unwrap();
    let lost = packet(NC_A, Vni(VNI.0 + 1), VM_B, 8);
    build(&engine.memory(), 0);
    engine.test_run(&lost, IfIndex(1), 1).unwrap();
    ring.poll(std::time::Duration::from_millis(1));
    assert!(events.try_recv().is_err(), "nobody asked");
    build(&engine.memory(), OPT_CAPTURE_DROPS);
    engine.test_run(&lost, IfIndex(1), 1).unwrap();
    ring.poll(std::time::Duration::from_millis(100));
    let e = events.try_recv().expect("an event");
    assert_eq!((e.kind, e.reason, e.vni), (EVENT_DROP, DropReason::VniUnknown as u8, VNI.0 + 1));
    assert_eq!((e.length as usize, &e.data[..lost.len()]), (lost.len(), &lost[..]));
}

/// Two rates as RFC 2698 has them, when no time passes: what is left of both bursts; None is no limit.
struct TwoRates([Option<u64>; 2]);

impl TwoRates {
    /// 0 green, 1 yellow, 2 red.
    fn color(&mut self) -> u32 {
        let mut take = |n: usize| match &mut self.0[n] {
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
            None => true,
        };
        if !take(1) {
            return 2;
        }
        u32::from(!take(0))
    }

    /// RATE_LIMIT words that let one packet through in four seconds beyond the burst.
    fn words(&self) -> [u64; 2] {
        self.0.map(|burst| burst.map_or(0, |b| b << RATE_LIMIT_BURST_SHIFT | 0xffff_ffff))
    }
}

#[test]
fn punts_are_metered_as_rfc_2698_has_it() {
    in_namespace(|| {
        let Some(engine) = engine() else { return };
        let (port, _far) = veth("tnyup", "tnyfar", 1500);
        let _listener = engine.prepare_test(port).unwrap();
        let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        println!("seed {seed:#x}");
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // ARP of the VPC, and a packet whose tenant is not known when it is handed over.
        let mut arp = packet(NC_A, VNI, VM_B, 64);
        arp[62..64].copy_from_slice(&[8, 6]);
        let mut stranger = packet(NC_A, VNI, VM_B, 64);
        stranger[14] = 0x46;
        stranger.splice(34..34, [1; 4]);
        let length = (stranger.len() - 14) as u16;
        stranger[16..18].copy_from_slice(&length.to_be_bytes());
        build(&engine.memory(), 0);
        for round in 0..60 {
            let mut limit = || rng.random_bool(0.8).then(|| rng.random_range(1..=8));
            let (mut total, mut tenant) = (TwoRates([limit(), limit()]), TwoRates([limit(), limit()]));
            set_punts(&engine.memory(), total.words(), tenant.words());
            let mut want = (0, 0);
            for i in 0..24 {
                let known = rng.random_bool(0.75);
                let mine = if known { tenant.color() } else { 1 };
                let passes = [true, mine != 2, mine == 0][total.color() as usize];
                let run = engine.test_run(if known { &arp } else { &stranger }, port, 1).unwrap();
                let expected = match (passes, known) {
                    (false, _) => xdp::TestVerdict::Drop(DropReason::PuntLimited),
                    (true, true) => xdp::TestVerdict::Punt(PuntReason::Arp),
                    (true, false) => xdp::TestVerdict::Punt(PuntReason::OuterOptions),
                };
                assert_eq!(run.verdict, expected, "round {round} packet {i} known {known}");
                *(if passes { &mut want.0 } else { &mut want.1 }) += u64::from(known);
            }
            assert_eq!(punts(&engine.memory()), want, "round {round}");
        }
    });
}
