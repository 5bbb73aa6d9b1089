// SPDX-License-Identifier: Apache-2.0
//! Counters: tenants by slot, VMs in shared cells with spill, drops by (VNI, reason) in a sparse table, statistics.
//!
//! Several engines may count into the same cell, so all are atomic additions; tenant and statistics slots belong to one
//! CPU or worker each and only need plain aligned words, but an atomic addition is safe even when they are shared.

use crate::{Tables, Tenant};
use abi::*;
use memory::root;
use std::sync::atomic::{AtomicU64, Ordering};

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Count {
    fn add(&mut self, more: Count) {
        self.packets = self.packets.wrapping_add(more.packets);
        self.bytes = self.bytes.wrapping_add(more.bytes);
    }
}

/// Adds to a word that only the calling slot writes.
#[inline(always)]
fn bump(word: &AtomicU64, n: u64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// Where a slot counts for VPCs.
#[derive(Clone, Copy, Debug)]
pub struct SlotCells {
    /// Which of a VPC's words.
    word: u32,
    /// No other slot adds to it.
    own: bool,
}

/// Statistics of one slot, for its owner.
#[derive(Clone, Copy)]
pub struct StatsSlot<'a>(&'a [AtomicU64; size_of::<Stats>() / 8]);

/// Word index of a field of `abi::Stats`.
macro_rules! stat {
    ($field:ident) => {
        std::mem::offset_of!(Stats, $field) / 8
    };
}

impl StatsSlot<'_> {
    /// A packet was taken in.
    #[inline(always)]
    pub fn rx(&self, bytes: u64) {
        self.add(stat!(rx), 1);
        self.add(stat!(rx_bytes), bytes);
    }

    /// Packets of a batch were taken in and sent on.
    #[inline]
    pub fn batch(&self, rx: Count, forwarded: Count) {
        self.add(stat!(rx), rx.packets);
        self.add(stat!(rx_bytes), rx.bytes);
        self.add(stat!(forwarded), forwarded.packets);
        self.add(stat!(forwarded_bytes), forwarded.bytes);
    }

    /// A packet was generated.
    #[inline(always)]
    pub fn generated(&self) {
        self.add(stat!(generated), 1);
    }

    /// A packet was sent on.
    #[inline(always)]
    pub fn forwarded(&self, bytes: u64) {
        self.add(stat!(forwarded), 1);
        self.add(stat!(forwarded_bytes), bytes);
    }

    /// A flow cache sent on so many packets of a batch, and noted so many flows, some in the place of others.
    #[inline]
    pub fn cached(&self, hits: u64, fills: u64, evictions: u64) {
        self.add(stat!(flow_hits), hits);
        self.add(stat!(flow_fills), fills);
        self.add(stat!(flow_evictions), evictions);
    }

    /// A packet went through stage nat.
    #[inline(always)]
    pub fn nat(&self) {
        self.add(stat!(nat), 1);
    }

    /// A packet was turned into its answer.
    #[inline(always)]
    pub fn answered(&self) {
        self.add(stat!(answered), 1);
    }

    /// A packet was left to the host.
    #[inline(always)]
    pub fn passed(&self) {
        self.add(stat!(passed), 1);
    }

    /// A packet was dropped.
    #[inline(always)]
    pub fn dropped(&self, reason: DropReason) {
        self.add(stat!(dropped), 1);
        self.add(stat!(drops) + reason as usize, 1);
    }

    /// A packet was handed to the software path.
    #[inline(always)]
    pub fn punted(&self, reason: PuntReason) {
        self.add(stat!(punted), 1);
        self.add(stat!(punts) + reason as usize, 1);
    }

    /// `n` packets that were meant for this slot got lost on the way to it (a full ring): taken in and dropped.
    pub fn lost(&self, reason: DropReason, n: u64) {
        self.add(stat!(rx), n);
        self.gone(reason, n);
    }

    /// `n` packets that were counted as taken in have no outcome and never will (their engine was killed): dropped.
    pub fn gone(&self, reason: DropReason, n: u64) {
        self.add(stat!(dropped), n);
        self.add(stat!(drops) + reason as usize, n);
    }

    /// A packet that was counted as forwarded was not taken by its port: takes that back and drops it.
    pub fn unsent_forwarded(&self, bytes: u64) {
        self.undo_forwarded(DropReason::TxFailed, 1, bytes);
    }

    /// `n` packets that were counted as forwarded, and are dropped.
    pub fn undo_forwarded(&self, reason: DropReason, n: u64, bytes: u64) {
        self.add(stat!(forwarded), n.wrapping_neg());
        self.add(stat!(forwarded_bytes), bytes.wrapping_neg());
        self.gone(reason, n);
    }

    /// As [`StatsSlot::unsent_forwarded`], for an answer.
    pub fn unsent_answer(&self) {
        self.undo_answers(DropReason::TxFailed, 1);
    }

    /// As [`StatsSlot::undo_forwarded`], for answers.
    pub fn undo_answers(&self, reason: DropReason, n: u64) {
        self.add(stat!(answered), n.wrapping_neg());
        self.gone(reason, n);
    }

    /// A software worker took in a packet that the fast path had punted. (In slots of the fast path the same words count the
    /// packets handed over, so that their difference is what is in flight.)
    #[inline(always)]
    pub fn taken(&self, n: u64) {
        self.add(stat!(punted), n);
    }

    #[inline(always)]
    fn add(&self, word: usize, n: u64) {
        bump(&self.0[word], n);
    }

    /// A copy of all words.
    pub fn read(&self) -> Stats {
        let words: [u64; size_of::<Stats>() / 8] = std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed));
        // SAFETY: Stats is repr(C) of u64 words alone, of the same size.
        unsafe { std::mem::transmute(words) }
    }
}

