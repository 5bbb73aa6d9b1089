// SPDX-License-Identifier: Apache-2.0
//! The XDP program under traffic while the production writer changes the tables that it reads: a writer killed by SIGKILL at random
//! instants, and tables that grow from a thousand entries to a million. Every answer of the program is checked by itself.
mod common;

use abi::{DropReason, IfIndex, Vni, OPT_PORT_SHIFT, OPT_SOURCE_STRICT};
use common::rig::*;
use common::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tables::*;
use xdp::{Options, TestVerdict, XdpEngine};

const PINS: &str = "TUNNY_TEST_PINS";
/// VPCs that change all the time.
const VPCS: u32 = 24;
const VMS: u32 = 7;
/// Further VMs of each VPC, which change with it.
const MORE: u32 = 80;
const NCS: u32 = 16;
/// Where an even version has a VM and a local route, an odd one neither but a black hole.
const NOW_AND_THEN: u32 = 0x0a09_0001;

fn seeded(what: &str) -> ChaCha8Rng {
    let seed = std::env::var("TUNNY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("{what}: TUNNY_SEED={seed}");
    ChaCha8Rng::seed_from_u64(seed)
}

fn options() -> WriterOptions {
    WriterOptions { xdp_slots: 64, worker_slots: 1, ..WriterOptions::default() }
}

fn address(bits: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(bits))
}

fn nc(n: u32) -> u32 {
    0x0a00_0100 + n % NCS + 1
}

fn vni(i: u32) -> Vni {
    Vni(1000 + i * 7)
}

fn mac(i: u32, n: u32, version: u32) -> u64 {
    0x02 << 40 | u64::from(i) << 32 | u64::from(n) << 24 | u64::from(version & 0xff_ffff)
}

fn vm(n: u32) -> u32 {
    0x0a01_0001 + n
}

fn route(prefix: u32, len: u8, target: Target) -> Route {
    Route { prefix: Prefix::new_assert(address(prefix), len), target }
}

fn settings() -> TenantSettings {
    TenantSettings {
        gateway_mac: GATEWAY_MAC,
        gateways: Vec::new(),
        meter: None,
        icmp: true,
        extra_ncs: vec![address(NC_A)],
    }
}

fn spec(addr: u32, mac: u64, nc: u32) -> VmSpec {
    VmSpec { mac, ipv4: Some(addr), ipv6: None, more: Vec::new(), nc: address(nc), meter: None, shaped: false }
}

/// VPC `i` in a version; `filler` routes make its tree larger or smaller.
fn change(i: u32, version: u32, filler: u32, create: bool) -> TenantChange {
    let even = version.is_multiple_of(2);
    let mut routes = vec![
        route(0x0a00_0000, 8, Target::Local),
        route(NOW_AND_THEN & !0xff, 24, if even { Target::Local } else { Target::Blackhole }),
    ];
    let targets = [Target::Local, Target::Blackhole, Target::Internet, Target::Line(0)];
    routes.extend((0..filler).map(|n| route(0x2000_0000 + (n << 10), 24, targets[((n + version) % 4) as usize])));
    let mut vm_add: Vec<VmSpec> = (0..VMS).map(|n| spec(vm(n), mac(i, n, version), nc(version + n))).collect();
    vm_add.extend((0..MORE).map(|n| spec(vm(100 + n), mac(i, 100 + n, version), nc(version + n))));
    vm_add.extend(even.then(|| spec(NOW_AND_THEN, mac(i, VMS, version), nc(version + VMS))));
    TenantChange {
        vni: vni(i),
        settings: create.then(settings),
        routes: RoutesChange::Replace(routes),
        vm_replace: true,
        vm_add,
        ..TenantChange::default()
    }
}

