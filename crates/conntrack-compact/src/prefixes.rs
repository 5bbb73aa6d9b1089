// SPDX-License-Identifier: Apache-2.0
//! Which flows of a tenant migrate (§5.2, Fig. 8): prefixes of addresses instead of single flows, chosen so that as much traffic
//! as possible stays in the fast path, and merged and split so that `Migrate_Tbl` stays small.
//!
//! The longest prefix, the unit, is the tenant's choice. Every unit counts its flows and their bytes; the counters of bytes are
//! cleared from time to time. To migrate n flows the units with the fewest bytes a flow go first. Two halves of a prefix that
//! both migrate become one entry. When the last flow of a unit ends, the entry that covers it is split: the largest part that has
//! no flow leaves the table, and the halves beside the way to it stay as entries of their own.
//!
//! The table is a set of prefixes that never cover one another; [`Edit`]s keep any longest-prefix table equal to it ([`edits_as_routes`]
//! for those of crate `tables`). Addresses are 128-bit numbers, IPv4 in the lowest 32 bits.

use std::collections::{BTreeMap, BTreeSet};

/// The numbers of one family that have their first bits in common. Bits behind `len` are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Block {
    /// The first of them.
    pub addr: u128,
    /// Bits that count.
    pub len: u8,
}

/// A change of `Migrate_Tbl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// This prefix migrates.
    Add(Block),
    /// This entry goes; entries that come in its place are added after it, in the same list.
    Remove(Block),
}

/// What is counted for a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Flows that exist.
    pub flows: u64,
    /// Their bytes since the counters were cleared.
    pub bytes: u64,
}

/// One tenant's part of `Migrate_Tbl`, with its counters.
#[derive(Clone, Debug)]
pub struct Prefixes {
    width: u8,
    unit: u8,
    /// Counters by first address of the unit.
    units: BTreeMap<u128, Count>,
    /// Entries, none inside another.
    entries: BTreeSet<Block>,
}

impl Prefixes {
    /// No entries. `width` is 32 or 128; `unit`, at most that, is the longest prefix.
    pub fn new(width: u8, unit: u8) -> Prefixes {
        let width = width.clamp(1, 128);
        Prefixes { width, unit: unit.min(width), units: BTreeMap::new(), entries: BTreeSet::new() }
    }

    /// The prefix of this length that an address lies in.
    pub fn prefix(&self, addr: u128, len: u8) -> Block {
        let host = u32::from(self.width - len.min(self.width));
        Block { addr: addr.checked_shr(host).map_or(0, |a| a << host), len: len.min(self.width) }
    }

    fn unit_of(&self, addr: u128) -> u128 {
        self.prefix(addr, self.unit).addr
    }

    /// The other half of a prefix's parent.
    fn sibling(&self, p: Block) -> Block {
        Block { addr: p.addr ^ 1u128 << (self.width - p.len), len: p.len }
    }

    /// The last address of a prefix.
    fn last(&self, p: Block) -> u128 {
        let host = u32::from(self.width - p.len);
        p.addr | 1u128.checked_shl(host).map_or(u128::MAX, |n| n - 1)
    }

    /// A flow begins.
    pub fn begin(&mut self, addr: u128) {
        self.units.entry(self.unit_of(addr)).or_default().flows += 1;
    }

    /// Bytes of a flow, as the fast path's counters say.
    pub fn add_bytes(&mut self, addr: u128, bytes: u64) {
        if let Some(count) = self.units.get_mut(&self.unit_of(addr)) {
            count.bytes = count.bytes.saturating_add(bytes);
        }
    }

    /// Bytes of flows of a prefix, whose units nobody tells apart: each unit in it gets its flows' part.
    pub fn add_bytes_below(&mut self, p: Block, bytes: u64) {
        let flows = self.sum(p).flows.max(1);
        let last = self.last(p);
        for count in self.units.range_mut(p.addr..=last).map(|(_, count)| count) {
            let part = u128::from(bytes) * u128::from(count.flows) / u128::from(flows);
            count.bytes = count.bytes.saturating_add(part as u64);
        }
    }

