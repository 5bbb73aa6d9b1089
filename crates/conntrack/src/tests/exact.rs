// SPDX-License-Identifier: Apache-2.0
//! Keys, records and the index, bit by bit: what one bit changes is found, and nothing else is.

use super::*;
use crate::index::{self, Locked};
use crate::record::{Line, Lines, INNER0, INNER1, OUTER};
use crate::table::{buckets_of, inner_is, outer_is, pair_is, tag_of};
use rand::RngExt;

const SLOTS: usize = SESSION_SLOTS as usize;

fn small() -> Options {
    Options { sessions: 4096, initial: 64, salt: 5, ..Options::default() }
}

/// Every way to turn one bit of these words.
fn turned<const N: usize>(words: [u64; N]) -> impl Iterator<Item = [u64; N]> {
    (0..64 * N).map(move |bit| {
        let mut other = words;
        other[bit / 64] ^= 1 << (bit % 64);
        other
    })
}

#[test]
fn every_bit_of_a_key_is_in_its_hash_and_kinds_of_keys_have_hashes_of_their_own() {
    let (w4, w6) = ([0x1234_5606_0a00_0001, 0x0808_0808_1000_0035], [0x1234_5606_1000_0035, 1, 2, 3, 4]);
    let mut seen = std::collections::HashSet::new();
    let all4 = turned(w4).chain([w4]).flat_map(|w| [InnerKey::V4(w).hash(9), OuterKey::V4(w).hash(9)]);
    let all6 = turned(w6).chain([w6]).map(|w| InnerKey::V6(w).hash(9));
    let others = [0, 1, 0x80_0000, 0xff_ffff, 0x1234];
    let pairs4 = turned(w4).chain([w4]).flat_map(|w| others.map(|o| PairKey::with(InnerKey::V4(w), Vni(o)).hash(9)));
    let pairs6 = turned(w6).chain([w6]).flat_map(|w| others.map(|o| PairKey::with(InnerKey::V6(w), Vni(o)).hash(9)));
    let (mut n, mut tags) = (0, std::collections::HashSet::new());
    for hash in all4.chain(all6).chain(pairs4).chain(pairs6) {
        assert!(seen.insert(hash), "two keys have one hash");
        tags.insert(tag_of(hash));
        n += 1;
    }
    assert_eq!(n, 129 * 2 + 321 + 129 * 5 + 321 * 5);
    assert!(tags.len() > 450, "{} of 512 tags", tags.len());
    // The salt is in it too; of IPv6 both keys have one hash, for their first words differ.
    assert_ne!(InnerKey::V4(w4).hash(9), InnerKey::V4(w4).hash(8));
    assert_ne!(InnerKey::V6(w6).hash(9), InnerKey::V6(w6).hash(8));
    assert_eq!(InnerKey::V6(w6).hash(9), OuterKey::V6(w6).hash(9));
    assert_ne!(PairKey::with(InnerKey::V6(w6), Vni(7)).hash(9), PairKey::with(InnerKey::V6(w6), Vni(7)).hash(8));
}

#[test]
fn tag_and_buckets_are_taken_from_these_bits_of_a_hash() {
    for bit in 0..64 {
        let tag = if bit % 32 < 9 { 1 << (bit % 32) } else { 0 };
        assert_eq!(tag_of(1 << bit), tag, "bit {bit}");
    }
    assert_eq!((tag_of(0), tag_of(1 | 1 << 32), tag_of(0x155), tag_of(0x155 << 32 | 0xaa)), (0, 0, 0x155, 0x1ff));
    let table = |first: u64, n: u64| n << TABLE_REF_BUCKETS_SHIFT | first;
    assert_eq!(buckets_of(table(0x20_0000, 0x1_0000), 0x1234_5678_9abc_def0), [LineNo(0x20_1234), LineNo(0x20_9abc)]);
    assert_eq!(buckets_of(table(7, 3), 0x5555_5555_ffff_ffff), [LineNo(7), LineNo(9)]);
    assert_eq!(buckets_of(table(7, 3), 0x5555_5556_5555_5555), [LineNo(8), LineNo(7)]);
    assert_eq!(buckets_of(table(7, 0), !0), [LineNo(0); 2]);
}

