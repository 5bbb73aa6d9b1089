// SPDX-License-Identifier: Apache-2.0
//! `program-complexity`: what lookups, branches and lines of state cost a packet ("A Scalable VPN Gateway", §4, leaves it open), on the XDP
//! program and on the Rust path, and a model of it that `tunny-lab plan split` can use.
//!
//! One program on three engines: parse, so many lookups of which each names the next one's line, so many branches that a packet decides by
//! chance, so many lines of its flow's state changed, headers written. XDP and *scalar* Rust do one packet after the other; *batched* Rust does a
//! stage for 64 packets and asks for the lines of the next stage before. The model is a sum: a fixed part, and a part for each lookup,
//! branch and line of state. It is fitted on twelve programs and held against five others.
use crate::drive::{Driver, PACKETS};
use crate::user::huge_pages;
use crate::workload::{Workload, FRAME, PACKET_SLOT};
use crate::{cpu, report, stats, Context, Error, Goal, Report};
use abi::{bucket_of, hash1, KEY_VALID, VM4_ADDR_SHIFT, VM4_VNI_SHIFT};
use figures::{Line, Plot, Scale};
use std::hint::black_box;
use std::time::Instant;

/// Bytes of the table of lookups, and of that of state.
const BYTES: [u64; 3] = [64 << 10, 8 << 20, 256 << 20];
const LOOKUPS: [u32; 6] = [0, 1, 2, 4, 8, 12];
const BRANCHES: [u32; 5] = [0, 8, 16, 32, 64];
const STATES: [u32; 5] = [0, 1, 2, 4, 8];
/// Programs with tables of the largest size that the model is fitted on: lookups, branches, lines of state.
const SEEN: [(u32, u32, u32); 12] = [
    (0, 0, 0),
    (0, 16, 4),
    (1, 8, 0),
    (2, 64, 0),
    (2, 8, 2),
    (4, 32, 1),
    (4, 0, 8),
    (8, 16, 2),
    (8, 48, 0),
    (12, 0, 1),
    (12, 32, 4),
    (12, 64, 0),
];
/// Programs that it has not seen.
const UNSEEN: [(u32, u32, u32); 5] = [(2, 40, 1), (3, 12, 1), (6, 24, 2), (10, 48, 4), (12, 64, 8)];
const SALT: u64 = 0x7475_6e6e_7921;
const BATCH: usize = 64;

/// A program.
#[derive(Clone, Copy, Debug)]
struct Shape {
    lookups: u32,
    branches: u32,
    states: u32,
    bytes: u64,
}

impl Shape {
    fn buckets(self) -> u32 {
        (self.bytes / 64) as u32
    }
}

/// ns a packet, in samples; of batches also how long one takes, µs.
#[derive(Default)]
struct Cost {
    ns: Vec<f64>,
    batch_us: Vec<f64>,
}

trait Engine {
    fn name(&self) -> &'static str;
    /// Every packet once through the program.
    fn pass(&mut self, shape: Shape, cost: &mut Cost) -> Result<(), Error>;
}

/// The XDP program `complex` of bpf/driver.bpf.c.
struct Xdp {
    driver: Driver,
}

impl Engine for Xdp {
    fn name(&self) -> &'static str {
        "xdp"
    }

    fn pass(&mut self, shape: Shape, cost: &mut Cost) -> Result<(), Error> {
        self.driver.make_complex(shape.buckets(), [shape.lookups, shape.branches, shape.states]);
        let idle = self.driver.time(self.driver.program("nothing")?, PACKETS as u32)?;
        cost.ns.push(self.driver.time(self.driver.program("complex")?, PACKETS as u32)? - idle);
        Ok(())
    }
}

/// One cache line.
#[repr(align(64))]
#[derive(Clone)]
struct Words([u64; 8]);

/// So many lines, on huge pages and written to: what nobody wrote to is one page of zeros.
fn table(lines: usize) -> Vec<Words> {
    let mut table: Vec<Words> = Vec::with_capacity(lines);
    table.resize(lines, Words([1, 0, 0, 0, 0, 0, 0, 0]));
    huge_pages(&table);
    table
}

