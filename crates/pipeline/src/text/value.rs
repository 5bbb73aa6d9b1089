// SPDX-License-Identifier: Apache-2.0
//! Values: numbers, addresses, flags, bits of fields.
use super::names::Context;
use super::split::unquote;
use super::{bad, field_named, unsupported, Read};
use crate::field::{Field, Format, Subfield};
use crate::key::low128;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A number: decimal or `0x…`, at most so many bits.
pub(super) fn number(text: &str, bits: u8) -> Read<'_, u128> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) if !hex.starts_with('+') => u128::from_str_radix(hex, 16),
        Some(_) => return bad(text, format!("\"{text}\" is not a number")),
        None if text.starts_with('+') => return bad(text, format!("\"{text}\" is not a number")),
        None => text.parse(),
    };
    match parsed {
        Ok(value) if value <= low128(bits) => Ok(value),
        Ok(_) => bad(text, format!("{text} does not fit in {bits} bits")),
        Err(_) => bad(text, format!("\"{text}\" is not a number (write decimal, or hexadecimal with 0x)")),
    }
}

/// A small number.
pub(super) fn small(text: &str, bits: u8) -> Read<'_, u32> {
    number(text, bits.min(32)).map(|n| n as u32)
}

/// A MAC address.
pub(super) fn mac(text: &str) -> Read<'_, u128> {
    let mut value = 0u128;
    let mut count = 0;
    for part in text.split(':') {
        match u8::from_str_radix(part, 16) {
            Ok(byte) if part.len() <= 2 && !part.starts_with('+') => value = value << 8 | u128::from(byte),
            _ => return bad(text, format!("\"{text}\" is not a MAC address such as 0a:00:00:00:00:01")),
        }
        count += 1;
        if count > 6 {
            break;
        }
    }
    match count {
        6 => Ok(value),
        _ => bad(text, format!("\"{text}\" is not a MAC address such as 0a:00:00:00:00:01")),
    }
}

/// An IPv4 address.
pub(super) fn ipv4(text: &str) -> Read<'_, u128> {
    match text.parse::<Ipv4Addr>() {
        Ok(address) => Ok(u128::from(u32::from(address))),
        Err(_) => bad(text, format!("\"{text}\" is not an IPv4 address")),
    }
}

/// An IPv6 address.
pub(super) fn ipv6(text: &str) -> Read<'_, u128> {
    match text.parse::<Ipv6Addr>() {
        Ok(address) => Ok(u128::from(address)),
        Err(_) => bad(text, format!("\"{text}\" is not an IPv6 address")),
    }
}

fn split_mask(text: &str) -> (&str, Option<&str>) {
    match text.split_once('/') {
        Some((value, mask)) => (value.trim(), Some(mask.trim())),
        None => (text, None),
    }
}

/// The mask after an address: a length or a mask of the same form.
fn address_mask<'a>(mask: Option<&'a str>, bits: u8, address: fn(&'a str) -> Read<'a, u128>) -> Read<'a, u128> {
    match mask {
        None => Ok(low128(bits)),
        Some(m) if m.bytes().all(|b| b.is_ascii_digit()) => match m.parse::<u8>() {
            Ok(len) if len <= bits => Ok(low128(bits) & !low128(bits - len)),
            _ => bad(m, format!("a prefix of {m} bits does not fit an address of {bits} bits")),
        },
        Some(m) => address(m),
    }
}

/// A field's value with its mask, right-aligned.
pub(super) fn masked<'a>(field: Field, text: &'a str, context: &mut Context<'_>) -> Read<'a, (u128, u128)> {
    let info = field.info();
    let full = low128(info.bits);
    let (value, mask) = split_mask(text);
    let both = match info.format {
        Format::Mac => {
            let mask = mask.map_or(Ok(full), mac)?;
            (mac(value)?, mask)
        }
        Format::Ipv4 => (ipv4(value)?, address_mask(mask, 32, ipv4)?),
        Format::Ipv6 => (ipv6(value)?, address_mask(mask, 128, ipv6)?),
        Format::Port => (u128::from(context.port(value)?), full),
        Format::CtState => return state_match(text),
        Format::TcpFlags => return flags_match(text, &TCP_FLAGS),
        Format::TunFlags => return flags_match(text, &[("oam", 1)]),
        Format::Frag => return frag(text),
        Format::Dec | Format::Hex | Format::Hex4 => {
            (number(value, info.bits)?, mask.map_or(Ok(full), |m| number(m, info.bits))?)
        }
    };
    match mask {
        Some(m) if !info.maskable && both.1 != full => bad(m, format!("{} cannot be masked", info.name)),
        _ => Ok(both),
    }
}

/// An unmasked value of a field.
pub(super) fn exact<'a>(field: Field, text: &'a str, context: &mut Context<'_>) -> Read<'a, u128> {
    let (value, mask) = masked(field, text, context)?;
    match mask == low128(field.info().bits)
        || matches!(field.info().format, Format::CtState | Format::TcpFlags | Format::Frag)
    {
        true => Ok(value),
        false => bad(text, format!("{} needs a value without a mask here", field.info().name)),
    }
}

const STATES: [(&str, u128); 8] =
    [("new", 1), ("est", 2), ("rel", 4), ("rpl", 8), ("inv", 0x10), ("trk", 0x20), ("snat", 0x40), ("dnat", 0x80)];

