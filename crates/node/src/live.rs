// SPDX-License-Identifier: Apache-2.0
//! `tunny trace --live`: every stage of real packets, as they come.
//!
//! A worker runs the production stages with a recorder, of which it asks nothing unless somebody follows a flow: one load a batch. For the time
//! of a trace the flow's VPC, and those that peer with it, are served in software, by the path bits that `spec.path` sets, too (`paths.rs`): so what XDP
//! would send on by itself is seen as well. They are taken back when the stream ends, however that comes about; a node that starts knows of none.
//!
//! Bounded: [`FOLLOWED_MAX`] traces, packets a second of each, packets and seconds that are asked for. What a client does not take in time is lost,
//! counted, and slows nobody down.

use crate::audit::{Event, Origin};
use crate::error::NodeError;
use crate::flows;
use crate::service::Node;
use crate::trace::{self, Report};
use abi::{IfIndex, Stage, Vni};
use gateway::{Batch, Frame, Recorder, Trace};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tables::Tables;
use tokio::sync::mpsc;
use wire::protocol;

/// Traces at a time.
const FOLLOWED_MAX: usize = 4;
/// Packets of a trace a second.
const RATE: u32 = 200;
/// Packets that wait for a client.
const QUEUE: usize = 256;
/// What may be asked for.
const COUNT_MAX: u32 = 10_000;
const SECONDS_MAX: u32 = 600;

/// Every word that says which flow, with its meaning.
pub const KEYS: &[(&str, &str)] = &[
    ("vpc=NAME vni=N vm=NAME", "whose flow (one is needed): of a VPC, or of one of its VMs"),
    ("src=ADDR dst=ADDR", "its addresses inside; the way back is followed, too"),
    ("tcp udp icmp proto=N", "its protocol"),
    ("sport=N dport=N", "its ports"),
];

/// What to follow: `POST /v1/trace/live`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Which flow, in words.
    pub flow: String,
    /// Packets at most.
    pub count: u32,
    /// Seconds at most.
    pub seconds: u32,
}

/// A packet that was followed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Followed {
    /// Its number, from 1.
    pub number: u32,
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// The port that it came by.
    pub ifindex: u32,
    /// Packets that were left out since the one before: more than may be shown a second, or than the client took.
    pub left_out: u64,
    /// What it met.
    #[serde(flatten)]
    pub report: Report,
}

/// Which packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Pattern {
    /// VNIs of the VPC and of those that peer with it.
    vnis: BTreeSet<Vni>,
    /// An end is one of these.
    vm: Option<Vec<IpAddr>>,
    ends: [Option<IpAddr>; 2],
    protocols: Option<[u8; 2]>,
    ports: [Option<u16>; 2],
}

/// A VPC as the words name it.
enum Whose {
    Vpc(String),
    Vni(Vni),
    Vm(String),
}

impl Pattern {
    /// From words; whose flow it is is for the model to say.
    fn parse(words: &str) -> Result<(Pattern, Whose), String> {
        let (mut p, mut whose) = (Pattern::default(), None);
        for word in words.split_whitespace() {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let wrong = |what: &str| format!("`{word}`: {what}");
            let address = || value.parse::<IpAddr>().map_err(|_| wrong("that is no address"));
            let port = || value.parse::<u16>().map_err(|_| wrong("that is no port"));
            let again = match key {
                "vpc" => whose.replace(Whose::Vpc(value.into())).is_some(),
                "vm" => whose.replace(Whose::Vm(value.into())).is_some(),
                "vni" => whose.replace(Whose::Vni(Vni(value.parse().map_err(|_| wrong("that is no VNI"))?))).is_some(),
                "src" => p.ends[0].replace(address()?).is_some(),
                "dst" => p.ends[1].replace(address()?).is_some(),
                "sport" => p.ports[0].replace(port()?).is_some(),
                "dport" => p.ports[1].replace(port()?).is_some(),
                "tcp" => p.protocols.replace([protocol::TCP; 2]).is_some(),
                "udp" => p.protocols.replace([protocol::UDP; 2]).is_some(),
                "icmp" => p.protocols.replace([protocol::ICMP, protocol::ICMPV6]).is_some(),
                "proto" => {
                    let n = value.parse().map_err(|_| wrong("that is no protocol number"))?;
                    p.protocols.replace([n; 2]).is_some()
                }
                _ => {
                    let known: Vec<&str> = KEYS.iter().map(|(key, _)| *key).collect();
                    return Err(format!("`{word}` says nothing of a flow; there are {}", known.join(" ")));
                }
            };
            if again {
                return Err(wrong("that was said already"));
            }
        }
        if let [Some(a), Some(b)] = p.ends {
            if a.is_ipv4() != b.is_ipv4() {
                return Err("src and dst are of different families".into());
            }
        }
        Ok((p, whose.ok_or("whose flow? say vpc=NAME, vni=N or vm=NAME")?))
    }

