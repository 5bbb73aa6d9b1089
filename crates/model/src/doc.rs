// SPDX-License-Identifier: Apache-2.0
//! From a YAML tree to an object: every fault of a document is found in one go, each at its own line and column.

use crate::broken::{node_at, references, stand_ins, Broken};
use crate::declare::Form;
use crate::error::{ConfigError, Place, Problem};
use crate::kinds::{Kind, Name, Object};
use crate::schema::{self, Branch};
use crate::yaml::{Node, Pos, Value};
use crate::ERRORS_MAX;
use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// Where the fields of a document stand: path and place, in the order of the text.
pub(crate) type Marks = Box<[(Box<str>, Pos)]>;

/// Makes equal names share one allocation.
#[derive(Default)]
pub(crate) struct Names {
    all: HashSet<Name>,
    /// The last two, the later one first: objects of a VPC follow each other.
    last: [Name; 2],
}

impl Names {
    pub fn get(&mut self, s: &str) -> Name {
        if *self.last[0] != *s {
            self.last.swap(0, 1);
            if *self.last[0] != *s {
                self.last[0] = self.find(s);
            }
        }
        self.last[0].clone()
    }

    fn find(&mut self, s: &str) -> Name {
        if let Some(n) = self.all.get(s) {
            return n.clone();
        }
        let n: Name = s.into();
        self.all.insert(n.clone());
        n
    }
}

/// Fields of one mapping that are looked at; no kind has as many.
const KEYS_MAX: usize = 100;

/// A document being read.
pub(crate) struct Doc<'a> {
    file: &'a Arc<str>,
    root: &'a Node<'a>,
    spec: Option<&'a Node<'a>>,
    kind: Kind,
    name: &'a str,
    names: &'a mut Names,
    errors: &'a mut Vec<ConfigError>,
    /// Those of values begin here.
    values: usize,
    /// See [`Broken::kept`].
    kept: Vec<(Box<str>, Vec<usize>)>,
}

/// The object of a document. Its errors go to `errors`; then what is known of it all the same is returned, if at least its
/// kind is. `marks`: whether the places of its fields are wanted.
pub(crate) fn decode(
    file: &Arc<str>,
    root: &Node<'_>,
    names: &mut Names,
    errors: &mut Vec<ConfigError>,
    marks: bool,
) -> Result<(Object, Marks), Option<Broken>> {
    let before = errors.len();
    let kind = head(file, root, errors).ok_or(None)?;
    let spec = node_at(root, "spec");
    let name = node_at(root, "metadata.name").and_then(Node::text).unwrap_or_default();
    let mut doc = Doc { file, root, spec, kind, name, names, errors, values: 0, kept: Vec::new() };
    let mut places = marks.then(Vec::new);
    let mut unfit = Vec::new();
    doc.structure(root, schema::tree(kind), &mut places, &mut unfit);
    doc.values = doc.errors.len();
    for (branch, node) in unfit {
        let allowed = format!("a mapping of {}", branch.names());
        doc.error(node.at, &branch.path, Problem::WrongType { found: node.type_name() }, allowed);
    }
    let object = (kind.declared().read)(&mut doc);
    let (of_values, kept) = (doc.values, doc.kept);
    let marks = places.unwrap_or_default().into();
    match object {
        Some(object) if errors.len() == before => Ok((object, marks)),
        object => {
            let wrong: Box<[Box<str>]> = errors[of_values..].iter().map(|e| e.field.as_str().into()).collect();
            let mut references = references(kind, root);
            // What the object has of them is checked with it.
            let unknown =
                |field: &str| wrong.iter().any(|w| w.strip_prefix("spec.") == Some("scope")) && field == "spec.peer";
            references.retain(|(field, ..)| object.is_none() || unknown(field));
            let name = object.as_ref().map_or_else(|| name.into(), Object::name);
            Err(Some(Broken { kind, name, object, references, wrong, kept: kept.into(), marks }))
        }
    }
}

