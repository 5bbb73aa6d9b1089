// SPDX-License-Identifier: Apache-2.0
//! Text from outside, made safe to print: names, file names, words of other programs.
//!
//! A terminal takes control characters as commands (C0 and C1: move the cursor, set the title, answer on standard input), and marks of
//! writing direction make a text look like another. Both are printed as Rust writes them: `\u{1b}`.

use std::borrow::Cow;

fn dangerous(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

fn escaped(text: &str, keeps: fn(char) -> bool) -> Cow<'_, str> {
    let bad = |c: char| dangerous(c) && !keeps(c);
    if !text.contains(bad) {
        return text.into();
    }
    text.chars().map(|c| if bad(c) { c.escape_default().to_string() } else { c.to_string() }).collect::<String>().into()
}

/// One line of text: whatever could do more than be read is escaped.
pub fn plain(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

/// The same of several lines, whose ends and tabs stay.
pub fn plain_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c == '\n' || c == '\t')
}

/// JSON in which no such character stands as it is: within strings, the only place where they can be, they become `\uXXXX`.
pub fn plain_json(text: &str) -> Cow<'_, str> {
    let bad = |c: char| dangerous(c) && !c.is_ascii_control() || c == '\x7f';
    if !text.contains(bad) {
        return text.into();
    }
    text.chars().map(|c| if bad(c) { format!("\\u{:04x}", c as u32) } else { c.to_string() }).collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_written_out() {
        assert_eq!(plain("Vm ä-1 日本"), "Vm ä-1 日本");
        assert_eq!(plain("a\x1b[31mb\u{9b}2Jc\nd\te\x7f"), "a\\u{1b}[31mb\\u{9b}2Jc\\nd\\te\\u{7f}");
        assert_eq!(plain_lines("a\tb\n\x07"), "a\tb\n\\u{7}");
        assert_eq!(plain("gnp\u{202e}exe.\u{feff}"), "gnp\\u{202e}exe.\\u{feff}");
        let json = serde_json::json!({"n": "a\x1b\u{9b}\u{202e}\x7f\n"}).to_string();
        let safe = plain_json(&json);
        assert!(!safe.contains(dangerous), "{safe}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&safe).unwrap(),
            serde_json::from_str::<serde_json::Value>(&json).unwrap()
        );
    }
}
