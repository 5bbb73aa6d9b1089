// SPDX-License-Identifier: Apache-2.0
//! Compares three layouts for longest prefix match: the interval tree that Tunny uses, a hash table over (VNI, length,
//! prefix) that is probed for every length in the VPC's bitmap, and a plain sorted array of intervals per VPC. The last
//! two live only here. Figures and discussion: `docs/design/lpm.md`.
//!
//! `cargo run --release -p tables --example lpm_bench` (CPU time of the thread; medians of 7).

use abi::Vni;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use tables::*;

/// A route as all layouts see it: VPC, prefix in the upper bits of 128, length, value.
type Flat = (u32, u128, u8, u32);

fn cpu() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

fn prefetch<T>(at: *const T) {
    // SAFETY: a prefetch has no effect but on caches.
    unsafe { _mm_prefetch(at.cast(), _MM_HINT_T0) };
}

fn median(mut f: impl FnMut() -> f64) -> f64 {
    let mut all: Vec<f64> = (0..7).map(|_| f()).collect();
    all.sort_by(f64::total_cmp);
    all[3]
}

/// Lengths as in a VPC or an enterprise network: a few common ones, some rare.
fn length(rng: &mut ChaCha8Rng, v6: bool, big: bool) -> u8 {
    let r = rng.random_range(0..100);
    let of = |common: [(u32, u8); 9]| common.iter().find(|(upto, _)| r < *upto).map_or(24, |(_, len)| *len);
    match (v6, big) {
        (false, false) => {
            of([(50, 24), (70, 28), (85, 20), (95, 32), (100, 16), (100, 0), (100, 0), (100, 0), (100, 0)])
        }
        (false, true) => {
            of([(60, 24), (70, 23), (80, 22), (86, 21), (92, 20), (95, 19), (97, 18), (98, 28), (100, 32)])
        }
        (true, false) => {
            of([(50, 64), (70, 56), (85, 48), (95, 128), (100, 40), (100, 0), (100, 0), (100, 0), (100, 0)])
        }
        (true, true) => {
            of([(45, 48), (60, 44), (70, 40), (78, 36), (86, 32), (92, 56), (97, 64), (99, 96), (100, 128)])
        }
    }
}

fn routes(rng: &mut ChaCha8Rng, v6: bool, vpcs: u32, each: u32) -> Vec<Flat> {
    let mut all = BTreeMap::new();
    for vpc in 1..=vpcs {
        let goal = all.len() + each as usize;
        while all.len() < goal {
            let len = length(rng, v6, each > 1000);
            let addr = match (v6, each > 1000) {
                (false, false) => u128::from(0x0a00_0000 | rng.next_u32() & 0xff_ffff) << 96,
                (false, true) => u128::from(rng.next_u32()) << 96,
                (true, false) => 0x2001_0db8u128 << 96 | u128::from(rng.next_u64()) << 32 | u128::from(rng.next_u32()),
                (true, true) => 0x2000u128 << 112 | u128::from(rng.next_u64()) << 48 | u128::from(rng.next_u32()),
            };
            let value = [1u32, 3, 4, 5][rng.random_range(0..4usize)] << 28;
            all.insert((vpc, addr >> (128 - len) << (128 - len), len), value);
        }
    }
    all.into_iter().map(|((vpc, p, len), v)| (vpc, p, len, v)).collect()
}

// ---- the alternative: a hash table over (VNI, length, prefix), as buckets of cache lines ----

#[repr(C, align(64))]
#[derive(Clone, Copy, Default)]
struct Bucket4 {
    keys: [u64; 5],
    values: [u32; 5],
    next: u32,
}

/// IPv6: two entries a line.
#[repr(C, align(64))]
#[derive(Clone, Copy, Default)]
struct Bucket6 {
    prefixes: [u128; 2],
    keys: [u64; 2],
    values: [u32; 2],
    next: u32,
}

trait Bucket: Copy + Default {
    const SLOTS: usize;
    fn hit(&self, i: usize, key: u64, prefix: u128) -> bool;
    fn empty(&self, i: usize) -> bool;
    fn put(&mut self, i: usize, key: u64, prefix: u128, value: u32);
    fn value(&self, i: usize) -> u32;
    fn next(&mut self) -> &mut u32;
}

