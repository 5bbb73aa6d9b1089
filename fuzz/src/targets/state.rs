// SPDX-License-Identifier: Apache-2.0
//! A node's state on disk: the journal by itself, and a directory that a node is started with.

use super::{repository_files, sentence, Target};
use model::{Documents, Model};
use std::path::{Path, PathBuf};
use store::Store;

/// Journals: as they are, and with their checksums mended, so that what lies behind them is reached.
pub struct Journal;

impl Target for Journal {
    fn name(&self) -> &'static str {
        "journal"
    }
    fn run(&mut self, input: &[u8]) -> u64 {
        let kind = |bytes: &[u8]| match store::count_records(bytes) {
            Ok(records) => {
                assert!(records <= bytes.len());
                records.min(7) as u64
            }
            Err(e) => sentence(&e.to_string()),
        };
        kind(input).wrapping_mul(31).wrapping_add(kind(&model::bytes::reseal(input)))
    }
    fn seeds(&self) -> Vec<Vec<u8>> {
        let files = made().into_iter().flatten();
        files.filter(|(name, _)| name.starts_with("journal-")).map(|(_, bytes)| bytes).collect()
    }
}

/// A directory: names of files and what they hold. Starting twice gives the same configuration as starting once.
pub struct State {
    dir: PathBuf,
}

impl State {
    /// In a folder of its own, in memory where the system has such a place.
    pub fn new() -> State {
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() { shm.to_path_buf() } else { std::env::temp_dir() };
        State { dir: base.join(format!("tunny-fuzz-state-{}", std::process::id())) }
    }

    fn open(&self) -> Result<(u64, u64, Vec<u8>), String> {
        let (store, model, opened) = Store::open(&self.dir).map_err(|e| e.to_string())?;
        drop(store);
        let mut bytes = Vec::new();
        model.write_snapshot(&mut bytes, opened.number).map_err(|e| e.to_string())?;
        Ok((opened.number, opened.replayed, bytes))
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Files that a state consists of; others are the operator's.
fn is_state(name: &str) -> bool {
    ["snapshot", "tail", "id", "journal-"].iter().any(|known| name.starts_with(known)) && !name.contains('/')
}

/// Every file as its name's length, its name, its length, its bytes.
fn pack(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut out = vec![1];
    for (name, bytes) in files {
        out.push(name.len() as u8);
        out.extend(name.as_bytes());
        out.extend((bytes.len() as u32).to_le_bytes());
        out.extend(bytes);
    }
    out
}

fn unpack(mut rest: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    while files.len() < 8 {
        let Some((length, after)) = rest.split_first() else { break };
        let Some((name, after)) = after.split_at_checked(usize::from(*length).min(40)) else { break };
        let Some((length, after)) = after.split_first_chunk::<4>() else { break };
        let (bytes, after) = after.split_at((u32::from_le_bytes(*length) as usize).min(after.len()));
        rest = after;
        files.push((String::from_utf8_lossy(name).into_owned(), bytes.to_vec()));
    }
    files
}

/// Directories of nodes that did something.
fn made() -> Vec<Vec<(String, Vec<u8>)>> {
    let texts = repository_files("examples", ".yaml");
    let documents: Vec<Documents> =
        texts.iter().filter_map(|t| model::parse_text("example.yaml", &String::from_utf8_lossy(t)).ok()).collect();
    let mut out = Vec::new();
    for (n, docs) in documents.iter().enumerate().take(4) {
        let place = State { dir: State::new().dir.with_extension(format!("seed-{n}")) };
        let Ok((mut store, mut model, _)) = Store::open(&place.dir) else { continue };
        let good = model.apply(docs).is_ok() && store.append(docs, &model).is_ok();
        if good && n % 2 == 1 {
            let _ = store.replace(&model);
        }
        if good && n % 4 == 2 {
            let _ = store.append(docs, &model);
        }
        drop((store, Model::new()));
        let entries = std::fs::read_dir(&place.dir).into_iter().flatten().flatten();
        let read = |e: std::fs::DirEntry| Some((e.file_name().into_string().ok()?, std::fs::read(e.path()).ok()?));
        let mut files: Vec<_> = entries.filter_map(read).filter(|(name, _)| is_state(name)).collect();
        files.sort();
        out.push(files);
    }
    out
}

impl Target for State {
    fn name(&self) -> &'static str {
        "state"
    }
    fn run(&mut self, input: &[u8]) -> u64 {
        let Some((options, rest)) = input.split_first() else { return 0 };
        let _ = std::fs::remove_dir_all(&self.dir);
        std::fs::create_dir_all(&self.dir).unwrap_or_else(|e| panic!("{}: {e}", self.dir.display()));
        for (name, bytes) in unpack(rest).iter().filter(|(name, _)| is_state(name)) {
            let bytes = if options & 1 != 0 && name != "tail" && name != "id" {
                model::bytes::reseal(bytes)
            } else {
                bytes.clone()
            };
            // A name that the system does not take is no file of a state.
            let _ = std::fs::write(self.dir.join(name), bytes);
        }
        match self.open() {
            Ok((number, replayed, first)) => {
                let (again, _, second) = self.open().unwrap_or_else(|e| panic!("opened once, and then: {e}"));
                assert_eq!(number, again);
                assert!(first == second, "starting again gives another configuration");
                number.min(7) * 8 + replayed.min(7)
            }
            Err(e) => sentence(&e.replace(&self.dir.display().to_string(), "")),
        }
    }
    fn seeds(&self) -> Vec<Vec<u8>> {
        made().iter().map(|files| pack(files)).collect()
    }
    fn words(&self) -> &'static [&'static str] {
        &["snapshot", "tail", "journal-00000000000000000001", "journal-00000000000000000002"]
    }
}
