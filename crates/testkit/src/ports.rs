// SPDX-License-Identifier: Apache-2.0
//! Ports and identifiers (of ICMP, of fragments) that the gateway chooses: in a case `$a` stands for whatever it was when it was first seen in a packet
//! that comes out, and must be the same ever after.

use crate::case::{Input, Outcome};
use crate::dissect::dissect;
use crate::layers::{Entropy, Layer, Packet};
use crate::runner::{End, Seen};
use std::collections::HashMap;

/// First of the numbers that stand for `$` names until they are known.
const FIRST: u16 = 0xe000;

/// The number that stands for `$x` in a packet, x one letter or digit.
pub fn place(text: &str) -> Option<u16> {
    let mut name = text.strip_prefix('$')?.bytes();
    let (Some(c), None) = (name.next(), name.next()) else { return None };
    c.is_ascii_alphanumeric().then(|| FIRST + u16::from(c))
}

fn name(place: u32) -> Option<char> {
    place.checked_sub(FIRST.into()).and_then(|c| u8::try_from(c).ok()).filter(u8::is_ascii_alphanumeric).map(char::from)
}

/// What each name is, in one run of a case.
#[derive(Debug, Default)]
pub struct Ports {
    known: HashMap<u32, u32>,
}

/// The ports and identifiers of a packet, in order.
fn fields(packet: &mut Packet) -> Vec<Field<'_>> {
    let mut out = Vec::new();
    for layer in &mut packet.layers {
        match layer {
            Layer::Ipv4(ip) => out.push(Field::Port(&mut ip.id)),
            Layer::Frag6(f) => out.push(Field::Ident(&mut f.id)),
            Layer::Udp(u) => out.extend([Field::Source(&mut u.src), Field::Port(&mut u.dst)]),
            Layer::Tcp(t) => out.extend([Field::Port(&mut t.src), Field::Port(&mut t.dst)]),
            Layer::Icmp(i) => out.push(Field::Upper(&mut i.rest)),
            _ => {}
        }
    }
    out
}

enum Field<'a> {
    Port(&'a mut u16),
    Ident(&'a mut u32),
    Source(&'a mut Entropy),
    Upper(&'a mut u32),
}

impl Field<'_> {
    fn get(&self) -> u32 {
        match self {
            Field::Port(p) => u32::from(**p),
            Field::Ident(word) => **word,
            Field::Source(Entropy::Value(v)) => *v & 0xffff,
            Field::Source(_) => 0,
            Field::Upper(word) => **word >> 16,
        }
    }

    fn set(&mut self, value: u32) {
        match self {
            Field::Port(p) => **p = value as u16,
            Field::Ident(word) => **word = value,
            Field::Source(e) => **e = Entropy::Value(value & 0xffff),
            Field::Upper(word) => **word = **word & 0xffff | value << 16,
        }
    }
}

impl Ports {
    /// Nothing is known.
    pub fn new() -> Ports {
        Ports::default()
    }

    /// The packet with its names replaced; all must be known.
    pub fn known(&self, packet: &Packet) -> Result<Packet, String> {
        let mut packet = packet.clone();
        for mut field in fields(&mut packet) {
            let Some(name) = name(field.get()) else { continue };
            let value =
                self.known.get(&field.get()).ok_or(format!("nothing has come out yet with the port ${name}"))?;
            field.set(*value);
        }
        Ok(packet)
    }

    /// What is expected of an input with names replaced, after learning those that are new from what was seen.
    pub fn learn(&mut self, input: &Input, seen: &Seen) -> Result<Input, String> {
        let mut input = input.clone();
        if let (Outcome::Forward(_, want) | Outcome::Answer(_, want), End::Forward(_, got) | End::Answer(_, got)) =
            (&input.outcome, &seen.end)
        {
            self.compare(want, got);
        }
        for ((_, want), (_, got)) in input.generated.iter().zip(&seen.generated) {
            self.compare(want, got);
        }
        // What nothing was learned of stays as it is, and differs from any packet.
        let known = |p: &mut Packet| *p = self.known(p).unwrap_or_else(|_| p.clone());
        if let Outcome::Forward(_, p) | Outcome::Answer(_, p) = &mut input.outcome {
            known(p);
        }
        input.generated.iter_mut().for_each(|(_, p)| known(p));
        Ok(input)
    }

    fn compare(&mut self, want: &Packet, got: &[u8]) {
        let (mut want, mut got) = (want.clone(), dissect(got));
        for (want, got) in fields(&mut want).iter().zip(fields(&mut got)) {
            if name(want.get()).is_some() {
                self.known.entry(want.get()).or_insert(got.get());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_letter_or_digit() {
        assert_eq!((place("$a"), place("$7")), (Some(0xe061), Some(0xe037)));
        assert_eq!((place("$"), place("$ab"), place("a"), place("$-")), (None, None, None, None));
        assert_eq!((name(0xe061), name(0xe000), name(53)), (Some('a'), None, None));
    }
}
