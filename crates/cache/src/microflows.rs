// SPDX-License-Identifier: Apache-2.0
//! Which entries answered a header last time.
//!
//! # Problem
//! A lookup that walks finds one entry after the other: what the first one writes says where the second one is looked for. Each walk hashes by several
//! sets of masks and reads lines that lead nowhere. Headers come again, and the same entries answer them until one of those goes.
//!
//! # The structure
//! Cells of 16 bytes, four a cache line, in the line that a header's hash names: 24 bits of the hash and up to [`Microflows::MOST`] slots, 20 bits each. Beside each
//! cell lies the header for which it was written, and when its entries were born ([`crate::segment::Entry::born`]). A cell is a guess and no answer. So it may be old or belong
//! to another header, and nothing has to be told when entries come or go; a wrong one costs a comparison.
//!
//! The chain that answered a header answers every header that agrees with it on the bits on which any of the entries depends, as they stand at the start: their
//! masks, moved back through what the entries before them write. If the header agrees on these and each entry is still the one that was born
//! then, the answer is right, and no entry has to be compared and nothing written in between. That is one comparison for a chain instead of one an
//! entry, and a line of memory an entry instead of four.
//!
//! What a guess can be is late: an entry that stands for more lookups came since, and a walk would have taken that. Both are right.
//!
//! # What is hashed and kept
//! The words on which some remembered chain depends, under the bits on which any of them does, and of those only words in which headers were ever
//! seen to differ: five to seven in the programs that were measured, which is one line or two. The others must be as in the first header that was remembered. The set only grows, at most to
//! all bits of a key; when it does, everything is forgotten.
use crate::adaptive::in_sample;
use crate::ltm::{identity, Ltm};
use crate::words::{Words, WORDS};
use pipeline::{Key, Mask, Need};
use tables::ZeroedLines;

/// The words of a header that count, packed; zeros behind them as far as headers are kept.
pub(crate) type Header = [u64; WORDS + 8];
/// A header of which nothing counts.
pub(crate) const EMPTY: Header = [0; WORDS + 8];

/// What may answer a header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guess {
    /// Entries by table and slot, as one number each; 0 ends them.
    pub slots: [u32; Microflows::MOST],
    /// What [`Microflows::learn`] was told.
    pub sampled: bool,
    /// Where it lies, for [`Microflows::generations`].
    pub cell: u32,
}

/// When the entries of a chain were born, in one number: in one and the same order of the entries, each is added behind the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generations(u128);

impl Generations {
    /// A birth is less than this.
    pub const LIMIT: u32 = 1 << Generations::BITS;
    const BITS: u32 = 25;

    /// Adds an entry.
    #[inline(always)]
    pub fn add(&mut self, born: u32) {
        self.0 = self.0 << Generations::BITS | u128::from(born);
    }
}

/// Chains by header.
#[derive(Debug)]
pub(crate) struct Microflows {
    /// Lines of cells, four words of which hold the hash and two slots each, and four the other three slots and [`SAMPLED`]; as many as a power of two, or none.
    cells: Option<ZeroedLines>,
    count: usize,
    /// What lies beside the cells, so many lines each: the births, then the words of the header.
    kept: Option<ZeroedLines>,
    stride: usize,
    seed: u64,
    /// What is hashed and kept: two words as one where their masks have no bit in common, else one, and an empty mask. An even number of them.
    words: Vec<[(u8, u64); 2]>,
    /// Words in which all headers are the same: mask and value.
    same: Vec<(u8, u64, u64)>,
    /// Bits on which remembered chains depend.
    matched: Words,
    /// A header, and the bits in which others were not like it.
    first: Option<Box<Words>>,
    differ: Words,
    /// Bits of a slot's number within its table.
    shift: u32,
    /// Slots of all tables have a number.
    fits: bool,
    lines_wanted: usize,
    turn: u64,
    off: bool,
}

/// An odd number with bits everywhere.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

const SLOT_BITS: u32 = 20;
const HASH_BITS: u32 = 24;
const SLOT: u64 = (1 << SLOT_BITS) - 1;
const SAMPLED: u32 = 63;
/// Cells of a line.
const CELLS: usize = 4;
/// Words beside a cell before those of the header.
const HEAD: usize = 2;

