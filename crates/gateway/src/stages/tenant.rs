// SPDX-License-Identifier: Apache-2.0
//! Tenant: the VNI's record, whether the outer source may send for it, then what is wrong with the inner frame; ARP and
//! ND end here.

use abi::{DropReason, Mac, Stage, METADATA_ADDRESS, TENANT_NAT, VM_FLAG_GATEWAY};
use tables::Tables;
use wire::{ethernet, ipv4, ipv6, protocol};

use crate::framing::{qinq, vmport};
use crate::nat::outward;
use crate::packet::{Addr, Kind, Packet};
use crate::record::{Event, Recorder};
use crate::stages::parse::{bad_addresses_v6, misaddressed_v4};
use crate::work::Work;
use crate::{arp, dhcp, dhcp6, echo, mirror, nd, turns, Frame, Verdict};

/// Finds the tenant and starts to load its counter.
#[inline(always)]
pub(crate) fn find<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, f: &Frame<'_>) -> Result<(), Verdict> {
    if p.inward {
        // Its session tells.
        return Ok(());
    }
    let (tables, slot) = (w.tables, w.slot);
    p.tenant = tables.tenant_from(p.tenant_bucket, p.vni).ok_or(DropReason::VniUnknown)?;
    tables.prefetch_line(tables.tenant_cell_line(p.tenant.id(), slot));
    if p.source_v6 {
        p.source_nc = tables.nc_by_addr6(p.source.halves());
        tables.prefetch_member6(p.vni, p.source_nc.unwrap_or_default());
    }
    if p.tenant.key & TENANT_NAT != 0 {
        outward::prefetch(w, p, f);
    }
    Ok(())
}

/// The stage.
#[inline(always)]
pub(crate) fn run<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, f: &mut Frame<'_>) -> Result<(), Verdict> {
    if p.inward {
        return Ok(());
    }
    p.attributed = true;
    if w.settings.strict && p.came.is_none() && !may_send(w.tables, p) {
        return Err(refused(w, p));
    }
    if R::COUNTS && !f.counted {
        w.tables.count_tenant(&p.tenant, w.slot, p.inner_len as u64);
    }
    if R::ON {
        note(w, p);
    }
    if p.strange {
        return Err(DropReason::EdgeMac.into());
    }
    if p.control {
        return Err(for_daemon(w, p));
    }
    if p.inner_error.is_some() || matches!(p.kind, Kind::Arp | Kind::Nd) {
        return Err(not_routed(w, p, f));
    }
    if p.guest.is_some() {
        vmport::check_source(w, p, f)?;
    } else if p.came.is_some() {
        qinq::check_source(w.tables, p, f)?;
        return Ok(());
    }
    if w.settings.shaped {
        if let Some(vm) = turns::sender(w, p, f) {
            mirror::sent(w, p, f, vm.mac);
        }
    }
    Ok(())
}

/// An NC may send only for VNIs that it hosts.
#[inline(always)]
fn may_send(tables: &Tables, p: &Packet) -> bool {
    match p.source_v6 {
        true => p.source_nc.is_some_and(|nc| tables.may_send6(p.vni, nc)),
        false => tables.may_send4_from(p.member_bucket, p.vni, p.source.as_v4()),
    }
}

/// Tells an unknown sender from an NC that hosts other VPCs.
#[cold]
fn refused<R: Recorder>(w: &Work<'_, R>, p: &Packet) -> Verdict {
    match w.sending_nc(p) {
        Some(_) => DropReason::SourceNotHosting.into(),
        None => DropReason::SourceUnknown.into(),
    }
}

/// A control packet of a CE. What else is to be said of it says who hears it.
#[cold]
fn for_daemon<R: Recorder>(w: &Work<'_, R>, p: &Packet) -> Verdict {
    let Some(circuit) = p.came else { return DropReason::TableFault.into() };
    match w.controls.take(&circuit, w.now) {
        Ok(()) => Verdict::Control { circuit: circuit.number() },
        Err(reason) => reason.into(),
    }
}

