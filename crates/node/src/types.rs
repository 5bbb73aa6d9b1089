// SPDX-License-Identifier: Apache-2.0
//! What the node's API speaks: plain JSON structures, the same on both sides of the socket.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An error as the API reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// One sentence an error, each with its place where there is one.
    pub errors: Vec<String>,
    /// `outdated`: the plan was made for another configuration. Else absent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub code: String,
}

/// [`ErrorBody::code`] of a change that was planned for another configuration.
pub const OUTDATED: &str = "outdated";

/// `GET /v1/status`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Instance name.
    pub instance: String,
    /// What names the state on disk; none: nothing is kept.
    #[serde(default)]
    pub state: Option<String>,
    /// Version of the binary.
    pub version: String,
    /// Hash of the table layouts.
    pub layout: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// `xdp`, `user` or `none`.
    pub engine: String,
    /// Said aloud when the node runs with less than it could.
    pub warnings: Vec<String>,
    /// The uplinks and how each is served.
    pub uplinks: Vec<Uplink>,
    /// Software workers.
    pub workers: u32,
    /// The present generation of the configuration, as `/v1/history` counts them.
    pub generation: u64,
    /// The controller that it follows, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerView>,
    /// Commits since the tables were created.
    #[serde(default)]
    pub table_commits: u64,
    /// Whether this process took over tables that were already forwarding.
    pub took_over: bool,
    /// How the last start went, in order.
    pub startup: Vec<Step>,
    /// Longest and latest commit.
    pub commits: CommitTimes,
}

/// A controller, as a node that follows it sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerView {
    /// Where it is.
    pub url: String,
    /// The node's name there.
    pub node: String,
    /// Its cluster.
    pub cluster: String,
    /// The revision that is in force here.
    pub revision: u64,
    /// The revision up to which all that is in force was found in the tables.
    pub verified: u64,
    /// What is not there as it is configured.
    pub faults: Vec<String>,
    /// Something was changed here by hand.
    pub drift: bool,
    /// Whether it is there now.
    pub connected: bool,
    /// Why it is not.
    pub trouble: String,
    /// Why the next revision is not in force.
    pub errors: Vec<String>,
    /// Whether the region admits it, by its probes; none: it makes none.
    #[serde(default)]
    pub admission: Option<bool>,
    /// Why not.
    #[serde(default)]
    pub why: String,
}

/// One step of the start-up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// What was done.
    pub what: String,
    /// How long it took.
    pub seconds: f64,
}

/// How long commits took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CommitTimes {
    /// Number.
    pub count: u64,
    /// Seconds of all.
    pub total_s: f64,
    /// Seconds of the latest.
    pub last_s: f64,
    /// Seconds of the longest.
    pub max_s: f64,
    /// Refused.
    pub refused: u64,
}

/// One uplink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uplink {
    /// Interface name.
    pub name: String,
    /// Interface index.
    pub ifindex: u32,
    /// `native`, `generic`, `user` or `none`.
    pub mode: String,
    /// Receive queues served.
    pub queues: u32,
    /// MTU.
    pub mtu: u32,
    /// Whether the link is up.
    pub up: bool,
}

/// Counters of one engine, or of all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineCounters {
    /// Packets taken in.
    pub rx: u64,
    /// Bytes taken in.
    pub rx_bytes: u64,
    /// Packets generated.
    pub generated: u64,
    /// Packets sent on.
    pub forwarded: u64,
    /// Bytes sent on.
    pub forwarded_bytes: u64,
    /// Packets answered.
    pub answered: u64,
    /// Packets left to the host.
    pub passed: u64,
    /// Packets dropped.
    pub dropped: u64,
    /// Packets handed to the software path.
    pub punted: u64,
    /// Packets to or from the Internet, of those sent on.
    #[serde(default)]
    pub nat: u64,
    /// Packets that the flow cache sent on, of those sent on.
    #[serde(default)]
    pub flow_hits: u64,
    /// Flows noted in the flow cache.
    #[serde(default)]
    pub flow_fills: u64,
    /// Flows that gave their place in it to another one.
    #[serde(default)]
    pub flow_evictions: u64,
    /// Drops by reason name.
    pub drops: BTreeMap<String, u64>,
    /// Punts by reason name.
    pub punts: BTreeMap<String, u64>,
}

