// SPDX-License-Identifier: Apache-2.0
//! The forms of values that fields have: numbers in a range, choices, names, addresses, quantities.

use crate::declare::{Field, Form, Slot};
use crate::doc::{check_name, Doc, Names};
use crate::kinds::{Kind, Name};
use crate::prefix::{inner_address_fault, own_address_fault, parse_mac, parse_prefix, underlay_fault, Mac, Prefix};
use crate::quantity::{parse_bits, parse_bytes, parse_packets, show_bits, show_bytes, show_packets};
use crate::time::Timestamp;
use crate::written::{number, quoted, shown, Written};
use serde_json::{json, Value};
use std::fmt::Display;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

const UNICAST_MAC: &str = "a unicast MAC address, as 02:00:00:00:00:01";

/// A schema with what people read.
pub(crate) fn schema_of(mut schema: Value, meaning: &str, allowed: &str) -> Value {
    schema["description"] = format!("{meaning} Allowed: {allowed}.").into();
    schema
}

/// A whole number in a range.
pub(crate) struct Int<T> {
    min: u64,
    max: u64,
    ty: &'static str,
    words: Option<&'static str>,
    of: PhantomData<T>,
}

pub(crate) const fn int<T>(min: u64, max: u64) -> Int<T> {
    Int { min, max, ty: "integer", words: None, of: PhantomData }
}

/// Seconds of a timeout.
pub(crate) const fn seconds() -> Int<u32> {
    Int { ty: "seconds", ..int(1, 86_400) }
}

/// Packets at once.
pub(crate) const fn burst<T>() -> Int<T> {
    Int { words: Some("an integer, 1 to 4294967295"), ..int(1, u32::MAX as u64) }
}

impl<T> Int<T> {
    /// What is allowed, where the range does not say all.
    pub const fn allowing(self, words: &'static str) -> Self {
        Int { words: Some(words), ..self }
    }
}

impl<T: Copy + Into<u64> + TryFrom<u64>> Form for Int<T> {
    type Value = T;

    fn ty(&self) -> &'static str {
        self.ty
    }

    fn allowed(&self) -> String {
        self.words.map_or_else(|| format!("{} to {}", self.min, self.max), str::to_string)
    }

    fn parse(&self, s: &str, _: &mut Names) -> Result<T, String> {
        let n = integer(s, self.min, self.max)?;
        T::try_from(n).map_err(|_| format!("{n} is out of range"))
    }

    fn show(&self, value: &T, out: &mut String) {
        number(out, (*value).into());
    }

    fn schema(&self) -> Value {
        json!({"type": "integer", "minimum": self.min, "maximum": self.max})
    }
}

pub(crate) fn integer(s: &str, min: u64, max: u64) -> Result<u64, String> {
    if s.is_empty() || !s.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("`{s}` is no whole number"));
    }
    in_range(s.parse().map_err(|_| format!("{s} is out of range"))?, min, max)
}

fn in_range(v: u64, min: u64, max: u64) -> Result<u64, String> {
    if (min..=max).contains(&v) {
        return Ok(v);
    }
    Err(format!("{v} is out of range"))
}

/// One of a few words.
pub(crate) struct Choice<T: 'static>(&'static [(&'static str, T)]);

pub(crate) const fn choice<T>(of: &'static [(&'static str, T)]) -> Choice<T> {
    Choice(of)
}

pub(crate) const fn switch() -> Choice<bool> {
    choice(&[("on", true), ("off", false)])
}

/// Words as a sentence has them: `a, b or c`.
pub(crate) fn alternatives(words: &[&str]) -> String {
    match words {
        [most @ .., last] if !most.is_empty() => format!("{} or {last}", most.join(", ")),
        words => words.join(""),
    }
}

impl<T: Clone + PartialEq> Form for Choice<T> {
    type Value = T;

    fn ty(&self) -> &'static str {
        match self.0[0].0 {
            "on" => "switch",
            _ => "choice",
        }
    }

    fn allowed(&self) -> String {
        alternatives(&self.0.iter().map(|c| c.0).collect::<Vec<_>>())
    }

    fn parse(&self, s: &str, _: &mut Names) -> Result<T, String> {
        self.0.iter().find(|c| c.0 == s).map(|c| c.1.clone()).ok_or_else(|| format!("`{s}` is no choice here"))
    }

    fn show(&self, value: &T, out: &mut String) {
        quoted(out, self.0.iter().find(|c| c.1 == *value).map_or("", |c| c.0));
    }

    fn schema(&self) -> Value {
        // Editors take the words of YAML's booleans for such.
        let word = |text: &str| text.parse::<bool>().map_or_else(|_| Value::from(text), Value::from);
        json!({"enum": self.0.iter().map(|c| word(c.0)).collect::<Vec<_>>()})
    }
}

/// The name of an object.
pub(crate) struct NameOf {
    kind: Option<Kind>,
    allowed: &'static str,
    check: fn(&str) -> Result<(), String>,
}

/// Of a kind of which the object must exist.
pub(crate) const fn name_of(kind: Kind, allowed: &'static str) -> NameOf {
    NameOf { kind: Some(kind), allowed, check: check_name }
}

