// SPDX-License-Identifier: Apache-2.0
//! Former configurations, for a rollback: what the store no longer needs moves to the folder `past` instead of being deleted.
//!
//! Snapshots and closed journals never change, so keeping them costs a rename and no copy, and a change costs nothing more than
//! before. Any kept change number is made again from the last snapshot at or before it and the records behind that. The folder has
//! a limit: [`BYTES_LEAST`] or twice the snapshot's size, and [`SNAPSHOTS_MAX`] snapshots; the oldest go first.

use super::recover::{read_journal, Recovered};
use super::{io, journal_files, journal_path, snapshot_path, StoreError};
use model::Model;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Bytes that former snapshots and journals may always have.
const BYTES_LEAST: u64 = 64 << 20;
/// Former snapshots at most.
const SNAPSHOTS_MAX: usize = 64;
/// A compaction may move files while they are looked for.
const ATTEMPTS: u32 = 5;

fn folder(dir: &Path) -> PathBuf {
    dir.join("past")
}

fn snapshot_of(dir: &Path, number: u64) -> PathBuf {
    folder(dir).join(format!("snapshot-{number:020}"))
}

/// Keeps the snapshot in place, which another is about to replace. A file system without hard links keeps none.
pub(super) fn keep_snapshot(dir: &Path, number: u64) {
    if number > 0 && std::fs::create_dir_all(folder(dir)).is_ok() {
        let _ = std::fs::hard_link(snapshot_path(dir), snapshot_of(dir, number));
    }
}

/// Keeps a journal that the snapshot covers. What cannot be kept is removed.
pub(super) fn keep_journal(dir: &Path, first: u64) -> Result<(), StoreError> {
    let path = journal_path(dir, first);
    let kept =
        std::fs::create_dir_all(folder(dir)).and_then(|()| std::fs::rename(&path, journal_path(&folder(dir), first)));
    match kept {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && !path.exists() => Ok(()),
        Err(_) => super::remove(&path),
    }
}

/// Numbers of the former snapshots, in order.
fn snapshots(dir: &Path) -> Vec<u64> {
    let entries = std::fs::read_dir(folder(dir)).into_iter().flatten().flatten();
    let names = entries.filter_map(|e| e.file_name().to_str()?.strip_prefix("snapshot-")?.parse().ok());
    let mut found: Vec<u64> = names.collect();
    found.sort_unstable();
    found
}

fn journals(dir: &Path) -> Vec<u64> {
    journal_files(&folder(dir)).unwrap_or_default()
}

/// The last change that a former snapshot or journal proves; 0 if nothing is kept.
pub(super) fn latest(dir: &Path) -> u64 {
    let begun = journals(dir).last().map_or(0, |first| first.saturating_sub(1));
    snapshots(dir).last().map_or(begun, |last| begun.max(*last))
}

/// Removes the oldest until the rest is within the limit. What cannot be removed is tried again the next time.
pub(super) fn prune(dir: &Path, snapshot_bytes: u64) {
    let limit = BYTES_LEAST.max(snapshot_bytes.saturating_mul(2));
    let bytes = |path: PathBuf| std::fs::metadata(path).map_or(0, |m| m.len());
    loop {
        let (old, journals) = (snapshots(dir), journals(dir));
        let used: u64 = old.iter().map(|n| bytes(snapshot_of(dir, *n))).sum::<u64>()
            + journals.iter().map(|n| bytes(journal_path(&folder(dir), *n))).sum::<u64>();
        if used <= limit && old.len() <= SNAPSHOTS_MAX {
            return;
        }
        // Without the oldest snapshot, the journals before the next one lead nowhere.
        let next = old.get(1).copied().unwrap_or(u64::MAX);
        let mut gone: Vec<PathBuf> = old.first().map(|n| snapshot_of(dir, *n)).into_iter().collect();
        gone.extend(journals.iter().filter(|first| **first <= next).map(|first| journal_path(&folder(dir), *first)));
        if gone.is_empty() || gone.iter().any(|path| std::fs::remove_file(path).is_err()) {
            return;
        }
    }
}

/// The oldest change number that can be made again. `snapshot` is the number of the snapshot in place.
pub(super) fn oldest(dir: &Path, snapshot: u64) -> u64 {
    snapshots(dir).first().map_or(snapshot, |first| snapshot.min(*first))
}

/// The model as it was after change `number`.
pub(super) fn model_at(dir: &Path, number: u64) -> Result<Model, StoreError> {
    let mut last = Err(StoreError::NotKept(number));
    for _ in 0..ATTEMPTS {
        last = try_model_at(dir, number);
        if !matches!(&last, Err(StoreError::Io { error, .. }) if error.kind() == std::io::ErrorKind::NotFound) {
            break;
        }
    }
    last
}

fn try_model_at(dir: &Path, number: u64) -> Result<Model, StoreError> {
    let load = |path: &Path| {
        Model::load_snapshot(path).map_err(|error| match error {
            model::SnapshotError::Io { what, error } => StoreError::Io { what, error },
            error => StoreError::Snapshot { file: path.to_path_buf(), error },
        })
    };
    let current = snapshot_path(dir);
    let mut found = if current.exists() { Some(load(&current)?).filter(|(_, n)| *n <= number) } else { None };
    if found.is_none() {
        let before = snapshots(dir).into_iter().rfind(|n| *n <= number);
        found = before.map(|n| load(&snapshot_of(dir, n))).transpose()?;
    }
    let (model, from) = found.ok_or(StoreError::NotKept(number))?;
    let mut files: BTreeMap<u64, PathBuf> =
        journals(dir).into_iter().map(|n| (n, journal_path(&folder(dir), n))).collect();
    files.extend(journal_files(dir)?.into_iter().map(|n| (n, journal_path(dir, n))));
    let firsts: Vec<u64> = files.keys().copied().collect();
    let mut records = Vec::new();
    for (i, (first, path)) in files.iter().enumerate() {
        let covered = firsts.get(i + 1).is_some_and(|next| *next <= from + 1);
        if covered || *first > number {
            continue;
        }
        let bytes = std::fs::read(path).map_err(io("read", path))?;
        let (_, some) = read_journal(path, &bytes, *first, true)?;
        records.extend(some.into_iter().filter(|(n, _)| *n <= number));
    }
    let mut state = Recovered::at(model, from);
    state.replay(records, dir)?;
    if state.number == number {
        Ok(state.model)
    } else {
        Err(StoreError::NotKept(number))
    }
}
