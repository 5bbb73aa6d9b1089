// SPDX-License-Identifier: Apache-2.0
//! Ternary tables: blocks side by side for the width of the key, and an SRAM for what a hit says.

use super::sram::{action_formats, ActionFormat};
use super::state::Attached;
use super::{Geometry, Key, Part, Stages, Unplaced};

/// Blocks side by side: a pair of blocks compares 11 key bytes (each 5, and the byte between them), so a remainder of
/// up to 6 bytes takes one block and more takes two. Version and valid bits share the blocks' spare bits.
pub fn width(key_bytes: u32, g: &Geometry) -> u32 {
    let pair = g.tcam_pair_bytes;
    let (pairs, rest) = (key_bytes / pair, key_bytes % pair);
    2 * pairs
        + match rest {
            0 => u32::from(pairs == 0),
            r if r <= pair / 2 + 1 => 1,
            _ => 2,
        }
}

/// Blocks of SRAM that hold what the hits of `entries` say.
fn indirect(entries: u64, action: ActionFormat, g: &Geometry) -> u32 {
    if action.immediate == 0 {
        return 0;
    }
    let bits = action.immediate.next_power_of_two().max(8);
    entries.div_ceil(u64::from(g.sram_depth * (g.sram_width / bits))) as u32
}

/// Places the table, as many whole rows of blocks a stage as it has.
pub fn place(
    key: &Key,
    entries: u64,
    action_bits: u32,
    attached: Attached,
    stages: &mut dyn Stages,
    g: &Geometry,
) -> Result<Vec<(usize, Part)>, Unplaced> {
    let width = width(key.bytes(), g);
    let mut left = entries.div_ceil(u64::from(g.tcam_depth)).min(1 << 30) as u32;
    let formats = action_formats(action_bits, g.immediate_bits);
    let (mut out, mut stage) = (Vec::new(), 0);
    while left > 0 {
        let lost = u64::from(left) * u64::from(g.tcam_depth);
        let Some(grid) = stages.free(stage) else { return Err(Unplaced::Stages { left: lost }) };
        let depth = (1..=left.min(grid.tcam / width)).rev().find_map(|depth| {
            let n = u64::from(depth * g.tcam_depth);
            let state = attached.attached_state(n, g)?;
            let part = formats
                .iter()
                .map(|a| Part {
                    sram_action: a.blocks(n, g) + indirect(n, *a, g),
                    tcam: depth * width,
                    entries: n,
                    tcam_width: width,
                    immediate: a.immediate,
                    ..Part::default()
                })
                .min_by_key(|p| p.sram_action)?
                .with_state(&state);
            grid.takes(&part, g).then_some((depth, part))
        });
        if let Some((depth, part)) = depth {
            left -= depth;
            stages.take(stage, &part);
            out.push((stage, part));
        } else if grid == super::Grid::empty(g) {
            return Err(Unplaced::NoPart);
        }
        stage += 1;
    }
    Ok(out)
}
