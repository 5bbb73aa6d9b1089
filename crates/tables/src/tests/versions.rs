// SPDX-License-Identifier: Apache-2.0
//! Versions of flow caches: a cache that holds what it found by them never answers with what was true before an acknowledged commit. The
//! same checker must fail when versions are not raised, are raised too early, or are read too late.

use super::world::*;
use super::Fault;
use crate::testing::seeded;
use crate::*;
use abi::{version_of_v4, version_of_vpc, FLOW_CHANGING};
use memory::{root, RootRef};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

const VMS: u32 = 4;

/// When a reader that misses reads the versions.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reads {
    BeforeTables,
    AfterTables,
}

/// A cache as an engine has it: one place for each VM of the world.
struct Cache<'a> {
    tables: &'a Tables,
    lines: Vec<Option<(u64, u32)>>,
    reads: Reads,
    hits: u64,
}

impl Cache<'_> {
    fn versions(&self, i: u32, addr: u32) -> u64 {
        self.tables.flow_versions().sum(vni(i), addr)
    }

    /// The version in which VM `n` of VPC `i` is seen.
    fn look(&mut self, i: u32, n: u32) -> Result<u32, String> {
        let (addr, place) = (vm_addr4(n), (i * VMS + n) as usize);
        let before = self.versions(i, addr);
        if let Some((_, version)) = self.lines[place].filter(|(versions, _)| *versions == before) {
            self.hits += 1;
            return Ok(version);
        }
        let _guard = self.tables.enter();
        crate::testing::pause();
        let t = self.tables.tenant(vni(i)).ok_or("a VPC is missing")?;
        let vm = self.tables.vm4(vni(i), addr, t.generation()).ok_or("a VM is missing")?;
        crate::testing::pause();
        let version = (vm.mac & 0xff_ffff) as u32;
        let versions = if self.reads == Reads::BeforeTables { before } else { self.versions(i, addr) };
        if versions < FLOW_CHANGING {
            self.lines[place] = Some((versions, version));
        }
        Ok(version)
    }
}

/// Runs `commits` commits against a cache; the first mistake that it made, or its hits.
fn run(fault: Fault, reads: Reads, commits: u32) -> Result<u64, String> {
    let (seed, mut rng) = seeded(&format!("versions, {fault:?}, {reads:?}"));
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let salt = rng.random();
    let mut writer = Writer::create(memory.clone(), WriterOptions { salt, ..Default::default() }).unwrap();
    writer.commit(&first()).unwrap();
    writer.settle();
    writer.fault = fault;
    let stop = AtomicBool::new(false);
    let acknowledged: Vec<AtomicU32> = (0..VPCS).map(|_| AtomicU32::new(0)).collect();
    let (mistake, hits) = (AtomicU32::new(u32::MAX), AtomicU64::new(0));
    std::thread::scope(|s| {
        let tables = writer.tables();
        let (stop, acknowledged, mistake, hits) = (&stop, &acknowledged, &mistake, &hits);
        let reader = s.spawn(move || {
            crate::testing::interrupt_this_thread(seed);
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let lines = vec![None; (VPCS * VMS) as usize];
            let mut cache = Cache { tables: &tables, lines, reads, hits: 0 };
            while !stop.load(Ordering::Relaxed) {
                let (i, n) = (rng.random_range(0..VPCS), rng.random_range(0..VMS));
                let least = acknowledged[i as usize].load(Ordering::Acquire);
                let version = cache.look(i, n).expect("the tables are whole");
                if version < least {
                    mistake.store(i, Ordering::Relaxed);
                    break;
                }
            }
            hits.store(cache.hits, Ordering::Relaxed);
            stop.store(true, Ordering::Relaxed);
        });
        let running = super::StopOnDrop(stop);
        let mut versions = [0u32; VPCS as usize];
        for _ in 0..commits {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let i = rng.random_range(0..VPCS);
            let version = &mut versions[i as usize];
            // VMs alone, of which each has a word, or routes as well, for which the VPC's stands.
            let mut change = match rng.random_bool(0.5) {
                true => {
                    *version += 16;
                    TenantChange { routes: RoutesChange::Keep, ..leading(i, *version, 0) }
                }
                false => {
                    *version += 1;
                    leading(i, *version, rng.random_range(0..10))
                }
            };
            change.settings = None;
            writer.commit(&Commit { tenants: vec![change], ..Default::default() }).unwrap();
            acknowledged[i as usize].store(*version, Ordering::Release);
        }
        drop(running);
        reader.join().expect("the reader does not panic");
        match mistake.load(Ordering::Relaxed) {
            u32::MAX => Ok(hits.load(Ordering::Relaxed)),
            i => Err(format!("a VM of VPC {i} was seen as before an acknowledged commit")),
        }
    })
}

