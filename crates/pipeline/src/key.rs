// SPDX-License-Identifier: Apache-2.0
//! A packet as match fields: one flat array of 64-bit words, and masks of the same shape.
//!
//! Every field that a flow can match or an action can write has fixed bits in it ([`crate::Field`]): metadata and registers
//! first, then layer 2, layer 3, layer 4, in the order in which a staged lookup consults them. Fields of protocols that exclude each other share
//! bits exactly where Open vSwitch lets them share (the ARP opcode and the IP protocol; ARP and ND hardware addresses; ICMP
//! type and code and the ports), because a program can see that.
//!
//! A pipeline uses few of the words: [`crate::Pipeline::words_used`] says which, so that tables over keys leave the others out.
use crate::field::Field;

/// Words in a key.
pub const WORDS: usize = 48;

/// Where the stages of a staged lookup end (exclusive): metadata, layer 2, layer 3, layer 4.
pub const STAGES: [usize; 4] = [26, 31, 42, WORDS];

/// The match fields of a packet and its metadata.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(pub [u64; WORDS]);

/// Which bits of a [`Key`] count.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mask(pub [u64; WORDS]);

impl Default for Key {
    fn default() -> Key {
        Key([0; WORDS])
    }
}

impl Default for Mask {
    fn default() -> Mask {
        Mask([0; WORDS])
    }
}

impl Key {
    /// The value of a field, right-aligned.
    #[inline]
    pub fn get(&self, field: Field) -> u128 {
        get(&self.0, field)
    }

    /// Writes a field; bits above its width are ignored.
    #[inline]
    pub fn set(&mut self, field: Field, value: u128) {
        set(&mut self.0, field, value)
    }

    /// The key with all bits outside the mask cleared.
    pub fn masked(&self, mask: &Mask) -> Key {
        let mut out = *self;
        for (word, m) in out.0.iter_mut().zip(&mask.0) {
            *word &= m;
        }
        out
    }

    /// Whether both keys agree on every bit of the mask.
    pub fn agrees(&self, other: &Key, mask: &Mask) -> bool {
        self.0.iter().zip(&other.0).zip(&mask.0).all(|((a, b), m)| (a ^ b) & m == 0)
    }
}

impl Mask {
    /// A mask of whole fields.
    pub fn of(fields: &[Field]) -> Mask {
        let mut mask = Mask::default();
        for field in fields {
            mask.add(*field);
        }
        mask
    }

    /// All bits.
    pub fn all() -> Mask {
        Mask([!0; WORDS])
    }

    /// Whether no bit is set.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|w| *w == 0)
    }

    /// Adds all bits of a field.
    pub fn add(&mut self, field: Field) {
        self.add_bits(field, u128::MAX);
    }

    /// Adds the given bits of a field (right-aligned).
    pub fn add_bits(&mut self, field: Field, bits: u128) {
        let before = get(&self.0, field);
        set(&mut self.0, field, before | bits);
    }

    /// Removes all bits of a field.
    pub fn remove(&mut self, field: Field) {
        set(&mut self.0, field, 0);
    }

    /// The bits of a field that are in the mask, right-aligned.
    pub fn get(&self, field: Field) -> u128 {
        get(&self.0, field)
    }

    /// Adds all bits of another mask.
    #[inline]
    pub fn merge(&mut self, other: &Mask) {
        for (word, o) in self.0.iter_mut().zip(&other.0) {
            *word |= o;
        }
    }

    /// Whether every bit is in the other one too.
    pub fn is_subset(&self, other: &Mask) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| a & !b == 0)
    }

    /// Whether the masks have a bit in common.
    pub fn intersects(&self, other: &Mask) -> bool {
        self.0.iter().zip(&other.0).any(|(a, b)| a & b != 0)
    }

    /// Bit N says that word N has a bit set.
    pub fn words(&self) -> u64 {
        self.0.iter().enumerate().fold(0, |map, (n, w)| map | (u64::from(*w != 0) << n))
    }

    /// How many bits are set.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|w| w.count_ones()).sum()
    }
}

#[inline]
fn get(words: &[u64; WORDS], field: Field) -> u128 {
    let info = field.info();
    let word = usize::from(info.word);
    if info.stored == 128 {
        return u128::from(words[word]) << 64 | u128::from(words[word + 1]);
    }
    u128::from(words[word] >> info.shift & low64(info.stored))
}

#[inline]
fn set(words: &mut [u64; WORDS], field: Field, value: u128) {
    let info = field.info();
    let word = usize::from(info.word);
    if info.stored == 128 {
        words[word] = (value >> 64) as u64;
        words[word + 1] = value as u64;
        return;
    }
    let mask = low64(info.stored) << info.shift;
    words[word] = words[word] & !mask | (value as u64) << info.shift & mask;
}

/// The low `bits` bits of a word.
pub(crate) fn low64(bits: u8) -> u64 {
    match bits {
        64.. => u64::MAX,
        n => (1 << n) - 1,
    }
}

/// The low `bits` bits of a double word.
pub(crate) fn low128(bits: u8) -> u128 {
    match bits {
        128.. => u128::MAX,
        n => (1 << n) - 1,
    }
}

/// Only what is not zero, field by field.
impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        debug(&self.0, f)
    }
}

/// Only what is not zero, field by field.
impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        debug(&self.0, f)
    }
}

fn debug(words: &[u64; WORDS], f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    let mut map = f.debug_map();
    for field in Field::all().filter(|field| field.info().primary) {
        let value = get(words, field);
        if value != 0 {
            map.entry(&field.info().name, &format_args!("{value:#x}"));
        }
    }
    map.finish()
}
