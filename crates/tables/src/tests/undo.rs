// SPDX-License-Identifier: Apache-2.0
//! A commit for which there is not enough memory leaves everything as it was, wherever memory ended: what the writer remembers, what
//! the tables hold, what is in use and what readers see. With memory the same commit then does what it would have done at first.

use super::model::*;
use super::world;
use crate::testing::seeded;
use crate::*;
use abi::Vni;
use rand::RngExt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

fn writer() -> Writer {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    Writer::create(memory, WriterOptions::default()).unwrap()
}

/// What readers see of the model's world at many addresses.
fn view(w: &Writer) -> Vec<String> {
    let (tables, mut out) = (w.tables(), Vec::new());
    let view = View(&tables, w);
    let mut rng = <rand_chacha::ChaCha8Rng as rand_chacha::rand_core::SeedableRng>::seed_from_u64(1);
    for vni in (0..12u32).map(|n| n * 0x10_0001 % (1 << 24)) {
        for _ in 0..12 {
            let (a, nc) = (some_address(&mut rng), some_nc(&mut rng));
            out.push(format!(
                "{:?} {:?} {}",
                view.route(Vni(vni), a),
                view.vm(Vni(vni), a),
                view.may_send(Vni(vni), nc)
            ));
        }
    }
    out
}

/// Changes that grow a tree and shrink it, so that paths are copied and trees built anew.
fn many_routes(rng: &mut rand_chacha::ChaCha8Rng, vni: Vni, n: u32) -> Commit {
    let mut add = Vec::new();
    for _ in 0..n {
        let len = rng.random_range(18..=28u8);
        let addr = rng.random::<u32>() >> (32 - len) << (32 - len);
        let target = [Target::Local, Target::Internet, Target::Line(0)][rng.random_range(0..3usize)];
        add.push(Route { prefix: Prefix::new_assert(IpAddr::V4(addr.into()), len), target });
    }
    for _ in 0..n / 3 {
        let len = rng.random_range(40..=100u8);
        let addr = (rng.random::<u128>() >> 120 << 70 | 0x2001 << 112) >> (128 - len) << (128 - len);
        add.push(Route { prefix: Prefix::new_assert(IpAddr::V6(addr.into()), len), target: Target::Line(0) });
    }
    add.sort_by_key(|r| r.prefix);
    add.dedup_by_key(|r| r.prefix);
    let routes = RoutesChange::Delta { remove: Vec::new(), add };
    Commit { tenants: vec![TenantChange { vni, routes, ..Default::default() }], ..Default::default() }
}

/// Random commits, each tried with memory that ends at the first call, at the second, and so on: at every one of a small commit, at
/// random ones of a large one.
fn every_call_fails(steps: u32) {
    let (_seed, mut rng) = seeded("undo");
    let (mut w, mut model) = (writer(), Model::default());
    let (mut refused, mut done, mut most) = (0, 0, 0);
    for step in 0..steps {
        let mut commit = some_commit(&mut rng, &model);
        let vnis = w.vnis();
        if step % 3 == 0 && !vnis.is_empty() {
            // Now and then one so large that it calls for memory many times.
            let most = if step % 30 == 0 { 3000..4000 } else { 1..300 };
            let (vni, n) = (vnis[rng.random_range(0..vnis.len())], rng.random_range(most));
            commit = many_routes(&mut rng, vni, n);
        }
        if rng.random_bool(0.5) {
            w.settle();
        }
        // What a commit settles first is settled whether it is refused or not.
        w.calls_until_full(Some(0));
        let nothing = w.commit(&commit);
        w.calls_until_full(None);
        let (before, seen) = (w.snapshot(), view(&w));
        if !matches!(nothing, Err(CommitError::Memory(_))) {
            // Refused for another reason, or in no need of memory.
            if nothing.is_ok() {
                model.apply(&commit);
            }
            continue;
        }
        let mut calls = 0;
        loop {
            w.calls_until_full(Some(calls));
            let result = w.commit(&commit);
            w.calls_until_full(None);
            match result {
                Ok(_) => break,
                Err(CommitError::Memory(_)) => refused += 1,
                Err(e) => panic!("after {calls} calls: {e}"),
            }
            let after = w.snapshot();
            assert!(
                after == before,
                "memory that ended at call {calls} has left\n{after:#?}\nin place of\n{before:#?}"
            );
            assert_eq!(view(&w), seen, "call {calls}");
            calls += if calls < 40 { 1 } else { rng.random_range(1..200) };
        }
        model.apply(&commit);
        (done, most) = (done + 1, most.max(calls));
        let tables = w.tables();
        for _ in 0..20 {
            let (vni, a) = (some_vni(&mut rng), some_address(&mut rng));
            assert_eq!(View(&tables, &w).vm(vni, a), model.vm(vni, a));
            assert_eq!(View(&tables, &w).route(vni, a).is_some(), model.route(vni, a).is_some());
        }
    }
    println!("{done} commits, of which one asked {most} times, refused {refused} times at one call or another");
    assert!(done > steps / 4 && refused > 5 * done && most > 20);
}

