// SPDX-License-Identifier: Apache-2.0
//! The state on disk, and making the tables say what it says.

use crate::error::NodeError;
use config::{Documents, Model, SnapshotError, Store, StoreError};
use std::path::Path;
use std::thread::JoinHandle;

fn refused(error: StoreError) -> NodeError {
    match error {
        StoreError::Locked(dir) => NodeError::Locked(dir),
        other => NodeError::State(other.to_string()),
    }
}

/// The state on disk, with its compaction in a thread of its own.
pub struct Persist {
    store: Store,
    compaction: Option<JoinHandle<Result<u64, StoreError>>>,
}

impl Persist {
    /// Opens or makes the state in a folder. Returns what an operator should know, too.
    pub fn open(dir: &Path) -> Result<(Self, Model, Vec<String>), NodeError> {
        let (store, model, opened) = Store::open(dir).map_err(refused)?;
        Ok((Self { store, compaction: None }, model, opened.notes))
    }

    /// Makes a change durable that `model` has already taken, before it is published.
    pub fn record(&mut self, docs: &Documents, replace: bool, model: &Model) -> Result<(), NodeError> {
        let number = if replace { self.store.replace(model) } else { self.store.append(docs, model) };
        number.map(drop).map_err(refused)
    }

    /// The tables refused the last change: it never happened. `model` is the one without it.
    pub fn withdraw(&mut self, model: &Model) -> Result<(), NodeError> {
        self.store.abort(1, model).map_err(refused)
    }

    /// Compacts the journal in the background, if that pays.
    pub fn tidy(&mut self) {
        if let Some(done) = self.compaction.take_if(|c| c.is_finished()) {
            match done.join() {
                Ok(Ok(bytes)) => self.store.end_compaction(bytes),
                Ok(Err(e)) => tracing::warn!("the journal could not be compacted, and goes on growing: {e}"),
                Err(_) => tracing::error!("compacting the journal failed; please report it"),
            }
        }
        if self.compaction.is_none() && self.store.compaction_due() {
            match self.store.begin_compaction() {
                Ok(job) => {
                    let spawned = std::thread::Builder::new().name("tunny-compact".into()).spawn(move || job.run());
                    self.compaction = spawned.ok();
                }
                Err(e) => tracing::warn!("the journal could not be compacted, and goes on growing: {e}"),
            }
        }
    }
}

/// The model in a binary snapshot; `None` if the content is none.
pub fn snapshot(content: &[u8]) -> Option<Result<Model, NodeError>> {
    match Model::from_snapshot(content) {
        Err(SnapshotError::NotASnapshot) => None,
        Err(other) => Some(Err(NodeError::Request(other.to_string()))),
        Ok((model, _)) => Some(Ok(model)),
    }
}

/// The limits of the tables that a configuration asks for.
pub fn limits(model: &Model) -> tables::Limits {
    let config::Limits { vpcs, routes, vms, ncs, .. } = model.limits();
    tables::Limits { tenants: vpcs, routes: u64::from(routes), vms, ncs, ..Default::default() }
}
