// SPDX-License-Identifier: Apache-2.0
//! Bars of several parts.

use crate::{escape, short, COLOURS};
use std::fmt::Write;

/// A bar: its label, parts from the bottom with numbers of colours.
pub type Bar = (String, Vec<(f64, usize)>);

/// Bars side by side as SVG; the legend names the colours from 0 on.
pub fn bars(title: &str, unit: &str, all: &[Bar], legend: &[&str]) -> String {
    let sum = |bar: &Bar| bar.1.iter().map(|part| part.0).sum::<f64>();
    let top = all.iter().map(sum).fold(1e-9, f64::max);
    let step = 360.0 / all.len().max(1) as f64;
    let mut out = format!(
        "<svg width=\"440\" height=\"260\" role=\"img\"><text x=\"10\" y=\"16\">{} ({})</text>",
        escape(title),
        escape(unit)
    );
    for (n, bar) in all.iter().enumerate() {
        let x = 50.0 + n as f64 * step;
        let mut y = 210.0;
        for (value, colour) in &bar.1 {
            let height = value / top * 170.0;
            y -= height;
            let colour = COLOURS[colour % COLOURS.len()];
            let _ = write!(
                out,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>",
                step * 0.7
            );
        }
        let _ = write!(
            out,
            "<text x=\"{x:.1}\" y=\"{:.1}\">{}</text><text x=\"{x:.1}\" y=\"224\" transform=\"rotate(20 {x:.1} 224)\">{}</text>",
            y - 3.0,
            short(sum(bar)),
            escape(&bar.0)
        );
    }
    for (n, name) in legend.iter().enumerate() {
        let x = 150 + n * 72;
        let _ = write!(
            out,
            "<rect x=\"{x}\" y=\"22\" width=\"9\" height=\"9\" fill=\"{}\"/><text x=\"{}\" y=\"31\">{}</text>",
            COLOURS[n % COLOURS.len()],
            x + 12,
            escape(name)
        );
    }
    out + "</svg>"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_bar_is_as_high_as_the_figure() {
        let all = [("a".to_string(), vec![(1.0, 0), (3.0, 1)]), ("<b>".to_string(), vec![(2.0, 9)])];
        let svg = bars("t", "ns", &all, &["x"]);
        assert!(svg.contains("height=\"42.5\"") && svg.contains("height=\"127.5\"") && svg.contains("height=\"85.0\""));
        assert!(svg.contains("&lt;b&gt;") && !bars("t", "u", &[], &[]).contains("NaN"));
    }
}
