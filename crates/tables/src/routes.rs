// SPDX-License-Identifier: Apache-2.0
//! The routes of one VPC as the writer knows them, and how they become trees.
//!
//! A tree holds intervals, from which the prefixes cannot be told; so the writer keeps the prefixes in ordered maps. A
//! small change of a large set recomputes only the ranges of the changed prefixes (`edits`), anything else the whole set.

use crate::intervals::{span4, span6_lower, span6_upper, Buffer, Interval, Sweep};
use crate::smallmap::SmallMap;
use crate::tree::{lines_needed, Edit, Forest, Top};
use std::io;

/// Sets up to this many routes are always built anew: it is about as fast as copying paths.
pub(crate) const SMALL: usize = 48;

/// IPv4 routes: (address, length) → ROUTE_VALUE.
pub(crate) type Routes4 = SmallMap<(u32, u8), u32>;
/// IPv6 routes.
pub(crate) type Routes6 = SmallMap<(u128, u8), u32>;

/// A tree and what a rebuild found out about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Built {
    pub top: Top,
    /// No route of another scope lies inside a local one; only known after a build of the whole set.
    pub simple: bool,
}

/// The intervals of sorted IPv4 routes between two addresses.
pub(crate) fn intervals4(
    routes: impl Iterator<Item = ((u32, u8), u32)>,
    range: (u32, u32),
    default: u32,
    out: &mut Buffer<u32>,
) -> bool {
    let mut sweep = Sweep::new(out, range.0, default);
    for ((addr, len), value) in routes {
        let (first, last) = span4(addr, len);
        sweep.add(first, last, value);
    }
    !sweep.finish(range.1)
}

/// The intervals of sorted IPv6 routes between two upper halves; trees over lower halves are built on the way.
pub(crate) fn intervals6(
    forest: &mut Forest<'_>,
    routes: impl Iterator<Item = ((u128, u8), u32)>,
    range: (u64, u64),
    default: u32,
    out: &mut Buffer<u64>,
) -> io::Result<bool> {
    let mut sweep = Sweep::new(out, range.0, default);
    let mut mixed = false;
    let mut routes = routes.peekable();
    let mut lower = Buffer::default();
    while let Some(((addr, len), value)) = routes.next() {
        if len <= 64 {
            let (first, last) = span6_upper(addr, len);
            sweep.add(first, last, value);
            continue;
        }
        let upper = (addr >> 64) as u64;
        let mut below = Sweep::new(&mut lower, 0u64, sweep.cover(upper));
        let mut next = Some(((addr, len), value));
        while let Some(((addr, len), value)) = next {
            let (first, last) = span6_lower(addr, len);
            below.add(first, last, value);
            next = routes.next_if(|((a, _), _)| (*a >> 64) as u64 == upper);
        }
        mixed |= below.finish(u64::MAX);
        if let [Interval { value, .. }] = lower.out[..] {
            sweep.point(upper, value);
        } else {
            let top = forest.build(&lower.out)?;
            sweep.point(upper, top.descend());
        }
    }
    Ok(!(sweep.finish(range.1) | mixed))
}

/// Builds the IPv4 tree of a whole set.
pub(crate) fn build4(forest: &mut Forest<'_>, routes: &Routes4, scratch: &mut Buffer<u32>) -> io::Result<Built> {
    let simple = intervals4(routes.iter().map(|(k, v)| (*k, *v)), (0, u32::MAX), 0, scratch);
    Ok(Built { top: forest.build(&scratch.out)?, simple })
}

/// Builds the IPv6 tree of a whole set.
pub(crate) fn build6(forest: &mut Forest<'_>, routes: &Routes6, scratch: &mut Buffer<u64>) -> io::Result<Built> {
    let simple = intervals6(forest, routes.iter().map(|(k, v)| (*k, *v)), (0, u64::MAX), 0, scratch)?;
    Ok(Built { top: forest.build(&scratch.out)?, simple })
}

/// Lengths below `len` of the prefixes in use, longest first.
pub(crate) fn shorter(lengths: [u64; 3], len: u8) -> impl Iterator<Item = u8> {
    (0..len).rev().filter(move |l| lengths[usize::from(*l) / 64] >> (l % 64) & 1 != 0)
}

