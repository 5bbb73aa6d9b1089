// SPDX-License-Identifier: Apache-2.0
//! What the interpreter recorded about one packet's way from a table to the end (or to the connection tracker).
//!
//! A [`Traversal`] is one pass: `ct(table=N)` forks a copy that comes back as another pass. It is pure: it depends on the pipeline,
//! on where it began and on the key, not on the tracker or a clock. Its steps can be put together in any range that
//! begins where a step's [`Step::cut`] allows it: for every key that enters at the same [`Entry`] and agrees on
//! [`Traversal::range_mask`], running [`Traversal::run_range`] does exactly what the pipeline does in those steps, and the key is then at the
//! entry of the step after them.
use crate::action::Action;
use crate::key::{Key, Mask};
use crate::op::{Machine, Need, Op, Sink};
use crate::pipeline::RuleId;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

/// What of a caller's actions is left to do after a table returns, and what its own callers have left. Callers are shared between all
/// steps under them, so a step costs no more the deeper it is nested.
#[derive(Clone, Debug)]
pub struct Return {
    pub(crate) actions: Arc<[Action]>,
    pub(crate) next: u32,
    pub(crate) depth: u16,
    pub(crate) table: u8,
    /// They are those of a flow that matches every packet at priority 0.
    pub(crate) miss: bool,
    /// The action set runs them.
    pub(crate) in_set: bool,
    below: Option<Arc<Return>>,
    /// Of it and all below.
    hash: u64,
}

impl Return {
    /// What one caller has left, above what its callers have.
    pub(crate) fn new(
        actions: Arc<[Action]>,
        next: u32,
        (depth, table, miss, in_set): (u16, u8, bool, bool),
        below: Option<Arc<Return>>,
    ) -> Return {
        let mut hasher = std::hash::DefaultHasher::new();
        let address = Arc::as_ptr(&actions).cast::<u8>() as usize;
        (address, next, depth, table, miss, in_set, below.as_ref().map_or(0, |b| b.hash)).hash(&mut hasher);
        Return { actions, next, depth, table, miss, in_set, below, hash: hasher.finish() }
    }

    /// It and its callers, from the innermost out.
    pub(crate) fn outwards(&self) -> impl Iterator<Item = &Return> {
        std::iter::successors(Some(self), |r| r.below.as_deref())
    }

    pub(crate) fn below(&self) -> Option<Arc<Return>> {
        self.below.clone()
    }

    /// Whether both have the same to do, callers aside.
    fn same(&self, other: &Return) -> bool {
        // The lists are held, so an address stands for one list as long as anybody compares with it.
        Arc::ptr_eq(&self.actions, &other.actions)
            && (self.next, self.depth, self.table) == (other.next, other.depth, other.table)
            && (self.miss, self.in_set) == (other.miss, other.in_set)
    }
}

impl PartialEq for Return {
    fn eq(&self, other: &Return) -> bool {
        let (mut a, mut b) = (self, other);
        loop {
            if a.hash != b.hash || !a.same(b) {
                return false;
            }
            match (&a.below, &b.below) {
                (None, None) => return true,
                (Some(x), Some(y)) if Arc::ptr_eq(x, y) => return true,
                (Some(x), Some(y)) => (a, b) = (x, y),
                _ => return false,
            }
        }
    }
}

impl Eq for Return {}

impl Hash for Return {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

/// One caller after the other: thousands may be nested, and each within the other's drop would need a stack of that depth.
impl Drop for Return {
    fn drop(&mut self) {
        let mut next = self.below.take();
        while let Some(mut last) = next.and_then(Arc::into_inner) {
            next = last.below.take();
        }
    }
}

/// Where a lookup stands in the program: the table, and everything besides the key that decides how it goes on. This is the tag of a
/// cached segment; two entries are equal exactly if they are the same point.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Entry {
    /// The table.
    pub table: u8,
    /// The lookup takes this for the input port.
    pub in_port: Option<u16>,
    /// The lookup sees the connection's original addresses.
    pub ct: bool,
    /// How deep resubmits are nested (they are bounded).
    pub depth: u16,
    /// Whether it led to the same or an earlier table, which nests one deeper.
    pub deeper: bool,
    /// Whether the action set runs it: controllers are told, and nothing that is written to an action set is done any more.
    pub in_set: bool,
    /// What callers still have to do; `None` for nothing, which is the usual case.
    pub returns: Option<Arc<Return>>,
}

impl Entry {
    /// The beginning of a table, with nobody to return to.
    pub fn table(table: u8) -> Entry {
        Entry { table, ..Entry::default() }
    }
}

