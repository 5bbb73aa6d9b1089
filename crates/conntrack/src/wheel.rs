// SPDX-License-Identifier: Apache-2.0
//! The timer wheel: when to look at which session.
//!
//! One turn of 256 places of 2^30 ns (1.07 s). A place holds 4-byte record numbers in chunks, so a timer costs four bytes and is
//! appended and read in sequence. The record says (8 bits of its state word) in which place its own entry lies: an entry that
//! is found elsewhere is stale (its session ended, or its time became shorter and another entry was made) and is forgotten. Nobody
//! unlinks anything. A session that lives longer than a turn is looked at once a turn, which costs one read of its record;
//! in exchange packets never touch the wheel and a stale entry lives no longer than a turn.

use abi::LineNo;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// ns of a place: 2^30.
pub(crate) const TICK_SHIFT: u32 = 30;
/// Places.
pub(crate) const PLACES: u64 = 256;
const CHUNK: usize = 1024;

type Chunk = Box<[LineNo; CHUNK]>;

#[derive(Default)]
struct Place {
    chunks: Vec<Chunk>,
    /// Entries in the last chunk.
    used: usize,
}

/// The wheel. Any worker may push; one caller at a time takes.
pub(crate) struct Wheel {
    places: Vec<Mutex<Place>>,
    /// Empty chunks for reuse.
    spare: Mutex<Vec<Chunk>>,
    /// Last place that was opened.
    tick: AtomicU64,
    /// Chunks that exist.
    chunks: AtomicU64,
}

/// What is left of the place being emptied.
#[derive(Default)]
pub(crate) struct Opened {
    chunks: VecDeque<(Chunk, usize)>,
    /// Entries of the first chunk that were taken.
    at: usize,
    /// The place's number.
    pub(crate) place: u8,
}

impl Wheel {
    pub(crate) fn new(now: u64) -> Wheel {
        Wheel {
            places: (0..PLACES).map(|_| Mutex::default()).collect(),
            spare: Mutex::default(),
            tick: AtomicU64::new(now >> TICK_SHIFT),
            chunks: AtomicU64::new(0),
        }
    }

    /// The place for a time: after it, at least two places ahead (one may be being opened), at most a turn.
    pub(crate) fn place(&self, due: u64) -> u8 {
        let tick = self.tick.load(Acquire);
        ((due >> TICK_SHIFT) + 1).clamp(tick + 2, tick + PLACES - 2) as u8
    }

    /// Enters a record in a place.
    pub(crate) fn push(&self, place: u8, at: LineNo) {
        let mut p = self.places[place as usize].lock();
        if p.chunks.is_empty() || p.used == CHUNK {
            let spare = self.spare.lock().pop();
            p.chunks.push(spare.unwrap_or_else(|| {
                self.chunks.fetch_add(1, Relaxed);
                Box::new([LineNo(0); CHUNK])
            }));
            p.used = 0;
        }
        let used = p.used;
        if let Some(chunk) = p.chunks.last_mut() {
            chunk[used] = at;
        }
        p.used += 1;
    }

    /// Opens the next place whose time has come. None: none has.
    pub(crate) fn open(&self, now: u64) -> Option<Opened> {
        let (tick, now) = (self.tick.load(Acquire), now >> TICK_SHIFT);
        if tick >= now {
            return None;
        }
        // After a long sleep one turn is enough: the places further back are the same ones.
        let next = (tick + 1).max(now.saturating_sub(PLACES));
        self.tick.store(next, Release);
        let mut p = self.places[next as u8 as usize].lock();
        let (chunks, used) = (std::mem::take(&mut p.chunks), p.used);
        p.used = 0;
        let last = chunks.len();
        let chunks = chunks.into_iter().enumerate().map(|(i, c)| (c, if i + 1 == last { used } else { CHUNK }));
        Some(Opened { chunks: chunks.collect(), at: 0, place: next as u8 })
    }

    /// Takes up to `n` entries out of an opened place.
    pub(crate) fn take(&self, opened: &mut Opened, n: usize, out: &mut Vec<LineNo>) {
        while out.len() < n {
            let Some((chunk, used)) = opened.chunks.front() else { return };
            let more = (n - out.len()).min(used - opened.at);
            out.extend_from_slice(&chunk[opened.at..opened.at + more]);
            opened.at += more;
            if opened.at == *used {
                opened.at = 0;
                if let Some((chunk, _)) = opened.chunks.pop_front() {
                    self.spare.lock().push(chunk);
                }
            }
        }
    }

