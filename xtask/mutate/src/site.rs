// SPDX-License-Identifier: Apache-2.0
//! Places of a source file that are mutated, and the text that they become.
//!
//! A site covers a range of the source. Its text is put together from pieces: text of its own, and parts of the source, in which
//! the sites inside it are put together likewise. So a mutant costs one test of a number where it stands, whatever its nesting.

use std::collections::HashSet;
use std::ops::Range;

/// The name of the function that says whether a mutant is switched on.
const ON: &str = "::mutant::on";

/// One mutant.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Mutant {
    /// Its number: what switches it on.
    pub id: u32,
    /// Its crate.
    pub krate: String,
    /// Its file, from the root of the workspace.
    pub file: String,
    /// Line of the original.
    pub line: usize,
    /// Column of the original, from 1.
    pub column: usize,
    /// The function it stands in.
    pub function: String,
    /// What is done: `replace < with <=`.
    pub change: String,
    /// The source line, trimmed.
    pub text: String,
}

/// A part of the source.
pub type Span = Range<usize>;

/// How a site is mutated. A number beside an operator or value is the mutant's.
#[derive(Clone, Debug)]
pub enum Form {
    /// A function: nothing is mutated, but what stands in it can be found.
    Function,
    /// `const fn` that becomes a plain one, so that its body can be mutated.
    Unconst(String),
    /// A boolean expression, which is negated.
    Negate(u32),
    /// `a && b` and `a || b`.
    Logic { left: Span, right: Span, op: &'static str, id: u32 },
    /// Comparisons by order: operands are looked at.
    Order { left: Span, right: Span, op: &'static str, other: Vec<(u32, &'static str)> },
    /// Arithmetic: operands are used up.
    Arith { left: Span, right: Span, op: &'static str, other: Vec<(u32, &'static str)> },
    /// `a += b`.
    Assign { left: Span, right: Span, op: &'static str, other: Vec<(u32, &'static str)> },
    /// `!a` and `-a` become `a`.
    Unary { operand: Span, op: &'static str, id: u32 },
    /// A method of one argument becomes another.
    Method { receiver: Span, argument: Span, name: String, other: &'static str, id: u32 },
    /// A literal becomes another one.
    Literal { id: u32, other: String },
    /// The guard of a match arm is always true, or never.
    Guard { always: u32, never: u32 },
    /// A match arm never matches, so that a later one takes its place.
    Arm(u32),
    /// A statement is left out.
    Statement(u32),
    /// A function returns at once: the brace at which its body begins.
    Body(Vec<(u32, String)>),
}

/// A site.
#[derive(Clone, Debug)]
pub struct Site {
    /// What it covers.
    pub span: Span,
    /// How it is mutated.
    pub form: Form,
}

impl Site {
    /// The mutants that stand here.
    pub fn ids(&self) -> Vec<u32> {
        match &self.form {
            Form::Function | Form::Unconst(_) => Vec::new(),
            Form::Negate(id) | Form::Arm(id) | Form::Statement(id) => vec![*id],
            Form::Logic { id, .. } | Form::Unary { id, .. } | Form::Method { id, .. } | Form::Literal { id, .. } => {
                vec![*id]
            }
            Form::Order { other, .. } | Form::Arith { other, .. } | Form::Assign { other, .. } => {
                other.iter().map(|o| o.0).collect()
            }
            Form::Guard { always, never } => vec![*always, *never],
            Form::Body(values) => values.iter().map(|v| v.0).collect(),
        }
    }
}

/// A piece of a site's text.
enum Piece<'a> {
    Text(String),
    Own(&'a str),
    Source(Span),
}

/// Where a site's text has come to lie in the instrumented file.
pub struct Placed {
    /// Its range there.
    pub range: Span,
    /// Index of the site.
    pub site: usize,
}

/// An instrumented file.
pub struct Rendered {
    /// Its text.
    pub text: String,
    /// Its sites, those inside others included.
    pub placed: Vec<Placed>,
}

/// Puts the instrumented text of a file together, without the mutants in `dropped`.
pub fn render(source: &str, sites: &[Site], dropped: &HashSet<u32>) -> Rendered {
    let mut order: Vec<usize> = (0..sites.len()).collect();
    // Outer before inner; of two that cover the same, the one found first is the outer one.
    order.sort_by_key(|&i| (sites[i].span.start, std::cmp::Reverse(sites[i].span.end), i));
    let mut children = vec![Vec::new(); sites.len() + 1];
    let mut open: Vec<usize> = Vec::new();
    for &i in &order {
        while open
            .last()
            .is_some_and(|&o| sites[o].span.end < sites[i].span.end || sites[o].span.end <= sites[i].span.start)
        {
            open.pop();
        }
        children[open.last().map_or(sites.len(), |&o| o)].push(i);
        open.push(i);
    }
    let mut r =
        Renderer { source, sites, dropped, children, out: Rendered { text: String::new(), placed: Vec::new() } };
    r.source(0..source.len(), sites.len());
    r.out
}

struct Renderer<'a> {
    source: &'a str,
    sites: &'a [Site],
    dropped: &'a HashSet<u32>,
    children: Vec<Vec<usize>>,
    out: Rendered,
}

