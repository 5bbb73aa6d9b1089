// SPDX-License-Identifier: Apache-2.0
//! What the kernel of a namespace knows: its interfaces, its routes, and that they have changed.

use abi::Prefix;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use underlay::model::{Event, RouteKind};
use underlay::netlink::{attribute, attributes, message, messages, parse, u32_at, Parsed};

/// News of interfaces, routes of both families, and next hops (RTMGRP_LINK, RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_ROUTE, RTNLGRP_NEXTHOP).
pub const NEWS: u32 = 1 | 0x40 | 0x400 | 1 << 31;
pub(crate) const RTM_NEWLINK: u16 = 16;
pub(crate) const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
pub(crate) const RTM_NEWROUTE: u16 = 24;
pub(crate) const RTM_GETROUTE: u16 = 26;
pub(crate) const ACK: u16 = 4;
pub(crate) const DUMP: u16 = 0x300;
pub(crate) const IFLA_IFNAME: u16 = 3;
const IFLA_IFALIAS: u16 = 20;
const MAIN: u32 = 254;
/// Who enters routes that are nobody's announcement: ICMP redirects, the kernel itself, router advertisements (`rtnetlink.h`).
const NOT_LEARNED: [u8; 3] = [1, 2, 9];
const BUFFER: usize = 1 << 16;

/// A route to interfaces, as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// Destinations.
    pub prefix: Prefix,
    /// Metric: the lower one wins.
    pub metric: u32,
    /// Who entered it (`/etc/iproute2/rt_protos`).
    pub protocol: u8,
    /// Interfaces that it leads to.
    pub interfaces: Vec<u32>,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Number.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Alias.
    pub alias: String,
}

