// SPDX-License-Identifier: Apache-2.0
//! Finds what can be mutated in a crate's library.
//!
//! Left out, and why: tests and what only tests compile; constants, statics, types and patterns, which are evaluated while
//! compiling; bodies of macros (assertions, formatted text, `macro_rules!`), which are no syntax before they are expanded, except
//! `matches!`, whose result is negated; `Debug` and `Display`, which are text for people, and what stands under `if R::ON`, which
//! is the text of `tunny trace`; `spin_loop` and `drop(…)` as statements, which change speed or lifetime alone; `prefetch…`,
//! `with_capacity`, `reserve` and `shrink_to…`, calls and bodies with all that stands in them, which are hints.

use crate::site::{Form, Mutant, Site, Span};
use std::path::{Path, PathBuf};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, Lit, Stmt, UnOp};

/// A source file and its sites.
pub struct SourceFile {
    /// Path from the root of the workspace.
    pub path: String,
    /// Its text.
    pub text: String,
    /// Its sites.
    pub sites: Vec<Site>,
}

/// All that is mutated in a workspace.
#[derive(Default)]
pub struct Scan {
    /// The files.
    pub files: Vec<SourceFile>,
    /// The mutants, by number.
    pub mutants: Vec<Mutant>,
}

impl Scan {
    /// Adds a crate: the files that its `lib.rs` reaches outside tests.
    pub fn add_crate(&mut self, root: &Path, krate: &str) -> Result<(), String> {
        let src = PathBuf::from(format!("crates/{krate}/src"));
        let mut todo = vec![(src.join("lib.rs"), src)];
        while let Some((file, children)) = todo.pop() {
            let text = std::fs::read_to_string(root.join(&file))
                .map_err(|e| format!("cannot read {}: {e}", file.display()))?;
            let parsed = syn::parse_file(&text).map_err(|e| format!("{}: {e}", file.display()))?;
            modules(&parsed.items, &children, root, &mut todo);
            let path = file.display().to_string();
            let sites = find(krate, &path, &text, &mut self.mutants)?;
            self.files.push(SourceFile { path, text, sites });
        }
        Ok(())
    }
}

/// The sites of a source; its mutants go to `mutants`.
pub fn find(krate: &str, file: &str, text: &str, mutants: &mut Vec<Mutant>) -> Result<Vec<Site>, String> {
    let parsed = syn::parse_file(text).map_err(|e| format!("{file}: {e}"))?;
    let mut finder = Finder { krate, file, text, mutants, sites: Vec::new(), names: Vec::new() };
    finder.visit_file(&parsed);
    Ok(finder.sites)
}

/// The files of the modules declared here.
fn modules(items: &[syn::Item], dir: &Path, root: &Path, todo: &mut Vec<(PathBuf, PathBuf)>) {
    for item in items {
        let syn::Item::Mod(m) = item else { continue };
        if left_out(&m.attrs) {
            continue;
        }
        let children = dir.join(m.ident.to_string());
        match &m.content {
            Some((_, items)) => modules(items, &children, root, todo),
            None => {
                let flat = dir.join(format!("{}.rs", m.ident));
                let file = if root.join(&flat).exists() { flat } else { children.join("mod.rs") };
                todo.push((file, children));
            }
        }
    }
}

/// Only compiled for tests, or for another processor.
fn left_out(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|a| {
        let text = match &a.meta {
            syn::Meta::List(l) if l.path.is_ident("cfg") => l.tokens.to_string().replace(' ', ""),
            other => return other.path().is_ident("test"),
        };
        text.contains("test") && !text.starts_with("not(test") || text.contains("not(target_arch")
    })
}

fn expr_attrs(e: &Expr) -> &[syn::Attribute] {
    match e {
        Expr::Block(e) => &e.attrs,
        Expr::Call(e) => &e.attrs,
        Expr::If(e) => &e.attrs,
        Expr::Macro(e) => &e.attrs,
        Expr::Match(e) => &e.attrs,
        Expr::MethodCall(e) => &e.attrs,
        Expr::Unsafe(e) => &e.attrs,
        _ => &[],
    }
}

