// SPDX-License-Identifier: Apache-2.0
//! Shaping of what leaves by customers' lines: workers hand over what has to wait (`Frame::class`), one thread sends it when it is due.
//!
//! A packet that waits counts as forwarded already; if it is refused or lost that is taken back, so that the conservation law holds at any
//! time. The thread has no counters of its own: what its ports did not take is told to a worker ([`Shaping::take_unsent`]).
//! docs/design/shaping.md

use crate::afpacket::PacketSocket;
use crate::counters::monotonic_ns;
use crate::error::NodeError;
use abi::{DropReason, IfIndex, Vni};
use compile::ShapePlan;
use parking_lot::{Condvar, Mutex, MutexGuard};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use shaper::{Bounds, ClassId, Limits, Refused, Shaper};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tables::{StatsSlot, Tables};

/// What may wait of all lines together.
const BOUNDS: Bounds = Bounds { bytes: 64 << 20, packets: 1 << 16 };
/// Packets that are sent between two looks at what workers bring.
const BURST: usize = 64;
/// Buffers that are kept for the next packets.
const SPARE: usize = 1024;
/// A line that is about to go: what waits leaves at once.
const OPEN: Limits = Limits { rate: 0, burst: 0, bytes: u32::MAX, packets: u32::MAX, horizon: 0 };

/// A packet that waits.
#[derive(Debug)]
struct Waiting {
    data: Vec<u8>,
    ifindex: IfIndex,
    answer: bool,
    vni: Vni,
}

/// A line that is shaped.
struct Line {
    id: ClassId,
    plan: ShapePlan,
    /// It is about to go.
    open: bool,
}

struct State {
    shaper: Shaper<Waiting>,
    lines: BTreeMap<(Vni, u8), Line>,
    /// VPC of each class.
    vnis: Vec<Vni>,
    egress: Arc<HashMap<IfIndex, PacketSocket>>,
    spare: Vec<Vec<u8>>,
    unsent: Unsent,
    /// Until when the thread sleeps, if it does.
    until: Option<u64>,
    stop: bool,
}

/// What did not leave though it was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsent {
    packets: u64,
    bytes: u64,
    answers: u64,
}

impl Unsent {
    fn add(&mut self, w: &Waiting) {
        match w.answer {
            true => self.answers += 1,
            false => (self.packets, self.bytes) = (self.packets + 1, self.bytes + w.data.len() as u64),
        }
    }

    /// Takes it back.
    pub fn count(&self, stats: StatsSlot<'_>, reason: DropReason) {
        stats.undo_forwarded(reason, self.packets, self.bytes);
        stats.undo_answers(reason, self.answers);
    }
}

/// The shaper of a node.
pub struct Shaping {
    state: Mutex<State>,
    wake: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// `GET /v1/shaping`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ShapingView {
    /// Packets that wait.
    pub waiting: u64,
    /// Their bytes.
    pub waiting_bytes: u64,
    /// Packets that may wait altogether.
    pub waiting_limit: u64,
    /// Bytes that may wait altogether.
    pub waiting_bytes_limit: u64,
    /// The lines that are shaped.
    pub lines: Vec<ShapedLine>,
}

/// One line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ShapedLine {
    /// Name of its Overlay.
    pub overlay: String,
    /// VNI of its VPC.
    pub vni: u32,
    /// `spec.line`.
    pub line: u8,
    /// Bits a second.
    pub rate: u64,
    /// Packets that left.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets that were dropped, for as much waited as may.
    pub dropped: u64,
    /// Packets that wait.
    pub waiting: u64,
    /// Their bytes.
    pub waiting_bytes: u64,
    /// The longest time that a packet that left has waited, ns.
    pub longest_ns: u64,
}

fn limits(plan: &ShapePlan) -> Limits {
    let s = plan.shape;
    let horizon = u64::from(s.wait) * 1_000_000;
    Limits { rate: s.rate, burst: s.burst, bytes: s.bytes, packets: s.packets, horizon }
}

