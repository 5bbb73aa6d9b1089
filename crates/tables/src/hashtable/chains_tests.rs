// SPDX-License-Identifier: Apache-2.0
//! Full buckets, chains and moves to larger arrays, word by word: what is in memory after each step is what plain lists of slots say,
//! and every line that was taken is in the table or on a list of lines that become free.

use super::*;
use crate::{HeapMemory, Memory};
use memory::testing::prefetched;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const SALT: u64 = 0x1234_5678_9abc_def1;
const ROOT: usize = memory::root!(vm4);

fn store() -> Store {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let (lines, root) = (Lines::new(&*memory), RootRef::new(&*memory));
    let arena = Arena::new(memory, 8);
    Store { arena, lines, root, salt: SALT, retired: Vec::new(), retired_pairs: Vec::new(), links: Vec::new() }
}

/// The words of an entry, as its bucket holds them: key, then values.
type Entry = Vec<u64>;

const KINDS: [Kind; 4] = [Kind::Word(32), Kind::Vm4, Kind::Vm6, Kind::Tenant];

fn layout(kind: Kind) -> (u32, usize) {
    match kind {
        Kind::Word(_) => (1, 7),
        Kind::Vm4 => (1, 3),
        Kind::Vm6 | Kind::Tenant => (2, 3),
    }
}

/// Word `i` of a bucket.
fn word(s: &Store, line: u32, i: usize) -> u64 {
    s.lines.at(LineNo(line + i as u32 / 8)).word(i % 8)
}

fn half(s: &Store, line: u32, i: usize) -> u64 {
    word(s, line, i / 2) >> (32 * (i % 2)) & 0xffff_ffff
}

/// What a slot holds, as the layout says.
fn slot_words(kind: Kind, s: &Store, line: u32, slot: usize) -> Entry {
    let key = word(s, line, slot);
    let more = match kind {
        Kind::Word(_) => vec![],
        Kind::Vm4 => (0..3).map(|i| half(s, line, 6 + 3 * slot + i)).collect(),
        Kind::Vm6 => [4, 5, 10, 11].map(|i| word(s, line, i + 2 * slot)).to_vec(),
        Kind::Tenant => {
            let mut e = vec![word(s, line, 3 + slot), half(s, line, 12 + slot), half(s, line, 28 + slot)];
            e.extend((8..14).map(|i| word(s, line, i)).filter(|w| w & 3 == slot as u64 + 1));
            e
        }
    };
    [vec![key], more].concat()
}

fn next(kind: Kind, s: &Store, line: u32) -> u32 {
    match kind {
        Kind::Word(_) => half(s, line, 14) as u32,
        Kind::Vm4 | Kind::Tenant => half(s, line, 15) as u32,
        Kind::Vm6 => word(s, line, 3) as u32,
    }
}

/// A table as plain lists: the slots of each chain, one after the other; an empty one has no words.
struct Plain {
    kind: Kind,
    chains: Vec<Vec<Entry>>,
}

impl Plain {
    fn insert(&mut self, hash: u64, entry: Entry, hash_of: &dyn Fn(&Entry) -> u64) {
        let slots = layout(self.kind).1;
        loop {
            let n = self.chains.len() as u32;
            let chain = &mut self.chains[bucket_of(hash, n) as usize];
            if let Some(free) = chain.iter_mut().find(|e| e.is_empty()) {
                *free = entry;
                return;
            }
            if chain.len() < CHAIN_MAX as usize * slots {
                chain.extend(vec![Entry::new(); slots]);
            } else {
                self.grow(n as usize + n as usize / 2 + 16, hash_of);
            }
        }
    }

    fn grow(&mut self, buckets: usize, hash_of: &dyn Fn(&Entry) -> u64) {
        let slots = layout(self.kind).1;
        let old = std::mem::replace(&mut self.chains, vec![vec![Entry::new(); slots]; buckets]);
        for entry in old.into_iter().flatten().filter(|e| !e.is_empty()) {
            self.insert(hash_of(&entry), entry, hash_of);
        }
    }

