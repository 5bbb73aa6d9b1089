// SPDX-License-Identifier: Apache-2.0
//! AF_XDP: packets between one queue of a port and the software path, without the kernel's network stack.
//!
//! The buffers (umem) are this process's memory, cut into frames of 4096 bytes. Half of them belong to reception: they go
//! round fill ring → kernel → rx ring → this process → fill ring. The other half are for sending: free list → tx
//! ring → kernel → completion ring → free list. A received packet can be changed in its frame; frames are given
//! back by [`AfXdpSocket::release`]. Jumbo frames come in several pieces (XDP_USE_SG, Linux 6.6) and are put together.
//!
//! What the kernel could not deliver, because a ring was full or no frame was free, is in the socket's statistics;
//! [`AfXdpSocket::take_lost`] hands it out once, to be counted as `punt_ring_full`.

mod ring;

use crate::run::read_meta;
use crate::sys::Mapping;
use crate::XdpError;
use abi::{IfIndex, PuntMeta, FRAME_BYTES_MAX};
use ring::Ring;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Bytes of a frame of the umem.
const FRAME_BYTES: usize = 4096;
/// Room that is left in front of a packet that is put together from pieces; the kernel leaves as much in a frame.
const HEADROOM: usize = 256;
/// Packets taken at once.
pub const RECEIVE_MAX: usize = 64;
/// XDP_PKT_CONTD: the packet goes on in the next descriptor.
const CONTINUED: u32 = 1;
const XDP_USE_SG: u16 = 1 << 4;
/// Pieces that a packet may have.
const PIECES_MAX: usize = 17;

/// Copying or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyMode {
    /// Zero-copy where the driver can, else copying.
    #[default]
    Auto,
    /// The kernel copies each packet into the umem.
    Copy,
    /// Zero-copy or an error.
    ZeroCopy,
}

/// How a socket is opened.
#[derive(Clone, Copy, Debug)]
pub struct AfXdpOptions {
    /// Interface.
    pub ifindex: IfIndex,
    /// Receive and transmit queue.
    pub queue: u32,
    /// Entries of each ring, a power of two; the umem has twice as many frames.
    pub entries: u32,
    /// Copying or not.
    pub copy: CopyMode,
}

impl AfXdpOptions {
    /// A queue with rings of 2048 entries.
    pub fn new(ifindex: IfIndex, queue: u32) -> AfXdpOptions {
        AfXdpOptions { ifindex, queue, entries: 2048, copy: CopyMode::Auto }
    }
}

/// A received packet in memory that may be changed until [`AfXdpSocket::release`].
pub struct Received<'a> {
    /// The packet with room before and behind it.
    pub region: &'a mut [u8],
    /// Where the packet begins in `region`.
    pub offset: usize,
    /// Its length.
    pub length: usize,
    /// What the fast path said of it.
    pub meta: Option<PuntMeta>,
}

/// One packet as it lies in memory.
struct Taken {
    at: *mut u8,
    room: usize,
    offset: usize,
    length: usize,
    meta: Option<PuntMeta>,
}

/// A bound AF_XDP socket.
pub struct AfXdpSocket {
    // Rings are unmapped before the socket is closed, the umem last.
    rx: Ring<libc::xdp_desc>,
    tx: Ring<libc::xdp_desc>,
    fill: Ring<u64>,
    completion: Ring<u64>,
    socket: OwnedFd,
    umem: Mapping,
    options: AfXdpOptions,
    zero_copy: bool,
    pieces: bool,
    /// Frames of reception that this process holds.
    held: Vec<u64>,
    taken: Vec<Taken>,
    /// Packets put together from pieces.
    assembled: Vec<Vec<u8>>,
    /// Free frames for sending.
    free: Vec<u64>,
    unsent: bool,
    lost: u64,
}

// SAFETY: `Taken` points into the umem and into `assembled`, both owned by the struct; all use goes through &mut self.
unsafe impl Send for AfXdpSocket {}

fn check(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(rc)
}