/// Checks apiVersion and kind, without which nothing else means anything.
fn head(file: &Arc<str>, root: &Node<'_>, errors: &mut Vec<ConfigError>) -> Option<Kind> {
    let mut fail = |at: Pos, field: &str, problem: Problem, allowed: &str| {
        let place = Place { file: file.clone(), line: at.line, column: at.column };
        let (field, allowed) = (field.to_string(), allowed.to_string());
        errors.push(ConfigError { place, kind: None, name: String::new(), field, problem, allowed });
    };
    let Value::Map(map) = &root.value else {
        let form = format!("the document is {}, not a mapping", root.type_name());
        fail(root.at, "", Problem::Form(form), "apiVersion, kind, metadata, spec");
        return None;
    };
    let text = |name: &str| {
        let (_, _, node) = map.iter().find(|(k, _, _)| k == name)?;
        Some(match &node.value {
            Value::Scalar { text, .. } => (&**text, node.at),
            _ => ("", node.at),
        })
    };
    let version = text("apiVersion");
    match version {
        None => fail(root.at, "apiVersion", Problem::Missing, "tunny/v1"),
        Some(("tunny/v1", _)) => {}
        Some((v, at)) => fail(at, "apiVersion", Problem::Value(format!("`{v}` is not spoken here")), "tunny/v1"),
    }
    let kinds = schema::kinds;
    let Some((name, at)) = text("kind") else {
        fail(root.at, "kind", Problem::Missing, &kinds());
        return None;
    };
    let Some(kind) = Kind::ALL.into_iter().find(|k| k.name() == name) else {
        let near =
            nearest(name, &Kind::ALL.map(|k| k.name())).map_or(String::new(), |n| format!(" (did you mean `{n}`?)"));
        fail(at, "kind", Problem::Value(format!("`{name}` is no kind{near}")), &kinds());
        return None;
    };
    Some(kind)
}

impl<'a> Doc<'a> {
    pub fn error(&mut self, at: Pos, field: &str, problem: Problem, allowed: String) {
        let place = Place { file: self.file.clone(), line: at.line, column: at.column };
        let (name, field) = (self.name.to_string(), field.to_string());
        self.errors.push(ConfigError { place, kind: Some(self.kind), name, field, problem, allowed });
    }

    /// Something is wrong with a field, at its place or at the nearest one above.
    pub fn wrong(&mut self, path: &str, problem: Problem) {
        let at = self.node(path).map_or_else(|| self.place_of(path), |n| n.at);
        self.error(at, path, problem, schema::allowed(self.kind, path));
    }

    /// Something is wrong with an entry that [`Doc::list`] gave.
    pub fn wrong_entry(&mut self, path: &str, i: usize, problem: Problem, allowed: &str) {
        let at = self.node(path).map_or(self.root.at, |n| n.at);
        let i = self.entry(path, i);
        self.error(at, &format!("{path}[{i}]"), problem, allowed.into());
    }