/// A netlink socket of the namespace in which it was opened.
#[derive(Debug)]
pub struct Netlink {
    fd: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// Opens one that hears these groups.
    pub fn open(groups: u32) -> io::Result<Netlink> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | if groups == 0 { 0 } else { libc::SOCK_NONBLOCK };
        // SAFETY: no pointers; the descriptor is new and owned by nobody else.
        let fd = unsafe {
            match libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) {
                fd if fd < 0 => return Err(io::Error::last_os_error()),
                fd => OwnedFd::from_raw_fd(fd),
            }
        };
        // SAFETY: an all-zero address is valid.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        (address.nl_family, address.nl_groups) = (libc::AF_NETLINK as u16, groups);
        // SAFETY: pointer and size describe one live address.
        let rc =
            unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_nl>() as u32) };
        if rc < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Netlink { fd, sequence: 0, buffer: vec![0; BUFFER] })
    }

    fn send(&self, request: &[u8]) -> io::Result<()> {
        // SAFETY: pointer and length describe the live request, which the kernel only reads.
        match unsafe { libc::send(self.fd.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) } {
            n if n < 0 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    fn receive(&mut self) -> io::Result<usize> {
        // SAFETY: pointer and length describe the live buffer.
        match unsafe { libc::recv(self.fd.as_raw_fd(), self.buffer.as_mut_ptr().cast(), self.buffer.len(), 0) } {
            n if n < 0 => Err(io::Error::last_os_error()),
            n => Ok(n as usize),
        }
    }

    /// Reads all that has come; whether there was anything, or something was lost.
    pub fn news(&mut self) -> bool {
        let mut any = false;
        loop {
            match self.receive() {
                Ok(_) => any = true,
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => any = true,
                Err(_) => return any,
            }
        }
    }

    /// Sends a request and gives each message of the answer to `each`.
    fn request(&mut self, request: &[u8], mut each: impl FnMut(u16, u16, &[u8])) -> io::Result<()> {
        self.send(request)?;
        loop {
            let n = self.receive()?;
            for (kind, flags, sequence, payload) in messages(&self.buffer[..n]) {
                if sequence != self.sequence {
                    continue;
                }
                match kind {
                    2 => match u32_at(payload, 0).map_or(0, |e| (e as i32).wrapping_neg()) {
                        0 => return Ok(()),
                        // A family that this kernel does not have.
                        libc::EOPNOTSUPP | libc::EAFNOSUPPORT => return Ok(()),
                        errno => return Err(io::Error::from_raw_os_error(errno)),
                    },
                    3 => return Ok(()),
                    _ => each(kind, flags, payload),
                }
            }
        }
    }

    /// Sends a request of this kind with these flags, and gives each message of the answer to `each`.
    pub fn exchange(
        &mut self,
        kind: u16,
        flags: u16,
        payload: &[u8],
        each: impl FnMut(u16, u16, &[u8]),
    ) -> io::Result<()> {
        self.sequence += 1;
        self.request(&message(kind, flags, self.sequence, payload), each)
    }

    /// Has the kernel look at the header of a request for a list, and leave out what differs from it.
    pub fn strict(&self) -> io::Result<()> {
        const NETLINK_GET_STRICT_CHK: libc::c_int = 12;
        let on: libc::c_int = 1;
        // SAFETY: pointer and size describe one live number.
        let rc = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_NETLINK,
                NETLINK_GET_STRICT_CHK,
                (&raw const on).cast(),
                size_of::<libc::c_int>() as u32,
            )
        };
        if rc < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    fn dump(&mut self, kind: u16, family: u8, header: usize, each: impl FnMut(u16, u16, &[u8])) -> io::Result<()> {
        let mut payload = vec![0; header];
        payload[0] = family;
        self.exchange(kind, DUMP, &payload, each)
    }

    /// Notes on an interface whose it is.
    pub fn set_alias(&mut self, index: u32, alias: &str) -> io::Result<()> {
        let mut payload = vec![0; 16];
        payload[4..8].copy_from_slice(&index.to_ne_bytes());
        attribute(&mut payload, IFLA_IFALIAS, alias.as_bytes());
        self.exchange(RTM_SETLINK, ACK, &payload, |_, _, _| {})
    }

    /// All interfaces.
    pub fn interfaces(&mut self) -> io::Result<Vec<Interface>> {
        let mut found = Vec::new();
        self.dump(RTM_GETLINK, 0, 16, |kind, _, payload| {
            let (Some(index), RTM_NEWLINK) = (u32_at(payload, 4), kind) else { return };
            let mut interface = Interface { index, name: String::new(), alias: String::new() };
            for (kind, value) in attributes(payload.get(16..).unwrap_or(&[])) {
                let text = || String::from_utf8_lossy(value).trim_end_matches('\0').to_string();
                match kind {
                    IFLA_IFNAME => interface.name = text(),
                    IFLA_IFALIAS => interface.alias = text(),
                    _ => {}
                }
            }
            found.push(interface);
        })?;
        Ok(found)
    }

    /// The unicast routes of the main table that somebody has announced, in the kernel's order.
    pub fn routes(&mut self) -> io::Result<Vec<KernelRoute>> {
        let mut found = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            self.dump(RTM_GETROUTE, family as u8, 12, |kind, flags, payload| {
                found.extend((kind == RTM_NEWROUTE).then(|| learnable(flags, payload)).flatten());
            })?;
        }
        Ok(found)
    }
}

/// A route as it may be learned.
fn learnable(flags: u16, payload: &[u8]) -> Option<KernelRoute> {
    let Parsed::Event(Event::Route(route, _)) = parse(RTM_NEWROUTE, flags, payload) else { return None };
    let protocol = *payload.get(5)?;
    if route.table != MAIN || route.kind != RouteKind::Unicast || NOT_LEARNED.contains(&protocol) {
        return None;
    }
    let prefix = Prefix::new(route.dst, route.len).ok()?.trunc();
    // Also if the kernel says that the link is down: it learns late that this node has opened the TAP, and the port is looked at here.
    let interfaces = route.hops.iter().map(|h| h.ifindex.0).collect();
    Some(KernelRoute { prefix, metric: route.metric, protocol, interfaces })
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
