// SPDX-License-Identifier: Apache-2.0
//! `tunny-lab plan table`: the blocks of one table.

use anyhow::{anyhow, bail};
use chip::blocks::{fit, Attached, Blocks, Misfit, Request, State};
use chip::{Alpm, Bucket, Key, Kind, Part, Table};
use commandline::output::{show, table, Format};
use std::process::ExitCode;

/// How a table matches; or state that an index addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Match {
    /// Keys in SRAM, by a hash.
    Exact,
    /// Value and mask in TCAM.
    Ternary,
    /// Prefixes of the key's last field, in TCAM.
    Lpm,
    /// Prefixes: a few pivots in TCAM, the rest in SRAM.
    Alpm,
    /// Counters by themselves.
    Counter,
    /// Two-rate meters by themselves.
    Meter,
    /// A register by itself.
    Register,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Counts {
    Packets,
    Bytes,
    Both,
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
///
/// Counters, meters and registers stand beside a table's entries, or are planned by themselves (--kind). A table that does not fit
/// into a pipe is shown with what binds, at which stage, and the smallest change with which it fits; exit status 1.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How it matches; or counters, meters or a register by themselves.
    #[arg(long, value_enum)]
    kind: Match,
    /// The key: vni, ip4, ip6, vni_ip4, vni_ip6, vni_lbl1_ip4, vni_lbl1_ip6, five_tuple4, five_tuple6, or any other name with --key-bits.
    #[arg(long)]
    key: Option<String>,
    /// Bits of the key; must agree with a known name.
    #[arg(long)]
    key_bits: Option<u32>,
    /// Entries; of a counter, meter or register its cells.
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
    /// Leading bits of the address that only the TCAM compares (ALPM, with exvni) [default: 0].
    #[arg(long)]
    exclude_bits: Option<u32>,
    /// A counter beside every entry; or what --kind counter counts [default there: packets].
    #[arg(long, value_enum)]
    counter: Option<Counts>,
    /// Bits of a counter, 1 to 64; of the bytes' if both are counted [default: 64].
    #[arg(long)]
    counter_bits: Option<u32>,
    /// A two-rate meter beside every entry.
    #[arg(long)]
    meter: bool,
    /// A register cell of 1, 8, 16, 32 or 64 bits beside every entry; or that of --kind register [default there: 32].
    #[arg(long)]
    register_bits: Option<u32>,
    /// The chip: a built-in name or a file.
    #[arg(long, default_value = "tofino1")]
    profile: String,
}

/// What is printed. Counts are missing only if no number of stages would do.
#[derive(serde::Serialize)]
struct Answer {
    stages: Option<u32>,
    sram_match: Option<u32>,
    sram_action: Option<u32>,
    sram_indirect: Option<u32>,
    tcam: Option<u32>,
    map_ram: Option<u32>,
    fits: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    does_not_fit: Option<Misfit>,
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
    sram_indirect: u32,
    tcam: u32,
    map_ram: u32,
}

impl Stage {
    fn of((stage, p): &(usize, Part)) -> Stage {
        Stage {
            stage: *stage,
            entries: p.entries,
            entries_per_row: p.pack,
            words: p.width.max(p.tcam_width),
            immediate_bits: p.immediate,
            sram_match: p.sram_match,
            sram_action: p.sram_action,
            sram_indirect: p.sram_indirect,
            tcam: p.tcam,
            map_ram: p.map_ram,
        }
    }
}