struct Finder<'a> {
    krate: &'a str,
    file: &'a str,
    text: &'a str,
    mutants: &'a mut Vec<Mutant>,
    sites: Vec<Site>,
    /// Types and functions around.
    names: Vec<String>,
}

fn range(node: &impl Spanned) -> Span {
    node.span().byte_range()
}

impl Finder<'_> {
    fn mutant(&mut self, at: usize, change: String) -> u32 {
        let id = self.mutants.len() as u32;
        let before = &self.text[..at];
        let line = before.matches('\n').count() + 1;
        let begin = before.rfind('\n').map_or(0, |i| i + 1);
        let column = before[begin..].chars().count() + 1;
        let text = self.text[begin..].lines().next().unwrap_or("").trim().to_string();
        self.mutants.push(Mutant {
            id,
            krate: self.krate.into(),
            file: self.file.into(),
            line,
            column,
            function: self.names.join("::"),
            change,
            text,
        });
        id
    }

    fn add(&mut self, span: Span, form: Form) {
        self.sites.push(Site { span, form });
    }

    fn source(&self, span: Span) -> String {
        let text = self.text[span].split_whitespace().collect::<Vec<_>>().join(" ");
        if text.chars().count() > 60 {
            return text.chars().take(57).collect::<String>() + "…";
        }
        text
    }

    /// A function: its body may return at once.
    fn function(&mut self, whole: Span, sig: &syn::Signature, block: &syn::Block) {
        if is_hint(&sig.ident) {
            return;
        }
        self.names.push(sig.ident.to_string());
        self.add(whole, Form::Function);
        if let Some(token) = &sig.constness {
            // With the blank behind it.
            let at = range(token);
            self.add(at.start..at.end + 1, Form::Unconst(sig.ident.to_string()));
        }
        let open = range(&block.brace_token.span.open());
        let body: Vec<String> = block.stmts.iter().map(|s| self.source(range(s))).collect();
        let mut values = Vec::new();
        for value in early_values(&sig.output) {
            if block.stmts.is_empty() || body.len() == 1 && body[0] == value {
                continue;
            }
            let what = format!("return {value} at once").replace("return () at", "return at");
            values.push((self.mutant(range(&sig.ident).start, what), value));
        }
        if !values.is_empty() {
            self.add(open, Form::Body(values));
        }
        self.visit_block(block);
        self.names.pop();
    }

    fn binary(&mut self, e: &syn::ExprBinary) {
        let span = range(e);
        let at = range(&e.op).start;
        let (left, right) = (range(&*e.left), range(&*e.right));
        let holds_let = [&e.left, &e.right].iter().any(|e| matches!(***e, Expr::Let(_)));
        let mut with = |names: &[&'static str], op: &str| -> Vec<(u32, &'static str)> {
            names.iter().map(|n| (self.mutant(at, format!("replace {op} with {n}")), *n)).collect()
        };
        let form = match &e.op {
            BinOp::And(_) | BinOp::Or(_) if holds_let => return,
            BinOp::And(_) => Form::Logic { left, right, op: "&&", id: with(&["||"], "&&")[0].0 },
            BinOp::Or(_) => Form::Logic { left, right, op: "||", id: with(&["&&"], "||")[0].0 },
            BinOp::Eq(_) => Form::Negate(with(&["!="], "==")[0].0),
            BinOp::Ne(_) => Form::Negate(with(&["=="], "!=")[0].0),
            BinOp::Lt(_) => Form::Order { left, right, op: "<", other: with(&["<=", ">="], "<") },
            BinOp::Le(_) => Form::Order { left, right, op: "<=", other: with(&["<", ">"], "<=") },
            BinOp::Gt(_) => Form::Order { left, right, op: ">", other: with(&[">=", "<="], ">") },
            BinOp::Ge(_) => Form::Order { left, right, op: ">=", other: with(&[">", "<"], ">=") },
            op => match arithmetic(op) {
                Some((op, other, false)) => Form::Arith { left, right, op, other: with(&[other], op) },
                Some((op, other, true)) => Form::Assign { left, right, op, other: with(&[other], op) },
                None => return,
            },
        };
        self.add(span, form);
    }

    fn method(&mut self, e: &syn::ExprMethodCall) {
        let (name, span, at) = (e.method.to_string(), range(e), range(&e.method).start);
        if let (Some(other), Some(argument), 1) = (twin(&name), e.args.first(), e.args.len()) {
            let (receiver, argument) = (range(&*e.receiver), range(argument));
            let id = self.mutant(at, format!("replace {name} with {other}"));
            self.add(span, Form::Method { receiver, argument, name, other, id });
        } else if BOOLEAN.contains(&name.as_str()) {
            let id = self.mutant(at, format!("negate {name}(…)"));
            self.add(span, Form::Negate(id));
        }
    }

    /// A condition that is not mutated as an expression of its own is negated.
    fn condition(&mut self, e: &Expr) {
        let plain = match e {
            Expr::Call(_) | Expr::Path(_) | Expr::Field(_) => true,
            Expr::MethodCall(m) => !BOOLEAN.contains(&m.method.to_string().as_str()),
            _ => false,
        };
        if plain {
            let span = range(e);
            let id = self.mutant(span.start, format!("negate condition {}", self.source(span.clone())));
            self.add(span, Form::Negate(id));
        }
    }

    fn literal(&mut self, e: &syn::ExprLit) {
        let span = range(e);
        let other = match &e.lit {
            Lit::Bool(b) => (!b.value).to_string(),
            Lit::Int(i) if !i.suffix().starts_with('f') => match i.base10_parse::<u128>() {
                // A mask of ones loses its lowest, so that the number still fits its type.
                Ok(n) if n > 1 && (n + 1).is_power_of_two() && n >= 0xff => format!("{}{}", n - 1, i.suffix()),
                Ok(n) => format!("{}{}", n + 1, i.suffix()),
                Err(_) => return,
            },
            _ => return,
        };
        let change = format!("replace {} with {other}", self.source(span.clone()));
        let id = self.mutant(span.start, change);
        self.add(span, Form::Literal { id, other });
    }
}

