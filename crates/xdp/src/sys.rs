// SPDX-License-Identifier: Apache-2.0
//! libbpf's calls on descriptors, which libbpf-rs does not offer as this crate needs them, and mappings of maps. Each returns `io::Error`
//! as the kernel gave it.

use abi::IfIndex;
use libbpf_rs::libbpf_sys as bpf;
use std::ffi::{c_void, CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What a call of libbpf returned: a number or a descriptor, or an error as a negative number.
fn checked(returned: i32) -> io::Result<i32> {
    if returned < 0 {
        return Err(io::Error::from_raw_os_error(-returned));
    }
    Ok(returned)
}

fn owned(returned: i32) -> io::Result<OwnedFd> {
    // SAFETY: a descriptor that the kernel just returned belongs to nobody else.
    checked(returned).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `None` where there is no such element.
fn found(returned: i32) -> io::Result<Option<()>> {
    match checked(returned) {
        Ok(_) => Ok(Some(())),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

/// A new mmapable array map with 4-byte keys.
pub(crate) fn create_array(name: &str, value_bytes: u32, entries: u32) -> io::Result<OwnedFd> {
    create_array_with(name, value_bytes, entries, bpf::BPF_F_MMAPABLE)
}

/// The same, which no process can map: the kernel chooses its memory freely.
pub(crate) fn create_plain_array(name: &str, value_bytes: u32, entries: u32) -> io::Result<OwnedFd> {
    create_array_with(name, value_bytes, entries, 0)
}

/// The same, for an array of maps whose elements differ in their number of entries.
pub(crate) fn create_inner_array(name: &str, value_bytes: u32, entries: u32) -> io::Result<OwnedFd> {
    create_array_with(name, value_bytes, entries, bpf::BPF_F_MMAPABLE | bpf::BPF_F_INNER_MAP)
}

fn create_array_with(name: &str, value_bytes: u32, entries: u32, map_flags: u32) -> io::Result<OwnedFd> {
    let name = CString::new(name)?;
    let options =
        bpf::bpf_map_create_opts { sz: size_of::<bpf::bpf_map_create_opts>() as _, map_flags, ..Default::default() };
    // SAFETY: name and options outlive the call.
    owned(unsafe {
        bpf::bpf_map_create(bpf::BPF_MAP_TYPE_ARRAY, name.as_ptr(), 4, value_bytes, entries, &raw const options)
    })
}

/// Reads an element of 4 bytes; None if there is none.
pub(crate) fn lookup_u32(map: BorrowedFd, key: u32) -> io::Result<Option<u32>> {
    let mut value = 0u32;
    // SAFETY: key and value have the 4 bytes that the map's have.
    let returned =
        unsafe { bpf::bpf_map_lookup_elem(map.as_raw_fd(), (&raw const key).cast(), (&raw mut value).cast()) };
    Ok(found(returned)?.map(|()| value))
}

/// Writes an element of 4 bytes (a number, or the descriptor of an inner map or socket).
pub(crate) fn update_u32(map: BorrowedFd, key: u32, value: u32) -> io::Result<()> {
    update(map, &key.to_ne_bytes(), &value.to_ne_bytes())
}

/// Writes an element of any form; key and value are as long as the map's.
pub(crate) fn update(map: BorrowedFd, key: &[u8], value: &[u8]) -> io::Result<()> {
    // SAFETY: key and value are as long as the map's: the caller's duty.
    checked(unsafe { bpf::bpf_map_update_elem(map.as_raw_fd(), key.as_ptr().cast(), value.as_ptr().cast(), 0) })
        .map(drop)
}

/// Deletes an element; it need not exist.
pub(crate) fn delete(map: BorrowedFd, key: u32) -> io::Result<()> {
    // SAFETY: the key has the 4 bytes that the map's have.
    found(unsafe { bpf::bpf_map_delete_elem(map.as_raw_fd(), (&raw const key).cast()) }).map(drop)
}

/// Every key of a map with 4-byte keys.
pub(crate) fn keys_u32(map: BorrowedFd) -> io::Result<Vec<u32>> {
    let mut keys: Vec<u32> = Vec::new();
    loop {
        let last = keys.last().map_or(std::ptr::null(), std::ptr::from_ref);
        let mut next = 0u32;
        // SAFETY: both keys have the 4 bytes that the map's have; null asks for the first.
        let returned = unsafe { bpf::bpf_map_get_next_key(map.as_raw_fd(), last.cast(), (&raw mut next).cast()) };
        match found(returned)? {
            Some(()) => keys.push(next),
            None => return Ok(keys),
        }
    }
}

/// Writes many elements of 4 bytes in one call.
pub(crate) fn update_batch(map: BorrowedFd, keys: &[u32], values: &[u32]) -> io::Result<()> {
    let mut count = keys.len().min(values.len()) as u32;
    let (keys, values) = (keys.as_ptr().cast(), values.as_ptr().cast());
    // SAFETY: both slices have `count` elements.
    checked(unsafe { bpf::bpf_map_update_batch(map.as_raw_fd(), keys, values, &raw mut count, std::ptr::null()) })
        .map(drop)
}

/// A descriptor of the map with this id.
pub(crate) fn map_by_id(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes a number.
    owned(unsafe { bpf::bpf_map_get_fd_by_id(id) })
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Pins a map, program or link.
pub(crate) fn pin(fd: BorrowedFd, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: the path outlives the call.
    checked(unsafe { bpf::bpf_obj_pin(fd.as_raw_fd(), path.as_ptr()) }).map(drop)
}

/// Opens a pinned map, program or link.
pub(crate) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    // SAFETY: the path outlives the call.
    owned(unsafe { bpf::bpf_obj_get(path.as_ptr()) })
}

/// Attaches an XDP program to an interface through a link.
pub(crate) fn create_xdp_link(program: BorrowedFd, ifindex: IfIndex, flags: u32) -> io::Result<OwnedFd> {
    create_link(program, ifindex, bpf::BPF_XDP, flags)
}

/// Attaches a tc program to what comes in by an interface through a link (Linux 6.6; EINVAL before).
pub(crate) fn create_tcx_link(program: BorrowedFd, ifindex: IfIndex) -> io::Result<OwnedFd> {
    create_link(program, ifindex, bpf::BPF_TCX_INGRESS, 0)
}

fn create_link(program: BorrowedFd, ifindex: IfIndex, kind: bpf::bpf_attach_type, flags: u32) -> io::Result<OwnedFd> {
    let options =
        bpf::bpf_link_create_opts { sz: size_of::<bpf::bpf_link_create_opts>() as _, flags, ..Default::default() };
    // SAFETY: the options outlive the call.
    owned(unsafe { bpf::bpf_link_create(program.as_raw_fd(), ifindex.0 as i32, kind, &raw const options) })
}

/// Whether a link of XDP or tc is at this interface. It is at none when its device is gone.
pub(crate) fn link_is_at(link: BorrowedFd, ifindex: IfIndex) -> bool {
    // struct bpf_link_info: type, id, program id, pad, then the interface.
    info::<24>(link).is_ok_and(|info| info[16..20] == ifindex.0.to_ne_bytes())
}

/// Attaches a BTF trace point program through a link.
pub(crate) fn create_trace_link(program: BorrowedFd) -> io::Result<OwnedFd> {
    // SAFETY: without a name the program says itself which trace point it is for.
    owned(unsafe { bpf::bpf_raw_tracepoint_open(std::ptr::null(), program.as_raw_fd()) })
}

/// Puts another program behind a link, between two packets.
pub(crate) fn update_link(link: BorrowedFd, program: BorrowedFd) -> io::Result<()> {
    // SAFETY: there are no options.
    checked(unsafe { bpf::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), std::ptr::null()) }).map(drop)
}

/// The first bytes of what the kernel tells about a map, program or link.
pub(crate) fn info<const N: usize>(fd: BorrowedFd) -> io::Result<[u8; N]> {
    let (mut bytes, mut length) = ([0u8; N], N as u32);
    // SAFETY: the kernel writes at most `length` bytes.
    checked(unsafe { bpf::bpf_obj_get_info_by_fd(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), &raw mut length) })?;
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
pub(crate) const LIVE_FRAMES: u32 = bpf::BPF_F_TEST_XDP_LIVE_FRAMES;

/// Runs an XDP program on `frame`.
pub(crate) fn run(program: BorrowedFd, frame: &[u8], out: &mut [u8], how: How) -> io::Result<RawRun> {
    let (ifindex, queue) = how.from;
    let first = if how.linear == 0 { frame.len() as u32 } else { how.linear };
    // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
    let ctx_in = [0u32, first, 0, ifindex, queue, 0];
    let mut ctx_out = [0u32; 6];
    let mut options = bpf::bpf_test_run_opts {
        sz: size_of::<bpf::bpf_test_run_opts>() as _,
        data_size_in: frame.len() as u32,
        data_in: frame.as_ptr().cast(),
        repeat: how.repeat as i32,
        flags: how.flags,
        batch_size: how.batch,
        ..Default::default()
    };
    let live = how.flags & LIVE_FRAMES != 0;
    if !live {
        options.data_size_out = out.len() as u32;
        options.data_out = out.as_mut_ptr().cast();
    }
    if ifindex != 0 {
        options.ctx_size_in = size_of_val(&ctx_in) as u32;
        options.ctx_in = ctx_in.as_ptr().cast();
        if !live {
            options.ctx_size_out = size_of_val(&ctx_out) as u32;
            options.ctx_out = ctx_out.as_mut_ptr().cast::<c_void>();
        }
    }
    // SAFETY: frame, output and contexts outlive the call and are as long as the options say.
    checked(unsafe { bpf::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) })?;
    Ok(RawRun {
        verdict: options.retval,
        ns: options.duration,
        meta: ctx_out[0] as usize,
        bytes: (options.data_size_out as usize).min(out.len()),
    })
}

/// Runs a tc program on `frame`, as if it came from `ifindex`.
pub(crate) fn run_skb(
    program: BorrowedFd,
    frame: &[u8],
    out: &mut [u8],
    ifindex: u32,
    repeat: u32,
) -> io::Result<RawRun> {
    /// Of struct __sk_buff: its bytes, and where the interface is.
    const BYTES: usize = 192;
    const IFINDEX: usize = 40;
    let mut ctx_in = [0u8; BYTES];
    ctx_in[IFINDEX..IFINDEX + 4].copy_from_slice(&ifindex.to_ne_bytes());
    let mut options = bpf::bpf_test_run_opts {
        sz: size_of::<bpf::bpf_test_run_opts>() as _,
        data_size_in: frame.len() as u32,
        data_in: frame.as_ptr().cast(),
        data_size_out: out.len() as u32,
        data_out: out.as_mut_ptr().cast(),
        ctx_size_in: BYTES as u32,
        ctx_in: ctx_in.as_ptr().cast(),
        repeat: repeat as i32,
        ..Default::default()
    };
    // SAFETY: frame, output and context outlive the call and are as long as the options say.
    checked(unsafe { bpf::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) })?;
    let bytes = (options.data_size_out as usize).min(out.len());
    Ok(RawRun { verdict: options.retval, ns: options.duration, meta: 0, bytes })
}

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Xdp,
    Tc,
}

/// Loads a program of a few instructions.
pub(crate) fn load(kind: Kind, name: &CStr, instructions: &[u64]) -> io::Result<OwnedFd> {
    let license = c"Dual BSD/GPL";
    let kind = match kind {
        Kind::Xdp => bpf::BPF_PROG_TYPE_XDP,
        Kind::Tc => bpf::BPF_PROG_TYPE_SCHED_CLS,
    };
    // SAFETY: an instruction is 8 bytes; all outlive the call, and there are no options.
    owned(unsafe {
        bpf::bpf_prog_load(
            kind,
            name.as_ptr(),
            license.as_ptr(),
            instructions.as_ptr().cast(),
            instructions.len() as _,
            std::ptr::null_mut(),
        )
    })
}

/// Name of the driver of an interface.
pub(crate) fn driver(ifindex: IfIndex) -> io::Result<String> {
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
        if libc::if_indextoname(ifindex.0, request.ifr_name.as_mut_ptr()).is_null() {
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
