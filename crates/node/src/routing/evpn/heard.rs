// SPDX-License-Identifier: Apache-2.0
//! What was heard by EVPN, sorted by VPC, and what is remembered when nobody says it any more. No I/O; time comes in as an argument.

use super::super::stale::HOLD;
use super::said::{Refused, Said, What};
use abi::{Mac, Prefix, Vni};
use compile::{EvpnPlan, EvpnVpc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::time::Instant;

/// A route that is meant for a VPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// What it says.
    pub what: What,
    /// The tunnel end.
    pub vtep: IpAddr,
    /// Since when nobody says it; `None`: it is said now.
    pub stale: Option<Instant>,
}

/// Routes that are refused, by why.
pub type Refusals = BTreeMap<Refused, u64>;

/// What is said, by VPC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sorted {
    /// Of each VPC: what it may look at, and what is refused already.
    pub vpcs: HashMap<Vni, (Vec<Heard>, Refusals)>,
    /// Routes whose targets no VPC imports.
    pub foreign: u64,
}

/// Gives each VPC what its route targets and its VNI say is meant for it.
pub fn sort(plan: &EvpnPlan, said: Vec<Said>) -> Sorted {
    let vpcs: HashMap<Vni, &EvpnVpc> = plan.vpcs.iter().map(|vpc| (vpc.vni, vpc)).collect();
    let mut by_target = HashMap::new();
    for vpc in &plan.vpcs {
        by_target.extend(vpc.import.iter().map(|target| (*target, vpc.vni)));
    }
    let mut sorted = Sorted::default();
    for said in said {
        let vnis: HashSet<Vni> = said.targets.iter().filter_map(|t| by_target.get(t).copied()).collect();
        sorted.foreign += u64::from(vnis.is_empty());
        for vni in vnis {
            let (heard, refused) = sorted.vpcs.entry(vni).or_default();
            match vpcs.get(&vni).and_then(|vpc| fault(plan, vpc, &said)) {
                Some(why) => *refused.entry(why).or_default() += 1,
                None => heard.push(Heard { what: said.what, vtep: said.vtep, stale: None }),
            }
        }
    }
    // A daemon lists them in any order, and the same words shall be no news.
    sorted.vpcs.values_mut().for_each(|(heard, _)| heard.sort_unstable_by_key(|h| (h.what, h.vtep)));
    sorted
}

fn fault(plan: &EvpnPlan, vpc: &EvpnVpc, said: &Said) -> Option<Refused> {
    Some(match () {
        () if !said.vxlan => Refused::Encapsulation,
        () if said.tag != 0 => Refused::Tag,
        () if said.vni != vpc.vni.0 => Refused::OtherVni,
        () if plan.own.contains(&said.vtep) => Refused::OwnVtep,
        () if super::super::learn::never_forwarded(said.vtep) || said.vtep.is_unspecified() => Refused::BadVtep,
        () if !vpc.reaches(said.vtep) => Refused::NoVtep,
        () => return None,
    })
}

/// What was in force in a VPC, as it is kept for the next process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptFabric {
    /// MAC address, tunnel end, sequence number, addresses.
    #[serde(default)]
    pub hosts: Vec<(String, IpAddr, u32, Vec<IpAddr>)>,
    /// Prefix, tunnel end, MAC address of the router.
    #[serde(default)]
    pub prefixes: Vec<(String, IpAddr, String)>,
    /// Tunnel ends.
    #[serde(default)]
    pub members: Vec<IpAddr>,
}

impl KeptFabric {
    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == KeptFabric::default()
    }

    /// The same as if it had been heard until then; none: as it is heard now. What cannot be read is none.
    pub fn heard(&self, stale: Option<Instant>) -> Vec<Heard> {
        let of = |what, vtep| Heard { what, vtep, stale };
        let mac = |text: &str| text.parse::<Mac>().ok();
        let mut all: Vec<Heard> = self.members.iter().map(|vtep| of(What::Member, *vtep)).collect();
        for (text, vtep, sequence, addresses) in &self.hosts {
            let Some(mac) = mac(text) else { continue };
            let sequence = *sequence;
            all.extend(addresses.iter().map(|ip| of(What::Host { mac, ip: Some(*ip), sequence }, *vtep)));
        }
        for (prefix, vtep, router) in &self.prefixes {
            let (Some(prefix), router) = (prefix.parse::<Prefix>().ok().map(|p| p.trunc()), mac(router)) else {
                continue;
            };
            all.push(of(What::Prefix { prefix, router, gateway: None }, *vtep));
        }
        all
    }
}