    /// Panics where the table differs.
    fn check(&self, t: &HashTable, s: &Store, other_lines: u32) {
        let (bucket_lines, slots) = layout(self.kind);
        assert_eq!(t.buckets as usize, self.chains.len());
        assert_eq!(t.entries(), self.chains.iter().flatten().filter(|e| !e.is_empty()).count() as u64);
        let mut lines = 0;
        for (bucket, chain) in self.chains.iter().enumerate() {
            let mut line = t.first + bucket as u32 * bucket_lines;
            for part in chain.chunks(slots) {
                assert_ne!(line, LineNo(0), "the chain of bucket {bucket} is too short");
                lines += bucket_lines;
                for (slot, want) in part.iter().enumerate() {
                    match want.is_empty() {
                        true => assert_eq!(word(s, line.0, slot), 0, "bucket {bucket}"),
                        false => assert_eq!(slot_words(self.kind, s, line.0, slot), *want, "bucket {bucket}"),
                    }
                }
                line = LineNo(next(self.kind, s, line.0));
            }
            assert_eq!(line, LineNo(0), "the chain of bucket {bucket} is too long");
        }
        assert_eq!(t.lines_used(), lines);
        let retired = s.retired.iter().map(|b| b.lines).sum::<u32>() + 2 * s.retired_pairs.len() as u32;
        assert_eq!(s.arena.used(), lines + retired + other_lines);
        let mut found = Vec::new();
        t.for_each(&s.lines, |place, key| found.push((place, key)));
        assert!(found.iter().all(|(place, key)| word(s, place.line.0, place.slot) == *key));
        let entries = self.chains.iter().flatten().filter(|e| !e.is_empty()).map(|e| e[0]);
        assert!(found.into_iter().map(|(_, key)| key).eq(entries), "in the order of the chains");
    }
}

/// Entry `n`, with its hash. All of them are of few buckets.
struct Sample {
    vni: Vni,
    addr: (u64, u64),
    hash: u64,
    words: Entry,
}

fn value(n: u32) -> VmEntry {
    VmEntry { mac: 0x0203_0405_0000 | u64::from(n), vm: VmId(0x54_3210 + n), nc: NcId(0xa_bc00 + n), flags: 1 + n % 3 }
}

/// So many entries whose hashes choose among the first buckets of 16.
fn samples(kind: Kind, count: usize, buckets: u32) -> Vec<Sample> {
    let one = |n: u32| {
        let (vni, addr, v) = (0x12_0000 + n, (u64::from(n) << 32 | 0x2001, u64::from(n) * 3), value(n));
        match kind {
            Kind::Word(_) => Sample {
                vni: Vni(vni),
                addr,
                hash: hash1(u64::from(vni) << 32, SALT),
                words: vec![u64::from(vni) << 32 | 7],
            },
            Kind::Vm4 => {
                let key = u64::from(vni) << 40 | u64::from(n) << 8;
                let values = vec![
                    v.mac >> 16,
                    (v.mac & 0xffff) << 16 | u64::from(v.vm.0 >> 8),
                    u64::from((v.vm.0 & 0xff) << 24 | v.nc.0 << 4 | v.flags),
                ];
                Sample {
                    vni: Vni(vni),
                    addr: (0, u64::from(n)),
                    hash: hash1(key, SALT),
                    words: [vec![key | 1], values].concat(),
                }
            }
            Kind::Vm6 => {
                let hash = hash3(u64::from(vni), addr.0, addr.1, SALT);
                let key = u64::from(vni) << 40 | (hash & 0xffff_ffff) << 8 | 1;
                let (a, b) = (v.mac << 16 | u64::from(v.flags), u64::from(v.vm) << 32 | u64::from(v.nc));
                Sample { vni: Vni(vni), addr, hash, words: vec![key, addr.0, addr.1, a, b] }
            }
            Kind::Tenant => {
                let key = u64::from(vni) << 40 | TENANT_VALID | u64::from(n) << 16 | 0x0201;
                let mut words = vec![key, u64::from(n) << 33 | 5, u64::from(n) + 77, u64::from(n) + 99];
                if n.is_multiple_of(3) {
                    words.push(u64::from(n) << 32 | 0x55 << 8 | 24 << 2);
                }
                Sample { vni: Vni(vni), addr, hash: hash1(u64::from(vni) << 40, SALT), words }
            }
        }
    };
    (1..).map(one).filter(|s| bucket_of(s.hash, 16) < buckets).take(count).collect()
}