impl Bucket for Bucket4 {
    const SLOTS: usize = 5;
    fn hit(&self, i: usize, key: u64, _: u128) -> bool {
        self.keys[i] == key
    }
    fn empty(&self, i: usize) -> bool {
        self.keys[i] == 0
    }
    fn put(&mut self, i: usize, key: u64, _: u128, value: u32) {
        (self.keys[i], self.values[i]) = (key, value);
    }
    fn value(&self, i: usize) -> u32 {
        self.values[i]
    }
    fn next(&mut self) -> &mut u32 {
        &mut self.next
    }
}

impl Bucket for Bucket6 {
    const SLOTS: usize = 2;
    fn hit(&self, i: usize, key: u64, prefix: u128) -> bool {
        self.keys[i] == key && self.prefixes[i] == prefix
    }
    fn empty(&self, i: usize) -> bool {
        self.keys[i] == 0
    }
    fn put(&mut self, i: usize, key: u64, prefix: u128, value: u32) {
        (self.keys[i], self.prefixes[i], self.values[i]) = (key, prefix, value);
    }
    fn value(&self, i: usize) -> u32 {
        self.values[i]
    }
    fn next(&mut self) -> &mut u32 {
        &mut self.next
    }
}

struct Hashed<B> {
    v6: bool,
    lines: Vec<B>,
    buckets: u32,
    /// Lengths in use by VPC, and how many routes have each.
    bitmaps: Vec<u128>,
    counts: BTreeMap<(u32, u8), u32>,
}

impl<B: Bucket> Hashed<B> {
    fn new(v6: bool, vpcs: u32, routes: usize) -> Self {
        let buckets = (routes as f64 / (B::SLOTS as f64 * 0.7)) as u32 + 16;
        let bitmaps = vec![0; vpcs as usize + 1];
        Hashed { v6, lines: vec![B::default(); buckets as usize], buckets, bitmaps, counts: BTreeMap::new() }
    }
    fn key(&self, vpc: u32, prefix: u128, len: u8) -> (u64, u32) {
        // IPv4: VNI, prefix and length fill a word; IPv6: the prefix is compared by itself.
        let low = if self.v6 { 0 } else { (prefix >> 96) as u64 };
        let key = u64::from(vpc) << 40 | low << 8 | u64::from(len) + 1;
        let mixed = key ^ (prefix as u64) ^ ((prefix >> 64) as u64).rotate_left(17);
        (key, abi::bucket_of(abi::hash1(mixed, 7), self.buckets))
    }
    fn find(&self, vpc: u32, prefix: u128, len: u8) -> Option<(u32, usize)> {
        let (key, mut line) = self.key(vpc, prefix, len);
        loop {
            let mut b = self.lines[line as usize];
            if let Some(i) = (0..B::SLOTS).find(|i| b.hit(*i, key, prefix)) {
                return Some((line, i));
            }
            line = *b.next();
            if line == 0 {
                return None;
            }
        }
    }
    fn insert(&mut self, (vpc, prefix, len, value): Flat) {
        let (key, mut line) = self.key(vpc, prefix, len);
        if let Some((line, i)) = self.find(vpc, prefix, len) {
            self.lines[line as usize].put(i, key, prefix, value);
            return;
        }
        loop {
            let b = &mut self.lines[line as usize];
            if let Some(i) = (0..B::SLOTS).find(|i| b.empty(*i)) {
                b.put(i, key, prefix, value);
                break;
            }
            if *b.next() == 0 {
                let new = self.lines.len() as u32;
                self.lines.push(B::default());
                *self.lines[line as usize].next() = new;
                line = new;
            } else {
                line = *b.next();
            }
        }
        *self.counts.entry((vpc, len)).or_default() += 1;
        self.bitmaps[vpc as usize] |= 1 << (len.min(127));
    }
    fn remove(&mut self, (vpc, prefix, len, _): Flat) {
        let Some((line, i)) = self.find(vpc, prefix, len) else { return };
        self.lines[line as usize].put(i, 0, 0, 0);
        let n = self.counts.entry((vpc, len)).or_default();
        *n -= 1;
        if *n == 0 {
            self.bitmaps[vpc as usize] &= !(1 << len.min(127));
        }
    }
    fn each_length(&self, vpc: u32, mut f: impl FnMut(u8) -> bool) {
        let mut map = self.bitmaps[vpc as usize];
        while map != 0 {
            let bit = 127 - map.leading_zeros();
            // Bit 127 stands for length 128 (no route in the bench has 127 bits).
            if f(if bit == 127 { 128 } else { bit as u8 }) {
                return;
            }
            map &= !(1 << bit);
        }
    }
    fn mask(addr: u128, len: u8) -> u128 {
        if len == 0 {
            0
        } else {
            addr >> (128 - u32::from(len)) << (128 - u32::from(len))
        }
    }
    fn prefetch(&self, vpc: u32, addr: u128) {
        self.each_length(vpc, |len| {
            prefetch(&self.lines[self.key(vpc, Self::mask(addr, len), len).1 as usize]);
            false
        });
    }
    fn lookup(&self, vpc: u32, addr: u128) -> u32 {
        let mut value = 0;
        self.each_length(vpc, |len| match self.find(vpc, Self::mask(addr, len), len) {
            Some((line, i)) => {
                value = self.lines[line as usize].value(i);
                true
            }
            None => false,
        });
        value
    }
    fn bytes(&self) -> usize {
        self.lines.len() * 64 + self.bitmaps.len() * if self.v6 { 16 } else { 8 }
    }
}

