// SPDX-License-Identifier: Apache-2.0
//! Refuses words that the glossary has retired, as names: identifiers and files of Rust and C. Comments and texts may use them, for most
//! are ordinary English.

use std::path::Path;

/// Where the list is.
const GLOSSARY: &str = "docs/glossary.md";
const HEADING: &str = "## Words that Tunny no longer uses";

/// A retired name: exactly this, its plural, and if it is in small letters also with a capital.
#[derive(Debug, PartialEq)]
pub struct Retired {
    name: String,
    instead: String,
    /// Only as the name of a file.
    files: bool,
    /// Folders in which it keeps its name.
    but_in: Vec<String>,
}

impl Retired {
    fn is(&self, name: &str) -> bool {
        let one = name.strip_suffix('s').filter(|one| !one.is_empty()).unwrap_or(name);
        [name, one].iter().any(|n| {
            let mut chars = n.chars();
            let small = chars.next().map(|first| first.to_ascii_lowercase().to_string() + chars.as_str());
            *n == self.name || small.is_some_and(|n| n == self.name)
        })
    }
}

/// The rows of the glossary's last table that say `done`. An empty list is an error: the table was moved.
pub fn retired(root: &Path) -> Result<Vec<Retired>, String> {
    let text = std::fs::read_to_string(root.join(GLOSSARY)).map_err(|e| format!("{GLOSSARY}: {e}"))?;
    let table = text.split(HEADING).nth(1).ok_or_else(|| format!("{GLOSSARY}: there is no `{HEADING}`"))?;
    let rows: Vec<Retired> = table.lines().flat_map(row).collect();
    if rows.is_empty() {
        return Err(format!("{GLOSSARY}: no row below `{HEADING}` says `done`"));
    }
    Ok(rows)
}

/// `| one, two (files) | instead | done, but in `crates/x` |`.
fn row(line: &str) -> Vec<Retired> {
    let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
    let [names, instead, state] = cells[..] else { return Vec::new() };
    if !state.starts_with("done") {
        return Vec::new();
    }
    let but_in: Vec<String> = state.split('`').skip(1).step_by(2).map(String::from).collect();
    let (names, files) = names.strip_suffix("(files)").map_or((names, false), |n| (n, true));
    let retired = |name: &str| Retired {
        name: name.trim().to_string(),
        instead: instead.to_string(),
        files,
        but_in: but_in.clone(),
    };
    names.split(',').map(retired).collect()
}

/// Adds a sentence for each retired name.
pub fn check(name: &str, text: &str, retired: &[Retired], out: &mut Vec<String>) {
    if ![".rs", ".c", ".h"].iter().any(|end| name.ends_with(end)) {
        return;
    }
    let here: Vec<&Retired> =
        retired.iter().filter(|r| !r.but_in.iter().any(|f| name.starts_with(f.as_str()))).collect();
    let stem = name.rsplit('/').next().and_then(|file| file.split('.').next()).unwrap_or("");
    for r in here.iter().filter(|r| r.is(stem)) {
        out.push(format!("{name}: the glossary has retired `{}` as a name: {}", r.name, r.instead));
    }
    for (i, line) in code_of(text, false).lines().enumerate() {
        for word in line.split(|c: char| !c.is_alphanumeric() && c != '_') {
            if let Some(r) = here.iter().find(|r| !r.files && r.is(word)) {
                out.push(format!("{name}:{}: the glossary has retired `{word}` as a name: {}", i + 1, r.instead));
            }
        }
    }
}

/// The text without comments, and without string literals if `strings` is not set; lines stay where they are.
pub fn code_of(text: &str, strings: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['/', '"', '\'']) {
        out.push_str(&rest[..at]);
        let here = &rest[at..];
        let length = if here.starts_with("//") {
            here.find('\n').unwrap_or(here.len())
        } else if here.starts_with("/*") {
            here.find("*/").map_or(here.len(), |end| end + 2)
        } else if here.starts_with('"') {
            string(here, out.ends_with('#') || out.ends_with('r'))
        } else if here.starts_with("'\"'") || here.starts_with("'\\\"'") {
            here[1..].find('\'').map_or(1, |end| end + 2)
        } else {
            out.push_str(&here[..1]);
            rest = &here[1..];
            continue;
        };
        match strings && !here.starts_with('/') {
            true => out.push_str(&here[..length]),
            false => out.extend(here[..length].matches('\n')),
        }
        rest = &here[length..];
    }
    out + rest
}

/// Bytes of a string literal that begins here. A raw one has no escapes; none of the tree's ends in a quote with a `#` inside.
fn string(text: &str, raw: bool) -> usize {
    let mut escaped = false;
    for (i, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' if !raw => escaped = true,
            '"' if !raw || !text[i + 1..].starts_with(|c: char| c.is_alphanumeric()) => return i + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "| way | path | done, but in `crates/chip` |\n| Held | queue | done |\n| steps (files) | startup | done |\n| home | bucket | |";

    fn found(name: &str, text: &str) -> Vec<String> {
        let retired: Vec<Retired> = TABLE.lines().flat_map(row).collect();
        let mut out = Vec::new();
        check(name, text, &retired, &mut out);
        out
    }

    #[test]
    fn a_retired_word_is_refused_as_a_name_and_nowhere_else() {
        let names = "let way = Ways::new();\nstruct Held;\nlet (home, held, ends, away) = (1, 2, 3, 4);\n";
        let want = [(1, "way", "path"), (1, "Ways", "path"), (2, "Held", "queue")];
        let want = want.map(|(line, word, instead)| {
            format!("crates/x/src/a.rs:{line}: the glossary has retired `{word}` as a name: {instead}")
        });
        assert_eq!(found("crates/x/src/a.rs", names), want);
        assert_eq!(found("crates/chip/src/a.rs", "let way = 1;"), Vec::<String>::new());
        let english =
            "// by the way\nlet a = \"a way \\\" way\"; /* way\n way */ let b = '\"';\nlet c = r#\"way\"#;\n/// ways";
        assert_eq!(found("bpf/stages/a.h", english), Vec::<String>::new());
        assert_eq!(found("crates/x/src/steps.rs", "").len(), 1);
        assert_eq!(found("crates/x/src/way.rs", "").len(), 1);
    }

    #[test]
    fn the_glossarys_table_is_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        assert!(retired(&root).unwrap().iter().any(|r| r.is("Sight")));
    }
}
