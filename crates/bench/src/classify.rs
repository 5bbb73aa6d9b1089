// SPDX-License-Identifier: Apache-2.0
//! Import of flows and lookups in one table: the classifier of crate `pipeline`, TupleMerge, and a list.
//!
//! TupleMerge (Daly et al., 2019) puts flows of different masks into one hash table under a coarser mask and splits a table when a
//! bucket grows beyond a limit. It visits fewer tables, but an answer depends on every flow of the buckets that it looked through, which shows in
//! the masks that a megaflow cache would get. Both are measured: the time of a lookup and the bits of its mask.
use crate::{stats, Context, Error, Goal, Report};
use pipeline::classifier::Classifier;
use pipeline::text::{self, ImportOptions};
use pipeline::{Field, Key, Mask, Match};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Instant;

/// Flows of the import bench.
const FLOWS: usize = 100_000;
/// Flows in the table of the lookup bench.
const RULES: usize = 10_000;
/// Packets that are looked up.
const PACKETS: usize = 20_000;

/// Text of a pipeline in the manner of a network of tenants: tables with few masks each, addresses, ports, registers, metadata.
pub fn flow_text(flows: usize, seed: u64) -> String {
    let mut random = StdRng::seed_from_u64(seed);
    let mut text = String::with_capacity(flows * 140);
    for n in 0..flows {
        let table = random.random_range(0..30u32);
        let tenant = random.random_range(1..200u32);
        let address = std::net::Ipv4Addr::from(0x0a00_0000 | random.random::<u32>() & 0xff_ffff);
        let next = table + 1;
        let _ = write!(
            text,
            "cookie={n:#x}, duration={n}.5s, table={table}, n_packets={n}, n_bytes=0, priority={}",
            random.random_range(1..2000u32)
        );
        let _ = match random.random_range(0..5) {
            0 => writeln!(text, ",ip,metadata={tenant:#x},nw_dst={address} actions=load:{n:#x}->NXM_NX_REG15[],resubmit(,{next})"),
            1 => writeln!(text, ",ip,reg14={n:#x},metadata={tenant:#x},nw_src={address}/24 actions=dec_ttl,mod_dl_dst:0a:00:00:00:00:01,resubmit(,{next})"),
            2 => writeln!(text, ",tcp,metadata={tenant:#x},nw_dst={address},tp_dst={} actions=ct(commit,table={next},zone=NXM_NX_REG11[0..15],nat(dst=10.0.0.1:80))", n % 65536),
            3 => writeln!(text, ",ct_state=+est+trk,ipv6,reg0={n:#x}/0xffffff,metadata={tenant:#x} actions=set_field:{n:#x}/0xffffffff->reg1,goto_table:{next}"),
            _ => writeln!(text, ",metadata={tenant:#x},dl_dst=0a:00:{:02x}:{:02x}:{:02x}:01 actions=load:0x1->NXM_NX_REG10[0],output:{}", n >> 16 & 255, n >> 8 & 255, n & 255, n % 1000 + 1),
        };
    }
    text
}

/// `import-flows`.
pub fn import_flows(context: &Context) -> Result<Report, Error> {
    let text = flow_text(FLOWS, context.seed);
    let mut seconds = Vec::new();
    let mut masks = 0;
    for n in 0..context.samples.max(5) {
        context.say(&format!("import-flows: sample {}", n + 1));
        let start = Instant::now();
        let import = text::import(&text, &ImportOptions::default()).map_err(Error::failed("importing"))?;
        seconds.push(start.elapsed().as_secs_f64());
        if import.flows != FLOWS {
            return Err(Error::Failed { what: "importing".into(), why: format!("{} flows of {FLOWS}", import.flows) });
        }
        masks = import.pipeline.tables().map(|t| import.pipeline.table_size(t).1).sum();
    }
    let mut report = Report::new("import-flows", "s", seconds, Some(Goal::AtMost(1.0)), "-");
    report.detail("flows", FLOWS).detail("bytes", text.len()).detail("masks", masks);
    Ok(report)
}

