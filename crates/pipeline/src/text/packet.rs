// SPDX-License-Identifier: Apache-2.0
//! Packets in the syntax of `ovs-appctl ofproto/trace`, and beyond it the headers that no flow can match: a second VLAN tag as
//! `dl_vlan1`, `dl_vlan_pcp1` or `vlan_tci1`, types of tags as `vlan_tpid` and `vlan_tpid1`, further labels as `mpls_lse1` and `mpls_lse2`.
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
    let mut reader = Reader::of_packet();
    for part in list(text, true)? {
        let item = item(part)?;
        if item.parentheses {
            return bad(part, "datapath flows, as in_port(1),eth(…), are not read: write in_port=1,tcp,nw_src=…");
        }
        match item.name {
            // A trace's own settings, without meaning for the flow.
            "dp_hash" if item.value.is_some() => {}
            _ => reader.item(item, &mut context)?,
        }
    }
    let matching = reader.finish()?;
    let mut key = matching.key;
    for (tpid, tci) in [(Field::VlanTpid, Field::VlanTci), (Field::InnerTpid, Field::InnerTci)] {
        let tag = key.get(tci);
        if tag & 0x1000 != 0 && key.get(tpid) == 0 {
            key.set(tpid, 0x8100);
        }
        if tag & 0x1000 == 0 && tag != 0 {
            return bad(text, "a packet's VLAN tag has the bit 0x1000 set: write vlan_tci=0x1… or dl_vlan");
        }
        if tag == 0 && key.get(tpid) != 0 {
            return bad(text, "a packet without this VLAN tag has no type of it: write dl_vlan or dl_vlan1, too");
        }
    }
    if key.get(Field::InnerTci) != 0 && key.get(Field::VlanTci) == 0 {
        return bad(text, "a packet with an inner VLAN tag has an outer one: write dl_vlan, too");
    }
    let mpls = matches!(key.get(Field::EthType), 0x8847 | 0x8848);
    if mpls && matching.mask.get(Field::MplsBos) == 0 {
        key.set(Field::MplsBos, 1);
    }
    Ok(key)
}
