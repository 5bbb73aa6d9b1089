// SPDX-License-Identifier: Apache-2.0
//! Groups: buckets of actions, of which all, one, or the first live one are run, each on a copy of the packet.
use crate::action::Action;
use crate::field::Field;
use crate::hash;
use crate::key::{Key, Mask};
use std::sync::Arc;

/// Which buckets run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// All of them.
    All,
    /// One, chosen by a hash.
    Select,
    /// The only one.
    Indirect,
    /// The first whose watched port is up (all are: liveness is not modelled).
    FastFailover,
}

/// One bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Its number.
    pub id: u32,
    /// Its share of a `select` group.
    pub weight: u16,
    /// What it does, in the order in which an action set runs.
    pub actions: Arc<[Action]>,
    /// The same as written.
    pub text: Arc<str>,
    /// It names actions for which an action set has no place; they are not run.
    pub left_out: bool,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Which buckets run.
    pub kind: GroupKind,
    /// The buckets.
    pub buckets: Vec<Bucket>,
    /// What `selection_method=hash` hashes; empty for the default method.
    pub fields: Mask,
    /// The same in the order in which they are hashed.
    pub field_list: Vec<Field>,
    /// Basis of that hash.
    pub selection_param: u64,
}

impl Group {
    /// The buckets that run for a packet; adds the bits that the choice depends on.
    pub fn choose(&self, key: &Key, depends: &mut Mask) -> Vec<usize> {
        match self.kind {
            GroupKind::All => (0..self.buckets.len()).collect(),
            GroupKind::Indirect | GroupKind::FastFailover => (0..self.buckets.len().min(1)).collect(),
            GroupKind::Select if self.buckets.len() < 2 => (0..self.buckets.len()).collect(),
            GroupKind::Select => self.select(key, depends).into_iter().collect(),
        }
    }

    fn select(&self, key: &Key, depends: &mut Mask) -> Option<usize> {
        let basis = if self.field_list.is_empty() {
            hash::HashFields::SymmetricL4.depends(key, depends);
            hash::symmetric_l4(key, 0)
        } else {
            let mut basis = hash::finish64(0, self.selection_param);
            for field in &self.field_list {
                field.info().prereq.depends(depends);
                if field.info().prereq.holds(key) {
                    depends.add_bits(*field, self.fields.get(*field));
                    let value = key.get(*field) & self.fields.get(*field);
                    let bytes = usize::from(field.info().bits.div_ceil(8));
                    basis = hash::bytes(&value.to_be_bytes()[16 - bytes..], basis);
                }
            }
            basis
        };
        let score = |b: &Bucket| (hash::int(b.id, basis) & 0xffff).wrapping_mul(u32::from(b.weight));
        let mut best: Option<(usize, u32)> = None;
        for (n, bucket) in self.buckets.iter().enumerate() {
            let score = score(bucket);
            if best.is_none_or(|(_, b)| score >= b) {
                best = Some((n, score));
            }
        }
        best.map(|(n, _)| n)
    }
}

type Is = fn(&Action) -> bool;
const FIRST: [Is; 6] = [
    |a| matches!(a, Action::PopVlan),
    |a| matches!(a, Action::PopMpls(_)),
    |a| matches!(a, Action::PushMpls(_)),
    |a| matches!(a, Action::PushVlan(_)),
    |a| matches!(a, Action::DecTtl(_)),
    |a| matches!(a, Action::DecMplsTtl),
];
const SETS: Is = |a| {
    matches!(
        a,
        Action::Set { .. }
            | Action::Move { .. }
            | Action::SetVlanVid { .. }
            | Action::SetVlanPcp { .. }
            | Action::SetQueue(_)
            | Action::Unsupported(_)
    )
};
const WAYS: [Is; 5] = [
    |a| matches!(a, Action::Group(_)),
    |a| match a {
        // With an identifier, bytes or a reason of its own it is an extension that no action set has a place for.
        Action::Controller(to) => to.is_output(),
        other => matches!(other, Action::Output(_) | Action::InPort | Action::All | Action::Flood | Action::Normal),
    },
    |a| matches!(a, Action::Resubmit { .. }),
    |a| matches!(a, Action::Ct(_)),
    |a| matches!(a, Action::CtClear),
];

/// Whether an action set has a place for an action; for `drop`, which does nothing, none is needed.
pub fn in_action_set(action: &Action) -> bool {
    FIRST.iter().chain([&SETS]).chain(&WAYS).any(|is| is(action)) || matches!(action, Action::Drop)
}

/// The order in which an action set runs, as in Open vSwitch: of each kind that comes first only the last one written, then what sets fields as
/// written, then one way out. Everything else has no place in one and is left out.
pub fn action_set(actions: &[Action]) -> Vec<Action> {
    let last = |is: &Is| actions.iter().rev().find(|a| is(a)).cloned();
    let mut out: Vec<Action> = FIRST.iter().filter_map(last).collect();
    out.extend(actions.iter().filter(|a| SETS(a)).cloned());
    out.extend(WAYS.iter().find_map(last));
    out
}
