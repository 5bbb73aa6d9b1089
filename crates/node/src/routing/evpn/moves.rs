// SPDX-License-Identifier: Apache-2.0
//! MAC addresses that move, and those that move too often (RFC 7432 §15.1). No clock of its own.

use abi::Mac;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// So many moves within the time are too many (RFC 7432 §15.1: N = 5, M = 180 s).
pub const MOVES: usize = 5;
/// The time; and how long a MAC address must rest to be followed again.
pub const WITHIN: Duration = Duration::from_secs(180);

#[derive(Debug)]
struct Moved {
    at: IpAddr,
    /// Where it claims to be: a move is a change of this, followed or not.
    claimed: IpAddr,
    gone: bool,
    times: VecDeque<Instant>,
}

/// The moves of a VPC.
#[derive(Debug, Default)]
pub struct Moves {
    macs: HashMap<Mac, Moved>,
}

impl Moves {
    /// A MAC address claims a place: where it is held to be.
    pub fn place(&mut self, mac: Mac, claimed: IpAddr, now: Instant) -> IpAddr {
        let new = || Moved { at: claimed, claimed, gone: false, times: VecDeque::new() };
        let m = self.macs.entry(mac).or_insert_with(new);
        m.fade(now);
        if m.claimed != claimed || m.gone {
            if m.times.len() == MOVES {
                m.times.pop_front();
            }
            m.times.push_back(now);
            (m.claimed, m.gone) = (claimed, false);
        }
        if m.times.len() < MOVES {
            m.at = claimed;
        }
        m.at
    }

    /// Those that are nowhere now may come back, which is a move; who rests for the whole time is forgotten.
    pub fn forget(&mut self, now: Instant, present: &BTreeSet<Mac>) {
        self.macs.retain(|mac, m| {
            m.fade(now);
            m.gone |= !present.contains(mac) && m.times.len() < MOVES;
            !m.gone || !m.times.is_empty()
        });
    }

    /// Lets those go that have rested; whether there is one.
    pub fn release(&mut self, now: Instant) -> bool {
        let held = |m: &Moved| m.times.len() == MOVES;
        let mut any = false;
        for m in self.macs.values_mut().filter(|m| held(m)) {
            m.fade(now);
            any |= !held(m);
        }
        any
    }
}

impl Moved {
    /// A move counts for as long as the time; one that is held, until it has rested so long.
    fn fade(&mut self, now: Instant) {
        let old = |t: &Instant| now.saturating_duration_since(*t) >= WITHIN;
        if self.times.len() == MOVES {
            if self.times.back().is_some_and(old) {
                self.times.clear();
            }
            return;
        }
        while self.times.front().is_some_and(old) {
            self.times.pop_front();
        }
    }
}