#[test]
fn a_cache_never_answers_with_what_was_true_before_a_commit() {
    let hits = run(Fault::None, Reads::BeforeTables, 5_000).unwrap();
    println!("{hits} hits");
    assert!(hits > 10_000, "the cache had hardly anything to do");
}

#[test]
fn the_checker_fails_when_versions_are_not_raised() {
    let mistake = run(Fault::NoVersions, Reads::BeforeTables, 5_000);
    println!("seen: {}", mistake.expect_err("the checker did not notice"));
}

#[test]
fn the_checker_fails_when_versions_are_raised_too_early() {
    let mistake = (0..10).find_map(|_| run(Fault::VersionsEarly, Reads::BeforeTables, 20_000).err());
    println!("seen: {}", mistake.expect("the checker did not notice"));
}

#[test]
fn the_checker_fails_when_versions_are_read_too_late() {
    let mistake = (0..10).find_map(|_| run(Fault::None, Reads::AfterTables, 20_000).err());
    println!("seen: {}", mistake.expect("the checker did not notice"));
}

/// A change raises what it concerns and nothing else, and leaves no word marked.
#[test]
fn a_change_raises_the_words_that_it_concerns() {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut writer = Writer::create(memory.clone(), WriterOptions::default()).unwrap();
    writer.commit(&first()).unwrap();
    let salt = WriterOptions::default().salt;
    let snapshot = || -> Vec<u64> {
        let root = RootRef::new(&*memory).get(root!(flow_version));
        memory.flow_versions().iter().map(|w| w.load(Ordering::Relaxed)).chain([root]).collect()
    };
    let raised = |before: &[u64]| -> Vec<u32> {
        let after = snapshot();
        assert!(after.iter().all(|w| *w < FLOW_CHANGING), "a word stays marked");
        (0..).zip(before.iter().zip(&after)).filter(|(_, (a, b))| a != b).map(|(n, _)| n).collect()
    };
    let all = abi::FLOW_VERSIONS;

    let before = snapshot();
    let mut vms = change(3, 16, 0, false);
    vms.routes = RoutesChange::Keep;
    writer.commit(&Commit { tenants: vec![vms], ..Default::default() }).unwrap();
    let words = raised(&before);
    assert!(words.contains(&version_of_v4(vni(3).0, vm_addr4(0), salt)));
    assert!(!words.contains(&version_of_vpc(vni(3).0, salt)) && !words.contains(&all), "{words:?}");

    // A router of prefixes: what is sent to it is for addresses that nobody named.
    let router = VmSpec {
        mac: 0x0200_0000_7777,
        ipv4: Some(7),
        ipv6: None,
        more: vec![],
        nc: ncs()[0],
        meter: None,
        shaped: false,
    };
    let before = snapshot();
    let comes = TenantChange { vni: vni(3), vm_add: vec![router], ..Default::default() };
    writer.commit(&Commit { tenants: vec![comes], ..Default::default() }).unwrap();
    assert_eq!(raised(&before), [version_of_vpc(vni(3).0, salt)]);

    let before = snapshot();
    writer.commit(&Commit { tenants: vec![leading(3, 17, 0)], ..Default::default() }).unwrap();
    assert_eq!(raised(&before), [version_of_vpc(vni(3).0, salt)]);

    let before = snapshot();
    assert!(writer.set_policy(vni(5), abi::POLICY_FILTER));
    assert_eq!(raised(&before), [version_of_vpc(vni(5).0, salt)]);

    let before = snapshot();
    writer.set_options(writer.options() ^ abi::OPT_ECN_OFF);
    assert_eq!(raised(&before), [all]);
    let before = snapshot();
    writer.set_internet(None, None);
    assert_eq!(raised(&before), [all]);
    let before = snapshot();
    let spec =
        NexthopSpec { addr: "192.0.2.1".parse().unwrap(), ifindex: abi::IfIndex(1), dmac: Some(2), smac: 3, mtu: 1500 };
    let hop = writer.set_nexthop(&spec).unwrap();
    let group = writer.set_group(None, &[hop]).unwrap();
    assert!(writer.bind_nc_group(ncs()[0], Some(group)));
    assert_eq!(raised(&before), [all]);
    let before = snapshot();
    let gone = TenantChange { vni: vni(7), delete: true, ..Default::default() };
    writer.commit(&Commit { tenants: vec![gone], ..Default::default() }).unwrap();
    assert!(raised(&before).contains(&version_of_vpc(vni(7).0, salt)));
}

