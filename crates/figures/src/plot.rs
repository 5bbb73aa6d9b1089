// SPDX-License-Identifier: Apache-2.0
//! Line plots as SVG: enough for figures beside those of papers.

use crate::{escape, short, COLOURS};
use std::fmt::Write;

/// A line of points with x ascending or descending.
#[derive(Clone, Debug)]
pub struct Line {
    /// What it is.
    pub name: String,
    /// Its points; those that a logarithmic axis has no place for are left out.
    pub points: Vec<(f64, f64)>,
    /// Drawn dashed: computed, or somebody else's.
    pub dashed: bool,
}

/// How an axis is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// From 0 to the largest value.
    Linear,
    /// Whole decades around the values.
    Logarithmic,
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
    /// Scales of x and y.
    pub scales: [Scale; 2],
    /// Width and height between the axes.
    pub size: [f64; 2],
    /// A value of x with a name.
    pub mark: Option<(f64, String)>,
    /// Lines.
    pub lines: Vec<Line>,
}

impl Default for Plot {
    fn default() -> Plot {
        Plot {
            name: "",
            title: String::new(),
            x: String::new(),
            y: String::new(),
            scales: [Scale::Logarithmic; 2],
            size: [760.0, 420.0],
            mark: None,
            lines: Vec::new(),
        }
    }
}

const LEFT: f64 = 70.0;
const TOP: f64 = 40.0;

/// An axis: what lies at its ends (logarithms, where it has those), and how long it is.
struct Axis {
    scale: Scale,
    ends: (f64, f64),
    length: f64,
}

impl Axis {
    fn new(scale: Scale, length: f64, values: impl Iterator<Item = f64>) -> Axis {
        let (low, high) = values.filter(|v| *v > 0.0).fold((f64::MAX, 0f64), |(a, b), v| (a.min(v), b.max(v)));
        let ends = match (scale, high > 0.0) {
            (_, false) => (0.0, 1.0),
            (Scale::Linear, true) => (0.0, high),
            (Scale::Logarithmic, true) => {
                let (low, high) = (low.log10().floor(), high.log10().ceil());
                (low, high.max(low + 1.0))
            }
        };
        Axis { scale, ends, length }
    }

    /// How far from its beginning a value lies; `None`: it has no place.
    fn at(&self, value: f64) -> Option<f64> {
        let along = |v: f64| (v - self.ends.0) / (self.ends.1 - self.ends.0) * self.length;
        match self.scale {
            Scale::Linear => Some(along(value)),
            Scale::Logarithmic => (value > 0.0).then(|| along(value.log10())),
        }
    }

