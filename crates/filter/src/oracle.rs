// SPDX-License-Identifier: Apache-2.0
//! The same questions answered naively: every rule is looked at. For tests and comparisons.

use crate::judge::{Deny, Member, Side};
use crate::rule::{GroupSpec, Rule, RuleDirection};
use abi::Vni;
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
fn groups_of(members: &[(Vni, Arc<Vec<Member>>)], side: Side) -> Vec<Arc<str>> {
    let of_vpc = members.iter().filter(|(vni, _)| Some(*vni) == side.vni).flat_map(|(_, m)| m.iter());
    let covering = of_vpc.filter(|m| m.prefix.contains(&side.addr));
    covering.max_by_key(|m| m.prefix.prefix_len()).map_or(Vec::new(), |m| m.groups.clone())
}

/// Whether a connection may begin; if so, whether all rules that allow it want it remembered.
pub fn judge(
    groups: &[Arc<GroupSpec>],
    members: &[(Vni, Arc<Vec<Member>>)],
    from: Side,
    to: Side,
    service: u32,
) -> Result<bool, Deny> {
    let (source, target) = (groups_of(members, from), groups_of(members, to));
    let allowed = |own: &[Arc<str>], direction, addr, theirs: &[Arc<str>]| {
        if own.is_empty() {
            return Some((true, true));
        }
        let specs = own.iter().filter_map(|name| groups.iter().find(|g| g.name == *name));
        let found = specs.filter_map(|g| lookup(&g.rules, direction, addr, theirs, service).map(|i| &g.rules[i]));
        let names = |r: &Rule| r.services.0 >> 16 == r.services.1 >> 16;
        found.min_by_key(|r| (r.priority, r.allow)).filter(|r| r.allow).map(|r| (r.stateful, names(r)))
    };
    let outwards = allowed(&source, RuleDirection::Egress, to.addr, &target).ok_or(Deny::Egress)?;
    let inwards = allowed(&target, RuleDirection::Ingress, from.addr, &source).ok_or(Deny::Ingress)?;
    if from.addr.is_ipv6() && service >> 16 >= 147 && !(outwards.1 && inwards.1) {
        return Err(Deny::Unnamed);
    }
    Ok(outwards.0 && inwards.0)
}
