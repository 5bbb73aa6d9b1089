// SPDX-License-Identifier: Apache-2.0
//! Rust = XDP with sessions: random conversations through stage nat, packet by packet on both engines, each with sessions of its
//! own: same bytes, same reason, same generated packets. VMs and the Internet talk UDP, TCP with all kinds of flags, ping, send
//! ICMP errors about what they got, fragments, strangers; tables change and time passes meanwhile.
//!
//! TUNNY_SEED repeats a run, TUNNY_NAT_PACKETS says how many packets (default 24,000, 300,000 in the long one).
mod common;

use abi::FLOW_CHUNK_LINES;
use common::again::{hits_enough, same_sessions, Again};
use common::{difference, XdpRunner};
use std::collections::BTreeMap;
use std::path::Path;
use testkit::case;
use testkit::connections;
use testkit::dissect::dissect;
use testkit::internet::Internet;
use testkit::layers::{Layer, Packet};
use testkit::region::Region;
use testkit::rng::Rng;
use testkit::runner::{End, Engine, START};
use testkit::user::UserEngine;

const PER_REGION: usize = 1500;

/// VMs: VNI, gateway's and own MAC address, own address, outer headers from their host.
const VMS: &[(u32, &str, &str, &str, &str)] = &[
    (100, "02:00:00:00:64:01", "02:00:00:00:64:05", "10.0.0.5", "192.0.2.11"),
    (100, "02:00:00:00:64:01", "02:00:00:00:64:06", "10.0.0.6", "192.0.2.12"),
    (200, "02:00:00:00:c8:01", "02:00:00:00:c8:05", "10.0.0.5", "192.0.2.11"),
    (300, "02:00:00:01:2c:01", "02:00:00:01:2c:05", "10.9.0.5", "192.0.2.11"),
];
const REMOTES: &[&str] =
    &["198.51.100.7", "198.51.100.8", "203.0.113.10", "203.0.113.20", "203.0.113.21", "10.0.0.6", "10.9.0.5"];
const FLAGS: &[&str] = &[
    "syn",
    "syn ack=1",
    "ack=1",
    "psh ack=1",
    "fin ack=1",
    "rst",
    "rst ack=1",
    "flags=0",
    "syn fin",
    "flags=0xd0 ack=1",
];

struct World {
    rng: Rng,
    /// Frames that came out, of which answers and errors are made.
    seen: Vec<Packet>,
}

fn parse(text: &str) -> Packet {
    let text = format!("case x\n  in {text}\n  pass\n");
    let case = case::parse("random", &text, &|_| None).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let packet = case[0].inputs().next().expect("one packet").packet.clone();
    packet
}

fn region(rng: &mut Rng) -> Region {
    let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/packets/nat"));
    let text = "tables from region.tables\ncase x\n  in eth h1 > gw\n  pass\n";
    let cases =
        case::parse("x", text, &|f| std::fs::read_to_string(dir.join(f)).ok()).unwrap_or_else(|e| panic!("{e}"));
    let mut region = cases[0].region.clone();
    // Two routers: which one a flow takes is its hash's choice.
    let mut second = region.nexthop("isp").expect("the router").clone();
    (second.name, second.port) = ("isp2".into(), 1);
    region.nexthops.push(second);
    region.internet.via.push("isp2".into());
    vary(rng, &mut region.internet);
    region
}

fn vary(rng: &mut Rng, internet: &mut Internet) {
    for s in &mut internet.snats {
        s.independent = rng.chance(50);
        s.software = rng.chance(5);
        s.pick_up = rng.chance(30);
        s.sessions[0] = if rng.chance(20) { 20 } else { u32::MAX };
    }
    if rng.chance(20) {
        internet.pools[0].ports = (1024, 1151);
    }
}

