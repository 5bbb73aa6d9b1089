// SPDX-License-Identifier: Apache-2.0
//! Algorithmic LPM as the chip builds it: pivots in TCAM, partitions in SRAM.
//!
//! The prefixes are a trie over VNI and address, 152 bits. It is cut into subtrees of bounded size; the root of each is a
//! pivot, an entry of the TCAM that names a partition. A packet takes the longest pivot that covers it, then the longest
//! prefix in that partition. Since the prefix that covers a whole subtree lies above its pivot, each partition entry set
//! carries a copy of it, and takes a place for it. Up to `subtrees` pivots share a partition; its rows hold the pivot's
//! prefixes with all bits, so prefixes of another subtree of the partition never match.

use super::key::{Bits, KeyPrefix, BITS};
use std::collections::BTreeMap;

/// Shape of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Partitions.
    pub partitions: u32,
    /// Pivots that may share a partition.
    pub subtrees: u32,
    /// Prefixes of a partition, the spare place not counted.
    pub bucket: u32,
    /// Pivots must keep at least so many leading bits (24: one VPC each, where buckets do not compare the VNI).
    pub pivot_min: u32,
    /// Bits below the pivot that a partition compares; BITS: all.
    pub window: u32,
}

/// A subtree.
#[derive(Clone, Debug)]
struct Subtree {
    root: KeyPrefix,
    partition: u32,
    prefixes: BTreeMap<KeyPrefix, u32>,
    /// The prefixes in order, each with the one around it.
    rows: Vec<Row>,
    /// Of each its number in that order.
    keys: Vec<u64>,
    /// The longest prefix above the root.
    covering: Option<(u32, u32)>,
}

/// A prefix of a subtree. The chip compares a partition's rows all at once; here they lie in order, so that the longest
/// that covers an address is the last one not behind it, or one of those around that.
#[derive(Clone, Copy, Debug)]
struct Row {
    prefix: KeyPrefix,
    value: u32,
    /// The next shorter prefix around this one; NONE if there is none.
    around: u32,
}

const NONE: u32 = u32::MAX;

/// A piece of a subtree on its way to another partition.
struct Cut {
    root: KeyPrefix,
    /// Its prefixes, by their place in order.
    taken: Vec<usize>,
    covering: Option<(u32, u32)>,
    /// Places that it takes.
    size: u32,
    /// The partition.
    to: usize,
}

impl Subtree {
    fn new(
        root: KeyPrefix,
        partition: u32,
        prefixes: BTreeMap<KeyPrefix, u32>,
        covering: Option<(u32, u32)>,
    ) -> Subtree {
        let mut s = Subtree { root, partition, prefixes, rows: Vec::new(), keys: Vec::new(), covering };
        s.rank();
        s
    }

    /// Writes the rows anew.
    fn rank(&mut self) {
        self.rows.clear();
        self.keys.clear();
        for (prefix, value) in &self.prefixes {
            let mut around = (self.rows.len() as u32).wrapping_sub(1);
            while around != NONE && !self.rows[around as usize].prefix.covers(&prefix.bits) {
                around = self.rows[around as usize].around;
            }
            self.rows.push(Row { prefix: *prefix, value: *value, around });
            self.keys.push(prefix.bits.order(self.root.len));
        }
    }

    /// The longest prefix that covers an address below the root.
    fn longest(&self, b: &Bits) -> Option<(u32, u32)> {
        let key = b.order(self.root.len);
        // All of them: that is quicker than a search, whose every step would wait for memory.
        let not_behind: u32 = self.keys.iter().map(|k| u32::from(*k <= key)).sum();
        let mut at = not_behind.wrapping_sub(1);
        while self.rows.get(at as usize).is_some_and(|r| r.prefix.bits > *b) {
            at = at.wrapping_sub(1);
        }
        while let Some(r) = self.rows.get(at as usize) {
            if r.prefix.covers(b) {
                return Some((r.prefix.len, r.value));
            }
            at = r.around;
        }
        self.covering
    }

    fn size(&self) -> u32 {
        self.prefixes.len() as u32 + u32::from(self.covering.is_some())
    }
}

/// The table.
#[derive(Clone, Debug)]
pub struct Alpm {
    shape: Shape,
    subtrees: Vec<Subtree>,
    /// What the TCAM says, as borders: from this value on, the subtree.
    borders: Vec<(Bits, u32)>,
    /// Of each value of the VNI's upper 12 bits, the first border not below it.
    begin: Vec<u32>,
    /// Room left and pivots of each partition.
    partitions: Vec<(u32, u32)>,
    moved: u64,
}

