// SPDX-License-Identifier: Apache-2.0

use super::{Described, Kind, Name};
use crate::broken::stand_ins;
use crate::declare::fields;
use crate::doc::Doc;
use crate::error::Problem;
use crate::forms::*;
use std::collections::HashSet;
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

const TARGETS: &str = "up to 16, each once, as 65000:100, 4200000000:100 or 192.0.2.1:100";
const IMPORTED: &str =
    "up to 16, each once and of no other EvpnInstance, as 65000:100, 4200000000:100 or 192.0.2.1:100";
const DISTINGUISHER: &str = "as 192.0.2.1:100, 65000:100 or 4200000000:100, of no other EvpnInstance";
const TARGETS_MAX: usize = 16;

fields! {
    /// What a VPC exchanges by EVPN (RFC 7432, 8365, 9136) with the routing daemon that `spec.evpn.daemon` of the Gateway names. A VPC has one at most.
    pub kind EvpnInstance {
        /// Name, unique among the documents of its kind.
        name: Name = "metadata.name", OwnName;
        /// The VPC. Its VNI must be that of the routes: what has another one is not learned (`other_vni`).
        vpc: Name = "spec.vpc", name_of(Kind::Vpc, "name of a Vpc that has no other EvpnInstance").required(stand_ins::name);
        /// Route targets of what is learned: MAC addresses with IP addresses become Vms, prefixes Routes, of this VPC.
        import: Vec<BgpNumber> = "spec.import", parsed("route target", "").list(TARGETS_MAX, IMPORTED);
        /// Route targets that what is announced gets: the VPC's own Vms, and its Routes of scope local and line. Without one nothing is announced.
        export: Vec<BgpNumber> = "spec.export", parsed("route target", "").list(TARGETS_MAX, TARGETS);
        /// Route distinguisher of what is announced: one that no other node uses for this VPC.
        rd: Option<BgpNumber> = "spec.rd", parsed("route distinguisher", DISTINGUISHER).optional().meaning("the Gateway's IPv4 tunnel address and the VNI, if that is at most 65535; else required with `spec.export`");
        /// What may be learned.
        limits: EvpnLimits = "spec.limits", part();
        /// Whether a default route may be learned.
        default: bool = "spec.defaultRoute", switch().or(false);
    }
}

fields! {
    /// What a VPC may learn by EVPN. What there was when a limit is reached stays; the rest is refused and counted.
    #[derive(Copy)]
    pub struct EvpnLimits {
        /// MAC addresses with IP addresses.
        vms: u32 = "vms", int(1, 1_000_000).or(10_000);
        /// Prefixes.
        routes: u32 = "routes", int(1, 1_000_000).or(1_000);
        /// Tunnel ends (VTEPs) behind which they are.
        vteps: u32 = "vteps", int(1, 65_536).or(256);
    }
}

/// A number that an AS or the owner of an IPv4 address gives: a route target or a route distinguisher, six bytes on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BgpNumber {
    /// Of an AS of two bytes.
    As2(u16, u32),
    /// Of an IPv4 address.
    Ip(Ipv4Addr, u16),
    /// Of an AS of four bytes.
    As4(u32, u16),
}

impl fmt::Display for BgpNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BgpNumber::As2(admin, n) => write!(f, "{admin}:{n}"),
            BgpNumber::Ip(admin, n) => write!(f, "{admin}:{n}"),
            BgpNumber::As4(admin, n) => write!(f, "{admin}:{n}"),
        }
    }
}

impl FromStr for BgpNumber {
    type Err = String;

    /// An AS number that has room in two bytes is one of two bytes.
    fn from_str(s: &str) -> Result<BgpNumber, String> {
        let plain = || crate::plain(s);
        let Some((admin, number)) = s.split_once(':') else {
            return Err(format!("`{}` has no colon between who gives it and the number", plain()));
        };
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let number = |max: u64| match number.parse::<u64>() {
            Ok(n) if digits(number) && n <= max => Ok(n),
            _ => Err(format!("`{}` cannot be used: behind the colon stands no number up to {max}", plain())),
        };
        if let Ok(address) = admin.parse::<Ipv4Addr>() {
            return Ok(BgpNumber::Ip(address, number(u16::MAX.into())? as u16));
        }
        match admin.parse::<u32>() {
            Ok(0) => Err(format!("`{}` cannot be used: there is no AS 0", plain())),
            Ok(asn) if digits(admin) => Ok(match u16::try_from(asn) {
                Ok(asn) => BgpNumber::As2(asn, number(u32::MAX.into())? as u32),
                Err(_) => BgpNumber::As4(asn, number(u16::MAX.into())? as u16),
            }),
            _ => Err(format!(
                "`{}` cannot be used: before the colon stands neither an AS number nor an IPv4 address",
                plain()
            )),
        }
    }
}

impl Described for EvpnInstance {
    const OF_VPCS: bool = true;

    fn name(&self) -> Name {
        self.name.clone()
    }

    fn summary(&self) -> String {
        let list = |of: &[BgpNumber]| super::texts(of.iter());
        format!("{} imports {}, exports {}", self.vpc, list(&self.import), list(&self.export))
    }

    fn vpcs(&self) -> &[Name] {
        std::slice::from_ref(&self.vpc)
    }

    fn check(self, doc: &mut Doc<'_>) -> Option<EvpnInstance> {
        for (field, list) in [("spec.import", &self.import), ("spec.export", &self.export)] {
            let mut seen = HashSet::new();
            if let Some(twice) = list.iter().find(|t| !seen.insert(**t)) {
                doc.wrong(field, Problem::Value(format!("has {twice} twice")));
            }
        }
        let nothing = ["spec.import", "spec.export"].iter().all(|path| doc.node(path).is_none());
        if nothing {
            let at = doc.place_of("spec.import");
            doc.error(at, "spec.import", Problem::Missing, "import, export or both".into());
        }
        Some(self)
    }
}
