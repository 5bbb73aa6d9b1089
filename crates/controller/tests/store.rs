// SPDX-License-Identifier: Apache-2.0
//! What a store promises: one suite for every implementation.

mod etcd;

use controller::store::embedded::{self, Embedded};
use controller::store::etcd::{Etcd, EtcdConfig, Fence};
use controller::store::{end_of, Change, Compare, Event, Outcome, Store, StoreError, Write};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const NOW: Duration = Duration::ZERO;
const SOON: Duration = Duration::from_secs(10);

fn put(key: &str, value: &str) -> Write {
    Write::Put(key.into(), value.into())
}

fn delete(key: &str) -> Write {
    Write::Delete(key.into())
}

fn written(outcome: Outcome) -> u64 {
    match outcome {
        Outcome::Written(revision) => revision,
        Outcome::Conflict(keys) => panic!("conflict at {keys:?}"),
    }
}

/// Every promise, on a store that is empty.
fn keeps_its_promises(store: &dyn Store) {
    writes_all_or_nothing(store);
    ranges_are_ordered_and_paged(store);
    watches_tell_every_change(store);
    what_is_compacted_is_said(store);
    many_writers_lose_nothing(store);
    what_is_large_is_one_transaction(store);
    a_snapshot_stays(store);
}

fn writes_all_or_nothing(store: &dyn Store) {
    let first = written(store.txn(&[Compare::Absent("a".into())], &[put("a", "1"), put("b", "1")]).unwrap());
    let got = store.get(&["a".into(), "x".into(), "b".into()]).unwrap();
    assert_eq!(got.iter().map(|e| e.as_ref().map(|e| e.changed)).collect::<Vec<_>>(), [Some(first), None, Some(first)]);
    // One compare that fails lets nothing be written, and every one that fails is told.
    let refused = store
        .txn(
            &[Compare::Absent("a".into()), Compare::Absent("c".into()), Compare::Unchanged("b".into(), first + 1)],
            &[put("c", "2"), delete("a")],
        )
        .unwrap();
    assert_eq!(refused, Outcome::Conflict(vec!["a".into(), "b".into()]));
    assert_eq!(store.get(&["c".into()]).unwrap(), [None]);
    let second = written(store.txn(&[Compare::Unchanged("a".into(), first)], &[put("a", "2")]).unwrap());
    assert!(second > first);
    let a = store.get(&["a".into()]).unwrap().remove(0).unwrap();
    assert_eq!((a.value.as_slice(), a.created, a.changed), (b"2".as_slice(), first, second));
    // Not since: what changed later conflicts, what is older or absent does not.
    let since = |key: &str, at| store.txn(&[Compare::NotSince(key.into(), at)], &[]).unwrap();
    assert_eq!(since("a", first), Outcome::Conflict(vec!["a".into()]));
    assert_eq!(written(since("a", second)), second);
    assert_eq!(written(since("b", first)), second);
    assert_eq!(written(since("nothing", 0)), second);
    // What goes and comes back is new.
    written(store.txn(&[], &[delete("a")]).unwrap());
    assert_eq!(store.get(&["a".into()]).unwrap(), [None]);
    let third = written(store.txn(&[], &[put("a", "3")]).unwrap());
    assert_eq!(store.get(&["a".into()]).unwrap()[0].as_ref().unwrap().created, third);
    written(store.txn(&[], &[delete("a"), delete("b")]).unwrap());
}

