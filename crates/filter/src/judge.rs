// SPDX-License-Identifier: Apache-2.0
//! Who is judged by which groups, and the judgement.

use crate::group::Group;
use crate::rule::{Rule, RuleDirection};
use crate::ruleset::Ruleset;
use abi::{Mix, Prefix, Vni};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// A member: an address (a prefix of full length) or a prefix of a VPC, and the names of its groups.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// Its addresses.
    pub prefix: Prefix,
    /// Its groups.
    pub groups: Vec<Arc<str>>,
}

/// Addresses come from the configuration, not from packets: no secret salt is needed.
type Map<K, V> = HashMap<K, V, Mix>;

/// The groups of a member: first and length in the lists of its VPC.
type List = (u32, u32);

/// The members of a VPC.
#[derive(Debug, Default)]
struct Members {
    spec: Arc<Vec<Member>>,
    hosts4: Map<u32, List>,
    hosts6: Map<u128, List>,
    /// Longest first.
    prefixes: Vec<(Prefix, List)>,
    /// Groups, each list of them once: members by the thousand have the same ones, which so are in the cache.
    lists: Vec<u32>,
}

impl Members {
    fn new(spec: Arc<Vec<Member>>, position: &HashMap<Arc<str>, u32>) -> Members {
        let mut members = Members { spec: spec.clone(), ..Members::default() };
        let mut known: HashMap<Vec<u32>, List> = HashMap::new();
        for m in spec.iter() {
            let groups: Vec<u32> = m.groups.iter().filter_map(|name| position.get(name).copied()).collect();
            let lists = &mut members.lists;
            let list = *known.entry(groups).or_insert_with_key(|groups| {
                lists.extend(groups);
                ((lists.len() - groups.len()) as u32, groups.len() as u32)
            });
            match m.prefix {
                Prefix::V4(net) if net.prefix_len() == 32 => drop(members.hosts4.insert(net.addr().to_bits(), list)),
                Prefix::V6(net) if net.prefix_len() == 128 => drop(members.hosts6.insert(net.addr().to_bits(), list)),
                _ => members.prefixes.push((m.prefix, list)),
            }
        }
        members.prefixes.sort_by_key(|(p, _)| std::cmp::Reverse(p.prefix_len()));
        members
    }

    #[inline]
    fn groups(&self, addr: IpAddr) -> &[u32] {
        let host = match addr {
            IpAddr::V4(a) => self.hosts4.get(&a.to_bits()),
            IpAddr::V6(a) => self.hosts6.get(&a.to_bits()),
        };
        let of_prefix = || self.prefixes.iter().find(|(p, _)| p.contains(&addr)).map(|(_, list)| list);
        let Some((first, len)) = host.or_else(of_prefix).copied() else { return &[] };
        self.lists.get(first as usize..(first + len) as usize).unwrap_or(&[])
    }
}

/// One end of a connection: VNI (none: outside) and address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// VNI of its VPC; None: outside of all of them.
    pub vni: Option<Vni>,
    /// Address.
    pub addr: IpAddr,
}

/// Whose groups refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deny {
    /// Those of the sender.
    Egress,
    /// Those of the receiver.
    Ingress,
    /// None: but the protocol is one that nobody knows, and a rule that decides does not name it.
    Unnamed,
}

/// First of the protocol numbers that are not assigned, or for experiments. In IPv6 they may be extension headers as well as upper layers
/// (RFC 7045 section 2), so a rule for any protocol does not allow them.
pub const UNKNOWN_PROTOCOLS: u8 = 147;

