// SPDX-License-Identifier: Apache-2.0
//! `tunny controller init`: a folder with a CA, a store with a Region and its first operator, credentials of that operator, and a file
//! with which the controller starts. The folder is made whole or not at all.

use crate::config::{Config, FILE};
use crate::pki::{self, Pki};
use crate::refusal::Refusal;
use crate::server::STORE;
use crate::service::now_ms;
use crate::store::embedded::Embedded;
use crate::store::etcd::{Etcd, Fence};
use crate::store::{Compare, Outcome, Store, Write};
use crate::types::NewCredential;
use crate::{credentials, keys, schema};
use controller_core::credentials::Sort;
use model::Documents;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// The Role of the first operator, after which its files are named.
pub const OPERATOR: &str = "operator";

/// Makes the folder of a controller. `days`: how long the first operator's credentials are good for.
pub fn init(folder: &Path, config: &Config, days: u32) -> Result<(), String> {
    let at = |e: std::io::Error| format!("{}: {e}", folder.display());
    match std::fs::read_dir(folder).map(Iterator::count) {
        Ok(0) => {}
        Ok(_) => return Err(format!("{} is not empty: give a folder that is, or does not exist", folder.display())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(at(e)),
    }
    let parent = folder.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = folder.file_name().ok_or_else(|| format!("{} names no folder", folder.display()))?;
    let new = parent.join(format!(".{}.new-{}", name.to_string_lossy(), std::process::id()));
    std::fs::create_dir_all(parent).map_err(at)?;
    std::fs::DirBuilder::new().mode(0o700).create(&new).map_err(at)?;
    let made = fill(&new, config, days).and_then(|()| std::fs::rename(&new, folder).map_err(at));
    if made.is_err() {
        let _ = std::fs::remove_dir_all(&new);
    }
    made
}

fn fill(folder: &Path, config: &Config, days: u32) -> Result<(), String> {
    let write = |name: &str, mode: u32, text: &str| {
        let path = folder.join(name);
        let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&path);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
        written.map_err(|e| format!("{}: {e}", path.display()))
    };
    let (certificate, key) = pki::new_ca(&config.region)?;
    write(pki::CA, 0o644, &certificate)?;
    write(pki::CA_KEY, 0o600, &key)?;
    let pki = Pki::load(folder, &config.region)?;
    // What would not start later is refused now.
    pki.server(&config.names)?;
    let store: Box<dyn Store> = match &config.store {
        None => Box::new(Embedded::open(&folder.join(STORE)).map_err(|e| e.to_string())?),
        Some(shared) => Box::new(Etcd::open(&shared.etcd, folder, Fence::Open).map_err(|e| e.to_string())?),
    };
    let why = |refusal: Refusal| refusal.sentences().join("; ");
    let id = credentials::new_name().map_err(why)?;
    let mut writes = vec![
        Write::Put(keys::SCHEMA.into(), schema::NOW.to_string().into_bytes()),
        Write::Put(keys::ID.into(), id.clone().into_bytes()),
        Write::Put(keys::HISTORY.into(), id.into_bytes()),
    ];
    writes.extend(objects(&config.region)?);
    for sort in [Sort::Certificate, Sort::Token] {
        let wanted = NewCredential { role: OPERATOR.into(), sort, days };
        let (made, record) = credentials::make(&pki, &wanted, now_ms()).map_err(why)?;
        writes.push(record);
        let files = [("crt", 0o644, made.certificate), ("key", 0o600, made.key), ("token", 0o600, made.token)];
        for (end, mode, text) in files.into_iter().filter(|(_, _, text)| !text.is_empty()) {
            write(&format!("{OPERATOR}.{end}"), mode, &(text.trim_end().to_string() + "\n"))?;
        }
    }
    match store.txn(&[Compare::Absent(keys::ID.into())], &writes).map_err(|e| e.to_string())? {
        Outcome::Written(_) => {}
        Outcome::Conflict(_) => return Err("the store is not empty".into()),
    }
    let text = serde_saphyr::to_string(config).map_err(|e| e.to_string())?;
    write(
        FILE,
        0o644,
        &format!("# Made by `tunny controller init`; `tunny controller --config {FILE}` starts it.\n{text}"),
    )
}

/// The first objects: the Region, and a Role that may do everything.
fn objects(region: &str) -> Result<Vec<Write>, String> {
    let text = format!(
        "apiVersion: tunny/v1\nkind: Region\nmetadata: {{name: {region}}}\nspec: {{}}\n---\n\
         apiVersion: tunny/v1\nkind: Role\nmetadata: {{name: {OPERATOR}}}\nspec: {{access: operator}}\n"
    );
    let docs: Documents =
        model::parse_text("init.yaml", &text).map_err(|e| e.first().map_or(String::new(), |e| e.to_string()))?;
    let put = |o: &model::Object| Write::Put(keys::object(o.kind(), &o.name()), o.to_ndjson().into_bytes());
    Ok(docs.puts.iter().map(|item| put(&item.object)).collect())
}
