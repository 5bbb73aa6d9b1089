// SPDX-License-Identifier: Apache-2.0
//! From the Internet to a VM: what is ours among plain packets, its session or a new one, its VPC. From there on it is
//! located, metered, rewritten and emitted like any packet to a VM.

use abi::{
    DropReason, Vni, POLICY_FILTER, POLICY_NAT, SCOPE_BLACKHOLE, SCOPE_INTERNET, SCOPE_LINE, SCOPE_LOCAL, SCOPE_NONE,
    SCOPE_PEER, SCOPE_REGION, VALUE_SCOPE_SHIFT,
};
use conntrack::nat::PublicEndpoint;
use conntrack::{Direction, NewSession, SessionRef};
use tables::Public;
use wire::ethernet;

use super::outward::{begins, covers_addresses, flow, ip_of, owner, renew};
use super::translate::{End, Endpoint};
use super::{inner_key, outer_key, related, translate};
use crate::connections::{epoch, picks_up, Made, SessionView};
use crate::l4::{Icmp, L4};
use crate::packet::{Addr, Packet};
use crate::record::Recorder;
use crate::work::Work;
use crate::{pair, Frame, Verdict};

/// Finds or makes the session and with it VPC and VM. `Ok`: the packet goes on to be located.
pub(crate) fn run<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, f: &mut Frame<'_>) -> Result<(), Verdict> {
    let sight = w.sessions.ok_or(DropReason::SessionFault)?;
    let packet = ip_of(p, f);
    let l4 = L4::read(packet, p.v6())?;
    let session = match l4.icmp {
        Icmp::Other => return Err(DropReason::NatUnsolicited.into()),
        _ if covers_addresses(&l4) => return Err(DropReason::NatUnsolicited.into()),
        Icmp::Error => {
            let session = related::inward(sight, packet, &l4)?;
            tenant_of(w, p, sight, session)?;
            session
        }
        _ => session_of(w, sight, p, f, &l4)?,
    };
    let inner = sight.found(session).inner;
    if p.hairpin {
        sight.exclude(session);
    }
    p.session = session.0;
    p.target = Addr::of(inner.vm());
    p.flow = arriving(&l4, ip_of(p, f), p.target, inner.vm_port());
    if !l4.v6 {
        p.vm_bucket = w.tables.vm4_bucket(p.vni, p.target.as_v4());
    }
    if R::ON {
        super::note(w, p, sight, session);
    }
    Ok(())
}

/// Hash of the flow as the VM gets it.
fn arriving(l4: &L4, packet: &[u8], vm: Addr, vm_port: u16) -> u64 {
    let ports = l4.flow_ports(packet);
    let ports = if ports != 0 && l4.has_ports() { ports & 0xffff_0000 | u32::from(vm_port) } else { ports };
    flow(l4.v6, l4.src, vm, l4.next, ports)
}

/// The VPC of a session. From here on drops are attributed.
fn tenant_of<R: Recorder>(
    w: &Work<'_, R>,
    p: &mut Packet,
    sight: SessionView<'_>,
    session: SessionRef,
) -> Result<(), DropReason> {
    enter_vpc(w, p, sight.found(session).inner.vni())
}

fn enter_vpc<R: Recorder>(w: &Work<'_, R>, p: &mut Packet, vni: Vni) -> Result<(), DropReason> {
    let tenant = w.tables.tenant(vni).ok_or(DropReason::NatUnsolicited)?;
    p.policy = w.tables.policy(&tenant);
    if p.policy & POLICY_NAT == 0 {
        return Err(DropReason::NatUnsolicited);
    }
    (p.vni, p.tenant, p.attributed) = (vni, tenant, true);
    Ok(())
}

/// The VPC's way to whom its answers are for must be the Internet, for a session of the present epoch proves just that: without a look
/// at the routes it would take packets of the VM where they no longer lead. What is inside does not come from outside.
fn answers_leave<R: Recorder>(w: &Work<'_, R>, p: &Packet, remote: Addr) -> Result<(), DropReason> {
    let value = match p.v6() {
        true => w.tables.route6(p.tenant.root6(), remote.halves()),
        false => w.tables.route4(p.tenant.root4(), remote.as_v4()),
    };
    Err(match value >> VALUE_SCOPE_SHIFT {
        SCOPE_INTERNET => return Ok(()),
        SCOPE_LOCAL | SCOPE_PEER => DropReason::InnerMartian,
        SCOPE_BLACKHOLE => DropReason::RouteBlackhole,
        SCOPE_LINE => DropReason::ScopeLine,
        SCOPE_REGION => DropReason::ScopeRegion,
        SCOPE_NONE => DropReason::RouteNone,
        _ => DropReason::TableFault,
    })
}

