// SPDX-License-Identifier: Apache-2.0
//! The state on disk, cut and changed at every byte; snapshots likewise; random bytes into every reader.

use model::*;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fs;
use std::path::{Path, PathBuf};
use store::*;

fn bytes(m: &Model) -> Vec<u8> {
    let mut out = Vec::new();
    m.write_snapshot(&mut out, 0).unwrap();
    out
}

fn example() -> Documents {
    parse_files(&[concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/region.yaml")]).unwrap()
}

fn route(i: u8, scope: Scope) -> Documents {
    let mut docs = Documents::new();
    let prefix = format!("10.9.{i}.0/24").parse().unwrap();
    docs.put(Object::Route(Route { name: None, vpc: "red".into(), prefix, scope, labels: Default::default() }));
    docs
}

/// A store with `changes` small changes; the model after each, and the one before all.
fn history(dir: &Path, changes: u8) -> Vec<Vec<u8>> {
    let (mut store, mut model, _) = Store::open(dir).unwrap();
    let docs = example();
    model.apply(&docs).unwrap();
    store.append(&docs, &model).unwrap();
    // The large first change goes into the snapshot, so that the journal under test is short.
    store.begin_compaction().unwrap().run().unwrap();
    let mut states = vec![bytes(&model)];
    for i in 0..changes {
        let docs = if i % 3 == 2 { route(i - 1, Scope::Local).into_deletions() } else { route(i, Scope::Blackhole) };
        model.apply(&docs).unwrap();
        store.append(&docs, &model).unwrap();
        states.push(bytes(&model));
    }
    states
}

fn journals(dir: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let mut found: Vec<PathBuf> =
        all.filter(|p| p.file_name().unwrap().to_str().unwrap().starts_with("journal-")).collect();
    found.sort();
    found
}

fn copy_dir(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    for e in fs::read_dir(from).unwrap() {
        let path = e.unwrap().path();
        if path.is_dir() {
            continue;
        }
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

#[test]
fn a_journal_cut_at_any_byte_loses_only_what_was_not_acknowledged() {
    let base = tempfile::tempdir().unwrap();
    let (made, work) = (base.path().join("made"), base.path().join("work"));
    let states = history(&made, 6);
    let path = journals(&made).pop().unwrap();
    let whole = fs::read(&path).unwrap();
    let mut seen = vec![0; states.len()];
    for cut in 0..=whole.len() {
        copy_dir(&made, &work);
        fs::write(work.join(path.file_name().unwrap()), &whole[..cut]).unwrap();
        if cut < whole.len() {
            // All of it was acknowledged, also what ends at a record's end.
            let e = Store::open(&work).unwrap_err().to_string();
            assert!(e.contains("damaged") || e.contains("but change 7 was acknowledged"), "cut at {cut}: {e}");
        }
        // As after a power loss, when the mark of what is acknowledged was not on disk yet.
        fs::remove_file(work.join("tail")).unwrap();
        match Store::open(&work) {
            Err(e) => assert!(cut < 24 && e.to_string().contains("damaged"), "cut at {cut}: {e}"),
            Ok((mut store, mut model, mut opened)) => {
                assert!(opened.notes.iter().any(|n| n.contains("tail is missing")));
                opened.notes.retain(|n| !n.contains("tail is missing"));
                let n = opened.replayed as usize;
                seen[n] += 1;
                assert!(bytes(&model) == states[n], "cut at {cut}: not the state after {n} changes");
                assert_eq!(opened.notes.is_empty(), opened.notes.iter().all(|n| !n.contains("never acknowledged")));
                // Going on works, and what comes then is durable too.
                let docs = route(99, Scope::Internet);
                model.apply(&docs).unwrap();
                store.append(&docs, &model).unwrap();
                drop(store);
                let (_, again, opened) = Store::open(&work).unwrap();
                assert!(bytes(&again) == bytes(&model) && opened.notes.is_empty(), "cut at {cut}: {:?}", opened.notes);
            }
        }
    }
    assert!(seen.iter().all(|n| *n > 0), "every prefix of the history was met: {seen:?}");
}

#[test]
fn a_changed_byte_is_never_taken_for_a_change() {
    let base = tempfile::tempdir().unwrap();
    let (made, work) = (base.path().join("made"), base.path().join("work"));
    let states = history(&made, 4);
    let path = journals(&made).pop().unwrap();
    let whole = fs::read(&path).unwrap();
    let (mut refused, mut cut) = (0, 0);
    for at in 0..whole.len() {
        let mut bad = whole.clone();
        bad[at] ^= 1 << (at % 8);
        copy_dir(&made, &work);
        fs::write(work.join(path.file_name().unwrap()), &bad).unwrap();
        let e = Store::open(&work).unwrap_err().to_string();
        assert!(e.contains("damaged at byte") || e.contains("but change 5 was acknowledged"), "{e}");
        fs::remove_file(work.join("tail")).unwrap();
        match Store::open(&work) {
            Err(e) => {
                refused += 1;
                assert!(e.to_string().contains("damaged at byte"), "{e}");
            }
            Ok((_, model, mut opened)) => {
                assert!(opened.notes.iter().any(|n| n.contains("tail is missing")));
                opened.notes.retain(|n| !n.contains("tail is missing"));
                // Only the last change may go: it cannot be told from one that was being written.
                cut += 1;
                assert_eq!(opened.replayed as usize, states.len() - 2, "byte {at}");
                assert!(bytes(&model) == states[states.len() - 2] && opened.notes.len() == 1);
            }
        }
    }
    assert!(refused > 50 && cut > 20, "{refused} refused, {cut} cut");
}

#[test]
fn a_compaction_killed_at_any_step_loses_nothing() {
    let base = tempfile::tempdir().unwrap();
    let (made, work) = (base.path().join("made"), base.path().join("work"));
    let mut states = history(&made, 5);
    let last = states.pop().unwrap();
    let check = |what: &str| {
        let (_, model, opened) = Store::open(&work).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(bytes(&model) == last, "{what}");
        assert!(opened.notes.is_empty(), "{what}: {:?}", opened.notes);
        let left: Vec<_> = fs::read_dir(&work).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.iter().all(|n| !n.to_str().unwrap().ends_with(".new")), "{what}: {left:?}");
    };
    // A new journal was begun, and nothing else.
    copy_dir(&made, &work);
    drop(Store::open(&work).unwrap().0.begin_compaction().unwrap());
    assert_eq!(journals(&work).len(), 2);
    check("new journal");
    // Half a snapshot lies about.
    fs::write(work.join("snapshot-compacted.new"), b"TUNNYsnp").unwrap();
    fs::write(work.join("journal.new"), b"TUN").unwrap();
    check("half a snapshot");
    // The new snapshot is in place, the old journal still there.
    copy_dir(&made, &work);
    let (mut store, model, _) = Store::open(&work).unwrap();
    let old = journals(&work).pop().unwrap();
    let kept = fs::read(&old).unwrap();
    store.begin_compaction().unwrap().run().unwrap();
    assert!(!old.exists() && bytes(&model) == last);
    drop(store);
    fs::write(&old, &kept).unwrap();
    check("old journal left");
    // Even if the new journal had not come into being.
    fs::write(&old, &kept).unwrap();
    fs::remove_file(journals(&work).pop().unwrap()).unwrap();
    fs::write(&old, &kept).unwrap();
    check("only the old journal left");
    let (mut store, mut model, _) = Store::open(&work).unwrap();
    let docs = route(7, Scope::Line(0));
    model.apply(&docs).unwrap();
    store.append(&docs, &model).unwrap();
    drop(store);
    assert!(bytes(&Store::open(&work).unwrap().1) == bytes(&model));
}

#[test]
fn a_compaction_that_comes_too_late_takes_nothing_back() {
    let dir = tempfile::tempdir().unwrap();
    history(dir.path(), 3);
    let (mut store, mut model, _) = Store::open(dir.path()).unwrap();
    let late = store.begin_compaction().unwrap();
    let docs = route(60, Scope::Line(0));
    model.apply(&docs).unwrap();
    store.append(&docs, &model).unwrap();
    let also_late = store.begin_compaction().unwrap();
    model.apply(&route(61, Scope::Line(0))).unwrap();
    store.replace(&model).unwrap();
    late.run().unwrap();
    also_late.run().unwrap();
    let docs = route(62, Scope::Line(0));
    model.apply(&docs).unwrap();
    store.append(&docs, &model).unwrap();
    drop(store);
    assert!(bytes(&Store::open(dir.path()).unwrap().1) == bytes(&model));
}

#[test]
fn what_an_earlier_version_took_is_taken_again_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, mut model, _) = Store::open(dir.path()).unwrap();
    let doc = |kind: &str, name: &str, spec: &str| {
        format!("{{apiVersion: tunny/v1, kind: {kind}, metadata: {{name: {name}}}, spec: {{{spec}}}}}\n---\n")
    };
    let base = [
        doc("Gateway", "gw", "vtep: {ipv4: 10.0.0.1}, internet: {via: [192.0.2.1]}"),
        doc("Nc", "nc1", "address: 10.0.0.5"),
        doc("Vpc", "red", "vni: 7"),
        doc("PublicPool", "one", "ranges: [192.0.2.77]"),
        doc("Vm", "own", "vpc: red, addresses: [10.1.0.6], mac: '02:00:00:00:00:06', nc: nc1"),
        doc("ElasticIp", "own", "address: 192.0.2.77, vm: own"),
    ];
    let base = parse_text("base.yaml", &base.concat()).unwrap();
    model.apply(&base).unwrap();
    store.append(&base, &model).unwrap();
    // Both are refused today.
    let inside = doc("Vm", "inside", "vpc: red, addresses: [192.0.2.77], mac: '02:00:00:00:00:17', nc: nc1");
    let snat = doc("Snat", "red", "vpc: red, pools: [one]");
    for text in [inside, snat] {
        let docs = parse_text("old.yaml", &text).unwrap();
        assert_eq!(model.apply(&docs).unwrap_err().len(), 1);
        store.append(&docs, &model).unwrap();
    }
    drop(store);
    let (_, mut model, opened) = Store::open(dir.path()).unwrap();
    assert_eq!(
        (opened.replayed, model.counts().of(Kind::Vm), compile::Compile::conntrack(&model).limits.len()),
        (2, 2, 1)
    );
    // Other changes are taken, and so are the files that it starts with; what brings it about anew is not.
    let other = doc("Vm", "other", "vpc: red, addresses: [10.1.0.8], mac: '02:00:00:00:00:18', nc: nc1");
    model.apply(&parse_text("new.yaml", &other).unwrap()).unwrap();
    model.apply(&base).unwrap();
    let wider = doc("PublicPool", "one", "ranges: [192.0.2.77], portBlock: 128");
    let told = model.apply(&parse_text("new.yaml", &wider).unwrap()).unwrap_err();
    let told: Vec<String> = told.iter().map(|e| format!("{} {}", e.name, e.field)).collect();
    assert_eq!(told, ["one spec.ranges", "one spec.ranges[0]"]);
}

#[test]
fn an_aborted_change_does_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let states = history(dir.path(), 2);
    let (mut store, mut model, _) = Store::open(dir.path()).unwrap();
    let docs = route(50, Scope::Region);
    let plan = model.apply(&docs).unwrap();
    store.append(&docs, &model).unwrap();
    assert!(model.revert(plan).is_none());
    store.abort(1, &model).unwrap();
    let more = route(51, Scope::Region);
    model.apply(&more).unwrap();
    store.append(&more, &model).unwrap();
    drop(store);
    let (mut store, back, opened) = Store::open(dir.path()).unwrap();
    assert!(bytes(&back) == bytes(&model) && bytes(&back) != states[2]);
    assert_eq!((opened.number, opened.replayed), (6, 3));
    // The same when the change had gone into a snapshot.
    let mut model = back;
    let other = Model::new();
    let plan = model.replace(other).unwrap();
    store.replace(&model).unwrap();
    assert!(model.revert(plan).is_none());
    store.abort(1, &model).unwrap();
    drop(store);
    assert!(bytes(&Store::open(dir.path()).unwrap().1) == bytes(&model));
}

