// SPDX-License-Identifier: Apache-2.0
//! What belongs to one node alone: the folder of its state, its socket, its pins and the tables behind them.
//!
//! Each is locked by itself, since each can be named by itself: two nodes that share any of them would take it from each other. A lock
//! ends with its process, however that ends. Beside the pinned tables lies the id of the state that filled them (an empty folder
//! `state-ID`: a BPF file system holds no files). A node whose state is another one would empty these tables, and so is refused
//! unless it is told to adopt them.

use crate::error::NodeError;
use nix::fcntl::{Flock, FlockArg};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time that a start waits for what a process that is ending still holds.
const PATIENCE: Duration = Duration::from_secs(4);
/// First part of the name of the folder that names the state of the tables.
const OWNER: &str = "state-";
/// The owner of tables that were filled without a state on disk.
pub const STATELESS: &str = "none";

/// Locks that are held as long as the node lives.
#[derive(Debug, Default)]
pub struct Claim {
    _locks: Vec<Flock<File>>,
}

impl Claim {
    /// Locks the socket, and the pins if there are to be any.
    pub fn new(socket: &Path, pins: Option<&Path>) -> Result<Claim, NodeError> {
        let mut locks = vec![lock_file(&beside(socket))?];
        locks.extend(pins.map(lock_pins).transpose()?.flatten());
        Ok(Claim { _locks: locks })
    }
}

/// The lock file of a socket.
fn beside(socket: &Path) -> PathBuf {
    let mut name = OsString::from(socket);
    name.push(".lock");
    name.into()
}

/// Takes a lock, for which a process that is ending is waited for.
fn patiently<T>(mut attempt: impl FnMut() -> Result<T, NodeError>) -> Result<T, NodeError> {
    let begun = Instant::now();
    loop {
        match attempt() {
            Err(NodeError::Locked(_)) if begun.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(20)),
            other => return other,
        }
    }
}

fn lock(path: &Path, open: impl Fn() -> std::io::Result<File>) -> Result<Flock<File>, NodeError> {
    patiently(|| {
        let file = open().map_err(NodeError::file("opening the lock", path))?;
        Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| NodeError::Locked(path.into()))
    })
}

fn lock_file(path: &Path) -> Result<Flock<File>, NodeError> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(NodeError::file("making the folder of the API socket", folder))?;
    }
    lock(path, || OpenOptions::new().create(true).truncate(false).write(true).open(path))
}

/// Locks the folder of the pins. None if there can be no such folder: opening the fast path says why.
fn lock_pins(pins: &Path) -> Result<Option<Flock<File>>, NodeError> {
    match std::fs::create_dir_all(pins) {
        Ok(()) => lock(pins, || File::open(pins)).map(Some),
        Err(_) => Ok(None),
    }
}

/// Locks the pins of an instance that is to be taken away; none if there are none.
pub(crate) fn pins_that_are_there(pins: &Path) -> Result<Option<Flock<File>>, NodeError> {
    match File::open(pins) {
        Ok(file) => Flock::lock(file, FlockArg::LockExclusiveNonblock).map(Some).map_err(|_| NodeError::Locked(pins.into())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(NodeError::file("opening", pins)(e)),
    }
}

/// Opens a state for which a process that is ending is waited for.
pub(crate) fn opened<T>(attempt: impl FnMut() -> Result<T, NodeError>) -> Result<T, NodeError> {
    patiently(attempt)
}

/// Ids of the states that the tables under `pins` were filled from. More than one: an adoption was interrupted.
fn owners(pins: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(pins).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.strip_prefix(OWNER).map(str::to_string)).collect()
}

/// Takes the tables under `pins` for the state `id`, or refuses because they belong to another one. `empty`: the state holds nothing, so
/// tables of a version that knew no ids cannot be its own.
pub fn take_tables(pins: &Path, id: &str, empty: bool, adopt: bool) -> Result<(), NodeError> {
    let owners = owners(pins);
    let pinned = !xdp::pinned_layouts(pins).is_empty();
    let ours = if owners.is_empty() { !empty } else { owners.iter().any(|owner| owner == id) };
    if pinned && !ours && !adopt {
        let owner = owners.first().cloned().unwrap_or_else(|| "an earlier version's".into());
        return Err(NodeError::OtherTables { pins: pins.into(), owner, id: id.into() });
    }
    if pinned && !ours {
        tracing::warn!("the tables under {} are adopted: they belonged to state {owners:?}, and say what state {id} says from now on", pins.display());
    }
    let own = pins.join(format!("{OWNER}{id}"));
    match std::fs::create_dir(&own) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(NodeError::file("making", own)(e)),
        _ => {}
    }
    // One that stays behind only makes this state's tables its own, too.
    for owner in owners.iter().filter(|owner| *owner != id) {
        let _ = std::fs::remove_dir(pins.join(format!("{OWNER}{owner}")));
    }
    Ok(())
}