/// New tables in which every NC is reached over one next hop, the port that packets come from.
fn tables(memory: Arc<dyn Memory>, ncs: impl Iterator<Item = u32> + Clone, tenants: Vec<TenantChange>) -> Writer {
    let mut w = Writer::create(memory, options()).unwrap();
    let gateway = GatewaySettings {
        vtep4: Some(Ipv4Addr::from_bits(VTEP)),
        options: OPT_SOURCE_STRICT | 4789 << OPT_PORT_SHIFT,
        ..GatewaySettings::default()
    };
    let nc_add = ncs.clone().chain([NC_A]).map(address).collect();
    w.commit(&Commit { gateway: Some(gateway), nc_add, tenants, ..Commit::default() }).unwrap();
    let hop = NexthopSpec {
        addr: address(NC_B),
        ifindex: IfIndex(1),
        dmac: Some(0x02_aa_00_00_00_02),
        smac: 0x02_aa_00_00_00_01,
        mtu: 1500,
    };
    let hop = w.set_nexthop(&hop).unwrap();
    let group = w.set_group(None, &[hop]).unwrap();
    assert!(ncs.chain([NC_A]).all(|nc| w.bind_nc_group(address(nc), Some(group))));
    w.settle();
    w
}

/// Sends a packet to an address of a VPC: NC and MAC address that the program sends it to, or why it drops it.
fn send(engine: &XdpEngine, vni: Vni, to: u32) -> Result<(u32, u64), DropReason> {
    let run = engine.test_run(&packet(NC_A, vni, to, 40), IfIndex(1), 1).unwrap();
    match run.verdict {
        TestVerdict::Tx => {
            let number = |from: usize, to: usize| run.frame[from..to].iter().fold(0u64, |n, b| n << 8 | u64::from(*b));
            Ok((number(30, 34) as u32, number(50, 56)))
        }
        TestVerdict::Drop(reason) => Err(reason),
        other => panic!("a packet to {to:#x} of VPC {vni}: {other:?}"),
    }
}

/// One packet to each VM of VPC `i`. Its version may only rise, and each answer is of one version.
fn observe(engine: &XdpEngine, i: u32, last: &mut u32) -> u64 {
    let whole = |n: u32, (to, have): (u32, u64)| {
        let version = (have & 0xff_ffff) as u32;
        assert_eq!(have, mac(i, n, version), "VM {n} of VPC {i}: MAC address {have:012x}");
        assert_eq!(to, nc(version + n), "VM {n} of VPC {i} in version {version}");
        version
    };
    for n in 0..VMS {
        let found = send(engine, vni(i), vm(n)).unwrap_or_else(|reason| panic!("VM {n} of VPC {i}: {}", reason.name()));
        let version = whole(n, found);
        assert!(version >= *last, "VPC {i} went back from version {last} to {version}");
        *last = version;
    }
    match send(engine, vni(i), NOW_AND_THEN) {
        Err(DropReason::RouteBlackhole) => {}
        Err(reason) => panic!("VPC {i}: routes and VMs of two versions: {}", reason.name()),
        Ok(found) => {
            let version = whole(VMS, found);
            assert!(version % 2 == 0 && version >= *last, "VPC {i}: a VM of version {version} behind {last}");
            *last = version;
        }
    }
    u64::from(VMS) + 1
}

/// What the child process runs: takes over the tables and changes VPCs until it is killed.
#[test]
#[ignore = "run by the test below in a process of its own"]
fn writer_child() {
    let Ok(pins) = std::env::var(PINS) else { return };
    let mut rng = seeded("child");
    let engine = XdpEngine::open_or_create(&Options { pins: Some(pins.into()), ..Options::default() }).unwrap();
    let mut writer = Writer::attach(engine.memory(), options()).unwrap();
    let mut versions: Vec<u32> = {
        let tables = writer.tables();
        let _guard = tables.enter();
        let version = |i| {
            let t = tables.tenant(vni(i)).expect("the VPC stays");
            (tables.vm4(vni(i), vm(0), t.generation()).expect("the VM stays").mac & 0xff_ffff) as u32
        };
        (0..VPCS).map(version).collect()
    };
    // Told to the parent: from now on it may kill.
    println!("\nready");
    loop {
        let mut commit = Commit::default();
        for i in 0..VPCS {
            if rng.random_bool(0.5) {
                continue;
            }
            versions[i as usize] += 1;
            commit.tenants.push(change(i, versions[i as usize], rng.random_range(0..100), false));
        }
        writer.commit(&commit).unwrap();
        if rng.random_bool(0.2) {
            writer.settle();
        }
    }
}

