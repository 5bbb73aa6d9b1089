// SPDX-License-Identifier: Apache-2.0
//! [`Spec`]: which state table an operator chose, and how large; sizes of all its parts follow.

use crate::migration::MigrationOptions;
use crate::root::Root;
use crate::{
    Compact, CompactOptions, Digest, DigestOptions, Error, Exact, ExactOptions, StateTable, WordMemory, CAREFUL,
    CLASSIFIED, PAPER,
};
use abi::*;
use std::sync::Arc;

/// Kind of a state table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TableKind {
    /// Full keys.
    Exact = STATES_EXACT,
    /// The paper's registers.
    Compact = STATES_COMPACT,
    /// Digests.
    Digest = STATES_DIGEST,
}

impl TableKind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            TableKind::Exact => "exact",
            TableKind::Compact => "compact",
            TableKind::Digest => "digest",
        }
    }
}

/// A state table and its agent, as they are to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Kind of table.
    pub kind: TableKind,
    /// IPv4 connections within a VPC at most.
    pub connections: u32,
    /// Other connections at most: IPv6, and between VPCs.
    pub wide: u32,
    /// Compact: registers.
    pub registers: u32,
    /// Compact: fingerprint bits beside each, 0–16.
    pub fingerprint: u8,
    /// Whether the agent judges by [`CAREFUL`], else exactly as Fig. 3 has it ([`PAPER`]).
    pub careful: bool,
    /// Tenant-aware migration of connections to the software path, if any.
    pub migration: Option<MigrationOptions>,
}

/// Registers a connection of a compact table, if nobody says how many: one in 16 collides, one of eight is occupied.
pub const REGISTERS_A_CONNECTION: u64 = 8;
/// Stages of registers.
const STAGES: u8 = 4;

impl Spec {
    /// Of this kind, for so many connections, with what is usual for the rest.
    pub fn new(kind: TableKind, connections: u32, wide: u32) -> Spec {
        let all = u64::from(connections) + u64::from(wide);
        let registers = (all * REGISTERS_A_CONNECTION).clamp(1, u64::from(u32::MAX)) as u32;
        Spec {
            kind,
            connections,
            wide,
            registers,
            fingerprint: 0,
            careful: kind != TableKind::Compact,
            migration: None,
        }
    }

    /// Connections of both kinds.
    pub fn all(&self) -> u64 {
        u64::from(self.connections) + u64::from(self.wide)
    }

    /// Which packets go to the agent.
    pub(crate) fn control(&self) -> u64 {
        if self.careful {
            CAREFUL
        } else {
            CLASSIFIED
        }
    }

    /// Which packets the agent may let through in which state.
    pub(crate) fn judged_by(&self) -> u64 {
        if self.careful {
            CAREFUL
        } else {
            PAPER
        }
    }

    /// Full keys for the collisions among so many connections, of which the whole table expects `pairs`: with room for chance.
    fn collisions(&self, pairs: f64, of: u32) -> u64 {
        let expected = pairs * f64::from(of) / self.all().max(1) as f64;
        let room = expected * 1.35 + 6.0 * expected.sqrt() + 64.0;
        (room as u64).min(u64::from(of))
    }

    fn exact(&self, salt: u64) -> ExactOptions {
        let (connections4, connections6) = (u64::from(self.connections), u64::from(self.wide));
        ExactOptions { connections4, connections6, salt, control: self.control() }
    }

    fn compact(&self, salt: u64) -> CompactOptions {
        let pairs = (self.all() as f64).powi(2) / (2.0 * f64::from(self.registers));
        CompactOptions {
            registers: self.registers,
            stages: STAGES,
            fingerprint: self.fingerprint,
            collisions4: self.collisions(pairs, self.connections),
            collisions6: self.collisions(pairs, self.wide),
            salt,
            control: self.control(),
        }
    }

