// SPDX-License-Identifier: Apache-2.0
//! Frames through the same flows in Debian's Open vSwitch and in crate `pipeline`: the same frames out of the same ports, byte for byte.
//!
//! The switch of [`crate::ovs_trace`] takes frames in over its control socket, and writes what it sends to a capture for each port.
pub use crate::ovs_programs::random as random_program;
use crate::ovs_trace::{random_packet, DummySwitch, PORTS};
use crate::Error;
use pipeline::text::{self, ImportOptions};
use pipeline::{Field, Key, Match, Switch};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use wire::checksum;

/// What a switch has sent by each port, in order.
pub type Sent = BTreeMap<u16, Vec<Vec<u8>>>;

/// How often Open vSwitch is looked at once more.
const PATIENCE: u32 = 40;
/// Nanoseconds from one frame to the next: so much that nothing depends on it.
const STEP: u64 = 1_000_000;

/// A switch that frames go through.
pub struct Frames {
    switch: DummySwitch,
    control: UnixStream,
    requests: u64,
    /// How much of each port's capture has been read.
    read: BTreeMap<u16, u64>,
}

impl Frames {
    /// Starts one.
    pub fn start() -> Result<Frames, Error> {
        let switch = DummySwitch::start_capturing()?;
        let control = UnixStream::connect(switch.path("ctl")).map_err(Error::io("opening the control socket"))?;
        Ok(Frames { switch, control, requests: 0, read: BTreeMap::new() })
    }

    /// Gives it flows and groups; those flows that it takes. Addresses and connections are forgotten.
    pub fn load(&mut self, text: &str) -> Result<String, Error> {
        let group = |l: &&str| l.starts_with("group_id");
        let groups: Vec<&str> = text.lines().filter(group).collect();
        let mut flows: Vec<&str> = text.lines().filter(|l| !group(l) && l.contains("actions=")).collect();
        self.switch.load(&mut flows, &groups.join("\n"))?;
        self.request("dpctl/flush-conntrack", &[])?;
        self.request("revalidator/purge", &[])?;
        Ok(format!("{}\n{}\n", groups.join("\n"), flows.join("\n")))
    }

    /// A request to its control socket, by JSON-RPC.
    fn request(&mut self, method: &str, parameters: &[&str]) -> Result<String, Error> {
        let io = |source| Error::Io { what: format!("asking Open vSwitch for {method}"), source };
        self.requests += 1;
        let request = json!({"id": self.requests, "method": method, "params": parameters}).to_string();
        self.control.write_all(request.as_bytes()).map_err(io)?;
        let mut bytes = Vec::new();
        loop {
            let mut piece = [0; 4096];
            let n = self.control.read(&mut piece).map_err(io)?;
            bytes.extend_from_slice(&piece[..n]);
            if n == 0 {
                return Err(Error::Failed { what: method.into(), why: "it hung up".into() });
            }
            if let Ok(answer) = serde_json::from_slice::<Value>(&bytes) {
                return match answer["error"].as_str() {
                    Some(why) => Err(Error::Failed { what: method.into(), why: why.into() }),
                    None => Ok(answer["result"].as_str().unwrap_or_default().into()),
                };
            }
        }
    }

    /// Takes a frame in by a port; what it sends then. No megaflow outlives a frame, so each sees all flows that those before it have made.
    pub fn receive(&mut self, port: u16, frame: &[u8]) -> Result<Sent, Error> {
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        self.request("netdev-dummy/receive", &[&format!("p{port}"), &hex])?;
        // Between two requests it serves its ports.
        self.request("version", &[])?;
        let mut sent = Sent::new();
        self.collect(&mut sent)?;
        Ok(sent)
    }

    /// Adds what it has sent since; afterwards it has no megaflow.
    fn collect(&mut self, sent: &mut Sent) -> Result<(), Error> {
        self.request("revalidator/purge", &[])?;
        for port in 1..=PORTS {
            let frames = self.new_frames(port)?;
            if !frames.is_empty() {
                sent.entry(port).or_default().extend(frames);
            }
        }
        Ok(())
    }

    fn new_frames(&mut self, port: u16) -> Result<Vec<Vec<u8>>, Error> {
        // A header of the file, and one of each frame.
        const FILE: u64 = 24;
        const RECORD: usize = 16;
        let begin = self.read.entry(port).or_insert(FILE);
        let mut bytes = Vec::new();
        std::fs::File::open(self.switch.path(&format!("tx{port}.pcap")))
            .and_then(|mut file| {
                file.seek(SeekFrom::Start(*begin))?;
                file.read_to_end(&mut bytes)
            })
            .map_err(Error::io("reading a capture"))?;
        let (mut frames, mut at) = (Vec::new(), 0);
        while let Some(header) = bytes.get(at..at + RECORD) {
            let length = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]) as usize;
            let Some(frame) = bytes.get(at + RECORD..at + RECORD + length) else { break };
            frames.push(frame.to_vec());
            at += RECORD + length;
        }
        *begin += at as u64;
        Ok(frames)
    }
}

