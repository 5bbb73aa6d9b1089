// SPDX-License-Identifier: Apache-2.0
//! What `tunny get mirrors` prints.

use crate::output::table;
use node::mirrors::MirrorView;

/// Mirrors, and what became of the packets that they are of.
pub fn text(list: &[MirrorView]) -> String {
    if list.is_empty() {
        return "nothing is mirrored: a Mirror says what is\n".into();
    }
    let head =
        ["mirror", "vms", "direction", "target", "vni", "copies", "bytes", "cut", "limited", "unreachable", "again"];
    let row = |m: &MirrorView| {
        let numbers = [m.copies, m.bytes, m.cut, m.limited, m.unreachable, m.again].map(|n| n.to_string());
        let own = [m.mirror.clone(), m.vms.to_string(), m.direction.clone(), m.target.clone(), m.vni.to_string()];
        [&own[..], &numbers[..]].concat()
    };
    table(&head, list.iter().map(row))
}
