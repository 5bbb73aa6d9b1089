// SPDX-License-Identifier: Apache-2.0
//! Shaping: packets of a class wait until its rate lets them go ("Carousel", SIGCOMM 2017: departure times and one timing wheel).
//!
//! A [`Shaper`] holds classes, and what waits of each in a queue of its own. A token bucket says when the first packet of a queue may leave; by
//! this time the class stands in a slot of the [`wheel`]. [`Shaper::pop`] gives one packet of the class whose slot comes first, and puts the class
//! into the slot of its next packet. So each packet costs one step in and one out, however many classes there are, the order within a
//! class is that of its queue, and a new rate holds for what waits already. Classes may share a further rate, that of their [`group`].
//!
//! Time is a number of nanoseconds that the caller gives; it never runs backwards here, and what waits is bounded, by class and altogether.
//! docs/design/shaping.md

#![forbid(unsafe_code)]

mod bucket;
mod group;
mod queue;
pub mod wheel;

use bucket::Bucket;
pub use group::{GroupId, GroupLimits};
use queue::{Queue, Store};
use wheel::Wheel;

/// How a late wake-up is made good: a class whose packets wait is given what it missed, up to this time of its rate, ns.
pub const LATE: u64 = 100_000_000;

/// What a class may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bits a second. 0: what waits goes at once.
    pub rate: u64,
    /// Bytes that may leave at once when nothing has left for a while.
    pub burst: u32,
    /// Bytes that may wait.
    pub bytes: u32,
    /// Packets that may wait.
    pub packets: u32,
    /// How long what waits may take to leave, ns: with `rate` another limit of bytes.
    pub horizon: u64,
}

/// What may wait of all classes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u32,
}

/// A class, by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClassId(pub u32);

/// Why a packet may not wait. It is counted as dropped in its class, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The class has as much waiting as it may.
    Class,
    /// All classes together have so much waiting that this one gets no more.
    Whole,
    /// There is no such class.
    Unknown,
}

/// What a class did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that left.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets that were refused, or taken away by [`Shaper::clear`].
    pub dropped: u64,
    /// Packets that wait.
    pub waiting: u32,
    /// Their bytes.
    pub waiting_bytes: u32,
    /// The longest time that a packet that left has waited, ns.
    pub longest: u64,
}

/// What is said of a class seldom.
#[derive(Clone, Copy, Debug)]
struct Rare {
    sent: u64,
    sent_bytes: u64,
    dropped: u64,
    longest: u64,
    /// Since when it stands in the list of its group.
    joined: u64,
    /// Its group.
    group: u32,
    /// The next one in the list of its group.
    next: u32,
}

impl Rare {
    const NEW: Rare =
        Rare { sent: 0, sent_bytes: 0, dropped: 0, longest: 0, joined: 0, group: group::NONE, next: group::NONE };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Open,
    /// It was removed, and is free when the last packet has left.
    Closing,
    /// It is a group, whose queue is the list of its classes that are due.
    Group,
}

/// What each packet of a class touches: one line of the cache.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Class {
    bucket: Bucket,
    burst: u32,
    queue: Queue,
    limit_bytes: u32,
    limit_packets: u32,
    /// Its neighbours in the list of its slot.
    before: u32,
    after: u32,
    slot: u16,
    /// It is due later than the wheel reaches.
    far: bool,
    state: State,
}

const FREE: Class = Class {
    bucket: Bucket::UNLIMITED,
    burst: 0,
    queue: Queue::EMPTY,
    limit_bytes: 0,
    limit_packets: 0,
    before: 0,
    after: 0,
    slot: wheel::NOWHERE,
    far: false,
    state: State::Free,
};

/// Classes, what waits of them, and the wheel.
#[derive(Debug)]
pub struct Shaper<T> {
    classes: Vec<Class>,
    rare: Vec<Rare>,
    free: std::collections::VecDeque<u32>,
    store: Store<T>,
    wheel: Wheel,
    bounds: Bounds,
    waiting_bytes: u64,
    now: u64,
}

const _: () = assert!(size_of::<Class>() == 64);

