// SPDX-License-Identifier: Apache-2.0
//! From rules to flat tables. A rule's rank is its place in the order in which rules are asked: the lowest that matches decides.

use crate::rule::{Remote, Rule, RuleDirection};
use abi::Prefix;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// Intervals of addresses between two that are looked at first: 32-bit addresses in a line of the cache.
const STEP: usize = 16;

/// No rule, no node.
pub(crate) const NONE: u32 = u32::MAX;

/// An address as a number.
pub(crate) trait Address: Copy + Ord + Default {
    /// Of first and last address of a prefix; None: of the other family. The prefix of everything has none.
    fn bounds(prefix: Option<&Prefix>) -> Option<(Self, Self)>;
    /// The next one.
    fn next(self) -> Option<Self>;
}

impl Address for u32 {
    fn bounds(prefix: Option<&Prefix>) -> Option<(u32, u32)> {
        match prefix {
            None => Some((0, u32::MAX)),
            Some(Prefix::V4(net)) => Some((net.network().to_bits(), net.broadcast().to_bits())),
            Some(Prefix::V6(_)) => None,
        }
    }

    fn next(self) -> Option<u32> {
        self.checked_add(1)
    }
}

impl Address for u128 {
    fn bounds(prefix: Option<&Prefix>) -> Option<(u128, u128)> {
        match prefix {
            None => Some((0, u128::MAX)),
            Some(Prefix::V6(net)) => Some((net.network().to_bits(), net.broadcast().to_bits())),
            Some(Prefix::V4(_)) => None,
        }
    }

    fn next(self) -> Option<u128> {
        self.checked_add(1)
    }
}

/// What says when the rule at a position is asked.
fn turn(rules: &[Rule], position: u32) -> (u16, bool, u32) {
    let r = &rules[position as usize];
    (r.priority, r.allow, position)
}

/// The rules of one direction in the order in which they are asked: positions in the group, by rank.
fn order(rules: &[Rule], direction: RuleDirection) -> Vec<u32> {
    let mut order: Vec<u32> = (0..rules.len() as u32).filter(|i| rules[*i as usize].direction == direction).collect();
    order.sort_unstable_by_key(|i| turn(rules, *i));
    order
}

/// A set of intervals of services in `starts` and `ranks` of its table; no rule has what lies before the first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Services {
    first: u32,
    len: u32,
}

/// A prefix that rules name.
#[derive(Clone, Copy, Debug)]
struct Node {
    services: Services,
    /// The next shorter one that covers it.
    parent: u32,
    /// The lowest rank in it and those that cover it.
    best: u32,
}

/// Intervals of services of many nodes.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    starts: Vec<u32>,
    ranks: Vec<u32>,
}

impl Pool {
    /// Enters the rules of one node, as (first service, last service, rank).
    fn add(&mut self, rules: &mut [(u32, u32, u32)]) -> Services {
        let first = self.starts.len() as u32;
        if let [(from, to, rank)] = *rules {
            // Most prefixes have one rule.
            self.starts.extend([from, to + 1]);
            self.ranks.extend([rank, NONE]);
            return self.since(first);
        }
        rules.sort_unstable();
        let mut active: BinaryHeap<Reverse<(u32, u32)>> = BinaryHeap::new();
        let mut edges: Vec<u32> = rules.iter().flat_map(|(from, to, _)| [*from, to + 1]).collect();
        edges.sort_unstable();
        let (mut next, mut last) = (0, NONE);
        for edge in edges {
            while let Some((_, to, rank)) = rules.get(next).filter(|r| r.0 == edge) {
                active.push(Reverse((*rank, *to)));
                next += 1;
            }
            while active.peek().is_some_and(|Reverse((_, to))| *to < edge) {
                active.pop();
            }
            let rank = active.peek().map_or(NONE, |Reverse((rank, _))| *rank);
            if rank != last {
                self.starts.push(edge);
                self.ranks.push(rank);
                last = rank;
            }
        }
        self.since(first)
    }

    /// All from this place on.
    fn since(&self, first: u32) -> Services {
        Services { first, len: self.starts.len() as u32 - first }
    }