fn insert(t: &mut HashTable, s: &mut Store, e: &Sample) {
    match t.kind {
        Kind::Word(_) => t.put_word(s, e.words[0]).unwrap(),
        Kind::Vm4 => t.insert4(s, e.words[0], &value(e.addr.1 as u32)).unwrap(),
        Kind::Vm6 => t.insert6(s, e.vni, e.addr, KEY_VALID, (e.words[3], e.words[4])).unwrap(),
        Kind::Tenant => {
            let entry =
                TenantEntry { key: e.words[0], roots: e.words[1], mac: e.words[2] as u32, policy: e.words[3] as u32 };
            let words = [e.words.get(4).copied().unwrap_or(0), 0, 0, 0, 0, 0];
            let place = t.insert_tenant(s, &entry, &words).unwrap();
            assert_eq!((t.tenant_at(&s.lines, place), peers::at(&s.lines, place)), (entry, words));
        }
    }
}

fn find(t: &HashTable, s: &Store, e: &Sample) -> Option<Place> {
    match t.kind {
        Kind::Word(_) => t.find_word(s, e.words[0]).map(|(place, word)| (assert_eq!(word, e.words[0]), place).1),
        Kind::Vm4 => t.find4(s, e.vni, e.addr.1 as u32, |s| s == KEY_VALID).map(|f| f.0),
        Kind::Vm6 => t.find6(s, e.vni, e.addr, |s| s == KEY_VALID).map(|f| f.0),
        Kind::Tenant => t.find_tenant(s, e.vni),
    }
}

/// A slot's own PEER word carries the number of the slot.
fn with_slot(kind: Kind, chains: &mut [Vec<Entry>]) {
    if kind == Kind::Tenant {
        for (i, e) in chains.iter_mut().flat_map(|c| c.iter_mut().enumerate()) {
            if let Some(w) = e.get_mut(4) {
                *w = *w & !3 | (i as u64 % 3 + 1);
            }
        }
    }
}

