// SPDX-License-Identifier: Apache-2.0
//! Printing results: a table for people, JSON or YAML for programs.

use crate::jsonpath::JsonPath;
use anyhow::Context;
use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use comfy_table::{presets::NOTHING, CellAlignment, ColumnConstraint, Table, Width};
use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Duration;

static PROGRAM: OnceLock<&'static str> = OnceLock::new();

/// Names the program that runs: its messages begin so.
pub(crate) fn begin(program: &'static str) {
    PROGRAM.get_or_init(|| program);
}

/// The name of the program that runs.
pub fn program() -> &'static str {
    PROGRAM.get().copied().unwrap_or("tunny")
}

/// How to print the result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Format {
    /// Text for people.
    Table,
    /// The same with what is seldom asked for.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// Kinds and names alone.
    Name,
    /// What a template chooses.
    Jsonpath(&'static JsonPath),
}

impl Format {
    /// Whether it is text for people.
    pub fn is_table(self) -> bool {
        matches!(self, Format::Table | Format::Wide)
    }
}

/// Reads a [`Format`] from the command line.
#[derive(Clone, Debug)]
pub struct FormatParser;

impl FormatParser {
    const WORDS: [&'static str; 6] = ["table", "wide", "json", "yaml", "name", "jsonpath=TEMPLATE"];
}

impl TypedValueParser for FormatParser {
    type Value = Format;

    fn parse_ref(&self, cmd: &clap::Command, arg: Option<&clap::Arg>, value: &OsStr) -> Result<Format, clap::Error> {
        let text = value.to_string_lossy();
        let mut error = clap::Error::new(ErrorKind::InvalidValue).with_cmd(cmd);
        match text.split_once('=') {
            None => match text.as_ref() {
                "table" | "text" => return Ok(Format::Table),
                "wide" => return Ok(Format::Wide),
                "json" => return Ok(Format::Json),
                "yaml" => return Ok(Format::Yaml),
                "name" => return Ok(Format::Name),
                _ => {}
            },
            Some(("jsonpath", template)) => match JsonPath::parse(template) {
                // A command line is read once; what it asks for lives as long as the process.
                Ok(path) => return Ok(Format::Jsonpath(Box::leak(Box::new(path)))),
                Err(why) => return Err(clap::Error::raw(ErrorKind::ValueValidation, why + "\n").with_cmd(cmd)),
            },
            Some(_) => {}
        }
        if let Some(arg) = arg {
            error.insert(ContextKind::InvalidArg, ContextValue::String(arg.to_string()));
        }
        if let Some(near) = model::nearest(&text, &Self::WORDS) {
            error.insert(ContextKind::SuggestedValue, ContextValue::String(near.to_string()));
        }
        error.insert(ContextKind::InvalidValue, ContextValue::String(text.into_owned()));
        error.insert(ContextKind::ValidValue, ContextValue::Strings(Self::WORDS.map(String::from).to_vec()));
        Err(error)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Self::WORDS.into_iter().map(PossibleValue::new)))
    }
}

/// Standard output. A reader that went away (`| head`) is no error: there is nobody left to work for, and the process ends.
pub struct Out;

fn gone<T>(result: std::io::Result<T>) -> std::io::Result<T> {
    match result {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other,
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        gone(std::io::stdout().lock().write(bytes))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        gone(std::io::stdout().lock().flush())
    }
}

/// Columns that a table may have: those of the terminal (COLUMNS), else 160.
pub fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    columns.unwrap_or(160).max(80)
}

/// Writes to standard output. Control characters in names from outside are written out.
pub fn print(text: &str) -> anyhow::Result<()> {
    print_as_it_is(&model::plain_lines(text))
}

/// Writes to standard output what is safe already.
pub fn print_as_it_is(text: &str) -> anyhow::Result<()> {
    Out.write_all(text.as_bytes()).and_then(|()| Out.flush()).context("cannot write to standard output")
}

/// Says something on standard error. Whether anybody hears it changes nothing.
pub fn say(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{}", model::plain_lines(&text.to_string()));
}

/// Says something on standard error behind the program's name.
pub fn note(text: impl std::fmt::Display) {
    say(format_args!("{}: {text}", program()));
}

/// Says why a command failed: a sentence a line, or as JSON where JSON was asked for.
pub fn fail(format: Format, sentences: &str) {
    match format {
        Format::Json => {
            let errors: Vec<&str> = sentences.lines().collect();
            say(model::plain_json(&serde_json::json!({ "errors": errors }).to_string()));
        }
        _ => note(sentences),
    }
}

