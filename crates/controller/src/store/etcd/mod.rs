// SPDX-License-Identifier: Apache-2.0
//! The store in etcd, for several controllers.
//!
//! Keys below a prefix: `head`, `entries/KEY`, `changes/REVISION` (the history), `parts/REVISION/ATTEMPT/N`, `leader`. The head has the
//! revision of the store, which is not that of etcd. A transaction reads the head and the keys that it compares at one
//! revision of etcd, decides, and writes under the one condition that the head was not written since (and that whoever writes still leads). So
//! it may compare as much as it likes, and transactions are in one order.
//!
//! etcd takes 128 operations and 1.5 MiB a request. What is larger goes in three steps:
//!
//! 1. *Parts.* Its events are written under keys of its own. Nothing refers to them; if the writer dies now, nothing was changed.
//! 2. *Valid.* One small transaction, under the condition above, writes its record and a head with `pending`. Now it has happened.
//! 3. *Into the entries.* Part by part, each under the condition that the head is still that one; then a head without `pending`. Who
//!    wrote it is told so now. If the writer died in between, the next one that writes, or leads, does this step again: it ends the same.
//!
//! Nobody sees halves: etcd keeps former revisions, and whoever reads while something is pending reads as of the revision before that head.
//!
//! If a connection breaks amid a transaction it is found out what became of it: the head is written again as it was, after which a request
//! that is still under way cannot succeed. If etcd does not answer at all, that is what is said ([`StoreError::Unknown`]).

mod head;
mod lease;
mod link;
mod tls;
mod write;

pub use lease::Lease;
pub use link::EtcdConfig;

use super::record::entry;
use super::{Change, Compare, Entry, Outcome, Page, Revision, Snapshot, Store, StoreError, Watch, Write};
pub use controller_core::leader::Fence;
use etcd_client::{Client, Error, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse};
use head::{events_of, Head, Keys, Record};
use link::{failed, Link};
use parking_lot::{Condvar, Mutex};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Operations of a request.
const OPS: usize = 100;
/// Bytes of a request, less what its frame takes.
const BYTES: usize = 1 << 20;
/// Entries that are read by a request.
const PAGE: usize = 2_000;
/// How often the head is looked at, beside being watched.
const LOOK: Duration = Duration::from_secs(1);

/// The store.
pub struct Etcd {
    shared: Arc<Shared>,
}

struct Shared {
    link: Link,
    keys: Keys,
    fence: Mutex<Fence>,
    /// Transactions of this process need not fail for each other's sake.
    writing: Mutex<()>,
    /// The revision of etcd that may be compacted away next, and when it was the present one.
    mark: Mutex<(i64, Instant)>,
    seen: Mutex<Seen>,
    raised: Condvar,
}

/// The head as it was last heard of.
#[derive(Clone, Copy, Debug)]
struct Seen {
    revision: Revision,
    at: Instant,
}

/// The head, and where it stands in etcd.
struct View {
    head: Head,
    /// The revision of etcd that wrote it.
    written: i64,
    /// The revision of etcd of the entries that go with it.
    at: i64,
}

impl Etcd {
    /// Connects. Does not wait for an answer: that comes with the first request.
    pub fn open(config: &EtcdConfig, folder: &Path, fence: Fence) -> Result<Etcd, StoreError> {
        let seen = Seen { revision: 0, at: Instant::now() };
        let shared = Arc::new(Shared {
            link: Link::open(config, folder)?,
            keys: Keys(config.prefix.clone()),
            fence: Mutex::new(fence),
            writing: Mutex::new(()),
            mark: Mutex::new((0, Instant::now())),
            seen: Mutex::new(seen),
            raised: Condvar::new(),
        });
        let (follower, client) = (Arc::downgrade(&shared), shared.link.client());
        let key = shared.keys.head();
        shared.link.spawn(async move { keep_looking(client, key, follower).await });
        Ok(Etcd { shared })
    }

    /// As whom it writes.
    pub fn fence(&self) -> Fence {
        *self.shared.fence.lock()
    }

    /// Says as whom it writes from now on.
    pub fn set_fence(&self, fence: Fence) {
        *self.shared.fence.lock() = fence;
    }

    /// Brings what another writer left pending into the entries. The revision then.
    pub fn settle(&self) -> Result<Revision, StoreError> {
        self.shared.settle()
    }

    /// The revision when etcd answered last, and when that was.
    pub fn heard(&self) -> (Revision, Instant) {
        let seen = self.shared.seen.lock();
        (seen.revision, seen.at)
    }

    /// Who leads.
    pub fn led_by(&self) -> Result<Option<String>, StoreError> {
        let (key, mut client) = (self.shared.keys.leader(), self.shared.link.kv());
        let mut got = self.shared.link.wait(async move { client.get(key, None).await }).map_err(read)?;
        Ok(got.take_kvs().pop().map(|kv| String::from_utf8_lossy(kv.value()).into()))
    }

