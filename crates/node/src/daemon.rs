// SPDX-License-Identifier: Apache-2.0
//! Starting and running a node.
//!
//! The order of the start is what makes a restart invisible: configuration first, then the tables (taken over if a process before has
//! left them, rebuilt beside if their layout is another one), then the ways of the underlay, and only then is the program on
//! the ports exchanged. Until that moment the old program forwards on the old tables. `docs/design/node.md` has the sequence.

use crate::audit::{Audit, Origin};
use crate::claim::{Claim, Taker, STATELESS};
use crate::conntrack::Conntrack;
pub use crate::dataplane::FlowCacheSize;
use crate::dataplane::{Choice, DataPlane, WORKERS_MAX};
use crate::error::NodeError;
use crate::events::Hub;
use crate::managed::Managed;
use crate::routing::Routing;
use crate::service::{Core, Node, Parts};
use crate::sink::TableSink;
use crate::startup::Steps;
use crate::store::Persist;
use crate::types::ApplyReport;
use crate::upgrade::Predecessor;
use compile::Compile;
use model::{Kind, Model};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tables::{Writer, WriterOptions};
use tokio::signal::unix::{signal, Signal, SignalKind};
use underlay::Underlay;

/// Time between looks at ports and at what commits left for later.
const TICK: Duration = Duration::from_millis(250);
/// Time that the start waits for the ways of the underlay.
const UNDERLAY_PATIENCE: Duration = Duration::from_secs(2);
/// Lines of the table of drop counters: four counters each.
const DROP_LINES: u32 = 16_384;

/// How a node is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Instance name.
    pub instance: String,
    /// Configuration files or folders that are applied at every start.
    pub config: Vec<PathBuf>,
    /// Folder of the state; none: nothing is kept.
    pub state: Option<PathBuf>,
    /// API socket.
    pub socket: PathBuf,
    /// Engine.
    pub choice: Choice,
    /// The instance's folder on a BPF file system; none: the fast path ends with the process.
    pub pins: Option<PathBuf>,
    /// Software workers.
    pub workers: u32,
    /// The flow cache of each CPU in the fast path, and of each worker that serves packets without one.
    pub flow_cache: FlowCacheSize,
    /// Where metrics are served over TCP, whatever the Gateway says.
    pub metrics: Option<SocketAddr>,
    /// On a stop, take the fast path off the ports too.
    pub detach: bool,
    /// Take over tables that another state has filled.
    pub adopt: bool,
    /// The controller that it follows.
    pub controller: Option<crate::tls::Address>,
}

/// Sends the log to standard error; RUST_LOG chooses what is said (default: info), as `debug` or `warn,underlay=trace`.
pub fn log_to_stderr() {
    use tracing_subscriber::filter::Targets;
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::util::SubscriberInitExt;
    let wanted = std::env::var("RUST_LOG").ok().filter(|words| !words.is_empty());
    let wanted = wanted.and_then(|words| words.parse::<Targets>().ok());
    let filter = wanted.unwrap_or_else(|| Targets::new().with_default(tracing::Level::INFO));
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    // A log that nobody takes any more (a closed pipe, a full disk) must not end the node.
    let log = log.log_internal_errors(false);
    let log = log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()));
    let registry = tracing_subscriber::registry().with(filter);
    // systemd has the time already. A second call finds everything set up.
    let _ = match std::env::var_os("INVOCATION_ID") {
        Some(_) => registry.with(log.without_time()).try_init(),
        None => registry.with(log).try_init(),
    };
}

/// A started node and the threads that belong to it.
pub struct Running {
    /// The node.
    pub node: Arc<Node>,
    stop: Arc<AtomicBool>,
    events: Option<std::thread::JoinHandle<()>>,
    routers: Vec<std::thread::JoinHandle<()>>,
    state: Option<PathBuf>,
    _claim: Claim,
}

