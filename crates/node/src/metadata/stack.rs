// SPDX-License-Identifier: Apache-2.0
//! TCP with one VM: a small stack of its own for each, so that VMs of the same address stay apart, and what one does costs the others nothing.

use super::answer::{self, Step};
use super::Guest;
use crate::afpacket::PacketSocket;
use abi::{IfIndex, METADATA_ADDRESS};
use rand::RngExt;
use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::{Duration as Span, Instant};
use smoltcp::wire::{HardwareAddress, IpCidr};
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use wire::ethernet;

const PORT: u16 = 80;
/// Connections of one VM at once.
const CONNECTIONS: usize = 32;
/// Bytes that a connection holds, in either direction.
const RECEIVED: usize = 4_096;
const SENT: usize = 8_192;
/// A connection on which nothing happens for so long ends.
const IDLE: Duration = Duration::from_secs(15);
/// The wait until something is due, at most.
const LOOK: Duration = Duration::from_secs(1);

/// Frames without their Ethernet headers.
struct Link {
    received: VecDeque<Vec<u8>>,
    sent: Vec<Vec<u8>>,
    mtu: usize,
}

/// A frame that came.
struct Came(Vec<u8>);

impl RxToken for Came {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0.get(ethernet::HEADER_LEN..).unwrap_or(&[]))
    }
}

/// Room for a packet that goes.
struct Goes<'a>(&'a mut Vec<Vec<u8>>);

impl TxToken for Goes<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; ethernet::HEADER_LEN + len];
        let result = f(&mut frame[ethernet::HEADER_LEN..]);
        self.0.push(frame);
        result
    }
}