/// The same in Rust.
struct User {
    packets: Vec<u8>,
    lookup: Vec<Words>,
    state: Vec<Words>,
    buffers: Vec<[u8; PACKET_SLOT]>,
    batched: bool,
}

fn word(frame: &[u8], at: usize) -> u64 {
    u64::from(u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]))
}

/// As `bare_key`.
#[inline(always)]
fn key(frame: &[u8; PACKET_SLOT]) -> u64 {
    let plain = frame[12..14] == [8, 0] && frame[14] == 0x45 && frame[23] == 17;
    let vxlan = frame[36..38] == 4789u16.to_be_bytes() && frame[62..64] == [8, 0];
    match plain && vxlan {
        true => (word(frame, 46) >> 8) << VM4_VNI_SHIFT | word(frame, 80) << VM4_ADDR_SHIFT | KEY_VALID,
        false => 0,
    }
}

#[inline(always)]
fn branches(mut hash: u64, bits: u64, count: u32) -> u64 {
    for i in 0..count {
        // What is opaque to the compiler keeps both ways apart.
        if bits >> i & 1 == 1 {
            hash = black_box(hash.wrapping_add(0x9e37));
        } else {
            hash = black_box(hash ^ hash >> 7);
        }
    }
    hash
}

#[inline(always)]
fn change(line: &mut [u64; 8], hash: u64) {
    line[0] += 1;
    line[1] += FRAME as u64;
    line[2] = hash;
}

#[inline(always)]
fn write(frame: &mut [u8; PACKET_SLOT], hash: u64) {
    frame[50..54].copy_from_slice(&(hash as u32).to_ne_bytes());
    frame[54..56].copy_from_slice(&((hash >> 32) as u16).to_ne_bytes());
    frame[30..34].copy_from_slice(&((hash >> 32) as u32).to_ne_bytes());
}

fn state_of(key: u64, n: u32, buckets: u32) -> usize {
    bucket_of(hash1(key, SALT + 64 + u64::from(n)), buckets) as usize
}

impl User {
    fn scalar(&mut self, shape: Shape) {
        let buckets = shape.buckets();
        for frame in &mut self.buffers {
            let key = key(frame);
            let mut hash = hash1(key, SALT);
            for i in 0..shape.lookups {
                let line = &self.lookup[bucket_of(hash, buckets) as usize].0;
                hash = hash1(line[0] ^ key, SALT + 1 + u64::from(i));
            }
            hash = branches(hash, hash1(key ^ hash, SALT), shape.branches);
            for i in 0..shape.states {
                change(&mut self.state[state_of(key, i, buckets)].0, hash);
            }
            write(frame, hash);
        }
    }

    fn stages(&mut self, shape: Shape) {
        let buckets = shape.buckets();
        let (mut keys, mut hashes) = ([0u64; BATCH], [0u64; BATCH]);
        let lookup = &self.lookup;
        for (n, frame) in self.buffers.iter().enumerate() {
            keys[n] = key(frame);
            hashes[n] = hash1(keys[n], SALT);
        }
        for i in 0..shape.lookups {
            for hash in &hashes {
                cpu::prefetch(lookup[bucket_of(*hash, buckets) as usize].0.as_ptr().cast());
            }
            for (hash, key) in hashes.iter_mut().zip(&keys) {
                let line = &lookup[bucket_of(*hash, buckets) as usize].0;
                *hash = hash1(line[0] ^ key, SALT + 1 + u64::from(i));
            }
        }
        for (hash, key) in hashes.iter_mut().zip(&keys) {
            *hash = branches(*hash, hash1(key ^ *hash, SALT), shape.branches);
        }
        let state = &mut self.state;
        for i in 0..shape.states {
            for key in &keys {
                cpu::prefetch(state[state_of(*key, i, buckets)].0.as_ptr().cast());
            }
            for (key, hash) in keys.iter().zip(&hashes) {
                change(&mut state[state_of(*key, i, buckets)].0, *hash);
            }
        }
        for (frame, hash) in self.buffers.iter_mut().zip(&hashes) {
            write(frame, *hash);
        }
    }

