// SPDX-License-Identifier: Apache-2.0
//! The writer's side of the chained cache-line hash tables.
//!
//! Entries never move while their table is published: an insert takes an empty slot of the chain or links a new line, a
//! removal clears one word. A table grows by building a larger array beside (`stage`), into which everything goes from
//! then on, and by swapping the TABLE_REF word (`publish`). So the position of an entry is good only until the next
//! stage; whoever wants to change an entry later finds it again by its key.

use crate::arena::{Arena, Block};
use crate::peers::{self, PeerWords};
use crate::reader::{v6_word, vm4_key, vm4_value, vm4_words, vm6_key, vm6_value, VmEntry};
use abi::*;
use memory::{Lines, RootRef};
use std::io;

#[cfg(test)]
mod chains_tests;

/// What the buckets of a table are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// WordBucket; the key begins at this bit.
    Word(u32),
    /// Vm4Bucket.
    Vm4,
    /// Vm6Bucket.
    Vm6,
    /// TenantBucket.
    Tenant,
}

impl Kind {
    fn bucket_lines(self) -> u32 {
        if matches!(self, Kind::Vm6 | Kind::Tenant) {
            2
        } else {
            1
        }
    }
    fn slots(self) -> usize {
        if matches!(self, Kind::Word(_)) {
            7
        } else {
            3
        }
    }
    /// Mean entries a bucket ×16: at most before it grows, and after a bulk build.
    fn loads(self) -> (u64, u64) {
        match self {
            Kind::Word(_) => (88, 72),
            Kind::Vm4 => (42, 28),
            Kind::Vm6 => (42, 34),
            Kind::Tenant => (34, 22),
        }
    }
    /// The bit of a key that says that its entry is in use; without it a slot may not be refilled yet.
    fn valid(self) -> u64 {
        match self {
            Kind::Word(_) => u64::MAX,
            Kind::Vm4 | Kind::Vm6 => KEY_VALID,
            Kind::Tenant => TENANT_VALID,
        }
    }
}

/// A VPC as its bucket holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TenantEntry {
    pub key: u64,
    pub roots: u64,
    /// Lower half of the MAC address.
    pub mac: u32,
    /// Lower half of the POLICY word.
    pub policy: u32,
}

/// Halves of a bucket's second line before the policies.
const POLICIES: usize = (std::mem::offset_of!(TenantBucket, policies) - LINE_BYTES as usize) / 4;
/// Everything that table operations need beside the table.
pub(crate) struct Store {
    pub arena: Arena,
    pub lines: Lines,
    pub root: RootRef,
    pub salt: u64,
    /// Blocks that become free after the next grace period.
    pub retired: Vec<Block>,
    /// Even pairs of lines that become free after the next grace period.
    pub retired_pairs: Vec<LineNo>,
    /// Lines to which this commit has linked another one where readers are: the root word of the table, and the line.
    pub links: Vec<(usize, LineNo)>,
}

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub line: LineNo,
    pub slot: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HashTable {
    kind: Kind,
    /// Offset of the TABLE_REF word in the root.
    root: usize,
    first: LineNo,
    buckets: u32,
    entries: u64,
    overflow: u32,
    published: bool,
}

/// An entry of a VM table with all that belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VmSlot {
    /// Key word with state.
    pub key: u64,
    /// IPv6 address; IPv4 is in the key.
    pub addr6: (u64, u64),
    /// Value words as in the bucket: for Vm4 the entry packed by `vm4_words`.
    pub value: VmEntry,
}

impl HashTable {
    /// No table yet: the root word is 0.
    pub(crate) fn new(kind: Kind, root: usize) -> HashTable {
        HashTable { kind, root, first: LineNo(0), buckets: 0, entries: 0, overflow: 0, published: true }
    }