/// What came out differently.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Frames given to both.
    pub frames: usize,
    /// Frames that came out of both.
    pub sent: usize,
    /// Those of which something came out that was rewritten.
    pub rewritten: usize,
    /// Flows that Open vSwitch did not take; they are left out on both sides.
    pub refused: usize,
    /// The differences, in words.
    pub differences: Vec<String>,
}

/// Both switches with the same flows.
pub struct Pair<'a> {
    frames: &'a mut Frames,
    switch: Switch,
    now: u64,
    /// What was found so far.
    pub found: Comparison,
}

impl Pair<'_> {
    /// Loads flows into both.
    pub fn load<'a>(frames: &'a mut Frames, flows: &str) -> Result<Pair<'a>, Error> {
        let accepted = frames.load(flows)?;
        let refused = flows.lines().filter(|l| l.contains("actions=")).count()
            - accepted.lines().filter(|l| l.contains("actions=")).count();
        // What one side takes and the other does not is judged elsewhere.
        let lenient = ImportOptions { lenient: true, ..ImportOptions::default() };
        let pipeline = text::import(&accepted, &lenient).map_err(Error::failed("importing"))?.pipeline;
        let ports = (1..=PORTS).chain([pipeline::LOCAL]);
        let switch = Switch::new(pipeline, ports, 0);
        Ok(Pair { frames, switch, now: 0, found: Comparison { refused, ..Comparison::default() } })
    }

    /// What flows match, for random packets.
    pub fn matches(&self) -> Vec<Match> {
        let mut rules: Vec<_> = self.switch.pipeline().rules().collect();
        rules.sort_by_key(|(id, _)| *id);
        rules.into_iter().map(|(_, rule)| rule.matching()).collect()
    }

    /// Gives a frame to both; what came out of Open vSwitch.
    pub fn give(&mut self, port: u16, frame: &[u8]) -> Result<Sent, Error> {
        let mut theirs = self.frames.receive(port, frame)?;
        self.now += STEP;
        let mut out = Vec::new();
        let outcome = self.switch.frame(frame, port, self.now, &mut out);
        let mut ours = Sent::new();
        // The port of the bridge itself has no capture.
        for (port, bytes) in out.into_iter().filter(|(port, _)| *port != pipeline::LOCAL) {
            ours.entry(port).or_default().push(bytes);
        }
        // On a busy machine it may be late.
        for _ in 0..PATIENCE {
            if ours == theirs {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
            self.frames.collect(&mut theirs)?;
        }
        self.found.frames += 1;
        self.found.sent += theirs.values().map(Vec::len).sum::<usize>();
        self.found.rewritten += usize::from(theirs.values().flatten().any(|sent| sent != frame));
        if ours != theirs {
            let number = self.found.frames;
            let key =
                pipeline::frame::key_of(frame, port).map(|key| text::format_key(&key, self.switch.pipeline().names()));
            self.found.differences.push(format!(
                "frame {number} by port {port}, {key:?} ({outcome:?}):\n  {}\n ours {}\n theirs {}",
                hex(frame),
                listed(&ours),
                listed(&theirs)
            ));
        }
        Ok(theirs)
    }

    /// Random frames that have a chance to match something, of a seed.
    pub fn give_random(&mut self, count: usize, seed: u64) -> Result<(), Error> {
        let matches = self.matches();
        let mut random = StdRng::seed_from_u64(seed);
        let mut kept: Vec<Key> = Vec::new();
        for _ in 0..count {
            let mut key = random_packet(&matches, &mut random);
            let port = key.get(Field::InPort);
            if !(1..=u128::from(PORTS)).contains(&port) {
                key.set(Field::InPort, port % u128::from(PORTS) + 1);
            }
            // Connections have packets both ways.
            if !kept.is_empty() && random.random_range(0..3) == 0 {
                key = kept[random.random_range(0..kept.len())];
                if random.random_range(0..2) == 0 {
                    turn(&mut key);
                }
            }
            kept.push(key);
            let frame = frame(&key, &mut random);
            self.give(key.get(Field::InPort) as u16, &frame)?;
        }
        Ok(())
    }
}

