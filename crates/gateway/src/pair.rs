// SPDX-License-Identifier: Apache-2.0
//! Connections between two ends inside: who may send, whether rules let a connection begin, its session.
//!
//! The order of checks is that of `docs/design/packet-filter.md`. A connection has one session, found by the packets
//! of both directions; the rules are asked when it begins, and again when they have changed.

use abi::{DropReason, Stage, Vni, POLICY_PICKUP, TENANT_FILTERED, VM_FLAG_GATEWAY};
use conntrack::{Direction, Embedded, NewSession, Owner, PairKey, SessionRef};
use filter::{Deny, RuleDirection, Side};
use std::net::IpAddr;
use wire::{be, icmpv4, ipv6, protocol, tcp};

use crate::connection;
use crate::connections::{epoch, Made, SessionView};
use crate::frame::Verdict;
use crate::handover;
use crate::l4::{Icmp, L4};
use crate::nat::outward::{begins, ip_of, opens};
use crate::nat::related::quote_of;
use crate::packet::{Addr, Packet};
use crate::record::{Event, Recorder};
use crate::work::Work;
use crate::Frame;

/// What is known of a packet between two ends inside.
pub(crate) struct Pair<'p> {
    /// As it came.
    pub frame: &'p Frame<'p>,
    /// From its IP header on.
    pub packet: &'p [u8],
    pub l4: L4,
    pub from: Side,
    pub to: Side,
    /// POLICY words of both VPCs together: flags, and the sum of their epochs.
    pub policy: u64,
    /// It passes an inline pair: from the server, or to it. None: through a tunnel.
    server: Option<Direction>,
}

/// A connection that the rules are asked about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleQuery {
    pub from: Side,
    pub to: Side,
    /// The port that it comes from; 0: none.
    pub port: u16,
    pub service: u32,
}

/// What the rules say of a connection that may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permit {
    /// It is remembered as a session.
    Stateful,
    /// It is not: each packet is asked about by itself.
    Stateless,
}

impl RuleQuery {
    /// What answers it.
    fn answer(self) -> RuleQuery {
        let (proto, kind) = ((self.service >> 16) as u8, (self.service >> 8) as u8);
        let service = match (proto, kind) {
            (protocol::ICMP, icmpv4::kind::TIMESTAMP | icmpv4::kind::ADDRESS_MASK) => {
                filter::icmp_service(proto, kind + 1, 0)
            }
            _ => reply_service(proto, self.port),
        };
        RuleQuery { from: self.to, to: self.from, port: self.service as u16, service }
    }
}

impl Pair<'_> {
    pub(crate) fn query(&self, service: u32, port: u16) -> RuleQuery {
        RuleQuery { from: self.from, to: self.to, port, service }
    }

    /// The session that the packet would begin.
    pub(crate) fn session(&self, key: &PairKey, direction: Direction) -> NewSession {
        NewSession {
            inner: key.inner(),
            outer: key.outer(),
            owner: Owner::Filter,
            direction,
            view: self.l4.view(self.packet),
            bytes: self.l4.len as u32,
            epoch: epoch(self.policy),
            pick_up: self.policy & POLICY_PICKUP != 0,
        }
    }
}

/// Starts to load what judging a packet will need: its sender, the policies, the first bucket of its session.
#[inline(never)]
pub(crate) fn prefetch_session<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, f: &Frame<'_>) {
    // A state table is asked as it is.
    let Some(sight) = w.sessions.filter(|sight| sight.states.is_none()) else { return };
    let l4 = match p.prefetched.take() {
        Some((l4, _)) => l4,
        None => match L4::read(ip_of(p, f), p.v6()) {
            Ok(l4) => l4,
            Err(_) => return,
        },
    };
    let tables = w.tables;
    match l4.v6 {
        true => tables.prefetch_vm6(p.vni, l4.src.halves()),
        false => tables.prefetch_vm4(p.vni, l4.src.as_v4()),
    }
    for tenant in [&p.tenant, p.dst_vpc()] {
        tables.prefetch_line(tables.tenant_record(tenant.id()));
    }
    if l4.later() || single(&l4) {
        return;
    }
    let (from, to) = ends(p, &l4);
    let Some((key, _)) = key(&l4, (from, to), None, l4.ports_of(Direction::Out)) else { return };
    let candidates = sight.guard.candidates_pair(&key);
    sight.guard.prefetch_first(&candidates);
    p.prefetched = Some((l4, candidates));
    w.prefetched += 1;
}

