// SPDX-License-Identifier: Apache-2.0
//! `tunny agent`: judges control packets for nodes on other hosts, each with records of its own.
//!
//! A thread a node. A node that connects again takes the place of its former connection. What is answered is in the records, which
//! outlive the process, and a restart of the machine if the process ended in order before.

use super::frame::{self, FrameError, Opener, Sealer, Secrets, Side, HELLO, PROOF};
use super::keep::Kept;
use super::records::FileSlots;
use super::strangers::{Strangers, Until};
use crate::counters::monotonic_ns;
use crate::error::NodeError;
use conntrack_compact::message::{Messages, Outbox, Request, Tell, NAME_MAX};
use conntrack_compact::{Backing, Host, Spec, Timeouts};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two looks at what is due, and whether the process is to end.
const TURN: Duration = Duration::from_millis(100);
/// Time that a handshake may take, and a node may take to read.
const PATIENCE: Duration = Duration::from_secs(2);
/// A node from which nothing comes for so long is gone; it asks more often whether the agent is there.
const SILENCE: Duration = Duration::from_secs(5);
/// Bytes that are sent at once.
const BURST: usize = 64 << 10;

/// How an agent is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens.
    pub listen: SocketAddr,
    /// The file with the key that it shares with its nodes.
    pub key: PathBuf,
    /// Folder of the records.
    pub records: PathBuf,
    /// Folder of what is kept of them over a restart of the machine; none: nothing is.
    pub state: Option<PathBuf>,
    /// Connections that one node may have, both kinds together.
    pub connections: u64,
    /// Nodes at most.
    pub nodes: usize,
}

/// A node, whether it is connected or not.
#[derive(Default)]
struct Served {
    host: Mutex<Option<Host>>,
    /// Number of its last connection; an earlier one ends when it sees this.
    last: AtomicU64,
}

struct Agent {
    options: Options,
    key: Vec<u8>,
    kept: Option<Kept>,
    nodes: Mutex<HashMap<String, Arc<Served>>>,
    strangers: Strangers,
    stop: Arc<AtomicBool>,
}

/// An agent that listens.
pub struct Listening {
    agent: Arc<Agent>,
    listener: TcpListener,
    _locks: Vec<std::fs::File>,
}

impl Listening {
    /// Listens; `stop` ends it.
    pub fn new(options: Options, stop: Arc<AtomicBool>) -> Result<Listening, NodeError> {
        let key = super::read_key(&options.key).map_err(NodeError::Agent)?;
        FileSlots::open(&options.records).map_err(NodeError::file("making the folder", &options.records))?;
        let mut locks = vec![locked(&options.records)?];
        let listener = TcpListener::bind(options.listen)
            .and_then(|l| l.set_nonblocking(true).map(|()| l))
            .map_err(|e| NodeError::Agent(format!("it cannot listen on {}: {e}", options.listen)))?;
        // An agent that can keep nothing is better than none.
        let kept = options.state.as_ref().and_then(|dir| match Kept::open(dir, &key) {
            Ok(kept) => Some(kept),
            Err(e) => {
                tracing::warn!("a restart of this machine will lose the connections of all nodes: the folder {} cannot be had: {e}", dir.display());
                None
            }
        });
        if let (Some(kept), Some(dir)) = (&kept, &options.state) {
            // One folder for both has its lock already.
            if dir.canonicalize().ok() != options.records.canonicalize().ok() {
                locks.push(locked(dir)?);
            }
            match kept.clean() {
                Ok(0) => {}
                Ok(n) => tracing::info!(
                    "{n} files in {} were too old to be used, or never whole: they are gone",
                    dir.display()
                ),
                Err(e) => tracing::warn!("old files in {} cannot be taken away: {e}", dir.display()),
            }
        }
        let agent = Agent { options, key, kept, nodes: Mutex::default(), strangers: Strangers::default(), stop };
        Ok(Listening { agent: Arc::new(agent), listener, _locks: locks })
    }

