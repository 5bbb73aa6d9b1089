// SPDX-License-Identifier: Apache-2.0
//! What of the routes of a VPC is learned. No I/O and no clock.

use super::super::learn::{around, may_learn, never_forwarded, Refusal};
use super::heard::{Heard, Refusals};
use super::moves::Moves;
use super::said::{Refused, What};
use abi::{Mac, Prefix, Vni};
use compile::EvpnVpc;
use model::Scope;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

/// Addresses of one VM at most, as in a document.
const ADDRESSES_MAX: usize = 64;

/// A VM that was learned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its addresses, in order. Without one it is only where prefixes are.
    pub addresses: Vec<IpAddr>,
    /// The tunnel end behind which it is.
    pub vtep: IpAddr,
    /// How often it has moved, as the fabric counts.
    pub sequence: u32,
    /// Nobody says it now.
    pub stale: bool,
    /// By what learned routes name it; 0: none does.
    pub hop: u32,
}

impl Host {
    /// The address under which routes find it: one that no packet has (RFC 791: "this network").
    pub fn hop_address(&self) -> Option<IpAddr> {
        (self.hop != 0).then(|| IpAddr::V4(Ipv4Addr::from_bits(self.hop)))
    }
}

/// A prefix that was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Far {
    /// MAC address of the VM, or router, to which its packets go.
    pub router: Mac,
    /// Nobody says it now.
    pub stale: bool,
}

/// All that a VPC has learned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fabric {
    /// VMs and routers.
    pub hosts: BTreeMap<Mac, Host>,
    /// Prefixes.
    pub prefixes: BTreeMap<Prefix, Far>,
    /// Tunnel ends that take part in the VPC.
    pub members: BTreeSet<IpAddr>,
}

impl Fabric {
    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.prefixes.is_empty() && self.members.is_empty()
    }

    /// Every tunnel end.
    pub fn vteps(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.hosts.values().map(|h| h.vtep).chain(self.members.iter().copied())
    }

    /// A VM goes, and the prefixes behind it.
    pub fn remove(&mut self, mac: Mac) -> Option<Host> {
        let gone = self.hosts.remove(&mac)?;
        if gone.hop != 0 {
            self.prefixes.retain(|_, far| far.router != mac);
        }
        Some(gone)
    }
}

/// What a VPC has configured.
pub trait Configured {
    /// Whether a VM has this MAC address, or the gateway.
    fn has_mac(&self, mac: Mac) -> bool;
    /// Whether a VM has this address, or the gateway.
    fn has_address(&self, address: IpAddr) -> bool;
    /// Where the route of this prefix leads.
    fn route(&self, prefix: Prefix) -> Option<Scope<Vni>>;
}

/// What is taken of a VPC's routes, and what is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// What is learned.
    pub fabric: Fabric,
    /// What is refused, by why.
    pub refused: Refusals,
    /// MAC addresses that move too often.
    pub flapping: BTreeSet<Mac>,
}

struct Judge<'a, C> {
    vpc: &'a EvpnVpc,
    configured: &'a C,
    had: &'a Fabric,
    out: Decision,
}

/// One MAC address at one tunnel end.
#[derive(Clone, Debug)]
struct Place {
    sequence: u32,
    stale: bool,
    addresses: BTreeSet<IpAddr>,
}

/// Decides what a VPC learns. `heard` is what is meant for it, `had` what it has learned already: that stays when there is more than may be.
pub fn decide<'h, C: Configured>(
    vpc: &EvpnVpc,
    heard: impl Iterator<Item = &'h Heard>,
    configured: &C,
    had: &Fabric,
    (moves, now): (&mut Moves, Instant),
) -> Decision {
    let mut judge = Judge { vpc, configured, had, out: Decision::default() };
    let heard = judge.near(heard);
    judge.out.fabric.members = heard.iter().filter(|h| h.what == What::Member).map(|h| h.vtep).collect();
    let places = judge.places(&heard);
    let placed = judge.placed(places, moves, now);
    judge.hosts(placed);
    judge.prefixes(&heard);
    judge.out
}

