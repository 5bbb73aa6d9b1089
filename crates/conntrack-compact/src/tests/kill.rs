// SPDX-License-Identifier: Apache-2.0
//! The agent is another process, killed by SIGKILL at random instants while connections begin, change and end. Connections that
//! were there before are judged by their state all the time; after each kill the successor's table is what its records say.
use super::*;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tables::{LineMemory as _, SharedMemory};

const MEMORY: &str = "TUNNY_TEST_STATES";
const KEPT: u32 = 500;
const PASSING: u32 = 3000;
/// Words of each of the memories: tables of the three kinds, then the records of each.
const WORDS: usize = 1 << 18;

/// One part of a shared memory.
struct Part {
    memory: Arc<SharedMemory>,
    n: usize,
}

impl WordMemory for Part {
    fn words(&self) -> &[AtomicU64] {
        &self.memory.words()[self.n * WORDS..(self.n + 1) * WORDS]
    }
}

fn part(memory: &Arc<SharedMemory>, n: usize) -> Arc<dyn WordMemory> {
    Arc::new(Part { memory: memory.clone(), n })
}

/// The table of kind `kind` as its successor finds it.
fn attach(memory: &Arc<SharedMemory>, kind: usize) -> Box<dyn StateTable> {
    match kind {
        0 => Box::new(Exact::attach(part(memory, 0)).unwrap()),
        1 => Box::new(Compact::attach(part(memory, 1)).unwrap()),
        _ => Box::new(Digest::attach(part(memory, 2)).unwrap()),
    }
}

fn successor(memory: &Arc<SharedMemory>, kind: usize) -> (Agent<Box<dyn StateTable>>, Recovered) {
    Agent::attach(part(memory, 3 + kind), attach(memory, kind), Timeouts::default()).unwrap()
}

fn send(agent: &mut Agent<Box<dyn StateTable>>, i: u32, kind: Kind, from: Direction, now: u64) -> Outcome {
    agent.control(&Control { key: key(i, i.is_multiple_of(9)), kind, from }, now, &mut |_| true)
}

fn open(agent: &mut Agent<Box<dyn StateTable>>, i: u32, now: u64) {
    for (kind, from) in [(Kind::Syn, Direction::Out), (Kind::SynAck, Direction::In), (Kind::Ack, Direction::Out)] {
        assert_eq!(send(agent, i, kind, from, now), Outcome::Pass, "{i}");
    }
}

#[test]
#[ignore = "run by the test below in a process of its own"]
fn agent_child() {
    let Ok(path) = std::env::var(MEMORY) else {
        return;
    };
    let mut rng = seeded("child");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let memory = Arc::new(SharedMemory::open(OwnedFd::from(file)).unwrap());
    let mut agents: Vec<_> = (0..3).map(|kind| successor(&memory, kind).0).collect();
    println!("\nready");
    loop {
        let (i, agent) = (KEPT + rng.random_range(0..PASSING), &mut agents[rng.random_range(0..3)]);
        let kinds = [Kind::Syn, Kind::Syn, Kind::SynAck, Kind::Ack, Kind::Ack, Kind::Fin, Kind::Rst];
        let (kind, from) = (kinds[rng.random_range(0..7)], if rng.random() { Direction::Out } else { Direction::In });
        let outcome = send(agent, i, kind, from, 1_000_000_000);
        assert_ne!(outcome, Outcome::Refuse(Refusal::Full));
        if rng.random_ratio(1, 100) {
            agent.rest();
            agent.rested();
        }
    }
}

