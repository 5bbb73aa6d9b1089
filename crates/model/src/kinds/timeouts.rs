// SPDX-License-Identifier: Apache-2.0
//! Timeouts of sessions: the node's, and where a VPC has others, its own.

use crate::declare::{below, Field, Form, Slot};
use crate::doc::Doc;
use crate::forms::seconds;
use crate::written::Written;

/// Seconds, in the order of [`TIMEOUTS`].
pub type Timeouts = [u32; 10];

/// Name, seconds if nothing is said, and what each is about.
pub const TIMEOUTS: [(&str, u32, &str); 10] = [
    ("tcpEstablished", 7440, "TCP, established (RFC 5382 REQ-5: at least 2 h 4 min). A change reaches sessions that live within five minutes."),
    ("tcpHalfOpen", 240, "TCP, handshake not done (RFC 5382 REQ-5: 4 min)."),
    ("tcpHalfOpenPressure", 20, "The same while the VPC is above 80% of its sessions, or the node above 90%: less than RFC 5382 asks for, so that floods do not keep others out."),
    ("tcpClosing", 240, "TCP with a FIN; TIME_WAIT."),
    ("tcpClosingPressure", 30, "The same under pressure."),
    ("tcpReset", 10, "TCP after a RST."),
    ("udp", 300, "UDP and other protocols, seen from both sides (RFC 4787 REQ-5: at least 2 min, 5 recommended)."),
    ("udpOneSided", 30, "The same, one packet from one side."),
    ("udpOneWay", 120, "The same, several packets from one side."),
    ("icmp", 60, "ICMP echo (RFC 5508 REQ-2: at least 60 s)."),
];

/// The node's timeouts if nothing is said.
pub fn usual_timeouts() -> Timeouts {
    TIMEOUTS.map(|t| t.1)
}

/// The node's, or those of one VPC, of which 0 is the node's.
pub(crate) enum TimeoutsSlot {
    Node,
    Vpc,
}

impl Slot for TimeoutsSlot {
    type Value = Timeouts;

    fn rows(&self, path: &str, _: &str, out: &mut Vec<Field>) {
        for (name, usual, meaning) in TIMEOUTS {
            let (default, meaning) = match self {
                TimeoutsSlot::Node => (usual.to_string(), meaning),
                TimeoutsSlot::Vpc => {
                    ("the Gateway's".into(), "The same of `spec.sessions.timeouts` of the Gateway, for this VPC alone.")
                }
            };
            out.push(seconds().row(&below(path, name), default, meaning));
        }
    }

    fn usual(&self) -> Timeouts {
        match self {
            TimeoutsSlot::Node => usual_timeouts(),
            TimeoutsSlot::Vpc => [0; 10],
        }
    }

    fn read(&self, doc: &mut Doc<'_>, path: &str) -> Timeouts {
        let mut all = self.usual();
        if doc.node(path).is_some() {
            for ((name, ..), value) in TIMEOUTS.into_iter().zip(&mut all) {
                *value = doc.get(&below(path, name), &seconds()).unwrap_or(*value);
            }
        }
        all
    }

    fn write(&self, value: &Timeouts, out: &mut Written, path: &str) {
        for (((name, ..), own), usual) in TIMEOUTS.into_iter().zip(value).zip(self.usual()) {
            if *own != usual {
                out.value(&below(path, name), &seconds(), own);
            }
        }
    }
}
