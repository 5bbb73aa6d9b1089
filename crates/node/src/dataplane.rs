// SPDX-License-Identifier: Apache-2.0
//! The data plane of a node: table memory, the fast path on the uplinks, the software workers behind it.
//!
//! What runs where is decided for each uplink, from the best downwards, and said aloud: XDP in the driver; XDP in the
//! stack; the Rust path on AF_PACKET. Table memory lies in BPF maps, pinned, whenever the kernel lets us, and in plain
//! memory of this process otherwise (then a stop of the node stops forwarding).

use crate::afpacket::{PacketSocket, Silencer};
use crate::error::NodeError;
use crate::events::Hub;
use crate::punt::PuntSocket;
use crate::punt_tap::PuntTap;
use crate::shaping::Shaping;
use crate::types::Uplink;
use crate::uplinks::{interface, Interface};
use crate::worker::{Port, Shared, Worker};
use abi::{DropReason, IfIndex};
use gateway::{FlowCache, Gateway};
use model::{Engine, Model};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use tables::{HeapMemory, Memory, Tables};
use xdp::{XdpEngine, FLOW_LINES_IN_MIB};

/// Software workers that the tables have counter slots for.
pub const WORKERS_MAX: u32 = 16;

/// Which engine a node may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// XDP if the kernel lets us, else the software path; said aloud.
    #[default]
    Auto,
    /// XDP, or refuse to start.
    Xdp,
    /// The software path on AF_PACKET; tables in plain memory.
    User,
    /// No port is touched: tables, API and traces alone.
    None,
}

/// What the data plane serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Names of the ports.
    pub uplinks: Vec<String>,
    /// They are ports of inline pairs: frames that are for others must be let in.
    pub inline: bool,
    /// Those of them that are towards customers: so must frames for any VPC's gateway address.
    pub edge: Vec<String>,
    /// Those of them that are towards VMs: the same holds for these.
    pub vms: Vec<String>,
    /// Those of these that are TUN interfaces.
    pub tuns: Vec<String>,
    /// How they are to be served.
    pub engine: Engine,
    /// Those of them that are to be served otherwise.
    pub engines: HashMap<String, Engine>,
    /// The gateway's own tunnel addresses.
    pub vteps: Vec<IpAddr>,
    /// VXLAN port.
    pub port: u16,
}

impl Service {
    /// What a configuration asks for.
    pub fn of(model: &Model) -> Service {
        let Some(g) = model.gateway() else { return Service { port: 4789, ..Default::default() } };
        let vteps = g.vteps().into_iter().flatten().collect();
        let ports = || model.by_name().edge_ports.values();
        let edge: Vec<String> = ports().filter_map(|p| p.here(model.own_name()).cloned()).collect();
        let tuns = ports().filter(|p| p.tun).filter_map(|p| p.here(model.own_name()).cloned()).collect();
        let vms: Vec<String> = model.by_name().vm_ports.values().map(|p| p.interface.clone()).collect();
        let of_vms = model.by_name().vm_ports.values().filter_map(|p| Some((p.interface.clone(), p.engine?)));
        let mut engines: HashMap<String, Engine> = of_vms.collect();
        if g.engine == Engine::Tc {
            // Which serves no customers.
            engines.extend(edge.iter().map(|name| (name.clone(), Engine::Auto)));
        }
        Service {
            tuns,
            uplinks: g.ports().into_iter().chain(edge.iter().cloned()).chain(vms.iter().cloned()).collect(),
            vms,
            inline: g.role == model::GatewayRole::Filter,
            edge,
            engine: g.engine,
            engines,
            vteps,
            port: g.vxlan_port,
        }
    }
}

impl Service {
    /// How a port is to be served.
    fn engine_of(&self, name: &str) -> Engine {
        self.engines.get(name).copied().unwrap_or(self.engine)
    }

    /// Whether a port is towards customers or VMs: then no tunnel comes by it, and tags are a part of its frames.
    fn towards_others(&self, name: &str) -> bool {
        self.edge.iter().chain(&self.vms).any(|n| n == name)
    }
}

