// SPDX-License-Identifier: Apache-2.0
//! The state on disk: a snapshot and the changes since.
//!
//! A directory holds `snapshot` (a model, and the number of the last change in it), one or more `journal-N` (changes from
//! number N on, a frame each) and `lock`. The property that it keeps: **once [`Store::append`] has returned, the change survives
//! whatever happens next** (SIGKILL, power loss), and a change whose append did not return is there whole or not at all.
//!
//! - A change is journalled before it is published to the tables: validate, journal, publish, acknowledge. If the tables
//!   refuse it, [`Store::abort`] journals that it does not count.
//! - An append is one write and one fdatasync. If the write fails, what it left is cut off again. After a failed sync nobody
//!   knows what the disk holds, so the next thing written is a whole snapshot ([`Store::heal`]). Until one of both succeeds no
//!   change is taken.
//! - A crash may leave a torn frame at the very end of the last journal. It was never acknowledged; opening cuts it off
//!   and says so. A bad frame with an intact one behind it is no torn write but damage, and opening refuses. So it does if the
//!   journal ends before the last acknowledged change (module `tail`), or if its very first record is bad: the first change of all is
//!   written as a snapshot, so an empty configuration is never what is left of a damaged one.
//! - Files come into being whole: written beside, synced, renamed, directory synced. A compaction starts a new journal first and
//!   then makes a new snapshot of the old snapshot and the closed journals, from the files alone: no lock, no copy of
//!   the live model; it may run in a thread of its own. Whatever a crash leaves of it, numbers tell what is covered.
//! - What is covered is kept for a while (module `past`), so that any of the last changes can be taken back.
//! - Files that somebody removes or replaces under a running node are noticed at the next change, or by [`Store::heal`] before (module
//!   `displaced`): the state is written anew as a whole.
//! - `id` names the state: tables that were filled from another one are told apart by it.
#![forbid(unsafe_code)]

mod displaced;
mod past;
mod recover;
mod tail;

use model::bytes::{file_head, put_documents, put_frame, put_u64, FILE_HEAD, FRAME_MAX};
use model::{Documents, Model, SnapshotError};
use nix::fcntl::{Flock, FlockArg};
use parking_lot::Mutex;
pub use recover::count_records;
use recover::{Journal, Recovered};
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tail::Tail;
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

/// Room that a journal must find behind its end before it counts as writable again.
const ROOM: i64 = 64 << 10;

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
    /// Acknowledged changes are gone.
    #[error(
        "the journal in {} ends at change {found}, but change {acknowledged} was acknowledged: it was cut or replaced. Restore the directory from a \
         copy; or accept the loss: remove the file `tail` in it and start again", .dir.display()
    )]
    Cut {
        /// Directory.
        dir: PathBuf,
        /// The last change that is there.
        found: u64,
        /// The last one that was acknowledged.
        acknowledged: u64,
    },
    /// The configuration is gone as a whole.
    #[error(
        "{} holds no configuration, but its history knows change {known}: files that held it (`snapshot`, `journal-*`) are gone, so the configuration is \
         lost, not empty. Restore the directory from a copy; or move it away to begin with an empty one", .dir.display()
    )]
    Gone {
        /// Directory.
        dir: PathBuf,
        /// The last change that is known of.
        known: u64,
    },
    /// A former configuration that is not kept (any more).
    #[error("the configuration after change {0} is not kept: see `tunny history` for those that are")]
    NotKept(u64),
}

/// What opening a store found.
#[derive(Clone, Debug, Default)]
pub struct Opened {
    /// Number of the last change.
    pub number: u64,
    /// Changes replayed from journals.
    pub replayed: u64,
    /// What names this state.
    pub id: String,
    /// What an operator should know, as that a torn change was cut off.
    pub notes: Vec<String>,
}

/// The state on disk, open for appending.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    lock: Flock<File>,
    /// What the file `id` says.
    id: String,
    journal: File,
    journal_first: u64,
    number: u64,
    journal_bytes: u64,
    snapshot_bytes: u64,
    /// Number of the snapshot in place. A compaction in another thread must not put an older one over it.
    gate: Arc<Mutex<InPlace>>,
    /// Bytes of the open journal that are known to be good.
    journal_end: u64,
    tail: Tail,
    trouble: Option<Trouble>,
    /// What was removed or replaced under the running node, and is written anew since.
    displaced: Option<String>,
}

/// The snapshot in place.
#[derive(Debug, Default)]
struct InPlace {
    /// The last change in it.
    number: u64,
    /// Device and inode.
    file: Option<(u64, u64)>,
}