#[test]
fn chains_fill_up_and_move_to_larger_arrays() {
    for kind in KINDS {
        let (mut s, mut t) = (store(), HashTable::new(kind, ROOT));
        let (bucket_lines, slots) = layout(kind);
        let all = samples(kind, 2 * slots * CHAIN_MAX as usize + 3, 2);
        let hashes: BTreeMap<u64, u64> = all.iter().map(|e| (e.words[0], e.hash)).collect();
        let hash_of = |e: &Entry| hashes[&e[0]];
        let mut plain = Plain { kind, chains: vec![vec![Entry::new(); slots]; 16] };
        assert!(all.iter().all(|e| find(&t, &s, e).is_none()), "there is no table");
        let mut moved = 0;
        for (n, e) in all.iter().enumerate() {
            let buckets = t.buckets;
            insert(&mut t, &mut s, e);
            plain.insert(e.hash, e.words.clone(), &hash_of);
            with_slot(kind, &mut plain.chains);
            plain.check(&t, &s, 0);
            if n == 0 {
                // The first array is staged, then it is what readers see; later lines are links behind their backs.
                assert!(t.staged() && s.links.is_empty());
                assert!(t.publish(&s.root) && !t.publish(&s.root) && !t.staged());
                assert_eq!(s.root.get(ROOT), 16 << 32 | u64::from(t.first));
            } else if t.buckets != buckets {
                moved += 1;
                assert_eq!((buckets, t.buckets), (16, 40));
                // The old array and its chains, which were as long as a reader follows.
                assert_eq!(s.retired.iter().filter(|b| b.lines == 16 * bucket_lines).count(), 1);
                assert_eq!((t.staged(), t.publish(&s.root)), (true, true));
                let small = s.retired.iter().filter(|b| b.lines == 1).map(|b| b.line.0);
                let gone: BTreeSet<u32> = small.chain(s.retired_pairs.iter().map(|line| line.0)).collect();
                let linked: BTreeSet<u32> = s.links.iter().map(|(_, line)| next(kind, &s, line.0)).collect();
                assert_eq!(gone, linked);
                assert!(s.links.iter().all(|(root, _)| *root == ROOT));
            }
            assert!(all[..=n].iter().all(|e| find(&t, &s, e).is_some()));
            assert!(all[n + 1..].iter().all(|e| find(&t, &s, e).is_none()));
        }
        assert_eq!(moved, 1, "{kind:?}");
        // An array that another writer finds is the same.
        let mut blocks = Vec::new();
        let other = HashTable::attach(kind, ROOT, (&s.lines, &s.root), &mut |b| (blocks.push(b), true).1);
        assert_eq!(other, Some(t));
        assert_eq!(blocks.iter().map(|b| b.lines).sum::<u32>(), t.lines_used());
        for n in 0..blocks.len() {
            let mut left = n;
            let stopped = HashTable::attach(kind, ROOT, (&s.lines, &s.root), &mut |_| {
                (left > 0, left = left.saturating_sub(1)).0
            });
            assert_eq!(stopped, None, "block {n} of {} is refused", blocks.len());
        }
        // Slots that became empty are filled again before anything is linked, the first one first.
        for (n, e) in all.iter().enumerate().filter(|(n, _)| n % 3 == 1) {
            let place = find(&t, &s, e).unwrap();
            t.clear(&s, place);
            let slot = plain.chains.iter_mut().flatten().find(|f| f.first() == Some(&e.words[0])).unwrap();
            slot.clear();
            plain.check(&t, &s, 0);
            assert!(find(&t, &s, e).is_none(), "{n}");
        }
        for e in all.iter().skip(1).step_by(3).rev() {
            insert(&mut t, &mut s, e);
            plain.insert(e.hash, e.words.clone(), &hash_of);
            with_slot(kind, &mut plain.chains);
            plain.check(&t, &s, 0);
        }
        // What was retired and what is in use is all there is.
        s.retired.drain(..).for_each(|b| s.arena.free(b));
        s.retired_pairs.drain(..).for_each(|line| s.arena.free_pair(line));
        plain.check(&t, &s, 0);
    }
}

/// A word of a key that is there takes its place, wherever in the chain it is; else the first empty slot of the chain is filled.
#[test]
fn words_are_replaced_in_their_place() {
    let (mut s, mut t) = (store(), HashTable::new(Kind::Word(32), ROOT));
    let all = samples(Kind::Word(32), 30, 1);
    all.iter().for_each(|e| t.put_word(&mut s, e.words[0]).unwrap());
    let places: Vec<Place> = all.iter().map(|e| find(&t, &s, e).unwrap()).collect();
    assert_eq!(places.iter().map(|p| p.line).collect::<BTreeSet<_>>().len(), 5);
    assert!(t.remove_word(&mut s, all[2].words[0] | 99) && !t.remove_word(&mut s, all[2].words[0]));
    for (n, e) in all.iter().enumerate().rev().filter(|(n, _)| *n != 2) {
        t.put_word(&mut s, e.words[0] + n as u64).unwrap();
        assert_eq!(t.find_word(&s, e.words[0]), Some((places[n], e.words[0] + n as u64)));
        assert_eq!(t.hash_word(&s, e.words[0] | 5), e.hash);
    }
    assert_eq!((t.entries(), t.lines_used()), (29, 16 + 4));
    t.put_word(&mut s, all[2].words[0]).unwrap();
    assert_eq!(find(&t, &s, &all[2]), Some(places[2]), "the slot that was empty");
    assert_eq!((t.entries(), t.lines_used()), (30, 16 + 4));
    // A key of which every bit is 0 is found only where it was put.
    let whole = HashTable::new(Kind::Word(0), ROOT);
    assert_eq!(
        (whole.key_of(0x1234_5678_9abc_def0), t.key_of(0x1234_5678_9abc_def0)),
        (0x1234_5678_9abc_def0, 0x1234_5678 << 32)
    );
    assert_eq!(t.find_word(&s, 0), None);
    t.put_word(&mut s, 5).unwrap();
    assert_eq!(t.find_word(&s, 0).map(|f| f.1), Some(5));
}

