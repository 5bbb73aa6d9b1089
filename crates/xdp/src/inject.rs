// SPDX-License-Identifier: Apache-2.0
//! Giving a packet back to the kernel.
//!
//! The XDP program passes what is not for the gateway by itself. A few packets are punted before that is known (outer IP
//! options or extension headers); when the software path finds that they belong to the host, they must reach the kernel's
//! stack as if they had just come in on their port. `BPF_PROG_TEST_RUN` with `BPF_F_TEST_XDP_LIVE_FRAMES` (Linux 5.18)
//! does exactly that for a program which returns XDP_PASS: no TAP device, no changed ingress interface, no reverse-path surprises.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_TEST_RUN: libc::c_int = 10;
const BPF_PROG_TYPE_XDP: u32 = 6;
const LIVE_FRAMES: u32 = 2;
/// `mov r0, XDP_PASS; exit`.
const PASS: [u64; 2] = [0x0000_0002_0000_00b7, 0x95];

#[repr(C)]
#[derive(Default)]
struct LoadAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
}

#[repr(C)]
#[derive(Default)]
struct RunAttr {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    pad: u32,
}

/// `struct xdp_md`.
#[repr(C)]
#[derive(Default)]
struct XdpMd {
    data: u32,
    data_end: u32,
    data_meta: u32,
    ingress_ifindex: u32,
    rx_queue_index: u32,
    egress_ifindex: u32,
}

fn bpf<T>(command: libc::c_int, attr: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: `attr` is a live, exclusively borrowed structure laid out as the prefix of union bpf_attr that the command
    // reads; every pointer in it refers to memory that outlives the call.
    let rc = unsafe { libc::syscall(libc::SYS_bpf, command, attr as *mut T, size_of::<T>()) };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(rc)
    }
}

/// Puts packets into the kernel's receive path.
#[derive(Debug)]
pub struct Injector {
    program: OwnedFd,
}

impl Injector {
    /// Loads the two-instruction program. Needs CAP_BPF and CAP_NET_ADMIN.
    pub fn new() -> io::Result<Self> {
        let license = c"Dual BSD/GPL";
        let mut attr = LoadAttr {
            prog_type: BPF_PROG_TYPE_XDP,
            insn_cnt: PASS.len() as u32,
            insns: PASS.as_ptr() as u64,
            license: license.as_ptr() as u64,
            prog_name: *b"tunny_inject\0\0\0\0",
            ..Default::default()
        };
        let fd = bpf(BPF_PROG_LOAD, &mut attr)?;
        // SAFETY: the kernel just gave us this descriptor and nobody else owns it.
        Ok(Self { program: unsafe { OwnedFd::from_raw_fd(fd as i32) } })
    }

    /// Makes `frame` arrive on interface `ifindex`, past XDP.
    pub fn inject(&self, frame: &[u8], ifindex: u32) -> io::Result<()> {
        let context = XdpMd { data_end: frame.len() as u32, ingress_ifindex: ifindex, ..Default::default() };
        let mut attr = RunAttr {
            prog_fd: self.program.as_raw_fd() as u32,
            data_size_in: frame.len() as u32,
            data_in: frame.as_ptr() as u64,
            repeat: 1,
            ctx_size_in: size_of::<XdpMd>() as u32,
            ctx_in: &raw const context as u64,
            flags: LIVE_FRAMES,
            ..Default::default()
        };
        bpf(BPF_PROG_TEST_RUN, &mut attr).map(drop)
    }
}
