// SPDX-License-Identifier: Apache-2.0
//! Generated traffic over the rig of a filter: established UDP connections at a pace, and among them probes that carry the time of sending.
use crate::inline::{become_an_end, InlineRig, Middle, Tenants, CLIENT, MACS};
use crate::newconn::tcp;
use crate::traffic::{Traffic, BUDGET, GAP, NEXT, PROBES, PROBE_GAP, RECEIVED, SENT, SENT_AT, WINDOW_WORD};
use crate::workload::{write_between, PACKET_SLOT};
use crate::{cpu, Error};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use xdp::object::{attach_program, run_program, RunOptions, TEST_LIVE_FRAMES, XDP_NATIVE};

/// Connections of the data.
pub const CONNECTIONS: u32 = 32_768;
const TENANTS: Tenants = Tenants { count: 1, servers: 16 };
/// Frames that the smallest ring on the way holds.
const WINDOW: u64 = 192;
/// Runs of a generator from which on a call is asked how long one takes.
const TRIAL: u32 = 1 << 16;

/// What is sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Frames of established connections a second; 0: none.
    pub frames: u64,
    /// Probes a second.
    pub probes: u64,
    /// The probes are SYNs, each of a new connection.
    pub syn: bool,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Frames sent, probes included.
    pub sent: u64,
    /// Frames that did not arrive.
    pub lost: u64,
    /// Delays of the probes, µs, in their order.
    pub us: Vec<f64>,
    /// Probes sent.
    pub probes: u64,
    /// Seconds until the last frame of a pace.
    pub seconds: f64,
    /// CPU time of the filter, seconds.
    pub cpu: f64,
}

/// A rig with generators and sinks at both ends.
pub struct Streams {
    /// The rig.
    pub rig: InlineRig,
    forward: Traffic,
    back: Traffic,
    bytes: usize,
    node: bool,
    _sinks: [OwnedFd; 2],
}

/// The packets of all connections from the client (or to it), and a template for probes.
fn packets(bytes: usize, node: bool, back: bool) -> Vec<u8> {
    // A wire passes frames from end to end; a router is who its neighbours send to.
    let macs = match (node, back) {
        (true, false) => [MACS[3], MACS[0]],
        (true, true) => [MACS[0], MACS[3]],
        (false, false) => [MACS[1], MACS[0]],
        (false, true) => [MACS[2], MACS[3]],
    };
    let mut memory = vec![0u8; CONNECTIONS as usize * PACKET_SLOT];
    for (n, slot) in memory.chunks_exact_mut(PACKET_SLOT).enumerate() {
        let n = n as u32;
        // An odd factor: neighbours in time are none in a table.
        let port = 1024 + (n.wrapping_mul(0x9E37_79B1) >> 17) as u16;
        let ends = [(CLIENT, port), (TENANTS.server(0, n % TENANTS.servers), 53)];
        write_between(slot, macs, if back { [ends[1], ends[0]] } else { ends }, bytes);
    }
    memory
}

fn template(syn: bool, bytes: usize, packets: &[u8]) -> Result<[u8; PACKET_SLOT], Error> {
    let mut slot = [0u8; PACKET_SLOT];
    slot.copy_from_slice(&packets[..PACKET_SLOT]);
    let macs = [u64::from_be_bytes([0, 0, slot[0], slot[1], slot[2], slot[3], slot[4], slot[5]]), MACS[0]];
    if syn {
        write_between(&mut slot, macs, [(CLIENT, 1024), (TENANTS.server(0, 0), 80)], bytes);
        tcp(
            &mut slot,
            14,
            wire::tcp::Repr { src_port: 1024, dst_port: 80, seq: 0, ack: 0, flags: wire::tcp::SYN, window: 60_000 },
        )?;
    }
    Ok(slot)
}