impl Device for Link {
    type RxToken<'a> = Came;
    type TxToken<'a> = Goes<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Came, Goes<'_>)> {
        let frame = self.received.pop_front()?;
        Some((Came(frame), Goes(&mut self.sent)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Goes<'_>> {
        Some(Goes(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut is = DeviceCapabilities::default();
        is.medium = Medium::Ip;
        is.max_transmission_unit = self.mtu;
        is
    }
}

/// One connection, or a place for one.
struct Connection {
    socket: SocketHandle,
    /// What has come of a request.
    request: Vec<u8>,
    /// What has not been sent of the answer.
    answer: Vec<u8>,
    /// It ends when the answer is sent.
    last: bool,
    active: Duration,
}

/// TCP with one VM.
pub(super) struct Stack {
    guest: Arc<Guest>,
    ifindex: IfIndex,
    link: Link,
    interface: Interface,
    sockets: SocketSet<'static>,
    connections: Vec<Connection>,
    tokens: answer::Tokens,
    egress: Option<PacketSocket>,
    active: Duration,
}

fn instant(now: Duration) -> Instant {
    Instant::from_micros(i64::try_from(now.as_micros()).unwrap_or(i64::MAX))
}

impl Stack {
    /// For this guest, behind a port. Times are since a moment that all share.
    pub fn new(ifindex: IfIndex, guest: &Arc<Guest>, now: Duration) -> Stack {
        let mut link = Link { received: VecDeque::new(), sent: Vec::new(), mtu: usize::from(guest.lease.mtu) };
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = rand::rng().random();
        let mut interface = Interface::new(config, &mut link, instant(now));
        let own = Ipv4Addr::from_bits(METADATA_ADDRESS);
        // Both have room for one of each.
        interface.update_ip_addrs(|all| all.push(IpCidr::new(own.into(), 32)).unwrap_or(()));
        let _ = interface.routes_mut().add_default_ipv4_route(own);
        let mut sockets = SocketSet::new(Vec::new());
        let connection = |_| {
            let buffer = |bytes| tcp::SocketBuffer::new(vec![0; bytes]);
            let mut socket = tcp::Socket::new(buffer(RECEIVED), buffer(SENT));
            socket.set_timeout(Some(Span::from_secs(IDLE.as_secs())));
            let socket = sockets.add(socket);
            Connection { socket, request: Vec::new(), answer: Vec::new(), last: false, active: now }
        };
        let connections = (0..CONNECTIONS).map(connection).collect();
        let egress = PacketSocket::egress(ifindex)
            .inspect_err(|e| tracing::warn!("the VM behind interface {ifindex} has no metadata address: {e}"));
        let (guest, tokens) = (guest.clone(), answer::Tokens::default());
        let mut stack =
            Stack { guest, ifindex, link, interface, sockets, connections, tokens, egress: egress.ok(), active: now };
        // It listens before the first packet is looked at.
        stack.serve(now);
        stack
    }

    /// Whether it talks with this VM.
    pub fn is_of(&self, guest: &Guest) -> bool {
        (self.guest.vni, self.guest.mac) == (guest.vni, guest.mac)
    }

    /// What the VM is told from now on.
    pub fn tell(&mut self, guest: Arc<Guest>) {
        self.guest = guest;
    }

    /// A frame of the VM.
    pub fn receive(&mut self, frame: Vec<u8>) {
        self.link.received.push_back(frame);
    }

    /// How long nothing is to be done, unless a frame comes.
    pub fn due(&mut self, now: Duration) -> Duration {
        let due = self.interface.poll_delay(instant(now), &self.sockets);
        due.map_or(LOOK, |due| Duration::from_micros(due.total_micros()).min(LOOK))
    }

    /// For how long the VM has said nothing.
    pub fn quiet_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.active)
    }

    /// Takes what has come, answers, sends.
    pub fn go_on(&mut self, now: Duration) {
        if !self.link.received.is_empty() {
            self.active = now;
        }
        loop {
            let result = self.interface.poll(instant(now), &mut self.link, &mut self.sockets);
            let more = self.serve(now);
            self.send();
            if !more && result == PollResult::None && self.link.received.is_empty() {
                return;
            }
        }
    }

    fn send(&mut self) {
        for mut frame in self.link.sent.drain(..) {
            if let Some(head) = frame.first_chunk_mut() {
                let ethertype = ethernet::ethertype::IPV4;
                ethernet::Repr { dst: self.guest.mac.0, src: self.guest.gateway_mac.0, ethertype }.emit(head);
            }
            // One that is lost TCP sends again.
            if !self.egress.as_ref().is_some_and(|egress| egress.send(&frame)) {
                tracing::debug!("a frame to interface {} was not sent", self.ifindex);
            }
        }
    }

    /// Serves each connection. True if there is more to send.
    fn serve(&mut self, now: Duration) -> bool {
        let Stack { sockets, connections, guest, tokens, .. } = self;
        connections.iter_mut().fold(false, |more, c| {
            let socket = sockets.get_mut::<tcp::Socket<'_>>(c.socket);
            c.serve(socket, guest, tokens, now) || more
        })
    }
}

impl Connection {
    fn serve(
        &mut self,
        socket: &mut tcp::Socket<'_>,
        guest: &Guest,
        tokens: &mut answer::Tokens,
        now: Duration,
    ) -> bool {
        if !socket.is_open() {
            (self.last, self.active) = (false, now);
            self.request.clear();
            self.answer.clear();
            // It is closed, and the port is one.
            return socket.listen(PORT).is_err();
        }
        if socket.is_listening() {
            self.active = now;
            return false;
        }
        while self.answer.is_empty() && !self.last {
            match answer::step(&mut self.request, guest, tokens, now) {
                Step::Answer { bytes, last } => (self.answer, self.last, self.active) = (bytes, last, now),
                Step::More if socket.can_recv() => {
                    self.active = now;
                    let taken = socket.recv(|bytes| (bytes.len(), self.request.extend_from_slice(bytes)));
                    if taken.is_err() {
                        break;
                    }
                }
                Step::More => break,
            }
        }
        let mut moved = false;
        if !self.answer.is_empty() && socket.can_send() {
            let sent = socket.send_slice(&self.answer).unwrap_or(0);
            self.answer.drain(..sent);
            (self.active, moved) = (now, sent > 0);
        }
        // The VM has said its last word, or is to be told no more.
        if self.answer.is_empty() && (self.last || socket.state() == tcp::State::CloseWait) {
            moved |= socket.may_send();
            socket.close();
        }
        if now.saturating_sub(self.active) > IDLE {
            socket.abort();
            moved = true;
        }
        moved
    }
}
