// SPDX-License-Identifier: Apache-2.0
//! The model against naive ones: after every random change set it must equal a model built from scratch, its commits must
//! turn naive tables into those of the whole, a refused set must leave no trace, and peer loops must be refused exactly
//! when walking the routes finds one.

mod common;

use abi::Vni;
use common::{bytes, rebuilt, start, Generator, Naive};
use compile::*;
use model::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use tables::{Commit, RoutesChange};

/// Settings, routes and VMs of a VPC.
type NaiveTenant = (String, BTreeMap<tables::Prefix, String>, BTreeMap<u64, String>);

/// Tables as plain maps.
#[derive(Default, Debug, PartialEq, Clone)]
struct NaiveTables {
    gateway: String,
    ncs: BTreeSet<IpAddr>,
    tenants: BTreeMap<Vni, NaiveTenant>,
}

impl NaiveTables {
    fn commit(&mut self, c: &Commit) {
        if let Some(g) = &c.gateway {
            self.gateway = format!("{g:?}");
        }
        c.nc_add.iter().for_each(|n| assert!(self.ncs.insert(*n), "{n} added twice"));
        let named: BTreeSet<Vni> = c.tenants.iter().map(|t| t.vni).collect();
        assert_eq!(named.len(), c.tenants.len(), "a tenant is named twice");
        for t in &c.tenants {
            if t.delete {
                assert!(self.tenants.remove(&t.vni).is_some(), "VNI {} deleted but not there", t.vni);
                continue;
            }
            if let Some(s) = &t.settings {
                assert!(s.extra_ncs.iter().all(|n| self.ncs.contains(n)), "{s:?} lists an NC that is not there");
                self.tenants.entry(Vni(t.vni.0)).or_default().0 = format!("{s:?}");
            }
            let tenant = self.tenants.get_mut(&t.vni).expect("a new tenant comes with its settings");
            match &t.routes {
                RoutesChange::Keep => {}
                RoutesChange::Replace(all) => tenant.1 = all.iter().map(|r| (r.prefix, format!("{r:?}"))).collect(),
                RoutesChange::Delta { remove, add } => {
                    remove
                        .iter()
                        .for_each(|p| assert!(tenant.1.remove(p).is_some(), "route {p} removed but not there"));
                    add.iter().for_each(|r| drop(tenant.1.insert(r.prefix, format!("{r:?}"))));
                }
            }
            if t.vm_replace {
                tenant.2.clear();
            }
            t.vm_remove.iter().for_each(|k| assert!(tenant.2.remove(&k.0).is_some(), "VM {:x} was not there", k.0));
            for vm in &t.vm_add {
                assert!(self.ncs.contains(&vm.nc), "VM on {} which is not there", vm.nc);
                tenant.2.insert(vm.mac, format!("{vm:?}"));
            }
        }
        c.nc_remove.iter().for_each(|n| assert!(self.ncs.remove(n), "{n} removed but not there"));
    }

    fn of(m: &Model) -> NaiveTables {
        let mut t = NaiveTables::default();
        t.commit(&m.full_commit());
        t
    }
}

/// Whether some packet would pass more than PEER_HOPS_MAX peer routes: tried for the first address of every prefix and
/// the one behind it, from every VPC.
fn naive_peer_fault(naive: &Naive) -> bool {
    let mut routes: BTreeMap<Name, Vec<(Prefix, Option<Name>)>> = BTreeMap::new();
    let mut tries: BTreeSet<IpAddr> = BTreeSet::new();
    for o in naive.values() {
        let Object::Route(r) = o else { continue };
        let peer = match &r.scope {
            Scope::Peer(p) => Some(p.clone()),
            _ => None,
        };
        routes.entry(r.vpc.clone()).or_default().push((r.prefix, peer));
        tries.insert(r.prefix.addr());
        tries.insert(match r.prefix.broadcast() {
            IpAddr::V4(a) => IpAddr::V4(u32::from(a).wrapping_add(1).into()),
            IpAddr::V6(a) => IpAddr::V6(u128::from(a).wrapping_add(1).into()),
        });
    }
    let lookup = |vpc: &Name, x: IpAddr| {
        let covering = routes.get(vpc)?.iter().filter(|(p, _)| p.contains(&x));
        covering.max_by_key(|(p, _)| p.prefix_len())?.1.clone()
    };
    tries.iter().any(|x| {
        routes.keys().any(|start| {
            let (mut at, mut hops) = (start.clone(), 0);
            while let Some(next) = lookup(&at, *x) {
                (at, hops) = (next, hops + 1);
                if hops > abi::PEER_HOPS_MAX {
                    return true;
                }
            }
            false
        })
    })
}

fn is_peer_fault(e: &ConfigError) -> bool {
    matches!(e.problem, Problem::PeerLoop { .. } | Problem::PeerTooDeep { .. })
}

