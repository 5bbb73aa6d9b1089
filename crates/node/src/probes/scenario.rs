// SPDX-License-Identifier: Apache-2.0
//! Which probes a VPC gets: one of each scenario that its intent has, and what must become of each. Everything here comes of the model; nothing
//! of table memory is looked at.

use super::expect::{forwarded, neighbour_of, Change, Expected, Sent, Tunnel};
use crate::describe::Description;
use abi::{DropReason, Say, Vni, PEER_HOPS_MAX};
use compile::ConntrackPlan;
use conntrack::nat::{ElasticUse, PoolSpec, Protocol};
use filter::{oracle, service, Deny, GroupSpec, Side};
use model::{Gateway, Mac, Model, Prefix, Scope, VmView, VpcView};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use underlay::NexthopSpec;
use wire::protocol;

/// Routes of a VPC, in their order, that are looked at for destinations of each scope.
const ROUTES: usize = 256;
/// Ports of probes.
const PORTS: (u16, u16) = (40_000, 4789);

/// What probes are made of.
pub struct Ground<'a> {
    /// The intent.
    pub model: &'a Model,
    /// What of it concerns connections.
    pub plan: &'a ConntrackPlan,
    /// Its groups, as they were written.
    pub groups: &'a [Arc<GroupSpec>],
    /// The kernel's next hops to an address.
    pub paths: &'a dyn Fn(IpAddr) -> Vec<NexthopSpec>,
}

/// A probe.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Its scenario.
    pub scenario: String,
    /// The packet as `tunny trace` takes it; of one from the Internet none.
    pub packet: String,
    /// The frame.
    pub frame: Vec<u8>,
    /// What must become of it.
    pub expected: Expected,
    /// The fast path may leave it to the software path.
    pub may_punt: bool,
}

/// What a VPC gives.
#[derive(Debug, Default)]
pub struct Probes {
    /// Its probes.
    pub list: Vec<Probe>,
    /// Scenarios that could not be probed: an NC, or the router, that the kernel knows no way to.
    pub unreachable: Vec<String>,
    /// Those NCs, and that router.
    pub wanted: Vec<IpAddr>,
}

/// Where a packet to an address ends, by the routes of VPCs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Local(Vni),
    Dropped(DropReason),
    Internet,
}

/// Who sends a probe: its VM, and the VM's address.
#[derive(Clone, Copy)]
struct Sender<'a> {
    mac: Mac,
    vm: VmView<'a>,
    address: IpAddr,
    /// The address is a VM's, and not one beside it.
    real: bool,
}

impl<'a> Ground<'a> {
    /// Probes of a VPC; `choice` says which of its VMs they are about.
    pub fn probes(&self, vpc: VpcView<'a>, choice: u64) -> Probes {
        let mut probes = Probes::default();
        let Some(gateway) = self.model.gateway() else { return probes };
        let Some((mac, vm)) = vpc.vm_at(choice) else { return probes };
        // Once all VMs had their turn, their next addresses have theirs.
        let turn = choice / vpc.vms_len().max(1) as u64;
        for v6 in [false, true] {
            let Some(address) = address_of(vm, v6, turn) else { continue };
            let sender = self.sender(vpc, choice, (mac, vm), address);
            self.to_vm(&mut probes, gateway, vpc, sender, (vpc, mac, vm, address));
            if let Some((peer, mac, vm, address)) = self.peer(vpc, v6, choice) {
                self.to_vm(&mut probes, gateway, vpc, sender, (peer, mac, vm, address));
            }
            // What leaves the region is sent by the VM itself: translation asks who it is.
            let own = Sender { mac, vm, address, real: true };
            for destination in self.elsewhere(vpc, v6) {
                self.away(&mut probes, gateway, vpc, own, destination);
            }
        }
        self.inwards(&mut probes, gateway, vpc, choice);
        probes
    }