fn set<T>(fd: RawFd, name: libc::c_int, value: &T) -> io::Result<()> {
    let at = std::ptr::from_ref(value).cast();
    // SAFETY: pointer and size describe one live value that the kernel only reads.
    check(unsafe { libc::setsockopt(fd, libc::SOL_XDP, name, at, size_of::<T>() as libc::socklen_t) }).map(drop)
}

/// Reads an option into a plain struct; the kernel may know a shorter version of it.
fn get<T: Copy>(fd: RawFd, name: libc::c_int) -> io::Result<T> {
    // SAFETY: the types used are repr(C) structs of integers, for which zeroes are a value.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: pointer and length describe `value`.
    check(unsafe { libc::getsockopt(fd, libc::SOL_XDP, name, (&raw mut value).cast(), &mut length) })?;
    Ok(value)
}

impl AfXdpSocket {
    /// Opens a socket and binds it to a queue. It gets packets once it is entered by `XdpEngine::set_listener`.
    pub fn open(options: AfXdpOptions) -> Result<AfXdpSocket, XdpError> {
        let at = format!("queue {} of interface {}", options.queue, options.ifindex);
        if !options.entries.is_power_of_two() || options.entries > 1 << 16 {
            return Err(XdpError::Limit { what: "AF_XDP ring entries (a power of two)".into(), limit: 1 << 16 });
        }
        let mut socket =
            AfXdpSocket::create(options).map_err(XdpError::call(format!("Opening an AF_XDP socket for {at}")))?;
        socket.bind().map_err(XdpError::call(format!("Binding an AF_XDP socket to {at}")))?;
        Ok(socket)
    }

