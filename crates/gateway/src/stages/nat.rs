// SPDX-License-Identifier: Apache-2.0
//! Nat: sessions and address translation. What it does is in `crate::nat`; here is when it is asked.

use abi::{POLICY_NAT, TENANT_NAT};

use crate::nat::outward;
use crate::packet::Packet;
use crate::record::Recorder;
use crate::work::Work;
use crate::{Frame, Verdict};

/// The stage, for a packet whose destination no VM-NC entry proves local. A settled session of the present policy proves that
/// the way is the Internet, and the packet goes it; any other packet is routed first. True: it has come in again by a public
/// address of ours and is to be located.
#[inline(always)]
pub(crate) fn run<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, f: &mut Frame<'_>) -> Result<bool, Verdict> {
    let Some(sight) = w.sessions else { return Ok(false) };
    if p.tenant.key & TENANT_NAT == 0 {
        return Ok(false);
    }
    p.policy = w.tables.policy(&p.tenant);
    if p.policy & POLICY_NAT == 0 {
        return Ok(false);
    }
    if outward::established_session(sight, p, f).is_none() {
        outward::prefetch_more(w, sight, p);
        return Ok(false);
    }
    outward::run(w, p, f)?;
    Ok(true)
}
