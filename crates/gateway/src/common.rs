// SPDX-License-Identifier: Apache-2.0
//! The common packet: a short cut through the stages.
//!
//! Nearly every packet has the same shape: unfragmented IPv4 without options in VXLAN over IPv4 without UDP checksum, from a
//! known NC, to a VM of the same VPC whose route the VM-NC entry proves, on an IPv4 NC whose next hop is ready, with
//! nothing to meter. For these the path is a few comparisons and stores, and what costs is the number of instructions and
//! of cache lines. So they are treated here, on one cache line of state each.
//!
//! **The property it keeps:** until the last step, where nothing can go wrong any more, it changes and counts nothing. A
//! packet that turns out to be uncommon anywhere is left as it came and takes the stages from the beginning, which alone
//! decide what is wrong with it. Both must give the same bytes, verdicts and counters; with a recorder there is no short
//! cut, and a test compares the two (`tests/equal.rs`).
//!
//! What it costs: an uncommon packet is looked at twice.

use abi::*;
use tables::VmTable;
use wire::{be, checksum, ethernet, ipv4, protocol, udp, vxlan};

use crate::encap::{encapsulate_v4, Outer};
use crate::packet::{Addr, Packet};
use crate::record::Recorder;
use crate::settings::Settings;
use crate::stages::parse::{decapsulated_ecn, has_ports, martian_destination_v4, martian_source_v4};
use crate::work::Work;
use crate::{Frame, Verdict, BATCH_MAX};

const OUTER: usize = ethernet::HEADER_LEN;
const TUNNEL: usize = OUTER + ipv4::HEADER_LEN;
const INNER: usize = TUNNEL + udp::HEADER_LEN + vxlan::HEADER_LEN;
const INNER_IP: usize = INNER + ethernet::HEADER_LEN;
const PORTS: usize = INNER_IP + ipv4::HEADER_LEN;
/// Bytes that are looked at.
const HEAD: usize = PORTS + 4;

/// Frames ahead of the one being parsed whose headers are fetched.
const AHEAD: usize = 6;

/// State of one common packet: a cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Lean {
    flow: u64,
    mac: u64,
    gateway_mac: u64,
    source: u32,
    target: u32,
    vni: u32,
    /// Home line of the VNI, then the tenant's id.
    tenant: u32,
    member_home: u32,
    /// Home line of the destination, then line of its counters.
    vm_home: u32,
    vm: u32,
    /// Id of the NC.
    nc: u32,
    inner_len: u16,
    /// DSCP and ECN of the outer and the inner header as received, and the ECN that results.
    outer_tos: u8,
    inner_tos: u8,
    ecn: u8,
    ttl: u8,
    common: bool,
}

impl Lean {
    pub const EMPTY: Lean = Lean {
        flow: 0,
        mac: 0,
        gateway_mac: 0,
        source: 0,
        target: 0,
        vni: 0,
        tenant: 0,
        member_home: 0,
        vm_home: 0,
        vm: 0,
        nc: 0,
        inner_len: 0,
        outer_tos: 0,
        inner_tos: 0,
        ecn: 0,
        ttl: 0,
        common: false,
    };
}

/// What the first 64 bytes from the outer EtherType on must be, where they have one right value.
#[derive(Clone, Copy)]
struct Template {
    mask: [u64; 8],
    value: [u64; 8],
}

impl Template {
    const FROM: usize = OUTER - 2;

    fn new(s: &Settings) -> Template {
        let mut t = Bytes { mask: [0; 64], value: [0; 64] };
        t.expect(OUTER - 2, &[0x08, 0x00, 0x45], &[0xff; 3]);
        t.expect(OUTER + 6, &[0, 0, 0, protocol::UDP], &[0x3f, 0xff, 0, 0xff]);
        t.expect(OUTER + 16, &s.vtep4.to_be_bytes(), &[0xff; 4]);
        t.expect(TUNNEL + 2, &s.port.to_be_bytes(), &[0xff; 2]);
        t.expect(TUNNEL + 6, &[0, 0, vxlan::FLAG_VNI], &[0xff, 0xff, vxlan::FLAG_VNI]);
        // Group bits of both inner MAC addresses.
        t.expect(INNER, &[0], &[1]);
        t.expect(INNER + 6, &[0], &[1]);
        t.expect(INNER_IP - 2, &[0x08, 0x00, 0x45], &[0xff; 3]);
        t.expect(INNER_IP + 6, &[0, 0], &[0x3f, 0xff]);
        t.words()
    }

    /// Words in the machine's byte order, so that the compiler may take several at once.
    #[inline(always)]
    fn matches(&self, head: &[u8; HEAD]) -> bool {
        let mut differs = 0;
        for i in 0..8 {
            differs |= (word(head, Template::FROM + 8 * i) & self.mask[i]) ^ self.value[i];
        }
        differs == 0
    }
}

