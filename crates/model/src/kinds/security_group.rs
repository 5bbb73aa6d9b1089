// SPDX-License-Identifier: Apache-2.0

use super::{Described, Name};
use crate::declare::{fields, Field, Fields, Referred, Slot};
use crate::doc::Doc;
use crate::forms::*;
use crate::labels::{Labels, LabelsSlot};
use crate::written::Written;
use crate::ERRORS_MAX;
use filter::{Fault, GroupSpec, Rule, Ruleset, GROUP_RULES_MAX};
use std::collections::HashSet;
use std::sync::Arc;

const RULES: &str = "up to 10000 of the form `ingress|egress allow|deny SERVICES REMOTE [priority N] [stateless]`, none that can never match";

fields! {
    /// Rules about which connections may begin. Who has no group allows everything.
    pub kind WrittenGroup {
        /// Name, unique among the documents of its kind.
        name: Name = "metadata.name", OwnName;
        /// Which connections may begin, as the member sees them. SERVICES: `any`, `tcp`, `udp`, `icmp`, `icmpv6` or a protocol number; `tcp/80`, `udp/5000-5009`, `icmp/8`, `icmpv6/128.0`. REMOTE, the other end: `any`, an address, a prefix, or `group NAME` for the members of a group. Of the rules that match, the lowest priority number decides (0 to 65535, 1000 if not given), deny before allow, then the earlier one. What no rule matches is denied. Answers need no rule, unless the rule that allowed is `stateless`: then no session is made, and every packet of either direction is judged by the rules, in software.
        rules: Vec<Rule> = "spec.rules", rule().list(GROUP_RULES_MAX, RULES);
        /// `false`: all its rules that allow are `stateless`.
        stateful: bool = "spec.stateful", choice(&[("true", true), ("false", false)]).or(true).shy();
    }
}

const fn rule() -> Text<Rule> {
    parsed("rule", "")
}

/// Rules about connections.
#[derive(Clone, Debug)]
pub struct SecurityGroup {
    /// `metadata.name` and the rules.
    pub spec: Arc<GroupSpec>,
    /// The groups that its rules name, each with the position of the first that does.
    pub references: Arc<[(usize, Name)]>,
    /// Its labels.
    pub labels: Labels,
    /// The rules, checked and compiled; none as long as the group is not in a model.
    ruleset: Option<Arc<Ruleset>>,
}

impl SecurityGroup {
    /// With these rules, as they are.
    pub fn new(spec: GroupSpec) -> SecurityGroup {
        let mut named = HashSet::new();
        let references =
            spec.references().filter(|(_, name)| named.insert(*name)).map(|(i, name)| (i, name.clone())).collect();
        SecurityGroup { spec: Arc::new(spec), references, labels: Labels::default(), ruleset: None }
    }

    /// With these rules; not `stateful`: all that allow are stateless.
    pub(crate) fn of(name: Name, mut rules: Vec<Rule>, stateful: bool) -> SecurityGroup {
        if !stateful {
            rules.iter_mut().for_each(|r| r.stateful = !r.allow);
        }
        SecurityGroup::new(GroupSpec { name, rules })
    }

    /// Checks and compiles the rules; quickly, if the group had most of them `before`.
    pub(crate) fn compile(&mut self, before: Option<&SecurityGroup>) -> Result<(), Vec<Fault>> {
        if self.ruleset.is_none() {
            let before = before.and_then(|b| b.ruleset.as_deref());
            self.ruleset = Some(Arc::new(Ruleset::checked(self.spec.clone(), before, ERRORS_MAX)?));
        }
        Ok(())
    }

    /// The rules, compiled.
    pub(crate) fn ruleset(&self) -> Arc<Ruleset> {
        // Every group of a model has them.
        self.ruleset.clone().unwrap_or_else(|| Arc::new(Ruleset::new(self.spec.clone())))
    }

    /// Whether it allows nothing but without state.
    fn stateless(&self) -> bool {
        let mut allowing = self.spec.rules.iter().filter(|r| r.allow).peekable();
        allowing.peek().is_some() && allowing.all(|r| !r.stateful)
    }
}

impl PartialEq for SecurityGroup {
    fn eq(&self, other: &SecurityGroup) -> bool {
        self.labels == other.labels && (Arc::ptr_eq(&self.spec, &other.spec) || self.spec == other.spec)
    }
}

impl Eq for SecurityGroup {}

impl Fields for SecurityGroup {
    const ABOUT: &'static str = WrittenGroup::ABOUT;

    fn rows(base: &str, out: &mut Vec<Field>) {
        WrittenGroup::rows(base, out);
    }

    fn usual() -> SecurityGroup {
        SecurityGroup::of("".into(), Vec::new(), true)
    }

    fn read(doc: &mut Doc<'_>, base: &str) -> SecurityGroup {
        let WrittenGroup { name, rules, stateful, labels } = WrittenGroup::read(doc, base);
        SecurityGroup { labels, ..SecurityGroup::of(name, rules, stateful) }
    }

    fn write(&self, out: &mut Written, _: &str) {
        out.text("metadata.name", &self.spec.name);
        LabelsSlot.write(&self.labels, out, "metadata.labels");
        out.list("spec.rules", &rule(), &self.spec.rules);
        if self.stateless() {
            out.put("spec.stateful", |out| out.push_str("false"));
        }
    }

    fn references(&self, _: &str, _: Referred<'_>) {}
}

impl Described for SecurityGroup {
    fn name(&self) -> Name {
        self.spec.name.clone()
    }

    fn summary(&self) -> String {
        format!("{} rules", self.spec.rules.len())
    }
}