impl InPlace {
    fn now(dir: &Path, number: u64) -> InPlace {
        InPlace { number, file: displaced::inode(&snapshot_path(dir)) }
    }
}

/// Why no change is taken at the moment.
#[derive(Debug)]
struct Trouble {
    why: String,
    /// A failed sync or snapshot: changes up to this number may be on disk, or not. None: the journal's end is torn.
    doubt: Option<u64>,
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
        Store::open_noting(dir, 0)
    }

    /// The same; `noted` is the last change that others have noted in the directory.
    pub fn open_noting(dir: &Path, noted: u64) -> Result<(Store, Model, Opened), StoreError> {
        std::fs::create_dir_all(dir).map_err(io("create", dir))?;
        let lock = take_lock(dir)?;
        let mut state = Recovered::read(dir, u64::MAX)?;
        state.check_end(dir, noted)?;
        let id = identity(dir, &mut state.notes)?;
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
        let journal_end = journal.seek(SeekFrom::End(0)).map_err(io("read", &path))?;
        past::prune(dir, state.snapshot_bytes);
        let opened = Opened { number: state.number, replayed: state.replayed, id, notes: state.notes };
        let mut store = Store {
            dir: dir.to_path_buf(),
            lock,
            id: opened.id.clone(),
            journal,
            journal_first: first,
            number: state.number,
            journal_bytes: state.journals.iter().map(|j| j.good).sum(),
            snapshot_bytes: state.snapshot_bytes,
            gate: Arc::new(Mutex::new(InPlace::now(dir, state.snapshot_number))),
            journal_end,
            tail: Tail::open(dir, state.number)?,
            trouble: None,
            displaced: None,
        };
        // A disk without room is known of before the first change is refused.
        if let Err(e) = store.cut_back() {
            store.trouble = Some(Trouble { why: e.to_string(), doubt: None });
        }
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

    /// Why no change is taken at the moment, if that is so.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_ref().map(|t| t.why.as_str())
    }

    /// The model as it was after a change, if that is still kept.
    pub fn model_at(&self, number: u64) -> Result<Model, StoreError> {
        past::model_at(&self.dir, number)
    }

    /// The oldest change number that [`Store::model_at`] can make again.
    pub fn oldest(&self) -> u64 {
        past::oldest(&self.dir, self.gate.lock().number)
    }

    /// After a failed write: makes the store writable again, if the disk lets it. `model` is what has been acknowledged.
    pub fn heal(&mut self, model: &Model) -> Result<(), StoreError> {
        match self.trouble.as_ref().map(|t| t.doubt) {
            None if self.look().is_some() => self.save(model, self.number).map(drop),
            None => Ok(()),
            Some(None) => self.cut_back(),
            Some(Some(upto)) => self.save(model, upto).map(drop),
        }
    }

    /// Cuts off what a failed write left, and asks for a little room behind it.
    fn cut_back(&mut self) -> Result<(), StoreError> {
        let path = journal_path(&self.dir, self.journal_first);
        let end = self.journal_end;
        let mut cut = || {
            self.journal.set_len(end)?;
            self.journal.seek(SeekFrom::Start(end))?;
            self.journal.sync_all()?;
            use nix::fcntl::{fallocate, FallocateFlags};
            match fallocate(self.journal.as_fd(), FallocateFlags::FALLOC_FL_KEEP_SIZE, end as i64, ROOM) {
                // A file system that cannot reserve room: the next write shows whether there is some.
                Ok(()) | Err(nix::Error::EOPNOTSUPP | nix::Error::ENOSYS) => Ok(()),
                Err(e) => Err(e.into()),
            }
        };
        cut().map_err(io("write", &path))?;
        self.trouble = None;
        Ok(())
    }

    /// Makes a change durable that `model` has already taken; returns its number.
    pub fn append(&mut self, docs: &Documents, model: &Model) -> Result<u64, StoreError> {
        self.append_all(&[docs], model)
    }

    /// Makes several changes durable with one sync, each whole or not at all; `model` has taken all of them. Returns the
    /// number of the last.
    pub fn append_all(&mut self, sets: &[&Documents], model: &Model) -> Result<u64, StoreError> {
        let all = sets.len() as u64;
        match self.trouble.as_ref().map(|t| t.doubt) {
            Some(Some(upto)) => return self.save(model, upto + all),
            Some(None) => self.cut_back()?,
            None => {}
        }
        if self.number == 0 || self.look().is_some() {
            return self.save(model, self.number + all);
        }
        let (mut out, mut record) = (Vec::new(), Vec::new());
        let mut number = self.number;
        for docs in sets {
            number += 1;
            record.clear();
            put_u64(&mut record, number);
            record.push(RECORD_CHANGE);
            put_documents(&mut record, docs);
            if record.len() > RECORD_MAX.min(FRAME_MAX) || out.len() > 4 * RECORD_MAX {
                return self.save(model, self.number + all);
            }
            put_frame(&mut out, &record);
        }
        self.write(&out, number)?;
        Ok(number)
    }

    /// Makes a model durable as a whole, in place of everything before (a replaced configuration).
    pub fn replace(&mut self, model: &Model) -> Result<u64, StoreError> {
        self.save(model, self.next_number())
    }

    /// The number behind all that may be on disk.
    fn next_number(&self) -> u64 {
        self.trouble.as_ref().and_then(|t| t.doubt).unwrap_or(self.number) + 1
    }

    /// Journals that the last `count` changes do not count, since the tables refused them. `model` is the model without them.
    pub fn abort(&mut self, count: u64, model: &Model) -> Result<(), StoreError> {
        let first = (self.number + 1).saturating_sub(count);
        if first < self.journal_first || self.trouble.is_some() || self.look().is_some() {
            // The change is in the snapshot already.
            return self.save(model, self.next_number()).map(|_| ());
        }
        let mut record = Vec::new();
        put_u64(&mut record, self.number + 1);
        record.push(RECORD_ABORT);
        put_u64(&mut record, first);
        let mut out = Vec::new();
        put_frame(&mut out, &record);
        self.write(&out, self.number + 1)
    }

    /// Appends records, the last of which is number `number`.
    fn write(&mut self, bytes: &[u8], number: u64) -> Result<(), StoreError> {
        let path = journal_path(&self.dir, self.journal_first);
        let (done, doubt) = match self.journal.write_all(bytes) {
            Ok(()) => (self.journal.sync_data(), Some(number)),
            torn => (torn, None),
        };
        done.map_err(io("write", &path)).inspect_err(|e| self.trouble = Some(Trouble { why: e.to_string(), doubt }))?;
        self.journal_bytes += bytes.len() as u64;
        self.journal_end += bytes.len() as u64;
        self.number = number;
        self.tail.set(number);
        Ok(())
    }

    /// A new snapshot that holds everything up to `number`, and an empty journal behind it.
    fn save(&mut self, model: &Model, number: u64) -> Result<u64, StoreError> {
        let before = self.trouble.take().and_then(|t| t.doubt).unwrap_or(0);
        let saved = self.try_save(model, number);
        saved.inspect_err(|e| self.trouble = Some(Trouble { why: e.to_string(), doubt: Some(before.max(number)) }))
    }

    fn try_save(&mut self, model: &Model, number: u64) -> Result<u64, StoreError> {
        let foreign = self.take_place()?;
        // What a failed write left behind the journal's end must not stand in the way of the next journal.
        let path = journal_path(&self.dir, self.journal_first);
        self.journal.set_len(self.journal_end).map_err(io("cut", &path))?;
        // Once the snapshot is in place nothing more may fail for want of room.
        let prepared = prepare_journal(&self.dir, number + 1)?;
        let path = snapshot_path(&self.dir);
        let mut gate = self.gate.lock();
        if !foreign {
            past::keep_snapshot(&self.dir, gate.number);
        }
        let saved = model.save_snapshot(&path, number);
        self.snapshot_bytes = saved.map_err(|error| StoreError::Snapshot { file: path, error })?;
        *gate = InPlace::now(&self.dir, number);
        drop(gate);
        self.number = number;
        self.enter_journal(prepared)?;
        for first in journal_files(&self.dir)? {
            match first <= number {
                // What somebody else put there is no past of this state.
                true if foreign => remove(&journal_path(&self.dir, first))?,
                true => past::keep_journal(&self.dir, first)?,
                false => {}
            }
        }
        past::prune(&self.dir, self.snapshot_bytes);
        self.journal_bytes = 0;
        self.tail.set(number);
        Ok(number)
    }

    fn begin_journal(&mut self) -> Result<(), StoreError> {
        let prepared = prepare_journal(&self.dir, self.number + 1)?;
        self.enter_journal(prepared)
    }

    /// Goes on in a journal that was prepared.
    fn enter_journal(&mut self, file: File) -> Result<(), StoreError> {
        let first = self.number + 1;
        place_journal(&self.dir, first)?;
        (self.journal, self.journal_first, self.journal_end) = (file, first, FILE_HEAD as u64);
        Ok(())
    }

    /// Whether the journals have grown so large that a compaction pays.
    pub fn compaction_due(&self) -> bool {
        self.trouble.is_none() && self.journal_bytes > COMPACT_BYTES.max(self.snapshot_bytes)
    }

    /// Starts a new journal; the job returned makes one snapshot of everything before it, in any thread.
    pub fn begin_compaction(&mut self) -> Result<Compaction, StoreError> {
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
    gate: Arc<Mutex<InPlace>>,
}

