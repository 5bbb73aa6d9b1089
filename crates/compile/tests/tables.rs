// SPDX-License-Identifier: Apache-2.0
//! Plans carried out by the real writer: it takes every commit of an accepted change, its tables then hold what the model says,
//! and after a restart a reconciliation mends whatever differs.

#[path = "../../model/tests/common/mod.rs"]
mod common;

use abi::VmId;
use common::{rebuilt, start, Generator};
use compile::*;
use model::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::net::IpAddr;
use std::sync::Arc;
use tables::{HeapMemory, Memory, Writer, WriterOptions};

/// What the tables hold, as text that two writers can be compared by: everything but ids.
fn dump(w: &Writer) -> String {
    let mut out = String::new();
    let mut ncs: Vec<IpAddr> = w.ncs().into_iter().map(|n| n.0).collect();
    ncs.sort_unstable();
    out += &format!("{ncs:?} {:x}\n", w.options());
    for vni in w.vnis() {
        let mut t = w.dump(vni).unwrap();
        t.vms.iter_mut().for_each(|vm| vm.id = VmId(0));
        t.vms.sort_by_key(|vm| vm.mac);
        t.gateways.sort_unstable();
        out += &format!("{t:#?}\n");
    }
    out
}

fn writer() -> (Arc<dyn Memory>, Writer) {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let writer = Writer::create(memory.clone(), WriterOptions::default()).unwrap();
    (memory, writer)
}

fn filled(model: &Model) -> Writer {
    let (_, mut w) = writer();
    w.commit(&model.full_commit()).unwrap();
    w.settle();
    w
}

#[test]
fn the_writer_takes_every_commit_and_holds_what_the_model_says() {
    let mut accepted = 0;
    for seed in 0..6u64 {
        let mut g = Generator { rng: ChaCha8Rng::seed_from_u64(900 + seed) };
        let mut naive = start(&mut g);
        let mut model = rebuilt(&naive).unwrap();
        let (memory, mut w) = writer();
        w.commit(&model.full_commit()).unwrap();
        for step in 0..100 {
            let docs = g.documents(&naive);
            let Ok(plan) = model.apply(&docs) else { continue };
            accepted += 1;
            w.commit(&plan.commit(&model)).unwrap_or_else(|e| panic!("seed {seed} step {step}: {e}"));
            docs.deletes.iter().for_each(|(k, n, _)| drop(naive.remove(&(*k, n.clone()))));
            docs.puts.iter().for_each(|i| drop(naive.insert((i.object.kind(), i.object.name()), i.object.clone())));
            if w.needs_settling() && g.rng.random() {
                w.settle();
            }
            if step % 10 == 0 {
                w.settle();
                assert_eq!(dump(&w), dump(&filled(&model)), "seed {seed} step {step}");
            }
            if g.rng.random_ratio(1, 12) {
                // The node dies and comes back with a state on disk that is a few changes ahead.
                drop(w);
                for _ in 0..3 {
                    let docs = g.documents(&naive);
                    if model.apply(&docs).is_ok() {
                        docs.deletes.iter().for_each(|(k, n, _)| drop(naive.remove(&(*k, n.clone()))));
                        docs.puts.iter().for_each(|i| {
                            drop(naive.insert((i.object.kind(), i.object.name()), i.object.clone()));
                        });
                    }
                }
                w = Writer::attach(memory.clone(), WriterOptions::default()).unwrap();
                w.commit(&model.reconcile(&w)).unwrap_or_else(|e| panic!("seed {seed} step {step}: {e}"));
                w.settle();
                assert_eq!(dump(&w), dump(&filled(&model)), "seed {seed} step {step}: after a restart");
                let again = w.commit(&model.reconcile(&w)).unwrap();
                assert_eq!((again.addresses_added, again.addresses_removed), (0, 0), "nothing is left to mend");
            }
        }
    }
    assert!(accepted > 150, "{accepted}");
}

#[test]
fn a_replaced_configuration_is_one_commit() {
    for seed in 0..6u64 {
        let mut g = Generator { rng: ChaCha8Rng::seed_from_u64(40 + seed) };
        let mut model = Model::new();
        let (_, mut w) = writer();
        for _ in 0..6 {
            let mut naive = start(&mut g);
            let mut next = rebuilt(&naive).unwrap();
            for _ in 0..40 {
                let docs = g.documents(&naive);
                if next.apply(&docs).is_ok() {
                    docs.deletes.iter().for_each(|(k, n, _)| drop(naive.remove(&(*k, n.clone()))));
                    docs.puts
                        .iter()
                        .for_each(|i| drop(naive.insert((i.object.kind(), i.object.name()), i.object.clone())));
                }
            }
            let Ok(plan) = model.replace(next) else { continue };
            w.commit(&plan.commit(&model)).unwrap();
            w.settle();
            assert_eq!(dump(&w), dump(&filled(&model)), "seed {seed}");
        }
    }
}
