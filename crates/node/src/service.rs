// SPDX-License-Identifier: Apache-2.0
//! The node itself: what the API, the daemon and the tests ask it to do.
//!
//! Three locks, always taken in this order: `core` (model and store: one change at a time), `plane` (ports and workers),
//! `writer` (the tables; the underlay takes this one alone). Packets take none of them.

use crate::audit::Audit;
use crate::body::{files, read_documents};
use crate::conntrack::Conntrack;
use crate::consent::{self, Consent, Deletes};
use crate::counter_migration::{self, Counts, Saved};
use crate::counters::{self, monotonic_ns};
use crate::dataplane::{DataPlane, Service};
use crate::error::NodeError;
use crate::events::{EventFilter, Hub, Wanted};
use crate::flows::{exponent_for, Sampler};
use crate::managed::Managed;
use crate::narrow;
use crate::routing::Routing;
use crate::sessions::{Listing, Ports, SessionQuery};
use crate::store::Persist;
use crate::tabledump::Cursor;
use crate::top::{between, cpu_times, Reading};
use crate::types::{ApplyReport, CommitTimes, Counters, Neighbour, Status, Step, Top, LIST_END};
use abi::{IfIndex, Vni};
use compile::{Compile, CompilePlan, ConntrackPlan};
use model::{ConfigError, Documents, Kind, Listings, Model, Object, Plan};
use parking_lot::{Mutex, MutexGuard};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tables::{Count, Memory, Tables, Writer};
use underlay::Underlay;

/// Changes of a plan that are listed.
pub const CHANGES_MAX: usize = 1000;
/// Flows that are listed.
const FLOWS: usize = 20;

/// What is configured, and where that is kept.
pub struct Core {
    /// The configuration.
    pub model: Model,
    /// The state on disk, if there is one.
    pub store: Option<Persist>,
    /// How commits went.
    pub times: CommitTimes,
}

impl Core {
    /// Number of the configuration: of the last change since the state began, or since the start if there is none.
    pub fn generation(&self) -> u64 {
        self.store.as_ref().map_or(self.times.count, Persist::number)
    }
}

/// A running node.
pub struct Node {
    instance: String,
    started: Instant,
    /// A random number: plans made for another process are not this one's.
    mark: u64,
    hub: Arc<Hub>,
    pub(crate) core: Mutex<Core>,
    pub(crate) plane: Mutex<DataPlane>,
    pub(crate) writer: Arc<Mutex<Writer>>,
    memory: Arc<dyn Memory>,
    pub(crate) underlay: Arc<OnceLock<Underlay>>,
    pub(crate) conntrack: Conntrack,
    pub(crate) routing: Arc<Routing>,
    startup: Vec<Step>,
    notes: Vec<String>,
    /// Counted by tables of another layout, before an upgrade.
    pub(crate) counts_before: Counts,
    /// Why the configuration files could not be reloaded.
    pub(crate) unread: Mutex<Option<String>>,
    /// Why metrics are not served over TCP.
    pub(crate) unserved: Mutex<Option<String>>,
    /// Listings that run.
    pub(crate) listings: Listings,
    pub(crate) audit: Audit,
    /// The controller that it follows, if there is one.
    pub(crate) managed: Option<Arc<Managed>>,
    /// What it announces.
    pub(crate) announcer: crate::announce::Announcer,
    /// What kept the ports from being served at the last look.
    trouble: Mutex<Option<String>>,
    /// What tells VMs of their router.
    advertiser: crate::advertise::Advertiser,
}

/// Everything that a node is made of; the daemon puts it together.
pub struct Parts {
    /// Instance name.
    pub instance: String,
    /// Distributor of captured packets.
    pub hub: Arc<Hub>,
    /// Configuration and state.
    pub core: Core,
    /// Data plane, not yet serving.
    pub plane: DataPlane,
    /// The writer of the tables.
    pub writer: Arc<Mutex<Writer>>,
    /// The underlay watcher, if there is one.
    pub underlay: Arc<OnceLock<Underlay>>,
    /// Sessions and translation.
    pub conntrack: Conntrack,
    /// Routing daemons of customers.
    pub routing: Arc<Routing>,
    /// Counted before, by tables of another layout.
    pub counts_before: Counts,
    /// Events and history.
    pub audit: Audit,
    /// The controller that it follows.
    pub managed: Option<Arc<Managed>>,
    /// What the start did.
    pub startup: Vec<Step>,
    /// What an operator must know.
    pub notes: Vec<String>,
}

