// SPDX-License-Identifier: Apache-2.0
//! Mirrors: copies of what VMs send and get, in VXLAN, to a collector of the underlay or to another VM. docs/design/mirror.md
//!
//! ```text
//!   tenant (accepted) ── as the VM sent it ────┐
//!                                              ├─► pattern ─► limit ─► cut to size ─► VXLAN ─► output.generated
//!   rewrite (wrapped) ── as the VM gets it ────┘
//! ```
//!
//! A copy is a packet of the gateway's own: counted as generated and forwarded, so that the conservation law holds. It leaves as it is made and
//! passes no stage, so that no mirror sees it; one that comes back inside a VM's packet is known by its port and VNI, and is not copied again.
//! A mirror's own limit drops copies, never what they are of.

use abi::{flow_hash_v4, flow_hash_v6, source_port, DropReason, IfIndex, Stage, Vni, VM_FLAG_SHAPED};
use filter::{icmp_service, service, Pattern, RuleDirection};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use tables::{rate_limit, RateLimit};
use wire::{be, ethernet, ethernet::ethertype, ipv4, ipv6, protocol, udp, vxlan};

use crate::echo::OWN_TTL;
use crate::frame::{Frame, Generated};
use crate::l4::L4;
use crate::packet::{Addr, Packet, Resumed};
use crate::record::{Event, Recorder};
use crate::stages::rewrite::Tos;
use crate::turns::Classes;
use crate::work::{Path, Work};

/// UDP and VXLAN.
const TUNNEL: usize = udp::HEADER_LEN + vxlan::HEADER_LEN;
/// What a cut copy keeps at least: less shows no header.
const LEAST: usize = 64;

/// Where copies go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collector {
    /// To an address of the underlay, which the tables know as an NC.
    Address(IpAddr),
    /// To a VM, by its VPC and one of its addresses; they come from this address of the VPC's gateway.
    Vm {
        /// The VPC.
        vni: Vni,
        /// The VM's address.
        address: IpAddr,
        /// The gateway's, of the same family.
        from: IpAddr,
    },
}

/// What a mirror is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorSpec {
    /// Its name.
    pub name: Arc<str>,
    /// The VMs, each by VPC and MAC address.
    pub sources: Vec<(Vni, u64)>,
    /// What they send is copied.
    pub egress: bool,
    /// What they get is copied.
    pub ingress: bool,
    /// What of it; none: all.
    pub patterns: Vec<Pattern>,
    /// Where copies go.
    pub collector: Collector,
    /// VNI of the copies.
    pub vni: Vni,
    /// Bytes of a frame that are copied at most; 0: all that fit.
    pub bytes: u16,
    /// Copies a second.
    pub limit: RateLimit,
}

/// What became of packets that a mirror is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MirrorCounts {
    /// Copies that were sent.
    pub copies: u64,
    /// Bytes of the mirrored frames in them.
    pub bytes: u64,
    /// Of the copies, those that do not have the whole frame.
    pub cut: u64,
    /// Not copied: more than the limit.
    pub limited: u64,
    /// Not copied: there is no way to the collector, or its neighbour is not known.
    pub unreachable: u64,
    /// Not copied: the packet is a copy itself.
    pub again: u64,
}

#[derive(Debug, Default)]
struct Counts {
    /// Of MirrorCounts, in their order.
    values: [AtomicU64; 6],
    /// Theoretical arrival time of the limit.
    tat: AtomicU64,
}

