// SPDX-License-Identifier: Apache-2.0
//! Files of documents: YAML, and NDJSON (one document of the same form as JSON a line) for large sets.
//!
//! A line of NDJSON becomes a tree without places first; if anything is wrong with what it says, the YAML reader reads it again and
//! says what is wrong where. Both trees are read by the same declarations.

use crate::binary::SnapshotError;
use crate::broken::Broken;
use crate::doc::{decode, Marks, Names};
use crate::error::{ConfigError, Place, Problem};
use crate::input::{is_ndjson, read_input};
use crate::kinds::*;
use crate::model::{sort_errors, Model};
use crate::quick;
use crate::yaml::{self, Pos};
use crate::ERRORS_MAX;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// First line of an export, which is whole if as many last lines as first ones are there.
pub const EXPORT_BEGINS: &str = "# An export of tunny: its last line says that it is whole.\n";
/// Beginning of the last line of an export; the number of its objects stands behind it.
pub const EXPORT_ENDS: &str = "# The end of the export. Objects: ";

/// Bytes of an NDJSON line at most.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// Where an object was described.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    file: u32,
    at: Pos,
    marks: Option<Arc<Marks>>,
    text: Option<Arc<Source>>,
}

/// The text of a document whose fields have not been placed. They are, once one of them is to be named.
#[derive(Debug)]
pub(crate) struct Source {
    text: String,
    /// The line of an NDJSON document in its file.
    line: Option<u32>,
    marks: OnceLock<Marks>,
}

impl Source {
    fn new(text: &str, line: Option<u32>) -> Option<Arc<Source>> {
        Some(Arc::new(Source { text: text.into(), line, marks: OnceLock::new() }))
    }

    fn marks(&self) -> &Marks {
        self.marks.get_or_init(|| {
            let (nodes, _) = yaml::parse(&self.text);
            let decoded = nodes
                .iter()
                .find(|n| !n.is_null())
                .map(|n| decode(&"".into(), n, &mut Names::default(), &mut Vec::new(), true));
            let mut marks = match decoded {
                Some(Ok((_, marks))) => marks,
                Some(Err(Some(broken))) => broken.marks,
                _ => Marks::default(),
            };
            marks.iter_mut().for_each(|(_, pos)| pos.line = self.line.unwrap_or(pos.line));
            marks
        })
    }
}

impl Origin {
    /// The text of the document, if it was kept.
    pub(crate) fn text(&self) -> Option<&str> {
        self.text.as_ref().map(|t| &*t.text)
    }

    /// Of something that no file describes.
    pub(crate) fn none() -> Origin {
        Origin { file: u32::MAX, ..Origin::default() }
    }
}

/// An object with its origin.
#[derive(Clone, Debug)]
pub struct Item {
    /// The object.
    pub object: Object,
    /// Where it was described.
    pub origin: Origin,
}

/// A set of objects to create or change, and of names to delete. The order means nothing.
#[derive(Clone, Debug, Default)]
pub struct Documents {
    files: Vec<Arc<str>>,
    broken: Vec<(Arc<Broken>, Origin)>,
    /// Read back from a journal: it was checked, by whatever version took it.
    pub(crate) recorded: bool,
    /// Objects that shall be as described.
    pub puts: Vec<Item>,
    /// Objects that shall go.
    pub deletes: Vec<(Kind, Name, Origin)>,
}

impl Documents {
    /// An empty set.
    pub fn new() -> Documents {
        Documents::default()
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.deletes.is_empty()
    }

    /// Number of objects and deletions.
    pub fn len(&self) -> usize {
        self.puts.len() + self.deletes.len()
    }

    /// Adds an object that no file describes.
    pub fn put(&mut self, object: Object) {
        self.puts.push(Item { object, origin: Origin::none() });
    }

    /// Adds a deletion.
    pub fn delete(&mut self, kind: Kind, name: &str) {
        self.deletes.push((kind, name.into(), Origin::none()));
    }

    /// The deletion of everything that is described here (`tunny delete -f FILE`).
    pub fn into_deletions(mut self) -> Documents {
        let gone = self.puts.drain(..).map(|i| (i.object.kind(), i.object.name(), i.origin));
        self.deletes.extend(gone);
        self
    }

