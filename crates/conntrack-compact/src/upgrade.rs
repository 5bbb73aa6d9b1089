// SPDX-License-Identifier: Apache-2.0
//! Going over to another layout: the agent's records are read out of the old memory by the names of their fields, and made again in the new.
//!
//! Only an agent writes records, and the one before is dead when they are read: they do not change meanwhile, whatever the old fast
//! path goes on with. The meaning of a record's value is no layout: [`RECORD_FORMAT`] is its number.

use crate::agent::Value;
use crate::{Connection, Key};
use abi::{LINE_BYTES, STATES_EXACT, STATES_MAGIC};

/// Number of the meaning of a record's value (`agent`): changes with it. Records of another number are not understood.
pub const RECORD_FORMAT: u64 = 1;

/// Records in the memory of another layout.
pub struct OldRecords<'a> {
    /// A number of a field of a structure of that layout, if it has it: `offset` in bytes, or `count` of elements.
    pub field: &'a dyn Fn(&str, &str, &str) -> Option<usize>,
    /// Bytes of a structure.
    pub bytes: &'a dyn Fn(&str) -> Option<usize>,
    /// TABLE_REF_BUCKETS_SHIFT.
    pub shift: u32,
    /// An aligned 8-byte word, by its byte offset.
    pub word: &'a dyn Fn(usize) -> Option<u64>,
}

impl OldRecords<'_> {
    /// The connections that they hold; none if there are no records, or not all fields are known.
    pub fn connections(&self) -> Option<Vec<(Key, Connection)>> {
        let root = |field| (self.word)((self.field)("StatesRoot", field, "offset")?);
        if root("magic")? != STATES_MAGIC + u64::from(STATES_EXACT) {
            return None;
        }
        let mut out = Vec::new();
        self.narrow(root("keys4")?, &mut out)?;
        self.wide(root("keys6")?, &mut out)?;
        Some(out)
    }

    /// Byte offsets of the elements of a part, as far as the memory goes.
    fn places(&self, part: u64, bytes: usize, a_bucket: usize) -> impl Iterator<Item = usize> {
        let first = (part & ((1u64 << self.shift.min(63)) - 1)) as usize * LINE_BYTES as usize;
        let number = (part >> self.shift.min(63)) as usize;
        (0..number.saturating_mul(a_bucket)).map_while(move |i| first.checked_add(i.checked_mul(bytes)?))
    }

    /// Several IPv4 keys a bucket, with their values behind them.
    fn narrow(&self, part: u64, out: &mut Vec<(Key, Connection)>) -> Option<()> {
        let bytes = (self.bytes)("StatesKeys4")?;
        let field = |name, what| (self.field)("StatesKeys4", name, what);
        let (keys, values, words) = (field("keys", "offset")?, field("values", "offset")?, field("keys", "count")?);
        for at in self.places(part, bytes, 1) {
            for n in 0..words / 2 {
                let Some(a) = (self.word)(at + keys + 16 * n) else { return Some(()) };
                let Some(b) = (self.word)(at + keys + 16 * n + 8) else { return Some(()) };
                let value = at + values + 4 * n;
                let Some(word) = (self.word)(value & !7) else { return Some(()) };
                out.extend(Value((word >> (8 * (value & 7))) as u32).connection().map(|c| (Key::V4([a, b]), c)));
            }
        }
        Some(())
    }

    /// Keys of six words with a value each, two a bucket.
    fn wide(&self, part: u64, out: &mut Vec<(Key, Connection)>) -> Option<()> {
        let bytes = (self.bytes)("StatesKey6")?;
        let offset = |name| (self.field)("StatesKey6", name, "offset");
        let (key, value) = (offset("key")?, offset("value")?);
        for at in self.places(part, bytes, 2) {
            let mut words = [0; 6];
            for (n, word) in words.iter_mut().enumerate() {
                let Some(found) = (self.word)(at + key + 8 * n) else { return Some(()) };
                *word = found;
            }
            let Some(found) = (self.word)(at + value) else { return Some(()) };
            out.extend(Value(found as u32).connection().map(|c| (Key::Wide(words), c)));
        }
        Some(())
    }
}
