// SPDX-License-Identifier: Apache-2.0
//! [`Tracker`]: makes, judges and ends sessions. One per node, shared by its workers (`Sync`).
//!
//! # Who changes what
//! A record's state word is its life: stored last when the session begins, zeroed first when it ends, so a process that is killed
//! in between leaves a session without some of its index entries, or entries without a session, and `attach` mends both. While
//! it lives, whoever changes it holds the lock bit in that word, or exchanges the whole word at once. Engines change the
//! words behind it, forward only.
//!
//! # Locks, in order
//! the index's reader-writer lock (shared by all but the moment of growth) → buckets of all keys of one session, by line →
//! nothing. Quotas, timers and free lists have small locks of their own, taken last and never held together with one another.
//! Who holds the lock bit of a record takes none of the index.

mod attach;
mod create;
mod end;
mod exclusion;
mod expire;
mod grow;
mod import;
mod judge;
mod list;
mod types;

pub use types::*;

use crate::alloc::Alloc;
use crate::index::{self, Locked};
use crate::limits::{Life, Lives};
use crate::quota::{Quotas, Tenant};
use crate::record::{after, Record, INNER0, LAST_SEEN, STATE};
use crate::table::{buckets_of, Shared};
use crate::wheel::Wheel;
use crate::{
    coarse, InnerKey, Options, OuterKey, OwnTimeouts, SessionMemory, SessionRef, Sessions, State, TenantLimits,
    TenantStats, Timeouts,
};
use abi::*;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::collections::{HashMap, HashSet};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::Arc;

const INDEX: usize = offset_of!(SessionRoot, index);
const INDEX_OLD: usize = offset_of!(SessionRoot, index_old);

/// The tracker.
pub struct Tracker {
    shared: Arc<Shared>,
    /// As it began; what may change is in `limit` and `lives`.
    options: Options,
    /// Sessions at most.
    limit: AtomicU32,
    lives: Lives,
    salt: u64,
    quotas: Quotas,
    wheel: Wheel,
    alloc: Mutex<Alloc>,
    /// Written when the index changes, read by whoever uses its buckets.
    table: RwLock<()>,
    /// The bucket of the old index that is copied next.
    migrate: Mutex<u32>,
    recycle: Mutex<expire::Recycle>,
    due: Mutex<expire::Due>,
    /// Counts that no longer fit their records.
    spilled: Mutex<HashMap<LineNo, crate::Counts, Mix>>,
    spilled_len: AtomicUsize,
    /// Sessions that the fast path never serves, whatever their state.
    excluded: RwLock<HashSet<LineNo, Mix>>,
    excluded_len: AtomicUsize,
    /// Lines in use by sessions.
    lines_used: AtomicU64,
    sessions: AtomicU64,
    created: AtomicU64,
    ended: [AtomicU64; 6],
}

/// ns of a time in coarse units that lies not far from `now`.
fn fine(time: u32, now: u64) -> u64 {
    let ago = coarse(now).wrapping_sub(time) as i32;
    now.saturating_add_signed(-(i64::from(ago) << SESSION_TIME_SHIFT))
}

fn icmp(inner0: u64) -> bool {
    matches!((inner0 >> 32) as u8, 1 | 58)
}

impl Tracker {
    /// A tracker on memory whose content, if any, is of no interest.
    pub fn new(memory: Arc<dyn SessionMemory>, options: Options, now: u64) -> Result<Tracker, AttachError> {
        let tracker = Tracker::bare(memory, options, options.salt, now)?;
        let shared = &tracker.shared;
        let root = |offset| shared.lines.root(offset);
        root(offset_of!(SessionRoot, magic)).store(0, Release);
        root(INDEX).store(0, Release);
        root(INDEX_OLD).store(0, Release);
        root(offset_of!(SessionRoot, salt)).store(options.salt, Release);
        for n in 0..SESSION_SEGMENTS_MAX {
            shared.lines.kind(n).store(SESSION_SEGMENT_FREE, Release);
        }
        let mut alloc = tracker.alloc.lock();
        (0..shared.memory.segments()).rev().for_each(|n| alloc.give_segment(n));
        // Segment 0 holds records: no bucket may have line 0.
        if let Some(line) = alloc.take(shared, false) {
            alloc.give(false, line);
        }
        let segments = index_segments(u64::from(options.initial.min(options.sessions)));
        let first = alloc.take_index(shared, segments)?;
        alloc.prepare_records(shared, options.initial.min(options.sessions), (LineNo(first.0), segments))?;
        drop(alloc);
        root(INDEX).store(table_ref(first, segments), Release);
        tracker.publish();
        Ok(tracker)
    }

