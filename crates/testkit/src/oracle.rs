// SPDX-License-Identifier: Apache-2.0
//! A deliberately naive third opinion on route and locate: linear scans over the configuration, no table at all.

use crate::edge::Circuit;
use crate::region::*;
use abi::DropReason;
use std::net::IpAddr;

/// Where a packet ends up, by the configuration alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'r> {
    /// A VM, in this VPC.
    Vm(&'r Vpc, &'r Vm),
    /// The gateway's own address in this VPC.
    Gateway(&'r Vpc),
    /// A customer's line, of this VPC.
    Line(&'r Vpc, &'r Circuit),
    /// Nowhere.
    Nowhere(DropReason),
}

/// Follows `dst` from the VPC `vni`: route with peer hops, then the VM-NC table (stages route and locate, step 1 and 2).
pub fn place(region: &Region, vni: u32, dst: IpAddr) -> Place<'_> {
    let Some(mut vpc) = region.vpc(vni) else { return Place::Nowhere(DropReason::VniUnknown) };
    let mut hops = 0;
    loop {
        let best = vpc.routes.iter().filter(|(p, _)| p.covers(dst)).max_by_key(|(p, _)| p.len);
        match best.map(|(_, target)| *target) {
            None => return Place::Nowhere(DropReason::RouteNone),
            Some(Target::Blackhole) => return Place::Nowhere(DropReason::RouteBlackhole),
            Some(Target::Internet) => return Place::Nowhere(DropReason::ScopeInternet),
            Some(Target::Line(line)) => {
                let of = |c: &&Circuit| (c.vni, c.line) == (vpc.vni, line) && region.tag_bytes(c).is_some();
                let circuit = region.edge.circuits.iter().find(of);
                return circuit.map_or(Place::Nowhere(DropReason::ScopeLine), |c| Place::Line(vpc, c));
            }
            Some(Target::Via(hop)) => {
                let at = std::net::Ipv4Addr::from_bits(hop);
                let router = vpc.vms.iter().find(|vm| vm.v4 == Some(at));
                return router.map_or(Place::Nowhere(DropReason::VmUnknown), |vm| Place::Vm(vpc, vm));
            }
            Some(Target::Region) => return Place::Nowhere(DropReason::ScopeRegion),
            Some(Target::Local) => break,
            Some(Target::Peer(_)) if hops == abi::PEER_HOPS_MAX => return Place::Nowhere(DropReason::RoutePeerLoop),
            Some(Target::Peer(peer)) => match region.vpc(peer) {
                Some(next) => vpc = next,
                None => return Place::Nowhere(DropReason::RoutePeerGone),
            },
        }
        hops += 1;
    }
    if vpc.gateways.contains(&dst) {
        return Place::Gateway(vpc);
    }
    let has = |vm: &&Vm| vm.v4.map(IpAddr::V4) == Some(dst) || vm.v6.map(IpAddr::V6) == Some(dst);
    match vpc.vms.iter().find(has) {
        Some(vm) => Place::Vm(vpc, vm),
        None => Place::Nowhere(DropReason::VmUnknown),
    }
}

/// The circuit that a frame came by at an edge port: its tags, but for priority and DEI, are those of the circuit. And where the frame goes on.
pub fn circuit<'r>(region: &'r Region, port: u32, frame: &[u8]) -> Option<(&'r Circuit, usize)> {
    let is = |c: &&Circuit| {
        let Some(tags) = region.tag_bytes(c).filter(|_| c.port == port) else { return false };
        let masks = [0xff, 0xff, 0x0f, 0xff].iter().cycle();
        let there = frame.get(12..12 + tags.len());
        there.is_some_and(|b| b.iter().zip(&tags).zip(masks).all(|((b, t), mask)| b & mask == t & mask))
    };
    region.edge.circuits.iter().find(is).map(|c| (c, 4 * c.tags.len()))
}

/// May this inner source send for the VPC by a line: is what it is in behind one?
pub fn behind_a_line(region: &Region, vni: u32, source: IpAddr) -> bool {
    let routes = region.vpc(vni).map_or(&[][..], |v| &v.routes);
    let best = routes.iter().filter(|(p, _)| p.covers(source)).max_by_key(|(p, _)| p.len);
    matches!(best, Some((_, Target::Line(_))))
}

/// May this outer source send for the VPC (tenant, step 2)?
pub fn may_send(region: &Region, vni: u32, source: IpAddr) -> Result<(), DropReason> {
    if region.switches & abi::OPT_SOURCE_STRICT == 0 {
        return Ok(());
    }
    if region.nc(source).is_none() {
        return Err(DropReason::SourceUnknown);
    }
    let hosts = |v: &Vpc| v.vms.iter().any(|m| m.nc == source) || v.extra_ncs.contains(&source);
    match region.vpc(vni) {
        Some(vpc) if hosts(vpc) => Ok(()),
        Some(_) => Err(DropReason::SourceNotHosting),
        None => Err(DropReason::VniUnknown),
    }
}
