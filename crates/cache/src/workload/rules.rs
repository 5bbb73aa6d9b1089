// SPDX-License-Identifier: Apache-2.0
//! Filter rules in ClassBench's form: read from a file, or made like one.
//!
//! A line is `@SRC/LEN DST/LEN LO : HI LO : HI PROTO/MASK FLAGS/MASK`. The made sets follow twelve families named as ClassBench
//! names its seeds (acl1-5, fw1-5, ipc1-2). Of each family only summary statistics are used: how many distinct source and
//! destination prefixes, port pairs and protocols a set of 10 000 rules has, how long the prefixes are, how many sources are
//! wildcards. The sets themselves are not part of this project.
use abi::Ipv4Net;
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::collections::HashMap;

/// Ports, an inclusive range.
pub type Ports = (u16, u16);

/// Any port.
pub const ANY: Ports = (0, u16::MAX);

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Source.
    pub src: Ipv4Net,
    /// Destination.
    pub dst: Ipv4Net,
    /// Source ports.
    pub sport: Ports,
    /// Destination ports.
    pub dport: Ports,
    /// IP protocol, if the rule names one.
    pub protocol: Option<u8>,
}

/// A line that is not a rule.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{file}:{line}:{column}: {what}; a rule reads `@10.0.0.0/8 10.1.2.3/32 0 : 65535 80 : 80 0x06/0xFF`")]
pub struct RuleError {
    file: String,
    line: usize,
    column: usize,
    what: String,
}

/// Reads a rule file; nothing is returned unless all of it is good. Empty lines and those that begin with `#` are left out.
pub fn parse(file: &str, text: &str) -> Result<Vec<Rule>, RuleError> {
    let mut rules = Vec::new();
    for (n, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        // Places are bytes of the line, columns are characters.
        let column = |at: usize| line.get(..at).unwrap_or(line).chars().count() + 1;
        let fail = |(at, what): (usize, String)| RuleError { file: file.into(), line: n + 1, column: column(at), what };
        rules.push(rule(line).map_err(fail)?);
    }
    match rules.is_empty() {
        true => Err(RuleError { file: file.into(), line: 1, column: 1, what: "no rule at all".into() }),
        false => Ok(rules),
    }
}

fn rule(line: &str) -> Result<Rule, (usize, String)> {
    let place = |word: &str| word.as_ptr() as usize - line.as_ptr() as usize;
    let words: Vec<(usize, &str)> = line.split_whitespace().map(|word| (place(word), word)).collect();
    let word = |n: usize| words.get(n).copied().ok_or((line.len(), format!("field {} of 9 is missing", n + 1)));
    let colon = |n: usize| match word(n)? {
        (_, ":") => Ok(()),
        (at, other) => Err((at, format!("`{other}` stands where a colon belongs"))),
    };
    let (at, first) = word(0)?;
    let source = first.strip_prefix('@').ok_or((at, "the line does not begin with @".to_string()))?;
    let src = prefix(source).ok_or((at + 1, format!("`{source}` is not an IPv4 prefix")))?;
    let (at, text) = word(1)?;
    let dst = prefix(text).ok_or((at, format!("`{text}` is not an IPv4 prefix")))?;
    let ports = |n: usize| -> Result<Ports, (usize, String)> {
        let (at, low) = word(n)?;
        colon(n + 1)?;
        let (_, high) = word(n + 2)?;
        match (low.parse(), high.parse()) {
            (Ok(low), Ok(high)) if low <= high => Ok((low, high)),
            _ => Err((at, format!("`{low} : {high}` is not a range of ports"))),
        }
    };
    let (sport, dport) = (ports(2)?, ports(5)?);
    let (at, text) = word(8)?;
    let protocol = match text.split_once('/') {
        Some((_, "0x00")) => None,
        Some((value, "0xFF" | "0xff")) => {
            let digits = value.strip_prefix("0x").unwrap_or(value);
            // A sign is no digit.
            let digits = if digits.starts_with('+') { "" } else { digits };
            Some(u8::from_str_radix(digits, 16).map_err(|_| (at, format!("`{text}` is not a protocol and mask")))?)
        }
        _ => return Err((at, format!("`{text}` is not a protocol with the mask 0x00 or 0xFF"))),
    };
    Ok(Rule { src, dst, sport, dport, protocol })
}