// ---- the second alternative: a sorted array of intervals per VPC ----

struct Sorted {
    vpcs: Vec<(Vec<u128>, Vec<u32>)>,
}

impl Sorted {
    fn intervals(routes: &[Flat]) -> (Vec<u128>, Vec<u32>) {
        let (mut uppers, mut values): (Vec<u128>, Vec<u32>) = (Vec::new(), Vec::new());
        let mut stack: Vec<(u128, u32)> = vec![(u128::MAX, 0)];
        let mut at = Some(0u128);
        let mut emit = |at: &mut Option<u128>, last: u128, value: u32| {
            if at.is_some_and(|a| a <= last) {
                uppers.push(last);
                values.push(value);
                *at = last.checked_add(1);
            }
        };
        for (_, prefix, len, value) in routes {
            while stack.last().is_some_and(|s| s.0 < *prefix) {
                let (last, v) = stack.pop().unwrap();
                emit(&mut at, last, v);
            }
            if *prefix > 0 {
                emit(&mut at, prefix - 1, stack.last().unwrap().1);
            }
            stack.push((prefix | u128::MAX.checked_shr(u32::from(*len)).unwrap_or(0), *value));
        }
        while let Some((last, v)) = stack.pop() {
            emit(&mut at, last, v);
        }
        (uppers, values)
    }
    fn new(routes: &[Flat], vpcs: u32) -> Sorted {
        let mut all = vec![(Vec::new(), Vec::new()); vpcs as usize + 1];
        for group in routes.chunk_by(|a, b| a.0 == b.0) {
            all[group[0].0 as usize] = Self::intervals(group);
        }
        Sorted { vpcs: all }
    }
    fn lookup(&self, vpc: u32, addr: u128) -> u32 {
        let (uppers, values) = &self.vpcs[vpc as usize];
        values.get(uppers.partition_point(|u| *u < addr)).copied().unwrap_or(0)
    }
    fn bytes(&self, v6: bool) -> usize {
        self.vpcs.iter().map(|v| v.0.len() * if v6 { 20 } else { 8 } + 8).sum()
    }
}

// ---- the tree, through the public API ----

fn prefix(v6: bool, p: u128, len: u8) -> Prefix {
    let addr = if v6 { IpAddr::V6(Ipv6Addr::from_bits(p)) } else { IpAddr::V4(Ipv4Addr::from_bits((p >> 96) as u32)) };
    Prefix::new_assert(addr, len)
}

