// SPDX-License-Identifier: Apache-2.0
//! A node in role filter: wires, and the servers behind them.

use crate::decode::interface;
use crate::object::Name;
use std::fmt;
use std::str::FromStr;

/// What a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// A VXLAN gateway.
    #[default]
    Gateway,
    /// A filter in front of servers: frames pass between the two ends of wires.
    Filter,
}

impl Role {
    /// Every choice with its text.
    pub const ALL: [(&'static str, Role); 2] = [("gateway", Role::Gateway), ("filter", Role::Filter)];
}

/// Two interfaces between which frames pass.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wire {
    /// Towards the servers.
    pub server: String,
    /// Towards the network.
    pub network: String,
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.server, self.network)
    }
}

impl FromStr for Wire {
    type Err = String;

    fn from_str(s: &str) -> Result<Wire, String> {
        let (server, network) = s.split_once('=').ok_or_else(|| format!("`{s}` has no `=` between two interfaces"))?;
        let wire = Wire { server: interface(server)?, network: interface(network)? };
        match wire.server == wire.network {
            true => Err(format!("`{s}` names one interface twice")),
            false => Ok(wire),
        }
    }
}

/// A server behind a wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// `metadata.name`.
    pub name: Name,
    /// Its VPC.
    pub vpc: Name,
    /// The end of a wire that it is behind.
    pub port: String,
    /// Its addresses, and prefixes that are routed to it.
    pub addresses: Vec<filter::Prefix>,
}