impl World {
    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.below(of.len())]
    }

    fn upper(&mut self) -> String {
        let (a, b) = (self.pick(&[1000, 1001, 80, 8080, 8083, 5000, 500]), self.pick(&[53, 80, 443, 1024, 8080, 5000]));
        let data = self.pick(&[0, 1, 20, 700, 1450]);
        match self.rng.below(10) {
            0..=3 => format!("udp {a} > {b}{} / data {data}", if self.rng.chance(10) { " csum=0" } else { "" }),
            4..=6 => {
                let (flags, seq) = (self.pick(FLAGS), self.pick(&[100, 101, 102, 5000, 3_000_000_000u32]));
                format!("tcp {a} > {b} {flags} seq={seq} / data {data}")
            }
            7 | 8 => format!("icmp echo-request id={} seq=3 / data {data}", self.pick(&[7, 8])),
            _ => self.pick(&["icmp echo-reply id=7", "icmp type=13", "sctp 1 > 2", "hex 00"]).to_string(),
        }
    }

    fn ip_fields(&mut self) -> String {
        let mut s = String::new();
        if self.rng.chance(5) {
            s += &format!(" ttl={}", self.rng.below(3));
        }
        if self.rng.chance(20) {
            s += " df";
        }
        if self.rng.chance(3) {
            s += " options=94040000";
        }
        if self.rng.chance(4) {
            s += self.pick(&[" id=5 mf frag=0..24", " id=5 mf frag=24..48", " id=5 frag=48"]);
        }
        s
    }

    /// A packet of a VM.
    fn outward(&mut self) -> Packet {
        let (vni, gateway, mac, addr, host) = self.pick(VMS);
        if vni == 100 && self.rng.chance(15) {
            let (remote, upper) =
                (self.pick(&["2001:db8:ffff::7", "2001:db8:64::9", "2001:db8:ffff::8"]), self.upper());
            let (from, upper) = (
                self.pick(&["2001:db8:64::5", "2001:db8:64::6"]),
                upper.replace("icmp ", "icmp6 ").replace("type=13", "type=200"),
            );
            let hop = if self.rng.chance(5) { " hop=1" } else { "" };
            return parse(&format!(
                "eth 02:00:00:00:01:01 > 02:00:00:00:00:01 / ip {host} > 192.0.2.1 / udp 50000 > 4789 / vxlan {vni} \
                 / eth {mac} > {gateway} / ip6 {from} > {remote}{hop} / {upper}"
            ));
        }
        let (remote, fields, upper) = (self.pick(REMOTES), self.ip_fields(), self.upper());
        parse(&format!(
            "eth 02:00:00:00:01:01 > 02:00:00:00:00:01 / ip {host} > 192.0.2.1 / udp 50000 > 4789 / vxlan {vni} \
             / eth {mac} > {gateway} / ip {addr} > {remote}{fields} / {upper}"
        ))
    }

    /// A packet from nowhere to a public address.
    fn stranger(&mut self) -> Packet {
        let (to, fields, upper) = (
            self.pick(&["203.0.113.10", "203.0.113.20", "203.0.113.21", "203.0.113.22", "203.0.114.1"]),
            self.ip_fields(),
            self.upper(),
        );
        let from = self.pick(&["198.51.100.7", "198.51.100.8", "203.0.113.10", "127.0.0.1"]);
        parse(&format!("eth 02:00:00:00:09:01 > 02:00:00:00:00:02 / ip {from} > {to}{fields} / {upper}"))
    }

    fn packet(&mut self) -> Packet {
        let packet = match self.rng.below(20) {
            0..=7 => Some(self.outward()),
            8..=15 => connections::answer(&mut self.rng, &self.seen),
            16 | 17 => connections::error(&mut self.rng, &self.seen),
            _ => Some(self.stranger()),
        };
        packet.unwrap_or_else(|| self.outward())
    }
}

/// The program has the kernel's clock, and which session is the oldest is told by its ticks: the software path alone is given the same
/// ticks, or a slow machine would make a difference.
#[derive(Default)]
struct Clock {
    first: Option<u64>,
    last: u64,
}

impl Clock {
    /// How long after the beginning a packet was handed over, or the last one before it; whole ticks of the kernel's clock stay whole.
    fn at(&mut self, handed: Option<u64>) -> u64 {
        if let Some(time) = handed {
            let tick = 1 << abi::SESSION_TIME_SHIFT;
            // What is added to START begins a tick when the kernel's clock does.
            let first = *self.first.get_or_insert(time / tick * tick + START % tick - tick);
            self.last = time - first;
        }
        self.last
    }
}

