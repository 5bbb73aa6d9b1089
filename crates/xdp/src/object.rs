// SPDX-License-Identifier: Apache-2.0
//! A BPF object beside the gateway's own: what benches and traffic generators load. A thin cover over libbpf, so that this
//! crate stays the only one that knows it.

use libbpf_rs::MapCore;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Why an object could not be loaded or used.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// libbpf or the kernel refused it.
    #[error("The kernel refused the BPF object `{name}`: {source}. Run as root on Linux 6.1 or newer.")]
    Load {
        /// The object's name.
        name: String,
        /// What libbpf said.
        source: libbpf_rs::Error,
    },
    /// A program or map is missing.
    #[error("BPF object `{object}` has no {kind} `{name}`: rebuild Tunny.")]
    Missing {
        /// The object's name.
        object: String,
        /// "program" or "map".
        kind: &'static str,
        /// What was looked for.
        name: String,
    },
    /// A system call on it failed.
    #[error("{what} failed: {source}.")]
    Call {
        /// What was tried.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

/// A loaded object; its programs and maps live as long as it does.
pub struct Object {
    name: String,
    inner: libbpf_rs::Object,
}

impl Object {
    /// Loads an object from its ELF bytes. `maps` replaces maps by existing ones, `sizes` sets numbers of entries.
    pub fn load(name: &str, elf: &[u8], maps: &[(&str, BorrowedFd)], sizes: &[(&str, u32)]) -> Result<Object, ObjectError> {
        let fail = |source| ObjectError::Load { name: name.into(), source };
        let mut open = libbpf_rs::ObjectBuilder::default().name(name).map_err(fail)?.open_memory(elf).map_err(fail)?;
        for mut map in open.maps_mut() {
            if let Some((_, entries)) = sizes.iter().find(|(n, _)| map.name() == *n) {
                map.set_max_entries(*entries).map_err(fail)?;
            }
            if let Some((_, fd)) = maps.iter().find(|(n, _)| map.name() == *n) {
                map.reuse_fd(*fd).map_err(fail)?;
            }
        }
        Ok(Object { name: name.into(), inner: open.load().map_err(fail)? })
    }

    /// A program by name.
    pub fn program(&self, name: &str) -> Result<BorrowedFd<'_>, ObjectError> {
        let found = self.inner.progs().find(|p| p.name() == name).map(|p| p.as_fd().as_raw_fd());
        self.borrow("program", name, found)
    }

    /// A map by name.
    pub fn map(&self, name: &str) -> Result<BorrowedFd<'_>, ObjectError> {
        let found = self.inner.maps().find(|m| m.name() == name).map(|m| m.as_fd().as_raw_fd());
        self.borrow("map", name, found)
    }

    fn borrow(&self, kind: &'static str, name: &str, fd: Option<RawFd>) -> Result<BorrowedFd<'_>, ObjectError> {
        let fd = fd.ok_or_else(|| ObjectError::Missing { object: self.name.clone(), kind, name: name.into() })?;
        // SAFETY: the descriptor belongs to `inner`, which lives as long as the borrow of self.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }
}

/// An mmapable array map in this process's memory.
pub struct Mapping {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping is shared memory; callers synchronise through atomics or by turns, as the kernel does.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of an array map made with BPF_F_MMAPABLE.
    pub fn new(map: BorrowedFd, bytes: usize) -> Result<Mapping, ObjectError> {
        // SAFETY: a fresh shared mapping of a descriptor that we hold; the result is checked.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, map.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(call("mapping a BPF array"));
        }
        Ok(Mapping { start: start.cast(), bytes })
    }

    /// First byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is ours since `new`, and nobody holds it any more.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

fn call(what: &str) -> ObjectError {
    ObjectError::Call { what: what.into(), source: io::Error::last_os_error() }
}

const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_PROG_TEST_RUN: libc::c_long = 10;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_XDP: u32 = 37;

/// Frames are real: they leave by the program's verdict (redirect, TX) instead of being handed back.
pub const TEST_LIVE_FRAMES: u32 = 1 << 1;
/// XDP in native mode only.
pub const XDP_NATIVE: u32 = 1 << 2;
/// XDP in generic mode.
pub const XDP_GENERIC: u32 = 1 << 1;

fn bpf<T>(command: libc::c_long, attr: &mut T) -> libc::c_long {
    // SAFETY: attr is a zero-padded prefix of union bpf_attr for this command, and its pointers outlive the call.
    unsafe { libc::syscall(libc::SYS_bpf, command, attr as *mut T, size_of::<T>()) }
}

/// Sets one element of an array or hash map.
pub fn map_update(map: BorrowedFd, key: &[u8], value: &[u8]) -> Result<(), ObjectError> {
    #[repr(C)]
    struct Attr {
        fd: u32,
        pad: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    let mut attr =
        Attr { fd: map.as_raw_fd() as u32, pad: 0, key: key.as_ptr() as u64, value: value.as_ptr() as u64, flags: 0 };
    if bpf(BPF_MAP_UPDATE_ELEM, &mut attr) < 0 {
        return Err(call("writing a BPF map element"));
    }
    Ok(())
}

/// How a program is run on one packet by [`run_program`].
#[derive(Clone, Copy, Debug, Default)]
pub struct RunOptions {
    /// Times in a row; 0 counts as 1.
    pub repeat: u32,
    /// Interface the packet seems to come from (0: none is given).
    pub ifindex: u32,
    /// TEST_* flags.
    pub flags: u32,
    /// Frames at a time with TEST_LIVE_FRAMES; 0 = the kernel's default.
    pub batch: u32,
    /// Bytes of the packet in its first buffer, with `ifindex` given (Linux 6.18); 0 = as many as fit.
    pub linear: u32,
}

/// Runs an XDP program on a packet by BPF_PROG_TEST_RUN. Returns its verdict, the mean ns a run, and the length of the packet
/// written to `out`.
pub fn run_program(program: BorrowedFd, packet: &[u8], out: &mut [u8], options: RunOptions) -> Result<(u32, u32, usize), ObjectError> {
    #[repr(C)]
    #[derive(Default)]
    struct Attr {
        fd: u32,
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
        batch: u32,
        pad: u32,
    }
    let live = options.flags & TEST_LIVE_FRAMES != 0;
    // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
    let first = if options.linear == 0 { packet.len() as u32 } else { options.linear };
    let mut ctx = [0u32, first, 0, options.ifindex, 0, 0];
    let mut attr = Attr {
        fd: program.as_raw_fd() as u32,
        data_size_in: packet.len() as u32,
        data_in: packet.as_ptr() as u64,
        repeat: options.repeat,
        flags: options.flags,
        batch: options.batch,
        ..Attr::default()
    };
    if !live {
        attr.data_size_out = out.len() as u32;
        attr.data_out = out.as_mut_ptr() as u64;
    }
    if options.ifindex != 0 {
        attr.ctx_size_in = size_of_val(&ctx) as u32;
        attr.ctx_in = ctx.as_mut_ptr() as u64;
    }
    if bpf(BPF_PROG_TEST_RUN, &mut attr) < 0 {
        return Err(call("BPF_PROG_TEST_RUN"));
    }
    Ok((attr.retval, attr.duration, attr.data_size_out as usize))
}

/// Attaches an XDP program to an interface through a link; it is detached when the result is dropped.
pub fn attach_program(program: BorrowedFd, ifindex: u32, mode: u32) -> Result<OwnedFd, ObjectError> {
    let mut attr = [program.as_raw_fd() as u32, ifindex, BPF_XDP, mode];
    let fd = bpf(BPF_LINK_CREATE, &mut attr);
    if fd < 0 {
        return Err(call(&format!("attaching an XDP program to interface {ifindex}")));
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}