/// A template in the making.
struct Bytes {
    mask: [u8; 64],
    value: [u8; 64],
}

impl Bytes {
    fn expect(&mut self, at: usize, value: &[u8], mask: &[u8]) {
        let at = at - Template::FROM;
        self.value[at..at + value.len()].copy_from_slice(value);
        self.mask[at..at + mask.len()].copy_from_slice(mask);
    }

    fn words(&self) -> Template {
        Template {
            mask: std::array::from_fn(|i| word(&self.mask, 8 * i)),
            value: std::array::from_fn(|i| word(&self.value, 8 * i)),
        }
    }
}

/// Eight bytes in the machine's byte order.
#[inline(always)]
fn word(b: &[u8], at: usize) -> u64 {
    be::u64(b, at).to_be()
}

/// Takes all common packets through. True if there were no others.
pub(crate) fn process<R: Recorder>(
    w: &mut Work<'_, R>,
    lean: &mut [Lean; BATCH_MAX],
    packets: &mut [Packet],
    frames: &mut [Frame<'_>],
) -> bool {
    let s = w.settings;
    if s.vtep4 == 0 || s.udp4_checksum || !s.strict {
        return false;
    }
    let vm4 = w.tables.vm4_table();
    // Opaque to the compiler, which otherwise turns the constant masks into many narrow comparisons.
    let template = std::hint::black_box(Template::new(&s));
    let lean = &mut lean[..frames.len().min(BATCH_MAX)];
    for f in frames.iter().take(AHEAD) {
        w.prefetch_frame(f);
    }
    for (i, l) in lean.iter_mut().enumerate() {
        if let Some(next) = frames.get(i + AHEAD) {
            w.prefetch_frame(next);
        }
        let Some(f) = frames.get(i) else { break };
        l.common = parse(f.data(), &s, &template, l);
        if l.common {
            l.tenant = w.tables.tenant_home(l.vni);
            l.member_home = w.tables.member4_home(l.vni, l.source);
            l.vm_home = w.tables.vm4_line(vm4, l.vni, l.target);
        }
    }
    for l in lean.iter_mut().filter(|l| l.common) {
        l.common = tenant(w, l);
    }
    for l in lean.iter_mut().filter(|l| l.common) {
        l.common = locate(w, vm4, l);
    }
    let mut left = 0;
    for ((l, p), f) in lean.iter_mut().zip(packets).zip(frames) {
        p.done = l.common && send(w, l, f);
        left += usize::from(!p.done);
    }
    left == 0
}

/// Recognises the shape; anything else is for the parse stage to understand.
#[inline(always)]
fn parse(data: &[u8], s: &Settings, template: &Template, l: &mut Lean) -> bool {
    let Some(h) = data.first_chunk::<HEAD>() else { return false };
    if !template.matches(h) {
        return false;
    }
    let (outer, inner) = (ip_head(h, OUTER), ip_head(h, INNER_IP));
    let (outer_ip, inner_ip) = (ipv4::Packet::new_unchecked(outer), ipv4::Packet::new_unchecked(inner));
    let (outer_len, udp_len) = (outer_ip.total_len(), be::u16(h, TUNNEL + 4) as usize);
    let inner_len = inner_ip.total_len();
    let (src, dst) = (inner_ip.src(), inner_ip.dst());
    if outer_len > data.len() - OUTER
        || udp_len + ipv4::HEADER_LEN > outer_len
        || inner_len + (INNER_IP - TUNNEL) > udp_len
        || inner_len < ipv4::HEADER_LEN + 4
        || checksum::sum_ipv4_header(outer) != 0xffff
        || checksum::sum_ipv4_header(inner) != 0xffff
        || dst >= 0xe000_0000
        || martian_source_v4(src)
        || martian_destination_v4(dst)
    {
        return false;
    }
    let (outer_tos, inner_tos) = (outer_ip.tos(), inner_ip.tos());
    l.ecn = inner_tos & 3;
    if outer_tos & 3 != 0 && !s.ecn_off {
        let Some(ecn) = decapsulated_ecn(outer_tos & 3, inner_tos & 3) else { return false };
        l.ecn = ecn;
    }
    let proto = inner_ip.protocol();
    let ports = if has_ports(proto) { be::u32(h, PORTS) } else { 0 };
    l.flow = flow_hash_v4(src, dst, proto, ports);
    l.source = outer_ip.src();
    l.target = dst;
    l.vni = be::u32(h, INNER - 4) >> 8;
    l.inner_len = (udp_len - (INNER - TUNNEL)) as u16;
    l.outer_tos = outer_tos;
    l.inner_tos = inner_tos;
    l.ttl = inner_ip.ttl();
    true
}

/// An IPv4 header without options at a fixed offset.
#[inline(always)]
fn ip_head(h: &[u8; HEAD], at: usize) -> &[u8; ipv4::HEADER_LEN] {
    match h[at..at + ipv4::HEADER_LEN].first_chunk() {
        Some(head) => head,
        None => unreachable!("the range has this length"),
    }
}

/// The VM-NC entry will prove that the route is local, and nothing is metered. The tenant's counter begins to load.
#[inline(always)]
fn tenant<R: Recorder>(w: &Work<'_, R>, l: &mut Lean) -> bool {
    let Some(tenant) = w.tables.tenant_from(l.tenant, l.vni) else { return false };
    if tenant.root4() & ROOT_SIMPLE == 0 || tenant.key & TENANT_METERED != 0 {
        return false;
    }
    (l.tenant, l.gateway_mac) = (tenant.id(), tenant.gateway_mac());
    w.tables.prefetch_line(w.tables.tenant_cell_line(l.tenant, w.slot));
    // About one VM in nine lies in the chain of its bucket.
    l.vm_home = w.tables.vm4_follow(l.vm_home, l.vni, l.target);
    true
}

/// The sender may send, and there is a VM-NC entry.
#[inline(always)]
fn locate<R: Recorder>(w: &Work<'_, R>, vm4: VmTable, l: &mut Lean) -> bool {
    let tables = w.tables;
    if l.ttl <= 1 || !tables.may_send4_from(l.member_home, l.vni, l.source) {
        return false;
    }
    let Some(vm) = tables.vm4_lasting(vm4, l.vm_home, l.vni, l.target) else { return false };
    if vm.flags != 0 {
        return false;
    }
    (l.mac, l.vm, l.nc, l.vm_home) = (vm.mac, vm.vm, vm.nc, tables.vm_cell_line(vm.vm));
    tables.prefetch_line(tables.nc_line(l.nc));
    tables.prefetch_line(l.vm_home);
    true
}

/// The way out; if there is one that fits, the packet is rewritten and counted.
#[inline(always)]
fn send<R: Recorder>(w: &mut Work<'_, R>, l: &Lean, f: &mut Frame<'_>) -> bool {
    let (tables, s) = (w.tables, &w.settings);
    let Some((group, remote)) = tables.nc4(l.nc) else { return false };
    let nexthop = tables.nexthop(tables.group_member(group, l.flow));
    let at = f.offset as usize + INNER;
    let Some(packet) = f.buffer.get_mut(at - INNER..).and_then(|b| b.first_chunk_mut::<HEAD>()) else { return false };
    if !nexthop.ready || l.inner_len as usize + INNER - OUTER > nexthop.mtu as usize {
        return false;
    }
    let tos = if s.uniform { l.outer_tos & 0xfc | l.ecn } else { l.inner_tos & 0xfc | l.ecn };
    let outer_tos = if s.uniform { l.outer_tos & 0xfc } else { s.dscp } | if s.ecn_off { 0 } else { l.ecn };
    let (tunnel, inner) = packet.split_at_mut(INNER);
    rewrite_inner(inner, l, l.gateway_mac, tos);
    let outer = Outer {
        dmac: nexthop.dmac,
        smac: nexthop.smac,
        v6: false,
        remote: Addr::v4(remote),
        tos: outer_tos,
        flow: l.flow,
        vni: l.vni,
    };
    if let Some(head) = tunnel.first_chunk_mut() {
        encapsulate_v4(head, l.inner_len as usize, &outer, s);
    }
    f.len = INNER as u32 + l.inner_len as u32;
    f.verdict = Verdict::Forward { ifindex: nexthop.ifindex };
    if !f.counted {
        tables.count_tenant_id(l.tenant, w.slot, l.inner_len as u64);
    }
    tables.count_vm_at(l.vm_home, l.vm, l.inner_len as u64);
    w.sent.packets += 1;
    w.sent.bytes += f.len as u64;
    true
}

/// MAC addresses, TTL, DSCP and ECN, checksum, as in the rewrite stage.
#[inline(always)]
fn rewrite_inner(inner: &mut [u8], l: &Lean, gateway_mac: u64, tos: u8) {
    let Some(head) = inner.first_chunk_mut::<{ HEAD - INNER }>() else { return };
    be::set_u64(head, 0, l.mac << 16 | gateway_mac >> 32);
    be::set_u32(head, 8, gateway_mac as u32);
    let mut ip = ipv4::Packet::new_unchecked(&mut head[ethernet::HEADER_LEN..]);
    let ttl = l.ttl.wrapping_sub(1);
    // One step of RFC 1624 equation 3 for both words at once: their sums are never zero, so that this equals two steps.
    let gone = !(0x4500 | l.inner_tos as u16) as u64 + !((l.ttl as u16) << 8) as u64;
    let come = (0x4500 | tos as u64) + ((ttl as u64) << 8);
    let c = !checksum::fold(!ip.checksum() as u64 + gone + come);
    ip.set_tos(tos);
    ip.set_ttl(ttl);
    ip.set_checksum(c);
}
