// SPDX-License-Identifier: Apache-2.0
//! Writing to etcd: one request where that is enough, else parts that one small request makes valid.

use super::head::{events_of, Head, Record, Stage};
use super::link::failed;
use super::{read, Fence, Shared, View, BYTES, OPS};
use crate::store::embedded::{CHANGES_MAX, EVENTS_MAX};
use crate::store::record::{event_bytes, record, stamps};
use crate::store::{Compare, Outcome, Revision, StoreError, Write};
use etcd_client::{Compare as Condition, CompareOp, DeleteOptions, Error, KeyValue, Txn, TxnOp};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Requests that are under way together.
const TOGETHER: usize = 8;
/// Largest request, which is etcd's default.
const REQUEST_MAX: usize = 1_500_000;
/// Every so many changes the oldest of the history go.
const SWEEP: u64 = 256;
/// What etcd keeps of its own former revisions: whoever reads a snapshot has this time.
const KEPT: Duration = Duration::from_secs(300);

/// What became of a request under conditions.
enum Done {
    Written(i64),
    /// A condition did not hold.
    Refused,
}

fn written(e: &dyn std::fmt::Display) -> StoreError {
    failed("written", &format!("etcd: {e}"))
}

impl Shared {
    pub(super) fn txn(&self, compares: &[Compare], writes: &[Write]) -> Result<Outcome, StoreError> {
        let outcome = self.transact(compares, writes);
        if let Err(StoreError::Unknown(_)) = outcome {
            // Perhaps it is written: whoever leads follows to the end before anything else is, or what it planned next would hide it.
            let mut fence = self.fence.lock();
            if *fence != Fence::Open {
                *fence = Fence::Closed;
            }
        }
        let outcome = outcome?;
        if let Outcome::Written(revision) = outcome {
            if !writes.is_empty() && revision % SWEEP == 0 && revision > CHANGES_MAX {
                // The history stays bounded; if this fails the next one does it.
                if let Err(e) = self.compact(revision - CHANGES_MAX) {
                    tracing::warn!("the history is not shortened now: {e}");
                }
            }
        }
        Ok(outcome)
    }

    fn transact(&self, compares: &[Compare], writes: &[Write]) -> Result<Outcome, StoreError> {
        let _writing = self.writing.lock();
        if let (Fence::Closed | Fence::Settling(_), false) = (*self.fence.lock(), writes.is_empty()) {
            return Err(StoreError::NotLeading);
        }
        let keys: Vec<Vec<u8>> = compares
            .iter()
            .map(Compare::key)
            .chain(writes.iter().map(Write::key))
            .map(|key| self.keys.entry(key))
            .collect();
        loop {
            let (view, found) = self.look(&keys)?;
            if view.head.pending.is_some() {
                self.complete(&view)?;
                continue;
            }
            let changed = |kv: &Option<KeyValue>| kv.as_ref().map(|kv| stamps(kv.value()).1);
            let unlike = compares.iter().zip(&found).filter(|(compare, kv)| !compare.holds(changed(kv)));
            let unlike: Vec<Vec<u8>> = unlike.map(|(compare, _)| compare.key().to_vec()).collect();
            if !unlike.is_empty() {
                return Ok(Outcome::Conflict(unlike));
            }
            if writes.is_empty() {
                return Ok(Outcome::Written(view.head.revision));
            }
            if let Some(revision) = self.attempt(&view, writes, &found[compares.len()..])? {
                self.note(&Head { revision, ..view.head });
                return Ok(Outcome::Written(revision));
            }
        }
    }