/// A circuit stands for a VPC: its version goes up if the circuit is new, gone, or says anything else, and no other VPC's does.
#[test]
fn a_change_of_circuits_raises_the_vpcs_whose_circuits_differ() {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut writer = Writer::create(memory.clone(), WriterOptions::default()).unwrap();
    writer.commit(&first()).unwrap();
    let salt = WriterOptions::default().salt;
    let snapshot = || -> Vec<u64> { memory.flow_versions().iter().map(|w| w.load(Ordering::Relaxed)).collect() };
    let port = EdgePortSpec {
        number: 2,
        ifindex: abi::IfIndex(3),
        mtu: 1500,
        tags: 2,
        tpids: [0x88a8, 0x8100],
        tun: false,
        at: None,
    };
    let circuit = |overlay: u16, of: u32| CircuitSpec {
        port: 2,
        customer: 9,
        overlay,
        vni: vni(of),
        line: 0,
        ce: 0x0200_0000_ce00,
        sender: 0,
        class: 0,
        gateway: 0,
    };
    let mut raised = |port: EdgePortSpec, circuits: &[CircuitSpec]| -> Vec<u32> {
        let before = snapshot();
        writer.set_edge(&[port], circuits).unwrap();
        let after = snapshot();
        assert!(after.iter().all(|w| *w < FLOW_CHANGING), "a word stays marked");
        (0..).zip(before.iter().zip(&after)).filter(|(_, (a, b))| a != b).map(|(n, _)| n).collect()
    };
    let of = |vpcs: &[u32]| -> Vec<u32> {
        let words: std::collections::BTreeSet<u32> = vpcs.iter().map(|i| version_of_vpc(vni(*i).0, salt)).collect();
        words.into_iter().collect()
    };
    assert_eq!(raised(port, &[circuit(1, 3), circuit(2, 5)]), of(&[3, 5]));
    assert_eq!(raised(port, &[circuit(1, 3), circuit(2, 5), circuit(4, 6)]), of(&[6]));
    // The same tags stand for another VPC.
    assert_eq!(raised(port, &[circuit(1, 7), circuit(2, 5), circuit(4, 6)]), of(&[3, 7]));
    for change in [
        |c: CircuitSpec| CircuitSpec { ce: 0x0200_0000_ce01, ..c },
        |c: CircuitSpec| CircuitSpec { sender: 0x0200_0000_ce01, ..c },
        |c: CircuitSpec| CircuitSpec { class: 3, ..c },
        |c: CircuitSpec| CircuitSpec { gateway: 0x0a00_0001, ..c },
        |c: CircuitSpec| CircuitSpec { line: 8, ..c },
        |c: CircuitSpec| c,
    ] {
        assert_eq!(raised(port, &[circuit(1, 7), change(circuit(2, 5)), circuit(4, 6)]), of(&[5]));
    }
    // The words of ports are read at each packet.
    assert_eq!(raised(EdgePortSpec { mtu: 1400, ..port }, &[circuit(1, 7), circuit(2, 5), circuit(4, 6)]), of(&[]));
    assert_eq!(raised(port, &[]), of(&[5, 6, 7]));
}

/// A writer that died in the middle of a change left words marked; the next one ends that, and no version goes back.
#[test]
fn what_a_dead_writer_left_marked_is_ended_by_the_next() {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut writer = Writer::create(memory.clone(), WriterOptions::default()).unwrap();
    writer.commit(&first()).unwrap();
    let word = &memory.flow_versions()[version_of_vpc(vni(1).0, WriterOptions::default().salt) as usize];
    let root = RootRef::new(&*memory);
    let (before, all) = (word.load(Ordering::Relaxed), root.get(root!(flow_version)));
    word.fetch_add(FLOW_CHANGING, Ordering::Relaxed);
    root.set(root!(flow_version), all + FLOW_CHANGING);
    drop(writer);
    drop(Writer::attach(memory.clone(), WriterOptions::default()).unwrap());
    assert_eq!((word.load(Ordering::Relaxed), root.get(root!(flow_version))), (before + 1, all + 1));
    // Also one that forgets the tables.
    Writer::create(memory.clone(), WriterOptions::default()).unwrap();
    assert!(root.get(root!(flow_version)) > all + 1);
}
