// SPDX-License-Identifier: Apache-2.0
//! The embedded store: one file of `redb`, copy-on-write B-trees, synced before a transaction is acknowledged.
//!
//! Three tables: `entries` (key → created, changed, value), `history` (revision, number → event) and `numbers` (revision, the
//! revision up to which the history is compacted, version). Entries and history are written by one transaction of redb. A change of
//! very many keys is not kept in the history, which it would double in size: it compacts the history instead, and whoever
//! watches starts over.
//!
//! redb answers everything with an error once a write has failed, until the file is closed and opened: that is done here, so that
//! changes are taken again when a full disk has room.

use super::record::{entry, event_bytes, event_of, record, stamps};
use super::{Change, Compare, Entry, Outcome, Page, Revision, Snapshot, Store, StoreError, Watch, Write};
use parking_lot::{Condvar, Mutex, RwLock};
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, Table, TableDefinition, TableError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const ENTRIES: TableDefinition<&[u8], &[u8]> = TableDefinition::new("entries");
const HISTORY: TableDefinition<(u64, u32), &[u8]> = TableDefinition::new("history");
const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");

/// Version of what the tables hold.
const VERSION: u64 = 1;
/// Events of one change that the history keeps.
pub const EVENTS_MAX: usize = 50_000;
/// Changes that the history keeps.
pub const CHANGES_MAX: u64 = 20_000;

/// The store.
pub struct Embedded {
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    /// None: it could not be opened again after an error.
    database: RwLock<Option<Database>>,
    /// The revision, for those who wait.
    revision: Mutex<Revision>,
    raised: Condvar,
}

fn medium(what: &'static str) -> impl Fn(&dyn std::fmt::Display) -> StoreError {
    move |why| StoreError::Medium { what, why: why.to_string() }
}

fn opened(path: &Path) -> Result<Database, StoreError> {
    Database::create(path).map_err(|e| match e {
        DatabaseError::DatabaseAlreadyOpen => StoreError::Locked(path.display().to_string()),
        e => StoreError::Medium { what: "opened", why: format!("{}: {e}", path.display()) },
    })
}

impl Embedded {
    /// Opens a file, or makes it.
    pub fn open(path: &Path) -> Result<Embedded, StoreError> {
        let database = opened(path)?;
        let written = medium("written");
        let begin = database.begin_write().map_err(|e| written(&e))?;
        let revision = {
            let mut numbers = begin.open_table(NUMBERS).map_err(|e| written(&e))?;
            let number = |n: Option<redb::AccessGuard<'_, u64>>| n.map(|n| n.value());
            let version = numbers.get("version").map(number).map_err(|e| written(&e))?;
            match version {
                None => drop(numbers.insert("version", VERSION).map_err(|e| written(&e))?),
                Some(VERSION) => {}
                Some(other) => {
                    return Err(StoreError::Version(format!(
                        "{} was written by another version of tunny (form {other}, this one knows {VERSION}): start that one, export, and import here",
                        path.display()
                    )))
                }
            }
            begin.open_table(ENTRIES).map_err(|e| written(&e))?;
            begin.open_table(HISTORY).map_err(|e| written(&e))?;
            let revision = numbers.get("revision").map(number).map_err(|e| written(&e))?;
            revision.unwrap_or(0)
        };
        begin.commit().map_err(|e| written(&e))?;
        let shared = Shared {
            path: path.to_path_buf(),
            database: RwLock::new(Some(database)),
            revision: Mutex::new(revision),
            raised: Condvar::new(),
        };
        Ok(Embedded { shared: Arc::new(shared) })
    }
}

impl Shared {
    fn read<T>(&self, look: impl FnOnce(&redb::ReadTransaction) -> Result<T, redb::Error>) -> Result<T, StoreError> {
        look(&self.begin()?).map_err(|e| medium("read")(&e))
    }

    fn begin(&self) -> Result<redb::ReadTransaction, StoreError> {
        let read = medium("read");
        self.reopen()?;
        let database = self.database.read();
        let database = database.as_ref().ok_or_else(|| read(&"it is closed"))?;
        database.begin_read().map_err(|e| read(&e))
    }

