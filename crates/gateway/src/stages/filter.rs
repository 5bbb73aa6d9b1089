// SPDX-License-Identifier: Apache-2.0
//! Filter: security groups. What they judge is in `crate::pair`; here is when they are asked.

use abi::TENANT_FILTERED;

use crate::packet::Packet;
use crate::record::Recorder;
use crate::work::Work;
use crate::{pair, Frame, Verdict};

/// The stage, for a packet whose destination is known. What goes to the Internet or comes from there is judged with its
/// session, in nat.
#[inline(always)]
pub(crate) fn run<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, f: &Frame<'_>) -> Result<(), Verdict> {
    if p.inward || (p.tenant.key | p.home().key) & TENANT_FILTERED == 0 {
        return Ok(());
    }
    pair::judge(w, p, f).map_err(Verdict::Drop)
}