/// The bucket has come: it names the session's record, or there is none, and a new one will be counted.
pub(crate) fn prefetch_more<R: Recorder>(w: &mut Work<'_, R>, p: &Packet) {
    let (Some(sight), Some((l4, candidates))) = (w.sessions, &p.prefetched) else { return };
    if !sight.guard.prefetch_records(candidates) {
        // The lower end stands for the VM.
        let (src, dst) = ((l4.src.as_v6(), p.vni), (l4.dst.as_v6(), p.dst_vpc().vni));
        let (addr, vni) = src.min(dst);
        sight.connections.tracker().prefetch_vm(vni, Addr::v6(addr).ip(l4.v6));
    }
}

/// Both ends of a packet.
fn ends(p: &Packet, l4: &L4) -> (Side, Side) {
    let side = |vni, addr: Addr| Side { vni: Some(vni), addr: addr.ip(l4.v6) };
    (side(p.vni, l4.src), side(p.dst_vpc().vni, l4.dst))
}

/// Whether a packet may go on. Makes, keeps and ends its session.
#[inline(never)]
pub(crate) fn judge<R: Recorder>(w: &mut Work<'_, R>, p: &Packet, f: &Frame<'_>) -> Result<(), Verdict> {
    let sight = w.sessions.ok_or(DropReason::SessionFault)?;
    // Its framing knows a server by where it is. What may come from a line stage tenant has seen.
    if p.server.is_none() && p.came.is_none() {
        let source = source(ip_of(p, f), p.v6()).ok_or(DropReason::FilterL4Malformed)?;
        check_source(w, sight, p, source)?;
    }
    connection(w, sight, p, f)
}

/// A packet whose source is in order.
fn connection<R: Recorder>(
    w: &mut Work<'_, R>,
    sight: SessionView<'_>,
    p: &Packet,
    f: &Frame<'_>,
) -> Result<(), Verdict> {
    let packet = ip_of(p, f);
    let l4 = match &p.prefetched {
        Some((l4, _)) => *l4,
        None => L4::read(packet, p.v6()).map_err(|why| malformed(packet, p.v6(), why))?,
    };
    check_tcp(packet, &l4)?;
    let (from, to) = ends(p, &l4);
    let mut pair = Pair { frame: f, packet, l4, from, to, policy: policy(w, p), server: p.server };
    match l4.icmp {
        Icmp::Error if related(sight, &pair)? => Ok(()),
        Icmp::Error if handover::wanted(sight, p, false) => Err(DropReason::HandoverFailed.into()),
        // A message that has no session is judged by itself.
        _ if single(&l4) => Ok(evaluate(w, sight, p, pair.query(first_service(&pair, (0, 0)), 0), true).map(|_| ())?),
        _ => with_session(w, sight, p, &mut pair),
    }
}

/// An ICMP message that has no session between two ends inside: any but echo.
fn single(l4: &L4) -> bool {
    !matches!(l4.icmp, Icmp::None | Icmp::Request | Icmp::Reply)
}

/// The source address of an IP packet that parse has seen.
fn source(packet: &[u8], v6: bool) -> Option<Addr> {
    match v6 {
        true => packet.get(8..24).map(|b| Addr { hi: be::u64(b, 0), lo: be::u64(b, 8) }),
        false => packet.get(12..16).map(|b| Addr::v4(be::u32(b, 0))),
    }
}

