// SPDX-License-Identifier: Apache-2.0
//! Neighbour discovery for IPv6 (RFC 4861): checks, solicitations, advertisements.

use crate::icmpv6::{self, kind};
use crate::{be, Error, Result};

/// Bytes of a neighbour solicitation or advertisement without options.
pub const NEIGHBOUR_LEN: usize = 24;
/// Bytes of an advertisement with its link-layer address option.
pub const ADVERTISEMENT_LEN: usize = NEIGHBOUR_LEN + 8;
/// Advertisement flag: the sender is a router.
pub const FLAG_ROUTER: u32 = 1 << 31;
/// Advertisement flag: sent in answer to a solicitation.
pub const FLAG_SOLICITED: u32 = 1 << 30;
/// Advertisement flag: replaces what the receiver has cached.
pub const FLAG_OVERRIDE: u32 = 1 << 29;
/// Option: link-layer address of the sender of a solicitation.
pub const OPTION_SOURCE_MAC: u8 = 1;
/// Option: link-layer address of the target of an advertisement.
pub const OPTION_TARGET_MAC: u8 = 2;

/// All-nodes multicast address of the link.
pub const ALL_NODES: u128 = 0xff02 << 112 | 1;

/// Solicited-node multicast address of `target`.
pub const fn solicited_node(target: u128) -> u128 {
    0xff02 << 112 | 0x1_ff00_0000 | target & 0xff_ffff
}

/// Multicast MAC address that carries an IPv6 multicast address (RFC 2464).
pub const fn multicast_mac(group: u128) -> u64 {
    0x3333 << 32 | (group & 0xffff_ffff) as u64
}

/// Bytes before the options of a neighbour discovery message of this type; `None` for other types.
pub const fn fixed_len(kind: u8) -> Option<usize> {
    match kind {
        kind::ROUTER_SOLICITATION => Some(8),
        kind::ROUTER_ADVERTISEMENT => Some(16),
        kind::NEIGHBOUR_SOLICITATION | kind::NEIGHBOUR_ADVERTISEMENT => Some(NEIGHBOUR_LEN),
        kind::REDIRECT => Some(40),
        _ => None,
    }
}

/// Whether an address is the solicited-node multicast address of some address.
pub const fn is_solicited_node(addr: u128) -> bool {
    addr >> 24 == solicited_node(0) >> 24
}

/// Whether there is an option of this type among options that are whole.
pub fn has_option(mut options: &[u8], kind: u8) -> bool {
    while let [k, len, ..] = options {
        if *k == kind {
            return true;
        }
        options = options.get((*len).max(1) as usize * 8..).unwrap_or(&[]);
    }
    false
}

/// What a receiver checks of a message whose options are whole, beyond hop limit, checksum, code and length (RFC 4861 §6.1, §7.1,
/// §8.1). `message` is at least as long as its type's fixed part.
pub fn valid(src: u128, dst: u128, message: &[u8]) -> bool {
    let (multicast, link_local) = (|a: u128| a >> 120 == 0xff, |a: u128| a >> 118 == 0xfe80 >> 6);
    let kind = message[0];
    let options = fixed_len(kind).and_then(|n| message.get(n..)).unwrap_or(&[]);
    match kind {
        kind::ROUTER_SOLICITATION => src != 0 || !has_option(options, OPTION_SOURCE_MAC),
        kind::ROUTER_ADVERTISEMENT => link_local(src),
        // Who asks whether an address is in use has none yet, and asks all who might have it.
        kind::NEIGHBOUR_SOLICITATION => {
            !multicast(be::u128(message, 8))
                && (src != 0 || is_solicited_node(dst) && !has_option(options, OPTION_SOURCE_MAC))
        }
        kind::NEIGHBOUR_ADVERTISEMENT => {
            !multicast(be::u128(message, 8)) && !(multicast(dst) && be::u32(message, 4) & FLAG_SOLICITED != 0)
        }
        kind::REDIRECT => {
            let (target, about) = (be::u128(message, 8), be::u128(message, 24));
            link_local(src) && !multicast(about) && (link_local(target) || target == about)
        }
        _ => false,
    }
}

