// SPDX-License-Identifier: Apache-2.0
//! Dumps of real pipelines, in a folder beside the project's; the tests are skipped without it (crate `skip`).
use pipeline::text::{import, ImportOptions};
use pipeline::{Import, ImportErrors};
use std::path::PathBuf;

fn dumps() -> Vec<(String, String)> {
    let Some(folder) = skip::have_shared("data/ovs-pipelines") else { return Vec::new() };
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("folder").map(|e| e.expect("entry").path()).collect();
    assert!(!files.is_empty(), "a folder without dumps");
    files.sort();
    files
        .into_iter()
        .map(|p| {
            (p.file_name().expect("name").to_string_lossy().into_owned(), std::fs::read_to_string(p).expect("text"))
        })
        .collect()
}

/// One line of one file is cut off (a backslash, and then the next flow); two lines of another one are no flows; six of the last one track packets that
/// need not be IP, which no switch takes.
const DAMAGED: [(&str, usize, (u32, u32)); 3] = [
    ("antrea_documented.flows", 1, (47, 93)),
    ("antrea_network_policy_expected.flows", 2, (1, 1)),
    ("neutron_firewall.flows", 6, (50, 54)),
];

fn load(name: &str, text: &str) -> Import {
    let options =
        ImportOptions { source: name.into(), lenient: DAMAGED.iter().any(|d| d.0 == name), ..ImportOptions::default() };
    import(text, &options).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn all_dumps_import() {
    for (name, text) in dumps() {
        let import = load(&name, &text);
        let lines = text.lines().filter(|l| l.contains("actions=")).count();
        assert_eq!(import.flows, lines, "{name}");
        println!("{name}: {} flows, {} tables", import.flows, import.pipeline.tables().count());
        let damaged = DAMAGED.iter().find(|d| d.0 == name);
        assert_eq!(import.unsupported.len(), damaged.map_or(0, |d| d.1), "{name}: {:?}", import.unsupported);
        if let Some((_, count, place)) = damaged {
            let strict = import_strictly(&text);
            assert_eq!(
                (strict.errors.len(), (strict.errors[0].line, strict.errors[0].column)),
                (*count, *place),
                "{strict}"
            );
        }
    }
}

fn import_strictly(text: &str) -> ImportErrors {
    import(text, &ImportOptions::default()).expect_err("lines are damaged")
}