/// Time that the threads of a process had a processor: how fast it writes does not depend on what else runs.
fn processor_time(pid: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let ran = |stat: String| stat.split(' ').next().unwrap().parse().unwrap();
    Duration::from_nanos(threads.map(|t| std::fs::read_to_string(t.path().join("schedstat")).map_or(0, ran)).sum())
}

/// Starts a writer, waits until it writes, and kills it after a while. The processor time of its writing.
fn write_and_die(pins: &std::path::Path, rng: &mut ChaCha8Rng) -> Duration {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "writer_child", "--ignored", "--nocapture", "--test-threads=1"])
        .env(PINS, pins)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut seen = String::new();
    while !seen.contains("ready") {
        let mut buffer = [0; 256];
        let n = out.read(&mut buffer).unwrap();
        assert!(n > 0, "the child ended by itself: {seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..n]));
    }
    let begun = processor_time(child.id());
    std::thread::sleep(Duration::from_micros(rng.random_range(20_000..250_000)));
    assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
    let wrote = processor_time(child.id()) - begun;
    child.kill().unwrap();
    child.wait().unwrap();
    wrote
}

/// VMs and routes that the writer must change in a second of processor time at least while it is killed.
const CHANGES_A_SECOND: f64 = 100_000.0;

fn killed_under_traffic(kills: u32) {
    in_namespace(move || {
        if engine().is_none() {
            return;
        }
        ip("link set lo up");
        let bpffs = Bpffs::mount(&format!("kill{kills}"));
        let pins = bpffs.0.join("instance");
        let engine = XdpEngine::open_or_create(&Options { pins: Some(pins.clone()), ..Options::default() }).unwrap();
        let first = (0..VPCS).map(|i| change(i, 0, i, true)).collect();
        drop(tables(engine.memory(), (0..NCS).map(nc), first));
        let (reader, done, mut last) = (Tables::new(engine.memory()), AtomicBool::new(false), [0; VPCS as usize]);
        let (mut packets, begun) = (0, reader.commits());
        let written = std::thread::scope(|s| {
            let killer = s.spawn(|| {
                let mut rng = seeded("kill");
                let _told = Told(&done);
                (0..kills).map(|_| write_and_die(&pins, &mut rng)).sum::<Duration>()
            });
            while !done.load(Ordering::Relaxed) {
                packets += (0..VPCS).map(|i| observe(&engine, i, &mut last[i as usize])).sum::<u64>();
            }
            killer.join().unwrap()
        });
        let commits = reader.commits() - begun;
        // A commit gives half of the VPCs other VMs, one more every second time, and about 51 other routes.
        let changed = commits * u64::from(VPCS) / 2;
        let (vms, routes) = (changed * u64::from(VMS + MORE), changed * 51);
        let a_second = |n: u64| n as f64 / written.as_secs_f64();
        println!(
            "{kills} kills, {commits} commits, {:.0} VMs and {:.0} routes changed in a second of the writer's processor time",
            a_second(vms),
            a_second(routes)
        );
        assert!(
            a_second(vms + routes) >= CHANGES_A_SECOND,
            "{:.0} changes a second are no heavy writing",
            a_second(vms + routes)
        );
        println!("{packets} packets through the XDP program, each answer right");
        // The last one takes over, and what it finds is whole.
        let mut writer = Writer::attach(engine.memory(), options()).unwrap();
        for i in 0..VPCS {
            observe(&engine, i, &mut last[i as usize]);
            let dump = writer.dump(vni(i)).unwrap();
            assert_eq!(dump.vms.len() as u32, VMS + MORE + u32::from(last[i as usize] % 2 == 0), "VPC {i}");
        }
        writer.commit(&Commit { tenants: vec![change(0, last[0] + 1, 5, false)], ..Commit::default() }).unwrap();
        assert!(commits > 2 * u64::from(kills) && packets > 1000);
        engine.unpin_all().unwrap();
    });
}

