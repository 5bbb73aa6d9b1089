// SPDX-License-Identifier: Apache-2.0
//! Plans carried out by the real writer: it takes every commit of an accepted change, its tables then hold what the model says,
//! and after a restart a reconciliation mends whatever differs.

#[path = "../../model/tests/common/mod.rs"]
mod common;

use abi::{VmId, Vni};
use common::{rebuilt, start, Generator};
use compile::*;
use model::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::net::IpAddr;
use std::sync::Arc;
use tables::{HeapMemory, Memory, Writer, WriterOptions};

/// What entries of a VM say besides: whether it is metered, and whether the software path is called for it.
fn flags(w: &Writer, vni: Vni, address: IpAddr) -> u32 {
    let tables = w.tables();
    let _inside = tables.enter();
    let generation = tables.tenant(vni).unwrap().generation();
    let vm = match address {
        IpAddr::V4(a) => tables.vm4(vni, a.to_bits(), generation),
        IpAddr::V6(a) => tables.vm6(vni, ((a.to_bits() >> 64) as u64, a.to_bits() as u64), generation),
    };
    vm.unwrap().flags
}

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
        for vm in &t.vms {
            let flags: Vec<u32> = vm.addresses.iter().map(|a| flags(w, vni, *a)).collect();
            out += &format!("{:x} flags {flags:?}\n", vm.mac);
        }
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

/// A VM is called to the software path while a mirror is of it, by name or with its whole VPC, and no longer.
#[test]
fn mirrors_mark_their_vms_and_leave_them_as_they_were() {
    let base = "{apiVersion: tunny/v1, kind: Nc, metadata: {name: n}, spec: {address: 192.0.2.11}}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: red}, spec: {vni: 77, gateway: {addresses: [10.0.0.1]}}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: a}, spec: {vpc: red, addresses: [10.0.0.5], mac: '02:00:00:00:00:05', nc: n}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: b}, spec: {vpc: red, addresses: [10.0.0.6], mac: '02:00:00:00:00:06', nc: n}}
";
    let mut model = Model::new();
    let (_, mut w) = writer();
    let mut apply = |text: &str, delete: Option<&str>| {
        let mut docs = if text.is_empty() { Documents::new() } else { parse_text("x.yaml", text).unwrap() };
        delete.into_iter().for_each(|name| docs.delete(Kind::Mirror, name));
        let plan = model.apply(&docs).unwrap();
        w.commit(&plan.commit(&model)).unwrap();
        let marked =
            ["10.0.0.5", "10.0.0.6"].map(|a| flags(&w, Vni(77), a.parse().unwrap()) & abi::VM_FLAG_SHAPED != 0);
        assert_eq!(dump(&w), dump(&filled(&model)));
        (marked, w.ncs().len(), model.conntrack().edge.mirrored.len())
    };
    let mirror = |spec: &str| {
        format!("{{apiVersion: tunny/v1, kind: Mirror, metadata: {{name: m}}, spec: {{vpc: red, {spec}}}}}")
    };
    assert_eq!(apply(base, None), ([false, false], 1, 0));
    assert_eq!(apply(&mirror("vms: [a], target: {collector: 192.0.2.50, vni: 99}"), None), ([true, false], 2, 1));
    assert_eq!(apply(&mirror("vms: [b], target: {collector: 192.0.2.51, vni: 99}"), None), ([false, true], 2, 1));
    assert_eq!(
        apply(&mirror("target: {vm: b, vni: 99}"), None),
        ([true, false], 1, 1),
        "all but the one that gets copies"
    );
    let third = "{apiVersion: tunny/v1, kind: Vm, metadata: {name: c}, spec: {vpc: red, addresses: [10.0.0.7], mac: '02:00:00:00:00:07', nc: n}}";
    assert_eq!(apply(third, None), ([true, false], 1, 2), "a VM that comes to a mirrored VPC");
    assert_eq!(apply("", Some("m")), ([false, false], 1, 0));
}