    /// The table that the root word names, counted anew. False from `visit` (called for each block) stops.
    pub(crate) fn attach(
        kind: Kind,
        root: usize,
        store: (&Lines, &RootRef),
        visit: &mut dyn FnMut(Block) -> bool,
    ) -> Option<HashTable> {
        let word = store.1.get(root);
        let mut table = HashTable::new(kind, root);
        (table.first, table.buckets) = (LineNo(word as u32), (word >> TABLE_REF_BUCKETS_SHIFT) as u32);
        if table.buckets == 0 {
            return Some(table);
        }
        let bucket_lines = kind.bucket_lines();
        let lines = table.buckets.checked_mul(bucket_lines)?;
        if table.first.0 == 0 || table.first.0.checked_add(lines)? > store.0.limit() {
            return None;
        }
        if !visit(Block { line: table.first, lines }) {
            return None;
        }
        for bucket in 0..table.buckets {
            let mut line = table.first + bucket * bucket_lines;
            loop {
                table.entries += (0..kind.slots()).filter(|s| store.0.at(line).word(*s) != 0).count() as u64;
                line = table.next(store.0, line);
                if line == LineNo(0) {
                    break;
                }
                table.overflow += 1;
                if !visit(Block { line, lines: bucket_lines }) {
                    return None;
                }
            }
        }
        Some(table)
    }

    /// Its entries, counted in memory. None: the root leads to another array, or a chain is not of this table's making.
    pub(crate) fn recount(&self, lines: &Lines, root: &RootRef) -> Option<u64> {
        let own = Block { line: self.first, lines: self.buckets * self.kind.bucket_lines() };
        let (mut array, mut links) = (true, self.overflow);
        // As long as all links together are no more than were made, no chain runs in a circle.
        let mut visit = |block: Block| {
            if std::mem::take(&mut array) {
                return block == own;
            }
            let more = links.checked_sub(1);
            links = more.unwrap_or(0);
            more.is_some() && block.line.0 < lines.limit() && block.lines <= lines.limit() - block.line.0
        };
        let found = HashTable::attach(self.kind, self.root, (lines, root), &mut visit)?;
        (found.buckets == self.buckets).then_some(found.entries)
    }

    /// Entries that no reader finds: in another chain than their key's, or behind one with the same key. The chains must be sound.
    pub(crate) fn strays(&self, store: &Store) -> Vec<Place> {
        let mut strays = Vec::new();
        let mut keys = Vec::new();
        for bucket in 0..self.buckets {
            let first = self.first + bucket * self.kind.bucket_lines();
            keys.clear();
            let mut line = first;
            while line != LineNo(0) {
                for slot in 0..self.kind.slots() {
                    let word = store.lines.at(line).word(slot);
                    if word & self.kind.valid() == 0 {
                        continue;
                    }
                    let key = match self.kind {
                        Kind::Vm6 => (self.key_of(word), self.addr6(&store.lines, line, slot)),
                        Kind::Tenant => (word & TENANT_KEY_MASK, (0, 0)),
                        _ => (self.key_of(word), (0, 0)),
                    };
                    if self.bucket(self.hash_at(store, line, slot)) != first || keys.contains(&key) {
                        strays.push(Place { line, slot });
                    } else {
                        keys.push(key);
                    }
                }
                line = self.next(&store.lines, line);
            }
        }
        strays
    }

    /// What its buckets are.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Offset of its TABLE_REF word in the root.
    pub(crate) fn root(&self) -> usize {
        self.root
    }

    /// Entries in use.
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    /// Lines of the array and its chains.
    pub(crate) fn lines_used(&self) -> u32 {
        (self.buckets + self.overflow) * self.kind.bucket_lines()
    }

    fn next(&self, lines: &Lines, line: LineNo) -> LineNo {
        match self.kind {
            Kind::Word(_) => LineNo(lines.at(line).half(14)),
            Kind::Vm4 | Kind::Tenant => LineNo(lines.at(line).half(15)),
            Kind::Vm6 => LineNo(lines.at(line).word(3) as u32),
        }
    }

    fn set_next(&self, lines: &Lines, line: LineNo, next: LineNo) {
        match self.kind {
            Kind::Word(_) => lines.at(line).set_half(14, next.0),
            Kind::Vm4 | Kind::Tenant => lines.at(line).set_half(15, next.0),
            Kind::Vm6 => lines.at(line).set(3, u64::from(next)),
        }
    }

    fn bucket(&self, hash: u64) -> LineNo {
        self.first + bucket_of(hash, self.buckets) * self.kind.bucket_lines()
    }

