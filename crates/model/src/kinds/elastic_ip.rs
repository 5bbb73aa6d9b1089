// SPDX-License-Identifier: Apache-2.0

use super::{check_vm_name, texts, Described, Name};
use crate::broken::stand_ins;
use crate::declare::fields;
use crate::doc::Doc;
use crate::error::Problem;
use crate::forms::*;
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

const ADDRESS: &str = "an address in a PublicPool, of no other ElasticIp";
const VM: &str = "name of a Vm with an IPv4 address and no other ElasticIp in spec.vm";
const FORWARDS: &str = "up to 256, as tcp/443=web1:8443 or udp/5000-5009=red/10.0.0.5, of Vms of one VPC";

fields! {
    /// A public address of a VM, or some of its ports.
    pub kind ElasticIp {
        /// Name, unique among the documents of its kind.
        name: Name = "metadata.name", OwnName;
        /// The public address. Who sends to it must lie behind a Route of the VPC with scope `internet`.
        address: Ipv4Addr = "spec.address", public4(ADDRESS).required(stand_ins::address4);
        /// The VM that it stands for, all ports and protocols, both ways. Its first IPv4 address counts. Snat leaves this public address alone.
        vm: Option<Name> = "spec.vm", any_name(VM, check_vm_name).optional();
        /// Instead: public ports that lead to VMs (and stand for their ports when they send). The other ports of the address are left to Snat.
        forwards: Vec<PortForward> = "spec.forwards", parsed("forward", "").list(256, FORWARDS);
    }
}

impl ElasticIp {
    /// The VMs that it names, each with the field that does.
    pub fn vms(&self) -> impl Iterator<Item = (String, &Name)> {
        let forwards = self.forwards.iter().enumerate().map(|(i, f)| (format!("spec.forwards[{i}]"), &f.vm));
        self.vm.iter().map(|vm| ("spec.vm".to_string(), vm)).chain(forwards)
    }
}

impl Described for ElasticIp {
    fn name(&self) -> Name {
        self.name.clone()
    }

    fn summary(&self) -> String {
        match &self.vm {
            Some(vm) => format!("{} for {vm}", self.address),
            None => format!("{} {}", self.address, texts(self.forwards.iter())),
        }
    }

    fn check(self, doc: &mut Doc<'_>) -> Option<ElasticIp> {
        const EITHER: &str = "vm or forwards";
        match (doc.node("spec.vm").is_some(), doc.node("spec.forwards").map(|n| n.at)) {
            (false, None) => doc.error(doc.place_of("spec.vm"), "spec.vm", Problem::Missing, EITHER.into()),
            (true, Some(at)) => {
                doc.error(at, "spec.forwards", Problem::Value("is given beside spec.vm".into()), EITHER.into())
            }
            _ => {}
        }
        for (i, f) in self.forwards.iter().enumerate() {
            let meets = |o: &&PortForward| o.protocol == f.protocol && o.first <= f.last && f.first <= o.last;
            if let Some(other) = self.forwards[..i].iter().find(meets) {
                let problem = Problem::RangeTaken { range: f.to_string(), by: other.to_string() };
                doc.wrong_entry("spec.forwards", i, problem, "");
            }
        }
        Some(self)
    }
}

/// Protocols of which ports can be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// As in `spec.forwards`.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        }
    }
}

/// Ports of a public address that lead to a VM, written as `tcp/8000-8009=web1:80`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PortForward {
    /// Protocol.
    pub protocol: Protocol,
    /// First public port.
    pub first: u16,
    /// Last public port.
    pub last: u16,
    /// The VM.
    pub vm: Name,
    /// The VM's port for the first; the others follow.
    pub port: u16,
}

impl fmt::Display for PortForward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.protocol.name(), self.first)?;
        if self.last != self.first {
            write!(f, "-{}", self.last)?;
        }
        write!(f, "={}:{}", self.vm, self.port)
    }
}

impl FromStr for PortForward {
    type Err = String;

    fn from_str(s: &str) -> Result<PortForward, String> {
        let port = |s: &str| {
            let plain = s.bytes().all(|b| b.is_ascii_digit());
            s.parse::<u16>().ok().filter(|p| plain && *p > 0).ok_or(format!("`{s}` is no port"))
        };
        let form = || format!("`{s}` is no forward");
        let (public, vm) = s.split_once('=').ok_or_else(form)?;
        let (protocol, ports) = public.split_once('/').ok_or_else(form)?;
        let protocol = match protocol {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            other => return Err(format!("`{other}` has no ports to forward")),
        };
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        let (first, last) = (port(first)?, port(last)?);
        let (vm, inner) = match vm.rsplit_once(':') {
            Some((vm, p)) => (vm, port(p)?),
            None => (vm, first),
        };
        if first > last || u32::from(inner) + u32::from(last - first) > 65_535 {
            return Err(format!("`{s}` ends before it begins, or beyond port 65535"));
        }
        check_vm_name(vm)?;
        Ok(PortForward { protocol, first, last, vm: vm.into(), port: inner })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwards_parse_and_print() {
        for s in ["tcp/8080=web1:80", "udp/5000-5009=red/10.0.0.5:6000", "tcp/65535=a:1"] {
            assert_eq!(s.parse::<PortForward>().unwrap().to_string(), s);
        }
        assert_eq!("tcp/22=web1".parse::<PortForward>().unwrap().to_string(), "tcp/22=web1:22");
        for s in ["tcp/0=a", "icmp/1=a", "tcp/5-4=a", "tcp/1-3=a:65534", "tcp/1=", "tcp=a", "tcp/+1=a", "tcp/1=red/x:1"]
        {
            assert!(s.parse::<PortForward>().is_err(), "{s}");
        }
    }
}