impl<C: Configured> Judge<'_, C> {
    fn refuse(&mut self, why: Refused, n: u64) {
        if n > 0 {
            *self.out.refused.entry(why).or_default() += n;
        }
    }

    /// What is behind as many tunnel ends as may be.
    fn near<'h>(&mut self, heard: impl Iterator<Item = &'h Heard>) -> Vec<&'h Heard> {
        let mut heard: Vec<&Heard> = heard.collect();
        let all: BTreeSet<IpAddr> = heard.iter().map(|h| h.vtep).collect();
        let limit = self.vpc.limits.vteps as usize;
        if all.len() > limit {
            let had: BTreeSet<IpAddr> = self.had.vteps().collect();
            let (old, new): (Vec<_>, Vec<_>) = all.into_iter().partition(|vtep| had.contains(vtep));
            let kept: BTreeSet<IpAddr> = old.into_iter().chain(new).take(limit).collect();
            let before = heard.len();
            heard.retain(|h| kept.contains(&h.vtep));
            self.refuse(Refused::Limit, (before - heard.len()) as u64);
        }
        heard
    }

    /// The MAC addresses that may be learned, with all their places.
    fn places(&mut self, heard: &[&Heard]) -> BTreeMap<Mac, BTreeMap<IpAddr, Place>> {
        let mut all: BTreeMap<Mac, BTreeMap<IpAddr, Place>> = BTreeMap::new();
        let mut own = 0;
        for h in heard {
            let What::Host { mac, ip, sequence } = h.what else { continue };
            if self.configured.has_mac(mac) {
                own += 1;
                continue;
            }
            let new = Place { sequence, stale: h.stale.is_some(), addresses: BTreeSet::new() };
            let place = all.entry(mac).or_default().entry(h.vtep).or_insert(new);
            place.sequence = place.sequence.max(sequence);
            place.stale &= h.stale.is_some();
            if let Some(ip) = ip {
                match self.unfit(ip) {
                    Some(why) => self.refuse(why, 1),
                    None => drop(place.addresses.insert(ip)),
                }
            }
        }
        self.refuse(Refused::Own, own);
        all
    }

    /// What is wrong with an address.
    fn unfit(&self, ip: IpAddr) -> Option<Refused> {
        if never_forwarded(ip) {
            return Some(Refused::Martian);
        }
        if self.configured.has_address(ip) {
            return Some(Refused::Own);
        }
        // What is local is the VPC's own to give; what lies elsewhere would be drawn away from there.
        match around(Prefix::from(ip)).find_map(|p| self.configured.route(p)) {
            Some(Scope::Local) => None,
            _ => Some(Refused::NotLocal),
        }
    }

    /// Of each MAC address the place that holds: what is said goes before what is remembered, then the highest sequence number, then the lowest
    /// tunnel end (RFC 7432 §15). One that moves too often stays where it is.
    fn placed(
        &mut self,
        places: BTreeMap<Mac, BTreeMap<IpAddr, Place>>,
        moves: &mut Moves,
        now: Instant,
    ) -> Vec<(Mac, IpAddr, Place)> {
        let mut placed = Vec::new();
        for (mac, mut at) in places {
            let best = at.iter().min_by_key(|(vtep, p)| (p.stale, std::cmp::Reverse(p.sequence), **vtep));
            let Some(best) = best.map(|(vtep, _)| *vtep) else { continue };
            let held = moves.place(mac, best, now);
            let over = (at.len() - 1) as u64;
            if held != best {
                self.out.flapping.insert(mac);
            }
            // Nowhere, if it is not said any more where it is held.
            let Some(place) = at.remove(&held) else {
                self.refuse(Refused::Moves, over + 1);
                continue;
            };
            self.refuse(Refused::Moves, over);
            placed.push((mac, held, place));
        }
        moves.forget(now, &placed.iter().map(|(mac, ..)| *mac).collect());
        // What there was goes first, so that limits and addresses take nothing away from it; then what is said.
        let had = &self.had.hosts;
        placed.sort_by_key(|(mac, vtep, p)| (had.get(mac).is_none_or(|h| h.vtep != *vtep), p.stale, *mac));
        placed
    }

    fn hosts(&mut self, placed: Vec<(Mac, IpAddr, Place)>) {
        let mut taken: BTreeSet<IpAddr> = BTreeSet::new();
        let (mut limited, mut double, mut vms) = (0, 0, 0);
        for (mac, vtep, place) in placed {
            let mut addresses = Vec::new();
            for ip in place.addresses {
                match taken.contains(&ip) {
                    true => double += 1,
                    false if addresses.len() == ADDRESSES_MAX => limited += 1,
                    false => addresses.push(ip),
                }
            }
            if !addresses.is_empty() {
                if vms == self.vpc.limits.vms {
                    limited += 1;
                    continue;
                }
                vms += 1;
            }
            taken.extend(&addresses);
            let host = Host { addresses, vtep, sequence: place.sequence, stale: place.stale, hop: 0 };
            self.out.fabric.hosts.insert(mac, host);
        }
        self.refuse(Refused::Limit, limited);
        self.refuse(Refused::Taken, double);
    }

    fn prefixes(&mut self, heard: &[&Heard]) {
        // What is said, and of two the lower tunnel end.
        let mut best: BTreeMap<Prefix, (&Heard, Mac)> = BTreeMap::new();
        let by_address: BTreeMap<IpAddr, Mac> = {
            let hosts = self.out.fabric.hosts.iter();
            hosts.flat_map(|(mac, h)| h.addresses.iter().map(|a| (*a, *mac))).collect()
        };
        for h in heard {
            let What::Prefix { prefix, router, gateway } = h.what else { continue };
            let allowed = may_learn(prefix, self.vpc.default, |p| self.configured.route(p)).map_err(|why| match why {
                Refusal::Default => Refused::Default,
                Refusal::Martian => Refused::Martian,
                Refusal::Own => Refused::Own,
                Refusal::Peer => Refused::Peer,
                Refusal::Limit => Refused::Limit,
            });
            let allowed = allowed.and_then(|()| match self.configured.route(prefix) {
                // The same prefix is configured, and that holds.
                Some(_) => Err(Refused::Own),
                None => Ok(()),
            });
            // Who has that address may be anywhere; else it is a router at the tunnel end.
            let found = match gateway {
                Some(gateway) => by_address.get(&gateway).copied(),
                None => router.filter(|mac| self.may_be_at(*mac, h.vtep)),
            };
            match allowed.and(found.ok_or(Refused::NoRouter)) {
                Err(why) => self.refuse(why, 1),
                Ok(mac) => {
                    let old = best.entry(prefix).or_insert((h, mac));
                    if (h.stale.is_some(), h.vtep) < (old.0.stale.is_some(), old.0.vtep) {
                        *old = (h, mac);
                    }
                }
            }
        }
        let had = &self.had.prefixes;
        let mut list: Vec<_> = best.into_iter().collect();
        list.sort_by_key(|(prefix, (h, _))| (!had.contains_key(prefix), h.stale.is_some()));
        let over = list.len().saturating_sub(self.vpc.limits.routes as usize);
        list.truncate(self.vpc.limits.routes as usize);
        self.refuse(Refused::Limit, over as u64);
        let mut lost = 0;
        for (prefix, (h, router)) in list {
            // Two tunnel ends may claim one router.
            if self.may_be_at(router, h.vtep) || matches!(h.what, What::Prefix { gateway: Some(_), .. }) {
                let stale = h.stale.is_some();
                let new = Host { addresses: Vec::new(), vtep: h.vtep, sequence: 0, stale, hop: 0 };
                self.out.fabric.hosts.entry(router).or_insert(new);
                self.out.fabric.prefixes.insert(prefix, Far { router, stale });
            } else {
                lost += 1;
            }
        }
        self.refuse(Refused::NoRouter, lost);
        self.number();
    }

    fn may_be_at(&self, router: Mac, vtep: IpAddr) -> bool {
        let known = self.out.fabric.hosts.get(&router);
        !self.configured.has_mac(router) && known.is_none_or(|host| host.vtep == vtep)
    }

    /// Numbers those that prefixes need: who had a number keeps it. Who is neither VM nor router is nothing.
    fn number(&mut self) {
        let Fabric { hosts, prefixes, .. } = &mut self.out.fabric;
        let needed: BTreeSet<Mac> = prefixes.values().map(|far| far.router).collect();
        let before = |mac: &Mac| self.had.hosts.get(mac).map_or(0, |host| host.hop);
        let mut used: BTreeSet<u32> = needed.iter().map(before).collect();
        let mut next = 1;
        for mac in &needed {
            let Some(host) = hosts.get_mut(mac) else { continue };
            host.hop = before(mac);
            if host.hop == 0 {
                while !used.insert(next) {
                    next += 1;
                }
                host.hop = next;
            }
        }
        hosts.retain(|_, host| host.hop != 0 || !host.addresses.is_empty());
    }
}
