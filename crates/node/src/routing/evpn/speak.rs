// SPDX-License-Identifier: Apache-2.0
//! The thread that hears what the daemon has learned, and tells it what the VPCs have.

use super::announce::{self, Key};
use super::api::Path;
use super::client::Daemon;
use super::said::{self, Said};
use compile::{EvpnPlan, EvpnVpc, Own};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tonic::Status;

/// Most paths that are read: what comes behind them is not looked at, and that is said.
const PATHS_MAX: usize = 2_000_000;
/// The daemon is listed for this part of the time at most: one over.
const LOOK_SHARE: u32 = 9;
/// Between two looks at least: an announcement of many routes comes in pieces.
const PAUSE: Duration = Duration::from_millis(20);
/// It is listed that often though nothing was heard.
const ANYWAY: Duration = Duration::from_secs(30);
/// So long its list may take.
const HANGS: Duration = Duration::from_secs(60);
/// Between two tries to reach it.
const AGAIN: Duration = Duration::from_secs(1);
/// The stop flag is looked at that often.
const TICK: Duration = Duration::from_millis(250);

/// What one look at the daemon's paths finds.
#[derive(Debug, Default)]
struct Listed {
    said: Vec<Said>,
    unreadable: u64,
    /// Paths that this interface entered with the node's tunnel address as next hop: its own, also those of an earlier process.
    own: BTreeMap<Key, Path>,
    over: bool,
}

/// Who exchanges routes with the daemon: a node, or the controller of a region for its nodes.
pub trait Party: Send + Sync {
    /// What is exchanged, and with whom.
    fn plan(&self) -> EvpnPlan;
    /// The daemon says all of this, which was asked by this plan; how much cannot be read, and whether there is more.
    fn hear(&self, plan: &EvpnPlan, said: Vec<Said>, rest: (u64, bool));
    /// The daemon is not heard. Why, if it should be.
    fn unspoken(&self, why: Option<String>);
    /// What a VPC has to announce.
    fn own(&self, vpc: &EvpnVpc) -> BTreeSet<Own>;
    /// What is announced now.
    fn announced(&self, wanted: &BTreeMap<Key, Path>);
    /// What the daemon has against paths that it was to announce.
    fn not_announced(&self, why: Vec<String>);
    /// Rung when what is exchanged may have changed.
    fn bell(&self) -> &tokio::sync::Notify;
}

/// Starts the thread; it ends when `stop` is set.
pub fn start(party: &Arc<impl Party + 'static>, stop: &Arc<AtomicBool>) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (party, stop) = (party.clone(), stop.clone());
    let work = move || runtime.block_on(speak(&*party, &stop));
    std::thread::Builder::new().name("tunny-evpn".into()).spawn(work)
}

