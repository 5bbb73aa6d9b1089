// SPDX-License-Identifier: Apache-2.0
//! The index from keys to records: writing. Reading is in `table`.
//!
//! # Shape
//! Buckets of one line with 14 slots; a key lies in one of two buckets that its hash names, so a reader loads both at once and
//! never follows a chain. A new key goes to the first of them while that has a slot, else to the second; if both are full, an entry
//! of either moves to its own other bucket. At the highest load that is allowed (85%) about one key in fifteen lies in its second
//! bucket: whoever has a batch of keys asks for the first buckets alone, and then for the others of those that it did not
//! find, which saves nearly a third of the cache lines of a lookup and of an end.
//!
//! # Who writes
//! Whoever holds the locks of the buckets (bit 63 of `tags`, a spin lock that readers disregard and `attach` clears). The
//! buckets of all keys of a session are locked together, in order of their lines; a displacement only *tries* for the lock of
//! the third bucket. So there is no deadlock, and of two sessions with one key one is refused.
//!
//! # What readers see
//! The tag goes before the slot, a slot changes by one store. A displaced entry is stored in its new bucket before it is cleared
//! in the old one; a reader between both may miss it, which is why a miss is confirmed under the locks.
//!
//! # Growth
//! A larger index is begun beside the old one. The old one keeps its entries; they are copied bucket by bucket, by whoever
//! creates sessions and by `expire`. New sessions enter the new one alone, sessions that end leave both. When all is copied,
//! the old one is forgotten, and freed after a grace period.

use crate::record::{Line, Lines};
use crate::table::{buckets_of, tag_of};
use abi::*;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Percent of slots that may be in use before the index grows.
pub(crate) const LOAD_MAX: u64 = 85;

/// Locks held on up to four buckets.
pub(crate) struct Locked<'a> {
    lines: &'a Lines,
    held: [LineNo; 4],
}

fn lock(bucket: &Line) -> bool {
    bucket.cell(7).fetch_or(SESSION_BUCKET_LOCK, Acquire) & SESSION_BUCKET_LOCK == 0
}

/// A plain store: whoever tries for the lock meanwhile sets the bit that is set, and nobody else changes the word.
fn unlock(bucket: &Line) {
    let tags = bucket.cell(7);
    tags.store(tags.load(Relaxed) & !SESSION_BUCKET_LOCK, Release);
}