/// An IPv6 address of VPC 0 whose tag is 0: by going through `hash3` backwards.
fn untagged(salt: u64) -> (u64, u64) {
    let inverse = |m: u64| (0..6).fold(m, |x, _| x.wrapping_mul(2u64.wrapping_sub(m.wrapping_mul(x))));
    let unshift = |x: u64, by: u32| (0..3).fold(x, |y, _| x ^ y >> by);
    let x = unshift(unshift(0x0765_4321_0000_0000, 32).wrapping_mul(inverse(HASH_MUL_A)), 29)
        .wrapping_mul(inverse(HASH_MUL_B));
    let first = (7 ^ salt).wrapping_mul(HASH_MUL_A);
    (7, x ^ first ^ first >> 32)
}

/// Empty slots look like the key of VPC 0 with nothing else in it.
#[test]
fn empty_slots_are_never_found() {
    let (mut s, mut t) = (store(), HashTable::new(Kind::Vm4, ROOT));
    t.stage(&mut s, 16).unwrap();
    assert_eq!(t.find4(&s, Vni(0), 0, |_| true), None);
    t.insert4(&mut s, KEY_VALID, &value(1)).unwrap();
    let (place, key) = t.find4(&s, Vni(0), 0, |_| true).unwrap();
    assert_eq!((key, t.vm_slot(&s.lines, place)), (1, VmSlot { key: 1, addr6: (0, 0), value: value(1) }));
    assert_eq!(t.find4(&s, Vni(0), 0, |s| s == KEY_VALID | KEY_DYING), None);
    t.erase(&s.lines, place);
    assert_eq!((t.find4(&s, Vni(0), 0, |_| true), t.entries()), (None, 1), "what is erased was never counted");
    let (mut s, mut t) = (store(), HashTable::new(Kind::Vm6, ROOT));
    let addr = untagged(SALT);
    assert_eq!(hash3(0, addr.0, addr.1, SALT), 0x0765_4321_0000_0000);
    t.insert6(&mut s, Vni(0), addr, KEY_VALID, (0x1234 << 16 | 2, 5 << 32 | 6)).unwrap();
    let (place, key) = t.find6(&s, Vni(0), addr, |_| true).unwrap();
    let slot = VmSlot { key, addr6: addr, value: VmEntry { mac: 0x1234, vm: VmId(5), nc: NcId(6), flags: 2 } };
    assert_eq!((key, t.vm_slot(&s.lines, place)), (KEY_VALID, slot));
    assert_eq!(t.find6(&s, Vni(0), (addr.0, addr.1 ^ 1), |_| true), None);
    t.clear(&s, place);
    // Its address is still there.
    assert_eq!((word(&s, place.line.0, 4 + 2 * place.slot), t.find6(&s, Vni(0), addr, |_| true)), (addr.0, None));
    let (mut s, mut t) = (store(), HashTable::new(Kind::Tenant, ROOT));
    t.stage(&mut s, 16).unwrap();
    let place =
        |t: &HashTable, s: &Store| (t.find_tenant(s, Vni(0)), t.find_dead_tenant(s, Vni(0)), t.find_twin(s, Vni(0), 1));
    assert_eq!(place(&t, &s), (None, None, None));
    let key = TENANT_VALID | 9 << TENANT_ID_SHIFT;
    let at = t.insert_tenant(&mut s, &TenantEntry { key, roots: 1, mac: 2, policy: 3 }, &PeerWords::default()).unwrap();
    assert_eq!(place(&t, &s), (Some(at), None, Some(at)));
    assert_eq!(t.find_twin(&s, Vni(0), key), None);
}

