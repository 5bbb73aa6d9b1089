// SPDX-License-Identifier: Apache-2.0
//! Growth of the index; see the essay in `index`.

use super::*;

impl Tracker {
    /// After a session was made: grows the index if it is too full, and carries its growth on.
    pub(super) fn keep_index(&self, index: u64, sessions: u64) {
        let slots = (index >> TABLE_REF_BUCKETS_SHIFT) * u64::from(SESSION_SLOTS);
        if self.shared.root(INDEX_OLD) != 0 {
            self.copy_index(2);
        } else if sessions * 200 > slots * index::LOAD_MAX {
            self.grow_index();
        }
    }

    /// Begins a larger index, unless that is being done or cannot be.
    pub(super) fn grow_index(&self) {
        let Some(mut next) = self.migrate.try_lock() else { return };
        let index = self.shared.root(INDEX);
        let have = (index >> TABLE_REF_BUCKETS_SHIFT) as u32 / SEGMENT_LINES;
        let most = index_segments(self.limit.load(Relaxed).into());
        if self.shared.root(INDEX_OLD) != 0 || have >= most {
            return;
        }
        let want = (have * 2).min(most);
        let Ok(first) = self.alloc.lock().take_index(&self.shared, want) else { return };
        let _table = self.table.write();
        *next = 0;
        // Readers load `index` before `index_old`: whoever sees the new one sees the old one too.
        self.shared.lines.root(INDEX_OLD).store(index, Release);
        self.shared.lines.root(INDEX).store(table_ref(first, want), Release);
    }

    /// Copies up to so many buckets of the old index into the new one, if there is an old one and nobody else does so.
    pub(super) fn copy_index(&self, buckets: u32) {
        let Some(mut next) = self.migrate.try_lock() else { return };
        let old = self.shared.root(INDEX_OLD);
        if old == 0 {
            return;
        }
        let (first, n) = (old as u32, (old >> TABLE_REF_BUCKETS_SHIFT) as u32);
        for _ in 0..buckets.min(n - *next) {
            if !self.copy_bucket(old, LineNo(first + *next)) {
                return;
            }
            *next += 1;
        }
        if *next == n {
            let table = self.table.write();
            self.shared.lines.root(INDEX_OLD).store(0, Release);
            drop(table);
            let from = first / SEGMENT_LINES;
            self.recycle.lock().push_segments(from, from + n / SEGMENT_LINES);
        }
    }

    /// Enters what a bucket of the old index holds into the new one. False: the new one has no room.
    fn copy_bucket(&self, old: u64, from: LineNo) -> bool {
        let lines = &self.shared.lines;
        let bucket = lines.at(from);
        for i in 0..SESSION_SLOTS as usize {
            lines.prefetch(LineNo(bucket.cell32(i).load(Relaxed) & SESSION_SLOT_LINE));
        }
        let _table = self.table.read();
        let new = self.shared.root(INDEX);
        for i in 0..SESSION_SLOTS as usize {
            let Some((tag, at)) = index::entry(bucket, i) else { continue };
            for hash in index::hashes(lines, self.salt, at) {
                if crate::table::tag_of(hash) != tag || !buckets_of(old, hash).contains(&from) {
                    continue;
                }
                let [a, b] = buckets_of(new, hash);
                let locked = Locked::new(lines, [a, b, LineNo(0), LineNo(0)]);
                let lives = lines.at(at).cell(STATE).load(Acquire) & SESSION_STATE_MASK != 0;
                if lives
                    && !index::has(lines, new, hash, at)
                    && !index::insert(&locked, lines, self.salt, new, hash, at)
                {
                    return false;
                }
            }
        }
        true
    }
}
