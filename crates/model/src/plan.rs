// SPDX-License-Identifier: Apache-2.0
//! What a change set does to a model: counts, a readable difference, and the commit for the tables.

use crate::emit::{changed_fields, FieldChange};
use crate::error::ConfigError;
use crate::kinds::*;
use crate::model::{for_each_difference, Model, Ref, Undo};
use serde_json::{json, Value};
use std::collections::HashMap;
use std::fmt;

/// How many objects of a kind a plan concerns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Created.
    pub added: u64,
    /// Changed.
    pub changed: u64,
    /// Deleted.
    pub removed: u64,
    /// Named, but equal to what is.
    pub unchanged: u64,
}

/// What a change that has been applied to a model consists of.
#[derive(Debug)]
pub struct Plan {
    pub(crate) generation: u64,
    pub(crate) work: Work,
    tallies: [Tally; Kind::ALL.len()],
    warnings: Vec<ConfigError>,
    more_warnings: u64,
}

/// How the change was made, which is also how it is taken back.
#[derive(Debug)]
pub(crate) enum Work {
    /// In place, step by step.
    Steps(Vec<Undo>),
    /// By another model; this is the one before.
    Swap(Box<Model>),
}

impl Plan {
    pub(crate) fn of_steps(
        generation: u64,
        log: Vec<Undo>,
        tallies: [Tally; Kind::ALL.len()],
        warnings: Vec<ConfigError>,
        more_warnings: u64,
    ) -> Plan {
        Plan { generation, work: Work::Steps(log), tallies, warnings, more_warnings }
    }

    pub(crate) fn of_swap(generation: u64, old: Model, tallies: [Tally; Kind::ALL.len()]) -> Plan {
        Plan { generation, work: Work::Swap(Box::new(old)), tallies, warnings: Vec::new(), more_warnings: 0 }
    }

    /// Names for the numbers of the steps of this plan.
    pub(crate) fn before<'a>(&self, log: &'a [Undo], model: &'a Model) -> Before<'a> {
        Before::new(log, model)
    }

    /// The configuration before, of a plan that replaced it.
    pub fn into_replaced(self) -> Option<Model> {
        match self.work {
            Work::Swap(old) => Some(*old),
            Work::Steps(_) => None,
        }
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.tallies.iter().all(|t| t.added + t.changed + t.removed == 0)
    }

    /// The counts of a kind.
    pub fn tally(&self, kind: Kind) -> Tally {
        self.tallies[kind as usize]
    }

    /// What is doubtful but allowed; at most 100, see [`PlanView::more_warnings`].
    pub fn warnings(&self) -> &[ConfigError] {
        &self.warnings
    }

    /// Takes over what was doubtful about the documents that a whole configuration was made of.
    pub fn warned_by(&mut self, of: &Plan) {
        self.warnings.extend(of.warnings.iter().cloned());
        self.more_warnings += of.more_warnings;
    }

    /// Every object that came, changed or went: as it was, and as it is in `model`, the model after the change. By kind and name.
    pub fn pairs(&self, model: &Model) -> Vec<Pair> {
        let mut pairs: Vec<Pair> = match &self.work {
            Work::Steps(log) => return sorted_pairs(log, model),
            Work::Swap(old) => {
                let mut pairs = Vec::new();
                for_each_difference(old, model, &mut |d| {
                    let before = d.before.and_then(|r| old.object_at(&r));
                    pairs.push((before, d.after.and_then(|r| model.object_at(&r))));
                    true
                });
                pairs
            }
        };
        pairs.sort_by_cached_key(|(a, b)| a.as_ref().or(b.as_ref()).map(|o| (o.kind(), o.name())));
        pairs
    }

    /// The same as [`Plan::view`], of all pairs, which somebody has found already.
    pub fn view_of(&self, pairs: &[Pair], max: usize) -> PlanView {
        let changes = pairs.iter().filter_map(|(a, b)| ChangeView::new(a.clone(), b.clone()));
        self.viewed(changes.take(max).collect())
    }