    fn matches(&self, vni: Option<Vni>, key: &flows::Key) -> bool {
        let (there, back) = ([key.source, key.destination], [key.destination, key.source]);
        let one_way = |ends: [IpAddr; 2], ports: [u16; 2]| {
            (0..2).all(|i| self.ends[i].is_none_or(|a| a == ends[i]) && self.ports[i].is_none_or(|p| p == ports[i]))
        };
        vni.is_none_or(|vni| self.vnis.contains(&vni))
            && self.protocols.is_none_or(|of| of.contains(&key.protocol))
            && self.vm.as_ref().is_none_or(|of| there.iter().any(|end| of.contains(end)))
            && (one_way(there, [key.ports.0, key.ports.1]) || one_way(back, [key.ports.1, key.ports.0]))
    }
}

/// The flow of a frame as it came in, and its VNI if the frame or its port says it.
fn flow(frame: &Frame<'_>, tables: &Tables) -> Option<(Option<Vni>, flows::Key)> {
    let data = frame.data();
    if let Some(port) = tables.vm_port(frame.ifindex) {
        return Some((Some(port.vni), flows::plain_key(data)?));
    }
    let vxlan = (tables.options() >> abi::OPT_PORT_SHIFT) as u16;
    let plain = flows::plain_key(data)?;
    if (plain.protocol, plain.ports.1) == (protocol::UDP, vxlan) && tables.edge_port(frame.ifindex).is_none() {
        let inside = flows::key(data)?;
        return Some((Some(inside.vni), inside));
    }
    Some((None, plain))
}

struct Trail {
    id: u64,
    pattern: Pattern,
    queue: mpsc::Sender<Box<Followed>>,
    /// Packets that are still to come, and those that workers have.
    left: u32,
    pending: u32,
    number: u32,
    left_out: u64,
    /// The second at hand, and packets in it.
    second: (u64, u32),
}

/// Who follows flows.
#[derive(Default)]
pub struct Live {
    on: AtomicBool,
    trails: Mutex<Vec<Trail>>,
    next: AtomicU64,
}

/// A trace that has begun.
pub(crate) struct Following {
    pub id: u64,
    pub packets: mpsc::Receiver<Box<Followed>>,
    pub until: Instant,
    vnis: BTreeSet<Vni>,
    flow: String,
    origin: Origin,
}

impl Live {
    /// VPCs that are served in software for it.
    pub fn vnis(&self) -> BTreeSet<Vni> {
        self.trails.lock().iter().flat_map(|t| t.pattern.vnis.iter().copied()).collect()
    }

    fn begin(&self, pattern: Pattern, left: u32) -> Option<(u64, mpsc::Receiver<Box<Followed>>)> {
        let mut trails = self.trails.lock();
        if trails.len() >= FOLLOWED_MAX {
            return None;
        }
        let (queue, packets) = mpsc::channel(QUEUE);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        trails.push(Trail { id, pattern, queue, left, pending: 0, number: 0, left_out: 0, second: (0, 0) });
        self.on.store(true, Ordering::Relaxed);
        Some((id, packets))
    }

    fn end(&self, id: u64) {
        let mut trails = self.trails.lock();
        trails.retain(|t| t.id != id);
        self.on.store(!trails.is_empty(), Ordering::Relaxed);
    }

