// SPDX-License-Identifier: Apache-2.0
//! The routing table in its forms: ALPM, and hashing by prefix length.
//!
//! By length: a VPC's record says which lengths its routes have and in which of eight tables each is to be looked up. All
//! tables hold whole keys (VNI, label, the upper 64 bits), so nothing is taken for something else. The controller
//! chooses which of a VPC's lengths goes into which table, and so balances them. What does not fit this — a VPC with more
//! lengths, IPv6 prefixes longer than 64 bits — lies in a small TCAM.

use super::alpm::{self, Alpm};
use super::hash::{HashTable, Shape, WAYS};
use super::key::{Address, KeyPrefix, Map};
use std::collections::BTreeMap;

/// A route of a VPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// VNI.
    pub vni: u32,
    /// IPv6.
    pub v6: bool,
    /// First address.
    pub addr: u128,
    /// Bits that count, of 32 or 128.
    pub len: u8,
    /// What it says: an index.
    pub value: u32,
}

impl Route {
    /// Its first address in its VPC.
    pub fn address(&self) -> Address {
        Address { vni: self.vni, v6: self.v6, addr: self.addr }
    }
}

/// Tables that are looked up in parallel by length.
pub const SLOTS: usize = 8;

/// No room for the routes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoutesFull {
    /// ALPM.
    #[error(transparent)]
    Alpm(#[from] alpm::Full),
    /// By length.
    #[error(
        "{routes} routes need the TCAM for exceptions, which has {room} places: give it more, or more tables by length"
    )]
    Spill {
        /// Routes that need it.
        routes: usize,
        /// Places.
        room: usize,
    },
}

/// The table.
#[derive(Clone, Debug)]
pub enum Routes {
    /// ALPM over the pooled space.
    Alpm(Alpm),
    /// By length.
    Lengths(Box<Lengths>),
}

/// Tables by length.
#[derive(Clone, Debug)]
pub struct Lengths {
    slots: Vec<HashTable>,
    /// Of a VPC and family: which plan, and its routes in the TCAM.
    records: Map<(u32, bool), Record>,
    plans: Vec<Plan>,
    /// The TCAM for exceptions, by VPC and family: length, first address and value, longest first.
    spill: Vec<Vec<(u8, u128, u32)>>,
    spill_max: usize,
}

/// What is known of a VPC's routes of a family.
#[derive(Clone, Copy, Debug)]
struct Record {
    plan: u32,
    /// Its exceptions; NONE if there are none.
    spill: u32,
}

/// Which of the tables are asked for which lengths, the longest first.
#[derive(Clone, Copy, Debug, Default)]
struct Plan {
    count: u8,
    lengths: [(u8, u8); SLOTS],
}

const NONE: u32 = u32::MAX;

impl Routes {
    /// ALPM with these routes.
    pub fn alpm(shape: alpm::Shape, routes: &[Route]) -> Result<Routes, RoutesFull> {
        let prefixes: Vec<(KeyPrefix, u32)> =
            routes.iter().map(|r| (KeyPrefix::route(r.vni, r.v6, r.addr, r.len.into()), r.value)).collect();
        Ok(Routes::Alpm(Alpm::build(shape, &prefixes)?))
    }

    /// Tables by length, each with so many places.
    pub fn lengths(
        places: u64,
        pack: u32,
        spill_max: usize,
        routes: &[Route],
        salt: u64,
    ) -> Result<Routes, RoutesFull> {
        let rows = places.div_ceil(WAYS as u64 * u64::from(pack)) as u32;
        let slot = |i: usize| HashTable::new(Shape { rows, pack, digest: None }, salt ^ (i as u64 + 1) << 40);
        let slots = (0..SLOTS).map(slot).collect();
        let mut l = Lengths { slots, records: Map::default(), plans: Vec::new(), spill: Vec::new(), spill_max };
        l.fill(routes);
        let (spilled, _) = l.spilled();
        if spilled > spill_max {
            return Err(RoutesFull::Spill { routes: spilled, room: spill_max });
        }
        Ok(Routes::Lengths(Box::new(l)))
    }

    /// The value of the longest prefix.
    #[inline]
    pub fn lookup(&self, a: &Address) -> Option<u32> {
        match self {
            Routes::Alpm(t) => {
                let (len, value) = t.lookup(&a.pooled())?;
                // Prefixes of the other family may cover the place where IPv4 lies.
                let mapped = !a.v6 && len < 24 + 96;
                (!mapped).then_some(value)
            }
            Routes::Lengths(l) => l.lookup(a),
        }
    }

