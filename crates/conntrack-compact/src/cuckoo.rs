// SPDX-License-Identifier: Apache-2.0
//! Making room in a table of buckets where each entry may lie in one of two: breadth first search for the shortest chain of moves,
//! which is then carried out from its end, so that no entry is absent at any time.

/// Buckets that one search looks into.
const SEARCH_MAX: usize = 1024;

/// A place: bucket and slot.
pub(crate) type Place = (u32, u32);

/// A table of buckets.
pub(crate) trait Nest {
    /// A place of this bucket where something may be stored now.
    fn free(&self, bucket: u32) -> Option<u32>;
    /// The other bucket of each entry of this bucket that may be moved, by slot.
    fn others(&self, bucket: u32) -> [Option<u32>; 4];
    /// Copies an entry to a free place, counts the move, clears the old place.
    fn shift(&mut self, from: Place, to: Place);
}

struct Node {
    bucket: u32,
    /// Index of the bucket that this one may relieve, and the slot there; itself for the two that begin.
    from: usize,
    slot: u32,
}

/// A free place in one of two buckets; entries are moved if there is none. None: no chain was found.
pub(crate) fn make_room(nest: &mut impl Nest, candidates: [u32; 2]) -> Option<Place> {
    if let Some(place) = candidates.into_iter().find_map(|b| Some((b, nest.free(b)?))) {
        return Some(place);
    }
    let mut nodes: Vec<Node> = Vec::with_capacity(64);
    nodes.extend(candidates.iter().enumerate().map(|(i, b)| Node { bucket: *b, from: i, slot: 0 }));
    let mut at = 0;
    while at < nodes.len() {
        let bucket = nodes[at].bucket;
        for (slot, other) in nest.others(bucket).into_iter().enumerate() {
            let Some(other) = other.filter(|o| *o != bucket) else { continue };
            if let Some(free) = nest.free(other) {
                return Some(carry_out(nest, &nodes, at, slot as u32, (other, free)));
            }
            if nodes.len() < SEARCH_MAX && nodes.iter().all(|n| n.bucket != other) {
                nodes.push(Node { bucket: other, from: at, slot: slot as u32 });
            }
        }
        at += 1;
    }
    None
}

/// Moves the entry of `slot` to `to`, then what its bucket was to relieve into its place, and so on.
fn carry_out(nest: &mut impl Nest, nodes: &[Node], mut at: usize, mut slot: u32, mut to: Place) -> Place {
    loop {
        let from = (nodes[at].bucket, slot);
        nest.shift(from, to);
        to = from;
        if nodes[at].from == at {
            return to;
        }
        slot = nodes[at].slot;
        at = nodes[at].from;
    }
}
