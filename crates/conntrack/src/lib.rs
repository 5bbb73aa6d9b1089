// SPDX-License-Identifier: Apache-2.0
//! Conntrack, store `full`, and address translation: session memory that every engine reads, the TCP state machine, timers, quotas,
//! fragments, pools of public addresses.
//!
//! The essay is `docs/design/sessions.md`; the layouts are in crate `abi`. [`SessionMemory`] is where sessions live,
//! [`Sessions`] finds them and keeps them current as a fast path does, [`Tracker`] makes, judges and ends them,
//! [`nat::Translator`] gives them public endpoints. No I/O and no clock: time (nanoseconds of CLOCK_MONOTONIC) and randomness
//! come in as arguments.
#![forbid(unsafe_code)]

mod alloc;
pub mod frag;
mod index;
mod key;
mod limits;
pub mod nat;
mod quota;
mod record;
mod table;
pub mod tcp;
#[cfg(test)]
mod tests;
mod track;
pub mod upgrade;
mod view;
mod wheel;

pub use key::{End, InnerKey, OuterKey, PairKey};
pub use limits::{Options, OwnTimeouts, TenantLimits, TenantStats, Timeouts};
pub use memory::{
    LineMemory, SessionHeap as HeapMemory, SessionMemory, SessionShared as SharedMemory,
    SESSION_ARENA_BYTES as ARENA_BYTES,
};
pub use record::{Counts, Owner, Record, State};
pub use table::{Candidates, Guard, SessionRef, Sessions};
pub use track::{
    AttachError, Cursor, EndReason, EndSink, Ended, Filter, Judgement, NewSession, Progress, Recovered, Refusal,
    SessionInfo, Tracker, TrackerStats, Verdict,
};
pub use view::{Direction, Embedded, L4View, Segment};

/// Time in records: units of 2^26 ns (67 ms) of CLOCK_MONOTONIC.
#[inline(always)]
pub const fn coarse(now: u64) -> u32 {
    (now >> abi::SESSION_TIME_SHIFT) as u32
}

/// Starts to load what lies at an address; any address will do.
#[inline(always)]
pub(crate) fn prefetch_address(at: usize) {
    memory::prefetch_address(at as *const u8);
}
