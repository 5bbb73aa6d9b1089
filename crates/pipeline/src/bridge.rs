// SPDX-License-Identifier: Apache-2.0
//! A learning switch under a pipeline: what `normal`, `flood` and `all` do when the ports of the switch are known.
//!
//! As Open vSwitch does it with ports that are trunks for all VLANs: `normal` learns the source address in the packet's VLAN, sends to the port where the
//! destination was learned, and to every port but the input port otherwise. Nothing is sent back, nothing to the addresses that
//! bridges keep for themselves, and nothing of a packet from a port that the switch does not have. Addresses are forgotten after five minutes, and
//! when there are more than [`Bridge::ADDRESSES_MAX`] the one that was silent the longest.
use crate::field::Field;
use crate::key::Key;
use crate::op::Target;
use std::collections::{BTreeMap, BTreeSet};

/// A switch: its ports, and what it learned.
#[derive(Clone, Debug, Default)]
pub struct Bridge {
    ports: BTreeSet<u16>,
    /// By VLAN and address: the port, and when it was heard last.
    learned: BTreeMap<(u16, u64), (u16, u64)>,
    by_age: BTreeSet<(u64, (u16, u64))>,
    frozen: bool,
}

impl Bridge {
    /// Addresses at most: `mac-table-size` of Open vSwitch, if nobody sets it.
    pub const ADDRESSES_MAX: usize = 8192;
    /// Nanoseconds after which an address is forgotten: its `mac-aging-time`.
    pub const AGE_MAX: u64 = 300_000_000_000;

    /// A switch that has learned nothing.
    pub fn new(ports: impl IntoIterator<Item = u16>) -> Bridge {
        Bridge { ports: ports.into_iter().collect(), ..Bridge::default() }
    }

    /// It learns nothing from now on, as for a packet of `ofproto/trace` without `-generate`: one that knows no address floods even
    /// what is sent to its own source.
    pub fn frozen(self) -> Bridge {
        Bridge { frozen: true, ..self }
    }

    /// What it has learned: VLAN, address, port.
    pub fn learned(&self) -> impl Iterator<Item = (u16, u64, u16)> + '_ {
        self.learned.iter().map(|((vlan, address), (port, _))| (*vlan, *address, *port))
    }

    /// The ports to which a packet goes, and the packet that goes there; none for targets that are ports already.
    pub fn send(&mut self, target: &Target, key: &Key, now: u64) -> Option<(Vec<u16>, Key)> {
        match target {
            Target::All | Target::Flood => Some((self.others(key), *key)),
            Target::Normal => Some(self.normal(key, now)),
            _ => None,
        }
    }

    fn others(&self, key: &Key) -> Vec<u16> {
        let from = key.get(Field::InPort) as u16;
        self.ports.iter().copied().filter(|port| *port != from).collect()
    }

    fn normal(&mut self, key: &Key, now: u64) -> (Vec<u16>, Key) {
        let (tag, from) = (key.get(Field::VlanTci) as u16, key.get(Field::InPort) as u16);
        let to = key.get(Field::EthDst) as u64;
        let vlan = if tag & 0x1000 != 0 { tag & 0xfff } else { 0 };
        let mut sent = *key;
        if tag & 0x1000 != 0 && vlan == 0 {
            // A tag that only has a priority goes.
            crate::op::pop_vlan(&mut sent);
        }
        if !self.ports.contains(&from) || reserved(to) {
            return (Vec::new(), sent);
        }
        self.forget(now);
        if !self.frozen {
            self.learn(vlan, key.get(Field::EthSrc) as u64, from, now);
        }
        let ports = match self.learned.get(&(vlan, to)) {
            Some((port, _)) if *port == from => Vec::new(),
            Some((port, _)) => vec![*port],
            None => self.others(key),
        };
        (ports, sent)
    }

    fn forget(&mut self, now: u64) {
        while let Some(oldest) = self.by_age.first().copied().filter(|(heard, _)| heard + Bridge::AGE_MAX <= now) {
            self.by_age.remove(&oldest);
            self.learned.remove(&oldest.1);
        }
    }

    fn learn(&mut self, vlan: u16, address: u64, port: u16, now: u64) {
        // The address of many is nobody's.
        if address >> 40 & 1 != 0 {
            return;
        }
        let place = (vlan, address);
        match self.learned.insert(place, (port, now)) {
            Some((_, heard)) => drop(self.by_age.remove(&(heard, place))),
            None if self.learned.len() > Bridge::ADDRESSES_MAX => {
                if let Some((_, oldest)) = self.by_age.pop_first() {
                    self.learned.remove(&oldest);
                }
            }
            None => {}
        }
        self.by_age.insert((now, place));
    }
}

/// Addresses of protocols between bridges, which are not forwarded (`forward-bpdu` is not set).
fn reserved(address: u64) -> bool {
    matches!(
        address,
        0x0180_c200_0000..=0x0180_c200_000f
            | 0x00e0_2b00_0000
            | 0x00e0_2b00_0004
            | 0x00e0_2b00_0006
            | 0x0100_0c00_0000
            | 0x0100_0ccc_cccc
            | 0x0100_0ccc_cccd
            | 0x0100_0ccd_cdcd
            | 0x0100_0ccc_ccc0..=0x0100_0ccc_ccc7
    )
}
