// SPDX-License-Identifier: Apache-2.0
//! Which objects of a listing are wanted: by the values of their fields, `spec.nc=nc1,spec.vpc!=red`, and by their labels,
//! `app=web,tier!=old,zone in (a,b),!left`.

use crate::kinds::{Kind, Object};
use crate::labels::{check_key, check_value, Labels};
use serde_json::Value;

/// Conditions that all must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    fields: Vec<Condition>,
    labels: LabelSelector,
}

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
        let fields = parts.map(one).collect::<Result<_, _>>()?;
        Ok(Selector { fields, labels: LabelSelector::default() })
    }

    /// The same, with these conditions on labels besides.
    pub fn labelled(self, text: &str) -> Result<Selector, String> {
        Ok(Selector { labels: LabelSelector::parse(text)?, ..self })
    }

    /// Whether everything is taken.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.labels.is_empty()
    }

    /// Whether an object is wanted. Of a list one entry must be the value.
    pub fn takes(&self, object: &Object) -> bool {
        if !self.labels.is_empty() && !self.labels.takes(object.labels()) {
            return false;
        }
        if self.fields.is_empty() {
            return true;
        }
        let document = object.to_json();
        self.fields.iter().all(|c| {
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

/// Terms of a selector at most, and words in the brackets of one.
const TERMS_MAX: usize = 64;

/// Conditions on labels that all must hold, in the language of `kubectl -l`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Term>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    key: String,
    /// What the value must be one of; none: any value.
    values: Option<Vec<String>>,
    /// It must be so; else it must not. Who does not have the key meets what must not be.
    is: bool,
}

impl LabelSelector {
    /// From text.
    pub fn parse(text: &str) -> Result<LabelSelector, String> {
        let terms: Vec<Term> = parts(text)?.into_iter().map(term).collect::<Result<_, _>>()?;
        if terms.len() > TERMS_MAX {
            return Err(format!("a selector of {} terms; {TERMS_MAX} are allowed", terms.len()));
        }
        Ok(LabelSelector(terms))
    }

    /// Whether everything is taken.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether what has these labels is wanted.
    pub fn takes(&self, labels: &Labels) -> bool {
        self.0.iter().all(|t| {
            let found = labels.get(&t.key);
            let one = |value: &str| t.values.as_ref().is_none_or(|values| values.iter().any(|v| v == value));
            found.is_some_and(one) == t.is
        })
    }
}

/// The terms of a text: commas part them, but for those in brackets.
fn parts(text: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut from, mut open) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match (c, open) {
            ('(', false) | (')', true) => open = !open,
            ('(', true) | (')', false) => return Err(no_term(&text[from..])),
            (',', false) => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    if open {
        return Err(no_term(&text[from..]));
    }
    parts.push(&text[from..]);
    Ok(parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect())
}

fn no_term(part: &str) -> String {
    let part: String = part.trim().chars().take(80).collect();
    format!(
        "`{}` selects no labels: write KEY=VALUE, KEY!=VALUE, KEY in (A,B), KEY notin (A,B), KEY or !KEY",
        crate::plain(&part)
    )
}

fn term(part: &str) -> Result<Term, String> {
    let made = |key: &str, values: Option<Vec<&str>>, is: bool| {
        let words = values.iter().flatten().try_for_each(|v| check_value(v));
        check_key(key).and(words).map_err(|why| format!("{why} (in `{}`)", crate::plain(part)))?;
        Ok(Term { key: key.into(), values: values.map(|v| v.into_iter().map(String::from).collect()), is })
    };
    if let Some(key) = part.strip_prefix('!') {
        return made(key.trim(), None, false);
    }
    if let Some((head, list)) = part.split_once('(') {
        let mut head = head.split_whitespace();
        let (Some(key), Some(word @ ("in" | "notin")), None) = (head.next(), head.next(), head.next()) else {
            return Err(no_term(part));
        };
        let list = list.strip_suffix(')').ok_or_else(|| no_term(part))?;
        let values: Vec<&str> = list.split(',').map(str::trim).collect();
        if values.len() > TERMS_MAX {
            return Err(format!("{} words in brackets; {TERMS_MAX} are allowed", values.len()));
        }
        return made(key, Some(values), word == "in");
    }
    match part.split_once('=') {
        None => made(part, None, true),
        Some((key, value)) => match key.strip_suffix('!') {
            Some(key) => made(key.trim(), Some(vec![value.trim()]), false),
            None => made(key.trim(), Some(vec![value.strip_prefix('=').unwrap_or(value).trim()]), true),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(text: &str) -> Labels {
        let text = format!("{{apiVersion: tunny/v1, kind: Nc, metadata: {{name: n, labels: {{{text}}}}}, spec: {{address: 192.0.2.1}}}}");
        crate::parse_text("x.yaml", &text).unwrap().puts.remove(0).object.labels().clone()
    }

    #[test]
    fn labels_select() {
        let of = labels("app: web, tier: 1, example.org/zone: a, left: ''");
        let takes = |text: &str| LabelSelector::parse(text).unwrap().takes(&of);
        for yes in [
            "",
            "app=web",
            "app==web",
            " app = web , tier=1",
            "app!=db",
            "app in (db, web)",
            "app notin (db,x)",
            "app",
            "!gone",
            "gone!=x",
            "gone notin (a)",
            "example.org/zone=a",
            "left=",
            "left in ()",
            "app,!gone,tier!=2",
        ] {
            assert!(takes(yes), "{yes}");
        }
        for no in [
            "app=db",
            "app!=web",
            "app in (db)",
            "app notin (db,web)",
            "gone",
            "!app",
            "gone=",
            "app,tier=2",
            "gone in (a)",
        ] {
            assert!(!takes(no), "{no}");
        }
        let many = vec!["a"; TERMS_MAX + 1].join(",");
        for wrong in [
            "app=a b",
            "in (a)",
            "app in a",
            "app in (a",
            "app (a)",
            "a)b",
            "app in (a)) ",
            "=x",
            "a/b/c",
            "app in (a)x",
            "a>b",
            "ä=b",
            &many,
        ] {
            assert!(LabelSelector::parse(wrong).is_err(), "{wrong}");
        }
        let told = LabelSelector::parse("app in web").unwrap_err();
        assert!(told.contains("is no key of a label"), "{told}");
    }

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
