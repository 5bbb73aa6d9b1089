// SPDX-License-Identifier: Apache-2.0
//! What a fast path has to hand over when a state table tells the states of connections: by Fig. 3 of CoFilter (TPDS 2021), written down here once
//! more, and by the state that the agent knows; without a look into the table or at its list of control packets.

use crate::case::{Input, Outcome};
use crate::layers::{Entropy, Layer, Packet};
use crate::oracle::{place, Place};
use crate::region::Region;
use abi::{DropReason, PuntReason, Stage, Vni};
use conntrack::PairKey;
use conntrack_compact::{Key, Shared, State};
use std::net::IpAddr;

/// Control packets in states 0 to 3. A SYN is one in each, since the register that it finds may be another connection's.
const FIGURE: [&[&str]; 4] = [
    &["syn", "plain"],
    &["syn", "syn-ack", "ack", "rst", "plain"],
    &["syn", "fin", "rst"],
    &["syn", "fin", "ack", "rst", "plain"],
];
/// What a careful table adds.
const CAREFUL: [&[&str]; 4] = [&[], &[], &["syn-ack"], &[]];
/// What rules without state add, and connections that another cluster may know: all but data of established connections.
const STRAYS: [&[&str]; 4] = [&["syn-ack", "ack", "fin", "rst"], &["fin"], &["syn-ack"], &["syn-ack"]];
/// Reasons of stage filter to drop a packet before its connection is looked at.
const BEFORE: &[DropReason] = &[DropReason::FilterSpoofed, DropReason::FilterL4Malformed, DropReason::ServerUnknown];
/// Ports of DHCP, which passes inline pairs by itself.
const DHCP: [(u16, u16); 4] = [(67, 68), (68, 67), (546, 547), (547, 546)];

/// A packet between two ends inside, or through an inline pair, whose connection a state table knows.
struct Flow {
    key: Key,
    kind: &'static str,
    pick_up: bool,
}

/// Why the fast path has to hand a packet over that a case expects this of with sessions; None: it does not.
pub fn expected(region: &Region, input: &Input, packet: &Packet, states: &Shared) -> Option<PuntReason> {
    let of_session =
        |p: PuntReason| matches!(p, PuntReason::SessionNew | PuntReason::SessionControl | PuntReason::SessionStale);
    let early = |reason: &DropReason| matches!(reason.stage(), Stage::Parse | Stage::Tenant) || BEFORE.contains(reason);
    let before = matches!(&input.outcome, Outcome::Drop(reason) if early(reason));
    if before || !input.punt.is_none_or(of_session) {
        return input.punt;
    }
    let Some(flow) = Flow::of(region, input.port, packet) else { return input.punt };
    let state = states.get(&flow.key).map_or(0, |c| match c.state {
        State::Opening => 1,
        State::Open => 2,
        State::Closing => 3,
    });
    let strays = region.groups.rules.iter().any(|(_, rule)| !rule.stateful) || !region.internet.handovers.is_empty();
    let lists = [Some(&FIGURE), states.spec().careful.then_some(&CAREFUL), strays.then_some(&STRAYS)];
    let control = lists.into_iter().flatten().any(|list| list[state].contains(&flow.kind));
    match state {
        0 if control || flow.pick_up && flow.kind == "ack" => Some(PuntReason::SessionNew),
        _ => control.then_some(PuntReason::SessionControl),
    }
}

