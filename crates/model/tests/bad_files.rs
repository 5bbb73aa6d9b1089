// SPDX-License-Identifier: Apache-2.0
//! Wrong configuration files, one mistake each, and the exact words that each gets: `tests/bad/*.yaml`, whose last lines say
//! `# expect: …`. `TUNNY_BLESS=1 cargo test -p model --test bad_files` writes these lines anew; read the difference before committing it.

use model::{validate_files, Model};
use std::collections::HashMap;
use std::path::Path;

const EXPECT: &str = "# expect: ";
const FILES_MIN: usize = 50;

#[test]
fn a_bad_file_gets_the_words_that_stand_in_it() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad");
    let mut files: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let (mut wrong, mut seen) = (Vec::new(), HashMap::new());
    for file in &files {
        let name = file.file_name().unwrap().to_str().unwrap().to_string();
        let text = std::fs::read_to_string(file).unwrap();
        let (code, expected): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| !line.starts_with(EXPECT));
        // What is expected stands at the end, so that it moves no line of the rest.
        let errors = validate_files(&[file], &mut Model::new()).err().unwrap_or_default();
        let place = format!("{}/", dir.display());
        let said: Vec<String> =
            errors.iter().map(|e| format!("{EXPECT}{}", e.to_string().replace(&place, ""))).collect();
        if std::env::var_os("TUNNY_BLESS").is_some() {
            std::fs::write(file, format!("{}\n{}\n", code.join("\n"), said.join("\n"))).unwrap();
        } else if said != expected {
            wrong.push(format!("{name}: it says\n{}", said.join("\n")));
        }
        assert!(!said.is_empty(), "{name} is taken");
        assert!(said.iter().all(|line| !line.contains(|c: char| c.is_control())), "{name}: {said:?}");
        let words: Vec<String> = said.iter().map(|line| line.replace(&name, "")).collect();
        if let Some(other) = seen.insert(words, name.clone()) {
            panic!("{name} and {other} are the same mistake");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(files.len() >= FILES_MIN, "{} files", files.len());
}
