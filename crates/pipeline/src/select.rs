// SPDX-License-Identifier: Apache-2.0
//! `multipath` and `bundle`: choosing one of several links or ports by a hash of the packet.
use crate::field::Subfield;
use crate::hash::{words2, HashFields};
use crate::key::{Key, Mask};

/// How a hash becomes a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Remainder.
    Modulo,
    /// Equal ranges.
    HashThreshold,
    /// Highest random weight.
    Hrw,
    /// Hash again until it fits.
    IterHash,
}

/// A `multipath` action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Multipath {
    /// What is hashed.
    pub fields: HashFields,
    /// Basis of the hash.
    pub basis: u16,
    /// How.
    pub algorithm: Algorithm,
    /// Number of links.
    pub links: u32,
    /// Argument of the algorithm.
    pub argument: u32,
    /// Where the link goes.
    pub to: Subfield,
}

impl Multipath {
    /// The link for a packet.
    pub fn link(&self, key: &Key, depends: &mut Mask) -> u32 {
        self.fields.depends(key, depends);
        let hash = self.fields.hash(key, self.basis);
        let n = self.links.max(1);
        match self.algorithm {
            Algorithm::Modulo => hash % n,
            Algorithm::HashThreshold if n == 1 => 0,
            Algorithm::HashThreshold => hash / (u32::MAX / n + 1),
            Algorithm::Hrw if n <= 64 => (0..n).rev().max_by_key(|link| words2(hash, *link)).unwrap_or(0),
            Algorithm::Hrw => iterate(hash, n, 0),
            Algorithm::IterHash => iterate(hash, n, self.argument),
        }
    }
}

fn iterate(hash: u32, links: u32, modulo: u32) -> u32 {
    let modulo = match modulo < links || modulo / 2 > links {
        true => links.next_power_of_two(),
        false => modulo,
    };
    // At least every other value fits, so this ends; the bound is for bad luck only.
    (0..4096).map(|n| words2(hash, n) % modulo).find(|link| *link < links).unwrap_or(0)
}

/// A `bundle` or `bundle_load` action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// What is hashed.
    pub fields: HashFields,
    /// Basis of the hash.
    pub basis: u16,
    /// The first live one instead of a hash.
    pub active_backup: bool,
    /// The ports; all count as live.
    pub members: Vec<u16>,
    /// Where the port goes, else the packet goes out of it.
    pub to: Option<Subfield>,
}

/// No port.
pub const PORT_NONE: u16 = 0xffff;

impl Bundle {
    /// The port for a packet.
    pub fn port(&self, key: &Key, depends: &mut Mask) -> u16 {
        if self.active_backup || self.members.len() < 2 {
            return self.members.first().copied().unwrap_or(PORT_NONE);
        }
        self.fields.depends(key, depends);
        let hash = self.fields.hash(key, self.basis);
        let best = (0..self.members.len()).rev().max_by_key(|n| words2(*n as u32, hash));
        best.map_or(PORT_NONE, |n| self.members[n])
    }
}
