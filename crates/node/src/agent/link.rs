// SPDX-License-Identifier: Apache-2.0
//! [`AgentLink`]: keeps a node connected to its agent on another host: connects, proves who it is, carries what both say, and begins anew when the
//! connection ends. An agent from which nothing comes for [`SILENCE`] is gone.

use super::frame::{self, Opener, Sealer, Secrets, Side, HELLO, PROOF};
use conntrack_compact::remote::EndsLog;
use conntrack_compact::Remote;
use parking_lot::Mutex;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Nothing comes for so long: the agent is gone. It answers a question every [`PING`].
pub const SILENCE: Duration = Duration::from_secs(2);
/// Time that a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(1);
/// Time between two questions whether it is there.
const PING: Duration = Duration::from_millis(500);
/// Time between two attempts to connect: doubled from the first to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Bytes that are sent at once.
const BURST: usize = 64 << 10;

/// Where the agent is, and the file with the key that it shares with the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Address and port.
    pub address: SocketAddr,
    /// The key file.
    pub key: PathBuf,
}

/// A connection that is kept.
pub struct AgentLink {
    target: Target,
    remote: Arc<Remote>,
    stop: Arc<AtomicBool>,
    trouble: Arc<Mutex<Option<String>>>,
    /// The connection that stands, to end it.
    stream: Arc<Mutex<Option<TcpStream>>>,
    thread: Option<JoinHandle<()>>,
}

/// What hears of an agent.
pub struct Hearers {
    /// Of each connection that ends.
    pub ends: EndsLog,
    /// Each time the agent is there again and the table is what it says.
    pub up: Box<dyn Fn() + Send + Sync>,
}

impl AgentLink {
    /// Begins to connect.
    pub fn start(target: Target, remote: Arc<Remote>, hearers: Hearers) -> std::io::Result<AgentLink> {
        let (stop, trouble, stream) =
            (Arc::<AtomicBool>::default(), Arc::<Mutex<Option<String>>>::default(), Arc::default());
        let keep = Keep {
            target: target.clone(),
            remote: remote.clone(),
            hearers,
            stop: stop.clone(),
            trouble: trouble.clone(),
            stream: Arc::clone(&stream),
        };
        let thread = std::thread::Builder::new().name("tunny-agent".into()).spawn(move || keep.run())?;
        Ok(AgentLink { target, remote, stop, trouble, stream, thread: Some(thread) })
    }

    /// Where it leads.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The node's side of the agent.
    pub fn remote(&self) -> &Arc<Remote> {
        &self.remote
    }

    /// Why the agent is not there; None if it is, or nothing has gone wrong yet.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }
}

impl Drop for AgentLink {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(stream) = &*self.stream.lock() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.remote.disconnected();
        if let Some(thread) = self.thread.take() {
            if thread.join().is_err() {
                tracing::error!("the thread that talks to the agent failed; please report it");
            }
        }
    }
}

struct Keep {
    target: Target,
    remote: Arc<Remote>,
    hearers: Hearers,
    stop: Arc<AtomicBool>,
    trouble: Arc<Mutex<Option<String>>>,
    stream: Arc<Mutex<Option<TcpStream>>>,
}

impl Keep {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn run(&self) {
        let mut pause = RETRY.0;
        while !self.stopped() {
            let mut was_up = false;
            let why = self.session(&mut was_up).err().unwrap_or_else(|| "it closed the connection".into());
            self.remote.disconnected();
            if self.stopped() {
                return;
            }
            let address = self.target.address;
            let mut said = self.trouble.lock();
            if was_up || said.as_ref() != Some(&why) {
                tracing::warn!(
                    "the agent at {address} is not there: {why}. Established connections go on; others wait for it"
                );
            }
            *said = Some(why);
            drop(said);
            pause = if was_up { RETRY.0 } else { (pause * 2).min(RETRY.1) };
            let until = Instant::now() + pause;
            while !self.stopped() && Instant::now() < until {
                std::thread::sleep(RETRY.0);
            }
        }
    }

