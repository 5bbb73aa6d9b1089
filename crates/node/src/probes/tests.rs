// SPDX-License-Identifier: Apache-2.0
use super::engines::Engines;
use super::scenario::{written, Ground, Probe};
use super::Failure;
use crate::offline::{Offline, PORT};
use abi::{Vni, SEGMENT_LINES};
use compile::Compile;
use memory::LineMemory;
use model::{Mac, Model};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use tables::Memory;
use underlay::NexthopSpec;

/// Two VPCs that are peers, with VMs of both families on NCs of both; one with groups; one with translation of every sort.
const WORLD: &str = include_str!("world.yaml");

/// Every scenario of that world.
const SCENARIOS: &[&str] = &[
    "blackhole ipv4",
    "internet ipv4",
    "internet ipv4 elastic plain",
    "internet ipv4 elastic-in vxlan6",
    "internet ipv4 forward-in groups vxlan4",
    "internet ipv4 snat groups plain",
    "internet ipv4 snat plain",
    "internet ipv6 announced plain",
    "line ipv4",
    "local ipv4 groups vxlan4",
    "local ipv4 vxlan4",
    "local ipv4 vxlan6",
    "local ipv6 vxlan4",
    "local ipv6 vxlan6",
    "peer ipv4 vxlan4",
    "peer ipv6 vxlan4",
    "region ipv6",
];

struct World {
    offline: Offline,
    /// What is probed: the tables of `offline`, or a copy on BPF maps.
    memory: Arc<dyn Memory>,
    engines: Engines,
}

impl World {
    fn new(fast: Option<(&xdp::XdpEngine, xdp::Prober)>) -> World {
        let (model, _) = Model::from_documents(&model::parse_text("world.yaml", WORLD).unwrap()).unwrap();
        let offline = Offline::of(model, 1500).unwrap();
        let mut memory: Arc<dyn Memory> = offline.writer.memory().clone();
        let prober = fast.map(|(engine, prober)| {
            crate::table_copy::copy(&*memory, &*engine.memory()).unwrap();
            engine.add_port(PORT).unwrap();
            memory = engine.memory();
            prober
        });
        let connections = crate::conntrack::offline(&offline.model, 1 << 40).unwrap();
        let engines = Engines::new(memory.clone(), connections, prober);
        World { offline, memory, engines }
    }

    /// Everything, with each VM in turn.
    fn probes(&self) -> Vec<(String, Probe)> {
        let offline = &self.offline;
        let plan = offline.model.conntrack();
        let groups = written(&plan);
        let paths = |to: IpAddr| {
            let hops = offline.writer.nexthops().into_iter().filter(|(_, hop)| hop.addr == to);
            let spec =
                |tables::NexthopSpec { addr, ifindex, dmac, smac, mtu }| NexthopSpec { addr, ifindex, dmac, smac, mtu };
            hops.map(|(_, hop)| spec(hop)).collect()
        };
        let ground = Ground { model: &offline.model, plan: &plan, groups: &groups, paths: &paths };
        let mut all = Vec::new();
        for vpc in offline.model.vpcs_by_vni().values() {
            for choice in 0..2 {
                let probes = ground.probes(*vpc, choice);
                assert_eq!(probes.unreachable, Vec::<String>::new());
                all.extend(probes.list.into_iter().map(|probe| (vpc.spec().name.to_string(), probe)));
            }
        }
        all
    }

    fn failures(&mut self, probes: &[(String, Probe)]) -> Vec<Failure> {
        probes.iter().filter_map(|(vpc, probe)| self.engines.run(probe, PORT, vpc)).collect()
    }

    /// Every word of the tables, and the statistics.
    fn words(&self) -> Vec<u64> {
        let words = |at: *const u64, n: usize| {
            // SAFETY: the memory promises its root, its lines and its statistics; each is read as aligned words.
            (0..n).map(|i| unsafe { at.add(i).read_volatile() }).collect::<Vec<_>>()
        };
        let memory = &self.memory;
        let lines = memory.segments() as usize * SEGMENT_LINES as usize * 8;
        let stats = memory.stats_slots() as usize * size_of::<abi::Stats>() / 8;
        let root = words(memory.root().cast(), size_of::<abi::Root>() / 8);
        [root, words(memory.base().cast(), lines), words(memory.stats().cast(), stats)].concat()
    }
}

/// What is expected from the intent is what both engines do, and no word of the tables is another one for it, meters and counters included.
fn all_come_out_and_leave_nothing_behind(world: &mut World) {
    let probes = world.probes();
    let found: BTreeSet<&str> = probes.iter().map(|(_, probe)| probe.scenario.as_str()).collect();
    assert_eq!(found.into_iter().collect::<Vec<_>>(), SCENARIOS);
    let before = world.words();
    let begun = std::time::Instant::now();
    for _ in 0..3 {
        assert_eq!(world.failures(&probes), []);
    }
    println!("{:?} a probe", begun.elapsed() / (3 * probes.len() as u32));
    assert!(world.words() == before, "probes have changed the tables");
}

#[test]
fn every_scenario_comes_out_in_software() {
    all_come_out_and_leave_nothing_behind(&mut World::new(None));
}

