// SPDX-License-Identifier: Apache-2.0
//! Locate: the VM-NC table, the gateway's own addresses, TTL, the underlay next hop and its MTU.

use abi::{DropReason, Mac, NcId, Stage, VmId, VM_FLAG_GATEWAY, VM_FLAG_METERED, VM_FLAG_SHAPED};
use tables::VmEntry;
use wire::{ethernet, ipv6};

use super::route::lookup_vm;
use crate::framing::qinq;
use crate::packet::{framed, Kind, Packet};
use crate::record::{Event, Recorder};
use crate::work::{Path, Work};
use crate::{dhcp, echo, fragment, turns, Frame, Verdict};

/// The destination VM, and what must be loaded for it.
#[inline(always)]
pub(crate) fn find<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, f: &mut Frame<'_>) -> Result<(), Verdict> {
    let tables = w.tables;
    if let Some((circuit, ce)) = p.leaves {
        if circuit.port.elsewhere {
            return Err(qinq::send_to_node(w, p, f, circuit.port).unwrap_or_else(Verdict::Drop));
        }
        p.vm = VmEntry { mac: ce, vm: VmId(0), nc: NcId(0), flags: 0 };
        if p.ttl <= 1 {
            return Err(DropReason::TtlExpired.into());
        }
        super::filter::prefetch(w, p, f);
        return Ok(());
    }
    if !p.located {
        match lookup_vm(tables, p, p.dst_vpc()) {
            Some(vm) => p.vm = vm,
            // What comes from the Internet may be for a site.
            None if p.inward && qinq::enter_line(w, p) => return find(w, p, f),
            None => {
                if R::ON {
                    note_no_vm(w, p);
                }
                return Err(DropReason::VmUnknown.into());
            }
        }
    }
    if R::ON {
        note_vm(w, p);
    }
    if p.vm.flags & VM_FLAG_GATEWAY != 0 {
        if p.inward {
            return Err(DropReason::VmUnknown.into());
        }
        let answered = if dhcp::is_for_server(p, f) { dhcp::answer(w, p, f) } else { echo::answer(w, p, f) };
        return Err(answered.unwrap_or_else(Verdict::Drop));
    }
    if p.ttl <= 1 {
        return Err(DropReason::TtlExpired.into());
    }
    tables.prefetch_line(tables.nc_line(p.vm.nc));
    tables.prefetch_line(tables.vm_cell_line(p.vm.vm));
    if p.vm.flags & VM_FLAG_METERED != 0 {
        tables.prefetch_vm_meter(p.vm.vm);
    }
    super::filter::prefetch(w, p, f);
    Ok(())
}

/// The stage: the way to the NC or the CE.
#[inline(always)]
pub(crate) fn run<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, f: &mut Frame<'_>) -> Result<Path, Verdict> {
    if p.vm.flags & VM_FLAG_SHAPED != 0 {
        turns::receiver(w, p);
    }
    let mut path = match p.leaves {
        Some((circuit, ce)) => qinq::path(&circuit, ce),
        None => w.path_to_vm(p.dst_vpc().vni, &p.vm, p.flow)?,
    };
    if R::ON {
        note_path(w, p, &path);
    }
    if !path.fits(p.inner_len as usize) {
        too_big(w, p, f, &mut path)?;
    }
    Ok(path)
}

/// A packet that does not fit is cut into fragments if it is IPv4 and allows that. No smaller one may be asked for than every IPv6 link
/// carries: then its tunnel packet is cut, if that is wanted (RFC 2473 §7.1).
#[cold]
fn too_big<R: Recorder>(w: &Work<'_, R>, p: &mut Packet, f: &Frame<'_>, path: &mut Path) -> Result<(), DropReason> {
    let packet = p.inner_frame(f).get(ethernet::HEADER_LEN..).unwrap_or(&[]);
    let room = (path.nexthop.mtu as usize).saturating_sub(path.overhead());
    path.cut = p.kind == Kind::Ipv4 && fragment::may_cut(packet, room);
    let least =
        w.settings.tunnel_fragments && p.kind == Kind::Ipv6 && p.inner_len as usize <= framed(ipv6::LEAST_MTU) as usize;
    path.split = least && fragment::may_split(path);
    if path.cut || path.split {
        return Ok(());
    }
    p.room = room as u16;
    Err(DropReason::TooBig)
}

#[cold]
fn note_no_vm<R: Recorder>(w: &mut Work<'_, R>, p: &Packet) {
    w.note(p, Stage::Locate, Event::NoVm { vni: p.dst_vpc().vni, address: p.target.ip(p.v6()) });
}

#[cold]
fn note_vm<R: Recorder>(w: &mut Work<'_, R>, p: &Packet) {
    w.note(
        p,
        Stage::Locate,
        Event::Vm {
            vni: p.dst_vpc().vni,
            address: p.target.ip(p.v6()),
            mac: Mac(p.vm.mac),
            vm: p.vm.vm,
            nc: p.vm.nc,
            gateway: p.vm.flags & VM_FLAG_GATEWAY != 0,
            metered: p.vm.flags & VM_FLAG_METERED != 0,
        },
    );
}

#[cold]
fn note_path<R: Recorder>(w: &mut Work<'_, R>, p: &Packet, path: &Path) {
    let n = path.nexthop;
    if let Some((c, ce)) = p.leaves {
        let tags = c.vids().to_vec();
        return w.note(p, Stage::Locate, Event::Line { port: n.ifindex, tags, ce: Mac(ce), mtu: n.mtu });
    }
    if path.tags.is_some() {
        return w.note(p, Stage::Locate, Event::VmPort { port: n.ifindex, mac: Mac(n.dmac), mtu: n.mtu });
    }
    w.note(
        p,
        Stage::Locate,
        Event::Nexthop {
            nc: p.vm.nc,
            address: path.nc.ip(path.nc_v6),
            nexthop: path.line,
            ifindex: n.ifindex,
            dmac: Mac(n.dmac),
            smac: Mac(n.smac),
            mtu: n.mtu,
        },
    );
}