impl Microflows {
    /// Entries of a chain at most; longer ones are not remembered.
    pub const MOST: usize = 5;
    /// Cells an entry of the cache: few entries answer many headers.
    const CELLS_AN_ENTRY: usize = 16;
    /// Lines at most: 16 MiB of them, and 64 beside them for each line that a header takes.
    const LINES_MAX: usize = 1 << 18;

    /// For a cache of so many tables with so many entries each.
    pub fn new(tables: usize, limit: usize, seed: u64) -> Microflows {
        let shift = limit.max(2).next_power_of_two().trailing_zeros();
        let fits = tables << shift < SLOT as usize;
        let lines_wanted = (tables * limit * Microflows::CELLS_AN_ENTRY / CELLS).next_power_of_two();
        Microflows {
            cells: None,
            count: 0,
            kept: None,
            stride: 0,
            seed: seed ^ 0x5bd1_e995_9e37_79b9,
            words: Vec::new(),
            same: Vec::new(),
            matched: [0; WORDS],
            first: None,
            differ: [0; WORDS],
            shift,
            fits,
            lines_wanted: lines_wanted.clamp(16, Microflows::LINES_MAX),
            turn: 0,
            off: false,
        }
    }

    /// Forgets everything, and remembers from now on or not.
    pub fn switch(&mut self, on: bool) {
        self.off = !on;
        self.forget();
    }

    /// Whether anything may be remembered.
    pub fn knows(&self) -> bool {
        self.cells.is_some()
    }

    /// Forgets everything.
    pub fn forget(&mut self) {
        self.cells = None;
        self.count = 0;
    }

    /// Whether a chain would be remembered.
    pub fn takes(&self, chain: &[(u8, u32)]) -> bool {
        !self.off && self.fits && !chain.is_empty() && chain.len() <= Microflows::MOST
    }

    /// Packs the words of keys that count, and hashes them. What lies behind the packed words in `headers` is left as it is: [`Microflows::header_words`].
    // Word by word over all keys: which words they are and under which masks stays in registers, and no key waits for another.
    #[inline]
    pub fn hash(&self, keys: &[Key], headers: &mut [Header], hashes: &mut [u64]) {
        hashes.fill(self.seed);
        let mut turned = self.seed;
        for (at, pair) in self.words.chunks_exact(2).enumerate() {
            let [[a, c], [b, d]] = [pair[0], pair[1]];
            let all = keys.iter().zip(headers.iter_mut()).zip(hashes.iter_mut());
            match c.1 | d.1 {
                0 => all.for_each(|((Key(key), header), sum)| {
                    pack((masked(key, a), masked(key, b)), turned, header, at, sum);
                }),
                _ => all.for_each(|((Key(key), header), sum)| {
                    let words = (masked(key, a) | masked(key, c), masked(key, b) | masked(key, d));
                    pack(words, turned, header, at, sum);
                }),
            }
            turned = turned.rotate_left(29).wrapping_add(FACTOR);
        }
        hashes.iter_mut().for_each(|sum| *sum = finished(*sum));
    }

    /// Whether keys are in all words as headers always were that were seen to be the same in all of them.
    #[inline]
    pub fn as_always(&self, keys: &[Key]) -> bool {
        let mut other = 0;
        for &(i, mask, value) in &self.same {
            keys.iter().for_each(|key| other |= masked(&key.0, (i, mask)) ^ value);
        }
        other == 0
    }

    /// How many words [`Microflows::hash`] writes of a header; those behind them have to be zero for [`Microflows::generations`].
    pub fn header_words(&self) -> usize {
        self.words.len()
    }

    #[inline]
    fn line(&self, hash: u64) -> usize {
        (hash >> HASH_BITS) as usize & (self.count.wrapping_sub(1))
    }

