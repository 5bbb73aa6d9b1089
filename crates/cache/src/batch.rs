// SPDX-License-Identifier: Apache-2.0
//! Lookups of many packets at once.
//!
//! A lookup is a short chain of reads of which each says where the next one goes, and the memory of a full cache is larger than what is
//! near a core. One after the other, a packet waits for each of them. In a batch, every packet in turn says what line it needs
//! next, and goes on when the others have done the same: the waits of a whole batch overlap. What is found is what [`Ltm::lookup`] finds, table by
//! table: the longest entry. Packets that need more than that (an entry older than the rules, a way that leads nowhere) are left to it.
use crate::index::Way;
use crate::ltm::{Chain, Ltm};
use crate::segment::{run_silently, TagList};
use crate::table::Tag;
use pipeline::{Key, Machine, Sink};

/// Where one packet stands.
#[derive(Debug)]
struct Lane {
    tag: Tag,
    /// Tags that entries left to look up.
    left: TagList,
    /// Where it stands in the present table.
    way: Way,
    machine: Machine,
    chain: Chain,
    hit: bool,
}

impl Default for Lane {
    fn default() -> Lane {
        Lane { tag: 0, left: TagList::default(), way: Way::Found(None), machine: Machine::default(), chain: Chain::new(), hit: false }
    }
}

/// Room for a batch; used again and again.
#[derive(Debug, Default)]
pub struct Batch {
    lanes: Vec<Lane>,
    /// Lanes that have not come to an end.
    active: Vec<u16>,
    /// Those of them that wait for a bucket, and for a record.
    buckets: Vec<u16>,
    chains: Vec<u16>,
}

impl Batch {
    /// Packets at most.
    pub const MAX: usize = 256;

    /// So many packets, none of them answered.
    pub(crate) fn forget(&mut self, packets: usize) {
        self.lanes.resize_with(packets.min(Batch::MAX).max(self.lanes.len()), Lane::default);
        self.lanes.iter_mut().for_each(|lane| lane.hit = false);
    }

    /// Whether packet N was answered.
    pub fn hit(&self, n: usize) -> bool {
        self.lanes[n].hit
    }

    /// The entries that answered packet N, by table and slot.
    pub fn chain(&self, n: usize) -> &[(u8, u32)] {
        &self.lanes[n].chain
    }
}

impl Ltm {
    /// Looks keys up that all stand at one point; at most [`Batch::MAX`] of them. Those for which [`Batch::hit`] says no have to be
    /// looked up by themselves.
    pub fn lookup_batch(&mut self, tag: Tag, keys: &[Key], now: u64, version: u64, batch: &mut Batch) {
        let keys = &keys[..keys.len().min(Batch::MAX)];
        if batch.lanes.len() < keys.len() {
            batch.lanes.resize_with(keys.len(), Lane::default);
        }
        batch.active.clear();
        for (n, key) in keys.iter().enumerate() {
            let lane = &mut batch.lanes[n];
            lane.machine.reset(key);
            lane.chain.clear();
            (lane.tag, lane.left, lane.hit) = (tag, TagList::default(), false);
            batch.active.push(n as u16);
        }
        for stage in 0..self.stages {
            if batch.active.is_empty() {
                break;
            }
            let table = self.table_of(stage);
            self.find_all(table, batch);
            self.follow(table, version, batch);
        }
        for lane in batch.lanes[..keys.len()].iter_mut().filter(|l| l.hit) {
            self.note_hit(&lane.chain, now);
        }
    }

    /// Finds the entries of one table for all packets that are under way.
    fn find_all(&self, table: usize, batch: &mut Batch) {
        let table = &self.tables[table];
        let Batch { lanes, active, buckets, chains } = batch;
        buckets.clear();
        chains.clear();
        for &n in active.iter() {
            let lane = &mut lanes[usize::from(n)];
            lane.way = table.begin(lane.tag, &lane.machine.key.0);
            match lane.way {
                Way::Bucket(..) => buckets.push(n),
                Way::Chain(_) => chains.push(n),
                Way::Found(_) => {}
            }
        }
        while !buckets.is_empty() {
            let mut left = 0;
            for at in 0..buckets.len() {
                let n = buckets[at];
                let lane = &mut lanes[usize::from(n)];
                let Way::Bucket(group, hash) = lane.way else { continue };
                lane.way = table.bucket(group, hash, &lane.machine.key.0);
                match lane.way {
                    Way::Bucket(..) => {
                        buckets[left] = n;
                        left += 1;
                    }
                    Way::Chain(_) => chains.push(n),
                    Way::Found(_) => {}
                }
            }
            buckets.truncate(left);
        }
        for &n in chains.iter() {
            let lane = &mut lanes[usize::from(n)];
            if let Way::Chain(slot) = lane.way {
                lane.way = Way::Found(table.chain(slot, &lane.machine.key.0));
            }
        }
    }

    /// Does what the entries found say, up to the next lookup.
    fn follow(&self, table: usize, version: u64, batch: &mut Batch) {
        let Batch { lanes, active, .. } = batch;
        let mut left = 0;
        for at in 0..active.len() {
            let n = active[at];
            let lane = &mut lanes[usize::from(n)];
            let goes_on = match lane.way {
                Way::Found(Some(slot)) => self.follow_one(table, slot, version, lane),
                _ => !self.is_pooled(),
            };
            if goes_on {
                active[left] = n;
                left += 1;
            }
        }
        active.truncate(left);
    }

    /// The same for one packet; false if nothing more is to be looked up for it.
    #[inline]
    fn follow_one(&self, table: usize, slot: u32, version: u64, lane: &mut Lane) -> bool {
        let Some(entry) = self.tables[table].value(slot).filter(|e| e.version == version) else { return false };
        lane.chain.push((table as u8, slot));
        match entry.action.next.follow(&mut lane.left) {
            Some(next) => {
                run_silently(&entry.action.ops, &mut lane.machine);
                lane.tag = next;
                true
            }
            None => {
                lane.hit = true;
                false
            }
        }
    }

    /// Does what was found for packet N, after a hit.
    #[inline]
    pub fn run_of(&self, batch: &mut Batch, n: usize, key: &Key, sink: &mut impl Sink) {
        let Lane { machine, chain, .. } = &mut batch.lanes[n];
        self.run(key, chain, machine, sink);
    }
}
