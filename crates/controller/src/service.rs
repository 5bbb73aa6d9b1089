// SPDX-License-Identifier: Apache-2.0
//! The controller itself: what the API asks it to do. One lock, held for a change from its plan until the store has it, and for a page of
//! a listing. What may wait (lock, store) runs outside the event loop.

use crate::changing::Changes;
use crate::config::Config;
use crate::evpn::Evpn;
use crate::metrics::Metrics;
use crate::paths::Served;
use crate::pki::Pki;
use crate::refusal::Refusal;
use crate::replica::Replica;
use crate::store::{end_of, Snapshot, Store};
use crate::types::{Description, OnNode, Status};
use crate::wakes::Wakes;
use crate::{keys, schema};
use controller_core::access::Principal;
use controller_core::credentials::Credential;
use controller_core::fleet::{Fleet, NodeView};
use controller_core::hosts::Hosts;
use controller_core::known::{Evaluated, Known};
use controller_core::moving::Placement;
use controller_core::region::{Places, Region};
use controller_core::samples::{Sample, Samples};
use model::{Documents, Kind, Name, Object};
use node::audit::{Audit, Event, Origin};
use node::distribution::Report;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Entries that are read at once.
const PAGE: usize = 10_000;

/// What a change may move.
pub struct Core {
    /// The region.
    pub region: Region,
    /// Its nodes.
    pub fleet: Fleet,
    /// Its hosts.
    pub hosts: Hosts,
    /// What came of former questions about places and pools.
    pub evaluated: Evaluated,
    /// Nodes that are to be sent everything anew.
    pub resync: BTreeSet<Name>,
    /// Credentials, by their hashes.
    pub credentials: BTreeMap<String, Credential>,
    /// Which path of the nodes serves whom.
    pub served: Served,
}

/// Who asks, and from where.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Who.
    pub principal: Principal,
    /// The hash of the credential, to see whether it still holds.
    pub credential: (String, controller_core::credentials::Sort),
    /// From where.
    pub from: String,
}

impl Caller {
    /// For the audit log.
    pub fn origin(&self) -> Origin {
        Origin { user: self.principal.who(), from: self.from.clone(), ..Origin::default() }
    }
}

