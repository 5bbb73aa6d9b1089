// SPDX-License-Identifier: Apache-2.0
//! The hash functions that both engines compute. `c_source` prints their C twins; a test in `xdp` compares the two on
//! random keys. The salt is random per node, so that a tenant cannot choose addresses that collide.

/// First multiplier (odd, from the fractional part of the golden ratio).
pub const HASH_MUL_A: u64 = 0x9E37_79B9_7F4A_7C15;
/// Second multiplier (from MurmurHash3's 64-bit finaliser).
pub const HASH_MUL_B: u64 = 0xC4CE_B9FE_1A85_EC53;

/// Hash of a key of one word. The upper 32 bits choose the bucket, all 64 are well mixed.
#[inline(always)]
pub const fn hash1(key: u64, salt: u64) -> u64 {
    let mut x = (key ^ salt).wrapping_mul(HASH_MUL_A);
    x ^= x >> 32;
    x = x.wrapping_mul(HASH_MUL_B);
    x ^ (x >> 29)
}

/// Hash of a key of three words: (VNI, upper half, lower half of an IPv6 address). The lower 32 bits serve as tag, the
/// upper 32 choose the bucket.
#[inline(always)]
pub const fn hash3(vni: u64, hi: u64, lo: u64, salt: u64) -> u64 {
    let mut x = (hi ^ salt).wrapping_mul(HASH_MUL_A);
    x ^= x >> 32;
    x = (x ^ lo).wrapping_mul(HASH_MUL_B);
    x ^= x >> 29;
    x = (x ^ vni).wrapping_mul(HASH_MUL_A);
    x ^ (x >> 32)
}

/// Maps a 64-bit hash to one of `buckets` (any number, not only powers of two) by its upper half.
#[inline(always)]
pub const fn bucket_of(hash: u64, buckets: u32) -> u32 {
    (((hash >> 32) * buckets as u64) >> 32) as u32
}

/// Hash of an inner flow, for the UDP source port, the flow label and the choice of an ECMP member. Not salted: a flow
/// keeps its path when another node takes over.
#[inline(always)]
pub const fn flow_hash_v4(src: u32, dst: u32, proto: u8, ports: u32) -> u64 {
    hash1((src as u64) << 32 | dst as u64, (proto as u64) << 32 | ports as u64)
}

/// Hash of an inner IPv6 flow; addresses as (upper, lower) halves, `ports` = source << 16 | destination, or 0.
#[inline(always)]
pub const fn flow_hash_v6(src: (u64, u64), dst: (u64, u64), proto: u8, ports: u32) -> u64 {
    hash3((proto as u64) << 32 | ports as u64, src.0 ^ dst.0.rotate_left(32), src.1 ^ dst.1.rotate_left(32), 0)
}

/// What is kept of a MAC address that frames of a circuit come from; never 0. All its bits are in it, folded.
pub const fn mac_mark(mac: u64) -> u32 {
    match (mac ^ mac >> crate::MAC_MARK_BITS) as u32 & ((1 << crate::MAC_MARK_BITS) - 1) {
        0 => 1,
        mark => mark,
    }
}

/// Outer UDP source port of a flow: 49152–65535 (RFC 7348 §5).
#[inline(always)]
pub const fn source_port(flow_hash: u64) -> u16 {
    0xC000 | (flow_hash & 0x3FFF) as u16
}

/// Outer IPv6 flow label of a flow (RFC 6438), 20 bits.
#[inline(always)]
pub const fn flow_label(flow_hash: u64) -> u32 {
    (flow_hash >> 14) as u32 & 0xF_FFFF
}

/// The C twins of the functions above.
pub fn c_source() -> String {
    format!(
        "#define TUNNY_HASH_MUL_A {HASH_MUL_A:#x}ULL\n#define TUNNY_HASH_MUL_B {HASH_MUL_B:#x}ULL\n\n\
static __always_inline __u64 tunny_hash1(__u64 key, __u64 salt)\n{{\n\
\t__u64 x = (key ^ salt) * TUNNY_HASH_MUL_A;\n\tx ^= x >> 32;\n\tx *= TUNNY_HASH_MUL_B;\n\treturn x ^ (x >> 29);\n}}\n\n\
static __always_inline __u64 tunny_hash3(__u64 vni, __u64 hi, __u64 lo, __u64 salt)\n{{\n\
\t__u64 x = (hi ^ salt) * TUNNY_HASH_MUL_A;\n\tx ^= x >> 32;\n\tx = (x ^ lo) * TUNNY_HASH_MUL_B;\n\tx ^= x >> 29;\n\
\tx = (x ^ vni) * TUNNY_HASH_MUL_A;\n\treturn x ^ (x >> 32);\n}}\n\n\
static __always_inline __u32 tunny_bucket_of(__u64 hash, __u32 buckets)\n{{\n\
\treturn (__u32)(((hash >> 32) * buckets) >> 32);\n}}\n\n\
static __always_inline __u64 tunny_rotl32(__u64 x)\n{{\n\treturn x << 32 | x >> 32;\n}}\n\n\
static __always_inline __u64 tunny_flow_hash_v4(__u32 src, __u32 dst, __u8 proto, __u32 ports)\n{{\n\
\treturn tunny_hash1((__u64)src << 32 | dst, (__u64)proto << 32 | ports);\n}}\n\n\
static __always_inline __u64 tunny_flow_hash_v6(__u64 src_hi, __u64 src_lo, __u64 dst_hi, __u64 dst_lo, __u8 proto,\n\
\t\t\t\t\t\t__u32 ports)\n{{\n\
\treturn tunny_hash3((__u64)proto << 32 | ports, src_hi ^ tunny_rotl32(dst_hi), src_lo ^ tunny_rotl32(dst_lo), 0);\n}}\n\n\
static __always_inline __u16 tunny_source_port(__u64 flow_hash)\n{{\n\treturn 0xC000 | (flow_hash & 0x3FFF);\n}}\n\n\
static __always_inline __u32 tunny_flow_label(__u64 flow_hash)\n{{\n\treturn (__u32)(flow_hash >> 14) & 0xFFFFF;\n}}\n"
    )
}
