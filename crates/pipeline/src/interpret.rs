// SPDX-License-Identifier: Apache-2.0
//! The interpreter: runs a key through the tables and records a [`Traversal`].
//!
//! Callers wait on an explicit stack of frames, so that nothing recurses however a program is written, and what is left to do is
//! part of every step's [`Entry`]. A frame with nothing left to do is not part of it: `resubmit` as the last action is a jump.
//! Bounds are those of Open vSwitch: resubmits to the same or an earlier table nest 64 deep, 4096 resubmits in all.
use crate::action::{Action, CtAction};
use crate::conntrack::CtCall;
use crate::field::{Field, Prereq, Subfield};
use crate::group::action_set;
use crate::key::{Key, Mask};
use crate::learn::Learn;
use crate::op::{Machine, Need, Op, Reason, Sink, Target, ToController};
use crate::pipeline::{Pipeline, RuleId};
use crate::traversal::{need_before, Check, Entry, Failure, Remark, Return, Step, Traversal};
use std::sync::Arc;

mod rewrite;

/// Nested resubmits to the same or an earlier table.
pub const DEPTH_MAX: u16 = 64;
/// Resubmits in one pass.
pub const RESUBMITS_MAX: u32 = 4096;
/// Ops in one pass.
pub const OPS_MAX: usize = 1 << 16;
/// Remarks that a pass keeps; the rest is counted.
pub const REMARKS_MAX: usize = 100;

struct Frame {
    actions: Arc<[Action]>,
    next: usize,
    /// How deep its own resubmits are nested.
    depth: u16,
    table: u8,
    /// Runs on a copy of the key; set until the copy is made.
    copy: Copy,
    /// See [`Traversal::apart`].
    apart: bool,
    /// `exit` ends it and nothing else: a group's bucket, or what depends on a packet's length.
    bucket: bool,
    /// What it runs for.
    why: Why,
    /// The action set runs it, whatever tables lie between.
    in_set: bool,
    branch: Option<Branch>,
    /// What all frames below have left to do: that does not change while this one is there.
    below: Option<Arc<Return>>,
}

/// What depends on the outcome of a check.
struct Branch {
    check: usize,
    /// The action set that counts behind it.
    set: Vec<Action>,
    /// Its own action set has begun to run.
    set_begun: bool,
}

impl Branch {
    /// Whether its action set has not run yet; from now on it has.
    fn begin_set(&mut self) -> bool {
        !std::mem::replace(&mut self.set_begun, true)
    }
}

/// Whose actions a frame runs: a controller is told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    Flow,
    TableMiss,
    Bucket,
}

impl Why {
    fn of(miss: bool) -> Why {
        match miss {
            true => Why::TableMiss,
            false => Why::Flow,
        }
    }
}

/// What a lookup found.
struct Looked {
    rule: Option<RuleId>,
    priority: u16,
    loose: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Copy {
    No,
    Due,
    Made,
}

struct Run<'a> {
    pipeline: &'a Pipeline,
    machine: Machine,
    frames: Vec<Frame>,
    /// Frames that run on a copy.
    copies: usize,
    steps: Vec<Step>,
    depth: u16,
    resubmits: u32,
    ops: usize,
    set: Vec<Action>,
    /// The action set of the pass has begun to run. It does so once: what is written to it from then on is not done.
    set_begun: bool,
    /// Outcomes of the first checks, if they do not depend on the packet.
    assumed: &'a [bool],
    checks: Vec<Check>,
    failed: Option<Failure>,
    remarks: Vec<(u32, Remark)>,
    apart: Vec<(u32, u32)>,
    more_remarks: usize,
}

/// Ops that send something run again with a real sink; here they must not.
struct Nobody;

impl Sink for Nobody {
    fn output(&mut self, _: &Target, _: &Key) {}
    fn ct(&mut self, _: &Arc<CtCall>, _: &mut Key) {}
}

impl Pipeline {
    /// One pass from a point of the program. Depends on nothing else.
    pub fn pass(&self, entry: &Entry, key: &Key) -> Traversal {
        self.pass_of(entry, key, usize::MAX)
    }

    /// The first lookups of a pass, `most` of them: then the traversal is broken off where the next one has been made. What it did until then
    /// is as in the whole pass, unless that fails later on.
    pub fn pass_of(&self, entry: &Entry, key: &Key, most: usize) -> Traversal {
        self.pass_assuming(entry, key, most, &[])
    }

