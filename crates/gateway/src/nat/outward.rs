// SPDX-License-Identifier: Apache-2.0
//! From a VM to the Internet: the session of a packet, or a new one; its public endpoint; hairpins.

use abi::{flow_hash_v4, flow_hash_v6, DropReason, Vni, POLICY_FILTER};
use conntrack::nat::{Flow, PublicEndpoint, Refusal};
use conntrack::{Direction, InnerKey, NewSession, Owner, SessionRef};
use wire::{ethernet, protocol, tcp};

use super::translate::{End, Endpoint};
use super::{inner_key, inward, outer_key, related, send, translate};
use crate::connections::{epoch, picks_up, Made, SessionView};
use crate::framing::plain;
use crate::handover;
use crate::l4::{Icmp, L4};
use crate::packet::{Addr, Kind, Packet};
use crate::record::Recorder;
use crate::stages::{meter, rewrite};
use crate::work::Work;
use crate::{pair, Frame, Verdict};

/// The inner IP packet.
pub(crate) fn ip_of<'a>(p: &Packet, f: &'a Frame<'_>) -> &'a [u8] {
    p.inner_frame(f).get(ethernet::HEADER_LEN..).unwrap_or(&[])
}

/// Starts to load what tells whether the packet belongs to a session: the index, the POLICY word, the notes of its VM.
#[inline(always)]
pub(crate) fn prefetch<R: Recorder>(w: &Work<'_, R>, p: &mut Packet, f: &Frame<'_>) {
    let Some(sight) = w.sessions else { return };
    if p.inner_error.is_some() || !matches!(p.kind, Kind::Ipv4 | Kind::Ipv6) {
        return;
    }
    w.tables.prefetch_line(w.tables.tenant_record(p.tenant.id()));
    let Ok(l4) = L4::read(ip_of(p, f), p.v6()) else { return };
    let Some(key) = key_of(p.vni, &l4, l4.ports_of(Direction::Out)) else { return };
    let candidates = sight.guard.candidates_inner(&key);
    sight.guard.prefetch(&candidates);
    if !l4.v6 {
        sight.connections.nat.translator.prefetch_vm(p.vni, l4.src.as_v4());
    }
    p.prefetched = Some((l4, candidates));
}

/// Starts to load what a new session will need; the packet, which has none, is routed meanwhile.
#[inline(always)]
pub(crate) fn prefetch_more<R: Recorder>(w: &Work<'_, R>, sight: SessionView<'_>, p: &Packet) {
    let Some((l4, _)) = &p.prefetched else { return };
    if l4.v6 {
        return w.tables.prefetch_vm6(p.vni, l4.src.halves());
    }
    w.tables.prefetch_vm4(p.vni, l4.src.as_v4());
    sight.connections.nat.translator.prefetch(p.vni, l4.proto, l4.src.as_v4(), l4.src_port);
    sight.connections.tracker.prefetch_vm(p.vni, l4.src.ip(false));
}

/// The session that a packet belongs to, if it is one of the present policy and the packet tells it by itself.
pub(crate) fn established_session(sight: SessionView<'_>, p: &Packet, f: &Frame<'_>) -> Option<SessionRef> {
    let l4 = read(p, f).ok()?;
    if l4.piece.is_some() || matches!(l4.icmp, Icmp::Error | Icmp::Other) {
        return None;
    }
    let key = key_of(p.vni, &l4, l4.ports_of(Direction::Out))?;
    let session = match &p.prefetched {
        Some((_, candidates)) => sight.guard.find_inner_at(candidates, &key),
        None => sight.inner(&key),
    }?;
    sight.current(session, p.policy).then_some(session)
}

/// The headers of a packet as it came out of its tunnel.
#[inline(always)]
fn read(p: &Packet, f: &Frame<'_>) -> Result<L4, DropReason> {
    p.prefetched.map_or_else(|| L4::read(ip_of(p, f), p.v6()), |(l4, _)| Ok(l4))
}

fn key_of(vni: Vni, l4: &L4, ports: (u16, u16)) -> Option<InnerKey> {
    inner_key(vni, l4.proto, l4.src.ip(l4.v6), l4.dst.ip(l4.v6), ports)
}

fn find(sight: SessionView<'_>, vni: Vni, l4: &L4, ports: (u16, u16)) -> Option<SessionRef> {
    sight.inner(&key_of(vni, l4, ports)?)
}