#[test]
fn two_processes_cannot_share_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let first = Store::open(dir.path()).unwrap();
    assert!(matches!(Store::open(dir.path()), Err(StoreError::Locked(_))));
    drop(first);
    assert!(Store::open(dir.path()).is_ok());
}

#[test]
fn a_missing_journal_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    history(dir.path(), 3);
    fs::remove_file(dir.path().join("snapshot")).unwrap();
    let e = Store::open(dir.path()).unwrap_err();
    assert!(e.to_string().contains("change 1 is missing before change 2"), "{e}");
}

#[test]
fn snapshots_come_back_and_every_changed_byte_is_refused() {
    let (mut model, _) = Model::from_documents(&example()).unwrap();
    let mut docs = Documents::new();
    let address = "192.0.2.77".parse().unwrap();
    docs.put(Object::Nc(Nc {
        name: "extra".into(),
        address,
        vpcs: vec!["green".into(), "red".into()],
        labels: Default::default(),
    }));
    model.apply(&docs).unwrap();
    let good = bytes(&model);
    let (back, number) = Model::from_snapshot(&good).unwrap();
    assert!(number == 0 && bytes(&back) == good && back.counts() == model.counts());
    // The loaded model is alive: its indices and counts are those of the original.
    let mut back = back;
    assert!(back.apply(&example()).unwrap().is_empty());
    let (a, b) = (back.apply(&example().into_deletions()), model.apply(&example().into_deletions()));
    assert_eq!(format!("{:?}", a.unwrap_err()), format!("{:?}", b.unwrap_err()));
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        assert!(Model::from_snapshot(&bad).is_err(), "byte {at}");
        assert!(Model::from_snapshot(&good[..at]).is_err(), "cut at {at}");
    }
}