    /// Heap state alone.
    fn bare(memory: Arc<dyn SessionMemory>, options: Options, salt: u64, now: u64) -> Result<Tracker, AttachError> {
        let records = records_for(options.sessions)?;
        let lives = Lives::default();
        lives.set(&options.timeouts);
        Ok(Tracker {
            shared: Arc::new(Shared::new(memory)),
            limit: AtomicU32::new(options.sessions),
            lives,
            options,
            salt,
            quotas: Quotas::new(salt, options.tenant),
            wheel: Wheel::new(now),
            alloc: Mutex::new(Alloc::new(records)),
            table: RwLock::new(()),
            migrate: Mutex::new(0),
            recycle: Mutex::default(),
            due: Mutex::default(),
            spilled: Mutex::new(HashMap::with_hasher(Mix(salt))),
            spilled_len: AtomicUsize::new(0),
            excluded: RwLock::new(HashSet::with_hasher(Mix(salt))),
            excluded_len: AtomicUsize::new(0),
            lines_used: AtomicU64::new(0),
            sessions: AtomicU64::new(0),
            created: AtomicU64::new(0),
            ended: Default::default(),
        })
    }

    fn publish(&self) {
        self.shared.lines.root(offset_of!(SessionRoot, layout_hash)).store(layout_hash(), Release);
        self.shared.lines.root(offset_of!(SessionRoot, magic)).store(SESSION_MAGIC, Release);
    }

    /// A reader.
    pub fn sessions(&self) -> Sessions {
        Sessions::new(self.shared.clone())
    }

    /// What it may take.
    pub fn options(&self) -> Options {
        Options { sessions: self.limit.load(Relaxed), timeouts: self.lives.get(), ..self.options }
    }

    /// Other timeouts from now on. A session that exists has them when it is looked at next: at once if it lives longer now, and
    /// within a turn of the wheel (275 s) if it lives shorter.
    pub fn set_timeouts(&self, timeouts: &Timeouts) {
        self.lives.set(timeouts);
    }

    /// Timeouts of a tenant's own; `[0; 10]` returns to the node's.
    pub fn set_own_timeouts(&self, vni: Vni, own: &OwnTimeouts) {
        self.quotas.set_own(vni, own);
    }

    /// Another number of sessions at most. Nothing is ended: a limit below what is there holds for new sessions.
    pub fn set_sessions(&self, sessions: u32) -> Result<(), AttachError> {
        let records = records_for(sessions)?;
        self.alloc.lock().set_max(records);
        self.limit.store(sessions, Relaxed);
        Ok(())
    }

    /// Sets the limits of a tenant; `None` returns to the default. Nothing is ended: limits hold for new sessions.
    pub fn set_limits(&self, vni: Vni, limits: Option<TenantLimits>) {
        self.quotas.set(vni, limits);
    }

    /// Other limits for tenants that have none of their own. Nothing is ended.
    pub fn set_default_limits(&self, limits: TenantLimits) {
        self.quotas.set_default(limits);
    }

    /// The session with this inner key, looked for under the index's locks: a miss is certain.
    pub fn find_inner(&self, key: &InnerKey) -> Option<SessionRef> {
        self.find_certainly(key.hash(self.salt), |candidates| self.shared.find_inner(candidates, key))
    }

    /// The session with this outer key, looked for under the index's locks: a miss is certain.
    pub fn find_outer(&self, key: &OuterKey) -> Option<SessionRef> {
        self.find_certainly(key.hash(self.salt), |candidates| self.shared.find_outer(candidates, key))
    }

    /// The session of this pair, looked for under the index's locks: a miss is certain.
    pub fn find_pair(&self, key: &crate::PairKey) -> Option<SessionRef> {
        self.find_certainly(key.hash(self.salt), |candidates| self.shared.find_pair(candidates, key))
    }