fn ranges_are_ordered_and_paged(store: &dyn Store) {
    let keys: Vec<String> = (0..100).map(|n| format!("r/{:02}", n * 37 % 100)).collect();
    let writes: Vec<Write> = keys.iter().map(|k| put(k, k)).chain([put("q", ""), put("s", "")]).collect();
    let revision = written(store.txn(&[], &writes).unwrap());
    let (mut from, mut seen) = (b"r/".to_vec(), Vec::new());
    loop {
        let page = store.range(&from, &end_of(b"r/"), 7).unwrap();
        assert_eq!(page.revision, revision);
        seen.extend(page.entries.iter().map(|e| String::from_utf8(e.key.clone()).unwrap()));
        if !page.more {
            break;
        }
        assert_eq!(page.entries.len(), 7);
        from = page.entries.last().unwrap().key.clone();
        from.push(0);
    }
    let mut expected = keys;
    expected.sort();
    assert_eq!(seen, expected);
    assert!(store.range(b"r/", b"r/", 7).unwrap().entries.is_empty());
    assert!(store.range(b"t", b"u", 7).unwrap().entries.is_empty());
}

fn watches_tell_every_change(store: &dyn Store) {
    let start = store.range(b"", b"\0", 1).unwrap().revision;
    let mut early = store.watch(start).unwrap();
    assert_eq!(early.next(NOW).unwrap(), None);
    let one = written(store.txn(&[], &[put("w/b", "1"), put("w/a", "1")]).unwrap());
    let two = written(store.txn(&[], &[put("w/a", "2"), delete("w/b")]).unwrap());
    let event = |key: &str, value: Option<&str>, before: Option<&str>| Event {
        key: key.into(),
        value: value.map(Into::into),
        before: before.map(Into::into),
    };
    let expected = [
        Change { revision: one, events: vec![event("w/a", Some("1"), None), event("w/b", Some("1"), None)] },
        Change { revision: two, events: vec![event("w/a", Some("2"), Some("1")), event("w/b", None, Some("1"))] },
    ];
    for change in &expected {
        assert_eq!(early.next(SOON).unwrap().as_ref(), Some(change));
    }
    assert_eq!(early.next(NOW).unwrap(), None);
    // One that comes later is told the same, and one in between the rest.
    let mut late = store.watch(start).unwrap();
    for change in &expected {
        assert_eq!(late.next(SOON).unwrap().as_ref(), Some(change));
    }
    assert_eq!(store.watch(one).unwrap().next(SOON).unwrap().as_ref(), Some(&expected[1]));
    // Who waits is woken.
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| early.next(SOON).unwrap());
        std::thread::sleep(Duration::from_millis(50));
        store.txn(&[], &[put("w/c", "")]).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap().events[0].key, b"w/c");
    });
    assert!(begun.elapsed() < SOON);
}

fn what_is_compacted_is_said(store: &dyn Store) {
    let start = store.range(b"", b"\0", 1).unwrap().revision;
    let mut slow = store.watch(start).unwrap();
    let last = (0..5).map(|n| written(store.txn(&[], &[put("k", &n.to_string())]).unwrap())).last().unwrap();
    store.compact(last - 1).unwrap();
    assert!(matches!(slow.next(SOON), Err(StoreError::Compacted(at)) if at == start));
    assert!(matches!(store.watch(start), Err(StoreError::Compacted(_))));
    // What is not, goes on; and entries are untouched.
    assert_eq!(store.watch(last - 1).unwrap().next(SOON).unwrap().unwrap().revision, last);
    assert_eq!(store.get(&["k".into()]).unwrap()[0].as_ref().unwrap().value, b"4");
}

fn many_writers_lose_nothing(store: &dyn Store) {
    written(store.txn(&[], &[put("n", "0")]).unwrap());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut done = 0;
                while done < 25 {
                    let entry = store.get(&["n".into()]).unwrap().remove(0).unwrap();
                    let n: u64 = String::from_utf8(entry.value).unwrap().parse().unwrap();
                    let compares = [Compare::Unchanged("n".into(), entry.changed)];
                    let outcome = store.txn(&compares, &[put("n", &(n + 1).to_string())]).unwrap();
                    done += u32::from(matches!(outcome, Outcome::Written(_)));
                }
            });
        }
    });
    assert_eq!(store.get(&["n".into()]).unwrap()[0].as_ref().unwrap().value, b"100");
}