#[test]
fn vpcs_die_and_have_twins() {
    let (mut s, mut t) = (store(), HashTable::new(Kind::Tenant, ROOT));
    let all = samples(Kind::Tenant, 12, 1);
    all.iter().for_each(|e| insert(&mut t, &mut s, e));
    for e in &all {
        let place = t.find_tenant(&s, e.vni).unwrap();
        let old = t.tenant_at(&s.lines, place);
        assert_eq!((t.find_dead_tenant(&s, e.vni), t.find_twin(&s, e.vni, old.key)), (None, None));
        // A second entry beside the first one.
        let key = old.key ^ 0xf0 | TENANT_METERED;
        let twin = t.insert_tenant(&mut s, &TenantEntry { key, ..old }, &PeerWords::default()).unwrap();
        assert_eq!((t.find_twin(&s, e.vni, key), t.find_twin(&s, e.vni, old.key)), (Some(place), Some(twin)));
        t.set_policy(&s.lines, twin, 0xfeed_0000 | place.slot as u32);
        assert_eq!(
            (t.tenant_at(&s.lines, twin).policy, t.tenant_at(&s.lines, place)),
            (0xfeed_0000 | place.slot as u32, old)
        );
        t.kill_tenant(&s.lines, place);
        assert_eq!(word(&s, place.line.0, place.slot), old.key & !TENANT_VALID);
        assert_eq!((t.find_tenant(&s, e.vni), t.find_dead_tenant(&s, e.vni)), (Some(twin), Some(place)));
        assert_eq!((t.find_twin(&s, e.vni, key), t.entries()), (None, 13));
        t.clear(&s, place);
        assert_eq!(
            (t.find_dead_tenant(&s, e.vni), t.entries(), peers::at(&s.lines, place)),
            (None, 12, PeerWords::default())
        );
    }
}

/// Dead entries stay behind when a table moves, and marks move along.
#[test]
fn a_move_leaves_dead_entries_behind() {
    for kind in [Kind::Vm4, Kind::Vm6, Kind::Tenant] {
        let (mut s, mut t) = (store(), HashTable::new(kind, ROOT));
        let all = samples(kind, 20, 2);
        all.iter().for_each(|e| insert(&mut t, &mut s, e));
        for (n, e) in all.iter().enumerate() {
            let place = find(&t, &s, e).unwrap();
            match (n % 3, kind) {
                (0, Kind::Tenant) => t.kill_tenant(&s.lines, place),
                (0, _) => t.set_state(&s, place, KEY_DYING),
                (1, Kind::Vm4 | Kind::Vm6) => {
                    t.set_state(&s, place, KEY_VALID | KEY_ADDING | 2 << KEY_GENERATION_SHIFT);
                    assert_eq!(word(&s, place.line.0, place.slot), e.words[0] | 0b1_0010);
                }
                _ => {}
            }
        }
        t.stage(&mut s, 33).unwrap();
        let mut found = BTreeSet::new();
        t.for_each(&s.lines, |_, key| _ = found.insert(key));
        let mark = |n: usize| if n % 3 == 1 && kind != Kind::Tenant { 0b1_0010 } else { 0 };
        let want: BTreeSet<u64> =
            all.iter().enumerate().filter(|(n, _)| n % 3 != 0).map(|(n, e)| e.words[0] | mark(n)).collect();
        assert_eq!((found, t.entries()), (want, 13));
    }
}

