// SPDX-License-Identifier: Apache-2.0

use super::{texts, Described, Kind, Name, Timeouts, TimeoutsSlot, VpcLimits};
use crate::broken::stand_ins;
use crate::declare::{fields, Field, Fields, Slot};
use crate::doc::Doc;
use crate::error::Problem;
use crate::forms::*;
use crate::prefix::{parse_prefix, prefix_fault, Prefix};
use crate::written::Written;

const POOLS: &str = "1 to 64 names of PublicPools";
const PREFIXES: &str = "up to 64 IPv6 prefixes of 16 bits or more, of no other VPC";

fields! {
    /// The way of a VPC to the Internet: which public addresses stand for its VMs, and what they may take. A VPC has one at most.
    pub kind Snat {
        /// Name, unique among the documents of its kind.
        name: Name = "metadata.name", OwnName;
        /// The VPC. Its routes of scope `internet` say what goes out.
        vpc: Name = "spec.vpc", name_of(Kind::Vpc, "name of a Vpc that has no other Snat").required(stand_ins::name);
        /// Pools whose addresses stand for the VPC's IPv4 addresses, in the order in which they are used. Pools may be shared. Sessions over the addresses of a pool that is taken out end, live ones too, within seconds (reason `translation` in the session log); a pool that is added ends none.
        pools: Vec<Name> = "spec.pools", name_of(Kind::PublicPool, "").list(64, POOLS);
        /// IPv6 sources that go out as they are.
        ipv6_prefixes: Vec<Prefix> = "spec.ipv6Prefixes", text("IPv6 prefix", "", announced).list(64, PREFIXES);
        /// Let anyone who lies behind a Route of the VPC with scope `internet` begin a connection to an address in `spec.ipv6Prefixes`.
        ipv6_inbound: bool = "spec.ipv6Inbound", switch().or(false);
        /// Who may send to a mapping in use (RFC 4787 section 5): only whom the VM has sent to, or anyone.
        open: bool = "spec.filtering", choice(&[("addressAndPort", false), ("endpointIndependent", true)]).or(false);
        /// Established sessions are served by the fast path; off keeps all of them in software.
        offload: bool = "spec.offload", switch().or(true);
        /// Limits.
        limits: SnatLimits = "spec.limits", part();
        /// Timeouts of the VPC's sessions, where they are not the Gateway's.
        timeouts: Timeouts = "spec.timeouts", TimeoutsSlot::Vpc;
    }
}

impl Described for Snat {
    const OF_VPCS: bool = true;

    fn name(&self) -> Name {
        self.name.clone()
    }

    fn summary(&self) -> String {
        let prefixes = self.ipv6_prefixes.iter().map(|p| p.to_string());
        format!("{} over {}", self.vpc, texts(self.pools.iter().map(|p| p.to_string()).chain(prefixes)))
    }

    fn vpcs(&self) -> &[Name] {
        std::slice::from_ref(&self.vpc)
    }

    fn check(self, doc: &mut Doc<'_>) -> Option<Snat> {
        if doc.node("spec.pools").or(doc.node("spec.ipv6Prefixes")).is_none() {
            let at = doc.place_of("spec.pools");
            doc.error(at, "spec.pools", Problem::Missing, "pools, ipv6Prefixes or both".into());
        }
        Some(self)
    }
}

/// IPv6 addresses that a router may carry.
fn announced(s: &str) -> Result<Prefix, String> {
    let reserved = |p: &Prefix| {
        let lists = ["fe80::/10", "ff00::/8", "::/16"];
        lists.iter().filter_map(|l| parse_prefix(l).ok()).any(|l| l.contains(p))
    };
    match parse_prefix(s)? {
        p if reserved(&p) => Err(format!("`{s}` is link-local, multicast or reserved: no router carries it")),
        p if prefix_fault(p).is_some() => Err(format!("`{s}` cannot be used: it is never forwarded")),
        p @ Prefix::V6(net) if net.prefix_len() >= 16 => Ok(p),
        _ => Err(format!("`{s}` is no IPv6 prefix of 16 bits or more")),
    }
}

fields! {
    /// What a VPC with Snat may take.
    #[derive(Copy)]
    pub struct SnatLimits {
        /// Ports that VMs of the VPC hold, in blocks.
        ports: u32 = "ports", int(64, u32::MAX as u64).or(1 << 20);
        /// Ports that one VM holds.
        vm_ports: u32 = "vmPorts", int(64, u32::MAX as u64).or(4096);
        /// Of the VPC's sessions.
        own: VpcLimits = "", OfSessions;
    }
}

/// The same limits as those of a Vpc, which go before them.
struct OfSessions;

impl Slot for OfSessions {
    type Value = VpcLimits;

    fn rows(&self, path: &str, _: &str, out: &mut Vec<Field>) {
        let from = out.len();
        VpcLimits::rows(path, out);
        let meaning = "Sessions of the VPC. `spec.limits` of the Vpc goes before it.";
        out[from].schema = schema_of(out[from].schema.take(), meaning, &out[from].allowed);
        out[from].meaning = meaning.into();
    }

    fn usual(&self) -> VpcLimits {
        VpcLimits::default()
    }

    fn read(&self, doc: &mut Doc<'_>, path: &str) -> VpcLimits {
        VpcLimits::read(doc, path)
    }

    fn write(&self, value: &VpcLimits, out: &mut Written, path: &str) {
        value.write(out, path);
    }
}
