// SPDX-License-Identifier: Apache-2.0
//! A region in network namespaces that lives as long as a test. Tests of one file take turns, since each region is worth a machine.
#![allow(dead_code)] // Each test file is a crate of its own and uses what it needs.

pub mod connections;
pub mod layout;
pub mod other;
pub mod site;

use lab::plan::Names;
use lab::progress::Progress;
use lab::shell::Namespace;
use lab::{Lab, Options};
use node::client::Client;
use node::types::ApplyReport;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long what must come may take.
const PATIENCE: Duration = Duration::from_secs(20);

static TURN: Mutex<()> = Mutex::new(());

/// A region that is removed when the test ends, also by a panic.
pub struct Region {
    pub lab: Option<Lab>,
    pub names: Names,
    _turn: MutexGuard<'static, ()>,
}

impl std::ops::Deref for Region {
    type Target = Lab;
    fn deref(&self) -> &Lab {
        self.lab.as_ref().expect("up until the end")
    }
}

impl std::ops::DerefMut for Region {
    fn deref_mut(&mut self) -> &mut Lab {
        self.lab.as_mut().expect("up until the end")
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the node's last words:\n{}", lab::node::tail(&self.names.dir().join("node.log")));
            if let Some(Ok(counters)) = self.lab.as_ref().and_then(|l| l.node.as_ref()).map(|n| n.counters()) {
                eprintln!("the node's counters: {counters:?}");
            }
        }
        self.lab = None;
        if let Err(error) = lab::lifecycle::remove_all(&self.names) {
            eprintln!("removing the region: {error}");
        }
    }
}

/// A region for a test, with a name of its own.
pub fn options(name: &str) -> Options {
    Options {
        suffix: format!("{name}{}", std::process::id()),
        flow_cache: "4".into(),
        quiet: true,
        seconds: 1,
        ..Options::new(PathBuf::from(env!("CARGO_BIN_EXE_tunny")))
    }
}

/// Waits for the turn to have a region.
pub fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

/// Brings it up; `None`: not root; the test is skipped.
#[track_caller]
pub fn region_with(options: &Options) -> Option<Region> {
    if !skip::have_root("to make network namespaces") {
        return None;
    }
    let turn = turn();
    let names = Names::new(&options.suffix);
    match lab::up(options, &Progress::new(true)) {
        Ok(lab) => Some(Region { lab: Some(lab), names, _turn: turn }),
        Err(error) => {
            lab::lifecycle::remove_all(&names).unwrap();
            panic!("the region did not come up: {error}");
        }
    }
}

#[track_caller]
pub fn region(name: &str) -> Option<Region> {
    region_with(&options(name))
}

impl Region {
    /// One of its network namespaces.
    pub fn ns(&self, what: &str) -> Namespace {
        self.names.namespace(what)
    }

    /// The node's API.
    pub fn client(&self) -> Client {
        Client::new(&lab::node::socket(&self.names)).unwrap()
    }

    /// The filter node's API.
    pub fn edge_client(&self) -> Client {
        Client::new(&lab::node::Place::edge(&self.names).socket).unwrap()
    }

    /// Applies documents at the filter node.
    pub fn apply_at_edge(&self, text: &str) {
        let mut body = Vec::new();
        node::body::write_document(&mut body, "test.yaml", text.as_bytes());
        let report: ApplyReport = self.edge_client().post("/v1/apply", body).unwrap();
        assert!(report.committed, "{}", report.text);
    }

    /// Packets that the node dropped for a reason.
    pub fn drops(&self, reason: &str) -> u64 {
        self.node().unwrap().counters().unwrap().drops.get(reason).copied().unwrap_or(0)
    }

    /// The program, against the region's node.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tunny"));
        command.arg("--socket").arg(lab::node::socket(&self.names)).args(args);
        command
    }

    /// Runs it; what it wrote.
    pub fn tunny(&self, args: &[&str]) -> String {
        let out = self.command(args).output().unwrap();
        assert!(out.status.success(), "tunny {args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    /// Sessions that these filters choose.
    pub fn get(&self, filters: &[&str]) -> Vec<Value> {
        let text = self.tunny(&[&["get", "sessions", "-o", "json"], filters].concat());
        serde_json::from_str(&text).unwrap()
    }

    /// Applies documents.
    pub fn apply(&self, text: &str) {
        let file = self.names.dir().join("change.yaml");
        std::fs::write(&file, text).unwrap();
        self.tunny(&["apply", "--yes", file.to_str().unwrap()]);
    }

    /// The node's Gateway with another session log.
    pub fn log_to(&self, place: &str) {
        self.change_gateway(|spec| spec["sessions"]["log"] = place.into());
    }

    /// An IPFIX collector where the node is, to which the node tells its sessions from now on.
    pub fn collector(&self) -> UdpSocket {
        let socket = inside(&self.names.namespace("gw"), || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            socket
        });
        let socket = socket.join().unwrap();
        self.log_to(&format!("ipfix:{}", socket.local_addr().unwrap()));
        socket
    }
}

/// Polls until there is something.
pub fn wait<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    wait_for(what, PATIENCE, look)
}

/// The same of what takes several programs their time.
pub fn wait_long<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    wait_for(what, 6 * PATIENCE, look)
}

fn wait_for<T>(what: &str, patience: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < patience, "{what}: it did not come");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Runs something in a namespace: only the thread that this makes enters it, and ends there.
pub fn inside<T: Send + 'static>(ns: &Namespace, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let path = ns.path();
    std::thread::spawn(move || {
        let namespace = std::fs::File::open(path).unwrap();
        nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        work()
    })
}

/// A data record of IPFIX: its template, and what it says by information element.
pub type Told = (u16, BTreeMap<u16, u128>);

/// The data records of the next message that a collector gets, if one comes soon.
pub fn heard(socket: &UdpSocket) -> Vec<Told> {
    let mut buffer = [0; 2048];
    let Ok(n) = socket.recv(&mut buffer) else { return Vec::new() };
    let message = &buffer[..n];
    let u16_at = |at: usize| u16::from_be_bytes([message[at], message[at + 1]]);
    assert_eq!((u16_at(0), usize::from(u16_at(2))), (10, message.len()), "version and length");
    let (mut at, mut templates, mut found) = (16, BTreeMap::<u16, Vec<(u16, usize)>>::new(), Vec::new());
    while at + 4 <= message.len() {
        let (id, end) = (u16_at(at), at + usize::from(u16_at(at + 2)));
        if id == 2 {
            let fields = usize::from(u16_at(at + 6));
            let list = (0..fields).map(|i| (u16_at(at + 8 + 4 * i), usize::from(u16_at(at + 10 + 4 * i))));
            templates.insert(u16_at(at + 4), list.collect());
        } else {
            let fields = &templates[&id];
            let size: usize = fields.iter().map(|(_, n)| n).sum();
            for record in message[at + 4..end].chunks_exact(size) {
                let mut rest = record;
                let value = |(id, n): &(u16, usize)| {
                    let (field, behind) = rest.split_at(*n);
                    rest = behind;
                    (*id, field.iter().fold(0, |v, b| v << 8 | u128::from(*b)))
                };
                found.push((id, fields.iter().map(value).collect()));
            }
        }
        at = end.max(at + 4);
    }
    found
}
