// SPDX-License-Identifier: Apache-2.0
//! Peer routes that lead a packet too far, or in a circle.
//!
//! A packet to address x goes from VPC to VPC as long as the longest prefix for x is a peer route. Allowed are PEER_HOPS_MAX
//! hops; a circle is the endless case of more. Whether some address suffers is decided exactly.
//!
//! *One change* of prefix P in VPC v: every bad walk that is new passes v on an address in P, so it is found by
//! going back from v at most PEER_HOPS_MAX hops (only VPCs joined by a peering can lead there) and then forward. A
//! walk is kept with the narrowest prefix on it, since prefixes nest. A walk that is long enough is a candidate: it is
//! real if some address in its narrowest prefix has, in every VPC on the walk, that very route as its longest. That
//! is decided by stepping over the longer prefixes that hide a route. Only peer routes are walked (a VPC keeps them in an index
//! of their own), so half a million local routes cost nothing. The steps are counted, and a change that needs more
//! than PEER_STEPS_MAX is refused.
//!
//! *Many changes at once*: an upper bound of the hops from every VPC, which forgets about hiding, is computed with a memory
//! for (VPC, prefix), so that a hub with many spokes is walked once and not once a spoke. Only if the bound is too high
//! are the changes looked at one by one.

use super::state::VpcState;
use super::{Model, PEER_STEPS_MAX};
use crate::error::Problem;
use crate::prefix::Prefix;
use abi::{Ipv4Net, Ipv6Net};
use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Included};

/// One hop of a walk: in this VPC, by this route, to that VPC.
#[derive(Clone, Copy, Debug)]
struct Hop {
    vpc: u32,
    route: Prefix,
    to: u32,
}

struct Search<'a> {
    model: &'a Model,
    steps: u32,
    found: Option<Problem>,
    /// Hops that may follow behind the changed route, at most.
    reach: usize,
}

/// Steps of the computation of bounds at most, for one change set.
const BOUND_STEPS_MAX: u32 = 50_000_000;

/// Upper bounds of the number of peer hops, with a memory.
struct Bounds<'a> {
    model: &'a Model,
    known: HashMap<(u32, Prefix), (usize, usize)>,
    steps: u32,
}

impl Bounds<'_> {
    fn new(model: &Model) -> Bounds<'_> {
        Bounds { model, known: HashMap::new(), steps: 0 }
    }

    /// Hops from a VPC on addresses in `region`: no more than this, or `limit` if it could be as many.
    fn hops(&mut self, vpc: u32, region: Prefix, limit: usize) -> usize {
        if limit == 0 || self.steps > BOUND_STEPS_MAX {
            return limit;
        }
        if let Some(&(hops, limit_seen)) = self.known.get(&(vpc, region)) {
            if hops < limit_seen || limit <= limit_seen {
                return hops.min(limit);
            }
        }
        let mut most = 0;
        for (route, to) in options(self.model.vpc(vpc), region) {
            self.steps += 1;
            most = most.max(1 + self.hops(to, narrower(region, route), limit - 1));
            if most >= limit {
                break;
            }
        }
        self.known.insert((vpc, region), (most, limit));
        most
    }
}

impl Model {
    /// Searches for a bad walk through `vpc` on an address in `prefix`, as the routes are now.
    pub(crate) fn find_peer_fault(&self, vpc: u32, prefix: Prefix) -> Option<Problem> {
        let (route, state) = self.vpc(vpc).covering(prefix)?;
        let super::Target::Peer(to) = state.target else { return None };
        let mut bounds = Bounds::new(self);
        let reach = bounds.hops(to, prefix, abi::PEER_HOPS_MAX as usize);
        let mut search = Search { model: self, steps: bounds.steps, found: None, reach };
        search.back(&mut vec![Hop { vpc, route, to }], prefix);
        if search.steps > PEER_STEPS_MAX {
            return Some(Problem::PeerTooComplex { prefix: prefix.to_string(), limit: PEER_STEPS_MAX });
        }
        search.found
    }

    /// Whether no packet anywhere can pass too many peer routes. A no is no proof that one can.
    pub(crate) fn peers_are_short(&self) -> bool {
        let mut bounds = Bounds::new(self);
        let limit = abi::PEER_HOPS_MAX as usize + 1;
        let whole = [Prefix::V4(Ipv4Net::default()), Prefix::V6(Ipv6Net::default())];
        self.vpcs
            .iter()
            .filter(|(_, v)| !v.peers4.is_empty() || !v.peers6.is_empty())
            .all(|(id, _)| whole.iter().all(|region| bounds.hops(id, *region, limit) < limit))
    }
}

