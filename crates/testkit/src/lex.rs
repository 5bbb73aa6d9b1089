// SPDX-License-Identifier: Apache-2.0
//! Words with their places: every error of a case file names file, line and column.

use crate::layers::Mac;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// What is wrong in a case file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {message}")]
pub struct CaseError {
    /// File name as given.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// One sentence: what is wrong, and what would be right.
    pub message: String,
}

/// One word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// Its text, without quotes.
    pub text: String,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
}

/// A statement: the words of a line and of the lines that continue it (those that begin with `/`).
#[derive(Clone, Debug)]
pub struct Statement {
    /// The words, at least one.
    pub words: Vec<Word>,
    /// Is the first word indented?
    pub indented: bool,
}

/// Splits a text into statements. `#` begins a comment.
pub fn statements(file: &str, text: &str) -> Result<Vec<Statement>, CaseError> {
    let mut out: Vec<Statement> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let words = words(file, line, index + 1)?;
        let Some(first) = words.first() else { continue };
        match out.last_mut() {
            Some(last) if first.text == "/" => last.words.extend(words),
            _ => out.push(Statement { indented: first.column > 1, words }),
        }
    }
    Ok(out)
}

fn words(file: &str, line: &str, number: usize) -> Result<Vec<Word>, CaseError> {
    let mut out = Vec::new();
    let chars: Vec<char> = line.chars().collect();
    let mut at = 0;
    while at < chars.len() {
        if chars[at].is_whitespace() {
            at += 1;
            continue;
        }
        if chars[at] == '#' {
            break;
        }
        let column = at + 1;
        let mut text = String::new();
        let mut quoted = false;
        while at < chars.len() && (quoted || !chars[at].is_whitespace()) {
            match chars[at] {
                '"' => quoted = !quoted,
                c => text.push(c),
            }
            at += 1;
        }
        if quoted {
            let message = "this quotation mark is never closed".to_string();
            return Err(CaseError { file: file.to_string(), line: number, column, message });
        }
        out.push(Word { text, line: number, column });
    }
    Ok(out)
}

/// What a name stands for; which of these is meant follows from where the name is used.
#[derive(Clone, Debug, Default)]
pub struct Named {
    /// Ethernet address.
    pub mac: Option<Mac>,
    /// IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// IPv6 address.
    pub v6: Option<Ipv6Addr>,
    /// VNI.
    pub vni: Option<u32>,
}

/// Names defined so far.
pub type Names = HashMap<String, Named>;

/// Reads the words of one statement in order.
pub struct Cursor<'a> {
    /// File name, for errors.
    pub file: &'a str,
    words: &'a [Word],
    at: usize,
    /// Names that may be used.
    pub names: &'a Names,
}

impl<'a> Cursor<'a> {
    /// Reads `words` (at least one) from the first on.
    pub fn new(file: &'a str, words: &'a [Word], names: &'a Names) -> Cursor<'a> {
        Cursor { file, words, at: 0, names }
    }

    /// The next word, not consumed.
    pub fn peek(&self) -> Option<&'a Word> {
        self.words.get(self.at)
    }