/// Notes that a prefix length is in use.
pub(crate) fn note_length(lengths: &mut [u64; 3], len: u8) {
    lengths[usize::from(len) / 64] |= 1 << (len % 64);
}

/// Applies changed IPv4 prefixes (sorted) to a tree, by path copying if that is less work than a new tree.
/// `simple` of the answer is meaningful only if `whole` is.
pub(crate) fn change4(
    forest: &mut Forest<'_>,
    top: Top,
    routes: &Routes4,
    lengths: [u64; 3],
    changed: &[(u32, u8)],
) -> io::Result<Option<Top>> {
    let budget = routes.len() / 8;
    if routes.len() <= SMALL || matches!(top.levels, 0 | abi::ROOT_FLAT) || changed.len() > budget {
        return Ok(None);
    }
    let mut edits: Vec<Edit<u32>> = Vec::new();
    let mut work = 0;
    for &(addr, len) in changed {
        let (first, last) = span4(addr, len);
        if edits.last().is_some_and(|e| e.last >= last) {
            continue;
        }
        let mask = |l: u8| {
            if l == 0 {
                0
            } else {
                addr & u32::MAX << (32 - l)
            }
        };
        let cover = shorter(lengths, len).find_map(|l| routes.get(&(mask(l), l))).copied().unwrap_or(0);
        let inside = || routes.range((addr, len)..=(last, 32));
        work += inside().take(budget + 1).count();
        if work > budget {
            return Ok(None);
        }
        let mut intervals = Buffer::default();
        intervals4(inside().map(|(k, v)| (*k, *v)), (first, last), cover, &mut intervals);
        edits.push(Edit { first, last, intervals: intervals.out });
    }
    if edits.is_empty() {
        return Ok(Some(top));
    }
    forest.edit(top, &edits).map(Some)
}

/// As `change4` for IPv6.
pub(crate) fn change6(
    forest: &mut Forest<'_>,
    top: Top,
    routes: &Routes6,
    lengths: [u64; 3],
    changed: &[(u128, u8)],
) -> io::Result<Option<Top>> {
    let budget = routes.len() / 8;
    if routes.len() <= SMALL || top.levels == 0 || changed.len() > budget {
        return Ok(None);
    }
    // Ranges first: a refusal must come before any tree over lower halves is built.
    let mut ranges: Vec<((u64, u64), u8)> = Vec::new();
    let mut work = 0;
    for &(addr, len) in changed {
        let (first, last) = if len <= 64 { span6_upper(addr, len) } else { span6_upper(addr >> 64 << 64, 64) };
        if ranges.last().is_some_and(|((_, l), _)| *l >= last) {
            continue;
        }
        work += inside6(routes, first, last, len).take(budget + 1).count();
        if work > budget {
            return Ok(None);
        }
        ranges.push(((first, last), len));
    }
    let mut edits: Vec<Edit<u64>> = Vec::new();
    for ((first, last), len) in ranges {
        let addr = u128::from(first) << 64;
        let mask = |l: u8| {
            if l == 0 {
                0
            } else {
                addr & u128::MAX << (128 - u32::from(l))
            }
        };
        let cover = shorter(lengths, len.min(65)).find_map(|l| routes.get(&(mask(l), l))).copied().unwrap_or(0);
        let mut intervals = Buffer::default();
        intervals6(forest, inside6(routes, first, last, len), (first, last), cover, &mut intervals)?;
        edits.push(Edit { first, last, intervals: intervals.out });
    }
    if edits.is_empty() {
        return Ok(Some(top));
    }
    forest.edit(top, &edits).map(Some)
}

/// The routes inside a range of upper halves that begins with a prefix of length `len` (all above 64 bits if it is one).
fn inside6(routes: &Routes6, first: u64, last: u64, len: u8) -> impl Iterator<Item = ((u128, u8), u32)> + '_ {
    let from = (u128::from(first) << 64, len.min(65));
    routes.range(from..=(u128::from(last) << 64 | u128::from(u64::MAX), 128)).map(|(k, v)| (*k, *v))
}