    fn hash_at(&self, store: &Store, line: LineNo, slot: usize) -> u64 {
        let key = store.lines.at(line).word(slot);
        match self.kind {
            Kind::Word(shift) => hash1(key >> shift << shift, store.salt),
            Kind::Vm4 => hash1(key & !KEY_STATE_MASK, store.salt),
            Kind::Tenant => hash1(key >> TENANT_VNI_SHIFT << TENANT_VNI_SHIFT, store.salt),
            Kind::Vm6 => {
                let (hi, lo) = self.addr6(&store.lines, line, slot);
                hash3(key >> VM6_VNI_SHIFT, hi, lo, store.salt)
            }
        }
    }

    fn addr6(&self, lines: &Lines, line: LineNo, slot: usize) -> (u64, u64) {
        let (a, b) = (lines.at(line), lines.at(line + 1));
        (v6_word(a, b, 4 + 2 * slot), v6_word(a, b, 5 + 2 * slot))
    }

    /// Buckets that the table should get before `adds` more entries, if it must grow (or could shrink a lot).
    pub(crate) fn wants(&self, adds: u64) -> Option<u32> {
        let (most, target) = self.kind.loads();
        let total = self.entries + adds;
        if adds == 0 || total * 16 <= u64::from(self.buckets) * most {
            return None;
        }
        // A bulk load gets its exact size; a table that grows by small steps gets room for half as much again.
        let total = if adds >= self.entries { total } else { total + self.entries / 2 };
        Some(((total * 16).div_ceil(target)).clamp(16, u64::from(u32::MAX >> 1)) as u32)
    }

    /// Lines that an insert of `adds` entries may take at most, a new array included.
    pub(crate) fn lines_wanted(&self, adds: u64) -> u64 {
        // At the loads of a bulk build a VM bucket overflows for one entry in twelve, a bucket of words for one in fifty.
        let spill = if matches!(self.kind, Kind::Word(_)) { 20 } else { 8 };
        let chains = match self.wants(adds) {
            Some(buckets) => u64::from(buckets) + (self.entries + adds) / spill + 64,
            // Nearer to the load at which it grows one bucket in four overflows; what is short of that is found one by one.
            None => adds.div_ceil(2),
        };
        chains * u64::from(self.kind.bucket_lines())
    }

    /// Builds an array of `buckets` buckets beside the present one and moves over to it. What the old one occupies is
    /// retired. Engines see the old one until `publish`.
    pub(crate) fn stage(&mut self, store: &mut Store, buckets: u32) -> io::Result<()> {
        let bucket_lines = self.kind.bucket_lines();
        let first = store.arena.alloc_zeroed(buckets * bucket_lines, 2, false)?;
        let old = *self;
        *self = HashTable { first, buckets, entries: 0, overflow: 0, published: false, ..*self };
        // Old buckets are read in order, new ones at random: a window of buckets is prefetched ahead.
        const AHEAD: u32 = 8;
        for bucket in 0..old.buckets {
            if bucket + AHEAD < old.buckets {
                let line = old.first + (bucket + AHEAD) * bucket_lines;
                for slot in 0..self.kind.slots() {
                    if store.lines.at(line).word(slot) != 0 {
                        store.lines.prefetch(self.bucket(self.hash_at(store, line, slot)));
                    }
                }
            }
            let mut line = old.first + bucket * bucket_lines;
            loop {
                self.copy_bucket(store, line)?;
                let next = self.next(&store.lines, line);
                if line < old.first || line >= old.first + old.buckets * bucket_lines {
                    self.retire_bucket(store, line);
                }
                if next == LineNo(0) {
                    break;
                }
                line = next;
            }
        }
        if old.buckets > 0 {
            store.retired.push(Block { line: old.first, lines: old.buckets * bucket_lines });
        }
        Ok(())
    }

    fn retire_bucket(&self, store: &mut Store, line: LineNo) {
        match self.kind.bucket_lines() {
            2 => store.retired_pairs.push(line),
            _ => store.retired.push(Block { line, lines: 1 }),
        }
    }

    fn copy_bucket(&mut self, store: &mut Store, line: LineNo) -> io::Result<()> {
        for slot in 0..self.kind.slots() {
            let key = store.lines.at(line).word(slot);
            if key & self.kind.valid() == 0 {
                continue;
            }
            let hash = self.hash_at(store, line, slot);
            let to = self.empty_slot(store, hash)?;
            self.copy_values(&store.lines, Place { line, slot }, to);
            store.lines.at(to.line).set(to.slot, key);
        }
        Ok(())
    }

