// SPDX-License-Identifier: Apache-2.0
//! Migration as a node runs it: `Migrate_Tbl` beside a plain list, and connections that go and come back while packets arrive that were read
//! at any time in between.
use super::*;
use crate::migrate_tbl::MigrateTbl;
use crate::prefixes::Block;
use abi::Vni;
use std::collections::{BTreeMap, HashMap};
use Direction::{In, Out};

const SECOND: u64 = 1_000_000_000;

fn prefix(width: u8, addr: u128, len: u8) -> Block {
    crate::prefixes::Prefixes::new(width, width).prefix(addr, len)
}

/// Random disjoint prefixes, sorted, many of them close together.
fn entries(rng: &mut ChaCha8Rng, n: usize) -> Vec<Entry> {
    let mut out: Vec<Entry> = Vec::new();
    for _ in 0..n {
        let (vni, v6) = (rng.random_range(1..4), rng.random_range(0..3) == 0);
        let width = if v6 { WIDTH6 } else { WIDTH4 };
        let addr = u128::from(rng.random_range(0..5u32)) << (width - 32)
            | u128::from(rng.random_range(0..4u32)) << (width - 70)
            | u128::from(rng.random_range(0..99u32));
        let prefix = prefix(
            width,
            addr,
            [width, width, 64, 63, 65, 32, 30, rng.random_range(1..=width)][rng.random_range(0..8)],
        );
        let entry = Entry { vni: Vni(vni), v6, prefix, away: rng.random() };
        let meets =
            |o: &Entry| (o.vni, o.v6) == (Vni(vni), v6) && (covers(o, prefix.addr) || covers(&entry, o.prefix.addr));
        if !out.iter().any(meets) {
            out.push(entry);
        }
    }
    out.sort_unstable();
    out
}

fn covers(e: &Entry, addr: u128) -> bool {
    let width = if e.v6 { WIDTH6 } else { WIDTH4 };
    prefix(width, addr, e.prefix.len) == e.prefix
}

#[test]
fn migrate_tbl_equals_a_list_of_prefixes() {
    let mut rng = seeded("migrate_tbl");
    let memory = heap(MigrateTbl::LINES);
    let mut table = MigrateTbl::new(memory);
    let reader = table.reader();
    for round in 0..60 {
        let n = [0, 1, 3, 20, 400][round % 5];
        let list = entries(&mut rng, n);
        table.publish(&list).unwrap();
        let mut bytes: HashMap<Entry, u64> = HashMap::new();
        for _ in 0..400 {
            let near = list.get(rng.random_range(0..list.len().max(1)));
            let (vni, v6) = near.map_or((Vni(1), rng.random()), |e| (e.vni, e.v6));
            let width = if v6 { WIDTH6 } else { WIDTH4 };
            let flip = 1u128 << rng.random_range(0..width);
            let addr = near.map_or(0, |e| e.prefix.addr) ^ if rng.random() { flip } else { 0 };
            let place = Place { vni: Vni(vni.0 ^ u32::from(rng.random_range(0..9) == 0)), v6, addr };
            let mine = list.iter().find(|e| (e.vni, e.v6) == (place.vni, v6) && covers(e, addr));
            let found = reader.find(&place);
            let value = found.0;
            reader.count(found, 7);
            assert_eq!(value != 0, mine.is_some(), "{place:?} {mine:?}");
            if let Some(e) = mine {
                assert_eq!(value & abi::MIGRATE_AWAY != 0, e.away);
                *bytes.entry(*e).or_default() += 7;
            }
        }
        let counted: HashMap<Entry, u64> = table.harvest().filter(|(_, n)| *n > 0).collect();
        assert_eq!(counted, bytes);
        assert_eq!(table.harvest().map(|(_, n)| n).sum::<u64>(), 0, "what was taken is not counted again");
    }
}