/// A judgement and the rules that made it, by group; none: no rule matched, or no group was to be asked.
#[derive(Clone, Copy, Debug)]
pub struct Verdict<'a> {
    /// None: the connection may begin.
    pub deny: Option<Deny>,
    /// What decided outwards.
    pub egress: Option<(&'a Group, usize)>,
    /// What decided inwards.
    pub ingress: Option<(&'a Group, usize)>,
}

impl<'a> Verdict<'a> {
    /// Counts the connection for the rules that decided. One that is refused because no rule names its protocol counts for none.
    pub fn count(&self) {
        if self.deny == Some(Deny::Unnamed) {
            return;
        }
        for (group, rule) in [self.egress, self.ingress].into_iter().flatten() {
            group.hit(rule);
        }
    }

    /// No rule denies it: it is refused because the protocol is one that nobody knows, and this rule does not name it.
    pub fn lacks_name(&self, rule: (&Group, usize)) -> bool {
        self.deny == Some(Deny::Unnamed) && !names(rule)
    }

    /// The connection may begin, but one of the rules that allow it does not want it remembered: then none of it is, and each packet,
    /// of either direction, is asked about by itself.
    pub fn stateless(&self) -> bool {
        let allowed = [self.egress, self.ingress].into_iter().flatten();
        self.deny.is_none() && allowed.filter_map(|(group, i)| group.rule(i)).any(|r| !r.stateful)
    }

    /// The rule that decided last.
    pub fn rule(&self) -> Option<(&'a Group, &'a Rule)> {
        let (group, i) = match self.deny {
            Some(Deny::Egress) => self.egress,
            Some(Deny::Ingress) => self.ingress,
            None => self.ingress.or(self.egress),
            Some(Deny::Unnamed) => [self.egress, self.ingress].into_iter().flatten().find(|r| !names(*r)),
        }?;
        Some((group, group.rule(i)?))
    }
}

/// All groups and members of a node. Never changes but for counters.
#[derive(Debug, Default)]
pub struct Filter {
    /// By id.
    groups: Vec<Option<Arc<Group>>>,
    /// Ids of names: once given, an id stays, so that what was compiled stays right.
    ids: Arc<HashMap<Arc<str>, u32>>,
    vpcs: Map<Vni, Arc<Members>>,
    /// Some rule is stateless.
    stateless: bool,
}

impl Filter {
    /// Of these groups and the members of each VPC. What is as in `before` is taken from there: a group or a VPC whose `Arc` is
    /// the same.
    pub fn new(groups: &[Arc<Ruleset>], vpcs: &[(Vni, Arc<Vec<Member>>)], before: &Filter) -> Filter {
        let mut ids = before.ids.clone();
        let mut know = |name: &Arc<str>| {
            if !ids.contains_key(name) {
                let next = ids.len() as u32;
                Arc::make_mut(&mut ids).insert(name.clone(), next);
            }
        };
        let old = |rules: &Ruleset| {
            let i = *before.ids.get(&rules.spec().name)?;
            before.groups.get(i as usize)?.as_ref()
        };
        let same = |rules: &Arc<Ruleset>| old(rules).filter(|g| Arc::ptr_eq(g.ruleset(), rules));
        for rules in groups.iter().filter(|rules| same(rules).is_none()) {
            know(&rules.spec().name);
            rules.names().for_each(&mut know);
        }
        vpcs.iter().filter(|(vni, m)| before.vpcs.get(vni).is_none_or(|b| !Arc::ptr_eq(&b.spec, m))).for_each(
            |(_, m)| {
                m.iter().flat_map(|m| &m.groups).for_each(&mut know);
            },
        );
        let mut compiled = vec![None; ids.len()];
        for rules in groups {
            let group = match same(rules) {
                Some(g) => g.clone(),
                None => Arc::new(Group::new(rules.clone(), old(rules).map(|g| &**g), &|name| {
                    ids.get(name).copied().unwrap_or(u32::MAX)
                })),
            };
            if let Some(slot) = ids.get(&rules.spec().name).and_then(|i| compiled.get_mut(*i as usize)) {
                *slot = Some(group);
            }
        }
        let members = vpcs.iter().map(|(vni, spec)| match before.vpcs.get(vni) {
            Some(m) if Arc::ptr_eq(&m.spec, spec) => (*vni, m.clone()),
            _ => (*vni, Arc::new(Members::new(spec.clone(), &ids))),
        });
        let vpcs = members.collect();
        let stateless = compiled.iter().flatten().any(|g| g.stateless());
        Filter { groups: compiled, ids, vpcs, stateless }
    }

    /// Whether any rule is stateless. If none is, a packet that begins nothing need not be asked about.
    pub fn has_stateless(&self) -> bool {
        self.stateless
    }

    /// Its groups.
    pub fn groups(&self) -> impl Iterator<Item = &Arc<Group>> {
        self.groups.iter().flatten()
    }

    /// Whether a VPC has members.
    pub fn judges(&self, vni: Vni) -> bool {
        self.vpcs.contains_key(&vni)
    }

    /// Whether an address belongs to a prefix that has groups.
    pub fn in_prefix(&self, vni: Vni, addr: IpAddr) -> bool {
        self.vpcs.get(&vni).is_some_and(|m| m.prefixes.iter().any(|(p, _)| p.contains(&addr)))
    }

    fn members(&self, side: Side) -> Option<&Members> {
        self.vpcs.get(&side.vni?).map(|m| &**m)
    }

    fn group(&self, i: u32) -> Option<&Group> {
        self.groups.get(i as usize)?.as_deref()
    }

    /// Whether a connection from one side to the other may begin.
    pub fn judge(&self, from: Side, to: Side, service: u32) -> Verdict<'_> {
        let near = self.members(from);
        let far = if to.vni == from.vni { near } else { self.members(to) };
        let source = near.map_or(&[] as &[u32], |m| m.groups(from.addr));
        let target = far.map_or(&[] as &[u32], |m| m.groups(to.addr));
        let mut verdict = Verdict { deny: None, egress: None, ingress: None };
        if !source.is_empty() {
            verdict.egress = self.decide(RuleDirection::Egress, source, (to.addr, target), service);
            if !verdict.egress.is_some_and(allows) {
                verdict.deny = Some(Deny::Egress);
                return verdict;
            }
        }
        if !target.is_empty() {
            verdict.ingress = self.decide(RuleDirection::Ingress, target, (from.addr, source), service);
            if !verdict.ingress.is_some_and(allows) {
                verdict.deny = Some(Deny::Ingress);
                return verdict;
            }
        }
        let unknown = from.addr.is_ipv6() && service >> 16 >= u32::from(UNKNOWN_PROTOCOLS);
        if unknown && ![verdict.egress, verdict.ingress].into_iter().flatten().all(names) {
            verdict.deny = Some(Deny::Unnamed);
        }
        verdict
    }

    /// The rule that decides among those of several groups.
    fn decide(
        &self,
        direction: RuleDirection,
        own: &[u32],
        (addr, theirs): (IpAddr, &[u32]),
        service: u32,
    ) -> Option<(&Group, usize)> {
        let mut best: Option<((u16, bool), &Group, usize)> = None;
        for group in own.iter().filter_map(|i| self.group(*i)) {
            let Some(i) = group.lookup(direction, addr, theirs, service) else { continue };
            let Some(rule) = group.rule(i) else { continue };
            let key = (rule.priority, rule.allow);
            if best.is_none_or(|b| key < b.0) {
                best = Some((key, group, i));
            }
        }
        best.map(|(_, group, i)| (group, i))
    }
}

fn allows((group, i): (&Group, usize)) -> bool {
    group.rule(i).is_some_and(|r| r.allow)
}

/// The rule is for one protocol.
fn names((group, i): (&Group, usize)) -> bool {
    group.rule(i).is_some_and(|r| r.services.0 >> 16 == r.services.1 >> 16)
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