/// Says that a thread is done, also by a panic.
struct Told<'a>(&'a AtomicBool);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_killed_writer_never_makes_the_program_answer_wrongly() {
    killed_under_traffic(4);
}

#[test]
#[ignore = "long: make test-long"]
fn long_a_killed_writer_never_makes_the_program_answer_wrongly() {
    killed_under_traffic(60);
}

/// VM number `n` of many VPCs, filled one after the other.
fn place(n: u32) -> (Vni, u32, u64) {
    (Vni(1 + n % 4096), 0x0a10_0000 + n / 4096, 0x0200_0000_0000 | u64::from(n))
}

fn grown_under_traffic(most: u32) {
    in_namespace(move || {
        let Some(engine) = engine() else { return };
        ip("link set lo up");
        let memory = engine.memory();
        let tenant = |vni| TenantChange {
            vni: Vni(vni),
            settings: Some(settings()),
            routes: RoutesChange::Replace(vec![route(0x0a00_0000, 8, Target::Local)]),
            ..TenantChange::default()
        };
        let mut writer = tables(memory.clone(), (0..NCS).map(nc), (1..=4096).map(tenant).collect());
        let (there, done, sent) = (AtomicU32::new(0), AtomicBool::new(false), AtomicU64::new(0));
        let segments = memory.segments();
        std::thread::scope(|s| {
            let (there, done, sent) = (&there, &done, &sent);
            s.spawn(move || {
                let (mut rng, _told) = (seeded("growth"), Told(done));
                let (mut all, mut step) = (0u32, 1000);
                while all < most {
                    // Steps of all sizes: some grow a table by inserts, some by building it at once.
                    let next = (all + step).min(most);
                    let mut by_vpc: Vec<Vec<VmSpec>> = vec![Vec::new(); 4096];
                    for n in all..next {
                        let (vni, addr, mac) = place(n);
                        by_vpc[vni.0 as usize - 1].push(spec(addr, mac, nc(n)));
                    }
                    let vpcs = by_vpc.into_iter().enumerate().filter(|(_, vms)| !vms.is_empty());
                    let change =
                        |(i, vm_add)| TenantChange { vni: Vni(1 + i as u32), vm_add, ..TenantChange::default() };
                    writer.commit(&Commit { tenants: vpcs.map(change).collect(), ..Commit::default() }).unwrap();
                    all = next;
                    there.store(all, Ordering::Release);
                    step = rng.random_range(1_000..(all / 4).max(2_000));
                    // Between two steps each size of the table has packets of its own.
                    let before = sent.load(Ordering::Relaxed);
                    while sent.load(Ordering::Relaxed) < before + 200 {
                        std::thread::yield_now();
                    }
                }
            });
            let mut rng = ChaCha8Rng::seed_from_u64(1);
            while !done.load(Ordering::Relaxed) {
                let most = there.load(Ordering::Acquire);
                if most == 0 {
                    continue;
                }
                let n = rng.random_range(0..most);
                let (vni, addr, mac) = place(n);
                assert_eq!(send(&engine, vni, addr), Ok((nc(n), mac)), "VM {n} of {most}");
                sent.fetch_add(1, Ordering::Relaxed);
            }
        });
        let total = engine.stats_total();
        println!("{} packets while {most} VMs came, {segments} segments, then {}", total.rx, memory.segments());
        assert_eq!((total.rx, total.forwarded), (sent.load(Ordering::Relaxed), sent.load(Ordering::Relaxed)));
        assert!(memory.segments() > segments && total.rx > 1000);
    });
}

#[test]
fn a_table_grows_under_traffic_of_the_program() {
    grown_under_traffic(100_000);
}

#[test]
#[ignore = "long: make test-long"]
fn long_a_thousand_entries_grow_to_a_million_under_traffic_of_the_program() {
    grown_under_traffic(1_000_000);
}
