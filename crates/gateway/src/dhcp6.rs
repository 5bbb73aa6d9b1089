// SPDX-License-Identifier: Apache-2.0
//! DHCPv6 at the ports of VMs (RFC 8415): each VM has one address of IPv6, which the configuration says, so there is nothing to remember.
//! `docs/design/vm-addresses.md` has what is answered with what.

use abi::{flow_hash_v6, DropReason, Mac, Stage};
use wire::{be, checksum, ethernet, ipv6, protocol, udp};

use crate::answer::{self, Back};
use crate::echo::OWN_TTL;
use crate::leases::{Lease, LEASE_S};
use crate::packet::{Addr, Packet};
use crate::record::{Event, Recorder};
use crate::router::link_local;
use crate::work::Work;
use crate::{Frame, Verdict};

/// Port of a server, and of a client.
const PORTS: [u16; 2] = [547, 546];
/// All servers and relays of the link, ff02::1:2.
const ALL_SERVERS: u128 = 0xff02 << 112 | 0x1_0002;
/// Bytes in front of the options: type and transaction.
const FIXED: usize = 4;
/// The longest identifier of a client or server (RFC 8415 section 11.1).
const IDENTIFIER_MAX: usize = 130;
/// Bytes of an IA_NA in front of its options, and of an address in it.
const IA_FIXED: usize = 12;
const ADDRESS_LEN: usize = 24;
/// Addresses of a question that are looked at: a VM has one, and may still hold others.
const ADDRESSES_MAX: usize = 8;

/// Message types.
mod kind {
    pub const SOLICIT: u8 = 1;
    pub const ADVERTISE: u8 = 2;
    pub const REQUEST: u8 = 3;
    pub const CONFIRM: u8 = 4;
    pub const RENEW: u8 = 5;
    pub const REBIND: u8 = 6;
    pub const REPLY: u8 = 7;
    pub const RELEASE: u8 = 8;
    pub const DECLINE: u8 = 9;
    pub const INFORMATION: u8 = 11;
}

/// Options.
mod option {
    pub const CLIENT: u16 = 1;
    pub const SERVER: u16 = 2;
    pub const IA: u16 = 3;
    pub const TEMPORARY: u16 = 4;
    pub const ADDRESS: u16 = 5;
    pub const STATUS: u16 = 13;
    pub const RAPID: u16 = 14;
    pub const PREFIX: u16 = 25;
}

/// Status codes.
mod status {
    pub const SUCCESS: u16 = 0;
    pub const NO_ADDRESS: u16 = 2;
    pub const NOT_ON_LINK: u16 = 4;
    pub const NO_PREFIX: u16 = 6;
}

/// A client's message, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    kind: u8,
    transaction: [u8; 3],
    client: &'a [u8],
    server: Option<&'a [u8]>,
    /// Identifier of its first IA_NA.
    ia: Option<u32>,
    /// The addresses in it.
    addresses: Vec<u128>,
    /// Further ones, of any kind, by option and identifier: nothing is given for them.
    others: Vec<(u16, u32)>,
    rapid: bool,
}

/// The first of some options: its code, its value, and the rest. None: it is cut off.
fn split_option(options: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let (head, rest) = options.split_first_chunk::<4>()?;
    let (value, rest) = rest.split_at_checked(usize::from(be::u16(head, 2)))?;
    Some((be::u16(head, 0), value, rest))
}