/// A source must be a VM of the VPC that is on the NC which sent the packet, or in a prefix that has groups.
fn check_source<R: Recorder>(
    w: &Work<'_, R>,
    sight: SessionView<'_>,
    p: &Packet,
    source: Addr,
) -> Result<(), DropReason> {
    let generation = p.tenant.generation();
    let vm = match p.v6() {
        true => w.tables.vm6(p.vni, source.halves(), generation),
        false => w.tables.vm4(p.vni, source.as_v4(), generation),
    };
    let good = match vm {
        Some(vm) if vm.flags & VM_FLAG_GATEWAY != 0 => false,
        Some(vm) => !w.settings.strict || w.tables.nc(vm.nc).is_some_and(|nc| nc.addr == p.source.ip(p.source_v6)),
        None => sight.filter.in_prefix(p.vni, source.ip(p.v6())),
    };
    if good {
        Ok(())
    } else {
        Err(DropReason::FilterSpoofed)
    }
}

/// What it is called here that an upper header is not whole.
fn malformed(packet: &[u8], v6: bool, why: DropReason) -> DropReason {
    if why != DropReason::NatL4Malformed {
        return why;
    }
    let proto = match v6 {
        true => ipv6::Packet::new_checked(packet)
            .ok()
            .and_then(|ip| ipv6::walk(ip.next_header(), ip.payload()).ok())
            .map(|c| c.upper.protocol),
        false => packet.get(9).copied(),
    };
    match proto {
        Some(protocol::TCP) => DropReason::FilterTcpMalformed,
        _ => DropReason::FilterL4Malformed,
    }
}

/// Flags that exclude each other, none at all, data in a SYN.
fn check_tcp(packet: &[u8], l4: &L4) -> Result<(), DropReason> {
    if l4.proto != protocol::TCP || l4.later() {
        return Ok(());
    }
    let head = packet.get(l4.at..l4.len).unwrap_or(&[]);
    let (Some(flags), Some(offset)) = (head.get(13), head.get(12)) else { return Err(DropReason::FilterTcpMalformed) };
    let ends = flags & (tcp::SYN | tcp::FIN | tcp::RST);
    let alone = ends.count_ones() <= 1 && (matches!(ends, tcp::SYN | tcp::RST) || flags & tcp::ACK != 0);
    let data = head.len() > usize::from(offset >> 4) * 4 || l4.piece.is_some();
    if !alone || (flags & (tcp::SYN | tcp::ACK) == tcp::SYN && data) {
        return Err(DropReason::FilterTcpMalformed);
    }
    Ok(())
}

/// What the VPCs of both ends say, as far as they have groups.
fn policy<R: Recorder>(w: &Work<'_, R>, p: &Packet) -> u64 {
    sum((p.vni, policy_of(w.tables, &p.tenant)), (p.dst_vpc().vni, policy_of(w.tables, p.dst_vpc())))
}

/// The POLICY word of a VPC that has groups, else 0.
pub(crate) fn policy_of(tables: &tables::Tables, t: &tables::Tenant) -> u64 {
    if t.key & TENANT_FILTERED != 0 {
        tables.policy(t)
    } else {
        0
    }
}

/// What both VPCs say together: flags, and the sum of their epochs, so that a change of either is seen.
pub(crate) fn sum((vni, near): (Vni, u64), (other, far): (Vni, u64)) -> u64 {
    if vni == other {
        return near & 0xffff_ffff;
    }
    (near | far) & 0xffff | u64::from(epoch(near).wrapping_add(epoch(far))) << abi::POLICY_EPOCH_SHIFT
}

/// The service that a packet asks for as the first of its connection.
pub(crate) fn first_service(pair: &Pair<'_>, ports: (u16, u16)) -> u32 {
    let l4 = &pair.l4;
    match l4.icmp {
        Icmp::None => filter::service(l4.proto, ports.1),
        _ => {
            let at = |i: usize| pair.packet.get(l4.at + i).copied().unwrap_or(0);
            filter::icmp_service(l4.proto, at(0), at(1))
        }
    }
}

/// The service of a session's first packet, from its key; `query`: the far port of an ICMP session, 0 for echo.
pub(crate) fn service_of(proto: u8, port: u16, query: u16) -> u32 {
    match proto {
        protocol::ICMP if query != 0 => filter::icmp_service(proto, query as u8, 0),
        protocol::ICMP => filter::icmp_service(proto, icmpv4::kind::ECHO, 0),
        protocol::ICMPV6 => filter::icmp_service(proto, wire::icmpv6::kind::ECHO, 0),
        _ => filter::service(proto, port),
    }
}

