// SPDX-License-Identifier: Apache-2.0
//! What `-o jsonpath=…` and `--sort-by` choose: kubectl's templates, as far as they are used. Text stands outside of braces; in braces
//! a path (`.spec.vpc`, `[0]`, `[*]`, `.*`, `..name`, `[?(@.spec.vpc=="red")]`), a text in quotes, or `range PATH` with its `end`.

use serde_json::Value;
use std::cmp::Ordering;
use std::str::Chars;

/// A template.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath(Vec<Part>);

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Path(Vec<Step>),
    Range(Vec<Step>, Vec<Part>),
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// A field of this name.
    Name(String),
    /// An entry, from the end if negative.
    Entry(i64),
    /// Every entry, or every field's value.
    All,
    /// Fields of this name at any depth.
    Deep(String),
    /// Entries that are so.
    Those(Vec<Step>, Option<(Compare, Value)>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Compare {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    More,
    MoreOrEqual,
}

impl JsonPath {
    /// From text. Without braces all of it is one path.
    pub fn parse(text: &str) -> Result<JsonPath, String> {
        let wrong = |why: String| format!("`{}` is no JSONPath template: {why}", model::plain(text));
        if !text.contains('{') {
            return path(text).map(|steps| JsonPath(vec![Part::Path(steps)])).map_err(wrong);
        }
        let mut rest = text;
        let parts = parts(&mut rest, false).map_err(wrong)?;
        Ok(JsonPath(parts))
    }

    /// What it makes of a value. What is not there is left out.
    pub fn render(&self, value: &Value) -> String {
        let mut out = String::new();
        render(&self.0, value, &mut out);
        out
    }

    /// The first value that it finds, for sorting.
    fn first<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        match self.0.first()? {
            Part::Path(steps) => find(steps, value).into_iter().next(),
            _ => None,
        }
    }

    /// Sorts by what it finds in each entry; what has nothing there comes first, and equals stay in their order.
    pub fn sort<T: serde::Serialize>(&self, list: &mut Vec<T>) {
        let key = |entry: &T| serde_json::to_value(entry).ok().and_then(|value| self.first(&value).cloned());
        let mut keyed: Vec<(Option<Value>, T)> =
            std::mem::take(list).into_iter().map(|entry| (key(&entry), entry)).collect();
        keyed.sort_by(|(a, _), (b, _)| match (a, b) {
            (Some(a), Some(b)) => order(a, b),
            (a, b) => a.is_some().cmp(&b.is_some()),
        });
        list.extend(keyed.into_iter().map(|(_, entry)| entry));
    }
}

/// Parts until the text ends, or until `{end}` if `inside` a range.
fn parts(rest: &mut &str, inside: bool) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    loop {
        let Some((text, behind)) = rest.split_once('{') else {
            if inside {
                return Err("a {range} has no {end}".into());
            }
            parts.extend((!rest.is_empty()).then(|| Part::Text(rest.to_string())));
            return Ok(parts);
        };
        parts.extend((!text.is_empty()).then(|| Part::Text(text.to_string())));
        let end = block_end(behind).ok_or("a { has no }")?;
        let block = behind[..end].trim();
        *rest = &behind[end + 1..];
        if block == "end" {
            return if inside { Ok(parts) } else { Err("an {end} has no {range}".into()) };
        }
        parts.push(match block.strip_prefix("range ") {
            Some(over) => Part::Range(path(over.trim())?, self::parts(rest, true)?),
            None if block.starts_with(['"', '\'']) => {
                let mut chars = block.chars();
                let text = quoted(&mut chars)?;
                match chars.as_str() {
                    "" => Part::Text(text),
                    more => return Err(format!("`{}` stands behind a text", model::plain(more))),
                }
            }
            None => Part::Path(path(block)?),
        });
    }
}

/// Where the brace closes that opened before.
fn block_end(text: &str) -> Option<usize> {
    let (mut quote, mut escaped) = (None, false);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            _ if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(q), c) if q == c => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, '}') => return Some(at),
            _ => {}
        }
    }
    None
}

/// A text in quotes, of which `\n`, `\t` and `\X` are known.
fn quoted(chars: &mut Chars<'_>) -> Result<String, String> {
    let (quote, mut text) = (chars.next(), String::new());
    loop {
        match chars.next() {
            None => return Err("a quote is open".into()),
            c if c == quote => return Ok(text),
            Some('\\') => text.push(match chars.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some(c) => c,
                None => return Err("a quote is open".into()),
            }),
            Some(c) => text.push(c),
        }
    }
}

