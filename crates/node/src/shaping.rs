// SPDX-License-Identifier: Apache-2.0
//! Shaping of what leaves by customers' lines, and of what VMs send and get: workers hand over what has to wait (`Frame::classes`), one thread sends it
//! when it is due.
//!
//! A packet that waits counts as forwarded already; if it is refused or lost that is taken back, so that the conservation law holds at any
//! time. The thread has no counters of its own: what its ports did not take is told to a worker ([`Shaping::take_unsent`]), and so is what had no room in the second class of two.
//! docs/design/shaping.md

use crate::afpacket::PacketSocket;
use crate::counters::monotonic_ns;
use crate::error::NodeError;
use abi::{DropReason, IfIndex, Vni};
use compile::{CustomerPlan, ShapePlan, Shaped};
use gateway::Classes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use shaper::{Bounds, ClassId, GroupId, GroupLimits, Limits, Refused, Shaper};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tables::{StatsSlot, Tables};

/// What may wait of all lines and VMs together.
const BOUNDS: Bounds = Bounds { bytes: 64 << 20, packets: 1 << 16 };
/// Packets that are sent between two looks at what workers bring.
const BURST: usize = 64;
/// Buffers that are kept for the next packets.
const SPARE: usize = 1024;
/// A line or VM that is about to be shaped no more: what waits leaves at once.
const OPEN: Limits = Limits { rate: 0, burst: 0, bytes: u32::MAX, packets: u32::MAX, horizon: 0 };

/// A packet that waits.
#[derive(Debug)]
struct Waiting {
    data: Vec<u8>,
    ifindex: IfIndex,
    answer: bool,
    vni: Vni,
    /// The class in which it waits next, 0: it is sent.
    then: u16,
}

/// A line that is shaped, or a direction of a VM.
struct Class {
    id: ClassId,
    plan: ShapePlan,
    /// It is about to go.
    open: bool,
}

struct State {
    shaper: Shaper<Waiting>,
    classes: BTreeMap<(Vni, Shaped), Class>,
    /// Rates that lines of a customer share, by port and tag.
    customers: BTreeMap<(u8, u16), (GroupId, CustomerPlan)>,
    /// VPC of each class.
    vnis: Vec<Vni>,
    egress: Arc<HashMap<IfIndex, PacketSocket>>,
    spare: Vec<Vec<u8>>,
    unsent: Unsent,
    refused: Unsent,
    /// The VPCs of those that were refused.
    refused_of: BTreeMap<Vni, u64>,
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

    fn join(&mut self, other: Unsent) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.answers += other.answers;
    }

    /// Takes it back.
    pub fn count(&self, stats: StatsSlot<'_>, reason: DropReason) {
        stats.undo_forwarded(reason, self.packets, self.bytes);
        stats.undo_answers(reason, self.answers);
    }
}

/// What the thread did not send though it was counted.
#[derive(Debug, Default)]
pub struct Lost {
    tx_failed: Unsent,
    full: Unsent,
    full_of: BTreeMap<Vni, u64>,
}

impl Lost {
    /// Takes it back, and counts it as dropped.
    pub fn count(&self, tables: &Tables, stats: StatsSlot<'_>) {
        self.tx_failed.count(stats, DropReason::TxFailed);
        self.full.count(stats, DropReason::ShapedFull);
        for (vni, n) in &self.full_of {
            // No room among the counters by VPC: counted by reason alone.
            let _ = tables.add_drops(*vni, DropReason::ShapedFull, *n);
        }
    }
}

