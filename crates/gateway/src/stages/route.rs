// SPDX-License-Identifier: Apache-2.0
//! Route: (VNI, inner destination) to a scope by longest prefix, going on in the peer VPC where the route says so.

use abi::*;
use tables::{Tables, Tenant, VmEntry, Walk};

use crate::packet::{Kind, Packet};
use crate::record::{Event, Recorder, Scope};
use crate::work::Work;
use crate::Verdict;

/// The stage. True if the VM-NC entry proved the route local, so that the destination is located already; else the walk
/// of the route tree begins, and [`walk`] goes on with it for the batch.
#[inline(always)]
pub(crate) fn run<R: Recorder>(w: &mut Work<'_, '_, R>, i: u8) -> Result<bool, Verdict> {
    let tables = w.tables;
    let p = &mut w.packets[i as usize];
    p.home = p.tenant;
    if root(&p.tenant, p.v6()) & ROOT_SIMPLE != 0 {
        if let Some(vm) = lookup_vm(tables, p, &p.tenant) {
            p.vm = vm;
            p.located = true;
            if R::ON {
                note(w, i, SCOPE_LOCAL << VALUE_SCOPE_SHIFT, true);
            }
            return Ok(true);
        }
    }
    begin(w, i)?;
    Ok(false)
}

/// Walks the route trees of all packets that are not located, a level of each at a time, so that the lines of all are
/// loaded together.
#[cold]
#[inline(never)]
pub(crate) fn walk<R: Recorder>(w: &mut Work<'_, '_, R>) {
    while w.walking > 0 {
        w.each(|w, i| match w.packets[i as usize].walk {
            Some(_) => step(w, i),
            None => Ok(()),
        });
    }
    w.each(|w, i| match w.packets[i as usize].located {
        true => Ok(()),
        false => super::locate::find(w, i),
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
        Kind::Ipv4 if vpc.line == p.tenant.line => {
            tables.vm4_from(p.vm_home, vpc, p.target.as_v4())
        }
        Kind::Ipv4 => tables.vm4(vpc.vni, p.target.as_v4(), vpc.generation()),
        _ => tables.vm6(vpc.vni, p.target.halves(), vpc.generation()),
    }
}

/// Begins at the root of the VPC at hand.
fn begin<R: Recorder>(w: &mut Work<'_, '_, R>, i: u8) -> Result<(), Verdict> {
    let p = &mut w.packets[i as usize];
    let was = p.walk.is_some();
    p.walk = Walk::begin(root(&p.home, p.v6()));
    match p.walk {
        Some(walk) => {
            w.tables.prefetch_line(walk.line());
            p.upper = true;
            w.walking += usize::from(!was);
            Ok(())
        }
        None => {
            w.walking -= usize::from(was);
            if R::ON {
                note(w, i, 0, false);
            }
            Err(DropReason::RouteNone.into())
        }
    }
}

/// Takes one step down; at the end decides.
fn step<R: Recorder>(w: &mut Work<'_, '_, R>, i: u8) -> Result<(), Verdict> {
    let p = &mut w.packets[i as usize];
    let Some(walk) = &mut p.walk else { return Ok(()) };
    let value = match (p.kind, p.upper) {
        (Kind::Ipv4, _) => w.tables.step4(walk, p.target.as_v4()),
        (_, true) => w.tables.step6(walk, p.target.hi),
        (_, false) => w.tables.step6(walk, p.target.lo),
    };
    let Some(value) = value else { return Ok(()) };
    if p.kind != Kind::Ipv4 && p.upper {
        if let Some(lower) = w.tables.descend6(value) {
            *walk = lower;
            p.upper = false;
            return Ok(());
        }
    }
    if R::ON {
        note(w, i, value, false);
    }
    decide(w, i, value)
}

/// Where the route leads.
fn decide<R: Recorder>(w: &mut Work<'_, '_, R>, i: u8, value: u32) -> Result<(), Verdict> {
    let p = &mut w.packets[i as usize];
    let reason = match value >> VALUE_SCOPE_SHIFT {
        SCOPE_LOCAL => {
            // In a peer VPC nothing of the destination was prefetched.
            if p.home.line != p.tenant.line {
                match p.v6() {
                    true => w.tables.prefetch_vm6(p.home.vni, p.target.halves()),
                    false => w.tables.prefetch_vm4(p.home.vni, p.target.as_v4()),
                }
            }
            p.walk = None;
            w.walking -= 1;
            return Ok(());
        }
        SCOPE_PEER if p.hops >= PEER_HOPS_MAX => DropReason::RoutePeerLoop,
        SCOPE_PEER => match w.tables.tenant_at(value & VALUE_ARG_MASK) {
            Some(peer) => {
                p.home = peer;
                p.hops += 1;
                return begin(w, i);
            }
            None => DropReason::RoutePeerGone,
        },
        SCOPE_BLACKHOLE => DropReason::RouteBlackhole,
        SCOPE_INTERNET => DropReason::ScopeInternet,
        SCOPE_LINE => DropReason::ScopeLine,
        SCOPE_REGION => DropReason::ScopeRegion,
        _ => DropReason::RouteNone,
    };
    w.walking -= 1;
    Err(reason.into())
}

#[cold]
fn note<R: Recorder>(w: &mut Work<'_, '_, R>, i: u8, value: u32, shortcut: bool) {
    let p = w.packets[i as usize];
    let scope = Scope::from_number(value >> VALUE_SCOPE_SHIFT);
    let peer = match scope {
        Scope::Peer => w.tables.tenant_at(value & VALUE_ARG_MASK).map(|t| t.vni),
        _ => None,
    };
    w.note(i, Stage::Route, Event::Route { vni: p.home.vni, destination: p.target.ip(p.v6()), scope, peer, shortcut });
}
