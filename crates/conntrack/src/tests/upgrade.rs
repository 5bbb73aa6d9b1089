// SPDX-License-Identifier: Apache-2.0
//! Sessions go over to memory of another layout, by the names of their fields.

use super::*;
use crate::upgrade::{Image, OldMemory};
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
        let mut new = udp(Vni(1 + u32::from(i % 3)), 1, i);
        if i % 4 == 0 {
            new.inner = InnerKey::v6(Vni(9), 17, 1 << 100 | 5, i, 7 << 70 | 9, 53);
            new.outer = new.inner.untranslated();
        } else if i % 4 == 1 {
            new.inner = InnerKey::v4(Vni(2), 6, 3, i, 4, 80);
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
            let base = at.0 .0 as usize * 64;
            let record = lines.at(at.0).0.iter().map(|w| w.load(Relaxed)).collect::<Vec<_>>();
            for (name, to) in OTHER {
                let field = SESSION_LAYOUTS[2].fields.iter().find(|f| f.name == *name).unwrap();
                let value = record[field.offset / 8] >> (8 * (field.offset % 8));
                let value = if field.size == 8 { value } else { value & ((1 << (8 * field.size)) - 1) };
                *out.entry(base + to & !7).or_insert(0) |= value << (8 * (to % 8));
            }
            if info.inner.is_v6() {
                for i in 0..8 {
                    out.insert(base + 64 + 8 * i, lines.at(at.0 + 1).cell(i).load(Relaxed));
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
    let key = InnerKey::v4(Vni(2), 6, 3, 1, 4, 80);
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

/// Field by field, of both families and of pairs; and what is brought up to date goes forward only.
#[test]
fn every_field_goes_over_and_later_ones_go_forward_only() {
    let old = tracker(Options { sessions: 4096, initial: 64, ..Options::default() });
    let end = |vni, last: u8, port| (Vni(vni), std::net::IpAddr::from([10, 0, 1, last]), port);
    let (key, direction) = PairKey::new(6, end(7, 5, 70), end(9, 6, 80), false).unwrap();
    let syn = L4View::Tcp(Segment { flags: SYN, seq: 77, window: 512, scale: Some(5), ..Segment::default() });
    let v4 = NewSession {
        inner: InnerKey::v4(Vni(2), 6, 3, 9, 4, 80),
        outer: OuterKey::v4(6, 0xc633_6401, 10, 4, 80),
        view: syn,
        ..udp(Vni(2), 3, 9)
    };
    let inner6 = InnerKey::v6(Vni(9), 6, 1 << 100 | 5, 11, 7 << 70 | 9, 53);
    let v6 = NewSession { inner: inner6, outer: inner6.untranslated(), owner: Owner::None, ..v4 };
    let pair = NewSession { inner: key.inner(), outer: key.outer(), owner: Owner::Filter, direction, ..v4 };
    let all = [v4, v6, pair];
    let made = all.map(|new| old.create(&NewSession { epoch: 0x1234, ..new }, 5 * S, &mut never).unwrap());
    let sessions = old.sessions();
    let guard = sessions.enter();
    for (n, at) in made.iter().enumerate() {
        let n = n as u32 + 1;
        guard.record(*at).set_sequence(Direction::Out, 1000 * n, 2000 * n, 30 * n as u16);
        guard.record(*at).set_sequence(Direction::In, 4000 * n, 5000 * n, 60 * n as u16);
        guard.record(*at).touch(6 * S, 700 * n);
    }
    let (shared, _) = old.shared_for_tests();
    let lines = shared.lines;
    let field = |structure: &str, name: &str| {
        let layout = SESSION_LAYOUTS.iter().find(|l| l.name == structure)?;
        Some(layout.fields.iter().find(|f| f.name == name)?.offset)
    };
    let memory = OldMemory {
        field: &field,
        root: &|at| Some(shared.root(at)),
        word: &|at| {
            (at / 64 < lines.limit() as usize)
                .then(|| lines.at(LineNo((at / 64) as u32)).cell(at / 8 % 8).load(Relaxed))
        },
        segments: lines.limit() / SEGMENT_LINES,
        segment_bytes: SEGMENT_BYTES as usize,
    };
    let mut images = Vec::new();
    memory.export(&mut |image| images.push(*image));
    assert_eq!(images.len(), 3);
    let new = tracker(Options { sessions: 4096, initial: 64, salt: 5, ..Options::default() });
    let readers = new.sessions();
    let guard_new = readers.enter();
    for (n, (spec, at)) in all.iter().zip(made).enumerate() {
        let i = n as u32 + 1;
        let image = images.iter().find(|image| image.inner == spec.inner).unwrap();
        let word = guard.record(at).state_word();
        assert_eq!((image.outer, image.state, image.epoch), (spec.outer, word, 0x1234), "{n}");
        assert_eq!(
            (image.end, image.ack, image.window),
            ([1000 * i, 4000 * i], [2000 * i, 5000 * i], [30 * i as u16, 60 * i as u16])
        );
        assert_eq!(
            (image.last_seen, Counts::of(image.count)),
            (coarse(6 * S), Counts { packets: 2, bytes: u64::from(100 + 700 * i) })
        );
        let there = new.import(image, 6 * S).unwrap();
        let record = guard_new.record(there);
        let sides = || [Direction::Out, Direction::In].map(|d| (record.end(d), record.ack(d), record.window(d)));
        let want = [(1000 * i, 2000 * i, 30 * i as u16), (4000 * i, 5000 * i, 60 * i as u16)];
        assert_eq!(
            (record.inner(), record.outer(), record.owner(), record.epoch(), sides()),
            (spec.inner, spec.outer, spec.owner, 0x1234, want)
        );
        let place = 0xff << SESSION_WHEEL_SHIFT;
        assert_eq!((record.state_word() & !place, record.last_seen()), (word & !place, coarse(6 * S)));
        // Again: some numbers further on, some further back, a time that is not yet.
        let mut later = *image;
        (later.end, later.ack, later.window) = (
            [image.end[0] + 5, image.end[1] - 5],
            [image.ack[0] - 5, image.ack[1] + 5],
            [image.window[0] + 5, image.window[1] - 5],
        );
        (later.count, later.last_seen) = (image.count + 3, coarse(7 * S));
        assert_eq!(new.import(&later, 6 * S), Ok(there));
        let want = [(1000 * i + 5, 2000 * i, 30 * i as u16 + 5), (4000 * i, 5000 * i + 5, 60 * i as u16)];
        assert_eq!((sides(), record.last_seen(), record.counts().packets), (want, coarse(6 * S), 5));
        assert_eq!(new.import(&later, 8 * S), Ok(there));
        assert_eq!(record.last_seen(), coarse(7 * S));
        assert_eq!(new.import(image, 8 * S), Ok(there));
        assert_eq!(
            (sides(), record.last_seen(), record.counts().packets),
            (want, coarse(7 * S), 5),
            "nothing goes back"
        );
        assert_eq!(record.state_word() & SESSION_LOCK, 0);
        // What cannot be is refused and takes nothing.
        let fault = Err(Refusal::Drop(DropReason::SessionFault));
        let none = Image { state: image.state & !SESSION_STATE_MASK, ..*image };
        let family = Image { state: image.state ^ SESSION_V6, ..*image };
        let mixed = Image { outer: if image.inner.is_v6() { v4.outer } else { v6.outer }, ..*image };
        assert_eq!([none, family, mixed].map(|i| new.import(&i, 8 * S)), [fault; 3]);
    }
    check(&new, 8 * S);
    assert_eq!(
        new.tenants().iter().map(|t| (t.vni.0, t.sessions, t.half_open)).collect::<Vec<_>>(),
        [(2, 1, 1), (7, 1, 1), (9, 1, 1)]
    );
    // An outer key that another session has.
    let thief = Image {
        inner: InnerKey::v4(Vni(3), 6, 3, 9, 4, 80),
        ..images.iter().copied().find(|i| i.inner == v4.inner).unwrap()
    };
    assert_eq!(new.import(&thief, 8 * S), Err(Refusal::OuterTaken));
    assert!(new.find_inner(&thief.inner).is_none());
    check(&new, 8 * S);
}
