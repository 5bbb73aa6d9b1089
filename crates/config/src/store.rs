// SPDX-License-Identifier: Apache-2.0
//! The state on disk: a snapshot and the changes since.
//!
//! A directory holds `snapshot` (a model, and the number of the last change in it), one or more `journal-N` (changes from
//! number N on, a frame each) and `lock`. The property that it keeps: **once [`Store::append`] has returned, the change survives
//! whatever happens next** (SIGKILL, power loss), and a change whose append did not return is there whole or not at all.
//!
//! - A change is journalled before it is published to the tables: validate, journal, publish, acknowledge. If the tables
//!   refuse it, [`Store::abort`] journals that it does not count.
//! - An append is one write and one fdatasync. If either fails the store takes nothing more until it is opened again:
//!   after a failed sync nobody knows what the disk holds.
//! - A crash may leave a torn frame at the very end of the last journal. It was never acknowledged; opening cuts it off
//!   and says so. A bad frame with an intact one behind it is no torn write but damage, and opening refuses.
//! - Files come into being whole: written beside, synced, renamed, directory synced. A compaction starts a new journal first and
//!   then makes a new snapshot of the old snapshot and the closed journals, from the files alone: no lock, no copy of
//!   the live model; it may run in a thread of its own. Whatever a crash leaves of it, numbers tell what is covered.

use crate::binary::codec::{put_u64, Reader};
use crate::binary::frame::{file_head, frame_at, next_intact, put_frame, read_file_head, Found, FILE_HEAD, FRAME_MAX};
use crate::binary::objects::{put_documents, read_documents};
use crate::binary::{SnapshotError, BINARY_VERSION};
use crate::documents::Documents;
use crate::model::Model;
use nix::fcntl::{Flock, FlockArg};
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use thiserror::Error;

const JOURNAL_MARK: &[u8; 8] = b"TUNNYjnl";
/// A change whose record is larger goes to disk as a new snapshot.
const RECORD_MAX: usize = 16 << 20;
/// A compaction is due when the journals have this many bytes, and more than the snapshot.
const COMPACT_BYTES: u64 = 16 << 20;

/// A compaction's snapshot before it takes its place.
const COMPACTED: &str = "snapshot-compacted";

/// Numbers of changes at most: at a million a second they last for ten thousand years.
const NUMBER_MAX: u64 = 1 << 60;

/// First byte of a record.
const RECORD_CHANGE: u8 = 1;
const RECORD_ABORT: u8 = 2;

/// Why the state on disk cannot be used.
#[derive(Debug, Error)]
pub enum StoreError {
    /// A file operation failed.
    #[error("{what}: {error}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's answer.
        error: std::io::Error,
    },
    /// Another process has the directory.
    #[error("{0} is in use by another process: stop it first")]
    Locked(PathBuf),
    /// The journal is damaged where a crash cannot have damaged it.
    #[error("{file} is damaged at byte {offset}: {what}. Changes that were acknowledged may be lost: restore the directory from a copy, or move it away and apply the configuration anew")]
    Damaged {
        /// File.
        file: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// The snapshot is damaged.
    #[error("{file}: {error}")]
    Snapshot {
        /// File.
        file: PathBuf,
        /// What is wrong.
        error: SnapshotError,
    },
    /// An earlier write failed.
    #[error("an earlier write to the state on disk failed, so it takes no further change: look at the disk, then restart")]
    Poisoned,
}

/// What opening a store found.
#[derive(Clone, Debug, Default)]
pub struct Opened {
    /// Number of the last change.
    pub number: u64,
    /// Changes replayed from journals.
    pub replayed: u64,
    /// What an operator should know, as that a torn change was cut off.
    pub notes: Vec<String>,
}

/// The state on disk, open for appending.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    _lock: Flock<File>,
    journal: File,
    journal_first: u64,
    number: u64,
    journal_bytes: u64,
    snapshot_bytes: u64,
    /// Number of the snapshot in place. A compaction in another thread must not put an older one over it.
    gate: Arc<Mutex<u64>>,
    poisoned: bool,
}

fn io<'a>(what: &'a str, path: &'a Path) -> impl FnOnce(std::io::Error) -> StoreError + 'a {
    move |error| StoreError::Io { what: format!("cannot {what} {}", path.display()), error }
}

fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(io("sync", dir))
}

fn journal_path(dir: &Path, first: u64) -> PathBuf {
    dir.join(format!("journal-{first:020}"))
}

fn snapshot_path(dir: &Path) -> PathBuf {
    dir.join("snapshot")
}

impl Store {
    /// Opens a directory, which is created if need be, and reads the model that it holds.
    pub fn open(dir: &Path) -> Result<(Store, Model, Opened), StoreError> {
        std::fs::create_dir_all(dir).map_err(io("create", dir))?;
        let lock_path = dir.join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&lock_path);
        let lock = Flock::lock(lock.map_err(io("open", &lock_path))?, FlockArg::LockExclusiveNonblock)
            .map_err(|_| StoreError::Locked(dir.to_path_buf()))?;
        let mut state = Recovered::read(dir, u64::MAX)?;
        state.cut_torn_tail()?;
        // A journal that ends before the snapshot does cannot be continued: numbers in a file have no gaps.
        let first = match state.journals.last() {
            Some(last) if last.next == state.number + 1 => last.first,
            _ => {
                let head = create_journal(dir, state.number + 1)?.metadata().map_err(io("read", dir))?.len();
                let (first, path) = (state.number + 1, journal_path(dir, state.number + 1));
                state.journals.push(Journal { path, first, next: first, good: head, len: head });
                first
            }
        };
        state.remove_covered(dir)?;
        let path = journal_path(dir, first);
        let mut journal = OpenOptions::new().write(true).open(&path).map_err(io("open", &path))?;
        journal.seek(SeekFrom::End(0)).map_err(io("read", &path))?;
        let opened = Opened { number: state.number, replayed: state.replayed, notes: state.notes };
        let store = Store {
            dir: dir.to_path_buf(),
            _lock: lock,
            journal,
            journal_first: first,
            number: state.number,
            journal_bytes: state.journals.iter().map(|j| j.good).sum(),
            snapshot_bytes: state.snapshot_bytes,
            gate: Arc::new(Mutex::new(state.snapshot_number)),
            poisoned: false,
        };
        Ok((store, state.model, opened))
    }

    /// Number of the last change.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Bytes in journals and in the snapshot, for metrics.
    pub fn bytes(&self) -> (u64, u64) {
        (self.journal_bytes, self.snapshot_bytes)
    }

    /// Makes a change durable that `model` has already taken; returns its number.
    pub fn append(&mut self, docs: &Documents, model: &Model) -> Result<u64, StoreError> {
        self.append_all(&[docs], model)
    }

    /// Makes several changes durable with one sync, each whole or not at all; `model` has taken all of them. Returns the
    /// number of the last.
    pub fn append_all(&mut self, sets: &[&Documents], model: &Model) -> Result<u64, StoreError> {
        let (mut out, mut record) = (Vec::new(), Vec::new());
        let mut number = self.number;
        for docs in sets {
            number += 1;
            record.clear();
            put_u64(&mut record, number);
            record.push(RECORD_CHANGE);
            put_documents(&mut record, docs);
            if record.len() > RECORD_MAX.min(FRAME_MAX) || out.len() > 4 * RECORD_MAX {
                return self.save(model, self.number + sets.len() as u64);
            }
            put_frame(&mut out, &record);
        }
        self.write(&out)?;
        self.number = number;
        Ok(number)
    }

    /// Makes a model durable as a whole, in place of everything before (a replaced configuration).
    pub fn replace(&mut self, model: &Model) -> Result<u64, StoreError> {
        self.save(model, self.number + 1)
    }

    /// Journals that the last `count` changes do not count, since the tables refused them. `model` is the model without them.
    pub fn abort(&mut self, count: u64, model: &Model) -> Result<(), StoreError> {
        let first = (self.number + 1).saturating_sub(count);
        if first < self.journal_first {
            // The change is in the snapshot already.
            return self.save(model, self.number + 1).map(|_| ());
        }
        let mut record = Vec::new();
        put_u64(&mut record, self.number + 1);
        record.push(RECORD_ABORT);
        put_u64(&mut record, first);
        let mut out = Vec::new();
        put_frame(&mut out, &record);
        self.write(&out)?;
        self.number += 1;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        if self.poisoned {
            return Err(StoreError::Poisoned);
        }
        let path = journal_path(&self.dir, self.journal_first);
        let done = self.journal.write_all(bytes).and_then(|()| self.journal.sync_data());
        self.poisoned = done.is_err();
        done.map_err(io("write", &path))?;
        self.journal_bytes += bytes.len() as u64;
        Ok(())
    }

    /// A new snapshot that holds everything up to `number`, and an empty journal behind it.
    fn save(&mut self, model: &Model, number: u64) -> Result<u64, StoreError> {
        if self.poisoned {
            return Err(StoreError::Poisoned);
        }
        self.poisoned = true;
        let path = snapshot_path(&self.dir);
        let mut gate = self.gate.lock().unwrap_or_else(|e| e.into_inner());
        let saved = model.save_snapshot(&path, number);
        self.snapshot_bytes = saved.map_err(|error| StoreError::Snapshot { file: path, error })?;
        *gate = number;
        drop(gate);
        self.number = number;
        self.begin_journal()?;
        for first in journal_files(&self.dir)? {
            if first <= number {
                remove(&journal_path(&self.dir, first))?;
            }
        }
        self.journal_bytes = 0;
        self.poisoned = false;
        Ok(number)
    }

    fn begin_journal(&mut self) -> Result<(), StoreError> {
        let first = self.number + 1;
        self.journal = create_journal(&self.dir, first)?;
        self.journal_first = first;
        Ok(())
    }

    /// Whether the journals have grown so large that a compaction pays.
    pub fn compaction_due(&self) -> bool {
        !self.poisoned && self.journal_bytes > COMPACT_BYTES.max(self.snapshot_bytes)
    }

    /// Starts a new journal; the job returned makes one snapshot of everything before it, in any thread.
    pub fn begin_compaction(&mut self) -> Result<Compaction, StoreError> {
        if self.poisoned {
            return Err(StoreError::Poisoned);
        }
        if self.journal_first <= self.number {
            self.begin_journal()?;
        }
        self.journal_bytes = 0;
        Ok(Compaction { dir: self.dir.clone(), upto: self.number, gate: self.gate.clone() })
    }

    /// Notes what a compaction wrote.
    pub fn end_compaction(&mut self, snapshot_bytes: u64) {
        self.snapshot_bytes = snapshot_bytes;
    }
}

