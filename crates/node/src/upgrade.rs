// SPDX-License-Identifier: Apache-2.0
//! Going over to another table layout without losing packets or counters.
//!
//! The new program gets new maps beside the old ones; its tables are filled from the state on disk, which knows no layouts.
//! Meanwhile the old program forwards on the old tables. The switch is the update of the links. What the state does not have,
//! the counters, is read from the old maps: every version writes a description of its layout (where each field of each structure
//! lies) into its state, and its successor reads the old words by the names of their fields. A field that is unknown on
//! one side is left at zero. They are read after the switch, when the old program runs no more, and added to slots of their own,
//! in which no engine counts.

use crate::conntrack::Conntrack;
use abi::{DropReason, Stats, Vni, LAYOUTS, LIMITS, SESSION_LAYOUTS, STATES_LAYOUTS};
use conntrack::upgrade::OldMemory;
use conntrack_compact::upgrade::OldRecords;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tables::{Memory, Tables};
use xdp::{pinned_layouts, BpfStates, OldSessions, OldSizes, OldTables};

fn path(state: &Path, hash: u64) -> PathBuf {
    state.join("layouts").join(format!("{hash:016x}.json"))
}

/// This version's layouts, by name.
pub fn description() -> Value {
    let structures: BTreeMap<&str, Value> = LAYOUTS
        .iter()
        .chain(SESSION_LAYOUTS)
        .chain(STATES_LAYOUTS)
        .map(|l| {
            let fields: BTreeMap<&str, Value> = l
                .fields
                .iter()
                .map(|f| (f.name, json!({"offset": f.offset, "bytes": f.size, "count": f.count})))
                .collect();
            (l.name, json!({"bytes": l.size, "fields": fields}))
        })
        .collect();
    let limits: BTreeMap<&str, u64> = LIMITS.iter().map(|(name, value, _)| (*name, *value)).collect();
    json!({"layout": format!("{:016x}", abi::layout_hash()), "structures": structures, "limits": limits,
        "states": {"recordFormat": conntrack_compact::upgrade::RECORD_FORMAT},
        "bits": {"TABLE_REF_BUCKETS_SHIFT": abi::TABLE_REF_BUCKETS_SHIFT}})
}

/// Writes the description down, for whoever comes after.
pub fn describe_layout(state: &Path) {
    let file = path(state, abi::layout_hash());
    let write = || {
        std::fs::create_dir_all(state.join("layouts"))?;
        std::fs::write(&file, serde_json::to_vec_pretty(&description()).unwrap_or_default())
    };
    if let Err(e) = write() {
        tracing::warn!("{} could not be written, so an upgrade would lose counters: {e}", file.display());
    }
}

/// Words of the old tables, by their offsets.
struct Words<'a> {
    root: &'a dyn Fn(usize) -> Option<u64>,
    stats: &'a dyn Fn(usize) -> Option<u64>,
    lines: &'a dyn Fn(usize) -> Option<u64>,
}

/// A layout as described.
struct Old(Value);

impl Old {
    fn read(state: &Path, hash: u64) -> Option<Old> {
        serde_json::from_slice(&std::fs::read(path(state, hash)).ok()?).ok().map(Old)
    }

    fn number(&self, pointer: &str) -> Option<usize> {
        self.0.pointer(pointer)?.as_u64()?.try_into().ok()
    }

    fn bytes(&self, structure: &str) -> Option<usize> {
        self.number(&format!("/structures/{structure}/bytes"))
    }

    fn field(&self, structure: &str, field: &str, what: &str) -> Option<usize> {
        self.number(&format!("/structures/{structure}/fields/{field}/{what}"))
    }

    fn limit(&self, name: &str) -> Option<usize> {
        self.number(&format!("/limits/{name}"))
    }
}

/// How often, and how long apart, old statistics are read until two readings are equal.
const READINGS: u32 = 50;
const BETWEEN_READINGS: Duration = Duration::from_millis(2);

/// An earlier version with another layout, as long as its maps are pinned.
pub struct Predecessor {
    hash: u64,
    maps: PathBuf,
    old: Old,
    sizes: OldSizes,
}