/// What is said now, and what is remembered of before.
#[derive(Debug, Default)]
pub struct Memory {
    now: Sorted,
    before: HashMap<Vni, Vec<Heard>>,
}

impl Memory {
    /// With what an earlier process kept.
    pub fn new<'k>(kept: impl Iterator<Item = (Vni, &'k KeptFabric)>, now: Instant) -> Memory {
        let mut before: HashMap<Vni, Vec<Heard>> = HashMap::new();
        kept.for_each(|(vni, kept)| before.entry(vni).or_default().extend(kept.heard(Some(now))));
        Memory { now: Sorted::default(), before }
    }

    /// The daemon says this, all of it: what it says anew is no longer remembered. Whether anything has changed.
    pub fn hear(&mut self, sorted: Sorted) -> bool {
        for (vni, before) in &mut self.before {
            let said = Keys::of(sorted.vpcs.get(vni).map_or(&[][..], |(heard, _)| heard));
            before.retain(|h| !said.replaces(h));
        }
        self.before.retain(|_, left| !left.is_empty());
        let changed = self.now != sorted;
        self.now = sorted;
        changed
    }

    /// The daemon is gone: what it said is remembered. Whether there is anything.
    pub fn lose(&mut self, now: Instant) -> bool {
        let said = std::mem::take(&mut self.now);
        let any = !said.vpcs.is_empty();
        for (vni, (heard, _)) in said.vpcs {
            self.before.entry(vni).or_default().extend(heard.into_iter().map(|h| Heard { stale: Some(now), ..h }));
        }
        any
    }

    /// What was not said again in time goes: how much.
    pub fn pass(&mut self, now: Instant) -> usize {
        let mut gone = 0;
        for before in self.before.values_mut() {
            let had = before.len();
            before.retain(|h| h.stale.is_some_and(|since| now.saturating_duration_since(since) < HOLD));
            gone += had - before.len();
        }
        self.before.retain(|_, left| !left.is_empty());
        gone
    }

    /// VPCs that exchange nothing any more lose what is remembered.
    pub fn only(&mut self, configured: impl Fn(Vni) -> bool) {
        self.before.retain(|vni, _| configured(*vni));
    }

    /// What a VPC has to look at, what is said first, and what was refused before.
    pub fn of(&self, vni: Vni) -> (impl Iterator<Item = &Heard>, Refusals) {
        let now = self.now.vpcs.get(&vni);
        let before = self.before.get(&vni).map_or(&[][..], Vec::as_slice);
        let refused = now.map(|(_, refused)| refused.clone()).unwrap_or_default();
        (now.map_or(&[][..], |(heard, _)| heard).iter().chain(before), refused)
    }

    /// Routes whose targets no VPC imports.
    pub fn foreign(&self) -> u64 {
        self.now.foreign
    }
}

/// By what a route replaces one that is remembered.
#[derive(Default)]
struct Keys {
    addresses: HashSet<(Mac, Option<IpAddr>)>,
    places: HashMap<Mac, HashSet<IpAddr>>,
    prefixes: HashSet<Prefix>,
    members: HashSet<IpAddr>,
}

impl Keys {
    fn of(heard: &[Heard]) -> Keys {
        let mut keys = Keys::default();
        for h in heard {
            match h.what {
                What::Host { mac, ip, .. } => {
                    keys.addresses.insert((mac, ip));
                    keys.places.entry(mac).or_default().insert(h.vtep);
                }
                What::Prefix { prefix, .. } => drop(keys.prefixes.insert(prefix)),
                What::Member => drop(keys.members.insert(h.vtep)),
            }
        }
        keys
    }

    fn replaces(&self, old: &Heard) -> bool {
        match old.what {
            // A MAC address alone does not take back its IP addresses, which are said a moment later; but it may have moved.
            What::Host { mac, ip, .. } => {
                self.addresses.contains(&(mac, ip)) || self.places.get(&mac).is_some_and(|at| !at.contains(&old.vtep))
            }
            What::Prefix { prefix, .. } => self.prefixes.contains(&prefix),
            What::Member => self.members.contains(&old.vtep),
        }
    }
}
