// SPDX-License-Identifier: Apache-2.0
//! The thread that listens to the kernel, feeds [`Core`], writes what it decides through a [`Sink`], and asks the kernel
//! to resolve neighbours. It works in the network namespace of the thread that calls [`Underlay::start`].

use crate::core::{Change, Core, Counts, NexthopSpec, Resolve, EAGER_INTERVAL_MS};
use crate::fib::TABLE_MAIN;
use crate::model::Snapshot;
use crate::netlink::{self, Parsed};
use crate::UnderlayError;
use netlink_sys::{protocols::NETLINK_ROUTE, Socket, SocketAddr};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Groups of rtnetlink: links, neighbours, addresses and routes of both families, nexthop objects.
const GROUPS: [u32; 7] = [1, 3, 5, 7, 9, 11, 32];
/// A burst of news is taken as one as long as its parts come within this time,
const BURST_GAP: Duration = Duration::from_millis(1);
/// but no longer than this.
const BURST_MAX: Duration = Duration::from_millis(10);
/// Time from a change of routes or links to the fresh dump that confirms it.
const RESYNC_DELAY: Duration = Duration::from_millis(100);
/// Time between dumps that nothing has asked for.
const RESYNC_PERIOD: Duration = Duration::from_secs(60);
/// A dump runs at most this share of the time: one part in so many.
const RESYNC_SHARE: u32 = 200;
/// Time between looks at neighbours that are missing.
const TICK: Duration = Duration::from_secs(1);
/// Receive buffer of the news socket, bytes.
const RECEIVE_BUFFER: usize = 8 << 20;
const MESSAGE_BUFFER: usize = 256 << 10;

/// Takes changes into the tables. One call is one burst; a result for each change, in order.
pub trait Sink {
    /// Applies the changes in order.
    fn apply(&mut self, changes: &[Change]) -> Vec<Result<(), String>>;
}

/// How to watch.
#[derive(Clone, Debug)]
pub struct Options {
    /// The routing table that leads to NCs (254 = main).
    pub table: u32,
    /// Receive buffer for news, bytes. What overflows it costs a fresh dump, no more.
    pub receive_buffer: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { table: TABLE_MAIN, receive_buffer: RECEIVE_BUFFER }
    }
}

/// What the watcher has seen and done.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Status {
    /// How many of everything.
    pub counts: Counts,
    /// News from the kernel so far.
    pub events: u64,
    /// Fresh dumps so far.
    pub resyncs: u64,
    /// Times that the kernel lost news to us, each followed by a dump.
    pub overruns: u64,
    /// Changes written to the tables so far.
    pub changes: u64,
    /// Changes that the tables refused; they are tried again.
    pub refused: u64,
    /// Requests for resolution that the kernel refused.
    pub resolve_errors: u64,
    /// The latest thing that went wrong, in words.
    pub last_error: Option<String>,
}

enum Command {
    AddNcs(Vec<IpAddr>),
    RemoveNcs(Vec<IpAddr>),
    Want(Vec<IpAddr>),
    Nexthops(Sender<Vec<(NexthopSpec, String)>>),
    Path(IpAddr, Sender<Vec<(NexthopSpec, u32)>>),
    Sync(Sender<()>),
    Stop,
}

