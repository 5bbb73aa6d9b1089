// SPDX-License-Identifier: Apache-2.0
//! Readers while the writer changes everything: no packet may see a torn, missing or foreign entry, nor two versions of
//! its VPC. The same checker must fail when a protection is taken away.

use super::world::*;
use super::Fault;
use crate::testing::seeded;
use crate::*;
use abi::Vni;
use rand::RngExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// Runs `commits` commits against two readers; the first mistake that a reader saw, or the packets that they read.
fn run(fault: Fault, commits: u32) -> Result<u64, String> {
    let (seed, mut rng) = seeded(&format!("concurrent, {fault:?}"));
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut writer = Writer::create(memory, WriterOptions { salt: rng.random(), ..Default::default() }).unwrap();
    writer.commit(&first()).unwrap();
    writer.settle();
    writer.fault = fault;
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let readers: Vec<_> = (0..2)
            .map(|n| {
                let (tables, stop) = (writer.tables(), &stop);
                s.spawn(move || {
                    let result = read_until(&tables, seed + n, &|| stop.load(Ordering::Relaxed));
                    if result.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    result
                })
            })
            .collect();
        let running = super::StopOnDrop(&stop);
        let mut versions = [0u32; VPCS as usize];
        let mut passers = Vec::new();
        for n in 0..commits {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let mut commit = Commit::default();
            for i in 0..VPCS {
                if rng.random_range(0..6) != 0 {
                    continue;
                }
                versions[i as usize] += 1;
                commit.tenants.push(leading(i, versions[i as usize], rng.random_range(0..70)));
            }
            if passers.len() < 12 {
                passers.push(n);
                commit.tenants.push(passer(n, &mut rng));
            } else {
                let gone = passers.swap_remove(rng.random_range(0..passers.len()));
                commit.tenants.push(TenantChange { vni: Vni(500_000 + gone), delete: true, ..Default::default() });
            }
            writer.commit(&commit).unwrap();
            if rng.random_bool(0.1) {
                writer.settle();
            }
        }
        drop(running);
        let results: Vec<_> = readers.into_iter().map(|r| r.join().expect("readers do not panic")).collect();
        let mut total = 0;
        for result in results {
            total += result?;
        }
        Ok(total)
    })
}

#[test]
fn readers_see_whole_versions_while_everything_changes() {
    let packets = run(Fault::None, 2_500).unwrap();
    let told = TOLD.load(Ordering::Relaxed);
    println!("{packets} packets looked up, {told} peers told by entries");
    assert!(told > 0, "no entry told a peer");
    assert!(packets > 1_000, "the readers hardly ran");
}

#[test]
fn without_grace_periods_the_checker_fails() {
    let mistake = (0..10).find_map(|_| run(Fault::NoGrace, 5_000).err());
    println!("seen: {}", mistake.expect("the checker did not notice that nothing waits for readers"));
}

#[test]
fn publishing_before_filling_makes_the_checker_fail() {
    let mistake = (0..10).find_map(|_| run(Fault::PublishEarly, 5_000).err());
    println!("seen: {}", mistake.expect("the checker did not notice the wrong order"));
}
