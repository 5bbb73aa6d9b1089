// SPDX-License-Identifier: Apache-2.0
//! The state on a disk that is full, cut or damaged, and former configurations made again.

use model::*;
use std::fs;
use std::path::{Path, PathBuf};
use store::*;

fn bytes(m: &Model) -> Vec<u8> {
    let mut out = Vec::new();
    m.write_snapshot(&mut out, 0).unwrap();
    out
}

fn vpc(i: u32) -> Documents {
    let text = format!("{{apiVersion: tunny/v1, kind: Vpc, metadata: {{name: v{i}}}, spec: {{vni: {}}}}}", i + 1);
    parse_text("x.yaml", &text).unwrap()
}

fn many(range: std::ops::Range<u32>) -> Documents {
    let one = |i: u32| {
        format!("{{apiVersion: tunny/v1, kind: Vpc, metadata: {{name: v{i}}}, spec: {{vni: {}}}}}\n---\n", i + 1)
    };
    parse_text("x.yaml", &range.map(one).collect::<String>()).unwrap()
}

fn change(store: &mut Store, model: &mut Model, docs: &Documents) -> Result<u64, String> {
    let plan = model.apply(docs).map_err(|e| e[0].to_string())?;
    store.append(docs, model).map_err(|e| {
        assert!(model.revert(plan).is_none());
        e.to_string()
    })
}

fn files(dir: &Path, begin: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(dir).into_iter().flatten().map(|e| e.unwrap().path());
    let mut found: Vec<PathBuf> = all.filter(|p| p.file_name().unwrap().to_str().unwrap().starts_with(begin)).collect();
    found.sort();
    found
}

#[test]
fn a_damaged_first_record_is_never_an_empty_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, mut model, _) = Store::open(dir.path()).unwrap();
    change(&mut store, &mut model, &vpc(1)).unwrap();
    drop(store);
    let whole = fs::read(dir.path().join("snapshot")).unwrap();
    // The first change is a snapshot: damaged or gone it is no empty configuration, with or without the mark beside it.
    for keep_mark in [true, false] {
        if !keep_mark {
            fs::remove_file(dir.path().join("tail")).unwrap();
        }
        for at in [24, whole.len() - 1] {
            let mut bad = whole.clone();
            bad[at] ^= 1;
            fs::write(dir.path().join("snapshot"), &bad).unwrap();
            let e = Store::open(dir.path()).unwrap_err().to_string();
            assert!(e.contains("damaged"), "{e}");
        }
        fs::write(dir.path().join("snapshot"), &whole).unwrap();
    }
    assert!(bytes(&Store::open(dir.path()).unwrap().1) == bytes(&model));
}

/// Earlier versions wrote the first change into a journal.
#[test]
fn a_damaged_first_record_of_an_earlier_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, mut model, _) = Store::open(dir.path()).unwrap();
    change(&mut store, &mut model, &vpc(1)).unwrap();
    change(&mut store, &mut model, &vpc(2)).unwrap();
    drop(store);
    let journal = files(dir.path(), "journal-").pop().unwrap();
    let whole = fs::read(&journal).unwrap();
    // The record of change 2 as change 1 of a state without a snapshot.
    let mut first = whole.clone();
    first[12] = 1;
    first[24 + 12] = 1;
    let first = bytes::reseal(&first);
    fs::remove_file(&journal).unwrap();
    for file in ["snapshot", "tail"] {
        fs::remove_file(dir.path().join(file)).unwrap();
    }
    let place = dir.path().join(format!("journal-{:020}", 1));
    fs::write(&place, &first).unwrap();
    assert_eq!(Store::open(dir.path()).unwrap().1.counts().of(Kind::Vpc), 1);
    for cut in 25..first.len() {
        fs::write(&place, &first[..cut]).unwrap();
        let _ = fs::remove_file(dir.path().join("tail"));
        let e = Store::open(dir.path()).unwrap_err().to_string();
        assert!(e.contains("first change cannot be read"), "cut at {cut}: {e}");
    }
    let mut bad = first.clone();
    bad[40] ^= 4;
    fs::write(&place, &bad).unwrap();
    assert!(Store::open(dir.path()).unwrap_err().to_string().contains("lost, not empty"));
}