impl Counts {
    fn add(&self, which: usize, n: u64) {
        self.values[which].fetch_add(n, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Mirror {
    spec: MirrorSpec,
    /// It outlives a change of the configuration.
    counts: Arc<Counts>,
}

/// The mirrors of a node.
#[derive(Debug, Default)]
pub struct Mirrors {
    list: Vec<Mirror>,
    sources: HashMap<(Vni, u64), Vec<u16>>,
    /// What copies are known by.
    vnis: HashSet<Vni>,
}

impl FromIterator<MirrorSpec> for Mirrors {
    fn from_iter<I: IntoIterator<Item = MirrorSpec>>(of: I) -> Mirrors {
        let mut all = Mirrors::default();
        for (place, spec) in (0..=u16::MAX).zip(of) {
            spec.sources.iter().for_each(|source| all.sources.entry(*source).or_default().push(place));
            all.vnis.insert(spec.vni);
            all.list.push(Mirror { spec, counts: Arc::default() });
        }
        all
    }
}

impl Mirrors {
    /// Each, and what became of its packets.
    pub fn iter(&self) -> impl Iterator<Item = (&MirrorSpec, MirrorCounts)> {
        self.list.iter().map(|m| {
            let [copies, bytes, cut, limited, unreachable, again] =
                std::array::from_fn(|i| m.counts.values[i].load(Ordering::Relaxed));
            (&m.spec, MirrorCounts { copies, bytes, cut, limited, unreachable, again })
        })
    }

    /// Takes over the counts of those that were there before, by their names.
    pub(crate) fn go_on(&mut self, before: &Mirrors) {
        let known: HashMap<&str, &Arc<Counts>> = before.list.iter().map(|m| (&*m.spec.name, &m.counts)).collect();
        for mirror in &mut self.list {
            if let Some(counts) = known.get(&*mirror.spec.name) {
                mirror.counts = (*counts).clone();
            }
        }
    }

    fn of(&self, source: (Vni, u64)) -> impl Iterator<Item = &Mirror> {
        let places = self.sources.get(&source).map_or(&[][..], |places| places);
        places.iter().filter_map(|place| self.list.get(usize::from(*place)))
    }
}

/// A VM, to which its VPC's entry calls the software path, has sent a packet, which was accepted: it is copied as it came, whatever becomes of it. One
/// that has waited was copied when it came.
#[cold]
pub(crate) fn sent<R: Recorder>(w: &mut Work<'_, R>, p: &Packet, f: &Frame<'_>, mac: u64) {
    if matches!(p.resumed, Resumed::No) {
        copy(w, p, (p.vni, mac), RuleDirection::Egress, p.inner_frame(f));
    }
}

/// The inner frame at `at`, if it may have to be copied once it is sent to its VM: rewritten, and not cut yet.
#[inline(always)]
pub(crate) fn delivered<R: Recorder>(w: &Work<'_, R>, p: &Packet, f: &Frame<'_>, at: usize) -> Option<Vec<u8>> {
    if p.vm.flags & VM_FLAG_SHAPED == 0 || !R::COUNTS {
        return None;
    }
    let mirrors = w.sessions?.mirrors;
    mirrors.of((p.dst_vpc().vni, p.vm.mac)).next()?;
    Some(f.buffer.get(at..at + usize::from(p.inner_len))?.to_vec())
}

/// A VM gets a packet: it is copied as it gets it.
#[cold]
pub(crate) fn gotten<R: Recorder>(w: &mut Work<'_, R>, p: &Packet, inner: &[u8]) {
    copy(w, p, (p.dst_vpc().vni, p.vm.mac), RuleDirection::Ingress, inner);
}

/// What stands for nothing in a pattern but `any`.
const NO_SERVICE: [u32; 2] = [0; 2];

/// What patterns and the search for copies look at.
struct Seen {
    source: IpAddr,
    destination: IpAddr,
    services: [u32; 2],
    /// VNI of the VXLAN packet to this UDP port that it is.
    vni: Option<(u16, Vni)>,
}

impl Seen {
    fn read(inner: &[u8]) -> Option<Seen> {
        let (head, packet) = inner.split_first_chunk::<{ ethernet::HEADER_LEN }>()?;
        let (source, destination, v6) = match be::u16(head, 12) {
            ethertype::IPV4 if packet.len() >= ipv4::HEADER_LEN => {
                (Addr::v4(be::u32(packet, 12)), Addr::v4(be::u32(packet, 16)), false)
            }
            ethertype::IPV6 if packet.len() >= ipv6::HEADER_LEN => {
                let half = |at: usize| Addr { hi: be::u64(packet, at), lo: be::u64(packet, at + 8) };
                (half(8), half(24), true)
            }
            _ => return None,
        };
        let (services, vni) = L4::read(packet, v6).map_or((NO_SERVICE, None), |l4| services(&l4, packet));
        Some(Seen { source: source.ip(v6), destination: destination.ip(v6), services, vni })
    }
}

/// By its source port and by its destination port. A fragment beyond the first tells no port: it has the protocol's port 0.
fn services(l4: &L4, packet: &[u8]) -> ([u32; 2], Option<(u16, Vni)>) {
    let rest = packet.get(l4.at..).unwrap_or(&[]);
    if l4.piece.is_some_and(|piece| piece.offset != 0) {
        return ([service(l4.proto, 0); 2], None);
    }
    match (l4.proto, rest) {
        (protocol::ICMP | protocol::ICMPV6, [kind, code, ..]) => ([icmp_service(l4.proto, *kind, *code); 2], None),
        (protocol::UDP, rest) if rest.len() >= TUNNEL => {
            let vni = Vni(be::u32(rest, udp::HEADER_LEN + 4) >> 8);
            (l4.ports_services(), Some((l4.dst_port, vni)))
        }
        _ => (l4.ports_services(), None),
    }
}

impl L4 {
    fn ports_services(&self) -> [u32; 2] {
        [service(self.proto, self.src_port), service(self.proto, self.dst_port)]
    }
}

/// Copies a frame for every mirror of a VM that it is for.
#[cold]
fn copy<R: Recorder>(w: &mut Work<'_, R>, p: &Packet, source: (Vni, u64), direction: RuleDirection, inner: &[u8]) {
    let Some(mirrors) = w.sessions.map(|sight| sight.mirrors).filter(|_| R::COUNTS) else { return };
    let Some(seen) = Seen::read(inner) else { return };
    let again = seen.vni.is_some_and(|(port, vni)| port == w.settings.port && mirrors.vnis.contains(&vni));
    let (remote, egress) = match direction {
        RuleDirection::Egress => (seen.destination, true),
        RuleDirection::Ingress => (seen.source, false),
    };
    for mirror in mirrors.of(source) {
        let spec = &mirror.spec;
        let about = spec.patterns.is_empty() || spec.patterns.iter().any(|x| x.matches(seen.services, remote));
        if !about || !(if egress { spec.egress } else { spec.ingress }) {
            continue;
        }
        let outcome = match again {
            true => Err(Not::Again),
            false => send(w, p, mirror, inner),
        };
        match outcome {
            Ok(bytes) => {
                mirror.counts.add(0, 1);
                mirror.counts.add(1, bytes as u64);
                mirror.counts.add(2, u64::from(bytes < inner.len()));
            }
            Err(why) => mirror.counts.add(why as usize, 1),
        }
        if R::ON {
            let (mirror, direction) = (spec.name.to_string(), direction.name());
            w.note(p, Stage::Emit, Event::Mirrored { mirror, direction, outcome: outcome.map_err(Not::why) });
        }
    }
}

/// Why there is no copy; the number is that of its counter.
#[derive(Clone, Copy, Debug)]
enum Not {
    Limited = 3,
    Unreachable = 4,
    Again = 5,
}

impl Not {
    fn why(self) -> &'static str {
        match self {
            Not::Limited => "more than spec.limit",
            Not::Unreachable => "no way to the collector",
            Not::Again => "it is a copy itself",
        }
    }
}

impl From<DropReason> for Not {
    fn from(_: DropReason) -> Not {
        Not::Unreachable
    }
}

/// Sends a copy; the bytes of the frame that are in it.
fn send<R: Recorder>(w: &mut Work<'_, R>, p: &Packet, m: &Mirror, inner: &[u8]) -> Result<usize, Not> {
    let out = outgoing(w, p, m)?;
    let inside = out.inside.as_ref().map_or(0, Inside::len);
    let room = (usize::from(out.path.nexthop.mtu) + ethernet::HEADER_LEN)
        .checked_sub(out.path.overhead() + inside)
        .filter(|room| *room >= LEAST)
        .ok_or(Not::Unreachable)?;
    if !rate_limit(m.spec.limit.word(), &m.counts.tat, w.now) {
        return Err(Not::Limited);
    }
    let wanted = if m.spec.bytes == 0 { usize::MAX } else { usize::from(m.spec.bytes) };
    let frame = &inner[..inner.len().min(wanted).min(room)];
    let tos = Tos::new(&w.settings, 0, 0, 0).outer;
    let carrier = out.path.carrier(tos, out.flow, out.vni);
    let at = carrier.overhead();
    let mut data = w.output.buffer(at + inside + frame.len());
    data[at + inside..].copy_from_slice(frame);
    if let Some(inside) = &out.inside {
        inside.write(&mut data[at..], m.spec.vni, frame.len());
    }
    let len = data.len() - at;
    carrier.encapsulate(&mut data, at, len, &w.settings)?;
    let ifindex: IfIndex = out.path.nexthop.ifindex;
    let packet = Generated { data, ifindex, cause: usize::from(p.index), classes: Classes::NONE, copy: true };
    w.generate(p, Stage::Emit, packet);
    Ok(frame.len())
}

/// How a copy travels.
struct Outgoing {
    path: Path,
    /// Hash of the flow that the tunnel has inside: of the mirrored packet, or of the packet to the VM.
    flow: u64,
    /// VNI of the tunnel.
    vni: Vni,
    /// Headers of a packet to a VM.
    inside: Option<Inside>,
}

/// The way to a mirror's collector.
fn outgoing<R: Recorder>(w: &mut Work<'_, R>, p: &Packet, m: &Mirror) -> Result<Outgoing, Not> {
    match m.spec.collector {
        Collector::Address(address) => {
            let nc = match address {
                IpAddr::V4(a) => w.tables.nc_by_addr4(a.to_bits()),
                IpAddr::V6(a) => w.tables.nc_by_addr6(Addr::v6(a.to_bits()).halves()),
            };
            let path = w.path_to(nc.ok_or(Not::Unreachable)?, p.flow)?;
            Ok(Outgoing { path, flow: p.flow, vni: m.spec.vni, inside: None })
        }
        Collector::Vm { vni, address, from } => {
            let tenant = w.tables.tenant(vni).ok_or(Not::Unreachable)?;
            let vm = match address {
                IpAddr::V4(a) => w.tables.vm4(vni, a.to_bits(), tenant.generation()),
                IpAddr::V6(a) => w.tables.vm6(vni, Addr::v6(a.to_bits()).halves(), tenant.generation()),
            };
            let vm = vm.ok_or(Not::Unreachable)?;
            let ports = (source_port(p.flow), w.settings.port);
            let inside = Inside { macs: (vm.mac, tenant.gateway_mac()), from, to: address, ports };
            let flow = inside.flow();
            Ok(Outgoing { path: w.path_to_vm(vni, &vm, flow)?, flow, vni, inside: Some(inside) })
        }
    }
}

/// Ethernet, IP, UDP and VXLAN in front of a copy that a VM gets.
struct Inside {
    /// Destination and source.
    macs: (u64, u64),
    from: IpAddr,
    to: IpAddr,
    /// UDP ports, source and destination: the first one is of the mirrored packet's flow.
    ports: (u16, u16),
}

impl Inside {
    fn flow(&self) -> u64 {
        let ports = u32::from(self.ports.0) << 16 | u32::from(self.ports.1);
        match (self.from, self.to) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => flow_hash_v4(src.to_bits(), dst.to_bits(), protocol::UDP, ports),
            (src, dst) => flow_hash_v6(Addr::of(src).halves(), Addr::of(dst).halves(), protocol::UDP, ports),
        }
    }

    fn len(&self) -> usize {
        let ip = if self.to.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
        ethernet::HEADER_LEN + ip + TUNNEL
    }

    /// Writes them in front of the `bytes` of the copy. What does not fit is left out, which never happens: `data` has them all.
    fn write(&self, data: &mut [u8], vni: Vni, bytes: usize) -> Option<()> {
        let (eth, rest) = data.split_first_chunk_mut::<{ ethernet::HEADER_LEN }>()?;
        let ethertype = if self.to.is_ipv4() { ethertype::IPV4 } else { ethertype::IPV6 };
        ethernet::Repr { dst: self.macs.0, src: self.macs.1, ethertype }.emit(eth);
        let payload_len = TUNNEL + bytes;
        let datagram = match (self.from, self.to) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let (ip, rest) = rest.split_first_chunk_mut::<{ ipv4::HEADER_LEN }>()?;
                let (src, dst) = (src.to_bits(), dst.to_bits());
                let (flags_offset, protocol) = (ipv4::DONT_FRAGMENT, protocol::UDP);
                ipv4::Repr { tos: 0, payload_len, ident: 0, flags_offset, ttl: OWN_TTL, protocol, src, dst }.emit(ip);
                rest
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let (ip, rest) = rest.split_first_chunk_mut::<{ ipv6::HEADER_LEN }>()?;
                let (src, dst) = (src.to_bits(), dst.to_bits());
                let (next_header, hop_limit) = (protocol::UDP, OWN_TTL);
                ipv6::Repr { traffic_class: 0, flow_label: 0, payload_len, next_header, hop_limit, src, dst }.emit(ip);
                rest
            }
            _ => return None,
        };
        let (src_port, dst_port) = self.ports;
        udp::Repr { src_port, dst_port, payload_len: vxlan::HEADER_LEN + bytes }.emit(datagram.first_chunk_mut()?);
        vxlan::Repr { vni }.emit(datagram.get_mut(udp::HEADER_LEN..)?.first_chunk_mut()?);
        // A VM's kernel refuses UDP over IPv6 without a checksum.
        if let (IpAddr::V6(src), IpAddr::V6(dst)) = (self.from, self.to) {
            udp::Packet::new_unchecked(datagram).fill_checksum_v6(src.to_bits(), dst.to_bits());
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, sources: &[(Vni, u64)]) -> MirrorSpec {
        MirrorSpec {
            name: name.into(),
            sources: sources.to_vec(),
            egress: true,
            ingress: true,
            patterns: Vec::new(),
            collector: Collector::Address([192, 0, 2, 50].into()),
            vni: Vni(5000),
            bytes: 0,
            limit: RateLimit { per_second: 0, burst: 0 },
        }
    }