/// What a new session needs of the translator, and then its outer key's buckets begin to load: a pass over the batch before
/// [`run`], which makes the session. Packets that need no new session, or need more than this, are left to `run`.
pub(crate) fn prepare<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, f: &Frame<'_>) -> Result<(), Verdict> {
    let (Some(sight), Some((l4, _))) = (w.sessions, p.prefetched) else { return Ok(()) };
    if p.ttl <= 1 || l4.piece.is_some() || !matches!(l4.icmp, Icmp::None | Icmp::Request) || covers_addresses(&l4) {
        return Ok(());
    }
    let ports = l4.ports_of(Direction::Out);
    if find(sight, p.vni, &l4, ports).is_some() || handover::wanted(sight, p, opens(&l4, ip_of(p, f))) {
        return Ok(());
    }
    let public = translated(w, sight, p, ip_of(p, f), &l4, ports)?;
    if let Some(key) = outer_key(l4.proto, public.addr, l4.dst.ip(l4.v6), (public.port, ports.1)) {
        sight.guard.prefetch(&sight.guard.candidates_outer(&key));
    }
    p.public = Some(public);
    Ok(())
}

/// A packet whose way is the Internet. `Ok`: it came in again by a public address of ours and goes on to be located.
pub(crate) fn run<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, f: &mut Frame<'_>) -> Result<(), Verdict> {
    let sight = w.sessions.ok_or(DropReason::ScopeInternet)?;
    if p.ttl <= 1 {
        return Err(DropReason::TtlExpired.into());
    }
    let packet = ip_of(p, f);
    let l4 = read(p, f)?;
    let session = match l4.icmp {
        Icmp::Other => return Err(DropReason::NatProtocol.into()),
        _ if covers_addresses(&l4) => return Err(DropReason::NatProtocol.into()),
        Icmp::Error => match related::outward(sight, p.vni, packet, &l4) {
            Err(DropReason::NatIcmpUnrelated) if handover::wanted(sight, p, false) => {
                return Err(DropReason::HandoverFailed.into())
            }
            other => other?,
        },
        _ => session_of(w, sight, p, f, &l4)?,
    };
    p.session = session.0;
    let public = sight.found(session).outer;
    let to = Endpoint { addr: Addr::of(public.public()), port: public.public_port() };
    if R::ON {
        super::note(w, p, sight, session);
    }
    let ours = match l4.v6 {
        true => w.tables.public6(l4.dst.halves()),
        false => w.tables.public4(l4.dst.as_v4()),
    };
    if ours.is_some() {
        sight.exclude(session);
        meter::vpc(w, p)?;
        hairpin(w, p, f, &l4, to)?;
        return inward::run(w, p, f);
    }
    let flow = leaving(&l4, ip_of(p, f), to);
    let path = send::path(w, p, f, &l4, flow)?;
    meter::vpc(w, p)?;
    let tos = rewrite::new_tos(p, &w.settings).inner;
    let sent = send::out(w, p, f, &l4, to, tos, path)?;
    w.stats.nat();
    Err(sent)
}

/// Hash of the flow as it leaves.
fn leaving(l4: &L4, packet: &[u8], to: Endpoint) -> u64 {
    let ports = l4.flow_ports(packet);
    let ports = if ports != 0 && l4.has_ports() { u32::from(to.port) << 16 | ports & 0xffff } else { ports };
    flow(l4.v6, to.addr, l4.dst, l4.next, ports)
}

pub(crate) fn flow(v6: bool, src: Addr, dst: Addr, proto: u8, ports: u32) -> u64 {
    match v6 {
        true => flow_hash_v6(src.halves(), dst.halves(), proto, ports),
        false => flow_hash_v4(src.as_v4(), dst.as_v4(), proto, ports),
    }
}