    /// The first `max` changes for people and programs. `model` is the model after the change.
    pub fn view(&self, model: &Model, max: usize) -> PlanView {
        let mut changes = match &self.work {
            Work::Steps(log) => step_changes(log, model, max),
            Work::Swap(old) => swap_changes(old, model, max),
        };
        changes.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
        self.viewed(changes)
    }

    fn viewed(&self, changes: Vec<ChangeView>) -> PlanView {
        let all: u64 = self.tallies.iter().map(|t| t.added + t.changed + t.removed).sum();
        PlanView {
            more: all.saturating_sub(changes.len() as u64),
            changes,
            tallies: self.tallies,
            warnings: self.warnings.clone(),
            more_warnings: self.more_warnings,
        }
    }
}

/// What happens to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is created.
    Add,
    /// It changes.
    Change,
    /// It is deleted.
    Remove,
}

/// One object's change.
#[derive(Clone, Debug)]
pub struct ChangeView {
    /// What happens.
    pub action: Action,
    /// Kind.
    pub kind: Kind,
    /// Name.
    pub name: Name,
    /// A few words about it, for objects that come or go.
    pub summary: String,
    /// The fields that differ, for objects that change.
    pub fields: Vec<FieldChange>,
}

impl ChangeView {
    fn new(before: Option<Object>, after: Option<Object>) -> Option<ChangeView> {
        let (action, object) = match (&before, &after) {
            (None, Some(o)) => (Action::Add, o),
            (Some(o), None) => (Action::Remove, o),
            (Some(a), Some(b)) if a != b => (Action::Change, b),
            _ => return None,
        };
        let fields = match (&before, &after) {
            (Some(a), Some(b)) => changed_fields(a, b),
            _ => Vec::new(),
        };
        Some(ChangeView { action, kind: object.kind(), name: object.name(), summary: object.summary(), fields })
    }
}

/// Names for numbers, also of objects that the plan deleted.
pub(crate) struct Before<'a> {
    model: &'a Model,
    vpcs: HashMap<u32, &'a Name>,
    ncs: HashMap<u32, &'a Name>,
}

impl<'a> Before<'a> {
    fn new(log: &'a [Undo], model: &'a Model) -> Self {
        let (mut vpcs, mut ncs) = (HashMap::new(), HashMap::new());
        for step in log {
            match step {
                Undo::VpcRemoved(id, v) => drop(vpcs.insert(*id, &v.spec.name)),
                Undo::NcRemoved(id, n) => drop(ncs.insert(*id, &n.name)),
                _ => {}
            }
        }
        Before { model, vpcs, ncs }
    }

    pub(crate) fn vpc(&self, id: u32) -> Name {
        self.vpcs.get(&id).map_or_else(|| self.model.vpc(id).spec.name.clone(), |n| (*n).clone())
    }

    pub(crate) fn nc(&self, id: u32) -> Name {
        self.ncs.get(&id).map_or_else(|| self.model.nc(id).name.clone(), |n| (*n).clone())
    }

    /// The object that a step took away or changed, as it was.
    pub(crate) fn object(&self, step: &Undo) -> Option<Object> {
        Some(match step {
            Undo::Gateway(old) => Object::Gateway(old.clone()?),
            Undo::NcRemoved(_, n) | Undo::NcChanged(_, n) => {
                let vpcs = n.vpcs.iter().map(|v| self.vpc(*v)).collect();
                Object::Nc(Nc { name: n.name.clone(), address: n.address, vpcs, labels: n.labels.clone() })
            }
            Undo::VpcRemoved(_, v) => Object::Vpc(Box::new(v.spec.clone())),
            Undo::VpcChanged(_, v) => Object::Vpc(v.clone()),
            Undo::PeeringRemoved(name, p) => {
                let vpcs = p.pair.map(|v| self.vpc(v));
                Object::Peering(Peering { name: name.clone(), vpcs, labels: p.labels.clone() })
            }
            Undo::VmRemoved(vpc, mac, vm) => Object::Vm(Vm {
                name: vm.name.clone(),
                vpc: self.vpc(*vpc),
                addresses: vm.addresses.clone(),
                mac: *mac,
                nc: self.nc(vm.nc),
                meter: vm.meter.clone(),
                shape: vm.shape.clone(),
                labels: vm.labels.clone(),
            }),
            Undo::RouteRemoved(vpc, prefix, r) => Object::Route(Route {
                name: r.name.clone(),
                vpc: self.vpc(*vpc),
                prefix: *prefix,
                scope: r.target.map(|to| self.vpc(*to)),
                labels: r.labels.clone(),
            }),
            Undo::Named(_, _, old) => *old.clone()?,
            _ => return None,
        })
    }
}

