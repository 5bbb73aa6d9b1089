// SPDX-License-Identifier: Apache-2.0
//! Damaged table memory: what the writer never leaves behind, written by hand through /proc/self/mem.
//!
//! Both engines drop with a reason of their own, count every packet exactly once, and neither crashes nor hangs.
mod common;

use abi::*;
use common::XdpRunner;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use tables::Memory;
use testkit::case;
use testkit::random::{self, Size};
use testkit::region::Region;
use testkit::rng::Rng;
use testkit::runner::{End, Engine};
use testkit::user::UserEngine;

/// Writes words of table memory behind the back of everybody.
struct Vandal {
    mem: File,
    base: u64,
    lines: u32,
}

impl Vandal {
    fn new(memory: &dyn Memory) -> Vandal {
        let mem = OpenOptions::new().read(true).write(true).open("/proc/self/mem").unwrap();
        Vandal { mem, base: memory.base() as u64, lines: memory.segments() * SEGMENT_LINES }
    }

    fn at(&self, line: u32, word: u32) -> u64 {
        assert!(line < self.lines && word < 8);
        self.base + u64::from(line) * u64::from(LINE_BYTES) + u64::from(word) * 8
    }

    fn read(&self, line: u32, word: u32) -> u64 {
        let mut b = [0; 8];
        self.mem.read_exact_at(&mut b, self.at(line, word)).unwrap();
        u64::from_ne_bytes(b)
    }

    /// Lines that hold anything.
    fn used(&self) -> Vec<u32> {
        let mut all = vec![0; self.lines as usize * LINE_BYTES as usize];
        self.mem.read_exact_at(&mut all, self.base).unwrap();
        let lines = all.chunks(LINE_BYTES as usize);
        (0..).zip(lines).filter(|(_, b)| b.iter().any(|&x| x != 0)).map(|(l, _)| l).collect()
    }

    fn write(&self, line: u32, word: u32, value: u64) {
        self.mem.write_all_at(&value.to_ne_bytes(), self.at(line, word)).unwrap();
    }
}

/// Red, blue and green of the packet cases, and a packet from a (red) to p (blue).
fn region() -> (Region, Vec<u8>) {
    let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/packets"));
    let text = "tables from region.tables\ncase peers\n  in eth h1 > gw / ip h1 > gw / udp 50000 > 4789 / vxlan red \
                / eth a > red / ip a > p / udp 1 > 2\n  pass\n";
    let case = case::parse("faults", text, &|f| std::fs::read_to_string(dir.join(f)).ok()).unwrap().remove(0);
    let frame = case.inputs().next().unwrap().packet.encode();
    (case.region, frame)
}

/// The word of the table of VPCs that holds a VPC's key.
fn key_of(vandal: &Vandal, vni: u32) -> (u32, u32) {
    let want = u64::from(vni) << TENANT_VNI_SHIFT | TENANT_VALID;
    let mask = u64::MAX << TENANT_VNI_SHIFT | TENANT_VALID;
    let places = vandal.used().into_iter().flat_map(|line| (0..3).map(move |word| (line, word)));
    // An NC's membership has the VNI in the same bits, but nothing else.
    let mut found = places.filter(|(l, w)| (vandal.read(*l, *w) ^ want) & mask == 0 && vandal.read(*l, 3 + w) != 0);
    found.find(|(l, w)| vandal.read(*l, *w) >> TENANT_ID_SHIFT & 0xf_ffff != 0).expect("the VPC's key")
}

fn damaged_tables_are_told(engine: &mut dyn Engine) {
    let (region, frame) = region();
    let gone = |v: &Vandal, vni| {
        let (line, word) = key_of(v, vni);
        v.write(line, word, v.read(line, word) & !TENANT_VALID);
    };
    let scope = |v: &Vandal, vni| {
        let (line, word) = key_of(v, vni);
        let root = v.read(line, 3 + word) as u32;
        let node = root & ROOT_LINE_MASK;
        // Whatever kind of node it is, every value of it has a scope that is none; bounds stay below.
        let values = if root >> ROOT_LEVELS_SHIFT & 0xf == ROOT_FLAT { (node + 1, 3..7) } else { (node, 4..8) };
        values.1.for_each(|w| v.write(values.0, w, 0x9000_0000_9000_0000));
        // What the VPC's entry says of its peers by itself must not answer for the tree.
        (0..6).for_each(|w| v.write(line + 1, w, 0));
    };
    let cases: [(&str, &dyn Fn(&Vandal), DropReason); 3] = [
        ("the peer's VPC is gone", &|v| gone(v, 200), DropReason::RoutePeerGone),
        ("the VPC is gone", &|v| gone(v, 100), DropReason::VniUnknown),
        ("a scope that is none", &|v| scope(v, 100), DropReason::TableFault),
    ];
    for (what, damage, reason) in cases {
        engine.start(&region).unwrap();
        assert!(matches!(engine.run(&frame, 1, 1).unwrap().end, End::Forward(..)));
        damage(&Vandal::new(&**engine.reader().unwrap().memory()));
        let seen = engine.run(&frame, 1, 1).unwrap();
        assert_eq!(seen.end, End::Drop(reason), "engine {}: {what}", engine.name());
        engine.conserved().unwrap();
    }
}

#[test]
fn damaged_tables_on_the_rust_path() {
    damaged_tables_are_told(&mut UserEngine::default());
}

#[test]
fn damaged_tables_on_the_xdp_program() {
    if let Some(mut engine) = XdpRunner::new() {
        damaged_tables_are_told(&mut engine);
    }
}

/// Random words all over the tables: whatever becomes of a packet, it becomes of it exactly once.
fn survives_garbage(engine: &mut dyn Engine) {
    let (seed, mut rng) = Rng::seeded("garbage");
    for _ in 0..8 {
        let region = random::region(&mut rng, Size { vpcs: 10, vms: 12, routes: 8, ncs: 8, deep_routes: 300 });
        engine.start(&region).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let vandal = Vandal::new(&**engine.reader().unwrap().memory());
        let used = vandal.used();
        for round in 0..400 {
            let (line, word) = (*rng.pick(&used), rng.below(8) as u32);
            let value = match round % 3 {
                0 => rng.word(),
                1 => vandal.read(line, word) ^ 1 << rng.below(64),
                _ => rng.word() & 0xffff,
            };
            vandal.write(line, word, value);
            for _ in 0..4 {
                let frame = random::packet(&mut rng, &region).encode();
                if frame.len() >= 14 {
                    engine.run(&frame, 1, 1).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                }
            }
        }
        engine.conserved().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

#[test]
fn garbage_in_the_tables_on_the_rust_path() {
    survives_garbage(&mut UserEngine::default());
}

#[test]
fn garbage_in_the_tables_on_the_xdp_program() {
    if let Some(mut engine) = XdpRunner::new() {
        survives_garbage(&mut engine);
    }
}
