// SPDX-License-Identifier: Apache-2.0
//! How packets are wrapped on a port. A framing's `decapsulate` lays a packet bare and fills what the stages go on from; `encapsulate`
//! writes the wrapping from what they decided. The stages know neither. `docs/design/framing.md` says why.

pub(crate) mod inline;
pub(crate) mod plain;
pub(crate) mod qinq;
pub(crate) mod vmport;
pub(crate) mod vxlan;

use abi::{DropReason, Vni};
use tables::NexthopView;
use wire::ethernet;

use crate::packet::Packet;
use crate::record::Recorder;
use crate::settings::Settings;
use crate::work::{Path, Work};
use crate::{Frame, Verdict};

/// Lays bare a packet that came by an uplink, by an edge port or by a VM port. `Err(Pass)`: it is none of the gateway's.
#[inline(always)]
pub(crate) fn decapsulate<R: Recorder>(w: &Work<'_, R>, p: &mut Packet, f: &Frame<'_>) -> Result<(), Verdict> {
    if let Some(port) = w.edge_port(f.ifindex) {
        return qinq::decapsulate(w.tables, port, f.data(), p);
    }
    if let Some(port) = w.vm_port(f.ifindex) {
        return vmport::decapsulate(&port, f.data(), p);
    }
    match vxlan::decapsulate(f.data(), &w.settings, p) {
        Err(Verdict::Pass) if w.sessions.is_some() && w.tables.public_roots() != 0 => plain::decapsulate(w, p, f),
        result => result,
    }
}

/// What a frame leaves in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Carrier {
    /// A tunnel of its own.
    Vxlan(vxlan::Outer),
    /// Nothing: it has the Ethernet header of its next hop.
    Plain,
    /// Tags of a customer.
    Qinq(qinq::Tags),
}

impl Carrier {
    /// Bytes in front of the frame.
    #[inline(always)]
    pub fn overhead(&self) -> usize {
        match self {
            Carrier::Vxlan(outer) => vxlan::overhead(outer.v6),
            Carrier::Plain => 0,
            Carrier::Qinq(tags) => tags.len(),
        }
    }

    /// Bytes of an IP packet in it that fit an MTU.
    pub fn room(&self, mtu: u16) -> usize {
        let counted = match self {
            Carrier::Qinq(tags) => tags.counted(),
            _ => self.overhead(),
        };
        (mtu as usize).saturating_sub(counted)
    }

    /// Wraps the frame of `len` bytes that lies at `at`; returns where the packet starts now.
    #[inline(always)]
    pub fn encapsulate(&self, buffer: &mut [u8], at: usize, len: usize, s: &Settings) -> Result<usize, DropReason> {
        match self {
            Carrier::Vxlan(outer) => vxlan::encapsulate(buffer, at, len, outer, s).ok_or(DropReason::TxFailed),
            Carrier::Plain => Ok(at),
            Carrier::Qinq(tags) => tags.encapsulate(buffer, at).ok_or(DropReason::TxFailed),
        }
    }
}

/// What locate decided names the framing: each NC is at the end of a VXLAN tunnel, each CE behind tags.
impl Path {
    /// Bytes in front of a frame that an MTU counts.
    #[inline(always)]
    pub fn overhead(&self) -> usize {
        match &self.tags {
            None => vxlan::overhead(self.nc_v6),
            Some(tags) => tags.counted(),
        }
    }

    /// Whether the MTU, which counts from behind the Ethernet header, takes a frame of so many bytes in its wrapping.
    #[inline(always)]
    pub fn fits(&self, frame_len: usize) -> bool {
        frame_len + self.overhead() - ethernet::HEADER_LEN <= self.nexthop.mtu as usize
    }

    /// What a frame leaves in. `tos`: DSCP and ECN; `flow`: its hash.
    #[inline(always)]
    pub fn carrier(&self, tos: u8, flow: u64, vni: Vni) -> Carrier {
        if let Some(tags) = self.tags {
            return Carrier::Qinq(tags);
        }
        let NexthopView { dmac, smac, .. } = self.nexthop;
        Carrier::Vxlan(vxlan::Outer { dmac, smac, v6: self.nc_v6, remote: self.nc, tos, flow, vni })
    }
}