/// The object that a step brought or changed, as it is now.
fn after(step: &Undo, model: &Model) -> Option<Object> {
    let at = match step {
        Undo::Gateway(_) => Ref::Gateway,
        Undo::NcAdded(id) | Undo::NcChanged(id, _) => Ref::Nc(*id),
        Undo::VpcAdded(id) | Undo::VpcChanged(id, _) => Ref::Vpc(*id),
        Undo::PeeringAdded(name) => Ref::Peering(name.clone()),
        Undo::VmAdded(vpc, mac) => Ref::Vm(*vpc, *mac),
        Undo::RouteAdded(vpc, prefix) => Ref::Route(*vpc, *prefix),
        Undo::Named(kind, name, _) => Ref::Named(*kind, name.clone()),
        _ => return None,
    };
    // An NC that changed before it was deleted is no longer there.
    if matches!(&at, Ref::Nc(id) if !model.ncs.is_live(*id)) {
        return None;
    }
    model.object_at(&at)
}

/// An object before and after a change.
pub type Pair = (Option<Object>, Option<Object>);

fn step_changes(log: &[Undo], model: &Model, max: usize) -> Vec<ChangeView> {
    step_pairs(log, model, max).into_values().filter_map(|(a, b)| ChangeView::new(a, b)).collect()
}

fn step_pairs(log: &[Undo], model: &Model, max: usize) -> HashMap<(Kind, Name), Pair> {
    let before = Before::new(log, model);
    let mut pairs: HashMap<(Kind, Name), Pair> = HashMap::new();
    for step in log {
        let (old, new) = (before.object(step), after(step, model));
        for (object, is_old) in [(old, true), (new, false)] {
            let Some(object) = object else { continue };
            let key = (object.kind(), object.name());
            if pairs.len() >= max && !pairs.contains_key(&key) {
                continue;
            }
            let pair = pairs.entry(key).or_default();
            if is_old {
                pair.0.get_or_insert(object);
            } else {
                pair.1 = Some(object);
            }
        }
    }
    pairs
}

/// All pairs that differ, by kind and name. A change of millions comes mostly in this order, so that sorting costs little.
fn sorted_pairs(log: &[Undo], model: &Model) -> Vec<Pair> {
    let before = Before::new(log, model);
    let mut steps: Vec<(Kind, Name, Pair)> = Vec::with_capacity(log.len());
    for step in log {
        for pair in [(before.object(step), None), (None, after(step, model))] {
            if let Some(object) = pair.0.as_ref().or(pair.1.as_ref()) {
                steps.push((object.kind(), object.name(), pair));
            }
        }
    }
    // Steps of one object stay in their order: the first one knows what was before, the last one what is.
    steps.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    steps.dedup_by(|later, first| {
        let same = (later.0, &later.1) == (first.0, &first.1);
        if same {
            let (old, new) = std::mem::take(&mut later.2);
            first.2 .0 = first.2 .0.take().or(old);
            first.2 .1 = new.or(first.2 .1.take());
        }
        same
    });
    steps.into_iter().map(|(_, _, pair)| pair).filter(|(a, b)| a != b).collect()
}

fn swap_changes(old: &Model, new: &Model, max: usize) -> Vec<ChangeView> {
    let mut changes = Vec::new();
    for_each_difference(old, new, &mut |d| {
        let before = d.before.and_then(|r| old.object_at(&r));
        let after = d.after.and_then(|r| new.object_at(&r));
        changes.extend(ChangeView::new(before, after));
        changes.len() < max
    });
    changes
}

