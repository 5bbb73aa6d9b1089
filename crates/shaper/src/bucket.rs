// SPDX-License-Identifier: Apache-2.0
//! A token bucket, kept as the time at which it is full again (GCRA). Nothing is rounded: what a division leaves over is carried along.

use crate::LATE;

/// Nanoseconds of a second, times bits of a byte.
const BITS: u64 = 8_000_000_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    /// When it is full, ns, and what of a nanosecond goes beyond, in parts of the rate.
    full: u64,
    over: u64,
    /// Bits a second, 0: it has no end.
    rate: u64,
}

impl Bucket {
    pub const UNLIMITED: Bucket = Bucket { full: 0, over: 0, rate: 0 };

    /// It is full.
    pub fn reset(&mut self, now: u64) {
        (self.full, self.over) = (now, 0);
    }

    /// Another rate. What was taken out of it and is not there again is owed on, in bytes.
    pub fn change(&mut self, rate: u64, now: u64) {
        let time = |bits: u128, rate: u64| (bits / u128::from(rate)).min(u128::from(u64::MAX / 4)) as u64;
        let owed = u128::from(self.full.saturating_sub(now)) * u128::from(self.rate);
        (self.full, self.over) = match (self.rate, rate) {
            (_, 0) => (now, 0),
            (0, _) => (now, 0),
            _ => (now.saturating_add(time(owed, rate)), 0),
        };
        self.rate = rate;
    }

    /// Nothing has waited: what would be more than full is lost.
    pub fn idle(&mut self, now: u64) {
        if self.full < now {
            self.reset(now);
        }
    }

    /// It was let wait by others from a time on: what it would hold more than full since then is lost. What the caller came late before is made good.
    pub fn waited(&mut self, from: u64, now: u64) {
        if self.full < now {
            self.full = if self.full < from { self.full + (now - from) } else { now };
        }
    }

    /// When it holds so many bytes, or is full, if they are more than it ever holds (`burst`).
    pub fn due(&self, burst: u32, bytes: u32) -> u64 {
        if self.rate == 0 {
            return 0;
        }
        self.full.saturating_sub(u64::from(burst.saturating_sub(bytes)) * BITS / self.rate)
    }

    /// Takes so many bytes out. Who comes late finds more in it than it holds, up to [`LATE`].
    pub fn leaves(&mut self, bytes: u32, now: u64) {
        if self.full < now.saturating_sub(LATE) {
            self.reset(now - LATE);
        }
        if self.rate == 0 {
            return;
        }
        let parts = u64::from(bytes) * BITS + self.over;
        self.full = self.full.saturating_add(parts / self.rate);
        self.over = parts % self.rate;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(rate: u64) -> Bucket {
        let mut b = Bucket::UNLIMITED;
        b.change(rate, 0);
        b
    }

    #[test]
    fn a_full_bucket_gives_its_burst_and_then_its_rate() {
        // 8 kbit/s: a byte a millisecond.
        let mut b = bucket(8_000);
        assert_eq!(b.due(1_000, 1_000), 0);
        b.leaves(1_000, 0);
        assert_eq!((b.due(1_000, 1), b.due(1_000, 1_000)), (1_000_000, 1_000_000_000));
        // More than it holds: when it is full.
        assert_eq!(b.due(1_000, 5_000), 1_000_000_000);
        b.idle(3_000_000_000);
        assert_eq!(b.due(1_000, 1_000), 3_000_000_000 - 1_000_000_000 + 1_000_000_000);
    }

    #[test]
    fn nothing_is_lost_by_rounding() {
        // 64 bytes at 100 Gbit/s are 5.12 ns.
        let mut b = bucket(100_000_000_000);
        (0..1_000_000).for_each(|_| b.leaves(64, 0));
        assert_eq!(b.due(64, 64), 5_120_000);
    }

    #[test]
    fn what_is_owed_is_owed_at_the_new_rate() {
        let mut b = bucket(8_000);
        b.leaves(1_000, 0);
        b.change(16_000, 0);
        assert_eq!(b.due(1_000, 1_000), 500_000_000);
        b.change(0, 0);
        assert_eq!(b.due(1_000, 1_000_000), 0, "no end");
    }

    #[test]
    fn lateness_is_made_good_up_to_a_limit() {
        let mut b = bucket(8_000_000);
        b.leaves(1_000, LATE / 2);
        assert_eq!(b.full, 1_000_000, "as if it had left in time");
        b.leaves(1_000, 100 * LATE);
        assert_eq!(b.full, 99 * LATE + 1_000_000);
    }
}