/// The steps of a path.
fn path(text: &str) -> Result<Vec<Step>, String> {
    let mut rest = text.trim_start_matches(['$', '@']);
    let mut steps = Vec::new();
    if !rest.is_empty() && !rest.starts_with(['.', '[']) {
        steps.push(Step::Name(name(&mut rest)?));
    }
    while !rest.is_empty() {
        if let Some(behind) = rest.strip_prefix("..") {
            rest = behind;
            steps.push(Step::Deep(name(&mut rest)?));
        } else if let Some(behind) = rest.strip_prefix('[') {
            let end = bracket_end(behind).ok_or("a [ has no ]")?;
            steps.push(bracket(behind[..end].trim())?);
            rest = &behind[end + 1..];
        } else if let Some(behind) = rest.strip_prefix(".*") {
            rest = behind;
            steps.push(Step::All);
        } else if rest == "." {
            return Ok(steps);
        } else {
            rest = rest.strip_prefix('.').ok_or_else(|| format!("`{}` is no step of a path", model::plain(rest)))?;
            // As in `.items.[0]`.
            if !rest.starts_with('[') {
                steps.push(Step::Name(name(&mut rest)?));
            }
        }
    }
    Ok(steps)
}

fn name(rest: &mut &str) -> Result<String, String> {
    let end = rest.find(['.', '[', ']', '{', '}', '(', ')', ' ', '=', '!', '<', '>', '"', '\'']).unwrap_or(rest.len());
    let (name, behind) = rest.split_at(end);
    if name.is_empty() {
        return Err("a name is missing behind a dot".into());
    }
    *rest = behind;
    Ok(name.to_string())
}

/// Where the bracket closes that opened before.
fn bracket_end(text: &str) -> Option<usize> {
    let (mut quote, mut depth) = (None, 0);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if q == c => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(at),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn bracket(inner: &str) -> Result<Step, String> {
    if inner == "*" {
        return Ok(Step::All);
    }
    if inner.starts_with(['"', '\'']) {
        return quoted(&mut inner.chars()).map(Step::Name);
    }
    let wrong =
        || format!("`[{}]` is no step of a path: write [*], [0], ['name'] or [?(@.name==\"x\")]", model::plain(inner));
    let Some(condition) = inner.strip_prefix("?(").and_then(|c| c.strip_suffix(')')) else {
        return inner.parse().map(Step::Entry).map_err(|_| wrong());
    };
    let signs = [
        ("==", Compare::Equal),
        ("!=", Compare::Unequal),
        ("<=", Compare::LessOrEqual),
        (">=", Compare::MoreOrEqual),
        ("<", Compare::Less),
        (">", Compare::More),
    ];
    for (sign, compare) in signs {
        let Some((left, right)) = condition.split_once(sign) else { continue };
        let right = right.trim();
        let value = match right.starts_with(['"', '\'']) {
            true => Value::String(quoted(&mut right.chars())?),
            false => serde_json::from_str(right).map_err(|_| wrong())?,
        };
        return Ok(Step::Those(path(left.trim())?, Some((compare, value))));
    }
    path(condition.trim()).map(|steps| Step::Those(steps, None))
}

fn find<'v>(steps: &[Step], value: &'v Value) -> Vec<&'v Value> {
    let mut found = vec![value];
    for step in steps {
        found = found.into_iter().flat_map(|value| next(step, value)).collect();
    }
    found
}

fn next<'v>(step: &Step, value: &'v Value) -> Vec<&'v Value> {
    match (step, value) {
        // A list of kubectl has its objects below `items`; here it is they.
        (Step::Name(name), Value::Array(_)) if name == "items" => vec![value],
        (Step::Name(name), _) => value.get(name).into_iter().collect(),
        (Step::Entry(n), Value::Array(list)) => {
            let at = if *n < 0 { list.len() as i64 + n } else { *n };
            usize::try_from(at).ok().and_then(|at| list.get(at)).into_iter().collect()
        }
        (Step::All, Value::Array(list)) => list.iter().collect(),
        (Step::All, Value::Object(map)) => map.values().collect(),
        (Step::Deep(name), _) => {
            let mut found = Vec::new();
            deep(name, value, &mut found);
            found
        }
        (Step::Those(steps, condition), Value::Array(list)) => {
            list.iter().filter(|entry| holds(steps, condition.as_ref(), entry)).collect()
        }
        _ => Vec::new(),
    }
}

fn deep<'v>(name: &str, value: &'v Value, found: &mut Vec<&'v Value>) {
    found.extend(value.get(name));
    match value {
        Value::Array(list) => list.iter().for_each(|v| deep(name, v, found)),
        Value::Object(map) => map.values().for_each(|v| deep(name, v, found)),
        _ => {}
    }
}

fn holds(steps: &[Step], condition: Option<&(Compare, Value)>, entry: &Value) -> bool {
    let found = find(steps, entry);
    let Some((compare, wanted)) = condition else { return !found.is_empty() };
    found.iter().any(|value| {
        let order = order(value, wanted);
        match compare {
            Compare::Equal => *value == wanted,
            Compare::Unequal => *value != wanted,
            Compare::Less => order == Ordering::Less,
            Compare::LessOrEqual => order != Ordering::Greater,
            Compare::More => order == Ordering::Greater,
            Compare::MoreOrEqual => order != Ordering::Less,
        }
    })
}

