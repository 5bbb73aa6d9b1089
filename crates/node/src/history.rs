// SPDX-License-Identifier: Apache-2.0
//! What a node tells of its changes, and the way back: events, history, rollback. What is kept, and how, is in [`crate::audit`].

use crate::audit::{Event, Origin};
use crate::consent::Consent;
use crate::error::NodeError;
use crate::service::{sentences, Change, Node};
use crate::store::Persist;
use crate::types::{ApplyReport, Generation};
use std::path::PathBuf;

impl Node {
    /// Carries out a change, and notes it unless it was a plan alone.
    pub fn audited(
        &self,
        (what, origin): (&str, &Origin),
        consent: &Consent,
        work: impl FnOnce() -> Result<ApplyReport, NodeError>,
    ) -> Result<ApplyReport, NodeError> {
        let result = work();
        if !consent.dry_run {
            let generation = self.core.lock().generation();
            self.audit.outcome(what, origin, &result, generation);
        }
        result
    }

    /// `POST /v1/rollback`: the configuration as it was after an earlier change, as a change of its own.
    pub fn rollback(&self, to: u64, consent: &Consent) -> Result<ApplyReport, NodeError> {
        let kept = self.history(0);
        let model = {
            let core = self.core.lock();
            let Some(store) = &core.store else {
                return Err(NodeError::Request(
                    "this node keeps no state (--no-state), so there is no earlier configuration to go back to".into(),
                ));
            };
            if !kept.iter().any(|g| g.kept && g.event.generation == to) {
                let range = match (kept.iter().find(|g| g.kept), kept.last()) {
                    (Some(first), Some(last)) => {
                        format!("those of {} to {} are", first.event.generation, last.event.generation)
                    }
                    _ => "none is yet".into(),
                };
                return Err(NodeError::Request(format!("generation {to} is not kept, {range}: see `tunny history`")));
            }
            store.model_at(to)?
        };
        self.change(Change::Everything(model, None), consent)
    }

    /// `GET /v1/events`: the latest, oldest first; 0: all.
    pub fn events(&self, limit: usize) -> Vec<Event> {
        self.audit.events(limit)
    }

    /// `GET /v1/history`: the latest generations that are noted, oldest first; 0: all.
    pub fn history(&self, limit: usize) -> Vec<Generation> {
        let (present, oldest) = {
            let core = self.core.lock();
            (core.generation(), core.store.as_ref().map_or(u64::MAX, Persist::oldest))
        };
        let view = |event: Event| Generation {
            kept: event.generation >= oldest && event.generation > 0,
            present: event.generation == present,
            event,
        };
        self.audit.history(limit).into_iter().map(view).collect()
    }

    /// Applies configuration files as at a start: all of them or none. What is refused is in the log and a warning until it is not.
    pub fn reload(&self, paths: &[PathBuf]) {
        let of = paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ");
        let origin = Origin::node(&format!("SIGHUP, files {of}"));
        let done = self.audited(("reload", &origin), &Consent::none(), || {
            let files = crate::daemon::expand(paths)?;
            let docs = model::parse_files(&files).map_err(sentences)?;
            if docs.is_empty() && !paths.is_empty() {
                return Err(NodeError::Request(
                    "the files hold no document, so there is nothing to apply: give the right files. A reload deletes nothing; `tunny delete` does"
                        .into(),
                ));
            }
            self.apply_documents(&docs, false, &Consent::none())
        });
        *self.unread.lock() = match done {
            _ if paths.is_empty() => {
                tracing::warn!("SIGHUP: this node was started without --config, so there is nothing to reload");
                None
            }
            Ok(report) => {
                tracing::info!("reloaded {of}: {}", report.text.lines().last().unwrap_or_default());
                None
            }
            Err(e) => {
                e.sentences().iter().for_each(|sentence| tracing::error!("reload: {sentence}"));
                tracing::error!("reload: {of}: nothing was changed");
                Some(format!("the last reload of {of} was refused, and nothing was changed: {e}"))
            }
        };
    }
}
