// SPDX-License-Identifier: Apache-2.0
//! Framing qinq (IEEE 802.1Q, 802.1ad): a customer's frame on an edge port, with two tags, one or none. Port and tags name the VPC, as the VNI
//! of a tunnel does. The order of checks is that of `docs/design/packet-qinq.md`.
//!
//! The frame stays as it came until it is rewritten, so that it can be kept or handed on: its tags stand between its MAC addresses and what the
//! stages see. Who wants the addresses takes [`Packet::macs`].

use abi::{DropReason, IfIndex, Mac, Stage, SCOPE_LINE, VALUE_SCOPE_SHIFT};
use tables::{Circuit, CircuitFound, EdgePort, NexthopView, Tables};
use wire::{be, ethernet, ethernet::ethertype};

use crate::control::{is_control, Towards};
use crate::handover::{self, Mark};
use crate::packet::Packet;
use crate::record::{Event, Recorder};
use crate::work::{Path, Work};
use crate::{Frame, Verdict};

/// Bytes of a tag.
const TAG: usize = 4;
/// Bytes of the two MAC addresses.
const MACS: usize = 12;
/// The VLAN id in a tag's second word.
const VID: u16 = 0xfff;
/// 01-80-C2-00-00-00 to -0F: what a link says about itself (IEEE 802.1Q, 8.6.3).
const LINK_CONTROL: u64 = 0x0180_c200_0000;

/// Takes the tags off: fills the VPC and where the frame behind them is. `Err(Pass)`: the link's own control, or a port that is being changed.
pub(crate) fn decapsulate(tables: &Tables, port: EdgePort, data: &[u8], p: &mut Packet) -> Result<(), Verdict> {
    if port.changes {
        return Err(Verdict::Pass);
    }
    let head = data.first_chunk::<{ ethernet::HEADER_LEN }>().ok_or(DropReason::OuterTruncated)?;
    if ethernet::Frame::new_unchecked(head).dst() & !0xf == LINK_CONTROL {
        return Err(Verdict::Pass);
    }
    let mut circuit = Circuit { port, tags: [0; 2], class: 0 };
    if let Err(reason) = tags(&port, data, &mut circuit.tags) {
        return Err(of_customer(tables, &circuit, p, reason));
    }
    let found = match tables.circuit_by_tags(&circuit) {
        CircuitFound::Vpc(found) => found,
        CircuitFound::NoOverlay => return Err(of_customer(tables, &circuit, p, DropReason::EdgeOverlayUnknown)),
        CircuitFound::NoCustomer => return Err(DropReason::EdgeCustomerUnknown.into()),
    };
    p.vni = found.vni;
    p.inner = tags_len(&port) as u16;
    p.inner_len = (data.len() - usize::from(p.inner)).min(usize::from(u16::MAX)) as u16;
    // Nothing is around the packet that could say anything else than it says itself.
    p.outer_tos = 0;
    p.strange = !found.admits(ethernet::Frame::new_unchecked(head).src());
    p.came = Some(circuit);
    let behind = data.get(usize::from(p.inner)..).unwrap_or(&[]);
    p.control = found.gateway != 0 && is_control(behind, found.gateway, Towards::Daemon);
    Ok(())
}

/// A drop for which no VPC can be charged: it is counted for the customer, if there is one with the frame's outer tag.
#[cold]
fn of_customer(tables: &Tables, c: &Circuit, p: &mut Packet, reason: DropReason) -> Verdict {
    let customer = if c.tags[0] != 0 { tables.customer(c.port.number, c.tags[0]) } else { None };
    if let Some(customer) = customer {
        (p.vni, p.attributed) = (customer, true);
    }
    reason.into()
}

/// The VLAN ids of a frame that has the tags of its port; those that were read before what is wrong, too.
pub(crate) fn tags(port: &EdgePort, data: &[u8], vids: &mut [u16; 2]) -> Result<(), DropReason> {
    let mut at = MACS;
    for (i, vid) in vids.iter_mut().enumerate().take(usize::from(port.tags)) {
        let kind = be::u16(data, at);
        if kind != port.tpids[i] {
            return Err(match (is_tag(kind), i) {
                (true, _) => DropReason::EdgeTpid,
                (false, 0) => DropReason::EdgeUntagged,
                (false, _) => DropReason::EdgeOneTag,
            });
        }
        if data.len() < at + TAG + 2 {
            return Err(DropReason::OuterTruncated);
        }
        *vid = be::u16(data, at + 2) & VID;
        if *vid == 0 {
            return Err(DropReason::EdgePriorityTag);
        }
        at += TAG;
    }
    match is_tag(be::u16(data, at)) {
        true if port.tags == 0 => Err(DropReason::EdgeTagged),
        true => Err(DropReason::EdgeManyTags),
        false => Ok(()),
    }
}

fn is_tag(kind: u16) -> bool {
    matches!(kind, ethertype::VLAN | ethertype::QINQ | ethertype::QINQ_OLD)
}

/// Bytes of the tags of a port's frames.
#[inline(always)]
pub(crate) fn tags_len(port: &EdgePort) -> usize {
    TAG * usize::from(port.tags)
}