    fn copy_values(&self, lines: &Lines, from: Place, to: Place) {
        match self.kind {
            Kind::Word(_) => {}
            Kind::Tenant => {
                lines.at(to.line).set(3 + to.slot, lines.at(from.line).word(3 + from.slot));
                lines.at(to.line).set_half(12 + to.slot, lines.at(from.line).half(12 + from.slot));
                let policy = lines.at(from.line + 1).half(POLICIES + from.slot);
                lines.at(to.line + 1).set_half(POLICIES + to.slot, policy);
                peers::set(lines, to, &peers::at(lines, from));
            }
            Kind::Vm4 => {
                for i in 0..3 {
                    lines.at(to.line).set_half(6 + 3 * to.slot + i, lines.at(from.line).half(6 + 3 * from.slot + i));
                }
            }
            Kind::Vm6 => {
                let (a, b) = (lines.at(from.line), lines.at(from.line + 1));
                for base in [4, 10] {
                    for i in 0..2 {
                        set_v6_word(lines, to.line, base + 2 * to.slot + i, v6_word(a, b, base + 2 * from.slot + i));
                    }
                }
            }
        }
    }

    /// Makes the staged array the one that engines read. False if it is already.
    pub(crate) fn publish(&mut self, root: &RootRef) -> bool {
        let staged = !std::mem::replace(&mut self.published, true);
        if staged {
            root.set(self.root, u64::from(self.buckets) << TABLE_REF_BUCKETS_SHIFT | u64::from(self.first));
        }
        staged
    }

    /// An empty slot for a hash; links a new line to the chain if there is none. Counts the entry.
    fn empty_slot(&mut self, store: &mut Store, hash: u64) -> io::Result<Place> {
        if self.buckets == 0 {
            self.stage(store, 16)?;
        }
        loop {
            let mut line = self.bucket(hash);
            for _ in 0..CHAIN_MAX {
                let bucket = store.lines.at(line);
                if let Some(slot) = (0..self.kind.slots()).find(|s| bucket.word(*s) == 0) {
                    self.entries += 1;
                    return Ok(Place { line, slot });
                }
                let next = self.next(&store.lines, line);
                if next != LineNo(0) {
                    line = next;
                    continue;
                }
                if self.chain_length(&store.lines, hash) >= CHAIN_MAX {
                    break;
                }
                line = self.lengthen(store, line)?;
            }
            self.stage_larger(store)?;
        }
    }

    /// The chain is as long as a reader follows: a larger table has shorter ones.
    fn stage_larger(&mut self, store: &mut Store) -> io::Result<()> {
        let buckets = self.buckets + self.buckets / 2 + 16;
        self.stage(store, buckets)
    }

    /// Links an empty line behind the last one of a chain.
    fn lengthen(&mut self, store: &mut Store, line: LineNo) -> io::Result<LineNo> {
        let new = self.new_line(store)?;
        self.overflow += 1;
        if self.published {
            store.links.push((self.root, line));
        }
        self.set_next(&store.lines, line, new);
        Ok(new)
    }

    /// Takes the line away again that `lengthen` has linked to this one. It is free after a grace period.
    pub(crate) fn shorten(&self, lines: &Lines, line: LineNo) {
        self.set_next(lines, line, LineNo(0));
    }

    /// Sees to it that entries with these hashes can be put in without a call that may fail.
    pub(crate) fn make_room(&mut self, store: &mut Store, hashes: impl Iterator<Item = u64> + Clone) -> io::Result<()> {
        if hashes.clone().next().is_none() {
            return Ok(());
        }
        if self.buckets == 0 {
            self.stage(store, 16)?;
        }
        loop {
            let mut candidates: Vec<LineNo> = hashes.clone().map(|hash| self.bucket(hash)).collect();
            candidates.sort_unstable();
            let mut fit = true;
            for same in candidates.chunk_by(|a, b| a == b) {
                fit &= fit && self.room_in(store, same[0], same.len())?;
            }
            if fit {
                return Ok(());
            }
            self.stage_larger(store)?;
        }
    }

