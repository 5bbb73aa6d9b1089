// SPDX-License-Identifier: Apache-2.0
//! From a pipeline model and a rule set to flow tables, packet headers and a packet trace, all from one seed.
//!
//! The recipe is the published one: draw a way through the pipeline, draw a rule, spread the rule's fields over the tables on the
//! way (each table gets what it matches), draw a header inside the rule; repeat. High locality draws rules by how often their
//! source, destination and service recur in the set, low locality draws them evenly. [`Parameters::FIXED`] holds the only
//! figures; they were chosen once, for all pipelines, before any result was looked at.
use super::models::{Does, Match, Model, TableModel};
use super::rules::{recurrence, Ports, Rule, ANY};
use abi::{Ipv4Net, Mac};
use pipeline::{Field, Key};
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::collections::HashSet;
use std::fmt::Write as _;

/// Whether flows share parts of their ways much or little.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Locality {
    /// Rules are weighted by how often their parts recur.
    High,
    /// Rules are drawn evenly.
    Low,
}

/// The generator's figures.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Parameters {
    /// Flows.
    pub flows: usize,
    /// Length of the trace, ns.
    pub duration: u64,
    /// Flow sizes, packets: a bounded Pareto distribution with this exponent, minimum and maximum.
    pub size: (f64, f64, f64),
    /// Gaps between packets of a flow, seconds: likewise.
    pub gap: (f64, f64, f64),
    /// Ports of each role.
    pub ports: u64,
}

impl Parameters {
    /// The figures of every published run.
    pub const FIXED: Parameters = Parameters {
        flows: 100_000,
        duration: 60_000_000_000,
        size: (1.2, 1.0, 2000.0),
        gap: (1.1, 0.5, 30.0),
        ports: 16,
    };

    /// The same with another number of flows: for tests, and for the 2M flows of the rule change.
    pub fn with_flows(flows: usize) -> Parameters {
        Parameters { flows, ..Parameters::FIXED }
    }
}

/// One packet of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// When it arrives, ns from the beginning.
    pub time: u64,
    /// Its header, an index.
    pub flow: u32,
}

/// A pipeline with its traffic.
#[derive(Debug)]
pub struct Workload {
    /// What it is called.
    pub name: String,
    /// Flow tables in `ovs-ofctl add-flows` syntax.
    pub flows: String,
    /// Distinct packet headers.
    pub headers: Vec<Key>,
    /// The trace.
    pub packets: Vec<Packet>,
}

/// Makes the workload of a model.
pub fn generate(model: &Model, rules: &[Rule], locality: Locality, parameters: &Parameters, seed: u64) -> Workload {
    let mut random = SplitMix64::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x7475_6e6e_7963_6163);
    let mut out = Emitter::new(model, parameters);
    let draw = Draw::new(rules, locality);
    for _ in 0..parameters.flows {
        let table_path = (random.next_u64() % model.table_paths.len() as u64) as usize;
        out.flow(&rules[draw.pick(&mut random)], table_path, &mut random);
    }
    let (flows, headers) = out.finish();
    let packets = trace(headers.len(), parameters, &mut random);
    Workload { name: model.name.to_string(), flows, headers, packets }
}

/// Draws rules with weights.
struct Draw {
    sums: Vec<f64>,
}

impl Draw {
    fn new(rules: &[Rule], locality: Locality) -> Draw {
        let weights = match locality {
            Locality::High => recurrence(rules),
            Locality::Low => vec![1.0; rules.len()],
        };
        let sums = weights.iter().scan(0.0, |sum, w| {
            *sum += w;
            Some(*sum)
        });
        Draw { sums: sums.collect() }
    }

    fn pick(&self, random: &mut SplitMix64) -> usize {
        let at = random.random::<f64>() * self.sums.last().copied().unwrap_or(0.0);
        self.sums.partition_point(|&s| s <= at).min(self.sums.len() - 1)
    }
}