    /// Finds unknown and repeated fields, notes where every field stands, and what stands where a mapping is needed.
    fn structure(
        &mut self,
        node: &'a Node<'a>,
        branch: &'static Branch,
        marks: &mut Option<Vec<(Box<str>, Pos)>>,
        unfit: &mut Vec<(&'static Branch, &'a Node<'a>)>,
    ) {
        if let Some(marks) = marks {
            marks.push((branch.path.as_str().into(), node.at));
        }
        match &node.value {
            Value::Map(map) if !branch.below.is_empty() => {
                if map.len() > KEYS_MAX {
                    let why = format!("has {} fields", map.len());
                    self.error(node.at, &branch.path, Problem::Value(why), branch.names());
                }
                // In the order of the alphabet none can be there twice.
                let mut ordered = true;
                for (i, (key, at, value)) in map.iter().take(KEYS_MAX).enumerate() {
                    ordered &= i == 0 || map[i - 1].0 < *key;
                    let earlier = if ordered { &[] } else { &map[..i] };
                    let known = branch.below.iter().find(|b| *b.name == **key);
                    if let Some((_, first, _)) = earlier.iter().find(|(k, _, _)| k == key) {
                        let first = first.line;
                        self.error(*at, &branch.below(key), Problem::DuplicateField { first }, String::new());
                    } else if let Some(known) = known {
                        self.structure(value, known, marks, unfit);
                    } else {
                        let names: Vec<&str> = branch.below.iter().map(|b| b.name.as_str()).collect();
                        let near = nearest(key, &names);
                        self.error(*at, &branch.below(key), Problem::UnknownField { near }, branch.names());
                    }
                }
            }
            _ if !branch.below.is_empty() && !branch.path.is_empty() && !node.is_null() => unfit.push((branch, node)),
            Value::List(list) => {
                if let Some(marks) = marks {
                    marks.extend(list.iter().enumerate().map(|(i, n)| (branch.entry(i), n.at)));
                }
            }
            _ => {}
        }
    }

    /// The node at a path; one without a value counts as absent.
    pub fn node(&self, path: &str) -> Option<&'a Node<'a>> {
        match path.strip_prefix("spec.") {
            Some(path) => node_at(self.spec?, path),
            None => node_at(self.root, path),
        }
    }

    /// A text of which equal ones share one allocation.
    pub fn shared(&mut self, text: &str) -> Name {
        self.names.get(text)
    }

    /// The text at a path.
    pub fn text(&self, path: &str) -> Option<&'a str> {
        self.node(path)?.text()
    }

    /// Place of the nearest node above a path.
    pub fn place_of(&self, path: &str) -> Pos {
        let mut path = path;
        loop {
            let Some((above, _)) = path.rsplit_once('.') else { return self.root.at };
            if let Some(n) = self.node(above) {
                return n.at;
            }
            path = above;
        }
    }

    /// A scalar field; `None` if it is absent or wrong (which is then reported).
    pub fn get<F: Form>(&mut self, path: &str, form: &F) -> Option<F::Value> {
        self.parse(self.node(path)?, path, form)
    }

    fn parse<F: Form>(&mut self, node: &Node<'_>, path: &str, form: &F) -> Option<F::Value> {
        let result = match &node.value {
            Value::Scalar { text, .. } => form.parse(text, self.names).map_err(Problem::Value),
            _ => Err(Problem::WrongType { found: node.type_name() }),
        };
        result.map_err(|p| self.error(node.at, path, p, schema::allowed(self.kind, path))).ok()
    }

    /// A scalar field that must be there.
    pub fn need<F: Form>(&mut self, path: &str, form: &F) -> Option<F::Value> {
        match self.node(path) {
            Some(node) => self.parse(node, path, form),
            None => {
                self.missing(path);
                None
            }
        }
    }

    fn missing(&mut self, path: &str) {
        let at = self.place_of(path);
        self.error(at, path, Problem::Missing, schema::allowed(self.kind, path));
    }

    pub fn must_exist(&mut self, path: &str) -> bool {
        let exists = self.node(path).is_some();
        if !exists {
            self.missing(path);
        }
        exists
    }

    /// Whether the value at a path, or something in it, is wrong.
    pub fn is_wrong(&self, path: &str) -> bool {
        self.errors[self.values..].iter().any(|e| e.field.starts_with(path))
    }

    /// The place in the text of an entry that [`Doc::list`] gave.
    pub fn entry(&self, path: &str, i: usize) -> usize {
        let kept = self.kept.iter().find(|(list, _)| **list == *path);
        kept.and_then(|(_, places)| places.get(i).copied()).unwrap_or(i)
    }

    /// Whether a list has entries and the first one of its text is right.
    pub fn has_first(&self, path: &str) -> bool {
        match self.kept.iter().find(|(list, _)| **list == *path) {
            Some((_, places)) => places.first() == Some(&0),
            None => !self.is_wrong(path),
        }
    }

