// SPDX-License-Identifier: Apache-2.0
//! Figures with their sources: `4_000 from VPN gateway §2.2`, `1us assumed`, `measured xdp-gateway.value - xdp-gateway.driver_ns`.
//!
//! What a figure says of itself is kept beside the description, so that an answer can name all that it rests on.

use model::quantity::{parse_bits, parse_bytes, parse_packets};
use serde_json::Value;

/// Where a figure comes from.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase", tag = "is", content = "says")]
pub enum Source {
    /// The file gives it and no more.
    Given,
    /// A paper or a data sheet.
    From(String),
    /// Nobody measured it.
    Assumed(String),
    /// A result of a bench.
    Measured(String),
}

/// A figure of a file.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Figure {
    /// Its field.
    pub field: String,
    /// As it is written, without its source.
    pub written: String,
    /// Its value in base units.
    pub value: f64,
    /// Its source.
    pub source: Source,
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number.
    Number,
    /// A share of one, as percent.
    Share,
    /// Bits a second.
    Bits,
    /// Packets a second.
    Packets,
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Time,
}

/// Results of benches, as `tunny-lab bench --save` writes them.
#[derive(Clone, Debug)]
pub struct Results {
    /// The file's name.
    pub name: String,
    benches: Vec<Value>,
}

/// The current results of this repository, which descriptions use that name no others.
const CURRENT: (&str, &str) =
    ("docs/results/2026-11-23-release.json", include_str!("../../../../docs/results/2026-11-23-release.json"));

impl Results {
    /// Reads a file of results.
    pub fn read(name: &str, text: &str) -> Result<Results, String> {
        match serde_json::from_str(text) {
            Ok(Value::Array(benches)) => Ok(Results { name: name.into(), benches }),
            Ok(_) => Err(format!("{name} is no list of results: give a file that `tunny-lab bench --save` wrote")),
            Err(why) => Err(format!("{name} is not JSON: {why}")),
        }
    }

    /// Those of this repository.
    pub fn current() -> Results {
        Results::read(CURRENT.0, CURRENT.1).unwrap_or(Results { name: CURRENT.0.into(), benches: Vec::new() })
    }

    /// `BENCH.FIELD`: the value, or a detail.
    fn of(&self, reference: &str) -> Result<f64, String> {
        let (bench, field) = reference.split_once('.').ok_or_else(|| format!("`{reference}` is no BENCH.FIELD"))?;
        let found = self.benches.iter().find(|b| b["name"] == bench);
        let found = found.ok_or_else(|| format!("`{bench}` is no bench of {}", self.name))?;
        let value = if field == "value" { &found["value"] } else { &found["details"][field] };
        value.as_f64().ok_or_else(|| format!("`{field}` is no number of bench {bench} in {}", self.name))
    }
}

/// A figure's value, what is written of it, and its source.
pub fn read(text: &str, unit: Unit, results: &Results) -> Result<(f64, String, Source), String> {
    let text = text.trim();
    if let Some(terms) = text.strip_prefix("measured ") {
        let mut words = terms.split_whitespace().peekable();
        let value = sum(&mut words, results)?;
        if words.next().is_some() {
            return Err("has a ) without its (".into());
        }
        let source = Source::Measured(format!("{terms} of {}", results.name));
        return Ok((value, short(value), source));
    }
    let (written, source) = match (text.split_once(" from "), text.split_once(" assumed")) {
        (Some((written, source)), None) => (written, Source::From(source.trim().into())),
        (None, Some((written, why))) => (written, Source::Assumed(why.trim().trim_matches(['(', ')']).into())),
        _ => (text, Source::Given),
    };
    Ok((value(written.trim(), unit)?, written.trim().into(), source))
}

fn short(v: f64) -> String {
    format!("{}", (v * 100.0).round() / 100.0)
}