/// A bounded Pareto variate: heavy-tailed between `low` and `high`.
fn pareto((exponent, low, high): (f64, f64, f64), random: &mut SplitMix64) -> f64 {
    let tail = (low / high).powf(exponent);
    low / (1.0 - random.random::<f64>() * (1.0 - tail)).powf(1.0 / exponent)
}

/// The packets of all flows in order of time. A flow begins at any time; what would come after the end is left out.
pub fn trace(flows: usize, parameters: &Parameters, random: &mut SplitMix64) -> Vec<Packet> {
    let mut packets = Vec::with_capacity(flows * 5);
    for flow in 0..flows as u32 {
        let mut time = random.next_u64() % parameters.duration;
        for n in 0..pareto(parameters.size, random) as u64 {
            if n > 0 {
                time += (pareto(parameters.gap, random) * 1e9) as u64;
            }
            if time >= parameters.duration {
                break;
            }
            packets.push(Packet { time, flow });
        }
    }
    packets.sort_unstable_by_key(|p| (p.time, p.flow));
    packets
}

/// A number that depends on these words only.
fn hash(a: u64, b: u64) -> u64 {
    SplitMix64::seed_from_u64(a.wrapping_mul(0xff51_afd7_ed55_8ccd) ^ b).next_u64()
}

fn code(prefix: Ipv4Net) -> u64 {
    u64::from(prefix.addr().to_bits()) << 8 | u64::from(prefix.prefix_len())
}

/// An address in a prefix.
fn pick(prefix: Ipv4Net, random: u64) -> u32 {
    prefix.addr().to_bits() | random as u32 & prefix.hostmask().to_bits()
}

/// Who sends a flow, and whom it meets on layer 2.
struct Sender {
    port: u16,
    vlan: u16,
    tenant: u64,
    eth_src: u64,
    eth_dst: u64,
}

impl Sender {
    fn new(model: &Model, parameters: &Parameters, rule: &Rule, table_path: usize, random: &mut SplitMix64) -> Sender {
        let by_source = hash(1, code(rule.src));
        let any = random.next_u64();
        let member = if model.port_by_source { by_source } else { any } % parameters.ports;
        Sender {
            port: (1 + table_path as u64 * parameters.ports + member) as u16,
            vlan: 10 + (hash(2, code(rule.src)) % 8) as u16,
            tenant: 1 + member % 8,
            eth_src: 0x02_00_00_00_00_00 | hash(3, code(rule.src)) & 0xff_ffff,
            eth_dst: 0x02_00_01_00_00_00 | hash(4, code(rule.dst)) & 0xff_ffff,
        }
    }
}

fn header(rule: &Rule, sender: &Sender, random: &mut SplitMix64) -> Key {
    let mut key = Key::default();
    key.set(Field::InPort, sender.port.into());
    key.set(Field::EthSrc, sender.eth_src.into());
    key.set(Field::EthDst, sender.eth_dst.into());
    key.set(Field::VlanTpid, 0x8100);
    key.set(Field::VlanTci, u128::from(0x1000 | sender.vlan));
    key.set(Field::EthType, 0x0800);
    key.set(Field::NwSrc, pick(rule.src, random.next_u64()).into());
    key.set(Field::NwDst, pick(rule.dst, random.next_u64()).into());
    key.set(Field::NwTtl, 64);
    let protocol = rule.protocol.unwrap_or(6);
    key.set(Field::NwProto, protocol.into());
    if matches!(protocol, 6 | 17) {
        key.set(Field::TcpSrc, port(rule.sport, random).into());
        key.set(Field::TcpDst, port(rule.dport, random).into());
    }
    key
}

fn port((low, high): Ports, random: &mut SplitMix64) -> u16 {
    low + (random.next_u64() % (u64::from(high - low) + 1)) as u16
}

