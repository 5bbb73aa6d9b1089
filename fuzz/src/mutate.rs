// SPDX-License-Identifier: Apache-2.0
//! Mutations: what a fuzzer does to an input.

use testkit::rng::Rng;

/// Inputs do not grow beyond this.
const LONGEST: usize = 64 << 10;

/// Values at which lengths and offsets go wrong.
const EDGES: [u64; 12] = [0, 1, 2, 7, 8, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff];

/// A new input out of `input`, sometimes with a part of `other` or one of `words`.
pub fn next(r: &mut Rng, input: &[u8], other: &[u8], words: &[&str]) -> Vec<u8> {
    let mut out = input.to_vec();
    for _ in 0..1 + r.below(4) {
        step(r, &mut out, other, words);
    }
    out.truncate(LONGEST);
    out
}

fn step(r: &mut Rng, out: &mut Vec<u8>, other: &[u8], words: &[&str]) {
    let at = r.below(out.len() + 1);
    match r.below(if words.is_empty() { 9 } else { 11 }) {
        0 if at < out.len() => out[at] ^= 1 << r.below(8),
        1 if at < out.len() => out[at] = r.word() as u8,
        2 => edge(r, out, at),
        3 => out.truncate(at),
        4 => {
            let n = r.below(out.len() - at + 1).min(64);
            out.drain(at..at + n);
        }
        5 => {
            let n = 1 + r.below(16);
            let bytes: Vec<u8> = (0..n).map(|_| r.word() as u8).collect();
            out.splice(at..at, bytes);
        }
        6 => {
            let n = r.below(out.len() - at + 1).min(256);
            let copy = out[at..at + n].to_vec();
            let to = r.below(out.len() + 1);
            out.splice(to..to, copy);
        }
        7 => {
            let from = r.below(other.len() + 1);
            let n = r.below(other.len() - from + 1);
            out.splice(at..at, other[from..from + n].iter().copied());
        }
        8 => {
            // Overwrite in place: structure before and after stays where it is.
            let from = r.below(other.len() + 1);
            let n = r.below(32).min(other.len() - from).min(out.len() - at);
            out[at..at + n].copy_from_slice(&other[from..from + n]);
        }
        9 | 10 => {
            let word = words[r.below(words.len())];
            out.splice(at..at, word.bytes());
        }
        _ => (),
    }
}

/// Writes an edge value, big or little endian, of one, two or four bytes.
fn edge(r: &mut Rng, out: &mut [u8], at: usize) {
    let value = EDGES[r.below(EDGES.len())];
    let n = [1, 2, 4][r.below(3)];
    let Some(place) = out.get_mut(at..at + n) else { return };
    let (big, little) = (value.to_be_bytes(), value.to_le_bytes());
    match r.below(2) {
        0 => place.copy_from_slice(&big[8 - n..]),
        _ => place.copy_from_slice(&little[..n]),
    }
}