    /// The lock of the index, as all take it but who begins or ends its growth.
    fn table(&self) -> RwLockReadGuard<'_, ()> {
        self.table.read()
    }

    fn find_certainly(&self, hash: u64, find: impl Fn(&crate::Candidates) -> Option<LineNo>) -> Option<SessionRef> {
        let _table = self.table();
        let [a, b] = buckets_of(self.shared.root(INDEX), hash);
        let _buckets = Locked::new(&self.shared.lines, [a, b, LineNo(0), LineNo(0)]);
        find(&self.shared.candidates(hash)).map(SessionRef)
    }

    /// Stamps a session with the epoch under which it was judged again. False: it has ended.
    pub fn stamp(&self, session: SessionRef, epoch: u16) -> bool {
        let record = self.shared.record(session.0);
        let Some(word) = self.lock(&record) else { return false };
        let outer = record.line.cell(crate::record::OUTER);
        outer.store(outer.load(Acquire) & !0xffff | u64::from(epoch), Release);
        record.line.cell(STATE).store(word, Release);
        true
    }

    /// Locks a live session; its state word without the lock, which is stored to unlock it.
    fn lock(&self, record: &Record) -> Option<u64> {
        let state = record.line.cell(STATE);
        let mut tries = 0u32;
        loop {
            let word = state.load(Acquire);
            if word & SESSION_STATE_MASK == 0 {
                return None;
            }
            if word & SESSION_LOCK == 0 && state.compare_exchange(word, word | SESSION_LOCK, AcqRel, Relaxed).is_ok() {
                return Some(word);
            }
            wait(&mut tries);
        }
    }

    /// How long a session of this state lives, and after how long it is looked at at the latest; ns.
    fn timeout(&self, word: u64, inner0: u64) -> (u64, Option<u64>) {
        let tenant = self.quotas.known(Vni((inner0 >> 40) as u32));
        let life = |life| tenant.and_then(|t| t.own(life)).unwrap_or_else(|| self.lives.ns(life));
        let shortened = |usual, short| {
            let (usual, short) = (life(usual), life(short));
            (if self.pressure(tenant) { usual.min(short) } else { usual }, Some(short))
        };
        match State::from_number(word as u8) {
            State::SynSent | State::SynBoth | State::SynReceived | State::PickedUp => {
                shortened(Life::HalfOpen, Life::HalfOpenPressure)
            }
            State::Established if word & SESSION_DOUBT == 0 => (life(Life::Established), None),
            State::Established | State::FinOut | State::FinIn | State::FinBoth | State::TimeWait => {
                shortened(Life::Closing, Life::ClosingPressure)
            }
            State::Reset | State::None => (life(Life::Reset), None),
            _ if icmp(inner0) => (life(Life::Icmp), None),
            State::OneSided => (life(Life::UdpOneSided), None),
            State::OneWay => (life(Life::UdpOneWay), None),
            State::Paired => (life(Life::Udp), None),
        }
    }

    /// Whether the node or this tenant is short of sessions.
    fn pressure(&self, tenant: Option<&Tenant>) -> bool {
        let level = u64::from(self.limit.load(Relaxed)) * u64::from(self.options.water_level) / 100;
        self.lines_used.load(Relaxed) > level || tenant.is_some_and(Tenant::pressed)
    }

    /// When the time of a session is up, and when to look at it again if that is sooner; ns.
    fn due(&self, record: &Record, word: u64, now: u64) -> (u64, u64) {
        let (timeout, look) = self.timeout(word, record.line.cell(INNER0).load(Relaxed));
        let due = fine(record.line.cell32(LAST_SEEN).load(Relaxed), now).saturating_add(timeout);
        (due, look.map_or(due, |look| due.min(now + look)))
    }

    /// Adds a count that leaves its record.
    fn spill(&self, at: LineNo, counts: crate::Counts) {
        let mut spilled = self.spilled.lock();
        let sum = spilled.entry(at).or_default();
        sum.packets += counts.packets;
        sum.bytes += counts.bytes;
        self.spilled_len.store(spilled.len(), Release);
    }

    /// What was counted for a session in all.
    fn counts(&self, at: LineNo, word: u64) -> crate::Counts {
        let mut counts = crate::Counts::of(word);
        if self.spilled_len.load(Acquire) != 0 {
            if let Some(more) = self.spilled.lock().get(&at) {
                counts.packets += more.packets;
                counts.bytes += more.bytes;
            }
        }
        counts
    }

    fn forget_spilled(&self, at: LineNo) {
        if self.spilled_len.load(Acquire) != 0 {
            let mut spilled = self.spilled.lock();
            spilled.remove(&at);
            self.spilled_len.store(spilled.len(), Release);
        }
    }

    /// Starts to load what a new session of a VM is counted in.
    #[inline]
    pub fn prefetch_vm(&self, vni: Vni, vm: std::net::IpAddr) {
        self.quotas.prefetch(&crate::quota::vm_of(vni, vm));
    }

    /// Counters of every tenant that has, or had, sessions.
    pub fn tenants(&self) -> Vec<TenantStats> {
        self.quotas.stats()
    }

    /// Counters of one tenant.
    pub fn tenant(&self, vni: Vni) -> Option<TenantStats> {
        self.quotas.stats_of(vni)
    }

    /// Sessions of a VM.
    pub fn sessions_of_vm(&self, vni: Vni, vm: std::net::IpAddr) -> u32 {
        self.quotas.of_vm(&crate::quota::vm_of(vni, vm))
    }

    /// Counters.
    pub fn stats(&self) -> TrackerStats {
        let alloc = self.alloc.lock();
        let (room, heap) = (alloc.room(), alloc.bytes());
        drop(alloc);
        TrackerStats {
            sessions: self.sessions.load(Relaxed),
            room,
            limit: self.limit.load(Relaxed).into(),
            memory_bytes: u64::from(self.shared.memory.segments()) * u64::from(SEGMENT_BYTES),
            heap_bytes: heap + self.wheel.bytes() + self.recycle.lock().bytes(),
            created: self.created.load(Relaxed),
            ended: [0, 1, 2, 3, 4, 5].map(|i: usize| self.ended[i].load(Relaxed)),
        }
    }
}

