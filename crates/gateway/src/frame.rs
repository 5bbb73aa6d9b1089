// SPDX-License-Identifier: Apache-2.0
//! Frames, batches and outcomes: how packets come in and go out.
//!
//! A [`Frame`] borrows a region that its owner provides: an AF_XDP umem chunk, an AF_PACKET ring slot, a record of a
//! pcap that was read into memory, or plain memory. The packet is rewritten where it lies; nothing is copied. The
//! packet may start earlier than before, since an IPv6 tunnel header is longer than an IPv4 one, so the owner leaves
//! [`HEADROOM`] bytes in front of it.

use abi::{DropReason, IfIndex, LineNo, PuntMeta};
use conntrack_compact::{Answer, Key};

use crate::turns::Classes;

/// Bytes that a region must have in front of the packet, so that every packet can be rewritten in place.
pub const HEADROOM: usize = 128;
/// Frames in a batch at most.
pub const BATCH_MAX: usize = 256;

/// What became of a packet: exactly one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send it out of this port.
    Forward {
        /// Egress interface.
        ifindex: IfIndex,
    },
    /// The packet was turned into its answer: send it out of this port.
    Answer {
        /// Egress interface.
        ifindex: IfIndex,
    },
    /// Not for the gateway: leave it to the host's kernel, unchanged.
    Pass,
    /// A control packet of a CE, unchanged: for the routing daemon behind the TAP of this circuit ([`tables::Circuit::number`]).
    Control {
        /// The circuit.
        circuit: u32,
    },
    /// A packet of a VM of this node to the metadata address, unchanged: for who answers there.
    Metadata,
    /// Gone, for this reason.
    Drop(DropReason),
    /// Kept: it goes on when the agent on another host has answered ([`crate::Gateway::answered`]). Not counted until then.
    Wait,
}

/// One packet in its region.
#[derive(Debug)]
pub struct Frame<'a> {
    pub(crate) buffer: &'a mut [u8],
    pub(crate) offset: u32,
    pub(crate) len: u32,
    /// The port it came from.
    pub ifindex: IfIndex,
    pub(crate) counted: bool,
    pub(crate) punted: bool,
    /// What became of it; [`Verdict::Pass`] until processed.
    pub verdict: Verdict,
    /// If it is sent: in which classes it has to wait for its turn.
    pub classes: Classes,
}

