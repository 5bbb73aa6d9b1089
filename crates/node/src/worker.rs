// SPDX-License-Identifier: Apache-2.0
//! Software workers: threads that take packets from ports, run the Rust path over them, and send what comes out.
//!
//! A worker owns its sockets, its counter slot and its buffers and shares only the tables with anybody. Two kinds of sockets
//! feed it: AF_PACKET, when the `user` engine serves a whole port, and AF_XDP, for what the fast path punts. A packet leaves
//! by the worker's own AF_XDP socket of its port if there is one, else by AF_PACKET. What a socket does not take on the way
//! out is counted as `tx_failed`, what found a ring full on the way in as `punt_ring_full`.

use crate::afpacket::{PacketSocket, HEADROOM};
use crate::counters::monotonic_ns;
use crate::events::Hub;
use crate::punt_tap::{PuntTap, WayBack};
use crate::shaping::Shaping;
use abi::{DropReason, Event, IfIndex};
use gateway::{Batch, Frame, Gateway, Verdict};
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest sleep of an idle worker: it looks at the stop flag and at the rings' losses that often.
const IDLE: u16 = 100;
/// Time between looks at what the kernel lost.
const LOSS_PERIOD: Duration = Duration::from_millis(250);

const _: () = assert!(HEADROOM >= gateway::HEADROOM);

/// What every worker gets.
#[derive(Clone)]
pub struct Shared {
    /// Set to end all workers.
    pub stop: Arc<AtomicBool>,
    /// Where captured packets go.
    pub hub: Arc<Hub>,
    /// Where control packets of customers' routers go.
    pub taps: Arc<crate::routing::Taps>,
    /// Called with neighbours whose MAC address is needed.
    pub wanted: Arc<dyn Fn(Vec<IpAddr>) + Send + Sync>,
    /// Who answers VMs at the metadata address.
    pub metadata: Arc<crate::metadata::Metadata>,
    /// What has to wait before it leaves.
    pub shaping: Arc<Shaping>,
}

/// One source of packets.
pub enum Port {
    /// A whole port, all of whose packets the software path serves.
    Packet(PacketSocket),
    /// What XDP punts from one queue of a port.
    Xdp(crate::punt::PuntSocket),
    /// What the tc program punts, of all ports.
    Tap(PuntTap),
}

impl Port {
    fn raw_fd(&self) -> i32 {
        match self {
            Port::Packet(socket) => socket.raw_fd(),
            Port::Xdp(socket) => socket.raw_fd(),
            Port::Tap(tap) => tap.raw_fd(),
        }
    }
}

/// Packets on their way out after their batch is done: the buffers that they lay in are needed by the socket again.
#[derive(Default)]
struct Outbox {
    bytes: Vec<u8>,
    /// Interface, length, whether it is an answer.
    packets: Vec<(IfIndex, usize, bool)>,
}

impl Outbox {
    fn put(&mut self, ifindex: IfIndex, data: &[u8], answer: bool) {
        self.bytes.extend_from_slice(data);
        self.packets.push((ifindex, data.len(), answer));
    }
}

/// One software worker.
pub struct Worker {
    gateway: Gateway,
    ports: Vec<Port>,
    /// Sockets to send on, by interface.
    egress: HashMap<IfIndex, PacketSocket>,
    injector: Option<xdp::Injector>,
    way_back: Option<WayBack>,
    shared: Shared,
    samples: u64,
    outbox: Outbox,
    wake_up: Option<WakeUp>,
}

/// Rings when answers of an agent on another host have come.
struct WakeUp(UnixStream);

impl WakeUp {
    /// None, said aloud, if the system has no descriptors: then answers wait until the worker looks by itself.
    fn new(completions: &conntrack_compact::Completions) -> Option<WakeUp> {
        let pair = UnixStream::pair().and_then(|(wake_up, other_end)| {
            wake_up.set_nonblocking(true)?;
            other_end.set_nonblocking(true)?;
            Ok((wake_up, other_end))
        });
        let (wake_up, other_end) = pair.inspect_err(|e| tracing::warn!("a worker has no wake_up: {e}")).ok()?;
        completions.on_answers(move || {
            // Full: it rings already.
            let _ = std::io::Write::write(&mut &other_end, &[1]);
        });
        Some(WakeUp(wake_up))
    }
}

