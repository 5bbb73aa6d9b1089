// SPDX-License-Identifier: Apache-2.0
//! Route: (VNI, inner destination) to a scope by longest prefix, going on in the peer VPC where the route says so.

use abi::*;
use tables::{Tables, Tenant, VmEntry, Walk};

use crate::packet::{Kind, Next, Packet};
use crate::record::{Event, Recorder, Scope};
use crate::work::Work;
use crate::{Frame, Verdict};

/// Whether the VM-NC entry proves the route local: the destination is located then.
#[inline(always)]
pub(crate) fn proven<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet) -> bool {
    if root(&p.tenant, p.v6()) & ROOT_SIMPLE == 0 {
        return false;
    }
    let Some(vm) = lookup_vm(w.tables, p, &p.tenant) else { return false };
    p.vm = vm;
    p.located = true;
    if R::ON {
        note(w, p, SCOPE_LOCAL << VALUE_SCOPE_SHIFT, true);
    }
    true
}

/// The stage: the route tree is to be walked, by [`walk`] for the whole batch.
#[inline(always)]
pub(crate) fn run<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet) -> Result<(), Verdict> {
    w.walking += 1;
    tree(w, p)
}

/// Walks the route trees of all packets that are not located, a line of each at a time, so that the lines of all are
/// loaded together.
#[cold]
#[inline(never)]
pub(crate) fn walk<R: Recorder>(w: &mut Work<'_, R>, packets: &mut [Packet], frames: &mut [Frame<'_>]) {
    while w.walking > 0 {
        w.each(packets, frames, |w, p, _| match p.next {
            Next::Nothing | Next::Done | Next::Internet => Ok(()),
            Next::Tree(walk) => step(w, p, walk),
            Next::Peer { vni, bucket } => enter(w, p, vni, bucket),
            Next::Proof => prove(w, p),
        });
    }
    if w.sessions.is_some() {
        w.each(packets, frames, |w, p, f| match p.next {
            Next::Internet => crate::nat::outward::prepare(w, p, f),
            _ => Ok(()),
        });
    }
    w.each(packets, frames, |w, p, f| match p.next {
        Next::Done => super::locate::find(w, p, f),
        Next::Internet => {
            crate::nat::outward::run(w, p, f)?;
            super::locate::find(w, p, f)
        }
        _ => Ok(()),
    });
}

/// The ROUTE_ROOT of a family.
#[inline(always)]
fn root(tenant: &Tenant, v6: bool) -> u32 {
    match v6 {
        true => tenant.root6(),
        false => tenant.root4(),
    }
}

/// The visible VM-NC entry of the packet's target in a VPC.
#[inline(always)]
pub(crate) fn lookup_vm(tables: &Tables, p: &Packet, vpc: &Tenant) -> Option<VmEntry> {
    match p.kind {
        // What the packet's own VPC has was looked for when the packet was parsed.
        Kind::Ipv4 if p.hops == 0 => tables.vm4_from(p.vm_bucket, vpc, p.target.as_v4()),
        Kind::Ipv4 => tables.vm4(vpc.vni, p.target.as_v4(), vpc.generation()),
        _ => tables.vm6(vpc.vni, p.target.halves(), vpc.generation()),
    }
}

/// The walk is over.
fn end<R: Recorder>(w: &mut Work<'_, R>, reason: DropReason) -> Result<(), Verdict> {
    w.walking -= 1;
    Err(reason.into())
}

/// Begins at the root of the route tree of the VPC at hand.
fn tree<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet) -> Result<(), Verdict> {
    let Some(walk) = Walk::begin(root(p.dst_vpc(), p.v6())) else {
        if R::ON {
            note(w, p, 0, false);
        }
        return end(w, DropReason::RouteNone);
    };
    w.tables.prefetch_line(walk.line());
    w.tables.prefetch_line(walk.second_line());
    p.next = Next::Tree(walk);
    p.upper = true;
    Ok(())
}

/// Takes one step down; at the end decides.
fn step<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, mut walk: Walk) -> Result<(), Verdict> {
    let value = match (p.kind, p.upper) {
        (Kind::Ipv4, _) => w.tables.step4(&mut walk, p.target.as_v4()),
        (_, true) => w.tables.step6(&mut walk, p.target.hi),
        (_, false) => w.tables.step6(&mut walk, p.target.lo),
    };
    p.next = Next::Tree(walk);
    let Some(value) = value else { return Ok(()) };
    if p.kind != Kind::Ipv4 && p.upper {
        if let Some(lower) = w.tables.descend6(value) {
            p.next = Next::Tree(lower);
            p.upper = false;
            return Ok(());
        }
    }
    if R::ON {
        note(w, p, value, false);
    }
    decide(w, p, value)
}

