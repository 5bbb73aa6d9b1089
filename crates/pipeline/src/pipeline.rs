// SPDX-License-Identifier: Apache-2.0
//! A pipeline: tables of flows, groups, names of ports and tables, and changes to them.
use crate::action::Action;
use crate::changes::Changes;
use crate::classifier::{Classifier, Clause};
use crate::group::Group;
use crate::key::{Key, Mask};
use crate::matching::Match;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Tables 0 to 254.
pub const TABLES: usize = 255;
/// Flows at most in one pipeline.
pub const FLOWS_MAX: usize = 16_000_000;

/// A flow's number in its pipeline. Numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId(pub u32);

/// A flow to be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowMod {
    /// Its table.
    pub table: u8,
    /// Its priority.
    pub priority: u16,
    /// What it matches.
    pub matching: Match,
    /// What it does.
    pub actions: Arc<[Action]>,
    /// The same as written.
    pub text: Arc<str>,
    /// Its cookie.
    pub cookie: u64,
    /// Seconds without a packet after which it goes, 0 for never.
    pub idle_timeout: u16,
    /// Seconds after which it goes, 0 for never.
    pub hard_timeout: u16,
    /// The line it was read from, 0 for none.
    pub line: u32,
}

/// A flow of a pipeline.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its table.
    pub table: u8,
    /// Its priority.
    pub priority: u16,
    /// What it does.
    pub actions: Arc<[Action]>,
    /// The same as written.
    pub text: Arc<str>,
    /// Its cookie.
    pub cookie: u64,
    /// The line it was read from, 0 for none.
    pub line: u32,
    idle_timeout: u16,
    hard_timeout: u16,
    created: u64,
    used: u64,
    words: Arc<[(u8, u64)]>,
    values: Box<[u64]>,
}

impl Rule {
    /// What it matches.
    pub fn matching(&self) -> Match {
        let mut out = Match::default();
        for ((word, bits), value) in self.words.iter().zip(self.values.iter()) {
            out.mask.0[usize::from(*word)] = *bits;
            out.key.0[usize::from(*word)] = *value;
        }
        out
    }

    /// Whether it matches every packet that nothing else matches: at priority 0, whatever the packet is.
    pub fn is_table_miss(&self) -> bool {
        self.priority == 0 && self.words.is_empty()
    }

    fn is(&self, matching: &Match, priority: u16) -> bool {
        self.priority == priority && self.matching() == *matching
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) classifier: Classifier,
    version: u64,
    changes: Changes,
}

impl Table {
    /// Makes it ready for lookups after changes that ended with this version.
    fn settle(&mut self, version: u64) {
        if let Some(moved) = self.classifier.settle() {
            self.changes.order(version, moved.priorities);
        }
    }
}

/// A multi-table match-action program.
#[derive(Clone, Debug)]
pub struct Pipeline {
    tables: Vec<Table>,
    rules: HashMap<u32, Rule>,
    next_rule: u32,
    masks: HashMap<Mask, Arc<[(u8, u64)]>>,
    by_match: HashMap<(u8, u16, u64), Vec<u32>>,
    groups: BTreeMap<u32, Arc<Group>>,
    pub(crate) names: Names,
    words: u64,
    version: u64,
    groups_version: u64,
    with_timeout: Vec<u32>,
}

/// Names of ports and tables.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Ports.
    pub ports: BTreeMap<String, u16>,
    /// Tables.
    pub tables: BTreeMap<String, u8>,
}

impl Names {
    /// The name of a port, if it has one.
    pub fn port(&self, number: u16) -> Option<&str> {
        self.ports.iter().find(|(_, n)| **n == number).map(|(name, _)| name.as_str())
    }

    /// The name of a table, if it has one.
    pub fn table(&self, number: u8) -> Option<&str> {
        self.tables.iter().find(|(_, n)| **n == number).map(|(name, _)| name.as_str())
    }
}

impl Default for Pipeline {
    fn default() -> Pipeline {
        Pipeline {
            tables: vec![Table::default(); TABLES],
            rules: HashMap::new(),
            next_rule: 0,
            masks: HashMap::new(),
            by_match: HashMap::new(),
            groups: BTreeMap::new(),
            names: Names::default(),
            words: 0,
            version: 0,
            groups_version: 0,
            with_timeout: Vec::new(),
        }
    }
}