pub(crate) fn sentences(errors: Vec<ConfigError>) -> NodeError {
    NodeError::Config(errors.iter().map(|e| e.to_string()).collect())
}

/// How documents are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They are created or changed; the rest stays.
    Merge,
    /// They are everything; the rest goes.
    Replace,
    /// They go.
    Delete,
    /// The content is a JSON list of (kind, name) of what goes.
    DeleteNames,
}

/// A change of the configuration.
pub(crate) enum Change<'a> {
    /// Some objects.
    Documents(&'a Documents),
    /// All of it, and what was doubtful about its documents.
    Everything(Model, Option<Plan>),
}

impl Node {
    /// Puts a node together.
    pub fn new(parts: Parts) -> Arc<Node> {
        let Parts {
            instance,
            hub,
            core,
            plane,
            writer,
            underlay,
            conntrack,
            counts_before,
            audit,
            managed,
            routing,
            ..
        } = parts;
        let (startup, notes) = (parts.startup, parts.notes);
        let memory = plane.memory();
        let (core, plane, started) = (Mutex::new(core), Mutex::new(plane), Instant::now());
        let (trouble, mark) = (Mutex::default(), crate::daemon::salt());
        Arc::new(Node {
            instance,
            started,
            mark,
            hub,
            core,
            plane,
            writer,
            memory,
            underlay,
            conntrack,
            routing,
            counts_before,
            audit,
            managed,
            startup,
            notes,
            trouble,
            announcer: Default::default(),
            advertiser: Default::default(),
            listings: Listings::default(),
            unread: Mutex::default(),
            unserved: Mutex::default(),
        })
    }

    /// The distributor of captured packets.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Its tables.
    pub fn tables(&self) -> Tables {
        Tables::new(self.memory.clone())
    }

    /// Sessions, translation and rules, as its workers have them.
    pub fn nat(&self) -> Arc<gateway::Connections> {
        self.conntrack.connections()
    }

    /// Where metrics are to be served over TCP.
    pub fn metrics_address(&self) -> Option<std::net::SocketAddr> {
        self.core.lock().model.gateway().and_then(|g| g.metrics)
    }

    /// Once a second or so: finishes what commits left, serves uplinks that have come.
    pub fn tick(&self) {
        // Before the ports that have come are served: what comes by one of the edge's is no tunnel.
        if let Err(e) = self.conntrack.follow_ports(&mut self.writer.lock()) {
            tracing::warn!("{e}");
        }
        let trouble = self.plane.lock().refresh().err().map(|e| e.to_string());
        let mut said = self.trouble.lock();
        if let (Some(what), true) = (&trouble, *said != trouble) {
            tracing::warn!("{what}");
        }
        *said = trouble;
        drop(said);
        self.settle();
        self.routing.tend();
        self.advertiser.tend(&self.conntrack);
        // A change that is being made tends to the disk itself.
        if let Some(mut core) = self.core.try_lock() {
            let core = &mut *core;
            core.store.iter_mut().for_each(|store| store.tend(&core.model));
        }
    }

    /// Finishes what commits left for later.
    pub fn settle(&self) {
        let mut writer = self.writer.lock();
        if writer.needs_settling() {
            writer.settle();
        }
    }

    /// `GET /v1/status`.
    pub fn status(&self) -> Status {
        let (commits, generation, disk, state, gateway) = {
            let core = self.core.lock();
            let store = core.store.as_ref();
            let trouble = store.map(Persist::trouble).unwrap_or_default();
            (core.times, core.generation(), trouble, store.map(|s| s.id().to_string()), core.model.gateway().cloned())
        };
        let plane = self.plane.lock();
        let mut warnings = self.notes.clone();
        warnings.extend(disk);
        warnings.extend(plane.notes());
        warnings.extend(self.trouble.lock().clone());
        warnings.extend(self.unread.lock().clone());
        warnings.extend(self.unserved.lock().clone());
        warnings.extend(self.conntrack.log().trouble());
        warnings.extend(self.routing.warnings());
        warnings.extend(self.warnings_of_announcements());
        warnings.extend(self.managed.iter().flat_map(|m| m.warnings()));
        let uplinks = plane.uplinks();
        if let Some(gateway) = &gateway {
            let mtus = uplinks.iter().enumerate().map(|(at, u)| (at, u.name.as_str(), u.mtu));
            warnings.extend(
                narrow::problems(gateway, mtus)
                    .into_iter()
                    .map(|(at, problem)| format!("spec.uplinks[{at}] of the Gateway {problem}")),
            );
        }
        Status {
            instance: self.instance.clone(),
            state,
            version: env!("CARGO_PKG_VERSION").into(),
            layout: format!("{:016x}", abi::layout_hash()),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            engine: plane.engine_name().into(),
            warnings,
            uplinks,
            workers: plane.workers(),
            generation,
            controller: self.managed.as_ref().map(|m| m.view()),
            table_commits: self.tables().commits(),
            took_over: plane.took_over(),
            startup: self.startup.clone(),
            commits,
        }
    }