    /// Where it listens.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until it is told to stop.
    pub fn run(self) {
        let mut threads = Vec::new();
        let mut number = 0;
        while !self.agent.stop.load(Ordering::Acquire) {
            match self.listener.accept() {
                Ok((stream, from)) => {
                    number += 1;
                    if let Some(thread) = self.agent.begin(stream, from, number) {
                        threads.push(thread);
                    }
                    threads.retain(|t: &std::thread::JoinHandle<()>| !t.is_finished());
                }
                // Nobody there; or a connection that ended before it began, or no descriptors, which is tried again.
                Err(_) => {
                    self.agent.strangers.tell();
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
        threads.into_iter().for_each(|thread| {
            let _ = thread.join();
        });
        self.agent.keep();
    }
}

/// Two agents on one folder would write over each other.
fn locked(dir: &Path) -> Result<std::fs::File, NodeError> {
    let at = dir.join("lock");
    let lock = std::fs::File::create(&at).map_err(NodeError::file("making", &at))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(_) => Err(NodeError::Agent(format!("another agent uses the folder {}", dir.display()))),
    }
}

/// Seconds since 1970.
fn time_of_day() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

impl Agent {
    fn begin(
        self: &Arc<Agent>,
        stream: TcpStream,
        from: SocketAddr,
        number: u64,
    ) -> Option<std::thread::JoinHandle<()>> {
        if let Err(e) = self.strangers.enter(number, from, &stream) {
            self.strangers.note(from, e.to_string());
            return None;
        }
        let agent = self.clone();
        let body = move || agent.connection(stream, from, number);
        match std::thread::Builder::new().name("tunny-node".into()).spawn(body) {
            Ok(thread) => Some(thread),
            Err(e) => {
                self.strangers.leave(number);
                self.strangers.note(from, format!("no thread for it: {e}"));
                None
            }
        }
    }

    fn connection(&self, stream: TcpStream, from: SocketAddr, number: u64) {
        let opened = self.open(&stream);
        self.strangers.leave(number);
        match opened {
            Err(why) => self.strangers.note(from, why),
            Ok(opened) => {
                if let Err(why) = self.node(stream, opened, number) {
                    tracing::warn!("the connection of {from} ends: {why}");
                }
            }
        }
    }

    /// One that has proved to be a node.
    fn node(&self, stream: TcpStream, opened: Opened, number: u64) -> Result<(), String> {
        let Opened { name, spec, timeouts, sealer, opener, rest } = opened;
        let mut wire = Wire { stream, sealer, out: Vec::with_capacity(BURST) };
        match self.served(&name, &spec) {
            Ok(served) => {
                served.last.fetch_max(number, Ordering::AcqRel);
                // The former connection of this node ends within a turn.
                let mut place = served.host.lock();
                if served.last.load(Ordering::Acquire) != number {
                    return Ok(());
                }
                let result = self.host(&mut place, &name, &spec, timeouts).map_err(|why| wire.refuse(why));
                if let (Ok(()), Some(host)) = (result, place.as_mut()) {
                    tracing::info!("node {name} is served: {} connections", host.connections());
                    host.connected(timeouts);
                    let ended =
                        self.serve(host, &mut wire, opener, rest, &|| served.last.load(Ordering::Acquire) != number);
                    host.gone();
                    tracing::info!("node {name} is gone: {} connections are kept", host.connections());
                    return ended;
                }
                Ok(())
            }
            Err(why) => Err(wire.refuse(why)),
        }
    }

    /// Handshake and the first message.
    fn open(&self, tcp: &TcpStream) -> Result<Opened, String> {
        let text = |e: std::io::Error| e.to_string();
        tcp.set_nonblocking(false).map_err(text)?;
        tcp.set_nodelay(true).map_err(text)?;
        let mut stream = Until::new(tcp, PATIENCE);
        let secrets = self.greet(&mut stream)?;
        let (sealer, mut opener) = (secrets.sealer(Side::Agent), secrets.opener(Side::Node));
        let mut buffer = vec![0; 4096];
        let first = loop {
            if let Some(chunk) = opener.next_chunk().map_err(|e| e.to_string())? {
                break chunk;
            }
            let n = stream.read(&mut buffer).map_err(text)?;
            if n == 0 {
                return Err("it said nothing".into());
            }
            opener.feed(&buffer[..n]);
        };
        let mut messages = Messages::of(&first);
        let Some(Request::Open { name, spec, timeouts }) = messages.next_request().map_err(|e| e.to_string())? else {
            return Err("its first message does not say who it is".into());
        };
        let mut rest = Vec::new();
        while let Some(request) = messages.next_request().map_err(|e| e.to_string())? {
            rest.push(request);
        }
        tcp.set_write_timeout(Some(PATIENCE)).map_err(text)?;
        Ok(Opened { name, spec, timeouts, sealer, opener, rest })
    }

    fn greet(&self, stream: &mut Until) -> Result<Secrets, String> {
        let text = |e: std::io::Error| e.to_string();
        let mut theirs = [0; HELLO];
        stream.read_exact(&mut theirs).map_err(text)?;
        let known = frame::check(&theirs);
        if known == Err(FrameError::Magic) {
            return Err(FrameError::Magic.to_string());
        }
        let mine = frame::hello(super::nonce().map_err(text)?);
        stream.write_all(&mine).map_err(text)?;
        // One of another version has learned this one.
        known.map_err(|e| e.to_string())?;
        let secrets = Secrets::new(&self.key, &theirs, &mine);
        stream.write_all(&secrets.proof(Side::Agent)).map_err(text)?;
        let mut proof = [0; PROOF];
        stream.read_exact(&mut proof).map_err(text)?;
        secrets.check(Side::Node, &proof).map_err(|e| e.to_string())?;
        Ok(secrets)
    }

    /// The node of this name, if there may be one.
    fn served(&self, name: &str, spec: &Spec) -> Result<Arc<Served>, String> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > NAME_MAX || name.starts_with('.') || !name.chars().all(fits) {
            return Err(format!(
                "`{}` is no name of a node: letters, digits, '-', '_' and '.', not first",
                name.escape_debug()
            ));
        }
        let most = self.options.connections;
        if spec.connections == 0 || spec.registers == 0 || spec.all() > most {
            return Err(format!(
                "it may have 1 to {most} connections and wants {}: raise --connections of the agent",
                spec.all()
            ));
        }
        let mut nodes = self.nodes.lock();
        if !nodes.contains_key(name) && nodes.len() >= self.options.nodes {
            return Err(format!("{} nodes are served already: raise --nodes of the agent", nodes.len()));
        }
        Ok(nodes.entry(name.to_string()).or_default().clone())
    }

    /// The records of this node, as large as its table is.
    fn host(&self, place: &mut Option<Host>, name: &str, spec: &Spec, timeouts: Timeouts) -> Result<(), String> {
        if place.as_ref().is_some_and(|host| host.spec() == spec) {
            return Ok(());
        }
        // One writer a memory.
        *place = None;
        let dir = self.options.records.join(name);
        let slots = FileSlots::open(&dir).map_err(|e| failed(&dir, &e))?;
        let half_read = self.kept.as_ref().is_some_and(|kept| kept.is_half_read(name));
        if half_read {
            slots.clear(abi::STATES_SLOT_RECORDS).map_err(|e| failed(&dir, &e))?;
        }
        let come_back = match &self.kept {
            Some(kept) if half_read || slots.left(abi::STATES_SLOT_RECORDS).is_none() => {
                kept.begin(name).map_err(|e| not_kept(name, &e))?
            }
            _ => false,
        };
        let mut host = Host::open(&slots, *spec, crate::daemon::salt(), timeouts).map_err(|e| failed(&dir, &e))?;
        if let Some(kept) = &self.kept {
            if come_back && host.is_new() {
                let now = monotonic_ns();
                match kept.read(name, time_of_day(), &mut |key, connection| host.restore(&key, &connection, now)) {
                    Ok(n) => {
                        let known = host.connections();
                        tracing::info!(
                            "node {name}: {known} of {n} connections of before this agent's last end are known again"
                        );
                    }
                    Err(why) => {
                        // Some may have been taken in before the disk failed.
                        drop(host);
                        slots.clear(abi::STATES_SLOT_RECORDS).map_err(|e| failed(&dir, &e))?;
                        host =
                            Host::open(&slots, *spec, crate::daemon::salt(), timeouts).map_err(|e| failed(&dir, &e))?;
                        tracing::warn!("node {name} begins without connections: its file in the folder of the state is not used: {why}");
                    }
                }
            }
            // What has been read, or is behind the records, must not come back.
            kept.forget(name).map_err(|e| not_kept(name, &e))?;
        }
        *place = Some(host);
        Ok(())
    }

    /// Keeps what is known of all nodes for a start after a restart of the machine.
    fn keep(&self) {
        let Some(kept) = &self.kept else { return };
        for (name, served) in self.nodes.lock().iter() {
            let place = served.host.lock();
            let Some(host) = place.as_ref() else { continue };
            match kept.write(name, host.list(), time_of_day()) {
                Ok(n) => tracing::info!("node {name}: {n} connections are kept"),
                Err(e) => {
                    tracing::warn!("node {name}: its connections are not kept, and end if this machine restarts: {e}")
                }
            }
        }
    }

    /// Answers, until the connection ends.
    fn serve(
        &self,
        host: &mut Host,
        wire: &mut Wire,
        mut opener: Opener,
        rest: Vec<Request>,
        replaced: &dyn Fn() -> bool,
    ) -> Result<(), String> {
        let text = |e: std::io::Error| e.to_string();
        wire.stream.set_read_timeout(Some(TURN)).map_err(text)?;
        rest.iter().for_each(|request| host.request(request, monotonic_ns()));
        let (mut turned, mut heard, mut buffer) = (Instant::now(), Instant::now(), vec![0; BURST]);
        loop {
            wire.flush(host).map_err(text)?;
            match wire.stream.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => {
                    heard = Instant::now();
                    opener.feed(&buffer[..n]);
                }
                Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.to_string()),
            }
            let now = monotonic_ns();
            while let Some(chunk) = opener.next_chunk().map_err(|e| e.to_string())? {
                let mut messages = Messages::of(&chunk);
                while let Some(request) = messages.next_request().map_err(|e| e.to_string())? {
                    host.request(&request, now);
                }
                // What is to be said stays within what was asked at once.
                wire.flush(host).map_err(text)?;
            }
            if turned.elapsed() >= TURN {
                turned = Instant::now();
                host.turn(now);
                if self.stop.load(Ordering::Acquire) || replaced() {
                    return Ok(());
                }
                if heard.elapsed() > SILENCE {
                    return Err(format!("nothing came for {} s", SILENCE.as_secs()));
                }
            }
        }
    }
}