/// The work of a compaction.
#[derive(Debug)]
#[must_use = "run it, or the journal only grows"]
pub struct Compaction {
    dir: PathBuf,
    upto: u64,
    gate: Arc<Mutex<u64>>,
}

impl Compaction {
    /// Writes the snapshot and removes the journals that it covers; returns its size.
    pub fn run(self) -> Result<u64, StoreError> {
        let path = snapshot_path(&self.dir);
        match self.fold(&path) {
            // A snapshot of a later change came in between and took the journals away: nothing is left to do.
            Err(_) if *self.gate.lock().unwrap_or_else(|e| e.into_inner()) > self.upto => {
                std::fs::metadata(&path).map(|m| m.len()).map_err(io("read", &path))
            }
            done => done,
        }
    }

    fn fold(&self, path: &Path) -> Result<u64, StoreError> {
        let (path, state) = (path.to_path_buf(), Recovered::read(&self.dir, self.upto)?);
        if state.number != self.upto {
            let what = format!("the journals end at change {}, not at {}", state.number, self.upto);
            return Err(StoreError::Damaged { file: path, offset: 0, what });
        }
        let beside = self.dir.join(COMPACTED);
        let saved = state.model.save_snapshot(&beside, self.upto);
        let bytes = saved.map_err(|error| StoreError::Snapshot { file: beside.clone(), error })?;
        let mut gate = self.gate.lock().unwrap_or_else(|e| e.into_inner());
        if *gate > self.upto {
            remove(&beside)?;
            return std::fs::metadata(&path).map(|m| m.len()).map_err(io("read", &path));
        }
        std::fs::rename(&beside, &path).map_err(io("rename", &beside))?;
        sync_dir(&self.dir)?;
        *gate = self.upto;
        drop(gate);
        for first in journal_files(&self.dir)? {
            if first <= self.upto {
                remove(&journal_path(&self.dir, first))?;
            }
        }
        sync_dir(&self.dir)?;
        Ok(bytes)
    }
}

fn remove(path: &Path) -> Result<(), StoreError> {
    std::fs::remove_file(path).map_err(io("remove", path))
}