/// Starts a node in the network namespace of the calling thread. It serves its ports when this returns.
pub fn start(options: &Options) -> Result<Running, NodeError> {
    let mut steps = Steps::new();
    // Buffers of AF_XDP count as locked memory. Where the limit may not be raised, the sockets say what is missing.
    let forever = nix::sys::resource::RLIM_INFINITY;
    let _ = nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_MEMLOCK, forever, forever);
    let fast = matches!(options.choice, Choice::Auto | Choice::Xdp);
    let claim = Claim::new(&options.socket, options.pins.as_deref(), fast)?;
    let flow_lines = crate::dataplane::flow_lines(options.flow_cache, fast, options.workers)?;
    if !fast {
        no_other_fast_path(options, "this node is started without a fast path")?;
    }
    let pins = options.pins.as_deref().filter(|_| fast);
    steps.begin("reading the state");
    let (mut store, mut model, mut notes) = match &options.state {
        Some(dir) => {
            let (store, model, notes) = crate::claim::opened(|| Persist::open(dir))?;
            (Some(store), model, notes)
        }
        None => (None, Model::new(), Vec::new()),
    };
    if let Some(controller) = &options.controller {
        let name = Managed::open(&controller.url, options.state.as_deref()).followed().node;
        model.set_own_name((!name.is_empty()).then(|| name.into()));
    }
    let state_id = store.as_ref().map_or(STATELESS.to_string(), |s| s.id().to_string());
    if let Some(pins) = pins.filter(|pins| pins.is_dir()) {
        let number = store.as_ref().map_or(0, Persist::number);
        crate::claim::take_tables(
            pins,
            Taker { id: &state_id, number, dir: options.state.as_deref(), adopt: options.adopt },
        )?;
        store.iter_mut().for_each(|s| s.follow_pins(pins));
    }
    steps.done(format!("state read: {}", counts(&model)));
    let audit = Audit::open(options.state.as_deref(), store.as_ref().map_or(0, Persist::number));
    notes.extend(audit.notes.iter().cloned());
    let mut changed = false;
    if !options.config.is_empty() {
        steps.begin("applying the configuration files");
        let managed = options.controller.is_some();
        changed = apply_at_start(&options.config, (&mut model, store.as_mut()), &audit, managed, &mut notes)?;
        steps.done(format!("configuration files applied: {}", counts(&model)));
    }

    notes.extend(never_forwarded(&model));
    let announces = model.gateway().is_some_and(|g| g.announce.state != model::Announcing::Off);
    notes.extend(
        (announces && options.choice == Choice::None)
            .then(|| "spec.announce of the Gateway does nothing with --engine none".to_string()),
    );

    let hub = Arc::new(Hub::default());
    steps.begin("opening the fast path");
    let mut plane = DataPlane::open(options.choice, options.pins.clone(), options.workers, flow_lines, hub.clone())?;
    if let Some(why) = plane.no_fast_path() {
        no_other_fast_path(options, why)?;
    }
    let what = if plane.took_over() { "took over running tables" } else { "made table memory" };
    steps.done(match flow_lines {
        0 => format!("{what}; no flow caches"),
        lines => format!("{what}; flow caches of {} MiB", lines / xdp::FLOW_LINES_IN_MIB),
    });
    let known = plane.took_over().then(|| attach(&plane, &model, &mut steps, &mut notes)).flatten();
    let counts_before = counters_of_other_layout(options, known.is_some(), plane.took_over());
    steps.begin("making the tables say what is configured");
    let routing = Arc::new(Routing::new(&options.instance, options.choice != Choice::None, options.state.as_deref()));
    if options.choice != Choice::None {
        routing.set(model.routing(), model.evpn());
        routing.remove_left();
        routing.know(&model);
    }
    let mut writer = match known {
        Some(mut writer) => {
            let difference = model.reconcile(&writer);
            let (difference, learned) = routing.amend(&difference);
            writer.commit(&difference)?;
            routing.amended(learned);
            writer
        }
        None => {
            routing.forget();
            build(&plane, &model)?
        }
    };
    let in_hand =
        |lost: u64| format!("{lost} packets that the process before had in hand are counted as punt_no_listener");
    if plane.took_over() {
        let tables = writer.tables();
        let lost = crate::counters::account_for_the_dead(&tables, 0..tables.slots().0);
        notes.extend((lost > 0).then(|| in_hand(lost)));
    }
    steps.done(format!("tables say what is configured: commit {}", writer.tables().commits()));

    steps.begin("finding the sessions");
    let memories = (plane.session_memory()?, plane.states_backing());
    let conntrack = Conntrack::open((memories, &options.instance), &model, &mut writer, (salt(), changed), &mut notes)?;
    let managed = options.controller.as_ref().map(|c| Arc::new(Managed::open(&c.url, options.state.as_deref())));
    let paths = managed.as_ref().map(|managed| managed.paths.get()).unwrap_or_default();
    crate::paths::enter(&mut writer, &model, &paths, &Default::default(), None);
    let (routers, _) = conntrack.set_egress(&mut writer, &model);
    plane.set_connections(conntrack.connections());
    plane.set_shaping(conntrack.shaping());
    plane.set_metadata(conntrack.metadata());
    plane.set_routing(&routing);
    let replaced = options.pins.as_deref().filter(|_| plane.xdp.is_some() && !plane.took_over());
    let predecessor = replaced.and_then(|pins| Predecessor::find(pins, options.state.as_deref()));
    let predecessor = predecessor.and_then(|found| known_or_said(found, &mut notes));
    let old_counters = predecessor.as_ref().and_then(|p| known_or_said(p.counters(), &mut notes));
    let old = predecessor.as_ref().and_then(Predecessor::sessions).and_then(|found| known_or_said(found, &mut notes));
    if let Some(old) = &old {
        steps.done(old.import(&conntrack));
        conntrack.states().take_in_sessions(crate::counters::monotonic_ns());
    }
    let connections = predecessor.as_ref().and_then(|p| known_or_said(p.connections(), &mut notes)).unwrap_or_default();
    if !connections.is_empty() {
        let lost = conntrack.states().take_in(&connections, crate::counters::monotonic_ns());
        let rest = if lost > 0 { format!(", {lost} could not go on") } else { String::new() };
        steps.done(format!(
            "{} connections of another layout's state table carried over{rest}",
            connections.len() as u64 - lost
        ));
    }
    steps.done(format!("{} sessions at hand", conntrack.connections().tracker().stats().sessions));

    let writer = Arc::new(Mutex::new(writer));
    // New tables have none of what is learned yet, and no packet has come.
    routing.enter(&model, &writer);
    let underlay: Arc<OnceLock<Underlay>> = Arc::default();
    if options.choice != Choice::None {
        steps.begin("learning the ways of the underlay");
        let watcher =
            Underlay::start(underlay::Options::default(), TableSink::new(writer.clone(), conntrack.egress()))?;
        watcher.add_ncs(model.nc_addresses().chain(routers).chain(routing.vteps()).collect());
        if !watcher.sync(UNDERLAY_PATIENCE) {
            notes.push("the underlay was not known within 2 s; packets wait for it".into());
        }
        let _ = underlay.set(watcher);
        let wanted = underlay.clone();
        plane.on_wanted(move |ncs| {
            if let Some(underlay) = wanted.get() {
                underlay.want(ncs);
            }
        });
        steps.done("ways of the underlay entered");
    }

    steps.begin("serving the ports");
    plane.serve(crate::dataplane::Service::of(&model))?;
    let served: Vec<String> = plane.uplinks().iter().map(|u| format!("{} {}", u.name, u.mode)).collect();
    steps.done(format!("ports served: {}", if served.is_empty() { "none".into() } else { served.join(", ") }));
    if let Some(old) = &old {
        // The old program has let go of the ports.
        old.refresh(&conntrack);
    }
    if let Some(old) = old_counters {
        let (what, lost) = old.carry_over(plane.memory());
        steps.done(what);
        notes.extend((lost > 0).then(|| in_hand(lost)));
    }
    if let Some(xdp) = &plane.xdp {
        match xdp.retire_other_layouts() {
            Ok(0) => {}
            Ok(n) => steps.done(format!("tables of {n} other layouts removed")),
            Err(e) => notes.push(e.to_string()),
        }
    }
    if let Some(dir) = &options.state {
        crate::upgrade::describe_layout(dir);
    }
    conntrack.start()?;
    let stop = Arc::new(AtomicBool::new(false));
    let events = plane.xdp.as_ref().map(|xdp| event_thread(xdp, hub.clone(), stop.clone())).transpose()?;
    for note in notes.iter().chain(&plane.notes()) {
        tracing::warn!("{note}");
    }
    let core = Core { model, store: store.take(), times: Default::default() };
    let instance = options.instance.clone();
    let startup = steps.list();
    let node = Node::new(Parts {
        instance,
        hub,
        core,
        plane,
        writer,
        underlay,
        conntrack,
        routing,
        counts_before,
        audit,
        managed,
        startup,
        notes,
    });
    // Sampling may be configured.
    node.update_capture();
    if let Some(state) = &options.state {
        node.save_counters(state);
    }
    let mut routers = crate::routing::start(&node, &stop)?;
    if options.choice != Choice::None {
        routers.push(crate::announce::start(&node, &options.socket, &stop)?);
    }
    Ok(Running { node, stop, events, routers, state: options.state.clone(), _claim: claim })
}