/// The hints are what a look at each half word says, of random lines between others that say the opposite.
#[test]
fn hints_of_slots_are_what_each_half_word_says() {
    let (_, mut rng) = seeded("slots");
    let lines = [const { Line([const { std::sync::atomic::AtomicU64::new(0) }; 8]) }; 3];
    for round in 0..3000 {
        let tag = rng.random_range(0..32u32);
        for i in 0..16 {
            let other = (tag ^ rng.random_range(1..32)) & 31;
            let slot = |tag: u32| tag << SESSION_SLOT_TAG_SHIFT | rng_line(round + i as u32);
            lines[0].cell32(i).store(slot(tag), Relaxed);
            lines[1].cell32(i).store(
                if rng.random() {
                    slot(tag)
                } else if rng.random() {
                    0
                } else {
                    slot(other)
                },
                Relaxed,
            );
            lines[2].cell32(i).store(if round % 2 == 0 { 0 } else { slot(tag) }, Relaxed);
        }
        let halves: Vec<u32> = (0..16).map(|i| lines[1].cell32(i).load(Relaxed)).collect();
        let bits = |is: &dyn Fn(u32) -> bool| (0..16).filter(|i| is(halves[*i])).fold(0u32, |bits, i| bits | 1 << i);
        assert_eq!(lines[1].slots_with(tag), bits(&|h| h >> SESSION_SLOT_TAG_SHIFT == tag));
        assert_eq!(lines[1].slots_with(tag | 32), lines[1].slots_with(tag), "the upper bits of a tag are elsewhere");
        assert_eq!(lines[1].empty_slots(), bits(&|h| h == 0));
    }
}

fn rng_line(n: u32) -> u32 {
    n.wrapping_mul(2_654_435_761) >> 8 & SESSION_SLOT_LINE
}

/// A session of each kind: IPv4 and IPv6, translated and between two ends inside.
fn kinds() -> [NewSession; 4] {
    let end = |vni, addr: std::net::IpAddr, port| (Vni(vni), addr, port);
    let (a, b) = (std::net::Ipv4Addr::new(10, 0, 1, 5), std::net::Ipv4Addr::new(10, 0, 1, 6));
    let pair4 = PairKey::new(17, end(7, a.into(), 70), end(9, b.into(), 80), false).unwrap().0;
    let pair6 = PairKey::new(17, end(7, a.to_ipv6_mapped().into(), 70), end(9, b.to_ipv6_mapped().into(), 80), false)
        .unwrap()
        .0;
    let six = InnerKey::v6(Vni(0x12_3456), 17, 0xfd00 << 112 | 5, 1000, 0x2001_0db8 << 96 | 9, 53);
    let pair =
        |key: PairKey| NewSession { inner: key.inner(), outer: key.outer(), owner: Owner::Filter, ..udp(Vni(7), 1, 1) };
    let out = NewSession { inner: six, outer: six.untranslated(), owner: Owner::None, ..udp(Vni(1), 1, 1) };
    [NewSession { epoch: 0xffff, ..udp(Vni(0x12_3456), 0x0a00_0001, 1000) }, out, pair(pair4), pair(pair6)]
}

fn inner_words(key: InnerKey) -> Vec<InnerKey> {
    match key {
        InnerKey::V4(w) => turned(w).map(InnerKey::V4).collect(),
        InnerKey::V6(w) => turned(w).map(InnerKey::V6).collect(),
    }
}