/// Options are whole: none of length zero, none cut off.
pub fn options_ok(mut options: &[u8]) -> bool {
    while !options.is_empty() {
        match options.get(1) {
            Some(0) | None => return false,
            Some(&len) => match options.get(len as usize * 8..) {
                Some(rest) => options = rest,
                None => return false,
            },
        }
    }
    true
}

/// A neighbour solicitation as values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Solicitation {
    /// The address whose MAC is asked for.
    pub target: u128,
    /// MAC address of the asker, if an option names it.
    pub source_mac: Option<u64>,
}

impl Solicitation {
    /// Reads a message whose checksum and options were checked.
    pub fn parse(message: &[u8]) -> Result<Solicitation> {
        if message.len() < NEIGHBOUR_LEN {
            return Err(Error::Truncated);
        }
        let mut source_mac = None;
        let mut options = &message[NEIGHBOUR_LEN..];
        while let [kind, len, rest @ ..] = options {
            if *kind == OPTION_SOURCE_MAC && *len == 1 && rest.len() >= 6 {
                source_mac = Some(be::mac(rest, 0));
            }
            match options.get((*len).max(1) as usize * 8..) {
                Some(next) => options = next,
                None => return Err(Error::Truncated),
            }
        }
        Ok(Solicitation { target: be::u128(message, 8), source_mac })
    }

    /// Writes the message with a source option if there is one. The length needed is 24, or 32 with the option.
    pub fn emit(&self, src: u128, dst: u128, message: &mut [u8]) -> Result<()> {
        let needed = NEIGHBOUR_LEN + if self.source_mac.is_some() { 8 } else { 0 };
        if message.len() != needed {
            return Err(Error::Truncated);
        }
        be::set_u128(message, 8, self.target);
        if let Some(mac) = self.source_mac {
            message[24] = OPTION_SOURCE_MAC;
            message[25] = 1;
            be::set_mac(message, 26, mac);
        }
        icmpv6::Repr { kind: kind::NEIGHBOUR_SOLICITATION, code: 0, rest: 0 }.emit(src, dst, message)
    }
}

/// A neighbour advertisement with its target link-layer address option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advertisement {
    /// `FLAG_*`.
    pub flags: u32,
    /// The address that was asked for.
    pub target: u128,
    /// Its MAC address.
    pub mac: u64,
}

impl Advertisement {
    /// Reads a message whose checksum was checked; `Malformed` without the option right behind the fixed part.
    pub fn parse(message: &[u8]) -> Result<Advertisement> {
        let Some(m) = message.first_chunk::<ADVERTISEMENT_LEN>() else { return Err(Error::Truncated) };
        if m[24..26] != [OPTION_TARGET_MAC, 1] {
            return Err(Error::Malformed);
        }
        Ok(Advertisement { flags: be::u32(m, 4), target: be::u128(m, 8), mac: be::mac(m, 26) })
    }

