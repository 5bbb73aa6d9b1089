// SPDX-License-Identifier: Apache-2.0

use super::{Described, Kind, Name};
use crate::broken::stand_ins;
use crate::declare::{fields, Field, Form, Referred, Slot};
use crate::doc::{Doc, Names};
use crate::error::Problem;
use crate::forms::*;
use crate::prefix::Prefix;
use crate::written::{quoted, Written};
use serde_json::{json, Value};

const PREFIX: &str = "an address and a length without further bits, as 10.0.0.0/24, one route a prefix and VPC";

fields! {
    /// One prefix of a VPC. A VPC without routes reaches nothing.
    pub kind Route {
        /// Name, unique among Routes. Without one the route is known by the default.
        name: Option<Name> = "metadata.name", OptionalName("`<vpc>/<prefix>`");
        /// Its VPC.
        vpc: Name = "spec.vpc", name_of(Kind::Vpc, "name of a Vpc").required(stand_ins::name);
        /// Destinations. The longest prefix wins.
        prefix: Prefix = "spec.prefix", prefix(PREFIX).required(stand_ins::prefix);
        /// Where it leads: VMs of this VPC, another VPC, nowhere. `internet`: out by the VPC's Snat or elastic addresses. `line`: to a customer's site, by the Overlay of this VPC with this `spec.line`; where there is none, packets are dropped (`scope_line`). `region` is accepted and not yet served: its packets are dropped with a reason of its own.
        scope: Scope = "spec", ScopeAndPeer;
    }
}

impl Described for Route {
    const OF_VPCS: bool = true;

    fn name(&self) -> Name {
        self.name.clone().unwrap_or_else(|| route_name(&self.vpc, self.prefix))
    }

    fn summary(&self) -> String {
        match &self.scope {
            Scope::Peer(to) => format!("{} in {} to peer {to}", self.prefix, self.vpc),
            Scope::Line(line) if *line != 0 => format!("{} in {} line {line}", self.prefix, self.vpc),
            s => format!("{} in {} {}", self.prefix, self.vpc, s.name()),
        }
    }

    fn vpcs(&self) -> &[Name] {
        std::slice::from_ref(&self.vpc)
    }

    fn check(self, doc: &mut Doc<'_>) -> Option<Route> {
        // A route is its prefix, and without a name it is known by that and its VPC.
        let known = !doc.is_wrong("spec.prefix") && (self.name.is_some() || !doc.is_wrong("spec.vpc"));
        known.then_some(self)
    }
}

/// Canonical name of a route.
pub fn route_name(vpc: &str, prefix: Prefix) -> Name {
    format!("{vpc}/{prefix}").into()
}

/// Where a route leads; `P` is what another VPC is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<P = Name> {
    /// VMs of this VPC.
    Local,
    /// Another VPC.
    Peer(P),
    /// Nowhere, on purpose.
    Blackhole,
    /// The Internet, by the VPC's Snat or elastic addresses.
    Internet,
    /// The dedicated line of the VPC with this number.
    Line(u8),
    /// Another region (not yet served).
    Region,
}

impl Scope {
    /// As in `spec.scope`; the positions are the numbers in snapshots.
    pub const NAMES: [&'static str; 6] = ["local", "peer", "blackhole", "internet", "line", "region"];
}

impl<P> Scope<P> {
    /// The scope of a number; `peer` says to which VPC, where it needs one, and `line` which line, where that is not the first one.
    pub(crate) fn numbered<E>(
        number: usize,
        peer: impl FnOnce() -> Result<P, E>,
        line: impl FnOnce() -> Result<u8, E>,
    ) -> Option<Result<Scope<P>, E>> {
        Some(Ok(match number {
            0 => Scope::Local,
            1 => return Some(peer().map(Scope::Peer)),
            2 => Scope::Blackhole,
            3 => Scope::Internet,
            4 => Scope::Line(0),
            5 => Scope::Region,
            NUMBERED_LINE => return Some(line().map(Scope::Line)),
            _ => return None,
        }))
    }

    /// The same of a name; where it has a line, that is for the caller to say.
    pub(crate) fn of<E>(name: &str, peer: impl FnOnce() -> Result<P, E>) -> Option<Result<Scope<P>, E>> {
        Scope::numbered(Scope::NAMES.iter().position(|n| *n == name)?, peer, || Ok(0))
    }