/// A controller.
pub struct Controller {
    core: Mutex<Core>,
    pub(crate) store: Arc<dyn Store>,
    /// Its part among several controllers.
    pub(crate) replica: Option<Replica>,
    pub(crate) audit: Audit,
    pub(crate) pki: Pki,
    pub(crate) metrics: Metrics,
    samples: Mutex<Samples>,
    name: String,
    id: String,
    history: String,
    started: Instant,
    /// What is exchanged by EVPN for the nodes.
    pub(crate) evpn: Evpn,
    /// For those who wait.
    pub(crate) wakes: Wakes,
    /// The line in which changes wait.
    pub(crate) changes: Changes,
    /// Raised whenever a credential or a Role may be worth less than before.
    doubts: AtomicU64,
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Reads all objects of a store.
pub(crate) fn load(store: &dyn Snapshot) -> Result<(Documents, u64), String> {
    let (mut docs, mut errors) = (Documents::new(), Vec::new());
    let (mut from, end) = (keys::OBJECTS.as_bytes().to_vec(), end_of(keys::OBJECTS.as_bytes()));
    loop {
        let page = store.range(&from, &end, PAGE).map_err(|e| e.to_string())?;
        let mut text = String::new();
        for entry in &page.entries {
            text += &String::from_utf8_lossy(&entry.value);
            text.push('\n');
        }
        docs.read_text("store.ndjson", &text, &mut errors);
        if let Some(e) = errors.first() {
            return Err(format!("the store holds what this version does not understand: {e}"));
        }
        match page.entries.last().filter(|_| page.more) {
            Some(last) => from = [last.key.as_slice(), &[0]].concat(),
            None => return Ok((docs, page.revision)),
        }
    }
}

/// The revision of each cluster's last change.
pub(crate) fn latest(store: &dyn Snapshot) -> Result<BTreeMap<Name, u64>, String> {
    let latest = store.range(keys::LATEST.as_bytes(), &end_of(keys::LATEST.as_bytes()), usize::MAX);
    let latest = latest.map_err(|e| e.to_string())?.entries.into_iter().filter_map(|e| {
        let cluster = std::str::from_utf8(e.key.get(keys::LATEST.len()..)?).ok()?;
        Some((Name::from(cluster), e.changed))
    });
    Ok(latest.collect())
}

/// All credentials.
pub(crate) fn credentials(store: &dyn Snapshot) -> Result<BTreeMap<String, Credential>, String> {
    let all = store.range(keys::CREDENTIALS.as_bytes(), &end_of(keys::CREDENTIALS.as_bytes()), usize::MAX);
    let all = all.map_err(|e| e.to_string())?.entries.into_iter();
    Ok(all
        .filter_map(|e| Some((keys::credential_of(&e.key)?.to_string(), serde_json::from_slice(&e.value).ok()?)))
        .collect())
}

/// Where Tenants are, as the store has it.
pub(crate) fn placed(store: &dyn Snapshot) -> Result<BTreeMap<Name, Placement>, String> {
    let from = keys::PLACED.as_bytes();
    let page = store.range(from, &end_of(from), usize::MAX).map_err(|e| e.to_string())?;
    let place = |e: crate::store::Entry| {
        let placement: Placement = serde_json::from_slice(&e.value).ok()?;
        Some((Name::from(keys::placed_of(&e.key)?), Placement { revision: e.changed, ..placement }))
    };
    let unreadable = || "the store holds a place of a Tenant that this version does not understand".to_string();
    page.entries.into_iter().map(|e| place(e).ok_or_else(unreadable)).collect()
}

impl Controller {
    /// Opens a controller over a store, with CA and audit log in a folder.
    pub fn open(
        config: &Config,
        folder: &Path,
        store: Arc<dyn Store>,
        replica: Option<Replica>,
    ) -> Result<Arc<Controller>, String> {
        let pki = Pki::load(folder, &config.region)?;
        if schema::version(&*store)? != schema::NOW {
            if replica.is_some() {
                // Others of the former version may be at work.
                return Err("the store is of an earlier form: stop all controllers, and bring it up by `tunny controller migrate`".into());
            }
            let from = schema::migrate(&*store, schema::NOW)?;
            tracing::info!("the store, of form {from}, was brought to form {}", schema::NOW);
        }
        let id = schema::text(&*store, keys::ID)?;
        let history = schema::text(&*store, keys::HISTORY)?;
        let snapshot = store.snapshot().map_err(|e| e.to_string())?;
        let (docs, revision) = load(&*snapshot)?;
        let region = Region::load(&docs, revision, &latest(&*snapshot)?, placed(&*snapshot)?);
        let region = region.map_err(|e| {
            e.first().map_or(String::new(), |e| format!("what the store holds does not fit together: {e}"))
        })?;
        let audit = Audit::open(Some(folder), 0);
        audit.notes.iter().for_each(|note| tracing::warn!("{note}"));
        let credentials = credentials(&*snapshot)?;
        let served = Served::of(crate::paths::load(&*snapshot)?, &region, now_ms());
        drop(snapshot);
        let core = Mutex::new(Core { served, ..Core::new(region, credentials) });
        let (name, started) = (config.region.clone(), Instant::now());
        let (wakes, changes) = (Wakes::default(), Changes::default());
        let (metrics, samples, doubts) = (Metrics::default(), Mutex::default(), AtomicU64::new(0));
        Ok(Arc::new(Controller {
            core,
            store,
            replica,
            audit,
            pki,
            metrics,
            samples,
            name,
            id,
            history,
            started,
            evpn: Evpn::new(config.evpn.as_ref().map(|evpn| evpn.daemon)),
            wakes,
            changes,
            doubts,
        }))
    }

    /// The region and its nodes; while they are held, changes wait.
    pub fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock()
    }

    /// What the region is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What names the history to which revisions belong.
    pub fn history(&self) -> &str {
        &self.history
    }

    /// What names the region.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Notes the water levels as they are now.
    pub fn sample(&self) {
        let sample = self.core().sample(now_ms());
        self.samples.lock().take(sample);
    }

    /// The last water levels.
    pub fn last_sample(&self) -> Option<Sample> {
        self.samples.lock().last().cloned()
    }

    /// Water levels of the last hour, or of the last day.
    pub fn samples(&self, day: bool) -> Vec<Sample> {
        let samples = self.samples.lock();
        match day {
            true => samples.day().cloned().collect(),
            false => samples.hour().cloned().collect(),
        }
    }

