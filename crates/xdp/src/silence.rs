// SPDX-License-Identifier: Apache-2.0
//! Keeping a port's packets from the kernel, where XDP cannot take them away.
//!
//! What comes by a TUN interface has no Ethernet header, so that XDP is of no use there, and no MAC address of another either: the kernel
//! takes all of it for its own. A tc program at ingress drops it, behind the packet sockets by which the gateway takes it in.

use crate::sys;
use abi::IfIndex;
use libbpf_rs::{ErrorKind, TcHook, TcHookBuilder, TC_INGRESS};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// `mov r0, TC_ACT_SHOT; exit`.
const DROP: [u64; 2] = [0x0000_0002_0000_00b7, 0x95];
/// By which the filter is known to the kernel.
const HANDLE: u32 = 0x7475;
const PRIORITY: u32 = 1;

/// The program that drops all.
#[derive(Debug)]
pub struct IngressDrop {
    program: OwnedFd,
}

impl IngressDrop {
    /// Loads the two-instruction program. Needs CAP_BPF and CAP_NET_ADMIN.
    pub fn new() -> io::Result<Self> {
        Ok(Self { program: sys::load(sys::Kind::Tc, c"tunny_drop", &DROP)? })
    }

    /// From now on the kernel sees nothing of what comes by a port; packet sockets do. It stays so when the process ends.
    pub fn attach(&self, ifindex: IfIndex) -> io::Result<()> {
        let mut hook = self.hook(ifindex);
        hook.create().and_then(|mut hook| hook.attach()).map(drop).map_err(io::Error::other)
    }

    /// The kernel sees it again.
    pub fn detach(&self, ifindex: IfIndex) -> io::Result<()> {
        match self.hook(ifindex).detach() {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(io::Error::other(e)),
            _ => Ok(()),
        }
    }

    fn hook(&self, ifindex: IfIndex) -> TcHook {
        let mut builder = TcHookBuilder::new(self.program.as_fd());
        builder.ifindex(ifindex.0 as i32).replace(true).handle(HANDLE).priority(PRIORITY);
        builder.hook(TC_INGRESS)
    }
}
