// SPDX-License-Identifier: Apache-2.0
//! Running the program on one frame (BPF_PROG_TEST_RUN): for text cases, differential tests and `tunny trace`.

use crate::{sys, XdpEngine, XdpError};
use abi::{DropReason, IfIndex, PuntMeta, PuntReason, Stats, FRAME_BYTES_MAX, PUNT_MAGIC};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use tables::Memory;

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestVerdict {
    /// Sent back out of the interface it came from (XDP_TX).
    Tx,
    /// Sent out of another uplink (XDP_REDIRECT through `tunny_ports`).
    Redirect,
    /// Handed to the software path.
    Punt(PuntReason),
    /// Left to the host.
    Pass,
    /// Dropped and counted.
    Drop(DropReason),
    /// Something that the program never does: its number, and what was counted.
    Other(u32),
}

/// The outcome of one run.
#[derive(Clone, Debug)]
pub struct TestRun {
    /// How it ended.
    pub verdict: TestVerdict,
    /// The frame afterwards.
    pub frame: Vec<u8>,
    /// Metadata in front of a punted frame.
    pub meta: Option<PuntMeta>,
    /// Mean ns a run.
    pub ns: u32,
}

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;
const XDP_REDIRECT: u32 = 4;

impl XdpEngine {
    /// Lets [`XdpEngine::test_run`] use an interface: as egress port, and with an unbound AF_XDP socket as listener for
    /// punts from its first queue. The socket must be kept.
    pub fn prepare_test(&self, ifindex: IfIndex) -> Result<OwnedFd, XdpError> {
        self.add_port(ifindex)?;
        let socket = unbound_socket()?;
        self.set_listener(ifindex, 0, socket.as_raw_fd())?;
        Ok(socket)
    }

    /// Runs the program `repeat` times on a frame as if it came from `ifindex` (0: loopback). With `repeat` = 1 the
    /// verdict names the reason that was counted; nothing else may run on these tables meanwhile.
    pub fn test_run(&self, frame: &[u8], ifindex: IfIndex, repeat: u32) -> Result<TestRun, XdpError> {
        let mut out = vec![0; FRAME_BYTES_MAX as usize + 1024];
        let before = self.stats_total();
        let how = sys::How { repeat, from: (ifindex.max(IfIndex(1)).0, 0), ..Default::default() };
        let run = sys::run(self.program(), frame, &mut out, how).map_err(XdpError::call("BPF_PROG_TEST_RUN"))?;
        let after = self.stats_total();
        out.truncate(run.bytes);
        let frame = out.split_off(run.meta.min(out.len()));
        Ok(TestRun { verdict: verdict(run.verdict, &before, &after), frame, meta: read_meta(&out), ns: run.ns })
    }

    /// Statistics of all slots, added up.
    pub fn stats_total(&self) -> Stats {
        let memory = self.memory();
        // SAFETY: Memory promises `stats_slots` elements of 8-byte aligned words.
        unsafe { total(memory.stats(), memory.stats_slots()) }
    }
}

/// An AF_XDP socket that is bound to nothing: a listener for the punts of test runs.
pub(crate) fn unbound_socket() -> Result<OwnedFd, XdpError> {
    // SAFETY: plain system call; the new descriptor belongs to nobody else.
    unsafe {
        let fd = libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(XdpError::call("Opening an AF_XDP socket")(std::io::Error::last_os_error()));
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Statistics of all slots, added up.
///
/// # Safety
/// `stats` must be valid for `slots` elements, 8-byte aligned, which are accessed by atomics alone.
pub(crate) unsafe fn total(stats: *const Stats, slots: u32) -> Stats {
    const WORDS: usize = size_of::<Stats>() / 8;
    let mut total = [0u64; WORDS];
    for slot in 0..slots as usize {
        // SAFETY: the caller promises so many elements of 8-byte aligned words; access is atomic.
        let words = unsafe { &*stats.add(slot).cast::<[AtomicU64; WORDS]>() };
        for (sum, word) in total.iter_mut().zip(words) {
            *sum = sum.wrapping_add(word.load(Ordering::Relaxed));
        }
    }
    // SAFETY: Stats is repr(C) of u64 words alone, of the same size.
    unsafe { std::mem::transmute(total) }
}

/// The number of the only counter that rose.
fn risen(before: &[u64], after: &[u64]) -> Option<u8> {
    before.iter().zip(after).position(|(b, a)| a != b).map(|i| i as u8)
}

pub(crate) fn verdict(code: u32, before: &Stats, after: &Stats) -> TestVerdict {
    let dropped = risen(&before.drops, &after.drops).and_then(DropReason::from_number);
    let punted = risen(&before.punts, &after.punts).and_then(PuntReason::from_number);
    match (code, dropped, punted) {
        (XDP_DROP, Some(reason), None) => TestVerdict::Drop(reason),
        (XDP_REDIRECT, None, Some(reason)) => TestVerdict::Punt(reason),
        (XDP_PASS, None, None) => TestVerdict::Pass,
        (XDP_TX, None, None) => TestVerdict::Tx,
        (XDP_REDIRECT, None, None) => TestVerdict::Redirect,
        _ => TestVerdict::Other(code),
    }
}

/// The metadata in front of a frame, if it is ours.
pub(crate) fn read_meta(bytes: &[u8]) -> Option<PuntMeta> {
    let at = bytes.len().checked_sub(size_of::<PuntMeta>())?;
    // SAFETY: PuntMeta is repr(C) of integers without padding, so any bytes are one; the slice is long enough.
    let meta = unsafe { bytes[at..].as_ptr().cast::<PuntMeta>().read_unaligned() };
    (meta.magic == PUNT_MAGIC).then_some(meta)
}