    /// Another VM of the VPC; or the same, by the name of an address beside its own.
    fn sender(&self, vpc: VpcView<'a>, choice: u64, (mac, vm): (Mac, VmView<'a>), address: IpAddr) -> Sender<'a> {
        let next = vpc.vm_at(choice + 1).filter(|(other, _)| *other != mac);
        let found = next.and_then(|(mac, vm)| Some((mac, vm, address_of(vm, address.is_ipv6(), 0)?)));
        match found {
            Some((mac, vm, address)) => Sender { mac, vm, address, real: true },
            None => Sender { mac, vm, address: neighbour_of(address), real: false },
        }
    }

    /// A VM of a peer that the VPC has a route to.
    fn peer(&self, vpc: VpcView<'a>, v6: bool, choice: u64) -> Option<(VpcView<'a>, Mac, VmView<'a>, IpAddr)> {
        let routes: Vec<(Prefix, Vni)> = vpc.peer_routes(v6).take(ROUTES).collect();
        let at = choice as usize % routes.len().max(1);
        routes[at..].iter().chain(&routes[..at]).find_map(|(prefix, vni)| {
            let address = self.model.vpc_of_vni(*vni)?.address_in(*prefix)?;
            let End::Local(vni) = self.end(vpc, address) else { return None };
            let peer = self.model.vpc_of_vni(vni).filter(|peer| peer.spec().vni != vpc.spec().vni)?;
            let (mac, vm) = peer.owner(address)?;
            Some((peer, mac, vm, address))
        })
    }

    /// Where the routes say that a packet goes: the longest prefix of each VPC on its way.
    fn end(&self, vpc: VpcView<'a>, address: IpAddr) -> End {
        let mut at = vpc;
        for _ in 0..=PEER_HOPS_MAX {
            let own = at.spec().vni == vpc.spec().vni;
            at = match longest(at, address) {
                None => return End::Dropped(DropReason::RouteNone),
                Some(Scope::Local) => return End::Local(at.spec().vni),
                Some(Scope::Blackhole) => return End::Dropped(DropReason::RouteBlackhole),
                Some(Scope::Line(_)) => return End::Dropped(DropReason::ScopeLine),
                Some(Scope::Region) => return End::Dropped(DropReason::ScopeRegion),
                Some(Scope::Internet) if own && self.policy(vpc) & abi::POLICY_NAT != 0 => return End::Internet,
                Some(Scope::Internet) => return End::Dropped(DropReason::ScopeInternet),
                Some(Scope::Peer(vni)) => match self.model.vpc_of_vni(vni) {
                    Some(peer) => peer,
                    None => return End::Dropped(DropReason::RoutePeerGone),
                },
            };
        }
        End::Dropped(DropReason::RoutePeerLoop)
    }

    fn policy(&self, vpc: VpcView<'a>) -> u64 {
        self.plan.policies.get(&vpc.spec().vni).copied().unwrap_or(0)
    }

    fn is_judged(&self, vpc: VpcView<'a>) -> bool {
        self.policy(vpc) & abi::POLICY_FILTER != 0
    }

    /// An address behind a route of each scope but local and peer.
    fn elsewhere(&self, vpc: VpcView<'a>, v6: bool) -> Vec<IpAddr> {
        let mut found: BTreeMap<&str, IpAddr> = BTreeMap::new();
        for (prefix, scope) in vpc.routes().filter(|(p, _)| p.addr().is_ipv6() == v6).take(ROUTES) {
            if matches!(scope, Scope::Local | Scope::Peer(_)) || found.contains_key(scope.name()) {
                continue;
            }
            let fits = |a: &IpAddr| is_forwarded(*a) && longest(vpc, *a) == Some(scope);
            let address = candidates(prefix).into_iter().find(fits);
            found.extend(address.map(|a| (scope.name(), a)));
        }
        found.into_values().collect()
    }

    /// From a VM to another one.
    fn to_vm(
        &self,
        probes: &mut Probes,
        gateway: &Gateway,
        vpc: VpcView<'a>,
        sender: Sender<'a>,
        (to, mac, vm, address): (VpcView<'a>, Mac, VmView<'a>, IpAddr),
    ) {
        let judged = self.is_judged(vpc) || self.is_judged(to);
        if judged && !sender.real || !is_forwarded(address) || !is_forwarded(sender.address) {
            return;
        }
        if self.end(vpc, address) != End::Local(to.spec().vni) {
            return;
        }
        let peer = to.spec().vni != vpc.spec().vni;
        let name = |framing: &str| {
            let (scope, family) = (if peer { "peer" } else { "local" }, family(address.is_ipv6()));
            format!("{scope} {family}{} {framing}", if judged { " groups" } else { "" })
        };
        let Some((packet, frame)) = self.frame(gateway, vpc, sender, address) else { return };
        let Some(tunnel) = tunnel(gateway, vm.nc, to.spec().vni) else { return };
        let scenario = name(framing(vm.nc));
        let Some(paths) = self.ready(vm.nc, &scenario, probes) else { return };
        let verdict = match judged {
            true => self.judge((vpc, sender.address), (to, address)),
            false => Ok(()),
        };
        let expected = match verdict {
            Err(reason) => Expected::Dropped(reason),
            Ok(()) => {
                let inner = forwarded(inner_packet(&frame), Change::default());
                let macs = (to.spec().gateway_mac.0, mac.0);
                Expected::Sent(Box::new(Sent::to_vm(&inner, macs, &tunnel, paths)))
            }
        };
        probes.list.push(Probe { scenario, packet, frame, expected, may_punt: judged });
    }

    /// What the rules say of a connection's first packet.
    fn judge(&self, from: (VpcView<'a>, IpAddr), to: (VpcView<'a>, IpAddr)) -> Result<(), DropReason> {
        let side = |(vpc, addr): (VpcView<'a>, IpAddr)| Side { vni: Some(vpc.spec().vni), addr };
        self.judge_sides(side(from), side(to))
    }

    fn judge_sides(&self, from: Side, to: Side) -> Result<(), DropReason> {
        let service = service(protocol::UDP, PORTS.1);
        let verdict = oracle::judge(self.groups, &self.plan.filter.members, from, to, service);
        verdict.map(drop).map_err(|deny| match deny {
            Deny::Egress => DropReason::FilterEgress,
            _ => DropReason::FilterIngress,
        })
    }

    /// From a VM to where a route of another scope leads.
    fn away(&self, probes: &mut Probes, gateway: &Gateway, vpc: VpcView<'a>, sender: Sender<'a>, destination: IpAddr) {
        let Some((packet, frame)) = self.frame(gateway, vpc, sender, destination) else { return };
        let v6 = destination.is_ipv6();
        let vni = vpc.spec().vni;
        let probe = |scenario: String, expected, may_punt| Probe {
            scenario,
            packet: packet.clone(),
            frame: frame.clone(),
            expected,
            may_punt,
        };
        match self.end(vpc, destination) {
            End::Local(_) => {}
            End::Dropped(reason) => {
                let scope = longest(vpc, destination).map_or("none", |s| s.name());
                let scenario = format!("{scope} {}", family(v6));
                probes.list.push(probe(scenario, Expected::Dropped(reason), false));
            }
            End::Internet => {
                let Some((service, source)) = self.translation(vpc, sender.address) else { return };
                let judged = if self.is_judged(vpc) { " groups" } else { "" };
                let scenario = format!("internet {} {service}{judged} plain", family(v6));
                let outside = Side { vni: None, addr: destination };
                let verdict = self.judge_sides(Side { vni: Some(vni), addr: sender.address }, outside);
                let Some(router) = gateway.via.each()[usize::from(v6)] else { return };
                let Some(paths) = self.ready(router, &scenario, probes) else { return };
                let expected = match (verdict, source) {
                    (Err(reason), _) => Expected::Dropped(reason),
                    (Ok(()), Source::Of(ranges)) => {
                        let inner = forwarded(inner_packet(&frame), Change::default());
                        Expected::Sent(Box::new(Sent::out(&inner, Some(ranges), paths)))
                    }
                    (Ok(()), Source::Is(source)) => {
                        let change = Change { source, ..Change::default() };
                        let inner = forwarded(inner_packet(&frame), change);
                        Expected::Sent(Box::new(Sent::out(&inner, None, paths)))
                    }
                };
                probes.list.push(probe(scenario, expected, true));
            }
        }
    }

    /// What stands for a VM outside: an elastic address of its own, an announced prefix, or pools. The ports of forwards are no probe's.
    fn translation(&self, vpc: VpcView<'a>, address: IpAddr) -> Option<(&'static str, Source)> {
        let vni = vpc.spec().vni;
        let snat = self.plan.spec.snats.iter().find(|s| s.vni == vni);
        match address {
            IpAddr::V4(a) => {
                let own = |e: &&conntrack::nat::ElasticSpec| e.vni == vni && e.usage == ElasticUse::Vm(a.to_bits());
                if let Some(e) = self.plan.spec.elastics.iter().find(own) {
                    return Some(("elastic", Source::Is(Some(Ipv4Addr::from_bits(e.addr).into()))));
                }
                let pools = snat?.pools.iter().filter_map(|p| self.plan.spec.pools.get(*p));
                // Of a pool of which this node has nothing yet there is nothing to show: it is given some once it is admitted.
                let given = |p: &PoolSpec| match &p.shares {
                    None => p.ranges.clone(),
                    Some(all) => all.iter().filter(|s| !s.leaving).map(|s| s.addresses).collect(),
                };
                let ranges: Vec<(u32, u32)> = pools.flat_map(given).collect();
                (!ranges.is_empty()).then_some(("snat", Source::Of(ranges)))
            }
            IpAddr::V6(a) => {
                let a = a.to_bits();
                let announced = snat?.ipv6.iter().any(|(first, last)| (*first..=*last).contains(&a));
                announced.then_some(("announced", Source::Is(None)))
            }
        }
    }

    /// From the Internet to an elastic address, and to a forwarded port, of the VPC.
    fn inwards(&self, probes: &mut Probes, gateway: &Gateway, vpc: VpcView<'a>, choice: u64) {
        let vni = vpc.spec().vni;
        let outside = vpc.routes().take(ROUTES).filter(|(p, s)| *s == Scope::Internet && p.addr().is_ipv4());
        let remote = outside.flat_map(|(p, _)| candidates(p)).find(|a| self.end(vpc, *a) == End::Internet);
        let (Some(remote), Some(router)) = (remote.filter(|a| is_forwarded(*a)), gateway.via.each()[0]) else { return };
        let mine: Vec<_> = self.plan.spec.elastics.iter().filter(|e| e.vni == vni).collect();
        let Some(elastic) = mine.get(choice as usize % mine.len().max(1)) else { return };
        let (service, vm, port, to) = match &elastic.usage {
            ElasticUse::Vm(vm) => ("elastic-in", *vm, PORTS.1, None),
            ElasticUse::Forwards(list) => {
                let Some(f) = list.iter().find(|f| f.protocol == Protocol::Udp) else { return };
                ("forward-in", f.vm_addr, f.first, Some(f.vm_port))
            }
        };
        let address = IpAddr::from(Ipv4Addr::from_bits(vm));
        let Some((mac, vm)) = vpc.owner(address) else { return };
        let Some(tunnel) = tunnel(gateway, vm.nc, vni) else { return };
        let judged = if self.is_judged(vpc) { " groups" } else { "" };
        let scenario = format!("internet ipv4 {service}{judged} {}", framing(vm.nc));
        let Some(paths) = self.ready(vm.nc, &scenario, probes) else { return };
        let public = Ipv4Addr::from_bits(elastic.addr);
        let text = format!("plain src={remote} dst={public} udp sport={} dport={port}", PORTS.0);
        let Some(frame) = text.parse::<Description>().ok().and_then(|d| d.frame(0, 0, 0).ok()) else { return };
        // The frame comes from the router.
        let Some(hop) = (self.paths)(router).into_iter().find(|hop| hop.dmac.is_some()) else { return };
        let frame = addressed(frame, &hop);
        let change = Change { destination: Some((address, to)), ..Change::default() };
        let inner = forwarded(&frame[wire::ethernet::HEADER_LEN..], change);
        let service = filter::service(protocol::UDP, to.unwrap_or(port));
        let sides = (Side { vni: None, addr: remote }, Side { vni: Some(vni), addr: address });
        let members = &self.plan.filter.members;
        let expected = match oracle::judge(self.groups, members, sides.0, sides.1, service) {
            Ok(_) => {
                let macs = (vpc.spec().gateway_mac.0, mac.0);
                Expected::Sent(Box::new(Sent::to_vm(&inner, macs, &tunnel, paths)))
            }
            Err(_) => Expected::Dropped(DropReason::FilterIngress),
        };
        probes.list.push(Probe { scenario, packet: text, frame, expected, may_punt: true });
    }

    /// The next hops to an address, if one of them can be used.
    fn ready(&self, to: IpAddr, scenario: &str, probes: &mut Probes) -> Option<Vec<NexthopSpec>> {
        let paths = (self.paths)(to);
        // Any of them may be taken: as long as one is not ready, the outcome cannot be told.
        if !paths.is_empty() && paths.iter().all(|hop| hop.dmac.is_some()) {
            return Some(paths);
        }
        probes.unreachable.push(scenario.into());
        probes.wanted.push(to);
        None
    }

    /// What a VM sends: as a description, and as the frame that its NC makes of it.
    fn frame(&self, gateway: &Gateway, vpc: VpcView<'a>, sender: Sender<'a>, to: IpAddr) -> Option<(String, Vec<u8>)> {
        let (vni, from) = (vpc.spec().vni, sender.vm.nc);
        let vtep = if from.is_ipv4() { gateway.vtep4.map(IpAddr::V4) } else { gateway.vtep6.map(IpAddr::V6) }?;
        let text = format!(
            "vni={vni} src={} dst={to} udp sport={} dport={} smac={} dmac={} from={from} to={vtep}",
            sender.address,
            PORTS.0,
            PORTS.1,
            sender.mac,
            vpc.spec().gateway_mac
        );
        let mut frame = text.parse::<Description>().ok()?.frame(0, 0, gateway.vxlan_port).ok()?;
        if let (IpAddr::V6(from), IpAddr::V6(vtep), true) = (from, vtep, gateway.udp6_zero_refused) {
            let at = wire::ethernet::HEADER_LEN + wire::ipv6::HEADER_LEN;
            wire::udp::Packet::new_unchecked(&mut frame[at..]).fill_checksum_v6(from.to_bits(), vtep.to_bits());
        }
        Some((text, frame))
    }
}

