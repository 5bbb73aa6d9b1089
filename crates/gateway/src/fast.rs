// SPDX-License-Identifier: Apache-2.0
//! The common packet: a short cut through the stages.
//!
//! Nearly every packet has the same shape: unfragmented IPv4 without options in VXLAN over IPv4, from a
//! known NC, to a VM whose route its VM-NC entry proves, in the same VPC or in a peer, on an IPv4 NC whose next hop is ready,
//! with nothing to meter; and the same from a customer, behind the tags of an edge port in place of the tunnel. For these the path is a
//! few comparisons and stores, and what costs is the number of instructions and of cache lines. So they are treated here, with little more
//! than a cache line of state each.
//!
//! **The property it keeps:** until the last step, where nothing can go wrong any more, it changes and counts nothing. A
//! packet that turns out to be uncommon anywhere is left as it came and takes the stages from the beginning, which alone
//! decide what is wrong with it. Both must give the same bytes, verdicts and counters; with a recorder there is no short
//! cut, and a test compares the two (`tests/equal.rs`).
//!
//! # How a batch flows
//! In blocks of [`BLOCK`] packets, in passes over what is left of a block:
//! 1. *parse*: the shape; the line of the packet's flow begins to load, and that of what a customer's tags stand for, which is then looked at.
//! 2. *lines*, with a flow cache: a line that holds sends its packet on, whose counters begin to load; then these are counted.
//! 3. *look up*: the lines of the first tables begin to load.
//! 4. *VPC*: VPC, sender and destination; then the other steps, each a pass, until all are sent or left to the stages: the route to a
//!    customer's source, a chained bucket, a route tree, a peer, and the last one, which notes the flow.
//!
//! Each pass asks for the lines that the next one reads, so that as many are under way as packets are left. With a pass for each step there is
//! little for the compiler to keep in registers.
//!
//! What it costs: an uncommon packet is looked at twice.

use abi::*;
use tables::{Circuit, EdgePort, Tables, Tables4, VmEntry, Walk};
use wire::{be, checksum, ethernet, ipv4, protocol, udp, vxlan};

use crate::flow_cache::{Key, Known, Places};
use crate::framing::qinq;
use crate::framing::vxlan::{encapsulate_v4, udp_checksum_ok, Outer};
use crate::packet::{Addr, Packet};
use crate::record::Recorder;
use crate::settings::Settings;
use crate::stages::parse::{decapsulated_ecn, has_ports, unforwardable_v4};
use crate::stages::rewrite::{rewrite_v4, Tos};
use crate::work::Work;
use crate::{Frame, Verdict, BATCH_MAX};

const OUTER: usize = ethernet::HEADER_LEN;
const TUNNEL: usize = OUTER + ipv4::HEADER_LEN;
const INNER: usize = TUNNEL + udp::HEADER_LEN + vxlan::HEADER_LEN;
const INNER_IP: usize = INNER + ethernet::HEADER_LEN;
const PORTS: usize = INNER_IP + ipv4::HEADER_LEN;
/// Bytes that are looked at.
const HEAD: usize = PORTS + 4;
/// The same from where a frame begins that is in no tunnel.
const INNER_HEAD: usize = HEAD - INNER;

/// Frames ahead of the one being parsed whose headers are fetched.
const FETCH: usize = 6;
/// Packets that take their steps together: so many lines of each step are under way at most.
const BLOCK: usize = 128;

/// What a packet does next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Next {
    /// Nothing here: it is uncommon.
    Stages,
    /// Nothing any more: it is sent.
    Sent,
    /// Lines of the route to its source are being loaded.
    Source,
    /// The next bucket of a chain is being loaded.
    Chain,
    /// A line of its VPC's route tree is.
    Tree,
    /// A peer VPC and the destination's bucket there are.
    Peer,
    /// The destination's NC and counters are.
    Send,
}