/// The data plane.
pub struct DataPlane {
    choice: Choice,
    memory: Arc<dyn Memory>,
    /// The fast path, if there is one.
    pub xdp: Option<XdpEngine>,
    took_over: bool,
    workers: u32,
    /// Lines of the flow cache of each worker that serves packets by itself.
    flow_lines: u32,
    /// Lines in use of each worker's flow cache.
    worker_flows: Vec<Arc<AtomicU64>>,
    shared: Shared,
    connections: Option<Arc<gateway::Connections>>,
    controls: Arc<gateway::Controls>,
    threads: Vec<JoinHandle<Vec<Port>>>,
    /// Interfaces and queues of which the workers have the punts.
    listening: HashSet<(IfIndex, u32)>,
    /// The workers have the TAP by which the tc program's punts come.
    punt_tap: bool,
    silencer: Option<Silencer>,
    /// TUN interfaces whose packets the kernel does not see, and the program that keeps it so.
    silenced: Option<(xdp::IngressDrop, HashSet<IfIndex>)>,
    service: Service,
    served: Vec<(String, IfIndex)>,
    uplinks: Vec<Uplink>,
    /// Why there is no fast path.
    memory_note: Option<String>,
    notes: Vec<String>,
}

/// How large each flow cache is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowCacheSize {
    /// By the machine's memory and the number of caches: [`xdp::default_flow_lines`].
    #[default]
    Auto,
    /// So many MiB; 0: there is none.
    Mib(u32),
}

impl std::str::FromStr for FlowCacheSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(FlowCacheSize::Auto),
            "off" => Ok(FlowCacheSize::Mib(0)),
            number => number
                .parse()
                .map(FlowCacheSize::Mib)
                .map_err(|_| "it is auto, off, or the MiB of each cache, such as 64".to_string()),
        }
    }
}

/// Lines of each flow cache, if the memory that is free holds all of them twice: one of each CPU where there is a fast path, and one of each
/// worker that serves packets by itself. The default takes less where less is free; a size that was asked for is refused then.
pub fn flow_lines(size: FlowCacheSize, fast: bool, workers: u32) -> Result<u32, NodeError> {
    if size == FlowCacheSize::Mib(0) {
        return Ok(0);
    }
    // Without the right to load programs there may be workers alone: `open` says so.
    let caches = if fast { xdp::possible_cpus().unwrap_or(1).max(workers) } else { workers };
    let text = std::fs::read_to_string("/proc/meminfo").map_err(NodeError::system("reading /proc/meminfo"))?;
    let free =
        text.lines().find_map(|l| l.strip_prefix("MemAvailable:")?.split_whitespace().next()?.parse::<u64>().ok());
    let most = most_flow_mib(free.unwrap_or(u64::MAX), caches);
    match size {
        FlowCacheSize::Auto => Ok(xdp::default_flow_lines(caches).min(most * FLOW_LINES_IN_MIB)),
        FlowCacheSize::Mib(wanted) if wanted > most => Err(NodeError::FlowCache { wanted, caches, most }),
        FlowCacheSize::Mib(wanted) => Ok(wanted * FLOW_LINES_IN_MIB),
    }
}

/// The most MiB of each flow cache: they leave half of what is free (in KiB), and the lines of all caches have numbers of 32 bits.
fn most_flow_mib(free: u64, caches: u32) -> u32 {
    (free / 1024 / 2 / u64::from(caches)).min(u64::from(u32::MAX / FLOW_LINES_IN_MIB / caches)) as u32
}