/// Methods whose result is a bool.
const BOOLEAN: &[&str] = &[
    "is_some",
    "is_none",
    "is_ok",
    "is_err",
    "is_empty",
    "contains",
    "contains_key",
    "starts_with",
    "ends_with",
    "is_some_and",
    "is_none_or",
    "is_ok_and",
    "any",
    "all",
    "insert_if",
    "is_power_of_two",
    "is_multiple_of",
    "eq",
    "ne",
];

/// A method of one argument that does the opposite.
fn twin(name: &str) -> Option<&'static str> {
    const TWINS: &[(&str, &str)] = &[
        ("min", "max"),
        ("wrapping_add", "wrapping_sub"),
        ("saturating_add", "saturating_sub"),
        ("checked_add", "checked_sub"),
        ("overflowing_add", "overflowing_sub"),
    ];
    TWINS.iter().find_map(|&(a, b)| {
        if name == a {
            Some(b)
        } else if name == b {
            Some(a)
        } else {
            None
        }
    })
}

/// An operator, what it becomes, and whether it assigns.
fn arithmetic(op: &BinOp) -> Option<(&'static str, &'static str, bool)> {
    Some(match op {
        BinOp::Add(_) => ("+", "-", false),
        BinOp::Sub(_) => ("-", "+", false),
        BinOp::Mul(_) => ("*", "+", false),
        BinOp::Div(_) => ("/", "*", false),
        BinOp::Rem(_) => ("%", "+", false),
        BinOp::BitAnd(_) => ("&", "|", false),
        BinOp::BitOr(_) => ("|", "&", false),
        BinOp::BitXor(_) => ("^", "|", false),
        BinOp::Shl(_) => ("<<", ">>", false),
        BinOp::Shr(_) => (">>", "<<", false),
        BinOp::AddAssign(_) => ("+=", "-=", true),
        BinOp::SubAssign(_) => ("-=", "+=", true),
        BinOp::MulAssign(_) => ("*=", "+=", true),
        BinOp::DivAssign(_) => ("/=", "*=", true),
        BinOp::BitAndAssign(_) => ("&=", "|=", true),
        BinOp::BitOrAssign(_) => ("|=", "&=", true),
        BinOp::BitXorAssign(_) => ("^=", "|=", true),
        BinOp::ShlAssign(_) => ("<<=", ">>=", true),
        BinOp::ShrAssign(_) => (">>=", "<<=", true),
        _ => return None,
    })
}