    /// How often a credential or a Role became worth less. A stream looks again at its own when this has been raised.
    pub fn doubts(&self) -> u64 {
        self.doubts.load(Ordering::Relaxed)
    }

    /// Lets every stream look again at its credential.
    pub fn doubt(&self) {
        self.doubts.fetch_add(1, Ordering::Relaxed);
        self.wakes.all();
    }

    /// `GET /v1/status`.
    pub fn status(&self) -> Status {
        let core = self.core();
        let counts = core.region.model().counts();
        let objects = Kind::ALL.into_iter().map(|k| (k.name().to_string(), counts.of(k)));
        let mut nodes = BTreeMap::new();
        for view in core.overviews() {
            *nodes.entry(view.state).or_default() += 1;
        }
        Status {
            region: self.name.clone(),
            id: self.id.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            revision: core.region.revision(),
            objects: objects.filter(|(_, n)| *n > 0).collect(),
            nodes,
            leader: self.replica.as_ref().and_then(Replica::leader).unwrap_or_default(),
            age_ms: self.replica.as_ref().map(|replica| replica.age_ms()),
        }
    }

    /// A node says how it stands. What is new about it goes into the audit log.
    pub fn reported(&self, caller: &Caller, report: Report) -> Result<(), Refusal> {
        let Some(node) = &caller.principal.node else { return Err(Refusal::Failed) };
        let (installed, drift) = (report.installed, report.drift);
        let (faults, errors) = (report.faults.clone(), report.errors.clone());
        let mut core = self.core();
        let cluster = core.region.cluster_of(node).ok_or_else(|| absent(Kind::Node, node))?;
        let (intent, told) = (core.region.intent(&cluster), core.fleet.admission(node));
        let heard = core.fleet.reported(node, report, intent, now_ms());
        let after = heard.admission.then(|| core.view(node));
        let why = after.and_then(|after| Some((core.admission_words(&after)?, after.admission)));
        let tells = told != core.fleet.admission(node);
        drop(core);
        if let Some((note, admission)) = why {
            let event = Event::new("node", &admission, installed, &caller.origin());
            self.audit.note(Event { note, ..event });
        }
        if heard.admission {
            self.wakes.changed([&cluster]);
        } else if tells {
            self.wakes.told(&cluster);
        }
        let mut event = Event::new("node", "", installed, &caller.origin());
        if heard.drift && drift {
            (event.outcome, event.note) = ("drift".into(), "the node was changed by hand (--break-glass)".into());
            self.audit.note(event);
        } else if heard.faults {
            let whole = "the tables are as configured again".to_string();
            let told = if faults.is_empty() { whole } else { faults.join("; ") };
            (event.outcome, event.note) = ("damaged".into(), told);
            self.audit.note(event);
        } else if heard.errors && !errors.is_empty() {
            (event.outcome, event.note) = ("refused".into(), errors.join("; "));
            self.audit.note(event);
        }
        if heard.news {
            self.wakes.said();
        }
        Ok(())
    }

    /// `POST /v1/nodes/NAME/resync`: the node is sent everything anew.
    pub fn resync(&self, caller: &Caller, node: &str) -> Result<NodeView, Refusal> {
        let mut core = self.core();
        let Some(Object::Node(found)) = core.region.model().get(Kind::Node, node) else {
            return Err(absent(Kind::Node, node));
        };
        core.resync.insert(found.name.clone());
        let view = core.view(&found.name);
        drop(core);
        self.audit.note(Event::new(&format!("resync {node}"), "done", view.intent, &caller.origin()));
        self.wakes.changed([&view.cluster.as_str().into()]);
        Ok(view)
    }

    /// `GET /v1/describe/KIND/NAME`.
    pub fn describe(&self, who: &Principal, kind: &str, name: &str) -> Result<Description, Refusal> {
        let kind = Kind::from_name(kind).ok_or_else(|| Refusal::Wrong(vec![Kind::unknown(kind)]))?;
        let key = keys::object(kind, name);
        let revision = self.store.get(std::slice::from_ref(&key))?.pop().flatten().map_or(0, |e| e.changed);
        let core = self.core();
        let model = core.region.model();
        let object = model.get(kind, name).filter(|o| who.sees(model, o)).ok_or_else(|| absent(kind, name))?;
        let held = core.region.holders(&object, revision);
        let nodes = model.by_name().nodes.values().filter_map(|node| {
            let since = held.iter().find(|h| h.cluster == node.cluster)?.since;
            let view = core.view(&node.name);
            let state = match view.seen_ms > 0 {
                true if view.verified >= since => "verified".into(),
                true if view.installed >= since => "installed".into(),
                _ => view.state,
            };
            let NodeView { name: node, cluster, installed, verified, .. } = view;
            Some(OnNode { node, cluster, since, installed, verified, state })
        });
        let nodes = nodes.collect();
        let node = (kind == Kind::Node).then(|| Box::new(core.view(name)));
        Ok(Description { nodes, object: object.to_json(), revision, node })
    }
}

