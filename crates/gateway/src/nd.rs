// SPDX-License-Identifier: Apache-2.0
//! Neighbour discovery: solicitations are answered for the gateway's addresses and, as proxy, for every VM of the VPC.

use abi::{flow_hash_v6, DropReason, Mac, Stage, VM_FLAG_GATEWAY};
use wire::icmpv6::{self, kind};
use wire::{ethernet, ipv6, nd, protocol};

use crate::answer::{self, Back};
use crate::framing::vmport;
use crate::packet::{Addr, Packet};
use crate::record::{Event, Recorder};
use crate::router;
use crate::stages::parse::source_v6;
use crate::work::Work;
use crate::{Frame, Verdict};

/// A solicitation and who sent it.
struct Question {
    asker_mac: u64,
    asker: u128,
    target: u128,
}

/// What a solicitation wants.
enum Solicited {
    Neighbour(Question),
    /// A router, by an address (0: none yet) and a MAC address.
    Router {
        asker: u128,
        mac: u64,
    },
}

/// Turns a solicitation into its answer.
#[cold]
pub(crate) fn answer<R: Recorder>(w: &mut Work<'_, R>, p: &Packet, f: &mut Frame<'_>) -> Result<Verdict, DropReason> {
    let solicited = check(p.inner_frame(f), p.macs(f).1)?;
    let asker = match &solicited {
        Solicited::Neighbour(question) => question.asker,
        Solicited::Router { asker, .. } => *asker,
    };
    // Who asks whether an address is free has none yet; link-local ones are the VM's own affair, and reach nobody but the gateway.
    if asker != 0 && Addr::v6(asker).hi >> 54 != 0xfe80 >> 6 {
        vmport::check_address(w, p, Addr::v6(asker), true)?;
    }
    let q = match solicited {
        Solicited::Router { asker, mac } if p.guest.is_some() => return router::answer(w, p, f, (asker, mac)),
        Solicited::Router { .. } => return Err(DropReason::NdUnsupported),
        Solicited::Neighbour(question) => question,
    };
    let gateway = (w.tables.gateway_mac(&p.tenant), nd::FLAG_ROUTER);
    let (mac, router) = if p.guest.is_some() && q.target == router::link_local(gateway.0) {
        gateway
    } else {
        let found = w.tables.vm6(p.vni, Addr::v6(q.target).halves(), p.tenant.generation());
        let vm = found.ok_or(DropReason::NdUnknownTarget)?;
        match vm.flags & VM_FLAG_GATEWAY {
            0 if vm.mac == q.asker_mac => return Err(DropReason::NdOwnProbe),
            0 => (vm.mac, 0),
            _ => gateway,
        }
    };
    if R::ON {
        w.note(p, Stage::Tenant, Event::Answered { with: "neighbour advertisement", mac: Mac(mac) });
    }
    // Without a source address there is nobody to answer to but all: duplicate address detection (RFC 4861 §7.2.4).
    let (dst, dst_mac, solicited) = match q.asker {
        0 => (nd::ALL_NODES, nd::multicast_mac(nd::ALL_NODES), 0),
        asker => (asker, q.asker_mac, nd::FLAG_SOLICITED),
    };
    let reply = nd::Advertisement { flags: router | solicited | nd::FLAG_OVERRIDE, target: q.target, mac };
    let frame = advertisement(&reply, mac, dst_mac, dst).ok_or(DropReason::NdMalformed)?;
    let flow = flow_hash_v6(Addr::v6(q.target).halves(), Addr::v6(dst).halves(), protocol::ICMPV6, 0);
    answer::instead(w, p, f, &frame, Back { flow, tos: 0 })
}

/// The checks of RFC 4861 §6.1 and §7.1 as far as they apply to each type, then the type.
fn check(frame: &[u8], asker: Mac) -> Result<Solicited, DropReason> {
    let (_, rest) = frame.split_first_chunk::<{ ethernet::HEADER_LEN }>().ok_or(DropReason::NdMalformed)?;
    let ip = ipv6::Packet::new_checked(rest).map_err(|_| DropReason::NdMalformed)?;
    let message = ip.payload();
    let Some(&[kind, code]) = message.first_chunk::<2>() else { return Err(DropReason::NdMalformed) };
    let fixed = nd::fixed_len(kind).ok_or(DropReason::NdMalformed)?;
    let options = message.get(fixed..).ok_or(DropReason::NdMalformed)?;
    let sound = ip.hop_limit() == 255
        && code == 0
        && icmpv6::checksum_ok(ip.src(), ip.dst(), message)
        && nd::options_ok(options)
        && nd::valid(ip.src(), ip.dst(), message);
    if !sound {
        return Err(DropReason::NdMalformed);
    }
    if never_a_source(Addr::v6(ip.src())) {
        return Err(DropReason::InnerMartian);
    }
    match kind {
        kind::NEIGHBOUR_SOLICITATION => {
            let target = wire::be::u128(message, 8);
            Ok(Solicited::Neighbour(Question { asker_mac: asker.0, asker: ip.src(), target }))
        }
        kind::ROUTER_SOLICITATION => Ok(Solicited::Router { asker: ip.src(), mac: asker.0 }),
        _ => Err(DropReason::NdUnsupported),
    }
}

/// Nobody sends from such an address: multicast (RFC 4291 section 2.7), loopback, IPv4-mapped. From the unspecified one neighbour
/// discovery may come.
pub(crate) fn never_a_source(src: Addr) -> bool {
    src != Addr::default() && source_v6(src) == Some(DropReason::InnerMartian)
}

/// The inner frame of an advertisement; its source address is the target.
fn advertisement(na: &nd::Advertisement, src_mac: u64, dst_mac: u64, dst: u128) -> Option<Vec<u8>> {
    let header = ipv6::Repr {
        traffic_class: 0,
        flow_label: 0,
        payload_len: nd::ADVERTISEMENT_LEN,
        next_header: protocol::ICMPV6,
        hop_limit: 255,
        src: na.target,
        dst,
    };
    let mut frame = answer::frame_v6((src_mac, dst_mac), &header)?;
    na.emit(na.target, dst, frame.get_mut(answer::V6_HEADERS..)?.first_chunk_mut()?).ok()?;
    Some(frame)
}
