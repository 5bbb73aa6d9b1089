// SPDX-License-Identifier: Apache-2.0
//! Rewrite: inner MACs, TTL, DSCP and ECN with an incremental checksum; new outer headers.

use abi::{DropReason, Stage};
use wire::{checksum, ethernet, ipv4, ipv6};

use crate::encap::{encapsulate, Outer};
use crate::fragment;
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
    let outer = Outer {
        dmac: path.nexthop.dmac,
        smac: path.nexthop.smac,
        v6: path.nc_v6,
        remote: path.nc,
        tos: tos.outer,
        flow: p.flow,
        vni: p.dst_vpc().vni,
    };
    if path.cut {
        let inner = p.inner_frame(f).to_vec();
        fragment::cut(w, p, f, &inner, fragment::Carrier::Tunnel(outer), path.nexthop)?;
    } else {
        let start = encapsulate(f.buffer, at, p.inner_len as usize, &outer, &w.settings);
        f.offset = start.ok_or(DropReason::TxFailed)? as u32;
        f.len = (at - f.offset as usize) as u32 + p.inner_len as u32;
        if path.split {
            fragment::split(w, p, f, path)?;
        }
    }
    if R::ON {
        w.note(p, Stage::Rewrite, Event::Bytes { before, after: f.data().to_vec() });
    }
    Ok(())
}

/// DSCP and ECN of both headers as they are sent.
pub(crate) struct Tos {
    pub inner: u8,
    pub outer: u8,
}

/// RFC 2983 (pipe or uniform) and RFC 6040.
#[inline(always)]
pub(crate) fn new_tos(p: &Packet, s: &Settings) -> Tos {
    let inner_dscp = if s.uniform { p.outer_tos & 0xfc } else { p.inner_tos & 0xfc };
    let outer_dscp = if s.uniform { inner_dscp } else { s.dscp };
    let outer_ecn = if s.ecn_off { 0 } else { p.ecn };
    Tos { inner: inner_dscp | p.ecn, outer: outer_dscp | outer_ecn }
}

/// The inner frame at `at`: MACs, TTL or hop limit, DSCP and ECN. `None` never happens to a packet that was parsed.
#[inline(always)]
fn rewrite_inner(buffer: &mut [u8], at: usize, p: &Packet, gateway_mac: u64, tos: u8) -> Option<()> {
    let (eth, rest) = buffer.get_mut(at..)?.split_first_chunk_mut::<{ ethernet::HEADER_LEN }>()?;
    let mut eth = ethernet::Frame::new_unchecked(eth);
    eth.set_dst(p.vm.mac);
    eth.set_src(gateway_mac);
    let ttl = p.ttl.wrapping_sub(1);
    if p.kind == Kind::Ipv4 {
        let mut ip = ipv4::Packet::new_unchecked(rest.first_chunk_mut::<{ ipv4::HEADER_LEN }>()?);
        let (version, proto) = ((ip.version_ihl() as u16) << 8, ip.protocol() as u16);
        // Two steps of RFC 1624 equation 3, one for each word that changes.
        let c = checksum::update(ip.checksum(), version | p.inner_tos as u16, version | tos as u16);
        let c = checksum::update(c, (p.ttl as u16) << 8 | proto, (ttl as u16) << 8 | proto);
        ip.set_tos(tos);
        ip.set_ttl(ttl);
        ip.set_checksum(c);
    } else {
        let mut ip = ipv6::Packet::new_unchecked(rest.first_chunk_mut::<{ ipv6::HEADER_LEN }>()?);
        ip.set_traffic_class(tos);
        ip.set_hop_limit(ttl);
    }
    Some(())
}
