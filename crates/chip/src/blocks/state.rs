// SPDX-License-Identifier: Apache-2.0
//! Registers, counters and meters: data blocks with as many map RAMs and one spare block for writing while reading.
//!
//! They stand by themselves, addressed by an index, or beside a table's entries, one for each: then every stage of the
//! table has its own, with a spare of its own. Sources: the vendor's compiler, `mau/resource_estimate.cpp`
//! (`CounterPerWord`, `RegisterPerWord`, `calculate_attached_rams`), `mau/memories.cpp` (`mems_needed`: one block more
//! than the data; `COLOR_MAPRAM_PER_ROW`: a meter's colours, four a map RAM row).

use super::{Geometry, Part, Unplaced};

/// What the blocks hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A register with cells of so many bits: 1, 8, 16, 32, or 64 (two of 32 side by side).
    Register {
        /// Bits of a cell.
        bits: u32,
    },
    /// Counters of packets or of bytes: to 32 bits four a word, to 64 two.
    Counter {
        /// Bits of a counter.
        bits: u32,
    },
    /// Counters of packets and bytes together: 28 and 36 bits two a word, 64 each one a word.
    CounterPair {
        /// Bits of the bytes' counter.
        bits: u32,
    },
    /// Two-rate meters, one a word; their colours take map RAMs beside.
    Meter,
}

/// Bits of a cell that a stateful ALU reads and writes.
pub const CELL_BITS: &[u32] = &[1, 8, 16, 32, 64];
/// A counter's bits at most.
pub const COUNTER_BITS_MAX: u32 = 64;
/// Bits of the bytes' counter if two pairs share a word.
pub const PAIR_BITS: u32 = 36;
/// Colours in a row of a map RAM.
const COLOURS_PER_ROW: u64 = 4;

impl State {
    /// Cells in a word of 128 bits; in proportion if words are shorter.
    pub fn per_word(&self, g: &Geometry) -> u32 {
        let of_128 = match *self {
            State::Register { bits } => 128 / bits.clamp(1, 128).next_power_of_two(),
            State::Counter { bits } => 2 << u32::from(bits <= 32),
            State::CounterPair { bits } => 1 + u32::from(bits <= PAIR_BITS),
            State::Meter => 1,
        };
        (of_128 * g.sram_width / 128).max(1)
    }

    /// Data blocks of so many cells, the spare one not included.
    pub fn data_blocks(&self, cells: u64, g: &Geometry) -> u32 {
        cells.div_ceil(u64::from(self.per_word(g)) * u64::from(g.sram_depth)).min(1 << 30) as u32
    }

    /// Cells that the blocks which one ALU reaches have room for; 0 if nothing serves them.
    pub fn most(&self, g: &Geometry) -> u64 {
        let alus = if self.is_counter() { g.stats_alus } else { g.meter_alus };
        let rams = (1..=g.register_blocks_max.min(g.sram_per_stage())).rev().find(|data| {
            let cells = u64::from(*data) * u64::from(self.per_word(g) * g.sram_depth);
            self.map_ram(*data, cells, g) <= g.map_ram_per_stage && *data < g.sram_per_stage()
        });
        let rams = if alus == 0 { None } else { rams };
        rams.map_or(0, |data| u64::from(data) * u64::from(self.per_word(g)) * u64::from(g.sram_depth))
    }

    /// What the option of `tunny-lab plan table` is called.
    pub fn option(&self) -> &'static str {
        match self {
            State::Register { .. } => "register-bits",
            State::Counter { .. } | State::CounterPair { .. } => "counter",
            State::Meter => "meter",
        }
    }

    /// A statistics ALU serves it.
    pub fn is_counter(&self) -> bool {
        matches!(self, State::Counter { .. } | State::CounterPair { .. })
    }

    fn map_ram(&self, data: u32, cells: u64, g: &Geometry) -> u32 {
        let colours = match self {
            State::Meter => cells.div_ceil(COLOURS_PER_ROW * u64::from(g.sram_depth)) as u32,
            _ => 0,
        };
        data + 1 + colours
    }
}

/// What `cells` of it take; all in one stage, since one ALU serves them.
pub fn part(state: State, cells: u64, g: &Geometry) -> Result<Part, Unplaced> {
    let data = state.data_blocks(cells, g);
    if data > g.register_blocks_max {
        return Err(Unplaced::Register { blocks: data, most: g.register_blocks_max });
    }
    let counter = state.is_counter();
    Ok(Part {
        sram_indirect: data + 1,
        map_ram: state.map_ram(data, cells, g),
        entries: u64::from(data) * u64::from(state.per_word(g)) * u64::from(g.sram_depth),
        alus: u32::from(!counter),
        stats_alus: u32::from(counter),
        ..Part::default()
    })
}

/// State beside a table's entries, at most one of each kind: a counter, a meter, a register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attached(pub [Option<State>; 3]);

impl Attached {
    /// Each of them.
    pub fn states(&self) -> impl Iterator<Item = State> + '_ {
        self.0.iter().flatten().copied()
    }

    /// Nothing is attached.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// What it takes beside a part with room for so many entries; None if one of them is more than an ALU reaches.
    pub fn attached_state(&self, entries: u64, g: &Geometry) -> Option<Part> {
        self.states().try_fold(Part::default(), |sum, state| {
            let p = part(state, entries, g).ok()?;
            Some(sum.with_state(&p))
        })
    }

    /// SRAM blocks of it; more than any chip has if it cannot be.
    pub fn blocks(&self, entries: u64, g: &Geometry) -> u32 {
        self.attached_state(entries, g).map_or(1 << 24, |p| p.sram_indirect)
    }
}

impl Part {
    /// This part, and the state beside its entries.
    pub fn with_state(self, state: &Part) -> Part {
        Part {
            sram_indirect: self.sram_indirect + state.sram_indirect,
            map_ram: self.map_ram + state.map_ram,
            alus: self.alus + state.alus,
            stats_alus: self.stats_alus + state.stats_alus,
            ..self
        }
    }
}
