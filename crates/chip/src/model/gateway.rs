// SPDX-License-Identifier: Apache-2.0
//! Packets through the compressed tables, stage by stage: parse → tenant → route → locate → rewrite → emit.
//!
//! The chip decides what a pipeline can: it forwards unicast IPv4 and IPv6 in VXLAN over either, to a VM of this VPC or a peer,
//! and drops what is malformed, unknown or forbidden, each with the bytes, the verdict and the reason of crate `gateway`. What
//! it cannot do (sums over payloads, packets of its own, sessions) it hands over and says why ([`Handover`]); that is
//! XGW-x86's part in Sailfish. If entries are divided between the halves of the chip, a packet goes on in the half that holds
//! what it needs next. Routes and VM addresses come from the compressed tables and nowhere else; tenants, NCs and next hops,
//! small tables that are stored whole, are read from table memory.

use super::key::Address;
pub use super::outcome::{Handover, Outcome};
use super::parse::{self, Inner, Outer, Own};
use super::routes::Routes;
use super::vms::Vms;
use crate::technique::Split;
use abi::*;
use std::net::IpAddr;
use tables::{Color, NexthopView, Tables, Target, Tenant, VmEntry};
use wire::{checksum, ethernet, ipv4, ipv6, protocol, udp, vxlan};

/// The large tables of a half of the chip; of all of it if entries are not divided.
pub struct Half {
    /// Routes.
    pub routes: Routes,
    /// VM addresses.
    pub vms: Vms,
}

/// The chip with a gateway's tables.
pub struct ChipGateway {
    tables: Tables,
    halves: Vec<Half>,
    split: Option<Split>,
    targets: Vec<Target>,
    entries: Vec<VmEntry>,
}

/// What the stages know of a packet.
struct Packet<'a> {
    outer: Outer<'a>,
    inner: Inner,
    target: Address,
    /// The VPC that it came from.
    tenant: Tenant,
    /// VPCs that it went on to.
    hops: u32,
    /// The half that it is in.
    half: usize,
    turns: u8,
}

/// The way out.
struct Path {
    remote: IpAddr,
    hop: NexthopView,
}

type Stage<T> = Result<T, Outcome>;

/// Bytes of UDP and VXLAN.
const TUNNEL: usize = udp::HEADER_LEN + vxlan::HEADER_LEN;

/// The half that holds an address's entries.
pub fn half_of(split: Option<Split>, a: &Address) -> usize {
    match split {
        None => 0,
        Some(Split::Vni) => a.vni as usize & 1,
        Some(Split::Address) => a.addr as usize & 1,
    }
}

impl ChipGateway {
    /// A chip with these tables; `targets` and `entries` are what the values index. Divided there are two halves.
    pub fn new(
        tables: Tables,
        halves: Vec<Half>,
        split: Option<Split>,
        targets: Vec<Target>,
        entries: Vec<VmEntry>,
    ) -> ChipGateway {
        ChipGateway { tables, halves, split, targets, entries }
    }

    /// The halves.
    pub fn halves(&self) -> &[Half] {
        &self.halves
    }

    /// Processes a frame that comes at `now` (nanoseconds, for meters); if it is forwarded, `out` holds what is sent.
    pub fn process(&self, frame: &[u8], now: u64, out: &mut Vec<u8>) -> Outcome {
        let _inside = self.tables.enter();
        self.stages(frame, now, out).unwrap_or_else(|end| end)
    }

    fn stages(&self, frame: &[u8], now: u64, out: &mut Vec<u8>) -> Stage<Outcome> {
        let own = Own::read(&self.tables);
        if own.on(OPT_INLINE) {
            return Err(Handover::Filtered.into());
        }
        let outer = parse::outer(frame, &own)?;
        let mut p = self.tenant(outer, &own)?;
        let dst_vpc = self.route(&mut p, &own)?;
        let vm = self.locate(&p, &dst_vpc, &own)?;
        let path = self.path(&p, &vm, &own)?;
        self.meter(&p, &vm, now)?;
        self.rewrite(&p, &dst_vpc, &vm, &path, &own, out)
    }

