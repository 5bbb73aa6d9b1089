// SPDX-License-Identifier: Apache-2.0
//! What memory has beside what was written: entries that belong to nobody, twice the same, or in no reader's way.

use super::Writer;
use crate::hashtable::HashTable;
use abi::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A hash table whose memory has another number of entries than were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miscount {
    /// What its entries are, as a plural: `VPCs`, `IPv4 addresses`, …
    pub of: &'static str,
    /// Entries that were written.
    pub written: u64,
    /// Entries in memory. None: the root leads elsewhere, or a chain is broken, so that only a restart mends it, which builds the table anew.
    pub found: Option<u64>,
}

/// An entry in memory, as its key says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// A VPC.
    Vpc(Vni),
    /// An address of a VM, or of a VPC's gateway.
    Address(Vni, IpAddr),
    /// An NC.
    Nc(IpAddr),
}

fn v6((high, low): (u64, u64)) -> IpAddr {
    Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).into()
}

impl Writer {
    fn is_sound(&self, table: &HashTable) -> bool {
        table.recount(&self.store.lines, &self.store.root).is_some()
    }

    /// Counts the entries of every hash table in memory, from its first line to its last: milliseconds a million. Not during a commit.
    pub fn miscounts(&self) -> Vec<Miscount> {
        let t = &self.tables;
        let all = [
            ("VPCs", &t.tenants),
            ("senders", &t.members),
            ("IPv4 addresses", &t.vm4),
            ("IPv6 addresses", &t.vm6),
            ("IPv4 NCs", &t.nc4),
            ("IPv6 NCs", &t.nc6),
            ("meters of VMs", &t.vm_meters),
        ];
        let count = |(of, table): (&'static str, &HashTable)| Miscount {
            of,
            written: table.entries(),
            found: table.recount(&self.store.lines, &self.store.root),
        };
        all.into_iter().map(count).filter(|m| m.found != Some(m.written)).collect()
    }

    /// Every VPC, address and NC in memory, of tables whose chains are sound. Not during a commit.
    pub fn entries(&self, entry: &mut dyn FnMut(Entry)) {
        let (t, lines) = (&self.tables, &self.store.lines);
        if self.is_sound(&t.tenants) {
            t.tenants.for_each(lines, |_, key| entry(Entry::Vpc(Vni((key >> TENANT_VNI_SHIFT) as u32))));
        }
        if self.is_sound(&t.vm4) {
            t.vm4.for_each(lines, |_, key| {
                let address = Ipv4Addr::from_bits((key >> VM4_ADDR_SHIFT) as u32).into();
                entry(Entry::Address(Vni((key >> VM4_VNI_SHIFT) as u32), address));
            });
        }
        if self.is_sound(&t.vm6) {
            t.vm6.for_each(lines, |place, key| {
                let vni = Vni((key >> VM6_VNI_SHIFT) as u32);
                entry(Entry::Address(vni, v6(t.vm6.vm_slot(lines, place).addr6)));
            });
        }
        if self.is_sound(&t.nc4) {
            t.nc4.for_each(lines, |_, word| {
                entry(Entry::Nc(Ipv4Addr::from_bits((word >> WORD_NC4_SHIFT) as u32).into()));
            });
        }
        if self.is_sound(&t.nc6) {
            t.nc6.for_each(lines, |place, _| entry(Entry::Nc(v6(t.nc6.vm_slot(lines, place).addr6))));
        }
    }

    /// Takes out of memory what no reader finds and what whoever reads the tables anew would take for entries: what lies in another chain than
    /// its key's, and what lies behind an entry with the same key. How many there were. Not during a commit.
    pub fn erase_strays(&mut self) -> usize {
        let mut erased = 0;
        for table in self.tables.all() {
            if table.recount(&self.store.lines, &self.store.root).is_none() {
                continue;
            }
            let strays = table.strays(&self.store);
            strays.iter().for_each(|place| table.erase(&self.store.lines, *place));
            erased += strays.len();
        }
        erased
    }
}
