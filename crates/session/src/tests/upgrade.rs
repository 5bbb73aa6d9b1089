// SPDX-License-Identifier: Apache-2.0
//! Sessions go over to memory of another layout, by the names of their fields.

use super::*;
use crate::upgrade::OldMemory;
use std::cell::RefCell;
use wire::tcp::{ACK, SYN};

/// Where the other layout has the fields of a record: everything is elsewhere, and one field is missing.
const OTHER: &[(&str, usize)] = &[
    ("count", 0),
    ("state", 8),
    ("ack_in", 16),
    ("end_out", 20),
    ("end_in", 24),
    ("ack_out", 28),
    ("inner1", 32),
    ("outer", 40),
    ("inner0", 48),
    ("last_seen", 56),
    ("window_in", 60),
];

#[test]
fn sessions_go_over_to_another_layout_and_catch_up() {
    let old = tracker(Options { sessions: 5000, ..Options::default() });
    for i in 0..1000 {
        let mut new = udp(1 + u32::from(i % 3), 1, i);
        if i % 4 == 0 {
            new.inner = InnerKey::v6(9, 17, 1 << 100 | 5, i, 7 << 70 | 9, 53);
            new.outer = new.inner.untranslated();
        } else if i % 4 == 1 {
            new.inner = InnerKey::v4(2, 6, 3, i, 4, 80);
            new.outer = OuterKey::v4(6, 9, i, 4, 80);
            new.view = L4View::Tcp(Segment { flags: SYN, seq: 77 + u32::from(i), window: 512, ..Segment::default() });
        }
        old.create(&new, 5 * S, &mut never).unwrap();
    }
    let (shared, _) = old.shared_for_tests();
    let layout = |structure: &str, name: &str| {
        let layout = SESSION_LAYOUTS.iter().find(|l| l.name == structure)?;
        Some(layout.fields.iter().find(|f| f.name == name)?.offset)
    };
    // A memory of the other layout: each record's fields are put where it has them.
    let lines = shared.lines;
    let moved = RefCell::new(HashMap::<usize, u64>::new());
    let move_records = || {
        let mut out = moved.borrow_mut();
        out.clear();
        for (at, info) in all(&old, 6 * S) {
            let base = at.0 as usize * 64;
            let record = lines.at(at.0).0.iter().map(|w| w.load(Relaxed)).collect::<Vec<_>>();
            for (name, to) in OTHER {
                let field = SESSION_LAYOUTS[2].fields.iter().find(|f| f.name == *name).unwrap();
                let value = record[field.offset / 8] >> (8 * (field.offset % 8));
                let value = if field.size == 8 { value } else { value & ((1 << (8 * field.size)) - 1) };
                *out.entry(base + to & !7).or_insert(0) |= value << (8 * (to % 8));
            }
            if info.inner.is_v6() {
                for i in 0..8 {
                    out.insert(base + 64 + 8 * i, lines.at(at.0 + 1).word(i).load(Relaxed));
                }
            }
        }
    };
    let field = |structure: &str, name: &str| match structure {
        "SessionRecord" => OTHER.iter().find(|(n, _)| *n == name).map(|(_, to)| *to),
        _ => layout(structure, name),
    };
    let memory = OldMemory {
        field: &field,
        root: &|at| Some(shared.root(at)),
        word: &|at| Some(moved.borrow().get(&at).copied().unwrap_or(0)),
        segments: lines.limit() / SEGMENT_LINES,
        segment_bytes: SEGMENT_BYTES as usize,
    };
    let new = tracker(Options { sessions: 5000, salt: 99, ..Options::default() });
    let carry = || {
        move_records();
        let mut n = 0;
        memory.export(&mut |image| {
            new.import(image, 6 * S).unwrap();
            n += 1;
        });
        assert_eq!(n, 1000);
        check(&new, 6 * S);
        let theirs: HashMap<InnerKey, SessionInfo> = all(&new, 6 * S).iter().map(|(_, i)| (i.inner, *i)).collect();
        for (_, info) in all(&old, 6 * S) {
            let have = &theirs[&info.inner];
            assert_eq!(
                (have.outer, have.owner, have.state, have.epoch),
                (info.outer, info.owner, info.state, info.epoch)
            );
            assert_eq!((have.counts, have.last, have.start), (info.counts, info.last, info.start));
        }
    };
    carry();
    // The old fast path goes on.
    let key = InnerKey::v4(2, 6, 3, 1, 4, 80);
    let sessions = old.sessions();
    let at = old.find_inner(&key).unwrap();
    {
        let guard = sessions.enter();
        guard.record(at).progress(Direction::Out, 5000, 9, 700);
        guard.record(at).touch(6 * S, 999);
    }
    carry();
    let readers = new.sessions();
    let guard = readers.enter();
    let record = guard.record(guard.find_inner(&key).unwrap());
    assert_eq!((record.end(Direction::Out), record.counts().packets), (5000, 2));
    // window_out is what the other layout lacks.
    assert_eq!(record.window(Direction::Out), 0);
    let answer = L4View::Tcp(Segment { flags: SYN | ACK, seq: 1, ack: 5000, ..Segment::default() });
    let at = guard.find_inner(&key).unwrap();
    assert_eq!(new.judge(at, Direction::In, &answer, 40, 6 * S, &mut never).after, State::SynReceived);
}
