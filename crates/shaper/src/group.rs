// SPDX-License-Identifier: Apache-2.0
//! Groups: a rate that several classes share, above the rate of each.
//!
//! A class of a group that is due by its own bucket stands in the group's list, and the group in the slot in which its bucket lets the first of
//! the list send. So classes take turns, packet by packet; one that has nothing leaves its part to the others, and nothing is searched.

use crate::bucket::Bucket;
use crate::{wheel, Class, ClassId, Rare, Shaper, State, FREE};

/// No group, or no class.
pub(crate) const NONE: u32 = u32::MAX;
/// `Class::slot` of a class that stands in its group's list.
pub(crate) const IN_LIST: u16 = wheel::NOWHERE - 1;

/// A group, by its place, which it shares with classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u32);

/// What a group may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimits {
    /// Bits a second of all its classes together. 0: it has no end.
    pub rate: u64,
    /// Bytes that may leave at once when nothing has left for a while.
    pub burst: u32,
}

impl<T> Shaper<T> {
    /// A new group without classes.
    pub fn add_group(&mut self, limits: &GroupLimits) -> GroupId {
        let at = self.place();
        let i = at as usize;
        (self.classes[i], self.rare[i]) = (Class { state: State::Group, ..FREE }, Rare::NEW);
        self.classes[i].bucket.reset(self.now);
        self.apply_group(i, limits);
        GroupId(at)
    }

    /// Other limits for a group: they hold for what waits, too. False: there is no such group.
    pub fn change_group(&mut self, id: GroupId, limits: &GroupLimits) -> bool {
        let there = self.group(id).is_some();
        if there {
            self.apply_group(id.0 as usize, limits);
        }
        there
    }

    /// Ends a group: its classes go on without one. False: there is no such group.
    pub fn remove_group(&mut self, id: GroupId) -> bool {
        let Some(group) = self.group(id) else { return false };
        for i in 0..self.classes.len() {
            if self.rare[i].group == id.0 && self.classes[i].state != State::Free {
                self.move_class(i, NONE);
            }
        }
        self.release(group);
        true
    }

    /// Puts a class into a group, or into none: from now on, also with what waits. False: there is no such class or group.
    pub fn set_group(&mut self, class: ClassId, group: Option<GroupId>) -> bool {
        let Some(i) = self.open(class) else { return false };
        if group.is_some_and(|id| self.group(id).is_none()) {
            return false;
        }
        let wanted = group.map_or(NONE, |id| id.0);
        if self.rare[i].group != wanted {
            self.move_class(i, wanted);
        }
        true
    }

    /// Packets of a group that left, and their bytes.
    pub fn group_sent(&self, id: GroupId) -> Option<(u64, u64)> {
        let i = self.group(id)?;
        Some((self.rare[i].sent, self.rare[i].sent_bytes))
    }

    fn group(&self, id: GroupId) -> Option<usize> {
        let i = id.0 as usize;
        self.classes.get(i).is_some_and(|c| c.state == State::Group).then_some(i)
    }

    fn apply_group(&mut self, i: usize, limits: &GroupLimits) {
        let now = self.now;
        let group = &mut self.classes[i];
        // What it has not used so far is no more than full.
        if group.queue.packets == 0 {
            group.bucket.idle(now);
        }
        group.bucket.change(limits.rate, now);
        group.burst = limits.burst;
        if self.classes[i].queue.packets > 0 {
            self.stand(i);
        }
    }

    /// Gives a class another group.
    pub(crate) fn move_class(&mut self, i: usize, group: u32) {
        self.leave_slot(i);
        self.rare[i].group = group;
        if self.classes[i].queue.packets > 0 {
            self.stand(i);
        }
    }

    /// A class stands nowhere any more.
    pub(crate) fn leave_slot(&mut self, i: usize) {
        match self.classes[i].slot {
            wheel::NOWHERE => {}
            IN_LIST => self.leave_list(i),
            _ => self.wheel.take_out(&mut self.classes, i),
        }
    }

    /// A class that is due joins the list of its group, at its end.
    pub(crate) fn join_list(&mut self, i: usize) {
        let g = self.rare[i].group as usize;
        (self.classes[i].slot, self.rare[i].next) = (IN_LIST, NONE);
        let now = self.now;
        self.rare[i].joined = now;
        let list = &mut self.classes[g].queue;
        list.packets += 1;
        if list.packets == 1 {
            (list.first, list.last) = (i as u32, i as u32);
            self.classes[g].bucket.idle(now);
            self.stand(g);
            return;
        }
        let last = std::mem::replace(&mut list.last, i as u32);
        self.rare[last as usize].next = i as u32;
    }

    /// The class whose turn it is in a group leaves the list.
    pub(crate) fn take_first(&mut self, g: usize) -> Option<usize> {
        let first = self.classes[g].queue.first;
        let Rare { next, joined, .. } = *self.rare.get(first as usize)?;
        let list = &mut self.classes[g].queue;
        list.first = next;
        list.packets -= 1;
        if next == NONE {
            list.last = NONE;
        }
        let class = &mut self.classes[first as usize];
        class.slot = wheel::NOWHERE;
        class.bucket.waited(joined, self.now);
        Some(first as usize)
    }

    /// Takes a class out of the list of its group, which is searched: only a change of the class comes here.
    fn leave_list(&mut self, i: usize) {
        let g = self.rare[i].group as usize;
        let (mut before, mut at) = (NONE, self.classes[g].queue.first);
        while at != NONE && at != i as u32 {
            (before, at) = (at, self.rare[at as usize].next);
        }
        if at == NONE {
            return;
        }
        let next = self.rare[i].next;
        match self.rare.get_mut(before as usize) {
            Some(rare) => rare.next = next,
            None => self.classes[g].queue.first = next,
        }
        let list = &mut self.classes[g].queue;
        if next == NONE {
            list.last = before;
        }
        list.packets -= 1;
        self.classes[i].slot = wheel::NOWHERE;
        if before == NONE {
            self.leave_slot(g);
            if self.classes[g].queue.packets > 0 {
                self.stand(g);
            }
        }
    }

    /// When a group's bucket lets the first of its list send.
    pub(crate) fn group_due(&self, g: usize) -> u64 {
        let Class { bucket, burst, queue, .. } = &self.classes[g];
        let first = self.classes.get(queue.first as usize).map_or(NONE, |c| c.queue.first);
        Bucket::due(bucket, *burst, self.store.bytes(first))
    }

    /// All lists are empty: what waited was taken away.
    pub(crate) fn clear_lists(&mut self) {
        for class in self.classes.iter_mut().filter(|c| c.state == State::Group) {
            class.queue = crate::queue::Queue::EMPTY;
        }
    }
}
