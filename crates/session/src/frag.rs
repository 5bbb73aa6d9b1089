// SPDX-License-Identifier: Apache-2.0
//! Fragments of packets whose ports must be known: a bounded table from a datagram's identity to the ports of its first
//! fragment. Later fragments that come before the first one are held, within limits, and given back when it comes.
//!
//! Overlapping fragments, even by one byte, end the datagram (RFC 5722, also for IPv4): ports that were checked must be
//! those that the receiver sees.

use std::net::IpAddr;

/// What the fragments of one datagram have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FragKey {
    /// The VNI for packets of VMs; None for packets from the Internet.
    pub vni: Option<u32>,
    /// Source.
    pub src: IpAddr,
    /// Destination.
    pub dst: IpAddr,
    /// Protocol (IPv6: of the fragment header).
    pub proto: u8,
    /// Identification.
    pub id: u32,
}

/// One fragment.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Offset of its payload in the datagram, bytes.
    pub offset: u32,
    /// Bytes of payload.
    pub len: u32,
    /// Whether more follow.
    pub more: bool,
}

/// The transport fields that the first fragment tells: source and destination port, or the ICMP identifier as source port.
pub type Ports = (u16, u16);

/// What becomes of a fragment.
#[derive(Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its ports.
    Known(Ports),
    /// It is held until the first fragment comes.
    Held,
    /// It is dropped (`nat_fragment`): overlap, no room, or malformed.
    Drop,
}

/// Limits of a [`FragTable`].
#[derive(Clone, Copy, Debug)]
pub struct FragLimits {
    /// Datagrams at most.
    pub datagrams: usize,
    /// Datagrams of one tenant at most; those from the Internet count as one tenant.
    pub datagrams_tenant: usize,
    /// Bytes of held fragments at most.
    pub held_bytes: usize,
    /// Bytes of held fragments of one datagram at most.
    pub held_bytes_datagram: usize,
    /// How long a datagram is remembered after its first piece, ns.
    pub lifetime: u64,
}

impl Default for FragLimits {
    fn default() -> FragLimits {
        FragLimits {
            datagrams: 16_384,
            datagrams_tenant: 1024,
            held_bytes: 16 << 20,
            held_bytes_datagram: 65_536,
            lifetime: 15_000_000_000,
        }
    }
}

/// The table. One per worker, or behind a lock.
pub struct FragTable {
    limits: FragLimits,
}

impl FragTable {
    /// An empty one.
    pub fn new(limits: FragLimits) -> FragTable {
        FragTable { limits }
    }

    /// A first fragment (offset 0, more follow) came with these ports. Held fragments that came before are handed to
    /// `release` in their order of arrival, each to be treated as `Known`. False: it is to be dropped.
    pub fn first(
        &mut self,
        key: &FragKey,
        piece: Piece,
        ports: Ports,
        now: u64,
        release: &mut dyn FnMut(Vec<u8>),
    ) -> bool {
        todo!()
    }

    /// A later fragment came; `frame` is copied if it must be held.
    pub fn later(&mut self, key: &FragKey, piece: Piece, frame: &[u8], now: u64) -> Fate {
        todo!()
    }

    /// Forgets what is too old; held fragments go to `dropped` (they are to be counted as `nat_fragment`). Call it now and then.
    pub fn expire(&mut self, now: u64, dropped: &mut dyn FnMut(&FragKey, Vec<u8>)) {
        todo!()
    }
}
