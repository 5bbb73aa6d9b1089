// SPDX-License-Identifier: Apache-2.0
//! Packets in the syntax of `ovs-appctl ofproto/trace`.
use super::matches::Reader;
use super::names::Context;
use super::split::{item, list};
use super::{bad, Read};
use crate::field::Field;
use crate::key::Key;
use crate::pipeline::Names;

/// Reads one.
pub(super) fn read<'a>(text: &'a str, names: &Names) -> Read<'a, Key> {
    let mut context = Context::fixed(names);
    let mut reader = Reader::default();
    for part in list(text, true)? {
        let item = item(part)?;
        match item.name {
            // A trace's own settings, without meaning for the flow.
            "recirc_id" | "dp_hash" if item.value.is_some() => {}
            _ => reader.item(item, &mut context)?,
        }
    }
    let matching = reader.finish()?;
    let mut key = matching.key;
    if key.get(Field::VlanTci) & 0x1000 != 0 && key.get(Field::VlanTpid) == 0 {
        key.set(Field::VlanTpid, 0x8100);
    }
    if matching.mask.get(Field::VlanTci) != 0 && key.get(Field::VlanTci) & 0x1000 == 0 && key.get(Field::VlanTci) != 0 {
        return bad(text, "a packet's VLAN tag has the bit 0x1000 set: write vlan_tci=0x1… or dl_vlan");
    }
    let mpls = matches!(key.get(Field::EthType), 0x8847 | 0x8848);
    if mpls && matching.mask.get(Field::MplsBos) == 0 {
        key.set(Field::MplsBos, 1);
    }
    Ok(key)
}