/// Objects that are told by name.
const TOLD: usize = 10;

/// What the operator must know of addresses that earlier versions took.
fn never_forwarded(model: &Model) -> Vec<String> {
    let mut found = model.never_forwarded();
    let mut notes: Vec<String> = found
        .by_ref()
        .take(TOLD)
        .map(|(kind, name, why)| {
            let word = kind.name().to_lowercase();
            format!(
                "{kind} {name} has an address that an earlier version took: {why}. It is kept, and packets with that address are dropped; \
                 give it another address, or remove it with `tunny delete {word} {name}`"
            )
        })
        .collect();
    let more = found.count();
    notes.extend((more > 0).then(|| format!("{more} more objects have addresses that are never forwarded")));
    notes
}

impl Running {
    /// Ends the threads. The fast path goes on.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.node.stop();
        self.node.routing.ring();
        self.routers.drain(..).for_each(|thread| drop(thread.join()));
        if let Some(state) = self.state.take() {
            self.node.save_counters(&state);
        }
        if let Some(thread) = self.events.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

fn counts(model: &Model) -> String {
    let c = model.counts();
    let n = |kind| c.of(kind);
    let (vpcs, ncs, vms) = (n(Kind::Vpc), n(Kind::Nc), n(Kind::Vm));
    format!("{vpcs} VPCs, {ncs} NCs, {vms} VMs, {} routes, {} peerings", n(Kind::Route), n(Kind::Peering))
}

/// Files as given, folders as the YAML and NDJSON files in them, in order of their names.
pub fn expand(paths: &[PathBuf]) -> Result<Vec<PathBuf>, NodeError> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let refused = || NodeError::file("reading the folder", path);
        let mut inside = Vec::new();
        for entry in std::fs::read_dir(path).map_err(refused())? {
            let file = entry.map_err(refused())?.path();
            let known = file.extension().is_some_and(|e| ["yaml", "yml", "ndjson", "jsonl"].iter().any(|k| e == *k));
            let known = known && !file.is_dir();
            if known {
                inside.push(file);
            }
        }
        inside.sort();
        files.extend(inside);
    }
    Ok(files)
}

