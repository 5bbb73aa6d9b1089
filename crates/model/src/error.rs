// SPDX-License-Identifier: Apache-2.0
//! What can be wrong with a configuration, and where.

use crate::kinds::Kind;
use abi::Vni;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// A place in a file; line and column count from 1, 0 means unknown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// File name as given.
    pub file: Arc<str>,
    /// Line, or record of a binary form.
    pub line: u32,
    /// Column.
    pub column: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if self.column > 0 {
            write!(f, ":{}", self.column)?;
        }
        Ok(())
    }
}

/// What is wrong, one sentence a variant.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Problem {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// Not YAML.
    #[error("is not YAML: {0}")]
    Syntax(String),
    /// YAML, but not a document of Tunny.
    #[error("{0}")]
    Form(String),
    /// Errors beyond those that are listed.
    #[error("and {0} more errors, which are not listed")]
    More(u64),
    /// A field that the kind does not have.
    #[error("is unknown{}", near.as_ref().map_or(String::new(), |n| format!(" (did you mean `{n}`?)")))]
    UnknownField {
        /// The field whose name is most like it.
        near: Option<String>,
    },
    /// A field given twice.
    #[error("is given twice, first in line {first}")]
    DuplicateField {
        /// Line of the first.
        first: u32,
    },
    /// A required field is absent.
    #[error("is missing")]
    Missing,
    /// Another YAML type than the field's.
    #[error("is {found}, which does not fit here")]
    WrongType {
        /// What stands there.
        found: &'static str,
    },
    /// A value that the field does not take.
    #[error("{0}")]
    Value(String),
    /// Two documents of one kind and name.
    #[error("is described twice, first at {first}")]
    DuplicateObject {
        /// The first.
        first: Place,
    },
    /// A second gateway.
    #[error("a node is one gateway, and it is already `{first}`")]
    SecondGateway {
        /// Name of the first.
        first: String,
    },
    /// A second region.
    #[error("a controller looks after one Region, and it is already `{first}`")]
    SecondRegion {
        /// Name of the first.
        first: String,
    },
    /// A VPC of two Tenants.
    #[error("names Vpc `{vpc}`, which belongs to Tenant `{owner}`")]
    VpcOwned {
        /// The VPC.
        vpc: String,
        /// Its owner.
        owner: String,
    },
    /// A reference to an object that does not exist.
    #[error("names {kind} `{name}`, which does not exist")]
    UnknownReference {
        /// Kind that is meant.
        kind: Kind,
        /// Name that was not found.
        name: String,
    },
    /// A reference given twice in one list.
    #[error("names `{name}` twice")]
    DuplicateReference {
        /// The name.
        name: String,
    },
    /// The object to be deleted does not exist.
    #[error("does not exist, so it cannot be deleted")]
    NothingToDelete,
    /// A VNI of two VPCs.
    #[error("VNI {vni} belongs to Vpc `{by}`")]
    VniTaken {
        /// The VNI.
        vni: Vni,
        /// Its owner.
        by: String,
    },
    /// A VNI changed in place.
    #[error("cannot change from {old} to {new}: every host of the VPC knows it by its VNI; delete the Vpc and create it anew")]
    VniChanged {
        /// Before.
        old: Vni,
        /// Wanted.
        new: Vni,
    },
    /// An address that belongs to something else.
    #[error("{address} belongs to {by}")]
    AddressTaken {
        /// The address.
        address: String,
        /// Its owner.
        by: String,
    },
    /// A range of addresses or ports that belongs to something else, in whole or in part.
    #[error("{range} overlaps {by}")]
    RangeTaken {
        /// The range.
        range: String,
        /// What it meets.
        by: String,
    },
    /// A rule of a security group that other rules leave nothing to decide.
    #[error("`{rule}` can never match: {by} takes all that it is about")]
    NeverMatches {
        /// The rule.
        rule: String,
        /// What comes before it.
        by: String,
    },
    /// A number of rules beyond the node's limit.
    #[error("the rules of all groups are {rules}; a node takes {limit}")]
    TooManyRules {
        /// How many there are.
        rules: u64,
        /// How many there may be.
        limit: u64,
    },
    /// A VM of another VPC.
    #[error("names Vm `{vm}`, which is not in Vpc `{vpc}`")]
    VmElsewhere {
        /// The VM.
        vm: String,
        /// The VPC that is meant.
        vpc: String,
    },
    /// A server of another VPC.
    #[error("names Server `{server}`, which is not in Vpc `{vpc}`")]
    ServerElsewhere {
        /// The server.
        server: String,
        /// The VPC that is meant.
        vpc: String,
    },
    /// A port that no wire has towards the servers.
    #[error("`{port}` is the server side of no wire of the Gateway")]
    NoInlinePair {
        /// The port.
        port: String,
    },
    /// What two objects of the provider edge, or of EVPN, claim.
    #[error("{what} is already taken by {by}")]
    EdgeTaken {
        /// What both claim.
        what: String,
        /// The one that has it.
        by: String,
    },
    /// Kinds that mean nothing in the node's role.
    #[error("role filter serves no {kinds}: delete them, or leave the role")]
    NotServed {
        /// How many of each kind there are.
        kinds: String,
    },
    /// An elastic address that no pool has.
    #[error("{address} lies in no PublicPool")]
    OutsidePools {
        /// The address.
        address: String,
    },
    /// A VM with an address of a pool.
    #[error(
        "{address} lies in PublicPool `{pool}`: a VM has an address of its VPC, and an ElasticIp gives it a public one"
    )]
    PublicAddress {
        /// The address.
        address: String,
        /// The pool.
        pool: String,
    },
    /// A Snat without an address to translate to.
    #[error("names no address to translate to: each one of {pools} is an ElasticIp of a Vm")]
    NoAddressLeft {
        /// Its pools.
        pools: String,
    },
    /// A VPC with two Snats.
    #[error("Vpc `{vpc}` has Snat `{by}`; a VPC has one at most")]
    SecondSnat {
        /// The VPC.
        vpc: String,
        /// The other.
        by: String,
    },
    /// A VM that an elastic address cannot stand for.
    #[error("names Vm `{vm}`, which {why}")]
    VmUnfit {
        /// The VM.
        vm: String,
        /// What is wrong with it.
        why: String,
    },
    /// Warning: nothing leads out.
    #[error("no Gateway has an {family} address in spec.internet.via: nothing can go out")]
    NoWayOut {
        /// IPv4 or IPv6.
        family: &'static str,
    },
    /// Warning: no route leads out.
    #[error("Vpc `{vpc}` has no {family} Route with scope internet: nothing goes out, and who comes in is dropped")]
    NoRouteOut {
        /// The VPC.
        vpc: String,
        /// IPv4 or IPv6.
        family: &'static str,
    },
    /// A prefix that has a route already.
    #[error("{prefix} is already routed by Route `{by}`; a VPC has one route a prefix")]
    PrefixTaken {
        /// The prefix.
        prefix: String,
        /// The other route.
        by: String,
    },
    /// One side of a peering did not agree.
    #[error("Vpc `{vpc}` does not agree: its spec.peerings does not name `{peering}`")]
    NoConsent {
        /// The side that is missing.
        vpc: String,
        /// The peering.
        peering: String,
    },
    /// Both sides of a peering are the same VPC, or a peer route leads into its own VPC.
    #[error("Vpc `{vpc}` cannot be its own peer")]
    SelfPeer {
        /// The VPC.
        vpc: String,
    },
    /// A second peering of the same VPCs.
    #[error("`{a}` and `{b}` are already peered by Peering `{by}`")]
    PairTaken {
        /// One VPC.
        a: String,
        /// The other.
        b: String,
        /// The other peering.
        by: String,
    },
    /// A peer route without a peering.
    #[error("leads from Vpc `{vpc}` to `{peer}`, but no Peering joins them")]
    NoPeering {
        /// VPC of the route.
        vpc: String,
        /// Its target.
        peer: String,
    },
    /// Peer routes that lead back.
    #[error("peer routes loop: a packet to {address} goes {path}")]
    PeerLoop {
        /// An address for which it happens.
        address: String,
        /// The VPCs in order.
        path: String,
    },
    /// Peer routes through more VPCs than a packet may pass.
    #[error("peer routes pass more than {} VPCs: a packet to {address} goes {path}", abi::PEER_HOPS_MAX)]
    PeerTooDeep {
        /// An address for which it happens.
        address: String,
        /// The VPCs in order.
        path: String,
    },
    /// The search for peer loops was given up.
    #[error("the peer routes around {prefix} are too many to check for loops (more than {limit} steps)")]
    PeerTooComplex {
        /// Where the search began.
        prefix: String,
        /// Steps allowed.
        limit: u32,
    },
    /// Something that others still need.
    #[error("is still used by {by}; delete that first, or in the same change")]
    StillUsed {
        /// By what.
        by: String,
    },
    /// The change would pass a limit.
    #[error("{used} of {limit} {what} are in use; this change needs {over} more than the limit ({field}) allows")]
    LimitExceeded {
        /// What is limited.
        what: &'static str,
        /// The Gateway's field that says so.
        field: &'static str,
        /// In use before the change.
        used: u64,
        /// The limit.
        limit: u64,
        /// By how much it would be passed.
        over: u64,
    },
    /// Warning: a VM that no packet can reach.
    #[error("{address} lies in no local route of Vpc `{vpc}`{}: packets to it will be dropped", other.map_or(String::new(), |o| format!(" but in one of scope {o}")))]
    Unreachable {
        /// The address.
        address: String,
        /// The VPC.
        vpc: String,
        /// Scope of the route that covers it.
        other: Option<&'static str>,
    },
    /// Warning: the node will be no gateway any more.
    #[error(
        "is deleted: the node takes its program off {uplinks} and forwards nothing for {vpcs} VPCs and {vms} VMs \
         until a Gateway is applied again"
    )]
    GatewayGone {
        /// Its uplinks, in words.
        uplinks: String,
        /// VPCs that stay configured.
        vpcs: u64,
        /// VMs that stay configured.
        vms: u64,
    },
    /// Warning: an uplink that the host does not have.
    #[error("names `{name}`, which is not there ({why}); no packet passes it until it appears")]
    NoInterface {
        /// The interface.
        name: String,
        /// What the system says.
        why: String,
    },
    /// Warning: an uplink whose MTU is too small for tunnels.
    #[error(
        "names `{name}`, whose MTU of {mtu} is below {needed}: an inner IPv6 packet of 1280 bytes, which every link must carry, does not fit \
         the tunnel, and its sender hears that the destination is unreachable; raise the MTU, or set `tunnelFragments: on` if every Nc puts \
         fragments together"
    )]
    NarrowInterface {
        /// The interface.
        name: String,
        /// What it carries.
        mtu: u32,
        /// What it should carry.
        needed: u32,
    },
    /// Warning: a VPC agrees to a peering that does not exist.
    #[error("names Peering `{name}`, which does not exist yet")]
    PeeringPending {
        /// The peering.
        name: String,
    },
}