/// No room.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no partition takes another subtree: {pivots} pivots and {prefixes} prefixes are in, {free} places are free but scattered")]
pub struct Full {
    /// Pivots.
    pub pivots: usize,
    /// Prefixes.
    pub prefixes: usize,
    /// Free places.
    pub free: u64,
}

struct Carver<'a> {
    sorted: &'a [(KeyPrefix, u32)],
    shape: Shape,
    limit: u32,
    roots: Vec<(KeyPrefix, Vec<usize>)>,
}

impl Carver<'_> {
    /// Cuts the prefixes `range`, all below `node`; returns those that stay with the node.
    fn cut(&mut self, range: std::ops::Range<usize>, node: KeyPrefix) -> Vec<usize> {
        if range.is_empty() {
            return Vec::new();
        }
        // A run under one long common prefix needs no walk down bit by bit.
        let (first, last) = (self.sorted[range.start].0, self.sorted[range.end - 1].0);
        let shallowest = self.sorted[range.clone()].iter().map(|p| p.0.len).min().unwrap_or(BITS);
        let mut len = node.len;
        while len < shallowest && len < BITS && first.bits.bit(len) == last.bits.bit(len) {
            len += 1;
        }
        let node = KeyPrefix { bits: first.bits.first(len), len };
        let fits_window = |n: &KeyPrefix, s: &Self, all: &[usize]| {
            s.shape.window >= BITS || all.iter().all(|i| s.sorted[*i].0.len <= n.len + s.shape.window)
        };
        let all: Vec<usize> = range.clone().collect();
        // A subtree takes one place more for the prefix that covers it.
        if (all.len() as u32) < self.limit / 2 && fits_window(&node, self, &all) && len >= self.shape.pivot_min {
            return all;
        }
        if len >= BITS {
            return all;
        }
        let own = self.sorted[range.clone()].iter().take_while(|p| p.0.len == len && p.0.bits == node.bits).count();
        let rest = range.start + own..range.end;
        let middle = rest.start + self.sorted[rest.clone()].partition_point(|p| !p.0.bits.bit(len));
        let child = |bit: bool| {
            let mut bits = node.bits;
            if bit {
                if len < 24 {
                    bits.vni |= 1 << (23 - len)
                } else {
                    bits.addr |= 1 << (BITS - 1 - len)
                }
            }
            KeyPrefix { bits, len: len + 1 }
        };
        let mut left = self.cut(rest.start..middle, child(false));
        let mut right = self.cut(middle..rest.end, child(true));
        let mut mine: Vec<usize> = (range.start..rest.start).collect();
        let size = |v: &[usize]| v.len() as u32 + 1;
        // Kept below the limit by giving the larger child a pivot of its own.
        for _ in 0..2 {
            let total = size(&mine) + left.len() as u32 + right.len() as u32;
            let inside: Vec<usize> = left.iter().chain(&right).copied().collect();
            let apart = len < self.shape.pivot_min && !inside.is_empty();
            if total <= self.limit && fits_window(&node, self, &inside) && !apart {
                break;
            }
            let (side, other) =
                if left.len() >= right.len() { (&mut left, child(false)) } else { (&mut right, child(true)) };
            let taken = std::mem::take(side);
            if !taken.is_empty() {
                self.root(other, taken);
            }
        }
        mine.extend(left);
        mine.extend(right);
        mine
    }

    /// Makes a pivot of the deepest node above these prefixes.
    fn root(&mut self, node: KeyPrefix, mut taken: Vec<usize>) {
        taken.sort_unstable();
        let first = self.sorted[taken[0]].0;
        let shallowest = taken.iter().map(|i| self.sorted[*i].0.len).min().unwrap_or(node.len);
        let mut len = node.len;
        let last = self.sorted[taken[taken.len() - 1]].0;
        while len < shallowest && first.bits.bit(len) == last.bits.bit(len) {
            len += 1;
        }
        self.roots.push((KeyPrefix { bits: first.bits.first(len), len }, taken));
    }
}