fn not_kept(name: &str, e: &std::io::Error) -> String {
    format!("the file in which its connections were kept cannot be taken away ({name}): {e}")
}

fn failed(dir: &Path, e: &dyn std::fmt::Display) -> String {
    format!("its records in {} cannot be had: {e}", dir.display())
}

struct Opened {
    name: String,
    spec: Spec,
    timeouts: Timeouts,
    sealer: Sealer,
    opener: Opener,
    rest: Vec<Request>,
}

struct Wire {
    stream: TcpStream,
    sealer: Sealer,
    out: Vec<u8>,
}

impl Wire {
    /// Sends all that the host has to say, a bounded part at a time.
    fn flush(&mut self, host: &mut Host) -> std::io::Result<()> {
        loop {
            self.out.clear();
            while self.out.len() < BURST {
                let Some(chunk) = host.pop() else { break };
                self.sealer.seal(&chunk, &mut self.out);
            }
            if self.out.is_empty() {
                return Ok(());
            }
            self.stream.write_all(&self.out)?;
        }
    }

    /// Tells a node why it is not served.
    fn refuse(&mut self, why: String) -> String {
        let mut say = Outbox::default();
        say.tell(&Tell::Refused(why.clone()));
        self.out.clear();
        if let Some(chunk) = say.pop() {
            self.sealer.seal(&chunk, &mut self.out);
        }
        // It may be gone already.
        let _ = self.stream.write_all(&self.out);
        why
    }
}