impl Streams {
    /// Builds it and establishes all connections.
    pub fn create(role: &str, middle: Middle, bytes: usize) -> Result<Streams, Error> {
        let rig = InlineRig::create(role, TENANTS, middle)?;
        let node = matches!(middle, Middle::Node(_));
        let (forward, back) = (Traffic::load()?, Traffic::load()?);
        let sink = |traffic: &Traffic, ns: &crate::netns::Netns, device: &str| -> Result<OwnedFd, Error> {
            let index = ns.ifindex(device)?;
            ns.inside(|| Ok(attach_program(traffic.program("collect")?, index, XDP_NATIVE)?))
        };
        let sinks = [sink(&forward, &rig.servers, &rig.devices[3])?, sink(&back, &rig.client, &rig.devices[0])?];
        let mut streams = Streams { rig, forward, back, bytes, node, _sinks: sinks };
        streams.size(bytes, false)?;
        for back in [false, true, false] {
            streams.once(back)?;
        }
        Ok(streams)
    }

    /// Changes the size of all frames, and what the probes are.
    pub fn size(&mut self, bytes: usize, syn: bool) -> Result<(), Error> {
        let data = packets(bytes, self.node, false);
        let template = template(syn, bytes, &data)?;
        self.forward.fill(&data, Some(&template));
        self.back.fill(&packets(bytes, self.node, true), None);
        self.bytes = bytes;
        Ok(())
    }

    /// One packet of each connection in one direction; all must come through.
    fn once(&self, back: bool) -> Result<(), Error> {
        let traffic = if back { &self.back } else { &self.forward };
        traffic.settle();
        traffic.word(NEXT).store(0, Ordering::Relaxed);
        traffic.word(GAP).store(0, Ordering::Relaxed);
        // Few at a time: first packets go through a node's software path, whose ring is shorter.
        traffic.word(WINDOW_WORD).store(64, Ordering::Relaxed);
        traffic.word(BUDGET).store(u64::from(CONNECTIONS), Ordering::Relaxed);
        let before = traffic.word(RECEIVED).load(Ordering::Relaxed);
        let arrived = || traffic.word(RECEIVED).load(Ordering::Relaxed) - before;
        let began = Instant::now();
        while arrived() < u64::from(CONNECTIONS) && began.elapsed() < Duration::from_secs(10) {
            self.call(traffic, back, "generate_plain", TRIAL)?;
            cpu::wait_for(Duration::from_millis(20), || arrived() >= u64::from(CONNECTIONS));
        }
        match arrived() {
            n if n == u64::from(CONNECTIONS) => Ok(()),
            n => {
                let why = format!("{n} of {CONNECTIONS} packets came through; drops of the node: {:?}", self.drops());
                Err(Error::Failed { what: "establishing connections".into(), why })
            }
        }
    }

    /// What a node dropped so far, by reason.
    pub fn drops(&self) -> Option<BTreeMap<String, u64>> {
        self.rig.node.as_ref().map(|n| n.node.counters().total.drops)
    }

    /// Runs a generator so many times; how long one run took, ns.
    fn call(&self, traffic: &Traffic, back: bool, program: &str, runs: u32) -> Result<f64, Error> {
        let (ns, device) =
            if back { (&self.rig.servers, &self.rig.devices[3]) } else { (&self.rig.client, &self.rig.devices[0]) };
        let ifindex = ns.ifindex(device)?;
        let program = traffic.program(program)?;
        ns.inside(|| {
            become_an_end()?;
            let frame = vec![0u8; self.bytes];
            let options =
                RunOptions { repeat: runs, ifindex, flags: TEST_LIVE_FRAMES, batch: 16, ..RunOptions::default() };
            let (_, each, _) = run_program(program, &frame, &mut [], options)?;
            Ok(f64::from(each))
        })
    }

