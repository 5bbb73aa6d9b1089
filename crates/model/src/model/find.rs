// SPDX-License-Identifier: Apache-2.0
//! VMs by what they have: addresses, of one VPC or of all. A VPC knows its own addresses in order, so no index of the whole is kept.

use super::Model;
use crate::kinds::{Nc, Vm};
use crate::prefix::Mac;
use std::net::IpAddr;

impl Model {
    /// VMs that have an address from one to another, of one VPC or of all, VPC by VPC. Addresses of two families give nothing.
    pub fn vms_between(&self, vpc: Option<&str>, first: IpAddr, last: IpAddr) -> impl Iterator<Item = Vm> + '_ {
        let only = vpc.map(|vpc| self.vpc_names.get(vpc).copied());
        let vpcs: Box<dyn Iterator<Item = u32>> = match only {
            Some(id) => Box::new(id.into_iter()),
            None => Box::new(self.vpc_names.values().copied()),
        };
        vpcs.flat_map(move |id| {
            let state = self.vpc(id);
            let macs: Box<dyn Iterator<Item = Mac> + '_> = match (first, last) {
                (IpAddr::V4(a), IpAddr::V4(b)) if a <= b => Box::new(state.addresses4_in(a, b).map(|(_, mac)| mac)),
                (IpAddr::V6(a), IpAddr::V6(b)) if a <= b => {
                    Box::new(state.addrs6.range(a.to_bits()..=b.to_bits()).map(|(_, mac)| *mac))
                }
                _ => Box::new(std::iter::empty()),
            };
            macs.filter_map(move |mac| Some(self.vm_object(id, mac, state.vms.get(&mac)?)))
        })
    }

    /// The NC with a tunnel address.
    pub fn nc_with(&self, address: IpAddr) -> Option<Nc> {
        self.nc_addrs.get(&address).map(|id| self.nc_object(*id))
    }

    /// How many VMs and routes a VPC has.
    pub fn sizes(&self, vpc: &str) -> Option<(u64, u64)> {
        let state = self.vpc(*self.vpc_names.get(vpc)?);
        Some((state.vms.len() as u64, state.routes_len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use crate::documents::parse_files;
    use crate::{Kind, Model, Object};
    use std::net::IpAddr;

    #[test]
    fn vms_are_found_by_their_addresses() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/region.yaml");
        let model = Model::from_documents(&parse_files(&[path]).unwrap()).unwrap().0;
        let all: Vec<_> =
            model.objects(Kind::Vm).filter_map(|o| if let Object::Vm(vm) = o { Some(vm) } else { None }).collect();
        let bounds: [[IpAddr; 2]; 2] =
            [["0.0.0.0", "255.255.255.255"], ["::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]]
                .map(|pair| pair.map(|a| a.parse().unwrap()));
        let of = |v4: bool| all.iter().flat_map(|vm| vm.addresses.iter()).filter(|a| a.is_ipv4() == v4).count();
        assert_eq!(model.vms_between(None, bounds[0][0], bounds[0][1]).count(), of(true));
        assert_eq!(model.vms_between(None, bounds[1][0], bounds[1][1]).count(), of(false));
        assert!(of(true) > 0 && of(false) > 0);
        for vm in &all {
            for address in vm.addresses.iter() {
                let found: Vec<_> = model.vms_between(Some(&vm.vpc), *address, *address).collect();
                assert_eq!(found, std::slice::from_ref(vm));
                assert!(model.vms_between(None, *address, *address).any(|other| other == *vm));
            }
        }
        assert_eq!(model.vms_between(Some("none"), bounds[0][0], bounds[0][1]).count(), 0);
        assert_eq!(model.vms_between(None, bounds[0][1], bounds[0][0]).count(), 0);
        assert_eq!(model.vms_between(None, bounds[0][0], bounds[1][1]).count(), 0);
        let sum =
            model.vpc_names().map(|(_, vpc)| model.sizes(&vpc).unwrap()).fold((0, 0), |s, n| (s.0 + n.0, s.1 + n.1));
        assert_eq!(sum, (model.counts().of(Kind::Vm), model.counts().of(Kind::Route)));
    }
}
