// SPDX-License-Identifier: Apache-2.0
//! ARP: answered for the gateway's addresses and, as proxy, for every VM of the VPC.

use abi::{flow_hash_v4, DropReason, Mac, Stage, METADATA_ADDRESS, VM_FLAG_GATEWAY};
use wire::{arp, ethernet};

use crate::answer::{self, Back};
use crate::framing::vmport;
use crate::packet::{Addr, Packet};
use crate::record::{Event, Recorder};
use crate::work::Work;
use crate::{Frame, Verdict};

/// Turns a request into its answer.
#[cold]
pub(crate) fn answer<R: Recorder>(w: &mut Work<'_, R>, p: &Packet, f: &mut Frame<'_>) -> Result<Verdict, DropReason> {
    let frame = p.inner_frame(f);
    let (_, body) = frame.split_first_chunk::<{ ethernet::HEADER_LEN }>().ok_or(DropReason::ArpMalformed)?;
    let asker = p.macs(f).1 .0;
    let request = arp::Repr::parse(body).map_err(|_| DropReason::ArpMalformed)?;
    if request.operation != arp::REQUEST || request.sender_ip == request.target_ip {
        return Err(DropReason::ArpNotRequest);
    }
    if p.guest.is_some_and(|mac| mac != request.sender_mac) {
        return Err(DropReason::VmPortMac);
    }
    // Who asks whether an address is free has none yet (RFC 5227).
    if request.sender_ip != 0 {
        vmport::check_address(w, p, Addr::v4(request.sender_ip), false)?;
    }
    let found = w.tables.vm4(p.vni, request.target_ip, p.tenant.generation());
    let mac = match found {
        None if p.guest.is_some() && request.target_ip == METADATA_ADDRESS => w.tables.gateway_mac(&p.tenant),
        None => return Err(DropReason::ArpUnknownTarget),
        Some(vm) if vm.flags & VM_FLAG_GATEWAY != 0 => w.tables.gateway_mac(&p.tenant),
        Some(vm) if vm.mac == request.sender_mac => return Err(DropReason::ArpOwnProbe),
        Some(vm) => vm.mac,
    };
    if R::ON {
        w.note(p, Stage::Tenant, Event::Answered { with: "ARP reply", mac: Mac(mac) });
    }
    let mut reply = [0; ethernet::HEADER_LEN + arp::LEN];
    if let Some((eth, body)) = reply.split_first_chunk_mut::<{ ethernet::HEADER_LEN }>() {
        ethernet::Repr { dst: asker, src: mac, ethertype: ethernet::ethertype::ARP }.emit(eth);
        let answer = arp::Repr {
            operation: arp::REPLY,
            sender_mac: mac,
            sender_ip: request.target_ip,
            target_mac: request.sender_mac,
            target_ip: request.sender_ip,
        };
        body.first_chunk_mut().map(|body| answer.emit(body)).ok_or(DropReason::ArpMalformed)?;
    }
    let flow = flow_hash_v4(request.target_ip, request.sender_ip, 0, 0);
    answer::instead(w, p, f, &reply, Back { flow, tos: 0 })
}
