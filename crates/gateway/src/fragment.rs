// SPDX-License-Identifier: Apache-2.0
//! Inner fragmentation (RFC 791 §3.2) of IPv4 packets that do not fit the underlay and may be cut. And fragmentation of the tunnel
//! packet (RFC 2473 §7.1, RFC 791, RFC 8200 §4.5) for an IPv6 packet that is no larger than every link must carry.
//!
//! The first fragment stays in the packet's own frame; the others are generated. Each is encapsulated like the whole
//! packet would have been. Padding behind the inner packet is not carried.

use abi::{DropReason, IfIndex, Stage};
use tables::NexthopView;
use wire::{be, ethernet, ipv4, ipv6, protocol};

use crate::frame::{Frame, Generated};
use crate::framing::Carrier;
use crate::packet::Packet;
use crate::record::{Event, Recorder};
use crate::work::{Path, Work};

/// Options of a fragment beyond the first: those whose copied flag is set, padded to whole words.
fn copied_options(options: &[u8], out: &mut [u8; 40]) -> usize {
    let (mut at, mut len) = (0, 0);
    while let Some(&kind) = options.get(at) {
        let size = match kind {
            0 => break,
            1 => 1,
            _ => match options.get(at + 1) {
                Some(&size) if size >= 2 && at + size as usize <= options.len() => size as usize,
                // Malformed options are nobody's to repeat.
                _ => break,
            },
        };
        if kind & 0x80 != 0 {
            out[len..len + size].copy_from_slice(&options[at..at + size]);
            len += size;
        }
        at += size;
    }
    // The rest of `out` is zero: end of options.
    len.next_multiple_of(4)
}

/// The header of fragments beyond the first.
fn later_header(header: &[u8]) -> Vec<u8> {
    let mut options = [0; 40];
    let len = copied_options(header.get(ipv4::HEADER_LEN..).unwrap_or(&[]), &mut options);
    [&header[..ipv4::HEADER_LEN.min(header.len())], &options[..len]].concat()
}

/// An inner packet may be cut into pieces of at most `room` bytes.
#[cold]
pub(crate) fn may_cut(packet: &[u8], room: usize) -> bool {
    let Ok(ip) = ipv4::Packet::new_checked(packet) else { return false };
    // The first header carries all options, so it is the longest.
    let fits = room >= ip.header_len() + 8;
    !ip.dont_fragment() && fits && ip.fragment_offset() + ip.payload().len() <= usize::from(u16::MAX)
}

/// Cuts the packet in `inner`, a frame that has been rewritten and which [`may_cut`], and sends the pieces.
#[cold]
pub(crate) fn cut<R: Recorder>(
    w: &mut Work<'_, R>,
    p: &Packet,
    f: &mut Frame<'_>,
    inner: &[u8],
    carrier: &Carrier,
    nexthop: NexthopView,
) -> Result<(), DropReason> {
    let room = carrier.room(nexthop.mtu);
    let (eth, packet) = inner.split_first_chunk::<{ ethernet::HEADER_LEN }>().ok_or(DropReason::TooBig)?;
    if !may_cut(packet, room) {
        // The next hop changed since locate.
        return Err(DropReason::TxFailed);
    }
    let ip = ipv4::Packet::new_unchecked(packet);
    let (header, payload) = (ip.header(), ip.payload());
    let later = later_header(header);
    let base = ip.fragment_offset();
    let (mut done, mut pieces) = (0, 0);
    while done < payload.len() || pieces == 0 {
        let header = if pieces == 0 { header } else { &later[..] };
        let whole_rest = payload.len() - done <= room - header.len();
        let len = if whole_rest { payload.len() - done } else { (room - header.len()) & !7 };
        let more = !whole_rest || ip.flags_offset() & ipv4::MORE_FRAGMENTS != 0;
        let piece = build(eth, header, &payload[done..done + len], base + done, more);
        send(w, p, f, &piece, carrier, pieces == 0, nexthop.ifindex)?;
        done += len;
        pieces += 1;
    }
    if R::ON {
        w.note(p, Stage::Rewrite, Event::Fragmented { fragments: pieces });
    }
    Ok(())
}