/// State of one common packet.
#[derive(Clone, Copy)]
pub(crate) struct FastPacket {
    key: Key,
    /// The versions of what was looked up for it.
    versions: u64,
    mac: u64,
    gateway_mac: u64,
    next: Next,
    /// The NC that sent it, as in the packet; of a customer's frame FLOW_EDGE, the port's number and the VPC.
    sender: u32,
    /// Number of a customer's circuit.
    circuit: u32,
    /// The VPC's ROUTE_ROOT.
    root: u32,
    /// VPC that the destination is in, as far as is known.
    vni: Vni,
    places: Places,
    walk: Walk,
    tenant: VpcId,
    /// The bucket of the VNI, then that of the peer's.
    bucket: LineNo,
    /// The bucket of the sender.
    member: LineNo,
    /// Line of the destination's bucket, then of its counters.
    line: LineNo,
    /// The VPC's counters.
    cell: LineNo,
    vm: VmId,
    /// Id of the NC.
    nc: NcId,
    inner_len: u16,
    /// Where the inner frame begins; of a customer's, but for its MAC addresses, which are in front of the tags.
    at: u8,
    /// DSCP and ECN of the outer and the inner header as received, and the ECN that results.
    outer_tos: u8,
    inner_tos: u8,
    ecn: u8,
    ttl: u8,
    /// The destination is in a peer VPC, or must be in this one.
    last: bool,
}

impl FastPacket {
    pub const EMPTY: FastPacket = FastPacket {
        key: Key { addresses: 0, rest: 0 },
        versions: 0,
        mac: 0,
        gateway_mac: 0,
        next: Next::Stages,
        sender: 0,
        circuit: 0,
        root: 0,
        vni: Vni(0),
        places: Places::NONE,
        walk: Walk::NONE,
        tenant: VpcId(0),
        bucket: LineNo(0),
        member: LineNo(0),
        line: LineNo(0),
        cell: LineNo(0),
        vm: VmId(0),
        nc: NcId(0),
        inner_len: 0,
        at: 0,
        outer_tos: 0,
        inner_tos: 0,
        ecn: 0,
        ttl: 0,
        last: false,
    };

    /// It came by an edge port.
    #[inline(always)]
    fn is_customers(&self) -> bool {
        u32::from_be(self.sender) >= FLOW_EDGE
    }
}

/// What comes by a port. What a customer or a VM sends is no tunnel, whatever it looks like.
#[derive(Clone, Copy)]
enum Port {
    /// Tunnels.
    Uplink,
    /// Frames of customers; its number.
    Edge(u8),
    /// Frames of a VM.
    Vm,
}

impl Port {
    fn of<R: Recorder>(w: &Work<'_, R>, ifindex: IfIndex) -> Port {
        match w.edge_port(ifindex) {
            Some(port) => Port::Edge(port.number),
            None if w.vm_port(ifindex).is_some() => Port::Vm,
            None => Port::Uplink,
        }
    }
}

/// Places of packets in a block.
struct List {
    places: [u8; BLOCK],
    len: usize,
}

impl List {
    const EMPTY: List = List { places: [0; BLOCK], len: 0 };

    /// Adds a place, or not: which is no branch.
    #[inline(always)]
    fn push(&mut self, place: usize, yes: bool) {
        if let Some(last) = self.places.get_mut(self.len) {
            *last = place as u8;
            self.len += usize::from(yes);
        }
    }

    /// Has all of them take a step; those that have another one stay.
    #[inline(always)]
    fn step(&mut self, mut step: impl FnMut(usize) -> bool) {
        let mut left = 0;
        for i in 0..self.len.min(BLOCK) {
            let place = self.places[i];
            self.places[left] = place;
            left += usize::from(step(place as usize));
        }
        self.len = left;
    }
}

/// What the first 64 bytes from the outer EtherType on must be, where they have one right value.
#[derive(Clone, Copy)]
struct Template {
    mask: [u64; 8],
    value: [u64; 8],
}

impl Template {
    const FROM: usize = OUTER - 2;

    fn new(s: &Settings) -> Template {
        let mut t = Bytes { mask: [0; 64], value: [0; 64] };
        t.expect(OUTER - 2, &[0x08, 0x00, 0x45], &[0xff; 3]);
        t.expect(OUTER + 6, &[0, 0, 0, protocol::UDP], &[0x3f, 0xff, 0, 0xff]);
        t.expect(OUTER + 16, &s.vtep4.to_be_bytes(), &[0xff; 4]);
        t.expect(TUNNEL + 2, &s.port.to_be_bytes(), &[0xff; 2]);
        t.expect(TUNNEL + 8, &[vxlan::FLAG_VNI], &[vxlan::FLAG_VNI]);
        // Group bits of both inner MAC addresses.
        t.expect(INNER, &[0], &[1]);
        t.expect(INNER + 6, &[0], &[1]);
        t.expect(INNER_IP - 2, &[0x08, 0x00, 0x45], &[0xff; 3]);
        t.expect(INNER_IP + 6, &[0, 0], &[0x3f, 0xff]);
        t.words()
    }

