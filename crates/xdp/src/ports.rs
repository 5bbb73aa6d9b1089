// SPDX-License-Identifier: Apache-2.0
//! Ports: which interfaces the program may send out of, and who listens for their punts.

use crate::{sys, XdpEngine, XdpError};
use abi::{IfIndex, PORTS_MAX, VM_PORTS_MAX};
use std::os::fd::RawFd;

/// Receive queues of a port that may have a listener (TUNNY_QUEUES_MAX in bpf/tables/ports.h).
pub const QUEUES_MAX: u32 = 64;

impl XdpEngine {
    /// Makes an interface an egress port and gives it a slot. Returns the slot; doing it again returns the same one.
    pub fn add_port(&self, ifindex: IfIndex) -> Result<u32, XdpError> {
        self.add(ifindex, 0..PORTS_MAX, "Uplink ports")
    }

    /// The same for a port towards a VM.
    pub fn add_vm_port(&self, ifindex: IfIndex) -> Result<u32, XdpError> {
        self.add(ifindex, PORTS_MAX..PORTS_MAX + VM_PORTS_MAX, "VM ports")
    }

    fn add(&self, ifindex: IfIndex, range: std::ops::Range<u32>, what: &str) -> Result<u32, XdpError> {
        let slots = self.map("tunny_port_slots")?;
        let ports = self.map("tunny_ports")?;
        let known = sys::lookup_u32(slots, ifindex.0).map_err(XdpError::call("Reading tunny_port_slots"))?;
        let slot = match known {
            Some(slot) => slot,
            None => {
                let used = sys::keys_u32(slots).map_err(XdpError::call("Reading tunny_port_slots"))?;
                let used: Vec<u32> =
                    used.into_iter().filter_map(|k| sys::lookup_u32(slots, k).ok().flatten()).collect();
                let limit = range.len() as u32;
                let mut free = range.filter(|slot| !used.contains(slot));
                free.next().ok_or_else(|| XdpError::Limit { what: what.into(), limit })?
            }
        };
        sys::update_u32(ports, ifindex.0, ifindex.0)
            .map_err(XdpError::call(format!("Adding interface {ifindex} to the egress ports")))?;
        sys::update_u32(slots, ifindex.0, slot).map_err(XdpError::call("Writing tunny_port_slots"))?;
        Ok(slot)
    }

    /// Forgets all ports but these.
    pub fn keep_ports(&self, kept: &[IfIndex]) -> Result<(), XdpError> {
        let all = sys::keys_u32(self.map("tunny_port_slots")?).map_err(XdpError::call("Reading tunny_port_slots"))?;
        all.into_iter().map(IfIndex).filter(|i| !kept.contains(i)).try_for_each(|i| self.remove_port(i))
    }

    /// Forgets a port. Packets towards it are dropped as `tx_failed` from now on.
    pub fn remove_port(&self, ifindex: IfIndex) -> Result<(), XdpError> {
        sys::delete(self.map("tunny_ports")?, ifindex.0).map_err(XdpError::call("Writing tunny_ports"))?;
        sys::delete(self.map("tunny_port_slots")?, ifindex.0).map_err(XdpError::call("Writing tunny_port_slots"))
    }

    /// Interfaces by their slots.
    pub fn slots(&self) -> Result<Vec<(u32, IfIndex)>, XdpError> {
        let slots = self.map("tunny_port_slots")?;
        let known = |ifindex| Some((sys::lookup_u32(slots, ifindex).ok().flatten()?, IfIndex(ifindex)));
        Ok(sys::keys_u32(slots)
            .map_err(XdpError::call("Reading tunny_port_slots"))?
            .into_iter()
            .filter_map(known)
            .collect())
    }

    /// Makes an AF_XDP socket the listener for punts from a queue of a port. It ends when the socket is closed. Returns the ring's number,
    /// for `Tables::open_punt_ring`.
    pub fn set_listener(&self, ifindex: IfIndex, queue: u32, socket: RawFd) -> Result<u32, XdpError> {
        if queue >= QUEUES_MAX {
            return Err(XdpError::Limit { what: format!("Queue {queue} of interface {ifindex}"), limit: QUEUES_MAX });
        }
        let slot = self.add_port(ifindex)?;
        sys::update_u32(self.map("tunny_xsks")?, slot * QUEUES_MAX + queue, socket as u32)
            .map_err(XdpError::call(format!("Entering a listener for queue {queue} of interface {ifindex}")))?;
        Ok(slot * QUEUES_MAX + queue)
    }
}