    pub(crate) fn number(&self) -> u8 {
        match self {
            Scope::Local => 0,
            Scope::Peer(_) => 1,
            Scope::Blackhole => 2,
            Scope::Internet => 3,
            Scope::Line(0) => 4,
            Scope::Line(_) => NUMBERED_LINE as u8,
            Scope::Region => 5,
        }
    }

    /// As in `spec.scope`.
    pub fn name(&self) -> &'static str {
        match self {
            Scope::Line(_) => "line",
            other => Scope::NAMES[usize::from(other.number())],
        }
    }

    /// The same, with the other VPC known by something else.
    pub fn map<Q>(&self, peer: impl FnOnce(&P) -> Q) -> Scope<Q> {
        match self {
            Scope::Local => Scope::Local,
            Scope::Peer(to) => Scope::Peer(peer(to)),
            Scope::Blackhole => Scope::Blackhole,
            Scope::Internet => Scope::Internet,
            Scope::Line(line) => Scope::Line(*line),
            Scope::Region => Scope::Region,
        }
    }
}

/// In snapshots, a line that is not the first one of its VPC: its number follows.
const NUMBERED_LINE: usize = 6;

/// A word of [`Scope::NAMES`].
struct ScopeName;

impl Form for ScopeName {
    type Value = &'static str;

    fn ty(&self) -> &'static str {
        "choice"
    }

    fn allowed(&self) -> String {
        alternatives(&Scope::NAMES)
    }

    fn parse(&self, s: &str, _: &mut Names) -> Result<&'static str, String> {
        Scope::NAMES.into_iter().find(|n| *n == s).ok_or_else(|| format!("`{s}` is no scope"))
    }

    fn show(&self, value: &&'static str, out: &mut String) {
        quoted(out, value);
    }

    fn schema(&self) -> Value {
        json!({"enum": Scope::NAMES})
    }
}

const LINE: Int<u8> = int(0, 255);
const PEER: NameOf = name_of(Kind::Vpc, "name of a Vpc joined to this one by a Peering; only with scope peer");

/// `spec.scope`, and `spec.peer` or `spec.line` where it needs one.
struct ScopeAndPeer;

impl Slot for ScopeAndPeer {
    type Value = Scope;

    fn rows(&self, _: &str, meaning: &str, out: &mut Vec<Field>) {
        ScopeName.required(|| "local").rows("spec.scope", meaning, out);
        let peer = PEER.optional().meaning("required with scope peer");
        peer.rows("spec.peer", "The VPC in which the search goes on.", out);
        LINE.or(0).rows(
            "spec.line",
            "With scope line: `spec.line` of the Overlay of this VPC by which packets leave.",
            out,
        );
    }

    fn usual(&self) -> Scope {
        // It brings about nothing that would be an error elsewhere.
        Scope::Local
    }

    fn read(&self, doc: &mut Doc<'_>, _: &str) -> Scope {
        let Some(word) = doc.need("spec.scope", &ScopeName) else { return self.usual() };
        if word != "peer" && doc.node("spec.peer").is_some() {
            doc.wrong("spec.peer", Problem::Value(format!("is given, but the scope is {word}")));
        }
        if word == "line" {
            return Scope::Line(doc.get("spec.line", &LINE).unwrap_or(0));
        }
        if doc.node("spec.line").is_some() {
            doc.wrong("spec.line", Problem::Value(format!("is given, but the scope is {word}")));
        }
        Scope::of(word, || doc.need("spec.peer", &PEER).ok_or(())).and_then(Result::ok).unwrap_or(Scope::Local)
    }

    fn write(&self, value: &Scope, out: &mut Written, _: &str) {
        out.text("spec.scope", value.name());
        match value {
            Scope::Peer(to) => out.text("spec.peer", to),
            Scope::Line(line) if *line != 0 => out.value("spec.line", &LINE, line),
            _ => {}
        }
    }

    fn references(&self, value: &Scope, _: &str, out: Referred<'_>) {
        if let Scope::Peer(to) = value {
            out(Kind::Vpc, to, &|| "spec.peer".into());
        }
    }
}