/// Of something whose existence is checked elsewhere, or not at all.
pub(crate) const fn any_name(allowed: &'static str, check: fn(&str) -> Result<(), String>) -> NameOf {
    NameOf { kind: None, allowed, check }
}

impl Form for NameOf {
    type Value = Name;

    fn ty(&self) -> &'static str {
        "name"
    }

    fn allowed(&self) -> String {
        self.allowed.into()
    }

    fn parse(&self, s: &str, names: &mut Names) -> Result<Name, String> {
        (self.check)(s).map(|()| names.get(s))
    }

    fn show(&self, value: &Name, out: &mut String) {
        quoted(out, value);
    }

    fn refers(&self) -> Option<Kind> {
        self.kind
    }

    fn name<'v>(&self, value: &'v Name) -> Option<&'v Name> {
        Some(value)
    }
}

/// The name of an object itself.
pub(crate) const fn own_name() -> NameOf {
    any_name("1 to 63 letters, digits, `-`, `_` or `.`, the first a letter or digit", check_name)
}

/// Any other text.
pub(crate) struct Text<T> {
    ty: &'static str,
    allowed: &'static str,
    parse: fn(&str) -> Result<T, String>,
    show: fn(&T, &mut String),
}

impl<T: Clone> Form for Text<T> {
    type Value = T;

    fn ty(&self) -> &'static str {
        self.ty
    }

    fn allowed(&self) -> String {
        self.allowed.into()
    }

    fn parse(&self, s: &str, _: &mut Names) -> Result<T, String> {
        (self.parse)(s)
    }

    fn show(&self, value: &T, out: &mut String) {
        (self.show)(value, out);
    }
}

/// Text that `parse` takes and that is written as it is shown.
pub(crate) const fn text<T: Display>(
    ty: &'static str,
    allowed: &'static str,
    parse: fn(&str) -> Result<T, String>,
) -> Text<T> {
    Text { ty, allowed, parse, show: |value, out| shown(out, value) }
}

/// The same of a type that has one text form.
pub(crate) const fn parsed<T: FromStr<Err = String> + Display>(ty: &'static str, allowed: &'static str) -> Text<T> {
    text(ty, allowed, T::from_str)
}

fn address(s: &str, fault: fn(IpAddr) -> Option<String>) -> Result<IpAddr, String> {
    let a: IpAddr = s.parse().map_err(|_| format!("`{s}` is no IP address"))?;
    match fault(a) {
        Some(why) => Err(format!("`{s}` cannot be used: {why}")),
        None => Ok(a),
    }
}

fn only4(a: IpAddr) -> Result<Ipv4Addr, String> {
    match a {
        IpAddr::V4(a) => Ok(a),
        IpAddr::V6(a) => Err(format!("`{a}` is an IPv6 address")),
    }
}

fn only6(a: IpAddr) -> Result<Ipv6Addr, String> {
    match a {
        IpAddr::V6(a) => Ok(a),
        IpAddr::V4(a) => Err(format!("`{a}` is an IPv4 address")),
    }
}

/// An address of a VM.
pub(crate) const fn inner() -> Text<IpAddr> {
    text("IP address", "", |s| address(s, inner_address_fault))
}

/// An address that a VPC's gateway answers for.
pub(crate) const fn of_gateway() -> Text<IpAddr> {
    text("IP address", "", |s| address(s, own_address_fault))
}

/// An address in the underlay.
pub(crate) const fn underlay(allowed: &'static str) -> Text<IpAddr> {
    text("IP address", allowed, |s| address(s, underlay_fault))
}

pub(crate) const fn underlay4() -> Text<Ipv4Addr> {
    text("IPv4 address", "a unicast IPv4 address", |s| address(s, underlay_fault).and_then(only4))
}

pub(crate) const fn underlay6() -> Text<Ipv6Addr> {
    text("IPv6 address", "a unicast IPv6 address that is not link-local", |s| {
        address(s, underlay_fault).and_then(only6)
    })
}

/// A public address.
pub(crate) const fn public4(allowed: &'static str) -> Text<Ipv4Addr> {
    text("IPv4 address", allowed, |s| address(s, inner_address_fault).and_then(only4))
}

pub(crate) const fn socket(allowed: &'static str) -> Text<SocketAddr> {
    text("address and port", allowed, |s| s.parse().map_err(|_| format!("`{s}` is no address with a port")))
}

pub(crate) const fn mac() -> Text<Mac> {
    text("MAC address", UNICAST_MAC, parse_mac)
}

pub(crate) const fn mac_in_vpc() -> Text<Mac> {
    text("MAC address", "a unicast MAC address, as 02:00:00:00:00:01, unique in the VPC", parse_mac)
}

pub(crate) const fn prefix(allowed: &'static str) -> Text<Prefix> {
    text("IP prefix", allowed, parse_prefix)
}

/// A prefix with or without a length, of members of a VPC.
pub(crate) const fn members() -> Text<Prefix> {
    text("prefix", "", filter::parse_addresses)
}

