// SPDX-License-Identifier: Apache-2.0
//! Entries and events as bytes, the same in every store.

use super::{Entry, Event, Revision};

/// An entry: the transactions that created and last wrote it, and its value.
pub(super) fn record(created: Revision, changed: Revision, value: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(value.len() + 16);
    record.extend_from_slice(&created.to_le_bytes());
    record.extend_from_slice(&changed.to_le_bytes());
    record.extend_from_slice(value);
    record
}

/// The transactions that created and last wrote an entry.
pub(super) fn stamps(record: &[u8]) -> (Revision, Revision) {
    let number = |at: usize| record.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    (number(0), number(8))
}

pub(super) fn entry(key: &[u8], record: &[u8]) -> Entry {
    let (created, changed) = stamps(record);
    Entry { key: key.to_vec(), value: record.get(16..).unwrap_or_default().to_vec(), created, changed }
}

/// Key, value and value before, each with its length plus one in front; 0: there is none.
pub(super) fn event_bytes(key: &[u8], value: Option<&[u8]>, before: Option<&[u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for part in [Some(key), value, before] {
        let length = part.map_or(0, |p| p.len() as u32 + 1);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(part.unwrap_or_default());
    }
    out
}

/// The first event of bytes, which are cut off in front.
pub(super) fn event_of(bytes: &mut &[u8]) -> Option<Event> {
    let mut part = || {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length) as usize;
        let (own, rest) = rest.split_at_checked(length.saturating_sub(1))?;
        *bytes = rest;
        Some((length > 0).then(|| own.to_vec()))
    };
    let key = part()??;
    Some(Event { key, value: part()?, before: part()? })
}
