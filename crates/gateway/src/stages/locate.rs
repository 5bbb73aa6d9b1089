// SPDX-License-Identifier: Apache-2.0
//! Locate: the VM-NC table, the gateway's own addresses, TTL, the underlay next hop and its MTU.

use abi::{DropReason, Stage, VM_FLAG_GATEWAY, VM_FLAG_METERED};
use wire::{ethernet, Mac};

use super::route::lookup_vm;
use crate::encap::OVERHEAD;
use crate::packet::Kind;
use crate::record::{Event, Recorder};
use crate::work::{Path, Work};
use crate::{echo, fragment, Verdict};

/// The destination VM, and what must be loaded for it.
#[inline(always)]
pub(crate) fn find<R: Recorder>(w: &mut Work<'_, '_, R>, i: u8) -> Result<(), Verdict> {
    let tables = w.tables;
    let p = &mut w.packets[i as usize];
    if !p.located {
        match lookup_vm(tables, p, &p.home) {
            Some(vm) => p.vm = vm,
            None => {
                if R::ON {
                    note_no_vm(w, i);
                }
                return Err(DropReason::VmUnknown.into());
            }
        }
    }
    if R::ON {
        note_vm(w, i);
    }
    let p = &w.packets[i as usize];
    if p.vm.flags & VM_FLAG_GATEWAY != 0 {
        return Err(echo::answer(w, i).unwrap_or_else(Verdict::Drop));
    }
    if p.ttl <= 1 {
        return Err(DropReason::TtlExpired.into());
    }
    tables.prefetch_line(tables.nc_line(p.vm.nc));
    tables.prefetch_line(tables.vm_cell_line(p.vm.vm));
    if p.vm.flags & VM_FLAG_METERED != 0 {
        tables.prefetch_vm_meter(p.vm.vm);
    }
    Ok(())
}

/// The stage: the way to the NC.
#[inline(always)]
pub(crate) fn run<R: Recorder>(w: &mut Work<'_, '_, R>, i: u8) -> Result<(), Verdict> {
    let p = &w.packets[i as usize];
    let path = w.path_to(p.vm.nc, p.flow)?;
    let p = &mut w.packets[i as usize];
    p.nc = path.nc;
    p.nc_v6 = path.nc_v6;
    p.nexthop = path.line;
    if R::ON {
        note_path(w, i, &path);
    }
    let p = &w.packets[i as usize];
    // The MTU counts from the outer IP header on.
    if p.inner_len as usize + OVERHEAD[path.nc_v6 as usize] - ethernet::HEADER_LEN > path.nexthop.mtu as usize {
        w.packets[i as usize].cut = too_big(w, i, &path)?;
    }
    Ok(())
}

/// A packet that does not fit is cut into fragments if it is IPv4 and allows that.
#[cold]
fn too_big<R: Recorder>(w: &Work<'_, '_, R>, i: u8, path: &Path) -> Result<bool, DropReason> {
    let packet = w.inner_frame(i).get(ethernet::HEADER_LEN..).unwrap_or(&[]);
    let room = fragment::room(path.nexthop.mtu, path.nc_v6);
    match w.packets[i as usize].kind == Kind::Ipv4 && fragment::may_cut(packet, room) {
        true => Ok(true),
        false => Err(DropReason::TooBig),
    }
}

#[cold]
fn note_no_vm<R: Recorder>(w: &mut Work<'_, '_, R>, i: u8) {
    let p = w.packets[i as usize];
    w.note(i, Stage::Locate, Event::NoVm { vni: p.home.vni, address: p.target.ip(p.v6()) });
}

#[cold]
fn note_vm<R: Recorder>(w: &mut Work<'_, '_, R>, i: u8) {
    let p = w.packets[i as usize];
    w.note(i, Stage::Locate, Event::Vm {
        vni: p.home.vni,
        address: p.target.ip(p.v6()),
        mac: Mac(p.vm.mac),
        vm: p.vm.vm,
        nc: p.vm.nc,
        gateway: p.vm.flags & VM_FLAG_GATEWAY != 0,
        metered: p.vm.flags & VM_FLAG_METERED != 0,
    });
}

#[cold]
fn note_path<R: Recorder>(w: &mut Work<'_, '_, R>, i: u8, path: &Path) {
    let p = w.packets[i as usize];
    let n = path.nexthop;
    w.note(i, Stage::Locate, Event::Nexthop {
        nc: p.vm.nc,
        address: path.nc.ip(path.nc_v6),
        nexthop: path.line,
        ifindex: n.ifindex,
        dmac: Mac(n.dmac),
        smac: Mac(n.smac),
        mtu: n.mtu,
    });
}
