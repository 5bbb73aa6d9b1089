// SPDX-License-Identifier: Apache-2.0
//! A replay moves the time with every packet: whatever is read at once, what becomes of a packet is what a gateway makes of it that gets
//! one packet at a time.

use abi::Vni;
use gateway::{Batch, Frame, Gateway, Verdict, HEADROOM};
use node::offline::{replay, Offline, Summary, PORT};
use node::pcap::Packet;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::path::PathBuf;
use wire::{arp, be, ethernet, icmpv4, ipv4, udp, vxlan};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
const WEB1: u32 = 0x0a00_0005;
const WEB2: u32 = 0x0a00_0006;
/// The elastic address of web1.
const ELASTIC: u32 = 0xcb00_7108;

fn example() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/internet.yaml"))
}

fn offline() -> Offline {
    Offline::new(&[example()], 9000).unwrap()
}

fn plain(src: u32, dst: u32, ttl: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 34];
    let (eth, ip) = frame.split_at_mut(14);
    let head = ethernet::Repr { dst: 0x0200_0000_0001, src: 0x0200_0000_0901, ethertype: ethernet::ethertype::IPV4 };
    head.emit(eth.first_chunk_mut().unwrap());
    let head = ipv4::Repr { tos: 0, payload_len: payload.len(), ident: 0, flags_offset: 0, ttl, protocol, src, dst };
    head.emit(ip.first_chunk_mut().unwrap());
    frame.extend_from_slice(payload);
    frame
}

fn datagram(src: u32, dst: u32, ports: (u16, u16)) -> Vec<u8> {
    let mut d = vec![0; udp::HEADER_LEN + 4];
    be::set_u16(&mut d, 0, ports.0);
    be::set_u16(&mut d, 2, ports.1);
    be::set_u16(&mut d, 4, 12);
    udp::Packet::new_unchecked(&mut d[..]).fill_checksum_v4(src, dst);
    d
}

fn ping(kind: u8, id: u16) -> Vec<u8> {
    let mut m = vec![0; 16];
    icmpv4::Repr { kind, code: 0, rest: u32::from(id) << 16 | 1 }.emit(&mut m).unwrap();
    m
}

/// From host-a, in the tunnel of a VPC.
fn tunnelled(vni: Vni, inner: &[u8]) -> Vec<u8> {
    let mut d = vec![0; 16];
    be::set_u16(&mut d, 0, 50_000);
    be::set_u16(&mut d, 2, 4789);
    be::set_u16(&mut d, 4, 16 + inner.len() as u16);
    vxlan::Repr { vni }.emit(d[8..].first_chunk_mut().unwrap());
    d.extend_from_slice(inner);
    plain(0xc000_020b, 0xc000_0201, 64, 17, &d)
}

/// A random packet: out, in from whom a session may be with, to the gateway itself, or nothing that anybody knows.
fn random(rng: &mut ChaCha8Rng) -> Vec<u8> {
    let remote = 0xc633_6407 + rng.random_range(0..2) as u32;
    let (vm, vni) = [(WEB1, Vni(100)), (WEB2, Vni(100)), (WEB1, Vni(300))][rng.random_range(0..3)];
    let (near, far) = (1000 + rng.random_range(0..3) as u16, 53);
    let ttl = [64, 64, 64, 1][rng.random_range(0..4)];
    match rng.random_range(0..8) {
        0..=2 => tunnelled(vni, &plain(vm, remote, ttl, 17, &datagram(vm, remote, (near, far)))),
        3 => plain(remote, ELASTIC, ttl, 17, &datagram(remote, ELASTIC, (far, near))),
        4 => plain(
            remote,
            0xcb00_7100 + rng.random_range(0..16) as u32,
            ttl,
            1,
            &ping(rng.random_range(0..2) as u8 * 8, near),
        ),
        5 => tunnelled(vni, &plain(vm, 0x0a00_0001, ttl, 1, &ping(8, near))),
        6 => {
            let mut a = vec![0; 14 + arp::LEN];
            ethernet::Repr { dst: 0xffff_ffff_ffff, src: 0x0200_0001_0005, ethertype: ethernet::ethertype::ARP }
                .emit(a.first_chunk_mut().unwrap());
            be::set_u64(&mut a, 14, 0x0001_0800_0604_0001);
            be::set_u32(&mut a, 28, vm);
            be::set_u32(&mut a, 38, 0x0a00_0001);
            tunnelled(vni, &a)
        }
        _ => plain(remote, 0xc000_0299, 64, 17, &datagram(remote, 0xc000_0299, (1, 2))),
    }
}

