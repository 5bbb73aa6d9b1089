// SPDX-License-Identifier: Apache-2.0
//! The words that a wrong configuration gets. `TUNNY_BLESS=1 cargo test -p model --test errors` writes the expectation
//! anew; read the difference before committing it.

use compile::Compile;
use model::{parse_text, validate_files, ConfigError, Model};
use std::path::Path;

fn lines(errors: &[ConfigError]) -> String {
    errors.iter().map(|e| format!("{e}\n")).collect()
}

fn data(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn golden(name: &str, text: &str) {
    let path = data(name);
    if std::env::var_os("TUNNY_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(want == text, "{} differs; it would be:\n{text}", path.display());
}

#[test]
fn every_error_of_a_file_at_once_each_with_its_place() {
    let errors = validate_files(&[data("bad.yaml")], &mut Model::new()).unwrap_err();
    let dir = format!("{}/", data("").display().to_string().trim_end_matches('/'));
    golden("bad.expected", &lines(&errors).replace(&dir, ""));
    for e in &errors {
        assert!(e.place.line > 0 && e.place.column > 0, "{e}");
        assert_eq!(e.to_json()["line"], e.place.line);
    }
}

/// Of all kinds alike.
#[test]
fn a_wrong_value_hides_no_other_error_and_makes_none() {
    let errors = validate_files(&[data("beside.yaml")], &mut Model::new()).unwrap_err();
    let dir = format!("{}/", data("").display().to_string().trim_end_matches('/'));
    golden("beside.expected", &lines(&errors).replace(&dir, ""));
}

/// Where values of a text stand that are neither keys nor names that others refer to.
fn values(text: &str) -> Vec<std::ops::Range<usize>> {
    let mut found = Vec::new();
    let mut begin = 0;
    for line in text.split_inclusive('\n') {
        let code = line.split('#').next().unwrap_or_default().trim_end();
        let parts = code.split_inclusive([',', '{', '}', '[', ']', ' ']).scan(begin, |at, part| {
            *at += part.len();
            Some((*at - part.len(), part.trim_end_matches([',', '{', '}', '[', ']', ' '])))
        });
        let parts: Vec<_> = parts.filter(|(_, part)| !part.is_empty() && *part != "-" && *part != "---").collect();
        let keys = |i: usize| i > 0 && ["kind:", "apiVersion:", "name:"].contains(&parts[i - 1].1);
        let one = |i: usize| parts[i].0..parts[i].0 + parts[i].1.len();
        found.extend((0..parts.len()).filter(|i| !parts[*i].1.ends_with(':') && !keys(*i)).map(one));
        begin += line.len();
    }
    found
}

/// One value of a right configuration after the other is made wrong: it is the only error, and what there was before is as it was.
#[test]
fn a_wrong_value_is_one_error() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tried, mut wrong) = (0, Vec::new());
    for example in ["internet.yaml", "filter.yaml", "region.yaml"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(example);
        let text = std::fs::read_to_string(path).unwrap();
        let right = parse_text(example, &text).unwrap();
        // On nothing, and as a change of what is there.
        let there = Model::from_documents(&right).unwrap().0;
        for value in values(&text) {
            let broken = format!("{}?/!{}", &text[..value.start], &text[value.end..]);
            let path = dir.path().join("x.yaml");
            std::fs::write(&path, &broken).unwrap();
            for (mut model, before) in [(Model::new(), Model::new()), (there.clone(), there.clone())] {
                let errors = validate_files(&[&path], &mut model).err().unwrap_or_default();
                tried += 1;
                if errors.len() != 1 || !errors[0].problem.to_string().contains("`?") {
                    wrong.push(format!("{example}: {}\n{}", &text[value.clone()], lines(&errors)));
                }
                assert_eq!((model.conntrack(), model.counts()), (before.conntrack(), before.counts()));
            }
        }
    }
    assert!(wrong.is_empty() && tried > 300, "{} of {tried}\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_example_region_is_valid_without_a_warning() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/region.yaml");
    let (docs, warnings) = validate_files(&[path], &mut Model::new()).unwrap_or_else(|e| panic!("{}", lines(&e)));
    assert_eq!(lines(&warnings), "");
    assert_eq!(docs.len(), 23);
}

#[test]
fn a_missing_file_is_an_error_of_its_own() {
    let errors = validate_files(&[data("absent.yaml"), data("bad.yaml")], &mut Model::new()).unwrap_err();
    assert!(errors.iter().any(|e| e.to_string().contains("absent.yaml: cannot be read")), "{}", lines(&errors));
    assert!(errors.len() > 20);
}

#[test]
fn errors_of_documents_without_files_still_name_the_object() {
    let docs = parse_text("x.yaml", "{apiVersion: tunny/v1, kind: Peering, metadata: {name: p}, spec: {vpcs: [a, b]}}");
    let errors = Model::new().apply(&docs.unwrap()).unwrap_err();
    let text = lines(&errors);
    assert!(text.contains("x.yaml:1:74: Peering p: spec.vpcs[0] names Vpc `a`, which does not exist"), "{text}");
    assert_eq!(errors.len(), 2);
}