    /// One connection, to its end.
    fn session(&self, was_up: &mut bool) -> Result<(), String> {
        let key = super::read_key(&self.target.key)?;
        let text = |e: std::io::Error| e.to_string();
        let mut stream = TcpStream::connect_timeout(&self.target.address, CONNECT).map_err(text)?;
        *self.stream.lock() = Some(stream.try_clone().map_err(text)?);
        if self.stopped() {
            return Ok(());
        }
        stream.set_nodelay(true).map_err(text)?;
        stream.set_read_timeout(Some(SILENCE)).map_err(text)?;
        stream.set_write_timeout(Some(SILENCE)).map_err(text)?;
        let secrets = greet(&mut stream, &key)?;
        let (sealer, opener) = (secrets.sealer(Side::Node), secrets.opener(Side::Agent));
        let writing = stream.try_clone().map_err(text)?;
        self.remote.connected();
        std::thread::scope(|scope| {
            scope.spawn(|| self.say(writing, sealer));
            let heard = self.hear(&mut stream, opener, was_up);
            // The other thread ends.
            let _ = stream.shutdown(Shutdown::Both);
            self.remote.disconnected();
            heard
        })
    }

    fn hear(&self, stream: &mut TcpStream, mut opener: Opener, was_up: &mut bool) -> Result<(), String> {
        let mut buffer = vec![0; BURST];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => opener.feed(&buffer[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                    return Err(format!("nothing came for {} s", SILENCE.as_secs()));
                }
                Err(e) => return Err(e.to_string()),
            }
            while let Some(chunk) = opener.next_chunk().map_err(|e| e.to_string())? {
                self.remote.receive(&chunk, &self.hearers.ends).map_err(|e| e.to_string())?;
                if !*was_up && self.remote.is_up() {
                    *was_up = true;
                    self.is_up();
                }
            }
        }
    }

    fn is_up(&self) {
        *self.trouble.lock() = None;
        let found = self.remote.recovered();
        tracing::info!(
            "the agent at {} judges control packets; in the table {} connections were mended, {} places cleared",
            self.target.address,
            found.mended,
            found.cleared
        );
        if found.lost > 0 {
            tracing::warn!("{} connections found no room in the state table", found.lost);
        }
        (self.hearers.up)();
    }

    /// Sends what is to be said, until the connection ends.
    fn say(&self, mut stream: TcpStream, mut sealer: Sealer) {
        let mut out = Vec::with_capacity(BURST);
        loop {
            out.clear();
            let Some(chunk) = self.remote.pop(PING) else {
                if self.remote.is_down() {
                    return;
                }
                self.remote.ping();
                continue;
            };
            sealer.seal(&chunk, &mut out);
            while out.len() < BURST {
                let Some(chunk) = self.remote.pop(Duration::ZERO) else { break };
                sealer.seal(&chunk, &mut out);
            }
            if stream.write_all(&out).is_err() {
                // The other thread hears of it.
                let _ = stream.shutdown(Shutdown::Both);
                return;
            }
        }
    }
}

/// The handshake, from the node's side.
pub fn greet(stream: &mut TcpStream, key: &[u8]) -> Result<Secrets, String> {
    let text = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::UnexpectedEof => {
            "it closed the connection during the greeting; has it the same key?".to_string()
        }
        _ => e.to_string(),
    };
    let mine = frame::hello(super::nonce().map_err(text)?);
    stream.write_all(&mine).map_err(text)?;
    let mut theirs = [0; HELLO];
    stream.read_exact(&mut theirs).map_err(text)?;
    frame::check(&theirs).map_err(|e| e.to_string())?;
    let secrets = Secrets::new(key, &mine, &theirs);
    let mut proof = [0; PROOF];
    stream.read_exact(&mut proof).map_err(text)?;
    secrets.check(Side::Agent, &proof).map_err(|e| e.to_string())?;
    stream.write_all(&secrets.proof(Side::Node)).map_err(text)?;
    Ok(secrets)
}