    /// Documents with errors. Those of which the whole object is known are among the puts, too.
    pub(crate) fn broken(&self) -> &[(Arc<Broken>, Origin)] {
        &self.broken
    }

    /// Where an object of this origin stands.
    pub fn place(&self, origin: &Origin) -> Place {
        self.place_of(origin, "")
    }

    /// Where a field of an object stands; the nearest place above it if the field was not written.
    pub(crate) fn place_of(&self, origin: &Origin, field: &str) -> Place {
        let file = self.files.get(origin.file as usize).cloned().unwrap_or_else(|| "".into());
        let mut at = origin.at;
        let placed = || origin.text.as_ref().filter(|_| !field.is_empty()).map(|t| t.marks());
        if let Some(marks) = origin.marks.as_deref().or_else(placed) {
            let mut path = field;
            loop {
                if let Some((_, pos)) = marks.iter().find(|(p, _)| **p == *path) {
                    at = *pos;
                    break;
                }
                let Some(cut) = path.rfind(['.', '[']) else { break };
                path = &path[..cut];
            }
        }
        Place { file, line: at.line, column: at.column }
    }

    /// A doubt about a field of an object, at the place where one of these documents describes it.
    pub fn doubt(&self, kind: Kind, name: &str, field: &str, problem: Problem) -> ConfigError {
        let described = self.puts.iter().find(|i| i.object.kind() == kind && *i.object.name() == *name);
        let place = self.place_of(described.map_or(&Origin::none(), |i| &i.origin), field);
        ConfigError { place, kind: Some(kind), name: name.into(), field: field.into(), problem, allowed: String::new() }
    }

    /// Reads one text, YAML or (if `name` ends in `.ndjson` or `.jsonl`, or the text shows it) NDJSON. Faults go to `errors`.
    pub fn read_text(&mut self, name: &str, text: &str, errors: &mut Vec<ConfigError>) {
        let file: Arc<str> = name.into();
        self.files.push(file.clone());
        let index = self.files.len() as u32 - 1;
        if name.ends_with(".ndjson") || name.ends_with(".jsonl") || is_ndjson(text.as_bytes()) {
            self.read_ndjson(index, &file, text, errors);
        } else {
            self.read_yaml(index, &file, text, errors);
        }
    }

    /// Reads one file's bytes: a binary snapshot, or text as [`Documents::read_text`] does. Faults go to `errors`.
    pub fn read_bytes(&mut self, name: &str, bytes: &[u8], errors: &mut Vec<ConfigError>) {
        match Model::from_snapshot(bytes) {
            Ok((model, _)) => {
                self.files.push(name.into());
                let origin = Origin { file: self.files.len() as u32 - 1, ..Origin::default() };
                let objects = Kind::ALL.into_iter().flat_map(|k| model.objects(k));
                self.puts.extend(objects.map(|object| Item { object, origin: origin.clone() }));
            }
            Err(SnapshotError::NotASnapshot) => match std::str::from_utf8(bytes) {
                Ok(text) => self.read_text(name, text, errors),
                Err(e) => {
                    let why = format!("byte {} is not UTF-8; is this a configuration?", e.valid_up_to());
                    errors.push(ConfigError::file(name, Problem::Unreadable(why)));
                }
            },
            Err(other) => errors.push(ConfigError::file(name, Problem::Unreadable(other.to_string()))),
        }
    }

    fn read_yaml(&mut self, index: u32, file: &Arc<str>, text: &str, errors: &mut Vec<ConfigError>) {
        if text.starts_with(EXPORT_BEGINS) && text.matches(EXPORT_BEGINS).count() > text.matches(EXPORT_ENDS).count() {
            let why = format!(
                "is cut: it begins as an export, and its last line (`{}`) is missing; export it again",
                EXPORT_ENDS.trim_end()
            );
            errors.push(ConfigError::file(file, Problem::Unreadable(why)));
        }
        if let Some((group, line)) = quick::group_of_yaml(text) {
            let at = Pos { line, column: 1 };
            return self.puts.push(Item {
                object: group,
                origin: Origin { file: index, at, marks: None, text: Source::new(text, None) },
            });
        }
        let mut names = Names::default();
        let fault = yaml::parse_each(text, |node| {
            if !node.is_null() {
                let decoded = decode(file, &node, &mut names, errors, true);
                self.take(decoded, index, node.at, |_| {});
            }
            if errors.len() > 2 * ERRORS_MAX {
                ConfigError::fold(errors);
            }
            true
        });
        if let Some(fault) = fault {
            errors.push(ConfigError {
                place: Place { file: file.clone(), line: fault.at.line, column: fault.at.column },
                problem: Problem::Syntax(fault.why),
                ..ConfigError::file(file, Problem::Missing)
            });
        }
    }