fn prefix(text: &str) -> Option<Ipv4Net> {
    let (address, length) = text.split_once('/')?;
    Some(Ipv4Net::new(address.parse().ok()?, length.parse().ok()?).ok()?.trunc())
}

/// What is known of a family: all counts are for a set of 10 000 rules.
struct Family {
    name: &'static str,
    sources: usize,
    destinations: usize,
    /// Percent of rules whose source (destination) is anything.
    any_source: u64,
    any_destination: u64,
    /// Prefix lengths with their weights.
    source_lengths: &'static [(u8, u64)],
    destination_lengths: &'static [(u8, u64)],
    /// Distinct ranges of source and destination ports.
    source_ports: usize,
    destination_ports: usize,
}

macro_rules! family {
    ($name:literal, $s:literal $d:literal, any $as:literal $ad:literal, $sl:expr, $dl:expr, ports $sp:literal $dp:literal) => {
        Family {
            name: $name,
            sources: $s,
            destinations: $d,
            any_source: $as,
            any_destination: $ad,
            source_lengths: $sl,
            destination_lengths: $dl,
            source_ports: $sp,
            destination_ports: $dp,
        }
    };
}

const HOSTS: &[(u8, u64)] = &[(32, 80), (30, 4), (28, 4), (24, 8), (16, 4)];
const NETS: &[(u8, u64)] = &[(32, 30), (30, 10), (28, 15), (27, 10), (24, 25), (16, 10)];
const MIXED: &[(u8, u64)] = &[(32, 55), (29, 10), (26, 10), (24, 15), (20, 5), (16, 5)];

static FAMILIES: [Family; 12] = [
    family!("acl1", 3980 707, any 0 0, MIXED, HOSTS, ports 1 108),
    family!("acl2", 5824 6485, any 10 6, HOSTS, MIXED, ports 1 27),
    family!("acl3", 829 963, any 10 5, MIXED, MIXED, ports 3 190),
    family!("acl4", 876 1703, any 12 4, MIXED, MIXED, ports 3 233),
    family!("acl5", 563 1865, any 4 1, HOSTS, HOSTS, ports 1 40),
    family!("fw1", 3417 6671, any 25 20, NETS, MIXED, ports 13 43),
    family!("fw2", 8385 3111, any 10 35, NETS, MIXED, ports 9 1),
    family!("fw3", 2654 6386, any 30 15, NETS, MIXED, ports 9 39),
    family!("fw4", 3763 6695, any 25 20, NETS, MIXED, ports 28 49),
    family!("fw5", 3408 5414, any 30 20, NETS, MIXED, ports 11 33),
    family!("ipc1", 1519 2843, any 8 5, MIXED, MIXED, ports 34 54),
    family!("ipc2", 4832 8886, any 20 10, HOSTS, HOSTS, ports 3 3),
];

/// The names of the made sets: 12 families in two sizes, named as ClassBench's.
pub fn set_names() -> Vec<String> {
    FAMILIES.iter().flat_map(|f| [format!("{}_1k", f.name), format!("{}_10k", f.name)]).collect()
}

/// Makes a set like the named one, from this seed.
pub fn made(name: &str, seed: u64) -> Option<Vec<Rule>> {
    let (family, size) = name.split_once('_')?;
    let family = FAMILIES.iter().find(|f| f.name == family)?;
    let count = match size {
        "1k" => 1_000,
        "10k" => 10_000,
        _ => return None,
    };
    Some(Maker::new(family, count, seed).rules(count))
}

