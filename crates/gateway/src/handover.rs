// SPDX-License-Identifier: Apache-2.0
//! Sessions that another cluster has: while a tenant moves, and until the old cluster's sessions have ended, a packet of a session that this
//! node does not know may be one of a session there (`docs/design/handover.md`).
//!
//! ```text
//!                    session known ──────────────────────────────────────────► served
//!  no mark, new ──── none, opens a connection (a plain SYN) ─────────────────► opened here
//!                └── none, opens none ── mark 1 ──► old: session known ──────► served there
//!                                                        none ── mark 2 ──► new: opened here, or refused
//!  no mark, old ──── none ── mark 2 ──► new
//! ```
//!
//! A mark grows with each hop and 2 is the last one, so that no packet goes in circles, whatever both sides believe. Who does not know of a
//! handover of the VPC takes no notice of marks, as of all reserved bits.

use abi::{DropReason, NcId, Stage, Vni};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use wire::{ethernet, ipv4, ipv6, udp, vxlan};

use crate::connections::SessionView;
use crate::framing::vxlan::overhead;
use crate::packet::{Addr, Packet};
use crate::record::{Event, Recorder};
use crate::work::Work;
use crate::{Frame, Verdict};

/// The TTL and hop limit of what is handed over.
const OUTER_TTL: u8 = 64;

/// What another gateway says of a packet: the last byte of its VXLAN header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Nothing: a host has sent it.
    #[default]
    None,
    /// It does not know the packet's session, and asks whether it is known here.
    Handed,
    /// The session is known to nobody else: it is opened here, or never.
    Returned,
    /// It is for a line, and that is here ([`crate::framing::qinq`]).
    Line,
}

impl Mark {
    /// Of the byte. What is no mark says nothing.
    #[inline(always)]
    pub fn of(byte: u8) -> Mark {
        match byte {
            1 => Mark::Handed,
            2 => Mark::Returned,
            3 => Mark::Line,
            _ => Mark::None,
        }
    }

    fn byte(self) -> u8 {
        match self {
            Mark::None => 0,
            Mark::Handed => 1,
            Mark::Returned => 2,
            Mark::Line => 3,
        }
    }
}

/// Whether new connections of a VPC begin here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// They do; older ones may be the other cluster's.
    New,
    /// They are the other cluster's; older ones may be known here.
    Old,
}

/// A VPC of which another cluster may have sessions.
#[derive(Debug)]
pub struct Handover {
    role: Role,
    to4: Option<Ipv4Addr>,
    to6: Option<Ipv6Addr>,
    counts: Arc<Counts>,
}

/// What became of packets; it outlives a change of the configuration.
#[derive(Debug, Default)]
struct Counts {
    handed: AtomicU64,
    returned: AtomicU64,
}

impl Handover {
    /// To the cluster with these tunnel addresses; the first one of a packet's outer family is used, as hosts use it.
    pub fn new(role: Role, to: &[IpAddr]) -> Handover {
        let to4 = to.iter().find_map(|a| if let IpAddr::V4(a) = a { Some(*a) } else { None });
        let to6 = to.iter().find_map(|a| if let IpAddr::V6(a) = a { Some(*a) } else { None });
        Handover { role, to4, to6, counts: Arc::default() }
    }

    /// Which of the two clusters this is.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Packets that were handed over, and those that were handed back.
    pub fn counts(&self) -> (u64, u64) {
        (self.counts.handed.load(Ordering::Relaxed), self.counts.returned.load(Ordering::Relaxed))
    }
}

/// The VPCs of which other clusters may have sessions.
#[derive(Debug, Default)]
pub struct Handovers(HashMap<Vni, Handover>);

impl FromIterator<(Vni, Handover)> for Handovers {
    fn from_iter<I: IntoIterator<Item = (Vni, Handover)>>(of: I) -> Handovers {
        Handovers(of.into_iter().collect())
    }
}

