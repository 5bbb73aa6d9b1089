// SPDX-License-Identifier: Apache-2.0
//! Fragments of packets whose ports must be known: a bounded table from a datagram's identity to the ports of its first
//! fragment. Later fragments that come before the first one are held, within limits, and given back when it comes.
//!
//! Overlapping fragments, even by one byte, end the datagram (RFC 5722, also for IPv4): ports that were checked must be
//! those that the receiver sees. So does a second first fragment with other ports. Only an exact repetition is left out.

use abi::Vni;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// What the fragments of one datagram have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FragKey {
    /// The VNI for packets of VMs; None for packets from the Internet.
    pub vni: Option<Vni>,
    /// Source.
    pub src: IpAddr,
    /// Destination.
    pub dst: IpAddr,
    /// Protocol. Of IPv6 fragments 0: their fragment headers may differ in it (RFC 8200 section 4.5).
    pub proto: u8,
    /// Identification.
    pub id: u32,
}

/// One fragment.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Offset of its payload in the datagram, bytes.
    pub offset: u32,
    /// Bytes of payload.
    pub len: u32,
    /// Whether more follow.
    pub more: bool,
    /// Protocol of the upper layer, as far as the piece tells; that of the first one counts.
    pub upper: u8,
}

/// The transport fields that the first fragment tells: source and destination port, or the ICMP identifier as source port.
pub type Ports = (u16, u16);

/// What becomes of a fragment.
#[derive(Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its ports, and the protocol of its upper layer.
    Known(Ports, u8),
    /// It is held until the first fragment comes.
    Queued,
    /// It is dropped (`nat_fragment`): overlap, no room, or malformed.
    Drop,
}

/// Limits of a [`FragTable`].
#[derive(Clone, Copy, Debug)]
pub struct FragLimits {
    /// Datagrams at most.
    pub datagrams: usize,
    /// Datagrams of one tenant at most; those from the Internet count as one tenant.
    pub datagrams_tenant: usize,
    /// Bytes of held fragments at most.
    pub queued_bytes: usize,
    /// Bytes of held fragments of one datagram at most.
    pub queued_bytes_datagram: usize,
    /// How long a datagram is remembered after its first piece, ns.
    pub lifetime: u64,
}

impl Default for FragLimits {
    fn default() -> FragLimits {
        FragLimits {
            datagrams: 16_384,
            datagrams_tenant: 1024,
            queued_bytes: 16 << 20,
            queued_bytes_datagram: 65_536,
            lifetime: 15_000_000_000,
        }
    }
}

/// Pieces of a datagram at most.
const PIECES_MAX: usize = 128;
/// Bytes of a datagram's payload at most.
const DATAGRAM_MAX: u32 = 65_535;

#[derive(Debug, Default)]
struct Datagram {
    born: u64,
    ports: Option<Ports>,
    upper: u8,
    /// Bytes seen: from, to; in no order.
    pieces: Vec<(u32, u32)>,
    /// Length, once the last piece has come.
    end: Option<u32>,
    /// Contradicts itself: nothing of it goes on.
    spoilt: bool,
    queued: Vec<Vec<u8>>,
    queued_bytes: usize,
}

impl Datagram {
    /// Takes note of a piece; `ports`: those of a first one. False: it is a repetition, or spoils the datagram, or did before.
    fn note(&mut self, piece: Piece, ports: Option<Ports>) -> bool {
        if !self.fits(piece, ports) {
            return false;
        }
        let to = piece.offset + piece.len;
        self.pieces.push((piece.offset, to));
        if !piece.more {
            self.end = Some(to);
        }
        true
    }

    /// Whether a piece adds to the datagram. If it contradicts what came before, the datagram is spoilt.
    fn fits(&mut self, piece: Piece, ports: Option<Ports>) -> bool {
        let (from, to) = (piece.offset, piece.offset.saturating_add(piece.len));
        if self.ports.is_some_and(|known| ports.is_some_and(|ports| ports != known || piece.upper != self.upper)) {
            self.spoilt = true;
        }
        if self.spoilt || self.pieces.contains(&(from, to)) {
            return false;
        }
        let wrong_end = match self.end {
            Some(end) => to > end || (!piece.more && to != end),
            None => !piece.more && self.pieces.iter().any(|(_, t)| *t > to),
        };
        let overlap = self.pieces.iter().any(|(f, t)| from < *t && *f < to);
        let malformed =
            piece.len == 0 || to > DATAGRAM_MAX || (piece.more && !piece.len.is_multiple_of(8)) || from % 8 != 0;
        if wrong_end || overlap || malformed || self.pieces.len() == PIECES_MAX {
            self.spoilt = true;
            return false;
        }
        true
    }

