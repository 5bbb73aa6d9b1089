// SPDX-License-Identifier: Apache-2.0
//! Packets through the compressed tables, stage by stage: parse → tenant → route → locate → rewrite → emit.
//!
//! The chip handles what nearly every packet is: unicast IPv4 and IPv6 without options in VXLAN over either, without outer
//! UDP checksum (a chip cannot sum a payload), to a VM of this VPC or a peer. If entries are divided between the halves of
//! the chip, a packet goes on in the half that holds what it needs next. It gives the same bytes and the same verdict as crate `gateway`, or hands the packet over with a word
//! why; that is XGW-x86's part in Sailfish. Routes and VM addresses come from the compressed tables and nowhere else;
//! tenants, NCs and next hops, small tables that are stored whole, are read from table memory.

use super::key::Address;
use super::routes::Routes;
use super::vms::Vms;
use crate::technique::Split;
use abi::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tables::{Tables, Target, Tenant, VmEntry};
use wire::{checksum, ethernet, ipv4, ipv6, protocol, udp, vxlan};

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Sent.
    Forward {
        /// Egress interface.
        ifindex: u32,
        /// Times that it went on to the other half of the chip: a peer's tables may lie there.
        turns: u8,
    },
    /// Dropped.
    Drop(DropReason),
    /// Handed over to the software path, which decides.
    Punt(&'static str),
}

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
    vni: u32,
    source: IpAddr,
    inner: &'a [u8],
    outer_tos: u8,
    inner_tos: u8,
    ecn: u8,
    ttl: u8,
    flow: u64,
    target: Address,
    /// The half that it is in.
    half: usize,
    turns: u8,
}

type Stage<T> = Result<T, Outcome>;

