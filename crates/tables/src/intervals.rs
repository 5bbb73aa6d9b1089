// SPDX-License-Identifier: Apache-2.0
//! Prefixes to intervals: what the route trees hold.
//!
//! Prefixes nest or are disjoint, so in the order (address, length) a stack of the open ones gives, in one sweep, the
//! intervals of the address space with the value of the longest prefix that covers each. Neighbours of one value merge.

use abi::*;

/// Half of an IPv6 address, or an IPv4 address: what one tree is searched by.
pub(crate) trait Key: Copy + Ord + std::fmt::Debug {
    /// The smallest key.
    const MIN: Self;
    /// The largest key.
    const MAX: Self;
    /// The key behind. Wraps.
    fn next(self) -> Self;
    /// The key before. Wraps.
    fn prev(self) -> Self;
}

impl Key for u32 {
    const MIN: u32 = 0;
    const MAX: u32 = u32::MAX;
    fn next(self) -> u32 {
        self.wrapping_add(1)
    }
    fn prev(self) -> u32 {
        self.wrapping_sub(1)
    }
}

impl Key for u64 {
    const MIN: u64 = 0;
    const MAX: u64 = u64::MAX;
    fn next(self) -> u64 {
        self.wrapping_add(1)
    }
    fn prev(self) -> u64 {
        self.wrapping_sub(1)
    }
}

/// An interval: from behind the previous one up to and with `upper`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval<K> {
    pub upper: K,
    pub value: u32,
}

/// Buffers of a sweep, to be used again: what it finds, and its open prefixes.
#[derive(Debug)]
pub(crate) struct Buffer<K> {
    pub out: Vec<Interval<K>>,
    stack: Vec<(K, u32)>,
}

impl<K> Default for Buffer<K> {
    fn default() -> Self {
        Buffer { out: Vec::new(), stack: Vec::new() }
    }
}

/// Sweeps over prefixes given as (first, last, value) in the order (address, length).
pub(crate) struct Sweep<'a, K> {
    out: &'a mut Vec<Interval<K>>,
    stack: &'a mut Vec<(K, u32)>,
    default: u32,
    /// First key not yet covered; None when the last one is.
    at: Option<K>,
    /// Open prefixes of scope local.
    locals: u32,
    /// A route of another scope lies inside a local one: ROOT_SIMPLE must not be set.
    pub mixed: bool,
}

impl<'a, K: Key> Sweep<'a, K> {
    /// Begins at `from`; what no prefix covers has the value `default`.
    pub(crate) fn new(buffer: &'a mut Buffer<K>, from: K, default: u32) -> Self {
        let Buffer { out, stack } = buffer;
        out.clear();
        stack.clear();
        Sweep { out, stack, default, at: Some(from), locals: u32::from(is_local(default)), mixed: false }
    }

    fn emit(&mut self, upper: K, value: u32) {
        match self.at {
            Some(at) if at <= upper => {}
            _ => return,
        }
        match self.out.last_mut() {
            Some(last) if last.value == value => last.upper = upper,
            _ => self.out.push(Interval { upper, value }),
        }
        self.at = if upper == K::MAX { None } else { Some(upper.next()) };
    }

    fn close_before(&mut self, first: Option<K>) {
        while let Some((last, value)) = self.stack.last().copied() {
            if first.is_some_and(|first| last >= first) {
                break;
            }
            self.emit(last, value);
            self.stack.pop();
            self.locals -= u32::from(is_local(value));
        }
    }

    /// The value that covers `first` so far.
    pub(crate) fn cover(&mut self, first: K) -> u32 {
        self.close_before(Some(first));
        self.stack.last().map_or(self.default, |(_, value)| *value)
    }

    /// The next prefix.
    pub(crate) fn add(&mut self, first: K, last: K, value: u32) {
        let cover = self.cover(first);
        if self.at.is_some_and(|at| at < first) {
            self.emit(first.prev(), cover);
        }
        self.mixed |= self.locals > 0 && !is_local(value);
        self.locals += u32::from(is_local(value));
        self.stack.push((last, value));
    }

