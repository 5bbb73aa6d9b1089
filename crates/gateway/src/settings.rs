// SPDX-License-Identifier: Apache-2.0
//! The options word of table memory, read once a batch and taken apart.

use crate::packet::Addr;
use abi::*;
use tables::Tables;

/// Options and own addresses for one batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub vtep4: u32,
    pub vtep6: Addr,
    /// VXLAN port.
    pub port: u16,
    /// Only known NCs that host the VNI may send.
    pub strict: bool,
    /// Outer UDP checksum over IPv4, over IPv6.
    pub udp4_checksum: bool,
    pub udp6_checksum: bool,
    /// A zero outer UDP checksum over IPv6 is refused.
    pub udp6_zero_refused: bool,
    /// DSCP is carried between outer and inner header.
    pub uniform: bool,
    /// ECN is neither read nor written.
    pub ecn_off: bool,
    /// Packets from or to a prefix for documentation are dropped.
    pub no_documentation: bool,
    /// A tunnel packet may be sent in fragments where no smaller inner packet may be asked for.
    pub tunnel_fragments: bool,
    /// ICMP errors are sent.
    pub icmp: bool,
    /// Role filter: frames pass between the two ports of inline pairs.
    pub inline: bool,
    /// The node is an edge: there may be ports towards customers.
    pub edge: bool,
    /// There are VMs that are shaped.
    pub shaped: bool,
    /// DSCP of outer headers in the pipe model, shifted to its place in the TOS byte.
    pub dscp: u8,
    /// Sum of the outer IPv4 header's constant words, for its checksum.
    pub ipv4_sum: u32,
}

impl Settings {
    /// The settings in table memory.
    pub fn read(tables: &Tables) -> Settings {
        let (hi, lo) = tables.vtep6();
        let edge = tables.is_edge();
        let shaped = tables.has_shaped_vms();
        Settings { edge, shaped, ..Settings::new(tables.options(), tables.vtep4(), Addr { hi, lo }) }
    }

    /// Takes the options word apart.
    pub fn new(options: u64, vtep4: u32, vtep6: Addr) -> Settings {
        Settings {
            vtep4,
            vtep6,
            port: (options >> OPT_PORT_SHIFT) as u16,
            strict: options & OPT_SOURCE_STRICT != 0,
            udp4_checksum: options & OPT_UDP4_CHECKSUM != 0,
            udp6_checksum: options & OPT_UDP6_CHECKSUM != 0,
            udp6_zero_refused: options & OPT_UDP6_ZERO_REFUSED != 0,
            uniform: options & OPT_DSCP_UNIFORM != 0,
            ecn_off: options & OPT_ECN_OFF != 0,
            no_documentation: options & OPT_DOCUMENTATION_DROPPED != 0,
            tunnel_fragments: options & OPT_TUNNEL_FRAGMENTS != 0,
            icmp: options & (OPT_ICMP | OPT_INLINE) == OPT_ICMP,
            inline: options & OPT_INLINE != 0,
            edge: false,
            shaped: false,
            dscp: ((options >> OPT_DSCP_SHIFT) as u8 & 0x3f) << 2,
            ipv4_sum: 0x4500 + 0x4000 + 0x4011 + (vtep4 >> 16) + (vtep4 & 0xffff),
        }
    }

    /// Whether an address is the gateway's own tunnel address.
    pub fn is_vtep(&self, addr: Addr, v6: bool) -> bool {
        self.has_vtep(v6) && if v6 { addr == self.vtep6 } else { addr.as_v4() == self.vtep4 }
    }

    /// The gateway has a tunnel address of this family.
    #[inline(always)]
    pub fn has_vtep(&self, v6: bool) -> bool {
        match v6 {
            true => self.vtep6 != Addr::default(),
            false => self.vtep4 != 0,
        }
    }
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
