// SPDX-License-Identifier: Apache-2.0
//! The threads behind routing daemons: one learns what their kernels know, one sends what they say.

use super::evpn::speak;
use super::{Line, Routing};
use crate::afpacket::PacketSocket;
use crate::error::NodeError;
use crate::service::Node;
use crate::uplinks::interface;
use abi::IfIndex;
use gateway::{is_control, Towards};
use nix::poll::{poll, PollFd, PollFlags};
use std::collections::HashMap;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::thread::JoinHandle;
use tables::Tables;

/// The carriers of ports with circuits are looked at that often, ms.
const CARRIERS: u16 = 50;
/// Longest sleep where there are none, ms. Who changes the plan or sets the stop flag rings.
const IDLE: u16 = 1000;
/// Frames taken from one TAP before the next one's turn.
const BURST: usize = 64;
const FRAME_MAX: usize = 1 << 16;
const MACS: usize = 12;

/// Starts them; they end when `stop` is set.
pub fn start(node: &Arc<Node>, stop: &Arc<AtomicBool>) -> Result<Vec<JoinHandle<()>>, NodeError> {
    let (learner, learner_stop) = (node.clone(), stop.clone());
    let (routing, tables, stop) = (node.routing.clone(), node.tables(), stop.clone());
    let thread = |name: &str, work: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new().name(name.into()).spawn(work).map_err(NodeError::system("starting a thread"))
    };
    let mut threads = vec![thread("tunny-learn", Box::new(move || learn(&learner, &learner_stop)))?];
    match node.managed {
        // The controller exchanges routes for it.
        Some(_) => node.routing.follow_controller(),
        None => threads.push(speak::start(node, &stop).map_err(NodeError::system("starting what speaks EVPN"))?),
    }
    threads.push(thread("tunny-taps", Box::new(move || send(&routing, &tables, &stop)))?);
    Ok(threads)
}

fn hush(bell: Option<&UnixStream>) -> bool {
    // Whatever rang: everything is looked at.
    bell.is_some_and(|mut bell| bell.read(&mut [0; 64]).is_ok_and(|n| n > 0))
}

fn learn(node: &Node, stop: &AtomicBool) {
    let bell = node.routing.bells.as_ref().map(|b| &b[0].1);
    let mut news = Vec::new();
    while !stop.load(Relaxed) {
        let longest = {
            // Copies, so that nobody waits for the lock while this sleeps.
            let state = node.routing.state.lock();
            news.clear();
            news.extend(state.spaces.values().filter_map(|s| s.news.as_fd().try_clone_to_owned().ok()));
            if state.plan.lines.is_empty() {
                IDLE
            } else {
                CARRIERS
            }
        };
        let mut fds: Vec<PollFd<'_>> = news.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
        fds.extend(bell.map(|b| PollFd::new(b.as_fd(), PollFlags::POLLIN)));
        // EINTR and the like: the loop looks at everything anyway.
        let _ = poll(&mut fds, longest);
        let rung = hush(bell);
        if node.routing.look(false) || rung {
            node.learn();
        }
    }
    node.routing.keep();
}

fn send(routing: &Routing, tables: &Tables, stop: &AtomicBool) {
    let bell = routing.bells.as_ref().map(|b| &b[1].1);
    let mut sockets: HashMap<IfIndex, PacketSocket> = HashMap::new();
    let mut buffer = vec![0; FRAME_MAX];
    let mut lines = routing.taps.all();
    while !stop.load(Relaxed) {
        let mut fds: Vec<PollFd<'_>> = lines.iter().map(|l| PollFd::new(l.tap.as_fd(), PollFlags::POLLIN)).collect();
        fds.extend(bell.map(|b| PollFd::new(b.as_fd(), PollFlags::POLLIN)));
        let _ = poll(&mut fds, IDLE);
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(false)).collect();
        for (line, _) in lines.iter().zip(ready).filter(|(_, ready)| *ready) {
            take(line, &mut buffer, &mut sockets, tables);
        }
        if hush(bell) {
            lines = routing.taps.all();
        }
    }
}

/// Sends what has come from one TAP by its circuit.
fn take(line: &Line, buffer: &mut [u8], sockets: &mut HashMap<IfIndex, PacketSocket>, tables: &Tables) {
    let gateway = line.plan.address.addr().to_bits();
    let port = interface(&line.plan.port).ok().map(|i| i.ifindex);
    for _ in 0..BURST {
        let n = match line.tap.receive(buffer) {
            Ok(0) | Err(_) => return,
            Ok(n) => n,
        };
        let frame = &buffer[..n];
        if !is_control(frame, gateway, Towards::Ce) {
            line.counts.refused.fetch_add(1, Relaxed);
            continue;
        }
        let Some(socket) = port.and_then(|port| socket(sockets, port)) else { continue };
        let (macs, rest) = frame.split_at(MACS);
        let tagged = [macs, &line.plan.tags, rest].concat();
        // The slot of none of the workers.
        let (slots, _) = tables.slots();
        let stats = tables.stats(slots - 1);
        stats.generated();
        stats.forwarded(tagged.len() as u64);
        match socket.send(&tagged) {
            true => drop(line.counts.sent.fetch_add(1, Relaxed)),
            false => stats.unsent_forwarded(tagged.len() as u64),
        }
    }
}

fn socket(sockets: &mut HashMap<IfIndex, PacketSocket>, port: IfIndex) -> Option<&PacketSocket> {
    if let std::collections::hash_map::Entry::Vacant(place) = sockets.entry(port) {
        place.insert(PacketSocket::egress(port).ok()?);
    }
    sockets.get(&port)
}
