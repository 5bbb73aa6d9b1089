// SPDX-License-Identifier: Apache-2.0
//! Giving a packet back to the kernel.
//!
//! The XDP program passes what is not for the gateway by itself. A few packets are punted before that is known (outer IP
//! options or extension headers); when the software path finds that they belong to the host, they must reach the kernel's
//! stack as if they had just come in on their port. `BPF_PROG_TEST_RUN` with `BPF_F_TEST_XDP_LIVE_FRAMES` (Linux 5.18)
//! does exactly that for a program which returns XDP_PASS: no TAP device, no changed ingress interface, no reverse-path surprises.

use crate::sys::{self, How, LIVE_FRAMES};
use abi::IfIndex;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// `mov r0, XDP_PASS; exit`.
const PASS: [u64; 2] = [0x0000_0002_0000_00b7, 0x95];

/// Puts packets into the kernel's receive path.
#[derive(Debug)]
pub struct Injector {
    program: OwnedFd,
}

impl Injector {
    /// Loads the two-instruction program. Needs CAP_BPF and CAP_NET_ADMIN.
    pub fn new() -> io::Result<Self> {
        Ok(Self { program: sys::load(sys::Kind::Xdp, c"tunny_inject", &PASS)? })
    }

    /// Makes `frame` arrive on interface `ifindex`, past XDP.
    pub fn inject(&self, frame: &[u8], ifindex: IfIndex) -> io::Result<()> {
        let how = How { repeat: 1, from: (ifindex.0, 0), flags: LIVE_FRAMES, ..How::default() };
        sys::run(self.program.as_fd(), frame, &mut [], how).map(drop)
    }
}
