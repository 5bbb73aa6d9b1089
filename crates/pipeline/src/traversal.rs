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

/// What of a caller's actions is left to do after a table returns.
#[derive(Clone, Debug)]
pub struct Return {
    pub(crate) actions: Arc<[Action]>,
    pub(crate) next: u32,
    pub(crate) depth: u16,
    pub(crate) table: u8,
}

impl PartialEq for Return {
    fn eq(&self, other: &Return) -> bool {
        // The lists are held, so an address stands for one list as long as anybody compares with it.
        Arc::ptr_eq(&self.actions, &other.actions)
            && (self.next, self.depth, self.table) == (other.next, other.depth, other.table)
    }
}

impl Eq for Return {}

impl Hash for Return {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (Arc::as_ptr(&self.actions).cast::<u8>() as usize, self.next, self.depth, self.table).hash(state);
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
    /// What callers still have to do; `None` for nothing, which is the usual case.
    pub returns: Option<Arc<[Return]>>,
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
    /// The key on entry.
    pub key: Key,
    /// The bits of the key on entry that the lookup and the actions up to the next one depended on.
    pub mask: Mask,
    /// The bits that the lookup alone depended on.
    pub lookup: Mask,
    /// What was done.
    pub ops: Vec<Op>,
    /// Whether a segment may begin here: nothing but the key and the entry is alive (no stack, no copy to return to, no action
    /// set, no flow learned in this pass).
    pub cut: bool,
    /// Bits that actions looked at, each before the op of that number.
    pub(crate) events: Vec<(u32, Mask)>,
}

/// Why a pass was broken off; everything it would have sent is discarded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
    /// The stack was empty.
    #[error("pop from an empty stack: the packet is dropped")]
    EmptyStack,
    /// Reached an action that a lenient import left out.
    #[error("the packet reached the unsupported action \"{action}\" of the flow in line {line}: what happens to it is not known")]
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