/// The conservation law: in + generated = forwarded + answered + passed + dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Balance {
    /// Whether the law holds.
    pub balanced: bool,
    /// In + generated − outcomes − in flight; 0 when the node is idle.
    pub difference: i64,
    /// Punted packets that the software path has not taken in yet.
    pub in_flight: i64,
}

/// Counters of one VPC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantCounters {
    /// VNI.
    pub vni: u32,
    /// Name of the VPC, if it is configured.
    pub vpc: String,
    /// Packets accepted from this VPC.
    pub packets: u64,
    /// Bytes of their inner frames.
    pub bytes: u64,
    /// Packets handed to the software path.
    #[serde(default)]
    pub punts: u64,
    /// Packets that were to be, and were dropped by the meters (`punt_limited`).
    #[serde(default)]
    pub punts_limited: u64,
    /// Of its packets those that the fast path handed over because they are served in software.
    #[serde(default)]
    pub software: u64,
    /// Packets that the VPC's own meter (`spec.meter`) found green, yellow and red; nothing without one.
    #[serde(default)]
    pub meter: [u64; 3],
    /// Drops by reason name.
    pub drops: BTreeMap<String, u64>,
}

/// Counters of one slot: a CPU for the fast path, a worker for the software path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotCounters {
    /// `cpu0` … or `worker0` …
    pub name: String,
    /// Packets taken in.
    pub rx: u64,
    /// Packets sent on.
    pub forwarded: u64,
    /// Packets dropped.
    pub dropped: u64,
}

/// `GET /v1/counters`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// CLOCK_MONOTONIC ns of the reading.
    pub time_ns: u64,
    /// Both engines together: a packet that the fast path punts is counted once, by its outcome.
    pub total: EngineCounters,
    /// The fast path.
    pub fast: EngineCounters,
    /// The software path.
    pub software: EngineCounters,
    /// Whether every packet is accounted for.
    pub balance: Balance,
    /// By VPC, in order of VNI.
    pub tenants: Vec<TenantCounters>,
    /// Drops of customers at edge ports for which no VPC can be charged, as the frame does not name an overlay of theirs.
    #[serde(default)]
    pub customers: Vec<CustomerDrops>,
    /// By CPU and worker.
    pub slots: Vec<SlotCounters>,
    /// Drops that found no room in the table of drop counters (still counted by reason).
    pub drop_overflow: u64,
}

/// What a customer sent by an edge port that names no overlay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CustomerDrops {
    /// `spec.number` of the EdgePort.
    pub port: u8,
    /// The customer's tag.
    pub customer: u16,
    /// Packets by reason.
    pub drops: BTreeMap<String, u64>,
}

/// One VM's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VmCounters {
    /// Name of the VM.
    pub vm: String,
    /// Packets delivered.
    pub packets: u64,
    /// Bytes of their inner frames.
    pub bytes: u64,
}

/// How the last line of a listing begins.
pub const LIST_END: &[u8] = b"{\"end\":";

/// The last line of a listing, as `{"end": …}`: a listing without it was cut off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ListEnd {
    /// Objects listed.
    pub count: u64,
    /// The limit ended it, and this is where to `continue`, or `-` where a listing has no such place; else empty.
    #[serde(rename = "continue")]
    pub rest: String,
    /// Why it is incomplete; else empty.
    pub error: String,
}

/// How full something with a limit is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Level {
    /// What.
    pub name: String,
    /// In use.
    pub used: u64,
    /// Limit.
    pub limit: u64,
    /// Share in percent.
    pub percent: f64,
    /// Of the flow cache: what it did since counting began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_cache: Option<FlowCacheUse>,
}

/// What the flow cache does: since counting began, or in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowCacheUse {
    /// Share of the packets taken in that it sent on, in percent.
    pub hit_percent: f64,
    /// Flows noted.
    pub fills: f64,
    /// Flows that gave their place to another one.
    pub evictions: f64,
}

