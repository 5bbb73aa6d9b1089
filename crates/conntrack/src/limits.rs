// SPDX-License-Identifier: Apache-2.0
//! What sessions may take: timeouts, quotas, sizes.

use abi::Vni;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::Duration;

/// How long a session lives after its last packet. Every one must lie between 1 s and 1 day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP, established (RFC 5382 REQ-5: at least 2 h 4 min).
    pub established: Duration,
    /// TCP, handshake not done, from its last step, not from retransmissions.
    pub half_open: Duration,
    /// The same under pressure.
    pub half_open_pressure: Duration,
    /// TCP with a FIN, or with a RST in doubt; TIME_WAIT.
    pub closing: Duration,
    /// The same under pressure.
    pub closing_pressure: Duration,
    /// TCP after a RST.
    pub reset: Duration,
    /// UDP and others, seen from both sides (RFC 4787 REQ-5).
    pub udp: Duration,
    /// UDP and others, one packet from one side.
    pub udp_one_sided: Duration,
    /// UDP and others, several packets from one side.
    pub udp_one_way: Duration,
    /// ICMP echo (RFC 5508 REQ-2).
    pub icmp: Duration,
}

/// Timeouts of one tenant in seconds, in the order of [`Timeouts::each`]; 0: the node's.
pub type OwnTimeouts = [u32; 10];

impl Timeouts {
    /// Every one.
    pub fn each(&mut self) -> [&mut Duration; 10] {
        [
            &mut self.established,
            &mut self.half_open,
            &mut self.half_open_pressure,
            &mut self.closing,
            &mut self.closing_pressure,
            &mut self.reset,
            &mut self.udp,
            &mut self.udp_one_sided,
            &mut self.udp_one_way,
            &mut self.icmp,
        ]
    }
}

/// Which timeout; the order of [`Timeouts::each`].
#[derive(Clone, Copy)]
pub(crate) enum Life {
    Established,
    HalfOpen,
    HalfOpenPressure,
    Closing,
    ClosingPressure,
    Reset,
    Udp,
    UdpOneSided,
    UdpOneWay,
    Icmp,
}

/// Timeouts that change while they are read, in ms; 0: none.
#[derive(Default)]
pub(crate) struct Lives([AtomicU32; 10]);

impl Lives {
    pub(crate) fn set(&self, timeouts: &Timeouts) {
        let mut timeouts = *timeouts;
        for (to, from) in self.0.iter().zip(timeouts.each()) {
            to.store(from.as_millis().clamp(1, u32::MAX.into()) as u32, Relaxed);
        }
    }

    pub(crate) fn set_own(&self, own: &OwnTimeouts) {
        self.0.iter().zip(own).for_each(|(to, s)| to.store(s.saturating_mul(1000), Relaxed));
    }

    pub(crate) fn get(&self) -> Timeouts {
        let mut timeouts = Timeouts::default();
        for (to, from) in timeouts.each().into_iter().zip(&self.0) {
            *to = Duration::from_millis(from.load(Relaxed).into());
        }
        timeouts
    }

    /// One, in ns.
    pub(crate) fn ns(&self, life: Life) -> u64 {
        u64::from(self.0[life as usize].load(Relaxed)) * 1_000_000
    }
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        let s = Duration::from_secs;
        Timeouts {
            established: s(7440),
            half_open: s(240),
            half_open_pressure: s(20),
            closing: s(240),
            closing_pressure: s(30),
            reset: s(10),
            udp: s(300),
            udp_one_sided: s(30),
            udp_one_way: s(120),
            icmp: s(60),
        }
    }
}

/// What a tracker may take.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Sessions at most (an IPv6 session counts as two).
    pub sessions: u32,
    /// Sessions for which room is made at the start.
    pub initial: u32,
    /// Random per node, so that nobody can choose keys that collide. An attached memory keeps its own.
    pub salt: u64,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Limits of tenants for which none are set.
    pub tenant: TenantLimits,
    /// Percent of `sessions` above which every tenant is under pressure.
    pub water_level: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            sessions: 1 << 20,
            initial: 1 << 16,
            salt: 0,
            timeouts: Timeouts::default(),
            tenant: TenantLimits::default(),
            water_level: 90,
        }
    }
}

/// What a tenant (a VNI) may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantLimits {
    /// Sessions.
    pub sessions: u32,
    /// Sessions of one VM.
    pub vm_sessions: u32,
    /// Half-open sessions.
    pub half_open: u32,
}

impl TenantLimits {
    /// What a tenant may take of a node's `sessions` if nobody said: a quarter (a million at most), of that half for one VM (100,000
    /// at most) and half for half-open ones (50,000 at most). So one tenant alone cannot fill the table.
    pub fn share_of(sessions: u32) -> TenantLimits {
        let all = (sessions / 4).clamp(1, 1_000_000);
        let half = (all / 2).max(1);
        TenantLimits { sessions: all, vm_sessions: half.min(100_000), half_open: half.min(50_000) }
    }
}

impl Default for TenantLimits {
    fn default() -> TenantLimits {
        TenantLimits { sessions: u32::MAX, vm_sessions: u32::MAX, half_open: u32::MAX }
    }
}

/// Counters of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantStats {
    /// VNI.
    pub vni: Vni,
    /// Sessions now.
    pub sessions: u32,
    /// Half-open sessions now.
    pub half_open: u32,
    /// Those that the fast path serves: see [`crate::Tracker::exclude_from_offload`].
    pub fast: u32,
    /// Sessions begun.
    pub created: u64,
    /// Sessions evicted for newer ones.
    pub evicted: u64,
    /// New connections refused: the tenant's sessions.
    pub refused_tenant: u64,
    /// New connections refused: the VM's sessions.
    pub refused_vm: u64,
    /// New connections refused: half-open sessions.
    pub refused_half_open: u64,
    /// New connections refused: the node's sessions.
    pub refused_full: u64,
    /// Whether half-open sessions live short now.
    pub pressure: bool,
    /// What it may take.
    pub limits: TenantLimits,
}
