// SPDX-License-Identifier: Apache-2.0
//! The rules of a group, compiled: from nothing, or out of those that the group had before. A change of a few rules sorts nothing and
//! asks only of those rules whether they still decide that the change can have taken something from.

use crate::compile::{about_groups, AboutGroups, Compiled, Shapes, NONE};
use crate::rule::{Fault, GroupSpec, Remote, Rule, RuleDirection, GROUP_RULES_MAX, SERVICE_MAX};
use abi::Prefix;
use std::net::IpAddr;
use std::sync::Arc;

/// Rules that may come and go for the rest to be taken over.
const EDITS_MAX: usize = 256;
/// How far the next rule that both lists have is looked for.
const AHEAD: usize = 32;

/// How one list of rules comes from another.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// The position that each rule of the first list has in the second; [`NONE`]: it is gone.
    pub(crate) kept: Vec<u32>,
    /// Positions in the second list of rules that are new.
    pub(crate) come: Vec<u32>,
}

impl Change {
    /// Rules that are equal and in the same order are kept; not every one that could be. None: too little stays.
    pub(crate) fn between(old: &[Rule], new: &[Rule]) -> Option<Change> {
        let mut change = Change { kept: vec![NONE; old.len()], come: Vec::new() };
        let (mut i, mut j, mut gone) = (0, 0, 0);
        while i < old.len() && j < new.len() {
            if old[i] == new[j] {
                change.kept[i] = j as u32;
                (i, j) = (i + 1, j + 1);
                continue;
            }
            let (leave, come) = next_common(&old[i..], &new[j..]);
            change.come.extend(j as u32..(j + come) as u32);
            (i, j, gone) = (i + leave, j + come, gone + leave);
            if gone + change.come.len() > EDITS_MAX {
                return None;
            }
        }
        change.come.extend(j as u32..new.len() as u32);
        (gone + old.len() - i + change.come.len() <= EDITS_MAX).then_some(change)
    }
}

/// A rule that came, went or took the place of another: its position (of one that went: before), what was there and what is.
pub type Edit<'a> = (usize, Option<&'a Rule>, Option<&'a Rule>);

/// How one list of rules comes from another, by position. None: they have too little in common.
pub fn edits<'a>(old: &'a [Rule], new: &'a [Rule]) -> Option<Vec<Edit<'a>>> {
    let change = Change::between(old, new)?;
    let replaced = |at: usize| change.kept.get(at) == Some(&NONE);
    let mut list: Vec<Edit<'a>> =
        change.come.iter().map(|j| *j as usize).map(|j| (j, old.get(j).filter(|_| replaced(j)), new.get(j))).collect();
    let gone = change.kept.iter().enumerate().filter(|(_, at)| **at == NONE).map(|(i, _)| i);
    list.extend(gone.filter(|i| change.come.binary_search(&(*i as u32)).is_err()).map(|i| (i, old.get(i), None)));
    list.sort_by_key(|edit| edit.0);
    Some(list)
}

/// How many rules of either list to leave behind until both go on alike. Their first ones differ.
fn next_common(old: &[Rule], new: &[Rule]) -> (usize, usize) {
    for n in 1..=AHEAD {
        let (a, b) = (old.get(n), new.get(n));
        if a.is_some() && a == b {
            return (n, n);
        }
        if b.is_some_and(|b| *b == old[0]) {
            return (0, n);
        }
        if a.is_some_and(|a| *a == new[0]) {
            return (n, 0);
        }
    }
    (1, 1)
}

/// A group's rules, ready to be asked.
#[derive(Debug)]
pub struct Ruleset {
    spec: Arc<GroupSpec>,
    pub(crate) ingress: Compiled,
    pub(crate) egress: Compiled,
    digest: u64,
    stateless: bool,
    /// Each rule is known to decide about something.
    sound: bool,
}

impl PartialEq for Ruleset {
    fn eq(&self, other: &Ruleset) -> bool {
        self.digest == other.digest && self.spec == other.spec
    }
}

impl Eq for Ruleset {}