/// The flow tables while they are being filled.
struct Tables<'a> {
    model: &'a Model,
    parts: Vec<bool>,
    seen: HashSet<[u64; 6]>,
    text: String,
}

/// Flows one by one, each with a rule and a way that somebody else chose.
pub(super) struct Emitter<'a> {
    tables: Tables<'a>,
    parameters: Parameters,
    headers: Vec<Key>,
}

impl<'a> Emitter<'a> {
    /// Without flows.
    pub fn new(model: &'a Model, parameters: &Parameters) -> Emitter<'a> {
        Emitter { tables: Tables::new(model, parameters), parameters: *parameters, headers: Vec::new() }
    }

    /// Adds a flow and what the tables need for it; returns its number.
    pub fn flow(&mut self, rule: &Rule, table_path: usize, random: &mut SplitMix64) -> u32 {
        let sender = Sender::new(self.tables.model, &self.parameters, rule, table_path, random);
        self.tables.spread(rule, table_path, &sender);
        self.headers.push(header(rule, &sender, random));
        self.headers.len() as u32 - 1
    }

    /// The flow tables and the headers.
    pub fn finish(self) -> (String, Vec<Key>) {
        (self.tables.text, self.headers)
    }
}

/// The rule as it stands at a table.
struct State<'a> {
    rule: &'a Rule,
    sender: &'a Sender,
    eth_dst: u64,
    out_port: u64,
}

impl Tables<'_> {
    fn new<'a>(model: &'a Model, _parameters: &Parameters) -> Tables<'a> {
        let parts = model.tables.iter().map(|t| model.parts_at(t.id)).collect();
        let mut tables = Tables { model, parts, seen: HashSet::new(), text: String::new() };
        tables.defaults();
        tables
    }

    /// What no rule names goes on along its way: no packet is lost because two rules overlap.
    fn defaults(&mut self) {
        let mut done = HashSet::new();
        for (number, table_path) in self.model.table_paths.iter().enumerate() {
            for (at, id) in table_path.iter().enumerate() {
                let parts = self.model.parts_at(*id);
                if !done.insert((*id, parts.then_some(number))) {
                    continue;
                }
                let reg = if parts { format!(",reg0={:#x}", number + 1) } else { String::new() };
                let action = match table_path.get(at + 1) {
                    Some(next) => format!("goto_table:{next}"),
                    None => "drop".to_string(),
                };
                let _ = writeln!(self.text, "table={id},priority=1{reg} actions={action}");
            }
        }
    }

    fn spread(&mut self, rule: &Rule, table_path: usize, sender: &Sender) {
        let model = self.model;
        let mut state = State { rule, sender, eth_dst: sender.eth_dst, out_port: 0 };
        for (at, &id) in model.table_paths[table_path].iter().enumerate() {
            let Some(n) = model.tables.iter().position(|t| t.id == id) else { continue };
            let table = &model.tables[n];
            let parts = self.parts[n].then_some(table_path);
            let action_state = state.projection(table, parts, model.tenants);
            if self.seen.insert(action_state) {
                let next = model.table_paths[table_path].get(at + 1).copied();
                state.write(table, parts, model.tenants, table_path, next, &mut self.text);
            }
            state.pass(table);
        }
    }
}

fn next_hop(rule: &Rule) -> u64 {
    hash(5, code(rule.dst)) % 64
}

