// SPDX-License-Identifier: Apache-2.0
//! Up and down: the region with its processes, and what is left of it after a crash.

use crate::config;
use crate::fabric::FRR;
use crate::node::{self, Node, Place};
use crate::plan::{Names, BARES, VMS};
use crate::progress::Progress;
use crate::region::{self, Shape};
use crate::shell::Namespace;
use crate::state::{Process, State};
use crate::{interrupt, LabError};
use nix::fcntl::{Flock, FlockArg};
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What lab to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Tells labs on one machine apart; empty for the usual one.
    pub suffix: String,
    /// The `tunny` binary that runs as node.
    pub tunny: PathBuf,
    /// MTU of the underlay at first.
    pub mtu: u32,
    /// Uplinks of the gateway, 1 or 2; 0: other gateways take its place, as in the demo.
    pub uplinks: usize,
    /// `spec.engine` of the gateway.
    pub engine: String,
    /// Size of the gateway's flow caches, as `tunny node` takes it.
    pub flow_cache: String,
    /// Run `tunny node`; false builds everything but the gateway's process.
    pub node: bool,
    /// Leave everything up at the end of a demo.
    pub keep: bool,
    /// Show no progress.
    pub quiet: bool,
    /// Seconds of each TCP transfer.
    pub seconds: u32,
}

impl Options {
    /// The usual lab with this binary.
    pub fn new(tunny: PathBuf) -> Options {
        Options {
            suffix: String::new(),
            tunny,
            mtu: 1500,
            uplinks: 1,
            engine: "native".into(),
            flow_cache: "auto".into(),
            node: true,
            keep: false,
            quiet: false,
            seconds: 2,
        }
    }
}

/// A region that is up.
#[derive(Debug)]
pub struct Lab {
    /// Its names and size.
    pub shape: Shape,
    /// The gateway.
    pub node: Option<Node>,
    /// The filter node in front of the bare-metal servers.
    pub edge: Option<Node>,
    /// How it was made, and how its nodes are started again.
    pub options: Options,
    state: State,
    _lock: Flock<File>,
}

/// Removes what is left of this lab, then builds it anew and starts the gateway.
pub fn up(options: &Options, progress: &Progress) -> Result<Lab, LabError> {
    let names = Names::new(&options.suffix);
    check_machine(options.uplinks == 0)?;
    let lock = lock(&names)?;
    progress.step("what an earlier run left");
    region::remove(&names)?;
    let shape = Shape { names: names.clone(), mtu: options.mtu, uplinks: options.uplinks };
    let others = if options.uplinks == 0 { crate::controlled::namespaces(&names) } else { Vec::new() };
    let namespaces = shape.namespaces().into_iter().chain(others).map(|n| n.0).collect();
    let state = State { namespaces, processes: Vec::new(), mtu: options.mtu };
    state.save(&names.dir())?;
    let mut lab = Lab { shape, node: None, edge: None, options: options.clone(), state, _lock: lock };
    region::build(&lab.shape, progress)?;
    interrupt::check()?;
    names.write("region.yaml", config::yaml(options.uplinks, &options.engine))?;
    names.write("edge.yaml", config::edge_yaml(&options.engine))?;
    for vm in &VMS {
        lab.background(vm.name, &format!("iperf3 server of {}", vm.name), &["iperf3", "-s"])?;
    }
    for bare in &BARES {
        lab.background(bare.name, &format!("iperf3 server of {}", bare.name), &["iperf3", "-s"])?;
    }
    lab.background("inet", "iperf3 server on the Internet", &["iperf3", "-s"])?;
    crate::internet::start_web(&mut lab)?;
    if options.node {
        mount_bpffs()?;
        if options.uplinks > 0 {
            progress.step("gateway: tunny node");
            lab.start_node()?;
            lab.check_engine(lab.node()?, options.uplinks)?;
        }
        progress.step("filter in front of bare metal: tunny node");
        lab.start_edge()?;
        lab.check_engine(lab.edge()?, 2 * BARES.len())?;
    }
    Ok(lab)
}

/// The node pins its program and tables in the BPF file system, which systemd mounts and a container does not.
fn mount_bpffs() -> Result<(), LabError> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounted =
        mounts.lines().any(|l| l.split(' ').nth(1) == Some("/sys/fs/bpf") && l.split(' ').nth(2) == Some("bpf"));
    if mounted {
        return Ok(());
    }
    crate::shell::run("mount -t bpf bpf /sys/fs/bpf").map(drop)
}

impl Lab {
    /// Starts the gateway's process, again if it ran before.
    pub fn start_node(&mut self) -> Result<(), LabError> {
        let place = Place::gateway(&self.shape.names).with_flow_cache(&self.options.flow_cache);
        self.node = Some(self.start(&place)?);
        Ok(())
    }

    /// Starts the filter node's process, again if it ran before.
    pub fn start_edge(&mut self) -> Result<(), LabError> {
        self.edge = Some(self.start(&Place::edge(&self.shape.names))?);
        Ok(())
    }