/// A record is that of a key if no bit of it differs, it lives, and is of the key's kind.
#[test]
fn a_record_is_of_its_keys_and_of_no_other() {
    let t = tracker(small());
    let (shared, _) = t.shared_for_tests();
    let lines = &shared.lines;
    for (n, new) in kinds().into_iter().enumerate() {
        let at = t.create(&new, S, &mut never).unwrap().0;
        let record = lines.at(at);
        let pair = PairKey::of_session(new.inner, &new.outer);
        let is = |inner: &InnerKey, outer: &OuterKey, pair: &PairKey| {
            [inner_is(lines, record, at, inner), outer_is(lines, record, at, outer), pair_is(lines, record, at, pair)]
        };
        let own = if n < 2 { [true, true, false] } else { [false, false, true] };
        assert_eq!(is(&new.inner, &new.outer, &pair), own, "{n}");
        // One bit of the inner key differs.
        for other in inner_words(new.inner) {
            assert!(!inner_is(lines, record, at, &other), "{n} {other:?}");
            assert!(!pair_is(lines, record, at, &PairKey::with(other, pair.other())), "{n} {other:?}");
        }
        // One bit of the outer one.
        let outer: Vec<OuterKey> = match new.outer {
            OuterKey::V4(w) => turned(w).map(OuterKey::V4).collect(),
            OuterKey::V6(w) => turned(w).map(OuterKey::V6).collect(),
        };
        assert!(outer.iter().all(|other| !outer_is(lines, record, at, other)), "{n}");
        // The other end's VPC.
        assert!(
            (0..24).all(|bit| !pair_is(lines, record, at, &PairKey::with(new.inner, Vni(pair.other().0 ^ 1 << bit)))),
            "{n}"
        );
        // The words that there are, read as a key of the other family.
        let word = |i| record.cell(i).load(Relaxed);
        let second: Vec<u64> = (0..4).map(|i| lines.at(LineNo(at.0 | 1)).cell(i).load(Relaxed)).collect();
        let (outer0, vni) = (word(OUTER), !0u64 << 40);
        let (inner, outer) = match new.inner {
            InnerKey::V4(_) => {
                let six = |first: u64| [first, second[0], second[1], second[2], second[3]];
                (InnerKey::V6(six(word(INNER0))), OuterKey::V6(six(word(INNER0) & !vni)))
            }
            InnerKey::V6(_) => {
                let first = word(INNER0) & !vni & !0xffff_ffff | outer0 >> 32;
                let second = word(INNER1) & !0xffff_0000 | outer0 & 0xffff_0000;
                (InnerKey::V4([word(INNER0), word(INNER1)]), OuterKey::V4([first, second]))
            }
        };
        assert_eq!(is(&inner, &outer, &PairKey::with(inner, pair.other())), [false; 3], "{n}: the other family");
        // A flag of the state word changes nothing of it, its end everything.
        let state = word(STATE);
        for flags in [SESSION_LOCK, SESSION_DOUBT, SESSION_LOOSE, SESSION_FROM_OUTSIDE, 0xff << SESSION_WHEEL_SHIFT] {
            record.cell(STATE).store(state | flags, Relaxed);
            assert_eq!(is(&new.inner, &new.outer, &pair), own, "{n}: {flags:x}");
        }
        record.cell(STATE).store(state & !SESSION_STATE_MASK, Relaxed);
        assert_eq!(is(&new.inner, &new.outer, &pair), [false; 3], "{n}: it has ended");
        record.cell(STATE).store(state, Relaxed);
    }
}

/// What a record says of a session is what the session was made of, to the bit; and words that nothing uses are zero.
#[test]
fn a_record_says_what_its_session_was_made_of() {
    let t = tracker(small());
    let sessions = t.sessions();
    let guard = sessions.enter();
    for new in kinds() {
        let at = t.create(&NewSession { bytes: 1234, ..new }, 9 * S, &mut never).unwrap();
        let record = guard.record(at);
        assert_eq!(
            (record.inner(), record.outer(), record.owner(), record.epoch()),
            (new.inner, new.outer, new.owner, new.epoch)
        );
        assert_eq!(
            (record.state(), record.from_outside(), record.started(), record.last_seen()),
            (State::OneSided, false, coarse(9 * S), coarse(9 * S))
        );
        assert_eq!(record.counts(), Counts { packets: 1, bytes: 1234 });
        let sides = [Direction::Out, Direction::In].map(|d| (record.end(d), record.ack(d), record.window(d)));
        assert_eq!(sides, [(0, 0, 0); 2]);
        let word = |i: usize| record.line.cell(i).load(Relaxed);
        if new.inner.is_v6() {
            assert_eq!(word(INNER1), 0);
        }
        match (new.owner, new.outer) {
            (Owner::Filter, _) => assert_eq!(word(OUTER), 9 << 40 | u64::from(new.epoch)),
            (_, OuterKey::V4(w)) => {
                assert_eq!(word(OUTER), w[0] << 32 | w[1] & 0xffff_0000 | u64::from(new.epoch));
                assert_eq!(record.public4(), (w[0] as u32, new.outer.public_port()));
            }
            _ => assert_eq!(word(OUTER), u64::from(new.epoch)),
        }
    }
    // Packets and bytes share a word.
    for (word, packets, bytes) in [
        (0, 0, 0),
        (1, 1, 0),
        (1 << SESSION_COUNT_BYTES_SHIFT, 0, 1),
        (!0, (1 << SESSION_COUNT_BYTES_SHIFT) - 1, !0 >> SESSION_COUNT_BYTES_SHIFT),
    ] {
        assert_eq!(Counts::of(word), Counts { packets, bytes });
    }
}