    /// The next key with a value of its own that hides no prefix (a descent).
    pub(crate) fn point(&mut self, key: K, value: u32) {
        let cover = self.cover(key);
        if self.at.is_some_and(|at| at < key) {
            self.emit(key.prev(), cover);
        }
        self.emit(key, value);
    }

    /// Ends at `to`.
    pub(crate) fn finish(mut self, to: K) -> bool {
        self.close_before(None);
        self.emit(to, self.default);
        self.mixed
    }
}

/// Whether a ROUTE_VALUE is local.
pub(crate) fn is_local(value: u32) -> bool {
    // With an argument it is local by way of another VM, which is not where the packet's own destination would be found.
    value == SCOPE_LOCAL << VALUE_SCOPE_SHIFT
}

/// The value at a key.
#[cfg(test)]
pub(crate) fn value_at<K: Key>(intervals: &[Interval<K>], key: K) -> u32 {
    intervals.get(intervals.partition_point(|i| i.upper < key)).map_or(0, |i| i.value)
}

/// First and last address of the IPv4 prefix of this length that an address lies in.
pub(crate) fn span4(addr: u32, len: u8) -> (u32, u32) {
    let host = u32::MAX.checked_shr(len.into()).unwrap_or(0);
    (addr & !host, addr | host)
}

/// The same of IPv6.
pub(crate) fn span6(addr: u128, len: u8) -> (u128, u128) {
    let host = u128::MAX.checked_shr(len.into()).unwrap_or(0);
    (addr & !host, addr | host)
}

/// First and last upper half of an IPv6 prefix of at most 64 bits.
pub(crate) fn span6_upper(addr: u128, len: u8) -> (u64, u64) {
    let hi = (addr >> 64) as u64;
    (hi, hi | u64::MAX.checked_shr(u32::from(len)).unwrap_or(0))
}

/// First and last lower half of an IPv6 prefix of more than 64 bits.
pub(crate) fn span6_lower(addr: u128, len: u8) -> (u64, u64) {
    let lo = addr as u64;
    (lo, lo | u64::MAX.checked_shr(u32::from(len) - 64).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::seeded;
    use rand::RngExt;

    #[test]
    fn intervals_say_what_the_longest_prefix_says() {
        let (_seed, mut rng) = seeded("intervals");
        for _ in 0..2_000 {
            let mut routes: Vec<(u32, u8, u32)> = (0..rng.random_range(0..40))
                .map(|_| {
                    let len = rng.random_range(0..=32u8);
                    let addr = rng.random::<u32>() & rng.random::<u32>();
                    let addr = if len == 0 { 0 } else { addr >> (32 - len) << (32 - len) };
                    (addr, len, rng.random_range(1..4u32) << VALUE_SCOPE_SHIFT)
                })
                .collect();
            routes.sort_unstable();
            routes.dedup_by_key(|r| (r.0, r.1));
            let mut buffer = Buffer::default();
            let mut sweep = Sweep::new(&mut buffer, 0, 0);
            for (addr, len, value) in &routes {
                let (first, last) = span4(*addr, *len);
                sweep.add(first, last, *value);
            }
            let mixed = sweep.finish(u32::MAX);
            let out = buffer.out;
            assert_eq!(out.last().unwrap().upper, u32::MAX);
            assert!(out.windows(2).all(|w| w[0].upper < w[1].upper && w[0].value != w[1].value));
            let covers = |r: &(u32, u8, u32), a: u32| span4(r.0, r.1).0 <= a && a <= span4(r.0, r.1).1;
            let naive = |a: u32| routes.iter().filter(|r| covers(r, a)).max_by_key(|r| r.1).map_or(0, |r| r.2);
            for (addr, len, _) in &routes {
                let (first, last) = span4(*addr, *len);
                for a in [first, last, first.wrapping_sub(1), last.wrapping_add(1), rng.random()] {
                    assert_eq!(value_at(&out, a), naive(a), "{a:#x} in {routes:x?}");
                }
            }
            let inside_local = routes
                .iter()
                .any(|r| !is_local(r.2) && routes.iter().any(|l| is_local(l.2) && l.1 < r.1 && covers(l, r.0)));
            assert_eq!(mixed, inside_local);
        }
    }
}