type Sent = Vec<(u64, Vec<u8>)>;

fn replayed(packets: &[Packet], ahead: usize) -> (Sent, Summary, abi::Stats) {
    let offline = offline();
    let (mut left, mut sent) = (packets.iter(), Sent::new());
    let next = || Ok(left.next().map(|p| Packet { time_ns: p.time_ns, data: p.data.clone(), ..Packet::default() }));
    let write = |time, data: &[u8]| {
        sent.push((time, data.to_vec()));
        Ok(())
    };
    let summary = replay(&offline, ahead, next, write, |_| ()).unwrap();
    (sent, summary, offline.writer.tables().stats_total())
}

/// One packet a batch, and a look at what has expired every 100 ms of the capture. The captures here have no long silences.
fn one_by_one(packets: &[Packet]) -> (Sent, abi::Stats) {
    let offline = offline();
    let first = packets[0].time_ns;
    let nat = node::conntrack::offline(&offline.model, first).unwrap();
    let mut gateway = Gateway::with_connections(offline.writer.tables(), 0, nat.clone());
    let (mut sent, mut now, mut look) = (Sent::new(), first, first + 100 * MS);
    for p in packets {
        now = now.max(p.time_ns);
        while look <= now {
            while nat.expire(look, 1 << 12).more {}
            look += 100 * MS;
        }
        let mut region = [&[0; HEADROOM][..], &p.data].concat();
        let mut batch = Batch::new();
        let _ = batch.push(Frame::new(&mut region, HEADROOM, p.data.len(), PORT));
        gateway.process(&mut batch, now);
        let frame = &batch.frames()[0];
        if matches!(frame.verdict, Verdict::Forward { .. } | Verdict::Answer { .. }) {
            sent.push((p.time_ns, frame.data().to_vec()));
        }
        sent.extend(batch.output.generated.iter().map(|g| (p.time_ns, g.data.clone())));
    }
    (sent, offline.writer.tables().stats_total())
}

fn at(time_ns: u64, data: Vec<u8>) -> Packet {
    Packet { time_ns, data, ..Packet::default() }
}

#[test]
fn an_answer_a_moment_later_finds_its_session_and_one_after_the_timeout_does_not() {
    // The pool gives the port: learned from what comes out.
    let out = || tunnelled(Vni(100), &plain(WEB2, 0xc633_6407, 64, 17, &datagram(WEB2, 0xc633_6407, (1000, 53))));
    let (sent, ..) = replayed(&[at(SECOND, out())], 1);
    let (public, port) = (be::u32(&sent[0].1, 26), be::u16(&sent[0].1, 34));
    let back = || plain(0xc633_6407, public, 64, 17, &datagram(0xc633_6407, public, (53, port)));
    let filler = || plain(0xc633_6407, 0xc000_0299, 64, 17, &datagram(1, 2, (1, 2)));
    for ahead in [1, 2, 256] {
        for (gap, forwarded) in [(0, 2), (MS, 2), (SECOND, 2), (600 * SECOND, 1)] {
            let padding = (0..300).map(|_| at(SECOND, filler()));
            let padded = [at(SECOND, out())].into_iter().chain(padding).chain([at(SECOND + gap, back())]);
            for packets in [vec![at(SECOND, out()), at(SECOND + gap, back())], padded.collect()] {
                let (_, s, _) = replayed(&packets, ahead);
                assert_eq!(s.outcomes["forwarded"], forwarded, "{gap} ns, {ahead} at once: {s:?}");
            }
        }
    }
}