    /// Opens the file again, if an error has closed it.
    fn reopen(&self) -> Result<(), StoreError> {
        if self.database.read().is_some() {
            return Ok(());
        }
        let mut database = self.database.write();
        if database.is_none() {
            *database = Some(opened(&self.path)?);
        }
        Ok(())
    }

    /// Writes; `work` says whether there is something to commit.
    fn write(&self, compares: &[Compare], writes: &[Write]) -> Result<Outcome, StoreError> {
        let failed = medium("written");
        self.reopen()?;
        let result = {
            let database = self.database.read();
            let database = database.as_ref().ok_or_else(|| failed(&"it is closed"))?;
            transact(database, compares, writes)
        };
        match result {
            Ok(Outcome::Written(revision)) => {
                let mut now = self.revision.lock();
                *now = revision.max(*now);
                self.raised.notify_all();
                Ok(Outcome::Written(revision))
            }
            Ok(conflict) => Ok(conflict),
            Err(e) => {
                // What failed may have left redb refusing everything.
                *self.database.write() = None;
                Err(failed(&e))
            }
        }
    }
}

/// Writes an entry: its value before. Most are new, so the tree is walked once, and again where one was there, to keep who created it.
fn put(
    entries: &mut Table<'_, &'static [u8], &'static [u8]>,
    (key, value): (&[u8], &[u8]),
    revision: Revision,
) -> Result<Option<Vec<u8>>, redb::Error> {
    let old = entries.insert(key, record(revision, revision, value).as_slice())?.map(|old| old.value().to_vec());
    let Some(mut old) = old else { return Ok(None) };
    entries.insert(key, record(stamps(&old).0, revision, value).as_slice())?;
    Ok(Some(old.split_off(16.min(old.len()))))
}

fn transact(database: &Database, compares: &[Compare], writes: &[Write]) -> Result<Outcome, redb::Error> {
    let transaction = database.begin_write()?;
    let revision = {
        let mut entries = transaction.open_table(ENTRIES)?;
        let mut numbers = transaction.open_table(NUMBERS)?;
        let before = numbers.get("revision")?.map_or(0, |n| n.value());
        let mut unlike = Vec::new();
        for compare in compares {
            if !compare.holds(entries.get(compare.key())?.map(|v| stamps(v.value()).1)) {
                unlike.push(compare.key().to_vec());
            }
        }
        if !unlike.is_empty() {
            return Ok(Outcome::Conflict(unlike));
        }
        if writes.is_empty() {
            return Ok(Outcome::Written(before));
        }
        let revision = before + 1;
        let mut history = transaction.open_table(HISTORY)?;
        let mut events: Vec<(&[u8], Vec<u8>)> = Vec::new();
        let kept = writes.len() <= EVENTS_MAX;
        for write in writes {
            let (key, value) = (write.key(), write.value());
            let old = match value {
                Some(value) => put(&mut entries, (key, value), revision)?,
                None => entries.remove(key)?.map(|old| old.value()[16..].to_vec()),
            };
            if kept && (value.is_some() || old.is_some()) {
                events.push((key, event_bytes(key, value, old.as_deref())));
            }
        }
        events.sort_by(|a, b| a.0.cmp(b.0));
        for (i, (_, bytes)) in events.iter().enumerate() {
            history.insert((revision, i as u32), bytes.as_slice())?;
        }
        if kept && events.is_empty() {
            // A deletion of what was not there is a transaction all the same.
            history.insert((revision, 0), [].as_slice())?;
        }
        numbers.insert("revision", revision)?;
        let compacted = numbers.get("compacted")?.map_or(0, |n| n.value());
        let upto = if kept { revision.saturating_sub(CHANGES_MAX) } else { revision };
        if upto > compacted {
            history.retain_in((0, 0)..(upto + 1, 0), |_, _| false)?;
            numbers.insert("compacted", upto)?;
        }
        revision
    };
    transaction.commit()?;
    Ok(Outcome::Written(revision))
}

