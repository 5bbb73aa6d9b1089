// SPDX-License-Identifier: Apache-2.0
//! The writer of documents: slots give fields in the order of their declaration, and a line of JSON comes of them, with the names of
//! each mapping in alphabetical order. No tree stands in between: there are objects by the million.

use crate::declare::Form;
use std::fmt::{Display, Write};

/// Appends a number as JSON.
pub(crate) fn number(out: &mut String, number: u64) {
    let _ = write!(out, "{number}");
}

/// Appends a text as JSON.
pub(crate) fn quoted(out: &mut String, text: &str) {
    out.push('"');
    out.push_str(text);
    close_quotes(out, text.len());
}

/// The same of what something is shown as.
pub(crate) fn shown(out: &mut String, value: &dyn Display) {
    out.push('"');
    let from = out.len();
    let _ = write!(out, "{value}");
    close_quotes(out, out.len() - from);
}

/// Ends a text of `length` bytes, and escapes what must not stand in it, if anything.
fn close_quotes(out: &mut String, length: usize) {
    let from = out.len() - length;
    if out.as_bytes()[from..].iter().any(|b| *b < b' ' || matches!(b, b'"' | b'\\')) {
        let text = serde_json::Value::from(&out[from..]).to_string();
        out.truncate(from - 1);
        out.push_str(&text);
    } else {
        out.push('"');
    }
}

/// The fields of a document.
pub(crate) struct Written {
    /// The path of each and its value as JSON, one behind the other.
    text: String,
    /// Where each path begins, where its value begins, and where that ends.
    fields: Vec<[usize; 3]>,
}

impl Written {
    pub fn new() -> Written {
        Written { text: String::with_capacity(256), fields: Vec::with_capacity(8) }
    }

    /// Sets what no other field sets; `write` appends it as JSON.
    pub fn put(&mut self, path: &str, write: impl FnOnce(&mut String)) {
        let from = self.text.len();
        self.text.push_str(path);
        write(&mut self.text);
        self.fields.push([from, from + path.len(), self.text.len()]);
    }

    /// A value in its form.
    pub fn value<F: Form>(&mut self, path: &str, form: &F, value: &F::Value) {
        self.put(path, |out| form.show(value, out));
    }

    /// Some text.
    pub fn text(&mut self, path: &str, text: &str) {
        self.put(path, |out| quoted(out, text));
    }

    /// A list, unless it has no entry.
    pub fn list<'v, F: Form<Value: 'v>>(
        &mut self,
        path: &str,
        form: &F,
        values: impl IntoIterator<Item = &'v F::Value>,
    ) {
        let mut values = values.into_iter().peekable();
        if values.peek().is_none() {
            return;
        }
        self.put(path, |out| {
            out.push('[');
            for (i, value) in values.enumerate() {
                if i > 0 {
                    out.push(',');
                }
                form.show(value, out);
            }
            out.push(']');
        });
    }

    /// Takes out a field, or all that is below it.
    pub fn remove(&mut self, path: &str) {
        let text = &self.text;
        let within = |own: &str| own.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        self.fields.retain(|[from, value, _]| !within(&text[*from..*value]));
    }

    /// The document as one line of JSON.
    pub fn line(mut self, kind: &str) -> String {
        let text = &self.text;
        // Names have no byte below the dot, so this is the order of the names in each mapping.
        self.fields.sort_unstable_by(|a, b| text[a[0]..a[1]].cmp(&text[b[0]..b[1]]));
        let mut fields = self.fields.iter().map(|f| (&text[f[0]..f[1]], &text[f[1]..f[2]])).peekable();
        let mut out = String::with_capacity(text.len() + 128);
        out.push_str("{\"apiVersion\":\"tunny/v1\",\"kind\":\"");
        out.push_str(kind);
        out.push('"');
        for (top, head) in [("metadata.", ",\"metadata\":{"), ("spec.", ",\"spec\":{")] {
            out.push_str(head);
            // The path of the mapping that is being written, with a dot behind it.
            let mut open = top;
            while let Some((path, value)) = fields.next_if(|(path, _)| path.starts_with(top)) {
                while !path.starts_with(open) {
                    out.push('}');
                    open = above(open);
                }
                if !out.ends_with('{') {
                    out.push(',');
                }
                let mut rest = &path[open.len()..];
                while let Some((name, below)) = rest.split_once('.') {
                    key(&mut out, name);
                    out.push('{');
                    rest = below;
                }
                open = &path[..path.len() - rest.len()];
                key(&mut out, rest);
                out.push_str(value);
            }
            (0..open.matches('.').count()).for_each(|_| out.push('}'));
        }
        out.push('}');
        out
    }
}

fn key(out: &mut String, name: &str) {
    out.push('"');
    out.push_str(name);
    out.push_str("\":");
}

/// The path above one that ends in a dot.
fn above(path: &str) -> &str {
    let name = path[..path.len() - 1].rfind('.').map_or(0, |dot| dot + 1);
    &path[..name]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the order in which fields come: the line is that of a tree of them.
    #[test]
    fn a_line_is_what_a_tree_would_be() {
        let fields = [
            ("spec.b.c", "plain"),
            ("metadata.name", "a\"b\\c\n\u{1}ä"),
            ("spec.b.a.x", ""),
            ("spec.ba", "\u{7f}"),
            ("spec.b.a.b", "x"),
            ("spec.a", "\t"),
            ("spec.c.x.y.z", "deep"),
            ("spec.d", "last"),
        ];
        for first in 0..fields.len() {
            let mut written = Written::new();
            let mut tree = serde_json::json!({"apiVersion": "tunny/v1", "kind": "Some", "metadata": {}, "spec": {}});
            for (path, text) in fields.iter().cycle().skip(first).take(5) {
                written.text(path, text);
                *path.split('.').fold(&mut tree, |at, name| &mut at[name]) = (*text).into();
            }
            assert_eq!(written.line("Some"), tree.to_string());
        }
    }

    #[test]
    fn what_goes_without_saying_is_taken_out() {
        let mut written = Written::new();
        for path in ["spec.a", "spec.ab", "spec.b.x", "spec.b.y", "spec.c.x"] {
            written.put(path, |out| number(out, 1));
        }
        ["spec.a", "spec.b", "spec.c.x"].iter().for_each(|path| written.remove(path));
        assert!(written.line("Some").ends_with(r#""metadata":{},"spec":{"ab":1}}"#));
    }
}
