// SPDX-License-Identifier: Apache-2.0
//! Traffic that is mixed, and traffic made to hurt: what no rule set from outside contains.
//!
//! Two kinds of flows are put together. *Crossed* flows combine few sources, destinations and services in every way: whoever caches whole traversals
//! has to see each combination, whoever caches parts has them soon. *Lone* flows share nothing with each other, not a prefix and not
//! a port: cut into K parts each costs K entries that serve nobody else. Sizes are shares of the number of entries that the caches have in all, so that
//! a smaller experiment is the same experiment.
//!
//! Each pattern aims at one decision: [`Traffic::Lone`] and [`Traffic::Bursts`] at cutting at all, [`Traffic::Phases`] and
//! [`Traffic::Flip`] at how fast it is given up and taken up again, [`Traffic::Pairs`] at which lookups are put together, [`Traffic::Reveal`] at what
//! of the program is known, [`Traffic::Mixed`] at telling flows apart that come at the same time.
use super::generate::{Emitter, Packet, Parameters, Workload};
use super::models::Model;
use super::rules::{Ports, Rule, ANY};
use rand::{Rng, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::collections::HashMap;
use std::net::Ipv4Addr;

named! {
    /// A pattern.
    pub enum Traffic {
        /// Half of the packets of crossed flows, half of lone ones that fit into half of the entries.
        Mixed = "mixed",
        /// Lone flows that just fit as whole entries.
        Lone = "lone",
        /// Ever new lone flows of three packets each, which come back just before a cache of whole entries forgets them.
        Bursts = "bursts",
        /// Crossed and lone flows in turns, each for eight times as many packets as there are entries.
        Phases = "phases",
        /// The same in turns as long as an epoch of the adaptive cache.
        Flip = "flip",
        /// Crossed flows in which the destination depends on the source, then ones in which the service depends on the destination, in turns.
        Pairs = "pairs",
        /// Crossed flows on ever more ways of the pipeline, those with least in common with the first one last.
        Reveal = "reveal",
    }
}

impl Traffic {
    /// The pattern of this name.
    pub fn named(name: &str) -> Option<Traffic> {
        Traffic::ALL.into_iter().find(|t| t.name() == name)
    }
}

/// How much.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Size {
    /// Entries that the caches to be compared have in all.
    pub entries: usize,
    /// Packets.
    pub packets: usize,
}

/// Makes it for a model.
pub fn traffic(model: &Model, what: Traffic, size: Size, seed: u64) -> Workload {
    let parameters = Parameters::FIXED;
    let random = SplitMix64::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6d69_7865_6421);
    let mut maker = Maker { model, out: Emitter::new(model, &parameters), flows: HashMap::new(), random, size };
    let step = parameters.duration / size.packets.max(1) as u64;
    let packets = (0..size.packets).map(|n| Packet { time: n as u64 * step, flow: maker.packet(what, n) }).collect();
    let (flows, headers) = maker.out.finish();
    Workload { name: format!("{}-{}", model.name, what.name()), flows, headers, packets }
}

struct Maker<'a> {
    model: &'a Model,
    out: Emitter<'a>,
    /// Flows by what they are.
    flows: HashMap<(Which, u64), u32>,
    random: SplitMix64,
    size: Size,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Which {
    Crossed,
    Lone,
    BySource,
    ByDestination,
}