/// An index of four buckets in a segment that nobody uses yet, and records whose keys have the buckets that a test wants.
struct Small {
    t: Tracker,
    lines: Lines,
    next: u32,
}

const FIRST: u32 = 2 * SEGMENT_LINES;
const TABLE: u64 = 4 << TABLE_REF_BUCKETS_SHIFT | FIRST as u64;
const SALT: u64 = 5;

impl Small {
    fn new() -> Small {
        let t = tracker(small());
        let lines = t.shared_for_tests().0.lines;
        assert!(lines.limit() >= FIRST + 4);
        Small { t, lines, next: 0 }
    }

    /// A record of which the key `which` has these buckets, with that key's hash; its other key has another tag.
    fn record(&mut self, which: usize, buckets: [u32; 2]) -> (u32, u64) {
        loop {
            self.next += 1;
            let new = udp(Vni(1), 0x0a00_0000 + self.next / 60_000, (self.next % 60_000) as u16);
            let hashes = crate::key::hashes_of(new.owner, &new.inner, &new.outer, SALT);
            let of = |h: u64| buckets_of(TABLE, h).map(|line| line.0 - FIRST);
            if of(hashes[which]) == buckets && tag_of(hashes[0]) != tag_of(hashes[1]) {
                return (self.t.create(&new, S, &mut never).unwrap().0 .0, hashes[which]);
            }
        }
    }

    fn insert(&self, (at, hash): (u32, u64)) -> bool {
        let [a, b] = buckets_of(TABLE, hash);
        let locked = Locked::new(&self.lines, [a, b, LineNo(0), LineNo(0)]);
        index::insert(&locked, &self.lines, SALT, TABLE, hash, LineNo(at))
    }

    fn has(&self, (at, hash): (u32, u64)) -> bool {
        index::has(&self.lines, TABLE, hash, LineNo(at))
    }

    /// What slot i of a bucket holds: tag and line.
    fn slot(&self, bucket: u32, i: usize) -> Option<(u32, u32)> {
        index::entry(self.lines.at(LineNo(FIRST + bucket)), i).map(|(tag, at)| (tag, at.0))
    }

    fn used(&self) -> [usize; 4] {
        [0, 1, 2, 3].map(|bucket| (0..SLOTS).filter(|i| self.slot(bucket, *i).is_some()).count())
    }

    fn belongs(&self, bucket: u32, i: usize) -> bool {
        index::belongs(&self.lines, SALT, TABLE, LineNo(FIRST + bucket), i)
    }

    fn words(&self) -> Vec<u64> {
        (FIRST..FIRST + 4)
            .flat_map(|line| (0..8).map(move |i| (line, i)))
            .map(|(line, i)| self.lines.at(LineNo(line)).cell(i).load(Relaxed))
            .collect()
    }
}

fn entry_of((at, hash): (u32, u64)) -> Option<(u32, u32)> {
    Some((tag_of(hash), at))
}

