// SPDX-License-Identifier: Apache-2.0
//! A region of processes for benches: `tunny controller` and `tunny node`, each with its own folder, TLS between them.
//!
//! The nodes have no ports (`--engine none`): their tables lie in memory of their own, no packet comes. What is measured is therefore the
//! way of a change from `apply` to the tables and back, and no share of it is forwarding's. `tunny` is the program that lies beside this one.

pub mod change;
mod client;
pub mod crowd;
pub mod load;
pub mod repair;

use crate::snapshot::{self, document};
use crate::workload::Workload;
use crate::Error;
pub use client::Link;
use controller::types::{Made, NodeView};
use hyper::Method;
use node::tls::{Address, Remote};
use node::types::ApplyReport;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What must come comes within so long, or the bench has failed.
const PATIENCE: Duration = Duration::from_secs(600);
/// Between two looks at how nodes stand, where seconds are measured.
const LOOK: Duration = Duration::from_millis(20);

/// A process, which ends with this.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
}

impl Daemon {
    /// Starts one, and waits until it says that it listens.
    fn start(tunny: &Path, dir: &Path, words: &[&str]) -> Result<Daemon, Error> {
        Daemon::start_in(None, tunny, dir, words)
    }

    /// The same in a network namespace.
    pub(crate) fn start_in(
        ns: Option<&crate::netns::Netns>,
        tunny: &Path,
        dir: &Path,
        words: &[&str],
    ) -> Result<Daemon, Error> {
        let mut command = ns.map_or_else(|| Command::new(tunny), |ns| ns.command(tunny));
        command.args(words).current_dir(dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(Error::io("starting tunny"))?;
        let Some(stderr) = child.stderr.take() else { return Err(Error::failed("starting tunny")("no log")) };
        let mut daemon = Daemon { child };
        let (mut lines, mut said) = (BufReader::new(stderr), String::new());
        while !said.contains("listening on") {
            if lines.read_line(&mut said).map_err(Error::io("reading the log of tunny"))? == 0 {
                let _ = daemon.child.wait();
                return Err(Error::Failed { what: format!("tunny {}", words.join(" ")), why: said });
            }
        }
        std::thread::spawn(move || lines.lines().map_while(Result::ok).for_each(drop));
        Ok(daemon)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Seconds of CPU time that it has used.
    pub fn cpu_s(&self) -> f64 {
        cpu_seconds(Path::new(&format!("/proc/{}/stat", self.id())))
    }

    /// Bytes of memory that it has now (`VmRSS`), or had at most (`VmHWM`).
    pub fn memory(&self, which: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with(which)).unwrap_or("");
        line.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) << 10
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Seconds of CPU time that the `stat` of a process or thread tells.
fn cpu_seconds(file: &Path) -> f64 {
    let stat = std::fs::read_to_string(file).unwrap_or_default();
    // Behind the name, which may have blanks: the 12th and 13th words are ticks of a hundredth.
    let words: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |at: usize| words.get(at).and_then(|w| w.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

/// A region that runs.
pub struct Rig {
    dir: tempfile::TempDir,
    tunny: PathBuf,
    port: u16,
    /// The controller.
    pub controller: Daemon,
    /// The nodes.
    pub nodes: Vec<Daemon>,
    /// In which connections live.
    pub runtime: tokio::runtime::Runtime,
    /// The operator's connection.
    pub operator: Link,
}

/// The program that lies beside this one, or above the folder of tests.
pub fn tunny() -> Result<PathBuf, Error> {
    let own = std::env::current_exe().map_err(Error::io("finding this program"))?;
    let near = own.ancestors().skip(1).take(2).map(|folder| folder.join("tunny"));
    { near }.find(|path| path.is_file()).ok_or_else(|| Error::Failed {
        what: "finding tunny".into(),
        why: format!("it is not beside {}", own.display()),
    })
}

fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::io("starting a runtime"))
}

fn remote(dir: &Path, port: u16, who: &str) -> Result<Remote, Error> {
    let file = |end: &str| dir.join(format!("{who}.{end}"));
    let address = Address {
        url: format!("https://localhost:{port}"),
        ca: dir.join("region/ca.crt"),
        identity: Some((file("crt"), file("key"))),
        token: None,
    };
    Remote::new(&address).map_err(Error::failed("reading credentials"))
}

impl Rig {
    /// A controller, and for each cluster so many nodes, which are not started yet.
    pub fn begin(clusters: &[(String, usize)]) -> Result<Rig, Error> {
        let tunny = tunny()?;
        let dir = tempfile::tempdir().map_err(Error::io("making a folder"))?;
        let listener = TcpListener::bind("127.0.0.1:0").map_err(Error::io("finding a port"))?;
        let port = listener.local_addr().map_err(Error::io("finding a port"))?.port();
        drop(listener);
        let listen = format!("127.0.0.1:{port}");
        let words = ["controller", "init", "region", "--region", "bench", "--listen", &listen];
        let out = Command::new(&tunny).args(words).current_dir(dir.path()).output();
        let out = out.map_err(Error::io("starting tunny"))?;
        if !out.status.success() {
            let why = String::from_utf8_lossy(&out.stderr).into();
            return Err(Error::Failed { what: "tunny controller init".into(), why });
        }
        let controller = Daemon::start(&tunny, dir.path(), &["controller", "--config", "region/controller.yaml"])?;
        let runtime = runtime()?;
        let operator = runtime.block_on(Link::open(&remote(dir.path(), port, "region/operator")?))?;
        let rig = Rig { dir, tunny, port, controller, nodes: Vec::new(), runtime, operator };
        rig.apply(members(clusters))?;
        Ok(rig)
    }

    /// The same, with its nodes.
    pub fn start(clusters: &[(String, usize)]) -> Result<Rig, Error> {
        let mut rig = Rig::begin(clusters)?;
        for name in names(clusters) {
            rig.credential(&name)?;
            let url = format!("https://localhost:{}", rig.port);
            let instance = format!("bench{}-{name}", std::process::id());
            let (socket, state) = (format!("{name}.sock"), format!("{name}.state"));
            let (cert, key) = (format!("{name}.crt"), format!("{name}.key"));
            let own = ["node", "--instance", &instance, "--engine", "none", "--no-config", "--socket", &socket];
            let from =
                ["--state", &state, "--controller", &url, "--ca", "region/ca.crt", "--cert", &cert, "--key", &key];
            rig.nodes.push(Daemon::start(&rig.tunny, rig.dir.path(), &[&own[..], &from[..]].concat())?);
        }
        let all = rig.nodes.len();
        rig.wait("nodes", LOOK, |nodes| nodes.iter().filter(|n| n.state == "current").count() == all)?;
        Ok(rig)
    }

    /// Gives a node a certificate.
    pub fn credential(&self, role: &str) -> Result<(), Error> {
        let wanted = format!("{{\"role\":\"{role}\",\"sort\":\"certificate\",\"days\":1}}");
        let made: Made = self.runtime.block_on(self.operator.json(Method::POST, "/v1/credentials", wanted))?;
        let write = |end: &str, text: String| {
            let path = self.dir.path().join(format!("{role}.{end}"));
            std::fs::write(path, text).map_err(Error::io("writing a credential"))
        };
        write("crt", made.certificate)?;
        write("key", made.key)
    }

    /// Where a node listens.
    pub fn socket(&self, node: &str) -> PathBuf {
        self.dir.path().join(format!("{node}.sock"))
    }

    /// How the controller is spoken to as somebody.
    pub fn remote(&self, who: &str) -> Result<Remote, Error> {
        remote(self.dir.path(), self.port, who)
    }

    /// Makes documents what the region should be.
    pub fn apply(&self, documents: impl Into<hyper::body::Bytes>) -> Result<ApplyReport, Error> {
        self.runtime.block_on(self.operator.json(Method::POST, "/v1/apply", documents))
    }

    /// How nodes stand.
    pub fn views(&self) -> Result<Vec<NodeView>, Error> {
        self.runtime.block_on(self.operator.json(Method::GET, "/v1/nodes", ""))
    }

    /// Waits until nodes stand as expected.
    pub fn wait(&self, what: &str, pause: Duration, is: impl Fn(&[NodeView]) -> bool) -> Result<(), Error> {
        let begun = Instant::now();
        loop {
            let views = self.views()?;
            if is(&views) {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                let states: Vec<_> = views.iter().map(|n| format!("{} {} {:?}", n.name, n.state, n.errors)).collect();
                return Err(Error::Failed { what: format!("waiting for {what}"), why: states.join(", ") });
            }
            std::thread::sleep(pause);
        }
    }

    /// Kills the controller and starts it again: seconds until it answers.
    pub fn restart(&mut self) -> Result<f64, Error> {
        let id = self.controller.child.kill().and_then(|()| self.controller.child.wait());
        id.map_err(Error::io("ending the controller"))?;
        let begun = Instant::now();
        let words = ["controller", "--config", "region/controller.yaml"];
        self.controller = Daemon::start(&self.tunny, self.dir.path(), &words)?;
        let remote = self.remote("region/operator")?;
        self.operator = self.runtime.block_on(Link::open(&remote))?;
        self.views()?;
        Ok(begun.elapsed().as_secs_f64())
    }
}

/// Names of the nodes of clusters.
pub fn names(clusters: &[(String, usize)]) -> impl Iterator<Item = String> + '_ {
    clusters.iter().flat_map(|(cluster, nodes)| (1..=*nodes).map(move |n| format!("{cluster}{n}")))
}

/// The documents of clusters and their nodes, each with its Role.
fn members(clusters: &[(String, usize)]) -> String {
    let mut text = String::new();
    for (n, (cluster, nodes)) in clusters.iter().enumerate() {
        let address = format_args!("\"addresses\":[\"198.18.{}.{}\"]", n / 250, n % 250 + 1).to_string();
        document(&mut text, "Cluster", Some(cluster), format_args!("{address}"));
        for name in (1..=*nodes).map(|n| format!("{cluster}{n}")) {
            document(&mut text, "Node", Some(&name), format_args!("\"cluster\":\"{cluster}\""));
            document(&mut text, "Role", Some(&name), format_args!("\"access\":\"node\",\"node\":\"{name}\""));
        }
    }
    text
}

/// The documents of a workload as a region has them: a Tenant for each group of VPCs that are peers, by turns in each cluster.
pub fn documents(workload: &Workload, clusters: &[(String, usize)]) -> String {
    let text = snapshot::ndjson(workload);
    // A Gateway is a matter of one machine.
    let mut text = text.split_once('\n').map_or(String::new(), |(_, rest)| rest.to_string());
    for group in 0..workload.vpcs / 4 {
        let vpcs: Vec<String> = (0..4).map(|n| format!("\"v{}\"", group * 4 + n)).collect();
        let cluster = &clusters[group as usize % clusters.len()].0;
        let spec = format!("\"vpcs\":[{}],\"cluster\":\"{cluster}\"", vpcs.join(","));
        document(&mut text, "Tenant", Some(&format!("t{group}")), format_args!("{spec}"));
    }
    text
}

/// VPCs of the region: 100,000, or what `TUNNY_REGION_VPCS` says, each with ten routes and ten VMs.
pub fn size() -> u32 {
    std::env::var("TUNNY_REGION_VPCS").ok().and_then(|n| n.parse().ok()).map_or(100_000, |n: u32| (n / 4).max(1) * 4)
}
