// SPDX-License-Identifier: Apache-2.0
//! No acknowledged change is lost: of each object the store has what was told to be so last, and nodes that hosts send to come to have it. In a region of
//! full size what was told of late is looked at, and all at the end.

use super::BOUND;
use crate::requests::Told;
use crate::things;
use crate::world::{Plant, World};
use model::{Kind, Name, Object};

/// What is looked at.
type Key = (Kind, Name);

impl World {
    /// What was told to be so and is to be looked at, without what is being asked for. `ripe`: it was told so long ago that nodes must have it.
    fn told_now(&mut self, ripe: bool) -> Vec<(Key, Told)> {
        let (now, is_old) = (self.now, |since: u64, now: u64| !ripe || now >= since + BOUND);
        let told = &self.clients.told;
        let found = |key: &Key| {
            told.get(key).filter(|t| !t.open && !t.unsure && is_old(t.since, now)).map(|t| (key.clone(), t.clone()))
        };
        if !self.skips || self.is_over() {
            return told.keys().filter_map(found).collect();
        }
        let recent = &mut self.clients.recent;
        let number = recent.iter().take_while(|(since, _)| is_old(*since, now)).count();
        let keys: Vec<Key> = recent.iter().take(number).map(|(_, key)| key.clone()).collect();
        if ripe {
            recent.drain(..number);
        }
        keys.iter().filter_map(found).collect()
    }

    pub(super) fn check_kept(&mut self) {
        let told = self.told_now(false);
        if self.plant == Some(Plant::Forgets) && self.now > 60_000 {
            let acknowledged = told.iter().find(|(key, told)| key.0 == Kind::Vm && told.object.is_some());
            acknowledged.into_iter().for_each(|(key, _)| drop(self.store.objects.remove(key)));
        }
        let is_lost = |(key, told): &&(Key, Told)| self.store.objects.get(key).map(|o| &o.0) != told.object.as_ref();
        let lost = told.iter().find(is_lost).map(|((kind, name), told)| {
            let since = told.since as f64 / 1000.0;
            let word = if told.object.is_some() { "to be so" } else { "to be gone" };
            format!("{kind} {name} was told {word} at {since:.3} s, and is not in the store")
        });
        let differs = |o: &Object| self.store.objects.get(&(o.kind(), o.name())).is_none_or(|s| s.0 != *o);
        let untouched = || self.is_over().then(|| self.clients.untouched().find(differs)).flatten();
        let what = lost.or_else(|| {
            untouched()
                .map(|o| format!("{} {} was there from the beginning, and is not in the store", o.kind(), o.name()))
        });
        if let Some(what) = what {
            self.fails("kept", what);
        }
    }

    /// What was told to be so is on each node that a host's packets come to.
    pub(super) fn check_told(&mut self) {
        if !self.is_calm() {
            return;
        }
        let told = self.told_now(true);
        let inside = told.iter().filter(|(key, _)| things::is_inside(key.0));
        let what = { inside }.find_map(|(key, told)| {
            let since = told.since as f64 / 1000.0;
            let object = told.object.as_ref()?;
            let vpcs = things::vpcs_of(object).iter();
            let why = { vpcs }.find_map(|vpc| (0..self.hosts.len()).find_map(|h| self.lacks(h, vpc, key, object)))?;
            Some(format!("{} {} was told to be so at {since:.3} s, and {why}", key.0, key.1))
        });
        if let Some(what) = what {
            self.fails("kept", what);
        }
    }

    /// Why an object of a VPC is not what packets from a host meet.
    fn lacks(&self, h: usize, vpc: &Name, (kind, name): &Key, object: &Object) -> Option<String> {
        let nodes = self.reached(h, vpc)?;
        if nodes.is_empty() {
            return Some(format!("host {h} reaches no node with VPC {vpc}"));
        }
        let lacks = nodes.iter().find(|n| self.nodes[**n].serves(*kind, name) != Some(object))?;
        Some(format!("node {lacks}, to which host {h} sends, has it not as it should"))
    }
}
