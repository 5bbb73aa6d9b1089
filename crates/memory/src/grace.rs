// SPDX-License-Identifier: Apache-2.0
//! Grace periods for Rust readers.
//!
//! Each reader owns a slot. On entering it writes the current epoch there, on leaving 0. The writer raises the epoch
//! and waits until no slot holds an older one: then every reader that could have seen what was unpublished before has
//! left. A full fence on both sides (store the slot, then load tables; store tables, then load the slots) makes sure
//! that either the writer sees the reader or the reader sees the publication.
//! The slots lie in the table memory's head, so that readers in another process count too. A reader that dies while it
//! is inside would stop the writer for ever; the slot holds its process id, and a slot whose process is gone is freed.

use crate::sync::{back_off, fence, AtomicU32, AtomicU64, Ordering};

/// Readers at most.
pub const READERS_MAX: usize = if cfg!(loom) { 1 } else { 512 };

/// One reader's slot, on a line of its own.
#[repr(C, align(64))]
struct Slot {
    /// Process id of the owner, 0 = free.
    owner: AtomicU32,
    /// Epoch in which the reader entered, 0 = outside.
    epoch: AtomicU64,
}

/// The slots of all readers, and the epoch. All zeroes is a valid, empty state.
#[repr(C, align(64))]
pub struct Readers {
    epoch: AtomicU64,
    slots: [Slot; READERS_MAX],
}

impl Default for Readers {
    fn default() -> Self {
        Readers {
            epoch: AtomicU64::new(0),
            slots: std::array::from_fn(|_| Slot { owner: AtomicU32::new(0), epoch: AtomicU64::new(0) }),
        }
    }
}

