// SPDX-License-Identifier: Apache-2.0
//! Registers, counters and meters: data blocks with as many map RAMs and one spare block for writing while reading.

use super::{Geometry, Part, Unplaced};

/// What the blocks hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A register with cells of so many bits (1, 8, 16, 32, 64).
    Register {
        /// Bits of a cell.
        bits: u32,
    },
    /// Packet or byte counters of so many bits: 32 or 64.
    Counter {
        /// Bits of a counter.
        bits: u32,
    },
    /// Two-rate meters, one a word.
    Meter,
}

/// What `cells` of it take; all in one stage, since one ALU serves them.
pub fn part(state: State, cells: u64, g: &Geometry) -> Result<Part, Unplaced> {
    let per_word = match state {
        State::Register { bits } => g.sram_width / bits.next_power_of_two(),
        State::Counter { bits } => g.sram_width / if bits <= 32 { 32 } else { 64 },
        State::Meter => 1,
    };
    let blocks = cells.div_ceil(u64::from(per_word * g.sram_depth)).min(u64::from(u32::MAX) - 1) as u32;
    if blocks > g.register_blocks_max {
        return Err(Unplaced::Register { blocks, most: g.register_blocks_max });
    }
    let stats = matches!(state, State::Counter { .. });
    Ok(Part {
        sram_indirect: blocks + 1,
        map_ram: blocks + 1,
        entries: u64::from(blocks * per_word * g.sram_depth),
        alus: u32::from(!stats),
        stats_alus: u32::from(stats),
        ..Part::default()
    })
}
