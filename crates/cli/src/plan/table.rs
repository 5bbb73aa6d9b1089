// SPDX-License-Identifier: Apache-2.0
//! `tunny plan table`: the blocks of one table.

use crate::output::{show, table};
use crate::Global;
use anyhow::{bail, Context};
use chip::blocks::Blocks;
use chip::{Alpm, Bucket, Key, Kind, Table};
use std::process::ExitCode;

/// How a table matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Match {
    Exact,
    Ternary,
    Lpm,
    Alpm,
}

/// What an ALPM partition compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum AlpmOption {
    /// All but the VNI, which is left to the TCAM.
    Exvni,
    /// Only the 32 bits that the TCAM points at.
    Subset32,
}

/// How many blocks a single table takes, and where they stand.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How it matches.
    #[arg(long, value_enum)]
    kind: Match,
    /// The key: vni, ip4, ip6, vni_ip4, vni_ip6, vni_lbl1_ip4, vni_lbl1_ip6, five_tuple4, five_tuple6, or any other name with --key-bits.
    #[arg(long)]
    key: String,
    /// Bits of the key; must agree with a known name.
    #[arg(long)]
    key_bits: Option<u32>,
    /// Entries.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    entries: u64,
    /// Action data bits of an entry.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1024))]
    action_bits: u32,
    /// Store a digest of so many bits instead of the key (exact).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=52))]
    digest_bits: Option<u32>,
    /// Partitions (ALPM): 1024, 2048, 4096 or 8192 [default: 1024].
    #[arg(long)]
    partitions: Option<u32>,
    /// Subtrees that share a partition (ALPM), 1 to 10 [default: 2].
    #[arg(long)]
    subtrees: Option<u32>,
    /// What a partition compares (ALPM).
    #[arg(long, value_enum)]
    option: Option<AlpmOption>,
    /// Leading bits of the address that only the TCAM compares (ALPM, with exvni).
    #[arg(long, default_value_t = 0)]
    exclude_bits: u32,
    /// The chip: a built-in name or a file.
    #[arg(long, default_value = "tofino1")]
    profile: String,
}

/// What is printed.
#[derive(serde::Serialize)]
struct Answer {
    stages: u32,
    sram_match: u32,
    sram_action: u32,
    sram_indirect: u32,
    tcam: u32,
    fits: bool,
    per_stage: Vec<Stage>,
}

#[derive(serde::Serialize)]
struct Stage {
    stage: usize,
    entries: u64,
    entries_per_row: u32,
    words: u32,
    immediate_bits: u32,
    sram_match: u32,
    sram_action: u32,
    tcam: u32,
}

/// Runs the command.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let p = super::profile(&args.profile)?;
    let t = read(&args)?;
    let parts = t.alone(&p.geometry).context("the table has no place")?;
    let b = Blocks::of(&parts);
    let per_stage = parts.iter().map(|(stage, p)| Stage {
        stage: *stage,
        entries: p.entries,
        entries_per_row: p.pack,
        words: p.width.max(p.tcam_width),
        immediate_bits: p.immediate,
        sram_match: p.sram_match,
        sram_action: p.sram_action,
        tcam: p.tcam,
    });
    let answer = Answer {
        stages: b.stages,
        sram_match: b.sram_match,
        sram_action: b.sram_action,
        sram_indirect: b.sram_indirect,
        tcam: b.tcam,
        fits: b.stages <= p.geometry.stages,
        per_stage: per_stage.collect(),
    };
    show(global.output, &answer, |a| text(a, &p))?;
    Ok(ExitCode::SUCCESS)
}

fn text(a: &Answer, p: &chip::Profile) -> String {
    let head = ["STAGE", "ENTRIES", "A ROW", "WORDS", "IMMEDIATE", "SRAM MATCH", "SRAM ACTION", "TCAM"];
    let rows = a.per_stage.iter().map(|s| {
        let numbers = [s.entries_per_row, s.words, s.immediate_bits, s.sram_match, s.sram_action, s.tcam];
        let mut row = vec![s.stage.to_string(), s.entries.to_string()];
        row.extend(numbers.iter().map(u32::to_string));
        row
    });
    let mut out = table(&head, rows);
    let percent = |n: u32, of: u32| 100.0 * f64::from(n) / f64::from(of.max(1));
    out += &format!(
        "\n{} stages, SRAM {} match + {} action + {} indirect blocks ({:.1} + {:.1}% of a pipe), TCAM {} ({:.1}%)\n",
        a.stages,
        a.sram_match,
        a.sram_action,
        a.sram_indirect,
        percent(a.sram_match, p.sram_per_pipe()),
        percent(a.sram_action + a.sram_indirect, p.sram_per_pipe()),
        a.tcam,
        percent(a.tcam, p.tcam_per_pipe()),
    );
    if !a.fits {
        out += &format!("It needs {} stages; a pipe of {} has {}.\n", a.stages, p.name, p.geometry.stages);
    }
    out
}

fn read(args: &Args) -> anyhow::Result<Table> {
    let key = match (Key::named(&args.key), args.key_bits) {
        (Some(key), Some(bits)) if key.bits() != bits => {
            bail!("--key {} has {} bits, not {bits}: leave --key-bits out or take another name", args.key, key.bits())
        }
        (Some(key), _) => key,
        (None, Some(bits)) if (1..=512).contains(&bits) => Key::of(&[bits]),
        (None, Some(bits)) => bail!("--key-bits {bits} is impossible: 1 to 512"),
        (None, None) => bail!("--key {} is no known name: say its --key-bits", args.key),
    };
    let alpm = args.kind == Match::Alpm;
    if !alpm && (args.partitions.is_some() || args.subtrees.is_some() || args.option.is_some()) {
        bail!("--partitions, --subtrees and --option are for --kind alpm");
    }
    if args.kind != Match::Exact && args.digest_bits.is_some() {
        bail!("--digest-bits is for --kind exact");
    }
    let kind = match args.kind {
        Match::Exact => Kind::Exact { digest: args.digest_bits },
        Match::Ternary | Match::Lpm => Kind::Ternary,
        Match::Alpm => {
            let (partitions, subtrees) = (args.partitions.unwrap_or(1024), args.subtrees.unwrap_or(2));
            if ![1024, 2048, 4096, 8192].contains(&partitions) {
                bail!("--partitions {partitions} is impossible: 1024, 2048, 4096 or 8192");
            }
            if !(1..=10).contains(&subtrees) {
                bail!("--subtrees {subtrees} is impossible: 1 to 10");
            }
            let bucket = match args.option {
                None => Bucket::Whole,
                Some(AlpmOption::Exvni) if args.exclude_bits >= key.lpm_bits => {
                    bail!("--exclude-bits {} leaves nothing of {} bits", args.exclude_bits, key.lpm_bits)
                }
                Some(AlpmOption::Exvni) => Bucket::Exclude { lpm_bits: args.exclude_bits },
                Some(AlpmOption::Subset32) => Bucket::Subset32,
            };
            Kind::Alpm(Alpm { partitions, subtrees, bucket })
        }
    };
    Ok(Table { kind, key, entries: args.entries, action_bits: args.action_bits, packing: Default::default() })
}
