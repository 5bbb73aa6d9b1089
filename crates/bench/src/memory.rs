// SPDX-License-Identifier: Apache-2.0
//! What a cache miss costs on this machine at this moment: printed beside the results that depend on it, since neighbours on the
//! same host change it by a factor of two.
use crate::cpu;
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;

/// Cost of random reads of whole cache lines on ordinary pages.
#[derive(Clone, Copy, Debug)]
pub struct MissCost {
    /// A read whose address depends on the one before, ns: what XDP pays for each round of lookups.
    pub dependent_ns: f64,
    /// A read that was asked for 64 reads before, ns: what the Rust path pays for each line.
    pub prefetched_ns: f64,
}

const LINE: usize = 64;
const BATCH: usize = 64;
const READS: usize = 1 << 20;

impl MissCost {
    /// Measures on as many bytes (rounded up to a power of two).
    pub fn measure(bytes: u64) -> MissCost {
        let lines = (bytes as usize / LINE).next_power_of_two();
        let mut memory = vec![0u64; lines * LINE / 8];
        let mut random = SplitMix64::seed_from_u64(1);
        // A cycle through all lines in random order (Sattolo), so that no read repeats soon.
        let mut order: Vec<u32> = (0..lines as u32).collect();
        for i in (1..lines).rev() {
            order.swap(i, random.random_range(0..i));
        }
        for i in 0..lines {
            memory[order[i] as usize * (LINE / 8)] = u64::from(order[(i + 1) % lines]);
        }
        let mut at = 0usize;
        let time = cpu::thread_time();
        for _ in 0..READS / 4 {
            at = memory[at * (LINE / 8)] as usize;
        }
        let dependent = cpu::thread_time() - time;
        let mut sum = at as u64;
        let mut ahead = [0usize; BATCH];
        let time = cpu::thread_time();
        for _ in 0..READS / BATCH {
            for line in &mut ahead {
                *line = random.next_u64() as usize & (lines - 1);
                cpu::prefetch(memory.as_ptr().wrapping_add(*line * (LINE / 8)).cast());
            }
            for line in ahead {
                sum = sum.wrapping_add(memory[line * (LINE / 8)]);
            }
        }
        let prefetched = cpu::thread_time() - time;
        std::hint::black_box(sum);
        MissCost {
            dependent_ns: dependent as f64 * 4.0 / READS as f64,
            prefetched_ns: prefetched as f64 / READS as f64,
        }
    }
}

/// ns of CPU time for a round of `width` reads of random lines that overlap, where the next round's addresses depend on this one's:
/// what a packet costs at least that needs `width` lines and knows all of them from its headers.
pub fn round_ns(bytes: u64, width: usize) -> f64 {
    let lines = (bytes as usize / LINE).next_power_of_two();
    let mut random = SplitMix64::seed_from_u64(2);
    let memory: Vec<u64> = (0..lines * LINE / 8).map(|_| random.next_u64()).collect();
    let mut at = 1u64;
    let rounds = READS as u64 / 8;
    let time = cpu::thread_time();
    for round in 0..rounds {
        let mut next = 0u64;
        for i in 0..width as u64 {
            // Each read takes its address from the round before alone, so a CPU may have all of them under way.
            let line = (at.rotate_left(11 * i as u32) ^ i.wrapping_mul(0x9E37_79B9_7F4A_7C15)) as usize & (lines - 1);
            next = next.wrapping_add(memory[line * (LINE / 8)]);
        }
        // The number of the round goes in, for what depends on one line alone would soon go round in a circle.
        at = (next ^ round).wrapping_mul(0xC4CE_B9FE_1A85_EC53).rotate_left(23);
    }
    let time = cpu::thread_time() - time;
    std::hint::black_box(at);
    time as f64 / rounds as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_costs_more_than_asking_ahead() {
        let cost = MissCost::measure(32 << 20);
        assert!(cost.prefetched_ns > 0.0);
        assert!(cost.dependent_ns > cost.prefetched_ns, "{cost:?}");
    }
}