impl<'a> Message<'a> {
    /// Reads what a client sends to a server. None: it is none, or malformed.
    pub fn read(bytes: &'a [u8]) -> Option<Message<'a>> {
        let (&[kind, a, b, c], mut rest) = bytes.split_first_chunk::<FIXED>()?;
        let mut message = Message {
            kind,
            transaction: [a, b, c],
            client: &[],
            server: None,
            ia: None,
            addresses: Vec::new(),
            others: Vec::new(),
            rapid: false,
        };
        while !rest.is_empty() {
            let (code, value, next) = split_option(rest)?;
            message.take(code, value)?;
            rest = next;
        }
        Some(message)
    }

    fn take(&mut self, code: u16, value: &'a [u8]) -> Option<()> {
        let identifier = || Some(value).filter(|v| (1..=IDENTIFIER_MAX).contains(&v.len()));
        match code {
            option::CLIENT => self.client = identifier()?,
            option::SERVER => self.server = Some(identifier()?),
            option::RAPID => self.rapid = true,
            option::IA if self.ia.is_none() => {
                let (head, mut rest) = value.split_first_chunk::<IA_FIXED>()?;
                self.ia = Some(be::u32(head, 0));
                while !rest.is_empty() {
                    let (code, value, next) = split_option(rest)?;
                    if code == option::ADDRESS && self.addresses.len() < ADDRESSES_MAX {
                        self.addresses.push(be::u128(value.first_chunk::<ADDRESS_LEN>()?, 0));
                    }
                    rest = next;
                }
            }
            option::IA | option::TEMPORARY | option::PREFIX if self.others.len() < ADDRESSES_MAX => {
                self.others.push((code, be::u32(value.first_chunk::<4>()?, 0)));
            }
            _ => {}
        }
        Some(())
    }

    /// The answer by this lease of a server whose MAC address is this. None: it gets none (RFC 8415 section 16).
    pub fn answered(&self, lease: &Lease<u128>, server: Mac) -> Option<Vec<u8>> {
        let own = identifier(server);
        let chosen = self.server.map(|server| server == own);
        let (known, for_address) = (!self.client.is_empty(), self.ia.is_some() || !self.others.is_empty());
        let mut answer = Answer::new(self, &own);
        match (self.kind, chosen) {
            (kind::SOLICIT, None) if known => {
                let kind = if self.rapid { kind::REPLY } else { kind::ADVERTISE };
                if self.rapid {
                    answer.put(option::RAPID, &[]);
                }
                answer.lease(self, lease);
                Some(answer.ended(kind))
            }
            (kind::REQUEST | kind::RENEW, Some(true)) | (kind::REBIND, None) if known => {
                answer.lease(self, lease);
                Some(answer.ended(kind::REPLY))
            }
            (kind::CONFIRM, None) if known && !self.addresses.is_empty() => {
                let right = self.addresses.iter().all(|a| *a == lease.address);
                answer.status(if right { status::SUCCESS } else { status::NOT_ON_LINK });
                Some(answer.ended(kind::REPLY))
            }
            (kind::RELEASE | kind::DECLINE, Some(true)) if known => {
                answer.status(status::SUCCESS);
                Some(answer.ended(kind::REPLY))
            }
            (kind::INFORMATION, None | Some(true)) if !for_address => Some(answer.ended(kind::REPLY)),
            _ => None,
        }
    }
}

/// The identifier of a server: by its link-layer address (DUID-LL, section 11.4).
fn identifier(mac: Mac) -> [u8; 10] {
    let mut out = [0, 3, 0, 1, 0, 0, 0, 0, 0, 0];
    be::set_mac(&mut out, 4, mac.0);
    out
}

/// An answer as it is written.
struct Answer(Vec<u8>);

impl Answer {
    fn new(to: &Message<'_>, server: &[u8]) -> Answer {
        let [a, b, c] = to.transaction;
        let mut answer = Answer(vec![0, a, b, c]);
        if !to.client.is_empty() {
            answer.put(option::CLIENT, to.client);
        }
        answer.put(option::SERVER, server);
        answer
    }

    fn put(&mut self, code: u16, value: &[u8]) {
        self.0.extend(code.to_be_bytes());
        self.0.extend((value.len() as u16).to_be_bytes());
        self.0.extend(value);
    }

    fn status(&mut self, code: u16) {
        self.put(option::STATUS, &code.to_be_bytes());
    }

