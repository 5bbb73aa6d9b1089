// SPDX-License-Identifier: Apache-2.0
//! [`Exact`]: full keys, compared whole. No packet of an unknown connection is accepted; 25 bytes an IPv4 connection.

use crate::keys::Keys;
use crate::root::{Root, ROOT_LINES};
use crate::table::{Connections, Lost};
use crate::{Error, Key, Placed, Reader, Recovered, State, StateTable, Usage, WordMemory, Writes};
use abi::*;
use std::collections::HashMap;
use std::sync::Arc;

/// How large an exact table is.
#[derive(Clone, Copy, Debug)]
pub struct ExactOptions {
    /// IPv4 connections.
    pub connections4: u64,
    /// IPv6 connections.
    pub connections6: u64,
    /// Salt of the hashes: random, and never told to a tenant.
    pub salt: u64,
    /// Control packets: [`crate::PAPER`] or [`crate::CAREFUL`].
    pub control: u64,
}

/// An exact table's writer.
pub struct Exact {
    memory: Arc<dyn WordMemory>,
    root: Root,
    pub(crate) keys: Keys,
}

impl Exact {
    /// Lines that a table of this size takes.
    pub fn lines(o: &ExactOptions) -> u64 {
        Keys::layout(ROOT_LINES, o.connections4, o.connections6).2
    }

    /// A new, empty table.
    pub fn create(memory: Arc<dyn WordMemory>, o: &ExactOptions) -> Result<Exact, Error> {
        Exact::root(o).begin(&*memory, Exact::lines(o))?;
        Exact::attach(memory)
    }

    pub(crate) fn root(o: &ExactOptions) -> Root {
        let (keys4, keys6, _) = Keys::layout(ROOT_LINES, o.connections4, o.connections6);
        Root { kind: STATES_EXACT, salt: o.salt, control: o.control, keys4, keys6, cells: 0, geometry: 0 }
    }

    /// TABLE_REF words of its keys.
    pub(crate) fn sizes(&self) -> (u64, u64) {
        (self.root.keys4, self.root.keys6)
    }

    /// Enters what another table holds. Returns how many found no room.
    pub(crate) fn take_over(&mut self, other: &Exact) -> u64 {
        let mut lost = 0;
        for (key, value) in other.scan(0, u64::MAX) {
            lost += u64::from(self.put(&key, value).is_err());
        }
        lost
    }

    /// The table that a predecessor left.
    pub fn attach(memory: Arc<dyn WordMemory>) -> Result<Exact, Error> {
        let (root, keys) = Root::left(&*memory, STATES_EXACT)?;
        Ok(Exact { memory, root, keys })
    }

    pub(crate) fn get(&self, key: &Key) -> Option<u32> {
        self.keys.get(self.memory.words(), key)
    }

    pub(crate) fn put(&mut self, key: &Key, value: u32) -> Result<(), Error> {
        self.keys.insert(self.memory.words(), key, value)
    }

    pub(crate) fn change(&mut self, key: &Key, value: u32) -> bool {
        self.keys.set(self.memory.words(), key, value)
    }

    pub(crate) fn scan(&self, from: u64, n: u64) -> impl Iterator<Item = (Key, u32)> + '_ {
        self.keys.scan(self.memory.words(), from, n)
    }
}

impl Writes for Exact {
    fn insert(&mut self, key: &Key, state: State) -> Result<Placed, Error> {
        self.put(key, state as u32).map(|()| Placed::Key)
    }

    fn set(&mut self, key: &Key, state: State) {
        let found = self.change(key, state as u32);
        debug_assert!(found, "{key:?} is not in the table");
    }

    fn remove(&mut self, key: &Key) {
        let found = self.change(key, 0);
        debug_assert!(found, "{key:?} is not in the table");
    }

    fn rest(&mut self) -> bool {
        self.keys.rest()
    }

    fn rested(&mut self) {
        self.keys.rested();
    }

    fn recover(&mut self, connections: Connections<'_>, lost: Lost<'_>) -> Recovered {
        let mut found = Recovered::default();
        let wanted: HashMap<Key, State> = connections.collect();
        let here: Vec<(Key, u32)> = self.scan(0, u64::MAX).collect();
        for (key, _) in here.iter().filter(|(key, _)| !wanted.contains_key(key)) {
            self.change(key, 0);
            found.cleared += 1;
        }
        for (key, state) in &wanted {
            match self.get(key) {
                Some(value) if value == *state as u32 => continue,
                Some(_) => self.set(key, *state),
                None if self.insert(key, *state).is_err() => {
                    found.lost += 1;
                    lost(key);
                    continue;
                }
                None => {}
            }
            found.mended += 1;
        }
        found
    }
}

impl StateTable for Exact {
    fn usage(&self) -> Usage {
        let bytes = (self.root.lines()) * u64::from(LINE_BYTES);
        Usage { connections: self.keys.len(), collisions: 0, places: self.keys.places(), bytes }
    }

    fn reader(&self) -> Reader {
        Reader::of(self.memory.clone(), self.root)
    }
}
