// SPDX-License-Identifier: Apache-2.0
//! Keys as plain words, and which bits of them are which packet field.
use crate::index::Sparse;
use crate::partition::Fields;
use pipeline::{Field, Key, Mask};
use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;

/// Words in a key.
pub const WORDS: usize = pipeline::key::WORDS;

/// A key or a mask.
pub type Words = [u64; WORDS];

/// Packet fields by which lookups are coupled, one bit each. All of the packet counts: both layers of VLAN, MPLS, ARP, IPv6, ND, tunnel and
/// connection tracking. Registers and metadata do not: they are the state in which a segment starts, and every segment
/// matches the bits of them that it depends on. Ethernet type and the fragment flag do not either: they only say
/// which fields a packet has, nearly every lookup consults them, and they have few values.
const GROUPS: &[&[Field]] = &[
    &[Field::InPort],
    &[Field::EthSrc],
    &[Field::EthDst],
    &[Field::VlanTci, Field::VlanTpid],
    &[Field::InnerTci, Field::InnerTpid],
    &[Field::MplsLse0],
    &[Field::MplsLse1, Field::MplsLse2],
    &[Field::NwSrc, Field::Ipv6Src],
    &[Field::NwDst, Field::Ipv6Dst],
    &[Field::Ipv6Label],
    &[Field::NwProto],
    &[Field::NwTos],
    &[Field::NwTtl],
    &[Field::TcpSrc],
    &[Field::TcpDst],
    &[Field::TcpFlags],
    &[Field::ArpSha],
    &[Field::ArpTha],
    &[Field::NdTarget],
    &[Field::NdReserved],
    &[Field::TunId],
    &[Field::TunSrc, Field::TunIpv6Src],
    &[Field::TunDst, Field::TunIpv6Dst],
    &[Field::TunFlags, Field::TunTos, Field::TunTtl, Field::TunGbpId, Field::TunGbpFlags],
    &[Field::TunMetadata0, Field::TunMetadata1, Field::TunMetadata2, Field::TunMetadata3],
    &[Field::PktMark],
    &[Field::CtState],
    &[Field::CtZone],
    &[Field::CtMark],
    &[Field::CtLabel],
    &[Field::CtNwSrc, Field::CtIpv6Src],
    &[Field::CtNwDst, Field::CtIpv6Dst],
    &[Field::CtNwProto],
    &[Field::CtTpSrc],
    &[Field::CtTpDst],
];

/// How many bits these fields have in an IPv4 packet: a measure of how many values they may take.
pub fn bits(mut fields: Fields) -> u32 {
    let mut all = 0;
    while fields != 0 {
        let group = GROUPS.get(fields.trailing_zeros() as usize).and_then(|g| g.first());
        all += group.map_or(16, |f| u32::from(f.info().stored));
        fields &= fields - 1;
    }
    all
}

/// For each word, masks of groups that have bits in it.
fn by_word() -> &'static Vec<Vec<(u64, Fields)>> {
    static TABLE: OnceLock<Vec<Vec<(u64, Fields)>>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = vec![Vec::new(); WORDS];
        for (n, group) in GROUPS.iter().enumerate() {
            let mask = Mask::of(group);
            for (word, bits) in mask.0.iter().enumerate().filter(|(_, m)| **m != 0) {
                table[word].push((*bits, 1 << n));
            }
        }
        table
    })
}

/// The packet fields of which a mask has bits.
pub fn fields(mask: &Mask) -> Fields {
    let table = by_word();
    let mut all = 0;
    let mut map = mask.words();
    while map != 0 {
        let word = map.trailing_zeros() as usize;
        map &= map - 1;
        for (bits, field) in &table[word] {
            if mask.0[word] & bits != 0 {
                all |= field;
            }
        }
    }
    all
}

/// Mixes a word into a hash; for identities of entries, not against an adversary.
#[inline]
pub fn mix(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word ^ 0xda94_2042_e4dd_58b5) * 0x9e37_79b9_7f4a_7c15;
    (product as u64) ^ (product >> 64) as u64 ^ hash.rotate_left(17)
}

/// Takes hashes as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken(u64);

impl Hasher for Taken {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for some in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..some.len()].copy_from_slice(some);
            self.0 = mix(self.0, u64::from_le_bytes(word));
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

impl BuildHasher for Taken {
    type Hasher = Taken;
    fn build_hasher(&self) -> Taken {
        Taken(0)
    }
}

/// The words of `mask` that are not zero.
pub fn sparse(mask: &Words) -> Sparse {
    let mut map = Mask(*mask).words();
    // Of the right length at once: entries are made on every miss.
    let mut all = Vec::with_capacity(map.count_ones() as usize);
    while map != 0 {
        let i = map.trailing_zeros();
        map &= map - 1;
        all.push((i as u8, mask[i as usize]));
    }
    all.into()
}

/// A hash of the masked words of a key.
pub fn hash_masked(seed: u64, key: &Key, words: &[(u8, u64)]) -> u64 {
    words.iter().fold(seed, |h, &(i, m)| mix(mix(h, u64::from(i) << 56 ^ m), key.0[i as usize] & m))
}

/// An array of so many default values that is read at random: on large pages.
pub(crate) fn filled<T: Clone + Default>(len: usize) -> Vec<T> {
    let mut array = Vec::with_capacity(len);
    tables::large_pages(array.spare_capacity_mut());
    array.resize(len, T::default());
    array
}

/// Makes room for so many more in an array that is read at random: on large pages, and in large steps, so that little of it lies on others. `limit`: what it will hold at most.
pub(crate) fn make_room<T>(array: &mut Vec<T>, more: usize, limit: usize) {
    const STEP: usize = 4 << 20;
    if array.capacity() - array.len() < more {
        let step = (STEP / size_of::<T>().max(1)).max(array.len()).min(limit.saturating_sub(array.len()));
        array.reserve_exact(step.max(more));
        tables::large_pages(array.spare_capacity_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_field_couples_and_registers_do_not() {
        let of = |f: Field| fields(&Mask::of(&[f]));
        assert_eq!(of(Field::Reg0) | of(Field::Metadata) | of(Field::EthType) | of(Field::NwFrag), 0);
        for field in [Field::Ipv6Src, Field::VlanTci, Field::TunId, Field::CtState, Field::NdTarget, Field::ArpSha] {
            assert_eq!(of(field).count_ones(), 1, "{field:?}");
        }
        assert_eq!(of(Field::NwSrc), of(Field::Ipv6Src), "an address is an address");
        assert_ne!(of(Field::NwSrc), of(Field::NwDst));
    }
}