    /// The address, if one is asked for; others that the client has are over.
    fn lease(&mut self, of: &Message<'_>, lease: &Lease<u128>) {
        self.nothing(of);
        let Some(ia) = of.ia else { return };
        let mut value = Answer(Vec::new());
        value.0.extend([ia, LEASE_S / 2, LEASE_S / 5 * 4].iter().flat_map(|word| word.to_be_bytes()));
        let mut address = |a: u128, seconds: u32| {
            let lifetimes = [seconds, seconds].map(u32::to_be_bytes).concat();
            value.put(option::ADDRESS, &[&a.to_be_bytes()[..], &lifetimes].concat());
        };
        address(lease.address, LEASE_S);
        of.addresses.iter().filter(|a| **a != lease.address).for_each(|a| address(*a, 0));
        self.put(option::IA, &value.0);
    }

    /// What is asked for and not given comes back, with the reason.
    fn nothing(&mut self, of: &Message<'_>) {
        for (code, id) in &of.others {
            let mut value = Answer(id.to_be_bytes().to_vec());
            if *code != option::TEMPORARY {
                // Times, which mean nothing.
                value.0.extend([0; 8]);
            }
            value.status(if *code == option::PREFIX { status::NO_PREFIX } else { status::NO_ADDRESS });
            self.put(*code, &value.0);
        }
    }

    fn ended(mut self, kind: u8) -> Vec<u8> {
        self.0[0] = kind;
        self.0
    }
}

/// What is behind the IPv6 header of a packet of UDP to all servers, by its addresses and ports alone.
fn to_servers(packet: &[u8]) -> Option<&[u8]> {
    let ip = ipv6::Packet::new_checked(packet).ok()?;
    if ip.next_header() != protocol::UDP || ip.dst() != ALL_SERVERS {
        return None;
    }
    let payload = packet.get(ipv6::HEADER_LEN..ipv6::HEADER_LEN + ip.payload().len())?;
    (be::u16(payload.get(2..4)?, 0) == PORTS[0]).then_some(payload)
}

/// A client's datagram: who sends it, and what is behind its UDP header.
struct Question<'a> {
    src: u128,
    payload: &'a [u8],
}