    /// The frames of a batch that are followed, if there are any.
    pub(crate) fn pick(&self, tables: &Tables, batch: &Batch<'_>) -> Option<Picked<'_>> {
        if !self.on.load(Ordering::Relaxed) {
            return None;
        }
        let now = crate::counters::monotonic_ns() / 1_000_000_000;
        let (mut trails, mut packets) = (self.trails.lock(), Vec::new());
        for (index, frame) in batch.frames().iter().enumerate() {
            let Some((vni, key)) = flow(frame, tables) else { continue };
            for trail in trails.iter_mut().filter(|t| t.pattern.matches(vni, &key)) {
                if trail.takes(now) {
                    let bytes = frame.data().to_vec();
                    packets.push(Packet { index, bytes, ifindex: frame.ifindex, trail: trail.id });
                }
            }
        }
        (!packets.is_empty()).then(|| Picked { live: self, packets, trace: Trace::default() })
    }
}

impl Trail {
    /// Whether one more may be shown.
    fn takes(&mut self, now: u64) -> bool {
        if self.left == 0 {
            return false;
        }
        if self.second.0 != now {
            self.second = (now, 0);
        }
        self.second.1 += 1;
        let takes = self.second.1 <= RATE;
        match takes {
            true => (self.left, self.pending) = (self.left - 1, self.pending + 1),
            false => self.left_out += 1,
        }
        takes
    }

    fn tell(&mut self, ifindex: IfIndex, report: Report) {
        self.pending = self.pending.saturating_sub(1);
        let number = self.number + 1;
        let time_ms = crate::audit::now_ms();
        let packet = Followed { number, time_ms, ifindex: ifindex.0, left_out: self.left_out, report };
        match self.queue.try_send(Box::new(packet)) {
            Ok(()) => (self.number, self.left_out) = (number, 0),
            Err(_) => self.left_out += 1,
        }
    }
}

struct Packet {
    index: usize,
    bytes: Vec<u8>,
    ifindex: IfIndex,
    trail: u64,
}

/// Packets of a batch, and what they meet.
pub(crate) struct Picked<'l> {
    live: &'l Live,
    packets: Vec<Packet>,
    trace: Trace,
}

impl Recorder for Picked<'_> {
    fn record(&mut self, index: usize, stage: Stage, event: gateway::Event) {
        if self.packets.iter().any(|p| p.index == index) {
            self.trace.record(index, stage, event);
        }
    }
}

impl Picked<'_> {
    /// Tells those who follow them, when the batch is done.
    pub(crate) fn tell(self, batch: &Batch<'_>) {
        let mut trails = self.live.trails.lock();
        for p in &self.packets {
            let Some(trail) = trails.iter_mut().find(|t| t.id == p.trail) else { continue };
            trail.tell(p.ifindex, trace::report(&p.bytes, &self.trace, p.index, batch));
        }
        // One that has its packets ends: its client is told when it has taken them.
        trails.retain(|t| t.left + t.pending > 0);
        self.live.on.store(!trails.is_empty(), Ordering::Relaxed);
    }
}

impl Node {
    /// Begins to follow a flow: from now on its VPC is served in software.
    pub(crate) fn follow_flow(&self, request: &Request, origin: Origin) -> Result<Following, NodeError> {
        let refused = |why: String| NodeError::Request(why);
        for (n, max, what) in [(request.count, COUNT_MAX, "count"), (request.seconds, SECONDS_MAX, "seconds")] {
            if !(1..=max).contains(&n) {
                return Err(refused(format!("{what} is 1 to {max}, and is {n}")));
            }
        }
        let (mut pattern, whose) = Pattern::parse(&request.flow).map_err(refused)?;
        let core = self.core();
        let absent = |what: String| NodeError::Absent(format!("there is no {what}"));
        let vpc = match whose {
            Whose::Vpc(name) => core.model.vpc_of_name(&name).ok_or_else(|| absent(format!("Vpc `{name}`")))?,
            Whose::Vni(vni) => core.model.vpc_of_vni(vni).ok_or_else(|| absent(format!("Vpc with VNI {vni}")))?,
            Whose::Vm(name) => {
                let (vpc, _, vm) = core.model.vm_of_name(&name).ok_or_else(|| absent(format!("Vm `{name}`")))?;
                pattern.vm = Some(vm.addresses.to_vec());
                vpc
            }
        };
        let peers = vpc.peerings().filter_map(|(_, peer)| core.model.vpc_of_name(peer));
        pattern.vnis = peers.map(|peer| peer.spec().vni).chain([vpc.spec().vni]).collect();
        let vnis = pattern.vnis.clone();
        let full = || refused(format!("{FOLLOWED_MAX} flows are followed already"));
        let (id, packets) = self.hub().live.begin(pattern, request.count).ok_or_else(full)?;
        let until = Instant::now() + Duration::from_secs(request.seconds.into());
        let flow = request.flow.split_whitespace().collect::<Vec<_>>().join(" ");
        let following = Following { id, packets, until, vnis, flow, origin };
        self.live_paths(&core.model, &following.vnis);
        let words = format!("{}: its Vpc is served in software for {} s at most", following.flow, request.seconds);
        self.note_trace("begun", &following, core.generation(), words);
        Ok(following)
    }

