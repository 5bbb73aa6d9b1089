// SPDX-License-Identifier: Apache-2.0
//! Ports of a pool with `reusePorts`: one port serves several connections, each towards another destination.
//!
//! There is no mapping then, only connections: (public address, port, protocol, destination address, destination port) is
//! used once. So a VM's port looks different to every destination, which is the price. Connections to one destination over
//! one public address lie in one part, so a worker looks for a free port under one lock.

use abi::Mix;
use abi::Vni;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::hash::BuildHasher;

/// Ports that are looked at for one connection, before another address is tried.
const PROBES_MAX: u32 = 1024;
const PARTS: usize = 64;

/// A connection from outside: destination address, destination port, protocol, public address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Side {
    pub public: u32,
    pub remote: u32,
    pub proto: u32,
    pub remote_port: u32,
}

/// The VM that uses a port: VNI, address, port.
pub(super) type User = (Vni, u32, u16);
type Key = (u64, u64);

fn key(side: Side, port: u16) -> Key {
    let low = u64::from(side.proto) << 32 | u64::from(side.remote_port) << 16 | u64::from(port);
    (u64::from(side.public) << 32 | u64::from(side.remote), low)
}

/// All connections over reused ports.
#[derive(Debug)]
pub(super) struct Reused {
    mix: Mix,
    parts: Vec<Mutex<HashMap<Key, User, Mix>>>,
}

impl Reused {
    pub fn new(mix: Mix) -> Reused {
        Reused { mix, parts: (0..PARTS).map(|_| Mutex::new(HashMap::with_hasher(mix))).collect() }
    }

    fn part(&self, side: Side) -> MutexGuard<'_, HashMap<Key, User, Mix>> {
        let hash = self.mix.hash_one(key(side, 0));
        self.parts[hash as usize % PARTS].lock()
    }

    /// Takes a port between `first` and `last` that no other connection to the same destination uses, beginning at a place
    /// that `mixed` chooses. `allowed` says which ports may be used at all.
    pub fn take(
        &self,
        side: Side,
        (first, last): (u16, u16),
        mixed: u64,
        user: User,
        allowed: impl Fn(u16) -> bool,
    ) -> Option<u16> {
        let mut part = self.part(side);
        let n = u32::from(last.checked_sub(first)?) + 1;
        let start = (mixed >> 32) as u32 % n;
        let ports = (0..n.min(PROBES_MAX)).map(|i| first + ((start + i) % n) as u16);
        let port = ports.filter(|p| allowed(*p)).find(|p| !part.contains_key(&key(side, *p)))?;
        part.insert(key(side, port), user);
        Some(port)
    }

    /// Enters a connection that is known to use a port. False if another VM's does.
    pub fn restore(&self, side: Side, port: u16, user: User) -> Option<bool> {
        let mut part = self.part(side);
        match part.get(&key(side, port)) {
            Some(other) => (*other == user).then_some(false),
            None => {
                part.insert(key(side, port), user);
                Some(true)
            }
        }
    }

    /// Whether this VM's port uses it.
    pub fn uses(&self, side: Side, port: u16, user: User) -> bool {
        self.part(side).get(&key(side, port)) == Some(&user)
    }

    /// Frees a port of this user. Whether it was in use by it.
    pub fn release(&self, side: Side, port: u16, user: User) -> bool {
        let mut part = self.part(side);
        let own = part.get(&key(side, port)) == Some(&user);
        if own {
            part.remove(&key(side, port));
        }
        own
    }
}
