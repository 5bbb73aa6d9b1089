// SPDX-License-Identifier: Apache-2.0
//! Which objects of a listing are wanted, by the values of their fields: `spec.nc=nc1,spec.vpc!=red`.

use crate::kinds::{Kind, Object};
use serde_json::Value;

/// Conditions that all must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(Vec<Condition>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Condition {
    path: String,
    equal: bool,
    value: String,
}

impl Selector {
    /// From text; the paths must be fields of one of the kinds.
    pub fn parse(text: &str, kinds: &[Kind]) -> Result<Selector, String> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let one = |part: &str| {
            let wrong = || {
                format!("`{}` selects nothing: write FIELD=VALUE or FIELD!=VALUE, as spec.vpc=red", crate::plain(part))
            };
            let (path, value) = part.split_once('=').ok_or_else(wrong)?;
            let (path, equal) = path.strip_suffix('!').map_or((path, true), |path| (path, false));
            let known = |kind: &&Kind| crate::schema::fields(**kind).iter().any(|f| f.path == path);
            if !kinds.iter().any(|kind| known(&kind)) {
                let words = kinds.iter().flat_map(|k| crate::schema::fields(*k)).map(|f| f.path.as_str());
                let words: Vec<&str> = words.collect();
                let near = crate::nearest(path, &words);
                let near = near.map_or(String::new(), |n| format!(" (did you mean `{n}`?)"));
                return Err(format!("`{}` is no field of these objects{near}", crate::plain(path)));
            }
            Ok(Condition { path: path.into(), equal, value: value.into() })
        };
        parts.map(one).collect::<Result<_, _>>().map(Selector)
    }

    /// Whether everything is taken.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an object is wanted. Of a list one entry must be the value.
    pub fn takes(&self, object: &Object) -> bool {
        if self.is_empty() {
            return true;
        }
        let document = object.to_json();
        self.0.iter().all(|c| {
            let found = c.path.split('.').try_fold(&document, |at, name| at.get(name));
            found.is_some_and(|value| is(value, &c.value)) == c.equal
        })
    }
}

fn is(value: &Value, text: &str) -> bool {
    match value {
        Value::String(s) => s == text,
        Value::Array(list) => list.iter().any(|v| is(v, text)),
        other => {
            let shown = other.to_string();
            shown == text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_select() {
        let text = "{apiVersion: tunny/v1, kind: Vm, metadata: {name: v}, spec: {vpc: red, addresses: [10.0.0.1, fd00::1], mac: \"02:00:00:00:00:01\", nc: n}}";
        let object = crate::parse_text("x.yaml", text).unwrap().puts.remove(0).object;
        let takes = |text: &str| Selector::parse(text, &[Kind::Vm]).unwrap().takes(&object);
        for yes in ["", "spec.vpc=red", "spec.addresses=fd00::1,spec.nc!=other", "metadata.name=v"] {
            assert!(takes(yes), "{yes}");
        }
        for no in ["spec.vpc=blue", "spec.vpc=red,spec.nc=x", "spec.addresses!=10.0.0.1"] {
            assert!(!takes(no), "{no}");
        }
        for wrong in ["spec.vpc", "spec.vcp=red", "red"] {
            assert!(Selector::parse(wrong, &[Kind::Vm]).is_err(), "{wrong}");
        }
        assert!(Selector::parse("spec.vpcs=red", &[Kind::Vm]).unwrap_err().contains("did you mean `spec.vpc`"));
    }
}