    /// Whether all of it has been seen: no piece overlaps another, so the lengths tell.
    fn complete(&self) -> bool {
        self.end.is_some_and(|end| self.pieces.iter().map(|(f, t)| t - f).sum::<u32>() == end)
    }
}

/// The table. One per worker whose packets no other worker sees, or behind a lock.
pub struct FragTable {
    limits: FragLimits,
    datagrams: HashMap<FragKey, Datagram>,
    /// In order of birth; an entry whose datagram is complete is passed over.
    order: VecDeque<(u64, FragKey)>,
    tenants: HashMap<Option<Vni>, usize>,
    queued_bytes: usize,
    /// Held fragments of datagrams that grew too old, until `expire` tells them.
    lost: Vec<(FragKey, Vec<u8>)>,
}

impl FragTable {
    /// Whether a datagram contradicts itself: pieces overlap, or lengths do not fit.
    pub fn contradicts(&self, key: &FragKey) -> bool {
        self.datagrams.get(key).is_some_and(|d| d.spoilt)
    }

    /// Whether the first fragment of a datagram has come.
    pub fn knows(&self, key: &FragKey) -> bool {
        self.datagrams.get(key).is_some_and(|d| d.ports.is_some())
    }

    /// An empty one.
    pub fn new(limits: FragLimits) -> FragTable {
        FragTable {
            limits,
            datagrams: HashMap::new(),
            order: VecDeque::new(),
            tenants: HashMap::new(),
            queued_bytes: 0,
            lost: Vec::new(),
        }
    }