fn target(value: u32) -> Target {
    match value >> 28 {
        1 => Target::Local,
        3 => Target::Blackhole,
        4 => Target::Internet,
        _ => Target::Line(0),
    }
}

fn tree(routes: &[Flat], v6: bool) -> (Writer, f64) {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut w = Writer::create(memory, WriterOptions::default()).unwrap();
    let tenant = |group: &[Flat]| TenantChange {
        vni: Vni(group[0].0),
        settings: Some(TenantSettings::default()),
        routes: RoutesChange::Replace(
            group.iter().map(|r| Route { prefix: prefix(v6, r.1, r.2), target: target(r.3) }).collect(),
        ),
        ..Default::default()
    };
    let commit = Commit { tenants: routes.chunk_by(|a, b| a.0 == b.0).map(tenant).collect(), ..Default::default() };
    let start = cpu();
    w.commit(&commit).unwrap();
    let took = cpu() - start;
    (w, took)
}

fn tree_batch(t: &Tables, roots: &[u32], v6: bool, batch: &[(u32, u128)]) -> u64 {
    let mut walks: [Option<Walk>; 64] = [None; 64];
    for (walk, p) in walks.iter_mut().zip(batch) {
        *walk = Walk::begin(roots[p.0 as usize]);
        walk.iter().for_each(|w| t.prefetch_line(w.line()));
    }
    let mut low = [false; 64];
    let mut sum = 0u64;
    loop {
        let mut live = false;
        for ((walk, low), p) in walks.iter_mut().zip(&mut low).zip(batch) {
            let Some(w) = walk else { continue };
            let value = match (v6, *low) {
                (false, _) => t.step4(w, (p.1 >> 96) as u32),
                (true, false) => t.step6(w, (p.1 >> 64) as u64),
                (true, true) => t.step6(w, p.1 as u64),
            };
            match value.map(|v| (v, if v6 && !*low { t.descend6(v) } else { None })) {
                Some((_, Some(below))) => (*walk, *low, live) = (Some(below), true, true),
                Some((value, None)) => (*walk, sum) = (None, sum + u64::from(value)),
                None => live = true,
            }
        }
        if !live {
            return sum;
        }
    }
}

struct Row {
    layout: &'static str,
    build: f64,
    one: f64,
    batch: f64,
    bytes: f64,
    update: f64,
}