impl DataPlane {
    /// Opens or makes the table memory. `flow_lines`: of each flow cache, see [`flow_lines`]. `pins` is the instance's folder on a BPF file system.
    pub fn open(
        choice: Choice,
        pins: Option<PathBuf>,
        workers: u32,
        flow_lines: u32,
        hub: Arc<Hub>,
    ) -> Result<Self, NodeError> {
        let heap = || HeapMemory::new().map_err(NodeError::system("reserving table memory"));
        let mut memory_note = None;
        let (memory, xdp, took_over): (Arc<dyn Memory>, _, _) = match choice {
            Choice::User | Choice::None => (Arc::new(heap()?), None, false),
            Choice::Auto | Choice::Xdp => {
                match XdpEngine::open_or_create(&xdp::Options { pins, flow_lines, ..xdp::Options::default() }) {
                    Ok(engine) => {
                        let took_over = engine.origin() == xdp::Origin::Adopted;
                        if took_over {
                            // The state's lock says that whoever read these tables before is dead.
                            engine.memory().readers().forget_all();
                        }
                        (engine.memory(), Some(engine), took_over)
                    }
                    Err(error) if choice == Choice::Xdp => return Err(error.into()),
                    Err(error) => {
                        memory_note = Some(error.to_string());
                        (Arc::new(heap()?), None, false)
                    }
                }
            }
        };
        let (taps, shaping, metadata) = (Arc::default(), Arc::default(), Arc::default());
        let shared = Shared { stop: Arc::default(), hub, taps, wanted: Arc::new(|_| {}), metadata, shaping };
        Ok(Self {
            choice,
            memory,
            xdp,
            took_over,
            workers: workers.clamp(1, WORKERS_MAX),
            flow_lines,
            worker_flows: Vec::new(),
            shared,
            connections: None,
            controls: Arc::default(),
            threads: Vec::new(),
            listening: HashSet::new(),
            punt_tap: false,
            silencer: None,
            silenced: None,
            service: Service::default(),
            served: Vec::new(),
            uplinks: Vec::new(),
            memory_note,
            notes: Vec::new(),
        })
    }

    /// Sets who is told of neighbours that the software path needs. Before [`DataPlane::serve`].
    pub fn on_wanted(&mut self, wanted: impl Fn(Vec<IpAddr>) + Send + Sync + 'static) {
        self.shared.wanted = Arc::new(wanted);
    }

    /// Sets what lets packets wait. Before [`DataPlane::serve`].
    pub fn set_shaping(&mut self, shaping: Arc<Shaping>) {
        self.shared.shaping = shaping;
    }

    /// Sets who answers VMs at the metadata address. Before [`DataPlane::serve`].
    pub fn set_metadata(&mut self, metadata: Arc<crate::metadata::Metadata>) {
        self.shared.metadata = metadata;
    }

    /// Sets the sessions that the workers serve. Before [`DataPlane::serve`].
    pub fn set_connections(&mut self, connections: Arc<gateway::Connections>) {
        self.connections = Some(connections);
    }

    /// Sets where control packets of customers' routers go. Before [`DataPlane::serve`].
    pub fn set_routing(&mut self, routing: &crate::routing::Routing) {
        self.shared.taps = routing.taps.clone();
        self.controls = routing.controls.clone();
    }

    /// Session memory: on BPF maps, where it outlives this process, or of this process.
    pub fn session_memory(&mut self) -> Result<Arc<dyn conntrack::SessionMemory>, NodeError> {
        if let Some(xdp) = &self.xdp {
            match xdp.session_memory() {
                Ok(memory) => return Ok(memory),
                Err(e) => self.memory_note = Some(format!("ATTENTION: sessions end with this process. {e}")),
            }
        }
        Ok(Arc::new(conntrack::HeapMemory::new().map_err(NodeError::system("reserving session memory"))?))
    }

    /// Where state tables of the filter lie: on BPF maps, where they outlive this process, or in its memory.
    pub fn states_backing(&mut self) -> Arc<dyn conntrack_compact::Backing> {
        if let Some(xdp) = &self.xdp {
            match xdp.states() {
                Ok(backing) => return backing,
                Err(e) => {
                    self.memory_note = Some(format!("ATTENTION: states of connections end with this process. {e}"))
                }
            }
        }
        Arc::new(conntrack_compact::HeapSlots::default())
    }

    /// Lines in use of all flow caches, when counts were gathered last, and lines there are. None: there is none.
    pub fn flow_cache_level(&self) -> Option<(u64, u64)> {
        let workers = (!self.worker_flows.is_empty()).then(|| {
            let used = self.worker_flows.iter().map(|used| used.load(Ordering::Relaxed)).sum::<u64>();
            (used, self.worker_flows.len() as u64 * u64::from(self.flow_lines))
        });
        let fast = self.xdp.as_ref().and_then(XdpEngine::flow_cache_level);
        [workers, fast].into_iter().flatten().reduce(|a, b| (a.0 + b.0, a.1 + b.1))
    }

    /// Why there is no fast path though it was tried.
    pub fn no_fast_path(&self) -> Option<&str> {
        self.memory_note.as_deref().filter(|_| self.xdp.is_none())
    }

    /// The table memory.
    pub fn memory(&self) -> Arc<dyn Memory> {
        self.memory.clone()
    }