fn what_is_large_is_one_transaction(store: &dyn Store) {
    let start = store.range(b"", b"\0", 1).unwrap().revision;
    let mut watch = store.watch(start).unwrap();
    // Many keys; then some with much in them, some of which go.
    let many: Vec<Write> = (0..3_000).map(|n| put(&format!("z/{n:04}"), "1")).collect();
    let one = written(store.txn(&[Compare::Absent("z/0000".into())], &many).unwrap());
    let much = "x".repeat(50_000);
    let next: Vec<Write> = (0..60)
        .map(|n| match n % 3 {
            0 => delete(&format!("z/{n:04}")),
            _ => put(&format!("z/{n:04}"), &much),
        })
        .collect();
    let compares: Vec<Compare> = (0..200).map(|n| Compare::Unchanged(format!("z/{n:04}").into(), one)).collect();
    let two = written(store.txn(&compares, &next).unwrap());
    assert!(start < one && one < two);
    let page = store.range(b"z/", &end_of(b"z/"), usize::MAX).unwrap();
    assert_eq!((page.entries.len(), page.revision), (2_980, two));
    let long = page.entries.iter().filter(|e| e.changed == two && e.created == one && e.value.len() == 50_000);
    assert_eq!(long.count(), 40);
    // One that does not hold, of many, lets nothing be written.
    let refused = store.txn(&compares, &many).unwrap();
    assert_eq!(refused, Outcome::Conflict((0..60).map(|n| format!("z/{n:04}").into()).collect()));
    // Those who watch are told each as one change.
    let change = watch.next(SOON).unwrap().unwrap();
    assert_eq!((change.revision, change.events.len()), (one, 3_000));
    let change = watch.next(SOON).unwrap().unwrap();
    assert_eq!((change.revision, change.events.len()), (two, 60));
    assert!(change.events.is_sorted_by_key(|e| &e.key));
    assert!(change.events.iter().all(|e| e.before.as_deref() == Some(b"1")));
    assert_eq!(change.events.iter().filter(|e| e.value.is_none()).count(), 20);
}

fn a_snapshot_stays(store: &dyn Store) {
    let revision = written(store.txn(&[], &[put("s/1", "1"), put("s/2", "1")]).unwrap());
    let snapshot = store.snapshot().unwrap();
    written(store.txn(&[], &[put("s/1", "2"), delete("s/2"), put("s/3", "2")]).unwrap());
    let values =
        |page: controller::store::Page| -> Vec<Vec<u8>> { page.entries.into_iter().map(|e| e.value).collect() };
    let before = snapshot.range(b"s/", &end_of(b"s/"), 10).unwrap();
    assert_eq!(before.revision, revision);
    assert_eq!(values(before), [b"1", b"1"]);
    assert_eq!(values(store.range(b"s/", &end_of(b"s/"), 10).unwrap()), [b"2", b"2"]);
}

fn etcd_at(server: &etcd::EtcdServer, fence: Fence) -> Etcd {
    let config = EtcdConfig { endpoints: vec![server.url()], prefix: "tests/".into(), ..EtcdConfig::default() };
    Etcd::open(&config, std::path::Path::new("."), fence).unwrap()
}

#[test]
fn the_store_in_etcd_keeps_its_promises() {
    if !skip::have_tool("etcd", "etcd-server") {
        return;
    }
    let server = etcd::EtcdServer::start();
    keeps_its_promises(&etcd_at(&server, Fence::Open));
}

#[test]
fn the_embedded_store_keeps_its_promises() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(&dir.path().join("store")).unwrap();
    keeps_its_promises(&store);
}

