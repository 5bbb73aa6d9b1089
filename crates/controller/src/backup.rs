// SPDX-License-Identifier: Apache-2.0
//! A whole store as lines of JSON: what it is of, each key with its value, and at the end their number and the hash of all before. It is made
//! of a snapshot, so it is of one revision while changes go on; a file that was cut or changed is not taken for one.

use crate::config::Config;
use crate::refusal::Refusal;
use crate::server::STORE;
use crate::service::Controller;
use crate::store::embedded::Embedded;
use crate::store::etcd::{Etcd, Fence};
use crate::store::{Compare, Outcome, Snapshot, Store, Write};
use crate::{credentials, keys, schema};
use controller_core::credentials::hash_of;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io::{BufRead, BufReader};
use std::path::Path;

/// The form of the file.
const FORM: u32 = 1;
/// Entries that are read at once.
const PAGE: usize = 2_000;
/// The first key of a store, and one behind all.
const ALL: (&[u8], &[u8]) = (b"", b"\xff");

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    /// The form of the file.
    pub tunny_backup: u32,
    /// The region.
    pub region: String,
    /// The revision.
    pub revision: u64,
}

/// An entry of the store.
#[derive(Serialize, Deserialize, JsonSchema)]
pub(crate) struct Line {
    /// Its key.
    key: String,
    /// Its value.
    value: String,
}

/// The last line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct End {
    /// How many entries there are.
    pub entries: u64,
    /// The hash of all lines before.
    pub sha256: String,
}

/// A backup on its way.
pub struct Backup {
    snapshot: Box<dyn Snapshot>,
    region: String,
    from: Option<Vec<u8>>,
    begun: bool,
    entries: u64,
    hash: Sha256,
}

/// Begins one.
pub fn begin(controller: &Controller) -> Result<Backup, Refusal> {
    let (snapshot, region) = (controller.store.snapshot()?, controller.name().to_string());
    Ok(Backup { snapshot, region, from: Some(ALL.0.to_vec()), begun: false, entries: 0, hash: Sha256::new() })
}

impl Iterator for Backup {
    type Item = Vec<u8>;

    /// The next lines. If the store fails the end is missing, and nobody takes the file for whole.
    fn next(&mut self) -> Option<Vec<u8>> {
        let from = self.from.take()?;
        let page = match self.snapshot.range(&from, ALL.1, PAGE) {
            Ok(page) => page,
            Err(e) => {
                tracing::warn!("a backup ends before its end: {e}");
                return None;
            }
        };
        let mut text = Vec::new();
        if !std::mem::replace(&mut self.begun, true) {
            let head = Head { tunny_backup: FORM, region: self.region.clone(), revision: page.revision };
            push(&mut text, &head);
        }
        for entry in &page.entries {
            let word = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            push(&mut text, &Line { key: word(&entry.key), value: word(&entry.value) });
        }
        self.entries += page.entries.len() as u64;
        self.hash.update(&text);
        match page.entries.last().filter(|_| page.more) {
            Some(last) => self.from = Some([last.key.as_slice(), &[0]].concat()),
            None => push(&mut text, &End { entries: self.entries, sha256: hash_of(self.hash.clone()) }),
        }
        Some(text)
    }
}

fn push(text: &mut Vec<u8>, line: &impl Serialize) {
    // Of such structures nothing can fail.
    text.extend(serde_json::to_vec(line).unwrap_or_default());
    text.push(b'\n');
}

/// Reads a backup, and takes it only whole.
pub fn read(path: &Path) -> Result<(Head, Vec<Write>), String> {
    let at = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let cut = "it is no whole backup of `tunny controller backup`: it was cut or changed";
    let mut reader = BufReader::new(std::fs::File::open(path).map_err(|e| at(&e))?);
    let (mut head, mut writes, mut sum, mut line) = (None, Vec::new(), Sha256::new(), Vec::new());
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line).map_err(|e| at(&e))? == 0 {
            return Err(at(&cut));
        }
        if head.is_none() {
            let first: Head = serde_json::from_slice(&line).map_err(|_| at(&cut))?;
            if first.tunny_backup != FORM {
                return Err(at(&format!("its form is {}, and this version of tunny knows {FORM}", first.tunny_backup)));
            }
            head = Some(first);
        } else if let Ok(entry) = serde_json::from_slice::<Line>(&line) {
            writes.push(Write::Put(entry.key.into_bytes(), entry.value.into_bytes()));
        } else {
            let end: End = serde_json::from_slice(&line).map_err(|_| at(&cut))?;
            let more = reader.fill_buf().map_err(|e| at(&e))?.len();
            let whole = end.entries == writes.len() as u64 && end.sha256 == hash_of(sum) && more == 0;
            return head.filter(|_| whole).map(|head| (head, writes)).ok_or_else(|| at(&cut));
        }
        sum.update(&line);
    }
}

/// The store that a configuration names, for somebody who works on it while no controller does.
pub fn offline(config: &Config, folder: &Path) -> Result<Box<dyn Store>, String> {
    let Some(shared) = &config.store else {
        return Ok(Box::new(Embedded::open(&folder.join(STORE)).map_err(|e| e.to_string())?));
    };
    let etcd = Etcd::open(&shared.etcd, folder, Fence::Open).map_err(|e| e.to_string())?;
    if let Some(leader) = etcd.led_by().map_err(|e| e.to_string())? {
        return Err(format!("the controller at {leader} leads: stop all controllers of this region first"));
    }
    Ok(Box::new(etcd))
}

/// Fills an empty store from a backup; of what, and how many entries.
pub fn restore(file: &Path, config: &Path) -> Result<(Head, usize), String> {
    let (head, writes) = read(file)?;
    let (config, folder) = (Config::read(config)?, Config::read(config)?.folder(config));
    if head.region != config.region {
        return Err(format!("the backup is of the region {}, and this is {}", head.region, config.region));
    }
    let store = offline(&config, &folder)?;
    match store.txn(&[Compare::Absent(keys::ID.into())], &writes).map_err(|e| e.to_string())? {
        Outcome::Written(_) => {}
        Outcome::Conflict(_) => {
            return Err(
                "the store is not empty, and a backup is restored into an empty one only: move it away first".into()
            )
        }
    }
    schema::migrate(&*store, schema::NOW)?;
    // What nodes and watchers know of revisions is of another history.
    let name = credentials::new_name().map_err(|refusal| refusal.sentences().join("; "))?;
    store.txn(&[], &[Write::Put(keys::HISTORY.into(), name.into_bytes())]).map_err(|e| e.to_string())?;
    Ok((head, writes.len()))
}

/// `tunny controller migrate`: from which version.
pub fn migrate(config: &Path, to: u32) -> Result<u32, String> {
    let (read, folder) = (Config::read(config)?, Config::read(config)?.folder(config));
    schema::migrate(&*offline(&read, &folder)?, to)
}
