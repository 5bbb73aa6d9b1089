// SPDX-License-Identifier: Apache-2.0
//! Taking lines apart: lists with commas or blanks, nested parentheses, quoted names.
use super::{bad, Read};

/// Nested parentheses at most.
const DEPTH_MAX: usize = 32;

/// Blanks, and a backslash before the end of a line.
fn blank(bytes: &[u8], at: usize) -> usize {
    match bytes.get(at) {
        Some(b' ' | b'\t' | b'\r' | b'\n') => 1,
        Some(b'\\') => match (bytes.get(at + 1), bytes.get(at + 2)) {
            (Some(b'\n'), _) => 2,
            (Some(b'\r'), Some(b'\n')) => 3,
            _ => 0,
        },
        _ => 0,
    }
}

/// Without blanks on either side.
pub(super) fn trim(text: &str) -> &str {
    let bytes = text.as_bytes();
    let mut start = 0;
    while blank(bytes, start) > 0 {
        start += blank(bytes, start);
    }
    let rest = text.get(start..).unwrap_or("");
    rest.trim_end_matches([' ', '\t', '\r', '\n', '\\'])
}

/// The parts of a list. Commas and blanks separate, but not inside parentheses, brackets or quotes.
pub(super) fn list(text: &str, blanks_separate: bool) -> Read<'_, Vec<&str>> {
    let bytes = text.as_bytes();
    let mut parts = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let (mut start, mut at) = (0, 0);
    while at < bytes.len() {
        let mut separator = 0;
        match bytes[at] {
            b'(' => {
                open.push(at);
                if open.len() > DEPTH_MAX {
                    return bad(&text[at..], format!("parentheses are nested more than {DEPTH_MAX} deep"));
                }
            }
            b')' if open.pop().is_none() => {
                return bad(&text[at..], "a parenthesis is closed that was not opened");
            }
            b'"' => match bytes[at + 1..].iter().position(|b| *b == b'"') {
                Some(length) => at += length + 1,
                None => return bad(&text[at..], "a quoted name has no end"),
            },
            b',' if open.is_empty() => separator = 1,
            _ if blanks_separate && open.is_empty() => separator = blank(bytes, at),
            _ => {}
        }
        if separator > 0 {
            push(&mut parts, &text[start..at]);
            at += separator;
            start = at;
        } else {
            at += 1;
        }
    }
    if let Some(at) = open.last() {
        return bad(&text[*at..], "this parenthesis is not closed");
    }
    push(&mut parts, &text[start..]);
    Ok(parts)
}

fn push<'a>(parts: &mut Vec<&'a str>, part: &'a str) {
    let part = trim(part);
    if !part.is_empty() {
        parts.push(part);
    }
}

/// Like [`list`] with commas only, but empty parts count: `(,10)`.
pub(super) fn positional(text: &str) -> Vec<&str> {
    text.split(',').map(trim).collect()
}

/// `name=value`, `name:value`, `name(value)` or `name`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item<'a> {
    /// The whole.
    pub whole: &'a str,
    /// Before the separator.
    pub name: &'a str,
    /// After it.
    pub value: Option<&'a str>,
    /// Whether the value stood in parentheses.
    pub parentheses: bool,
}

impl<'a> Item<'a> {
    /// The value, which must be there.
    pub fn needed(&self) -> Read<'a, &'a str> {
        match self.value {
            Some(value) if !value.is_empty() => Ok(value),
            _ => bad(self.whole, format!("\"{}\" needs a value", self.name)),
        }
    }

    /// There must be none.
    pub fn alone(&self) -> Read<'a, ()> {
        match self.value {
            Some(value) if !value.is_empty() => bad(value, format!("\"{}\" takes no value", self.name)),
            _ => Ok(()),
        }
    }
}

/// Takes one part of a list apart.
pub(super) fn item(whole: &str) -> Read<'_, Item<'_>> {
    let end = whole.find(['=', ':', '(']).unwrap_or(whole.len());
    if whole.starts_with('"') {
        return Ok(Item { whole, name: whole, value: None, parentheses: false });
    }
    let name = whole[..end].trim_end();
    match whole.as_bytes().get(end) {
        None => Ok(Item { whole, name, value: None, parentheses: false }),
        Some(b'(') => match whole[end + 1..].strip_suffix(')') {
            Some(inner) => Ok(Item { whole, name, value: Some(trim(inner)), parentheses: true }),
            // `check_pkt_larger(1500)->reg0[0]`: the value says where its result goes.
            None if whole[end..].contains(")->") => {
                Ok(Item { whole, name, value: Some(&whole[end + 1..]), parentheses: true })
            }
            None => bad(&whole[end..], "a closing parenthesis was expected at the end"),
        },
        Some(_) => Ok(Item { whole, name, value: Some(trim(&whole[end + 1..])), parentheses: false }),
    }
}

/// Without quotes around it.
pub(super) fn unquote(text: &str) -> &str {
    text.strip_prefix('"').and_then(|t| t.strip_suffix('"')).unwrap_or(text)
}