/// A plan for people (`Display`, [`PlanView::render`]) and programs ([`PlanView::to_json`]).
#[derive(Clone, Debug)]
pub struct PlanView {
    /// Changes, by kind and name.
    pub changes: Vec<ChangeView>,
    /// Changes that are not listed.
    pub more: u64,
    tallies: [Tally; Kind::ALL.len()],
    /// Warnings.
    pub warnings: Vec<ConfigError>,
    /// Warnings that are not listed.
    pub more_warnings: u64,
}

impl PlanView {
    /// As text; with colours for a terminal.
    pub fn render(&self, color: bool) -> String {
        let paint = |code: &str, s: String| if color { format!("\x1b[{code}m{s}\x1b[0m") } else { s };
        let mut out = String::new();
        for c in &self.changes {
            let (sign, code) = match c.action {
                Action::Add => ('+', "32"),
                Action::Change => ('~', "33"),
                Action::Remove => ('-', "31"),
            };
            let summary = if c.action == Action::Change { String::new() } else { format!("  {}", c.summary) };
            out += &paint(code, format!("{sign} {} {}{summary}", c.kind, c.name));
            out.push('\n');
            for (path, before, after) in &c.fields {
                let word = |v: &Option<String>| v.clone().unwrap_or_else(|| "(none)".into());
                let (before, after) = (paint("31", word(before)), paint("32", word(after)));
                out += &format!("    {path}: {before} → {after}\n");
            }
        }
        if self.more > 0 {
            out += &format!("  … and {} more\n", self.more);
        }
        for w in &self.warnings {
            out += &paint("33", format!("warning: {w}"));
            out.push('\n');
        }
        if self.more_warnings > 0 {
            out += &format!("warning: … and {} more\n", self.more_warnings);
        }
        out + &self.totals() + "\n"
    }

    /// One line of counts.
    pub fn totals(&self) -> String {
        let sum = |f: fn(&Tally) -> u64| self.tallies.iter().map(f).sum::<u64>();
        let (added, changed, removed) = (sum(|t| t.added), sum(|t| t.changed), sum(|t| t.removed));
        if added + changed + removed == 0 {
            return format!("No changes; {} objects are as described.", sum(|t| t.unchanged));
        }
        let mut parts = Vec::new();
        for kind in Kind::ALL {
            let t = self.tallies[kind as usize];
            if t.added + t.changed + t.removed > 0 {
                parts.push(format!("{kind} +{} ~{} -{}", t.added, t.changed, t.removed));
            }
        }
        let unchanged = sum(|t| t.unchanged);
        format!(
            "{added} to add, {changed} to change, {removed} to remove, {unchanged} unchanged ({}).",
            parts.join(", ")
        )
    }

    /// As a JSON object.
    pub fn to_json(&self) -> Value {
        let changes: Vec<Value> = self.changes.iter().map(change_json).collect();
        let counts: serde_json::Map<String, Value> = Kind::ALL
            .iter()
            .map(|k| {
                let t = self.tallies[*k as usize];
                let counts =
                    json!({"added": t.added, "changed": t.changed, "removed": t.removed, "unchanged": t.unchanged});
                (k.name().to_string(), counts)
            })
            .collect();
        let warnings: Vec<Value> = self.warnings.iter().map(ConfigError::to_json).collect();
        json!({"changes": changes, "more": self.more, "counts": counts, "warnings": warnings, "moreWarnings": self.more_warnings})
    }
}

fn change_json(c: &ChangeView) -> Value {
    let action = match c.action {
        Action::Add => "add",
        Action::Change => "change",
        Action::Remove => "remove",
    };
    let fields: Vec<Value> =
        c.fields.iter().map(|(path, a, b)| json!({"field": path, "before": a, "after": b})).collect();
    json!({"action": action, "kind": c.kind.name(), "name": &*c.name, "summary": c.summary, "fields": fields})
}

impl fmt::Display for PlanView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}