/// Where the route leads.
fn decide<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, value: u32) -> Result<(), Verdict> {
    let reason = match value >> VALUE_SCOPE_SHIFT {
        SCOPE_LOCAL if value & VALUE_ARG_MASK != 0 => return via(w, p, value & VALUE_ARG_MASK),
        SCOPE_LOCAL => {
            p.next = Next::Done;
            w.walking -= 1;
            return Ok(());
        }
        SCOPE_PEER if u32::from(p.hops) >= PEER_HOPS_MAX => DropReason::RoutePeerLoop,
        SCOPE_PEER => {
            // What the peer's record will most likely ask for is its VM-NC entry.
            let vni = Vni(value & 0xff_ffff);
            p.next = Next::Peer { vni, bucket: w.tables.tenant_bucket(vni) };
            prefetch_vm(w.tables, p, vni);
            return Ok(());
        }
        SCOPE_BLACKHOLE => DropReason::RouteBlackhole,
        SCOPE_INTERNET if p.hops == 0 && p.policy & POLICY_NAT != 0 => {
            p.next = Next::Internet;
            w.walking -= 1;
            return Ok(());
        }
        SCOPE_INTERNET => DropReason::ScopeInternet,
        SCOPE_LINE if w.leave_by_line(p, value as u8).is_some() => {
            p.next = Next::Done;
            w.walking -= 1;
            return Ok(());
        }
        SCOPE_LINE => DropReason::ScopeLine,
        SCOPE_REGION => DropReason::ScopeRegion,
        SCOPE_NONE => DropReason::RouteNone,
        _ => DropReason::TableFault,
    };
    end(w, reason)
}

/// The destination is behind a VM of this VPC, a router, whose entry locate would find under an address that no packet has.
#[cold]
fn via<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, hop: u32) -> Result<(), Verdict> {
    let vpc = p.dst_vpc();
    match w.tables.vm4(vpc.vni, hop, vpc.generation()) {
        Some(vm) if vm.flags & VM_FLAG_GATEWAY == 0 => {
            (p.vm, p.located, p.next) = (vm, true, Next::Done);
            w.walking -= 1;
            Ok(())
        }
        _ => end(w, DropReason::VmUnknown),
    }
}

/// Goes on in a peer VPC: by proof, if there can be one.
fn enter<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, vni: Vni, bucket: LineNo) -> Result<(), Verdict> {
    let Some(peer) = w.tables.tenant_from(bucket, vni) else { return end(w, DropReason::RoutePeerGone) };
    p.peer = peer;
    p.hops += 1;
    if root(&peer, p.v6()) & ROOT_SIMPLE == 0 {
        return tree(w, p);
    }
    p.next = Next::Proof;
    Ok(())
}

/// A VM-NC entry proves the route in a peer VPC as it does in the packet's own.
fn prove<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet) -> Result<(), Verdict> {
    let Some(vm) = lookup_vm(w.tables, p, &p.peer) else { return tree(w, p) };
    p.vm = vm;
    p.located = true;
    p.next = Next::Done;
    w.walking -= 1;
    if R::ON {
        note(w, p, SCOPE_LOCAL << VALUE_SCOPE_SHIFT, true);
    }
    Ok(())
}

/// Of a destination in a peer VPC nothing was prefetched when the packet was parsed.
fn prefetch_vm(tables: &Tables, p: &Packet, vni: Vni) {
    match p.v6() {
        true => tables.prefetch_vm6(vni, p.target.halves()),
        false => tables.prefetch_vm4(vni, p.target.as_v4()),
    }
}

#[cold]
fn note<R: Recorder>(w: &mut Work<'_, R>, p: &Packet, value: u32, shortcut: bool) {
    let scope = Scope::from_number(value >> VALUE_SCOPE_SHIFT);
    let peer = match scope {
        Scope::Peer => Some(Vni(value & 0xff_ffff)).filter(|vni| w.tables.tenant(*vni).is_some()),
        _ => None,
    };
    w.note(
        p,
        Stage::Route,
        Event::Route { vni: p.dst_vpc().vni, destination: p.target.ip(p.v6()), scope, peer, shortcut },
    );
}