    /// Words in the machine's byte order, so that the compiler may take several at once.
    #[inline(always)]
    fn matches(&self, head: &[u8; HEAD]) -> bool {
        let mut differs = 0;
        for i in 0..8 {
            differs |= (word(head, Template::FROM + 8 * i) & self.mask[i]) ^ self.value[i];
        }
        differs == 0
    }
}

/// A template in the making.
struct Bytes {
    mask: [u8; 64],
    value: [u8; 64],
}

impl Bytes {
    fn expect(&mut self, at: usize, value: &[u8], mask: &[u8]) {
        let at = at - Template::FROM;
        self.value[at..at + value.len()].copy_from_slice(value);
        self.mask[at..at + mask.len()].copy_from_slice(mask);
    }

    fn words(&self) -> Template {
        Template {
            mask: std::array::from_fn(|i| word(&self.mask, 8 * i)),
            value: std::array::from_fn(|i| word(&self.value, 8 * i)),
        }
    }
}

/// Eight bytes in the machine's byte order.
#[inline(always)]
fn word(b: &[u8], at: usize) -> u64 {
    be::u64(b, at).to_be()
}

/// Whether there is a short cut under these settings.
pub(crate) fn serves(s: &Settings) -> bool {
    s.vtep4 != 0 && !s.udp4_checksum && s.strict && !s.inline
}

/// Takes all common packets through. True if there were no others; else the others' `done` is false.
pub(crate) fn process<R: Recorder>(
    w: &mut Work<'_, R>,
    fast_packets: &mut [FastPacket; BATCH_MAX],
    packets: &mut [Packet],
    frames: &mut [Frame<'_>],
) -> bool {
    let at = w.tables.tables4();
    let before = w.sent.packets;
    for (block, frames) in fast_packets.chunks_mut(BLOCK).zip(frames.chunks_mut(BLOCK)) {
        let block = &mut block[..frames.len()];
        let mut list = List::EMPTY;
        parse_all(w, block, frames, &mut list);
        if w.flows.is_some() {
            find_lines(w, block, frames, &mut list);
        }
        list.step(|i| block.get_mut(i).is_some_and(|l| look_up(w, &at, l)));
        list.step(|i| block.get_mut(i).is_some_and(|l| vpc(w, &at, l)));
        while list.len > 0 {
            further(w, &at, block, frames, &mut list);
        }
    }
    let n = frames.len().min(BATCH_MAX);
    let all = w.sent.packets - before == n as u64;
    if !all {
        packets.iter_mut().zip(fast_packets).for_each(|(p, l)| p.done = matches!(l.next, Next::Sent));
    }
    all
}

/// Which packets have the shape.
#[inline(never)]
fn parse_all<R: Recorder>(w: &mut Work<'_, R>, block: &mut [FastPacket], frames: &[Frame<'_>], list: &mut List) {
    let s = &w.settings;
    // Opaque to the compiler, which otherwise turns the constant masks into many narrow comparisons.
    let template = std::hint::black_box(Template::new(s));
    frames.iter().take(FETCH).for_each(|f| w.prefetch_frame(f));
    // Most packets come by the port of the one before.
    let (mut port, mut customers) = ((IfIndex(0), Port::Uplink), false);
    for (i, (l, f)) in block.iter_mut().zip(frames).enumerate() {
        if let Some(next) = frames.get(i + FETCH) {
            w.prefetch_frame(next);
        }
        l.next = Next::Stages;
        if s.edge && port.0 != f.ifindex {
            port = (f.ifindex, Port::of(w, f.ifindex));
        }
        let parsed = match port.1 {
            Port::Uplink => parse(f.data(), s, &template, l),
            Port::Edge(number) => {
                customers = true;
                edge_port(w.tables, number, f).is_some_and(|port| parse_customers(w.tables, f.data(), port, l))
            }
            Port::Vm => false,
        };
        if let (true, Some(flows)) = (parsed, &w.flows) {
            l.places = flows.cache.places(l.key);
        }
        list.push(i, parsed);
    }
    if customers {
        list.step(|i| block.get_mut(i).is_some_and(|l| !l.is_customers() || customers_vpc(w.tables, l)));
    }
}