#[test]
fn the_largest_table_that_may_be_fits() {
    // The worst: every entry alone in its trees.
    let of = |i: u32| Entry {
        vni: Vni(1 + i),
        v6: true,
        prefix: Block { addr: u128::from(i) << 64 | u128::from(i), len: 128 },
        away: true,
    };
    let mut table = MigrateTbl::new(heap(MigrateTbl::LINES));
    let list: Vec<Entry> = (0..abi::MIGRATE_ENTRIES_MAX).map(of).collect();
    table.publish(&list).unwrap();
    let began = std::time::Instant::now();
    table.publish(&list).unwrap();
    println!("{} entries written anew in {:?}", list.len(), began.elapsed());
    for i in (0..abi::MIGRATE_ENTRIES_MAX).step_by(97) {
        let place = Place { vni: Vni(1 + i), v6: true, addr: u128::from(i) << 64 | u128::from(i) };
        assert_eq!(table.reader().find(&place).0, (i + 1) | abi::MIGRATE_AWAY);
        assert_eq!(table.reader().find(&Place { addr: place.addr + 1, ..place }).0, 0);
    }
    let more: Vec<Entry> = (0..=abi::MIGRATE_ENTRIES_MAX).map(of).collect();
    assert!(table.publish(&more).is_err());
}

/// A tenant's connection: VNI, number of the unit, which one in it.
fn flow(vni: Vni, unit: u32, i: u32, v6: bool) -> Key {
    match v6 {
        false => Key::v4(vni, 6, 0x0a00_0000 | unit, 80, 0x0b00_0000 | unit, i as u16),
        true => Key::v6(vni, 6, 1 << 64 | u128::from(unit), 80, u128::from(i) << 64, 9),
    }
}

fn send(s: &Shared, key: Key, kind: Kind, from: Direction, now: u64) -> bool {
    match s.judge(&key, kind, 100).1 {
        Verdict::Accept => true,
        Verdict::Drop => false,
        Verdict::Agent => s.control(&Control { key, kind, from }, false, now, &mut |_| true) == Outcome::Pass,
    }
}

fn establish(s: &Shared, key: Key, now: u64) -> bool {
    [(Kind::Syn, Out), (Kind::SynAck, In), (Kind::Ack, Out)]
        .into_iter()
        .all(|(kind, from)| send(s, key, kind, from, now))
}

fn spec(kind: TableKind, n: u32, begin: u8, end: u8) -> Spec {
    let migration = MigrationOptions { connections: 8 * n, begin, end, ..MigrationOptions::default() };
    Spec { migration: Some(migration), ..Spec::new(kind, n, n / 4) }
}

/// What a fast path saw of each connection when it looked into the table: it looks into Migrate_Tbl later.
#[derive(Default)]
struct Straddling(HashMap<Key, (u8, bool)>);

impl Straddling {
    /// All that began to look have ended; others begin.
    fn end(&mut self, s: &Shared, alive: &BTreeMap<u64, Key>, table: &dyn Fn(&Key) -> u8) {
        for key in alive.values() {
            if let Some((state, requests)) = self.0.get(key) {
                assert!(
                    s.away(key) || *state == 2 || *requests,
                    "{key:?} was read as {state} and then not found in Migrate_Tbl"
                );
            }
        }
        // While the records alone know of some, whatever the table does not accept is the agent's.
        let requests = s.judge(&flow(Vni(77), 0, 0, false), Kind::SynAck, 0).1 == Verdict::Agent;
        self.0 = alive.values().map(|key| (*key, (table(key), requests))).collect();
    }
}

