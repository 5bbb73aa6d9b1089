// SPDX-License-Identifier: Apache-2.0
//! [`Kept`]: what an agent knows of its nodes, on disk from its orderly end to its next start. Records lie in memory (`records`), where a restart
//! of the agent's machine ends them; what is kept here is read when a node comes that has none.
//!
//! **The property it keeps:** a connection is never brought back that ended since. A file is what the records were when the process ended, and
//! nobody writes them without a process; so whoever opens the records of a node takes its file away before the node is served, be it read or,
//! since there are records, not. A process that is killed leaves no file, and its records serve as long as the machine goes on.
//!
//! *A file*: greeting, time of day, then chunks of messages as they would be told to a node that lists them (`conntrack_compact::message`), each
//! behind its length; a length of 0; HMAC-SHA-256 over all before, by a key made of the shared one. It is read twice: nothing of a file
//! counts that is not whole and right to its end. Times begin anew, as in an upgrade: they are of a clock that began anew, too.
//!
//! *A start that is killed while it reads* has made records, but not all: the file is called `-taking` before there are any, and whoever
//! finds it so begins again.

use conntrack_compact::message::{Messages, Outbox, Tell, CHUNK_MAX, VERSION};
use conntrack_compact::{Connection, Key};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

type Code = Hmac<Sha256>;

const MAGIC: [u8; 8] = *b"TNYKEPT\0";
/// Magic, version of the messages, seconds since 1970.
const HEAD: usize = 8 + 2 + 8;
const CODE: usize = 32;
/// What is older says nothing of connections any more.
pub const AGE_MAX: Duration = Duration::from_secs(24 * 3600);

/// Files of a folder, one a node.
pub struct Kept {
    dir: PathBuf,
    key: Vec<u8>,
}

/// Reads and hashes.
struct Hashed<R> {
    from: R,
    code: Code,
}

impl<R: Read> Hashed<R> {
    fn take(&mut self, into: &mut [u8]) -> Result<(), String> {
        self.from.read_exact(into).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => "it is cut off".to_string(),
            _ => e.to_string(),
        })?;
        self.code.update(into);
        Ok(())
    }
}