#[test]
fn a_commit_that_any_call_for_memory_refuses_leaves_everything_as_it_was() {
    every_call_fails(150);
}

#[test]
#[ignore = "long: make test-long"]
fn long_a_commit_that_any_call_for_memory_refuses_leaves_everything_as_it_was() {
    every_call_fails(5000);
}

/// Lines that a reader may be passing are not free before it is gone.
#[test]
fn a_refused_commit_waits_for_readers_before_it_frees_what_they_may_pass() {
    let mut twin = writer();
    let begun = twin.calls();
    twin.commit(&world::first()).unwrap();
    let calls = twin.calls() - begun;
    let mut w = writer();
    let before = w.snapshot();
    let (tables, inside) = (w.tables(), std::sync::Barrier::new(2));
    std::thread::scope(|s| {
        let inside = &inside;
        s.spawn(move || {
            let _guard = tables.enter();
            inside.wait();
            std::thread::sleep(std::time::Duration::from_millis(80));
        });
        inside.wait();
        let begun = std::time::Instant::now();
        w.calls_until_full(Some(calls - 1));
        assert!(matches!(w.commit(&world::first()), Err(CommitError::Memory(_))));
        assert!(begun.elapsed().as_millis() >= 60, "it did not wait: {:?}", begun.elapsed());
    });
    w.calls_until_full(None);
    assert!(w.snapshot() == before);
    w.commit(&world::first()).unwrap();
}

/// Readers look on while every other commit is refused half-way; a version that was refused is never seen.
#[test]
fn readers_never_see_anything_of_a_refused_commit() {
    let (seed, mut rng) = seeded("undo readers");
    let mut w = writer();
    w.commit(&world::first()).unwrap();
    w.settle();
    let (stop, refused) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        let (tables, stop) = (w.tables(), &stop);
        let reader = s.spawn(move || {
            crate::testing::interrupt_this_thread(seed);
            while !stop.load(Ordering::Relaxed) {
                for i in 0..world::VPCS {
                    let _guard = tables.enter();
                    match world::observe(&tables, i) {
                        Ok(version) if version % 2 == 0 => {}
                        other => return Err(format!("VPC {i}: {other:?}")),
                    }
                }
            }
            Ok(())
        });
        let running = super::StopOnDrop(stop);
        let (mut good, mut calls) = (0, 40);
        for _ in 0..400 {
            let fillers: Vec<u32> = (0..world::VPCS).map(|_| rng.random_range(0..60)).collect();
            let all = |version: u32| Commit {
                tenants: (0..world::VPCS).map(|i| world::leading(i, version, fillers[i as usize])).collect(),
                ..Default::default()
            };
            w.calls_until_full(Some(rng.random_range(0..calls)));
            if w.commit(&all(good + 1)).is_err() {
                refused.fetch_add(1, Ordering::Relaxed);
            } else {
                panic!("{calls} calls were enough");
            }
            w.calls_until_full(None);
            good += 2;
            let begun = w.calls();
            w.commit(&all(good)).unwrap();
            // Fewer than any of these commits asks.
            calls = calls.min(w.calls() - begun);
        }
        drop(running);
        reader.join().unwrap().expect("a reader saw a refused commit");
    });
    assert_eq!(refused.load(Ordering::Relaxed), 400);
}

