// SPDX-License-Identifier: Apache-2.0

use super::gateway::Limit;
use super::{check_vm_name, texts, Described, Kind, Name, PacketLimit};
use crate::broken::stand_ins;
use crate::declare::fields;
use crate::doc::Doc;
use crate::error::Problem;
use crate::forms::*;
use abi::Vni;
use filter::Pattern;
use std::net::IpAddr;

const VMS: &str = "up to 64 names of Vms of the Vpc, each once";
const PATTERNS: &str = "up to 64, as tcp/443 10.0.0.0/8, udp/53, icmp or any 2001:db8::/32";
const TARGET_VM: &str = "name of a Vm of the Vpc that is no source of a mirror which leads back to it";
const COLLECTOR: &str = "a unicast address, neither the gateway's own nor an Nc's";
const VNI: &str = "1 to 16777215, of no Vpc";

/// Which way packets go, as a mirrored VM sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorDirection {
    /// What it gets.
    Ingress,
    /// What it sends.
    Egress,
    /// Both.
    Both,
}

impl MirrorDirection {
    const ALL: [(&str, MirrorDirection); 3] =
        [("both", MirrorDirection::Both), ("ingress", MirrorDirection::Ingress), ("egress", MirrorDirection::Egress)];
}

fields! {
    /// Copies of what VMs send and get, in VXLAN, to a collector. The packets themselves go on as without it; the software path serves what these VMs send and get. A copy shows what a VM sends as it sent it, whatever becomes of it, and what it gets as it gets it.
    pub kind Mirror {
        /// Name, unique among the documents of its kind.
        name: Name = "metadata.name", OwnName;
        /// The VPC whose VMs are mirrored.
        vpc: Name = "spec.vpc", name_of(Kind::Vpc, "name of a Vpc").required(stand_ins::name);
        /// VMs of the VPC. Without any all of them are mirrored, but for the one that gets the copies.
        vms: Vec<Name> = "spec.vms", any_name(VMS, check_vm_name).list(64, VMS);
        /// What of them: `ingress`, what they get; `egress`, what they send; or both.
        direction: MirrorDirection = "spec.direction", choice(&MirrorDirection::ALL).or(MirrorDirection::Both);
        /// Which packets: services, and the address or prefix of the other end. A port may be the source's or the destination's. Without any all are copied.
        filter: Vec<Pattern> = "spec.filter", parsed("pattern", "").list(64, PATTERNS);
        /// Bytes of a frame that are copied at most; what does not fit the way to the collector is cut off in any case.
        bytes: Option<u16> = "spec.packetBytes", int(64, 65_535).optional().meaning("the whole frame");
        /// The VM that gets the copies: UDP to the Gateway's VXLAN port, from an address of the VPC's gateway. One of `vm` and `collector` is needed.
        to_vm: Option<Name> = "spec.target.vm", any_name(TARGET_VM, check_vm_name).optional();
        /// The address in the underlay that gets the copies, at the Gateway's VXLAN port.
        to_address: Option<IpAddr> = "spec.target.collector", underlay(COLLECTOR).optional();
        /// VNI of the copies, by which a collector tells mirrors apart and a mirror knows a copy.
        vni: Vni = "spec.target.vni", int(1, 0xff_ffff).allowing(VNI).required(stand_ins::vni);
        /// Copies a second at most: what is more is not copied, and goes on all the same.
        limit: PacketLimit = "spec.limit", Limit(PacketLimit { rate: 100_000, burst: 1_000 }, ["Copies a second. What is more is not copied (`limited`), and goes on all the same.", "Copies at once."]);
    }
}

impl Described for Mirror {
    const OF_VPCS: bool = true;

    fn name(&self) -> Name {
        self.name.clone()
    }

    fn summary(&self) -> String {
        let of = if self.vms.is_empty() { format!("all of {}", self.vpc) } else { texts(self.vms.iter()) };
        let to = self.to_address.map(|a| a.to_string()).or_else(|| self.to_vm.as_ref().map(|vm| vm.to_string()));
        format!("{of} to {}", to.unwrap_or_default())
    }

    fn vpcs(&self) -> &[Name] {
        std::slice::from_ref(&self.vpc)
    }

    fn check(self, doc: &mut Doc<'_>) -> Option<Mirror> {
        let given = ["spec.target.vm", "spec.target.collector"].map(|path| doc.node(path).is_some());
        match given {
            [false, false] if !doc.is_wrong("spec.target") => {
                let at = doc.place_of("spec.target");
                doc.error(at, "spec.target", Problem::Missing, "vm or collector".into());
            }
            [true, true] => {
                let at = doc.place_of("spec.target.collector");
                let why = Problem::Value("stands beside spec.target.vm: where would copies go?".into());
                doc.error(at, "spec.target.collector", why, "one of vm and collector".into());
            }
            _ => {}
        }
        if doc.node("spec.vms").is_some_and(|n| n.is_empty_list()) {
            // Not to be taken for all of them.
            doc.wrong("spec.vms", Problem::Value("has no entry: leave it out to mirror all VMs".into()));
        }
        Some(self)
    }
}
