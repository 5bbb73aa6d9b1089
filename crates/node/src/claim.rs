// SPDX-License-Identifier: Apache-2.0
//! What belongs to one node alone: the folder of its state, its socket, its pins and the tables behind them.
//!
//! Each is locked by itself, since each can be named by itself: two nodes that share any of them would take it from each other. A lock
//! ends with its process, however that ends. Beside the pinned tables lies the id of the state that filled them (an empty folder
//! `state-ID`: a BPF file system holds no files). A node whose state is another one would empty these tables, and so is refused
//! unless it is told to adopt them. Beside them lies, too, the number of the last change that they may hold (`generation-N`): an older copy
//! of the state has the same id, and would take back what was changed since.

use crate::error::NodeError;
use nix::fcntl::{Flock, FlockArg};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time that a start waits for what a process that is ending still holds.
const PATIENCE: Duration = Duration::from_secs(4);
/// First part of the name of the folder that names the state of the tables.
const OWNER: &str = "state-";
/// First part of the name of the folder that names the last change that the tables may hold.
const GENERATION: &str = "generation-";
/// The owner of tables that were filled without a state on disk.
pub const STATELESS: &str = "none";

/// Locks that are held as long as the node lives.
#[derive(Debug, Default)]
pub struct Claim {
    _locks: Vec<Flock<File>>,
}

impl Claim {
    /// Locks the socket and the pins. `fast`: there is to be a fast path, so pins are made where there are none.
    pub fn new(socket: &Path, pins: Option<&Path>, fast: bool) -> Result<Claim, NodeError> {
        let mut locks = vec![lock_file(&lock_path(socket))?];
        let lock_pins = |pins| if fast { lock_pins(pins) } else { patiently(|| pins_that_are_there(pins)) };
        locks.extend(pins.map(lock_pins).transpose()?.flatten());
        Ok(Claim { _locks: locks })
    }
}

