// SPDX-License-Identifier: Apache-2.0
//! What the fast path punts, taken in over AF_XDP, and the way out by the same socket.

use crate::error::NodeError;
use gateway::{Batch, Frame};
use xdp::{AfXdpOptions, AfXdpSocket, XdpEngine};

/// The socket of one queue of one port.
pub struct PuntSocket {
    socket: AfXdpSocket,
}

impl PuntSocket {
    /// Opens the socket and makes it the listener for the punts of its queue.
    pub fn open(engine: &XdpEngine, ifindex: u32, queue: u32) -> Result<Self, NodeError> {
        let socket = AfXdpSocket::open(AfXdpOptions::new(ifindex, queue))?;
        engine.set_listener(ifindex, queue, socket.raw_fd())?;
        tracing::info!("{}", socket.describe());
        Ok(Self { socket })
    }

    /// The descriptor, for `poll`.
    pub fn raw_fd(&self) -> i32 {
        self.socket.raw_fd()
    }

    /// Interface.
    pub fn ifindex(&self) -> u32 {
        self.socket.port().0
    }

    /// Takes what has come in into a batch. Returns the number of packets.
    pub fn receive<'a>(&'a mut self, batch: &mut Batch<'a>) -> usize {
        let ifindex = self.ifindex();
        let received = self.socket.receive();
        for packet in self.socket.packets() {
            let frame = match packet.meta {
                Some(meta) => Frame::punted(packet.region, packet.offset, packet.length, &meta),
                None => Frame::new(packet.region, packet.offset, packet.length, ifindex),
            };
            // A burst is shorter than a batch.
            let _ = batch.push(frame);
        }
        received
    }

    /// Gives the buffers of the last batch back to the kernel.
    pub fn release(&mut self) {
        self.socket.release();
    }

    /// Sends a packet on the socket's interface; false if there is no room.
    pub fn send(&mut self, packet: &[u8]) -> bool {
        self.socket.send(packet)
    }

    /// Tells the kernel to send what was queued.
    pub fn flush(&mut self) {
        self.socket.flush();
    }

    /// Packets that found the ring full since the last call.
    pub fn take_lost(&mut self) -> u64 {
        self.socket.take_lost()
    }
}