/// One lookup and what was done until the next one.
#[derive(Clone, Debug)]
pub struct Step {
    /// Where it stands.
    pub entry: Entry,
    /// The flow that matched; `None` for a table miss.
    pub rule: Option<RuleId>,
    /// The priority of that flow; 0 for none.
    pub priority: u16,
    /// The lookup saw another input port or the connection's original addresses, or the table had clauses of conjunctions: after a change of
    /// the table [`crate::Pipeline::still_finds`] cannot say whether it would find the same.
    pub loose: bool,
    /// The key on entry.
    pub key: Key,
    /// The bits of the key on entry that the lookup and the actions up to the next one depended on.
    pub mask: Mask,
    /// The bits that the lookup alone depended on.
    pub lookup: Mask,
    /// What was done.
    pub ops: Vec<Op>,
    /// Whether a segment may begin here: nothing but the key and the entry is alive (no stack, no copy to return to, no action
    /// set).
    pub cut: bool,
    /// Bits that actions looked at, each before the op of that number.
    pub(crate) events: Vec<(u32, Mask)>,
}

/// Why a pass was broken off; everything it would have sent is discarded.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum Failure {
    /// Resubmits nested too deeply.
    #[error("resubmits are nested more than {} deep: the packet is dropped", crate::interpret::DEPTH_MAX)]
    TooDeep,
    /// Too many resubmits.
    #[error("the packet was looked up again more than {} times: it is dropped", crate::interpret::RESUBMITS_MAX)]
    TooManyResubmits,
    /// Too many actions.
    #[error("resubmits yielded more than {} actions: the packet is dropped", crate::interpret::OPS_MAX)]
    TooManyActions,
    /// Too many MPLS labels.
    #[error("a packet with 3 MPLS labels cannot get another one: it is dropped")]
    TooManyLabels,
    /// Reached an action that a lenient import left out.
    #[error("the packet reached the flow in line {line}, of which \"{action}\" is not supported: what happens to it is not known")]
    Unsupported {
        /// The action.
        action: String,
        /// Its line in the import.
        line: u32,
    },
}

/// Why a traversal, or a part of it, cannot be cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Uncacheable {
    /// It installs flows.
    Learn,
    /// It was broken off.
    Failed,
    /// It is longer than 256 lookups.
    Long,
}

/// One pass through the tables.
#[derive(Clone, Debug)]
pub struct Traversal {
    /// The lookups, at least one.
    pub steps: Vec<Step>,
    /// Whether it was broken off, and why.
    pub failed: Option<Failure>,
    /// The key at the end.
    pub end: Key,
    /// What explains why nothing happened where something was written, with the step in which it is so. Does not count for caches.
    pub remarks: Vec<(u32, Remark)>,
    /// Where copies of the packet begin, by step and op, that a datapath has to make itself since what is done with them cannot be taken back. Do not count for
    /// caches either.
    pub apart: Vec<(u32, u32)>,
    /// Where it was asked how long the packet is, in order. They do not count for caches: the bits that say it are in the masks.
    pub checks: Vec<Check>,
    /// How many remarks there were beyond [`crate::REMARKS_MAX`].
    pub more_remarks: usize,
}

/// A `check_pkt_larger`. The actions behind it are run twice by a switch, once for either outcome, with the key as it was after each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The step and the op where what depends on it begins.
    pub at: (u32, u32),
    /// Where that ends, if something follows that does not.
    pub end: Option<(u32, u32)>,
    /// Longer than so many bytes.
    pub size: u16,
    /// What was found, or assumed.
    pub larger: bool,
}

/// An action that did nothing, or not what it would in a switch, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remark {
    /// There is no such group.
    NoGroup(u32),
    /// The packet came in by this port.
    ToInPort(u16),
    /// The beginning of a packet cannot be sent back.
    TruncatedBack,
    /// It was sent to port 0.
    NoPort,
    /// There was nothing to pop.
    EmptyStack,
    /// A bucket names actions that are not run.
    LeftOut {
        /// The group.
        group: u32,
        /// The bucket's number.
        bucket: u32,
    },
    /// What a label carries is not known once it is taken away.
    BehindLabel,
}

impl Remark {
    /// In words, with the names of ports.
    pub fn text(&self, names: &crate::pipeline::Names) -> String {
        match self {
            Remark::NoGroup(id) => format!("group {id} does not exist: it and the actions behind it are not run"),
            Remark::LeftOut { group, bucket } => format!(
                "bucket {bucket} of group {group} names actions for which an action set has no place: they are not run"
            ),
            Remark::TruncatedBack => "output with max_len sends nothing to IN_PORT".into(),
            Remark::NoPort => "there is no port 0: nothing is sent".into(),
            Remark::BehindLabel => {
                "what the label carried is not parsed: addresses, ports and TTL count as 0 from here on".into()
            }
            Remark::EmptyStack => "the stack is empty: nothing is popped".into(),
            Remark::ToInPort(port) => {
                let port = names.port(*port).map_or_else(|| port.to_string(), |name| format!("\"{name}\""));
                format!("nothing is sent to port {port}, by which the packet came in: only IN_PORT sends it back")
            }
        }
    }
}