    /// Makes a chain so long that it has so many empty slots. False if it would be longer than a reader follows.
    fn room_in(&mut self, store: &mut Store, bucket: LineNo, wanted: usize) -> io::Result<bool> {
        let (mut line, mut free) = (bucket, 0);
        for length in 1.. {
            let bucket = store.lines.at(line);
            free += (0..self.kind.slots()).filter(|s| bucket.word(*s) == 0).count();
            if free >= wanted || length >= CHAIN_MAX {
                break;
            }
            line = match self.next(&store.lines, line) {
                LineNo(0) => self.lengthen(store, line)?,
                next => next,
            };
        }
        Ok(free >= wanted)
    }

    fn chain_length(&self, lines: &Lines, hash: u64) -> u32 {
        let mut line = self.bucket(hash);
        let mut length = 0;
        while line != LineNo(0) {
            length += 1;
            line = self.next(lines, line);
        }
        length
    }

    fn new_line(&self, store: &mut Store) -> io::Result<LineNo> {
        if self.kind.bucket_lines() == 2 {
            return store.arena.alloc_pair();
        }
        let line = store.arena.alloc(1)?;
        store.lines.zero(line, 1);
        Ok(line)
    }

    // ---- tables of words ----

    fn key_of(&self, entry: u64) -> u64 {
        match self.kind {
            Kind::Word(shift) => entry >> shift << shift,
            _ => entry & !KEY_STATE_MASK,
        }
    }

    /// The hash by which a word finds its bucket.
    pub(crate) fn hash_word(&self, store: &Store, entry: u64) -> u64 {
        hash1(self.key_of(entry), store.salt)
    }

    /// Starts to load the bucket of a word.
    pub(crate) fn prefetch_word(&self, store: &Store, entry: u64) {
        if self.buckets > 0 {
            store.lines.prefetch(self.bucket(hash1(self.key_of(entry), store.salt)));
        }
    }

    /// Where the word with this key is.
    pub(crate) fn find_word(&self, store: &Store, entry: u64) -> Option<(Place, u64)> {
        let key = self.key_of(entry);
        self.scan(store, hash1(key, store.salt), |word, _| word != 0 && self.key_of(word) == key)
    }

    /// Puts a word in, in place of one with the same key. One store.
    pub(crate) fn put_word(&mut self, store: &mut Store, entry: u64) -> io::Result<()> {
        let key = self.key_of(entry);
        let hash = hash1(key, store.salt);
        let (mut line, mut free) = (if self.buckets == 0 { LineNo(0) } else { self.bucket(hash) }, None);
        // Key and empty slot are looked for together.
        for _ in 0..CHAIN_MAX {
            if line == LineNo(0) {
                break;
            }
            let bucket = store.lines.at(line);
            for slot in 0..self.kind.slots() {
                match bucket.word(slot) {
                    0 => free = free.or(Some(Place { line, slot })),
                    word if self.key_of(word) == key => {
                        bucket.set(slot, entry);
                        return Ok(());
                    }
                    _ => {}
                }
            }
            line = self.next(&store.lines, line);
        }
        let place = match free {
            Some(place) => {
                self.entries += 1;
                place
            }
            None => self.empty_slot(store, hash)?,
        };
        store.lines.at(place.line).set(place.slot, entry);
        Ok(())
    }

    /// Takes the word with this key out. One store.
    pub(crate) fn remove_word(&mut self, store: &mut Store, entry: u64) -> bool {
        let Some((place, _)) = self.find_word(store, entry) else {
            return false;
        };
        self.clear(store, place);
        true
    }

    // ---- the table of tenants ----

    /// Where the entry of a VPC is.
    pub(crate) fn find_tenant(&self, store: &Store, vni: Vni) -> Option<Place> {
        let key = u64::from(vni) << TENANT_VNI_SHIFT | TENANT_VALID;
        self.scan(store, tenant_hash(store, vni), |word, _| (word ^ key) & TENANT_KEY_MASK == 0).map(|(place, _)| place)
    }

    /// A slot that held the entry of a VPC and may not be refilled yet.
    pub(crate) fn find_dead_tenant(&self, store: &Store, vni: Vni) -> Option<Place> {
        let key = u64::from(vni) << TENANT_VNI_SHIFT;
        let dead = |word: u64, _| word != 0 && (word ^ key) & TENANT_KEY_MASK == 0;
        self.scan(store, tenant_hash(store, vni), dead).map(|(place, _)| place)
    }