    /// A lease in this etcd, of which whoever leads has one.
    pub fn lease(&self) -> Lease {
        Lease::new(self.shared.clone())
    }
}

/// Follows the head for as long as the store is there.
async fn keep_looking(mut client: Client, key: Vec<u8>, store: std::sync::Weak<Shared>) {
    let mut watch = None;
    loop {
        let got = tokio::time::timeout(LOOK, client.get(key.clone(), None)).await;
        let Some(shared) = store.upgrade() else { return };
        if let Ok(Ok(mut got)) = got {
            let head = got.take_kvs().pop().and_then(|kv| serde_json::from_slice(kv.value()).ok());
            shared.note(&head.unwrap_or_default());
        } else {
            watch = None;
        }
        drop(shared);
        if watch.is_none() {
            watch = tokio::time::timeout(LOOK, client.watch(key.clone(), None)).await.ok().and_then(Result::ok);
        }
        let until = tokio::time::Instant::now() + LOOK;
        while let Some(following) = &mut watch {
            let Ok(message) = tokio::time::timeout_at(until, following.message()).await else { break };
            let Some(shared) = store.upgrade() else { return };
            let Ok(Some(message)) = message else {
                watch = None;
                break;
            };
            for kv in message.events().iter().filter_map(|event| event.kv()) {
                if let Ok(head) = serde_json::from_slice(kv.value()) {
                    shared.note(&head);
                }
            }
        }
        if watch.is_none() {
            tokio::time::sleep(LOOK / 4).await;
        }
    }
}

fn read(e: Error) -> StoreError {
    match &e {
        Error::GRpcStatus(status) if status.message().contains("has been compacted") => StoreError::Compacted(0),
        e => failed("read", &format!("etcd: {e}")),
    }
}

/// What the gets of a transaction found.
fn gets(responses: Vec<TxnOpResponse>) -> Vec<Vec<KeyValue>> {
    let kvs = |response| match response {
        TxnOpResponse::Get(mut got) => got.take_kvs(),
        _ => Vec::new(),
    };
    responses.into_iter().map(kvs).collect()
}

impl Shared {
    fn note(&self, head: &Head) {
        let mut seen = self.seen.lock();
        *seen = Seen { revision: head.revision.max(seen.revision), at: Instant::now() };
        self.raised.notify_all();
    }

    /// The head, and with it the values of keys as of the same revision.
    fn look(&self, keys: &[Vec<u8>]) -> Result<(View, Vec<Option<KeyValue>>), StoreError> {
        let first = keys.len().min(OPS - 1);
        let ops: Vec<TxnOp> = std::iter::once(self.keys.head())
            .chain(keys[..first].iter().cloned())
            .map(|key| TxnOp::get(key, None))
            .collect();
        let mut client = self.link.kv();
        let answer = self.link.wait(async move { client.txn(Txn::new().and_then(ops)).await }).map_err(read)?;
        let now = answer.header().map_or(0, |h| h.revision());
        let mut found = gets(answer.op_responses()).into_iter().map(|mut kvs| kvs.pop());
        let (head, written) = match found.next().flatten() {
            Some(kv) => (serde_json::from_slice(kv.value()).map_err(|e| failed("read", &e))?, kv.mod_revision()),
            None => (Head::default(), 0),
        };
        let at = if head.pending.is_some() { written - 1 } else { now };
        let view = View { head, written, at };
        let (mut found, mut next): (Vec<_>, usize) = match view.head.pending {
            Some(_) => (Vec::new(), 0),
            None => (found.collect(), first),
        };
        if keys.len() - next > PAGE {
            return Ok((view, self.scan(keys, at)?));
        }
        while next < keys.len() {
            let end = keys.len().min(next + OPS);
            let options = GetOptions::new().with_revision(at);
            let ops: Vec<TxnOp> =
                keys[next..end].iter().map(|key| TxnOp::get(key.clone(), Some(options.clone()))).collect();
            let mut client = self.link.kv();
            let answer = self.link.wait(async move { client.txn(Txn::new().and_then(ops)).await }).map_err(read)?;
            found.extend(gets(answer.op_responses()).into_iter().map(|mut kvs| kvs.pop()));
            next = end;
        }
        Ok((view, found))
    }

    /// The values of very many keys: all entries between the first and the last are read.
    fn scan(&self, keys: &[Vec<u8>], at: i64) -> Result<Vec<Option<KeyValue>>, StoreError> {
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by(|a, b| keys[*a].cmp(&keys[*b]));
        let mut found = vec![None; keys.len()];
        let (Some(first), Some(last)) = (order.first(), order.last()) else { return Ok(found) };
        let (mut from, end) = (keys[*first].clone(), [keys[*last].as_slice(), &[0]].concat());
        let mut wanted = order.iter().copied().peekable();
        loop {
            let (kvs, more) = self.page(from, &end, PAGE, at)?;
            from = kvs.last().map_or(Vec::new(), |kv| [kv.key(), &[0]].concat());
            for kv in kvs {
                while wanted.next_if(|n| keys[*n].as_slice() < kv.key()).is_some() {}
                if let Some(n) = wanted.next_if(|n| keys[*n].as_slice() == kv.key()) {
                    found[n] = Some(kv);
                }
            }
            if !more {
                return Ok(found);
            }
        }
    }