    #[test]
    fn counts_go_on_by_name_whatever_else_changes() {
        let (a, b) = ((Vni(7), 5), (Vni(7), 6));
        let before: Mirrors = [spec("one", &[a]), spec("two", &[a, b])].into_iter().collect();
        let names = |m: &Mirrors, vm| m.of(vm).map(|m| m.spec.name.to_string()).collect::<Vec<_>>();
        assert_eq!(names(&before, a), ["one", "two"]);
        assert_eq!((names(&before, b).len(), names(&before, (Vni(8), 5)).len()), (1, 0));
        before.of(b).for_each(|m| (0..6).for_each(|i| m.counts.add(i, i as u64 + 1)));
        let mut after: Mirrors = [spec("two", &[b]), spec("three", &[a])].into_iter().collect();
        after.go_on(&before);
        let counts: Vec<MirrorCounts> = after.iter().map(|(_, counts)| counts).collect();
        let two = MirrorCounts { copies: 1, bytes: 2, cut: 3, limited: 4, unreachable: 5, again: 6 };
        assert_eq!(counts, [two, MirrorCounts::default()]);
    }

    #[test]
    fn what_patterns_see_of_a_frame() {
        let frame = |proto: u8, fragment: u16, rest: &[u8]| {
            let mut f = [0; ethernet::HEADER_LEN + ipv4::HEADER_LEN];
            f[12] = 8;
            let (payload_len, ident, tos, ttl) = (rest.len(), 0, 0, 64);
            let header = ipv4::Repr {
                tos,
                payload_len,
                ident,
                flags_offset: fragment,
                ttl,
                protocol: proto,
                src: 0x0a00_0001,
                dst: 0x0a00_0002,
            };
            header.emit(f[14..].first_chunk_mut().unwrap());
            [&f[..], rest].concat()
        };
        let vxlan = [&[0x10, 0, 0x12, 0xb5, 0, 16, 0, 0][..], &[8, 0, 0, 0, 0, 0x13, 0x88, 0]].concat();
        let seen = Seen::read(&frame(protocol::UDP, 0, &vxlan)).unwrap();
        assert_eq!((seen.source, seen.destination), ([10, 0, 0, 1].into(), [10, 0, 0, 2].into()));
        assert_eq!((seen.services, seen.vni), ([service(17, 4096), service(17, 4789)], Some((4789, Vni(5000)))));
        let later = Seen::read(&frame(protocol::UDP, 1, &vxlan)).unwrap();
        assert_eq!((later.services, later.vni), ([service(17, 0); 2], None), "a fragment tells no port");
        let ping = Seen::read(&frame(protocol::ICMP, 0, &[8, 0, 0, 0, 0, 1, 0, 2])).unwrap();
        assert_eq!(ping.services, [icmp_service(1, 8, 0); 2]);
        let broken = Seen::read(&frame(protocol::TCP, 0, &[1, 2])).unwrap();
        assert_eq!((broken.services, broken.vni), (NO_SERVICE, None), "`any` alone is about it");
        assert!(Seen::read(&[0; 20]).is_none());
    }
}
