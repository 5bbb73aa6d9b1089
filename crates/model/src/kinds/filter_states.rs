// SPDX-License-Identifier: Apache-2.0
//! The Gateway's part about the states of connections inside: table, agent, migration.

use super::Gateway;
use crate::declare::{below, fields, Field, Fields, Form, Slot};
use crate::doc::Doc;
use crate::error::Problem;
use crate::forms::*;
use crate::written::Written;
use std::net::SocketAddr;

/// Connections that a state table may be made for, of each kind.
const CONNECTIONS_MAX: u64 = 100_000_000;

/// What tells the states of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateKind {
    /// Registers of two bits.
    Compact,
    /// Digests.
    Digest,
}

impl StateKind {
    /// As in `spec.filter.states`; none: sessions, which have the whole key and follow sequence numbers.
    const ALL: [(&'static str, Option<StateKind>); 3] =
        [("exact", None), ("compact", Some(StateKind::Compact)), ("digest", Some(StateKind::Digest))];
}

fields! {
    /// What tells the states of connections inside that security groups allowed.
    #[derive(Copy)]
    pub struct StateTable {
        /// What tells the fast path the states of connections inside that security groups allowed. `exact`: a session each, with the whole key, sequence numbers and quotas. `compact`: CoFilter's registers of 2-bit states; `digest`: 10-bit digests. Both take a small part of the memory and know connections that exist exactly, but let through a small share of the data packets of connections that do not (`tunny get states` says which share), and believe a RST without looking at its sequence number.
        kind: Option<StateKind> = "states", choice(&StateKind::ALL).or(None).shy();
        /// With `compact` or `digest`: IPv4 connections within VPCs at most.
        connections: u32 = "connections", int(1, CONNECTIONS_MAX).or(1 << 20);
        /// With `compact` or `digest`: IPv6 connections, and connections between VPCs, at most.
        wide: Option<u32> = "wideConnections", int(0, CONNECTIONS_MAX).optional().meaning("a quarter of `connections`");
        /// With `compact`: registers. With n connections in m of them n²/2m collide, each of which needs its whole key, and n/m of all unknown data packets pass.
        registers: Option<u32> = "registers", int(1, u32::MAX as u64).allowing("1 to 4294967295, at least as many as connections of both kinds").optional().meaning("8 a connection");
        /// With `compact`: bits beside each state. Each halves the share of unknown data packets that pass.
        fingerprint: u8 = "fingerprintBits", int(0, abi::STATES_FINGERPRINT_MAX as u64).or(0).shy();
    }
}

impl StateTable {
    /// Connections of both kinds at most.
    fn all(&self) -> u64 {
        u64::from(self.connections) + u64::from(self.wide.unwrap_or(self.connections / 4))
    }
}

/// The agent that judges control packets, on another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteAgent {
    /// Where it listens.
    pub address: SocketAddr,
    /// The file with the key that it shares with the node: an absolute path.
    pub key: String,
}

/// `agent` and `agentKey`, which come together.
pub(crate) struct AgentSlot;

impl AgentSlot {
    const ADDRESS: Text<SocketAddr> = socket("as 10.0.0.9:4790 or [2001:db8::9]:4790");
    const KEY: Text<String> = absolute_path("required with `spec.filter.agent`");
}

impl Slot for AgentSlot {
    type Value = Option<RemoteAgent>;

    fn rows(&self, path: &str, meaning: &str, out: &mut Vec<Field>) {
        out.push(Self::ADDRESS.row(&below(path, "agent"), "none: in the node's process".into(), meaning));
        out.push(Self::KEY.row(&below(path, "agentKey"), "none".into(), "The file with the key that node and agent share, 32 bytes or more, readable by its owner alone: `openssl rand -hex 32`."));
    }

    fn usual(&self) -> Option<RemoteAgent> {
        None
    }

    fn read(&self, doc: &mut Doc<'_>, path: &str) -> Option<RemoteAgent> {
        let (at, key_at) = (below(path, "agent"), below(path, "agentKey"));
        let (address, key) = (doc.get(&at, &Self::ADDRESS), doc.get(&key_at, &Self::KEY));
        let fault = match (doc.node(&at).is_some(), doc.node(&key_at).is_some()) {
            (true, false) => Some((at, "needs `spec.filter.agentKey`, the key that it shares with the node")),
            (false, true) => Some((key_at, "has no effect without `spec.filter.agent`")),
            _ => None,
        };
        if let Some((at, why)) = fault {
            doc.wrong(&at, Problem::Value(why.into()));
        }
        address.zip(key).map(|(address, key)| RemoteAgent { address, key })
    }

