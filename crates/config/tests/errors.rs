// SPDX-License-Identifier: Apache-2.0
//! The words that a wrong configuration gets. `TUNNY_BLESS=1 cargo test -p config --test errors` writes the expectation
//! anew; read the difference before committing it.

use config::{parse_text, validate_files, ConfigError, Model};
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