    fn digest(&self, salt: u64) -> DigestOptions {
        let o = DigestOptions::for_connections(self.all(), salt, self.control());
        let pairs = (self.all() as f64).powi(2) / (f64::from(o.buckets) * f64::from(1 << STATES_DIGEST_BITS));
        let (collisions4, collisions6) = (self.collisions(pairs, self.connections), self.collisions(pairs, self.wide));
        DigestOptions { collisions4, collisions6, ..o }
    }

    /// Lines that the table takes.
    pub fn lines(&self) -> Result<u64, Error> {
        match self.kind {
            TableKind::Exact => Ok(Exact::lines(&self.exact(0))),
            TableKind::Compact => Compact::lines(&self.compact(0)),
            TableKind::Digest => Digest::lines(&self.digest(0)),
        }
    }

    /// The agent's records: of all connections, those that have migrated, too.
    fn records(&self, salt: u64) -> ExactOptions {
        let o = self.exact(salt);
        let Some(more) = self.migration.map(|m| u64::from(m.connections)) else { return o };
        let wide = (u128::from(more) * u128::from(o.connections6) / u128::from(o.connections4.max(1))) as u64;
        ExactOptions { connections4: o.connections4 + more, connections6: o.connections6 + wide.min(more), ..o }
    }

    /// Lines that the agent's records take.
    pub fn record_lines(&self) -> u64 {
        Exact::lines(&self.records(0))
    }

    /// New records.
    pub(crate) fn make_records(&self, memory: Arc<dyn WordMemory>, salt: u64) -> Result<Exact, Error> {
        Exact::create(memory, &self.records(salt))
    }

    /// Whether records are of this size.
    pub(crate) fn has_records(&self, records: &Exact) -> bool {
        let o = self.records(0);
        let (keys4, keys6, _) = crate::keys::Keys::layout(crate::root::ROOT_LINES, o.connections4, o.connections6);
        records.sizes() == (keys4, keys6)
    }

    /// A new table.
    pub(crate) fn make(&self, memory: Arc<dyn WordMemory>, salt: u64) -> Result<Box<dyn StateTable>, Error> {
        Ok(match self.kind {
            TableKind::Exact => Box::new(Exact::create(memory, &self.exact(salt))?),
            TableKind::Compact => Box::new(Compact::create(memory, &self.compact(salt))?),
            TableKind::Digest => Box::new(Digest::create(memory, &self.digest(salt))?),
        })
    }

    /// The table that a predecessor left, if it is of this kind and size and nothing is wrong with it.
    pub(crate) fn attach(&self, memory: Arc<dyn WordMemory>) -> Option<Box<dyn StateTable>> {
        let root = Root::read(memory.words()).ok()?;
        let wanted = match self.kind {
            TableKind::Exact => Exact::root(&self.exact(root.salt)),
            TableKind::Compact => Compact::layout(&self.compact(root.salt)).ok()?.0,
            TableKind::Digest => Digest::layout(&self.digest(root.salt)).ok()?.0,
        };
        // Which packets are control packets may have been changed since.
        if (Root { control: wanted.control, ..root }) != wanted {
            return None;
        }
        Some(match self.kind {
            TableKind::Exact => Box::new(Exact::attach(memory).ok()?),
            TableKind::Compact => Box::new(Compact::attach(memory).ok()?),
            TableKind::Digest => Box::new(Digest::attach(memory).ok()?),
        })
    }

    /// Share of the data packets of unknown connections that are accepted, if so many of all that there is room for are established. Every
    /// such packet looks at one register, or at eight slots.
    pub fn false_accepts(&self, established: u64) -> f64 {
        let established = established as f64;
        match self.kind {
            TableKind::Exact => 0.0,
            TableKind::Compact => established / f64::from(self.registers) / f64::from(1u32 << self.fingerprint),
            TableKind::Digest => {
                let slots = f64::from(self.digest(0).buckets) * f64::from(STATES_SLOTS);
                2.0 * f64::from(STATES_SLOTS) * established / slots / f64::from(1 << STATES_DIGEST_BITS)
            }
        }
    }
}
