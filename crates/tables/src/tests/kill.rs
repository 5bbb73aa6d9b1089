// SPDX-License-Identifier: Apache-2.0
//! The writer is another process, killed by SIGKILL at random instants while it changes about 100k entries a second.
//! Readers in this process must never lose an established entry; the next writer must find every VPC in one version.

use super::world::*;
use crate::testing::seeded;
use crate::*;
use abi::Vni;
use rand::RngExt;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

const MEMORY: &str = "TUNNY_TEST_MEMORY";

/// What the child process runs: takes over the tables and changes VPCs until it is killed.
#[test]
#[ignore = "run by the test below in a process of its own"]
fn writer_child() {
    let Ok(path) = std::env::var(MEMORY) else {
        return;
    };
    let (_seed, mut rng) = seeded("child");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let memory: Arc<dyn Memory> = Arc::new(SharedMemory::open(OwnedFd::from(file)).unwrap());
    let mut writer = Writer::attach(memory, WriterOptions::default()).unwrap();
    let mut versions: Vec<u32> = {
        let tables = writer.tables();
        let _guard = tables.enter();
        (0..VPCS).map(|i| observe(&tables, i).unwrap()).collect()
    };
    // Told to the parent: from now on it may kill.
    println!("\nready");
    let mut passers: Vec<u32> = writer.vnis().into_iter().filter(|v| v.0 >= 500_000).map(|v| v.0 - 500_000).collect();
    let mut next = rng.random_range(0..1 << 20);
    loop {
        let mut commit = Commit::default();
        for i in 0..VPCS {
            if rng.random_range(0..3) != 0 {
                continue;
            }
            versions[i as usize] += 1;
            commit.tenants.push(leading(i, versions[i as usize], rng.random_range(0..50)));
        }
        if passers.len() < 20 {
            next = (next + 1) % (1 << 20);
            if !passers.contains(&next) {
                passers.push(next);
                commit.tenants.push(passer(next, &mut rng));
            }
        } else {
            let gone = passers.swap_remove(rng.random_range(0..passers.len()));
            commit.tenants.push(TenantChange { vni: Vni(500_000 + gone), delete: true, ..Default::default() });
        }
        writer.commit(&commit).unwrap();
        if rng.random_bool(0.2) {
            writer.settle();
        }
    }
}

#[test]
fn a_killed_writer_loses_nothing_and_the_next_one_takes_over() {
    let (seed, mut rng) = seeded("kill");
    let kills: u32 = std::env::var("TUNNY_KILLS").ok().and_then(|s| s.parse().ok()).unwrap_or(12);
    let shared = SharedMemory::new().unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), shared.fd().as_raw_fd());
    let memory: Arc<dyn Memory> = Arc::new(shared);
    let mut writer =
        Writer::create(memory.clone(), WriterOptions { salt: rng.random(), ..Default::default() }).unwrap();
    writer.commit(&first()).unwrap();
    drop(writer);
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let reader = {
            let (tables, stop) = (Tables::new(memory.clone()), &stop);
            s.spawn(move || read_until(&tables, seed, &|| stop.load(Ordering::Relaxed)))
        };
        let running = super::StopOnDrop(&stop);
        let (mut commits, mut unfinished, mut written) = (0, 0, Duration::ZERO);
        for kill in 0..kills {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "tests::kill::writer_child", "--ignored", "--nocapture", "--test-threads=1"])
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
            let window = Duration::from_micros(rng.random_range(5_000..150_000));
            let (tables, begun) = (Tables::new(memory.clone()), std::time::Instant::now());
            let before = tables.commits();
            std::thread::sleep(window);
            // A writer that gets little of a busy machine has longer, so that there is something to kill.
            while tables.commits() < before + 3 && begun.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_micros(rng.random_range(100..10_000)));
            }
            written += begun.elapsed();
            assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(!reader.is_finished(), "the reader found a mistake before kill {kill}");
            unfinished += u32::from(is_marked(&memory));
            // Every other time the next child has to repair by itself.
            if kill % 2 == 0 {
                let mut writer = Writer::attach(memory.clone(), WriterOptions::default()).unwrap();
                check_recovered(&writer, &memory);
                let used = writer.bytes_used();
                writer.settle();
                assert_eq!(Writer::attach(memory.clone(), WriterOptions::default()).unwrap().bytes_used(), used);
                drop(writer);
                commits = Tables::new(memory.clone()).commits();
            }
        }
        drop(running);
        let packets = reader.join().unwrap().expect("an established entry was lost, torn or foreign");
        // A commit replaces the 10 VMs and about 35 routes of a third of the VPCs.
        let changes = commits * u64::from(VPCS) / 3 * (10 + 35);
        let rate = changes as f64 / written.as_secs_f64();
        println!("{kills} kills, {commits} commits, {rate:.0} changes a second, {unfinished} left marks behind");
        println!("{packets} packets looked up");
        assert!(packets > 100 && commits > 2 * u64::from(kills));
        assert!(unfinished > 0, "no kill ever hit a commit in flight: the test proves nothing");
    });
}

/// Whether the tables hold entries with marks: the writer died between filling and settling.
fn is_marked(memory: &Arc<dyn Memory>) -> bool {
    let lines = memory::Lines::new(&**memory);
    let root = memory::RootRef::new(&**memory);
    let table = crate::hashtable::HashTable::attach(
        crate::hashtable::Kind::Vm4,
        memory::root!(vm4),
        (&lines, &root),
        &mut |_| true,
    );
    let mut marked = false;
    table.unwrap().for_each(&lines, |_, key| marked |= key & abi::KEY_STATE_MASK != abi::KEY_VALID);
    marked
}

/// After recovery every VPC is in one version, nothing is marked, and there is nothing that belongs to nobody.
fn check_recovered(writer: &Writer, memory: &Arc<dyn Memory>) {
    assert!(!is_marked(memory), "marks are left");
    let tables = writer.tables();
    let _guard = tables.enter();
    for i in 0..VPCS {
        let version = observe(&tables, i).unwrap();
        let dump = writer.dump(vni(i)).unwrap();
        assert_eq!(dump.vms.len(), change(i, version, 0, false).vm_add.len());
    }
    let addresses = writer.usage().iter().find(|w| w.name == "addresses").unwrap().used;
    let held: usize = writer.vnis().iter().map(|v| writer.dump(*v).unwrap().vms.len()).sum();
    assert_eq!(addresses, held as u64, "entries of nobody are left");
}
