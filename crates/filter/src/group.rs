// SPDX-License-Identifier: Apache-2.0
//! A compiled group with its counters.

use crate::compile::{Compiled, NONE};
use crate::rule::{GroupSpec, Rule, RuleDirection};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// A group, ready to be asked.
#[derive(Debug)]
pub struct Group {
    spec: Arc<GroupSpec>,
    ingress: Compiled,
    egress: Compiled,
    hits: Box<[AtomicU64]>,
    stateless: bool,
}

impl Group {
    /// Compiles a group whose `faults` are none; `id_of` numbers names of groups. Rules that `before` has as well keep their counts.
    pub fn new(spec: Arc<GroupSpec>, before: Option<&Group>, id_of: &dyn Fn(&Arc<str>) -> u32) -> Group {
        let ingress = Compiled::new(&spec.rules, RuleDirection::Ingress, id_of);
        let egress = Compiled::new(&spec.rules, RuleDirection::Egress, id_of);
        let mut counted: HashMap<&Rule, u64> = HashMap::new();
        if let Some(before) = before {
            counted = before.rules().filter(|(_, hits)| *hits > 0).collect();
        }
        let hits = spec.rules.iter().map(|r| AtomicU64::new(counted.get(r).copied().unwrap_or(0))).collect();
        let stateless = spec.rules.iter().any(|r| !r.stateful);
        Group { spec, ingress, egress, hits, stateless }
    }

    /// As it was written down.
    pub fn spec(&self) -> &Arc<GroupSpec> {
        &self.spec
    }

    /// Its rules with the connections that each decided about.
    pub fn rules(&self) -> impl Iterator<Item = (&Rule, u64)> {
        self.spec.rules.iter().zip(&self.hits).map(|(r, h)| (r, h.load(Ordering::Relaxed)))
    }

    /// The position of the rule that decides about connections with an address whose groups have these ids.
    #[inline]
    pub fn lookup(&self, direction: RuleDirection, addr: IpAddr, groups: &[u32], service: u32) -> Option<usize> {
        let c = match direction {
            RuleDirection::Ingress => &self.ingress,
            RuleDirection::Egress => &self.egress,
        };
        let mut rank = c.lookup(addr, service);
        if !c.groups().is_empty() {
            for g in groups {
                if let Ok(i) = c.groups().binary_search_by_key(g, |(id, _)| *id) {
                    rank = rank.min(c.of_group(c.groups()[i].1, service));
                }
            }
        }
        if rank == NONE {
            return None;
        }
        c.order.get(rank as usize).map(|i| *i as usize)
    }

    /// Whether one of its rules is stateless.
    pub(crate) fn stateless(&self) -> bool {
        self.stateless
    }

    /// A rule by its position.
    pub fn rule(&self, i: usize) -> Option<&Rule> {
        self.spec.rules.get(i)
    }

    /// A rule decided about a connection.
    #[inline]
    pub(crate) fn hit(&self, i: usize) {
        if let Some(h) = self.hits.get(i) {
            h.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Bytes of its tables.
    pub fn bytes(&self) -> usize {
        self.ingress.bytes() + self.egress.bytes() + 8 * self.hits.len()
    }
}