/// Applies the files of the command line, and notes it if that changes or refuses something.
fn apply_at_start(
    paths: &[PathBuf],
    (model, mut store): (&mut Model, Option<&mut Persist>),
    audit: &Audit,
    managed: bool,
    notes: &mut Vec<String>,
) -> Result<bool, NodeError> {
    let applied = apply_files(paths, model, store.as_deref_mut(), managed, notes);
    let names: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
    let origin = Origin::node(&format!("startup, files {}", names.join(" ")));
    let generation = store.map_or(0, |s| s.number());
    let report = applied
        .map(|plan| plan.map(|plan| ApplyReport { plan, committed: true, generation, ..ApplyReport::default() }));
    match report {
        Ok(None) => Ok(false),
        Ok(Some(report)) => {
            audit.outcome("start", &origin, &Ok(report), generation);
            Ok(true)
        }
        Err(e) => {
            let refused = Err(e);
            audit.outcome("start", &origin, &refused, generation);
            refused.map(|_| false)
        }
    }
}

/// Applies files: they win over the state, what they do not name stays. The plan, if anything changes.
fn apply_files(
    paths: &[PathBuf],
    model: &mut Model,
    store: Option<&mut Persist>,
    managed: bool,
    notes: &mut Vec<String>,
) -> Result<Option<serde_json::Value>, NodeError> {
    let sentences = |errors: Vec<model::ConfigError>| NodeError::Config(errors.iter().map(|e| e.to_string()).collect());
    let files = expand(paths)?;
    let docs = model::parse_files(&files).map_err(sentences)?;
    crate::managed::no_region(&docs)?;
    if managed && !crate::managed::is_own(&docs) {
        return Err(NodeError::Request(
            "a node that follows a controller has in its files a Gateway and nothing else: all else is the controller's to say".into(),
        ));
    }
    if !managed {
        crate::managed::no_ports_of_nodes(&docs)?;
    }
    let plan = model.apply(&docs).map_err(sentences)?;
    notes.extend(plan.warnings().iter().map(|w| w.to_string()));
    if let (Some(store), false) = (store, plan.is_empty()) {
        store.record(&docs, false, model)?;
    }
    Ok((!plan.is_empty()).then(|| plan.view(model, 0).to_json()))
}