/// Lines of a packed tree of so many routes, generously: more than twice as many are too sparse.
pub(crate) fn dense4(routes: usize) -> usize {
    lines_needed::<u32>(2 * routes + 1)
}

/// As `dense4`; a route of more than 64 bits may have a tree of its own.
pub(crate) fn dense6(routes: usize) -> usize {
    lines_needed::<u64>(2 * routes + 1) + routes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Arena, Block};
    use crate::route::{lookup128, lookup32};
    use crate::testing::seeded;
    use crate::{HeapMemory, Memory};
    use memory::Lines;
    use rand::RngExt;
    use rand_chacha::ChaCha8Rng;
    use std::sync::Arc;

    struct Setup {
        arena: Arena,
        lines: Lines,
        retired: Vec<Block>,
    }

    impl Setup {
        fn new() -> Setup {
            let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
            Setup { lines: Lines::new(&*memory), arena: Arena::new(memory, 1024), retired: Vec::new() }
        }
        fn forest(&mut self) -> Forest<'_> {
            Forest { arena: &mut self.arena, lines: self.lines, retired: &mut self.retired }
        }
        /// Frees what is retired; exactly the tree must be left.
        fn settle<K: crate::tree::TreeKey>(&mut self, top: Top) {
            self.retired.drain(..).for_each(|b| self.arena.free(b));
            let mut lines = 0;
            crate::tree::walk_all::<K>(&self.lines, top, &mut |b| {
                lines += b.lines;
                true
            });
            assert_eq!(lines, self.arena.used(), "lines leaked or freed twice");
        }
    }

    fn random4(rng: &mut ChaCha8Rng, spread: u32) -> (u32, u8) {
        let len = if rng.random_range(0..40) == 0 { rng.random_range(0..12) } else { rng.random_range(12..=32) };
        let addr = rng.random::<u32>() % spread << rng.random_range(0..24) ^ 0x0a00_0000;
        (if len == 0 { 0 } else { addr >> (32 - len) << (32 - len) }, len)
    }

    fn naive4(routes: &Routes4, addr: u32) -> u32 {
        (0..=32u8)
            .rev()
            .find_map(|l| routes.get(&(if l == 0 { 0 } else { addr >> (32 - l) << (32 - l) }, l)))
            .copied()
            .unwrap_or(0)
    }

    fn naive6(routes: &Routes6, addr: u128) -> u32 {
        (0..=128u32)
            .rev()
            .find_map(|l| routes.get(&(if l == 0 { 0 } else { addr >> (128 - l) << (128 - l) }, l as u8)))
            .copied()
            .unwrap_or(0)
    }

    #[test]
    fn changed_ipv4_trees_equal_the_oracle() {
        let (_seed, mut rng) = seeded("tree4");
        for size in [0usize, 30, 500, 5_000] {
            let mut setup = Setup::new();
            let mut routes = Routes4::default();
            let mut lengths = [0; 3];
            for _ in 0..size {
                routes.insert(random4(&mut rng, 1 << 14), rng.random_range(1..6u32) << 28 | rng.random_range(0..9));
            }
            routes.keys().for_each(|k| note_length(&mut lengths, k.1));
            let mut top = build4(&mut setup.forest(), &routes, &mut Buffer::default()).unwrap().top;
            let (mut edited, mut rebuilt) = (0, 0);
            for _ in 0..400 {
                let mut changed = Vec::new();
                for _ in 0..rng.random_range(1..5) {
                    let key = match routes.range(random4(&mut rng, 1 << 14)..=(u32::MAX, 32)).next() {
                        Some((key, _)) if rng.random_bool(0.5) => *key,
                        _ => random4(&mut rng, 1 << 14),
                    };
                    if rng.random_bool(0.5) {
                        routes.remove(&key);
                    } else {
                        routes.insert(key, rng.random_range(1..6u32) << 28);
                        note_length(&mut lengths, key.1);
                    }
                    changed.push(key);
                }
                changed.sort_unstable();
                changed.dedup();
                let new = change4(&mut setup.forest(), top, &routes, lengths, &changed).unwrap();
                top = match new {
                    Some(new) => {
                        edited += 1;
                        new
                    }
                    None => {
                        rebuilt += 1;
                        setup.forest().retire_tree::<u32>(top);
                        build4(&mut setup.forest(), &routes, &mut Buffer::default()).unwrap().top
                    }
                };
                setup.settle::<u32>(top);
                assert!(top.levels <= abi::TREE_LEVELS_MAX || top.levels == abi::ROOT_FLAT);
                for (addr, len) in changed {
                    let (first, last) = span4(addr, len);
                    for a in [first, last, first.wrapping_sub(1), last.wrapping_add(1), rng.random()] {
                        assert_eq!(lookup32(&setup.lines, top.root_bits(), a), naive4(&routes, a), "{a:#x}");
                    }
                }
            }
            for key in routes.keys() {
                let (first, last) = span4(key.0, key.1);
                for a in [first, last, last.wrapping_add(1)] {
                    assert_eq!(lookup32(&setup.lines, top.root_bits(), a), naive4(&routes, a));
                }
            }
            // Small sets grow at random, so how often they were built anew is chance; that they were is not.
            assert!(if size >= 500 { edited > 100 } else { rebuilt > 0 }, "{size}: {edited} {rebuilt}");
        }
    }

    fn random6(rng: &mut ChaCha8Rng) -> (u128, u8) {
        let len = match rng.random_range(0..10) {
            0 => rng.random_range(0..32u32),
            1..=5 => rng.random_range(32..=64),
            _ => rng.random_range(65..=128),
        };
        let upper = 0x2001_0db8_0000_0000u64 | u64::from(rng.random::<u32>() % 64) << rng.random_range(0..26);
        let lower = u64::from(rng.random::<u32>() % 16) << rng.random_range(0..60);
        let addr = u128::from(upper) << 64 | u128::from(lower);
        (if len == 0 { 0 } else { addr >> (128 - len) << (128 - len) }, len as u8)
    }

    #[test]
    fn changed_ipv6_trees_equal_the_oracle() {
        let (_seed, mut rng) = seeded("tree6");
        for size in [0usize, 40, 600, 4_000] {
            let mut setup = Setup::new();
            let mut routes = Routes6::default();
            let mut lengths = [0; 3];
            for _ in 0..size {
                routes.insert(random6(&mut rng), rng.random_range(1..6u32) << 28);
            }
            routes.keys().for_each(|k| note_length(&mut lengths, k.1));
            let mut top = build6(&mut setup.forest(), &routes, &mut Buffer::default()).unwrap().top;
            let mut edited = 0;
            for _ in 0..300 {
                let mut changed = Vec::new();
                for _ in 0..rng.random_range(1..4) {
                    let key = match routes.range(random6(&mut rng)..=(u128::MAX, 128)).next() {
                        Some((key, _)) if rng.random_bool(0.5) => *key,
                        _ => random6(&mut rng),
                    };
                    if rng.random_bool(0.5) {
                        routes.remove(&key);
                    } else {
                        routes.insert(key, rng.random_range(1..6u32) << 28);
                        note_length(&mut lengths, key.1);
                    }
                    changed.push(key);
                }
                changed.sort_unstable();
                changed.dedup();
                top = match change6(&mut setup.forest(), top, &routes, lengths, &changed).unwrap() {
                    Some(new) => {
                        edited += 1;
                        new
                    }
                    None => {
                        setup.forest().retire_tree::<u64>(top);
                        build6(&mut setup.forest(), &routes, &mut Buffer::default()).unwrap().top
                    }
                };
                setup.settle::<u64>(top);
                for (addr, len) in changed {
                    let last = addr | u128::MAX.checked_shr(u32::from(len)).unwrap_or(0);
                    for a in [addr, last, addr.wrapping_sub(1), last.wrapping_add(1), addr ^ 1 << 64, addr ^ 1] {
                        let got = lookup128(&setup.lines, top.root_bits(), ((a >> 64) as u64, a as u64));
                        assert_eq!(got, naive6(&routes, a), "{a:#x}");
                    }
                }
            }
            assert!(size < 600 || edited > 50, "{edited}");
            for key in routes.keys() {
                let got = lookup128(&setup.lines, top.root_bits(), ((key.0 >> 64) as u64, key.0 as u64));
                assert_eq!(got, naive6(&routes, key.0));
            }
        }
    }
}
