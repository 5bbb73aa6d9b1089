// SPDX-License-Identifier: Apache-2.0
//! PEER words in the second line of a bucket of VPCs.

use crate::hashtable::Place;
use abi::*;
use memory::Lines;

/// Of a bucket.
const PEERS: usize = 6;

/// PEER words of a VPC without the number of its entry; the last ones are 0 if there are fewer.
pub(crate) type PeerWords = [u64; PEERS];

fn entry(place: Place) -> u64 {
    place.slot as u64 + 1
}

/// The words of the entry at a place.
pub(crate) fn at(lines: &Lines, place: Place) -> PeerWords {
    let second = lines.at(place.line + 1);
    let mut words = PeerWords::default();
    let own = (0..PEERS).map(|i| second.word(i)).filter(|word| word & PEER_ENTRY_MASK == entry(place));
    words.iter_mut().zip(own).for_each(|(to, word)| *to = word & !PEER_ENTRY_MASK);
    words
}

/// Takes them out. It must be done before the entry's `roots` change.
pub(crate) fn clear(lines: &Lines, place: Place) {
    let second = lines.at(place.line + 1);
    for i in (0..PEERS).filter(|i| second.word(*i) & PEER_ENTRY_MASK == entry(place)) {
        second.set(i, 0);
    }
}

/// Puts as many in as there is room. No reader may hold other `roots` of the entry than those that they repeat.
pub(crate) fn set(lines: &Lines, place: Place, words: &PeerWords) {
    let second = lines.at(place.line + 1);
    let mut wanted = words.iter().filter(|word| **word != 0);
    for i in (0..PEERS).filter(|i| second.word(*i) == 0) {
        let Some(word) = wanted.next() else { return };
        second.set(i, word | entry(place));
    }
}
