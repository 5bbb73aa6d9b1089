// SPDX-License-Identifier: Apache-2.0
//! What goes into the tracker and comes out of it.

use crate::{Counts, Direction, InnerKey, L4View, OuterKey, Owner, SessionRef, State};
use abi::{DropReason, Vni};
use std::net::IpAddr;

/// What a new session is made of.
#[derive(Clone, Copy, Debug)]
pub struct NewSession {
    /// What the VM sends.
    pub inner: InnerKey,
    /// What the Internet sends. Of the same family and protocol.
    pub outer: OuterKey,
    /// Who translates.
    pub owner: Owner,
    /// Which way the first packet goes.
    pub direction: Direction,
    /// Its transport part.
    pub view: L4View,
    /// Its bytes (of the inner IP packet).
    pub bytes: u32,
    /// The tenant's present policy epoch.
    pub epoch: u16,
    /// Whether TCP without SYN may begin a session (POLICY_PICKUP).
    pub pick_up: bool,
}

/// Why there is no new session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The inner key has one already (another worker was faster): judge the packet by it.
    Exists(SessionRef),
    /// The outer key belongs to another session: choose another port.
    OuterTaken,
    /// The packet is dropped, with this reason.
    Drop(DropReason),
}

/// Whether a packet of a session goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It does.
    Forward,
    /// It is dropped, with this reason.
    Drop(DropReason),
    /// The session has ended meanwhile: the packet is one without a session.
    Gone,
}

/// What judging a packet did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// Whether the packet goes on.
    pub verdict: Verdict,
    /// State before.
    pub before: State,
    /// State after.
    pub after: State,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// Its time was up; the state tells which.
    Timeout,
    /// It was closed by FIN or RST and its waiting time was up.
    Closed,
    /// It gave way to a newer session of its tenant.
    Evicted,
    /// It was removed: configuration or operator.
    Removed,
    /// A new connection with the same addresses and ports took its place.
    Reopened,
    /// The configuration no longer gives its VPC the public address that it was translated to.
    Untranslated,
}

impl EndReason {
    /// Name as in the session log.
    pub fn name(self) -> &'static str {
        match self {
            EndReason::Timeout => "timeout",
            EndReason::Closed => "closed",
            EndReason::Evicted => "evicted",
            EndReason::Removed => "removed",
            EndReason::Reopened => "reopened",
            EndReason::Untranslated => "translation",
        }
    }
}

/// A session as shown or logged: a copy.
#[derive(Clone, Copy, Debug)]
pub struct SessionInfo {
    /// Inner key.
    pub inner: InnerKey,
    /// Outer key.
    pub outer: OuterKey,
    /// Who translates.
    pub owner: Owner,
    /// State.
    pub state: State,
    /// Whether the remote side began it.
    pub from_outside: bool,
    /// Policy epoch.
    pub epoch: u16,
    /// When it began, ns.
    pub start: u64,
    /// When a packet was last taken, ns.
    pub last: u64,
    /// Packets and bytes.
    pub counts: Counts,
}

/// A session that ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// What it was, with its last state.
    pub session: SessionInfo,
    /// Why it ended.
    pub reason: EndReason,
    /// Whether its outer key is free now (not so when it was reopened).
    pub released: bool,
}

/// What `expire` did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Sessions looked at.
    pub visited: u32,
    /// Sessions ended.
    pub ended: u32,
    /// Whether work that is due is left over.
    pub more: bool,
}

/// What `attach` found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recovered {
    /// Sessions.
    pub sessions: u64,
    /// Sessions that lacked index entries (the tracker before was killed while making them).
    pub completed: u64,
    /// Index entries without their session, removed.
    pub dangling: u64,
    /// Sessions that contradicted others or themselves, removed.
    pub refused: u64,
}

/// Why there is no tracker.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// No memory.
    #[error(
        "Session memory could not grow: {0}. Lower limits.sessions of the Gateway, or give the machine more memory."
    )]
    Memory(#[from] std::io::Error),
    /// Not ours.
    #[error(
        "The session memory was written with another layout: export its sessions with the version that wrote them."
    )]
    Layout,
    /// Impossible limits.
    #[error("{0} sessions do not fit into session memory: at most {1}.")]
    TooMany(u32, u32),
}

/// Which sessions are wanted.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// VNI.
    pub vni: Option<Vni>,
    /// Protocol number.
    pub proto: Option<u8>,
    /// Address of the VM.
    pub vm: Option<IpAddr>,
    /// Port of the VM.
    pub vm_port: Option<u16>,
    /// Public address.
    pub public: Option<IpAddr>,
    /// Public port.
    pub public_port: Option<u16>,
    /// Remote address.
    pub remote: Option<IpAddr>,
    /// Remote port.
    pub remote_port: Option<u16>,
    /// State.
    pub state: Option<State>,
}

/// How far a listing has come. `Cursor::default()` is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(pub u32);

/// Counters of the tracker.
#[derive(Clone, Copy, Debug, Default)]
pub struct TrackerStats {
    /// Sessions now.
    pub sessions: u64,
    /// Sessions for which there is room without growth.
    pub room: u64,
    /// Sessions at most.
    pub limit: u64,
    /// Bytes of session memory.
    pub memory_bytes: u64,
    /// Bytes of the tracker's own heap.
    pub heap_bytes: u64,
    /// Sessions begun.
    pub created: u64,
    /// Sessions ended, by `EndReason` in order of declaration.
    pub ended: [u64; 6],
}

/// Where ended sessions are told; called without locks held on the session.
pub type EndSink<'a> = &'a mut dyn FnMut(&Ended);
