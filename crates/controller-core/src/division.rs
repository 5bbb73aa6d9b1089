// SPDX-License-Identifier: Apache-2.0
//! A public pool divided among the nodes that serve it, so that no two give one public address and port (`docs/design/handover.md`).
//!
//! What is divided are *units*: whole addresses while there are as many as nodes, else equal slices of the ports of each. A unit is one node's, or
//! nobody's. What is taken away from a node it *leaves* first: it gives out none of it any more, and once it has said that nothing of it is in use
//! the unit is free for another one. Property: a unit passes from one node to another through nobody, and it is nobody's only while no node
//! gives out of it (tests). A division that is made again of what it was changes nothing.

use model::{AddressRange, Name, PublicPool, Share};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

/// Ports that are given out together.
const CHUNK: u32 = 64;
/// Slices of the ports of an address at most.
const SLICES_MAX: u32 = 64;

/// An address, and the number of a slice of its ports.
type Unit = (u32, u32);

/// Whose a unit is, and whether it leaves it.
type Owner = (Name, bool);

/// How a node stands to a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The node.
    pub node: Name,
    /// It serves, so that it is given of the pool. One that does not keeps what it has.
    pub serves: bool,
}

/// What a pool can be divided into.
struct Shape {
    addresses: Vec<u32>,
    /// First and last port that it gives out.
    ports: (u16, u16),
}

impl Shape {
    fn of(pool: &PublicPool, taken: &BTreeSet<Ipv4Addr>) -> Shape {
        let all = pool.ranges.iter().flat_map(|r| r.first.to_bits()..=r.last.to_bits());
        Shape { addresses: all.filter(|a| !taken.contains(&Ipv4Addr::from_bits(*a))).collect(), ports: pool.ports }
    }

    /// Slices by which there is a unit for each of so many nodes, or as many as there can be.
    fn slices(&self, nodes: usize) -> u32 {
        let mut slices = 1;
        while self.addresses.len() * self.used(slices) < nodes && slices < SLICES_MAX {
            slices *= 2;
        }
        slices
    }

    /// Of so many slices those that have ports which the pool gives out together.
    fn used(&self, slices: u32) -> usize {
        (0..slices).filter(|slice| self.is_used(*slice, slices)).count()
    }

    fn is_used(&self, slice: u32, slices: u32) -> bool {
        let (first, last) = ports(slice, slices);
        let (first, last) = (u32::from(first.max(self.ports.0)), u32::from(last.min(self.ports.1)));
        first.next_multiple_of(CHUNK) + CHUNK <= last + 1
    }
}

/// First and last port of a slice. They are the same whatever a pool gives out, so that another choice of that moves no border.
fn ports(slice: u32, slices: u32) -> (u16, u16) {
    let width = (1 << 16) / slices.max(1);
    ((slice * width) as u16, (slice * width + (width - 1)) as u16)
}

/// Nodes that a pool has units for at most.
pub fn nodes_max(pool: &PublicPool, taken: &BTreeSet<Ipv4Addr>) -> usize {
    let shape = Shape::of(pool, taken);
    shape.addresses.len() * shape.used(SLICES_MAX)
}

/// What becomes of a pool's shares. `taken`: addresses that stand for one VM each, and are no part of the division. `idle`: as far as is known nothing of this is in use, so that it is left sooner than what is. `free`: a node has said, since it was told to leave this, that nothing of it is in use there; `gone`: there is no
/// such node any more.
pub fn divide(
    pool: &PublicPool,
    taken: &BTreeSet<Ipv4Addr>,
    holders: &[Holder],
    idle: impl Fn(&Name, Ipv4Addr, (u16, u16)) -> bool,
    free: impl Fn(&Name, Ipv4Addr, (u16, u16)) -> bool,
    gone: impl Fn(&Name) -> bool,
) -> Vec<Share> {
    let shape = Shape::of(pool, taken);
    // Never fewer slices than there were: what is in use of two of them may be two nodes'.
    let slices = shape.slices(holders.iter().filter(|h| h.serves).count()).max(slices_of(&pool.shares));
    let (mut units, mut outside) = units(pool, &shape, slices);
    let holds = |node: &Name| holders.iter().any(|h| h.node == *node);
    for ((address, slice), owner) in &mut units {
        let Some((node, leaves)) = owner else { continue };
        *leaves |= !holds(node);
        if gone(node) || *leaves && free(node, (*address).into(), ports(*slice, slices)) {
            *owner = None;
        }
    }
    // What the pool has lost is left too: it may get it back before its node has heard of it.
    outside.retain(|(address, slice), (node, _)| !gone(node) && !free(node, (*address).into(), ports(*slice, slices)));
    let serving: Vec<&Name> = holders.iter().filter(|h| h.serves).map(|h| &h.node).collect();
    even_out(&mut units, &serving, |node, (address, slice)| idle(node, address.into(), ports(slice, slices)));
    units.extend(outside.into_iter().map(|(unit, (node, _))| (unit, Some((node, true)))));
    merged(&units, slices)
}

/// The slices of which shares are made.
fn slices_of(shares: &[Share]) -> u32 {
    let borders =
        shares.iter().filter_map(|s| s.ports).flat_map(|(first, last)| [u32::from(first), u32::from(last) + 1]);
    let width = borders.filter(|b| *b % (1 << 16) > 0).map(|b| 1 << b.trailing_zeros()).min();
    width.map_or(1, |width: u32| ((1 << 16) / width).min(SLICES_MAX))
}

