// SPDX-License-Identifier: Apache-2.0
//! The ports of an OpenFlow switch: AF_PACKET sockets, and the thread that takes frames from one to the other.

use super::view::PortView;
use super::Core;
use crate::afpacket::PacketSocket;
use crate::counters::monotonic_ns;
use crate::error::NodeError;
use crate::uplinks;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use parking_lot::Mutex;
use pipeline::Count;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time after which the thread looks for flows whose time is over, whatever comes.
const TICK: Duration = Duration::from_millis(100);

struct Port {
    name: String,
    number: u16,
    socket: PacketSocket,
    /// A name that one process of a network namespace can have.
    _claim: UnixDatagram,
    /// It gave an error, which has been said.
    failed: bool,
}

/// All ports of a switch.
pub(super) struct Ports(Vec<Port>);

impl Ports {
    /// Opens ports of the calling thread's network namespace, which take in frames for others from now on.
    pub fn open(wanted: &[(String, u16)]) -> Result<Ports, NodeError> {
        let mut ports: Vec<Port> = Vec::new();
        for (name, number) in wanted {
            if let Some(other) = ports.iter().find(|port| port.number == *number || port.name == *name) {
                return Err(NodeError::Request(format!(
                    "--openflow-port {name}={number}: {} is port {} already",
                    other.name, other.number
                )));
            }
            ports.push(Port::open(name, *number)?);
        }
        Ok(Ports(ports))
    }

    /// Each with counters that begin.
    pub fn views(&self) -> Vec<PortView> {
        let view = |port: &Port| PortView { name: port.name.clone(), number: port.number, ..PortView::default() };
        self.0.iter().map(view).collect()
    }

    /// Forwards until it is told to stop.
    pub fn serve(mut self, core: &Mutex<Core>, stop: &AtomicBool) {
        let (mut out, mut looked) = (Vec::new(), Instant::now());
        while !stop.load(Ordering::Relaxed) {
            for n in self.wait() {
                self.forward(n, core, &mut out);
            }
            if looked.elapsed() >= TICK {
                core.lock().switch.expire(monotonic_ns());
                looked = Instant::now();
            }
        }
    }

    /// The ports where frames have come in.
    fn wait(&self) -> Vec<usize> {
        // SAFETY: the sockets live as long as `self`, longer than these.
        let borrow = |port: &Port| unsafe { BorrowedFd::borrow_raw(port.socket.raw_fd()) };
        let mut wanted: Vec<PollFd<'_>> =
            self.0.iter().map(|port| PollFd::new(borrow(port), PollFlags::POLLIN)).collect();
        if poll(&mut wanted, PollTimeout::from(TICK.as_millis() as u8)).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let is_ready = |at: &PollFd<'_>| at.revents().is_some_and(|events| !events.is_empty());
        (0..wanted.len()).filter(|n| is_ready(&wanted[*n])).collect()
    }

    fn forward(&mut self, n: usize, core: &Mutex<Core>, out: &mut Vec<(u16, Vec<u8>)>) {
        let port = &mut self.0[n];
        let received = match port.socket.receive() {
            Ok(received) => received,
            Err(e) => return port.fails(&e),
        };
        port.failed = false;
        let mut core = core.lock();
        let now = monotonic_ns();
        let marks = port.socket.marks();
        for ((region, (start, bytes)), marks) in port.socket.regions(received).zip(marks) {
            let frame = &mut region[start..start + bytes];
            if marks.cut {
                core.ports[n].too_long += 1;
                continue;
            }
            if marks.unfinished {
                pipeline::finish_checksum(frame);
            }
            core.ports[n].received.add(bytes);
            // The switch counts why a frame is dropped.
            let _ = core.switch.frame(frame, port.number, now, out);
        }
        core.ports[n].lost += port.socket.take_lost();
        for (number, frame) in out.drain(..) {
            let Some(to) = self.0.iter().position(|port| port.number == number) else { continue };
            match self.0[to].socket.send(&frame) {
                true => core.ports[to].sent.add(frame.len()),
                false => core.ports[to].refused += 1,
            }
        }
    }
}

impl Port {
    fn open(name: &str, number: u16) -> Result<Port, NodeError> {
        let failed = |what| move |source| NodeError::Uplink { name: name.to_string(), what, source };
        let interface = uplinks::interface(name).map_err(failed("looking it up"))?;
        let claim = SocketAddr::from_abstract_name(format!("tunny-openflow-{}", interface.ifindex.0))
            .and_then(|address| UnixDatagram::bind_addr(&address));
        let _claim = claim.map_err(|e| match e.kind() {
            io::ErrorKind::AddrInUse => {
                NodeError::Request(format!("--openflow-port {name}={number}: another node has {name}"))
            }
            _ => failed("claiming it")(e),
        })?;
        let mut socket = PacketSocket::open(interface.ifindex, None).map_err(failed("opening it"))?;
        socket.keep_tags(true);
        uplinks::promiscuous(name).map_err(failed("promiscuous mode"))?;
        Ok(Port { name: name.to_string(), number, socket, _claim, failed: false })
    }

    /// A port that is down says so at every look: it is said once.
    fn fails(&mut self, why: &io::Error) {
        if !std::mem::replace(&mut self.failed, true) {
            tracing::warn!("port {} ({}): {why}; it is tried again", self.number, self.name);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl PortView {
    /// What was handed to it.
    pub(super) fn handed(&self) -> u64 {
        let Count { packets, .. } = self.sent;
        packets + self.refused
    }
}
