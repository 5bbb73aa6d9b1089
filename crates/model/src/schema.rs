// SPDX-License-Identifier: Apache-2.0
//! What the declarations of kinds say, field by field: the reader refuses what is not listed here, error messages quote `allowed`,
//! docs/reference/configuration.md is printed from it, and so is the JSON Schema for editors.

use crate::declare::below;
pub use crate::declare::Field;
use crate::forms::{alternatives, schema_of};
use crate::kinds::Kind;
use serde_json::{json, Value};
use std::sync::LazyLock;

/// Marks a field that must be given.
pub const REQUIRED: &str = "required";

/// The kinds in words.
pub(crate) fn kinds() -> String {
    alternatives(&Kind::ALL.map(Kind::name))
}

/// The fields of a kind, and the tree of their names.
struct Known {
    fields: Vec<Field>,
    tree: Branch,
}

/// A name in a document, and the names below it.
pub(crate) struct Branch {
    pub name: String,
    pub path: String,
    pub below: Vec<Branch>,
}

impl Branch {
    fn add(&mut self, path: &str) {
        let (name, rest) = path.split_once('.').unwrap_or((path, ""));
        let at = self.below.iter().position(|b| b.name == name).unwrap_or_else(|| {
            let path = self.below(name);
            self.below.push(Branch { name: name.into(), path, below: Vec::new() });
            self.below.len() - 1
        });
        if !rest.is_empty() {
            self.below[at].add(rest);
        }
    }

    /// The names below it, in words.
    pub fn names(&self) -> String {
        self.below.iter().map(|b| b.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The path of a name below it.
    pub fn below(&self, name: &str) -> String {
        below(&self.path, name).into_owned()
    }

    /// The path of an entry of a list.
    pub fn entry(&self, i: usize) -> Box<str> {
        format!("{}[{i}]", self.path).into()
    }

    fn find(&self, path: &str) -> Option<&Branch> {
        path.split('.').try_fold(self, |at, name| at.below.iter().find(|b| b.name == name))
    }
}

/// Fields that every document has.
fn common() -> [Field; 3] {
    let field = |path: &str, allowed: String, meaning: &str, of: Value| Field {
        path: path.into(),
        ty: "text".into(),
        default: REQUIRED.into(),
        schema: schema_of(of, meaning, &allowed),
        allowed,
        meaning: meaning.into(),
        refers: None,
    };
    [
        field("apiVersion", "tunny/v1".into(), "Version of the document form.", json!({"const": "tunny/v1"})),
        field("kind", kinds(), "What the document describes.", json!({"enum": Kind::ALL.map(Kind::name)})),
        crate::labels::field(),
    ]
}

static KNOWN: LazyLock<Vec<Known>> = LazyLock::new(|| {
    let known = |kind: Kind| {
        let mut fields = Vec::new();
        (kind.declared().rows)("", &mut fields);
        let mut tree = Branch { name: String::new(), path: String::new(), below: Vec::new() };
        common().iter().chain(&fields).for_each(|f| tree.add(&f.path));
        Known { fields, tree }
    };
    Kind::ALL.map(known).into()
});

/// The fields of a kind, without those that every document has.
pub fn fields(kind: Kind) -> &'static [Field] {
    &KNOWN[kind as usize].fields
}

/// The tree of the names of a kind.
pub(crate) fn tree(kind: Kind) -> &'static Branch {
    &KNOWN[kind as usize].tree
}

/// What is allowed at a path, also at one inside the tree; list indices are ignored.
pub(crate) fn allowed(kind: Kind, path: &str) -> String {
    let path = path.split('[').next().unwrap_or(path);
    let found = fields(kind).iter().find(|f| f.path == path).map(|f| f.allowed.clone());
    match found.or_else(|| common().into_iter().find(|f| f.path == path).map(|f| f.allowed)) {
        Some(allowed) => allowed,
        None => tree(kind).find(path).map_or_else(String::new, Branch::names),
    }
}

const HEAD: &str = include_str!("reference_head.md");

/// The text of docs/reference/configuration.md.
pub fn reference() -> String {
    let mut out = String::from(HEAD);
    let row = |f: &Field| format!("| `{}` | {} | {} | {} | {} |\n", f.path, f.ty, f.default, f.allowed, f.meaning);
    let table = "| field | type | default | allowed | meaning |\n| --- | --- | --- | --- | --- |\n";
    out.push_str("\n## Every document\n\n");
    out.push_str(table);
    common().iter().for_each(|f| out.push_str(&row(f)));
    for kind in Kind::ALL {
        out.push_str(&format!("\n## {kind}\n\n{}\n\n{table}", kind.declared().about));
        fields(kind).iter().for_each(|f| out.push_str(&row(f)));
    }
    out.push_str("\n## Limits of the readers\n\n| what | limit |\n| --- | --- |\n");
    for (what, limit) in [
        ("Bytes of a YAML file", crate::yaml::YAML_BYTES_MAX),
        ("Nested collections in a document", crate::yaml::YAML_DEPTH_MAX as u64),
        ("Values in a document", crate::yaml::YAML_NODES_MAX as u64),
        ("Errors that are listed", crate::ERRORS_MAX as u64),
        ("Bytes of an NDJSON line", crate::documents::LINE_BYTES_MAX as u64),
        ("Steps of the search for peer loops, for one change of a route", u64::from(crate::model::PEER_STEPS_MAX)),
    ] {
        out.push_str(&format!("| {what} | {limit} |\n"));
    }
    out
}

/// The JSON Schema of a document, for editors and for checks before Tunny sees it. It knows the form of every field; what objects
/// must agree on among each other it does not know.
pub fn json_schema() -> Value {
    let kinds = Kind::ALL.map(|kind| {
        let mut root = object_schema(kind, tree(kind));
        root["title"] = kind.name().into();
        root["description"] = kind.declared().about.into();
        root["properties"]["kind"] = json!({"const": kind.name()});
        root
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tunny configuration document",
        "oneOf": kinds,
    })
}

fn object_schema(kind: Kind, branch: &Branch) -> Value {
    let common = common();
    let field = |path: &str| common.iter().chain(fields(kind)).find(|f| f.path == path);
    let (mut properties, mut required) = (serde_json::Map::new(), Vec::new());
    for b in &branch.below {
        let (schema, needed) = match field(&b.path) {
            Some(f) => (f.schema.clone(), f.default == REQUIRED),
            None => {
                let schema = object_schema(kind, b);
                let needed = schema["required"].as_array().is_some_and(|r| !r.is_empty());
                (schema, needed)
            }
        };
        properties.insert(b.name.clone(), schema);
        // What is needed beside another field alone is nothing that a schema of one field can say.
        required.extend(needed.then(|| b.name.clone()));
    }
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_branches() {
        assert_eq!(tree(Kind::Vpc).names(), "apiVersion, kind, metadata, spec");
        assert_eq!(tree(Kind::Vpc).find("spec.gateway").unwrap().names(), "mac, addresses");
        assert_eq!(allowed(Kind::Vpc, "spec.gateway"), "mac, addresses");
        assert!(allowed(Kind::Vm, "spec.addresses[3]").starts_with("1 to 64"));
    }
}