    /// Starts a node that ends with the lab.
    pub(crate) fn start(&mut self, place: &Place) -> Result<Node, LabError> {
        let node = node::start(&self.options.tunny, &self.shape.names, place)?;
        self.remember(node.process.clone())?;
        Ok(node)
    }

    /// XDP in native mode where that was asked for: a demonstration on anything less would mislead.
    pub(crate) fn check_engine(&self, node: &Node, ports: usize) -> Result<(), LabError> {
        if self.options.engine != "native" {
            return Ok(());
        }
        let status = node.status()?;
        let modes: Vec<&str> =
            status["uplinks"].as_array().into_iter().flatten().filter_map(|u| u["mode"].as_str()).collect();
        if modes.len() == ports && modes.iter().all(|m| *m == "native") {
            return Ok(());
        }
        let warnings: Vec<&str> =
            status["warnings"].as_array().into_iter().flatten().filter_map(|w| w.as_str()).collect();
        Err(LabError::Node(format!(
            "the node does not run XDP in native mode ({}): {}",
            modes.join(", "),
            warnings.join(" ")
        )))
    }

    /// The gateway, or an error that says that there is none.
    pub fn node(&self) -> Result<&Node, LabError> {
        self.node.as_ref().ok_or_else(|| LabError::Node("this lab runs without `tunny node`".into()))
    }

    /// The filter node, or an error that says that there is none.
    pub fn edge(&self) -> Result<&Node, LabError> {
        self.edge.as_ref().ok_or_else(|| LabError::Node("this lab runs without `tunny node`".into()))
    }

    /// A program in the background of a namespace of the lab, ended with it.
    pub fn background(&mut self, namespace: &str, what: &str, argv: &[&str]) -> Result<Process, LabError> {
        let log = self.shape.names.dir().join(format!("{}.log", what.replace(' ', "-")));
        let child = self.shape.names.namespace(namespace).spawn(argv, &log)?;
        let process = Process::record(what, child.id());
        self.remember(process.clone())?;
        // A thread waits for it, so that it does not stay behind as a zombie while this process lives.
        std::thread::spawn(move || drop({ child }.wait()));
        Ok(process)
    }