/// The session that the packet belongs to, judged; or a new one.
fn session_of<R: Recorder>(
    w: &mut Work<'_, R>,
    sight: SessionView<'_>,
    p: &mut Packet,
    f: &Frame<'_>,
    l4: &L4,
) -> Result<SessionRef, DropReason> {
    let packet = ip_of(p, f);
    sight.first_fits(Some(p.vni), l4, w.now)?;
    let mut l4 = *l4;
    let ports = match l4.later() {
        true => {
            if p.known().is_none() && handover::wanted(sight, p, false) && !sight.knows_first(Some(p.vni), &l4) {
                return Err(DropReason::HandoverFailed);
            }
            let (ports, upper) = p.known().map_or_else(|| sight.later_ports(Some(p.vni), &l4, f.data(), w.now), Ok)?;
            l4.proto = upper;
            ports
        }
        false => l4.ports_of(Direction::Out),
    };
    let l4 = &l4;
    if let Some(public) = p.public.take() {
        return create(sight, p, packet, l4, ports, public, w.now);
    }
    let mut found = find(sight, p.vni, l4, ports);
    let elsewhere = found.is_none() && handover::wanted(sight, p, opens(l4, packet));
    if elsewhere {
        // A reader may miss a session of the moment: nobody else has that.
        found = key_of(p.vni, l4, ports).and_then(|key| sight.connections.tracker.find_inner(&key));
    }
    if let Some(session) = found {
        let good = sight.current(session, p.policy) || renew(w, sight, p, session)?;
        if !good || !sight.judge(session, Direction::Out, l4, packet, w.now)? {
            found = None;
        }
    }
    let session = match found {
        Some(session) => session,
        None if elsewhere => return Err(DropReason::HandoverFailed),
        None if l4.later() => return Err(DropReason::FragmentUnknown),
        None => {
            let public = translated(w, sight, p, packet, l4, ports)?;
            create(sight, p, packet, l4, ports, public, w.now)?
        }
    };
    if l4.piece.is_some_and(|piece| piece.offset == 0) {
        sight.first_ports(Some(p.vni), l4, (f.ifindex, p.index, w.now), &mut w.queued)?;
    }
    Ok(session)
}

/// Judges a session of an older policy again, by the rules of the VM's groups first. `Ok(false)`: it is gone.
pub(crate) fn renew<R: Recorder>(
    w: &mut Work<'_, R>,
    sight: SessionView<'_>,
    p: &Packet,
    session: SessionRef,
) -> Result<bool, DropReason> {
    if p.policy & POLICY_FILTER != 0 {
        let record = sight.guard.record(session);
        let (inner, from_outside) = (record.inner(), record.from_outside());
        let direction = if from_outside { Direction::In } else { Direction::Out };
        if let Err(why) = pair::permits(w, sight, p, &inner, direction, false) {
            sight.end(session, w.now);
            return Err(why);
        }
    }
    Ok(sight.renew(session, p.policy, w.now))
}

/// What a packet carries says of its IPv4 addresses that they have not changed, and no one on the way can say otherwise (RFC 4302
/// §3.3.3.1.1): translated, it would be refused by its receiver.
pub(crate) fn covers_addresses(l4: &L4) -> bool {
    !l4.v6 && l4.proto == protocol::AUTHENTICATION
}

/// A packet that may begin a session.
pub(crate) fn begins(l4: &L4, packet: &[u8], policy: u64) -> bool {
    if l4.proto != protocol::TCP {
        return !matches!(l4.icmp, Icmp::Reply | Icmp::QueryReply);
    }
    let flags = packet.get(l4.at + 13).copied().unwrap_or(0) & (tcp::SYN | tcp::ACK | tcp::RST | tcp::FIN);
    flags == tcp::SYN || picks_up(policy) && flags & tcp::ACK != 0 && flags & (tcp::SYN | tcp::RST) == 0
}

/// A packet that begins a connection, whoever knew one like it: a plain SYN.
pub(crate) fn opens(l4: &L4, packet: &[u8]) -> bool {
    let flags = packet.get(l4.at + 13).copied().unwrap_or(0) & (tcp::SYN | tcp::ACK | tcp::RST | tcp::FIN);
    l4.proto == protocol::TCP && !l4.later() && flags == tcp::SYN
}