    /// What all units in a prefix count together.
    pub fn sum(&self, p: Block) -> Count {
        let units = self.units.range(p.addr..=self.last(p)).map(|(_, count)| count);
        units.fold(Count::default(), |a, b| Count { flows: a.flows + b.flows, bytes: a.bytes.saturating_add(b.bytes) })
    }

    /// Begins a new period of counting bytes.
    pub fn clear_bytes(&mut self) {
        self.units.values_mut().for_each(|count| count.bytes = 0);
    }

    /// What an address's unit counts.
    pub fn count(&self, addr: u128) -> Count {
        self.units.get(&self.unit_of(addr)).copied().unwrap_or_default()
    }

    /// The entry that covers an address: its packets go to the software path.
    pub fn entry(&self, addr: u128) -> Option<Block> {
        // Entries do not cover one another, so only the last one that begins at or before the address can.
        let most = Block { addr, len: u8::MAX };
        self.entries.range(..=most).next_back().copied().filter(|p| self.last(*p) >= addr)
    }

    /// The entries.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = Block> + '_ {
        self.entries.iter().copied()
    }

    /// Flows that are in the fast path.
    pub fn fast_flows(&self) -> u64 {
        self.units.iter().filter(|(addr, _)| self.entry(**addr).is_none()).map(|(_, count)| count.flows).sum()
    }

    /// Lets at least `flows` flows migrate, or all that there are, by units with the fewest bytes a flow.
    pub fn migrate(&mut self, flows: u64) -> Vec<Edit> {
        let mut edits = Vec::new();
        for unit in self.smallest(flows) {
            self.add(unit, &mut edits);
        }
        edits
    }

    /// The units that would: first the one with the fewest bytes a flow.
    pub fn smallest(&self, flows: u64) -> Vec<Block> {
        let mut left = flows;
        let more = |(unit, count): (Block, Count)| {
            let goes = left > 0;
            left = left.saturating_sub(count.flows);
            goes.then_some(unit)
        };
        self.by_size(false).into_iter().map_while(more).collect()
    }

    /// Units that have migrated, or have not, with what they count: those with the fewest bytes a flow first.
    pub fn by_size(&self, migrated: bool) -> Vec<(Block, Count)> {
        let mine = |addr: &u128| self.entry(*addr).is_some() == migrated;
        let mut list: Vec<(Block, Count)> =
            self.units.iter().filter(|(a, _)| mine(a)).map(|(a, c)| (self.prefix(*a, self.unit), *c)).collect();
        // Bytes ÷ flows, without dividing. No unit is without a flow.
        let times = |c: &Count, d: &Count| u128::from(c.bytes) * u128::from(d.flows);
        list.sort_by(|(a, c), (b, d)| times(c, d).cmp(&times(d, c)).then(a.cmp(b)));
        list
    }

    /// A unit migrates.
    pub fn migrate_unit(&mut self, unit: Block) -> Vec<Edit> {
        let mut edits = Vec::new();
        if self.entry(unit.addr).is_none() {
            self.add(unit, &mut edits);
        }
        edits
    }

    /// A unit comes back, whatever flows it has: the entry that covers it is split around it.
    pub fn give_back(&mut self, unit: Block) -> Vec<Edit> {
        self.entry(unit.addr).map_or_else(Vec::new, |entry| self.split(entry, unit))
    }

    /// The unit that an address lies in.
    pub fn unit(&self, addr: u128) -> Block {
        self.prefix(addr, self.unit)
    }

    /// Length of a unit.
    pub fn unit_len(&self) -> u8 {
        self.unit
    }

    /// Units that have flows.
    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// Whether there is neither a flow nor an entry.
    pub fn is_empty(&self) -> bool {
        self.units.is_empty() && self.entries.is_empty()
    }

    /// Makes the unit shorter, so that there are fewer of them. Entries that are longer grow to a whole unit: the units are returned
    /// in which flows migrate by that which had not.
    pub fn coarsen(&mut self, unit: u8) -> Vec<Block> {
        self.unit = unit.min(self.unit);
        for (addr, count) in std::mem::take(&mut self.units) {
            let sum = self.units.entry(self.unit_of(addr)).or_default();
            (sum.flows, sum.bytes) = (sum.flows + count.flows, sum.bytes.saturating_add(count.bytes));
        }
        let longer: Vec<Block> = self.entries.iter().copied().filter(|p| p.len > self.unit).collect();
        longer.iter().for_each(|p| {
            self.entries.remove(p);
        });
        let mut grown: Vec<Block> = longer.iter().map(|p| self.prefix(p.addr, self.unit)).collect();
        grown.dedup();
        grown.iter().for_each(|p| self.add(*p, &mut Vec::new()));
        grown
    }

    /// Enters a prefix, merged with its other half as long as that is an entry.
    fn add(&mut self, mut p: Block, edits: &mut Vec<Edit>) {
        while p.len > 0 && self.entries.remove(&self.sibling(p)) {
            edits.push(Edit::Remove(self.sibling(p)));
            p = self.prefix(p.addr, p.len - 1);
        }
        self.entries.insert(p);
        edits.push(Edit::Add(p));
    }

    /// A flow ends. If it had migrated and its unit is empty now, the largest part around it that has no flow comes back.
    pub fn end(&mut self, addr: u128) -> Vec<Edit> {
        let unit = self.unit_of(addr);
        let Some(count) = self.units.get_mut(&unit) else { return Vec::new() };
        count.flows = count.flows.saturating_sub(1);
        if count.flows > 0 {
            return Vec::new();
        }
        self.units.remove(&unit);
        let Some(entry) = self.entry(addr) else { return Vec::new() };
        let empty = |p: &Block| self.units.range(p.addr..=self.last(*p)).next().is_none();
        let Some(back) = (entry.len..=self.unit).map(|len| self.prefix(addr, len)).find(empty) else {
            return Vec::new();
        };
        self.split(entry, back)
    }

    /// An entry without a part of it.
    fn split(&mut self, entry: Block, back: Block) -> Vec<Edit> {
        self.entries.remove(&entry);
        let mut edits = vec![Edit::Remove(entry)];
        for len in entry.len + 1..=back.len {
            let sibling = self.sibling(self.prefix(back.addr, len));
            self.entries.insert(sibling);
            edits.push(Edit::Add(sibling));
        }
        edits
    }
}

/// The edits as a change of routes of crate `tables`, whose longest-prefix trees then serve as `Migrate_Tbl`: an address migrates if
/// a blackhole route covers it.
pub fn edits_as_routes(edits: &[Edit], width: u8) -> tables::RoutesChange {
    let net = |p: &Block| match width {
        32 => abi::Prefix::new_assert(std::net::Ipv4Addr::from_bits(p.addr as u32).into(), p.len),
        _ => abi::Prefix::new_assert(std::net::Ipv6Addr::from_bits(p.addr).into(), p.len),
    };
    // What is added and removed again in between is neither.
    let mut state: BTreeMap<Block, (bool, bool)> = BTreeMap::new();
    for edit in edits {
        let (p, is) = match edit {
            Edit::Add(p) => (p, true),
            Edit::Remove(p) => (p, false),
        };
        state.entry(*p).or_insert((!is, is)).1 = is;
    }
    let of = |before: bool, after: bool| state.iter().filter(move |(_, s)| **s == (before, after)).map(|(p, _)| net(p));
    tables::RoutesChange::Delta {
        remove: of(true, false).collect(),
        add: of(false, true).map(|prefix| tables::Route { prefix, target: tables::Target::Blackhole }).collect(),
    }
}
