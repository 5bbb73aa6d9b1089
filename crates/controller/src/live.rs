// SPDX-License-Identifier: Apache-2.0
//! `GET /v1/live`: how the region stands, and a line whenever that changes: what of it has changed. For who looks on; changes of
//! objects are in `GET /v1/watch`.

use crate::authenticate::Grant;
use crate::service::{Caller, Controller};
use controller_core::fleet::NodeView;
use controller_core::samples::Sample;
use node::audit::Event;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch::Receiver;

/// So long after a line nothing is told, so that many changes are one line.
const PAUSE: Duration = Duration::from_millis(250);
/// So often it looks by itself: a node that is silent tells nothing of it.
const LOOK: Duration = Duration::from_secs(2);
/// Looks after which a line without words shows that the stream is alive.
const ALIVE: u32 = 5;
/// Events that are told at the beginning.
const EVENTS: usize = 100;

/// A line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LiveLine {
    /// Revision of the region.
    pub revision: u64,
    /// Objects by kind.
    pub objects: BTreeMap<String, u64>,
    /// Nodes that stand otherwise than before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeView>,
    /// Nodes that there are no more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<String>,
    /// What has happened since.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
    /// New water levels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<Sample>,
}

/// A stream that runs.
pub struct Live {
    controller: Arc<Controller>,
    grant: Grant,
    news: Receiver<u64>,
    words: Receiver<u64>,
    told: LiveLine,
    nodes: BTreeMap<String, NodeView>,
    last_event: Option<Event>,
    last_sample: u64,
    begun: bool,
}

/// Begins one.
pub fn begin(controller: &Arc<Controller>, caller: &Caller) -> Live {
    Live {
        controller: controller.clone(),
        grant: Grant::of(controller, caller),
        news: controller.wakes.region(),
        words: controller.wakes.words(),
        told: LiveLine::default(),
        nodes: BTreeMap::new(),
        last_event: None,
        last_sample: 0,
        begun: false,
    }
}

impl Live {
    /// The next line. `None`: it has ended.
    pub async fn next(mut self) -> Option<(Vec<u8>, Live)> {
        let mut quiet = 0;
        if self.begun {
            tokio::time::sleep(PAUSE).await;
        }
        loop {
            self.news.mark_unchanged();
            self.words.mark_unchanged();
            let (line, live) = tokio::task::spawn_blocking(move || (self.line(), self)).await.ok()?;
            self = live;
            if let Some(text) = line? {
                self.begun = true;
                return Some((text, self));
            }
            match tokio::time::timeout(LOOK, crate::wakes::either(&mut self.news, &mut self.words)).await {
                Ok(Err(_)) => return None,
                Ok(Ok(())) => tokio::time::sleep(PAUSE).await,
                Err(_) => quiet += 1,
            }
            if quiet >= ALIVE {
                return Some((b"\n".to_vec(), self));
            }
        }
    }

    /// What has changed: none, nothing (`Some(None)`), or a line.
    fn line(&mut self) -> Option<Option<Vec<u8>>> {
        if !self.grant.holds(&self.controller) {
            return None;
        }
        let status = self.controller.status();
        let mut line = LiveLine { revision: status.revision, objects: status.objects, ..LiveLine::default() };
        let news = (line.revision, &line.objects) != (self.told.revision, &self.told.objects);
        self.told = line.clone();
        let nodes = self.controller.core().overviews();
        let now: BTreeMap<String, NodeView> = nodes.into_iter().map(|n| (n.name.clone(), n)).collect();
        line.gone = self.nodes.keys().filter(|name| !now.contains_key(*name)).cloned().collect();
        line.nodes = now.values().filter(|n| self.nodes.get(&n.name) != Some(n)).cloned().collect();
        self.nodes = now;
        line.events = self.events();
        line.sample = self.controller.last_sample().filter(|s| s.time_ms > self.last_sample);
        self.last_sample = line.sample.as_ref().map_or(self.last_sample, |s| s.time_ms);
        let quiet = line.nodes.is_empty() && line.gone.is_empty() && line.events.is_empty() && line.sample.is_none();
        if !news && quiet {
            return Some(None);
        }
        let mut text = serde_json::to_vec(&line).ok()?;
        text.push(b'\n');
        Some(Some(text))
    }

    fn events(&mut self) -> Vec<Event> {
        let mut events = self.controller.audit.events(EVENTS);
        let known = self.last_event.as_ref().and_then(|last| events.iter().rposition(|e| e == last));
        events.drain(..known.map_or(0, |at| at + 1));
        self.last_event = events.last().cloned().or(self.last_event.take());
        events
    }
}