async fn speak(party: &impl Party, stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        let plan = party.plan();
        let Some(at) = plan.daemon.filter(|_| !plan.vpcs.is_empty()) else {
            party.unspoken(None);
            let _ = tokio::time::timeout(TICK, party.bell().notified()).await;
            continue;
        };
        if let Err(why) = session(party, at, stop).await {
            party.unspoken(Some(format!("the EVPN daemon at {at} is not reached: {why}")));
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// One connection, until it ends, the daemon's address changes, or `stop` is set.
async fn session(party: &impl Party, at: SocketAddr, stop: &AtomicBool) -> Result<(), String> {
    let said = |e: Status| format!("{} ({:?})", e.message(), e.code());
    let mut daemon = Daemon::connect(at).await.map_err(|e| source(&e))?;
    let (ring, mut news) = tokio::sync::mpsc::channel(1);
    // Dropped with the session, and its task ends. The daemon answers only when it has news: nothing may wait for that.
    let mut watcher = tokio::task::JoinSet::new();
    watcher.spawn(watch(daemon.clone(), ring));
    let mut told: BTreeMap<Key, Path> = BTreeMap::new();
    loop {
        let plan = party.plan();
        if plan.daemon != Some(at) || plan.vpcs.is_empty() || stop.load(Relaxed) {
            if !stop.load(Relaxed) {
                withdraw(&mut daemon, &plan).await.map_err(said)?;
            }
            return Ok(());
        }
        let begun = Instant::now();
        // It is asked anyway now and then: a daemon that hangs is as one that is gone.
        let listed = tokio::time::timeout(HANGS, list(&mut daemon, &plan)).await;
        let listed = listed.map_err(|_| format!("no answer within {} s", HANGS.as_secs()))?.map_err(said)?;
        let own = listed.own;
        party.hear(&plan, listed.said, (listed.unreadable, listed.over));
        tell(party, &plan, &mut daemon, own, &mut told).await.map_err(|e| format!("to announce: {}", said(e)))?;
        tokio::time::sleep(PAUSE + begun.elapsed() * LOOK_SHARE).await;
        let quiet = Instant::now();
        loop {
            let heard = tokio::select! {
                event = news.recv() => match event {
                    Some(Ok(())) => true,
                    Some(Err(why)) => return Err(format!("its news: {why}")),
                    None => return Err("it has ended the stream of its news".into()),
                },
                () = party.bell().notified() => true,
                () = tokio::time::sleep(TICK) => false,
            };
            if heard || quiet.elapsed() >= ANYWAY || stop.load(Relaxed) {
                break;
            }
        }
    }
}

/// Rings at news; the last word is why there is no more.
async fn watch(mut daemon: Daemon, ring: tokio::sync::mpsc::Sender<Result<(), String>>) {
    let watched = async {
        let mut news = daemon.watch().await?;
        while news.message().await?.is_some() {
            // Full: it rings already.
            let _ = ring.try_send(Ok(()));
        }
        Ok::<_, Status>(())
    };
    if let Err(e) = watched.await {
        let _ = ring.send(Err(format!("{} ({:?})", e.message(), e.code()))).await;
    }
}

fn source(e: &dyn std::error::Error) -> String {
    e.source().map_or_else(|| e.to_string(), source)
}

/// Whether a path came by this interface, and from no neighbour (GoBGP writes `<nil>` for his address).
fn entered(path: &Path) -> bool {
    path.neighbor_ip.parse::<IpAddr>().is_err()
}

async fn list(daemon: &mut Daemon, plan: &EvpnPlan) -> Result<Listed, Status> {
    let (mut listed, mut count) = (Listed::default(), 0);
    let mut stream = daemon.list().await?;
    while let Some(answer) = stream.message().await? {
        for path in answer.destination.map(|d| d.paths).unwrap_or_default() {
            count += 1;
            if count > PATHS_MAX {
                listed.over = true;
                return Ok(listed);
            }
            if path.is_withdraw || path.filtered {
                continue;
            }
            match said::read(&path) {
                Err(_) => listed.unreadable += 1,
                Ok(None) => {}
                Ok(Some(said)) if entered(&path) && plan.own.contains(&said.vtep) => {
                    listed.own.extend(announce::key(&path).map(|key| (key, path)));
                }
                Ok(Some(said)) => listed.said.push(said),
            }
        }
    }
    Ok(listed)
}

/// Brings what the daemon announces for the node to what it should.
async fn tell(
    party: &impl Party,
    plan: &EvpnPlan,
    daemon: &mut Daemon,
    mut there: BTreeMap<Key, Path>,
    told: &mut BTreeMap<Key, Path>,
) -> Result<(), Status> {
    let mut wanted: BTreeMap<Key, Path> = BTreeMap::new();
    for vpc in plan.vpcs.iter().filter(|v| !v.export.is_empty()) {
        let (Some(rd), Some(vtep)) = (vpc.rd, vpc.own()) else { continue };
        wanted.extend(party.own(vpc).into_iter().map(|own| ((rd, own), announce::path(vpc, rd, own, vtep))));
    }
    let new: Vec<Path> = wanted
        .iter()
        .filter(|(key, path)| !there.contains_key(*key) || told.get(*key) != Some(*path))
        .map(|(_, path)| path.clone())
        .collect();
    party.not_announced(daemon.add(new).await?);
    there.retain(|key, _| !wanted.contains_key(key));
    for path in there.into_values() {
        daemon.delete(path).await?;
    }
    party.announced(&wanted);
    *told = wanted;
    Ok(())
}

/// Nothing is exchanged any more: all that the node has had announced goes.
async fn withdraw(daemon: &mut Daemon, plan: &EvpnPlan) -> Result<(), Status> {
    for path in list(daemon, plan).await?.own.into_values() {
        daemon.delete(path).await?;
    }
    Ok(())
}