/// What a translation makes of a source.
enum Source {
    /// One of these addresses.
    Of(Vec<(u32, u32)>),
    /// This one, or it stays.
    Is(Option<IpAddr>),
}

/// The IP packet in a frame of a VM.
fn inner_packet(frame: &[u8]) -> &[u8] {
    let outer = if frame[12..14] == [0x08, 0x00] { wire::ipv4::HEADER_LEN } else { wire::ipv6::HEADER_LEN };
    let heads = wire::udp::HEADER_LEN + wire::vxlan::HEADER_LEN + 2 * wire::ethernet::HEADER_LEN;
    &frame[outer + heads..]
}

/// A frame that a next hop sends to the gateway.
fn addressed(mut frame: Vec<u8>, from: &NexthopSpec) -> Vec<u8> {
    wire::be::set_mac(&mut frame, 0, from.smac);
    wire::be::set_mac(&mut frame, 6, from.dmac.unwrap_or(0));
    frame
}

fn tunnel(gateway: &Gateway, nc: IpAddr, vni: Vni) -> Option<Tunnel> {
    let (from, checksum) = match nc {
        IpAddr::V4(_) => (gateway.vtep4.map(IpAddr::V4)?, gateway.udp4_checksum),
        IpAddr::V6(_) => (gateway.vtep6.map(IpAddr::V6)?, gateway.udp6_checksum),
    };
    // Pipe: the configured value; uniform: that of the probe, which is none.
    let tos = if gateway.dscp_uniform { 0 } else { gateway.dscp << 2 };
    Some(Tunnel { from, to: nc, vni, port: gateway.vxlan_port, tos, checksum })
}

