// SPDX-License-Identifier: Apache-2.0
//! Emit: the receiving VM's counters and the port to leave by.

use crate::record::Recorder;
use crate::work::Work;
use crate::Verdict;

/// The stage, over the batch.
pub(crate) fn run<R: Recorder>(w: &mut Work<'_, '_, R>) {
    w.each(|w, i| {
        let p = &w.packets[i as usize];
        w.tables.count_vm(p.vm.vm, p.inner_len as u64);
        let verdict = Verdict::Forward { ifindex: w.tables.nexthop(p.nexthop).ifindex };
        if R::ON {
            w.finish(i, verdict);
        } else {
            w.forward(i, verdict);
        }
        Ok(())
    });
}