/// TCP flags by name.
pub(super) const TCP_FLAGS: [(&str, u128); 9] = [
    ("fin", 1),
    ("syn", 2),
    ("rst", 4),
    ("psh", 8),
    ("ack", 0x10),
    ("urg", 0x20),
    ("ece", 0x40),
    ("cwr", 0x80),
    ("ns", 0x100),
];

fn state_match(text: &str) -> Read<'_, (u128, u128)> {
    flags_match(text, &STATES)
}

/// `+a-b` (those bits count), `a|b` (all bits count), or a number with or without a mask.
fn flags_match<'a>(text: &'a str, names: &[(&str, u128)]) -> Read<'a, (u128, u128)> {
    let all = names.iter().fold(0, |all, (_, bit)| all | bit);
    let named = |part: &'a str| match names.iter().find(|(name, _)| *name == part) {
        Some((_, bit)) => Ok(*bit),
        None => bad(
            part,
            format!("\"{part}\" is not one of {}", names.iter().map(|(n, _)| *n).collect::<Vec<_>>().join(", ")),
        ),
    };
    if text.starts_with(['+', '-']) {
        let (mut value, mut mask) = (0, 0);
        let mut rest = text;
        while !rest.is_empty() {
            let end = rest[1..].find(['+', '-']).map_or(rest.len(), |n| n + 1);
            let bit = named(&rest[1..end])?;
            if mask & bit != 0 {
                return bad(rest, "a flag is named twice");
            }
            mask |= bit;
            value |= if rest.starts_with('+') { bit } else { 0 };
            rest = &rest[end..];
        }
        return Ok((value, mask));
    }
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        let (value, mask) = split_mask(text);
        let mask = mask.map_or(Ok(if names.len() == 9 { 0xfff } else { all }), |m| number(m, 32))?;
        let value = number(value, 32)?;
        return match (value | mask) & !if names.len() == 9 { 0xfff } else { all } {
            0 => Ok((value, mask)),
            _ => bad(text, format!("{text} names flags that do not exist")),
        };
    }
    let mut value = 0;
    for part in text.split('|') {
        value |= named(part)?;
    }
    Ok((value, if names.len() == 9 { 0xfff } else { all }))
}

/// `trk,new` or `trk|new`.
pub(super) fn state_list(text: &str) -> Read<'_, u16> {
    let mut value = 0x20;
    for part in text.split([',', '|', ' ']).filter(|p| !p.is_empty()) {
        match STATES.iter().find(|(name, _)| *name == part) {
            Some((_, bit)) => value |= *bit as u16,
            None => {
                return bad(
                    part,
                    format!("\"{part}\" is not a connection state: new, est, rel, rpl, inv, trk, snat, dnat"),
                )
            }
        }
    }
    Ok(value)
}

fn frag(text: &str) -> Read<'_, (u128, u128)> {
    match text {
        "no" => Ok((0, 3)),
        "yes" => Ok((1, 1)),
        "first" => Ok((1, 3)),
        "later" => Ok((3, 3)),
        "not_later" => Ok((0, 2)),
        _ => bad(text, format!("\"{text}\" is not one of no, yes, first, later, not_later")),
    }
}

/// Some bits of a field: `NXM_NX_REG0[0..15]`, `reg0[3]`, `reg0[]`, or the name alone where `bare` allows it.
pub(super) fn subfield(text: &str, bare: bool) -> Read<'_, Subfield> {
    let (name, range) = match text.split_once('[') {
        Some((name, range)) => match range.strip_suffix(']') {
            Some(range) => (name, Some(range)),
            None => return bad(text, "a range of bits ends with \"]\""),
        },
        None => (text, None),
    };
    let Some(field) = field_named(name) else {
        return unsupported(text, format!("\"{name}\" is not a field"));
    };
    let all = field.info().bits;
    let bit = |t: &str| t.trim().parse::<u8>().ok().filter(|n| *n < all);
    let bits = match range {
        None if bare => Some((0, all - 1)),
        None => return bad(text, format!("bits of {name} were expected, such as {name}[] or {name}[0..3]")),
        Some("") => Some((0, all - 1)),
        Some(r) => match r.split_once("..") {
            Some((low, high)) => bit(low).zip(bit(high)),
            None => bit(r).map(|b| (b, b)),
        },
    };
    match bits {
        Some((low, high)) if low <= high => Ok(Subfield { field, offset: low, bits: high - low + 1 }),
        _ => bad(text, format!("{name} has bits 0 to {}", all - 1)),
    }
}

/// Bytes as `01.02.ff`.
pub(super) fn bytes(text: &str) -> Read<'_, Vec<u8>> {
    let digits: Vec<u8> = text.bytes().filter(|b| *b != b'.').collect();
    if !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
        return bad(text, "bytes are written as pairs of hexadecimal digits: 01.02.ff");
    }
    let nibble = |b: u8| (b as char).to_digit(16).unwrap_or(0) as u8;
    Ok(digits.chunks_exact(2).map(|p| nibble(p[0]) << 4 | nibble(p[1])).collect())
}

/// A name in quotes or without.
pub(super) fn name(text: &str) -> &str {
    unquote(text)
}