/// Flows over addresses, protocol and ports, in the manner of an access list: nested prefixes, some ports. Priorities are distinct.
fn rules(random: &mut StdRng) -> Vec<(Match, u16)> {
    let lengths = [0u8, 8, 12, 16, 16, 20, 22, 24, 24, 24, 26, 28, 30, 32, 32, 32];
    let networks: Vec<u32> = (0..400).map(|_| random.random::<u32>() & 0x3fff_ffff | 0x0a00_0000).collect();
    let mut seen = std::collections::HashSet::new();
    let mut out = Vec::new();
    while out.len() < RULES {
        let mut m = Match::default();
        m.exact(Field::EthType, 0x0800);
        for field in [Field::NwSrc, Field::NwDst] {
            let len = lengths[random.random_range(0..lengths.len())];
            let mask = if len == 0 { 0 } else { u32::MAX << (32 - len) };
            let address = networks[random.random_range(0..networks.len())] ^ random.random_range(0..4096);
            m.masked(field, u128::from(address & mask), u128::from(mask));
        }
        if random.random_range(0..4) != 0 {
            m.exact(Field::NwProto, if random.random_range(0..3) == 0 { 17 } else { 6 });
            if random.random_range(0..3) != 0 {
                m.exact(Field::TcpDst, random.random_range(1..200));
            } else if random.random_range(0..3) == 0 {
                m.masked(Field::TcpDst, 1024, 0xfc00);
            }
        }
        if seen.insert(m) {
            out.push((m, 0));
        }
    }
    for (n, rule) in out.iter_mut().enumerate() {
        rule.1 = n as u16 + 1;
    }
    out
}

fn packets(rules: &[(Match, u16)], random: &mut StdRng) -> Vec<Key> {
    let one = |random: &mut StdRng| {
        let m = &rules[random.random_range(0..rules.len())].0;
        let mut key = Key::default();
        key.set(Field::EthType, 0x0800);
        key.set(Field::NwProto, 6);
        for field in [Field::NwSrc, Field::NwDst, Field::TcpDst, Field::NwProto] {
            let bits = m.mask.get(field);
            let noise = if field == Field::NwProto { 6 } else { u128::from(random.random::<u32>()) };
            key.set(field, m.key.get(field) & bits | noise & !bits);
        }
        key.set(Field::TcpSrc, u128::from(random.random::<u16>()));
        key
    };
    (0..PACKETS).map(|_| one(random)).collect()
}

/// TupleMerge over the same flows.
struct TupleMerge {
    tables: Vec<Merged>,
}

struct Merged {
    mask: Mask,
    words: Vec<(usize, u64)>,
    buckets: HashMap<Vec<u64>, Vec<usize>>,
    top: u16,
}

/// Flows in a bucket before its table is split.
const COLLISIONS: usize = 10;

impl TupleMerge {
    fn new(rules: &[(Match, u16)]) -> TupleMerge {
        let mut merge = TupleMerge { tables: Vec::new() };
        for n in 0..rules.len() {
            merge.insert(n, rules, true);
        }
        merge.tables.sort_by_key(|t| std::cmp::Reverse(t.top));
        merge
    }

    /// The mask of a new table: prefixes shortened, so that flows with slightly shorter ones fit too.
    fn relaxed(mask: &Mask) -> Mask {
        let mut out = *mask;
        for field in [Field::NwSrc, Field::NwDst] {
            let len = (mask.get(field) as u32).leading_ones();
            let keep = match len {
                0..=7 => 0,
                8..=15 => 8,
                16..=23 => 16,
                24..=31 => 24,
                _ => 28,
            };
            out.remove(field);
            out.add_bits(field, u128::from(if keep == 0 { 0 } else { u32::MAX << (32 - keep) }));
        }
        out.remove(Field::TcpDst);
        out
    }

    fn insert(&mut self, n: usize, rules: &[(Match, u16)], relax: bool) {
        let (m, priority) = &rules[n];
        let fits = self.tables.iter().position(|t| t.mask.is_subset(&m.mask));
        let at = match fits {
            Some(at) if relax => at,
            _ => {
                let mask = if relax { TupleMerge::relaxed(&m.mask) } else { m.mask };
                match self.tables.iter().position(|t| t.mask == mask) {
                    Some(at) => at,
                    None => {
                        let words = mask.0.iter().enumerate().filter(|(_, w)| **w != 0).map(|(n, w)| (n, *w)).collect();
                        self.tables.push(Merged { mask, words, buckets: HashMap::new(), top: 0 });
                        self.tables.len() - 1
                    }
                }
            }
        };
        let table = &mut self.tables[at];
        let hash: Vec<u64> = table.words.iter().map(|(w, bits)| m.key.0[*w] & bits).collect();
        let bucket = table.buckets.entry(hash).or_default();
        bucket.push(n);
        bucket.sort_by_key(|r| std::cmp::Reverse(rules[*r].1));
        table.top = table.top.max(*priority);
        if bucket.len() > COLLISIONS && relax {
            // The bucket's flows with longer masks move to tables of their own masks.
            let moved: Vec<usize> = bucket.iter().copied().filter(|r| rules[*r].0.mask != table.mask).collect();
            bucket.retain(|r| !moved.contains(r));
            for r in moved {
                self.insert(r, rules, false);
            }
        }
    }