    /// The rank at a service, and the last service of its interval.
    #[inline(always)]
    fn at(&self, s: Services, service: u32) -> (u32, u32) {
        let range = s.first as usize..(s.first + s.len) as usize;
        let Some(starts) = self.starts.get(range) else { return (NONE, u32::MAX) };
        let i = starts.partition_point(|start| *start <= service);
        let end = starts.get(i).map_or(u32::MAX, |s| s - 1);
        (i.checked_sub(1).and_then(|i| self.ranks.get(s.first as usize + i)).copied().unwrap_or(NONE), end)
    }

    #[inline(always)]
    pub(crate) fn rank(&self, s: Services, service: u32) -> u32 {
        self.at(s, service).0
    }

    fn bytes(&self) -> usize {
        heap(&self.starts) + heap(&self.ranks)
    }
}

/// Bytes that a list takes.
fn heap<T>(list: &Vec<T>) -> usize {
    list.capacity() * size_of::<T>()
}

/// First and last address of a rule's prefix, the longer one first among those that begin together, and its rank.
type Entry<A> = ((A, Reverse<A>), u32);

/// Of the rule of a rank; none: it is about another family, or a group.
fn entry<A: Address>(rules: &[Rule], order: &[u32], rank: u32) -> Option<Entry<A>> {
    let bounds = match &rules[order[rank as usize] as usize].remote {
        Remote::Any => A::bounds(None),
        Remote::Prefix(p) => A::bounds(Some(p)),
        Remote::Group(_) => None,
    };
    bounds.map(|(first, last)| ((first, Reverse(last)), rank))
}

/// Two sorted lists as one. The second is short.
pub(crate) fn merged<T: Copy, K: Ord>(long: &[T], short: &[T], key: impl Fn(T) -> K) -> Vec<T> {
    let (mut out, mut at) = (Vec::with_capacity(long.len() + short.len()), 0);
    for new in short {
        let first = key(*new);
        let until = at + long[at..].partition_point(|old| key(*old) < first);
        out.extend_from_slice(&long[at..until]);
        out.push(*new);
        at = until;
    }
    out.extend_from_slice(&long[at..]);
    out
}

/// The rules for addresses of one family.
#[derive(Debug, Default)]
pub(crate) struct Table<A> {
    /// Where each interval of addresses begins.
    bounds: Vec<A>,
    /// Every STEP-th of these: a search stays in here, which is in the cache, until one line of `bounds` is left.
    steps: Vec<A>,
    /// The longest prefix that covers it.
    longest: Vec<u32>,
    nodes: Vec<Node>,
    pool: Pool,
    /// Ranks in the order of their prefixes, one before those that it covers: where the table of a changed group begins.
    sorted: Vec<u32>,
}

/// How the prefixes of a table lie in each other; only the search for rules that never decide needs it.
#[derive(Debug, Default)]
struct Shape {
    /// The node of each rank; NONE: its rule is about another family, or a group.
    node: Vec<u32>,
    /// Behind the last node that lies in each.
    end: Vec<u32>,
}

impl<A: Address> Table<A> {
    /// Of the rules in this order.
    fn new(rules: &[Rule], order: &[u32]) -> (Table<A>, Shape) {
        let ranks = 0..order.len() as u32;
        let mut by_prefix: Vec<_> = ranks.filter_map(|rank| entry(rules, order, rank)).collect();
        // A prefix comes before those that it covers.
        by_prefix.sort_unstable();
        Table::build(rules, order, &by_prefix)
    }

    /// Of rules of which this table has most: `now` gives the rank that each of its ranks has in `order`, `come` are the others.
    /// The same as [`Table::new`], without sorting.
    fn changed(&self, rules: &[Rule], order: &[u32], now: &[u32], come: &[u32]) -> (Table<A>, Shape) {
        let of = |rank: u32| entry::<A>(rules, order, rank);
        let kept: Vec<_> = self.sorted.iter().map(|r| now[*r as usize]).filter(|r| *r != NONE).filter_map(of).collect();
        let mut new: Vec<_> = come.iter().filter_map(|rank| of(*rank)).collect();
        new.sort_unstable();
        Table::build(rules, order, &merged(&kept, &new, |entry| entry))
    }