impl Renderer<'_> {
    /// A part of the source, with the sites in it that are children of `parent`.
    fn source(&mut self, span: Span, parent: usize) {
        let mut at = span.start;
        for child in self.children[parent].clone() {
            let inner = self.sites[child].span.clone();
            if inner.start < span.start || inner.end > span.end {
                continue;
            }
            self.out.text.push_str(&self.source[at..inner.start]);
            at = inner.end;
            self.site(child);
        }
        self.out.text.push_str(&self.source[at..span.end]);
    }

    fn site(&mut self, index: usize) {
        let start = self.out.text.len();
        for piece in pieces(&self.sites[index], self.dropped) {
            match piece {
                Piece::Text(t) => self.out.text.push_str(&t),
                Piece::Own(t) => self.out.text.push_str(t),
                Piece::Source(span) => self.source(span, index),
            }
        }
        self.out.placed.push(Placed { range: start..self.out.text.len(), site: index });
    }
}

/// `if on(1) { l - r } else if on(2) { l * r } else { l + r }`.
fn choice<'a>(original: String, other: impl Iterator<Item = (u32, String)>) -> Piece<'a> {
    let mut text = String::new();
    for (id, value) in other {
        text += &format!("if {ON}({id}) {{ {value} }} else ");
    }
    Piece::Text(format!("{text}{{ {original} }}"))
}

fn pieces<'a>(site: &'a Site, dropped: &HashSet<u32>) -> Vec<Piece<'a>> {
    use Piece::{Own, Source, Text};
    let keep = |id: &u32| !dropped.contains(id);
    let ids = site.ids();
    let plain = matches!(site.form, Form::Function) || !ids.is_empty() && !ids.iter().any(keep);
    if plain {
        return vec![Source(site.span.clone())];
    }
    let whole = || Source(site.span.clone());
    let operators = |other: &[(u32, &'static str)], op: &str, l: &str, r: &str| {
        let other: Vec<_> = other.iter().filter(|o| keep(&o.0)).map(|(id, o)| (*id, format!("{l} {o} {r}"))).collect();
        choice(format!("{l} {op} {r}"), other.into_iter())
    };
    match &site.form {
        Form::Function => vec![whole()],
        // The keyword is the site.
        Form::Unconst(_) => Vec::new(),
        Form::Negate(id) => vec![Own("(("), whole(), Text(format!(") ^ {ON}({id}))"))],
        Form::Logic { left, right, op, id } => {
            // By De Morgan: with all three negated, `&&` does what `||` does, and as lazily.
            vec![
                Own("(((("),
                Source(left.clone()),
                Text(format!(") ^ {ON}({id})) {op} ((")),
                Source(right.clone()),
                Text(format!(") ^ {ON}({id}))) ^ {ON}({id}))")),
            ]
        }
        Form::Order { left, right, op, other } => vec![
            Own("(match (&("),
            Source(left.clone()),
            Own("), &("),
            Source(right.clone()),
            Own(")) { (__l, __r) => "),
            operators(other, op, "*__l", "*__r"),
            Own(" })"),
        ],
        Form::Arith { left, right, op, other } => vec![
            Own("(match ("),
            Source(left.clone()),
            Own(", "),
            Source(right.clone()),
            Own(") { (__l, __r) => "),
            operators(other, op, "__l", "__r"),
            Own(" })"),
        ],
        Form::Assign { left, right, op, other } => {
            let mut out = vec![Own("(match ("), Source(right.clone()), Own(") { __r => ")];
            for (id, o) in other.iter().filter(|o| keep(&o.0)) {
                out.extend([
                    Text(format!("if {ON}({id}) {{ ")),
                    Source(left.clone()),
                    Text(format!(" {o} __r }} else ")),
                ]);
            }
            out.extend([Own("{ "), Source(left.clone()), Text(format!(" {op} __r }} }})"))]);
            out
        }
        Form::Unary { operand, op, id } => {
            vec![
                Own("(match ("),
                Source(operand.clone()),
                Own(") { __v => "),
                choice(format!("{op}__v"), [(*id, "__v".to_string())].into_iter()),
                Own(" })"),
            ]
        }
        Form::Method { receiver, argument, name, other, id } => vec![
            Own("(match ("),
            Source(receiver.clone()),
            Own(", "),
            Source(argument.clone()),
            Own(") { (__l, __r) => "),
            choice(format!("__l.{name}(__r)"), [(*id, format!("__l.{other}(__r)"))].into_iter()),
            Own(" })"),
        ],
        Form::Literal { id, other } => {
            vec![Text(format!("(if {ON}({id}) {{ {other} }} else {{ ")), whole(), Own(" })")]
        }
        Form::Guard { always, never } => {
            vec![Own("((("), whole(), Text(format!(") || {ON}({always})) && !{ON}({never}))"))]
        }
        Form::Arm(id) => vec![whole(), Text(format!(" if !{ON}({id})"))],
        Form::Statement(id) => vec![Text(format!("if !{ON}({id}) {{ ")), whole(), Own(" }")],
        Form::Body(values) => {
            let returns =
                values.iter().filter(|v| keep(&v.0)).map(|(id, v)| format!(" if {ON}({id}) {{ return {v}; }}"));
            vec![whole(), Text(returns.collect())]
        }
    }
}