    /// Asks for what [`Microflows::find`] reads.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        tables::prefetch(self.cells.as_ref().and_then(|cells| cells.get(self.line(hash))));
    }

    /// What may answer a header of this hash. Asks for what lies beside it.
    #[inline]
    pub fn find(&self, hash: u64) -> Option<Guess> {
        let at = self.line(hash);
        let line = self.cells.as_ref()?.get(at)?;
        let name = Self::name(hash);
        // All cells at once: which one it is cannot be foretold.
        let is = |n: usize| u32::from(line[n] ^ name << (64 - HASH_BITS) < 1 << (64 - HASH_BITS)) << n;
        let found = is(0) | is(1) | is(2) | is(3);
        let n = found.trailing_zeros() as usize % CELLS;
        let (low, high) = (line[n], line[CELLS + n]);
        if found == 0 {
            return None;
        }
        let slot = |word: u64, n: u32| (word >> (n * SLOT_BITS) & SLOT) as u32;
        let slots = [slot(low, 0), slot(low, 1), slot(high, 0), slot(high, 1), slot(high, 2)];
        let cell = at * CELLS + n;
        for n in 0..self.stride {
            tables::prefetch(self.kept.as_ref()?.get(cell * self.stride + n));
        }
        Some(Guess { slots, sampled: high >> SAMPLED != 0, cell: cell as u32 })
    }

    /// The bits of a hash that a cell holds; never 0, which is an empty cell.
    #[inline]
    fn name(hash: u64) -> u64 {
        (hash & ((1 << HASH_BITS) - 1)).max(1)
    }

    /// The table and the slot of an element of a guess.
    #[inline]
    pub fn place(&self, number: u32) -> (u8, u32) {
        let number = number.wrapping_sub(1);
        ((number >> self.shift) as u8, number & ((1 << self.shift) - 1))
    }

    /// When those entries were born that answer a key which is [as always](Microflows::as_always), if what lies there is its header's: [`Microflows::hash`] made
    /// `header` of it.
    #[inline(always)]
    pub fn generations(&self, cell: u32, header: &Header) -> Option<Generations> {
        let from = cell as usize * self.stride;
        let lines = self.kept.as_ref()?;
        let first = lines.get(from)?;
        // Words beyond those that count are zero in what is kept, and in the header.
        let mut other = 0;
        for n in HEAD..8 {
            other |= first[n] ^ header[n - HEAD];
        }
        for line in 1..self.stride {
            let kept = lines.get(from + line)?;
            let header = header.get(8 * line - HEAD..)?.first_chunk::<8>()?;
            for n in 0..8 {
                other |= kept[n] ^ header[n];
            }
        }
        (other == 0).then_some(Generations(u128::from(first[1]) << 64 | u128::from(first[0])))
    }

    /// Remembers what answered a header ([`Microflows::takes`] it). `depends` are the bits of the header on which the chain depends; `sampled` is anything that
    /// is to come back with the guess.
    pub fn learn(&mut self, key: &Key, chain: &[(u8, u32)], depends: &Words, generations: Generations, sampled: bool) {
        self.widen(&key.0, depends);
        if self.with_memory().is_none() {
            // Then nothing is remembered; lookups walk.
            return self.switch(false);
        }
        let (mut header, mut hash) = ([EMPTY], [0]);
        self.hash(std::slice::from_ref(key), &mut header, &mut hash);
        let ([header], [hash]) = (header, hash);
        let mut slots = [0; Microflows::MOST];
        for (slot, &(table, number)) in slots.iter_mut().zip(chain) {
            *slot = (u64::from(table) << self.shift | u64::from(number)) + 1;
        }
        let name = Self::name(hash);
        let low = name << (64 - HASH_BITS) | slots[1] << SLOT_BITS | slots[0];
        let high = u64::from(sampled) << SAMPLED | slots[4] << (2 * SLOT_BITS) | slots[3] << SLOT_BITS | slots[2];
        let line = self.line(hash);
        let (Some(cells), Some(kept)) = (&mut self.cells, &mut self.kept) else { return };
        let Some(cells) = cells.get_mut(line) else { return };
        let same = cells[..CELLS].iter().position(|cell| *cell >> (64 - HASH_BITS) == name || *cell == 0);
        self.turn = self.turn.wrapping_add(1);
        let n = same.unwrap_or(self.turn as usize % CELLS);
        (cells[n], cells[CELLS + n]) = (low, high);
        // Also what lies behind the header's words, which are zero there.
        let mut words = [generations.0 as u64, (generations.0 >> 64) as u64].into_iter().chain(header);
        for part in 0..self.stride {
            if let Some(kept) = kept.get_mut((line * CELLS + n) * self.stride + part) {
                kept.iter_mut().zip(&mut words).for_each(|(kept, word)| *kept = word);
            }
        }
    }

    /// Sees to it that there is memory for cells and for headers of this length; none if the kernel gives none.
    fn with_memory(&mut self) -> Option<()> {
        let stride = (HEAD + self.words.len()).div_ceil(8);
        if self.cells.is_none() {
            (self.cells, self.count) = (Some(ZeroedLines::new(self.lines_wanted).ok()?), self.lines_wanted);
        }
        if self.kept.is_none() || self.stride < stride {
            (self.kept, self.stride) = (Some(ZeroedLines::new(self.count * CELLS * stride).ok()?), stride);
        }
        Some(())
    }

    /// Adds to what counts; if that is more than before, everything is forgotten.
    fn widen(&mut self, key: &Words, depends: &Words) {
        let first = self.first.get_or_insert_with(|| Box::new(*key));
        let mut grown = false;
        for n in 0..WORDS {
            let (differ, matched) = (self.differ[n] | first[n] ^ key[n], self.matched[n] | depends[n]);
            grown |= matched != self.matched[n] || self.differ[n] & matched == 0 && differ & matched != 0;
            (self.differ[n], self.matched[n]) = (differ, matched);
        }
        if grown {
            let told = |i: &usize| self.differ[*i] & self.matched[*i] != 0;
            self.words.clear();
            for (i, mask) in (0..WORDS).filter(told).map(|i| (i as u8, self.matched[i])) {
                match self.words.iter_mut().find(|[a, b]| b.1 == 0 && a.1 & mask == 0) {
                    Some([_, second]) => *second = (i, mask),
                    None => self.words.push([(i, mask), (0, 0)]),
                }
            }
            // They are taken two by two.
            self.words.extend((self.words.len() % 2 == 1).then_some([(0, 0); 2]));
            let same = (0..WORDS).filter(|i| !told(i) && self.matched[*i] != 0);
            self.same = same.map(|i| (i as u8, self.matched[i], first[i] & self.matched[i])).collect();
            self.forget();
        }
    }
}