impl Flow {
    /// None: its connection is a session, or it has none, or it is one of the packets that the fast path leaves to the software path anyway.
    fn of(region: &Region, port: u32, packet: &Packet) -> Option<Flow> {
        if packet.cut.is_some() || packet.inner_cut.is_some() || !packet.patches.is_empty() {
            return None;
        }
        let tunnel = packet.layers.iter().position(|l| matches!(l, Layer::Vxlan(_)));
        let inner = &packet.layers[tunnel.map_or(0, |at| at + 1)..];
        let [Layer::Eth(eth), ip, rest @ ..] = inner else { return None };
        let (src, dst, proto): (IpAddr, IpAddr, _) = match ip {
            Layer::Ipv4(ip) if ip.mf || ip.frag.offset > 0 || ip.frag.end.is_some() || !ip.options.is_empty() => {
                return None
            }
            Layer::Ipv4(ip) => (ip.src.into(), ip.dst.into(), ip.proto),
            Layer::Ipv6(ip) => (ip.src.into(), ip.dst.into(), ip.next),
            _ => return None,
        };
        let (proto, ports, kind) = upper(rest).filter(|_| proto.is_none())?;
        if tunnel.is_none() && (eth.dst.0[0] & 1 != 0 || proto == 17 && DHCP.contains(&ports)) {
            return None;
        }
        let echo = matches!(proto, 1 | 58);
        let filtered = |vni: u32| region.groups.members.iter().any(|(of, ..)| *of == vni);
        let (vni, pair) = match tunnel.map(|at| &packet.layers[at]) {
            Some(Layer::Vxlan(vxlan)) => {
                let Place::Vm(dst_vpc, _) = place(region, vxlan.vni, dst) else { return None };
                (
                    dst_vpc.vni,
                    PairKey::new(proto, (Vni(vxlan.vni), src, ports.0), (Vni(dst_vpc.vni), dst, ports.1), echo)?.0,
                )
            }
            _ => of_inline(region, port, (src, dst), (proto, ports, echo))?,
        };
        let sender =
            tunnel.and_then(|at| if let Layer::Vxlan(vxlan) = &packet.layers[at] { Some(vxlan.vni) } else { None });
        let vnis = [Some(vni), sender];
        let pick_up = vnis.into_iter().flatten().any(|vni| region.groups.pick_up.contains(&vni));
        vnis.into_iter().flatten().any(filtered).then(|| Flow { key: Key::from(&pair), kind, pick_up })
    }
}

/// The key of a packet through an inline pair, and the VNI of its server.
fn of_inline(
    region: &Region,
    port: u32,
    (src, dst): (IpAddr, IpAddr),
    (proto, ports, echo): (u8, (u16, u16), bool),
) -> Option<(u32, PairKey)> {
    let out = region.inline.pairs.iter().find(|w| w.0 == port);
    let pair = out.or_else(|| region.inline.pairs.iter().find(|w| w.1 == port))?;
    let (server, remote) = if out.is_some() { (src, dst) } else { (dst, src) };
    let mine = region.inline.servers.iter().filter(|s| s.0 == pair.0 && s.2.covers(server));
    let vni = mine.max_by_key(|s| s.2.len)?.1;
    let ports = if out.is_none() && !echo { (ports.1, ports.0) } else { ports };
    Some((vni, PairKey::of_server(proto, Vni(vni), server, remote, ports)?))
}

/// Protocol, ports (an echo identifier is the sender's), and what it is to Fig. 3. Protocols without ports are the software path's.
fn upper(rest: &[Layer]) -> Option<(u8, (u16, u16), &'static str)> {
    match rest.first() {
        Some(Layer::Tcp(tcp)) => {
            let kind =
                match (tcp.flags & 0x02 != 0, tcp.flags & 0x10 != 0, tcp.flags & 0x01 != 0, tcp.flags & 0x04 != 0) {
                    (true, false, false, false) => "syn",
                    (true, true, false, false) => "syn-ack",
                    (false, true, false, false) => "ack",
                    (false, true, true, false) => "fin",
                    (false, _, false, true) => "rst",
                    _ => "bad",
                };
            Some((6, (tcp.src, tcp.dst), kind))
        }
        Some(Layer::Udp(udp)) => {
            let Entropy::Value(src) = udp.src else { return None };
            Some((17, (src as u16, udp.dst), "plain"))
        }
        Some(Layer::Icmp(icmp)) if matches!((icmp.v6, icmp.ty), (false, 0 | 8) | (true, 128 | 129)) => {
            Some((if icmp.v6 { 58 } else { 1 }, ((icmp.rest >> 16) as u16, 0), "plain"))
        }
        _ => None,
    }
}