    /// Tables that a packet to this address is looked up in.
    pub fn tables(&self, a: &Address) -> u32 {
        match self {
            // The pivots and a partition.
            Routes::Alpm(_) => 2,
            // The VPC's record, its plan, the tables that the plan names, and the TCAM.
            Routes::Lengths(l) => {
                let record = l.records.get(&(a.vni, a.v6));
                3 + record.map_or(0, |r| u32::from(l.plans[r.plan as usize].count))
            }
        }
    }

    /// Routes.
    pub fn len(&self) -> usize {
        match self {
            Routes::Alpm(t) => t.len(),
            Routes::Lengths(l) => l.slots.iter().map(HashTable::len).sum::<usize>() + l.spilled().0,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn masked(a: &Address, len: u8) -> Address {
    let width: u8 = if a.v6 { 128 } else { 32 };
    let low = u32::from(width.saturating_sub(len));
    Address { addr: if low >= 128 { 0 } else { a.addr >> low << low }, ..*a }
}

impl Lengths {
    fn fill(&mut self, routes: &[Route]) {
        let mut by_vpc: BTreeMap<(u32, bool), BTreeMap<u8, Vec<&Route>>> = BTreeMap::new();
        for r in routes {
            by_vpc.entry((r.vni, r.v6)).or_default().entry(r.len).or_default().push(r);
        }
        let mut vpcs: Vec<_> = by_vpc.into_iter().collect();
        let mut numbers: BTreeMap<Vec<(u8, u8)>, u32> = BTreeMap::new();
        vpcs.sort_by_key(|(key, lengths)| (std::cmp::Reverse(lengths.values().map(Vec::len).sum::<usize>()), *key));
        for ((vni, v6), lengths) in vpcs {
            // Which of the eight rotations brings the largest length into the emptiest table: so there are few plans.
            let groups: Vec<(u8, Vec<&Route>)> = lengths.into_iter().collect();
            let largest = groups.iter().enumerate().max_by_key(|(_, g)| g.1.len()).map_or(0, |(i, _)| i);
            let emptiest = (0..SLOTS).min_by_key(|s| self.slots[*s].len()).unwrap_or(0);
            let turn = SLOTS + emptiest - largest % SLOTS;
            let (mut plan, mut spill) = (Vec::new(), Vec::new());
            for (i, (len, routes)) in groups.into_iter().enumerate() {
                let slot = (i + turn) % SLOTS;
                let full = self.slots[slot].len() + routes.len() > self.slots[slot].places();
                if i >= SLOTS || v6 && len > 64 || full {
                    spill.extend(routes.iter().map(|r| (len, r.addr, r.value)));
                    continue;
                }
                plan.push((len, slot as u8));
                for r in routes {
                    let key = masked(&Address { vni, v6, addr: r.addr }, len);
                    if self.slots[slot].insert(key, r.value).is_err() {
                        spill.push((len, r.addr, r.value));
                    }
                }
            }
            plan.sort_unstable_by(|a, b| b.cmp(a));
            spill.sort_unstable_by(|a, b| b.cmp(a));
            let next = numbers.len() as u32;
            let number = *numbers.entry(plan.clone()).or_insert(next);
            if number == next {
                let mut lengths = [(0, 0); SLOTS];
                lengths[..plan.len()].copy_from_slice(&plan);
                self.plans.push(Plan { count: plan.len() as u8, lengths });
            }
            let mut record = Record { plan: number, spill: NONE };
            if !spill.is_empty() {
                record.spill = self.spill.len() as u32;
                self.spill.push(spill);
            }
            self.records.insert((vni, v6), record);
        }
    }

    #[inline]
    fn lookup(&self, a: &Address) -> Option<u32> {
        let record = self.records.get(&(a.vni, a.v6))?;
        let plan = &self.plans[record.plan as usize];
        let exact = plan.lengths[..usize::from(plan.count)]
            .iter()
            .find_map(|(len, slot)| Some((*len, self.slots[usize::from(*slot)].lookup(&masked(a, *len))?)));
        if record.spill == NONE {
            return exact.map(|e| e.1);
        }
        // The TCAM says the longest of its own; the longer of both counts.
        let longer = self.spill[record.spill as usize].iter().take_while(|s| exact.is_none_or(|e| s.0 > e.0));
        let spilled = longer.into_iter().find(|s| masked(a, s.0).addr == s.1);
        spilled.map(|s| s.2).or(exact.map(|e| e.1))
    }

    /// Different plans of lengths.
    pub fn plans(&self) -> usize {
        self.plans.len()
    }

    /// Routes in the TCAM for exceptions, and its room.
    pub fn spilled(&self) -> (usize, usize) {
        (self.spill.iter().map(Vec::len).sum(), self.spill_max)
    }
}