    /// Of entries in the order of their prefixes.
    fn build(rules: &[Rule], order: &[u32], by_prefix: &[Entry<A>]) -> (Table<A>, Shape) {
        let mut shape = Shape { node: vec![NONE; order.len()], end: Vec::new() };
        let sorted = by_prefix.iter().map(|e| e.1).collect();
        let mut table = Table {
            bounds: vec![A::default()],
            steps: Vec::new(),
            longest: vec![NONE],
            nodes: Vec::new(),
            pool: Pool::default(),
            sorted,
        };
        let (mut open, mut entries): (Vec<(A, u32)>, Vec<(u32, u32, u32)>) = Default::default();
        for same in by_prefix.chunk_by(|a, b| a.0 == b.0) {
            let ((first, Reverse(last)), _) = same[0];
            table.close(&mut open, &mut shape, Some(first));
            entries.clear();
            entries.extend(same.iter().map(|(_, rank)| {
                let (from, to) = rules[order[*rank as usize] as usize].services;
                (from, to, *rank)
            }));
            let parent = open.last().map_or(NONE, |o| o.1);
            let above = table.nodes.get(parent as usize).map_or(NONE, |n| n.best);
            let best = same.iter().map(|s| s.1).min().unwrap_or(NONE).min(above);
            let services = table.pool.add(&mut entries);
            let node = table.nodes.len() as u32;
            same.iter().for_each(|s| shape.node[s.1 as usize] = node);
            shape.end.push(NONE);
            table.nodes.push(Node { services, parent, best });
            table.begin(first, node);
            open.push((last, node));
        }
        table.close(&mut open, &mut shape, None);
        table.steps = table.bounds.iter().step_by(STEP).copied().collect();
        (table, shape)
    }

    /// An interval begins at `first`; one that began there before has nothing in it.
    fn begin(&mut self, first: A, node: u32) {
        match self.bounds.last() {
            Some(last) if *last == first => {
                self.longest.pop();
                self.longest.push(node);
            }
            _ => {
                self.bounds.push(first);
                self.longest.push(node);
            }
        }
    }

    /// Ends the open prefixes that end before `before` (None: all of them).
    fn close(&mut self, open: &mut Vec<(A, u32)>, shape: &mut Shape, before: Option<A>) {
        while let Some((last, node)) = open.last().copied().filter(|(last, _)| before.is_none_or(|b| *last < b)) {
            open.pop();
            shape.end[node as usize] = self.nodes.len() as u32;
            if let Some(next) = last.next() {
                self.begin(next, open.last().map_or(NONE, |o| o.1));
            }
        }
    }

    /// The rank of the rule that decides about an address and a service, if it is lower than `best`; else `best`.
    #[inline]
    pub(crate) fn lookup(&self, addr: A, service: u32, mut best: u32) -> u32 {
        let from = self.steps.partition_point(|b| *b <= addr).saturating_sub(1) * STEP;
        let near = self.bounds.get(from..(from + STEP).min(self.bounds.len())).unwrap_or(&[]);
        let i = from + near.partition_point(|b| *b <= addr);
        let mut at = i.checked_sub(1).and_then(|i| self.longest.get(i)).copied().unwrap_or(NONE);
        while let Some(node) = self.nodes.get(at as usize).filter(|n| n.best < best) {
            best = best.min(self.pool.rank(node.services, service));
            at = node.parent;
        }
        best
    }

    /// Which nodes have addresses that no longer prefix covers.
    fn bare(&self) -> Vec<bool> {
        let mut bare = vec![false; self.nodes.len()];
        self.longest.iter().filter(|n| **n != NONE).for_each(|n| bare[*n as usize] = true);
        bare
    }

    /// Whether a rule of this rank decides about any address and any of its services. What is taken where a prefix begins is taken
    /// in all prefixes inside of it, so these need not be looked at.
    fn decides(&self, (shape, bare): &(Shape, Vec<bool>), rank: u32, services: (u32, u32)) -> bool {
        let Some(own) = shape.node.get(rank as usize).filter(|n| **n != NONE) else { return false };
        let (mut at, end) = (*own as usize, shape.end[*own as usize] as usize);
        while at < end {
            match self.uncovered(at as u32, rank, services) {
                true if bare[at] => return true,
                true => at += 1,
                false => at = shape.end[at] as usize,
            }
        }
        false
    }

