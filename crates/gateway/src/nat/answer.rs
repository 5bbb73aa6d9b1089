// SPDX-License-Identifier: Apache-2.0
//! ICMP errors towards the Internet: a packet inwards that is too big for the underlay, or whose TTL ends here.
//!
//! The source is the public address that the packet was for, so that no address behind it shows; it leaves by the port that
//! the packet came by, to whom it came from.

use abi::{DropReason, Stage, TENANT_ICMP_OFF};
use wire::ethernet;

use super::outward::ip_of;
use crate::frame::{Frame, Generated};
use crate::icmp::{self, Message};
use crate::packet::{Addr, Packet};
use crate::record::Recorder;
use crate::work::Work;

/// Sends the error about a packet inwards, or says why not.
pub(crate) fn error<R: Recorder>(
    w: &mut Work<'_, R>,
    p: &Packet,
    f: &Frame<'_>,
    reason: DropReason,
    message: Message,
) -> Result<(), &'static str> {
    if p.hairpin {
        return Err("the packet came from a VM");
    }
    if !matches!(reason, DropReason::TooBig | DropReason::TtlExpired) || !p.attributed {
        return Err("the Internet is told of sizes and hops alone");
    }
    if w.tables.tenant_ident(&p.tenant) & TENANT_ICMP_OFF != 0 {
        return Err("switched off for the VPC");
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
    if !w.tables.icmp_allowed(&p.tenant, w.now) {
        return Err("the VPC's limit of ICMP errors is reached");
    }
    let quote = icmp::quote(packet, p.v6());
    let mut data = w.output.buffer(icmp::error_len(quote.len(), p.v6()));
    icmp::build(&mut data, source, own, host, message, quote, p.v6()).ok_or("no room")?;
    w.generate(p, Stage::Emit, Generated { data, ifindex: f.ifindex, cause: p.index as usize });
    Ok(())
}
