// SPDX-License-Identifier: Apache-2.0
//! The same questions answered naively: every rule is looked at. For tests and comparisons.

use crate::judge::{Deny, Member, Side};
use crate::rule::{GroupSpec, Rule, RuleDirection};
use std::net::IpAddr;
use std::sync::Arc;

/// The position of the rule of a group that decides.
pub fn lookup(
    rules: &[Rule],
    direction: RuleDirection,
    addr: IpAddr,
    groups: &[Arc<str>],
    service: u32,
) -> Option<usize> {
    let matching = rules.iter().enumerate().filter(|(_, r)| r.matches(direction, addr, groups, service));
    matching.min_by_key(|(i, r)| (r.priority, r.allow, *i)).map(|(i, _)| i)
}

/// Groups of an address.
fn groups_of(members: &[(u32, Arc<Vec<Member>>)], side: Side) -> Vec<Arc<str>> {
    let of_vpc = members.iter().filter(|(vni, _)| Some(*vni) == side.vni).flat_map(|(_, m)| m.iter());
    let covering = of_vpc.filter(|m| m.prefix.covers(side.addr));
    covering.max_by_key(|m| m.prefix.len).map_or(Vec::new(), |m| m.groups.clone())
}

/// Whether a connection may begin.
pub fn judge(
    groups: &[Arc<GroupSpec>],
    members: &[(u32, Arc<Vec<Member>>)],
    from: Side,
    to: Side,
    service: u32,
) -> Option<Deny> {
    let (source, target) = (groups_of(members, from), groups_of(members, to));
    let allowed = |own: &[Arc<str>], direction, addr, theirs: &[Arc<str>]| {
        if own.is_empty() {
            return true;
        }
        let specs = own.iter().filter_map(|name| groups.iter().find(|g| g.name == *name));
        let found = specs.filter_map(|g| lookup(&g.rules, direction, addr, theirs, service).map(|i| &g.rules[i]));
        found.min_by_key(|r| (r.priority, r.allow)).is_some_and(|r| r.allow)
    };
    if !allowed(&source, RuleDirection::Egress, to.addr, &target) {
        return Some(Deny::Egress);
    }
    (!allowed(&target, RuleDirection::Ingress, from.addr, &source)).then_some(Deny::Ingress)
}
