// SPDX-License-Identifier: Apache-2.0
//! What the writer remembers outside table memory: prefixes, VMs by MAC, reference counts, free ids. All of it but the
//! prefixes can be told from table memory again (`recover`).

use crate::routes::{Routes4, Routes6};
use crate::tree::Top;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

/// Numbers that are given out and taken back.
#[derive(Debug)]
pub(crate) struct Ids {
    next: u32,
    free: Vec<u32>,
}

impl Ids {
    pub(crate) fn new(first: u32) -> Ids {
        Ids { next: first, free: Vec::new() }
    }

    /// Everything below `next` that `used` does not say is free.
    pub(crate) fn attach(first: u32, next: u32, used: impl Fn(u32) -> bool) -> Ids {
        Ids { next: next.max(first), free: (first..next).rev().filter(|id| !used(*id)).collect() }
    }

    pub(crate) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    pub(crate) fn free(&mut self, id: u32) {
        self.free.push(id);
    }

    /// The numbers that the next `n` calls of `take` give are below this.
    pub(crate) fn bound(&self, n: u32) -> u32 {
        self.next + n.saturating_sub(self.free.len() as u32)
    }
}

/// An NC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NcState {
    pub id: u32,
    /// VPCs that list it or have VMs on it.
    pub tenants: u32,
}

/// A VM.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Vm {
    pub id: u32,
    pub nc: u32,
    /// First IPv4 address, 0 if none.
    pub v4: u32,
    /// Line of its meter block, 0 if none.
    pub meter: u32,
    /// All other addresses.
    pub more: Option<Box<[IpAddr]>>,
}

impl Vm {
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let first = (self.v4 != 0).then(|| IpAddr::V4(Ipv4Addr::from_bits(self.v4)));
        first.into_iter().chain(self.more.iter().flat_map(|m| m.iter().copied()))
    }

    /// Splits addresses into the first IPv4 one and the rest.
    pub(crate) fn split(addresses: impl Iterator<Item = IpAddr>) -> (u32, Option<Box<[IpAddr]>>) {
        let mut v4 = 0;
        let mut more = Vec::new();
        for a in addresses {
            match a {
                IpAddr::V4(a) if v4 == 0 => v4 = a.to_bits(),
                _ => more.push(a),
            }
        }
        (v4, (!more.is_empty()).then(|| more.into_boxed_slice()))
    }
}

/// A VPC.
#[derive(Debug, Default)]
pub(crate) struct TenantState {
    pub line: u32,
    /// The roots word as published.
    pub roots: u64,
    pub gateway_mac: u64,
    pub gateways: Vec<IpAddr>,
    pub meter: u32,
    pub commits: u64,
    /// The prefixes below are what the trees hold; false after an attach, until the whole set is given again.
    pub routes_known: bool,
    pub routes4: Routes4,
    pub routes6: Routes6,
    /// Prefix lengths that may be in use.
    pub lengths: [[u64; 3]; 2],
    /// Lines of the trees: IPv4, IPv6.
    pub tree_lines: [u32; 2],
    /// Lines of peers' blocks that routes lead to, and by how many routes.
    pub peers: BTreeMap<u32, u32>,
    /// VMs by MAC.
    pub vms: BTreeMap<u64, Vm>,
    /// VMs on each NC id, sorted by id.
    pub members: Vec<(u32, u32)>,
    /// NC ids that may send beside those.
    pub extra: Vec<u32>,
}

impl TenantState {
    pub(crate) fn top(&self, family: usize) -> Top {
        Top::of_root((self.roots >> (32 * family)) as u32)
    }

    pub(crate) fn simple(&self, family: usize) -> bool {
        (self.roots >> (32 * family)) as u32 & abi::ROOT_SIMPLE != 0
    }

    pub(crate) fn routes_len(&self) -> usize {
        self.routes4.len() + self.routes6.len()
    }

    /// NC ids that may send: those of its VMs and the extra ones.
    pub(crate) fn may_send(&self, nc: u32) -> bool {
        self.members.binary_search_by_key(&nc, |m| m.0).is_ok() || self.extra.contains(&nc)
    }

    /// Changes the number of VMs on an NC.
    pub(crate) fn count_vm(&mut self, nc: u32, by: i32) {
        match self.members.binary_search_by_key(&nc, |m| m.0) {
            Ok(at) => {
                self.members[at].1 = self.members[at].1.saturating_add_signed(by);
                if self.members[at].1 == 0 {
                    self.members.remove(at);
                }
            }
            Err(at) => self.members.insert(at, (nc, by.max(0) as u32)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_back() {
        let mut ids = Ids::new(1);
        assert_eq!((ids.take(), ids.take(), ids.take()), (1, 2, 3));
        ids.free(2);
        assert_eq!(ids.bound(1), 4);
        assert_eq!(ids.bound(2), 5);
        assert_eq!((ids.take(), ids.take()), (2, 4));
        let mut ids = Ids::attach(1, 6, |id| id == 2 || id == 5);
        let mut all: Vec<_> = (0..4).map(|_| ids.take()).collect();
        all.sort_unstable();
        assert_eq!(all, [1, 3, 4, 6]);
    }
}
