// SPDX-License-Identifier: Apache-2.0
//! What stands where in etcd, and the two small records of which all depends.

use crate::store::record::event_of;
use crate::store::{Event, Revision};
use serde::{Deserialize, Serialize};

/// Keys, below the region's prefix.
#[derive(Clone, Debug)]
pub(super) struct Keys(pub String);

impl Keys {
    /// The head.
    pub fn head(&self) -> Vec<u8> {
        self.under("head")
    }

    /// Who leads.
    pub fn leader(&self) -> Vec<u8> {
        self.under("leader")
    }

    /// An entry.
    pub fn entry(&self, key: &[u8]) -> Vec<u8> {
        [self.under("entries/"), key.to_vec()].concat()
    }

    /// The key of an entry.
    pub fn of_entry<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        &key[(self.0.len() + "entries/".len()).min(key.len())..]
    }

    /// The record of a transaction.
    pub fn change(&self, revision: Revision) -> Vec<u8> {
        self.under(&format!("changes/{revision:016x}"))
    }

    /// Where the parts of large transactions of a revision begin.
    pub fn stages(&self, revision: Revision) -> Vec<u8> {
        self.under(&format!("parts/{revision:016x}/"))
    }

    /// A part of a large transaction.
    pub fn part(&self, stage: &Stage, part: u32) -> Vec<u8> {
        self.under(&format!("parts/{:016x}/{}/{part:08x}", stage.revision, stage.id))
    }

    fn under(&self, end: &str) -> Vec<u8> {
        format!("{}{end}", self.0).into_bytes()
    }
}

/// The parts of a large transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stage {
    /// The revision that it makes.
    pub revision: Revision,
    /// The attempt.
    pub id: String,
    /// How many parts it has.
    pub parts: u32,
    /// How many events.
    pub events: u64,
}

/// The head: every transaction compares it and writes it anew.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    /// The last transaction that is in the entries, whole.
    pub revision: Revision,
    /// The history up to this revision is gone.
    pub compacted: Revision,
    /// A large one that is valid and on its way into the entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<Stage>,
}

/// The record of a transaction: a line of JSON, and behind it the events, unless they are in parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The attempt that made it.
    pub id: String,
    /// Its parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
}

impl Record {
    pub fn bytes(&self, events: &[u8]) -> Vec<u8> {
        // Of such a structure nothing can fail.
        let mut bytes = serde_json::to_vec(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes.extend_from_slice(events);
        bytes
    }

    pub fn read(bytes: &[u8]) -> Option<(Record, &[u8])> {
        let end = bytes.iter().position(|b| *b == b'\n')?;
        Some((serde_json::from_slice(&bytes[..end]).ok()?, &bytes[end + 1..]))
    }
}

/// All events of bytes.
pub(super) fn events_of(mut bytes: &[u8]) -> Vec<Event> {
    std::iter::from_fn(|| event_of(&mut bytes)).collect()
}
