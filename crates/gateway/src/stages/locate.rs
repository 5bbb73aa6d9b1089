// SPDX-License-Identifier: Apache-2.0
//! Locate: the VM-NC table, the gateway's own addresses, TTL, the underlay next hop and its MTU.

use abi::{DropReason, Stage, VM_FLAG_GATEWAY, VM_FLAG_METERED};
use wire::{ethernet, ipv4, Mac};

use super::route::lookup_vm;
use crate::encap::OVERHEAD;
use crate::packet::Kind;
use crate::record::{Event, Recorder};
use crate::work::{Path, Work};
use crate::{echo, Verdict};

/// The stage, over the batch: first the destination VM, then, once the NC's record is loaded, the way to it.
pub(crate) fn run<R: Recorder>(w: &mut Work<'_, '_, R>) {
    w.each(|w, i| {
        let p = &mut w.packets[i as usize];
        if !p.located {
            let found = lookup_vm(w.tables, &p.home, p.target, p.v6());
            if R::ON && found.is_none() {
                note_no_vm(w, i);
            }
            w.packets[i as usize].vm = found.ok_or(DropReason::VmUnknown)?;
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
        w.tables.prefetch_line(w.tables.nc_line(p.vm.nc));
        w.tables.prefetch_line(w.tables.vm_cell_line(p.vm.vm));
        if p.vm.flags & VM_FLAG_METERED != 0 {
            w.tables.prefetch_vm_meter(p.vm.vm);
        }
        Ok(())
    });
    w.each(|w, i| {
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
            w.packets[i as usize].cut = may_cut(w, i)?;
        }
        Ok(())
    });
}

/// A packet that does not fit is cut into fragments if it is IPv4 and allows that.
#[cold]
fn may_cut<R: Recorder>(w: &Work<'_, '_, R>, i: u8) -> Result<bool, DropReason> {
    if w.packets[i as usize].kind == Kind::Ipv4 {
        let ip = w.inner_frame(i).get(ethernet::HEADER_LEN..).and_then(|b| b.first_chunk::<{ ipv4::HEADER_LEN }>());
        if ip.is_some_and(|head| !ipv4::Packet::new_unchecked(head).dont_fragment()) {
            return Ok(true);
        }
    }
    Err(DropReason::TooBig)
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
