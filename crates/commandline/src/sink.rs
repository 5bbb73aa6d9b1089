// SPDX-License-Identifier: Apache-2.0
//! Files that commands write.

use std::fs::File;
use std::path::{Path, PathBuf};

/// The file to write. Under another name until it is whole, so that a failure leaves what was there before; a pipe or device is
/// written as it is.
pub struct Sink {
    /// Where to write.
    pub file: File,
    /// Where the bytes are, and where they shall be.
    rename: Option<(PathBuf, PathBuf)>,
}

impl Sink {
    /// Opens it.
    pub fn create(path: &Path) -> std::io::Result<Sink> {
        if std::fs::metadata(path).is_ok_and(|m| !m.is_file()) {
            return Ok(Sink { file: File::options().write(true).open(path)?, rename: None });
        }
        // Behind a symbolic link the file itself is replaced.
        let target = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let mut name = target.file_name().ok_or(std::io::ErrorKind::InvalidInput)?.to_os_string();
        name.push(format!(".{}.new", std::process::id()));
        let temporary = target.with_file_name(name);
        let file = File::create_new(&temporary)?;
        Ok(Sink { file, rename: Some((temporary, target)) })
    }

    /// The file is whole.
    pub fn keep(mut self) -> std::io::Result<()> {
        let Some((temporary, target)) = &self.rename else { return Ok(()) };
        std::fs::rename(temporary, target)?;
        self.rename = None;
        Ok(())
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if let Some((temporary, _)) = &self.rename {
            let _ = std::fs::remove_file(temporary);
        }
    }
}
