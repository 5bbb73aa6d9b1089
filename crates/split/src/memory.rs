// SPDX-License-Identifier: Apache-2.0
//! What a table takes of a target's memory.

use crate::description::{Blocks, Pool, Table, Target, Unit};
use chip::blocks::{Attached, Blocks as Sum, Packing, Request, State};
use chip::sailfish::PAPER_ALPM;
use chip::{Geometry, Key, Kind, Table as Placed};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Why a table is nowhere in a target's memory.
#[derive(Clone, Debug, PartialEq)]
pub enum NoMemory {
    /// Nothing there holds tables of its kind.
    Kind(String),
    /// The part that holds them is smaller than the table alone.
    Room {
        /// The part's name.
        pool: String,
        /// What the table takes.
        needs: f64,
        /// What the part has.
        has: f64,
    },
}

/// What so many entries of a table take of each part of a target's memory.
pub fn takes(target: &Target, table: &Table, entries: f64) -> Result<Vec<(usize, f64)>, NoMemory> {
    let mut found = Vec::new();
    for (i, pool) in target.memory.iter().enumerate().filter(|(_, p)| p.holds.contains(&table.kind)) {
        let needs = amount(pool, table, entries);
        if needs > pool.room {
            return Err(NoMemory::Room { pool: pool.name.clone(), needs, has: pool.room });
        }
        found.push((i, needs));
        // One part takes the table, but a chip's table lies in SRAM and TCAM both.
        if !matches!(pool.unit, Unit::Blocks(_)) {
            break;
        }
    }
    match found.is_empty() {
        true => Err(NoMemory::Kind(table.kind.clone())),
        false => Ok(found),
    }
}

/// Bytes of a table on a target, by which its reads are fast or slow.
pub fn bytes(target: &Target, table: &Table, entries: f64) -> f64 {
    let pool = target.memory.iter().find(|p| p.holds.contains(&table.kind));
    let line = match pool.map(|p| &p.unit) {
        Some(Unit::Bytes(line)) => *line,
        _ => 1.0,
    };
    entries * entry_bytes(table, line)
}

/// Entries of a table that a part of memory holds, if nothing else is there.
pub fn most(pool: &Pool, table: &Table) -> f64 {
    match &pool.unit {
        Unit::Entries => pool.room,
        Unit::Bytes(line) => (pool.room / entry_bytes(table, *line)).floor(),
        Unit::Blocks(_) => {
            let (mut low, mut high) = (0.0, table.entries);
            // To a thousandth: block counts are steps.
            while high - low > (table.entries / 1000.0).max(1.0) {
                let middle = ((low + high) / 2.0).floor();
                (low, high) = if amount(pool, table, middle) <= pool.room { (middle, high) } else { (low, middle) };
            }
            low
        }
    }
}

fn entry_bytes(table: &Table, line: f64) -> f64 {
    let bits = table.key.iter().sum::<u32>() + table.value;
    (f64::from(bits.div_ceil(8)) / line).ceil().max(1.0) * line
}

fn amount(pool: &Pool, table: &Table, entries: f64) -> f64 {
    match &pool.unit {
        Unit::Entries => entries,
        Unit::Bytes(line) => entries * entry_bytes(table, *line),
        Unit::Blocks(b) => blocks(b, table, entries),
    }
}

/// Blocks of a table, more than any chip has if the chip cannot hold such a table at all.
fn blocks(b: &Blocks, table: &Table, entries: f64) -> f64 {
    let each = (entries / b.halves).ceil();
    let g = &b.geometry;
    let plain = |kind: Kind| Placed {
        kind,
        key: Key::of(&table.key),
        entries: each.max(1.0) as u64,
        action_bits: table.value,
        packing: Packing::default(),
    };
    // What no stage count of a chip comes near is not laid out block by block.
    let least = each * f64::from(table.key.iter().sum::<u32>() + table.value)
        / f64::from(g.sram_width * g.sram_depth * g.sram_per_stage());
    if least > 1000.0 && !matches!(table.kind.as_str(), "ternary" | "register" | "meter" | "counter") {
        return if b.tcam { 0.0 } else { least * f64::from(g.sram_per_stage()) };
    }
    let request = match table.kind.as_str() {
        "register" => return state(b, State::Register { bits: table.value }, each, g),
        "counter" => return state(b, State::Counter { bits: table.value }, each, g),
        "meter" => return state(b, State::Meter, each, g),
        "ternary" => plain(Kind::Ternary),
        "lpm" => plain(Kind::Alpm(PAPER_ALPM)),
        _ => plain(Kind::Exact { digest: None }),
    };
    let (sram, tcam) = laid_out(&request, g);
    if b.tcam {
        tcam
    } else {
        sram
    }
}

thread_local! {
    /// Tables that were laid out: one search asks for the same few again and again, and laying one out takes milliseconds.
    static KNOWN: RefCell<BTreeMap<String, (f64, f64)>> = const { RefCell::new(BTreeMap::new()) };
}

/// Blocks of SRAM and of TCAM.
fn laid_out(table: &Placed, g: &Geometry) -> (f64, f64) {
    let key = format!("{table:?} {g:?}");
    if let Some(known) = KNOWN.with_borrow(|known| known.get(&key).copied()) {
        return known;
    }
    let request = Request::Table { table: table.clone(), attached: Attached::default(), prefixes: false };
    let found = match request.alone(g) {
        Ok(parts) => {
            let sum = Sum::of(&parts);
            (f64::from(sum.sram()), f64::from(sum.tcam))
        }
        Err(_) => (f64::MAX, f64::MAX),
    };
    KNOWN.with_borrow_mut(|known| known.insert(key, found));
    found
}

/// Blocks of cells: as many groups as single ALUs reach, each with a spare block.
fn state(b: &Blocks, state: State, cells: f64, g: &Geometry) -> f64 {
    if b.tcam {
        return 0.0;
    }
    let most = state.most(g) as f64;
    if most == 0.0 {
        return f64::MAX;
    }
    let (whole, rest) = ((cells / most).floor(), cells % most);
    let group = |cells: f64| f64::from(state.data_blocks(cells as u64, g)) + 1.0;
    whole * group(most) + if rest > 0.0 { group(rest) } else { 0.0 }
}