    /// Writes on top of a head. None: another transaction came first.
    fn attempt(
        &self,
        view: &View,
        writes: &[Write],
        before: &[Option<KeyValue>],
    ) -> Result<Option<Revision>, StoreError> {
        let revision = view.head.revision + 1;
        let mut events: Vec<Vec<u8>> = Vec::with_capacity(writes.len());
        let mut order: Vec<usize> = (0..writes.len()).collect();
        order.sort_by(|a, b| writes[*a].key().cmp(writes[*b].key()));
        for n in order {
            let (write, before) = (&writes[n], before[n].as_ref().and_then(|kv| kv.value().get(16..)));
            // A deletion of what is not there changes nothing.
            if write.value().is_some() || before.is_some() {
                events.push(event_bytes(write.key(), write.value(), before));
            }
        }
        if let Some(large) = events.iter().map(Vec::len).find(|n| *n > REQUEST_MAX - 1000) {
            return Err(written(&format!(
                "an object with its former value has {large} bytes, and a request of etcd {REQUEST_MAX}"
            )));
        }
        let id = attempt_id()?;
        // Event and entry have the value each.
        let size: usize = events.iter().map(|e| 2 * e.len()).sum();
        let small = events.len() + 2 <= OPS && size <= BYTES;
        let done = match small {
            true => {
                let bytes = events.concat();
                let mut ops = self.entry_ops(revision, &bytes, before_created(writes, before));
                let record = Record { id: id.clone(), stage: None };
                ops.push(TxnOp::put(self.keys.change(revision), record.bytes(&bytes), None));
                ops.push(self.head_op(&Head { revision, ..view.head.clone() }));
                self.conclude(view, ops, revision, &id)?
            }
            false => self.attempt_large(view, &events, revision, &id)?,
        };
        Ok(done.then_some(revision))
    }

    fn attempt_large(&self, view: &View, events: &[Vec<u8>], revision: Revision, id: &str) -> Result<bool, StoreError> {
        let mut stage = Stage { revision, id: id.into(), parts: 0, events: events.len() as u64 };
        let (mut parts, mut part): (Vec<Txn>, Vec<u8>) = (Vec::new(), Vec::new());
        for (n, event) in events.iter().enumerate() {
            part.extend_from_slice(event);
            let next = events.get(n + 1).map_or(usize::MAX, Vec::len);
            if part.len().saturating_add(next) > BYTES {
                let put = TxnOp::put(self.keys.part(&stage, stage.parts), std::mem::take(&mut part), None);
                parts.push(Txn::new().when(self.fences()?).and_then([put]));
                stage.parts += 1;
            }
        }
        if let Done::Refused = self.all(parts)? {
            return Err(StoreError::NotLeading);
        }
        let record = Record { id: id.into(), stage: Some(stage.clone()) };
        let head = Head { pending: Some(stage), ..view.head.clone() };
        let ops = vec![TxnOp::put(self.keys.change(revision), record.bytes(&[]), None), self.head_op(&head)];
        if !self.conclude(view, ops, revision, id)? {
            return Ok(false);
        }
        let pending = self.look(&[])?.0;
        // Perhaps somebody else has finished it already.
        if pending.head.pending.as_ref().is_some_and(|s| s.revision == revision) {
            self.complete(&pending)?;
        }
        Ok(true)
    }

    /// Brings what is pending into the entries. If another one does so at the same time, one of both does it.
    pub(super) fn complete(&self, view: &View) -> Result<(), StoreError> {
        let Some(stage) = &view.head.pending else { return Ok(()) };
        let lost = |part| written(&format!("part {part} of change {} is not there", stage.revision));
        for part in 0..stage.parts {
            let (key, mut client) = (self.keys.part(stage, part), self.link.kv());
            let mut got = self.link.wait(async move { client.get(key, None).await }).map_err(read)?;
            let kv = got.take_kvs().pop().ok_or_else(|| lost(part))?;
            let events = events_of(kv.value());
            let keys: Vec<Vec<u8>> = events.iter().map(|e| self.keys.entry(&e.key)).collect();
            // As they were before, so that doing it twice ends the same.
            let before = self.look(&keys)?.1;
            let mut txns = Vec::new();
            let (mut ops, mut size) = (Vec::new(), 0);
            for (event, before) in events.iter().zip(&before) {
                let bytes = event.value.as_ref().map_or(0, Vec::len) + event.key.len() + 64;
                if ops.len() == OPS || (size + bytes > BYTES && !ops.is_empty()) {
                    txns.push(Txn::new().when(self.conditions(view)?).and_then(std::mem::take(&mut ops)));
                    size = 0;
                }
                let created = before.as_ref().map_or(stage.revision, |kv| stamps(kv.value()).0);
                ops.push(self.entry_op(&event.key, event.value.as_deref(), created, stage.revision));
                size += bytes;
            }
            txns.push(Txn::new().when(self.conditions(view)?).and_then(ops));
            if let Done::Refused = self.all(txns)? {
                return self.moved_on(view);
            }
        }
        let whole = stage.events <= EVENTS_MAX as u64;
        let compacted = if whole { view.head.compacted } else { stage.revision };
        let head = Head { revision: stage.revision, compacted, pending: None };
        match self.request(Txn::new().when(self.conditions(view)?).and_then([self.head_op(&head)])) {
            Ok(Done::Written(_)) if !whole => self.forget(compacted),
            Ok(Done::Written(_)) => Ok(()),
            Ok(Done::Refused) => self.moved_on(view),
            Err(e) => Err(written(&e)),
        }
    }