/// Says what is being done when it takes longer than two seconds: a spinner on a terminal, one line elsewhere.
pub struct Patience {
    bar: ProgressBar,
}

impl Patience {
    /// Starts to wait.
    pub fn new(what: impl Into<String>) -> Patience {
        let bar = ProgressBar::hidden();
        bar.set_message(what.into());
        let shown = bar.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(2));
            if shown.is_finished() {
                return;
            }
            if !std::io::stderr().is_terminal() {
                return note(shown.message());
            }
            shown.set_draw_target(indicatif::ProgressDrawTarget::stderr());
            if let Ok(style) = indicatif::ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
                shown.set_style(style);
            }
            shown.enable_steady_tick(Duration::from_millis(200));
        });
        Patience { bar }
    }

    /// Changes what is said.
    pub fn say(&self, what: String) {
        self.bar.set_message(what);
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Prints a value in the format asked for; `table` makes the text for people.
pub fn show<T: Serialize>(format: Format, value: &T, table: impl FnOnce(&T) -> String) -> anyhow::Result<()> {
    let text = match format {
        Format::Table | Format::Wide => table(value),
        Format::Json => model::plain_json(&serde_json::to_string_pretty(value)?).into_owned() + "\n",
        Format::Yaml => yaml(&serde_json::to_value(value)?),
        Format::Name => names(&serde_json::to_value(value)?)?,
        Format::Jsonpath(path) => path.render(&serde_json::to_value(value)?),
    };
    print(&text)
}

/// A line a name, of an object or of each of a list.
fn names(value: &Value) -> anyhow::Result<String> {
    let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let line = |value| kind_and_name(value).map(|name| name + "\n");
    list.iter().map(line).collect::<Option<_>>().context("what is shown has no names: -o name is for objects")
}

/// What names an object: its kind and name as `get`, `describe` and `delete` take them; of a view that has names, its name.
pub fn kind_and_name(value: &Value) -> Option<String> {
    match value["kind"].as_str() {
        Some(kind) if value.get("apiVersion").is_some() => {
            Some(format!("{}/{}", kind.to_lowercase(), object_name(value)))
        }
        _ => value["name"].as_str().map(String::from),
    }
}

/// The name of an object: the one that it was given, or the one that it has by what it is.
pub fn object_name(object: &Value) -> String {
    if let Some(name) = object["metadata"]["name"].as_str() {
        return name.to_string();
    }
    let spec = &object["spec"];
    let own = spec["prefix"].as_str().or_else(|| spec["addresses"][0].as_str());
    match (spec["vpc"].as_str(), own) {
        (Some(vpc), Some(own)) => format!("{vpc}/{own}"),
        _ => String::new(),
    }
}

/// YAML of a value, keys in the order in which the value has them. Configuration objects become documents, which
/// `tunny validate` and `tunny apply` read back.
pub fn yaml(value: &serde_json::Value) -> String {
    match value.as_array() {
        Some(objects) if objects.iter().any(|o| o.get("apiVersion").is_some()) => {
            objects.iter().map(|object| format!("---\n{}", one_document(object))).collect()
        }
        _ => one_document(value),
    }
}

fn one_document(value: &serde_json::Value) -> String {
    let mut text = serde_saphyr::to_string(value).unwrap_or_else(|_| value.to_string());
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// Columns of a table that comes in pages: the first page says which there are and how wide, and has the header.
#[derive(Debug, Default)]
pub struct Columns {
    /// Their names.
    pub names: Vec<String>,
    /// The fields of objects that they are of.
    pub keys: Vec<String>,
    /// How wide, and whether of numbers.
    shape: Vec<(u16, bool)>,
}

impl Columns {
    /// Columns that none has: a page of such a table begins with a header, behind what was printed before.
    pub fn others() -> Columns {
        Columns { names: vec![String::new()], ..Columns::default() }
    }
}

/// A plain table without lines, in the manner of `ip` and `kubectl`. Columns of numbers are aligned right.
pub fn table<H: AsRef<str>>(headers: &[H], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    page(&mut Columns::default(), headers, rows)
}

/// A table whose last column is text of any length. On a terminal what does not fit the line goes on below; elsewhere a row is a line.
pub fn fitting<H: AsRef<str>>(headers: &[H], rows: Vec<Vec<String>>) -> String {
    match std::io::stdout().is_terminal() {
        true => wrapped(headers, &rows, width()),
        false => table(headers, rows),
    }
}

fn wrapped<H: AsRef<str>>(headers: &[H], rows: &[Vec<String>], width: usize) -> String {
    const LEAST: usize = 30;
    let last = headers.len() - 1;
    let before = table(&headers[..last], rows.iter().map(|row| row[..last].to_vec()));
    let taken = before.lines().map(|line| line.chars().count()).max().unwrap_or(0) + 2;
    let room = width.saturating_sub(taken).max(LEAST);
    let mut lines = Vec::new();
    for row in rows {
        let mut cells = row[..last].to_vec();
        for piece in pieces(&model::plain(&row[last]), room) {
            cells.push(piece);
            lines.push(std::mem::replace(&mut cells, vec![String::new(); last]));
        }
    }
    table(headers, lines)
}

/// A text in pieces of so many characters at most, between words where that can be; one piece at least.
fn pieces(text: &str, most: usize) -> Vec<String> {
    let mut list = vec![String::new()];
    for word in text.split(' ') {
        let mut rest: Vec<char> = word.chars().collect();
        let used = list.last().map_or(0, |piece| piece.chars().count());
        if used > 0 && used + 1 + rest.len() > most {
            list.push(String::new());
        }
        while rest.len() > most {
            list.extend([rest.drain(..most).collect(), String::new()]);
        }
        if let Some(piece) = list.last_mut() {
            if !piece.is_empty() {
                piece.push(' ');
            }
            piece.extend(rest);
        }
    }
    list.retain(|piece| !piece.is_empty());
    if list.is_empty() {
        list.push(String::new());
    }
    list
}

/// A page of a table. It begins with a header if it is the first, or if its columns are others than those of the page before.
pub fn page<H: AsRef<str>>(
    columns: &mut Columns,
    headers: &[H],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let rows: Vec<Vec<String>> =
        rows.into_iter().map(|row| row.into_iter().map(|cell| model::plain(&cell).into_owned()).collect()).collect();
    if rows.is_empty() {
        return String::from("nothing to show\n");
    }
    let names: Vec<String> = headers.iter().map(|h| h.as_ref().to_uppercase()).collect();
    let mut lines = Vec::with_capacity(rows.len() + 1);
    if columns.names != names {
        let shape = |(i, name): (usize, &String)| {
            let cells = || rows.iter().filter_map(|row| row.get(i));
            let widest = cells().map(|c| cell_width(c)).max().unwrap_or(0).max(cell_width(name));
            (widest, cells().all(|c| is_quantity(c)))
        };
        columns.shape = names.iter().enumerate().map(shape).collect();
        columns.names.clone_from(&names);
        lines.push(names);
    }
    lines.extend(rows);
    let shape = &columns.shape;
    let fits = |row: &Vec<String>| row.iter().zip(shape).all(|(cell, (width, _))| cell_width(cell) <= *width);
    // Only a row that does not fit leaves the columns.
    lines.chunk_by(|a, b| fits(a) && fits(b)).map(|rows| aligned(rows, shape, 0)).collect()
}

/// Names, and what is to be said of each: a line each, indented, in two columns.
pub fn list(rows: impl IntoIterator<Item = (String, String)>) -> String {
    let plain = |cell: String| model::plain(&cell).into_owned();
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(name, text)| vec![plain(name), plain(text)]).collect();
    aligned(&rows, &[(0, false); 2], 2)
}

/// Stands for a cell that is longer than columns can be wide: comfy-table counts in 16 bits. No cell has the character ([`model::plain`]).
const LONG: &str = "\0";
/// The widest column.
const WIDEST: u16 = 1 << 14;

fn cell_width(cell: &str) -> u16 {
    u16::try_from(cell.chars().count()).ok().filter(|width| *width <= WIDEST).unwrap_or(1)
}

fn is_long(cell: &str) -> bool {
    cell.len() > usize::from(WIDEST) && cell.chars().count() > usize::from(WIDEST)
}

/// Rows in columns two blanks apart, each as wide as it must be, and at least as `shape` says; numbers to the right.
fn aligned(rows: &[Vec<String>], shape: &[(u16, bool)], indent: u16) -> String {
    let mut table = Table::new();
    let cells = |row: &Vec<String>| {
        row.iter().map(|c| if is_long(c) { LONG.into() } else { c.clone() }).collect::<Vec<String>>()
    };
    table.load_style(NOTHING).add_rows(rows.iter().map(cells));
    for (i, (column, (width, right))) in table.column_iter_mut().zip(shape).enumerate() {
        let before = if i == 0 { indent } else { 0 };
        column.set_padding((before, 2));
        column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(before + width + 2)));
        column.set_cell_alignment(if *right { CellAlignment::Right } else { CellAlignment::Left });
    }
    let (mut text, shown) = (String::new(), table.trim_fmt());
    let mut long = rows.iter().flatten().filter(|cell| is_long(cell));
    for piece in shown.split_inclusive(LONG) {
        text.push_str(piece.trim_end_matches(LONG));
        if piece.ends_with(LONG) {
            text.push_str(long.next().map_or("", |cell| cell));
        }
    }
    text + "\n"
}

