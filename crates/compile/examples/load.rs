// SPDX-License-Identifier: Apache-2.0
//! Times the ways by which a large configuration gets in: `cargo run --release -p model --example load [VPCS] [EACH]`.

use abi::Vni;
use compile::*;
use model::*;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;
use store::Store;

/// `vpcs` VPCs with `each` routes and `each` VMs over 1000 servers.
fn region(vpcs: u32, each: u32, named: bool) -> Documents {
    let mut docs = Documents::new();
    let mut g = Gateway::new("gw".into());
    g.vtep4 = Some(Ipv4Addr::new(192, 0, 2, 1));
    docs.put(Object::Gateway(Box::new(g)));
    let ncs: Vec<Name> = (0..1000).map(|i| format!("nc{i}").into()).collect();
    for (i, name) in ncs.iter().enumerate() {
        let address = IpAddr::V4(Ipv4Addr::from(0xac10_0000 + i as u32));
        docs.put(Object::Nc(Nc { name: name.clone(), address, vpcs: vec![], labels: Default::default() }));
    }
    for v in 0..vpcs {
        let name: Name = format!("vpc{v}").into();
        let (vni, gateway_mac) = (v + 1, Mac(0x0200_0000_0000 | u64::from(v)));
        let gateways = vec![IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1))];
        let vpc = Vpc {
            name: name.clone(),
            vni: Vni(vni),
            gateway_mac,
            gateways,
            icmp: true,
            pick_up: false,
            limits: Default::default(),
            weight: 1,
            path: Default::default(),
            meter: None,
            peerings: vec![],
            labels: Default::default(),
        };
        docs.put(Object::Vpc(Box::new(vpc)));
        for i in 0..each {
            let id = v * each + i;
            let own = |kind: &str| named.then(|| Name::from(format!("{kind}{id}")));
            let prefix = Prefix::new_assert(IpAddr::V4((0x0a00_0000 + (i << 8)).into()), 24);
            docs.put(Object::Route(Route {
                name: own("r"),
                vpc: name.clone(),
                prefix,
                scope: Scope::Local,
                labels: Default::default(),
            }));
            let addresses = Addresses::new(&[IpAddr::V4(Ipv4Addr::from(0x0a00_0005 + (i << 8)))]).unwrap();
            let (mac, nc) = (Mac(0x0200_1000_0000 + u64::from(id)), ncs[(id % 1000) as usize].clone());
            docs.put(Object::Vm(Vm {
                name: own("vm"),
                vpc: name.clone(),
                addresses,
                mac,
                nc,
                meter: None,
                labels: Default::default(),
                shape: None,
            }));
        }
    }
    docs
}

/// CPU time of this thread so far, which does not depend on what else runs.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

fn timed<T>(what: &str, f: impl FnOnce() -> T) -> T {
    let (start, busy) = (Instant::now(), cpu());
    let out = f();
    println!("{what:<48} {:>9.3} s, {:>9.3} s of CPU", start.elapsed().as_secs_f64(), cpu() - busy);
    out
}

fn main() {
    let args: Vec<u32> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let (vpcs, each) = (args.first().copied().unwrap_or(100_000), args.get(1).copied().unwrap_or(10));
    let dir = std::env::temp_dir().join(format!("tunny-config-load-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let docs = timed("make the documents", || region(vpcs, each, args.get(2).is_some()));
    let (mut model, plan) = timed("apply them to an empty model", || Model::from_documents(&docs).unwrap());
    println!("{}", plan.view(&model, 3).totals());
    timed("commit of that plan", || plan.commit(&model));
    drop(plan);
    let file = dir.join("x.ndjson");
    timed("write NDJSON", || {
        let mut out = std::io::BufWriter::new(std::fs::File::create(&file).unwrap());
        Kind::ALL.iter().for_each(|k| model.objects(*k).for_each(|o| writeln!(out, "{}", o.to_ndjson()).unwrap()));
    });
    let again = timed("parse NDJSON", || parse_files(&[&file]).unwrap());
    timed("apply what is equal", || assert!(model.apply(&again).unwrap().is_empty()));
    drop(again);
    let snapshot = dir.join("x.tunny");
    let bytes = timed("write snapshot", || model.save_snapshot(&snapshot, 0).unwrap());
    println!("{} bytes", bytes);
    let (loaded, _) = timed("read snapshot", || Model::load_snapshot(&snapshot).unwrap());
    let plan = timed("replace by what is equal", || model.replace(loaded).unwrap());
    assert!(plan.is_empty());
    drop(plan);
    let (loaded, _) = Model::load_snapshot(&snapshot).unwrap();
    let mut empty = Model::new();
    let plan = timed("replace nothing", || empty.replace(loaded).unwrap());
    let commit = timed("commit of that plan", || plan.commit(&empty));
    println!("{} tenants", commit.tenants.len());
    let memory: std::sync::Arc<dyn tables::Memory> = std::sync::Arc::new(tables::HeapMemory::new().unwrap());
    let mut writer = tables::Writer::create(memory, tables::WriterOptions::default()).unwrap();
    timed("the writer takes it", || writer.commit(&commit).unwrap());
    timed("free the commit", || drop(commit));
    let again = timed("reconcile: the commit", || empty.reconcile(&writer));
    timed("reconcile: the writer", || writer.commit(&again).unwrap());
    drop((again, writer, empty, plan));
    let single: Vec<Documents> = (0..100_000u32)
        .map(|i| {
            let mut docs = Documents::new();
            let prefix = Prefix::new_assert(IpAddr::V4((0x0b00_0000 + (i << 8)).into()), 24);
            docs.put(Object::Route(Route {
                name: None,
                vpc: format!("vpc{}", i % vpcs).into(),
                prefix,
                scope: Scope::Blackhole,
                labels: Default::default(),
            }));
            docs
        })
        .collect();
    timed("100000 changes of one route, with commits", || {
        for docs in &single {
            let plan = model.apply(docs).unwrap();
            assert_eq!(plan.commit(&model).tenants.len(), 1);
        }
    });
    let (mut store, ..) = Store::open(&dir.join("state")).unwrap();
    timed("store the model", || store.replace(&model).unwrap());
    let mut held = model.clone();
    timed("journal 100000 changes, 1000 a sync", || {
        for sets in single.chunks(1000) {
            let deletions: Vec<Documents> = sets.iter().cloned().map(Documents::into_deletions).collect();
            deletions.iter().for_each(|d| drop(held.apply(d).unwrap()));
            store.append_all(&deletions.iter().collect::<Vec<_>>(), &held).unwrap();
        }
    });
    drop(store);
    let (_, back, opened) = timed("open the store again", || Store::open(&dir.join("state")).unwrap());
    println!("{} replayed, {:?}", opened.replayed, back.counts());
    std::fs::remove_dir_all(&dir).unwrap();
}