impl<'a> Frame<'a> {
    /// The packet that lies in `buffer[offset..offset + len]`, received on port `ifindex`. What lies outside the buffer is
    /// cut off.
    #[inline(always)]
    pub fn new(buffer: &'a mut [u8], offset: usize, len: usize, ifindex: IfIndex) -> Frame<'a> {
        let offset = offset.min(buffer.len());
        let len = len.min(buffer.len() - offset);
        Frame {
            buffer,
            offset: offset as u32,
            len: len as u32,
            ifindex,
            counted: false,
            punted: false,
            verdict: Verdict::Pass,
            classes: Classes::NONE,
        }
    }

    /// A packet that the fast path punted with this metadata in front of it. Its headers are parsed again, for the
    /// metadata is only as trustworthy as the memory it lay in; what is used is the port, and whether the fast path has
    /// already counted the packet for its tenant.
    pub fn punted(buffer: &'a mut [u8], offset: usize, len: usize, meta: &PuntMeta) -> Frame<'a> {
        let mut frame = Frame::new(buffer, offset, len, IfIndex(meta.ifindex));
        (frame.counted, frame.punted) = (meta.tenant != 0, true);
        frame
    }

    /// The packet as it lies now: before processing as received, after it as to be sent.
    #[inline(always)]
    pub fn data(&self) -> &[u8] {
        // Never panics: `new` and every rewrite keep the packet inside the buffer.
        &self.buffer[self.offset as usize..(self.offset + self.len) as usize]
    }

    /// Where the packet starts in its region.
    #[inline(always)]
    pub fn offset(&self) -> usize {
        self.offset as usize
    }

    /// Bytes of the packet.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// There is no packet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Up to [`BATCH_MAX`] frames that are processed together.
///
/// The vector behind it is reused: [`Batch::recycle`] empties it and lets it hold frames of another lifetime.
#[derive(Debug, Default)]
pub struct Batch<'a> {
    pub(crate) frames: Vec<Frame<'a>>,
    /// What processing brought forth besides; cleared when the next processing begins.
    pub output: Output,
}

impl<'a> Batch<'a> {
    /// An empty batch.
    pub fn new() -> Batch<'a> {
        Batch { frames: Vec::with_capacity(BATCH_MAX), output: Output::default() }
    }

    /// The frames.
    #[inline(always)]
    pub fn frames(&self) -> &[Frame<'a>] {
        &self.frames
    }

    /// Forgets the frames.
    pub fn clear(&mut self) {
        self.frames.clear();
    }

    /// Adds a frame, or gives it back if the batch is full.
    #[inline(always)]
    pub fn push(&mut self, frame: Frame<'a>) -> Result<(), Frame<'a>> {
        if self.frames.len() >= BATCH_MAX {
            return Err(frame);
        }
        self.frames.push(frame);
        Ok(())
    }

    /// Empties the batch and keeps its memory for frames that live elsewhere.
    pub fn recycle<'b>(mut self) -> Batch<'b> {
        self.frames.clear();
        // Nothing is left to convert; collecting an emptied vector into one of the same layout reuses its memory.
        let frames = self.frames.into_iter().map(|_| -> Frame<'b> { unreachable!("the batch was cleared") }).collect();
        Batch { frames, output: self.output }
    }
}

/// A packet that the gateway made: an ICMP error, a fragment beyond the first, a copy for a mirror.
#[derive(Debug, Default)]
pub struct Generated {
    /// The whole frame.
    pub data: Vec<u8>,
    /// Egress interface.
    pub ifindex: IfIndex,
    /// Index of the frame in the batch that caused it.
    pub cause: usize,
    /// As [`Frame::classes`].
    pub classes: Classes,
    /// It is a copy for a mirror, which waits for nothing.
    pub copy: bool,
}

/// An underlay neighbour whose MAC address is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unresolved {
    /// Line of the next hop in table memory.
    pub nexthop: LineNo,
    /// Egress interface.
    pub ifindex: IfIndex,
    /// The neighbour's address.
    pub neighbour: std::net::IpAddr,
}

/// A packet that waits for the agent on another host.
#[derive(Debug)]
pub struct Waiting {
    /// Its number.
    pub(crate) ticket: u64,
    /// Its connection.
    pub(crate) key: Key,
    /// The answer, once there is one.
    pub(crate) answer: Option<Answer>,
    buffer: Vec<u8>,
    ifindex: IfIndex,
    /// The fast path had punted it.
    pub punted: bool,
}

impl Waiting {
    pub(crate) fn new((ticket, key): (u64, Key), f: &Frame<'_>) -> Waiting {
        let mut buffer = vec![0; HEADROOM + f.len()];
        buffer[HEADROOM..].copy_from_slice(f.data());
        Waiting { ticket, key, answer: None, buffer, ifindex: f.ifindex, punted: f.punted }
    }

    /// What its connection is, and what the agent says of it.
    pub fn answer(&self) -> Option<(Key, Answer)> {
        Some((self.key, self.answer?))
    }

    /// The packet as it came.
    pub fn frame(&mut self) -> Frame<'_> {
        let len = self.buffer.len() - HEADROOM;
        let mut frame = Frame::new(&mut self.buffer, HEADROOM, len, self.ifindex);
        // It was counted for its tenant when it came.
        (frame.counted, frame.punted) = (true, self.punted);
        frame
    }
}

/// What a batch brought forth besides the frames themselves.
#[derive(Debug, Default)]
pub struct Output {
    /// Packets to send besides the frames of the batch.
    pub generated: Vec<Generated>,
    /// Neighbours to resolve, each once a batch.
    pub unresolved: Vec<Unresolved>,
    /// Packets that the fast path had punted and that wait.
    pub punts_waiting: u64,
    pub(crate) waiting: Vec<Waiting>,
    spare: Vec<Vec<u8>>,
}

impl Output {
    /// Forgets everything and keeps the memory.
    pub fn clear(&mut self) {
        self.spare.extend(self.generated.drain(..).map(|g| g.data));
        self.unresolved.clear();
        self.waiting.clear();
        self.punts_waiting = 0;
    }

    /// A zeroed buffer of `len` bytes for a generated frame.
    pub(crate) fn buffer(&mut self, len: usize) -> Vec<u8> {
        let mut data = self.spare.pop().unwrap_or_default();
        data.clear();
        data.resize(len, 0);
        data
    }