/// What a flow matches of a packet as it comes to the table: the id of a conjunction is put in only while the table is searched.
fn comparable(words: &Arc<[(u8, u64)]>, values: &[u64]) -> (Arc<[(u8, u64)]>, Box<[u64]>) {
    let mut conjunction = Mask::default();
    conjunction.add(crate::field::Field::ConjId);
    let of_packet = |(n, m): &(u8, u64)| m & !conjunction.0[usize::from(*n)];
    if words.iter().all(|w| of_packet(w) == w.1) {
        return (words.clone(), values.into());
    }
    let both = words.iter().zip(values).map(|(w, v)| ((w.0, of_packet(w)), v & of_packet(w)));
    let (words, values): (Vec<_>, Vec<_>) = both.unzip();
    (words.into(), values.into())
}

fn digest(matching: &Match) -> u64 {
    let words = matching.key.0.iter().zip(&matching.mask.0);
    words
        .filter(|(_, m)| **m != 0)
        .fold(7, |hash: u64, (v, m)| (hash ^ v ^ m.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29))
}

impl Pipeline {
    /// Adds a flow; one with the same table, priority and match is replaced, as a switch does. The number is new in both cases.
    pub fn add(&mut self, flow: FlowMod, now: u64) -> RuleId {
        let id = self.add_unstable(flow, now);
        let table = self.rules[&id.0].table;
        self.tables[usize::from(table)].settle(self.version);
        id
    }

    /// Adds many flows.
    pub fn add_all(&mut self, flows: impl IntoIterator<Item = FlowMod>, now: u64) {
        for flow in flows {
            self.add_unstable(flow, now);
        }
        for table in &mut self.tables {
            table.settle(self.version);
        }
    }

    fn add_unstable(&mut self, flow: FlowMod, now: u64) -> RuleId {
        let matching = flow.matching;
        let old = self.find(flow.table, &matching, flow.priority);
        if let Some(old) = old {
            self.take(old);
        }
        let id = self.next_rule;
        self.next_rule += 1;
        let words = self.masks.entry(matching.mask).or_insert_with(|| {
            matching.mask.0.iter().enumerate().filter(|(_, m)| **m != 0).map(|(n, m)| (n as u8, *m)).collect()
        });
        let words = words.clone();
        let values: Box<[u64]> = words.iter().map(|(n, _)| matching.key.0[usize::from(*n)]).collect();
        let clauses: Vec<Clause> = flow
            .actions
            .iter()
            .filter_map(|a| match a {
                Action::Conjunction { id, clause, of } => Some((*id, *clause, *of)),
                _ => None,
            })
            .collect();
        let table = &mut self.tables[usize::from(flow.table)];
        table.classifier.insert(id, &matching.key, &matching.mask, flow.priority, &clauses);
        self.words |= matching.mask.words() | crate::action::words_of(&flow.actions);
        self.by_match.entry((flow.table, flow.priority, digest(&matching))).or_default().push(id);
        if flow.idle_timeout != 0 || flow.hard_timeout != 0 {
            self.with_timeout.push(id);
        }
        self.version += 1;
        let table = &mut self.tables[usize::from(flow.table)];
        table.version = self.version;
        if old.is_none() || !clauses.is_empty() {
            let (words, values) = comparable(&words, &values);
            table.changes.came(self.version, clauses.is_empty().then_some(flow.priority), words, values);
        }
        let FlowMod { table, priority, actions, text, cookie, idle_timeout, hard_timeout, line, .. } = flow;
        let rule = Rule {
            table,
            priority,
            actions,
            text,
            cookie,
            line,
            idle_timeout,
            hard_timeout,
            created: now,
            used: now,
            words,
            values,
        };
        self.rules.insert(id, rule);
        RuleId(id)
    }

    /// The flow with exactly this match and priority.
    pub fn find(&self, table: u8, matching: &Match, priority: u16) -> Option<RuleId> {
        let same = self.by_match.get(&(table, priority, digest(matching)))?;
        same.iter().find(|id| self.rules[id].is(matching, priority)).map(|id| RuleId(*id))
    }