/// Moves the state of a packaged node of an earlier version, which lay in the folder above, to where it belongs. Killed in between it goes on
/// the next time: everything is gathered under another name first.
pub fn move_earlier_state(dir: &Path) -> Result<bool, NodeError> {
    let Some(above) = dir.parent() else { return Ok(false) };
    let gathered = dir.with_extension("moving");
    let state = |name: &str| name == "snapshot" || name.starts_with("journal-") || ["counters", "layouts"].contains(&name);
    let names = || -> Vec<String> {
        let entries = std::fs::read_dir(above).into_iter().flatten().flatten();
        entries.filter_map(|e| e.file_name().into_string().ok()).filter(|name| state(name)).collect()
    };
    let there = names().iter().any(|name| name == "snapshot" || name.starts_with("journal-"));
    if dir.exists() || !(there || gathered.exists()) {
        return Ok(false);
    }
    let _lock = lock_file(&above.join("lock"))?;
    let refused = |e| NodeError::file("moving the state of an earlier version to", dir)(e);
    std::fs::create_dir_all(&gathered).map_err(refused)?;
    for name in names() {
        std::fs::rename(above.join(&name), gathered.join(&name)).map_err(refused)?;
    }
    std::fs::rename(&gathered, dir).map_err(refused)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plain folder does for what is asked of names.
    #[test]
    fn tables_of_another_state_are_taken_only_when_told_to() {
        let dir = tempfile::tempdir().unwrap();
        let pins = dir.path();
        take_tables(pins, "aa", true, false).unwrap();
        assert_eq!(owners(pins), ["aa"]);
        // Nothing is pinned yet: nobody loses anything.
        take_tables(pins, "bb", true, false).unwrap();
        assert_eq!(owners(pins), ["bb"]);
        std::fs::create_dir(pins.join("layout-00000000000000aa")).unwrap();
        take_tables(pins, "bb", true, false).unwrap();
        let e = take_tables(pins, "cc", false, false).unwrap_err().to_string();
        assert!(e.contains("state bb") && e.contains("state cc") && e.contains("--adopt") && e.contains("--uninstall"), "{e}");
        assert_eq!(owners(pins), ["bb"]);
        take_tables(pins, "cc", false, true).unwrap();
        assert_eq!(owners(pins), ["cc"]);
        // Tables of an earlier version: a state that holds something may be theirs, an empty one is not.
        std::fs::remove_dir(pins.join("state-cc")).unwrap();
        assert!(take_tables(pins, "dd", true, false).unwrap_err().to_string().contains("an earlier version's"));
        take_tables(pins, "dd", false, false).unwrap();
    }

    #[test]
    fn an_earlier_packages_state_is_moved_once_even_if_killed_in_between() {
        let above = tempfile::tempdir().unwrap();
        let dir = above.path().join("default");
        assert!(!move_earlier_state(&dir).unwrap());
        let write = |name: &str| std::fs::write(above.path().join(name), name).unwrap();
        ["snapshot", "journal-00000000000000000002", "counters", "lock"].into_iter().for_each(write);
        std::fs::create_dir(above.path().join("agent")).unwrap();
        // Killed after the first file.
        std::fs::create_dir(above.path().join("default.moving")).unwrap();
        std::fs::rename(above.path().join("snapshot"), above.path().join("default.moving/snapshot")).unwrap();
        assert!(move_earlier_state(&dir).unwrap());
        for name in ["snapshot", "journal-00000000000000000002", "counters"] {
            assert_eq!(std::fs::read_to_string(dir.join(name)).unwrap(), name);
        }
        assert!(above.path().join("agent").exists() && !above.path().join("snapshot").exists());
        // A state that is there already is not touched.
        write("snapshot");
        assert!(!move_earlier_state(&dir).unwrap());
    }
}