/// Frames with right checksums around wrong content: what an attacker, or a bug, would write.
#[test]
fn wrong_content_with_right_checksums_never_panics() {
    let (model, _) = Model::from_documents(&example()).unwrap();
    let good = bytes(&model);
    let seed = 4_711;
    println!("seed {seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let mut bad = good.clone();
        for _ in 0..rng.random_range(1..4) {
            let at = rng.random_range(24..bad.len());
            bad[at] = if rng.random() { rng.random() } else { bad[at].wrapping_add(1) };
        }
        let bad = bytes::reseal(&bad);
        match Model::from_snapshot(&bad) {
            Err(_) => refused += 1,
            Ok((m, _)) => {
                taken += 1;
                // Whatever got in keeps the rules: its documents make the same model.
                let mut docs = Documents::new();
                Kind::ALL.iter().flat_map(|k| m.objects(*k)).for_each(|o| docs.put(o));
                let (again, _) = Model::from_documents(&docs).unwrap_or_else(|e| panic!("{}", e[0]));
                assert!(bytes(&again) == bytes(&m));
            }
        }
    }
    println!("{taken} taken, {refused} refused");
    assert!(taken > 100 && refused > 1000);
}

#[test]
fn wrong_records_with_right_checksums_never_panic() {
    let dir = tempfile::tempdir().unwrap();
    history(dir.path(), 6);
    let good = fs::read(journals(dir.path()).pop().unwrap()).unwrap();
    assert_eq!(count_records(&good).unwrap(), 6);
    let mut rng = ChaCha8Rng::seed_from_u64(99);
    let mut refused = 0;
    for _ in 0..20_000 {
        let mut bad = good.clone();
        let at = rng.random_range(0..bad.len());
        bad[at] = rng.random();
        refused += u32::from(count_records(&bytes::reseal(&bad)).is_err());
    }
    assert!(refused > 1000, "{refused}");
}

#[test]
fn random_bytes_never_panic() {
    let mut rng = ChaCha8Rng::seed_from_u64(815);
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/region.yaml")).unwrap();
    let line = example().puts.last().unwrap().object.to_ndjson();
    for _ in 0..2_000 {
        let mut noise = vec![0; rng.random_range(0..200)];
        rng.fill_bytes(&mut noise);
        let _ = Model::from_snapshot(&noise);
        let noise = String::from_utf8_lossy(&noise);
        let _ = (parse_text("x.yaml", &noise), parse_text("x.ndjson", &noise));
        for (name, good) in [("x.yaml", &text), ("x.ndjson", &line)] {
            let start = rng.random_range(0..good.len());
            let mut part: Vec<u8> = good.bytes().skip(start).take(300).collect();
            for _ in 0..3 {
                let at = rng.random_range(0..part.len());
                part[at] = *b"{}[]:,-#&*!|>'\"%@`\n\t \\0a".get(rng.random_range(0..24)).unwrap();
            }
            if let Ok(docs) = parse_text(name, &String::from_utf8_lossy(&part)) {
                let _ = Model::new().apply(&docs);
            }
        }
    }
}
