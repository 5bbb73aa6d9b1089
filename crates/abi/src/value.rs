// SPDX-License-Identifier: Apache-2.0
//! Numbers that are not to be mistaken for one another, each a type of its own over the plain number that layouts hold.
//!
//! A layout or a packed word keeps the plain number; whoever reads or writes it converts there.

use std::fmt;
use std::num::TryFromIntError;
use std::ops::{Add, AddAssign, Sub};

macro_rules! numbers {
    ($($(#[doc = $doc:literal])+ $Name:ident;)+) => {
        $(
            $(#[doc = $doc])+
            #[repr(transparent)]
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
            pub struct $Name(pub u32);

            impl fmt::Display for $Name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    self.0.fmt(f)
                }
            }

            impl From<u32> for $Name {
                #[inline(always)]
                fn from(n: u32) -> Self {
                    Self(n)
                }
            }

            impl From<$Name> for u32 {
                #[inline(always)]
                fn from(n: $Name) -> u32 {
                    n.0
                }
            }

            impl From<$Name> for u64 {
                #[inline(always)]
                fn from(n: $Name) -> u64 {
                    n.0.into()
                }
            }
        )+
    };
}

numbers! {
    /// A VXLAN network identifier, 24 bits (RFC 7348, section 5): it names a VPC in packets.
    Vni;
    /// The number of a VPC in the tables, where its record and its counters are; 0 is none.
    VpcId;
    /// The number of a VM in the tables, where its counters and its meter are; 0 is none.
    VmId;
    /// The number of an NC in the tables, where its address and its group of next hops are; 0 is none.
    NcId;
    /// The kernel's number of a network interface, 1 and up (RFC 3493, section 4); 0 is none.
    IfIndex;
    /// The number of a 64-byte line in a memory; 0 is none.
    LineNo;
}

impl LineNo {
    /// The line so many behind this one. It wraps: what garbage leads to is an empty line, never a panic.
    #[inline(always)]
    pub fn wrapping_add(self, lines: u32) -> LineNo {
        LineNo(self.0.wrapping_add(lines))
    }
}

impl Add<u32> for LineNo {
    type Output = LineNo;

    #[inline(always)]
    fn add(self, lines: u32) -> LineNo {
        LineNo(self.0 + lines)
    }
}

impl AddAssign<u32> for LineNo {
    #[inline(always)]
    fn add_assign(&mut self, lines: u32) {
        self.0 += lines;
    }
}

impl Sub<u32> for LineNo {
    type Output = LineNo;

    #[inline(always)]
    fn sub(self, lines: u32) -> LineNo {
        LineNo(self.0 - lines)
    }
}

/// The lines from one to another.
impl Sub for LineNo {
    type Output = u32;

    #[inline(always)]
    fn sub(self, first: LineNo) -> u32 {
        self.0 - first.0
    }
}

/// For numbers of documents, which are read as 64 bits.
impl TryFrom<u64> for Vni {
    type Error = TryFromIntError;

    fn try_from(n: u64) -> Result<Vni, TryFromIntError> {
        u32::try_from(n).map(Vni)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_itself_in_every_form() {
        assert_eq!((Vni(7).to_string(), format!("{:>3}", Vni(7))), ("7".into(), "  7".into()));
        assert_eq!((Vni::from(7), u32::from(Vni(7)), u64::from(Vni(7))), (Vni(7), 7, 7));
        assert_eq!((Vni::try_from(7u64), Vni::try_from(1u64 << 32).is_err()), (Ok(Vni(7)), true));
        assert_eq!((size_of::<Option<Vni>>(), size_of::<Vni>()), (8, 4));
    }

    #[test]
    fn lines_are_counted_from_one_to_another() {
        let mut line = LineNo(7) + 3;
        line += 2;
        assert_eq!((line, line - 5, line - LineNo(7)), (LineNo(12), LineNo(7), 5));
        assert_eq!(LineNo(u32::MAX).wrapping_add(3), LineNo(2));
    }
}
