// SPDX-License-Identifier: Apache-2.0
//! Flows that packets install.
use crate::action::Action;
use crate::field::{Field, Prereq, Subfield};
use crate::key::{Key, Mask};
use crate::matching::Match;
use crate::pipeline::FlowMod;
use std::sync::Arc;

/// A `learn` action.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Learn {
    /// Table of the new flow.
    pub table: u8,
    /// Its priority.
    pub priority: u16,
    /// Its idle timeout in seconds.
    pub idle_timeout: u16,
    /// Its hard timeout in seconds.
    pub hard_timeout: u16,
    /// Its cookie.
    pub cookie: u64,
    /// It goes when the flow with this action goes.
    pub delete_learned: bool,
    /// At most so many flows, 0 for any number.
    pub limit: u32,
    /// What it matches and does.
    pub specs: Vec<Spec>,
}

/// Where a value of the new flow comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A constant.
    Value(u128),
    /// The packet.
    Field(Subfield),
}

/// One part of the new flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spec {
    /// It matches these bits.
    Match {
        /// The value.
        from: Source,
        /// The bits.
        to: Subfield,
    },
    /// It loads them.
    Load {
        /// The value.
        from: Source,
        /// The bits.
        to: Subfield,
    },
    /// It sends the packet to the port that these bits name now.
    Output(Subfield),
}

impl Source {
    fn read(&self, key: &Key) -> u128 {
        match self {
            Source::Value(value) => *value,
            Source::Field(bits) => bits.read(key),
        }
    }
}

impl Learn {
    /// The bits of the packet that the new flow is made from.
    pub fn depends(&self, mask: &mut Mask) {
        for spec in &self.specs {
            match spec {
                Spec::Match { from: Source::Field(bits), .. }
                | Spec::Load { from: Source::Field(bits), .. }
                | Spec::Output(bits) => bits.depends(mask),
                _ => {}
            }
        }
    }

    /// The flow that this packet installs.
    pub fn flow(&self, key: &Key) -> FlowMod {
        let mut matching = Match::default();
        let mut actions = Vec::new();
        let mut text = Vec::new();
        for spec in &self.specs {
            match spec {
                Spec::Match { from, to } => {
                    matching.masked(to.field, from.read(key) << to.offset & to.field_mask(), to.field_mask());
                    to.field.presence().iter().for_each(|bit| matching.masked(Field::TunPresent, *bit, *bit));
                }
                Spec::Load { from, to } => {
                    let value = from.read(key);
                    text.push(format!("load:{value:#x}->{to}"));
                    actions.push(Action::Set { field: to.field, value: value << to.offset, mask: to.field_mask() });
                }
                Spec::Output(bits) => {
                    text.push(format!("output:{}", bits.read(key)));
                    actions.push(Action::Output(bits.read(key) as u16));
                }
            }
        }
        for spec in &self.specs {
            if let Spec::Match { to, .. } = spec {
                require(to.field.info().prereq, key, &mut matching);
            }
        }
        FlowMod {
            table: self.table,
            priority: self.priority,
            matching,
            actions: actions.into(),
            text: match text.is_empty() {
                true => Arc::from("drop"),
                false => Arc::from(text.join(",")),
            },
            cookie: self.cookie,
            idle_timeout: self.idle_timeout,
            hard_timeout: self.hard_timeout,
            line: 0,
        }
    }
}

/// A flow that matches a field matches what the packet must be to have it, too.
fn require(prereq: Prereq, key: &Key, matching: &mut Match) {
    if prereq == Prereq::None || !prereq.holds(key) {
        return;
    }
    let mut mask = Mask::default();
    prereq.depends(&mut mask);
    mask.remove(Field::NwFrag);
    for (n, bits) in mask.0.iter().enumerate() {
        matching.mask.0[n] |= bits;
        matching.key.0[n] = matching.key.0[n] & !bits | key.0[n] & bits;
    }
}