impl Worker {
    /// A worker that counts in the gateway's slot.
    pub fn new(gateway: Gateway, ports: Vec<Port>, egress: Vec<PacketSocket>, shared: Shared) -> Self {
        let punts = ports.iter().any(|p| matches!(p, Port::Xdp(_)));
        let load =
            || xdp::Injector::new().inspect_err(|e| tracing::warn!("punted packets of the host will be lost: {e}"));
        let injector = if punts { load().ok() } else { None };
        let egress = egress.into_iter().map(|s| (s.ifindex, s)).collect();
        let tap = ports.iter().find_map(|p| if let Port::Tap(tap) = p { Some(tap) } else { None });
        let way_back = tap.and_then(|tap| {
            tap.way_back().inspect_err(|e| tracing::warn!("punted packets of the host will be lost: {e}")).ok()
        });
        let outbox = Outbox::default();
        Self { gateway, ports, egress, injector, way_back, shared, samples: 0, outbox, wake_up: None }
    }

    /// Runs until told to stop. Returns its sockets.
    pub fn run(mut self) -> Vec<Port> {
        let mut batch = Batch::new();
        let mut losses_at = Instant::now();
        self.wake_up = WakeUp::new(self.gateway.completions());
        while !self.shared.stop.load(Ordering::Relaxed) {
            let mut received = 0;
            for at in 0..self.ports.len() {
                let (n, empty) = self.serve(at, batch);
                received += n;
                batch = empty;
            }
            let (n, empty) = self.go_on(batch);
            (received, batch) = (received + n, empty);
            if losses_at.elapsed() > LOSS_PERIOD {
                losses_at = Instant::now();
                self.count_losses();
            }
            if received == 0 {
                self.wait();
            }
        }
        self.count_losses();
        let (waiting, punts) = self.gateway.give_up();
        let stats = self.gateway.tables().stats(self.gateway.slot());
        stats.taken(punts);
        stats.lost(DropReason::FilterAgentGone, waiting);
        self.ports
    }

    fn wait(&self) {
        // SAFETY: the sockets belong to self and outlive this call.
        let borrowed = self.ports.iter().map(|p| unsafe { BorrowedFd::borrow_raw(p.raw_fd()) });
        let mut fds: Vec<_> = borrowed.map(|fd| nix::poll::PollFd::new(fd, nix::poll::PollFlags::POLLIN)).collect();
        fds.extend(
            self.wake_up.iter().map(|wake_up| nix::poll::PollFd::new(wake_up.0.as_fd(), nix::poll::PollFlags::POLLIN)),
        );
        // EINTR and the like: the loop looks at everything anyway.
        let _ = nix::poll::poll(&mut fds, IDLE);
        if let Some(WakeUp(wake_up)) = &self.wake_up {
            // Whatever rang: the loop looks at the completions.
            while std::io::Read::read(&mut &*wake_up, &mut [0; 64]).is_ok_and(|n| n > 0) {}
        }
    }

    fn count_losses(&mut self) {
        let stats = self.gateway.tables().stats(self.gateway.slot());
        self.shared.shaping.take_unsent().count(self.gateway.tables(), stats);
        for port in &mut self.ports {
            let lost = match port {
                Port::Packet(socket) => socket.take_lost(),
                Port::Xdp(socket) => {
                    let lost = socket.take_lost(self.gateway.tables());
                    stats.taken(lost);
                    lost
                }
                Port::Tap(tap) => {
                    let lost = tap.take_lost();
                    stats.taken(lost);
                    lost
                }
            };
            if lost > 0 {
                stats.lost(DropReason::PuntRingFull, lost);
            }
        }
    }