pub(crate) fn writer_options(fast: bool, model: &Model) -> WriterOptions {
    WriterOptions {
        salt: salt(),
        // One slot more than CPUs, for what programs of earlier layouts counted.
        xdp_slots: if fast { possible_cpus() + 1 } else { 0 },
        // One slot more than workers: traces count there, in their copy of the tables; and earlier layouts' software.
        worker_slots: WORKERS_MAX + 1,
        drop_lines: DROP_LINES,
        limits: crate::store::limits(model),
    }
}

/// What was found, or a note that says why it was not.
fn known_or_said<T>(found: Result<T, String>, notes: &mut Vec<String>) -> Option<T> {
    found.map_err(|why| notes.push(why)).ok()
}

/// A writer of the running tables, if they can be read.
fn attach(plane: &DataPlane, model: &Model, steps: &mut Steps, notes: &mut Vec<String>) -> Option<Writer> {
    steps.begin("reading the running tables");
    match Writer::attach(plane.memory(), writer_options(plane.xdp.is_some(), model)) {
        Ok(writer) => {
            steps.done("running tables read");
            Some(writer)
        }
        Err(e) => {
            notes.push(format!("ATTENTION: the running tables could not be taken over and were rebuilt: {e}"));
            None
        }
    }
}

/// A writer of new tables that say what the model says.
fn build(plane: &DataPlane, model: &Model) -> Result<Writer, NodeError> {
    let options = writer_options(plane.xdp.is_some(), model);
    let mut writer = Writer::create(plane.memory(), options).map_err(NodeError::system("building the tables"))?;
    writer.commit(&model.full_commit())?;
    Ok(writer)
}

/// Counters of VPCs and VMs that the present tables do not have.
fn counters_of_other_layout(options: &Options, same_tables: bool, damaged: bool) -> crate::counter_migration::Counts {
    let Some(state) = &options.state else { return Default::default() };
    let saved = crate::counter_migration::load(state);
    // Without tables of any kind this is a first start, or one after a reboot: counters begin at zero.
    let pinned = || options.pins.as_ref().map_or(Vec::new(), |pins| xdp::pinned_layouts(pins));
    let others = damaged || pinned().iter().any(|(layout, _)| *layout != abi::layout_hash());
    match (same_tables, others) {
        (true, _) => saved.before,
        (false, true) => saved.total,
        (false, false) => Default::default(),
    }
}

