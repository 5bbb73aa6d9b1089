// SPDX-License-Identifier: Apache-2.0
//! The TCP state machine of a middlebox: pure functions of what was seen.

use crate::{Direction, Record, Segment, State};

/// What a connection looks like to the state machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conn {
    /// State number (`State`).
    pub state: u8,
}

/// Whether a segment of `side` lies in the windows that the other side offered: sequence numbers within what the receiver
/// may take, the acknowledgement within what it has sent. Such a segment moves the sequence space (`Record::progress`).
#[inline(always)]
pub fn in_window(record: &Record, side: Direction, segment: &Segment) -> bool {
    todo!()
}
