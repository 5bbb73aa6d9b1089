// SPDX-License-Identifier: Apache-2.0
//! What happens next. Of events at one time the one that was entered first comes first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Events in the order of their times.
#[derive(Debug)]
pub struct Queue<E> {
    order: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, E>,
    number: u64,
}

impl<E> Default for Queue<E> {
    fn default() -> Queue<E> {
        Queue { order: BinaryHeap::new(), events: BTreeMap::new(), number: 0 }
    }
}

impl<E> Queue<E> {
    /// Something will happen at a time.
    pub fn at(&mut self, time: u64, event: E) {
        self.number += 1;
        self.order.push(Reverse((time, self.number)));
        self.events.insert(self.number, event);
    }

    /// When the next event of a sort happens.
    pub fn first(&self, is: impl Fn(&E) -> bool) -> Option<u64> {
        let times = self.order.iter().filter(|Reverse((_, number))| self.events.get(number).is_some_and(&is));
        times.map(|Reverse((time, _))| *time).min()
    }

    /// Puts all events off by so many milliseconds, but those that stay.
    pub fn put_off(&mut self, by: u64, stays: impl Fn(&E) -> bool, mut change: impl FnMut(&mut E)) {
        let order = std::mem::take(&mut self.order);
        for Reverse((time, number)) in order.into_vec() {
            let Some(event) = self.events.get_mut(&number) else { continue };
            let time = if stays(event) {
                time
            } else {
                change(event);
                time + by
            };
            self.order.push(Reverse((time, number)));
        }
    }

    /// The next event, with its time.
    pub fn next(&mut self) -> Option<(u64, E)> {
        let Reverse((time, number)) = self.order.pop()?;
        Some((time, self.events.remove(&number)?))
    }
}