    fn take(&mut self, id: RuleId) -> Option<Rule> {
        let rule = self.rules.remove(&id.0)?;
        let matching = rule.matching();
        let table = &mut self.tables[usize::from(rule.table)];
        table.classifier.remove(id.0, &matching.key, &matching.mask);
        self.version += 1;
        table.version = self.version;
        let key = (rule.table, rule.priority, digest(&matching));
        if let Some(same) = self.by_match.get_mut(&key) {
            same.retain(|other| *other != id.0);
            if same.is_empty() {
                self.by_match.remove(&key);
            }
        }
        self.with_timeout.retain(|other| *other != id.0);
        Some(rule)
    }

    /// Removes a flow.
    pub fn remove(&mut self, id: RuleId) -> Option<Rule> {
        let rule = self.take(id)?;
        self.tables[usize::from(rule.table)].settle(self.version);
        Some(rule)
    }

    /// Gives a flow other actions; its match, priority and age stay. The number is a new one.
    pub fn modify(&mut self, id: RuleId, actions: Arc<[Action]>, text: Arc<str>) -> Option<RuleId> {
        let rule = self.rules.get(&id.0)?;
        let flow = FlowMod {
            table: rule.table,
            priority: rule.priority,
            matching: rule.matching(),
            actions,
            text,
            cookie: rule.cookie,
            idle_timeout: rule.idle_timeout,
            hard_timeout: rule.hard_timeout,
            line: rule.line,
        };
        let created = rule.created;
        Some(self.add(flow, created))
    }

    /// Removes flows whose time is over (nanoseconds) and says which.
    pub fn expire(&mut self, now: u64) -> Vec<RuleId> {
        const SECOND: u64 = 1_000_000_000;
        let over = |since: u64, seconds: u16| seconds != 0 && now.saturating_sub(since) >= u64::from(seconds) * SECOND;
        let gone: Vec<RuleId> = self
            .with_timeout
            .iter()
            .filter(|id| {
                self.rules.get(id).is_some_and(|r| over(r.created, r.hard_timeout) || over(r.used, r.idle_timeout))
            })
            .map(|id| RuleId(*id))
            .collect();
        for id in &gone {
            self.remove(*id);
        }
        gone
    }

    /// Says that a packet used these flows now, for idle timeouts.
    pub fn touch(&mut self, rules: impl IntoIterator<Item = RuleId>, now: u64) {
        for id in rules {
            if let Some(rule) = self.rules.get_mut(&id.0) {
                rule.used = now;
            }
        }
    }

    /// A flow.
    pub fn rule(&self, id: RuleId) -> Option<&Rule> {
        self.rules.get(&id.0)
    }

    /// All flows, in no order.
    pub fn rules(&self) -> impl Iterator<Item = (RuleId, &Rule)> {
        self.rules.iter().map(|(id, rule)| (RuleId(*id), rule))
    }

    /// How many flows.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Adds or replaces a group.
    pub fn set_group(&mut self, id: u32, group: Group) {
        self.version += 1;
        self.groups_version = self.version;
        for bucket in &group.buckets {
            self.words |= crate::action::words_of(&bucket.actions);
        }
        self.words |= group.fields.words();
        self.groups.insert(id, Arc::new(group));
    }

    /// Removes a group.
    pub fn remove_group(&mut self, id: u32) {
        self.version += 1;
        self.groups_version = self.version;
        self.groups.remove(&id);
    }

    /// A group.
    pub fn group(&self, id: u32) -> Option<&Arc<Group>> {
        self.groups.get(&id)
    }

    /// All groups.
    pub fn groups(&self) -> impl Iterator<Item = (u32, &Arc<Group>)> {
        self.groups.iter().map(|(id, group)| (*id, group))
    }

    /// Groups that flows and buckets name and that do not exist.
    pub fn missing_groups(&self) -> BTreeSet<u32> {
        let mut all = BTreeSet::new();
        self.each_action(&mut |action| {
            if let Action::Group(id) = action {
                all.insert(*id);
            }
        });
        all.retain(|id| !self.groups.contains_key(id));
        all
    }

    /// Meters that flows and buckets name.
    pub fn meters(&self) -> BTreeSet<u32> {
        let mut all = BTreeSet::new();
        self.each_action(&mut |action| {
            if let Action::Meter(id) = action {
                all.insert(*id);
            }
        });
        all
    }

