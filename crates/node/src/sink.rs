// SPDX-License-Identifier: Apache-2.0
//! What the underlay watcher decides, written into the tables.

use crate::conntrack::{lead, Egresses};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use tables::{GroupId, NexthopId, Writer};
use underlay::{Change, Sink};

/// Maps the watcher's ids to those of the tables. Next hops and groups that a process before has left are removed once
/// nothing leads over them any more.
pub struct TableSink {
    /// Routers to the Internet: followed as NCs are, and bound in the root.
    egress: Egresses,
    writer: Arc<Mutex<Writer>>,
    nexthops: HashMap<u32, NexthopId>,
    groups: HashMap<u32, GroupId>,
    stale_groups: Vec<GroupId>,
    stale_nexthops: Vec<NexthopId>,
}

impl TableSink {
    /// A sink for these tables.
    pub fn new(writer: Arc<Mutex<Writer>>, egress: Egresses) -> Self {
        let (stale_groups, stale_nexthops) = {
            let writer = writer.lock();
            let groups = writer.groups().into_iter().map(|(id, _)| id).collect();
            (groups, writer.nexthops().into_iter().map(|(id, _)| id).collect())
        };
        Self { egress, writer, nexthops: HashMap::new(), groups: HashMap::new(), stale_groups, stale_nexthops }
    }

    fn one(&mut self, writer: &mut Writer, change: &Change) -> Result<(), String> {
        let full = |e: std::io::Error| format!("table memory cannot grow: {e}");
        match change {
            Change::Nexthop { id, spec } => {
                let spec = tables::NexthopSpec {
                    addr: spec.addr,
                    ifindex: spec.ifindex,
                    dmac: spec.dmac,
                    smac: spec.smac,
                    mtu: spec.mtu,
                };
                let line = writer.put_nexthop(self.nexthops.get(id).copied(), &spec).map_err(full)?;
                self.nexthops.insert(*id, line);
                Ok(())
            }
            Change::Group { id, members } => {
                let lines: Option<Vec<_>> = members.iter().map(|m| self.nexthops.get(m).copied()).collect();
                let lines = lines.ok_or("a group has a member that was not entered")?;
                let line = writer.set_group(self.groups.get(id).copied(), &lines).map_err(full)?;
                self.groups.insert(*id, line);
                Ok(())
            }
            Change::Bind { nc, group } => {
                let line = match group {
                    Some(id) => Some(*self.groups.get(id).ok_or("an NC is led over a group that was not entered")?),
                    None => None,
                };
                let egress = *self.egress.lock();
                let family = egress.iter().position(|egress| *egress == Some(*nc));
                if let Some(family) = family {
                    lead(writer, family == 1, line);
                }
                // VMs of an NC that is this node are behind its own ports, whatever the kernel says of its address.
                let line = line.filter(|_| !is_own(writer, *nc));
                let bound = writer.bind_nc_group(*nc, line) || family.is_some();
                bound.then_some(()).ok_or_else(|| format!("NC {nc} is not in the tables"))
            }
            Change::DropGroup { id } => match self.groups.remove(id) {
                Some(line) if !writer.remove_group(line) => {
                    self.stale_groups.push(line);
                    Ok(())
                }
                _ => Ok(()),
            },
            Change::DropNexthop { id } => match self.nexthops.remove(id) {
                Some(line) if !writer.remove_nexthop(line) => {
                    self.stale_nexthops.push(line);
                    Ok(())
                }
                _ => Ok(()),
            },
        }
    }

    /// Removes what nobody uses any more; what is still in use is tried again later.
    fn sweep(&mut self, writer: &mut Writer) {
        let Self { groups, nexthops, stale_groups, stale_nexthops, .. } = self;
        stale_groups.retain(|line| !groups.values().any(|g| g == line) && !writer.remove_group(*line));
        stale_nexthops.retain(|line| !nexthops.values().any(|n| n == line) && !writer.remove_nexthop(*line));
    }
}

/// Whether an address is the node's own tunnel address.
fn is_own(writer: &Writer, nc: IpAddr) -> bool {
    let tables = writer.tables();
    match nc {
        IpAddr::V4(a) => a.to_bits() == tables.vtep4(),
        IpAddr::V6(a) => {
            let (hi, lo) = tables.vtep6();
            a.to_bits() == u128::from(hi) << 64 | u128::from(lo)
        }
    }
}

impl Sink for TableSink {
    fn apply(&mut self, changes: &[Change]) -> Vec<Result<(), String>> {
        let writer = self.writer.clone();
        let mut writer = writer.lock();
        let results = changes.iter().map(|change| self.one(&mut writer, change)).collect();
        if !self.stale_groups.is_empty() || !self.stale_nexthops.is_empty() {
            self.sweep(&mut writer);
        }
        results
    }
}
