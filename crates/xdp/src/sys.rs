// SPDX-License-Identifier: Apache-2.0
//! The bpf(2) calls that libbpf-rs does not offer as this crate needs them. Each returns `io::Error` as the kernel gave it.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const MAP_CREATE: libc::c_long = 0;
const MAP_LOOKUP_ELEM: libc::c_long = 1;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const MAP_DELETE_ELEM: libc::c_long = 3;
const MAP_GET_NEXT_KEY: libc::c_long = 4;
const PROG_LOAD: libc::c_long = 5;
const OBJ_PIN: libc::c_long = 6;
const OBJ_GET: libc::c_long = 7;
const PROG_TEST_RUN: libc::c_long = 10;
const MAP_GET_FD_BY_ID: libc::c_long = 14;
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const RAW_TRACEPOINT_OPEN: libc::c_long = 17;
const MAP_UPDATE_BATCH: libc::c_long = 26;
const LINK_CREATE: libc::c_long = 28;
const LINK_UPDATE: libc::c_long = 29;

const MAP_TYPE_ARRAY: u32 = 2;
const PROG_TYPE_XDP: u32 = 6;
/// BPF_F_MMAPABLE.
pub(crate) const MMAPABLE: u32 = 1 << 10;
/// Of arrays: entries of an array of maps may differ in their number of entries.
const INNER_MAP: u32 = 1 << 12;
const BPF_XDP: u32 = 37;

/// `union bpf_attr` is at most this long in the kernels that matter; the tail is zero.
#[repr(C, align(8))]
struct Attr([u8; 128]);

impl Attr {
    fn new<T: Copy>(fields: T) -> Attr {
        let mut attr = Attr([0; 128]);
        assert!(size_of::<T>() <= 128);
        // SAFETY: the array is aligned to 8 and at least as long as T, which is a repr(C) struct of integers.
        unsafe { attr.0.as_mut_ptr().cast::<T>().write(fields) };
        attr
    }

    fn get<T: Copy>(&self) -> T {
        assert!(size_of::<T>() <= 128);
        // SAFETY: as in `new`.
        unsafe { self.0.as_ptr().cast::<T>().read() }
    }
}

