// SPDX-License-Identifier: Apache-2.0
//! A BPF object beside the gateway's own: what benches and traffic generators load. A thin cover over libbpf, so that this
//! crate stays the only one that knows it.

use crate::sys;
use abi::IfIndex;
use libbpf_rs::MapCore;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

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
    pub fn load(
        name: &str,
        elf: &[u8],
        maps: &[(&str, BorrowedFd)],
        sizes: &[(&str, u32)],
    ) -> Result<Object, ObjectError> {
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

/// An mmapable array map in this process's memory. Callers synchronise through atomics or by turns, as the kernel does.
pub struct Mapping(sys::Mapping);

impl Mapping {
    /// Maps the first `bytes` of an array map made with BPF_F_MMAPABLE.
    pub fn new(map: BorrowedFd, bytes: usize) -> Result<Mapping, ObjectError> {
        sys::Mapping::of_map(map, bytes, true).map(Mapping).map_err(call("mapping a BPF array"))
    }

    /// First byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.at()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.bytes()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<sys::Mapping> for Mapping {
    fn from(mapping: sys::Mapping) -> Mapping {
        Mapping(mapping)
    }
}

impl conntrack_compact::WordMemory for Mapping {
    fn words(&self) -> &[std::sync::atomic::AtomicU64] {
        // SAFETY: the mapping is page-aligned, as long as this, and lives as long as `self`; who maps a state table changes it by
        // whole words only, and so does whoever else has the map.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), self.len() / 8) }
    }
}

fn call(what: impl Into<String>) -> impl FnOnce(io::Error) -> ObjectError {
    let what = what.into();
    move |source| ObjectError::Call { what, source }
}

/// Frames are real: they leave by the program's verdict (redirect, TX) instead of being handed back.
pub const TEST_LIVE_FRAMES: u32 = sys::LIVE_FRAMES;
/// XDP in native mode only.
pub const XDP_NATIVE: u32 = 1 << 2;
/// XDP in generic mode.
pub const XDP_GENERIC: u32 = 1 << 1;

/// Sets one element of an array or hash map.
pub fn map_update(map: BorrowedFd, key: &[u8], value: &[u8]) -> Result<(), ObjectError> {
    sys::update(map, key, value).map_err(call("writing a BPF map element"))
}

/// How a program is run on one packet by [`run_program`].
#[derive(Clone, Copy, Debug, Default)]
pub struct RunOptions {
    /// Times in a row; 0 counts as 1.
    pub repeat: u32,
    /// Interface the packet seems to come from (0: none is given).
    pub ifindex: IfIndex,
    /// TEST_* flags.
    pub flags: u32,
    /// Frames at a time with TEST_LIVE_FRAMES; 0 = the kernel's default.
    pub batch: u32,
    /// Bytes of the packet in its first buffer, with `ifindex` given (Linux 6.18); 0 = as many as fit.
    pub linear: u32,
}

/// Runs an XDP program on a packet by BPF_PROG_TEST_RUN. Returns its verdict, the mean ns a run, and the length of the packet
/// written to `out`.
pub fn run_program(
    program: BorrowedFd,
    packet: &[u8],
    out: &mut [u8],
    options: RunOptions,
) -> Result<(u32, u32, usize), ObjectError> {
    let RunOptions { repeat, ifindex, flags, batch, linear } = options;
    let how = sys::How { repeat, from: (ifindex.0, 0), flags, batch, linear };
    let run = sys::run(program, packet, out, how).map_err(call("BPF_PROG_TEST_RUN"))?;
    Ok((run.verdict, run.ns, run.bytes))
}

/// The same for a tc program, on a packet that seems to come from `ifindex`.
pub fn run_tc_program(
    program: BorrowedFd,
    packet: &[u8],
    out: &mut [u8],
    ifindex: IfIndex,
    repeat: u32,
) -> Result<(u32, u32, usize), ObjectError> {
    let run = sys::run_skb(program, packet, out, ifindex.0, repeat).map_err(call("BPF_PROG_TEST_RUN"))?;
    Ok((run.verdict, run.ns, run.bytes))
}

/// Attaches an XDP program to an interface through a link; it is detached when the result is dropped.
pub fn attach_program(program: BorrowedFd, ifindex: IfIndex, mode: u32) -> Result<OwnedFd, ObjectError> {
    let attached = sys::create_xdp_link(program, ifindex, mode);
    attached.map_err(call(format!("attaching an XDP program to interface {ifindex}")))
}