    /// The VPC, whether the outer source may send for it, and what is wrong with the inner frame.
    fn tenant<'a>(&self, outer: Outer<'a>, own: &Own) -> Stage<Packet<'a>> {
        let tenant = self.tables.tenant(Vni(outer.vni)).ok_or(DropReason::VniUnknown)?;
        if own.on(OPT_SOURCE_STRICT) {
            self.may_send(&outer)?;
        }
        let inner = parse::inner(outer.inner, outer.tos, own)?;
        let target = Address { vni: outer.vni, v6: inner.v6, addr: inner.dst };
        let half = half_of(self.split, &target);
        Ok(Packet { outer, inner, target, tenant, hops: 0, half, turns: 0 })
    }

    /// The outer source hosts VMs of the VPC.
    fn may_send(&self, o: &Outer<'_>) -> Result<(), DropReason> {
        let (nc, hosts) = match o.source {
            IpAddr::V4(a) => (self.tables.nc_by_addr4(a.to_bits()), self.tables.may_send4(Vni(o.vni), a.to_bits())),
            IpAddr::V6(a) => {
                let a = a.to_bits();
                let nc = self.tables.nc_by_addr6(((a >> 64) as u64, a as u64));
                (nc, nc.is_some_and(|nc| self.tables.may_send6(Vni(o.vni), nc)))
            }
        };
        match (hosts, nc) {
            (true, _) => Ok(()),
            (false, Some(_)) => Err(DropReason::SourceNotHosting),
            (false, None) => Err(DropReason::SourceUnknown),
        }
    }

    /// A drop that the sender is told of, if the VPC has ICMP errors and an address to send them from.
    fn drop_told(&self, p: &Packet<'_>, own: &Own, reason: DropReason, due: Handover) -> Outcome {
        let silent = !own.on(OPT_ICMP)
            || self.tables.tenant_ident(&p.tenant) & TENANT_ICMP_OFF != 0
            || match p.target.v6 {
                true => self.tables.gateway6(&p.tenant) == (0, 0),
                false => self.tables.gateway4(&p.tenant) == 0,
            };
        match silent {
            true => reason.into(),
            false => due.into(),
        }
    }

    /// A session may know a way for the packet that no route tells.
    fn session(&self, p: &Packet<'_>) -> bool {
        p.tenant.key & TENANT_NAT != 0
    }

    /// Longest prefix in the compressed table, on from peer to peer.
    fn route(&self, p: &mut Packet<'_>, own: &Own) -> Stage<Tenant> {
        let mut dst_vpc = p.tenant;
        loop {
            p.target.vni = dst_vpc.vni.0;
            let half = half_of(self.split, &p.target);
            p.turns += u8::from(half != p.half);
            p.half = half;
            let tables = self.halves.get(half).ok_or(Handover::Fault)?;
            let target = tables.routes.lookup(&p.target).and_then(|v| self.targets.get(v as usize));
            let reason = match target {
                Some(Target::Local) if p.hops == 0 || !self.session(p) => return Ok(dst_vpc),
                _ if self.session(p) => return Err(Handover::Session.into()),
                Some(Target::Peer(_)) if p.hops >= PEER_HOPS_MAX => DropReason::RoutePeerLoop,
                Some(Target::Peer(vni)) => {
                    dst_vpc = self.tables.tenant(*vni).ok_or(DropReason::RoutePeerGone)?;
                    p.hops += 1;
                    continue;
                }
                Some(Target::Blackhole) => DropReason::RouteBlackhole,
                Some(Target::Internet) => DropReason::ScopeInternet,
                Some(Target::Line(_)) => DropReason::ScopeLine,
                Some(Target::Via(_)) => return Err(Handover::Router.into()),
                Some(Target::Region) => DropReason::ScopeRegion,
                Some(Target::Local) | None => DropReason::RouteNone,
            };
            return Err(match reason {
                DropReason::RouteNone => self.drop_told(p, own, reason, Handover::IcmpDue),
                other => other.into(),
            });
        }
    }

    /// The VM in the compressed table.
    fn locate(&self, p: &Packet<'_>, dst_vpc: &Tenant, own: &Own) -> Stage<VmEntry> {
        let half = self.halves.get(p.half).ok_or(Handover::Fault)?;
        let vm = half.vms.lookup(&p.target).and_then(|v| self.entries.get(v as usize));
        let root = if p.target.v6 { p.tenant.root6() } else { p.tenant.root4() };
        if self.session(p) && (vm.is_none() || root & ROOT_SIMPLE == 0) {
            return Err(Handover::Session.into());
        }
        let vm = vm.ok_or_else(|| self.drop_told(p, own, DropReason::VmUnknown, Handover::IcmpDue))?;
        if vm.flags & VM_FLAG_GATEWAY != 0 {
            return Err(Handover::Answer.into());
        }
        if p.inner.ttl <= 1 {
            return Err(self.drop_told(p, own, DropReason::TtlExpired, Handover::IcmpDue));
        }
        if (p.tenant.key | dst_vpc.key) & TENANT_FILTERED != 0 {
            return Err(Handover::Filtered.into());
        }
        Ok(*vm)
    }

    /// The next hop, and whether the packet fits it.
    fn path(&self, p: &Packet<'_>, vm: &VmEntry, own: &Own) -> Stage<Path> {
        let nc = self.tables.nc(vm.nc).ok_or(DropReason::UnderlayNoRoute)?;
        let v6 = nc.addr.is_ipv6();
        let no_vtep = if v6 { own.vtep6() == 0 } else { own.vtep4() == 0 };
        if no_vtep || nc.group == LineNo(0) {
            return Err(DropReason::UnderlayNoRoute.into());
        }
        let line = self.tables.group_member(nc.group, p.inner.flow);
        if line == LineNo(0) {
            return Err(DropReason::UnderlayNoRoute.into());
        }
        let hop = self.tables.nexthop(line);
        if !hop.ready {
            return Err(Outcome::Unresolved { nexthop: line.0 });
        }
        let outer_ip = if v6 { ipv6::HEADER_LEN } else { ipv4::HEADER_LEN };
        if outer_ip + TUNNEL + p.outer.inner.len() > usize::from(hop.mtu) {
            return Err(match p.inner.whole {
                true => self.drop_told(p, own, DropReason::TooBig, Handover::TooBig),
                false => Handover::TooBig.into(),
            });
        }
        if own.on(if v6 { OPT_UDP6_CHECKSUM } else { OPT_UDP4_CHECKSUM }) {
            return Err(Handover::Checksum.into());
        }
        Ok(Path { remote: nc.addr, hop })
    }

    /// Meters of the VPC and of the VM: what software sends leaves through the chip, so they count that too.
    fn meter(&self, p: &Packet<'_>, vm: &VmEntry, now: u64) -> Result<(), DropReason> {
        let of_vm = if vm.flags & VM_FLAG_METERED != 0 { self.tables.vm_meter(vm.vm) } else { LineNo(0) };
        let bytes = p.outer.inner.len() as u32;
        for (line, reason) in
            [(self.tables.tenant_meter(&p.tenant), DropReason::MeterVpc), (of_vm, DropReason::MeterVm)]
        {
            if self.tables.meter(line, bytes, now) == Color::Red {
                return Err(reason);
            }
        }
        Ok(())
    }

    fn rewrite(
        &self,
        p: &Packet<'_>,
        dst_vpc: &Tenant,
        vm: &VmEntry,
        path: &Path,
        own: &Own,
        out: &mut Vec<u8>,
    ) -> Stage<Outcome> {
        let uniform = own.on(OPT_DSCP_UNIFORM);
        let dscp = if uniform { p.outer.tos & 0xfc } else { p.inner.tos & 0xfc };
        let configured = ((own.options >> OPT_DSCP_SHIFT) as u8 & 0x3f) << 2;
        let ecn = if own.on(OPT_ECN_OFF) { 0 } else { p.inner.ecn };
        let tos = if uniform { dscp } else { configured } | ecn;
        let v6 = path.remote.is_ipv6();
        let ethertype = if v6 { ethernet::ethertype::IPV6 } else { ethernet::ethertype::IPV4 };
        let head = ethernet::HEADER_LEN + if v6 { ipv6::HEADER_LEN } else { ipv4::HEADER_LEN };
        out.clear();
        out.resize(head + TUNNEL, 0);
        out.extend_from_slice(p.outer.inner);
        let eth = ethernet::Repr { dst: path.hop.dmac, src: path.hop.smac, ethertype };
        eth.emit(out.first_chunk_mut().ok_or(Handover::Fault)?);
        outer_ip(p, path, own, tos, &mut out[ethernet::HEADER_LEN..]).ok_or(Handover::Fault)?;
        let payload_len = vxlan::HEADER_LEN + p.outer.inner.len();
        let u = udp::Repr { src_port: source_port(p.inner.flow), dst_port: own.port(), payload_len };
        u.emit(out[head..].first_chunk_mut().ok_or(Handover::Fault)?);
        let v = vxlan::Repr { vni: dst_vpc.vni };
        v.emit(out[head + udp::HEADER_LEN..].first_chunk_mut().ok_or(Handover::Fault)?);
        self.rewrite_inner(p, dst_vpc, vm, dscp | p.inner.ecn, &mut out[head + TUNNEL..]);
        Ok(Outcome::Forward { ifindex: path.hop.ifindex.0, turns: p.turns })
    }

    fn rewrite_inner(&self, p: &Packet<'_>, dst_vpc: &Tenant, vm: &VmEntry, tos: u8, inner: &mut [u8]) {
        let Some((eth, rest)) = inner.split_first_chunk_mut::<{ ethernet::HEADER_LEN }>() else { return };
        let mut eth = ethernet::Frame::new_unchecked(eth);
        eth.set_dst(vm.mac);
        eth.set_src(self.tables.gateway_mac(dst_vpc));
        let ttl = p.inner.ttl - 1;
        if p.target.v6 {
            let mut ip = ipv6::Packet::new_unchecked(rest);
            ip.set_traffic_class(tos);
            ip.set_hop_limit(ttl);
            return;
        }
        let mut ip = ipv4::Packet::new_unchecked(rest);
        let (version, proto) = (u16::from(ip.version_ihl()) << 8, u16::from(ip.protocol()));
        let word = |tos: u8| version | u16::from(tos);
        let c = checksum::update(ip.checksum(), word(p.inner.tos), word(tos));
        let c = checksum::update(c, u16::from(p.inner.ttl) << 8 | proto, u16::from(ttl) << 8 | proto);
        ip.set_tos(tos);
        ip.set_ttl(ttl);
        ip.set_checksum(c);
    }
}

/// Writes the outer IP header.
fn outer_ip(p: &Packet<'_>, path: &Path, own: &Own, tos: u8, out: &mut [u8]) -> Option<()> {
    let payload_len = TUNNEL + p.outer.inner.len();
    match path.remote {
        IpAddr::V4(dst) => {
            let (src, dst) = (own.vtep4(), dst.to_bits());
            let (ident, flags_offset, ttl, protocol) = (0, ipv4::DONT_FRAGMENT, 64, protocol::UDP);
            ipv4::Repr { tos, payload_len, ident, flags_offset, ttl, protocol, src, dst }.emit(out.first_chunk_mut()?);
        }
        IpAddr::V6(dst) => {
            let ip = ipv6::Repr {
                traffic_class: tos,
                flow_label: flow_label(p.inner.flow),
                payload_len,
                next_header: protocol::UDP,
                hop_limit: 64,
                src: own.vtep6(),
                dst: dst.to_bits(),
            };
            ip.emit(out.first_chunk_mut()?);
        }
    }
    Some(())
}
