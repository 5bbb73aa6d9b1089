// SPDX-License-Identifier: Apache-2.0
//! The version of what stands where in a store, and the steps between versions, one transaction each. A store that is newer than the program is
//! refused; an older one is brought up, and `tunny controller migrate --to` brings one down again for an older program.

use crate::keys;
use crate::store::{Compare, Outcome, Store, Write};

/// The version that this program knows.
pub const NOW: u32 = 2;
/// The oldest one that it can make of it, and make it of.
pub const OLDEST: u32 = 1;

/// What a step writes.
type Step = fn(&dyn Store) -> Result<Vec<Write>, String>;

/// The steps from version n + 1 to n + 2, and back.
const STEPS: [(Step, Step); (NOW - OLDEST) as usize] = [(
    // 2: revisions belong to a history, which a restored store has anew.
    |store| Ok(vec![Write::Put(keys::HISTORY.into(), text(store, keys::ID)?.into_bytes())]),
    // Before that, they belonged to what names the region.
    |store| {
        let history = text(store, keys::HISTORY)?;
        Ok(vec![Write::Put(keys::ID.into(), history.into_bytes()), Write::Delete(keys::HISTORY.into())])
    },
)];

/// The text of a key that must be there.
pub fn text(store: &dyn Store, key: &str) -> Result<String, String> {
    let entry = store.get(&[key.into()]).map_err(|e| e.to_string())?.pop().flatten();
    let text = entry.and_then(|e| String::from_utf8(e.value).ok());
    text.ok_or_else(|| "the store is empty: `tunny controller init` makes one".to_string())
}

/// The version of a store, if this program knows it.
pub fn version(store: &dyn Store) -> Result<u32, String> {
    let written = text(store, keys::SCHEMA)?;
    let known = written.parse().ok().filter(|n| (OLDEST..=NOW).contains(n));
    known.ok_or_else(|| {
        format!(
            "the store was written by another version of tunny (form {}, this one knows {OLDEST} to {NOW}): use that one, or let it bring the store down (`tunny controller migrate --to {NOW}`)",
            model::plain(&written)
        )
    })
}

/// Brings a store to a version, step by step; from which one.
pub fn migrate(store: &dyn Store, to: u32) -> Result<u32, String> {
    let from = version(store)?;
    if !(OLDEST..=NOW).contains(&to) {
        return Err(format!("--to {to}: this version of tunny knows the forms {OLDEST} to {NOW}"));
    }
    let mut at = from;
    while at != to {
        let (step, next) = match at < to {
            true => (STEPS[(at - OLDEST) as usize].0, at + 1),
            false => (STEPS[(at - OLDEST - 1) as usize].1, at - 1),
        };
        let found = store.get(&[keys::SCHEMA.into()]).map_err(|e| e.to_string())?.pop().flatten();
        let changed = found.map_or(0, |e| e.changed);
        let mut writes = step(store)?;
        writes.push(Write::Put(keys::SCHEMA.into(), next.to_string().into_bytes()));
        match store.txn(&[Compare::Unchanged(keys::SCHEMA.into(), changed)], &writes).map_err(|e| e.to_string())? {
            Outcome::Written(_) => at = next,
            Outcome::Conflict(_) => return Err("somebody else is bringing this store to another form".into()),
        }
    }
    Ok(from)
}