    fn page(&self, from: Vec<u8>, to: &[u8], limit: usize, at: i64) -> Result<(Vec<KeyValue>, bool), StoreError> {
        let options = GetOptions::new().with_range(to).with_limit(limit as i64).with_revision(at);
        let mut client = self.link.kv();
        let mut got = self.link.wait(async move { client.get(from, Some(options)).await }).map_err(read)?;
        Ok((got.take_kvs(), got.more()))
    }

    fn entry(&self, kv: &KeyValue) -> Entry {
        entry(self.keys.of_entry(kv.key()), kv.value())
    }

    /// The record of a transaction, with its events.
    fn change(&self, revision: Revision) -> Result<Option<Change>, StoreError> {
        let (key, mut client) = (self.keys.change(revision), self.link.kv());
        let mut got = self.link.wait(async move { client.get(key, None).await }).map_err(read)?;
        let Some(kv) = got.take_kvs().pop() else { return Ok(None) };
        let Some((record, bytes)) = Record::read(kv.value()) else { return Ok(None) };
        let mut events = events_of(bytes);
        for part in 0..record.stage.as_ref().map_or(0, |s| s.parts) {
            let Some(stage) = &record.stage else { break };
            let (key, mut client) = (self.keys.part(stage, part), self.link.kv());
            let mut got = self.link.wait(async move { client.get(key, None).await }).map_err(read)?;
            let Some(kv) = got.take_kvs().pop() else { return Ok(None) };
            events.extend(events_of(kv.value()));
        }
        Ok(Some(Change { revision, events }))
    }
}

impl Store for Etcd {
    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        let (view, _) = self.shared.look(&[])?;
        Ok(Box::new(Pinned { shared: self.shared.clone(), revision: view.head.revision, at: view.at }))
    }

    fn get(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Entry>>, StoreError> {
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| self.shared.keys.entry(key)).collect();
        let (_, found) = self.shared.look(&keys)?;
        Ok(found.iter().map(|kv| kv.as_ref().map(|kv| self.shared.entry(kv))).collect())
    }

    fn txn(&self, compares: &[Compare], writes: &[Write]) -> Result<Outcome, StoreError> {
        self.shared.txn(compares, writes)
    }

    fn watch(&self, after: Revision) -> Result<Box<dyn Watch>, StoreError> {
        let watch = Following { shared: self.shared.clone(), at: after };
        watch.kept()?;
        Ok(Box::new(watch))
    }

    fn compact(&self, upto: Revision) -> Result<(), StoreError> {
        self.shared.compact(upto)
    }
}

/// The entries as they were.
struct Pinned {
    shared: Arc<Shared>,
    revision: Revision,
    at: i64,
}

impl Snapshot for Pinned {
    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Page, StoreError> {
        let mut page = Page { revision: self.revision, ..Page::default() };
        // An etcd in which nothing was ever written has no revision to read at.
        if from >= to || self.at == 0 {
            return Ok(page);
        }
        let (mut from, to) = (self.shared.keys.entry(from), self.shared.keys.entry(to));
        loop {
            let limit = limit.saturating_sub(page.entries.len());
            let (kvs, more) = self.shared.page(from, &to, limit.min(PAGE), self.at)?;
            page.entries.extend(kvs.iter().map(|kv| self.shared.entry(kv)));
            match kvs.last().filter(|_| more) {
                Some(last) if kvs.len() < limit => from = [last.key(), &[0]].concat(),
                _ => return Ok(Page { more, ..page }),
            }
        }
    }
}

/// A watch.
struct Following {
    shared: Arc<Shared>,
    at: Revision,
}

impl Following {
    /// Refuses to go on where history is missing.
    fn kept(&self) -> Result<(), StoreError> {
        match self.shared.look(&[])?.0.head.compacted {
            compacted if self.at < compacted => Err(StoreError::Compacted(self.at)),
            _ => Ok(()),
        }
    }
}

impl Watch for Following {
    fn next(&mut self, patience: Duration) -> Result<Option<Change>, StoreError> {
        let until = Instant::now() + patience;
        {
            let mut seen = self.shared.seen.lock();
            while seen.revision <= self.at {
                if self.shared.raised.wait_until(&mut seen, until).timed_out() {
                    break;
                }
            }
            if seen.revision <= self.at {
                return Ok(None);
            }
        }
        match self.shared.change(self.at + 1)? {
            Some(change) => {
                self.at = change.revision;
                Ok(Some(change))
            }
            None => Err(StoreError::Compacted(self.at)),
        }
    }
}