impl Predecessor {
    /// Finds it; `Err` says why nothing can be had of it although it was there.
    pub fn find(base: &Path, state: Option<&Path>) -> Option<Result<Predecessor, String>> {
        let own = abi::layout_hash();
        let (hash, maps) = pinned_layouts(base).into_iter().rfind(|(hash, _)| *hash != own)?;
        let lost = |why| Some(Err(format!("ATTENTION: sessions and counters of layout {hash:016x} are lost: {why}")));
        let Some(old) = state.and_then(|s| Old::read(s, hash)) else {
            return lost("the state has no description of that layout");
        };
        match sizes(&old) {
            Some(sizes) => Some(Ok(Predecessor { hash, maps, old, sizes })),
            None => lost("its description lacks sizes"),
        }
    }

    /// Its counters.
    pub fn counters(&self) -> Result<Counters<'_>, String> {
        let lost = |e| format!("counters of layout {:016x} are lost: its maps cannot be opened: {e}", self.hash);
        OldTables::open(&self.maps, self.sizes).map(|tables| Counters { of: self, tables }).map_err(lost)
    }

    /// Its sessions; none if it is a version without sessions.
    pub fn sessions(&self) -> Option<Result<Sessions<'_>, String>> {
        let lost =
            |e| format!("ATTENTION: sessions of layout {:016x} are lost: its maps cannot be opened: {e}", self.hash);
        let memory = OldSessions::open(&self.maps, self.old.bytes("SessionRoot")?, self.sizes.segment);
        Some(memory.map(|memory| Sessions { of: self, memory }).map_err(lost))
    }
}

impl Predecessor {
    /// The connections of its state table, if it had one whose agent was in its process, or why they are lost.
    pub fn connections(&self) -> Result<Vec<(conntrack_compact::Key, conntrack_compact::Connection)>, String> {
        let lost = |why: String| {
            Err(format!("ATTENTION: connections of the state table of layout {:016x} are lost: {why}", self.hash))
        };
        let memory = match BpfStates::old_records(&self.maps) {
            Ok(Some(memory)) => memory,
            Ok(None) => return Ok(Vec::new()),
            // A version without state tables.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return lost(format!("its maps cannot be opened: {e}")),
        };
        if self.old.number("/states/recordFormat") != Some(conntrack_compact::upgrade::RECORD_FORMAT as usize) {
            return lost("its records have another meaning".into());
        }
        let words = memory.words();
        let records = OldRecords {
            field: &|structure, field, what| self.old.field(structure, field, what),
            bytes: &|structure| self.old.bytes(structure),
            shift: self.old.number("/bits/TABLE_REF_BUCKETS_SHIFT").unwrap_or(0) as u32,
            word: &|at| words.get(at / 8).map(|word| word.load(Ordering::Acquire)),
        };
        records.connections().map_or_else(|| lost("its description lacks their fields".into()), Ok)
    }
}

/// Counters of an earlier layout.
pub struct Counters<'a> {
    of: &'a Predecessor,
    tables: OldTables,
}

impl Counters<'_> {
    /// After the switch: adds them to what has been counted since. Returns what was done, and how many packets that the old
    /// process had in hand are counted as `punt_no_listener`.
    pub fn carry_over(&self, memory: std::sync::Arc<dyn Memory>) -> (String, u64) {
        let t = &self.tables;
        let words = Words { root: &|at| t.root(at), stats: &|at| t.stats(at), lines: &|at| t.lines(at) };
        let Some(sums) = self.stable(&words) else {
            return (format!("counters of layout {:016x} are lost: its description lacks statistics", self.of.hash), 0);
        };
        let tables = Tables::new(memory.clone());
        let (slots, xdp_slots) = tables.slots();
        let packets = sums.enter(&*memory, slots, xdp_slots);
        let in_hand = crate::counters::account_for_the_dead(&tables, carried_slots(slots, xdp_slots));
        let drops = drops(&self.of.old, &words, &tables).unwrap_or(0);
        (
            format!("counters of layout {:016x} carried over: {packets} packets, {drops} drops by VPC", self.of.hash),
            in_hand,
        )
    }

    /// The old program was taken off its ports a moment ago: another CPU may still be at its last packets.
    fn stable(&self, words: &Words) -> Option<Sums> {
        let mut last = statistics(&self.of.old, words)?;
        for _ in 0..READINGS {
            std::thread::sleep(BETWEEN_READINGS);
            self.tables.gather();
            let now = statistics(&self.of.old, words)?;
            if now == last {
                break;
            }
            last = now;
        }
        Some(last)
    }
}