impl Alpm {
    /// Builds the table; `prefixes` need no order, the last of equal ones counts.
    pub fn build(shape: Shape, prefixes: &[(KeyPrefix, u32)]) -> Result<Alpm, Full> {
        let mut sorted = prefixes.to_vec();
        sorted.sort_by_key(|p| p.0);
        sorted.dedup_by(|later, first| {
            let same = later.0 == first.0;
            if same {
                first.1 = later.1;
            }
            same
        });
        // The larger the subtrees the fewer pivots and copies of covering prefixes, which leaves most for updates; the
        // smaller the better they fill the partitions. So: the largest that can be packed.
        let pivots_max = shape.partitions * shape.subtrees;
        let least = (shape.bucket / shape.subtrees.max(1) / 2).max(3);
        let mut best = Err(Full { pivots: 0, prefixes: sorted.len(), free: 0 });
        let mut limit = (shape.bucket * 3 / 4).max(least);
        while limit >= least {
            let mut carver = Carver { sorted: &sorted, shape, limit, roots: Vec::new() };
            let left = carver.cut(0..sorted.len(), KeyPrefix { bits: Bits { vni: 0, addr: 0 }, len: 0 });
            if !left.is_empty() {
                carver.root(KeyPrefix { bits: Bits { vni: 0, addr: 0 }, len: 0 }, left);
            }
            if carver.roots.len() as u32 > pivots_max {
                break;
            }
            best = Alpm::pack(shape, &sorted, carver.roots);
            if best.is_ok() {
                break;
            }
            limit = (limit * 5 / 6).min(limit - 1);
        }
        best
    }

    fn pack(shape: Shape, sorted: &[(KeyPrefix, u32)], roots: Vec<(KeyPrefix, Vec<usize>)>) -> Result<Alpm, Full> {
        let mut subtrees: Vec<Subtree> = roots
            .into_iter()
            .map(|(root, taken)| {
                let prefixes = taken.iter().map(|i| sorted[*i]).collect();
                Subtree::new(root, u32::MAX, prefixes, covering(sorted, &root))
            })
            .collect();
        // Largest first, into the partition with least room that still takes it and keeps room for its other pivots.
        let mut order: Vec<usize> = (0..subtrees.len()).collect();
        order.sort_by_key(|i| std::cmp::Reverse(subtrees[*i].size()));
        let mut partitions = vec![(shape.bucket, 0u32); shape.partitions as usize];
        let mut room: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        room.insert(shape.bucket, (0..shape.partitions).rev().collect());
        let used = order.len() as u32;
        let spread = used.div_ceil(shape.partitions.max(1)).min(shape.subtrees);
        for (n, i) in order.into_iter().enumerate() {
            let size = subtrees[i].size();
            // While partitions are empty each gets a large one first; then best fit.
            let first_round = n < shape.partitions as usize && spread > 1;
            let fit = if first_round { Some(shape.bucket) } else { room.range(size..).next().map(|(k, _)| *k) };
            let Some((k, p)) = fit.and_then(|k| Some((k, room.get_mut(&k)?.pop()?))) else {
                let free = partitions.iter().map(|p| u64::from(p.0)).sum();
                return Err(Full { pivots: n, prefixes: sorted.len(), free });
            };
            if room.get(&k).is_some_and(Vec::is_empty) {
                room.remove(&k);
            }
            subtrees[i].partition = p;
            let part = &mut partitions[p as usize];
            part.0 -= size;
            part.1 += 1;
            if part.1 < shape.subtrees {
                room.entry(part.0).or_default().push(p);
            }
        }
        let mut table = Alpm { shape, subtrees, borders: Vec::new(), begin: Vec::new(), partitions, moved: 0 };
        table.flatten();
        Ok(table)
    }

    /// What the TCAM answers, as borders between subtrees: pivots are nested or apart.
    fn flatten(&mut self) {
        let mut order: Vec<usize> = (0..self.subtrees.len()).collect();
        order.sort_by_key(|i| self.subtrees[*i].root);
        let mut out: Vec<(Bits, u32)> = Vec::with_capacity(2 * order.len() + 1);
        let mut open: Vec<(Bits, u32)> = Vec::new();
        let push = |out: &mut Vec<(Bits, u32)>, at: Bits, id: u32| match out.last_mut() {
            Some(last) if last.0 == at => last.1 = id,
            _ => out.push((at, id)),
        };
        let close = |out: &mut Vec<(Bits, u32)>, open: &mut Vec<(Bits, u32)>, before: Option<Bits>| {
            while let Some(&(last, _)) = open.last().filter(|(last, _)| before.is_none_or(|b| *last < b)) {
                open.pop();
                if let Some(at) = last.next() {
                    push(out, at, open.last().map_or(u32::MAX, |o| o.1));
                }
            }
        };
        for i in order {
            let root = self.subtrees[i].root;
            close(&mut out, &mut open, Some(root.bits));
            push(&mut out, root.bits, i as u32);
            open.push((root.bits.last(root.len), i as u32));
        }
        close(&mut out, &mut open, None);
        self.begin = (0..=1 << 12).map(|top| out.partition_point(|(at, _)| at.vni >> 12 < top) as u32).collect();
        self.borders = out;
    }

