// SPDX-License-Identifier: Apache-2.0
//! Packets that come again, for a flow cache to know them; and what must be the same of sessions with and without one.

use super::XdpRunner;
use conntrack::{Cursor, Filter};
use gateway::Connections;
use std::sync::Arc;
use testkit::layers::{Layer, Packet};
use testkit::rng::Rng;
use testkit::runner::{End, Seen};
use testkit::user::UserEngine;

/// Packets that are kept.
const KEPT: usize = 8;

/// Some packets that were sent on.
pub struct Again {
    percent: usize,
    packets: Vec<Packet>,
}

impl Again {
    /// So many of a hundred packets are to come again.
    pub fn new(percent: usize) -> Again {
        Again { percent, packets: Vec::new() }
    }

    /// The region is another one.
    pub fn clear(&mut self) {
        self.packets.clear();
    }

    /// One that comes again as it was, or at another place in its stream.
    pub fn pick(&mut self, r: &mut Rng) -> Option<Packet> {
        if self.percent == 0 || self.packets.is_empty() || !r.chance(self.percent) {
            return None;
        }
        let mut packet = self.packets[r.below(self.packets.len())].clone();
        if let Some(Layer::Tcp(tcp)) = packet.layers.iter_mut().rfind(|l| matches!(l, Layer::Tcp(_))) {
            match r.below(4) {
                0 => tcp.seq = tcp.seq.wrapping_add(r.below(3) as u32).wrapping_sub(1),
                1 => tcp.ack = tcp.ack.wrapping_add(r.below(3) as u32).wrapping_sub(1),
                2 if r.chance(20) => tcp.window = tcp.window.wrapping_add(1),
                _ => {}
            }
        }
        Some(packet)
    }

    /// What became of a packet.
    pub fn note(&mut self, r: &mut Rng, packet: &Packet, seen: &Seen) {
        if self.percent == 0 || !matches!(seen.end, End::Forward(..)) {
            return;
        }
        if self.packets.len() == KEPT {
            self.packets.swap_remove(r.below(KEPT));
        }
        self.packets.push(packet.clone());
    }
}

/// Both have the same sessions, which have counted the same.
pub fn same_sessions(xdp: &XdpRunner, rust: &UserEngine) -> Result<(), String> {
    let (a, b) = (all_sessions(xdp.nat()), all_sessions(rust.nat()));
    match a.iter().zip(&b).find(|(a, b)| a != b) {
        Some((a, b)) => Err(format!("sessions:\n  XDP      {a}\n  the Rust {b}")),
        None if a.len() != b.len() => Err(format!("{} and {} sessions", a.len(), b.len())),
        None => Ok(()),
    }
}

/// Every session, with what it counted.
fn all_sessions(connections: Option<&Arc<Connections>>) -> Vec<String> {
    let mut all = Vec::new();
    let mut from = Some(Cursor::default());
    while let (Some(cursor), Some(connections)) = (from, connections) {
        from = connections.tracker().list(cursor, 10_000, &Filter::default(), 0, &mut |_, s| {
            all.push(format!("{:?} {:?} {:?} {} {:?}", s.inner, s.outer, s.state, s.epoch, s.counts));
        });
    }
    all.sort();
    all
}

/// With a flow cache: it has sent on one packet of forty at least. Random regions differ: of five runs four have had 6 to 12 of a hundred, one 5.
#[track_caller]
pub fn hits_enough(engine: &XdpRunner, flow_lines: u32, packets: usize) {
    if flow_lines == 0 {
        return;
    }
    let (hits, fills) = engine.flow_counts();
    println!("{hits} packets were sent on by the flow cache, {fills} were noted there");
    assert!(hits * 40 > packets as u64, "the flow cache had too little to do: {hits} of {packets}");
}
