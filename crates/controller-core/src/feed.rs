// SPDX-License-Identifier: Apache-2.0
//! What the nodes of a cluster are sent: each change as blocks of its documents, made once for all of them. The latest are kept, so
//! that a node which was away goes on where it was; one that was away for longer gets a snapshot.

use super::scope::Increment;
use node::distribution::{blocks, Message};
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of changes that are kept for a cluster.
pub const KEPT_BYTES: usize = 16 << 20;

/// A change as it is sent.
#[derive(Debug)]
pub struct Change {
    /// The revision that it made.
    pub revision: u64,
    /// A line that says what comes, and blocks of documents.
    pub text: Vec<u8>,
}

impl Change {
    fn new(revision: u64, increment: &Increment) -> Change {
        let deletes = increment.deletes.iter().map(|(kind, name)| (kind.name().into(), name.to_string())).collect();
        let mut text = Message::Change { revision, puts: increment.puts.len() as u64, deletes }.line().into_bytes();
        if !increment.puts.is_empty() {
            text.extend(blocks(increment.puts.clone()));
        }
        Change { revision, text }
    }
}

/// The changes of a cluster.
#[derive(Debug)]
pub struct Feed {
    /// The revision of the last one: what its nodes shall hold.
    latest: u64,
    /// All changes behind this revision are kept.
    since: u64,
    kept: VecDeque<Arc<Change>>,
    bytes: usize,
}

impl Feed {
    /// Of a cluster whose last change made the revision `latest`; what came before is not kept.
    pub fn new(latest: u64) -> Feed {
        Feed { latest, since: latest, kept: VecDeque::new(), bytes: 0 }
    }

    /// The revision that the nodes shall hold.
    pub fn latest(&self) -> u64 {
        self.latest
    }

    /// A change has come that nodes are not told of by itself: they are sent everything.
    pub fn skip(&mut self, revision: u64) {
        *self = Feed::new(revision);
    }

    /// Takes a change in.
    pub fn push(&mut self, revision: u64, increment: &Increment) {
        let change = Arc::new(Change::new(revision, increment));
        self.latest = revision;
        self.bytes += change.text.len();
        self.kept.push_back(change);
        while self.bytes > KEPT_BYTES {
            let Some(oldest) = self.kept.pop_front() else { break };
            self.bytes -= oldest.text.len();
            self.since = oldest.revision;
        }
    }

    /// The next change for a node that holds `revision`. `Ok(None)`: it holds all. `Err`: what it lacks is no longer kept.
    pub fn behind(&self, revision: u64) -> Result<Option<Arc<Change>>, Gone> {
        if revision >= self.latest {
            return Ok(None);
        }
        if revision < self.since {
            return Err(Gone);
        }
        let at = self.kept.partition_point(|c| c.revision <= revision);
        Ok(self.kept.get(at).cloned())
    }
}

/// The changes behind a revision are no longer kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

#[cfg(test)]
mod tests {
    use super::*;
    use model::Kind;

    fn of(bytes: usize) -> Increment {
        let deletes = vec![(Kind::Vm, "x".repeat(63).as_str().into()); bytes / 70];
        Increment { puts: Vec::new(), deletes }
    }

    #[test]
    fn a_node_goes_on_where_it_was() {
        let mut feed = Feed::new(5);
        assert_eq!(feed.behind(5).unwrap().map(|c| c.revision), None);
        assert_eq!(feed.behind(4).unwrap_err(), Gone);
        for revision in [7, 8, 12] {
            feed.push(revision, &of(100));
        }
        let next = |feed: &Feed, at| feed.behind(at).unwrap().map(|c| c.revision);
        assert_eq!(
            [5, 6, 7, 8, 11, 12, 13].map(|at| next(&feed, at)),
            [Some(7), Some(7), Some(8), Some(12), Some(12), None, None]
        );
        assert_eq!(feed.latest(), 12);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut feed = Feed::new(0);
        for revision in 1..=10 {
            feed.push(revision, &of(KEPT_BYTES / 4));
        }
        assert!(feed.bytes <= KEPT_BYTES && feed.kept.len() <= 4);
        assert_eq!(feed.behind(1).unwrap_err(), Gone);
        assert_eq!(feed.behind(9).unwrap().map(|c| c.revision), Some(10));
        // One that is larger than all that may be kept leaves nothing behind.
        feed.push(11, &of(2 * KEPT_BYTES));
        assert!(feed.kept.is_empty());
        assert_eq!((feed.behind(10).unwrap_err(), feed.behind(11).unwrap().is_none()), (Gone, true));
    }
}
