// SPDX-License-Identifier: Apache-2.0
//! Random connections that talk, between VMs behind tunnels or over inline pairs in front of servers: what engines with state tables are compared by.

use abi::Vni;
use conntrack::PairKey;
use conntrack_compact::{Key, MigrationOptions, Shared, Spec, TableKind};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use testkit::case;
use testkit::layers::Packet;
use testkit::region::Region;
use testkit::rng::Rng;
use testkit::runner::{End as Outcome, Engine, Seen, START};
use testkit::user::UserEngine;

const TABLES: &str = "tables from region.tables\n";
/// What a TCP conversation says, and which end; behind it, data to and fro.
const SCRIPT: &[(usize, &str)] =
    &[(0, "syn seq=100"), (1, "syn seq=500 ack=101"), (0, "seq=101 ack=501"), (1, "psh seq=501 ack=101")];
const DATA: [&str; 2] = ["seq=101 ack=501", "seq=501 ack=101"];
/// What it says out of turn.
const ODD: &[&str] = &[
    "syn seq=100",
    "syn seq=100",
    "syn seq=500 ack=101",
    "syn seq=500 ack=101",
    "seq=101 ack=501",
    "psh seq=101 ack=501",
    "seq=101 ack=501",
    "seq=501 ack=101",
    "fin seq=101 ack=501",
    "fin seq=501 ack=101",
    "rst seq=101",
    "flags=0x03 seq=1",
    "flags=0x00",
];
/// Connections that talk at a time.
const TALKING: usize = 60;
/// Rules of a region; beyond them one goes for each that comes.
const RULES_MAX: usize = 40;

/// Where an end is.
enum At {
    /// A VM: VNI, host, its port, the gateway's MAC of that side.
    Vm(u32, &'static str, u32, &'static str),
    /// A server: VNI, the port on its side of the wire, the one on the network's.
    Server(u32, u32, u32),
    /// In the network beyond a wire.
    Network,
}

struct End {
    name: &'static str,
    v4: &'static str,
    v6: Option<&'static str>,
    at: At,
}

const fn end(name: &'static str, v4: &'static str, v6: Option<&'static str>, at: At) -> End {
    End { name, v4, v6, at }
}

/// Who there is, by the tables of a folder of tests/packets.
pub struct World {
    pub name: &'static str,
    folder: &'static str,
    ends: &'static [End],
    services: &'static [u16],
    /// Registers of a table in which some of its connections collide.
    pub registers: u32,
}

/// VMs behind tunnels; green (g) is red's peer, over IPv4.
pub const TUNNELS: World = World {
    name: "tunnels",
    folder: "filter",
    ends: &[
        end("a", "10.0.0.5", Some("2001:db8:64::5"), At::Vm(100, "h1", 1, "gw")),
        end("b", "10.0.0.6", Some("2001:db8:64::6"), At::Vm(100, "h2", 2, "port2")),
        end("c", "10.0.0.7", Some("2001:db8:64::7"), At::Vm(100, "h2", 2, "port2")),
        end("g", "10.9.0.5", None, At::Vm(300, "h1", 1, "gw")),
    ],
    services: &[80, 80, 22, 53, 54, 443],
    registers: 250,
};

/// Servers behind two inline pairs, who talk with each other and with others.
pub const INLINE: World = World {
    name: "wires",
    folder: "inline",
    ends: &[
        end("s", "10.9.0.5", Some("2001:db8:9::5"), At::Server(100, 1, 2)),
        end("t", "10.9.0.6", Some("2001:db8:9::6"), At::Server(100, 13, 14)),
        end("u", "10.8.0.7", Some("2001:db8:8::7"), At::Server(200, 13, 14)),
        end("n", "198.51.100.7", Some("2001:db8::7"), At::Network),
        end("m", "10.9.0.65", None, At::Network),
        end("s", "10.9.0.5", Some("2001:db8:9::5"), At::Network),
        end("t", "10.9.0.6", Some("2001:db8:9::6"), At::Network),
    ],
    services: &[80, 80, 22, 443, 53, 7000, 81],
    registers: 50,
};

impl World {
    /// Its tables, with this state table.
    pub fn region(&self, spec: Spec) -> Region {
        let mut region = self.case("in eth 02:00:00:00:00:07 > 02:00:00:00:00:08").region.clone();
        region.groups.states = Some(spec);
        region
    }

    fn case(&self, input: &str) -> case::Case {
        let text = format!("{TABLES}case x\n  {input}\n  pass\n");
        let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/packets")).join(self.folder);
        let tables = |file: &str| std::fs::read_to_string(folder.join(file)).ok();
        case::parse("random", &text, &tables).unwrap_or_else(|e| panic!("{e}\n{text}")).remove(0)
    }