    /// Ports that flows and buckets name to send packets to.
    pub fn output_ports(&self) -> BTreeSet<u16> {
        let mut all = BTreeSet::new();
        self.each_action(&mut |action| {
            if let Action::Output(port) | Action::OutputTruncated { port, .. } = action {
                all.insert(*port);
            }
        });
        all
    }

    /// Tables without flows to which flows and buckets lead: packets are dropped there.
    pub fn dead_ends(&self) -> BTreeSet<u8> {
        let mut all = BTreeSet::new();
        self.each_action(&mut |action| match action {
            Action::Goto(table) | Action::Resubmit { table: Some(table), .. } => drop(all.insert(*table)),
            Action::Ct(ct) => all.extend(ct.table),
            _ => {}
        });
        all.retain(|table| self.table_size(*table).0 == 0);
        all
    }

    /// Every action of flows and buckets, also within others.
    fn each_action(&self, each: &mut impl FnMut(&Action)) {
        fn within(actions: &[Action], each: &mut impl FnMut(&Action)) {
            for action in actions {
                each(action);
                if let Action::Clone(inner) | Action::WriteActions(inner) = action {
                    within(inner, each);
                }
            }
        }
        self.rules.values().for_each(|rule| within(&rule.actions, each));
        self.groups.values().flat_map(|group| &group.buckets).for_each(|bucket| within(&bucket.actions, each));
    }

    /// Names of ports and tables.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Grows with every change to this table; equal means unchanged.
    pub fn table_version(&self, table: u8) -> u64 {
        self.tables.get(usize::from(table)).map_or(0, |t| t.version)
    }

    /// The version in which groups last changed.
    pub fn groups_version(&self) -> u64 {
        self.groups_version
    }

    /// Whether a table has clauses of conjunctions.
    pub fn has_clauses(&self, table: u8) -> bool {
        self.tables.get(usize::from(table)).is_some_and(|t| t.classifier.has_clauses())
    }

    /// Whether a lookup in a table at version `since`, which found this flow of this priority (or none), finds it still, for any key that
    /// agrees with `key` on the bits of `known`; these must be all bits on which that answer depended, or some of them. No is
    /// also said where it is not known. The table must have had no clauses then, or none that the key could have met.
    ///
    /// It costs a hash lookup and at most 256 comparisons.
    pub fn still_finds<'a>(
        &self,
        table: u8,
        since: u64,
        found: Option<(RuleId, u16)>,
        key: &Key,
        known: impl FnOnce() -> &'a Mask,
    ) -> bool {
        let Some(t) = self.tables.get(usize::from(table)).filter(|t| t.version > since) else {
            return true;
        };
        found.is_none_or(|(id, _)| self.rules.contains_key(&id.0))
            && (t.changes.none(since) || t.changes.leave(since, found.map(|f| f.1), known(), key))
    }

    /// Grows with every change anywhere (flows and groups).
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Tables that have flows.
    pub fn tables(&self) -> impl Iterator<Item = u8> + '_ {
        self.tables.iter().enumerate().filter(|(_, t)| !t.classifier.is_empty()).map(|(n, _)| n as u8)
    }

    /// Flows and masks of a table.
    pub fn table_size(&self, table: u8) -> (usize, usize) {
        self.tables.get(usize::from(table)).map_or((0, 0), |t| (t.classifier.len(), t.classifier.subtables()))
    }

    /// Bit N says that some flow or group matches, reads or writes word N of the key. Flows that went are not subtracted.
    pub fn words_used(&self) -> u64 {
        self.words
    }

    /// Whether it asks how long packets are: packets that differ in nothing else may go different ways then.
    pub fn asks_for_length(&self) -> bool {
        let mut length = Mask::default();
        length.add(crate::field::Field::PacketLen);
        self.words & length.words() != 0 && {
            let mut needs = false;
            self.each_action(&mut |action| needs |= matches!(action, Action::CheckLarger { .. }));
            needs
        }
    }

    /// The flow of a table that a key finds; adds the bits that the answer depends on.
    pub fn lookup(&self, table: u8, key: &Key, mask: &mut Mask) -> Option<RuleId> {
        self.tables.get(usize::from(table))?.classifier.lookup(key, mask).map(RuleId)
    }
}
