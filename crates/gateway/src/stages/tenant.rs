// SPDX-License-Identifier: Apache-2.0
//! Tenant: the VNI's record, whether the outer source may send for it, then what is wrong with the inner frame; ARP and
//! ND end here.

use abi::{DropReason, Stage, TENANT_COUNTERS_LINE};
use tables::Walk;
use wire::Mac;

use crate::packet::Kind;
use crate::record::{Event, Recorder};
use crate::work::Work;
use crate::{arp, nd, Verdict};

/// The stage, over the batch: first the line of each tenant, then, once the records are loaded, the checks.
pub(crate) fn run<R: Recorder>(w: &mut Work<'_, '_, R>) {
    w.each(|w, i| {
        let p = &mut w.packets[i as usize];
        p.tenant_line = w.tables.tenant_line(p.vni).ok_or(DropReason::VniUnknown)?;
        w.tables.prefetch_line(p.tenant_line);
        w.tables.prefetch_line(p.tenant_line.wrapping_add(TENANT_COUNTERS_LINE + w.slot / 4));
        if p.source_v6 && w.settings.strict {
            p.source_nc = w.tables.nc_by_addr6(p.source.halves());
            w.tables.prefetch_member6(p.vni, p.source_nc.unwrap_or(0));
        }
        Ok(())
    });
    w.each(|w, i| {
        let p = &mut w.packets[i as usize];
        // The line came from the table of tenants, so a record that is not in use is no unknown VNI but a fault.
        p.tenant = w.tables.tenant_at(p.tenant_line).filter(|t| t.vni == p.vni).ok_or(DropReason::TableFault)?;
        p.attributed = true;
        if w.settings.strict {
            check_source(w, i)?;
        }
        let p = &w.packets[i as usize];
        if !w.frames[i as usize].counted {
            w.tables.count_tenant(&p.tenant, w.slot, p.inner_len as u64);
        }
        if R::ON {
            note(w, i);
        }
        let p = &w.packets[i as usize];
        if let Some(reason) = p.inner_error {
            return Err(reason.into());
        }
        let root = match p.kind {
            Kind::Ipv4 => p.tenant.root4(),
            Kind::Ipv6 => p.tenant.root6(),
            Kind::Arp => return Err(arp::answer(w, i).unwrap_or_else(Verdict::Drop)),
            Kind::Nd => return Err(nd::answer(w, i).unwrap_or_else(Verdict::Drop)),
        };
        if root & abi::ROOT_SIMPLE == 0 {
            if let Some(walk) = Walk::begin(root) {
                w.tables.prefetch_line(walk.line());
            }
        }
        Ok(())
    });
}

/// An NC may send only for VNIs that it hosts.
#[inline(always)]
fn check_source<R: Recorder>(w: &Work<'_, '_, R>, i: u8) -> Result<(), DropReason> {
    let p = &w.packets[i as usize];
    let allowed = match p.source_v6 {
        true => p.source_nc.is_some_and(|nc| w.tables.may_send6(p.vni, nc)),
        false => w.tables.may_send4(p.vni, p.source.as_v4()),
    };
    match allowed {
        true => Ok(()),
        false => Err(refused(w, i)),
    }
}

/// Tells an unknown sender from an NC that hosts other VPCs.
#[cold]
fn refused<R: Recorder>(w: &Work<'_, '_, R>, i: u8) -> DropReason {
    match w.sending_nc(i) {
        Some(_) => DropReason::SourceNotHosting,
        None => DropReason::SourceUnknown,
    }
}

#[cold]
fn note<R: Recorder>(w: &mut Work<'_, '_, R>, i: u8) {
    let p = w.packets[i as usize];
    let gateway_mac = Mac(w.tables.gateway_mac(&p.tenant));
    let (vni, line, generation) = (p.vni, p.tenant.line, p.tenant.generation());
    let source = p.source.ip(p.source_v6);
    w.note(i, Stage::Tenant, Event::Tenant { vni, line, generation, gateway_mac });
    let event = match w.settings.strict {
        true => Event::Member { vni, source },
        false => Event::SourceNotChecked { source },
    };
    w.note(i, Stage::Tenant, event);
}
