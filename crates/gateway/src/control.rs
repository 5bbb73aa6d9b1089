// SPDX-License-Identifier: Apache-2.0
//! Control packets of a customer's router (CE): what of a circuit is for the routing daemon behind its TAP, and of that so many a second.
//! `docs/design/ce-routing.md`.

use abi::DropReason;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{PoisonError, RwLock};
use tables::{rate_limit, Circuit, RateLimit};
use wire::{be, ethernet, ethernet::ethertype, protocol};

/// TCP port of BGP.
const BGP: u16 = 179;
/// UDP ports of BFD: control, echo, multihop (RFC 5881, 5883).
const BFD: [u16; 3] = [3784, 3785, 4784];
/// An IPv4 header without options.
const PLAIN_HEADER: u8 = 0x45;
const MORE_OR_LATER: u16 = 0x3fff;

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    /// From the CE to the daemon.
    Daemon,
    /// From the daemon to the CE.
    Ce,
}

/// Whether a frame is what a routing daemon with this address hears or says: ARP, BGP, BFD. What stands in its MAC addresses is not looked at.
pub fn is_control(frame: &[u8], gateway: u32, towards: Towards) -> bool {
    if frame.len() < ethernet::HEADER_LEN + 28 {
        // The shortest is BFD or ARP: 28 bytes behind the Ethernet header.
        return false;
    }
    let ip = &frame[ethernet::HEADER_LEN..];
    let at = |inwards, outwards| if towards == Towards::Daemon { inwards } else { outwards };
    match be::u16(frame, 12) {
        // Protocol addresses: of the target, and of the sender.
        ethertype::ARP => be::u32(ip, at(24, 14)) == gateway,
        ethertype::IPV4 => {
            let plain = ip[0] == PLAIN_HEADER && be::u16(ip, 6) & MORE_OR_LATER == 0;
            let ports = [be::u16(ip, 20), be::u16(ip, 22)];
            plain
                && be::u32(ip, at(16, 12)) == gateway
                && match ip[9] {
                    protocol::TCP => ports.contains(&BGP),
                    protocol::UDP => BFD.contains(&ports[1]),
                    _ => false,
                }
        }
        _ => false,
    }
}

/// How many control packets the routers of each customer may send.
#[derive(Debug, Default)]
pub struct Controls {
    customers: RwLock<HashMap<(u8, u16), (u64, AtomicU64)>>,
}

impl Controls {
    /// Replaces the customers, each known by the number of its port and its tag, and their limits. Who stays keeps what it has used.
    pub fn set(&self, customers: impl IntoIterator<Item = ((u8, u16), RateLimit)>) {
        let mut all = self.customers.write().unwrap_or_else(PoisonError::into_inner);
        let mut old = std::mem::take(&mut *all);
        for (customer, limit) in customers {
            let used = old.remove(&customer).map(|(_, tat)| tat).unwrap_or_default();
            all.insert(customer, (limit.word(), used));
        }
    }

    /// Whether one more may pass. Of a customer that is not told, each may.
    pub fn take(&self, circuit: &Circuit, now: u64) -> Result<(), DropReason> {
        let all = self.customers.read().unwrap_or_else(PoisonError::into_inner);
        match all.get(&(circuit.port.number, circuit.tags[0])) {
            Some((limit, tat)) if !rate_limit(*limit, tat, now) => Err(DropReason::EdgeControlLimited),
            _ => Ok(()),
        }
    }
}