    pub(super) fn settle(&self) -> Result<Revision, StoreError> {
        let _writing = self.writing.lock();
        loop {
            let (view, _) = self.look(&[])?;
            if view.head.pending.is_none() {
                self.note(&view.head);
                return Ok(view.head.revision);
            }
            self.complete(&view)?;
        }
    }

    /// A condition did not hold: either the head was written by somebody else, which is well, or this one does not lead any more.
    fn moved_on(&self, view: &View) -> Result<(), StoreError> {
        match self.look(&[])?.0.written == view.written {
            true => Err(StoreError::NotLeading),
            false => Ok(()),
        }
    }

    /// Sends the request of which a transaction depends. False: another one came first.
    fn conclude(&self, view: &View, ops: Vec<TxnOp>, revision: Revision, id: &str) -> Result<bool, StoreError> {
        let refused = || match self.moved_on(view) {
            Ok(()) => Ok(false),
            Err(e) => Err(e),
        };
        match self.request(Txn::new().when(self.conditions(view)?).and_then(ops)) {
            Ok(Done::Written(now)) => {
                self.compact_etcd(now);
                Ok(true)
            }
            Ok(Done::Refused) => refused(),
            Err(e) => {
                // What is still under way must not succeed behind our back, so the head is written as it is.
                let unknown = |why: &dyn std::fmt::Display| StoreError::Unknown(format!("{e}; then {why}"));
                let barrier = Txn::new().when(self.conditions(view)?).and_then([self.head_op(&view.head)]);
                if let Done::Written(_) = self.request(barrier).map_err(|why| unknown(&why))? {
                    return Err(written(&e));
                }
                let (key, mut client) = (self.keys.change(revision), self.link.kv());
                let got = self.link.wait(async move { client.get(key, None).await });
                let mut got = got.map_err(|why| unknown(&why))?;
                let ours = got
                    .take_kvs()
                    .pop()
                    .is_some_and(|kv| Record::read(kv.value()).is_some_and(|(record, _)| record.id == id));
                if ours {
                    Ok(true)
                } else {
                    refused()
                }
            }
        }
    }

    /// That the writer leads, if it must.
    fn fences(&self) -> Result<Vec<Condition>, StoreError> {
        match *self.fence.lock() {
            Fence::Open => Ok(Vec::new()),
            Fence::Closed => Err(StoreError::NotLeading),
            Fence::Settling(term) | Fence::Term(term) => {
                Ok(vec![Condition::create_revision(self.keys.leader(), CompareOp::Equal, term)])
            }
        }
    }

    /// And that the head is still this one.
    fn conditions(&self, view: &View) -> Result<Vec<Condition>, StoreError> {
        let mut conditions = self.fences()?;
        conditions.push(Condition::mod_revision(self.keys.head(), CompareOp::Equal, view.written));
        Ok(conditions)
    }

    fn request(&self, txn: Txn) -> Result<Done, Error> {
        let mut client = self.link.kv();
        let answer = self.link.wait(async move { client.txn(txn).await })?;
        Ok(match answer.succeeded() {
            true => Done::Written(answer.header().map_or(0, |h| h.revision())),
            false => Done::Refused,
        })
    }

