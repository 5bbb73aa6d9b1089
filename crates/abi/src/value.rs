// SPDX-License-Identifier: Apache-2.0
//! Numbers that are not to be mistaken for one another, each a type of its own over the plain number that layouts hold.
//!
//! A layout or a packed word keeps the plain number; whoever reads or writes it converts there.

use std::fmt;
use std::num::TryFromIntError;

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
}