#[test]
fn limits_by_the_second_know_the_time_of_each_packet() {
    let unknown = |i: u64, gap: u64| {
        at(SECOND + i * gap, tunnelled(Vni(100), &plain(WEB1, 0x0a00_00ff, 64, 17, &datagram(WEB1, 9, (1, 2)))))
    };
    let errors = |gap| replayed(&(0..2000).map(|i| unknown(i, gap)).collect::<Vec<_>>(), 256).1.outcomes["generated"];
    let (at_once, slowly) = (errors(0), errors(SECOND));
    assert!(at_once < 2000 && slowly == 2000, "{at_once} {slowly}");
}

#[test]
fn a_packet_that_causes_an_error_adds_up() {
    let p = tunnelled(Vni(100), &plain(WEB1, 0xc633_6407, 1, 17, &datagram(WEB1, 0xc633_6407, (1000, 53))));
    let (sent, s, _) = replayed(&[at(SECOND, p)], 256);
    assert_eq!((sent.len(), s.written, s.balanced), (1, 1, true));
    assert_eq!(s.outcomes, [("dropped", 1), ("forwarded", 1), ("generated", 1)].into());
    assert_eq!(s.drops, [("ttl_expired", 1)].into());
}

#[test]
fn whatever_is_read_at_once_each_packet_is_treated_by_itself() {
    let seed = std::env::var("TUNNY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0x7475_6e6e_7920_3136);
    println!("seed {seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for round in 0..12 {
        let mut time = 1_700_000_000 * SECOND;
        let packets: Vec<Packet> = (0..400)
            .map(|_| {
                time += [0, 0, MS, 50 * MS, SECOND, 20 * SECOND][rng.random_range(0..6)];
                // A capture may be out of order.
                at(time - [0, 0, 0, 3 * MS][rng.random_range(0..4)], random(&mut rng))
            })
            .collect();
        let (wanted, stats) = one_by_one(&packets);
        for ahead in [1, 2 + rng.random_range(0..254), 256] {
            let (sent, summary, counted) = replayed(&packets, ahead);
            assert!(summary.balanced, "round {round}, {ahead} at once: {summary:?}");
            assert_eq!(summary.written, sent.len() as u64);
            assert!(sent == wanted, "round {round}, {ahead} at once: other bytes");
            assert_eq!(
                (counted.drops, counted.forwarded, counted.answered),
                (stats.drops, stats.forwarded, stats.answered)
            );
            assert_eq!(
                (counted.generated, counted.passed, counted.dropped),
                (stats.generated, stats.passed, stats.dropped)
            );
        }
    }
}

/// Captures of whole files, read as `tunny replay` reads them: what comes out and what is counted is the same as for one packet at a time.
#[test]
fn captures_of_third_parties_are_replayed_as_one_packet_at_a_time() {
    let Some(folder) = skip::have_shared("data/repro") else { return };
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "pcap") {
            continue;
        }
        let mut reader = node::pcap::Reader::new(std::fs::File::open(&path).unwrap()).unwrap();
        let packets: Vec<Packet> = std::iter::from_fn(|| reader.next_packet().unwrap()).collect();
        let (wanted, stats) = one_by_one(&packets);
        for ahead in [1, 2, 7, 256] {
            let (sent, summary, counted) = replayed(&packets, ahead);
            assert!(summary.balanced, "{}, {ahead} at once: {summary:?}", path.display());
            assert_eq!((summary.packets, summary.written), (packets.len() as u64, sent.len() as u64));
            assert!(sent == wanted, "{}, {ahead} at once: other bytes", path.display());
            assert_eq!(
                (counted.drops, counted.forwarded, counted.passed),
                (stats.drops, stats.forwarded, stats.passed)
            );
        }
        seen += 1;
    }
    assert!(seen >= 3, "{seen} captures");
}