/// One thing that is wrong (or, in a list of warnings, doubtful), with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Where.
    pub place: Place,
    /// Kind of the document, if known.
    pub kind: Option<Kind>,
    /// Name of the document, if known.
    pub name: String,
    /// Path of the field, as `spec.gateway.mac`; empty for the whole document.
    pub field: String,
    /// What is wrong.
    pub problem: Problem,
    /// What is allowed; empty if the problem says it all.
    pub allowed: String,
}

impl ConfigError {
    /// A problem with a whole file.
    pub fn file(file: &str, problem: Problem) -> ConfigError {
        ConfigError {
            place: Place { file: file.into(), line: 0, column: 0 },
            kind: None,
            name: String::new(),
            field: String::new(),
            problem,
            allowed: String::new(),
        }
    }

    /// Leaves [`crate::ERRORS_MAX`] errors at most, and behind them how many more there were.
    pub(crate) fn fold(errors: &mut Vec<ConfigError>) {
        let mut more = 0;
        errors.retain(|e| match e.problem {
            Problem::More(n) => {
                more += n;
                false
            }
            _ => true,
        });
        more += errors.len().saturating_sub(crate::ERRORS_MAX) as u64;
        errors.truncate(crate::ERRORS_MAX);
        if more > 0 {
            errors.push(ConfigError::file("", Problem::More(more)));
        }
    }

