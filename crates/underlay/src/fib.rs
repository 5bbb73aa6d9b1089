// SPDX-License-Identifier: Apache-2.0
//! A mirror of the kernel's FIB, for longest prefix match without a kernel query for each NC.
//!
//! Routes lie in one hash map per (table, family, prefix length), so that a lookup probes only the lengths in use, longest
//! first. Tables are asked in the kernel's order: local, the chosen one (main), default. Routes with a TOS or a source
//! prefix are not mirrored: packets to NCs are not routed by them.
//!
//! The kernel's notifications are not a complete journal of the FIB: routes that vanish because their device went down or
//! lost its address are often not announced, and the rules differ between IPv4 and IPv6. So events are applied at once, for a quick reaction,
//! and each is followed by a fresh dump (`replace_all`), which makes the mirror exact whatever was left unsaid.

use crate::model::{Hop, Route, RouteKind, RouteOp};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The kernel's local table, asked first.
pub const TABLE_LOCAL: u32 = 255;
/// The kernel's main table.
pub const TABLE_MAIN: u32 = 254;
/// The kernel's default table, asked last.
pub const TABLE_DEFAULT: u32 = 253;

/// Routes with one prefix, in order of their metric.
type Chain = Vec<Route>;
/// Prefix length -> network -> routes.
type Lengths = BTreeMap<u8, HashMap<u128, Chain>>;

/// The mirror.
#[derive(Debug, Default)]
pub struct Fib {
    tables: HashMap<(u32, bool), Lengths>,
    order: Vec<u32>,
    routes: usize,
}

/// The way to a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Usable next hops, never empty.
    pub hops: Vec<Hop>,
    /// MTU set on the route, 0 if none.
    pub mtu: u32,
}

/// The address as a number, left-aligned in 128 bits for both families.
fn bits(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(v4) => (u32::from(v4) as u128) << 96,
        IpAddr::V6(v6) => u128::from(v6),
    }
}

fn mask(len: u8) -> u128 {
    if len == 0 {
        0
    } else {
        u128::MAX << (128 - len.min(128) as u32)
    }
}

/// First and last address of a prefix.
pub fn range(dst: IpAddr, len: u8) -> (IpAddr, IpAddr) {
    let low = bits(dst) & mask(len);
    let high = low | !mask(len);
    match dst {
        IpAddr::V4(_) => (Ipv4Addr::from((low >> 96) as u32).into(), Ipv4Addr::from((high >> 96) as u32).into()),
        IpAddr::V6(_) => (Ipv6Addr::from(low).into(), Ipv6Addr::from(high).into()),
    }
}

impl Fib {
    /// An empty mirror that looks into local, `table`, default.
    pub fn new(table: u32) -> Fib {
        let mut order = vec![TABLE_LOCAL, table, TABLE_DEFAULT];
        order.dedup();
        Fib { tables: HashMap::new(), order, routes: 0 }
    }

    /// Whether routes of this table matter.
    pub fn follows(&self, table: u32) -> bool {
        self.order.contains(&table)
    }

    /// Routes in the mirror.
    pub fn len(&self) -> usize {
        self.routes
    }

    /// Whether there is no route at all.
    pub fn is_empty(&self) -> bool {
        self.routes == 0
    }

    /// Replaces everything by a dump, in the kernel's order.
    pub fn replace_all(&mut self, routes: Vec<Route>) {
        self.tables.clear();
        self.routes = 0;
        for route in routes {
            self.add(route, RouteOp::Add);
        }
    }

    /// Adds a route.
    pub fn add(&mut self, route: Route, op: RouteOp) {
        if !self.follows(route.table) {
            return;
        }
        let lengths = self.tables.entry((route.table, route.dst.is_ipv6())).or_default();
        let chain = lengths.entry(route.len).or_default().entry(bits(route.dst) & mask(route.len)).or_default();
        let same = chain.iter().position(|r| r.metric == route.metric);
        match (same, op) {
            (Some(at), RouteOp::Replace) => chain[at] = route,
            // The kernel repeats a whole IPv6 multipath route when it gains a next hop: the longer list is the newer.
            (Some(at), RouteOp::Add) if route.dst.is_ipv6() => merge_hops(&mut chain[at], route),
            (Some(_), RouteOp::Add) if chain.contains(&route) => {}
            _ => {
                let at = chain.partition_point(|r| r.metric <= route.metric);
                chain.insert(at, route);
                self.routes += 1;
            }
        }
    }

    /// Removes a route: for IPv4 the whole route with these next hops (or the first of this metric), for IPv6 the named
    /// next hops, and the route when none is left.
    pub fn remove(&mut self, gone: &Route) {
        let Some(lengths) = self.tables.get_mut(&(gone.table, gone.dst.is_ipv6())) else { return };
        let Some(networks) = lengths.get_mut(&gone.len) else { return };
        let key = bits(gone.dst) & mask(gone.len);
        let Some(chain) = networks.get_mut(&key) else { return };
        let exact = chain.iter().position(|r| r.metric == gone.metric && same_hops(&r.hops, &gone.hops));
        let Some(at) = exact.or_else(|| chain.iter().position(|r| r.metric == gone.metric)) else { return };
        if gone.dst.is_ipv6() {
            chain[at].hops.retain(|h| !gone.hops.iter().any(|g| g.ifindex == h.ifindex && g.via == h.via));
        }
        if gone.dst.is_ipv4() || chain[at].hops.is_empty() {
            chain.remove(at);
            self.routes -= 1;
        }
        if chain.is_empty() {
            networks.remove(&key);
            if networks.is_empty() {
                lengths.remove(&gone.len);
            }
        }
    }

    /// The way to `dst`: the longest prefix with the least metric that has a usable next hop. A route all of whose next
    /// hops are unusable is passed over, as the kernel does once it has noticed.
    pub fn lookup(&self, dst: IpAddr, usable: impl Fn(&Hop) -> bool) -> Option<Path> {
        let addr = bits(dst);
        for table in &self.order {
            let Some(lengths) = self.tables.get(&(*table, dst.is_ipv6())) else { continue };
            'table: for (len, networks) in lengths.iter().rev() {
                let Some(chain) = networks.get(&(addr & mask(*len))) else { continue };
                for route in chain {
                    match route.kind {
                        RouteKind::Refuse => return None,
                        RouteKind::Throw => break 'table,
                        RouteKind::Unicast => {}
                    }
                    let hops: Vec<Hop> = route.hops.iter().filter(|h| usable(h)).cloned().collect();
                    if !hops.is_empty() {
                        return Some(Path { hops, mtu: route.mtu });
                    }
                }
            }
        }
        None
    }
}

fn same_hops(a: &[Hop], b: &[Hop]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.ifindex == y.ifindex && x.via == y.via)
}

/// IPv6: the next hops of `new` join those of `old`.
fn merge_hops(old: &mut Route, new: Route) {
    if new.hops.len() > 1 {
        *old = new;
        return;
    }
    for hop in new.hops {
        match old.hops.iter_mut().find(|h| h.ifindex == hop.ifindex && h.via == hop.via) {
            Some(known) => *known = hop,
            None => old.hops.push(hop),
        }
    }
    old.mtu = new.mtu;
}
