// SPDX-License-Identifier: Apache-2.0
//! ICMP errors towards the Internet: a packet inwards that is too big for the underlay, or whose TTL ends here.
//!
//! The source is the public address that the packet was for, so that no address behind it shows; it leaves by the port that
//! the packet came by, to whom it came from. If that is a VM (a hairpin), it is told in its tunnel, and the quote has the
//! addresses and ports that the VM used.

use abi::{DropReason, Stage, TENANT_ICMP_OFF};
use conntrack::Direction;
use wire::{ethernet, protocol};

use super::outer_key;
use super::outward::{flow, ip_of};
use super::translate::{self, End, Endpoint};
use crate::answer::{carrier_back, path_back, Back};
use crate::frame::{Frame, Generated};
use crate::icmp::{self, Message};
use crate::l4::L4;
use crate::packet::{Addr, Packet};
use crate::record::Recorder;
use crate::turns::Classes;
use crate::work::Work;

/// Sends the error about a packet inwards, or says why not.
pub(crate) fn error<R: Recorder>(
    w: &mut Work<'_, R>,
    p: &Packet,
    f: &Frame<'_>,
    reason: DropReason,
    message: Message,
) -> Result<(), &'static str> {
    if !matches!(reason, DropReason::TooBig | DropReason::TtlExpired) || !p.attributed {
        return Err("the Internet is told of sizes and hops alone");
    }
    if w.tables.tenant_ident(&p.tenant) & TENANT_ICMP_OFF != 0 {
        return Err("switched off for the VPC");
    }
    if p.hairpin {
        return tell_vm(w, p, f, message);
    }
    let eth = f.data().first_chunk::<{ ethernet::HEADER_LEN }>().ok_or("no packet")?;
    let eth = ethernet::Frame::new_unchecked(eth);
    let source = ethernet::Repr { dst: eth.src(), src: eth.dst(), ethertype: 0 };
    let packet = ip_of(p, f);
    let host = icmp::quotable(packet, p.v6())?;
    let own = match p.v6() {
        true => Addr::v6(wire::be::u128(packet, 24)),
        false => Addr::v4(wire::be::u32(packet, 16)),
    };
    if !w.icmp_allowed(&p.tenant) {
        return Err("the VPC's limit of ICMP errors is reached");
    }
    let quote = icmp::quote(packet, p.v6());
    let mut data = w.output.buffer(icmp::error_len(quote.len(), p.v6()));
    icmp::build(&mut data, source, own, host, message, quote, p.v6()).ok_or("no room")?;
    w.generate(
        p,
        Stage::Emit,
        Generated { data, ifindex: f.ifindex, cause: p.index as usize, classes: Classes::NONE, copy: false },
    );
    Ok(())
}

/// The same for the VM that sent a packet to a public address of ours. The packet has its public source already, which names the
/// session that it left by; it still has the Ethernet header that the VM wrote.
fn tell_vm<R: Recorder>(w: &mut Work<'_, R>, p: &Packet, f: &Frame<'_>, message: Message) -> Result<(), &'static str> {
    let v6 = p.v6();
    let sight = w.sessions.ok_or("no sessions are served")?;
    let packet = ip_of(p, f);
    icmp::quotable(packet, v6)?;
    let l4 = L4::read(packet, v6).map_err(DropReason::meaning)?;
    let key = outer_key(l4.proto, l4.src.ip(v6), l4.dst.ip(v6), l4.ports_of(Direction::Out));
    let session = key.and_then(|key| sight.outer(&key)).ok_or("the packet's session is gone")?;
    let inner = sight.found(session).inner;
    let tenant = w.tables.tenant(inner.vni()).ok_or("the VM's VPC is gone")?;
    if w.tables.tenant_ident(&tenant) & TENANT_ICMP_OFF != 0 {
        return Err("switched off for the VPC");
    }
    let vm = Addr::of(inner.vm());
    let mut quote = icmp::quote(packet, v6).to_vec();
    translate::translate(&mut quote, &l4, End::Source, Endpoint { addr: vm, port: inner.vm_port() });
    let flow = flow(v6, l4.dst, vm, if v6 { protocol::ICMPV6 } else { protocol::ICMP }, 0);
    let path = path_back(w, p, flow, icmp::least_len(quote.len(), v6)).map_err(DropReason::meaning)?;
    quote.truncate(icmp::quote_room(&path, v6));
    let inner_len = icmp::error_len(quote.len(), v6);
    if !w.icmp_allowed(&tenant) {
        return Err("the VPC's limit of ICMP errors is reached");
    }
    let carrier = carrier_back(w, &path, Back { flow, tos: 0 }, inner.vni());
    let eth = f.data().first_chunk::<{ ethernet::HEADER_LEN }>().ok_or("no packet")?;
    let host = ethernet::Frame::new_unchecked(eth).src();
    let source = ethernet::Repr { dst: host, src: w.tables.gateway_mac(&tenant), ethertype: 0 };
    let at = carrier.overhead();
    let mut data = w.output.buffer(at + inner_len);
    icmp::build(&mut data[at..], source, l4.dst, vm, message, &quote, v6).ok_or("no room")?;
    carrier.encapsulate(&mut data, at, inner_len, &w.settings).map_err(|_| "no room")?;
    w.generate(
        p,
        Stage::Emit,
        Generated { data, ifindex: path.nexthop.ifindex, cause: p.index as usize, classes: Classes::NONE, copy: false },
    );
    Ok(())
}