/// Full buckets make room by moving an entry to its other bucket, whichever key it stands for, and only if that has room and
/// nobody holds it.
#[test]
fn a_full_bucket_moves_an_entry_to_where_it_has_room() {
    for which in [0, 1] {
        let mut s = Small::new();
        let mut all = Vec::new();
        for buckets in [[0, 1], [2, 3]] {
            for i in 0..SLOTS {
                let new = s.record(which, buckets);
                assert!(s.insert(new));
                assert_eq!(s.slot(buckets[0], i), entry_of(new), "the first bucket, its first slot");
                all.push(new);
            }
        }
        // To the second bucket, while that has room.
        let second = s.record(which, [0, 3]);
        assert!(s.insert(second));
        assert_eq!((s.slot(3, 0), s.used()), (entry_of(second), [14, 0, 14, 1]));
        all.push(second);
        // Both are full: the first entry of the first bucket goes.
        let new = s.record(which, [0, 2]);
        assert!(s.insert(new));
        assert_eq!((s.slot(0, 0), s.slot(1, 0), s.used()), (entry_of(new), entry_of(all[0]), [14, 1, 14, 1]));
        all.push(new);
        // Somebody holds the bucket that it would go to: one of the second bucket goes.
        let new = s.record(which, [0, 2]);
        let held = Locked::new(&s.lines, [LineNo(FIRST + 1), LineNo(0), LineNo(0), LineNo(0)]);
        assert!(s.insert(new));
        assert_eq!((s.slot(2, 0), s.slot(3, 1), s.used()), (entry_of(new), entry_of(all[SLOTS]), [14, 1, 14, 2]));
        all.push(new);
        drop(held);
        // Fill what is left; then there is no room, and nothing changes.
        for (bucket, left) in [(1, 13), (3, 12)] {
            for _ in 0..left {
                let new = s.record(which, [bucket, bucket]);
                assert!(s.insert(new));
                all.push(new);
            }
        }
        assert_eq!(s.used(), [14; 4]);
        let before = s.words();
        let new = s.record(which, [0, 2]);
        assert!(!s.insert(new) && !s.has(new));
        assert_eq!(s.words(), before, "no entry, and no lock");
        for one in &all {
            assert!(s.has(*one));
        }
        for bucket in 0..4 {
            assert!((0..SLOTS).all(|i| s.belongs(bucket, i)), "bucket {bucket}");
        }
        // One that goes leaves its place, and no other.
        let (at, hash) = all[3];
        index::clear(&s.lines, TABLE, hash ^ 1 << 20, LineNo(at + 1));
        assert_eq!(s.words(), before, "of another record there is none");
        index::clear(&s.lines, TABLE, hash, LineNo(at));
        assert!(all.iter().all(|one| s.has(*one) != (*one == all[3])));
        assert_eq!(s.used().iter().sum::<usize>(), 55);
        assert!(s.insert(new) && s.has(new));
    }
}

/// A key that has one bucket twice, and one whose bucket is held already by who inserts.
#[test]
fn buckets_are_locked_once_each_and_unlocked() {
    let s = Small::new();
    let lock = |bucket: u32| s.lines.at(LineNo(FIRST + bucket)).cell(7).load(Relaxed) & SESSION_BUCKET_LOCK != 0;
    let locks = || [0, 1, 2, 3].map(lock);
    s.lines.at(LineNo(FIRST + 2)).cell(7).store(0x1234, Relaxed);
    for (wanted, want) in [
        ([3, 1, 1, 3], [false, true, false, true]),
        ([2, 2, 2, 2], [false, false, true, false]),
        ([3, 2, 1, 0], [true; 4]),
    ] {
        let held = Locked::new(&s.lines, wanted.map(|n| LineNo(FIRST + n)));
        assert_eq!(locks(), want);
        drop(held);
        assert_eq!(locks(), [false; 4]);
    }
    drop(Locked::new(&s.lines, [LineNo(0); 4]));
    assert_eq!(s.lines.at(LineNo(0)).cell(7).load(Relaxed), 0, "line 0 is none");
    assert_eq!(s.lines.at(LineNo(FIRST + 2)).cell(7).load(Relaxed), 0x1234, "tags stay");
}

