// SPDX-License-Identifier: Apache-2.0
//! From rules to flat tables. A rule's rank is its place in the order in which rules are asked: the lowest that matches decides.

use crate::rule::{Prefix, Remote, Rule, RuleDirection};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

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
            Some(p) => p.addr.is_ipv4().then(|| (p.range().0 as u32, p.range().1 as u32)),
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
            Some(p) => p.addr.is_ipv6().then(|| p.range()),
        }
    }

    fn next(self) -> Option<u128> {
        self.checked_add(1)
    }
}

/// The rules of one direction in the order in which they are asked: positions in the group, by rank.
pub(crate) fn order(rules: &[Rule], direction: RuleDirection) -> Vec<u32> {
    let mut order: Vec<u32> = (0..rules.len() as u32).filter(|i| rules[*i as usize].direction == direction).collect();
    order.sort_by_key(|i| {
        let r = &rules[*i as usize];
        (r.priority, r.allow, *i)
    });
    order
}

/// A set of intervals of services in `starts` and `ranks` of its table.
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
            let intervals = [(0, NONE), (from, rank), (to + 1, NONE)];
            let begins = &intervals[usize::from(from == 0)..];
            self.starts.extend(begins.iter().map(|i| i.0));
            self.ranks.extend(begins.iter().map(|i| i.1));
            return Services { first, len: begins.len() as u32 };
        }
        rules.sort_unstable();
        let mut active: BinaryHeap<Reverse<(u32, u32)>> = BinaryHeap::new();
        let mut edges: Vec<u32> = rules.iter().flat_map(|(from, to, _)| [*from, to + 1]).collect();
        edges.sort_unstable();
        edges.dedup();
        let (mut next, mut last) = (0, NONE);
        if edges.first().is_none_or(|e| *e > 0) {
            self.starts.push(0);
            self.ranks.push(NONE);
        }
        for edge in edges {
            while let Some((_, to, rank)) = rules.get(next).filter(|r| r.0 == edge) {
                active.push(Reverse((*rank, *to)));
                next += 1;
            }
            while active.peek().is_some_and(|Reverse((_, to))| *to < edge) {
                active.pop();
            }
            let rank = active.peek().map_or(NONE, |Reverse((rank, _))| *rank);
            if rank != last || self.starts.len() as u32 == first {
                self.starts.push(edge);
                self.ranks.push(rank);
                last = rank;
            }
        }
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
        8 * self.starts.capacity()
    }
}

/// The rules for addresses of one family.
#[derive(Debug, Default)]
pub(crate) struct Table<A> {
    /// Where each interval of addresses begins.
    bounds: Vec<A>,
    /// The longest prefix that covers it.
    longest: Vec<u32>,
    nodes: Vec<Node>,
    pool: Pool,
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
    fn new(rules: &[Rule], order: &[u32]) -> Table<A> {
        Table::with_shape(rules, order).0
    }

    fn with_shape(rules: &[Rule], order: &[u32]) -> (Table<A>, Shape) {
        let mut shape = Shape { node: vec![NONE; order.len()], end: Vec::new() };
        let mut by_prefix: Vec<((A, Reverse<A>), u32)> = Vec::new();
        for (rank, i) in order.iter().enumerate() {
            let bounds = match &rules[*i as usize].remote {
                Remote::Any => A::bounds(None),
                Remote::Prefix(p) => A::bounds(Some(p)),
                Remote::Group(_) => None,
            };
            by_prefix.extend(bounds.map(|(first, last)| ((first, Reverse(last)), rank as u32)));
        }
        // A prefix comes before those that it covers.
        by_prefix.sort_unstable();
        let mut table = Table { bounds: vec![A::default()], longest: vec![NONE], nodes: Vec::new(), pool: Pool::default() };
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
        let i = self.bounds.partition_point(|b| *b <= addr);
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
        self.bounds.capacity() * size_of::<A>() + 4 * self.longest.capacity() + 16 * self.nodes.capacity() + self.pool.bytes()
    }
}

/// One direction of a group.
#[derive(Debug, Default)]
pub(crate) struct Compiled {
    /// Positions of rules, by rank.
    pub(crate) order: Vec<u32>,
    v4: Table<u32>,
    v6: Table<u128>,
    /// Rules about members of a group: its id, its services.
    groups: Vec<(u32, Services)>,
    pool: Pool,
}