impl Maker<'_> {
    /// Sources, destinations and services of crossed flows, each: an eighth of the entries for each pair of them, as a table that matches both
    /// needs.
    fn crossing(&self) -> u64 {
        ((self.size.entries / 8) as f64).sqrt() as u64 + 1
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random.next_u64() % n.max(1)
    }

    fn packet(&mut self, what: Traffic, n: usize) -> u32 {
        let (n, entries) = (n as u64, self.size.entries as u64);
        let turn = |length: u64| (n / length.max(1)).is_multiple_of(2);
        match what {
            Traffic::Mixed if n % 2 == 0 => self.crossed(),
            Traffic::Mixed => self.lone(entries / 2),
            Traffic::Lone => self.lone(entries * 9 / 10),
            Traffic::Bursts => {
                let (width, round) = (entries * 8 / 10, n / (entries * 8 / 10).max(1));
                let index = (round / 3) * width + n % width.max(1);
                self.flow(Which::Lone, index)
            }
            Traffic::Phases if turn(8 * entries) => self.crossed(),
            Traffic::Phases => self.lone(entries * 9 / 10),
            Traffic::Flip if turn(entries) => self.crossed(),
            Traffic::Flip => self.lone(entries * 9 / 10),
            Traffic::Pairs => {
                let which = if turn(6 * entries) { Which::BySource } else { Which::ByDestination };
                let index = self.below(8 * entries);
                self.flow(which, index)
            }
            Traffic::Reveal => {
                let table_paths = self.model.table_paths.len() as u64;
                let known = 1 + n * table_paths / self.size.packets.max(1) as u64;
                let index = self.below(8 * entries) * table_paths + self.below(known.min(table_paths));
                self.flow(Which::Crossed, index)
            }
        }
    }

    /// One of eight times as many crossed flows as there are entries.
    fn crossed(&mut self) -> u32 {
        let index = self.below(8 * self.size.entries as u64) * self.model.table_paths.len() as u64;
        let table_path = self.below(self.model.table_paths.len() as u64);
        self.flow(Which::Crossed, index + table_path)
    }

    fn lone(&mut self, most: u64) -> u32 {
        let index = self.below(most);
        self.flow(Which::Lone, index)
    }

    /// The flow of this number; crossed ones say their way by it.
    fn flow(&mut self, which: Which, index: u64) -> u32 {
        if let Some(flow) = self.flows.get(&(which, index)) {
            return *flow;
        }
        let (table_paths, crossed) = (self.model.table_paths.len() as u64, self.crossing());
        // What a flow is depends on its number alone.
        let mut state = SplitMix64::seed_from_u64(index ^ (which as u64) << 56);
        let mut draw = |n: u64| state.next_u64() % n;
        let (rule, table_path) = match which {
            Which::Crossed => (rule(draw(crossed), draw(crossed), None, draw(crossed)), index % table_paths),
            Which::Lone => {
                (rule(1_000 + index, 1_000 + index, Some(index % 50_000), 1_000 + index % 60_000), draw(table_paths))
            }
            Which::BySource => {
                let (source, service) = (draw(crossed * 8), draw(crossed));
                (rule(source, source, None, service), draw(table_paths))
            }
            Which::ByDestination => {
                let (source, destination) = (draw(crossed), draw(crossed * 8));
                (rule(source, destination, None, destination), draw(table_paths))
            }
        };
        let flow = self.out.flow(&rule, table_path as usize, &mut self.random);
        self.flows.insert((which, index), flow);
        flow
    }
}

/// A rule for single addresses and ports.
fn rule(source: u64, destination: u64, sport: Option<u64>, dport: u64) -> Rule {
    // Neighbours in number are not neighbours as addresses: prefixes do not cover them together.
    let spread = |n: u64| (n as u32).wrapping_mul(0x9e37_79b1);
    let host = |address: u32| Ipv4Addr::from(address).into();
    let exact = |port: u64| -> Ports { (1 + port as u16, 1 + port as u16) };
    Rule {
        src: host(spread(source)),
        dst: host(spread(destination) ^ 0x5555_5555),
        sport: sport.map_or(ANY, exact),
        dport: exact(dport),
        protocol: Some(6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::models;

    #[test]
    fn patterns_are_what_they_say() {
        let model = models::named("psc").unwrap();
        let size = Size { entries: 200, packets: 8_000 };
        for what in Traffic::ALL {
            let (one, two) = (traffic(&model, what, size, 5), traffic(&model, what, size, 5));
            assert!(one.headers == two.headers && one.packets == two.packets && one.flows == two.flows, "{what:?}");
            assert_eq!((one.packets.len(), Traffic::named(what.name())), (8_000, Some(what)));
            let distinct: std::collections::HashSet<_> = one.packets.iter().map(|p| p.flow).collect();
            assert_eq!(distinct.len(), one.headers.len(), "{what:?}: every flow is sent");
        }
        let lone = traffic(&model, Traffic::Lone, size, 1);
        let source = |k: &pipeline::Key| k.get(pipeline::Field::NwSrc);
        let sources: std::collections::HashSet<_> = lone.headers.iter().map(source).collect();
        assert_eq!((sources.len(), lone.headers.len()), (180, 180), "nobody shares a source");
        let crossed = traffic(&model, Traffic::Reveal, size, 1);
        let sources: std::collections::HashSet<_> = crossed.headers.iter().map(source).collect();
        assert!(sources.len() == 6 && crossed.headers.len() > 300, "{}", crossed.headers.len());
        let bursts = traffic(&model, Traffic::Bursts, size, 1);
        let mut sent = vec![0; bursts.headers.len()];
        bursts.packets.iter().for_each(|p| sent[p.flow as usize] += 1);
        assert!(sent.iter().filter(|n| **n == 3).count() * 10 > sent.len() * 9, "three packets each");
    }
}
