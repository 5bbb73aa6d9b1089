// SPDX-License-Identifier: Apache-2.0
//! `GET /v1/stream`: what a node follows. First who is who, then either the changes behind the revision that the node holds or, where these
//! are no longer kept, everything; then each change as it comes. The next piece is made when the node has taken the one before.

use crate::authenticate::Grant;
use crate::refusal::Refusal;
use crate::service::{now_ms, Caller, Controller};
use controller_core::feed::Gone;
use controller_core::follower::{Claim, Follower, Piece};
use model::Name;
use node::distribution::{Message, ALIVE_S, PROTOCOL};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch::Receiver;

/// Where the node is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StreamQuery {
    /// The messages that it understands.
    pub protocol: u32,
    /// The revision that it holds.
    pub from: u64,
    /// It was changed by hand.
    pub drift: bool,
    /// The region that it belonged to.
    pub region: String,
    /// The cluster that it belonged to.
    pub cluster: String,
}

/// A stream to a node.
pub struct Stream {
    controller: Arc<Controller>,
    grant: Grant,
    node: Name,
    follower: Follower,
    hello: bool,
    /// Whether the node is admitted, as it was told.
    told: Option<(bool, String)>,
    /// What the node was told of where VPCs are served.
    paths: Option<u64>,
    /// What the node was told of what its VPCs have learned.
    learned: u64,
    news: Receiver<u64>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.controller.core().fleet.left(&self.node, now_ms());
        self.controller.wakes.said();
    }
}

/// Begins a stream.
pub fn begin(controller: &Arc<Controller>, caller: &Caller, query: &StreamQuery) -> Result<Stream, Refusal> {
    if query.protocol != PROTOCOL {
        return Err(Refusal::Wrong(vec![format!(
            "the node speaks version {} of the messages and this controller version {PROTOCOL}: bring both to one version of tunny",
            query.protocol
        )]));
    }
    let Some(node) = caller.principal.node.clone() else { return Err(Refusal::Failed) };
    let mut core = controller.core();
    let cluster = core.region.cluster_of(&node);
    let cluster = cluster.ok_or_else(|| Refusal::Forbidden(format!("there is no Node `{node}` any more")))?;
    let news = controller.wakes.cluster(&cluster);
    let held = Claim { history: &query.region, cluster: &query.cluster, revision: query.from, drift: query.drift };
    let follower = Follower::new(&core.region, controller.history(), &cluster, held);
    let returns = core.fleet.came(&node, &caller.from, now_ms());
    drop(core);
    controller.wakes.said();
    if returns {
        // Hosts are told of it no more.
        controller.wakes.changed([]);
    }
    let grant = Grant::of(controller, caller);
    Ok(Stream {
        controller: controller.clone(),
        grant,
        node,
        follower,
        hello: false,
        told: None,
        paths: None,
        learned: 0,
        news,
    })
}

impl Stream {
    /// The next piece. `None`: the node must call again, or not at all.
    pub async fn next(mut self) -> Option<(Vec<u8>, Stream)> {
        loop {
            self.news.mark_unchanged();
            let (piece, stream) = tokio::task::spawn_blocking(move || (self.piece(), self)).await.ok()?;
            self = stream;
            match piece {
                Err(Gone) => return None,
                Ok(Some(piece)) => return Some((piece, self)),
                Ok(None) => {}
            }
            match tokio::time::timeout(Duration::from_secs(ALIVE_S), self.news.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return None,
                Err(_) => {
                    let (opens, stream) =
                        tokio::task::spawn_blocking(move || (self.grant.opens(&self.controller), self)).await.ok()?;
                    return opens.then(|| (Message::Alive {}.line().into_bytes(), stream));
                }
            }
        }
    }

    fn piece(&mut self) -> Result<Option<Vec<u8>>, Gone> {
        if !self.grant.holds(&self.controller) {
            return Err(Gone);
        }
        if self.controller.replica.as_ref().is_some_and(|replica| replica.follows()) {
            // Its reports belong to whoever leads now.
            return Err(Gone);
        }
        let mut core = self.controller.core();
        if core.region.cluster_of(&self.node).as_ref() != Some(self.follower.cluster()) {
            return Err(Gone);
        }
        if !self.hello {
            self.hello = true;
            let (region, node, cluster) =
                (self.controller.history().to_string(), self.node.to_string(), self.follower.cluster().to_string());
            return Ok(Some(Message::Hello { region, node, cluster }.line().into_bytes()));
        }
        let admission = core.fleet.admission(&self.node);
        if let Some((admitted, why)) = admission.filter(|admission| self.told.as_ref() != Some(admission)) {
            self.told = Some((admitted, why.clone()));
            return Ok(Some(Message::Admission { admitted, why }.line().into_bytes()));
        }
        let (version, paths) = core.served.told(self.follower.cluster());
        if self.paths != Some(version) && !self.follower.takes_everything() {
            self.paths = Some(version);
            return Ok(Some(Message::Paths(paths).line().into_bytes()));
        }
        let learned = || self.controller.evpn.learned(self.follower.cluster(), self.learned);
        if let Some((version, learned)) = (!self.follower.takes_everything()).then(learned).flatten() {
            self.learned = version;
            return Ok(Some(Message::Learned(learned).line().into_bytes()));
        }
        let anew = !self.follower.takes_everything() && core.resync.remove(&self.node);
        let piece = self.follower.piece(&core.region, anew)?;
        drop(core);
        Ok(piece.map(Piece::bytes))
    }
}
