// SPDX-License-Identifier: Apache-2.0
//! Reading the files that commands are given: what may be a folder, a pipe, a terminal or standard input.

use crate::output::Patience;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Files as given, folders as the configuration files in them. A folder without any is an error: it is a slip of the hand.
pub fn files(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        let inside = node::daemon::expand(std::slice::from_ref(path))?;
        if inside.is_empty() {
            anyhow::bail!("the folder {} has no file that ends in .yaml, .yml, .ndjson or .jsonl", path.display());
        }
        files.extend(inside);
    }
    // A file that is named twice, perhaps once by its folder, says what it says once.
    let mut seen = std::collections::HashSet::new();
    files.retain(|file| !file.is_file() || file.canonicalize().is_ok_and(|real| seen.insert(real)));
    Ok(files)
}

/// A time in seconds, as an option.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.05..=86_400.0).contains(&s) => Ok(s),
        _ => Err("seconds are a number from 0.05 to 86400".into()),
    }
}

/// Says what is waited for, if reading these files takes long.
pub fn patience(files: &[PathBuf]) -> Patience {
    let waits = |path: &Path| {
        if model::is_standard_input(path) {
            return Some("reading standard input until it ends (on a terminal: Ctrl-D)".to_string());
        }
        let fifo = std::fs::metadata(path).is_ok_and(|m| m.file_type().is_fifo());
        fifo.then(|| format!("reading the pipe {} until its writer opens and closes it", path.display()))
    };
    let waiting: Vec<String> = files.iter().filter_map(|f| waits(f)).collect();
    Patience::new(if waiting.is_empty() { "reading".to_string() } else { waiting.join("; ") })
}