    /// The valid entry of a VPC whose key is not `keep`.
    pub(crate) fn find_twin(&self, store: &Store, vni: Vni, keep: u64) -> Option<Place> {
        let key = u64::from(vni) << TENANT_VNI_SHIFT | TENANT_VALID;
        let twin = |word: u64, _| (word ^ key) & TENANT_KEY_MASK == 0 && word != keep;
        self.scan(store, tenant_hash(store, vni), twin).map(|(place, _)| place)
    }

    /// Whether an array was built that is not published.
    pub(crate) fn staged(&self) -> bool {
        !self.published
    }

    /// Starts to load the bucket of a VPC.
    pub(crate) fn prefetch_tenant(&self, store: &Store, vni: Vni) {
        if self.buckets > 0 {
            store.lines.prefetch(self.bucket(tenant_hash(store, vni)));
        }
    }

    /// Puts the entry of a VPC in, with PEER words: values first, then the key.
    pub(crate) fn insert_tenant(&mut self, store: &mut Store, e: &TenantEntry, words: &PeerWords) -> io::Result<Place> {
        let place = self.empty_slot(store, tenant_hash(store, Vni((e.key >> TENANT_VNI_SHIFT) as u32)))?;
        let bucket = store.lines.at(place.line);
        bucket.set(3 + place.slot, e.roots);
        bucket.set_half(12 + place.slot, e.mac);
        store.lines.at(place.line + 1).set_half(POLICIES + place.slot, e.policy);
        // Whoever had the slot before may have left some, and died.
        peers::clear(&store.lines, place);
        peers::set(&store.lines, place, words);
        bucket.set(place.slot, e.key);
        Ok(place)
    }

    /// Stores the policy of the entry at a place.
    pub(crate) fn set_policy(&self, lines: &Lines, place: Place, policy: u32) {
        lines.at(place.line + 1).set_half(POLICIES + place.slot, policy);
    }

    /// The entry at a place.
    pub(crate) fn tenant_at(&self, lines: &Lines, place: Place) -> TenantEntry {
        let bucket = lines.at(place.line);
        TenantEntry {
            key: bucket.word(place.slot),
            roots: bucket.word(3 + place.slot),
            mac: bucket.half(12 + place.slot),
            policy: lines.at(place.line + 1).half(POLICIES + place.slot),
        }
    }

    /// Takes the entry at a place out: readers find it no more, but the slot is not free before a grace period.
    pub(crate) fn kill_tenant(&self, lines: &Lines, place: Place) {
        let bucket = lines.at(place.line);
        bucket.set(place.slot, bucket.word(place.slot) & !TENANT_VALID);
    }

    // ---- VM tables ----

    fn scan(&self, store: &Store, hash: u64, want: impl Fn(u64, Place) -> bool) -> Option<(Place, u64)> {
        if self.buckets == 0 {
            return None;
        }
        let mut line = self.bucket(hash);
        while line != LineNo(0) {
            for slot in 0..self.kind.slots() {
                let word = store.lines.at(line).word(slot);
                let place = Place { line, slot };
                if want(word, place) {
                    return Some((place, word));
                }
            }
            line = self.next(&store.lines, line);
        }
        None
    }

    /// The entry of an address whose key state satisfies `state`.
    pub(crate) fn find4(
        &self,
        store: &Store,
        vni: Vni,
        addr: u32,
        state: impl Fn(u64) -> bool,
    ) -> Option<(Place, u64)> {
        let key = vm4_key(vni, addr);
        self.scan(store, hash1(key, store.salt), |word, _| {
            word != 0 && word & !KEY_STATE_MASK == key && state(word & KEY_STATE_MASK)
        })
    }

    /// As `find4` for IPv6.
    pub(crate) fn find6(
        &self,
        store: &Store,
        vni: Vni,
        addr: (u64, u64),
        state: impl Fn(u64) -> bool,
    ) -> Option<(Place, u64)> {
        let hash = hash3(u64::from(vni), addr.0, addr.1, store.salt);
        let key = vm6_key(vni, hash);
        self.scan(store, hash, |word, place| {
            word != 0
                && word & !KEY_STATE_MASK == key
                && state(word & KEY_STATE_MASK)
                && self.addr6(&store.lines, place.line, place.slot) == addr
        })
    }