#[test]
fn what_was_written_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let mut model = BTreeMap::new();
    let mut last = 0;
    for round in 0..5 {
        let store = Embedded::open(&path).unwrap();
        assert!(matches!(Embedded::open(&path), Err(StoreError::Locked(_))));
        let page = store.range(b"", &end_of(b""), usize::MAX).unwrap();
        assert_eq!(page.revision, last);
        assert_eq!(page.entries.iter().map(|e| (e.key.clone(), e.value.clone())).collect::<BTreeMap<_, _>>(), model);
        for n in 0..10 {
            let (key, value) = (format!("{}", n * round % 7), format!("{round}"));
            last = written(store.txn(&[], &[put(&key, &value)]).unwrap());
            model.insert(key.into_bytes(), value.into_bytes());
        }
        // The history is there, too.
        if round > 0 {
            assert_eq!(store.watch(last - 12).unwrap().next(NOW).unwrap().unwrap().revision, last - 11);
        }
    }
}

#[test]
fn a_change_of_very_much_compacts_the_history() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(&dir.path().join("store")).unwrap();
    let first = written(store.txn(&[], &[put("a", "")]).unwrap());
    let many: Vec<Write> = (0..=embedded::EVENTS_MAX).map(|n| put(&n.to_string(), "")).collect();
    let last = written(store.txn(&[], &many).unwrap());
    assert!(matches!(store.watch(first), Err(StoreError::Compacted(_))));
    assert_eq!(store.watch(last).unwrap().next(NOW).unwrap(), None);
    assert_eq!(store.range(b"", &end_of(b""), usize::MAX).unwrap().entries.len(), many.len() + 1);
}

/// A file system of a few MiB, for as long as it lives.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    #[track_caller]
    fn new() -> Option<SmallDisk> {
        let dir = tempfile::tempdir().unwrap();
        let flags = nix::mount::MsFlags::empty();
        if let Err(e) = nix::mount::mount(Some("tmpfs"), dir.path(), Some("tmpfs"), flags, Some("size=8m")) {
            skip::test(format_args!("needs to mount a tmpfs: {e}"), "run it where mounting is allowed");
            return None;
        }
        Some(SmallDisk(dir))
    }

    fn fill(&self) {
        use std::io::Write;
        let mut file = std::fs::File::create(self.0.path().join("filler")).unwrap();
        while file.write_all(&[0; 512]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        nix::mount::umount2(self.0.path(), nix::mount::MntFlags::MNT_DETACH).unwrap();
    }
}

#[test]
fn a_full_disk_refuses_changes_until_there_is_room_and_answers_meanwhile() {
    let disk = skip::have_root("for a file system of its own").then(SmallDisk::new).flatten();
    let Some(disk) = disk else { return };
    let path = disk.0.path().join("store");
    let store = Embedded::open(&path).unwrap();
    let value = "x".repeat(10_000);
    let (mut model, mut last) = (BTreeMap::new(), 0);
    let all = |store: &Embedded| -> BTreeMap<Vec<u8>, usize> {
        let page = store.range(b"", &end_of(b""), usize::MAX).unwrap();
        page.entries.into_iter().map(|e| (e.key, e.value.len())).collect()
    };
    for n in 0..20 {
        last = written(store.txn(&[], &[put(&n.to_string(), &value)]).unwrap());
        model.insert(n.to_string().into_bytes(), value.len());
    }
    disk.fill();
    let mut refused = 0;
    for n in 100..400 {
        match store.txn(&[], &[put(&n.to_string(), &value)]) {
            Ok(outcome) => {
                last = written(outcome);
                model.insert(n.to_string().into_bytes(), value.len());
            }
            Err(StoreError::Medium { .. }) => refused += 1,
            Err(e) => panic!("{e}"),
        }
        if refused > 3 {
            break;
        }
    }
    assert!(refused > 3, "the disk was never full");
    // It answers, and says what was acknowledged.
    assert_eq!(all(&store), model);
    std::fs::remove_file(disk.0.path().join("filler")).unwrap();
    let next = written(store.txn(&[], &[put("more", &value)]).unwrap());
    model.insert(b"more".to_vec(), value.len());
    assert_eq!((next, all(&store)), (last + 1, model.clone()));
    drop(store);
    assert_eq!(all(&Embedded::open(&path).unwrap()), model);
}
