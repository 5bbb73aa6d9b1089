// SPDX-License-Identifier: Apache-2.0
//! Emit: the receiving VM's counters and the port to leave by.

use crate::packet::Packet;
use crate::record::Recorder;
use crate::work::{Path, Work};
use crate::{Frame, Verdict};

/// The stage.
#[inline(always)]
pub(crate) fn run<R: Recorder>(
    w: &mut Work<'_, R>,
    p: &mut Packet,
    f: &mut Frame<'_>,
    path: &Path,
) -> Result<(), Verdict> {
    if R::COUNTS && p.leaves.is_none() {
        w.tables.count_vm(p.vm.vm, p.inner_len as u64);
    }
    f.classes = p.classes();
    w.forward(p, f, path.nexthop.ifindex);
    Ok(())
}