fn punt<T>(why: &'static str) -> Stage<T> {
    Err(Outcome::Punt(why))
}

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

    /// Processes a frame; if it is forwarded, `out` holds what is sent.
    pub fn process(&self, frame: &[u8], out: &mut Vec<u8>) -> Outcome {
        let _inside = self.tables.enter();
        self.stages(frame, out).unwrap_or_else(|end| end)
    }

    fn stages(&self, frame: &[u8], out: &mut Vec<u8>) -> Stage<Outcome> {
        let options = self.tables.options();
        let mut p = self.parse(frame, options)?;
        let tenant = self.tenant(&p, options)?;
        let home = self.route(&mut p, tenant, options)?;
        let vm = self.locate(&p, options)?;
        self.rewrite(&p, &home, &vm, options, out)
    }

    /// The outer headers as the parser's fixed path takes them.
    fn parse<'a>(&self, frame: &'a [u8], options: u64) -> Stage<Packet<'a>> {
        let Some((eth, rest)) = frame.split_first_chunk::<{ ethernet::HEADER_LEN }>() else { return punt("outer") };
        let (payload, source, tos) = match ethernet::Frame::new_unchecked(eth).ethertype() {
            ethernet::ethertype::IPV4 => self.outer4(rest)?,
            ethernet::ethertype::IPV6 if options & OPT_UDP6_ZERO_REFUSED == 0 => self.outer6(rest)?,
            _ => return punt("outer"),
        };
        let Some(head) = payload.first_chunk::<16>() else { return punt("outer") };
        let u = udp::Packet::new_unchecked(&head[..]);
        let port = (options >> OPT_PORT_SHIFT) as u16;
        let length = u.length();
        if u.dst_port() != port || length < 16 || length > payload.len() || u.checksum() != 0 {
            return punt("outer");
        }
        let v = vxlan::Packet::new_unchecked(&head[udp::HEADER_LEN..]);
        if !v.has_vni() {
            return punt("outer");
        }
        self.inner(&payload[16..length], v.vni(), source, tos, options)
    }

    fn outer4<'a>(&self, rest: &'a [u8]) -> Stage<(&'a [u8], IpAddr, u8)> {
        let Some(head) = rest.first_chunk::<{ ipv4::HEADER_LEN }>() else { return punt("outer") };
        let ip = ipv4::Packet::new_unchecked(head);
        let ours = ip.version_ihl() == 0x45
            && ip.well_formed(rest.len())
            && self.tables.vtep4() != 0
            && ip.dst() == self.tables.vtep4()
            && ip.protocol() == protocol::UDP
            && !ip.is_fragment();
        if !ours || checksum::finish(checksum::sum(head)) != 0 {
            return punt("outer");
        }
        Ok((&rest[ipv4::HEADER_LEN..ip.total_len()], IpAddr::V4(Ipv4Addr::from_bits(ip.src())), ip.tos()))
    }

    fn outer6<'a>(&self, rest: &'a [u8]) -> Stage<(&'a [u8], IpAddr, u8)> {
        let Some((head, behind)) = rest.split_first_chunk::<{ ipv6::HEADER_LEN }>() else { return punt("outer") };
        let ip = ipv6::Packet::new_unchecked(head);
        let (hi, lo) = self.tables.vtep6();
        let vtep = u128::from(hi) << 64 | u128::from(lo);
        if !ip.well_formed(rest.len()) || vtep == 0 || ip.dst() != vtep || ip.next_header() != protocol::UDP {
            return punt("outer");
        }
        let Some(payload) = behind.get(..ip.payload_len()) else { return punt("outer") };
        Ok((payload, IpAddr::V6(Ipv6Addr::from_bits(ip.src())), ip.traffic_class()))
    }

    /// The outer source may send for the VNI.
    fn may_send(&self, p: &Packet<'_>) -> bool {
        match p.source {
            IpAddr::V4(a) => self.tables.may_send4(p.vni, a.to_bits()),
            IpAddr::V6(a) => {
                let a = a.to_bits();
                let nc = self.tables.nc_by_addr6(((a >> 64) as u64, a as u64));
                nc.is_some_and(|nc| self.tables.may_send6(p.vni, nc))
            }
        }
    }

    fn inner<'a>(&self, inner: &'a [u8], vni: u32, source: IpAddr, outer_tos: u8, options: u64) -> Stage<Packet<'a>> {
        let Some((eth, rest)) = inner.split_first_chunk::<{ ethernet::HEADER_LEN }>() else { return punt("inner") };
        let eth = ethernet::Frame::new_unchecked(eth);
        if (eth.src() | eth.dst()) >> 40 & 1 != 0 {
            return punt("group address");
        }
        let ports = |proto: u8, payload: &[u8]| match payload.first_chunk::<4>() {
            Some(p) if matches!(proto, protocol::TCP | protocol::UDP | protocol::SCTP) => u32::from_be_bytes(*p),
            _ => 0,
        };
        let (v6, addr, inner_tos, ttl, flow) = match eth.ethertype() {
            ethernet::ethertype::IPV4 => {
                let Some(head) = rest.first_chunk::<{ ipv4::HEADER_LEN }>() else { return punt("inner") };
                let ip = ipv4::Packet::new_unchecked(head);
                let (src, dst) = (ip.src(), ip.dst());
                let odd = |a: u32| a >= 0xe000_0000 || matches!(a >> 24, 0 | 127);
                if ip.version_ihl() != 0x45 || !ip.well_formed(rest.len()) || odd(src) || odd(dst) {
                    return punt("inner");
                }
                if checksum::finish(checksum::sum(head)) != 0 {
                    return punt("inner checksum");
                }
                let ports =
                    if ip.is_fragment() { 0 } else { ports(ip.protocol(), &rest[ipv4::HEADER_LEN..ip.total_len()]) };
                (false, u128::from(dst), ip.tos(), ip.ttl(), flow_hash_v4(src, dst, ip.protocol(), ports))
            }
            ethernet::ethertype::IPV6 => {
                let Some((head, behind)) = rest.split_first_chunk::<{ ipv6::HEADER_LEN }>() else {
                    return punt("inner");
                };
                let ip = ipv6::Packet::new_unchecked(head);
                let (src, dst) = (ip.src(), ip.dst());
                let odd = |a: u128| a >> 118 == 0xfe80 >> 6 || a >> 120 == 0xff || a <= 1 || a >> 32 == 0xffff;
                // ICMPv6 may be neighbour discovery; an IPv4-mapped destination lies where IPv4 routes lie.
                if !ip.well_formed(rest.len()) || ip.next_header() == protocol::ICMPV6 || odd(src) || odd(dst) {
                    return punt("inner");
                }
                let Some(payload) = behind.get(..ip.payload_len()) else { return punt("inner") };
                let halves = |a: u128| ((a >> 64) as u64, a as u64);
                let ports = ports(ip.next_header(), payload);
                let flow = flow_hash_v6(halves(src), halves(dst), ip.next_header(), ports);
                (true, dst, ip.traffic_class(), ip.hop_limit(), flow)
            }
            _ => return punt("inner"),
        };
        let ecn = match (outer_tos & 3, inner_tos & 3) {
            _ if options & OPT_ECN_OFF != 0 => inner_tos & 3,
            (3, 0) => return punt("congestion"),
            (3, _) => 3,
            (1, 2) => 1,
            (_, inner) => inner,
        };
        let target = Address { vni, v6, addr };
        let half = half_of(self.split, &target);
        Ok(Packet { vni, source, inner, outer_tos, inner_tos, ecn, ttl, flow, target, half, turns: 0 })
    }

    fn tenant(&self, p: &Packet<'_>, options: u64) -> Stage<Tenant> {
        let Some(tenant) = self.tables.tenant(p.vni) else { return Err(Outcome::Drop(DropReason::VniUnknown)) };
        if options & OPT_SOURCE_STRICT != 0 && !self.may_send(p) {
            return punt("source");
        }
        if self.tables.tenant_meter(&tenant) != 0 {
            return punt("metered");
        }
        Ok(tenant)
    }

    /// Longest prefix in the compressed table, on from peer to peer.
    fn route(&self, p: &mut Packet<'_>, tenant: Tenant, options: u64) -> Stage<Tenant> {
        let mut home = tenant;
        for hops in 0.. {
            p.target.vni = home.vni;
            let half = half_of(self.split, &p.target);
            p.turns += u8::from(half != p.half);
            p.half = half;
            let Some(tables) = self.halves.get(half) else { return punt("half") };
            let target = tables.routes.lookup(&p.target).and_then(|v| self.targets.get(v as usize));
            match target {
                Some(Target::Local) => return Ok(home),
                Some(Target::Peer(_)) if hops >= PEER_HOPS_MAX => return Err(Outcome::Drop(DropReason::RoutePeerLoop)),
                Some(Target::Peer(vni)) => match self.tables.tenant(*vni) {
                    Some(peer) => home = peer,
                    None => return punt("peer gone"),
                },
                Some(Target::Blackhole) => return Err(Outcome::Drop(DropReason::RouteBlackhole)),
                Some(_) => return punt("scope"),
                None if options & OPT_ICMP != 0 => return punt("icmp due"),
                None => return Err(Outcome::Drop(DropReason::RouteNone)),
            }
        }
        punt("peer loop")
    }

    /// The VM in the compressed table.
    fn locate(&self, p: &Packet<'_>, options: u64) -> Stage<VmEntry> {
        let vm =
            self.halves.get(p.half).and_then(|h| h.vms.lookup(&p.target)).and_then(|v| self.entries.get(v as usize));
        let Some(vm) = vm else {
            let due = options & OPT_ICMP != 0;
            return if due { punt("icmp due") } else { Err(Outcome::Drop(DropReason::VmUnknown)) };
        };
        if vm.flags & (VM_FLAG_GATEWAY | VM_FLAG_METERED) != 0 {
            return punt("gateway address or metered");
        }
        if p.ttl <= 1 {
            return punt("ttl");
        }
        Ok(*vm)
    }

    fn rewrite(&self, p: &Packet<'_>, home: &Tenant, vm: &VmEntry, options: u64, out: &mut Vec<u8>) -> Stage<Outcome> {
        let Some(nc) = self.tables.nc(vm.nc).filter(|nc| nc.group != 0) else { return punt("underlay") };
        let line = self.tables.group_member(nc.group, p.flow);
        let hop = self.tables.nexthop(line);
        let (hi, lo) = self.tables.vtep6();
        let vtep6 = u128::from(hi) << 64 | u128::from(lo);
        let outer_ip = if nc.addr.is_ipv6() { ipv6::HEADER_LEN } else { ipv4::HEADER_LEN };
        let tunnel = udp::HEADER_LEN + vxlan::HEADER_LEN;
        let too_long = outer_ip + tunnel + p.inner.len() > usize::from(hop.mtu);
        let no_vtep = if nc.addr.is_ipv6() { vtep6 == 0 } else { self.tables.vtep4() == 0 };
        if line == 0 || !hop.ready || too_long || no_vtep {
            return punt("underlay");
        }
        let uniform = options & OPT_DSCP_UNIFORM != 0;
        let dscp = if uniform { p.outer_tos & 0xfc } else { p.inner_tos & 0xfc };
        let configured = ((options >> OPT_DSCP_SHIFT) as u8 & 0x3f) << 2;
        let outer_tos = if uniform { dscp } else { configured } | if options & OPT_ECN_OFF != 0 { 0 } else { p.ecn };
        let ethertype = if nc.addr.is_ipv6() { ethernet::ethertype::IPV6 } else { ethernet::ethertype::IPV4 };
        let head = ethernet::HEADER_LEN + outer_ip;
        let at = head + tunnel;
        out.clear();
        out.resize(at, 0);
        out.extend_from_slice(p.inner);
        let Some(chunk) = out.first_chunk_mut() else { return punt("short") };
        ethernet::Repr { dst: hop.dmac, src: hop.smac, ethertype }.emit(chunk);
        let payload_len = tunnel + p.inner.len();
        let short = Outcome::Punt("short");
        match nc.addr {
            IpAddr::V4(dst) => {
                let (src, dst) = (self.tables.vtep4(), dst.to_bits());
                let flags_offset = ipv4::DONT_FRAGMENT;
                let ip = ipv4::Repr {
                    tos: outer_tos,
                    payload_len,
                    ident: 0,
                    flags_offset,
                    ttl: 64,
                    protocol: protocol::UDP,
                    src,
                    dst,
                };
                ip.emit(out.get_mut(ethernet::HEADER_LEN..).and_then(|o| o.first_chunk_mut()).ok_or(short)?);
            }
            IpAddr::V6(dst) => {
                let ip = ipv6::Repr {
                    traffic_class: outer_tos,
                    flow_label: flow_label(p.flow),
                    payload_len,
                    next_header: protocol::UDP,
                    hop_limit: 64,
                    src: vtep6,
                    dst: dst.to_bits(),
                };
                ip.emit(out.get_mut(ethernet::HEADER_LEN..).and_then(|o| o.first_chunk_mut()).ok_or(short)?);
            }
        }
        let dst_port = (options >> OPT_PORT_SHIFT) as u16;
        let u = udp::Repr { src_port: source_port(p.flow), dst_port, payload_len: vxlan::HEADER_LEN + p.inner.len() };
        u.emit(out.get_mut(head..).and_then(|o| o.first_chunk_mut()).ok_or(short)?);
        vxlan::Repr { vni: home.vni }
            .emit(out.get_mut(head + udp::HEADER_LEN..).and_then(|o| o.first_chunk_mut()).ok_or(short)?);
        let tos = dscp | p.ecn;
        self.rewrite_inner(p, home, vm, tos, out.get_mut(at..).ok_or(short)?);
        let mut u = udp::Packet::new_unchecked(&mut out[head..]);
        match nc.addr {
            IpAddr::V4(dst) if options & OPT_UDP4_CHECKSUM != 0 => {
                u.fill_checksum_v4(self.tables.vtep4(), dst.to_bits())
            }
            IpAddr::V6(dst) if options & OPT_UDP6_CHECKSUM != 0 => u.fill_checksum_v6(vtep6, dst.to_bits()),
            _ => {}
        }
        Ok(Outcome::Forward { ifindex: hop.ifindex, turns: p.turns })
    }

    fn rewrite_inner(&self, p: &Packet<'_>, home: &Tenant, vm: &VmEntry, tos: u8, inner: &mut [u8]) {
        let Some((eth, rest)) = inner.split_first_chunk_mut::<{ ethernet::HEADER_LEN }>() else { return };
        let mut eth = ethernet::Frame::new_unchecked(eth);
        eth.set_dst(vm.mac);
        eth.set_src(self.tables.gateway_mac(home));
        let ttl = p.ttl - 1;
        if p.target.v6 {
            let mut ip = ipv6::Packet::new_unchecked(rest);
            ip.set_traffic_class(tos);
            ip.set_hop_limit(ttl);
            return;
        }
        let mut ip = ipv4::Packet::new_unchecked(rest);
        let (version, proto) = (u16::from(ip.version_ihl()) << 8, u16::from(ip.protocol()));
        let word = |tos: u8| version | u16::from(tos);
        let c = checksum::update(ip.checksum(), word(p.inner_tos), word(tos));
        let c = checksum::update(c, u16::from(p.ttl) << 8 | proto, u16::from(ttl) << 8 | proto);
        ip.set_tos(tos);
        ip.set_ttl(ttl);
        ip.set_checksum(c);
    }
}