/// What a function of this type can return without doing anything.
fn early_values(output: &syn::ReturnType) -> Vec<String> {
    let ty = match output {
        syn::ReturnType::Default => return vec!["()".into()],
        syn::ReturnType::Type(_, ty) => &**ty,
    };
    let syn::Type::Path(path) = ty else { return Vec::new() };
    let Some(last) = path.path.segments.last() else { return Vec::new() };
    let unit = || {
        matches!(&last.arguments, syn::PathArguments::AngleBracketed(a) if a.args.first().is_some_and(
        |a| matches!(a, syn::GenericArgument::Type(syn::Type::Tuple(t)) if t.elems.is_empty())))
    };
    let values: &[&str] = match last.ident.to_string().as_str() {
        "bool" => &["true", "false"],
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" | "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => {
            &["0", "1"]
        }
        "Option" => &["None"],
        "Vec" => &["Vec::new()"],
        "Result" if unit() => &["Ok(())"],
        _ => &[],
    };
    values.iter().map(|v| v.to_string()).collect()
}

/// `R::ON`, and tuples and patterns that hold it.
fn is_trace(condition: &Expr) -> bool {
    match condition {
        Expr::Path(p) => p.path.segments.len() == 2 && p.path.segments[1].ident == "ON",
        Expr::Let(l) => is_trace(&l.expr),
        Expr::Tuple(t) => t.elems.iter().any(is_trace),
        Expr::Binary(b) if matches!(b.op, BinOp::And(_)) => is_trace(&b.left) || is_trace(&b.right),
        _ => false,
    }
}

/// A function or method that changes no result, but speed or the memory that is set aside.
fn is_hint(name: &syn::Ident) -> bool {
    let name = name.to_string();
    name == "with_capacity" || name == "reserve" || name.starts_with("prefetch") || name.starts_with("shrink_to")
}

/// A call of one.
fn hints(e: &Expr) -> bool {
    match e {
        Expr::Call(c) => matches!(&*c.func, Expr::Path(p) if p.path.segments.last().is_some_and(|s| is_hint(&s.ident))),
        Expr::MethodCall(m) => is_hint(&m.method),
        _ => false,
    }
}

/// Statements that may be left out: calls and assignments.
fn may_be_left_out(e: &Expr) -> bool {
    const QUIET: &[&str] = &["drop", "spin_loop", "pause"];
    let quiet = |name: String| QUIET.iter().any(|q| name.starts_with(q));
    match e {
        Expr::Call(c) => {
            !matches!(&*c.func, Expr::Path(p) if p.path.segments.last().is_some_and(|s| quiet(s.ident.to_string())))
        }
        Expr::MethodCall(m) => !quiet(m.method.to_string()),
        Expr::Assign(_) => true,
        Expr::Binary(b) => matches!(arithmetic(&b.op), Some((_, _, true))),
        _ => false,
    }
}

