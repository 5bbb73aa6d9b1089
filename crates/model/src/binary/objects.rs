// SPDX-License-Identifier: Apache-2.0
//! Objects and change sets as bytes, for the journal.

use super::codec::*;
use crate::doc::{decode, Names};
use crate::documents::{quick_line, Documents};
use crate::kinds::*;
use crate::labels::{put_labels, read_labels, Labels};
use crate::quick;
use crate::yaml;
use abi::Vni;
use std::net::IpAddr;
use std::sync::Arc;

/// Appends a change set.
pub fn put_documents(out: &mut Vec<u8>, docs: &Documents) {
    put_u64(out, docs.puts.len() as u64);
    for item in &docs.puts {
        match item.origin.text() {
            Some(text) if !has_bytes(item.object.kind()) => {
                out.push(item.object.kind() as u8);
                put_text(out, text);
            }
            _ => put_object(out, &item.object),
        }
    }
    put_u64(out, docs.deletes.len() as u64);
    for (kind, name, _) in &docs.deletes {
        out.push(*kind as u8);
        put_text(out, name);
    }
}

/// Reads a change set that was taken before.
pub fn read_documents(r: &mut Reader<'_>) -> Result<Documents, Fault> {
    let (mut docs, mut names) = (Documents::new(), Names::default());
    docs.recorded = true;
    for _ in 0..r.count(2)? {
        docs.put(read_object(r, &mut names)?);
    }
    for _ in 0..r.count(2)? {
        let kind = read_kind(r)?;
        docs.delete(kind, r.text()?);
    }
    Ok(docs)
}

/// In front of the number of a line that is not the first one of its VPC.
const LINE: &str = "line ";

fn read_kind(r: &mut Reader<'_>) -> Result<Kind, Fault> {
    kind_of(r.byte()?)
}

pub(crate) fn kind_of(n: u8) -> Result<Kind, Fault> {
    Kind::ALL.into_iter().find(|k| *k as u8 == n).ok_or_else(|| format!("{n} is no kind"))
}

fn put_names(out: &mut Vec<u8>, names: &[Name]) {
    put_u64(out, names.len() as u64);
    names.iter().for_each(|n| put_text(out, n));
}

fn read_names(r: &mut Reader<'_>, names: &mut Names) -> Result<Vec<Name>, Fault> {
    (0..r.count(2)?).map(|_| r.name().map(|n| names.get(n))).collect()
}

/// A name that may be absent; no name is empty.
pub(crate) fn put_optional(out: &mut Vec<u8>, name: Option<&Name>) {
    put_text(out, name.map_or("", |n| n));
}

pub(crate) fn read_optional(r: &mut Reader<'_>) -> Result<Option<Name>, Fault> {
    let text = r.text()?;
    if text.is_empty() {
        return Ok(None);
    }
    crate::doc::check_name(text).map(|()| Some(text.into()))
}

pub(crate) fn put_optional_meter(out: &mut Vec<u8>, meter: Option<&Meter>) {
    out.push(u8::from(meter.is_some()));
    if let Some(m) = meter {
        put_meter(out, m);
    }
}

pub(crate) fn read_optional_meter(r: &mut Reader<'_>) -> Result<Option<Box<Meter>>, Fault> {
    match r.byte()? {
        0 => Ok(None),
        _ => r.meter().map(Some),
    }
}

/// `n` addresses, each once, `max` at most.
pub(crate) fn read_addresses(r: &mut Reader<'_>, n: usize, max: usize) -> Result<Vec<IpAddr>, Fault> {
    if n > max {
        return Err(format!("{n} addresses, where {max} are allowed"));
    }
    let mut list = Vec::with_capacity(n);
    for _ in 0..n {
        let a = r.address()?;
        if list.contains(&a) {
            return Err(format!("address {a} is given twice"));
        }
        list.push(a);
    }
    Ok(list)
}

fn read_list(r: &mut Reader<'_>, max: usize) -> Result<Vec<IpAddr>, Fault> {
    let n = r.count(5)?;
    read_addresses(r, n, max)
}

pub(crate) fn put_addresses(out: &mut Vec<u8>, list: &[IpAddr]) {
    put_u64(out, list.len() as u64);
    list.iter().for_each(|a| put_address(out, *a));
}

