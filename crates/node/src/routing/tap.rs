// SPDX-License-Identifier: Apache-2.0
//! TAPs in network namespaces: what a routing daemon sees of a circuit.

use super::netlink::Netlink;
use crate::uplinks::{control_socket, ioctl, request, set_flag};
use abi::Ipv4Net;
use nix::mount::{mount, umount2, MntFlags, MsFlags};
use nix::sched::{setns, unshare, CloneFlags};
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

const TUNSETIFF: u64 = 0x4004_54ca;
const TUNSETPERSIST: u64 = 0x4004_54cb;
const TUNSETCARRIER: u64 = 0x4004_54e2;
/// An Ethernet device (`ARPHRD_ETHER`).
const ETHERNET: u16 = 1;

/// How a TAP is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// MAC address.
    pub mac: u64,
    /// MTU.
    pub mtu: u32,
    /// Address and network.
    pub address: Ipv4Net,
    /// Whose it is.
    pub owner: String,
}

/// A TAP.
#[derive(Debug)]
pub struct Tap {
    file: File,
}

impl Tap {
    /// Makes or opens a TAP in the network namespace of the calling thread, sets it up and lets it outlive this process.
    pub fn open(name: &str, setup: &Setup) -> io::Result<Tap> {
        let tap = Tap { file: device(name)?.0 };
        tap.number(TUNSETPERSIST, 1)?;
        set_up(name, setup)?;
        Ok(tap)
    }

    /// A command that takes a number.
    fn number(&self, command: u64, value: libc::c_ulong) -> io::Result<()> {
        // SAFETY: the command takes the number itself, no pointer.
        match unsafe { libc::ioctl(self.file.as_raw_fd(), command as _, value) } {
            rc if rc < 0 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Whether the line behind it carries frames.
    pub fn carrier(&self, up: bool) -> io::Result<()> {
        let value = libc::c_int::from(up);
        // SAFETY: the command reads one int behind the pointer, which is live.
        match unsafe { libc::ioctl(self.file.as_raw_fd(), TUNSETCARRIER as _, &raw const value) } {
            rc if rc < 0 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// It goes when the last who has it lets go of it.
    pub fn give_up(&self) -> io::Result<()> {
        self.number(TUNSETPERSIST, 0)
    }

    /// Hands a frame, given in two parts, to whoever listens; false if the kernel does not take it.
    pub fn send(&self, macs: &[u8], rest: &[u8]) -> bool {
        (&self.file)
            .write_vectored(&[IoSlice::new(macs), IoSlice::new(rest)])
            .is_ok_and(|n| n == macs.len() + rest.len())
    }

    /// The next frame that was sent; 0: there is none.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match (&self.file).read(buffer) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(0),
            // The device is down.
            Err(e) if e.raw_os_error() == Some(libc::EIO) => Ok(0),
            result => result,
        }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Makes or opens a TAP in the network namespace of the calling thread, whose reads do not wait; the name that it has, where `name` lets the kernel
/// choose.
pub(crate) fn device(name: &str) -> io::Result<(File, String)> {
    let file = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    let mut wanted = request(name);
    wanted.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    let fd: OwnedFd = file.into();
    ioctl(&fd, TUNSETIFF, &mut wanted)?;
    let name: Vec<u8> = wanted.ifr_name.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    Ok((fd.into(), String::from_utf8_lossy(&name).into_owned()))
}

/// Gives an interface of this namespace what is wanted of it; what it has is left alone, so that routes over it stay.
pub(super) fn set_up(name: &str, setup: &Setup) -> io::Result<()> {
    let socket = control_socket()?;
    let mut wanted = request(name);
    ioctl(&socket, libc::SIOCGIFHWADDR as _, &mut wanted)?;
    let octets = &setup.mac.to_be_bytes()[2..];
    // SAFETY: the kernel has just filled in the hardware address.
    let has = unsafe { wanted.ifr_ifru.ifru_hwaddr.sa_data };
    if has.iter().zip(octets).any(|(a, b)| *a as u8 != *b) {
        let mut address = libc::sockaddr { sa_family: ETHERNET, sa_data: [0; 14] };
        address.sa_data.iter_mut().zip(octets).for_each(|(a, b)| *a = *b as libc::c_char);
        wanted.ifr_ifru.ifru_hwaddr = address;
        ioctl(&socket, libc::SIOCSIFHWADDR as _, &mut wanted)?;
    }
    wanted.ifr_ifru.ifru_mtu = setup.mtu as libc::c_int;
    ioctl(&socket, libc::SIOCSIFMTU as _, &mut wanted)?;
    for (command, address) in
        [(libc::SIOCSIFADDR, setup.address.addr()), (libc::SIOCSIFNETMASK, setup.address.netmask())]
    {
        let mut inet = libc::sockaddr { sa_family: libc::AF_INET as u16, sa_data: [0; 14] };
        inet.sa_data[2..6].iter_mut().zip(address.octets()).for_each(|(a, b)| *a = b as libc::c_char);
        wanted.ifr_ifru.ifru_addr = inet;
        ioctl(&socket, command as _, &mut wanted)?;
    }
    set_flag(&socket, name, libc::IFF_UP)?;
    Netlink::open(0)?.set_alias(nix::net::if_::if_nametoindex(name)?, &setup.owner)
}

/// Where namespaces have their names, for `ip netns` too.
pub const NAMESPACES: &str = "/run/netns";

/// The file that is a namespace.
pub fn path(name: &str) -> PathBuf {
    PathBuf::from(NAMESPACES).join(name)
}

/// What tells a namespace from another one of its name.
pub fn identity(name: &str) -> io::Result<u64> {
    Ok(std::fs::metadata(path(name))?.ino())
}

/// Does something in a network namespace, in a thread that ends there.
pub fn inside<T: Send>(name: &str, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let file = File::open(path(name))?;
    in_thread(|| {
        setns(&file, CloneFlags::CLONE_NEWNET)?;
        work()
    })
}

fn in_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| scope.spawn(work).join())
        .unwrap_or_else(|_| Err(io::Error::other("the thread in the namespace ended by a panic")))
}

/// Makes a namespace, and marks it as the owner's.
pub fn make(name: &str, owner: &str) -> io::Result<()> {
    std::fs::create_dir_all(NAMESPACES)?;
    let at = path(name);
    File::options().write(true).create_new(true).mode(0o444).open(&at)?;
    let made = in_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET)?;
        mount(Some("/proc/thread-self/ns/net"), &at, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
        set_flag(&control_socket()?, "lo", libc::IFF_UP)?;
        Netlink::open(0)?.set_alias(1, owner)
    });
    if made.is_err() {
        // What is left of it would look like a namespace.
        let _ = remove(name);
    }
    made
}

/// Takes a namespace's name away; it goes when nothing is in it.
pub fn remove(name: &str) -> io::Result<()> {
    let at = path(name);
    match umount2(&at, MntFlags::MNT_DETACH) {
        Ok(()) | Err(nix::errno::Errno::EINVAL) => std::fs::remove_file(at),
        Err(e) => Err(e.into()),
    }
}

/// Removes a TAP that an earlier process has left in this thread's namespace.
pub fn remove_left(name: &str) -> io::Result<()> {
    Tap { file: device(name)?.0 }.give_up()
}
