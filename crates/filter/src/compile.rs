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

impl<A: Address> Table<A> {
    /// Of the rules in this order.
    fn new(rules: &[Rule], order: &[u32]) -> Table<A> {
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
        let mut open: Vec<(A, u32)> = Vec::new();
        for same in by_prefix.chunk_by(|a, b| a.0 == b.0) {
            let ((first, Reverse(last)), _) = same[0];
            table.close(&mut open, Some(first));
            let mut entries: Vec<(u32, u32, u32)> = same
                .iter()
                .map(|(_, rank)| {
                    let (from, to) = rules[order[*rank as usize] as usize].services;
                    (from, to, *rank)
                })
                .collect();
            let parent = open.last().map_or(NONE, |o| o.1);
            let above = table.nodes.get(parent as usize).map_or(NONE, |n| n.best);
            let best = same.iter().map(|s| s.1).min().unwrap_or(NONE).min(above);
            let services = table.pool.add(&mut entries);
            let node = table.nodes.len() as u32;
            table.nodes.push(Node { services, parent, best });
            table.begin(first, node);
            open.push((last, node));
        }
        table.close(&mut open, None);
        table
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
    fn close(&mut self, open: &mut Vec<(A, u32)>, before: Option<A>) {
        while let Some((last, _)) = open.last().copied().filter(|(last, _)| before.is_none_or(|b| *last < b)) {
            open.pop();
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

    /// Whether a rule of this rank decides about any address from `first` to `last` and any of its services.
    fn decides(&self, (first, last): (A, A), rank: u32, (from, to): (u32, u32)) -> bool {
        let i = self.bounds.partition_point(|b| *b <= first).saturating_sub(1);
        let inside = self.bounds[i..].iter().take_while(|b| **b <= last).count().max(1);
        self.longest[i..i + inside].iter().any(|leaf| self.uncovered(*leaf, rank, from, to))
    }

    /// Whether no lower rank takes all services from `from` to `to` at a leaf.
    fn uncovered(&self, leaf: u32, rank: u32, mut from: u32, to: u32) -> bool {
        loop {
            let (mut at, mut end, mut better) = (leaf, from, false);
            while let Some(node) = self.nodes.get(at as usize) {
                let (found, until) = self.pool.at(node.services, from);
                if found < rank {
                    (better, end) = (true, end.max(until));
                }
                at = node.parent;
            }
            match (better, end >= to) {
                (false, _) => return true,
                (true, true) => return false,
                (true, false) => from = end + 1,
            }
        }
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

/// The rules of a direction that never decide, with the one that covers each, if one does so alone.
pub(crate) fn unreachable(rules: &[Rule], direction: RuleDirection, found: &mut Vec<(usize, Option<usize>)>) {
    // Rules about groups are compared by name, not looked up.
    let c = Compiled::new(rules, direction, &|_| NONE);
    for (rank, i) in c.order.iter().enumerate() {
        let (rule, rank) = (&rules[*i as usize], rank as u32);
        let range = rule.services;
        let any = |a: Option<(u32, u32)>, b: Option<(u128, u128)>| {
            a.is_some_and(|a| c.v4.decides(a, rank, range)) || b.is_some_and(|b| c.v6.decides(b, rank, range))
        };
        let decides = match &rule.remote {
            Remote::Any => any(u32::bounds(None), u128::bounds(None)),
            Remote::Prefix(p) => any(u32::bounds(Some(p)), u128::bounds(Some(p))),
            // Its members may have any address: only rules about everybody, or about the same group, come before it for certain.
            Remote::Group(_) => !alone(rules, &c.order, rank).any(|_| true),
        };
        if !decides {
            found.push((*i as usize, alone(rules, &c.order, rank).next()));
        }
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
                (Remote::Prefix(a), Remote::Prefix(b)) => {
                    let ((a0, a1), (b0, b1)) = (a.range(), b.range());
                    a.addr.is_ipv4() == b.addr.is_ipv4() && a0 <= b0 && b1 <= a1
                }
                (Remote::Group(a), Remote::Group(b)) => a == b,
                _ => false,
            }
    })
}
