// SPDX-License-Identifier: Apache-2.0
//! YAML text to trees in which every node knows its line and column.
//!
//! Scalars stay text: a field's own parser decides what `off`, `0x10` or `02:00:00:00:00:01` mean, so YAML's guesses about
//! types never get in the way. Anchors, aliases and tags are refused (they allow small texts to become huge trees), and so
//! are deep and large documents. JSON is read by the same way.

use granit_parser::{Event, Parser, ScalarStyle};
use std::borrow::Cow;

/// Bytes of a YAML file at most: what a full node exports. A larger configuration belongs into a snapshot form.
pub const YAML_BYTES_MAX: u64 = 2 << 30;
/// Nested collections at most.
pub const YAML_DEPTH_MAX: usize = 16;
/// Nodes of one document at most.
pub const YAML_NODES_MAX: usize = 1 << 20;

/// Line and column, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Pos {
    /// Line.
    pub line: u32,
    /// Column.
    pub column: u32,
}

/// A node of the tree.
#[derive(Clone, Debug)]
pub struct Node<'t> {
    /// Where it begins.
    pub at: Pos,
    /// What it is.
    pub value: Value<'t>,
}

/// What a node is.
#[derive(Clone, Debug)]
pub enum Value<'t> {
    /// Text.
    Scalar {
        /// The text.
        text: Cow<'t, str>,
        /// It was not quoted.
        plain: bool,
    },
    /// A list.
    List(Vec<Node<'t>>),
    /// Keys with their places, and values.
    Map(Vec<(Cow<'t, str>, Pos, Node<'t>)>),
}

impl Node<'_> {
    /// The text of a single value.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    /// An absent value: `key:` alone, `~` or `null`.
    pub fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, plain: true } if text.is_empty() || text == "~" || text == "null")
    }

    /// A list without entries.
    pub fn is_empty_list(&self) -> bool {
        matches!(&self.value, Value::List(list) if list.is_empty())
    }

    /// What it is, in words.
    pub fn type_name(&self) -> &'static str {
        match self.value {
            Value::Scalar { .. } => "a single value",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        }
    }
}

/// A fault of the text.
#[derive(Debug)]
pub struct Fault {
    /// Where.
    pub at: Pos,
    /// What is wrong.
    pub why: String,
}

/// The documents of a text. After a fault nothing more can be read; what came before it is returned too.
pub fn parse(text: &str) -> (Vec<Node<'_>>, Option<Fault>) {
    let mut documents = Vec::new();
    let fault = parse_each(text, |document| {
        documents.push(document);
        true
    });
    (documents, fault)
}

/// The same one by one, until `take` wants no more: the trees of a large text are never in memory together.
pub(crate) fn parse_each<'t>(text: &'t str, mut take: impl FnMut(Node<'t>) -> bool) -> Option<Fault> {
    let mut b = Builder::default();
    for item in Parser::new_from_str(text) {
        let step = match item {
            Ok((event, span)) => {
                let at = Pos { line: span.start.line() as u32, column: span.start.col() as u32 + 1 };
                b.event(event, at).map_err(|why| Fault { at, why })
            }
            Err(e) => {
                let m = e.marker();
                let at = Pos { line: m.line() as u32, column: m.col() as u32 + 1 };
                Err(Fault { at, why: e.info().to_string() })
            }
        };
        if let Err(fault) = step {
            return Some(fault);
        }
        if b.documents.drain(..).any(|document| !take(document)) {
            return None;
        }
    }
    None
}

/// A collection that is being read, with the key that waits for its value.
struct Open<'t> {
    node: Node<'t>,
    key: Option<(Cow<'t, str>, Pos)>,
}

#[derive(Default)]
struct Builder<'t> {
    documents: Vec<Node<'t>>,
    open: Vec<Open<'t>>,
    nodes: usize,
}

impl<'t> Builder<'t> {
    fn event(&mut self, event: Event<'t>, at: Pos) -> Result<(), String> {
        match event {
            Event::DocumentStart(..) => self.nodes = 0,
            Event::Scalar(text, style, anchor, tag) => {
                refuse_extras(anchor, tag.is_some())?;
                let plain = matches!(style, ScalarStyle::Plain);
                self.add(Node { at, value: Value::Scalar { text, plain } })?;
            }
            Event::SequenceStart(_, anchor, tag) => {
                refuse_extras(anchor, tag.is_some())?;
                self.push(Node { at, value: Value::List(Vec::new()) })?;
            }
            Event::MappingStart(_, anchor, tag) => {
                refuse_extras(anchor, tag.is_some())?;
                self.push(Node { at, value: Value::Map(Vec::new()) })?;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(done) = self.open.pop() {
                    self.add(done.node)?;
                }
            }
            Event::Alias(_) | Event::UnresolvedAlias(_) => {
                return Err("aliases (`*name`) are not accepted: write the value out".into())
            }
            _ => {}
        }
        Ok(())
    }

    fn push(&mut self, node: Node<'t>) -> Result<(), String> {
        if self.open.len() >= YAML_DEPTH_MAX {
            return Err(format!("collections are nested more than {YAML_DEPTH_MAX} deep"));
        }
        self.open.push(Open { node, key: None });
        Ok(())
    }