fn call(command: libc::c_long, attr: &mut Attr) -> io::Result<i64> {
    // SAFETY: attr is a zero-padded bpf_attr of its stated size; pointers inside outlive the call (each caller holds them).
    let rc = unsafe { libc::syscall(libc::SYS_bpf, command, attr.0.as_mut_ptr(), attr.0.len()) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(rc)
}

fn owned(fd: i64) -> OwnedFd {
    // SAFETY: a descriptor that the kernel just returned belongs to nobody else.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}

/// A new mmapable array map with 4-byte keys.
pub(crate) fn create_array(name: &str, value_bytes: u32, entries: u32) -> io::Result<OwnedFd> {
    create_array_with(name, value_bytes, entries, MMAPABLE)
}

/// The same, for an array of maps whose elements differ in their number of entries.
pub(crate) fn create_inner_array(name: &str, value_bytes: u32, entries: u32) -> io::Result<OwnedFd> {
    create_array_with(name, value_bytes, entries, MMAPABLE | INNER_MAP)
}

fn create_array_with(name: &str, value_bytes: u32, entries: u32, map_flags: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Fields {
        map_type: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        map_flags: u32,
        inner_map_fd: u32,
        numa_node: u32,
        name: [u8; 16],
    }
    let mut bytes = [0; 16];
    let n = name.len().min(15);
    bytes[..n].copy_from_slice(&name.as_bytes()[..n]);
    let mut attr = Attr::new(Fields {
        map_type: MAP_TYPE_ARRAY,
        key_size: 4,
        value_size: value_bytes,
        max_entries: entries,
        map_flags,
        inner_map_fd: 0,
        numa_node: 0,
        name: bytes,
    });
    call(MAP_CREATE, &mut attr).map(owned)
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Element {
    fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

fn element(map: BorrowedFd, key: &[u8], value: u64) -> Attr {
    Attr::new(Element { fd: map.as_raw_fd() as u32, pad: 0, key: key.as_ptr() as u64, value, flags: 0 })
}

/// Reads an element of 4 bytes; None if there is none.
pub(crate) fn lookup_u32(map: BorrowedFd, key: u32) -> io::Result<Option<u32>> {
    let (key, mut value) = (key.to_ne_bytes(), [0u8; 4]);
    match call(MAP_LOOKUP_ELEM, &mut element(map, &key, value.as_mut_ptr() as u64)) {
        Ok(_) => Ok(Some(u32::from_ne_bytes(value))),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Writes an element of 4 bytes (a number, or the descriptor of an inner map or socket).
pub(crate) fn update_u32(map: BorrowedFd, key: u32, value: u32) -> io::Result<()> {
    let (key, value) = (key.to_ne_bytes(), value.to_ne_bytes());
    call(MAP_UPDATE_ELEM, &mut element(map, &key, value.as_ptr() as u64)).map(drop)
}

/// Writes an element of any form; key and value are as long as the map's.
pub(crate) fn update(map: BorrowedFd, key: &[u8], value: &[u8]) -> io::Result<()> {
    call(MAP_UPDATE_ELEM, &mut element(map, key, value.as_ptr() as u64)).map(drop)
}

/// Deletes an element; it need not exist.
pub(crate) fn delete(map: BorrowedFd, key: u32) -> io::Result<()> {
    let key = key.to_ne_bytes();
    match call(MAP_DELETE_ELEM, &mut element(map, &key, 0)) {
        Err(e) if e.raw_os_error() != Some(libc::ENOENT) => Err(e),
        _ => Ok(()),
    }
}

/// Every key of a map with 4-byte keys.
pub(crate) fn keys_u32(map: BorrowedFd) -> io::Result<Vec<u32>> {
    let mut keys = Vec::new();
    let mut last: Option<[u8; 4]> = None;
    loop {
        let mut next = [0u8; 4];
        let key = last.as_ref().map_or(0, |k| k.as_ptr() as u64);
        let fields = Element { fd: map.as_raw_fd() as u32, pad: 0, key, value: next.as_mut_ptr() as u64, flags: 0 };
        match call(MAP_GET_NEXT_KEY, &mut Attr::new(fields)) {
            Ok(_) => keys.push(u32::from_ne_bytes(next)),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(keys),
            Err(e) => return Err(e),
        }
        last = Some(next);
    }
}

/// Writes many elements of 4 bytes in one call.
pub(crate) fn update_batch(map: BorrowedFd, keys: &[u32], values: &[u32]) -> io::Result<()> {
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Fields {
        in_batch: u64,
        out_batch: u64,
        keys: u64,
        values: u64,
        count: u32,
        map_fd: u32,
        elem_flags: u64,
        flags: u64,
    }
    let mut attr = Attr::new(Fields {
        in_batch: 0,
        out_batch: 0,
        keys: keys.as_ptr() as u64,
        values: values.as_ptr() as u64,
        count: keys.len().min(values.len()) as u32,
        map_fd: map.as_raw_fd() as u32,
        elem_flags: 0,
        flags: 0,
    });
    call(MAP_UPDATE_BATCH, &mut attr).map(drop)
}

/// A descriptor of the map with this id.
pub(crate) fn map_by_id(id: u32) -> io::Result<OwnedFd> {
    call(MAP_GET_FD_BY_ID, &mut Attr::new([id, 0, 0])).map(owned)
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Object {
    path: u64,
    fd: u32,
    flags: u32,
}

fn object(path: &Path, fd: u32) -> io::Result<(CString, Object)> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let fields = Object { path: name.as_ptr() as u64, fd, flags: 0 };
    Ok((name, fields))
}

/// Pins a map, program or link.
pub(crate) fn pin(fd: BorrowedFd, path: &Path) -> io::Result<()> {
    let (_name, fields) = object(path, fd.as_raw_fd() as u32)?;
    call(OBJ_PIN, &mut Attr::new(fields)).map(drop)
}

/// Opens a pinned map, program or link.
pub(crate) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let (_name, fields) = object(path, 0)?;
    call(OBJ_GET, &mut Attr::new(fields)).map(owned)
}

/// Attaches an XDP program to an interface through a link.
pub(crate) fn create_xdp_link(program: BorrowedFd, ifindex: u32, flags: u32) -> io::Result<OwnedFd> {
    call(LINK_CREATE, &mut Attr::new([program.as_raw_fd() as u32, ifindex, BPF_XDP, flags])).map(owned)
}

/// Attaches a BTF trace point program through a link.
pub(crate) fn create_trace_link(program: BorrowedFd) -> io::Result<OwnedFd> {
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Fields {
        name: u64,
        fd: u32,
        pad: u32,
        cookie: u64,
    }
    let fields = Fields { name: 0, fd: program.as_raw_fd() as u32, pad: 0, cookie: 0 };
    call(RAW_TRACEPOINT_OPEN, &mut Attr::new(fields)).map(owned)
}

/// Puts another program behind a link, between two packets.
pub(crate) fn update_link(link: BorrowedFd, program: BorrowedFd) -> io::Result<()> {
    call(LINK_UPDATE, &mut Attr::new([link.as_raw_fd() as u32, program.as_raw_fd() as u32, 0, 0])).map(drop)
}

/// The first bytes of what the kernel tells about a map, program or link.
pub(crate) fn info<const N: usize>(fd: BorrowedFd) -> io::Result<[u8; N]> {
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Fields {
        fd: u32,
        len: u32,
        info: u64,
    }
    let mut bytes = [0u8; N];
    let fields = Fields { fd: fd.as_raw_fd() as u32, len: N as u32, info: bytes.as_mut_ptr() as u64 };
    call(OBJ_GET_INFO_BY_FD, &mut Attr::new(fields))?;
    Ok(bytes)
}

/// What BPF_PROG_TEST_RUN gives back.
pub(crate) struct RawRun {
    pub(crate) verdict: u32,
    pub(crate) ns: u32,
    /// Bytes of metadata in front of the packet in the output.
    pub(crate) meta: usize,
    /// Bytes of output, metadata included.
    pub(crate) bytes: usize,
}

/// The fields of BPF_PROG_TEST_RUN.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RunFields {
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
    batch_size: u32,
    pad: u32,
}

/// How a program is run by [`run`].
#[derive(Clone, Copy, Default)]
pub(crate) struct How {
    /// Times in a row; 0 counts as 1.
    pub(crate) repeat: u32,
    /// Interface and queue that the packet seems to come from; interface 0: none is given.
    pub(crate) from: (u32, u32),
    /// LIVE_FRAMES or 0.
    pub(crate) flags: u32,
    /// Frames at a time with LIVE_FRAMES; 0 is the kernel's default.
    pub(crate) batch: u32,
    /// Bytes of the packet in its first buffer, with an interface (Linux 6.18); 0: as many as fit.
    pub(crate) linear: u32,
}

/// The verdict is carried out, as on a packet that really came in, instead of being handed back.
pub(crate) const LIVE_FRAMES: u32 = 1 << 1;

/// Runs an XDP program on `frame`.
pub(crate) fn run(program: BorrowedFd, frame: &[u8], out: &mut [u8], how: How) -> io::Result<RawRun> {
    let (ifindex, queue) = how.from;
    let first = if how.linear == 0 { frame.len() as u32 } else { how.linear };
    // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
    let ctx_in = [0u32, first, 0, ifindex, queue, 0];
    let mut ctx_out = [0u32; 6];
    let mut fields = RunFields {
        fd: program.as_raw_fd() as u32,
        data_size_in: frame.len() as u32,
        data_in: frame.as_ptr() as u64,
        repeat: how.repeat,
        flags: how.flags,
        batch_size: how.batch,
        ..RunFields::default()
    };
    let live = how.flags & LIVE_FRAMES != 0;
    if !live {
        fields.data_size_out = out.len() as u32;
        fields.data_out = out.as_mut_ptr() as u64;
    }
    if ifindex != 0 {
        fields.ctx_size_in = size_of_val(&ctx_in) as u32;
        fields.ctx_in = ctx_in.as_ptr() as u64;
        if !live {
            fields.ctx_size_out = size_of_val(&ctx_out) as u32;
            fields.ctx_out = ctx_out.as_mut_ptr() as u64;
        }
    }
    let mut attr = Attr::new(fields);
    call(PROG_TEST_RUN, &mut attr)?;
    let done: RunFields = attr.get();
    Ok(RawRun {
        verdict: done.retval,
        ns: done.duration,
        meta: ctx_out[0] as usize,
        bytes: (done.data_size_out as usize).min(out.len()),
    })
}

/// Loads an XDP program of a few instructions.
pub(crate) fn load_xdp(name: &[u8; 16], instructions: &[u64]) -> io::Result<OwnedFd> {
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Fields {
        kind: u32,
        count: u32,
        instructions: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log: u64,
        kernel: u32,
        flags: u32,
        name: [u8; 16],
    }
    let license = c"Dual BSD/GPL";
    let mut attr = Attr::new(Fields {
        kind: PROG_TYPE_XDP,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel: 0,
        flags: 0,
        name: *name,
    });
    call(PROG_LOAD, &mut attr).map(owned)
}

/// Name of the driver of an interface.
pub(crate) fn driver(ifindex: u32) -> io::Result<String> {
    const ETHTOOL_GDRVINFO: u32 = 3;
    /// `struct ethtool_drvinfo`: command, driver, and what is of no interest here.
    #[repr(C)]
    struct DriverInfo {
        command: u32,
        driver: [u8; 32],
        rest: [u8; 160],
    }
    let mut info = DriverInfo { command: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
    // SAFETY: zeroes are a valid ifreq; if_indextoname writes at most IFNAMSIZ bytes; `info` outlives the ioctl and is
    // as long as the kernel's struct; the socket is new and closed at the end.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        if libc::if_indextoname(ifindex, request.ifr_name.as_mut_ptr()).is_null() {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let socket = OwnedFd::from_raw_fd(fd);
        request.ifr_ifru.ifru_data = (&raw mut info).cast();
        if libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &mut request) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let end = info.driver.iter().position(|b| *b == 0).unwrap_or(info.driver.len());
    Ok(String::from_utf8_lossy(&info.driver[..end]).into_owned())
}

/// A shared mapping that unmaps itself.
pub(crate) struct Mapping {
    at: *mut u8,
    bytes: usize,
}

// SAFETY: the range is shared memory that outlives the struct; users access it by atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps an mmapable array map from its beginning.
    pub(crate) fn of_map(map: BorrowedFd, bytes: usize, write: bool) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
        Mapping::new(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, map.as_raw_fd(), 0)
    }

    /// Reserves address space without access.
    pub(crate) fn reserve(bytes: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Mapping::new(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0)
    }

    /// Any mapping at an address of the kernel's choice.
    pub(crate) fn new(
        at: *mut u8,
        bytes: usize,
        protection: i32,
        flags: i32,
        fd: RawFd,
        offset: i64,
    ) -> io::Result<Mapping> {
        // SAFETY: without MAP_FIXED (no caller passes it) a new mapping touches nothing that exists.
        let at = unsafe { libc::mmap(at.cast(), bytes, protection, flags, fd, offset) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { at: at.cast(), bytes })
    }

    /// Maps an array map over the part of a reserved range from `offset` on.
    pub(crate) fn place(&self, map: BorrowedFd, offset: usize, bytes: usize) -> io::Result<()> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range was checked to lie inside this reservation, which nobody else maps over.
        let got = unsafe {
            libc::mmap(
                self.at.add(offset).cast(),
                bytes,
                protection,
                libc::MAP_SHARED | libc::MAP_FIXED,
                map.as_raw_fd(),
                0,
            )
        };
        if got == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Takes away what is mapped over a part of a reserved range: it is address space without access again.
    pub(crate) fn clear(&self, offset: usize, bytes: usize) -> io::Result<()> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: the range was checked to lie inside this reservation, and nobody uses that part of it.
        let got = unsafe { libc::mmap(self.at.add(offset).cast(), bytes, libc::PROT_NONE, flags, -1, 0) };
        if got == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    pub(crate) fn at(&self) -> *mut u8 {
        self.at
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and nothing refers to it once its owner is dropped.
        unsafe { libc::munmap(self.at.cast(), self.bytes) };
    }
}