/// Bytes of a tunnel packet behind its IP header that one fragment carries.
fn split_room(path: &Path) -> usize {
    let headers = if path.nc_v6 { ipv6::HEADER_LEN + ipv6::FRAGMENT_LEN } else { ipv4::HEADER_LEN };
    (path.nexthop.mtu as usize).saturating_sub(headers) & !7
}

/// A tunnel packet may be cut for this next hop. (A link of fewer bytes carries no IP.)
#[cold]
pub(crate) fn may_split(path: &Path) -> bool {
    path.tags.is_none() && split_room(path) >= 256
}

/// Cuts the tunnel packet in `f` and sends the pieces. The NC puts them together.
#[cold]
pub(crate) fn split<R: Recorder>(
    w: &mut Work<'_, R>,
    p: &Packet,
    f: &mut Frame<'_>,
    path: &Path,
) -> Result<(), DropReason> {
    let frame = f.data().to_vec();
    let head = ethernet::HEADER_LEN + if path.nc_v6 { ipv6::HEADER_LEN } else { ipv4::HEADER_LEN };
    let (head, payload) = frame.split_at_checked(head).ok_or(DropReason::TxFailed)?;
    let (room, ident) = (split_room(path).max(8), w.next_ident());
    for (number, data) in payload.chunks(room).enumerate() {
        let more = (number + 1) * room < payload.len();
        let piece = match path.nc_v6 {
            true => piece_v6(head, data, number * room, more, ident),
            false => piece_v4(head, data, number * room, more, ident as u16),
        };
        if number == 0 {
            // The Fragment header takes room in front.
            let start = f.offset as usize - if path.nc_v6 { ipv6::FRAGMENT_LEN } else { 0 };
            f.buffer.get_mut(start..start + piece.len()).ok_or(DropReason::TxFailed)?.copy_from_slice(&piece);
            (f.offset, f.len) = (start as u32, piece.len() as u32);
        } else {
            let mut data = w.output.buffer(piece.len());
            data.copy_from_slice(&piece);
            w.generate(
                p,
                Stage::Rewrite,
                Generated {
                    data,
                    ifindex: path.nexthop.ifindex,
                    cause: p.index as usize,
                    classes: p.classes(),
                    copy: false,
                },
            );
        }
    }
    if R::ON {
        w.note(p, Stage::Rewrite, Event::Fragmented { fragments: payload.len().div_ceil(room) });
    }
    Ok(())
}

fn piece_v4(head: &[u8], data: &[u8], offset: usize, more: bool, ident: u16) -> Vec<u8> {
    let mut piece = [head, data].concat();
    be::set_u16(&mut piece, ethernet::HEADER_LEN + 4, ident);
    let mut ip = ipv4::Packet::new_unchecked(&mut piece[ethernet::HEADER_LEN..]);
    ip.set_total_len((ipv4::HEADER_LEN + data.len()) as u16);
    ip.set_flags_offset(if more { ipv4::MORE_FRAGMENTS } else { 0 } | (offset / 8) as u16);
    ip.fill_checksum();
    piece
}

fn piece_v6(head: &[u8], data: &[u8], offset: usize, more: bool, ident: u32) -> Vec<u8> {
    let mut fragment = [0; ipv6::FRAGMENT_LEN];
    fragment[0] = head[ethernet::HEADER_LEN + 6];
    be::set_u16(&mut fragment, 2, offset as u16 | u16::from(more));
    be::set_u32(&mut fragment, 4, ident);
    let mut piece = [head, &fragment, data].concat();
    be::set_u16(&mut piece, ethernet::HEADER_LEN + 4, (ipv6::FRAGMENT_LEN + data.len()) as u16);
    piece[ethernet::HEADER_LEN + 6] = protocol::FRAGMENT;
    piece
}