impl Kept {
    /// In this folder, which is made if it is not there, and then nobody else may look into it; one that is there stays as it is, and
    /// nobody else may read the files. An error: nothing can be written there.
    pub fn open(dir: &Path, shared: &[u8]) -> io::Result<Kept> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        // No node's name begins so. One that a killed start left is taken away first.
        let probe = dir.join(".probe");
        let _ = std::fs::remove_file(&probe);
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&probe)?;
        std::fs::remove_file(&probe)?;
        let mut key = code(shared);
        key.update(b"connections that are kept");
        Ok(Kept { dir: dir.to_path_buf(), key: key.finalize().into_bytes().to_vec() })
    }

    fn at(&self, name: &str, what: &str) -> PathBuf {
        self.dir.join(format!("{name}.{what}"))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    /// Takes away what no start will use: files that are too old, of nodes that did not come, and those whose writing was cut off. How many.
    /// What a start began to read stays until its node comes: it says that there are half records.
    pub fn clean(&self) -> io::Result<u64> {
        let mut gone = 0;
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            let is_old = match entry.path().extension().and_then(|e| e.to_str()) {
                Some("kept") => entry.metadata()?.modified()?.elapsed().is_ok_and(|age| age > AGE_MAX),
                Some("kept-new") => true,
                _ => false,
            };
            if is_old {
                std::fs::remove_file(entry.path())?;
                gone += 1;
            }
        }
        Ok(gone)
    }

    /// Writes what is known of a node, `now` seconds after 1970. How many connections that is. An error leaves nothing of it.
    pub fn write(&self, name: &str, all: impl Iterator<Item = (Key, Connection)>, now: u64) -> io::Result<u64> {
        let new = self.at(name, "kept-new");
        let _ = std::fs::remove_file(&new);
        let written =
            self.write_new(&new, all, now).and_then(|n| std::fs::rename(&new, self.at(name, "kept")).map(|()| n));
        if written.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        let written = written?;
        self.sync()?;
        Ok(written)
    }

    fn write_new(&self, new: &Path, all: impl Iterator<Item = (Key, Connection)>, now: u64) -> io::Result<u64> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
        let (mut out, mut code) = (BufWriter::with_capacity(1 << 20, file), code(&self.key));
        let mut put = |bytes: &[u8]| {
            code.update(bytes);
            out.write_all(bytes)
        };
        put(&MAGIC)?;
        put(&VERSION.to_le_bytes())?;
        put(&now.to_le_bytes())?;
        let (mut box_, mut written) = (Outbox::default(), 0);
        let mut chunk = |chunk: Option<Vec<u8>>| -> io::Result<()> {
            let chunk = chunk.unwrap_or_default();
            put(&(chunk.len() as u32).to_le_bytes())?;
            put(&chunk)
        };
        for (key, connection) in all {
            box_.tell(&Tell::Item { ticket: 0, key, connection });
            written += 1;
            if box_.len() > 1 {
                chunk(box_.pop())?;
            }
        }
        while let Some(last) = box_.pop() {
            chunk(Some(last))?;
        }
        chunk(None)?;
        out.write_all(&code.finalize().into_bytes())?;
        out.into_inner().map_err(|e| e.into_error())?.sync_all()?;
        Ok(written)
    }

    /// Whether there is a file of this node that a start began to read and did not come to the end of.
    pub fn is_half_read(&self, name: &str) -> bool {
        self.at(name, "kept-taking").exists()
    }

    /// Names the file of this node so that [`Kept::is_half_read`]; false: there is none.
    pub fn begin(&self, name: &str) -> io::Result<bool> {
        let from = self.at(name, "kept");
        match std::fs::rename(&from, self.at(name, "kept-taking")) {
            Err(_) if is_gone(&from) => Ok(self.is_half_read(name)),
            other => other.and_then(|()| self.sync()).map(|()| true),
        }
    }

    /// Gives each connection of the file that [`Kept::begin`] has named to `each`, if all of it is right. How many.
    /// An error of the disk may come when some were given: whoever took them must begin anew.
    pub fn read(&self, name: &str, now: u64, each: &mut dyn FnMut(Key, Connection)) -> Result<u64, String> {
        let path = self.at(name, "kept-taking");
        let mut file = File::open(path).map_err(|e| e.to_string())?;
        self.pass(&file, now, &mut |_, _| ())?;
        file.rewind().map_err(|e| e.to_string())?;
        self.pass(&file, now, each)
    }

    fn pass(&self, file: &File, now: u64, each: &mut dyn FnMut(Key, Connection)) -> Result<u64, String> {
        let mut file = Hashed { from: BufReader::with_capacity(1 << 20, file), code: code(&self.key) };
        let mut head = [0; HEAD];
        file.take(&mut head)?;
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| head[at + i]));
        let (version, written) = (u16::from_le_bytes([head[8], head[9]]), number(10));
        if head[..8] != MAGIC {
            return Err("it is no such file".into());
        }
        if version != VERSION {
            return Err(format!("it is of version {version}, and this is {VERSION}"));
        }
        if written > now || now - written > AGE_MAX.as_secs() {
            return Err(format!(
                "it was written {written} s after 1970 and it is {now} now: more than a day, or not yet"
            ));
        }
        let (mut found, mut chunk) = (0, Vec::new());
        loop {
            let mut length = [0; 4];
            file.take(&mut length)?;
            let length = u32::from_le_bytes(length) as usize;
            if length == 0 {
                break;
            }
            if length > CHUNK_MAX {
                return Err(format!("a part of it says that it is {length} bytes long"));
            }
            chunk.resize(length, 0);
            file.take(&mut chunk)?;
            let mut messages = Messages::of(&chunk);
            while let Some(tell) = messages.next_tell().map_err(|e| e.to_string())? {
                let Tell::Item { key, connection, .. } = tell else {
                    return Err("something in it is no connection".into());
                };
                each(key, connection);
                found += 1;
            }
        }
        let Hashed { mut from, code } = file;
        let mut theirs = [0; CODE];
        from.read_exact(&mut theirs).map_err(|_| "it is cut off")?;
        code.verify_slice(&theirs).map_err(|_| "it was changed, or written with another key")?;
        match from.read(&mut [0]) {
            Ok(0) => Ok(found),
            _ => Err("something stands behind its end".into()),
        }
    }

    /// Takes the file of this node away, whatever its name. It must be gone for good before a record changes.
    pub fn forget(&self, name: &str) -> io::Result<()> {
        let mut any = false;
        for what in ["kept", "kept-taking", "kept-new"] {
            let path = self.at(name, what);
            match std::fs::remove_file(&path) {
                Err(_) if is_gone(&path) => {}
                other => any |= other.map(|()| true)?,
            }
        }
        if any {
            self.sync()
        } else {
            Ok(())
        }
    }
}