    /// Takes in what came of a document; `place` corrects its marks.
    fn take(
        &mut self,
        decoded: Result<(Object, Marks), Option<Broken>>,
        file: u32,
        at: Pos,
        place: impl FnOnce(&mut Marks),
    ) {
        let origin = |mut marks: Marks| {
            place(&mut marks);
            Origin { file, at, marks: Some(Arc::new(marks)), text: None }
        };
        match decoded {
            Ok((object, marks)) => self.puts.push(Item { object, origin: origin(marks) }),
            Err(Some(mut broken)) => {
                let origin = origin(std::mem::take(&mut broken.marks));
                self.puts.extend(broken.object.clone().map(|object| Item { object, origin: origin.clone() }));
                self.broken.push((Arc::new(broken), origin));
            }
            Err(None) => {}
        }
    }

    fn read_ndjson(&mut self, index: u32, file: &Arc<str>, text: &str, errors: &mut Vec<ConfigError>) {
        let mut names = Names::default();
        for (i, line) in text.split('\n').enumerate() {
            let at = Pos { line: i as u32 + 1, column: 1 };
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            if let Some(object) = quick_line(line, &mut names) {
                // Of the kinds that come by the million the line alone is told.
                let text = if is_many(&object) { None } else { Source::new(line, Some(at.line)) };
                self.puts.push(Item { object, origin: Origin { file: index, at, marks: None, text } });
                continue;
            }
            self.slow_line(index, file, at, line, &mut names, errors);
            if errors.len() > 2 * ERRORS_MAX {
                ConfigError::fold(errors);
            }
        }
    }

    /// A line of NDJSON as YAML, with the places shifted to the line.
    fn slow_line(
        &mut self,
        index: u32,
        file: &Arc<str>,
        at: Pos,
        line: &str,
        names: &mut Names,
        errors: &mut Vec<ConfigError>,
    ) {
        let mut fail = |column: u32, why: String| {
            errors.push(ConfigError {
                place: Place { file: file.clone(), line: at.line, column },
                problem: Problem::Form(why),
                ..ConfigError::file(file, Problem::Missing)
            })
        };
        if line.len() > LINE_BYTES_MAX {
            return fail(0, format!("the line has more than {LINE_BYTES_MAX} bytes"));
        }
        let (nodes, fault) = yaml::parse(line);
        if let Some(f) = fault {
            return fail(f.at.column, format!("the line is not JSON: {}", f.why));
        }
        let [node] = nodes.as_slice() else {
            return fail(1, "the line is not one JSON object".into());
        };
        let before = errors.len();
        let decoded = decode(file, node, names, errors, true);
        errors[before..].iter_mut().for_each(|e| e.place.line = at.line);
        self.take(decoded, index, at, |marks| marks.iter_mut().for_each(|(_, pos)| pos.line = at.line));
    }
}

/// Reads files; every fault of every file is reported at once. `-` is standard input (YAML).
pub fn parse_files<P: AsRef<Path>>(paths: &[P]) -> Result<Documents, Vec<ConfigError>> {
    let (docs, errors) = read_files(paths);
    finish(docs, errors)
}

/// Reads files and tries the result on a model: the documents, which the model accepts (and has not changed for), or every
/// error of the texts and of what they say together.
pub fn validate_files<P: AsRef<Path>>(
    paths: &[P],
    model: &mut Model,
) -> Result<(Documents, Vec<ConfigError>), Vec<ConfigError>> {
    let (docs, errors) = read_files(paths);
    if errors.is_empty() {
        let warnings = model.dry_run(&docs, |plan, _| plan.warnings().to_vec())?;
        return Ok((docs, warnings));
    }
    Err(every_error(&docs, errors, model))
}