/// Units of a pool that is cut into so many slices, each with the owner that it has; and those that somebody has and are no longer in it.
fn units(pool: &PublicPool, shape: &Shape, slices: u32) -> (BTreeMap<Unit, Option<Owner>>, BTreeMap<Unit, Owner>) {
    let used: Vec<u32> = (0..slices).filter(|slice| shape.is_used(*slice, slices)).collect();
    let all = shape.addresses.iter().flat_map(|a| used.iter().map(|slice| ((*a, *slice), None)));
    let (mut units, mut outside): (BTreeMap<Unit, Option<Owner>>, BTreeMap<Unit, Owner>) =
        (all.collect(), BTreeMap::new());
    for share in &pool.shares {
        let Some(node) = &share.node else { continue };
        for address in share.range.first.to_bits()..=share.range.last.to_bits() {
            for slice in (0..slices).filter(|slice| share.covers(address.into(), ports(*slice, slices))) {
                let owner = (node.clone(), share.leaving);
                match units.get_mut(&(address, slice)) {
                    Some(unit) => *unit = Some(owner),
                    None => drop(outside.insert((address, slice), owner)),
                }
            }
        }
    }
    (units, outside)
}

/// Gives what is nobody's to who has least, and has who has too much leave some of it.
fn even_out(units: &mut BTreeMap<Unit, Option<Owner>>, serving: &[&Name], idle: impl Fn(&Name, Unit) -> bool) {
    if serving.is_empty() {
        return;
    }
    let mut has: BTreeMap<&Name, usize> = serving.iter().map(|node| (*node, 0)).collect();
    for (node, _) in units.values().flatten().filter(|(_, leaves)| !leaves) {
        if let Some(n) = has.get_mut(node) {
            *n += 1;
        }
    }
    let least = |has: &BTreeMap<&Name, usize>| has.iter().map(|(node, n)| (*n, (*node).clone())).min();
    // What one leaves that has less than others it need not leave.
    let theirs = units.values().flatten().filter(|(node, _)| serving.contains(&node)).count();
    let nobodys = units.values().filter(|owner| owner.is_none()).count();
    let even = (theirs + nobodys) / serving.len();
    for (node, leaves) in units.values_mut().flatten().filter(|(_, leaves)| *leaves) {
        if let Some((_, n)) = has.iter_mut().find(|(name, n)| **name == node && **n < even) {
            *leaves = false;
            *n += 1;
        }
    }
    // How much each gets, and then in runs, so that parts are few.
    let before = has.clone();
    for _ in units.values().filter(|owner| owner.is_none()) {
        let Some((_, node)) = least(&has) else { break };
        has.iter_mut().filter(|(name, _)| ***name == node).for_each(|(_, n)| *n += 1);
    }
    let mut runs = has.iter().flat_map(|(node, n)| std::iter::repeat_n(*node, n - before[node]));
    for owner in units.values_mut().filter(|owner| owner.is_none()) {
        *owner = runs.next().map(|node| (node.clone(), false));
    }
    drop(runs);
    // What is left already, and will be free, makes up for what is lacking.
    let mut coming = units.values().flatten().filter(|(_, leaves)| *leaves).count();
    loop {
        let (Some((low, _)), Some((most, richest))) =
            (least(&has), has.iter().map(|(node, n)| (*n, (*node).clone())).max())
        else {
            return;
        };
        if most <= low + 1 {
            return;
        }
        if let Some((_, n)) = has.iter_mut().find(|(_, n)| **n == low).filter(|_| coming > 0) {
            (coming, *n) = (coming - 1, *n + 1);
            continue;
        }
        let own = |(unit, owner): (&Unit, &Option<Owner>)| {
            owner.as_ref().is_some_and(|(node, leaves)| *node == richest && !leaves).then_some(*unit)
        };
        let unused = units.iter().rev().filter_map(own).find(|unit| idle(&richest, *unit));
        let Some(unit) = unused.or_else(|| units.iter().rev().find_map(own)) else { return };
        units.insert(unit, Some((richest.clone(), true)));
        has.iter_mut().filter(|(name, _)| ***name == richest).for_each(|(_, n)| *n -= 1);
        coming += 1;
    }
}

/// Units as parts: neighbours of one owner are one.
fn merged(units: &BTreeMap<Unit, Option<Owner>>, slices: u32) -> Vec<Share> {
    let mut parts: Vec<Share> = Vec::new();
    for ((address, slice), owner) in units {
        let (node, leaving) = owner.clone().map_or((None, false), |(node, leaves)| (Some(node), leaves));
        let ports = (slices > 1).then(|| ports(*slice, slices));
        let at = Ipv4Addr::from_bits(*address);
        let share = Share { range: AddressRange { first: at, last: at }, ports, node, leaving };
        let Some(last) = parts.last_mut().filter(|l| (&l.node, l.leaving) == (&share.node, share.leaving)) else {
            parts.push(share);
            continue;
        };
        let next = last.range.last.to_bits().checked_add(1) == Some(*address);
        match (last.ports, ports) {
            (None, None) if next => last.range.last = at,
            (Some(before), Some(ports)) if last.range.last == at && before.1.checked_add(1) == Some(ports.0) => {
                last.ports = Some((before.0, ports.1));
            }
            _ => parts.push(share),
        }
    }
    parts
}

#[cfg(test)]
#[path = "division_tests.rs"]
mod tests;
