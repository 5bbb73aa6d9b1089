// SPDX-License-Identifier: Apache-2.0
//! The part of a region that makes the node a filter in front of servers: inline pairs and who is behind them.

use crate::groups::prefix;
use crate::lex::{CaseError, Cursor, Word};
use crate::region::{Prefix, Region};
use abi::{IfIndex, Vni};
use std::fmt;
use tables::{InlinePort, InlineSpec};

type Parsed<T> = Result<T, CaseError>;

/// Inline pairs and servers.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct InlinePairs {
    /// Ports: towards the servers, towards the network.
    pub pairs: Vec<(u32, u32)>,
    /// Port towards it, VNI, addresses.
    pub servers: Vec<(u32, u32, Prefix)>,
}

/// Statements of this part.
pub const STATEMENTS: &[&str] = &["wire", "server"];

/// Carries out one of [`STATEMENTS`].
pub fn statement(c: &mut Cursor<'_>, first: &Word, region: &mut Region) -> Parsed<()> {
    if first.text == "wire" {
        let server = c.number("port towards the servers", u64::from(u32::MAX))? as u32;
        let network = c.number("port towards the network", u64::from(u32::MAX))? as u32;
        region.inline.pairs.push((server, network));
        return Ok(());
    }
    let (vni, prefix) = (c.vni()?, prefix(c)?);
    let word = c.next("port")?;
    if word.text != "port" {
        return Err(c.error(word, "`port` is needed here"));
    }
    let port = c.number("port towards the server", u64::from(u32::MAX))? as u32;
    region.inline.servers.push((port, vni, prefix));
    Ok(())
}

/// `delete server PREFIX`. False: something else is to be deleted.
pub fn delete(c: &mut Cursor<'_>, what: &str, region: &mut Region) -> Parsed<bool> {
    if what != "server" {
        return Ok(false);
    }
    let gone = prefix(c)?;
    region.inline.servers.retain(|s| s.2 != gone);
    Ok(true)
}

impl Region {
    /// For the writer.
    pub fn inline_specs(&self) -> Vec<InlineSpec> {
        let port =
            |ifindex: u32| InlinePort { ifindex: IfIndex(ifindex), mtu: self.port(ifindex).map_or(0, |p| p.mtu) };
        let spec = |&(server, network): &(u32, u32)| {
            let servers = self.inline.servers.iter().filter(|s| s.0 == server);
            let servers = servers.map(|(_, vni, p)| (tables::Prefix::new_assert(p.addr, p.len), Vni(*vni))).collect();
            InlineSpec { server: port(server), network: port(network), servers }
        };
        self.inline.pairs.iter().map(spec).collect()
    }
}

impl fmt::Display for InlinePairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pairs.iter().try_for_each(|(s, n)| writeln!(f, "  wire {s} {n}"))?;
        self.servers.iter().try_for_each(|(port, vni, p)| writeln!(f, "  server {vni} {p} port {port}"))
    }
}
