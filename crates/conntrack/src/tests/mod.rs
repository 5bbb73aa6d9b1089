// SPDX-License-Identifier: Apache-2.0
//! Tests of the tracker on memory of its own.

pub(crate) mod ahead;
mod basics;
mod concurrent;
mod exact;
mod growth;
mod handshakes;
mod kill;
mod limits;
mod list;
mod middlebox;
mod model;
mod numbers;
mod peers;
mod steps;
mod takeover;
mod times;
mod upgrade;

use crate::record::STATE;
use crate::*;
use abi::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;
use std::sync::atomic::Ordering::*;
use std::sync::Arc;

/// A second.
pub(crate) const S: u64 = 1_000_000_000;

/// A random number generator whose seed is printed; TUNNY_SEED repeats one.
pub(crate) fn seeded(what: &str) -> (u64, ChaCha8Rng) {
    let seed = std::env::var("TUNNY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("{what}: seed {seed} (TUNNY_SEED={seed} repeats it)");
    (seed, ChaCha8Rng::seed_from_u64(seed))
}

pub(crate) fn tracker(options: Options) -> Tracker {
    Tracker::new(Arc::new(HeapMemory::new().unwrap()), options, S).unwrap()
}

/// A UDP session of VM `vm` and its port towards 8.8.8.8:53, with itself as public port.
pub(crate) fn udp(vni: Vni, vm: u32, port: u16) -> NewSession {
    NewSession {
        inner: InnerKey::v4(vni, 17, vm, port, 0x0808_0808, 53),
        outer: OuterKey::v4(17, 0xc633_6400 | vm & 0xff, port, 0x0808_0808, 53),
        owner: Owner::Snat,
        direction: Direction::Out,
        view: L4View::Other,
        bytes: 100,
        epoch: 1,
        pick_up: false,
    }
}

pub(crate) fn never(ended: &Ended) {
    panic!("unexpected end: {ended:?}");
}

/// Every live session.
pub(crate) fn all(t: &Tracker, now: u64) -> Vec<(SessionRef, SessionInfo)> {
    let mut out = Vec::new();
    let mut from = Some(Cursor::default());
    while let Some(cursor) = from {
        from = t.list(cursor, 10_000, &Filter::default(), now, &mut |at, info| out.push((at, *info)));
    }
    out
}

/// Nothing contradicts itself: every session is found by both keys, every index entry has its session, every number that the
/// tracker keeps is the number that is there. Nobody else may use the tracker meanwhile.
pub(crate) fn check(t: &Tracker, now: u64) {
    let sessions = t.sessions();
    let guard = sessions.enter();
    let (mut tenants, mut vms, mut lines, mut entries) = (HashMap::new(), HashMap::new(), 0, 0);
    let list = all(t, now);
    for (at, info) in &list {
        if info.owner == crate::Owner::Filter {
            // One key, one entry.
            assert_eq!(guard.find_pair(&crate::PairKey::of_session(info.inner, &info.outer)), Some(*at), "{info:?}");
            entries += 1;
        } else {
            assert_eq!(guard.find_inner(&info.inner), Some(*at), "{info:?}");
            assert_eq!(guard.find_outer(&info.outer), Some(*at), "{info:?}");
            entries += 2;
        }
        let tenant: &mut (u32, u32, u32) = tenants.entry(info.inner.vni()).or_default();
        tenant.0 += 1;
        tenant.1 += u32::from(info.state.half_open());
        let word = guard.record(*at).state_word();
        tenant.2 += u32::from(info.state.fast() && word & SESSION_DOUBT == 0 && !t.is_excluded(at.0));
        *vms.entry((info.inner.vni(), info.inner.vm())).or_insert(0) += 1;
        lines += 1 + u64::from(info.inner.is_v6());
        assert_eq!(guard.record(*at).state_word() & SESSION_LOCK, 0);
    }
    assert_eq!(t.stats().sessions, list.len() as u64);
    assert_eq!(t.lines_in_use(), lines);
    for stats in t.tenants() {
        let numbers = tenants.get(&stats.vni).copied().unwrap_or_default();
        assert_eq!((stats.sessions, stats.half_open, stats.fast), numbers, "vni {}", stats.vni);
    }
    for ((vni, vm), n) in vms {
        assert_eq!(t.sessions_of_vm(vni, vm), n);
    }
    assert_eq!(t.index_entries(), entries, "entries of the index");
}

impl Tracker {
    fn lines_in_use(&self) -> u64 {
        self.shared_for_tests().1
    }

    /// Entries of both indexes that stand for live sessions; panics at one that does not, or a lock. An entry that is in both
    /// counts once.
    fn index_entries(&self) -> usize {
        let (shared, _) = self.shared_for_tests();
        let mut seen = std::collections::HashSet::new();
        for table in [shared.root(0x18), shared.root(0x20)] {
            let (first, n) = (table as u32, (table >> TABLE_REF_BUCKETS_SHIFT) as u32);
            for line in first..first + n {
                let bucket = shared.lines.at(LineNo(line));
                if bucket.0.iter().all(|word| word.load(Acquire) == 0) {
                    continue;
                }
                assert_eq!(bucket.cell(7).load(Acquire) & SESSION_BUCKET_LOCK, 0, "a bucket is locked");
                for i in 0..SESSION_SLOTS as usize {
                    let Some((tag, at)) = crate::index::entry(bucket, i) else { continue };
                    let state = shared.lines.at(at).cell(STATE).load(Acquire);
                    assert_ne!(state & SESSION_STATE_MASK, 0, "line {line} slot {i}: no session in line {at}");
                    let salt = shared.salt();
                    assert!(crate::index::belongs(&shared.lines, salt, table, LineNo(line), i), "line {line} slot {i}");
                    let hashes = crate::index::hashes(&shared.lines, salt, at);
                    let fits = |h: &u64| {
                        crate::table::tag_of(*h) == tag && crate::table::buckets_of(table, *h).contains(&LineNo(line))
                    };
                    for (which, hash) in crate::key::distinct(&hashes).iter().enumerate() {
                        if fits(hash) {
                            seen.insert((at, which));
                        }
                    }
                }
            }
        }
        seen.len()
    }
}
