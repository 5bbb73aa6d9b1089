// SPDX-License-Identifier: Apache-2.0
//! What the VMs of this node are told of themselves, by DHCP, DHCPv6, Router Advertisements and the metadata address: a VM has the addresses that the configuration says.

use abi::Vni;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use tables::{rate_limit, RateLimit};

/// How often one VM is answered.
const LIMIT: RateLimit = RateLimit { per_second: 10, burst: 20 };
/// How many packets of one VM to the metadata address are taken.
const METADATA_LIMIT: RateLimit = RateLimit { per_second: 1_000, burst: 500 };
/// Seconds for which a lease is good: a day. It is given again as long as the configuration says so.
pub const LEASE_S: u32 = 86_400;

/// What a VM is told of an IP version, whose addresses are `A`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease<A> {
    /// Its address.
    pub address: A,
    /// Bits of the local prefix that has it.
    pub bits: u8,
    /// The gateway's address there.
    pub gateway: A,
    /// MTU of its interface.
    pub mtu: u16,
}

/// What a VM is told.
#[derive(Debug, Default)]
pub struct Told {
    /// Of IPv4.
    pub v4: Option<Lease<u32>>,
    /// Of IPv6.
    pub v6: Option<Lease<u128>>,
    /// It is answered at the metadata address.
    pub metadata: bool,
    used: AtomicU64,
    metadata_used: AtomicU64,
}

impl Told {
    /// Of either version, if it has an address of that.
    pub fn new(v4: Option<Lease<u32>>, v6: Option<Lease<u128>>, metadata: bool) -> Told {
        Told { v4, v6, metadata, ..Told::default() }
    }

    /// Whether it may be answered once more at this time; then it has been.
    pub(crate) fn may_answer(&self, now: u64) -> bool {
        rate_limit(LIMIT.word(), &self.used, now)
    }

    /// Whether one more packet to the metadata address is taken; then it has been.
    pub(crate) fn may_ask(&self, now: u64) -> bool {
        rate_limit(METADATA_LIMIT.word(), &self.metadata_used, now)
    }
}

/// The leases of the VMs of this node, by VPC and MAC address.
#[derive(Debug, Default)]
pub struct Leases(HashMap<(Vni, u64), Told>);

impl Leases {
    /// These. Of two of one VM the last counts.
    pub fn new(leases: impl IntoIterator<Item = (Vni, u64, Told)>) -> Leases {
        Leases(leases.into_iter().map(|(vni, mac, told)| ((vni, mac), told)).collect())
    }

    /// Those who were there have used up what they had.
    pub(crate) fn go_on(&mut self, old: &Leases) {
        for (vm, told) in &mut self.0 {
            if let Some(before) = old.0.get(vm) {
                *told.used.get_mut() = before.used.load(Ordering::Relaxed);
                *told.metadata_used.get_mut() = before.metadata_used.load(Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn of(&self, vni: Vni, mac: u64) -> Option<&Told> {
        self.0.get(&(vni, mac))
    }
}
