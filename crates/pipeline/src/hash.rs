// SPDX-License-Identifier: Apache-2.0
//! The hashes by which `multipath`, `bundle` and select groups choose: Jenkins' lookup3 (its values are part of what the `multipath` action
//! promises) and Murmur3 (which Open vSwitch uses on x86-64 without SSE 4.2).
use crate::field::Field;
use crate::key::{Key, Mask};

/// What is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashFields {
    /// Source MAC address.
    EthSrc,
    /// MAC and IP addresses, VLANs, protocol, TCP and SCTP ports; the same in both directions.
    SymmetricL4,
    /// IP addresses, protocol, TCP and SCTP ports.
    SymmetricL3L4,
    /// The same with UDP ports.
    SymmetricL3L4Udp,
    /// IP addresses.
    SymmetricL3,
    /// Source IP address.
    NwSrc,
    /// Destination IP address.
    NwDst,
}

impl HashFields {
    /// By the name that flows use.
    pub fn named(name: &str) -> Option<HashFields> {
        Some(match name {
            "eth_src" => HashFields::EthSrc,
            "symmetric_l4" => HashFields::SymmetricL4,
            "symmetric_l3l4" => HashFields::SymmetricL3L4,
            "symmetric_l3l4+udp" => HashFields::SymmetricL3L4Udp,
            "symmetric_l3" => HashFields::SymmetricL3,
            "nw_src" => HashFields::NwSrc,
            "nw_dst" => HashFields::NwDst,
            _ => return None,
        })
    }

    /// Adds the bits that the hash looks at.
    pub fn depends(self, key: &Key, mask: &mut Mask) {
        if self == HashFields::EthSrc {
            return mask.add(Field::EthSrc);
        }
        mask.add(Field::EthType);
        let both = [Field::NwSrc, Field::NwDst, Field::Ipv6Src, Field::Ipv6Dst];
        let ip = matches!(key.get(Field::EthType), 0x0800 | 0x86dd);
        let layer2 = match self {
            HashFields::SymmetricL4 => true,
            HashFields::SymmetricL3L4 | HashFields::SymmetricL3L4Udp => !ip,
            _ => false,
        };
        if layer2 {
            mask.add(Field::EthSrc);
            mask.add(Field::EthDst);
            mask.add_bits(Field::VlanTci, 0xfff);
            mask.add_bits(Field::InnerTci, 0xfff);
        }
        let fields: &[Field] = match self {
            HashFields::NwSrc => &[Field::NwSrc, Field::Ipv6Src],
            HashFields::NwDst => &[Field::NwDst, Field::Ipv6Dst],
            _ => &both,
        };
        let skip = if key.get(Field::EthType) == 0x86dd {
            [Field::NwSrc, Field::NwDst]
        } else {
            [Field::Ipv6Src, Field::Ipv6Dst]
        };
        if ip {
            fields.iter().filter(|f| !skip.contains(f)).for_each(|f| mask.add(*f));
        }
        if ip && matches!(self, HashFields::SymmetricL4 | HashFields::SymmetricL3L4 | HashFields::SymmetricL3L4Udp) {
            mask.add(Field::NwProto);
            mask.add(Field::NwFrag);
            let proto = key.get(Field::NwProto);
            if matches!(proto, 6 | 132) || self == HashFields::SymmetricL3L4Udp && proto == 17 {
                mask.add(Field::TcpSrc);
                mask.add(Field::TcpDst);
            }
        }
    }

    /// The hash.
    pub fn hash(self, key: &Key, basis: u16) -> u32 {
        let basis = u32::from(basis);
        let v6 = key.get(Field::EthType) == 0x86dd;
        let ip = v6 || key.get(Field::EthType) == 0x0800;
        let address = |v4: Field, six: Field| match (ip, v6) {
            (false, _) => basis,
            (_, false) => jenkins(&key.get(v4).to_be_bytes()[12..], basis),
            (_, true) => jenkins(&key.get(six).to_be_bytes(), basis),
        };
        match self {
            HashFields::EthSrc => jenkins(&key.get(Field::EthSrc).to_be_bytes()[10..], basis),
            HashFields::SymmetricL4 => symmetric_l4(key, basis),
            HashFields::SymmetricL3L4 => symmetric_l3l4(key, basis, false),
            HashFields::SymmetricL3L4Udp => symmetric_l3l4(key, basis, true),
            HashFields::SymmetricL3 => {
                let mut bytes = [0; 20];
                bytes[..16].copy_from_slice(&addresses(key));
                bytes[16..18].copy_from_slice(&key.get(Field::EthType).to_be_bytes()[14..]);
                jenkins(&bytes, basis)
            }
            HashFields::NwSrc => address(Field::NwSrc, Field::Ipv6Src),
            HashFields::NwDst => address(Field::NwDst, Field::Ipv6Dst),
        }
    }
}

/// Source and destination address, added without carry: IPv4 in front.
fn addresses(key: &Key) -> [u8; 16] {
    match key.get(Field::EthType) {
        0x0800 => ((key.get(Field::NwSrc) ^ key.get(Field::NwDst)) << 96).to_be_bytes(),
        0x86dd => (key.get(Field::Ipv6Src) ^ key.get(Field::Ipv6Dst)).to_be_bytes(),
        _ => [0; 16],
    }
}