    /// Whether the tables of an earlier process are there, in use.
    pub fn took_over(&self) -> bool {
        self.took_over
    }

    /// `xdp`, `user` or `none`.
    pub fn engine_name(&self) -> &'static str {
        match (&self.xdp, self.choice) {
            (_, Choice::None) => "none",
            (Some(_), _) if self.uplinks.iter().all(|u| u.mode != "user") => "xdp",
            _ => "user",
        }
    }

    /// What an operator must know.
    pub fn notes(&self) -> Vec<String> {
        let engine = self.xdp.iter().flat_map(|x| x.notes().iter().cloned());
        let slow = self.memory_note.iter().map(|why| {
            format!(
                "ATTENTION: there is no fast path; packets go through the software path alone, and stop when this process \
                 stops. {why}"
            )
        });
        slow.chain(self.notes.iter().cloned()).chain(engine).collect()
    }

    /// The uplinks as they are now.
    pub fn uplinks(&self) -> Vec<Uplink> {
        let now = |u: &Uplink| match interface(&u.name) {
            Ok(i) => Uplink { up: i.up, mtu: i.mtu, ..u.clone() },
            Err(_) => Uplink { up: false, ..u.clone() },
        };
        self.uplinks.iter().map(now).collect()
    }

    /// Software workers that run.
    pub fn workers(&self) -> u32 {
        self.threads.len() as u32
    }

    /// Serves these uplinks from now on. What is served already goes on without a gap on the fast path. An uplink that does not exist
    /// is noted and served when it appears (see [`DataPlane::refresh`]).
    pub fn serve(&mut self, service: Service) -> Result<(), NodeError> {
        if service == self.service && !self.threads.is_empty() {
            return Ok(());
        }
        self.check_engine(&service)?;
        self.service = service;
        self.apply()
    }

    /// Which of these interfaces are not there, by their place in the list, and what the system says.
    pub fn absent(&self, names: &[String]) -> Vec<(usize, String)> {
        if self.choice == Choice::None {
            return Vec::new();
        }
        names.iter().enumerate().filter_map(|(at, name)| Some((at, interface(name).err()?.to_string()))).collect()
    }

    /// The MTU of those of these interfaces that are there, with their numbers.
    pub fn mtus<'n>(&self, names: &'n [String]) -> Vec<(usize, &'n str, u32)> {
        if self.choice == Choice::None {
            return Vec::new();
        }
        names.iter().enumerate().filter_map(|(at, name)| Some((at, name.as_str(), interface(name).ok()?.mtu))).collect()
    }

    /// Refuses an engine that this node cannot give: whoever asks for XDP wants to hear that there is none.
    fn check_engine(&self, service: &Service) -> Result<(), NodeError> {
        let demands = |engine| !matches!(engine, Engine::Auto | Engine::AfPacket);
        let demanded = service.uplinks.iter().map(|name| service.engine_of(name)).find(|engine| demands(*engine));
        let named = demanded.and_then(|engine| Engine::ALL.into_iter().find(|(_, e)| *e == engine));
        match (&self.memory_note, named) {
            (Some(why), Some((engine, _))) => Err(NodeError::NoFastPath { engine, why: why.clone() }),
            _ => Ok(()),
        }
    }

    /// Looks whether uplinks have come, gone or been replaced, and serves what is there.
    pub fn refresh(&mut self) -> Result<(), NodeError> {
        let now: Vec<_> =
            self.service.uplinks.iter().filter_map(|n| interface(n).ok()).map(|i| (i.name, i.ifindex)).collect();
        if self.choice == Choice::None || now == self.served {
            return Ok(());
        }
        self.apply()
    }

    fn apply(&mut self) -> Result<(), NodeError> {
        self.notes.clear();
        let mut interfaces = Vec::new();
        for name in &self.service.uplinks {
            match interface(name) {
                Ok(i) => interfaces.push(i),
                Err(e) => {
                    self.notes.push(format!("uplink {name} is not there ({e}); it is served as soon as it appears"))
                }
            }
        }
        if self.choice == Choice::None {
            self.uplinks = interfaces.into_iter().map(|i| uplink(&i, "none")).collect();
            return Ok(());
        }
        self.leave(&interfaces);
        for i in &interfaces {
            if self.service.inline || self.service.towards_others(&i.name) {
                let refused = |source| NodeError::Uplink { name: i.name.clone(), what: "promiscuous mode", source };
                crate::uplinks::promiscuous(&i.name).map_err(refused)?;
            }
        }
        // Where an earlier program forwards, the first port's is exchanged before the second one's: it must be able to send out of
        // all of them at once.
        self.silence(&interfaces)?;
        let fast =
            |name: &String| self.service.engine_of(name) != Engine::AfPacket && !self.service.tuns.contains(name);
        if let Some(xdp) = self.xdp.as_ref().filter(|_| interfaces.iter().any(|i| fast(&i.name))) {
            // VMs come and go: each needs a slot that one before it has left.
            xdp.keep_ports(&interfaces.iter().map(|i| i.ifindex).collect::<Vec<_>>())?;
            for i in interfaces.iter().filter(|i| fast(&i.name)) {
                add_port(xdp, &self.service, i)?;
            }
        }
        // Before the first program is attached, so that each packet that it punts finds a listener: until the workers run it waits in
        // the ring. The workers of earlier ports go on meanwhile.
        let mut sockets = Sockets::default();
        for i in &interfaces {
            self.listen(i, &mut sockets.punts);
        }
        // A socket is bound in the way of the program's mode, and the port gets another number: theirs are opened anew.
        let changed: Vec<&Interface> = interfaces.iter().filter(|i| self.changes_mode(i)).collect();
        self.listening.retain(|(ifindex, _)| changed.iter().all(|i| i.ifindex != *ifindex));
        let tap = self.open_punt_tap(&interfaces)?;
        // Whatever fails from here on, the next try looks for itself.
        self.punt_tap = false;
        let mut modes = Vec::new();
        for i in &interfaces {
            let mode = self.attach(i)?;
            modes.push(mode);
        }
        self.served = interfaces.iter().map(|i| (i.name.clone(), i.ifindex)).collect();
        self.uplinks = interfaces.iter().zip(&modes).map(|(i, mode)| uplink(i, mode)).collect();
        let user =
            interfaces.iter().zip(&modes).any(|(i, mode)| *mode == "user" && !self.service.towards_others(&i.name));
        self.silencer = None;
        if user && !self.service.inline {
            // Before the workers: so the kernel is never heard in between.
            match Silencer::new(&self.service.vteps, self.service.port) {
                Ok(silencer) => self.silencer = Some(silencer),
                Err(e) => self.notes.push(format!(
                    "the kernel may answer \"port unreachable\" to packets that the gateway serves, because its VXLAN port \
                     could not be bound ({e}); is another VXLAN device in this network namespace?"
                )),
            }
        }
        let listening = std::mem::take(&mut self.listening);
        for port in self.stop_workers() {
            match port {
                Port::Xdp(socket) if listening.contains(&(socket.ifindex(), socket.queue())) => {
                    sockets.punts.push(socket)
                }
                Port::Xdp(_) => {}
                Port::Tap(tap) => sockets.tap = Some(tap).filter(|_| wants_tap(&self.service, &interfaces)),
                Port::Packet(socket) => sockets.packets.push(socket),
            }
        }
        for i in changed {
            self.listen(i, &mut sockets.punts);
        }
        if tap.is_some() {
            sockets.tap = tap;
        }
        if let (Some(tap), Some(xdp)) = (&mut sockets.tap, &self.xdp) {
            tap.set_ports(xdp.slots()?);
        }
        self.start_workers(&interfaces, &modes, sockets)
    }

    /// Whether an interface's program is to run in another mode than now.
    fn changes_mode(&self, i: &Interface) -> bool {
        let attached = self.xdp.as_ref().and_then(|xdp| xdp.attached().into_iter().find(|a| a.ifindex == i.ifindex));
        // One of tc has no sockets.
        attached.is_some_and(|a| a.mode != xdp::Mode::Tc && !fits(self.service.engine_of(&i.name), a.mode))
    }

    /// Opens the way of the tc program's punts if a port is to be served so, and the workers have none.
    fn open_punt_tap(&mut self, interfaces: &[Interface]) -> Result<Option<PuntTap>, NodeError> {
        let Some(xdp) = self.xdp.as_mut().filter(|_| wants_tap(&self.service, interfaces) && !self.punt_tap) else {
            return Ok(None);
        };
        let tap = PuntTap::open().map_err(NodeError::system("making the TAP by which the tc program's punts come"))?;
        xdp.set_punt_port(tap.ifindex())?;
        Ok(Some(tap))
    }

    /// Opens a listener for the punts of each queue of an interface that has none. None where the fast path is not to be.
    fn listen(&mut self, i: &Interface, sockets: &mut Vec<PuntSocket>) {
        let engine = self.service.engine_of(&i.name);
        let fast = !matches!(engine, Engine::AfPacket | Engine::Tc) && !self.service.tuns.contains(&i.name);
        let Some(xdp) = self.xdp.as_ref().filter(|_| fast) else { return };
        let tables = Tables::new(self.memory.clone());
        for queue in (0..i.queues.min(xdp::QUEUES_MAX)).filter(|queue| !self.listening.contains(&(i.ifindex, *queue))) {
            // Without the socket the fast path still forwards: better than not to start at all.
            match PuntSocket::open(xdp, &tables, i.ifindex, queue) {
                Ok(socket) => sockets.push(socket),
                Err(e) => self.notes.push(format!(
                    "ATTENTION: queue {queue} of uplink {} has no software path, so its punts (ARP, ND, ICMP, \
                     options) are dropped as punt_no_listener. {e} \"No buffer space\" means: raise LimitMEMLOCK.",
                    i.name
                )),
            }
        }
    }

    /// The kernel is to see nothing of what comes by the TUN interfaces, and again what comes by those that are none of the edge's any more.
    fn silence(&mut self, interfaces: &[Interface]) -> Result<(), NodeError> {
        let tuns: Vec<&Interface> = interfaces.iter().filter(|i| self.service.tuns.contains(&i.name)).collect();
        if tuns.is_empty() && self.silenced.is_none() {
            return Ok(());
        }
        let (program, silent) = match self.silenced.take() {
            Some(silenced) => silenced,
            None => {
                (xdp::IngressDrop::new().map_err(NodeError::system("loading the program that drops"))?, HashSet::new())
            }
        };
        for i in tuns.iter().filter(|i| !silent.contains(&i.ifindex)) {
            let refused = |source| NodeError::Uplink { name: i.name.clone(), what: "tc ingress", source };
            program.attach(i.ifindex).map_err(refused)?;
        }
        let now: HashSet<IfIndex> = tuns.iter().map(|i| i.ifindex).collect();
        for ifindex in silent.difference(&now) {
            // An interface that is gone has no filter either.
            let _ = program.detach(*ifindex);
        }
        self.silenced = Some((program, now));
        Ok(())
    }

    /// Takes the fast path off ports that are no uplinks any more.
    fn leave(&mut self, interfaces: &[Interface]) {
        let Some(xdp) = &mut self.xdp else { return };
        for port in xdp.attached() {
            if !interfaces.iter().any(|i| i.ifindex == port.ifindex) {
                if let Err(e) = xdp.detach(port.ifindex) {
                    self.notes.push(format!("leaving interface {}: {e}", port.ifindex));
                }
            }
        }
    }

    /// Attaches the fast path to an uplink, if it can be. Returns the mode.
    fn attach(&mut self, i: &Interface) -> Result<&'static str, NodeError> {
        let tun = self.service.tuns.contains(&i.name);
        let Some(xdp) = self.xdp.as_mut().filter(|_| !tun) else { return Ok("user") };
        let engine = self.service.engine_of(&i.name);
        let how = match engine {
            Engine::AfPacket => {
                // The fast path of an earlier configuration, or process, must not take the packets away. None there: fine.
                let _ = xdp.detach(i.ifindex);
                return Ok("user");
            }
            Engine::Tc => {
                return Ok(xdp.attach_tc(i.ifindex)?.mode.name());
            }
            Engine::Auto => xdp::Attach::NativeElseGeneric,
            Engine::Native => xdp::Attach::Native,
            Engine::Generic => xdp::Attach::Generic,
        };
        let mut attached = xdp.attach(i.ifindex, how);
        if attached.as_ref().is_ok_and(|a| !fits(engine, a.mode)) {
            xdp.detach(i.ifindex)?;
            add_port(xdp, &self.service, i)?;
            attached = xdp.attach(i.ifindex, how);
        }
        match attached {
            Ok(attached) => {
                self.notes.extend(attached.note);
                Ok(attached.mode.name())
            }
            Err(e) if engine == Engine::Auto && self.choice == Choice::Auto => {
                self.notes.push(format!(
                    "ATTENTION: uplink {} has no fast path; its packets go through the software path alone. {e}",
                    i.name
                ));
                Ok("user")
            }
            Err(e) => Err(NodeError::Uplink { name: i.name.clone(), what: "XDP", source: std::io::Error::other(e) }),
        }
    }

    fn start_workers(
        &mut self,
        interfaces: &[Interface],
        modes: &[&str],
        mut sockets: Sockets,
    ) -> Result<(), NodeError> {
        let tables = Tables::new(self.memory.clone());
        let (slots, xdp_slots) = tables.slots();
        let count = self.workers.min(slots.saturating_sub(xdp_slots));
        self.shared.stop = Arc::new(AtomicBool::new(false));
        let mut ports: Vec<Vec<Port>> = (0..count).map(|_| Vec::new()).collect();
        for (i, _) in interfaces.iter().zip(modes).filter(|(_, mode)| **mode == "user") {
            let refused = |source| NodeError::Uplink { name: i.name.clone(), what: "AF_PACKET", source };
            let mut open = sockets.packets_of(i.ifindex);
            if open.len() != ports.len() {
                // A number that two nodes on one port do not share.
                let fanout = (count > 1).then_some((std::process::id() ^ i.ifindex.0 << 8) as u16);
                open = (0..count)
                    .map(|_| PacketSocket::open(i.ifindex, fanout))
                    .collect::<Result<_, _>>()
                    .map_err(refused)?;
            }
            let edge = self.service.towards_others(&i.name);
            for (list, mut socket) in ports.iter_mut().zip(open) {
                socket.keep_tags(edge);
                if self.service.tuns.contains(&i.name) {
                    socket.without_headers();
                }
                list.push(Port::Packet(socket));
            }
        }
        let fast: Vec<IfIndex> =
            interfaces.iter().zip(modes).filter(|(_, mode)| **mode != "user").map(|(i, _)| i.ifindex).collect();
        let punts: Vec<PuntSocket> =
            sockets.punts.into_iter().filter(|socket| fast.contains(&socket.ifindex())).collect();
        self.worker_flows.clear();
        let listening = punts.iter().map(|socket| (socket.ifindex(), socket.queue())).collect();
        for socket in punts {
            ports[socket.queue() as usize % count as usize].push(Port::Xdp(socket));
        }
        // All that tc punts comes by one device, so that one worker has it.
        let tap = sockets.tap.is_some();
        if let (Some(list), Some(tap)) = (ports.first_mut(), sockets.tap) {
            list.push(Port::Tap(tap));
        }
        let egress = || -> Result<Vec<PacketSocket>, NodeError> {
            let open = |i: &Interface| {
                let refused = |source| NodeError::Uplink { name: i.name.clone(), what: "AF_PACKET", source };
                let mut socket = PacketSocket::egress(i.ifindex).map_err(refused)?;
                if self.service.tuns.contains(&i.name) {
                    socket.without_headers();
                }
                Ok(socket)
            };
            interfaces.iter().map(open).collect()
        };
        let of_shaper = egress()?.into_iter().map(|s| (s.ifindex, s)).collect();
        self.shared.shaping.serve(of_shaper).map_err(NodeError::system("starting the shaper's thread"))?;
        for (number, list) in ports.into_iter().enumerate() {
            let slot = xdp_slots + number as u32;
            let gateway = match &self.connections {
                Some(nat) => Gateway::with_connections(tables.clone(), slot, nat.clone()),
                None => Gateway::new(tables.clone(), slot),
            };
            let gateway = gateway.with_controls(self.controls.clone());
            // What the fast path punts has no use of a cache.
            let gateway = match self.flow_lines {
                lines if lines > 0 && modes.contains(&"user") => {
                    let cache = FlowCache::new(lines, crate::daemon::salt());
                    let cache = cache.map_err(NodeError::system("reserving a flow cache"))?;
                    self.worker_flows.push(cache.used());
                    gateway.with_flow_cache(cache)
                }
                _ => gateway,
            };
            let worker = Worker::new(gateway, list, egress()?, self.shared.clone());
            let thread = std::thread::Builder::new().name(format!("tunny-worker{number}")).spawn(move || worker.run());
            self.threads.push(thread.map_err(NodeError::system("starting a worker thread"))?);
        }
        self.listening = listening;
        self.punt_tap = tap;
        Ok(())
    }

    /// Ends the workers; returns their sockets. What comes in meanwhile waits in them.
    fn stop_workers(&mut self) -> Vec<Port> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut ports = Vec::new();
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(sockets) => ports.extend(sockets),
                Err(_) => tracing::error!("a software worker ended by a panic; please report it"),
            }
        }
        ports
    }

    /// Ends the software workers. The fast path goes on.
    pub fn stop(&mut self) {
        self.stop_workers();
        self.stop_shaping();
    }

    /// What waits for its turn is lost, and that is said. No worker counts meanwhile.
    fn stop_shaping(&mut self) {
        let (lost, by_vpc) = self.shared.shaping.stop();
        let tables = Tables::new(self.memory.clone());
        let stats = tables.stats(tables.slots().1);
        self.shared.shaping.take_unsent().count(&tables, stats);
        lost.count(stats, DropReason::ShapedLost);
        for (vni, n) in by_vpc {
            // No room among the counters by VPC: counted by reason alone.
            let _ = tables.add_drops(vni, DropReason::ShapedLost, n);
            tracing::warn!(
                "{n} packets of VNI {vni} waited for the rate of their line or VM and are lost (shaped_lost)"
            );
        }
    }
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Sockets for the next workers.
#[derive(Default)]
struct Sockets {
    punts: Vec<PuntSocket>,
    tap: Option<PuntTap>,
    packets: Vec<PacketSocket>,
}