impl Core {
    /// Of a region of which nobody has been heard yet.
    pub(crate) fn new(region: Region, credentials: BTreeMap<String, Credential>) -> Core {
        Core {
            region,
            fleet: Fleet::default(),
            hosts: Hosts::default(),
            evaluated: Evaluated::default(),
            resync: BTreeSet::new(),
            credentials,
            served: Served::default(),
        }
    }

    /// That a node came to stand differently, for the audit log.
    fn admission_words(&self, after: &NodeView) -> Option<String> {
        if after.admission == "joining" {
            return None;
        }
        let probes = after.probes.as_ref();
        if after.admission == "admitted" {
            let revision = probes.map(|probes| probes.revision);
            return Some(
                revision.map_or("it makes no probes".into(), |r| format!("its probes came out up to revision {r}")),
            );
        }
        let why = probes.and_then(|probes| probes.failures.first()).map(|failure| failure.to_string());
        let mut nodes = self.region.model().by_name().nodes.values().filter(|n| *n.cluster == *after.cluster);
        let alone = !nodes.any(|n| self.fleet.is_admitted(&n.name));
        let alone = if alone { "; no node of its cluster is admitted, so hosts go on sending there" } else { "" };
        Some(format!("a probe fails: {}{alone}", why.unwrap_or_default()))
    }

    /// How every node stands.
    pub fn nodes(&self) -> Vec<NodeView> {
        self.region.model().by_name().nodes.keys().map(|name| self.view(name)).collect()
    }

    /// What is known now.
    pub(crate) fn known(&self) -> Known<'_> {
        Known { region: &self.region, fleet: &self.fleet, hosts: &self.hosts, now_ms: now_ms() }
    }

    /// What is to change at a time of places.
    pub(crate) fn due(&mut self, now: u64) -> Places {
        let known = Known { region: &self.region, fleet: &self.fleet, hosts: &self.hosts, now_ms: now_ms() };
        known.due(&mut self.evaluated, now)
    }

    /// Whether pools are to be divided anew.
    pub(crate) fn divisions_due(&mut self) -> bool {
        let known = Known { region: &self.region, fleet: &self.fleet, hosts: &self.hosts, now_ms: now_ms() };
        known.divisions_due(&mut self.evaluated)
    }

    /// How every node stands, without what it says of single VPCs.
    pub fn overviews(&self) -> Vec<NodeView> {
        let now = now_ms();
        let nodes = self.region.model().by_name().nodes.values();
        nodes.map(|n| self.fleet.overview(&n.name, &n.cluster, self.region.intent(&n.cluster), now)).collect()
    }

    /// The water levels of each cluster, as its nodes that are here tell them.
    fn sample(&self, time_ms: u64) -> Sample {
        let mut sample = Sample { time_ms, ..Sample::default() };
        for node in self.overviews().into_iter().filter(|n| !["away", "unknown"].contains(&n.state.as_str())) {
            let shares = node.usage.shares().map(|(table, share)| (table.to_string(), share)).collect();
            sample.merge(&Sample { time_ms, clusters: [(node.cluster, shares)].into() });
        }
        sample
    }

    /// How a node stands.
    pub fn view(&self, name: &str) -> NodeView {
        let cluster = self.region.cluster_of(name).unwrap_or_else(|| "".into());
        self.fleet.view(name, &cluster, self.region.intent(&cluster), now_ms())
    }
}

/// There is no such object.
pub fn absent(kind: Kind, name: &str) -> Refusal {
    let word = kind.name().to_lowercase();
    Refusal::Absent(format!(
        "there is no {kind} named `{}`; `tunny get {word}` lists those that there are",
        model::plain(name)
    ))
}