impl<'a> Question<'a> {
    /// Of a packet that is for servers, if its checksum is right. A client asks from its link-local address.
    fn read(packet: &'a [u8]) -> Option<Question<'a>> {
        let (payload, ip) = (to_servers(packet)?, ipv6::Packet::new_checked(packet).ok()?);
        let datagram = payload.get(..udp::Packet::new_checked(payload).ok()?.length())?;
        let pseudo = checksum::pseudo_v6(ip.src(), ip.dst(), protocol::UDP, datagram.len() as u32);
        let udp = udp::Packet::new_checked(datagram).ok()?;
        let sound = ip.src() >> 118 == 0xfe80 >> 6 && udp.checksum() != 0 && udp.checksum_ok(pseudo);
        Some(Question { src: ip.src(), payload: datagram.get(udp::HEADER_LEN..)? }).filter(|_| sound)
    }
}

/// Whether a frame of a VM, which is for many, asks DHCPv6 servers.
pub(crate) fn is_for_server(p: &Packet, f: &Frame<'_>) -> bool {
    p.v6() && p.guest.is_some() && to_servers(p.inner_frame(f).get(ethernet::HEADER_LEN..).unwrap_or(&[])).is_some()
}

/// Answers it, or says why not.
#[cold]
pub(crate) fn answer<R: Recorder>(w: &mut Work<'_, R>, p: &Packet, f: &mut Frame<'_>) -> Result<Verdict, DropReason> {
    const REFUSED: DropReason = DropReason::DhcpRefused;
    let (mac, sight) = p.guest.zip(w.sessions).ok_or(REFUSED)?;
    let packet = p.inner_frame(f).get(ethernet::HEADER_LEN..).ok_or(REFUSED)?;
    let question = Question::read(packet).ok_or(REFUSED)?;
    let message = Message::read(question.payload).ok_or(REFUSED)?;
    let leases = sight.connections.leases();
    let told = leases.of(p.vni, mac).ok_or(REFUSED)?;
    let server = w.tables.gateway_mac(&p.tenant);
    let reply = message.answered(&told.v6.ok_or(REFUSED)?, Mac(server)).ok_or(REFUSED)?;
    if R::COUNTS && !told.may_answer(w.now) {
        return Err(DropReason::DhcpLimited);
    }
    let ends = (link_local(server), question.src);
    let frame = framed(&reply, ends, (server, mac)).ok_or(DropReason::TxFailed)?;
    if R::ON {
        w.note(p, Stage::Tenant, Event::Answered { with: "DHCPv6 answer", mac: Mac(server) });
    }
    let halves = [ends.0, ends.1].map(|a| Addr::v6(a).halves());
    let ports = u32::from(PORTS[0]) << 16 | u32::from(PORTS[1]);
    let flow = flow_hash_v6(halves[0], halves[1], protocol::UDP, ports);
    answer::instead(w, p, f, &frame, Back { flow, tos: 0 })
}

/// A message of a server in a frame. Addresses and MAC addresses: source, destination.
fn framed(message: &[u8], (src, dst): (u128, u128), macs: (u64, u64)) -> Option<Vec<u8>> {
    let (next_header, payload_len) = (protocol::UDP, message.len() + udp::HEADER_LEN);
    let header = ipv6::Repr { traffic_class: 0, flow_label: 0, payload_len, next_header, hop_limit: OWN_TTL, src, dst };
    let mut frame = answer::frame_v6(macs, &header)?;
    let datagram = frame.get_mut(answer::V6_HEADERS..)?;
    datagram.get_mut(udp::HEADER_LEN..)?.copy_from_slice(message);
    udp::Repr { src_port: PORTS[0], dst_port: PORTS[1], payload_len: message.len() }.emit(datagram.first_chunk_mut()?);
    udp::Packet::new_unchecked(datagram).fill_checksum_v6(src, dst);
    Some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: u128 = 0xfd00_0064 << 96;
    const LEASE: Lease<u128> = Lease { address: PREFIX | 5, bits: 64, gateway: PREFIX | 1, mtu: 1450 };
    const SERVER: Mac = Mac(0x0200_0000_6401);
    const CLIENT: [u8; 14] = [0, 1, 0, 10, 0, 3, 0, 1, 2, 0, 0, 0, 0x64, 5];

    fn option(code: u16, value: &[u8]) -> Vec<u8> {
        [&code.to_be_bytes()[..], &(value.len() as u16).to_be_bytes(), value].concat()
    }

    fn ia(addresses: &[u128]) -> Vec<u8> {
        let held = addresses.iter().flat_map(|a| option(5, &[&a.to_be_bytes()[..], &[0; 8]].concat()));
        option(3, &[&[0, 0, 0, 9][..], &[0; 8], &held.collect::<Vec<_>>()].concat())
    }

    fn answer_to(kind: u8, options: &[&[u8]]) -> Option<Vec<u8>> {
        let bytes = [&[kind, 1, 2, 3][..], &options.concat()].concat();
        Message::read(&bytes)?.answered(&LEASE, SERVER)
    }

    #[test]
    fn each_question_has_its_answer() {
        let (own, other) = (option(2, &identifier(SERVER)), option(2, &identifier(Mac(7))));
        let (none, right, wrong) = (ia(&[]), ia(&[LEASE.address]), ia(&[PREFIX | 6]));
        let kind_of = |kind, options: &[&[u8]]| answer_to(kind, options).map(|said| said[0]);
        assert_eq!(kind_of(1, &[&CLIENT, &none]), Some(2));
        assert_eq!(kind_of(1, &[&CLIENT, &option(14, &[]), &none]), Some(7), "at once");
        assert_eq!(kind_of(1, &[&none]), None, "nobody");
        assert_eq!(kind_of(1, &[&CLIENT, &own, &none]), None, "it knows a server");
        for kind in [3, 5, 8, 9] {
            assert_eq!(kind_of(kind, &[&CLIENT, &own, &right]), Some(7));
            assert_eq!(kind_of(kind, &[&CLIENT, &other, &right]), None, "it has chosen another server");
            assert_eq!(kind_of(kind, &[&CLIENT, &right]), None);
        }
        assert_eq!(kind_of(6, &[&CLIENT, &right]), Some(7));
        let status = |options: &[&[u8]]| answer_to(4, options).map(|said| said[said.len() - 1]);
        assert_eq!(status(&[&CLIENT, &right]), Some(0));
        assert_eq!(status(&[&CLIENT, &wrong]), Some(4));
        assert_eq!(status(&[&CLIENT, &none]), None);
        assert_eq!((kind_of(11, &[]), kind_of(11, &[&none])), (Some(7), None));
        for silent in [0, 2, 7, 10, 12, 13, 255] {
            assert_eq!(kind_of(silent, &[&CLIENT, &none]), None, "{silent}");
        }
    }

    #[test]
    fn an_answer_gives_the_address_and_ends_others() {
        let said = answer_to(6, &[&CLIENT, &ia(&[PREFIX | 6, LEASE.address])]).unwrap();
        let address = |a: u128, seconds: u32| {
            let lifetimes = [seconds.to_be_bytes(), seconds.to_be_bytes()].concat();
            option(5, &[&a.to_be_bytes()[..], &lifetimes].concat())
        };
        let times = [43_200u32.to_be_bytes(), 69_120u32.to_be_bytes()].concat();
        let held = [address(LEASE.address, 86_400), address(PREFIX | 6, 0)].concat();
        let wanted = [
            &[7, 1, 2, 3][..],
            &CLIENT,
            &option(2, &identifier(SERVER)),
            &option(3, &[&[0, 0, 0, 9][..], &times, &held].concat()),
        ];
        assert_eq!(said, wanted.concat());
    }

    #[test]
    fn what_is_not_given_comes_back_with_the_reason() {
        let second = option(3, &[&[0, 0, 0, 8][..], &[0; 8]].concat());
        let prefix = option(25, &[&[0, 0, 0, 7][..], &[0; 8]].concat());
        let temporary = option(4, &[0, 0, 0, 6]);
        let said = answer_to(1, &[&CLIENT, &ia(&[]), &second, &prefix, &temporary]).unwrap();
        let (none, no_prefix) = (option(13, &[0, 2]), option(13, &[0, 6]));
        let wanted = [
            option(3, &[&[0, 0, 0, 8][..], &[0; 8], &none].concat()),
            option(25, &[&[0, 0, 0, 7][..], &[0; 8], &no_prefix].concat()),
            option(4, &[&[0, 0, 0, 6][..], &none].concat()),
        ];
        let at = 4 + CLIENT.len() + 14;
        assert_eq!(said[at..at + wanted.concat().len()], wanted.concat());
        assert_eq!(answer_to(11, &[&temporary]), None);
    }

    #[test]
    fn what_is_cut_off_is_none() {
        let whole = [&[1, 1, 2, 3][..], &CLIENT, &ia(&[1])].concat();
        assert!(Message::read(&whole).is_some());
        let ends = [4, 4 + CLIENT.len(), whole.len()];
        for end in (0..whole.len()).filter(|end| !ends.contains(end)) {
            assert_eq!(Message::read(&whole[..end]), None, "{end}");
        }
        for (code, value) in [(1, &[][..]), (2, &[0; 131]), (3, &[0; 11])] {
            assert_eq!(Message::read(&[&[1, 1, 2, 3][..], &option(code, value)].concat()), None);
        }
    }
}
