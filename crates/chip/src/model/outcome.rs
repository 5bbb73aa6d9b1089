// SPDX-License-Identifier: Apache-2.0
//! What becomes of a packet on the chip, and what a chip leaves to software.

use abi::DropReason;

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Sent.
    Forward {
        /// Egress interface.
        ifindex: u32,
        /// Times that it went on to the other half of the chip: a peer's tables may lie there.
        turns: u8,
    },
    /// Dropped.
    Drop(DropReason),
    /// Dropped, and software is told whose MAC address is to be asked for: a notice of a few bytes, not the packet.
    Unresolved {
        /// Line of the next hop in table memory.
        nexthop: u32,
    },
    /// Not for the gateway: left to the host as it came.
    Pass,
    /// Handed over to the software path, which decides.
    Punt(Handover),
}

impl From<DropReason> for Outcome {
    fn from(reason: DropReason) -> Outcome {
        Outcome::Drop(reason)
    }
}

impl From<Handover> for Outcome {
    fn from(why: Handover) -> Outcome {
        Outcome::Punt(why)
    }
}

/// Why a packet is handed over: each is something that a pipeline of match-action stages cannot do, or must not do twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Handover {
    /// An outer UDP checksum is to be verified or made: a sum over the whole payload, which no stage sees.
    Checksum,
    /// IPv4 options or IPv6 extension headers: the parser takes headers of fixed length.
    Options,
    /// ARP, neighbour discovery, or something for the gateway's own address, as what has a link-local address may be: a packet is to be made
    /// as an answer.
    Answer,
    /// The packet is dropped and its sender is owed an ICMP error, which is a packet to be made.
    IcmpDue,
    /// It does not fit the next hop's MTU: to be cut, or an ICMP error is owed.
    TooBig,
    /// Security groups judge sessions: those of the VPC, or of servers behind inline pairs.
    Filtered,
    /// The VPC has a way to the Internet, or the packet may come from there: sessions are software's.
    Session,
    /// The route leads to a router at another tunnel end: software finds it by another address than the packet's.
    Router,
    /// The tables of the chip contradict each other, which building them excludes.
    Fault,
}

impl Handover {
    /// Short name, for counters.
    pub fn name(self) -> &'static str {
        match self {
            Handover::Checksum => "checksum",
            Handover::Options => "options",
            Handover::Answer => "answer",
            Handover::IcmpDue => "icmp_due",
            Handover::TooBig => "too_big",
            Handover::Filtered => "filtered",
            Handover::Session => "session",
            Handover::Router => "router",
            Handover::Fault => "fault",
        }
    }
}
