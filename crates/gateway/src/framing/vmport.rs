// SPDX-License-Identifier: Apache-2.0
//! Framing vmport: a plain Ethernet frame of a VM of this node, on a port of its own. The port names the VPC and the VM; what leaves by it is a
//! frame without tags. The order of checks is that of `docs/design/vswitch.md`.

use abi::{DropReason, IfIndex, Vni, VM_FLAG_GATEWAY};
use std::net::IpAddr;
use tables::{NexthopView, VmEntry, VmPort};
use wire::{be, ethernet};

use crate::framing::qinq::Tags;
use crate::packet::{Addr, Packet};
use crate::record::Recorder;
use crate::work::{Path, Work};
use crate::{Frame, Verdict};

/// Lays the frame bare, which begins where the packet does: fills the VPC and who sends.
pub(crate) fn decapsulate(port: &VmPort, data: &[u8], p: &mut Packet) -> Result<(), Verdict> {
    let head = data.first_chunk::<{ ethernet::HEADER_LEN }>().ok_or(DropReason::OuterTruncated)?;
    if ethernet::Frame::new_unchecked(head).src() != port.mac {
        return Err(DropReason::VmPortMac.into());
    }
    p.vni = port.vni;
    p.inner = 0;
    p.inner_len = data.len().min(usize::from(u16::MAX)) as u16;
    // Nothing is around the packet that could say anything else than it says itself.
    p.outer_tos = 0;
    p.came = Some(port.circuit());
    p.guest = Some(port.mac);
    Ok(())
}

/// A VM sends from its own addresses alone.
pub(crate) fn check_source<R: Recorder>(w: &Work<'_, R>, p: &Packet, f: &Frame<'_>) -> Result<(), DropReason> {
    if p.guest.is_none() {
        return Ok(());
    }
    let ip = p.inner_frame(f).get(ethernet::HEADER_LEN..).unwrap_or(&[]);
    let source = match (p.v6(), ip.len()) {
        (true, 24..) => Addr { hi: be::u64(ip, 8), lo: be::u64(ip, 16) },
        (false, 16..) => Addr::v4(be::u32(ip, 12)),
        _ => return Err(DropReason::VmPortSource),
    };
    check_address(w, p, source, p.v6())
}

/// Whether an address is one of those of the VM behind the port that the packet came by, if it came by one.
pub(crate) fn check_address<R: Recorder>(w: &Work<'_, R>, p: &Packet, a: Addr, v6: bool) -> Result<(), DropReason> {
    let Some(mac) = p.guest else { return Ok(()) };
    let found = match v6 {
        true => w.tables.vm6(p.vni, a.halves(), p.tenant.generation()),
        false => w.tables.vm4(p.vni, a.as_v4(), p.tenant.generation()),
    };
    let own = |vm: VmEntry| vm.flags & VM_FLAG_GATEWAY == 0 && vm.mac == mac;
    if found.is_some_and(own) {
        Ok(())
    } else {
        Err(DropReason::VmPortSource)
    }
}

/// How a frame leaves to a destination whose NC is this node, to which there is no way by the underlay.
#[cold]
pub(crate) fn path<R: Recorder>(w: &Work<'_, R>, vni: Vni, vm: &VmEntry) -> Result<Path, DropReason> {
    const NONE: DropReason = DropReason::UnderlayNoRoute;
    if !w.tables.has_vm_ports() {
        return Err(NONE);
    }
    let nc = w.tables.nc(vm.nc).ok_or(NONE)?;
    if !w.settings.is_vtep(Addr::of(nc.addr), matches!(nc.addr, IpAddr::V6(_))) {
        return Err(NONE);
    }
    let port = w.tables.vm_port_of(vni, vm.mac).ok_or(DropReason::VmPortNone)?;
    // The frame's own header names the sender.
    let nexthop = NexthopView { dmac: port.mac, smac: 0, mtu: port.mtu, ifindex: port.ifindex, ready: true };
    Ok(Path { tags: Some(Tags::NONE), ..Path::over(nexthop) })
}

impl<R: Recorder> Work<'_, R> {
    /// The port of a VM of this node, if the interface is one.
    #[inline(always)]
    pub fn vm_port(&self, ifindex: IfIndex) -> Option<VmPort> {
        match self.settings.edge {
            true => self.tables.vm_port(ifindex),
            false => None,
        }
    }
}