impl<'a> Locked<'a> {
    /// Locks these buckets; a line may occur twice, 0 is none.
    pub(crate) fn new(lines: &'a Lines, mut wanted: [LineNo; 4]) -> Locked<'a> {
        wanted.sort_unstable();
        let mut last = LineNo(0);
        for line in &mut wanted {
            if *line == last {
                *line = LineNo(0);
                continue;
            }
            last = *line;
            let bucket = lines.at(last);
            let mut tries = 0u32;
            while !lock(bucket) {
                tries += 1;
                if tries < 64 {
                    std::hint::spin_loop();
                } else {
                    std::thread::yield_now();
                }
            }
        }
        Locked { lines, held: wanted }
    }

    fn holds(&self, line: LineNo) -> bool {
        self.held.contains(&line)
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        for line in self.held {
            if line != LineNo(0) {
                unlock(self.lines.at(line));
            }
        }
    }
}

/// The slot word of a record.
pub(crate) fn slot_of(tag: u32, at: LineNo) -> u32 {
    tag << SESSION_SLOT_TAG_SHIFT | at.0
}

/// The tag that slot i of a bucket holds, with the line of its record; None if it is empty.
pub(crate) fn entry(bucket: &Line, i: usize) -> Option<(u32, LineNo)> {
    let slot = bucket.cell32(i).load(Acquire);
    let at = LineNo(slot & SESSION_SLOT_LINE);
    let high = (bucket.cell(7).load(Acquire) >> (4 * i)) as u32 & 15;
    (slot != 0).then_some((high << 5 | slot >> SESSION_SLOT_TAG_SHIFT, at))
}

const SLOTS: usize = SESSION_SLOTS as usize;

pub(crate) fn put(bucket: &Line, i: usize, tag: u32, at: LineNo) {
    let tags = bucket.cell(7);
    let nibble = u64::from(tag >> 5) << (4 * i);
    // Only the holder of the lock changes tags; others set and clear the lock bit alone.
    tags.store(tags.load(Relaxed) & !(15 << (4 * i)) | nibble, Release);
    bucket.cell32(i).store(slot_of(tag, at), Release);
}

/// The first empty slot.
fn empty_slot(bucket: &Line) -> Option<usize> {
    let empty = bucket.empty_slots() & ((1 << SLOTS) - 1);
    (empty != 0).then(|| empty.trailing_zeros() as usize)
}

/// Enters a record under a key's hash into the index `table`; both buckets are locked. False: there is no room.
pub(crate) fn insert(locked: &Locked, lines: &Lines, salt: u64, table: u64, hash: u64, at: LineNo) -> bool {
    let [a, b] = buckets_of(table, hash);
    debug_assert!(locked.holds(a) && locked.holds(b));
    let tag = tag_of(hash);
    let (first, second) = (lines.at(a), lines.at(b));
    match (empty_slot(first), empty_slot(second)) {
        (Some(i), _) => put(first, i, tag, at),
        (None, Some(i)) => put(second, i, tag, at),
        (None, None) => {
            match displace(locked, lines, salt, table, a).or_else(|| displace(locked, lines, salt, table, b)) {
                Some((line, i)) => put(lines.at(line), i, tag, at),
                None => return false,
            }
        }
    }
    true
}

/// Moves one entry of a full, locked bucket to its other bucket. Returns the slot that is free now.
fn displace(locked: &Locked, lines: &Lines, salt: u64, table: u64, from: LineNo) -> Option<(LineNo, usize)> {
    let bucket = lines.at(from);
    for i in 0..SLOTS {
        lines.prefetch(LineNo(bucket.cell32(i).load(Relaxed) & SESSION_SLOT_LINE));
    }
    for i in 0..SLOTS {
        let Some((tag, at)) = entry(bucket, i) else { continue };
        let Some(hash) = hash_in(lines, salt, table, at, tag, from) else { continue };
        let [a, b] = buckets_of(table, hash);
        let to = if a == from { b } else { a };
        let held = locked.holds(to);
        if to == from || !(held || lock(lines.at(to))) {
            continue;
        }
        let free = empty_slot(lines.at(to));
        if let Some(j) = free {
            put(lines.at(to), j, tag, at);
            bucket.cell32(i).store(0, Release);
        }
        if !held {
            unlock(lines.at(to));
        }
        if free.is_some() {
            return Some((from, i));
        }
    }
    None
}

/// The two hashes of a record's keys.
pub(crate) fn hashes(lines: &Lines, salt: u64, at: LineNo) -> [u64; 2] {
    let record = crate::Record { line: lines.at(at), second: lines.at(LineNo(at.0 | 1)) };
    crate::key::hashes_of(record.owner(), &record.inner(), &record.outer(), salt)
}

/// Which of a record's hashes an entry in this bucket stands for. None if neither or, by chance, both.
fn hash_in(lines: &Lines, salt: u64, table: u64, at: LineNo, tag: u32, bucket: LineNo) -> Option<u64> {
    let fits = |h: &u64| tag_of(*h) == tag && buckets_of(table, *h).contains(&bucket);
    let [inner, outer] = hashes(lines, salt, at);
    match (fits(&inner), fits(&outer)) {
        (true, true) if inner == outer => Some(inner),
        (true, false) => Some(inner),
        (false, true) => Some(outer),
        _ => None,
    }
}

/// Whether slot i of a bucket holds what belongs there: a record of which a key has this tag in this bucket, and which no slot before stands for,
/// nor, where a displaced entry was not cleared any more, the key's first bucket. (Two keys of a record may have one tag in one bucket, and then two entries.)
pub(crate) fn belongs(lines: &Lines, salt: u64, table: u64, bucket: LineNo, i: usize) -> bool {
    let Some((tag, at)) = entry(lines.at(bucket), i) else { return false };
    let hashes = hashes(lines, salt, at);
    let keys = crate::key::distinct(&hashes);
    let fits = |h: &&u64| tag_of(**h) == tag && buckets_of(table, **h).contains(&bucket);
    let same = |line: LineNo, slots: usize| (0..slots).filter(|j| entry(lines.at(line), *j) == Some((tag, at))).count();
    let Some(hash) = keys.iter().find(fits).filter(|_| same(bucket, i) < keys.iter().filter(fits).count()) else {
        return false;
    };
    let [first, second] = buckets_of(table, *hash);
    // With one tag for both keys nobody can say whose entry the other bucket has.
    let one_tag = keys.len() == 2 && tag_of(keys[0]) == tag_of(keys[1]);
    one_tag || bucket != second || first == second || same(first, SLOTS) == 0
}

/// Clears the entries of a record in the two buckets of a hash; they are locked, or the table is the old one, into which
/// nobody enters anything.
pub(crate) fn clear(lines: &Lines, table: u64, hash: u64, at: LineNo) {
    for line in buckets_of(table, hash) {
        // Of the old table nobody holds a lock: two that end one record each clear it.
        each_of(lines, line, hash, at, |slot, wanted| {
            let _ = slot.compare_exchange(wanted, 0, AcqRel, Relaxed);
        });
    }
}

/// Clears the entries of a record in one bucket of a hash, which is locked. True if there was one: as long as that lock is
/// held there is none in the other bucket, for an entry moves under the locks of both.
pub(crate) fn clear_in(lines: &Lines, line: LineNo, hash: u64, at: LineNo) -> bool {
    let mut cleared = false;
    each_of(lines, line, hash, at, |slot, _| {
        slot.store(0, Release);
        cleared = true;
    });
    cleared
}

/// The slots of a bucket that hold this record under this hash, with the word that they hold.
fn each_of(lines: &Lines, line: LineNo, hash: u64, at: LineNo, mut each: impl FnMut(&AtomicU32, u32)) {
    let tag = tag_of(hash);
    let wanted = slot_of(tag, at);
    let bucket = lines.at(line);
    let mut hits = bucket.slots_with(tag) & ((1 << SLOTS) - 1);
    while hits != 0 {
        let slot = bucket.cell32(hits.trailing_zeros() as usize);
        hits &= hits - 1;
        if slot.load(Relaxed) == wanted {
            each(slot, wanted);
        }
    }
}

/// Whether the table has this record under this hash.
pub(crate) fn has(lines: &Lines, table: u64, hash: u64, at: LineNo) -> bool {
    let tag = tag_of(hash);
    buckets_of(table, hash)
        .iter()
        .any(|line| (0..SLOTS).any(|i| entry(lines.at(*line), i).is_some_and(|e| e == (tag, at))))
}
