// SPDX-License-Identifier: Apache-2.0
//! Groups: `group_id=1,type=select,bucket=weight:100,actions=output:1,bucket=…`.
use super::actions::Actions;
use super::split::trim;
use super::value::{number, small};
use super::{bad, field_of_key, unsupported, Read};
use crate::action::Action;
use crate::group::{action_set, in_action_set, Bucket, Group, GroupKind};
use crate::key::Mask;
use std::sync::Arc;

/// Reads a group's line.
pub(super) fn read<'a>(line: &'a str, actions: &mut Actions<'_, '_, 'a>) -> Read<'a, (u32, Group)> {
    let mut parts = split_buckets(line).into_iter();
    let head = parts.next().unwrap_or("");
    let mut group = Group {
        kind: GroupKind::All,
        buckets: Vec::new(),
        fields: Mask::default(),
        field_list: Vec::new(),
        selection_param: 0,
    };
    let (mut id, mut of_type, mut method) = (None, false, None);
    let mut unknown = None;
    let mut rest = head;
    while !rest.is_empty() {
        let (part, after) = next_part(rest);
        rest = after;
        let Some((name, value)) = part.split_once(['=', ':', '(']) else {
            match part.is_empty() {
                true => continue,
                false => return bad(part, format!("\"{part}\" is not a property of a group")),
            }
        };
        match name {
            "group_id" => id = Some(number(value, 32)? as u32),
            "type" => {
                of_type = true;
                group.kind = match value {
                    "all" => GroupKind::All,
                    "select" => GroupKind::Select,
                    "indirect" => GroupKind::Indirect,
                    "ff" | "fast_failover" => GroupKind::FastFailover,
                    _ => {
                        return bad(
                            value,
                            format!("\"{value}\" is not a kind of group: all, select, indirect, fast_failover"),
                        )
                    }
                }
            }
            "selection_method" if value == "hash" || value == "dp_hash" => method = Some(value),
            "selection_method_param" if method.is_some() => group.selection_param = number(value, 64)? as u64,
            "selection_method_param" => return bad(part, "selection_method_param stands behind a selection_method"),
            "fields" if method != Some("hash") => return bad(part, "fields stand behind selection_method=hash"),
            "fields" => match fields(value.strip_suffix(')').unwrap_or(value), &mut group) {
                // Which bucket such a packet takes is not known.
                Err(why) if why.unsupported && actions.lenient => {
                    unknown = Some(part);
                    actions.left_out = Some(why);
                }
                other => other?,
            },
            _ => return bad(part, format!("\"{name}\" is not a property of a group")),
        }
    }
    if !of_type {
        return bad(head, "a group needs a type: all, select, indirect, fast_failover");
    }
    if method.is_some() && group.kind != GroupKind::Select {
        return bad(head, "only a select group has a selection_method");
    }
    for part in parts {
        let next = group.buckets.len() as u32;
        group.buckets.push(bucket(part, next, group.kind, actions)?);
        if let Some(last) = group.buckets.last().filter(|l| group.buckets.iter().filter(|b| b.id == l.id).count() > 1) {
            return bad(part, format!("there are two buckets with number {}", last.id));
        }
        if group.buckets.len() > 4096 {
            return bad(part, "a group has at most 4096 buckets");
        }
    }
    if let Some(part) = unknown {
        group.buckets.iter_mut().for_each(|b| b.actions = Arc::new([Action::Unsupported(Arc::from(part))]));
    }
    if group.kind == GroupKind::Indirect && group.buckets.len() != 1 {
        return bad(head, "an indirect group has one bucket");
    }
    match id {
        Some(id) if id <= 0xffff_ff00 => Ok((id, group)),
        Some(_) => bad(head, "a group's number is at most 4294967040"),
        None => bad(head, "a group needs group_id"),
    }
}

fn next_part(text: &str) -> (&str, &str) {
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' | ' ' if depth == 0 => return (trim(&text[..at]), &text[at + 1..]),
            _ => {}
        }
    }
    (trim(text), "")
}

/// The head and every bucket's text after `bucket=`.
fn split_buckets(line: &str) -> Vec<&str> {
    line.split("bucket=").map(|p| trim(p).trim_end_matches(',')).collect()
}

fn fields<'a>(text: &'a str, group: &mut Group) -> Read<'a, ()> {
    for part in text.split([',', ' ']).filter(|p| !p.is_empty()) {
        let (name, mask) = part.split_once('=').map_or((part, None), |(n, m)| (n, Some(m)));
        let Some(field) = field_of_key(name) else {
            return unsupported(part, format!("\"{name}\" is not a field"));
        };
        let bits = mask.map_or(Ok(u128::MAX), |m| number(m, field.info().bits))?;
        group.fields.add_bits(field, bits);
        if !group.field_list.contains(&field) {
            group.field_list.push(field);
        }
    }
    // They are hashed in the order of the fields' definition.
    group.field_list.sort();
    Ok(())
}

fn bucket<'a>(text: &'a str, next: u32, kind: GroupKind, actions: &mut Actions<'_, '_, 'a>) -> Read<'a, Bucket> {
    let mut bucket = Bucket {
        id: next,
        weight: u16::from(kind == GroupKind::Select),
        actions: Arc::new([]),
        text: Arc::from("drop"),
        left_out: false,
    };
    let mut rest = text;
    let mut watched = kind != GroupKind::FastFailover;
    while !rest.is_empty() {
        let (part, after) = next_part(rest);
        let (name, value) = match part.split_once(['=', ':']) {
            Some(both) => both,
            None if part.is_empty() => {
                rest = after;
                continue;
            }
            None => (part, ""),
        };
        match name {
            "bucket_id" => bucket.id = small(value, 32)?,
            "weight" if kind != GroupKind::Select => return bad(part, "only buckets of a select group have weights"),
            "weight" => bucket.weight = small(value, 16)? as u16,
            "watch_port" | "watch_group" if !matches!(kind, GroupKind::Select | GroupKind::FastFailover) => {
                return bad(part, format!("only buckets of a fast_failover or select group have a {name}"));
            }
            "watch_port" | "watch_group" => watched = true,
            _ if !watched => return bad(text, "a bucket of a fast_failover group has a watch_port or a watch_group"),
            _ => {
                // The actions go to the end of the bucket, with or without "actions=".
                let list =
                    part.strip_prefix("actions=").map_or(rest, |_| trim(rest).strip_prefix("actions=").unwrap_or(rest));
                let read = actions.list(trim(list))?;
                bucket.left_out = read.iter().any(|a| !in_action_set(a));
                bucket.actions = action_set(&read).into();
                bucket.text = Arc::from(trim(list));
                return Ok(bucket);
            }
        }
        rest = after;
    }
    Ok(bucket)
}
