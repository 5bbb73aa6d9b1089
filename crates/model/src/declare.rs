// SPDX-License-Identifier: Apache-2.0
//! What a kind is made of: fields, each declared once (`docs/design/kinds.md`).
//!
//! [`fields!`] takes a struct in which each field has its place in the document and a [`Slot`]: what is read there, what holds if
//! nothing is written, how it is written back, and what the reference says of it. A slot of one value is a [`Form`] (a number in a
//! range, a choice, a name) that is required, optional or has a default; a few slots of several values have code of their own.

use crate::doc::Doc;
use crate::error::Problem;
use crate::forms::schema_of;
use crate::kinds::{Kind, Name};
use crate::schema::REQUIRED;
use crate::written::Written;
use serde_json::{json, Value};
use std::borrow::Cow;
use std::hash::Hash;
use std::marker::PhantomData;

/// One field of a document, for the reference, for errors and for the schema.
#[derive(Clone, Debug)]
pub struct Field {
    /// Path from the document's top, as `spec.gateway.mac`.
    pub path: String,
    /// Type in words.
    pub ty: String,
    /// Default in words; [`REQUIRED`] if the field must be given.
    pub default: String,
    /// What is allowed; quoted in errors.
    pub allowed: String,
    /// What it means.
    pub meaning: String,
    /// The JSON Schema of its value.
    pub schema: Value,
    /// The kind that it names, if it names one that must exist.
    pub refers: Option<Kind>,
}

/// Is told of the names in an object: the kind that is named, the name, the field.
pub(crate) type Referred<'a> = &'a mut dyn FnMut(Kind, &Name, &dyn Fn() -> String);

/// One value as it is written: a word, a number, an address.
pub(crate) trait Form {
    type Value: Clone;
    /// Type in words.
    fn ty(&self) -> &'static str;
    /// What is allowed, in words.
    fn allowed(&self) -> String;
    fn parse(&self, text: &str, names: &mut crate::doc::Names) -> Result<Self::Value, String>;
    /// Appends it as JSON.
    fn show(&self, value: &Self::Value, out: &mut String);
    /// The schema, but for what is allowed in words.
    fn schema(&self) -> Value {
        json!({"type": "string"})
    }
    fn refers(&self) -> Option<Kind> {
        None
    }
    fn name<'v>(&self, _value: &'v Self::Value) -> Option<&'v Name> {
        None
    }

    fn row(&self, path: &str, default: String, meaning: &str) -> Field {
        let (allowed, refers) = (self.allowed(), self.refers());
        let schema = schema_of(self.schema(), meaning, &allowed);
        Field { path: path.into(), ty: self.ty().into(), default, allowed, meaning: meaning.into(), schema, refers }
    }

    /// It holds `value` where nothing is written.
    fn or(self, value: Self::Value) -> Or<Self>
    where
        Self: Sized,
    {
        Or { form: self, value, words: None, shy: false }
    }

    /// It may be absent.
    fn optional(self) -> Optional<Self>
    where
        Self: Sized,
    {
        Optional { form: self, words: "none" }
    }

    /// It must be there; `stand_in` takes its place in a document where it is wrong or missing.
    fn required(self, stand_in: fn() -> Self::Value) -> Required<Self>
    where
        Self: Sized,
    {
        Required { form: self, stand_in, words: REQUIRED }
    }

    /// A list of them, each once, `max` at most.
    fn list(self, max: usize, allowed: &'static str) -> List<Self, Vec<Self::Value>>
    where
        Self: Sized,
    {
        List { form: self, max, allowed, full: false, words: "none", holder: PhantomData }
    }
}