impl Ltm {
    /// Remembers what answered a key. Returns whether its traversal is in the sample of the adaptive cache.
    pub(crate) fn remember(&mut self, key: &Key, chain: &[(u8, u32)]) -> bool {
        let sampled = in_sample(identity(self.entries(chain)));
        if self.microflows.takes(chain) {
            let mut generations = Generations::default();
            self.entries(chain).for_each(|entry| generations.add(entry.born));
            self.microflows.learn(key, chain, &self.depends(chain).0, generations, sampled);
        }
        sampled
    }

    /// The bits of a key, as it is at the start, on which it depends that these entries answer it.
    fn depends(&self, chain: &[(u8, u32)]) -> Mask {
        let mut need = Need::default();
        for (n, &(table, slot)) in chain.iter().enumerate().rev() {
            let table = &self.tables[usize::from(table)];
            let (Some(entry), Some(words)) = (table.value(slot), table.words(slot)) else { continue };
            if n + 1 < chain.len() {
                need.before(&entry.action.ops);
            }
            words.iter().for_each(|&(word, mask)| need.mask.0[usize::from(word)] |= mask);
        }
        need.mask
    }

    /// The next [`crate::segment::Entry::born`].
    pub(crate) fn birth(&mut self) -> u32 {
        if !self.microflows.fits {
            return 0;
        }
        if self.generations + 1 == Generations::LIMIT {
            self.renumber_generations();
        }
        self.generations += 1;
        self.generations
    }

    /// Begins with the numbers anew: nothing may be left that has an old one. There are fewer entries than numbers, since each has a number of
    /// [`SLOT_BITS`] as well.
    #[cold]
    fn renumber_generations(&mut self) {
        self.microflows.forget();
        self.generations = 0;
        for table in &mut self.tables {
            for slot in 0..table.slots() {
                if let Some(entry) = table.value_mut(slot) {
                    self.generations += 1;
                    entry.born = self.generations;
                }
            }
        }
    }
}

