// SPDX-License-Identifier: Apache-2.0
//! Names of ports and tables while a text is read, and the numbering of named tables.
use super::split::{trim, unquote};
use super::{bad, Bad, Read};
use crate::action::LOCAL;
use crate::pipeline::{Names, TABLES};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// First number of a port that has only a name.
const NAMED_PORTS: u16 = 57344;

/// Names as far as they are known.
pub(super) struct Context<'n> {
    pub names: Names,
    /// New port names may be given numbers.
    open: bool,
    next_port: u16,
    taken: BTreeSet<u16>,
    /// Ports that were given numbers here, in order of appearance.
    pub named: Vec<(String, u16)>,
    _lifetime: std::marker::PhantomData<&'n ()>,
}

impl<'n> Context<'n> {
    /// Names that are all known.
    pub fn fixed(names: &'n Names) -> Context<'n> {
        Context {
            names: names.clone(),
            open: false,
            next_port: NAMED_PORTS,
            taken: BTreeSet::new(),
            named: Vec::new(),
            _lifetime: std::marker::PhantomData,
        }
    }

    /// Names that are found on the way.
    pub fn open(names: Names) -> Context<'n> {
        let taken = names.ports.values().copied().collect();
        Context {
            names,
            open: true,
            next_port: NAMED_PORTS,
            taken,
            named: Vec::new(),
            _lifetime: std::marker::PhantomData,
        }
    }

    /// A port by number, reserved name or name.
    pub fn port<'a>(&mut self, text: &'a str) -> Read<'a, u16> {
        if let Some(port) = reserved(text) {
            return Ok(port);
        }
        let numeric = text.starts_with(|c: char| c.is_ascii_digit())
            && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'x' || b == b'X');
        if numeric {
            return match super::value::number(text, 32)? {
                n if n <= 0xffff => Ok(n as u16),
                // OpenFlow 1.1 writes the reserved ports with 32 bits.
                n if n >= 0xffff_ff00 => Ok(n as u16),
                _ => bad(text, format!("{text} is not a port: ports are 0 to 65279 and the reserved ones")),
            };
        }
        let name = unquote(text);
        if let Some(port) = self.names.ports.get(name) {
            return Ok(*port);
        }
        let fits = !name.is_empty()
            && name.len() <= 64
            && name.bytes().all(|b| (b.is_ascii_graphic() || b == b' ') && !b"()=,\"".contains(&b));
        if !self.open || !fits {
            return bad(text, format!("there is no port \"{name}\""));
        }
        while self.taken.contains(&self.next_port) {
            self.next_port += 1;
        }
        if self.next_port >= 0xff00 {
            return bad(text, "there are more than 7936 named ports");
        }
        self.taken.insert(self.next_port);
        self.names.ports.insert(name.to_string(), self.next_port);
        self.named.push((name.to_string(), self.next_port));
        Ok(self.next_port)
    }

    /// A table by number or name.
    pub fn table<'a>(&self, text: &'a str) -> Read<'a, u8> {
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            return match super::value::number(text, 32)? {
                n if n < TABLES as u128 => Ok(n as u8),
                _ => bad(text, format!("{text} is not a table: tables are 0 to 254")),
            };
        }
        match self.names.tables.get(unquote(text)) {
            Some(table) => Ok(*table),
            None => bad(text, format!("there is no table \"{}\"", unquote(text))),
        }
    }

    /// Whether a table has this name.
    pub fn is_table(&self, text: &str) -> bool {
        self.names.tables.contains_key(unquote(text))
    }
}

/// A reserved port by its name.
pub(super) fn reserved(text: &str) -> Option<u16> {
    Some(match text.to_ascii_lowercase().as_str() {
        "in_port" => 0xfff8,
        "table" => 0xfff9,
        "normal" => 0xfffa,
        "flood" => 0xfffb,
        "all" => 0xfffc,
        "controller" => 0xfffd,
        "local" => LOCAL,
        "none" | "any" => 0xffff,
        _ => return None,
    })
}

/// Numbers the named tables of a text: as given, the others so that every `goto_table` leads forward, in order of appearance
/// where that leaves a choice.
pub(super) fn number_tables<'a>(
    texts: &[&'a str],
    given: &[(String, u8)],
    ports: &[(String, u16)],
) -> Result<BTreeMap<String, u8>, Bad<'a>> {
    let mut scan = Scan::default();
    for (name, number) in given {
        scan.known.insert(name.clone(), *number);
    }
    texts.iter().for_each(|text| scan.text(text));
    if !scan.order.is_empty() {
        // Antrea prints tables so, and one that has no flows is a table all the same.
        let given: HashSet<&str> = ports.iter().map(|p| p.0.as_str()).collect();
        let mut either = std::mem::take(&mut scan.either);
        either.retain(|name| !scan.ports.contains(name) && !given.contains(name));
        for name in either {
            scan.name(name);
        }
    }
    scan.number()
}