    /// Copies the next batch in, as a port does, and asks for the one after.
    fn receive(&mut self, from: usize) {
        let slots = self.packets[from..].chunks_exact(PACKET_SLOT);
        for (slot, buffer) in slots.zip(&mut self.buffers) {
            cpu::prefetch(slot.as_ptr().wrapping_add(BATCH * PACKET_SLOT));
            cpu::prefetch(slot.as_ptr().wrapping_add(BATCH * PACKET_SLOT + 64));
            buffer[..FRAME].copy_from_slice(&slot[..FRAME]);
        }
    }
}

impl Engine for User {
    fn name(&self) -> &'static str {
        if self.batched {
            "user_batched"
        } else {
            "user_scalar"
        }
    }

    fn pass(&mut self, shape: Shape, cost: &mut Cost) -> Result<(), Error> {
        let step = BATCH * PACKET_SLOT;
        let time = cpu::thread_time();
        for from in (0..self.packets.len()).step_by(step) {
            self.receive(from);
            match self.batched {
                true => self.stages(shape),
                false => self.scalar(shape),
            }
        }
        let packets = self.packets.len() / PACKET_SLOT;
        cost.ns.push((cpu::thread_time() - time) as f64 / packets as f64);
        // How long a batch is in the program, of some.
        for from in (0..self.packets.len()).step_by(step * 64) {
            self.receive(from);
            let start = Instant::now();
            match self.batched {
                true => self.stages(shape),
                false => self.scalar(shape),
            }
            cost.batch_us.push(start.elapsed().as_nanos() as f64 / 1e3);
        }
        Ok(())
    }
}

/// The solution of linear equations by elimination: rows of coefficients and right sides.
fn solve<const N: usize>(mut rows: [[f64; N]; N], mut right: [f64; N]) -> [f64; N] {
    for i in 0..N {
        let pivot = (i..N).max_by(|a, b| rows[*a][i].abs().total_cmp(&rows[*b][i].abs())).unwrap_or(i);
        rows.swap(i, pivot);
        right.swap(i, pivot);
        for j in (0..N).filter(|j| *j != i) {
            let factor = rows[j][i] / rows[i][i];
            let row = rows[i];
            rows[j].iter_mut().zip(row).for_each(|(to, from)| *to -= factor * from);
            right[j] -= factor * right[i];
        }
    }
    std::array::from_fn(|i| right[i] / rows[i][i])
}

/// Coefficients of least squares for points (variables, value), errors relative to the value.
fn fit<const N: usize>(points: &[([f64; N], f64)]) -> [f64; N] {
    let (mut rows, mut right) = ([[0.0; N]; N], [0.0; N]);
    for (x, y) in points {
        let scaled = x.map(|x| x / y);
        for i in 0..N {
            (0..N).for_each(|j| rows[i][j] += scaled[i] * scaled[j]);
            right[i] += scaled[i];
        }
    }
    solve(rows, right)
}

fn terms((lookups, branches, states): (u32, u32, u32)) -> [f64; 4] {
    [1.0, f64::from(lookups), f64::from(branches), f64::from(states)]
}

/// What was found of one engine.
struct Found {
    /// ns: the fixed part, a lookup, a branch, a line of state, in tables of the largest size.
    model: [f64; 4],
    /// A lookup by bytes of the table: what one more costs a program that does nothing else.
    lookup: Vec<f64>,
    /// Of programs that the model has not seen, percent.
    errors: Vec<f64>,
    lines: Vec<Line>,
    /// Points of each curve: count, ns a packet, and of batches p50 and p99 of a batch, us.
    points: Vec<(String, Vec<Vec<f64>>)>,
    /// The largest spread of the samples of a point.
    spread: f64,
}

/// An engine under measurement.
struct Examined<'a> {
    context: &'a Context<'a>,
    engine: &'a mut dyn Engine,
    found: Found,
}

