// SPDX-License-Identifier: Apache-2.0
//! The routing table in its forms: ALPM, and hashing by prefix length.
//!
//! By length: a VPC's record says which lengths its routes have and in which of eight tables each is to be looked up. All
//! tables hold whole keys (VNI, label, the upper 64 bits), so nothing is taken for something else. The controller
//! chooses which of a VPC's lengths goes into which table, and so balances them. What does not fit this — a VPC with more
//! lengths, IPv6 prefixes longer than 64 bits — lies in a small TCAM.

use super::alpm::{self, Alpm};
use super::hash::{HashTable, Shape, WAYS};
use super::key::{Address, Prefix, BITS};
use std::collections::{BTreeMap, HashMap};

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
    /// Of a VPC and family: lengths and their tables, longest first.
    plan: HashMap<(u32, bool), Vec<(u8, u8)>>,
    spill: BTreeMap<Prefix, u32>,
    spill_max: usize,
}

impl Routes {
    /// ALPM with these routes.
    pub fn alpm(shape: alpm::Shape, routes: &[Route]) -> Result<Routes, RoutesFull> {
        let prefixes: Vec<(Prefix, u32)> =
            routes.iter().map(|r| (Prefix::route(r.vni, r.v6, r.addr, r.len.into()), r.value)).collect();
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
        let mut l =
            Lengths { slots: (0..SLOTS).map(slot).collect(), plan: HashMap::new(), spill: BTreeMap::new(), spill_max };
        l.fill(routes);
        if l.spill.len() > spill_max {
            return Err(RoutesFull::Spill { routes: l.spill.len(), room: spill_max });
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

    /// Routes.
    pub fn len(&self) -> usize {
        match self {
            Routes::Alpm(t) => t.len(),
            Routes::Lengths(l) => l.slots.iter().map(HashTable::len).sum::<usize>() + l.spill.len(),
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
        vpcs.sort_by_key(|(key, lengths)| (std::cmp::Reverse(lengths.values().map(Vec::len).sum::<usize>()), *key));
        for ((vni, v6), lengths) in vpcs {
            // Which of the eight rotations brings the largest length into the emptiest table: so there are few plans.
            let groups: Vec<(u8, Vec<&Route>)> = lengths.into_iter().collect();
            let largest = groups.iter().enumerate().max_by_key(|(_, g)| g.1.len()).map_or(0, |(i, _)| i);
            let emptiest = (0..SLOTS).min_by_key(|s| self.slots[*s].len()).unwrap_or(0);
            let turn = SLOTS + emptiest - largest % SLOTS;
            for (i, (len, routes)) in groups.into_iter().enumerate() {
                let slot = (i + turn) % SLOTS;
                let full = self.slots[slot].len() + routes.len() > self.slots[slot].places();
                if i >= SLOTS || v6 && len > 64 || full {
                    self.spill.extend(routes.iter().map(|r| (Prefix::route(vni, v6, r.addr, len.into()), r.value)));
                    continue;
                }
                self.plan.entry((vni, v6)).or_default().push((len, slot as u8));
                for r in routes {
                    let key = masked(&Address { vni, v6, addr: r.addr }, len);
                    if self.slots[slot].insert(key, r.value).is_err() {
                        self.spill.insert(Prefix::route(vni, v6, r.addr, len.into()), r.value);
                    }
                }
            }
        }
        self.plan.values_mut().for_each(|p| p.sort_unstable_by(|a, b| b.cmp(a)));
    }

    fn lookup(&self, a: &Address) -> Option<u32> {
        let exact = self.plan.get(&(a.vni, a.v6)).and_then(|plan| {
            plan.iter().find_map(|(len, slot)| Some((*len, self.slots[usize::from(*slot)].lookup(&masked(a, *len))?)))
        });
        if self.spill.is_empty() {
            return exact.map(|e| e.1);
        }
        let bits = a.pooled();
        let base = if a.v6 { 24 } else { 24 + 96 };
        let from = exact.map_or(base, |e| base + u32::from(e.0) + 1);
        let spilled = (from..=BITS).rev().find_map(|len| self.spill.get(&Prefix { bits: bits.first(len), len }));
        spilled.copied().or(exact.map(|e| e.1))
    }

    /// Different plans of lengths.
    pub fn plans(&self) -> usize {
        self.plan.values().collect::<std::collections::HashSet<_>>().len()
    }

    /// Routes in the TCAM for exceptions, and its room.
    pub fn spilled(&self) -> (usize, usize) {
        (self.spill.len(), self.spill_max)
    }
}