impl State {
    /// The next packet that is to be sent by now. What has waited in the class of its sender waits in that of who gets it.
    fn pop(&mut self, now: u64) -> Option<Waiting> {
        loop {
            let (_, mut w) = self.shaper.pop(now)?;
            let Some(next) = std::mem::take(&mut w.then).checked_sub(1) else { return Some(w) };
            let bytes = w.data.len() as u32;
            if let Err((w, _)) = self.shaper.push(ClassId(next.into()), w, bytes, now) {
                self.refused.add(&w);
                *self.refused_of.entry(w.vni).or_default() += 1;
                self.spare.push(w.data);
            }
        }
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
    /// The VMs that are shaped, each twice: what it gets, and what it sends.
    #[serde(default)]
    pub vms: Vec<ShapedVm>,
    /// The customers whose lines share a rate.
    #[serde(default)]
    pub customers: Vec<ShapedCustomer>,
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
    /// What it does.
    #[serde(flatten)]
    pub class: ShapedClass,
}

/// One direction of a VM.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ShapedVm {
    /// Name of the Vm.
    pub vm: String,
    /// VNI of its VPC.
    pub vni: u32,
    /// `to` the VM, or `from` it.
    pub direction: String,
    /// What it does.
    #[serde(flatten)]
    pub class: ShapedClass,
}

/// A customer whose lines at an edge port share a rate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ShapedCustomer {
    /// Name of the EdgePort.
    pub port: String,
    /// The customer's tag, 0 at a port without tags.
    pub customer: u16,
    /// Bits a second.
    pub rate: u64,
    /// Packets that left by all of them.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
}

/// What a class of the shaper does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ShapedClass {
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

/// Makes the rates that lines share what they are to be. Lines of one that is gone go on without.
fn share(
    shaper: &mut Shaper<Waiting>,
    customers: &mut BTreeMap<(u8, u16), (GroupId, CustomerPlan)>,
    wanted: &[CustomerPlan],
) {
    let limits = |plan: &CustomerPlan| GroupLimits { rate: plan.shape.rate, burst: plan.shape.burst };
    customers.retain(|key, (id, _)| wanted.iter().any(|p| (p.port, p.customer) == *key) || !shaper.remove_group(*id));
    for plan in wanted {
        let new = || (shaper.add_group(&limits(plan)), plan.clone());
        let known = customers.entry((plan.port, plan.customer)).or_insert_with(new);
        if known.1 != *plan {
            shaper.change_group(known.0, &limits(plan));
            known.1 = plan.clone();
        }
    }
}

impl Default for Shaping {
    fn default() -> Self {
        let state = State {
            shaper: Shaper::new(BOUNDS, monotonic_ns()),
            classes: BTreeMap::new(),
            customers: BTreeMap::new(),
            vnis: Vec::new(),
            egress: Arc::default(),
            spare: Vec::new(),
            unsent: Unsent::default(),
            refused: Unsent::default(),
            refused_of: BTreeMap::new(),
            until: None,
            stop: false,
        };
        Self { state: Mutex::new(state), wake: Condvar::new(), thread: Mutex::default() }
    }
}

impl Shaping {
    /// Before the tables are told: the classes of what is shaped, 0 being none. What waits of a line or VM that is shaped no more goes at once, in
    /// front of what will not wait.
    pub fn expect(
        &self,
        plans: &[ShapePlan],
        wanted: &[CustomerPlan],
    ) -> Result<BTreeMap<(Vni, Shaped), u16>, NodeError> {
        let mut turn = self.turn();
        let turn_now = turn.now;
        let State { shaper, classes, customers, vnis, .. } = &mut *turn.state;
        shaper.at(turn_now);
        share(shaper, customers, wanted);
        let mut numbers = BTreeMap::new();
        for plan in plans {
            let key = (plan.vni, plan.what);
            let id = match classes.get_mut(&key) {
                Some(class) => {
                    if class.plan != *plan || class.open {
                        shaper.change(class.id, &limits(plan));
                        (class.plan, class.open) = (plan.clone(), false);
                    }
                    class.id
                }
                None => {
                    let id = shaper.add(&limits(plan));
                    classes.insert(key, Class { id, plan: plan.clone(), open: false });
                    id
                }
            };
            let full =
                || NodeError::Request(format!("{}: more lines and VMs are shaped than there are classes", plan.name));
            shaper.set_group(id, plan.customer.and_then(|key| Some(customers.get(&key)?.0)));
            numbers.insert(key, u16::try_from(id.0 + 1).map_err(|_| full())?);
            if vnis.len() <= id.0 as usize {
                vnis.resize(id.0 as usize + 1, Vni(0));
            }
            vnis[id.0 as usize] = plan.vni;
        }
        for (_, class) in classes.iter_mut().filter(|(key, _)| !numbers.contains_key(key)) {
            class.open = true;
            shaper.set_group(class.id, None);
            shaper.change(class.id, &OPEN);
        }
        Ok(numbers)
    }