#[test]
fn a_journal_cut_between_two_records_or_taken_away_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, mut model, _) = Store::open(dir.path()).unwrap();
    let mut ends = Vec::new();
    for i in 1..6 {
        change(&mut store, &mut model, &vpc(i)).unwrap();
        ends.extend(files(dir.path(), "journal-").pop().map(|p| fs::metadata(p).unwrap().len()));
    }
    drop(store);
    let journal = files(dir.path(), "journal-").pop().unwrap();
    let whole = fs::read(&journal).unwrap();
    for (i, end) in ends.iter().enumerate().take(4) {
        fs::write(&journal, &whole[..*end as usize]).unwrap();
        let e = Store::open(dir.path()).unwrap_err().to_string();
        assert!(
            e.contains(&format!("ends at change {}, but change 5 was acknowledged", i + 1)) && e.contains("`tail`"),
            "{e}"
        );
    }
    fs::remove_file(&journal).unwrap();
    assert!(Store::open(dir.path()).unwrap_err().to_string().contains("but change 5 was acknowledged"));
    // What the sentence says can be done.
    fs::remove_file(dir.path().join("tail")).unwrap();
    assert_eq!(Store::open(dir.path()).unwrap().1.counts().of(Kind::Vpc), 1);
    fs::write(&journal, &whole).unwrap();
    fs::write(dir.path().join("tail"), b"TUNNYend and nothing that could be a number").unwrap();
    assert_eq!(Store::open(dir.path()).unwrap().1.counts().of(Kind::Vpc), 5);
}

/// What holds the configuration is gone, and something else in the folder knows that there was one: that is no empty configuration.
#[test]
fn a_state_whose_files_are_gone_is_never_an_empty_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, mut model, opened) = Store::open(dir.path()).unwrap();
    assert!(opened.notes.is_empty(), "{:?}", opened.notes);
    for i in 1..4 {
        change(&mut store, &mut model, &vpc(i)).unwrap();
    }
    // A new snapshot moves the one before to `past`.
    store.replace(&model).unwrap();
    drop(store);
    for path in files(dir.path(), "journal-").into_iter().chain([dir.path().join("snapshot")]) {
        fs::remove_file(path).unwrap();
    }
    let refused = |noted: u64, known: u64| {
        let e = Store::open_noting(dir.path(), noted).unwrap_err().to_string();
        assert!(
            e.contains(&format!("knows change {known}")) && e.contains("not empty") && e.contains("move it away"),
            "{e}"
        );
    };
    refused(0, 4);
    // With the mark damaged or gone there is still what is kept of former configurations, and what others noted.
    for mark in [&b""[..], b"garbage"] {
        fs::write(dir.path().join("tail"), mark).unwrap();
        refused(0, 1);
        refused(9, 9);
    }
    fs::remove_file(dir.path().join("tail")).unwrap();
    refused(0, 1);
    fs::remove_dir_all(dir.path().join("past")).unwrap();
    refused(9, 9);
    // Nothing knows of anything: a new state.
    assert_eq!(Store::open(dir.path()).unwrap().2.number, 0);
}

#[test]
fn a_journal_that_begins_behind_nothing_is_no_empty_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, mut model, _) = Store::open(dir.path()).unwrap();
    change(&mut store, &mut model, &vpc(1)).unwrap();
    drop(store);
    // The first change is in the snapshot, and the journal behind it is empty.
    for name in ["snapshot", "tail", "id"] {
        fs::remove_file(dir.path().join(name)).unwrap();
    }
    let _ = fs::remove_dir_all(dir.path().join("past"));
    assert_eq!(files(dir.path(), "journal-").len(), 1);
    for _ in 0..2 {
        let e = Store::open(dir.path()).unwrap_err().to_string();
        assert!(e.contains("knows change 1") && e.contains("not empty"), "{e}");
    }
}

#[test]
fn a_damaged_mark_or_id_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, mut model, first) = Store::open(dir.path()).unwrap();
    change(&mut store, &mut model, &vpc(1)).unwrap();
    change(&mut store, &mut model, &vpc(2)).unwrap();
    drop(store);
    let open = |noted: u64| Store::open_noting(dir.path(), noted).map(|(.., opened)| opened).map_err(|e| e.to_string());
    for mark in [&b""[..], b"TUNNYend", &[0; 24]] {
        fs::write(dir.path().join("tail"), mark).unwrap();
        // Others know of later changes: it was cut.
        assert!(open(3).unwrap_err().contains("but change 3 was acknowledged"));
        let opened = open(2).unwrap();
        assert!(opened.notes.len() == 1 && opened.notes[0].contains("tail is damaged"), "{:?}", opened.notes);
        assert!(open(2).unwrap().notes.is_empty(), "it was made anew");
    }
    fs::remove_file(dir.path().join("tail")).unwrap();
    assert!(open(2).unwrap().notes[0].contains("tail is missing"));
    // The loss was accepted, as the refusal says one can; it is said all the same.
    fs::remove_file(dir.path().join("tail")).unwrap();
    assert!(open(5).unwrap().notes[0].contains("changes are lost"));
    // A state of a version that knew neither mark nor id.
    fs::remove_file(dir.path().join("tail")).unwrap();
    fs::remove_file(dir.path().join("id")).unwrap();
    let earlier = open(0).unwrap();
    assert!(earlier.notes.is_empty() && earlier.id != first.id);
    for id in [&b""[..], b"0123", &[0xff; 33]] {
        fs::write(dir.path().join("id"), id).unwrap();
        let opened = open(2).unwrap();
        assert!(opened.notes.len() == 1 && opened.notes[0].contains("id is damaged"), "{:?}", opened.notes);
    }
}