impl Ruleset {
    /// Of rules whose faults nobody asks about.
    pub fn new(spec: impl Into<Arc<GroupSpec>>) -> Ruleset {
        let spec = spec.into();
        let ingress = Compiled::new(&spec.rules, RuleDirection::Ingress).0;
        let egress = Compiled::new(&spec.rules, RuleDirection::Egress).0;
        Ruleset::of(spec, ingress, egress, false)
    }

    fn of(spec: Arc<GroupSpec>, ingress: Compiled, egress: Compiled, sound: bool) -> Ruleset {
        let stateless = spec.rules.iter().any(|r| !r.stateful);
        Ruleset { digest: digest(&spec), spec, ingress, egress, stateless, sound }
    }

    /// Of rules in which nothing is wrong that can be told without the other groups; else the faults, about so many at most. What
    /// comes out does not depend on `before`, the rules that the group has had; the time that it takes does.
    pub fn checked(
        spec: impl Into<Arc<GroupSpec>>,
        before: Option<&Ruleset>,
        most: usize,
    ) -> Result<Ruleset, Vec<Fault>> {
        let spec: Arc<GroupSpec> = spec.into();
        let rules = &spec.rules[..];
        let faults = malformed(rules, most);
        if !faults.is_empty() {
            return Err(faults);
        }
        let change = before.and_then(|b| Some((b, Change::between(&b.spec.rules, rules)?)));
        let mut found = Vec::new();
        let mut compiled = |direction: RuleDirection| {
            let Some((before, change)) = &change else {
                let (compiled, shapes) = Compiled::new(rules, direction);
                found.extend(unreachable(rules, &compiled, &shapes, None, most));
                return compiled;
            };
            let (compiled, news) = before.compiled(direction).changed(rules, direction, &change.kept, &change.come);
            if let Some((shapes, come)) = news {
                found.extend(unreachable(rules, &compiled, &shapes, before.sound.then_some(&come[..]), most));
            } else if !before.sound {
                let (compiled, shapes) = Compiled::new(rules, direction);
                found.extend(unreachable(rules, &compiled, &shapes, None, most));
            }
            compiled
        };
        let (ingress, egress) = (compiled(RuleDirection::Ingress), compiled(RuleDirection::Egress));
        if found.is_empty() {
            return Ok(Ruleset::of(spec.clone(), ingress, egress, true));
        }
        found.sort_unstable();
        Err(found.into_iter().take(most).map(|(i, by)| Fault::Unreachable(i, by)).collect())
    }

    /// As it was written down.
    pub fn spec(&self) -> &Arc<GroupSpec> {
        &self.spec
    }

    /// A number that differs if the rules do, the same in each process.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// The groups that its rules name; one may come twice.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.ingress.groups().iter().chain(self.egress.groups()).map(|(name, _)| name)
    }

    /// Whether one of its rules is stateless.
    pub(crate) fn stateless(&self) -> bool {
        self.stateless
    }

    pub(crate) fn compiled(&self, direction: RuleDirection) -> &Compiled {
        match direction {
            RuleDirection::Ingress => &self.ingress,
            RuleDirection::Egress => &self.egress,
        }
    }

    /// Bytes of its tables.
    pub(crate) fn bytes(&self) -> usize {
        self.ingress.bytes() + self.egress.bytes()
    }

    /// Whether each table is, number for number, as in another one.
    #[cfg(test)]
    pub(crate) fn is(&self, other: &Ruleset) -> bool {
        self == other && self.ingress.is(&other.ingress) && self.egress.is(&other.egress)
    }
}

/// Rules that cannot be compiled.
fn malformed(rules: &[Rule], most: usize) -> Vec<Fault> {
    if rules.len() > GROUP_RULES_MAX {
        return vec![Fault::TooMany(rules.len())];
    }
    let bad = |r: &Rule| r.services.0 > r.services.1 || r.services.1 > SERVICE_MAX;
    rules.iter().enumerate().filter(|(_, r)| bad(r)).map(|(i, _)| Fault::UpsideDown(i)).take(most).collect()
}