    /// Places with a label, and with a power of ten if that is one.
    fn ticks(&self) -> Vec<(f64, String, Option<i32>)> {
        if self.scale == Scale::Logarithmic {
            let decades = self.ends.0 as i32..=self.ends.1 as i32;
            let tick = |d: i32| self.at(10f64.powi(d)).map(|at| (at, 10f64.powi(d).to_string(), Some(d)));
            return decades.filter_map(tick).collect();
        }
        // A step of 1, 2 or 5 by which there are at most six.
        let decade = 10f64.powf((self.ends.1 / 5.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * decade).into_iter().find(|s| self.ends.1 / s <= 6.0);
        let step = step.unwrap_or(self.ends.1);
        let values = (0..=6).map(|n| f64::from(n) * step).take_while(|v| *v <= self.ends.1 * 1.001);
        values.filter_map(|v| self.at(v).map(|at| (at, short(v), None))).collect()
    }
}

impl Plot {
    /// The SVG text.
    pub fn svg(&self) -> String {
        let all = || self.lines.iter().flat_map(|l| l.points.iter());
        let [width, height] = self.size;
        let x = Axis::new(self.scales[0], width, all().map(|p| p.0));
        let y = Axis::new(self.scales[1], height, all().map(|p| p.1));
        let (right, bottom) = (LEFT + width, TOP + height);
        let legend = bottom + 60.0;
        let mut s = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" font-family=\"sans-serif\" font-size=\"12\" role=\"img\">\n\
<!-- SPDX-License-Identifier: Apache-2.0 -->\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
<text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{2}</text>\n",
            right + 30.0,
            legend + 18.0 * self.lines.len() as f64 + 10.0,
            escape(&self.title)
        );
        for (at, label, power) in x.ticks() {
            let at = LEFT + at;
            let label = power.map_or(label, |d| format!("10<tspan dy=\"-5\" font-size=\"9\">{d}</tspan>"));
            let _ = writeln!(s, "<path d=\"M{at:.1} {TOP}V{bottom}\" stroke=\"#ddd\"/><text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>", bottom + 18.0);
        }
        for (at, label, _) in y.ticks() {
            let at = bottom - at;
            let _ = writeln!(s, "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", LEFT - 6.0, at + 4.0);
        }
        let middle = TOP + height / 2.0;
        let _ = writeln!(
            s,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n<text x=\"16\" y=\"{middle}\" transform=\"rotate(-90 16 {middle})\" text-anchor=\"middle\">{}</text>",
            LEFT + width / 2.0,
            bottom + 38.0,
            escape(&self.x),
            escape(&self.y)
        );
        if let Some((value, name)) = &self.mark {
            let at = LEFT + x.at(*value).unwrap_or(0.0);
            let _ = writeln!(s, "<path d=\"M{at:.1} {TOP}V{bottom}\" stroke=\"#555\" stroke-dasharray=\"3\"/><text x=\"{:.1}\" y=\"{}\">{}</text>", at + 4.0, TOP + 12.0, escape(name));
        }
        for (i, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            let dash = if line.dashed { " stroke-dasharray=\"6 4\"" } else { "" };
            let place = |p: &(f64, f64)| Some((LEFT + x.at(p.0)?, bottom - y.at(p.1)?));
            let points: Vec<_> = line.points.iter().filter_map(place).collect();
            let text: Vec<String> = points.iter().map(|p| format!("{:.1},{:.1}", p.0, p.1)).collect();
            let _ = writeln!(
                s,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
                text.join(" ")
            );
            // Of long lines the points are close enough to be seen.
            for p in points.iter().filter(|_| points.len() <= 40) {
                let _ = writeln!(s, "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>", p.0, p.1);
            }
            let y = legend + 18.0 * i as f64;
            let _ = writeln!(s, "<path d=\"M{LEFT} {y}h30\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/><text x=\"{}\" y=\"{}\">{}</text>", LEFT + 38.0, y + 4.0, escape(&line.name));
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
        let plot = Plot { title: "t & u".into(), lines: vec![line], ..Plot::default() };
        let svg = plot.svg();
        assert_eq!(svg.matches("<circle").count(), 2, "what is not positive has no place");
        assert!(svg.contains("a &lt; b") && svg.contains("t &amp; u") && svg.ends_with("</svg>\n"));
        for part in svg.split("cx=\"").skip(1) {
            let x: f64 = part.split('"').next().unwrap().parse().unwrap();
            assert!((LEFT..=LEFT + plot.size[0]).contains(&x));
        }
        let empty = Plot { lines: Vec::new(), ..plot };
        assert!(!empty.svg().contains("NaN"));
    }

    #[test]
    fn a_linear_axis_begins_at_nothing_and_its_ticks_are_round() {
        let axis = Axis::new(Scale::Linear, 100.0, [3.0, 96.0].into_iter());
        assert_eq!((axis.at(0.0), axis.at(96.0), axis.at(48.0)), (Some(0.0), Some(100.0), Some(50.0)));
        let labels: Vec<String> = axis.ticks().into_iter().map(|t| t.1).collect();
        assert_eq!(labels, ["0", "20", "40", "60", "80"]);
        let line = Line { name: "a".into(), points: vec![(0.0, 0.0), (1.0, 2.0)], dashed: false };
        let mark = Some((0.5, "change".to_string()));
        let plot = Plot { scales: [Scale::Linear; 2], mark, lines: vec![line], ..Plot::default() };
        assert!(plot.svg().contains(">change<") && plot.svg().matches("<circle").count() == 2);
    }
}
