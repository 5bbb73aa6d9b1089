// SPDX-License-Identifier: Apache-2.0
//! Mutants that were judged to be equivalent: their program does the same as the original, or differs only in speed and memory.

use crate::site::Mutant;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The list, from the root of the workspace.
const FILE: &str = "xtask/mutate/equivalent.json";

/// An entry: a mutant by what stays the same in another version of its file.
#[derive(Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// Its file.
    file: String,
    /// The function that it stands in.
    function: String,
    /// What is done.
    change: String,
    /// The source line, trimmed.
    text: String,
    /// Its column, where the line has more than one such change.
    #[serde(default)]
    column: Option<usize>,
    /// Why nothing can notice it.
    why: String,
}

/// Reads the list: why, by the mutant's number. Only entries of these crates count.
pub fn read(root: &Path, mutants: &[Mutant], crates: &[String]) -> Result<BTreeMap<u32, String>, String> {
    let text = std::fs::read_to_string(root.join(FILE)).map_err(|e| format!("cannot read {FILE}: {e}"))?;
    let entries: Vec<Entry> = serde_json::from_str(&text).map_err(|e| format!("{FILE}: {e}"))?;
    find(&entries, mutants, crates)
}

fn find(entries: &[Entry], mutants: &[Mutant], crates: &[String]) -> Result<BTreeMap<u32, String>, String> {
    let (mut found, mut stale) = (BTreeMap::new(), Vec::new());
    for e in entries.iter().filter(|e| crates.iter().any(|k| e.file.starts_with(&format!("crates/{k}/")))) {
        let same = |m: &&Mutant| {
            (&m.file, &m.function, &m.change, &m.text) == (&e.file, &e.function, &e.change, &e.text)
                && e.column.is_none_or(|c| c == m.column)
        };
        match mutants.iter().filter(same).collect::<Vec<_>>()[..] {
            [m] if !e.why.trim().is_empty() => {
                found.insert(m.id, e.why.clone());
            }
            ref all => stale.push(format!(
                "  {} mutants match, one must: {} `{}`: {}: `{}`",
                all.len(),
                e.file,
                e.function,
                e.change,
                e.text
            )),
        }
    }
    if stale.is_empty() {
        Ok(found)
    } else {
        Err(format!("{FILE}: entries to mend or take away:\n{}", stale.join("\n")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(id: u32, column: usize, change: &str) -> Mutant {
        let (krate, file, function, text) = ("k".into(), "crates/k/src/lib.rs".into(), "f".into(), "a < b < c".into());
        Mutant { id, krate, file, line: 7, column, function, change: change.into(), text }
    }

    fn entry(change: &str, column: Option<usize>, why: &str) -> Entry {
        let (file, function, text) = ("crates/k/src/lib.rs".into(), "f".into(), "a < b < c".into());
        Entry { file, function, change: change.into(), text, column, why: why.into() }
    }

    #[test]
    fn an_entry_names_exactly_one_mutant_and_says_why() {
        let all = [mutant(1, 3, "less"), mutant(2, 7, "less"), mutant(3, 1, "more")];
        let k = ["k".to_string()];
        let get = |e: Entry| find(&[e], &all, &k);
        assert_eq!(get(entry("more", None, "same")), Ok(BTreeMap::from([(3, "same".into())])));
        assert_eq!(get(entry("less", Some(7), "same")), Ok(BTreeMap::from([(2, "same".into())])));
        for (e, n) in
            [(entry("less", None, "same"), 2), (entry("none", None, "same"), 0), (entry("more", None, " "), 1)]
        {
            let said = get(e).unwrap_err();
            assert!(said.contains(&format!("{n} mutants match, one must")), "{said}");
        }
        assert_eq!(find(&[entry("none", None, "same")], &all, &["other".to_string()]), Ok(BTreeMap::new()));
    }
}