#[derive(Default)]
struct Scan<'a> {
    known: BTreeMap<String, u8>,
    used: BTreeSet<u8>,
    order: Vec<&'a str>,
    index: BTreeMap<&'a str, usize>,
    jumps: BTreeSet<(usize, usize)>,
    /// What `resubmit:` names: a port, or where tables have names perhaps one of those.
    either: Vec<&'a str>,
    /// The same, to find one fast.
    either_seen: HashSet<&'a str>,
    /// Names of ports.
    ports: BTreeSet<&'a str>,
}

/// The word at the beginning of a text.
fn word(text: &str) -> &str {
    match text.strip_prefix('"').and_then(|t| t.split_once('"')) {
        Some((name, _)) => name,
        None => text.split([',', ' ', ')', '(', '\t', '\n', '\r']).next().unwrap_or(""),
    }
}

impl<'a> Scan<'a> {
    fn name(&mut self, name: &'a str) -> Option<usize> {
        if name.is_empty() || name.len() > 64 {
            return None;
        }
        if name.starts_with(|c: char| c.is_ascii_digit()) {
            if let Ok(number) = name.parse() {
                self.used.insert(number);
            }
            return None;
        }
        let next = self.order.len();
        let at = *self.index.entry(name).or_insert(next);
        if at == next {
            self.order.push(name);
        }
        Some(at)
    }

    fn text(&mut self, text: &'a str) {
        let mut from = None;
        let mut rest = text;
        // A table stands after "table=", "goto_table:", or as the second argument of "resubmit(".
        while let Some(at) = rest.find(['=', ':', '\n', '(']) {
            let (before, after) = (&rest[..at], &rest[at + 1..]);
            match rest.as_bytes()[at] {
                b'\n' if !before.ends_with('\\') => from = None,
                b'=' if before.ends_with("table") && !before.ends_with("_table") => {
                    let name = self.name(word(after));
                    // The first one of a line is the flow's own.
                    from = from.or(Some(name));
                }
                b':' if before.ends_with("goto_table") => {
                    if let (Some(to), Some(Some(from))) = (self.name(word(after)), from) {
                        self.jumps.insert((from, to));
                    }
                }
                b':' if before.ends_with("resubmit") => {
                    let name = word(after);
                    // A number is a port's here, and takes none away from the tables.
                    let port = name.starts_with(|c: char| c.is_ascii_digit()) || reserved(name).is_some();
                    if !port && self.either_seen.insert(name) {
                        self.either.push(name);
                    }
                }
                b'=' if before.ends_with("in_port") => drop(self.ports.insert(word(after))),
                b':' if before.ends_with("output") => drop(self.ports.insert(word(after))),
                b'(' if before.ends_with("resubmit") => {
                    let inner = after.split(')').next().unwrap_or("");
                    if let Some((_, table)) = inner.split_once(',') {
                        self.name(word(trim(table)));
                    }
                }
                _ => {}
            }
            rest = after;
        }
    }

    fn number(self) -> Result<BTreeMap<String, u8>, Bad<'a>> {
        let mut out = self.known.clone();
        let taken: BTreeSet<u8> = self.used.iter().chain(self.known.values()).copied().collect();
        let mut free = (0..TABLES as u8).filter(|n| !taken.contains(n));
        let mut waiting: Vec<usize> = (0..self.order.len()).filter(|n| !out.contains_key(self.order[*n])).collect();
        if let Some(&beyond) = waiting.get(free.clone().count()) {
            return Err(Bad {
                at: self.order[beyond],
                message: "there are more than 255 tables".into(),
                unsupported: false,
            });
        }
        let mut left: BTreeSet<usize> = waiting.iter().copied().collect();
        let mut before: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for &(from, to) in self.jumps.iter().filter(|(from, to)| from != to) {
            before.entry(to).or_default().push(from);
        }
        while let Some(number) = free.next().filter(|_| !waiting.is_empty()) {
            let waits = |n: &usize| before.get(n).is_some_and(|from| from.iter().any(|n| left.contains(n)));
            // In a circle no numbering helps; the reader then complains about a jump back.
            let at = waiting.remove(waiting.iter().position(|n| !waits(n)).unwrap_or(0));
            left.remove(&at);
            out.insert(self.order[at].to_string(), number);
        }
        Ok(out)
    }
}