impl Store for Embedded {
    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        Ok(Box::new(self.shared.begin()?))
    }

    fn get(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Entry>>, StoreError> {
        self.shared.read(|transaction| {
            let entries = transaction.open_table(ENTRIES)?;
            keys.iter().map(|key| Ok(entries.get(key.as_slice())?.map(|record| entry(key, record.value())))).collect()
        })
    }

    fn txn(&self, compares: &[Compare], writes: &[Write]) -> Result<Outcome, StoreError> {
        self.shared.write(compares, writes)
    }

    fn watch(&self, after: Revision) -> Result<Box<dyn Watch>, StoreError> {
        let watch = Following { shared: self.shared.clone(), at: after };
        watch.kept()?;
        Ok(Box::new(watch))
    }

    fn compact(&self, upto: Revision) -> Result<(), StoreError> {
        let failed = medium("written");
        self.shared.reopen()?;
        let database = self.shared.database.read();
        let database = database.as_ref().ok_or_else(|| failed(&"it is closed"))?;
        let work = || -> Result<(), redb::Error> {
            let transaction = database.begin_write()?;
            {
                let mut numbers = transaction.open_table(NUMBERS)?;
                let (last, compacted) = (
                    numbers.get("revision")?.map_or(0, |n| n.value()),
                    numbers.get("compacted")?.map_or(0, |n| n.value()),
                );
                let upto = upto.min(last).max(compacted);
                transaction.open_table(HISTORY)?.retain_in((0, 0)..(upto + 1, 0), |_, _| false)?;
                numbers.insert("compacted", upto)?;
            }
            Ok(transaction.commit()?)
        };
        work().map_err(|e| failed(&e))
    }
}

impl Snapshot for redb::ReadTransaction {
    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Page, StoreError> {
        let look = || -> Result<Page, redb::Error> {
            let mut page = Page { revision: revision(self)?, ..Page::default() };
            if from >= to {
                return Ok(page);
            }
            for found in self.open_table(ENTRIES)?.range(from..to)? {
                let (key, record) = found?;
                if page.entries.len() == limit {
                    page.more = true;
                    break;
                }
                page.entries.push(entry(key.value(), record.value()));
            }
            Ok(page)
        };
        look().map_err(|e| medium("read")(&e))
    }
}

fn revision(transaction: &redb::ReadTransaction) -> Result<Revision, redb::Error> {
    number(transaction, "revision")
}

fn number(transaction: &redb::ReadTransaction, name: &str) -> Result<u64, redb::Error> {
    match transaction.open_table(NUMBERS) {
        Ok(numbers) => Ok(numbers.get(name)?.map_or(0, |n| n.value())),
        Err(TableError::TableDoesNotExist(_)) => Ok(0),
        Err(e) => Err(e.into()),
    }
}

/// A watch.
struct Following {
    shared: Arc<Shared>,
    at: Revision,
}

impl Following {
    /// Refuses to go on where history is missing.
    fn kept(&self) -> Result<(), StoreError> {
        match self.shared.read(|transaction| number(transaction, "compacted"))? {
            compacted if self.at < compacted => Err(StoreError::Compacted(self.at)),
            _ => Ok(()),
        }
    }
}

impl Watch for Following {
    fn next(&mut self, patience: Duration) -> Result<Option<Change>, StoreError> {
        let until = Instant::now() + patience;
        {
            let mut revision = self.shared.revision.lock();
            while *revision <= self.at {
                if self.shared.raised.wait_until(&mut revision, until).timed_out() {
                    break;
                }
            }
            if *revision <= self.at {
                return Ok(None);
            }
        }
        let at = self.at;
        let found = self.shared.read(|transaction| {
            if number(transaction, "compacted")? > at {
                return Ok(None);
            }
            let history = transaction.open_table(HISTORY)?;
            let mut change: Option<Change> = None;
            for record in history.range((at + 1, 0)..)? {
                let (key, bytes) = record?;
                let revision = key.value().0;
                if change.as_ref().is_some_and(|c| c.revision != revision) {
                    break;
                }
                let change = change.get_or_insert(Change { revision, events: Vec::new() });
                change.events.extend(event_of(&mut bytes.value()));
            }
            Ok(Some(change))
        })?;
        let change = found.ok_or(StoreError::Compacted(at))?;
        if let Some(change) = &change {
            self.at = change.revision;
        }
        Ok(change)
    }
}