/// One commit of everything there is, refused at each call for memory: what was changed, made, marked, linked and given out is as before.
#[test]
fn a_commit_of_everything_is_taken_back_from_each_call() {
    for stable in [true, false] {
        let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
        let mut w = Writer::create(memory, WriterOptions { drop_lines: 4, ..Default::default() }).unwrap();
        w.commit(&super::death::before()).unwrap();
        if stable {
            w.settle();
        }
        // Another VPC, whose single routes change by paths.
        let many = many_routes(&mut seeded("everything").1, Vni(11), 200);
        w.commit(&many).unwrap();
        let mut commit = super::death::change();
        if let Some(single) = commit.tenants.iter_mut().find(|t| t.vni == Vni(11)) {
            let RoutesChange::Delta { add, .. } = &many.tenants[0].routes else { unreachable!() };
            single.routes =
                RoutesChange::Delta { remove: add.iter().step_by(40).map(|r| r.prefix).collect(), add: Vec::new() };
        }
        if stable {
            w.settle();
        }
        let before = w.snapshot();
        let mut calls = 0;
        loop {
            w.calls_until_full(Some(calls));
            let result = w.commit(&commit);
            w.calls_until_full(None);
            if result.is_ok() {
                break;
            }
            let after = w.snapshot();
            assert!(after == before, "call {calls}: {}", before.differs(&after).unwrap_or_default());
            calls += 1;
        }
        assert!(calls > 15, "{calls}");
    }
}

/// An address whose old entry waits for a grace period, dead, beside the new one: undoing a commit must not bring it back.
#[test]
fn an_undone_commit_leaves_the_dead_alone() {
    let nc = IpAddr::V4(0xc0a8_0001.into());
    let vm = |mac: u64, ipv4: Option<u32>, ipv6: Option<u128>| VmSpec {
        mac: 0x0200_0000_0000 | mac,
        ipv4,
        ipv6,
        more: Vec::new(),
        nc,
        meter: None,
        shaped: false,
    };
    for (v4, v6) in [(Some(0x0a00_0001), None), (None, Some(0x2001 << 112 | 1))] {
        let mut w = writer();
        let change = |remove: &[u64], add: Vec<VmSpec>| {
            let vm_remove = remove.iter().map(|mac| VmKey(0x0200_0000_0000 | mac)).collect();
            Commit {
                tenants: vec![TenantChange { vni: Vni(7), vm_remove, vm_add: add, ..Default::default() }],
                ..Default::default()
            }
        };
        let settings = Some(TenantSettings { gateway_mac: 2, ..Default::default() });
        let first = TenantChange { vni: Vni(7), settings, vm_add: vec![vm(1, v4, v6)], ..Default::default() };
        w.commit(&Commit { nc_add: vec![nc], tenants: vec![first], ..Default::default() }).unwrap();
        w.commit(&change(&[1], vec![])).unwrap();
        assert_eq!(w.commit(&change(&[], vec![vm(2, v4, v6)])).unwrap().graces, 0);
        let before = w.snapshot();
        let mut calls = 0;
        let many = change(&[2], (10..80).map(|n| vm(n, Some(0x0a00_0100 + n as u32), None)).collect());
        loop {
            w.calls_until_full(Some(calls));
            let done = w.commit(&many).is_ok();
            w.calls_until_full(None);
            if done {
                break;
            }
            let after = w.snapshot();
            assert!(after == before, "call {calls}: {}", before.differs(&after).unwrap_or_default());
            calls += 1;
        }
        assert!(calls > 1, "{calls}");
        let t = w.tables();
        let generation = t.tenant(Vni(7)).unwrap().generation();
        let found =
            v4.map_or_else(|| t.vm6(Vni(7), halves(v6.unwrap_or(0)), generation), |a| t.vm4(Vni(7), a, generation));
        assert_eq!((found, t.vm4(Vni(7), 0x0a00_010a, generation).map(|e| e.mac)), (None, Some(0x0200_0000_000a)));
    }
}
