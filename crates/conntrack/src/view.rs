// SPDX-License-Identifier: Apache-2.0
//! What the state machines need to know of a packet.

use crate::{InnerKey, OuterKey, PairKey};

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the VM.
    Out = 0,
    /// To the VM.
    In = 1,
}

impl Direction {
    /// The other one.
    #[inline(always)]
    pub fn reverse(self) -> Direction {
        match self {
            Direction::Out => Direction::In,
            Direction::In => Direction::Out,
        }
    }
}

/// A TCP segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Flags (`wire::tcp::SYN` …); ECE and CWR are disregarded.
    pub flags: u8,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number; disregarded without ACK.
    pub ack: u32,
    /// Window as in the header.
    pub window: u16,
    /// Bytes of data.
    pub len: u32,
    /// Window scale option; disregarded without SYN.
    pub scale: Option<u8>,
}

/// The transport part of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L4View {
    /// TCP.
    Tcp(Segment),
    /// ICMP or ICMPv6 echo.
    Echo {
        /// Whether it is a request.
        request: bool,
    },
    /// UDP and every protocol without state.
    Other,
}

/// The packet inside an ICMP error, as far as 8 bytes of its transport header tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Embedded {
    /// The error came from the Internet: the embedded packet was sent by the public address.
    FromOutside {
        /// Its key: public is the embedded source.
        key: OuterKey,
        /// Its TCP sequence number.
        seq: Option<u32>,
    },
    /// The error came from the VM: the embedded packet had been sent to the VM.
    FromInside {
        /// Its key: VM is the embedded destination.
        key: InnerKey,
        /// Its TCP sequence number.
        seq: Option<u32>,
    },
    /// The error is about a packet between two ends inside.
    OfPair {
        /// Its key.
        key: PairKey,
        /// Which way it went.
        sent: Direction,
        /// Its TCP sequence number.
        seq: Option<u32>,
    },
}
