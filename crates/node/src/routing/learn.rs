// SPDX-License-Identifier: Apache-2.0
//! Which routes of a namespace's kernel become routes of its VPC. No I/O.

use super::netlink::KernelRoute;
use abi::{special4, special6, DropReason, Prefix};
use model::Scope;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Why a route is not learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// It is the default route, and the circuit may not learn one.
    Default,
    /// Its addresses are never forwarded.
    Martian,
    /// It lies where the VPC's own VMs are.
    Own,
    /// It lies where a peer's VMs are.
    Peer,
    /// The circuit has as many as it may.
    Limit,
}

impl Refusal {
    /// As it is told.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::Default => "default_route",
            Refusal::Martian => "martian",
            Refusal::Own => "own_vms",
            Refusal::Peer => "peer_vpc",
            Refusal::Limit => "limit",
        }
    }
}

/// A circuit, as far as learning goes.
#[derive(Debug)]
pub struct Circuit<'a> {
    /// Number of its line.
    pub line: u8,
    /// Number of its TAP in the namespace, if it is there.
    pub interface: Option<u32>,
    /// Frames can leave by its port.
    pub up: bool,
    /// Routes at most.
    pub limit: u32,
    /// One of them may be the default route.
    pub default: bool,
    /// What it had learned before: that stays when there is more than may be.
    pub had: &'a BTreeSet<Prefix>,
    /// What it led to before the node was started, and nobody has said since.
    pub stale: Option<&'a BTreeMap<Prefix, Learned>>,
}

/// What one circuit offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Prefixes that it may lead to.
    pub taken: BTreeSet<Prefix>,
    /// How many of them are stale.
    pub stale: usize,
    /// Prefixes that it may not, by why.
    pub refused: BTreeMap<Refusal, u64>,
}

/// A route that was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// The line that it leads to.
    pub line: u8,
    /// Its metric in the kernel.
    pub metric: u32,
    /// Who entered it there.
    pub protocol: u8,
    /// It was learned before the node was started, and nobody has said it since.
    pub stale: bool,
}

impl Circuit<'_> {
    fn leads(&self, route: &KernelRoute) -> bool {
        self.interface.is_some_and(|i| route.interfaces.contains(&i))
    }
}

/// What the daemon of a namespace says that can be used.
pub fn said(routes: &[KernelRoute], circuits: &[Circuit<'_>]) -> BTreeSet<Prefix> {
    routes.iter().filter(|r| circuits.iter().any(|c| c.up && c.leads(r))).map(|r| r.prefix).collect()
}

/// Whether a VPC may learn a prefix; `route` is what it has configured.
pub fn may_learn(
    prefix: Prefix,
    default: bool,
    route: impl Fn(Prefix) -> Option<Scope<abi::Vni>>,
) -> Result<(), Refusal> {
    if prefix.prefix_len() == 0 {
        return if default { Ok(()) } else { Err(Refusal::Default) };
    }
    if [prefix.network(), prefix.broadcast()].into_iter().any(never_forwarded) {
        return Err(Refusal::Martian);
    }
    // The longest configured route around it says whose it is.
    match around(prefix).find_map(route) {
        Some(Scope::Local) => Err(Refusal::Own),
        Some(Scope::Peer(_)) => Err(Refusal::Peer),
        _ => Ok(()),
    }
}

/// A prefix and all that it lies in, the longest first.
pub(crate) fn around(prefix: Prefix) -> impl Iterator<Item = Prefix> {
    let all = (0..=prefix.prefix_len()).rev();
    all.filter_map(move |len| Prefix::new(prefix.addr(), len).ok()).map(|p| p.trunc())
}

/// Whether packets with this address are never forwarded.
pub(crate) fn never_forwarded(address: IpAddr) -> bool {
    let why = match address {
        IpAddr::V4(a) if a.to_bits() >= 0xe000_0000 => return true,
        IpAddr::V4(a) => special4(a.to_bits(), false),
        IpAddr::V6(a) if a.octets()[0] == 0xff => return true,
        IpAddr::V6(a) => special6((a.to_bits() >> 64) as u64, a.to_bits() as u64, false),
    };
    why.is_some_and(|why| why != DropReason::InnerDocumentation)
}

/// What each circuit of a namespace offers, and of each prefix the best: the lowest metric, then the lowest line. Of a circuit whose port is
/// down nothing is used. A stale route is used where nothing is said of its prefix.
pub fn learn(
    routes: &[KernelRoute],
    circuits: &[Circuit<'_>],
    route: impl Fn(Prefix) -> Option<Scope<abi::Vni>>,
) -> (Vec<Offer>, BTreeMap<Prefix, Learned>) {
    let mut offers = Vec::new();
    let said = said(routes, circuits);
    let mut best: BTreeMap<Prefix, Learned> = BTreeMap::new();
    for c in circuits {
        let mut offer = Offer::default();
        let mut lowest: BTreeMap<Prefix, Learned> = BTreeMap::new();
        for r in routes.iter().filter(|r| c.leads(r)) {
            let new = Learned { line: c.line, metric: r.metric, protocol: r.protocol, stale: false };
            let has = lowest.entry(r.prefix).or_insert(new);
            if new.metric < has.metric {
                *has = new;
            }
        }
        for (prefix, old) in c.stale.into_iter().flatten().filter(|(prefix, _)| !said.contains(*prefix)) {
            lowest.entry(*prefix).or_insert(Learned { line: c.line, stale: true, ..*old });
        }
        let mut allowed = Vec::new();
        for (prefix, r) in &lowest {
            match may_learn(*prefix, c.default, &route) {
                Ok(()) => allowed.push((*prefix, *r)),
                Err(why) => *offer.refused.entry(why).or_default() += 1,
            }
        }
        // Those that it had come first, so that the limit takes away none of them; if it is a lower one now, the stale ones go first.
        let had = |prefix: &Prefix| c.had.contains(prefix) || c.stale.is_some_and(|old| old.contains_key(prefix));
        allowed.sort_by_key(|(prefix, r)| (!had(prefix), r.stale));
        let over = allowed.len().saturating_sub(c.limit as usize);
        if over > 0 {
            offer.refused.insert(Refusal::Limit, over as u64);
            allowed.truncate(c.limit as usize);
        }
        offer.taken = allowed.iter().map(|(prefix, _)| *prefix).collect();
        offer.stale = allowed.iter().filter(|(_, r)| r.stale).count();
        for (prefix, new) in allowed.into_iter().filter(|_| c.up) {
            let old = best.entry(prefix).or_insert(new);
            if (new.metric, new.line) < (old.metric, old.line) {
                *old = new;
            }
        }
        offers.push(offer);
    }
    (offers, best)
}