struct Maker<'a> {
    family: &'a Family,
    random: SplitMix64,
    sources: Vec<Ipv4Net>,
    destinations: Vec<Ipv4Net>,
    source_ports: Vec<Ports>,
    destination_ports: Vec<Ports>,
}

impl Maker<'_> {
    fn new(family: &Family, count: usize, seed: u64) -> Maker<'_> {
        let name = family.name.bytes().fold(0u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b)));
        let mut random = SplitMix64::seed_from_u64(seed ^ name << 32 ^ count as u64);
        let scale = |n: usize| (n * count / 10_000).max(20);
        let sources = prefixes(scale(family.sources), family.source_lengths, &mut random);
        let destinations = prefixes(scale(family.destinations), family.destination_lengths, &mut random);
        let source_ports = ranges(family.source_ports, &mut random);
        let destination_ports = ranges(family.destination_ports, &mut random);
        Maker { family, random, sources, destinations, source_ports, destination_ports }
    }

    fn rules(&mut self, count: usize) -> Vec<Rule> {
        let mut seen = std::collections::HashSet::with_capacity(count);
        let mut rules = Vec::with_capacity(count);
        for _ in 0..count * 4 {
            let rule = self.rule();
            if seen.insert(rule) {
                rules.push(rule);
            }
            if rules.len() == count {
                break;
            }
        }
        rules
    }

    fn rule(&mut self) -> Rule {
        let everything = Ipv4Net::default();
        let any_source = self.random.next_u64() % 100 < self.family.any_source;
        let any_destination = !any_source && self.random.next_u64() % 100 < self.family.any_destination;
        let src = if any_source { everything } else { self.sources[skewed(self.sources.len(), &mut self.random)] };
        let dst = if any_destination {
            everything
        } else {
            self.destinations[skewed(self.destinations.len(), &mut self.random)]
        };
        let sport = self.source_ports[skewed(self.source_ports.len(), &mut self.random)];
        let dport = self.destination_ports[skewed(self.destination_ports.len(), &mut self.random)];
        let protocol = match self.random.next_u64() % 100 {
            0..=69 => Some(6),
            70..=89 => Some(17),
            90..=93 if (sport, dport) == (ANY, ANY) => Some(1),
            _ if (sport, dport) == (ANY, ANY) => None,
            _ => Some(6),
        };
        Rule { src, dst, sport, dport, protocol }
    }
}

/// An index below `n`: half of the draws fall evenly, half on the first ones, as prefixes in filter sets do.
fn skewed(n: usize, random: &mut SplitMix64) -> usize {
    let even = random.next_u64();
    let unit: f64 = random.random();
    match even % 2 {
        0 => (even / 2 % n as u64) as usize,
        _ => ((n as f64).powf(unit) as usize - 1).min(n - 1),
    }
}

/// Distinct prefixes that nest: most lie in a few dozen networks.
fn prefixes(count: usize, lengths: &[(u8, u64)], random: &mut SplitMix64) -> Vec<Ipv4Net> {
    let networks: Vec<u32> = (0..24).map(|_| random.next_u64() as u32 & 0xffff_0000 | 0x0100_0000).collect();
    let total: u64 = lengths.iter().map(|l| l.1).sum();
    let mut seen = std::collections::HashSet::with_capacity(count);
    let mut all = Vec::with_capacity(count);
    for _ in 0..count * 8 {
        let mut draw = random.next_u64() % total;
        let length = lengths.iter().find(|(_, weight)| {
            let hit = draw < *weight;
            draw = draw.wrapping_sub(*weight);
            hit
        });
        let base = networks[skewed(networks.len(), random)];
        let wide = if random.next_u64().is_multiple_of(4) {
            random.next_u64() as u32
        } else {
            base | random.next_u64() as u32 & 0xffff
        };
        let prefix = Ipv4Net::new_assert(wide.into(), length.map_or(32, |l| l.0)).trunc();
        if seen.insert(prefix) {
            all.push(prefix);
        }
        if all.len() == count {
            break;
        }
    }
    all
}

