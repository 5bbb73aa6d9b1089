// SPDX-License-Identifier: Apache-2.0
//! Documents with errors. Nothing of them is ever committed, but they take part in a check, so that an operator sees every
//! error at once: what they refer to must exist, and what refers to them is not reported for their sake.

use crate::decode::{check_name, Marks};
use crate::object::{Kind, Name, Object};
use crate::yaml::{Node, Value};

/// What is known of a document with errors.
#[derive(Debug)]
pub(crate) struct Broken {
    pub kind: Kind,
    /// Its name, or an empty one.
    pub name: Name,
    /// The whole object, if every value is right and only unknown or repeated fields, or the apiVersion, are not. Of a pool, Snat or
    /// elastic address also what is right of it.
    pub object: Option<Object>,
    /// The objects that it names, each with its field, as far as `object` does not.
    pub references: Vec<(String, Kind, Name)>,
    pub marks: Marks,
}

/// Fields that name other objects and must name such as exist.
const fn referring_fields(kind: Kind) -> &'static [(&'static str, Kind)] {
    match kind {
        Kind::Vm => &[("spec.vpc", Kind::Vpc), ("spec.nc", Kind::Nc)],
        Kind::Route => &[("spec.vpc", Kind::Vpc), ("spec.peer", Kind::Vpc)],
        Kind::Server => &[("spec.vpc", Kind::Vpc)],
        Kind::Nc | Kind::Peering => &[("spec.vpcs", Kind::Vpc)],
        Kind::Snat => &[("spec.vpc", Kind::Vpc), ("spec.pools", Kind::PublicPool)],
        Kind::SecurityBinding => {
            &[("spec.vpc", Kind::Vpc), ("spec.vms", Kind::Vm), ("spec.servers", Kind::Server), ("spec.groups", Kind::SecurityGroup)]
        }
        _ => &[],
    }
}

/// References of one document that are looked at.
const REFERENCES_MAX: usize = 1000;

/// What a document of a kind refers to, as far as names can be read.
pub(crate) fn references(kind: Kind, root: &Node) -> Vec<(String, Kind, Name)> {
    let mut found = Vec::new();
    for (path, target) in referring_fields(kind) {
        let mut add = |field: String, node: &Node| {
            if let Value::Scalar { text, .. } = &node.value {
                if check_name(text).is_ok() && found.len() < REFERENCES_MAX {
                    found.push((field, *target, text.as_str().into()));
                }
            }
        };
        match node_at(root, path) {
            Some(Node { value: Value::List(items), .. }) => {
                items.iter().enumerate().for_each(|(i, item)| add(format!("{path}[{i}]"), item));
            }
            Some(node) => add((*path).to_string(), node),
            None => {}
        }
    }
    found
}

/// The node at a path; one without a value counts as absent.
pub(crate) fn node_at<'a>(root: &'a Node, path: &str) -> Option<&'a Node> {
    let mut node = root;
    for part in path.split('.') {
        let Value::Map(map) = &node.value else { return None };
        node = &map.iter().find(|(k, _, _)| k == part)?.2;
    }
    (!node.is_null()).then_some(node)
}