/// The lock file of a socket.
fn lock_path(socket: &Path) -> PathBuf {
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

/// As [`NodeError::file`]; who has no permission is told what to do.
pub(crate) fn refused(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> NodeError {
    let path = path.to_path_buf();
    move |source| match source.kind() {
        std::io::ErrorKind::PermissionDenied => NodeError::NotPermitted { what, path, source },
        _ => NodeError::File { what, path, source },
    }
}

fn lock(path: &Path, open: impl Fn() -> std::io::Result<File>) -> Result<Flock<File>, NodeError> {
    patiently(|| {
        loop {
            let file = open().map_err(refused("opening the lock", path))?;
            let lock =
                Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| NodeError::Locked(path.into()))?;
            // One that was removed between both is nobody's lock.
            let (mine, there) = (lock.metadata(), std::fs::metadata(path));
            if mine.is_ok_and(|mine| there.is_ok_and(|there| (mine.dev(), mine.ino()) == (there.dev(), there.ino()))) {
                return Ok(lock);
            }
        }
    })
}

fn lock_file(path: &Path) -> Result<Flock<File>, NodeError> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(refused("making the folder of the API socket", folder))?;
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

/// Removes the lock file of a socket that no node has.
pub fn remove_lock(socket: &Path) -> Result<(), NodeError> {
    let path = lock_path(socket);
    if path.exists() {
        let _lock = lock_file(&path)?;
        std::fs::remove_file(&path).map_err(NodeError::file("removing", &path))?;
    }
    Ok(())
}

/// Locks the pins of an instance that is to be taken away; none if there are none.
pub(crate) fn pins_that_are_there(pins: &Path) -> Result<Option<Flock<File>>, NodeError> {
    match File::open(pins) {
        Ok(file) => {
            Flock::lock(file, FlockArg::LockExclusiveNonblock).map(Some).map_err(|_| NodeError::Locked(pins.into()))
        }
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

/// The changes that the tables under `pins` are said to hold: one, or none if nothing was said.
fn generations(pins: &Path) -> Vec<u64> {
    let entries = std::fs::read_dir(pins).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.strip_prefix(GENERATION)?.parse().ok()).collect()
}

/// The number of the last change that tables may hold, beside them. It is written when the journal has the change and the tables have not,
/// so a state that lies behind it is an older copy, whenever the process died.
#[derive(Debug)]
pub struct Generation {
    pins: PathBuf,
    last: u64,
}

impl Generation {
    /// Says that the tables under `pins` hold no change behind `number`.
    pub fn new(pins: &Path, number: u64) -> Generation {
        let (mut said, mut lock_path) = (generations(pins), Generation { pins: pins.into(), last: number });
        lock_path.last = said.pop().unwrap_or(number);
        for other in said {
            let _ = std::fs::remove_dir(lock_path.path(other));
        }
        lock_path.set(number);
        lock_path
    }

    fn path(&self, number: u64) -> PathBuf {
        self.pins.join(format!("{GENERATION}{number}"))
    }

    /// Says that the tables hold no change behind `number`. One that cannot be written lags, which only misses an older copy.
    pub fn set(&mut self, number: u64) {
        let to = self.path(number);
        if std::fs::rename(self.path(self.last), &to).is_err() {
            let _ = std::fs::create_dir(&to);
        }
        self.last = number;
    }
}

/// A state that is about to have tables.
#[derive(Clone, Copy, Debug)]
pub struct Taker<'a> {
    /// What names it.
    pub id: &'a str,
    /// Its last change; without any, tables of a version that knew no ids cannot be its own.
    pub number: u64,
    /// Where it lies.
    pub dir: Option<&'a Path>,
    /// Whether it may take what is not its own, or newer.
    pub adopt: bool,
}

/// Takes the tables under `pins` for a state, or refuses because they belong to another one, or to a newer copy of it.
pub fn take_tables(pins: &Path, taker: Taker) -> Result<(), NodeError> {
    let Taker { id, number, dir, adopt } = taker;
    let owners = owners(pins);
    let pinned = !xdp::pinned_layouts(pins).is_empty();
    let ours = if owners.is_empty() { number > 0 } else { owners.iter().any(|owner| owner == id) };
    let carried = generations(pins).into_iter().max().unwrap_or(0);
    if pinned && ours && carried > number {
        if !adopt {
            return Err(NodeError::NewerTables {
                pins: pins.into(),
                carried,
                dir: dir.unwrap_or(Path::new("")).into(),
                number,
            });
        }
        tracing::warn!("the tables under {} held generation {carried} of this state, and say what generation {number} says from now on", pins.display());
    }
    if pinned && !ours && !adopt {
        let owner = owners.first().cloned().unwrap_or_else(|| "an earlier version's".into());
        return Err(NodeError::OtherTables { pins: pins.into(), owner, id: id.into() });
    }
    if pinned && !ours {
        tracing::warn!("the tables under {} are adopted: they belonged to state {owners:?}, and say what state {id} says from now on", pins.display());
    }
    if !ours {
        for said in generations(pins) {
            // It counts the changes of another state.
            let _ = std::fs::remove_dir(pins.join(format!("{GENERATION}{said}")));
        }
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
    let state =
        |name: &str| name == "snapshot" || name.starts_with("journal-") || ["counters", "layouts"].contains(&name);
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

    fn taker(id: &str, number: u64, adopt: bool) -> Taker<'_> {
        Taker { id, number, dir: Some(Path::new("/states/x")), adopt }
    }

    #[test]
    fn an_older_copy_of_a_state_takes_its_tables_only_when_told_to() {
        let dir = tempfile::tempdir().unwrap();
        let pins = dir.path();
        std::fs::create_dir(pins.join("layout-00000000000000aa")).unwrap();
        std::fs::create_dir(pins.join("state-aa")).unwrap();
        // A version that said nothing of changes.
        take_tables(pins, taker("aa", 3, false)).unwrap();
        let mut said = Generation::new(pins, 3);
        said.set(7);
        assert_eq!(generations(pins), [7]);
        take_tables(pins, taker("aa", 7, false)).unwrap();
        // It died between the journal and the tables, or the tables refused the last change: the journal is ahead.
        take_tables(pins, taker("aa", 9, false)).unwrap();
        let e = take_tables(pins, taker("aa", 6, false)).unwrap_err().to_string();
        for part in ["generation 7", "generation 6", "older copy", "/states/x", "--adopt"] {
            assert!(e.contains(part), "{part}: {e}");
        }
        assert_eq!(generations(pins), [7]);
        take_tables(pins, taker("aa", 6, true)).unwrap();
        Generation::new(pins, 6);
        assert_eq!(generations(pins), [6]);
        // Another state counts its own changes.
        take_tables(pins, taker("bb", 2, true)).unwrap();
        assert!(generations(pins).is_empty());
        Generation::new(pins, 2);
        take_tables(pins, taker("bb", 2, false)).unwrap();
        // Without tables there is nothing to lose.
        std::fs::remove_dir(pins.join("layout-00000000000000aa")).unwrap();
        take_tables(pins, taker("bb", 1, false)).unwrap();
    }

    /// A plain folder does for what is asked of names.
    #[test]
    fn tables_of_another_state_are_taken_only_when_told_to() {
        let dir = tempfile::tempdir().unwrap();
        let pins = dir.path();
        take_tables(pins, taker("aa", 0, false)).unwrap();
        assert_eq!(owners(pins), ["aa"]);
        // Nothing is pinned yet: nobody loses anything.
        take_tables(pins, taker("bb", 0, false)).unwrap();
        assert_eq!(owners(pins), ["bb"]);
        std::fs::create_dir(pins.join("layout-00000000000000aa")).unwrap();
        take_tables(pins, taker("bb", 0, false)).unwrap();
        let e = take_tables(pins, taker("cc", 1, false)).unwrap_err().to_string();
        assert!(
            e.contains("state bb") && e.contains("state cc") && e.contains("--adopt") && e.contains("--uninstall"),
            "{e}"
        );
        assert_eq!(owners(pins), ["bb"]);
        take_tables(pins, taker("cc", 1, true)).unwrap();
        assert_eq!(owners(pins), ["cc"]);
        // Tables of an earlier version: a state that holds something may be theirs, an empty one is not.
        std::fs::remove_dir(pins.join("state-cc")).unwrap();
        assert!(take_tables(pins, taker("dd", 0, false)).unwrap_err().to_string().contains("an earlier version's"));
        take_tables(pins, taker("dd", 1, false)).unwrap();
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
