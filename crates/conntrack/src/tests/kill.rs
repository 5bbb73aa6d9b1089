// SPDX-License-Identifier: Apache-2.0
//! The tracker is another process, killed by SIGKILL at random instants while it makes, judges and ends sessions as fast as it
//! can. Sessions that were there before are there after it, and are found by both keys all the time.

use super::*;
use rand::RngExt;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Duration;

const MEMORY: &str = "TUNNY_TEST_SESSIONS";
/// Sessions that are never ended.
const KEPT: u16 = 2000;

fn kept(i: u16) -> NewSession {
    udp(Vni(1), 1, i)
}

/// Sessions that come and go.
fn passing(rng: &mut ChaCha8Rng) -> NewSession {
    let i = rng.random_range(0..20_000u32);
    let mut new = udp(Vni(2 + i % 5), 100 + i / 5 % 100, (i % 5000) as u16);
    new.inner = InnerKey::v4(Vni(2 + i % 5), 17, 100 + i / 5 % 100, (i % 5000) as u16, i, 53);
    new.outer = OuterKey::v4(17, 7, (i % 5000) as u16, i, 53);
    if i % 3 == 0 {
        new.inner = InnerKey::v6(Vni(2 + i % 5), 17, i.into(), 1, 9, 53);
        new.outer = new.inner.untranslated();
    }
    new
}

fn options() -> Options {
    Options { sessions: 100_000, initial: 1, ..Options::default() }
}

#[test]
#[ignore = "run by the test below in a process of its own"]
fn tracker_child() {
    let Ok(path) = std::env::var(MEMORY) else {
        return;
    };
    let (_, mut rng) = seeded("child");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let memory: Arc<dyn SessionMemory> = Arc::new(SharedMemory::open(OwnedFd::from(file)).unwrap());
    let (t, _) = Tracker::attach(memory, options(), 10 * S).unwrap();
    println!("\nready");
    let mut n = 0;
    loop {
        let new = passing(&mut rng);
        n += 1;
        match t.create(&new, 10 * S, &mut |_| {}) {
            Ok(_) => {}
            Err(Refusal::Exists(at)) if rng.random() => {
                t.remove(at, 10 * S, &mut |_| {});
            }
            Err(Refusal::Exists(at)) => {
                t.judge(at, Direction::In, &L4View::Other, 1, 10 * S, &mut |_| {});
            }
            Err(e) => panic!("{e:?}"),
        }
        if n % 100 == 0 {
            t.expire(10 * S, 100, &mut |_| {});
        }
    }
}

#[test]
fn a_killed_tracker_loses_no_session_and_leaves_nothing_behind() {
    let (_, mut rng) = seeded("kill");
    let kills: u32 = std::env::var("TUNNY_KILLS").ok().and_then(|s| s.parse().ok()).unwrap_or(10);
    let shared = SharedMemory::new().unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), shared.fd().as_raw_fd());
    let memory: Arc<dyn SessionMemory> = Arc::new(shared);
    let first = Tracker::new(memory.clone(), Options { salt: rng.random(), ..options() }, 10 * S).unwrap();
    for i in 0..KEPT {
        let at = first.create(&kept(i), 10 * S, &mut never).unwrap();
        first.judge(at, Direction::In, &L4View::Other, 1, 10 * S, &mut never);
    }
    // It only reads from now on: other processes write.
    let (sessions, stop) = (first.sessions(), std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|s| {
        let stop = &stop;
        let reader = s.spawn(move || {
            let mut found = 0u64;
            while !stop.load(Relaxed) {
                for i in 0..KEPT {
                    let guard = sessions.enter();
                    assert!(guard.find_inner(&kept(i).inner).is_some(), "{i} is lost");
                    assert!(guard.find_outer(&kept(i).outer).is_some(), "{i} is lost");
                    found += 2;
                }
                std::thread::yield_now();
            }
            found
        });
        let mut mended = Recovered::default();
        for kill in 0..kills {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "tests::kill::tracker_child", "--ignored", "--nocapture", "--test-threads=1"])
                .env(MEMORY, &path)
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut out = child.stdout.take().unwrap();
            let mut seen = String::new();
            while !seen.contains("ready") {
                let mut buffer = [0; 256];
                let n = out.read(&mut buffer).unwrap();
                assert!(n > 0, "the child ended by itself: {seen}");
                seen.push_str(&String::from_utf8_lossy(&buffer[..n]));
            }
            std::thread::sleep(Duration::from_micros(rng.random_range(2_000..60_000)));
            assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
            child.kill().unwrap();
            child.wait().unwrap();
            let stats = {
                let (t, found) = Tracker::attach(memory.clone(), options(), 10 * S).unwrap();
                assert_eq!(found.refused, 0, "after kill {kill}: {found:?}");
                mended.completed += found.completed;
                mended.dangling += found.dangling;
                mended.sessions = found.sessions;
                check(&t, 10 * S);
                assert_eq!(t.tenant(Vni(1)).unwrap().sessions, u32::from(KEPT));
                t.stats()
            };
            let (_, again) = Tracker::attach(memory.clone(), options(), 10 * S).unwrap();
            assert_eq!((again.completed, again.dangling, again.refused), (0, 0, 0));
            assert_eq!(again.sessions, stats.sessions);
        }
        stop.store(true, Relaxed);
        let found = reader.join().expect("a session that was never ended was lost");
        println!("{kills} kills: {mended:?}; {found} sessions looked up meanwhile");
        assert!(found > 1000 && mended.sessions > u64::from(KEPT));
    });
}

#[test]
fn garbage_is_sorted_out_or_refused_and_never_read_beyond() {
    let (_, mut rng) = seeded("garbage");
    for round in 0..6 {
        let memory: Arc<dyn SessionMemory> = Arc::new(SharedMemory::new().unwrap());
        let t = Tracker::new(memory.clone(), options(), S).unwrap();
        for i in 0..500 {
            t.create(&kept(i), S, &mut never).unwrap();
        }
        let lines = t.shared_for_tests().0.lines;
        for _ in 0..200 << round {
            // Records, buckets, kinds and the root's words.
            let line = lines.at(LineNo(rng.random_range(0..lines.limit())));
            let near = lines.at(LineNo(rng.random_range(1..600)));
            line.cell(rng.random_range(0..8)).store(rng.random(), Relaxed);
            near.cell(rng.random_range(0..8)).store(rng.random(), Relaxed);
        }
        if round > 3 {
            lines.kind(rng.random_range(0..4)).store(rng.random(), Relaxed);
            lines.root([0x18, 0x20][rng.random_range(0..2)]).store(rng.random(), Relaxed);
        }
        let sessions = t.sessions();
        {
            let guard = sessions.enter();
            for i in 0..500 {
                guard.find_inner(&kept(i).inner).map(|at| guard.record(at).touch(S, 1));
                guard.find_outer(&kept(i).outer);
            }
        }
        let (t, found) = Tracker::attach(memory, options(), S).unwrap();
        println!("{found:?}");
        check(&t, S);
        t.create(&udp(Vni(77), 9, 9), S, &mut |_| {}).unwrap();
        for now in 1..400 {
            t.expire(now * S, 100_000, &mut |_| {});
        }
    }
}