impl Traversal {
    /// The key at the beginning.
    pub fn start(&self) -> &Key {
        &self.steps[0].key
    }

    /// Every bit of the first key that anything depended on: the mask of a megaflow.
    pub fn mask(&self) -> Mask {
        self.range_mask(0..self.steps.len())
    }

    /// The bits of the key at the beginning of a range of steps that anything in it depended on.
    pub fn range_mask(&self, range: Range<usize>) -> Mask {
        self.mask_of(range)
    }

    /// The same for any steps in order, where what other steps do between them is done before or has nothing to do with them.
    pub fn mask_of(&self, steps: impl DoubleEndedIterator<Item = usize>) -> Mask {
        let mut need = Need::default();
        for step in steps.rev() {
            need_before(&self.steps[step], &mut need);
        }
        need.mask
    }

    /// Does to a key what a range of steps does. The range must begin at a cut.
    pub fn run_range(&self, range: Range<usize>, machine: &mut Machine, sink: &mut impl Sink) {
        if self.failed.is_some() {
            return;
        }
        for step in &self.steps[range] {
            machine.run(&step.ops, sink);
        }
    }

    /// Does to a key what the whole traversal does.
    pub fn run(&self, key: &Key, sink: &mut impl Sink) -> Key {
        let mut machine = Machine::new(*key);
        self.run_range(0..self.steps.len(), &mut machine, sink);
        machine.key
    }

    /// All ops of a range, to be kept by a cache.
    pub fn program(&self, range: Range<usize>) -> Vec<Op> {
        self.steps[range].iter().flat_map(|s| s.ops.iter().cloned()).collect()
    }

    /// Why nothing of it can be cached, if so.
    pub fn uncacheable(&self) -> Option<Uncacheable> {
        if self.failed.is_some() {
            return Some(Uncacheable::Failed);
        }
        if self.steps.len() > 256 {
            return Some(Uncacheable::Long);
        }
        self.steps.iter().any(|s| s.ops.iter().any(|op| matches!(op, Op::Learn(_)))).then_some(Uncacheable::Learn)
    }

    /// The flows that matched, in order.
    pub fn rules(&self) -> impl Iterator<Item = RuleId> + '_ {
        self.steps.iter().filter_map(|s| s.rule)
    }
}

/// Moves a need from the end of a step to its entry.
pub(crate) fn need_before(step: &Step, need: &mut Need) {
    let mut events = step.events.iter().rev().peekable();
    for (n, op) in step.ops.iter().enumerate().rev() {
        while let Some((_, mask)) = events.next_if(|(at, _)| *at as usize > n) {
            need.mask.merge(mask);
        }
        need.before(std::slice::from_ref(op));
    }
    for (_, mask) in events {
        need.mask.merge(mask);
    }
    need.mask.merge(&step.lookup);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_shared_by_all_steps_under_them_however_deep() {
        let mut text = String::new();
        for table in 0..253 {
            text += &format!("table={table} actions=resubmit(,{}),output:{}\n", table + 1, table + 1);
        }
        text += "table=253 actions=resubmit(,0),output:9\n";
        let pipeline = crate::text::import(&text, &Default::default()).unwrap().pipeline;
        let traversal = pipeline.pass(&Entry::table(0), &Key::default());
        assert_eq!(traversal.failed, Some(Failure::TooManyResubmits));
        assert!(traversal.steps.len() > 4000);
        for (n, pair) in traversal.steps.windows(2).enumerate() {
            let [outer, inner] = [0, 1].map(|i: usize| pair[i].entry.returns.as_ref().and_then(|r| r.below.as_ref()));
            let below = inner.and_then(|r| r.below.as_ref());
            assert!(below.map(Arc::as_ptr) == outer.map(Arc::as_ptr), "step {n} has callers of its own");
        }
        let last = traversal.steps.last().and_then(|s| s.entry.returns.clone()).unwrap();
        assert!(last.outwards().count() > 4000);
        // A pass that begins there does what is left, from the innermost caller out.
        let outputs = |entry: &Entry| {
            let traversal = pipeline.pass(entry, &Key::default());
            let ops = traversal.steps.iter().flat_map(|s| &s.ops);
            ops.filter(|op| matches!(op, Op::Output(_))).cloned().collect::<Vec<_>>()
        };
        let third = &traversal.steps[3].entry;
        let entry = Entry { table: 255, returns: third.returns.clone(), ..Entry::default() };
        let port = |n| Op::Output(crate::op::Target::Port(n));
        assert_eq!(outputs(&entry), [port(3), port(2), port(1)]);
    }
}
