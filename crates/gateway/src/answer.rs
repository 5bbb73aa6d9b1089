// SPDX-License-Identifier: Apache-2.0
//! The way back: an inner frame of the gateway's own goes to the NC that the packet at hand came from.

use abi::DropReason;

use crate::encap::{encapsulate, Outer, OVERHEAD};
use crate::record::Recorder;
use crate::work::{Path, Work};
use crate::Verdict;

/// How a frame of the gateway's own travels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Back {
    /// Hash of its flow.
    pub flow: u64,
    /// DSCP and ECN of its inner header, 0 for ARP.
    pub tos: u8,
}

/// The path back to the sender of packet `i`, over which `inner_len` bytes fit.
pub(crate) fn path_back<R: Recorder>(w: &mut Work<'_, '_, R>, i: u8, flow: u64, inner_len: usize) -> Result<Path, DropReason> {
    // Known if sources are checked; else anybody may have sent it, and only NCs have a path.
    let nc = w.sending_nc(i).ok_or(DropReason::SourceUnknown)?;
    let path = w.path_to(nc, flow)?;
    if inner_len + OVERHEAD[path.nc_v6 as usize] - wire::ethernet::HEADER_LEN > path.nexthop.mtu as usize {
        return Err(DropReason::TooBig);
    }
    Ok(path)
}

/// The outer headers for that path.
pub(crate) fn outer_back<R: Recorder>(w: &Work<'_, '_, R>, i: u8, path: &Path, back: Back) -> Outer {
    let s = &w.settings;
    let dscp = if s.uniform { back.tos & 0xfc } else { s.dscp };
    let ecn = if s.ecn_off { 0 } else { back.tos & 3 };
    Outer {
        dmac: path.nexthop.dmac,
        smac: path.nexthop.smac,
        v6: path.nc_v6,
        remote: path.nc,
        tos: dscp | ecn,
        flow: back.flow,
        vni: w.packets[i as usize].vni,
    }
}

/// Sends back what stands in the frame of packet `i` as its inner frame, `inner_len` bytes long.
pub(crate) fn in_place<R: Recorder>(
    w: &mut Work<'_, '_, R>,
    i: u8,
    inner_len: usize,
    back: Back,
) -> Result<Verdict, DropReason> {
    let at = w.frames[i as usize].offset as usize + w.packets[i as usize].inner as usize;
    send(w, i, at, inner_len, back)
}

/// Sends back `inner` in place of the frame of packet `i`.
pub(crate) fn instead<R: Recorder>(
    w: &mut Work<'_, '_, R>,
    i: u8,
    inner: &[u8],
    back: Back,
) -> Result<Verdict, DropReason> {
    let frame = &mut w.frames[i as usize];
    let wanted = frame.offset as usize + w.packets[i as usize].inner as usize;
    // The answer may be longer than the question: if the region ends too early, it moves into the headroom.
    let at = frame.buffer.len().checked_sub(inner.len()).ok_or(DropReason::TxFailed)?.min(wanted);
    frame.buffer[at..at + inner.len()].copy_from_slice(inner);
    send(w, i, at, inner.len(), back)
}

fn send<R: Recorder>(
    w: &mut Work<'_, '_, R>,
    i: u8,
    at: usize,
    inner_len: usize,
    back: Back,
) -> Result<Verdict, DropReason> {
    let path = path_back(w, i, back.flow, inner_len)?;
    let outer = outer_back(w, i, &path, back);
    let frame = &mut w.frames[i as usize];
    let start = encapsulate(frame.buffer, at, inner_len, &outer, &w.settings).ok_or(DropReason::TxFailed)?;
    frame.offset = start as u32;
    frame.len = (at - start + inner_len) as u32;
    Ok(Verdict::Answer { ifindex: path.nexthop.ifindex })
}
