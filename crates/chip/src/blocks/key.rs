// SPDX-License-Identifier: Apache-2.0
//! Keys as the chip sees them: bytes on the match crossbar, each with the bits of it that count.

/// A key by the name that `tunny-lab plan table --key` and the measured block counts use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Bits of each field, in order. Every field starts on a byte of its own, as fields in packet headers do.
    pub fields: Vec<u32>,
    /// Bits of the field that prefixes are of: the last one.
    pub lpm_bits: u32,
}

/// Names of keys and the widths of their fields.
pub const KEYS: &[(&str, &[u32])] = &[
    ("vni", &[24]),
    ("ip4", &[32]),
    ("ip6", &[128]),
    ("vni_ip4", &[24, 32]),
    ("vni_lbl1_ip4", &[24, 1, 32]),
    ("vni_ip6", &[24, 128]),
    ("vni_lbl1_ip6", &[24, 1, 128]),
    ("vni_lbl1", &[24, 1]),
    ("vni_lbl1_hi64", &[24, 1, 64]),
    ("five_tuple4", &[32, 32, 16, 16, 8]),
    ("five_tuple6", &[128, 128, 16, 16, 8]),
];

impl Key {
    /// The key with this name.
    pub fn named(name: &str) -> Option<Key> {
        let fields = KEYS.iter().find(|(n, _)| *n == name)?.1;
        Some(Key::of(fields))
    }

    /// A key of these fields.
    pub fn of(fields: &[u32]) -> Key {
        Key { fields: fields.to_vec(), lpm_bits: *fields.last().unwrap_or(&0) }
    }

    /// Whether it begins with a VNI (24 bits) before other fields.
    pub fn has_vni(&self) -> bool {
        self.fields.len() > 1 && self.fields[0] == 24
    }

    /// Bits in all.
    pub fn bits(&self) -> u32 {
        self.fields.iter().sum()
    }

    /// Bytes on the crossbar: each byte carries bits of one field only.
    pub fn bytes(&self) -> u32 {
        self.fields.iter().map(|b| b.div_ceil(8)).sum()
    }

    /// Bits used of each byte.
    pub fn byte_bits(&self) -> Vec<u32> {
        let mut out = Vec::new();
        for &bits in &self.fields {
            out.extend(std::iter::repeat_n(8, (bits / 8) as usize));
            if !bits.is_multiple_of(8) {
                out.push(bits % 8);
            }
        }
        out
    }
}
