// SPDX-License-Identifier: Apache-2.0
//! A quick reader for the text that a group of ten thousand rules has as a rule: a YAML file of one block document. It takes what it
//! knows for certain to be right, and says no more. All else goes to the YAML reader, which says what is wrong where.

use crate::doc::check_name;
use crate::kinds::{Kind, Object, SecurityGroup};
use filter::GROUP_RULES_MAX;

/// A scalar of plain words, in quotes or not, that means the same whatever stands around it.
fn scalar(text: &str) -> Option<&str> {
    let text = text.trim_end_matches(' ');
    let quoted = |q: char| text.strip_prefix(q).and_then(|t| t.strip_suffix(q));
    let inner = quoted('"').or_else(|| quoted('\'')).unwrap_or(text);
    let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b' ' | b'.' | b'/' | b':' | b'-' | b'_');
    let whole = inner.bytes().all(word) && inner.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    (whole && !inner.ends_with([':', ' ']) && !inner.contains(": ") && inner != "null").then_some(inner)
}

/// The value of `key: value`, if the line is that.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.strip_prefix(key)?.strip_prefix(": ").map(|v| v.trim_start_matches(' ')).and_then(scalar)
}

/// `true` or `false`, if the line says whether the group has state.
fn stateful(line: &str) -> Option<bool> {
    value(line, "stateful")?.parse().ok()
}

