// SPDX-License-Identifier: Apache-2.0
//! What a node that follows is sent next: the changes behind the revision that it holds or, where these are no longer kept, everything as it was at an
//! instant; then each change as it comes.

use super::feed::{Change, Gone};
use super::region::{Region, Whole};
use model::{Name, Object};
use node::distribution::{blocks, Message};
use std::sync::Arc;

/// What a node says that it holds when it comes.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The history to which its revision belongs.
    pub history: &'a str,
    /// The cluster that it belonged to.
    pub cluster: &'a str,
    /// The revision.
    pub revision: u64,
    /// It was changed by hand.
    pub drift: bool,
}

/// A node that follows.
pub struct Follower {
    cluster: Name,
    at: u64,
    /// It keeps what was changed by hand, until the operator says otherwise.
    drift: bool,
    /// Everything, on its way, and how much of it has been sent.
    whole: Option<(Whole, u64)>,
}

/// A piece of what it is sent.
pub enum Piece {
    /// A line.
    Line(String),
    /// Objects of a snapshot.
    Page(Vec<Object>),
    /// A change.
    Change(Arc<Change>),
}

impl Piece {
    /// As it is sent. Blocks are made here, so that nothing need be held meanwhile.
    pub fn bytes(self) -> Vec<u8> {
        match self {
            Piece::Line(line) => line.into_bytes(),
            Piece::Page(objects) => blocks(objects),
            Piece::Change(change) => change.text.clone(),
        }
    }
}

impl Follower {
    /// A node of a cluster comes, which holds something of a history that may be another one.
    pub fn new(region: &Region, history: &str, cluster: &Name, held: Claim<'_>) -> Follower {
        // What it holds of another region or cluster says nothing here; nor does a revision that has not been yet.
        let same = held.history == history && *held.cluster == **cluster && held.revision <= region.revision();
        let at = if same { held.revision } else { 0 };
        Follower { cluster: cluster.clone(), at, drift: held.drift && same, whole: None }
    }

    /// The cluster that it is a node of.
    pub fn cluster(&self) -> &Name {
        &self.cluster
    }

    /// Whether it is being sent everything.
    pub fn takes_everything(&self) -> bool {
        self.whole.is_some()
    }

    /// The next piece; none: it has all. `anew`: the operator wants it to be sent everything. An error: it must come again.
    pub fn piece(&mut self, region: &Region, anew: bool) -> Result<Option<Piece>, Gone> {
        if let Some((whole, sent)) = &mut self.whole {
            if let Some(page) = whole.page(region)? {
                *sent += page.len() as u64;
                return Ok(Some(Piece::Page(page)));
            }
            let end = Message::End { objects: *sent }.line();
            self.at = whole.revision;
            self.whole = None;
            self.drift = false;
            return Ok(Some(Piece::Line(end)));
        }
        match region.behind(&self.cluster, self.at) {
            Ok(change) if !anew => Ok(change.map(|change| {
                self.at = change.revision;
                Piece::Change(change)
            })),
            Err(Gone) if self.drift && !anew => Ok(None),
            _ => {
                let whole = region.whole(&self.cluster).ok_or(Gone)?;
                let begin = Message::Snapshot { revision: whole.revision }.line();
                self.whole = Some((whole, 0));
                Ok(Some(Piece::Line(begin)))
            }
        }
    }
}