/// Creates an empty journal, whole or not at all.
fn create_journal(dir: &Path, first: u64) -> Result<File, StoreError> {
    let (path, temporary) = (journal_path(dir, first), dir.join("journal.new"));
    let create = || {
        let mut file = File::create(&temporary)?;
        file.write_all(&file_head(JOURNAL_MARK, first))?;
        file.sync_all()?;
        std::fs::rename(&temporary, &path)?;
        Ok(file)
    };
    let file = create().map_err(io("create", &path))?;
    sync_dir(dir)?;
    Ok(file)
}

/// First numbers of the journals in a directory, in order.
fn journal_files(dir: &Path) -> Result<Vec<u64>, StoreError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io("read", dir))? {
        let name = entry.map_err(io("read", dir))?.file_name();
        let number: Option<u64> = name.to_str().and_then(|n| n.strip_prefix("journal-")).and_then(|n| n.parse().ok());
        found.extend(number);
    }
    found.sort_unstable();
    Ok(found)
}

/// A journal that was read.
struct Journal {
    path: PathBuf,
    first: u64,
    /// Number of the change that would come next.
    next: u64,
    /// Bytes up to the end of the last intact frame.
    good: u64,
    len: u64,
}

/// What the files of a directory say.
struct Recovered {
    model: Model,
    number: u64,
    replayed: u64,
    snapshot_bytes: u64,
    snapshot_number: u64,
    journals: Vec<Journal>,
    notes: Vec<String>,
}

/// A record of a journal.
enum Record {
    Change(Documents),
    Abort(u64),
}

impl Recovered {
    /// Reads the snapshot and the journals that begin at or before `upto`.
    fn read(dir: &Path, upto: u64) -> Result<Recovered, StoreError> {
        let path = snapshot_path(dir);
        let mut state = Recovered {
            model: Model::new(),
            number: 0,
            replayed: 0,
            snapshot_bytes: 0,
            snapshot_number: 0,
            journals: Vec::new(),
            notes: Vec::new(),
        };
        if path.exists() {
            let loaded = Model::load_snapshot(&path);
            (state.model, state.number) = loaded.map_err(|error| StoreError::Snapshot { file: path.clone(), error })?;
            state.snapshot_number = state.number;
            state.snapshot_bytes = std::fs::metadata(&path).map_err(io("read", &path))?.len();
        }
        let files = journal_files(dir)?;
        let mut records = Vec::new();
        for (i, first) in files.iter().enumerate().filter(|(_, first)| **first <= upto) {
            let path = journal_path(dir, *first);
            let bytes = std::fs::read(&path).map_err(io("read", &path))?;
            let last = i + 1 == files.len();
            let (good, found) = read_journal(&path, &bytes, *first, last)?;
            let next = found.last().map_or(*first, |(n, _)| n.saturating_add(1));
            state.journals.push(Journal { path, first: *first, next, good, len: bytes.len() as u64 });
            records.extend(found);
        }
        state.replay(records, &path)?;
        Ok(state)
    }

    /// Applies the changes behind the snapshot, except those that were aborted.
    fn replay(&mut self, records: Vec<(u64, Record)>, path: &Path) -> Result<(), StoreError> {
        let damaged = |what| StoreError::Damaged { file: path.to_path_buf(), offset: 0, what };
        let aborted: HashSet<u64> = records
            .iter()
            .filter_map(|(n, r)| match r {
                Record::Abort(first) => Some(*first..*n),
                Record::Change(_) => None,
            })
            .flatten()
            .collect();
        if records.last().map_or(self.number, |(n, _)| *n) > NUMBER_MAX {
            return Err(damaged("a change has an impossible number".into()));
        }
        for (number, record) in records.into_iter().filter(|(n, _)| *n > self.snapshot_number) {
            if number != self.number + 1 {
                return Err(damaged(format!("change {} is missing before change {number}", self.number + 1)));
            }
            self.number = number;
            if let (Record::Change(docs), false) = (record, aborted.contains(&number)) {
                self.replayed += 1;
                self.model.apply(&docs).map_err(|errors| {
                    let first = errors.first().map_or(String::new(), |e| e.to_string());
                    damaged(format!("change {number} does not apply: {first}"))
                })?;
            }
        }
        Ok(())
    }