    /// Whether lower ranks in a prefix and those around it leave some of these services.
    fn uncovered(&self, prefix: u32, rank: u32, services: (u32, u32)) -> bool {
        leaves_some(services, |service| {
            let (mut at, mut taken) = (prefix, None);
            while let Some(node) = self.nodes.get(at as usize) {
                let (found, until) = self.pool.at(node.services, service);
                if found < rank {
                    taken = taken.max(Some(until));
                }
                at = node.parent;
            }
            taken
        })
    }

    fn bytes(&self) -> usize {
        let addresses = heap(&self.bounds) + heap(&self.steps);
        addresses + heap(&self.longest) + heap(&self.sorted) + heap(&self.nodes) + self.pool.bytes()
    }
}

/// The tables of one direction of a group. They know ranks, not positions, so that a change of the other direction leaves them.
#[derive(Debug, Default)]
struct Tables {
    v4: Table<u32>,
    v6: Table<u128>,
    /// Rules about members of a group: its name, its services.
    groups: Vec<(Arc<str>, Services)>,
    pool: Pool,
}

/// How the prefixes of both families lie.
#[derive(Debug)]
pub(crate) struct Shapes {
    v4: (Shape, Vec<bool>),
    v6: (Shape, Vec<bool>),
}

/// One direction of a group.
#[derive(Debug, Default)]
pub(crate) struct Compiled {
    /// Positions of rules, by rank.
    pub(crate) order: Vec<u32>,
    tables: Arc<Tables>,
}

impl Compiled {
    pub(crate) fn new(rules: &[Rule], direction: RuleDirection) -> (Compiled, Shapes) {
        let order = order(rules, direction);
        let (v4, v6) = (Table::new(rules, &order), Table::new(rules, &order));
        Compiled::of(rules, order, v4, v6)
    }

    fn of(rules: &[Rule], order: Vec<u32>, v4: (Table<u32>, Shape), v6: (Table<u128>, Shape)) -> (Compiled, Shapes) {
        let shapes = Shapes { v4: (v4.1, v4.0.bare()), v6: (v6.1, v6.0.bare()) };
        let (groups, pool) = by_group(rules, &order);
        (Compiled { order, tables: Arc::new(Tables { v4: v4.0, v6: v6.0, groups, pool }) }, shapes)
    }

    /// The same as [`Compiled::new`] of `rules`, out of what is there: `kept` gives the position that each of the rules before has now
    /// ([`NONE`]: it is gone), `come` are the positions of the others. Shapes and the ranks that came, unless the tables are the same.
    pub(crate) fn changed(
        &self,
        rules: &[Rule],
        direction: RuleDirection,
        kept: &[u32],
        come: &[u32],
    ) -> (Compiled, Option<(Shapes, Vec<u32>)>) {
        let stay: Vec<u32> = self.order.iter().map(|i| kept[*i as usize]).filter(|i| *i != NONE).collect();
        let mut new: Vec<u32> = come.iter().copied().filter(|i| rules[*i as usize].direction == direction).collect();
        if new.is_empty() && stay.len() == self.order.len() {
            return (Compiled { order: stay, tables: self.tables.clone() }, None);
        }
        new.sort_unstable_by_key(|i| turn(rules, *i));
        let order = merged(&stay, &new, |i| turn(rules, i));
        let mut rank = vec![NONE; rules.len()];
        (0u32..).zip(&order).for_each(|(r, i)| rank[*i as usize] = r);
        let at = |i: u32| rank.get(i as usize).copied().unwrap_or(NONE);
        let now: Vec<u32> = self.order.iter().map(|i| at(kept[*i as usize])).collect();
        let new: Vec<u32> = new.into_iter().map(at).collect();
        let v4 = self.tables.v4.changed(rules, &order, &now, &new);
        let v6 = self.tables.v6.changed(rules, &order, &now, &new);
        let (compiled, shapes) = Compiled::of(rules, order, v4, v6);
        (compiled, Some((shapes, new)))
    }