/// The service of what answers it; `port`: the one that the first packet came from.
fn reply_service(proto: u8, port: u16) -> u32 {
    match proto {
        protocol::ICMP => filter::icmp_service(proto, icmpv4::kind::ECHO_REPLY, 0),
        protocol::ICMPV6 => filter::icmp_service(proto, wire::icmpv6::kind::ECHO_REPLY, 0),
        _ => filter::service(proto, port),
    }
}

fn reason(deny: Deny) -> DropReason {
    match deny {
        Deny::Egress => DropReason::FilterEgress,
        Deny::Ingress => DropReason::FilterIngress,
        Deny::Unnamed => DropReason::ExtHeaderRefused,
    }
}

/// Asks the rules whether a connection may begin; `count`: for the rules that decide.
pub(crate) fn evaluate<R: Recorder>(
    w: &mut Work<'_, R>,
    sight: SessionView<'_>,
    p: &Packet,
    query: RuleQuery,
    count: bool,
) -> Result<Permit, DropReason> {
    let verdict = sight.filter.judge(query.from, query.to, query.service);
    settle(w, sight, p, (query, verdict), count)
}

/// What the rules have said holds: it is told and counted.
fn settle<R: Recorder>(
    w: &mut Work<'_, R>,
    sight: SessionView<'_>,
    p: &Packet,
    (query, verdict): (RuleQuery, filter::Verdict<'_>),
    count: bool,
) -> Result<Permit, DropReason> {
    let RuleQuery { from, to, port, service } = query;
    if R::ON {
        note(w, p, &verdict);
    } else if count {
        verdict.count();
    }
    match verdict.deny {
        None if verdict.stateless() => Ok(Permit::Stateless),
        None => Ok(Permit::Stateful),
        Some(deny) => {
            sight.connections.refused(&crate::Refused { from, to, port, service, verdict, now: w.now });
            Err(reason(deny))
        }
    }
}

/// A packet of a connection: its session is judged, or begins.
fn with_session<R: Recorder>(
    w: &mut Work<'_, R>,
    sight: SessionView<'_>,
    p: &Packet,
    pair: &mut Pair<'_>,
) -> Result<(), Verdict> {
    let l4 = &mut pair.l4;
    // A packet may pass two pairs of a node: its fragments are put together on each.
    let place = Vni(p.vni.0 | u32::from(pair.server == Some(Direction::In)) << 24);
    let overlap = |why, l4: &L4, sight: SessionView<'_>| match sight.contradicts(place, l4) {
        true => DropReason::FilterFragmentOverlap,
        false => why,
    };
    sight.first_fits(Some(place), l4, w.now).map_err(|why| overlap(why, l4, sight))?;
    let ports = match l4.later() {
        true => {
            if p.known().is_none() && handover::wanted(sight, p, false) && !sight.knows_first(Some(place), l4) {
                return Err(DropReason::HandoverFailed.into());
            }
            let known = p.known().map_or_else(|| sight.later_ports(Some(place), l4, pair.frame.data(), w.now), Ok);
            let (ports, upper) = known.map_err(|why| overlap(why, l4, sight))?;
            l4.proto = upper;
            ports
        }
        false => l4.ports_of(Direction::Out),
    };
    let (pair, l4) = (&*pair, &pair.l4);
    let (key, direction) = key(l4, (pair.from, pair.to), pair.server, ports).ok_or(DropReason::SessionFault)?;
    if let Some(states) = sight.states {
        connection::judge(w, sight, p, pair, states, (&key, direction), ports)?;
    } else {
        by_session(w, sight, p, pair, (key, direction), ports)?;
    }
    if l4.piece.is_some_and(|piece| piece.offset == 0) {
        sight
            .first_ports(Some(place), l4, (pair.frame.ifindex, p.index, w.now), &mut w.queued)
            .map_err(|why| overlap(why, l4, sight))?;
    }
    Ok(())
}

