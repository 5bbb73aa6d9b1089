// SPDX-License-Identifier: Apache-2.0
//! The way back: an inner frame of the gateway's own goes to the NC or the CE that the packet at hand came from.

use abi::{DropReason, Vni};
use wire::{ethernet, ipv6};

use crate::framing::{qinq, Carrier};
use crate::packet::Packet;
use crate::record::Recorder;
use crate::stages::rewrite::Tos;
use crate::turns::Classes;
use crate::work::{Path, Work};
use crate::{Frame, Verdict};

/// Bytes in front of the payload of a frame over IPv6.
pub(crate) const V6_HEADERS: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN;

/// How a frame of the gateway's own travels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Back {
    /// Hash of its flow.
    pub flow: u64,
    /// DSCP and ECN of its inner header, 0 for ARP.
    pub tos: u8,
}

/// The path back to the packet's sender, over which `inner_len` bytes fit.
pub(crate) fn path_back<R: Recorder>(
    w: &mut Work<'_, R>,
    p: &Packet,
    flow: u64,
    inner_len: usize,
) -> Result<Path, DropReason> {
    if let Some(circuit) = p.came {
        // Its CE is who asked: the frame of the answer names it.
        let path = qinq::path(&circuit, 0);
        return if path.fits(inner_len) { Ok(path) } else { Err(DropReason::TooBig) };
    }
    // Known if sources are checked; else anybody may have sent it, and only NCs have a path.
    let nc = w.sending_nc(p).ok_or(DropReason::SourceUnknown)?;
    let path = w.path_to(nc, flow)?;
    match path.fits(inner_len) {
        true => Ok(path),
        false => Err(DropReason::TooBig),
    }
}

/// The class in which an answer to the packet's sender waits for its turn. What a site or a VM asks for takes of its rate, too.
pub(crate) fn classes_back<R: Recorder>(w: &Work<'_, R>, p: &Packet) -> Classes {
    let line = p.came.filter(|_| p.guest.is_none());
    Classes::new(0, line.map_or(p.back, |circuit| w.tables.circuit_class(&circuit)))
}

/// What a frame leaves in on that path, in a VNI.
pub(crate) fn carrier_back<R: Recorder>(w: &Work<'_, R>, path: &Path, back: Back, vni: Vni) -> Carrier {
    path.carrier(Tos::new(&w.settings, back.tos, back.tos, back.tos & 3).outer, back.flow, vni)
}

/// Sends back what stands in the frame as its inner frame, which has not changed its length.
pub(crate) fn in_place<R: Recorder>(
    w: &mut Work<'_, R>,
    p: &Packet,
    f: &mut Frame<'_>,
    back: Back,
) -> Result<Verdict, DropReason> {
    send(w, p, f, f.offset as usize + p.inner as usize, p.inner_len as usize, back)
}

/// Sends back `inner` in place of what stands in the frame.
pub(crate) fn instead<R: Recorder>(
    w: &mut Work<'_, R>,
    p: &Packet,
    f: &mut Frame<'_>,
    inner: &[u8],
    back: Back,
) -> Result<Verdict, DropReason> {
    let wanted = f.offset as usize + p.inner as usize;
    // The answer may be longer than the question: if the region ends too early, it moves into the headroom.
    let at = f.buffer.len().checked_sub(inner.len()).ok_or(DropReason::TxFailed)?.min(wanted);
    f.buffer[at..at + inner.len()].copy_from_slice(inner);
    send(w, p, f, at, inner.len(), back)
}

/// An inner frame of the gateway's own over IPv6, whose payload is still to be written. MAC addresses: source, destination.
pub(crate) fn frame_v6((src, dst): (u64, u64), header: &ipv6::Repr) -> Option<Vec<u8>> {
    let mut frame = vec![0; V6_HEADERS + header.payload_len];
    let (eth, rest) = frame.split_first_chunk_mut()?;
    ethernet::Repr { dst, src, ethertype: ethernet::ethertype::IPV6 }.emit(eth);
    header.emit(rest.first_chunk_mut()?);
    Some(frame)
}

fn send<R: Recorder>(
    w: &mut Work<'_, R>,
    p: &Packet,
    f: &mut Frame<'_>,
    at: usize,
    inner_len: usize,
    back: Back,
) -> Result<Verdict, DropReason> {
    let path = path_back(w, p, back.flow, inner_len)?;
    let start = carrier_back(w, &path, back, p.vni).encapsulate(f.buffer, at, inner_len, &w.settings)?;
    f.offset = start as u32;
    f.len = (at - start + inner_len) as u32;
    f.classes = classes_back(w, p);
    Ok(Verdict::Answer { ifindex: path.nexthop.ifindex })
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