/// What ends here: a broken inner frame, ARP, ND.
#[cold]
fn not_routed<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, f: &mut Frame<'_>) -> Verdict {
    let answer = match (p.inner_error, p.kind) {
        (Some(DropReason::InnerLinkLocal), _) => own_address(w, p, f),
        (Some(DropReason::InnerBroadcast), _) if dhcp::is_for_server(p, f) => dhcp::answer(w, p, f),
        (Some(DropReason::InnerMulticast), _) if dhcp6::is_for_server(p, f) => dhcp6::answer(w, p, f),
        (Some(reason), _) => Err(reason),
        (None, Kind::Arp) => arp::answer(w, p, f),
        (None, _) => nd::answer(w, p, f),
    };
    answer.unwrap_or_else(Verdict::Drop)
}

/// A packet with a link-local address is not forwarded, but the VPC's own gateway address may be one, or be asked by one: to answer is
/// not to forward.
fn own_address<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, f: &mut Frame<'_>) -> Result<Verdict, DropReason> {
    let (refused, generation) = (DropReason::InnerLinkLocal, p.tenant.generation());
    let packet = p.inner_frame(f).get(ethernet::HEADER_LEN..).unwrap_or(&[]);
    let (to, from, tos) = match p.v6() {
        true => {
            let ip = ipv6::Packet::new_checked(packet).map_err(|_| refused)?;
            let (src, dst) = (Addr::v6(ip.src()), Addr::v6(ip.dst()));
            (
                w.tables.vm6(p.vni, dst.halves(), generation),
                bad_addresses_v6(Mac(0), src, src, &w.settings),
                ip.traffic_class(),
            )
        }
        false => {
            let ip = ipv4::Packet::new_checked(packet).map_err(|_| refused)?;
            let to = w.tables.vm4(p.vni, ip.dst(), generation);
            // Where the VPC's gateway has this address, too, that answers what is no TCP.
            let other = to.is_none() || ip.protocol() == protocol::TCP;
            if p.guest.is_some() && ip.dst() == METADATA_ADDRESS && other {
                return for_metadata(w, p, f, misaddressed_v4(Mac(0), ip.src(), ip.src(), &w.settings));
            }
            (to, misaddressed_v4(Mac(0), ip.src(), ip.src(), &w.settings), ip.tos())
        }
    };
    // Nobody is answered who cannot be reached on the link.
    if to.is_none_or(|vm| vm.flags & VM_FLAG_GATEWAY == 0) || from.is_some_and(|why| why != refused) {
        return Err(refused);
    }
    if from.is_none() {
        vmport::check_source(w, p, f)?;
    }
    p.inner_tos = tos;
    echo::answer(w, p, f)
}

/// A packet of a VM of this node to the metadata address. `fault`: what is wrong with its source.
fn for_metadata<R: Recorder>(
    w: &Work<'_, R>,
    p: &Packet,
    f: &Frame<'_>,
    fault: Option<DropReason>,
) -> Result<Verdict, DropReason> {
    const REFUSED: DropReason = DropReason::InnerLinkLocal;
    if fault.is_some() {
        return Err(REFUSED);
    }
    vmport::check_source(w, p, f)?;
    let (mac, sight) = p.guest.zip(w.sessions).ok_or(REFUSED)?;
    let leases = sight.connections.leases();
    let told = leases.of(p.vni, mac).filter(|told| told.metadata).ok_or(REFUSED)?;
    match !R::COUNTS || told.may_ask(w.now) {
        true => Ok(Verdict::Metadata),
        false => Err(DropReason::MetadataLimited),
    }
}

#[cold]
fn note<R: Recorder>(w: &mut Work<'_, R>, p: &Packet) {
    let gateway_mac = Mac(w.tables.gateway_mac(&p.tenant));
    let (vni, line, generation) = (p.vni, w.tables.tenant_record(p.tenant.id()), p.tenant.generation());
    let source = p.source.ip(p.source_v6);
    w.note(p, Stage::Tenant, Event::Tenant { vni, line, generation, gateway_mac });
    if p.came.is_some() {
        return;
    }
    let event = match w.settings.strict {
        true => Event::Member { vni, source },
        false => Event::SourceNotChecked { source },
    };
    w.note(p, Stage::Tenant, event);
}