    fn create(options: AfXdpOptions) -> io::Result<AfXdpSocket> {
        // SAFETY: no pointers; the new descriptor belongs to nobody else.
        let socket =
            unsafe { OwnedFd::from_raw_fd(check(libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0))?) };
        let fd = socket.as_raw_fd();
        let frames = options.entries as usize * 2;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let umem =
            Mapping::new(std::ptr::null_mut(), frames * FRAME_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)?;
        // SAFETY: zeroes are a value of this struct of integers.
        let mut reg: libc::xdp_umem_reg = unsafe { std::mem::zeroed() };
        reg.addr = umem.at() as u64;
        reg.len = (frames * FRAME_BYTES) as u64;
        reg.chunk_size = FRAME_BYTES as u32;
        set(fd, libc::XDP_UMEM_REG, &reg)?;
        for ring in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING] {
            set(fd, ring, &options.entries)?;
        }
        let offsets: libc::xdp_mmap_offsets = get(fd, libc::XDP_MMAP_OFFSETS)?;
        let n = options.entries;
        let mut fill = Ring::map(fd, libc::XDP_UMEM_PGOFF_FILL_RING as i64, &offsets.fr, n)?;
        for frame in 0..n as u64 {
            fill.push(frame * FRAME_BYTES as u64);
        }
        fill.publish();
        Ok(AfXdpSocket {
            rx: Ring::map(fd, libc::XDP_PGOFF_RX_RING, &offsets.rx, n)?,
            tx: Ring::map(fd, libc::XDP_PGOFF_TX_RING, &offsets.tx, n)?,
            fill,
            completion: Ring::map(fd, libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64, &offsets.cr, n)?,
            socket,
            umem,
            options,
            zero_copy: false,
            pieces: false,
            held: Vec::new(),
            taken: Vec::new(),
            assembled: Vec::new(),
            free: (n as u64..2 * n as u64).map(|frame| frame * FRAME_BYTES as u64).collect(),
            unsent: false,
            lost: 0,
        })
    }

    fn bind(&mut self) -> io::Result<()> {
        let copy = match self.options.copy {
            CopyMode::Auto => 0,
            CopyMode::Copy => libc::XDP_COPY,
            CopyMode::ZeroCopy => libc::XDP_ZEROCOPY,
        };
        // Kernels before 6.6 do not know packets in pieces.
        let flags = copy | libc::XDP_USE_NEED_WAKEUP;
        self.pieces = match self.bind_with(flags | XDP_USE_SG) {
            Ok(()) => true,
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL) | Some(libc::EOPNOTSUPP)) => {
                self.bind_with(flags)?;
                false
            }
            Err(e) => return Err(e),
        };
        let options: u32 = get(self.raw_fd(), libc::XDP_OPTIONS)?;
        self.zero_copy = options & libc::XDP_OPTIONS_ZEROCOPY != 0;
        Ok(())
    }

    fn bind_with(&self, flags: u16) -> io::Result<()> {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: self.options.ifindex.0,
            sxdp_queue_id: self.options.queue,
            sxdp_shared_umem_fd: 0,
        };
        let (at, length) = ((&raw const address).cast(), size_of_val(&address) as libc::socklen_t);
        // SAFETY: pointer and length describe `address`.
        check(unsafe { libc::bind(self.raw_fd(), at, length) }).map(drop)
    }

    /// The descriptor, for `poll` and `XdpEngine::set_listener`.
    pub fn raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Interface and queue.
    pub fn port(&self) -> (IfIndex, u32) {
        (self.options.ifindex, self.options.queue)
    }

    /// One line for the operator: how packets get here.
    pub fn describe(&self) -> String {
        format!(
            "AF_XDP on queue {} of interface {}: {}, {}",
            self.options.queue,
            self.options.ifindex,
            if self.zero_copy { "zero-copy" } else { "copying" },
            if self.pieces {
                "jumbo frames in pieces".to_string()
            } else {
                format!("frames up to {} bytes (Linux before 6.6: longer punts are lost)", FRAME_BYTES - HEADROOM)
            }
        )
    }

    /// Whether the driver puts packets into the umem itself.
    pub fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Takes up to [`RECEIVE_MAX`] packets, which [`AfXdpSocket::packets`] then shows. Gives those of before back.
    pub fn receive(&mut self) -> usize {
        self.release();
        let waiting = self.rx.waiting();
        let (mut used, mut pieces) = (0, Vec::with_capacity(1));
        while used + (pieces.len() as u32) < waiting && self.taken.len() < RECEIVE_MAX {
            let piece = self.rx.peek(used + pieces.len() as u32);
            pieces.push(piece);
            if piece.options & CONTINUED == 0 || pieces.len() == PIECES_MAX {
                used += pieces.len() as u32;
                self.keep(&pieces);
                pieces.clear();
            }
        }
        // Pieces whose packet is not complete stay in the ring.
        self.rx.take(used);
        self.taken.len()
    }

    /// Makes a packet of its pieces.
    fn keep(&mut self, pieces: &[libc::xdp_desc]) {
        let frame_of = |addr: u64| addr & !(FRAME_BYTES as u64 - 1);
        self.held.extend(pieces.iter().map(|p| frame_of(p.addr)));
        let first = &pieces[0];
        let offset = (first.addr - frame_of(first.addr)) as usize;
        if pieces.iter().any(|p| p.addr as usize + p.len as usize > self.umem.bytes()) {
            return;
        }
        // SAFETY: the frame lies in the umem (checked above) and is ours until it is given back.
        let frame =
            unsafe { std::slice::from_raw_parts_mut(self.umem.at().add(frame_of(first.addr) as usize), FRAME_BYTES) };
        let meta = read_meta(&frame[..offset]);
        if meta.is_some() {
            // So that the next packet in this frame cannot pass for one with metadata.
            frame[offset - size_of::<PuntMeta>()..offset].fill(0);
        }
        if let [only] = pieces {
            let taken = Taken { at: frame.as_mut_ptr(), room: FRAME_BYTES, offset, length: only.len as usize, meta };
            self.taken.push(taken);
            return;
        }
        let mut bytes = Vec::with_capacity(HEADROOM * 2 + FRAME_BYTES_MAX as usize);
        bytes.resize(HEADROOM, 0);
        for piece in pieces {
            // SAFETY: as for `frame`; the range was checked.
            bytes.extend_from_slice(unsafe {
                std::slice::from_raw_parts(self.umem.at().add(piece.addr as usize), piece.len as usize)
            });
        }
        let length = bytes.len() - HEADROOM;
        bytes.resize(bytes.len() + HEADROOM, 0);
        let taken = Taken { at: bytes.as_mut_ptr(), room: bytes.len(), offset: HEADROOM, length, meta };
        self.taken.push(taken);
        self.assembled.push(bytes);
    }

    /// The packets of the last [`AfXdpSocket::receive`].
    pub fn packets(&mut self) -> impl Iterator<Item = Received<'_>> {
        self.taken.iter().map(|t| Received {
            // SAFETY: each packet has a frame or a buffer of its own, which nothing else touches before `release`, and
            // `release` needs &mut self, which the iterator borrows.
            region: unsafe { std::slice::from_raw_parts_mut(t.at, t.room) },
            offset: t.offset,
            length: t.length,
            meta: t.meta,
        })
    }

    /// Gives the received frames back to the kernel.
    pub fn release(&mut self) {
        self.taken.clear();
        self.assembled.clear();
        if self.held.is_empty() {
            return;
        }
        // The ring has an entry for each frame of reception, so there is always room.
        let n = (self.fill.room() as usize).min(self.held.len());
        for frame in self.held.drain(..n) {
            self.fill.push(frame);
        }
        self.fill.publish();
        if self.fill.needs_wakeup() {
            self.kick_receive();
        }
    }

    /// Queues a packet for sending on this socket's interface. False: no frame or entry is free, it was not taken.
    pub fn send(&mut self, packet: &[u8]) -> bool {
        let pieces = packet.len().div_ceil(FRAME_BYTES).max(1);
        if packet.is_empty() || pieces > 1 && !self.pieces {
            return false;
        }
        if self.free.len() < pieces {
            self.reap();
        }
        if self.free.len() < pieces || (self.tx.room() as usize) < pieces {
            // The kernel may only wait to be told.
            self.flush();
            self.reap();
        }
        if self.free.len() < pieces || (self.tx.room() as usize) < pieces {
            return false;
        }
        let mut rest = packet;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(FRAME_BYTES));
            let Some(addr) = self.free.pop() else { break };
            // SAFETY: the frame is free, so it is ours, and FRAME_BYTES long.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), self.umem.at().add(addr as usize), now.len()) };
            let options = if later.is_empty() { 0 } else { CONTINUED };
            self.tx.push(libc::xdp_desc { addr, len: now.len() as u32, options });
            rest = later;
        }
        self.tx.publish();
        self.unsent = true;
        true
    }

    /// Tells the kernel to send what was queued.
    pub fn flush(&mut self) {
        if !self.unsent {
            return;
        }
        self.unsent = false;
        if self.tx.needs_wakeup() || !self.zero_copy {
            // In copy mode the kernel sends from this very call, 32 packets at a time; EAGAIN asks for another.
            for _ in 0..64 {
                // SAFETY: no data is passed.
                let rc = unsafe {
                    libc::sendto(self.raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
                };
                let again = rc < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN);
                if !again || self.tx.room() == self.options.entries {
                    break;
                }
            }
        }
    }

    /// Takes sent frames back.
    fn reap(&mut self) {
        let n = self.completion.waiting();
        for i in 0..n {
            self.free.push(self.completion.peek(i) & !(FRAME_BYTES as u64 - 1));
        }
        self.completion.take(n);
    }

    fn kick_receive(&self) {
        // SAFETY: no buffers are passed.
        unsafe {
            libc::recvfrom(
                self.raw_fd(),
                std::ptr::null_mut(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
    }

    /// Packets that the kernel could not deliver since the last call.
    pub fn take_lost(&mut self) -> u64 {
        let total = self.statistics().map_or(self.lost, |s| s.rx_dropped + s.rx_ring_full);
        let new = total.saturating_sub(self.lost);
        self.lost = total;
        new
    }

    /// Counters of the kernel: since the socket was opened.
    pub fn statistics(&self) -> io::Result<libc::xdp_statistics> {
        get(self.raw_fd(), libc::XDP_STATISTICS)
    }
}