/// Connections come and go, the table is too small for them, processes die: whoever is established is accepted at any time, and nobody else.
#[test]
fn connections_survive_migration_there_and_back() {
    let mut rng = seeded("moving");
    for kind in [TableKind::Exact, TableKind::Compact, TableKind::Digest] {
        let slots = HeapSlots::default();
        let spec = spec(kind, 400, 90, 60);
        let open = |slots: &HeapSlots| Shared::open(slots, spec, 77, Timeouts::default()).unwrap();
        let (mut shared, _) = open(&slots);
        shared.set_weights([(Vni(1), 4), (Vni(3), 2)].into());
        let (mut alive, mut now, mut next) = (BTreeMap::<u64, Key>::new(), SECOND, 0u64);
        let (mut there, mut back, mut died, mut refused) = (0, 0, 0, 0);
        for round in 0..1200u32 {
            now += SECOND / 4;
            // Waves, so that there is too much and then room again.
            let grows = round / 100 % 3 < 2;
            for _ in 0..rng.random_range(0..12) {
                if grows || alive.is_empty() {
                    let (vni, unit) = (rng.random_range(1..6), rng.random_range(0..20));
                    let key = flow(Vni(vni), unit * rng.random_range(0..3), next as u32, rng.random_range(0..6) == 0);
                    match establish(&shared, key, now) {
                        true => drop(alive.insert(next, key)),
                        false => refused += 1,
                    }
                    next += 1;
                } else {
                    let at = *alive.keys().nth(rng.random_range(0..alive.len())).unwrap();
                    assert!(send(&shared, alive.remove(&at).unwrap(), Kind::Rst, Out, now));
                }
            }
            let memory = slots.left(abi::STATES_SLOT_TABLE).unwrap();
            let reader = Reader::open(memory).unwrap();
            let table = |key: &Key| reader.state(key);
            let mut straddling = Straddling::default();
            straddling.end(&shared, &alive, &table);
            let places = rng.random_range(1..900);
            shared.migrate(now, places, &mut || straddling.end(&shared, &alive, &table));
            straddling.end(&shared, &alive, &table);
            for key in alive.values() {
                assert!(send(&shared, *key, Kind::Ack, In, now), "{kind:?} round {round}: {key:?}");
            }
            let stranger = flow(Vni(rng.random_range(1..6)), rng.random_range(0..60), 50_000 + round, false);
            if shared.away(&stranger) {
                assert!(!send(&shared, stranger, Kind::Ack, Out, now), "what has migrated is judged by full keys");
            }
            let m = shared.migration().unwrap();
            assert_eq!(m.connections.0 + m.connections.1, alive.len() as u64 + half_open(&shared, &alive));
            assert!(m.connections.0 <= spec.all());
            assert_eq!(shared.status().usage.connections, m.connections.0);
            (there, back) = (there.max(m.moved.0), back.max(m.moved.1));
            if rng.random_range(0..60) == 0 {
                died += 1;
                drop(shared);
                shared = open(&slots).0;
                shared.set_weights([(Vni(1), 4), (Vni(3), 2)].into());
                let again = shared.migration().unwrap();
                assert_eq!(again.connections, m.connections, "everybody is where he was");
            }
        }
        println!("{kind:?}: {there} went at most between two deaths, {back} came back, {died} deaths, {refused} refused, {} left", alive.len());
        assert!(there > 50 && back > 20 && died > 3);
    }
}

