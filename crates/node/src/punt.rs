// SPDX-License-Identifier: Apache-2.0
//! What the fast path punts, taken in over AF_XDP, and the way out by the same socket.

use crate::error::NodeError;
use abi::IfIndex;
use gateway::{Batch, Frame};
use tables::Tables;
use xdp::{AfXdpOptions, AfXdpSocket, XdpEngine};

/// The socket of one queue of one port.
pub struct PuntSocket {
    socket: AfXdpSocket,
    /// Number of its ring in the tables.
    ring: u32,
}

impl PuntSocket {
    /// Opens the socket and makes it the listener for the punts of its queue.
    pub fn open(engine: &XdpEngine, tables: &Tables, ifindex: IfIndex, queue: u32) -> Result<Self, NodeError> {
        let options = AfXdpOptions::new(ifindex, queue);
        let socket = AfXdpSocket::open(options)?;
        let ring = engine.set_listener(ifindex, queue, socket.raw_fd())?;
        tables.open_punt_ring(ring, options.entries);
        tracing::info!("{}", socket.describe());
        Ok(Self { socket, ring })
    }

    /// The descriptor, for `poll`.
    pub fn raw_fd(&self) -> i32 {
        self.socket.raw_fd()
    }

    /// Interface.
    pub fn ifindex(&self) -> IfIndex {
        self.socket.port().0
    }

    /// Receive queue.
    pub fn queue(&self) -> u32 {
        self.socket.port().1
    }

    /// Takes what has come in into a batch, out of the shares of those whose it was. Returns the number of packets.
    pub fn receive<'a>(&'a mut self, tables: &Tables, batch: &mut Batch<'a>) -> usize {
        let ifindex = self.ifindex();
        let received = self.socket.receive();
        tables.punts_taken(self.ring, received as u64);
        // Of a burst many are often one tenant's.
        let (mut share, mut packets) = (0, 0);
        for packet in self.socket.packets() {
            let whose = packet.meta.map_or(0, |meta| meta.share);
            if whose != share {
                tables.punts_returned(share, packets);
                (share, packets) = (whose, 0);
            }
            packets += 1;
            let frame = match packet.meta {
                Some(meta) => Frame::punted(packet.region, packet.offset, packet.length, &meta),
                None => Frame::new(packet.region, packet.offset, packet.length, ifindex),
            };
            // A burst is shorter than a batch.
            let _ = batch.push(frame);
        }
        tables.punts_returned(share, packets);
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

    /// Packets that found no room since the last call.
    pub fn take_lost(&mut self, tables: &Tables) -> u64 {
        let lost = self.socket.take_lost();
        if lost > 0 {
            tables.punts_lost(self.ring, lost);
        }
        lost
    }
}
