// SPDX-License-Identifier: Apache-2.0
//! Tables that cannot be: asked for against their own numbers, or against what a stage of the chip has at all.

use super::alpm::{PARTITIONS, SUBTREES_MAX};
use super::state::{State, CELL_BITS, COUNTER_BITS_MAX};
use super::{tcam, Attached, Bucket, Geometry, Key, Kind, Table};

/// What a stage has so many of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// SRAM blocks, in rows and columns.
    Sram,
    /// TCAM blocks.
    Tcam,
    /// Map RAMs.
    MapRam,
    /// Bytes of the exact-match crossbar.
    ExactCrossbar,
    /// Bytes of the ternary crossbar.
    TernaryCrossbar,
    /// Hash functions.
    HashFunctions,
    /// Logical tables.
    LogicalTables,
    /// Ternary tables.
    TernaryTables,
    /// Statistics ALUs: counters.
    StatisticsAlus,
    /// Stateful or meter ALUs: registers and meters.
    StatefulAlus,
    /// Data blocks that one ALU reaches.
    AluReach,
    /// Stages of a pipe: parts that must stand behind one another.
    Stages,
}

impl Resource {
    /// What to do if a stage has too few of it for any part of a table.
    fn instead(self) -> &'static str {
        match self {
            Resource::Sram => "store fewer bits an entry, or take a chip with more SRAM in a stage",
            Resource::Tcam => "use exact matches, fewer key fields, or a chip with more TCAM in a stage",
            Resource::MapRam => "count with fewer bits, or take a chip with more map RAMs in a stage",
            Resource::ExactCrossbar | Resource::TernaryCrossbar => "match on fewer fields",
            Resource::HashFunctions => "leave out the digest, which takes a hash function of its own",
            Resource::LogicalTables | Resource::TernaryTables => "use exact matches, or a chip that has ternary tables",
            Resource::StatisticsAlus => "leave out the counters, or take a chip that has statistics ALUs",
            Resource::StatefulAlus => "leave out meters and registers, or take a chip that has more stateful ALUs",
            Resource::AluReach => "divide it",
            Resource::Stages => "use more stages",
        }
    }
}

impl std::fmt::Display for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Resource::Sram => "SRAM blocks",
            Resource::Tcam => "TCAM blocks",
            Resource::MapRam => "map RAMs",
            Resource::ExactCrossbar => "bytes of the exact-match crossbar",
            Resource::TernaryCrossbar => "bytes of the ternary crossbar",
            Resource::HashFunctions => "hash functions",
            Resource::LogicalTables => "logical tables",
            Resource::TernaryTables => "ternary tables",
            Resource::StatisticsAlus => "statistics ALUs",
            Resource::StatefulAlus => "stateful ALUs",
            Resource::AluReach => "data blocks that an ALU reaches",
            Resource::Stages => "stages",
        })
    }
}

fn none_or(have: u32) -> String {
    if have == 0 {
        "none".into()
    } else {
        format!("{have} in each")
    }
}

/// Why a table has no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unplaced {
    /// Any part of the table needs more of something than a stage has.
    #[error("every part of it needs {need} {what} in its stage, and this chip has {}: {}", none_or(*.have), .what.instead())]
    Lacks {
        /// What is missing.
        what: Resource,
        /// Needed in one stage.
        need: u32,
        /// A stage has.
        have: u32,
    },
    /// No packing takes the key.
    #[error("the key is wider than any format of the chip: use a digest or fewer fields")]
    KeyTooWide,
    /// An empty stage does not take the least part of the table.
    #[error("the least part of the table, with its action data and state, is more than an empty stage has: store fewer bits an entry")]
    NoPart,
    /// The stages end before the entries.
    #[error("{left} entries are left when the last stage is full: use more stages, a shorter key or fewer entries")]
    Stages {
        /// Entries without a place.
        left: u64,
    },
    /// A register is larger than one stage can serve.
    #[error("it takes {blocks} data blocks, and one ALU reaches {most}: divide it")]
    Register {
        /// Blocks needed.
        blocks: u32,
        /// Blocks that one register may have.
        most: u32,
    },
}

/// Whether a stage of the chip could ever take a part of the table.
pub fn possible(t: &Table, attached: Attached, g: &Geometry) -> Result<(), Unplaced> {
    let (sram, ternary) = (t.kind != Kind::Ternary, !matches!(t.kind, Kind::Exact { .. }));
    let mut needs = Vec::new();
    if ternary {
        needs.push((Resource::Tcam, tcam::width(t.key.bytes(), g), g.tcam_per_stage));
        needs.push((Resource::TernaryTables, 1, g.ternary_tables_per_stage));
        needs.push((Resource::TernaryCrossbar, t.key.bytes(), g.crossbar_ternary));
    }
    if sram {
        needs.push((Resource::ExactCrossbar, t.key.bytes(), g.crossbar_exact));
        needs.push((Resource::HashFunctions, t.hashes(), g.hash_groups));
    }
    let counters = attached.states().filter(State::is_counter).count() as u32;
    let others = attached.states().count() as u32 - counters;
    needs.push((Resource::StatisticsAlus, counters, g.stats_alus));
    needs.push((Resource::StatefulAlus, others, g.meter_alus));
    match needs.into_iter().find(|(_, need, have)| need > have) {
        Some((what, need, have)) => Err(Unplaced::Lacks { what, need, have }),
        None => Ok(()),
    }
}