fn family(v6: bool) -> &'static str {
    if v6 {
        "ipv6"
    } else {
        "ipv4"
    }
}

fn framing(nc: IpAddr) -> &'static str {
    if nc.is_ipv6() {
        "vxlan6"
    } else {
        "vxlan4"
    }
}

/// One of a VM's addresses of a family.
fn address_of(vm: VmView<'_>, v6: bool, choice: u64) -> Option<IpAddr> {
    let of: Vec<IpAddr> = vm.addresses.iter().copied().filter(|a| a.is_ipv6() == v6 && is_forwarded(*a)).collect();
    of.get(choice as usize % of.len().max(1)).copied()
}

/// Whether any packet with an address is forwarded.
fn is_forwarded(address: IpAddr) -> bool {
    abi::special(address).is_none_or(|s| s.source == Say::Go && s.destination == Say::Go)
}

/// The longest prefix of a VPC's routes that has an address.
fn longest(vpc: VpcView<'_>, address: IpAddr) -> Option<Scope<Vni>> {
    let bits = if address.is_ipv4() { 32 } else { 128 };
    (0..=bits).rev().find_map(|length| vpc.route(Prefix::new(address, length).ok()?.trunc()))
}

/// Addresses in a prefix that may be asked for: for all of a family's one that is somebody's, else those near its ends.
fn candidates(prefix: Prefix) -> Vec<IpAddr> {
    match (prefix.network(), prefix.broadcast()) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let (a, b) = (a.to_bits(), b.to_bits());
            let list = [0x0808_0808, a.saturating_add(1).min(b), b.saturating_sub(1).max(a), a];
            list.into_iter().filter(|x| (a..=b).contains(x)).map(|x| Ipv4Addr::from_bits(x).into()).collect()
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let (a, b) = (a.to_bits(), b.to_bits());
            let known = 0x2001_4860_4860_0000_0000_0000_0000_8888;
            let list = [known, a.saturating_add(1).min(b), b.saturating_sub(1).max(a), a];
            list.into_iter().filter(|x| (a..=b).contains(x)).map(|x| Ipv6Addr::from_bits(x).into()).collect()
        }
        _ => Vec::new(),
    }
}

/// The groups of a plan, as they were written.
pub fn written(plan: &ConntrackPlan) -> Vec<Arc<GroupSpec>> {
    plan.filter.groups.iter().map(|group| group.spec().clone()).collect()
}