/// Bytes of memory that a class takes while nothing of it waits.
pub const CLASS_BYTES: usize = size_of::<Class>() + size_of::<Rare>();

impl<T> Shaper<T> {
    /// Without classes. `now`: the first time, ns.
    pub fn new(bounds: Bounds, now: u64) -> Shaper<T> {
        Shaper {
            classes: Vec::new(),
            rare: Vec::new(),
            free: std::collections::VecDeque::new(),
            store: Store::new(),
            wheel: Wheel::new(now),
            bounds,
            waiting_bytes: 0,
            now,
        }
    }

    /// A new class. Of the places that are free it takes the one that is free for longest, so that who knows an old number too long meets
    /// nobody else's class soon.
    pub fn add(&mut self, limits: &Limits) -> ClassId {
        let at = self.place();
        let i = at as usize;
        (self.classes[i], self.rare[i]) = (Class { state: State::Open, ..FREE }, Rare::NEW);
        self.classes[i].bucket.reset(self.now);
        self.apply(i, limits);
        ClassId(at)
    }

    fn place(&mut self) -> u32 {
        self.free.pop_front().unwrap_or_else(|| {
            self.classes.push(FREE);
            self.rare.push(Rare::NEW);
            self.classes.len() as u32 - 1
        })
    }

    /// Other limits for a class: they hold for what waits, too. Nothing is dropped if more waits than may now. False: there is no such class.
    pub fn change(&mut self, id: ClassId, limits: &Limits) -> bool {
        let open = self.open(id).is_some();
        if open {
            self.apply(id.0 as usize, limits);
        }
        open
    }

    /// Ends a class: what waits goes at once, in its order. False: there is no such class.
    pub fn remove(&mut self, id: ClassId) -> bool {
        let Some(i) = self.open(id) else { return false };
        self.move_class(i, group::NONE);
        let class = &mut self.classes[i];
        class.state = State::Closing;
        class.bucket.change(0, self.now);
        if class.queue.packets == 0 {
            self.release(i);
        } else {
            self.stand(i);
        }
        true
    }

    fn apply(&mut self, i: usize, limits: &Limits) {
        let class = &mut self.classes[i];
        class.bucket.change(limits.rate, self.now);
        class.burst = limits.burst;
        let by_time = u128::from(limits.rate) * u128::from(limits.horizon) / 8_000_000_000;
        let by_time = if limits.rate == 0 { u128::MAX } else { by_time };
        class.limit_bytes = u128::from(limits.bytes).min(by_time) as u32;
        class.limit_packets = limits.packets.max(1);
        if class.queue.packets > 0 {
            self.stand(i);
        }
    }

    fn open(&self, id: ClassId) -> Option<usize> {
        let i = id.0 as usize;
        self.classes.get(i).is_some_and(|c| c.state == State::Open).then_some(i)
    }

    /// Puts a class into the slot of its first packet.
    fn stand(&mut self, i: usize) {
        self.leave_slot(i);
        let due = self.due(i);
        self.wheel.put(&mut self.classes, i, due, self.now);
    }

    /// When the first packet of a class, or of a group, may leave.
    fn due(&self, i: usize) -> u64 {
        let class = &self.classes[i];
        if class.state == State::Group {
            return self.group_due(i);
        }
        class.bucket.due(class.burst, self.store.bytes(class.queue.first))
    }

    fn release(&mut self, i: usize) {
        self.classes[i] = FREE;
        self.free.push_back(i as u32);
    }

