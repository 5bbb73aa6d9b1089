// SPDX-License-Identifier: Apache-2.0
//! Reading what lies in a state's directory: the snapshot, the journals behind it, and what a crash has left.

use super::tail::{self, Mark};
use super::{
    io, journal_files, journal_path, past, remove, snapshot_path, StoreError, COMPACTED, JOURNAL_MARK, NUMBER_MAX,
};
use super::{RECORD_ABORT, RECORD_CHANGE};
use model::bytes::{frame_at, next_intact, read_documents, read_file_head, Found, Reader, FILE_HEAD};
use model::{Documents, Model, BINARY_VERSION};
use std::collections::HashSet;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

/// A journal that was read.
pub(super) struct Journal {
    pub(super) path: PathBuf,
    pub(super) first: u64,
    /// Number of the change that would come next.
    pub(super) next: u64,
    /// Bytes up to the end of the last intact frame.
    pub(super) good: u64,
    pub(super) len: u64,
}

/// What the files of a directory say.
pub(super) struct Recovered {
    pub(super) model: Model,
    pub(super) number: u64,
    pub(super) replayed: u64,
    pub(super) snapshot_bytes: u64,
    pub(super) snapshot_number: u64,
    pub(super) journals: Vec<Journal>,
    pub(super) notes: Vec<String>,
}

/// A record of a journal.
pub(super) enum Record {
    Change(Documents),
    Abort(u64),
}

impl Recovered {
    /// A model as it is after change `number`.
    pub(super) fn at(model: Model, number: u64) -> Recovered {
        let snapshot_number = number;
        Recovered {
            model,
            number,
            replayed: 0,
            snapshot_bytes: 0,
            snapshot_number,
            journals: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Reads the snapshot and the journals that begin at or before `upto`.
    pub(super) fn read(dir: &Path, upto: u64) -> Result<Recovered, StoreError> {
        let path = snapshot_path(dir);
        let mut state = Recovered::at(Model::new(), 0);
        let based = path.exists();
        if based {
            let loaded = Model::load_snapshot(&path);
            (state.model, state.number) = loaded.map_err(|error| StoreError::Snapshot { file: path.clone(), error })?;
            state.snapshot_number = state.number;
            state.snapshot_bytes = std::fs::metadata(&path).map_err(io("read", &path))?.len();
        }
        let files = journal_files(dir)?;
        let mut records = Vec::new();
        for (i, first) in files.iter().enumerate().filter(|(_, first)| **first <= upto) {
            let path = journal_path(dir, *first);
            if files.get(i + 1).is_some_and(|next| *next <= state.snapshot_number + 1) {
                // The snapshot has all of it: whatever a failed write left in it does not count.
                state.journals.push(Journal { path, first: *first, next: *first, good: 0, len: 0 });
                continue;
            }
            let bytes = std::fs::read(&path).map_err(io("read", &path))?;
            let last = i + 1 == files.len();
            let (good, found) = read_journal(&path, &bytes, *first, last)?;
            if !based && *first == 1 && found.is_empty() && good < bytes.len() as u64 {
                let what = "its first change cannot be read, and there is no snapshot, so the configuration is lost, not empty".into();
                return Err(StoreError::Damaged { file: path, offset: good, what });
            }
            let next = found.last().map_or(*first, |(n, _)| n.saturating_add(1));
            state.journals.push(Journal { path, first: *first, next, good, len: bytes.len() as u64 });
            records.extend(found);
        }
        state.replay(records, &path)?;
        Ok(state)
    }

    /// Applies the changes behind the snapshot, except those that were aborted.
    pub(super) fn replay(&mut self, records: Vec<(u64, Record)>, path: &Path) -> Result<(), StoreError> {
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

    /// Compares the last change that was found with what else the directory knows of changes: the mark beside the journal, what is kept
    /// of former configurations, and `noted`, which others have written down.
    pub(super) fn check_end(&mut self, dir: &Path, noted: u64) -> Result<(), StoreError> {
        let (found, mark) = (self.number, tail::read(dir)?);
        let known = noted.max(past::latest(dir));
        let acknowledged = match mark {
            Mark::Upto(number) => number,
            Mark::Damaged => known,
            Mark::Missing => 0,
        };
        // A journal begins behind what a snapshot or another journal holds.
        let begun = self.journals.iter().map(|j| j.first.saturating_sub(1)).max().unwrap_or(0);
        let gone = known.max(acknowledged).max(begun);
        if found == 0 && gone > 0 {
            return Err(StoreError::Gone { dir: dir.to_path_buf(), known: gone });
        }
        if found < acknowledged {
            return Err(StoreError::Cut { dir: dir.to_path_buf(), found, acknowledged });
        }
        let tail = tail::path(dir);
        match mark {
            Mark::Damaged => self.notes.push(format!(
                "{} is damaged, so a journal that was cut short would not have been noticed; it is made anew, and the state ends at change {found}",
                tail.display()
            )),
            Mark::Missing if found < known => self.notes.push(format!(
                "changes are lost: the state in {} ends at change {found}, and its history knows change {known}",
                dir.display()
            )),
            // Versions that made no mark made no id either.
            Mark::Missing if found > 0 && dir.join("id").exists() => self.notes.push(format!(
                "{} is missing, so a journal that was cut short would not have been noticed; it is made anew, and the state ends at change {found}",
                tail.display()
            )),
            _ => {}
        }
        Ok(())
    }

    /// Cuts off what a crash left of an unfinished append.
    pub(super) fn cut_torn_tail(&mut self) -> Result<(), StoreError> {
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
    pub(super) fn remove_covered(&mut self, dir: &Path) -> Result<(), StoreError> {
        let starts: Vec<u64> = self.journals.iter().map(|j| j.first).collect();
        for pair in starts.windows(2).filter(|pair| pair[1] <= self.snapshot_number + 1) {
            past::keep_journal(dir, pair[0])?;
            self.journals.retain(|j| j.first != pair[0]);
        }
        for name in ["snapshot.new", "journal.new", COMPACTED, "snapshot-compacted.new", "id.new", "tail.new"] {
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
pub(super) fn read_journal(
    path: &Path,
    bytes: &[u8],
    first: u64,
    last: bool,
) -> Result<(u64, Vec<(u64, Record)>), StoreError> {
    let damaged = |offset: usize, what: String| StoreError::Damaged { file: path.into(), offset: offset as u64, what };
    match read_file_head(JOURNAL_MARK, bytes) {
        Some(Ok((BINARY_VERSION, number))) if number == first => {}
        Some(Ok((BINARY_VERSION, number))) => {
            return Err(damaged(12, format!("it says that it begins at change {number}")))
        }
        Some(Ok((version, _))) => {
            return Err(damaged(8, format!("it has version {version}, this program reads {BINARY_VERSION}")))
        }
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
        RECORD_CHANGE => Record::Change(read_documents(&mut r)?),
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