/// A table that fills up between two steps refuses nobody as long as the records have room: who comes then is judged by them at once, before the
/// prefix is published, and strangers are not. The list of control packets is its own again once the prefixes are.
#[test]
fn a_table_that_fills_up_between_two_steps_refuses_nobody() {
    for kind in [TableKind::Exact, TableKind::Compact, TableKind::Digest] {
        let slots = HeapSlots::default();
        let mut spec = spec(kind, 100, 90, 60);
        spec.registers = 4000;
        let (mut shared, _) = Shared::open(&slots, spec, 77, Timeouts::default()).unwrap();
        let room = spec.all();
        let keys: Vec<Key> = (0..3 * room as u32).map(|i| flow(Vni(1 + i % 5), i / 3, i, i % 7 == 0)).collect();
        for key in &keys {
            assert!(establish(&shared, *key, SECOND), "{kind:?}: {key:?}");
        }
        let m = shared.migration().unwrap();
        assert!(m.connections.0 <= room && m.connections.0 + m.connections.1 == keys.len() as u64, "{kind:?}: {m:?}");
        assert!(m.connections.1 >= 2 * room);
        let all_live = |shared: &Shared, now: u64, when: &str| {
            for key in &keys {
                let told = || {
                    format!(
                        "{kind:?} {when}: {key:?}, {:?}, {:?}, {:?}",
                        shared.get(key),
                        shared.judge(key, Kind::Ack, 0),
                        shared.migrated_by(key)
                    )
                };
                assert!(send(shared, *key, Kind::Ack, In, now), "{}", told());
            }
        };
        let away = keys
            .iter()
            .find(|key| shared.get(key).unwrap().away && !shared.away(key))
            .expect("one whose prefix is not published");
        let refused = |shared: &Shared, key: &Key| {
            let (_, verdict) = shared.judge(key, Kind::Ack, 60);
            let requested = verdict == Verdict::Agent;
            (
                requested,
                requested
                    && shared.control(&Control { key: *key, kind: Kind::Ack, from: Out }, false, SECOND, &mut |_| true)
                        == Outcome::Pass,
            )
        };
        let strangers: Vec<Key> = (0..200).map(|i| flow(Vni(9), i, i, false)).collect();
        let requested = strangers.iter().map(|key| refused(&shared, key)).filter(|(requested, passed)| {
            assert!(!passed, "a stranger");
            *requested
        });
        assert!(requested.count() > 100, "{kind:?}: the agent is asked while it alone knows");
        all_live(&shared, SECOND, "at once");
        if kind == TableKind::Digest {
            // A process that dies in between.
            drop(shared);
            shared = Shared::open(&slots, spec, 77, Timeouts::default()).unwrap().0;
            assert!(shared.away(away), "its successor has published what the records say");
            all_live(&shared, SECOND, "behind a death");
        }
        while shared.migrate(2 * SECOND, 1 << 20, &mut || ())
            && (shared.presses() || shared.migration().unwrap().connections.0 > room / 2)
        {}
        assert!(shared.away(away) && !shared.presses());
        all_live(&shared, 2 * SECOND, "once they are published");
        let requested = strangers.iter().filter(|key| refused(&shared, key).0).count();
        assert_eq!(requested, 0, "{kind:?}: the fast path tells by itself again");
    }
}

/// A flood of prefixes between two steps is refused from a bound on: what is published has room for those.
#[test]
fn what_overflows_between_two_steps_is_bounded() {
    let slots = HeapSlots::default();
    let spec = Spec {
        migration: Some(MigrationOptions { connections: 1 << 16, ..MigrationOptions::default() }),
        ..Spec::new(TableKind::Digest, 80, 80)
    };
    let (shared, _) = Shared::open(&slots, spec, 77, Timeouts::default()).unwrap();
    let begun = (0..10_000).filter(|i| establish(&shared, flow(Vni(1), *i, *i, false), SECOND)).count() as u64;
    assert!((2_000..3_000).contains(&begun), "{begun}");
    for i in 0..30 {
        shared.migrate((2 + i) * SECOND, 1 << 20, &mut || ());
    }
    assert!(establish(&shared, flow(Vni(1), 20_000, 1, false), 40 * SECOND), "and then goes on");
    let alive = shared.connections();
    for (key, c) in &alive {
        assert!(
            send(&shared, *key, Kind::Ack, In, 41 * SECOND),
            "{key:?} {c:?} {:?} {:?}",
            shared.judge(key, Kind::Ack, 0),
            shared.migrated_by(key)
        );
    }
}

