// SPDX-License-Identifier: Apache-2.0
//! The same traffic through exact, compact and digest tables: each difference must be a hash event, that is, a packet of a
//! connection that is *not* known and cannot be told from one that is. The pair is named.
use super::*;
use std::collections::HashMap;

/// What a table's memory cannot tell apart: (register, fingerprint), or (class, 0).
type Look = (u64, u64, u64);

enum Table {
    Compact(Agent<Compact>),
    Digest(Agent<Digest>),
}

impl Table {
    fn control(&mut self, packet: &Control, now: u64) -> Outcome {
        match self {
            Table::Compact(agent) => agent.control(packet, now, &mut |_| true),
            Table::Digest(agent) => agent.control(packet, now, &mut |_| true),
        }
    }

    fn expire(&mut self, now: u64) {
        match self {
            Table::Compact(agent) => agent.expire(now, u64::MAX),
            Table::Digest(agent) => agent.expire(now, u64::MAX),
        }
    }

    fn rested(&mut self) {
        match self {
            Table::Compact(agent) => {
                agent.rest();
                agent.rest();
                agent.rested();
            }
            Table::Digest(agent) => {
                agent.rest();
                agent.rest();
                agent.rested();
            }
        }
    }

    fn reader(&self) -> Reader {
        match self {
            Table::Compact(agent) => agent.table().reader(),
            Table::Digest(agent) => agent.table().reader(),
        }
    }

    fn look(&self, key: &Key) -> Look {
        match self {
            Table::Compact(agent) => {
                let (register, fingerprint) = agent.table().bucket(key);
                (register.into(), fingerprint.into(), 0)
            }
            Table::Digest(agent) => {
                let class = agent.table().class(key);
                (class.buckets[0].into(), class.buckets[1].into(), class.digest.into())
            }
        }
    }
}

const N: u32 = 1500;

fn records(salt: u64) -> Exact {
    let o = ExactOptions { connections4: u64::from(2 * N), connections6: u64::from(N), salt, control: PAPER };
    Exact::create(heap(Exact::lines(&o)), &o).unwrap()
}

fn compact(fingerprint: u8, salt: u64) -> Table {
    let collisions = u64::from(N);
    let o = CompactOptions {
        registers: 5 * N,
        stages: 4,
        fingerprint,
        collisions4: collisions,
        collisions6: collisions,
        salt,
        control: PAPER,
    };
    let table = Compact::create(heap(Compact::lines(&o).unwrap()), &o).unwrap();
    Table::Compact(Agent::new(records(salt), table, Timeouts::default()))
}

fn digest(salt: u64) -> Table {
    let o = DigestOptions::for_connections(u64::from(2 * N), salt, PAPER);
    let o = DigestOptions { collisions4: 500, collisions6: 500, ..o };
    let table = Digest::create(heap(Digest::lines(&o).unwrap()), &o).unwrap();
    Table::Digest(Agent::new(records(salt), table, Timeouts::default()))
}

/// Where the states of a compact table really lie: the registers of collided connections may be others' homes.
fn owners(table: &Table, exact: &Agent<Exact>, known: &[Key]) -> HashMap<Look, Vec<Key>> {
    let mut out: HashMap<Look, Vec<Key>> = HashMap::new();
    for key in known.iter().filter(|key| exact.get(key).is_some()) {
        let at = match table {
            Table::Compact(agent) => {
                let (register, fingerprint) = agent.table().place_of(key);
                (register.into(), fingerprint.into(), 0)
            }
            Table::Digest(_) => table.look(key),
        };
        out.entry(at).or_default().push(*key);
    }
    out
}

#[test]
fn every_difference_from_the_exact_table_is_a_hash_event() {
    let mut rng = seeded("differences");
    let salt = rng.random();
    let o =
        ExactOptions { connections4: u64::from(2 * N), connections6: u64::from(N), salt: rng.random(), control: PAPER };
    let mut exact = Agent::new(records(salt), Exact::create(heap(Exact::lines(&o)), &o).unwrap(), Timeouts::default());
    let mut others = vec![compact(0, salt), compact(4, salt), compact(8, salt), compact(16, salt), digest(salt)];
    let known: Vec<Key> = (0..2 * N).map(|i| key(i, i % 8 == 0)).collect();
    let mut now = 1_000_000_000;
    let mut events = vec![0u32; others.len()];
    for round in 0..6 {
        // Handshakes, closings, resets, in any order that comes.
        for step in 0..12_000 {
            now += 1_000_000;
            let key = known[rng.random_range(0..known.len())];
            let kind = Kind::ALL[[0, 0, 1, 1, 2, 2, 2, 2, 3, 4][rng.random_range(0..10)]];
            let from = if rng.random() { Direction::Out } else { Direction::In };
            let packet = Control { key, kind, from };
            let verdict = exact.table().reader().judge(&key, kind);
            for (i, table) in others.iter_mut().enumerate() {
                let got = table.reader().judge(&key, kind);
                if got != verdict {
                    assert!(exact.get(&key).is_none(), "{key:?} is known, and judged {got:?} instead of {verdict:?}");
                    let mine = owners(table, &exact, &known);
                    let other = mine.get(&table.look(&key)).unwrap_or_else(|| panic!("{key:?} has no double"));
                    if events[i] < 2 {
                        println!("table {i}: {kind:?} of {key:?} judged {got:?} as if of {:?}", other[0]);
                    }
                    events[i] += 1;
                }
            }
            // The agent sees what the exact table sends it: all tables settle the same connections.
            if verdict == Verdict::Agent {
                let want = exact.control(&packet, now, &mut |_| true);
                for table in &mut others {
                    assert_eq!(table.control(&packet, now), want);
                }
            }
            // Places that were given up may be used again a few milliseconds later.
            if step % 100 == 0 {
                exact.rest();
                exact.rested();
                others.iter_mut().for_each(Table::rested);
            }
        }
        if round % 2 == 1 {
            now += 130_000_000_000;
            exact.expire(now, u64::MAX);
            others.iter_mut().for_each(|t| t.expire(now));
        }
        strangers(&mut rng, &exact, &others, &known, &mut events);
    }
    println!("hash events: compact 0, 4, 8, 16 bits: {:?}; digest: {}", &events[..4], events[4]);
    assert!(events[0] > events[1] && events[1] >= events[3], "fingerprints help: {events:?}");
    assert!(events[0] > 100, "there is something to explain: {events:?}");
}

/// Data packets of connections that never were.
fn strangers(rng: &mut ChaCha8Rng, exact: &Agent<Exact>, others: &[Table], known: &[Key], events: &mut [u32]) {
    let mine: Vec<_> = others.iter().map(|t| owners(t, exact, known)).collect();
    for _ in 0..10_000 {
        let key = key(rng.random_range(2 * N..u32::MAX), rng.random_ratio(1, 8));
        assert_eq!(exact.table().reader().judge(&key, Kind::Ack), Verdict::Drop);
        for (i, table) in others.iter().enumerate() {
            let got = table.reader().judge(&key, Kind::Ack);
            let double = mine[i].get(&table.look(&key));
            if got == Verdict::Drop {
                continue;
            }
            events[i] += 1;
            let explained = double.is_some_and(|d| d.iter().any(|d| exact.table().reader().judge(d, Kind::Ack) == got));
            assert!(explained, "{key:?} is judged {got:?}, which its doubles do not explain: {double:?}");
        }
    }
}