impl Default for Shaping {
    fn default() -> Self {
        let state = State {
            shaper: Shaper::new(BOUNDS, monotonic_ns()),
            lines: BTreeMap::new(),
            vnis: Vec::new(),
            egress: Arc::default(),
            spare: Vec::new(),
            unsent: Unsent::default(),
            until: None,
            stop: false,
        };
        Self { state: Mutex::new(state), wake: Condvar::new(), thread: Mutex::default() }
    }
}

impl Shaping {
    /// Before the tables are told: classes of the lines that are shaped, by VPC and line, 0 being none. What waits of a line that is shaped
    /// no more goes at once, in front of what will not wait.
    pub fn expect(&self, plans: &[ShapePlan]) -> Result<BTreeMap<(Vni, u8), u16>, NodeError> {
        let mut turn = self.turn();
        let turn_now = turn.now;
        let State { shaper, lines, vnis, .. } = &mut *turn.state;
        shaper.at(turn_now);
        let mut numbers = BTreeMap::new();
        for plan in plans {
            let key = (plan.vni, plan.line);
            let id = match lines.get_mut(&key) {
                Some(line) => {
                    if line.plan != *plan || line.open {
                        shaper.change(line.id, &limits(plan));
                        (line.plan, line.open) = (plan.clone(), false);
                    }
                    line.id
                }
                None => {
                    let id = shaper.add(&limits(plan));
                    lines.insert(key, Line { id, plan: plan.clone(), open: false });
                    id
                }
            };
            let full = || {
                NodeError::Request(format!("Overlay {}: more lines are shaped than there are classes", plan.overlay))
            };
            numbers.insert(key, u16::try_from(id.0 + 1).map_err(|_| full())?);
            if vnis.len() <= id.0 as usize {
                vnis.resize(id.0 as usize + 1, Vni(0));
            }
            vnis[id.0 as usize] = plan.vni;
        }
        for (_, line) in lines.iter_mut().filter(|(key, _)| !numbers.contains_key(key)) {
            line.open = true;
            shaper.change(line.id, &OPEN);
        }
        Ok(numbers)
    }

    /// When the tables have been told: lines that are shaped no more are forgotten.
    pub fn settle(&self, classes: &BTreeMap<(Vni, u8), u16>) {
        let mut turn = self.turn();
        let State { shaper, lines, .. } = &mut *turn.state;
        lines.retain(|key, line| classes.contains_key(key) || !shaper.remove(line.id));
    }