impl Examined<'_> {
    /// ns a packet; of batches p50 and p99 of a batch too.
    fn measure(&mut self, what: &str, shape: Shape) -> Result<Vec<f64>, Error> {
        self.context.say(&format!("program-complexity: {}, {what}", self.engine.name()));
        let (mut warm, mut cost) = (Cost::default(), Cost::default());
        self.engine.pass(shape, &mut warm)?;
        for _ in 0..self.context.samples {
            self.engine.pass(shape, &mut cost)?;
        }
        self.found.spread = self.found.spread.max(stats::spread(&cost.ns));
        let mut point = vec![stats::median(&cost.ns)];
        if !cost.batch_us.is_empty() {
            point.extend([0.5, 0.99].map(|q| stats::quantile(&cost.batch_us, q)));
        }
        Ok(point)
    }

    /// Programs that differ in one count. What one more of it costs.
    fn curve(&mut self, label: &str, counts: &[u32], shape: impl Fn(u32) -> Shape) -> Result<f64, Error> {
        let mut points = vec![];
        for n in counts {
            let mut point = vec![f64::from(*n)];
            point.extend(self.measure(&format!("{n} {label}"), shape(*n))?);
            points.push(point);
        }
        let rates = points.iter().map(|p| (p[0], 1e3 / p[1])).collect();
        let name = format!("{}, {label}", self.engine.name());
        self.found.lines.push(Line { name, points: rates, dashed: false });
        let variables: Vec<([f64; 2], f64)> = points.iter().map(|p| ([1.0, p[0]], p[1])).collect();
        self.found.points.push((label.replace(' ', "_"), points));
        Ok(fit(&variables)[1])
    }

    /// Programs over the largest tables, as the model sees them.
    fn programs(&mut self, programs: &[(u32, u32, u32)]) -> Result<Vec<([f64; 4], f64)>, Error> {
        let bytes = BYTES[BYTES.len() - 1];
        let point = |p: &(u32, u32, u32)| {
            let (lookups, branches, states) = *p;
            let what = format!("{lookups} lookups, {branches} branches, {states} lines");
            Ok((terms(*p), self.measure(&what, Shape { lookups, branches, states, bytes })?[0]))
        };
        programs.iter().map(point).collect()
    }

    fn all(mut self) -> Result<Found, Error> {
        let plain = |bytes| Shape { lookups: 0, branches: 0, states: 0, bytes };
        for bytes in BYTES {
            let label = format!("lookups in {} KiB", bytes >> 10);
            let one = self.curve(&label, &LOOKUPS, |lookups| Shape { lookups, ..plain(bytes) })?;
            self.found.lookup.push(one);
        }
        let largest = BYTES[BYTES.len() - 1];
        self.curve("branches", &BRANCHES, |branches| Shape { branches, ..plain(largest) })?;
        self.curve("lines of state", &STATES, |states| Shape { states, ..plain(largest) })?;
        let model = fit(&self.programs(&SEEN)?);
        let predict = |x: &[f64; 4]| x.iter().zip(&model).map(|(x, m)| x * m).sum::<f64>();
        let unseen = self.programs(&UNSEEN)?;
        self.found.errors = unseen.iter().map(|(x, ns)| 100.0 * (predict(x) / ns - 1.0)).collect();
        Ok(Found { model, ..self.found })
    }
}

fn examine(context: &Context<'_>, engine: &mut dyn Engine) -> Result<Found, Error> {
    let found = Found { model: [0.0; 4], lookup: vec![], errors: vec![], lines: vec![], points: vec![], spread: 0.0 };
    Examined { context, engine, found }.all()
}

