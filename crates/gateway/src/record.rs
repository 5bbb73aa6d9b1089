// SPDX-License-Identifier: Apache-2.0
//! What a packet met on its way, for `tunny trace`.
//!
//! The stages are generic over a [`Recorder`]. [`NoRecorder`] is what production runs: `ON` is a constant false, so the
//! compiler removes every call, and a trace shows the very code that forwards.

use abi::{DropReason, IfIndex, LineNo, NcId, Stage, VmId, Vni};
use std::net::IpAddr;

use crate::frame::Verdict;
use abi::Mac;

/// Scope of a route, as in table memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// No route.
    None,
    /// In this VPC.
    Local,
    /// In another VPC.
    Peer,
    /// Dropped on purpose.
    Blackhole,
    /// The Internet.
    Internet,
    /// A dedicated line.
    Line,
    /// Another region.
    Region,
}

impl Scope {
    /// The scope with this number (`abi::SCOPE_*`); unknown ones read as no route.
    pub const fn from_number(n: u32) -> Scope {
        match n {
            abi::SCOPE_LOCAL => Scope::Local,
            abi::SCOPE_PEER => Scope::Peer,
            abi::SCOPE_BLACKHOLE => Scope::Blackhole,
            abi::SCOPE_INTERNET => Scope::Internet,
            abi::SCOPE_LINE => Scope::Line,
            abi::SCOPE_REGION => Scope::Region,
            _ => Scope::None,
        }
    }

    /// As written in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Scope::None => "none",
            Scope::Local => "local",
            Scope::Peer => "peer",
            Scope::Blackhole => "blackhole",
            Scope::Internet => "internet",
            Scope::Line => "line",
            Scope::Region => "region",
        }
    }
}