    /// How many errors a list tells of.
    pub fn count(errors: &[ConfigError]) -> u64 {
        errors.iter().map(|e| if let Problem::More(n) = e.problem { n } else { 1 }).sum()
    }

    /// As a JSON object.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "file": &*self.place.file,
            "line": self.place.line,
            "column": self.place.column,
            "kind": self.kind.map(Kind::name),
            "name": self.name,
            "field": self.field,
            "problem": self.problem.to_string(),
            "allowed": self.allowed,
        })
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.place.file.is_empty() {
            write!(f, "{}: ", crate::plain(&self.place.to_string()))?;
        }
        if let Some(kind) = self.kind {
            write!(f, "{kind}")?;
            if !self.name.is_empty() {
                write!(f, " {}", crate::plain(&self.name))?;
            }
            f.write_str(": ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{} ", crate::plain(&self.field))?;
            if !reads_on(&self.problem) {
                f.write_str("- ")?;
            }
        }
        write!(f, "{}", self.problem)?;
        if !self.allowed.is_empty() {
            write!(f, "; allowed: {}", self.allowed)?;
        }
        Ok(())
    }
}

/// Whether the problem's sentence has the field as its subject.
fn reads_on(problem: &Problem) -> bool {
    let text = problem.to_string();
    ["is ", "names ", "cannot be ", "cannot change", "does not exist", "leads "].iter().any(|p| text.starts_with(p))
}

impl std::error::Error for ConfigError {}