    /// Starts to load the bucket of an IPv4 address.
    pub(crate) fn prefetch4(&self, store: &Store, key: u64) {
        if self.buckets > 0 {
            store.lines.prefetch(self.bucket(hash1(key & !KEY_STATE_MASK, store.salt)));
        }
    }

    /// Puts an IPv4 entry in: values first, then the key with its state.
    pub(crate) fn insert4(&mut self, store: &mut Store, key: u64, value: &VmEntry) -> io::Result<()> {
        let place = self.empty_slot(store, hash1(key & !KEY_STATE_MASK, store.salt))?;
        let bucket = store.lines.at(place.line);
        for (i, half) in vm4_words(value).into_iter().enumerate() {
            bucket.set_half(6 + 3 * place.slot + i, half);
        }
        bucket.set(place.slot, key);
        Ok(())
    }

    /// Puts an IPv6 entry in: address and values first, then the key with its state.
    pub(crate) fn insert6(
        &mut self,
        store: &mut Store,
        vni: Vni,
        addr: (u64, u64),
        state: u64,
        value: (u64, u64),
    ) -> io::Result<()> {
        let hash = hash3(u64::from(vni), addr.0, addr.1, store.salt);
        let place = self.empty_slot(store, hash)?;
        let words = [(4, addr.0), (5, addr.1), (10, value.0), (11, value.1)];
        for (at, word) in words {
            set_v6_word(&store.lines, place.line, at + 2 * place.slot, word);
        }
        store.lines.at(place.line).set(place.slot, vm6_key(vni, hash) | state);
        Ok(())
    }

    /// Empties a slot. No reader may be able to match the key it held.
    pub(crate) fn clear(&mut self, store: &Store, place: Place) {
        if self.kind == Kind::Tenant {
            peers::clear(&store.lines, place);
        }
        store.lines.at(place.line).set(place.slot, 0);
        self.entries -= 1;
    }

    /// Empties the slot of an entry that the table does not count and no reader matches.
    pub(crate) fn erase(&self, lines: &Lines, place: Place) {
        lines.at(place.line).set(place.slot, 0);
    }

    /// Changes the state of a key.
    pub(crate) fn set_state(&self, store: &Store, place: Place, state: u64) {
        let line = store.lines.at(place.line);
        line.set(place.slot, line.word(place.slot) & !KEY_STATE_MASK | state);
    }

    /// The VM entry at a place.
    pub(crate) fn vm_slot(&self, lines: &Lines, place: Place) -> VmSlot {
        let line = lines.at(place.line);
        let key = line.word(place.slot);
        if self.kind == Kind::Vm4 {
            return VmSlot { key, addr6: (0, 0), value: vm4_value(line, place.slot) };
        }
        let second = lines.at(place.line + 1);
        let word = |i: usize| v6_word(line, second, i + 2 * place.slot);
        VmSlot { key, addr6: (word(4), word(5)), value: vm6_value(word(10), word(11)) }
    }

    /// Every slot that is not empty.
    pub(crate) fn for_each(&self, lines: &Lines, mut visit: impl FnMut(Place, u64)) {
        for bucket in 0..self.buckets {
            let mut line = self.first + bucket * self.kind.bucket_lines();
            while line != LineNo(0) {
                for slot in 0..self.kind.slots() {
                    let word = lines.at(line).word(slot);
                    if word != 0 {
                        visit(Place { line, slot }, word);
                    }
                }
                line = self.next(lines, line);
            }
        }
    }
}

/// What is compared of a TENANT_KEY: the VNI, and that it is valid.
const TENANT_KEY_MASK: u64 = u64::MAX << TENANT_VNI_SHIFT | TENANT_VALID;

/// The hash by which a VPC finds its bucket.
pub(crate) fn tenant_hash(store: &Store, vni: Vni) -> u64 {
    hash1(u64::from(vni) << TENANT_VNI_SHIFT, store.salt)
}

fn set_v6_word(lines: &Lines, line: LineNo, i: usize, value: u64) {
    if i < 8 {
        lines.at(line).set(i, value);
    } else {
        lines.at(line + 1).set(i - 8, value);
    }
}
