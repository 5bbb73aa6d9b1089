// SPDX-License-Identifier: Apache-2.0
//! Random commits: what is accepted must give exactly the model's answers, what is refused must change nothing, and
//! whatever state it is in, a second writer must be able to take it over.

use super::model::*;
use crate::testing::seeded;
use crate::*;
use abi::Vni;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

/// Compares every answer that the small world can ask for.
/// Returns how often a VPC's entry told the peer by itself.
fn check(model: &Model, writer: &Writer, tables: &Tables, rng: &mut ChaCha8Rng) -> u32 {
    let mut peers = 0;
    let _guard = tables.enter();
    let view = View(tables, writer);
    for _ in 0..12 {
        let vni = some_vni(rng);
        assert_eq!(tables.tenant(vni).is_some(), model.tenants.contains_key(&vni));
        for _ in 0..12 {
            let addr = some_address(rng);
            assert_eq!(view.route(vni, addr), model.route(vni, addr), "route of {addr} in {vni}");
            assert_eq!(view.vm(vni, addr), model.vm(vni, addr), "VM of {addr} in {vni}");
            let t = tables.tenant(vni);
            if let (Some(t), std::net::IpAddr::V4(a)) = (&t, addr) {
                if let Some(peer) = tables.peer4(t, a.to_bits()) {
                    assert_eq!(
                        model.route(vni, addr),
                        Some(Target::Peer(peer)),
                        "a PEER word lies about {addr} in {vni}"
                    );
                    peers += 1;
                }
            }
            let simple = t.is_some_and(|t| match addr {
                std::net::IpAddr::V4(_) => t.root4() & abi::ROOT_SIMPLE != 0,
                std::net::IpAddr::V6(_) => t.root6() & abi::ROOT_SIMPLE != 0,
            });
            if simple && model.vm(vni, addr).is_some() {
                assert_eq!(model.route(vni, addr), Some(Target::Local), "ROOT_SIMPLE lies about {addr} in {vni}");
            }
        }
        let nc = some_nc(rng);
        assert_eq!(view.may_send(vni, nc), model.may_send(vni, nc), "{nc} for {vni}");
    }
    peers
}

/// Everything that the writer says it holds, against the model.
fn check_dump(model: &Model, writer: &Writer) {
    assert_eq!(writer.vnis(), model.tenants.keys().copied().collect::<Vec<_>>());
    let ncs: Vec<_> = writer.ncs().into_iter().map(|n| n.0).collect();
    assert_eq!(ncs, model.ncs.iter().copied().collect::<Vec<_>>());
    for (vni, t) in &model.tenants {
        let dump = writer.dump(*vni).unwrap();
        assert_eq!(dump.vms.len(), t.vms.len(), "{vni}");
        for vm in dump.vms {
            let spec = &t.vms[&vm.mac];
            let mut addresses: Vec<_> = spec.addresses().collect();
            addresses.sort_unstable();
            assert_eq!((vm.nc, vm.addresses, vm.metered), (spec.nc, addresses, spec.meter.is_some()));
        }
        assert_eq!(dump.metered, t.settings.meter.is_some());
        assert_eq!((dump.icmp, dump.gateway_mac), (t.settings.icmp, t.settings.gateway_mac));
        assert!(dump.members.iter().all(|nc| model.may_send(*vni, *nc)));
        if let Some(routes) = writer.routes(*vni) {
            assert_eq!(routes.into_iter().map(|r| (r.prefix, r.target)).collect::<Vec<_>>(), {
                t.routes.iter().map(|(p, t)| (*p, *t)).collect::<Vec<_>>()
            });
        }
    }
    let usage = |name| writer.usage().iter().find(|w| w.name == name).unwrap().used;
    assert_eq!(usage("tenants"), model.tenants.len() as u64);
    assert_eq!(usage("vms"), model.tenants.values().map(|t| t.vms.len() as u64).sum::<u64>());
}

#[test]
fn random_commits_equal_the_model_and_refused_ones_change_nothing() {
    let (_seed, mut rng) = seeded("oracle");
    let (mut accepted, mut refused, mut peers) = (0, 0, 0);
    for round in 0..6 {
        let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
        let mut writer =
            Writer::create(memory.clone(), WriterOptions { salt: rng.random(), ..Default::default() }).unwrap();
        let tables = writer.tables();
        let mut model = Model::default();
        for step in 0..400 {
            let commit = some_commit(&mut rng, &model);
            if std::env::var("TUNNY_TRACE").is_ok() {
                eprintln!("{round}.{step} {commit:?}");
            }
            match writer.commit(&commit) {
                Ok(_) => {
                    model.apply(&commit);
                    accepted += 1;
                }
                Err(_) => refused += 1,
            }
            peers += check(&model, &writer, &tables, &mut rng);
            if rng.random_bool(0.1) {
                writer.settle();
                peers += check(&model, &writer, &tables, &mut rng);
            }
            if step % 50 == 49 {
                check_dump(&model, &writer);
            }
            if step % 100 == 99 && round % 2 == 1 {
                // A clean hand-over: nothing visible changes, and settings and route sets are given again.
                let used = {
                    writer.settle();
                    writer.bytes_used()
                };
                writer = Writer::attach(memory.clone(), WriterOptions::default()).unwrap();
                assert_eq!(writer.bytes_used(), used, "attach lost or leaked lines");
                peers += check(&model, &writer, &tables, &mut rng);
                check_dump(&model, &writer);
                let again = |(vni, t): (&Vni, &ModelTenant)| TenantChange {
                    vni: *vni,
                    settings: Some(t.settings.clone()),
                    routes: RoutesChange::Replace(
                        t.routes.iter().map(|(p, t)| Route { prefix: *p, target: *t }).collect(),
                    ),
                    ..Default::default()
                };
                let commit = Commit { tenants: model.tenants.iter().map(again).collect(), ..Default::default() };
                writer.commit(&commit).unwrap();
                peers += check(&model, &writer, &tables, &mut rng);
                check_dump(&model, &writer);
            }
        }
    }
    println!("{accepted} accepted, {refused} refused, {peers} peers told by entries");
    assert!(peers > 0, "no entry told a peer");
    assert!(accepted > 300 && refused > 300, "{accepted} {refused}");
}