    fn add(&mut self, node: Node<'t>) -> Result<(), String> {
        self.nodes += 1;
        if self.nodes > YAML_NODES_MAX {
            return Err(format!("the document has more than {YAML_NODES_MAX} values"));
        }
        let Some(parent) = self.open.last_mut() else {
            self.documents.push(node);
            return Ok(());
        };
        match &mut parent.node.value {
            Value::List(list) => list.push(node),
            Value::Map(map) => match parent.key.take() {
                Some((key, at)) => map.push((key, at, node)),
                None => match node.value {
                    Value::Scalar { text, .. } => parent.key = Some((text, node.at)),
                    _ => return Err("a key must be a single word".into()),
                },
            },
            Value::Scalar { .. } => {}
        }
        Ok(())
    }
}

/// A line of JSON as a tree whose nodes know no places: for texts that are right, which is nearly all of them. `None`: it takes the
/// other reader to say what it is.
pub(crate) fn quick_json(line: &str) -> Option<Node<'_>> {
    let mut json = Json { text: line, at: 0 };
    let node = json.node(YAML_DEPTH_MAX)?;
    json.next().is_none().then_some(node)
}

/// What is left of a line of JSON. Texts with escapes, numbers that are not whole and `null` are left to the other reader.
struct Json<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Json<'t> {
    /// The next byte that is not blank.
    fn next(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while self.at < bytes.len() {
            match bytes[self.at] {
                b' ' | b'\t' | b'\r' | b'\n' => self.at += 1,
                byte => return Some(byte),
            }
        }
        None
    }

    /// Whether that is `byte`, which is taken then.
    fn take(&mut self, byte: u8) -> bool {
        let taken = self.next() == Some(byte);
        self.at += usize::from(taken);
        taken
    }

    /// The words between quotes.
    fn quoted(&mut self) -> Option<&'t str> {
        if !self.take(b'"') {
            return None;
        }
        let (bytes, from) = (self.text.as_bytes(), self.at);
        while self.at < bytes.len() {
            match bytes[self.at] {
                b'"' => {
                    self.at += 1;
                    return Some(&self.text[from..self.at - 1]);
                }
                b'\\' | 0..0x20 => return None,
                _ => self.at += 1,
            }
        }
        None
    }

    /// A whole number, `true` or `false`.
    fn plain(&mut self) -> Option<&'t str> {
        let (bytes, from) = (self.text.as_bytes(), self.at);
        while self.at < bytes.len() && bytes[self.at].is_ascii_alphanumeric() {
            self.at += 1;
        }
        let word = &self.text[from..self.at];
        let number =
            word.len() < 20 && word.bytes().all(|b| b.is_ascii_digit()) && (word == "0" || !word.starts_with('0'));
        (word == "true" || word == "false" || number && !word.is_empty()).then_some(word)
    }

    /// A value with `depth` collections at most in each other.
    fn node(&mut self, depth: usize) -> Option<Node<'t>> {
        let value = match self.next()? {
            b'"' => Value::Scalar { text: self.quoted()?.into(), plain: false },
            b'{' => Value::Map(self.entries(b'}', depth, |json, depth| {
                let key = json.quoted()?;
                json.take(b':').then_some(())?;
                Some((key.into(), Pos::default(), json.node(depth)?))
            })?),
            b'[' => Value::List(self.entries(b']', depth, Json::node)?),
            _ => Value::Scalar { text: self.plain()?.into(), plain: true },
        };
        Some(Node { at: Pos::default(), value })
    }

    /// What stands in brackets, of which `end` is the second one, with commas in between.
    fn entries<T>(&mut self, end: u8, depth: usize, entry: fn(&mut Self, usize) -> Option<T>) -> Option<Vec<T>> {
        self.at += 1;
        let (depth, mut entries) = (depth.checked_sub(1)?, Vec::new());
        if self.take(end) {
            return Some(entries);
        }
        loop {
            entries.push(entry(self, depth)?);
            if !self.take(b',') {
                return self.take(end).then_some(entries);
            }
        }
    }
}

fn refuse_extras(anchor: usize, tag: bool) -> Result<(), String> {
    if anchor != 0 {
        return Err("anchors (`&name`) are not accepted: write the value out".into());
    }
    if tag {
        return Err("tags (`!type`) are not accepted: each field knows its type".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_know_their_places() {
        let (docs, fault) = parse("a: 1\n---\nb:\n  - x\n  - {c: 'off'}\n");
        assert!(fault.is_none());
        assert_eq!(docs.len(), 2);
        let Value::Map(map) = &docs[1].value else { panic!("{docs:?}") };
        assert_eq!((&*map[0].0, map[0].1.line, map[0].1.column), ("b", 3, 1));
        let Value::List(list) = &map[0].2.value else { panic!() };
        assert_eq!((list[0].at.line, list[0].at.column), (4, 5));
        let Value::Map(inner) = &list[1].value else { panic!() };
        assert_eq!((inner[0].2.at.line, inner[0].2.at.column), (5, 9));
    }

    #[test]
    fn what_makes_texts_explode_is_refused() {
        for (text, word) in [
            ("a: &x 1\nb: *x\n", "anchors"),
            ("a: !!str 1\n", "tags"),
            ("[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]", "nested"),
            ("? [a]\n: 1\n", "single word"),
        ] {
            let (_, fault) = parse(text);
            let fault = fault.expect(text);
            assert!(fault.why.contains(word), "{text}: {}", fault.why);
        }
    }

    #[test]
    fn a_fault_keeps_what_came_before() {
        let (docs, fault) = parse("a: 1\n---\nb: [1, 2\n---\nc: 3\n");
        assert_eq!(docs.len(), 1);
        assert!(fault.unwrap().at.line >= 3);
    }
}