    /// The word `n` behind the next one.
    pub fn peek_at(&self, n: usize) -> Option<&'a Word> {
        self.words.get(self.at + n)
    }

    /// Is the next word this one? Then it is consumed.
    pub fn eat(&mut self, text: &str) -> bool {
        let found = self.peek().is_some_and(|w| w.text == text);
        self.at += usize::from(found);
        found
    }

    /// The next word, which must be there.
    pub fn next(&mut self, what: &str) -> Result<&'a Word, CaseError> {
        match self.words.get(self.at) {
            Some(word) => {
                self.at += 1;
                Ok(word)
            }
            None => Err(self.error_at_end(&format!("{what} is missing here"))),
        }
    }

    /// Nothing may follow.
    pub fn end(&self) -> Result<(), CaseError> {
        match self.peek() {
            None => Ok(()),
            Some(word) => Err(self.error(word, &format!("nothing may follow here, but there is `{}`", word.text))),
        }
    }

    /// An error at this word.
    pub fn error(&self, word: &Word, message: &str) -> CaseError {
        CaseError { file: self.file.to_string(), line: word.line, column: word.column, message: message.to_string() }
    }

    /// An error behind the last word.
    pub fn error_at_end(&self, message: &str) -> CaseError {
        let (line, column) = self.words.last().map_or((1, 1), |w| (w.line, w.column + w.text.chars().count()));
        CaseError { file: self.file.to_string(), line, column, message: message.to_string() }
    }

    /// The next word as a number (decimal, or hexadecimal with 0x), at most `max`.
    pub fn number(&mut self, what: &str, max: u64) -> Result<u64, CaseError> {
        let word = self.next(what)?;
        self.number_of(word, &word.text, what, max)
    }

    /// `text`, a part of `word`, as a number.
    pub fn number_of(&self, word: &Word, text: &str, what: &str, max: u64) -> Result<u64, CaseError> {
        if let Some(place) = crate::ports::place(text).filter(|_| max == 0xffff) {
            return Ok(place.into());
        }
        let parsed = match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => text.parse(),
        };
        match parsed {
            Ok(n) if n <= max => Ok(n),
            _ => Err(self.error(word, &format!("`{text}` is no {what}: a number from 0 to {max} is needed"))),
        }
    }

    /// The next word as an Ethernet address or a name that has one.
    pub fn mac(&mut self) -> Result<Mac, CaseError> {
        let word = self.next("an Ethernet address")?;
        self.mac_of(word, &word.text)
    }

    /// `text`, a part of `word`, as an Ethernet address.
    pub fn mac_of(&self, word: &Word, text: &str) -> Result<Mac, CaseError> {
        if text == "broadcast" {
            return Ok(Mac([0xff; 6]));
        }
        Mac::parse(text).or_else(|| self.names.get(text).and_then(|n| n.mac)).ok_or_else(|| {
            self.error(word, &format!("`{text}` is neither an Ethernet address nor a name that has one"))
        })
    }

    /// `text`, a part of `word`, as an IPv4 address or a name that has one.
    pub fn ipv4_of(&self, word: &Word, text: &str) -> Result<Ipv4Addr, CaseError> {
        Ipv4Addr::from_str(text)
            .ok()
            .or_else(|| self.names.get(text).and_then(|n| n.v4))
            .ok_or_else(|| self.error(word, &format!("`{text}` is neither an IPv4 address nor a name that has one")))
    }

    /// `text`, a part of `word`, as an IPv6 address or a name that has one.
    pub fn ipv6_of(&self, word: &Word, text: &str) -> Result<Ipv6Addr, CaseError> {
        Ipv6Addr::from_str(text)
            .ok()
            .or_else(|| self.names.get(text).and_then(|n| n.v6))
            .ok_or_else(|| self.error(word, &format!("`{text}` is neither an IPv6 address nor a name that has one")))
    }

    /// The next word as an IPv4 address.
    pub fn ipv4(&mut self) -> Result<Ipv4Addr, CaseError> {
        let word = self.next("an IPv4 address")?;
        self.ipv4_of(word, &word.text)
    }

    /// The next word as an IPv6 address.
    pub fn ipv6(&mut self) -> Result<Ipv6Addr, CaseError> {
        let word = self.next("an IPv6 address")?;
        self.ipv6_of(word, &word.text)
    }

    /// If the next word is an IP address, that address.
    pub fn maybe_ip(&mut self) -> Option<IpAddr> {
        let addr = self.peek()?.text.parse().ok()?;
        self.at += 1;
        Some(addr)
    }

    /// The next word as a VNI or the name of a VPC.
    pub fn vni(&mut self) -> Result<u32, CaseError> {
        let word = self.next("a VNI or the name of a VPC")?;
        match self.names.get(&word.text).and_then(|n| n.vni) {
            Some(vni) => Ok(vni),
            None => Ok(self.number_of(word, &word.text, "VNI or name of a VPC", 0xff_ffff)? as u32),
        }
    }

    /// `text`, a part of `word`, as hexadecimal bytes.
    pub fn hex_of(&self, word: &Word, text: &str) -> Result<Vec<u8>, CaseError> {
        let fail = || self.error(word, &format!("`{text}` is no run of hexadecimal bytes, as in 00ff1a"));
        if !text.is_ascii() || !text.len().is_multiple_of(2) {
            return Err(fail());
        }
        (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_| fail())).collect()
    }

    /// `text` as a time span: a number with ns, us, ms or s.
    pub fn span_of(&self, word: &Word, text: &str) -> Result<u64, CaseError> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match &text[digits.len()..] {
            "ns" => Some(1),
            "us" => Some(1_000),
            "ms" => Some(1_000_000),
            "s" => Some(1_000_000_000),
            _ => None,
        };
        unit.zip(digits.parse::<u64>().ok())
            .and_then(|(u, n)| n.checked_mul(u))
            .ok_or_else(|| self.error(word, &format!("`{text}` is no time span, as in 20ms (units: ns, us, ms, s)")))
    }
}
