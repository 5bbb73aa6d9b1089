// SPDX-License-Identifier: Apache-2.0
//! VXLAN devices and their default entries, over rtnetlink: what moves a host's packets to another cluster.
//!
//! A default entry (all-zero MAC address) cannot be replaced: the kernel refuses that. So the new one is appended before the old one is deleted. In between, for some
//! microseconds, packets go to both: both clusters hold the tenant then, and a packet that comes twice is none lost.

use netlink_sys::{protocols::NETLINK_ROUTE, Socket, SocketAddr};
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;
const AF_BRIDGE: u8 = 7;
const NUD_PERMANENT: u16 = 0x80;
const NTF_SELF: u8 = 2;
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
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
        self.request(RTM_GETNEIGH, NLM_F_DUMP, &entry(AF_BRIDGE, 0), |kind, payload| {
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

    fn change(&mut self, kind: u16, flags: u16, index: u32, to: IpAddr) -> Result<()> {
        let mut payload = entry(AF_BRIDGE, index);
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
    fn request(&mut self, kind: u16, flags: u16, payload: &[u8], mut take: impl FnMut(u16, &[u8])) -> Result<()> {
        self.sequence += 1;
        let mut message = Vec::with_capacity(16 + payload.len());
        message.extend((16 + payload.len() as u32).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend(0u32.to_ne_bytes());
        message.extend(payload);
        self.socket.send(&message, 0)?;
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            let mut rest = &datagram[..];
            while let Some(len) = u32_at(rest, 0).map(|n| n as usize).filter(|n| (16..=rest.len()).contains(n)) {
                let (kind, sequence, payload) = (u16_at(rest, 4), u32_at(rest, 8), &rest[16..len]);
                rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
                if sequence != Some(self.sequence) {
                    continue;
                }
                match kind {
                    Some(NLMSG_DONE) => return Ok(()),
                    Some(NLMSG_ERROR) => match u32_at(payload, 0).map(|e| (e as i32).wrapping_neg()) {
                        Some(0) => return Ok(()),
                        Some(errno) => return Err(Error::from_raw_os_error(errno)),
                        None => return Err(Error::from(ErrorKind::InvalidData)),
                    },
                    Some(kind) => take(kind, payload),
                    None => {}
                }
            }
        }
    }
}

/// The head of a neighbour message (struct ndmsg).
fn entry(family: u8, index: u32) -> Vec<u8> {
    let mut head = vec![0u8; 12];
    head[0] = family;
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
    let own = *payload.first()? == AF_BRIDGE && u32_at(payload, 4)? == index;
    let mac = attributes(payload.get(12..)?).find(|(kind, _)| *kind == 2)?.1;
    let to = attributes(payload.get(12..)?).find(|(kind, _)| *kind == 1)?.1;
    (own && mac == ANY).then(|| address(to)).flatten()
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
        _ => None,
    }
}

fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(b.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(b.get(at..at + 4)?.try_into().ok()?))
}

/// Attributes behind a fixed head: (type without flags, value).
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = u16_at(bytes, 0)? as usize;
        if len < 4 || len > bytes.len() {
            return None;
        }
        let item = (u16_at(bytes, 2)? & 0x3fff, &bytes[4..len]);
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some(item)
    })
}

fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend((4 + value.len() as u16).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}
