// SPDX-License-Identifier: Apache-2.0
//! Files of the state that somebody removes or replaces under a running node.
//!
//! What is written to a file that has no name any more is gone with the process, and an acknowledged change with it. So before a change
//! is written each file is looked at by its name: is it still the one that the store has open, or has written? If not, the change goes to
//! disk as a whole snapshot with a new journal, mark, lock and id, and what lies there instead is no part of the state. It costs a few
//! system calls a commit, each far below the time of a sync.

use super::{journal_path, snapshot_path, sync_dir, take_lock, write_identity, Store, StoreError};
use crate::tail::{self, Tail};
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

fn of(m: Metadata) -> (u64, u64) {
    (m.dev(), m.ino())
}

/// Device and inode of what has a name now.
pub(super) fn inode(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(of)
}

fn is(file: &File, path: &Path) -> bool {
    file.metadata().is_ok_and(|m| inode(path) == Some(of(m)))
}

impl Store {
    /// A file that is not at its place any more.
    fn displaced_file(&self) -> Option<PathBuf> {
        let open = [
            (&self.journal, journal_path(&self.dir, self.journal_first)),
            (self.tail.file(), tail::path(&self.dir)),
            (&*self.lock, self.dir.join("lock")),
        ];
        let gone = open.into_iter().find(|(file, path)| !is(file, path)).map(|(_, path)| path);
        let id = self.dir.join("id");
        let named = || std::fs::read(&id).is_ok_and(|b| b.trim_ascii() == self.id.as_bytes());
        gone.or_else(|| (!named()).then(|| id.clone())).or_else(|| {
            // A compaction that is putting another snapshot there has the gate.
            let gate = self.gate.try_lock()?;
            let path = snapshot_path(&self.dir);
            (gate.number > 0 && inode(&path) != gate.file).then_some(path)
        })
    }

    /// The same, and notes it for the operator.
    pub(super) fn look(&mut self) -> Option<PathBuf> {
        let path = self.displaced_file()?;
        self.displaced = Some(format!(
            "{} was removed or replaced under the running node; the state is written anew as a whole, and nothing acknowledged is lost. \
             Leave the folder to the node",
            path.display()
        ));
        Some(path)
    }

    /// Whether a file is not at its place any more.
    pub fn is_displaced(&self) -> bool {
        self.displaced_file().is_some()
    }

    /// What was removed or replaced since the state was opened, in a sentence.
    pub fn displaced(&self) -> Option<&str> {
        self.displaced.as_deref()
    }

    /// Has the folder, lock, id and mark where they belong before a snapshot is written; whether anything lay there that is not the store's.
    pub(super) fn take_place(&mut self) -> Result<bool, StoreError> {
        if self.displaced_file().is_none() {
            return Ok(false);
        }
        std::fs::create_dir_all(&self.dir).map_err(super::io("create", &self.dir))?;
        if !is(&self.lock, &self.dir.join("lock")) {
            self.lock = take_lock(&self.dir)?;
        }
        write_identity(&self.dir, &self.id)?;
        if !is(self.tail.file(), &tail::path(&self.dir)) {
            // The mark of another state may be ahead.
            let _ = std::fs::remove_file(tail::path(&self.dir));
            self.tail = Tail::open(&self.dir, self.number)?;
        }
        sync_dir(&self.dir)?;
        Ok(true)
    }
}
