// SPDX-License-Identifier: Apache-2.0
//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).
//!
//! Sums are kept in 64 bits and folded late: a one's complement sum is the same whatever the width it is taken in, so
//! that a header is summed by a few wide additions. All sums here are over big-endian words as numbers.

/// Adds two one's complement sums of 64 bits.
#[inline(always)]
pub const fn add(a: u64, b: u64) -> u64 {
    let (s, carry) = a.overflowing_add(b);
    s + carry as u64
}

/// Folds a sum to 16 bits. 0 only for a sum of nothing but zeros.
#[inline(always)]
pub const fn fold(s: u64) -> u16 {
    // Adding a word to itself with its halves exchanged leaves, in the upper half, their sum with end-around carry.
    let s = (s.wrapping_add(s.rotate_left(32)) >> 32) as u32;
    (s.wrapping_add(s.rotate_left(16)) >> 16) as u16
}

/// One's complement sum of bytes, unfolded; an odd last byte is the upper half of a word. The bytes must begin at an
/// even distance from the start of what is summed.
#[inline]
pub fn sum(data: &[u8]) -> u64 {
    let mut acc = 0u64;
    let mut rest = data;
    while let Some((word, tail)) = rest.split_first_chunk::<8>() {
        acc = add(acc, u64::from_be_bytes(*word));
        rest = tail;
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        acc = add(acc, u64::from_be_bytes(last));
    }
    acc
}

/// Folded sum of an IPv4 header without options, in the machine's byte order; 0xffff if its checksum is right. (The sum's
/// bytes change places with the words' bytes, RFC 1071 §2, and 0xffff is the same both ways.)
#[inline(always)]
pub fn sum_ipv4_header(h: &[u8; 20]) -> u16 {
    let word = |at: usize| {
        u64::from_ne_bytes([h[at], h[at + 1], h[at + 2], h[at + 3], h[at + 4], h[at + 5], h[at + 6], h[at + 7]])
    };
    let last = u32::from_ne_bytes([h[16], h[17], h[18], h[19]]) as u64;
    fold(add(add(word(0), word(8)), last))
}

/// The checksum field for data that sums to `s` with a zero checksum field.
#[inline(always)]
pub const fn finish(s: u64) -> u16 {
    !fold(s)
}

/// Sum of the pseudo header of UDP, TCP (RFC 768, RFC 793) over IPv4.
#[inline(always)]
pub const fn pseudo_v4(src: u32, dst: u32, protocol: u8, length: u32) -> u64 {
    src as u64 + dst as u64 + protocol as u64 + length as u64
}

/// Sum of the pseudo header over IPv6 (RFC 8200 §8.1).
#[inline(always)]
pub const fn pseudo_v6(src: u128, dst: u128, protocol: u8, length: u32) -> u64 {
    let s = add((src >> 64) as u64, src as u64);
    let d = add((dst >> 64) as u64, dst as u64);
    add(add(s, d), protocol as u64 + length as u64)
}

/// RFC 1624, equation 3: HC' = ~(~HC + ~m + m'), for one 16-bit word that changed from `old` to `new`.
#[inline(always)]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    !fold(!checksum as u64 + !old as u64 + new as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};
    use rand_xoshiro::SplitMix64;

    /// The definition, word by word.
    fn naive(data: &[u8]) -> u16 {
        let mut s = 0u32;
        for w in data.chunks(2) {
            s += (w[0] as u32) << 8 | *w.get(1).unwrap_or(&0) as u32;
            s = (s >> 16) + (s & 0xffff);
        }
        s as u16
    }

    #[test]
    fn sum_equals_definition_at_every_length() {
        let mut random = SplitMix64::seed_from_u64(1);
        let mut data = Vec::new();
        for len in 0..200 {
            assert_eq!(fold(sum(&data)), naive(&data), "length {len}");
            data.push(random.next_u64() as u8);
        }
        let ones = [0xff; 64];
        assert_eq!(fold(sum(&ones)), 0xffff);
    }

    #[test]
    fn rfc_1071_example() {
        assert_eq!(fold(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), 0xddf2);
    }

    #[test]
    fn ipv4_header_by_wide_adds() {
        let mut h = [0x45, 0, 0, 0x54, 0, 0, 0x40, 0, 64, 1, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let c = finish(sum(&h));
        h[10..12].copy_from_slice(&c.to_be_bytes());
        assert_eq!(sum_ipv4_header(&h), 0xffff);
        for i in 0..20 {
            let mut bad = h;
            bad[i] ^= 1;
            assert_ne!(sum_ipv4_header(&bad), 0xffff);
        }
        assert_eq!(sum_ipv4_header(&[0xff; 20]), 0xffff);
        assert_eq!(sum_ipv4_header(&[0; 20]), 0);
    }

    #[test]
    fn fold_equals_division_by_ffff() {
        let mut random = SplitMix64::seed_from_u64(2);
        for i in 0..100_000u64 {
            let x = random.next_u64();
            for s in [x, x >> 16, x >> 32, x >> 47, u64::MAX - (x >> 40), i, i << 32, i << 48] {
                let want = if s == 0 { 0 } else { ((s - 1) % 0xffff + 1) as u16 };
                assert_eq!(fold(s), want, "{s:#x}");
            }
        }
        assert_eq!([fold(u64::MAX), fold(0x1_0000_0000 - 1), fold(0xffff_0001)], [0xffff, 0xffff, 1]);
    }

    #[test]
    fn rfc_1624_worked_example() {
        // RFC 1624 §4: HC = 0xdd2f, m = 0x5555 becomes 0x3285: HC' must be 0x0000, not 0xffff.
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn update_equals_a_full_computation_for_every_header_word_change() {
        // All-zero data is the one case where the two may differ in the sign of zero; headers are never all zero.
        let mut data = [0x45, 0x00, 0x12, 0x34];
        for new in (0..=0xffffu32).step_by(7) {
            let before = finish(sum(&data));
            let old = u16::from_be_bytes([data[2], data[3]]);
            data[2..4].copy_from_slice(&(new as u16).to_be_bytes());
            assert_eq!(update(before, old, new as u16), finish(sum(&data)), "{old:#x} -> {new:#x}");
        }
    }

    #[test]
    fn ttl_decrement_at_the_edges_of_one_complement() {
        for checksum in [0x0000u16, 0x0001, 0xfeff, 0xff00, 0xfffe, 0xffff] {
            for ttl in [2u16, 64, 255] {
                let new = update(checksum, ttl << 8 | 6, (ttl - 1) << 8 | 6);
                // Sum of data (~checksum) and the new word in place of the old one, plus the new checksum: all ones.
                let data = fold(!checksum as u64 + !(ttl << 8 | 6) as u64 + ((ttl - 1) << 8 | 6) as u64);
                assert_eq!(fold(data as u64 + new as u64), 0xffff);
            }
        }
    }

    #[test]
    fn pseudo_headers() {
        assert_eq!(fold(pseudo_v4(0x0a00_0001, 0x0a00_0002, 17, 8)), naive(&[10, 0, 0, 1, 10, 0, 0, 2, 0, 17, 0, 8]));
        let src = 0x2001_0db8_0000_0000_ffff_ffff_ffff_ff01u128;
        let dst = 0xfd00_0000_0000_0000_0000_0000_0000_0002u128;
        let mut bytes = src.to_be_bytes().to_vec();
        bytes.extend(dst.to_be_bytes());
        bytes.extend([0, 0, 0, 40, 0, 0, 0, 58]);
        assert_eq!(fold(pseudo_v6(src, dst, 58, 40)), naive(&bytes));
    }
}
