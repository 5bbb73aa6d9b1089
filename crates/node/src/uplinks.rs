// SPDX-License-Identifier: Apache-2.0
//! What the node needs to know of its ports. By ioctl, not from /sys: that shows the network namespace in which it was
//! mounted, not the one in which the node runs.

use abi::IfIndex;
use nix::net::if_::if_nametoindex;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const ETHTOOL_GLINK: u32 = 0x0a;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    cmd: u32,
    max_rx: u32,
    max_tx: u32,
    max_other: u32,
    max_combined: u32,
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name.
    pub name: String,
    /// Index.
    pub ifindex: IfIndex,
    /// MTU.
    pub mtu: u32,
    /// Administratively up and with a carrier.
    pub up: bool,
    /// Receive queues.
    pub queues: u32,
}

/// Looks a port up in the network namespace of the calling thread.
pub fn interface(name: &str) -> io::Result<Interface> {
    let ifindex = IfIndex(if_nametoindex(name)?);
    let socket = control_socket()?;
    let mut request = request(name);
    ioctl(&socket, libc::SIOCGIFMTU, &mut request)?;
    // SAFETY: the kernel has just filled in the MTU.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu } as u32;
    ioctl(&socket, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: the kernel has just filled in the flags.
    let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
    let up = flags & libc::IFF_UP != 0 && flags & libc::IFF_RUNNING != 0;
    Ok(Interface { name: name.to_string(), ifindex, mtu, up, queues: queues(&socket, name) })
}

/// Whether a port carries frames; of one whose driver does not tell, whether it is up.
pub fn carrier(name: &str) -> bool {
    let Ok(socket) = control_socket() else { return false };
    let mut value = [ETHTOOL_GLINK, 0];
    let mut wanted = request(name);
    wanted.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
    match ioctl(&socket, libc::SIOCETHTOOL as _, &mut wanted) {
        Ok(()) => value[1] != 0,
        Err(_) => interface(name).is_ok_and(|i| i.up),
    }
}

/// Lets a port take in frames that are for others. It stays so: the fast path goes on when the process ends.
pub fn promiscuous(name: &str) -> io::Result<()> {
    set_flag(&control_socket()?, name, libc::IFF_PROMISC)
}

/// Sets a flag of an interface (IFF_*); it may be set.
pub(crate) fn set_flag(socket: &OwnedFd, name: &str, flag: libc::c_int) -> io::Result<()> {
    let mut request = request(name);
    ioctl(socket, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: the kernel has just filled in the flags.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    let wanted = flags | flag as libc::c_short;
    if wanted == flags {
        return Ok(());
    }
    request.ifr_ifru.ifru_flags = wanted;
    ioctl(socket, libc::SIOCSIFFLAGS, &mut request)
}

/// A socket to ask the kernel about ports with.
pub(crate) fn control_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the descriptor is new and owned by nobody else.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

pub(crate) fn request(name: &str) -> libc::ifreq {
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from as libc::c_char;
    }
    request
}

pub(crate) fn ioctl(socket: &OwnedFd, command: u64, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the request is live and of the type that these commands read and write.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), command as _, std::ptr::from_mut(request)) };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Receive queues; 1 where the driver does not say.
fn queues(socket: &OwnedFd, name: &str) -> u32 {
    let mut channels = Channels { cmd: ETHTOOL_GCHANNELS, ..Default::default() };
    let mut request = request(name);
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    match ioctl(socket, libc::SIOCETHTOOL, &mut request) {
        Ok(()) => (channels.rx + channels.combined).max(1),
        Err(_) => 1,
    }
}