#[test]
fn rust_and_xdp_agree_on_random_conversations() {
    agree(24_000, 0);
}

#[test]
fn rust_and_xdp_agree_on_random_conversations_with_a_flow_cache() {
    agree(24_000, FLOW_CHUNK_LINES);
}

#[test]
#[ignore = "long: make test-long"]
fn long_rust_and_xdp_agree_on_random_conversations() {
    agree(300_000, 0);
}

/// With a flow cache packets that the program sent on come again, as they were or with the next byte of their stream.
#[track_caller]
fn agree(usual: usize, flow_lines: u32) {
    let Some(mut xdp) = XdpRunner::with_flow_cache(flow_lines) else { return };
    let mut rust = UserEngine::default();
    let (seed, rng) = Rng::seeded("sessions");
    let packets: usize = std::env::var("TUNNY_NAT_PACKETS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual);
    let mut w = World { rng, seen: Vec::new() };
    let (mut counts, mut fast, mut done) = (BTreeMap::<String, u64>::new(), 0u64, 0);
    let mut again = Again::new(if flow_lines > 0 { 50 } else { 0 });
    while done < packets {
        let mut tables = region(&mut w.rng);
        w.seen.clear();
        again.clear();
        rust.start(&tables).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        xdp.start(&tables).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let (mut now, mut clock) = (START, Clock::default());
        for i in 1..=PER_REGION {
            if i % 500 == 0 {
                vary(&mut w.rng, &mut tables.internet);
                rust.change(&tables).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                xdp.change(&tables).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            }
            if i % 700 == 0 {
                // Beyond every timeout but that of established TCP: what the clocks differ by decides nothing.
                now += 1_000_000_000_000;
                rust.tick(now);
                xdp.tick(now);
            }
            let packet = again.pick(&mut w.rng).unwrap_or_else(|| w.packet());
            let (frame, port) =
                (packet.encode(), if packet.layers.iter().any(|l| matches!(l, Layer::Vxlan(_))) { 1 } else { 2 });
            let quick = xdp.run(&frame, port, now).unwrap_or_else(|e| panic!("seed {seed}, packet {done}: {e}"));
            let slow = rust
                .run(&frame, port, now + clock.at(xdp.handed))
                .unwrap_or_else(|e| panic!("seed {seed}, packet {done}: {e}"));
            if let Some(what) = difference(&quick, &slow) {
                panic!("seed {seed}, packet {done}: {what}\n  in port {port} {}\n{tables}", dissect(&frame));
            }
            done += 1;
            again.note(&mut w.rng, &packet, &quick);
            fast += u64::from(quick.punt.is_none() && matches!(quick.end, End::Forward(..)));
            let kind = match (&quick.end, quick.punt) {
                (End::Drop(reason), _) => format!("drop {}", reason.name()),
                (_, Some(reason)) => format!("punt {}", reason.name()),
                (End::Pass(_), _) => "pass".into(),
                _ if packet.layers.iter().any(|l| matches!(l, Layer::Tcp(_))) => "fast tcp".into(),
                _ => "fast".into(),
            };
            *counts.entry(kind).or_default() += 1;
            for bytes in quick.generated.iter().map(|g| &g.1).chain(match &quick.end {
                End::Forward(_, b) => Some(b),
                _ => None,
            }) {
                w.seen.push(dissect(bytes));
                if w.seen.len() > 60 {
                    let old = w.rng.below(60);
                    w.seen.swap_remove(old);
                }
            }
        }
        rust.conserved().and_then(|()| xdp.conserved()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        same_sessions(&xdp, &rust).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    hits_enough(&xdp, flow_lines, done);
    println!("{done} packets, no difference in bytes and reasons; {fast} sent on by the XDP program alone:");
    counts.iter().for_each(|(what, n)| println!("  {n:>8} {what}"));
    // The generator has teeth only while sessions settle and fail in many ways.
    assert!(fast * 50 > done as u64, "too few packets are fast: {fast}");
    let tcp = counts.get("fast tcp").copied().unwrap_or(0);
    assert!(tcp * 400 > done as u64, "too few packets of established TCP: {tcp}");
    assert!(counts.len() >= 15, "too few kinds of outcome: {}", counts.len());
}