/// One piece as an inner frame.
fn build(eth: &[u8], header: &[u8], data: &[u8], offset: usize, more: bool) -> Vec<u8> {
    let mut piece = [eth, header, data].concat();
    let mut ip = ipv4::Packet::new_unchecked(&mut piece[ethernet::HEADER_LEN..]);
    let flags = if more { ipv4::MORE_FRAGMENTS } else { 0 };
    ip.set_header_len(header.len());
    ip.set_total_len((header.len() + data.len()) as u16);
    ip.set_flags_offset(flags | (offset / 8) as u16);
    ip.fill_checksum();
    piece
}

/// The first piece takes the place of the packet, the others are generated.
fn send<R: Recorder>(
    w: &mut Work<'_, R>,
    p: &Packet,
    f: &mut Frame<'_>,
    piece: &[u8],
    carrier: &Carrier,
    first: bool,
    ifindex: IfIndex,
) -> Result<(), DropReason> {
    if first {
        let at = f.offset as usize + p.inner as usize;
        f.buffer.get_mut(at..at + piece.len()).ok_or(DropReason::TxFailed)?.copy_from_slice(piece);
        let start = carrier.encapsulate(f.buffer, at, piece.len(), &w.settings)?;
        f.offset = start as u32;
        f.len = (at - start + piece.len()) as u32;
        return Ok(());
    }
    let at = carrier.overhead();
    let mut data = w.output.buffer(at + piece.len());
    data[at..].copy_from_slice(piece);
    carrier.encapsulate(&mut data, at, piece.len(), &w.settings)?;
    w.generate(
        p,
        Stage::Rewrite,
        Generated { data, ifindex, cause: p.index as usize, classes: p.classes(), copy: false },
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::{LineNo, Vni};

    fn copied(options: &[u8]) -> Vec<u8> {
        let mut out = [0; 40];
        let len = copied_options(options, &mut out);
        out[..len].to_vec()
    }

    #[test]
    fn only_options_with_the_copied_flag_are_repeated() {
        // No-operation, record route (not copied), strict source route (copied), end.
        let options = [1, 7, 7, 4, 0, 0, 0, 0, 0x89, 3, 4, 0];
        assert_eq!(copied(&options), [0x89, 3, 4, 0]);
        assert_eq!(copied(&[0x94, 4, 0, 0]), [0x94, 4, 0, 0]);
        assert!(copied(&[]).is_empty() && copied(&[0, 0x94, 4, 0]).is_empty());
    }

    fn path(mtu: u16, nc_v6: bool) -> Path {
        let nexthop = NexthopView { dmac: 1, smac: 2, mtu, ifindex: IfIndex(3), ready: true };
        Path { nc_v6, line: LineNo(1), ..Path::over(nexthop) }
    }

    fn datagram(flags: u16, payload: usize) -> Vec<u8> {
        let mut head = [0; 20];
        ipv4::Repr {
            tos: 0,
            payload_len: payload,
            ident: 9,
            flags_offset: flags,
            ttl: 64,
            protocol: 17,
            src: 1,
            dst: 2,
        }
        .emit(&mut head);
        [&head[..], &vec![5; payload]].concat()
    }

    #[test]
    fn a_packet_may_be_cut_into_pieces_of_eight_bytes_at_least_and_not_beyond_the_longest_one() {
        // Outer IP, UDP, VXLAN and inner Ethernet lie around the packet.
        let room = |nc_v6| move |mtu| path(mtu, nc_v6).carrier(0, 0, Vni(1)).room(mtu);
        assert_eq!([1500, 51, 50, 49, 0].map(room(false)), [1450, 1, 0, 0, 0]);
        assert_eq!([1500, 71, 70, 69].map(room(true)), [1430, 1, 0, 0]);
        assert_eq!(Carrier::Plain.room(1500), 1500);
        let may = |flags, payload, room| may_cut(&datagram(flags, payload), room);
        assert_eq!([27, 28, 29].map(|room| may(0, 100, room)), [false, true, true]);
        assert!(!may(ipv4::DONT_FRAGMENT, 100, 1000) && may(ipv4::MORE_FRAGMENTS, 96, 1000));
        // The last byte of a datagram is its 65,535th at most.
        assert_eq!(
            [8191, 8190].map(|offset| [7, 8, 15, 16].map(|len| may(offset, len, 1000))),
            [[true, false, false, false], [true, true, true, false]]
        );
        assert!(!may_cut(&[0x45; 19], 1000));
    }

    #[test]
    fn a_tunnel_packet_is_cut_for_next_hops_of_some_size() {
        for (mtu, v6, want) in [
            (1500, false, 1480),
            (1499, false, 1472),
            (1500, true, 1448),
            (1504, true, 1456),
            (276, false, 256),
            (275, false, 248),
            (304, true, 256),
            (303, true, 248),
            (10, true, 0),
        ] {
            assert_eq!((split_room(&path(mtu, v6)), may_split(&path(mtu, v6))), (want, want >= 256), "{mtu} {v6}");
        }
    }

    #[test]
    fn pieces_have_their_offset_length_and_flags() {
        let (eth, data) = ([0x11; 14], [7; 24]);
        let head = [&eth[..], &datagram(ipv4::DONT_FRAGMENT, 0)].concat();
        for more in [false, true] {
            let piece = piece_v4(&head, &data, 1480, more, 0xbeef);
            let ip = ipv4::Packet::new_checked(&piece[14..]).unwrap();
            assert!(ip.checksum_ok() && piece[..14] == eth && ip.payload() == data);
            assert_eq!(
                (ip.ident(), ip.fragment_offset(), ip.flags_offset() & 0xe000, ip.total_len()),
                (0xbeef, 1480, if more { ipv4::MORE_FRAGMENTS } else { 0 }, 44)
            );
            let piece = build(&eth, &datagram(0, 0), &data, 64, more);
            let ip = ipv4::Packet::new_checked(&piece[14..]).unwrap();
            assert!(ip.checksum_ok() && piece[..14] == eth && ip.payload() == data);
            assert_eq!(
                (ip.ident(), ip.fragment_offset(), ip.flags_offset() & 0xe000, ip.total_len()),
                (9, 64, if more { ipv4::MORE_FRAGMENTS } else { 0 }, 44)
            );
            let mut head6 = [0; 40];
            ipv6::Repr {
                traffic_class: 3,
                flow_label: 5,
                payload_len: 0,
                next_header: 17,
                hop_limit: 64,
                src: 1,
                dst: 2,
            }
            .emit(&mut head6);
            let piece = piece_v6(&[&eth[..], &head6].concat(), &data, 1448, more, 0xdead_beef);
            let ip = ipv6::Packet::new_checked(&piece[14..]).unwrap();
            let chain = ipv6::walk(ip.next_header(), ip.payload()).unwrap();
            let f = chain.fragment.unwrap();
            assert_eq!(
                (ip.payload_len(), ip.traffic_class(), ip.flow_label(), f.id, f.offset, f.more),
                (32, 3, 5, 0xdead_beef, 1448, more)
            );
            assert_eq!((chain.upper.protocol, &ip.payload()[8..]), (17, &data[..]));
        }
        // Options that are repeated make the header longer by whole words.
        let options = [0x94, 4, 0, 0, 7, 3, 0, 0x89, 3, 1, 0, 0];
        let header = [&datagram(0, 0)[..], &options].concat();
        assert_eq!(later_header(&header), [&header[..20], &[0x94, 4, 0, 0, 0x89, 3, 1, 0]].concat());
        assert_eq!(later_header(&header[..20]), header[..20]);
    }

    #[test]
    fn malformed_options_are_not_repeated() {
        for bad in [[0x94, 0, 0, 0], [0x94, 1, 0, 0], [0x94, 5, 0, 0], [1, 1, 1, 0x94]] {
            assert!(copied(&bad).is_empty(), "{bad:?}");
        }
    }
}
