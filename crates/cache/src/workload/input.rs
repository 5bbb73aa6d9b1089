// SPDX-License-Identifier: Apache-2.0
//! The user's own traffic: a trace in text, or keys of captured frames (`pipeline::frame`).
//!
//! A line of a text trace is a time in seconds and a packet in the syntax of `ovs-appctl ofproto/trace`:
//! `0.000125 in_port=1,tcp,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_dst=80`. Lines that are empty or begin with `#` are left out.
pub use super::explore::{explore, Fate};
use super::generate::Packet;
use pipeline::{Key, Names};
use std::collections::HashMap;

/// What is wrong with a trace.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TraceError {
    /// A line of a text trace.
    #[error("{file}:{line}:{column}: {what}")]
    Line {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong.
        what: String,
    },
    /// Nothing is in it.
    #[error("{file}: no packet at all")]
    Empty {
        /// The file.
        file: String,
    },
}

/// Errors that are listed; the rest is counted.
const ERRORS_MAX: usize = 20;

/// Why a trace was not read.
#[derive(Debug, Default, thiserror::Error, PartialEq, Eq)]
pub struct TraceErrors {
    /// The first ones, in the order of their lines.
    pub errors: Vec<TraceError>,
    /// How many more there are.
    pub more: usize,
}

impl std::fmt::Display for TraceErrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lines: Vec<String> = self.errors.iter().map(TraceError::to_string).collect();
        write!(f, "{}", lines.join("\n"))?;
        match self.more {
            0 => Ok(()),
            n => write!(f, "\nand {n} more bad lines"),
        }
    }
}

impl From<TraceError> for TraceErrors {
    fn from(error: TraceError) -> TraceErrors {
        TraceErrors { errors: vec![error], more: 0 }
    }
}

/// Headers and packets of a trace as they are collected.
#[derive(Debug, Default)]
pub struct Trace {
    /// Distinct headers.
    pub headers: Vec<Key>,
    /// Packets.
    pub packets: Vec<Packet>,
    pub(super) known: HashMap<Key, u32>,
}

impl Trace {
    /// Adds a packet.
    pub fn add(&mut self, time: u64, key: Key) {
        let next = self.headers.len() as u32;
        let flow = *self.known.entry(key).or_insert(next);
        if flow == next {
            self.headers.push(key);
        }
        self.packets.push(Packet { time, flow });
    }

    /// Brings packets into the order of time, from 0 on (captures of several queues are out of order); an empty trace is an error.
    pub fn finish(mut self, file: &str) -> Result<Trace, TraceError> {
        self.packets.sort_by_key(|p| p.time);
        let Some(first) = self.packets.first().map(|p| p.time) else {
            return Err(TraceError::Empty { file: file.into() });
        };
        self.packets.iter_mut().for_each(|p| p.time -= first);
        Ok(self)
    }
}

/// Reads a text trace; nothing is returned unless all of it is good.
pub fn parse(file: &str, text: &str, names: &Names) -> Result<Trace, TraceErrors> {
    let mut trace = Trace::default();
    let mut errors = TraceErrors::default();
    // The line before, for the order of time.
    let mut last: Option<(usize, u64, &str)> = None;
    for (n, line) in text.lines().enumerate() {
        let body = line.trim_start();
        if body.is_empty() || body.starts_with('#') {
            continue;
        }
        let indent = line.len() - body.len();
        let read = self::line(line, body, names).and_then(|(time, written, key)| match last {
            Some((before, latest, at)) if time < latest => Err((
                indent + 1,
                format!("the time {written} lies before {at} of line {before}: lines are in the order of time"),
            )),
            _ => Ok((time, written, key)),
        });
        match read {
            Ok((time, written, key)) => {
                last = Some((n + 1, time, written));
                trace.add(time, key);
            }
            Err((column, what)) if errors.errors.len() < ERRORS_MAX => {
                errors.errors.push(TraceError::Line { file: file.into(), line: n + 1, column, what });
            }
            Err(_) => errors.more += 1,
        }
    }
    match errors.errors.is_empty() {
        true => Ok(trace.finish(file)?),
        false => Err(errors),
    }
}

/// One line: its time in nanoseconds and as written, and its packet; or the column of what is wrong.
fn line<'a>(line: &str, body: &'a str, names: &Names) -> Result<(u64, &'a str, Key), (usize, String)> {
    let begin = line.len() - body.len() + 1;
    let (time, packet) = body
        .split_once(char::is_whitespace)
        .ok_or_else(|| (begin, "a line is a time in seconds, a space, and a packet".to_string()))?;
    let seconds: f64 = time
        .parse()
        .ok()
        .filter(|s: &f64| s.is_finite() && (0.0..1e9).contains(s))
        .ok_or_else(|| (begin, format!("`{time}` is not a time in seconds")))?;
    let offset = line.chars().count() - packet.trim_start().chars().count();
    let key = pipeline::text::packet(packet.trim(), names).map_err(|e| (offset + e.column as usize, e.message))?;
    Ok(((seconds * 1e9) as u64, time, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_trace_is_read_and_bad_lines_are_named() {
        let names = Names::default();
        let trace =
            parse("t", "# x\n1.0 in_port=2,udp\n\n1.5 in_port=1,tcp,tp_dst=80\n2 in_port=2,udp\n", &names).unwrap();
        assert_eq!(trace.headers.len(), 2);
        assert_eq!(
            trace.packets.iter().map(|p| (p.time, p.flow)).collect::<Vec<_>>(),
            [(0, 0), (500_000_000, 1), (1_000_000_000, 0)]
        );
        for (bad, line, column) in
            [("x in_port=1", 1, 1), ("\n1.0", 2, 1), ("1 in_port=1,nosuch=3", 1, 13), ("-1 tcp", 1, 1)]
        {
            assert_eq!(places(&parse("t", bad, &names).map(|_| ()).unwrap_err()), [(line, column)], "{bad}");
        }
        let empty = TraceError::Empty { file: "t".into() };
        assert_eq!(parse("t", "", &names).map(|_| ()).unwrap_err(), empty.into());
    }

    fn places(errors: &TraceErrors) -> Vec<(usize, usize)> {
        let place = |error: &TraceError| match error {
            TraceError::Line { line, column, .. } => (*line, *column),
            other => panic!("{other}"),
        };
        errors.errors.iter().map(place).collect()
    }

    #[test]
    fn all_bad_lines_are_told_and_time_does_not_go_back() {
        let names = Names::default();
        let text = "1.5 in_port=1\nx in_port=1\n  1.25 in_port=2\n1.5 in_port=3\n3 nosuch=1\n2 tcp\n1e0 tcp\n";
        let errors = parse("t", text, &names).map(|_| ()).unwrap_err();
        assert_eq!(places(&errors), [(2, 1), (3, 3), (5, 3), (7, 1)]);
        let said = errors.to_string();
        assert!(said.contains("t:3:3: the time 1.25 lies before 1.5 of line 1"), "{said}");
        assert!(said.contains("t:7:1: the time 1e0 lies before 2 of line 6"), "{said}");
        let many = parse("t", &"bad line\n".repeat(50), &names).map(|_| ()).unwrap_err();
        assert_eq!((many.errors.len(), many.more), (20, 30));
        assert!(many.to_string().ends_with("and 30 more bad lines"));
    }
}