fn session_of<R: Recorder>(
    w: &mut Work<'_, R>,
    sight: SessionView<'_>,
    p: &mut Packet,
    f: &Frame<'_>,
    l4: &L4,
) -> Result<SessionRef, DropReason> {
    let packet = ip_of(p, f);
    sight.first_fits(None, l4, w.now)?;
    let mut l4 = *l4;
    let ports = match l4.later() {
        true => {
            let known = p.known().filter(|_| !p.hairpin);
            let ((src, dst), upper) = known.map_or_else(|| sight.later_ports(None, &l4, f.data(), w.now), Ok)?;
            l4.proto = upper;
            if l4.proto == wire::protocol::ICMP || l4.proto == wire::protocol::ICMPV6 {
                (src, dst)
            } else {
                (dst, src)
            }
        }
        false => l4.ports_of(Direction::In),
    };
    let l4 = &l4;
    let (public, remote) = (l4.dst.ip(l4.v6), l4.src.ip(l4.v6));
    let key = outer_key(l4.proto, public, remote, ports).ok_or(DropReason::SessionFault)?;
    let mut found = sight.outer(&key);
    if let Some(session) = found {
        tenant_of(w, p, sight, session)?;
        let current = sight.current(session, p.policy);
        if !current {
            answers_leave(w, p, l4.src)?;
        }
        let good = current || renew(w, sight, p, session)?;
        if !good || !sight.judge(session, Direction::In, l4, packet, w.now)? {
            p.attributed = false;
            found = None;
        }
    }
    let session = match found {
        Some(session) => session,
        None if l4.later() => return Err(DropReason::FragmentUnknown),
        None => begin(w, sight, p, packet, l4, ports)?,
    };
    if l4.piece.is_some_and(|piece| piece.offset == 0) {
        sight.first_ports(None, l4, (f.ifindex, p.index, w.now), &mut w.queued)?;
    }
    Ok(session)
}

/// A new session from outside, if the configuration lets one in.
fn begin<R: Recorder>(
    w: &mut Work<'_, R>,
    sight: SessionView<'_>,
    p: &mut Packet,
    packet: &[u8],
    l4: &L4,
    ports: (u16, u16),
) -> Result<SessionRef, DropReason> {
    let ours = match l4.v6 {
        true => w.tables.public6(l4.dst.halves()),
        false => w.tables.public4(l4.dst.as_v4()),
    };
    if ours != Some(Public::Accepts) || matches!(l4.icmp, Icmp::Reply | Icmp::QueryReply) {
        return Err(DropReason::NatUnsolicited);
    }
    let public = PublicEndpoint { addr: l4.dst.ip(l4.v6), port: ports.0 };
    // A mapping of Snat is for echo.
    if l4.icmp == Icmp::Query && owner(sight, public, l4.proto) != conntrack::Owner::Elastic {
        return Err(DropReason::NatUnsolicited);
    }
    let target = sight.connections.nat.translator.inbound(public, l4.proto).ok_or(DropReason::NatUnsolicited)?;
    let remote = l4.src.ip(l4.v6);
    let inner = inner_key(target.vni, l4.proto, target.vm_addr, remote, (target.vm_port, ports.1));
    let outer = outer_key(l4.proto, public.addr, remote, ports);
    let (Some(inner), Some(outer)) = (inner, outer) else { return Err(DropReason::SessionFault) };
    // What `inbound` gave is held until `create`, or given back here.
    let now = w.now;
    let release = |why| {
        sight.connections.nat.translator.undo(&super::binding(&inner, &outer), now);
        why
    };
    enter_vpc(w, p, target.vni).and_then(|()| answers_leave(w, p, l4.src)).map_err(release)?;
    if p.policy & POLICY_FILTER != 0 {
        let permitted = pair::permits(w, sight, p, &inner, Direction::In, begins(l4, packet, p.policy));
        permitted.map_err(release)?;
    }
    if !begins(l4, packet, p.policy) {
        return Err(release(DropReason::SessionStray));
    }
    let new = NewSession {
        inner,
        outer,
        owner: owner(sight, public, l4.proto),
        direction: Direction::In,
        view: l4.view(packet),
        bytes: l4.len as u32,
        epoch: epoch(p.policy),
        pick_up: picks_up(p.policy),
    };
    match sight.create(&new, w.now)? {
        Made::New(session) => Ok(session),
        Made::Found(session) => {
            sight.judge(session, Direction::In, l4, packet, w.now)?;
            Ok(session)
        }
    }
}

/// Gives the packet its private destination; the last step before it is rewritten.
pub(crate) fn translate<R: Recorder>(w: &Work<'_, R>, p: &Packet, f: &mut Frame<'_>) -> Result<(), DropReason> {
    let sight = w.sessions.ok_or(DropReason::SessionFault)?;
    let inner = sight.found(SessionRef(p.session)).inner;
    w.stats.nat();
    let to = Endpoint { addr: p.target, port: inner.vm_port() };
    let start = f.offset as usize + ethernet::HEADER_LEN;
    let end = f.offset as usize + p.inner_len as usize;
    let packet = f.buffer.get_mut(start..end).ok_or(DropReason::TxFailed)?;
    let l4 = L4::read(packet, p.v6())?;
    match l4.icmp {
        Icmp::Error => related::translate(packet, &l4, End::Destination, to),
        _ => {
            translate::translate(packet, &l4, End::Destination, to);
            Ok(())
        }
    }
}

#[cfg(test)]
#[path = "inward_tests.rs"]
mod tests;