    fn lookup(&self, key: &Key, rules: &[(Match, u16)], mask: &mut Mask, scratch: &mut Vec<u64>) -> Option<usize> {
        let mut best: Option<usize> = None;
        for table in &self.tables {
            if best.is_some_and(|b| rules[b].1 >= table.top) {
                break;
            }
            scratch.clear();
            scratch.extend(table.words.iter().map(|(w, bits)| key.0[*w] & bits));
            mask.merge(&table.mask);
            let Some(bucket) = table.buckets.get(scratch.as_slice()) else { continue };
            for r in bucket {
                if best.is_some_and(|b| rules[b].1 >= rules[*r].1) {
                    break;
                }
                mask.merge(&rules[*r].0.mask);
                if rules[*r].0.matches(key) {
                    best = Some(*r);
                    break;
                }
            }
        }
        best
    }
}

/// `classify`.
pub fn classify(context: &Context) -> Result<Report, Error> {
    let mut random = StdRng::seed_from_u64(context.seed);
    let rules = rules(&mut random);
    let packets = packets(&rules, &mut random);
    let mut tuples = Classifier::default();
    for (n, (m, priority)) in rules.iter().enumerate() {
        tuples.insert(n as u32, &m.key, &m.mask, *priority, &[]);
    }
    tuples.settle();
    let merge = TupleMerge::new(&rules);
    let mut scratch = Vec::new();
    let (mut own_bits, mut merge_bits) = (0u64, 0u64);
    for (n, key) in packets.iter().enumerate() {
        let (mut a, mut b) = (Mask::default(), Mask::default());
        let own = tuples.lookup(key, &mut a).map(|r| r as usize);
        let other = merge.lookup(key, &rules, &mut b, &mut scratch);
        own_bits += u64::from(a.count());
        merge_bits += u64::from(b.count());
        let list =
            || rules.iter().enumerate().filter(|(_, r)| r.0.matches(key)).max_by_key(|(_, r)| r.1).map(|(n, _)| n);
        if own != other || n < 500 && own != list() {
            return Err(Error::Failed { what: "classify".into(), why: format!("the sides disagree on packet {n}") });
        }
    }
    let (mut own_ns, mut merge_ns, mut list_ns) = (vec![], vec![], vec![]);
    for n in 0..context.samples.max(5) {
        context.say(&format!("classify: sample {}", n + 1));
        own_ns.push(per_packet(&packets, |key, mask| tuples.lookup(key, mask).is_some()));
        merge_ns.push(per_packet(&packets, |key, mask| merge.lookup(key, &rules, mask, &mut scratch).is_some()));
        list_ns.push(per_packet(&packets[..200], |key, _| rules.iter().rev().any(|r| r.0.matches(key))));
    }
    let mut report = Report::new("classify", "ns", own_ns, None, "TupleMerge and a list, the same flows and packets");
    report
        .detail("flows", RULES)
        .detail("masks", tuples.subtables())
        .detail("mask_bits", own_bits as f64 / PACKETS as f64)
        .detail_median("tuplemerge_ns", &merge_ns)
        .detail("tuplemerge_tables", merge.tables.len())
        .detail("tuplemerge_mask_bits", merge_bits as f64 / PACKETS as f64)
        .detail("list_ns", stats::median(&list_ns));
    Ok(report)
}

fn per_packet(packets: &[Key], mut lookup: impl FnMut(&Key, &mut Mask) -> bool) -> f64 {
    let start = Instant::now();
    let mut found = 0usize;
    for key in packets {
        let mut mask = Mask::default();
        found += usize::from(lookup(key, &mut mask));
        std::hint::black_box(&mask);
    }
    std::hint::black_box(found);
    start.elapsed().as_nanos() as f64 / packets.len() as f64
}
