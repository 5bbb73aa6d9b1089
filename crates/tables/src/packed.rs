// SPDX-License-Identifier: Apache-2.0
//! Trees of 64-bit keys packed into lines that the caller places: the nodes of route trees ([`crate::Tables::route6`]) in another memory
//! than table memory, written whole and never changed. `Migrate_Tbl` of crate `conntrack-compact` is made of them.

use crate::intervals::Interval;
use crate::tree::{Top, TreeKey};
use abi::LineNo;

/// Lines of trees, the first of which is to lie at `first`.
#[derive(Debug)]
pub struct Packed {
    first: LineNo,
    lines: Vec<[u64; 8]>,
}

impl Packed {
    /// Nothing yet.
    pub fn new(first: LineNo) -> Packed {
        Packed { first, lines: Vec::new() }
    }

    /// What is to be stored from the first line on.
    pub fn lines(&self) -> &[[u64; 8]] {
        &self.lines
    }

    /// Adds a tree: ranges of keys (first, last, value), ascending, disjoint; what none of them covers has value 0. Returns the value of
    /// scope SCOPE_DESCEND that leads to it, 0 if it has no range, None if it has more levels than such a value can say.
    pub fn tree(&mut self, ranges: &[(u64, u64, u32)]) -> Option<u32> {
        let intervals = intervals(ranges);
        if intervals.iter().all(|i| i.value == 0) {
            return Some(0);
        }
        // From the leaves up: (largest key, words) of each node of a level.
        let mut level: Vec<(u64, [u64; 8])> = intervals
            .chunks(<u64 as TreeKey>::LEAF)
            .map(|part| (part[part.len() - 1].upper, u64::leaf(part)))
            .collect();
        let mut levels = 1;
        while level.len() > 1 {
            let parent = |part: &[(u64, [u64; 8])]| {
                let child = self.put(part);
                let words = u64::inner(&mut part[..part.len() - 1].iter().map(|(upper, _)| *upper), child);
                (part[part.len() - 1].0, words)
            };
            level = level.chunks(<u64 as TreeKey>::FANOUT).map(parent).collect();
            levels += 1;
        }
        let top = Top { line: self.put(&level), levels };
        Top::of_value(top.descend()).filter(|back| *back == top).map(Top::descend)
    }

    fn put(&mut self, nodes: &[(u64, [u64; 8])]) -> LineNo {
        let at = self.first + self.lines.len() as u32;
        self.lines.extend(nodes.iter().map(|(_, words)| *words));
        at
    }
}

fn intervals(ranges: &[(u64, u64, u32)]) -> Vec<Interval<u64>> {
    let mut out: Vec<Interval<u64>> = Vec::with_capacity(ranges.len() * 2 + 1);
    let mut put = |upper, value| match out.last_mut() {
        Some(last) if last.value == value => last.upper = upper,
        _ => out.push(Interval { upper, value }),
    };
    let mut at = Some(0u64);
    for (first, last, value) in ranges {
        if at.is_some_and(|at| at < *first) {
            put(first - 1, 0);
        }
        put(*last, *value);
        at = last.checked_add(1);
    }
    if at.is_some() {
        put(u64::MAX, 0);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::lookup128;
    use crate::{HeapMemory, LineMemory};
    use memory::Lines;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    /// The trees in lines of table memory, read as route trees are.
    #[test]
    fn packed_trees_are_read_as_route_trees() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut random = |below: u64| rng.random_range(0..below);
        for n in [0usize, 1, 2, 5, 6, 7, 40, 41, 300, 3000] {
            let mut bounds: Vec<u64> = (0..2 * n).map(|_| random(1 << 20) << 44 | random(1 << 30)).collect();
            bounds.sort_unstable();
            bounds.dedup();
            if n == 7 {
                bounds[0] = 0;
            }
            let mut ranges: Vec<(u64, u64, u32)> =
                bounds.chunks_exact(2).map(|b| (b[0], b[1], 1 + random(9) as u32)).collect();
            if let (6, Some(last)) = (n, ranges.last_mut()) {
                last.1 = u64::MAX;
            }
            let mut packed = Packed::new(LineNo(1));
            let value = packed.tree(&ranges).unwrap();
            assert_eq!(value == 0, ranges.is_empty());
            let memory = HeapMemory::new().unwrap();
            memory.grow(1).unwrap();
            let lines = Lines::new(&memory);
            packed.lines().iter().enumerate().for_each(|(i, words)| lines.fill(LineNo(1 + i as u32), words));
            let root = Top::of_value(value).map_or(0, Top::root_bits);
            let of = |key: u64| ranges.iter().find(|(a, b, _)| (*a..=*b).contains(&key)).map_or(0, |r| r.2);
            for (a, b, _) in &ranges {
                for key in [*a, *b, a.wrapping_sub(1), b.wrapping_add(1), a.midpoint(*b)] {
                    assert_eq!(lookup128(&lines, root, (key, 0)), of(key), "{key:#x} of {n}");
                }
            }
            for _ in 0..200 {
                let key = random(1 << 20) << 44 | random(1 << 30);
                assert_eq!(lookup128(&lines, root, (key, 0)), of(key));
            }
        }
    }
}