    pub(crate) fn need(&mut self, unresolved: Unresolved) {
        if !self.unresolved.contains(&unresolved) {
            self.unresolved.push(unresolved);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::Vni;

    #[test]
    fn a_frame_never_leaves_its_buffer() {
        let mut b = [1, 2, 3, 4];
        assert_eq!(Frame::new(&mut b, 1, 2, IfIndex(0)).data(), [2, 3]);
        assert_eq!(Frame::new(&mut b, 3, 9, IfIndex(0)).data(), [4]);
        assert!(Frame::new(&mut b, usize::MAX, usize::MAX, IfIndex(0)).is_empty());
    }

    #[test]
    fn recycled_batch_is_empty_and_keeps_its_memory() {
        let mut b = [0; 8];
        let mut batch = Batch::new();
        assert!(batch.push(Frame::new(&mut b, 0, 8, IfIndex(1))).is_ok());
        let before = batch.frames.as_ptr() as usize;
        let again: Batch<'static> = batch.recycle();
        assert!(again.frames.is_empty());
        assert_eq!((again.frames.as_ptr() as usize, again.frames.capacity() >= BATCH_MAX), (before, true));
    }

    #[test]
    fn a_frame_tells_where_it_lies_and_whether_it_was_counted() {
        let mut b = [1, 2, 3, 4, 5];
        let f = Frame::new(&mut b, 2, 3, IfIndex(9));
        assert_eq!(
            (f.offset(), f.len(), f.is_empty(), f.ifindex, f.counted, f.punted),
            (2, 3, false, IfIndex(9), false, false)
        );
        assert_eq!(f.verdict, Verdict::Pass);
        let meta = |tenant| PuntMeta {
            magic: 0,
            reason: 0,
            flags: 0,
            inner_offset: 0,
            vni: 0,
            ifindex: 7,
            time: 0,
            tenant,
            share: 0,
        };
        for (tenant, counted) in [(0, false), (1, true), (200, true)] {
            let f = Frame::punted(&mut b, 1, 2, &meta(tenant));
            assert_eq!((f.data(), f.ifindex, f.counted, f.punted), (&[2, 3][..], IfIndex(7), counted, true));
        }
    }

    #[test]
    fn what_waits_comes_back_as_it_came_and_is_not_counted_again() {
        let key = Key::from(
            &conntrack::PairKey::new(6, (Vni(7), [10, 0, 0, 1].into(), 1), (Vni(7), [10, 0, 0, 2].into(), 2), false)
                .unwrap()
                .0,
        );
        let mut b = [9; 12];
        for punted in [false, true] {
            let mut f = Frame::new(&mut b, 2, 7, IfIndex(5));
            f.punted = punted;
            let mut waiting = Waiting::new((3, key), &f);
            assert_eq!((waiting.ticket, waiting.punted, waiting.answer()), (3, punted, None));
            waiting.answer = Some(Answer { outcome: conntrack_compact::Outcome::Pass, evaluated: true });
            assert_eq!(
                waiting.answer(),
                Some((key, Answer { outcome: conntrack_compact::Outcome::Pass, evaluated: true }))
            );
            let f = waiting.frame();
            assert_eq!(
                (f.data(), f.offset(), f.ifindex, f.counted, f.punted),
                (&[9; 7][..], HEADROOM, IfIndex(5), true, punted)
            );
        }
    }

    #[test]
    fn output_of_the_batch_before_is_forgotten_and_its_memory_used_again() {
        let mut out = Output { punts_waiting: 4, ..Output::default() };
        let need = |ifindex| Unresolved { nexthop: LineNo(1), ifindex, neighbour: [192, 0, 2, 1].into() };
        [1, 2, 1].into_iter().for_each(|ifindex| out.need(need(IfIndex(ifindex))));
        assert_eq!(out.unresolved, [need(IfIndex(1)), need(IfIndex(2))]);
        let data = vec![7; 100];
        let at = data.as_ptr() as usize;
        out.generated.push(Generated { data, ifindex: IfIndex(1), cause: 0, classes: Classes::NONE, copy: false });
        let key = Key::from(
            &conntrack::PairKey::new(6, (Vni(7), [10, 0, 0, 1].into(), 1), (Vni(7), [10, 0, 0, 2].into(), 2), false)
                .unwrap()
                .0,
        );
        out.waiting.push(Waiting::new((3, key), &Frame::new(&mut [1], 0, 1, IfIndex(5))));
        out.clear();
        assert!(
            out.generated.is_empty() && out.unresolved.is_empty() && out.waiting.is_empty() && out.punts_waiting == 0
        );
        let buffer = out.buffer(60);
        assert_eq!((&buffer[..], buffer.as_ptr() as usize), (&[0; 60][..], at), "zeroed, and no other one");
        assert_eq!(out.buffer(3), [0; 3]);
    }

    #[test]
    fn a_cleared_batch_takes_frames_again() {
        let (mut a, mut b) = ([1; 4], [2; 4]);
        let mut batch = Batch::new();
        assert!(batch.push(Frame::new(&mut a, 0, 4, IfIndex(1))).is_ok());
        batch.clear();
        assert!(batch.frames().is_empty());
        assert!(batch.push(Frame::new(&mut b, 0, 4, IfIndex(1))).is_ok());
        assert_eq!(batch.frames()[0].data(), [2; 4]);
    }

    #[test]
    fn a_full_batch_refuses() {
        let mut batch = Batch::new();
        for _ in 0..BATCH_MAX {
            assert!(batch.push(Frame::new(&mut [], 0, 0, IfIndex(1))).is_ok());
        }
        assert!(batch.push(Frame::new(&mut [], 0, 0, IfIndex(1))).is_err());
    }
}
