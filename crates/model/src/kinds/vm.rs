// SPDX-License-Identifier: Apache-2.0

use super::{Described, Kind, Meter, MeterSlot, Name, Shape, ShapeSlotOfMany};
use crate::broken::stand_ins;
use crate::declare::fields;
use crate::doc::Doc;
use crate::forms::*;
use crate::prefix::Mac;
use std::net::IpAddr;

const ADDRESSES: &str = "1 to 64 unicast addresses that may be forwarded, unique in the VPC";

fields! {
    /// A virtual machine's port: which addresses of a VPC are behind which MAC address on which server.
    pub kind Vm {
        /// Name, unique among VMs. Without one the VM is known by the default.
        name: Option<Name> = "metadata.name", OptionalName("`<vpc>/<first address>`");
        /// Its VPC.
        vpc: Name = "spec.vpc", name_of(Kind::Vpc, "name of a Vpc").required(stand_ins::name);
        /// Its addresses, IPv4 and IPv6. A warning is given for one that lies in no local route.
        addresses: Addresses = "spec.addresses", inner().list(64, ADDRESSES).full().held_as();
        /// Its MAC address.
        mac: Mac = "spec.mac", mac_in_vpc().required(stand_ins::mac);
        /// The server that it runs on.
        nc: Name = "spec.nc", name_of(Kind::Nc, "name of an Nc").required(stand_ins::name);
        /// Limit of what is sent to it.
        meter: Option<Box<Meter>> = "spec.meter", MeterSlot;
        /// Shaping of what is sent to it, and of what it sends: each direction has the rate for itself, at each node. What a meter lets pass waits for its turn.
        shape: Option<Box<Shape>> = "spec.shape", ShapeSlotOfMany;
    }
}

impl Described for Vm {
    const OF_VPCS: bool = true;

    fn name(&self) -> Name {
        self.name.clone().unwrap_or_else(|| vm_name(&self.vpc, self.addresses[0]))
    }

    fn summary(&self) -> String {
        let list: Vec<String> = self.addresses.iter().map(|a| a.to_string()).collect();
        format!("{} in {} on {}", list.join(", "), self.vpc, self.nc)
    }

    fn vpcs(&self) -> &[Name] {
        std::slice::from_ref(&self.vpc)
    }

    fn check(self, doc: &mut Doc<'_>) -> Option<Vm> {
        // Without a name it is known by its VPC and first address.
        let known = !doc.is_wrong("spec.vpc") && doc.has_first("spec.addresses");
        (self.name.is_some() || known).then_some(self)
    }
}

/// Canonical name of a VM.
pub fn vm_name(vpc: &str, first: IpAddr) -> Name {
    format!("{vpc}/{first}").into()
}

/// A name of a VM, its own or the canonical one.
pub(crate) fn check_vm_name(s: &str) -> Result<(), String> {
    match s.split_once('/') {
        None => crate::check_name(s),
        Some((vpc, address)) => {
            crate::check_name(vpc)?;
            address.parse::<IpAddr>().map(drop).map_err(|_| format!("`{address}` is no IP address"))
        }
    }
}

/// The addresses of a VM, as written; one or two are held without an allocation of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// One.
    One([IpAddr; 1]),
    /// Two.
    Two([IpAddr; 2]),
    /// More.
    Many(Box<[IpAddr]>),
}

impl Addresses {
    /// From a list that is not empty.
    pub fn new(list: &[IpAddr]) -> Option<Addresses> {
        match *list {
            [] => None,
            [a] => Some(Addresses::One([a])),
            [a, b] => Some(Addresses::Two([a, b])),
            _ => Some(Addresses::Many(list.into())),
        }
    }
}

impl From<Vec<IpAddr>> for Addresses {
    /// Something takes the place of none.
    fn from(list: Vec<IpAddr>) -> Addresses {
        Addresses::new(&list).unwrap_or_else(|| Addresses::One([stand_ins::address()]))
    }
}

impl std::ops::Deref for Addresses {
    type Target = [IpAddr];

    fn deref(&self) -> &[IpAddr] {
        match self {
            Addresses::One(a) => a,
            Addresses::Two(a) => a,
            Addresses::Many(a) => a,
        }
    }
}