impl Handovers {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// That of a VPC.
    pub fn get(&self, vni: Vni) -> Option<&Handover> {
        self.0.get(&vni)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (Vni, &Handover)> {
        self.0.iter().map(|(vni, handover)| (*vni, handover))
    }

    /// Takes over the counts of VPCs that were handed over before.
    pub(crate) fn go_on(&mut self, before: &Handovers) {
        for (vni, handover) in &mut self.0 {
            if let Some(before) = before.get(*vni) {
                handover.counts = before.counts.clone();
            }
        }
    }
}

/// Whether another cluster is to be asked for a packet whose session is not known here; `opens`: it begins a connection, whoever knows one
/// like it. Who says yes ends the packet's path with [`DropReason::HandoverFailed`], and [`send`] makes of that what it can.
#[inline(always)]
pub(crate) fn wanted(sight: SessionView<'_>, p: &Packet, opens: bool) -> bool {
    !sight.handovers.is_empty() && wanted_in(sight.handovers, p, opens)
}

#[cold]
fn wanted_in(handovers: &Handovers, p: &Packet, opens: bool) -> bool {
    let Some(handover) = handovers.get(p.vni).filter(|_| p.server.is_none() && !p.inward) else { return false };
    match (p.mark, handover.role) {
        (Mark::None | Mark::Line, Role::New) => !opens,
        (Mark::None | Mark::Line, Role::Old) | (Mark::Handed, _) => true,
        (Mark::Returned, _) => false,
    }
}

/// Hands a packet over as it came, but for where it goes and its mark.
#[cold]
#[inline(never)]
pub(crate) fn send<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, f: &mut Frame<'_>) -> Result<Verdict, DropReason> {
    const FAILED: DropReason = DropReason::HandoverFailed;
    let sight = w.sessions.ok_or(FAILED)?;
    let handover = sight.handovers.get(p.vni).ok_or(FAILED)?;
    let nc = match p.source_v6 {
        true => w.tables.nc_by_addr6(Addr::of(handover.to6.ok_or(FAILED)?.into()).halves()),
        false => w.tables.nc_by_addr4(handover.to4.ok_or(FAILED)?.to_bits()),
    };
    let back = p.mark == Mark::Handed;
    let mark = if back || handover.role == Role::Old { Mark::Returned } else { Mark::Handed };
    let note = |to| (Stage::Filter, Event::HandedOver { to, back });
    let verdict = send_to(w, p, f, (nc.ok_or(FAILED)?, mark), FAILED, note)?;
    if R::COUNTS {
        let count = if back { &handover.counts.returned } else { &handover.counts.handed };
        count.fetch_add(1, Ordering::Relaxed);
    }
    Ok(verdict)
}

/// Sends a packet from a tunnel to another gateway as it came, but for where it goes and its mark; `own`: what becomes of it if that is this gateway. The
/// outer source stays: it says which NC sent it, which is asked there as here, and with the ports, which stay too, a router that spreads packets over
/// the nodes of a cluster chooses the same one as if the NC had sent it there. `note`: what a trace says of the new destination.
#[cold]
pub(crate) fn send_to<R: Recorder>(
    w: &mut Work<'_, R>,
    p: &mut Packet,
    f: &mut Frame<'_>,
    (nc, mark): (NcId, Mark),
    own: DropReason,
    note: impl FnOnce(IpAddr) -> (Stage, Event),
) -> Result<Verdict, DropReason> {
    let path = w.path_to(nc, p.flow)?;
    if path.nc_v6 != p.source_v6 || w.settings.is_vtep(path.nc, path.nc_v6) {
        return Err(own);
    }
    let before = if R::ON { f.data().to_vec() } else { Vec::new() };
    let end = usize::from(p.inner) + usize::from(p.inner_len);
    if end.saturating_sub(ethernet::HEADER_LEN) > usize::from(path.nexthop.mtu) {
        p.room = path.nexthop.mtu.saturating_sub(overhead(path.nc_v6) as u16);
        return Err(DropReason::TooBig);
    }
    let start = f.offset as usize;
    let frame = f.buffer.get_mut(start..start + end).ok_or(DropReason::TxFailed)?;
    readdress(frame, p, path.nc, mark, (path.nexthop.dmac, path.nexthop.smac)).ok_or(DropReason::TxFailed)?;
    f.len = end as u32;
    if R::ON {
        let (stage, event) = note(path.nc.ip(path.nc_v6));
        w.note(p, stage, event);
        w.note(p, Stage::Rewrite, Event::Bytes { before, after: f.data().to_vec() });
    }
    Ok(Verdict::Forward { ifindex: path.nexthop.ifindex })
}

/// Writes the outer headers of a frame that framing vxlan has read.
fn readdress(frame: &mut [u8], p: &Packet, to: Addr, mark: Mark, (dmac, smac): (u64, u64)) -> Option<()> {
    let tunnel = usize::from(p.inner).checked_sub(udp::HEADER_LEN + vxlan::HEADER_LEN)?;
    let (head, datagram) = frame.split_at_mut_checked(tunnel)?;
    let (eth, ip) = head.split_at_mut_checked(ethernet::HEADER_LEN)?;
    crate::framing::plain::encapsulate(eth, dmac, smac)?;
    vxlan::Packet::new_unchecked(datagram.get_mut(udp::HEADER_LEN..)?).set_reserved(mark.byte());
    let mut datagram = udp::Packet::new_unchecked(datagram);
    let sum = datagram.checksum() != 0;
    match p.source_v6 {
        false => {
            wire::be::set_u32(ip.get_mut(16..ipv4::HEADER_LEN)?, 0, to.as_v4());
            ip[8] = OUTER_TTL;
            ipv4::Packet::new_unchecked(ip).fill_checksum();
            if sum {
                datagram.fill_checksum_v4(p.source.as_v4(), to.as_v4());
            }
        }
        true => {
            wire::be::set_u128(ip.get_mut(24..ipv6::HEADER_LEN)?, 0, to.as_v6());
            ip[7] = OUTER_TTL;
            if sum {
                datagram.fill_checksum_v6(p.source.as_v6(), to.as_v6());
            }
        }
    }
    Some(())
}