    /// The configuration; while it is held, changes wait.
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock()
    }

    /// The writer of the tables; while it is held, commits wait.
    pub(crate) fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock()
    }

    /// Whether the fast path forwards on when the process ends.
    pub(crate) fn outlives(&self) -> bool {
        self.plane.lock().xdp.as_ref().is_some_and(xdp::XdpEngine::outlives)
    }

    pub(crate) fn has_fast_path(&self) -> bool {
        self.plane.lock().xdp.is_some()
    }

    pub(crate) fn vpc_names(&self) -> BTreeMap<Vni, String> {
        let core = self.core.lock();
        let vpcs = core.model.objects(Kind::Vpc);
        vpcs.filter_map(|o| if let Object::Vpc(v) = o { Some((v.vni, v.name.to_string())) } else { None }).collect()
    }

    /// The engine, and the devices that it works on.
    pub(crate) fn engine_and_ports(&self) -> (String, Vec<String>) {
        let plane = self.plane.lock();
        (plane.engine_name().into(), plane.uplinks().into_iter().map(|u| u.name).collect())
    }

    /// `GET /v1/counters`.
    pub fn counters(&self) -> Counters {
        let mut counters = counters::read(&self.tables(), &self.vpc_names());
        for tenant in &mut counters.tenants {
            let before = self.counts_before.vpc(Vni(tenant.vni));
            tenant.packets += before.packets;
            tenant.bytes += before.bytes;
        }
        counters
    }

    /// Leaves the counters of VPCs and VMs to whoever comes after, under whatever table layout.
    pub fn save_counters(self: &Arc<Self>, state: &std::path::Path) {
        let vpcs = self.counters().tenants.into_iter().filter(|t| t.packets > 0);
        let mut vms = std::collections::HashMap::new();
        self.each_vm(u64::MAX, |v| {
            if v.packets > 0 {
                vms.insert(v.vm, Count { packets: v.packets, bytes: v.bytes });
            }
        });
        let total =
            Counts { vpcs: vpcs.map(|t| (Vni(t.vni), Count { packets: t.packets, bytes: t.bytes })).collect(), vms };
        if let Err(e) = counter_migration::save(state, &Saved { before: self.counts_before.clone(), total }) {
            tracing::warn!("the counters could not be saved, so an upgrade would lose those of VPCs and VMs: {e}");
        }
    }

    /// `GET /v1/neighbours`.
    pub fn neighbours(&self) -> Vec<Neighbour> {
        let Some(underlay) = self.underlay.get() else { return Vec::new() };
        let mut ncs: BTreeMap<(IfIndex, IpAddr), u64> = BTreeMap::new();
        {
            let writer = self.writer.lock();
            let groups: BTreeMap<_, _> = writer.groups().into_iter().map(|(id, members)| (id.0, members)).collect();
            let specs: BTreeMap<_, _> =
                writer.nexthops().into_iter().map(|(id, s)| (id.0, (s.ifindex, s.addr))).collect();
            for members in writer.ncs().iter().filter_map(|(.., group)| groups.get(&(*group)?.0)) {
                let egress: std::collections::BTreeSet<_> = members.iter().filter_map(|m| specs.get(&m.0)).collect();
                egress.into_iter().for_each(|egress| *ncs.entry(*egress).or_default() += 1);
            }
        }
        let next_hops = underlay.nexthops();
        next_hops
            .into_iter()
            .map(|(spec, interface)| Neighbour {
                ncs: ncs.get(&(spec.ifindex, spec.addr)).copied().unwrap_or(0),
                address: spec.addr.to_string(),
                interface,
                mac: spec.dmac.map_or(String::new(), |m| abi::Mac(m).to_string()),
                source_mac: abi::Mac(spec.smac).to_string(),
                mtu: u32::from(spec.mtu),
                ready: spec.dmac.is_some(),
            })
            .collect()
    }

    /// The kernel's next hops to an address.
    pub(crate) fn hops(&self, to: IpAddr) -> Vec<underlay::NexthopSpec> {
        let paths = self.underlay.get().map(|u| u.path_of(to)).unwrap_or_default();
        paths.into_iter().map(|(hop, _)| hop).collect()
    }

    /// Has the kernel look for the neighbours of addresses.
    pub(crate) fn want(&self, addresses: Vec<IpAddr>) {
        if let Some(underlay) = self.underlay.get() {
            underlay.want(addresses);
        }
    }

    /// `POST /v1/sessions`.
    pub fn sessions(&self, query: &SessionQuery) -> Result<crate::listing::Text, NodeError> {
        let mut list = crate::listing::lines(Listing::new(&self.conntrack, query, self.vpc_names())?);
        let first = list.find(|piece| !piece.is_empty());
        if first.as_ref().is_none_or(|piece| piece.starts_with(LIST_END)) {
            crate::listing::known_addresses(&self.core().model, query)?;
        }
        Ok(Box::new(first.into_iter().chain(list)))
    }

    /// `POST /v1/rules`.
    pub fn rules(&self, query: &crate::rules::RuleQuery) -> Result<Vec<crate::rules::RuleView>, NodeError> {
        if let Some(group) = &query.group {
            crate::listing::known(&self.core().model, Kind::SecurityGroup, group)?;
        }
        Ok(crate::rules::rules(&self.conntrack, query))
    }

    /// `POST /v1/ports`.
    pub fn ports(&self, query: &SessionQuery) -> Result<Ports, NodeError> {
        let SessionQuery { vm_port, remote, remote_port, protocol, state, .. } = query;
        if vm_port.is_some() || remote.is_some() || remote_port.is_some() || protocol.is_some() || state.is_some() {
            return Err(NodeError::Request("ports are chosen by vpc, vm, public and public_port alone".into()));
        }
        let ports =
            crate::sessions::ports(&self.conntrack, query, &self.vpc_names(), &self.counters(), self.has_fast_path())?;
        if ports.holders.is_empty() && ports.elastic.is_empty() {
            crate::listing::known_addresses(&self.core().model, query)?;
        }
        Ok(ports)
    }

    /// `GET /v1/underlay`.
    pub fn underlay(&self) -> serde_json::Value {
        self.underlay.get().map_or(serde_json::Value::Null, |u| serde_json::json!(u.status()))
    }

    /// A listing of what the tables really hold.
    pub(crate) fn table_cursor(&self, kind: &str, name: &str) -> Result<Cursor, NodeError> {
        Cursor::new(kind, &self.name_in_tables(kind, name), self.vpc_names())
    }

    /// The next objects of such a listing, so many at most.
    pub(crate) fn table_page(&self, cursor: &mut Cursor, most: usize) -> Vec<serde_json::Value> {
        cursor.page(most, || self.writer.lock())
    }

    /// Tables know no names but those of VPCs: what the object of a configured name is called there.
    fn name_in_tables(&self, kind: &str, name: &str) -> String {
        let object = Kind::from_name(kind).and_then(|kind| self.core.lock().model.get(kind, name));
        match object {
            Some(Object::Vm(vm)) => format!("{}/{}", vm.vpc, vm.addresses[0]),
            Some(Object::Nc(nc)) => nc.address.to_string(),
            Some(Object::Route(route)) => format!("{}/{}", route.vpc, route.prefix.addr()),
            _ => name.to_string(),
        }
    }

    /// `GET /v1/top`: what happens during `ms` milliseconds.
    pub fn top(&self, ms: u64) -> Result<Top, NodeError> {
        if !(50..=60_000).contains(&ms) {
            return Err(NodeError::Config(vec![format!("ms is 50 to 60000, and is {ms}")]));
        }
        let window = Duration::from_millis(ms);
        let names = self.vpc_names();
        let tables = self.tables();
        let reading = || Reading {
            counters: counters::read(&tables, &names),
            cpus: cpu_times(&std::fs::read_to_string("/proc/stat").unwrap_or_default()),
        };
        let before = reading();
        // A short look first: how fine to sample depends on the rate.
        let probe = window / 10;
        std::thread::sleep(probe);
        let pps = between(&before, &reading()).rx_pps;
        let exponent = exponent_for(pps, (window - probe).as_secs_f64());
        let (sampler, sampled_s) = self.sample(window - probe, exponent);
        let after = reading();
        let mut top = between(&before, &after);
        top.engine = self.plane.lock().engine_name().into();
        top.levels = self.levels_beside(&after.counters.total);
        top.samples = sampler.samples;
        top.flows = sampler.heaviest(FLOWS, exponent, sampled_s);
        Ok(top)
    }

    fn sample(&self, window: Duration, exponent: u8) -> (Sampler, f64) {
        let mut subscription = self.hub.subscribe(EventFilter { sample: Some(exponent), ..Default::default() });
        self.update_capture();
        let begun = Instant::now();
        let mut sampler = Sampler::default();
        while begun.elapsed() < window {
            while let Ok(event) = subscription.events.try_recv() {
                sampler.take(&event);
            }
            std::thread::sleep(Duration::from_millis(5).min(window.saturating_sub(begun.elapsed())));
        }
        let seconds = begun.elapsed().as_secs_f64();
        self.hub.unsubscribe(subscription.id);
        self.update_capture();
        while let Ok(event) = subscription.events.try_recv() {
            sampler.take(&event);
        }
        (sampler, seconds)
    }

    /// Makes the engines copy what is wanted now, and nothing else.
    pub fn update_capture(&self) {
        let configured = self.core.lock().model.gateway().map_or(0, |g| g.sampling);
        self.set_capture(configured);
    }

    fn set_capture(&self, configured: u8) {
        let mut writer = self.writer.lock();
        let mut wanted = self.hub.wanted();
        if wanted.sample == 0 {
            wanted.sample = configured;
        }
        let options = writer.options() & !Wanted::MASK | wanted.option_bits();
        if options != writer.options() {
            writer.set_options(options);
        }
    }

    /// `POST /v1/apply`.
    pub fn apply(&self, body: &[u8], mode: Mode, consent: &Consent) -> Result<ApplyReport, NodeError> {
        let begun = Instant::now();
        // A snapshot that replaces everything needs no documents.
        if let (Mode::Replace, Some([(_, content)])) = (mode, files(body).as_deref()) {
            if let Some(model) = crate::store::snapshot(content) {
                let model = model?;
                let parse_s = begun.elapsed().as_secs_f64();
                consent.to_emptiness(consent::objects(&model) as usize, &self.core.lock().model)?;
                return self.change(Change::Everything(model, None), consent).map(|r| ApplyReport { parse_s, ..r });
            }
        }
        let (docs, errors) = read_documents(body, mode)?;
        if !errors.is_empty() {
            let errors = match mode {
                Mode::Replace => model::every_error(&docs, errors, &mut Model::new()),
                _ => model::every_error(&docs, errors, &mut self.core.lock().model),
            };
            return Err(sentences(errors));
        }
        let parse_s = begun.elapsed().as_secs_f64();
        self.apply_documents(&docs, mode == Mode::Replace, consent).map(|r| ApplyReport { parse_s, ..r })
    }

    /// Applies documents: all of them or none.
    pub fn apply_documents(
        &self,
        docs: &Documents,
        replace: bool,
        consent: &Consent,
    ) -> Result<ApplyReport, NodeError> {
        if !replace {
            return self.change(Change::Documents(docs), consent);
        }
        consent.to_emptiness(docs.len(), &self.core.lock().model)?;
        let (model, plan) = Model::from_documents(docs).map_err(sentences)?;
        self.change(Change::Everything(model, Some(plan)), consent)
    }

    pub(crate) fn change(&self, change: Change, consent: &Consent) -> Result<ApplyReport, NodeError> {
        self.may_change(&change, consent)?;
        let mut core = self.core.lock();
        let begun = Instant::now();
        let (base, objects) = (self.base(&core.model), consent::objects(&core.model));
        let before = Service::of(&core.model);
        let (plan, docs) = match change {
            Change::Everything(model, doubts) => {
                let mut plan = core.model.replace(model).map_err(sentences)?;
                doubts.iter().for_each(|of| plan.warned_by(of));
                (plan, None)
            }
            Change::Documents(docs) => (core.model.apply(docs).map_err(sentences)?, Some(docs)),
        };
        let deletes = Deletes::new(&plan, objects);
        if let Err(refused) = consent.to_plan(&deletes, &base) {
            core.model.revert(plan);
            return Err(refused);
        }
        let nat = OnceCell::new();
        let ends = self.conntrack.ends_of(&plan, &core.model, &nat);
        let mut view = plan.view(&core.model, CHANGES_MAX);
        let gateway = plan.tally(Kind::Gateway);
        if gateway.added + gateway.changed + gateway.unchanged > 0 {
            view.warnings.extend(narrow::warnings(&self.plane.lock(), &core.model, docs.unwrap_or(&Documents::new())));
        }
        let mut json = view.to_json();
        json["sessionsEnd"] = ends.as_ref().map_or(serde_json::Value::Null, |e| e.to_json());
        let mut report = ApplyReport {
            plan: json,
            text: view.render(false) + &ends.map_or_else(String::new, |e| e.to_string()),
            empty: plan.is_empty(),
            deletes: deletes.number(),
            objects,
            asks_deletes: deletes.needs_consent(),
            base,
            plan_s: begun.elapsed().as_secs_f64(),
            generation: core.generation(),
            ..Default::default()
        };
        if consent.dry_run || report.empty {
            core.model.revert(plan);
            return Ok(report);
        }
        let commit = (plan.commit(&core.model), nat);
        if let Err((error, recorded)) = self.carry_out(&mut core, docs, commit, &before, &mut report) {
            core.times.refused += 1;
            core.model.revert(plan);
            self.writer.lock().set_limits(crate::store::limits(&core.model));
            let Core { model, store, .. } = &mut *core;
            if let (true, Some(store)) = (recorded, store) {
                store.withdraw(model)?;
            }
            // What was changed on the ports is taken back; that these can be served was shown before.
            if let Err(e) = self.plane.lock().serve(before) {
                tracing::error!("the ports could not be put back as they were: {e}");
            }
            return Err(error);
        }
        report.committed = true;
        self.note_drift(consent);
        let seconds = report.journal_s + report.commit_s;
        let times = &mut core.times;
        times.count += 1;
        times.total_s += seconds;
        times.last_s = seconds;
        times.max_s = times.max_s.max(seconds);
        report.generation = core.generation();
        let configured = core.model.gateway().map_or(0, |g| g.sampling);
        // A commit of gateway settings stores the whole option word.
        self.set_capture(configured);
        self.listings.note(plan, &core.model);
        Ok(report)
    }

    /// What names a configuration that a plan is made for: this process, and how many changes its model has seen.
    fn base(&self, model: &Model) -> String {
        format!("{:016x}.{}", self.mark, model.generation())
    }

    /// Ports, journal, tables, underlay, in this order: what can be refused comes first, and what is acknowledged is on disk.
    /// An error says whether the journal has the change already.
    fn carry_out(
        &self,
        core: &mut Core,
        docs: Option<&Documents>,
        (commit, nat): (tables::Commit, OnceCell<ConntrackPlan>),
        before: &Service,
        report: &mut ApplyReport,
    ) -> Result<(), (NodeError, bool)> {
        let after = Service::of(&core.model);
        if after != *before {
            self.conntrack.expect_edge(&mut self.writer.lock(), core.model.edge()).map_err(|e| (e, false))?;
            self.plane.lock().serve(after).map_err(|e| (e, false))?;
        }
        let begun = Instant::now();
        let recorded = core.store.is_some();
        if let Some(store) = &mut core.store {
            let (nothing, replace) = (Documents::new(), docs.is_none());
            store.record(docs.unwrap_or(&nothing), replace, &core.model).map_err(|e| (e, false))?;
        }
        report.journal_s = begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        let egress = self.commit(core, &commit, nat, docs.is_none()).map_err(|e| (e, recorded))?;
        self.routing.set(core.model.routing(), core.model.evpn());
        report.commit_s = begun.elapsed().as_secs_f64();
        if let Some(store) = &mut core.store {
            store.tidy();
        }
        if let Some(underlay) = self.underlay.get() {
            let (mut come, mut gone) = egress;
            come.extend(&commit.nc_add);
            gone.extend(commit.nc_remove.iter().filter(|nc| !self.leads_to(**nc)));
            if !gone.is_empty() {
                underlay.remove_ncs(gone);
            }
            if !come.is_empty() {
                underlay.add_ncs(come);
                // An acknowledged NC is reachable, as far as the kernel knows a way.
                underlay.sync(Duration::from_millis(500));
            }
        }
        Ok(())
    }

    /// The tables and the way to the Internet: all of it or nothing. The routers that come and go.
    fn commit(
        &self,
        core: &Core,
        commit: &tables::Commit,
        nat: OnceCell<ConntrackPlan>,
        replaced: bool,
    ) -> Result<(Vec<IpAddr>, Vec<IpAddr>), NodeError> {
        let mut writer = self.writer.lock();
        writer.set_limits(crate::store::limits(&core.model));
        let nat = nat.into_inner().unwrap_or_else(|| core.model.conntrack());
        let plan = self.conntrack.prepare(&mut writer, nat)?;
        let (amended, learned) = self.routing.amend(commit);
        if let Err(e) = writer.commit(&amended) {
            self.conntrack.withdraw(&mut writer);
            return Err(e.into());
        }
        self.routing.amended(learned);
        self.conntrack.carry_out(&mut writer, &plan, commit, (&core.model, replaced));
        let touched: Vec<Vni> = commit.tenants.iter().map(|t| t.vni).collect();
        let (decided, live) = (self.decided_paths(), self.hub.live.vnis());
        crate::paths::enter(&mut writer, &core.model, &decided, &live, (!replaced).then_some(&touched[..]));
        Ok(self.conntrack.set_egress(&mut writer, &core.model))
    }

    /// Serves the ports as configured. The daemon calls it once, when the tables are filled.
    pub fn serve(&self) -> Result<(), NodeError> {
        let wanted = Service::of(&self.core.lock().model);
        self.plane.lock().serve(wanted)
    }

    /// Ends the software workers; the fast path goes on.
    pub fn stop(&self) {
        self.plane.lock().stop();
        self.conntrack.stop();
        self.settle();
    }

    /// Refuses a port that is none of the node's, if it has any.
    fn served(&self, ifindex: IfIndex) -> Result<IfIndex, NodeError> {
        let ports = self.plane.lock().uplinks();
        if ports.is_empty() || ports.iter().any(|p| IfIndex(p.ifindex) == ifindex) {
            return Ok(ifindex);
        }
        let known: Vec<String> = ports.iter().map(|p| format!("{} ({})", p.ifindex, p.name)).collect();
        Err(NodeError::Absent(format!(
            "interface {ifindex} is no port of this node, so no packet comes from it; there are {}",
            known.join(", ")
        )))
    }

    /// Refuses a filter of captured packets that nothing can pass.
    pub fn check_capture(&self, filter: &EventFilter) -> Result<(), NodeError> {
        filter.check().map_err(NodeError::Request)?;
        let Some(vni) = filter.vni.filter(|vni| self.core().model.vpc_by_vni(Vni(*vni)).is_none()) else {
            return Ok(());
        };
        if filter.reasons.iter().any(|r| r == abi::DropReason::VniUnknown.name()) {
            return Ok(());
        }
        Err(NodeError::Absent(format!(
            "no Vpc has VNI {vni}; `tunny get vpc` lists those that there are, and --reason vni_unknown captures packets of unknown VNIs"
        )))
    }

    /// `POST /v1/trace`.
    pub fn trace(&self, request: &crate::trace::Request) -> Result<crate::trace::Report, NodeError> {
        let frame = request.bytes(&self.tables())?;
        let ifindex = match request.ifindex {
            0 => self.plane.lock().uplinks().first().map_or(IfIndex(1), |u| IfIndex(u.ifindex)),
            given => self.served(IfIndex(given))?,
        };
        let heap: Arc<dyn Memory> =
            Arc::new(tables::HeapMemory::new().map_err(NodeError::system("reserving memory for a copy"))?);
        let engine = if request.xdp { Some(xdp::XdpEngine::load()?) } else { None };
        {
            // The writer stands still while its tables are copied.
            let mut writer = self.writer.lock();
            writer.settle();
            crate::table_copy::copy(&*self.memory, &*heap).map_err(NodeError::system("copying the tables"))?;
            if let Some(engine) = &engine {
                crate::table_copy::copy(&*self.memory, &*engine.memory())
                    .map_err(NodeError::system("copying the tables"))?;
            }
        }
        let nat = self.conntrack.rehearsal(engine.as_ref())?;
        let mut report = crate::trace::run(heap, nat, &frame, ifindex, monotonic_ns()).with_learned(&self.routing);
        if let Some(engine) = &engine {
            report.xdp = Some(crate::trace::run_xdp(engine, &frame, ifindex, &report)?);
        }
        Ok(report)
    }
}