/// Runs an agent until SIGTERM or SIGINT.
pub fn run(options: Options) -> Result<(), NodeError> {
    let stop = Arc::<AtomicBool>::default();
    let listening = Listening::new(options, stop.clone())?;
    tracing::info!(
        "listening on {}; records in {}",
        listening.agent.options.listen,
        listening.agent.options.records.display()
    );
    let serving = std::thread::spawn(move || listening.run());
    crate::daemon::until_told()?;
    stop.store(true, Ordering::Release);
    if serving.join().is_err() {
        tracing::error!("the agent failed; please report it");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// 400 connections that say nothing and 100 that say nonsense, over and over: a node is served all the same, and the agent ends in order.
    #[test]
    fn strangers_keep_no_node_out() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        std::fs::write(&key, [b'k'; 32]).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let stop = Arc::<AtomicBool>::default();
        let listen = "127.0.0.1:0".parse().unwrap();
        let options =
            Options { listen, key, records: dir.path().join("records"), state: None, connections: 1000, nodes: 1 };
        let listening = Listening::new(options, stop.clone()).unwrap();
        let (address, agent) = (listening.address().unwrap(), listening.agent.clone());
        let serving = std::thread::spawn(move || listening.run());
        let mut idle: Vec<TcpStream> = Vec::new();
        for i in 0..500 {
            let mut stream = TcpStream::connect(address).unwrap();
            if i % 5 == 0 {
                let _ = stream.write_all(&[b'x'; 100]);
            }
            idle.push(stream);
            assert!(agent.strangers.len() <= super::super::strangers::STRANGERS_MAX);
        }
        for _ in 0..20 {
            // More of them while the node says who it is.
            idle.extend((0..5).map(|_| TcpStream::connect(address).unwrap()));
            let begun = Instant::now();
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let secrets = super::super::link::greet(&mut stream, &[b'k'; 32]).expect("a node is let in");
            let mut say = Outbox::default();
            let t = 1 << 40;
            let timeouts =
                Timeouts { opening: t, established: t, probed: t, closing: t, time_wait: t, plain: t, one_sided: t };
            say.request(&Request::Open {
                name: "node".into(),
                spec: Spec::new(conntrack_compact::TableKind::Digest, 100, 10),
                timeouts,
            });
            let mut out = Vec::new();
            secrets.sealer(Side::Node).seal(&say.pop().unwrap(), &mut out);
            stream.write_all(&out).unwrap();
            assert!(stream.read(&mut [0; 100]).unwrap() > 0, "it is answered");
            assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        }
        assert!(agent.nodes.lock().contains_key("node"));
        stop.store(true, Ordering::Release);
        drop(idle);
        serving.join().unwrap();
    }

    #[test]
    fn two_agents_share_neither_folder_and_one_that_can_keep_nothing_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        std::fs::write(&key, [b'k'; 32]).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let listening = |records: &str, state: &str| {
            let [records, state] = [records, state].map(|name| dir.path().join(name));
            let listen = "127.0.0.1:0".parse().unwrap();
            let options = Options { listen, key: key.clone(), records, state: Some(state), connections: 100, nodes: 1 };
            Listening::new(options, Arc::default())
        };
        let first = listening("a", "state").unwrap();
        assert!(first.agent.kept.is_some());
        for (records, state, of) in [("a", "other", "a"), ("b", "state", "state")] {
            let why = listening(records, state).err().unwrap().to_string();
            assert!(
                why.contains("another agent uses") && why.contains(&dir.path().join(of).display().to_string()),
                "{why}"
            );
        }
        drop(first);
        listening("b", "state").unwrap();
        assert!(listening("both", "both").unwrap().agent.kept.is_some());
        // No folder can be made below a file.
        assert!(listening("a", "key/state").unwrap().agent.kept.is_none());
    }
}
