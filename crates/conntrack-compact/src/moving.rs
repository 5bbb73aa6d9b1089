// SPDX-License-Identifier: Apache-2.0
//! The agent's part in migration: connections leave the state table and come back, a bounded number of records at a time.

use crate::agent::Record;
use crate::migrate_tbl::Place;
use crate::migration::{Migration, Next};
use crate::{Agent, Key, StateTable, Writes};

impl<T: Writes> Agent<T> {
    /// Counts a connection that begins or ends.
    pub(crate) fn count_migration(&mut self, key: &Key, before: Option<Record>, after: Option<Record>) {
        let Some(migration) = &mut self.migration else { return };
        match (before, after) {
            (None, Some(r)) => migration.begin(&Place::from(key), r.away()),
            (Some(r), None) => migration.end(&Place::from(key), r.away()),
            _ => {}
        }
    }

    /// A record that a predecessor left: where its connection was it stays, or comes back if nothing migrates any more.
    pub(crate) fn found(&mut self, key: &Key, record: Record) {
        match &mut self.migration {
            Some(migration) if record.away() => migration.found_away(&Place::from(key)),
            None if record.away() => {
                self.records.change(key, record.with_away(false).0);
            }
            _ => {}
        }
    }

    /// Whether a connection that begins stays out of the state table, and whether there is room in that.
    pub(crate) fn goes_away(&self, key: &Key) -> (bool, bool) {
        let migration = self.migration.as_ref();
        migration.map_or((false, true), |m| (m.is_away(&Place::from(key)), m.fast() < m.all()))
    }

    /// The table is full: whether a connection may begin outside of it.
    pub(crate) fn overflow(&mut self, key: &Key) -> bool {
        self.migration.as_mut().is_some_and(|migration| migration.overflow(&Place::from(key)))
    }
}

impl<T: StateTable> Agent<T> {
    /// What migration wants to be done next.
    pub(crate) fn plan_migration(&mut self, now: u64) -> Next {
        self.migration.as_mut().map_or(Next::Rest, |m| m.plan(now))
    }

    /// Brings what is planned into `Migrate_Tbl`. Every reader has ended that began before the last call.
    pub(crate) fn publish_migration(&mut self) {
        let reader = self.table.reader();
        let Some(migration) = &mut self.migration else { return };
        // Readers ask Migrate_Tbl as long as it has entries, before and after.
        reader.request_migration(true);
        migration.publish();
        reader.request_migration(migration.is_read());
    }

    /// Every reader has ended that began before the last publication.
    pub(crate) fn seen_migration(&mut self) {
        if let Some(migration) = &mut self.migration {
            migration.seen();
        }
    }

    /// Moves the connections among the records at `places` places from `from` on that are to be moved.
    pub(crate) fn move_connections(&mut self, from: u64, places: u64) {
        let Some(migration) = &self.migration else { return };
        let of = |(key, value): (Key, u32)| {
            let record = Record(value);
            let leaves = migration.sweeps(&Place::from(&key), record.away()).filter(|_| record.lives())?;
            Some((key, record, leaves))
        };
        let some: Vec<(Key, Record, bool)> = self.records.scan(from, places).filter_map(of).collect();
        for (key, record, leaves) in some {
            self.move_connection(&key, record, leaves);
        }
        let to = Some(from + places).filter(|next| *next < self.records.keys.places());
        if let Some(migration) = &mut self.migration {
            migration.swept(to);
        }
    }

    /// What a crash leaves between the two stores is mended: the table becomes what the records say.
    fn move_connection(&mut self, key: &Key, record: Record, leaves: bool) {
        let (Some(migration), place) = (&mut self.migration, Place::from(key)) else { return };
        if leaves {
            self.records.change(key, record.with_away(true).0);
            self.table.remove(key);
        } else if migration.fast() < migration.all() && self.table.insert(key, record.state()).is_ok() {
            self.records.change(key, record.with_away(false).0);
        } else {
            migration.stays(&place);
            return;
        }
        migration.moved(&place, leaves);
    }

    pub(crate) fn migration(&self) -> Option<&Migration> {
        self.migration.as_deref()
    }
}