    /// A list of scalars with at most `max` entries, each once; empty if absent. Wrong entries are reported and left out.
    pub fn list<F: Form>(&mut self, path: &str, max: usize, form: &F) -> Vec<F::Value>
    where
        F::Value: Eq + Hash,
    {
        let Some(node) = self.node(path) else { return Vec::new() };
        let (mut out, mut wrong, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        let mut seen = None;
        match &node.value {
            Value::List(items) => {
                if items.len() > max {
                    wrong.push((node.at, path.to_string(), Problem::Value(format!("has {} entries", items.len()))));
                }
                // Of a few the comparison of each with all is quicker than their hashes.
                let few = items.len() <= 8;
                out.reserve(items.len().min(max));
                for (i, item) in items.iter().take(max).enumerate() {
                    if wrong.len() > ERRORS_MAX {
                        break;
                    }
                    let parsed = match &item.value {
                        Value::Scalar { text, .. } => {
                            form.parse(text, self.names).map(|v| (v, text)).map_err(Problem::Value)
                        }
                        _ => Err(Problem::WrongType { found: item.type_name() }),
                    };
                    match parsed {
                        Ok((v, text))
                            if if few {
                                out.contains(&v)
                            } else {
                                !seen.get_or_insert_with(HashSet::new).insert(v.clone())
                            } =>
                        {
                            let twice = Problem::DuplicateReference { name: text.to_string() };
                            wrong.push((item.at, format!("{path}[{i}]"), twice));
                        }
                        Ok((v, _)) => {
                            out.push(v);
                            kept.push(i);
                        }
                        Err(p) => wrong.push((item.at, format!("{path}[{i}]"), p)),
                    }
                }
            }
            _ => wrong.push((node.at, path.to_string(), Problem::WrongType { found: node.type_name() })),
        }
        if !wrong.is_empty() {
            self.kept.push((path.into(), kept));
        }
        for (at, path, problem) in wrong {
            let allowed = schema::allowed(self.kind, &path);
            self.error(at, &path, problem, allowed);
        }
        out
    }

    /// `metadata.name`. What is wrong still tells documents apart.
    pub fn own_name(&mut self) -> Name {
        match self.need("metadata.name", &crate::forms::own_name()) {
            Some(name) => name,
            None => self.written_name(),
        }
    }

    fn written_name(&self) -> Name {
        if self.name.is_empty() {
            return stand_ins::name();
        }
        self.name.into()
    }

    /// `metadata.name` of a kind that may go without.
    pub fn optional_name(&mut self) -> Option<Name> {
        let canonical = self.name.contains('/') && self.canonical_name().as_deref() == Some(self.name);
        if canonical {
            return None;
        }
        let name = self.get("metadata.name", &crate::forms::own_name());
        name.or_else(|| self.is_wrong("metadata").then(|| self.written_name()))
    }

    /// The name that a Vm or Route has if it gives none.
    fn canonical_name(&self) -> Option<String> {
        let first = || match self.node("spec.addresses").map(|n| &n.value) {
            Some(Value::List(list)) => list.first().and_then(Node::text),
            _ => self.text("spec.addresses"),
        };
        let second = self.text("spec.prefix").or_else(first);
        Some(format!("{}/{}", self.text("spec.vpc")?, second?))
    }
}

/// The nearest of known words, if one is near.
pub fn nearest(wrong: &str, known: &[&str]) -> Option<String> {
    let lower = wrong.to_ascii_lowercase();
    let scored = known.iter().map(|k| (distance(&lower, &k.to_ascii_lowercase()), k));
    scored.min().filter(|(d, k)| *d <= 1 + k.len() / 4).map(|(_, k)| k.to_string())
}

/// Edit distance; bounded, since `wrong` comes from outside.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(40).collect(), b.chars().collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replace = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// Refuses what cannot be a name.
pub fn check_name(s: &str) -> Result<(), String> {
    let first = s.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    let rest = s.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if first && rest && s.len() <= 63 {
        return Ok(());
    }
    Err(format!("`{}` is no name", s.chars().take(80).collect::<String>().escape_debug()))
}