    fn write(&self, value: &Option<RemoteAgent>, out: &mut Written, path: &str) {
        if let Some(agent) = value {
            out.value(&below(path, "agent"), &Self::ADDRESS, &agent.address);
            out.value(&below(path, "agentKey"), &Self::KEY, &agent.key);
        }
    }
}

fields! {
    /// Which connections leave a state table that fills up.
    #[derive(Copy)]
    pub struct Migration {
        /// With `compact` or `digest`: percent of the places of the state table (CoFilter's θ1) from which on connections of the tenants with most connections for their weight (`spec.filter.weight` of the Vpc) migrate to the software path, prefix by prefix, those with the least traffic first.
        begin: u8 = "begin", int(1, 100).required(|| 90).meaning("none: nothing migrates");
        /// Percent (θ2) that then remain in the state table; below it connections come back.
        end: u8 = "end", int(0, 100).allowing("0 to `begin`").or(0).meaning("10 less than `begin`, at least 0");
        /// Connections that the software path judges at most, in ordinary memory.
        connections: u32 = "connections", int(1, CONNECTIONS_MAX).or(0).meaning("`spec.filter.connections`");
        /// Longest prefix that migrates, IPv4: bits of the lower end's address, then of the other one's, then of both ports. 32: all connections of an address together.
        unit4: u8 = "unit4", int(1, 96).or(64);
        /// The same of IPv6: bits of the lower end's address.
        unit6: u8 = "unit6", int(1, 128).or(128);
    }
}

/// Migration, if it is asked for.
pub(crate) struct MigrationSlot;

impl Slot for MigrationSlot {
    type Value = Option<Migration>;

    fn rows(&self, path: &str, _: &str, out: &mut Vec<Field>) {
        Migration::rows(path, out);
    }

    fn usual(&self) -> Option<Migration> {
        None
    }

    fn read(&self, doc: &mut Doc<'_>, path: &str) -> Option<Migration> {
        doc.node(path)?;
        let mut m = Migration::read(doc, path);
        let given = |doc: &Doc<'_>, name| {
            let at = below(path, name);
            doc.node(&at).is_some() && !doc.is_wrong(&at)
        };
        if !given(doc, "begin") {
            return None;
        }
        if !given(doc, "end") {
            m.end = m.begin.saturating_sub(10);
        }
        if m.end > m.begin {
            let why = format!("is {}, above `begin`, which is {}", m.end, m.begin);
            doc.wrong(&below(path, "end"), Problem::Value(why));
        }
        Some(m)
    }

    fn write(&self, value: &Option<Migration>, out: &mut Written, path: &str) {
        if let Some(migration) = value {
            migration.write(out, path);
        }
    }
}

impl Gateway {
    /// What would have no effect is a mistake; what collides more than it is worth, too.
    pub(super) fn check_states(&mut self, doc: &mut Doc<'_>) {
        const MIGRATION: &str = "spec.filter.migration.begin";
        let (table, unknown) = (self.states, doc.is_wrong("spec.filter.states"));
        if let Some(m) = self.migration.as_mut().filter(|m| m.connections == 0) {
            m.connections = table.connections;
        }
        let compact = table.kind == Some(StateKind::Compact);
        for (path, has, of_what) in [
            ("spec.filter.connections", table.kind.is_some(), "compact or digest"),
            ("spec.filter.wideConnections", table.kind.is_some(), "compact or digest"),
            ("spec.filter.registers", compact, "compact"),
            ("spec.filter.fingerprintBits", compact, "compact"),
            ("spec.filter.agent", table.kind.is_some(), "compact or digest"),
            ("spec.filter.agentKey", table.kind.is_some(), "compact or digest"),
        ] {
            if doc.node(path).is_some() && !has && !unknown {
                doc.wrong(path, Problem::Value(format!("has no effect unless `spec.filter.states` is {of_what}")));
            }
        }
        if let Some(registers) = table.registers.filter(|r| table.kind.is_some() && u64::from(*r) < table.all()) {
            let all = table.all();
            let why = format!("are {registers} registers for {all} connections: more than half of these would collide");
            doc.wrong("spec.filter.registers", Problem::Value(why));
        }
        if self.migration.is_some() && table.kind.is_none() && !unknown {
            let why = "has no effect unless `spec.filter.states` is compact or digest: sessions are no scarce memory of the fast path";
            doc.wrong(MIGRATION, Problem::Value(why.into()));
        }
        if self.migration.is_some() && doc.node("spec.filter.agent").is_some() {
            let why = "is given beside `spec.filter.agent`: an agent on another host has the records, so nothing can migrate to this one";
            doc.wrong(MIGRATION, Problem::Value(why.into()));
        }
    }
}