impl Readers {
    /// Takes a free slot. None if all are taken.
    pub fn claim(&self) -> Option<usize> {
        let me = std::process::id();
        let free = |s: &Slot| s.owner.compare_exchange(0, me, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        self.slots.iter().position(free).or_else(|| {
            self.slots.iter().for_each(Slot::free_if_owner_is_gone);
            self.slots.iter().position(free)
        })
    }

    /// Frees every slot. For a process that knows that it is the only one left (it holds the lock of the instance) and has no
    /// reader yet: a process before may have died inside, and its process id may be somebody else's by now, even our own.
    pub fn forget_all(&self) {
        for slot in &self.slots {
            slot.epoch.store(0, Ordering::Release);
            slot.owner.store(0, Ordering::Release);
        }
    }

    /// Gives a slot back.
    pub fn release(&self, slot: usize) {
        self.slots[slot].epoch.store(0, Ordering::Release);
        self.slots[slot].owner.store(0, Ordering::Release);
    }

    /// The reader is inside from here on.
    #[inline(always)]
    pub fn enter(&self, slot: usize) {
        // Epochs count in twos from 1, so that no epoch is 0.
        let now = self.epoch.load(Ordering::Relaxed) * 2 + 1;
        self.slots[slot].epoch.store(now, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The reader is outside.
    #[inline(always)]
    pub fn leave(&self, slot: usize) {
        self.slots[slot].epoch.store(0, Ordering::Release);
    }

    /// Waits until every reader that is inside now has left.
    pub fn wait(&self) {
        fence(Ordering::SeqCst);
        let new = (self.epoch.fetch_add(1, Ordering::SeqCst) + 1) * 2 + 1;
        fence(Ordering::SeqCst);
        for slot in &self.slots {
            let mut tries = 0u32;
            loop {
                let seen = slot.epoch.load(Ordering::Acquire);
                if seen == 0 || seen >= new {
                    break;
                }
                tries += 1;
                back_off(tries);
                if tries.is_multiple_of(1024) {
                    slot.free_if_owner_is_gone();
                }
            }
        }
        fence(Ordering::SeqCst);
    }
}

impl Slot {
    fn free_if_owner_is_gone(&self) {
        let owner = self.owner.load(Ordering::Acquire);
        // SAFETY: signal 0 only asks whether the process exists.
        let gone = owner == 0
            || (unsafe { libc::kill(owner as i32, 0) } != 0
                && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH));
        if gone {
            self.epoch.store(0, Ordering::Release);
            let _ = self.owner.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel whether a process lives")]
    fn slots_of_the_dead_are_found_again() {
        let readers = Readers::default();
        // A process id beyond the largest that Linux gives.
        let dead = (1 << 22) + 1;
        for slot in &readers.slots {
            slot.owner.store(dead, Ordering::Relaxed);
        }
        let first = readers.claim().expect("a slot of a dead process");
        assert_eq!(readers.slots[first].owner.load(Ordering::Relaxed), std::process::id());
        // A reader with our own process id died inside: only whoever knows better can tell.
        readers.enter(readers.claim().unwrap());
        readers.forget_all();
        readers.wait();
        assert_eq!(readers.claim(), Some(0));
    }

    #[test]
    fn wait_returns_only_when_an_earlier_reader_has_left() {
        let readers = Readers::default();
        let slot = readers.claim().unwrap();
        readers.enter(slot);
        let left = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(20));
                left.store(true, Ordering::SeqCst);
                readers.leave(slot);
            });
            readers.wait();
            assert!(left.load(Ordering::SeqCst));
        });
        readers.enter(slot);
        readers.leave(slot);
        readers.wait();
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel whether a process lives")]
    fn slots_are_limited_and_given_back() {
        let readers = Readers::default();
        let all: Vec<_> = std::iter::from_fn(|| readers.claim()).collect();
        assert_eq!(all.len(), READERS_MAX);
        readers.release(all[7]);
        assert_eq!(readers.claim(), Some(7));
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel whether a process lives")]
    fn a_dead_process_does_not_hold_a_slot() {
        let readers = Readers::default();
        let slot = readers.claim().unwrap();
        // A process id that cannot exist (pid_max is at most 2^22).
        readers.slots[slot].owner.store(0x7fff_fff0, Ordering::SeqCst);
        readers.enter(slot);
        readers.wait();
        assert_eq!(readers.slots[slot].owner.load(Ordering::SeqCst), 0);
    }
    /// Who entered before is waited for, who entered since is not.
    #[test]
    fn epochs_tell_who_entered_before() {
        let readers = Readers::default();
        let epoch = |slot: usize| readers.slots[slot].epoch.load(Ordering::Relaxed);
        assert_eq!([readers.claim(), readers.claim(), readers.claim()], [Some(0), Some(1), Some(2)]);
        readers.enter(0);
        assert_eq!([epoch(0), epoch(1)], [1, 0]);
        readers.leave(0);
        readers.wait();
        readers.wait();
        readers.enter(1);
        assert_eq!([epoch(0), epoch(1), epoch(2)], [0, 5, 0]);
        // One that has entered as soon as the epoch rose: the wait that raised it does not wait for it.
        readers.leave(1);
        readers.slots[2].epoch.store(7, Ordering::Relaxed);
        readers.wait();
        assert_eq!((epoch(2), readers.epoch.load(Ordering::Relaxed)), (7, 3));
        readers.release(2);
        assert_eq!(
            (epoch(2), readers.slots[2].owner.load(Ordering::Relaxed)),
            (0, 0),
            "whoever has it next is outside"
        );
        readers.enter(1);
        readers.forget_all();
        assert!(readers
            .slots
            .iter()
            .all(|s| s.owner.load(Ordering::Relaxed) == 0 && s.epoch.load(Ordering::Relaxed) == 0));
    }

    /// The slot of a process that lives stays its own, whoever asks.
    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel whether a process lives")]
    fn slots_of_the_living_stay() {
        let readers = Readers::default();
        for (owner, stays) in [(std::process::id(), true), (1, true), (0x7fff_fff0, false), (0, false)] {
            let slot = &readers.slots[9];
            slot.owner.store(owner, Ordering::Relaxed);
            slot.epoch.store(11, Ordering::Relaxed);
            slot.free_if_owner_is_gone();
            let want = if stays { (owner, 11) } else { (0, 0) };
            assert_eq!((slot.owner.load(Ordering::Relaxed), slot.epoch.load(Ordering::Relaxed)), want, "{owner}");
        }
    }
}