/// The hash that is the same for both directions of a connection.
pub fn symmetric_l4(key: &Key, basis: u32) -> u32 {
    let mut bytes = [0u8; 32];
    bytes[..16].copy_from_slice(&addresses(key));
    let eth = key.get(Field::EthType);
    bytes[16..18].copy_from_slice(&eth.to_be_bytes()[14..]);
    let vlan = (key.get(Field::VlanTci) ^ key.get(Field::InnerTci)) & 0xfff;
    bytes[18..20].copy_from_slice(&vlan.to_be_bytes()[14..]);
    let proto = key.get(Field::NwProto) as u8;
    if matches!(eth, 0x0800 | 0x86dd) {
        if proto == 6 || proto == 132 {
            let ports = key.get(Field::TcpSrc) ^ key.get(Field::TcpDst);
            bytes[20..22].copy_from_slice(&ports.to_be_bytes()[14..]);
        }
        bytes[28] = proto;
    }
    bytes[22..28].copy_from_slice(&(key.get(Field::EthSrc) ^ key.get(Field::EthDst)).to_be_bytes()[10..]);
    jenkins(&bytes, basis)
}

fn symmetric_l3l4(key: &Key, basis: u32, udp: bool) -> u32 {
    let eth = key.get(Field::EthType);
    if !matches!(eth, 0x0800 | 0x86dd) {
        let mut bytes = [0u8; 12];
        let macs = (key.get(Field::EthSrc) ^ key.get(Field::EthDst)).to_be_bytes();
        bytes[..2].copy_from_slice(&eth.to_be_bytes()[14..]);
        let vlan = (key.get(Field::VlanTci) ^ key.get(Field::InnerTci)) & 0xfff;
        bytes[2..4].copy_from_slice(&vlan.to_be_bytes()[14..]);
        bytes[4..10].copy_from_slice(&macs[10..]);
        return jenkins(&bytes, basis);
    }
    let bytes = addresses(key);
    let words = if eth == 0x0800 { 1 } else { 4 };
    let mut hash =
        bytes.chunks_exact(4).take(words).fold(basis, |h, w| murmur(h, u32::from_le_bytes([w[0], w[1], w[2], w[3]])));
    let proto = key.get(Field::NwProto) as u8;
    hash = murmur(hash, u32::from(proto));
    if key.get(Field::NwFrag) & 3 == 0 && (matches!(proto, 6 | 132) || udp && proto == 17) {
        let ports = (key.get(Field::TcpSrc) ^ key.get(Field::TcpDst)) as u16;
        hash = murmur(hash, u32::from(ports.swap_bytes()));
    }
    finish(hash ^ basis)
}

fn murmur_add(hash: u32, data: u32) -> u32 {
    hash ^ data.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593)
}

fn murmur(hash: u32, data: u32) -> u32 {
    murmur_add(hash, data).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64)
}

fn finish(mut hash: u32) -> u32 {
    hash ^= hash >> 16;
    hash = hash.wrapping_mul(0x85eb_ca6b);
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

/// Hash of two words.
pub fn words2(x: u32, y: u32) -> u32 {
    finish(murmur(murmur(x, 0), y) ^ 8)
}

/// Hash of one word.
pub fn int(x: u32, basis: u32) -> u32 {
    words2(x, basis)
}

/// Hash of a double word.
pub fn finish64(basis: u32, x: u64) -> u32 {
    finish(murmur(murmur(basis, x as u32), (x >> 32) as u32) ^ 8)
}

/// Hash of bytes.
pub fn bytes(data: &[u8], basis: u32) -> u32 {
    let mut hash = basis;
    for part in data.chunks(4) {
        let mut word = [0; 4];
        word[..part.len()].copy_from_slice(part);
        hash = murmur(hash, u32::from_le_bytes(word));
    }
    finish(hash ^ data.len() as u32)
}

/// Jenkins' lookup3 over bytes.
pub fn jenkins(data: &[u8], basis: u32) -> u32 {
    let start = 0xdead_beef_u32.wrapping_add(data.len() as u32).wrapping_add(basis);
    let (mut a, mut b, mut c) = (start, start, start);
    let mut rest = data;
    let word = |bytes: &[u8], at: usize| {
        let mut w = [0; 4];
        let part = bytes.get(at..).unwrap_or(&[]);
        let len = part.len().min(4);
        w[..len].copy_from_slice(&part[..len]);
        u32::from_le_bytes(w)
    };
    while rest.len() >= 12 {
        a = a.wrapping_add(word(rest, 0));
        b = b.wrapping_add(word(rest, 4));
        c = c.wrapping_add(word(rest, 8));
        for (shift1, shift2, shift3) in [(4, 6, 8), (16, 19, 4)] {
            a = a.wrapping_sub(c) ^ c.rotate_left(shift1);
            c = c.wrapping_add(b);
            b = b.wrapping_sub(a) ^ a.rotate_left(shift2);
            a = a.wrapping_add(c);
            c = c.wrapping_sub(b) ^ b.rotate_left(shift3);
            b = b.wrapping_add(a);
        }
        rest = &rest[12..];
    }
    if !rest.is_empty() {
        a = a.wrapping_add(word(rest, 0));
        b = b.wrapping_add(word(rest, 4));
        c = c.wrapping_add(word(rest, 8));
        c = (c ^ b).wrapping_sub(b.rotate_left(14));
        a = (a ^ c).wrapping_sub(c.rotate_left(11));
        b = (b ^ a).wrapping_sub(a.rotate_left(25));
        c = (c ^ b).wrapping_sub(b.rotate_left(16));
        a = (a ^ c).wrapping_sub(c.rotate_left(4));
        b = (b ^ a).wrapping_sub(a.rotate_left(14));
        c = (c ^ b).wrapping_sub(b.rotate_left(24));
    }
    c
}
