// SPDX-License-Identifier: Apache-2.0
//! The state on disk, and making the tables say what it says.

use crate::claim::Generation;
use crate::error::NodeError;
use ::store::{Store, StoreError};
use model::{Documents, Model, SnapshotError};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

fn refused(error: StoreError) -> NodeError {
    match error {
        StoreError::Locked(dir) => NodeError::Locked(dir),
        StoreError::Io { what, error } if error.kind() == std::io::ErrorKind::PermissionDenied => NodeError::State(format!(
            "{what}: {error}. A node runs as root: start it with sudo, or as a service; or give a --state that this user may write"
        )),
        StoreError::NotKept(_) => NodeError::Request(error.to_string()),
        other => NodeError::State(other.to_string()),
    }
}

/// The state on disk, with its compaction in a thread of its own.
pub struct Persist {
    store: Store,
    compaction: Option<JoinHandle<Result<u64, StoreError>>>,
    id: String,
    /// Why the journal could not be compacted.
    uncompacted: Option<String>,
    /// Whether it was said that no change is taken.
    said: bool,
    healed: Option<Instant>,
    /// What was said of files that were removed or replaced.
    displaced: Option<String>,
    /// Where the tables say which change they hold.
    pins: Option<Generation>,
}

/// Time between two attempts to make the state writable again.
const HEAL: Duration = Duration::from_secs(2);

impl Persist {
    /// Opens or makes the state in a folder. Returns what an operator should know, too.
    pub fn open(dir: &Path) -> Result<(Self, Model, Vec<String>), NodeError> {
        let (store, model, opened) = Store::open_noting(dir, crate::audit::noted_generation(dir)).map_err(refused)?;
        let persist = Self {
            store,
            compaction: None,
            id: opened.id,
            uncompacted: None,
            said: false,
            healed: None,
            displaced: None,
            pins: None,
        };
        Ok((persist, model, opened.notes))
    }

    /// What names this state.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Says from now on beside the tables under `pins` which change they hold.
    pub fn follow_pins(&mut self, pins: &Path) {
        self.pins = Some(Generation::new(pins, self.number()));
    }

    /// Number of the last change.
    pub fn number(&self) -> u64 {
        self.store.number()
    }

    /// The configuration as it was after a change, and the oldest that can be had.
    pub fn model_at(&self, number: u64) -> Result<Model, NodeError> {
        self.store.model_at(number).map_err(refused)
    }

    /// The oldest change number that [`Persist::model_at`] can have.
    pub fn oldest(&self) -> u64 {
        self.store.oldest()
    }

    /// What an operator must know of the disk now.
    pub fn trouble(&self) -> Vec<String> {
        let refuses = self.store.trouble().map(|why| {
            format!("the state on disk cannot be written, so changes are refused; forwarding goes on, and changes are taken again once it can: {why}")
        });
        refuses.into_iter().chain(self.uncompacted.clone()).chain(self.store.displaced().map(String::from)).collect()
    }

    /// Says that no change is taken, or that changes are taken again; tries to bring that about. `model` is what has been acknowledged.
    pub fn tend(&mut self, model: &Model) {
        if self.store.trouble().is_none() && self.store.is_displaced() {
            // Why not is in `trouble`.
            let _ = self.store.heal(model);
        }
        let due = self.healed.is_none_or(|last| last.elapsed() >= HEAL);
        if self.store.trouble().is_some() {
            self.say();
            if due {
                self.healed = Some(Instant::now());
                // Why not is in `trouble`.
                let _ = self.store.heal(model);
            }
        }
        self.say();
    }

    fn say(&mut self) {
        if let Some(what) = self.store.displaced().filter(|what| self.displaced.as_deref() != Some(*what)) {
            tracing::warn!("{what}");
            self.displaced = Some(what.to_string());
        }
        let now = self.store.trouble().is_some();
        match (std::mem::replace(&mut self.said, now), now) {
            (false, true) => self.trouble().first().into_iter().for_each(|why| tracing::warn!("{why}")),
            (true, false) => tracing::info!("the state on disk can be written again: changes are taken"),
            _ => {}
        }
    }

    /// Makes a change durable that `model` has already taken, before it is published.
    pub fn record(&mut self, docs: &Documents, replace: bool, model: &Model) -> Result<(), NodeError> {
        let number = if replace { self.store.replace(model) } else { self.store.append(docs, model) };
        self.say();
        let number = number.map_err(refused)?;
        // Behind the journal and before the tables: what the tables carry is on disk, whenever the process dies.
        if let Some(pins) = &mut self.pins {
            pins.set(number);
        }
        Ok(())
    }

    /// The tables refused the last change: it never happened. `model` is the one without it.
    pub fn withdraw(&mut self, model: &Model) -> Result<(), NodeError> {
        self.store.abort(1, model).map_err(refused)
    }

    /// Compacts the journal in the background, if that pays.
    pub fn tidy(&mut self) {
        if let Some(done) = self.compaction.take_if(|c| c.is_finished()) {
            match done.join() {
                Ok(Ok(bytes)) => {
                    self.store.end_compaction(bytes);
                    self.uncompacted = None;
                }
                Ok(Err(e)) => self.not_compacted(&e),
                Err(_) => tracing::error!("compacting the journal failed; please report it"),
            }
        }
        if self.compaction.is_none() && self.store.compaction_due() {
            match self.store.begin_compaction() {
                Ok(job) => {
                    let spawned = std::thread::Builder::new().name("tunny-compact".into()).spawn(move || job.run());
                    self.compaction = spawned.ok();
                }
                Err(e) => self.not_compacted(&e),
            }
        }
    }

    fn not_compacted(&mut self, e: &StoreError) {
        let what = format!("the journal could not be compacted, and goes on growing: {e}");
        tracing::warn!("{what}");
        self.uncompacted = Some(what);
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
    let model::Limits { vpcs, routes, vms, ncs, .. } = model.limits();
    tables::Limits { tenants: vpcs, routes: u64::from(routes), vms, ncs, ..Default::default() }
}