pub(crate) const fn interface_name(allowed: &'static str) -> Text<String> {
    text("interface name", allowed, interface)
}

pub(crate) fn interface(s: &str) -> Result<String, String> {
    let ok = (1..=15).contains(&s.len())
        && s != "."
        && s != ".."
        && !s.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control());
    ok.then(|| s.to_string()).ok_or(format!("`{}` is no interface name", crate::plain(s)))
}

/// An absolute path.
pub(crate) const fn absolute_path(allowed: &'static str) -> Text<String> {
    text("absolute path", allowed, |s| match s.starts_with('/') {
        true => Ok(s.to_string()),
        false => Err(format!("`{s}` is no absolute path")),
    })
}

/// Bits a second that a document may say.
pub(crate) const BITS: RangeInclusive<u64> = 1_000..=1_000_000_000_000;

/// Bits per second.
pub(crate) const fn bandwidth() -> Text<u64> {
    let parse: fn(&str) -> Result<u64, String> = |s| in_range(parse_bits(s)?, *BITS.start(), *BITS.end());
    let allowed = "1kbit to 1Tbit (units bit, kbit, Mbit, Gbit, Tbit)";
    Text { ty: "bandwidth", allowed, parse, show: |v, out| quoted(out, &show_bits(*v)) }
}

/// Bytes at once.
pub(crate) const fn bytes() -> Text<u64> {
    let parse: fn(&str) -> Result<u64, String> = |s| in_range(parse_bytes(s)?, abi::FRAME_BYTES_MAX.into(), 4 << 30);
    Text {
        ty: "size",
        allowed: "9216B to 4GiB (units B, kB, KiB, MB, MiB, GB, GiB)",
        parse,
        show: |v, out| quoted(out, &show_bytes(*v)),
    }
}

/// The most bytes of a shaper's burst and of what it lets wait.
pub(crate) const SHAPE_BYTES_MAX: u64 = 64 << 20;

/// Bytes of a shaper.
pub(crate) const fn shape_bytes() -> Text<u64> {
    let parse: fn(&str) -> Result<u64, String> =
        |s| in_range(parse_bytes(s)?, abi::FRAME_BYTES_MAX.into(), SHAPE_BYTES_MAX);
    Text { allowed: "9216B to 64MiB (units B, kB, KiB, MB, MiB)", parse, ..bytes() }
}

/// A time of the calendar.
pub(crate) const fn time() -> Text<Timestamp> {
    parsed("time", "a time with an offset, as 2026-11-11T00:00:00Z (RFC 3339)")
}

/// Packets per second.
pub(crate) const fn packet_rate() -> Text<u64> {
    let parse: fn(&str) -> Result<u64, String> = |s| in_range(parse_packets(s)?, 1, 1_000_000_000);
    let allowed = "1pps to 1Gpps (units pps, kpps, Mpps, Gpps)";
    Text { ty: "packet rate", allowed, parse, show: |v, out| quoted(out, &show_packets(*v)) }
}

/// One in so many packets, as the exponent of a power of two; 0: none.
pub(crate) const fn ratio() -> Text<u8> {
    let show: fn(&u8, &mut String) = |n, out| match n {
        0 => quoted(out, "off"),
        n => shown(out, &format_args!("1/{}", 1u64 << n)),
    };
    Text {
        ty: "ratio",
        allowed: "off, or 1/N with N a power of two from 2 to 2147483648",
        parse: |s| {
            if s == "off" {
                return Ok(0);
            }
            let n: Option<u32> = s.strip_prefix("1/").and_then(|n| n.parse().ok());
            match n.filter(|n| n.is_power_of_two()) {
                // An exponent of 0 means no sampling in the options word, so 1/1 is not offered.
                Some(n) if n > 1 => Ok(n.trailing_zeros() as u8),
                _ => Err(format!("`{s}` is no such ratio")),
            }
        },
        show,
    }
}

/// The name of an object itself, which every document has.
pub(crate) struct OwnName;

impl Slot for OwnName {
    type Value = Name;

    fn rows(&self, path: &str, meaning: &str, out: &mut Vec<Field>) {
        out.push(own_name().row(path, crate::schema::REQUIRED.into(), meaning));
    }

    fn usual(&self) -> Name {
        "".into()
    }

    fn read(&self, doc: &mut Doc<'_>, _: &str) -> Name {
        doc.own_name()
    }

    fn write(&self, value: &Name, out: &mut Written, path: &str) {
        out.text(path, value);
    }
}

/// The same of a kind whose objects may go without: the words say by what they are known then.
pub(crate) struct OptionalName(pub &'static str);

impl Slot for OptionalName {
    type Value = Option<Name>;

    fn rows(&self, path: &str, meaning: &str, out: &mut Vec<Field>) {
        out.push(own_name().row(path, self.0.into(), meaning));
    }

    fn usual(&self) -> Option<Name> {
        None
    }

    fn read(&self, doc: &mut Doc<'_>, _: &str) -> Option<Name> {
        doc.optional_name()
    }

    fn write(&self, value: &Option<Name>, out: &mut Written, path: &str) {
        if let Some(name) = value {
            out.text(path, name);
        }
    }
}
