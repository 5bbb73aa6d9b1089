// SPDX-License-Identifier: Apache-2.0
//! AF_PACKET: how the `user` engine takes packets from a port where XDP cannot be attached.
//!
//! The kernel sees every packet too. That is right for what the gateway passes; for what it serves, a closed UDP
//! port would make the kernel answer "port unreachable" to every packet. [`Silencer`] binds the VXLAN port with a filter that takes
//! nothing, which keeps the kernel quiet.

use abi::IfIndex;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Bytes in front of each packet, so that it can be rewritten in place.
pub const HEADROOM: usize = 128;
/// Bytes of a region: headroom, the largest frame, room for a longer tunnel header.
const REGION: usize = HEADROOM + abi::FRAME_BYTES_MAX as usize + 128;
/// Packets taken at once.
pub const BURST: usize = 64;
const CONTROL: usize = 64;
/// Bytes of a VLAN tag.
const TAG: usize = 4;
/// Bytes of an Ethernet header.
const ETHERNET: usize = wire::ethernet::HEADER_LEN;
/// PACKET_FANOUT_FLAG_IGNORE_OUTGOING (Linux 5.14).
const FANOUT_IGNORE_OUTGOING: i32 = 0x4000;

/// A socket that receives and sends whole frames on one port.
pub struct PacketSocket {
    fd: OwnedFd,
    /// Interface index.
    pub ifindex: IfIndex,
    regions: Vec<u8>,
    control: Vec<u8>,
    /// Where each packet received begins in its region, and its bytes.
    places: [(usize, usize); BURST],
    /// What else is to be known of each.
    marks: [Marks; BURST],
    /// Packets with a VLAN tag are for the gateway.
    tagged: bool,
    /// The port is a TUN interface: what it gives and takes has no Ethernet header.
    tun: bool,
}

/// What the kernel says of a packet besides its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Its checksum was left to the device.
    pub unfinished: bool,
    /// It is longer than a region, and what is there is its beginning.
    pub cut: bool,
}

fn check(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(rc)
    }
}

fn set_option<T>(fd: &OwnedFd, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: pointer and size describe one live value, which the kernel only reads.
    check(unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), size_of::<T>() as u32)
    })?;
    Ok(())
}

fn socket(domain: libc::c_int, kind: libc::c_int, protocol: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the descriptor is new and owned by nobody else.
    unsafe { Ok(OwnedFd::from_raw_fd(check(libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol))?)) }
}

fn bind(fd: &OwnedFd, ifindex: IfIndex, protocol: u16) -> io::Result<()> {
    // SAFETY: an all-zero sockaddr_ll is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = ifindex.0 as i32;
    // SAFETY: pointer and size describe one live address.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as u32) })?;
    Ok(())
}