    /// The same with a command whose words are its own.
    pub(crate) fn begin(&mut self, namespace: &str, what: &str, argv: &[String]) -> Result<Process, LabError> {
        self.background(namespace, what, &argv.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn remember(&mut self, process: Process) -> Result<(), LabError> {
        self.state.processes.push(process);
        self.state.save(&self.shape.names.dir())
    }

    /// Changes the MTU of the whole region.
    pub fn set_mtu(&mut self, mtu: u32) -> Result<(), LabError> {
        region::set_mtu(&mut self.shape, mtu)?;
        self.state.mtu = mtu;
        self.state.save(&self.shape.names.dir())
    }

    /// Removes all of it.
    pub fn down(self) -> Result<(), LabError> {
        remove_all(&self.shape.names).map(drop)
    }
}

/// How to call a program from here: by its name if it is installed, else by its path.
fn command_name(program: &Path) -> String {
    let installed = ["/usr/bin", "/usr/sbin", "/usr/local/bin"].iter().any(|d| program.parent() == Some(Path::new(d)));
    let short = match installed {
        true => program.file_name().map(Path::new),
        false => std::env::current_dir().ok().and_then(|here| program.strip_prefix(here).ok()),
    };
    short.unwrap_or(program).display().to_string()
}

/// How to call `tunny`, and `tunny-lab lab` for this lab.
pub(crate) fn commands(options: &Options) -> (String, String) {
    let own = std::env::current_exe().unwrap_or_else(|_| options.tunny.with_file_name("tunny-lab"));
    let mut lab = format!("{} lab", command_name(&own));
    if !options.suffix.is_empty() {
        lab += &format!(" --suffix {}", options.suffix);
    }
    (command_name(&options.tunny), lab)
}

/// How to look around in a lab that is up.
pub fn look_around(options: &Options) -> String {
    let names = Names::new(&options.suffix);
    let instance = names.instance();
    let enter = |what: &str| format!("nsenter --net={}", names.namespace(what).path().display());
    let (tunny, lab) = commands(options);
    format!(
        "The region stays up. To look around:\n\
         \x20 {}  ping 10.1.0.11        # blue-1 to red-1 (peered)\n\
         \x20 {}  ping 10.2.0.12        # blue-1 to green-2 (not peered)\n\
         \x20 {}  bridge fdb show dev vx100   # a host: one default entry, to the gateway\n\
         \x20 {}  tcpdump -ni to-gw0 udp port 4789   # what passes the gateway\n\
         \x20 {tunny} --instance {instance} top          # rates, drops, load\n\
         \x20 {tunny} --instance {instance} get counters # every packet accounted for\n\
         \x20 {lab} status   # files in {}\n\
         To remove all of it: {lab} down",
        enter("blue-1"),
        enter("blue-1"),
        enter("nc-a"),
        enter("net"),
        names.dir().display(),
    )
}

/// Removes everything of the lab with this suffix; returns what was there, in words.
pub fn down(suffix: &str) -> Result<Vec<String>, LabError> {
    let names = Names::new(suffix);
    root()?;
    let _lock = lock(&names)?;
    remove_all(&names)
}

/// What of a lab is there.
#[derive(Debug, Serialize)]
pub struct Status {
    /// Brought up, and not removed since.
    pub up: bool,
    /// MTU of the underlay; 0: down.
    pub mtu: u32,
    /// Where its files are.
    pub files: PathBuf,
    /// Its namespaces.
    pub namespaces: Vec<NamespaceStatus>,
    /// What it has started.
    pub processes: Vec<ProcessStatus>,
}

/// A namespace of a lab.
#[derive(Debug, Serialize)]
pub struct NamespaceStatus {
    /// Its name.
    pub name: String,
    /// Whether it is there.
    pub there: bool,
}

/// A process that a lab has started.
#[derive(Debug, Serialize)]
pub struct ProcessStatus {
    /// What it does.
    pub name: String,
    /// Process id.
    pub pid: i32,
    /// Whether it runs.
    pub there: bool,
}

/// What of the lab with this suffix is there.
pub fn status(suffix: &str) -> Status {
    let names = Names::new(suffix);
    let state = State::load(&names.dir());
    let up = state.is_some();
    let State { processes, mtu, namespaces } = state.unwrap_or_default();
    Status {
        up,
        mtu,
        files: names.dir(),
        namespaces: namespaces
            .into_iter()
            .map(|name| NamespaceStatus { there: Namespace(name.clone()).exists(), name })
            .collect(),
        processes: processes
            .iter()
            .map(|p| ProcessStatus { name: p.what.clone(), pid: p.pid, there: p.alive() })
            .collect(),
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.up {
            return writeln!(f, "The lab is down.");
        }
        writeln!(f, "The lab is up, underlay MTU {}; files in {}.", self.mtu, self.files.display())?;
        for NamespaceStatus { name, there } in &self.namespaces {
            writeln!(f, "namespace {name:<16} {}", if *there { "up" } else { "missing" })?;
        }
        for ProcessStatus { name, pid, there } in &self.processes {
            writeln!(f, "process {pid:<7} {name:<24} {}", if *there { "runs" } else { "ended" })?;
        }
        Ok(())
    }
}

fn lock_path(names: &Names) -> PathBuf {
    PathBuf::from("/run/tunny").join(format!("{}.lock", names.instance()))
}

/// One lab of a name at a time.
fn lock(names: &Names) -> Result<Flock<File>, LabError> {
    use std::os::unix::fs::MetadataExt;
    let path = lock_path(names);
    let fail = |source| LabError::File { path: path.clone(), source };
    std::fs::create_dir_all("/run/tunny").map_err(fail)?;
    loop {
        let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(fail)?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| {
            LabError::Node(format!(
                "another `tunny-lab lab` is at work ({} is locked): wait for it, or end it",
                path.display()
            ))
        })?;
        // Whoever removes a lab removes the file too: what we hold must still be the file of that name.
        let held = lock.metadata().map_err(fail)?.ino();
        if std::fs::metadata(&path).is_ok_and(|m| m.ino() == held) {
            return Ok(lock);
        }
    }
}

/// Removes everything of this name, the lock included; returns what was there, in words.
pub fn remove_all(names: &Names) -> Result<Vec<String>, LabError> {
    let removed = region::remove(names)?;
    let path = lock_path(names);
    match std::fs::remove_file(&path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(LabError::File { path, source }),
        _ => Ok(removed),
    }
}

fn root() -> Result<(), LabError> {
    if nix::unistd::geteuid().is_root() {
        Ok(())
    } else {
        Err(LabError::NotRoot)
    }
}

/// Root, and every program that the lab calls; `demo`: also those of the demonstration.
fn check_machine(demo: bool) -> Result<(), LabError> {
    root()?;
    let more: &[_] = if demo { &[("bgpd", "frr"), ("gobgpd", "gobgpd"), ("tc", "iproute2")] } else { &[] };
    for &(program, package) in [
        ("ip", "iproute2"),
        ("bridge", "iproute2"),
        ("ethtool", "ethtool"),
        ("nsenter", "util-linux"),
        ("ping", "iputils-ping"),
        ("iperf3", "iperf3"),
        ("nginx", "nginx-light"),
        ("curl", "curl"),
    ]
    .iter()
    .chain(more)
    {
        let found = ["/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/bin", "/usr/local/sbin", FRR]
            .iter()
            .any(|d| std::path::Path::new(d).join(program).exists());
        if !found {
            return Err(LabError::Node(format!(
                "`{program}` is not installed: run `make deps`, or `apt-get install {package}`"
            )));
        }
    }
    Ok(())
}

/// How long a node may take to end when asked.
pub const STOP_PATIENCE: Duration = Duration::from_secs(3);
