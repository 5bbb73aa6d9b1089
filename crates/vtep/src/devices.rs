// SPDX-License-Identifier: Apache-2.0
//! VXLAN devices and their default entries, over rtnetlink: what moves a host's packets to another cluster.
//!
//! A default entry (all-zero MAC address) cannot be replaced: the kernel refuses that. So the new one is appended before the old one is deleted. In between, for some
//! microseconds, packets go to both: both clusters hold the tenant then, and a packet that comes twice is none lost.

use libc::{AF_BRIDGE, EEXIST, ENOENT, NLMSG_DONE, NLMSG_ERROR, NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP};
use libc::{NTF_SELF, NUD_PERMANENT, RTM_DELNEIGH, RTM_GETLINK, RTM_GETNEIGH, RTM_NEWLINK, RTM_NEWNEIGH};
use netlink_sys::{protocols::NETLINK_ROUTE, Socket, SocketAddr};
use std::io::{Error, ErrorKind, Result};
use std::net::IpAddr;
use underlay::netlink::{address, attribute, attributes, message, messages, u32_at};

/// The MAC address of a default entry.
const ANY: [u8; 6] = [0; 6];

/// A VXLAN device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Interface index.
    pub index: u32,
    /// VNI.
    pub vni: u32,
    /// Its tunnel goes over IPv4.
    pub is_v4: bool,
}

/// The kernel of this network namespace.
#[derive(Debug)]
pub struct Kernel {
    socket: Socket,
    sequence: u32,
}

impl Kernel {
    /// Opens it.
    pub fn open() -> Result<Kernel> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Kernel { socket, sequence: 0 })
    }

    /// All VXLAN devices with a VNI.
    pub fn devices(&mut self) -> Result<Vec<Device>> {
        let mut devices = Vec::new();
        self.request(RTM_GETLINK, NLM_F_DUMP, &[0; 16], |kind, payload| {
            devices.extend((kind == RTM_NEWLINK).then(|| device(payload)).flatten());
        })?;
        Ok(devices)
    }

    /// The default entries of a device.
    pub fn defaults(&mut self, index: u32) -> Result<Vec<IpAddr>> {
        let mut found = Vec::new();
        // Of a bridge's ports the kernel lists all at once.
        self.request(RTM_GETNEIGH, NLM_F_DUMP, &entry(0), |kind, payload| {
            found.extend((kind == RTM_NEWNEIGH).then(|| default_entry(payload, index)).flatten());
        })?;
        Ok(found)
    }

    /// Points a device's default entry at an address, and nowhere else. Whether that changed anything.
    pub fn point(&mut self, index: u32, to: IpAddr) -> Result<bool> {
        let before = self.defaults(index)?;
        if before == [to] {
            return Ok(false);
        }
        if !before.contains(&to) {
            self.change(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_APPEND, index, to)?;
        }
        for old in before.into_iter().filter(|old| *old != to) {
            self.change(RTM_DELNEIGH, 0, index, old)?;
        }
        Ok(true)
    }

    fn change(&mut self, kind: u16, flags: i32, index: u32, to: IpAddr) -> Result<()> {
        let mut payload = entry(index);
        attribute(&mut payload, 2, &ANY);
        match to {
            IpAddr::V4(a) => attribute(&mut payload, 1, &a.octets()),
            IpAddr::V6(a) => attribute(&mut payload, 1, &a.octets()),
        }
        let done = self.request(kind, flags | NLM_F_ACK, &payload, |_, _| {});
        // Somebody else did the same.
        let fits =
            |e: &Error| matches!((kind, e.raw_os_error()), (RTM_NEWNEIGH, Some(EEXIST)) | (RTM_DELNEIGH, Some(ENOENT)));
        done.or_else(|e| if fits(&e) { Ok(()) } else { Err(e) })
    }

    /// Sends a request and hands on the answers until the last one.
    fn request(&mut self, kind: u16, flags: i32, payload: &[u8], mut take: impl FnMut(u16, &[u8])) -> Result<()> {
        self.sequence += 1;
        self.socket.send(&message(kind, flags as u16, self.sequence, payload), 0)?;
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            for (kind, _, sequence, payload) in messages(&datagram) {
                match i32::from(kind) {
                    _ if sequence != self.sequence => {}
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => match u32_at(payload, 0).map(|e| (e as i32).wrapping_neg()) {
                        Some(0) => return Ok(()),
                        Some(errno) => return Err(Error::from_raw_os_error(errno)),
                        None => return Err(Error::from(ErrorKind::InvalidData)),
                    },
                    _ => take(kind, payload),
                }
            }
        }
    }
}

/// The head of a neighbour message (struct ndmsg).
fn entry(index: u32) -> Vec<u8> {
    let mut head = vec![0u8; 12];
    head[0] = AF_BRIDGE as u8;
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    head[8..10].copy_from_slice(&NUD_PERMANENT.to_ne_bytes());
    head[10] = NTF_SELF;
    head
}

fn device(payload: &[u8]) -> Option<Device> {
    let info = attributes(payload.get(16..)?).find(|(kind, _)| *kind == 18)?.1;
    let kind = attributes(info).find(|(kind, _)| *kind == 1)?.1;
    if !kind.starts_with(b"vxlan") {
        return None;
    }
    let data = attributes(info).find(|(kind, _)| *kind == 2)?.1;
    let vni = attributes(data).find(|(kind, _)| *kind == 1).and_then(|(_, v)| u32_at(v, 0))?;
    // IFLA_VXLAN_LOCAL6: a device over IPv6.
    let is_v4 = !attributes(data).any(|(kind, _)| kind == 17);
    (vni != 0).then_some(Device { index: u32_at(payload, 4)?, vni, is_v4 })
}

fn default_entry(payload: &[u8], index: u32) -> Option<IpAddr> {
    let own = i32::from(*payload.first()?) == AF_BRIDGE && u32_at(payload, 4)? == index;
    let mac = attributes(payload.get(12..)?).find(|(kind, _)| *kind == 2)?.1;
    let to = attributes(payload.get(12..)?).find(|(kind, _)| *kind == 1)?.1;
    (own && mac == ANY).then(|| address(to)).flatten()
}