/// The figures of one engine.
fn describe(report: &mut Report, name: &str, found: &Found) {
    for (label, points) in &found.points {
        let rounded: Vec<Vec<f64>> = points.iter().map(|p| p.iter().map(|v| report::round(*v)).collect()).collect();
        report.detail(&format!("{name}_{label}"), serde_json::json!(rounded));
    }
    for (bytes, ns) in BYTES.iter().zip(&found.lookup) {
        report.detail(&format!("{name}_lookup_in_{}k_ns", bytes >> 10), report::round(*ns));
    }
    for (what, ns) in ["fixed", "lookup", "branch", "state_line"].iter().zip(found.model) {
        report.detail(&format!("{name}_model_{what}_ns"), report::round(ns));
    }
    let errors: Vec<f64> = found.errors.iter().map(|e| report::round(*e)).collect();
    report
        .detail(&format!("{name}_errors_percent"), serde_json::json!(errors))
        .detail(&format!("{name}_worst_spread"), report::round(found.spread));
}

/// `program-complexity`.
pub fn program_complexity(context: &Context) -> Result<Report, Error> {
    let workload = Workload::region(100_000, 10, 4096, context.seed);
    let packets = workload.packets(PACKETS, 20, context.seed);
    cpu::pin(0, cpu::count() - 1).map_err(Error::io("pinning the driver"))?;
    let lines = (BYTES[BYTES.len() - 1] / 64) as usize;
    let user = |batched| {
        Box::new(User {
            packets: packets.clone(),
            lookup: table(lines),
            state: table(lines),
            buffers: vec![[0; PACKET_SLOT]; BATCH],
            batched,
        })
    };
    let mut engines: [Box<dyn Engine>; 3] =
        [Box::new(Xdp { driver: Driver::complex(&packets, lines as u32)? }), user(false), user(true)];
    let mut found = vec![];
    for engine in &mut engines {
        found.push((engine.name(), examine(context, engine.as_mut())?));
    }
    let worst = found.iter().flat_map(|(_, f)| &f.errors).map(|e| e.abs()).fold(0.0, f64::max);
    let compared = "the worst of five programs on three engines that the model was not fitted on: predicted ns a packet ÷ measured";
    let mut report =
        Report::new("program-complexity", "percent error", vec![worst], Some(Goal::AtMost(25.0)), compared);
    for (name, found) in &found {
        describe(&mut report, name, found);
    }
    for (kind, x) in
        [("lookups", "lookups a packet"), ("branches", "branches a packet"), ("state", "lines of state a packet")]
    {
        report.plots.push(Plot {
            name: kind,
            title: format!("Packets a second on one core by {x}"),
            x: x.into(),
            y: "million packets a second".into(),
            scales: [Scale::Linear; 2],
            lines: found.iter().flat_map(|(_, f)| &f.lines).filter(|l| l.name.contains(kind)).cloned().collect(),
            ..Plot::default()
        });
    }
    report.detail("workload", "1M packets of as many flows, tables of 64 KiB, 8 MiB and 256 MiB, branches and state over those of 256 MiB; XDP net of the driver");
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both forms in Rust do the same: the same state, the same headers.
    #[test]
    fn scalar_and_batched_programs_agree() {
        let workload = Workload::region(40, 10, 16, 7);
        let packets = workload.packets(BATCH * 4, 20, 7);
        let shape = Shape { lookups: 5, branches: 20, states: 3, bytes: 64 << 10 };
        let run = |batched| {
            let mut user = User {
                packets: packets.clone(),
                lookup: table(1024),
                state: table(1024),
                buffers: vec![[0; PACKET_SLOT]; BATCH],
                batched,
            };
            user.pass(shape, &mut Cost::default()).unwrap();
            user.receive(0);
            if batched {
                user.stages(shape);
            } else {
                user.scalar(shape);
            }
            // Which of two packets wrote last to a line that both have depends on the order.
            (user.buffers, user.state.iter().map(|l| [l.0[0], l.0[1]]).collect::<Vec<_>>())
        };
        assert_eq!(run(true), run(false));
        assert!(run(true).1.iter().any(|l| l[1] > 0));
    }

    #[test]
    fn the_model_is_found_again() {
        let known = [7.0, 90.0, 1.5, 30.0];
        let points = SEEN.map(|p| (terms(p), terms(p).iter().zip(known).map(|(x, k)| x * k).sum()));
        fit(&points).iter().zip(known).for_each(|(a, b)| assert!((a - b).abs() < 1e-6, "{a} instead of {b}"));
    }
}
