// SPDX-License-Identifier: Apache-2.0
//! Packet views and builders, one protocol a file. No I/O, no clock, no allocation in the views.
//!
//! Every protocol follows one template. `field` names byte ranges. A view (`Packet<T>`, `Frame<T>`, `Header<T>`) wraps
//! anything that lends bytes: a slice, a vector, or an array reference such as `&[u8; 20]`, for which the compiler
//! knows the length and drops every bounds check. `new_checked` looks at lengths and at what the header says of
//! itself; after it **no accessor panics**. `new_unchecked` followed by an accessor panics on a short buffer, so it is
//! for arrays and for bytes that were just measured. A `Repr` is the header as plain values: `parse` reads one,
//! `emit` writes one.
//!
//! Numbers are in host order: an IPv4 address is a `u32` (10.0.0.1 = 0x0a000001), an IPv6 address a `u128`, a MAC
//! address a `u64` of 48 bits (first octet uppermost), as in table memory.
#![forbid(unsafe_code)]

/// A view over anything that lends bytes, with the two constructors that all views have.
///
/// `view!(docs Name, least bytes, docs of new_checked, fn = |view, available| whether its header agrees with itself and `available` bytes)`.
macro_rules! view {
    ($(#[$doc:meta])* $name:ident, $least:ident, $(#[$checked:meta])* fn = $well_formed:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<T>(T);

        impl<T: AsRef<[u8]>> $name<T> {
            /// Wraps bytes that are known to hold a header.
            #[inline(always)]
            pub const fn new_unchecked(buffer: T) -> Self {
                $name(buffer)
            }

            $(#[$checked])*
            pub fn new_checked(buffer: T) -> crate::Result<Self> {
                let available = buffer.as_ref().len();
                if available < $least {
                    return Err(crate::Error::Truncated);
                }
                let view = $name(buffer);
                let well_formed: fn(&Self, usize) -> bool = $well_formed;
                match well_formed(&view, available) {
                    true => Ok(view),
                    false => Err(crate::Error::Malformed),
                }
            }
        }
    };
}

/// Setters of fields that are whole numbers: `setters!(Name: docs set_it = be::function FIELD: type; …)`.
macro_rules! setters {
    ($name:ident: $($(#[$doc:meta])* $set:ident = $put:ident $field:ident: $number:ty;)*) => {
        impl<T: AsMut<[u8]>> $name<T> {
            $(
                $(#[$doc])*
                #[inline(always)]
                pub fn $set(&mut self, value: $number) {
                    crate::be::$put(self.0.as_mut(), field::$field, value);
                }
            )*
        }
    };
}

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod icmpv4;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
pub mod nd;
pub mod tcp;
pub mod udp;
pub mod vxlan;

/// Why bytes are not what they claim to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The buffer ends inside the header.
    Truncated,
    /// A field contradicts another one or the length of the buffer.
    Malformed,
    /// A checksum is wrong.
    Checksum,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Error::Truncated => "the bytes end inside the header",
            Error::Malformed => "a header field contradicts another one or the length",
            Error::Checksum => "a checksum is wrong",
        })
    }
}

impl std::error::Error for Error {}

/// Result of looking at bytes.
pub type Result<T> = std::result::Result<T, Error>;

/// Protocol numbers (IPv4 protocol, IPv6 next header).
pub mod protocol {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// DCCP.
    pub const DCCP: u8 = 33;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// Authentication header of IPsec.
    pub const AUTHENTICATION: u8 = 51;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
    /// IPv6: nothing follows.
    pub const NO_NEXT_HEADER: u8 = 59;
    /// IPv6 destination options.
    pub const DESTINATION_OPTIONS: u8 = 60;
    /// SCTP.
    pub const SCTP: u8 = 132;
    /// IPv6 mobility header.
    pub const MOBILITY: u8 = 135;
    /// UDP-Lite.
    pub const UDP_LITE: u8 = 136;
    /// Host Identity Protocol.
    pub const HIP: u8 = 139;
    /// Shim6.
    pub const SHIM6: u8 = 140;
}

/// Big-endian loads and stores at fixed offsets. They panic beyond the buffer, which a checked view never asks for.
pub mod be {
    /// `N` bytes at `at`, loaded as one.
    #[inline(always)]
    fn load<const N: usize>(b: &[u8], at: usize) -> [u8; N] {
        match b[at..at + N].first_chunk() {
            Some(bytes) => *bytes,
            None => unreachable!("the range has N bytes"),
        }
    }
    /// Two bytes at `at`.
    #[inline(always)]
    pub fn u16(b: &[u8], at: usize) -> u16 {
        u16::from_be_bytes(load(b, at))
    }
    /// Four bytes at `at`.
    #[inline(always)]
    pub fn u32(b: &[u8], at: usize) -> u32 {
        u32::from_be_bytes(load(b, at))
    }
    /// Eight bytes at `at`.
    #[inline(always)]
    pub fn u64(b: &[u8], at: usize) -> u64 {
        u64::from_be_bytes(load(b, at))
    }
    /// Sixteen bytes at `at`.
    #[inline(always)]
    pub fn u128(b: &[u8], at: usize) -> u128 {
        (u64(b, at) as u128) << 64 | u64(b, at + 8) as u128
    }
    /// A MAC address at `at`.
    #[inline(always)]
    pub fn mac(b: &[u8], at: usize) -> u64 {
        (u32(b, at) as u64) << 16 | u16(b, at + 4) as u64
    }
    /// Stores `N` bytes at `at` as one. (`copy_from_slice` is a call of `memcpy` where it is not inlined, for two bytes too.)
    #[inline(always)]
    fn store<const N: usize>(b: &mut [u8], at: usize, bytes: [u8; N]) {
        match b[at..at + N].first_chunk_mut() {
            Some(to) => *to = bytes,
            None => unreachable!("the range has N bytes"),
        }
    }
    /// Stores a byte.
    #[inline(always)]
    pub fn set_u8(b: &mut [u8], at: usize, v: u8) {
        b[at] = v;
    }
    /// Stores two bytes.
    #[inline(always)]
    pub fn set_u16(b: &mut [u8], at: usize, v: u16) {
        store(b, at, v.to_be_bytes());
    }
    /// Stores four bytes.
    #[inline(always)]
    pub fn set_u32(b: &mut [u8], at: usize, v: u32) {
        store(b, at, v.to_be_bytes());
    }
    /// Stores eight bytes.
    #[inline(always)]
    pub fn set_u64(b: &mut [u8], at: usize, v: u64) {
        store(b, at, v.to_be_bytes());
    }
    /// Stores sixteen bytes.
    #[inline(always)]
    pub fn set_u128(b: &mut [u8], at: usize, v: u128) {
        store(b, at, v.to_be_bytes());
    }
    /// Stores a MAC address.
    #[inline(always)]
    pub fn set_mac(b: &mut [u8], at: usize, v: u64) {
        store(b, at, ((v >> 16) as u32).to_be_bytes());
        store(b, at + 4, (v as u16).to_be_bytes());
    }
}