#[cfg(test)]
impl Tracker {
    pub(crate) fn shared_for_tests(&self) -> (&Shared, u64) {
        (&self.shared, self.lines_used.load(Acquire))
    }

    /// As if so many sessions had been there when another one was made.
    pub(crate) fn keep_index_for_tests(&self, sessions: u64) {
        self.keep_index(self.shared.root(INDEX), sessions);
    }
}

fn wait(tries: &mut u32) {
    *tries += 1;
    if *tries < 64 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// Slots of one segment of index.
const SEGMENT_SLOTS: u64 = SEGMENT_LINES as u64 * SESSION_SLOTS as u64;

/// Segments of index for so many sessions.
fn index_segments(sessions: u64) -> u32 {
    (sessions * 2 * 100).div_ceil(SEGMENT_SLOTS * index::LOAD_MAX).max(1) as u32
}

fn table_ref(first: LineNo, segments: u32) -> u64 {
    u64::from(segments * SEGMENT_LINES) << TABLE_REF_BUCKETS_SHIFT | u64::from(first)
}

/// Records for so many sessions: some more, since those that ended wait for a grace period.
fn records_for(sessions: u32) -> Result<u32, AttachError> {
    let most = sessions_max();
    match sessions {
        0 => Err(AttachError::TooMany(sessions, most)),
        n if n > most => Err(AttachError::TooMany(sessions, most)),
        n => Ok(n + (n / 256).max(4096)),
    }
}

/// Sessions of one line for which there is room in session memory, index included.
fn sessions_max() -> u32 {
    let lines = u64::from(SESSION_SEGMENTS_MAX) * u64::from(SEGMENT_LINES);
    // 64 lines of records and float for each 63 sessions, and the index.
    let slots_per_line = u64::from(SESSION_SLOTS) * index::LOAD_MAX;
    let per_thousand = 1000 * 64 / 63 + 1000 * 200 / slots_per_line;
    (lines * 1000 / per_thousand) as u32 - 2 * SEGMENT_LINES
}
