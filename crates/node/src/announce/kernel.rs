// SPDX-License-Identifier: Apache-2.0
//! The kernel's side of what is announced: routes of an own protocol, and whether ports take packets in.

use crate::routing::netlink::{Netlink, ACK, DUMP, IFLA_IFNAME, RTM_GETLINK, RTM_GETROUTE, RTM_NEWLINK, RTM_NEWROUTE};
use abi::Prefix;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use underlay::netlink::{attribute, attributes, u32_at};

const RTM_DELROUTE: u16 = 25;
const CREATE_ONLY: u16 = 0x400 | 0x200;
const RTN_BLACKHOLE: u8 = 6;
const RTA_DST: u16 = 1;
const RTA_PRIORITY: u16 = 6;
const RTA_TABLE: u16 = 15;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFF_UP: u32 = 1;
const IFF_LOWER_UP: u32 = 0x1_0000;
/// News of interfaces (RTMGRP_LINK).
pub(super) const LINKS: u32 = 1;

/// The metrics with which the kernel has each prefix.
pub(super) type Entered = BTreeMap<Prefix, BTreeSet<u32>>;

/// Where routes are entered; tests have another one.
pub(super) trait Routes {
    /// Those that are there.
    fn list(&mut self) -> io::Result<Entered>;
    /// Enters one; one that is there already is fine.
    fn add(&mut self, prefix: Prefix, metric: u32) -> io::Result<()>;
    /// Removes one; one that is not there is fine.
    fn remove(&mut self, prefix: Prefix, metric: u32) -> io::Result<()>;
}

/// Whose routes they are: a table and a protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Marks {
    /// Table.
    pub table: u32,
    /// Protocol.
    pub protocol: u8,
}

/// The routes of a network namespace's kernel.
#[derive(Debug)]
pub(super) struct Kernel {
    netlink: Netlink,
    marks: Marks,
}

impl Kernel {
    /// The one of these marks, which is opened if it is not the one that is there.
    pub fn of(there: &mut Option<Kernel>, marks: Marks) -> io::Result<&mut Kernel> {
        let kernel = match there.take().filter(|kernel| kernel.marks == marks) {
            Some(kernel) => kernel,
            None => Kernel::open(marks)?,
        };
        Ok(there.insert(kernel))
    }

    /// Those with these marks, in the network namespace of the calling thread.
    pub fn open(marks: Marks) -> io::Result<Kernel> {
        let netlink = Netlink::open(0)?;
        // Else a list is of all routes, and what is not wanted is left out here.
        let _ = netlink.strict();
        Ok(Kernel { netlink, marks })
    }

    fn header(&self, family: u8, length: u8) -> Vec<u8> {
        // struct rtmsg: family, lengths, tos, table, protocol, scope, type, flags. A table that needs more bits is an attribute.
        let table = u8::try_from(self.marks.table).unwrap_or(0);
        vec![family, length, 0, 0, table, self.marks.protocol, 0, RTN_BLACKHOLE, 0, 0, 0, 0]
    }

    fn change(&mut self, kind: u16, flags: u16, prefix: Prefix, metric: u32) -> io::Result<()> {
        let family = if prefix.addr().is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let mut payload = self.header(family as u8, prefix.prefix_len());
        match prefix.network() {
            IpAddr::V4(a) => attribute(&mut payload, RTA_DST, &a.octets()),
            IpAddr::V6(a) => attribute(&mut payload, RTA_DST, &a.octets()),
        }
        attribute(&mut payload, RTA_PRIORITY, &metric.to_ne_bytes());
        attribute(&mut payload, RTA_TABLE, &self.marks.table.to_ne_bytes());
        self.netlink.exchange(kind, ACK | flags, &payload, |_, _, _| {})
    }

    /// A route of these marks.
    fn own(&self, payload: &[u8]) -> Option<(Prefix, u32)> {
        let (family, length) = (*payload.first()?, *payload.get(1)?);
        let (mut table, protocol, mut metric) = (u32::from(*payload.get(4)?), *payload.get(5)?, 0);
        let mut to: IpAddr = match i32::from(family) {
            libc::AF_INET => [0; 4].into(),
            _ => [0; 16].into(),
        };
        for (kind, value) in attributes(payload.get(12..)?) {
            match kind {
                RTA_DST => to = underlay::netlink::address(value)?,
                RTA_PRIORITY => metric = u32_at(value, 0)?,
                RTA_TABLE => table = u32_at(value, 0)?,
                _ => {}
            }
        }
        let own = (table, protocol) == (self.marks.table, self.marks.protocol);
        Some((Prefix::new(to, length).ok()?.trunc(), metric)).filter(|_| own)
    }
}