/// The group that a text of YAML describes, if it is one block document in the usual order and nothing else, with the line where it
/// begins.
pub(crate) fn group_of_yaml(text: &str) -> Option<(Object, u32)> {
    // What else may end a line, or must not be there, is left to those who know.
    if !text.bytes().all(|b| b == b'\n' || (b' '..=b'~').contains(&b)) {
        return None;
    }
    let lines = (1u32..).zip(text.split('\n')).map(|(number, line)| {
        let word = line.trim_start_matches(' ');
        (number, line.len() - word.len(), word)
    });
    let mut lines = lines.filter(|(_, _, word)| !word.is_empty() && !word.starts_with('#')).peekable();
    lines.next_if(|(_, indent, word)| (*indent, *word) == (0, "---"));
    let first = lines.peek()?.0;
    let head = [lines.next()?, lines.next()?];
    let says = |key, what| head.iter().any(|(_, indent, word)| *indent == 0 && value(word, key) == Some(what));
    if !says("apiVersion", "tunny/v1") || !says("kind", Kind::SecurityGroup.name()) {
        return None;
    }
    let (_, 0, metadata) = lines.next()? else { return None };
    let name = match metadata.strip_prefix("metadata:")?.trim_start_matches(' ') {
        "" => lines.next().filter(|(_, indent, _)| *indent > 0).and_then(|(.., word)| value(word, "name"))?,
        flow => value(flow.strip_prefix('{')?.strip_suffix('}')?.trim_matches(' '), "name")?,
    };
    let (_, 0, "spec:") = lines.next()? else { return None };
    let depth = lines.peek().map(|(_, indent, _)| *indent).filter(|indent| *indent > 0)?;
    let mut said = lines.next_if(|l| l.1 == depth && l.2.starts_with("stateful")).map(|l| stateful(l.2));
    lines.next_if(|l| (l.1, l.2) == (depth, "rules:"))?;
    let (items, mut rules) = (lines.peek()?.1, Vec::new());
    while let Some((.., item)) = lines.next_if(|l| l.1 == items && items >= depth && l.2.starts_with("- ")) {
        let text = scalar(item[2..].trim_start_matches(' '))?;
        rules.push(text.parse().ok().filter(|_| rules.len() < GROUP_RULES_MAX)?);
    }
    if said.is_none() {
        said = lines.next_if(|l| l.1 == depth).map(|l| stateful(l.2));
    }
    if rules.is_empty() || said == Some(None) || lines.next().is_some() {
        return None;
    }
    check_name(name).ok()?;
    let group = SecurityGroup::of(name.into(), rules, said.flatten().unwrap_or(true));
    Some((Object::SecurityGroup(Box::new(group)), first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::{quick_line, Documents};
    use crate::yaml;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    /// What the general reader makes of a text: one group without a fault, or nothing.
    fn slowly(text: &str) -> Option<Object> {
        let (nodes, fault) = yaml::parse(text);
        let nodes: Vec<_> = nodes.iter().filter(|n| !n.is_null()).collect();
        let ([node], None) = (&nodes[..], fault) else { return None };
        let mut errors = Vec::new();
        let read = crate::doc::decode(&"".into(), node, &mut Default::default(), &mut errors, true);
        read.ok().map(|(object, _)| object).filter(|_| errors.is_empty())
    }

    const YAML: &str = "# rules\n---\napiVersion: tunny/v1\nkind: SecurityGroup\nmetadata:\n  name: web\nspec:\n  rules:\n  - ingress allow tcp/80-90 any\n  # of ours\n  - \"egress deny udp/53 fd00::/8 priority 7\"\n  - 'egress allow any group b.c'\n\n  stateful: false\n";
    const JSON: &str = r#"{"apiVersion":"tunny/v1","kind":"SecurityGroup","metadata":{"name":"web"},"spec":{"rules":["ingress allow tcp/80 any","egress deny udp any"],"stateful":true}}"#;

    #[test]
    fn the_usual_texts_are_taken_as_they_are_meant() {
        let (group, line) = group_of_yaml(YAML).unwrap();
        assert_eq!((Some(&group), line), (slowly(YAML).as_ref(), 3));
        let short = "kind: SecurityGroup\napiVersion: tunny/v1\nmetadata: {name: web}\nspec:\n    stateful: true\n    rules:\n      - egress allow tcp any";
        assert_eq!(group_of_yaml(short).map(|g| g.0), slowly(short));
        assert!(group_of_yaml(short).is_some());
        assert!(quick_line(JSON, &mut Default::default()).is_some());
        assert_eq!(quick_line(JSON, &mut Default::default()), slowly(JSON));
    }

    /// Texts that something has happened to are taken as the general reader takes them, or not at all.
    #[test]
    fn whatever_is_taken_is_what_the_general_reader_takes() {
        let seed: u64 = std::env::var("TUNNY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
        println!("TUNNY_SEED={seed}");
        let mut r = ChaCha8Rng::seed_from_u64(seed);
        let bits = [
            "\n", " ", ":", ": ", "- ", "#", " #", "'", "\"", "{", "}", "a", "null", "~", "\t", "  ", "---", "&a",
            "true", "\r", ",", "[", "80", "\\",
        ];
        let (mut taken, mut left) = (0, 0);
        for _ in 0..4000 {
            let json = r.random_bool(0.3);
            let mut text = if json { JSON } else { YAML }.to_string();
            for _ in 0..r.random_range(0..3) {
                let at = r.random_range(0..=text.len());
                let until = (at + r.random_range(0..12)).min(text.len());
                let lines = text.split('\n').count();
                match r.random_range(0..4) {
                    0 => text.insert_str(at, bits[r.random_range(0..bits.len())]),
                    1 => text.replace_range(at..until, ""),
                    2 => text.replace_range(at..until, bits[r.random_range(0..bits.len())]),
                    _ => {
                        let line = text.split('\n').nth(r.random_range(0..lines)).unwrap().to_string();
                        text.insert_str(at, &format!("\n{line}\n"));
                    }
                }
            }
            let quick =
                if json { quick_line(&text, &mut Default::default()) } else { group_of_yaml(&text).map(|g| g.0) };
            if let Some(Object::SecurityGroup(group)) = quick {
                match slowly(&text) {
                    Some(object) => assert_eq!(Object::SecurityGroup(group), object, "{text}"),
                    // Only a rule that is there twice is left to whoever compiles them.
                    None => assert!(
                        group.spec.rules.iter().enumerate().any(|(i, r)| group.spec.rules[..i].contains(r)),
                        "{text}"
                    ),
                }
                taken += 1;
            } else {
                left += 1;
            }
        }
        assert!(taken > 300 && left > 300, "{taken} taken, {left} left");
    }

    #[test]
    fn a_fault_is_told_at_its_place_whoever_read_the_text() {
        let told = |name: &str, text: &str| {
            let (mut docs, mut errors) = (Documents::new(), Vec::new());
            docs.read_text(name, text, &mut errors);
            assert!(errors.is_empty() && docs.puts[0].origin.text().is_some(), "{errors:?}");
            let errors = crate::Model::new().apply(&docs).unwrap_err();
            (errors[0].place.line, errors[0].place.column, errors[0].field.clone())
        };
        assert_eq!(told("x.yaml", YAML), (12, 5, "spec.rules[2]".into()), "a group that is not there");
        let hidden = JSON.replace("egress deny udp any", "ingress deny tcp/80 any priority 2000");
        let column = hidden.find("\"ingress deny").unwrap() as u32 + 1;
        assert_eq!(told("x.ndjson", &format!("\n{hidden}\n")), (2, column, "spec.rules[1]".into()));
    }
}