impl Tables {
    /// Statistics of a slot; slots beyond the last share the last.
    pub fn stats(&self, slot: u32) -> StatsSlot<'_> {
        let slot = slot.min(self.memory().stats_slots().saturating_sub(1));
        // SAFETY: Memory promises `stats_slots` elements, 8-byte aligned; access is atomic.
        StatsSlot(unsafe { &*self.memory().stats().add(slot as usize).cast() })
    }

    /// Statistics of all slots, added up.
    pub fn stats_total(&self) -> Stats {
        let mut total = [0u64; size_of::<Stats>() / 8];
        for slot in 0..self.memory().stats_slots() {
            for (sum, word) in total.iter_mut().zip(self.stats(slot).0) {
                *sum = sum.wrapping_add(word.load(Ordering::Relaxed));
            }
        }
        // SAFETY: Stats is repr(C) of u64 words alone, of the same size.
        unsafe { std::mem::transmute(total) }
    }

    /// Where a slot counts for VPCs, to be asked once a batch.
    pub fn slot_cells(&self, slot: u32) -> SlotCells {
        let words = self.tenant_words();
        let own = self.root.get(root!(slots)) <= u64::from(words);
        SlotCells { word: if slot < words { slot } else { slot % words }, own }
    }

    /// Line of the counting words of a VPC id that belong to a slot, to prefetch it; 0 if there is none.
    #[inline(always)]
    pub fn tenant_cell_line(&self, id: VpcId, slot: u32) -> LineNo {
        self.slot_cell_line(id, self.slot_cells(slot))
    }

    /// The same, by where the slot counts.
    #[inline(always)]
    pub fn slot_cell_line(&self, id: VpcId, cells: SlotCells) -> LineNo {
        self.tenant_words_line(id, cells.word)
    }

    /// Counting words of each tenant.
    #[inline(always)]
    fn tenant_words(&self) -> u32 {
        (self.root.get(root!(tenant_words)) as u32).clamp(1, TENANT_WORDS_MAX)
    }

    #[inline(always)]
    fn tenant_words_line(&self, id: VpcId, word: u32) -> LineNo {
        let first = self.root.tenant_chunk(id.0 >> TENANT_CHUNK_SHIFT).load(Ordering::Acquire);
        let at = (id.0 & ((1 << TENANT_CHUNK_SHIFT) - 1)) / 8;
        let words = (2 << TENANT_CHUNK_SHIFT) + (word << (TENANT_CHUNK_SHIFT - 3));
        if first == 0 {
            return LineNo(0);
        }
        LineNo(first).wrapping_add(words + at)
    }

    /// Counts a packet accepted from a VPC.
    #[inline(always)]
    pub fn count_tenant(&self, tenant: &Tenant, slot: u32, bytes: u64) {
        self.count_vpc(tenant.id(), slot, bytes);
    }

    /// As [`Tables::count_tenant`], by the VPC's id.
    #[inline(always)]
    pub fn count_vpc(&self, id: VpcId, slot: u32, bytes: u64) {
        let cells = self.slot_cells(slot);
        self.count_vpc_at(self.slot_cell_line(id, cells), id, cells, bytes);
    }

    /// As [`Tables::count_vpc`], with the line of the slot's counting words.
    #[inline(always)]
    pub fn count_vpc_at(&self, line: LineNo, id: VpcId, cells: SlotCells, bytes: u64) {
        let Some(cell) = self.engine_word(line, id.0 as usize & 7) else { return };
        let add = 1 << CELL_PACKETS_SHIFT | bytes;
        // Slots that share a word add to it by an atomic; a word of its own takes a load and a store.
        let before = if cells.own {
            let before = cell.load(Ordering::Relaxed);
            cell.store(before.wrapping_add(add), Ordering::Relaxed);
            before
        } else {
            cell.fetch_add(add, Ordering::Relaxed)
        };
        if before & CELL_SPILL_MASK != 0 {
            self.carry(cell, self.tenant_totals(id));
        }
    }

    fn tenant_totals(&self, id: VpcId) -> Option<&AtomicU64> {
        let record = self.tenant_record(id);
        self.engine_word(if record == LineNo(0) { LineNo(0) } else { record.wrapping_add(1 << TENANT_CHUNK_SHIFT) }, 2)
    }

    /// Packets accepted from a VPC, over all slots.
    pub fn tenant_count(&self, tenant: &Tenant) -> Count {
        let id = tenant.id();
        let mut sum = carried(self.tenant_totals(id));
        for word in 0..self.tenant_words() {
            let cell = self.engine_word(self.tenant_words_line(id, word), id.0 as usize & 7);
            sum.add(packed(cell));
        }
        sum
    }

    /// Line of the packed cells of a VM id, to prefetch it; 0 if there is none.
    #[inline(always)]
    pub fn vm_cell_line(&self, vm: VmId) -> LineNo {
        let first = self.root.vm_chunk(vm.0 >> VM_CHUNK_SHIFT).load(Ordering::Acquire);
        if first == 0 {
            return LineNo(0);
        }
        LineNo(first).wrapping_add((vm.0 & ((1 << VM_CHUNK_SHIFT) - 1)) / 8)
    }

    /// Counts a packet delivered to a VM.
    #[inline(always)]
    pub fn count_vm(&self, vm: VmId, bytes: u64) {
        self.count_vm_at(self.vm_cell_line(vm), vm, bytes);
    }

    /// As [`Tables::count_vm`], with the line of the VM's packed cells.
    #[inline(always)]
    pub fn count_vm_at(&self, line: LineNo, vm: VmId, bytes: u64) {
        let Some(cell) = self.engine_word(line, vm.0 as usize & 7) else {
            return;
        };
        let before = cell.fetch_add(1 << CELL_PACKETS_SHIFT | bytes, Ordering::Relaxed);
        if before & CELL_SPILL_MASK != 0 {
            self.carry(cell, self.engine_word(line.wrapping_add(1 << (VM_CHUNK_SHIFT - 3)), vm.0 as usize & 7));
        }
    }

    /// Moves the upper part of a full counting word to its totals. Of several that try, each bit is carried by one.
    #[cold]
    fn carry(&self, cell: &AtomicU64, totals: Option<&AtomicU64>) {
        let old = cell.fetch_and(!CELL_SPILL_MASK, Ordering::Relaxed);
        let carries = (old >> 63) << CELL_CARRY_SHIFT | old >> (CELL_PACKETS_SHIFT - 1) & 1;
        if let Some(totals) = totals {
            totals.fetch_add(carries, Ordering::Relaxed);
        }
    }

    /// Packets delivered to a VM id.
    pub fn vm_count(&self, vm: VmId) -> Count {
        let line = self.vm_cell_line(vm);
        if line == LineNo(0) {
            return Count::default();
        }
        let mut count = carried(self.engine_word(line.wrapping_add(1 << (VM_CHUNK_SHIFT - 3)), vm.0 as usize & 7));
        count.add(packed(self.engine_word(line, vm.0 as usize & 7)));
        count
    }

    /// Counts a drop that is attributed to a VNI. False if its neighbourhood in the table is full: then the caller
    /// counts `drop_overflow` ([`Tables::count_drop_overflow`]).
    pub fn count_drop(&self, vni: Vni, reason: DropReason) -> bool {
        self.add_drops(vni, reason, 1)
    }

    /// Adds drops that were counted elsewhere (by tables of another layout).
    pub fn add_drops(&self, vni: Vni, reason: DropReason, n: u64) -> bool {
        let key = drop_key(vni, reason);
        for line in self.drop_lines(key) {
            for pair in 0..4 {
                let Some(word) = self.engine_word(line, pair * 2) else {
                    return false;
                };
                let mut found = word.load(Ordering::Acquire);
                if found == 0 {
                    found = match word.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire) {
                        Ok(_) => key,
                        Err(other) => other,
                    };
                }
                if found == key {
                    self.lines.at(line).0[pair * 2 + 1].fetch_add(n, Ordering::Relaxed);
                    return true;
                }
            }
        }
        false
    }

    /// Counts a drop that found no room in the table of drop counters.
    pub fn count_drop_overflow(&self, slot: u32) {
        self.stats(slot).add(stat!(drop_overflow), 1);
    }

    /// The bucket of a drop counter and those behind it, wrapping at the table's end.
    fn drop_lines(&self, key: u64) -> impl Iterator<Item = LineNo> {
        let word = self.root.get(root!(drops));
        let (first, buckets) = (word as u32, (word >> TABLE_REF_BUCKETS_SHIFT) as u32);
        let bucket = bucket_of(hash1(key, self.salt()), buckets);
        (0..DROP_PROBES_MAX.min(buckets)).map(move |i| LineNo(first).wrapping_add((bucket + i) % buckets.max(1)))
    }

    /// Drops of one VNI for one reason.
    pub fn drop_count(&self, vni: Vni, reason: DropReason) -> u64 {
        let key = drop_key(vni, reason);
        for line in self.drop_lines(key) {
            let bucket = self.lines.at(line);
            for pair in 0..4 {
                if bucket.word(pair * 2) == key {
                    return bucket.word(pair * 2 + 1);
                }
            }
        }
        0
    }

    /// Every drop counter: VNI, reason, packets.
    pub fn drop_counts(&self) -> Vec<(Vni, DropReason, u64)> {
        let word = self.root.get(root!(drops));
        let (first, buckets) = (word as u32, (word >> TABLE_REF_BUCKETS_SHIFT) as u32);
        let mut out = Vec::new();
        for line in first..first.saturating_add(buckets).min(self.lines.limit()) {
            let bucket = self.lines.at(LineNo(line));
            for pair in 0..4 {
                let key = bucket.word(pair * 2);
                if let (1, Some(reason)) = (key & 0xff, DropReason::from_number((key >> 8) as u8)) {
                    out.push((Vni((key >> 16) as u32), reason, bucket.word(pair * 2 + 1)));
                }
            }
        }
        out
    }
}

fn drop_key(vni: Vni, reason: DropReason) -> u64 {
    u64::from(vni) << 16 | u64::from(reason as u8) << 8 | 1
}

/// A CELL word.
fn packed(cell: Option<&AtomicU64>) -> Count {
    let word = cell.map_or(0, |w| w.load(Ordering::Relaxed));
    Count { packets: word >> CELL_PACKETS_SHIFT, bytes: word & ((1 << CELL_PACKETS_SHIFT) - 1) }
}

/// A CELL_CARRY word.
fn carried(totals: Option<&AtomicU64>) -> Count {
    let word = totals.map_or(0, |w| w.load(Ordering::Relaxed));
    Count {
        packets: word >> CELL_CARRY_SHIFT << (63 - CELL_PACKETS_SHIFT),
        bytes: (word & 0xffff_ffff) << (CELL_PACKETS_SHIFT - 1),
    }
}
