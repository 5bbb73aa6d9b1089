// SPDX-License-Identifier: Apache-2.0
//! The root of a state table, and its words: aligned, eight a line, written by one writer with whole-word stores.

use crate::keys::Keys;
use crate::Error;
use abi::*;
pub(crate) use memory::words::{load, store};
use memory::WordMemory;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words in a line.
pub(crate) const LINE_WORDS: usize = LINE_BYTES as usize / 8;
/// Lines of root and moves.
pub(crate) const ROOT_LINES: u32 = 2;
/// Word that counts moves of full keys.
pub(crate) const MOVES_KEYS: usize = LINE_WORDS + std::mem::offset_of!(StatesMoves, moves_keys) / 8;
/// Word that counts moves of digests.
pub(crate) const MOVES_DIGESTS: usize = LINE_WORDS + std::mem::offset_of!(StatesMoves, moves_digests) / 8;

/// Changes the bits of `mask` in a word to those of `value`, by one store. The table has one writer.
#[inline(always)]
pub(crate) fn set_bits(words: &[AtomicU64], at: usize, mask: u64, value: u64) {
    store(words, at, load(words, at) & !mask | value & mask);
}

/// Counts a word up.
pub(crate) fn count(words: &[AtomicU64], at: usize) {
    store(words, at, load(words, at).wrapping_add(1));
}

macro_rules! word_of {
    ($field:ident) => {
        std::mem::offset_of!(abi::StatesRoot, $field) / 8
    };
}

/// What the root says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) kind: u8,
    pub(crate) salt: u64,
    pub(crate) control: u64,
    pub(crate) keys4: u64,
    pub(crate) keys6: u64,
    pub(crate) cells: u64,
    pub(crate) geometry: u64,
}

impl Root {
    /// Begins a new, empty table in memory that is to have this many lines.
    pub(crate) fn begin(&self, memory: &dyn WordMemory, need: u64) -> Result<(), Error> {
        let have = (memory.words().len() / LINE_WORDS) as u64;
        if need > have || need > u64::from(u32::MAX) {
            return Err(Error::TooSmall { need, have });
        }
        clear(memory.words());
        self.write(memory.words());
        Ok(())
    }

    /// The root and the full keys of the table of this kind that a predecessor left.
    pub(crate) fn left(memory: &dyn WordMemory, kind: u8) -> Result<(Root, Keys), Error> {
        let root = Root::read(memory.words())?;
        if root.kind != kind {
            return Err(Error::OtherKind);
        }
        let mut keys = Keys::new(root.salt, root.keys4, root.keys6);
        keys.attach(memory.words());
        Ok((root, keys))
    }

    /// Writes it; the magic goes last.
    fn write(&self, words: &[AtomicU64]) {
        store(words, word_of!(magic), 0);
        let fields = [
            (word_of!(salt), self.salt),
            (word_of!(control), self.control),
            (word_of!(keys4), self.keys4),
            (word_of!(keys6), self.keys6),
            (word_of!(cells), self.cells),
            (word_of!(geometry), self.geometry),
            (word_of!(layout_hash), layout_hash()),
        ];
        fields.iter().for_each(|(at, value)| store(words, *at, *value));
        store(words, word_of!(magic), STATES_MAGIC + u64::from(self.kind));
    }

    /// Reads it and compares the parts' sizes with the memory.
    pub(crate) fn read(words: &[AtomicU64]) -> Result<Root, Error> {
        let magic = load(words, word_of!(magic));
        if magic & !0xff != STATES_MAGIC {
            return Err(Error::NoTable);
        }
        if load(words, word_of!(layout_hash)) != layout_hash() {
            return Err(Error::Layout);
        }
        let get = |at| load(words, at);
        let root = Root {
            kind: magic as u8,
            salt: get(word_of!(salt)),
            control: get(word_of!(control)),
            keys4: get(word_of!(keys4)),
            keys6: get(word_of!(keys6)),
            cells: get(word_of!(cells)),
            geometry: get(word_of!(geometry)),
        };
        match root.fits(words.len()) {
            true => Ok(root),
            false => Err(Error::Damaged),
        }
    }

    /// Which packets are control packets, as it is now.
    #[inline(always)]
    pub(crate) fn control_now(words: &[AtomicU64]) -> u64 {
        load(words, word_of!(control))
    }

    /// Changes it; readers have the old word or the new one.
    pub(crate) fn set_control(words: &[AtomicU64], control: u64) {
        store(words, word_of!(control), control);
    }

    /// Lines of registers or digests.
    fn cell_lines(&self) -> u64 {
        match self.kind {
            STATES_COMPACT => (self.cells >> 32).div_ceil((self.geometry >> 8 & 0xff).max(1) * LINE_WORDS as u64),
            // Three pieces of 16 bits a bucket, 32 pieces a line.
            _ => ((self.cells >> 32) * 3).div_ceil(32),
        }
    }

    /// The parts: first line and lines of each.
    fn parts(&self) -> [(u64, u64); 3] {
        [(self.keys4, self.keys4 >> 32), (self.keys6, (self.keys6 >> 32) * 2), (self.cells, self.cell_lines())]
            .map(|(word, lines)| (word & 0xffff_ffff, lines))
    }

    /// Lines from the first one to the end of the last part.
    pub(crate) fn lines(&self) -> u64 {
        self.parts()
            .iter()
            .map(|(first, n)| if *n == 0 { 0 } else { first + n })
            .max()
            .unwrap_or(0)
            .max(u64::from(ROOT_LINES))
    }

    fn fits(&self, words: usize) -> bool {
        let geometry = match self.kind {
            STATES_EXACT => self.cells == 0,
            STATES_COMPACT => {
                let (bits, per_word) = (self.geometry & 0xff, self.geometry >> 8 & 0xff);
                let known = (2..=2 + u64::from(STATES_FINGERPRINT_MAX)).contains(&bits);
                known && per_word == 64 / bits && self.geometry >> 16 != 0 && self.cells >> 32 != 0
            }
            STATES_DIGEST => self.cells >> 32 != 0,
            _ => false,
        };
        let behind_root = self.parts().iter().all(|(first, n)| *n == 0 || *first >= u64::from(ROOT_LINES));
        geometry && behind_root && self.lines() <= (words / LINE_WORDS) as u64
    }
}

/// A TABLE_REF word.
pub(crate) fn reference(first: u32, number: u32) -> u64 {
    u64::from(first) | u64::from(number) << TABLE_REF_BUCKETS_SHIFT
}

/// Zeroes everything: a new table begins empty, whatever lay there.
fn clear(words: &[AtomicU64]) {
    words.iter().for_each(|w| w.store(0, Ordering::Relaxed));
}