    /// The subtree that the TCAM says.
    fn subtree(&self, b: &Bits) -> Option<usize> {
        let top = (b.vni >> 12) as usize;
        let (from, to) = (self.begin[top] as usize, self.begin[top + 1] as usize);
        let i = (from + self.borders[from..to].partition_point(|(at, _)| at <= b)).checked_sub(1)?;
        let id = self.borders[i].1 as usize;
        (id < self.subtrees.len()).then_some(id)
    }

    /// The longest prefix: its length and value.
    pub fn lookup(&self, b: &Bits) -> Option<(u32, u32)> {
        self.subtrees[self.subtree(b)?].longest(b)
    }

    /// Pivots.
    pub fn pivots(&self) -> usize {
        self.subtrees.len()
    }

    /// Prefixes, copies not counted.
    pub fn len(&self) -> usize {
        self.subtrees.iter().map(|s| s.prefixes.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Share of the places that prefixes and copies take.
    pub fn fill(&self) -> f64 {
        let used: u64 = self.subtrees.iter().map(|s| u64::from(s.size())).sum();
        used as f64 / (f64::from(self.shape.partitions) * f64::from(self.shape.bucket))
    }

    /// Share of the free places that lie in partitions which can take no further subtree.
    pub fn fragmentation(&self) -> f64 {
        let all: u64 = self.partitions.iter().map(|p| u64::from(p.0)).sum();
        let shut = self.partitions.iter().filter(|p| p.1 >= self.shape.subtrees).map(|p| u64::from(p.0)).sum::<u64>();
        shut as f64 / all.max(1) as f64
    }

    /// Prefixes that were moved between partitions by updates.
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// Prefixes in a partition and pivots of it, counted afresh, are within limits; says which is not.
    pub fn audit(&self) -> Result<(), String> {
        let mut count = vec![(0u32, 0u32); self.shape.partitions as usize];
        for s in &self.subtrees {
            let c = count.get_mut(s.partition as usize).ok_or(format!("subtree {:?} has no partition", s.root))?;
            c.0 += s.size();
            c.1 += 1;
            if let Some(p) =
                s.prefixes.keys().find(|p| !s.root.covers(&p.bits) || p.len > s.root.len + self.shape.window)
            {
                return Err(format!("{p:?} is outside of its subtree {:?}", s.root));
            }
        }
        match count.iter().enumerate().find(|(_, c)| c.0 > self.shape.bucket || c.1 > self.shape.subtrees) {
            Some((i, c)) => Err(format!("partition {i} holds {} prefixes and {} pivots", c.0, c.1)),
            None => Ok(()),
        }
    }

    /// Inserts a prefix or changes its value. A partition that is full is relieved by cutting the subtree in two.
    pub fn insert(&mut self, p: KeyPrefix, value: u32) -> Result<(), Full> {
        if self.covering(&p).is_none() {
            self.plant(&p)?;
        }
        let Some(mut id) = self.covering(&p) else { return Err(self.full()) };
        if let Some(v) = self.subtrees[id].prefixes.get_mut(&p) {
            *v = value;
            self.subtrees[id].rank();
            self.recover_below(&p, Some((p.len, value)));
            return Ok(());
        }
        let mut tries = 0;
        while self.partitions[self.subtrees[id].partition as usize].0 == 0
            || p.len > self.subtrees[id].root.len + self.shape.window
        {
            tries += 1;
            let full = self.partitions[self.subtrees[id].partition as usize].0 == 0;
            if tries > BITS || !(self.relieve(id) || full && self.relocate(id)) {
                return Err(self.full());
            }
            id = self.covering(&p).unwrap_or(id);
        }
        self.room_for_copies(&p)?;
        let Some(id) = self.covering(&p).filter(|id| self.partitions[self.subtrees[*id].partition as usize].0 > 0)
        else {
            return Err(self.full());
        };
        self.subtrees[id].prefixes.insert(p, value);
        self.subtrees[id].rank();
        let partition = self.subtrees[id].partition as usize;
        self.partitions[partition].0 -= 1;
        self.recover_below(&p, Some((p.len, value)));
        Ok(())
    }

    /// Removes a prefix; its value if it was there.
    pub fn remove(&mut self, p: &KeyPrefix) -> Option<u32> {
        let id = self.covering(p)?;
        let value = self.subtrees[id].prefixes.remove(p)?;
        self.subtrees[id].rank();
        let partition = self.subtrees[id].partition as usize;
        self.partitions[partition].0 += 1;
        let above = self.above(p);
        self.recover_below(p, above);
        if self.subtrees[id].prefixes.is_empty() {
            self.fell(id);
        }
        Some(value)
    }

    fn full(&self) -> Full {
        let free = self.partitions.iter().map(|p| u64::from(p.0)).sum();
        Full { pivots: self.subtrees.len(), prefixes: self.len(), free }
    }

    /// The subtree that must hold a prefix: that of the longest pivot that covers all of it.
    fn covering(&self, p: &KeyPrefix) -> Option<usize> {
        let mut id = self.subtree(&p.bits)?;
        while self.subtrees[id].root.len > p.len {
            id = self.parent(id)?;
        }
        Some(id)
    }

    fn parent(&self, id: usize) -> Option<usize> {
        let root = self.subtrees[id].root;
        let outer = self.subtrees.iter().enumerate();
        outer
            .filter(|(i, s)| *i != id && s.root.len < root.len && s.root.covers(&root.bits))
            .max_by_key(|(_, s)| s.root.len)
            .map(|(i, _)| i)
    }

    /// The longest prefix strictly above `p`.
    fn above(&self, p: &KeyPrefix) -> Option<(u32, u32)> {
        let mut best = None;
        let mut at = self.covering(p);
        while let Some(id) = at {
            let s = &self.subtrees[id];
            let shorter =
                s.prefixes.iter().filter(|(q, _)| q.len < p.len && q.covers(&p.bits)).map(|(q, v)| (q.len, *v));
            best = best.max(shorter.max()).max(s.covering.filter(|c| c.0 < p.len));
            if best.is_some() {
                break;
            }
            at = self.parent(id);
        }
        best
    }

    /// Pivots below `p` whose covering prefix is `p` or something shorter: they get the new one.
    fn recover_below(&mut self, p: &KeyPrefix, new: Option<(u32, u32)>) {
        for s in &mut self.subtrees {
            let below = s.root.len > p.len && p.covers(&s.root.bits);
            if !below || s.covering.is_some_and(|c| c.0 > p.len) {
                continue;
            }
            let part = &mut self.partitions[s.partition as usize].0;
            // `room_for_copies` made room.
            match (s.covering, new) {
                (None, Some(_)) => *part -= 1,
                (Some(_), None) => *part += 1,
                _ => {}
            }
            s.covering = new;
        }
    }

    /// Every pivot below `p` that had no covering prefix gets a copy of it: its partition needs a place, and `p`'s own too.
    fn room_for_copies(&mut self, p: &KeyPrefix) -> Result<(), Full> {
        for _ in 0..BITS {
            let mut need: BTreeMap<u32, u32> = BTreeMap::new();
            let own = self.covering(p).map(|id| self.subtrees[id].partition);
            own.into_iter().for_each(|o| *need.entry(o).or_default() += 1);
            let mut short = None;
            for (i, s) in self.subtrees.iter().enumerate() {
                if s.root.len > p.len && s.covering.is_none() && p.covers(&s.root.bits) {
                    let n = need.entry(s.partition).or_default();
                    *n += 1;
                    if *n > self.partitions[s.partition as usize].0 {
                        short = Some(i);
                    }
                }
            }
            let Some(i) = short else { return Ok(()) };
            if !(self.relieve(i) || self.relocate(i)) {
                return Err(self.full());
            }
        }
        Err(self.full())
    }

    /// A first, empty subtree for a place that no pivot covers.
    fn plant(&mut self, p: &KeyPrefix) -> Result<(), Full> {
        let len = p.len.min(self.shape.pivot_min.max(24));
        let root = KeyPrefix { bits: p.bits.first(len), len };
        let partition = self.roomiest(1).ok_or_else(|| self.full())?;
        self.partitions[partition].1 += 1;
        self.subtrees.push(Subtree::new(root, partition as u32, BTreeMap::new(), None));
        self.flatten();
        Ok(())
    }

    fn roomiest(&self, need: u32) -> Option<usize> {
        let open = self.partitions.iter().enumerate().filter(|(_, p)| p.1 < self.shape.subtrees && p.0 >= need);
        open.max_by_key(|(_, p)| p.0).map(|(i, _)| i)
    }

    /// The piece of a subtree to cut off, of at most `limit` prefixes, that is nearest to half of it and that a partition has
    /// room for.
    fn cut(&self, id: usize, sorted: &[(KeyPrefix, u32)], limit: u32) -> Option<Cut> {
        let shape = Shape { window: self.shape.window, ..self.shape };
        let mine = self.subtrees[id].root;
        let mut carver = Carver { sorted, shape, limit, roots: Vec::new() };
        carver.cut(0..sorted.len(), mine);
        // Everything of this subtree below the new root goes with it, also what the carver cut off deeper down.
        let half = sorted.len() / 2;
        let below = |root: &KeyPrefix| -> Vec<usize> {
            (0..sorted.len()).filter(|i| sorted[*i].0.len >= root.len && root.covers(&sorted[*i].0.bits)).collect()
        };
        let mut roots: Vec<(KeyPrefix, Vec<usize>)> =
            carver.roots.iter().map(|(root, _)| (*root, below(root))).collect();
        roots.retain(|(root, taken)| *root != mine && !taken.is_empty());
        roots.sort_by_key(|(_, taken)| taken.len().abs_diff(half));
        let old = self.subtrees[id].covering;
        roots.into_iter().find_map(|(root, taken)| {
            let covering = covering(sorted, &root).or(old);
            let size = taken.len() as u32 + u32::from(covering.is_some());
            Some(Cut { root, taken, covering, size, to: self.roomiest(size)? })
        })
    }

    /// Cuts about half of a subtree off into another partition, or less if none has room for as much. False if there is none
    /// with room.
    fn relieve(&mut self, id: usize) -> bool {
        let sorted: Vec<(KeyPrefix, u32)> = self.subtrees[id].prefixes.iter().map(|(p, v)| (*p, *v)).collect();
        let size = self.subtrees[id].size();
        let limits = (1..).map(|halvings| size >> halvings).take_while(|limit| *limit > 2).chain([2]);
        let Some(Cut { root, taken, covering, size, to }) = limits.into_iter().find_map(|l| self.cut(id, &sorted, l))
        else {
            return false;
        };
        // New places are filled first, then the pivot is set, then the old places are freed: packets never miss.
        let prefixes: BTreeMap<KeyPrefix, u32> = taken.iter().map(|i| sorted[*i]).collect();
        let from = self.subtrees[id].partition as usize;
        for p in prefixes.keys() {
            self.subtrees[id].prefixes.remove(p);
        }
        self.subtrees[id].rank();
        self.partitions[from].0 += prefixes.len() as u32;
        self.partitions[to].0 -= size;
        self.partitions[to].1 += 1;
        self.moved += prefixes.len() as u64;
        self.subtrees.push(Subtree::new(root, to as u32, prefixes, covering));
        self.flatten();
        true
    }

    /// Moves a subtree that cannot be cut to another partition. False if none has room for it and what it is to take.
    fn relocate(&mut self, id: usize) -> bool {
        let (size, from) = (self.subtrees[id].size(), self.subtrees[id].partition as usize);
        let Some(to) = self.roomiest(size + 1).filter(|to| *to != from) else { return false };
        // As with a cut: new places, the pivot, and then the old places.
        self.partitions[to].0 -= size;
        self.partitions[to].1 += 1;
        self.partitions[from].0 += size;
        self.partitions[from].1 -= 1;
        self.moved += self.subtrees[id].prefixes.len() as u64;
        self.subtrees[id].partition = to as u32;
        true
    }

    /// An empty subtree's pivot goes.
    fn fell(&mut self, id: usize) {
        let gone = self.subtrees.swap_remove(id);
        let p = &mut self.partitions[gone.partition as usize];
        p.0 += gone.size();
        p.1 -= 1;
        self.flatten();
    }
}

/// The longest prefix strictly above a root.
fn covering(sorted: &[(KeyPrefix, u32)], root: &KeyPrefix) -> Option<(u32, u32)> {
    (0..root.len).rev().find_map(|len| {
        let p = KeyPrefix { bits: root.bits.first(len), len };
        let i = sorted.binary_search_by_key(&p, |e| e.0).ok()?;
        Some((len, sorted[i].1))
    })
}
