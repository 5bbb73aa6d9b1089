// SPDX-License-Identifier: Apache-2.0
//! What a cache miss costs on this machine at this moment: printed beside the results that depend on it, since neighbours on the
//! same host change it by a factor of two.
use crate::workload::Random;
use crate::cpu;

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
        let mut random = Random(1);
        // A cycle through all lines in random order (Sattolo), so that no read repeats soon.
        let mut order: Vec<u32> = (0..lines as u32).collect();
        for i in (1..lines).rev() {
            order.swap(i, random.below(i as u32) as usize);
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
                *line = random.word() as usize & (lines - 1);
                cpu::prefetch(memory.as_ptr().wrapping_add(*line * (LINE / 8)).cast());
            }
            for line in ahead {
                sum = sum.wrapping_add(memory[line * (LINE / 8)]);
            }
        }
        let prefetched = cpu::thread_time() - time;
        std::hint::black_box(sum);
        MissCost { dependent_ns: dependent as f64 * 4.0 / READS as f64, prefetched_ns: prefetched as f64 / READS as f64 }
    }
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
