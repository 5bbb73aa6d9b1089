// SPDX-License-Identifier: Apache-2.0
//! Rate limits as virtual time (GCRA), and the two-rate three-color meter (RFC 2698) made of four of them.
//!
//! A token bucket of rate r and depth b is the same as one theoretical arrival time (TAT): a packet of cost c ns
//! conforms if max(TAT, now) + c − now ≤ b, and then TAT becomes max(TAT, now) + c. That is one 64-bit word and one
//! compare-and-swap, with no refill to compute: several engines may share it. The XDP program does the same.
//!
//! Bytes before packets: the byte meter decides and counts, and unless it says red the packet meter does; the worse
//! color of the two is the packet's.

use memory::Line;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tries of the compare-and-swap before a packet is let through.
const CAS_TRIES: usize = 4;

/// Color of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Color {
    /// Within the committed rate.
    Green,
    /// Above the committed, within the peak rate.
    Yellow,
    /// Above the peak rate: dropped.
    Red,
}

/// One GCRA step. `cost` and `burst` in ns.
#[inline]
pub fn gcra(tat: &AtomicU64, now: u64, cost: u64, burst: u64) -> bool {
    for _ in 0..CAS_TRIES {
        let old = tat.load(Ordering::Relaxed);
        let new = old.max(now).wrapping_add(cost);
        if new.wrapping_sub(now) > burst {
            return false;
        }
        if tat.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            return true;
        }
    }
    true
}

/// Applies a RATE_LIMIT word to one packet. 0 = no limit.
#[inline]
pub fn rate_limit(word: u64, tat: &AtomicU64, now: u64) -> bool {
    let ns = word & 0xffff_ffff;
    ns == 0 || gcra(tat, now, ns, ns.wrapping_mul(word >> abi::RATE_LIMIT_BURST_SHIFT))
}

/// One two-rate three-color step (color-blind) of one packet, by RATE_LIMIT words of the committed and the peak rate.
#[inline]
pub(crate) fn packet_color([committed, peak]: [u64; 2], c_tat: &AtomicU64, p_tat: &AtomicU64, now: u64) -> Color {
    if !rate_limit(peak, p_tat, now) {
        Color::Red
    } else if !rate_limit(committed, c_tat, now) {
        Color::Yellow
    } else {
        Color::Green
    }
}

/// Whether a packet to the software path passes when all together and its tenant have these colors: a tenant is limited only
/// while the total is congested. Within its committed rate it always passes, within its peak rate as long as the total is not above its
/// own peak. So what passes is at most the total's peak rate and the tenants' committed rates.
#[inline]
pub(crate) fn punt_passes(total: Color, tenant: Color) -> bool {
    match total {
        Color::Green => true,
        Color::Yellow => tenant != Color::Red,
        Color::Red => tenant == Color::Green,
    }
}

/// Cost in ns of `amount` units at a rate of `ns << 16` per unit.
#[inline]
fn cost(amount: u64, rate: u64) -> u64 {
    amount.wrapping_mul(rate) >> 16
}

/// One two-rate three-color step (color-blind). `config` and `tat` are the words of committed and peak.
#[inline]
fn three_color(amount: u64, config: [u64; 4], committed: &AtomicU64, peak: &AtomicU64, now: u64) -> Color {
    let [cir, cbs, pir, pbs] = config;
    if pir != 0 && !gcra(peak, now, cost(amount, pir), pbs) {
        Color::Red
    } else if cir != 0 && !gcra(committed, now, cost(amount, cir), cbs) {
        Color::Yellow
    } else {
        Color::Green
    }
}

/// Meters one packet of `bytes` with the meter block whose lines are given, and counts its color.
#[inline]
pub(crate) fn meter(config: &Line, state: &Line, bytes: u32, now: u64) -> Color {
    let c = config.snapshot();
    let bytes_color = three_color(u64::from(bytes), [c[0], c[1], c[2], c[3]], &state.0[0], &state.0[1], now);
    let color = if bytes_color == Color::Red {
        Color::Red
    } else {
        bytes_color.max(three_color(1, [c[4], c[5], c[6], c[7]], &state.0[2], &state.0[3], now))
    };
    state.0[4 + color as usize].fetch_add(1, Ordering::Relaxed);
    color
}

/// The words of a MeterConfig for a specification.
pub(crate) fn config_words(spec: &crate::MeterSpec) -> [u64; 8] {
    let mut words = [0; 8];
    for (at, rate) in [(0, &spec.bytes), (4, &spec.packets)] {
        for (at, rate, burst) in
            [(at, rate.committed_rate, rate.committed_burst), (at + 2, rate.peak_rate, rate.peak_burst)]
        {
            if rate > 0 {
                words[at] = u64::try_from((1_000_000_000u128 << 16) / u128::from(rate)).unwrap_or(u64::MAX).max(1);
                words[at + 1] =
                    u64::try_from(u128::from(burst) * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX >> 1);
            }
        }
    }
    words
}