fn make(memory: &Arc<SharedMemory>, rng: &mut ChaCha8Rng) {
    let all = u64::from(KEPT + PASSING);
    let (salt, control) = (rng.random(), PAPER);
    let exact = ExactOptions { connections4: 2 * all, connections6: all, salt, control };
    Exact::create(part(memory, 0), &exact).unwrap();
    let compact = CompactOptions {
        registers: 3 * all as u32,
        stages: 4,
        fingerprint: 4,
        collisions4: all,
        collisions6: all,
        salt,
        control,
    };
    Compact::create(part(memory, 1), &compact).unwrap();
    let digest = DigestOptions::for_connections(all, salt, control);
    Digest::create(part(memory, 2), &DigestOptions { collisions4: 500, collisions6: 500, ..digest }).unwrap();
    for n in 3..6 {
        Exact::create(part(memory, n), &exact).unwrap();
    }
}

fn child(path: &str) -> std::process::Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::kill::agent_child", "--ignored", "--nocapture", "--test-threads=1"])
        .env(MEMORY, path)
        .env_remove("TUNNY_SEED")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut out, mut seen) = (child.stdout.take().unwrap(), String::new());
    while !seen.contains("ready") {
        let mut buffer = [0; 256];
        let n = out.read(&mut buffer).unwrap();
        assert!(n > 0, "the child ended by itself: {seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..n]));
    }
    child
}

#[test]
fn a_killed_agent_loses_no_connection_and_leaves_nothing_behind() {
    let mut rng = seeded("kill");
    let kills: u32 = std::env::var("TUNNY_KILLS").ok().and_then(|s| s.parse().ok()).unwrap_or(12);
    let memory = Arc::new(SharedMemory::new().unwrap());
    memory.grow(((6 * WORDS * 8) as u32).div_ceil(abi::SEGMENT_BYTES)).unwrap();
    make(&memory, &mut rng);
    for kind in 0..3 {
        let (mut agent, found) = successor(&memory, kind);
        assert_eq!(found, Recovered::default());
        (0..KEPT).for_each(|i| open(&mut agent, i, 1_000_000_000));
    }
    let path = format!("/proc/{}/fd/{}", std::process::id(), memory.fd().as_raw_fd());
    let (stop, mut mended) = (AtomicBool::new(false), Recovered::default());
    std::thread::scope(|s| {
        let readers: Vec<Reader> = (0..3).map(|kind| Reader::open(part(&memory, kind)).unwrap()).collect();
        let stop = &stop;
        // However this ends, the thread that watches ends.
        let _end = End(stop);
        let watch = s.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for (kind, reader) in readers.iter().enumerate() {
                    for i in 0..KEPT {
                        let seen = reader.judge(&key(i, i % 9 == 0), Kind::Ack);
                        assert_ne!(seen, Verdict::Drop, "{i} is lost in table {kind}");
                    }
                }
                std::thread::yield_now();
            }
        });
        for kill in 0..kills {
            let mut child = child(&path);
            std::thread::sleep(Duration::from_micros(rng.random_range(2_000..40_000)));
            assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
            child.kill().unwrap();
            child.wait().unwrap();
            for kind in 0..3 {
                let (agent, found) = successor(&memory, kind);
                assert_eq!(found.lost, 0, "kill {kill}");
                mended.mended += found.mended;
                mended.cleared += found.cleared;
                check(&agent, kill, kind);
            }
            assert!(!watch.is_finished(), "the reader saw a lost connection");
        }
    });
    println!("{kills} kills: {mended:?}");
}

struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Every record has its state in the table, and nothing else is in it.
fn check(agent: &Agent<Box<dyn StateTable>>, kill: u32, kind: usize) {
    let reader = agent.table().reader();
    let mut known = 0;
    for i in 0..KEPT + PASSING {
        let key = key(i, i % 9 == 0);
        if let Some(connection) = agent.get(&key) {
            known += 1;
            assert_eq!(reader.state(&key), connection.state as u8, "kill {kill} table {kind}: {i}");
        }
        assert!(i >= KEPT || agent.get(&key).is_some_and(|c| c.state == State::Open), "kill {kill}: {i} is lost");
    }
    assert_eq!((known, agent.connections()), (agent.table().usage().connections, known), "kill {kill} table {kind}");
}