/// A small file system of its own, and a file that fills it.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(kib: u32) -> Option<SmallDisk> {
        let dir = tempfile::tempdir().unwrap();
        let size = format!("size={kib}k");
        let mounted = nix::mount::mount(
            Some("tmpfs"),
            dir.path(),
            Some("tmpfs"),
            nix::mount::MsFlags::empty(),
            Some(size.as_str()),
        );
        if let Err(e) = mounted {
            skip::test(format_args!("needs to mount a tmpfs: {e}"), "run it where mounting is allowed");
            return None;
        }
        Some(SmallDisk(dir))
    }

    fn fill(&self) {
        use std::io::Write;
        let mut file = fs::File::create(self.0.path().join("filler")).unwrap();
        while file.write_all(&[0; 512]).is_ok() {}
    }

    fn free(&self) {
        fs::remove_file(self.0.path().join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(self.0.path(), nix::mount::MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_full_disk_refuses_changes_and_heals_when_there_is_room() {
    let disk = skip::have_root("for a file system of its own").then(|| SmallDisk::new(512)).flatten();
    let Some(disk) = disk else { return };
    let dir = disk.0.path().join("state");
    let (mut store, mut model, _) = Store::open(&dir).unwrap();
    change(&mut store, &mut model, &vpc(0)).unwrap();
    change(&mut store, &mut model, &vpc(1)).unwrap();
    disk.fill();
    let acknowledged = bytes(&model);
    // Larger than what is left of the journal's last page.
    let large = many(10..310);
    for _ in 0..3 {
        let e = change(&mut store, &mut model, &large).unwrap_err();
        assert!(e.contains("cannot write") && e.contains("No space left"), "{e}");
        assert!(store.trouble().is_some_and(|why| why.contains("No space left")));
        assert!(store.heal(&model).is_err() && store.trouble().is_some(), "there is no room yet");
    }
    // A restart now finds what was acknowledged.
    let copy = tempfile::tempdir().unwrap();
    for file in fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_file()) {
        fs::copy(&file, copy.path().join(file.file_name().unwrap())).unwrap();
    }
    assert!(bytes(&Store::open(copy.path()).unwrap().1) == acknowledged);
    // On the full disk itself it is known from the start that no change is taken.
    drop(store);
    let (mut store, back, _) = Store::open(&dir).unwrap();
    assert!(bytes(&back) == acknowledged && store.trouble().is_some_and(|why| why.contains("No space left")));
    disk.free();
    store.heal(&model).unwrap();
    assert!(store.trouble().is_none());
    assert_eq!(change(&mut store, &mut model, &large), Ok(3));
    // The same while a whole snapshot is written.
    disk.fill();
    let plan = model.replace(Model::from_documents(&many(0..8000)).unwrap().0).unwrap();
    let e = store.replace(&model).unwrap_err().to_string();
    assert!(e.contains("No space left") && store.trouble().is_some(), "{e}");
    assert!(model.revert(plan).is_none());
    let after = bytes(&model);
    disk.fill();
    assert!(store.heal(&model).is_err());
    disk.free();
    store.heal(&model).unwrap();
    change(&mut store, &mut model, &vpc(9000)).unwrap();
    drop(store);
    let (mut store, back, opened) = Store::open(&dir).unwrap();
    assert!(bytes(&back) == bytes(&model) && bytes(&back) != after && opened.notes.is_empty(), "{:?}", opened.notes);
    // Without a word in between: the next change heals by itself. It is larger than the room that opening has found.
    disk.fill();
    assert!(change(&mut store, &mut model, &many(400..8000)).is_err());
    disk.free();
    change(&mut store, &mut model, &many(400..8000)).unwrap();
    assert!(store.trouble().is_none());
}

#[test]
fn former_configurations_are_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, mut model, opened) = Store::open(dir.path()).unwrap();
    let id = opened.id;
    let mut states = std::collections::BTreeMap::new();
    for i in 1..40 {
        let number = match i {
            _ if i % 13 == 0 => {
                model.replace(Model::from_documents(&many(i..i + 5)).unwrap().0).unwrap();
                store.replace(&model).unwrap()
            }
            _ if i % 7 == 0 => {
                // One that the tables refuse leaves a gap.
                let plan = model.apply(&vpc(1000 + i)).unwrap();
                store.append(&vpc(1000 + i), &model).unwrap();
                assert!(model.revert(plan).is_none());
                store.abort(1, &model).unwrap();
                continue;
            }
            _ => change(&mut store, &mut model, &vpc(100 + i)).unwrap(),
        };
        if i % 11 == 0 {
            let job = store.begin_compaction().unwrap();
            let bytes = job.run().unwrap();
            store.end_compaction(bytes);
        }
        states.insert(number, bytes(&model));
        if i % 9 == 0 {
            drop(store);
            let (again, back, opened) = Store::open(dir.path()).unwrap();
            assert!(bytes(&back) == bytes(&model) && opened.id == id);
            (store, model) = (again, back);
        }
    }
    assert_eq!(store.oldest(), 1);
    for (number, state) in &states {
        let then = store.model_at(*number).unwrap_or_else(|e| panic!("{number}: {e}"));
        assert!(bytes(&then) == *state, "change {number}");
    }
    let e = store.model_at(0).unwrap_err().to_string();
    assert!(e.contains("not kept") && e.contains("tunny history"), "{e}");
    assert!(store.model_at(10_000).is_err());
}