/// Whether it is certain that there is no such file, whatever an error says: a file system that may only be read refuses before it looks.
fn is_gone(path: &Path) -> bool {
    matches!(std::fs::symlink_metadata(path), Err(e) if e.kind() == io::ErrorKind::NotFound)
}

fn code(key: &[u8]) -> Code {
    // Keys of any length are good.
    Code::new_from_slice(key).unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::Vni;
    use conntrack_compact::{Direction, Fsm, State};

    const NOW: u64 = 1_800_000_000;

    fn some(n: u32) -> Vec<(Key, Connection)> {
        let states =
            [(Some(Fsm::Established), State::Open), (None, State::Opening), (Some(Fsm::TimeWait), State::Closing)];
        let one = |i: u32| {
            let key = match i % 4 {
                0 => Key::v6(Vni(7), 6, u128::from(i) << 64, 80, 5, 1024),
                _ => Key::v4(Vni(7), 17, 0x0a00_0000 + i, 53, 0x0a01_0000, 1024),
            };
            let (tcp, state) = states[i as usize % 3];
            (key, Connection { tcp, state, began: Direction::In, probed: i.is_multiple_of(5), away: false })
        };
        (0..n).map(one).collect()
    }

    fn kept() -> (tempfile::TempDir, Kept) {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept::open(dir.path(), b"a key").unwrap();
        (dir, kept)
    }

    fn taken(kept: &Kept, now: u64) -> Result<Vec<(Key, Connection)>, String> {
        let mut got = Vec::new();
        let n = kept.read("n", now, &mut |k, c| got.push((k, c)))?;
        assert_eq!(n as usize, got.len());
        Ok(got)
    }

    #[test]
    fn what_was_written_is_read_once() {
        let (dir, kept) = kept();
        for n in [0, 1, 5000] {
            let all = some(n);
            assert_eq!(kept.write("n", all.iter().copied(), NOW).unwrap(), u64::from(n));
            assert!(!kept.is_half_read("n") && kept.begin("n").unwrap() && kept.is_half_read("n"));
            assert_eq!(taken(&kept, NOW + 3600).unwrap(), all);
            // A start that died here finds it again.
            assert!(kept.begin("n").unwrap());
            kept.forget("n").unwrap();
            assert!(!kept.begin("n").unwrap() && !kept.is_half_read("n"));
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
        kept.write("n", some(3).into_iter(), NOW).unwrap();
        kept.forget("n").unwrap();
        assert!(!kept.begin("n").unwrap(), "what was not read is gone as well");
    }

    #[test]
    fn of_a_file_that_is_not_right_nothing_counts() {
        let (dir, kept) = kept();
        kept.write("n", some(700).into_iter(), NOW).unwrap();
        kept.begin("n").unwrap();
        let path = dir.path().join("n.kept-taking");
        let good = std::fs::read(&path).unwrap();
        let refused = |bytes: &[u8], now| {
            std::fs::write(&path, bytes).unwrap();
            let mut any = 0;
            let why = kept.read("n", now, &mut |_, _| any += 1).unwrap_err();
            assert_eq!(any, 0, "{why}");
            why
        };
        for at in (0..good.len()).step_by(97).chain(good.len() - CODE..good.len()) {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            refused(&bad, NOW);
            refused(&good[..at], NOW);
        }
        refused(&[&good[..], b"x"].concat(), NOW);
        assert!(refused(&good, NOW - 1).contains("1970"), "from the future");
        assert!(refused(&good, NOW + AGE_MAX.as_secs() + 1).contains("1970"), "too old");
        std::fs::write(&path, &good).unwrap();
        assert_eq!(taken(&kept, NOW).unwrap().len(), 700);
        let other = Kept::open(dir.path(), b"another key").unwrap();
        assert!(taken(&other, NOW).unwrap_err().contains("another key"));
    }

    #[test]
    fn a_second_pass_that_fails_is_an_error() {
        let (dir, kept) = kept();
        kept.write("n", some(100_000).into_iter(), NOW).unwrap();
        kept.begin("n").unwrap();
        let path = dir.path().join("n.kept-taking");
        let mut any = 0;
        let mut cut = |_, _| {
            any += 1;
            OpenOptions::new().write(true).open(&path).unwrap().set_len(1000).unwrap();
        };
        assert_eq!(kept.read("n", NOW, &mut cut).unwrap_err(), "it is cut off");
        assert!(any > 0);
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing_and_what_is_old_goes() {
        let (dir, kept) = kept();
        let names = || {
            let mut names: Vec<_> =
                std::fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        // A folder in the place of the file: the last step fails.
        std::fs::create_dir_all(dir.path().join("n.kept/x")).unwrap();
        kept.write("n", some(9).into_iter(), NOW).unwrap_err();
        assert_eq!(names(), ["n.kept"]);
        kept.forget("n").unwrap_err();
        std::fs::remove_dir_all(dir.path().join("n.kept")).unwrap();
        std::fs::write(dir.path().join("n.kept-new"), "half").unwrap();
        kept.forget("n").unwrap();
        assert!(names().is_empty());

        for name in ["new.kept", "old.kept", "old.kept-taking", "half.kept-new", "lock"] {
            let file = File::create(dir.path().join(name)).unwrap();
            if !name.starts_with("new") {
                file.set_modified(std::time::SystemTime::now() - AGE_MAX - Duration::from_secs(9)).unwrap();
            }
        }
        assert_eq!(kept.clean().unwrap(), 2);
        assert_eq!(names(), ["lock", "new.kept", "old.kept-taking"]);
    }

    #[test]
    fn on_a_file_system_that_may_only_be_read_what_is_there_counts_and_what_is_not_does_not() {
        use nix::mount::{mount, MsFlags};
        if !skip::have_root("to mount a file system") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_path_buf();
        // A thread has its mounts for itself.
        let body = move || {
            let none = None::<&str>;
            if let Err(e) = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS) {
                return skip::test(format_args!("no permission for a mount namespace: {e}"), "run it as root");
            }
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
            mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), none).unwrap();
            let kept = Kept::open(&path, b"a key").unwrap();
            kept.write("n", some(9).into_iter(), NOW).unwrap();
            mount(none, &path, none, MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, none).unwrap();
            assert!(Kept::open(&path, b"a key").is_err(), "nothing can be kept there");
            assert!(!kept.begin("other").unwrap());
            kept.forget("other").unwrap();
            kept.begin("n").unwrap_err();
            kept.forget("n").unwrap_err();
        };
        let name = std::thread::current().name().unwrap_or_default().to_string();
        std::thread::Builder::new().name(name).spawn(body).unwrap().join().unwrap();
    }
}