/// A random number for hashes.
pub(crate) fn salt() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library seeds this from the system's random numbers.
    std::hash::RandomState::new().build_hasher().finish()
}

/// CPU numbers that XDP may run on.
fn possible_cpus() -> u32 {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text.trim().rsplit([',', '-']).next().and_then(|n| n.parse::<u32>().ok());
    last.map_or(abi::SLOTS_MAX - WORKERS_MAX - 2, |n| n + 1).min(abi::SLOTS_MAX - WORKERS_MAX - 2)
}

fn event_thread(
    xdp: &xdp::XdpEngine,
    hub: Arc<Hub>,
    stop: Arc<AtomicBool>,
) -> Result<std::thread::JoinHandle<()>, NodeError> {
    let ring = xdp.events(move |event| hub.publish(event))?;
    let body = move || {
        while !stop.load(Ordering::Relaxed) {
            ring.poll(Duration::from_millis(100));
        }
    };
    std::thread::Builder::new().name("tunny-events".into()).spawn(body).map_err(NodeError::system("starting a thread"))
}

/// Starts a node and runs it until SIGTERM or SIGINT.
pub fn run(options: &Options) -> Result<(), NodeError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Each request may hold a reader of the tables, of which there are 512.
        .max_blocking_threads(64)
        .build()
        .map_err(NodeError::system("starting the event loop"))?;
    // Before the start: who is told to stop meanwhile stops in order, with counters saved.
    let signals = runtime.block_on(async { Signals::new() })?;
    let remote = options.controller.as_ref().map(crate::tls::Remote::new).transpose().map_err(NodeError::Request)?;
    let running = start(options)?;
    let result = runtime.block_on(serve(running.node.clone(), options, signals, remote));
    running.node.end_announcements(running.node.outlives() && !options.detach);
    // Streams of `tunny capture` may be open: they end with the process.
    runtime.shutdown_timeout(Duration::from_millis(100));
    running.stop();
    // The socket belongs to whoever starts next; an empty place says that nobody listens.
    let _ = std::fs::remove_file(&options.socket);
    if options.detach {
        if let Some(pins) = &options.pins {
            uninstall(pins)?;
        }
    }
    result
}

/// The signals that are listened for, from the beginning to the end of the process: none of them just kills it.
struct Signals {
    term: Signal,
    int: Signal,
    hup: Signal,
}

impl Signals {
    fn new() -> Result<Signals, NodeError> {
        let listen = |kind| signal(kind).map_err(NodeError::system("listening for signals"));
        let [term, int, hup] = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(listen);
        Ok(Signals { term: term?, int: int?, hup: hup? })
    }
}

/// Applies the configuration files again whenever SIGHUP comes.
async fn reload(node: Arc<Node>, config: Vec<PathBuf>, mut hup: Signal) {
    while hup.recv().await.is_some() {
        notify(&format!("RELOADING=1\nMONOTONIC_USEC={}", crate::counters::monotonic_ns() / 1000));
        let (node, config) = (node.clone(), config.clone());
        if tokio::task::spawn_blocking(move || node.reload(&config)).await.is_err() {
            tracing::error!("the reload failed; please report it");
        }
        notify("READY=1");
    }
}

