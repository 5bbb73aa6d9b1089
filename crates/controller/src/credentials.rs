// SPDX-License-Identifier: Apache-2.0
//! Making, listing and revoking credentials.

use crate::keys;
use crate::pki::Pki;
use crate::refusal::Refusal;
use crate::service::{now_ms, Controller};
use crate::store::{end_of, Compare, Outcome, Revision, Store, Write};
use crate::types::{Made, NewCredential};
use controller_core::credentials::{hash, token, Credential, Sort, DAYS_MAX};

/// Entries that are read at once.
const PAGE: usize = 1000;

/// Random bytes of the system.
pub fn random() -> Result<[u8; 32], Refusal> {
    let mut bytes = [0; 32];
    let provider = rustls::crypto::ring::default_provider();
    provider.secure_random.fill(&mut bytes).map_err(|_| Refusal::Failed)?;
    Ok(bytes)
}

/// A name that nothing else has.
pub fn new_name() -> Result<String, Refusal> {
    Ok(random()?[..8].iter().map(|b| format!("{b:02x}")).collect())
}

/// A credential and what is written for it.
pub fn make(pki: &Pki, wanted: &NewCredential, now_ms: u64) -> Result<(Made, Write), Refusal> {
    if !(1..=DAYS_MAX).contains(&wanted.days) {
        return Err(Refusal::Wrong(vec![format!("days: {} is out of range; allowed: 1 to {DAYS_MAX}", wanted.days)]));
    }
    let failed = |why: String| {
        tracing::error!("{why}");
        Refusal::Failed
    };
    let (mut words, certificate) = match wanted.sort {
        Sort::Token => (token(&random()?), None),
        Sort::Certificate => (String::new(), Some(pki.client(&wanted.role, wanted.days).map_err(failed)?)),
    };
    let secret = certificate.as_ref().map_or(words.as_bytes(), |c| &c.der);
    let hash = hash(secret);
    let credential = Credential::new(&hash, &wanted.role, wanted.sort, now_ms, wanted.days);
    let record = serde_json::to_vec(&credential).map_err(|_| Refusal::Failed)?;
    let mut made =
        Made { credential, token: std::mem::take(&mut words), certificate: String::new(), key: String::new() };
    if let Some(issued) = certificate {
        (made.certificate, made.key) = (issued.certificate, issued.key);
    }
    Ok((made, Write::Put(keys::credential(&hash), record)))
}

/// Makes a credential that counts from now on.
pub fn create(controller: &Controller, wanted: &NewCredential) -> Result<Made, Refusal> {
    let (made, write) = make(&controller.pki, wanted, now_ms())?;
    let hash = keys::credential_of(write.key()).ok_or(Refusal::Failed)?.to_string();
    if let Outcome::Written(revision) = controller.store.txn(&[], &[write])? {
        let mut core = controller.core();
        core.region.passed(revision);
        core.credentials.insert(hash, made.credential.clone());
    }
    Ok(made)
}

/// All records, by their ids.
pub fn list(store: &dyn Store) -> Result<Vec<Credential>, Refusal> {
    let (mut from, end) = (keys::CREDENTIALS.as_bytes().to_vec(), end_of(keys::CREDENTIALS.as_bytes()));
    let mut list = Vec::new();
    loop {
        let page = store.range(&from, &end, PAGE)?;
        list.extend(page.entries.iter().filter_map(|e| serde_json::from_slice::<Credential>(&e.value).ok()));
        match page.entries.last().filter(|_| page.more) {
            Some(last) => from = [last.key.as_slice(), &[0]].concat(),
            None => return Ok(list),
        }
    }
}

/// Deletes the record of an id: from then on it opens nothing. The record with its hash, and the revision.
pub fn revoke(store: &dyn Store, id: &str) -> Result<(Credential, String, Revision), Refusal> {
    let absent = || {
        Refusal::Absent(format!(
            "there is no credential `{}`; `tunny credential list` has those that there are",
            model::plain(id)
        ))
    };
    if id.len() < 12 || !id.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(absent());
    }
    let prefix = keys::credential(id);
    let page = store.range(&prefix, &end_of(&prefix), 2)?;
    let [entry] = page.entries.as_slice() else { return Err(absent()) };
    let credential = serde_json::from_slice(&entry.value).map_err(|_| Refusal::Failed)?;
    match store.txn(&[Compare::Unchanged(entry.key.clone(), entry.changed)], &[Write::Delete(entry.key.clone())])? {
        Outcome::Written(revision) => {
            let hash = String::from_utf8_lossy(&entry.key[keys::CREDENTIALS.len()..]).into();
            Ok((credential, hash, revision))
        }
        Outcome::Conflict(_) => Err(absent()),
    }
}
