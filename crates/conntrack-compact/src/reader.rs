// SPDX-License-Identifier: Apache-2.0
//! [`Reader`]: what the fast path sees of a state table, any kind. `bpf/states/states.h` is its twin in C.

use crate::compact::Cells;
use crate::digest::Buckets;
use crate::keys::Area;
use crate::root::{load, Root, MOVES_DIGESTS, MOVES_KEYS};
use crate::{judge, Error, Key, Kind, Verdict, WordMemory};
use abi::*;
use std::sync::atomic::AtomicU64;
use std::sync::Arc;

/// A reader of a state table.
#[derive(Clone)]
pub struct Reader {
    memory: Arc<dyn WordMemory>,
    root: Root,
}

impl Reader {
    /// Reads the table in this memory.
    pub fn open(memory: Arc<dyn WordMemory>) -> Result<Reader, Error> {
        let root = Root::read(memory.words())?;
        Ok(Reader { memory, root })
    }

    pub(crate) fn of(memory: Arc<dyn WordMemory>, root: Root) -> Reader {
        Reader { memory, root }
    }

    /// The state of a connection: 0–3, or STATES_UNSURE if moves overtook this reader again and again.
    #[inline]
    pub fn state(&self, key: &Key) -> u8 {
        let words = self.memory.words();
        let hash = key.hash(self.root.salt);
        for _ in 0..STATES_TRIES {
            let (keys, digests) = (load(words, MOVES_KEYS), load(words, MOVES_DIGESTS));
            let state = self.look(words, key, hash);
            let missed = state == STATES_NONE && load(words, MOVES_DIGESTS) != digests;
            if load(words, MOVES_KEYS) == keys && !missed {
                return state;
            }
        }
        STATES_UNSURE
    }

    #[inline(always)]
    fn look(&self, words: &[AtomicU64], key: &Key, hash: u64) -> u8 {
        let area = if key.is_wide() { Area::new(self.root.keys6, true) } else { Area::new(self.root.keys4, false) };
        let exact = area.find(words, key, hash).map(|(value, _)| value);
        match (self.root.kind, exact) {
            (STATES_COMPACT, None) => Cells::new(&self.root).state_in_bucket(words, hash),
            (STATES_COMPACT, Some(value)) => Cells::new(&self.root).get(words, value.wrapping_sub(1)) as u8 & 3,
            (_, Some(value)) => value as u8 & 3,
            (STATES_DIGEST, None) => Buckets::new(&self.root).state(words, hash),
            (_, None) => STATES_NONE,
        }
    }

    /// What becomes of a packet of this kind in this state.
    #[inline(always)]
    pub fn verdict(&self, state: u8, kind: Kind) -> Verdict {
        judge(Root::control_now(self.memory.words()), state, kind)
    }

    /// Changes which packets are control packets. For the table's writer.
    pub(crate) fn set_control(&self, control: u64) {
        let words = self.memory.words();
        Root::set_control(words, control | Root::control_now(words) & STATES_MIGRATE);
    }

    /// Whether readers ask `Migrate_Tbl`, too. For the table's writer.
    pub(crate) fn request_migration(&self, on: bool) {
        let control = Root::control_now(self.memory.words()) & !STATES_MIGRATE;
        Root::set_control(self.memory.words(), control | if on { STATES_MIGRATE } else { 0 });
    }

    /// Whether `Migrate_Tbl` has entries.
    #[inline(always)]
    pub(crate) fn migrates(&self) -> bool {
        Root::control_now(self.memory.words()) & STATES_MIGRATE != 0
    }

    /// The value of a key in an exact table; Err: moves overtook this reader again and again.
    pub(crate) fn value(&self, key: &Key) -> Result<Option<u32>, ()> {
        let (words, hash) = (self.memory.words(), key.hash(self.root.salt));
        let area = if key.is_wide() { Area::new(self.root.keys6, true) } else { Area::new(self.root.keys4, false) };
        for _ in 0..STATES_TRIES {
            let keys = load(words, MOVES_KEYS);
            let found = area.find(words, key, hash).map(|(value, _)| value);
            if load(words, MOVES_KEYS) == keys {
                return Ok(found);
            }
        }
        Err(())
    }

    /// What the fast path does with a packet of this kind.
    #[inline]
    pub fn judge(&self, key: &Key, kind: Kind) -> Verdict {
        self.verdict(self.state(key), kind)
    }
}
