// SPDX-License-Identifier: Apache-2.0
//! The way out without a tunnel: next hop towards the Internet, size, rewrite.

use abi::{DropReason, Stage};
use wire::ethernet;

use super::outward::ip_of;
use super::related;
use super::translate::{self, End, Endpoint};
use crate::fragment;
use crate::framing::{plain, Carrier};
use crate::l4::{Icmp, L4};
use crate::packet::Packet;
use crate::record::{Event, Recorder};
use crate::work::{Path, Work};
use crate::{Frame, Verdict};

/// The next hop towards the Internet for a flow, over which the packet fits or may be cut.
pub(crate) fn path<R: Recorder>(
    w: &mut Work<'_, R>,
    p: &mut Packet,
    f: &Frame<'_>,
    l4: &L4,
    flow: u64,
) -> Result<Path, DropReason> {
    let mut path = w.path_over(w.tables.internet_group(l4.v6), flow)?;
    let mtu = path.nexthop.mtu as usize;
    if l4.len > mtu {
        path.cut = !l4.v6 && fragment::may_cut(ip_of(p, f), mtu);
        if !path.cut {
            p.room = mtu as u16;
            return Err(DropReason::TooBig);
        }
    }
    Ok(path)
}

/// Translates and sends.
pub(crate) fn out<R: Recorder>(
    w: &mut Work<'_, R>,
    p: &Packet,
    f: &mut Frame<'_>,
    l4: &L4,
    to: Endpoint,
    tos: u8,
    path: Path,
) -> Result<Verdict, DropReason> {
    let before = if R::ON { f.data().to_vec() } else { Vec::new() };
    let at = f.offset as usize + p.inner as usize;
    let frame = f.buffer.get_mut(at..at + ethernet::HEADER_LEN + l4.len).ok_or(DropReason::TxFailed)?;
    let packet = frame.get_mut(ethernet::HEADER_LEN..).ok_or(DropReason::TxFailed)?;
    match l4.icmp {
        Icmp::Error => related::translate(packet, l4, End::Source, to)?,
        _ => translate::translate(packet, l4, End::Source, to),
    }
    translate::lower_ttl(packet, l4.v6, tos);
    plain::encapsulate(frame, path.nexthop.dmac, path.nexthop.smac).ok_or(DropReason::TxFailed)?;
    if path.cut {
        let frame = frame.to_vec();
        fragment::cut(w, p, f, &frame, &Carrier::Plain, path.nexthop)?;
    } else {
        f.offset = at as u32;
        f.len = (ethernet::HEADER_LEN + l4.len) as u32;
    }
    if R::ON {
        w.note(p, Stage::Rewrite, Event::Bytes { before, after: f.data().to_vec() });
    }
    f.classes = p.classes();
    Ok(Verdict::Forward { ifindex: path.nexthop.ifindex })
}
