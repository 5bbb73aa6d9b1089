// SPDX-License-Identifier: Apache-2.0
//! What a change may do without being asked about. A slip of the hand (an empty file, the wrong folder, a plan that is an hour old)
//! must not cost a configuration: who deletes much says how much, who replaces everything by nothing says so, and what
//! is committed is the plan that was shown.

use crate::error::NodeError;
use model::{Kind, Model, Plan};
use serde::{Deserialize, Serialize};

/// A change that deletes more than one object in so many asks for the number.
const SHARE: u64 = 10;

/// What the sender of a change says besides its documents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Consent {
    /// Plan, and change nothing.
    pub dry_run: bool,
    /// A configuration without a single document may replace the present one.
    pub allow_empty: bool,
    /// The number of objects that the change deletes.
    pub deletes: Option<u64>,
    /// `base` of the plan that was shown: on top of another configuration nothing is committed.
    pub base: Option<String>,
    /// By what right the configuration of a managed node is changed.
    #[serde(skip)]
    pub authority: Authority,
}

/// By what right a configuration is changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Authority {
    /// Somebody on this machine. On a managed node this changes the Gateway alone.
    #[default]
    Local,
    /// Somebody on this machine, who knows that the node will differ from its region.
    BreakGlass,
    /// The controller: whatever it deletes is meant.
    Controller,
}

/// What a plan deletes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deletes {
    /// Objects that go, by kind.
    by_kind: [u64; Kind::ALL.len()],
    /// Objects before the change.
    of: u64,
    /// The Gateway goes: nothing is forwarded any more.
    gateway: bool,
}

impl Deletes {
    /// Of a plan for a configuration of so many objects.
    pub fn new(plan: &Plan, of: u64) -> Deletes {
        Deletes {
            by_kind: Kind::ALL.map(|k| plan.tally(k).removed),
            of,
            gateway: plan.tally(Kind::Gateway).removed > plan.tally(Kind::Gateway).added && of > 1,
        }
    }

    /// Objects that go.
    pub fn number(&self) -> u64 {
        self.by_kind.iter().sum()
    }

    /// Why their number must be given.
    fn why(&self) -> &'static str {
        if self.gateway {
            "the Gateway among them, without which nothing is forwarded"
        } else {
            "which is more than a tenth"
        }
    }

    /// Whether their number must be given.
    pub fn needs_consent(&self) -> bool {
        self.gateway || self.number() * SHARE > self.of
    }

    fn words(&self) -> String {
        let kinds = Kind::ALL.iter().zip(self.by_kind).filter(|(_, n)| *n > 0).map(|(k, n)| format!("{k} {n}"));
        let kinds: Vec<String> = kinds.collect();
        let kinds = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
        format!("{} of {} objects{kinds}", self.number(), self.of)
    }
}

/// Objects of a configuration.
pub fn objects(model: &Model) -> u64 {
    Kind::ALL.iter().map(|k| model.counts().of(*k)).sum()
}

impl Consent {
    /// Of a change that the node itself makes, as at a reload: it deletes nothing.
    pub fn none() -> Consent {
        Consent::default()
    }

    /// Refuses to replace everything by nothing, unless that is meant.
    pub fn to_emptiness(&self, documents: usize, model: &Model) -> Result<(), NodeError> {
        if documents > 0 || self.allow_empty {
            return Ok(());
        }
        let gateways = model.counts().of(Kind::Gateway);
        Err(NodeError::Consent(format!(
            "the files hold no document, so --replace would delete every object but the Gateway ({} objects): nothing was changed; \
             give the right files, or --allow-empty if this is meant",
            objects(model) - gateways
        )))
    }

    /// Refuses a plan that is not the one that was shown, or deletes what was not agreed to. `base` is the configuration that
    /// the plan was made for.
    pub fn to_plan(&self, deletes: &Deletes, base: &str) -> Result<(), NodeError> {
        if self.authority == Authority::Controller {
            return Ok(());
        }
        if self.base.as_deref().is_some_and(|shown| shown != base) {
            return Err(NodeError::Outdated);
        }
        match self.deletes {
            Some(n) if n != deletes.number() => Err(NodeError::Consent(format!(
                "the plan deletes {}, but --deletes says {n}: nothing was changed; look at the plan with --dry-run",
                deletes.words()
            ))),
            None if deletes.needs_consent() && !self.dry_run => Err(NodeError::Consent(format!(
                "the plan deletes {}, {}: nothing was changed; look at the plan with --dry-run, and give --deletes {} if this is meant",
                deletes.words(),
                deletes.why(),
                deletes.number()
            ))),
            _ => Ok(()),
        }
    }
}