impl State<'_> {
    /// What the packet is after the table.
    fn pass(&mut self, table: &TableModel) {
        match table.does {
            Does::Route => {
                self.eth_dst = 0x02_00_02_00_00_00 | next_hop(self.rule);
                self.out_port = 1000 + next_hop(self.rule) % 48;
            }
            Does::Switch => self.out_port = 1000 + hash(6, self.eth_dst) % 48,
            _ => {}
        }
    }

    fn has(&self, table: &TableModel, field: Match) -> bool {
        table.matches.contains(&field)
    }

    /// The values that the table matches, and what its action depends on: equal ones are one flow.
    fn projection(&self, table: &TableModel, parts: Option<usize>, tenants: bool) -> [u64; 6] {
        let when = |field: Match, value: u64| if self.has(table, field) { value + 1 } else { 0 };
        let ports = |(low, high): Ports| u64::from(low) << 16 | u64::from(high);
        let protocol = self.rule.protocol.map_or(256, u64::from);
        let ported = matches!(self.rule.protocol, Some(6 | 17));
        let tenant = if tenants { self.sender.tenant } else { 0 };
        [
            u64::from(table.id)
                | parts.map_or(0, |w| w as u64 + 1) << 8
                | tenant << 16
                | when(Match::Proto, protocol) << 32,
            when(Match::IpSrc, code(self.rule.src)),
            when(Match::IpDst, code(self.rule.dst)),
            if ported {
                when(Match::SrcPort, ports(self.rule.sport)) << 32 ^ when(Match::DstPort, ports(self.rule.dport))
            } else {
                0
            },
            when(Match::EthSrc, self.sender.eth_src & 0xff_ffff) << 32
                | when(Match::EthDst, self.eth_dst & 0xff_ff_ff_ff),
            when(Match::InPort, self.sender.port.into())
                | when(Match::Vlan, self.sender.vlan.into()) << 20
                | when(Match::OutPort, self.out_port) << 40,
        ]
    }

    /// Writes the flows: several where a range of ports needs several masks.
    fn write(
        &self,
        table: &TableModel,
        parts: Option<usize>,
        tenants: bool,
        table_path: usize,
        next: Option<u8>,
        out: &mut String,
    ) {
        let mut head = String::new();
        let mut more = |part: std::fmt::Arguments<'_>| {
            let _ = write!(head, ",{part}");
        };
        let ip = table
            .matches
            .iter()
            .any(|m| matches!(m, Match::IpSrc | Match::IpDst | Match::Proto | Match::SrcPort | Match::DstPort));
        let named = if self.has(table, Match::Proto) { self.rule.protocol } else { None };
        match named {
            Some(6) => more(format_args!("tcp")),
            Some(17) => more(format_args!("udp")),
            Some(n) => more(format_args!("ip,nw_proto={n}")),
            None if ip => more(format_args!("ip")),
            None => {}
        }
        if tenants && table.does != Does::Classify {
            more(format_args!("metadata={:#x}", self.sender.tenant));
        }
        if let (Some(table_path), true) = (parts, table.does != Does::Classify) {
            more(format_args!("reg0={:#x}", table_path + 1));
        }
        for field in table.matches {
            match field {
                Match::InPort => more(format_args!("in_port={}", self.sender.port)),
                Match::Vlan => more(format_args!("dl_vlan={}", self.sender.vlan)),
                Match::EthSrc => more(format_args!("dl_src={}", Mac(self.sender.eth_src))),
                Match::EthDst => more(format_args!("dl_dst={}", Mac(self.eth_dst))),
                Match::IpSrc if self.rule.src.prefix_len() > 0 => more(format_args!("nw_src={}", self.rule.src)),
                Match::IpDst if self.rule.dst.prefix_len() > 0 => more(format_args!("nw_dst={}", self.rule.dst)),
                Match::OutPort => more(format_args!("reg1={:#x}", self.out_port)),
                _ => {}
            }
        }
        let ported = matches!(named, Some(6 | 17));
        let range =
            |field: Match, ports: Ports| if ported && self.has(table, field) { masks(ports) } else { vec![(0, 0)] };
        let action = self.action(table, table_path, next);
        for (source, source_mask) in range(Match::SrcPort, self.rule.sport) {
            for (destination, destination_mask) in range(Match::DstPort, self.rule.dport) {
                let priority = self.priority(table, named.is_some(), source_mask, destination_mask);
                let _ = write!(out, "table={},priority={priority}{head}", table.id);
                if source_mask != 0 {
                    let _ = write!(out, ",tp_src={source:#x}/{source_mask:#x}");
                }
                if destination_mask != 0 {
                    let _ = write!(out, ",tp_dst={destination:#x}/{destination_mask:#x}");
                }
                let _ = writeln!(out, " actions={action}");
            }
        }
    }

    /// The more specific first: destination, then source, then ports.
    fn priority(&self, table: &TableModel, protocol: bool, source_mask: u16, destination_mask: u16) -> u32 {
        let length = |field: Match, p: Ipv4Net| if self.has(table, field) { u32::from(p.prefix_len()) } else { 0 };
        let addresses = length(Match::IpDst, self.rule.dst) * 33 + length(Match::IpSrc, self.rule.src);
        10 + (addresses * 17 + destination_mask.count_ones()) * 3 + u32::from(protocol) + u32::from(source_mask != 0)
    }

    fn action(&self, table: &TableModel, table_path: usize, next: Option<u8>) -> String {
        let does = match table.does {
            Does::Classify => {
                format!("set_field:{:#x}->reg0,set_field:{:#x}->metadata,", table_path + 1, self.sender.tenant)
            }
            Does::Route => format!(
                "dec_ttl,set_field:02:00:03:00:00:01->eth_src,set_field:{}->eth_dst,set_field:{}->reg1,",
                Mac(0x02_00_02_00_00_00 | next_hop(self.rule)),
                1000 + next_hop(self.rule) % 48
            ),
            Does::Switch => format!("set_field:{}->reg1,", 1000 + hash(6, self.eth_dst) % 48),
            Does::Nothing => String::new(),
        };
        match next {
            Some(next) => format!("{does}goto_table:{next}"),
            None => format!("{does}output:NXM_NX_REG1[]"),
        }
    }
}

