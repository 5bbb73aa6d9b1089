// SPDX-License-Identifier: Apache-2.0
//! The wheel: slots of time, each with the classes whose first packet is due in it. A bit a slot, and one for 64 of them, say which are
//! not empty, so that the next one is found in three steps, however long nothing is due.

use crate::Class;

/// Length of a slot, ns: no packet leaves later than that after its time, as far as the wheel goes.
pub const SLOT: u64 = 1 << 16;
/// Slots. What is due later than all of them stands in the last one and is looked at again.
pub const SLOTS: usize = 8192;

/// `Class::slot` of a class that stands in no slot.
pub(crate) const NOWHERE: u16 = u16::MAX;
const NONE: u32 = u32::MAX;
const WORDS: usize = SLOTS / 64;

#[derive(Debug)]
pub(crate) struct Wheel {
    /// First and last class of each slot.
    slots: Vec<(u32, u32)>,
    used: [u64; WORDS],
    /// Which words of `used` are not 0.
    words: u128,
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
        let due = due.div_ceil(SLOT).max(now / SLOT);
        let tick = due.clamp(self.tick, self.tick + SLOTS as u64 - 1);
        let slot = (tick % SLOTS as u64) as usize;
        let (first, last) = self.slots[slot];
        let class = &mut classes[i];
        (class.before, class.after, class.slot, class.far) = (last, NONE, slot as u16, due > tick);
        match classes.get_mut(last as usize) {
            Some(before) => {
                before.after = i as u32;
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
        let Class { slot, before, after, .. } = classes[i];
        classes[i].slot = NOWHERE;
        let ends = &mut self.slots[usize::from(slot)];
        match classes.get_mut(before as usize) {
            Some(class) => class.after = after,
            None => ends.0 = after,
        }
        match classes.get_mut(after as usize) {
            Some(class) => class.before = before,
            None => ends.1 = before,
        }
        if ends.0 == NONE {
            let (word, bit) = (usize::from(slot) / 64, slot % 64);
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

    /// Takes out the first class whose slot has come, and says whether it is due later than the wheel reached when it was put there.
    pub fn first(&mut self, classes: &mut [Class], now: u64) -> Option<(usize, bool)> {
        let end = now / SLOT;
        let Some(tick) = self.next_tick().filter(|tick| *tick <= end) else {
            self.tick = self.tick.max(end);
            return None;
        };
        self.tick = tick;
        let i = self.slots[(tick % SLOTS as u64) as usize].0 as usize;
        let far = classes.get(i)?.far;
        self.take_out(classes, i);
        Some((i, far))
    }

    /// When the first class is due, ns.
    pub fn next(&self) -> Option<u64> {
        self.next_tick().map(|tick| tick * SLOT)
    }
}