/// The errors of texts with those of what the texts say together, on top of a model.
pub fn every_error(docs: &Documents, mut errors: Vec<ConfigError>, model: &mut Model) -> Vec<ConfigError> {
    errors.extend(model.dry_run(docs, |_, _| ()).err().into_iter().flatten());
    sort_errors(&mut errors);
    errors
}

fn read_files<P: AsRef<Path>>(paths: &[P]) -> (Documents, Vec<ConfigError>) {
    let (mut docs, mut errors) = (Documents::new(), Vec::new());
    for path in paths {
        let path = path.as_ref();
        let name = path.display().to_string();
        match read_input(path, u64::MAX) {
            Ok(bytes) => docs.read_bytes(&name, &bytes, &mut errors),
            Err(why) => errors.push(ConfigError::file(&name, Problem::Unreadable(why))),
        }
    }
    (docs, errors)
}

/// Reads one text; `name` stands for the file in errors.
pub fn parse_text(name: &str, text: &str) -> Result<Documents, Vec<ConfigError>> {
    let (mut docs, mut errors) = (Documents::new(), Vec::new());
    docs.read_text(name, text, &mut errors);
    finish(docs, errors)
}

fn finish(docs: Documents, mut errors: Vec<ConfigError>) -> Result<Documents, Vec<ConfigError>> {
    if errors.is_empty() {
        return Ok(docs);
    }
    ConfigError::fold(&mut errors);
    Err(errors)
}

/// The object of a line of JSON with which nothing is wrong.
pub(crate) fn quick_line(line: &str, names: &mut Names) -> Option<Object> {
    let node = (line.len() <= LINE_BYTES_MAX).then(|| yaml::quick_json(line))??;
    decode(&Arc::default(), &node, names, &mut Vec::new(), false).ok().map(|(object, _)| object)
}

fn is_many(object: &Object) -> bool {
    match object {
        Object::Vm(vm) => vm.meter.is_none() && vm.shape.is_none(),
        Object::Route(_) | Object::Nc(_) | Object::Peering(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VM: &str = r#"{"apiVersion":"tunny/v1","kind":"Vm","metadata":{},"spec":{"vpc":"red","addresses":["10.0.0.5"],"mac":"02:00:00:00:00:05","nc":"nc1"}}"#;

    #[test]
    fn both_readers_of_a_line_agree() {
        let mut names = Names::default();
        for line in [
            VM.to_string(),
            VM.replace("\"metadata\":{},", ""),
            VM.replace("{},", "{\"name\":\"web\"},"),
            VM.replace("\"10.0.0.5\"", "\"10.0.0.5\",\"fd00::5\",\"fd00::6\""),
            r#"{"apiVersion":"tunny/v1","kind":"Vpc","metadata":{"name":"v"},"spec":{"vni":7}}"#.into(),
            r#"{"apiVersion":"tunny/v1","kind":"Nc","metadata":{"name":"n"},"spec":{"address":"fd00::1","vpcs":["v"]}}"#.into(),
            r#"{"apiVersion":"tunny/v1","kind":"Peering","metadata":{"name":"p"},"spec":{"vpcs":["v","w"]}}"#.into(),
            r#"{"apiVersion":"tunny/v1","kind":"Vpc","metadata":{"name":"v"},"spec":{"vni":7,"icmp":"off","gateway":{"addresses":["10.0.0.1"],"mac":"02:00:00:00:00:01"},"peerings":["p"]}}"#.into(),
            r#"{"apiVersion":"tunny/v1","kind":"Route","metadata":{"name":"r"},"spec":{"vpc":"red","prefix":"10.0.0.0/8","scope":"peer","peer":"blue"}}"#.into(),
        ] {
            let fast = quick_line(&line, &mut names).expect(&line);
            let slow = parse_text("x.yaml", &line).unwrap();
            assert_eq!(slow.puts[0].object, fast, "{line}");
        }
    }

    #[test]
    fn a_bad_line_is_named() {
        let text = format!("{VM}\n\n{}\nnonsense {{\n", VM.replace("02:00", "01:00"));
        let errors = parse_text("x.ndjson", &text).unwrap_err();
        assert_eq!(errors.len(), 2, "{errors:?}");
        assert_eq!((errors[0].place.line, errors[0].field.as_str()), (3, "spec.mac"));
        assert!(errors[0].place.column > 50);
        assert_eq!(errors[1].place.line, 4);
    }
}