    /// Writes the message.
    pub fn emit(&self, src: u128, dst: u128, message: &mut [u8; ADVERTISEMENT_LEN]) -> Result<()> {
        be::set_u128(message, 8, self.target);
        message[24] = OPTION_TARGET_MAC;
        message[25] = 1;
        be::set_mac(message, 26, self.mac);
        icmpv6::Repr { kind: kind::NEIGHBOUR_ADVERTISEMENT, code: 0, rest: self.flags }.emit(src, dst, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn solicitation() {
        let ns = Solicitation { target: 0xfd00 << 112 | 7, source_mac: Some(0x0200_0000_0001) };
        let mut m = [0xff; 32];
        ns.emit(1, 2, &mut m).unwrap();
        assert_eq!(m[0..2], [135, 0]);
        assert!(icmpv6::checksum_ok(1, 2, &m) && options_ok(&m[24..]));
        assert_eq!(Solicitation::parse(&m), Ok(ns));
        let probe = Solicitation { target: 5, source_mac: None };
        let mut m = [0; 24];
        probe.emit(0, 2, &mut m).unwrap();
        assert_eq!(Solicitation::parse(&m), Ok(probe));
        assert_eq!(Solicitation::parse(&m[..23]), Err(Error::Truncated));
        assert_eq!(probe.emit(0, 2, &mut [0; 32]), Err(Error::Truncated));
    }

    #[test]
    fn advertisement() {
        let na = Advertisement { flags: FLAG_SOLICITED | FLAG_OVERRIDE, target: 7, mac: 0x0200_0000_0007 };
        let mut m = [0xff; 32];
        na.emit(7, 1, &mut m).unwrap();
        assert_eq!(m[4..8], [0x60, 0, 0, 0]);
        assert_eq!(Advertisement::parse(&m), Ok(na));
        m[24] = 1;
        assert_eq!(Advertisement::parse(&m), Err(Error::Malformed));
    }

    #[test]
    fn broken_options() {
        assert!(options_ok(&[]));
        assert!(options_ok(&[14, 1, 0, 0, 0, 0, 0, 0]));
        assert!(!options_ok(&[1]));
        assert!(!options_ok(&[1, 0, 0, 0, 0, 0, 0, 0]));
        assert!(!options_ok(&[1, 2, 0, 0, 0, 0, 0, 0]));
        assert!(!options_ok(&[14, 1, 0, 0, 0, 0, 0, 0, 9]));
    }

    #[test]
    fn validity_by_type() {
        let (link, global, all, mac) = (0xfe80 << 112 | 5, 0xfd00 << 112 | 5, ALL_NODES, [1, 1, 2, 0, 0, 0, 0, 5]);
        let node = solicited_node(7);
        let message = |kind: u8, fixed: &[u128], options: &[u8]| {
            let fixed: Vec<u8> = fixed.iter().flat_map(|a| a.to_be_bytes()).collect();
            [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &fixed, options].concat()
        };
        let other = [14, 1, 0, 0, 0, 0, 0, 0];
        let both = [other, mac].concat();
        for (wanted, src, dst, m) in [
            (true, 0, all, message(133, &[], &other)),
            (false, 0, all, message(133, &[], &mac)),
            (true, link, all, message(133, &[], &mac)),
            (true, link, all, [&[134, 0, 0, 0][..], &[0; 12]].concat()),
            (false, global, all, [&[134, 0, 0, 0][..], &[0; 12]].concat()),
            (true, 0, node, message(135, &[7], &[])),
            (true, 0, solicited_node(8), message(135, &[7], &[])),
            (false, 0, node, message(135, &[7], &mac)),
            (false, 0, node, message(135, &[7], &both)),
            (false, 0, 7, message(135, &[7], &[])),
            (false, 0, all, message(135, &[7], &[])),
            (true, global, 7, message(135, &[7], &both)),
            (false, global, 7, message(135, &[all], &[])),
            (true, global, all, message(136, &[7], &mac)),
            (false, global, all, message(136, &[all], &mac)),
            (true, link, global, message(137, &[link, 9], &[])),
            (true, link, global, message(137, &[9, 9], &[])),
            (false, link, global, message(137, &[global, 9], &[])),
            (false, link, global, message(137, &[link, all], &[])),
            (false, global, global, message(137, &[link, 9], &[])),
            (false, link, global, message(138, &[7], &[])),
        ] {
            assert_eq!(valid(src, dst, &m), wanted, "{src:x} > {dst:x} {m:x?}");
        }
        let mut solicited = message(136, &[7], &mac);
        solicited[4] = 0x40;
        assert!(valid(7, global, &solicited) && !valid(7, all, &solicited));
    }

    #[test]
    fn derived_addresses() {
        let target = 0xfd00 << 112 | 0xab_cdef;
        assert_eq!(solicited_node(target), 0xff02_0000_0000_0000_0000_0001_ffab_cdef);
        assert_eq!(multicast_mac(solicited_node(target)), 0x3333_ffab_cdef);
        assert_eq!(multicast_mac(ALL_NODES), 0x3333_0000_0001);
    }

    #[test]
    fn lengths_by_type() {
        assert_eq!(
            [132, 133, 134, 135, 136, 137, 138].map(fixed_len),
            [None, Some(8), Some(16), Some(24), Some(24), Some(40), None]
        );
    }
}
