// SPDX-License-Identifier: Apache-2.0
//! What a node knows of its controller and keeps on disk: small values, of which the last one is read at a start. A file that is torn or
//! cannot be read is none, and that is said; it says less than is there, and what comes twice changes nothing.

use serde::de::DeserializeOwned;
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};

/// The longest file that is read: one that is longer was not written here.
const LONGEST: u64 = 64 << 20;

/// A file of the folder of the state, if there is such a folder.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    file: Option<PathBuf>,
    /// What becomes of it if it cannot be written.
    without: &'static str,
}

impl Kept {
    /// The file of this name, and the value in it; `without`: what a restart does where it could not be written.
    pub fn open<T: DeserializeOwned + Default>(state: Option<&Path>, name: &str, without: &'static str) -> (Kept, T) {
        let file = state.map(|dir| dir.join(name));
        let value = file.as_ref().map(|file| (file, read(file)));
        let value = value.and_then(|(file, value)| match value {
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => {
                tracing::warn!("{} cannot be used, so {without}: {e}", file.display());
                None
            }
            Ok(value) => Some(value),
        });
        (Kept { file, without }, value.unwrap_or_default())
    }

    /// Keeps a value in place of the one before.
    pub fn set(&self, value: &impl Serialize) {
        let Some(file) = &self.file else { return };
        let new = file.with_extension("new");
        let text = serde_json::to_vec(value).unwrap_or_default();
        if let Err(e) = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, file)) {
            tracing::warn!("{} cannot be written, so after a restart {}: {e}", file.display(), self.without);
        }
    }
}

fn read<T: DeserializeOwned>(file: &Path) -> io::Result<T> {
    let length = std::fs::metadata(file)?.len();
    if length > LONGEST {
        return Err(io::Error::other(format!("its {length} bytes are more than {LONGEST}")));
    }
    Ok(serde_json::from_slice(&std::fs::read(file)?)?)
}