/// Not for ever: 64 former snapshots at most, and what leads from them.
#[test]
fn former_configurations_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, mut model, _) = Store::open(dir.path()).unwrap();
    for i in 0..100 {
        model.replace(Model::from_documents(&many(i..i + 2)).unwrap().0).unwrap();
        store.replace(&model).unwrap();
        change(&mut store, &mut model, &vpc(5000 + i)).unwrap();
    }
    let past = dir.path().join("past");
    assert_eq!(files(&past, "snapshot-").len(), 64);
    assert!(files(&past, "journal-").len() <= 65);
    assert_eq!(store.oldest(), 200 - 2 * 64 - 1);
    assert!(store.model_at(store.oldest()).is_ok() && store.model_at(store.oldest() - 1).is_err());
}

/// Whatever is taken away or put in place of a file under an open store: what is acknowledged then is there at the next start.
#[test]
fn files_that_are_removed_or_replaced_under_an_open_store_are_written_anew() {
    let everything = |dir: &Path| files(dir, "").into_iter().filter(|p| p.is_file()).collect::<Vec<_>>();
    type Harm = fn(&Path, &[PathBuf]);
    let harms: [(&str, Harm); 8] = [
        ("all files", |_, all| all.iter().for_each(|p| fs::remove_file(p).unwrap())),
        ("the folder", |dir, _| fs::remove_dir_all(dir).unwrap()),
        ("the journal", |dir, _| files(dir, "journal-").iter().for_each(|p| fs::remove_file(p).unwrap())),
        ("the snapshot", |dir, _| fs::remove_file(dir.join("snapshot")).unwrap()),
        ("the mark", |dir, _| fs::remove_file(dir.join("tail")).unwrap()),
        ("the id", |dir, _| fs::remove_file(dir.join("id")).unwrap()),
        ("a copy of each file in its place", |_, all| {
            for p in all {
                let bytes = fs::read(p).unwrap();
                fs::remove_file(p).unwrap();
                fs::write(p, bytes).unwrap();
            }
        }),
        ("another state in its place", |dir, all| {
            all.iter().for_each(|p| fs::remove_file(p).unwrap());
            let (mut other, mut model, _) = Store::open(dir).unwrap();
            for i in 100..110 {
                change(&mut other, &mut model, &vpc(i)).unwrap();
            }
        }),
    ];
    for (what, harm) in harms {
        for tended in [false, true] {
            let root = tempfile::tempdir().unwrap();
            let dir = root.path().join("state");
            let (mut store, mut model, opened) = Store::open(&dir).unwrap();
            for i in 0..4 {
                change(&mut store, &mut model, &vpc(i)).unwrap();
            }
            assert!(!store.is_displaced() && store.displaced().is_none(), "{what}");
            harm(&dir, &everything(&dir));
            assert!(store.is_displaced(), "{what}");
            if tended {
                store.heal(&model).unwrap();
            } else {
                assert_eq!(change(&mut store, &mut model, &vpc(4)).unwrap(), 5, "{what}");
            }
            assert!(!store.is_displaced() && store.displaced().unwrap().contains("removed or replaced"), "{what}");
            assert_eq!(change(&mut store, &mut model, &vpc(5)).unwrap(), 6 - u64::from(tended), "{what}");
            assert!(Store::open(&dir).unwrap_err().to_string().contains("in use"), "{what}: the lock is held");
            // As after a kill: nothing more is written.
            let number = store.number();
            drop(store);
            let (_store, again, found) = Store::open(&dir).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!((found.number, &found.id), (number, &opened.id), "{what}");
            assert!(bytes(&again) == bytes(&model), "{what}");
        }
    }
}