    /// Cuts off what a crash left of an unfinished append.
    fn cut_torn_tail(&mut self) -> Result<(), StoreError> {
        for j in self.journals.iter_mut().filter(|j| j.good < j.len) {
            let (path, good) = (&j.path, j.good);
            let cut = || {
                let file = OpenOptions::new().write(true).open(path)?;
                file.set_len(good)?;
                file.sync_all()
            };
            cut().map_err(io("cut", path))?;
            self.notes.push(format!(
                "{}: cut off {} bytes at byte {good}: a change that was being written when the node died, and was never acknowledged",
                path.display(),
                j.len - good
            ));
            j.len = good;
        }
        Ok(())
    }

    /// Removes what an interrupted compaction left: journals that the snapshot covers.
    fn remove_covered(&mut self, dir: &Path) -> Result<(), StoreError> {
        let starts: Vec<u64> = self.journals.iter().map(|j| j.first).collect();
        for pair in starts.windows(2).filter(|pair| pair[1] <= self.snapshot_number + 1) {
            remove(&journal_path(dir, pair[0]))?;
            self.journals.retain(|j| j.first != pair[0]);
        }
        for name in ["snapshot.new", "journal.new", COMPACTED, "snapshot-compacted.new"] {
            let path = dir.join(name);
            if path.exists() {
                remove(&path)?;
            }
        }
        Ok(())
    }
}

/// The records of a journal, and where the last intact one ends. Only the last journal may end in a torn record.
#[allow(clippy::type_complexity)]
fn read_journal(path: &Path, bytes: &[u8], first: u64, last: bool) -> Result<(u64, Vec<(u64, Record)>), StoreError> {
    let damaged = |offset: usize, what: String| StoreError::Damaged { file: path.into(), offset: offset as u64, what };
    match read_file_head(JOURNAL_MARK, bytes) {
        Some(Ok((BINARY_VERSION, number))) if number == first => {}
        Some(Ok((BINARY_VERSION, number))) => return Err(damaged(12, format!("it says that it begins at change {number}"))),
        Some(Ok((version, _))) => return Err(damaged(8, format!("it has version {version}, this program reads {BINARY_VERSION}"))),
        Some(Err(what)) => return Err(damaged(0, what.into())),
        None => return Err(damaged(0, "it does not begin with a journal's mark".into())),
    }
    let (mut at, mut records, mut number) = (FILE_HEAD, Vec::new(), first);
    loop {
        match frame_at(bytes, at) {
            Found::End => return Ok((at as u64, records)),
            Found::Frame(payload, next) => {
                let (n, record) = read_record(payload).map_err(|what| damaged(at, what))?;
                if n != number {
                    return Err(damaged(at, format!("change {number} is wanted, {n} is found")));
                }
                records.push((n, record));
                (at, number) = (next, number.wrapping_add(1));
            }
            Found::Bad(what) => {
                if let Some(intact) = next_intact(bytes, at + 1) {
                    return Err(damaged(at, format!("{what}, and an intact change follows at byte {intact}")));
                }
                if !last {
                    return Err(damaged(at, format!("{what}, and another journal follows")));
                }
                return Ok((at as u64, records));
            }
        }
    }
}

fn read_record(payload: &[u8]) -> Result<(u64, Record), String> {
    let mut r = Reader::new(payload);
    let number = r.u64()?;
    let record = match r.byte()? {
        RECORD_CHANGE => {
            let mut docs = read_documents(&mut r)?;
            docs.recorded = true;
            Record::Change(docs)
        }
        RECORD_ABORT => {
            let first = r.u64()?;
            if first >= number {
                return Err(format!("change {number} takes back change {first}"));
            }
            Record::Abort(first)
        }
        kind => return Err(format!("{kind} is no kind of record")),
    };
    if !r.is_empty() {
        return Err("a record is longer than what it holds".into());
    }
    Ok((number, record))
}

/// Reads a journal's bytes and returns the number of changes in it: for fuzzing.
pub fn count_records(bytes: &[u8]) -> Result<usize, StoreError> {
    let first = bytes.get(12..20).and_then(|b| <[u8; 8]>::try_from(b).ok()).map_or(0, u64::from_le_bytes);
    read_journal(Path::new("journal"), bytes, first, true).map(|(_, records)| records.len())
}
