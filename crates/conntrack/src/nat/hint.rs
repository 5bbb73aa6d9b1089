// SPDX-License-Identifier: Apache-2.0
//! Where VMs lie in memory, as hints for prefetching.
//!
//! A new connection walks from the part to its VM, from there to the VM's mappings and to its block of ports: each step is a
//! cache miss that the next one waits for, and all of it under the part's lock. A worker has a whole batch of packets, so
//! it can ask ahead; but without the lock nothing of that may be read. So whoever has used a VM notes the addresses
//! here, half a line a VM. A note may be of another VM, or of memory that is gone: it is only ever prefetched.

use super::flat::{entry_at, Place};
use super::types::Protocol;
use super::vm::{Mapping, Vm};
use super::PARTS;
use crate::prefetch_address;
use abi::Mix;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Notes; VMs that fall on one overwrite it.
const NOTES: usize = 1 << 16;
/// Addresses of user space have 47 bits: above stands how many bits the numbers of a VM's mappings have.
const MASK_BITS_SHIFT: u32 = 56;

/// Address of the VM, of its mappings, of its next block and of that block's ports.
#[derive(Debug, Default)]
#[repr(align(32))]
struct Note([AtomicUsize; 4]);

/// The notes, and the array of VMs of each part.
#[derive(Debug)]
pub(super) struct Hints {
    notes: Box<[Note]>,
    parts: Box<[[AtomicUsize; 2]]>,
    mix: Mix,
}

fn store(to: &AtomicUsize, new: usize) {
    if to.load(Relaxed) != new {
        to.store(new, Relaxed);
    }
}

impl Hints {
    pub fn new(mix: Mix) -> Hints {
        Hints {
            notes: (0..NOTES).map(|_| Note::default()).collect(),
            parts: (0..PARTS).map(|_| Default::default()).collect(),
            mix,
        }
    }

    #[inline(always)]
    fn note(&self, vm: u64) -> &Note {
        &self.notes[(abi::hash1(vm, self.mix.0) >> 24) as usize % NOTES]
    }

    /// Starts to load the note of a VM of a part.
    #[inline(always)]
    pub fn prefetch(&self, vm: u64) {
        prefetch_address(self.note(vm) as *const Note as usize);
    }

    /// Starts to load what a VM's note names, its entry in its part, and the entry of a mapping.
    #[inline(always)]
    pub fn follow(&self, part: usize, vm: u64, key: u32) {
        let [base, mask] = [0, 1].map(|i: usize| self.parts[part][i].load(Relaxed));
        prefetch_address(entry_at::<u64, Box<Vm>>((base, mask), self.mix, vm));
        let [at, slots, block, ports] = [0, 1, 2, 3].map(|i: usize| self.note(vm).0[i].load(Relaxed));
        for line in (0..size_of::<Vm>()).step_by(64) {
            prefetch_address(at.wrapping_add(line));
        }
        let place = (slots & ((1 << MASK_BITS_SHIFT) - 1), (1 << (slots >> MASK_BITS_SHIFT)) - 1);
        prefetch_address(entry_at::<u32, Mapping>(place, self.mix, key.into()));
        for address in [block, block.wrapping_add(64), ports, ports.wrapping_add(64)] {
            prefetch_address(address);
        }
    }

    /// Notes where a VM lies, after it has been used.
    #[inline(always)]
    pub fn tell(&self, word: u64, vm: &Vm, protocol: Protocol) {
        let ((slots, mask), [block, ports]) = vm.places(protocol);
        let bits = mask.wrapping_add(1).trailing_zeros() as usize & 63;
        let slots = slots | bits << MASK_BITS_SHIFT;
        for (to, new) in self.note(word).0.iter().zip([vm as *const Vm as usize, slots, block, ports]) {
            store(to, new);
        }
    }

    /// Notes where the array of VMs of a part lies.
    #[inline(always)]
    pub fn tell_part(&self, part: usize, place: Place) {
        store(&self.parts[part][0], place.0);
        store(&self.parts[part][1], place.1);
    }
}