impl Compiled {
    pub(crate) fn new(rules: &[Rule], direction: RuleDirection, id_of: &dyn Fn(&Arc<str>) -> u32) -> Compiled {
        let order = order(rules, direction);
        let (groups, pool) = by_group(rules, &order, id_of);
        Compiled { v4: Table::new(rules, &order), v6: Table::new(rules, &order), order, groups, pool }
    }

    /// The rank of the rule that decides about an address and a service; NONE if none matches.
    #[inline]
    pub(crate) fn lookup(&self, addr: IpAddr, service: u32) -> u32 {
        match addr {
            IpAddr::V4(a) => self.v4.lookup(a.to_bits(), service, NONE),
            IpAddr::V6(a) => self.v6.lookup(a.to_bits(), service, NONE),
        }
    }

    /// The groups that its rules name.
    pub(crate) fn groups(&self) -> &[(u32, Services)] {
        &self.groups
    }

    /// The rank of the best rule about members of such a group.
    pub(crate) fn of_group(&self, services: Services, service: u32) -> u32 {
        self.pool.rank(services, service)
    }

    pub(crate) fn bytes(&self) -> usize {
        4 * self.order.capacity() + self.v4.bytes() + self.v6.bytes() + self.pool.bytes()
    }
}

type ByGroup = (Vec<(u32, Services)>, Pool);

fn by_group(rules: &[Rule], order: &[u32], id_of: &dyn Fn(&Arc<str>) -> u32) -> ByGroup {
    let mut found: HashMap<&Arc<str>, Vec<(u32, u32, u32)>> = HashMap::new();
    for (rank, i) in order.iter().enumerate() {
        let rule = &rules[*i as usize];
        if let Remote::Group(name) = &rule.remote {
            found.entry(name).or_default().push((rule.services.0, rule.services.1, rank as u32));
        }
    }
    let mut pool = Pool::default();
    let mut groups: Vec<_> = found.into_iter().map(|(name, mut r)| (id_of(name), pool.add(&mut r))).collect();
    groups.sort_unstable_by_key(|(id, _)| *id);
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

/// The first `most` rules of a direction that never decide, with the one that covers each, if one does so alone.
pub(crate) fn unreachable(rules: &[Rule], direction: RuleDirection, most: usize) -> Vec<(usize, Option<usize>)> {
    let order = order(rules, direction);
    let (v4, shape4) = Table::<u32>::with_shape(rules, &order);
    let (v6, shape6) = Table::<u128>::with_shape(rules, &order);
    let (shape4, shape6) = ((shape4, v4.bare()), (shape6, v6.bare()));
    let about_groups = about_groups(rules, &order);
    let mut found = Vec::new();
    for (rank, i) in order.iter().enumerate().map(|(rank, i)| (rank as u32, *i as usize)) {
        let services = rules[i].services;
        let decides = match &rules[i].remote {
            Remote::Group(name) => about_groups.get(name).is_some_and(|(pool, all)| {
                leaves_some(services, |service| {
                    let (found, until) = pool.at(*all, service);
                    (found < rank).then_some(until)
                })
            }),
            _ => v4.decides(&shape4, rank, services) || v6.decides(&shape6, rank, services),
        };
        if !decides {
            found.push((i, alone(rules, &order, rank).next()));
            if found.len() >= most {
                break;
            }
        }
    }
    found
}

/// For each group that rules name, what decides about its members for certain: rules about it and about everybody. Members may have
/// any address.
fn about_groups<'a>(rules: &'a [Rule], order: &[u32]) -> HashMap<&'a Arc<str>, (Pool, Services)> {
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

/// Rules of a lower rank that match all that this one matches.
fn alone<'a>(rules: &'a [Rule], order: &'a [u32], rank: u32) -> impl Iterator<Item = usize> + 'a {
    let rule = &rules[order[rank as usize] as usize];
    order[..rank as usize].iter().map(|i| *i as usize).filter(move |i| {
        let o = &rules[*i];
        let services = o.services.0 <= rule.services.0 && rule.services.1 <= o.services.1;
        services
            && match (&o.remote, &rule.remote) {
                (Remote::Any, _) => true,
                (Remote::Prefix(a), Remote::Prefix(b)) => {
                    let ((a0, a1), (b0, b1)) = (a.range(), b.range());
                    a.addr.is_ipv4() == b.addr.is_ipv4() && a0 <= b0 && b1 <= a1
                }
                (Remote::Group(a), Remote::Group(b)) => a == b,
                _ => false,
            }
    })
}
