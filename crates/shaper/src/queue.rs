// SPDX-License-Identifier: Apache-2.0
//! What waits, in one store; a queue is a list through it.

const NONE: u32 = u32::MAX;

/// What waits of a class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    pub first: u32,
    pub last: u32,
    pub packets: u32,
    pub bytes: u32,
}

impl Queue {
    pub const EMPTY: Queue = Queue { first: NONE, last: NONE, packets: 0, bytes: 0 };
}

#[derive(Debug)]
struct Entry<T> {
    item: Option<T>,
    since: u64,
    bytes: u32,
    /// The next one of the queue, or of those that are free.
    next: u32,
}

/// What waits of all classes.
#[derive(Debug)]
pub(crate) struct Store<T> {
    entries: Vec<Entry<T>>,
    free: u32,
    used: u32,
}

impl<T> Store<T> {
    pub fn new() -> Store<T> {
        Store { entries: Vec::new(), free: NONE, used: 0 }
    }

    pub fn len(&self) -> u32 {
        self.used
    }

    pub fn bytes(&self, at: u32) -> u32 {
        self.entries.get(at as usize).map_or(0, |e| e.bytes)
    }

    pub fn push(&mut self, queue: &mut Queue, item: T, bytes: u32, since: u64) {
        let entry = Entry { item: Some(item), since, bytes, next: NONE };
        let at = match self.entries.get_mut(self.free as usize) {
            Some(place) => {
                let at = std::mem::replace(&mut self.free, place.next);
                *place = entry;
                at
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        match self.entries.get_mut(queue.last as usize) {
            Some(last) => last.next = at,
            None => queue.first = at,
        }
        queue.last = at;
        queue.packets += 1;
        queue.bytes += bytes;
        self.used += 1;
    }

    /// The first of a queue, its bytes, and since when it waits.
    pub fn pop(&mut self, queue: &mut Queue) -> Option<(T, u32, u64)> {
        let at = queue.first;
        let entry = self.entries.get_mut(at as usize)?;
        let item = entry.item.take()?;
        let found = (item, entry.bytes, entry.since);
        queue.first = std::mem::replace(&mut entry.next, self.free);
        self.free = at;
        if queue.first == NONE {
            queue.last = NONE;
        }
        queue.packets -= 1;
        queue.bytes -= found.1;
        self.used -= 1;
        Some(found)
    }
}
