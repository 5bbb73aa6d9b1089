// SPDX-License-Identifier: Apache-2.0
//! `GET /v1/watch`: each change of an object, a line of JSON each, from a revision on and without an end. Who has fallen behind what the store
//! keeps is told so, at once (410) or by a last line with `error`, and lists anew.

use crate::authenticate::Grant;
use crate::keys;
use crate::refusal::Refusal;
use crate::service::{Caller, Controller};
use crate::store::{Event, Watch};
use crate::types::WatchLine;
use model::Kind;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch::Receiver;

/// Changes that are read at once.
const AT_ONCE: usize = 100;
/// A line without words is sent so often, so that whoever has gone is noticed.
const ALIVE: Duration = Duration::from_secs(10);

/// From where, and what.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WatchQuery {
    /// Changes behind this revision; none: from now on.
    pub after: Option<u64>,
    /// Objects of this kind alone.
    pub kind: String,
}

/// A watch that runs.
pub struct Watching {
    controller: Arc<Controller>,
    grant: Grant,
    kinds: Vec<Kind>,
    watch: Option<Box<dyn Watch>>,
    news: Receiver<u64>,
}

/// Begins to watch.
pub fn begin(controller: &Arc<Controller>, caller: &Caller, query: &WatchQuery) -> Result<Watching, Refusal> {
    let kinds = crate::listing::kinds(if query.kind.is_empty() { "all" } else { &query.kind })?;
    let news = controller.wakes.region();
    let after = query.after.unwrap_or_else(|| controller.core().region.revision());
    let watch = Some(controller.store.watch(after)?);
    let grant = Grant::of(controller, caller);
    Ok(Watching { controller: controller.clone(), grant, kinds, watch, news })
}

impl Watching {
    /// The next lines. `None`: it has ended.
    pub async fn next(mut self) -> Option<(Vec<u8>, Watching)> {
        loop {
            self.watch.as_ref()?;
            self.news.mark_unchanged();
            let (lines, watching) = tokio::task::spawn_blocking(move || (self.read(), self)).await.ok()?;
            self = watching;
            let lines = lines?;
            if !lines.is_empty() {
                return Some((lines, self));
            }
            match tokio::time::timeout(ALIVE, self.news.changed()).await {
                Err(_) => return Some((b"\n".to_vec(), self)),
                Ok(Err(_)) => return None,
                Ok(Ok(())) => {}
            }
        }
    }

    /// What there is at hand. `None`: the credential opens it no more.
    fn read(&mut self) -> Option<Vec<u8>> {
        if !self.grant.holds(&self.controller) {
            return None;
        }
        let mut text = Vec::new();
        for _ in 0..AT_ONCE {
            let Some(watch) = &mut self.watch else { break };
            match watch.next(Duration::ZERO) {
                Ok(None) => break,
                Ok(Some(change)) => {
                    let lines = change.events.iter().filter_map(|event| self.line(change.revision, event));
                    lines.for_each(|line| text.extend_from_slice((line + "\n").as_bytes()));
                }
                Err(e) => {
                    let refusal = Refusal::from(e);
                    text.extend_from_slice(
                        format!("{}\n", json!({"error": refusal.sentences().join("; ")})).as_bytes(),
                    );
                    self.watch = None;
                }
            }
        }
        Some(text)
    }

    fn line(&self, revision: u64, event: &Event) -> Option<String> {
        let (kind, name) = keys::object_of(&event.key).filter(|(kind, _)| self.kinds.contains(kind))?;
        let action = if event.value.is_some() { "put" } else { "delete" };
        let bytes = event.value.as_ref().or(event.before.as_ref())?;
        let who = self.grant.principal();
        if !who.sees_all() {
            let text = std::str::from_utf8(bytes).ok()?;
            let item = model::parse_text("store.ndjson", text).ok()?.puts.pop()?;
            if !who.sees(self.controller.core().region.model(), &item.object) {
                return None;
            }
        }
        let object = serde_json::from_slice(bytes).ok()?;
        let line = WatchLine { revision, action: action.into(), kind: kind.to_string(), name: name.into(), object };
        serde_json::to_string(&line).ok()
    }
}