/// The other direction of a packet.
fn turn(key: &mut Key) {
    let pairs = [
        (Field::EthSrc, Field::EthDst),
        (Field::NwSrc, Field::NwDst),
        (Field::Ipv6Src, Field::Ipv6Dst),
        (Field::TcpSrc, Field::TcpDst),
    ];
    let ports = matches!(key.get(Field::NwProto), 6 | 17 | 132);
    for (one, other) in pairs.into_iter().take(if ports { 4 } else { 3 }) {
        let value = key.get(one);
        key.set(one, key.get(other));
        key.set(other, value);
    }
    if key.get(Field::NwProto) == 6 {
        key.set(Field::TcpFlags, 0x12);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn listed(sent: &Sent) -> String {
    let port = |(port, frames): (&u16, &Vec<Vec<u8>>)| {
        frames.iter().map(|frame| format!("\n   {port}: {}", hex(frame))).collect::<String>()
    };
    sent.iter().map(port).collect()
}

/// A frame of these fields, with right lengths and checksums, and something in it.
pub fn frame(key: &Key, random: &mut StdRng) -> Vec<u8> {
    let field = |field: Field, width: usize| key.get(field).to_be_bytes()[16 - width..].to_vec();
    let mut out = [field(Field::EthDst, 6), field(Field::EthSrc, 6)].concat();
    for tag in [Field::VlanTci, Field::InnerTci].map(|tag| key.get(tag) as u16) {
        if tag & 0x1000 != 0 {
            out.extend([0x81, 0]);
            out.extend((tag & 0xefff).to_be_bytes());
        }
    }
    out.extend(field(Field::EthType, 2));
    let mut kind = key.get(Field::EthType);
    if kind == 0x8847 {
        out.extend(field(Field::MplsLse0, 4));
        // Something that no flow can see.
        kind = 0;
        out.extend((0..40).map(|n| n as u8 ^ 0xf0));
    }
    match kind {
        0x0800 => {
            let message = message(key, false, random);
            let mut header = vec![0x45, key.get(Field::NwTos) as u8];
            header.extend((20 + message.len() as u16).to_be_bytes());
            header.extend([
                random.random(),
                random.random(),
                0x40,
                0,
                key.get(Field::NwTtl) as u8,
                key.get(Field::NwProto) as u8,
                0,
                0,
            ]);
            header.extend([field(Field::NwSrc, 4), field(Field::NwDst, 4)].concat());
            let sum = checksum::finish(checksum::sum(&header));
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            out.extend([header, message].concat());
        }
        0x86dd => {
            let message = message(key, true, random);
            let word = 6 << 28 | key.get(Field::NwTos) << 20 | key.get(Field::Ipv6Label);
            out.extend(&word.to_be_bytes()[12..]);
            out.extend((message.len() as u16).to_be_bytes());
            out.extend([key.get(Field::NwProto) as u8, key.get(Field::NwTtl) as u8]);
            out.extend([field(Field::Ipv6Src, 16), field(Field::Ipv6Dst, 16), message].concat());
        }
        0x0806 => {
            out.extend([0, 1, 8, 0, 6, 4, 0, key.get(Field::ArpOp) as u8]);
            out.extend(
                [field(Field::ArpSha, 6), field(Field::ArpSpa, 4), field(Field::ArpTha, 6), field(Field::ArpTpa, 4)]
                    .concat(),
            );
        }
        _ => {}
    }
    out.resize(out.len().max(60), 0);
    out
}

/// The message of a transport protocol in a packet of these fields.
fn message(key: &Key, v6: bool, random: &mut StdRng) -> Vec<u8> {
    let field = |field: Field, width: usize| key.get(field).to_be_bytes()[16 - width..].to_vec();
    let payload: Vec<u8> = (0..random.random_range(0..80)).map(|_| random.random()).collect();
    let proto = key.get(Field::NwProto) as u8;
    let ports = [field(Field::TcpSrc, 2), field(Field::TcpDst, 2)].concat();
    let kind = [key.get(Field::TcpSrc) as u8, key.get(Field::TcpDst) as u8, 0, 0];
    let (mut bytes, sum) = match proto {
        6 => {
            let flags = (0x5000 | key.get(Field::TcpFlags) as u16).to_be_bytes();
            ([&ports[..], &[0, 0, 0, 1, 0, 0, 0, 1], &flags, &[0xff, 0xff, 0, 0, 0, 0]].concat(), 16)
        }
        17 => ([&ports[..], &(8 + payload.len() as u16).to_be_bytes(), &[0, 0]].concat(), 6),
        58 if matches!(kind[0], 135 | 136) => {
            let (address, option) = if kind[0] == 135 { (Field::NdSll, 1) } else { (Field::NdTll, 2) };
            let reserved = field(Field::NdReserved, 4);
            let head = [&kind[..], &reserved, &field(Field::NdTarget, 16), &[option, 1], &field(address, 6)].concat();
            return with_sum(key, head, 2, v6);
        }
        _ => ([&kind[..], &[0x12, 0x34, 0, 1]].concat(), 2),
    };
    bytes.extend(payload);
    match proto {
        17 if random.random_range(0..4) == 0 && !v6 => bytes,
        _ => with_sum(key, bytes, sum, v6),
    }
}

fn with_sum(key: &Key, mut bytes: Vec<u8>, at: usize, v6: bool) -> Vec<u8> {
    let (proto, length) = (key.get(Field::NwProto) as u8, bytes.len() as u32);
    let pseudo = match (v6, proto) {
        (false, 1) => 0,
        (false, _) => checksum::pseudo_v4(key.get(Field::NwSrc) as u32, key.get(Field::NwDst) as u32, proto, length),
        (true, _) => checksum::pseudo_v6(key.get(Field::Ipv6Src), key.get(Field::Ipv6Dst), proto, length),
    };
    let sum = checksum::finish(checksum::add(pseudo, checksum::sum(&bytes)));
    let sum = if sum == 0 && proto == 17 { u16::MAX } else { sum };
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    bytes
}