    /// Two ends that packets go between, and whether they may use IPv6.
    fn pair(&self, rng: &mut Rng) -> ([usize; 2], bool) {
        loop {
            let ends = [rng.below(self.ends.len()), rng.below(self.ends.len())];
            let [a, b] = ends.map(|i| &self.ends[i]);
            let v6 = a.v6.is_some() && b.v6.is_some();
            match (&a.at, &b.at) {
                _ if a.name == b.name => {}
                (At::Vm(vni, ..), At::Vm(other, ..)) => return (ends, v6 && vni == other),
                (At::Server(..), At::Network) | (At::Network, At::Server(..)) => return (ends, v6),
                _ => {}
            }
        }
    }
}

/// A connection: both ends, of which the first began, with ports, protocol, IPv6, and how far it has come.
#[derive(Clone, Copy)]
pub struct Connection {
    ends: [usize; 2],
    ports: [u16; 2],
    proto: u8,
    v6: bool,
    step: usize,
}

impl Connection {
    fn random(world: &World, rng: &mut Rng) -> Connection {
        let (ends, may_v6) = world.pair(rng);
        let ports = [1000 + rng.below(40) as u16, world.services[rng.below(world.services.len())]];
        Connection { ends, ports, proto: [6, 6, 6, 17, 1][rng.below(5)], v6: may_v6 && rng.chance(15), step: 0 }
    }

    /// What a state table knows it by.
    pub fn key(&self, world: &World) -> Key {
        let echo = self.proto == 1;
        let proto = if echo && self.v6 { 58 } else { self.proto };
        let ends = self.ends.map(|i| &world.ends[i]);
        let [from, to] = ends.map(|e| -> IpAddr {
            let text = if self.v6 { e.v6.expect("an IPv6 address") } else { e.v4 };
            text.parse().expect("an address")
        });
        let [sport, dport] = if echo { [self.ports[0]; 2] } else { self.ports };
        let pair = match (&ends[0].at, &ends[1].at) {
            (At::Server(vni, ..), _) => {
                PairKey::of_server(proto, Vni(*vni), from, to, (sport, if echo { 0 } else { dport }))
            }
            (_, At::Server(vni, ..)) => {
                PairKey::of_server(proto, Vni(*vni), to, from, (dport, if echo { 0 } else { sport }))
            }
            (At::Vm(a, ..), At::Vm(b, ..)) => {
                PairKey::new(proto, (Vni(*a), from, sport), (Vni(*b), to, dport), echo).map(|(key, _)| key)
            }
            _ => None,
        };
        Key::from(&pair.expect("one family, and an end inside"))
    }

    /// Transport and what is behind it; which end sends.
    fn upper(&mut self, rng: &mut Rng) -> (String, usize) {
        let (scripted, step) = (rng.chance(90), self.step);
        let scripted_step = SCRIPT.get(step).filter(|_| scripted);
        let back = scripted_step.map_or_else(|| rng.below(2), |s| s.0);
        let flags = match (scripted, scripted_step) {
            (_, Some(s)) => s.1,
            (true, None) => DATA[back],
            (false, _) => ODD[rng.below(ODD.len())],
        };
        self.step += usize::from(scripted);
        let (sport, dport) = (self.ports[back], self.ports[1 - back]);
        let text = match self.proto {
            6 => format!("tcp {sport} > {dport} {flags} / data {}", if scripted { 0 } else { rng.below(2) * 9 }),
            17 => format!("udp {sport} > {dport} / data 4"),
            _ => {
                let kind = if back == 0 { "echo-request" } else { "echo-reply" };
                format!("{} {kind} id={} seq=1", if self.v6 { "icmp6" } else { "icmp" }, self.ports[0])
            }
        };
        (text, back)
    }

    /// Its next packet, or one out of turn, and the port that it comes by.
    fn packet(&mut self, world: &World, rng: &mut Rng) -> (Packet, u32) {
        let (upper, back) = self.upper(rng);
        let [from, to] = [self.ends[back], self.ends[1 - back]].map(|i| &world.ends[i]);
        let odd = [" id=9 frag=16..32", " options=94040000"].get(rng.below(40)).copied().unwrap_or("");
        let (ip, fields) = if self.v6 { ("ip6", "") } else { ("ip", odd) };
        let inner = format!("{ip} {} > {}{fields} / {upper}", from.name, to.name);
        let (head, port) = match (&from.at, &to.at) {
            (At::Vm(vni, host, port, mac), _) => {
                let vpc = if *vni == 100 { "red" } else { "green" };
                let tunnel = format!("eth {host} > {mac} / ip {host} > gw / udp 50000 > 4789 / vxlan {vpc}");
                (format!("{tunnel} / eth {} > {vpc}", from.name), *port)
            }
            (At::Server(_, port, _), _) | (At::Network, At::Server(_, _, port)) => {
                (format!("eth {} > {}", from.name, to.name), *port)
            }
            _ => unreachable!("an end inside"),
        };
        let case = world.case(&format!("in port {port} {head} / {inner}"));
        let packet = case.inputs().next().expect("one packet").packet.clone();
        (packet, port)
    }
}

