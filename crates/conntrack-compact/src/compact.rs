// SPDX-License-Identifier: Apache-2.0
//! [`Compact`]: the paper's state compression (§4.2, Fig. 4 and 5).
//!
//! A connection's state lies in the register that its hash names, with nothing that says whose it is. If another connection has
//! that register, the agent chooses a free one and enters the full key with its number in the collision table. Registers stand
//! in stages; a collided connection gets one of its own stage or a later one, since a packet only goes forward through a pipeline.
//! So every *known* connection is exact. A packet of an *unknown* connection finds the state of whoever has its register: it is
//! accepted with the share of registers in state 2. Fingerprint bits beside the state halve that share each.

use crate::keys::Keys;
use crate::root::{load, reference, set_bits, Root, LINE_WORDS, ROOT_LINES};
use crate::table::{Connections, Lost};
use crate::{Error, Key, Placed, Reader, Recovered, State, StateTable, Usage, WordMemory, Writes};
use abi::*;
use std::sync::atomic::AtomicU64;
use std::sync::Arc;

/// Random registers that are tried before a free one is searched for.
const GUESSES: u64 = 32;

/// How large a compact table is.
#[derive(Clone, Copy, Debug)]
pub struct CompactOptions {
    /// Registers of all stages together.
    pub registers: u32,
    /// Stages, 1–255.
    pub stages: u8,
    /// Fingerprint bits, 0–16.
    pub fingerprint: u8,
    /// Collided IPv4 connections.
    pub collisions4: u64,
    /// Collided IPv6 connections.
    pub collisions6: u64,
    /// Salt of the hashes: random, and never told to a tenant.
    pub salt: u64,
    /// Control packets: [`crate::PAPER`] or [`crate::CAREFUL`].
    pub control: u64,
}

/// The registers, as a reader sees them.
#[derive(Clone, Copy)]
pub(crate) struct Cells {
    first: u32,
    pub(crate) number: u32,
    bits: u32,
    per_word: u32,
    stages: u32,
}

impl Cells {
    #[inline(always)]
    pub(crate) fn new(root: &Root) -> Cells {
        Cells {
            first: root.cells as u32,
            number: (root.cells >> 32) as u32,
            bits: root.geometry as u32 & 0xff,
            per_word: (root.geometry >> 8) as u32 & 0xff,
            stages: (root.geometry >> 16) as u32,
        }
    }

    #[inline(always)]
    fn place(&self, at: u32) -> (usize, u32) {
        (self.first as usize * LINE_WORDS + (at / self.per_word) as usize, at % self.per_word * self.bits)
    }

    /// A cell: state, above it the fingerprint. 0 if there is no such cell.
    #[inline(always)]
    pub(crate) fn get(&self, words: &[AtomicU64], at: u32) -> u32 {
        if at >= self.number {
            return 0;
        }
        let (word, shift) = self.place(at);
        (load(words, word) >> shift) as u32 & ((1 << self.bits) - 1)
    }

    fn set(&self, words: &[AtomicU64], at: u32, cell: u32) {
        let (word, shift) = self.place(at);
        set_bits(words, word, ((1 << self.bits) - 1) << shift, u64::from(cell) << shift);
    }

    #[inline(always)]
    fn bucket(&self, hash: u64) -> u32 {
        bucket_of(hash, self.number)
    }

    #[inline(always)]
    fn fingerprint(&self, hash: u64) -> u32 {
        hash as u32 & ((1 << (self.bits - 2)) - 1)
    }

    /// The state that a packet with this hash finds.
    #[inline(always)]
    pub(crate) fn state_in_bucket(&self, words: &[AtomicU64], hash: u64) -> u8 {
        let cell = self.get(words, self.bucket(hash));
        if cell >> 2 == self.fingerprint(hash) {
            cell as u8 & 3
        } else {
            STATES_NONE
        }
    }