impl Sockets {
    /// Takes out those that serve a whole interface.
    fn packets_of(&mut self, ifindex: IfIndex) -> Vec<PacketSocket> {
        let (of, others) = std::mem::take(&mut self.packets).into_iter().partition(|socket| socket.ifindex == ifindex);
        self.packets = others;
        of
    }
}

/// Whether a port is to be served by tc.
fn wants_tap(service: &Service, interfaces: &[Interface]) -> bool {
    interfaces.iter().any(|i| service.engine_of(&i.name) == Engine::Tc)
}

/// Gives a port its slot, of those for its kind.
fn add_port(xdp: &XdpEngine, service: &Service, i: &Interface) -> Result<(), NodeError> {
    match service.vms.contains(&i.name) {
        true => xdp.add_vm_port(i.ifindex)?,
        false => xdp.add_port(i.ifindex)?,
    };
    Ok(())
}

/// Whether a port may stay in a mode when this engine is wanted.
fn fits(engine: Engine, mode: xdp::Mode) -> bool {
    match engine {
        Engine::Native => mode == xdp::Mode::Native,
        Engine::Generic => mode == xdp::Mode::Generic,
        Engine::Tc => mode == xdp::Mode::Tc,
        Engine::Auto => mode != xdp::Mode::Tc,
        Engine::AfPacket => true,
    }
}