/// The session of a packet is judged, or begins.
fn by_session<R: Recorder>(
    w: &mut Work<'_, R>,
    sight: SessionView<'_>,
    p: &Packet,
    pair: &Pair<'_>,
    (key, direction): (PairKey, Direction),
    ports: (u16, u16),
) -> Result<(), DropReason> {
    let found = match &p.prefetched {
        Some((_, candidates)) => sight.guard.find_pair_at(candidates, &key),
        None => sight.guard.find_pair(&key),
    };
    match found {
        Some(session) if keep(w, sight, p, pair, (session, direction))? => Ok(()),
        _ => begin(w, sight, p, pair, (key, direction), ports),
    }
}

/// The session of a packet is judged. False: it is gone.
fn keep<R: Recorder>(
    w: &mut Work<'_, R>,
    sight: SessionView<'_>,
    p: &Packet,
    pair: &Pair<'_>,
    (session, direction): (SessionRef, Direction),
) -> Result<bool, DropReason> {
    if !renew(w, sight, p, pair, session)? || !sight.judge(session, direction, &pair.l4, pair.packet, w.now)? {
        return Ok(false);
    }
    if R::ON {
        explain(w, sight, p, pair, session);
    }
    Ok(true)
}

/// The key of a packet between two ends, and its direction.
fn key(l4: &L4, (from, to): (Side, Side), wire: Option<Direction>, ports: (u16, u16)) -> Option<(PairKey, Direction)> {
    let echo = l4.icmp != Icmp::None || matches!(l4.proto, protocol::ICMP | protocol::ICMPV6);
    if let Some(direction) = wire {
        let (server, remote) = match direction {
            Direction::Out => (from, to),
            Direction::In => (to, from),
        };
        let ports = if direction == Direction::In && !echo { (ports.1, ports.0) } else { ports };
        let key = PairKey::of_server(l4.proto, server.vni?, server.addr, remote.addr, ports)?;
        return Some((key, direction));
    }
    let end = |side: Side, port| (side.vni.unwrap_or_default(), side.addr, port);
    PairKey::new(l4.proto, end(from, ports.0), end(to, ports.1), echo)
}

/// The two ends of a session, who began it first, and the service that it was begun for.
fn beginning(sight: SessionView<'_>, session: SessionRef) -> RuleQuery {
    let record = sight.guard.record(session);
    let direction = if record.from_outside() { Direction::In } else { Direction::Out };
    first_of(&record.inner(), Some(record.outer().vni_bits()), direction)
}

/// Who began a session of this inner key with whom, for which service; `other`: the VNI of the remote end, none outside; 0 beyond a
/// wire, where rules take it for one of the server's VPC.
fn first_of(inner: &conntrack::InnerKey, other: Option<Vni>, direction: Direction) -> RuleQuery {
    let low = Side { vni: Some(inner.vni()), addr: inner.vm() };
    let high = Side { vni: other.map(|vni| if vni == Vni(0) { inner.vni() } else { vni }), addr: inner.remote() };
    let (from, to, (port, at)) = match direction {
        Direction::Out => (low, high, (inner.vm_port(), inner.remote_port())),
        Direction::In => (high, low, (inner.remote_port(), inner.vm_port())),
    };
    RuleQuery { from, to, port, service: service_of(inner.proto(), at, inner.remote_port()) }
}

/// A session of older rules is judged again; one that they no longer allow ends. False: it ended because they no longer want it
/// remembered, and the packet is to be asked about by itself.
fn renew<R: Recorder>(
    w: &mut Work<'_, R>,
    sight: SessionView<'_>,
    p: &Packet,
    pair: &Pair<'_>,
    session: SessionRef,
) -> Result<bool, DropReason> {
    if sight.current(session, pair.policy) {
        return Ok(true);
    }
    match evaluate(w, sight, p, beginning(sight, session), false) {
        Ok(Permit::Stateful) => {
            sight.connections.tracker().stamp(session, epoch(pair.policy));
            Ok(true)
        }
        other => {
            sight.end(session, w.now);
            other.map(|_| false)
        }
    }
}