/// The public endpoint of a new session from inside.
fn translated<R: Recorder>(
    w: &mut Work<'_, R>,
    sight: SessionView<'_>,
    p: &Packet,
    packet: &[u8],
    l4: &L4,
    ports: (u16, u16),
) -> Result<PublicEndpoint, DropReason> {
    if !begins(l4, packet, p.policy) {
        return Err(DropReason::SessionStray);
    }
    let generation = p.tenant.generation();
    let source = match l4.v6 {
        true => w.tables.vm6(p.vni, l4.src.halves(), generation),
        false => w.tables.vm4(p.vni, l4.src.as_v4(), generation),
    };
    // A site is no VM; that its address is behind a line stage tenant has asked.
    let of_site = p.came.is_some() && p.guest.is_none();
    if !of_site && source.is_none_or(|vm| vm.flags & abi::VM_FLAG_GATEWAY != 0) {
        return Err(DropReason::NatSourceUnknown);
    }
    let (vm_addr, remote) = (l4.src.ip(l4.v6), l4.dst.ip(l4.v6));
    if w.settings.is_vtep(l4.dst, l4.v6) || sight.connections.nat.tunnel_ends().contains(&remote) {
        return Err(DropReason::NatTunnelEnd);
    }
    let inner = inner_key(p.vni, l4.proto, vm_addr, remote, ports).ok_or(DropReason::SessionFault)?;
    if p.policy & POLICY_FILTER != 0 {
        pair::permits(w, sight, p, &inner, Direction::Out, true)?;
    }
    let flow = Flow { vni: p.vni, proto: l4.proto, vm_addr, vm_port: ports.0, remote, remote_port: ports.1 };
    if l4.icmp == Icmp::Query && !sight.connections.nat.translator.config().has_own_address(&flow) {
        return Err(DropReason::NatProtocol);
    }
    sight.connections.nat.translator.outbound(&flow, w.now).map_err(reason)
}

/// A new session from inside over a public endpoint, which it holds from now on. If another packet has made it meanwhile, this
/// one belongs to it.
fn create(
    sight: SessionView<'_>,
    p: &Packet,
    packet: &[u8],
    l4: &L4,
    ports: (u16, u16),
    public: PublicEndpoint,
    now: u64,
) -> Result<SessionRef, DropReason> {
    let (vm_addr, remote) = (l4.src.ip(l4.v6), l4.dst.ip(l4.v6));
    let inner = inner_key(p.vni, l4.proto, vm_addr, remote, ports).ok_or(DropReason::SessionFault)?;
    let outer = outer_key(l4.proto, public.addr, remote, (public.port, ports.1)).ok_or(DropReason::SessionFault)?;
    let new = NewSession {
        inner,
        outer,
        owner: owner(sight, public, l4.proto),
        direction: Direction::Out,
        view: l4.view(packet),
        bytes: l4.len as u32,
        epoch: epoch(p.policy),
        pick_up: picks_up(p.policy),
    };
    match sight.create(&new, now)? {
        Made::New(session) => Ok(session),
        Made::Found(session) => {
            sight.judge(session, Direction::Out, l4, packet, now)?;
            Ok(session)
        }
    }
}

/// Who translates.
pub(crate) fn owner(sight: SessionView<'_>, public: PublicEndpoint, proto: u8) -> Owner {
    match public.addr.is_ipv6() {
        true => Owner::None,
        false => sight.connections.nat.translator.config().owner(public, proto),
    }
}

fn reason(refusal: Refusal) -> DropReason {
    match refusal {
        Refusal::NotServed | Refusal::SourceOutside => DropReason::NatNoPool,
        Refusal::ProtocolUnserved => DropReason::NatProtocol,
        Refusal::PoolDry => DropReason::NatPortsExhausted,
        Refusal::TenantPorts | Refusal::VmPorts => DropReason::NatPortQuota,
    }
}

/// The packet leaves its tunnel where it lies and is plain, with its public source.
fn hairpin<R: Recorder>(
    w: &mut Work<'_, R>,
    p: &mut Packet,
    f: &mut Frame<'_>,
    l4: &L4,
    to: Endpoint,
) -> Result<(), DropReason> {
    let tos = rewrite::new_tos(p, &w.settings).inner;
    let at = f.offset as usize + p.inner as usize;
    let start = at + ethernet::HEADER_LEN;
    let packet = f.buffer.get_mut(start..start + l4.len).ok_or(DropReason::TxFailed)?;
    match l4.icmp {
        Icmp::Error => related::translate(packet, l4, End::Source, to)?,
        _ => translate::translate(packet, l4, End::Source, to),
    }
    translate::set_tos(packet, l4.v6, tos);
    f.offset = at as u32;
    f.len = (ethernet::HEADER_LEN + l4.len) as u32;
    p.hairpin = true;
    plain::enter(p, l4.v6, l4.dst, l4.len, tos, p.ttl);
    Ok(())
}

#[cfg(test)]
#[path = "outward_tests.rs"]
mod tests;
