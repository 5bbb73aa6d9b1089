// SPDX-License-Identifier: Apache-2.0
//! `metadata.labels`: words that people put on objects to find them by. They change nothing of what an object does.

use crate::binary::codec::{put_text, put_u64, Fault, Reader};
use crate::declare::{Field, Slot};
use crate::doc::{Doc, Names};
use crate::error::Problem;
use crate::forms::schema_of;
use crate::kinds::Name;
use crate::written::{quoted, Written};
use crate::yaml::Value;
use serde_json::json;
use std::sync::Arc;

/// Labels of an object at most.
pub const LABELS_MAX: usize = 32;
/// Bytes of a key.
const KEY_MAX: usize = 128;
/// Bytes of a value.
const VALUE_MAX: usize = 63;

/// Keys with their values, in the order of the keys. Most objects have none, and there are objects by the million: so it is a word.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Labels(Option<Arc<Vec<(Name, Name)>>>);

impl Labels {
    /// With these, if they may stand in a document.
    pub fn new(all: &[(&str, &str)]) -> Result<Labels, String> {
        all.iter().try_for_each(|(key, value)| check_key(key).and_then(|()| check_value(value)))?;
        let mut all: Vec<(Name, Name)> = all.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        all.sort();
        if all.windows(2).any(|two| two[0].0 == two[1].0) || all.len() > LABELS_MAX {
            return Err(format!("labels are {}", allowed()));
        }
        Ok(Labels::of(all))
    }

    /// Of these, each key once.
    fn of(mut all: Vec<(Name, Name)>) -> Labels {
        all.sort();
        Labels((!all.is_empty()).then(|| Arc::new(all)))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Each key with its value.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &Name)> {
        self.0.iter().flat_map(|all| all.iter()).map(|(key, value)| (key, value))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let all = self.0.as_ref()?;
        all.binary_search_by(|(own, _)| (**own).cmp(key)).ok().map(|at| &*all[at].1)
    }
}

/// Whether a text is of letters, digits and `-`, `_`, `.`, with a letter or digit at either end.
fn is_word(text: &str) -> bool {
    let ends = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    ends(text.bytes().next()) && ends(text.bytes().next_back()) && text.bytes().all(inner)
}

/// Refuses what cannot be the key of a label.
pub(crate) fn check_key(key: &str) -> Result<(), String> {
    let word = match key.split_once('/') {
        Some((before, name)) => is_word(before) && is_word(name),
        None => is_word(key),
    };
    if word && key.len() <= KEY_MAX {
        return Ok(());
    }
    Err(format!("`{}` is no key of a label", crate::plain(&key.chars().take(80).collect::<String>())))
}

/// Refuses what cannot be the value of a label.
pub(crate) fn check_value(value: &str) -> Result<(), String> {
    if value.is_empty() || (is_word(value) && value.len() <= VALUE_MAX) {
        return Ok(());
    }
    Err(format!("`{}` is no value of a label", crate::plain(&value.chars().take(80).collect::<String>())))
}

/// What is allowed, in words.
fn allowed() -> String {
    format!(
        "up to {LABELS_MAX} keys, each once, with values. A key: 1 to {KEY_MAX} letters, digits, `-`, `_`, `.`, and one `/` at most; a value: up to {VALUE_MAX} letters, digits, `-`, `_`, `.`; letters or digits at either end"
    )
}

/// What the reference and the schema say of labels.
pub(crate) fn field() -> Field {
    let allowed = allowed();
    let meaning = "Words to find it by: `tunny get KIND -l KEY=VALUE`. They change nothing of what it does.";
    let word = "[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?";
    let form = json!({
        "type": "object",
        "maxProperties": LABELS_MAX,
        "propertyNames": {"maxLength": KEY_MAX, "pattern": format!("^({word}/)?{word}$")},
        "additionalProperties": {"type": "string", "maxLength": VALUE_MAX, "pattern": format!("^({word})?$")},
    });
    Field {
        path: "metadata.labels".into(),
        ty: "mapping of words".into(),
        default: "none".into(),
        schema: schema_of(form, meaning, &allowed),
        allowed,
        meaning: meaning.into(),
        refers: None,
    }
}

/// Where labels stand in a document.
pub(crate) struct LabelsSlot;

impl Slot for LabelsSlot {
    type Value = Labels;

    /// Every document has them: [`crate::schema`] lists them once, beside `kind`.
    fn rows(&self, _: &str, _: &str, _: &mut Vec<Field>) {}

    fn usual(&self) -> Labels {
        Labels::default()
    }

    fn read(&self, doc: &mut Doc<'_>, path: &str) -> Labels {
        let Some(node) = doc.node(path) else { return Labels::default() };
        let Value::Map(map) = &node.value else {
            doc.wrong(path, Problem::WrongType { found: node.type_name() });
            return Labels::default();
        };
        if map.len() > LABELS_MAX {
            doc.wrong(path, Problem::Value(format!("has {} entries", map.len())));
        }
        let mut all: Vec<(Name, Name)> = Vec::new();
        for (i, (key, at, value)) in map.iter().take(LABELS_MAX).enumerate() {
            let problem = match &value.value {
                _ if map[..i].iter().any(|(k, ..)| k == key) => {
                    let first = map[..i].iter().find(|(k, ..)| k == key).map_or(0, |(_, at, _)| at.line);
                    Err((*at, Problem::DuplicateField { first }))
                }
                Value::Scalar { .. } if value.is_null() => Err((value.at, Problem::Value("has no value".into()))),
                Value::Scalar { text, .. } => check_key(key)
                    .map_err(|why| (*at, why))
                    .and_then(|()| check_value(text).map_err(|why| (value.at, why)))
                    .map(|()| all.push((doc.shared(key), doc.shared(text))))
                    .map_err(|(at, why)| (at, Problem::Value(why))),
                _ => Err((value.at, Problem::WrongType { found: value.type_name() })),
            };
            if let Err((at, problem)) = problem {
                let key = crate::plain(&key.chars().take(80).collect::<String>()).to_string();
                doc.error(at, &format!("{path}.{key}"), problem, allowed());
            }
        }
        Labels::of(all)
    }

    fn write(&self, value: &Labels, out: &mut Written, path: &str) {
        if value.is_empty() {
            return;
        }
        out.put(path, |out| {
            for (i, (key, value)) in value.iter().enumerate() {
                out.push(if i == 0 { '{' } else { ',' });
                quoted(out, key);
                out.push(':');
                quoted(out, value);
            }
            out.push('}');
        });
    }
}

/// Appends labels as bytes.
pub(crate) fn put_labels(out: &mut Vec<u8>, labels: &Labels) {
    put_u64(out, labels.iter().count() as u64);
    for (key, value) in labels.iter() {
        put_text(out, key);
        put_text(out, value);
    }
}

/// Reads them, as they were written.
pub(crate) fn read_labels(r: &mut Reader<'_>, names: &mut Names) -> Result<Labels, Fault> {
    let count = r.count(2)?;
    if count > LABELS_MAX {
        return Err(format!("{count} labels, where {LABELS_MAX} are allowed"));
    }
    let mut all: Vec<(Name, Name)> = Vec::with_capacity(count);
    for _ in 0..count {
        let (key, value) = (r.text()?, r.text()?);
        check_key(key).and_then(|()| check_value(value))?;
        if all.last().is_some_and(|(last, _)| **last >= *key) {
            return Err(format!("label `{key}` is out of order"));
        }
        all.push((names.get(key), names.get(value)));
    }
    Ok(Labels::of(all))
}
