// SPDX-License-Identifier: Apache-2.0
//! Ctrl-C and SIGTERM: noted by a flag, looked at between steps, so that what was built is removed in order.

use crate::LabError;
use nix::sys::signal::{sigaction, SaFlags, SigAction, SigHandler, SigSet, Signal};
use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: i32) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Notes SIGINT and SIGTERM instead of ending at once.
pub fn install() {
    let action = SigAction::new(SigHandler::Handler(note), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // SAFETY: the handler stores to an atomic and does nothing else, which is allowed in a signal handler.
        let done = unsafe { sigaction(signal, &action) };
        debug_assert!(done.is_ok());
    }
}

/// An error if somebody wants us to stop.
pub fn check() -> Result<(), LabError> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        Err(LabError::Interrupted)
    } else {
        Ok(())
    }
}