/// A number, perhaps with a unit behind it.
fn is_quantity(text: &str) -> bool {
    let number = text.split(' ').next().unwrap_or("");
    text.is_empty() || number.parse::<f64>().is_ok()
}

/// A number with a unit prefix: 1.25 M.
pub fn si(value: f64) -> String {
    for (limit, prefix) in [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if value >= limit {
            return format!("{:.2} {prefix}", value / limit);
        }
    }
    format!("{value:.0} ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align_numbers_right_and_text_left() {
        let text = table(&["name", "packets"], [vec!["a".into(), "5".into()], vec!["long".into(), "12345".into()]]);
        assert_eq!(text, "NAME  PACKETS\na           5\nlong    12345\n");
        assert_eq!(table(&["name"], []), "nothing to show\n");
    }

    #[test]
    fn pages_of_a_table_have_one_header_and_columns_of_one_width() {
        let mut columns = Columns::default();
        let mut text = page(&mut columns, &["name", "n"], [vec!["long".into(), "12".into()]]);
        text +=
            &page(&mut columns, &["name", "n"], [vec!["a".into(), "5".into()], vec!["longer".into(), "123".into()]]);
        assert_eq!(text, "NAME  N\nlong  12\na      5\nlonger  123\n".replace("NAME  N", "NAME   N"));
        assert!(
            page(&mut columns, &["name", "m"], [vec!["a".into(), "5".into()]]).starts_with("NAME"),
            "other columns"
        );
    }

    #[test]
    fn a_row_that_does_not_fit_and_a_cell_of_any_length_move_no_other_row() {
        let mut columns = Columns::default();
        let row = |a: &str, b: &str, c: &str| vec![a.to_string(), b.to_string(), c.to_string()];
        let mut text = page(&mut columns, &["name", "n", "x"], [row("abc", "1", "x")]);
        text +=
            &page(&mut columns, &["name", "n", "x"], [row("a", "2", "y"), row("abcdef", "3", "z"), row("b", "4", "")]);
        assert_eq!(text, "NAME  N  X\nabc   1  x\na     2  y\nabcdef  3  z\nb     4\n");
        let long = "é".repeat(100_000);
        let text = table(&["name", "rules"], [vec!["a".into(), long.clone()], vec!["b".into(), "few".into()]]);
        assert_eq!(text, format!("NAME  RULES\na     {long}\nb     few\n"));
        let text = list([("a".to_string(), long.clone()), ("bc".to_string(), String::new())]);
        assert_eq!(text, format!("  a   {long}\n  bc\n"));
    }

    #[test]
    fn the_last_column_goes_on_below_where_the_line_ends() {
        let note = format!("{} {}", "words of a note ".repeat(20), "é".repeat(170));
        let text = wrapped(&["a", "note"], &[vec!["x".repeat(40), note.clone()], vec!["y".into(), String::new()]], 100);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let told: String = text.lines().skip(1).flat_map(|line| line.chars().skip(42)).filter(|c| *c != ' ').collect();
        assert_eq!(told, note.replace(' ', ""), "nothing is lost");
        assert!(text.lines().last().unwrap().starts_with('y'));
    }

    #[test]
    fn a_cell_holds_no_command_for_the_terminal() {
        let text = table(&["name"], [vec!["\x1b]0;owned\x07\u{202e}".to_string()]]);
        assert_eq!(text, "NAME\n\\u{1b}]0;owned\\u{7}\\u{202e}\n");
    }

    #[test]
    fn prefixes() {
        assert_eq!([si(0.0), si(999.0), si(1250.0), si(3.5e9)], ["0 ", "999 ", "1.25 k", "3.50 G"]);
    }
}