/// The connections that talk.
pub struct Talk<'w>(&'w World, Vec<Connection>);

impl<'w> Talk<'w> {
    pub fn new(world: &'w World, rng: &mut Rng) -> Talk<'w> {
        Talk(world, (0..TALKING).map(|_| Connection::random(world, rng)).collect())
    }

    /// The next packet of one of them, or now and then of a stranger.
    pub fn packet(&mut self, rng: &mut Rng) -> (Connection, Packet, u32) {
        let Talk(world, all) = self;
        let at = rng.below(TALKING);
        if rng.chance(1) {
            all[at] = Connection::random(world, rng);
        } else if rng.chance(4) {
            // Again from its first packet: what has expired or was refused would be a stray for the rest of its time.
            all[at].step = 0;
        }
        let mut stranger = Connection::random(world, rng);
        let c = if rng.chance(15) { &mut stranger } else { &mut all[at] };
        let (packet, port) = c.packet(world, rng);
        (*c, packet, port)
    }
}

/// Packets of a run with each table.
pub fn packets(usual: usize) -> usize {
    std::env::var("TUNNY_STATES_PACKETS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

/// A table in a few words.
pub fn name(spec: &Spec) -> String {
    let migrates = if spec.migration.is_some() { ", migrating" } else { "" };
    format!("{} {} bits{}{migrates}", spec.kind.name(), spec.fingerprint, if spec.careful { ", careful" } else { "" })
}

/// Tables that are too small for what talks, so that prefixes migrate to the software path and back.
pub fn migrating(connections: u32, wide: u32) -> Vec<Spec> {
    let of = |kind, unit4, unit6| Spec {
        migration: Some(MigrationOptions { connections: 4096, begin: 20, end: 16, unit4, unit6 }),
        ..Spec::new(kind, connections, wide)
    };
    let careful = Spec { careful: true, registers: 2000, ..of(TableKind::Compact, 70, 128) };
    vec![of(TableKind::Exact, 96, 128), careful, of(TableKind::Digest, 64, 128)]
}

/// A change of rules now and then, and time.
pub fn meanwhile(i: usize, region: &mut Region, rng: &mut Rng, engines: &mut [&mut dyn Engine], now: &mut u64) {
    if i.is_multiple_of(900) {
        let rules = &mut region.groups.rules;
        if rules.len() > RULES_MAX {
            rules.remove(rng.below(rules.len()));
        }
        let (group, rule) = rules[rng.below(rules.len())].clone();
        rules.push((group, filter::Rule { priority: 1 + rng.below(300) as u16, allow: rng.chance(60), ..rule }));
        engines.iter_mut().for_each(|e| e.change(region).expect("a change"));
    }
    let migrates = region.groups.states.is_some_and(|s| s.migration.is_some());
    if migrates && i.is_multiple_of(40) {
        // By a clock of its own. What ends by time ends at the long steps below, since the clocks of the engines differ by what a run takes.
        engines.iter_mut().for_each(|e| e.migrate(START + i as u64 * 30_000_000));
    }
    if i.is_multiple_of(700) {
        *now += 1_000_000_000_000;
        engines.iter_mut().for_each(|e| e.tick(*now));
    }
}

/// The same for the packet. The Rust path alone says the port, the program by the frame's source address.
pub fn same(a: &Seen, b: &Seen) -> bool {
    let ends = match (&a.end, &b.end) {
        (Outcome::Forward(_, x), Outcome::Forward(_, y)) => x == y,
        (a, b) => a == b,
    };
    ends && a.generated == b.generated
}

/// What became of a packet, in a word.
pub fn kind(seen: &Seen) -> String {
    match (&seen.end, seen.punt) {
        (Outcome::Drop(reason), punt) => {
            format!("drop {}{}", reason.name(), if punt.is_some() { "" } else { " (fast)" })
        }
        (_, Some(reason)) => format!("punt {}", reason.name()),
        (Outcome::Forward(..), None) => "fast".into(),
        (end, None) => format!("{end:?}").split('(').next().unwrap_or("").to_lowercase(),
    }
}

pub fn shared(engine: &UserEngine) -> Arc<Shared> {
    engine.nat().and_then(|nat| nat.states().clone()).expect("a state table")
}
