// SPDX-License-Identifier: Apache-2.0
//! The body of a request that changes the configuration: files one behind the other.

use crate::error::NodeError;
use crate::service::Mode;
use model::{ConfigError, Documents, Kind};

/// Takes a request's frames of (u32 length, name, u64 length, content) apart; numbers are little-endian.
pub(crate) fn frames(body: &[u8]) -> Option<Vec<(String, &[u8])>> {
    let (mut rest, mut list) = (body, Vec::new());
    while !rest.is_empty() {
        let (length, tail) = rest.split_first_chunk::<4>()?;
        let (name, tail) = tail.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let (length, tail) = tail.split_first_chunk::<8>()?;
        let (content, tail) = tail.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        list.push((String::from_utf8_lossy(name).into_owned(), content));
        rest = tail;
    }
    Some(list)
}

/// The documents of a request, and the errors in their texts.
pub fn read_documents(body: &[u8], mode: Mode) -> Result<(Documents, Vec<ConfigError>), NodeError> {
    let cut = || NodeError::Request("the request is cut off; are node and command of one version?".into());
    let (mut docs, mut errors) = (Documents::new(), Vec::new());
    for (name, content) in frames(body).ok_or_else(cut)? {
        if mode != Mode::DeleteNames {
            docs.read_bytes(&name, content, &mut errors);
            continue;
        }
        let names: Vec<(String, String)> = serde_json::from_slice(content).map_err(|_| cut())?;
        for (kind, name) in names {
            docs.delete(Kind::from_name(&kind).ok_or_else(|| crate::listing::unknown_kind(&kind))?, &name);
        }
    }
    Ok((if mode == Mode::Delete { docs.into_deletions() } else { docs }, errors))
}

/// Appends one file to the body of an apply request.
pub fn write_document(body: &mut Vec<u8>, name: &str, content: &[u8]) {
    body.extend_from_slice(&(name.len() as u32).to_le_bytes());
    body.extend_from_slice(name.as_bytes());
    body.extend_from_slice(&(content.len() as u64).to_le_bytes());
    body.extend_from_slice(content);
}