    /// The same with the outcomes of the first `check_pkt_larger` given.
    pub(crate) fn pass_assuming(&self, entry: &Entry, key: &Key, most: usize, assumed: &[bool]) -> Traversal {
        let mut run = Run {
            pipeline: self,
            machine: Machine::new(*key),
            frames: Vec::new(),
            copies: 0,
            steps: Vec::new(),
            depth: entry.depth,
            resubmits: 0,
            ops: 0,
            set: Vec::new(),
            set_begun: entry.in_set,
            assumed,
            checks: Vec::new(),
            failed: None,
            remarks: Vec::new(),
            apart: Vec::new(),
            more_remarks: 0,
        };
        for r in entry.returns.iter().flat_map(|r| r.outwards()) {
            run.frames.push(Frame {
                actions: r.actions.clone(),
                next: r.next as usize,
                depth: r.depth,
                table: r.table,
                copy: Copy::No,
                apart: false,
                bucket: false,
                why: Why::of(r.miss),
                in_set: r.in_set,
                branch: None,
                below: r.below(),
            });
        }
        run.frames.reverse();
        run.table(entry.table, entry.in_port, entry.ct, Some(entry.deeper));
        run.all(most);
        let end = run.machine.key;
        let Run { steps, failed, remarks, apart, checks, more_remarks, .. } = run;
        Traversal { steps, failed, end, remarks, apart, checks, more_remarks }
    }
}