/// What a packet that begins no connection asks for, if rules without state let it go on by itself.
pub(crate) fn alone(sight: SessionView<'_>, pair: &Pair<'_>, ports: (u16, u16)) -> Option<u32> {
    let l4 = &pair.l4;
    let (query, other) = match (l4.later(), l4.proto) {
        (false, _) => (first_service(pair, ports), None),
        // The first fragment went on, as request or as reply.
        (true, protocol::ICMP | protocol::ICMPV6) => (service_of(l4.proto, 0, 0), Some(reply_service(l4.proto, 0))),
        (true, _) => (filter::service(l4.proto, ports.1), None),
    };
    let services = [Some(query), other].into_iter().flatten();
    services.filter(|_| sight.filter.has_stateless()).find(|s| sight.filter.judge(pair.from, pair.to, *s).stateless())
}

/// A packet that seems to have no session: it begins one, or goes on by itself. That it has none is a reader's word, which may miss a
/// session of the moment: before anything else becomes of the packet than a new session, whose making finds another of its
/// key, the miss is made certain.
fn begin<R: Recorder>(
    w: &mut Work<'_, R>,
    sight: SessionView<'_>,
    p: &Packet,
    pair: &Pair<'_>,
    (key, direction): (PairKey, Direction),
    ports: (u16, u16),
) -> Result<(), DropReason> {
    let elsewhere = handover::wanted(sight, p, opens(&pair.l4, pair.packet));
    let service = match pair.l4.later() {
        false if begins(&pair.l4, pair.packet, pair.policy) => Ok(first_service(pair, ports)),
        later => {
            let why = if later { DropReason::FragmentUnknown } else { DropReason::SessionStray };
            alone(sight, pair, ports).ok_or(why)
        }
    };
    let verdict = service.map(|service| {
        let query = pair.query(service, ports.0);
        (query, sight.filter.judge(query.from, query.to, query.service))
    });
    let (query, verdict) = match verdict {
        Ok((query, verdict)) if verdict.deny.is_none() && !verdict.stateless() && !elsewhere => (query, verdict),
        other => {
            let missed = sight.connections.tracker().find_pair(&key);
            return match missed {
                Some(session) if keep(w, sight, p, pair, (session, direction))? => Ok(()),
                // What rules without state let go on needs no session, whoever has one.
                _ if elsewhere && !other.is_ok_and(|(_, verdict)| verdict.deny.is_none() && verdict.stateless()) => {
                    Err(DropReason::HandoverFailed)
                }
                _ => settle(w, sight, p, other?, true).map(|_| ()),
            };
        }
    };
    let made = sight.create(&pair.session(&key, direction), w.now);
    if let Ok(Made::Found(session)) = made {
        // Another packet made it meanwhile, or the reader missed it. Should it be gone by now, the rules have allowed the packet.
        return keep(w, sight, p, pair, (session, direction)).map(|_| ());
    }
    settle(w, sight, p, (query, verdict), true)?;
    if let (true, Made::New(session)) = (R::ON, made?) {
        let state = sight.guard.record(session).state().name();
        w.note(p, Stage::Filter, Event::Pair { key: format!("{:?}", key.inner()), state, begun: true });
    }
    Ok(())
}