/// Port ranges: any, the high ports, and well-known single ports.
fn ranges(count: usize, random: &mut SplitMix64) -> Vec<Ports> {
    const KNOWN: [u16; 12] = [80, 443, 53, 25, 22, 110, 1521, 123, 161, 5631, 1433, 8080];
    let mut all = vec![ANY];
    for n in 1..count {
        let single = match n {
            1 => {
                all.push((1024, u16::MAX));
                continue;
            }
            2..=13 => KNOWN[n - 2],
            _ => random.next_u64() as u16,
        };
        all.push((single, single));
    }
    all
}

/// How often each rule's source, destination and service (protocol and ports) recur in the set: high locality weights rules by
/// the square root of the product.
pub fn recurrence(rules: &[Rule]) -> Vec<f64> {
    let (mut src, mut dst, mut service) = (HashMap::new(), HashMap::new(), HashMap::new());
    for r in rules {
        *src.entry(r.src).or_insert(0u32) += 1;
        *dst.entry(r.dst).or_insert(0u32) += 1;
        *service.entry((r.sport, r.dport, r.protocol)).or_insert(0u32) += 1;
    }
    let count = |r: &Rule| {
        let service = f64::from(service[&(r.sport, r.dport, r.protocol)]);
        (f64::from(src[&r.src]) * f64::from(dst[&r.dst]) * service).sqrt()
    };
    rules.iter().map(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_and_a_bad_one_is_named() {
        let good = "@10.0.0.0/8\t10.1.2.3/32\t0 : 65535\t80 : 443\t0x06/0xFF\t0x0000/0x0200\t\n";
        let rules = parse("x", good).unwrap();
        assert_eq!((rules[0].src.prefix_len(), rules[0].dport, rules[0].protocol), (8, (80, 443), Some(6)));
        for (bad, line, column) in [
            ("10.0.0.0/8 1.1.1.1/32 0 : 1 0 : 1 0x06/0xFF", 1, 1),
            ("@10.0.0.0/33 1.1.1.1/32 0 : 1 0 : 1 0x06/0xFF", 1, 2),
            ("\n@10.0.0.0/8 1.1.1.1/32 5 : 1 0 : 1 0x06/0xFF", 2, 24),
            ("@10.0.0.0/8 1.1.1.1/32 0 : 1 0 ; 1 0x06/0xFF", 1, 32),
            ("@10.0.0.0/8 1.1.1.1/32 0 : 1 0 : 1 0x06/0x0F", 1, 36),
            ("@10.0.0.0/8", 1, 12),
            ("@10.0.0.0/8\u{a0}1.1.1.1/32 é : 1 0 : 1 0x06/0xFF", 1, 24),
            ("@10.0.0.0/8 1.1.1.1/32 0 : 1 0 : 1 é/0xFF", 1, 36),
            ("@10.0.0.0/8 1.1.1.1/32 0 : 1 0 : 1 +6/0xFF", 1, 36),
            ("", 1, 1),
        ] {
            let error = parse("x", bad).unwrap_err();
            assert_eq!((error.line, error.column), (line, column), "{bad}: {error}");
        }
    }

    #[test]
    fn made_sets_have_the_statistics_of_their_family_and_one_seed_gives_one_set() {
        for name in set_names() {
            let rules = made(&name, 1).unwrap();
            assert_eq!(rules, made(&name, 1).unwrap());
            assert!(rules.len() > if name.ends_with("_1k") { 700 } else { 7_000 }, "{name}: {}", rules.len());
        }
        let distinct = |rules: &[Rule]| rules.iter().map(|r| r.dst).collect::<std::collections::HashSet<_>>().len();
        let (few, many) = (made("acl1_10k", 1).unwrap(), made("ipc2_10k", 1).unwrap());
        assert!(distinct(&few) <= 708 && distinct(&many) > 3_000, "{} {}", distinct(&few), distinct(&many));
    }
}