/// The masks that together cover a range of ports.
fn masks((low, high): Ports) -> Vec<(u16, u16)> {
    if (low, high) == ANY {
        return vec![(0, 0)];
    }
    let (mut at, end) = (u32::from(low), u32::from(high) + 1);
    let mut all = Vec::new();
    while at < end {
        let mut size = if at == 0 { 1 << 16 } else { 1 << at.trailing_zeros() };
        while at + size > end {
            size /= 2;
        }
        all.push((at as u16, !(size as u16).wrapping_sub(1)));
        at += size;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{models, rules};

    #[test]
    fn masks_cover_exactly_the_range() {
        for range in [(0, 1023), (1024, 65535), (80, 80), (3, 17), (0, 65534), (1, 65535)] {
            let all = masks(range);
            for p in 0..=u16::MAX {
                let hit = all.iter().filter(|(v, m)| p & m == *v).count();
                assert_eq!(hit, usize::from(p >= range.0 && p <= range.1), "port {p} of {range:?}");
            }
        }
    }

    #[test]
    fn one_seed_is_one_workload_and_sizes_are_heavy_tailed() {
        let model = models::named("ofd").unwrap();
        let set = rules::made("acl1_1k", 3).unwrap();
        let parameters = Parameters::with_flows(3_000);
        let make = |seed| generate(&model, &set, Locality::High, &parameters, seed);
        let (one, two, other) = (make(5), make(5), make(6));
        assert!(one.flows == two.flows && one.headers == two.headers && one.packets == two.packets);
        assert!(one.packets != other.packets && one.headers != other.headers);
        let mut sizes = vec![0u32; 3_000];
        one.packets.iter().for_each(|p| sizes[p.flow as usize] += 1);
        sizes.sort_unstable();
        let top: u32 = sizes[2_700..].iter().sum();
        assert!(
            f64::from(top) > 0.4 * one.packets.len() as f64,
            "a tenth of the flows has {top} packets of {}",
            one.packets.len()
        );
        assert!(one.packets.windows(2).all(|w| w[0].time <= w[1].time));
    }
}