fn run<B: Bucket>(name: &str, v6: bool, vpcs: u32, each: u32) {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let routes = routes(&mut rng, v6, vpcs, each);
    let n = routes.len() as f64;
    let host = |rng: &mut ChaCha8Rng, r: &Flat| {
        let noise = u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64());
        let addr = r.1 | noise & u128::MAX.checked_shr(u32::from(r.2)).unwrap_or(0);
        (r.0, if v6 { addr } else { addr >> 96 << 96 })
    };
    let mut noise = ChaCha8Rng::seed_from_u64(12);
    let packets: Vec<(u32, u128)> =
        (0..1 << 19).map(|_| rng.next_u32() as usize % routes.len()).map(|i| host(&mut noise, &routes[i])).collect();
    let per = |f: &mut dyn FnMut() -> u64| {
        median(|| {
            let start = cpu();
            black_box(f());
            (cpu() - start) * 1e9 / packets.len() as f64
        })
    };
    let mut rows = Vec::new();
    // Changes: a route of a random VPC goes and comes back with another value.
    let changes: Vec<Flat> = (0..4000).map(|_| routes[rng.next_u32() as usize % routes.len()]).collect();

    let (mut w, build) = tree(&routes, v6);
    let bytes = w.bytes_by_table().iter().find(|b| b.0 == "trees").unwrap().1 as f64 / n;
    let t = w.tables();
    let guard = t.enter();
    let roots: Vec<u32> =
        (0..=vpcs).map(|v| t.tenant(Vni(v)).map_or(0, |t| if v6 { t.root6() } else { t.root4() })).collect();
    let tree_look = |p: &(u32, u128)| {
        u64::from(if v6 {
            t.route6(roots[p.0 as usize], ((p.1 >> 64) as u64, p.1 as u64))
        } else {
            t.route4(roots[p.0 as usize], (p.1 >> 96) as u32)
        })
    };
    let one = per(&mut || packets.iter().map(tree_look).sum());
    let batch = per(&mut || packets.chunks(64).map(|b| tree_batch(&t, &roots, v6, b)).sum());
    let expected: Vec<u32> = packets.iter().map(|p| tree_look(p) as u32).collect();
    drop(guard);
    let delta = |vni, remove, add| Commit {
        tenants: vec![TenantChange { vni, routes: RoutesChange::Delta { remove, add }, ..Default::default() }],
        ..Default::default()
    };
    let start = cpu();
    for c in &changes {
        w.commit(&delta(Vni(c.0), vec![prefix(v6, c.1, c.2)], vec![])).unwrap();
        w.commit(&delta(Vni(c.0), vec![], vec![Route { prefix: prefix(v6, c.1, c.2), target: target(c.3) }])).unwrap();
    }
    let update = (cpu() - start) * 1e6 / (2 * changes.len()) as f64;
    rows.push(Row { layout: "interval tree", build, one, batch, bytes, update });
    drop(w);

    let start = cpu();
    let mut h: Hashed<B> = Hashed::new(v6, vpcs, routes.len());
    routes.iter().for_each(|r| h.insert(*r));
    let build = cpu() - start;
    let wrong = packets.iter().zip(&expected).filter(|(p, e)| h.lookup(p.0, p.1) != **e).count();
    assert_eq!(wrong, 0, "the layouts disagree");
    let one = per(&mut || packets.iter().map(|p| u64::from(h.lookup(p.0, p.1))).sum());
    let batch = per(&mut || {
        let each = |b: &[(u32, u128)]| {
            b.iter().for_each(|p| h.prefetch(p.0, p.1));
            b.iter().map(|p| u64::from(h.lookup(p.0, p.1))).sum::<u64>()
        };
        packets.chunks(64).map(each).sum()
    });
    let start = cpu();
    for c in &changes {
        h.remove(*c);
        h.insert(*c);
    }
    let update = (cpu() - start) * 1e6 / (2 * changes.len()) as f64;
    rows.push(Row { layout: "hash per length", build, one, batch, bytes: h.bytes() as f64 / n, update });
    drop(h);

    let start = cpu();
    let mut s = Sorted::new(&routes, vpcs);
    let build = cpu() - start;
    let wrong = packets.iter().zip(&expected).filter(|(p, e)| s.lookup(p.0, p.1) != **e).count();
    assert_eq!(wrong, 0, "the layouts disagree");
    let one = per(&mut || packets.iter().map(|p| u64::from(s.lookup(p.0, p.1))).sum());
    let sample = if each > 1000 { 20 } else { 2000 };
    let groups: BTreeMap<u32, Vec<Flat>> = routes.chunk_by(|a, b| a.0 == b.0).map(|g| (g[0].0, g.to_vec())).collect();
    let start = cpu();
    for c in &changes[..sample] {
        s.vpcs[c.0 as usize] = Sorted::intervals(&groups[&c.0]);
    }
    let update = (cpu() - start) * 1e6 / sample as f64;
    rows.push(Row { layout: "sorted array", build, one, batch: f64::NAN, bytes: s.bytes(v6) as f64 / n, update });

    for r in rows {
        println!(
            "| {name} | {} | {:.2} | {:.0} | {} | {:.1} | {:.1} |",
            r.layout,
            r.build,
            r.one,
            if r.batch.is_nan() { "–".into() } else { format!("{:.0}", r.batch) },
            r.bytes,
            r.update
        );
    }
}

fn main() {
    println!("| routes | layout | build of all, s | lookup alone, ns | lookup in a batch of 64, ns | bytes a route | one change, µs |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    run::<Bucket4>("IPv4, 100,000 VPCs × 10", false, 100_000, 10);
    run::<Bucket4>("IPv4, 1 VPC × 500,000", false, 1, 500_000);
    run::<Bucket6>("IPv6, 100,000 VPCs × 10", true, 100_000, 10);
    run::<Bucket6>("IPv6, 1 VPC × 500,000", true, 1, 500_000);
}
