// SPDX-License-Identifier: Apache-2.0
//! Route: (VNI, inner destination) to a scope by longest prefix, going on in the peer VPC where the route says so.

use abi::*;
use tables::{Tenant, VmEntry};

use crate::packet::{Addr, Packet};
use crate::record::{Event, Recorder, Scope};
use crate::work::Work;

/// The stage, over the batch.
pub(crate) fn run<R: Recorder>(w: &mut Work<'_, '_, R>) {
    w.each(|w, i| {
        let p = &mut w.packets[i as usize];
        p.home = p.tenant;
        let root = root(&p.tenant, p.v6());
        if root & ROOT_SIMPLE != 0 {
            if let Some(vm) = lookup_vm(w.tables, &p.tenant, p.target, p.v6()) {
                p.vm = vm;
                p.located = true;
                if R::ON {
                    note(w, i, p_vni(w, i), SCOPE_LOCAL << VALUE_SCOPE_SHIFT, true);
                }
                return Ok(());
            }
        }
        walk(w, i)?;
        Ok(())
    });
}

fn p_vni<R>(w: &Work<'_, '_, R>, i: u8) -> u32 {
    w.packets[i as usize].vni
}

/// The ROUTE_ROOT of a family.
#[inline(always)]
fn root(tenant: &Tenant, v6: bool) -> u32 {
    match v6 {
        true => tenant.root6(),
        false => tenant.root4(),
    }
}

/// The visible VM-NC entry of an address in a VPC.
#[inline(always)]
pub(crate) fn lookup_vm(tables: &tables::Tables, tenant: &Tenant, addr: Addr, v6: bool) -> Option<VmEntry> {
    match v6 {
        true => tables.vm6(tenant.vni, addr.halves(), tenant.generation()),
        false => tables.vm4(tenant.vni, addr.as_v4(), tenant.generation()),
    }
}

/// Looks the destination up in the VPC's routes, and on in those of its peers.
fn walk<R: Recorder>(w: &mut Work<'_, '_, R>, i: u8) -> Result<(), DropReason> {
    for _ in 0..=PEER_HOPS_MAX {
        let p = &w.packets[i as usize];
        let value = match p.v6() {
            true => w.tables.route6(p.home.root6(), p.target.halves()),
            false => w.tables.route4(p.home.root4(), p.target.as_v4()),
        };
        if R::ON {
            note(w, i, w.packets[i as usize].home.vni, value, false);
        }
        let p: &mut Packet = &mut w.packets[i as usize];
        match value >> VALUE_SCOPE_SHIFT {
            SCOPE_LOCAL => {
                // In a peer VPC nothing of the destination was prefetched.
                if p.home.line != p.tenant.line {
                    match p.v6() {
                        true => w.tables.prefetch_vm6(p.home.vni, p.target.halves()),
                        false => w.tables.prefetch_vm4(p.home.vni, p.target.as_v4()),
                    }
                }
                return Ok(());
            }
            SCOPE_PEER => {
                let peer = w.tables.tenant_at(value & VALUE_ARG_MASK);
                p.home = peer.ok_or(DropReason::RoutePeerGone)?;
            }
            SCOPE_BLACKHOLE => return Err(DropReason::RouteBlackhole),
            SCOPE_INTERNET => return Err(DropReason::ScopeInternet),
            SCOPE_LINE => return Err(DropReason::ScopeLine),
            SCOPE_REGION => return Err(DropReason::ScopeRegion),
            _ => return Err(DropReason::RouteNone),
        }
    }
    Err(DropReason::RoutePeerLoop)
}

#[cold]
fn note<R: Recorder>(w: &mut Work<'_, '_, R>, i: u8, vni: u32, value: u32, shortcut: bool) {
    let p = w.packets[i as usize];
    let scope = Scope::from_number(value >> VALUE_SCOPE_SHIFT);
    let peer = match scope {
        Scope::Peer => w.tables.tenant_at(value & VALUE_ARG_MASK).map(|t| t.vni),
        _ => None,
    };
    w.note(i, Stage::Route, Event::Route { vni, destination: p.target.ip(p.v6()), scope, peer, shortcut });
}