fn uplink(i: &Interface, mode: &str) -> Uplink {
    let Interface { name, ifindex, mtu, up, queues } = i.clone();
    Uplink { name, ifindex: ifindex.0, mode: mode.to_string(), queues, mtu, up }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_caches_leave_half_of_the_memory_that_is_free() {
        assert_eq!(
            [(8 << 20, 2), (8 << 20, 128), (1023, 1)].map(|(free, caches)| most_flow_mib(free, caches)),
            [2048, 32, 0]
        );
        // A host with much memory and many CPUs: 2 GiB each.
        assert_eq!(most_flow_mib(u64::MAX, 128), 2047);
        let lines = |text: &str| flow_lines(text.parse().unwrap(), true, 1).ok();
        assert_eq!((lines("off"), lines("0"), lines("1")), (Some(0), Some(0), Some(16_384)));
        // The default is some, and never more than one part of 32 of the memory.
        let auto = u64::from(lines("auto").unwrap()) * 64 * u64::from(xdp::possible_cpus().unwrap_or(1));
        assert!(auto > 0 && auto <= nix::sys::sysinfo::sysinfo().unwrap().ram_total() / 32, "{auto}");
        assert!(["", "on", "-1", "64M", "4294967296"].iter().all(|text| text.parse::<FlowCacheSize>().is_err()));
    }
}