/// The slots for what earlier layouts counted: the last of the fast path's, which is no CPU's, and the last of all, in which traces
/// count in their own copy of the tables.
fn carried_slots(slots: u32, xdp_slots: u32) -> Vec<u32> {
    xdp_slots.checked_sub(1).into_iter().chain([slots - 1]).collect()
}

/// Sessions of an earlier layout.
pub struct Sessions<'a> {
    of: &'a Predecessor,
    memory: OldSessions,
}

impl Sessions<'_> {
    fn export(&self, each: &mut dyn FnMut(&conntrack::upgrade::Image)) {
        let old = OldMemory {
            field: &|structure, field| self.of.old.field(structure, field, "offset"),
            root: &|at| self.memory.root(at),
            word: &|at| self.memory.word(at),
            segments: self.memory.segments(),
            segment_bytes: self.of.sizes.segment,
        };
        old.export(each);
    }

    /// Before the switch: all of them.
    pub fn import(&self, conntrack: &Conntrack) -> String {
        let (taken, lost) = conntrack.import(&mut |each| self.export(each));
        let rest = if lost > 0 { format!(", {lost} could not go on") } else { String::new() };
        format!("{taken} sessions of layout {:016x} carried over{rest}", self.of.hash)
    }

    /// After the switch: what the old fast path moved on since.
    pub fn refresh(&self, conntrack: &Conntrack) {
        conntrack.refresh(&mut |each| self.export(each));
    }
}

fn sizes(old: &Old) -> Option<OldSizes> {
    Some(OldSizes {
        root: old.bytes("Root")?,
        stats: old.bytes("Stats")?.checked_mul(old.limit("SLOTS_MAX")?)?,
        segment: old.limit("SEGMENT_LINES")?.checked_mul(old.limit("LINE_BYTES")?)?,
    })
}

/// Statistics of an earlier layout: fast path and software, each a sum by offset in this version's `Stats`.
#[derive(Debug, PartialEq)]
struct Sums {
    fast: BTreeMap<usize, u64>,
    software: BTreeMap<usize, u64>,
}

impl Sums {
    /// Adds them to the slots that are nobody's. Returns the packets received.
    fn enter(&self, memory: &dyn Memory, slots: u32, xdp_slots: u32) -> u64 {
        let rx = std::mem::offset_of!(Stats, rx);
        let target = carried_slots(slots, xdp_slots);
        for (sums, slot) in [(&self.fast, target[0]), (&self.software, target[target.len() - 1])] {
            for (offset, value) in sums {
                add(memory, slot as usize, *offset, *value);
            }
        }
        [&self.fast, &self.software].iter().filter_map(|sums| sums.get(&rx)).sum()
    }
}

/// Sums them over slots, field by field.
fn statistics(old: &Old, tables: &Words) -> Option<Sums> {
    let layout = LAYOUTS.iter().find(|l| l.name == "Stats")?;
    let element = old.bytes("Stats")?;
    let count = |field| Some((tables.root)(old.field("Root", field, "offset")?)? as usize);
    let (slots, cpus) = (count("slots")?.min(old.limit("SLOTS_MAX")?), count("xdp_slots")?);
    let mut sums = Sums { fast: BTreeMap::new(), software: BTreeMap::new() };
    for slot in 0..slots {
        let sum = if slot < cpus { &mut sums.fast } else { &mut sums.software };
        for field in layout.fields.iter().filter(|f| !f.name.starts_with("reserved")) {
            let Some(offset) = old.field("Stats", field.name, "offset") else { continue };
            let words = old.field("Stats", field.name, "bytes")?.min(field.size) / 8;
            for word in 0..words {
                let value = (tables.stats)(slot * element + offset + word * 8).unwrap_or(0);
                if value != 0 {
                    *sum.entry(field.offset + word * 8).or_default() += value;
                }
            }
        }
    }
    Some(sums)
}

fn add(memory: &dyn Memory, slot: usize, offset: usize, value: u64) {
    if slot >= memory.stats_slots() as usize || offset + 8 > size_of::<Stats>() {
        return;
    }
    // SAFETY: Memory promises `stats_slots` elements of Stats, 8-byte aligned; slot and offset were checked, and access is atomic.
    let word = unsafe { &*memory.stats().add(slot).cast::<u8>().add(offset).cast::<AtomicU64>() };
    word.fetch_add(value, Ordering::Relaxed);
}

