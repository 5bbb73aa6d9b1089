// SPDX-License-Identifier: Apache-2.0
//! Chips as data files: a flat YAML mapping, every number with its source in a comment.
//!
//! The file is read here, line by line, so that every error can name its line and field; the caller brings the text. A
//! profile remembers its lines: that a number does not suffice may show only when a plan asks for it
//! ([`Profile::refuse`], [`crate::culprit`]).

use crate::blocks::Geometry;
use std::collections::BTreeMap;

/// A chip.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// Pipes.
    pub pipes: u32,
    /// A stage.
    pub geometry: Geometry,
    /// Bits of packet header vector.
    pub phv_bits: u32,
    /// Ports of a pipe.
    pub ports_per_pipe: u32,
    /// Rate of a port.
    pub port_gbps: u32,
    /// Packets a pipe takes a microsecond.
    pub clock_mhz: u32,
    /// Cycles that a stage takes.
    pub stage_cycles: u32,
    /// Nanoseconds of parser, traffic manager and deparser in one pass.
    pub fixed_ns: u32,
    /// Ports can loop back, so that pipes can be folded.
    pub loopback: bool,
    /// Bytes that a crossing between pipes carries along.
    pub bridge_header_bytes: u32,
    /// The file it was read from, for messages.
    pub file: String,
    /// Where each field stands in it, from 1.
    pub lines: BTreeMap<String, usize>,
}

/// What is wrong with a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {field}: {reason}")]
pub struct ProfileError {
    /// File name as given.
    pub file: String,
    /// Line, from 1; the last one if a field is missing.
    pub line: usize,
    /// Field.
    pub field: String,
    /// What is wrong, what to do.
    pub reason: String,
}

/// The fields that are numbers, with what they may be.
pub(crate) const FIELDS: &[(&str, u32, u32)] = &[
    ("pipes", 1, 16),
    ("stages", 1, 64),
    ("sram_rows", 1, 32),
    ("sram_columns", 1, 64),
    ("sram_depth", 64, 65_536),
    ("sram_width", 64, 128),
    ("tcam_per_stage", 0, 256),
    ("tcam_depth", 64, 65_536),
    ("tcam_pair_bytes", 2, 32),
    ("map_ram_per_stage", 0, 1024),
    ("row_entries_max", 1, 16),
    ("pack_max", 1, 32),
    ("immediate_bits", 0, 32),
    ("crossbar_group", 4, 64),
    ("crossbar_exact", 16, 1024),
    ("crossbar_ternary", 0, 1024),
    ("hash_bits", 16, 256),
    ("hash_ways", 1, 8),
    ("hash_groups", 1, 64),
    ("tables_per_stage", 1, 256),
    ("ternary_tables_per_stage", 0, 256),
    ("stats_alus", 0, 64),
    ("meter_alus", 0, 64),
    ("register_blocks_max", 0, 1024),
    ("phv_bits", 512, 65_536),
    ("ports_per_pipe", 1, 256),
    ("port_gbps", 1, 3200),
    ("clock_mhz", 100, 5000),
    ("stage_cycles", 1, 200),
    ("fixed_ns", 0, 100_000),
    ("bridge_header_bytes", 0, 256),
];

/// The profiles that come with the program.
pub const BUILT_IN: &[(&str, &str)] = &[
    ("tofino1", include_str!("../profiles/tofino1.yaml")),
    ("tofino2", include_str!("../profiles/tofino2.yaml")),
    ("example-rmt", include_str!("../profiles/example-rmt.yaml")),
];

/// The text of a built-in profile.
pub fn built_in(name: &str) -> Option<&'static str> {
    BUILT_IN.iter().find(|(n, _)| *n == name).map(|(_, text)| *text)
}

/// Lines of a profile, by field.
struct Lines<'a> {
    file: &'a str,
    fields: BTreeMap<&'a str, (usize, &'a str)>,
    last: usize,
}

impl<'a> Lines<'a> {
    fn error(&self, line: usize, field: &str, reason: impl Into<String>) -> ProfileError {
        ProfileError { file: self.file.into(), line, field: field.into(), reason: reason.into() }
    }