/// The running watcher. Dropping it stops the thread; the tables, and the neighbours that the kernel keeps for us, stay.
#[derive(Debug)]
pub struct Underlay {
    commands: Sender<Command>,
    wake: UnixStream,
    status: Arc<Mutex<Status>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Underlay {
    /// Reads the kernel's state and starts to follow it.
    pub fn start(options: Options, sink: impl Sink + Send + 'static) -> Result<Underlay, UnderlayError> {
        let news = open("subscribe to routes and neighbours")?;
        nix::sys::socket::setsockopt(&borrow(&news), nix::sys::socket::sockopt::RcvBufForce, &options.receive_buffer)
            .or_else(|_| news.set_rx_buf_sz(options.receive_buffer as u32))
            .map_err(|e| UnderlayError::io("enlarge the netlink receive buffer", e))?;
        for group in GROUPS {
            news.add_membership(group).map_err(|e| UnderlayError::io("join a netlink group", e))?;
        }
        news.set_non_blocking(true).map_err(|e| UnderlayError::io("set up the netlink socket", e))?;
        let query = open("query routes and neighbours")?;
        let (wake, woken) = UnixStream::pair().map_err(|e| UnderlayError::io("make a wake-up socket", e))?;
        for end in [&wake, &woken] {
            end.set_nonblocking(true).map_err(|e| UnderlayError::io("set up the wake-up socket", e))?;
        }
        let (commands, inbox) = channel();
        let status = Arc::new(Mutex::new(Status::default()));
        let now = Instant::now();
        let mut watcher = Watcher {
            core: Core::new(options.table),
            sink,
            news,
            query,
            woken,
            inbox,
            status: status.clone(),
            sequence: 0,
            buffer: Vec::with_capacity(MESSAGE_BUFFER),
            started: now,
            resync_at: now,
            waiting: VecDeque::new(),
        };
        watcher.resync()?;
        let thread = std::thread::Builder::new()
            .name("tunny-underlay".into())
            .spawn(move || watcher.run())
            .map_err(|e| UnderlayError::io("start the underlay thread", e))?;
        Ok(Underlay { commands, wake, status, thread: Some(thread) })
    }

    fn tell(&self, command: Command) {
        // The thread ends only when told to; if it has, there is nobody to tell.
        let _ = self.commands.send(command);
        // A full socket already wakes the thread.
        let _ = (&self.wake).write(&[1]);
    }

    /// Follows the way to these NCs. The tables must know them already: call it after the commit that adds them.
    pub fn add_ncs(&self, ncs: Vec<IpAddr>) {
        self.tell(Command::AddNcs(ncs));
    }

    /// No longer follows these NCs. Call it after the commit that removes them.
    pub fn remove_ncs(&self, ncs: Vec<IpAddr>) {
        self.tell(Command::RemoveNcs(ncs));
    }

    /// The software path has packets for these NCs and no MAC address: resolve now.
    pub fn want(&self, ncs: Vec<IpAddr>) {
        self.tell(Command::Want(ncs));
    }

    /// Waits until everything told before is in the tables. False if that took longer than `timeout`.
    pub fn sync(&self, timeout: Duration) -> bool {
        let (done, wait) = channel();
        self.tell(Command::Sync(done));
        wait.recv_timeout(timeout).is_ok()
    }

    /// What was seen and done so far.
    pub fn status(&self) -> Status {
        self.status.lock().clone()
    }

    /// Every next hop with the name of its port.
    pub fn nexthops(&self) -> Vec<(NexthopSpec, String)> {
        let (answer, wait) = channel();
        self.tell(Command::Nexthops(answer));
        wait.recv_timeout(Duration::from_secs(2)).unwrap_or_default()
    }

    /// The next hops of an NC with their weights.
    pub fn path_of(&self, nc: IpAddr) -> Vec<(NexthopSpec, u32)> {
        let (answer, wait) = channel();
        self.tell(Command::Path(nc, answer));
        wait.recv_timeout(Duration::from_secs(2)).unwrap_or_default()
    }
}

impl Drop for Underlay {
    fn drop(&mut self) {
        self.tell(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn open(what: &'static str) -> Result<Socket, UnderlayError> {
    let mut socket = Socket::new(NETLINK_ROUTE).map_err(|e| UnderlayError::io(what, e))?;
    socket.bind_auto().map_err(|e| UnderlayError::io(what, e))?;
    Ok(socket)
}

struct Watcher<S> {
    core: Core,
    sink: S,
    news: Socket,
    query: Socket,
    woken: UnixStream,
    inbox: Receiver<Command>,
    status: Arc<Mutex<Status>>,
    sequence: u32,
    buffer: Vec<u8>,
    started: Instant,
    resync_at: Instant,
    waiting: VecDeque<Sender<()>>,
}

impl<S: Sink> Watcher<S> {
    fn run(mut self) {
        let mut tick_at = Instant::now();
        self.bring_up_to_date();
        loop {
            let wake_at = self.resync_at.min(tick_at + TICK);
            let eager = if self.core.waits() { Duration::from_millis(EAGER_INTERVAL_MS) } else { Duration::MAX };
            self.wait(wake_at.saturating_duration_since(Instant::now()).min(eager));
            let stop = self.take_commands();
            if stop {
                return;
            }
            self.take_news();
            if Instant::now() >= self.resync_at {
                if let Err(error) = self.resync() {
                    self.note(format!("{error}"));
                    self.resync_at = Instant::now() + TICK;
                }
            }
            if Instant::now() >= tick_at + TICK {
                tick_at = Instant::now();
                self.core.retry();
            }
            self.bring_up_to_date();
        }
    }

    fn wait(&self, timeout: Duration) {
        let news = borrow(&self.news);
        let mut fds = [
            PollFd::new(news, PollFlags::POLLIN),
            PollFd::new(std::os::fd::AsFd::as_fd(&self.woken), PollFlags::POLLIN),
        ];
        let timeout = PollTimeout::try_from(timeout + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        // EINTR and the like: the loop looks at everything anyway.
        let _ = poll(&mut fds, timeout);
    }

    fn take_commands(&mut self) -> bool {
        let mut scratch = [0; 64];
        while matches!((&self.woken).read(&mut scratch), Ok(n) if n > 0) {}
        while let Ok(command) = self.inbox.try_recv() {
            match command {
                Command::AddNcs(ncs) => ncs.into_iter().for_each(|nc| self.core.add_nc(nc)),
                Command::RemoveNcs(ncs) => ncs.into_iter().for_each(|nc| self.core.remove_nc(nc)),
                Command::Want(ncs) => ncs.into_iter().for_each(|nc| self.core.want(nc)),
                Command::Nexthops(answer) => drop(answer.send(self.core.nexthops())),
                Command::Path(nc, answer) => drop(answer.send(self.core.path_of(nc))),
                Command::Sync(done) => self.waiting.push_back(done),
                Command::Stop => return true,
            }
        }
        false
    }

    /// Reads news until there is a pause, or the burst has lasted long enough.
    fn take_news(&mut self) {
        let begun = Instant::now();
        let mut any = false;
        loop {
            self.buffer.clear();
            match self.news.recv(&mut self.buffer, 0) {
                Ok(_) => {
                    any = true;
                    let buffer = std::mem::take(&mut self.buffer);
                    self.digest(&buffer);
                    self.buffer = buffer;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if !any || begun.elapsed() >= BURST_MAX || !self.more_news(BURST_GAP) {
                        return;
                    }
                }
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => self.overrun(),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => {
                    self.note(format!("reading news from the kernel: {e}"));
                    return;
                }
            }
            if begun.elapsed() >= BURST_MAX {
                return;
            }
        }
    }

    fn more_news(&self, within: Duration) -> bool {
        let mut fds = [PollFd::new(borrow(&self.news), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(within).unwrap_or(PollTimeout::ZERO);
        matches!(poll(&mut fds, timeout), Ok(n) if n > 0)
    }

    fn digest(&mut self, bytes: &[u8]) {
        let mut count = 0;
        for (kind, flags, _, payload) in netlink::messages(bytes) {
            count += 1;
            match netlink::parse(kind, flags, payload) {
                Parsed::Event(event) => {
                    if self.core.event(event) {
                        self.resync_at = self.resync_at.min(Instant::now() + RESYNC_DELAY);
                    }
                }
                Parsed::Overrun => self.overrun(),
                Parsed::Done(_) | Parsed::Error(_) | Parsed::Skip => {}
            }
        }
        self.with_status(|s| s.events += count);
    }

    fn overrun(&mut self) {
        self.resync_at = Instant::now();
        self.with_status(|s| s.overruns += 1);
    }

    fn resync(&mut self) -> Result<(), UnderlayError> {
        let begun = Instant::now();
        let mut snapshot = Snapshot::default();
        for (kind, family) in [
            (netlink::RTM_GETLINK, 0),
            (netlink::RTM_GETNEIGH, 0),
            (netlink::RTM_GETROUTE, libc::AF_INET as u8),
            (netlink::RTM_GETROUTE, libc::AF_INET6 as u8),
        ] {
            self.dump(kind, family, &mut snapshot)?;
        }
        self.core.resync(snapshot);
        self.with_status(|s| s.resyncs += 1);
        let took = begun.elapsed();
        self.resync_at = Instant::now() + RESYNC_PERIOD.max(took * RESYNC_SHARE);
        Ok(())
    }

    /// One dump, again if the kernel says that it was disturbed.
    fn dump(&mut self, kind: u16, family: u8, into: &mut Snapshot) -> Result<(), UnderlayError> {
        for attempt in 0.. {
            let mut part = Snapshot::default();
            let disturbed = self.dump_once(kind, family, &mut part)?;
            if !disturbed || attempt == 3 {
                into.links.append(&mut part.links);
                into.neighbours.append(&mut part.neighbours);
                into.routes.append(&mut part.routes);
                break;
            }
        }
        Ok(())
    }

    fn dump_once(&mut self, kind: u16, family: u8, part: &mut Snapshot) -> Result<bool, UnderlayError> {
        use crate::model::Event;
        let what = "read the kernel's routes and neighbours";
        self.sequence += 1;
        let kernel = SocketAddr::new(0, 0);
        let request = netlink::dump(kind, family, self.sequence);
        self.query.send_to(&request, &kernel, 0).map_err(|e| UnderlayError::io(what, e))?;
        let mut disturbed = false;
        loop {
            self.buffer.clear();
            self.query.recv(&mut self.buffer, 0).map_err(|e| UnderlayError::io(what, e))?;
            for (kind, flags, sequence, payload) in netlink::messages(&self.buffer) {
                if sequence != self.sequence {
                    continue;
                }
                disturbed |= flags & 0x10 != 0;
                match netlink::parse(kind, flags, payload) {
                    Parsed::Event(Event::Link(l)) => part.links.push(l),
                    Parsed::Event(Event::Neighbour(n)) => part.neighbours.push(n),
                    Parsed::Event(Event::Route(r, _)) if self.core.follows(r.table) => part.routes.push(r),
                    Parsed::Done(d) => return Ok(d || disturbed),
                    // A family that this kernel does not have.
                    Parsed::Error(libc::EOPNOTSUPP | libc::EAFNOSUPPORT) => return Ok(false),
                    Parsed::Error(e) if e != 0 => {
                        return Err(UnderlayError::io(what, std::io::Error::from_raw_os_error(e)));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Writes what has changed, and asks for what is missing.
    fn bring_up_to_date(&mut self) {
        let changes = self.core.flush();
        if !changes.is_empty() {
            self.write(&changes);
        }
        let now = self.started.elapsed().as_millis() as u64;
        for request in self.core.resolve(now) {
            self.request(request);
        }
        let counts = self.core.counts();
        self.with_status(|s| s.counts = counts);
        for done in self.waiting.drain(..) {
            let _ = done.send(());
        }
    }

    fn write(&mut self, changes: &[Change]) {
        let results = self.sink.apply(changes);
        debug_assert_eq!(results.len(), changes.len());
        let mut refused = 0;
        for (change, result) in changes.iter().zip(results) {
            if let Err(error) = result {
                refused += 1;
                self.core.failed(change);
                self.note(format!("{change:?}: {error}"));
            }
        }
        self.with_status(|s| {
            s.changes += changes.len() as u64 - refused;
            s.refused += refused;
        });
    }

    fn request(&mut self, request: Resolve) {
        let managed = self.core.kernel_manages && request.keep;
        if request.anew {
            // If it is gone already, so much the better.
            self.sequence += 1;
            let message = netlink::forget_neighbour(request.ifindex, request.addr, self.sequence);
            let _ = self.exchange(&message);
        }
        match self.request_neighbour(request, managed) {
            Ok(()) => {}
            Err(e) if managed && matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
                // Linux before 5.16: ask by use, and again from time to time.
                self.core.kernel_manages = false;
                if let Err(e) = self.request_neighbour(request, false) {
                    self.resolve_failed(request, e);
                }
            }
            // Letting go of what is already gone.
            Err(_) if !request.keep => {}
            Err(e) => self.resolve_failed(request, e),
        }
    }

    fn resolve_failed(&mut self, request: Resolve, error: std::io::Error) {
        let advice = match error.raw_os_error() {
            Some(libc::ENOBUFS) => {
                "; the kernel's neighbour table is full: raise net.ipv4.neigh.default.gc_thresh3 (or ipv6)"
            }
            _ => "",
        };
        self.with_status(|s| s.resolve_errors += 1);
        self.note(format!("resolving {} on interface {}: {error}{advice}", request.addr, request.ifindex));
    }

    fn request_neighbour(&mut self, request: Resolve, managed: bool) -> std::io::Result<()> {
        self.sequence += 1;
        let message = netlink::use_neighbour(request.ifindex, request.addr, managed, request.keep, self.sequence);
        self.exchange(&message)
    }

    /// Sends a request of the present sequence number and waits for what the kernel says of it.
    fn exchange(&mut self, message: &[u8]) -> std::io::Result<()> {
        self.query.send_to(message, &SocketAddr::new(0, 0), 0)?;
        loop {
            self.buffer.clear();
            self.query.recv(&mut self.buffer, 0)?;
            for (kind, flags, sequence, payload) in netlink::messages(&self.buffer) {
                if sequence != self.sequence {
                    continue;
                }
                return match netlink::parse(kind, flags, payload) {
                    Parsed::Error(0) => Ok(()),
                    Parsed::Error(e) => Err(std::io::Error::from_raw_os_error(e)),
                    _ => Ok(()),
                };
            }
        }
    }

    fn note(&self, error: String) {
        tracing::warn!("underlay: {error}");
        self.with_status(|s| s.last_error = Some(error));
    }

    fn with_status(&self, change: impl FnOnce(&mut Status)) {
        change(&mut self.status.lock());
    }
}

fn borrow(socket: &Socket) -> BorrowedFd<'_> {
    std::os::fd::AsFd::as_fd(socket)
}