/// What a line may send for its VPC: the VPC's route to the source has scope line, too. So a site speaks neither for a VM nor for anybody
/// beyond the VPC.
pub(crate) fn check_source(tables: &Tables, p: &Packet, f: &Frame<'_>) -> Result<(), DropReason> {
    let ip = p.inner_frame(f).get(ethernet::HEADER_LEN..).unwrap_or(&[]);
    let value = match (p.v6(), ip.len()) {
        (true, 24..) => tables.route6(p.tenant.root6(), (be::u64(ip, 8), be::u64(ip, 16))),
        (false, 16..) => tables.route4(p.tenant.root4(), be::u32(ip, 12)),
        _ => 0,
    };
    match value >> VALUE_SCOPE_SHIFT == SCOPE_LINE {
        true => Ok(()),
        false => Err(DropReason::EdgeSource),
    }
}

/// The tags of a frame that leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tags {
    count: u8,
    words: [u32; 2],
}

impl Tags {
    /// None at all, as a VM's port has it.
    pub const NONE: Tags = Tags { count: 0, words: [0; 2] };

    fn of(c: &Circuit) -> Tags {
        let word = |i: usize| u32::from(c.port.tpids[i]) << 16 | u32::from(c.tags[i]);
        Tags { count: c.port.tags, words: [word(0), word(1)] }
    }

    /// Bytes in front of a frame.
    pub fn len(&self) -> usize {
        TAG * usize::from(self.count)
    }

    /// Bytes that an MTU counts: a link's MTU leaves room for one tag, as Linux has it, and no more.
    pub fn counted(&self) -> usize {
        self.len().saturating_sub(TAG)
    }

    /// Puts the tags into the frame that lies at `at`; returns where it starts now. `None` if there is no room.
    pub fn encapsulate(&self, buffer: &mut [u8], at: usize) -> Option<usize> {
        let start = at.checked_sub(self.len())?;
        let frame = buffer.get_mut(start..)?;
        if frame.len() < self.len() + MACS {
            return None;
        }
        frame.copy_within(self.len()..self.len() + MACS, 0);
        for (i, word) in self.words.iter().enumerate().take(usize::from(self.count)) {
            be::set_u32(frame, MACS + TAG * i, *word);
        }
        Some(start)
    }
}

/// How a frame leaves by a circuit to its CE.
pub(crate) fn path(c: &Circuit, ce: u64) -> Path {
    let EdgePort { mtu, ifindex, .. } = c.port;
    // The frame's own header names the sender; what stands here is for traces.
    let nexthop = NexthopView { dmac: ce, smac: 0, mtu, ifindex, ready: true };
    Path { tags: Some(Tags::of(c)), ..Path::over(nexthop) }
}

/// The destination that a session has given a packet is no VM's: is it behind a line of its VPC? Then the packet leaves by that.
#[cold]
pub(crate) fn enter_line<R: Recorder>(w: &Work<'_, R>, p: &mut Packet) -> bool {
    let value = match p.v6() {
        true => w.tables.route6(p.tenant.root6(), p.target.halves()),
        false => w.tables.route4(p.tenant.root4(), p.target.as_v4()),
    };
    value >> VALUE_SCOPE_SHIFT == SCOPE_LINE && w.leave_by_line(p, value as u8).is_some()
}

/// Sends a packet to the node at which its line is, as it came: that one serves it, as if the host had sent it there. Once: what another gateway
/// has sent, or what did not come in a tunnel, has no line that is elsewhere.
#[cold]
#[inline(never)]
pub(crate) fn send_to_node<R: Recorder>(
    w: &mut Work<'_, R>,
    p: &mut Packet,
    f: &mut Frame<'_>,
    port: EdgePort,
) -> Result<Verdict, DropReason> {
    const NONE: DropReason = DropReason::ScopeLine;
    if p.came.is_some() || p.inward || p.mark != Mark::None {
        return Err(NONE);
    }
    let nc = w.tables.edge_node(port, p.source_v6).ok_or(NONE)?;
    handover::send_to(w, p, f, (nc, Mark::Line), NONE, |to| (Stage::Locate, Event::LineElsewhere { to }))
}

impl<R: Recorder> Work<'_, R> {
    /// The circuit that a line of the packet's VPC is. None: there is none.
    pub fn leave_by_line(&self, p: &mut Packet, line: u8) -> Option<()> {
        let (circuit, ce) = self.tables.circuit_by_line(p.dst_vpc().vni, line)?;
        p.leaves = Some((circuit, ce));
        Some(())
    }

    /// An edge port, if the node has any and this is one.
    #[inline(always)]
    pub fn edge_port(&self, ifindex: IfIndex) -> Option<EdgePort> {
        match self.settings.edge {
            true => self.tables.edge_port(ifindex),
            false => None,
        }
    }
}

impl Packet {
    /// MAC addresses of the inner frame, destination and source: in front of the tags, if it has any.
    pub fn macs(&self, f: &Frame<'_>) -> (Mac, Mac) {
        let tags = self.came.map_or(0, |c| tags_len(&c.port));
        let head = f.data().get((self.inner as usize).saturating_sub(tags)..).and_then(|b| b.first_chunk::<MACS>());
        let b = head.copied().unwrap_or_default();
        (Mac(be::mac(&b, 0)), Mac(be::mac(&b, 6)))
    }
}

#[cfg(test)]
#[path = "qinq_tests.rs"]
mod tests;