pub(crate) fn put_vpc(out: &mut Vec<u8>, v: &Vpc) {
    put_text(out, &v.name);
    put_u64(out, v.vni.into());
    put_mac(out, v.gateway_mac);
    put_addresses(out, &v.gateways);
    let limited = v.limits != VpcLimits::default();
    let placed = v.path != VpcPath::default();
    let flags = [v.icmp, v.pick_up, limited, v.weight != 1, placed, !v.labels.is_empty()];
    out.push(flags.iter().enumerate().map(|(bit, is)| u8::from(*is) << bit).sum());
    put_optional_meter(out, v.meter.as_deref());
    put_names(out, &v.peerings);
    if limited {
        [v.limits.sessions, v.limits.vm_sessions, v.limits.half_open].iter().for_each(|n| put_u64(out, (*n).into()));
    }
    if v.weight != 1 {
        put_u64(out, v.weight.into());
    }
    if placed {
        let served = ServedBy::ALL.iter().position(|(_, s)| *s == v.path.vpc).unwrap_or(0) as u8;
        out.push(served | u8::from(v.path.peerings) << 2 | u8::from(v.path.sessions) << 3);
    }
    if !v.labels.is_empty() {
        put_labels(out, &v.labels);
    }
}

fn read_path(byte: u8) -> Result<VpcPath, Fault> {
    let (_, vpc) = *ServedBy::ALL.get(usize::from(byte & 3)).ok_or("there is no such path")?;
    Ok(VpcPath { vpc, peerings: byte & 4 != 0, sessions: byte & 8 != 0 })
}

pub(crate) fn read_vpc(r: &mut Reader<'_>, names: &mut Names) -> Result<Vpc, Fault> {
    let name = names.get(r.name()?);
    let vni = Vni(r.below(1 << 24, "VNI")? as u32);
    if vni == Vni(0) {
        return Err("VNI 0 is no VPC's".into());
    }
    let (gateway_mac, gateways, flags) = (r.mac()?, read_list(r, 16)?, r.byte()?);
    let (meter, peerings) = (read_optional_meter(r)?, read_names(r, names)?);
    let mut limits = VpcLimits::default();
    if flags & 4 != 0 {
        for limit in [&mut limits.sessions, &mut limits.vm_sessions, &mut limits.half_open] {
            *limit = r.below(1 << 32, "limit")? as u32;
        }
    }
    let weight = if flags & 8 != 0 { r.below(1001, "weight")? as u16 } else { 1 };
    let path = if flags & 16 != 0 { read_path(r.byte()?)? } else { VpcPath::default() };
    let labels = if flags & 32 != 0 { read_labels(r, names)? } else { Labels::default() };
    Ok(Vpc {
        name,
        vni,
        gateway_mac,
        gateways,
        icmp: flags & 1 != 0,
        pick_up: flags & 2 != 0,
        limits,
        weight,
        path,
        meter,
        peerings,
        labels,
    })
}

/// Kinds that there are many of have a form in bytes; the others, rare and with many fields, go as their documents.
fn has_bytes(kind: Kind) -> bool {
    matches!(kind, Kind::Nc | Kind::Vpc | Kind::Peering | Kind::Vm | Kind::Route)
}

pub(crate) fn put_document(out: &mut Vec<u8>, object: &Object) {
    put_text(out, &object.to_ndjson());
}

/// Reads such an object.
pub(crate) fn read_document(r: &mut Reader<'_>, names: &mut Names) -> Result<Object, Fault> {
    let text = r.text()?;
    let object = crate::prefix::as_stored(|| {
        if let Some(known) = quick_line(text, names).or_else(|| quick::group_of_yaml(text).map(|(group, _)| group)) {
            return Ok(known);
        }
        let (nodes, fault) = yaml::parse(text);
        let node = nodes.first().filter(|_| fault.is_none()).ok_or("a document is no JSON")?;
        let (file, mut errors): (Arc<str>, _) = ("".into(), Vec::new());
        let decoded = decode(&file, node, names, &mut errors, false);
        decoded.map(|(object, _)| object).map_err(|_| errors.first().map_or(String::new(), |e| e.to_string()))
    })?;
    match has_bytes(object.kind()) {
        true => Err("a document is another's".into()),
        false => Ok(object),
    }
}

/// On the number of a kind: labels stand in front of the object.
const LABELLED: u8 = 1 << 7;

/// Whether labels of a kind stand in front; a Vpc has a flag of its own, and documents say all.
fn has_flag(kind: Kind) -> bool {
    has_bytes(kind) && kind != Kind::Vpc
}