/// Connections that were refused in the middle of their handshake.
fn half_open(s: &Shared, alive: &BTreeMap<u64, Key>) -> u64 {
    let known: std::collections::HashSet<&Key> = alive.values().collect();
    s.list(0, u64::MAX / 2).0.iter().filter(|(key, _)| !known.contains(key)).count() as u64
}

/// §7.6: thirty tenants of one weight with 100, 400 and 1,600 connections each; θ1 10,000, θ2 5,000.
#[test]
fn only_tenants_with_many_connections_give() {
    let slots = HeapSlots::default();
    let (shared, _) = Shared::open(&slots, spec(TableKind::Digest, 16_000, 50, 25), 5, Timeouts::default()).unwrap();
    let mut made = 0;
    for i in 0..1600 {
        for tenant in 0..30u32 {
            if i < [100, 400, 1600][tenant as usize % 3] {
                assert!(establish(&shared, flow(Vni(1 + tenant), i / 4, i, false), SECOND));
                made += 1;
            }
        }
        while shared.migrate(u64::from(2 + i) * SECOND, 1 << 20, &mut || ())
            && shared.migration().unwrap().connections.0 >= 10_000
        {}
    }
    while shared.migrate(3000 * SECOND, 1 << 20, &mut || ()) && shared.migration().unwrap().connections.0 >= 10_000 {}
    assert_eq!(made, 21_000);
    let m = shared.migration().unwrap();
    assert_eq!(m.thresholds, (10_000, 5_000));
    assert!(m.connections.0 < 10_000 && m.connections.0 + m.connections.1 == made);
    for t in &m.tenants {
        let small = (t.vni.0 - 1) % 3 == 0;
        assert_eq!((small, t.away), (small, if small { 0 } else { t.away }), "those with 100 give nothing: {t:?}");
        assert!(small || t.away > 0, "{t:?}");
    }
    assert!(!m.entries.iter().any(|(e, ..)| (e.vni.0 - 1) % 3 == 0), "no entry for them either");
}

/// A flood of units makes units coarser instead of tables larger.
#[test]
fn many_units_become_coarser_ones() {
    let slots = HeapSlots::default();
    let (shared, _) = Shared::open(&slots, spec(TableKind::Digest, 40_000, 50, 10), 5, Timeouts::default()).unwrap();
    for i in 0..30_000u32 {
        assert!(establish(&shared, flow(Vni(1), i, i, i % 3 == 0), SECOND));
    }
    for i in 0..40 {
        shared.migrate((2 + i) * SECOND, 1 << 20, &mut || ());
    }
    let m = shared.migration().unwrap();
    assert!(m.entries.len() <= 8192 && m.connections.1 > 20_000, "{} entries, {:?}", m.entries.len(), m.connections);
    for i in 0..30_000u32 {
        assert!(send(&shared, flow(Vni(1), i, i, i % 3 == 0), Kind::Ack, In, 99 * SECOND), "{i}");
    }
}

/// Migration is switched off: all come back, as far as there is room.
#[test]
fn all_come_back_when_migration_ends() {
    let slots = HeapSlots::default();
    let with = spec(TableKind::Digest, 400, 50, 10);
    let (shared, _) = Shared::open(&slots, with, 5, Timeouts::default()).unwrap();
    for i in 0..300 {
        assert!(establish(&shared, flow(Vni(1), i, i, false), SECOND));
    }
    for i in 0..5 {
        shared.migrate((2 + i) * SECOND, 1 << 20, &mut || ());
    }
    assert!(shared.migration().unwrap().connections.1 >= 250);
    drop(shared);
    let (shared, found) = Shared::open(&slots, Spec { migration: None, ..with }, 5, Timeouts::default()).unwrap();
    assert_eq!((found.lost, shared.status().usage.connections, shared.migration()), (0, 300, None));
    assert!(slots.left(abi::STATES_SLOT_MIGRATE).is_none());
    assert!((0..300).all(|i| send(&shared, flow(Vni(1), i, i, false), Kind::Ack, In, SECOND)));
}