/// Room is made line by line, no more than is wanted, and in a larger array where a chain would be too long.
#[test]
fn room_is_made_for_exactly_what_comes() {
    for kind in KINDS {
        let (bucket_lines, slots) = layout(kind);
        for (there, comes) in [
            (0, 1),
            (0, slots),
            (0, slots + 1),
            (slots, 1),
            (slots + 1, 2 * slots),
            (2, 8 * slots - 2),
            (2, 8 * slots - 1),
            (8 * slots, 1),
        ] {
            let (mut s, mut t) = (store(), HashTable::new(kind, ROOT));
            let all = samples(kind, there + comes, 1);
            all[..there].iter().for_each(|e| insert(&mut t, &mut s, e));
            t.make_room(&mut s, std::iter::empty()).unwrap();
            assert_eq!(t.buckets, if there > 0 { 16 } else { 0 }, "nothing comes");
            // Of another bucket too: each chain has its own room.
            let far =
                samples(kind, slots, 16).into_iter().filter(|e| bucket_of(e.hash, 16) != 0).map(|e| e.hash).next();
            let hashes = || all[there..].iter().map(|e| e.hash).chain(far);
            t.make_room(&mut s, hashes()).unwrap();
            let chain = (there + comes).div_ceil(slots) as u32;
            if chain <= CHAIN_MAX {
                assert_eq!(
                    (t.buckets, t.lines_used()),
                    (16, (16 + chain - 1) * bucket_lines),
                    "{kind:?} {there} {comes}"
                );
            } else {
                assert_eq!(t.buckets, 40, "{kind:?} {there} {comes}");
            }
            assert_eq!(t.entries(), there as u64);
            let calls = s.arena.calls;
            all[there..].iter().for_each(|e| insert(&mut t, &mut s, e));
            assert_eq!(
                (s.arena.calls, t.entries()),
                (calls, (there + comes) as u64),
                "no memory is asked for any more"
            );
        }
    }
}

/// At which number of entries a table grows and to which size: 5.5 words, 2.6 VMs and 2.1 VPCs a bucket of seven or three slots are
/// allowed, 4.5, 1.75 (IPv6: 2.1) and 1.4 is what a new array gets.
#[test]
fn tables_grow_at_their_load() {
    // Entries that 16 buckets may hold; buckets for one more at once, by small steps, and for twice as many.
    for (kind, most, once, step, twice, lines) in [
        (Kind::Word(0), 88, 20, 30, 40, 20 + 4 + 64),
        (Kind::Vm4, 42, 25, 37, 48, 25 + 5 + 64),
        (Kind::Vm6, 42, 21, 31, 40, 2 * (21 + 5 + 64)),
        (Kind::Tenant, 34, 26, 38, 50, 2 * (26 + 4 + 64)),
    ] {
        let table = |entries| HashTable { buckets: 16, entries, ..HashTable::new(kind, ROOT) };
        assert_eq!((table(0).wants(most), table(0).wants(most + 1)), (None, Some(once)), "{kind:?}");
        assert_eq!((table(most - 1).wants(1), table(most).wants(1)), (None, Some(step)), "{kind:?}");
        assert_eq!((table(most).wants(most), table(most + 9).wants(0)), (Some(twice), None), "{kind:?}");
        let none = HashTable::new(kind, ROOT);
        assert_eq!((none.wants(1), none.wants(1 << 40)), (Some(16), Some(u32::MAX >> 1)));
        let bucket_lines = u64::from(layout(kind).0);
        assert_eq!(table(0).lines_wanted(most + 1), lines, "{kind:?}");
        assert_eq!([0, 1, 2, 3].map(|n| table(1).lines_wanted(n)), [0, 1, 1, 2].map(|n| n * bucket_lines));
        let big = HashTable { buckets: 7, overflow: 3, ..none };
        assert_eq!((big.lines_used(), big.root(), big.kind()), (10 * bucket_lines as u32, ROOT, kind));
    }
}