/// A table entry that matched, a decision, or bytes that changed.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // each field is named as in the layouts and in the packet-path page
pub enum Event {
    /// The outer headers, and what the inner frame is.
    Parsed { outer_src: IpAddr, outer_dst: IpAddr, vni: Vni, inner: &'static str, inner_len: usize },
    /// A customer's tags on an edge port, and what the frame behind them is.
    Circuit { port: IfIndex, tags: Vec<u16>, vni: Vni, inner: &'static str, inner_len: usize },
    /// The circuit that a packet leaves by.
    Line { port: IfIndex, tags: Vec<u16>, ce: Mac, mtu: u16 },
    /// The port of the VM of this node that a packet is for.
    VmPort { port: IfIndex, mac: Mac, mtu: u16 },
    /// The inner flow.
    Flow { src: IpAddr, dst: IpAddr, protocol: u8, src_port: u16, dst_port: u16, hash: u64 },
    /// The inner frame is wrong, which is reported once the tenant is known.
    InnerError { reason: DropReason },
    /// The tenant record of the VNI.
    Tenant { vni: Vni, line: LineNo, generation: u8, gateway_mac: Mac },
    /// The entry that lets the source send for the VNI.
    Member { vni: Vni, source: IpAddr },
    /// Sources are not checked (option).
    SourceNotChecked { source: IpAddr },
    /// A route, or its absence. `shortcut`: proven by the VM-NC table without a tree walk.
    Route { vni: Vni, destination: IpAddr, scope: Scope, peer: Option<Vni>, shortcut: bool },
    /// The VM-NC entry.
    Vm { vni: Vni, address: IpAddr, mac: Mac, vm: VmId, nc: NcId, gateway: bool, metered: bool },
    /// No visible VM-NC entry.
    NoVm { vni: Vni, address: IpAddr },
    /// The NC and the next hop towards it.
    Nexthop { nc: NcId, address: IpAddr, nexthop: LineNo, ifindex: IfIndex, dmac: Mac, smac: Mac, mtu: u16 },
    /// A meter's word.
    Meter { of: &'static str, line: LineNo, color: &'static str },
    /// An answer to ARP, ND or echo.
    Answered { with: &'static str, mac: Mac },
    /// An ICMP error was sent, or why not.
    Icmp { kind: u8, code: u8, sent: bool, why: &'static str },
    /// The packet was cut into this many fragments.
    Fragmented { fragments: usize },
    /// The frame before and after the rewrite.
    Bytes { before: Vec<u8>, after: Vec<u8> },
    /// Another cluster may have its session: it is handed over, or, after it was handed over to here, handed back.
    HandedOver { to: IpAddr, back: bool },
    /// Its line is at another node, to which it goes as it came.
    LineElsewhere { to: IpAddr },
    /// A mirror of the VM that sends or gets it has it copied, so many bytes of it; or why not.
    Mirrored { mirror: String, direction: &'static str, outcome: Result<usize, &'static str> },
    /// A packet that is sent besides.
    Generated { bytes: Vec<u8>, ifindex: IfIndex },
    /// The session of a packet to or from the Internet.
    Session { inner: String, outer: String, state: &'static str, inward: bool },
    /// The rule of a security group that decided; none matched, so it is denied.
    Rule { direction: &'static str, rule: Option<(String, usize, String)>, allowed: bool },
    /// The rule of a security group that would allow it if its protocol were one that is known: the rule does not name it.
    Unnamed { direction: &'static str, rule: (String, usize, String) },
    /// Neither end has a security group.
    NoGroups,
    /// The session of a connection inside.
    Pair { key: String, state: &'static str, begun: bool },
    /// The connection lies in a prefix that has migrated to the software path, which knows it by its full key.
    Migrated { vni: Vni, prefix: String },
    /// A frame of an inline pair: from which side, the other port, and what it is.
    Inline { servers_side: bool, other: IfIndex, what: &'static str },
    /// The server of a frame of an inline pair, and its VPC; none: nobody behind the pair has the address.
    Server { address: IpAddr, vni: Option<Vni> },
    /// The end.
    Outcome { verdict: Verdict },
}

/// Listens to the stages.
pub trait Recorder {
    /// False removes all calls at compile time.
    const ON: bool = true;
    /// False: packets are probes, and what they meet stays as it is: no counter, no meter and no limit hears of them.
    const COUNTS: bool = true;
    /// Packet `index` of the batch, in `stage`.
    fn record(&mut self, index: usize, stage: Stage, event: Event);
}

/// Listens to nothing and costs nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRecorder;

impl Recorder for NoRecorder {
    const ON: bool = false;
    #[inline(always)]
    fn record(&mut self, _: usize, _: Stage, _: Event) {}
}

/// Keeps everything, in order.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Packet, stage, event.
    pub events: Vec<(usize, Stage, Event)>,
}

impl Recorder for Trace {
    fn record(&mut self, index: usize, stage: Stage, event: Event) {
        self.events.push((index, stage, event));
    }
}

/// A trace of packets that are probes.
#[derive(Clone, Debug, Default)]
pub struct ProbeTrace(pub Trace);

impl Recorder for ProbeTrace {
    const COUNTS: bool = false;
    fn record(&mut self, index: usize, stage: Stage, event: Event) {
        self.0.record(index, stage, event);
    }
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Event::Parsed { outer_src, outer_dst, vni, inner, inner_len } => {
                write!(f, "{outer_src} > {outer_dst} VXLAN vni {vni}, inner {inner}, {inner_len} bytes")
            }
            Event::Flow { src, dst, protocol, src_port, dst_port, hash } => {
                write!(f, "flow {src} > {dst} protocol {protocol} ports {src_port} > {dst_port}, hash {hash:016x}")
            }
            Event::InnerError { reason } => write!(f, "inner frame: {}", reason.name()),
            Event::Tenant { vni, line, generation, gateway_mac } => {
                write!(f, "vni {vni}: record at line {line}, generation {generation}, gateway {gateway_mac}")
            }
            Event::Member { vni, source } => write!(f, "{source} may send for vni {vni}"),
            Event::SourceNotChecked { source } => write!(f, "source {source} not checked (sourceCheck is off)"),
            Event::Route { vni, destination, scope, peer, shortcut } => {
                write!(f, "vni {vni}, {destination}: {}", scope.name())?;
                if let Some(peer) = peer {
                    write!(f, " to vni {peer}")?;
                }
                f.write_str(if *shortcut { " (proven by the VM-NC entry)" } else { "" })
            }
            Event::Vm { vni, address, mac, vm, nc, gateway, metered } => {
                write!(f, "vni {vni}, {address}: ")?;
                match gateway {
                    true => write!(f, "the gateway itself")?,
                    false => write!(f, "VM {vm} {mac} on NC {nc}")?,
                }
                f.write_str(if *metered { ", metered" } else { "" })
            }
            Event::NoVm { vni, address } => write!(f, "vni {vni}, {address}: no VM"),
            Event::Nexthop { nc, address, nexthop, ifindex, dmac, smac, mtu } => write!(
                f,
                "NC {nc} {address}: next hop {nexthop}: port {ifindex}, {smac} > {dmac}, MTU {mtu}"
            ),
            Event::Meter { of, line, color } => write!(f, "{of} meter at line {line}: {color}"),
            Event::Answered { with, mac } => write!(f, "answered: {with} {mac}"),
            Event::Icmp { kind, code, sent: true, .. } => write!(f, "ICMP type {kind} code {code} sent to the source"),
            Event::Icmp { kind, code, why, .. } => write!(f, "ICMP type {kind} code {code} not sent: {why}"),
            Event::Fragmented { fragments } => write!(f, "cut into {fragments} fragments"),
            Event::Circuit { port, tags, vni, inner, inner_len } => {
                write!(f, "edge port {port}, {}, vni {vni}, inner {inner}, {inner_len} bytes", tags_text(tags))
            }
            Event::Line { port, tags, ce, mtu } => {
                write!(f, "line by edge port {port}, {}, CE {ce}, mtu {mtu}", tags_text(tags))
            }
            Event::VmPort { port, mac, mtu } => write!(f, "VM {mac} of this node by port {port}, MTU {mtu}"),
            Event::Bytes { before, after } => write!(f, "{} bytes rewritten to {}", before.len(), after.len()),
            Event::Mirrored { mirror, direction, outcome } => match outcome {
                Ok(bytes) => write!(f, "{direction} copied for mirror {mirror}: {bytes} bytes"),
                Err(why) => write!(f, "{direction} not copied for mirror {mirror}: {why}"),
            },
            Event::Generated { bytes, ifindex } => write!(f, "{} bytes of the gateway's own sent on port {ifindex}", bytes.len()),
            Event::Session { inner, outer, state, inward } => {
                write!(f, "{} session {inner}, outside {outer}, {state}", if *inward { "inwards:" } else { "outwards:" })
            }
            Event::Rule { direction, rule: Some((group, i, rule)), allowed } => {
                let word = if *allowed { "allowed" } else { "denied" };
                write!(f, "{direction} {word} by group {group}, rules[{i}]: {rule}")
            }
            Event::Rule { direction, rule: None, .. } => write!(f, "{direction} denied: no rule of its groups matches"),
            Event::Unnamed { direction, rule: (group, i, rule) } => write!(
                f,
                "{direction} not allowed by group {group}, rules[{i}]: {rule}: an unassigned or experimental protocol needs a rule that names it"
            ),
            Event::Inline { servers_side, other, what } => {
                let side = if *servers_side { "servers" } else { "network" };
                write!(f, "{what} from the {side}, other end of the wire: port {other}")
            }
            Event::Server { address, vni: Some(vni) } => write!(f, "server {address} of vni {vni}"),
            Event::Server { address, vni: None } => write!(f, "{address} is no server behind this wire"),
            Event::NoGroups => f.write_str("neither end has a security group"),
            Event::Migrated { vni, prefix } => write!(f, "migrated prefix {prefix} of vni {vni}"),
            Event::Pair { key, state, begun } => {
                write!(f, "{} {key}, {state}", if *begun { "session begins:" } else { "session" })
            }
            Event::HandedOver { to, back } => {
                write!(f, "its session may be another cluster's: handed {} to {to}", if *back { "back" } else { "over" })
            }
            Event::LineElsewhere { to } => write!(f, "its line is at another node: sent to {to}"),
            Event::Outcome { verdict } => match verdict {
                Verdict::Forward { ifindex } => write!(f, "forwarded on port {ifindex}"),
                Verdict::Answer { ifindex } => write!(f, "answered on port {ifindex}"),
                Verdict::Pass => write!(f, "passed to the host"),
                Verdict::Drop(reason) => write!(f, "dropped: {}", reason.name()),
                Verdict::Wait => write!(f, "waits for the agent"),
                Verdict::Metadata => write!(f, "taken by the metadata address"),
                Verdict::Control { .. } => write!(f, "passed to the routing daemon of its circuit"),
            },
        }
    }
}

/// VLAN ids in words.
fn tags_text(tags: &[u16]) -> String {
    match tags {
        [] => "no tag".into(),
        [customer] => format!("customer {customer}"),
        [customer, overlay, ..] => format!("customer {customer} overlay {overlay}"),
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
