// SPDX-License-Identifier: Apache-2.0
//! Where the intent of a region is kept: ordered keys with values, under one revision that each transaction raises by one.
//!
//! A transaction compares, and if all holds, writes all of it or nothing; when it returns, what it wrote survives whatever
//! happens next. A watch tells every transaction behind a revision, in order, as long as the history has it: what is compacted away is
//! answered with [`StoreError::Compacted`], and whoever watches starts over. One suite of tests (`tests/store.rs`) says what that means.

pub mod embedded;
pub mod etcd;
mod record;

use std::time::Duration;

/// Number of the last transaction that wrote.
pub type Revision = u64;

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Key.
    pub key: Vec<u8>,
    /// Value.
    pub value: Vec<u8>,
    /// The transaction that created it.
    pub created: Revision,
    /// The transaction that wrote it last.
    pub changed: Revision,
}

/// Entries in the order of their keys, as of one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Entries.
    pub entries: Vec<Entry>,
    /// Whether there are more.
    pub more: bool,
    /// The revision of the store.
    pub revision: Revision,
}

/// What must hold for a transaction to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// There is no such key.
    Absent(Vec<u8>),
    /// The key was last written by this transaction.
    Unchanged(Vec<u8>, Revision),
    /// The key is absent, or was not written by any transaction behind this one.
    NotSince(Vec<u8>, Revision),
}

impl Compare {
    /// The key that is compared.
    pub fn key(&self) -> &[u8] {
        match self {
            Compare::Absent(key) | Compare::Unchanged(key, _) | Compare::NotSince(key, _) => key,
        }
    }

    /// Whether it holds of a key that was last written by the transaction `changed`, if it is there.
    pub fn holds(&self, changed: Option<Revision>) -> bool {
        match self {
            Compare::Absent(_) => changed.is_none(),
            Compare::Unchanged(_, at) => changed == Some(*at),
            Compare::NotSince(_, at) => changed.is_none_or(|changed| changed <= *at),
        }
    }
}

/// What a transaction writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// The key has this value.
    Put(Vec<u8>, Vec<u8>),
    /// The key is gone, if it was there.
    Delete(Vec<u8>),
}

impl Write {
    /// The key that is written.
    pub fn key(&self) -> &[u8] {
        match self {
            Write::Put(key, _) | Write::Delete(key) => key,
        }
    }

    /// The value that it has then.
    pub fn value(&self) -> Option<&[u8]> {
        match self {
            Write::Put(_, value) => Some(value),
            Write::Delete(_) => None,
        }
    }
}

/// What became of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is written, under this revision.
    Written(Revision),
    /// Nothing is written: these keys are not as compared.
    Conflict(Vec<Vec<u8>>),
}

/// What a transaction did to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Key.
    pub key: Vec<u8>,
    /// Its value; none: it is gone.
    pub value: Option<Vec<u8>>,
    /// The value that it had before.
    pub before: Option<Vec<u8>>,
}

/// What a transaction did, in the order of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its revision.
    pub revision: Revision,
    /// Key by key.
    pub events: Vec<Event>,
}

/// Why a store does not answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// What is wanted is no longer kept.
    #[error("the history behind revision {0} is no longer kept: list anew, and watch from the revision of the list")]
    Compacted(Revision),
    /// Another process has it open.
    #[error("{0} is in use by another controller")]
    Locked(String),
    /// Somebody else leads, or nobody does: what follows another one's lead does not write.
    #[error("this controller does not lead: whoever leads takes changes")]
    NotLeading,
    /// Whether it was written cannot be found out now.
    #[error("it is not known whether this was written, since the store stopped answering amid it ({0}): look again when it is back")]
    Unknown(String),
    /// It is of another version.
    #[error("{0}")]
    Version(String),
    /// The medium.
    #[error("the store cannot be {what}: {why}")]
    Medium {
        /// `read` or `written`.
        what: &'static str,
        /// What the system said.
        why: String,
    },
}

/// A store.
pub trait Store: Send + Sync {
    /// All as it is now, for as long as it is held.
    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError>;

    /// Entries with keys from `from` up to, and without, `to`; so many at most.
    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Page, StoreError> {
        self.snapshot()?.range(from, to, limit)
    }

    /// The entries of these keys, in their order, as of one revision.
    fn get(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Entry>>, StoreError>;

    /// Writes, if all compares hold. No key may be written twice. Without writes the revision stays.
    fn txn(&self, compares: &[Compare], writes: &[Write]) -> Result<Outcome, StoreError>;

    /// The transactions behind a revision, as they come.
    fn watch(&self, after: Revision) -> Result<Box<dyn Watch>, StoreError>;

    /// Forgets the history up to a revision. Entries stay.
    fn compact(&self, upto: Revision) -> Result<(), StoreError>;
}

/// A store as it was at a revision.
pub trait Snapshot: Send {
    /// Entries with keys from `from` up to, and without, `to`; so many at most.
    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Page, StoreError>;
}

/// Transactions as they come.
pub trait Watch: Send {
    /// The next one; none came within `patience`.
    fn next(&mut self, patience: Duration) -> Result<Option<Change>, StoreError>;
}

/// The first key behind all that begin with a prefix.
pub fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    // Behind every key.
    vec![0xff; 64]
}
