// SPDX-License-Identifier: Apache-2.0
//! Router Advertisements at the ports of VMs (RFC 4861 section 6): the VPC's gateway is their router. Its link-local address follows from its MAC
//! address. Addresses come by DHCPv6 alone, for a VM has those that the configuration says.

use abi::{flow_hash_v6, DropReason, Mac, Stage};
use wire::icmpv6::{self, kind};
use wire::{be, ipv6, nd, protocol};

use crate::answer::{self, Back};
use crate::leases::{Lease, LEASE_S};
use crate::packet::{Addr, Packet};
use crate::record::{Event, Recorder};
use crate::work::Work;
use crate::{Frame, Verdict};

/// Bytes of the message: fixed part, MAC address, MTU, prefix.
const LEN: usize = 16 + 8 + 8 + 32;
/// Seconds for which the router is one (RFC 8319 allows 18 hours). A VM asks when its interface comes up, and is told again unasked long before.
const LIFETIME_S: u16 = 9000;
const HOP_LIMIT: u8 = 64;
/// Addresses come by DHCPv6 (M).
const MANAGED: u32 = 0x80;
/// The prefix is on the link (L); no addresses are made of it.
const ON_LINK: u8 = 0x80;
const OPTION_PREFIX: u8 = 3;
const OPTION_MTU: u8 = 5;

/// The link-local address that follows from a MAC address (RFC 4291 appendix A).
pub(crate) const fn link_local(mac: u64) -> u128 {
    let id = (mac >> 24 ^ 0x02_0000) << 40 | 0xff_fe << 24 | mac & 0xff_ffff;
    0xfe80 << 112 | id as u128
}

/// Answers a solicitation of `asker` (0: it has no address yet), whose VM is at the port that it came by.
#[cold]
pub(crate) fn answer<R: Recorder>(
    w: &mut Work<'_, R>,
    p: &Packet,
    f: &mut Frame<'_>,
    (asker, asker_mac): (u128, u64),
) -> Result<Verdict, DropReason> {
    const REFUSED: DropReason = DropReason::NdUnsupported;
    let (mac, sight) = p.guest.zip(w.sessions).ok_or(REFUSED)?;
    let leases = sight.connections.leases();
    let told = leases.of(p.vni, mac).ok_or(REFUSED)?;
    let lease = told.v6.ok_or(REFUSED)?;
    if R::COUNTS && !told.may_answer(w.now) {
        return Err(DropReason::DhcpLimited);
    }
    let router = w.tables.gateway_mac(&p.tenant);
    let (dst, dst_mac) = match asker {
        0 => (nd::ALL_NODES, nd::multicast_mac(nd::ALL_NODES)),
        asker => (asker, asker_mac),
    };
    let frame = framed(&lease, router, dst, dst_mac).ok_or(DropReason::TxFailed)?;
    if R::ON {
        w.note(p, Stage::Tenant, Event::Answered { with: "router advertisement", mac: Mac(router) });
    }
    let ends = [link_local(router), dst].map(|a| Addr::v6(a).halves());
    answer::instead(w, p, f, &frame, Back { flow: flow_hash_v6(ends[0], ends[1], protocol::ICMPV6, 0), tos: 0 })
}

/// The advertisement by a lease of a router with this MAC address, to all of the link, in a frame.
pub fn advertisement(lease: &Lease<u128>, router: u64) -> Option<Vec<u8>> {
    framed(lease, router, nd::ALL_NODES, nd::multicast_mac(nd::ALL_NODES))
}

/// The advertisement by a lease, in a frame.
fn framed(lease: &Lease<u128>, router: u64, dst: u128, dst_mac: u64) -> Option<Vec<u8>> {
    let src = link_local(router);
    let (next_header, payload_len) = (protocol::ICMPV6, LEN);
    let header = ipv6::Repr { traffic_class: 0, flow_label: 0, payload_len, next_header, hop_limit: 255, src, dst };
    let mut frame = answer::frame_v6((router, dst_mac), &header)?;
    let message = frame.get_mut(answer::V6_HEADERS..)?;
    let options = message.get_mut(16..)?;
    options[..2].copy_from_slice(&[nd::OPTION_SOURCE_MAC, 1]);
    be::set_mac(options, 2, router);
    options[8..10].copy_from_slice(&[OPTION_MTU, 1]);
    be::set_u32(options, 12, u32::from(lease.mtu));
    options[16..20].copy_from_slice(&[OPTION_PREFIX, 4, lease.bits, ON_LINK]);
    be::set_u32(options, 20, LEASE_S);
    be::set_u32(options, 24, LEASE_S);
    let mask = u128::MAX.checked_shl(128 - u32::from(lease.bits)).unwrap_or(0);
    be::set_u128(options, 32, lease.address & mask);
    let rest = u32::from(HOP_LIMIT) << 24 | MANAGED << 16 | u32::from(LIFETIME_S);
    icmpv6::Repr { kind: kind::ROUTER_ADVERTISEMENT, code: 0, rest }.emit(src, dst, message).ok()?;
    Some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_routers_own_address_follows_from_its_mac_address() {
        assert_eq!(link_local(0x0200_5e10_0001), 0xfe80 << 112 | 0x0000_5eff_fe10_0001);
        assert_eq!(link_local(0x5254_00ab_cdef), 0xfe80 << 112 | 0x5054_00ff_feab_cdef);
    }

    #[test]
    fn an_advertisement_says_what_the_lease_says() {
        let prefix = 0xfd00_0064 << 96;
        let lease = Lease { address: prefix | 5, bits: 64, gateway: prefix | 1, mtu: 1450 };
        let frame = framed(&lease, 0x0200_0000_6401, nd::ALL_NODES, 0x3333_0000_0001).unwrap();
        let ip = ipv6::Packet::new_checked(&frame[14..]).unwrap();
        let message = ip.payload();
        assert_eq!((ip.src(), ip.dst(), ip.hop_limit()), (link_local(0x0200_0000_6401), nd::ALL_NODES, 255));
        assert!(icmpv6::checksum_ok(ip.src(), ip.dst(), message) && nd::options_ok(&message[16..]));
        assert!(nd::valid(ip.src(), ip.dst(), message));
        assert_eq!(message[..2], [134, 0]);
        assert_eq!(message[4..8], [64, 0x80, 0x23, 0x28]);
        assert_eq!(message[16..24], [1, 1, 2, 0, 0, 0, 0x64, 1]);
        assert_eq!(message[24..32], [5, 1, 0, 0, 0, 0, 5, 0xaa]);
        assert_eq!(message[32..36], [3, 4, 64, 0x80]);
        assert_eq!(be::u128(message, 48), prefix);
    }
}
