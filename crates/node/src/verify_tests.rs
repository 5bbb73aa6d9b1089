// SPDX-License-Identifier: Apache-2.0
use super::*;
use rand::{RngExt, SeedableRng};
use std::collections::HashMap;

use crate::consent::{Authority, Consent};
use crate::daemon::{self, Options};
use crate::dataplane::Choice;
use crate::service::Change;
use abi::Vni;

const WORLD: &str = "{apiVersion: tunny/v1, kind: Nc, metadata: {name: host}, spec: {address: 192.0.2.1}}
---
{apiVersion: tunny/v1, kind: Nc, metadata: {name: other}, spec: {address: 192.0.2.2}}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: red}, spec: {vni: 4097}}
---
{apiVersion: tunny/v1, kind: Route, spec: {vpc: red, prefix: 10.0.0.0/8, scope: local}}
---
{apiVersion: tunny/v1, kind: Route, spec: {vpc: red, prefix: 10.1.0.0/16, scope: blackhole}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: a}, spec: {vpc: red, addresses: [10.0.0.1, fd00::1], mac: \"02:00:00:00:00:01\", nc: host}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: b}, spec: {vpc: red, addresses: [10.0.0.2], mac: \"02:00:00:00:00:02\", nc: other}}
";

/// A node that follows a controller which is not there.
fn node(dir: &std::path::Path) -> daemon::Running {
    let controller = crate::tls::Address { url: "https://localhost:1".into(), ..Default::default() };
    let options = Options {
        instance: "verify".into(),
        config: Vec::new(),
        state: None,
        socket: dir.join("s"),
        choice: Choice::None,
        pins: None,
        workers: 1,
        flow_cache: crate::dataplane::FlowCacheSize::Mib(0),
        metrics: None,
        detach: false,
        adopt: false,
        controller: Some(controller),
    };
    daemon::start(&options).unwrap()
}

fn faults(node: &Node) -> Vec<String> {
    let mut pass = Pass::new();
    while !pass.over() {
        node.verify(&mut pass);
    }
    pass.faults
}

/// A change waits for readers of the tables, a look at them for the change: neither may wait for the other for good.
#[test]
fn a_look_and_a_change_at_the_same_time_both_end() {
    let dir = tempfile::tempdir().unwrap();
    let running = node(dir.path());
    let node = running.node.clone();
    let consent = Consent { authority: Authority::Controller, ..Consent::default() };
    let change = |text: &str| node.change(Change::Documents(&model::parse_text("x.yaml", text).unwrap()), &consent);
    change(WORLD).unwrap();
    let (done, over) = std::sync::mpsc::channel();
    let looking = node.clone();
    std::thread::spawn(move || {
        while done.send(()).is_ok() {
            assert_eq!(faults(&looking), Vec::<String>::new());
        }
    });
    let (changed, all) = std::sync::mpsc::channel();
    let changing = node.clone();
    std::thread::spawn(move || {
        let consent = Consent { authority: Authority::Controller, ..Consent::default() };
        for n in 0..300u32 {
            let text = format!(
                "{{apiVersion: tunny/v1, kind: PublicPool, metadata: {{name: p}}, spec: {{ranges: [203.0.113.{}]}}}}",
                1 + n % 200
            );
            let docs = model::parse_text("x.yaml", &text).unwrap();
            changing.change(Change::Documents(&docs), &consent).unwrap();
        }
        changed.send(()).unwrap();
    });
    if all.recv_timeout(Duration::from_secs(60)).is_err() {
        // It cannot be stopped: whoever waits for it would wait for ever.
        std::mem::forget(running);
        panic!("looks and changes wait for each other");
    }
    assert!(over.try_iter().count() > 0, "nobody looked meanwhile");
    drop(over);
    running.stop();
}

/// Whatever bit of a VM's entries changes in memory: it is told, with the VM, if and only if a packet would see another answer.
#[test]
fn a_changed_bit_is_told_where_packets_would_see_it() {
    let dir = tempfile::tempdir().unwrap();
    let running = node(dir.path());
    let node = &running.node;
    let docs = model::parse_text("x.yaml", WORLD).unwrap();
    let consent = Consent { authority: Authority::Controller, ..Consent::default() };
    node.change(Change::Documents(&docs), &consent).unwrap();
    node.settle();
    assert_eq!(faults(node), Vec::<String>::new());
    assert_eq!(node.verify_change(&docs).0, Vec::<String>::new());
    let tables = node.tables();
    let lines = memory::Lines::new(&**tables.memory());
    let vni = Vni(4097);
    let vms = [("Vm a: ", "10.0.0.1", 0x0a00_0001), ("Vm b: ", "10.0.0.2", 0x0a00_0002)];
    // What packets to both VMs see. The salt is random: both may share a line.
    let entries = || {
        vms.map(|(_, _, address)| {
            let tenant = tables.tenant(vni)?;
            let entry = tables.vm4(vni, address, tenant.generation())?;
            Some((entry.mac, entry.flags & abi::VM_FLAG_GATEWAY, tables.nc(entry.nc).map(|nc| nc.addr)))
        })
    };
    let good = entries();
    let (mut told, mut repaired, mut links) = (0, 0, 0);
    for word in 0..8 {
        for bit in 0..64 {
            let line = lines.at(tables.vm4_line(&tables.tables4(), vni, vms[0].2));
            let before = line.word(word);
            line.set(word, before ^ 1 << bit);
            let (seen, faults) = (entries(), faults(node));
            for ((name, address, _), (seen, good)) in vms.iter().zip(seen.iter().zip(&good)) {
                let of_it = |f: &String| f.starts_with(name) && f.split([' ', ',', ':']).any(|word| word == *address);
                assert_eq!(seen != good, faults.iter().any(of_it), "{word}.{bit}: {seen:?} {faults:?}");
            }
            let of_a_table = |f: &String| f.starts_with("the table");
            let of_a_vm = |f: &String| vms.iter().any(|(name, ..)| f.starts_with(name));
            assert!(faults.iter().all(|f| of_a_vm(f) || of_a_table(f)), "{faults:?}");
            // What is told is mended without the bit being put back; what is not told no packet sees, nor is it an entry.
            if faults.is_empty() {
                line.set(word, before);
                continue;
            }
            told += 1;
            match node.repair() {
                Ok(()) => repaired += 1,
                Err(e) => {
                    // The link to the bucket's chain: then the memory contradicts itself, which a start mends by building it anew.
                    assert!(word == 7 && bit >= 32 && e.to_string().contains("restart the node"), "{word}.{bit}: {e}");
                    line.set(word, before);
                    links += 1;
                }
            }
            assert_eq!(entries(), good, "{word}.{bit}");
            assert_eq!(self::faults(node), Vec::<String>::new(), "{word}.{bit}");
        }
    }
    assert!(repaired > 20 && links > 0 && told == repaired + links, "{told} {repaired} {links}");
    assert_eq!(faults(node), Vec::<String>::new());
    // The VPC's entry: its gateway, its routes.
    let line = lines.at(tables.tenant_line(&tables.tables4(), vni));
    let mut told = 0;
    for word in 0..8 {
        let before = line.word(word);
        line.set(word, before ^ 0xff);
        told += u32::from(faults(node).iter().any(|f| f.starts_with("Vpc red: ")));
        line.set(word, before);
    }
    assert!(told > 0);
    assert_eq!(faults(node), Vec::<String>::new());
    running.stop();
}

/// Entries that nobody has: a stranger, a double, one in another chain, one too few. Each is told with its name, and gone after it is mended.
#[test]
fn entries_that_no_object_has_are_found_and_taken_out() {
    let dir = tempfile::tempdir().unwrap();
    let running = node(dir.path());
    let node = &running.node;
    let docs = model::parse_text("x.yaml", WORLD).unwrap();
    let consent = Consent { authority: Authority::Controller, ..Consent::default() };
    node.change(Change::Documents(&docs), &consent).unwrap();
    node.settle();
    let tables = node.tables();
    let lines = memory::Lines::new(&**tables.memory());
    let line_of = |address| lines.at(tables.vm4_line(&tables.tables4(), Vni(4097), address));
    let key = |address: u32| 4097 << abi::VM4_VNI_SHIFT | u64::from(address) << abi::VM4_ADDR_SHIFT | abi::KEY_VALID;
    let put = |at: u32, key: u64| {
        let line = line_of(at);
        let slot = (0..3).find(|slot| line.word(*slot) == 0).expect("an empty slot");
        line.set(slot, key);
    };
    let told = |wanted: &str| {
        let found = faults(node);
        assert!(found.iter().any(|f| f.contains(wanted)), "{wanted}: {found:?}");
        node.repair().unwrap();
        assert_eq!(faults(node), Vec::<String>::new(), "{wanted}");
    };
    // An address that no VM has, where its readers look for it; then where they do not.
    put(0x0a00_0009, key(0x0a00_0009));
    told("the tables have 10.0.0.9 in VNI 4097, which is not configured");
    let elsewhere = (0x0a00_0010..).find(|a| !std::ptr::eq(line_of(*a), line_of(0x0a00_0009))).unwrap();
    put(elsewhere, key(0x0a00_0009));
    told("the tables have 10.0.0.9 in VNI 4097, which is not configured");
    // The entry of VM a once more.
    put(0x0a00_0001, key(0x0a00_0001));
    told("the tables have 10.0.0.1 in VNI 4097 twice");
    // Words of NCs and of senders: one too few, one too many.
    let root = memory::RootRef::new(&**tables.memory());
    for (at, of) in [(memory::root!(nc4), "IPv4 NCs"), (memory::root!(members), "senders")] {
        let (first, buckets) =
            (abi::LineNo(root.get(at) as u32), (root.get(at) >> abi::TABLE_REF_BUCKETS_SHIFT) as u32);
        let places = (0..buckets).flat_map(|b| (0..7).map(move |slot| (first + b, slot)));
        let (full, empty): (Vec<_>, Vec<_>) = places.partition(|(line, slot)| lines.at(*line).word(*slot) != 0);
        let (line, slot) = full[0];
        let before = lines.at(line).word(slot);
        lines.at(line).set(slot, 0);
        told(&format!("the tables have {} {of} in memory, and {} were written", full.len() - 1, full.len()));
        lines.at(empty[3].0).set(empty[3].1, before);
        told(&format!("the tables have {} {of} in memory, and {} were written", full.len() + 1, full.len()));
    }
    running.stop();
}

/// The sweep over prefixes says what a longest match says, address by address.
#[test]
fn intervals_are_what_the_longest_prefix_says() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    for round in 0..200 {
        let mut text = "{apiVersion: tunny/v1, kind: Vpc, metadata: {name: v}, spec: {vni: 7}}\n".to_string();
        let mut prefixes: HashMap<(u32, u32), bool> = HashMap::new();
        for _ in 0..rng.random_range(0..12) {
            let length = [0, 24, 25, 26, 28, 30, 31, 32][rng.random_range(0..8)];
            let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
            let address = (0x0a00_0000 | rng.random_range(0..256u32)) & mask;
            let address = if length == 0 { 0 } else { address };
            prefixes.insert((address, length), rng.random_range(0..2) == 0);
        }
        for ((address, length), local) in &prefixes {
            let (address, scope) =
                (std::net::Ipv4Addr::from_bits(*address), if *local { "local" } else { "blackhole" });
            text += &format!("---\n{{apiVersion: tunny/v1, kind: Route, spec: {{vpc: v, prefix: {address}/{length}, scope: {scope}}}}}\n");
        }
        let (model, _) = Model::from_documents(&model::parse_text("x.yaml", &text).unwrap()).unwrap();
        let found = intervals(&model.vpc_of_name("v").unwrap(), BTreeMap::new());
        assert!(found.windows(2).all(|w| w[0].last < w[1].first), "{round}");
        for address in (0x0a00_0000u32..0x0a00_0100).chain([0, 1, u32::MAX]) {
            let covers = |(a, l): (u32, u32)| {
                l == 0 || a ^ address < u32::MAX.checked_shr(l).unwrap_or(0).wrapping_add(1).max(1)
            };
            let best = prefixes.iter().filter(|(p, _)| covers(**p)).max_by_key(|((_, l), _)| *l);
            let wanted = best.map(|(_, local)| if *local { Target::Local } else { Target::Blackhole });
            let ip = IpAddr::V4(address.into());
            let is = found.iter().find(|i| i.first <= ip && ip <= i.last).and_then(|i| i.target);
            assert_eq!(is, wanted, "{ip} {text}");
        }
    }
}

