// SPDX-License-Identifier: Apache-2.0
//! A store that the version before this one has written (`tests/data/store-1.redb`: form 1), brought up, down and away and back.

use crate::backup;
use crate::config::{Config, FILE};
use crate::pki;
use crate::schema::{migrate, version, NOW};
use crate::server::STORE;
use crate::service::Controller;
use crate::store::embedded::Embedded;
use crate::store::{Entry, Store, Write};
use model::Kind;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const OLD: &[u8] = include_bytes!("../tests/data/store-1.redb");
/// What names its region.
const ID: &str = "00c306358be11f66";

/// A folder as that version has left it, but for its CA.
fn folder(store: bool) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key) = pki::new_ca("old").unwrap();
    std::fs::write(dir.path().join(pki::CA), certificate).unwrap();
    std::fs::write(dir.path().join(pki::CA_KEY), key).unwrap();
    std::fs::write(dir.path().join(FILE), "region: old\nlisten: \"127.0.0.1:0\"\nnames: [localhost]\n").unwrap();
    if store {
        std::fs::write(dir.path().join(STORE), OLD).unwrap();
    }
    dir
}

fn store(dir: &Path) -> Embedded {
    Embedded::open(&dir.join(STORE)).unwrap()
}

fn open(dir: &Path) -> Result<Arc<Controller>, String> {
    let config = Config::read(&dir.join(FILE)).unwrap();
    Controller::open(&config, dir, Arc::new(store(dir)), None)
}

fn all(store: &dyn Store) -> BTreeMap<String, String> {
    let word = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let entries = store.range(b"", b"\xff", usize::MAX).unwrap().entries;
    entries.into_iter().map(|Entry { key, value, .. }| (word(key), word(value))).collect()
}

#[test]
fn the_store_of_the_version_before_is_brought_up_and_down_again() {
    let dir = folder(true);
    let before = all(&store(dir.path()));
    assert_eq!((before["m/schema"].as_str(), before["m/id"].as_str()), ("1", ID));
    let controller = open(dir.path()).unwrap();
    // Nodes that it served go on where they were: their revisions are of this history.
    assert_eq!(controller.history(), ID);
    let core = controller.core();
    assert_eq!((core.credentials.len(), core.region.intent("a")), (3, 3));
    let model = core.region.model();
    assert!(model.get(Kind::Vm, "red-1").is_some() && model.get(Kind::Vm, "gone").is_none());
    drop(core);
    drop(controller);
    let store = store(dir.path());
    let mut up = before.clone();
    up.extend([("m/schema".into(), NOW.to_string()), ("m/history".into(), ID.into())]);
    assert_eq!(all(&store), up);
    assert_eq!(migrate(&store, 1).unwrap(), NOW);
    assert_eq!(all(&store), before);
    assert_eq!(migrate(&store, NOW).unwrap(), 1);
    assert_eq!(all(&store), up);
    assert!(migrate(&store, NOW + 1).unwrap_err().contains("knows the forms"));
}

#[test]
fn a_store_of_a_later_version_is_refused_and_not_changed() {
    let dir = folder(true);
    let newer = || Write::Put("m/schema".into(), (NOW + 1).to_string().into_bytes());
    store(dir.path()).txn(&[], &[newer()]).unwrap();
    let before = all(&store(dir.path()));
    let why = open(dir.path()).err().unwrap();
    assert!(why.contains(&format!("form {}", NOW + 1)) && why.contains("migrate --to"), "{why}");
    assert!(version(&store(dir.path())).is_err());
    assert_eq!(all(&store(dir.path())), before);
}

#[test]
fn a_backup_comes_back_whole_or_not_at_all() {
    let (dir, other) = (folder(true), folder(false));
    let controller = open(dir.path()).unwrap();
    let mut backup = backup::begin(&controller).unwrap();
    // What changes now is not in it.
    controller.store.txn(&[], &[Write::Put("o/Vm/later".into(), "{}".into())]).unwrap();
    let bytes: Vec<u8> = std::iter::from_fn(|| backup.next()).flatten().collect();
    drop((backup, controller));
    let store = store(dir.path());
    store.txn(&[], &[Write::Delete("o/Vm/later".into())]).unwrap();
    let (saved, file) = (all(&store), dir.path().join("backup"));
    let config = other.path().join(FILE);
    for cut in (0..bytes.len()).step_by(61) {
        std::fs::write(&file, &bytes[..cut]).unwrap();
        assert!(backup::restore(&file, &config).unwrap_err().contains("no whole backup"), "{cut}");
        let mut changed = bytes.clone();
        changed[cut] ^= 1;
        std::fs::write(&file, changed).unwrap();
        assert!(backup::restore(&file, &config).is_err(), "{cut}");
    }
    std::fs::write(&file, [&bytes[..], b"{}\n"].concat()).unwrap();
    assert!(backup::restore(&file, &config).is_err());
    assert!(!other.path().join(STORE).exists());
    std::fs::write(&file, &bytes).unwrap();
    let (head, entries) = backup::restore(&file, &config).unwrap();
    assert_eq!((head.region.as_str(), head.revision, entries), ("old", 5, saved.len()));
    let again = backup::restore(&file, &config).unwrap_err();
    assert!(again.contains("not empty"), "{again}");
    // Its revisions are of another history: a node that was ahead of it is sent everything.
    let controller = open(other.path()).unwrap();
    assert_ne!(controller.history(), ID);
    let history = controller.history().to_string();
    drop(controller);
    let mut expected = saved;
    expected.insert("m/history".into(), history);
    assert_eq!(all(&self::store(other.path())), expected);
}