fn put_object(out: &mut Vec<u8>, object: &Object) {
    let kind = object.kind();
    if has_flag(kind) && !object.labels().is_empty() {
        out.push(kind as u8 | LABELLED);
        put_labels(out, object.labels());
    } else {
        out.push(kind as u8);
    }
    match object {
        Object::Nc(n) => {
            put_text(out, &n.name);
            put_address(out, n.address);
            put_names(out, &n.vpcs);
        }
        Object::Vpc(v) => put_vpc(out, v),
        Object::Peering(p) => {
            put_text(out, &p.name);
            p.vpcs.iter().for_each(|v| put_text(out, v));
        }
        Object::Vm(v) => {
            put_optional(out, v.name.as_ref());
            put_text(out, &v.vpc);
            put_addresses(out, &v.addresses);
            put_mac(out, v.mac);
            put_text(out, &v.nc);
            // A meter alone is written as that of a VPC.
            out.push(u8::from(v.meter.is_some()) | u8::from(v.shape.is_some()) << 1);
            if let Some(meter) = &v.meter {
                put_meter(out, meter);
            }
            if let Some(shape) = &v.shape {
                shape.numbers().iter().for_each(|n| put_u64(out, *n));
            }
        }
        Object::Route(r) => {
            put_optional(out, r.name.as_ref());
            put_text(out, &r.vpc);
            put_prefix(out, r.prefix);
            match &r.scope {
                Scope::Line(line) if *line != 0 => put_text(out, &format!("{LINE}{line}")),
                scope => put_text(out, scope.name()),
            }
            if let Scope::Peer(to) = &r.scope {
                put_text(out, to);
            }
        }
        rare => put_document(out, rare),
    }
}

fn read_object(r: &mut Reader<'_>, names: &mut Names) -> Result<Object, Fault> {
    let byte = r.byte()?;
    let (kind, labelled) = (kind_of(byte & !LABELLED)?, byte & LABELLED != 0);
    if labelled && !has_flag(kind) {
        return Err(format!("{kind} has its labels elsewhere"));
    }
    let labels = if labelled { read_labels(r, names)? } else { Labels::default() };
    Ok(match kind {
        Kind::Nc => {
            let name = names.get(r.name()?);
            Object::Nc(Nc { name, address: r.address()?, vpcs: read_names(r, names)?, labels })
        }
        Kind::Vpc => Object::Vpc(Box::new(read_vpc(r, names)?)),
        Kind::Peering => {
            let name = names.get(r.name()?);
            Object::Peering(Peering { name, vpcs: [names.get(r.name()?), names.get(r.name()?)], labels })
        }
        Kind::Vm => {
            let (name, vpc) = (read_optional(r)?, names.get(r.name()?));
            let addresses = Addresses::new(&read_list(r, 64)?).ok_or("a Vm has no address")?;
            let (mac, nc, has) = (r.mac()?, names.get(r.name()?), r.byte()?);
            let meter = if has & 1 != 0 { Some(r.meter()?) } else { None };
            let shape = if has & 2 != 0 { Some(Box::new(r.shape()?)) } else { None };
            Object::Vm(Vm { name, vpc, addresses, mac, nc, meter, shape, labels })
        }
        Kind::Route => {
            let (name, vpc, prefix) = (read_optional(r)?, names.get(r.name()?), r.prefix()?);
            let word = r.text()?;
            let line = word.strip_prefix(LINE).and_then(|n| n.parse().ok());
            let scope = line.map(|n| Ok(Scope::Line(n)));
            let scope = scope.or_else(|| Scope::of(word, || r.name().map(|name| names.get(name))));
            let scope = scope.ok_or_else(|| format!("`{word}` is no scope"))??;
            Object::Route(Route { name, vpc, prefix, scope, labels })
        }
        rare => {
            let object = read_document(r, names)?;
            if object.kind() != rare {
                return Err("a document is of another kind than was said".into());
            }
            object
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_sets_come_back() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/region.yaml");
        let mut docs = crate::parse_files(&[path]).unwrap();
        docs.delete(Kind::Vm, "red/10.0.0.1");
        let mut bytes = Vec::new();
        put_documents(&mut bytes, &docs);
        let back = read_documents(&mut Reader::new(&bytes)).unwrap();
        assert_eq!(docs.len(), back.len());
        assert!(docs.puts.iter().zip(&back.puts).all(|(a, b)| a.object == b.object));
        assert_eq!(back.deletes[0].1, "red/10.0.0.1".into());
        for cut in 0..bytes.len() {
            assert!(read_documents(&mut Reader::new(&bytes[..cut])).is_err(), "cut at {cut}");
        }
    }
}
