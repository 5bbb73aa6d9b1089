// SPDX-License-Identifier: Apache-2.0
//! Line plots as SVG, both axes logarithmic: enough for figures beside those of papers.
use std::fmt::Write;

/// A line of points with x ascending or descending.
#[derive(Clone, Debug)]
pub struct Line {
    /// What it is.
    pub name: String,
    /// Its points; those that are not positive are left out.
    pub points: Vec<(f64, f64)>,
    /// Drawn dashed: computed, or somebody else's.
    pub dashed: bool,
}

/// A plot.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Part of its file's name.
    pub name: &'static str,
    /// Title.
    pub title: String,
    /// What x is.
    pub x: String,
    /// What y is.
    pub y: String,
    /// Lines.
    pub lines: Vec<Line>,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 40.0;
const COLORS: [&str; 8] = ["#1b6ca8", "#c0392b", "#c77f1a", "#27844a", "#6c3ea8", "#444444", "#0f8b8d", "#a83e7e"];

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Whole decades around the values.
fn decades(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.filter(|v| *v > 0.0).fold((f64::MAX, 0f64), |(a, b), v| (a.min(v), b.max(v)));
    if high == 0.0 {
        return (0.0, 1.0);
    }
    let (low, high) = (low.log10().floor(), high.log10().ceil());
    (low, high.max(low + 1.0))
}

impl Plot {
    /// The SVG text.
    pub fn svg(&self) -> String {
        let all = || self.lines.iter().flat_map(|l| l.points.iter());
        let ((x0, x1), (y0, y1)) = (decades(all().map(|p| p.0)), decades(all().map(|p| p.1)));
        let at_x = |v: f64| LEFT + (v.log10() - x0) / (x1 - x0) * WIDTH;
        let at_y = |v: f64| TOP + HEIGHT - (v.log10() - y0) / (y1 - y0) * HEIGHT;
        let legend = TOP + HEIGHT + 60.0;
        let height = legend + 18.0 * self.lines.len() as f64 + 10.0;
        let mut s = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
<!-- SPDX-License-Identifier: Apache-2.0 -->\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
<text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{}</text>\n",
            LEFT + WIDTH + 30.0,
            escape(&self.title)
        );
        for d in x0 as i32..=x1 as i32 {
            let x = at_x(10f64.powi(d));
            let _ = writeln!(s, "<path d=\"M{x:.1} {TOP}V{}\" stroke=\"#ddd\"/><text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">10<tspan dy=\"-5\" font-size=\"9\">{d}</tspan></text>", TOP + HEIGHT, TOP + HEIGHT + 18.0);
        }
        for d in y0 as i32..=y1 as i32 {
            let y = at_y(10f64.powi(d));
            let _ = writeln!(s, "<path d=\"M{LEFT} {y:.1}H{}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>", LEFT + WIDTH, LEFT - 6.0, y + 4.0, 10f64.powi(d));
        }
        let _ = writeln!(
            s,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            LEFT + WIDTH / 2.0,
            TOP + HEIGHT + 38.0,
            escape(&self.x)
        );
        let _ = writeln!(
            s,
            "<text x=\"16\" y=\"{}\" transform=\"rotate(-90 16 {})\" text-anchor=\"middle\">{}</text>",
            TOP + HEIGHT / 2.0,
            TOP + HEIGHT / 2.0,
            escape(&self.y)
        );
        for (i, line) in self.lines.iter().enumerate() {
            let color = COLORS[i % COLORS.len()];
            let dash = if line.dashed { " stroke-dasharray=\"6 4\"" } else { "" };
            let points: Vec<_> = line.points.iter().filter(|p| p.0 > 0.0 && p.1 > 0.0).collect();
            let text: Vec<String> = points.iter().map(|p| format!("{:.1},{:.1}", at_x(p.0), at_y(p.1))).collect();
            let _ = writeln!(
                s,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"{dash}/>",
                text.join(" ")
            );
            for p in points {
                let _ =
                    writeln!(s, "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{color}\"/>", at_x(p.0), at_y(p.1));
            }
            let y = legend + 18.0 * i as f64;
            let _ = writeln!(s, "<path d=\"M{LEFT} {y}h30\" stroke=\"{color}\" stroke-width=\"2\"{dash}/><text x=\"{}\" y=\"{}\">{}</text>", LEFT + 38.0, y + 4.0, escape(&line.name));
        }
        s + "</svg>\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_lie_inside_and_text_is_escaped() {
        let points = vec![(1e-5, 3.0), (0.2, 900.0), (0.0, 5.0)];
        let line = Line { name: "a < b".into(), points, dashed: true };
        let plot = Plot { name: "x", title: "t & u".into(), x: "x".into(), y: "y".into(), lines: vec![line] };
        let svg = plot.svg();
        assert_eq!(svg.matches("<circle").count(), 2, "what is not positive has no place");
        assert!(svg.contains("a &lt; b") && svg.contains("t &amp; u") && svg.ends_with("</svg>\n"));
        for part in svg.split("cx=\"").skip(1) {
            let x: f64 = part.split('"').next().unwrap().parse().unwrap();
            assert!((LEFT..=LEFT + WIDTH).contains(&x));
        }
        let empty = Plot { lines: Vec::new(), ..plot };
        assert!(!empty.svg().contains("NaN"));
    }
}
