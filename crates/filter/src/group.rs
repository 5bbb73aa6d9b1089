// SPDX-License-Identifier: Apache-2.0
//! A compiled group with its counters.

use crate::compile::{Services, NONE};
use crate::rule::{GroupSpec, Rule, RuleDirection};
use crate::ruleset::{Change, Ruleset};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// A group, ready to be asked.
#[derive(Debug)]
pub struct Group {
    rules: Arc<Ruleset>,
    /// The groups that its rules of each direction name, by id.
    named: [Box<[(u32, Services)]>; 2],
    hits: Box<[AtomicU64]>,
}

impl Group {
    /// Of these rules; `id_of` numbers names of groups. Rules that `before` has as well keep their counts.
    pub fn new(rules: Arc<Ruleset>, before: Option<&Group>, id_of: &dyn Fn(&Arc<str>) -> u32) -> Group {
        let named = [RuleDirection::Ingress, RuleDirection::Egress].map(|direction| {
            let mut named: Vec<_> =
                rules.compiled(direction).groups().iter().map(|(name, s)| (id_of(name), *s)).collect();
            named.sort_unstable_by_key(|(id, _)| *id);
            named.into()
        });
        let hits = before.map_or_else(|| vec![0; rules.spec().rules.len()], |b| b.counts_of(&rules.spec().rules));
        Group { named, hits: hits.into_iter().map(AtomicU64::new).collect(), rules }
    }

    /// The counts that these rules have had here.
    fn counts_of(&self, rules: &[Rule]) -> Vec<u64> {
        let (mut counts, mut left) = (vec![0; rules.len()], HashMap::new());
        let old = || self.rules().zip(0usize..).filter(|((_, hits), _)| *hits > 0);
        let Some(change) = Change::between(&self.spec().rules, rules) else {
            let counted: HashMap<&Rule, u64> = old().map(|(counted, _)| counted).collect();
            return rules.iter().map(|r| counted.get(r).copied().unwrap_or(0)).collect();
        };
        for ((rule, hits), i) in old() {
            match change.kept[i] {
                NONE => drop(left.insert(rule, hits)),
                at => counts[at as usize] = hits,
            }
        }
        // One that stands elsewhere now.
        for i in change.come.iter().map(|i| *i as usize).filter(|_| !left.is_empty()) {
            counts[i] = left.get(&rules[i]).copied().unwrap_or(0);
        }
        counts
    }

    /// As it was written down.
    pub fn spec(&self) -> &Arc<GroupSpec> {
        self.rules.spec()
    }

    /// Its rules, compiled.
    pub fn ruleset(&self) -> &Arc<Ruleset> {
        &self.rules
    }

    /// Its rules with the connections that each decided about.
    pub fn rules(&self) -> impl Iterator<Item = (&Rule, u64)> {
        self.spec().rules.iter().zip(&self.hits).map(|(r, h)| (r, h.load(Ordering::Relaxed)))
    }

    /// The position of the rule that decides about connections with an address whose groups have these ids.
    #[inline]
    pub fn lookup(&self, direction: RuleDirection, addr: IpAddr, groups: &[u32], service: u32) -> Option<usize> {
        let (compiled, named) = match direction {
            RuleDirection::Ingress => (&self.rules.ingress, &self.named[0]),
            RuleDirection::Egress => (&self.rules.egress, &self.named[1]),
        };
        let mut rank = compiled.lookup(addr, service);
        if !named.is_empty() {
            for g in groups {
                if let Ok(i) = named.binary_search_by_key(g, |(id, _)| *id) {
                    rank = rank.min(compiled.of_group(named[i].1, service));
                }
            }
        }
        if rank == NONE {
            return None;
        }
        compiled.order.get(rank as usize).map(|i| *i as usize)
    }

    /// Whether one of its rules is stateless.
    pub(crate) fn stateless(&self) -> bool {
        self.rules.stateless()
    }

    /// A rule by its position.
    pub fn rule(&self, i: usize) -> Option<&Rule> {
        self.rules.spec().rules.get(i)
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
        self.rules.bytes()
            + size_of_val(&*self.hits)
            + self.named.iter().map(|named| size_of_val(&**named)).sum::<usize>()
    }
}