/// A table whose own numbers contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {value}: {reason}")]
pub struct Nonsense {
    /// The number, as the option of `tunny-lab plan table` is called.
    pub field: &'static str,
    /// What was asked for.
    pub value: String,
    /// Why it cannot be, and what to do.
    pub reason: String,
}

fn nonsense(field: &'static str, value: impl std::fmt::Display, reason: String) -> Result<(), Nonsense> {
    Err(Nonsense { field, value: value.to_string(), reason })
}

/// Different entries that there can be: keys, prefixes of the last field below whole other fields, or ternary patterns.
fn different(kind: &Kind, prefixes: bool, key: &Key) -> u128 {
    let two = |bits: u32| 1u128.checked_shl(bits).unwrap_or(u128::MAX);
    match kind {
        Kind::Exact { .. } => two(key.bits()),
        Kind::Ternary if !prefixes => 3u128.checked_pow(key.bits()).unwrap_or(u128::MAX),
        _ => two(key.bits() - key.lpm_bits).saturating_mul(two(key.lpm_bits + 1) - 1),
    }
}

impl Table {
    /// Whether there can be such a table; `prefixes` says that a ternary table holds prefixes only.
    pub fn check(&self, prefixes: bool, g: &Geometry) -> Result<(), Nonsense> {
        let prefixes = prefixes || matches!(self.kind, Kind::Alpm(_));
        if self.entries == 0 {
            return nonsense("entries", 0, "a table without entries takes nothing: ask for one at least".into());
        }
        if prefixes && self.key.fields.len() > 1 && self.key.lpm_bits < 32 {
            let reason = format!(
                "its last field has {} bits and is no address: prefixes have nothing to be of",
                self.key.lpm_bits
            );
            return nonsense(
                "key",
                "without an address",
                format!("{reason}; take a key that ends with an address, or exact or ternary matches"),
            );
        }
        let most = different(&self.kind, prefixes, &self.key);
        if u128::from(self.entries) > most {
            let what = match (&self.kind, prefixes) {
                (Kind::Exact { .. }, _) => "keys",
                (_, true) => "prefixes",
                (_, false) => "ternary patterns",
            };
            let of = self.key.bits();
            return nonsense(
                "entries",
                self.entries,
                format!("a key of {of} bits has only {most} different {what}: ask for no more, or for a wider key"),
            );
        }
        match &self.kind {
            Kind::Exact { digest: Some(bits) } => self.check_digest(*bits, g),
            Kind::Alpm(_) => self.check_alpm(),
            _ => Ok(()),
        }
    }

    fn check_digest(&self, bits: u32, g: &Geometry) -> Result<(), Nonsense> {
        let of = self.key.bits();
        if bits >= of {
            let reason = format!("the key itself has only {of} bits: a digest must have fewer, or leave it out");
            return nonsense("digest-bits", bits, reason);
        }
        let least = u32::BITS - (g.row_entries_max - 1).leading_zeros();
        if bits < least {
            let reason = format!(
                "the {} entries of a word could not differ in it: give {least} bits at least (with few, most keys are exceptions)",
                g.row_entries_max
            );
            return nonsense("digest-bits", bits, reason);
        }
        if bits > g.hash_bits {
            return nonsense(
                "digest-bits",
                bits,
                format!("a hash function of this chip gives only {} bits", g.hash_bits),
            );
        }
        Ok(())
    }

    fn check_alpm(&self) -> Result<(), Nonsense> {
        let Kind::Alpm(a) = &self.kind else { return Ok(()) };
        if !PARTITIONS.contains(&a.partitions) {
            return nonsense("partitions", a.partitions, format!("must be one of {PARTITIONS:?}"));
        }
        if !(1..=SUBTREES_MAX).contains(&a.subtrees) {
            return nonsense("subtrees", a.subtrees, format!("must be 1 to {SUBTREES_MAX}"));
        }
        let pivots = u64::from(a.pivots());
        if pivots > self.entries {
            let reason = format!(
                "{} partitions of {} subtrees are {pivots} pivots, more than the {} prefixes below them: take fewer",
                a.partitions, a.subtrees, self.entries
            );
            return nonsense("partitions", a.partitions, reason);
        }
        let lpm = self.key.lpm_bits;
        match a.bucket {
            Bucket::Exclude { .. } if !self.key.has_vni() => {
                let reason = "this key has no VNI that the buckets could leave out: take a key that begins with one, or no option";
                nonsense("option", "exvni", reason.into())
            }
            Bucket::Exclude { lpm_bits } if lpm_bits >= lpm => {
                let reason = format!("nothing would be left of the address's {lpm} bits: leave some");
                nonsense("exclude-bits", lpm_bits, reason)
            }
            Bucket::Subset32 if lpm < 32 => {
                let reason = format!("the field that prefixes are of has only {lpm} bits: leave the option out");
                nonsense("option", "subset32", reason)
            }
            _ => Ok(()),
        }
    }
}

impl State {
    /// Whether there can be such state.
    pub fn check(&self) -> Result<(), Nonsense> {
        match *self {
            State::Register { bits } if !CELL_BITS.contains(&bits) => nonsense(
                "register-bits",
                bits,
                "an ALU reads cells of 1, 8, 16, 32 or 64 bits: take the next wider, or several of 1 bit".into(),
            ),
            State::Counter { bits } | State::CounterPair { bits } if !(1..=COUNTER_BITS_MAX).contains(&bits) => {
                nonsense("counter-bits", bits, format!("a counter has 1 to {COUNTER_BITS_MAX} bits"))
            }
            _ => Ok(()),
        }
    }
}