/// What stands at a place of a document.
pub(crate) trait Slot {
    type Value;
    fn rows(&self, path: &str, meaning: &str, out: &mut Vec<Field>);
    /// What holds where nothing is written.
    fn usual(&self) -> Self::Value;
    /// The value in a document; what is wrong is reported, and something takes its place.
    fn read(&self, doc: &mut Doc<'_>, path: &str) -> Self::Value;
    /// Writes it into a document, unless it goes without saying.
    fn write(&self, value: &Self::Value, out: &mut Written, path: &str);
    fn references(&self, _value: &Self::Value, _path: &str, _out: Referred<'_>) {}
}

/// Fields of a kind, or of a part of one.
pub(crate) trait Fields: Sized {
    /// What it is for, at the head of its section in the reference.
    const ABOUT: &'static str;
    fn rows(base: &str, out: &mut Vec<Field>);
    fn usual() -> Self;
    fn read(doc: &mut Doc<'_>, base: &str) -> Self;
    fn write(&self, out: &mut Written, base: &str);
    fn references(&self, base: &str, out: Referred<'_>);
}

/// The path of a field below another.
pub(crate) fn below<'p>(base: &'p str, path: &'p str) -> Cow<'p, str> {
    match (base, path) {
        ("", path) => path.into(),
        (base, "") => base.into(),
        _ => format!("{base}.{path}").into(),
    }
}

/// Tells the compiler of what type a slot's value is.
pub(crate) fn of_type<T, S: Slot<Value = T>>(slot: S) -> S {
    slot
}

/// A struct of which each field says where it stands in a document and what may stand there.
///
/// A `kind`, in contrast to a part of one, has labels besides.
macro_rules! fields {
    ($(#[doc = $about:literal])+ $(#[derive($($derive:ident),+)])? pub kind $Name:ident { $($body:tt)* }) => {
        $crate::declare::fields! {
            $(#[doc = $about])+ $(#[derive($($derive),+)])? pub struct $Name {
                $($body)*
                /// See [`Labels`](crate::Labels).
                labels: $crate::Labels = "metadata.labels", $crate::labels::LabelsSlot;
            }
        }
    };
    ($(#[doc = $about:literal])+ $(#[derive($($derive:ident),+)])? pub struct $Name:ident {
        $($(#[doc = $doc:literal])+ $field:ident: $ty:ty = $path:literal, $slot:expr;)+
    }) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, Eq $($(, $derive)+)?)]
        pub struct $Name {
            $($(#[doc = $doc])+ pub $field: $ty,)+
        }

        impl Default for $Name {
            fn default() -> Self {
                $crate::declare::Fields::usual()
            }
        }

        impl $crate::declare::Fields for $Name {
            const ABOUT: &'static str = concat!($($about),+).trim_ascii_start();

            fn rows(base: &str, out: &mut Vec<$crate::declare::Field>) {
                use $crate::declare::*;
                $(of_type::<$ty, _>($slot).rows(&below(base, $path), concat!($($doc),+).trim_start(), out);)+
            }

            fn usual() -> Self {
                use $crate::declare::*;
                $Name { $($field: of_type::<$ty, _>($slot).usual(),)+ }
            }

            fn read(doc: &mut $crate::doc::Doc<'_>, base: &str) -> Self {
                use $crate::declare::*;
                $Name { $($field: of_type::<$ty, _>($slot).read(doc, &below(base, $path)),)+ }
            }

            fn write(&self, out: &mut $crate::written::Written, base: &str) {
                use $crate::declare::*;
                $(of_type::<$ty, _>($slot).write(&self.$field, out, &below(base, $path));)+
            }

            fn references(&self, base: &str, out: $crate::declare::Referred<'_>) {
                use $crate::declare::*;
                $(of_type::<$ty, _>($slot).references(&self.$field, &below(base, $path), out);)+
            }
        }
    };
}
pub(crate) use fields;

/// See [`Form::required`].
pub(crate) struct Required<F: Form> {
    form: F,
    stand_in: fn() -> F::Value,
    words: &'static str,
}

impl<F: Form> Required<F> {
    /// What the reference says, where it is required only beside others.
    pub fn meaning(self, words: &'static str) -> Self {
        Required { words, ..self }
    }
}

impl<F: Form> Slot for Required<F> {
    type Value = F::Value;

    fn rows(&self, path: &str, meaning: &str, out: &mut Vec<Field>) {
        out.push(self.form.row(path, self.words.into(), meaning));
    }

    fn usual(&self) -> F::Value {
        (self.stand_in)()
    }

    fn read(&self, doc: &mut Doc<'_>, path: &str) -> F::Value {
        doc.need(path, &self.form).unwrap_or_else(self.stand_in)
    }

    fn write(&self, value: &F::Value, out: &mut Written, path: &str) {
        out.value(path, &self.form, value);
    }

    fn references(&self, value: &F::Value, path: &str, out: Referred<'_>) {
        refer(&self.form, value, &|| path.into(), out);
    }
}

/// See [`Form::or`].
pub(crate) struct Or<F: Form> {
    form: F,
    value: F::Value,
    words: Option<&'static str>,
    shy: bool,
}

impl<F: Form> Or<F> {
    /// The default is not written out.
    pub fn shy(self) -> Self {
        Or { shy: true, ..self }
    }

    /// What the reference says of the default.
    pub fn meaning(self, words: &'static str) -> Self {
        Or { words: Some(words), ..self }
    }
}

impl<F: Form> Slot for Or<F>
where
    F::Value: PartialEq,
{
    type Value = F::Value;

    fn rows(&self, path: &str, meaning: &str, out: &mut Vec<Field>) {
        let shown = || {
            let mut text = String::new();
            self.form.show(&self.value, &mut text);
            text.trim_matches('"').to_string()
        };
        out.push(self.form.row(path, self.words.map_or_else(shown, str::to_string), meaning));
    }

    fn usual(&self) -> F::Value {
        self.value.clone()
    }

    fn read(&self, doc: &mut Doc<'_>, path: &str) -> F::Value {
        doc.get(path, &self.form).unwrap_or_else(|| self.value.clone())
    }

    fn write(&self, value: &F::Value, out: &mut Written, path: &str) {
        if !self.shy || *value != self.value {
            out.value(path, &self.form, value);
        }
    }
}

/// See [`Form::optional`].
pub(crate) struct Optional<F> {
    form: F,
    words: &'static str,
}

impl<F> Optional<F> {
    /// What the reference says of its absence.
    pub fn meaning(self, words: &'static str) -> Self {
        Optional { words, ..self }
    }
}

impl<F: Form> Slot for Optional<F> {
    type Value = Option<F::Value>;

    fn rows(&self, path: &str, meaning: &str, out: &mut Vec<Field>) {
        out.push(self.form.row(path, self.words.into(), meaning));
    }

    fn usual(&self) -> Option<F::Value> {
        None
    }

    fn read(&self, doc: &mut Doc<'_>, path: &str) -> Option<F::Value> {
        doc.get(path, &self.form)
    }

    fn write(&self, value: &Option<F::Value>, out: &mut Written, path: &str) {
        if let Some(value) = value {
            out.value(path, &self.form, value);
        }
    }

    fn references(&self, value: &Option<F::Value>, path: &str, out: Referred<'_>) {
        value.iter().for_each(|value| refer(&self.form, value, &|| path.into(), out));
    }
}

/// See [`Form::list`]. `C` holds the values.
pub(crate) struct List<F: Form, C> {
    form: F,
    max: usize,
    allowed: &'static str,
    full: bool,
    words: &'static str,
    holder: PhantomData<C>,
}

impl<F: Form, C> List<F, C> {
    /// It must be there and have an entry.
    pub fn full(self) -> Self {
        List { full: true, words: REQUIRED, ..self }
    }

    /// What the reference says of its absence.
    pub fn meaning(self, words: &'static str) -> Self {
        List { words, ..self }
    }

    /// The values are held in another form.
    pub fn held_as<D>(self) -> List<F, D> {
        let List { form, max, allowed, full, words, .. } = self;
        List { form, max, allowed, full, words, holder: PhantomData }
    }
}

impl<F: Form, C> Slot for List<F, C>
where
    F::Value: Eq + Hash,
    C: From<Vec<F::Value>> + std::ops::Deref<Target = [F::Value]>,
{
    type Value = C;

    fn rows(&self, path: &str, meaning: &str, out: &mut Vec<Field>) {
        let ty = match self.form.ty() {
            one if one.ends_with(['s', 'x']) => format!("list of {one}es"),
            one => format!("list of {one}s"),
        };
        let items = json!({"type": "array", "items": self.form.schema(), "maxItems": self.max});
        let row = self.form.row(path, self.words.into(), meaning);
        out.push(Field { ty, allowed: self.allowed.into(), schema: schema_of(items, meaning, self.allowed), ..row });
    }

    fn usual(&self) -> C {
        Vec::new().into()
    }

    fn read(&self, doc: &mut Doc<'_>, path: &str) -> C {
        if self.full && !doc.must_exist(path) {
            return self.usual();
        }
        let list = doc.list(path, self.max, &self.form);
        if self.full && doc.node(path).is_some_and(|n| n.is_empty_list()) {
            doc.wrong(path, Problem::Value("has no entry".into()));
        }
        list.into()
    }

    fn write(&self, value: &C, out: &mut Written, path: &str) {
        out.list(path, &self.form, value.iter());
    }

    fn references(&self, value: &C, path: &str, out: Referred<'_>) {
        if self.form.refers().is_some() {
            value.iter().enumerate().for_each(|(i, v)| refer(&self.form, v, &|| format!("{path}[{i}]"), out));
        }
    }
}

fn refer<F: Form>(form: &F, value: &F::Value, path: &dyn Fn() -> String, out: Referred<'_>) {
    if let (Some(kind), Some(name)) = (form.refers(), form.name(value)) {
        out(kind, name, path);
    }
}

/// Fields with a name of their own, below a path.
pub(crate) struct Part<P>(PhantomData<P>);

pub(crate) fn part<P>() -> Part<P> {
    Part(PhantomData)
}

impl<P: Fields> Slot for Part<P> {
    type Value = P;

    fn rows(&self, path: &str, _: &str, out: &mut Vec<Field>) {
        P::rows(path, out);
    }

    fn usual(&self) -> P {
        P::usual()
    }

    fn read(&self, doc: &mut Doc<'_>, path: &str) -> P {
        P::read(doc, path)
    }

    fn write(&self, value: &P, out: &mut Written, path: &str) {
        value.write(out, path);
    }

    fn references(&self, value: &P, path: &str, out: Referred<'_>) {
        value.references(path, out);
    }
}
