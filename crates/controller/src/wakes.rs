// SPDX-License-Identifier: Apache-2.0
//! Who is woken by what. A thousand nodes follow, and report what they did: if each word woke each stream, their number would count twice. So
//! there are three bells: what the region should be, what nodes and hosts say, and for each cluster what its nodes are to be told.

use model::Name;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use tokio::sync::watch::{Receiver, Sender};

/// The bells.
#[derive(Debug, Default)]
pub struct Wakes {
    region: Sender<u64>,
    words: Sender<u64>,
    clusters: Mutex<BTreeMap<Name, Sender<u64>>>,
}

fn ring(bell: &Sender<u64>) {
    bell.send_modify(|n| *n += 1);
}

impl Wakes {
    /// Rung when the region changes, or who may see it.
    pub fn region(&self) -> Receiver<u64> {
        self.region.subscribe()
    }

    /// Rung when nodes or hosts have said something new.
    pub fn words(&self) -> Receiver<u64> {
        self.words.subscribe()
    }

    /// Rung when nodes of a cluster have something to be told.
    pub fn cluster(&self, cluster: &Name) -> Receiver<u64> {
        let mut clusters = self.clusters.lock();
        clusters.retain(|_, bell| bell.receiver_count() > 0);
        clusters.entry(cluster.clone()).or_default().subscribe()
    }

    /// The region has changed, and these clusters have something to be told.
    pub fn changed<'n>(&self, clusters: impl IntoIterator<Item = &'n Name>) {
        ring(&self.region);
        let bells = self.clusters.lock();
        clusters.into_iter().filter_map(|name| bells.get(name)).for_each(ring);
    }

    /// Nodes of a cluster have something to be told that nobody else hears of.
    pub fn told(&self, cluster: &Name) {
        self.clusters.lock().get(cluster).into_iter().for_each(ring);
    }

    /// Nodes or hosts have said something new.
    pub fn said(&self) {
        ring(&self.words);
    }

    /// Everybody is to look again.
    pub fn all(&self) {
        ring(&self.region);
        ring(&self.words);
        self.clusters.lock().values().for_each(ring);
    }
}

/// Waits for one of two bells. An error: whoever rings is gone.
pub async fn either(
    one: &mut Receiver<u64>,
    other: &mut Receiver<u64>,
) -> Result<(), tokio::sync::watch::error::RecvError> {
    tokio::select! {
        rung = one.changed() => rung,
        rung = other.changed() => rung,
    }
}