    fn read(file: &'a str, text: &'a str) -> Result<Lines<'a>, ProfileError> {
        let mut lines = Lines { file, fields: Default::default(), last: text.lines().count().max(1) };
        for (i, raw) in text.lines().enumerate() {
            let line = raw.split_once('#').map_or(raw, |(before, _)| before).trim_end();
            if line.trim().is_empty() || line == "---" {
                continue;
            }
            let Some((field, value)) = line.split_once(':') else {
                let shown: String = line.chars().take(40).collect();
                return Err(lines.error(i + 1, &shown, "expected 'field: value'"));
            };
            if field.starts_with([' ', '\t', '-']) {
                return Err(lines.error(i + 1, field.trim(), "a profile has no nested fields: remove the indentation"));
            }
            let known = matches!(field, "name" | "loopback") || FIELDS.iter().any(|(f, ..)| *f == field);
            if !known {
                let shown: String = field.chars().take(40).collect();
                return Err(lines.error(i + 1, &shown, "unknown field: see the profiles that come with the program"));
            }
            if let Some((first, _)) = lines.fields.get(field) {
                return Err(lines.error(i + 1, field, format!("given twice, first in line {first}: remove one")));
            }
            lines.fields.insert(field, (i + 1, value.trim().trim_matches('"')));
        }
        Ok(lines)
    }

    fn get(&self, field: &str) -> Result<(usize, &'a str), ProfileError> {
        let found = self.fields.get(field).copied();
        found.ok_or_else(|| self.error(self.last, field, "missing: add it (with its source in a comment)"))
    }

    fn number(&self, field: &str) -> Result<u32, ProfileError> {
        let (line, text) = self.get(field)?;
        let (_, min, max) = FIELDS.iter().find(|(f, ..)| *f == field).copied().unwrap_or((field_name(), 0, u32::MAX));
        match text.replace('_', "").parse::<u32>() {
            Ok(n) if (min..=max).contains(&n) => Ok(n),
            Ok(n) => Err(self.error(line, field, format!("{n} is impossible: it must be {min} to {max}"))),
            Err(_) => {
                let shown: String = text.chars().take(40).collect();
                Err(self.error(line, field, format!("'{shown}' is no whole number from {min} to {max}")))
            }
        }
    }
}

const fn field_name() -> &'static str {
    "a number"
}

/// Reads a profile; `file` is its name in messages.
pub fn parse(file: &str, text: &str) -> Result<Profile, ProfileError> {
    let l = Lines::read(file, text)?;
    let n = |field: &str| l.number(field);
    let geometry = Geometry {
        stages: n("stages")?,
        sram_rows: n("sram_rows")?,
        sram_columns: n("sram_columns")?,
        sram_depth: n("sram_depth")?,
        sram_width: n("sram_width")?,
        tcam_per_stage: n("tcam_per_stage")?,
        tcam_depth: n("tcam_depth")?,
        tcam_pair_bytes: n("tcam_pair_bytes")?,
        map_ram_per_stage: n("map_ram_per_stage")?,
        row_entries_max: n("row_entries_max")?,
        pack_max: n("pack_max")?,
        immediate_bits: n("immediate_bits")?,
        crossbar_group: n("crossbar_group")?,
        crossbar_exact: n("crossbar_exact")?,
        crossbar_ternary: n("crossbar_ternary")?,
        hash_bits: n("hash_bits")?,
        hash_ways: n("hash_ways")?,
        hash_groups: n("hash_groups")?,
        tables_per_stage: n("tables_per_stage")?,
        ternary_tables_per_stage: n("ternary_tables_per_stage")?,
        stats_alus: n("stats_alus")?,
        meter_alus: n("meter_alus")?,
        register_blocks_max: n("register_blocks_max")?,
    };
    let (line, loopback) = l.get("loopback")?;
    let loopback = match loopback {
        "yes" | "true" => true,
        "no" | "false" => false,
        _ => return Err(l.error(line, "loopback", "must be yes or no")),
    };
    let (line, name) = l.get("name")?;
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 40 || !name.chars().all(fits) {
        return Err(l.error(line, "name", "must be 1 to 40 letters, digits, '-', '_' or '.'"));
    }
    let p = Profile {
        name: name.into(),
        pipes: n("pipes")?,
        geometry,
        phv_bits: n("phv_bits")?,
        ports_per_pipe: n("ports_per_pipe")?,
        port_gbps: n("port_gbps")?,
        clock_mhz: n("clock_mhz")?,
        stage_cycles: n("stage_cycles")?,
        fixed_ns: n("fixed_ns")?,
        loopback,
        bridge_header_bytes: n("bridge_header_bytes")?,
        file: file.into(),
        lines: l.fields.iter().map(|(field, (line, _))| (field.to_string(), *line)).collect(),
    };
    check(&p)?;
    Ok(p)
}

