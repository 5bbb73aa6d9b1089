// SPDX-License-Identifier: Apache-2.0
//! The four rings of an AF_XDP socket: single producer, single consumer, in memory shared with the kernel.
//!
//! The producer writes entries, then raises `producer` (release); the consumer reads `producer` (acquire), then the
//! entries, then raises `consumer`. Positions count freely and are taken modulo the size, a power of two.

use crate::sys::Mapping;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// A ring of `T` (u64 addresses or descriptors). `T` is plain data without padding that matters.
pub(super) struct Ring<T: Copy> {
    map: Mapping,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    size: u32,
    /// Our own position: of the producer in fill and tx, of the consumer in rx and completion.
    own: u32,
    _of: std::marker::PhantomData<T>,
}

/// The kernel asks for a system call to go on.
const NEED_WAKEUP: u32 = 1;

impl<T: Copy> Ring<T> {
    /// Maps the ring at page offset `at` of a socket.
    pub(super) fn map(socket: RawFd, at: i64, offsets: &libc::xdp_ring_offset, size: u32) -> io::Result<Ring<T>> {
        let bytes = offsets.desc as usize + size as usize * size_of::<T>();
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let map = Mapping::new(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, socket, at)?;
        Ok(Ring {
            map,
            producer: offsets.producer as usize,
            consumer: offsets.consumer as usize,
            flags: offsets.flags as usize,
            entries: offsets.desc as usize,
            size,
            own: 0,
            _of: std::marker::PhantomData,
        })
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: the kernel said that an aligned 32-bit word is at this offset of the mapping.
        unsafe { &*self.map.at().add(at).cast::<AtomicU32>() }
    }

    fn entry(&self, position: u32) -> *mut T {
        let index = (position & (self.size - 1)) as usize;
        // SAFETY: index is below size, and the mapping holds size entries from `entries` on.
        unsafe { self.map.at().add(self.entries).cast::<T>().add(index) }
    }

    pub(super) fn needs_wakeup(&self) -> bool {
        self.word(self.flags).load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }

    /// As producer: free entries.
    pub(super) fn room(&self) -> u32 {
        self.size - self.own.wrapping_sub(self.word(self.consumer).load(Ordering::Acquire))
    }

    /// As producer: writes an entry; the caller has looked at `room`. Seen by the kernel after `publish`.
    pub(super) fn push(&mut self, value: T) {
        // SAFETY: the entry is free, so the kernel does not touch it.
        unsafe { self.entry(self.own).write_volatile(value) };
        self.own = self.own.wrapping_add(1);
    }

    /// As producer: hands over what was pushed.
    pub(super) fn publish(&mut self) {
        self.word(self.producer).store(self.own, Ordering::Release);
    }

    /// As consumer: entries that wait.
    pub(super) fn waiting(&self) -> u32 {
        self.word(self.producer).load(Ordering::Acquire).wrapping_sub(self.own).min(self.size)
    }

    /// As consumer: the entry `ahead` of the next one; the caller has looked at `waiting`.
    pub(super) fn peek(&self, ahead: u32) -> T {
        // SAFETY: the producer has published this entry and leaves it alone until `take`.
        unsafe { self.entry(self.own.wrapping_add(ahead)).read_volatile() }
    }

    /// As consumer: gives `n` entries back.
    pub(super) fn take(&mut self, n: u32) {
        self.own = self.own.wrapping_add(n);
        self.word(self.consumer).store(self.own, Ordering::Release);
    }
}