    /// Sends at a pace for about so long.
    pub fn send(&self, pace: Pace, length: Duration) -> Result<Seen, Error> {
        let gap = |rate: u64| 1_000_000_000u64.checked_div(rate).unwrap_or(0);
        let t = &self.forward;
        t.word(WINDOW_WORD).store(u64::MAX >> 1, Ordering::Relaxed);
        t.word(GAP).store(gap(pace.frames), Ordering::Relaxed);
        t.word(PROBE_GAP).store(gap(pace.probes), Ordering::Relaxed);
        self.measured(if pace.syn { "mix_syn" } else { "mix_data" }, length)
    }

    /// Sends as fast as the filter takes it.
    pub fn most(&self, length: Duration) -> Result<Seen, Error> {
        let t = &self.forward;
        t.word(WINDOW_WORD).store(WINDOW, Ordering::Relaxed);
        t.word(GAP).store(0, Ordering::Relaxed);
        self.measured("generate_plain", length)
    }

    fn measured(&self, program: &str, length: Duration) -> Result<Seen, Error> {
        let t = &self.forward;
        t.word(BUDGET).store(u64::MAX >> 1, Ordering::Relaxed);
        let each = self.call(t, false, program, TRIAL)?.max(1.0);
        let runs = (length.as_nanos() as f64 / each) as u32;
        t.settle();
        t.take_samples();
        let (received, probes) = (t.word(RECEIVED).load(Ordering::Relaxed), t.word(PROBES).load(Ordering::Relaxed));
        let before = self.rig.cpu_time();
        let began = node::counters::monotonic_ns();
        t.word(SENT_AT).store(began, Ordering::Relaxed);
        self.call(t, false, program, runs)?;
        let sent = t.word(SENT).load(Ordering::Relaxed);
        cpu::wait_for(Duration::from_millis(100), || t.word(RECEIVED).load(Ordering::Relaxed) >= sent);
        let cpu = (self.rig.cpu_time() - before) as f64 / 1e9;
        let arrived = t.word(RECEIVED).load(Ordering::Relaxed) - received;
        Ok(Seen {
            sent: sent - received,
            lost: (sent - received).saturating_sub(arrived),
            us: t.take_samples().iter().map(|ns| ns / 1e3).collect(),
            probes: t.word(PROBES).load(Ordering::Relaxed) - probes,
            // The call goes on for some 30 ms after its last frame.
            seconds: t.word(SENT_AT).load(Ordering::Relaxed).saturating_sub(began).max(1) as f64 / 1e9,
            cpu,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_packet_is_of_a_connection_of_its_own_and_has_its_answer() {
        for node in [true, false] {
            let (there, back) = (packets(1024, node, false), packets(1024, node, true));
            let key = |s: &[u8], flip: bool| {
                let (a, b) = ([&s[26..30], &s[34..36]].concat(), [&s[30..34], &s[36..38]].concat());
                if flip {
                    (b, a)
                } else {
                    (a, b)
                }
            };
            let keys: HashSet<_> = there.chunks_exact(PACKET_SLOT).map(|s| key(s, false)).collect();
            assert_eq!(keys.len(), CONNECTIONS as usize);
            assert!(back.chunks_exact(PACKET_SLOT).all(|s| keys.contains(&key(s, true))));
            assert!(there.chunks_exact(PACKET_SLOT).all(|s| s[16..18] == 1010u16.to_be_bytes() && s[42..50] == [0; 8]));
        }
    }

    #[test]
    fn the_template_of_a_syn_has_right_checksums() {
        let syn = template(true, 1024, &packets(1024, true, false)).unwrap();
        let ip = wire::ipv4::Packet::new_unchecked(&syn[14..34]);
        assert_eq!(wire::checksum::finish(wire::checksum::sum(&syn[14..34])), 0);
        assert_eq!((syn[16], syn[17], syn[23], syn[47]), (0, 40, 6, wire::tcp::SYN));
        let pseudo = wire::tcp::Repr::pseudo_v4(ip.src(), ip.dst(), 20);
        assert_eq!(wire::checksum::finish(pseudo + wire::checksum::sum(&syn[34..54])), 0);
    }
}