    /// Takes one burst from a port through the path. Returns the number of packets and the empty batch.
    fn serve<'b>(&mut self, at: usize, batch: Batch<'_>) -> (usize, Batch<'b>) {
        let mut batch = batch.recycle();
        let Self { gateway, ports, egress, injector, way_back, shared, samples, outbox, .. } = self;
        let options = gateway.tables().options();
        let (mut sampled, punts) = (Vec::new(), !matches!(ports[at], Port::Packet(_)));
        let host = match &ports[at] {
            Port::Packet(_) => Host::Has,
            Port::Xdp(_) => injector.as_ref().map_or(Host::Has, Host::Injector),
            Port::Tap(_) => way_back.as_ref().map_or(Host::Has, Host::WayBack),
        };
        let received = match &mut ports[at] {
            Port::Packet(socket) => match socket.receive() {
                Ok(n) => {
                    let ifindex = socket.ifindex;
                    for (region, (start, length)) in socket.regions(n).filter(|(_, (_, length))| *length > 0) {
                        let frame = Frame::new(region, start, length, ifindex);
                        sample(options, samples, &frame, &mut sampled);
                        // The burst is shorter than a batch.
                        let _ = batch.push(frame);
                    }
                    n
                }
                Err(e) => {
                    tracing::warn!("receiving on interface {}: {e}", socket.ifindex);
                    std::thread::sleep(Duration::from_millis(u64::from(IDLE)));
                    0
                }
            },
            Port::Xdp(socket) => socket.receive(gateway.tables(), &mut batch),
            Port::Tap(tap) => tap.receive(&mut batch).unwrap_or_else(|e| {
                tracing::warn!("receiving what tc punts: {e}");
                std::thread::sleep(Duration::from_millis(u64::from(IDLE)));
                0
            }),
        };
        if received == 0 {
            return (0, batch.recycle());
        }
        match shared.hub.live.pick(gateway.tables(), &batch) {
            None => gateway.process(&mut batch, monotonic_ns()),
            Some(mut picked) => {
                gateway.process_recorded(&mut batch, monotonic_ns(), &mut picked);
                picked.tell(&batch);
            }
        }
        if punts {
            // Those that wait for the agent are taken in when they go on: till then they are in flight.
            gateway.tables().stats(gateway.slot()).taken(received as u64 - batch.output.punts_waiting);
        }
        sampled.iter().for_each(|event| shared.hub.publish(event));
        let egress = if punts { Egress::Later(outbox) } else { Egress::Now(egress) };
        dispatch(gateway, &batch, egress, host, shared, options);
        if !batch.output.unresolved.is_empty() {
            (shared.wanted)(batch.output.unresolved.iter().map(|u| u.neighbour).collect());
        }
        let empty = batch.recycle();
        if let Port::Xdp(socket) = &mut ports[at] {
            socket.release();
        }
        self.send_outbox();
        (received, empty)
    }

    /// Takes on packets that have waited for an agent on another host. Returns their number and the empty batch.
    fn go_on<'b>(&mut self, batch: Batch<'_>) -> (usize, Batch<'b>) {
        let mut waited = self.gateway.answered();
        let n = waited.len();
        if n > 0 {
            let answers: Vec<_> = waited.iter().filter_map(|w| w.answer()).collect();
            let punts = waited.iter().filter(|w| w.punted).count() as u64;
            let mut batch = batch.recycle();
            for waiting in &mut waited {
                // They are no more than a batch.
                let _ = batch.push(waiting.frame());
            }
            let Self { gateway, injector, shared, outbox, .. } = self;
            gateway.resume(&mut batch, &answers, monotonic_ns());
            let stats = gateway.tables().stats(gateway.slot());
            stats.taken(punts - batch.output.punts_waiting);
            let host = injector.as_ref().map_or(Host::Has, Host::Injector);
            dispatch(gateway, &batch, Egress::Later(outbox), host, shared, gateway.tables().options());
            if !batch.output.unresolved.is_empty() {
                (shared.wanted)(batch.output.unresolved.iter().map(|u| u.neighbour).collect());
            }
            let empty = batch.recycle();
            self.send_outbox();
            return (n, empty);
        }
        (0, batch.recycle())
    }

    fn send_outbox(&mut self) {
        let stats = self.gateway.tables().stats(self.gateway.slot());
        let mut start = 0;
        for (ifindex, length, answer) in self.outbox.packets.drain(..) {
            let data = &self.outbox.bytes[start..start + length];
            start += length;
            let by_xdp = self.ports.iter_mut().find_map(|p| match p {
                Port::Xdp(socket) if socket.ifindex() == ifindex => Some(socket.send(data)),
                _ => None,
            });
            // No room in the ring, or a port of another worker: the kernel's own way out.
            let sent = by_xdp == Some(true) || self.egress.get(&ifindex).is_some_and(|s| s.send(data));
            match (sent, answer) {
                (true, _) => {}
                (false, true) => stats.unsent_answer(),
                (false, false) => stats.unsent_forwarded(length as u64),
            }
        }
        self.outbox.bytes.clear();
        for port in &mut self.ports {
            if let Port::Xdp(socket) = port {
                socket.flush();
            }
        }
    }
}

/// How packets leave.
enum Egress<'a> {
    /// From where they lie.
    Now(&'a HashMap<IfIndex, PacketSocket>),
    /// Copied, when the batch is done.
    Later(&'a mut Outbox),
}

impl Egress<'_> {
    /// Sends or queues; false if the packet was not taken.
    fn send(&mut self, ifindex: IfIndex, data: &[u8], answer: bool) -> bool {
        match self {
            Egress::Now(egress) => egress.get(&ifindex).is_some_and(|socket| socket.send(data)),
            Egress::Later(outbox) => {
                outbox.put(ifindex, data, answer);
                true
            }
        }
    }
}