    /// The time goes on, as [`Shaper::push`] and [`Shaper::pop`] say it, too.
    pub fn at(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    /// Lets a packet wait for its class's turn, or gives it back.
    pub fn push(&mut self, id: ClassId, item: T, bytes: u32, now: u64) -> Result<(), (T, Refused)> {
        self.at(now);
        let i = id.0 as usize;
        let Some(class) = self.classes.get_mut(i).filter(|c| matches!(c.state, State::Open | State::Closing)) else {
            return Err((item, Refused::Unknown));
        };
        let (q, first) = (class.queue, class.queue.packets == 0);
        // One packet may always wait, however slow the class is.
        let fits = first
            || (q.packets < class.limit_packets
                && u64::from(q.bytes) + u64::from(bytes) <= u64::from(class.limit_bytes));
        // Of all that may wait a class has at most as much as is free (dynamic thresholds, Choudhury and Hahne 1998).
        let (packets, free_bytes) = (self.store.len(), self.bounds.bytes.saturating_sub(self.waiting_bytes));
        let whole = q.packets < self.bounds.packets.saturating_sub(packets)
            && u64::from(q.bytes) + u64::from(bytes) <= free_bytes;
        if !fits || !whole {
            self.rare[i].dropped += 1;
            return Err((item, if fits { Refused::Whole } else { Refused::Class }));
        }
        if first {
            class.bucket.idle(self.now);
        }
        self.waiting_bytes += u64::from(bytes);
        self.store.push(&mut class.queue, item, bytes, self.now);
        if first {
            self.stand(i);
        }
        Ok(())
    }

    /// The next packet that may leave, if there is one by now. Who calls it until there is none has what is due.
    pub fn pop(&mut self, now: u64) -> Option<(ClassId, T)> {
        self.at(now);
        let (i, group) = loop {
            let (i, far) = self.wheel.first(&mut self.classes, self.now)?;
            if far && self.due(i).div_ceil(wheel::SLOT) > self.now / wheel::SLOT {
                self.stand(i);
            } else if self.classes[i].state == State::Group {
                break (self.take_first(i)?, Some(i));
            } else if self.rare[i].group != group::NONE {
                self.join_list(i);
            } else {
                break (i, None);
            }
        };
        let class = &mut self.classes[i];
        let (item, bytes, since) = self.store.pop(&mut class.queue)?;
        class.bucket.leaves(bytes, self.now);
        self.waiting_bytes -= u64::from(bytes);
        let rare = &mut self.rare[i];
        rare.sent += 1;
        rare.sent_bytes += u64::from(bytes);
        rare.longest = rare.longest.max(self.now - since);
        let (left, closing) = (class.queue.packets, class.state == State::Closing);
        match left {
            0 if closing => self.release(i),
            0 => {}
            _ => self.stand(i),
        }
        if let Some(g) = group {
            self.group_left(g, bytes);
        }
        Some((ClassId(i as u32), item))
    }

    /// A packet of a class of the group has left.
    fn group_left(&mut self, g: usize, bytes: u32) {
        self.classes[g].bucket.leaves(bytes, self.now);
        self.rare[g].sent += 1;
        self.rare[g].sent_bytes += u64::from(bytes);
        if self.classes[g].queue.packets > 0 {
            self.stand(g);
        }
    }

    /// When [`Shaper::pop`] has something to give, ns. None: nothing waits.
    pub fn next(&self) -> Option<u64> {
        self.wheel.next()
    }

    /// Takes away all that waits: it counts as dropped.
    pub fn clear(&mut self) -> Vec<T> {
        let mut out = Vec::new();
        for i in 0..self.classes.len() {
            match std::mem::replace(&mut self.classes[i].slot, wheel::NOWHERE) {
                wheel::NOWHERE | group::IN_LIST => {}
                slot => {
                    self.classes[i].slot = slot;
                    self.wheel.take_out(&mut self.classes, i);
                }
            }
            if self.classes[i].state == State::Group {
                continue;
            }
            while let Some((item, ..)) = self.store.pop(&mut self.classes[i].queue) {
                self.rare[i].dropped += 1;
                out.push(item);
            }
            if self.classes[i].state == State::Closing {
                self.release(i);
            }
        }
        self.clear_lists();
        self.waiting_bytes = 0;
        out
    }

    /// What a class did.
    pub fn counts(&self, id: ClassId) -> Option<Counts> {
        let i = self.open(id)?;
        let (class, rare) = (&self.classes[i], &self.rare[i]);
        Some(Counts {
            sent: rare.sent,
            sent_bytes: rare.sent_bytes,
            dropped: rare.dropped,
            waiting: class.queue.packets,
            waiting_bytes: class.queue.bytes,
            longest: rare.longest,
        })
    }

    /// Packets that wait, and their bytes.
    pub fn waiting(&self) -> (u32, u64) {
        (self.store.len(), self.waiting_bytes)
    }
}
