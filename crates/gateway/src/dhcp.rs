// SPDX-License-Identifier: Apache-2.0
//! DHCPv4 at the ports of VMs (RFC 2131): each VM has one address, which the configuration says, so there is nothing to remember.
//! `docs/design/vm-addresses.md` has what is answered with what.

use abi::{flow_hash_v4, DropReason, Mac, Stage};
use wire::{be, ethernet, ipv4, protocol, udp};

use crate::answer::{self, Back};
use crate::echo::OWN_TTL;
use crate::leases::{Lease, LEASE_S};
use crate::packet::Packet;
use crate::record::{Event, Recorder};
use crate::work::Work;
use crate::{Frame, Verdict};

/// Port of a server, and of a client.
const PORTS: [u16; 2] = [67, 68];
/// Bytes in front of the options: the fixed part and the magic cookie.
const FIXED: usize = 240;
const COOKIE: u32 = 0x6382_5363;
/// Bytes of a message at least: some clients and relays take no shorter one (RFC 1542 section 2.1).
const LEAST: usize = 300;
/// The longest client identifier that is sent back.
const IDENTIFIER_MAX: usize = 64;

/// Message types.
mod kind {
    pub const DISCOVER: u8 = 1;
    pub const OFFER: u8 = 2;
    pub const REQUEST: u8 = 3;
    pub const ACK: u8 = 5;
    pub const NAK: u8 = 6;
    pub const INFORM: u8 = 8;
}

/// Options.
mod option {
    pub const PAD: u8 = 0;
    pub const MASK: u8 = 1;
    pub const ROUTER: u8 = 3;
    pub const MTU: u8 = 26;
    pub const REQUESTED: u8 = 50;
    pub const LEASE: u8 = 51;
    pub const KIND: u8 = 53;
    pub const SERVER: u8 = 54;
    pub const IDENTIFIER: u8 = 61;
    pub const END: u8 = 255;
}

/// A client's message, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    kind: u8,
    xid: u32,
    flags: u16,
    client: u32,
    mac: u64,
    requested: Option<u32>,
    server: Option<u32>,
    identifier: &'a [u8],
}