/// The first `most` rules of a direction that never decide, with the one that covers each, if one does so alone. `come`: only the rules
/// of these ranks have come to others of which each decided.
fn unreachable(
    rules: &[Rule],
    compiled: &Compiled,
    shapes: &Shapes,
    come: Option<&[u32]>,
    most: usize,
) -> Vec<(usize, Option<usize>)> {
    let rule = |rank: u32| &rules[compiled.order[rank as usize] as usize];
    // What is asked later loses to what comes, if it matches anything of the same.
    let doubtful = |rank: u32| {
        come.is_none_or(|come| come.iter().any(|new| *new == rank || *new < rank && meet(rule(*new), rule(rank))))
    };
    let ranks: Vec<u32> = (0..compiled.order.len() as u32).filter(|rank| doubtful(*rank)).collect();
    let named = ranks.iter().any(|rank| matches!(rule(*rank).remote, Remote::Group(_)));
    let about = if named { about_groups(rules, &compiled.order) } else { AboutGroups::new() };
    let mut found = Vec::new();
    for rank in ranks {
        if !compiled.decides(rules, shapes, &about, rank) {
            found.push((compiled.order[rank as usize] as usize, alone(rules, &compiled.order, rank).next()));
            if found.len() >= most {
                break;
            }
        }
    }
    found
}

/// Whether one prefix covers the other.
fn nested(a: &Prefix, b: &Prefix) -> bool {
    a.contains(b) || b.contains(a)
}

/// Whether the second rule may get less to decide by the first one, if that is asked before it.
fn meet(first: &Rule, second: &Rule) -> bool {
    first.services.0 <= second.services.1
        && second.services.0 <= first.services.1
        && match (&first.remote, &second.remote) {
            (Remote::Any, _) => true,
            (Remote::Prefix(_), Remote::Any) => true,
            (Remote::Prefix(a), Remote::Prefix(b)) => nested(a, b),
            (Remote::Group(a), Remote::Group(b)) => a == b,
            _ => false,
        }
}

/// Rules of a lower rank that match all that this one matches.
fn alone<'a>(rules: &'a [Rule], order: &'a [u32], rank: u32) -> impl Iterator<Item = usize> + 'a {
    let rule = &rules[order[rank as usize] as usize];
    order[..rank as usize].iter().map(|i| *i as usize).filter(move |i| {
        let o = &rules[*i];
        let services = o.services.0 <= rule.services.0 && rule.services.1 <= o.services.1;
        services
            && match (&o.remote, &rule.remote) {
                (Remote::Any, _) => true,
                (Remote::Prefix(a), Remote::Prefix(b)) => a.contains(b),
                (Remote::Group(a), Remote::Group(b)) => a == b,
                _ => false,
            }
    })
}

/// "rule".
const DIGEST_SALT: u64 = 0x7275_6c65;

/// A number of the rules in their order. Each step is one to one, so that rules which differ in one word never have the same.
fn digest(spec: &GroupSpec) -> u64 {
    let step = |sum: u64, word: u64| abi::hash1(sum ^ word, DIGEST_SALT);
    let text = |mut sum: u64, s: &str| {
        for chunk in s.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            sum = step(sum, u64::from_le_bytes(word));
        }
        step(sum, s.len() as u64)
    };
    let mut sum = text(0, &spec.name);
    for r in &spec.rules {
        let flags =
            u64::from(r.direction == RuleDirection::Egress) | u64::from(r.allow) << 1 | u64::from(r.stateful) << 2;
        let head = flags | u64::from(r.priority) << 16;
        sum = step(sum, u64::from(r.services.0) << 32 | u64::from(r.services.1));
        sum = match &r.remote {
            Remote::Any => step(sum, head),
            Remote::Group(name) => text(step(sum, head | 1 << 8), name),
            Remote::Prefix(p) => {
                let head =
                    step(sum, head | 2 << 8 | u64::from(p.prefix_len()) << 32 | u64::from(p.addr().is_ipv6()) << 48);
                match p.addr() {
                    IpAddr::V4(a) => step(head, a.to_bits().into()),
                    IpAddr::V6(a) => step(step(head, a.to_bits() as u64), (a.to_bits() >> 64) as u64),
                }
            }
        };
    }
    sum
}

#[cfg(test)]
#[path = "ruleset_tests.rs"]
mod tests;