impl<'a> Visit<'a> for Finder<'_> {
    fn visit_item(&mut self, item: &'a syn::Item) {
        let attrs = match item {
            syn::Item::Fn(i) => &i.attrs,
            syn::Item::Impl(i) => &i.attrs,
            syn::Item::Mod(i) => &i.attrs,
            syn::Item::Trait(i) => &i.attrs,
            _ => return,
        };
        if !left_out(attrs) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_impl(&mut self, i: &'a syn::ItemImpl) {
        let text = |t: &syn::Path| t.segments.last().is_some_and(|s| s.ident == "Debug" || s.ident == "Display");
        if i.trait_.as_ref().is_some_and(|(_, path, _)| text(path)) {
            return;
        }
        let name = match &*i.self_ty {
            syn::Type::Path(p) => p.path.segments.last().map(|s| s.ident.to_string()),
            _ => None,
        };
        self.names.push(name.unwrap_or_else(|| "impl".into()));
        i.items.iter().for_each(|item| self.visit_impl_item(item));
        self.names.pop();
    }

    fn visit_item_trait(&mut self, i: &'a syn::ItemTrait) {
        self.names.push(i.ident.to_string());
        visit::visit_item_trait(self, i);
        self.names.pop();
    }

    fn visit_item_fn(&mut self, f: &'a syn::ItemFn) {
        self.function(range(f), &f.sig, &f.block);
    }

    fn visit_impl_item_fn(&mut self, f: &'a syn::ImplItemFn) {
        if !left_out(&f.attrs) {
            self.function(range(f), &f.sig, &f.block);
        }
    }

    fn visit_trait_item_fn(&mut self, f: &'a syn::TraitItemFn) {
        if let Some(block) = &f.default {
            self.function(range(f), &f.sig, block);
        }
    }

    fn visit_impl_item_const(&mut self, _: &'a syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'a syn::TraitItemConst) {}
    fn visit_pat(&mut self, _: &'a syn::Pat) {}
    fn visit_type(&mut self, _: &'a syn::Type) {}
    fn visit_path_arguments(&mut self, _: &'a syn::PathArguments) {}
    fn visit_angle_bracketed_generic_arguments(&mut self, _: &'a syn::AngleBracketedGenericArguments) {}
    fn visit_attribute(&mut self, _: &'a syn::Attribute) {}
    fn visit_macro(&mut self, _: &'a syn::Macro) {}
    fn visit_expr_const(&mut self, _: &'a syn::ExprConst) {}
    fn visit_expr_repeat(&mut self, e: &'a syn::ExprRepeat) {
        self.visit_expr(&e.expr);
    }

    fn visit_stmt(&mut self, s: &'a Stmt) {
        match s {
            Stmt::Local(l) if left_out(&l.attrs) => return,
            Stmt::Expr(e, _) if left_out(expr_attrs(e)) || hints(e) => return,
            Stmt::Expr(e, Some(_)) if may_be_left_out(e) => {
                let span = range(s);
                let id = self.mutant(span.start, format!("delete {}", self.source(span.clone())));
                self.add(span, Form::Statement(id));
            }
            _ => {}
        }
        visit::visit_stmt(self, s);
    }

    fn visit_expr(&mut self, e: &'a Expr) {
        match e {
            Expr::If(i) if i.else_branch.is_none() && is_trace(&i.cond) => return,
            e if hints(e) => return,
            Expr::Binary(b) => self.binary(b),
            Expr::MethodCall(m) => self.method(m),
            Expr::Lit(l) => self.literal(l),
            Expr::If(i) => self.condition(&i.cond),
            Expr::While(w) => self.condition(&w.cond),
            Expr::Macro(m) if m.mac.path.is_ident("matches") => {
                let span = range(e);
                let id = self.mutant(span.start, "negate matches!(…)".into());
                self.add(span, Form::Negate(id));
            }
            Expr::Unary(u) => {
                let op = match u.op {
                    UnOp::Not(_) => "!",
                    UnOp::Neg(_) => "-",
                    _ => "",
                };
                if !op.is_empty() {
                    let span = range(u);
                    let id = self.mutant(span.start, format!("delete {op}"));
                    self.add(span, Form::Unary { operand: range(&*u.expr), op, id });
                }
            }
            _ => {}
        }
        visit::visit_expr(self, e);
    }

    fn visit_expr_match(&mut self, m: &'a syn::ExprMatch) {
        let last = m.arms.iter().rposition(|a| matches!(a.pat, syn::Pat::Wild(_)) && a.guard.is_none());
        for (i, arm) in m.arms.iter().enumerate() {
            if arm.guard.is_none() && last.is_some_and(|l| i < l) && !left_out(&arm.attrs) {
                let span = range(&arm.pat);
                let id = self.mutant(span.start, format!("delete match arm {}", self.source(span.clone())));
                self.add(span, Form::Arm(id));
            }
        }
        visit::visit_expr_match(self, m);
    }

    fn visit_arm(&mut self, arm: &'a syn::Arm) {
        if left_out(&arm.attrs) {
            return;
        }
        if let Some((_, guard)) = &arm.guard {
            let span = range(&**guard);
            let always = self.mutant(span.start, "replace match guard with true".into());
            let never = self.mutant(span.start, "replace match guard with false".into());
            self.add(span, Form::Guard { always, never });
        }
        visit::visit_arm(self, arm);
    }
}
