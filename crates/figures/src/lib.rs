// SPDX-License-Identifier: Apache-2.0
//! HTML pages and SVG figures of reports: one file each, no scripts, nothing loaded from elsewhere.
//!
//! A plotting crate (`plotters`) would take the place of the line plots alone: bars with parts, the pages, their tables and the drawings of a
//! chip's blocks stay, and the figures of the benches are compared with papers in the form that they have.
#![forbid(unsafe_code)]

mod bars;
mod plot;

pub use bars::{bars, Bar};
pub use plot::{Line, Plot, Scale};

/// Colours by number.
pub const COLOURS: [&str; 8] = ["#1b6ca8", "#c0392b", "#c77f1a", "#27844a", "#6c3ea8", "#444444", "#0f8b8d", "#a83e7e"];

/// Text as HTML and SVG take it.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#1a1a1a;background:#fff}\
table{border-collapse:collapse;margin:.6rem 0 1.4rem;font-variant-numeric:tabular-nums}\
td,th{padding:.2rem .8rem;border-bottom:1px solid #ddd;text-align:right;vertical-align:top}td.w,th.w{text-align:left}\
.note{color:#555}.bad{background:#fee;padding:.6rem;border-left:4px solid #c33}.plots{display:flex;flex-wrap:wrap;gap:1em}\
svg{max-width:100%;height:auto}svg text{font:11px system-ui,sans-serif}";

/// A page with this title; the body is HTML.
pub fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title><style>{STYLE}</style></head>\
         <body><h1>{0}</h1>{body}</body></html>\n",
        escape(title)
    )
}

/// A table whose columns of numbers stand to the right, and those of words to the left.
pub fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let rows: Vec<Vec<String>> = rows.into_iter().collect();
    let number =
        |cell: &String| cell.starts_with(|c: char| c.is_ascii_digit() || "+-–≈".contains(c)) && cell.len() < 24;
    let words = |column: usize| rows.iter().filter_map(|r| r.get(column)).any(|cell| !number(cell));
    let class: Vec<&str> = (0..head.len()).map(|i| if words(i) { " class=\"w\"" } else { "" }).collect();
    let mut t = String::from("<table><tr>");
    head.iter().zip(&class).for_each(|(c, class)| t += &format!("<th{class}>{}</th>", escape(c)));
    for row in &rows {
        t += "</tr><tr>";
        row.iter().zip(&class).for_each(|(c, class)| t += &format!("<td{class}>{}</td>", escape(c)));
    }
    t + "</tr></table>"
}

/// A number as short as a label must be.
fn short(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{v:.1e}"),
        v if v >= 10_000.0 => format!("{:.1}K", v / 1000.0),
        v if v >= 100.0 => format!("{v:.0}"),
        v if v.fract() == 0.0 => format!("{v}"),
        v => format!("{v:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_left_numbers_right_and_nothing_is_markup() {
        let text = table(&["a", "n"], [vec!["x < y".into(), "5".into()], vec!["z".into(), "–".into()]]);
        assert_eq!(
            text,
            "<table><tr><th class=\"w\">a</th><th>n</th></tr><tr><td class=\"w\">x &lt; y</td><td>5</td></tr>\
             <tr><td class=\"w\">z</td><td>–</td></tr></table>"
        );
        assert!(page("a & b", "<p>x").contains("<title>a &amp; b</title>"));
    }

    #[test]
    fn labels_are_short() {
        assert_eq!([0.0, 0.25, 150.2, 12_345.0, 2e9].map(short), ["0", "0.2", "150", "12.3K", "2.0e9"]);
    }
}