/// One next hop of the underlay as the tables have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbour {
    /// Next hop address.
    pub address: String,
    /// Interface name.
    pub interface: String,
    /// MAC address, empty while it is not known.
    pub mac: String,
    /// Source MAC.
    pub source_mac: String,
    /// MTU of the port.
    pub mtu: u32,
    /// Whether packets can go there.
    pub ready: bool,
    /// NCs that it leads to.
    pub ncs: u64,
}

/// Rates of one VPC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TenantRate {
    /// VNI.
    pub vni: u32,
    /// Name of the VPC.
    pub vpc: String,
    /// Packets a second accepted.
    pub pps: f64,
    /// Bits a second of inner frames.
    pub bps: f64,
    /// Drops a second.
    pub drops: f64,
}

/// Load of one CPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoreLoad {
    /// CPU number.
    pub cpu: u32,
    /// Percent of the time not idle.
    pub busy: f64,
    /// Percent of the time in softirq, where XDP runs.
    pub softirq: f64,
    /// Packets a second that the fast path took in on this CPU.
    pub pps: f64,
}

/// One of the heaviest flows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// VNI.
    pub vni: u32,
    /// Inner source, with port.
    pub source: String,
    /// Inner destination, with port.
    pub destination: String,
    /// Protocol.
    pub protocol: String,
    /// Packets a second, estimated from the samples.
    pub pps: f64,
    /// Bits a second, estimated from the samples.
    pub bps: f64,
    /// Samples that the estimate rests on.
    pub samples: u64,
}

/// `GET /v1/top`: what happened in a window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Top {
    /// Length of the window.
    pub seconds: f64,
    /// Engine.
    pub engine: String,
    /// Packets a second taken in.
    pub rx_pps: f64,
    /// Bits a second taken in.
    pub rx_bps: f64,
    /// Packets a second sent on.
    pub forwarded_pps: f64,
    /// Packets a second dropped.
    pub dropped_pps: f64,
    /// Packets a second punted.
    pub punted_pps: f64,
    /// Share of the packets that the fast path finished, in percent.
    pub fast_share: f64,
    /// The flow cache, a second.
    #[serde(default)]
    pub flow_cache: FlowCacheUse,
    /// Drops a second by reason.
    pub drops: BTreeMap<String, f64>,
    /// Punts a second by reason.
    pub punts: BTreeMap<String, f64>,
    /// The busiest VPCs.
    pub tenants: Vec<TenantRate>,
    /// CPUs.
    pub cores: Vec<CoreLoad>,
    /// The heaviest flows.
    pub flows: Vec<Flow>,
    /// Samples taken in the window.
    pub samples: u64,
    /// Water levels.
    pub levels: Vec<Level>,
    /// Whether the conservation law holds.
    pub balanced: bool,
}

/// `GET /v1/history`: one generation of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// What made it.
    #[serde(flatten)]
    pub event: crate::audit::Event,
    /// Whether `tunny rollback` can go back to it.
    pub kept: bool,
    /// Whether it is the present one.
    pub present: bool,
}

/// `POST /v1/apply`: what was, or would be, done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ApplyReport {
    /// The plan for programs: `changes`, `more`, `counts`, `warnings`, `moreWarnings`.
    pub plan: serde_json::Value,
    /// The plan for people.
    pub text: String,
    /// Whether nothing changes.
    pub empty: bool,
    /// Objects that the plan deletes.
    #[serde(default)]
    pub deletes: u64,
    /// Objects before the change.
    #[serde(default)]
    pub objects: u64,
    /// Whether so many go that `deletes` must be given with the change.
    #[serde(default)]
    pub asks_deletes: bool,
    /// The configuration that the plan is for; given back as `base`, it makes sure that the plan shown is the one committed.
    #[serde(default)]
    pub base: String,
    /// Whether it was committed.
    pub committed: bool,
    /// Number of the configuration: of the change, if it was committed.
    pub generation: u64,
    /// Seconds of reading the documents.
    pub parse_s: f64,
    /// Seconds of validation and planning.
    pub plan_s: f64,
    /// Seconds until the journal was on disk.
    pub journal_s: f64,
    /// Seconds until packets saw it.
    pub commit_s: f64,
}
