// SPDX-License-Identifier: Apache-2.0
//! Traffic made for a pipeline whose traffic is not known, and what becomes of traffic in a pipeline.
use super::generate::{trace, Packet, Parameters};
use super::input::Trace;
use pipeline::{Conntrack, Field, Key, Pipeline};
use rand::{Rng, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::collections::{HashMap, HashSet};

/// What becomes of traffic in the pipeline itself, whatever cache is before it.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Fate {
    /// Where it is from: `made` for the pipeline, a `trace`, or a `pcap` file.
    pub source: &'static str,
    /// The table in which packets begin.
    pub first_table: String,
    /// Packets.
    pub packets: u64,
    /// Those of which nothing is sent anywhere.
    pub dropped: u64,
    /// Those among them that got no further than the first table.
    pub dropped_in_first_table: u64,
    /// Packets of the file that could not be read, and are not in the trace.
    pub left_out: u64,
}

impl Fate {
    /// Counts. A packet stands for all of its header, with a connection that is new; it is `lead` lookups until the first table.
    pub fn count(&mut self, pipeline: &Pipeline, headers: &[Key], packets: &[Packet], lead: usize) {
        let one = |key: &Key| {
            let journey = pipeline.run(key, &mut Conntrack::new(16), 0);
            let steps = journey.passes.iter().map(|p| p.steps.len()).sum::<usize>();
            (journey.outputs.is_empty(), steps <= lead + 1)
        };
        let fates: Vec<(bool, bool)> = headers.iter().map(one).collect();
        let dropped = packets.iter().filter_map(|p| fates.get(p.flow as usize)).filter(|f| f.0);
        self.packets = packets.len() as u64;
        (self.dropped, self.dropped_in_first_table) =
            dropped.fold((0, 0), |(all, first), fate| (all + 1, first + u64::from(fate.1)));
    }
}

/// Traffic for a pipeline of which only the flows are known: headers are changed at random, towards values that its flows match, and
/// those that go a new way are kept and changed further. The flows of the trace are then drawn from what was found, with free bits
/// (those that the pipeline did not look at) at random.
pub fn explore(pipeline: &Pipeline, tries: usize, parameters: &Parameters, seed: u64) -> Trace {
    let mut random = SplitMix64::seed_from_u64(seed);
    let values = values(pipeline);
    let mut found: Vec<(Key, usize)> = vec![(Key::default(), 1)];
    let mut seen = HashSet::new();
    for _ in 0..tries {
        let mut key = found[(random.next_u64() % found.len() as u64) as usize].0;
        for _ in 0..1 + random.next_u64() % 4 {
            change(&mut key, &values, &mut random);
        }
        let journey = pipeline.run(&key, &mut Conntrack::new(16), 0);
        let table_path: Vec<_> = journey.passes.iter().flat_map(|p| p.rules()).collect();
        let steps = journey.passes.iter().map(|p| p.steps.len()).sum();
        if seen.insert(table_path) {
            found.push((key, steps));
        }
    }
    // Long ways are what traffic is about; what is dropped at once is a tenth of it.
    let longest = found.iter().map(|f| f.1).max().unwrap_or(1);
    let (long, short): (Vec<_>, Vec<_>) = found.into_iter().partition(|f| f.1 * 2 > longest);
    let pick = |random: &mut SplitMix64| {
        let from = if short.is_empty() || !random.next_u64().is_multiple_of(10) { &long } else { &short };
        from[(random.next_u64() % from.len() as u64) as usize].0
    };
    let mut headers = Vec::with_capacity(parameters.flows);
    for _ in 0..parameters.flows {
        let mut key = pick(&mut random);
        if matches!(key.get(Field::NwProto), 6 | 17) && key.get(Field::EthType) != 0x0806 {
            key.set(Field::TcpSrc, 1024 + u128::from(random.next_u64() % 60_000));
        }
        headers.push(key);
    }
    let packets = trace(headers.len(), parameters, &mut random);
    Trace { headers, packets, known: HashMap::new() }
}

/// Fields that a packet has, and what flows match in them.
const EXPLORED: [Field; 15] = [
    Field::InPort,
    Field::EthSrc,
    Field::EthDst,
    Field::EthType,
    Field::VlanTci,
    Field::NwSrc,
    Field::NwDst,
    Field::NwProto,
    Field::TcpSrc,
    Field::TcpDst,
    Field::ArpSha,
    Field::Ipv6Src,
    Field::Ipv6Dst,
    Field::TunId,
    Field::TunMetadata0,
];

fn values(pipeline: &Pipeline) -> Vec<(Field, Vec<(u128, u128)>)> {
    let mut all: Vec<(Field, Vec<(u128, u128)>)> = EXPLORED.iter().map(|f| (*f, Vec::new())).collect();
    let mut rules: Vec<_> = pipeline.rules().collect();
    rules.sort_by_key(|(id, _)| *id);
    for (_, rule) in rules {
        let m = rule.matching();
        for (field, seen) in &mut all {
            let mask = m.mask.get(*field);
            if mask != 0 && seen.len() < 4096 && !seen.contains(&(m.key.get(*field), mask)) {
                seen.push((m.key.get(*field), mask));
            }
        }
    }
    all.retain(|(_, seen)| !seen.is_empty());
    all
}

fn change(key: &mut Key, values: &[(Field, Vec<(u128, u128)>)], random: &mut SplitMix64) {
    let Some((field, seen)) = values.get((random.next_u64() % values.len().max(1) as u64) as usize) else { return };
    let (value, mask) = seen[(random.next_u64() % seen.len() as u64) as usize];
    let noise = u128::from(random.next_u64()) << 64 | u128::from(random.next_u64());
    let free = if random.next_u64().is_multiple_of(2) { noise } else { 0 };
    key.set(*field, value & mask | free & !mask);
    let ip = matches!(field, Field::NwSrc | Field::NwDst | Field::NwProto | Field::TcpSrc | Field::TcpDst);
    if ip && key.get(Field::EthType) != 0x0800 {
        key.set(Field::EthType, 0x0800);
        key.set(Field::NwTtl, 64);
    }
    if matches!(field, Field::TcpSrc | Field::TcpDst) && !matches!(key.get(Field::NwProto), 6 | 17) {
        key.set(Field::NwProto, if random.next_u64().is_multiple_of(2) { 6 } else { 17 });
    }
    if key.get(Field::VlanTci) & 0x1000 != 0 {
        key.set(Field::VlanTpid, 0x8100);
    }
}
