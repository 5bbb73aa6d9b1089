// SPDX-License-Identifier: Apache-2.0

use super::{texts, Described, Kind, Name};
use crate::broken::stand_ins;
use crate::declare::fields;
use crate::forms::*;
use crate::prefix::{prefix_fault, Prefix};

const PORT: &str = "the server side of a wire in spec.wires of the Gateway";
const ADDRESSES: &str =
    "1 to 4096 addresses or prefixes, without bits behind the length, each of one Server behind a port";

fields! {
    /// A bare-metal server behind a wire of a node in role filter.
    pub kind Server {
        /// Name, unique among the documents of its kind.
        name: Name = "metadata.name", OwnName;
        /// The tenant. Servers of several may be behind one port: then the prefix tells whose a packet is.
        vpc: Name = "spec.vpc", name_of(Kind::Vpc, "name of a Vpc").required(stand_ins::name);
        /// The interface behind which it is. What comes from it with a source address of no Server behind this port is dropped (`filter_spoofed`).
        port: String = "spec.port", interface_name(PORT).required(|| stand_ins::name().to_string());
        /// Its addresses, and prefixes that are routed to it. The longest counts. `0.0.0.0/0` and `::/0`: all that is behind the port is this tenant's (tenant by port).
        addresses: Vec<Prefix> = "spec.addresses", text("prefix", "", forwardable).list(4096, ADDRESSES).full();
    }
}

impl Described for Server {
    const OF_VPCS: bool = true;

    fn name(&self) -> Name {
        self.name.clone()
    }

    fn summary(&self) -> String {
        format!("{} in {} behind {}", texts(self.addresses.iter()), self.vpc, self.port)
    }

    fn vpcs(&self) -> &[Name] {
        std::slice::from_ref(&self.vpc)
    }
}

/// A prefix that has addresses which are forwarded.
fn forwardable(s: &str) -> Result<Prefix, String> {
    let prefix = filter::parse_addresses(s)?;
    let multicast = prefix.prefix_len() > 0 && prefix.addr().is_multicast();
    match prefix_fault(prefix).or_else(|| multicast.then(|| "it is multicast".into())) {
        Some(why) => Err(format!("`{s}` cannot be used: {why}")),
        None => Ok(prefix),
    }
}