impl Routes for Kernel {
    fn list(&mut self) -> io::Result<Entered> {
        let mut found = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let mut payload = self.header(family as u8, 0);
            // Of a table that nobody has used the kernel knows nothing.
            payload[7] = 0;
            attribute(&mut payload, RTA_TABLE, &self.marks.table.to_ne_bytes());
            let done = self.netlink.exchange(RTM_GETROUTE, DUMP, &payload, |kind, _, route| {
                found.extend((kind == RTM_NEWROUTE).then(|| route.to_vec()));
            });
            match done {
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
                other => other?,
            }
        }
        let mut entered = Entered::new();
        for (prefix, metric) in found.iter().filter_map(|route| self.own(route)) {
            entered.entry(prefix).or_default().insert(metric);
        }
        Ok(entered)
    }

    fn add(&mut self, prefix: Prefix, metric: u32) -> io::Result<()> {
        match self.change(RTM_NEWROUTE, CREATE_ONLY, prefix, metric) {
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            other => other,
        }
    }

    fn remove(&mut self, prefix: Prefix, metric: u32) -> io::Result<()> {
        match self.change(RTM_DELROUTE, 0, prefix, metric) {
            Err(e) if [Some(libc::ESRCH), Some(libc::ENOENT)].contains(&e.raw_os_error()) => Ok(()),
            other => other,
        }
    }
}

/// A port by which what is announced comes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Port {
    /// Its name.
    pub name: String,
    /// A program takes its packets; else the daemon itself does.
    pub fast: bool,
}

/// What the kernel says of a link: whether it carries frames, and whether a program is on it.
type Link = (bool, bool);

/// Why what is announced would be lost here, if so: a port that is up takes packets in only if its program is there, and without any port
/// that is up nothing comes.
pub(super) fn trouble(ports: &[Port]) -> io::Result<Option<String>> {
    let mut links: BTreeMap<String, Link> = BTreeMap::new();
    Netlink::open(0)?.exchange(RTM_GETLINK, DUMP, &[0; 16], |kind, _, payload| {
        links.extend((kind == RTM_NEWLINK).then(|| link(payload)).flatten());
    })?;
    Ok(judge(ports, &links))
}

fn judge(ports: &[Port], links: &BTreeMap<String, Link>) -> Option<String> {
    let state = |port: &Port| links.get(&port.name).copied().unwrap_or_default();
    let bare = ports.iter().find(|p| p.fast && state(p).0 && !state(p).1);
    if let Some(port) = bare {
        return Some(format!("port {} is up and has no program: its packets are lost", port.name));
    }
    if ports.iter().any(|p| state(p).0) {
        return None;
    }
    let names: Vec<&str> = ports.iter().map(|p| p.name.as_str()).collect();
    Some(match names[..] {
        [] => "the node serves no uplink".into(),
        _ => format!("no port is up: {}", names.join(", ")),
    })
}

fn link(payload: &[u8]) -> Option<(String, Link)> {
    let flags = u32_at(payload, 8)?;
    let (mut name, mut attached) = (String::new(), false);
    for (kind, value) in attributes(payload.get(16..)?) {
        match kind {
            IFLA_IFNAME => name = String::from_utf8_lossy(value).trim_end_matches('\0').to_string(),
            IFLA_XDP => {
                attached |= attributes(value).any(|(kind, v)| kind == IFLA_XDP_ATTACHED && v.first() > Some(&0))
            }
            _ => {}
        }
    }
    Some((name, (flags & (IFF_UP | IFF_LOWER_UP) == IFF_UP | IFF_LOWER_UP, attached)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_without_its_program_is_worse_than_one_that_is_down() {
        let ports = [("a", true), ("b", true), ("c", false)].map(|(name, fast)| Port { name: name.into(), fast });
        let judge = |ports: &[Port], links: &[(&str, Link)]| {
            super::judge(ports, &links.iter().map(|(name, link)| (name.to_string(), *link)).collect())
        };
        let (good, down, bare) = ((true, true), (false, true), (true, false));
        assert_eq!(judge(&ports, &[("a", good), ("b", good), ("c", bare)]), None, "AF_PACKET has no program");
        assert_eq!(judge(&ports, &[("a", down), ("b", good)]), None, "one is enough");
        assert!(judge(&ports, &[("a", bare), ("b", good)]).unwrap().contains("port a is up and has no program"));
        assert!(judge(&ports[..2], &[("a", down), ("b", (false, false))]).unwrap().contains("no port is up: a, b"));
        assert!(judge(&ports[..2], &[]).unwrap().contains("no port is up"));
        assert!(judge(&[], &[("a", good)]).unwrap().contains("no uplink"));
    }
}