    /// First register of the stage that this one stands in.
    fn stage_begin(&self, at: u32) -> u32 {
        let (n, stages) = (u64::from(self.number), u64::from(self.stages));
        let stage = u64::from(at) * stages / n;
        (stage * n).div_ceil(stages) as u32
    }
}

/// A compact table's writer.
pub struct Compact {
    memory: Arc<dyn WordMemory>,
    root: Root,
    cells: Cells,
    keys: Keys,
    used: u64,
}

impl Compact {
    pub(crate) fn layout(o: &CompactOptions) -> Result<(Root, u64), Error> {
        if o.registers == 0 || o.stages == 0 || u32::from(o.fingerprint) > STATES_FINGERPRINT_MAX {
            return Err(Error::Damaged);
        }
        let (keys4, keys6, first) = Keys::layout(ROOT_LINES, o.collisions4, o.collisions6);
        let bits = 2 + u64::from(o.fingerprint);
        let geometry = bits | (64 / bits) << 8 | u64::from(o.stages) << 16;
        let lines = u64::from(o.registers).div_ceil(64 / bits * LINE_WORDS as u64);
        let cells = reference(first.min(u64::from(u32::MAX)) as u32, o.registers);
        let root = Root { kind: STATES_COMPACT, salt: o.salt, control: o.control, keys4, keys6, cells, geometry };
        Ok((root, first + lines))
    }

    /// Lines that a table of this size takes.
    pub fn lines(o: &CompactOptions) -> Result<u64, Error> {
        Compact::layout(o).map(|(_, lines)| lines)
    }

    /// A new, empty table.
    pub fn create(memory: Arc<dyn WordMemory>, o: &CompactOptions) -> Result<Compact, Error> {
        let (root, need) = Compact::layout(o)?;
        root.begin(&*memory, need)?;
        Compact::attach(memory)
    }

    /// The table that a predecessor left. Call [`Writes::recover`] before anything else.
    pub fn attach(memory: Arc<dyn WordMemory>) -> Result<Compact, Error> {
        let (root, keys) = Root::left(&*memory, STATES_COMPACT)?;
        let cells = Cells::new(&root);
        let used = (0..cells.number).filter(|at| cells.get(memory.words(), *at) != 0).count() as u64;
        Ok(Compact { memory, root, cells, keys, used })
    }

    /// The register that a key's hash names, and its fingerprint. Two keys with the same pair cannot be told apart by the registers.
    pub fn bucket(&self, key: &Key) -> (u32, u32) {
        let hash = key.hash(self.root.salt);
        (self.cells.bucket(hash), self.cells.fingerprint(hash))
    }

    /// The register of a connection that is in the table, and its fingerprint.
    pub fn place_of(&self, key: &Key) -> (u32, u32) {
        (self.register(key), self.bucket(key).1)
    }

    fn words(&self) -> &[AtomicU64] {
        self.memory.words()
    }

    fn cell(&self, key: &Key, state: State) -> u32 {
        self.cells.fingerprint(key.hash(self.root.salt)) << 2 | state as u32
    }

    /// A free register of this one's stage or a later one.
    fn free(&self, bucket: u32, hash: u64) -> Option<u32> {
        let begin = self.cells.stage_begin(bucket);
        let room = self.cells.number - begin;
        let guess = |i| begin + bucket_of(hash1(hash, i), room);
        let empty = |at: &u32| self.cells.get(self.words(), *at) == 0;
        (0..GUESSES).map(guess).find(empty).or_else(|| (begin..self.cells.number).find(empty))
    }

    /// The register of a connection that is in the table.
    fn register(&self, key: &Key) -> u32 {
        match self.keys.get(self.words(), key) {
            Some(value) => value.wrapping_sub(1),
            None => self.cells.bucket(key.hash(self.root.salt)),
        }
    }