impl PacketSocket {
    /// Opens a socket that only sends on `ifindex`. Needs CAP_NET_RAW.
    pub fn egress(ifindex: IfIndex) -> io::Result<Self> {
        let fd = socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, 0)?;
        bind(&fd, ifindex, 0)?;
        let (regions, control, places) = (Vec::new(), Vec::new(), [(0, 0); BURST]);
        let marks = [Marks::default(); BURST];
        Ok(Self { fd, ifindex, regions, control, places, marks, tagged: false, tun: false })
    }

    /// Opens a socket on `ifindex`. Workers that share a port give the same `fanout` group and split its flows. Needs
    /// CAP_NET_RAW.
    pub fn open(ifindex: IfIndex, fanout: Option<u16>) -> io::Result<Self> {
        // Protocol 0: nothing is received before the socket is bound to its port.
        let fd = socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, 0)?;
        set_option(&fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32)?;
        set_option(&fd, libc::SOL_PACKET, libc::PACKET_AUXDATA, &1i32)?;
        // The kernel caps it at net.core.rmem_max unless forced, which needs CAP_NET_ADMIN.
        if set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &(16i32 << 20)).is_err() {
            set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &(16i32 << 20))?;
        }
        bind(&fd, ifindex, libc::ETH_P_ALL as u16)?;
        if let Some(group) = fanout {
            // A group has a flag of its own for packets that go out; the socket's does not count in it.
            let kind = libc::PACKET_FANOUT_HASH as i32 | FANOUT_IGNORE_OUTGOING;
            set_option(&fd, libc::SOL_PACKET, libc::PACKET_FANOUT, &(i32::from(group) | kind << 16))?;
        }
        Ok(Self {
            fd,
            ifindex,
            regions: vec![0; REGION * BURST],
            control: vec![0; CONTROL * BURST],
            places: [(0, 0); BURST],
            marks: [Marks::default(); BURST],
            tagged: false,
            tun: false,
        })
    }

    /// Whether packets with a VLAN tag are for the gateway: then the tag that the kernel has taken off is put back. Else such a packet is the
    /// host's alone.
    pub fn keep_tags(&mut self, tagged: bool) {
        self.tagged = tagged;
    }

    /// The port is a TUN interface. What comes gets an Ethernet header, without addresses; what is sent loses its own.
    pub fn without_headers(&mut self) {
        self.tun = true;
    }

    /// The descriptor, for `poll`.
    pub fn raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Takes what has come in, without waiting. The packets are then in [`PacketSocket::regions`].
    pub fn receive(&mut self) -> io::Result<usize> {
        // SAFETY: all-zero iovec and mmsghdr are valid.
        let mut vectors: [libc::iovec; BURST] = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; BURST] = unsafe { std::mem::zeroed() };
        let (base, control) = (self.regions.as_mut_ptr(), self.control.as_mut_ptr());
        for (i, (vector, message)) in vectors.iter_mut().zip(&mut messages).enumerate() {
            // SAFETY: i < BURST, so both pointers stay inside their vectors.
            let (region, control) = unsafe { (base.add(i * REGION + HEADROOM), control.add(i * CONTROL)) };
            *vector = libc::iovec { iov_base: region.cast(), iov_len: REGION - HEADROOM };
            message.msg_hdr.msg_iov = vector;
            message.msg_hdr.msg_iovlen = 1;
            message.msg_hdr.msg_control = control.cast();
            message.msg_hdr.msg_controllen = CONTROL;
        }
        // SAFETY: every message points to its own live region and control buffer.
        let rc = unsafe {
            libc::recvmmsg(
                self.fd.as_raw_fd(),
                messages.as_mut_ptr(),
                BURST as u32,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let received = match check(rc) {
            Ok(n) => n as usize,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => 0,
            Err(e) => return Err(e),
        };
        for (i, message) in messages.iter().enumerate().take(received) {
            let len = message.msg_len as usize;
            let region = &mut self.regions[i * REGION..(i + 1) * REGION];
            let auxiliary = auxiliary(&message.msg_hdr);
            self.marks[i] = Marks {
                unfinished: auxiliary.is_some_and(|a| a.tp_status & libc::TP_STATUS_CSUMNOTREADY != 0),
                cut: message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            };
            self.places[i] = match auxiliary.and_then(|a| vlan_tag(&a)) {
                _ if self.tun => put_header(region, len),
                None => (HEADROOM, len),
                // The kernel has taken a tag off; such a packet is not for the gateway and the host has it already.
                Some(_) if !self.tagged => (HEADROOM, 0),
                Some(tag) => put_back(region, len, tag),
            };
        }
        Ok(received)
    }

    /// The first `count` regions, each with where the packet received begins and its bytes.
    pub fn regions(&mut self, count: usize) -> impl Iterator<Item = (&mut [u8], (usize, usize))> {
        self.regions.chunks_exact_mut(REGION).zip(self.places).take(count)
    }

    /// What is to be known of the packets received besides their bytes.
    pub fn marks(&self) -> [Marks; BURST] {
        self.marks
    }

    /// Sends a frame; false if the kernel did not take it.
    pub fn send(&self, frame: &[u8]) -> bool {
        let Some(frame) = frame.get(if self.tun { ETHERNET } else { 0 }..) else { return false };
        // SAFETY: pointer and length describe the live frame, which the kernel only reads.
        let rc = unsafe { libc::send(self.fd.as_raw_fd(), frame.as_ptr().cast(), frame.len(), libc::MSG_DONTWAIT) };
        rc == frame.len() as isize
    }

    /// Packets that found the socket's queue full since the last call.
    pub fn take_lost(&self) -> u64 {
        // SAFETY: all-zero statistics are valid.
        let mut stats: libc::tpacket_stats = unsafe { std::mem::zeroed() };
        let mut size = size_of::<libc::tpacket_stats>() as u32;
        // SAFETY: pointer and size describe the live structure that the kernel fills.
        let rc = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &mut size,
            )
        };
        if rc < 0 {
            0
        } else {
            u64::from(stats.tp_drops)
        }
    }
}

/// Puts a tag into the packet of `len` bytes behind the headroom; where it begins now, and its bytes.
fn put_back(region: &mut [u8], len: usize, tag: [u8; TAG]) -> (usize, usize) {
    const MACS: usize = 12;
    if len < MACS {
        return (HEADROOM, 0);
    }
    let start = HEADROOM - TAG;
    region.copy_within(HEADROOM..HEADROOM + MACS, start);
    region[start + MACS..start + MACS + TAG].copy_from_slice(&tag);
    (start, len + TAG)
}