impl<'a> Message<'a> {
    /// Reads what a client sends to a server. None: it is none, or malformed.
    pub fn read(bytes: &'a [u8]) -> Option<Message<'a>> {
        let (fixed, options) = bytes.split_first_chunk::<FIXED>()?;
        // BOOTREQUEST, Ethernet, addresses of 6 bytes; by no relay.
        if be::u32(fixed, 0) & 0xffff_ff00 != 0x0101_0600 || be::u32(fixed, 24) != 0 || be::u32(fixed, 236) != COOKIE {
            return None;
        }
        let mut message = Message {
            kind: 0,
            xid: be::u32(fixed, 4),
            flags: be::u16(fixed, 10),
            client: be::u32(fixed, 12),
            mac: be::mac(fixed, 28),
            requested: None,
            server: None,
            identifier: &[],
        };
        let mut rest = options;
        loop {
            rest = match rest {
                [option::PAD, rest @ ..] => rest,
                [option::END, ..] => return (message.kind != 0).then_some(message),
                [code, len, rest @ ..] => {
                    let (value, rest) = rest.split_at_checked(usize::from(*len))?;
                    message.take(*code, value)?;
                    rest
                }
                _ => return None,
            };
        }
    }

    fn take(&mut self, code: u8, value: &'a [u8]) -> Option<()> {
        let address = || <[u8; 4]>::try_from(value).ok().map(u32::from_be_bytes);
        match code {
            option::KIND => self.kind = *value.first().filter(|_| value.len() == 1)?,
            option::REQUESTED => self.requested = Some(address()?),
            option::SERVER => self.server = Some(address()?),
            option::IDENTIFIER => self.identifier = value.get(..value.len().min(IDENTIFIER_MAX))?,
            _ => {}
        }
        Some(())
    }

    /// The answer by this lease: address and MAC address that it goes to, and the message. None: it gets none.
    pub fn answered(&self, lease: &Lease<u32>) -> Option<(u32, Mac, Vec<u8>)> {
        Some(self.reply(lease, self.answer(lease)?))
    }

    /// Type of the answer by this lease. None: it gets none.
    fn answer(&self, lease: &Lease<u32>) -> Option<u8> {
        if self.server.is_some_and(|server| server != lease.gateway) {
            return None;
        }
        match self.kind {
            kind::DISCOVER => Some(kind::OFFER),
            kind::REQUEST if self.requested.unwrap_or(self.client) == lease.address => Some(kind::ACK),
            kind::REQUEST => Some(kind::NAK),
            kind::INFORM if self.client == lease.address => Some(kind::ACK),
            _ => None,
        }
    }

    /// The answer: address and MAC address that it goes to, and the message.
    fn reply(&self, lease: &Lease<u32>, answer: u8) -> (u32, Mac, Vec<u8>) {
        let mut out = vec![0; FIXED];
        out[..4].copy_from_slice(&[2, 1, 6, 0]);
        be::set_u32(&mut out, 4, self.xid);
        be::set_u16(&mut out, 10, self.flags);
        let given = answer != kind::NAK;
        if given {
            be::set_u32(&mut out, 12, self.client);
            if self.kind != kind::INFORM {
                be::set_u32(&mut out, 16, lease.address);
            }
        }
        out[28..34].copy_from_slice(&self.mac.to_be_bytes()[2..]);
        be::set_u32(&mut out, 236, COOKIE);
        let mut put = |code: u8, value: &[u8]| {
            out.extend([code, value.len() as u8]);
            out.extend(value);
        };
        put(option::KIND, &[answer]);
        put(option::SERVER, &lease.gateway.to_be_bytes());
        if given {
            if self.kind != kind::INFORM {
                put(option::LEASE, &LEASE_S.to_be_bytes());
            }
            put(option::MASK, &u32::MAX.checked_shl(32 - u32::from(lease.bits)).unwrap_or(0).to_be_bytes());
            put(option::ROUTER, &lease.gateway.to_be_bytes());
            put(option::MTU, &lease.mtu.to_be_bytes());
        }
        if !self.identifier.is_empty() {
            // RFC 6842.
            put(option::IDENTIFIER, self.identifier);
        }
        out.push(option::END);
        out.resize(out.len().max(LEAST), 0);
        // RFC 2131 section 4.1.
        let (dst, mac) = match (given, self.client, self.flags & 0x8000) {
            (true, client, _) if client != 0 => (client, Mac(self.mac)),
            (true, _, 0) => (lease.address, Mac(self.mac)),
            _ => (u32::MAX, Mac::BROADCAST),
        };
        (dst, mac, out)
    }
}

/// The bytes behind the UDP header of an IPv4 packet from a client to a server.
fn to_server(packet: &[u8]) -> Option<&[u8]> {
    let ip = ipv4::Packet::new_checked(packet).ok()?;
    if ip.protocol() != protocol::UDP || ip.is_fragment() {
        return None;
    }
    let (header, total) = (ip.header_len(), ip.total_len());
    let datagram = udp::Packet::new_checked(packet.get(header..total)?).ok()?;
    let end = header + datagram.length();
    (datagram.dst_port() == PORTS[0]).then(|| packet.get(header + udp::HEADER_LEN..end)).flatten()
}

/// Whether a frame of a VM, which is for everybody or for the gateway, asks a DHCP server.
pub(crate) fn is_for_server(p: &Packet, f: &Frame<'_>) -> bool {
    !p.v6() && p.guest.is_some() && to_server(p.inner_frame(f).get(ethernet::HEADER_LEN..).unwrap_or(&[])).is_some()
}

/// Answers it, or says why not.
#[cold]
pub(crate) fn answer<R: Recorder>(w: &mut Work<'_, R>, p: &Packet, f: &mut Frame<'_>) -> Result<Verdict, DropReason> {
    const REFUSED: DropReason = DropReason::DhcpRefused;
    let (mac, sight) = p.guest.zip(w.sessions).ok_or(REFUSED)?;
    let packet = p.inner_frame(f).get(ethernet::HEADER_LEN..).ok_or(REFUSED)?;
    let message = to_server(packet).and_then(Message::read).filter(|m| m.mac == mac).ok_or(REFUSED)?;
    let leases = sight.connections.leases();
    let told = leases.of(p.vni, mac).ok_or(REFUSED)?;
    let lease = told.v4.ok_or(REFUSED)?;
    let (dst, dst_mac, reply) = message.answered(&lease).ok_or(REFUSED)?;
    if R::COUNTS && !told.may_answer(w.now) {
        return Err(DropReason::DhcpLimited);
    }
    let src = w.tables.gateway_mac(&p.tenant);
    let frame = framed(&reply, (lease.gateway, dst), (src, dst_mac.0)).ok_or(DropReason::TxFailed)?;
    if R::ON {
        w.note(p, Stage::Tenant, Event::Answered { with: "DHCP answer", mac: Mac(src) });
    }
    let flow = flow_hash_v4(lease.gateway, dst, protocol::UDP, u32::from(PORTS[0]) << 16 | u32::from(PORTS[1]));
    answer::instead(w, p, f, &frame, Back { flow, tos: 0 })
}

/// A message of a server in a frame. Addresses and MAC addresses: source, destination.
fn framed(message: &[u8], (src, dst): (u32, u32), (src_mac, dst_mac): (u64, u64)) -> Option<Vec<u8>> {
    let payload_len = message.len() + udp::HEADER_LEN;
    let mut frame = vec![0; ethernet::HEADER_LEN + ipv4::HEADER_LEN + udp::HEADER_LEN];
    frame.extend(message);
    let (eth, rest) = frame.split_first_chunk_mut()?;
    ethernet::Repr { dst: dst_mac, src: src_mac, ethertype: ethernet::ethertype::IPV4 }.emit(eth);
    let (ip, rest) = rest.split_first_chunk_mut()?;
    let header =
        ipv4::Repr { tos: 0, payload_len, ident: 0, flags_offset: 0, ttl: OWN_TTL, protocol: protocol::UDP, src, dst };
    header.emit(ip);
    udp::Repr { src_port: PORTS[0], dst_port: PORTS[1], payload_len: message.len() }.emit(rest.first_chunk_mut()?);
    udp::Packet::new_unchecked(rest).fill_checksum_v4(src, dst);
    Some(frame)
}

#[cfg(test)]
#[path = "dhcp_tests.rs"]
mod tests;
