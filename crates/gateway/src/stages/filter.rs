// SPDX-License-Identifier: Apache-2.0
//! Filter: security groups. What they judge is in `crate::pair`; here is when they are asked.

use abi::{POLICY_FILTER, TENANT_FILTERED};

use crate::packet::Packet;
use crate::record::Recorder;
use crate::work::Work;
use crate::{pair, Frame, Verdict};

/// Whether groups may have a say. What goes to the Internet or comes from there is judged with its session, in nat.
#[inline(always)]
fn concerns(p: &Packet) -> bool {
    !p.inward && (p.tenant.key | p.dst_vpc().key) & TENANT_FILTERED != 0
}

/// What the stage will need begins to load, for a packet whose destination is known.
#[inline(always)]
pub(crate) fn prefetch<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, f: &Frame<'_>) {
    if concerns(p) {
        pair::prefetch_session(w, p, f);
    }
}

/// So does what the lines that were asked for lead to.
#[inline(always)]
pub(crate) fn prefetch_more<R: Recorder>(w: &mut Work<'_, R>, p: &Packet) -> Result<(), Verdict> {
    if concerns(p) {
        pair::prefetch_more(w, p);
    }
    Ok(())
}

/// The stage for a packet of an inline pair, whose server is known.
pub(crate) fn server<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, f: &Frame<'_>) -> Result<(), Verdict> {
    match concerns(p) && w.tables.policy(&p.tenant) & POLICY_FILTER != 0 {
        true => pair::judge(w, p, f),
        false => Ok(()),
    }
}

/// The stage, for a packet whose destination is known.
#[inline(always)]
pub(crate) fn run<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, f: &Frame<'_>) -> Result<(), Verdict> {
    match concerns(p) {
        true => pair::judge(w, p, f),
        false => Ok(()),
    }
}