/// How what is the host's reaches it.
enum Host<'a> {
    /// On AF_PACKET it has the packet already.
    Has,
    /// What XDP has taken from it.
    Injector(&'a xdp::Injector),
    /// What tc has taken from it.
    WayBack(&'a WayBack),
}

impl Host<'_> {
    fn give(&self, frame: &Frame<'_>) -> std::io::Result<()> {
        match self {
            Host::Has => Ok(()),
            Host::Injector(injector) => {
                injector.inject(frame.data(), frame.ifindex).map(drop).map_err(std::io::Error::other)
            }
            Host::WayBack(way_back) => way_back.give_back(frame.data(), frame.ifindex),
        }
    }
}

fn sample(options: u64, seen: &mut u64, frame: &Frame<'_>, sampled: &mut Vec<Event>) {
    let exponent = (options >> abi::OPT_SAMPLE_SHIFT) as u8;
    if exponent == 0 {
        return;
    }
    *seen += 1;
    if *seen & ((1u64 << exponent.min(63)) - 1) == 0 {
        sampled.push(event(frame, abi::EVENT_SAMPLE, 0));
    }
}

/// A captured packet.
fn event(frame: &Frame<'_>, kind: u8, reason: u8) -> Event {
    let bytes = frame.data();
    let captured = bytes.len().min(abi::EVENT_BYTES as usize);
    let mut data = [0; abi::EVENT_BYTES as usize];
    data[..captured].copy_from_slice(&bytes[..captured]);
    Event {
        time: monotonic_ns(),
        ifindex: frame.ifindex.0,
        vni: crate::flows::vni(&data[..captured]).unwrap_or_default().0,
        length: bytes.len() as u32,
        captured: captured as u16,
        kind,
        reason,
        reserved: 0,
        data,
    }
}

/// Sends, injects and captures according to the verdicts.
fn dispatch(
    gateway: &Gateway,
    batch: &Batch<'_>,
    mut egress: Egress<'_>,
    host: Host<'_>,
    shared: &Shared,
    options: u64,
) {
    let stats = gateway.tables().stats(gateway.slot());
    let mut waits = false;
    for frame in batch.frames() {
        match frame.verdict {
            Verdict::Forward { .. } | Verdict::Answer { .. } if frame.classes.wait() => waits = true,
            Verdict::Forward { ifindex } => {
                if !egress.send(ifindex, frame.data(), false) {
                    stats.unsent_forwarded(frame.len() as u64);
                }
            }
            Verdict::Answer { ifindex } => {
                if !egress.send(ifindex, frame.data(), true) {
                    stats.unsent_answer();
                }
            }
            Verdict::Wait => {}
            Verdict::Metadata => shared.metadata.take(frame.ifindex, frame.data()),
            Verdict::Control { circuit } => shared.taps.pass(circuit, frame.data()),
            Verdict::Pass => {
                if let Err(error) = host.give(frame) {
                    tracing::debug!("a packet of the host was lost: {error}");
                }
            }
            Verdict::Drop(reason) => {
                if options & abi::OPT_CAPTURE_DROPS != 0 {
                    shared.hub.publish(&event(frame, abi::EVENT_DROP, reason as u8));
                }
            }
        }
    }
    for made in &batch.output.generated {
        if made.classes.wait() {
            waits = true;
        } else if !egress.send(made.ifindex, &made.data, false) {
            stats.unsent_forwarded(made.data.len() as u64);
        }
    }
    if waits {
        hand_over(gateway, batch, shared, options);
    }
}

/// What has to wait for its turn goes to the shaper, when everything else has been sent.
fn hand_over(gateway: &Gateway, batch: &Batch<'_>, shared: &Shared, options: u64) {
    let (tables, stats) = (gateway.tables(), gateway.tables().stats(gateway.slot()));
    let mut turn = shared.shaping.turn();
    for frame in batch.frames().iter().filter(|f| f.classes.wait()) {
        let (ifindex, answer) = match frame.verdict {
            Verdict::Forward { ifindex } => (ifindex, false),
            Verdict::Answer { ifindex } => (ifindex, true),
            _ => continue,
        };
        let refused = turn.push(frame.classes, (ifindex, frame.data(), answer), (tables, stats));
        if let Some(reason) = refused.filter(|_| options & abi::OPT_CAPTURE_DROPS != 0) {
            shared.hub.publish(&event(frame, abi::EVENT_DROP, reason as u8));
        }
    }
    for made in batch.output.generated.iter().filter(|made| made.classes.wait()) {
        // Counted if it is refused; what the gateway made itself is not captured.
        let _ = turn.push(made.classes, (made.ifindex, &made.data, false), (tables, tables.stats(gateway.slot())));
    }
}
