// SPDX-License-Identifier: Apache-2.0
//! Rewrite: inner MACs, TTL, DSCP and ECN with an incremental checksum; then its framing wraps the frame.

use abi::{DropReason, Stage};
use wire::{be, checksum, ethernet, ipv4, ipv6};

use crate::fragment;
use crate::mirror;
use crate::packet::{Kind, Packet};
use crate::record::{Event, Recorder};
use crate::settings::Settings;
use crate::work::{Path, Work};
use crate::{Frame, Verdict};

/// The stage.
#[inline(always)]
pub(crate) fn run<R: Recorder>(
    w: &mut Work<'_, R>,
    p: &mut Packet,
    f: &mut Frame<'_>,
    path: &Path,
) -> Result<(), Verdict> {
    let before = if R::ON { f.data().to_vec() } else { Vec::new() };
    if p.inward {
        crate::nat::inward::translate(w, p, f)?;
    }
    let gateway_mac = w.tables.gateway_mac(p.dst_vpc());
    let at = f.offset as usize + p.inner as usize;
    let tos = new_tos(p, &w.settings);
    rewrite_inner(f.buffer, at, p, gateway_mac, tos.inner).ok_or(DropReason::TxFailed)?;
    let carrier = path.carrier(tos.outer, p.flow, p.dst_vpc().vni);
    let delivered = mirror::delivered(w, p, f, at);
    if path.cut {
        let inner = p.inner_frame(f).to_vec();
        fragment::cut(w, p, f, &inner, &carrier, path.nexthop)?;
    } else {
        f.offset = carrier.encapsulate(f.buffer, at, p.inner_len as usize, &w.settings)? as u32;
        f.len = (at - f.offset as usize) as u32 + p.inner_len as u32;
        if path.split {
            fragment::split(w, p, f, path)?;
        }
    }
    if R::ON {
        w.note(p, Stage::Rewrite, Event::Bytes { before, after: f.data().to_vec() });
    }
    if let Some(inner) = delivered {
        mirror::gotten(w, p, &inner);
    }
    Ok(())
}

/// DSCP and ECN of both headers as they are sent.
pub(crate) struct Tos {
    pub inner: u8,
    pub outer: u8,
}

impl Tos {
    /// RFC 2983 (pipe or uniform) and RFC 6040, from both headers as received and the inner ECN that results.
    #[inline(always)]
    pub fn new(s: &Settings, outer: u8, inner: u8, ecn: u8) -> Tos {
        let inner_dscp = if s.uniform { outer & 0xfc } else { inner & 0xfc };
        let outer_dscp = if s.uniform { inner_dscp } else { s.dscp };
        let outer_ecn = if s.ecn_off { 0 } else { ecn };
        Tos { inner: inner_dscp | ecn, outer: outer_dscp | outer_ecn }
    }
}

/// The same for a packet that is to be sent on.
#[inline(always)]
pub(crate) fn new_tos(p: &Packet, s: &Settings) -> Tos {
    Tos::new(s, p.outer_tos, p.inner_tos, p.ecn)
}

/// The inner frame at `at`: MACs, TTL or hop limit, DSCP and ECN. `None` never happens to a packet that was parsed.
#[inline(always)]
fn rewrite_inner(buffer: &mut [u8], at: usize, p: &Packet, gateway_mac: u64, tos: u8) -> Option<()> {
    let frame = buffer.get_mut(at..)?;
    if p.kind == Kind::Ipv4 {
        rewrite_v4(frame.first_chunk_mut()?, (p.vm.mac, gateway_mac), p.inner_tos, p.ttl, tos);
        return Some(());
    }
    let (eth, rest) = frame.split_first_chunk_mut::<{ ethernet::HEADER_LEN }>()?;
    let mut eth = ethernet::Frame::new_unchecked(eth);
    eth.set_dst(p.vm.mac);
    eth.set_src(gateway_mac);
    let mut ip = ipv6::Packet::new_unchecked(rest.first_chunk_mut::<{ ipv6::HEADER_LEN }>()?);
    ip.set_traffic_class(tos);
    ip.set_hop_limit(p.ttl.wrapping_sub(1));
    Some(())
}

/// Bytes of an Ethernet and an IPv4 header without options.
pub(crate) const HEAD_V4: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN;

/// MAC addresses (destination, source), TTL, DSCP and ECN, and the checksum of an IPv4 packet with this TTL and TOS.
#[inline(always)]
pub(crate) fn rewrite_v4(head: &mut [u8; HEAD_V4], (dst, src): (u64, u64), old_tos: u8, old_ttl: u8, tos: u8) {
    be::set_u64(head, 0, dst << 16 | src >> 32);
    be::set_u32(head, 8, src as u32);
    let mut ip = ipv4::Packet::new_unchecked(&mut head[ethernet::HEADER_LEN..]);
    let ttl = old_ttl.wrapping_sub(1);
    // One step of RFC 1624 equation 3 for both words at once. What else is in them cancels out, and the sums are never zero, so that
    // this equals two steps.
    let gone = !(0x4500 | old_tos as u16) as u64 + !((old_ttl as u16) << 8) as u64;
    let come = (0x4500 | tos as u64) + ((ttl as u64) << 8);
    let c = !checksum::fold(!ip.checksum() as u64 + gone + come);
    ip.set_tos(tos);
    ip.set_ttl(ttl);
    ip.set_checksum(c);
}
