// SPDX-License-Identifier: Apache-2.0
//! Router Advertisements that no VM has asked for: what one has been told goes on to be so (RFC 4861 section 6.2.4).

use crate::afpacket::PacketSocket;
use crate::conntrack::Conntrack;
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Time between two: the longest there is is 1,800 s, and what a VM is told holds for 9,000 s.
const PERIOD: Duration = Duration::from_secs(600);

/// When it is time again.
#[derive(Debug, Default)]
pub struct Advertiser(Mutex<Option<Instant>>);

impl Advertiser {
    /// Once a second or so: tells all VMs of this node, if it is time.
    pub fn tend(&self, conntrack: &Conntrack) {
        let mut last = self.0.lock();
        if last.is_some_and(|last| last.elapsed() < PERIOD) {
            return;
        }
        *last = Some(Instant::now());
        for (ifindex, frame) in conntrack.advertisements() {
            // A VM that misses one hears the next.
            let sent = PacketSocket::egress(ifindex).is_ok_and(|socket| socket.send(&frame));
            tracing::debug!("router advertisement to interface {ifindex}: {}", if sent { "sent" } else { "not sent" });
        }
    }
}
