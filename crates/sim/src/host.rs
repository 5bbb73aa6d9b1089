// SPDX-License-Identifier: Apache-2.0
//! Hosts: each sends what its VMs send to the addresses that it was told last.

use crate::world::{Event, World};
use node::distribution::Upstream;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// A host.
#[derive(Debug, Default)]
pub struct Host {
    /// Where it sends, by VNI.
    pub sends: BTreeMap<u32, Vec<IpAddr>>,
    /// By which revision.
    pub revision: u64,
    /// The VNIs that it asks for; none: all.
    pub vnis: Option<BTreeSet<u32>>,
    /// It does not reach any controller before this time.
    pub cut_until: u64,
    /// The last line that is on its way arrives then, and the last word of the host.
    last: u64,
    said: u64,
}

impl World {
    /// A controller that leads tells a host, if there is anything new.
    pub fn tell_host(&mut self, c: usize, h: usize) {
        let controller = &self.controllers[c];
        if !controller.writes(self.now) || self.now < self.hosts[h].cut_until {
            return;
        }
        let Some(core) = &controller.core else { return };
        let state = (core.region.placed_at(), core.fleet.admissions());
        if controller.told.get(&h) == Some(&state) {
            return;
        }
        let known = core.known(controller.clock(self.now));
        let upstream = match &self.hosts[h].vnis {
            Some(vnis) => known.upstream(vnis.iter().copied()),
            None => known.upstream(core.region.upstreams()),
        };
        self.controllers[c].told.insert(h, state);
        let at = (self.now + self.travel(40, h)).max(self.hosts[h].last + 1);
        self.hosts[h].last = at;
        self.queue.at(at, Event::Hear(h, Box::new(upstream)));
    }

    pub(crate) fn hears(&mut self, h: usize, upstream: Upstream) {
        let (now, revision) = (self.now, upstream.revision);
        let host = &mut self.hosts[h];
        if now < host.cut_until {
            // The connection is broken: another one begins with all there is.
            self.controllers.iter_mut().for_each(|c| _ = c.told.remove(&h));
            return;
        }
        (host.sends, host.revision) = (upstream.vnis, revision);
        if self.plant == Some(crate::world::Plant::Astray) && now > 60_000 {
            self.hosts[h].sends.clear();
        }
        let at = (now + self.travel(41, h)).max(self.hosts[h].said + 1);
        self.hosts[h].said = at;
        if let Some(c) = (0..self.controllers.len()).find(|c| self.controllers[*c].writes(now)) {
            self.queue.at(at, Event::Switched(h, c, revision));
        }
    }

    pub(crate) fn switched(&mut self, h: usize, c: usize, revision: u64) {
        let (now, controller) = (self.now, &mut self.controllers[c]);
        if now < self.hosts[h].cut_until || now < controller.stalled_until {
            controller.told.remove(&h);
            return;
        }
        let Some(core) = &mut controller.core else { return };
        if core.hosts.switched(&format!("h{h}").into(), revision) {
            let epoch = controller.epoch;
            self.queue.at(now, Event::Look(c, epoch, false));
        }
    }
}
