// SPDX-License-Identifier: Apache-2.0
//! How far the acknowledged changes reach: a mark beside the journal, so that a journal cut between two records is noticed.
//!
//! A journal's own bytes cannot tell that its last records are gone. The file `tail` holds the number of the last acknowledged
//! change. It is written after the journal is synced, and not synced itself: a change costs one sync, as before. So the
//! mark may lag after a power loss and is never ahead: a store that ends before its mark has lost something.

use super::{io, StoreError};
use model::bytes::{file_head, read_file_head};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MARK: &[u8; 8] = b"TUNNYend";

/// Where the mark lies.
pub(super) fn path(dir: &Path) -> PathBuf {
    dir.join("tail")
}

/// What a directory says of its acknowledged changes.
pub(super) enum Mark {
    /// There is no file.
    Missing,
    /// There is one, and it cannot be read.
    Damaged,
    /// Everything up to this number is acknowledged.
    Upto(u64),
}

/// The mark of a directory.
pub(super) fn read(dir: &Path) -> Result<Mark, StoreError> {
    let path = path(dir);
    match std::fs::read(&path) {
        Ok(bytes) => Ok(match read_file_head(MARK, &bytes) {
            Some(Ok((_, number))) => Mark::Upto(number),
            _ => Mark::Damaged,
        }),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Mark::Missing),
        Err(e) => Err(io("read", &path)(e)),
    }
}

/// The mark, open for writing.
#[derive(Debug)]
pub(super) struct Tail(File);

impl Tail {
    pub(super) fn open(dir: &Path, number: u64) -> Result<Tail, StoreError> {
        let path = path(dir);
        if !path.exists() {
            // It comes into being whole: an empty one would be a damaged one.
            let temporary = dir.join("tail.new");
            let write = || {
                let file = File::create(&temporary)?;
                file.write_all_at(&file_head(MARK, number), 0)?;
                file.sync_all()?;
                std::fs::rename(&temporary, &path)
            };
            write().map_err(io("create", &path))?;
        }
        let tail = Tail(OpenOptions::new().write(true).open(&path).map_err(io("open", &path))?);
        tail.set(number);
        Ok(tail)
    }

    /// The open file.
    pub(super) fn file(&self) -> &File {
        &self.0
    }

    /// Notes that everything up to `number` is acknowledged. One that cannot be written lags, which is allowed.
    pub(super) fn set(&self, number: u64) {
        let _ = self.0.write_all_at(&file_head(MARK, number), 0);
    }
}
