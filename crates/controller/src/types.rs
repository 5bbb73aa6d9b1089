// SPDX-License-Identifier: Apache-2.0
//! What the controller's API speaks beside documents and what a node's API speaks too.

pub use controller_core::credentials::{Credential, Sort};
pub use controller_core::fleet::NodeView;
pub use controller_core::samples::Sample;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `GET /v1/status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Name of the region.
    pub region: String,
    /// What names it, whatever it is called.
    pub id: String,
    /// Version of the controller.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// The revision of the last change.
    pub revision: u64,
    /// Objects by kind.
    pub objects: BTreeMap<String, u64>,
    /// Nodes by how they stand.
    pub nodes: BTreeMap<String, u64>,
    /// Of several controllers, the one that leads; empty: nobody does now, or there is one alone.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub leader: String,
    /// Of several controllers: how old what this one knows may be, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
}

/// `GET /v1/me`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Me {
    /// Name of the region.
    pub region: String,
    /// Version of the controller.
    pub version: String,
    /// The Role.
    pub role: String,
    /// What it may do.
    pub access: String,
    /// Whose objects it sees, of a tenant.
    pub tenant: String,
    /// Which node it is, of a node.
    pub node: String,
}

/// `GET /v1/levels`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LevelsView {
    /// Above it a cluster takes no new tenant.
    pub closed: f64,
    /// What nothing may exceed.
    pub full: f64,
    /// What was measured, the oldest first.
    pub samples: Vec<Sample>,
}

/// One of `GET /v1/reasons`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reason {
    /// Name.
    pub name: String,
    /// The stage that decides it.
    pub stage: String,
    /// What happened.
    pub meaning: String,
    /// What to do.
    pub advice: String,
}

/// `POST /v1/credentials`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewCredential {
    /// The Role that it is for.
    pub role: String,
    /// Token or certificate.
    pub sort: Sort,
    /// Days that it is good for.
    pub days: u32,
}

/// A credential with its secret, which nobody can have again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Made {
    /// What is kept of it.
    #[serde(flatten)]
    pub credential: Credential,
    /// The token.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub token: String,
    /// The certificate.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub certificate: String,
    /// Its key.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
}

/// `GET /v1/describe/KIND/NAME`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Description {
    /// The object.
    pub object: serde_json::Value,
    /// The revision at which it changed last.
    pub revision: u64,
    /// The nodes that should have it.
    pub nodes: Vec<OnNode>,
    /// Of a Node: how it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Box<NodeView>>,
}

/// An object on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OnNode {
    /// The node.
    pub node: String,
    /// Its cluster.
    pub cluster: String,
    /// A node that has installed this revision has the object as it is.
    pub since: u64,
    /// The revision that the node has installed.
    pub installed: u64,
    /// The revision up to which it has found all in its tables.
    pub verified: u64,
    /// `verified`, `installed`, or why not: how the node stands.
    pub state: String,
}

/// A line of `GET /v1/watch`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WatchLine {
    /// The revision of the change.
    pub revision: u64,
    /// `put` or `delete`.
    pub action: String,
    /// Kind of the object.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The object as it is now, or as it was before it went.
    pub object: serde_json::Value,
}
