// SPDX-License-Identifier: Apache-2.0
//! The prefixes of one field in one table: which lengths can match a value, and how many of its bits show that.
//!
//! A path-compressed binary tree in an array. A walk for a value stops where no prefix of the table goes on as the value does; the
//! bits up to there are all that is needed to know it, however long the prefixes below would have been. A table of subnets keeps
//! megaflows as wide as the subnets allow.
use crate::key::low128;

const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Node {
    /// Left-aligned.
    bits: u128,
    len: u8,
    /// How many rules have exactly this prefix.
    rules: u32,
    children: [u32; 2],
}

/// What a walk found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Found {
    /// Bit N: a prefix of N + 1 bits matches.
    pub lengths: u128,
    /// So many leading bits of the value show that no other length does.
    pub bits: u8,
}

/// The prefixes.
#[derive(Clone, Debug, Default)]
pub struct Trie {
    nodes: Vec<Node>,
    free: Vec<u32>,
}

fn bit(bits: u128, at: u8) -> usize {
    (bits >> (127 - at) & 1) as usize
}

fn top(len: u8) -> u128 {
    !low128(128 - len)
}

impl Trie {
    fn node(&mut self, bits: u128, len: u8) -> u32 {
        let node = Node { bits: bits & top(len), len, rules: 0, children: [NONE; 2] };
        match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        }
    }

    /// Adds a prefix: left-aligned bits and their number, at least 1.
    pub fn insert(&mut self, bits: u128, len: u8) {
        if self.nodes.is_empty() {
            self.node(0, 0);
        }
        let mut at = 0u32;
        loop {
            let node = &self.nodes[at as usize];
            if node.len == len {
                self.nodes[at as usize].rules += 1;
                return;
            }
            let side = bit(bits, node.len);
            let child = node.children[side];
            if child == NONE {
                let new = self.node(bits, len);
                self.nodes[new as usize].rules = 1;
                self.nodes[at as usize].children[side] = new;
                return;
            }
            let (child_bits, child_len) = (self.nodes[child as usize].bits, self.nodes[child as usize].len);
            let common = ((child_bits ^ bits).leading_zeros() as u8).min(child_len).min(len);
            if common < child_len {
                let middle = self.node(bits, common);
                self.nodes[middle as usize].children[bit(child_bits, common)] = child;
                self.nodes[at as usize].children[side] = middle;
                at = middle;
            } else {
                at = child;
            }
        }
    }

    /// Removes a prefix that was added.
    pub fn remove(&mut self, bits: u128, len: u8) {
        let mut path = Vec::new();
        let mut at = 0u32;
        loop {
            let Some(node) = self.nodes.get(at as usize) else { return };
            if node.len >= len {
                break;
            }
            let side = bit(bits, node.len);
            path.push((at, side));
            at = node.children[side];
            if at == NONE {
                return;
            }
        }
        let node = &mut self.nodes[at as usize];
        if node.len != len || node.bits != bits & top(len) || node.rules == 0 {
            return;
        }
        node.rules -= 1;
        // Nodes that say nothing any more go, so that a walk does not look at bits in vain.
        while let Some((parent, side)) = path.pop() {
            let node = &self.nodes[at as usize];
            if node.rules > 0 {
                return;
            }
            let next = match node.children {
                [NONE, NONE] => NONE,
                [child, NONE] | [NONE, child] => child,
                _ => return,
            };
            self.nodes[parent as usize].children[side] = next;
            self.free.push(at);
            at = parent;
        }
    }

    /// Walks down for a left-aligned value of so many bits.
    pub fn find(&self, value: u128, width: u8) -> Found {
        let mut found = Found::default();
        let Some(mut node) = self.nodes.first() else { return found };
        loop {
            if node.len >= width {
                found.bits = found.bits.max(width);
                return found;
            }
            let child = node.children[bit(value, node.len)];
            if child == NONE {
                // A bit that leads nowhere was looked at, unless the node has no children at all.
                let looked = if node.children == [NONE; 2] { node.len } else { node.len + 1 };
                found.bits = found.bits.max(looked);
                return found;
            }
            node = &self.nodes[child as usize];
            let common = ((node.bits ^ value).leading_zeros() as u8).min(node.len);
            if common < node.len {
                found.bits = common + 1;
                return found;
            }
            found.bits = node.len;
            if node.rules > 0 {
                found.lengths |= 1 << (node.len - 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn equals_a_list_of_prefixes_under_random_changes() {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(3);
        let mut trie = Trie::default();
        let mut list: Vec<(u128, u8)> = Vec::new();
        for round in 0..30_000 {
            let len = random.random_range(1..=12u8);
            let bits = u128::from(random.random::<u16>()) << 112 & top(len);
            match random.random_range(0..3) {
                0 if !list.is_empty() => {
                    let (bits, len) = list.swap_remove(random.random_range(0..list.len()));
                    trie.remove(bits, len);
                }
                _ if list.len() < 60 => {
                    list.push((bits, len));
                    trie.insert(bits, len);
                }
                _ => {}
            }
            let value = u128::from(random.random::<u16>()) << 112;
            let found = trie.find(value, 16);
            let lengths =
                list.iter().filter(|(b, l)| (b ^ value) & top(*l) == 0).fold(0, |all, (_, l)| all | 1u128 << (l - 1));
            assert_eq!(found.lengths, lengths, "round {round}");
            // Any value that agrees on the bits that were looked at matches the same lengths.
            for _ in 0..4 {
                let other = value & top(found.bits) | u128::from(random.random::<u16>()) << 112 & !top(found.bits);
                let same = list
                    .iter()
                    .filter(|(b, l)| (b ^ other) & top(*l) == 0)
                    .fold(0, |all, (_, l)| all | 1u128 << (l - 1));
                assert_eq!(same, lengths, "round {round}: {} bits of {value:x} and {other:x}", found.bits);
            }
        }
    }
}