async fn serve(
    node: Arc<Node>,
    options: &Options,
    signals: Signals,
    remote: Option<crate::tls::Remote>,
) -> Result<(), NodeError> {
    let Signals { mut term, mut int, hup } = signals;
    let listener = crate::api::bind(&options.socket)?;
    if let (Some(managed), Some(remote)) = (node.managed.clone(), remote) {
        crate::verify::begin(&node, managed.clone()).map_err(NodeError::system("starting a thread"))?;
        crate::probes::begin(&node, managed.clone()).map_err(NodeError::system("starting a thread"))?;
        tokio::spawn(crate::follow::follow(node.clone(), managed, remote));
    }
    tokio::spawn(metrics(node.clone(), options.metrics));
    tokio::spawn(reload(node.clone(), options.config.clone(), hup));
    let ticking = node.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(TICK).await;
            let node = ticking.clone();
            if tokio::task::spawn_blocking(move || node.tick()).await.is_err() {
                tracing::error!("the periodic work failed; please report it");
            }
        }
    });
    notify("READY=1");
    tracing::info!("listening on {}", options.socket.display());
    tokio::select! {
        result = crate::api::serve(node.clone(), listener) => result,
        _ = term.recv() => Ok(()),
        _ = int.recv() => Ok(()),
    }
    .inspect(|()| {
        notify("STOPPING=1");
        match node.outlives() && !options.detach {
            true => tracing::info!("stopping; the fast path goes on"),
            false => tracing::info!("stopping; this node forwards nothing until it is started again"),
        }
    })
}

/// Tells systemd that the process serves, and waits for SIGTERM or SIGINT.
pub(crate) fn until_told() -> Result<(), NodeError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(NodeError::system("starting the event loop"))?.block_on(async {
        let Signals { mut term, mut int, mut hup } = Signals::new()?;
        notify("READY=1");
        loop {
            tokio::select! {
                _ = term.recv() => break,
                _ = int.recv() => break,
                _ = hup.recv() => tracing::info!("SIGHUP: there is nothing to reload; what is known stays"),
            }
        }
        notify("STOPPING=1");
        Ok(())
    })
}

/// Serves metrics where the command line or, as it stands at the time, the Gateway says.
async fn metrics(node: Arc<Node>, fixed: Option<SocketAddr>) {
    let mut failed = None;
    loop {
        let asking = node.clone();
        let wanted = match fixed {
            Some(address) => Some(address),
            None => tokio::task::spawn_blocking(move || asking.metrics_address()).await.ok().flatten(),
        };
        let Some(address) = wanted else {
            *node.unserved.lock() = None;
            tokio::time::sleep(Duration::from_secs(1)).await;
            continue;
        };
        match tokio::net::TcpListener::bind(address).await {
            Ok(listener) => {
                failed = None;
                *node.unserved.lock() = None;
                tracing::info!("metrics on http://{address}/metrics");
                let watched = node.clone();
                let moved = async move {
                    loop {
                        tokio::time::sleep(Duration::from_secs(1)).await;
                        let node = watched.clone();
                        let now = tokio::task::spawn_blocking(move || node.metrics_address()).await.ok().flatten();
                        if fixed.is_none() && now != Some(address) {
                            return;
                        }
                    }
                };
                tokio::select! {
                    () = crate::scrape::serve(node.clone(), listener) => {}
                    () = moved => {}
                }
            }
            Err(e) => {
                let why = format!("metrics cannot be served on {address}: {e}; it is tried again");
                if failed != Some(address) {
                    tracing::warn!("{why}");
                    failed = Some(address);
                }
                *node.unserved.lock() = Some(why);
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
        }
    }
}

/// Tells systemd how far we are, if it wants to know.
pub fn notify(state: &str) {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let Ok(path) = std::env::var("NOTIFY_SOCKET") else { return };
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|a| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &a));
    if let Err(e) = sent {
        tracing::warn!("systemd could not be told {state}: {e}");
    }
}

/// Refuses to start a node without a fast path where an earlier node's is still attached: it takes the packets first, and forwards by tables
/// that nobody would change.
fn no_other_fast_path(options: &Options, why: &str) -> Result<(), NodeError> {
    match options.pins.as_deref().filter(|pins| xdp::has_pinned_links(pins)) {
        Some(pins) => Err(NodeError::FastPathStays { pins: pins.into(), why: why.into() }),
        None => Ok(()),
    }
}

/// Takes the fast path of an instance off its ports and removes its tables.
pub fn uninstall(pins: &Path) -> Result<bool, NodeError> {
    let _lock = crate::claim::pins_that_are_there(pins)?;
    match std::fs::remove_dir_all(pins) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(NodeError::file("removing", pins)(e)),
    }
}
