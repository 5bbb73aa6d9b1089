// SPDX-License-Identifier: Apache-2.0
//! Documents with errors. Nothing of them is ever committed, but they take part in a check, so that an operator sees every
//! error at once: what they refer to must exist, and what refers to them is not reported for their sake.

use crate::doc::{check_name, Marks};
use crate::kinds::{Kind, Name, Object};
use crate::yaml::{Node, Value};

/// What is known of a document with errors.
#[derive(Debug)]
pub(crate) struct Broken {
    pub kind: Kind,
    /// Its name, or an empty one.
    pub name: Name,
    /// The object as far as it is known: wrong entries of lists are left out, and [`stand_ins`] take the place of other values that are
    /// wrong or missing. None if that would be another object than the one that is meant.
    pub object: Option<Object>,
    /// The objects that it names, each with its field, as far as `object` does not.
    pub references: Vec<(String, Kind, Name)>,
    /// Fields with a wrong value. Whatever else is said of them is said of a stand-in, so it is not told.
    pub wrong: Box<[Box<str>]>,
    /// Lists that lack entries in `object`: the place that each of the others has in the text.
    pub kept: Box<[(Box<str>, Vec<usize>)]>,
    pub marks: Marks,
}

impl Broken {
    /// A field of the object as it stands in the text; none if nothing is known of it.
    pub fn field(&self, field: &str) -> Option<String> {
        let field = self.place(field)?;
        let within =
            |a: &str, b: &str| a.strip_prefix(b).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
        let hidden = |wrong: &str| within(&field, wrong) || within(wrong, &field);
        let told = field.is_empty() || !self.wrong.iter().any(|w| hidden(w));
        told.then_some(field)
    }

    fn place(&self, field: &str) -> Option<String> {
        let entry = |list: &str| field.strip_prefix(list)?.strip_prefix('[')?.strip_suffix(']')?.parse::<usize>().ok();
        for (list, kept) in &self.kept {
            if let Some(i) = entry(list) {
                return kept.get(i).map(|i| format!("{list}[{i}]"));
            }
        }
        Some(field.to_string())
    }
}

/// Values that no right document can have, each another one, so that they meet nothing.
pub(crate) mod stand_ins {
    use crate::kinds::Name;
    use crate::prefix::{Mac, Prefix};
    use abi::Vni;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    use std::sync::atomic::{AtomicU32, Ordering};

    const UNNAMED: &str = "(unnamed ";

    fn number() -> u32 {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) & 0xff_ffff
    }

    /// Of a name, or of an interface.
    pub fn name() -> Name {
        format!("{UNNAMED}{})", number()).into()
    }

    /// Whether a name was made up here.
    pub fn is(name: &Name) -> bool {
        let number = name.strip_prefix(UNNAMED).and_then(|rest| rest.strip_suffix(')'));
        number.is_some_and(|n| n.parse::<u32>().is_ok())
    }

    /// What is shown of a name.
    pub fn shown(name: &Name) -> String {
        if is(name) {
            String::new()
        } else {
            name.to_string()
        }
    }

    /// Above all VNIs.
    pub fn vni() -> Vni {
        Vni(1 << 24 | number())
    }

    /// A group address.
    pub fn mac() -> Mac {
        Mac(1 << 40 | u64::from(number()))
    }

    /// A multicast address.
    pub fn address() -> IpAddr {
        Ipv6Addr::from(0xff << 120 | u128::from(number())).into()
    }

    /// An address that is never routed.
    pub fn address4() -> Ipv4Addr {
        number().into()
    }

    /// Its prefix.
    pub fn prefix() -> Prefix {
        IpAddr::V4(address4()).into()
    }
}

/// References of one document that are looked at.
const REFERENCES_MAX: usize = 1000;

/// What a document of a kind refers to, as far as names can be read.
pub(crate) fn references(kind: Kind, root: &Node<'_>) -> Vec<(String, Kind, Name)> {
    let mut found = Vec::new();
    for (path, target) in crate::schema::fields(kind).iter().filter_map(|f| Some((&f.path, f.refers?))) {
        let mut add = |field: String, node: &Node<'_>| {
            if let Value::Scalar { text, .. } = &node.value {
                if check_name(text).is_ok() && found.len() < REFERENCES_MAX {
                    found.push((field, target, (&**text).into()));
                }
            }
        };
        match node_at(root, path) {
            Some(Node { value: Value::List(items), .. }) => {
                items.iter().enumerate().for_each(|(i, item)| add(format!("{path}[{i}]"), item));
            }
            Some(node) => add(path.clone(), node),
            None => {}
        }
    }
    found
}

/// The node at a path; one without a value counts as absent.
pub(crate) fn node_at<'a>(root: &'a Node<'a>, path: &str) -> Option<&'a Node<'a>> {
    let (mut node, mut path) = (root, path);
    'below: loop {
        let Value::Map(map) = &node.value else { return None };
        for (name, _, value) in map {
            match path.as_bytes().get(name.len()) {
                None if **name == *path => return (!value.is_null()).then_some(value),
                Some(b'.') if path.starts_with(&**name) => {
                    (node, path) = (value, &path[name.len() + 1..]);
                    continue 'below;
                }
                _ => {}
            }
        }
        return None;
    }
}

#[cfg(test)]
mod tests {
    use super::stand_ins;

    #[test]
    fn a_name_that_was_made_up_is_not_shown_and_any_other_one_is() {
        assert_eq!(stand_ins::shown(&stand_ins::name()), "");
        for name in ["(blue)", "(unnamed )", "(unnamed 5", "(unnamed five)"] {
            assert_eq!(stand_ins::shown(&name.into()), name);
        }
    }
}
