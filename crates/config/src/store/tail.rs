// SPDX-License-Identifier: Apache-2.0
//! How far the acknowledged changes reach: a mark beside the journal, so that a journal cut between two records is noticed.
//!
//! A journal's own bytes cannot tell that its last records are gone. The file `tail` holds the number of the last acknowledged
//! change. It is written after the journal is synced, and not synced itself: a change costs one sync, as before. So the
//! mark may lag after a power loss and is never ahead: a store that ends before its mark has lost something.

use super::{io, StoreError};
use crate::binary::frame::{file_head, read_file_head};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MARK: &[u8; 8] = b"TUNNYend";

/// Where the mark lies.
pub(super) fn path(dir: &Path) -> PathBuf {
    dir.join("tail")
}

/// The mark of a directory; none if there is no file, or none that can be read.
pub(super) fn read(dir: &Path) -> Result<Option<u64>, StoreError> {
    let path = path(dir);
    match std::fs::read(&path) {
        Ok(bytes) => Ok(read_file_head(MARK, &bytes).and_then(Result::ok).map(|(_, number)| number)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(io("read", &path)(e)),
    }
}

/// The mark, open for writing.
#[derive(Debug)]
pub(super) struct Tail(File);

impl Tail {
    pub(super) fn open(dir: &Path, number: u64) -> Result<Tail, StoreError> {
        let path = path(dir);
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let tail = Tail(file.map_err(io("open", &path))?);
        tail.set(number);
        Ok(tail)
    }

    /// Notes that everything up to `number` is acknowledged. One that cannot be written lags, which is allowed.
    pub(super) fn set(&self, number: u64) {
        let _ = self.0.write_all_at(&file_head(MARK, number), 0);
    }
}