/// Puts two words of a header in their place and mixes them into its hash, so that one multiplication mixes both.
#[inline(always)]
fn pack((a, b): (u64, u64), turned: u64, header: &mut Header, at: usize, sum: &mut u64) {
    (header[2 * at], header[2 * at + 1]) = (a, b);
    let product = u128::from(a ^ turned) * u128::from(b ^ FACTOR);
    *sum = sum.wrapping_add(product as u64 ^ (product >> 64) as u64);
}

#[inline(always)]
fn finished(sum: u64) -> u64 {
    let sum = sum.wrapping_mul(FACTOR);
    sum ^ sum >> 29
}

/// A word of a key under a mask.
#[inline(always)]
fn masked(key: &Words, (word, mask): (u8, u64)) -> u64 {
    key[usize::from(word)] & mask
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_xoshiro::SplitMix64;

    fn generations(n: u64) -> Generations {
        let mut generations = Generations::default();
        [n as u32, 7, Generations::LIMIT - 1, 9, 11].into_iter().for_each(|born| generations.add(born));
        generations
    }

    fn hash(microflows: &Microflows, key: &Words) -> (u64, Header) {
        let (mut header, mut hash) = ([EMPTY], [0]);
        microflows.hash(&[Key(*key)], &mut header, &mut hash);
        (hash[0], header[0])
    }

    fn find(microflows: &Microflows, key: &Words) -> Option<Guess> {
        microflows.find(hash(microflows, key).0)
    }

    /// What is said of a key, which may have the hash of another one.
    fn said(microflows: &Microflows, guess: &Guess, key: &Words) -> Option<Generations> {
        let known = microflows.generations(guess.cell, &hash(microflows, key).1);
        known.filter(|_| microflows.as_always(&[Key(*key)]))
    }

    fn places(microflows: &Microflows, guess: Guess) -> Vec<(u8, u32)> {
        guess.slots.iter().take_while(|s| **s != 0).map(|s| microflows.place(*s)).collect()
    }

    #[test]
    fn what_was_learned_is_found_and_of_other_headers_nothing_is_said() {
        let mut microflows = Microflows::new(4, 1000, 3);
        let mut depends = [0; WORDS];
        (depends[1], depends[7]) = (!0, 0xff);
        let header = |n: u64| {
            let mut key = [0; WORDS];
            (key[1], key[7], key[9]) = (n, n << 8 | 5, n);
            key
        };
        let chain = |n: u64| vec![(0, n as u32), (2, 999), (3, (n % 7) as u32)];
        for _ in 0..2 {
            (0..500).for_each(|n| microflows.learn(&Key(header(n)), &chain(n), &depends, generations(n), n % 3 == 0));
        }
        for n in 0..500 {
            let guess = find(&microflows, &header(n)).expect("there is room for all");
            assert_eq!((places(&microflows, guess), guess.sampled), (chain(n), n % 3 == 0));
            assert_eq!(said(&microflows, &guess, &header(n)), Some(generations(n)));
            // Neither where headers differ nor where none did so far; what nobody depends on does not count.
            for (word, bit, same) in [(1, 1 << 40, false), (7, 1, false), (7, 1 << 8, true), (9, 1, true)] {
                let mut other = header(n);
                other[word] ^= bit;
                assert_eq!(said(&microflows, &guess, &other).is_some(), same, "word {word}");
            }
        }
        assert_eq!(
            (&microflows.words[..], &microflows.same[..]),
            (&[[(1, !0), (0, 0)], [(0, 0); 2]][..], &[(7, 0xff, 5)][..])
        );
        assert!(find(&microflows, &header(501)).is_none());
        microflows.switch(false);
        assert!(!microflows.takes(&chain(1)) && find(&microflows, &header(1)).is_none());
    }

    #[test]
    fn when_numbers_of_births_run_out_no_entry_keeps_an_old_one() {
        use crate::ltm::{Eviction, Unchanged};
        use crate::segment::{Tags, Walk};
        let text: String = (0..6).map(|n| format!("in_port={n} actions=output:9\n")).collect();
        let pipeline = pipeline::text::import(&text, &Default::default()).unwrap().pipeline;
        let (mut tags, mut ltm) = (Tags::default(), Ltm::new(1, 3, Eviction::Lru, 1));
        let mut put = |ltm: &mut Ltm, port: u64| {
            let mut key = Key::default();
            key.set(pipeline::Field::InPort, port.into());
            let traversal = pipeline.pass(&pipeline::Entry::table(0), &key);
            let segment = Walk::new(&traversal).whole(pipeline.version(), &mut tags).unwrap();
            ltm.install_whole(&segment, 0);
        };
        (0..2).for_each(|port| put(&mut ltm, port));
        let (tag, key) = ltm.tables[0].example(0).unwrap();
        ltm.remember(&key, &[(0, 0)]);
        ltm.generations = Generations::LIMIT - 2;
        // One more number, and then they begin anew, for all that are there.
        let generations = |ltm: &Ltm| (0..3).filter_map(|s| ltm.tables[0].value(s).map(|e| e.born)).collect::<Vec<_>>();
        put(&mut ltm, 2);
        assert_eq!(generations(&ltm), [1, 2, Generations::LIMIT - 1]);
        put(&mut ltm, 3);
        let mut after = generations(&ltm);
        after.sort_unstable();
        assert_eq!((after, ltm.generations), (vec![2, 3, 4], 4));
        assert!(find(&ltm.microflows, &key.0).is_none(), "what was remembered has the old numbers");
        let mut batch = crate::batch::Batch::default();
        ltm.lookup_batch(tag, &[key], 0, Unchanged(pipeline.version()).0, &mut batch);
    }

    #[test]
    fn when_more_counts_what_was_kept_is_forgotten() {
        let mut microflows = Microflows::new(1, 1000, 3);
        let header = |n: u64, kind: u64| {
            let mut key = [0; WORDS];
            (key[1], key[2]) = (n, kind);
            key
        };
        let mut depends = [0; WORDS];
        depends[1] = 0xff;
        let chain = [(0, 1), (0, 2)];
        microflows.learn(&Key(header(0, 4)), &chain, &depends, generations(0), false);
        microflows.learn(&Key(header(1, 4)), &chain, &depends, generations(1), false);
        assert!(find(&microflows, &header(1, 4)).is_some());
        // From now on another word counts, in which all headers are the same so far.
        depends[2] = 0xf;
        microflows.learn(&Key(header(2, 4)), &chain, &depends, generations(2), false);
        assert!(find(&microflows, &header(1, 4)).is_none());
        microflows.learn(&Key(header(1, 4)), &chain, &depends, generations(3), false);
        let guess = find(&microflows, &header(1, 4)).unwrap();
        assert_eq!(said(&microflows, &guess, &header(1, 4)), Some(generations(3)));
        assert!(said(&microflows, &guess, &header(1, 5)).is_none());
        // A header that differs there.
        microflows.learn(&Key(header(1, 5)), &chain, &depends, generations(4), false);
        assert!(find(&microflows, &header(1, 4)).is_none() && find(&microflows, &header(1, 5)).is_some());
    }

    #[test]
    fn headers_of_any_length_are_kept_whole_and_it_never_grows() {
        let mut microflows = Microflows::new(1, 8, 3);
        let mut random = SplitMix64::seed_from_u64(1);
        for n in 0..10_000 {
            let key: Words = std::array::from_fn(|_| random.next_u64());
            let mut depends = [0; WORDS];
            depends[n as usize % WORDS] = !0;
            microflows.learn(&Key(key), &[(0, 7), (0, 6)], &depends, generations(n), false);
            let guess = find(&microflows, &key).unwrap();
            assert_eq!(
                (places(&microflows, guess), said(&microflows, &guess, &key)),
                (vec![(0, 7), (0, 6)], Some(generations(n)))
            );
            for word in 0..WORDS {
                let mut other = key;
                other[word] ^= 1 << (n % 64);
                let counts = microflows.matched[word] != 0;
                assert_eq!(said(&microflows, &guess, &other).is_none(), counts, "step {n}, word {word}");
            }
        }
        assert_eq!((microflows.count, microflows.stride), (32, 7));

        // Too long for a cell, and too many entries for their numbers.
        assert!(!microflows.takes(&[(0, 1); 6]) && microflows.takes(&[(0, 1); 5]) && !microflows.takes(&[]));
        assert!(!Microflows::new(2, 1 << 20, 3).takes(&[(0, 1)]));
    }
}