/// A line of a customer that leads elsewhere in the tables is told, as soon as it changes and by a pass, and mended.
#[test]
fn a_line_that_leads_elsewhere_is_told_and_mended() {
    let dir = tempfile::tempdir().unwrap();
    let running = node(dir.path());
    let node = &running.node;
    let consent = Consent { authority: Authority::Controller, ..Consent::default() };
    let lines = "{apiVersion: tunny/v1, kind: EdgePort, metadata: {name: east}, spec: {at: [192.0.2.2], number: 3}}
---
{apiVersion: tunny/v1, kind: Overlay, metadata: {name: site}, spec: {vpc: red, port: east, customer: 100, overlay: 7, line: 2, mac: '02:00:00:00:ce:01'}}
---
{apiVersion: tunny/v1, kind: Route, spec: {vpc: red, prefix: 10.9.0.0/24, scope: line, line: 2}}";
    let docs = model::parse_text("x.yaml", &format!("{WORLD}\n---\n{lines}")).unwrap();
    node.change(Change::Documents(&docs), &consent).unwrap();
    node.settle();
    assert_eq!((faults(node), node.verify_change(&docs).0), (Vec::new(), Vec::new()));
    let plan = node.core().model.edge();
    let port = tables::EdgePortSpec::elsewhere(3, &plan.ports[0].at);
    let right = plan.circuits[0];
    for wrong in [
        tables::CircuitSpec { overlay: 8, ..right },
        tables::CircuitSpec { customer: 101, ..right },
        tables::CircuitSpec { ce: right.ce + 1, ..right },
    ] {
        node.writer().set_edge(&[port], &[wrong]).unwrap();
        let told = vec!["Overlay site: its line in the tables is not as it is configured".to_string()];
        assert_eq!((faults(node), node.verify_change(&docs).0), (told.clone(), told), "{wrong:?}");
        node.repair().unwrap();
        assert_eq!(faults(node), Vec::<String>::new(), "{wrong:?}");
    }
    running.stop();
}
