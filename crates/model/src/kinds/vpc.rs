// SPDX-License-Identifier: Apache-2.0

use super::{Described, Meter, MeterSlot, Name};
use crate::broken::stand_ins;
use crate::declare::{fields, Field, Form, Slot};
use crate::doc::{check_name, Doc};
use crate::forms::*;
use crate::prefix::Mac;
use crate::written::Written;
use abi::Vni;
use std::net::IpAddr;

const GATEWAYS: &str = "up to 16 unicast addresses that may be forwarded, or link-local ones, no VM's";

fields! {
    /// A tenant's network: one VNI, its gateway address, its limits. Addresses of different VPCs may overlap.
    pub kind Vpc {
        /// Name, unique among the documents of its kind.
        name: Name = "metadata.name", OwnName;
        /// VXLAN network identifier, unique. Cannot change.
        vni: Vni = "spec.vni", int(1, 0xff_ffff).required(stand_ins::vni);
        /// MAC address of the gateway in this VPC.
        gateway_mac: Mac = "spec.gateway.mac", GatewayMac;
        /// Addresses that the gateway answers for (ARP, ND, ping) in this VPC. The first of each family is the source of ICMP errors; without one the VPC gets none of that family.
        gateways: Vec<IpAddr> = "spec.gateway.addresses", of_gateway().list(16, GATEWAYS);
        /// Send ICMP errors for this VPC, if the Gateway sends them at all.
        icmp: bool = "spec.icmp", switch().or(true);
        /// A TCP packet for the Internet that neither has a session nor begins one: `drop` it (`session_stray`), or make a session of it, which lets connections live on that another gateway, or none, knew before.
        pick_up: bool = "spec.strayTcp", choice(&[("drop", false), ("pickUp", true)]).or(false).shy();
        /// Limits of its sessions.
        limits: VpcLimits = "spec.limits", part();
        /// Part in a state table that fills up (`spec.filter.migration` of the Gateway): a VPC of twice the weight keeps twice the connections in the fast path.
        weight: u16 = "spec.filter.weight", int(1, 1000).or(1).shy();
        /// Where its packets are served.
        path: VpcPath = "spec.path", part();
        /// Limit of what the VPC sends.
        meter: Option<Box<Meter>> = "spec.meter", MeterSlot;
        /// Peerings that this VPC agrees to. A Peering is valid only when both of its VPCs name it.
        peerings: Vec<Name> = "spec.peerings", any_name("", check_name).list(65_536, "names of Peering documents, each once");
    }
}

impl Described for Vpc {
    fn name(&self) -> Name {
        self.name.clone()
    }

    fn summary(&self) -> String {
        format!("VNI {}", self.vni)
    }

    fn tidy(&self, out: &mut Written) {
        if self.gateway_mac == default_gateway_mac(self.vni) {
            out.remove("spec.gateway.mac");
        }
    }
}

/// MAC address of a VPC's gateway if none is given.
pub(crate) fn default_gateway_mac(vni: Vni) -> Mac {
    Mac(0x02 << 40 | u64::from(vni))
}

struct GatewayMac;

impl Slot for GatewayMac {
    type Value = Mac;

    fn rows(&self, path: &str, meaning: &str, out: &mut Vec<Field>) {
        out.push(mac().row(path, "02:00:00 and the VNI".into(), meaning));
    }

    fn usual(&self) -> Mac {
        stand_ins::mac()
    }

    fn read(&self, doc: &mut Doc<'_>, path: &str) -> Mac {
        let by_vni = |doc: &Doc<'_>| match doc.is_wrong(path) {
            true => None,
            false => Some(default_gateway_mac(Vni(integer(doc.text("spec.vni")?, 1, 0xff_ffff).ok()? as u32))),
        };
        doc.get(path, &mac()).or_else(|| by_vni(doc)).unwrap_or_else(stand_ins::mac)
    }

    fn write(&self, value: &Mac, out: &mut Written, path: &str) {
        out.value(path, &mac(), value);
    }
}

/// Which path of a node serves packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ServedBy {
    /// Nobody has said: the fast path, or as the controller decides.
    #[default]
    Auto,
    /// The fast path.
    Fast,
    /// The software path.
    Software,
}

impl ServedBy {
    /// As documents have them.
    pub const ALL: [(&'static str, ServedBy); 3] =
        [("auto", ServedBy::Auto), ("fast", ServedBy::Fast), ("software", ServedBy::Software)];

    /// As documents have it.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, s)| *s == self).map_or("", |(name, _)| name)
    }
}

const SERVICE: &[(&str, bool)] = &[("fast", false), ("software", true)];

fields! {
    /// Where the packets of a VPC are served on a node with a fast path. It can change at any time: no packet is lost, no session ends.
    #[derive(Copy)]
    pub struct VpcPath {
        /// All that the VPC sends, and what comes for it from the Internet. `software` suits services that are new or change often, and VPCs with many entries and little traffic. `auto`: the fast path, or in a region as the controller decides from the traffic.
        vpc: ServedBy = "vpc", choice(&ServedBy::ALL).or(ServedBy::Auto).shy();
        /// What Peerings lead to other VPCs.
        peerings: bool = "peerings", choice(SERVICE).or(false).shy();
        /// What belongs to sessions: translated, or judged by security groups.
        sessions: bool = "sessions", choice(SERVICE).or(false).shy();
    }
}

impl VpcPath {
    /// The path bits of the VPC's POLICY word; `auto` is what holds if the document does not say it.
    pub fn bits(self, auto: ServedBy) -> u64 {
        let whole = if self.vpc == ServedBy::Auto { auto } else { self.vpc } == ServedBy::Software;
        let bits = [
            (whole, abi::POLICY_PATH_SOFTWARE),
            (self.peerings, abi::POLICY_PATH_PEERINGS),
            (self.sessions, abi::POLICY_PATH_SESSIONS),
        ];
        bits.iter().filter(|(is, _)| *is).map(|(_, bit)| bit).sum()
    }
}

fields! {
    /// What the document of a VPC, or of its Snat, says that it may take; 0: says nothing.
    #[derive(Copy)]
    pub struct VpcLimits {
        /// Sessions of the VPC, over elastic addresses, to the Internet untranslated and inside through security groups. Where the VPC has a Snat, that one's limits hold for what is not said here.
        sessions: u32 = "sessions", int(1, u32::MAX as u64).or(0).meaning("a quarter of the Gateway's, at most 1000000").shy();
        /// Sessions of one VM.
        vm_sessions: u32 = "vmSessions", int(1, u32::MAX as u64).or(0).meaning("half of the VPC's default, at most 100000").shy();
        /// Sessions of the VPC whose handshake is not done.
        half_open: u32 = "halfOpen", int(1, u32::MAX as u64).or(0).meaning("half of the VPC's default, at most 50000").shy();
    }
}