/// Each bit of a tag and of a line has its place in a bucket, in every slot, and no neighbour's changes.
#[test]
fn an_entry_is_read_as_it_was_put() {
    let (_, mut rng) = seeded("entries");
    let bucket = Line::default();
    let mut twin = [None; SLOTS];
    bucket.cell(7).store(SESSION_BUCKET_LOCK, Relaxed);
    for _ in 0..5000 {
        let i = rng.random_range(0..SLOTS);
        if rng.random() {
            let (tag, at) = (rng.random_range(0..512), rng.random_range(1..=SESSION_SLOT_LINE));
            index::put(&bucket, i, tag, LineNo(at));
            twin[i] = Some((tag, LineNo(at)));
        } else {
            bucket.cell32(i).store(0, Relaxed);
            twin[i] = None;
        }
        assert_eq!(std::array::from_fn(|i| index::entry(&bucket, i)), twin);
        assert!(bucket.cell(7).load(Relaxed) & SESSION_BUCKET_LOCK != 0, "the lock stays");
    }
}

/// Of two entries of one key the first one stays, in the key's first bucket if it is there.
#[test]
fn an_entry_belongs_where_its_key_leads_and_once() {
    for which in [0, 1] {
        let mut s = Small::new();
        let one = s.record(which, [1, 3]);
        let (at, tag) = (one.0, tag_of(one.1));
        let put = |bucket: u32, i: usize, tag: u32| index::put(s.lines.at(LineNo(FIRST + bucket)), i, tag, LineNo(at));
        let none = |bucket: u32, i: usize| s.lines.at(LineNo(FIRST + bucket)).cell32(i).store(0, Relaxed);
        for (first, again) in [(0, 1), (0, 13), (5, 6), (12, 13)] {
            put(1, first, tag);
            put(1, again, tag);
            assert_eq!((s.belongs(1, first), s.belongs(1, again)), (true, false), "{first} and {again}");
            none(1, again);
            // In the second bucket as well: not while the first has it, in any slot.
            put(3, again, tag);
            assert_eq!((s.belongs(1, first), s.belongs(3, again)), (true, false));
            none(1, first);
            assert!(s.belongs(3, again) && !s.belongs(1, first));
            none(3, again);
        }
        for (bucket, tag) in [(0, tag), (2, tag), (1, tag ^ 1), (1, tag ^ 256), (3, tag ^ 32)] {
            put(bucket, 4, tag);
            assert!(!s.belongs(bucket, 4), "bucket {bucket} tag {tag}");
            none(bucket, 4);
        }
        // Clearing one bucket tells whether there was one.
        put(3, 7, tag);
        put(3, 8, tag ^ 1);
        let clear = |bucket: u32| index::clear_in(&s.lines, LineNo(FIRST + bucket), one.1, LineNo(at));
        assert_eq!((clear(1), clear(3), clear(3)), (false, true, false));
        assert_eq!((s.slot(3, 7), s.slot(3, 8)), (None, Some((tag ^ 1, at))));
    }
}

/// A reader inside holds up what was made unreachable before it left, however often it enters; one that comes later does not.
#[test]
fn a_record_waits_for_the_readers_of_its_time_and_for_no_other() {
    let t = tracker(small());
    let (first, second) = (t.sessions(), t.sessions().clone());
    let room = || t.stats().room;
    let gone = |port| {
        let at = t.create(&udp(Vni(1), 5, port), S, &mut never).unwrap();
        assert!(t.remove(at, S, &mut |_| {}));
    };
    let full = room();
    let look = || {
        t.expire(S, 1, &mut never);
        room()
    };
    // Nobody is inside: one look is enough.
    gone(1);
    assert_eq!((room(), look()), (full - 1, full));
    // A reader that has entered twice.
    gone(2);
    let outer = first.enter();
    let inner = first.enter();
    assert_eq!((look(), look()), (full - 1, full - 1));
    drop(inner);
    assert_eq!(look(), full - 1, "it is still inside");
    // Another one comes after the record was out of reach.
    let later = second.enter();
    drop(outer);
    assert_eq!(look(), full, "who came later cannot have found it");
    // What goes now waits for that one, and what goes meanwhile for the next turn.
    gone(3);
    assert_eq!(look(), full - 1);
    gone(4);
    assert_eq!(look(), full - 2);
    drop(later);
    assert_eq!(look(), full, "both, as nobody is inside");
    // A reader that is dropped leaves its place, also to who comes next.
    drop(first.enter());
    drop(first);
    let again = t.sessions();
    gone(5);
    let inside = again.enter();
    assert_eq!(look(), full - 1);
    drop(inside);
    assert_eq!(look(), full);
}
