// SPDX-License-Identifier: Apache-2.0
//! Reading the fields of files that are no configuration (what-ifs of plans): every mistake at its line, column and field.

use crate::quantity::parse_bits;
use crate::yaml::{Node, Pos, Value};
use crate::{check_name, nearest, ERRORS_MAX};
use std::collections::BTreeMap;

/// A file being read.
pub struct Reading<'a> {
    file: &'a str,
    /// The mistakes so far, as they are printed.
    pub errors: Vec<String>,
}

/// A mapping with its path.
pub struct Fields<'a> {
    /// Where it begins.
    pub at: Pos,
    /// Its path in the file; empty for the file itself.
    pub path: String,
    all: BTreeMap<&'a str, &'a Node<'a>>,
}

impl<'a> Reading<'a> {
    /// Begins to read the file of this name.
    pub fn new(file: &'a str) -> Reading<'a> {
        Reading { file, errors: Vec::new() }
    }

    /// Notes a mistake.
    pub fn wrong(&mut self, at: Pos, field: &str, why: impl std::fmt::Display) {
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(format!("{}:{}:{}: {field}: {why}", self.file, at.line, at.column));
        }
    }

    /// The fields of a mapping, of which only some are known.
    pub fn fields(&mut self, node: &'a Node<'a>, path: &str, known: &[&str]) -> Option<Fields<'a>> {
        let Value::Map(entries) = &node.value else {
            let allowed = known.join(", ");
            let path = if path.is_empty() { "the file" } else { path };
            self.wrong(node.at, path, format!("is {}; a mapping is expected, with {allowed}", node.type_name()));
            return None;
        };
        let mut fields = Fields { at: node.at, path: path.to_string(), all: BTreeMap::new() };
        for (key, at, value) in entries {
            let field = fields.name(key);
            if !known.contains(&&**key) {
                let near = nearest(key, known).map_or(String::new(), |n| format!(" (did you mean `{n}`?)"));
                self.wrong(*at, &field, format!("is unknown{near}; known are {}", known.join(", ")));
            } else if fields.all.insert(key, value).is_some() {
                self.wrong(*at, &field, "is given twice");
            }
        }
        Some(fields)
    }

    /// A value that must be there.
    pub fn need<T>(&mut self, f: &Fields<'a>, key: &str, read: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        if f.get(key).is_none() {
            self.wrong(f.at, &f.name(key), "is missing");
        }
        self.value(f, key, read)
    }

    /// A value that may be there.
    pub fn value<T>(&mut self, f: &Fields<'a>, key: &str, read: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        self.scalar(f.get(key)?, &f.name(key), read)
    }

    /// A single value.
    pub fn scalar<T>(&mut self, node: &Node, path: &str, read: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let Some(text) = node.text() else {
            self.wrong(node.at, path, format!("is {}; a single value is expected", node.type_name()));
            return None;
        };
        read(text).map_err(|why| self.wrong(node.at, path, why)).ok()
    }

    /// The entries of a list, with their paths; none if it is not there.
    pub fn list(&mut self, f: &Fields<'a>, key: &str) -> Vec<(&'a Node<'a>, String)> {
        let Some(node) = f.get(key) else { return Vec::new() };
        match &node.value {
            Value::List(list) => list.iter().enumerate().map(|(i, n)| (n, format!("{}[{i}]", f.name(key)))).collect(),
            _ => {
                self.wrong(node.at, &f.name(key), format!("is {}; a list is expected", node.type_name()));
                Vec::new()
            }
        }
    }
}

impl<'a> Fields<'a> {
    /// A field's value.
    pub fn get(&self, key: &str) -> Option<&'a Node<'a>> {
        self.all.get(key).copied()
    }

    /// A field's whole name.
    pub fn name(&self, key: &str) -> String {
        match self.path.is_empty() {
            true => key.to_string(),
            false => format!("{}.{key}", self.path),
        }
    }

    /// Where a field's value stands; where the mapping does if it is not there.
    pub fn place(&self, key: &str) -> Pos {
        self.get(key).map_or(self.at, |n| n.at)
    }
}

/// A whole number from `least` to `most`; digits may be set apart by `_`.
pub fn number(least: u64, most: u64) -> impl Fn(&str) -> Result<u64, String> {
    move |text| match text.replace('_', "").parse() {
        Ok(n) if (least..=most).contains(&n) => Ok(n),
        _ => Err(format!("`{text}` is no whole number from {least} to {most}")),
    }
}

/// A count of entries or sessions.
pub fn count(text: &str) -> Result<u64, String> {
    number(0, 1 << 40)(text)
}

/// Bits a second, up to 1000 Tbit.
pub fn traffic(text: &str) -> Result<u64, String> {
    match parse_bits(text)? {
        n if n <= 1_000_000_000_000_000 => Ok(n),
        _ => Err(format!("`{text}` is more than 1000Tbit")),
    }
}

/// Percent with one digit behind the point at most, as thousandths.
pub fn percent(text: &str) -> Result<u16, String> {
    let wrong = || format!("`{text}` is no share from 0% to 100%, as 72.5%");
    let number = text.strip_suffix('%').ok_or_else(wrong)?;
    let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |s: &str, most: usize| !s.is_empty() && s.len() <= most && s.bytes().all(|b| b.is_ascii_digit());
    match digits(whole, 3) && digits(tenth, 1) {
        true => {
            let value = whole.parse::<u16>().unwrap_or(u16::MAX).saturating_mul(10) + tenth.parse::<u16>().unwrap_or(0);
            if value <= 1000 {
                Ok(value)
            } else {
                Err(wrong())
            }
        }
        false => Err(wrong()),
    }
}

/// A time span in seconds, as 12h or 3d.
pub fn span(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no time: a number and s, m, h or d, 3650d at most");
    let unit = text.chars().last().and_then(|c| {
        Some(match c {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            _ => return None,
        })
    });
    let unit: u64 = unit.ok_or_else(wrong)?;
    let seconds = text[..text.len() - 1].parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    seconds.filter(|s| *s <= 3650 * 86_400).ok_or_else(wrong)
}

/// A name.
pub fn name(text: &str) -> Result<String, String> {
    check_name(text).map(|()| text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        assert_eq!((percent("72.5%"), percent("100%"), percent("0%")), (Ok(725), Ok(1000), Ok(0)));
        for wrong in ["", "%", "70", "100.1%", "-1%", "7.55%", "1e1%", "99999%", "7.%"] {
            assert!(percent(wrong).is_err(), "{wrong}");
        }
        assert_eq!((span("90s"), span("2d")), (Ok(90), Ok(172_800)));
        for wrong in ["", "d", "3", "3w", "-1d", "99999999999999999999d", "4000d", "ü"] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
        assert_eq!(number(1, 5_000)("1_000"), Ok(1000));
        assert!(number(1, 5)("6").is_err() && traffic("2000Tbit").is_err());
    }
}