    /// Bytes on the heap.
    pub(crate) fn bytes(&self) -> u64 {
        self.chunks.load(Relaxed) * (CHUNK as u64 * 4 + 16)
    }
}

impl Opened {
    /// Whether everything was taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_has_its_place_two_ahead_at_least_and_a_turn_at_most() {
        for tick in [5u64, 250, 1000] {
            let wheel = Wheel::new(tick << TICK_SHIFT | 12345);
            let place = |due: u64| wheel.place(due << TICK_SHIFT | 999);
            for due in [0, tick - 1, tick, tick + 1] {
                assert_eq!(place(due), (tick + 2) as u8, "{due}");
            }
            for due in [tick + 2, tick + 3, tick + 100, tick + 252, tick + 253] {
                assert_eq!(place(due), (due + 1) as u8, "{due}");
            }
            for due in [tick + 254, tick + 255, tick + 256, tick + 100_000] {
                assert_eq!(place(due), (tick + 254) as u8, "{due}");
            }
        }
    }

    #[test]
    fn chunks_are_counted_taken_in_pieces_and_used_again() {
        let wheel = Wheel::new(0);
        assert_eq!(wheel.bytes(), 0);
        let chunk = 1024 * 4 + 16;
        let mut pushed = 0;
        for (until, chunks) in [(1, 1), (1024, 1), (1025, 2), (3025, 3)] {
            (pushed..until).for_each(|at| wheel.push(7, LineNo(at)));
            assert_eq!(wheel.bytes(), chunks * chunk, "{until}");
            pushed = until;
        }
        for turn in 0..3u64 {
            let mut got = Vec::new();
            for _ in 1..=6 {
                let mut opened = wheel.open((7 + 256 * turn) << TICK_SHIFT).unwrap();
                assert!(opened.is_empty());
                wheel.take(&mut opened, 10, &mut got);
            }
            let mut opened = wheel.open((7 + 256 * turn) << TICK_SHIFT).unwrap();
            assert_eq!(opened.place, 7);
            for n in 1..=304usize {
                let mut some = Vec::new();
                wheel.take(&mut opened, 10, &mut some);
                assert_eq!(
                    some.len(),
                    if n <= 302 {
                        10
                    } else if n == 303 {
                        5
                    } else {
                        0
                    }
                );
                got.extend(some);
            }
            assert!(opened.is_empty() && got == (0..3025).map(LineNo).collect::<Vec<_>>());
            (0..3025).for_each(|at| wheel.push(7, LineNo(at)));
            assert_eq!(wheel.bytes(), 3 * chunk, "chunks are used again");
            while wheel.open((256 * (turn + 1)) << TICK_SHIFT).is_some() {}
        }
    }

    #[test]
    fn an_entry_comes_up_after_its_time_and_within_a_turn() {
        let wheel = Wheel::new(5 << TICK_SHIFT);
        let (soon, late) = (wheel.place(9 << TICK_SHIFT), wheel.place(9999 << TICK_SHIFT));
        assert_eq!((soon, late), (10, (5 + 254) as u8));
        for at in 1..=3000 {
            wheel.push(soon, LineNo(at));
        }
        wheel.push(late, LineNo(7));
        assert!(wheel.open(5 << TICK_SHIFT).is_none());
        let mut got = Vec::new();
        for _ in 6..=10 {
            let mut opened = wheel.open(10 << TICK_SHIFT).expect("due");
            wheel.take(&mut opened, 5000, &mut got);
            assert!(opened.is_empty());
        }
        assert_eq!(got, (1..=3000).map(LineNo).collect::<Vec<_>>());
        assert!(wheel.open(10 << TICK_SHIFT).is_none());
        // After a sleep of many turns each place is opened once.
        let mut places = 0;
        got.clear();
        while let Some(mut opened) = wheel.open(100_000 << TICK_SHIFT) {
            wheel.take(&mut opened, 5000, &mut got);
            places += 1;
        }
        assert_eq!((places, got), (PLACES + 1, vec![LineNo(7)]));
    }
}
