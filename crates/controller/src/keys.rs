// SPDX-License-Identifier: Apache-2.0
//! What stands where in the store.

use crate::store::Write;
use controller_core::records::Record;
use model::Kind;

/// What names the region, whatever it is called.
pub const ID: &str = "m/id";
/// What names the history to which revisions belong: that of a restored store is another one.
pub const HISTORY: &str = "m/history";
/// Version of what stands where (`schema`).
pub const SCHEMA: &str = "m/schema";
/// Objects, by kind and name: their documents as lines of JSON.
pub const OBJECTS: &str = "o/";
/// Credentials, by hash.
pub const CREDENTIALS: &str = "c/";
/// Clusters: the revision of the key is that of the cluster's last change.
pub const LATEST: &str = "l/";

/// Where Tenants are that nobody pinned, by name.
pub const PLACED: &str = "p/";

/// Tenants of a cluster that are served fast, as a list, by the cluster's name.
pub const FAST: &str = "f/";

/// The key of the list of a cluster's fast tenants.
pub fn fast(cluster: &str) -> Vec<u8> {
    format!("{FAST}{cluster}").into_bytes()
}

/// The cluster of such a list.
pub fn fast_of(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key).ok()?.strip_prefix(FAST)
}

/// The key of a Tenant's place.
pub fn placement(tenant: &str) -> Vec<u8> {
    format!("{PLACED}{tenant}").into_bytes()
}

/// The Tenant of a place's key.
pub fn placed_of(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key).ok()?.strip_prefix(PLACED)
}

/// The key of an object.
pub fn object(kind: Kind, name: &str) -> Vec<u8> {
    format!("{OBJECTS}{kind}/{name}").into_bytes()
}

/// The object of a key.
pub fn object_of(key: &[u8]) -> Option<(Kind, &str)> {
    let (kind, name) = std::str::from_utf8(key).ok()?.strip_prefix(OBJECTS)?.split_once('/')?;
    Some((Kind::ALL.into_iter().find(|k| k.name() == kind)?, name))
}

/// The key of a credential.
pub fn credential(hash: &str) -> Vec<u8> {
    format!("{CREDENTIALS}{hash}").into_bytes()
}

/// The hash of a credential's key.
pub fn credential_of(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key).ok()?.strip_prefix(CREDENTIALS)
}

/// The key of a cluster.
pub fn latest(cluster: &str) -> Vec<u8> {
    format!("{LATEST}{cluster}").into_bytes()
}

/// What a transaction writes of records.
pub(crate) fn written(records: Vec<Record>) -> Vec<Write> {
    let write = |record: Record| match record {
        Record::Object(kind, name, Some(o)) => Write::Put(object(kind, &name), o.to_ndjson().into_bytes()),
        Record::Object(kind, name, None) => Write::Delete(object(kind, &name)),
        Record::Latest(cluster, true) => Write::Put(latest(&cluster), Vec::new()),
        Record::Latest(cluster, false) => Write::Delete(latest(&cluster)),
        Record::Place(tenant, Some(p)) => Write::Put(placement(&tenant), serde_json::to_vec(&p).unwrap_or_default()),
        Record::Place(tenant, None) => Write::Delete(placement(&tenant)),
    };
    records.into_iter().map(write).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_their_objects() {
        for kind in Kind::ALL {
            assert_eq!(object_of(&object(kind, "a/b")), Some((kind, "a/b")));
        }
        for wrong in ["", "o/Vm", "o/Frob/x", "c/x"] {
            assert_eq!(object_of(wrong.as_bytes()), None);
        }
    }
}