    /// The ports that the thread sends by from now on; starts it.
    pub fn serve(self: &Arc<Self>, egress: HashMap<IfIndex, PacketSocket>) -> std::io::Result<()> {
        let mut state = self.state.lock();
        (state.egress, state.stop) = (Arc::new(egress), false);
        drop(state);
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let own = self.clone();
            *thread = Some(std::thread::Builder::new().name("tunny-shaper".into()).spawn(move || own.run())?);
        }
        Ok(())
    }

    /// Ends the thread. Returns what waited, which is lost, by VPC.
    pub fn stop(&self) -> (Unsent, BTreeMap<Vni, u64>) {
        self.state.lock().stop = true;
        self.wake.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            if thread.join().is_err() {
                tracing::error!("the shaper ended by a panic; please report it");
            }
        }
        let (mut lost, mut by_vpc) = (Unsent::default(), BTreeMap::new());
        for w in self.state.lock().shaper.clear() {
            lost.add(&w);
            *by_vpc.entry(w.vni).or_default() += 1;
        }
        (lost, by_vpc)
    }

    /// What ports did not take since the last call.
    pub fn take_unsent(&self) -> Unsent {
        std::mem::take(&mut self.state.lock().unsent)
    }

    /// Hands packets over, one worker at a time.
    pub fn turn(&self) -> Turn<'_> {
        Turn { state: self.state.lock(), wake: &self.wake, now: monotonic_ns() }
    }

    fn run(&self) {
        let (mut out, mut unsent) = (Vec::new(), Unsent::default());
        let mut state = self.state.lock();
        loop {
            for Waiting { data, .. } in out.drain(..) {
                if state.spare.len() < SPARE {
                    state.spare.push(data);
                }
            }
            let Unsent { packets, bytes, answers } = std::mem::take(&mut unsent);
            state.unsent.packets += packets;
            state.unsent.bytes += bytes;
            state.unsent.answers += answers;
            if state.stop {
                return;
            }
            let now = monotonic_ns();
            out.extend(std::iter::from_fn(|| state.shaper.pop(now).map(|(_, w)| w)).take(BURST));
            if out.is_empty() {
                self.sleep(&mut state, now);
                continue;
            }
            let egress = state.egress.clone();
            MutexGuard::unlocked(&mut state, || {
                for w in &out {
                    if !egress.get(&w.ifindex).is_some_and(|socket| socket.send(&w.data)) {
                        unsent.add(w);
                    }
                }
            });
        }
    }

    /// Until something is due, or a worker brings what is due sooner.
    fn sleep(&self, state: &mut MutexGuard<'_, State>, now: u64) {
        let next = state.shaper.next();
        state.until = Some(next.unwrap_or(u64::MAX));
        match next {
            Some(at) => drop(self.wake.wait_for(state, Duration::from_nanos(at.saturating_sub(now)))),
            None => self.wake.wait(state),
        }
        state.until = None;
    }

    /// What it does.
    pub fn view(&self) -> ShapingView {
        let state = self.state.lock();
        let (waiting, waiting_bytes) = state.shaper.waiting();
        let line = |l: &Line| {
            let c = state.shaper.counts(l.id)?;
            Some(ShapedLine {
                overlay: l.plan.overlay.to_string(),
                vni: l.plan.vni.0,
                line: l.plan.line,
                rate: l.plan.shape.rate,
                sent: c.sent,
                sent_bytes: c.sent_bytes,
                dropped: c.dropped,
                waiting: c.waiting.into(),
                waiting_bytes: c.waiting_bytes.into(),
                longest_ns: c.longest,
            })
        };
        let mut lines: Vec<ShapedLine> = state.lines.values().filter_map(line).collect();
        lines.sort_by(|a, b| a.overlay.cmp(&b.overlay));
        ShapingView {
            waiting: waiting.into(),
            waiting_bytes,
            waiting_limit: BOUNDS.packets.into(),
            waiting_bytes_limit: BOUNDS.bytes,
            lines,
        }
    }
}

impl crate::service::Node {
    /// `GET /v1/shaping`.
    pub fn shaping(&self) -> ShapingView {
        self.conntrack.shaping().view()
    }
}

/// A worker's turn to hand packets over. When it ends the thread is woken, if something is due sooner than it sleeps.
pub struct Turn<'a> {
    state: MutexGuard<'a, State>,
    wake: &'a Condvar,
    now: u64,
}

impl Turn<'_> {
    /// Lets a packet wait in its class. Else it is counted as dropped: the reason.
    pub fn push(
        &mut self,
        class: u16,
        (ifindex, data, answer): (IfIndex, &[u8], bool),
        (tables, stats): (&Tables, StatsSlot<'_>),
    ) -> Option<DropReason> {
        let State { shaper, vnis, spare, .. } = &mut *self.state;
        let id = ClassId(u32::from(class) - 1);
        let vni = vnis.get(id.0 as usize).copied().unwrap_or_default();
        let mut buffer = spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(data);
        let waiting = Waiting { data: buffer, ifindex, answer, vni };
        let (waiting, why) = shaper.push(id, waiting, data.len() as u32, self.now).err()?;
        let reason = match why {
            Refused::Class | Refused::Whole => DropReason::ShapedFull,
            Refused::Unknown => DropReason::ShapedLost,
        };
        let mut lost = Unsent::default();
        lost.add(&waiting);
        lost.count(stats, reason);
        // No room among the counters by VPC: it is counted by reason alone.
        let _ = tables.count_drop(vni, reason);
        spare.push(waiting.data);
        Some(reason)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let next = self.state.shaper.next();
        if self.state.until.zip(next).is_some_and(|(until, next)| next < until) {
            self.state.until = next;
            self.wake.notify_one();
        }
    }
}