/// Whoever moves a table asks for the new home of each entry that is eight buckets ahead.
#[test]
fn a_move_asks_for_the_lines_that_it_fills() {
    let (mut s, mut t) = (store(), HashTable::new(Kind::Vm4, ROOT));
    let all = samples(Kind::Vm4, 20, 16);
    all.iter().for_each(|e| insert(&mut t, &mut s, e));
    let old = t;
    let prefetched = prefetched(|| t.stage(&mut s, 50).unwrap());
    let mut want = Vec::new();
    for bucket in 8..16 {
        for slot in 0..3 {
            let key = word(&s, (old.first + bucket).0, slot);
            if key != 0 {
                let bucket = t.first + bucket_of(hash1(key & !0xff, SALT), 50);
                want.push(std::ptr::from_ref(s.lines.at(bucket)) as usize);
            }
        }
    }
    assert!(want.len() > 5);
    assert_eq!(prefetched, want);
    let line = |hash| vec![std::ptr::from_ref(s.lines.at(t.first + bucket_of(hash, 50))) as usize];
    let prefetched = |what: &dyn Fn()| memory::testing::prefetched(what);
    assert_eq!(prefetched(&|| t.prefetch4(&s, all[0].words[0])), line(all[0].hash));
    let none = HashTable::new(Kind::Word(32), ROOT);
    assert!(prefetched(&|| none.prefetch_word(&s, 5)).is_empty() && prefetched(&|| none.prefetch4(&s, 5)).is_empty());
    assert!(prefetched(&|| none.prefetch_tenant(&s, Vni(5))).is_empty());
    let words = HashTable { kind: Kind::Word(32), ..t };
    assert_eq!(prefetched(&|| words.prefetch_word(&s, 7 << 32 | 9)), line(hash1(7 << 32, SALT)));
    let vpcs = HashTable { kind: Kind::Tenant, buckets: 25, ..t };
    let bucket = t.first + 2 * bucket_of(hash1(7 << 40, SALT), 25);
    assert_eq!(prefetched(&|| vpcs.prefetch_tenant(&s, Vni(7))), [std::ptr::from_ref(s.lines.at(bucket)) as usize]);
}

/// A chain that grows in vain is cut back.
#[test]
fn a_line_that_was_linked_is_taken_away_again() {
    for kind in KINDS {
        let (mut s, mut t) = (store(), HashTable::new(kind, ROOT));
        let slots = layout(kind).1;
        samples(kind, slots, 1).iter().for_each(|e| insert(&mut t, &mut s, e));
        t.publish(&s.root);
        let before = t;
        t.make_room(&mut s, samples(kind, 1, 1).iter().map(|e| e.hash)).unwrap();
        let (root, line) = s.links[0];
        assert_eq!((root, s.links.len(), t.overflow), (ROOT, 1, 1));
        assert_ne!(next(kind, &s, line.0), 0);
        assert_eq!(
            (0..layout(kind).0 as usize * 8).filter(|i| word(&s, next(kind, &s, line.0), *i) != 0).count(),
            0,
            "a new line is empty"
        );
        t = before;
        t.shorten(&s.lines, line);
        assert_eq!((next(kind, &s, line.0), t.lines_used()), (0, 16 * layout(kind).0));
    }
}

/// What a root word may not say.
#[test]
fn arrays_outside_the_memory_are_refused() {
    let mut s = store();
    s.arena.alloc(1).unwrap();
    let limit = u64::from(s.lines.limit());
    for kind in KINDS {
        let lines = u64::from(layout(kind).0);
        let attach = |word: u64| {
            s.root.set(ROOT, word);
            HashTable::attach(kind, ROOT, (&s.lines, &s.root), &mut |_| true).map(|t| (t.first.0, t.buckets))
        };
        assert_eq!(attach(77), Some((77, 0)), "no buckets, no table");
        assert_eq!(attach(4 << 32 | (limit - 4 * lines)), Some(((limit - 4 * lines) as u32, 4)));
        for bad in [
            4 << 32,
            4 << 32 | (limit - 4 * lines + 1),
            0xffff_ffff << 32 | 2,
            0x8000_0000 << 32 | 2,
            4 << 32 | 0xffff_ffff,
        ] {
            assert_eq!(attach(bad), None, "{kind:?} {bad:x}");
        }
    }
}
