// SPDX-License-Identifier: Apache-2.0
//! What the fast path punts, taken in over AF_XDP.

use gateway::Batch;

/// The socket of one queue of one port.
pub enum PuntSocket {}

impl PuntSocket {
    /// The descriptor, for `poll`.
    pub fn raw_fd(&self) -> i32 {
        match *self {}
    }

    /// Takes what has come in into a batch.
    pub fn receive<'a>(&'a mut self, _batch: &mut Batch<'a>) -> usize {
        match *self {}
    }

    /// Gives the buffers of the last batch back to the kernel.
    pub fn release(&mut self) {
        match *self {}
    }

    /// Packets that found the ring full since the last call.
    pub fn take_lost(&self) -> u64 {
        match *self {}
    }
}
