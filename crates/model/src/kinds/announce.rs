// SPDX-License-Identifier: Apache-2.0
//! The Gateway's part about what a node announces, by kernel routes that a routing daemon redistributes.

use crate::declare::fields;
use crate::forms::*;

/// Whether a node announces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Announcing {
    /// It enters no routes.
    #[default]
    Off,
    /// What it serves, while it serves.
    On,
    /// Nothing; what was announced is marked first.
    Drain,
}

impl Announcing {
    /// Every choice with its text.
    pub const ALL: [(&'static str, Announcing); 3] =
        [("off", Announcing::Off), ("on", Announcing::On), ("drain", Announcing::Drain)];
}

/// What becomes of the routes when the daemon is told to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStop {
    /// They are marked, and then go.
    #[default]
    Withdraw,
    /// They stay, as if the daemon had died.
    Hold,
}

impl OnStop {
    /// Every choice with its text.
    pub const ALL: [(&'static str, OnStop); 2] = [("withdraw", OnStop::Withdraw), ("hold", OnStop::Hold)];
}

fields! {
    /// What a node announces by a routing daemon beside it: kernel routes, which FRR redistributes.
    #[derive(Copy)]
    pub struct Announce {
        /// `on`: while the node serves, and a region that it follows admits it, the kernel has a route (`blackhole`, metric 8400) for each of its tunnel addresses, the ranges of its PublicPools (of one that is divided its own shares), its ElasticIps and the IPv6 prefixes of its Snats. `drain`: the routes get metric 8401, which FRR is to say as GRACEFUL_SHUTDOWN, and go after `grace`. `off`: there are none.
        state: Announcing = "state", choice(&Announcing::ALL).or(Announcing::Off).shy();
        /// The kernel's table of these routes; 254 is the main one.
        table: u32 = "table", int(1, u32::MAX as u64).or(254).shy();
        /// Their protocol in the kernel. Two nodes in one network namespace need two.
        protocol: u8 = "protocol", int(5, 255).or(abi::ANNOUNCE_PROTOCOL).shy();
        /// Seconds between the mark and the end of a route that goes by plan.
        grace: u16 = "grace", int(0, 3600).or(5).shy();
        /// Seconds for which a dead daemon's routes stay while its fast path forwards. `tunny watchdog` ends them then, and at once if the program is off a port or no port is up.
        hold: u32 = "hold", int(0, 86_400).or(60).shy();
        /// What becomes of the routes when the daemon is told to stop (SIGTERM). `withdraw`: they are marked and go after `grace`. `hold`: as if it had died, for a restart that moves no connection; only where a fast path goes on and a watchdog runs, else as `withdraw`.
        on_stop: OnStop = "onStop", choice(&OnStop::ALL).or(OnStop::Withdraw).shy();
    }
}