    /// Ends it, and takes back where its VPCs were served.
    pub(crate) fn follow_no_more(&self, following: &Following) {
        self.hub().live.end(following.id);
        let core = self.core();
        self.live_paths(&core.model, &following.vnis);
        self.note_trace("ended", following, core.generation(), format!("{}: served as configured", following.flow));
    }

    fn live_paths(&self, model: &model::Model, vnis: &BTreeSet<Vni>) {
        let vnis: Vec<Vni> = vnis.iter().copied().collect();
        let live = self.hub().live.vnis();
        crate::paths::enter(&mut self.writer(), model, &self.decided_paths(), &live, Some(&vnis));
    }

    fn note_trace(&self, outcome: &str, following: &Following, generation: u64, note: String) {
        let mut event = Event::new("trace", outcome, generation, &following.origin);
        event.note = note;
        self.audit.note(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(source: &str, destination: &str, protocol: u8, ports: (u16, u16)) -> flows::Key {
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        flows::Key { vni: Vni(0), source, destination, protocol, ports }
    }

    #[test]
    fn a_flow_is_followed_both_ways_and_others_are_not() {
        let (mut p, whose) = Pattern::parse("vpc=red src=10.0.0.1 dst=10.0.0.2 tcp dport=443").unwrap();
        assert!(matches!(whose, Whose::Vpc(name) if name == "red"));
        p.vnis = [Vni(7)].into();
        let there = key("10.0.0.1", "10.0.0.2", 6, (4000, 443));
        let back = key("10.0.0.2", "10.0.0.1", 6, (443, 4000));
        assert!(p.matches(Some(Vni(7)), &there) && p.matches(Some(Vni(7)), &back) && p.matches(None, &there));
        assert!(!p.matches(Some(Vni(8)), &there));
        for other in [
            key("10.0.0.1", "10.0.0.3", 6, (4000, 443)),
            key("10.0.0.1", "10.0.0.2", 17, (4000, 443)),
            key("10.0.0.1", "10.0.0.2", 6, (443, 4000)),
        ] {
            assert!(!p.matches(Some(Vni(7)), &other), "{other:?}");
        }
        p.vm = Some(vec!["10.0.0.9".parse().unwrap()]);
        assert!(!p.matches(Some(Vni(7)), &there));
    }

    #[test]
    fn words_that_say_nothing_are_refused() {
        for (words, why) in [
            ("src=10.0.0.1", "whose flow? say vpc=NAME, vni=N or vm=NAME"),
            ("vpc=red colour=blue", "`colour=blue` says nothing of a flow; there are vpc=NAME vni=N vm=NAME src=ADDR dst=ADDR tcp udp icmp proto=N sport=N dport=N"),
            ("vpc=red dport=x", "`dport=x`: that is no port"),
            ("vpc=red tcp udp", "`udp`: that was said already"),
            ("vni=7 src=10.0.0.1 dst=fd00::1", "src and dst are of different families"),
        ] {
            assert_eq!(Pattern::parse(words).err().unwrap(), why);
        }
    }

    #[test]
    fn packets_of_a_trail_are_bounded_in_number_and_rate() {
        let live = Live::default();
        let (id, mut packets) = live.begin(Pattern::default(), 500).unwrap();
        {
            let mut trails = live.trails.lock();
            let taken = |trail: &mut Trail, now, n: u32| (0..n).filter(|_| trail.takes(now)).count() as u32;
            assert_eq!(taken(&mut trails[0], 1, RATE + 7), RATE);
            trails[0].tell(IfIndex(3), Report::default());
            assert_eq!(packets.try_recv().unwrap().left_out, 7);
            assert_eq!(taken(&mut trails[0], 2, RATE), RATE);
            assert_eq!(taken(&mut trails[0], 3, RATE), 100);
            for _ in 0..QUEUE + 5 {
                trails[0].tell(IfIndex(3), Report::default());
            }
            assert_eq!(trails[0].left_out, 5, "a client that does not keep up");
        }
        let more: Vec<_> = std::iter::from_fn(|| live.begin(Pattern::default(), 1)).collect();
        assert_eq!(more.len(), FOLLOWED_MAX - 1);
        live.end(id);
        assert!(live.begin(Pattern::default(), 1).is_some());
    }
}
