// SPDX-License-Identifier: Apache-2.0
//! EVPN: what its instances must agree on with each other and with the VPCs.

use super::named::{in_turn, Described, Fault};
use super::Model;
use crate::error::Problem;
use crate::kinds::*;
use std::collections::HashMap;

impl Model {
    /// Every rule that joins instances with each other and with the rest. Of two that claim the same, the one that is `described` is at fault.
    pub(super) fn evpn_faults(&self, out: &mut Vec<Fault>, described: Described) {
        let (mut vpcs, mut imports, mut rds) = (HashMap::new(), HashMap::new(), HashMap::new());
        for e in in_turn(&self.named.evpn_instances, |name| described(Kind::EvpnInstance, name)) {
            let mut fault = |field: String, problem| out.push((Kind::EvpnInstance, e.name.clone(), field, problem));
            let by = |other: &Name| format!("EvpnInstance `{other}`");
            if let Some(other) = vpcs.insert(&e.vpc, &e.name) {
                fault("spec.vpc".into(), Problem::EdgeTaken { what: format!("Vpc `{}`", e.vpc), by: by(other) });
            }
            for (i, target) in e.import.iter().enumerate() {
                // A list that has one twice is refused for itself.
                if let Some(other) = imports.insert(target, &e.name).filter(|other| **other != e.name) {
                    let by = format!("{}: whose would be what has it?", by(other));
                    fault(
                        format!("spec.import[{i}]"),
                        Problem::EdgeTaken { what: format!("route target {target}"), by },
                    );
                }
            }
            // A VPC that is not there is told of as a name that must exist.
            let Some(vni) = self.vpc_of_name(&e.vpc).map(|vpc| vpc.spec().vni) else { continue };
            let rd = e.distinguisher(vni, self.gateway.as_ref().and_then(|g| g.vtep4));
            // In a region the controller announces, at each cluster's address, and a node that it leads has none to find.
            let lone = self.gateway.is_some() && self.own_name().is_none();
            let never = self.is_of_region() && e.distinguisher(vni, Some(std::net::Ipv4Addr::UNSPECIFIED)).is_none();
            match rd {
                None if !e.export.is_empty() && (lone || never) => {
                    let why = format!(
                        "is missing: VNI {vni} of Vpc `{}` and the Gateway's IPv4 tunnel address make no route distinguisher",
                        e.vpc
                    );
                    fault("spec.rd".into(), Problem::Value(why));
                }
                None => {}
                Some(rd) => {
                    if let Some(other) = rds.insert(rd, &e.name) {
                        let what = format!("route distinguisher {rd}");
                        fault("spec.rd".into(), Problem::EdgeTaken { what, by: by(other) });
                    }
                }
            }
        }
    }
}

impl EvpnInstance {
    /// Its route distinguisher: what is written, or what follows from the VPC's VNI and the node's tunnel address.
    pub fn distinguisher(&self, vni: abi::Vni, vtep: Option<std::net::Ipv4Addr>) -> Option<BgpNumber> {
        let usual = || Some(BgpNumber::Ip(vtep?, u16::try_from(vni.0).ok()?));
        self.rd.or_else(usual)
    }
}