    /// When the tables have been told: what is shaped no more is forgotten.
    pub fn settle(&self, wanted: &BTreeMap<(Vni, Shaped), u16>) {
        let mut turn = self.turn();
        let State { shaper, classes, .. } = &mut *turn.state;
        classes.retain(|key, class| wanted.contains_key(key) || !shaper.remove(class.id));
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

    /// What was not sent since the last call.
    pub fn take_unsent(&self) -> Lost {
        let mut state = self.state.lock();
        let (tx_failed, full) = (std::mem::take(&mut state.unsent), std::mem::take(&mut state.refused));
        Lost { tx_failed, full, full_of: std::mem::take(&mut state.refused_of) }
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
            state.unsent.join(std::mem::take(&mut unsent));
            if state.stop {
                return;
            }
            let now = monotonic_ns();
            out.extend(std::iter::from_fn(|| state.pop(now)).take(BURST));
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
        let (mut lines, mut vms) = (Vec::new(), Vec::new());
        for l in state.classes.values() {
            let Some(c) = state.shaper.counts(l.id) else { continue };
            let class = ShapedClass {
                rate: l.plan.shape.rate,
                sent: c.sent,
                sent_bytes: c.sent_bytes,
                dropped: c.dropped,
                waiting: c.waiting.into(),
                waiting_bytes: c.waiting_bytes.into(),
                longest_ns: c.longest,
            };
            let (name, vni) = (l.plan.name.to_string(), l.plan.vni.0);
            match l.plan.what {
                Shaped::Line(line) => lines.push(ShapedLine { overlay: name, vni, line, class }),
                Shaped::ToVm(_) => vms.push(ShapedVm { vm: name, vni, direction: "to".into(), class }),
                Shaped::FromVm(_) => vms.push(ShapedVm { vm: name, vni, direction: "from".into(), class }),
            }
        }
        let customer = |(id, plan): &(GroupId, CustomerPlan)| {
            let (sent, sent_bytes) = state.shaper.group_sent(*id)?;
            let (port, customer) = (plan.name.to_string(), plan.customer);
            Some(ShapedCustomer { port, customer, rate: plan.shape.rate, sent, sent_bytes })
        };
        let customers = state.customers.values().filter_map(customer).collect();
        lines.sort_by(|a, b| a.overlay.cmp(&b.overlay));
        vms.sort_by(|a, b| (&a.vm, &b.direction).cmp(&(&b.vm, &a.direction)));
        ShapingView {
            waiting: waiting.into(),
            waiting_bytes,
            waiting_limit: BOUNDS.packets.into(),
            waiting_bytes_limit: BOUNDS.bytes,
            lines,
            vms,
            customers,
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
    /// Lets a packet wait in its classes, one after the other. If it may not it is counted as dropped: the reason.
    pub fn push(
        &mut self,
        classes: Classes,
        (ifindex, data, answer): (IfIndex, &[u8], bool),
        (tables, stats): (&Tables, StatsSlot<'_>),
    ) -> Option<DropReason> {
        let State { shaper, vnis, spare, .. } = &mut *self.state;
        let id = ClassId(u32::from(classes.first) - 1);
        let vni = vnis.get(id.0 as usize).copied().unwrap_or_default();
        let mut buffer = spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(data);
        let waiting = Waiting { data: buffer, ifindex, answer, vni, then: classes.then };
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