    fn settle(&mut self, key: &Key, cell: u32, bucket: u32, hash: u64) -> Result<Placed, Error> {
        let at = self.free(bucket, hash).ok_or(Error::Full)?;
        // The register first: it is found only by the key's entry.
        self.cells.set(self.words(), at, cell);
        let memory = self.memory.clone();
        if let Err(full) = self.keys.insert(memory.words(), key, at + 1) {
            self.cells.set(self.words(), at, 0);
            return Err(full);
        }
        Ok(Placed::Stable(at))
    }

    fn forget_key(&mut self, key: &Key) {
        let memory = self.memory.clone();
        self.keys.set(memory.words(), key, 0);
    }

    /// Marks what a key that stands in the table by itself owns. False: nothing that is free to be owned.
    fn own(&self, owned: &mut [u64], at: u32, cell: u32, found: &mut Recovered) -> bool {
        let (word, bit) = (at as usize / 64, 1u64 << (at % 64));
        if at >= self.cells.number || owned[word] & bit != 0 {
            return false;
        }
        owned[word] |= bit;
        if self.cells.get(self.words(), at) != cell {
            self.cells.set(self.words(), at, cell);
            found.mended += 1;
        }
        true
    }
}

impl Writes for Compact {
    fn insert(&mut self, key: &Key, state: State) -> Result<Placed, Error> {
        let hash = key.hash(self.root.salt);
        let (bucket, cell) = (self.cells.bucket(hash), self.cell(key, state));
        let placed = match self.cells.get(self.words(), bucket) {
            0 => {
                self.cells.set(self.words(), bucket, cell);
                Placed::InBucket(bucket)
            }
            _ => self.settle(key, cell, bucket, hash)?,
        };
        self.used += 1;
        Ok(placed)
    }

    fn set(&mut self, key: &Key, state: State) {
        self.cells.set(self.words(), self.register(key), self.cell(key, state));
    }

    fn remove(&mut self, key: &Key) {
        // The register first: its number must not be given away while the key's entry names it.
        self.cells.set(self.words(), self.register(key), 0);
        self.forget_key(key);
        self.used -= 1;
    }

    fn rest(&mut self) -> bool {
        self.keys.rest()
    }

    fn rested(&mut self) {
        self.keys.rested();
    }

    fn recover(&mut self, connections: Connections<'_>, lost: Lost<'_>) -> Recovered {
        let mut found = Recovered::default();
        let mut owned = vec![0u64; (self.cells.number as usize).div_ceil(64)];
        let memory = self.memory.clone();
        let mut named: std::collections::HashMap<Key, u32> = self.keys.scan(memory.words(), 0, u64::MAX).collect();
        let (mut in_bucket, mut homeless) = (Vec::new(), Vec::new());
        for (key, state) in connections {
            match named.remove(&key) {
                Some(value) if self.own(&mut owned, value.wrapping_sub(1), self.cell(&key, state), &mut found) => {}
                Some(_) => {
                    self.forget_key(&key);
                    homeless.push((key, state));
                }
                None => in_bucket.push((key, state)),
            }
        }
        for key in named.into_keys() {
            self.forget_key(&key);
            found.cleared += 1;
        }
        for (key, state) in in_bucket {
            if !self.own(&mut owned, self.bucket(&key).0, self.cell(&key, state), &mut found) {
                homeless.push((key, state));
            }
        }
        self.used = 0;
        for at in 0..self.cells.number {
            let mine = owned[at as usize / 64] >> (at % 64) & 1 != 0;
            self.used += u64::from(mine);
            if !mine && self.cells.get(self.words(), at) != 0 {
                self.cells.set(self.words(), at, 0);
                found.cleared += 1;
            }
        }
        self.put_back(homeless, &mut found, lost);
        found
    }
}

impl StateTable for Compact {
    fn usage(&self) -> Usage {
        Usage {
            connections: self.used,
            collisions: self.keys.len(),
            places: u64::from(self.cells.number),
            bytes: self.root.lines() * u64::from(LINE_BYTES),
        }
    }

    fn reader(&self) -> Reader {
        Reader::of(self.memory.clone(), self.root)
    }
}
