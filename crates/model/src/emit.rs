// SPDX-License-Identifier: Apache-2.0
//! Objects as documents again: lines of NDJSON, YAML, and the fields in which two objects differ.

use crate::kinds::*;
use serde_json::{Map, Value};
use std::fmt::Write;

impl Object {
    /// The document of this object, as YAML, with `---` in front.
    pub fn to_yaml(&self) -> String {
        yaml_document(&self.to_json())
    }
}

fn yaml_map(out: &mut String, map: &Map<String, Value>, depth: usize) {
    for (key, value) in map {
        let _ = write!(out, "{:1$}{key}:", "", depth * 2);
        match value {
            Value::Object(m) if m.is_empty() => out.push_str(" {}\n"),
            Value::Object(m) => {
                out.push('\n');
                yaml_map(out, m, depth + 1);
            }
            Value::Array(list) => {
                let items: Vec<String> = list.iter().map(yaml_scalar).collect();
                let _ = writeln!(out, " [{}]", items.join(", "));
            }
            scalar => {
                let _ = writeln!(out, " {}", yaml_scalar(scalar));
            }
        }
    }
}

/// A document that is at hand as JSON, as YAML with `---` in front.
pub fn yaml_document(document: &Value) -> String {
    let mut out = String::from("---\n");
    match document {
        Value::Object(map) => yaml_map(&mut out, map, 0),
        other => {
            let _ = writeln!(out, "{}", yaml_scalar(other));
        }
    }
    out
}

/// A scalar as it must stand in YAML, also inside `[]`.
fn yaml_scalar(value: &Value) -> String {
    let Value::String(s) = value else { return value.to_string() };
    let plain = s.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'/' | b'-' | b'_' | b':' | b'='))
        && s.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
        && !s.ends_with(':')
        && !matches!(s.as_str(), "null" | "~");
    if plain {
        s.clone()
    } else {
        value.to_string()
    }
}

/// One field that differs: path, before, after.
pub type FieldChange = (String, Option<String>, Option<String>);

/// The fields in which two documents differ.
pub fn changed_fields(before: &Object, after: &Object) -> Vec<FieldChange> {
    let mut out = Vec::new();
    let edits = match (before, after) {
        (Object::SecurityGroup(a), Object::SecurityGroup(b)) => filter::edits(&a.spec.rules, &b.spec.rules),
        _ => None,
    };
    match edits {
        // Each rule at its place, unless the two have little in common.
        Some(edits) => out.extend(edits.into_iter().map(|(at, before, after)| {
            (format!("spec.rules[{at}]"), before.map(|r| r.to_string()), after.map(|r| r.to_string()))
        })),
        None => compare(&mut out, "spec", &before.to_json()["spec"], &after.to_json()["spec"]),
    }
    if before.labels() != after.labels() {
        let labels = |object: &Object| object.to_json()["metadata"]["labels"].take();
        compare(&mut out, "metadata.labels", &labels(before), &labels(after));
    }
    out
}

fn compare(out: &mut Vec<FieldChange>, path: &str, a: &Value, b: &Value) {
    if a == b {
        return;
    }
    let empty = Map::new();
    let map = |v: &Value| v.as_object().cloned().or_else(|| v.is_null().then(|| empty.clone()));
    match (map(a), map(b)) {
        (Some(ma), Some(mb)) if !(a.is_null() && b.is_null()) => {
            let mut keys: Vec<&String> = ma.keys().chain(mb.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let get = |m: &Map<String, Value>| m.get(key).cloned().unwrap_or(Value::Null);
                compare(out, &format!("{path}.{key}"), &get(&ma), &get(&mb));
            }
        }
        _ => out.push((path.to_string(), show(a), show(b))),
    }
}

fn show(v: &Value) -> Option<String> {
    match v {
        Value::Null => None,
        Value::Array(list) => Some(format!("[{}]", list.iter().map(yaml_scalar).collect::<Vec<_>>().join(", "))),
        Value::String(s) => Some(s.clone()),
        other => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use crate::{parse_files, parse_text, Kind, Model};

    #[test]
    fn every_form_of_an_object_reads_back() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/region.yaml");
        let (model, _) = Model::from_documents(&parse_files(&[path]).unwrap()).unwrap();
        for object in Kind::ALL.iter().flat_map(|k| model.objects(*k)) {
            let (yaml, json, line) = (object.to_yaml(), object.to_json().to_string(), object.to_ndjson());
            assert_eq!(line, json);
            for (name, text) in [("x.yaml", yaml), ("x.yaml", json), ("x.ndjson", line)] {
                let back = parse_text(name, &text).unwrap_or_else(|e| panic!("{text}\n{e:?}"));
                assert_eq!(back.puts[0].object, object, "{text}");
            }
        }
    }
}