#[test]
fn random_changes_equal_a_model_built_from_scratch() {
    let seed = 20_261_121;
    println!("seed {seed}");
    let (mut accepted, mut refused, mut loops) = (0, 0, 0);
    for round in 0..60u64 {
        let mut g = Generator { rng: ChaCha8Rng::seed_from_u64(seed + round) };
        let mut naive = start(&mut g);
        let mut model = rebuilt(&naive).unwrap();
        let mut tables = NaiveTables::of(&model);
        for step in 0..120 {
            let docs = g.documents(&naive);
            let before = bytes(&model);
            let mut wanted = naive.clone();
            docs.deletes.iter().for_each(|(k, n, _)| drop(wanted.remove(&(*k, n.clone()))));
            for item in &docs.puts {
                wanted.insert((item.object.kind(), item.object.name()), item.object.clone());
            }
            match model.apply(&docs) {
                Err(errors) => {
                    refused += 1;
                    assert_eq!(bytes(&model), before, "a refused change left a trace: {errors:?}");
                    if errors.iter().all(is_peer_fault) {
                        loops += 1;
                        assert!(naive_peer_fault(&wanted), "round {round} step {step}: no loop, but {}", errors[0]);
                    }
                    // That a VNI stays is the one rule about the way, all others are about the state after it.
                    if !errors.iter().any(|e| matches!(e.problem, Problem::VniChanged { .. })) {
                        assert!(
                            rebuilt(&wanted).is_err(),
                            "round {round} step {step}: {} but all at once is fine",
                            errors[0]
                        );
                    }
                }
                Ok(plan) => {
                    accepted += 1;
                    assert!(!naive_peer_fault(&wanted), "round {round} step {step}: a peer loop was let in");
                    check_view(&plan, &model, &naive, &wanted);
                    tables.commit(&plan.commit(&model));
                    naive = wanted;
                    assert_eq!(tables, NaiveTables::of(&model), "round {round} step {step}: {:?}", plan.commit(&model));
                    let scratch = rebuilt(&naive).unwrap_or_else(|e| panic!("round {round} step {step}: {}", e[0]));
                    assert!(bytes(&scratch) == bytes(&model), "round {round} step {step}");
                    if g.rng.random_ratio(1, 10) {
                        check_revert(&mut model, &mut g, &naive);
                    }
                }
            }
        }
    }
    println!("{accepted} accepted, {refused} refused, {loops} of them for peer loops");
    assert!(accepted > 1000 && refused > 1000 && loops > 50, "the generator has become useless");
}

/// The plan must list exactly the objects that differ.
fn check_view(plan: &Plan, model: &Model, old: &Naive, new: &Naive) {
    let view = plan.view(model, usize::MAX);
    let seen: BTreeMap<(Kind, Name), Action> =
        view.changes.iter().map(|c| ((c.kind, c.name.clone()), c.action)).collect();
    let mut wanted = BTreeMap::new();
    for key in old.keys().chain(new.keys()) {
        let action = match (old.get(key), new.get(key)) {
            (None, _) => Action::Add,
            (_, None) => Action::Remove,
            (a, b) if a != b => Action::Change,
            _ => continue,
        };
        wanted.insert(key.clone(), action);
    }
    assert_eq!(seen, wanted, "{view}");
    for kind in Kind::ALL {
        let count = |a| wanted.iter().filter(|((k, _), x)| *k == kind && **x == a).count() as u64;
        let t = plan.tally(kind);
        let counts = (count(Action::Add), count(Action::Change), count(Action::Remove));
        assert_eq!((t.added, t.changed, t.removed), counts, "{kind}");
    }
    assert_eq!(view.more, 0);
    assert_eq!(view.to_json()["changes"].as_array().unwrap().len(), wanted.len());
}

fn check_revert(model: &mut Model, g: &mut Generator, naive: &Naive) {
    let before = bytes(model);
    for _ in 0..5 {
        let docs = g.documents(naive);
        if let Ok(plan) = model.apply(&docs) {
            assert!(model.revert(plan).is_none());
            assert!(bytes(model) == before, "a reverted change left a trace");
        }
    }
}

#[test]
fn a_replaced_model_differs_as_the_naive_ones_do() {
    for round in 0..40u64 {
        let mut g = Generator { rng: ChaCha8Rng::seed_from_u64(77 + round) };
        let mut versions = Vec::new();
        let (mut naive, mut model) = (start(&mut g), Model::new());
        for step in 0..160 {
            let docs = g.documents(&naive);
            let fresh = step == 0;
            if fresh {
                model = rebuilt(&naive).unwrap();
            }
            if model.apply(&docs).is_ok() {
                docs.deletes.iter().for_each(|(k, n, _)| drop(naive.remove(&(*k, n.clone()))));
                docs.puts.iter().for_each(|i| drop(naive.insert((i.object.kind(), i.object.name()), i.object.clone())));
            }
            if step % 40 == 0 {
                versions.push(naive.clone());
            }
        }
        let mut model = rebuilt(&versions[0]).unwrap();
        let mut tables = NaiveTables::of(&model);
        for pair in versions.windows(2) {
            let before = bytes(&model);
            let has_gateway = pair[1].keys().any(|k| k.0 == Kind::Gateway);
            let Ok(plan) = model.replace(rebuilt(&pair[1]).unwrap()) else {
                // The gateway that would stay does not go with the rest.
                assert!(!has_gateway && bytes(&model) == before);
                continue;
            };
            tables.commit(&plan.commit(&model));
            let gateway_kept = has_gateway == model.gateway().is_some();
            assert_eq!(tables, NaiveTables::of(&model));
            if gateway_kept {
                assert!(bytes(&model) == bytes(&rebuilt(&pair[1]).unwrap()));
            }
            assert!(model.revert(plan).is_none());
            assert!(bytes(&model) == before);
            tables = NaiveTables::of(&model);
            let plan = model.replace(rebuilt(&pair[1]).unwrap()).unwrap();
            tables.commit(&plan.commit(&model));
        }
    }
}

#[test]
fn only_the_last_plan_can_be_taken_back() {
    let mut model = Model::new();
    let docs = |n: u8| {
        let mut d = Documents::new();
        let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, n));
        d.put(Object::Nc(Nc { name: format!("n{n}").into(), address, vpcs: vec![], labels: Default::default() }));
        d
    };
    let first = model.apply(&docs(1)).unwrap();
    let second = model.apply(&docs(2)).unwrap();
    let first = model.revert(first).expect("an older plan is handed back");
    assert!(model.revert(second).is_none());
    assert!(model.revert(first).is_none());
    assert!(model.is_empty());
}
