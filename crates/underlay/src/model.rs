// SPDX-License-Identifier: Apache-2.0
//! What the kernel tells us, as plain values: links, neighbours, routes, and the events that change them.

use abi::IfIndex;
use std::net::IpAddr;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Interface index.
    pub index: IfIndex,
    /// Interface name, for display.
    pub name: String,
    /// Its MAC address as a number of 48 bits; none for what is not Ethernet.
    pub mac: Option<u64>,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Administratively up and with a carrier.
    pub up: bool,
    /// The kernel sends over it, which may begin up to a second after the carrier is there: what it sends before is lost.
    pub running: bool,
}

/// An entry of the kernel's neighbour table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Interface on which the neighbour lies.
    pub ifindex: IfIndex,
    /// Its address.
    pub addr: IpAddr,
    /// Its MAC address, if the kernel knows one that may be used now (reachable, stale, delay, probe, permanent, noarp).
    pub mac: Option<u64>,
    /// Set by an administrator for good: it needs no resolution, and must not get any.
    pub permanent: bool,
    /// The kernel keeps it resolved by itself (NTF_EXT_MANAGED).
    pub managed: bool,
}

/// What a route does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteKind {
    /// Sends it to one of the next hops.
    Unicast,
    /// Refuses it (blackhole, unreachable, prohibit), or delivers it to this machine, or is no unicast route.
    Refuse,
    /// Makes the lookup go on in the next table.
    Throw,
}

/// One next hop of a route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hop {
    /// Egress interface.
    pub ifindex: IfIndex,
    /// Gateway; none if the destination itself is the neighbour. May be of the other family (RFC 8950).
    pub via: Option<IpAddr>,
    /// Weight in the multipath route, 1 and up.
    pub weight: u32,
    /// The kernel calls it dead, or it needs an encapsulation that Tunny does not do.
    pub unusable: bool,
}

/// A route of the kernel's FIB. Its identity is (table, prefix, metric).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Routing table (254 = main).
    pub table: u32,
    /// Network address of the prefix.
    pub dst: IpAddr,
    /// Length of the prefix.
    pub len: u8,
    /// Metric; the least wins.
    pub metric: u32,
    /// What it does.
    pub kind: RouteKind,
    /// MTU set on the route, 0 if none.
    pub mtu: u32,
    /// Next hops in the kernel's order.
    pub hops: Vec<Hop>,
}

/// How a new route relates to one of the same identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteOp {
    /// It is added beside or behind it (the earlier one stays in force).
    Add,
    /// It takes its place.
    Replace,
}

/// One message from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A link is new or has changed.
    Link(Link),
    /// A link is gone.
    LinkGone(IfIndex),
    /// A neighbour is new or has changed.
    Neighbour(Neighbour),
    /// A neighbour entry is gone.
    NeighbourGone {
        /// Its interface.
        ifindex: IfIndex,
        /// Its address.
        addr: IpAddr,
    },
    /// A route is new or has changed.
    Route(Route, RouteOp),
    /// A route, or some of its next hops, are gone.
    RouteGone(Route),
    /// Something changed that only a fresh look at everything can tell (a nexthop object, an address).
    Unclear,
}

/// Everything at one time: the result of a dump.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// All links.
    pub links: Vec<Link>,
    /// All neighbours.
    pub neighbours: Vec<Neighbour>,
    /// All routes of the tables that are followed.
    pub routes: Vec<Route>,
}
