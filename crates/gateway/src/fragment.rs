// SPDX-License-Identifier: Apache-2.0
//! Inner fragmentation (RFC 791 §3.2) of IPv4 packets that do not fit the underlay and may be cut.
//!
//! The first fragment stays in the packet's own frame; the others are generated. Each is encapsulated like the whole
//! packet would have been. Padding behind the inner packet is not carried.

use abi::{DropReason, Stage};
use wire::{ethernet, ipv4};

use crate::encap::{encapsulate, Outer, OVERHEAD};
use crate::frame::Generated;
use crate::record::{Event, Recorder};
use crate::work::Work;

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

/// Cuts packet `i`, whose inner frame has been rewritten, and encapsulates the pieces.
#[cold]
pub(crate) fn cut<R: Recorder>(w: &mut Work<'_, '_, R>, i: u8, outer: &Outer) -> Result<(), DropReason> {
    let p = w.packets[i as usize];
    let nexthop = w.tables.nexthop(p.nexthop);
    let room = (nexthop.mtu as usize).saturating_sub(OVERHEAD[p.nc_v6 as usize]);
    let inner = w.inner_frame(i).to_vec();
    let (eth, packet) = inner.split_first_chunk::<{ ethernet::HEADER_LEN }>().ok_or(DropReason::TooBig)?;
    let ip = ipv4::Packet::new_checked(packet).map_err(|_| DropReason::TooBig)?;
    let (header, payload) = (ip.header(), ip.payload());
    let mut options = [0; 40];
    let options_len = copied_options(&header[ipv4::HEADER_LEN..], &mut options);
    let later = [&header[..ipv4::HEADER_LEN], &options[..options_len]].concat();

    let base = ip.fragment_offset();
    if base + payload.len() > usize::from(u16::MAX) || room < header.len() + 8 || room < later.len() + 8 {
        return Err(DropReason::TooBig);
    }
    let (mut done, mut pieces) = (0, 0);
    while done < payload.len() || pieces == 0 {
        let header = if pieces == 0 { header } else { &later[..] };
        let whole_rest = payload.len() - done <= room - header.len();
        let len = if whole_rest { payload.len() - done } else { (room - header.len()) & !7 };
        let more = !whole_rest || ip.flags_offset() & ipv4::MORE_FRAGMENTS != 0;
        let piece = build(eth, header, &payload[done..done + len], base + done, more);
        send(w, i, &piece, outer, pieces == 0, nexthop.ifindex)?;
        done += len;
        pieces += 1;
    }
    if R::ON {
        w.note(i, Stage::Rewrite, Event::Fragmented { fragments: pieces });
    }
    Ok(())
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
    w: &mut Work<'_, '_, R>,
    i: u8,
    piece: &[u8],
    outer: &Outer,
    first: bool,
    ifindex: u32,
) -> Result<(), DropReason> {
    if first {
        let frame = &mut w.frames[i as usize];
        let at = frame.offset as usize + w.packets[i as usize].inner as usize;
        frame.buffer.get_mut(at..at + piece.len()).ok_or(DropReason::TxFailed)?.copy_from_slice(piece);
        let start = encapsulate(frame.buffer, at, piece.len(), outer, &w.settings).ok_or(DropReason::TxFailed)?;
        frame.offset = start as u32;
        frame.len = (at - start + piece.len()) as u32;
        return Ok(());
    }
    let at = OVERHEAD[outer.v6 as usize];
    let mut data = w.output.buffer(at + piece.len());
    data[at..].copy_from_slice(piece);
    encapsulate(&mut data, at, piece.len(), outer, &w.settings).ok_or(DropReason::TxFailed)?;
    w.generate(i, Stage::Rewrite, Generated { data, ifindex, cause: i as usize });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn malformed_options_are_not_repeated() {
        for bad in [[0x94, 0, 0, 0], [0x94, 1, 0, 0], [0x94, 5, 0, 0], [1, 1, 1, 0x94]] {
            assert!(copied(&bad).is_empty(), "{bad:?}");
        }
    }
}