/// The sparse table of drops by VPC and reason: pairs of (VNI << 16 | reason << 8 | 1) and packets.
fn drops(old: &Old, tables: &Words, new: &Tables) -> Option<u64> {
    let shift = old.number("/bits/TABLE_REF_BUCKETS_SHIFT")? as u32;
    let table = (tables.root)(old.field("Root", "drops", "offset")?)?;
    let line = old.limit("LINE_BYTES")?;
    let (first, buckets) = ((table & ((1u64 << shift.min(63)) - 1)) as usize, (table >> shift.min(63)) as usize);
    let pairs = old.bytes("DropBucket")? / 16;
    let mut total = 0;
    for bucket in first..first.checked_add(buckets)? {
        for pair in 0..pairs {
            let at = bucket.checked_mul(line)? + pair * 16;
            // Segments end where the old tables did.
            let (Some(key), Some(count)) = ((tables.lines)(at), (tables.lines)(at + 8)) else { return Some(total) };
            let reason = DropReason::from_number((key >> 8) as u8);
            if let (1, Some(reason), true) = (key & 0xff, reason, count > 0) {
                new.add_drops(Vni((key >> 16) as u32), reason, count);
                total += count;
            }
        }
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A layout in which statistics lie elsewhere, have fewer reasons and one word that nobody knows any more.
    #[test]
    fn counters_of_a_changed_layout_are_found_by_name() {
        let field = |offset: usize, bytes: usize| json!({"offset": offset, "bytes": bytes});
        let old = Old(json!({
            "structures": {
                "Root": {"bytes": 64, "fields": {
                    "slots": field(8, 8), "xdp_slots": field(24, 8), "drops": field(40, 8)}},
                "Stats": {"bytes": 64, "fields": {
                    "forgotten": field(0, 8), "dropped": field(8, 8), "rx": field(16, 8), "drops": field(24, 40)}},
                "DropBucket": {"bytes": 64}},
            "limits": {"SLOTS_MAX": 4, "SEGMENT_LINES": 16, "LINE_BYTES": 64},
            "bits": {"TABLE_REF_BUCKETS_SHIFT": 32}}));
        // Two CPUs and one worker; the table of drops has two buckets from line 3 on.
        let root = |at: usize| [0, 3, 0, 2, 0, 2 << 32 | 3].get(at / 8).copied();
        let stats = |at: usize| {
            Some(match (at / 64, at % 64) {
                (slot, 0) => 999 + slot as u64,
                (0, 8) => 4,
                (0, 16) => 100,
                (0, 32) => 4,
                (2, 16) => 7,
                _ => 0,
            })
        };
        let key = 77u64 << 16 | u64::from(DropReason::OuterTruncated as u8) << 8 | 1;
        let lines = |at: usize| {
            Some(match at {
                256 => key,
                264 => 4,
                _ => 0,
            })
        };
        let memory: std::sync::Arc<dyn Memory> = std::sync::Arc::new(tables::HeapMemory::new().unwrap());
        let options = tables::WriterOptions { xdp_slots: 2, worker_slots: 3, ..Default::default() };
        let writer = tables::Writer::create(memory.clone(), options).unwrap();
        let words = Words { root: &root, stats: &stats, lines: &lines };
        assert_eq!(statistics(&old, &words).unwrap().enter(&*memory, 5, 2), 107);
        let tables = writer.tables();
        assert_eq!(drops(&old, &words, &tables), Some(4));
        let fast = tables.stats(1).read();
        assert_eq!((fast.rx, fast.dropped, fast.drops[1], fast.forwarded), (100, 4, 4, 0));
        assert_eq!(tables.stats(4).read().rx, 7, "software's counters stay software's");
        assert_eq!([0, 2, 3].map(|slot| tables.stats(slot).read().rx), [0; 3], "slots that engines count in");
        assert_eq!(tables.drop_count(Vni(77), DropReason::OuterTruncated), 4);
    }

    #[test]
    fn a_description_says_where_everything_lies() {
        let old = Old(description());
        assert_eq!(old.bytes("Stats"), Some(size_of::<Stats>()));
        assert_eq!(old.field("Stats", "drops", "offset"), Some(std::mem::offset_of!(Stats, drops)));
        assert_eq!(old.field("Root", "drops", "bytes"), Some(8));
        let sizes = sizes(&old).unwrap();
        assert_eq!((sizes.root, sizes.segment), (size_of::<abi::Root>(), abi::SEGMENT_BYTES as usize));
    }
}