impl Compaction {
    /// Writes the snapshot and removes the journals that it covers; returns its size.
    pub fn run(self) -> Result<u64, StoreError> {
        let path = snapshot_path(&self.dir);
        match self.fold(&path) {
            // A snapshot of a later change came in between and took the journals away: nothing is left to do.
            Err(_) if self.gate.lock().number > self.upto => {
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
        let compacted = self.dir.join(COMPACTED);
        let saved = state.model.save_snapshot(&compacted, self.upto);
        let bytes = saved.map_err(|error| StoreError::Snapshot { file: compacted.clone(), error })?;
        let mut gate = self.gate.lock();
        if gate.number > self.upto {
            remove(&compacted)?;
            return std::fs::metadata(&path).map(|m| m.len()).map_err(io("read", &path));
        }
        past::keep_snapshot(&self.dir, gate.number);
        std::fs::rename(&compacted, &path).map_err(io("rename", &compacted))?;
        sync_dir(&self.dir)?;
        *gate = InPlace::now(&self.dir, self.upto);
        drop(gate);
        for first in journal_files(&self.dir)? {
            if first <= self.upto {
                past::keep_journal(&self.dir, first)?;
            }
        }
        past::prune(&self.dir, bytes);
        sync_dir(&self.dir)?;
        Ok(bytes)
    }
}

fn remove(path: &Path) -> Result<(), StoreError> {
    std::fs::remove_file(path).map_err(io("remove", path))
}

/// Locks a directory.
fn take_lock(dir: &Path) -> Result<Flock<File>, StoreError> {
    let path = dir.join("lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    Flock::lock(file.map_err(io("open", &path))?, FlockArg::LockExclusiveNonblock)
        .map_err(|_| StoreError::Locked(dir.to_path_buf()))
}

/// What names a state; one that has no name is given one.
fn identity(dir: &Path, notes: &mut Vec<String>) -> Result<String, StoreError> {
    let path = dir.join("id");
    let known = match std::fs::read(&path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(e) => return Err(io("read", &path)(e)),
    };
    if path.exists() && !well_formed(&known) {
        notes.push(format!(
            "{} is damaged, so the state has a new id: tables that were filled under the former one are taken only with --adopt",
            path.display()
        ));
    }
    if well_formed(&known) {
        return Ok(known.trim_end().to_string());
    }
    let mut random = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut f| std::io::Read::read_exact(&mut f, &mut random))
        .map_err(io("name", dir))?;
    let id: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    write_identity(dir, &id)?;
    Ok(id)
}

fn write_identity(dir: &Path, id: &str) -> Result<(), StoreError> {
    let (path, temporary) = (dir.join("id"), dir.join("id.new"));
    let write = || {
        let mut file = File::create(&temporary)?;
        writeln!(file, "{id}")?;
        file.sync_all()?;
        std::fs::rename(&temporary, &path)
    };
    write().map_err(io("write", &path))?;
    sync_dir(dir)
}

fn well_formed(id: &str) -> bool {
    id.len() == 33 && id.ends_with('\n') && id.trim_end().bytes().all(|b| b.is_ascii_hexdigit())
}

/// Creates an empty journal, whole or not at all.
fn create_journal(dir: &Path, first: u64) -> Result<File, StoreError> {
    let file = prepare_journal(dir, first)?;
    place_journal(dir, first)?;
    Ok(file)
}

/// Writes an empty journal beside its place.
fn prepare_journal(dir: &Path, first: u64) -> Result<File, StoreError> {
    let temporary = dir.join("journal.new");
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(&file_head(JOURNAL_MARK, first))?;
        file.sync_all()?;
        Ok(file)
    };
    write().map_err(io("create", &temporary))
}

/// Puts the prepared journal in its place.
fn place_journal(dir: &Path, first: u64) -> Result<(), StoreError> {
    let path = journal_path(dir, first);
    std::fs::rename(dir.join("journal.new"), &path).map_err(io("create", &path))?;
    sync_dir(dir)
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