/// Whether an ICMP error is about a connection that is known; it goes to whom the quoted packet came from.
fn related(sight: SessionView<'_>, pair: &Pair<'_>) -> Result<bool, DropReason> {
    let (q, seq) = quote_of(pair.packet, &pair.l4)?;
    if single(&q) {
        return Ok(false);
    }
    let known = |key: PairKey, sent| match sight.states {
        Some(states) => states.knows(&(&key).into()),
        None => sight.connections.tracker().related(&Embedded::OfPair { key, sent, seq }).is_some(),
    };
    if let Some(direction) = pair.server {
        let (src, dst) = (q.src.ip(q.v6), q.dst.ip(q.v6));
        let echo = q.icmp != Icmp::None;
        let vni = pair.from.vni.unwrap_or_default();
        // What the server gets to hear of it sent, and the other way round.
        let (sent, key) = match direction {
            Direction::In => (Direction::Out, PairKey::of_server(q.proto, vni, src, dst, (q.src_port, q.dst_port))),
            Direction::Out => {
                let ports = if echo { (q.src_port, q.dst_port) } else { (q.dst_port, q.src_port) };
                (Direction::In, PairKey::of_server(q.proto, vni, dst, src, ports))
            }
        };
        return Ok(key.is_some_and(|key| known(key, sent)));
    }
    let end = |side: Side, addr: IpAddr, port| (side.vni.unwrap_or_default(), addr, port);
    let from = end(pair.to, q.src.ip(q.v6), q.src_port);
    let to = end(pair.from, q.dst.ip(q.v6), q.dst_port);
    let Some((key, sent)) = PairKey::new(q.proto, from, to, q.icmp != Icmp::None) else { return Ok(false) };
    Ok(known(key, sent))
}

/// Whether the rules let a session's connection to or from the Internet begin, which nat makes or renews. Translation needs the
/// session; so rules without state are asked about both directions now instead of about each packet.
pub(crate) fn permits<R: Recorder>(
    w: &mut Work<'_, R>,
    sight: SessionView<'_>,
    p: &Packet,
    inner: &conntrack::InnerKey,
    direction: Direction,
    count: bool,
) -> Result<(), DropReason> {
    let first = first_of(inner, None, direction);
    if evaluate(w, sight, p, first, count)? == Permit::Stateless {
        evaluate(w, sight, p, first.answer(), count)?;
    }
    Ok(())
}

/// Whether rules still allow a session and want it remembered: what the sweep asks. `other`: as for [`first_of`].
pub(crate) fn stands(
    rules: &filter::Filter,
    inner: &conntrack::InnerKey,
    other: Option<Vni>,
    direction: Direction,
) -> bool {
    let first = first_of(inner, other, direction);
    let judge = |a: RuleQuery| rules.judge(a.from, a.to, a.service);
    let (verdict, translated) = (judge(first), other.is_none());
    verdict.deny.is_none() && (!verdict.stateless() || translated && judge(first.answer()).deny.is_none())
}

#[cold]
pub(crate) fn note<R: Recorder>(w: &mut Work<'_, R>, p: &Packet, verdict: &filter::Verdict<'_>) {
    let decided = [
        (RuleDirection::Egress, verdict.egress, Deny::Egress),
        (RuleDirection::Ingress, verdict.ingress, Deny::Ingress),
    ];
    for (direction, found, deny) in decided {
        let rule = found.and_then(|(g, i)| Some((g.spec().name.to_string(), i, g.rule(i)?.to_string())));
        match rule {
            Some(rule) if found.is_some_and(|r| verdict.lacks_name(r)) => {
                w.note(p, Stage::Filter, Event::Unnamed { direction: direction.name(), rule });
            }
            rule if rule.is_some() || verdict.deny == Some(deny) => {
                w.note(
                    p,
                    Stage::Filter,
                    Event::Rule { direction: direction.name(), rule, allowed: verdict.deny != Some(deny) },
                );
            }
            _ => {}
        }
    }
    if verdict.deny.is_none() && verdict.egress.is_none() && verdict.ingress.is_none() {
        w.note(p, Stage::Filter, Event::NoGroups);
    }
}

/// Tells of a session that goes on, and which rules it began by.
#[cold]
fn explain<R: Recorder>(w: &mut Work<'_, R>, sight: SessionView<'_>, p: &Packet, pair: &Pair<'_>, session: SessionRef) {
    let record = sight.guard.record(session);
    let (key, state) = (format!("{:?}", record.inner()), record.state().name());
    w.note(p, Stage::Filter, Event::Pair { key, state, begun: false });
    if sight.current(session, pair.policy) {
        let first = beginning(sight, session);
        let verdict = sight.filter.judge(first.from, first.to, first.service);
        note(w, p, &verdict);
    }
}

#[cfg(test)]
#[path = "pair_tests.rs"]
mod tests;
