// SPDX-License-Identifier: Apache-2.0
//! The wheel: slots of time, each with the classes whose first packet is due in it. A bit a slot, and one for 64 of them, say which are
//! not empty, so that the next one is found in three steps, however long nothing is due.

use crate::Class;

/// Length of a slot, ns: no packet leaves later than that after its time, as far as the wheel goes.
pub const SLOT: u64 = 1 << 15;
/// Slots. What is due later than all of them stands in the last one and is looked at again.
pub const SLOTS: usize = 4096;

/// `Links::slot` of a class that stands in no slot.
pub(crate) const NOWHERE: u32 = u32::MAX;
const NONE: u32 = u32::MAX;
const WORDS: usize = SLOTS / 64;

/// Where a class stands: its slot, and its neighbours in the slot's list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    pub slot: u32,
    before: u32,
    after: u32,
    /// When its first packet is due, in slots.
    tick: u64,
}

impl Links {
    pub const NONE: Links = Links { slot: NOWHERE, before: NONE, after: NONE, tick: 0 };
}

#[derive(Debug)]
pub(crate) struct Wheel {
    /// First and last class of each slot.
    slots: Vec<(u32, u32)>,
    used: [u64; WORDS],
    /// Which words of `used` are not 0.
    words: u64,
    /// The slot that is served, as a time. No class stands in one before it.
    tick: u64,
}

impl Wheel {
    pub fn new(now: u64) -> Wheel {
        Wheel { slots: vec![(NONE, NONE); SLOTS], used: [0; WORDS], words: 0, tick: now / SLOT }
    }

    /// Puts class `i` into the slot in which it is due, behind those that stand there. Of what is due already the time of now counts, so
    /// that a class that is always due comes behind all that are due by then.
    pub fn put(&mut self, classes: &mut [Class], i: usize, due: u64, now: u64) {
        let due = due.div_ceil(SLOT);
        self.put_at(classes, i, due.max(now / SLOT));
    }

    fn put_at(&mut self, classes: &mut [Class], i: usize, due: u64) {
        let tick = due.clamp(self.tick, self.tick + SLOTS as u64 - 1);
        let slot = (tick % SLOTS as u64) as usize;
        let (first, last) = self.slots[slot];
        classes[i].links = Links { slot: slot as u32, before: last, after: NONE, tick: due };
        match classes.get_mut(last as usize) {
            Some(before) => {
                before.links.after = i as u32;
                self.slots[slot] = (first, i as u32);
            }
            None => {
                self.slots[slot] = (i as u32, i as u32);
                self.used[slot / 64] |= 1 << (slot % 64);
                self.words |= 1 << (slot / 64);
            }
        }
    }

    /// Takes class `i` out of the slot in which it stands.
    pub fn take_out(&mut self, classes: &mut [Class], i: usize) {
        let Links { slot, before, after, .. } = std::mem::replace(&mut classes[i].links, Links::NONE);
        let ends = &mut self.slots[slot as usize];
        match classes.get_mut(before as usize) {
            Some(class) => class.links.after = after,
            None => ends.0 = after,
        }
        match classes.get_mut(after as usize) {
            Some(class) => class.links.before = before,
            None => ends.1 = before,
        }
        if ends.0 == NONE {
            let (word, bit) = (slot as usize / 64, slot % 64);
            self.used[word] &= !(1 << bit);
            if self.used[word] == 0 {
                self.words &= !(1 << word);
            }
        }
    }

    /// The first slot from the one that is served on that is not empty, as a time.
    fn next_tick(&self) -> Option<u64> {
        let start = (self.tick % SLOTS as u64) as usize;
        let (word, bit) = (start / 64, start % 64);
        let here = self.used[word] >> bit;
        if here != 0 {
            return Some(self.tick + u64::from(here.trailing_zeros()));
        }
        // From the next word on, once around, and at last what is in this word before the slot.
        let turned = self.words.rotate_right(word as u32 + 1);
        let far = turned.trailing_zeros() as usize;
        if far >= WORDS {
            return None;
        }
        let found = (word + 1 + far) % WORDS;
        let slot = found * 64 + self.used[found].trailing_zeros() as usize;
        Some(self.tick + ((slot + SLOTS - start) % SLOTS) as u64)
    }

    /// Takes out the first class that is due by now.
    pub fn first_due(&mut self, classes: &mut [Class], now: u64) -> Option<usize> {
        let end = now / SLOT;
        loop {
            let tick = self.next_tick().filter(|tick| *tick <= end);
            let Some(tick) = tick else {
                self.tick = self.tick.max(end);
                return None;
            };
            self.tick = tick;
            let i = self.slots[(tick % SLOTS as u64) as usize].0 as usize;
            let due = classes.get(i)?.links.tick;
            self.take_out(classes, i);
            if due <= end {
                return Some(i);
            }
            // It is due later than the wheel reached.
            self.put_at(classes, i, due);
        }
    }

    /// When the first class is due, ns.
    pub fn next(&self) -> Option<u64> {
        self.next_tick().map(|tick| tick * SLOT)
    }
}