/// Those whose flow has a line that holds are sent on; the others stay in the list.
#[inline(never)]
fn find_lines<R: Recorder>(w: &mut Work<'_, R>, block: &mut [FastPacket], frames: &mut [Frame<'_>], list: &mut List) {
    let mut hits = List::EMPTY;
    list.step(|i| {
        let (Some(l), Some(f)) = (block.get_mut(i), frames.get_mut(i)) else { return false };
        let hit = line(w, l, f);
        hits.push(i, hit);
        !hit
    });
    hits.step(|i| {
        if let (Some(l), Some(f)) = (block.get_mut(i), frames.get(i)) {
            count(w, l, f);
        }
        false
    });
}

/// A step of each packet that has one.
#[inline(never)]
fn further<R: Recorder>(
    w: &mut Work<'_, R>,
    at: &Tables4,
    block: &mut [FastPacket],
    frames: &mut [Frame<'_>],
    list: &mut List,
) {
    list.step(|i| {
        let (Some(l), Some(f)) = (block.get_mut(i), frames.get_mut(i)) else { return false };
        l.next = match l.next {
            Next::Send => send(w, at, l, f),
            Next::Source => source(w, at, l),
            Next::Chain => find(w, at, l),
            Next::Tree => tree(w, at, l),
            Next::Peer => peer(w, at, l),
            Next::Stages | Next::Sent => l.next,
        };
        !matches!(l.next, Next::Stages | Next::Sent)
    });
}

/// Recognises the shape; anything else is for the parse stage to understand. Whether the addresses may be forwarded is asked later:
/// what a flow cache knows has been.
#[inline(always)]
fn parse(data: &[u8], s: &Settings, template: &Template, l: &mut FastPacket) -> bool {
    let Some(h) = data.first_chunk::<HEAD>() else { return false };
    if !template.matches(h) {
        return false;
    }
    let (outer, inner) = (ip_head(h, OUTER), ip_head(h, INNER_IP));
    let (outer_ip, inner_ip) = (ipv4::Packet::new_unchecked(outer), ipv4::Packet::new_unchecked(inner));
    let (outer_len, udp_len) = (outer_ip.total_len(), be::u16(h, TUNNEL + 4) as usize);
    let inner_len = inner_ip.total_len();
    if outer_len > data.len() - OUTER
        || udp_len + ipv4::HEADER_LEN > outer_len
        || inner_len + (INNER_IP - TUNNEL) > udp_len
        || inner_len < ipv4::HEADER_LEN + 4
        || checksum::sum_ipv4_header(outer) != 0xffff
        || checksum::sum_ipv4_header(inner) != 0xffff
        || be::u16(h, TUNNEL + 6) != 0 && !datagram_ok(&data[TUNNEL..TUNNEL + udp_len], s, outer_ip.src())
        || outer_ip.src() >= FLOW_EDGE
    {
        return false;
    }
    let (outer_tos, inner_tos) = (outer_ip.tos(), inner_ip.tos());
    l.ecn = inner_tos & 3;
    if outer_tos & 3 != 0 && !s.ecn_off {
        let Some(ecn) = decapsulated_ecn(outer_tos & 3, inner_tos & 3) else { return false };
        l.ecn = ecn;
    }
    l.vni = Vni(be::u32(h, INNER - 4) >> 8);
    l.key = key(inner, be::u32(h, PORTS), l.vni.0);
    l.sender = outer_ip.src().to_be();
    l.inner_len = (udp_len - (INNER - TUNNEL)) as u16;
    l.at = INNER as u8;
    l.outer_tos = outer_tos;
    l.inner_tos = inner_tos;
    l.ttl = inner_ip.ttl();
    true
}

/// The key of an IPv4 packet, behind whose header these four bytes are. `vni`: what stands in place of it, too.
#[inline(always)]
fn key(ip: &[u8; ipv4::HEADER_LEN], ports: u32, vni: u32) -> Key {
    let proto = ipv4::Packet::new_unchecked(ip).protocol();
    let ports = if has_ports(proto) { ports } else { 0 };
    Key {
        addresses: word(ip, 12),
        rest: u64::from(vni) << FLOW_VNI_SHIFT | u64::from(proto) << FLOW_PROTOCOL_SHIFT | u64::from(ports),
    }
}

/// The edge port of a number, as long as it is here, stays what it is, and a frame came by it.
#[inline(always)]
fn edge_port(tables: &Tables, number: u8, f: &Frame<'_>) -> Option<EdgePort> {
    tables.edge_port_numbered(number).filter(|p| !p.changes && !p.elsewhere && p.ifindex == f.ifindex)
}

/// Recognises the shape behind the tags of an edge port; what these stand for begins to load.
#[inline(always)]
fn parse_customers(tables: &Tables, data: &[u8], port: EdgePort, l: &mut FastPacket) -> bool {
    let (at, mut circuit) = (qinq::tags_len(&port), Circuit { port, ..Circuit::default() });
    let Some(h) = data.get(at..).and_then(|h| h.first_chunk::<INNER_HEAD>()) else { return false };
    let Some(ip) = h[ethernet::HEADER_LEN..].first_chunk::<{ ipv4::HEADER_LEN }>() else { return false };
    let packet = ipv4::Packet::new_unchecked(ip);
    let (total, bytes) = (packet.total_len(), data.len() - at);
    // EtherType, version and length of the header; fragments; group bits of both MAC addresses.
    let odd = be::u16(h, ethernet::HEADER_LEN - 2) ^ 0x0800
        | u16::from(ip[0]) ^ 0x45
        | be::u16(ip, 6) & 0x3fff
        | u16::from((data[0] | data[6]) & 1);
    if odd != 0
        || total > bytes - ethernet::HEADER_LEN
        || total < ipv4::HEADER_LEN + 4
        || bytes > usize::from(u16::MAX)
        || checksum::sum_ipv4_header(ip) != 0xffff
        || qinq::tags(&port, data, &mut circuit.tags).is_err()
    {
        return false;
    }
    l.circuit = circuit.number();
    l.line = tables.circuit_line(l.circuit);
    l.sender = FLOW_EDGE.to_be();
    l.mac = be::mac(data, 6);
    l.key = key(ip, be::u32(h, INNER_HEAD - 4), l.circuit & 0xff_ffff);
    l.inner_len = bytes as u16;
    l.at = at as u8;
    // No header around it says anything else.
    (l.outer_tos, l.inner_tos, l.ecn) = (packet.tos(), packet.tos(), packet.tos() & 3);
    l.ttl = packet.ttl();
    true
}

/// The VPC of a customer's frame. It is asked for each, and a flow's line names it: so a line of what the tags stood for earlier is never found.
#[inline(always)]
fn customers_vpc(tables: &Tables, l: &mut FastPacket) -> bool {
    let Some(found) = tables.circuit_vpc_at(l.line, l.circuit) else { return false };
    l.vni = found.vni;
    l.sender = (FLOW_EDGE | (l.circuit >> CIRCUIT_PORT_SHIFT) << 24 | found.vni.0).to_be();
    // A packet for the gateway may be for the routing daemon behind the circuit.
    found.admits(l.mac) && (found.gateway == 0 || found.gateway != l.key.dst())
}

/// The checksum of the outer UDP datagram, which most have not, but those of Linux have.
#[cold]
#[inline(never)]
fn datagram_ok(datagram: &[u8], s: &Settings, source: u32) -> bool {
    udp_checksum_ok(datagram, s, Addr::v4(source), false)
}

/// An IPv4 header without options at a fixed offset.
#[inline(always)]
fn ip_head(h: &[u8; HEAD], at: usize) -> &[u8; ipv4::HEADER_LEN] {
    match h[at..at + ipv4::HEADER_LEN].first_chunk() {
        Some(head) => head,
        None => unreachable!("the range has this length"),
    }
}

/// The tables are to say where it goes: what is looked up first begins to load.
#[inline(always)]
fn look_up<R: Recorder>(w: &Work<'_, R>, at: &Tables4, l: &mut FastPacket) -> bool {
    if !forwardable(l, &w.settings) {
        return false;
    }
    if !l.is_customers() {
        l.member = w.tables.member4_line(at, l.vni, u32::from_be(l.sender));
    }
    l.bucket = w.tables.tenant_line(at, l.vni);
    l.line = w.tables.vm4_line(at, l.vni, l.key.dst());
    true
}

/// Its inner addresses are those of packets that are sent on.
#[inline(always)]
fn forwardable(l: &FastPacket, s: &Settings) -> bool {
    let (src, dst) = (l.key.src(), l.key.dst());
    dst < 0xe000_0000 && unforwardable_v4(src, dst, s).is_none()
}

/// The line of its flow, if there is one that holds, sends it on. Else the tables are looked up, after the versions were read.
#[inline(always)]
fn line<R: Recorder>(w: &mut Work<'_, R>, l: &mut FastPacket, f: &mut Frame<'_>) -> bool {
    let Some(flows) = &mut w.flows else { return false };
    l.versions = flows.versions.sum(l.vni, l.key.dst());
    let known = flows.known(l.places, l.key, (l.sender, l.vni), l.versions);
    let Some(known) = known.filter(|_| l.ttl > 1) else { return false };
    let Some(bytes) = leave(w.tables, &w.settings, l, f, &known, u64::from(known.port)) else { return false };
    flows.hit();
    w.sent.packets += 1;
    w.sent.bytes += bytes;
    (l.tenant, l.vm, l.line) = (known.tenant, known.vm, w.tables.vm_cell_line(known.vm));
    l.cell = w.tables.slot_cell_line(l.tenant, w.cells);
    w.tables.prefetch_line(l.line);
    w.tables.prefetch_line(l.cell);
    true
}

/// The sender may send, and an entry of the VM-NC table will prove the route. The tenant's counter begins to load.
#[inline(always)]
fn vpc<R: Recorder>(w: &Work<'_, R>, at: &Tables4, l: &mut FastPacket) -> bool {
    let tables = w.tables;
    let Some(tenant) = tables.tenant_from(l.bucket, l.vni) else { return false };
    if tenant.root4() & ROOT_SIMPLE == 0 || tenant.key & (TENANT_METERED | TENANT_FILTERED) != 0 || l.ttl <= 1 {
        return false;
    }
    if w.settings.shaped && tables.policy(&tenant) & POLICY_SHAPED != 0 {
        return false;
    }
    if !l.is_customers() && !tables.may_send4_from(l.member, l.vni, u32::from_be(l.sender)) {
        return false;
    }
    (l.tenant, l.gateway_mac, l.root) = (tenant.id(), tenant.gateway_mac(), tenant.root4());
    // A session may know a way that no route tells.
    l.last = tenant.key & TENANT_NAT != 0 && w.sessions.is_some();
    l.cell = tables.slot_cell_line(l.tenant, w.cells);
    tables.prefetch_line(l.cell);
    l.next = match l.is_customers() {
        true => walk(w, l, Next::Source),
        false => find(w, at, l),
    };
    l.next != Next::Stages
}

/// Begins to load the VPC's route tree for a step.
#[inline(always)]
fn walk<R: Recorder>(w: &Work<'_, R>, l: &mut FastPacket, next: Next) -> Next {
    let Some(walk) = Walk::begin(l.root) else { return Next::Stages };
    w.tables.prefetch_line(walk.line());
    w.tables.prefetch_line(walk.second_line());
    l.walk = walk;
    next
}

/// A line of the route to a customer's source, which must have scope line ([`qinq::check_source`]).
#[inline(always)]
fn source<R: Recorder>(w: &Work<'_, R>, at: &Tables4, l: &mut FastPacket) -> Next {
    match w.tables.step4(&mut l.walk, l.key.src()) {
        None => Next::Source,
        Some(value) if value >> VALUE_SCOPE_SHIFT == SCOPE_LINE => find(w, at, l),
        Some(_) => Next::Stages,
    }
}

/// A bucket of the VM-NC table: the entry, or where to look for it.
#[inline(always)]
fn find<R: Recorder>(w: &Work<'_, R>, at: &Tables4, l: &mut FastPacket) -> Next {
    match w.tables.vm4_lasting(at, l.line, l.vni, l.key.dst()) {
        Ok(vm) => found(w, l, vm),
        Err(LineNo(0)) if l.last => Next::Stages,
        Err(LineNo(0)) => walk(w, l, Next::Tree),
        Err(line) => {
            w.tables.prefetch_line(line);
            l.line = line;
            Next::Chain
        }
    }
}

/// The destination is known.
#[inline(always)]
fn found<R: Recorder>(w: &Work<'_, R>, l: &mut FastPacket, vm: VmEntry) -> Next {
    if vm.flags != 0 {
        return Next::Stages;
    }
    (l.mac, l.vm, l.nc, l.line) = (vm.mac, vm.vm, vm.nc, w.tables.vm_cell_line(vm.vm));
    w.tables.prefetch_line(w.tables.nc_line(l.nc));
    w.tables.prefetch_line(l.line);
    Next::Send
}

/// A line of the route tree: on to the next, or to the peer.
#[inline(always)]
fn tree<R: Recorder>(w: &Work<'_, R>, at: &Tables4, l: &mut FastPacket) -> Next {
    let dst = l.key.dst();
    let Some(value) = w.tables.step4(&mut l.walk, dst) else { return Next::Tree };
    if value >> VALUE_SCOPE_SHIFT != SCOPE_PEER {
        return Next::Stages;
    }
    l.vni = Vni(value & 0xff_ffff);
    l.last = true;
    // Before anything of the peer is read.
    if let Some(flows) = &w.flows {
        l.versions = l.versions.wrapping_add(flows.versions.more(l.vni, l.key.dst()));
    }
    l.bucket = w.tables.tenant_line(at, l.vni);
    l.line = w.tables.vm4_line(at, l.vni, l.key.dst());
    Next::Peer
}

/// An entry of the VM-NC table may prove the route in the peer.
#[inline(always)]
fn peer<R: Recorder>(w: &Work<'_, R>, at: &Tables4, l: &mut FastPacket) -> Next {
    match w.tables.tenant_from(l.bucket, l.vni) {
        Some(peer) if peer.root4() & ROOT_SIMPLE != 0 && peer.key & TENANT_FILTERED == 0 => {
            l.gateway_mac = peer.gateway_mac();
            find(w, at, l)
        }
        _ => Next::Stages,
    }
}

/// The way out; if there is one that fits, the packet is sent, counted, and its flow noted.
#[inline(always)]
fn send<R: Recorder>(w: &mut Work<'_, R>, at: &Tables4, l: &mut FastPacket, f: &mut Frame<'_>) -> Next {
    let tables = w.tables;
    let Some((group, nc)) = tables.nc4(l.nc) else { return Next::Stages };
    let flow = l.key.flow_hash();
    let known = Known {
        macs: (l.mac, l.gateway_mac),
        vni: l.vni,
        nc,
        nexthop: tables.group_member(group, flow),
        port: source_port(flow),
        tenant: l.tenant,
        vm: l.vm,
    };
    let Some(bytes) = leave(tables, &w.settings, l, f, &known, flow) else { return Next::Stages };
    w.sent.packets += 1;
    w.sent.bytes += bytes;
    if let Some(flows) = &mut w.flows {
        flows.note((l.places, l.key, l.sender), l.versions, &known, tables, at);
    }
    count(w, l, f);
    Next::Sent
}

/// Counts a packet that is sent, for its VPC and the VM.
#[inline(always)]
fn count<R: Recorder>(w: &Work<'_, R>, l: &mut FastPacket, f: &Frame<'_>) {
    if !f.counted {
        w.tables.count_vpc_at(l.cell, l.tenant, w.cells, l.inner_len as u64);
    }
    w.tables.count_vm_at(l.line, l.vm, l.inner_len as u64);
    l.next = Next::Sent;
}

/// Writes the headers of a packet that leaves, unless its next hop does not take it. Returns its bytes.
#[inline(always)]
fn leave(tables: &Tables, s: &Settings, l: &FastPacket, f: &mut Frame<'_>, known: &Known, flow: u64) -> Option<u64> {
    let nexthop = tables.nexthop(known.nexthop);
    let at = f.offset as usize + usize::from(l.at);
    let packet = f.buffer.get_mut(at.checked_sub(INNER)?..).and_then(|b| b.first_chunk_mut::<HEAD>())?;
    if !nexthop.ready || l.inner_len as usize + INNER - OUTER > nexthop.mtu as usize {
        return None;
    }
    let tos = Tos::new(s, l.outer_tos, l.inner_tos, l.ecn);
    let (tunnel, inner) = packet.split_at_mut(INNER);
    if let Some(head) = inner.first_chunk_mut() {
        rewrite_v4(head, known.macs, l.inner_tos, l.ttl, tos.inner);
    }
    let outer = Outer {
        dmac: nexthop.dmac,
        smac: nexthop.smac,
        v6: false,
        remote: Addr::v4(known.nc),
        tos: tos.outer,
        flow,
        vni: known.vni,
    };
    if let Some(head) = tunnel.first_chunk_mut() {
        encapsulate_v4(head, l.inner_len as usize, &outer, s);
    }
    f.offset = (at - INNER) as u32;
    f.len = INNER as u32 + l.inner_len as u32;
    f.verdict = Verdict::Forward { ifindex: nexthop.ifindex };
    Some(f.len as u64)
}

#[cfg(test)]
#[path = "fast_tests.rs"]
mod tests;