    /// Datagrams that are remembered.
    pub fn len(&self) -> usize {
        self.datagrams.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    /// Whether a first fragment with these ports may be taken, as far as is known: to be asked before anything is done for it. One that
    /// contradicts its datagram ends it.
    pub fn admits(&mut self, key: &FragKey, piece: Piece, ports: Ports, now: u64) -> bool {
        self.age(now, 4);
        let fits = self.datagrams.get_mut(key).is_none_or(|d| d.fits(piece, Some(ports)));
        if !fits && self.contradicts(key) {
            self.drop_queued(key);
        }
        fits
    }

    /// A first fragment (offset 0, more follow) came with these ports. Held fragments that came before are handed to `release`
    /// in their order of arrival, each to be treated as `Known`. False: it is to be dropped.
    pub fn first(
        &mut self,
        key: &FragKey,
        piece: Piece,
        ports: Ports,
        now: u64,
        release: &mut dyn FnMut(Vec<u8>),
    ) -> bool {
        let Some(datagram) = self.of(key, now) else { return false };
        if !datagram.note(piece, Some(ports)) {
            self.drop_queued(key);
            return false;
        }
        (datagram.ports, datagram.upper) = (Some(ports), piece.upper);
        let (queued, bytes) = (std::mem::take(&mut datagram.queued), std::mem::take(&mut datagram.queued_bytes));
        let complete = datagram.complete();
        self.queued_bytes -= bytes;
        queued.into_iter().for_each(release);
        if complete {
            self.forget(key);
        }
        true
    }

    /// A later fragment came; `frame` is copied if it must be held.
    pub fn later(&mut self, key: &FragKey, piece: Piece, frame: &[u8], now: u64) -> Fate {
        let (limits, all_held) = (self.limits, self.queued_bytes);
        let Some(datagram) = self.of(key, now) else { return Fate::Drop };
        if !datagram.note(piece, None) {
            self.drop_queued(key);
            return Fate::Drop;
        }
        if let Some(ports) = datagram.ports {
            let upper = datagram.upper;
            if datagram.complete() {
                self.forget(key);
            }
            return Fate::Known(ports, upper);
        }
        let fits = datagram.queued_bytes + frame.len() <= limits.queued_bytes_datagram;
        if !fits || all_held + frame.len() > limits.queued_bytes {
            // Without this piece the datagram is of no use.
            datagram.spoilt = true;
            self.drop_queued(key);
            return Fate::Drop;
        }
        datagram.queued.push(frame.to_vec());
        datagram.queued_bytes += frame.len();
        self.queued_bytes += frame.len();
        Fate::Queued
    }

    /// Forgets what is too old; held fragments that were not sent go to `dropped`. Call it now and then.
    pub fn expire(&mut self, now: u64, dropped: &mut dyn FnMut(&FragKey, Vec<u8>)) {
        self.age(now, usize::MAX);
        for (key, frame) in self.lost.drain(..) {
            self.queued_bytes -= frame.len();
            dropped(&key, frame);
        }
    }

    /// The datagram, new if there is room for it.
    fn of(&mut self, key: &FragKey, now: u64) -> Option<&mut Datagram> {
        self.age(now, 4);
        if !self.datagrams.contains_key(key) {
            let tenant = self.tenants.get(&key.vni).copied().unwrap_or(0);
            if self.datagrams.len() >= self.limits.datagrams || tenant >= self.limits.datagrams_tenant {
                return None;
            }
            self.tenants.insert(key.vni, tenant + 1);
            self.order.push_back((now, *key));
            self.datagrams.insert(*key, Datagram { born: now, ..Datagram::default() });
        }
        self.datagrams.get_mut(key)
    }

    /// Forgets up to `n` datagrams that are too old.
    fn age(&mut self, now: u64, n: usize) {
        for _ in 0..n {
            let Some((born, key)) = self.order.front().copied() else { return };
            let current = self.datagrams.get(&key).is_some_and(|d| d.born == born);
            if current && now.saturating_sub(born) < self.limits.lifetime {
                return;
            }
            self.order.pop_front();
            if current {
                self.drop_queued(&key);
                self.forget(&key);
            }
        }
    }

    /// Held fragments will not be sent.
    fn drop_queued(&mut self, key: &FragKey) {
        if let Some(datagram) = self.datagrams.get_mut(key) {
            datagram.queued_bytes = 0;
            self.lost.extend(datagram.queued.drain(..).map(|frame| (*key, frame)));
        }
    }

    fn forget(&mut self, key: &FragKey) {
        if self.datagrams.remove(key).is_some() {
            if let Some(n) = self.tenants.get_mut(&key.vni) {
                *n -= 1;
                if *n == 0 {
                    self.tenants.remove(&key.vni);
                }
            }
        }
        // Datagrams that were completed leave entries behind.
        if self.order.len() > 2 * self.datagrams.len() + 64 {
            let datagrams = &self.datagrams;
            self.order.retain(|(born, key)| datagrams.get(key).is_some_and(|d| d.born == *born));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(vni: Vni, id: u32) -> FragKey {
        FragKey { vni: Some(vni), src: [10, 0, 0, 1].into(), dst: [8, 8, 8, 8].into(), proto: 17, id }
    }

    fn piece(offset: u32, len: u32, more: bool) -> Piece {
        Piece { offset, len, more, upper: 17 }
    }

    fn first(table: &mut FragTable, id: u32, p: Piece, now: u64) -> (bool, Vec<Vec<u8>>) {
        let mut out = Vec::new();
        let taken = table.first(&key(Vni(1), id), p, (1000, 53), now, &mut |f| out.push(f));
        (taken, out)
    }

    #[test]
    fn later_fragments_have_the_ports_of_the_first_one() {
        let mut t = FragTable::new(FragLimits::default());
        assert_eq!(first(&mut t, 1, piece(0, 1480, true), 0), (true, vec![]));
        assert_eq!(t.later(&key(Vni(1), 2), piece(1480, 1480, true), b"x", 0), Fate::Queued);
        assert_eq!(t.later(&key(Vni(1), 1), piece(2960, 100, false), b"c", 0), Fate::Known((1000, 53), 17));
        assert_eq!(t.later(&key(Vni(2), 1), piece(1480, 1480, true), b"another tenant", 0), Fate::Queued);
        assert_eq!(t.later(&key(Vni(1), 1), piece(1480, 1480, true), b"b", 0), Fate::Known((1000, 53), 17));
        // Complete: the identification may be used again.
        assert_eq!(first(&mut t, 1, piece(0, 8, true), 0), (true, vec![]));
    }

    #[test]
    fn fragments_that_come_early_are_held_and_given_back_in_order() {
        let mut t = FragTable::new(FragLimits::default());
        assert_eq!(t.later(&key(Vni(1), 1), piece(2960, 100, false), b"c", 0), Fate::Queued);
        assert_eq!(t.later(&key(Vni(1), 1), piece(1480, 1480, true), b"b", 0), Fate::Queued);
        assert_eq!(first(&mut t, 1, piece(0, 1480, true), 0), (true, vec![b"c".to_vec(), b"b".to_vec()]));
        assert_eq!((t.len(), t.queued_bytes), (0, 0));
    }

    #[test]
    fn an_overlap_by_one_unit_ends_the_datagram_and_a_repetition_does_not() {
        let mut t = FragTable::new(FragLimits::default());
        assert!(first(&mut t, 1, piece(0, 1480, true), 0).0);
        assert_eq!(t.later(&key(Vni(1), 1), piece(1472, 8, true), b"", 0), Fate::Drop);
        assert_eq!(t.later(&key(Vni(1), 1), piece(1480, 8, false), b"", 0), Fate::Drop);
        assert!(first(&mut t, 2, piece(0, 1480, true), 0).0);
        assert!(!first(&mut t, 2, piece(0, 1480, true), 0).0);
        assert_eq!(t.later(&key(Vni(1), 2), piece(1480, 8, false), b"", 0), Fate::Known((1000, 53), 17));
        for bad in [piece(8, 0, true), piece(8, 7, true), piece(65_528, 8, false), piece(4, 8, true)] {
            assert!(first(&mut t, 3, piece(0, 8, true), 0).0);
            assert_eq!(t.later(&key(Vni(1), 3), bad, b"", 0), Fate::Drop, "{bad:?}");
            t.forget(&key(Vni(1), 3));
        }
        // Beyond the end, or another end.
        assert!(first(&mut t, 4, piece(0, 8, true), 0).0);
        assert_eq!(t.later(&key(Vni(1), 4), piece(16, 8, false), b"", 0), Fate::Known((1000, 53), 17));
        assert_eq!(t.later(&key(Vni(1), 4), piece(24, 8, true), b"", 0), Fate::Drop);
    }

    #[test]
    fn each_limit_is_reached_exactly_and_not_passed() {
        let limits =
            FragLimits { datagrams: 3, datagrams_tenant: 2, queued_bytes: 10, queued_bytes_datagram: 6, lifetime: 100 };
        let later = |t: &mut FragTable, vni: Vni, id: u32, p: Piece, bytes: usize, now: u64| {
            t.later(&key(vni, id), p, &vec![0; bytes], now)
        };
        let mut t = FragTable::new(limits);
        assert_eq!(later(&mut t, Vni(1), 1, piece(8, 8, true), 5, 0), Fate::Queued);
        assert_eq!(later(&mut t, Vni(1), 1, piece(16, 8, true), 1, 0), Fate::Queued);
        assert_eq!(later(&mut t, Vni(1), 2, piece(8, 8, true), 4, 0), Fate::Queued);
        assert_eq!(t.queued_bytes, 10);
        assert_eq!(later(&mut t, Vni(1), 3, piece(8, 8, true), 0, 0), Fate::Drop, "two of a tenant");
        assert_eq!(later(&mut t, Vni(2), 3, piece(8, 8, true), 1, 0), Fate::Drop, "ten bytes in all");
        assert_eq!(later(&mut t, Vni(3), 3, piece(8, 8, true), 0, 0), Fate::Drop, "three datagrams");
        assert_eq!((t.len(), t.contradicts(&key(Vni(2), 3)), t.contradicts(&key(Vni(1), 1))), (3, true, false));
        let mut lost = Vec::new();
        t.expire(99, &mut |k, frame| lost.push((k.id, frame.len())));
        assert_eq!((t.len(), lost.len()), (3, 0));
        t.expire(100, &mut |k, frame| lost.push((k.id, frame.len())));
        assert_eq!(
            (t.len(), t.is_empty(), lost.as_slice(), t.queued_bytes),
            (0, true, &[(1, 5), (1, 1), (2, 4)][..], 0)
        );
        // One byte more of a datagram.
        assert_eq!(later(&mut t, Vni(1), 1, piece(8, 8, true), 6, 200), Fate::Queued);
        assert_eq!(later(&mut t, Vni(1), 1, piece(16, 8, true), 1, 200), Fate::Drop);
        // The longest datagram, and one byte more.
        let mut t = FragTable::new(FragLimits::default());
        for (id, last, fits) in [
            (1, piece(65_528, 7, false), true),
            (2, piece(65_528, 8, false), false),
            (3, piece(65_520, 8, true), true),
            (4, piece(65_528, 8, true), false),
        ] {
            assert!(first(&mut t, id, piece(0, 65_520, true), 0).0);
            assert_eq!(t.later(&key(Vni(1), id), last, b"", 0) == Fate::Known((1000, 53), 17), fits, "{id}");
        }
        // So many pieces, and one more.
        assert!(first(&mut t, 9, piece(0, 8, true), 0).0);
        for n in 1..=128 {
            let fate = t.later(&key(Vni(1), 9), piece(8 * n, 8, true), b"", 0);
            assert_eq!(fate == Fate::Drop, n == 128, "piece {n}");
        }
        // A call looks at four that are too old.
        let mut t = FragTable::new(FragLimits { lifetime: 100, ..FragLimits::default() });
        (0..9).for_each(|id| assert!(first(&mut t, id, piece(0, 8, true), 0).0));
        assert!(t.admits(&key(Vni(1), 50), piece(0, 8, true), (1, 2), 99) && t.len() == 9);
        assert!(t.admits(&key(Vni(1), 50), piece(0, 8, true), (1, 2), 100) && t.len() == 5);
        assert!(first(&mut t, 50, piece(0, 8, true), 100).0);
        assert_eq!(t.len(), 2, "four went, one came");
    }

    #[test]
    fn a_second_first_fragment_with_other_ports_ends_the_datagram() {
        let mut t = FragTable::new(FragLimits::default());
        // The same piece, a shorter one and a longer one.
        for (id, again) in [(1, piece(0, 16, true)), (2, piece(0, 8, true)), (3, piece(0, 24, true))] {
            assert!(t.admits(&key(Vni(1), id), piece(0, 16, true), (1000, 53), 0));
            assert!(first(&mut t, id, piece(0, 16, true), 0).0);
            assert!(!t.admits(&key(Vni(1), id), again, (1000, 54), 0));
            assert!(t.contradicts(&key(Vni(1), id)));
            assert!(!first(&mut t, id, piece(0, 16, true), 0).0);
            assert_eq!(t.later(&key(Vni(1), id), piece(16, 8, false), b"", 0), Fate::Drop);
        }
        // A repetition is left out, and the datagram goes on.
        assert!(first(&mut t, 4, piece(0, 16, true), 0).0);
        assert!(!t.admits(&key(Vni(1), 4), piece(0, 16, true), (1000, 53), 0));
        assert_eq!(t.later(&key(Vni(1), 4), piece(16, 8, false), b"", 0), Fate::Known((1000, 53), 17));
        // What was held for a datagram that ends is not sent.
        assert_eq!(t.later(&key(Vni(1), 5), piece(8, 8, false), b"held", 0), Fate::Queued);
        assert!(!t.admits(&key(Vni(1), 5), piece(0, 16, true), (1000, 53), 0), "it overlaps what is held");
        assert_eq!(first(&mut t, 5, piece(0, 8, true), 0), (false, vec![]));
    }

    #[test]
    fn room_and_time_are_limited() {
        let limits =
            FragLimits { datagrams: 3, datagrams_tenant: 2, queued_bytes: 20, queued_bytes_datagram: 10, lifetime: 15 };
        let mut t = FragTable::new(limits);
        let mut lost = Vec::new();
        assert_eq!(t.later(&key(Vni(1), 1), piece(8, 8, true), &[1; 8], 0), Fate::Queued);
        assert_eq!(t.later(&key(Vni(1), 1), piece(16, 8, true), &[2; 8], 0), Fate::Drop, "bytes of a datagram");
        assert_eq!(t.later(&key(Vni(1), 2), piece(8, 8, true), &[3; 8], 1), Fate::Queued);
        assert_eq!(t.later(&key(Vni(1), 3), piece(8, 8, true), &[4; 8], 1), Fate::Drop, "datagrams of a tenant");
        assert_eq!(t.later(&key(Vni(2), 3), piece(8, 8, true), &[5; 8], 1), Fate::Drop, "bytes of all");
        assert_eq!(t.later(&key(Vni(3), 3), piece(8, 8, true), &[], 1), Fate::Drop, "datagrams");
        t.expire(15, &mut |k, f| lost.push((k.id, f[0])));
        assert_eq!((lost.as_slice(), t.len()), (&[(1, 1)][..], 2));
        t.expire(16, &mut |k, f| lost.push((k.id, f[0])));
        assert_eq!((lost.as_slice(), t.len(), t.queued_bytes), (&[(1, 1), (2, 3)][..], 0, 0));
        assert_eq!((t.order.len(), t.tenants.len()), (0, 0));
    }

    /// Of datagrams that were completed no more than 64 entries are left behind, and two for each that is not.
    #[test]
    fn what_completed_datagrams_leave_is_swept() {
        let mut t = FragTable::new(FragLimits::default());
        let open = |t: &mut FragTable, id: u32, now: u64| assert!(first(t, id, piece(0, 8, true), now).0);
        let close = |t: &mut FragTable, id: u32| {
            assert_eq!(t.later(&key(Vni(1), id), piece(8, 8, false), b"", 0), Fate::Known((1000, 53), 17))
        };
        (0..3).for_each(|id| open(&mut t, 1000 + id, 0));
        for n in 1..=67u32 {
            open(&mut t, n, 0);
            close(&mut t, n);
            assert_eq!((t.order.len(), t.len()), (3 + n as usize, 3), "{n}");
        }
        open(&mut t, 5000, 0);
        close(&mut t, 5000);
        assert_eq!((t.order.len(), t.len()), (3, 3), "two for each of three, and 64");
        assert!(t.order.iter().all(|(_, k)| (1000..1003).contains(&k.id)));
        // An entry of a datagram that had the same key before is not that of the new one.
        let mut t = FragTable::new(FragLimits { lifetime: 100, ..FragLimits::default() });
        open(&mut t, 1, 0);
        close(&mut t, 1);
        open(&mut t, 1, 50);
        t.expire(100, &mut |_, _| panic!("nothing was held"));
        assert_eq!(t.len(), 1, "it is 50 old");
        t.expire(150, &mut |_, _| ());
        assert_eq!((t.len(), t.order.len()), (0, 0));
    }

    #[test]
    fn random_pieces_keep_the_books() {
        use rand::{rngs::StdRng, RngExt, SeedableRng};
        let seed = std::env::var("TUNNY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random::<u64>);
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let limits = FragLimits {
            datagrams: 50,
            datagrams_tenant: 20,
            queued_bytes: 4000,
            queued_bytes_datagram: 600,
            lifetime: 100,
        };
        let mut t = FragTable::new(limits);
        for now in 0..100_000 {
            let k = key(Vni(rng.random_range(0..4)), rng.random_range(0..40));
            let p = piece(rng.random_range(0..6) * 8, rng.random_range(0..3) * 8, rng.random());
            let _ = match p.offset {
                0 => t.first(&k, p, (1, 2), now / 10, &mut |_| {}),
                _ => t.later(&k, p, &vec![0; rng.random_range(0..200)], now / 10) != Fate::Drop,
            };
            let queued: usize = t.datagrams.values().map(|d| d.queued.iter().map(Vec::len).sum::<usize>()).sum();
            let lost: usize = t.lost.iter().map(|(_, f)| f.len()).sum();
            assert_eq!(t.queued_bytes, queued + lost);
            assert!(t.queued_bytes <= 4000 && t.len() <= 50 && t.tenants.values().all(|n| *n <= 20));
            assert!(t.order.len() <= 2 * t.len() + 65 + 4);
            if now % 1000 == 0 {
                t.expire(now / 10, &mut |_, _| {});
            }
        }
    }
}
