// SPDX-License-Identifier: Apache-2.0
//! [`FileSlots`]: an agent's records in files, which outlive its process: the kernel keeps what was stored, whenever the process dies. They
//! belong on a file system in memory (/run): after a restart of the machine a record has no meaning any more.

use conntrack_compact::{Backing, WordMemory};
use nix::sys::mman::{mmap, munmap, MapFlags, ProtFlags};
use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::Arc;

/// Bytes of a line.
const LINE: usize = abi::LINE_BYTES as usize;

/// A file that is mapped.
struct Mapped {
    at: NonNull<std::ffi::c_void>,
    bytes: usize,
}

// SAFETY: the mapping lives as long as the struct, and is accessed by atomics only.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn of(file: &File) -> io::Result<Mapped> {
        let bytes = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::InvalidData)? / LINE * LINE;
        let length = NonZeroUsize::new(bytes).ok_or(io::ErrorKind::InvalidData)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let at =
            unsafe { mmap(None, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED, file, 0) }?;
        Ok(Mapped { at, bytes })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `of`, and nothing refers to it once its owner is dropped.
        let _ = unsafe { munmap(self.at, self.bytes) };
    }
}

impl WordMemory for Mapped {
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, of this length, and lives as long as `self`; all access is atomic.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast(), self.bytes / 8) }
    }
}

/// Slots in files of a folder.
pub struct FileSlots(PathBuf);

impl FileSlots {
    /// In this folder, which is made if it is not there; nobody else may look into it.
    pub fn open(dir: &Path) -> io::Result<FileSlots> {
        use std::os::unix::fs::DirBuilderExt;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        Ok(FileSlots(dir.to_path_buf()))
    }

    fn file(&self, slot: u32) -> PathBuf {
        self.0.join(format!("slot-{slot}"))
    }

    fn new_file(&self, slot: u32) -> PathBuf {
        self.0.join(format!("slot-{slot}.new"))
    }
}

impl Backing for FileSlots {
    fn left(&self, slot: u32) -> Option<Arc<dyn WordMemory>> {
        let file = OpenOptions::new().read(true).write(true).open(self.file(slot)).ok()?;
        Mapped::of(&file).map(|m| Arc::new(m) as Arc<dyn WordMemory>).ok()
    }

    fn make(&self, slot: u32, lines: u64) -> io::Result<Arc<dyn WordMemory>> {
        let path = self.new_file(slot);
        let _ = std::fs::remove_file(&path);
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let bytes =
            lines.checked_mul(LINE as u64).and_then(|b| i64::try_from(b).ok()).ok_or(io::ErrorKind::OutOfMemory)?;
        // All of it now: a store into a page that the file system has no room for would end the process.
        nix::fcntl::posix_fallocate(&file, 0, bytes)?;
        Ok(Arc::new(Mapped::of(&file)?))
    }

    fn enter(&self, slot: u32) -> io::Result<()> {
        std::fs::rename(self.new_file(slot), self.file(slot))
    }

    fn give_back(&self, slot: u32) {
        // There may be none.
        let _ = std::fs::remove_file(self.new_file(slot));
    }

    fn clear(&self, slot: u32) -> io::Result<()> {
        match std::fs::remove_file(self.file(slot)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }
}