fn engine() -> Option<xdp::XdpEngine> {
    match xdp::XdpEngine::load() {
        Ok(engine) => Some(engine),
        Err(e) if e.not_permitted() => {
            skip::test(e, "run it as root");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn every_scenario_comes_out_in_both_engines() {
    let Some(engine) = engine() else { return };
    let prober = xdp::Prober::load(&engine.prober_maps().unwrap()).unwrap();
    all_come_out_and_leave_nothing_behind(&mut World::new(Some((&engine, prober))));
}

/// Probes of connections that are translated or judged: no word of the sessions that the fast path reads is another one for them.
#[test]
fn no_session_is_left_where_the_fast_path_looks() {
    let Some(engine) = engine() else { return };
    let prober = xdp::Prober::load(&engine.prober_maps().unwrap()).unwrap();
    let mut world = World::new(Some((&engine, prober)));
    let sessions = engine.session_memory().unwrap();
    let live = crate::conntrack::over(sessions.clone(), &world.offline.model, 1 << 40).unwrap();
    let words = || {
        // SAFETY: the memory promises its root and its lines; each is read as aligned words.
        let read = |at: *const u64, n: usize| (0..n).map(|i| unsafe { at.add(i).read_volatile() }).collect::<Vec<_>>();
        let lines = sessions.segments() as usize * SEGMENT_LINES as usize * 8;
        [read(sessions.root().cast(), size_of::<abi::SessionRoot>() / 8), read(sessions.base().cast(), lines)].concat()
    };
    let probes = world.probes();
    assert!(probes.iter().filter(|(_, probe)| probe.may_punt).count() > 4, "few of them have to do with sessions");
    let before = words();
    for _ in 0..2 {
        assert_eq!(world.failures(&probes), []);
    }
    assert!(words() == before, "probes have left sessions");
    // If that memory were their own, they would.
    let mut own = Engines::new(world.memory.clone(), live, None);
    probes.iter().for_each(|(vpc, probe)| drop(own.run(probe, PORT, vpc)));
    assert!(words() != before, "there is nothing to see here");
}

/// Whatever bit of a VM's entry changes in memory: probes fail if and only if packets would see another answer, and name the stage.
fn a_changed_bit_is_found(world: &mut World) {
    let probes: Vec<_> = world.probes().into_iter().filter(|(vpc, _)| vpc == "red").collect();
    let tables = tables::Tables::new(world.memory.clone());
    let memory = world.memory.clone();
    let lines = memory::Lines::new(&*memory);
    let vms = [0x0a00_0001, 0x0a00_0002];
    let entries = || {
        vms.map(|address| {
            let tenant = tables.tenant(Vni(4097))?;
            let entry = tables.vm4(Vni(4097), address, tenant.generation())?;
            Some((entry.mac, entry.flags & abi::VM_FLAG_GATEWAY, tables.nc(entry.nc).map(|nc| nc.addr)))
        })
    };
    let good = entries();
    let mut found = 0;
    for word in 0..8 {
        for bit in 0..64 {
            let line = lines.at(tables.vm4_line(&tables.tables4(), Vni(4097), vms[0]));
            let before = line.word(word);
            line.set(word, before ^ 1 << bit);
            let (seen, failures) = (entries(), world.failures(&probes));
            line.set(word, before);
            if seen == good {
                // A link of a chain that leads astray may hide others' entries from the one engine that follows it.
                continue;
            }
            found += 1;
            assert!(!failures.is_empty(), "{word}.{bit}: {seen:?}");
            for f in &failures {
                let stages = ["locate", "emit", "filter"];
                assert!(stages.contains(&&*f.stage) && !f.steps.is_empty() && f.vpc == "red", "{word}.{bit}: {f:?}");
            }
        }
    }
    assert!(found > 60, "{found}");
    assert_eq!(world.failures(&probes), []);
}

#[test]
fn a_changed_bit_is_found_in_software() {
    a_changed_bit_is_found(&mut World::new(None));
}

#[test]
fn a_changed_bit_is_found_in_both_engines() {
    let Some(engine) = engine() else { return };
    let prober = xdp::Prober::load(&engine.prober_maps().unwrap()).unwrap();
    a_changed_bit_is_found(&mut World::new(Some((&engine, prober))));
}

/// A next hop that is not the kernel's, and a route that leads elsewhere: each names its stage and what it should be.
#[test]
fn what_differs_is_told_with_its_stage() {
    let mut world = World::new(None);
    let probes: Vec<_> = world.probes().into_iter().filter(|(vpc, _)| vpc == "red").collect();
    let nc: IpAddr = "192.0.2.11".parse().unwrap();
    let hops = world.offline.writer.nexthops();
    let mut hop = hops.into_iter().find(|(_, hop)| hop.addr == nc).unwrap().1;
    hop.dmac = hop.dmac.map(|mac| mac ^ 0xff);
    world.offline.writer.set_nexthop(&hop).unwrap();
    let failures = world.failures(&probes);
    assert!(failures.iter().any(|f| f.scenario == "local ipv4 vxlan4"), "{failures:?}");
    for f in &failures {
        assert_eq!((f.engine.as_str(), f.stage.as_str()), ("user", "locate"));
        assert!(f.found.starts_with("outer Ethernet destination is "), "{}", f.found);
        let Mac(wrong) = Mac(hop.dmac.unwrap());
        assert!(f.found.contains(&Mac(wrong).to_string()) && f.packet.starts_with("vni=4097 "), "{f}");
    }
}