    /// Sends many requests, whose order does not matter.
    fn all(&self, txns: Vec<Txn>) -> Result<Done, StoreError> {
        for some in txns.chunks(TOGETHER) {
            let (some, client) = (some.to_vec(), self.link.kv());
            let answers = self.link.wait(async move {
                let mut set = JoinSet::new();
                for txn in some {
                    let mut client = client.clone();
                    set.spawn(async move { client.txn(txn).await.map(|answer| answer.succeeded()) });
                }
                let mut all = true;
                for answer in set.join_all().await {
                    all &= answer?;
                }
                Ok(all)
            });
            if !answers.map_err(|e| written(&e))? {
                return Ok(Done::Refused);
            }
        }
        Ok(Done::Written(0))
    }

    fn entry_op(&self, key: &[u8], value: Option<&[u8]>, created: Revision, revision: Revision) -> TxnOp {
        match value {
            Some(value) => TxnOp::put(self.keys.entry(key), record(created, revision, value), None),
            None => TxnOp::delete(self.keys.entry(key), None),
        }
    }

    fn entry_ops(&self, revision: Revision, events: &[u8], created: impl Fn(&[u8]) -> Option<Revision>) -> Vec<TxnOp> {
        let op = |event: crate::store::Event| {
            let created = created(&event.key).unwrap_or(revision);
            self.entry_op(&event.key, event.value.as_deref(), created, revision)
        };
        events_of(events).into_iter().map(op).collect()
    }

    fn head_op(&self, head: &Head) -> TxnOp {
        // Of such a structure nothing can fail.
        TxnOp::put(self.keys.head(), serde_json::to_vec(head).unwrap_or_default(), None)
    }

    pub(super) fn compact(&self, upto: Revision) -> Result<(), StoreError> {
        let _writing = self.writing.lock();
        loop {
            let (view, _) = self.look(&[])?;
            let upto = upto.min(view.head.revision);
            if upto <= view.head.compacted {
                return Ok(());
            }
            if view.head.pending.is_some() {
                self.complete(&view)?;
                continue;
            }
            let head = Head { compacted: upto, ..view.head.clone() };
            let txn = Txn::new().when(self.conditions(&view)?).and_then([self.head_op(&head)]);
            match self.request(txn).map_err(|e| written(&e))? {
                Done::Written(_) => return self.forget(upto),
                Done::Refused => self.moved_on(&view)?,
            }
        }
    }

    /// Removes the history of which the head already says that it is gone.
    fn forget(&self, upto: Revision) -> Result<(), StoreError> {
        let gone = |from: Vec<u8>, to: Vec<u8>| TxnOp::delete(from, Some(DeleteOptions::new().with_range(to)));
        let ops = [
            gone(self.keys.change(0), self.keys.change(upto + 1)),
            gone(self.keys.stages(0), self.keys.stages(upto + 1)),
        ];
        match self.request(Txn::new().when(self.fences()?).and_then(ops)).map_err(|e| written(&e))? {
            Done::Written(_) => Ok(()),
            Done::Refused => Err(StoreError::NotLeading),
        }
    }

    /// Lets etcd forget its own former revisions, but for those of the last minutes.
    fn compact_etcd(&self, now: i64) {
        let mut mark = self.mark.lock();
        if mark.1.elapsed() < KEPT {
            return;
        }
        let (upto, mut client) = (std::mem::replace(&mut *mark, (now, Instant::now())).0, self.link.kv());
        if upto > 0 {
            // If it was compacted further already, that is as well.
            self.link.spawn(async move { drop(client.compact(upto, None).await) });
        }
    }
}

/// When the keys of writes were created.
fn before_created<'w>(writes: &'w [Write], before: &'w [Option<KeyValue>]) -> impl Fn(&[u8]) -> Option<Revision> + 'w {
    let created: std::collections::HashMap<&[u8], Revision> = writes
        .iter()
        .zip(before)
        .filter_map(|(write, kv)| Some((write.key(), stamps(kv.as_ref()?.value()).0)))
        .collect();
    move |key| created.get(key).copied()
}

/// A name for an attempt that no other one has.
fn attempt_id() -> Result<String, StoreError> {
    let mut bytes = [0; 8];
    let provider = rustls::crypto::ring::default_provider();
    provider.secure_random.fill(&mut bytes).map_err(|_| written(&"no random bytes"))?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}