/// What no single field shows: numbers that contradict each other.
fn check(p: &Profile) -> Result<(), ProfileError> {
    let g = &p.geometry;
    let at = |field: &str, reason: String| Err(p.refuse(field, reason));
    for (field, value) in [("sram_depth", g.sram_depth), ("tcam_depth", g.tcam_depth)] {
        if !value.is_power_of_two() {
            return at(field, format!("{value} is impossible: addresses are whole bits, so it must be a power of two"));
        }
    }
    if !g.sram_width.is_multiple_of(16) {
        return at("sram_width", format!("{} is impossible: it must be a multiple of 16", g.sram_width));
    }
    let rows = g.hash_ways * g.row_bits();
    if g.hash_bits < rows {
        return at(
            "hash_bits",
            format!(
                "{} cannot address {} ways of {} rows: give at least {rows}",
                g.hash_bits, g.hash_ways, g.sram_depth
            ),
        );
    }
    if g.map_ram_per_stage > g.sram_per_stage() {
        return at(
            "map_ram_per_stage",
            format!(
                "{} map RAMs for {} SRAM blocks: each belongs to one block",
                g.map_ram_per_stage,
                g.sram_per_stage()
            ),
        );
    }
    if g.crossbar_group * 8 > g.sram_width {
        return at(
            "crossbar_group",
            format!("{} bytes are more than a word of {} bits compares", g.crossbar_group, g.sram_width),
        );
    }
    if g.crossbar_group > g.crossbar_exact {
        let reason =
            format!("{} bytes cannot be a part of the {} of crossbar_exact", g.crossbar_group, g.crossbar_exact);
        return at("crossbar_group", reason);
    }
    if g.ternary_tables_per_stage > g.tables_per_stage {
        let reason =
            format!("{} of the {} of tables_per_stage cannot be", g.ternary_tables_per_stage, g.tables_per_stage);
        return at("ternary_tables_per_stage", reason);
    }
    let ternary = [("crossbar_ternary", g.crossbar_ternary), ("ternary_tables_per_stage", g.ternary_tables_per_stage)];
    if let Some((field, _)) = ternary.into_iter().find(|(_, n)| g.tcam_per_stage > 0 && *n == 0) {
        let reason =
            format!("0 leaves the {} TCAM blocks of a stage without a use: give some, or no TCAM", g.tcam_per_stage);
        return at(field, reason);
    }
    if p.loopback && p.pipes < 2 {
        return at("loopback", "a single pipe has no other to be folded with: set it to no".into());
    }
    Ok(())
}

impl Profile {
    /// An error about one of the fields.
    pub fn refuse(&self, field: &str, reason: impl Into<String>) -> ProfileError {
        let line = self.lines.get(field).copied().unwrap_or(1);
        ProfileError { file: self.file.clone(), line, field: field.into(), reason: reason.into() }
    }

    /// SRAM blocks of a pipe.
    pub fn sram_per_pipe(&self) -> u32 {
        self.geometry.sram_per_stage() * self.geometry.stages
    }

    /// TCAM blocks of a pipe.
    pub fn tcam_per_pipe(&self) -> u32 {
        self.geometry.tcam_per_stage * self.geometry.stages
    }
}