impl Search<'_> {
    fn done(&mut self) -> bool {
        self.steps += 1;
        self.found.is_some() || self.steps > PEER_STEPS_MAX
    }

    /// Extends the walk at its front in every way, and each result at its end. `walk` is in packet order.
    fn back(&mut self, walk: &mut Vec<Hop>, region: Prefix) {
        if walk.len() + self.reach > abi::PEER_HOPS_MAX as usize {
            self.forward(walk, region);
        }
        if walk.len() > abi::PEER_HOPS_MAX as usize || self.done() {
            return;
        }
        let first = walk[0].vpc;
        for &from in self.model.vpc(first).links.keys() {
            let before = self.model.vpc(from);
            if before.links.get(&first).is_none_or(|l| l.routes == 0) {
                continue;
            }
            for (route, to) in options(before, region) {
                if self.done() {
                    return;
                }
                if to == first {
                    walk.insert(0, Hop { vpc: from, route, to });
                    self.back(walk, narrower(region, route));
                    walk.remove(0);
                }
            }
        }
    }

    /// Extends the walk at its end until it is one hop too long.
    fn forward(&mut self, walk: &mut Vec<Hop>, region: Prefix) {
        if self.done() {
            return;
        }
        if walk.len() > abi::PEER_HOPS_MAX as usize {
            self.judge(walk, region);
            return;
        }
        let at = walk[walk.len() - 1].to;
        for (route, to) in options(self.model.vpc(at), region) {
            walk.push(Hop { vpc: at, route, to });
            self.forward(walk, narrower(region, route));
            walk.pop();
            if self.found.is_some() || self.steps > PEER_STEPS_MAX {
                return;
            }
        }
    }

    /// Looks for an address in `region` that really takes every hop of the walk.
    fn judge(&mut self, walk: &[Hop], region: Prefix) {
        let mut x = region.addr();
        'next: loop {
            for hop in walk {
                self.steps += 1;
                if self.steps > PEER_STEPS_MAX {
                    return;
                }
                match self.model.vpc(hop.vpc).lookup(x) {
                    Some((p, _)) if p == hop.route => {}
                    Some((p, _)) if p.prefix_len() > region.prefix_len() => {
                        match after(p.broadcast()).filter(|x| region.contains(x)) {
                            Some(next) => x = next,
                            None => return,
                        }
                        continue 'next;
                    }
                    _ => return,
                }
            }
            break;
        }
        let mut vpcs: Vec<u32> = walk.iter().map(|h| h.vpc).collect();
        vpcs.push(walk[walk.len() - 1].to);
        let circle = (1..vpcs.len()).find(|i| vpcs[..*i].contains(&vpcs[*i]));
        vpcs.truncate(circle.map_or(vpcs.len(), |i| i + 1));
        let names: Vec<&str> = vpcs.iter().map(|v| &*self.model.vpc(*v).spec.name).collect();
        let (address, path) = (x.to_string(), names.join(" → "));
        self.found = Some(match circle {
            Some(_) => Problem::PeerLoop { address, path },
            None => Problem::PeerTooDeep { address, path },
        });
    }
}

/// The peer routes that a packet to some address in `region` may take in a VPC: the longest that covers all of it, and
/// those inside.
fn options(vpc: &VpcState, region: Prefix) -> impl Iterator<Item = (Prefix, u32)> + '_ {
    let over = vpc.covering(region).and_then(|(p, r)| match r.target {
        super::Target::Peer(to) => Some((p, to)),
        _ => None,
    });
    let (mut v4, mut v6) = (None, None);
    match region {
        Prefix::V4(net) => v4 = Some(vpc.peers4.range((Excluded(net), Included(Ipv4Net::from(net.broadcast()))))),
        Prefix::V6(net) => v6 = Some(vpc.peers6.range((Excluded(net), Included(Ipv6Net::from(net.broadcast()))))),
    }
    let v4 = v4.into_iter().flatten().map(|(net, to)| (Prefix::V4(*net), *to));
    let v6 = v6.into_iter().flatten().map(|(net, to)| (Prefix::V6(*net), *to));
    over.into_iter().chain(v4).chain(v6)
}

/// The longer of two prefixes of which one covers the other.
fn narrower(a: Prefix, b: Prefix) -> Prefix {
    if a.prefix_len() >= b.prefix_len() {
        a
    } else {
        b
    }
}

/// The next address.
fn after(a: IpAddr) -> Option<IpAddr> {
    match a {
        IpAddr::V4(a) => u32::from(a).checked_add(1).map(|a| IpAddr::V4(a.into())),
        IpAddr::V6(a) => u128::from(a).checked_add(1).map(|a| IpAddr::V6(a.into())),
    }
}
