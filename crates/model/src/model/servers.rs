// SPDX-License-Identifier: Apache-2.0
//! A node in role filter: what its servers and the rest of the configuration must agree on.

use super::named::{in_turn, Described, Fault};
use super::Model;
use crate::error::Problem;
use crate::kinds::*;
use crate::prefix::Prefix;
use std::collections::HashMap;

impl Model {
    /// Every rule that joins servers with the rest.
    pub(super) fn server_faults(&self, out: &mut Vec<Fault>, described: Described) {
        let mut owners: HashMap<(&str, Prefix), &Name> = HashMap::new();
        for s in in_turn(&self.named.servers, |name| described(Kind::Server, name)) {
            let mut fault = |field: String, problem| out.push((Kind::Server, s.name.clone(), field, problem));
            // Without a Gateway there is no knowing yet.
            if self.gateway.as_ref().is_some_and(|g| !g.inline.iter().any(|w| w.server == s.port)) {
                fault("spec.port".into(), Problem::NoInlinePair { port: s.port.clone() });
            }
            for (i, p) in s.addresses.iter().enumerate() {
                if let Some(other) = owners.insert((&s.port, *p), &s.name) {
                    let (address, by) = (p.to_string(), format!("Server `{other}` behind the same port"));
                    fault(format!("spec.addresses[{i}]"), Problem::AddressTaken { address, by });
                }
            }
        }
    }

    /// A filter serves few kinds: what else there is would never be asked.
    pub(super) fn role_faults(&self, out: &mut Vec<Fault>) {
        let Some(g) = self.gateway().filter(|g| g.role == GatewayRole::Filter) else { return };
        let served = [Kind::Gateway, Kind::Vpc, Kind::SecurityGroup, Kind::SecurityBinding, Kind::Server];
        let counts = self.counts();
        let foreign = Kind::ALL.into_iter().filter(|k| !served.contains(k) && counts.of(*k) > 0);
        let kinds: Vec<String> = foreign.map(|k| format!("{} {k}", counts.of(k))).collect();
        if !kinds.is_empty() {
            out.push((
                Kind::Gateway,
                g.name.clone(),
                "spec.role".into(),
                Problem::NotServed { kinds: kinds.join(", ") },
            ));
        }
    }
}