    /// The rank of the rule that decides about an address and a service; NONE if none matches.
    #[inline]
    pub(crate) fn lookup(&self, addr: IpAddr, service: u32) -> u32 {
        match addr {
            IpAddr::V4(a) => self.tables.v4.lookup(a.to_bits(), service, NONE),
            IpAddr::V6(a) => self.tables.v6.lookup(a.to_bits(), service, NONE),
        }
    }

    /// The groups that its rules name, each with what these say.
    pub(crate) fn groups(&self) -> &[(Arc<str>, Services)] {
        &self.tables.groups
    }

    /// The rank of the best rule about members of such a group.
    pub(crate) fn of_group(&self, services: Services, service: u32) -> u32 {
        self.tables.pool.rank(services, service)
    }

    /// Whether the rule of a rank decides about anything; `about` is what decides about members of groups.
    pub(crate) fn decides(&self, rules: &[Rule], shapes: &Shapes, about: &AboutGroups<'_>, rank: u32) -> bool {
        let rule = &rules[self.order[rank as usize] as usize];
        match &rule.remote {
            Remote::Group(name) => about.get(name).is_some_and(|(pool, all)| {
                leaves_some(rule.services, |service| {
                    let (found, until) = pool.at(*all, service);
                    (found < rank).then_some(until)
                })
            }),
            _ => {
                let Tables { v4, v6, .. } = &*self.tables;
                v4.decides(&shapes.v4, rank, rule.services) || v6.decides(&shapes.v6, rank, rule.services)
            }
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        heap(&self.order)
            + heap(&self.tables.groups)
            + self.tables.v4.bytes()
            + self.tables.v6.bytes()
            + self.tables.pool.bytes()
    }

    /// Whether all of it is as in another one.
    #[cfg(test)]
    pub(crate) fn is(&self, other: &Compiled) -> bool {
        self.order == other.order && format!("{:?}", self.tables) == format!("{:?}", other.tables)
    }
}

fn by_group(rules: &[Rule], order: &[u32]) -> (Vec<(Arc<str>, Services)>, Pool) {
    let mut found: BTreeMap<&Arc<str>, Vec<(u32, u32, u32)>> = BTreeMap::new();
    for (rank, i) in order.iter().enumerate() {
        let rule = &rules[*i as usize];
        if let Remote::Group(name) = &rule.remote {
            found.entry(name).or_default().push((rule.services.0, rule.services.1, rank as u32));
        }
    }
    let mut pool = Pool::default();
    let groups = found.into_iter().map(|(name, mut r)| (name.clone(), pool.add(&mut r))).collect();
    (groups, pool)
}

/// Whether any service is left of a range. `taken` says up to which one the services from its argument on are taken, if it is.
fn leaves_some((mut from, to): (u32, u32), taken: impl Fn(u32) -> Option<u32>) -> bool {
    loop {
        match taken(from) {
            None => return true,
            Some(until) if until >= to => return false,
            Some(until) => from = until + 1,
        }
    }
}

/// For each group that rules name, what decides about its members for certain: rules about it and about everybody. Members may have
/// any address.
pub(crate) type AboutGroups<'a> = HashMap<&'a Arc<str>, (Pool, Services)>;

pub(crate) fn about_groups<'a>(rules: &'a [Rule], order: &[u32]) -> AboutGroups<'a> {
    let (mut everybody, mut of_group) = (Vec::new(), HashMap::<_, Vec<_>>::new());
    for (rank, i) in order.iter().enumerate() {
        let rule = &rules[*i as usize];
        let entry = (rule.services.0, rule.services.1, rank as u32);
        match &rule.remote {
            Remote::Any => everybody.push(entry),
            Remote::Group(name) => of_group.entry(name).or_default().push(entry),
            Remote::Prefix(_) => {}
        }
    }
    let both = |own: Vec<_>| {
        let (mut pool, mut all) = (Pool::default(), own);
        all.extend_from_slice(&everybody);
        let services = pool.add(&mut all);
        (pool, services)
    };
    of_group.into_iter().map(|(name, own)| (name, both(own))).collect()
}

#[cfg(test)]
#[path = "compile_tests.rs"]
mod tests;