fn value(text: &str, unit: Unit) -> Result<f64, String> {
    let number = |text: &str| {
        text.replace('_', "")
            .parse::<f64>()
            .ok()
            .filter(|v| v.is_finite() && *v >= 0.0 && !text.starts_with(['+', '-']))
    };
    match unit {
        Unit::Number => number(text).ok_or_else(|| format!("`{text}` is no number from 0 on")),
        Unit::Share => {
            let share = text.strip_suffix('%').and_then(number).filter(|v| *v <= 100.0);
            share.map(|v| v / 100.0).ok_or_else(|| format!("`{text}` is no share from 0% to 100%, as 72.5%"))
        }
        Unit::Bits => parse_bits(text).map(|v| v as f64),
        Unit::Packets => parse_packets(text).map(|v| v as f64),
        Unit::Bytes => parse_bytes(text).map(|v| v as f64),
        Unit::Time => {
            let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6)];
            let found = units.iter().find_map(|(u, scale)| Some(number(text.strip_suffix(u)?)? * scale));
            found.ok_or_else(|| format!("`{text}` is no time: a number and ns, us or ms"))
        }
    }
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

/// Terms, added or subtracted; words stand apart, since names of benches have hyphens.
fn sum(words: &mut Words, results: &Results) -> Result<f64, String> {
    let mut value = product(words, results)?;
    while let Some(sign) = words.next_if(|w| ["+", "-"].contains(w)) {
        let next = product(words, results)?;
        value += if sign == "+" { next } else { -next };
    }
    let sound = value.is_finite() && value >= 0.0;
    match words.peek() {
        Some(word) if *word != ")" => Err(format!("`{word}` is none of + - * / ), which stand between spaces")),
        _ if !sound => Err(format!("comes to {value}, which is no figure from 0 on")),
        _ => Ok(value),
    }
}

fn product(words: &mut Words, results: &Results) -> Result<f64, String> {
    let mut value = factor(words, results)?;
    while let Some(sign) = words.next_if(|w| ["*", "/"].contains(w)) {
        let next = factor(words, results)?;
        value = if sign == "*" { value * next } else { value / next };
    }
    Ok(value)
}

fn factor(words: &mut Words, results: &Results) -> Result<f64, String> {
    match words.next() {
        None => Err("ends where a figure is expected: a number, or BENCH.FIELD of the results".into()),
        Some("(") => {
            let value = sum(words, results)?;
            match words.next() {
                Some(")") => Ok(value),
                _ => Err("has a ( without its )".into()),
            }
        }
        Some(word) => word.parse().or_else(|_| results.of(word)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let text = r#"[{"name": "a-b", "value": 100.0, "details": {"driver_ns": 40, "is": "text"}}]"#;
        Results::read("r.json", text).unwrap()
    }

    #[test]
    fn figures_say_where_they_come_from() {
        let r = results();
        let said = |s: &str| Source::From(s.into());
        assert_eq!(read("4_000 from VPN §2.2", Unit::Number, &r), Ok((4000.0, "4_000".into(), said("VPN §2.2"))));
        assert_eq!(read("2.5us assumed", Unit::Time, &r), Ok((2500.0, "2.5us".into(), Source::Assumed("".into()))));
        let why = Source::Assumed("no paper says".into());
        assert_eq!(read("5% assumed (no paper says)", Unit::Share, &r), Ok((0.05, "5%".into(), why)));
        let measured = Source::Measured("( a-b.value - a-b.driver_ns ) / 2 of r.json".into());
        let found = read("measured ( a-b.value - a-b.driver_ns ) / 2", Unit::Time, &r);
        assert_eq!(found, Ok((30.0, "30".into(), measured)));
        assert_eq!(read("40Gbit", Unit::Bits, &r), Ok((4e10, "40Gbit".into(), Source::Given)));
    }

    #[test]
    fn what_is_no_figure() {
        let r = results();
        for (text, unit) in [
            ("-1", Unit::Number),
            ("+1", Unit::Number),
            ("inf", Unit::Number),
            ("5", Unit::Share),
            ("101%", Unit::Share),
            ("5", Unit::Time),
            ("5s", Unit::Time),
            ("measured", Unit::Time),
            ("measured a-b", Unit::Time),
            ("measured c.value", Unit::Time),
            ("measured a-b.is", Unit::Time),
            ("measured ( 1 + 2", Unit::Time),
            ("measured 1 2", Unit::Time),
            ("measured a-b.driver_ns - a-b.value", Unit::Time),
            ("measured 1 / 0", Unit::Time),
            ("measured 1 )", Unit::Time),
        ] {
            let found = read(text, unit, &r);
            assert!(found.is_err(), "{text}: {found:?}");
        }
        assert!(Results::read("x", "{}").is_err() && Results::read("x", "[").is_err());
        assert!(!Results::current().benches.is_empty());
    }
}