/// Numbers by what they are worth; all else as text, in which runs of digits count as numbers: vm-2 comes before vm-10.
fn order(a: &Value, b: &Value) -> Ordering {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        _ => natural(&text(a), &text(b)),
    }
}

fn natural(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a, b);
    let run = |text: &str| {
        let digits = text.starts_with(|c: char| c.is_ascii_digit());
        text.find(|c: char| c.is_ascii_digit() != digits).unwrap_or(text.len())
    };
    while !a.is_empty() && !b.is_empty() {
        let ((left, a_rest), (right, b_rest)) = (a.split_at(run(a)), b.split_at(run(b)));
        let numbers = |text: &str| text.parse::<u128>().ok();
        let order = match (numbers(left), numbers(right)) {
            (Some(left), Some(right)) => left.cmp(&right),
            _ => left.cmp(right),
        };
        if order != Ordering::Equal {
            return order;
        }
        (a, b) = (a_rest, b_rest);
    }
    a.len().cmp(&b.len())
}

fn text(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn render(parts: &[Part], value: &Value, out: &mut String) {
    for part in parts {
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Path(steps) => {
                let found: Vec<String> = find(steps, value).into_iter().map(text).collect();
                out.push_str(&found.join(" "));
            }
            Part::Range(steps, inner) => find(steps, value).into_iter().for_each(|each| render(inner, each, out)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn list() -> Value {
        json!([
            {"kind": "Vm", "metadata": {"name": "vm-10"}, "spec": {"vpc": "red", "vni": 7, "addresses": ["10.0.0.10", "fd00::1"], "a.b": true}},
            {"kind": "Vm", "metadata": {"name": "vm-2"}, "spec": {"vpc": "blue", "vni": 30, "addresses": ["10.0.0.2"]}},
        ])
    }

    #[test]
    fn templates_choose_what_kubectl_would() {
        let said = |template: &str| JsonPath::parse(template).unwrap().render(&list());
        for (template, wanted) in [
            ("{.items[*].metadata.name}", "vm-10 vm-2"),
            ("{[*].metadata.name}", "vm-10 vm-2"),
            ("[0].spec.vpc", "red"),
            ("{[-1].spec.addresses}", "[\"10.0.0.2\"]"),
            ("{$[*].spec.addresses[0]}", "10.0.0.10 10.0.0.2"),
            ("{[0].spec['a.b']}", "true"),
            ("{..vpc}", "red blue"),
            ("{.items[?(@.spec.vpc==\"blue\")].metadata.name}", "vm-2"),
            ("{[?(@.spec.vni>10)].metadata.name}", "vm-2"),
            ("{[?(@.spec.vni<=7)].metadata.name}", "vm-10"),
            ("{[?(@.spec.vpc!='blue')].metadata.name}", "vm-10"),
            ("{[?(@.spec['a.b'])].metadata.name}", "vm-10"),
            ("{[*].spec.nothing}", ""),
            ("{range .items[*]}{.metadata.name}{\"\\t\"}{.spec.vni}{\"\\n\"}{end}", "vm-10\t7\nvm-2\t30\n"),
            ("names: {[*].metadata.name}!", "names: vm-10 vm-2!"),
            ("{\"}\"}", "}"),
            ("{[0].metadata.*}", "vm-10"),
        ] {
            assert_eq!(said(template), wanted, "{template}");
        }
    }

    #[test]
    fn what_is_no_template_is_refused_with_a_reason() {
        for (template, why) in [
            ("{.items", "no }"),
            ("{range .items[*]}{.name}", "no {end}"),
            ("{end}", "no {range}"),
            ("{.spec[x]}", "[x]"),
            ("{.spec[0}", "no ]"),
            ("{.}{..}", "name is missing"),
            ("{\"open}", "no }"),
            ("{[?(@.a==b)]}", "[?(@.a==b)]"),
        ] {
            let said = JsonPath::parse(template).unwrap_err();
            assert!(said.contains(why), "{template}: {said}");
        }
    }

    #[test]
    fn entries_are_sorted_by_numbers_and_by_numbers_in_texts() {
        let sorted = |by: &str| {
            let Value::Array(mut list) = list() else { unreachable!() };
            JsonPath::parse(by).unwrap().sort(&mut list);
            JsonPath::parse("{[*].metadata.name}").unwrap().render(&Value::Array(list))
        };
        for by in [".metadata.name", "metadata.name", "{.spec.addresses[0]}", ".spec.vpc", ".spec.addresses[1]"] {
            assert_eq!(sorted(by), "vm-2 vm-10", "{by}");
        }
        assert_eq!(sorted(".spec.vni"), "vm-10 vm-2");
        assert_eq!(sorted(".nothing"), "vm-10 vm-2");
        assert_eq!(natural("a", "a1"), Ordering::Less);
        assert_eq!(natural("10.0.0.9", "10.0.0.10"), Ordering::Less);
    }
}