impl Run<'_> {
    fn all(&mut self, most: usize) {
        while self.failed.is_none() && self.steps.len() <= most {
            let Some(frame) = self.frames.last_mut() else {
                if self.set.is_empty() || std::mem::replace(&mut self.set_begun, true) {
                    break;
                }
                self.run_set();
                continue;
            };
            if frame.copy == Copy::Due {
                frame.copy = Copy::Made;
                if let Some(step) = self.steps.last().filter(|_| frame.apart) {
                    self.apart.push((self.steps.len() as u32 - 1, step.ops.len() as u32));
                }
                self.emit(Op::Save);
                continue;
            }
            match frame.actions.get(frame.next) {
                Some(_) => {
                    frame.next += 1;
                    let (actions, at) = (frame.actions.clone(), frame.next - 1);
                    self.action(&actions[at]);
                }
                None if !self.set.is_empty() && frame.branch.as_mut().is_some_and(Branch::begin_set) => self.run_set(),
                None => self.leave(),
            }
        }
        for n in 0..self.steps.len() {
            let mut need = Need::default();
            need_before(&self.steps[n], &mut need);
            self.steps[n].mask = need.mask;
        }
    }

    fn table_now(&self) -> u8 {
        self.frames.last().map_or(0, |f| f.table)
    }

    /// What the list that runs now is run for.
    fn why(&self) -> Why {
        self.frames.last().map_or(Why::Flow, |f| f.why)
    }

    fn in_set(&self) -> bool {
        self.frames.last().map_or(self.set_begun, |f| f.in_set)
    }

    /// Why a controller gets the packet. Of an output to it only is said that the action set sends it: other actions for controllers have no place there.
    fn reason(&self, output: bool) -> Reason {
        match self.why() {
            Why::Bucket => Reason::Group,
            _ if output && self.in_set() => Reason::ActionSet,
            Why::TableMiss => Reason::TableMiss,
            Why::Flow => Reason::Action,
        }
    }

    fn run_set(&mut self) {
        let actions = action_set(&std::mem::take(&mut self.set)).into();
        self.call(actions, self.table_now(), false, Why::Flow);
        if let Some(frame) = self.frames.last_mut() {
            frame.in_set = true;
        }
    }

    /// The place of the next op: its step and its number.
    fn here(&self) -> (u32, u32) {
        let ops = self.steps.last().map_or(0, |s| s.ops.len() as u32);
        (self.steps.len().saturating_sub(1) as u32, ops)
    }

    fn leave(&mut self) {
        if let Some(frame) = self.frames.pop() {
            self.depth = self.frames.last().map_or(0, |f| f.depth);
            self.copies -= usize::from(frame.copy != Copy::No);
            if frame.copy == Copy::Made {
                self.emit(Op::Restore);
            }
            if let Some(branch) = frame.branch {
                self.set = branch.set;
                self.checks[branch.check].end = Some(self.here());
            }
        }
    }

    /// Runs actions. A caller that has nothing left to do is done with.
    fn call(&mut self, actions: Arc<[Action]>, table: u8, copy: bool, why: Why) {
        let in_set = self.in_set();
        while self.frames.pop_if(|f| f.next >= f.actions.len() && f.copy == Copy::No).is_some() {}
        let below = self.returns();
        self.copies += usize::from(copy);
        let copy = if copy { Copy::Due } else { Copy::No };
        self.frames.push(Frame {
            actions,
            next: 0,
            depth: self.depth,
            table,
            copy,
            apart: false,
            bucket: false,
            why,
            in_set,
            branch: None,
            below,
        });
    }

    /// Runs actions on a copy. Where something follows, also within a copy that the datapath makes, Open vSwitch has that make this one, too, if these do what
    /// cannot be taken back.
    fn on_copy(&mut self, actions: &Arc<[Action]>) {
        let within = self.frames.iter().rposition(|f| f.apart).unwrap_or(0);
        let last = self.set.is_empty() && self.frames[within..].iter().all(|f| f.next >= f.actions.len());
        let for_good = |a: &Action| matches!(a, Action::Ct(_) | Action::Meter(_) | Action::OutputTruncated { .. });
        self.call(actions.clone(), self.table_now(), true, self.why());
        if let Some(frame) = self.frames.last_mut() {
            frame.apart = !last && actions.iter().any(for_good);
        }
    }

    fn emit(&mut self, op: Op) {
        self.ops += 1;
        if self.ops > OPS_MAX {
            self.failed = Some(Failure::TooManyActions);
            return;
        }
        self.machine.step(&op, &mut Nobody);
        if let Some(step) = self.steps.last_mut() {
            step.ops.push(op);
        }
    }

    fn depend(&mut self, mask: Mask) {
        if let Some(step) = self.steps.last_mut() {
            let at = step.ops.len() as u32;
            match step.events.last_mut() {
                Some((last, bits)) if *last == at => bits.merge(&mask),
                _ => step.events.push((at, mask)),
            }
        }
    }

    fn depends_on(&mut self, field: Field, bits: u128) {
        let mut mask = Mask::default();
        mask.add_bits(field, bits);
        self.depend(mask);
    }

    /// Whether the packet is of a kind; that it was looked at is noted.
    fn is(&mut self, prereq: Prereq) -> bool {
        if prereq != Prereq::None {
            let mut mask = Mask::default();
            prereq.depends(&mut mask);
            self.depend(mask);
        }
        prereq.holds(&self.machine.key)
    }

    /// Looks up in a table and runs what it finds.
    fn table(&mut self, table: u8, in_port: Option<u16>, ct: bool, deeper: Option<bool>) {
        if self.depth >= DEPTH_MAX {
            self.failed = Some(Failure::TooDeep);
            return;
        }
        if self.resubmits >= RESUBMITS_MAX {
            self.failed = Some(Failure::TooManyResubmits);
            return;
        }
        let mut key = self.machine.key;
        let mut lookup = Mask::default();
        if let Some(port) = in_port {
            key.set(Field::InPort, u128::from(port));
        }
        if ct {
            exchange(&mut key.0);
        }
        if key.get(Field::NwFrag) & 1 != 0 {
            // Fragments have no ports as far as flows are concerned.
            lookup.add(Field::NwFrag);
            key.set(Field::TcpSrc, 0);
            key.set(Field::TcpDst, 0);
        }
        let fragment = !lookup.is_empty();
        let rule = self.pipeline.lookup(table, &key, &mut lookup);
        if fragment {
            lookup.remove(Field::TcpSrc);
            lookup.remove(Field::TcpDst);
        } else if lookup.get(Field::TcpSrc) | lookup.get(Field::TcpDst) != 0 {
            lookup.add_bits(Field::NwFrag, 1);
        }
        if ct {
            exchange(&mut lookup.0);
        }
        if in_port.is_some() {
            lookup.remove(Field::InPort);
        }
        lookup.remove(Field::ConjId);
        let flow = rule.and_then(|id| self.pipeline.rule(id));
        let priority = flow.map_or(0, |r| r.priority);
        let loose = in_port.is_some() || ct || self.pipeline.has_clauses(table);
        let actions = flow.map(|r| (r.actions.clone(), r.is_table_miss()));
        let back = || self.frames.last().is_some_and(|f| table <= f.table);
        let deeper = deeper.unwrap_or_else(back);
        let entry =
            Entry { table, in_port, ct, depth: self.depth, deeper, in_set: self.in_set(), returns: self.returns() };
        self.begin(entry, Looked { rule, priority, loose }, lookup);
        if let Some((actions, miss)) = actions {
            self.resubmits += 1;
            self.depth += u16::from(deeper);
            self.call(actions, table, false, Why::of(miss));
        }
    }

    fn begin(&mut self, entry: Entry, found: Looked, lookup: Mask) {
        let alive = !self.machine.stack.is_empty() || !self.set.is_empty();
        let cut = !alive && self.copies == 0;
        let key = self.machine.key;
        self.steps.push(Step {
            entry,
            rule: found.rule,
            priority: found.priority,
            loose: found.loose,
            key,
            mask: Mask::default(),
            lookup,
            ops: Vec::new(),
            cut,
            events: Vec::new(),
        });
    }

    /// What callers have left to do.
    fn returns(&self) -> Option<Arc<Return>> {
        let f = self.frames.last()?;
        match f.next < f.actions.len() || f.copy != Copy::No {
            true => {
                let place = (f.depth, f.table, f.why == Why::TableMiss, f.in_set);
                Some(Arc::new(Return::new(f.actions.clone(), f.next as u32, place, f.below.clone())))
            }
            false => f.below.clone(),
        }
    }

    /// Ends the current list of actions.
    fn stop_list(&mut self) {
        if let Some(frame) = self.frames.last_mut() {
            frame.next = frame.actions.len();
        }
    }

    /// Every action has its arm here: one that nobody handles does not compile.
    fn action(&mut self, action: &Action) {
        match action {
            Action::Output(port) => self.output(*port),
            Action::OutputField(bits) => self.output_field(bits),
            // As in Open vSwitch, which takes such a flow.
            Action::OutputTruncated { port: 0xfff8, .. } => self.remark(Remark::TruncatedBack),
            Action::OutputTruncated { port, max_len } => {
                self.send(Target::Truncated { port: *port, max_len: *max_len });
            }
            Action::InPort => self.emit(Op::Output(Target::InPort)),
            Action::All => self.emit(Op::Output(Target::All)),
            Action::Flood => self.emit(Op::Output(Target::Flood)),
            Action::Normal => self.emit(Op::Output(Target::Normal)),
            Action::Controller(to) => self.controller(to),
            Action::Drop | Action::Note(_) | Action::Sample | Action::Conjunction { .. } | Action::FinTimeout => {}
            Action::Resubmit { in_port, table, ct } => self.resubmit(*in_port, *table, *ct),
            Action::Goto(table) => self.table(*table, None, false, None),
            Action::Set { field: Field::VlanVid, value, mask } => self.set_vlan(*value, *mask & 0xfff),
            Action::Set { field, value, mask } => self.set(*field, *value, *mask),
            Action::Move { from, to } => self.copy_bits(*from, *to),
            Action::DeleteField(field) => self.delete_field(*field),
            // A queue is a priority: that is how Open vSwitch's user-space datapath has it.
            Action::SetQueue(queue) => self.write(Field::SkbPriority, u128::from(*queue), u128::MAX),
            Action::PopQueue => self.write(Field::SkbPriority, 0, u128::MAX),
            Action::SetVlanVid { vid } => self.set_vlan(u128::from(*vid), 0xfff),
            Action::SetVlanPcp { pcp } => self.set_vlan(u128::from(*pcp) << 13, 0xe000),
            Action::PushVlan(tpid) => self.emit(Op::PushVlan(*tpid)),
            Action::PopVlan => self.emit(Op::PopVlan),
            Action::PushMpls(ethertype) => self.push_mpls(*ethertype),
            Action::PopMpls(ethertype) => self.pop_mpls(*ethertype),
            Action::DecTtl(controllers) => self.decrement(Prereq::Ip, Field::NwTtl, Op::DecTtl, controllers),
            Action::DecMplsTtl => self.decrement(Prereq::Mpls, Field::MplsTtl, Op::DecMplsTtl, &[0]),
            Action::Push(bits) => self.emit(Op::Push(*bits)),
            Action::Pop(bits) => self.pop(*bits),
            Action::Group(id) => self.group(*id),
            Action::Multipath(multipath) => self.multipath(multipath),
            Action::Bundle(bundle) => self.bundle(bundle),
            Action::Ct(ct) => self.ct(ct),
            Action::CtClear => self.emit(Op::CtClear),
            Action::Clone(actions) => self.on_copy(actions),
            Action::Learn(learn) => self.learn(learn),
            Action::Meter(meter) => self.emit(Op::Meter(*meter)),
            Action::Exit => self.exit(),
            // A set of more than may be done is not kept, or it would grow with every resubmit.
            Action::WriteActions(actions) if self.set.len() + actions.len() > OPS_MAX => {
                self.failed = Some(Failure::TooManyActions);
            }
            Action::WriteActions(actions) => self.set.extend(actions.iter().cloned()),
            Action::ClearActions => self.set.clear(),
            Action::CheckLarger { size, to } => self.check_larger(*size, *to),
            Action::Unsupported(text) => self.unsupported(text),
        }
    }

    fn output_field(&mut self, bits: &Subfield) {
        let port = bits.read(&self.machine.key);
        self.depends_on(bits.field, bits.field_mask());
        if let Ok(port) = u16::try_from(port) {
            self.output(port);
        }
    }

    fn controller(&mut self, to: &Arc<ToController>) {
        let mut to = to.clone();
        if to.reason == Reason::Action {
            let reason = self.reason(to.is_output());
            Arc::make_mut(&mut to).reason = reason;
        }
        let pause = to.pause;
        self.emit(Op::Output(Target::Controller(to)));
        if pause {
            // The controller sends it on its way, or not.
            self.exit();
        }
    }

    fn resubmit(&mut self, in_port: Option<u16>, table: Option<u8>, ct: bool) {
        let tracked = !ct || self.machine.key.get(Field::CtNwProto) != 0;
        if ct {
            self.depends_on(Field::CtNwProto, u128::MAX);
        }
        if tracked {
            let table = table.unwrap_or(self.table_now());
            self.table(table, in_port, ct, None);
        }
    }

    fn learn(&mut self, learn: &Arc<Learn>) {
        let mut mask = Mask::default();
        learn.depends(&mut mask);
        self.depend(mask);
        self.emit(Op::Learn(learn.clone()));
    }

    fn unsupported(&mut self, text: &str) {
        let rule = self.steps.last().and_then(|s| s.rule).and_then(|id| self.pipeline.rule(id));
        self.failed = Some(Failure::Unsupported { action: text.to_string(), line: rule.map_or(0, |r| r.line) });
    }

    /// What is behind this action in its list depends on the packet's length. As in Open vSwitch neither the key nor the action set that come out of it count
    /// for what the callers have left, and the longer packets run the action set that was there before already here.
    fn check_larger(&mut self, size: u16, to: Subfield) {
        let length = self.machine.key.get(Field::PacketLen) as u16;
        let larger = self.assumed.get(self.checks.len()).copied().unwrap_or_else(|| {
            // The bits down to the first that differs decide; of equal numbers all do.
            let from = (length ^ size).checked_ilog2().unwrap_or(0);
            self.depends_on(Field::PacketLen, u128::from(u16::MAX << from));
            length > size
        });
        let check = self.checks.len();
        self.checks.push(Check { at: self.here(), end: None, size, larger });
        let done = |f: &Frame| f.next >= f.actions.len();
        let callers = self.frames.len().saturating_sub(1);
        let alone = self.frames[..callers].iter().all(done) && self.copies == 0 && self.set.is_empty();
        if let (false, Some(frame)) = (alone, self.frames.last_mut()) {
            let (actions, next) = (frame.actions.clone(), frame.next);
            frame.next = frame.actions.len();
            let Frame { depth, table, why, in_set, ref below, .. } = *frame;
            let below = below.clone();
            let before = if larger { self.set.clone() } else { std::mem::take(&mut self.set) };
            self.copies += 1;
            let branch = Some(Branch { check, set: before, set_begun: false });
            let copy = Copy::Made;
            // A switch goes through both branches, the one of the shorter packets last: an `exit` in that one ends the callers' lists, too.
            let bucket = larger && !actions[next..].contains(&Action::Exit);
            let apart = false;
            self.frames.push(Frame { actions, next, depth, table, copy, apart, bucket, why, in_set, branch, below });
            self.emit(Op::Save);
        }
        self.assign(to, u128::from(larger));
    }
    fn output(&mut self, port: u16) {
        let target = match port {
            0xfff8 => Target::InPort,
            0xfffa => Target::Normal,
            0xfffb => Target::Flood,
            0xfffc => Target::All,
            0xfffd => Target::Controller(Arc::new(ToController::plain(self.reason(true)))),
            0xfff9 => {
                let table = self.table_now();
                return self.table(table, None, false, None);
            }
            0xffff => return,
            port => Target::Port(port),
        };
        self.send(target);
    }

    /// Sends the packet; that nothing is sent back by the port that it came in by is remarked. No port has number 0, and programs say so
    /// by it that nothing is to be sent.
    fn send(&mut self, target: Target) {
        if let Target::Port(port) | Target::Truncated { port, .. } = target {
            if port == 0 {
                return self.remark(Remark::NoPort);
            }
            if u128::from(port) == self.machine.key.get(Field::InPort) {
                self.remark(Remark::ToInPort(port));
            }
        }
        self.emit(Op::Output(target));
    }

    /// An action that does nothing counts against no bound of Open vSwitch, so what is said of it has one of its own.
    fn remark(&mut self, remark: Remark) {
        if self.remarks.len() >= REMARKS_MAX {
            self.more_remarks += 1;
            return;
        }
        let step = self.steps.len().saturating_sub(1) as u32;
        self.remarks.push((step, remark));
    }

    fn group(&mut self, id: u32) {
        if self.depth >= DEPTH_MAX {
            self.failed = Some(Failure::TooDeep);
            return;
        }
        let Some(group) = self.pipeline.group(id).cloned() else {
            // As in Open vSwitch: a missing group ends the list of actions, not the packet.
            self.remark(Remark::NoGroup(id));
            return self.stop_list();
        };
        let mut mask = Mask::default();
        let chosen = group.choose(&self.machine.key, &mut mask);
        self.depend(mask);
        let table = self.table_now();
        self.depth += 1;
        for n in &chosen {
            let bucket = &group.buckets[*n];
            if bucket.left_out {
                self.remark(Remark::LeftOut { group: id, bucket: bucket.id });
            }
        }
        for n in chosen.into_iter().rev() {
            self.call(group.buckets[n].actions.clone(), table, true, Why::Bucket);
            if let Some(frame) = self.frames.last_mut() {
                frame.bucket = true;
            }
        }
    }

    fn ct(&mut self, ct: &CtAction) {
        let mut zone = ct.zone;
        if let Some(bits) = ct.zone_from {
            self.depends_on(bits.field, bits.field_mask());
            zone = bits.read(&self.machine.key) as u16;
        }
        let mut exec = Vec::new();
        for action in &ct.exec {
            match action {
                Action::Set { field, value, mask } => Op::set_masked(*field, *value, *mask, &mut exec),
                Action::Move { from, to } => exec.push(Op::Move { from: *from, to: *to }),
                _ => {}
            }
        }
        let CtAction { commit, force, table, nat, alg, .. } = ct;
        let (nat, alg) = (nat.clone(), alg.clone());
        self.emit(Op::Ct(Arc::new(CtCall { commit: *commit, force: *force, zone, table: *table, nat, exec, alg })));
    }

    /// Ends the processing of the packet, with that of copies of it, or of a group's bucket.
    fn exit(&mut self) {
        while let Some(frame) = self.frames.last_mut() {
            frame.next = frame.actions.len();
            if frame.bucket {
                if frame.branch.is_some() {
                    self.set.clear();
                }
                return;
            }
            self.leave();
        }
        self.set.clear();
    }
}

/// Exchanges addresses and ports with those of the connection's original direction.
fn exchange(words: &mut [u64]) {
    words.swap(31, 32);
    words.swap(33, 37);
    words.swap(34, 38);
    words.swap(35, 39);
    words.swap(36, 40);
    words[46] = words[46].rotate_left(32);
    let (proto, tracked) = (words[41] & 0xff, words[20] >> 48 & 0xff);
    words[41] = words[41] & !0xff | tracked;
    words[20] = words[20] & !(0xff << 48) | proto << 48;
}