/// Runs the command. A table that does not fit is shown as it would be, and said to fail.
pub fn run(args: Args, format: Format) -> anyhow::Result<ExitCode> {
    let p = super::profile(&args.profile)?;
    let g = &p.geometry;
    let request = read(&args, g)?;
    let placed = fit(&request, g);
    let parts = match &placed {
        Ok(parts) => Some(parts.clone()),
        Err(_) => request.alone(g).ok(),
    };
    let b = parts.as_deref().map(Blocks::of);
    let answer = Answer {
        stages: b.map(|b| b.stages),
        sram_match: b.map(|b| b.sram_match),
        sram_action: b.map(|b| b.sram_action),
        sram_indirect: b.map(|b| b.sram_indirect),
        tcam: b.map(|b| b.tcam),
        map_ram: b.map(|b| b.map_ram),
        fits: placed.is_ok(),
        does_not_fit: placed.err(),
        per_stage: parts.iter().flatten().map(Stage::of).collect(),
    };
    show(format, &answer, |a| text(a, &p))?;
    Ok(if answer.fits { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn text(a: &Answer, p: &chip::Profile) -> String {
    let state = a.sram_indirect.is_some_and(|n| n > 0);
    let mut head = vec!["STAGE", "ENTRIES", "A ROW", "WORDS", "IMMEDIATE", "SRAM MATCH", "SRAM ACTION", "TCAM"];
    if state {
        head.extend(["SRAM INDIRECT", "MAP RAM"]);
    }
    let rows = a.per_stage.iter().map(|s| {
        let mut numbers = vec![s.entries_per_row, s.words, s.immediate_bits, s.sram_match, s.sram_action, s.tcam];
        if state {
            numbers.extend([s.sram_indirect, s.map_ram]);
        }
        let mut row = vec![s.stage.to_string(), s.entries.to_string()];
        row.extend(numbers.iter().map(u32::to_string));
        row
    });
    let mut out = String::new();
    let percent = |n: u32, of: u32| 100.0 * f64::from(n) / f64::from(of.max(1));
    if let (Some(stages), Some(matched), Some(action), Some(indirect), Some(tcam)) =
        (a.stages, a.sram_match, a.sram_action, a.sram_indirect, a.tcam)
    {
        out += &table(&head, rows);
        out += &format!(
            "\n{stages} stage{}, SRAM {matched} match + {action} action + {indirect} indirect blocks ({:.1} + {:.1}% of a pipe), \
             TCAM {tcam} ({:.1}%)\n",
            if stages == 1 { "" } else { "s" },
            percent(matched, p.sram_per_pipe()),
            percent(action + indirect, p.sram_per_pipe()),
            percent(tcam, p.tcam_per_pipe()),
        );
    }
    if let Some(why) = &a.does_not_fit {
        out += &misfit(why, p);
    }
    out
}

fn misfit(why: &Misfit, p: &chip::Profile) -> String {
    let mut out = format!(
        "It does not fit a pipe of {}: {}.\nWhat binds: {}, at stage {}: {} of {}{}.\n",
        p.name,
        why.reason,
        std::iter::once(&why.binds).chain(&why.binds_too).map(|r| r.to_string()).collect::<Vec<_>>().join(" and "),
        why.stage,
        why.taken,
        why.of,
        if why.left_over.is_empty() { String::new() } else { format!(" ({})", why.left_over) }
    );
    for (i, c) in why.changes.iter().enumerate() {
        let lead = if i == 0 { "Smallest change that fits:" } else { "or:" };
        let name = if c.field == "stages" { "stages of the chip".into() } else { format!("--{}", c.field) };
        let cost = if c.cost.is_empty() { String::new() } else { format!(" ({})", c.cost) };
        out += &format!("{lead} {name} {} instead of {}{cost}\n", c.to, c.from);
    }
    if why.changes.is_empty() {
        out += "No change of one of its numbers would make it fit.\n";
    }
    out
}

/// The state that an option asks for beside entries, or that is asked for by itself.
fn states(args: &Args) -> anyhow::Result<Attached> {
    let counter = args.counter.or((args.kind == Match::Counter).then_some(Counts::Packets));
    if counter.is_none() && args.counter_bits.is_some() {
        bail!("--counter-bits is for counters: say --counter packets, bytes or both");
    }
    let bits = args.counter_bits.unwrap_or(64);
    let counter = counter.map(|c| match c {
        Counts::Packets | Counts::Bytes => State::Counter { bits },
        Counts::Both => State::CounterPair { bits },
    });
    let meter = (args.meter || args.kind == Match::Meter).then_some(State::Meter);
    let cell = args.register_bits.or((args.kind == Match::Register).then_some(32));
    let all = Attached([counter, meter, cell.map(|bits| State::Register { bits })]);
    for state in all.states() {
        state.check().map_err(|e| anyhow!("--{e}"))?;
    }
    Ok(all)
}

fn read(args: &Args, g: &chip::Geometry) -> anyhow::Result<Request> {
    let attached = states(args)?;
    let alpm = args.kind == Match::Alpm;
    if !alpm && (args.partitions.is_some() || args.subtrees.is_some() || args.option.is_some()) {
        bail!("--partitions, --subtrees and --option are for --kind alpm: leave them out");
    }
    if args.exclude_bits.is_some() && args.option != Some(AlpmOption::Exvni) {
        bail!("--exclude-bits is for --option exvni: leave it out, or say the option");
    }
    if args.kind != Match::Exact && args.digest_bits.is_some() {
        bail!("--digest-bits is for --kind exact: leave it out");
    }
    if matches!(args.kind, Match::Counter | Match::Meter | Match::Register) {
        return alone(args, attached);
    }
    let table = Table {
        kind: kind(args),
        key: key(args)?,
        entries: args.entries,
        action_bits: args.action_bits,
        packing: Default::default(),
    };
    let prefixes = matches!(args.kind, Match::Lpm | Match::Alpm);
    table.check(prefixes, g).map_err(|e| anyhow!("--{e}"))?;
    Ok(Request::Table { table, attached, prefixes })
}

/// State by itself: an index addresses it, so there is no key, and nothing beside it.
fn alone(args: &Args, attached: Attached) -> anyhow::Result<Request> {
    if args.key.is_some() || args.key_bits.is_some() || args.action_bits > 0 {
        bail!("--key, --key-bits and --action-bits are for tables: an index addresses a counter, meter or register; leave them out");
    }
    let mut states = attached.states();
    match (states.next(), states.next()) {
        (Some(state), None) => Ok(Request::State { state, cells: args.entries }),
        _ => bail!("--counter, --meter and --register-bits of another kind stand beside a table's entries: plan them by themselves"),
    }
}

fn key(args: &Args) -> anyhow::Result<Key> {
    let Some(name) = &args.key else {
        bail!("--key is missing: say what the table matches, for example --key vni_ip4")
    };
    Ok(match (Key::named(name), args.key_bits) {
        (Some(key), Some(bits)) if key.bits() != bits => {
            bail!("--key {name} has {} bits, not {bits}: leave --key-bits out or take another name", key.bits())
        }
        (Some(key), _) => key,
        (None, Some(bits)) if (1..=512).contains(&bits) => Key::of(&[bits]),
        (None, Some(bits)) => bail!("--key-bits {bits} is impossible: 1 to 512"),
        (None, None) => bail!("--key {name} is no known name: say its --key-bits"),
    })
}

fn kind(args: &Args) -> Kind {
    match args.kind {
        Match::Alpm => Kind::Alpm(Alpm {
            partitions: args.partitions.unwrap_or(1024),
            subtrees: args.subtrees.unwrap_or(2),
            bucket: match args.option {
                None => Bucket::Whole,
                Some(AlpmOption::Exvni) => Bucket::Exclude { lpm_bits: args.exclude_bits.unwrap_or(0) },
                Some(AlpmOption::Subset32) => Bucket::Subset32,
            },
        }),
        Match::Ternary | Match::Lpm => Kind::Ternary,
        _ => Kind::Exact { digest: args.digest_bits },
    }
}