/// Puts an Ethernet header in front of the IP packet of `len` bytes behind the headroom; where the frame begins, and its bytes. What is no IP
/// packet is none of a site's.
fn put_header(region: &mut [u8], len: usize) -> (usize, usize) {
    let start = HEADROOM - ETHERNET;
    let kind = match region[HEADROOM] >> 4 {
        4 if len > 0 => wire::ethernet::ethertype::IPV4,
        6 if len > 0 => wire::ethernet::ethertype::IPV6,
        _ => return (HEADROOM, 0),
    };
    let header = &mut region[start..HEADROOM];
    header.fill(0);
    header[ETHERNET - 2..].copy_from_slice(&kind.to_be_bytes());
    (start, len + ETHERNET)
}

/// What the kernel says of a packet.
fn auxiliary(header: &libc::msghdr) -> Option<libc::tpacket_auxdata> {
    // SAFETY: the header and its control buffer are live and were filled by the kernel; CMSG_FIRSTHDR checks the length.
    unsafe {
        let message = libc::CMSG_FIRSTHDR(header);
        if message.is_null()
            || (*message).cmsg_level != libc::SOL_PACKET
            || (*message).cmsg_type != libc::PACKET_AUXDATA
        {
            return None;
        }
        Some(std::ptr::read_unaligned(libc::CMSG_DATA(message).cast()))
    }
}

/// The tag that the kernel has taken off a packet, as it stood there.
fn vlan_tag(data: &libc::tpacket_auxdata) -> Option<[u8; TAG]> {
    if data.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let named = data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
    let kind = if named { data.tp_vlan_tpid } else { libc::ETH_P_8021Q as u16 };
    let ([a, b], [c, d]) = (kind.to_be_bytes(), data.tp_vlan_tci.to_be_bytes());
    Some([a, b, c, d])
}

/// Keeps the kernel from answering for the VXLAN port while the `user` engine serves it.
#[derive(Debug)]
pub struct Silencer {
    _sockets: Vec<OwnedFd>,
}

impl Silencer {
    /// Binds `port` on each address, taking nothing.
    pub fn new(addresses: &[IpAddr], port: u16) -> io::Result<Self> {
        let mut sockets = Vec::new();
        for address in addresses {
            sockets.push(Self::one(*address, port)?);
        }
        Ok(Self { _sockets: sockets })
    }

    fn one(address: IpAddr, port: u16) -> io::Result<OwnedFd> {
        let fd = socket(if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }, libc::SOCK_DGRAM, 0)?;
        set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1i32)?;
        // One instruction: return 0, that is, accept no byte of any packet.
        let mut nothing = [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
        let program = libc::sock_fprog { len: 1, filter: nothing.as_mut_ptr() };
        set_option(&fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
        let address = nix::sys::socket::SockaddrStorage::from(std::net::SocketAddr::new(address, port));
        nix::sys::socket::bind(fd.as_raw_fd(), &address)?;
        Ok(fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_put_back_where_it_was() {
        let mut region = vec![0xee; 200];
        region[HEADROOM..HEADROOM + 20].copy_from_slice(&std::array::from_fn::<u8, 20, _>(|i| i as u8));
        let (start, len) = put_back(&mut region, 20, [0x88, 0xa8, 0, 100]);
        let want: Vec<u8> = (0..12).chain([0x88, 0xa8, 0, 100]).chain(12..20).collect();
        assert_eq!((start, &region[start..start + len]), (HEADROOM - 4, &want[..]));
        assert_eq!(put_back(&mut region, 11, [0; 4]), (HEADROOM, 0));
    }

    #[test]
    fn a_packet_out_of_a_tunnel_gets_a_header_by_its_version() {
        for (first, kind) in [(0x45, [8, 0]), (0x60, [0x86, 0xdd])] {
            let mut region = vec![0xee; 200];
            region[HEADROOM] = first;
            let (start, len) = put_header(&mut region, 30);
            let want = [&[0; 12][..], &kind, &[first], &[0xee; 29]].concat();
            assert_eq!((start, &region[start..start + len]), (HEADROOM - 14, &want[..]));
        }
        let mut region = vec![0x45; 200];
        assert_eq!(put_header(&mut region, 0), (HEADROOM, 0));
        region[HEADROOM] = 0x55;
        assert_eq!(put_header(&mut region, 30), (HEADROOM, 0));
    }
}
